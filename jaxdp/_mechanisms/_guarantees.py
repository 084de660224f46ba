"""Mechanisms of which a Rényi curve is known and no law: zCDP."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _orders, _rates
from jaxdp import _special as special
from jaxdp._mechanisms._base import Base, Direction, mechanism


class OfDivergences(Base):
    """Abstract: bounded from above by Rényi divergences, the same for both directions."""

    _has_law: ClassVar = False

    @abc.abstractmethod
    def _divergence_function(self) -> Callable[[jax.Array], jax.Array]:
        """alpha > 1 to a bound on the Rényi divergence, what all orders share computed once."""

    def _rate_function(self) -> Callable[[jax.Array], jax.Array]:
        divergence = self._divergence_function()

        def rate(s: jax.Array) -> jax.Array:
            alpha = jnp.where(s > 0.5, jnp.maximum(s, 1.0), 1.0 - s)
            return divergence(alpha) / alpha

        return rate

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._rate_function()(s)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.convex_rate(s, self._rate(s), q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(-jnp.inf), jnp.asarray(jnp.inf)

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        if slack < 0.0:  # nothing is known from below
            return jnp.full_like(jnp.asarray(epsilon, jnp.float64), -jnp.inf)
        value = self._renyi_log_curve(epsilon, direction)
        # H_g = 1 - g + g H_{1/g} at g < 1, of a symmetric pair
        distance = jnp.abs(epsilon)
        other = jnp.minimum(self._renyi_log_curve(distance, direction), 0.0)
        low = jnp.minimum(epsilon, -1e-300)
        reflected = jnp.logaddexp(special.log1mexp(low), low + other) + 4.0 * _divergences.SLACK
        return jnp.minimum(jnp.where(epsilon < 0.0, jnp.minimum(value, reflected), value), 0.0)

    def _renyi_log_curve(self, epsilon: jax.Array, direction: Direction) -> jax.Array:
        divergence = self._divergence_function()
        return _orders.best_log_delta(
            lambda a: (a - 1.0) * divergence(a), self._log_failure(direction), epsilon
        )

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        raise TypeError(f"{type(self).__name__} has no law, but a bound on Rényi divergences")

    def sample(self, key: jax.Array, value: Any) -> Any:
        """A guarantee is not a release: raises TypeError."""
        raise TypeError(f"{type(self).__name__} is a guarantee, and releases nothing by itself")


@mechanism
class ConcentratedDP(OfDivergences):
    r"""Any (xi, rho)-zCDP mechanism: Rényi divergences :math:`R_\alpha \le \xi + \rho\alpha`.

    In both directions (Bun & Steinke 2016, arXiv 1605.02065). All that is known are its Rényi
    divergences: compositions with others are answered by Rényi divergences, from above. A Gaussian
    of mu^2 = 2 rho has them, but does not dominate all such mechanisms.

    Args:
      rho: > 0. Any shape.
      xi: >= 0; broadcasts against rho.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> both = jaxdp.Composed([jaxdp.ConcentratedDP(0.1), jaxdp.Gaussian(2.0)])
      >>> round(float(jaxdp.renyi(both, 8.0)), 6)  # 0.1 * 8 + 8/8
      1.8
    """

    rho: ArrayLike
    xi: ArrayLike = 0.0

    _domains: ClassVar = {"rho": _checks.POSITIVE, "xi": _checks.NON_NEGATIVE}

    def _divergence_function(self) -> Callable[[jax.Array], jax.Array]:
        return lambda alpha: self.xi + self.rho * alpha
