"""Mechanisms that are one Gaussian: the Gaussian, Brownian and Ornstein-Uhlenbeck releases.

All their privacy is in one number, mu = sensitivity / standard deviation (GDP).
"""

import abc
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates, _x64
from jaxdp._mechanisms._base import Base, Direction, add_noise, mechanism
from jaxdp._special import log1mexp

# Between these mu, every formula stays within the range of a double. (Privacy falls with mu.)
_LEAST_MU, _LARGEST_MU = 1e-290, 1e150
_LARGEST = 1e308


def _held(mu: jax.Array) -> jax.Array:
    """mu, or the nearest that formulas can hold; nan stays nan."""
    return jnp.clip(mu, _LEAST_MU, _LARGEST_MU)


class GaussianFamily(Base):
    """Abstract: equivalent to distinguishing N(mu, 1) from N(0, 1), or no easier than that."""

    _is_short: ClassVar = True
    _less_divergent: ClassVar[bool] = False  # whether `_rho` is below that of the Gaussian

    @abc.abstractmethod
    def _mu(self) -> jax.Array:
        """The GDP parameter."""

    @abc.abstractmethod
    def _mu_ulps(self) -> ArrayLike:
        """Bound on the relative rounding error of `_mu`, in units of 2^-52."""

    def _rho(self) -> jax.Array:
        """Rényi divergences are at most alpha times this."""
        return 0.5 * self._mu() ** 2

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._rho() + 0.0 * s

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.sampled_gaussian_rate(s, self._mu(), q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(-jnp.inf), jnp.asarray(jnp.inf)

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        mu = self._mu() * (1.0 + slack * self._mu_ulps())
        value = _divergences.gaussian_log_hockey_stick(epsilon, _held(mu), slack)
        # Beyond the range of a double: what is known without the value of mu.
        if slack > 0.0:
            return jnp.where(mu > _LARGEST_MU, 0.0, jnp.maximum(value, -_LARGEST))
        if slack < 0.0:
            least = log1mexp(jnp.where(epsilon < 0.0, epsilon, 0.0))
            return jnp.where(mu < _LEAST_MU, least, value)
        return value

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _divergences.gaussian_log_masses(lo, hi, _held(self._mu()))

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        return False, False


@mechanism
class Gaussian(GaussianFamily):
    r"""Adds N(0, sigma^2) to a value of the given L2 sensitivity.

    .. math:: \delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu)
              - e^\varepsilon \Phi(-\mu/2 - \varepsilon/\mu), \quad \mu = \Delta/\sigma

    (Balle & Wang 2018, Theorem 8). Adding and removing a record are equally hard to tell.

    Args:
      sigma: standard deviation of the noise, in the units of the value, > 0. Any shape.
      sensitivity: L2 sensitivity Delta > 0; broadcasts against sigma.

    Raises:
      ValueError: if a known parameter is not finite and positive.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.epsilon(jaxdp.Gaussian(1.0), 1e-5)), 4)
      4.3772
    """

    sigma: ArrayLike
    sensitivity: ArrayLike = 1.0

    _domains: ClassVar = {"sigma": _checks.POSITIVE, "sensitivity": _checks.POSITIVE}

    def _mu(self) -> jax.Array:
        return self.sensitivity / self.sigma

    def _mu_ulps(self) -> ArrayLike:
        return 0.0  # one division, which the curve itself allows for

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + N(0, sigma^2) for every entry of an array or PyTree, in its float dtype."""
        return add_noise(
            key, value, lambda *a: jnp.asarray(self.sigma, a[2]) * jax.random.normal(*a)
        )


@mechanism
class Brownian(GaussianFamily):
    """Brownian motion (generator: the Laplacian) started at the value and run for time t.

    The release is N(value, 2 t I), so mu = sensitivity / sqrt(2 t) and R_alpha =
    alpha Delta^2 / (4 t) (Balle, Barthe, Gaboardi & Geumlek 2019, Theorem 6, Example 4).

    Args:
      t: time > 0.
      sensitivity: L2 sensitivity Delta > 0.

    Raises:
      ValueError: if a known parameter is not finite and positive.

    Example:
      >>> import jaxdp
      >>> float(jaxdp.renyi(jaxdp.Brownian(t=1.0), 2.0))
      0.5
    """

    t: ArrayLike
    sensitivity: ArrayLike = 1.0

    _domains: ClassVar = {"t": _checks.POSITIVE, "sensitivity": _checks.POSITIVE}

    def _mu(self) -> jax.Array:
        return self.sensitivity / jnp.sqrt(2.0 * self.t)

    def _mu_ulps(self) -> ArrayLike:
        return 1.0

    def sample(self, key: jax.Array, value: Any) -> Any:
        """Brownian motion at time t from every entry of an array or PyTree."""
        return add_noise(
            key, value, lambda *a: jnp.asarray(jnp.sqrt(2.0 * self.t), a[2]) * jax.random.normal(*a)
        )


@mechanism
class OrnsteinUhlenbeck(GaussianFamily):
    r"""The Ornstein-Uhlenbeck process dY = -theta Y ds + sqrt(2) rho dW from the value, at time t.

    .. math:: Y_t \sim N\big(e^{-\theta t} y,\ \tfrac{\rho^2}{\theta}(1 - e^{-2\theta t}) I\big)

    Exactly a Gaussian mechanism after shrinkage: R_alpha = alpha theta Delta^2 /
    (2 rho^2 (e^{2 theta t} - 1)) (Balle, Barthe, Gaboardi & Geumlek 2019, Corollary 7).

    Args:
      theta: drift towards the origin, > 0.
      rho: diffusion coefficient, > 0.
      t: time, > 0.
      sensitivity: L2 sensitivity Delta of the value, > 0.

    Raises:
      ValueError: if a known parameter is not finite and positive.

    Example:
      >>> import jaxdp
      >>> ou = jaxdp.OrnsteinUhlenbeck(theta=1.0, rho=1.0, t=1.0)
      >>> round(float(ou.mean_squared_error(norm=1.0, dimension=1)), 5)
      1.26424
    """

    theta: ArrayLike
    rho: ArrayLike
    t: ArrayLike
    sensitivity: ArrayLike = 1.0

    _domains: ClassVar = {
        "theta": _checks.POSITIVE,
        "rho": _checks.POSITIVE,
        "t": _checks.POSITIVE,
        "sensitivity": _checks.POSITIVE,
    }

    def _mu(self) -> jax.Array:
        return _divergences.ornstein_uhlenbeck_mu(self.sensitivity, self.theta, self.rho, self.t)

    def _mu_ulps(self) -> ArrayLike:
        return 4.0 + 0.5 * self.theta * self.t

    def sample(self, key: jax.Array, value: Any) -> Any:
        """The process at time t from every entry of an array or PyTree."""
        shrink = jnp.exp(-jnp.asarray(self.theta) * self.t)
        std = jnp.sqrt(_divergences.ornstein_uhlenbeck_variance(self.theta, self.rho, self.t))
        shrunk = jax.tree.map(lambda v: jnp.asarray(shrink * v, jnp.result_type(v, float)), value)
        return add_noise(key, shrunk, lambda *a: jnp.asarray(std, a[2]) * jax.random.normal(*a))

    def mean_squared_error(self, norm: ArrayLike, dimension: ArrayLike) -> jax.Array:
        """E||Y_t - y||^2 at ||y|| = norm in R^dimension (Balle et al. 2019, eq. 4).

        (1 - e^{-theta t})^2 norm^2 + dimension (rho^2/theta)(1 - e^{-2 theta t}).

        Args:
          norm: Euclidean norm of the value, >= 0.
          dimension: number of coordinates, > 0.

        Example:
          >>> import jaxdp
          >>> ou = jaxdp.OrnsteinUhlenbeck(theta=1e-9, rho=1.0, t=1.0)
          >>> round(float(ou.mean_squared_error(norm=5.0, dimension=2)), 6)
          4.0
        """
        return _error(_mean_squared_error, self, norm, dimension)

    def gaussian_error(self, dimension: ArrayLike) -> jax.Array:
        """Mean squared error of the plain Gaussian mechanism with the same privacy.

        dimension rho^2 (e^{2 theta t} - 1)/theta (E_GM of Balle et al. 2019, section 5).

        Example:
          >>> import jaxdp
          >>> ou = jaxdp.OrnsteinUhlenbeck(theta=1.0, rho=1.0, t=1.0)
          >>> round(float(ou.gaussian_error(dimension=1)), 5)
          6.38906
        """
        return _error(_gaussian_error, self, 0.0, dimension)

    def postprocessed_gaussian_error(self, norm: ArrayLike, dimension: ArrayLike) -> jax.Array:
        """Worst-case mean squared error over ||y|| <= norm of that Gaussian, optimally shrunk.

        E_GM / (1 + E_GM/norm^2) (E_PGM of Balle et al. 2019, section 5).

        Example:
          >>> import jaxdp
          >>> ou = jaxdp.OrnsteinUhlenbeck(theta=1.0, rho=1.0, t=1.0)
          >>> round(float(ou.postprocessed_gaussian_error(norm=1.0, dimension=1)), 5)
          0.86466
        """
        return _error(_postprocessed_gaussian_error, self, norm, dimension)


def _error(function, m: OrnsteinUhlenbeck, norm: ArrayLike, dimension: ArrayLike) -> jax.Array:
    _checks.check("norm", norm, _checks.NON_NEGATIVE)
    _checks.check("dimension", dimension, _checks.POSITIVE)
    return _x64.evaluate(function, m, norm, dimension)


def _mean_squared_error(m: OrnsteinUhlenbeck, norm: jax.Array, dimension: jax.Array) -> jax.Array:
    bias = jnp.expm1(-m.theta * m.t) * norm
    variance = _divergences.ornstein_uhlenbeck_variance(m.theta, m.rho, m.t)
    return jnp.where(m._in_domain(), bias * bias + dimension * variance, jnp.nan)


def _gaussian_error(m: OrnsteinUhlenbeck, norm: jax.Array, dimension: jax.Array) -> jax.Array:
    return jnp.where(m._in_domain(), dimension * (m.sensitivity / m._mu()) ** 2, jnp.nan)


def _postprocessed_gaussian_error(m: OrnsteinUhlenbeck, norm: jax.Array, dimension: jax.Array):
    error = _gaussian_error(m, norm, dimension)
    return error * (norm * norm / (norm * norm + error))


@mechanism
class GaussianDP(GaussianFamily):
    """The pair N(mu, 1), N(0, 1) itself: what compositions of Gaussians reduce to.

    Attributes:
      mu: the GDP parameter.
      ulps: bound on its relative rounding error, in units of 2^-52.
    """

    mu: ArrayLike
    ulps: ArrayLike = 4.0

    _domains: ClassVar = {"mu": _checks.NON_NEGATIVE}  # (it may underflow)

    def _mu(self) -> jax.Array:
        return jnp.asarray(self.mu)

    def _mu_ulps(self) -> ArrayLike:
        return self.ulps

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + N(0, 1/mu^2), for a value of sensitivity 1."""
        return add_noise(key, value, lambda *a: jax.random.normal(*a) / jnp.asarray(self.mu, a[2]))


@mechanism
class ConcentratedGaussianDP(GaussianDP):
    """No easier to tell than that pair, with Rényi divergences of at most alpha rho besides.

    Attributes:
      rho: a known bound, which may be below mu^2/2.
    """

    rho: ArrayLike = jnp.inf

    _less_divergent: ClassVar = True

    def _rho(self) -> jax.Array:
        return jnp.minimum(jnp.asarray(self.rho), super()._rho())


def composed(parts: Sequence[tuple[GaussianFamily, ArrayLike]]) -> GaussianDP:
    """The composition of Gaussian mechanisms so many times each: mu^2 = sum_i n_i mu_i^2."""
    mus = [m._mu() for m, _ in parts]
    scale = _scale(functools.reduce(jnp.maximum, jax.lax.stop_gradient(mus)))
    counts = [float(n) if isinstance(n, int) else n for _, n in parts]  # beyond 32 bits, too
    squares = [n * _scaled(mu, scale) ** 2 for mu, n in zip(mus, counts, strict=True)]
    square = sum(squares)
    # A square carries the roundoffs of its mu twice and two halves, the sum a half a term; the
    # root halves them and adds a half. (A Gaussian has one division, which its curve allows for.)
    own = sum(x * jnp.maximum(m._mu_ulps(), 0.5) for x, (m, _) in zip(squares, parts, strict=True))
    own = own / jnp.where(square > 0.0, square, 1.0)
    ulps = jax.lax.stop_gradient(own) + 1.0 + 0.25 * (len(parts) - 1.0)
    some = square > 0.0  # (else mu has underflowed)
    mu = _scaled(jnp.where(some, jnp.sqrt(jnp.where(some, square, 1.0)), 0.0), 1.0 / scale)
    if any(m._less_divergent for m, _ in parts):
        rho = sum(n * m._rho() for (m, _), n in zip(parts, counts, strict=True))
        return ConcentratedGaussianDP(mu, ulps, rho)
    return GaussianDP(mu, ulps)


def composed_steps(m: GaussianFamily, copies: jax.Array) -> GaussianDP:
    """The composition over the last axis of m's parameters, each entry so many times."""
    mu = m._mu()
    scale = _scale(jnp.max(jax.lax.stop_gradient(mu), axis=-1, keepdims=True))
    square = jnp.sum(copies * _scaled(mu, scale) ** 2, axis=-1)
    # a sum of n terms errs by n roundoffs
    ulps = jnp.max(jnp.asarray(m._mu_ulps())) + copies.shape[-1] + 4.0
    total = _scaled(jnp.sqrt(square), 1.0 / scale[..., 0])
    if m._less_divergent:
        return ConcentratedGaussianDP(total, ulps, jnp.sum(copies * m._rho(), axis=-1))
    return GaussianDP(total, ulps)


def _scale(largest: jax.Array) -> jax.Array:
    """Powers of two, exact, that keep squares within the range of a double."""
    far = jnp.where(largest > 2.0**100, 2.0**-100, 1.0)
    return jnp.where(largest < 2.0**-100, 2.0**100, far)


def _scaled(mu: jax.Array, by: jax.Array) -> jax.Array:
    return functools.reduce(jnp.multiply, [by] * 5, mu)
