"""Where to look: the tilt and the windows, from a coarse law. Nothing here needs to be right.

Every number of a plan is a choice (no gradient passes): a bad one makes the bounds wide, never
wrong, because `_compose` bounds afterwards what the choice left out. The choices are rounded to a
few digits, so that nearby parameters share a plan: the bounds are then smooth in between, and their
finite differences agree with their gradients, at a frozen plan.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law import _saddle
from jaxdp._law._begins import anchors as anchors_of
from jaxdp._law._begins import begins, log_sum_exp
from jaxdp._law._grid import density, rungs
from jaxdp._law._saddle import Moments, log_price, moments
from jaxdp._law._terms import Family, Terms

# How many deviations below the saddle point's the mean is put: that costs the FFT a factor of a few
# and suppresses losses much larger than a deviation, which hardly count for delta, exponentially.
_UNDERTILT = 0.75
_CHERNOFF_TILTS = 2.0 ** np.arange(-8.0, 6.0)
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
# Losses beyond so many deviations of the rest count as rare and large.
_BULK = 60.0
_BULK_ROUNDS = 8
# One stage suffices while its lattice has so many points per deviation of one step.
_BULK_POINTS = 256.0
# So few steps with so many rare losses are one block (`_parts`); without any, two stages are up to
# 4 times tighter.
_FEW_STEPS = 256.0
_FEW_JUMPS = 1e-7, 2.0
_LEAST_BLOCK = 6.0  # steps: see `_parts`
# Beyond that, moments at the Chernoff tilts are given up (`_symbols`).
_LARGEST_EXPONENT = 500.0
_SIGNS = np.array([-1.0, 1.0])


class StepPlan(NamedTuple):
    """How one term is composed: inner^outer * rest, and the losses beyond the cut apart.

    The cut (its middle, and the distance from it) and the window are relative to the centre. The
    anchor is where the mean ratio of the losses near the median lies: with a node there, losses
    closer together than the lattice's points keep their mean in the law below. `node` is the same
    for the lattice of one step, which may be far finer. Where one step need not be on a ladder,
    `even` is the spacing of its nodes, else 0. `low` is where the support begins for the law below,
    which collapses what is less to that point.
    """

    centre: jax.Array
    anchor: jax.Array
    node: jax.Array
    inner: jax.Array
    outer: jax.Array
    rest: jax.Array
    cut: tuple[jax.Array, jax.Array]
    window: jax.Array
    chernoff: jax.Array
    range: tuple[jax.Array, jax.Array]
    even: jax.Array
    low: jax.Array


class FamilyPlan(NamedTuple):
    """The same of every term of a family, which need no lattice of their own: (terms,) each."""

    centre: jax.Array
    anchor: jax.Array
    range: tuple[jax.Array, jax.Array]


class Plan(NamedTuple):
    """The tilt, the epsilon that is looked for (and its margin below), and the windows."""

    theta: jax.Array
    epsilon: jax.Array
    margin: jax.Array
    window: jax.Array
    chernoff: jax.Array
    steps: tuple[StepPlan | FamilyPlan, ...]


def _coarse(x: jax.Array) -> jax.Array:
    """A positive number, to 3%."""
    return jnp.exp(jnp.round(16.0 * jnp.log(x)) / 16.0)


def _chernoff_edge(
    log_mgf: jax.Array, tilts: jax.Array, log_mass: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The distance beyond which Chernoff leaves at most e^log_mass, and the tilt that shows it.

    Over the last axis of log_mgf, the tilts'.
    """
    excess = log_mgf - log_mass[..., None]
    least = jnp.min(excess, axis=-1, keepdims=True)
    within = excess <= jnp.maximum(_LARGEST_EXPONENT, least)
    reach = jnp.where(within, excess / tilts, jnp.inf)
    nearest = jnp.min(reach, axis=-1)
    return nearest, jnp.min(jnp.where(reach <= nearest[..., None], tilts, jnp.inf), axis=-1)


def _bulk(weight: jax.Array, centred: jax.Array, mean: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Per term: the deviation without rare large losses, and how far out these begin.

    An atom alone has a deviation too, well above what aligning moves it by.
    """
    least = 1e-15 + 1e-10 * jnp.abs(mean)

    def narrow(_, deviation: jax.Array) -> jax.Array:
        near = jnp.abs(centred) < _BULK * deviation[:, None]
        square = jnp.sum(jnp.where(near, weight, 0.0) * centred**2, axis=-1)
        return _coarse(jnp.maximum(jnp.sqrt(square), least))

    whole = jnp.full(weight.shape[:1], jnp.inf)
    deviation = lax.fori_loop(0, _BULK_ROUNDS, narrow, whole)
    return deviation, _BULK * deviation


def _within(
    edges: jax.Array, centred: jax.Array, reaching: jax.Array, log_p: jax.Array, cut: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    """The coarse law up to the cut, and how far down and up each cell counts as reaching.

    A coarse cell may be wide, and the law itself ends at the cut: not where a cell has its mean.
    """
    begins = jnp.concatenate([centred[:, :1], edges], axis=1)
    ends = jnp.concatenate([edges, reaching[:, -1:]], axis=1)
    ends = jnp.where(reaching > centred, reaching, ends)
    some = (log_p > -jnp.inf) & (begins < cut) & (ends > -cut)
    first = some & (jnp.cumsum(some.astype(jnp.int32), axis=1) == 1)
    last = some & ~jnp.pad(some[:, 1:], ((0, 0), (0, 1)))
    low = jnp.clip(jnp.where(first, begins, centred), -cut, cut)
    high = jnp.clip(jnp.where(last, ends, reaching), -cut, cut)
    whole = jnp.isinf(cut)
    reach = jnp.where(whole, centred, low), jnp.where(whole, reaching, high)
    return jnp.where(some, log_p, -jnp.inf), reach


def _tops(terms: Terms) -> jax.Array:
    """Per term, the largest finite loss (not of families: infinity)."""
    tops = [
        jnp.full((t.number,), jnp.inf)
        if isinstance(t, Family)
        else jnp.asarray(t.support[1], jnp.float64)[None]
        for t in terms
    ]
    return jnp.concatenate(tops)


def plan(terms: Terms, epsilon: jax.Array | None, log_delta: jax.Array | None, size: int) -> Plan:
    """Choose for a given epsilon, or for a given log delta (one of them None)."""
    epsilon, log_delta, given = lax.stop_gradient((epsilon, log_delta, _saddle.coarse_atoms(terms)))
    tolerated = _TOLERANCE * min(_POINTS / size, 1.0)
    atoms, count = given, given.count
    used = jnp.maximum(count, 1.0)  # a term may occur no times: its powers are 1
    edges = atoms.edges
    centre, log_answer = _saddle.estimate(atoms, epsilon, log_delta)
    # Losses so large that P hardly sees them go to infinity: more of them where the tail is so
    # heavy that no tilt within it finds what delta is made of, which would drown in rounding.
    above = _saddle.above(given)

    def cut_off(_, state: tuple) -> tuple:
        """Up to the edge beyond which delta has a share: the atoms, edge, centre and its tilt."""
        log_share = state[0]
        allowed = log_share + log_answer - jnp.log(used)[:, None]
        keep = above > jnp.exp(jnp.maximum(allowed, -700.0))
        highest = jnp.max(jnp.where(keep[:, :-1], edges, edges[:, :1]), axis=-1)
        log_p = jnp.where(keep, given.log_p, -jnp.inf)
        # The last cell that is kept may hold much of the tilted law: it counts with its end.
        last = keep[:, :-1] & ~keep[:, 1:] & (above[:, 1:] > 0.0)
        loss = given.loss.at[:, :-1].set(jnp.where(last, edges, given.loss[:, :-1]))
        # An epsilon beyond all that is kept is read from a law planned within it.
        beyond = jnp.sum(used * highest)
        at = jnp.where(centre < beyond, centre, _NEAR_END * beyond)
        kept = given._replace(log_p=log_p, loss=loss)
        saddle, (law, zero) = _saddle.tilt_for(kept, at)
        # How much of the kernel's supremum delta is there.
        log_seen = log_answer - law.exponent - log_price(saddle)
        # A steeper tilt than needed knows next to nothing of losses below.
        tilts = saddle * _GENTLER
        exponents = _saddle.each_of(lambda t: _saddle.exponent(kept, t, at), tilts, used.size)
        seen = log_answer - exponents - log_price(tilts)
        steep = (centre > _NEAR_END * beyond) | (saddle * zero.deviation > _STEEP)
        least = jnp.min(jnp.where(seen > -_SEEN, tilts, saddle))
        log_seen = jnp.where(steep, jnp.max(seen, where=tilts == least, initial=-jnp.inf), log_seen)
        saddle = jnp.where(steep, least, saddle)
        share = np.log(tolerated) + jnp.clip(-log_seen - _SEEN, 0.0, np.log(_MORE))
        return jnp.maximum(share, log_share), highest, log_p, loss, at, saddle, log_seen

    log_share = jnp.log(tolerated) + 0.0 * log_answer
    state = log_share, edges[:, 0], given.log_p, given.loss, centre, centre, centre
    state = lax.fori_loop(0, 2, cut_off, state)
    _, highest, log_p, loss, centre, saddle, log_seen = state
    atoms = atoms._replace(log_p=log_p, loss=loss)
    # (There the deviation says little, and less of a tilt finds still less.)
    least = jnp.clip(0.4 * (_TYPICAL - log_seen), 0.05, 0.8)

    def lean(_, state: tuple) -> tuple:
        """The moments at a tilt, and from the deviation the next tilt."""
        theta = state[0]
        m = moments(atoms, theta)
        deviation = jnp.maximum(_coarse(jnp.sqrt(jnp.sum(count * m.variance))), 1e-12)
        grain = 0.25 / deviation
        after = grain * jnp.round((saddle - _UNDERTILT / deviation) / grain)
        return jnp.maximum(after, _coarse(least * saddle)), theta, m, deviation

    none = jnp.zeros_like(count)
    state = saddle, saddle, Moments(none, none, none), saddle
    _, theta, m, deviation = lax.fori_loop(0, 3, lean, state)
    mean = jnp.sum(count * m.mean)
    # How far below the centre epsilon may be read: e^{-theta y} changes by at most a factor 2.
    margin = jnp.minimum(jnp.log(2.0) / theta, 2.0 * deviation)
    if epsilon is None:  # no estimate is to be above what Chernoff knows at this tilt
        most = jnp.sum(count * m.log_norm) + log_price(theta) - log_answer
        centre = jnp.minimum(centre, most / theta)
        centre = 0.25 * margin * jnp.floor(4.0 * centre / margin)
    # (What is looked for is at most 1; an estimate of it need not be.)
    log_value = jnp.minimum(log_answer - jnp.sum(count * m.log_norm) + theta * centre, 0.0)
    # A stray mass costs at most sup g, see `_compose`.
    tolerance = tolerated * jnp.clip(10.0 * centre / deviation, _LEAST_SHARE, 1.0)
    log_mass = jnp.log(tolerance) + log_value - log_price(theta)
    log_p = atoms.log_p + theta * atoms.loss - m.log_norm[:, None]
    centred = atoms.loss - m.mean[:, None]
    # Losses so small that the tilted law hardly sees them are cut: the windows need not hold them.
    # (The law above keeps the P-mass of what it cuts below, at the edge.)
    below = jnp.cumsum(jnp.exp(atoms.log_p), axis=-1)[:, :-1]
    moved = jnp.log(below) + theta * edges - m.log_norm[:, None]
    keep_below = moved > log_mass - jnp.log(used)[:, None] - 25.0
    lowest = jnp.max(jnp.where(keep_below, -jnp.inf, edges), axis=-1)
    log_p = jnp.where(atoms.loss >= lowest[:, None], log_p, -jnp.inf)

    # At large tilts it matters where the last cell ends, or the support in it.
    held = log_p > -jnp.inf
    last = held[:, :-1] & ~held[:, 1:]
    ends = jnp.minimum(edges, _tops(terms)[:, None]) - m.mean[:, None]
    reaching = centred.at[:, :-1].max(jnp.where(last, ends, -jnp.inf))

    def log_mgf(
        log_weight: jax.Array,
        tilts: jax.Array,
        rows: np.ndarray,
        reach: tuple[jax.Array, jax.Array] = (centred, reaching),
    ) -> jax.Array:
        """Per term, at each of its tilts: (..., terms, tilts)."""
        low, high = reach[0][rows], reach[1][rows]

        def one(t: jax.Array) -> jax.Array:
            return log_sum_exp(log_weight + jnp.maximum(t[:, None] * low, t[:, None] * high))

        return jnp.moveaxis(_saddle.each_of(one, tilts.T, rows.size), 0, -1)

    base = jnp.asarray(_CHERNOFF_TILTS)
    each = jnp.ones((count.shape[0], 1))
    tilts = base / deviation
    both = jnp.concatenate([-tilts, tilts])
    bulk, cut = _bulk(jnp.exp(log_p), centred, m.mean)
    rare = jnp.abs(centred) >= cut[:, None]
    # (`_parts` puts a rare loss beside a whole bulk, not instead of it: few steps feel that.)
    every = np.arange(count.shape[0])
    apart = jnp.where(jnp.stack([rare, ~rare]), -jnp.inf, log_p)
    most, some = log_mgf(apart, each * both, every)
    total = jnp.sum(count[:, None] * (most + jnp.logaddexp(some, 0.0)), axis=0)
    # Below, and above: what lies a window's width beyond epsilon wraps around to beyond it.
    (below, above), chernoff = _chernoff_edge(
        jnp.stack([total[: base.size], total[base.size :]]), tilts, log_mass
    )
    # g itself falls like e^{-theta y} above.
    low = jnp.minimum(mean - below, centre - 4.0 * deviation)
    high = jnp.minimum(mean + above, centre - (jnp.log(tolerated) + log_value) / theta)
    high = jnp.maximum(
        jnp.maximum(high, low + 8.0 * deviation), low + mean + above - centre + margin
    )
    unit = 0.25 * deviation
    window = unit * jnp.stack([jnp.floor(low / unit), jnp.ceil(high / unit)])

    whole = jnp.round(used)
    single = (window[1] - window[0]) / size < bulk / _BULK_POINTS
    jumps = used * jnp.sum(jnp.where(rare, jnp.exp(log_p), 0.0), axis=-1)
    few = (whole <= _FEW_STEPS) & (jumps > _FEW_JUMPS[0]) & (jumps < _FEW_JUMPS[1])
    root = jnp.maximum(jnp.floor(jnp.sqrt(whole)), _LEAST_BLOCK)
    inner = jnp.where(single | few | (whole < 2.0 * _LEAST_BLOCK), whole, root)
    cut = jnp.where(single, jnp.inf, cut)
    outer = jnp.maximum(jnp.floor(whole / inner), 1.0)
    rest = whole - inner * outer
    kept, reach = _within(edges - m.mean[:, None], centred, reaching, log_p, cut[:, None])
    units = jnp.sqrt(inner) * bulk
    tilts = base / units[:, None]
    # Moving the centre moves the middle of the inner fold, by an eighth of its deviation at most.
    grain = 0.25 * units / inner
    means = grain * jnp.round(m.mean / grain)
    anchors = anchors_of(atoms, log_p, (window[1] - window[0]) / size)
    own = np.array([isinstance(t, Family) for t in terms])
    places = np.cumsum([0] + [t.number if isinstance(t, Family) else 1 for t in terms])[:-1]
    rows = places[~own]
    both = jnp.concatenate([-tilts, tilts], axis=-1)
    values = inner[rows, None] * log_mgf(kept[rows], both[rows], rows, reach)
    steps = []
    for i, term in zip(places, terms, strict=True):
        if isinstance(term, Family):
            part = slice(i, i + term.number)
            ends = lowest[part], highest[part]
            steps.append(FamilyPlan(means[part], anchors[part], ends))
            continue
        value = values[int(np.searchsorted(rows, i))].reshape(2, base.size)
        reach, tilt = _chernoff_edge(value, tilts[i], log_mass - jnp.log(outer[i]))
        extent = _SIGNS * _coarse(1.04 * (jnp.maximum(reach, 0.0) + 0.125 * units[i]))
        # Few steps: as many nodes without gaps are as fine as a ladder is about its middle.
        even = (jnp.max(jnp.abs(extent)) + bulk[i]) / (rungs(size).size // 2 - 2)
        fine = single[i] & (even * density(size) <= bulk[i]) & (len(terms) == 1)
        extent = jnp.where(fine, _SIGNS * even * (0.5 * size - 4.0), extent)
        cell = (extent[1] - extent[0]) / size
        own_atoms = jax.tree.map(lambda x, i=i: x[i : i + 1], atoms)
        own_anchor = anchors_of(own_atoms, log_p[i : i + 1], cell)[0]
        node = jnp.where(single[i], anchors[i], own_anchor)
        steps.append(
            StepPlan(
                means[i],
                anchors[i],
                node,
                inner[i],
                outer[i],
                rest[i],
                (m.mean[i] - means[i], cut[i]),
                extent,
                tilt,
                (lowest[i], highest[i]),
                jnp.where(fine, even, 0.0),
                begins(term, given.log_p[i], given.loss[i], cell),
            )
        )
    return Plan(theta, centre, margin, window, chernoff, tuple(steps))
