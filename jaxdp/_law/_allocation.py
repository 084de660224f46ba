"""Bounds for random allocation, one of t steps, and the averaged law as a term to compose.

The lower bounds for several blocks are of the composition of the blocks, which itself lies above k
of t steps (`_subset` has what is below).
"""

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _lanes
from jaxdp import _special as special
from jaxdp._divergences import log_add, log_positive
from jaxdp._law import (
    _allowances,
    _average,
    _average_alone,
    _average_atoms,
    _average_end,
    _average_guess,
    _average_jump,
    _average_plan,
    _average_stitch,
    _average_term,
    _query,
)
from jaxdp._law._average import Total
from jaxdp._law._average_tilt import AveragePlan
from jaxdp._law._terms import (
    AnyDirection,
    Direction,
    Sign,
    Term,
    either,
    may_add,
    may_remove,
    sign_of,
)

DEFAULT_SIZE = 16384
_LAST = 600.0
# Lattices for a law above, by the delta that each is for: that share of the logarithm, and so much
# less; whether its tail is cut as for all of the law, and whether its window holds the bulk.
_AIMS = ((0.15, 1.0), (1.0, 0.0), (1.0, 7.0))
_KINDS = ((False, True), (True, True), (False, False))
_ROUNDS = 2  # of their plans


def _numbers(*values: ArrayLike) -> tuple[jax.Array, ...]:
    return tuple(jnp.asarray(value, jnp.float64) for value in values)


def _unknown(term: Term) -> jax.Array:
    """0, or nan if nothing is known of the term's masses."""
    return jnp.where(jnp.isnan(jnp.asarray(term.mass_error)), jnp.nan, 0.0)


def _between(
    bounds: Iterable[jax.Array],
    sides: tuple[int, ...],
    least: jax.Array,
    most: ArrayLike,
    term: Term,
) -> tuple[jax.Array, ...]:
    """Those below at least so much, those above at most; nan where nothing is known of the term."""
    unknown = _unknown(term)
    return tuple(
        (jnp.minimum(bound, most) if side > 0 else jnp.maximum(bound, least)) + unknown
        for bound, side in zip(bounds, sides, strict=True)
    )


def _log_delta(law: Total, steps: jax.Array, epsilon: jax.Array, s: Sign, side: int) -> jax.Array:
    """The bound; past the last epsilon whose ratio is a double, the one there (above) or none."""
    beyond, epsilon = epsilon > _LAST, jnp.minimum(epsilon, _LAST)
    c = s * steps * jnp.exp(s * epsilon)
    value = _average.log_curve(law, c, side) - jnp.log(steps) + either(s > 0, 0.0, epsilon)
    if side < 0:
        value = jnp.where(beyond, -jnp.inf, value)
    value = log_add(value, _log_gone(law, s, side))
    return jnp.minimum(value, 0.0) if side > 0 else value


def _log_gone(law: Total, s: Sign, side: int) -> jax.Array:
    """log of what delta has besides the curve: P{inf}; of "add", above, what the lattice lacks."""
    log_tau = log_positive(law.tau)
    log_tau += side * _allowances.failure(log_tau, side=side)
    lacking = log_positive(law.dropped) if side > 0 else jnp.float64(-jnp.inf)
    return either(s > 0, log_tau, lacking)


def _epsilon(
    law: Total, steps: jax.Array, query: jax.Array, log_delta: jax.Array, s: Sign, side: int
) -> jax.Array:
    """Where the bound on the curve at the nodes, linear in between, meets delta times its scale.

    Above: at the first node where it is met (the true curve falls with epsilon), and linear back to
    the node before. Below: past the last node where it is not.
    """
    at = _average.curve(law, query, side)
    gone = _log_gone(law, s, side)
    some = log_delta > gone
    left = jnp.where(some, log_delta, 0.0) + special.log1mexp(
        jnp.where(some, gone - log_delta, -1.0)
    )
    log_delta = jnp.where(some, left, -jnp.inf)
    log_delta += either(s > 0, jnp.log(steps), 0.0)
    exponent = log_delta - at.log_unit
    target = jnp.exp(jnp.clip(exponent, -700.0, 700.0))
    # what is beyond the range of a double, on the safe side
    target = jnp.where(side * exponent < -700.0, 0.0 if side > 0 else jnp.inf, target)
    rough = _allowances.exponent(log_delta, at.log_unit)
    target = jnp.where(log_delta > -jnp.inf, target, 0.0) * (1.0 - side * rough)
    aim = either(s > 0, jnp.ones_like(at.y), -at.y) * target
    count = jnp.arange(at.y.shape[0], dtype=jnp.int32)
    last = at.y.shape[0] - 1
    if side > 0:
        met = at.value <= aim
        k = jnp.min(jnp.where(met, count, last + 1))
        reached = k <= last
        k, other = jnp.minimum(k, last), jnp.minimum(jnp.maximum(k - 1, 0), last)
    else:
        met = (at.value > aim) & ((s > 0) | (at.y < 0.0))
        k = jnp.max(jnp.where(met, count, -1))
        reached = k >= 0
        k = jnp.maximum(k, 0)
        other = jnp.minimum(k + 1, last)
    gap, other_gap = (aim - at.value)[k], (aim - at.value)[other]
    # The gap is linear between the two nodes, and changes sign.
    change = gap - other_gap
    inside = (other != k) & (jnp.abs(change) > 0.0) & jnp.isfinite(change)
    share = jnp.clip(jnp.where(inside, gap / jnp.where(inside, change, 1.0), 0.0), 0.0, 1.0)
    c = at.y[k] + share * (at.y[other] - at.y[k]) + side * law.shift
    if may_add(s):  # before the window
        before = _average.line_meets(law, log_delta, side)
        some = (s < 0) & ((k == 0) & reached if side > 0 else ~reached & (before < jnp.inf))
        c, reached = jnp.where(some, -before, c), reached | some
    ratio = jnp.maximum(s * c / steps, 0.0)
    epsilon = s * log_positive(ratio)
    return jnp.where(reached, epsilon, side * jnp.inf)


def averaged_term(
    term: Term,
    num_steps: ArrayLike,
    *,
    log_delta: ArrayLike,
    direction: AnyDirection = "remove",
    side: int = 1,
    size: int = DEFAULT_SIZE,
    count: ArrayLike = 1.0,
    others: ArrayLike | None = None,
    several: ArrayLike | None = None,
    known: _average_atoms.Coarse | None = None,
    typical: _average_atoms.Typical | None = None,
) -> Term:
    """The law of the average of num_steps ratios, above (side = 1) or below (-1), as a term.

    Right in the given direction only: pass the same one to the engine. `log_delta` is what its tail
    is to be accurate for, a choice; `count` is the term's, `others` how many other averages there
    are, if nothing else is composed with it, and `several` (add) how many of such are averaged. The
    coarse law may be `known`, and (add) what is `typical` of it.
    """
    s = sign_of(direction)
    steps, log_delta, count = _numbers(num_steps, log_delta, count)
    aim = jnp.maximum(log_delta - jnp.log(jnp.maximum(count, 1.0)), -600.0)
    beside = None if others is None else lax.stop_gradient(_numbers(others)[0])
    known = _average_atoms.coarse(term) if known is None else known
    jumps = _average_jump.choose(known, steps, aim, s) if may_remove(s) else None
    rounds = either(s > 0, _ROUNDS if side > 0 else _average_plan.ROUNDS, _average_plan.ROUNDS)
    if several is not None:  # what is averaged again has no delta of its own that rounds would find
        several = lax.stop_gradient(_numbers(several)[0])
        rounds = jnp.where(several > 1.0, 0, rounds)
    if may_add(s) and typical is None:
        typical = _average_guess.typical(known, steps, log_delta, count, several)
    plan = functools.partial(
        _average_plan.plan,
        term,
        steps,
        None,
        s=s,
        size=size,
        typical=typical,
        others=beside if may_remove(s) else None,
        limit=jumps.limit if jumps else None,
        known=known,
        rounds=rounds,
    )
    one = _Average(term, steps, aim, size, s, jumps, plan)
    averaged = _above(one) if side > 0 else _below(one)
    return averaged._replace(count=count, mass_error=_unknown(term))


class _Average(NamedTuple):
    """What is averaged, for which log delta and size; what is kept apart ("remove"); its plans."""

    term: Term
    steps: jax.Array
    aim: jax.Array
    size: int
    s: Sign
    jumps: _average_jump.Jumps | None
    plan: Callable[..., AveragePlan]


def _below(one: _Average) -> Term:
    """The law below: of one lattice, and large ratios apart ("remove")."""
    term, steps, aim, size, s, jumps, plan = one
    law = _average.total(term, steps, plan(aim, whole=True), size, s, -1)
    averaged = _average_term.as_term(law, term, s, -1)
    if jumps is None:
        return averaged
    part = _average_jump.below(term, steps, jumps, averaged.masses)
    return _average_jump.joined(averaged, part)


def _above(one: _Average) -> Term:
    """The law above. Of "remove" by several lattices: of the bulk, all of it, the largest ratios.

    One lattice that reaches the largest ratios is too coarse for the bulk, where few are composed.
    """
    term, steps, aim, size, s, jumps, plan = one

    def look(log_delta: jax.Array, whole: bool | jax.Array, down: bool | jax.Array):
        law = _average.total(term, steps, plan(log_delta, whole=whole, down=down), size, s, 1)
        return _average_term.nodes(law, term, s, 1), _average_term.ends(law, term, s, 1)

    if jumps is None:
        return _average_term.of_nodes(*look(aim, True, True))
    aims = jnp.stack([share * aim - deeper for share, deeper in _AIMS])
    some = jnp.asarray(s > 0)
    kinds = jnp.asarray(_KINDS) | ~some
    number = jnp.where(some, len(_AIMS), 1)
    found, ends = _lanes.first(look, (jnp.where(some, aims, aim), kinds[:, 0], kinds[:, 1]), number)
    laws = [jax.tree.map(lambda x, k=k: x[k], found) for k in range(len(_AIMS))]
    join = _average_stitch.joined(laws, ~some)
    masses, log_tau_p, log_tau_q = _average_stitch.as_masses(laws, join)
    # (The widest ends hold all of them.)
    looked = jnp.arange(len(_AIMS)) < number
    low, high = (
        jnp.min(jnp.where(looked, ends[0], jnp.inf)),
        jnp.max(jnp.where(looked, ends[1], -jnp.inf)),
    )
    law = Term(masses, 1.0, log_tau_p, log_tau_q, (low, high))
    return _average_jump.joined(law, _average_jump.above(term, steps, jumps, join.curve))


def size_for(length: int) -> int:
    """Lattice points that bracket epsilon to about 0.5 % at most.

    For steps in the tens of thousands at most (`length` 0), up to 1e5 (1), 1e6 (2).
    """
    return DEFAULT_SIZE << length


def _composed(
    term: Term,
    num_steps: ArrayLike | tuple[ArrayLike, ...],
    count: ArrayLike | tuple[ArrayLike, ...],
    log_delta: jax.Array,
    direction: Direction,
    side: int,
    size: int,
) -> tuple[Term, ...]:
    """One averaged term for each block length."""
    lengths = num_steps if isinstance(num_steps, tuple) else (num_steps,)
    counts = count if isinstance(count, tuple) else (count,)
    return tuple(
        averaged_term(
            term, t, log_delta=log_delta, direction=direction, side=side, size=size, count=n
        )
        for t, n in zip(lengths, counts, strict=True)
    )


def allocation_log_delta_bounds(
    term: Term,
    num_steps: ArrayLike | tuple[ArrayLike, ...],
    epsilon: ArrayLike,
    *,
    count: ArrayLike | tuple[ArrayLike, ...] | None = None,
    direction: AnyDirection = "remove",
    sides: tuple[int, ...] = (-1, 1),
    size: int = DEFAULT_SIZE,
    reach: tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on log delta at a real epsilon, one of t steps, for each of `sides`.

    With `count`, of that many independent such allocations, composed; tuples of both for several
    block lengths. `reach` is about the range of a step's losses, if that is not where atoms are.
    """
    s = sign_of(direction)
    if count is not None:
        shortest = num_steps[0] if isinstance(num_steps, tuple) else num_steps
        total = sum(count) if isinstance(count, tuple) else count
        aim = _average_guess.guess_log_delta(term, *_numbers(shortest, epsilon, total), s=s)
        return tuple(
            _query.log_delta_bound(
                _composed(term, num_steps, count, aim, direction, side, size),
                epsilon,
                direction=direction,
                side=side,
            )
            for side in sides
        )
    steps, epsilon = _numbers(num_steps, epsilon)
    query = steps * jnp.exp(s * jnp.minimum(epsilon, _LAST))
    reach = reach or term.support
    term = _average_end.within(term, reach)
    known = _average_atoms.coarse(term)
    chosen = _average_plan.plan(term, steps, query, None, s, size, known=known)
    about = _average_alone.about_epsilon(steps, epsilon, s)
    ends = _average_end.end(term, steps, s, reach, about)
    laws = [_average.total(term, steps, chosen, size, s, side, ends.bare) for side in sides]
    bounds = [
        _log_delta(law, steps, epsilon, s, side) for law, side in zip(laws, sides, strict=True)
    ]
    least, most = _average_end.log_delta(ends, epsilon), jnp.inf
    if may_remove(s):
        alone = _average_alone.log_delta_below(ends.one, steps, epsilon)
        least = jnp.maximum(least, alone)
        if 1 in sides:
            most = _average_alone.log_delta_above(term, known, steps, epsilon, alone)
            most = either(s > 0, most, jnp.inf)
    return _between(bounds, sides, least, most, term)


def allocation_log_delta_estimate(
    term: Term, num_steps: ArrayLike, epsilon: ArrayLike, direction: AnyDirection
) -> jax.Array:
    """About log delta at a real epsilon, one of t steps: a start for searches, no bound."""
    s = sign_of(direction)
    steps, epsilon = _numbers(num_steps, epsilon)
    total = steps * jnp.exp(s * jnp.minimum(epsilon, _LAST))
    return _average_plan.log_delta_at_total(term, steps, total, s)


def allocation_epsilon_bounds(
    term: Term,
    num_steps: ArrayLike | tuple[ArrayLike, ...],
    delta: ArrayLike | None = None,
    *,
    log_delta: ArrayLike | None = None,
    count: ArrayLike | tuple[ArrayLike, ...] | None = None,
    direction: AnyDirection = "remove",
    sides: tuple[int, ...] = (-1, 1),
    size: int = DEFAULT_SIZE,
    reach: tuple[ArrayLike, ArrayLike] | None = None,
) -> tuple[jax.Array, ...]:
    """Certified bounds on epsilon >= 0 at delta, one of t steps, for each of `sides`.

    With `count`, of that many independent such allocations, composed; tuples of both for several
    block lengths. `reach` is as in `allocation_log_delta_bounds`.
    """
    if log_delta is None:
        log_delta = jnp.log(jnp.asarray(delta, jnp.float64))
    s = sign_of(direction)
    if count is not None:
        (aim,) = _numbers(log_delta)
        return tuple(
            _query.epsilon_bounds(
                _composed(term, num_steps, count, aim, direction, side, size),
                log_delta=log_delta,
                direction=direction,
                sides=(side,),
            )[0]
            for side in sides
        )
    steps, log_delta = _numbers(num_steps, log_delta)
    reach = reach or term.support
    term = _average_end.within(term, reach)
    known = _average_atoms.coarse(term)
    chosen = _average_plan.plan(term, steps, None, log_delta, s, size, known=known)
    about = _average_alone.about_delta(known, term.log_tau_p, steps, log_delta, s)
    ends = _average_end.end(term, steps, s, reach, about)
    laws = [_average.total(term, steps, chosen, size, s, side, ends.bare) for side in sides]
    bounds = [
        _epsilon(law, steps, chosen.query, log_delta, s, side)
        for law, side in zip(laws, sides, strict=True)
    ]
    least, most = _average_end.epsilon(ends, log_delta), jnp.inf
    if may_remove(s):
        alone = _average_alone.epsilon_below(ends.one, steps, log_delta)
        least = jnp.maximum(least, alone)
        if 1 in sides:
            most = _average_alone.epsilon_above(term, known, steps, log_delta, alone)
            most = either(s > 0, most, jnp.inf)
    return tuple(jnp.maximum(bound, 0.0) for bound in _between(bounds, sides, least, most, term))
