"""What the curve of each step shows, whatever the lattice: from below by single events.

Below: delta >= P(E) - e^epsilon Q(E) for any event E.

Three kinds are asked besides the law: that every step has a loss above one of its own, that some
step has a loss above a threshold, and that the whole loss is above one. The first is nearly all
there is where nearly all of a step's losses are next to the largest (adding a record that a sample
shows clearly), the second where losses that count are rare: where tiny samples run for few steps,
and rounding in the transform is more than delta. The third knows the mean of very many steps, whose
lattice is too wide for the law of one of them.

An event is held as log P(E) and a loss l <= log P(E) / Q(E): delta >= P(E) (1 - e^{epsilon - l}).

Of the whole loss L, log P{L <= l} <= s l + sum n K(-s) for s > 0 (Chernoff). Where s <= 1, K(-s) =
log sum P^{1-s} Q^s over the outcomes of a step is at most that over any cells of them (Jensen; data
processing): those of a coarse law will do.

Above: delta is at most the sum of the steps' own at an equal share of epsilon each (Dwork & Roth
2014, Theorem 3.16). Where rare losses of few steps are all there is and epsilon is far below them,
that is nearly all of it, and no lattice has digits for so little.
"""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import log_add
from jaxdp._law import _allowances
from jaxdp._law._begins import log_sum_exp
from jaxdp._law._grid import nudge
from jaxdp._law._plan import Plan
from jaxdp._law._saddle import pilot_cells
from jaxdp._law._terms import Term, Terms
from jaxdp._special import log1mexp, log1p

# Thresholds, in epsilons: with epsilon itself the event shows most, and near by nearly as much.
_THRESHOLDS = np.geomspace(0.5, 1.1, 32)
# Thresholds of every step lie below the mean of its tilted law by such shares of it.
_SHARES = 0.5 ** np.arange(1.0, 9.0)
# log P{L <= l} of the whole loss is to be at most -_SURE, by Chernoff's tilts.
_SURE = np.array([0.05, 0.2, 0.7, 2.0, 6.0, 15.0, 36.0])
_TILTS = 3.0 ** -np.arange(13.0)
_ROUNDED = 2.0**-44  # of a logarithm, and of 1: some hundred u
_SUMMED = 2.0**-42  # of a sum over a coarse law's cells
_LEAST = -700.0  # of a log mass: what underflows may be that

Read = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def with_events(terms: Terms, bound: jax.Array, side: int, plan: Plan, read: Read) -> jax.Array:
    """The bound below, or what an event shows if that is more; the bound above as it is.

    The plan's epsilon is the one that is asked for, or an estimate of it; `read(loss, log_p)` says
    whether an event shows anything, and what.
    """
    single = [(t, s) for t, s in zip(terms, plan.steps, strict=True) if isinstance(t, Term)]
    if side > 0 or len(single) < len(terms):
        return bound
    thresholds = lax.stop_gradient(plan.epsilon) * jnp.asarray(_THRESHOLDS)
    tails, tops, cells = [], [], []
    for term, step in single:  # (all kinds by one call, which is long to compile)
        own = _thresholds_of_step(term, step.centre)
        lo, hi = lax.stop_gradient(pilot_cells(term, rough=True))
        beyond = jnp.full((thresholds.size + own.size,), jnp.inf)
        lo, hi = jnp.concatenate([thresholds, own, lo]), jnp.concatenate([beyond, hi])
        q, p = term.masses(lo, hi)
        allowance = _allowances.masses(q, p) + term.mass_error
        q, low, high = q + allowance, p - allowance, p + allowance
        few, many = thresholds.size, beyond.size
        tails.append((q[:few], low[:few]))
        tops.append((own, q[few:many], low[few:many]))
        cells.append((q[many:], low[many:], high[many:]))
    used = [term for term, _ in single]
    events = _some_step(used, tails), _every_step(used, tops), _whole(used, cells)
    inside, value = read(*(jnp.concatenate(x) for x in zip(*events, strict=True)))
    return jnp.fmax(bound, jnp.max(jnp.where(inside, value, -jnp.inf)))


Masses = list[tuple[jax.Array, ...]]  # of every term


def _thresholds_of_step(term: Term, centre: jax.Array) -> jax.Array:
    """Below the tilted law's mean, and just below the largest loss or, if there is none, at it."""
    centre = lax.stop_gradient(centre)
    low, high = (jnp.asarray(end, jnp.float64) for end in term.support)
    top = high - 2.0 * nudge((low, high), jnp.zeros(()))
    last = jnp.where(jnp.isfinite(high), top, centre)
    return jnp.append(centre - jnp.abs(centre) * jnp.asarray(_SHARES), last)


def _every_step(terms: list[Term], tops: Masses) -> tuple[jax.Array, jax.Array]:
    """That every step has a loss above its threshold, at each of them."""
    loss = size = log_p = jnp.float64(0.0)
    for term, (start, q, p) in zip(terms, tops, strict=True):
        count = jnp.asarray(term.count, jnp.float64)
        some, used = (p > -jnp.inf) & (q > -jnp.inf), count > 0.0
        known = jnp.where(some, p, 0.0)
        each = jnp.where(some, jnp.maximum(start, known - jnp.where(some, q, 0.0)), start)
        each = jnp.where(used, count * each, 0.0)
        loss, size = loss + each, size + jnp.abs(each)
        log_p += jnp.where(used, jnp.where(known < 0.0, count * known, -jnp.inf), 0.0)
    return loss - 2.0**-46 * size, log_p - 2.0**-46 * (1.0 - log_p)


def _some_step(terms: list[Term], tails: Masses) -> tuple[jax.Array, jax.Array]:
    """That some step has a loss above the threshold, at each of them.

    Q(E) is at most the sum over the steps (of at least one; less of a step is not asked).
    """
    log_none = jnp.zeros_like(tails[0][0])
    log_q = jnp.full_like(log_none, -jnp.inf)
    whole = jnp.asarray(True)
    for term, (q, p) in zip(terms, tails, strict=True):
        count = jnp.asarray(term.count, jnp.float64)
        used = count > 0.0
        whole &= ~used | (count >= 1.0)
        some = used & (p > -jnp.inf)
        mass = jnp.exp(jnp.where(some, jnp.minimum(p, -_ROUNDED), -1.0))
        log_none += jnp.where(some, count * log1p(-mass), 0.0)
        steps = jnp.log(jnp.where(used, count, 1.0))
        log_q = jnp.where(used, log_add(log_q, q + steps), log_q)
    some = whole & (log_none < 0.0) & (log_q > -jnp.inf)
    log_p = log1mexp(jnp.where(some, log_none, -1.0))
    log_p -= _ROUNDED * (1.0 + jnp.abs(log_p))
    loss = log_p - jnp.where(some, log_q, 0.0)
    loss -= _ROUNDED * (1.0 + jnp.abs(log_p) + jnp.abs(loss))
    return jnp.where(some, loss, -1.0), jnp.where(some, log_p, -jnp.inf)


def _whole(terms: list[Term], cells: Masses) -> tuple[jax.Array, jax.Array]:
    """That the whole loss is above what it exceeds so surely, by the best tilt.

    (A law below may have less than all of P: what it lacks is not above anything.)
    """
    tilts = jnp.asarray(_TILTS)
    log_mgf = size = jnp.zeros_like(tilts)
    log_all = jnp.float64(0.0)
    for term, (q, low, high) in zip(terms, cells, strict=True):
        count = jnp.asarray(term.count, jnp.float64)
        used = count > 0.0
        # (Selected, not the larger one: what is no mass may have no derivative, and nan is kept.)
        q, high = (jnp.where(x < _LEAST, _LEAST, x) for x in (q, high))
        low = jnp.where(low < _LEAST, -jnp.inf, low)
        each = log_sum_exp(tilts[:, None] * q + (1.0 - tilts[:, None]) * high)
        finite = used & (each > -jnp.inf)
        each = jnp.where(finite, each, 0.0)  # (K(-s) <= 0, whatever is not known)
        log_mgf += jnp.where(used, count * each, 0.0)
        size += jnp.where(used, count * (1.0 + jnp.abs(each)), 0.0)
        infinite = jnp.asarray(term.log_tau_p, jnp.float64)
        own = jnp.minimum(log_sum_exp(jnp.append(low, infinite)) - _SUMMED, -_SUMMED)
        log_all += jnp.where(used, count * own, 0.0)
    loss = jnp.max((-_SURE[:, None] - (log_mgf + _SUMMED * size)) / tilts, axis=-1)
    loss -= _ROUNDED * jnp.abs(loss)
    below = -_SURE - log_all * (1.0 + _ROUNDED)
    some = (below < 0.0) & (log_all > -jnp.inf)
    log_p = jnp.where(some, log_all + log1mexp(jnp.where(some, below, -1.0)), -jnp.inf)
    return loss, log_p - _ROUNDED * (1.0 + jnp.where(some, jnp.abs(log_p), 0.0))


def summed(terms: Terms, bound: jax.Array, side: int, epsilon: jax.Array) -> jax.Array:
    """The bound above on log delta, or the sum of the steps' own; the bound below as it is."""
    single = [term for term in terms if isinstance(term, Term)]
    if side < 0 or len(single) < len(terms):
        return bound
    counts = [jnp.asarray(term.count, jnp.float64) for term in single]
    known = functools.reduce(jnp.logical_and, (count == jnp.round(count) for count in counts))
    share = epsilon / jnp.maximum(sum(counts), 1.0) * (1.0 - _ROUNDED)
    total = jnp.full((), -jnp.inf)
    for term, count in zip(single, counts, strict=True):
        q, p = term.masses(share[None], jnp.full((1,), jnp.inf))
        allowance = lax.stop_gradient(_allowances.masses(q, p)) + term.mass_error
        # (Without a mass, though there are such losses, it has underflowed: how far, is not known.)
        empty = (p == -jnp.inf) & (share < jnp.asarray(term.support[1], jnp.float64))
        known &= ~jnp.any(empty | jnp.isnan(q + p + allowance))
        # (Of a threshold's event, P - e^share Q >= 0 but for rounding.)
        some = (p > -jnp.inf) & (q > -jnp.inf)
        loss = jnp.where(some, p, 0.0) - jnp.where(some, q, 0.0) + 2.0 * allowance
        loss = jnp.where(some, jnp.maximum(loss, share * (1.0 + _ROUNDED)), jnp.inf)
        _, finite = delta_at(share)(loss, p + allowance)
        own = log_add(finite[0], jnp.asarray(term.log_tau_p, jnp.float64))
        used = count > 0.0
        steps = jnp.log(jnp.where(used, count, 1.0))
        total = log_add(total, jnp.where(used, own + steps, -jnp.inf))
    total += _ROUNDED * (1.0 + lax.stop_gradient(jnp.where(total > -jnp.inf, jnp.abs(total), 0.0)))
    return jnp.where(known & (total < bound), total, bound)


def delta_at(epsilon: jax.Array) -> Read:
    """log delta at epsilon >= 0."""

    def read(loss: jax.Array, log_p: jax.Array) -> tuple[jax.Array, jax.Array]:
        inside = epsilon < loss
        return inside, log_p + log1mexp(jnp.where(inside, epsilon - loss, -1.0))

    return read


def epsilon_at(log_delta: jax.Array) -> Read:
    """Epsilon at log delta."""

    def read(loss: jax.Array, log_p: jax.Array) -> tuple[jax.Array, jax.Array]:
        inside = log_delta < log_p
        gap = log1mexp(jnp.where(inside, log_delta - log_p, -1.0))
        return inside, loss + gap * (1.0 + 2.0**-48)

    return read
