"""The law below, cell by cell: two atoms in each, and where it begins (see `_discretise`)."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

_PART = 0.5  # of an atom, given to lift another
_NEAR = 0.02  # of a cell, an atom from its node


class HalfCells(NamedTuple):
    """Q-masses of two atoms in each cell, and e^u - 1 for the ratio of each (see the module)."""

    mass_left: jax.Array
    mass_right: jax.Array
    rise_left: jax.Array
    rise_right: jax.Array


def beside_nodes(mass: jax.Array, offset: jax.Array, width: jax.Array) -> HalfCells:
    """The atoms of the cells between the nodes: one for each node, offset from it to either side.

    Args:
      mass: Q-mass about each of N nodes.
      offset: of the loss of its mean ratio from the node, within half a cell.
      width: of the N - 1 cells.
    """
    right = offset >= 0.0
    rise = jnp.where(right, offset, 0.0)[:-1], width + jnp.where(right, 0.0, offset)[1:]
    return HalfCells(
        jnp.where(right, mass, 0.0)[:-1],
        jnp.where(right, 0.0, mass)[1:],
        jnp.expm1(rise[0]),
        jnp.expm1(rise[1]),
    )


def sags(halves: HalfCells, span: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The largest sag of each cell, per ratio of its left node, and what goes to that node."""
    m_a, m_b, x_a, x_b = halves
    cross = x_a * (span - x_b) / span
    sag_a = m_a * x_a * (span - x_a) / span + m_b * cross
    sag_b = m_b * x_b * (span - x_b) / span + m_a * cross
    return jnp.maximum(sag_a, sag_b), (m_a * (span - x_a) + m_b * (span - x_b)) / span


def count(size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.int32)


def least(some: jax.Array) -> jax.Array:
    """The first index of those, their number if there is none."""
    size = some.shape[0]
    return jnp.min(jnp.where(some, count(size), jnp.int32(size)))


class Front(NamedTuple):
    """The first occupied cell and the two after it, 0 beyond the end; every array (3,)."""

    halves: HalfCells
    span: jax.Array
    ratio: jax.Array

    def cell(self, i: int) -> HalfCells:
        """The halves of one of them."""
        return HalfCells(*(x[i] for x in self.halves))


def front(halves: HalfCells, span: jax.Array, ratio: jax.Array) -> tuple[jax.Array, Front]:
    """The first occupied cell: where it is, and what it and those after it hold."""
    first = least((halves.mass_left > 0.0) | (halves.mass_right > 0.0))
    rows = jnp.stack([*halves, span, ratio[:-1]])
    found = jnp.take(rows, first + count(3), axis=1, mode="fill", fill_value=0.0)
    return first, Front(HalfCells(*found[:4]), found[4], found[5])


def lifted_first(
    halves: HalfCells, span: jax.Array, ratio: jax.Array, allowance: float
) -> HalfCells:
    """A lone atom in the first cell, brought to the node above it by a part of the next atom.

    The two are collapsed to their mean (Jensen: below), which is that node. A narrow bulk just
    below a node would else have a share at the node below, and no room for E beside it.
    """
    first, known = front(halves, span, ratio)
    here, then = known.cell(0), known.cell(1)
    lack = here.mass_right * (known.span[0] - here.rise_right) * known.ratio[0]
    gain = then.mass_right * then.rise_right * known.ratio[1]
    share = (1.0 + allowance) * lack / jnp.where(gain > 0.0, gain, 1.0)
    some = (here.mass_left <= 0.0) & (then.mass_left <= 0.0) & (gain > 0.0) & (share <= _PART)
    taken = jnp.where(some, share, 0.0) * then.mass_right
    cell = count(halves.mass_left.shape[0])
    lifted, on = some & (cell == first), some & (cell == first + 1)
    m_a, m_b, x_a, x_b = halves
    return HalfCells(
        jnp.where(on, here.mass_right + taken, m_a),
        jnp.where(lifted, 0.0, jnp.where(on, m_b - taken, m_b)),
        jnp.where(on, 0.0, x_a),
        x_b,
    )


def lead_of(known: Front) -> tuple[jax.Array, jax.Array]:
    """Whether the first cell has an atom with next to nothing beside it: it moves to its node.

    (Where there is something, and the way to the node is long, E comes down from its put over a few
    cells.) Also what then goes to that node of the rest of the cell.
    """
    here, then, third = (known.cell(i) for i in range(3))
    wide = known.span[0]
    sag, to_left = sags(known.halves, jnp.where(known.span > 0.0, known.span, 1.0))
    lead = (here.mass_left > 0.0) & (to_left[0] * wide > 4.0 * jnp.maximum(sag[0], sag[1]))
    beside = here.mass_right + then.mass_left + then.mass_right
    beside += third.mass_left + third.mass_right
    lead &= (here.rise_left < _NEAR * wide) | (here.mass_left > 2.0 * beside)
    rest = here.mass_right * (wide - here.rise_right) / jnp.where(wide > 0.0, wide, 1.0)
    return lead, jnp.where(lead, rest, 0.0)


def heavy_first(
    halves: HalfCells, known: Front, first: jax.Array, lead_put: jax.Array, top: jax.Array
) -> jax.Array:
    """Whether less mass follows the first cell than the put at its right node takes, per width."""
    wide = known.span[0]
    to_left = sags(known.cell(0), jnp.where(wide > 0.0, wide, 1.0))[1]
    mass = halves.mass_left + halves.mass_right
    follows = jnp.sum(jnp.where(count(mass.shape[0]) > first, mass, 0.0)) + top
    return jnp.minimum(to_left, lead_put) > follows
