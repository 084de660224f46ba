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
from jax import lax
from jax.typing import ArrayLike

from jaxdp._law import _places
from jaxdp._law._average_atoms import (
    DEEPEST,
    FILLED,
    Atoms,
    Coarse,
    Typical,
    coarse,
    far_enough_alone,
    guess,
    log_delta_at,
    log_sum,
    moments,
    saddle,
    shortfall,
    within_reach,
)
from jaxdp._law._average_fft import cyclic_power
from jaxdp._law._average_grid import support
from jaxdp._law._average_tilt import (
    AveragePlan,
    Choice,
    Query,
    lost_at,
    no_plan,
    plan_at,
    scale_of,
)
from jaxdp._law._places import wrap
from jaxdp._law._terms import Sign, Term, either, may_add, may_remove

_SMALLEST = -705.0  # log of a P-mass that is still a number
# What is cut off at the top of X costs delta this fraction; that one where averages are composed.
_TOP, _TOP_OF_WHOLE = 1e-4, 3e-3
# The coarse transforms that find where to look.
_SIZE = 2048
# Times the ratio that leaves nothing of delta: coarse ones are a tenth apart, and weights fall.
_FARTHER, _WEIGHT = 1.25, 3.0
ROUNDS = 6  # at most
_COUNTS = 1e-3  # a part of a variance that does
_SETTLED = 1e-3  # a change of the query that is next to the coarse lattice's step, of its width


def _first_query(
    common: Choice, total: jax.Array | None, log_delta: jax.Array | None, s: Sign
) -> Query:
    """From the saddle point."""
    atoms, highest, steps = common.atoms, common.high, common.steps
    theta = saddle(atoms, steps, None if total is None else s * total, log_delta, s)
    m = moments(atoms, theta, s)
    # A normal tail or one large ratio decides; the saddle point may take many for one.
    limit = steps + 1.2 * highest
    if total is not None:  # (no round reads the query again: a normal tail there decides beyond)
        normal = either(s > 0, guess(atoms, steps, limit) > DEEPEST, False)
        limit = jnp.where(normal, jnp.inf, limit)
    mean = jnp.maximum(s * jnp.minimum(steps * m.mean, limit), s * steps)
    value = log_delta_at(m, theta, steps, s)
    if total is None:
        return Query(mean, jnp.asarray(log_delta))
    deep = value < DEEPEST + 1.0
    return Query(jnp.where(deep, jnp.minimum(s * total, mean), s * total), value)


def _read(common: Choice, query: Query, plan: AveragePlan, fixed: bool, s: Sign) -> Query:
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
    centre = _places.floor((plan.middle - common.low) / h)
    place = (x - common.low) / h - centre
    cell = _places.floor(place)
    right = _places.after(place, cell)
    # Take the splitting's variance out, as far as that leaves a law some lattice steps wide, and if
    # it counts: (atoms far apart have transforms that do not fall, and would leave waves).
    spread = jnp.sum(weight * right * (1.0 - right))
    square = (place - jnp.sum(weight * place)) ** 2
    bulk = jnp.sum(weight * jnp.minimum(square, 1.0))
    spread = jnp.where(spread > _COUNTS * jnp.sum(weight * square), spread, 0.0)
    law, _ = cyclic_power(
        jnp.concatenate([weight * (1.0 - right), weight * right]),
        s * jnp.concatenate([cell, cell + 1.0]),
        steps,
        _SIZE,
        jnp.clip(bulk + spread - 14.0 / steps, 0.0, spread),
    )
    origin = s * steps * (common.low + centre * h)
    moved = s * steps * plan.middle - origin
    at = _places.floor((plan.low + moved) / h) + jnp.arange(_SIZE, dtype=jnp.float64)
    y = origin + h * at
    law = law[wrap(at, _SIZE)]
    z = y - query.y
    q = law * jnp.exp(jnp.clip(-plan.theta * z, -600.0, 600.0))
    rise = lax.cumsum(q, reverse=True)[1:] * h
    curve = jnp.concatenate([lax.cumsum(rise, reverse=True), jnp.zeros((1,))])
    log_unit = steps * log_norm - plan.theta * (query.y - s * steps * plan.middle)
    log_curve = jnp.log(jnp.maximum(curve, 1e-300)) + log_unit
    log_curve = jnp.logaddexp(log_curve, jnp.log(jnp.maximum(excess, 1e-300)))
    log_curve -= jnp.log(scale_of(y, steps, s))
    if fixed:
        value = jnp.min(jnp.where(y <= query.y, log_curve, jnp.inf))
        return query._replace(log_delta=jnp.minimum(value, 0.0))
    met = (log_curve <= query.log_delta) & (y > plan.floor + s * steps * plan.middle)
    return query._replace(y=jnp.maximum(jnp.min(jnp.where(met, y, y[-1])), s * steps))


class _Round(NamedTuple):
    """What the rounds of a plan hand on; `settled` if the last query was read again."""

    number: jax.Array
    query: Query
    plan: AveragePlan
    settled: jax.Array
    done: jax.Array


def log_delta_at_total(term: Term, steps: jax.Array, total: jax.Array, s: Sign) -> jax.Array:
    """Log delta at S = total as coarse transforms show it, to about a hundredth: no bound."""
    return plan(term, steps, total, None, s, _SIZE).log_delta


def _seen(
    atoms: Atoms, steps: jax.Array, total: jax.Array | None, log_delta: jax.Array | None
) -> jax.Array:
    """Beyond which one ratio leaves nothing of (c - S)_+ ("add"), nor has weight at its tilt.

    delta = 1 - E min(S, c) / c >= 1 - t E min(X, c) / c, which grows with c: where delta is known,
    that says how large c may be; where c is, how small delta may be.
    """
    mass = jnp.exp(atoms.log_q)
    capped = jnp.cumsum(mass * atoms.x) + atoms.x * jnp.maximum(1.0 - jnp.cumsum(mass), 0.0)
    some = atoms.x > 0.0
    least = jnp.where(some, 1.0 - steps * capped / jnp.where(some, atoms.x, 1.0), 0.0)
    if total is None:
        assert log_delta is not None
        total = jnp.max(jnp.where(least <= jnp.exp(log_delta), atoms.x, 0.0))
    elif log_delta is None:
        up_to = jnp.where(atoms.x <= total, least, 0.0)
        log_delta = jnp.log(jnp.maximum(jnp.max(up_to), jnp.exp(DEEPEST)))
    return total * (_FARTHER - _WEIGHT * log_delta)


def _common(
    term: Term,
    steps: jax.Array,
    total: jax.Array | None,
    log_delta: jax.Array | None,
    s: Sign,
    known: Coarse,
    *,
    whole: bool | jax.Array,
    down: bool | jax.Array,
    typical: Typical | None,
    others: jax.Array | None = None,
    limit: jax.Array | None = None,
) -> tuple[Choice, jax.Array | None]:
    """What the plans of a query have in common, and its log delta within reach."""
    atoms, above = known.atoms, known.above
    limit = jnp.float64(jnp.inf) if limit is None else lax.stop_gradient(limit)
    atoms = Atoms(jnp.where(atoms.x <= limit, atoms.log_q, -jnp.inf), atoms.x)
    log_delta = None if log_delta is None else within_reach(atoms, steps, log_delta, s)
    low, high = lax.stop_gradient(support(term))
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
    if may_add(s) and whole is not True:
        seen = either(s > 0, jnp.inf, _seen(atoms, steps, total, log_delta))
        seen = jnp.where(whole, jnp.inf, seen)
        largest = jnp.minimum(largest, seen)
        atoms = Atoms(atoms.log_q, jnp.minimum(atoms.x, seen))
    some = may_remove(s) and whole is not True
    short = shortfall(atoms, steps) if some else jnp.float64(0.0)
    common = Choice(
        atoms, known.ends, low, largest, steps, whole, typical, others, short, limit, down
    )
    common = common._replace(low=lax.stop_gradient(low), high=lax.stop_gradient(largest))
    return common, log_delta


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
    known = coarse(term) if known is None else known
    common, log_delta = _common(
        term,
        steps,
        total,
        log_delta,
        s,
        known,
        whole=whole,
        down=whole if down is None else down,
        typical=typical,
        others=others,
        limit=limit,
    )
    atoms = common.atoms

    def again(state: _Round) -> _Round:
        """The last round, which reads nothing, is of the size asked for: one program for all."""
        query, last = state.query, state.settled | (state.number == rounds)
        chosen = plan_at(common, query, s, jnp.where(last, float(size), float(_SIZE)))
        read = _read(common, query, chosen, total is not None, s)
        moved = jnp.abs(read.y - query.y) / (chosen.high - chosen.low)
        settled = moved + jnp.abs(read.log_delta - query.log_delta) < _SETTLED
        return _Round(state.number + 1, read, chosen, settled, last)

    no = jnp.bool_(False)
    query = Query(*(jnp.asarray(x, jnp.float64) for x in _first_query(common, total, log_delta, s)))
    start = lax.stop_gradient(_Round(jnp.int32(0), query, no_plan(), no, no))

    def unless_done(_, state: _Round) -> _Round:
        return lax.cond(state.done, lambda state: state, again, state)

    state = lax.fori_loop(0, rounds + 1, unless_done, start)
    chosen = state.plan._replace(log_delta=state.query.log_delta)
    # The law below collapses its low end: at least so far that it holds a third of the mass up to
    # one lattice step further on.
    mass = jnp.cumsum(jnp.exp(atoms.log_q))
    reached = jnp.interp(atoms.x + chosen.width / size, atoms.x, mass)
    enough = (mass > 0.0) & (reached <= 3.0 * mass)
    least = jnp.min(jnp.where(enough, atoms.x, atoms.x[-1]))
    if whole is not False:
        chosen = chosen._replace(query=jnp.float64(1e300))
    cut = jnp.maximum(chosen.cut, jnp.minimum(least, chosen.middle))
    # (Laws to be composed lose as much by the coarser lattice that a node for one atom makes.)
    weight = atoms.log_q + s * chosen.theta * atoms.x
    there = (atoms.x > cut * (1.0 + 1e-6)) & (atoms.x <= chosen.largest)
    weight = jnp.where(there, weight, -jnp.inf)
    heavy = jnp.max(jnp.where(weight >= jnp.max(weight), known.atoms.x, 0.0))
    some = (known.filled < FILLED) & (jnp.max(weight) > -jnp.inf) & jnp.logical_not(whole)
    heavy = jnp.where(some, heavy, 0.0)
    return chosen._replace(cut=cut, heavy=heavy)


def lost(
    term: Term,
    known: Coarse,
    steps: jax.Array,
    log_delta: jax.Array,
    typical: Typical,
    size: int,
) -> jax.Array:
    """How many digits, in logs, lattices lack for an average to be composed ("add"): about that."""
    steps, log_delta = lax.stop_gradient((steps, log_delta))
    common, aim = _common(
        term,
        steps,
        None,
        log_delta,
        -1,
        known,
        whole=True,
        down=True,
        typical=typical,
    )
    query = _first_query(common, None, aim, -1)
    return lax.stop_gradient(lost_at(common, query, typical, jnp.float64(size)))
