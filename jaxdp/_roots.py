"""Certified one-dimensional root finding, with implicit derivatives.

`safe_root` returns a point where a constraint f(x) <= 0 holds, next to where it stops holding.
The point returned was itself evaluated: no tolerance is taken on trust.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _lanes

_MAX_STEPS = 200
_SECANT_RUN = 1e-6  # nearer points say nothing about the slope of a rounded function


class _State(NamedTuple):
    x: jax.Array
    bad: jax.Array  # largest point known to violate the constraint, -inf at first
    good: jax.Array  # smallest point known to satisfy it, +inf at first
    value: jax.Array  # f(good)
    last: tuple[jax.Array, jax.Array]  # the point before and its value
    slope: jax.Array  # f' at the last point, or an estimate of it
    streak: jax.Array  # how many points in a row fell on the same side
    side: jax.Array  # whether the last point satisfied the constraint
    count: jax.Array
    done: jax.Array
    part: jax.Array  # of f, see `Parts`: the one to be evaluated next
    checking: jax.Array  # whether that is at a point (good) that satisfies the other one


class Parts(NamedTuple):
    """f as the maximum of two parts: f(x) = max(of(x, False), of(x, True)).

    The search follows one of them, from `first` on, and looks at the other one only where it would
    end: if that one is violated there, it is followed from there on. `met(x, part)` says, at little
    cost, that a part is known to be satisfied, and need not be looked at.
    """

    of: Callable[[jax.Array, jax.Array], jax.Array]
    first: jax.Array
    met: Callable[[jax.Array, jax.Array], jax.Array] | None = None


def _secant(s: _State, value: jax.Array) -> jax.Array:
    """The slope through the last two points, unless they lie too near or it turns the other way.

    It changes by a factor of 4 at most: two points may say little, but they say it again.
    """
    before, value_before = s.last
    run = s.x - before
    secant = (value - value_before) / jnp.where(run != 0.0, run, 1.0)
    far = jnp.abs(run) > _SECANT_RUN * jnp.maximum(jnp.abs(s.x), 1.0)
    ratio = secant / s.slope
    usable = far & (ratio > 0.0) & jnp.isfinite(ratio)
    return s.slope * jnp.where(usable, jnp.clip(ratio, 0.25, 4.0), 1.0)


def _begin(start, slope, parts: Parts | None, floor) -> _State:
    start = jnp.asarray(start, jnp.float64)
    return _State(
        start,
        jnp.broadcast_to(jnp.asarray(floor, jnp.float64), start.shape),
        jnp.full_like(start, jnp.inf),
        jnp.full_like(start, jnp.nan),
        (start, jnp.full_like(start, jnp.nan)),
        jnp.full_like(start, -1.0) if slope is None else slope,
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
        jnp.zeros((), jnp.int32),
        jnp.isnan(start),
        jnp.zeros((), bool) if parts is None else parts.first,
        jnp.zeros((), bool),
    )


def _search(
    f,
    start,
    relative_tolerance,
    absolute_tolerance,
    slope=None,
    parts: Parts | None = None,
    floor: jax.Array | float = -jnp.inf,
    lanes: int | None = None,
    either: bool = False,
    size: Callable[[jax.Array], jax.Array] = jnp.abs,
) -> _State:
    """Newton's method aimed just across the root, until the bracket is as tight as the tolerance.

    Points up to the floor count as violating.

    Steps that keep falling short of crossing are doubled, and those that would leave the bracket
    halve it, as do those after a crossing that did not: neither a misleading slope nor a flat or
    infinite value, nor a bend, can stall or end the search.
    With a first estimate of the slope, f is not differentiated: secants refine it, and a satisfying
    point which by its slope is nearer to the root than the tolerance will do; from either side, if
    that is all that is asked for. Parts are for such a search only.
    """
    first_slope = slope

    def body(s: _State) -> _State:
        if first_slope is None:
            value, slope = jax.jvp(f, (s.x,), (jnp.ones_like(s.x),))
        else:
            value = f(s.x) if parts is None else parts.of(s.x, s.part)
            slope = jnp.where(s.checking, s.slope, _secant(s, value))
        satisfied = value <= 0.0  # false for nan
        proved, refuted = s.checking & satisfied, s.checking & ~satisfied
        good = jnp.where(satisfied, s.x, jnp.where(refuted, jnp.inf, s.good))
        known = jnp.where(proved, jnp.maximum(s.value, value), value)
        value_at_good = jnp.where(satisfied, known, s.value)
        bad = jnp.where(satisfied, s.bad, s.x)
        streak = jnp.where((satisfied == s.side) & ~s.checking, s.streak + 1, 0)
        tolerance = relative_tolerance * size(s.x) + absolute_tolerance
        # With a slope a satisfying point ends the search, else only a violating one nearby does.
        back = first_slope is None
        across = jnp.where(satisfied & back, -0.4, 0.4) * tolerance
        unit = jnp.maximum(jnp.abs(s.x), 1.0)
        growth = jnp.exp2(jnp.maximum(streak - 2, 0).astype(jnp.float64))
        step = jnp.clip(growth * (across - value / slope), -4.0 * unit, 4.0 * unit)
        newton = s.x + step
        bracketed = jnp.isfinite(good) & jnp.isfinite(bad)
        usable = (newton > bad) & (newton < good)
        # (At a kink steps may go from one side to the other and back for ever: long ones.)
        short = jnp.abs(step) <= 0.5 * (good - bad)
        usable &= (streak > 0) | short | (good - bad <= 0.5 * (s.good - s.bad)) | ~bracketed
        middle = 0.5 * (bad + good)
        blind = s.x + jnp.where(satisfied, -1.0, 1.0) * unit * growth
        x = jnp.where(usable, newton, jnp.where(bracketed, middle, blind))
        over = (
            (good - bad <= tolerance) | ~jnp.isfinite(x) | (bracketed & ((x <= bad) | (x >= good)))
        )
        if first_slope is not None:
            # (An estimate may leap: a slope that steep is not believed.)
            near = jnp.abs(value) < -jnp.maximum(slope, -_STEEP) * tolerance
            over |= near & (satisfied | either)
        check = over & ~proved & jnp.isfinite(good) & (parts is not None)
        if parts is not None and parts.met is not None:
            check &= ~parts.met(jnp.where(check, good, s.x), ~s.part)
        done = proved | (over & ~check)
        return _State(
            jnp.where(check, good, jnp.where(done, s.x, x)),
            bad,
            good,
            value_at_good,
            (s.x, value),
            slope,
            streak,
            satisfied,
            s.count + 1,
            done,
            s.part ^ check,
            check,
        )

    state = _begin(start, slope, parts, floor)
    state = _lanes.while_loop(lambda s: ~s.done & (s.count < _MAX_STEPS), body, state, lanes)
    if parts is None:
        return state
    return state._replace(good=jnp.where(state.done, state.good, jnp.inf))  # else not checked


def safe_root(
    f: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    relative_tolerance: float = 1e-12,
    absolute_tolerance: float = 1e-300,
    size: Callable[[jax.Array], jax.Array] = jnp.abs,
) -> jax.Array:
    """The least x with f(x) <= 0, for f decreasing through 0, from the side where f(x) <= 0.

    A point less by the tolerance was evaluated too and violates the constraint (f need not be
    monotone for the result to satisfy it); +inf if no satisfying point is found. Derivatives with
    respect to what f closes over are implicit: dx = -df / f'(x).

    Args:
      f: scalar function, differentiable in forward mode; nan counts as a violation.
      start: where to begin, any finite number; nan gives +inf.
      relative_tolerance: of the bracket, of size(x).
      absolute_tolerance: of the bracket, in addition.
      size: of a point, |x| by default.
    """
    found = safe_root_and_value(f, start, relative_tolerance, absolute_tolerance, size=size)
    return found[0]


_STEEP = 64.0
_ROUNDS = 24  # of a search that has to be confirmed
_BLIND_STEP = 1e-3
_STEEPEST = 16.0  # rate at which what confirms may fall, for its first step not to be too long


def _confirmed(
    search: Callable[[jax.Array, jax.Array], _State],
    start: jax.Array,
    floor: jax.Array,
    confirm: Callable[[jax.Array], jax.Array],
    tolerance: float,
) -> tuple[jax.Array, jax.Array]:
    """Search, and where confirm is > 0 at the point found, again from further on: (good, value).

    The next point is further by a part of what confirm is off by, doubled every time; what is
    before it is left behind, so that each later search is one look at the constraint or a few.
    """

    def again(state: tuple) -> tuple:
        count, x, floor, *_ = state
        found = search(x, floor)
        some = jnp.isfinite(found.good)
        off = confirm(jnp.where(some, found.good, x))
        met = some & (off <= 0.0)
        done = met | ~some
        off = jnp.where(jnp.isfinite(off), jnp.minimum(off, 1.0), _BLIND_STEP)
        step = jnp.exp2(count.astype(jnp.float64)) * jnp.maximum(off / _STEEPEST, tolerance)
        ahead = jnp.where(some, found.good, x) + step
        good = jnp.where(met, found.good, jnp.inf)
        return count + 1, ahead, ahead - 0.5 * tolerance, good, found.value, done

    nothing = jnp.full_like(start, jnp.inf), jnp.full_like(start, jnp.nan)
    state = jnp.zeros((), jnp.int32), start, floor, *nothing, jnp.isnan(start)
    state = jax.lax.while_loop(lambda s: ~s[-1] & (s[0] < _ROUNDS), again, state)
    return state[3], state[4]


def safe_root_and_value(
    f: Callable[..., jax.Array],
    start: jax.Array,
    relative_tolerance: float,
    absolute_tolerance: float,
    slope: jax.Array | None = None,
    parts: Parts | None = None,
    floor: jax.Array | float = -jnp.inf,
    confirm: Callable[[jax.Array], jax.Array] | None = None,
    lanes: int | None = None,
    operands: tuple[Any, ...] | None = None,
    size: Callable[[jax.Array], jax.Array] = jnp.abs,
) -> tuple[jax.Array, jax.Array]:
    """`safe_root` and f there (without derivatives).

    Args:
      f: as for `safe_root`.
      start: where to begin.
      relative_tolerance: of the bracket, as for `safe_root`.
      absolute_tolerance: of the bracket.
      slope: an estimate of f' < 0 near the root, to search without differentiating f.
      parts: with a slope, what f is the maximum of, to evaluate one at a time.
      floor: points up to it count as violating.
      confirm: has to be <= 0 as well at the point returned, which may then lie further on than
        the root; it falls there, at a rate of the order of 1 to 16.
      lanes: of a batch, how many roots to search at a time (`_lanes`).
      operands: further arguments of f, if it closes over nothing else that it is differentiated by:
        to find out what it closes over takes as long as tracing it.
      size: as for `safe_root`.
    """
    # (`lax.custom_root` traces derivatives of f whether or not anybody asks for them.)
    if operands is None:
        closed, held = jax.closure_convert(f, start)
    else:
        closed, held = jax.jit(f), operands  # traced once, for its derivatives too
    start, slope, floor = jax.lax.stop_gradient((start, slope, floor))

    @jax.custom_jvp
    def root(*operands):
        def search(x, floor):
            return _search(
                lambda x: closed(x, *operands),
                x,
                relative_tolerance,
                absolute_tolerance,
                slope,
                parts,
                floor,
                lanes,
                size=size,
            )

        if confirm is None:
            state = search(start, floor)
            return state.good, state.value
        low = jnp.broadcast_to(jnp.asarray(floor, jnp.float64), jnp.shape(start))
        return _confirmed(search, start, low, confirm, absolute_tolerance)

    @root.defjvp
    def _implicit(operands, tangents):
        x, value = root(*operands)
        _, per_x = jax.jvp(lambda x: closed(x, *operands), (x,), (jnp.ones_like(x),))
        _, change = jax.jvp(lambda *rest: closed(x, *rest), operands, tangents)
        return (x, value), (-change / per_x, jnp.zeros_like(value))

    return root(*held)


def estimate_root(
    f: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    tolerance: float,
    slope: jax.Array,
    parts: Parts | None = None,
    lanes: int | None = None,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """A point near the root of a decreasing f, f' near there from an estimate, the larger part.

    Without parts it is where the last step would have led: the root, as far as f is a line there.
    """
    state = _search(f, start, 0.0, tolerance, slope, parts, lanes=lanes, either=parts is None)
    found = state.good
    if parts is None:
        x, value = state.last
        ahead = x - value / state.slope
        close = jnp.abs(ahead - x) <= tolerance
        found = jnp.where(state.done & close, ahead, found)
    checked = jnp.isfinite(state.good)  # the other part, last of all
    return jax.lax.stop_gradient((found, state.slope, state.part ^ checked))
