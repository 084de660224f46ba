"""Continuous infinitely divisible noise: differences of Gamma variables, sums of Laplace ones."""

import abc
from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _rates
from jaxdp._mechanisms import Base, Direction, mechanism
from jaxdp._mechanisms._base import Masses, add_noise
from jaxdp._noise import _samplers
from jaxdp._noise import _variance_gamma as law
from jaxdp._noise._entries import require_entries
from jaxdp._noise._lattice import INTEGER
from jaxdp._noise._sums import QUADRATURE
from jaxdp._noise._variance_gamma_masses import masses_function
from jaxdp._rounding import quotient_up

COUNT = _checks.Domain("an integer >= 1", INTEGER.contains)


class VarianceGamma(Base):
    """Abstract: adds scale * (Gamma(beta) - Gamma(beta)) to a real value."""

    sensitivity: Any
    scale: Any

    @abc.abstractmethod
    def _beta(self) -> jax.Array:
        """The shape of the Gamma variables."""

    @property
    def _x(self) -> jax.Array:
        return jnp.asarray(self.sensitivity / self.scale)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        x = quotient_up(jnp.asarray(self.sensitivity), jnp.asarray(self.scale))
        highest = law.largest_loss(self._beta(), x)
        return -highest, highest

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return law.log_hockey_stick(epsilon, self._beta(), self._x, slack)

    def _rate(self, s: jax.Array) -> jax.Array:
        order = jnp.maximum(s, 1.0 - s)
        rate = _rates.discrete_rate(*law.nodes(self._beta(), self._x), order)
        return self._unless_infinite(rate, order)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        loss, log_weights = law.nodes(self._beta(), self._x)
        rate = _rates.sampled_discrete_rate(loss, log_weights, s, q)
        return self._unless_infinite(rate, s)

    def _unless_infinite(self, rate: jax.Array, s: jax.Array) -> jax.Array:
        """E[X^s] behaves like int d^(-(1 - 2 beta) s) dd at the peak of the loss."""
        beta = self._beta()
        slowest = jnp.minimum(1.0 - (1.0 - 2.0 * beta) * s, 2.0 * beta)
        return jnp.where(slowest < law.SLOWEST, jnp.inf, rate)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._masses_function()(lo, hi)

    def _masses_function(self) -> Masses:
        return masses_function(self._beta(), self._x)

    def _mass_error(self) -> jax.Array:
        """Tables are good to 1e-12; not next to an infinite peak (beta < 1/2)."""
        return jnp.where(self._beta() < 0.5, jnp.nan, QUADRATURE)

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + noise for every entry of an array or PyTree, in its float dtype.

        The queries are for one entry, and so is the value, unless the parameters have its shape:
        each entry then has a mechanism of its own. A record that changes several is protected by
        their composition, at every entry's sensitivity (`Composed`, `Schedule`).

        Raises:
          ValueError: for a value of more entries than the mechanism has parameters for.
        """

        def draw(key, shape, dtype):
            return _samplers.gamma_difference(key, shape, dtype, self._beta(), self.scale)

        require_entries(self, value)
        return add_noise(key, value, draw)


@mechanism
class GammaDifference(VarianceGamma):
    r"""Adds scale times the difference of two independent Gamma(beta, 1) variables.

    .. math:: f(y) = \frac{(|y|/2)^{\beta - 1/2} K_{\beta - 1/2}(|y|)}{\sqrt\pi\,\Gamma(\beta)}
              \quad (\text{scale } 1)

    What a fraction beta of the parties leaves of Laplace noise (beta = 1), the continuous analogue
    of GeneralizedDiscreteLaplace. With x = sensitivity/scale, pure DP is epsilon = x for
    beta >= 1, log f(0)/f(x) > x for 1/2 < beta < 1, and infinite for beta <= 1/2, where delta > 0
    at every epsilon and the Rényi divergence of order alpha is infinite from alpha =
    1/(1 - 2 beta) on (reported as inf within 1% of that point, and for beta < 0.005). Derived
    from DLMF 10.32 and the log-convexity of f for beta < 1. Add and remove have the same curve.
    Compositions and samples are certified for beta >= 1/2; below, what lies next to the infinite
    peak is not known well enough for the engine, whose bounds are trivial (Renyi() has others).

    Args:
      beta: shape > 0. Any shape.
      scale: > 0; broadcasts against beta. The variance is 2 beta scale^2.
      sensitivity: > 0, of one coordinate: the privacy is that of one noisy number (see
        `sample`); broadcasts against beta.

    Raises:
      ValueError: if a known parameter is not finite and positive.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.epsilon(jaxdp.GammaDifference(0.7, 1.0), 0.0)), 6)
      1.820002
    """

    beta: ArrayLike
    scale: ArrayLike
    sensitivity: ArrayLike = 1.0

    _domains = {
        "beta": _checks.POSITIVE,
        "scale": _checks.POSITIVE,
        "sensitivity": _checks.POSITIVE,
    }

    def _beta(self) -> jax.Array:
        return jnp.asarray(self.beta)


@mechanism
class LaplaceSum(VarianceGamma):
    r"""Adds the sum of `count` independent Laplace variables of one scale.

    .. math:: f_n(y) = \frac{e^{-|y|}}{2^{2n-1}(n-1)!}
              \sum_{j<n} \frac{(2n-2-j)!}{j!(n-1-j)!}(2|y|)^j \quad (\text{scale } 1)

    Equal in law to GammaDifference(count, scale), and exact: the reference for the bound of
    repeated noise addition (`repeated_noise_renyi`). Add and remove have the same curve.

    Args:
      count: integer n >= 1. Any shape.
      scale: of each variable, > 0; broadcasts against count. The variance is 2 n scale^2.
      sensitivity: > 0, of one coordinate: the privacy is that of one noisy number (see
        `sample`); broadcasts against count.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.renyi(jaxdp.LaplaceSum(20, 1.0), 2.0)), 6)
      0.025035
    """

    count: ArrayLike
    scale: ArrayLike
    sensitivity: ArrayLike = 1.0

    _domains = {"count": COUNT, "scale": _checks.POSITIVE, "sensitivity": _checks.POSITIVE}

    def _beta(self) -> jax.Array:
        return jnp.asarray(self.count)
