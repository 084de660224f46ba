"""Where the nodes of a one-step law lie.

A one-step law is far wider than its bulk (a sampled Gaussian of standard deviation 2e-4 has losses
up to 3), and only the bulk needs the lattice spacing h. The nodes are therefore a ladder: the
integers out to `density`, then a spacing that grows in proportion to the distance from the centre,
floor(distance / density). All positions are static integers, so that every node lies on the
lattice that composition needs. A spacing proportional to the distance spreads each cell by
at most (distance / density)^2 / 4, hence the variance of the whole law by less than a fraction
1 / (4 density^2), 1 / (6 density^2) where the law is smooth: second order, at any scale.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp._law import _allowances, _places
from jaxdp._law._terms import Term

_NODES_PER_DENSITY = 64
_REACH = 2**28
_FACTORS = (64.0, 2.0), (768.0, 12.0)  # from so many times on, a multiple of that
_STEPS_SHARE, _COARSEST = 8.0, 16  # of the density for many steps


@functools.cache
def ladder(density: int, reach: int) -> np.ndarray:
    """Increasing integer positions, as float64, symmetric about 0, out to at least `reach`."""
    positions = [0]
    while positions[-1] < reach:
        positions.append(positions[-1] + max(1, positions[-1] // density))
    upper = np.asarray(positions, np.float64)
    return np.concatenate([-upper[:0:-1], upper])


def density(size: int) -> int:
    """Of the ladder that goes with a transform of so many points."""
    return size // _NODES_PER_DENSITY


def rungs(size: int) -> np.ndarray:
    """That ladder."""
    return ladder(density(size), _REACH)


def family_rungs(size: int, number: int) -> np.ndarray:
    """The same for one of so many steps on the lattice of their composition.

    A step is narrower than the window, and by the square root of the number: its bulk lies within
    few places, where the ladder has them all. So it may grow faster, and spread the whole law by no
    more than the lattice does, which has some size / 20 points per deviation of the composition.
    """
    finest = density(size)
    chosen = max(_COARSEST, min(finest, int(size / (_STEPS_SHARE * number**0.5))))
    return ladder(chosen, 2 * size)


def even_rungs(size: int) -> np.ndarray:
    """As many positions one after the other: better where a single step is not far wider."""
    reach = rungs(size).size // 2
    return np.arange(-reach, reach + 1, dtype=np.float64)


class Lattice(NamedTuple):
    """The points centre + spacing * integer; the two numbers carry no gradient."""

    centre: jax.Array
    spacing: jax.Array


def dividing(
    width: jax.Array, spacing: jax.Array, least: float = 1.0, shares: bool = True
) -> jax.Array:
    """The spacing, made so much larger that it divides the width, at least so many times.

    Many times are rounded, down by 1.5% at most: nearby widths share their number. With `shares`
    to multiples of 2 or 12, too, by as much: atoms between the ends often are halfway, or
    at other such shares.
    """
    times = _places.floor(width / spacing)
    rounded = jnp.exp(jnp.floor(64.0 * jnp.log(jnp.maximum(times, 1.0))) / 64.0)
    times = jnp.where(times > 64.0, jnp.floor(rounded), times)
    for least_times, factor in _FACTORS if shares else ():
        times = jnp.where(times >= least_times, factor * jnp.floor(times / factor), times)
    return jnp.where(times >= least, width / jnp.maximum(times, 1.0), spacing)


def between(support: tuple[jax.Array, jax.Array]) -> jax.Array:
    """The width of the support, 0 if it is infinite."""
    low, high = support
    both = jnp.isfinite(low) & jnp.isfinite(high)
    return jnp.where(both, high, 0.0) - jnp.where(both, low, 0.0)


def nudge(support: tuple[jax.Array, jax.Array], centre: jax.Array) -> jax.Array:
    """How far a lattice is moved so that rounding cannot misplace the atoms at finite ends."""
    low, high = support
    ends = jnp.where(jnp.isfinite(low), jnp.abs(low), 0.0)
    ends = ends + jnp.where(jnp.isfinite(high), jnp.abs(high), 0.0)
    return _allowances.nudge(ends, jnp.where(ends > 0.0, centre, 0.0))


def align(lattice: Lattice, support: tuple[jax.Array, jax.Array], side: int) -> Lattice:
    """Move and stretch the lattice so that finite ends of the support lie on it.

    The ends are where a bounded law keeps its atoms; an atom on a node is represented exactly.
    The lattice then moves by `nudge` to the safe side, up (side = +1) or down (-1), so
    that rounding cannot put an atom on the wrong side of its node. Below, a support within half a
    cell has its low end there: what is before the first node may be lost.
    """
    low, high = support
    centre, spacing = lattice
    has_low, has_high = jnp.isfinite(low), jnp.isfinite(high)
    if side < 0:
        has_high &= ~(has_low & (between(support) <= 0.5 * spacing))
    spacing = dividing(between(support), spacing)
    anchor = jnp.where(has_high, high, jnp.where(has_low, low, centre))
    centre = anchor + _places.nearest((centre - anchor) / spacing) * spacing
    return Lattice(centre + side * nudge(support, centre), spacing)


def occupied_positions(
    lattice: Lattice,
    support: tuple[jax.Array, jax.Array],
    kept: tuple[jax.Array, jax.Array],
    positions: jax.Array,
) -> jax.Array:
    """The ladder's positions, those beyond the range that is kept pulled back to its ends.

    Cells that this leaves without width hold no mass. An end of the support that sits on the
    lattice but for `nudge` and rounding counts as on it, and is kept where all but it is.
    """
    centre, spacing = lattice
    near = nudge(support, centre)
    slack = 1e-6 + 2.0 * near / spacing
    kept_low = jnp.where(kept[0] <= support[0] + 8.0 * near, -jnp.inf, kept[0])
    kept_high = jnp.where(kept[1] >= support[1] - 8.0 * near, jnp.inf, kept[1])
    low = jnp.maximum(
        jnp.floor((support[0] - centre) / spacing + slack),
        _places.floor((kept_low - centre) / spacing),
    )
    high = jnp.minimum(
        jnp.ceil((support[1] - centre) / spacing - slack),
        _places.ceil((kept_high - centre) / spacing),
    )
    return jnp.clip(positions, low, jnp.maximum(high, low + 1.0))


def between_nodes(nodes: jax.Array, width: jax.Array, term: Term, centre: jax.Array) -> jax.Array:
    """Where what is collapsed to one node ends and what is collapsed to the next begins.

    Halfway. But next to an atom at the low end of the support, which keeps its node, right after
    it: what lies beside the atom would else move its mean, and the whole of it has to move back.
    """
    middle = nodes[:-1] + 0.5 * width
    if not term.bounded:
        return middle
    low, high = (jnp.asarray(end, jnp.float64) for end in term.support)
    near = 4.0 * nudge((low, high), centre)
    first = jnp.isfinite(low) & (jnp.abs(nodes[:-1] - low) <= near) & (width > 4.0 * near)
    return jnp.where(first, nodes[:-1] + near, middle)
