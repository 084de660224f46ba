"""Running sums, minima and maxima by blocks, which takes few passes and is quick to compile."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law._allowances import RUNNING_BLOCK

_SUMS = RUNNING_BLOCK  # in a block, the product with a triangular matrix
_OTHERS = 8  # in a block that is written out
# Below the largest double by more than any sum has terms: no infinity meets a 0 of the matrix.
_LARGEST = 1e290


def total(values: jax.Array, reverse: bool = False) -> jax.Array:
    """Running sums of numbers >= 0 (those beyond 1e290 count as that).

    A product with a matrix of zeros and ones adds nothing but the numbers themselves, in an order
    that is the compiler's: `_allowances.running_additions`.
    """
    return _total(jnp.minimum(values, _LARGEST), reverse)


def _total(values: jax.Array, reverse: bool) -> jax.Array:
    size = values.shape[0]
    ones = np.tril(np.ones((_SUMS, _SUMS))) if reverse else np.triu(np.ones((_SUMS, _SUMS)))
    blocks = jnp.pad(values, (0, -size % _SUMS)).reshape(-1, _SUMS)
    inside = blocks @ jnp.asarray(ones)
    if blocks.shape[0] > 1:
        others = _total(inside[:, 0 if reverse else -1], reverse)
        inside += _shifted(others, jnp.zeros((1,), values.dtype), reverse)[:, None]
    return inside.reshape(-1)[:size]


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
    before = _shifted(others, own, reverse)
    found = [choose(x, before) for x in found]
    inside = jnp.stack([found[i] for i in order], axis=1).reshape(-1)
    return inside[padding[0] :][:size]


def _shifted(values: jax.Array, none: jax.Array, reverse: bool) -> jax.Array:
    """What comes before each."""
    if reverse:
        return jnp.concatenate([values[1:], none])
    return jnp.concatenate([none, values[:-1]])
