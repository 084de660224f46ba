"""Mechanisms to the numerical engine: which laws are composed, and how many times."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _law, _numerical_average
from jaxdp._mechanisms import Average, Base, Mechanism, PoissonSampled, _curve
from jaxdp._mechanisms._schedule import Steps

# Points by default, for one bound and for two: the bound below needs more of them.
_ONE_SIDED, _TWO_SIDED = 8192, 16384
# Steps of their own laws each are composed in one stage, on a lattice whose relative error in the
# variance grows with the steps: from so many on the lattice is refined.
_STEPS_IN_ONE_STAGE = 2048


def has_law(m: Mechanism) -> bool:
    """Whether every factor of m knows its one-step loss law (not a sampled composition, nor reports
    that are shuffled).
    """
    return all(_step_has_law(t.mechanism) for t in _curve.canonical_terms(m))


def _step_has_law(step: Base) -> bool:
    if isinstance(step, Steps):
        return isinstance(step.mechanism, Base) and _step_has_law(step.mechanism)
    if isinstance(step, Average):
        averaged = _numerical_average.step_of(step)
        return averaged is not None and _step_has_law(averaged)
    if not isinstance(step, PoissonSampled):
        return step._has_law
    inner = _curve.single(_curve.canonical_terms(step.mechanism))
    return inner is not None and _step_has_law(inner)


def _atomic_range(step: Base) -> tuple[jax.Array, jax.Array]:
    """The ends of the loss range where an atom may sit, infinite where none does."""
    low, high = step._loss_range()
    at_low, at_high = step._atoms_at_ends()
    return (low if at_low else -jnp.inf), (high if at_high else jnp.inf)


def takes_flag(m: Mechanism) -> bool:
    """Whether the direction may be traced: "add" or not (of averages each has its own program)."""
    return not _numerical_average.has_average(m)


def terms_of(m: Mechanism) -> _law.Terms:
    """The factors of m as one-step laws with their counts."""
    terms = []
    for t in _curve.canonical_terms(m):
        step = t.mechanism
        if isinstance(step, Steps):
            n = t.multiplicity
            parameters = (step.mechanism, step.copies)
            terms.append(_law.Family(lambda x, n=n: _term(x[0], n * x[1]), parameters))
        else:
            terms.append(_term(step, t.multiplicity))
    return tuple(terms)


def _term(step: Base, count: ArrayLike) -> _law.Term:
    return _law.Term(
        step._masses_function(),
        count,
        step._log_failure("remove"),
        step._log_failure("add"),
        _atomic_range(step),
        step._mass_error(),
    )


def _default_size(terms: _law.Terms, sides: tuple[int, ...]) -> int:
    steps = sum(t.number for t in terms if isinstance(t, _law.Family))
    finer = max(0, math.ceil(0.5 * math.log2(max(steps, 1) / _STEPS_IN_ONE_STAGE)))
    return (_TWO_SIDED if -1 in sides else _ONE_SIDED) << finer


def _ends(m: Mechanism) -> tuple[Any, Any]:
    """The largest finite losses and the masses at infinity, for remove and for add."""
    return _curve.end(m, "remove"), _curve.end(m, "add")


def _over(direction: Any, bounds: Callable[[Any], tuple[jax.Array, ...]]) -> tuple[jax.Array, ...]:
    """The bounds of the direction, the larger ones for both."""
    each = [bounds(d) for d in ("remove", "add") if direction in (d, "both")]
    return tuple(functools.reduce(jnp.maximum, side) for side in zip(*each, strict=True))


def log_delta(
    m: Mechanism,
    epsilon: jax.Array,
    direction: _law.AnyDirection,
    sides: tuple[int, ...],
    grid_size: int | None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on log delta, below (-1) or above (+1)."""
    if _numerical_average.has_average(m):

        def average(d: Any) -> tuple[jax.Array, ...]:
            bounds = _numerical_average.log_delta(m, epsilon, d, sides, grid_size, _term)
            return _law.cap_log_deltas(bounds, sides, epsilon, _curve.end(m, d))

        return _over(direction, average)
    terms = terms_of(m)
    size = grid_size or _default_size(terms, sides)
    return _law.log_delta_bounds(
        terms, epsilon, direction=direction, sides=sides, size=size, ends=_ends(m)
    )


def epsilon(
    m: Mechanism,
    log_target: jax.Array,
    direction: str,
    sides: tuple[int, ...],
    grid_size: int | None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on epsilon >= 0 at log delta."""
    if _numerical_average.has_average(m):

        def average(d: Any) -> tuple[jax.Array, ...]:
            bounds = _numerical_average.epsilon(m, log_target, d, sides, grid_size, _term)
            return _law.cap_epsilons(bounds, sides, log_target, _curve.end(m, d))

        return _over(direction, average)
    terms = terms_of(m)
    size = grid_size or _default_size(terms, sides)
    return _law.epsilon_bounds(
        terms, log_delta=log_target, direction=direction, sides=sides, size=size, ends=_ends(m)
    )


def log_delta_estimate(m: Mechanism, epsilon: jax.Array, direction: _law.AnyDirection) -> jax.Array:
    """log delta to a few percent, no bound."""
    if _numerical_average.has_average(m):
        estimate = _numerical_average.log_delta_estimate
        return _over(direction, lambda d: (estimate(m, epsilon, d, _term),))[0]
    return _law.log_delta_estimate(terms_of(m), epsilon, direction=direction)
