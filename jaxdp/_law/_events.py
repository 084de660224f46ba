"""What single events show from below, whatever the lattice: delta >= P(E) - e^epsilon Q(E).

Two kinds are asked besides the law: that all steps have their largest losses, and that some step
has a loss above a threshold. The second is nearly all there is where losses that count are rare:
where tiny samples run for few steps, and rounding in the transform is more than delta.

An event is held as log P(E) and a loss l <= log P(E) / Q(E): delta >= P(E) (1 - e^{epsilon - l}).
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import log_add
from jaxdp._law import _allowances
from jaxdp._law._grid import nudge
from jaxdp._law._terms import Term, Terms
from jaxdp._special import log1mexp, log1p

# Thresholds, in epsilons: with epsilon itself the event shows most, and near by nearly as much.
_THRESHOLDS = np.geomspace(0.5, 1.1, 32)
_ROUNDED = 2.0**-44  # of a logarithm, and of 1: some hundred u

Read = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]


def with_events(
    terms: Terms, bound: jax.Array, side: int, about: jax.Array, read: Read
) -> jax.Array:
    """The bound below, or what an event shows if that is more; the bound above as it is.

    `about` is the epsilon that is asked for, or an estimate of it; `read(loss, log_p)` says whether
    an event shows anything, and what.
    """
    single = tuple(term for term in terms if isinstance(term, Term))
    if side > 0 or len(single) < len(terms):
        return bound
    ends = all(term.bounded for term in single)
    thresholds = lax.stop_gradient(about) * jnp.asarray(_THRESHOLDS)
    tails, tops = [], []
    for term in single:  # (both kinds by one call, which is long to compile)
        top = _threshold_of_end(term) if ends else jnp.zeros((0,))
        at = jnp.concatenate([thresholds, top])
        q, p = term.masses(at, jnp.full_like(at, jnp.inf))
        allowance = _allowances.masses(q, p) + term.mass_error
        q, p = q + allowance, p - allowance
        tails.append((q[: thresholds.size], p[: thresholds.size]))
        tops.append((top, p[thresholds.size :]))
    events = [_some_step(single, tails)] + ([_all_steps(single, tops)] if ends else [])
    inside, value = read(*(jnp.concatenate(x) for x in zip(*events, strict=True)))
    return jnp.fmax(bound, jnp.max(jnp.where(inside, value, -jnp.inf)))


Masses = list[tuple[jax.Array, jax.Array]]  # of every term


def _threshold_of_end(term: Term) -> jax.Array:
    """Just below the largest loss, 0 where there is none: (1,)."""
    low, high = (jnp.asarray(end, jnp.float64) for end in term.support)
    some = jnp.isfinite(high)
    return jnp.where(some, high - 2.0 * nudge((low, high), jnp.zeros(())), 0.0)[None]


def _all_steps(terms: tuple[Term, ...], tops: Masses) -> tuple[jax.Array, jax.Array]:
    """That all steps have their largest losses; -inf where a term may have none."""
    loss = log_p = jnp.zeros((1,))
    for term, (start, mass) in zip(terms, tops, strict=True):
        count = jnp.asarray(term.count, jnp.float64)
        some, used = jnp.isfinite(jnp.asarray(term.support[1], jnp.float64)), count > 0.0
        loss += jnp.where(used & some, count * start, 0.0)
        known = jnp.where(some & (mass > -jnp.inf), mass, 0.0)
        log_p += jnp.where(used, jnp.where(known < 0.0, count * known, -jnp.inf), 0.0)
    return loss - 2.0**-46 * jnp.abs(loss), log_p - 2.0**-46 * (1.0 - log_p)


def _some_step(terms: tuple[Term, ...], tails: Masses) -> tuple[jax.Array, jax.Array]:
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
