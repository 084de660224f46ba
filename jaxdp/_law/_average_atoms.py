"""The coarse law of a ratio, its tilts and its tails: what plans of averages are made from.

Nothing here needs to be right (see `_average_plan`).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import log_positive
from jaxdp._law._average_grid import support
from jaxdp._law._terms import Sign, Term, either

# Losses of the coarse law: 0 and +- 10^-9 ... 600; neighbours 10%, 0.1 or 3% apart.
_SIDE = np.concatenate(
    [np.geomspace(1e-9, 1.0, 218), np.arange(1.1, 60.0, 0.1), np.geomspace(60.0, 600.0, 78)]
)
_LOSSES = np.concatenate([-_SIDE[::-1], [0.0], _SIDE])
_NARROW = 60.0  # losses up to which cells are
# Of the ends of what there is: sums may be next to them, and cells of their own have atoms there.
_TOWARDS = np.geomspace(0.1, 1e-9, 25)
_BISECTIONS = 36
# A tilt has one or the other at least: of information, in units of 1 / deviation.
_LEAST_INFORMATION, _LEAST_TILT = 0.1, 0.5
DEEPEST = -660.0  # log delta: queries farther out are planned for there
_TILT_RANGE = (1e-14, 1e14)
_STEEPEST = 300.0  # log of a tilt ("add")
_TOP_ALONE = 0.1
FILLED = 0.35  # of the losses, by atoms that are far apart
_ABOVE_ZERO = 1.0  # of queries' log delta (add), above what all ratios of 0 make up


class Atoms(NamedTuple):
    log_q: jax.Array
    x: jax.Array


class Typical(NamedTuple):
    """Averages in blocks that are composed: typical ones, and the least that count.

    `log_delta` is the log Q of these and less, over the number of blocks, and `no_loss` what does
    not count whatever its ratio is.
    """

    ratio: jax.Array
    least: jax.Array
    log_delta: jax.Array
    no_loss: jax.Array


class Coarse(NamedTuple):
    """The coarse law, increasing in x, the P-mass of each of its atoms and above, its cells' ends.

    (The first atom, all ratios of 0, ends there.) And the Q-mass at the ends of the support.
    """

    atoms: Atoms
    above: jax.Array
    ends: jax.Array
    at_ends: jax.Array

    @property
    def beyond(self) -> tuple[jax.Array, jax.Array]:
        """P- and Q-mass above the ends of the cells."""
        q = lax.cumsum(jnp.exp(self.atoms.log_q), reverse=True)
        p, q = (jnp.concatenate([v[1:], jnp.zeros((1,))]) for v in (self.above, q))
        return p, q

    @property
    def filled(self) -> jax.Array:
        """The part of the losses, from the first there is to the last, of cells with mass."""
        ends = log_positive(self.ends[1:-1])
        some = (self.atoms.log_q[2:-1] > -jnp.inf) & (jnp.abs(ends[1:]) <= _NARROW)
        low = jnp.min(jnp.where(some, ends[:-1], jnp.inf))
        high = jnp.max(jnp.where(some, ends[1:], -jnp.inf))
        width = jnp.sum(jnp.where(some, ends[1:] - ends[:-1], 0.0))
        return width / jnp.maximum(high - low, 1e-300)


def coarse(term: Term) -> Coarse:
    """The coarse law of a term."""
    # Of a law known at compile time the masses would be folded to constants, which takes minutes.
    ends = jnp.stack([jnp.asarray(x, jnp.float64) for x in term.support])
    ends = jnp.clip(lax.stop_gradient(ends), _LOSSES[0], _LOSSES[-1])
    within = ends[:, None] + jnp.abs(ends)[:, None] * np.array([[1.0], [-1.0]]) * _TOWARDS
    edges = jnp.sort(jnp.concatenate([jnp.asarray(_LOSSES), within.reshape(-1)]))
    within = within[:, -1]
    edges = lax.optimization_barrier(edges)
    lo = jnp.concatenate([jnp.array([-jnp.inf]), edges])
    hi = jnp.concatenate([edges, jnp.array([jnp.inf])])
    log_q, log_p = lax.stop_gradient(term.masses(lo, hi))
    some = (log_q > -jnp.inf) & (log_p > -jnp.inf)
    # Empty cells keep a place, so that x increases.
    loss = jnp.where(some, log_p - log_q, jnp.where(jnp.isfinite(lo), lo, hi))
    # Rounding must not put an atom beyond the support, where it would be cut off.
    x = jnp.clip(jnp.exp(jnp.clip(loss, -345.0, 345.0)), *lax.stop_gradient(support(term)))
    p = jnp.where(some, jnp.exp(log_p), 0.0)
    revealed = lax.stop_gradient(jnp.asarray(term.log_tau_q, jnp.float64))
    atoms = Atoms(
        jnp.concatenate([revealed[None], jnp.where(some, log_q, -jnp.inf)]),
        jnp.concatenate([jnp.zeros((1,)), x]),
    )
    above = lax.cumsum(p, reverse=True)
    above = jnp.concatenate([above[:1], above])
    at_ends = jnp.sum(jnp.where((hi <= within[0]) | (lo >= within[1]), jnp.exp(log_q), 0.0))
    return Coarse(atoms, above, jnp.exp(jnp.concatenate([lo[:1], hi])), at_ends)


def log_sum(exponent: jax.Array) -> jax.Array:
    top = jnp.max(exponent, axis=-1, keepdims=True)
    return top[..., 0] + jnp.log(jnp.sum(jnp.exp(exponent - top), axis=-1))


class Moments(NamedTuple):
    log_norm: jax.Array
    mean: jax.Array
    deviation: jax.Array


def moments(atoms: Atoms, theta: jax.Array, s: Sign) -> Moments:
    """log E e^{theta s (x - mean)}, and mean and deviation of the tilted x."""
    # (About the least atom: a 1 would leave no digits of ratios of 1e-12, tilted by 1e12.)
    centre = jnp.min(jnp.where(atoms.log_q > -jnp.inf, atoms.x, jnp.inf))
    exponent = atoms.log_q + s * theta * (atoms.x - centre)
    top = jnp.max(exponent)
    weight = jnp.exp(exponent - top)
    whole = jnp.sum(weight)
    mean = jnp.sum(weight * atoms.x) / whole
    variance = jnp.sum(weight * (atoms.x - mean) ** 2) / whole
    log_norm = top + jnp.log(whole) - s * theta * (mean - centre)
    return Moments(log_norm, mean, jnp.sqrt(variance))


def _log_part(theta: jax.Array, deviation: jax.Array) -> jax.Array:
    """log E[e^{-theta z} z_+] for z ~ N(0, deviation^2), to some 20%."""
    v = theta * deviation
    return jnp.log(deviation) - jnp.log(2.5066) - jnp.log1p(v * (1.2533 + v))


def log_delta_at(m: Moments, theta: jax.Array, steps: jax.Array, s: Sign) -> jax.Array:
    """log delta where the tilted mean is, by the normal law; 1 - S/c (add) is 1 at most."""
    exponent = steps * m.log_norm
    scale = steps * either(s > 0, 1.0, jnp.maximum(m.mean, 1e-300))
    part = _log_part(theta, jnp.sqrt(steps) * m.deviation) - jnp.log(scale)
    return exponent + either(s > 0, part, jnp.minimum(part, 0.0))


def guess(atoms: Atoms, steps: jax.Array, total: jax.Array) -> jax.Array:
    """A rough log delta of the remove direction at S = total: a normal tail, or one large X."""
    gap = total - steps
    one = jnp.sum(jnp.exp(atoms.log_q) * jnp.maximum(atoms.x - jnp.maximum(gap, 0.0) - 1.0, 0.0))
    near = atoms.x <= 1.0 + jnp.maximum(gap, 1.0)
    variance = jnp.sum(jnp.where(near, jnp.exp(atoms.log_q) * (atoms.x - 1.0) ** 2, 0.0))
    deviation = jnp.sqrt(steps * variance) + 1e-300
    z = jnp.maximum(gap, 0.0) / deviation
    normal = jnp.log(deviation / steps) - 0.5 * z * z - jnp.log1p(z * z)
    return jnp.maximum(jnp.log(jnp.maximum(one, 1e-300)), normal)


def within_reach(atoms: Atoms, steps: jax.Array, log_delta: jax.Array, s: Sign) -> jax.Array:
    """Of "add" no less than where all ratios are 0: below, there is no tilt to look for."""
    least = steps * jnp.maximum(atoms.log_q[0], -1e300) + _ABOVE_ZERO
    return either(s > 0, log_delta, jnp.maximum(log_delta, least))


def saddle(
    atoms: Atoms, steps: jax.Array, y: jax.Array | None, log_delta: jax.Array | None, s: Sign
) -> jax.Array:
    """The tilt whose mean is y (within the range of doubles), or whose delta is the given one.

    But it is no less than one of some information t (theta K' - K): about the mean the saddle point
    has none, and what is left out of a law that is hardly tilted costs too much.
    """
    untilted = moments(atoms, jnp.float64(0.0), s)
    start = jnp.sqrt(steps) * jnp.maximum(untilted.deviation, 1e-15)

    def halve(_, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = 0.5 * (bracket[0] + bracket[1])
        theta = jnp.exp(middle)
        m = moments(atoms, theta, s)
        if y is None:
            short = log_delta_at(m, theta, steps, s) > log_delta
        else:
            short = (s * steps * m.mean < y) & (log_delta_at(m, theta, steps, s) > DEEPEST)
        gained = untilted.log_norm - m.log_norm
        short |= (steps * gained < _LEAST_INFORMATION) & (theta * start < _LEAST_TILT)
        return jnp.where(short, middle, bracket[0]), jnp.where(short, bracket[1], middle)

    low, high = (np.log(end) - jnp.log(start) for end in _TILT_RANGE)
    # (Averages of few ratios may be far below the deviation of one.)
    bracket = low, either(s > 0, high, jnp.maximum(high, _STEEPEST))
    bracket = lax.fori_loop(0, _BISECTIONS, halve, bracket)
    return jnp.exp(0.5 * (bracket[0] + bracket[1]))


def shortfall(atoms: Atoms, steps: jax.Array) -> jax.Array:
    """How far sums of ratios capped at x may fall short of their mean, for the atoms' x.

    By what the cap costs and some deviations.
    """
    q = jnp.exp(atoms.log_q)
    below = jnp.cumsum(jnp.stack([q, q * atoms.x, q * (atoms.x - 1.0) ** 2]), axis=-1)
    mass, first, square = below
    beyond, moment = mass[-1] - mass, first[-1] - first
    lost = jnp.maximum(moment - beyond * atoms.x, 0.0)
    spread = jnp.sqrt(steps * (square + beyond * (atoms.x - 1.0) ** 2))
    return steps * lost + 6.0 * spread


def far_enough(atoms: Atoms, short: jax.Array, gap: jax.Array) -> jax.Array:
    """A ratio that surely brings the sum beyond the query, `gap` past its mean."""
    needed = 1.0 + 1.2 * gap + short
    enough = atoms.x >= needed
    least = jnp.min(jnp.where(enough, atoms.x, jnp.inf))
    # (not the atom itself, which may be a tenth larger)
    at_least = jnp.max(jnp.where(enough & (atoms.x <= least), needed, 0.0))
    return jnp.where(least < jnp.inf, at_least, jnp.inf)


def far_enough_alone(
    atoms: Atoms, steps: jax.Array, ratio: Callable[[float], jax.Array], others: jax.Array
) -> jax.Array:
    """A ratio that alone makes up a delta, whatever the others are within some deviations.

    Where one ratio decides, larger ones would take the lattice, and the tilt, from it.
    """
    decisive = ratio(1.0)
    variance = jnp.sum(jnp.exp(atoms.log_q) * (jnp.minimum(atoms.x, decisive) - 1.0) ** 2)
    spread = jnp.exp(4.0 * jnp.sqrt(others * jnp.log1p(variance / steps)))
    enough = 1.0 + 1.7 * decisive * spread + 12.0 * jnp.sqrt(steps * variance)
    return jnp.maximum(ratio(_TOP_ALONE), enough)
