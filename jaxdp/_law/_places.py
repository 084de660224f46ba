"""Whole numbers of places, the same wherever a compiler works them out.

It may do so once for each use, and round each otherwise (fused multiply-adds, say): what lies at a
node of a lattice, but for rounding, would have the cell of one and the offset of another. So what
is a hair below a node counts there, and what is halfway between two goes up.
"""

import jax
import jax.numpy as jnp

HAIR = 2.0**-46  # times the number of places: more than they are rounded by
_MOST = 2**16


def floor(place: jax.Array, size: int = _MOST) -> jax.Array:
    """The node at or before a place, one of about so many, or a hair after it."""
    return jnp.floor(place + HAIR * size)


def ceil(place: jax.Array, size: int = _MOST) -> jax.Array:
    """The node at or after a place, or a hair before it."""
    return jnp.ceil(place - HAIR * size)


def after(place: jax.Array, node: jax.Array) -> jax.Array:
    """How far a place is beyond its node, which may be a hair after it."""
    distance = place - node
    return distance + jax.lax.stop_gradient(jnp.maximum(distance, 0.0) - distance)


def nearest(place: jax.Array, size: int = _MOST) -> jax.Array:
    """The node next to a place."""
    return jnp.floor(place + (0.5 + HAIR * size))


def wrap(index: jax.Array, size: int) -> jax.Array:
    """A whole number of places modulo size."""
    return (index - size * jnp.floor(index / size)).astype(jnp.int32)
