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
from jaxdp._law._plan_apart import BULK, Apart, nothing_apart, one_apart
from jaxdp._law._plan_tilt import TiltedLaw, coarse_number, tilted
from jaxdp._law._saddle import Atoms
from jaxdp._law._terms import Family, Term, Terms

_CHERNOFF_TILTS = 2.0 ** np.arange(-8.0, 6.0)
_BULK_ROUNDS = 8
_FINE = 8.0  # parts of the whole deviation, shared by all steps of a term, that need no finer grid
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
    which collapses what is less to that point; what is more than `range` counts at its end, for the
    law below, up to `beyond`. `apart` says whether exactly one loss is composed beside a bulk, see
    `_plan_apart`.
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
    beyond: jax.Array
    apart: Apart


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


def _bulk(
    weight: jax.Array, centred: jax.Array, mean: jax.Array, fine: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Per term: the deviation without rare large losses, and how far out these begin.

    An atom alone has a deviation too, well above what aligning moves it by, and at least `fine`:
    of a step that is next to one atom the other losses would all be rare, which few steps feel.
    """
    least = jnp.maximum(1e-15 + 1e-10 * jnp.abs(mean), fine)

    def narrow(_, deviation: jax.Array) -> jax.Array:
        near = jnp.abs(centred) < BULK * deviation[:, None]
        square = jnp.sum(jnp.where(near, weight, 0.0) * centred**2, axis=-1)
        return coarse_number(jnp.maximum(jnp.sqrt(square), least))

    whole = jnp.full(weight.shape[:1], jnp.inf)
    deviation = lax.fori_loop(0, _BULK_ROUNDS, narrow, whole)
    return deviation, BULK * deviation


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


Reach = tuple[jax.Array, jax.Array]  # how far down and up every cell counts


def _log_mgf(log_weight: jax.Array, tilts: jax.Array, rows: np.ndarray, reach: Reach) -> jax.Array:
    """Per term of these rows, at each of its tilts: (..., terms, tilts)."""
    low, high = reach[0][rows], reach[1][rows]

    def one(t: jax.Array) -> jax.Array:
        return log_sum_exp(log_weight + jnp.maximum(t[:, None] * low, t[:, None] * high))

    return jnp.moveaxis(_saddle.each_of(one, tilts.T, rows.size), 0, -1)


class _Window(NamedTuple):
    """That of the whole law; per term its bulk, and which losses count as rare, beyond a cut."""

    ends: jax.Array
    chernoff: jax.Array
    bulk: jax.Array
    cut: jax.Array
    rare: jax.Array


def _window(law: TiltedLaw, apart: Apart) -> _Window:
    """The window; where one loss is apart, from the cut for it to the largest that is kept."""
    count, mean, deviation, centre = law.atoms.count, law.mean, law.deviation, law.centre
    base = jnp.asarray(_CHERNOFF_TILTS)
    each = jnp.ones((count.shape[0], 1))
    tilts = base / deviation
    both = jnp.concatenate([-tilts, tilts])
    fine = deviation / (_FINE * jnp.maximum(law.used, 1.0))
    bulk, cut = _bulk(jnp.exp(law.log_p), law.centred, law.m.mean, fine)
    bulk = jnp.where(apart.some, deviation / jnp.sqrt(law.used), bulk)
    cut = jnp.where(apart.some, jnp.minimum(BULK * bulk, apart.cut), cut)
    rare = jnp.abs(law.centred) >= cut[:, None]
    # (`_parts` puts a rare loss beside a whole bulk, not instead of it: few steps feel that.)
    every = np.arange(count.shape[0])
    split = jnp.where(jnp.stack([rare, ~rare]), -jnp.inf, law.log_p)
    most, some = _log_mgf(split, each * both, every, (law.centred, law.reaching))
    beside = jnp.where(apart.some, 0.0, jnp.logaddexp(some, 0.0))
    total = jnp.sum(count[:, None] * (most + beside), axis=0)
    # Below, and above: what lies a window's width beyond epsilon wraps around to beyond it.
    (below, above), chernoff = _chernoff_edge(
        jnp.stack([total[: base.size], total[base.size :]]), tilts, law.log_mass
    )
    # g itself falls like e^{-theta y} above.
    low = jnp.minimum(mean - below, centre - 4.0 * deviation)
    most = centre - (jnp.log(law.tolerated) + law.log_value) / law.theta
    high = jnp.minimum(mean + above, most)
    high = jnp.maximum(
        jnp.maximum(high, low + 8.0 * deviation), low + mean + above - centre + law.margin
    )
    # (Of one apart, moments are from the cut on: a double is to hold that of the largest loss.)
    first, last = jnp.where(apart.some, apart.cut, 0.0), law.highest[0]
    gentle = jnp.where(apart.some, _LARGEST_EXPONENT / (last - first), jnp.inf)
    far = jnp.where(gentle < chernoff[1], -1.5 * law.log_mass / gentle, above)
    low = jnp.where(apart.some, first + mean - below, low)
    high = jnp.where(apart.some, last + mean + jnp.maximum(above, far), high)
    chernoff = chernoff.at[1].min(gentle)
    unit = 0.25 * deviation
    ends = unit * jnp.stack([jnp.floor(low / unit), jnp.ceil(high / unit)])
    return _Window(ends, chernoff, bulk, cut, rare)


class _Blocks(NamedTuple):
    """Per term: inner^outer * rest steps, in a single stage or two, and the cut of rare losses.

    And the deviation of an inner block, the centre and the anchor of a step.
    """

    single: jax.Array
    inner: jax.Array
    outer: jax.Array
    rest: jax.Array
    cut: jax.Array
    kept: jax.Array
    reach: Reach
    unit: jax.Array
    centre: jax.Array
    anchor: jax.Array


def _blocks(law: TiltedLaw, window: _Window, size: int, one: jax.Array) -> _Blocks:
    log_p, mean = law.log_p, law.m.mean
    low, high = window.ends
    whole = jnp.round(law.used)
    single = ((high - low) / size < window.bulk / _BULK_POINTS) & ~one
    jumps = law.used * jnp.sum(jnp.where(window.rare, jnp.exp(log_p), 0.0), axis=-1)
    few = (whole <= _FEW_STEPS) & (jumps > _FEW_JUMPS[0]) & (jumps < _FEW_JUMPS[1])
    root = jnp.maximum(jnp.floor(jnp.sqrt(whole)), _LEAST_BLOCK)
    inner = jnp.where(single | few | one | (whole < 2.0 * _LEAST_BLOCK), whole, root)
    cut = jnp.where(single, jnp.inf, window.cut)
    outer = jnp.maximum(jnp.floor(whole / inner), 1.0)
    rest = whole - inner * outer
    edges = law.atoms.edges - mean[:, None]
    kept, reach = _within(edges, law.centred, law.reaching, log_p, cut[:, None])
    units = jnp.sqrt(inner) * window.bulk
    # Moving the centre moves the middle of the inner fold, by an eighth of its deviation at most.
    grain = 0.25 * units / inner
    centres = grain * jnp.round(mean / grain)
    anchors = anchors_of(law.atoms, log_p, (high - low) / size)
    return _Blocks(single, inner, outer, rest, cut, kept, reach, units, centres, anchors)


def _step_plan(
    term: Term,
    i: int,
    given: Atoms,
    law: TiltedLaw,
    window: _Window,
    blocks: _Blocks,
    value: jax.Array,
    size: int,
    apart: Apart,
) -> StepPlan:
    """That of the i-th term; `value` is the log mgf of an inner block at tilts of both signs."""
    bulk, unit, centre = window.bulk[i], blocks.unit[i], blocks.centre[i]
    log_mass = law.log_mass - jnp.log(blocks.outer[i])
    tilts = jnp.asarray(_CHERNOFF_TILTS) / unit
    reach, tilt = _chernoff_edge(value, tilts, log_mass)
    # (The steps that are left over lie nearer to the centre than a block that is all beside it.)
    at_tilt = jnp.sum(jnp.where(tilts == tilt[:, None], value, 0.0), axis=-1)
    rest = (at_tilt * (blocks.rest[i] / blocks.inner[i]) - log_mass) / tilt
    reach = jnp.where(blocks.rest[i] > 0.0, jnp.maximum(reach, rest), reach)
    extent = _SIGNS * coarse_number(1.04 * (jnp.maximum(reach, 0.0) + 0.125 * unit))
    # Few steps: as many nodes without gaps are as fine as a ladder is about its middle.
    even = (jnp.max(jnp.abs(extent)) + bulk) / (rungs(size).size // 2 - 2)
    alone = law.used.size == 1
    fine = blocks.single[i] & (even * density(size) <= bulk) & alone
    extent = jnp.where(fine, _SIGNS * even * (0.5 * size - 4.0), extent)
    # The ladder is to reach what is kept (its lattice may be off the centre by half the extent).
    far = 1.04 * (law.highest[i] - centre) / rungs(size)[-1]
    narrow = (extent[1] - extent[0]) / (size - 8)
    wider = jnp.where((far > narrow) & ~fine, coarse_number(jnp.maximum(far, narrow)), narrow)
    extent = extent * jnp.where(narrow > 0.0, wider / jnp.where(narrow > 0.0, narrow, 1.0), 1.0)
    cell = (extent[1] - extent[0]) / size
    own_atoms = jax.tree.map(lambda x: x[i : i + 1], law.atoms)
    own_anchor = anchors_of(own_atoms, law.log_p[i : i + 1], cell)[0]
    return StepPlan(
        centre,
        blocks.anchor[i],
        jnp.where(blocks.single[i], blocks.anchor[i], own_anchor),
        blocks.inner[i],
        blocks.outer[i],
        blocks.rest[i],
        (law.m.mean[i] - centre, blocks.cut[i]),
        extent,
        tilt,
        (law.lowest[i], law.highest[i]),
        jnp.where(fine, even, 0.0),
        begins(term, given.log_p[i], given.loss[i], cell),
        jnp.where(law.sure[i], jnp.inf, -jnp.inf),
        apart,
    )


def plan(terms: Terms, epsilon: jax.Array | None, log_delta: jax.Array | None, size: int) -> Plan:
    """Choose for a given epsilon, or for a given log delta (one of them None)."""
    epsilon, log_delta, given = lax.stop_gradient((epsilon, log_delta, _saddle.coarse_atoms(terms)))
    law = tilted(terms, given, epsilon, log_delta, size)
    apart = nothing_apart()
    if len(terms) == 1 and isinstance(terms[0], Term):
        log_answer = law.log_value + jnp.sum(given.count * law.m.log_norm) - law.theta * law.centre
        law, apart = one_apart(law, given, log_answer if log_delta is None else log_delta)
    window = _window(law, apart)
    blocks = _blocks(law, window, size, apart.some)
    numbers = [t.number if isinstance(t, Family) else 1 for t in terms]
    places = np.cumsum([0, *numbers])[:-1]
    rows = places[[not isinstance(t, Family) for t in terms]]
    tilts = jnp.asarray(_CHERNOFF_TILTS) / blocks.unit[rows, None]
    both = jnp.concatenate([-tilts, tilts], axis=-1)
    values = blocks.inner[rows, None] * _log_mgf(blocks.kept[rows], both, rows, blocks.reach)
    values = dict(
        zip(rows.tolist(), values.reshape(rows.size, 2, _CHERNOFF_TILTS.size), strict=True)
    )
    steps: list[StepPlan | FamilyPlan] = []
    for i, term in zip(places.tolist(), terms, strict=True):
        if isinstance(term, Family):
            part = slice(i, i + term.number)
            ends = law.lowest[part], law.highest[part]
            steps.append(FamilyPlan(blocks.centre[part], blocks.anchor[part], ends))
        else:
            steps.append(_step_plan(term, i, given, law, window, blocks, values[i], size, apart))
    return Plan(law.theta, law.centre, law.margin, window.ends, window.chernoff, tuple(steps))
