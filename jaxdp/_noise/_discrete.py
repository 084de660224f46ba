"""Symmetric integer noise: discrete Gaussian, Skellam, discrete Laplace and its generalisation."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates
from jaxdp._hypergeometric import log_gdl_weight, log_gdl_weight_from_zero
from jaxdp._mechanisms import Direction, mechanism
from jaxdp._noise import _runs, _samplers, _theta
from jaxdp._noise._laplace_atoms import (
    discrete_laplace_log_hockey_stick,
    discrete_laplace_nodes,
    discrete_laplace_rate,
)
from jaxdp._noise._lattice import (
    INTEGER,
    SymmetricLattice,
    is_wide,
    symmetric_log_hockey_stick,
    symmetric_nodes,
    tilted_nodes,
)
from jaxdp._noise._sums import rounded_up
from jaxdp._rounding import product_up
from jaxdp._special import log1p
from jaxdp._special_bessel import log_bessel_i, log_bessel_i_ratio


def _mirror(s: jax.Array) -> jax.Array:
    """The symmetric pair has k(s) = k(1 - s)."""
    return jnp.maximum(s, 1.0 - s)


@mechanism
class DiscreteGaussian(SymmetricLattice):
    r"""Adds integer noise with probabilities proportional to e^{-k^2/(2 sigma^2)}.

    .. math:: R_\alpha = \frac{\alpha\Delta^2}{2\sigma^2}
              + \frac{1}{\alpha - 1}\log\frac{\theta(\alpha\Delta)}{\theta(0)}, \quad
              \theta(c) = \sum_k e^{-(k - c)^2/(2\sigma^2)}

    (Canonne, Kamath & Steinke 2020, arXiv 2004.00010, whose Theorem 4 is the first term; the
    second is at most 0 and makes it exact.) Delta is the sum of positive parts of their Theorem
    7. Add and remove have the same curve.

    Args:
      sigma: > 0, the parameter (for sigma >= 1 nearly the standard deviation). Any shape.
      sensitivity: integer >= 1, of one coordinate: the privacy is that of one noisy number (see
        `sample`); broadcasts against sigma. A record that changes several numbers of a vector is
        protected by their composition, the second example; for whole vectors of bounded L2 norm
        there is `DiscreteGaussianVector`.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp, numpy as np
      >>> round(float(jaxdp.delta(jaxdp.DiscreteGaussian(1.0), 0.5)), 6)
      0.203983
      >>> histogram = jaxdp.Repeated(jaxdp.DiscreteGaussian(5.0), 2)  # one count less, one more
      >>> 0.0056 < float(jaxdp.delta(histogram, 0.5)) < 0.0057
      True
    """

    sigma: ArrayLike
    sensitivity: ArrayLike = 1

    _vector_form: ClassVar = "DiscreteGaussianVector"

    _domains = {"sigma": _checks.POSITIVE, "sensitivity": INTEGER}

    def _log_pmf(self, k: jax.Array) -> jax.Array:
        return self._log_envelope(k) - _theta.log_theta_zero(self.sigma)

    def _log_envelope(self, k: jax.Array) -> jax.Array:
        return -0.5 * (k / self.sigma) ** 2

    def _loss(self, k: jax.Array) -> jax.Array:
        return self.sensitivity * (k - 0.5 * self.sensitivity) / self.sigma**2

    def _loss_error(self, epsilon: jax.Array) -> jax.Array:
        return 16.0 * epsilon + (self.sensitivity / self.sigma) ** 2

    def _log_concave(self) -> bool:
        return True

    def _tail(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(0.0), jnp.asarray(jnp.inf)

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return symmetric_log_hockey_stick(self, epsilon, slack)

    def _rate(self, s: jax.Array) -> jax.Array:
        return _theta.discrete_gaussian_rate(s, self.sigma, self.sensitivity)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        loss, log_weights = tilted_nodes(self, _mirror(s))
        return _rates.sampled_discrete_rate(loss, log_weights, s, q)

    def _draw(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return _samplers.discrete_gaussian(key, shape, dtype, self.sigma)


@mechanism
class Skellam(SymmetricLattice):
    r"""Adds the difference of two independent Poisson(variance/2) variables.

    .. math:: f(k) = e^{-\lambda} I_{|k|}(\lambda), \quad
              R_\alpha = \frac{1}{\alpha-1}\log\sum_k f(k-\Delta)^\alpha f(k)^{1-\alpha}

    (Agarwal, Kairouz & Liu 2021, arXiv 2110.04995.) Exact delta and Rényi divergences of every
    real order; their Corollary 3.6 is `skellam_renyi_bound`. Shares add up: the sum of n Skellam
    variables is Skellam of the summed variance. Add and remove have the same curve.

    Args:
      variance: lambda > 0. Any shape.
      sensitivity: integer >= 1, of one coordinate: the privacy is that of one noisy number (see
        `sample`); broadcasts against variance. For whole vectors of bounded L2 norm there is
        `SkellamVector`.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.renyi(jaxdp.Skellam(10.0), 2.5)), 6)
      0.12412
    """

    variance: ArrayLike
    sensitivity: ArrayLike = 1

    _vector_form: ClassVar = "SkellamVector"

    _domains = {"variance": _checks.POSITIVE, "sensitivity": INTEGER}

    def _log_pmf(self, k: jax.Array) -> jax.Array:
        return log_bessel_i(k, jnp.asarray(self.variance))

    def _log_envelope(self, k: jax.Array) -> jax.Array:
        """The saddle-point exponent min_t K(t) - k t, K(t) = variance (cosh t - 1)."""
        w = jnp.sqrt(k * k + self.variance**2)
        return k * k / (w + self.variance) - k * jnp.arcsinh(k / self.variance)

    def _loss(self, k: jax.Array) -> jax.Array:
        near, far = jnp.abs(k - self.sensitivity), jnp.abs(k)
        ratio = log_bessel_i_ratio(
            jnp.minimum(near, far), jnp.abs(far - near), jnp.asarray(self.variance)
        )
        return jnp.where(near <= far, ratio, -ratio)

    def _third_derivative(self, k: jax.Array) -> jax.Array:
        """That of the envelope, and a tenth for the power of 1/variance that it lacks."""
        return 1.1 * (k + self.sensitivity) / (k * k + self.variance**2) ** 1.5

    def _loss_error(self, epsilon: jax.Array) -> jax.Array:
        per_step = jnp.where(self.variance < 2500.0, 1.0, jax.lax.rsqrt(self.variance))
        return 16.0 * epsilon + 32.0 * self.sensitivity * per_step

    def _log_concave(self) -> bool:
        return True

    def _tail(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(0.0), jnp.asarray(jnp.inf)

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return symmetric_log_hockey_stick(self, epsilon, slack)

    def _rate(self, s: jax.Array) -> jax.Array:
        order = _mirror(s)
        return _rates.discrete_rate(*tilted_nodes(self, order), order)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        loss, log_weights = tilted_nodes(self, _mirror(s))
        return _rates.sampled_discrete_rate(loss, log_weights, s, q)

    def _draw(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return _samplers.skellam(key, shape, dtype, self.variance)


@mechanism
class DiscreteLaplace(SymmetricLattice):
    r"""Adds integer noise with probabilities tanh(a/2) e^{-a|k|} (the geometric mechanism).

    With q = e^{-a}, T = Delta - epsilon/a > 0 and J = ceil(T/2) - 1,

    .. math:: \delta(\varepsilon) = \frac{1 - e^{-aT} + q(1 - q^J)(1 - e^{-a(T-J-1)})}{1 + q}

    and 0 for epsilon >= a Delta, the pure-DP epsilon (Ghosh, Roughgarden & Sundararajan 2012).
    It is the difference of two geometric variables of success probability 1 - e^{-a}. Add and
    remove have the same curve.

    Args:
      a: decay rate > 0 (1/scale). Any shape.
      sensitivity: integer >= 1, of one coordinate: the privacy is that of one noisy number (see
        `sample`); broadcasts against a.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> float(jaxdp.epsilon(jaxdp.DiscreteLaplace(0.25, sensitivity=4), 0.0))
      1.0
    """

    a: ArrayLike
    sensitivity: ArrayLike = 1

    _domains = {"a": _checks.POSITIVE, "sensitivity": INTEGER}

    def _log_pmf(self, k: jax.Array) -> jax.Array:
        return jnp.log(jnp.tanh(0.5 * self.a)) - self.a * k

    def _loss(self, k: jax.Array) -> jax.Array:
        # (|k| - |k - Delta|, exact beyond either end, far out and between integers too.)
        return self.a * jnp.clip(2.0 * k - self.sensitivity, -self.sensitivity, self.sensitivity)

    def _loss_error(self, epsilon: jax.Array) -> jax.Array:
        return 16.0 * self.a * self.sensitivity

    def _log_concave(self) -> bool:
        return True

    def _tail(self) -> tuple[jax.Array, jax.Array]:
        return jnp.exp(-self.a), self.a * self.sensitivity

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        highest = product_up(self.a, self.sensitivity)
        return -highest, highest

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return discrete_laplace_log_hockey_stick(epsilon, self.a, self.sensitivity, slack)

    def _rate(self, s: jax.Array) -> jax.Array:
        return discrete_laplace_rate(_mirror(s), self.a, self.sensitivity)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        loss, log_weights = discrete_laplace_nodes(self.a, self.sensitivity)
        return _rates.sampled_discrete_rate(loss, log_weights, s, q)

    def _draw(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return _samplers.discrete_laplace(key, shape, dtype, self.a)


@mechanism
class GeneralizedDiscreteLaplace(SymmetricLattice):
    r"""Adds the difference of two negative binomial variables NB(beta, 1 - e^{-a}).

    .. math:: f(k) = e^{-a|k|}(1 - e^{-a})^{2\beta}
              \frac{\Gamma(\beta + |k|)}{\Gamma(|k| + 1)\Gamma(\beta)}
              \,{}_2F_1(\beta, \beta + |k|; |k| + 1; e^{-2a})

    (Lekshmi & Sebastian 2014, eq. 2.5): what a fraction beta of the parties leaves of a discrete
    Laplace variable, which is beta = 1. Pure DP, tight: epsilon = a Delta for beta >= 1, and for
    beta < 1 log f(0)/f(Delta), since f is log-convex on k >= 0. For beta < 1/2 that does not fall
    below `gdl_epsilon_floor` however small a is. Add and remove have the same curve.

    Args:
      beta: shape > 0. Any shape.
      a: decay rate > 0; broadcasts against beta.
      sensitivity: integer >= 1, of one coordinate: the privacy is that of one noisy number (see
        `sample`); broadcasts against beta.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> half = jaxdp.GeneralizedDiscreteLaplace(beta=0.5, a=1.0, sensitivity=5)
      >>> round(float(jaxdp.epsilon(half, 0.0)), 4)
      6.3717
    """

    beta: ArrayLike
    a: ArrayLike
    sensitivity: ArrayLike = 1

    _domains = {"beta": _checks.POSITIVE, "a": _checks.POSITIVE, "sensitivity": INTEGER}

    def _weight(self, j: jax.Array, needed: jax.Array | None = None) -> jax.Array:
        """log f(j) + a j."""
        return log_gdl_weight(jnp.asarray(self.beta), j, jnp.asarray(self.a), needed)

    def _log_pmf(self, k: jax.Array) -> jax.Array:
        return self._weight(k) - self.a * k

    def _log_envelope(self, k: jax.Array) -> jax.Array:
        """The saddle-point exponent min_t K(t) - k t, K(t) = beta log((C - 1)/(C - cosh t)).

        C = cosh a. At the saddle sinh t = c (C - cosh t), c = k/beta, which is quadratic in e^t.
        """
        a = jnp.minimum(jnp.asarray(self.a), 100.0)  # beyond, windows are a few points anyway
        positive = k > 0.0
        c = jnp.minimum(jnp.where(positive, k, 1.0) / self.beta, 1e90)
        rise, slope = 2.0 * jnp.sinh(0.5 * a) ** 2, c * jnp.sinh(a)
        square = slope * slope
        excess = (c * rise + square / (1.0 + jnp.sqrt(1.0 + square))) / (1.0 + c)
        t = log1p(excess)
        cumulant = self.beta * (jnp.log(c * rise) - jnp.log(jnp.sinh(t)))
        return jnp.where(positive, cumulant - k * t, 0.0)

    def _loss(self, k: jax.Array) -> jax.Array:
        return self._log_pmf_and_loss(k)[1]

    def _third_derivative(self, k: jax.Array) -> jax.Array:
        """As of (k + (beta - 1)/a)^(beta - 1): exact for beta = 2, else measured.

        (At 90 settings of beta in (.05, 1e5), a in (1e-6, 1) errors are at most .8 of what is
        allowed for this, but for rounding, `_mass_error`.)
        """
        power = jnp.abs(self.beta - 1.0) + 1.0
        start = jnp.maximum(self.beta - 1.0, 0.0) / self.a
        return 2.0 * power / jnp.maximum(k + start, 1.0) ** 3

    def _mass_error(self) -> jax.Array:
        """Far out, where runs of integers end, log Gamma of k is known to so many units only."""
        far = _runs.reach(jax.lax.stop_gradient(self))
        end = far + jax.lax.stop_gradient(self.sensitivity)
        rounding = 16.0 * _divergences.SLACK * end * jnp.log(end)
        return super()._mass_error() + jnp.where(is_wide(self, far), rounding, 0.0)

    def _peak_loss(self, a: jax.Array) -> jax.Array:
        """log f(0) - log f(Delta) at another a: what `_loss` gives at Delta, in less time."""
        k = jnp.asarray(1.0 * self.sensitivity)
        at_zero, at_k = log_gdl_weight_from_zero(jnp.asarray(self.beta), k, a)
        return a * k + (at_zero - at_k)

    def _log_pmf_and_loss(
        self, k: jax.Array, needed: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        near, far = jnp.abs(k - self.sensitivity), jnp.abs(k)
        both = None if needed is None else jnp.stack([needed, needed])
        weights = self._weight(jnp.stack([near, far]), both)
        loss = self.a * (far - near) + (weights[0] - weights[1])
        return weights[0] - self.a * near, loss

    def _loss_error(self, epsilon: jax.Array) -> jax.Array:
        return 32.0 + 16.0 * epsilon + self._log_pmf_error()

    def _log_pmf_error(self) -> jax.Array:
        """Terms of size min(beta, k) log(beta + 1/a) cancel (`_hypergeometric`), some ten of them.

        Windows end within 16 standard deviations, sqrt(beta/2)/sinh(a/2) each, and 60/a. That the
        terms are no larger is proved; how their roundoffs add up was measured: at most a tenth
        of this for log f and a fifth for the loss, at 240 settings of beta up to 1e8, a in
        (1e-8, 30) against 40-digit sums.
        """
        a, beta = jnp.asarray(self.a), jnp.asarray(self.beta)
        reach = self.sensitivity + 16.0 * jnp.sqrt(0.5 * beta) / jnp.sinh(0.5 * a) + 60.0 / a
        return 24.0 * jnp.minimum(beta, reach) * log1p(beta + 1.0 / a)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        """The loss at Delta falls with a: where that is tiny, the one at 1e-12 bounds it."""
        a = jnp.maximum(self.a, 1e-12)
        at_peak = rounded_up(self._peak_loss(a)) + jnp.where(a < 1e-9, 1e-11, 0.0)
        highest = jnp.where(self._log_concave(), product_up(self.a, self.sensitivity), at_peak)
        return -highest, highest

    def _log_concave(self) -> jax.Array:
        return jnp.asarray(self.beta >= 1.0)

    def _tail(self) -> tuple[jax.Array, jax.Array]:
        return jnp.exp(-self.a), self.a * self.sensitivity

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return symmetric_log_hockey_stick(self, epsilon, slack)

    def _rate(self, s: jax.Array) -> jax.Array:
        return _rates.discrete_rate(*symmetric_nodes(self), _mirror(s))

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        loss, log_weights = symmetric_nodes(self)
        return _rates.sampled_discrete_rate(loss, log_weights, s, q)

    def _draw(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        return _samplers.negative_binomial_difference(key, shape, dtype, self.beta, self.a)
