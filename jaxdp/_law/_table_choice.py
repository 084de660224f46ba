"""Where the table of a composition looks: its list of losses, and its tilts.

Choices only: nothing here needs to be right, a bad one makes the bounds wide.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp._law import _saddle
from jaxdp._law._begins import anchors
from jaxdp._law._grid import between, dividing
from jaxdp._law._step import finite_ends
from jaxdp._law._terms import Term, Terms
from jaxdp._rounding import is_least

TILTS = 12  # that are transformed: some three deviations apart
_FINER = 32  # that are looked at first
_REACH = 2.0 ** np.arange(-6.0, 13.0)  # of tilts that bound masses, per deviation
_PROOFS = np.concatenate([-1.0 - _REACH[::-1], [-1.0, -0.5, 0.0], _REACH])
_DIVISORS = 128  # of a support's width, of which the lattice takes that which suits the others
_LOG_LOW = -60.0  # of the Q-mass that may be left below
_PAST, _ROOM = 1.25, 25.0  # times as far as masses count tilts go; a log of next to nothing


class Choice(NamedTuple):
    """The lattice's spacing, the list's first loss, tilts; every step's centre, node and range.

    A node (of the law below) is where the mean ratio of the losses near the median lies: those
    closer together than the lattice's points keep their mean then, step by step.
    """

    spacing: jax.Array
    low: jax.Array
    tilts: jax.Array
    centre: jax.Array
    node: jax.Array
    range: tuple[jax.Array, jax.Array]


def _shared(terms: Terms, spacing: jax.Array) -> jax.Array:
    """A spacing that divides the widths of all bounded supports: the widest, others nearly.

    An atom at an end that is not on the lattice costs the law below in proportion to how far off.
    """
    bounded = [term for term in terms if isinstance(term, Term) and term.bounded]
    if not bounded:
        return spacing
    widths = jnp.stack([between(finite_ends(term)) for term in bounded])
    spacing = dividing(jnp.max(widths), spacing, least=4.0, shares=False)
    most = jnp.round(jnp.max(widths) / spacing)
    times = jnp.maximum(most - jnp.arange(_DIVISORS), 1.0)
    place = widths[:, None] * times / jnp.maximum(jnp.max(widths), 1e-300)
    off = jnp.max(jnp.abs(place - jnp.round(place)), axis=0)
    off = jnp.where(times >= 0.9 * most, off, jnp.inf)
    best = jnp.max(jnp.where(is_least(off), times, 0.0))
    return jnp.where(best >= 4.0, spacing * most / jnp.maximum(best, 1.0), spacing)


def _evenly(
    tilts: jax.Array, mean: jax.Array, ends: tuple[jax.Array, jax.Array], number: int
) -> jax.Array:
    """Tilts with means between the ends, as many deviations apart from each other.

    An interval of tilts is sqrt(change of the tilt times change of the mean) deviations long.
    (Where one of many steps may lose much, means jump at some tilt, and what is between is known by
    those up to there: equal distances of means would leave them out.)
    """
    inside = jnp.clip(mean, *ends)
    steps = jnp.sqrt(jnp.maximum((tilts[1:] - tilts[:-1]) * (inside[1:] - inside[:-1]), 0.0))
    length = jnp.append(0.0, jnp.cumsum(steps))
    return jnp.interp(length[-1] * (jnp.arange(number) + 0.5) / number, length, tilts)


def _outer(
    tilts: jax.Array,
    log_norm: jax.Array,
    mean: jax.Array,
    log_floor: jax.Array,
    far: tuple[jax.Array, jax.Array],
) -> jax.Array:
    """The least and the largest tilt at whose means there is Q-mass, or P-mass, that counts.

    Not those at whose means the list ends: next to the end of a support they are out of all
    proportion to what is there, and leave too few for all the rest. Nor those at which what is
    beyond the ends of the transform, `far`, cannot be proved to be next to nothing.
    """
    log_p = log_norm - tilts * mean
    down, up = tilts <= -1.0, tilts >= 0.0
    least, most = (_PAST * x for x in (_LOG_LOW, log_floor))

    def within(side: jax.Array, at: jax.Array) -> jax.Array:
        exponent = jnp.where(side, log_norm - tilts * at, jnp.inf)
        return exponent >= jnp.min(exponent) + _ROOM

    low = down & (log_p - mean >= least) & within(down, far[0])
    high = up & (log_p >= most) & within(up, far[1])
    return jnp.stack([jnp.min(jnp.where(low, tilts, -1.0)), jnp.max(jnp.where(high, tilts, 0.0))])


def choose(terms: Terms, log_floor: jax.Array, size: int) -> Choice:
    """For a list of so many losses, of which P-mass e^log_floor may be left out."""
    atoms = _saddle.coarse_atoms(terms)
    count = atoms.count
    whole = _saddle.moments(atoms, jnp.float64(0.0))
    # (What is next to one atom is not tilted by more than the digits of its loss can bear.)
    least = jnp.maximum(1e-6 * jnp.abs(jnp.sum(count * whole.mean)), 1e-12)
    deviation = jnp.maximum(jnp.sqrt(jnp.sum(count * whole.variance)), least)
    scale = jnp.where(jnp.abs(_PROOFS + 0.5) <= 0.5, 1.0, 1.0 / deviation)
    proofs = jnp.where(_PROOFS < -1.0, -1.0 + (_PROOFS + 1.0) * scale, _PROOFS * scale)
    at = jax.vmap(lambda t: _saddle.moments(atoms, t))(proofs)

    def ends(log_mgf: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Where Chernoff leaves little beyond: P-mass above, Q-mass below; over the last axis."""
        up, down = proofs > 0.0, proofs < -1.0
        high = (log_mgf - log_floor) / jnp.where(up, proofs, 1.0)
        low = (log_mgf - _LOG_LOW) / jnp.where(down, proofs + 1.0, 1.0)
        return (
            jnp.max(jnp.where(down, low, -jnp.inf), axis=-1),
            jnp.min(jnp.where(up, high, jnp.inf), axis=-1),
        )

    log_mgf = jnp.sum(count * at.log_norm, axis=-1)
    low, high = ends(log_mgf)
    width = jnp.maximum(high - low, 1e-9 * (1.0 + jnp.abs(high)))
    spacing = width / (size - 8)
    spacing = _shared(terms, spacing)
    mean = jnp.sum(count * at.mean, axis=-1)
    half = 0.5 * size * spacing
    last = low + 2.0 * half
    outer = _outer(proofs, log_mgf, mean, log_floor, (low - half, last + half))
    aims = tuple(jnp.interp(outer, proofs, mean))
    inner = _evenly(proofs, mean, aims, _FINER)
    for number in (_FINER, TILTS - 2):
        mean = jnp.sum(count * jax.vmap(lambda t: _saddle.moments(atoms, t).mean)(inner), axis=-1)
        inner = _evenly(inner, mean, aims, number)
    inner = jnp.concatenate([outer[:1], inner, outer[1:]])

    def best(at: jax.Array, above: bool) -> jax.Array:
        proves = proofs > 0.0 if above else proofs < -1.0
        exponent = jnp.where(proves, log_mgf - proofs * at, jnp.inf)
        return jnp.max(jnp.where(is_least(exponent), proofs, -jnp.inf))

    # Those that prove the most beyond the list, and beyond the ends of the transform.
    proving = [best(low, False), best(low - half, False), best(last, True), best(last + half, True)]
    tilts = jnp.concatenate([inner, jnp.stack(proving)])
    own = ends(at.log_norm.T)
    nodes = anchors(atoms, atoms.log_p, spacing)
    return Choice(spacing, low, tilts, whole.mean, nodes, (own[0], jnp.maximum(*own)))
