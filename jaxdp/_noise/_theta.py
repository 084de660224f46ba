"""Theta functions of the discrete Gaussian: normalisation and exact Rényi divergences."""

import jax
import jax.numpy as jnp

from jaxdp import _special
from jaxdp._special import log1p

# From sigma^2 = 1/5 on Poisson's dual sum converges faster than the direct one; either needs
# at most 6 terms on its side.
_DUAL_FROM = 0.2
_TERMS = 6


def log_theta_zero(sigma: jax.Array) -> jax.Array:
    """log sum_k exp(-k^2/(2 sigma^2))."""
    variance = jnp.asarray(sigma, jnp.float64) ** 2
    dual = variance >= _DUAL_FROM
    wide, narrow = jnp.where(dual, variance, 1.0), jnp.where(dual, 1.0, variance)
    dual_sum = sum(jnp.exp(-2.0 * (jnp.pi * n) ** 2 * wide) for n in range(1, _TERMS + 1))
    direct_sum = sum(jnp.exp(-0.5 * n * n / narrow) for n in range(1, _TERMS + 1))
    gaussian = _special.LOG_SQRT_2PI + 0.5 * jnp.log(wide)
    return jnp.where(dual, gaussian + log1p(2.0 * dual_sum), log1p(2.0 * direct_sum))


def discrete_gaussian_rate(s: jax.Array, sigma: jax.Array, sensitivity: jax.Array) -> jax.Array:
    """k(s) = Delta^2/(2 sigma^2) + log(theta(s Delta)/theta(0))/(s (s - 1)).

    theta has period 1 and is even, so only phi = s Delta modulo 1 in [-1/2, 1/2] counts, and
    theta(phi) - theta(0) is summed from terms of one sign: by Poisson's formula
    -4 sqrt(2 pi) sigma sum_n e^{-2 pi^2 sigma^2 n^2} sin^2(pi n phi), or directly
    e^{-phi^2/(2 sigma^2)} cosh(n phi/sigma^2) - 1 per pair +-n. (Where little of theta(0) is left,
    as e^{-phi^2/(2 sigma^2)} times a sum of terms up to 1.)
    """
    variance = jnp.asarray(sigma, jnp.float64) ** 2
    order = jnp.maximum(s, 1.0 - s)
    excess = (order - 1.0) * sensitivity
    phi = excess - jax.lax.stop_gradient(jnp.round(excess))
    dual = variance >= _DUAL_FROM
    wide, narrow = jnp.where(dual, variance, 1.0), jnp.where(dual, 1.0, variance)
    weights = [jnp.exp(-2.0 * (jnp.pi * n) ** 2 * wide) for n in range(1, _TERMS + 1)]
    waves = sum(w * jnp.sin(jnp.pi * n * phi) ** 2 for n, w in enumerate(weights, 1))
    dual_log = log1p(-4.0 * waves / (1.0 + 2.0 * sum(weights)))
    # log(theta(phi)/theta(0)) with exponents kept together: -(n - phi)^2 <= 0 never overflows
    n = jnp.arange(-_TERMS, _TERMS + 1, dtype=jnp.float64)
    base = jnp.exp(-0.5 * n * n / narrow)
    change = phi * (n - 0.5 * phi) / narrow
    small = jnp.abs(change) < 1.0
    growth = jnp.where(
        small,
        base * jnp.expm1(jnp.where(small, change, 0.0)),
        jnp.exp(-0.5 * (n - phi) ** 2 / narrow) - base,
    )
    share = jnp.sum(growth) / jnp.sum(base)
    near = share > -0.5
    # Next to -1 the difference has lost its digits: there the terms themselves, by the nearest one.
    around = jnp.sum(jnp.exp(n * (phi - 0.5 * n) / narrow)) / jnp.sum(base)
    far_log = jnp.log(around) - 0.5 * phi * phi / narrow
    direct_log = jnp.where(near, log1p(jnp.where(near, share, 0.0)), far_log)
    log_ratio = jnp.where(dual, dual_log, direct_log)
    scale = order * (order - 1.0)
    flat = scale == 0.0  # theta'(0) = 0: the correction vanishes with phi^2
    correction = jnp.where(flat, 0.0, log_ratio / jnp.where(flat, 1.0, scale))
    return 0.5 * sensitivity**2 / variance + correction
