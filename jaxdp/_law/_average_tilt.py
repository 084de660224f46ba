"""The tilt of an average, and the window that it needs: of those tried, the one of the smallest.

Nothing here needs to be right: see `_average_plan`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import log_positive
from jaxdp._law._average_atoms import (
    Atoms,
    Moments,
    Typical,
    far_enough,
    log_sum,
    moments,
    saddle,
)
from jaxdp._law._average_guess import log_untypical, untypical, where_seen
from jaxdp._law._terms import Sign, either, may_add, may_remove

# The tilts tried, in units of the saddle point's: smaller ones put less weight on large ratios.
_TRIED = np.array([0.85, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05])
_TRIED_FOR_TYPICAL = np.geomspace(0.5, 1e-3, 10)
_CHERNOFF_TILTS = 2.0 ** np.arange(-8.0, 6.0)
_STEPS_OF_TILTS = np.linspace(0.0, 1.0, 14)
# What lies outside the window costs delta this fraction; that one where averages are composed and
# read at large ratios, as there the lattice is coarser.
_WINDOW, _WINDOW_OF_WHOLE = 3e-5, 1e-3
_STEEP = 8.0
_USUAL = 4.0  # -log of what a stray mass costs at an ordinary tilt
_IGNORED = 1e-9
_REST = 1e-10


class AveragePlan(NamedTuple):
    """The tilt of y, where y is read, the ratio about which cells are narrow, and what is kept.

    Ratios up to `largest` lie on the lattice; those up to `cut` are collapsed below. In terms of
    y less t times the middle ratio: the window above goes from `low` to `high`, the one below has
    the same start and a `width`, and is read from `floor` on; `tilts` are for Chernoff's bound on
    what is outside. Ratios above `limit` are not of this law (`_average_jump`). `log_delta` is an
    estimate at the query; `heavy` is the heaviest atom above the cut, where atoms are far apart.
    """

    theta: jax.Array
    query: jax.Array
    middle: jax.Array
    largest: jax.Array
    cut: jax.Array
    low: jax.Array
    high: jax.Array
    width: jax.Array
    floor: jax.Array
    tilts: jax.Array
    limit: jax.Array
    log_delta: jax.Array
    heavy: jax.Array


class Query(NamedTuple):
    """Where y is read, and log delta there."""

    y: jax.Array
    log_delta: jax.Array


class Choice(NamedTuple):
    """What plans have in common: the coarse law, where its cells end, and the ends of all."""

    atoms: Atoms
    ends: jax.Array
    low: jax.Array
    high: jax.Array
    steps: jax.Array
    whole: bool | jax.Array
    typical: Typical | None
    others: jax.Array | None
    short: jax.Array
    limit: jax.Array
    down: bool | jax.Array


class _Asked(NamedTuple):
    """The query, delta there times its scale, where all of the law begins, the lattice's points."""

    query: Query
    log_value: jax.Array
    everything: jax.Array
    points: jax.Array


class _Tilted(NamedTuple):
    """The coarse law at a tilt, its ratios up to `top`.

    And the least delta that is to be seen, as a mass at the largest z e^{-theta z}: e^log_seen.
    """

    theta: jax.Array
    m: Moments
    log_weight: jax.Array
    top: jax.Array
    cut: jax.Array
    deviation: jax.Array
    centre: jax.Array
    log_seen: jax.Array


class _Tails(NamedTuple):
    """log E e^{t y} of all steps, y about its mean, at minus and plus the tilts; the ends of y.

    And from where on it is read.
    """

    tilts: jax.Array
    log_mgf: jax.Array
    reach: jax.Array
    floor: jax.Array


class _Window(NamedTuple):
    """As in a plan, in terms of y."""

    low: jax.Array
    high: jax.Array
    width: jax.Array
    read: jax.Array


def _edge(log_mgf: jax.Array, tilts: jax.Array, log_mass: jax.Array) -> jax.Array:
    """The distance beyond which Chernoff leaves at most e^log_mass."""
    return jnp.min((log_mgf - log_mass) / tilts)


def _tried(s: Sign, typical: Typical | None) -> jax.Array | np.ndarray:
    """The tilts to be tried (the last one again where one direction has fewer of them)."""
    if typical is None:
        return _TRIED
    room = _TRIED_FOR_TYPICAL.size - _TRIED.size
    padded = np.concatenate([_TRIED, np.full(room, _TRIED[-1])])
    return either(s > 0, _TRIED if isinstance(s, int) else padded, _TRIED_FOR_TYPICAL)


def scale_of(y: jax.Array, steps: jax.Array, s: Sign) -> jax.Array:
    return either(s > 0, steps, jnp.maximum(-y, 1e-300))


def _needed(common: Choice, query: Query, s: Sign) -> Choice:
    """Without ratios so large that a query alone ("remove") does not see them."""
    if not may_remove(s) or common.whole is True:
        return common
    atoms = common.atoms
    far = far_enough(atoms, common.short, jnp.maximum(query.y - common.steps, 0.0))
    far = either(s > 0, far, jnp.inf)
    highest = jnp.minimum(common.high, either(common.whole, jnp.inf, far))
    atoms = Atoms(atoms.log_q, either(s > 0, jnp.minimum(atoms.x, highest), atoms.x))
    return common._replace(atoms=atoms, high=highest)


def _begin(common: Choice, largest: jax.Array, s: Sign) -> jax.Array:
    """The y that all of the law but a small mass is above, for one that will be composed.

    On the add side of ratios up to the largest, as what is beyond is moved back to it.
    """
    atoms, steps = common.atoms, common.steps
    usual = Atoms(atoms.log_q, either(s > 0, atoms.x, jnp.minimum(atoms.x, largest)))
    untilted = moments(usual, jnp.float64(0.0), s)
    rates = jnp.asarray(_CHERNOFF_TILTS) / (jnp.sqrt(steps) * untilted.deviation + 1e-15 * steps)
    log_mgf = log_sum(atoms.log_q - s * rates[:, None] * (usual.x - untilted.mean))
    return s * steps * untilted.mean - _edge(steps * log_mgf, rates, jnp.log(_REST))


def _log_cost(asked: _Asked, m: Moments, theta: jax.Array, steps: jax.Array, s: Sign) -> jax.Array:
    """log delta in units of the largest z e^{-theta z}: what a stray mass 1 would cost."""
    log_weight = asked.log_value + theta * (asked.query.y - s * steps * m.mean)
    return log_weight - steps * m.log_norm + jnp.log(theta) + 1.0


def _tilted(common: Choice, asked: _Asked, theta: jax.Array, s: Sign) -> _Tilted:
    atoms, steps = common.atoms, common.steps
    m = moments(atoms, theta, s)
    log_weight = atoms.log_q + s * theta * (atoms.x - m.mean) - m.log_norm
    # On the add side large ratios hardly count: they may be moved back, or dropped. What is moved
    # counts by where it is moved to; of laws to be composed wide lattices lose more than that.
    weight = jnp.stack([jnp.exp(log_weight), jnp.exp(atoms.log_q)])
    beyond = lax.cumsum(weight, axis=1, reverse=True)
    tilted, moved = log_positive(jnp.pad(beyond[:, 1:], ((0, 0), (0, 1))))
    moved += s * theta * (atoms.x - m.mean) - m.log_norm
    # (And delta may be less than the mass that is tilted, where it is read far from its mean.)
    cost = _log_cost(asked, m, theta, steps, s) + _USUAL
    cost = either(common.whole, 0.0, jnp.minimum(cost, 0.0))
    rare = either(common.whole, tilted, moved) <= cost + jnp.log(_WINDOW / steps)
    light = jnp.min(jnp.where(rare, atoms.x, jnp.inf))
    last = jnp.max(jnp.where(atoms.log_q > -jnp.inf, atoms.x, 0.0))
    top = jnp.minimum(common.high, either(s > 0, last, jnp.minimum(light, last)) * 1.05)
    top = jnp.where(1.1 * top >= common.limit, common.limit, top)  # (there is no mass between)
    if may_add(s):
        m = either(s > 0, m, moments(Atoms(atoms.log_q, jnp.minimum(atoms.x, top)), theta, s))
    deviation = jnp.maximum(jnp.sqrt(steps) * m.deviation, 1e-15 * steps * m.mean)
    centre = s * steps * m.mean
    log_cost = _log_cost(asked, m, theta, steps, s)
    log_window = jnp.log(either(s > 0, either(common.whole, _WINDOW_OF_WHOLE, _WINDOW), _WINDOW))
    light = jnp.cumsum(jnp.exp(log_weight)) < _IGNORED / steps
    cut = jnp.max(jnp.where(light, atoms.x, 0.0))
    log_weight = jnp.where(atoms.x <= top, log_weight, -jnp.inf)
    return _Tilted(theta, m, log_weight, top, cut, deviation, centre, log_cost + log_window)


def _tails(common: Choice, asked: _Asked, law: _Tilted, s: Sign) -> _Tails:
    atoms, steps, query = common.atoms, common.steps, asked.query
    m, log_weight, top, deviation = law.m, law.log_weight, law.top, law.deviation
    # At large tilts it matters where the cells of large ratios end.
    large = (s > 0) & (atoms.x > m.mean + 4.0 * deviation)
    reaching = jnp.where(large, jnp.minimum(common.ends, top), atoms.x)
    # Smaller ones too, where the largest ratios are thousands of deviations away.
    ends = jnp.log(_CHERNOFF_TILTS[-1]), jnp.log(_CHERNOFF_TILTS[0])
    farthest = jnp.maximum(top - m.mean, 1e-3 * deviation)
    least = jnp.minimum(ends[1], jnp.log(4.0 * deviation / farthest))
    tilts = jnp.exp(least + _STEPS_OF_TILTS * (ends[0] - least)) / deviation
    # (Worked out once, not for every tilt.)
    away = jnp.stack([atoms.x - m.mean, reaching - m.mean])
    away = either(s > 0, away, -away[::-1])
    away, log_weight = lax.optimization_barrier((away, log_weight))
    both = jnp.stack([-tilts, tilts])[:, :, None]
    log_mgf = steps * log_sum(log_weight + both * away[:, None, :]).reshape(-1)
    reach = jnp.sort(s * steps * jnp.stack([common.low, top]))
    floor = query.y - 0.5 * deviation - 0.03 * jnp.abs(query.y - s * steps)
    # (Before all of the law its curve is a line.)
    floor = jnp.maximum(floor, asked.everything)
    floor = jnp.maximum(jnp.minimum(floor, law.centre), reach[0])
    return _Tails(tilts, log_mgf, reach, floor)


def _window(common: Choice, asked: _Asked, law: _Tilted, tails: _Tails, step: jax.Array) -> _Window:
    """With ratios spread over lattice steps: that widens the law above."""
    query, down, tilts, reach = asked.query, common.down, tails.tilts, tails.reach
    spread = jnp.minimum(step * step / 6.0, step * law.m.mean)
    wide = tails.log_mgf + 0.5 * common.steps * spread * jnp.concatenate([tilts, tilts]) ** 2
    log_mass = jnp.minimum(law.log_seen, -2.0)
    below = _edge(wide[: tilts.size], tilts, log_mass)
    above = _edge(wide[tilts.size :], tilts, log_mass)
    low = jnp.minimum(law.centre - below, either(down, asked.everything, tails.floor))
    low = jnp.maximum(low, reach[0])
    # Above, z e^{-theta z} falls.
    far = jnp.minimum(law.centre + above, query.y + (3.0 - log_mass) / law.theta)
    high = jnp.minimum(jnp.maximum(far, query.y + 0.5 * law.deviation), reach[1])
    # What is wrapped around must not come to lie beyond what is read.
    far = jnp.minimum(law.centre + above, reach[1])
    read = either(down, low, tails.floor)
    high = jnp.maximum(high, low + far - either(down, low, query.y))
    return _Window(low, high, jnp.maximum(far - read, high - low), read)


def _dear(common: Choice, asked: _Asked, law: _Tilted, window: _Window, s: Sign) -> jax.Array:
    """By what, in logs, rounding is more than may be seen: see `_average_fft`."""
    atoms, steps, points = common.atoms, common.steps, asked.points
    step = (window.high - window.low) / points
    off = jnp.minimum(jnp.abs(atoms.x - law.m.mean) / step, 20.0)
    moved = jnp.sum(jnp.exp(law.log_weight) * jnp.minimum(off, 1.0))
    bulk = jnp.sqrt(steps * jnp.sum(jnp.exp(law.log_weight) * off * off))
    waves = jnp.minimum(1.0 + 0.3 * points / (bulk + 1e-300), points)
    error = 2e-14 * (1.0 + steps * moved) * jnp.sqrt(waves)
    seen = law.log_seen
    if common.typical is not None:
        log_delta, end = asked.query.log_delta, window.high
        rare = where_seen(common.typical, log_delta, steps, law.theta, law.m, end)
        seen = either(s > 0, seen, rare)
    dear = jnp.maximum(jnp.log(error) - seen, 0.0)
    # What is left out counts e^{theta h} times from one point to the one before.
    dear += jnp.maximum(law.theta * step - _STEEP, 0.0)
    return dear


def _try_tilt(
    common: Choice, asked: _Asked, theta: jax.Array, s: Sign
) -> tuple[AveragePlan, jax.Array, jax.Array]:
    """The plan of a tilt, the size of its windows, and what rounding adds to that, in logs."""
    law = _tilted(common, asked, theta, s)
    tails = _tails(common, asked, law, s)

    def window_of(asked: _Asked) -> _Window:
        low, high, _, _ = _window(common, asked, law, tails, jnp.float64(0.0))
        return _window(common, asked, law, tails, (high - low) / asked.points)

    window = window_of(asked)
    size = window.width + 2.0 * (window.high - window.low)
    dear = _dear(common, asked, law, window, s)
    if may_add(s):  # fewer ratios are large than without a tilt (which is not chosen by that)
        begin = jnp.maximum(asked.everything, _begin(common, law.top, s))
        window = window_of(asked._replace(everything=either(s > 0, asked.everything, begin)))
    low, high, width, read = window
    chosen = AveragePlan(
        theta,
        asked.query.y,
        law.m.mean,
        law.top,
        law.cut,
        low - law.centre,
        high - law.centre,
        width,
        read - law.centre,
        tails.tilts,
        common.limit,
        asked.query.log_delta,
        jnp.float64(0.0),
    )
    return chosen, size, dear


def _try_all(
    common: Choice, query: Query, s: Sign, points: jax.Array
) -> tuple[jax.Array, AveragePlan, jax.Array, jax.Array]:
    """The tilts tried, their plans, and what these cost: sizes, and the rest in logs."""
    common = _needed(common, query, s)
    steps = common.steps
    above = lax.cumsum(jnp.exp(common.atoms.log_q), reverse=True)
    largest = jnp.max(jnp.where(above > _WINDOW / steps, common.atoms.x, 0.0))
    everything = _begin(common, largest, s)
    # Before all of the law its curve is a line.
    query = query._replace(y=jnp.maximum(query.y, everything))
    tilt = saddle(common.atoms, steps, query.y, None, s)
    log_value = query.log_delta + jnp.log(scale_of(query.y, steps, s))
    asked = _Asked(query, log_value, everything, points)
    tried = jnp.asarray(_tried(s, common.typical))
    return tried, *jax.vmap(lambda theta: _try_tilt(common, asked, theta, s))(tilt * tried)


def plan_at(common: Choice, query: Query, s: Sign, points: jax.Array) -> AveragePlan:
    """The tilt, of those tried, that needs the smallest window to answer the query."""
    tried, plans, size, dear = _try_all(common, query, s, points)
    whole, typical = common.whole, common.typical
    size *= jnp.exp(jnp.minimum(dear, 300.0))
    if whole is not False:  # all of the law is wanted, not only its tail
        others = common.others
        dear = 1e3 if others is None else jnp.minimum(1.0 + 50.0 * others, 1e3)
        size = jnp.where(jnp.asarray(whole) & (tried > 0.5), dear * size, size)
    if typical is not None:
        size *= either(s > 0, 1.0, untypical(typical, plans.middle))
    order = jnp.arange(size.shape[0])
    best = jnp.min(jnp.where(size <= jnp.min(size), order, order[-1]))
    return jax.tree.map(lambda x: x[best], plans)


def lost_at(common: Choice, query: Query, typical: Typical, points: jax.Array) -> jax.Array:
    """The least, in logs, by which a tilt ("add") has rounding above what may be seen.

    Or has next to no typical average in its window.
    """
    _, plans, _, dear = _try_all(common, query, -1, points)
    return jnp.min(dear + log_untypical(typical, plans.middle))


def no_plan() -> AveragePlan:
    """One of zeros, to begin with."""
    zero = AveragePlan(*(jnp.float64(0.0) for _ in AveragePlan._fields))
    return zero._replace(tilts=jnp.zeros((_STEPS_OF_TILTS.size,)))
