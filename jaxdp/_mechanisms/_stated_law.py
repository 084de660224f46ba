"""Whether what a user's mechanism states can be the law of a privacy loss.

Masses that are no law are answered as readily as others, by an epsilon that may be far too small: a
pair in the other order has an epsilon of 0. So where parameters are known one call for some hundred
intervals is held against the contract of `CustomMechanism`, with room for a thousand times the
rounding that the contract gives: mistakes are looked for, not digits. What lies between the ends of
these intervals is the user's word.
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _devices, _special, _x64
from jaxdp._mechanisms import _cell_rates

_FLOOR = 2.0**-20  # of a sum of masses: what users may have rounded besides
_NEXT = 2.0**-28  # to a loss, relative to 1 more than it: further than it may be off
_NOISE = 2.0**-28  # of a mass, where one of an interval is a difference of larger ones
_NOTHING = -20.0  # log of a mass that may be what rounding leaves of a difference
_LADDER = 2.0 ** np.arange(-12.0, 9.0, 4.0)  # thresholds for a law of any scale
_SHARES = np.array([0.25, 0.5, 0.75])  # and those of its range
_CHUNK = 1024  # mechanisms of a batch at a time, a hundred masses each
_SENTENCES = (
    "loss_range() must be (least, largest) with least <= largest, got ({:.6g}, {:.6g})",
    "log_infinity() must be (log P{{L = inf}}, log Q{{L = -inf}}), <= 0 (-inf for none), got "
    "({:.6g}, {:.6g})",
    "mass_error() must be >= 0, got {:.3g}",
    "log_masses must be numbers (-inf for no mass), got nan for ({:.15g}, {:.15g}]",
    "log_masses must be -inf outside loss_range(), but ({:.15g}, {:.15g}] has a mass",
    "log_masses must be (log Q, log P) of {{lo < L <= hi}}, with lo <= log P - log Q <= hi, which "
    "does not hold for ({:.15g}, {:.15g}]: P and Q in the other order, a loss that is not log P/Q, "
    "or a mass that underflows?",
    "log_masses of P and log_infinity()[0], for an infinite loss, must sum to 1, but are off by "
    "{:.3g}",
    "log_masses of Q and log_infinity()[1], for a loss of -inf, must sum to 1, but are off by "
    "{:.3g}",
    "log_masses must add up: ({:.15g}, {:.15g}] has not the mass of the intervals in it",
    "symmetric must be False where P and Q do not trade places with the sign of the loss, as here "
    "beyond ({:.15g}, {:.15g}]",
)


class _States(Protocol):
    """What a `CustomMechanism` states, in float64."""

    symmetric: Any

    def log_infinity(self) -> tuple[Any, Any]: ...
    def _loss_range(self) -> tuple[jax.Array, jax.Array]: ...
    def _mass_error(self) -> jax.Array | float: ...
    def _stated_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]: ...


class _Fault(NamedTuple):
    """Whether there is one, and the first two numbers of a sentence that says where."""

    some: jax.Array
    first: jax.Array
    second: jax.Array


class _Masses(NamedTuple):
    """(Q, P) by the intervals of one kind, and what they may be off by."""

    lo: jax.Array
    hi: jax.Array
    log: jax.Array  # (2, intervals)
    error: jax.Array  # relative


def check(m: _States) -> None:
    """Raise ValueError if the mechanism, of known parameters, states what can be no law.

    Inside of a program nothing runs before the program does.
    """
    leaves = jax.tree.leaves(m)
    traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
    if traced or not _devices.at_top_level():
        return
    kind: Any = {"rounding": ("nearest",) * 3, "differentiable": False}
    with jax.enable_x64(True):  # (Ends of intervals differ in late digits.)
        found = _x64.evaluate(refusal, m, **kind, chunk=_CHUNK, quick="always")
    codes, *numbers = (np.asarray(x).ravel() for x in found)
    wrong = np.flatnonzero(codes)
    if wrong.size:
        sentence = _SENTENCES[int(codes[wrong[0]]) - 1].format(*(x[wrong[0]] for x in numbers))
        raise ValueError(f"{type(m).__name__}: {sentence}")


def refusal(m: _States) -> tuple[jax.Array, jax.Array, jax.Array]:
    """0, or 1 more than the index of the first sentence that is true, and the numbers in it."""
    m = jax.lax.stop_gradient(m)
    low, high = m._loss_range()
    lost_p, lost_q = (jnp.asarray(x, jnp.float64) for x in m.log_infinity())
    error = jnp.asarray(m._mass_error(), jnp.float64)
    edges = _thresholds(low, high)
    cells, above, below, outside = masses = _asked(m, edges, low, high, error)
    everything = _Masses(*(jnp.concatenate(x, axis=-1) for x in zip(*masses, strict=True)))
    faults = [
        _fault(~(low <= high), low, high),
        _fault(~((lost_p <= _FLOOR) & (lost_q <= _FLOOR)), lost_p, lost_q),
        _fault(error < 0.0, error, error),
        _fault(jnp.any(jnp.isnan(everything.log), axis=0), everything.lo, everything.hi),
        _fault(jnp.any(outside.log > _NOTHING, axis=0), outside.lo, outside.hi),
        _elsewhere(everything),
        _not_one(cells, 1, lost_p),
        _not_one(cells, 0, lost_q),
        _not_additive(cells, above, below),
    ]
    if m.symmetric:
        faults.append(_not_mirrored(edges, above, below))
    some, first, second = (jnp.stack(x) for x in zip(*faults, strict=True))
    found = _fault(some, first, second)
    order = jnp.arange(1.0, len(faults) + 1.0)
    code = jnp.min(jnp.where(some, order, jnp.inf))
    return jnp.where(found.some, code, 0.0), found.first, found.second


def _fault(wrong: jax.Array, first: jax.Array, second: jax.Array) -> _Fault:
    """The first of some that are wrong."""
    wrong = jnp.atleast_1d(wrong)
    order = jnp.arange(1.0, wrong.shape[0] + 1.0)
    at = order == jnp.min(jnp.where(wrong, order, jnp.inf))
    return _Fault(jnp.any(wrong), *(jnp.sum(jnp.where(at, x, 0.0)) for x in (first, second)))


def _next(loss: jax.Array) -> jax.Array:
    """How far from a loss another one is surely not the same."""
    return _NEXT * (1.0 + jnp.abs(jnp.where(jnp.isfinite(loss), loss, 0.0)))


def _thresholds(low: jax.Array, high: jax.Array) -> jax.Array:
    """Increasing ones, with the opposite of each: about the ends of the range, between, and 0."""
    ends = jnp.abs(jnp.stack([low, high]))
    ends = jnp.where(jnp.isfinite(ends), ends, 1.0)
    shares = jnp.max(ends) * jnp.asarray(_SHARES)
    right = [ends - _next(ends), ends + _next(ends), shares, jnp.asarray(_LADDER)]
    positive = jnp.concatenate(right)
    return jnp.sort(jnp.concatenate([-positive, jnp.zeros(1), positive]))


def _asked(
    m: _States, edges: jax.Array, low: jax.Array, high: jax.Array, error: jax.Array
) -> list[_Masses]:
    """Of the cells, of all above each one's left end, below its right one, and off the range."""
    infinite = jnp.array([jnp.inf])
    starts, stops = jnp.concatenate([-infinite, edges]), jnp.concatenate([edges, infinite])
    most = jnp.broadcast_to(infinite, starts.shape)
    ends = (low - _next(low))[None], (high + _next(high))[None]
    lo = [starts, starts, -most, jnp.concatenate([-infinite, ends[1]])]
    hi = [stops, most, stops, jnp.concatenate([ends[0], infinite])]
    at, to = jnp.concatenate(lo), jnp.concatenate(hi)
    # (What is said of no interval does not matter, nor nan where there is no mass.)
    log = jnp.where(at < to, jnp.stack(m._stated_masses(at, to)), -jnp.inf)
    log = jnp.where(jnp.isnan(log) & ((at >= high) | (to < low)), -jnp.inf, log)
    relative = _cell_rates.relative_error(log[0], log[1], error)
    cuts = np.cumsum([x.shape[0] for x in lo])[:-1]
    parts = zip(*(jnp.split(x, cuts, axis=-1) for x in (at, to, log, relative)), strict=True)
    return [_Masses(*part) for part in parts]


def _room(error: jax.Array, *log_masses: jax.Array) -> jax.Array:
    """What logarithms may differ by: by rounding, and that of sums, where the masses are small."""
    heaviest = jnp.exp(jnp.max(jnp.stack(log_masses), axis=0))
    return 2.0 * error + _NEXT + jnp.where(heaviest > _NOISE, _NOISE / heaviest, jnp.inf)


def _elsewhere(all_of_them: _Masses) -> _Fault:
    """The mean ratio of an interval lies in it; the mass of one law alone would be dropped."""
    lo, hi, log, error = all_of_them
    both, room = jnp.all(log > -jnp.inf, axis=0), _room(error, *log)
    log_q, log_p = jnp.where(both, log, 0.0)
    ratio = log_p - log_q
    outside = (ratio < lo - room - _next(lo)) | (ratio > hi + room + _next(hi))
    return _fault(jnp.where(both, outside, room < 0.5), lo, hi)


def _not_one(cells: _Masses, law: int, log_lost: jax.Array) -> _Fault:
    mass = jnp.exp(cells.log[law])
    off = jnp.sum(mass) + jnp.exp(log_lost) - 1.0
    return _fault(jnp.abs(off) > _FLOOR + 2.0 * jnp.sum(mass * cells.error), off, off)


def _not_additive(cells: _Masses, above: _Masses, below: _Masses) -> _Fault:
    """An unbounded interval has what its cells have."""
    index = np.arange(cells.lo.shape[0])
    is_above = index[None, :] >= index[:, None]
    wrong, lo, hi = [], [], []
    for whole, inside in ((above, is_above), (below, is_above.T)):
        bad = jnp.zeros(index.shape, bool)
        for law in (0, 1):
            parts = jnp.where(inside, cells.log[law], -jnp.inf)
            least, most = (
                _special.logsumexp(parts + side * 2.0 * cells.error, axis=1) for side in (-1, 1)
            )
            room = _room(whole.error, whole.log[law], most)
            bad |= (whole.log[law] < least - room) | (whole.log[law] > most + room)
        wrong.append(bad)
        lo.append(whole.lo)
        hi.append(whole.hi)
    return _fault(*(jnp.concatenate(x) for x in (wrong, lo, hi)))


def _not_mirrored(edges: jax.Array, above: _Masses, below: _Masses) -> _Fault:
    """P{L > e} is Q{L < -e}; compared at neighbouring e, between which atoms may be."""
    right, left = above.log[1, 1:], below.log[0, :-1][::-1]
    error = above.error[1:] + below.error[:-1][::-1]
    apart = edges[1:] - edges[:-1] > 0.5 * _next(edges[1:])
    wrong = jnp.zeros(apart.shape, bool)
    for one, other in ((right, left), (left, right)):
        wrong |= one[1:] > other[:-1] + _room(error[1:] + error[:-1], one[1:])
    return _fault(apart & wrong, edges[:-1], edges[1:])
