"""Averages of likelihood ratios: random allocation, by a tilted FFT on a linear lattice.

One record joins one of t steps chosen uniformly. With X_i = (dP/dQ)(Y_i), Y_i ~ Q independent, the
ratio of the two laws is A = (X_1 + ... + X_t) / t under Q (Feldman & Shenfeld 2025, arXiv
2502.08202), so that, with S = X_1 + ... + X_t and tau = P{X = inf},

    remove   H_{e^eps}(P_avg || Q) = E_Q (S - t e^eps)_+ / t + tau,
    add      H_{e^eps}(Q || P_avg) = E_Q (t e^-eps - S)_+ / (t e^-eps).

With Y = s S, s = +1 or -1, both are the curve C(c) = E (Y - c)_+ over a scale. `_average_grid`
gives one-step laws on a linear lattice above and below in the order of such curves, which sums
preserve; S is then a power of one discrete Fourier transform.

Tilt. w = q e^{theta (y - y_0) - K} is a probability on the lattice, y_0 a node near its mean; let
w be the t-fold law too. Then, with z = (y_j - c)_+ and z e^{-theta z} <= 1 / (e theta),

    C(c) = e^{t K - theta (c - t y_0)} sum_j w_j z e^{-theta z}.

What w leaves out is a measure of known total mass (as in
`_compose`): what lies outside the window, by Chernoff's bound on the law that is transformed, and
the rounding of the transforms, eta of `_average_fft`. So C is off by at most

    B(c) = e^{t K - theta (c - t y_0)} l / (e theta).

Above, l = eta. What is wrapped around only adds; what lies beyond the window's end is put there,
and its first moment past the end, at most P{beyond} / (e theta) in these units, is added to C.
Below, l = eta + P{below the window} + P{y >= floor + its width}: what is wrapped around must not
come to lie beyond c, which is read from `floor` on.

Lattice points, and the thresholds of the one-step law, are rounded: the curve is read that far
(`_allowances.ratios`) on the safe side. Sums of positive terms are scaled by what rounding costs.
Certified for integer t; real t interpolates (for gradients).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import log_add, log_positive
from jaxdp._law import _allowances, _average_grid, _places
from jaxdp._law._average_end import Bare
from jaxdp._law._average_fft import cyclic_power
from jaxdp._law._average_tilt import AveragePlan
from jaxdp._law._grid import ladder
from jaxdp._law._places import wrap
from jaxdp._law._terms import Sign, Term

_DENSITY = 64
_REACH = 2**28
_LARGEST_EXPONENT = 650.0
_E = 2.718281828459045
_RATES = 2.0 ** np.arange(0.0, 12.0, 2.0)  # for Chernoff's bound, over the distance


class Total(NamedTuple):
    """The tilted law of Y = s S near the query, and what it leaves out.

    weights (N,) at y = start + spacing * k, 0 where no sum can lie; the mass of a point is
    e^{log_scale - theta (y - origin)} times its weight. `stray` is l of the module's docstring and
    `beyond` the mass above the window; the curve below is read from `floor` to `ceiling`. `mass` is
    that of the lattice law, `tau` is P{inf}, `dropped` the mass missing in it above, `ends` are the
    smallest and largest X of the lattice.
    """

    steps: jax.Array
    theta: jax.Array
    origin: jax.Array
    start: jax.Array
    spacing: jax.Array
    weights: jax.Array
    possible: jax.Array
    log_scale: jax.Array
    stray: jax.Array
    beyond: jax.Array
    floor: jax.Array
    ceiling: jax.Array
    mass: jax.Array
    tau: jax.Array
    dropped: jax.Array
    shift: jax.Array
    ends: tuple[jax.Array, jax.Array]


def _log_sums(weights: jax.Array, exponent: jax.Array) -> jax.Array:
    """log sum w e^exponent over the last axis."""
    top = jnp.max(jnp.where(weights > 0.0, exponent, -jnp.inf), axis=-1)
    top = lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    top = top[..., None]  # (which may be one of them: a minimum would have half a derivative)
    scaled = jnp.exp(jnp.where(exponent <= top, exponent - top, 0.0))
    return top[..., 0] + jnp.log(jnp.sum(weights * scaled, axis=-1))


def total(
    term: Term,
    steps: jax.Array,
    plan: AveragePlan,
    size: int,
    s: Sign,
    side: int,
    bare: Bare | None = None,
) -> Total:
    """The law of S above (side = +1) or below (-1), near the query of the plan."""
    width = plan.high - plan.low if side > 0 else plan.width
    spacing = jnp.maximum(width / (size - 8), 1e-13 * plan.middle)
    cells = ladder(_DENSITY, _REACH)
    if side > 0:
        law = _average_grid.upper(term, spacing, plan.middle, plan.largest, cells, s, plan.limit)
    else:
        law = _average_grid.lower(
            term, spacing, plan.middle, plan.largest, plan.cut, cells, s, plan.limit, plan.heavy
        )
    lattice, theta = law.lattice, plan.theta
    h = lattice.spacing
    offset = s * (law.positions - lattice.middle)
    log_norm = _log_sums(law.mass, theta * h * offset)
    weights = law.mass * jnp.exp(jnp.minimum(theta * h * offset - log_norm, 700.0))
    powered, stray = cyclic_power(weights, offset, steps, size)
    # The window moves with the lattice's middle, which may be off the plan's by half a step.
    middle = lattice.anchor + h * lattice.middle
    origin = s * steps * middle
    moved = lax.stop_gradient(s * steps * plan.middle - origin)
    ends = steps * jnp.sort(s * jnp.stack([-lattice.middle, lattice.top - lattice.middle]))
    first = jnp.maximum(_places.floor((plan.low + moved) / h) - 2.0, ends[0])
    at = first + jnp.arange(size, dtype=jnp.float64)
    possible = (at >= ends[0] - 0.5) & (at <= ends[1] + 0.5)
    weights_out = jnp.where(possible, powered[wrap(at, size)], 0.0)

    both = jnp.concatenate([-plan.tilts, plan.tilts])
    log_mgf = steps * _log_sums(weights, (both[:, None] * h) * offset)
    log_mgf += lax.stop_gradient(steps) * _allowances.sums(weights.size)
    log_mgf = log_mgf[: plan.tilts.size], log_mgf[plan.tilts.size :]

    def outside(sign: int, far: jax.Array) -> jax.Array:
        """Chernoff's bound on the mass past `far`."""
        exponent = jnp.min(log_mgf[sign > 0] - sign * plan.tilts * far)
        beyond = far > ends[1] * h if sign > 0 else far < ends[0] * h
        return jnp.where(beyond, 0.0, _allowances.CHERNOFF * jnp.exp(jnp.minimum(exponent, 0.0)))

    beyond = jnp.float64(0.0)
    floor = plan.floor + moved - h  # (a node of large mass may be there, but for rounding)
    if side > 0:
        beyond = outside(1, (first + size) * h)
        last = possible & jnp.concatenate([~possible[1:], jnp.ones((1,), bool)])
        weights_out = weights_out + jnp.where(last, lax.stop_gradient(beyond), 0.0)
    else:
        stray += outside(-1, (first - 1.0) * h)
        stray += outside(1, floor + (size - 1) * h)
    # The moment at infinity of one summand, times the mass of the others.
    mass = jnp.exp(steps * jnp.log(_allowances.pairwise(law.mass)))
    kept, ceiling = jnp.maximum(mass, 1.0), jnp.float64(jnp.inf)
    log_tau, own = jnp.asarray(term.log_tau_p, jnp.float64), jnp.maximum(mass, 1.0)
    if side < 0:
        (kept, ceiling), own = _kept(law, steps, plan, bare), 1.0
    reach = steps * middle + size * h + jnp.abs(first) * h
    return Total(
        steps,
        theta,
        origin,
        origin + h * first,
        h,
        weights_out,
        possible,
        steps * log_norm,
        lax.stop_gradient(stray),
        lax.stop_gradient(beyond),
        origin + floor,
        lax.stop_gradient(ceiling),
        mass,
        jnp.exp(log_tau) * own + law.tau * kept,
        lax.stop_gradient(steps * law.dropped),
        lax.stop_gradient(_allowances.ratios(steps, reach, lattice.anchor + h * lattice.top)),
        (lattice.anchor, lattice.anchor + h * lattice.top),
    )


def _kept(
    law: _average_grid.StepLaw, steps: jax.Array, plan: AveragePlan, bare: Bare | None
) -> tuple[jax.Array, jax.Array]:
    """The part of the first moment beyond the lattice that counts below, read up to a ceiling."""
    top = law.lattice.anchor + law.lattice.spacing * law.positions[-1]
    ceiling = plan.query + 0.1 * jnp.abs(plan.query - steps) + 8.0 * law.lattice.spacing
    others, first = jnp.maximum(steps - 1.0, 0.0), law.cells.first
    room = others * first - (ceiling - top)
    room = jnp.where(room > 0.0, room, 0.0)
    rates = _RATES / jnp.where(room > 0.0, room, 1.0)
    # Of rates at which rounding of the sums, and of what is in them, is no more than allowed.
    right = rates * _allowances.exponent(others * first, ceiling, top) < 0.5

    def fewer(least: jax.Array, below: jax.Array) -> jax.Array:
        """A bound on the probability that the others are not enough."""
        log_mgf = jax.vmap(lambda rate: law.cells.log_mgf(rate, first, least))(rates)
        exponent = others * log_mgf - rates * room
        exponent = jnp.min(jnp.where(right & (exponent < 0.0), exponent, 0.0))
        tail = _allowances.CHERNOFF * jnp.exp(exponent)
        return tail + others * (law.cells.missing + below)

    zero = jnp.zeros(())
    short = fewer(zero, zero)
    if bare is not None:
        inside = bare.least < law.cells.hi[0]
        short = jnp.where(inside, jnp.minimum(short, fewer(*bare)), short)
    kept = 1.0 - short
    kept = jnp.where(room > 0.0, jnp.maximum(kept, 0.0), 0.0)
    kept = lax.stop_gradient(jnp.where(top >= ceiling, 1.0, kept) * (law.tau > 0.0))
    return kept, lax.stop_gradient(jnp.where(kept > 0.0, ceiling, jnp.inf))


def _slack(law: Total, c: jax.Array) -> jax.Array:
    """Of log e^{t K - theta (c - t y_0)}."""
    exponent = _allowances.exponent(law.log_scale, law.theta * (c - law.origin), 3.0)
    return lax.stop_gradient(4.0 * exponent) + _allowances.normalised_steps(law.steps)


def _past_end(law: Total, c: jax.Array) -> jax.Array:
    """e^{-theta (end - c)} P{above the window}: e theta times its first moment past the end."""
    end = law.start + law.spacing * (law.weights.shape[0] - 1)
    return law.beyond * jnp.exp(jnp.clip(-law.theta * (end - c), -700.0, 700.0))


def _read(law: Total, c: jax.Array, side: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """C(c) and the mass beyond c, of the tilted law, and the logarithm of their unit."""
    z = law.start + law.spacing * jnp.arange(law.weights.shape[0], dtype=jnp.float64) - c
    beyond = z > 0.0
    z = jnp.where(beyond, z, 0.0)
    rough = 1.0 + side * _allowances.tilted_sums(z.shape[0])
    weight = law.weights * jnp.where(beyond, jnp.exp(-law.theta * z), 0.0)
    value = jnp.sum(weight * z) * rough + side * law.stray / (_E * law.theta)
    mass = jnp.sum(weight) * rough + side * law.stray  # (at most 1 each, e^{-theta z} being so)
    if side > 0:
        value += _past_end(law, c) / (_E * law.theta)
    prefactor = law.log_scale - law.theta * (c - law.origin) + side * _slack(law, c)
    return value, mass, prefactor


def log_curve(law: Total, c: jax.Array, side: int) -> jax.Array:
    """log C(c) above or below.

    Before the window, or where it is read from, it goes on as a line: above, S has mass 1, no slope
    of its curve is steeper; below, that of the law there, which is the mass beyond.
    """
    c = c - side * law.shift
    start = law.start if side > 0 else law.floor
    before = jnp.maximum(start - c, 0.0)
    value, mass, prefactor = _read(law, jnp.maximum(c, start), side)
    if side > 0:
        value = prefactor + log_positive(value)
        return log_add(value, log_positive(before * (1.0 + _allowances.sums(0, 16))))
    value += before * mass * (1.0 - _allowances.sums(0, 16))
    return jnp.where(c >= law.ceiling, -jnp.inf, prefactor + log_positive(value))


def line_meets(law: Total, log_delta: jax.Array, side: int) -> jax.Array:
    """The c before the window at which C(-c), on its line, is delta c ("add"); 0 or inf if none.

    The line is C(f) + (f + c) M, f being where the law is read from; M is 1 above, and below the
    mass beyond f. Rounded down above, and up below.
    """
    start = law.start if side > 0 else law.floor
    value, mass, prefactor = _read(law, start, side)
    some = mass > 0.0
    log_mass = jnp.where(some, prefactor + log_positive(mass), -jnp.inf)
    if side > 0:
        value, log_mass = jnp.exp(prefactor + log_positive(value)), jnp.float64(0.0)
    else:
        value = jnp.where(some, value / jnp.where(some, mass, 1.0), 0.0)
    first = -start - value + 8.0 * side * _allowances.UNIT * start
    left = jnp.where(some, log_mass - log_delta, -1.0)
    left += side * lax.stop_gradient(4.0 * _allowances.exponent(prefactor, log_delta, 1.0))
    some = left > 0.0
    part = -jnp.expm1(-jnp.where(some, left, 1.0))
    c = jnp.maximum(first, 0.0) / part * (1.0 - side * _allowances.sums(0, 16)) - side * law.shift
    return jnp.where(some, c, 0.0 if side > 0 else jnp.inf)


class Curve(NamedTuple):
    """C at the nodes, and the masses beyond them, in units of e^{log_unit}."""

    y: jax.Array
    value: jax.Array
    survival: jax.Array
    log_unit: jax.Array


def curve(law: Total, reference: jax.Array, side: int) -> Curve:
    """C above or below at every node; between nodes it lies below the chord, or above.

    (B is convex: its chord is above it.)
    """
    z = law.spacing * jnp.arange(law.weights.shape[0], dtype=jnp.float64) + (law.start - reference)
    exponent = -law.theta * z
    unit = jnp.exp(jnp.clip(exponent, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    if side < 0:  # (Above, more than there is does no harm.)
        unit = jnp.where(exponent < -_LARGEST_EXPONENT, 0.0, unit)
    mass = law.weights * unit * (1.0 + side * _allowances.running_sums(z.shape[0]))
    survival = lax.cumsum(mass, reverse=True)
    rise = survival[1:] * law.spacing
    value = jnp.concatenate([lax.cumsum(rise, reverse=True), jnp.zeros((1,))])
    value += side * (law.stray / (_E * law.theta)) * unit
    if side > 0:
        value += _past_end(law, reference) / (_E * law.theta)
    else:
        at = z + reference
        value = jnp.where((at < law.floor) | (at >= law.ceiling), -jnp.inf, value)
    # Farther back all points have one unit: below, what is beyond them would count too much.
    value = jnp.where(exponent > _LARGEST_EXPONENT, side * jnp.inf, value)
    log_unit = law.log_scale - law.theta * (reference - law.origin)
    return Curve(z + reference, value, survival, log_unit + side * _slack(law, reference))
