"""Answers for float64 scalars, inside the island: one direction, one method, then the worse.

`side` is +1 for a certified upper bound, -1 for a certified lower bound and 0 for the nearest value
(closed forms only). The true value of direction "both" is the larger of the two directions, so both
its bounds are larger ones of two.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxdp import _checks, _divergences, _law, _numerical, _roots
from jaxdp._allocation import _poisson
from jaxdp._mechanisms import Direction, Mechanism, _curve
from jaxdp._methods import (
    Analytic,
    Decomposition,
    Method,
    Numerical,
    PosteriorSampling,
    Renyi,
)

Side = Literal[-1, 0, 1]
_ROOT_TOLERANCE = (1e-12, 1e-14)  # relative, absolute


def resolve(m: Mechanism, method: Method | None) -> Method:
    """The method that answers for m: the closed form where it is exact, else the engine.

    A Poisson-subsampled composition has no one-step law: Rényi divergences, above only.
    """
    if method is None:
        if _curve.is_exact(m):
            return Analytic()
        return Numerical() if _numerical.has_law(m) else Renyi()
    if isinstance(method, Analytic) and not _curve.is_exact(m):
        raise ValueError("method: this mechanism has no closed form, use Numerical() or Renyi()")
    if isinstance(method, Numerical) and not _numerical.has_law(m):
        raise ValueError("method: a Poisson-subsampled composition has no one-step law")
    if isinstance(method, (Decomposition, PosteriorSampling)):
        _poisson.check(m, method)
    return method


def in_parts(m: Mechanism, direction: str, method: Method) -> bool:
    """Whether "both" may be asked for one direction at a time, by a flag: "add" or not."""
    both = direction == "both" and not m._symmetric()
    return both and isinstance(method, Numerical) and _numerical.takes_flag(m)


def _worst(
    m: Mechanism, direction: Any, method: Method, values: Callable[[str], tuple[jax.Array, ...]]
) -> tuple[jax.Array, ...]:
    """The larger of the values over the directions; the engine takes both through one program."""
    if not isinstance(direction, str):
        return values(direction)  # pyright: ignore[reportArgumentType]
    if isinstance(method, Numerical) and direction == "both" and not m._symmetric():
        return values("both")
    return _curve.worst(m, direction, values)


def _log_delta(
    m: Mechanism, epsilon: jax.Array, d: Direction, method: Method, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    if isinstance(method, Numerical):
        return _numerical.log_delta(m, epsilon, d, sides, method.grid_size)
    if isinstance(method, Renyi):
        upper = _curve.renyi_log_curve(m, epsilon, d, method.orders)
        return tuple(upper if side >= 0 else jnp.full_like(upper, -jnp.inf) for side in sides)
    if isinstance(method, (Decomposition, PosteriorSampling)):
        upper = _poisson.log_delta(m, epsilon, d, method)
        return tuple(upper if side >= 0 else jnp.full_like(upper, -jnp.inf) for side in sides)
    slack = _divergences.SLACK
    return tuple(_curve.log_curve(m, epsilon, d, side * slack) for side in sides)


def log_deltas(
    m: Mechanism,
    epsilon: jax.Array,
    direction: str | jax.Array,
    method: Method | None,
    sides: tuple[Side, ...],
) -> tuple[jax.Array, ...]:
    """log delta at any real epsilon, one value for each side; nan outside the domain."""
    chosen = resolve(m, method)

    def one(d: str) -> tuple[jax.Array, ...]:
        bounds = _log_delta(m, epsilon, d, chosen, sides)
        if isinstance(chosen, (Analytic, Numerical)):
            return bounds
        return _law.cap_log_deltas(bounds, sides, epsilon, _curve.end(m, d))

    values = _worst(m, direction, chosen, one)
    return tuple(jnp.where(m._in_domain(), jnp.minimum(v, 0.0), jnp.nan) for v in values)


def log_delta(
    m: Mechanism, epsilon: jax.Array, direction: str | jax.Array, method: Method | None = None
) -> jax.Array:
    """Certified upper bound on log delta (the direction may be a flag, see `in_parts`)."""
    return log_deltas(m, epsilon, direction, method, (1,))[0]


def log_delta_estimate(m: Mechanism, epsilon: jax.Array, direction: str | jax.Array) -> jax.Array:
    """log delta to a few percent by a saddle point: a start for searches, no bound."""
    value = _numerical.log_delta_estimate(m, epsilon, "remove" if m._symmetric() else direction)
    return jnp.where(m._in_domain() & (epsilon < max_loss(m, direction)), value, jnp.nan)


def delta(
    m: Mechanism, epsilon: jax.Array, direction: str, method: Method | None = None
) -> jax.Array:
    """Certified upper bound on delta."""
    return _divergences.exp_up(log_delta(m, epsilon, direction, method))


def max_loss(m: Mechanism, direction: str | jax.Array) -> jax.Array:
    """The max divergence D_inf, which is the pure-DP epsilon."""
    if not isinstance(direction, str):
        remove, add = (_curve.largest_loss(m, d) for d in ("remove", "add"))
        return jnp.where(direction, add, remove)
    return _curve.worst(m, direction, lambda d: (_curve.largest_loss(m, d),))[0]


def _exact_epsilon(
    m: Mechanism, log_target: jax.Array, d: Direction, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    """The root of the closed-form curve: above it for side 1, below it for side -1."""
    feasible = m._log_failure(d) < log_target
    target = jnp.where(feasible, log_target, 0.0)
    start = jnp.where(feasible, 1.0, jnp.nan)

    def one(side: Side) -> jax.Array:
        def excess(e):
            return _curve.log_curve(m, e, d, side * _divergences.SLACK) - target

        relative, absolute = _ROOT_TOLERANCE
        root = _roots.safe_root(excess, start, relative, absolute)
        if side < 0:  # a point less by the tolerance is known to miss the target
            root = root - 2.0 * (relative * jnp.abs(root) + absolute)
        return jnp.where(feasible, jnp.maximum(root, 0.0), jnp.inf)

    return tuple(one(side) for side in sides)


def _epsilon(
    m: Mechanism, log_target: jax.Array, d: Direction, method: Method, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    if isinstance(method, Numerical):
        return _numerical.epsilon(m, log_target, d, sides, method.grid_size)
    if isinstance(method, Renyi):
        upper = _curve.renyi_epsilon(m, log_target, d, method.orders)
        return tuple(upper if side >= 0 else jnp.zeros_like(upper) for side in sides)
    if isinstance(method, (Decomposition, PosteriorSampling)):
        upper = _poisson.epsilon(m, log_target, d, method)
        return tuple(upper if side >= 0 else jnp.zeros_like(upper) for side in sides)
    return _exact_epsilon(m, log_target, d, sides)


def epsilons(
    m: Mechanism,
    delta: jax.Array,
    direction: str,
    method: Method | None,
    sides: tuple[Side, ...],
) -> tuple[jax.Array, ...]:
    """Epsilon >= 0 at delta, one value for each side; the max loss at delta = 0."""
    chosen = resolve(m, method)
    pure = delta == 0.0
    log_target = jnp.log(jnp.where(pure, 0.5, delta))

    def one(d: str) -> tuple[jax.Array, ...]:
        found = _epsilon(m, log_target, d, chosen, sides)
        if isinstance(chosen, Numerical):  # which takes both directions at once
            return found
        return tuple(jnp.minimum(e, _curve.largest_loss(m, d)) for e in found)

    values = _worst(m, direction, chosen, one)
    least = max_loss(m, direction)
    inside = m._in_domain() & _checks.DELTA.contains(delta)
    # a largest loss is rounded up, by at most 2^-44 (1 + itself)
    below = jnp.maximum(least - 2.0**-43 * (1.0 + least), 0.0)
    return tuple(
        jnp.where(inside, jnp.where(pure, least if side >= 0 else below, v), jnp.nan)
        for v, side in zip(values, sides, strict=True)
    )


def renyi(
    m: Mechanism, alpha: jax.Array, direction: str, largest: int = _curve.LARGEST_ORDER
) -> jax.Array:
    """The Rényi divergence of order alpha in [1, inf]; orders up to `largest` are exact."""
    return renyi_of_orders(m, Orders(alpha[None]), direction, largest)[0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Orders:
    """A vector of orders for each mechanism."""

    values: Any

    _core_ndims: ClassVar = {"values": 1}


def renyi_of_orders(m: Mechanism, orders: Orders, direction: str, largest: int) -> jax.Array:
    """The Rényi divergences of several orders, (n,): what they share is computed once."""
    infinite = jnp.isposinf(orders.values)
    alphas = jnp.where(infinite, 2.0, orders.values)

    def one(d: Direction) -> tuple[jax.Array]:
        rate = _curve.rate_function(m, d, largest)
        finite = alphas * jax.vmap(rate)(alphas if d == "remove" else 1.0 - alphas)
        finite = jnp.where(m._log_failure(d) > -jnp.inf, jnp.inf, finite)
        return (jnp.where(infinite, _curve.largest_loss(m, d), finite),)

    value = _curve.worst(m, direction, one)[0]
    return jnp.where(m._in_domain() & (orders.values >= 1.0), value, jnp.nan)


_LOSS_CAP = 740.0  # e^-740 is the smallest float64
_BISECTIONS = 40  # of which the error of the value is the square


def tradeoff(m: Mechanism, fpr: jax.Array, method: Method | None) -> jax.Array:
    """Lower bound on the type II error at type I error fpr: the smaller of both directions."""
    chosen = resolve(m, method)
    worst = _curve.worst(m, "both", lambda d: (-_tradeoff(m, fpr, d, chosen),))[0]
    inside = m._in_domain() & _checks.PROBABILITY.contains(fpr)
    return jnp.where(inside, jnp.clip(0.0 - worst, 0.0, 1.0), jnp.nan)


def _tradeoff(m: Mechanism, fpr: jax.Array, d: Direction, method: Method) -> jax.Array:
    """The maximum over g = e^l of lower bounds, on either side of l = 0 by bisection on its slope.

    With h the curve, 1 - g fpr - h(l) for l >= 0 and, by H_g = 1 - g + g H'_{1/g} with H' the curve
    of the swapped pair, g (1 - fpr - h'(-l)) for l < 0. Any l gives a valid bound. Each side rises,
    then falls; together they need not, where the curve is a bound. By the envelope theorem
    the gradient at the frozen best points is that of the maximum.
    """
    other: Direction = "add" if d == "remove" else "remove"

    def curve(distance, direction):
        value = _log_delta(m, distance, direction, method, (1,))[0]
        return _divergences.exp_up(jnp.minimum(value, 0.0))

    def curves(distances):
        """h at distances[0], h' at distances[1]."""
        if m._symmetric():
            return jax.vmap(lambda x: curve(x, d))(distances)
        return jnp.stack([curve(distances[0], d), curve(distances[1], other)])

    def body(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        values, slopes = jax.jvp(curves, (middle,), (jnp.ones_like(middle),))
        gain = jnp.stack([fpr * jnp.exp(middle[0]), 1.0 - fpr - values[1]])
        rising = -slopes > gain
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    ends = jnp.zeros((2,), jnp.float64), jnp.full((2,), _LOSS_CAP, jnp.float64)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, body, jax.lax.stop_gradient(ends))
    best = jax.lax.stop_gradient(0.5 * (low + high))
    forward, swapped = curves(best)
    return jnp.maximum(
        1.0 - fpr * jnp.exp(best[0]) - forward, jnp.exp(-best[1]) * (1.0 - fpr - swapped)
    )
