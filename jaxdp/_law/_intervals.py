"""Masses of intervals of a law on an increasing list of points."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._divergences import log_positive
from jaxdp._law._terms import Masses


def interval_masses(
    q_mass: jax.Array, p_mass: jax.Array, index: Callable[[jax.Array], jax.Array]
) -> Masses:
    """log Q and log P of {lo < L <= hi}, sums over a binary tree.

    Args:
      q_mass, p_mass: of the points, (2^k,) each.
      index: how many points are at most a loss.

    Returns:
      The masses: at most 2 log2 N additions of positive terms each, so that no digits are lost.
    """
    size = q_mass.shape[0]

    def tree(values: jax.Array) -> jax.Array:
        levels = [values]
        while levels[0].shape[0] > 1:
            levels.insert(0, levels[0].reshape(-1, 2).sum(axis=-1))
        return jnp.concatenate([jnp.zeros((1,)), *levels])

    both = jnp.stack([tree(q_mass), tree(p_mass)], axis=-1)

    def row(place: jax.Array) -> jax.Array:
        return both.at[place].get(mode="clip")

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        def climb(_, carry):
            i, j, total = carry
            inside = i < j
            left, right = inside & ((i & 1) == 1), inside & ((j & 1) == 1)
            total += jnp.where(left[..., None], row(i), 0.0)
            total += jnp.where(right[..., None], row(j - 1), 0.0)
            return (i + left) >> 1, (j - right) >> 1, total

        ends = index(lax.stop_gradient(jnp.stack([lo, hi]))) + size
        start = (ends[0], ends[1], jnp.zeros((*lo.shape, 2)))
        total = lax.fori_loop(0, size.bit_length(), climb, start)[2]
        logs = log_positive(total)
        return logs[..., 0], logs[..., 1]

    return masses
