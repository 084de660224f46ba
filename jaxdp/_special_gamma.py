"""Log-gamma functions for real arguments, as sums without cancellation between large terms.

Everything stands on Stirling's remainder mu(x) in (DLMF 5.11.1)

    log Gamma(x) = (x - 1/2) log x - x + log(2 pi)/2 + mu(x).

Ratios of gamma functions, binomial-type probabilities and their derivatives in every argument
keep an absolute error of a few roundoffs in the logarithm, also where the factors are huge.
"""

import jax
import jax.numpy as jnp

from jaxdp import _special
from jaxdp._special import log1p

_SHIFT = 8  # mu is evaluated by its asymptotic series from here on: its error is below 1e-16
_MU_SERIES = (
    1.0 / 12.0,
    -1.0 / 360.0,
    1.0 / 1260.0,
    -1.0 / 1680.0,
    1.0 / 1188.0,
    -691.0 / 360360.0,
    1.0 / 156.0,
    -3617.0 / 122400.0,
    43867.0 / 244188.0,
)
EULER_GAMMA = 0.5772156649015329


def _mu_far(x: jax.Array) -> jax.Array:
    """mu(x) for x >= 8."""
    w = 1.0 / (x * x)
    total = jnp.zeros_like(w)
    for coefficient in reversed(_MU_SERIES):
        total = coefficient + w * total
    return total / x


def stirling_remainder(x: jax.Array) -> jax.Array:
    """mu(x) for x > 0: from mu(x + 8) by the recurrence of Gamma, in ratios to x + 8."""
    near = x < _SHIFT
    small = jnp.where(near, x, 1.0)
    y = small + _SHIFT
    product = jnp.ones_like(y)
    for i in range(_SHIFT):
        product = product * ((small + i) / y)
    steps = (small - 0.5) * log1p(_SHIFT / small) - _SHIFT - jnp.log(product)
    far = _mu_far(jnp.where(near, y, x))
    return jnp.where(near, steps + far, far)


@_special.traced_once
def log_gamma(x: jax.Array) -> jax.Array:
    """log Gamma(x) for x > 0."""
    y = x + _SHIFT
    rising = x
    for i in range(1, _SHIFT):
        rising = rising * (x + i)
    far = (y - 0.5) * jnp.log(y) - y + _special.LOG_SQRT_2PI + _mu_far(y)
    return far - jnp.log(rising)


@_special.traced_once
def log_gamma_ratio(x: jax.Array, d: jax.Array) -> jax.Array:
    """log(Gamma(x + d)/Gamma(x)) for x > 0, x + d > 0; relative accuracy also for small d."""
    y = x + _SHIFT
    far = (y - 0.5) * log1p(d / y) + d * (jnp.log(y + d) - 1.0) + _mu_far(y + d) - _mu_far(y)
    excess = jnp.zeros_like(y)  # prod_i (1 + d/(x + i)) - 1
    for i in range(_SHIFT):
        step = d / (x + i)
        excess = excess + step + excess * step
    return far - log1p(excess)


def deviance(x: jax.Array, mean: jax.Array, excess: jax.Array) -> jax.Array:
    """x log(x/mean) + mean - x >= 0 with excess = x - mean given exactly (Loader 2000).

    With v = (x - mean)/(x + mean): excess v + 2 x (v^3/3 + v^5/5 + ...) where v is small.
    """
    v = excess / (x + mean)
    near = jnp.abs(v) < 0.1
    t = jnp.where(near, v, 0.0)
    w = t * t
    tail = jnp.zeros_like(w)
    for j in range(8, 0, -1):
        tail = 1.0 / (2 * j + 1) + w * tail
    series = excess * t + 2.0 * x * t * w * tail
    safe = jnp.where(near | (x <= 0.0), 1.0, x)
    direct = safe * jnp.log(safe / jnp.where(near, 1.0, mean)) - excess
    return jnp.where(near, series, jnp.where(x <= 0.0, mean, direct))


def negative_binomial_log_pmf(k: jax.Array, r: jax.Array, p: jax.Array) -> jax.Array:
    """log of Gamma(k + r)/(k! Gamma(r)) p^r (1 - p)^k, k >= 0, in the saddle-point form.

    With n = r + k it is r/n times the binomial probability of r among n (Loader 2000):
    log = (1/2) log(r/(2 pi k n)) + mu(n) - mu(r) - mu(k) - D(r, n p) - D(k, n q).
    """
    q = 1.0 - p
    positive = k > 0.0
    j = jnp.where(positive, k, 1.0)
    n = r + j
    excess = r * q - j * p  # r - n p = n q - k
    r_all = jnp.broadcast_to(r, jnp.shape(n))
    remainders = stirling_remainder(jnp.stack([n, r_all, j]))
    deviances = deviance(
        jnp.stack([r_all, j]), jnp.stack([n * p, n * q]), jnp.stack([excess, -excess])
    )
    log_pmf = (
        0.5 * (jnp.log(r / n) - jnp.log(j))
        - _special.LOG_SQRT_2PI
        + remainders[0]
        - remainders[1]
        - remainders[2]
        - deviances[0]
        - deviances[1]
    )
    return jnp.where(positive, log_pmf, r * jnp.log(p))
