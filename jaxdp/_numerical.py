"""Questions to the numerical engine: bounds on delta and epsilon, by direction, side and size."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _lanes, _law, _numerical_average, _numerical_guess, _numerical_tuning
from jaxdp._allocation import _selected
from jaxdp._law import AnyDirection, Bounds, Sides
from jaxdp._mechanisms import Mechanism, _curve
from jaxdp._mechanisms._schedule import by_steps
from jaxdp._mechanisms._steps import number_of_steps
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


def larger(direction: AnyDirection, value: Callable[[Any], jax.Array]) -> jax.Array:
    """The value of a direction, or of both: the larger; of a flag, "add" or not: that one."""
    if not isinstance(direction, str):
        return jnp.where(direction, value("add"), value("remove"))
    each = [value(d) for d in ("remove", "add") if direction in (d, "both")]
    return functools.reduce(jnp.maximum, each)


def takes_flag(m: Mechanism) -> bool:
    """Whether directions of one batch may differ: where averages are composed, they cost more."""
    return not holds_average(m) or (_numerical_average.takes_flag(m) and not has_tables(m))


def _over_flags(
    direction: AnyDirection,
    sides: Sides,
    one: Callable[[_law.Flag, Sides], Bounds],
    together: bool = False,
) -> Bounds:
    """The bounds of the direction, the larger ones for both: `one(add, sides)` in one program.

    Of both directions the bound below is asked for in that one alone whose bound above is larger:
    what is below one truth is below the larger of the two. (Unless sides share much, `together`.)
    """
    if not isinstance(direction, str):
        return one(direction, sides)
    if direction != "both":
        return one(direction == "add", sides)
    each = sides if together or 1 not in sides else (1,)
    found = dict(zip(each, _lanes.both(lambda add: one(add, each)), strict=True))
    worst = {side: jnp.max(values, axis=0) for side, values in found.items()}
    if len(sides) > len(each):
        worst[-1] = one(found[1][1] > found[1][0], (-1,))[0]
    return tuple(worst[side] for side in sides)


def _tables(
    add: _law.Flag,
    side: int,
    grid_size: int | None,
    log_delta: jax.Array,
    number: Any = 1.0,
    finer: int = 1,
) -> tuple[Tables, int]:
    """How laws are tabulated for a question, and the points of what so many are composed to."""
    size = grid_size or (_TWO_SIDED if side < 0 else _ONE_SIDED)
    number = jnp.maximum(number, 1.0)
    log_floor, number = jax.lax.stop_gradient((log_delta - jnp.log(number) - TABLE_FLOOR, number))
    return Tables(add, side, finer * size // _TABLE_SHARE, log_floor, number), size


def _with_tables(
    m: Mechanism,
    direction: AnyDirection,
    sides: Sides,
    grid_size: int | None,
    log_delta: jax.Array,
    bounds: Callable[..., Bounds],
    mirrored: jax.Array | None = None,
) -> Bounds:
    """The bounds of nested mechanisms: each direction and side has its own tables.

    A question that is mirrored is asked of the law that is right in the other direction.
    """
    number = number_of_steps(m)

    def one(add: _law.Flag, sides: Sides) -> Bounds:
        answers = []
        for side in sides:
            read = add if mirrored is None else add ^ mirrored
            tables, size = _tables(read, side, grid_size, log_delta, number)
            flag, terms = jnp.asarray(add), terms_of(m, tables)
            answers.extend(
                bounds(terms, direction=flag, sides=(side,), size=size, ends=_curve.ends(m))
            )
        return tuple(answers)

    return _over_flags(direction, sides, one)


def _aim(m: Mechanism, epsilon: jax.Array) -> jax.Array:
    """log delta at epsilon for which tables are made: rather too small. Without tables unused."""
    return _numerical_guess.log_delta(m, epsilon) if has_tables(m) else jnp.float64(0.0)


def _of_averages(
    m: Mechanism,
    add: _law.Flag,
    sides: Sides,
    grid_size: int | None,
    log_delta: jax.Array,
    bounds: Callable[[_law.Flag, Sides, Any], Bounds],
) -> Bounds:
    """Bounds of one direction where averages are composed: `bounds(add, sides, as_term)`.

    Where they hold tables, those of a side are its own.
    """
    if not has_tables(m):
        return bounds(add, sides, functools.partial(as_term, None))
    found = ()
    for side in sides:
        tables, _ = _tables(add, side, grid_size, log_delta)
        found += bounds(add, (side,), functools.partial(as_term, tables))
    return found


def _log_delta_of_averages(
    m: Mechanism,
    epsilon: jax.Array,
    aim: jax.Array,
    add: _law.Flag,
    sides: Sides,
    grid_size: int | None,
) -> Bounds:
    def bounds(add: _law.Flag, sides: Sides, as_term: Any) -> Bounds:
        return _numerical_average.log_delta(m, epsilon, add, sides, grid_size, as_term)

    found = _of_averages(m, add, sides, grid_size, aim, bounds)
    return _law.cap_log_deltas(found, sides, epsilon, _law.end_of(_curve.ends(m), add))


def log_delta(
    m: Mechanism, epsilon: jax.Array, direction: AnyDirection, sides: Sides, grid_size: int | None
) -> Bounds:
    """Certified bounds on log delta, below (-1) or above (+1)."""
    return _of_selections(
        by_steps(m), sides, lambda m, sides: _log_delta(m, epsilon, direction, sides, grid_size)
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
    tuned = _numerical_tuning.the_one(m)
    if tuned is not None:

        def of_runs(add: _law.Flag, sides: Sides) -> Bounds:
            read = jnp.asarray(add) ^ (epsilon < 0.0)
            each = [_tables(read, side, grid_size, aim, finer=2)[0] for side in sides]
            found = [_numerical_tuning.log_delta(tuned, jnp.abs(epsilon), t) for t in each]
            found = [_law.reflected(epsilon, x, t.side) for x, t in zip(found, each, strict=True)]
            end = _law.end_of(_curve.ends(m), add)
            return _law.cap_log_deltas(tuple(found), sides, epsilon, end)

        return _over_flags(direction, sides, of_runs)
    if _curve.has_average(m):
        alone = _numerical_average.is_one(m)

        def one(add: _law.Flag, sides: Sides) -> Bounds:
            if alone:
                return _log_delta_of_averages(m, epsilon, aim, add, sides, grid_size)
            # A law of averages is right in one direction only: below 0 the other one's is read.
            distance, read = jnp.abs(epsilon), add ^ (epsilon < 0.0)
            found = _log_delta_of_averages(m, distance, aim, read, sides, grid_size)
            return tuple(
                _law.reflected(epsilon, x, side) for x, side in zip(found, sides, strict=True)
            )

        return _over_flags(direction, sides, one, together=alone)
    if has_tables(m):
        bounds = functools.partial(_law.log_delta_bounds, epsilon=epsilon)
        return _with_tables(m, direction, sides, grid_size, aim, bounds, epsilon < 0.0)
    terms = terms_of(m)
    size = grid_size or _default_size(terms, sides)
    return _law.log_delta_bounds(
        terms, epsilon, direction=direction, sides=sides, size=size, ends=_curve.ends(m)
    )


def epsilon(
    m: Mechanism, log_target: jax.Array, direction: str, sides: Sides, grid_size: int | None
) -> Bounds:
    """Certified bounds on epsilon >= 0 at log delta."""
    return _of_selections(
        by_steps(m), sides, lambda m, sides: _epsilon(m, log_target, direction, sides, grid_size)
    )


def _epsilon(
    m: Mechanism, log_target: jax.Array, direction: str, sides: Sides, grid_size: int | None
) -> Bounds:
    tuned = _numerical_tuning.the_one(m)
    if tuned is not None:

        def of_runs(add: _law.Flag, sides: Sides) -> Bounds:
            each = [_tables(add, side, grid_size, log_target, finer=2)[0] for side in sides]
            found = tuple(_numerical_tuning.epsilon(tuned, log_target, t) for t in each)
            return _law.cap_epsilons(found, sides, log_target, _law.end_of(_curve.ends(m), add))

        return _over_flags(direction, sides, of_runs)
    if _curve.has_average(m):

        def of_averages(add: _law.Flag, sides: Sides, as_term: Any) -> Bounds:
            return _numerical_average.epsilon(m, log_target, add, sides, grid_size, as_term)

        def one(add: _law.Flag, sides: Sides) -> Bounds:
            found = _of_averages(m, add, sides, grid_size, log_target, of_averages)
            return _law.cap_epsilons(found, sides, log_target, _law.end_of(_curve.ends(m), add))

        return _over_flags(direction, sides, one, together=_numerical_average.is_one(m))
    if has_tables(m):
        bounds = functools.partial(_law.epsilon_bounds, log_delta=log_target)
        return _with_tables(m, direction, sides, grid_size, log_target, bounds)
    terms = terms_of(m)
    size = grid_size or _default_size(terms, sides)
    return _law.epsilon_bounds(
        terms,
        log_delta=log_target,
        direction=direction,
        sides=sides,
        size=size,
        ends=_curve.ends(m),
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
        terms, epsilon, log_delta, direction=direction, size=size, ends=_curve.ends(m)
    )


def log_delta_estimate(
    m: Mechanism, epsilon: jax.Array, direction: AnyDirection, fine: bool = False
) -> jax.Array:
    """log delta to a few percent, no bound; fine (see `_law`) where `has_aim` says yes."""
    m = by_steps(m)
    if not (has_tables(m) or _curve.has_average(m)):
        return _law.log_delta_estimate(terms_of(m), epsilon, direction=direction, fine=fine)
    aim, tuned = _aim(m, epsilon), _numerical_tuning.the_one(m)

    def one(add: _law.Flag, _: Sides) -> Bounds:
        tables = _tables(add, 1, _TABLE_SHARE * _ESTIMATE_SIZE, aim)[0]
        if tuned is not None:
            return (_numerical_tuning.log_delta(tuned, jnp.maximum(epsilon, 0.0), tables),)
        if _curve.has_average(m):
            step = functools.partial(as_term, tables if has_tables(m) else None)
            return (_numerical_average.log_delta_estimate(m, epsilon, add, step),)
        flag = jnp.asarray(add)
        return (_law.log_delta_estimate(terms_of(m, tables), epsilon, direction=flag),)

    return _over_flags(direction, (1,), one)[0]
