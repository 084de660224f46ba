"""Laplace noise."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates
from jaxdp._mechanisms._base import Base, Direction, add_noise, mechanism
from jaxdp._rounding import quotient_up


@mechanism
class Laplace(Base):
    r"""Adds Laplace noise of density e^{-|z|/scale}/(2 scale) to a value of given L1 sensitivity.

    .. math:: \delta(\varepsilon) = 1 - e^{(\varepsilon - \Delta/\lambda)/2}
              \quad (0 \le \varepsilon < \Delta/\lambda), \quad 0 \text{ beyond}

    (Rényi: Mironov 2017, Proposition 6.) Add and remove have the same curve.

    Args:
      scale: lambda > 0, in the units of the value. Any shape.
      sensitivity: L1 sensitivity Delta > 0; broadcasts against scale.

    Raises:
      ValueError: if a known parameter is not finite and positive.

    Example:
      >>> import jaxdp
      >>> float(jaxdp.epsilon(jaxdp.Laplace(scale=2.0), 0.0))
      0.5
    """

    scale: ArrayLike
    sensitivity: ArrayLike = 1.0

    _is_short: ClassVar = True
    _domains: ClassVar = {"scale": _checks.POSITIVE, "sensitivity": _checks.POSITIVE}

    @property
    def _x(self) -> jax.Array:
        """sensitivity/scale, rounded up: it is the largest loss, and the curve rises with it."""
        return quotient_up(jnp.asarray(self.sensitivity), jnp.asarray(self.scale))

    def _rate(self, s: jax.Array) -> jax.Array:
        return _divergences.laplace_rate(s, self._x)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.sampled_laplace_rate(s, self._x, q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return -self._x, self._x

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return _divergences.laplace_log_hockey_stick(epsilon, self._x, slack)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _divergences.laplace_log_masses(lo, hi, self._x)

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + Laplace(scale) for every entry of an array or PyTree, in its float dtype."""
        return add_noise(
            key, value, lambda *a: jnp.asarray(self.scale, a[2]) * jax.random.laplace(*a)
        )
