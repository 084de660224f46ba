"""Questions to the numerical engine: bounds on delta and epsilon, by direction, side and size."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _lanes, _law, _numerical_average, _numerical_guess
from jaxdp._allocation import _selected
from jaxdp._law import AnyDirection, Bounds, Sides
from jaxdp._mechanisms import Direction, Mechanism, _curve
from jaxdp._numerical_terms import (
    TABLE_FLOOR,
    Tables,
    as_term,
    has_tables,
    holds_average,
    terms_of,
)
from jaxdp._numerical_terms import has_law as has_law

# Points by default, for one bound and for two: the bound below needs more of them.
_ONE_SIDED, _TWO_SIDED = 8192, 16384
# Steps of their own laws each are composed in one stage, on a lattice whose relative error in the
# variance grows with the steps: from so many on the lattice is refined.
_STEPS_IN_ONE_STAGE = 2048
_TABLE_SHARE = 2  # of the points of a query, a tabulated law has that share
_ESTIMATE_SIZE = 1024


def _default_size(terms: _law.Terms, sides: Sides) -> int:
    steps = sum(t.number for t in terms if isinstance(t, _law.Family))
    finer = max(0, math.ceil(0.5 * math.log2(max(steps, 1) / _STEPS_IN_ONE_STAGE)))
    return (_TWO_SIDED if -1 in sides else _ONE_SIDED) << finer


def _ends(m: Mechanism) -> tuple[Any, Any]:
    """The largest finite losses and the masses at infinity, for remove and for add."""
    return _curve.end(m, "remove"), _curve.end(m, "add")


def _over(direction: Any, bounds: Callable[[Any], Bounds]) -> Bounds:
    """The bounds of the direction, the larger ones for both."""
    each = [bounds(d) for d in ("remove", "add") if direction in (d, "both")]
    return tuple(functools.reduce(jnp.maximum, side) for side in zip(*each, strict=True))


def larger(direction: AnyDirection, value: Callable[[Any], jax.Array]) -> jax.Array:
    """The value of a direction, or of both: the larger; of a flag, "add" or not: that one."""
    if not isinstance(direction, str):
        return jnp.where(direction, value("add"), value("remove"))
    return _over(direction, lambda d: (value(d),))[0]


def _with_tables(
    m: Mechanism,
    direction: AnyDirection,
    sides: Sides,
    grid_size: int | None,
    log_delta: jax.Array,
    bounds: Callable[..., Bounds],
    mirrored: jax.Array | bool = False,
) -> Bounds:
    """The bounds of nested mechanisms: each direction and side has its own tables.

    A question that is mirrored is asked of the law that is right in the other direction.
    """
    number = sum(jnp.asarray(t.multiplicity, jnp.float64) for t in _curve.canonical_terms(m))
    log_floor = jax.lax.stop_gradient(log_delta - jnp.log(jnp.maximum(number, 1.0)) - TABLE_FLOOR)

    def one(add: jax.Array, name: Direction | None = None) -> Bounds:
        answers = []
        for side in sides:
            size = grid_size or (_TWO_SIDED if side < 0 else _ONE_SIDED)
            tables = Tables(add ^ mirrored, side, size // _TABLE_SHARE, log_floor, name)
            terms = terms_of(m, tables)
            answers.extend(bounds(terms, direction=add, sides=(side,), size=size, ends=_ends(m)))
        return tuple(answers)

    if holds_average(m):
        return _over(direction, lambda d: one(jnp.asarray(d == "add"), d))
    return _over_flags(direction, one)


def takes_flag(m: Mechanism) -> bool:
    """Whether the direction may be traced: of most averages each has its own program."""
    return not holds_average(m) or (_numerical_average.takes_flag(m) and not has_tables(m))


def _is_named(direction: AnyDirection) -> bool:
    """Whether it is one direction, known as the program is traced, which then needs no flag."""
    return isinstance(direction, str) and direction != "both"


def _over_flags(direction: AnyDirection, one: Callable[[jax.Array], Bounds]) -> Bounds:
    """`_over` of what takes the direction as a flag, "add" or not: one program for both."""
    if not isinstance(direction, str):
        return one(direction)
    if direction != "both":
        return one(jnp.asarray(direction == "add"))
    return tuple(jnp.max(values, axis=0) for values in _lanes.both(one))


def _aim(m: Mechanism, epsilon: jax.Array) -> jax.Array:
    """log delta at epsilon for which tables are made: rather too small. Without tables unused."""
    return _numerical_guess.log_delta(m, epsilon) if has_tables(m) else jnp.float64(0.0)


def _average_terms(
    m: Mechanism, d: Direction, side: int, grid_size: int | None, log_delta: jax.Array
) -> Callable[[Any, Any], _law.Term]:
    """What gives the steps of averages, and what they are composed with, as terms of one side."""
    size = grid_size or (_TWO_SIDED if side < 0 else _ONE_SIDED)
    log_floor = jax.lax.stop_gradient(log_delta) - TABLE_FLOOR
    tables = Tables(jnp.asarray(d == "add"), side, size // _TABLE_SHARE, log_floor, d)
    return functools.partial(as_term, tables)


def _of_averages(
    m: Mechanism,
    direction: Any,
    sides: Sides,
    grid_size: int | None,
    log_delta: jax.Array,
    bounds: Callable[[Any, Sides, Any], Bounds],
    capped: Callable[[Bounds, Any], Bounds],
) -> Bounds:
    """Bounds where averages are composed: `bounds(direction, sides, as_term)`, in one program.

    Where they hold tables, those of a side are its own. Where the direction may be a flag, both
    directions share a program.
    """
    if takes_flag(m) and not _is_named(direction):
        ends = _ends(m)

        def flagged(add: jax.Array) -> Bounds:
            found = bounds(add, sides, functools.partial(as_term, None))
            return capped(found, _law.either(add, ends[1], ends[0]))

        return _over_flags(direction, flagged)

    def average(d: Any) -> Bounds:
        if not has_tables(m):
            found = bounds(d, sides, functools.partial(as_term, None))
        else:
            found = ()
            for side in sides:
                found += bounds(d, (side,), _average_terms(m, d, side, grid_size, log_delta))
        return capped(found, _curve.end(m, d))

    return _over(direction, average)


def _log_delta_of_averages(
    m: Mechanism,
    epsilon: jax.Array,
    aim: jax.Array,
    direction: Any,
    sides: Sides,
    grid_size: int | None,
) -> Bounds:
    if not _curve.has_average(m):
        bounds = functools.partial(_law.log_delta_bounds, epsilon=epsilon)
        return _with_tables(m, direction, sides, grid_size, aim, bounds)
    return _of_averages(
        m,
        direction,
        sides,
        grid_size,
        aim,
        lambda d, s, as_term: _numerical_average.log_delta(m, epsilon, d, s, grid_size, as_term),
        lambda found, end: _law.cap_log_deltas(found, sides, epsilon, end),
    )


def _over_mirrored(
    epsilon: jax.Array,
    direction: Any,
    sides: Sides,
    bounds: Callable[[jax.Array, Direction], Bounds],
) -> Bounds:
    """Bounds on log delta at any epsilon from `bounds(epsilon >= 0, direction)`.

    Laws of averages are right in one direction only. So below 0 the other direction's is read.
    """
    distance, mirrored = jnp.abs(epsilon), epsilon < 0.0
    remove, add = (bounds(distance, d) for d in ("remove", "add"))

    def chosen(own: Bounds, other: Bounds) -> Bounds:
        return tuple(
            jnp.where(mirrored, _law.reflected(epsilon, y, side), x)
            for x, y, side in zip(own, other, sides, strict=True)
        )

    return _over(direction, lambda d: chosen(*((remove, add) if d == "remove" else (add, remove))))


def log_delta(
    m: Mechanism, epsilon: jax.Array, direction: AnyDirection, sides: Sides, grid_size: int | None
) -> Bounds:
    """Certified bounds on log delta, below (-1) or above (+1)."""
    return _of_selections(
        m, sides, lambda m, sides: _log_delta(m, epsilon, direction, sides, grid_size)
    )


def _of_selections(
    m: Mechanism, sides: Sides, bounds: Callable[[Mechanism, Sides], Bounds]
) -> Bounds:
    """`bounds(m, sides)`, where k of t steps are chosen from above by blocks, from below by tests.

    Where none are chosen, all sides are asked at once, for what they share.
    """
    if -1 not in sides or not _selected.has_selection(m):
        return bounds(m, sides)

    def below() -> jax.Array:
        (tested,) = bounds(_selected.below(m), (-1,))
        exact = _selected.blocks_are_exact(m)
        return tested if exact is None else jnp.where(exact, bounds(m, (-1,))[0], tested)

    return tuple(bounds(m, (1,))[0] if side > 0 else below() for side in sides)


def _log_delta(
    m: Mechanism, epsilon: jax.Array, direction: AnyDirection, sides: Sides, grid_size: int | None
) -> Bounds:
    aim = _aim(m, epsilon)
    if holds_average(m):
        if _numerical_average.is_one(m):
            return _log_delta_of_averages(m, epsilon, aim, direction, sides, grid_size)
        return _over_mirrored(
            epsilon,
            direction,
            sides,
            lambda distance, d: _log_delta_of_averages(m, distance, aim, d, sides, grid_size),
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
    m: Mechanism, log_target: jax.Array, direction: str, sides: Sides, grid_size: int | None
) -> Bounds:
    """Certified bounds on epsilon >= 0 at log delta."""
    return _of_selections(
        m, sides, lambda m, sides: _epsilon(m, log_target, direction, sides, grid_size)
    )


def _epsilon(
    m: Mechanism, log_target: jax.Array, direction: str, sides: Sides, grid_size: int | None
) -> Bounds:
    if _curve.has_average(m):
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


def has_aim(m: Mechanism) -> bool:
    """Whether `aimed` answers for m: steps with laws of their own, composed."""
    return not (has_tables(m) or holds_average(m))


def aimed(
    m: Mechanism,
    epsilon: jax.Array,
    log_delta: jax.Array,
    direction: AnyDirection,
    grid_size: int | None,
) -> tuple[jax.Array, jax.Array]:
    """Bounds above from one law: (log delta at epsilon >= 0, epsilon at log_delta)."""
    terms = terms_of(m)
    size = grid_size or _default_size(terms, (1,))
    return _law.aimed_bounds(
        terms, epsilon, log_delta, direction=direction, size=size, ends=_ends(m)
    )


def log_delta_estimate(
    m: Mechanism, epsilon: jax.Array, direction: AnyDirection, fine: bool = False
) -> jax.Array:
    """log delta to a few percent, no bound; fine (see `_law`) where `has_aim` says yes."""
    aim = _aim(m, epsilon)
    if _curve.has_average(m):
        estimate = _numerical_average.log_delta_estimate
        if takes_flag(m) and not _is_named(direction):
            step = functools.partial(as_term, None)
            return _over_flags(direction, lambda add: (estimate(m, epsilon, add, step),))[0]

        def average(d: Any) -> tuple[jax.Array]:
            as_term = _average_terms(m, d, 1, _TABLE_SHARE * _ESTIMATE_SIZE, aim)
            return (estimate(m, epsilon, d, as_term),)

        return _over(direction, average)[0]
    if not has_tables(m):
        return _law.log_delta_estimate(terms_of(m), epsilon, direction=direction, fine=fine)

    def one(add: jax.Array, name: Direction | None = None) -> tuple[jax.Array]:
        tables = Tables(add, 1, _ESTIMATE_SIZE, aim - TABLE_FLOOR, name)
        return (_law.log_delta_estimate(terms_of(m, tables), epsilon, direction=add),)

    if holds_average(m):
        return _over(direction, lambda d: one(jnp.asarray(d == "add"), d))[0]
    return _over_flags(direction, one)[0]
