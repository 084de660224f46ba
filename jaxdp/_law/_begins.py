"""Where the law below has its first node, and the one about which it is narrow: choices only.

As in `_plan`: a bad one makes the bounds wide, never wrong.
"""

import jax
import jax.numpy as jnp
import jax.scipy.special as jsp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp._law._saddle import Atoms
from jaxdp._law._terms import Term

# An atom with so small a share of the next one's mass is next to none.
_LOG_RARE = np.log(1e-4)
_WIDENINGS = 3  # of what is taken for a bulk next to the low end


def log_sum_exp(exponent: jax.Array) -> jax.Array:
    """Over the last axis."""
    top = jnp.max(exponent, axis=-1)
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    return top + jnp.log(jnp.sum(jnp.exp(exponent - top[..., None]), axis=-1))


def anchors(atoms: Atoms, log_weight: jax.Array, width: jax.Array) -> jax.Array:
    """Per term, the log mean ratio of the losses within half a width of a median.

    Of the tilted law's median and of the law's own the one about which the tilted law has more
    mass: with few steps it may consist of rare large losses and of a bulk that is far narrower.
    (A coarse cell wider than that has as much of its mass there as if it were spread evenly.)
    """
    cell = jnp.pad(atoms.edges[:, 1:] - atoms.edges[:, :-1], ((0, 0), (1, 1)))
    log_there = log_weight + jnp.minimum(jnp.log(width) - jnp.log(jnp.maximum(cell, 1e-300)), 0.0)

    def about(log_p: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The log mean ratio near the median, and how much of the tilted law is there."""
        share = jnp.cumsum(jnp.exp(log_p), axis=-1)
        # (A count, as argmax does not lower in 64 bits inside a 32-bit program.)
        below = jnp.sum((share < 0.5 * share[:, -1:]).astype(jnp.int32), axis=-1, keepdims=True)
        middle = jnp.take_along_axis(atoms.loss, below, axis=-1)
        near = jnp.abs(atoms.loss - middle) <= 0.5 * width
        kept = jnp.where(near, atoms.log_p, -jnp.inf)
        ratio = jsp.logsumexp(kept, axis=-1) - jsp.logsumexp(kept - atoms.loss, axis=-1)
        return ratio, jnp.sum(jnp.where(near, jnp.exp(log_there), 0.0), axis=-1)

    tilted, mass = about(log_weight)
    plain, other = about(atoms.log_p)
    return jnp.where(other > mass, plain, tilted)


def _below_mean(mean: jax.Array, error: ArrayLike) -> jax.Array:
    """What a node is lower by, so that rounding and the error of masses leave the mean above it."""
    return 2.0**-40 * (1.0 + jnp.abs(mean)) + 8.0 * error


def _coarsely(
    log_p: jax.Array, loss: jax.Array, low: jax.Array, spacing: jax.Array, error: ArrayLike = 0.0
) -> jax.Array:
    """Where the law below begins: at the low end of a coarse law, or a mean of what is next to it.

    That of its first two atoms if the first is next to none, or of a bulk that is narrower than a
    cell and has nothing beside it. The law below has no room beside so small a mass
    (`_discretise`), and its lattice then has a node at the mass that counts.
    """
    some = log_p > -jnp.inf
    rank = jnp.cumsum(some.astype(jnp.int32))
    first, second = some & (rank == 1), some & (rank == 2)
    alone = ~jnp.any(second[:-1] & some[1:])
    log_q = log_p - loss

    def total(log_mass: jax.Array, cells: jax.Array) -> jax.Array:
        return log_sum_exp(jnp.where(cells, log_mass, -jnp.inf))

    def mean(cells: jax.Array) -> jax.Array:
        return total(log_p, cells) - total(log_q, cells)

    rare = alone & (total(log_q, first) < total(log_q, second) + _LOG_RARE)

    middle = low
    for _ in range(_WIDENINGS):
        middle = mean(some & (loss < middle + 0.5 * spacing))
    bulk = some & (loss < middle + 0.5 * spacing)
    beside = some & ~bulk & (loss < middle + 2.0 * spacing)
    narrow = jnp.any(bulk & second) & (total(log_q, beside) < total(log_q, bulk) + _LOG_RARE)
    begins = jnp.where(narrow, middle, mean(first | second))
    begins -= _below_mean(begins, error)
    return jnp.where((rare | narrow) & jnp.isfinite(low) & (begins > low), begins, low)


def begins(term: Term, log_p: jax.Array, loss: jax.Array, spacing: jax.Array) -> jax.Array:
    """Where the law below begins, on a lattice of that spacing at least; of one coarse law.

    Not above the mean of all that the first node collapses: what lies in a first cell whose mean is
    below its node is lost. (The coarse law's cells end elsewhere, and may have a larger mean.)
    """
    low = jnp.asarray(term.support[0], jnp.float64)
    start = _coarsely(log_p, loss, low, spacing, term.mass_error)
    if not term.bounded:
        return start
    # (The node moves by less than a hundredth of the spacing.)
    nowhere = jnp.full((1,), -jnp.inf)
    log_q, log_p = (x[0] for x in term.masses(nowhere, start[None] + 0.49 * spacing))
    some = (log_q > -jnp.inf) & (log_p > -jnp.inf) & (start > low)
    mean = jnp.where(some, log_p, 0.0) - jnp.where(some, log_q, 0.0)
    mean -= _below_mean(mean, term.mass_error)
    return lax.stop_gradient(jnp.where(some, jnp.clip(mean, low, start), start))
