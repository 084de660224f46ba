"""Mechanisms to the numerical engine: which laws are composed, and how many times.

What runs on a sample may be a composition itself: its law is tabulated (`_law._table`), above or
below, for the direction that is asked for, and is then one step like any other.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _divergences, _law, _numerical_average
from jaxdp._mechanisms import Average, Base, Mechanism, PoissonSampled, _curve
from jaxdp._mechanisms._schedule import Steps

# Points by default, for one bound and for two: the bound below needs more of them.
_ONE_SIDED, _TWO_SIDED = 8192, 16384
# Steps of their own laws each are composed in one stage, on a lattice whose relative error in the
# variance grows with the steps: from so many on the lattice is refined.
_STEPS_IN_ONE_STAGE = 2048


# Of the points of a query, a tabulated law has that share; what it puts at infinity is less than
# delta by this.
_TABLE_SHARE = 2
_TABLE_FLOOR = 16.0
_ESTIMATE_SIZE = 1024
_LEAST_LOG_DELTA = -120.0  # that a table is made for, where only epsilon is known


class Tables(NamedTuple):
    """How laws of sampled compositions are tabulated: for which direction ("add" or not), side,
    size, and with how much P-mass at infinity (its log).
    """

    add: jax.Array
    side: int
    size: int
    log_floor: jax.Array


def has_law(m: Mechanism) -> bool:
    """Whether every factor of m knows its one-step loss law, or has one that can be tabulated."""
    return all(_step_has_law(t.mechanism) for t in _curve.canonical_terms(m))


def _step_has_law(step: Base) -> bool:
    if isinstance(step, Steps):
        one = step.mechanism
        return isinstance(one, Base) and _step_has_law(one) and not _is_nested(one)
    if isinstance(step, Average):
        one = _numerical_average.step_of(step)
        return one is not None and _step_has_law(one) and not _is_nested(one)
    if not isinstance(step, PoissonSampled):
        return step._has_law
    inner = _curve.canonical_terms(step.mechanism)
    one = _curve.single(inner)
    if one is not None:
        return _step_has_law(one)
    return all(_can_be_tabulated(t.mechanism) for t in inner)


def _can_be_tabulated(step: Base) -> bool:
    """Not averages, whose laws are right in one direction and about one delta."""
    return not isinstance(step, Average) and _step_has_law(step)


def _is_nested(step: Base) -> bool:
    """Whether a step's law has to be tabulated: a sample on which several mechanisms run."""
    if not isinstance(step, PoissonSampled):
        return False
    one = _curve.single(_curve.canonical_terms(step.mechanism))
    return one is None or _is_nested(one)


def has_tables(m: Mechanism) -> bool:
    """Whether a factor of m is nested."""
    return any(_is_nested(t.mechanism) for t in _curve.canonical_terms(m))


def _atomic_range(step: Base) -> tuple[jax.Array, jax.Array]:
    """The ends of the loss range where an atom may sit, infinite where none does."""
    low, high = step._loss_range()
    at_low, at_high = step._atoms_at_ends()
    return (low if at_low else -jnp.inf), (high if at_high else jnp.inf)


def takes_flag(m: Mechanism) -> bool:
    """Whether the direction may be traced: "add" or not (of averages each has its own program)."""
    return not _numerical_average.has_average(m)


def terms_of(m: Mechanism, tables: Tables | None = None) -> _law.Terms:
    """The factors of m as one-step laws with their counts; nested ones need `tables`."""
    terms = []
    for t in _curve.canonical_terms(m):
        step = t.mechanism
        if isinstance(step, Steps):
            n = t.multiplicity
            parameters = (step.mechanism, step.copies)
            terms.append(_law.Family(lambda x, n=n: _term(x[0], n * x[1]), parameters))
        elif isinstance(step, PoissonSampled) and _is_nested(step):
            assert tables is not None
            terms.append(_nested_term(step, tables)._replace(count=t.multiplicity))
        else:
            terms.append(_term(step, t.multiplicity))
    return tuple(terms)


def _nested_term(step: PoissonSampled, tables: Tables) -> _law.Term:
    """A sampled composition as a term, right in the direction of the tables."""
    inner = terms_of(step.mechanism, tables)
    if _curve.single(_curve.canonical_terms(step.mechanism)) is not None:
        (base,) = inner
    else:
        add, side, size, log_floor = tables
        table = _law.tabulated(_law.oriented(inner, add), log_floor, size, side)
        base = _law.orient_one(table, add)
    q = jnp.asarray(step.sampling_probability)
    log_absent = jnp.asarray(base.log_tau_q)
    low, high = (jnp.asarray(end) for end in base.support)
    low = jnp.where((log_absent > -jnp.inf) & (q < 1.0), -jnp.inf, low)
    return _law.Term(
        step._masses_from(base.masses, log_absent),
        1.0,
        base.log_tau_p + jnp.log(q),
        jnp.where(q < 1.0, -jnp.inf, log_absent),
        (_divergences.sampled_loss(low, q), _divergences.sampled_loss(high, q)),
        base.mass_error,
    )


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


def _with_tables(
    m: Mechanism,
    direction: _law.AnyDirection,
    sides: tuple[int, ...],
    grid_size: int | None,
    log_delta: jax.Array,
    bounds: Callable[..., tuple[jax.Array, ...]],
    mirrored: jax.Array | bool = False,
) -> tuple[jax.Array, ...]:
    """The bounds of nested mechanisms: each direction and side has its own tables.

    A question that is mirrored is asked of the law that is right in the other direction.
    """
    number = sum(jnp.asarray(t.multiplicity, jnp.float64) for t in _curve.canonical_terms(m))
    log_floor = jax.lax.stop_gradient(log_delta - jnp.log(jnp.maximum(number, 1.0)) - _TABLE_FLOOR)

    def one(add: jax.Array) -> tuple[jax.Array, ...]:
        answers = []
        for side in sides:
            size = grid_size or (_TWO_SIDED if side < 0 else _ONE_SIDED)
            terms = terms_of(m, Tables(add ^ mirrored, side, size // _TABLE_SHARE, log_floor))
            answers.extend(bounds(terms, direction=add, sides=(side,), size=size, ends=_ends(m)))
        return tuple(answers)

    return _over_flags(direction, one)


def _over_flags(
    direction: _law.AnyDirection, one: Callable[[jax.Array], tuple[jax.Array, ...]]
) -> tuple[jax.Array, ...]:
    """`_over` of what takes the direction as a flag, "add" or not: one program for both."""
    if not isinstance(direction, str):
        return one(direction)
    if direction != "both":
        return one(jnp.asarray(direction == "add"))
    each = jax.vmap(one)(jnp.array([False, True]))
    return tuple(jnp.max(values, axis=0) for values in each)


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
    if has_tables(m):
        aim, bounds = jnp.float64(_LEAST_LOG_DELTA), _law.log_delta_bounds
        return _with_tables(
            m,
            direction,
            sides,
            grid_size,
            aim,
            functools.partial(bounds, epsilon=epsilon),
            epsilon < 0.0,
        )
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
    if has_tables(m):
        bounds = functools.partial(_law.epsilon_bounds, log_delta=log_target)
        return _with_tables(m, direction, sides, grid_size, log_target, bounds)
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
    if not has_tables(m):
        return _law.log_delta_estimate(terms_of(m), epsilon, direction=direction)

    def one(add: jax.Array) -> tuple[jax.Array]:
        tables = Tables(add, 1, _ESTIMATE_SIZE, jnp.float64(_LEAST_LOG_DELTA))
        return (_law.log_delta_estimate(terms_of(m, tables), epsilon, direction=add),)

    return _over_flags(direction, one)[0]
