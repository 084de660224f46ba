"""What a law says about the curve, epsilon and the trade-off, certified at every argument.

H as a function of g = e^eps is convex, falls from H(0) = 1 with slopes >= -1, and is known exactly
at its ends: from the largest loss on it is tau = P{X = inf}; up to the smallest loss -l' it is
1 - g (1 - tau'), tau' = Q{X = 0}. With H' the curve of (Q, P), H'(1/g) = 1 - (1 - H(g)) / g.

Above. From the window's start on, the curve of the masses, what they leave out and tau are above
(`_law.loss_law`). The anchor is a point from which the chord down to the smallest loss (or g = 0)
is lowest; left of it that chord counts, by convexity.
Below. The same less what may be too much; left of the anchor, where that is largest, H is at least
what it is there. H is at least max(tau, 1 - g (1 - tau')) everywhere.

Trade-off. T(a) = sup_g 1 - H(g) - g a, and T'(a) = sup_g (1 - a - H(g)) / g of (Q, P). Any g gives
a lower bound, from a law above. From one below, the supremum is taken cell by cell: there the curve
of the masses is linear and what may be too much convex in g, so that either expression, convex or
quasi-convex in g, is largest at an end of the cell; with max(tau, 1 - g (1 - tau')) alone both are
largest at its kink, or at the end next to it.
"""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdp import _special as special
from jaxdp import _special_subnormal as subnormal
from jaxdp._divergences import log_add, log_positive
from jaxdp._law import _allowances
from jaxdp._law._saddle import log_price
from jaxdp._special import log1p

_STEPS = 60
_SINGLE = 2.0**-21  # of the magnitudes in exponents, where fields were rounded to 32 bits
_LARGEST_EXPONENT = 690.0
_LIFT = 600.0  # of masses, so that what underflows is less than any delta


def losses(law: Any) -> jax.Array:
    """The losses of the grid's points."""
    return law.start + law.spacing * jnp.arange(law.log_mass.shape[-1], dtype=jnp.float64)


def log_off(law: Any, epsilon: jax.Array, single: bool) -> jax.Array:
    """log of what the curve of the masses may be off by, as `_law.LossLaw` has it."""
    theta, size = law.tilt, law.log_mass.shape[-1]
    price = log_price(theta)
    if law.upper:
        end = law.start + law.spacing * size
        past = jnp.maximum(epsilon - end, 0.0)
        price = jnp.minimum(price, -theta * jnp.maximum(end - epsilon, 0.0))
    else:
        end = law.start
        past = jnp.maximum(epsilon - end, 0.0)
    moved, fall = theta * epsilon, law.outside_tilt * past
    reach = jnp.abs(end) + jnp.abs(epsilon)
    sizes = theta * reach, law.outside_tilt * reach
    slack = _allowances.exponent(*sizes, price)
    if single:
        slack += _SINGLE * (sizes[0] + sizes[1] + jnp.abs(price) + 1.0)
    slack += _finite_size(law.log_error) + _finite_size(law.log_outside)
    outside = law.log_outside - fall + price
    return log_add(law.log_error, outside) - moved + slack


def _finite_size(log_value: jax.Array) -> jax.Array:
    """The allowance for a logarithm, 0 for that of 0."""
    some = jnp.isfinite(log_value)
    return jnp.where(some, _allowances.exponent(jnp.where(some, log_value, 0.0)), 0.0)


def _log_masses_above(law: Any, epsilon: jax.Array) -> jax.Array:
    """log of the curve of the masses at one epsilon, on the law's side."""
    side = 1 if law.upper else -1
    size = law.log_mass.shape[-1]
    # The points are rounded: the curve is read that far on the safe side.
    at = epsilon - side * _allowances.lattice(law.start, law.spacing, size)
    gap = at - losses(law)
    inside = gap < 0.0
    terms = law.log_mass + special.log1mexp(jnp.where(inside, gap, -1.0))
    terms = jnp.where(inside, terms, -jnp.inf)
    value = special.logsumexp(terms, axis=-1)
    return value + side * _allowances.log_sum(size, jnp.max(terms, axis=-1))


def _log_cap(epsilon: jax.Array, largest: jax.Array, log_tau: jax.Array) -> jax.Array:
    """log (tau + (1 - tau) (1 - e^{eps - largest})_+), which is above H."""
    bounded = largest < jnp.inf
    beyond = bounded & (epsilon >= largest)
    gap = jnp.where(bounded & ~beyond, epsilon - jnp.where(bounded & ~beyond, largest, 0.0), -1.0)
    near = log_add(special.log1mexp(log_tau) + special.log1mexp(gap), log_tau)
    near = jnp.minimum(near + _finite_size(near), 0.0)
    return jnp.where(beyond, log_tau, jnp.where(bounded, near, 0.0))


def _log_above_least(law: Any, epsilon: jax.Array) -> jax.Array:
    """log (1 - g (1 - tau')), g held at the smallest loss: above H, and equal to it up to there."""
    held = jnp.minimum(epsilon, -law.largest_reversed)
    exponent = held + special.log1mexp(law.log_failure_reversed)
    some = exponent < 0.0
    exponent = jnp.where(some, exponent, -1.0)
    slack = jnp.where(jnp.isfinite(exponent), _allowances.exponent(exponent, held), 0.0)
    return jnp.where(some, special.log1mexp(exponent - slack), 0.0)


def _log_chord(law: Any, epsilon: jax.Array) -> jax.Array:
    """log of the chord from the smallest loss (or g = 0) to the anchor, above H between them."""
    least = -law.largest_reversed
    between = (epsilon < law.anchor) & (epsilon > least)
    e = jnp.where(between, epsilon - law.anchor, -1.0)
    l = jnp.where(between, least - law.anchor, -2.0)  # noqa: E741
    share = jnp.exp(e) * -jnp.expm1(l - e) / -jnp.expm1(l)
    at_least = jnp.exp(_log_above_least(law, least))
    value = (1.0 - share) * at_least + share * jnp.exp(law.log_anchor)
    value *= 1.0 + 64.0 * _allowances.UNIT * (2.0 + jnp.abs(law.anchor) + jnp.abs(epsilon))
    return jnp.where(between, jnp.minimum(log_positive(value), 0.0), 0.0)


def _log_floor(epsilon: jax.Array, log_tau: jax.Array, log_tau_reversed: jax.Array) -> jax.Array:
    """log max(tau, 1 - g (1 - tau')), which is below H."""
    exponent = epsilon + special.log1mexp(log_tau_reversed)
    some = jnp.isfinite(exponent)
    exponent += jnp.where(some, _allowances.exponent(jnp.where(some, exponent, 0.0), epsilon), 0.0)
    trivial = jnp.where(
        exponent < 0.0, special.log1mexp(jnp.where(exponent < 0.0, exponent, -1.0)), -jnp.inf
    )
    return jnp.maximum(log_tau, trivial - _finite_size(trivial))


def _log_from(law: Any, epsilon: jax.Array, log_masses: jax.Array, single: bool) -> jax.Array:
    """The certified log H of (P, Q), any shape, from the log of the curve of the masses."""
    off = log_off(law, epsilon, single)
    if law.upper:
        value = log_add(log_masses, off, law.log_infinity)
        value = jnp.where(epsilon < law.anchor, 0.0, value + _finite_size(value))
        value = jnp.minimum(value, _log_chord(law, epsilon))
        value = jnp.minimum(value, _log_cap(epsilon, law.largest, law.log_failure))
        return jnp.minimum(jnp.minimum(value, _log_above_least(law, epsilon)), 0.0)
    value, _ = _log_seen(law, off, log_masses)
    value = jnp.where(epsilon < law.anchor, jnp.maximum(law.log_anchor, value), value)
    floor = _log_floor(epsilon, law.log_failure, law.log_failure_reversed)
    return jnp.minimum(jnp.maximum(value, floor), 0.0)


def _log_seen(law: Any, off: jax.Array, log_masses: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Below, log of the curve of the masses less what may be too much, and whether any is left."""
    # What is subtracted from may be as large as what is subtracted: its rounding goes first.
    sure = log_masses - _finite_size(log_masses) - _finite_size(off)
    some = sure > off
    value = special.log_sub_exp(jnp.where(some, sure, 0.0), jnp.where(some, off, -1.0))
    value = log_add(jnp.where(some, value, -jnp.inf), law.log_infinity)
    return value - _finite_size(value), some


def log_direct(law: Any, epsilon: jax.Array, single: bool) -> jax.Array:
    """The certified log H of (P, Q) at one epsilon."""
    return _log_from(law, epsilon, _log_masses_above(law, epsilon), single)


def log_curve(law: Any, epsilon: jax.Array, direct: bool, single: bool = False) -> jax.Array:
    """The certified log H of (P, Q), or of (Q, P), at one epsilon."""
    if direct:
        value = log_direct(law, epsilon, single)
    else:
        value = _mirrored(law, epsilon, log_direct(law, -epsilon, single))
    return jnp.where(jnp.isnan(law.start + law.anchor), jnp.nan, value)


def _mirrored(law: Any, epsilon: jax.Array, log_h: jax.Array) -> jax.Array:
    """log H'(g) = log (1 - g (1 - H(1/g))), and what is known of (Q, P) besides."""
    side = 1.0 if law.upper else -1.0
    lost = special.log1mexp(log_h)
    some = lost > -jnp.inf
    lost = jnp.where(some, lost, 0.0)
    exponent = lost + epsilon
    exponent -= side * _allowances.exponent(lost, epsilon, 8.0)
    positive = some & (exponent < 0.0)
    value = special.log1mexp(jnp.where(positive, exponent, -1.0))
    value = jnp.where(positive, value, jnp.where(some, -jnp.inf, 0.0))
    tau, other = law.log_failure_reversed, law.log_failure
    if law.upper:
        value = jnp.where(some & ~positive, 0.0, value + _finite_size(value))
        return jnp.minimum(jnp.minimum(value, _log_cap(epsilon, law.largest_reversed, tau)), 0.0)
    value = value - _finite_size(value)
    return jnp.maximum(value, _log_floor(epsilon, tau, other))


def anchored(law: Any, single: bool = False) -> tuple[jax.Array, jax.Array]:
    """The anchor and log H there. Where it is is a choice, among the points of the grid."""
    frozen = jax.lax.stop_gradient(law)
    at = losses(frozen)
    log_h = log_at_points(frozen, single)
    if law.upper:
        least = -frozen.largest_reversed
        # The slope of the chord; the reading of the other direction is about 2^-50 (1 + 1/g) off.
        slack = 2.0**-48 * (1.0 + jnp.exp(jnp.minimum(-at, _LARGEST_EXPONENT)))
        inside = (at > least) & (at < _LARGEST_EXPONENT)
        gone = jnp.exp(_log_above_least(frozen, least)) - jnp.exp(log_h)
        width = jnp.exp(jnp.where(inside, at, 0.0)) * -jnp.expm1(jnp.minimum(least - at, -1e-12))
        score = jnp.where(inside, gone / jnp.maximum(width, 1e-300) - slack, -jnp.inf)
    else:
        score = log_h
    best = jnp.max(score)
    # (min of where, as argmax does not lower in 64 bits inside a 32-bit program.)
    anchor = jnp.min(jnp.where(score >= best, at, at[-1]))
    return anchor, log_direct(law, anchor, single)


def log_at_points(law: Any, single: bool) -> jax.Array:
    """`log_direct` at the losses of the grid, all at once."""
    return _log_from(law, losses(law), _log_masses_at_points(law), single)


def _log_masses_at_points(law: Any) -> jax.Array:
    """log of the curve of the masses at the points themselves, on the law's side.

    From positive terms: R_k = g_k Q{from k on} = p_k + e^-h R_{k+1} and
    C_{k-1} = C_k + (1 - e^-h) R_k. The points are rounded, by r: read so far on the safe side, the
    curve is at most C_k + (1 - e^-r) R_k and at least C_k - (e^r - 1) e^-h R_{k+1}. (Twice that is
    taken, for R's own rounding.)
    """
    side = 1 if law.upper else -1
    size = law.log_mass.shape[-1]
    here = _allowances.fading(jnp.exp(law.log_mass + _LIFT), law.spacing)
    after = jnp.append(here[1:], 0.0)
    curve = _allowances.running(-jnp.expm1(-law.spacing) * after, reverse=True)
    moved = 2.0 * jnp.expm1(_allowances.lattice(law.start, law.spacing, size))
    curve += side * (moved * (here if law.upper else after) + 1e-290)
    curve *= 1.0 + side * _allowances.running_sums(size)
    return log_positive(curve) - _LIFT


def epsilon(law: Any, delta: jax.Array, direct: bool, single: bool = False) -> jax.Array:
    """By bisection over the grid's range: the end of the bracket on the safe side."""
    target = subnormal.log_positive(delta)
    target -= (1.0 if law.upper else -1.0) * _allowances.exponent(target)
    points = losses(law)
    largest, log_tau = law.largest, law.log_failure
    if not direct:
        largest, log_tau = law.largest_reversed, law.log_failure_reversed
    span = jnp.maximum(jnp.abs(law.start), jnp.abs(points[-1])) + 1.0

    def excess(e: jax.Array) -> jax.Array:
        return log_curve(law, e, direct, single) - target

    def halve(_, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        beyond = excess(middle) > 0.0
        return jnp.where(beyond, middle, low), jnp.where(beyond, high, middle)

    frozen = jax.lax.stop_gradient(jnp.stack([jnp.zeros_like(span), span]))
    low, high = jax.lax.fori_loop(0, _STEPS, halve, (frozen[0], frozen[1]))
    low, high = jax.lax.stop_gradient((low, high))
    end = high if law.upper else low
    value, slope = jax.jvp(excess, (end,), (jnp.ones_like(end),))
    # The implicit derivative of the root, attached to the bracket's end.
    slope = jax.lax.stop_gradient(jnp.where(slope < 0.0, slope, -jnp.inf))
    value = jnp.where(jnp.isfinite(value), value, 0.0)
    answer = jnp.maximum(end - (value - jax.lax.stop_gradient(value)) / slope, 0.0)
    if law.upper:
        none = excess(jnp.zeros_like(span)) <= 0.0
        answer = jnp.where(none, 0.0, jnp.where(excess(span) <= 0.0, answer, jnp.inf))
        answer = jnp.minimum(
            answer, jnp.where(target > log_tau, jnp.maximum(largest, 0.0), jnp.inf)
        )
    else:
        answer = jnp.where(excess(span) > 0.0, span, answer)
        answer = jnp.where(log_tau > target, jnp.inf, answer)
    known = (delta > 0.0) & (delta < 1.0) & ~jnp.isnan(law.start + law.anchor)
    return jnp.where(known, answer, jnp.nan)


def tradeoff(law: Any, fpr: jax.Array, direct: bool, single: bool = False) -> jax.Array:
    """The trade-off at fpr: a lower bound from a law above, an upper one from a law below."""
    at = losses(law)
    # (Numbers next to 1 are subtracted; a loss is off by `lattice`, as is then g fpr.)
    rough = _allowances.lattice(law.start, law.spacing, at.shape[0]) + 16.0 * _allowances.UNIT
    if single:
        rough += _SINGLE * (jnp.abs(law.start) + jnp.abs(at[-1]))
    log_masses = _log_masses_at_points(law)
    reading = _tradeoff_above if law.upper else _tradeoff_below
    best = jnp.clip(reading(law, fpr, at, log_masses, rough, direct, single), 0.0, 1.0)
    return jnp.where(jnp.isnan(law.start + law.anchor + fpr), jnp.nan, best)


def _line(log_g: jax.Array, h: jax.Array, fpr: jax.Array, slack: jax.Array, direct: bool):
    """1 - H - g fpr, or (1 - fpr - H) / g, off by the slack at most."""
    g = jnp.exp(jnp.clip(log_g, -_LARGEST_EXPONENT, _LARGEST_EXPONENT))
    if direct:
        return 1.0 - h - g * fpr + slack * (2.0 + g * fpr)
    return (1.0 - fpr - h) / g + slack * (2.0 + 4.0 / g)


def _tradeoff_above(law: Any, fpr, at, log_masses, rough, direct, single) -> jax.Array:
    """The best of the lines at the points, at both ends, at g = 1 and at the anchor."""
    log_h = _log_from(law, at, log_masses, single)
    extra = jnp.stack([law.largest, -law.largest_reversed, law.anchor, jnp.zeros_like(fpr)])
    extra = jnp.where(jnp.abs(extra) < _LARGEST_EXPONENT, extra, 0.0)
    more = jax.vmap(lambda e: log_direct(law, e, single))(extra)
    usable = (jnp.abs(at) < _LARGEST_EXPONENT) & (at >= law.anchor)
    usable = jnp.concatenate([usable, jnp.ones_like(extra, bool)])
    where, h = jnp.concatenate([at, extra]), jnp.exp(jnp.concatenate([log_h, more]))
    return jnp.max(jnp.where(usable, _line(where, h, fpr, -rough, direct), 0.0))


def _tradeoff_below(law: Any, fpr, at, log_masses, rough, direct, single) -> jax.Array:
    """The supremum over all g, cell by cell: see the module."""
    value, seen = _log_seen(law, log_off(law, at, single), log_masses)
    h = jnp.exp(value)
    tau = jnp.exp(law.log_failure) * (1.0 - 16.0 * _allowances.UNIT)
    kept, rest = (
        jnp.maximum(special.log1mexp(x), -1e4) for x in (law.log_failure, law.log_failure_reversed)
    )
    log_kink = kept - rest  # where tau and 1 - g (1 - tau') meet

    def floor_line(log_g: jax.Array) -> jax.Array:
        """The line where H is max(tau, 1 - g (1 - tau')), without cancellation."""
        log_g = jnp.clip(log_g, -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
        g, most = jnp.exp(log_g), jnp.exp(rest)
        if direct:
            left, right = g * (most - fpr), 1.0 - tau - g * fpr * (1.0 - rough)
        else:
            left, right = most - fpr / g * (1.0 - rough), (1.0 - tau - fpr) / g
        scale = 1.0 if direct else 1.0 + jnp.where(log_g >= log_kink, 1.0 / g, 0.0)
        return jnp.where(log_g < log_kink, left, right) + 4.0 * rough * scale

    usable = (jnp.abs(at) < _LARGEST_EXPONENT) & (at >= law.anchor) & seen
    # (By their places: points that are worked out twice may be rounded differently.)
    index, some = jnp.arange(at.shape[0]), jnp.any(usable)
    first = jnp.min(jnp.where(usable, index, at.shape[0] - 1))
    last = jnp.max(jnp.where(usable, index, 0))
    whole = floor_line(log_kink)
    lines = _line(at, h, fpr, rough, direct)
    inner = jnp.maximum(lines[:-1], lines[1:])
    outer = floor_line(jnp.clip(log_kink, at[:-1], at[1:]))
    cells = jnp.where(usable[:-1] & usable[1:], jnp.minimum(inner, outer), outer)
    cells = jnp.where((index[:-1] >= first) & (index[1:] <= last), cells, -jnp.inf)
    beyond = floor_line(jnp.maximum(log_kink, jnp.where(some, at[last], 0.0)))
    # Up to the first point H is at least what it is there, first_h, and at least
    # max(tau, 1 - g (1 - tau')): the line is highest where the two meet, or at that point.
    first_h = jnp.where(some, h[first], 0.0)
    meet = log1p(-jnp.minimum(first_h, 1.0 - 1e-16)) - rest
    before = floor_line(jnp.minimum(meet, jnp.where(some, at[first], 0.0)))
    best = jnp.maximum(jnp.maximum(jnp.max(cells), beyond), before)
    return jnp.where(some, jnp.minimum(best, whole), whole)


def success(law: Any, prior: jax.Array, direct: bool, single: bool = False) -> jax.Array:
    """1 - pi + pi H, g = (1 - pi)/pi; at least max(pi, 1 - pi), which H >= (1 - g)_+ makes it."""
    inside = (prior > 0.0) & (prior < 1.0)
    pi = jnp.where(inside, prior, 0.5)
    # (The pair is (Q, P) where that is what "remove" reads, P then with the prior.)
    log_h = log_curve(law, log1p(-pi) - jnp.log(pi), direct, single)
    value = 1.0 - pi + pi * jnp.exp(log_h)
    value += (1.0 if law.upper else -1.0) * 64.0 * _allowances.UNIT
    value = jnp.clip(value, jnp.maximum(pi, 1.0 - pi), 1.0)
    known = (prior == 0.0) | (prior == 1.0)
    return jnp.where(inside, value, jnp.where(known, 1.0, jnp.nan))


def renyi(law: Any, alpha: jax.Array, direct: bool, single: bool = False) -> jax.Array:
    """Of the finite losses of the grid; a number, not a bound, in either precision."""
    power = alpha - 1.0 if direct else -alpha
    exponent = law.log_mass + power * losses(law)
    return special.logsumexp(exponent, axis=-1) / (alpha - 1.0)
