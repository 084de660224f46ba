"""The shift of a Gaussian pair through noisy steps, in log space: what all iterations share."""

import abc

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _special
from jaxdp._mechanisms import Direction
from jaxdp._mechanisms._gaussian import GaussianFamily

# mu below this is reported as this: safe, and keeps mu^2 and epsilon/mu finite
LOG_LEAST_MU = -150.0 * np.log(10.0)
SLACK = _divergences.SLACK

STEPS = _checks.Domain("finite and >= 1", lambda x: (x >= 1) & (abs(x) < np.inf))


def rounding_of_log(log_value: jax.Array, levels: int) -> jax.Array:
    """Bound on the rounding of a log sum of 2^levels terms."""
    return SLACK * (8.0 + (2.0 + levels) * jnp.abs(log_value))


class IterationFamily(GaussianFamily):
    """Abstract: a Gaussian pair whose mu >= 1e-150 comes from logarithms, moved up by rounding."""

    _levels: int = 1

    @abc.abstractmethod
    def _log_mu(self) -> jax.Array:
        """log mu, possibly -inf."""

    def _moved_mu(self, side: int) -> jax.Array:
        floored = jnp.maximum(self._log_mu(), LOG_LEAST_MU)
        return jnp.exp(floored + side * rounding_of_log(floored, self._levels))

    def _mu(self) -> jax.Array:
        return self._moved_mu(1)

    def _mu_ulps(self) -> ArrayLike:
        return 0.0  # moved up already

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        mu = self._moved_mu(int(slack > 0.0) - int(slack < 0.0))
        return _divergences.gaussian_log_hockey_stick(epsilon, mu, slack)


def log_geometric_sum(log_lipschitz: jax.Array, count: jax.Array) -> jax.Array:
    """log sum_{j=0}^{count-1} L^{-2j}, any real count > 0, smooth through L = 1."""
    a = -2.0 * log_lipschitz
    size = jnp.abs(a)
    ratio = _special.relative_expm1(-size * count) / _special.relative_expm1(-size)
    return 0.5 * (a + size) * (count - 1.0) + jnp.log(count) + jnp.log(ratio)


def log_add(x, y):
    """log(e^x + e^y), -inf allowed, without nan gradients."""
    top = jax.lax.stop_gradient(jnp.maximum(x, y))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    total = jnp.exp(x - top) + jnp.exp(y - top)
    empty = total == 0.0
    return jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1.0, total)) + top)


def log_strengths(lipschitz, sigma):
    """log B_i, B_i = sum_{j>=i} sigma_j^2 (L_i ... L_j)^{-2}, for all i: one associative scan.

    B_i = L_i^{-2} (sigma_i^2 + B_{i+1}): affine maps in log space. +inf from an L_j = 0 on.
    """
    zero = lipschitz <= 0.0
    a = -2.0 * jnp.log(jnp.where(zero, 1.0, lipschitz))
    b = a + 2.0 * _divergences.log_positive(sigma)

    def compose(later, earlier):
        (slope1, value1), (slope0, value0) = later, earlier
        return slope0 + slope1, log_add(value0, slope0 + value1)

    _, value = jax.lax.associative_scan(compose, (a, b), reverse=True)
    forgotten = jax.lax.associative_scan(jnp.maximum, zero.astype(value.dtype), reverse=True)
    return jnp.where(forgotten > 0.0, jnp.inf, value)
