"""Averages with one large ratio among few others ("remove"): such ratios are kept off the lattice.

A lattice that reaches the largest ratios is coarse, and its tilt small: the rounding of its
transform then is more than a tail that falls slowly. Let J of the t ratios be above a limit x_m,
where Q{X > x_m} = Q_J and P{X > x_m} = P_J, and S = X_1 + ... + X_t:

    E (S - c)_+ = E[(S - c)_+; J = 0] + E[(S - c)_+; J = 1] + E[(S - c)_+; J >= 2].

The first part is that of lattices whose ratios end at x_m: of a measure of mass below 1, for which
all that is said in `_average` and `_average_grid` holds as well. With R the sum of the others, also
up to x_m, the second is t int_{x > x_m} C_R(c - x) q(dx), C_R(y) = E (R - y)_+. The third is at
most E[S; J >= 2] = t E[X_1; J >= 2] <= t ((t - 1) P_J Q_J + ((t - 1) Q_J)^2 / 2), as either X_1 is
large and another one, or two others are: it goes to infinity above, and is left out below.

Above. C_R is convex, so that mass q within a cell may be spread to its ends. With B one more ratio
up to x_m, of mass M and conditional mean at least m, Jensen's inequality says E (R + B - y - m)_+
>= M C_R(y): so C_R(y) is below the curve of all t, which the lattices know, at y + m, over M. It is
also below E R - y (to the left of 0), t - 1 and, beyond (t - 1) x_m, 0. Values at some nodes joined
by chords are above it, and so are those of the sum over x, at the ratios a of a list. The law has
these as its curve: to the left of the first, x_m / t, it is a line of slope t Q_J, and no curve of
the part is steeper; beyond the last, it keeps its value, at infinity. Ratios beyond a last cell,
where C_R(c - x) <= x + t - 1, go there as well.

Below. By Jensen's inequality the ratios of a cell are put at their mean. R has mass M^{t - 1}; over
it, its curve is above m' - y, m' = (t - 1) (1 - tau - P_J) being at most its mean. It is also above
the curve of all t less 1 (with a ratio b more, (r + b - y)_+ - b <= (r - y)_+, and b has a mean of
at most 1), and that one above any of its tangents: at m', L(y) = v - p (y - m'). The largest of
m' - y, L(y) and 0 is the curve of mass 1 - p at m' - v / (1 - p) and p at m' + v / p.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import log_add, log_positive
from jaxdp._law import _allowances
from jaxdp._law._average_atoms import Coarse
from jaxdp._law._average_grid import _cells
from jaxdp._law._intervals import interval_masses
from jaxdp._law._terms import Masses, Sign, Term

_TWICE = 1e-4  # of delta: two large ratios
_LAST = 1e-5  # of delta: those beyond the last cell
_FAR = 16.0  # deviations of the sum, at least, are large ratios away
_CELLS, _POINTS, _BULK = 192, 384, 48
_BULK_ENDS = 7.0  # deviations of the others
_ROUND = 1e-12  # some thousand u: of sums of a hundred terms, and of nodes


Curve = Callable[[jax.Array], jax.Array]


class Jumps(NamedTuple):
    """Which ratios are kept apart: those above `limit` (if any: infinity); few are above `last`."""

    limit: jax.Array
    last: jax.Array
    deviation: jax.Array  # of the sum of the others


class _Points(NamedTuple):
    """A law on increasing ratios, and log P{inf}."""

    ratio: jax.Array
    mass: jax.Array
    log_tau: jax.Array


class Part(NamedTuple):
    """Masses of intervals, log P{inf}, and the largest loss (-inf: none)."""

    masses: Masses
    log_tau: jax.Array
    end: jax.Array


def choose(known: Coarse, steps: jax.Array, log_delta: jax.Array, s: Sign) -> Jumps:
    """Large ratios of an average that matter at delta, where two of them do not (a choice).

    None where "add" is read (s = -1).
    """
    steps, log_delta = lax.stop_gradient((steps, log_delta))
    atoms, ends = known.atoms, known.ends
    p, q = known.beyond
    delta = jnp.exp(log_delta)
    twice = steps * p * q + 0.5 * (steps * q) ** 2
    limit = jnp.min(jnp.where(twice <= _TWICE * delta, ends, jnp.inf))
    last = jnp.min(jnp.where(p <= _LAST * delta, ends, jnp.inf))
    variance = jnp.sum(jnp.exp(atoms.log_q) * (jnp.minimum(atoms.x, limit) - 1.0) ** 2)
    deviation = jnp.sqrt(steps * variance)
    some = (limit > jnp.maximum(4.0, 1.0 + _FAR * deviation)) & (limit < 0.9 * last)
    some &= (last < jnp.inf) & (s > 0)
    return Jumps(*lax.stop_gradient((jnp.where(some, limit, jnp.inf), last, deviation)))


def _tails(term: Term, jumps: Jumps) -> tuple[jax.Array, jax.Array]:
    """Q and P of what is above the limit, and above the last cell, rounded up; 0 if none are."""
    some = jumps.limit < jnp.inf
    start = jnp.where(some, jnp.stack([jumps.limit, jumps.last]), 1.0)
    log_q, log_p = term.masses(jnp.log(start), jnp.full((2,), jnp.inf))
    up = 1.0 + _allowances.masses(log_q, log_p) + term.mass_error + _ROUND
    q, p = (jnp.where(some, jnp.exp(v) * up, 0.0) for v in (log_q, log_p))
    return q, p


def _edges(jumps: Jumps) -> jax.Array:
    """Of the cells of large ratios: empty ones if there are none."""
    some = jumps.limit < jnp.inf
    start = jnp.where(some, jumps.limit, 1.0)
    growth = jnp.log(jnp.where(some, jumps.last, 1.0) / start)
    inner = start * jnp.exp(growth * jnp.asarray(np.arange(1, _CELLS) / _CELLS))
    last = jnp.where(some, jumps.last, 1.0)
    return jnp.concatenate([start[None], jnp.minimum(inner, last), last[None]])


def _others(
    steps: jax.Array,
    jumps: Jumps,
    rest: jax.Array,
    curve: Curve,
    tails: tuple[jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """C_R, from above, at some y >= 0; `curve` is that of the average of all up to the limit."""
    others = jnp.maximum(steps - 1.0, 0.0)
    far = others * jnp.where(jumps.limit < jnp.inf, jumps.limit, 1.0)
    bulk = others + jumps.deviation * jnp.linspace(-_BULK_ENDS, _BULK_ENDS, _BULK)
    first = jnp.maximum(bulk[-1], 1e-3)
    reach = jnp.log(jnp.maximum(far / first, 1.0) + 1.0)
    tail = first * jnp.exp(reach * jnp.asarray(np.arange(1, _BULK - 1) / (_BULK - 2)))
    y = jnp.concatenate([jnp.zeros((1,)), jnp.maximum(bulk, 0.0), tail])
    y = jnp.concatenate([lax.cummax(y), jnp.maximum(tail[-1], far)[None] * (1.0 + 1e-9)])
    value = steps * curve((y + rest) / steps * (1.0 - 2.0**-50))
    value *= (1.0 + _ROUND) / (1.0 - tails[0][0])
    value = jnp.where(y >= far * (1.0 + 1e-12), 0.0, jnp.minimum(value, others))
    # (What rounding may cost between two nodes.)
    return y, value + _ROUND * jnp.concatenate([value[:1], value[:-1]])


def _ratios(steps: jax.Array, jumps: Jumps, end: jax.Array) -> jax.Array:
    """Averages from limit / t to end / t: dense with the others at their mean, then geometric."""
    start = jnp.where(jumps.limit < jnp.inf, jumps.limit, 1.0)
    others = jnp.maximum(steps - 1.0, 0.0)
    reach = _BULK_ENDS * jumps.deviation
    low, high = jnp.maximum(start + others - reach, 1.001 * start), 1.01 * start + others + reach
    bulk = low + (high - low) * jnp.linspace(0.0, 1.0, _BULK, endpoint=False)
    growth = jnp.log(jnp.maximum((end - others) / (high - others), 1.5)) / (_POINTS - _BULK - 2)
    tail = others + (high - others) * jnp.exp(growth * jnp.arange(_POINTS - _BULK - 1))
    return jnp.concatenate([start[None], bulk, tail]) / steps


def above(term: Term, steps: jax.Array, jumps: Jumps, curve: Curve) -> Part:
    """The part with large ratios, above; `curve(a)` is above that of the average of the others."""
    points = _if_any(jumps, _POINTS, lambda: _points_above(term, steps, jumps, curve))
    return _part(points, points.ratio * (1.0 + _ROUND))


def _points_above(term: Term, steps: jax.Array, jumps: Jumps, curve: Curve) -> _Points:
    tails = _tails(term, jumps)
    rest = (1.0 - jnp.exp(jnp.asarray(term.log_tau_p, jnp.float64)) - tails[1][0]) * (1.0 - _ROUND)
    y, others = _others(steps, jumps, jnp.maximum(rest, 0.0), curve, tails)
    edges = _edges(jumps)
    mass, mean, error, lost = _cells(term, edges[:-1], edges[1:], +1)
    width = jnp.where(edges[1:] > edges[:-1], edges[1:] - edges[:-1], 1.0)
    share = jnp.clip((mean + error - edges[:-1]) / width * (1.0 + _ROUND), 0.0, 1.0)
    zero = jnp.zeros((1,))
    left = mass * jnp.minimum(1.0 - share + _ROUND, 1.0)
    mass = jnp.concatenate([left, zero]) + jnp.concatenate([zero, mass * share])
    x = _ratios(steps, jumps, edges[-1] + y[_BULK])
    gap = steps * x[:, None] - edges
    value = jnp.interp(jnp.maximum(gap, 0.0), y, others) + jnp.maximum(-gap, 0.0)
    value = jnp.sum(mass * value, axis=-1) * (1.0 + _ROUND)
    step = x[1:] - x[:-1]
    slope = (jnp.maximum(value[:-1] - value[1:], 0.0) + _ROUND * value[:-1]) / step * (1.0 + _ROUND)
    steepest = steps * jnp.sum(mass) * (1.0 + _ROUND)
    slope = jnp.concatenate([steepest[None], slope, zero])
    masses = jnp.maximum(slope[:-1] - slope[1:], 0.0) + _ROUND * slope[:-1]
    twice = jnp.maximum(steps - 1.0, 0.0) * tails[0][0]
    tau = value[-1] + tails[1][1] + jnp.maximum(steps - 1.0, 0.0) * tails[0][1] + jnp.sum(lost)
    tau += twice * tails[1][0] + 0.5 * twice * twice
    return _Points(x, masses, log_positive(tau * (1.0 + _ROUND)))


def below(term: Term, steps: jax.Array, jumps: Jumps, law: Masses) -> Part:
    """The part with one large ratio, below, by that law of the average of the others, below."""
    points = _if_any(jumps, 2 * _CELLS, lambda: _points_below(term, steps, jumps, law))
    return _part(points, points.ratio * (1.0 - _ROUND))


def _points_below(term: Term, steps: jax.Array, jumps: Jumps, law: Masses) -> _Points:
    q, p = _tails(term, jumps)
    others = jnp.maximum(steps - 1.0, 0.0)
    rest = 1.0 - jnp.exp(jnp.asarray(term.log_tau_p, jnp.float64)) - p[0]
    edges = _edges(jumps)
    mass, mean, error, _ = _cells(term, edges[:-1], edges[1:], -1)
    x = jnp.clip(mean - error, edges[:-1], edges[1:])
    alone = jnp.exp(others * jnp.log1p(-jnp.minimum(q[0], 0.5)))
    alone *= jnp.where(q[0] < 0.5, jnp.maximum(1.0 - _ROUND * (1.0 + others * q[0]), 0.0), 0.0)
    mean = others * jnp.maximum(rest, 0.0) * (1.0 - _ROUND)
    at = jnp.maximum(mean, 1e-300) / steps
    log_q, log_p = law(jnp.log(at)[None], jnp.full((1,), jnp.inf))
    share = jnp.clip(jnp.exp(log_q[0]), 1e-3, 1.0 - 1e-3)
    value = jnp.exp(log_p[0]) - at * jnp.exp(log_q[0]) - _ROUND
    value = jnp.maximum(steps * value - 1.0, 0.0) * (1.0 - _ROUND)
    value = jnp.where(jnp.abs(share - jnp.exp(log_q[0])) < _ROUND, value, 0.0)
    value = jnp.minimum(value, mean * (1.0 - share))

    def with_others(offset: jax.Array, part: jax.Array) -> tuple[jax.Array, jax.Array]:
        away = jnp.maximum(mean + offset, 0.0)
        ratio = lax.cummax((x + away) / steps) * (1.0 - _ROUND)
        return ratio, mass * steps * alone * part

    each = (
        with_others(-value / (1.0 - share), (1.0 - share) * (1.0 - _ROUND)),
        with_others(value / share, share * (1.0 - _ROUND)),
    )
    ratio, mass = (jnp.concatenate(lists) for lists in zip(*each, strict=True))
    ratio, mass = lax.sort((ratio, mass), num_keys=1)
    return _Points(ratio, mass, jnp.float64(-jnp.inf))


def _if_any(jumps: Jumps, size: int, compute: Callable[[], _Points]) -> _Points:
    """The points, where some ratios are kept apart; else as many without mass."""
    nothing = _Points(jnp.ones((size,)), jnp.zeros((size,)), jnp.float64(-jnp.inf))
    return lax.cond(jumps.limit < jnp.inf, compute, lambda: nothing)


def _part(points: _Points, moment: jax.Array) -> Part:
    """The law on increasing ratios, whose P-masses are `moment` times their masses."""
    x, mass, log_tau = points
    room = (1 << (mass.shape[0] - 1).bit_length()) - mass.shape[0]
    q, p = (jnp.concatenate([v, jnp.zeros((room,))]) for v in (mass, mass * moment))
    log_x = lax.stop_gradient(jnp.log(x))
    masses = interval_masses(q, p, lambda loss: _count(log_x, loss))
    return Part(masses, log_tau, jnp.where(jnp.any(mass > 0.0), log_x[-1], -jnp.inf))


def _count(log_x: jax.Array, loss: jax.Array) -> jax.Array:
    return jnp.searchsorted(log_x, loss, side="right").astype(jnp.int32)


def joined(law: Term, part: Part) -> Term:
    """The term of both parts."""

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        (q, p), (r, s) = law.masses(lo, hi), part.masses(lo, hi)
        return log_add(q, r), log_add(p, s)

    tau = log_add(jnp.asarray(law.log_tau_p, jnp.float64), part.log_tau)
    low, high = law.support
    return law._replace(masses=masses, log_tau_p=tau, support=(low, jnp.maximum(high, part.end)))
