"""Both directions of a composition with averages, in one program.

Every direction has a law of the average of its own, from other lattices; what they are composed
with, the composition and the reading of its curve are one program, run once for each.
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _lanes, _law, _numerical_average
from jaxdp._allocation import _selected
from jaxdp._law import Bounds, Sides
from jaxdp._mechanisms import Mechanism, _curve
from jaxdp._numerical_terms import as_term, has_tables

StepTerm = Callable[[Any, Any], _law.Term]


def shares(m: Mechanism) -> bool:
    """Whether m is such a composition: of averages of steps, with no tables."""
    if not _curve.has_average(m) or has_tables(m) or _selected.has_selection(m):
        return False
    return not _numerical_average.is_one(m) and _numerical_average._perhaps_once(m) is None


def epsilon(
    m: Mechanism, log_target: jax.Array, sides: Sides, grid_size: int | None, ends: Any
) -> Bounds:
    """For each side the larger of the bounds of remove and of add."""
    size = _numerical_average._size(m, grid_size)
    steps = _in_turn(functools.partial(as_term, None))
    terms = {
        side: [
            _numerical_average._terms(m, steps(), log_target, direction, side, size)
            for direction in ("remove", "add")
        ]
        for side in sides
    }

    def one(add: jax.Array) -> Bounds:
        found = ()
        for side in sides:
            pairs = zip(*terms[side], strict=True)
            # (what is no average is one term for both)
            own = tuple(x if x is y else _law.by_direction(add, x, y) for x, y in pairs)
            found += _law.epsilon_bounds(
                own,
                log_delta=log_target,
                direction=add,
                sides=(side,),
                size=_numerical_average._POINTS[side],
                ends=ends,
            )
        return found

    return tuple(jnp.max(value, axis=0) for value in _lanes.both(one))


def _in_turn(as_term: StepTerm) -> Callable[[], StepTerm]:
    """As many functions as are asked for, whose k-th calls return the same k-th term.

    (Every direction and side asks for the same steps, in the same order.)
    """
    made: list[_law.Term] = []

    def again() -> StepTerm:
        place = itertools.count()

        def term(m: Any, count: Any) -> _law.Term:
            k = next(place)
            if k == len(made):
                made.append(as_term(m, count))
            return made[k]

        return term

    return again
