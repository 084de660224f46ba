r"""One Poisson sample on which a composition runs: the curve of the composition, read elsewhere.

With (P, Q) the pair of the composition, H its curve and (M, Q), M = (1 - q) Q + q P, that of the
sample, delta is known from H alone (`_divergences.sampled_log_hockey_stick`), and

* remove: epsilon at delta is log(1 - q + q e^x), x that of the composition at delta/q.
* add: at epsilon = -log(1 - q + q e^-x) delta is q H_{e^x}(Q||P) / (q + (1 - q) e^x), so that x is
  that of the composition, E(t), at t(x) = delta (q + (1 - q) e^x) / q. E falls and t rises, so x
  and E(t(x)) lie on different sides of the root: the larger one is above it wherever x was taken,
  and the smaller one, by bounds E from below, is below. A few secants bring them together.

No law is tabulated for that: what `_law._table` makes of large losses is coarse.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _divergences, _numerical
from jaxdp._divergences import SLACK
from jaxdp._law import Bounds, Sides
from jaxdp._mechanisms import Direction, Mechanism, _curve
from jaxdp._special import log1p

_SECANTS, _COARSE = 6, 512  # on a lattice of so many points
_MARGIN = 1e-3  # relatively, for what that is off by
_FARTHEST = 1e4  # x, where nothing bounds it
_APART = 1e-4  # two points, relatively, that show a slope
_LARGEST_EXPONENT = 600.0
_ROUNDED = 2.0**-46


class _Inner(NamedTuple):
    """The composition, q and log delta: what everything is differentiated by."""

    mechanism: Mechanism
    q: jax.Array
    log_target: jax.Array

    def epsilon(self, log_t: jax.Array, d: Direction, side: int, size: int | None) -> jax.Array:
        """E >= 0 of the composition at t, but for rounding: 0 from t = 1 on."""
        rounding = 8.0 + jnp.abs(log_t) + jnp.abs(self.log_target) + 2.0 * jnp.abs(jnp.log(self.q))
        log_t = log_t - side * SLACK * lax.stop_gradient(rounding)
        some = log_t < 0.0
        asked = jnp.where(some, log_t, -1.0)
        value = _numerical.epsilon(self.mechanism, asked, d, (side,), size)[0]
        value = jnp.where(jnp.isnan(value), jnp.inf if side > 0 else 0.0, value)
        return jnp.where(some, value, 0.0)

    def over(self, x: jax.Array, side: int, size: int | None) -> jax.Array:
        """E(t(x))."""
        near = jnp.minimum(x, _LARGEST_EXPONENT)
        log_weight = jnp.log(self.q + (1.0 - self.q) * jnp.exp(near)) + (x - near)
        log_t = self.log_target + log_weight - jnp.log(self.q)
        return self.epsilon(log_t - side * SLACK * x, "add", side, size)


def lone(m: Mechanism) -> tuple[Mechanism, ArrayLike] | None:
    """What runs on the sample that m is, and q, if m is one on which a composition runs."""
    terms = _curve.canonical_terms(m)
    if len(terms) != 1 or terms[0].count is not None:
        return None
    sample = terms[0].mechanism._poisson_sample()
    composed = sample is not None and _curve.single(_curve.canonical_terms(sample[0])) is None
    return sample if composed else None


def _sample(m: Mechanism) -> tuple[Mechanism, jax.Array]:
    sample = lone(m)
    assert sample is not None
    return sample[0], 1.0 * jnp.asarray(sample[1])


def log_delta(
    m: Mechanism, epsilon: jax.Array, direction: str, sides: Sides, grid_size: int | None
) -> Bounds:
    """As `_numerical.log_delta`."""
    composition, q = _sample(m)

    def one(d: Direction) -> Bounds:
        def bound(side: int) -> jax.Array:
            def curve(epsilon: jax.Array, d: Direction) -> jax.Array:
                return _numerical.log_delta(composition, epsilon, d, (side,), grid_size)[0]

            return _divergences.sampled_log_hockey_stick(curve, epsilon, q, d, side * SLACK)

        return tuple(map(bound, sides))

    return _curve.worst(m, direction, one)


def epsilon(
    m: Mechanism, log_target: jax.Array, direction: str, sides: Sides, grid_size: int | None
) -> Bounds:
    """As `_numerical.epsilon`."""
    inner = _Inner(*_sample(m), log_target)

    def one(d: Direction) -> Bounds:
        return (_added if d == "add" else _removed)(inner, sides, grid_size)

    return _curve.worst(m, direction, one)


def _removed(inner: _Inner, sides: Sides, size: int | None) -> Bounds:
    def bound(side: int) -> jax.Array:
        x = inner.epsilon(inner.log_target - jnp.log(inner.q), "remove", side, size)
        finite = x < jnp.inf
        value = _divergences.sampled_loss(jnp.where(finite, x, 0.0), inner.q)
        return jnp.where(finite, value * (1.0 + side * _ROUNDED), x)

    return tuple(map(bound, sides))


def _added(inner: _Inner, sides: Sides, size: int | None) -> Bounds:
    frozen = lax.stop_gradient(inner)
    coarsely = _search(lambda x: frozen.over(x, 1, _COARSE), frozen)

    def bound(side: int) -> jax.Array:
        nearer, farther = (jnp.minimum, jnp.maximum) if side > 0 else (jnp.maximum, jnp.minimum)
        at = coarsely.high if side > 0 else coarsely.low
        value = frozen.over(at, side, size)
        aim = at + (value - at) / (1.0 - coarsely.slope)
        aim = jnp.where(jnp.isfinite(aim), jnp.clip(aim, coarsely.low, coarsely.high), at)
        x = nearer(farther(at, value), farther(aim, frozen.over(aim, side, size)))
        finite, q = x < jnp.inf, inner.q
        x, whole = _root(side, size, jnp.where(finite, x, 0.0), inner), q < 1.0
        epsilon = -_divergences.sampled_loss(-x, q)
        most = jnp.where(whole, -log1p(-jnp.where(whole, q, 0.5)), jnp.inf)
        return jnp.where(finite, epsilon, most) * (1.0 + side * _ROUNDED)

    return tuple(map(bound, sides))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0, 1))
def _root(side: int, size: int | None, x: jax.Array, inner: _Inner) -> jax.Array:
    """x itself, with the derivatives of the root of E(t(x)) = x that it is next to."""
    return x


@_root.defjvp
def _moves(side: int, size: int | None, primals: Any, tangents: Any) -> tuple[Any, Any]:
    x, inner = primals
    _, slope = jax.jvp(lambda x: inner.over(x, side, size), (x,), (jnp.ones_like(x),))
    _, change = jax.jvp(lambda inner: inner.over(x, side, size), (inner,), (tangents[1],))
    return x, change / (1.0 - jnp.minimum(slope, 0.0))


class _Found(NamedTuple):
    """Ends between which the root of E(t(x)) = x lies, and the slope of E(t(x)) there."""

    low: jax.Array
    high: jax.Array
    slope: jax.Array


def _search(value_at: Callable[[jax.Array], jax.Array], inner: _Inner) -> _Found:
    """By secants, as nearly as E is known: a choice, which no bound rests on."""
    # Where t(x) = 1, E is 0.
    log_odds = jnp.log(inner.q) - log1p(-jnp.where(inner.q < 1.0, inner.q, 0.5))
    room = log_odds + jnp.log(jnp.expm1(-inner.log_target))
    room = jnp.where(inner.q < 1.0, room, jnp.inf)
    high = jnp.clip(jnp.where(jnp.isnan(room), _FARTHEST, room), 0.0, _FARTHEST)
    zero = jnp.zeros_like(high)

    def look(_: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        low, high, x, last, last_excess, slope = state
        value = value_at(x)
        excess = value - x
        apart = (jnp.abs(x - last) > _APART * (1.0 + x)) & jnp.isfinite(excess - last_excess)
        run = jnp.where(apart, x - last, 1.0)
        slope = jnp.where(apart, jnp.where(apart, excess - last_excess, 0.0) / run, slope)
        low = jnp.maximum(low, jnp.minimum(x, value))
        high = jnp.minimum(high, jnp.maximum(x, value))
        # (E is as good a guess from one point; where it is infinite the interval is halved.)
        aim = x + excess / jnp.where(slope < -0.5, -slope, 2.0)
        aim = jnp.where(jnp.isfinite(aim), jnp.clip(aim, low, high), 0.5 * (low + high))
        return low, high, aim, x, excess, slope

    start = zero, high, jnp.minimum(0.5 * high, 1.0), zero, zero + jnp.inf, zero - 1.0
    low, high, _, _, _, slope = lax.fori_loop(0, _SECANTS, look, start)
    room = _MARGIN * (1.0 + high)
    return _Found(jnp.maximum(low - room, 0.0), high + room, jnp.minimum(1.0 + slope, 0.0))
