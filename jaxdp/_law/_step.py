"""One step on a lattice."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdp._law import _discretise
from jaxdp._law._grid import Lattice, ladder, occupied_positions
from jaxdp._law._terms import Term

_NODES_PER_DENSITY = 64
_REACH = 2**28


class OneStep(NamedTuple):
    """The tilted one-step law: weights of sum 1 at centre + spacing * position."""

    weights: jax.Array
    positions: jax.Array
    lattice: Lattice
    log_norm: jax.Array
    top: jax.Array


def finite_ends(term: Term) -> tuple[jax.Array, jax.Array]:
    """The support of a term as numbers."""
    low, high = (jnp.asarray(end, jnp.float64) for end in term.support)
    return low, high


def discretise(
    term: Term,
    lattice: Lattice,
    kept: tuple[jax.Array, jax.Array],
    theta: jax.Array,
    size: int,
    side: int,
) -> OneStep:
    """The law above (side = +1) or below (-1) on a ladder about the lattice's centre."""
    positions = occupied_positions(
        lattice, finite_ends(term), kept, ladder(size // _NODES_PER_DENSITY, _REACH)
    )
    nodes = lattice.centre + positions * lattice.spacing
    if side > 0:
        weights, log_norm, top = _discretise.upper(term, nodes, theta)
    else:
        weights, log_norm = _discretise.lower(term, nodes, theta, lattice.centre)
        top = jnp.float64(-jnp.inf)
    return OneStep(weights, positions, lattice, log_norm, top)
