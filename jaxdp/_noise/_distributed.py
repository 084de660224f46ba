"""Noise added in shares by many parties: infinitely divisible laws and what is left of them."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp._mechanisms import (
    Base,
    Direction,
    Gaussian,
    Laplace,
    Mechanism,
    mechanism,
    require_mechanism,
)
from jaxdp._mechanisms._base import Term
from jaxdp._noise._continuous import COUNT, GammaDifference, LaplaceSum
from jaxdp._noise._discrete import DiscreteLaplace, GeneralizedDiscreteLaplace, Skellam
from jaxdp._noise._negative_binomial import NegativeBinomial
from jaxdp._noise._vectors import SkellamVector

# The laws of shares: X is the sum of n shares of law _FRACTIONS(X, 1/n).
_FRACTIONS = {
    Gaussian: lambda m, f: Gaussian(jnp.sqrt(f) * m.sigma, m.sensitivity),
    Skellam: lambda m, f: Skellam(f * m.variance, m.sensitivity),
    SkellamVector: lambda m, f: SkellamVector(f * m.variance, m.sensitivity),
    DiscreteLaplace: lambda m, f: GeneralizedDiscreteLaplace(1.0 * f, m.a, m.sensitivity),
    GeneralizedDiscreteLaplace: lambda m, f: GeneralizedDiscreteLaplace(
        f * m.beta, m.a, m.sensitivity
    ),
    NegativeBinomial: lambda m, f: NegativeBinomial(f * m.r, m.p, m.sensitivity),
    Laplace: lambda m, f: GammaDifference(1.0 * f, m.scale, m.sensitivity),
    GammaDifference: lambda m, f: GammaDifference(f * m.beta, m.scale, m.sensitivity),
    LaplaceSum: lambda m, f: GammaDifference(f * m.count, m.scale, m.sensitivity),
}


def _require_divisible(name: str, value: Any) -> None:
    require_mechanism(name, value)
    if type(value) not in _FRACTIONS:
        known = ", ".join(cls.__name__ for cls in _FRACTIONS)
        raise TypeError(
            f"{name} must have a law that is a sum of independent shares ({known}), "
            f"got {type(value).__name__}"
        )


@mechanism
class PartialNoise(Base):
    r"""A mechanism of which only a fraction of the parties adds its share of the noise.

    Every party adds one of n independent shares whose sum is the mechanism's noise; with m = f n
    honest parties what is left is the f-th convolution power of the law:

    ==================================  ==========================================
    Gaussian(sigma)                     Gaussian(sqrt(f) sigma)
    Skellam(variance)                   Skellam(f variance)
    SkellamVector(variance)             SkellamVector(f variance)
    DiscreteLaplace(a)                  GeneralizedDiscreteLaplace(f, a)
    GeneralizedDiscreteLaplace(b, a)    GeneralizedDiscreteLaplace(f b, a)
    NegativeBinomial(r, p)              NegativeBinomial(f r, p)
    Laplace(scale)                      GammaDifference(f, scale)
    GammaDifference(b, scale)           GammaDifference(f b, scale)
    LaplaceSum(n, scale)                GammaDifference(f n, scale)
    ==================================  ==========================================

    Both directions are those of the law that is left. (Skellam: Agarwal, Kairouz & Liu 2021,
    arXiv 2110.04995; negative binomial: Balle, Bell, Gascón & Nissim 2020, arXiv 2002.00817.)

    Args:
      mechanism: one of the above. The discrete Gaussian has no shares: see the num_parties of
        `DiscreteGaussianVector`.
      honest_fraction: f > 0; above 1 if more parties than planned take part. Any shape.

    Raises:
      ValueError: if a known fraction is not finite and positive. TypeError: if the mechanism's
        law has no shares.

    Example:
      >>> import jaxdp
      >>> noise = jaxdp.PartialNoise(jaxdp.Gaussian(2.0), 0.25)
      >>> round(float(jaxdp.epsilon(noise, 1e-5)), 4)  # the same as Gaussian(1.0)
      4.3772
    """

    mechanism: Mechanism
    honest_fraction: ArrayLike

    _domains = {"honest_fraction": _checks.POSITIVE}

    def __post_init__(self) -> None:
        _require_divisible("mechanism", self.mechanism)
        Mechanism.__post_init__(self)

    def _left(self) -> Any:
        """The law that is left, as a mechanism."""
        return _FRACTIONS[type(self.mechanism)](self.mechanism, self.honest_fraction)

    def _in_domain(self) -> jax.Array:
        inside = self._domains["honest_fraction"].contains(self.honest_fraction)
        return self.mechanism._in_domain() & inside

    def _terms(self) -> list[Term]:
        return self._left()._terms()

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._left()._rate(s)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return self._left()._sampled_rate(s, q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return self._left()._loss_range()

    def _log_failure(self, direction: Direction) -> jax.Array:
        return self._left()._log_failure(direction)

    def _symmetric(self) -> bool:
        return not isinstance(self.mechanism, NegativeBinomial)

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return self._left()._log_hockey_stick(epsilon, direction, slack)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._left()._log_masses(lo, hi)

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + what the honest parties add, for every entry of an array or PyTree.

        Of all laws but Gaussian and SkellamVector, the queries are for one entry (see `Skellam`).
        """
        return self._left().sample(key, value)


def noise_share(mechanism: Mechanism, num_parties: ArrayLike) -> Mechanism:
    """The law of one party's share: independent shares of all parties add up to the mechanism.

    See `PartialNoise`, at honest_fraction = 1/num_parties, for the laws. `.sample(key, 0.0)` of
    the result draws a share; its queries tell what one share alone protects.

    Args:
      mechanism: Gaussian, Skellam, SkellamVector, DiscreteLaplace, GeneralizedDiscreteLaplace,
        NegativeBinomial, Laplace, GammaDifference or LaplaceSum.
      num_parties: integer n >= 1. Any shape.

    Returns:
      A mechanism, of the family named in `PartialNoise`.

    Raises:
      ValueError: if a known number of parties is no integer >= 1. TypeError: if the law of the
        mechanism has no shares (DiscreteGaussian).

    Example:
      >>> import jaxdp
      >>> float(jaxdp.noise_share(jaxdp.Skellam(100.0), 50).variance)
      2.0
    """
    _require_divisible("mechanism", mechanism)
    _checks.check("num_parties", num_parties, COUNT)
    return _FRACTIONS[type(mechanism)](mechanism, 1.0 / num_parties)
