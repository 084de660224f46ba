"""The trade-off function: the conjugate of the curve of delta, and its derivatives at kinks.

A curve that is known point by point is searched for every rate (`tradeoff`). The engine's is read
off laws or points that all rates share (`tradeoff_by_the_engine`): any line 1 - H_g - g fpr is a
lower bound, so that the best of those at hand is one.
"""

import dataclasses
import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxdp import _answers, _checks, _divergences, _numerical
from jaxdp import _privacy_loss_readings as readings
from jaxdp._mechanisms import Direction, Mechanism, _curve
from jaxdp._methods import Method, Numerical
from jaxdp._privacy_loss import PrivacyLoss
from jaxdp._privacy_loss_build import build

_LARGEST_LOSSES = 709.0, 740.0  # on either side: e^709 and e^-740 are the last float64
_BISECTIONS, _EXACT_BISECTIONS = 40, 56  # exact curves of atoms have kinks: errors of first order
_LOST = 2.0**-53  # of a curve: a slope below it may be one that rounding has taken
_ABOVE = 2.0**-30  # of the mass at infinite loss, which no slope is left above: its rounding
# Laws are made about these deltas: together they see rates from 1e-10 on to a relative 1e-5.
_DELTAS = (1e-2, 1e-5, 1e-10)
_LAW_SIZE = 8192
# Without a law for both directions, the curve is asked at so many epsilons, from 0 to where delta
# is about e^_LEAST; lines of slopes in between are lost, which costs a few 1e-4.
_POINTS, _LEAST, _POINTS_AT_A_TIME = 32, -18.0, 8
_SEARCH_STEPS = 30


def tradeoff(m: Mechanism, fpr: jax.Array, method: Method | None) -> jax.Array:
    """Lower bound on the type II error at type I error fpr: the smaller of both directions."""
    return _answers.worst_of(m, lambda part: (_of_one(part, fpr, method),), jnp.minimum)[0]


def _of_one(m: Mechanism, fpr: jax.Array, method: Method | None) -> jax.Array:
    inside = m._in_domain() & _checks.PROBABILITY.contains(fpr)
    m = m._above(None, None)
    chosen = _answers.resolve(m, method)
    value, slope = _tradeoff(m, fpr, "remove", chosen)
    if not m._symmetric():
        other, other_slope = _tradeoff(m, fpr, "add", chosen)
        # at the ends both are the same, 1 and 0, and the slope to the inside is that of the smaller
        lower = jnp.where(fpr == 1.0, slope < other_slope, slope > other_slope)
        end = ((fpr == 0.0) | (fpr == 1.0)) & (value == other)
        value = jnp.where(end, jnp.where(lower, value, other), jnp.minimum(value, other))
    value = jnp.where(value < 0.0, 0.0, jnp.where(value > 1.0, 1.0, value))
    return jnp.where(inside, value, jnp.nan)


def _lines(
    m: Mechanism, distances: jax.Array, fpr, d: Direction, method: Method
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Lower bounds at l = distances[0] >= 0 and at l = -distances[1] <= 0.

    With h the curve, 1 - g fpr - h(l) for l >= 0 and, by H_g = 1 - g + g H'_{1/g} with H' the curve
    of the swapped pair, g (1 - fpr - h'(-l)) for l < 0. Any l gives a valid bound, once less what
    rounding may have added to it. Besides, that allowance and the curves that were read.
    """
    other: Direction = "add" if d == "remove" else "remove"

    def curve(distance, direction):
        value = method._log_delta(m, distance, direction, (1,))[0]
        return _divergences.exp_up(jnp.where(value < 0.0, value, 0.0))

    if m._symmetric():
        forward, swapped = jax.vmap(lambda x: curve(x, d))(distances)
    else:
        forward, swapped = curve(distances[0], d), curve(distances[1], other)
    above = fpr * jnp.exp(distances[0]) + forward
    below, factor = fpr + swapped, jnp.exp(-distances[1])
    lines = jnp.stack([1.0 - above, factor * (1.0 - below)])
    # a sum and a difference rounded, and of their product's factor two units more
    rounding = 2.0**-50 * jnp.stack([above, factor * below]) + 2.0**-51 * jnp.abs(lines)
    rounding = jnp.where(jnp.stack([above, below]) > 0.0, rounding, 0.0)
    return lines, jax.lax.stop_gradient(rounding), jnp.stack([forward, swapped])


def _sure(log_failure: jax.Array) -> jax.Array:
    """1 less the probability of failure, from below.

    That difference, and two more with a value below 1 (`_tradeoff`), are rounded by 2^-54 each.
    """
    failure = _divergences.exp_up(log_failure)
    return 1.0 - failure - jnp.where(failure > 0.0, 2.0**-52, 0.0)


def _tradeoff(
    m: Mechanism, fpr: jax.Array, d: Direction, method: Method
) -> tuple[jax.Array, jax.Array]:
    """The maximum over g = e^l of the lower bounds, and the g, by bisection on the slope in l.

    On either side of l = 0 apart.

    Each side rises, then falls; together they need not, where the curve is a bound. The bracket
    (low, high) that is left has F rising at low and falling at high, with slopes a >= 0 >= b.

    Derivatives in a parameter: where F is smooth, that of F at the frozen best point (envelope
    theorem). At a kink l* of F, which moves, F = F_1 left of it and F_2 right of it; from
    F_1(l*) = F_2(l*) follows dl* (a - b) = dF_2 - dF_1, so that the maximum moves by
    dF_1 + a dl* = w dF_1 + (1 - w) dF_2 with w a + (1 - w) b = 0. That is the derivative of
    w F(low) + (1 - w) F(high), w frozen, and serves a smooth maximum as well. The kink may be at
    l = 0, with one side left of it and the other one right.
    """
    frozen, level = jax.lax.stop_gradient((m, fpr))

    def lines(distances):
        line, _, curves = _lines(frozen, distances, level, d, method)
        return line, curves

    def slopes(distances):
        (_, curves), (slope, _) = jax.jvp(lines, (distances,), (jnp.ones_like(distances),))
        return slope, curves

    def body(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        slope, curves = slopes(middle)
        # where a curve is 1, nothing is known yet; and next to any bound a slope has no digits left
        lost = _LOST * jnp.maximum(curves - failures, 0.0)
        lost = lost * jnp.stack([jnp.ones(()), jnp.exp(-middle[1])])  # the factor in `_lines`
        rising = (slope + lost > 0.0) | (curves >= 1.0)
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    other: Direction = "add" if d == "remove" else "remove"
    failures = jnp.exp(jnp.stack([frozen._log_failure(x) for x in (d, other)])) * (1.0 + _ABOVE)
    ends = jnp.zeros((2,), jnp.float64), jnp.asarray(_LARGEST_LOSSES, jnp.float64)
    count = _EXACT_BISECTIONS if method._exact else _BISECTIONS
    low, high = jax.lax.stop_gradient(jax.lax.fori_loop(0, count, body, ends))
    points = jnp.stack([low, high])
    a, b = jax.lax.stop_gradient(jax.vmap(slopes)(points)[0])
    values, rounding, _ = jax.vmap(lambda x: _lines(m, x, fpr, d, method))(points)
    # a side that falls from 0 on is largest at 0
    falls = (low == 0.0) & ~(a > 0.0)
    kinked = (a > 0.0) & (b < 0.0)
    share = jnp.where(kinked, -b / jnp.where(kinked, a - b, 1.0), jnp.where(falls, 1.0, 0.0))
    smooth = share * values[0] + (1.0 - share) * values[1]
    across = jnp.all(falls) & jnp.all(a < 0.0)  # l = 0 is a kink: slopes -a[1] >= 0 >= a[0]
    left = jnp.where(across, a[0] / jnp.where(across, a[0] + a[1], 1.0), 0.0)
    above = jnp.max(values[:, 0]) >= jnp.max(values[:, 1])
    best = jnp.where(above, smooth[0], smooth[1])
    best = jnp.where(across, left * smooth[1] + (1.0 - left) * smooth[0], best)
    # the value is the best of those seen, rounded down, and never below 0
    value = jax.lax.stop_gradient(jnp.maximum(jnp.max(values - rounding), 0.0) - best) + best
    # at fpr 0 the line of infinite l counts as well: what cannot occur without the record
    sure = _sure(frozen._log_failure(d))
    value = value + jnp.where(
        level == 0.0, jnp.maximum(sure - jax.lax.stop_gradient(value), 0.0), 0.0
    )
    return value, jnp.exp(jnp.where(above, high[0], -high[1]))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Rates:
    """A vector of false positive rates for each mechanism."""

    values: Any

    _core_ndims: ClassVar = {"values": 1}


def has_one_law(m: Mechanism) -> bool:
    """Whether there is a law of m that serves every epsilon and both directions."""
    if m._structure() is not m or not _numerical.has_law(m):
        return False
    return not (_numerical.has_tables(m) or _curve.has_average(m))


def tradeoff_by_the_engine(m: Mechanism, rates: Rates, method: Numerical) -> jax.Array:
    """`tradeoff` at several rates, (n,): what they share is computed once."""
    each = functools.partial(_of_one_by_the_engine, fpr=rates.values, method=method)
    return _answers.worst_of(m, lambda part: (each(part),), jnp.minimum)[0]


def _of_one_by_the_engine(m: Mechanism, fpr: jax.Array, method: Numerical) -> jax.Array:
    read = _from_laws if has_one_law(m) else _from_points
    value = read(m, fpr, method)
    # at fpr 0 the line of infinite g counts as well: what cannot occur without the record
    failures = [m._log_failure(d) for d in ("remove", "add")]
    sure = _sure(jnp.maximum(*failures))
    value = jnp.where(fpr == 0.0, jnp.maximum(value, sure), value)
    # no test does worse than guessing; what is rounded may
    value = jnp.clip(value, 0.0, 1.0 - fpr)
    inside = m._in_domain() & _checks.PROBABILITY.contains(fpr)
    return jnp.where(inside, value, jnp.nan)


def _from_laws(m: Mechanism, fpr: jax.Array, method: Numerical) -> jax.Array:
    size = method.grid_size or _LAW_SIZE
    symmetric = m._symmetric()

    def one(delta: jax.Array, add: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The trade-offs of (P, Q) and of (Q, P), from the law made for one direction."""
        fields = build(m, delta, add, "upper", size, PrivacyLoss)
        law = PrivacyLoss(*fields, upper=True)
        first, second = (
            jax.vmap(lambda x, direct=direct: readings.tradeoff(law, x, direct))(fpr)
            for direct in (True, False)
        )
        return jnp.where(add, second, first), jnp.where(add, first, second)

    flags = (False,) if symmetric else (False, True)
    deltas = jnp.repeat(jnp.asarray(_DELTAS, jnp.float64), len(flags))
    adds = jnp.tile(jnp.asarray(flags), len(_DELTAS))
    remove, add = (jnp.max(x, axis=0) for x in jax.vmap(one)(deltas, adds))
    return jnp.maximum(remove, add) if symmetric else jnp.minimum(remove, add)


def _from_points(m: Mechanism, fpr: jax.Array, method: Numerical) -> jax.Array:
    frozen = jax.lax.stop_gradient(m)

    def halve(_, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        small = _answers.log_delta_estimate(frozen, jnp.exp(middle), "both") < _LEAST
        return jnp.where(small, low, middle), jnp.where(small, middle, high)

    ends = jnp.float64(-12.0), jnp.float64(6.0)  # of log epsilon: a choice, no bound rests on it
    top = jnp.exp(jax.lax.fori_loop(0, _SEARCH_STEPS, halve, ends)[1])
    epsilons = jax.lax.stop_gradient(top) * jnp.linspace(0.0, 1.0, _POINTS)

    # (A batch works out both sides of every condition, of which averages have many.)
    at_a_time = {} if _curve.has_average(m) else {"batch_size": _POINTS_AT_A_TIME}

    def curves(directions: tuple[Direction, ...]) -> list[jax.Array]:
        def at(point: tuple[jax.Array, jax.Array]) -> jax.Array:
            direction = directions[0] if len(directions) == 1 else point[1]
            return _answers.log_deltas(m, point[0], direction, method, (1,))[0]

        adds = jnp.repeat(jnp.array([d == "add" for d in directions]), _POINTS)
        points = jnp.tile(epsilons, len(directions)), adds
        log_h = jax.lax.map(at, points, **at_a_time)
        return [_divergences.exp_up(part) for part in jnp.split(log_h, len(directions))]

    if m._symmetric():
        remove, add = curves(("remove",)) * 2
    elif method._takes_flag(m):  # one program
        remove, add = curves(("remove", "add"))
    else:
        remove, add = curves(("remove",)) + curves(("add",))
    g, rate = jnp.exp(epsilons), fpr[:, None]
    best = []
    for direct, swapped in ((remove, add), (add, remove)):
        above, below = g * rate + direct, rate + swapped
        lines = jnp.concatenate([1.0 - above, (1.0 - below) / g], axis=1)
        # products, sums and differences rounded, of numbers up to these
        rounding = 2.0**-50 * (1.0 + jnp.concatenate([above, below / g], axis=1))
        best.append(jnp.max(lines - jax.lax.stop_gradient(rounding), axis=1))
    return jnp.minimum(*best)
