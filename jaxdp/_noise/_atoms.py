"""Masses of loss intervals of a law with many atoms, all sums of positive terms."""

import jax
import jax.numpy as jnp

from jaxdp import _special

ATOMS = 8192
_LEVELS = 13


def interval_log_masses(
    lo: jax.Array, hi: jax.Array, loss: jax.Array, log_q: jax.Array, log_p: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi}, elementwise, for vectors of 8192 atoms.

    The atoms are sorted by loss and summed in a binary tree; an interval is the sum of at most
    two blocks on each level, so that nothing is ever subtracted.
    """
    order = jnp.argsort(jax.lax.stop_gradient(loss))
    loss = jax.lax.stop_gradient(loss)[order]
    left = jnp.searchsorted(loss, lo, side="right")
    right = jnp.searchsorted(loss, hi, side="right")
    return _range_sum(log_q[order], left, right), _range_sum(log_p[order], left, right)


def _range_sum(values, left, right):
    parts = []
    for _ in range(_LEVELS + 1):
        last = values.shape[0] - 1
        odd = (left % 2 == 1) & (left < right)
        parts.append(jnp.where(odd, values[jnp.minimum(left, last)], -jnp.inf))
        left = left + odd
        odd = (right % 2 == 1) & (left < right)
        parts.append(jnp.where(odd, values[jnp.clip(right - 1, 0, last)], -jnp.inf))
        right = right - odd
        left, right = left // 2, right // 2
        if last > 0:
            values = _special.logsumexp(values.reshape(-1, 2), axis=1)
    return _special.logsumexp(jnp.stack(parts), axis=0)
