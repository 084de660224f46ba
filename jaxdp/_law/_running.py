"""Running minima and maxima by blocks (running sums: `_allowances.running`)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

_OTHERS = 8  # in a block that is written out


def minimum(values: jax.Array, reverse: bool = False) -> jax.Array:
    """Running minima."""
    return _extreme(jnp.minimum, lax.cummin, values, reverse)


def maximum(values: jax.Array, reverse: bool = False) -> jax.Array:
    """Running maxima."""
    return _extreme(jnp.maximum, lax.cummax, values, reverse)


def _extreme(
    choose: Callable[[jax.Array, jax.Array], jax.Array],
    among: Callable[..., jax.Array],
    values: jax.Array,
    reverse: bool,
) -> jax.Array:
    """Written out in blocks, whose last numbers go through `among`, which is slow."""
    size = values.shape[0]
    # (What pads is never before what counts.)
    padding = (-size % _OTHERS, 0) if reverse else (0, -size % _OTHERS)
    blocks = jnp.pad(values, padding, mode="edge").reshape(-1, _OTHERS)
    order = range(_OTHERS)[:: -1 if reverse else 1]
    found = []
    for i in order:
        found.append(choose(found[-1], blocks[:, i]) if found else blocks[:, i])
    others = among(found[-1], reverse=reverse)
    # (Before the first block there is nothing: it is chosen from by its own first.)
    own = blocks[-1:, -1] if reverse else blocks[:1, 0]
    before = jnp.concatenate([others[1:], own] if reverse else [own, others[:-1]])
    found = [choose(x, before) for x in found]
    inside = jnp.stack([found[i] for i in order], axis=1).reshape(-1)
    return inside[padding[0] :][:size]
