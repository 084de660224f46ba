"""One step on a lattice."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp._law import _discretise
from jaxdp._law._grid import Lattice, occupied_positions
from jaxdp._law._terms import Term


class OneStep(NamedTuple):
    """The tilted one-step law: weights of sum 1 at centre + spacing * position.

    `end` is the position (of one step) that coarser lattices of many steps hold as a node: that of
    the upper end of the support, or if that is infinite 0 or one near the bulk.
    """

    weights: jax.Array
    positions: jax.Array
    lattice: Lattice
    log_norm: jax.Array
    top: jax.Array
    end: jax.Array


def finite_ends(term: Term) -> tuple[jax.Array, jax.Array]:
    """The support of a term as numbers."""
    low, high = (jnp.asarray(end, jnp.float64) for end in term.support)
    return low, high


def discretise(
    term: Term,
    lattice: Lattice,
    ends: tuple[jax.Array, jax.Array],
    kept: tuple[jax.Array, jax.Array],
    theta: jax.Array,
    positions: jax.Array | np.ndarray,
    side: int,
) -> OneStep:
    """The law above (side = +1) or below (-1) at these positions of the lattice.

    `ends` is the support, of which what is lower may be collapsed to its low end on the side below.
    """
    positions = occupied_positions(lattice, ends, kept, jnp.asarray(positions))
    nodes = lattice.centre + positions * lattice.spacing
    if side > 0:
        weights, log_norm, top = _discretise.upper(term, nodes, theta)
    else:
        weights, log_norm = _discretise.lower(term, nodes, theta, lattice.centre)
        top = jnp.float64(-jnp.inf)
    high = ends[1]
    some = jnp.isfinite(high)
    end = jnp.round((jnp.where(some, high, lattice.centre) - lattice.centre) / lattice.spacing)
    return OneStep(weights, positions, lattice, log_norm, top, end)
