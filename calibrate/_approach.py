"""A loss of several parameters at least, under a privacy curve that is dear or has steps.

The curve is looked at once a round, with its slopes. Between two looks it is taken for a sum of
exponentials of the log parameters with these slopes (for noise scales of a composition nearly what
it is), and the loss is minimised under that, to the end. A round costs one look, and a few do.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from calibrate import _lagrange
from calibrate._lagrange import Point

_ROUNDS = 24
_ASIDE, _ASIDES = 1.25, 36  # e to such powers, times where to begin, are tried: to 1e-300 and 1e300
_REACH = 3.0  # of a round's steps, in log parameters, at first
_STEPS = 1e-4  # of F at most: what is missed by more is missed by its slopes
_HINTED = 1e-5  # tolerance of where to begin
_POWER = 2.0  # of a scale, that privacy falls with, at first
_POWERS = (0.5, 8.0)


class Curve(NamedTuple):
    """F <= 0 exactly where the parameters are private, and how it is to be searched.

    Args:
      value_and_slopes: log parameters -> F and its gradient.
      smooth: whether F is cheap and smooth: it is then not modelled.
      rounded: (log parameters, slopes) -> those that the caller will receive.
      tolerance: of F, and of the gain over the loss times its slopes.
      grain: what rounding parameters may change of these.
      hint: a cheaper curve near F, under whose optimum to begin, and its slopes.
    """

    value_and_slopes: Callable[[jax.Array], tuple[jax.Array, jax.Array]]
    smooth: bool
    rounded: Callable[[jax.Array, jax.Array], jax.Array]
    tolerance: float
    grain: float = 0.0
    hint: Callable[[jax.Array], tuple[jax.Array, jax.Array]] | None = None


class _Round(NamedTuple):
    trial: jax.Array  # where to look next
    best: Point  # the last accepted point
    private: jax.Array  # the best private point, its loss and F there
    loss: jax.Array
    excess: jax.Array
    power: jax.Array
    reach: jax.Array
    inside: jax.Array  # how far inside to aim
    multiplier: jax.Array
    aside: jax.Array  # looks before the first usable one, and rounds after it
    count: jax.Array
    done: jax.Array


def _power(before: Point, now: Point, power: jax.Array) -> jax.Array:
    """The power of a scale that the slopes fall with: regression through two looks."""
    sign, weight = jnp.sign(now.a), jnp.abs(now.a)
    both = (before.a * now.a > 0.0) & jnp.isfinite(before.c)
    ratio = jnp.where(both, now.a / jnp.where(both, before.a, 1.0), 1.0)
    weight = jnp.where(both, weight, 0.0)
    run, rise = sign * (now.x - before.x), jnp.log(ratio)
    total = jnp.maximum(jnp.sum(weight), 1e-300)
    run, rise = run - jnp.sum(weight * run) / total, rise - jnp.sum(weight * rise) / total
    spread = jnp.sum(weight * run**2) / total
    some = spread > 1e-6
    found = jnp.sum(weight * run * rise) / total / jnp.where(some, spread, 1.0)
    return jnp.where(some, jnp.clip(found, *_POWERS), power)


def _model(at: Point, power: jax.Array) -> Callable[[jax.Array], jax.Array]:
    """The sum of exponentials with the value and slopes of that point."""
    size = jnp.abs(at.a)
    total = jnp.maximum(jnp.sum(size), 1e-300)

    def excess(x: jax.Array) -> jax.Array:
        exponent = power * jnp.sign(at.a) * (x - at.x)
        top = jax.lax.stop_gradient(jnp.max(exponent))
        mean = jnp.sum(size * jnp.exp(exponent - top)) / total
        return at.c + total / power * (top + jnp.log(mean))

    return excess


def _begun(
    loss: Callable[[jax.Array], jax.Array], curve: Curve, start: jax.Array, max_steps: int
) -> jax.Array:
    """The optimum under the hint, if there is one."""
    if curve.hint is None:
        return start
    hint = curve.hint

    def hinted(x: jax.Array) -> Point:
        return Point(x, *jax.value_and_grad(loss)(x), *hint(x))

    ends = start - jnp.inf, start + jnp.inf
    found, _ = _lagrange.solve(hinted, start, *ends, _HINTED, _HINTED, max_steps)
    return jnp.where(jnp.isfinite(found.c), found.x, start)


def _first(start: jax.Array, tolerance: float) -> _Round:
    nothing, inf = jnp.zeros((), jnp.float64), jnp.asarray(jnp.inf, jnp.float64)
    unknown = Point(start, inf, jnp.zeros_like(start), inf, jnp.zeros_like(start))
    return _Round(
        start,
        unknown,
        start,
        inf,
        inf,
        nothing + _POWER,
        nothing + _REACH,
        nothing + 0.5 * tolerance,
        nothing,
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
    )


def approach(
    loss: Callable[[jax.Array], jax.Array],
    curve: Curve,
    start: jax.Array,
    max_steps: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Minimise; returns log parameters as rounded, F there (<= 0, or inf: none found), slopes."""
    tolerance = curve.tolerance
    value_and_grad = jax.value_and_grad(loss)

    def solve(at: Point, power, inside, reach):
        model = _model(at, power)

        def evaluate(x: jax.Array) -> Point:
            own = curve.value_and_slopes(x) if curve.smooth else jax.value_and_grad(model)(x)
            return Point(x, *value_and_grad(x), own[0] + inside, own[1])

        reach = jnp.inf if curve.smooth else reach
        low, high = at.x - reach, at.x + reach
        slack = 0.4 * inside
        return _lagrange.solve(evaluate, at.x, low, high, 1e-3 * tolerance, slack, max_steps)

    def body(s: _Round) -> _Round:
        x = curve.rounded(s.trial, s.best.a)
        excess, slopes = curve.value_and_slopes(x)
        # (Where the curve is met and a check is not, it has none.)
        slopes = jnp.where(jnp.any(slopes != 0.0), slopes, s.best.a)
        now = Point(x, *value_and_grad(x), excess, slopes)

        def merit(at: Point) -> jax.Array:
            return at.f + s.multiplier * (at.c + 2.0 * at.c**2)

        known = jnp.isfinite(s.best.c)
        leap = merit(now) > merit(s.best) + 0.1 * jnp.abs(s.best.f)
        accept = now.usable() & ~(known & leap)
        power = jnp.where(accept & known, _power(s.best, now, s.power), s.power)
        nearer = 0.25 * jnp.max(jnp.abs(s.trial - s.best.x))
        reach = jnp.where(accept | ~known, s.reach, nearer)
        best = jax.tree.map(lambda a, b: jnp.where(accept, a, b), now, s.best)
        # (A curve with steps is met a little further inside.)
        missed = accept & (excess > 0.0) & (excess < _STEPS)
        inside = jnp.where(missed, jnp.maximum(2.0 * excess, 4.0 * s.inside), s.inside)
        found, multiplier = solve(best, power, inside, reach)
        # (Before the first usable look: further and further, on both sides in turn.)
        begun = jnp.isfinite(best.c)
        aside = jnp.where(s.aside % 2 == 0, 1.0, -1.0) * _ASIDE**s.aside
        trial = jnp.where(begun, found.x, start + aside)
        private = accept & (excess <= 0.0)
        gain = now.f - found.f
        scale = jnp.sum(jnp.abs(best.g))
        enough = tolerance + curve.grain
        done = private & (gain <= enough * scale + 1e-15 * jnp.abs(now.f))
        better = private & (now.f < s.loss)
        return _Round(
            trial,
            best,
            jnp.where(better, x, s.private),
            jnp.where(better, now.f, s.loss),
            jnp.where(better, excess, s.excess),
            power,
            reach,
            inside,
            multiplier,
            s.aside + jnp.where(begun, 0, 1),
            s.count + jnp.where(begun, 1, 0),
            done,
        )

    state = _first(_begun(loss, curve, start, max_steps), tolerance)

    def going(s: _Round) -> jax.Array:
        return ~s.done & (s.count < _ROUNDS) & (s.aside < _ASIDES)

    state = jax.lax.while_loop(going, body, state)
    return state.private, state.excess, state.best.a
