"""One ratio that decides what an average attains ("remove"): closed forms, without a lattice.

Where ratios fall slowly, as those of Gaussian noise do, a large average is one large ratio among
others that are as ever. A lattice that holds it is too coarse for its own tilt: the rounding of the
transform is more than a tail of 1e-20 (`_average_jump` says so of averages that are composed). Let
S = X_1 + ... + X_t, Q_l = Q{X > e^l}, P_l = P{X > e^l}, and tau = P{X = inf}, which delta has
besides.

Below. That X_i alone is above e^l are t outcomes that exclude each other. The others' sum has the
mean a = (t - 1) (1 - tau - P_l) / (1 - Q_l) then, so that with z_+ >= z

    E (S - c)_+ / t >= (1 - Q_l)^{t - 1} (P_l - (c - a) Q_l)

for any l: a tangent of the curve. Of some l the best is taken.

Above. Let J ratios be above x_m = e^m, and R be the sum of t - 1 ratios, each 0 if it is above x_m:

    E (S - c)_+ / t <= E[(S - c)_+; J = 0] / t + int_{x > x_m} E (R + x - c)_+ q(dx)
                       + (t - 1) P_m Q_m + ((t - 1) Q_m)^2 / 2,

the last two as in `_average_jump`. Where x > c the integrand is at most x - c + t - 1, which is
P_l - (c - t + 1) Q_l at e^l = c. Else it is E (R - y)_+ with y = c - x, at most

    (sqrt(v + (y - r)^2) - (y - r)) / 2,     r and v the mean and the variance of R (Scarf 1958),
    M(theta)^{t - 1} e^{-theta y} / (e theta),     as z_+ <= e^{theta z} / (e theta),

M(theta) = E exp(theta X 1{X <= x_m}). It is convex in x: what is in a cell may be spread to its
ends. The first part is 0 if t x_m <= c, and at most M^t e^{-theta c} / (e theta t). Moments and M
come from the coarse law, whose cells are spread to their ends, too: their digits need not be many,
as these parts are next to nothing where one ratio decides. Where it does not, the bound is of no
use, and the lattice's is taken.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _special as special
from jaxdp._divergences import exp_log, log_add, log_positive
from jaxdp._law import _allowances
from jaxdp._law._average_atoms import Coarse
from jaxdp._law._average_grid import _cells
from jaxdp._law._terms import Sign, Term, either, may_add, may_remove

_ABOUT = 32  # losses about a query
_BESIDE = np.geomspace(1e-3, 1.0, 16)
_BESIDE = np.concatenate([-_BESIDE[::-1], [0.0], _BESIDE])  # of one that is known
_FEW = 1e-3  # at least, is -log of the chance of one large ratio
_TWICE = 1e-4  # of delta: two large ratios
_LARGEST = 340.0  # losses of which the coarse law has means
_BULK, _TAIL, _BULK_ENDS = 32, 32, 8.0  # points y, in deviations of R
# Tilts, in units of 1 / x_m, and shares of the way (in logarithms) to some over R's deviation.
_TILTS, _SHARES, _STEEPEST = np.geomspace(2.0, 600.0, 12), np.arange(1.0, 9.0) / 8.0, 16.0
_DOUBLE = 690.0  # whose exponential is one
_FURTHER = np.array([0.0, 1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 5e-3, 0.02, 0.06])  # of c - t
_ROUND = 1e-8  # relative, of the coarse law: some ten million u
_SMALLEST = 1e-300
_E = 2.718281828459045


class One(NamedTuple):
    """Tangents: log (1 - Q_l)^{t - 1}, log Q_l (up), P_l, a (down); log tau (down)."""

    log_alone: jax.Array
    log_q: jax.Array
    log_p: jax.Array
    log_others: jax.Array
    log_tau: jax.Array


def about_delta(
    known: Coarse, log_tau: ArrayLike, steps: jax.Array, log_delta: jax.Array, s: Sign
) -> jax.Array:
    """Losses about that above which one ratio alone makes up delta ("remove"), by a coarse law.

    Or ("add") about that below which all of them are with such a probability. A choice.
    """
    x = jnp.minimum(known.ends, 1e300)
    met = jnp.zeros_like(x, bool)
    if may_remove(s):
        delta = jnp.exp(log_delta) - exp_log(jnp.asarray(log_tau, jnp.float64))
        p, q = known.beyond
        met = p - x * q <= delta
    if may_add(s):
        below = lax.cumsum(jnp.exp(known.atoms.log_q[1:]))
        below = jnp.concatenate([jnp.zeros((1,)), below])
        met = either(s > 0, met, steps * log_positive(below) >= log_delta)
    end = jnp.min(jnp.where(met, x, x[-1]))
    start = jnp.max(jnp.where(x < end, x, 0.0))
    beyond = jnp.min(jnp.where(x > end, x, x[-1]))  # (to add, for what 1 - X / c takes of the mass)
    end = either(s > 0, end, beyond)
    low, high = (jnp.log(jnp.maximum(v, 1e-300)) for v in (start, end))
    return lax.stop_gradient(low + (high - low) * jnp.linspace(0.0, 1.0, _ABOUT))


def about_epsilon(steps: jax.Array, epsilon: jax.Array, s: Sign) -> jax.Array:
    """Losses about that of one ratio that has an average's, the others being 1 (or the same)."""
    one = log_positive(steps * jnp.expm1(jnp.clip(epsilon, 0.0, _DOUBLE)) + 1.0)
    return lax.stop_gradient(either(s > 0, one, -epsilon) + jnp.asarray(_BESIDE))


def tangents(term: Term, steps: jax.Array, log_q: jax.Array, log_p: jax.Array, s: Sign) -> One:
    """Those of cells without an end that have such masses."""
    some = (log_q > -jnp.inf) & (log_q < -_FEW) & (log_p > -jnp.inf) & jnp.asarray(s > 0)
    q, p = (jnp.where(some, x, -1.0) for x in (log_q, log_p))
    rough = lax.stop_gradient(_allowances.masses(q, p) + term.mass_error)
    log_tau = jnp.asarray(term.log_tau_p, jnp.float64)
    gone = (exp_log(log_tau) + jnp.exp(p)) * (1.0 + rough + _allowances.failure(log_tau))
    q += rough
    few, others = special.log1mexp(q), jnp.maximum(steps - 1.0, 0.0)
    rest = log_positive(others * (1.0 - gone))
    log_others = rest - few - 2.0 * rough
    log_others -= lax.stop_gradient(_allowances.exponent(few, jnp.where(rest > -jnp.inf, rest, 0)))
    alone = others * few
    alone -= lax.stop_gradient(_allowances.exponent(alone, others * jnp.exp(q)))
    log_tau -= lax.stop_gradient(_allowances.failure(log_tau, side=-1))
    found = One(alone, q, p - rough, log_others, log_tau)
    none = jax.tree.map(lambda x: jnp.where(some, x, -jnp.inf), found)
    return none._replace(log_tau=log_tau)


def log_delta_below(one: One, steps: jax.Array, epsilon: jax.Array) -> jax.Array:
    """log delta at an epsilon: P + (a - c) Q."""
    whole = log_add(one.log_p, one.log_others + one.log_q)
    less = jnp.log(steps) + epsilon + one.log_q
    short = jnp.where(one.log_q > -jnp.inf, less - whole, 0.0)
    rough = lax.stop_gradient(_allowances.exponent(epsilon, steps, one.log_q, one.log_p))
    some = short < -2.0 * rough
    part = special.log1mexp(jnp.where(some, short + rough, -1.0))
    value = jnp.where(some, one.log_alone + whole + part - rough, -jnp.inf)
    return log_add(jnp.max(value), one.log_tau)


def epsilon_below(one: One, steps: jax.Array, log_delta: jax.Array) -> jax.Array:
    """Epsilon at log delta, c = a + (P - (delta - tau) / alone) / Q; -inf if there is none."""
    beyond = log_delta > one.log_tau
    left = jnp.where(beyond, one.log_tau - log_delta, -1.0)
    some = beyond & (one.log_q > -jnp.inf)
    log_p, alone = (jnp.where(some, v, 0.0) for v in (one.log_p, one.log_alone))
    aim = log_delta + special.log1mexp(left) - alone - log_p
    rough = lax.stop_gradient(_allowances.exponent(log_delta, alone, log_p, one.log_q))
    some &= aim < -2.0 * rough
    part = special.log1mexp(jnp.where(some, aim + rough, -1.0))
    ratio = jnp.where(some, log_p - one.log_q, 0.0)
    found = log_add(one.log_others, ratio + part) - jnp.log(steps) - rough
    return jnp.max(jnp.where(some, found, -jnp.inf))


class Others(NamedTuple):
    """Of those besides one large ratio, above: x_m, r, v, tilts, log M; what two large ones add."""

    limit: jax.Array
    mean: jax.Array
    variance: jax.Array
    tilts: jax.Array
    log_mgf: jax.Array
    twice: jax.Array


def others(term: Term, known: Coarse, steps: jax.Array, log_delta: jax.Array) -> Others:
    """Of a limit (a choice) from which on two large ratios are next to nothing of such a delta."""
    number = jnp.maximum(steps - 1.0, 0.0)
    up = 1.0 + _ROUND + lax.stop_gradient(jnp.asarray(term.mass_error, jnp.float64))
    p, q = (v * up + _SMALLEST for v in known.beyond)
    twice = lax.stop_gradient(number * p * q + 0.5 * (number * q) ** 2)
    right = (twice <= _TWICE * jnp.exp(log_delta)) & (known.ends >= 1.0)
    right &= known.ends < np.exp(_LARGEST)
    limit = jnp.min(jnp.where(right, known.ends, jnp.inf))
    twice = jnp.min(jnp.where(right & (known.ends == limit), twice, jnp.inf))
    limit = jnp.where(limit < jnp.inf, limit, 1.0)
    # Cells up to the limit (there is nothing else of ratios that are not 0).
    low, high, x = known.ends[:-1], known.ends[1:], known.atoms.x[1:]
    inside = (high <= limit) & (known.atoms.log_q[1:] > -jnp.inf)
    low, high, x = (jnp.where(inside, v, 0.0) for v in (low, high, x))
    x = jnp.clip(x * up, low, high)
    mass = jnp.where(inside, jnp.exp(known.atoms.log_q[1:]) * up + _SMALLEST, 0.0)
    first = jnp.sum(mass * x)
    second = jnp.sum(mass * ((low + high) * x - low * high)) * up
    variance = jnp.maximum(second - (first * (1.0 - 8.0 * (up - 1.0))) ** 2, 0.0)
    variance = lax.stop_gradient(number) * variance
    steep = _STEEPEST * limit / jnp.sqrt(variance + _SMALLEST)
    steep = jnp.log(jnp.clip(steep, 1.0, _DOUBLE))
    tilts = jnp.concatenate([jnp.asarray(_TILTS), jnp.exp(steep * jnp.asarray(_SHARES))]) / limit
    width = high - low
    share = jnp.where(width > 0.0, (x - low) / jnp.where(width > 0.0, width, 1.0), 1.0)
    # (M - 1 is the sum of their e^{theta x} - 1, masses by the ends of their cells.)
    left, right, none = mass * (1.0 - share), mass * share, jnp.zeros((1,))
    at_ends = jnp.concatenate([left, none]) + jnp.concatenate([none, right])
    grown = jnp.exp(tilts[:, None] * jnp.minimum(known.ends, limit)) - 1.0
    log_mgf = jnp.log1p((grown @ at_ends) * up + _ROUND)
    found = Others(limit, first, variance, tilts, log_mgf, twice)
    return lax.stop_gradient(found)._replace(mean=number * lax.stop_gradient(first))


def _chernoff(at: Others, number: jax.Array, c: jax.Array) -> jax.Array:
    """E (Y - c)_+ at most, Y the sum of so many ratios up to the limit; has no derivative."""
    number, c = lax.stop_gradient((number, c))
    exponent = number * at.log_mgf - at.tilts * c[..., None]
    exponent += lax.stop_gradient(_allowances.exponent(exponent)) - jnp.log(_E * at.tilts)
    return jnp.exp(jnp.minimum(jnp.min(exponent, axis=-1), 700.0))


def _points(at: Others, c: jax.Array) -> jax.Array:
    """Distances y from c of one ratio, from 0 to where x_m is."""
    deviation = jnp.sqrt(at.variance)
    far = jnp.maximum(c - at.limit, 0.0)
    bulk = at.mean + _BULK_ENDS * deviation * jnp.linspace(-1.0, 1.0, _BULK)
    start = jnp.maximum(bulk[-1], 1e-9 * far + 1e-300)
    growth = jnp.log(jnp.maximum(far / start, 1.0))
    tail = start * jnp.exp(growth * jnp.arange(1, _TAIL) / _TAIL)
    inner = jnp.minimum(jnp.maximum(jnp.concatenate([bulk, tail]), 0.0), far)
    return lax.stop_gradient(jnp.concatenate([jnp.zeros((1,)), inner, far[None]]))


def _excess(at: Others, term: Term, steps: jax.Array, c: jax.Array) -> jax.Array:
    """E (S - c)_+ / t at some c, at most."""
    number = jnp.maximum(steps - 1.0, 0.0)
    slip = lax.stop_gradient(c * _allowances.ratio_nudge(c))
    y = jax.vmap(lambda c: _points(at, c))(c)
    # (A little less than x_m: what is counted twice does no harm.)
    limit = at.limit * (1.0 - _allowances.ratio_nudge(at.limit))
    x = (c[:, None] - y).at[:, -1].min(limit)
    # (Atoms may be beyond the ends of their cells, by as much.)
    y -= slip[:, None]
    away = y - at.mean * (1.0 + _ROUND)
    root = jnp.sqrt(at.variance * (1.0 + _ROUND) + away * away + _SMALLEST)
    near = jnp.where(away > 0.0, 0.5 * at.variance / (root + jnp.abs(away)), 0.5 * (root - away))
    value = jnp.minimum(near * (1.0 + _ROUND), number + slip[:, None])
    value = jnp.minimum(value, _chernoff(at, number, y))
    # Cells of x = c - y, and one of what is beyond c, where the value is x - c + number.
    start, end = jnp.maximum(c, limit), jnp.full_like(c, jnp.inf)
    low, high = x[:, 1:], x[:, :-1]
    cells = (jnp.concatenate(v, axis=1) for v in ((low, start[:, None]), (high, end[:, None])))
    mass, mean, error, lost = _cells(term, next(cells), next(cells), 1)
    mean += error
    outer = mass[:, -1] * jnp.maximum(mean[:, -1] - c + number + slip, 0.0)
    width = high - low
    share = (mean[:, :-1] - low) / jnp.where(width > 0.0, width, 1.0)
    share = jnp.clip(jnp.where(width > 0.0, share, 1.0), 0.0, 1.0)
    inner = mass[:, :-1] * (value[:, 1:] + share * (value[:, :-1] - value[:, 1:]))
    none = jnp.where(steps * at.limit <= c * (1.0 - _ROUND), 0.0, 1.0)
    neither = none * _chernoff(at, steps, c) / steps
    total = jnp.sum(inner, axis=-1) + outer + steps * jnp.sum(lost, axis=-1) + _SMALLEST
    total += neither + at.twice
    return total * (1.0 + _allowances.sums(y.shape[-1], 64))


def log_delta_above(
    term: Term, known: Coarse, steps: jax.Array, epsilon: jax.Array, about: jax.Array
) -> jax.Array:
    """log delta at an epsilon, at most; `about` is what it may be, a choice."""
    at = others(term, known, steps, about)
    c = steps * jnp.exp(jnp.clip(epsilon, 0.0, _LARGEST))
    c *= 1.0 - lax.stop_gradient(_allowances.exponent(epsilon))
    log_tau = jnp.asarray(term.log_tau_p, jnp.float64)
    log_tau += lax.stop_gradient(_allowances.failure(log_tau))
    value = log_add(jnp.log(_excess(at, term, steps, c[None])[0]), log_tau)
    value += lax.stop_gradient(_allowances.exponent(value))
    return jnp.where((epsilon >= 0.0) & (epsilon < _LARGEST), jnp.minimum(value, 0.0), 0.0)


def epsilon_above(
    term: Term, known: Coarse, steps: jax.Array, log_delta: jax.Array, least: jax.Array
) -> jax.Array:
    """Epsilon at log delta, at most, where it is little more than `least`; else inf.

    The curve is convex: it lies below the chord of bounds at two epsilons.
    """
    at = others(term, known, steps, log_delta)
    right = (least > 0.0) & (least < _LARGEST)
    least = lax.stop_gradient(jnp.where(right, least, 1.0))
    c = lax.stop_gradient(steps) * (jnp.exp(least) + jnp.asarray(_FURTHER) * jnp.expm1(least))
    value = _excess(at, term, steps, c)
    log_tau = jnp.asarray(term.log_tau_p, jnp.float64)
    tau = exp_log(log_tau) * (1.0 + _allowances.failure(log_tau))
    aim = jnp.exp(log_delta) * (1.0 - lax.stop_gradient(_allowances.exponent(log_delta))) - tau
    order = jnp.arange(c.shape[0], dtype=jnp.int32)
    k = jnp.min(jnp.where(value <= aim, order, c.shape[0]))
    right &= (k < c.shape[0]) & (aim > 0.0)
    k = jnp.minimum(k, c.shape[0] - 1)
    before = jnp.maximum(k - 1, 0)
    fall = value[before] - value[k]
    share = (aim - value[k]) / jnp.where(fall > 0.0, fall, jnp.inf)
    share = jnp.clip(share, 0.0, 1.0) - 1e-9 * (k > 0)
    found = jnp.log((c[k] - share * (c[k] - c[before])) / steps)
    found += lax.stop_gradient(_allowances.exponent(found, jnp.log(steps)))
    return jnp.where(right, found, jnp.inf)
