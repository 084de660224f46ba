"""The discrete Laplace law in closed form: all sums are geometric."""

import jax
import jax.numpy as jnp

from jaxdp import _divergences, _rates, _special
from jaxdp._noise._sums import panel
from jaxdp._rounding import exact_product
from jaxdp._special import expm1, log1p

_NODES = 1024


def discrete_laplace_log_hockey_stick(
    epsilon: jax.Array, a: jax.Array, sensitivity: jax.Array, slack: float = 0.0
) -> jax.Array:
    """log delta: [1 - e^{-aT} + q (1 - q^J)(1 - e^{-a(T-J-1)})]/(1 + q), T = Delta - |epsilon|/a.

    J = ceil(T/2) - 1 counts the points between Delta/2 and Delta of positive contribution; by
    2 J < T both parts are positive. The value is continuous and convex in T, its pieces meet.
    a T = a Delta - |epsilon| is formed from the exact product: within three roundoffs of it.
    """
    width, error = exact_product(a, sensitivity)
    distance = (width - _divergences.magnitude(epsilon)) + error
    distance = distance + 4.0 * slack * jnp.abs(distance)
    inside = distance > 0.0
    at = jnp.where(inside, distance, a)  # a T
    j = jnp.maximum(jax.lax.stop_gradient(jnp.ceil(0.5 * at / a)) - 1.0, 0.0)
    rest = jnp.maximum(at - a * (j + 1.0), 0.0)
    inner = jnp.exp(-a) * expm1(-a * j) * expm1(-rest)
    value = jnp.log(-expm1(-at) + inner) - log1p(jnp.exp(-a))
    value = jnp.minimum(value + slack * (16.0 + 4.0 * jnp.abs(value)), 0.0)
    return _divergences._reflect(epsilon, jnp.where(inside, value, -jnp.inf), slack)


def discrete_laplace_nodes(a: jax.Array, sensitivity: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Losses and log Q-weights: atoms at -+a Delta (k <= 0, k >= Delta) and a (2k - Delta) between.

    Up to Delta = 1025 every atom is there; beyond, a strided sum of the same value.
    """
    k, w = panel(jnp.ones_like(1.0 * sensitivity), sensitivity - 1.0, _NODES)
    used = w > -jnp.inf
    loss = jnp.where(used, a * (2.0 * k - sensitivity), 0.0)
    log_weights = jnp.log(jnp.tanh(0.5 * a)) - a * k + w
    width = a * sensitivity
    ends = jnp.stack([jnp.zeros_like(width), -width]) - log1p(jnp.exp(-a))
    return (
        jnp.concatenate([jnp.stack([-width, width]), loss]),
        jnp.concatenate([ends, log_weights]),
    )


def discrete_laplace_rate(s: jax.Array, a: jax.Array, sensitivity: jax.Array) -> jax.Array:
    """k(s) for s >= 1: E[X^s] = tanh(a/2) [(e^{a D (s-1)} + e^{-a (s D + 1)} ...)], geometric sums.

    Near privacy the mean of the excess over the atoms, elsewhere the logarithm of
    (e^{(s-1) a D} + e^{-s a D})/(1 + q) + tanh(a/2) sum_{k=1}^{D-1} e^{a ((2s-1) k - s D)}.
    """
    width = a * sensitivity
    direct = (2.0 * s - 1.0) * width < 30.0
    small_a = jnp.where(direct, a, 1.0 / sensitivity)
    small_s = jnp.where(direct, s, 1.0)
    near = _rates.discrete_rate(*discrete_laplace_nodes(small_a, sensitivity), small_s)
    order = jnp.where(direct, 2.0, s)
    slope = (2.0 * order - 1.0) * a
    many = sensitivity > 1.0
    span = slope * jnp.where(many, sensitivity - 1.0, 1.0)
    geometric = (
        slope * (sensitivity - 1.0)
        - order * width
        + _special.log1mexp(-span)
        - _special.log1mexp(-slope)
    )
    inner = jnp.where(many, jnp.log(jnp.tanh(0.5 * a)) + geometric, -jnp.inf)
    ends = jnp.stack([(order - 1.0) * width, -order * width]) - log1p(jnp.exp(-a))
    log_moment = _special.logsumexp(jnp.append(ends, inner))
    scale = order * (order - 1.0)
    return jnp.where(direct, near, _far_rate(log_moment, scale, width, a, sensitivity))


def _far_rate(log_moment, scale, width, a, sensitivity):
    """log E/(s (s - 1)), and at s = 1 its limit KL = a Delta (1 - ...) by the mean loss under P."""
    flat = scale <= 0.0
    q = jnp.exp(-a)
    mean = width - 2.0 * a * q / (1.0 - q * q) * -jnp.expm1(-width)
    return jnp.where(flat, mean, log_moment / jnp.where(flat, 1.0, scale))
