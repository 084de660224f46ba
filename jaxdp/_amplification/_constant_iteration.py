"""Amplification by iteration with the same Lipschitz constant and noise at every step."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _x64
from jaxdp._amplification._shift import SLACK, STEPS, IterationFamily, log_geometric_sum
from jaxdp._mechanisms import mechanism
from jaxdp._mechanisms._base import add_noise


@mechanism
class ConstantNoisyIteration(IterationFamily):
    r"""`NoisyIteration` with one L and sigma for all steps; the number of steps may be real.

    .. math:: \mu^2 = \Delta^2 \Big/ \Big(\sigma^2 \sum_{j=1}^r L^{-2j}\Big)
              = \frac{\Delta^2}{\sigma^2} \frac{L^{2r}(1 - L^2)}{1 - L^{2r}}

    (Delta^2/(r sigma^2) at L = 1), in constant time for any r: the optimum of equation (2) of
    Theorem 4, Balle et al. 2019, and the exact value for x -> L x + noise. For L > 1 it tends to
    Delta^2 (L^2 - 1)/sigma^2, not to infinity.

    Args:
      lipschitz: L >= 0.
      sigma: standard deviation of the noise of each step, > 0.
      steps: r >= 1; real values interpolate (for gradients; guarantees are for integers).
      sensitivity: distance Delta > 0 before the first step.

    Raises:
      ValueError: for known parameters outside these domains.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.renyi(jaxdp.ConstantNoisyIteration(0.9, 1.0, 10), 2.0)), 8)
      0.02629662
    """

    lipschitz: ArrayLike
    sigma: ArrayLike
    steps: ArrayLike
    sensitivity: ArrayLike = 1.0

    _domains: ClassVar = {
        "lipschitz": _checks.NON_NEGATIVE,
        "sigma": _checks.POSITIVE,
        "steps": STEPS,
        "sensitivity": _checks.POSITIVE,
    }

    def _log_mu(self) -> jax.Array:
        forgets = self.lipschitz <= 0.0
        log_l = jnp.log(jnp.where(forgets, 1.0, self.lipschitz))
        value = jnp.log(self.sensitivity) - jnp.log(self.sigma) + log_l
        value = value - 0.5 * log_geometric_sum(log_l, self.steps)
        return jnp.where(forgets, -jnp.inf, value)

    def printed_bound(self, alpha: ArrayLike) -> jax.Array:
        """Equation (3) of Balle et al. 2019: alpha Delta^2 L^{r+1}/(2 r sigma^2), any L.

        Args:
          alpha: order >= 1, finite.

        Example:
          >>> import jaxdp
          >>> round(float(jaxdp.ConstantNoisyIteration(1.0, 1.0, 20).printed_bound(4.0)), 6)
          0.1
        """
        _checks.check("alpha", alpha, _checks.FINITE_KL_ORDER)
        return _x64.evaluate(_constant_printed_bound, self, alpha, rounding="up")

    def sample(self, key: jax.Array, value: Any) -> Any:
        """The linear iteration X_j = L X_{j-1} + N(0, sigma^2), run in one draw from its law."""
        log_l = jnp.log(jnp.asarray(self.lipschitz))
        shrink = jnp.exp(self.steps * log_l)
        log_sum = log_geometric_sum(-log_l, jnp.asarray(self.steps, log_l.dtype))
        std = self.sigma * jnp.exp(0.5 * log_sum)
        shrunk = jax.tree.map(lambda v: jnp.asarray(shrink * v, jnp.result_type(v, float)), value)
        return add_noise(key, shrunk, lambda *a: jnp.asarray(std, a[2]) * jax.random.normal(*a))


def _constant_printed_bound(m, alpha):
    forgets = m.lipschitz <= 0.0
    log_l = jnp.log(jnp.where(forgets, 1.0, m.lipschitz))
    log_value = 2.0 * (jnp.log(m.sensitivity) - jnp.log(m.sigma)) + (m.steps + 1.0) * log_l
    value = 0.5 * alpha / m.steps * jnp.exp(log_value)
    value = value * (1.0 + SLACK * (16.0 + 2.0 * jnp.abs(log_value)))
    value = jnp.where(forgets, 0.0, value)
    return jnp.where(m._in_domain() & (alpha >= 1.0), value, jnp.nan)
