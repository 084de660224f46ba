"""Masses of the loss of a variance-gamma pair, from curves that are tabulated once.

Quadratures (`_variance_gamma`) give the density f and the mass of (y, inf), integrals of f that of
(0, y), at Chebyshev's nodes of some pieces in u = log y; in between they are polynomials. K_nu is
analytic in the right half plane, without zeros, hence log f on |Im u| < pi/2, and for pieces of
length h the error falls like rho^-24, rho = pi/h + (1 + (pi/h)^2)^{1/2}: below 2^-52 up to h = 1.3
(Trefethen 2013, Theorem 8.2), which is reached at beta + x = 10^9. Of the masses the smaller one is
tabulated; that it has no zeros so near either is known of the ends of the family, Laplace and
normal laws, and is compared with high precision in between (the tests).

Below u = -18 two terms of the power series of f are exact (DLMF 10.27.4, 10.25.2).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.polynomial import Chebyshev

from jaxdp import _divergences, _special
from jaxdp._mechanisms._base import Masses
from jaxdp._noise import _variance_gamma as law
from jaxdp._special import log1p
from jaxdp._special_bessel import SMALL
from jaxdp._special_gamma import log_gamma, log_gamma_ratio

_PIECES, _NODES = 48, 24
_ANGLES = np.pi * (np.arange(_NODES) + 0.5) / _NODES
_POINTS = np.cos(_ANGLES)
# values at the nodes to coefficients of Chebyshev polynomials
_FIT = 2.0 / _NODES * np.cos(np.arange(_NODES)[:, None] * _ANGLES)
_FIT[0] *= 0.5
# and to integrals from -1 to the nodes, and to 1
_INTEGRALS = np.array([Chebyshev(c).integ(lbnd=-1.0)(np.append(_POINTS, 1.0)) for c in _FIT.T]).T
# Of intervals whose mass is a smaller share of both sides, the density is integrated: they are so
# short that Gauss's rule has all digits.
_SHARE = 1.0 / 64.0
_GAUSS = tuple(0.5 * x for x in np.polynomial.legendre.leggauss(7))
_SINGLE = 0.95  # nu from which f is constant next to 0
_TABLE, _STEPS = 1024, 6
_AFTER = np.array([[False], [True]])  # the shift
_FLATTEST = 1e-9  # |nu| for less
_ROUNDING = 1e-12


class _Near(NamedTuple):
    """What f is next to 0: e^constant where nu is large, else that times sinh(z)/nu y^nu.

    Here z = order log(2/y) + half is that of `_special_bessel`; `rest` is for the mass.
    """

    single: jax.Array
    order: jax.Array
    shift: jax.Array  # nu, or 0
    constant: jax.Array
    half: jax.Array
    rest: jax.Array

    def log_density(self, log_y: jax.Array) -> jax.Array:
        """log f(y) of tiny y."""
        log_half = log_y - _special.LOG_2
        z = self.half - self.order * log_half
        z = jnp.where(self.single, 1.0, z)
        value = self.constant + self.shift * log_half + z + _special.log1mexp(-2.0 * z)
        return jnp.where(self.single, self.constant, value)

    def log_below(self, log_y: jax.Array) -> jax.Array:
        """log of y f(y) + int_0^y -t f'(t) dt of tiny y, f a constant less a power t^{2 nu}."""
        more = self.rest + log_y + 2.0 * self.shift * (log_y - _special.LOG_2)
        return jnp.logaddexp(log_y + self.log_density(log_y), more)


def _near(beta: jax.Array) -> _Near:
    nu = beta - 0.5
    single = nu > _SINGLE
    shift = jnp.where(single, 0.5, nu)
    order = jnp.maximum(jnp.abs(shift), _FLATTEST)
    both = 0.5 * (log_gamma(1.0 + order) + log_gamma(1.0 - order)) - jnp.log(2.0 * order)
    both -= log_gamma(shift + 0.5)
    alone = -log_gamma_ratio(jnp.where(single, nu, 1.0), 0.5) - _special.LOG_2
    constant = jnp.where(single, alone, both) - 0.5 * np.log(np.pi)
    rest = log_gamma(1.0 - shift) - log_gamma(shift + 0.5) - log1p(2.0 * shift)
    return _Near(
        single,
        order,
        jnp.where(single, 0.0, shift),
        constant,
        0.5 * log_gamma_ratio(1.0 - order, 2.0 * order),
        jnp.where(single, -jnp.inf, rest - 0.5 * np.log(np.pi)),
    )


class Tables(NamedTuple):
    """Of the noise, by pieces in log y: coefficients (pieces, nodes) of two logarithms of order 1.

    `shape` is e^y f(y) over its leading term, `mass` the smaller of P(0 < Y < y)/(y f(y)) and
    P(Y > y)/f(y), the latter where `is_above` (pieces,).
    """

    beta: jax.Array
    constant: jax.Array
    near: _Near
    width: jax.Array
    shape: jax.Array
    mass: jax.Array
    is_above: jax.Array

    def _piece(self, log_y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Which one, and where in it, in (-1, 1)."""
        place = (log_y - SMALL) / self.width
        index = jnp.clip(jnp.floor(place), 0.0, _PIECES - 1.0)
        return index.astype(jnp.int32), jnp.clip(2.0 * (place - index) - 1.0, -1.0, 1.0)

    def log_shape(self, log_y: jax.Array) -> jax.Array:
        """`_variance_gamma.log_shape`."""
        index, x = self._piece(log_y)
        tiny = log_y < SMALL
        small = jnp.where(tiny, log_y, SMALL)
        near = self.near.log_density(small) + jnp.exp(small) - self.constant
        far = law.leading(self.beta, jnp.where(tiny, 0.0, log_y)) + _clenshaw(self.shape[index], x)
        return jnp.where(tiny, near, far)

    def log_density(self, log_y: jax.Array) -> jax.Array:
        """log f(y)."""
        return self.constant + self.log_shape(log_y) - jnp.exp(log_y)

    def log_sides(self, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        """log P(0 < Y < y) and log P(Y > y), y >= 0."""
        some = (y > 0.0) & (y < jnp.inf)
        log_y = jnp.log(jnp.where(some, y, 1.0))
        index, x = self._piece(log_y)
        tiny = log_y < SMALL
        above = self.is_above[index] & ~tiny
        ratio = jnp.where(above, 0.0, log_y) + _clenshaw(self.mass[index], x)
        value = self.log_density(log_y) + ratio
        value = jnp.where(tiny, self.near.log_below(jnp.where(tiny, log_y, SMALL)), value)
        above = jnp.where(some, above, y > 0.0)
        double = jnp.where(some, jnp.minimum(value + _special.LOG_2, -1e-3), -1.0)
        value = jnp.where(some, value, -jnp.inf)
        other = jnp.where(some, _special.log1mexp(double), 0.0) - _special.LOG_2
        return jnp.where(above, other, value), jnp.where(above, value, other)

    def log_interval(self, low: jax.Array, high: jax.Array) -> jax.Array:
        """log P(low < Y <= high), elementwise."""
        low, high = jnp.broadcast_arrays(low, high)
        empty = ~(low < high)
        low, high = jnp.where(empty, 1.0, low), jnp.where(empty, 2.0, high)
        a = jnp.minimum(jnp.abs(low), jnp.abs(high))
        b = jnp.maximum(jnp.abs(low), jnp.abs(high))
        (from_0, to_b), (beyond_a, beyond_b) = self.log_sides(jnp.stack([a, b]))
        gaps = jnp.minimum(from_0 - to_b, 0.0), jnp.minimum(beyond_b - beyond_a, 0.0)
        by_sides = gaps[0] < gaps[1]
        gap = jnp.where(by_sides, gaps[0], gaps[1])
        wide = gap < np.log1p(-_SHARE)
        value = jnp.where(by_sides, to_b, beyond_a)
        value = value + _special.log1mexp(jnp.where(wide, gap, -1.0))
        short = ~wide & (a > 0.0)
        start, length = jnp.where(short, a, 1.0), jnp.where(short, b - a, 0.01)
        points = start[..., None] + length[..., None] * (0.5 + _GAUSS[0])
        terms = self.log_density(jnp.log(points)) + np.log(_GAUSS[1])
        value = jnp.where(short, _special.logsumexp(terms, axis=-1) + jnp.log(length), value)
        value = jnp.where((low < 0.0) & (high > 0.0), jnp.logaddexp(from_0, to_b), value)
        return jnp.where(empty, -jnp.inf, jnp.minimum(value, 0.0))


def _clenshaw(coefficients: jax.Array, x: jax.Array) -> jax.Array:
    """The sum of Chebyshev polynomials with coefficients along the last axis."""
    one, two = jnp.zeros_like(x), jnp.zeros_like(x)
    for k in range(_NODES - 1, 0, -1):
        one, two = coefficients[..., k] + 2.0 * x * one - two, one
    return coefficients[..., 0] + x * one - two


def _log_below(near: _Near, width: jax.Array, log_moment: jax.Array) -> jax.Array:
    """log P(0 < Y < y) at the nodes from those of y f(y), exact next to 0 (up to the median)."""
    exact = jax.lax.Precision.HIGHEST
    rises = 0.5 * width * jnp.matmul(jnp.exp(log_moment), _INTEGRALS.T, precision=exact)
    start = jnp.concatenate([jnp.exp(near.log_below(jnp.float64(SMALL)))[None], rises[:-1, -1]])
    return _divergences.log_positive(jnp.cumsum(start)[:, None] + rises[:, :-1])


def _tables(beta: jax.Array, x: jax.Array) -> Tables:
    near, constant = _near(beta), law.log_constant(beta)
    last = jnp.log(1e10 * (1.0 + x + beta))
    width = jax.lax.stop_gradient((last - SMALL) / _PIECES)
    log_y = SMALL + width * (jnp.arange(_PIECES)[:, None] + 0.5 + 0.5 * _POINTS)
    y = jnp.exp(log_y)
    shape = law.relative_shape(beta, log_y)
    density = constant + law.leading(beta, log_y) + shape - y
    below = _log_below(near, width, log_y + density)
    above = law.log_survival(beta, y)
    is_above = jax.lax.stop_gradient(above[:, _NODES // 2] < below[:, _NODES // 2])
    mass = jnp.where(is_above[:, None], above, below - log_y) - density
    values = jnp.stack([shape, mass])
    # (a law far out has no mass that is a number, nor any that counts)
    values = jnp.where(jnp.isfinite(values), values, 0.0)
    fitted = jnp.matmul(values, jnp.asarray(_FIT).T, precision=jax.lax.Precision.HIGHEST)
    return Tables(beta, constant, near, width, fitted[0], fitted[1], is_above)


class Pair(NamedTuple):
    """The noise, its shift, and a table of the losses: at log distances t from the shift.

    Rows: before it and after it; (2, n). `falls` is where they fall with t.
    """

    noise: Tables
    x: jax.Array
    t: jax.Array
    losses: jax.Array
    falls: jax.Array
    top: jax.Array


def pair(beta: jax.Array, x: jax.Array) -> Pair:
    """With all that its masses have in common."""
    beta, x = jnp.asarray(beta, jnp.float64), jnp.asarray(x, jnp.float64)
    noise = _tables(beta, x)
    frozen, at = jax.lax.stop_gradient((noise, x))
    far = jnp.stack([jnp.log(0.5 * at), jnp.log(1e9 * (1.0 + at + frozen.beta))])
    # nearly uniform in t near the end, then out to -1e6
    reach = jnp.expm1(jnp.linspace(0.0, np.log(0.3 * law.DEEP), _TABLE, dtype=jnp.float64)) / 0.3
    t = far[:, None] - reach[::-1]
    losses, _ = law.losses(frozen.log_shape, at, t, jnp.asarray(_AFTER))
    falls = jnp.stack([jnp.asarray(True), frozen.beta < 1.0])[:, None]
    return Pair(noise, x, t, losses, falls, law.peak_loss(frozen.beta, at))


def masses_function(beta: jax.Array, x: jax.Array) -> Masses:
    """`log_masses` of a pair, with all that they have in common computed once."""
    return functools.partial(log_masses, pair(beta, x))


def log_masses(of: Pair, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi}, elementwise; the loss is antisymmetric about x/2.

    Large losses live next to x, where P = f(y - x) is exact in the offset y - x but Q is lost in
    the digits of x: it is kept between P e^-hi and P e^-lo.
    """
    lo, hi = jnp.broadcast_arrays(lo, hi)
    # {lo < L <= hi} with L > 0, and mirrored, where P and Q trade places, with L < 0
    levels = jax.lax.stop_gradient(jnp.stack([jnp.stack([lo, -hi]), jnp.stack([hi, -lo])]))
    levels = jnp.maximum(levels, 0.0)
    there = levels > 0.0
    first, second = _positions(jax.lax.stop_gradient(of), levels)
    # {L > 0} is y > x/2
    low = jnp.where(there, first, -0.5 * jax.lax.stop_gradient(of.x))
    top = jnp.where(there, second, jnp.inf)
    starts, stops = jnp.stack([low[0], top[1]]), jnp.stack([low[1], top[0]])
    moved = jnp.stack([of.x, jnp.zeros_like(of.x)]).reshape((2,) + (1,) * starts.ndim)
    parts = _log_intervals(of.noise, starts + moved, stops + moved)  # (Q or P, part, side, ...)
    log_q, log_p = _special.logsumexp(parts, axis=1)
    log_q = jnp.clip(log_q, log_p - levels[1], log_p - levels[0])
    return jnp.logaddexp(log_q[0], log_p[1]), jnp.logaddexp(log_p[0], log_q[1])


_AT_A_TIME = 4096


def _log_intervals(known: Tables, low: jax.Array, high: jax.Array) -> jax.Array:
    """A few at a time: each holds a sum of some values at their pieces."""
    low, high = jnp.broadcast_arrays(low, high)
    each = jax.checkpoint(lambda ends: known.log_interval(*ends))
    ends = low.ravel(), high.ravel()
    return jax.lax.map(each, ends, batch_size=_AT_A_TIME).reshape(low.shape)


def _positions(of: Pair, level: jax.Array) -> tuple[jax.Array, jax.Array]:
    """{L > level} = (x - d, x + e), level >= 0: -d and e, infinite where there is no such end.

    The loss is monotone in the log distance t from x on either side. The table brackets every
    crossing; Newton's method, kept in the bracket, then doubles the digits six times.
    """
    x, concave = of.x, of.noise.beta >= 1.0
    flat = jnp.ravel(level)
    sign = jnp.where(of.falls, -1.0, 1.0)
    keys, wanted = sign * of.losses, sign * flat
    index = jax.vmap(jnp.searchsorted)(keys, wanted)
    index = jnp.clip(index, 1, _TABLE - 1)

    def excess(t: jax.Array) -> jax.Array:
        return sign * (law.losses(of.noise.log_shape, x, t, jnp.asarray(_AFTER))[0] - flat)

    def newton(_, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        t, low, high = state
        value, slope = jax.jvp(excess, (t,), (jnp.ones_like(t),))
        low, high = jnp.where(value < 0.0, t, low), jnp.where(value < 0.0, high, t)
        moved = t - value / slope
        room = _ROUNDING * (1.0 + jnp.abs(t))  # or a root that is met would be left again
        inside = (moved >= low - room) & (moved <= high + room)
        return jnp.where(inside, jnp.clip(moved, low, high), 0.5 * (low + high)), low, high

    (low, a), (high, b) = (
        [jnp.take_along_axis(rows, at, axis=1) for rows in (of.t, keys)]
        for at in (index - 1, index)
    )
    share = jnp.clip((wanted - a) / jnp.where(b > a, b - a, 1.0), 0.0, 1.0)
    root = jax.lax.fori_loop(0, _STEPS, newton, (low + share * (high - low), low, high))[0]
    root = jnp.where(wanted < keys[:, :1], of.t[:, :1], root)
    distance = jnp.exp(jnp.where(wanted > keys[:, -1:], of.t[:, -1:], root))
    inside, outside = -distance[0], distance[1]
    infinite = jnp.asarray(jnp.inf)
    first = jnp.where(of.top > flat, inside, jnp.where(concave & (flat < x), outside, infinite))
    second = jnp.where(concave | (flat < x), infinite, outside)
    # where the loss peaks at x below the level, the set shrinks to the point x
    none = ~concave & (of.top <= flat)
    first, second = jnp.where(none, 0.0, first), jnp.where(none, 0.0, second)
    return first.reshape(level.shape), second.reshape(level.shape)
