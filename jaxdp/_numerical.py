"""Mechanisms to the numerical engine: which laws are composed, and how many times."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _law
from jaxdp._law import _allocation
from jaxdp._mechanisms import Average, Base, Mechanism, PoissonSampled, _curve
from jaxdp._mechanisms._schedule import Steps

# Points by default, for one bound and for two: the bound below needs more of them.
_ONE_SIDED, _TWO_SIDED = 8192, 16384


def has_law(m: Mechanism) -> bool:
    """Whether every factor of m knows its one-step loss law (a sampled composition does not)."""
    terms = _curve.canonical_terms(m)
    if any(isinstance(t.mechanism, Average) for t in terms):
        return _one_average(m) is not None
    return all(_step_has_law(t.mechanism) for t in terms)


def _one_average(m: Mechanism) -> Average | None:
    """The average that m is, of a step with a law, if it is one."""
    terms = _curve.canonical_terms(m)
    block = terms[0].mechanism
    if len(terms) != 1 or terms[0].count is not None or not isinstance(block, Average):
        return None
    step = _curve.single(_curve.canonical_terms(block.mechanism))
    return block if step is not None and _step_has_law(step) else None


def _step_has_law(step: Base) -> bool:
    if isinstance(step, Steps):
        return False  # steps of their own laws each
    if not isinstance(step, PoissonSampled):
        return True
    inner = _curve.single(_curve.canonical_terms(step.mechanism))
    return inner is not None and _step_has_law(inner)


def _atomic_range(step: Base) -> tuple[jax.Array, jax.Array]:
    """The ends of the loss range where an atom may sit, infinite where none does."""
    low, high = step._loss_range()
    at_low, at_high = step._atoms_at_ends()
    return (low if at_low else -jnp.inf), (high if at_high else jnp.inf)


def terms_of(m: Mechanism) -> tuple[_law.Term, ...]:
    """The factors of m as one-step laws with their counts."""
    return tuple(_term(t.mechanism, t.multiplicity) for t in _curve.canonical_terms(m))


def _term(step: Base, count: ArrayLike) -> _law.Term:
    return _law.Term(
        step._log_masses,
        count,
        step._log_failure("remove"),
        step._log_failure("add"),
        _atomic_range(step),
    )


def _averaged(bounds: Any, block: Average, at: jax.Array, direction: str, **options: Any) -> Any:
    """Bounds of one of t steps, the larger of both directions where both are asked for."""
    term = _term(_curve.canonical_terms(block.mechanism)[0].mechanism, 1.0)
    directions = ("remove", "add") if direction == "both" else (direction,)
    values = [bounds(term, block.num_steps, at, direction=d, **options) for d in directions]
    return tuple(functools.reduce(jnp.maximum, side) for side in zip(*values, strict=True))


def log_delta(
    m: Mechanism,
    epsilon: jax.Array,
    direction: str,
    sides: tuple[int, ...],
    grid_size: int | None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on log delta, below (-1) or above (+1)."""
    block = _one_average(m)
    if block is not None:
        options = {"sides": sides, "size": grid_size or _allocation.DEFAULT_SIZE}
        bound = _allocation.allocation_log_delta_bounds
        return _safe(_averaged(bound, block, epsilon, direction, **options), sides, -jnp.inf, 0.0)
    size = grid_size or (_TWO_SIDED if -1 in sides else _ONE_SIDED)
    bounds = _law.log_delta_bounds(
        terms_of(m), epsilon, direction=direction, sides=sides, size=size
    )
    return _safe(bounds, sides, -jnp.inf, 0.0)


def epsilon(
    m: Mechanism,
    log_target: jax.Array,
    direction: str,
    sides: tuple[int, ...],
    grid_size: int | None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on epsilon >= 0 at log delta."""
    block = _one_average(m)
    if block is not None:
        options = {"sides": sides, "size": grid_size or _allocation.DEFAULT_SIZE}
        bound = _allocation.allocation_epsilon_bounds
        values = _averaged(
            lambda term, t, at, **rest: bound(term, t, log_delta=at, **rest),
            block,
            log_target,
            direction,
            **options,
        )
        return _safe(values, sides, 0.0, jnp.inf)
    size = grid_size or (_TWO_SIDED if -1 in sides else _ONE_SIDED)
    bounds = _law.epsilon_bounds(
        terms_of(m), log_delta=log_target, direction=direction, sides=sides, size=size
    )
    return _safe(bounds, sides, 0.0, jnp.inf)


def log_delta_estimate(m: Mechanism, epsilon: jax.Array, direction: str) -> jax.Array:
    """log delta to a few percent, no bound."""
    if _one_average(m) is not None:
        return log_delta(m, epsilon, direction, (1,), 2048)[0]
    return _law.log_delta_estimate(terms_of(m), epsilon, direction=direction)


def _safe(
    bounds: tuple[jax.Array, ...], sides: tuple[int, ...], least: float, most: float
) -> tuple[jax.Array, ...]:
    """Where a law overflows the grid's arithmetic (nan), the trivial bound of that side."""
    return tuple(
        jnp.where(jnp.isnan(bound), most if side > 0 else least, bound)
        for bound, side in zip(bounds, sides, strict=True)
    )
