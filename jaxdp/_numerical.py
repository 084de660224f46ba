"""Mechanisms to the numerical engine: which laws are composed, and how many times.

What runs on a sample, in one step of an allocation or in a part of a mixture may be a composition
itself: its law is tabulated (`_law._table`), above or below, for the direction that is asked for,
and is then one step like any other. Averages are right in one direction only, which is known when
the program is traced: tables that hold one, too.
"""

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _divergences, _law, _numerical_average, _numerical_guess
from jaxdp._mechanisms import Average, Base, Direction, Mechanism, Mixture, PoissonSampled, _curve
from jaxdp._mechanisms._revealed import MIXED, mixed_masses
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
_AVERAGE_ROOM = 2.0  # an average in a table is accurate about a delta that is smaller by this
_NEAR = -1.0  # or about that log delta


class Tables(NamedTuple):
    """How laws of sampled compositions are tabulated: for which direction ("add" or not), side,
    size, and with how much P-mass at infinity (its log). `direction` names it for averages.
    """

    add: jax.Array
    side: int
    size: int
    log_floor: jax.Array
    direction: Direction | None = None


def has_law(m: Mechanism) -> bool:
    """Whether every factor of m knows its one-step loss law, or has one that can be tabulated."""
    return all(_step_has_law(t.mechanism) for t in _curve.canonical_terms(m))


def _step_has_law(step: Base) -> bool:
    if isinstance(step, Steps):
        one = step.mechanism
        return isinstance(one, Base) and _step_has_law(one) and not _is_nested(one)
    if isinstance(step, Average):
        return _run_has_law(step.mechanism)
    if not isinstance(step, (PoissonSampled, Mixture)):
        return step._has_law
    return all(_run_has_law(m) for m in _held(step))


_Holder = PoissonSampled | Mixture | Average


def _held(step: _Holder) -> tuple[Mechanism, ...]:
    """What runs on the sample or in one step of an allocation, or the parts of the mixture."""
    return tuple(step.mechanisms) if isinstance(step, Mixture) else (step.mechanism,)


def _run_has_law(m: Mechanism) -> bool:
    inner = _curve.canonical_terms(m)
    one = _curve.single(inner)
    if one is not None:
        return _step_has_law(one)
    return all(_step_has_law(t.mechanism) for t in inner)


def _is_nested(step: Base) -> bool:
    """Whether a step holds compositions, whose laws have to be tabulated."""
    if not isinstance(step, _Holder):
        return False
    ones = [_curve.single(_curve.canonical_terms(m)) for m in _held(step)]
    return any(one is None or _is_nested(one) for one in ones)


def has_tables(m: Mechanism) -> bool:
    """Whether a factor of m is nested."""
    return any(_is_nested(t.mechanism) for t in _curve.canonical_terms(m))


def _atomic_range(step: Base) -> tuple[jax.Array, jax.Array]:
    """The ends of the loss range where an atom may sit, infinite where none does."""
    low, high = step._loss_range()
    at_low, at_high = step._atoms_at_ends()
    return (low if at_low else -jnp.inf), (high if at_high else jnp.inf)


def _holds_average(m: Mechanism) -> bool:
    """Whether there is an average in m, at any depth."""
    steps = [t.mechanism for t in _curve.canonical_terms(m)]
    return any(
        isinstance(step, Average)
        or (isinstance(step, _Holder) and any(_holds_average(x) for x in _held(step)))
        for step in steps
    )


def takes_flag(m: Mechanism) -> bool:
    """Whether the direction may be traced: "add" or not (of averages each has its own program)."""
    return not _holds_average(m)


def terms_of(m: Mechanism, tables: Tables | None = None) -> _law.Terms:
    """The factors of m as one-step laws with their counts; nested ones need `tables`."""
    terms = []
    for t in _curve.canonical_terms(m):
        step = t.mechanism
        if isinstance(step, Steps):
            n = t.multiplicity
            parameters = (step.mechanism, step.copies)
            terms.append(_law.Family(lambda x, n=n: _term(x[0], n * x[1]), parameters))
        elif isinstance(step, Average):
            assert tables is not None
            terms.append(_averaged(step, t.multiplicity, tables))
        elif _is_nested(step):
            assert tables is not None
            terms.append(_nested_term(step, tables)._replace(count=t.multiplicity))
        else:
            terms.append(_term(step, t.multiplicity))
    return tuple(terms)


def _averaged(block: Average, count: ArrayLike, tables: Tables) -> _law.Term:
    """An average as one of the terms of a table, right in the direction of the tables."""
    assert tables.direction is not None
    as_term = functools.partial(_as_term, tables)
    # Where X is small (add), an outer law is made of many steps, each of them next to its mean.
    aim = jnp.float64(_NEAR)
    if tables.direction == "remove":
        aim = tables.log_floor + _TABLE_FLOOR - _AVERAGE_ROOM
        aim = jnp.maximum(aim, _log_top(as_term(_numerical_average.step_of(block), 1.0), block))
    return _numerical_average.averaged(
        block,
        count,
        as_term,
        aim,
        tables.direction,
        tables.side,
        2 * tables.size,
    )


def _log_top(term: _law.Term, block: Average) -> jax.Array:
    """log of the P-mass at the largest loss, all steps at theirs: no tail is beyond it."""
    high = jax.lax.stop_gradient(jnp.asarray(term.support[1], jnp.float64))
    some = jnp.isfinite(high)
    near = jnp.where(some, high - 1e-9 * (1.0 + jnp.abs(high)), 0.0)
    log_q, log_p = (x[0] for x in term.masses(near[None], jnp.full((1,), jnp.inf)))
    top = log_p + (block.num_steps - 1.0) * log_q
    return jax.lax.stop_gradient(jnp.where(some & jnp.isfinite(top), top - 1.0, -jnp.inf))


def _as_term(tables: Tables | None, m: Mechanism, count: ArrayLike) -> _law.Term:
    """A run as one term."""
    if isinstance(m, Base) and not _is_nested(m):
        return _term(m, count)
    assert tables is not None
    return _run_term(m, tables)._replace(count=count)


def _run_term(m: Mechanism, tables: Tables) -> _law.Term:
    """A mechanism as one term, right in the direction of the tables."""
    inner = terms_of(m, tables)
    if _curve.single(_curve.canonical_terms(m)) is not None:
        (term,) = inner
        assert isinstance(term, _law.Term)  # one step has no steps of its own
        return term
    add, side, size, log_floor, _ = tables
    return _law.orient_one(_law.tabulated(_law.oriented(inner, add), log_floor, size, side), add)


def _mixed_term(step: Mixture, tables: Tables) -> _law.Term:
    """A mixture of compositions as a term, right in the direction of the tables."""
    log_weights = step._log_weights()
    parts = [_run_term(m, tables) for m in step.mechanisms]

    def total(logs: list[Any]) -> jax.Array:
        return jnp.minimum(_divergences.log_add(*(log_weights + jnp.stack(logs))), 0.0)

    low, high = (
        jnp.stack([jnp.asarray(end) for end in ends])
        for ends in zip(*(part.support for part in parts), strict=True)
    )
    used = log_weights > -jnp.inf
    return _law.Term(
        mixed_masses([part.masses for part in parts], log_weights),
        1.0,
        total([part.log_tau_p for part in parts]),
        total([part.log_tau_q for part in parts]),
        (jnp.min(jnp.where(used, low, jnp.inf)), jnp.max(jnp.where(used, high, -jnp.inf))),
        jnp.max(jnp.stack([jnp.asarray(part.mass_error) for part in parts])) + MIXED,
    )


def _nested_term(step: PoissonSampled | Mixture, tables: Tables) -> _law.Term:
    """A sampled composition, or a mixture of some, as a term right in the tables' direction."""
    if isinstance(step, Mixture):
        return _mixed_term(step, tables)
    base = _run_term(step.mechanism, tables)
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

    def one(add: jax.Array, name: Direction | None = None) -> tuple[jax.Array, ...]:
        answers = []
        for side in sides:
            size = grid_size or (_TWO_SIDED if side < 0 else _ONE_SIDED)
            tables = Tables(add ^ mirrored, side, size // _TABLE_SHARE, log_floor, name)
            terms = terms_of(m, tables)
            answers.extend(bounds(terms, direction=add, sides=(side,), size=size, ends=_ends(m)))
        return tuple(answers)

    if _holds_average(m):
        return _over(direction, lambda d: one(jnp.asarray(d == "add"), d))
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


def _aim(m: Mechanism, epsilon: jax.Array) -> jax.Array:
    """log delta at epsilon for which tables are made: at least that small."""
    if has_tables(m) and _holds_average(m):
        return _numerical_guess.log_delta(m, epsilon)
    return jnp.float64(_LEAST_LOG_DELTA)


def _average_terms(
    m: Mechanism, d: Direction, side: int, grid_size: int | None, log_delta: jax.Array
) -> Callable[[Any, Any], _law.Term]:
    """What gives the steps of averages, and what they are composed with, as terms of one side."""
    size = grid_size or (_TWO_SIDED if side < 0 else _ONE_SIDED)
    log_floor = jax.lax.stop_gradient(log_delta) - _TABLE_FLOOR
    tables = Tables(jnp.asarray(d == "add"), side, size // _TABLE_SHARE, log_floor, d)
    return functools.partial(_as_term, tables)


def _of_averages(
    m: Mechanism,
    direction: Any,
    sides: tuple[int, ...],
    grid_size: int | None,
    log_delta: jax.Array,
    bounds: Callable[[Any, tuple[int, ...], Any], tuple[jax.Array, ...]],
    capped: Callable[[tuple[jax.Array, ...], Any], tuple[jax.Array, ...]],
) -> tuple[jax.Array, ...]:
    """Bounds where averages are composed: `bounds(direction, sides, as_term)`, in one program.

    Where they hold tables, those of a side are its own.
    """

    def average(d: Any) -> tuple[jax.Array, ...]:
        if not has_tables(m):
            found = bounds(d, sides, functools.partial(_as_term, None))
        else:
            found = ()
            for side in sides:
                found += bounds(d, (side,), _average_terms(m, d, side, grid_size, log_delta))
        return capped(found, _curve.end(m, d))

    return _over(direction, average)


def log_delta(
    m: Mechanism,
    epsilon: jax.Array,
    direction: _law.AnyDirection,
    sides: tuple[int, ...],
    grid_size: int | None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on log delta, below (-1) or above (+1)."""
    aim = _aim(m, epsilon)
    if _numerical_average.has_average(m):
        return _of_averages(
            m,
            direction,
            sides,
            grid_size,
            aim,
            lambda d, s, as_term: _numerical_average.log_delta(
                m, epsilon, d, s, grid_size, as_term
            ),
            lambda found, end: _law.cap_log_deltas(found, sides, epsilon, end),
        )
    if has_tables(m):
        return _with_tables(
            m,
            direction,
            sides,
            grid_size,
            aim,
            functools.partial(_law.log_delta_bounds, epsilon=epsilon),
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
        return _of_averages(
            m,
            direction,
            sides,
            grid_size,
            log_target,
            lambda d, s, as_term: _numerical_average.epsilon(
                m, log_target, d, s, grid_size, as_term
            ),
            lambda found, end: _law.cap_epsilons(found, sides, log_target, end),
        )
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
    aim = _aim(m, epsilon)
    if _numerical_average.has_average(m):
        estimate = _numerical_average.log_delta_estimate

        def average(d: Any) -> tuple[jax.Array]:
            as_term = _average_terms(m, d, 1, _TABLE_SHARE * _ESTIMATE_SIZE, aim)
            return (estimate(m, epsilon, d, as_term),)

        return _over(direction, average)[0]
    if not has_tables(m):
        return _law.log_delta_estimate(terms_of(m), epsilon, direction=direction)

    def one(add: jax.Array, name: Direction | None = None) -> tuple[jax.Array]:
        tables = Tables(add, 1, _ESTIMATE_SIZE, aim - _TABLE_FLOOR, name)
        return (_law.log_delta_estimate(terms_of(m, tables), epsilon, direction=add),)

    if _holds_average(m):
        return _over(direction, lambda d: one(jnp.asarray(d == "add"), d))[0]
    return _over_flags(direction, one)[0]
