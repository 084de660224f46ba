"""What an infeasible target falls short by: the least delta within reach, in each direction."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _queries
from jaxdp._mechanisms import Mechanism
from jaxdp._methods import Method

_VALUES = 9  # tried from one end of the bracket to the other


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Shortfall:
    """The least certified delta at the target epsilon among values all over the bracket.

    Attributes:
      remove, add: of that direction alone; nan where it was not asked for, or the target was met.
      value: where the worse of them is least.
      target: the delta that was asked for.
    """

    remove: jax.Array
    add: jax.Array
    value: jax.Array
    target: jax.Array

    def sentence(self, row: tuple[int, ...]) -> str:
        """Which direction misses the target of one row, and by how much."""
        remove, add, value, target = (float(np.asarray(x)[row]) for x in dataclasses.astuple(self))
        met = {name: d <= target for name, d in (("remove", remove), ("add", add)) if d == d}
        if not met:
            return ""
        if all(met.values()):  # in doubles
            missing = "no loss may exceed epsilon" if target == 0.0 else "the search found no end"
            return f"(The least delta found is {np.fmax(remove, add):.3g}: {missing}.)"
        worst = "remove" if "add" not in met or remove >= add else "add"
        best = remove if worst == "remove" else add
        other = [name for name, well in met.items() if well and name != worst]
        beside = f" ({other[0]} meets it)" if other else ""
        more = f", {best / target:.3g} times the target" if target > 0.0 else ""
        found = f"The {worst} direction{beside} has delta {best:.3g} at best{more}, at {value:.3g}."
        pure = " With delta = 0 no loss may exceed epsilon: only noise of bounded losses has that."
        return found if target > 0.0 else found + pure


def shortfall(
    infeasible: jax.Array,
    build: Callable[..., Mechanism],
    epsilon: ArrayLike,
    delta: ArrayLike,
    args: tuple[Any, ...],
    bracket: tuple[ArrayLike, ArrayLike],
    direction: _queries.Directions,
    method: Method | None,
    whole: bool = False,
) -> Shortfall | None:
    """Of the rows that are infeasible; None where none is, and where values are traced.

    With `whole`, values are rounded to integers.
    """
    targets = tuple(_checks.array_of("target", x) for x in (epsilon, delta, *bracket))
    leaves, treedef = jax.tree.flatten((targets, args))
    if any(isinstance(x, jax.core.Tracer) for x in (*leaves, infeasible)):
        return None
    shape = np.shape(infeasible)
    rows = np.flatnonzero(np.asarray(infeasible))
    if not rows.size:
        return None
    flat = [np.broadcast_to(np.asarray(x, np.float64), shape).reshape(-1)[rows] for x in leaves]
    (some_epsilon, some_delta, low, high), some_args = jax.tree.unflatten(treedef, flat)
    share = np.linspace(0.0, 1.0, _VALUES)[:, None]
    values = np.exp((1.0 - share) * np.log(low) + share * np.log(high))
    values = np.clip(np.round(values) if whole else values, low, high)

    def least(way: _queries.Directions) -> np.ndarray:
        if direction not in ("both", way):
            return np.full(values.shape, np.nan)
        one = jax.vmap(
            lambda value, e, rest: _queries.delta(
                build(value, *rest), e, direction=way, method=method
            ),
            in_axes=(0, 0, 0),
        )
        found = one(
            values.reshape(-1),
            np.tile(some_epsilon, _VALUES),
            jax.tree.map(lambda x: np.tile(x, _VALUES), some_args),
        )
        return np.asarray(found, np.float64).reshape(values.shape)

    remove, add = least("remove"), least("add")
    worse = np.fmax(remove, add)
    worse = np.where(np.isnan(worse), np.inf, worse)
    at = np.argmin(worse, axis=0)[None]

    def scattered(found: np.ndarray) -> jax.Array:
        out = np.full(int(np.prod(shape)), np.nan)
        out[rows] = found
        return jnp.asarray(out.reshape(shape))

    columns = (np.take_along_axis(x, at, axis=0)[0] for x in (remove, add, values))
    return Shortfall(*(scattered(x) for x in (*columns, some_delta)))
