"""Loops of a batch that run a few rows at a time, each row to its own end; both directions.

`lax.while_loop` under vmap steps all rows until the last of them is done. Where a step costs
milliseconds and rows take 3 to 12 of them, most of the time goes into rows that are done. Here a
few lanes run, and a lane whose row is done goes on with the next row.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend import core

from jaxdp import _devices


def both(one: Callable[[jax.Array], Any]) -> Any:
    """`one` of the flags False and True, stacked along a new first axis: see `few`."""
    return few(one, jnp.array([False, True]))


def few(one: Callable[[jax.Array], Any], values: jax.Array) -> Any:
    """`one` of each of a few values, stacked along a new first axis: one program for all.

    On an accelerator they are a batch. A CPU takes one after the other: it is as fast, and to batch
    all operations takes half the time in which they are traced.
    """
    if _devices.platform_of(()) == "cpu":
        return lax.map(one, values)
    return jax.vmap(one)(values)


def each(one: Callable[..., Any], rows: Sequence[tuple[Any, ...]]) -> list[Any]:
    """`one` of each of a few rows of the same structure: one program for all, one after the other.

    (So they would be as operations of their own: what is saved is to compile them.)
    """
    if len(rows) <= 1:
        return [one(*row) for row in rows]
    found = lax.map(lambda row: one(*row), jax.tree.map(lambda *x: jnp.stack(x), *rows))
    return [jax.tree.map(lambda x, i=i: x[i], found) for i in range(len(rows))]


def first(one: Callable[..., Any], rows: tuple[jax.Array, ...], number: jax.Array) -> Any:
    """`one` of each of the first rows, `number` of them, stacked; ones in place of the others.

    On an accelerator a batch of all. A CPU takes one after the other, and no more than are asked.
    """
    one = jax.jit(one)  # traced once
    shapes = jax.eval_shape(one, *(row[0] for row in rows))
    nothing = jax.tree.map(lambda x: jnp.ones(x.shape, x.dtype), shapes)

    def some(index: jax.Array, *row: jax.Array) -> Any:
        return lax.cond(index < number, lambda: one(*row), lambda: nothing)

    index = jnp.arange(rows[0].shape[0])
    if _devices.platform_of(()) == "cpu":
        return lax.map(lambda x: some(*x), (index, *rows))
    return jax.vmap(some)(index, *rows)


def while_loop(
    going: Callable[[Any], jax.Array],
    body: Callable[[Any], Any],
    state: Any,
    lanes: int | None = None,
) -> Any:
    """`lax.while_loop`; under vmap, with at most so many rows at a time (None: all of them).

    Args:
      going: state -> whether to go on; closes over no traced value.
      body: state -> state, of the same shapes and types.
      state: a PyTree of arrays.
      lanes: of a batch, how many rows to compute at a time.
    """
    if lanes is None:
        return lax.while_loop(going, body, state)
    leaves, treedef = jax.tree.flatten(state)
    leaves = [jnp.asarray(x) for x in leaves]

    def step(*leaves: jax.Array) -> list[jax.Array]:
        after = jax.tree.leaves(body(jax.tree.unflatten(treedef, leaves)))
        return [y.astype(x.dtype) for x, y in zip(leaves, after, strict=True)]

    def open_(leaves: Sequence[jax.Array]) -> jax.Array:
        return going(jax.tree.unflatten(treedef, leaves))

    # (What the body closes over has to be known, as rows have their own.)
    closed = jax.make_jaxpr(step)(*leaves)
    count = len(closed.consts)

    def run(held: Sequence[jax.Array], leaves: Sequence[jax.Array]) -> list[jax.Array]:
        return core.jaxpr_as_fun(core.ClosedJaxpr(closed.jaxpr, list(held)))(*leaves)

    @jax.custom_batching.custom_vmap
    def loop(*values: jax.Array) -> tuple[jax.Array, ...]:
        held, start = values[:count], values[count:]
        return tuple(lax.while_loop(open_, lambda s: run(held, s), list(start)))

    @loop.def_vmap
    def _batch(size: int, batched: Sequence[bool], *values: jax.Array) -> tuple[Any, Any]:
        held, moves = list(values[:count]), batched[:count]
        start = [
            x if b else jnp.broadcast_to(x, (size, *x.shape))
            for x, b in zip(values[count:], batched[count:], strict=True)
        ]
        axes = [0 if m else None for m in moves]
        every = jax.vmap(run, in_axes=(axes, 0))
        if lanes == 1:  # (no batch: a batch goes both ways at every branch)
            every = functools.partial(_alone, run, moves)
        if size <= lanes:
            found = lax.while_loop(
                lambda s: jnp.any(jax.vmap(open_)(s)),
                lambda s: _where(jax.vmap(open_)(s), every(held, s), s),
                start,
            )
        else:

            def at(rows: jax.Array, leaves: Sequence[jax.Array]) -> list[jax.Array]:
                own = [x[rows] if m else x for x, m in zip(held, moves, strict=True)]
                return every(own, leaves)

            found = _in_lanes(jax.vmap(open_), at, start, size, lanes)
        return tuple(found), (True,) * len(found)

    held = [jnp.asarray(x) for x in closed.consts]
    return jax.tree.unflatten(treedef, loop(*held, *leaves))


def _alone(
    run: Callable[..., list[jax.Array]],
    moves: Sequence[bool],
    held: Sequence[jax.Array],
    leaves: Sequence[jax.Array],
) -> list[jax.Array]:
    """`run` of the one row of a batch."""
    own = [x[0] if moved else x for x, moved in zip(held, moves, strict=True)]
    return [y[None] for y in run(own, [x[0] for x in leaves])]


def _where(keep: jax.Array, new: Sequence[jax.Array], old: Sequence[jax.Array]) -> list[jax.Array]:
    def choose(a: jax.Array, b: jax.Array) -> jax.Array:
        return jnp.where(keep.reshape(keep.shape + (1,) * (a.ndim - 1)), a, b)

    return [choose(a, b) for a, b in zip(new, old, strict=True)]


def _in_lanes(
    going: Callable[[Sequence[jax.Array]], jax.Array],
    step: Callable[[jax.Array, Sequence[jax.Array]], list[jax.Array]],
    start: list[jax.Array],
    size: int,
    lanes: int,
) -> list[jax.Array]:
    """The states of all rows in the end; `step(rows, states)` advances those of some rows."""
    open_ = going(start)
    # Those that have begun at their end are never put into a lane.
    order = jnp.argsort(~open_, stable=True).astype(jnp.int32)
    number = jnp.sum(open_.astype(jnp.int32))

    def rows_of(places: jax.Array) -> jax.Array:
        return order[jnp.minimum(places, size - 1)]

    def body(loop: tuple) -> tuple:
        places, taken, states, every = loop
        rows = rows_of(places)
        used = places < number
        states = step(rows, states)
        target = jnp.where(used, rows, size)  # (out of range: dropped)
        every = [x.at[target].set(y, mode="drop") for x, y in zip(every, states, strict=True)]
        free = used & ~going(states)
        rank = jnp.cumsum(free.astype(jnp.int32))
        places = jnp.where(free, taken + rank - 1, places)
        taken += rank[-1]
        fresh = [x[rows_of(places)] for x in every]
        return places, taken, _where(free, fresh, states), every

    places = jnp.arange(lanes, dtype=jnp.int32)
    loop = places, jnp.int32(lanes), [x[rows_of(places)] for x in start], start
    return lax.while_loop(lambda s: jnp.any(s[0] < number), body, loop)[-1]
