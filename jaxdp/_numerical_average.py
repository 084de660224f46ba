"""Random allocation in the numerical engine: one average directly, or averages as terms."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _law
from jaxdp._law import _allocation, _average_guess
from jaxdp._mechanisms import Average, Mechanism, _curve

StepTerm = Callable[[Any, Any], _law.Term]
_ESTIMATE_SIZE = 2048
_POINTS = {1: 8192, -1: 16384}  # of the composition: the bound below needs more


def has_average(m: Mechanism) -> bool:
    """Whether a factor of m is an average."""
    return any(isinstance(t.mechanism, Average) for t in _curve.canonical_terms(m))


def step_of(block: Average) -> Any:
    """The one step that is averaged; None for a composition."""
    return _curve.single(_curve.canonical_terms(block.mechanism))


def _one(m: Mechanism) -> Average | None:
    """The average that m is, if it is exactly one."""
    terms = _curve.canonical_terms(m)
    one = len(terms) == 1 and terms[0].count is None
    return terms[0].mechanism if one else None


def _size(m: Mechanism, grid_size: int | None) -> int:
    """Of the lattices of averages: larger where some average is known to be long."""
    averages = [t.mechanism for t in _curve.canonical_terms(m)]
    return grid_size or _allocation.size_for(any(getattr(a, "long", ()) for a in averages))


def _terms(
    m: Mechanism, as_term: StepTerm, aim: jax.Array, direction: Any, side: int, size: int
) -> tuple[_law.Term, ...]:
    """The factors of m, laws of averages above or below, right in one direction."""
    terms = []
    for t in _curve.canonical_terms(m):
        block = t.mechanism
        if not isinstance(block, Average):
            terms.append(as_term(block, t.multiplicity))
            continue
        count = jnp.asarray(t.multiplicity, jnp.float64)
        averaged = _allocation.averaged_term(
            as_term(step_of(block), 1.0),
            block.num_steps,
            log_delta=aim,
            direction=direction,
            side=side,
            size=size,
            count=jnp.maximum(count, 1.0),
        )
        terms.append(averaged._replace(count=count))
    return tuple(terms)


def _each_side(
    bounds: Callable[..., tuple[jax.Array, ...]],
    terms: Callable[[int], tuple[_law.Term, ...]],
    direction: Any,
    sides: tuple[int, ...],
) -> tuple[jax.Array, ...]:
    """Bounds of a composition whose averages have a law above and one below."""
    return tuple(
        bounds(terms(side), direction=direction, sides=(side,), size=_POINTS[side])[0]
        for side in sides
    )


def log_delta(
    m: Mechanism,
    epsilon: jax.Array,
    direction: Any,
    sides: tuple[int, ...],
    grid_size: int | None,
    as_term: StepTerm,
) -> tuple[jax.Array, ...]:
    """Certified bounds on log delta in one direction; `as_term(step, count)` is a step's law."""
    size = _size(m, grid_size)
    block = _one(m)
    if block is not None:
        return _allocation.allocation_log_delta_bounds(
            as_term(step_of(block), 1.0),
            block.num_steps,
            epsilon,
            direction=direction,
            sides=sides,
            size=size,
        )
    first = next(t for t in _curve.canonical_terms(m) if isinstance(t.mechanism, Average))
    numbers = (first.mechanism.num_steps, epsilon, first.multiplicity)
    aim = _average_guess.guess_log_delta(
        as_term(step_of(first.mechanism), 1.0),
        *(jnp.asarray(x, jnp.float64) for x in numbers),
    )
    return _each_side(
        functools.partial(_law.log_delta_bounds, epsilon=epsilon),
        lambda side: _terms(m, as_term, aim, direction, side, size),
        direction,
        sides,
    )


def epsilon(
    m: Mechanism,
    log_target: jax.Array,
    direction: Any,
    sides: tuple[int, ...],
    grid_size: int | None,
    as_term: StepTerm,
) -> tuple[jax.Array, ...]:
    """Certified bounds on epsilon >= 0 at log delta, in one direction."""
    size = _size(m, grid_size)
    block = _one(m)
    if block is not None:
        return _allocation.allocation_epsilon_bounds(
            as_term(step_of(block), 1.0),
            block.num_steps,
            log_delta=log_target,
            direction=direction,
            sides=sides,
            size=size,
        )
    return _each_side(
        functools.partial(_law.epsilon_bounds, log_delta=log_target),
        lambda side: _terms(m, as_term, log_target, direction, side, size),
        direction,
        sides,
    )


def log_delta_estimate(
    m: Mechanism, epsilon: jax.Array, direction: Any, as_term: StepTerm
) -> jax.Array:
    """log delta of a coarse law, as a start for searches."""
    value = log_delta(m, epsilon, direction, (1,), _ESTIMATE_SIZE, as_term)[0]
    return jnp.minimum(value, 0.0)
