"""The tilt of a plan, and the coarse law at it. Nothing here needs to be right: see `_plan`."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law import _saddle
from jaxdp._law._saddle import Atoms, Moments, log_price, moments
from jaxdp._law._terms import Family, Terms

# How many deviations below the saddle point's the mean is put: that costs the FFT a factor of a few
# and suppresses losses much larger than a deviation, which hardly count for delta, exponentially.
_UNDERTILT = 0.75
# What windows and truncation may cost, relative to delta: that up to so many points, then less in
# proportion; to this share where epsilon, far below a deviation, moves by more of itself.
_TOLERANCE, _POINTS = 1e-6, 16384
_LEAST_SHARE = 0.03
# Where delta is less than e^-_SEEN of what it could be at its tilt (most are above e^_TYPICAL), up
# to so many times as much goes.
_SEEN, _MORE, _TYPICAL = 8.0, 1e3, -5.0
# Where epsilon is so near the largest loss, or its tilt so many inverse deviations, a gentler one
# is tried: at it the law is known farther from epsilon.
_NEAR_END, _STEEP = 0.97, 1e3
_GENTLER = 0.25 ** np.arange(9.0)
_FARTHER = 4.0  # times as far beyond epsilon as all of a mass counts
_PLACED = 1e-11  # of a loss: what masses of it tell
_CELLS = 4.0  # of the lattice
# Where delta is more than it is at 0, a law is read there that is planned for so small an epsilon,
# or so many deviations: laws about losses below 0 may have no scale.
_NEXT_TO_0, _ABOUT_0 = 5e-7, 0.1
_WIDER, _WIDTH = 16.0, 0.1  # deviations of the law at that tilt; of those, in inverse tilts


class TiltedLaw(NamedTuple):
    """The coarse law, cut at both ends, at the tilt theta: its mean and deviation.

    Of each term: the moments m, `log_p` of its atoms under the tilt, `centred` about their mean,
    how far each cell is `reaching`, and from which loss to which the term is kept; `sure` says if
    what is beyond counts at that end, for the law below and here. The law is read about `centre`,
    and up to `margin` below. In units of e^{sum n K - theta centre} delta is e^log_value, of which
    a share `tolerated` may be lost: as a stray mass, e^log_mass.
    """

    atoms: Atoms
    used: jax.Array
    theta: jax.Array
    m: Moments
    mean: jax.Array
    deviation: jax.Array
    centre: jax.Array
    margin: jax.Array
    log_value: jax.Array
    log_mass: jax.Array
    tolerated: float
    log_p: jax.Array
    centred: jax.Array
    reaching: jax.Array
    lowest: jax.Array
    highest: jax.Array
    sure: jax.Array


class _Cut(NamedTuple):
    """Up to the edge beyond which delta has a share: where it is read, and the tilt for that."""

    log_share: jax.Array
    highest: jax.Array
    sure: jax.Array
    log_p: jax.Array
    loss: jax.Array
    centre: jax.Array
    saddle: jax.Array
    log_seen: jax.Array


def coarse_number(x: jax.Array) -> jax.Array:
    """A positive number, to 3%."""
    return jnp.exp(jnp.round(16.0 * jnp.log(x)) / 16.0)


def _gentle(
    kept: Atoms, centre: jax.Array, at: jax.Array, beyond: jax.Array, log_answer: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The tilt for a reading, and how much of the kernel's supremum delta is there."""
    saddle, (law, zero) = _saddle.tilt_for(kept, at)
    log_seen = log_answer - law.exponent - log_price(saddle)
    # A steeper tilt than needed knows next to nothing of losses below.
    tilts = saddle * _GENTLER
    laws = _saddle.each_of(lambda t: _saddle.at_tilt(kept, t, at), tilts, kept.count.size)
    seen = log_answer - laws.exponent - log_price(tilts)
    # (Nor does a law of two far parts see well what is about one of them, if that has a width.)
    wide = laws.deviation > _WIDER * laws.deviation[0]
    seen = jnp.where(wide & (saddle * laws.deviation[0] > _WIDTH), -jnp.inf, seen)
    steep = (centre > _NEAR_END * beyond) | (saddle * zero.deviation > _STEEP)
    least = jnp.min(jnp.where(seen > -_SEEN, tilts, saddle))
    log_seen = jnp.where(steep, jnp.max(seen, where=tilts == least, initial=-jnp.inf), log_seen)
    return jnp.where(steep, least, saddle), log_seen


def _cut_off(
    given: Atoms,
    used: jax.Array,
    single: np.ndarray,
    centre: jax.Array,
    log_answer: jax.Array,
    tolerated: float,
    guessed: bool,
) -> _Cut:
    """Losses so large that P hardly sees them go to infinity.

    More of them where the tail is so heavy that no tilt within it finds what delta is made of,
    which would drown in rounding. And those so far beyond epsilon that all of their mass counts:
    with the rest R of the losses, E e^-R <= 1, so that mass p at l costs p e^{epsilon - l} at most.
    (Only where that makes the law much narrower.) Where epsilon is guessed from delta, losses that
    are heavier than that by themselves are not far beyond it, whatever the guess.
    """
    above = _saddle.above(given)
    some_step = -jnp.expm1(used[:, None] * jnp.log1p(-jnp.minimum(above, 1.0 - 2.0**-53)))
    heavy = (some_step > 1.001 * jnp.exp(log_answer)) & guessed
    edges = given.edges
    starts = jnp.concatenate([edges[:, :1], edges], axis=1)

    def last_of(keep: jax.Array) -> jax.Array:
        return jnp.max(jnp.where(keep[:, :-1], edges, edges[:, :1]), axis=-1)

    def again(_, cut: _Cut) -> _Cut:
        allowed = cut.log_share + log_answer - jnp.log(used)[:, None]
        least = jnp.exp(jnp.maximum(allowed, -700.0))
        keep = above > least
        highest = last_of(keep)
        near = above * jnp.exp(jnp.minimum(centre - starts, 0.0))
        nearest = last_of((near > least) | heavy)
        sure = single & (nearest > centre) & (highest - centre > _FARTHER * (nearest - centre))
        highest = jnp.where(sure, nearest, highest)
        log_p = jnp.where(keep, given.log_p, -jnp.inf)
        # The last cell that is kept may hold much of the tilted law: it counts with its end.
        last = keep[:, :-1] & ~keep[:, 1:] & (above[:, 1:] > 0.0)
        loss = given.loss.at[:, :-1].set(jnp.where(last, edges, given.loss[:, :-1]))
        loss = jnp.where(sure[:, None], jnp.minimum(loss, highest[:, None]), loss)
        # An epsilon beyond all that is kept is read from a law planned within it.
        beyond = jnp.sum(used * highest)
        at = jnp.where(centre < beyond, centre, _NEAR_END * beyond)
        kept = given._replace(log_p=log_p, loss=loss)
        saddle, log_seen = _gentle(kept, centre, at, beyond, log_answer)
        share = np.log(tolerated) + jnp.clip(-log_seen - _SEEN, 0.0, np.log(_MORE))
        log_share = jnp.maximum(share, cut.log_share)
        return _Cut(log_share, highest, sure, log_p, loss, at, saddle, log_seen)

    log_share = jnp.log(tolerated) + 0.0 * log_answer
    highest = edges[:, 0]
    none = _Cut(log_share, highest, ~single, given.log_p, given.loss, centre, centre, centre)
    return lax.fori_loop(0, 2, again, none)


def _lean(atoms: Atoms, cut: _Cut, size: int) -> tuple[jax.Array, Moments, jax.Array]:
    """A tilt below the saddle point's, and the moments and the deviation at it.

    Nothing is narrower than a lattice of that size from the mean to the centre, nor than a coarse
    law tells: of what is next to one atom it knows the place to some digits only.
    """
    count, saddle = atoms.count, cut.saddle
    # (There the deviation says little, and less of a tilt finds still less.)
    least = jnp.clip(0.4 * (_TYPICAL - cut.log_seen), 0.05, 0.8)

    def again(_, state: tuple) -> tuple:
        """The moments at a tilt, and from the deviation the next tilt."""
        theta = state[0]
        m = moments(atoms, theta)
        deviation = jnp.sqrt(jnp.sum(count * m.variance))
        told = 1e-12 + _PLACED * jnp.sum(count * jnp.abs(m.mean))
        cells = _CELLS / size * jnp.abs(jnp.sum(count * m.mean) - cut.centre)
        told = coarse_number(jnp.maximum(told, cells))
        # (All of it at one place: a tilt only moves the units.)
        most = jnp.where(deviation < told, _CELLS / (64.0 * told), jnp.inf)
        deviation = jnp.maximum(coarse_number(deviation), told)
        grain = 0.25 / deviation
        after = grain * jnp.round((saddle - _UNDERTILT / deviation) / grain)
        after = jnp.maximum(after, coarse_number(least * saddle))
        return jnp.minimum(after, most), theta, m, deviation

    none = jnp.zeros_like(count)
    state = saddle, saddle, Moments(none, none, none), saddle
    return lax.fori_loop(0, 3, again, state)[1:]


def _single(terms: Terms) -> np.ndarray:
    """Whether each is a term of its own, not one of a family."""
    each = [np.full(t.number, False) if isinstance(t, Family) else np.full(1, True) for t in terms]
    return np.concatenate(each)


def _tops(terms: Terms) -> jax.Array:
    """Per term, the largest finite loss (not of families: infinity)."""
    tops = [
        jnp.full((t.number,), jnp.inf)
        if isinstance(t, Family)
        else jnp.asarray(t.support[1], jnp.float64)[None]
        for t in terms
    ]
    return jnp.concatenate(tops)


def tilted(
    terms: Terms,
    given: Atoms,
    epsilon: jax.Array | None,
    log_delta: jax.Array | None,
    size: int,
) -> TiltedLaw:
    """The coarse law of the terms at the tilt for epsilon, or for log delta (one of them None)."""
    tolerated = _TOLERANCE * min(_POINTS / size, 1.0)
    count = given.count
    used = jnp.maximum(count, 1.0)  # a term may occur no times: its powers are 1
    edges = given.edges
    centre, log_answer = _saddle.estimate(given, epsilon, log_delta)
    level = jnp.asarray(False)
    if epsilon is None:
        level = ~(centre > 0.0)
        whole = jnp.sqrt(jnp.sum(count * moments(given, jnp.float64(0.0)).variance))
        centre = jnp.where(level, jnp.minimum(_NEXT_TO_0, _ABOUT_0 * whole), centre)
    cut = _cut_off(given, used, _single(terms), centre, log_answer, tolerated, epsilon is None)
    centre = cut.centre
    atoms = given._replace(log_p=cut.log_p, loss=cut.loss)
    theta, m, deviation = _lean(atoms, cut, size)
    mean = jnp.sum(count * m.mean)
    # How far below the centre epsilon may be read: e^{-theta y} changes by at most a factor 2.
    margin = jnp.minimum(jnp.log(2.0) / theta, 2.0 * deviation)
    if epsilon is None:  # no estimate is to be above what Chernoff knows at this tilt
        most = jnp.sum(count * m.log_norm) + log_price(theta) - log_answer
        centre = jnp.where(level, centre, jnp.minimum(centre, most / theta))
        centre = 0.25 * margin * jnp.floor(4.0 * centre / margin)
    # (What is looked for is at most 1; an estimate of it need not be.)
    log_value = jnp.minimum(log_answer - jnp.sum(count * m.log_norm) + theta * centre, 0.0)
    # A stray mass costs at most sup g, see `_compose`.
    tolerance = tolerated * jnp.clip(10.0 * centre / deviation, _LEAST_SHARE, 1.0)
    log_mass = jnp.log(tolerance) + log_value - log_price(theta)
    log_p = atoms.log_p + theta * atoms.loss - m.log_norm[:, None]
    centred = atoms.loss - m.mean[:, None]
    # Losses so small that the tilted law hardly sees them are cut: the windows need not hold them.
    # (The law above keeps the P-mass of what it cuts below, at the edge: Chernoff's tilts see it.)
    below = jnp.cumsum(jnp.exp(atoms.log_p), axis=-1)[:, :-1]
    moved = jnp.log(below) + theta * edges - m.log_norm[:, None]
    keep_below = moved > log_mass - jnp.log(used)[:, None] - 25.0
    lowest = jnp.max(jnp.where(keep_below, -jnp.inf, edges), axis=-1)
    at_edge = jnp.pad(~keep_below & (edges == lowest[:, None]), ((0, 0), (0, 1)))
    log_p = jnp.where(atoms.loss >= lowest[:, None], log_p, -jnp.inf)
    log_p = jnp.where(at_edge, jnp.pad(moved, ((0, 0), (0, 1))), log_p)
    centred = jnp.where(at_edge, lowest[:, None] - m.mean[:, None], centred)
    # At large tilts it matters where the last cell ends, or the support in it.
    held = log_p > -jnp.inf
    last = held[:, :-1] & ~held[:, 1:]
    ends = jnp.minimum(edges, _tops(terms)[:, None]) - m.mean[:, None]
    reaching = centred.at[:, :-1].max(jnp.where(last & ~cut.sure[:, None], ends, -jnp.inf))
    return TiltedLaw(
        atoms,
        used,
        theta,
        m,
        mean,
        deviation,
        centre,
        margin,
        log_value,
        log_mass,
        tolerated,
        log_p,
        centred,
        reaching,
        lowest,
        cut.highest,
        cut.sure,
    )
