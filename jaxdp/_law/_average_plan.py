"""Where to look when averaging: the tilt and the window. Nothing here needs to be right.

As in `_plan`, every number is a choice without a gradient: a bad one makes the bounds wide, never
wrong. The coarse law has cells geometric in the loss, collapsed to their mean ratios x. With
S = X_1 + ... + X_t, y = s x (see `_average_grid`) and K(theta) = log E e^{theta (y - s)}, the tilt
of a query at S = c solves t K'(theta) = c - s t; for a given delta it solves

    log delta = t (K - theta K') + log E[e^{-theta z} z_+] - log scale,      z ~ N(0, t K''),

scale t (remove) or |c| (add).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp._law._average_atoms import (
    DEEPEST,
    ENDS,
    Atoms,
    Coarse,
    Typical,
    coarse,
    far_enough,
    far_enough_alone,
    guess,
    log_delta_at,
    log_sum,
    moments,
    saddle,
    shortfall,
    within_reach,
)
from jaxdp._law._average_fft import cyclic_power, wrap
from jaxdp._law._average_grid import support
from jaxdp._law._average_guess import untypical, where_seen
from jaxdp._law._terms import Sign, Term, either, may_add, may_remove

_SMALLEST = -705.0  # log of a P-mass that is still a number
# The tilts tried, in units of the saddle point's: smaller ones put less weight on large ratios.
_TRIED = np.array([0.85, 0.7, 0.5, 0.35, 0.2, 0.1, 0.05])
_TRIED_FOR_TYPICAL = np.geomspace(0.5, 1e-3, 10)
_CHERNOFF_TILTS = 2.0 ** np.arange(-8.0, 6.0)
_STEPS_OF_TILTS = np.linspace(0.0, 1.0, 14)
# What is cut off at the top of X costs delta this fraction; what lies outside the window, that one.
_TOP = 1e-4
_WINDOW = 3e-5
# The same where averages are composed and read at large ratios: there the lattice is coarser.
_TOP_OF_WHOLE = 3e-3
_WINDOW_OF_WHOLE = 1e-3
# The coarse transforms that find where to look.
_SIZE = 2048
ROUNDS = 6  # at most
_SETTLED = 1e-3  # a change of the query that is next to the coarse lattice's step, of its width
_IGNORED = 1e-9
_REST = 1e-10


class AveragePlan(NamedTuple):
    """The tilt of y, where y is read, the ratio about which cells are narrow, and what is kept.

    Ratios up to `largest` lie on the lattice; those up to `cut` are collapsed below. In terms of
    y less t times the middle ratio: the window above goes from `low` to `high`, the one below has
    the same start and a `width`, and is read from `floor` on; `tilts` are for Chernoff's bound on
    what is outside. Ratios above `limit` are not of this law (`_average_jump`).
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


def _edge(log_mgf: jax.Array, tilts: jax.Array, log_mass: jax.Array) -> jax.Array:
    """The distance beyond which Chernoff leaves at most e^log_mass."""
    return jnp.min((log_mgf - log_mass) / tilts)


class _Query(NamedTuple):
    """Where y is read, and log delta there."""

    y: jax.Array
    log_delta: jax.Array


def _tried(s: Sign, typical: Typical | None) -> jax.Array | np.ndarray:
    """The tilts to be tried (the last one again where one direction has fewer of them)."""
    if typical is None:
        return _TRIED
    room = _TRIED_FOR_TYPICAL.size - _TRIED.size
    padded = np.concatenate([_TRIED, np.full(room, _TRIED[-1])])
    return either(s > 0, _TRIED if isinstance(s, int) else padded, _TRIED_FOR_TYPICAL)


def _scale(y: jax.Array, steps: jax.Array, s: Sign) -> jax.Array:
    return either(s > 0, steps, jnp.maximum(-y, 1e-300))


def _first_query(
    common: "_Choice", total: jax.Array | None, log_delta: jax.Array | None, s: Sign
) -> _Query:
    """From the saddle point."""
    atoms, highest, steps = common.atoms, common.high, common.steps
    theta = saddle(atoms, steps, None if total is None else s * total, log_delta, s)
    m = moments(atoms, theta, s)
    # A normal tail or one large ratio decides; the saddle point may take many for one.
    mean = jnp.maximum(s * jnp.minimum(steps * m.mean, steps + 1.2 * highest), s * steps)
    value = log_delta_at(m, theta, steps, s)
    if total is None:
        return _Query(mean, jnp.asarray(log_delta))
    deep = value < DEEPEST + 1.0
    return _Query(jnp.where(deep, jnp.minimum(s * total, mean), s * total), value)


class _Choice(NamedTuple):
    """What plans have in common: the coarse law and its ends."""

    atoms: Atoms
    low: jax.Array
    high: jax.Array
    steps: jax.Array
    whole: bool | jax.Array
    typical: Typical | None
    others: jax.Array | None
    short: jax.Array
    limit: jax.Array
    down: bool | jax.Array


def _at(common: _Choice, query: _Query, s: Sign, points: jax.Array) -> AveragePlan:
    """The tilt, of those tried, that needs the smallest window to answer the query."""
    atoms, lowest, highest, steps, whole, typical, *_, down = common
    if may_remove(s) and whole is not True:
        far = far_enough(atoms, common.short, jnp.maximum(query.y - steps, 0.0))
        far = either(s > 0, far, jnp.inf)
        highest = jnp.minimum(highest, either(whole, jnp.inf, far))
        atoms = Atoms(atoms.log_q, either(s > 0, jnp.minimum(atoms.x, highest), atoms.x))
    # All of the law but this mass, for one that will be composed: twice over on the add side, where
    # ratios that rare are capped, or Chernoff would see nothing but the largest.
    above = lax.cumsum(jnp.exp(atoms.log_q), reverse=True)
    largest = jnp.max(jnp.where(above > _REST / steps, atoms.x, 0.0))
    usual = Atoms(atoms.log_q, either(s > 0, atoms.x, jnp.minimum(atoms.x, largest)))
    untilted = moments(usual, jnp.float64(0.0), s)
    rates = jnp.asarray(_CHERNOFF_TILTS) / (jnp.sqrt(steps) * untilted.deviation + 1e-15 * steps)
    log_mgf = log_sum(atoms.log_q - s * rates[:, None] * (usual.x - untilted.mean))
    everything = s * steps * untilted.mean - _edge(steps * log_mgf, rates, jnp.log(_REST))
    # Before all of the law its curve is a line.
    query = query._replace(y=jnp.maximum(query.y, everything))
    tilt = saddle(atoms, steps, query.y, None, s)
    log_value = query.log_delta + jnp.log(_scale(query.y, steps, s))

    def try_tilt(theta: jax.Array) -> tuple[AveragePlan, jax.Array]:
        m = moments(atoms, theta, s)
        log_weight = atoms.log_q + s * theta * (atoms.x - 1.0) - m.log_norm
        # On the add side large ratios hardly count: they may be moved back, or dropped.
        heavy = lax.cumsum(jnp.exp(log_weight), reverse=True) > _WINDOW / steps
        there = either(s > 0, atoms.log_q > -jnp.inf, heavy)
        top = jnp.minimum(highest, jnp.max(jnp.where(there, atoms.x, 0.0)) * 1.05)
        top = jnp.where(1.1 * top >= common.limit, common.limit, top)  # (there is no mass between)
        if may_add(s):
            m = either(s > 0, m, moments(Atoms(atoms.log_q, jnp.minimum(atoms.x, top)), theta, s))
        deviation = jnp.maximum(jnp.sqrt(steps) * m.deviation, 1e-15 * steps)
        centre = s * steps * m.mean
        # delta in units of the largest z e^{-theta z}, what a stray mass 1 would cost
        log_cost = log_value - steps * m.log_norm + theta * (query.y - s * steps)
        log_cost += jnp.log(theta) + 1.0
        log_window = jnp.log(either(s > 0, either(whole, _WINDOW_OF_WHOLE, _WINDOW), _WINDOW))
        log_mass = jnp.minimum(log_cost + log_window, -2.0)
        light = jnp.cumsum(jnp.exp(log_weight)) < _IGNORED / steps
        cut = jnp.max(jnp.where(light, atoms.x, 0.0))
        log_weight = jnp.where(atoms.x <= top, log_weight, -jnp.inf)
        # At large tilts it matters where the cells of large ratios end.
        large = (s > 0) & (atoms.x > m.mean + 4.0 * deviation)
        reaching = jnp.where(large, jnp.minimum(ENDS, top), atoms.x)
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
        reach = jnp.sort(s * steps * jnp.stack([lowest, top]))
        floor = query.y - 0.5 * deviation - 0.03 * jnp.abs(query.y - s * steps)
        floor = jnp.minimum(floor, centre)

        def window(step: jax.Array):
            """With ratios spread over lattice steps: that widens the law above."""
            spread = jnp.minimum(step * step / 6.0, step * m.mean)
            wide = log_mgf + 0.5 * steps * spread * jnp.concatenate([tilts, tilts]) ** 2
            below = _edge(wide[: tilts.size], tilts, log_mass)
            above = _edge(wide[tilts.size :], tilts, log_mass)
            low = jnp.minimum(centre - below, either(down, everything, floor))
            low = jnp.maximum(low, reach[0])
            # Above, z e^{-theta z} falls.
            far = jnp.minimum(centre + above, query.y + (3.0 - log_mass) / theta)
            high = jnp.minimum(jnp.maximum(far, query.y + 0.5 * deviation), reach[1])
            # What is wrapped around must not come to lie beyond what is read.
            far = jnp.minimum(centre + above, reach[1])
            read = either(down, low, floor)
            high = jnp.maximum(high, low + far - either(down, low, query.y))
            return low, high, jnp.maximum(far - read, high - low), read

        low, high, _, _ = window(jnp.float64(0.0))
        low, high, width, read = window((high - low) / points)
        chosen = AveragePlan(
            theta,
            query.y,
            m.mean,
            top,
            cut,
            low - centre,
            high - centre,
            width,
            read - centre,
            tilts,
            common.limit,
        )
        # The rounding of the transform must be small beside that (see `_average_fft`).
        step = (high - low) / points
        off = jnp.minimum(jnp.abs(atoms.x - m.mean) / step, 20.0)
        moved = jnp.sum(jnp.exp(log_weight) * jnp.minimum(off, 1.0))
        bulk = jnp.sqrt(steps * jnp.sum(jnp.exp(log_weight) * off * off))
        waves = jnp.minimum(1.0 + 0.3 * points / (bulk + 1e-300), points)
        error = 2e-14 * (1.0 + steps * moved) * jnp.sqrt(waves)
        seen = log_cost + log_window
        if typical is not None:
            mean = s * steps
            rare = where_seen(typical, query.log_delta, mean, theta, m.log_norm, high)
            seen = either(s > 0, seen, rare)
        dear = jnp.maximum(jnp.log(error) - seen, 0.0)
        return chosen, (chosen.width + 2.0 * (high - low)) * jnp.exp(jnp.minimum(dear, 300.0))

    tried = jnp.asarray(_tried(s, typical))
    plans, size = jax.vmap(try_tilt)(tilt * tried)
    if whole is not False:  # all of the law is wanted, not only its tail
        dear = 1e3 if common.others is None else jnp.minimum(1.0 + 50.0 * common.others, 1e3)
        size = jnp.where(jnp.asarray(whole) & (tried > 0.5), dear * size, size)
    if typical is not None:
        size *= either(s > 0, 1.0, untypical(typical, plans.middle))
    order = jnp.arange(size.shape[0])
    best = jnp.min(jnp.where(size <= jnp.min(size), order, order[-1]))
    return jax.tree.map(lambda x: x[best], plans)


def _read(common: _Choice, query: _Query, plan: AveragePlan, fixed: bool, s: Sign) -> _Query:
    """The query again, from a coarse transform: delta if y is fixed, else y."""
    atoms, steps = common.atoms, common.steps
    excess = jnp.sum(jnp.exp(atoms.log_q) * jnp.maximum(atoms.x - plan.largest, 0.0))
    excess = either(s > 0, steps * excess, jnp.float64(0.0))
    h = (plan.high - plan.low) / (_SIZE - 8)
    x = jnp.minimum(atoms.x, plan.largest)
    log_weight = atoms.log_q + s * plan.theta * (x - plan.middle)
    log_norm = log_sum(log_weight)
    weight = jnp.exp(log_weight - log_norm)
    # A node at the smallest ratio: sums must not go below it.
    centre = jnp.floor((plan.middle - common.low) / h)
    place = (x - common.low) / h - centre
    cell = jnp.floor(place)
    right = place - cell
    # Take the splitting's variance out, as far as that leaves a law some lattice steps wide.
    spread = jnp.sum(weight * right * (1.0 - right))
    bulk = jnp.sum(weight * jnp.minimum((place - jnp.sum(weight * place)) ** 2, 1.0))
    law, _ = cyclic_power(
        jnp.concatenate([weight * (1.0 - right), weight * right]),
        s * jnp.concatenate([cell, cell + 1.0]),
        steps,
        _SIZE,
        jnp.clip(bulk + spread - 14.0 / steps, 0.0, spread),
    )
    origin = s * steps * (common.low + centre * h)
    moved = s * steps * plan.middle - origin
    at = jnp.floor((plan.low + moved) / h) + jnp.arange(_SIZE, dtype=jnp.float64)
    y = origin + h * at
    law = law[wrap(at, _SIZE)]
    z = y - query.y
    q = law * jnp.exp(jnp.clip(-plan.theta * z, -600.0, 600.0))
    rise = lax.cumsum(q, reverse=True)[1:] * h
    curve = jnp.concatenate([lax.cumsum(rise, reverse=True), jnp.zeros((1,))])
    log_unit = steps * log_norm - plan.theta * (query.y - s * steps * plan.middle)
    log_curve = jnp.log(jnp.maximum(curve, 1e-300)) + log_unit
    log_curve = jnp.logaddexp(log_curve, jnp.log(jnp.maximum(excess, 1e-300)))
    log_curve -= jnp.log(_scale(y, steps, s))
    if fixed:
        value = jnp.min(jnp.where(y <= query.y, log_curve, jnp.inf))
        return query._replace(log_delta=jnp.minimum(value, 0.0))
    met = (log_curve <= query.log_delta) & (y > plan.floor + s * steps * plan.middle)
    return query._replace(y=jnp.maximum(jnp.min(jnp.where(met, y, y[-1])), s * steps))


class _Round(NamedTuple):
    """What the rounds of a plan hand on; `settled` if the last query was read again."""

    number: jax.Array
    query: _Query
    plan: AveragePlan
    settled: jax.Array
    done: jax.Array


def plan(
    term: Term,
    steps: jax.Array,
    total: jax.Array | None,
    log_delta: jax.Array | None,
    s: Sign,
    size: int,
    *,
    whole: bool | jax.Array = False,
    down: bool | jax.Array | None = None,
    typical: Typical | None = None,
    others: jax.Array | None = None,
    rounds: int | jax.Array = ROUNDS,
    limit: jax.Array | None = None,
    known: Coarse | None = None,
) -> AveragePlan:
    """Choose for a query at S = total, or at log delta (one is None), transforms of `size`.

    Unless `whole`, only the curve up to the query is asked for: with s = +1 ratios beyond a bit
    more than the query need no place on the lattice (`_average_grid`). Tilted averages below a
    `typical` one are avoided, and rounding matters where ratios count. With s = +1, `others` is how
    many averages this one is composed with, if with nothing else. Of ratios up to a `limit` alone.
    The coarse law may be `known`.
    """
    steps, total, log_delta = lax.stop_gradient((steps, total, log_delta))
    atoms, above = coarse(term) if known is None else known
    limit = jnp.float64(jnp.inf) if limit is None else lax.stop_gradient(limit)
    atoms = Atoms(jnp.where(atoms.x <= limit, atoms.log_q, -jnp.inf), atoms.x)
    log_delta = None if log_delta is None else within_reach(atoms, steps, log_delta, s)
    low, high = support(term)
    high = jnp.minimum(high, limit)
    largest = jnp.max(jnp.where(atoms.log_q > -jnp.inf, atoms.x, 0.0))
    largest = jnp.minimum(high, 1.05 * largest)
    if may_remove(s):
        target = guess(atoms, steps, total) if log_delta is None else log_delta

        def ratio(share: ArrayLike) -> jax.Array:
            """Beyond which the P-mass is that share of delta."""
            kept = above > jnp.exp(jnp.maximum(target + jnp.log(share), _SMALLEST))
            return jnp.max(jnp.where(kept, atoms.x, 1.0)) * 1.05

        decisive = ratio(either(whole, _TOP_OF_WHOLE, _TOP))
        if others is not None:
            alone = far_enough_alone(atoms, steps, ratio, others)
            decisive = jnp.minimum(decisive, either(whole, alone, jnp.inf))
        decisive = jnp.minimum(high, decisive)
        decisive = jnp.where(1.1 * decisive >= limit, limit, decisive)
        largest = either(s > 0, decisive, largest)
        atoms = Atoms(atoms.log_q, either(s > 0, jnp.minimum(atoms.x, largest), atoms.x))
    some = may_remove(s) and whole is not True
    short = shortfall(atoms, steps) if some else jnp.float64(0.0)
    down = whole if down is None else down
    common = _Choice(atoms, low, largest, steps, whole, typical, others, short, limit, down)
    common = common._replace(low=lax.stop_gradient(low), high=lax.stop_gradient(largest))

    def again(state: _Round) -> _Round:
        """The last round, which reads nothing, is of the size asked for: one program for all."""
        query, last = state.query, state.settled | (state.number == rounds)
        chosen = _at(common, query, s, jnp.where(last, float(size), float(_SIZE)))
        read = _read(common, query, chosen, total is not None, s)
        moved = jnp.abs(read.y - query.y) / (chosen.high - chosen.low)
        settled = moved + jnp.abs(read.log_delta - query.log_delta) < _SETTLED
        return _Round(state.number + 1, read, chosen, settled, last)

    tilts, no = jnp.zeros((_STEPS_OF_TILTS.size,)), jnp.bool_(False)
    nothing = AveragePlan(*(jnp.float64(0.0) for _ in AveragePlan._fields))._replace(tilts=tilts)
    query = _Query(
        *(jnp.asarray(x, jnp.float64) for x in _first_query(common, total, log_delta, s))
    )
    start = lax.stop_gradient(_Round(jnp.int32(0), query, nothing, no, no))

    def unless_done(_, state: _Round) -> _Round:
        return lax.cond(state.done, lambda state: state, again, state)

    chosen = lax.fori_loop(0, rounds + 1, unless_done, start).plan
    # The law below collapses its low end: at least so far that it holds a third of the mass up to
    # one lattice step further on.
    mass = jnp.cumsum(jnp.exp(atoms.log_q))
    reached = jnp.interp(atoms.x + chosen.width / size, atoms.x, mass)
    enough = (mass > 0.0) & (reached <= 3.0 * mass)
    least = jnp.min(jnp.where(enough, atoms.x, atoms.x[-1]))
    if whole is not False:
        chosen = chosen._replace(query=jnp.float64(1e300))
    return chosen._replace(cut=jnp.maximum(chosen.cut, jnp.minimum(least, chosen.middle)))
