"""One step on a lattice."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp._law import _discretise, _places
from jaxdp._law._grid import Lattice, occupied_positions
from jaxdp._law._terms import Term

_CELLS = 512  # beyond a cut


class OneStep(NamedTuple):
    """The tilted one-step law: weights of sum 1 at centre + spacing * position.

    `end` is the position (of one step) that coarser lattices of many steps hold as a node: that of
    the upper end of the support, or if that is infinite 0 or one near the bulk. `beyond` are losses
    and their log P-masses beyond a cut that the law below does not reach (none above).
    """

    weights: jax.Array
    positions: jax.Array
    lattice: Lattice
    log_norm: jax.Array
    top: jax.Array
    end: jax.Array
    beyond: tuple[ArrayLike, ArrayLike] = (np.zeros(0), np.zeros(0))


def finite_ends(term: Term) -> tuple[jax.Array, jax.Array]:
    """The support of a term as numbers."""
    low, high = (jnp.asarray(end, jnp.float64) for end in term.support)
    return low, high


def _apart(
    term: Term, cut: jax.Array, highest: jax.Array
) -> tuple[Term, tuple[jax.Array, jax.Array]]:
    """The term up to the cut, and what is beyond: losses and log P-masses, rounded down.

    A cell that has its mass at its mean is below (Jensen).
    """
    some = cut < jnp.inf
    low = jnp.where(some, cut, 0.0)
    high = jnp.where(some, jnp.maximum(highest, cut), 0.0)
    edges = low + (high - low) * np.linspace(0.0, 1.0, _CELLS + 1)
    found = _discretise.cells(term, edges[:-1], edges[1:], edges[:-1], -1)

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return term.masses(jnp.minimum(lo, cut), jnp.minimum(hi, cut))

    return term._replace(masses=masses), (edges[:-1] + found.offset, found.log_p)


def discretise(
    term: Term,
    lattice: Lattice,
    ends: tuple[jax.Array, jax.Array],
    kept: tuple[jax.Array, jax.Array],
    theta: jax.Array,
    positions: jax.Array | np.ndarray,
    side: int,
    far: tuple[jax.Array, jax.Array] | None = None,
) -> OneStep:
    """The law above (side = +1) or below (-1) at these positions of the lattice.

    `ends` is the support, of which what is lower may be collapsed to its low end on the side below.
    There `far`, choices, are a cut beyond which all is a measure of its own, cells with their mean
    losses; and up to where what is above the range counts at its end.
    """
    positions = occupied_positions(lattice, ends, kept, jnp.asarray(positions))
    nodes = lattice.centre + positions * lattice.spacing
    beyond: tuple[ArrayLike, ArrayLike] = np.zeros(0), np.zeros(0)
    if side > 0:
        weights, log_norm, top = _discretise.upper(term, nodes, theta)
    else:
        reach: ArrayLike = -np.inf
        if far is not None:
            cut, reach = far
            term, beyond = _apart(term, cut, kept[1])
        weights, log_norm = _discretise.lower(term, nodes, theta, lattice.centre, reach)
        top = jnp.float64(-jnp.inf)
    high = ends[1]
    some = jnp.isfinite(high)
    end = jnp.where(some, high, lattice.centre) - lattice.centre
    end = _places.nearest(end / lattice.spacing)
    return OneStep(weights, positions, lattice, log_norm, top, end, beyond)
