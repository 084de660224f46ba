"""Masses of loss intervals of a law with many atoms, all sums of positive terms."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences

ATOMS = 8192  # of integer noise
_SMALL_LEVEL = 512  # sums of blocks


def interval_log_masses(
    lo: jax.Array, hi: jax.Array, loss: jax.Array, log_q: jax.Array, log_p: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi}, elementwise, for vectors of any number of atoms.

    The atoms are sorted by loss and summed in a binary tree; an interval is the sum of at most
    two blocks on each level, so that nothing is ever subtracted.
    """
    size = loss.shape[0]
    padding = (1 << (size - 1).bit_length()) - size
    if padding:
        loss = jnp.append(loss, jnp.full((padding,), jnp.inf))
        log_q, log_p = (jnp.append(x, jnp.full((padding,), -jnp.inf)) for x in (log_q, log_p))
    order = jnp.argsort(jax.lax.stop_gradient(loss))
    loss = jax.lax.stop_gradient(loss)[order]
    left = jnp.searchsorted(loss, lo, side="right")
    right = jnp.searchsorted(loss, hi, side="right")
    sums = range_sum(jnp.stack([log_q[order], log_p[order]]), left, right)
    return sums[0], sums[1]


def _add(a, b):
    """The sum of two numbers m e^t, each a pair (t, m); t is frozen, m >= 0 carries gradients.

    A sum of n of them has relative error of about log2(n) roundoffs, however small it is.
    """
    top = jnp.maximum(a[0], b[0])
    safe = jnp.where(jnp.isfinite(top), top, 0.0)
    return top, a[1] * jnp.exp(a[0] - safe) + b[1] * jnp.exp(b[0] - safe)


def range_sum(log_values, left, right):
    """log sum_{left <= i < right} e^log_values[:, i], for vectors of ends; 2^k values a row.

    Sums of blocks, one level after the other: the large levels as they are, the small ones by one
    program, padded to one size.
    """
    top = jax.lax.stop_gradient(log_values)
    finite = jnp.isfinite(top)
    size = log_values.shape[1]
    # m = 1, but with the gradient of e^(log_values - top)
    level = top, jnp.where(finite, 1.0 + jnp.where(finite, log_values - top, 0.0), 0.0)

    def halved(level):
        pairs = [x.reshape(2, -1, 2) for x in level]
        return _add(*([x[..., i] for x in pairs] for i in (0, 1)))

    levels = [level]
    while level[0].shape[1] > _SMALL_LEVEL:
        level = halved(level)
        levels.append(level)

    def next_level(level, _):
        after = [jnp.concatenate([x, x], axis=1) for x in halved(level)]
        return after, after

    starts = np.cumsum([0] + [x[0].shape[1] for x in levels])
    width = level[0].shape[1]
    small = width.bit_length() - 1
    if small:
        _, rest = jax.lax.scan(next_level, list(level), None, small)
        rest = [jnp.moveaxis(x, 0, 1).reshape(2, -1) for x in rest]
        starts = np.append(starts, starts[-1] + width * np.arange(1, small))
        levels.append(tuple(rest))
    stored = [jnp.concatenate(x, axis=1) for x in zip(*levels, strict=True)]
    starts = jnp.asarray(starts, jnp.int32)

    def climb(i, state):
        total, left, right = state

        def block(index, there):
            index = jnp.clip(index, 0, size - 1) + starts[i]
            t, m = (x[:, index] for x in stored)
            return jnp.where(there, t, -jnp.inf), jnp.where(there, m, 0.0)

        odd = (left % 2 == 1) & (left < right)
        total = _add(total, block(left, odd))
        left = left + odd
        odd = (right % 2 == 1) & (left < right)
        total = _add(total, block(right - 1, odd))
        right = right - odd
        return total, left // 2, right // 2

    zero = jnp.zeros((2, *left.shape))
    total = (jnp.full_like(zero, -jnp.inf), zero)
    rounds = size.bit_length()
    (top, mass), _, _ = jax.lax.fori_loop(0, rounds, climb, (total, left, right))
    return jnp.where(mass > 0.0, top, 0.0) + _divergences.log_positive(mass)
