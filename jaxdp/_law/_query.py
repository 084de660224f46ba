"""Bounds on delta at epsilon and on epsilon at delta, read from a composed law."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxdp._divergences import log_add, log_positive
from jaxdp._law import _allowances
from jaxdp._law._compose import Composed, compose, left_out
from jaxdp._law._events import delta_at, epsilon_at, summed, with_events
from jaxdp._law._plan import Plan, plan
from jaxdp._law._saddle import coarse_atoms, estimate, log_price, saddle_point
from jaxdp._law._terms import AnyDirection, Direction, Terms, oriented, over_directions
from jaxdp._special import log1mexp, log_excess

DEFAULT_SIZE = 8192
_LARGEST_EXPONENT = 650.0
_BLOCK = 32  # points that are looked at together to find out where a curve is met
_SURE = 1e-9  # of a mass's log
_FAR = 500.0  # losses so far above the centre of a reading count by their P-mass
_WIDEST = 32.0  # spacing of a lattice that is read smoothed
_ROUGH = 0.5  # total variation of the weights, of two for a lone atom


def _prefactor(law: Composed, epsilon: jax.Array, side: int) -> jax.Array:
    """log e^{sum n K - theta eps}, its rounding on the safe side."""
    slack = _allowances.prefactor(law.log_scale, law.theta * epsilon)
    return law.log_scale - law.theta * epsilon + side * slack


def _or_nan(law: Composed, value: jax.Array) -> jax.Array:
    """The value, unless the law is none: comparisons with nan would make it a bound."""
    parts = law.theta + law.start + law.spacing + law.log_scale + law.shift + jnp.sum(law.weights)
    ok = jnp.isfinite(parts) & ~jnp.isnan(law.stray + law.outside + law.log_tau)
    return jnp.where(ok, value, jnp.nan)


def _half_cell(law: Composed, side: int) -> jax.Array:
    """tau, for a curve above that is read smoothed: else 0.

    C(a) = E (X - a)_+ is convex, so that its mean over (a (1 - tau), a (1 + tau)) is above it. With
    tau = tanh(h / 2) every a has one point of the lattice in reach, and the mean has no kinks: it
    follows slopes at any scale, at a cost of second order. Only where the weights vary little from
    point to point (the kinks of an atomic law are its own), and where 1 - tau has digits.
    """
    if side < 0:
        return jnp.zeros_like(law.spacing)
    w = lax.stop_gradient(law.weights)
    smooth = (jnp.sum(jnp.abs(w[1:] - w[:-1])) < _ROUGH) & (law.spacing < _WIDEST)
    return jnp.where(smooth, jnp.tanh(0.5 * law.spacing), 0.0)


def _log_delta(law: Composed, epsilon: jax.Array, side: int) -> jax.Array:
    epsilon = epsilon - side * law.shift
    count = jnp.arange(law.weights.shape[0], dtype=jnp.float64)
    y = law.start + law.spacing * count - epsilon
    tau = _half_cell(law, side)
    beyond = y > jnp.log1p(-tau)
    y = jnp.where(beyond, y, 1.0)
    rise = -jnp.expm1(-y)
    # The mean of (1 - b e^{-y})_+ over b in (1 - tau, 1 + tau).
    near = y < jnp.log1p(tau)
    reach = jnp.where(near, rise + tau * (1.0 - rise), 0.0)
    smoothed = reach**2 / jnp.where(near, 4.0 * tau * (1.0 - rise), 1.0)
    kernel = jnp.exp(-law.theta * y) * jnp.where(near, smoothed, rise)
    total = jnp.sum(jnp.where(beyond, law.weights * kernel, 0.0))
    total *= 1.0 + side * _allowances.tilted_sums(law.weights.shape[0])
    total += side * left_out(law, epsilon, side)
    if side > 0:  # whatever the window: a law of mass 1, and the kernel below its supremum
        total = jnp.minimum(total, jnp.exp(log_price(law.theta)) * (1.0 + law.stray))
    finite = _prefactor(law, epsilon, side) + log_positive(total)
    if side > 0:
        value = log_add(finite, law.log_tau) + 64.0 * _allowances.UNIT
        known = epsilon >= law.least - law.shift
        return _or_nan(law, jnp.where(known, jnp.minimum(value, 0.0), 0.0))
    return _or_nan(law, log_add(finite, law.log_tau)) - 64.0 * _allowances.UNIT


def _reference(law: Composed, log_delta: jax.Array, centre: jax.Array, side: int) -> jax.Array:
    """Where a curve is to be met: the centre that was planned, unless that is far off.

    Losses may leap: between two a curve is all but level, and a plan that expects it a little
    higher or lower is one leap off. Then: the first loss of the last block of points up from which
    P has the mass delta, surely for the bound below. (Not far below it the curve is at delta: it is
    that mass less what is near.)
    """
    size = law.weights.shape[0]
    blocks = size // _BLOCK
    mass = jnp.sum(law.weights.reshape(blocks, _BLOCK), axis=-1)
    width = law.spacing * _BLOCK
    at = law.start + width * jnp.arange(blocks, dtype=jnp.float64)
    some = mass > 0.0
    log_mass = jnp.log(jnp.where(some, mass, 1.0)) + law.log_scale - law.theta * at - log_delta
    log_mass -= (law.theta * width + _SURE) if side < 0 else 0.0
    share = jnp.where(some, jnp.exp(jnp.clip(log_mass, -_LARGEST_EXPONENT, 1.0)), 0.0)
    heavy = lax.cumsum(share, reverse=True) >= 1.0
    there = jnp.max(jnp.where(heavy, at, -jnp.inf))
    far = jnp.abs(there - centre) * (1.0 + law.theta) > 0.5 * _LARGEST_EXPONENT
    return lax.stop_gradient(jnp.where(far & (there > -jnp.inf), there, centre))


def _epsilon(law: Composed, log_delta: jax.Array, centre: jax.Array, side: int) -> jax.Array:
    """The epsilon where the bound on the curve meets delta.

    In units of e^{sum n K - theta centre}, y = loss - centre, points have P-mass w e^{-theta y};
    with S_k the Q-mass from point k on, D_k = sum_{i > k} (e^{y_i} - e^{y_{i-1}}) S_i is the curve
    at point k (positive terms only), and it is linear in e^eps between points. What is left out is
    convex in e^eps, so that the bound at the points, joined by lines, is a bound too (below: the
    sum with its negative lies above the lines). Above, the bound falls with epsilon: its
    crossing counts. Below, the largest epsilon at which it is met does. What lies beyond y = F,
    where e^y would overflow, adds its P-mass to the bound above, times 1 - e^{y - F} below.

    Nor is anything read where e^{-(1 + theta) y} or e^-y would overflow: a bound above is not met
    there, one below is not exceeded.

    Smoothed (`_half_cell`), the curve is that of the points in the middle between two. Down from
    such a point a1, about one of P-mass p, it rises by s v + c v^2 / (1 - v), v = 1 - a / a1,
    c = p (1 - tau) / (4 tau), by p tau / (1 + tau) + (1 - e^-h) s in all. (Not smoothed: c = 0.)
    """
    theta, h = law.theta, law.spacing
    size = law.weights.shape[0]
    tau = _half_cell(law, side)
    centre = _reference(law, log_delta, centre, side)
    y = law.start - centre + h * jnp.arange(size, dtype=jnp.float64)
    # (What would underflow is nothing below, not the least that is held.)
    least = -_LARGEST_EXPONENT if side > 0 else -jnp.inf
    exponent = jnp.clip(-(1.0 + theta) * y, least, _LARGEST_EXPONENT)
    q = jnp.where(y > _FAR, 0.0, law.weights) * jnp.exp(exponent)
    survival = lax.cumsum(q, reverse=True)
    ratio = jnp.exp(jnp.clip(y, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    # (A running sum of numbers with a 0 appended has quadratic cost on GPUs: XLA makes no tree of
    # what it takes for a wider window. So the 0 is a factor.)
    rise = jnp.concatenate([survival[1:] * ratio[1:], jnp.zeros((1,))]) * -jnp.expm1(-h)
    bound = lax.cumsum(rise, reverse=True) - jnp.where(tau > 0.0, 0.5, 0.0) * rise
    far = jnp.exp(jnp.clip(-theta * y, least, 0.0))
    far = jnp.sum(jnp.where(y > _FAR, law.weights * far, 0.0))
    ahead = -jnp.log1p(-tau)
    at = y + ahead
    bound += far if side > 0 else far * -jnp.expm1(jnp.minimum(at - _FAR, 0.0))
    unit = jnp.exp(jnp.clip(-theta * at, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    bound += side * left_out(law, at + centre, side) * unit
    gone = law.log_tau
    target = log_excess(log_delta, gone) - _prefactor(law, centre, side)
    reachable = target > -jnp.inf
    # The curve's sums are off by that much: it is met that much earlier or later.
    target = jnp.exp(jnp.clip(jnp.where(reachable, target, 0.0), -700.0, 700.0))
    target *= 1.0 - side * max(2.0**-36, _allowances.running_sums(size))
    count = jnp.arange(size, dtype=jnp.int32)
    if side > 0:  # (what overflows is nothing that meets a target)
        over = ~((bound <= target) & (-(1.0 + theta) * y <= _LARGEST_EXPONENT))
    else:  # nor is what is taken off less than it is
        over = (bound > target) & (-jnp.maximum(theta, 1.0) * y <= _LARGEST_EXPONENT)
    # The first point where the bound is met from there on.
    k = 1 + jnp.max(jnp.where(over, count, -1))
    reachable &= k < size if side > 0 else k > 0
    here, before = count == k, count == k - 1
    change = jnp.where(before, bound, 0.0) - jnp.where(here, bound, 0.0)
    picked = jnp.stack([jnp.where(here, bound, 0.0), change, jnp.where(here, q * ratio, 0.0)])
    met, change, p = jnp.sum(picked, axis=-1)
    p = jnp.where(tau > 0.0, p, 0.0)
    slope = (change - p * tau / (1.0 + tau)) / -jnp.expm1(-h)
    inside = (k > 0) & (k < size) & (change > 0.0) & (slope > 0.0)
    slope = jnp.where(inside, slope, 1.0)
    gap = jnp.where(inside, target - met, 0.0)
    curvature = jnp.where(tau > 0.0, p * (1.0 - tau) / jnp.where(tau > 0.0, 4.0 * tau, 1.0), 0.0)
    root = jnp.sqrt((slope - gap) ** 2 + 4.0 * curvature * gap)
    share = jnp.clip(2.0 * gap / (slope + gap + root), 0.0, -jnp.expm1(-h))
    met_at = law.start + h * k + ahead + jnp.log1p(-share) + side * law.shift
    met_at = _or_nan(law, jnp.where(reachable, met_at, side * jnp.inf))
    if side < 0:
        return met_at
    return jnp.maximum(jnp.minimum(met_at, _chernoff_epsilon(law, log_delta)), law.least)


def _chernoff_epsilon(law: Composed, log_delta: jax.Array) -> jax.Array:
    """The epsilon where e^{sum n K - theta eps} sup g is delta less P{inf}, whatever the window."""
    target = log_excess(log_delta, law.log_tau + 2.0**-48)
    some = (target > -jnp.inf) & (law.theta > 0.0) & jnp.isfinite(law.log_scale)
    theta = jnp.where(some, law.theta, 1.0)
    exponent = law.log_scale + log_price(theta) + jnp.log1p(law.stray) - target
    exponent = jnp.where(some, exponent, 0.0)
    slack = 2.0**-48 * (4.0 + jnp.abs(law.log_scale) + jnp.abs(target) + jnp.abs(exponent))
    epsilon = (exponent + slack) / theta * (1.0 + 2.0**-50) + law.shift
    return jnp.where(some, epsilon, jnp.inf)


End = tuple[jax.Array, jax.Array]  # the largest finite loss, log P{L = inf}
_OPEN = jnp.inf, -jnp.inf  # nothing known


def cap_log_deltas(
    bounds: tuple[jax.Array, ...], sides: tuple[int, ...], epsilon: jax.Array, end: Any
) -> tuple[jax.Array, ...]:
    """delta is at least tau, and at most tau + 1 - e^{epsilon - largest}, tau from there on.

    (A sum of largest losses over steps may have been rounded down.) What could not be computed,
    nan, becomes trivial.
    """
    largest, log_tau = (jnp.asarray(x, jnp.float64) for x in end)
    largest = largest * (1.0 + 1e-14)
    beyond = epsilon >= largest
    bounded = largest < jnp.inf
    gap = jnp.where(beyond | ~bounded, -1.0, epsilon - jnp.where(bounded, largest, 0.0))
    near = jnp.where(beyond, -jnp.inf, log1mexp(gap))
    cap = jnp.where(bounded, jnp.minimum(log_add(near, log_tau) + 2.0**-40, 0.0), 0.0)

    def capped(bound: jax.Array, side: int) -> jax.Array:
        if side < 0:
            bound = jnp.where(jnp.isnan(bound) | beyond, -jnp.inf, bound)
            return jnp.maximum(bound, log_tau - 2.0**-40)
        return jnp.minimum(jnp.where(jnp.isnan(bound), 0.0, bound), cap)

    return tuple(capped(bound, side) for bound, side in zip(bounds, sides, strict=True))


def cap_epsilons(
    bounds: tuple[jax.Array, ...], sides: tuple[int, ...], log_delta: jax.Array, end: Any
) -> tuple[jax.Array, ...]:
    """Epsilon >= 0 is at most the largest finite loss where delta exceeds tau; nan is trivial.

    Where delta is below tau, epsilon is infinite. (Beside infinite losses all others may be < 0.)
    """
    largest, log_tau = (jnp.asarray(x, jnp.float64) for x in end)
    top = jnp.where(log_delta > log_tau + 2.0**-40, jnp.maximum(largest, 0.0), jnp.inf)
    fails = log_delta < log_tau - 2.0**-40

    def capped(bound: jax.Array, side: int) -> jax.Array:
        bound = jnp.where(jnp.isnan(bound), jnp.inf if side > 0 else 0.0, bound)
        return jnp.where(fails, jnp.inf, jnp.clip(bound, 0.0, top))

    return tuple(capped(bound, side) for bound, side in zip(bounds, sides, strict=True))


def end_of(ends: tuple[Any, Any], flip: jax.Array) -> End:
    """That of adding a record where that is asked for, else of removing one."""
    remove, add = ends
    return jnp.where(flip, add[0], remove[0]), jnp.where(flip, add[1], remove[1])


def log_delta_bound(
    terms: Terms,
    epsilon: ArrayLike,
    *,
    direction: Direction = "remove",
    side: int = 1,
    size: int = DEFAULT_SIZE,
) -> jax.Array:
    """A certified bound on log delta at a real epsilon: above (side = 1) or below (side = -1)."""
    return log_delta_bounds(terms, epsilon, direction=direction, sides=(side,), size=size)[0]


def log_delta_bounds(
    terms: Terms,
    epsilon: ArrayLike,
    *,
    direction: AnyDirection = "remove",
    sides: tuple[int, ...] = (-1, 1),
    size: int = DEFAULT_SIZE,
    ends: tuple[Any, Any] = (_OPEN, _OPEN),
) -> tuple[jax.Array, ...]:
    """Certified bounds on log delta at a real epsilon, one for each of `sides` (-1 below, +1).

    `ends` holds the largest finite loss of the composition and its log P{L = inf}, for remove and
    for add. Below epsilon = 0 the reversed pair is read: H_g(P||Q) = 1 - g + g H_{1/g}(Q||P).
    """
    epsilon = jnp.asarray(epsilon, jnp.float64)
    mirrored = epsilon < 0.0
    distance = jnp.abs(epsilon)

    def bound(terms: Terms, chosen: Plan, flip: jax.Array, side: int) -> jax.Array:
        value = _log_delta(compose(terms, chosen, size, side), distance, side)
        value = with_events(terms, value, side, chosen, delta_at(distance))
        value = summed(terms, value, side, distance)
        ends_of = end_of(ends, flip ^ mirrored)
        return reflected(epsilon, cap_log_deltas((value,), (side,), distance, ends_of)[0], side)

    def choose(terms: Terms) -> Plan:
        return plan(terms, distance, None, size)

    return _by_sides(terms, direction, choose, bound, sides, mirrored)


def _by_sides(
    terms: Terms,
    direction: AnyDirection,
    choose: Callable[[Terms], Plan],
    bound: Callable[[Terms, Plan, jax.Array, int], jax.Array],
    sides: tuple[int, ...],
    mirrored: jax.Array | None = None,
) -> tuple[jax.Array, ...]:
    """One bound for each side, the larger one for "both" directions.

    Of both directions the bound below is asked for in that one alone whose bound above is larger:
    what is below one truth is below the larger of the two.
    """
    both = direction == "both" if isinstance(direction, str) else False
    first = (1,) if both and 1 in sides else sides

    def answer(terms: Terms, flip: jax.Array) -> tuple[Plan, dict[int, jax.Array]]:
        chosen = choose(terms)
        return chosen, {side: bound(terms, chosen, flip, side) for side in first}

    plans, found = over_directions(terms, direction, answer, mirrored)
    if both:
        # (A reduction: else XLA works out what is compared at every point of what follows.)
        larger = found[first[-1]] > found[first[-1]][::-1]
        worse = jnp.any(larger & jnp.array([False, True]))
        found = {side: jnp.max(value, axis=0) for side, value in found.items()}
        if -1 in sides and -1 not in first:
            chosen = jax.tree.map(lambda x: jnp.where(worse, x[1], x[0]), plans)
            found[-1] = bound(oriented(terms, worse, mirrored), chosen, worse, -1)
    return tuple(found[side] for side in sides)


def reflected(epsilon: jax.Array, bound: jax.Array, side: int) -> jax.Array:
    """The bound at epsilon, from that of the reversed pair at -epsilon if epsilon < 0."""
    below = epsilon < 0.0
    e = jnp.where(below, epsilon, -1.0)
    value = log_add(log1mexp(e), e + jnp.where(below, bound, 0.0))
    value = jnp.minimum(value + side * 2.0**-48 * (1.0 + jnp.abs(value)), 0.0)
    return jnp.where(below, value, bound)


def log_delta_estimate(
    terms: Terms, epsilon: ArrayLike, *, direction: AnyDirection = "remove", fine: bool = False
) -> jax.Array:
    """log delta at epsilon to a few percent: no bound, but two orders of magnitude cheaper.

    Where rare large losses make up delta only the fine estimate, four times dearer, is that good.
    """
    epsilon = jnp.asarray(epsilon, jnp.float64)

    def answer(terms: Terms, _: jax.Array) -> jax.Array:
        if not fine:
            return saddle_point(terms, epsilon)
        return estimate(*lax.stop_gradient((coarse_atoms(terms, rough=True), epsilon)), None)[1]

    found = over_directions(terms, direction, answer)
    return jnp.max(found, axis=0) if isinstance(direction, str) and direction == "both" else found


def epsilon_bounds(
    terms: Terms,
    delta: ArrayLike | None = None,
    *,
    log_delta: ArrayLike | None = None,
    direction: Direction = "remove",
    sides: tuple[int, ...] = (-1, 1),
    size: int = DEFAULT_SIZE,
    ends: tuple[Any, Any] = (_OPEN, _OPEN),
) -> tuple[jax.Array, ...]:
    """Certified bounds on epsilon >= 0 at delta, one for each of `sides`, -1 below, +1 above.

    `ends` holds the largest finite loss of the composition and its log P{L = inf}, for remove and
    for add.
    """
    if log_delta is None:
        log_delta = jnp.log(jnp.asarray(delta, jnp.float64))
    log_delta = jnp.asarray(log_delta, jnp.float64)

    def bound(terms: Terms, chosen: Plan, flip: jax.Array, side: int) -> jax.Array:
        law = compose(terms, chosen, size, side)
        value = _epsilon(law, log_delta, chosen.epsilon, side)
        value = with_events(terms, value, side, chosen, epsilon_at(log_delta))
        return cap_epsilons((value,), (side,), log_delta, end_of(ends, flip))[0]

    def choose(terms: Terms) -> Plan:
        return plan(terms, None, log_delta, size)

    return _by_sides(terms, direction, choose, bound, sides)
