r"""Vectors of integer noise under an L2 sensitivity: the Gaussian that dominates all differences.

Let f be the probabilities of symmetric noise X on the integers, S(k) = P(X >= k), and z(k) the
standard normal quantile with Phi(-z(k)) = S(k). The trade-off curve of X + v against X has its
corners at (S(k), S(k - v)), and that of N(mu, 1) against N(0, 1) is concave and above all of them
if and only if z(k) - z(k - v) <= mu for every k. So X + v against X is mu_v-GDP, exactly, for
mu_v = sup_k z(k) - z(k - v), which is at most v mu_1. A difference of coordinates v_i is the
composition of these pairs: at most a Gaussian of mu^2 = sum_i mu_{v_i}^2 <= mu_1^2 |v|_2^2,
whatever the dimension and the direction of v.

Theorem. Let V = -log f be convex with second differences that do not increase over k >= 0. Then
mu_1 = h = z(1) - z(0) = 2 Phi^{-1}((1 + f(0))/2).

Proof. All k >= 1; the others follow by symmetry. Cells of width h around ih have the Gaussian
masses m(ih), m(y) = f(0) e^{-c(y)}, c(y) = y^2/2 - K(y), K the log moment generating function of a
normal variable truncated to [-h/2, h/2]. K'' is the variance of that variable tilted by y, and
falls as |y| grows: its derivative is a third central moment, of a density e^{-(u - y)^2/2} that is
cut off at h/2, which at distances x from its mean M is larger on the right up to x = h/2 - M and
zero there beyond, so that with int x (p(M + x) - p(M - x)) dx = 0 the integral of x^3 is negative.
Hence c'' = 1 - K'' is in [0, 1], and grows with |y|. Suppose the centre of a cell that begins at
z(k) is y = kh - D, D >= 0 (D = 0 at k = 1), and let psi(i) = V(i) - V(0) - c(ih - D): the log of
the ratio of the Gaussian mass of the i-th cell in this grid to f(i). Its second differences do not
increase over the i with ih >= D. At D = 0, psi(0) = 0 and psi(-1) = psi(1), so psi(1) < 0 would
make all later ones negative, but the masses from 1 on add up to S(1) either way: V(1) - V(0) >=
c(h). At any D > 0, with i the first of ih >= D: psi(i) >= V(1) - V(0) - c(h) >= 0, and by convexity
psi(i) - psi(i - 1) >= V(1) - V(0) - c(h) >= 0. From there on psi is convex, then concave, and once
negative stays so. If psi(k) < 0, all later cells would weigh less than f does, but they add up
to Phi(-z(k)) = S(k). So psi(k) >= 0: z(k + 1) - z(k) <= h, and D >= 0 at k + 1. QED

Of the discrete Gaussian second differences of V are 1/sigma^2. Of Skellam noise they are
log a_{k+1}/a_k for a_k = I_{k-1}(lambda)/I_k(lambda), and fall with k: b_k = log a_k is concave
over k >= 0. At small lambda it is, being log(2k/lambda); and from I' = (I_{k-1} + I_{k+1})/2,

    2 db_k/dlambda = e^{b_{k-1}} - e^{b_k} + e^{-b_k} - e^{-b_{k+1}}.

Where first a second difference of b at k >= 1 is 0 and the others are not positive, with x =
e^{-(b_k - b_{k-1})}, twice its derivative is at most (1/a_k - a_k) (1 - x)^3/x <= 0. (At k = 1 by
b_{1-k} = -b_k; far out b_k is log(2k/lambda).)
"""

import abc
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _special
from jaxdp._mechanisms import Composed, Mechanism, Repeated, mechanism
from jaxdp._mechanisms._base import add_noise
from jaxdp._mechanisms._gaussian import GaussianFamily
from jaxdp._noise import _samplers, _theta
from jaxdp._noise._continuous import COUNT
from jaxdp._noise._discrete import DiscreteGaussian, Skellam
from jaxdp._special_bessel import log_bessel_i, log_power_series

_SQRT_2PI = math.sqrt(2.0 * math.pi)
_UP = 1.0 + 1e-12  # above the errors of log f(0), of quantiles, and of what follows here
_LARGEST = 1e6  # sigma up to which the formulas are asked; beyond, h falls at least like 1/sigma
_NEWTON = 6
_PAIRS = 64  # parties whose noise is added one by one


@jax.custom_jvp
def unit_mu(log_top: jax.Array) -> jax.Array:
    """2 Phi^{-1}((1 + f)/2) at log f: the cell around 0 of normal mass f is that wide."""
    wide = log_top > -0.35
    # The mass of a cell is concave in the log of its width: Newton's method from the left.
    narrow = jnp.where(wide, -1.0, log_top)

    def newton(_: Any, log_h: jax.Array) -> jax.Array:
        h = jnp.exp(log_h)
        mass = _special.log_ndtr_interval(-0.5 * h, 0.5 * h)
        slope = jnp.exp(log_h + _special.log_normal_density(0.5 * h) - mass)
        return log_h - (mass - narrow) / slope

    log_h = jax.lax.fori_loop(0, _NEWTON, newton, narrow + _special.LOG_SQRT_2PI)
    tail = _special.log1mexp(jnp.where(wide, log_top, -1.0)) - _special.LOG_2
    return jnp.where(wide, -2.0 * _special.log_ndtri(tail), jnp.exp(log_h))


@unit_mu.defjvp
def _unit_mu_jvp(primals, tangents):
    (log_top,), (tangent,) = primals, tangents
    h = unit_mu(log_top)
    end = jnp.where(jnp.isfinite(h), 0.5 * h, 0.0)
    slope = jnp.exp(log_top - _special.log_normal_density(end))
    return h, jnp.where(jnp.isfinite(h), slope, 0.0) * tangent


class IntegerVector(GaussianFamily):
    """Abstract: independent integer noise in every coordinate, dominated by a Gaussian.

    Attributes:
      sensitivity: of the L2 norm.
    """

    sensitivity: Any

    def _mu_ulps(self) -> ArrayLike:
        return 2.0

    def at(self, difference: Any) -> Mechanism:
        """The pair of one difference, exactly: a composition of one-coordinate mechanisms.

        What any difference that the sensitivity allows gives is a lower bound on the privacy loss
        of the mechanism; and if all neighbours differ by it (or by a permutation of it, or in
        signs) it is the answer.

        Args:
          difference: known integers, not all 0, of an L2 norm that is at most the sensitivity.

        Raises:
          ValueError: for other differences. TypeError: if the sensitivity is traced.
        """
        known = _checks.concrete("difference", difference)
        limit = _checks.concrete("sensitivity", self.sensitivity)
        if known is None or limit is None:
            raise TypeError("difference and sensitivity must be known")
        sizes = np.abs(known.astype(np.float64)).ravel()
        if not np.all(sizes % 1.0 == 0.0) or not np.any(sizes) or np.max(sizes) >= 2.0**26:
            got = _checks.shown(difference)
            raise ValueError(f"difference must be integers below 2^26, not all 0, got {got}")
        norm = float(np.sqrt(np.sum(sizes * sizes)))
        if norm > np.min(limit) * (1.0 + 1e-12):
            raise ValueError(
                f"difference must have a norm of at most the sensitivity, got norm {norm:g}"
            )
        values, counts = np.unique(sizes[sizes > 0.0], return_counts=True)
        parts = [
            one if count == 1 else Repeated(one, float(count))
            for one, count in zip(map(self._coordinate, values.tolist()), counts, strict=True)
        ]
        return parts[0] if len(parts) == 1 else Composed(parts)

    @abc.abstractmethod
    def _coordinate(self, shift: float) -> Mechanism:
        """One coordinate that is moved by so much."""


@mechanism
class DiscreteGaussianVector(IntegerVector):
    r"""Adds discrete Gaussian noise to every coordinate of a vector of integers.

    For neighbours whose values differ by any vector of integers of an L2 norm up to the
    sensitivity, in any dimension. Every one of them is dominated by one Gaussian pair, of

    .. math:: \mu = \Delta h, \quad h = 2 \Phi^{-1}\Big(\frac{1 + f(0)}{2}\Big)
              = \frac{1}{\sigma}\Big(1 + \frac{1}{24\sigma^2} + \dots\Big)

    (f the probabilities of one coordinate), proved in `jaxdp._noise._vectors`. No smaller mu will
    do at sensitivity 1; above it no one vector is the worst at all epsilon, and mu exceeds what
    any of them needs by a share of the order of 1/sigma^2. Rényi divergences are those of Canonne,
    Kamath & Steinke (2020, arXiv 2004.00010, Theorem 14): :math:`\alpha\Delta^2/(2\sigma^2)`,
    attained at integer alpha and Delta; below sigma = 1 they may say more (`method=Renyi()`).

    Where n parties add such noise each (Kairouz, Liu & Steinke 2021, arXiv 2102.06387), the sum
    of it is that of :math:`\sqrt{n}\,\sigma` up to factors of e^{+-tau} in every coordinate,

    .. math:: \tau = \sum_{k=1}^{n-1} \log\frac{1 + \eta_k}{1 - \eta_k}, \quad
              \eta_k = 2 \sum_{j \ge 1} e^{-2\pi^2\sigma^2 j^2 k/(k+1)},

    which moves the quantiles of a corner by up to :math:`\sqrt{\pi/2}\,\tau` each:
    :math:`\mu = \Delta (h + \sqrt{2\pi}\,\tau)`, or that of one party's noise, if it is less. It
    does not grow with the dimension. Nor do their Rényi divergences, Proposition 14, for
    coordinates that are not moved do not count: :math:`\frac{\alpha}{2} \Delta^2
    (\frac{1}{\sqrt{n}\sigma} + 10 \sum_k e^{-2\pi^2\sigma^2 k/(k+1)})^2` for sigma >= 1/2 (here
    with 2.51 tau for the last, which is a little more).

    Upper bounds are certified for every difference; lower ones are those of the Gaussian pair:
    `at` has certified ones. An L1 sensitivity of a and a largest change of b bound the L2
    norm by sqrt(a b).

    Args:
      sigma: > 0, the parameter of each party's noise. Any shape.
      sensitivity: Delta > 0, of the L2 norm; broadcasts against sigma.
      num_parties: integer n >= 1, how many add noise: those who stay and are honest.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> m = jaxdp.DiscreteGaussianVector(10.0, sensitivity=5.0)
      >>> least = jaxdp.epsilon_bounds(m.at([1] * 25), 1e-6)[0]  # 25 counts, each off by one
      >>> bool(least <= jaxdp.epsilon(m, 1e-6) < 1.001 * least)
      True
    """

    sigma: ArrayLike
    sensitivity: ArrayLike = 1.0
    num_parties: ArrayLike = 1

    _domains: ClassVar = {
        "sigma": _checks.POSITIVE,
        "sensitivity": _checks.POSITIVE,
        "num_parties": COUNT,
    }
    _less_divergent: ClassVar = True

    def _sizes(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """sigma of one party and of all, (2, ...), what mu adds for the latter, and whether."""
        sigma, parties = jnp.broadcast_arrays(
            jnp.asarray(self.sigma, jnp.float64), jnp.asarray(self.num_parties, jnp.float64)
        )
        more = _SQRT_2PI * log_ratio_of_sums(sigma, parties)
        return jnp.stack([sigma, jnp.sqrt(parties) * sigma]), more, parties > 1.0

    def _mu(self) -> jax.Array:
        sigmas, more, _ = self._sizes()
        held = jnp.minimum(sigmas, _LARGEST)
        alone, together = unit_mu(-_theta.log_theta_zero(held)) * (held / sigmas)
        # the noise of one party alone protects no less than what others' noise is added to
        unit = jnp.where(together + more < alone, together + more, alone)
        return self.sensitivity * unit * _UP

    def _rho(self) -> jax.Array:
        sigmas, more, several = self._sizes()
        alone, together = 1.0 / sigmas
        known = several & (sigmas[0] >= 0.5) & (together + more < alone)
        unit = jnp.where(known, (together + more) * _UP, alone)
        return jnp.minimum(0.5 * (self.sensitivity * unit) ** 2, super()._rho())

    def _coordinate(self, shift: float) -> Mechanism:
        parties = _checks.concrete("num_parties", self.num_parties)
        if parties is None or np.any(parties != 1):
            raise ValueError("num_parties must be 1: sums have no law of one coordinate here")
        return DiscreteGaussian(self.sigma, shift)

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + the noise of all parties, for an array or PyTree of integers, as floats."""

        def noise(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            def add(i: jax.Array, total: jax.Array) -> jax.Array:
                one = jax.random.fold_in(key, i)
                return total + _samplers.discrete_gaussian(one, shape, dtype, self.sigma)

            count = jnp.asarray(self.num_parties).astype(int)
            return jax.lax.fori_loop(0, count, add, jnp.zeros(shape, dtype))

        return add_noise(key, value, noise)


@mechanism
class SkellamVector(IntegerVector):
    r"""Adds Skellam noise to every coordinate of a vector of integers.

    For neighbours whose values differ by any vector of integers of an L2 norm up to the
    sensitivity, in any dimension. Every one of them is dominated by one Gaussian pair, of

    .. math:: \mu = \Delta h, \quad
              h = 2 \Phi^{-1}\Big(\frac{1 + e^{-\lambda} I_0(\lambda)}{2}\Big)
              = \frac{1}{\sqrt\lambda}\Big(1 + \frac{1}{6\lambda} + \dots\Big),

    proved in `jaxdp._noise._vectors`; at sensitivity 1 no smaller mu will do. It needs no L1
    sensitivity; its Rényi divergences, :math:`\alpha\Delta^2 h^2/2`, are below the bound of
    Agarwal, Kairouz & Liu (2021, arXiv 2110.04995, Corollary 3.6; `skellam_renyi_bound`) at orders
    up to about :math:`9 \lambda \Delta_1/\Delta^2`, Delta_1 being the L1 sensitivity there.
    Shares add up: `PartialNoise` and `noise_share` take it.

    Upper bounds are certified for every difference; lower ones are those of the Gaussian pair:
    `at` has certified ones. An L1 sensitivity of a and a largest change of b bound the L2
    norm by sqrt(a b).

    Args:
      variance: lambda > 0, of each coordinate's noise. Any shape.
      sensitivity: Delta > 0, of the L2 norm; broadcasts against variance.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> m = jaxdp.SkellamVector(variance=100.0, sensitivity=5.0)
      >>> float(jaxdp.renyi(m, 4.0)) < 0.502  # a Gaussian has 0.5
      True
    """

    variance: ArrayLike
    sensitivity: ArrayLike = 1.0

    _domains: ClassVar = {"variance": _checks.POSITIVE, "sensitivity": _checks.POSITIVE}

    def _mu(self) -> jax.Array:
        variance = jnp.asarray(self.variance, jnp.float64)
        held = jnp.minimum(variance, _LARGEST**2)
        small = held < 1.0  # where log f(0) is near 0
        low, zero = jnp.where(small, held, 0.5), jnp.zeros_like(held)
        log_top = log_bessel_i(zero, jnp.where(small, 1.0, held))
        unit = unit_mu(jnp.where(small, log_power_series(zero, low) - low, log_top))
        return self.sensitivity * unit * jnp.sqrt(held / variance) * _UP

    def _coordinate(self, shift: float) -> Mechanism:
        return Skellam(self.variance, shift)

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + noise for every entry of an array or PyTree of integers, as floats."""

        def noise(key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
            return _samplers.skellam(key, shape, dtype, self.variance)

        return add_noise(key, value, noise)


def log_ratio_of_sums(sigma: jax.Array, parties: jax.Array) -> jax.Array:
    r"""tau: how far n discrete Gaussians add up to one of n sigma^2, by log probabilities.

    Adding N_Z(b) to N_Z(a) gives e^{-k^2/(2 (a + b))} times a theta function of variance
    ab/(a + b), whose values are in a range of (1 - eta, 1 + eta); so that both, of mass 1, are
    within (1 + eta)/(1 - eta). Noise that is added later keeps ratios. eta_k falls with k: beyond
    some k the last is taken for all. Beyond all bounds where eta may be 1.
    """
    k = jnp.arange(1.0, _PAIRS + 1.0)
    q = jnp.exp(-2.0 * (jnp.pi * sigma[..., None]) ** 2 * k / (k + 1.0))
    small = q < 0.4
    q = jnp.where(small, q, 0.1)
    eta = 2.0 * (q + q**4 / (1.0 - q**5))
    each = jnp.where(small, 2.0 * jnp.arctanh(eta), 1e300)  # (an infinite one has no derivative)
    later = parties[..., None] - k
    copies = jnp.where(k < _PAIRS, jnp.clip(later, 0.0, 1.0), jnp.maximum(later, 0.0))
    return jnp.sum(jnp.where(copies > 0.0, copies * each, 0.0), axis=-1)
