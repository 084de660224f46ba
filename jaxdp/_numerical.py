"""Mechanisms to the numerical engine: which laws are composed, and how many times."""

import jax
import jax.numpy as jnp

from jaxdp import _law
from jaxdp._mechanisms import Base, Direction, Mechanism, PoissonSampled, _curve
from jaxdp._mechanisms._schedule import Steps

DEFAULT_GRID_SIZE = 8192


def has_law(m: Mechanism) -> bool:
    """Whether every factor of m knows its one-step loss law (a sampled composition does not)."""
    return all(_step_has_law(t.mechanism) for t in _curve.canonical_terms(m))


def _step_has_law(step: Base) -> bool:
    if isinstance(step, Steps):
        return False  # steps of their own laws each
    if not isinstance(step, PoissonSampled):
        return True
    inner = _curve.single(_curve.canonical_terms(step.mechanism))
    return inner is not None and _step_has_law(inner)


def terms_of(m: Mechanism) -> tuple[_law.Term, ...]:
    """The factors of m as one-step laws with their counts."""
    return tuple(
        _law.Term(
            t.mechanism._log_masses,
            t.multiplicity,
            t.mechanism._log_failure("remove"),
            t.mechanism._log_failure("add"),
            t.mechanism._loss_range(),
        )
        for t in _curve.canonical_terms(m)
    )


def log_delta(
    m: Mechanism,
    epsilon: jax.Array,
    direction: Direction,
    sides: tuple[int, ...],
    grid_size: int | None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on log delta, below (-1) or above (+1), for one direction."""
    size = grid_size or DEFAULT_GRID_SIZE
    bounds = _law.log_delta_bounds(
        terms_of(m), epsilon, direction=direction, sides=sides, size=size
    )
    return _safe(bounds, sides, -jnp.inf, 0.0)


def epsilon(
    m: Mechanism,
    log_target: jax.Array,
    direction: Direction,
    sides: tuple[int, ...],
    grid_size: int | None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on epsilon >= 0 at log delta, for one direction."""
    size = grid_size or DEFAULT_GRID_SIZE
    bounds = _law.epsilon_bounds(
        terms_of(m), log_delta=log_target, direction=direction, sides=sides, size=size
    )
    return _safe(bounds, sides, 0.0, jnp.inf)


def _safe(
    bounds: tuple[jax.Array, ...], sides: tuple[int, ...], least: float, most: float
) -> tuple[jax.Array, ...]:
    """Where a law overflows the grid's arithmetic (nan), the trivial bound of that side."""
    return tuple(
        jnp.where(jnp.isnan(bound), most if side > 0 else least, bound)
        for bound, side in zip(bounds, sides, strict=True)
    )
