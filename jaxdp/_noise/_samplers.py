"""Samplers, in the caller's precision.

They are exact in real arithmetic; like every sampler built on floating-point pseudo-random
numbers they are not hardened against attacks on the low-order bits.
"""

from typing import Any

import jax
import jax.numpy as jnp


def _poisson(key: jax.Array, mean: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return jax.random.poisson(key, jnp.broadcast_to(mean, shape), shape)


def skellam(key: jax.Array, shape: tuple[int, ...], dtype: Any, variance: Any) -> jax.Array:
    """Difference of two Poisson(variance/2) variables."""
    up, down = jax.random.split(key)
    mean = jnp.asarray(0.5 * jnp.asarray(variance), dtype)
    return (_poisson(up, mean, shape) - _poisson(down, mean, shape)).astype(dtype)


def negative_binomial(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, r: Any, odds: Any
) -> jax.Array:
    """Poisson with a Gamma(r) mean scaled by (1 - p)/p = odds."""
    gamma_key, poisson_key = jax.random.split(key)
    gamma = jax.random.gamma(gamma_key, jnp.asarray(r, dtype), shape, dtype)
    return _poisson(poisson_key, gamma * jnp.asarray(odds, dtype), shape).astype(dtype)


def negative_binomial_difference(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, beta: Any, a: Any
) -> jax.Array:
    """Difference of two NB(beta, 1 - e^{-a}) variables: odds 1/(e^a - 1)."""
    up, down = jax.random.split(key)
    odds = 1.0 / jnp.expm1(jnp.asarray(a, dtype))
    plus = negative_binomial(up, shape, dtype, beta, odds)
    return plus - negative_binomial(down, shape, dtype, beta, odds)


def discrete_laplace(key: jax.Array, shape: tuple[int, ...], dtype: Any, a: Any) -> jax.Array:
    """Difference of two geometric variables, each floor(Exponential/a)."""
    draws = jax.random.exponential(key, (2, *shape), dtype)
    plus, minus = jnp.floor(draws / jnp.asarray(a, dtype))
    return plus - minus


def discrete_gaussian(key: jax.Array, shape: tuple[int, ...], dtype: Any, sigma: Any) -> jax.Array:
    """Rejection from discrete Laplace noise (Canonne, Kamath & Steinke 2020, Algorithm 3).

    With t = floor(sigma) + 1, a candidate Y of decay 1/t is kept with probability
    exp(-(|Y| - sigma^2/t)^2/(2 sigma^2)); more than a third are.
    """
    sigma = jnp.broadcast_to(jnp.asarray(sigma, dtype), shape)
    t = jnp.floor(sigma) + 1.0

    def step(state):
        key, value, done = state
        key, candidate_key, accept_key = jax.random.split(key, 3)
        candidate = discrete_laplace(candidate_key, shape, dtype, 1.0 / t)
        chance = jnp.exp(-0.5 * ((jnp.abs(candidate) - sigma * sigma / t) / sigma) ** 2)
        accept = jax.random.uniform(accept_key, shape, dtype) < chance
        return key, jnp.where(done, value, candidate), done | accept

    start = key, jnp.zeros(shape, dtype), jnp.zeros(shape, bool)
    return jax.lax.while_loop(lambda state: ~jnp.all(state[2]), step, start)[1]


def gamma_difference(
    key: jax.Array, shape: tuple[int, ...], dtype: Any, beta: Any, scale: Any
) -> jax.Array:
    """Difference of two Gamma(beta) variables, times scale."""
    up, down = jax.random.split(key)
    shape_parameter = jnp.asarray(beta, dtype)
    plus = jax.random.gamma(up, shape_parameter, shape, dtype)
    minus = jax.random.gamma(down, shape_parameter, shape, dtype)
    return jnp.asarray(scale, dtype) * (plus - minus)
