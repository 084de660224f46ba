"""A Gaussian whose sum an exchange of records moves by random amounts, in opposite directions."""

import abc
import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _rates
from jaxdp._mechanisms import _exchange_pair
from jaxdp._mechanisms._base import Direction, mechanism
from jaxdp._mechanisms._exchange_pair import Sides
from jaxdp._mechanisms._groups import PoissonGroup
from jaxdp._mechanisms._mixture import GaussianMixture, RandomAmounts


class ExchangeFamily(RandomAmounts):
    """Abstract: a mixture of N(a_i, 1), a_i >= 0, against one of N(-b_j, 1), b_j >= 0."""

    _relation: ClassVar = "replace-one"

    @abc.abstractmethod
    def _sides(self) -> Sides:
        """The two mixtures."""

    def _rate(self, s: jax.Array) -> jax.Array:
        return _exchange_pair.rate(s, self._sides())

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.convex_rate(s, self._rate(s), q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(-jnp.inf), jnp.asarray(jnp.inf)

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        sides = self._sides() if direction == "remove" else self._sides().swapped()
        return _exchange_pair.log_hockey_stick(epsilon, sides, slack)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _exchange_pair.log_masses(lo, hi, self._sides())

    def _mass_error(self) -> jax.Array:
        return _exchange_pair.mass_error(self._sides())


@mechanism
class DoubleGaussianMixture(ExchangeFamily):
    r"""Two mixtures of Gaussians on opposite sides: what records that are exchanged may add.

    .. math:: P = \sum_i w_i N(s_i, \sigma^2), \quad Q = \sum_j v_j N(-t_j, \sigma^2),
              \quad s_i, t_j \ge 0

    The records of one input move the value by s_i with probability w_i, those in their place in the
    other one by -t_j with probability v_j, and neither amount is revealed (Schuchardt, Stoian,
    Kosmala & Guennemann 2024, arXiv 2403.04867, have such pairs for groups of records in samples).
    Its own curve, masses and moments are certified, in both directions: that a release is dominated
    by this pair is for its author to know.

    Args:
      sigma: standard deviation of the noise, in the units of the value, > 0. Any shape.
      sensitivities: the s_i, shape (..., K), finite and >= 0, one at least > 0; those that are > 0
        from 1e-100 to 1e100 sigma.
      weights: the w_i, the same shape, in [0, 1], of sum 1 (they are normalised).
      other_sensitivities: the t_j, shape (..., L), as `sensitivities`.
      other_weights: the v_j, as `weights`.

    Raises:
      ValueError: as `GaussianMixture`, of either side.

    Example:
      >>> import jaxdp
      >>> double = jaxdp.DoubleGaussianMixture(1.0, [0.0, 1.0], [0.9, 0.1], [0.0, 1.0], [0.9, 0.1])
      >>> one = jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(1.0), 0.1)
      >>> abs(float(jaxdp.delta(double, 1.0) / jaxdp.delta(one, 1.0)) - 1.0) < 1e-9
      True
    """

    sigma: ArrayLike
    sensitivities: ArrayLike
    weights: ArrayLike
    other_sensitivities: ArrayLike
    other_weights: ArrayLike

    _domains: ClassVar = {
        "sigma": _checks.POSITIVE,
        "sensitivities": _checks.NON_NEGATIVE,
        "weights": _checks.PROBABILITY,
        "other_sensitivities": _checks.NON_NEGATIVE,
        "other_weights": _checks.PROBABILITY,
    }
    _core_ndims: ClassVar = {
        "sensitivities": 1,
        "weights": 1,
        "other_sensitivities": 1,
        "other_weights": 1,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        GaussianMixture(self.sigma, self.sensitivities, self.weights)
        try:
            GaussianMixture(self.sigma, self.other_sensitivities, self.other_weights)
        except ValueError as error:
            raise ValueError(f"of the other side, {error}") from None

    def _mixtures(self) -> tuple[GaussianMixture, GaussianMixture]:
        pairs = (self.sensitivities, self.weights), (self.other_sensitivities, self.other_weights)
        return tuple(_unchecked(self.sigma, *pair) for pair in pairs)

    def _in_domain(self) -> jax.Array:
        one, other = self._mixtures()
        return one._in_domain() & other._in_domain()

    def _sides(self) -> Sides:
        return Sides(*(side._components() for side in self._mixtures()))

    def _symmetric(self) -> bool:
        return False


def _unchecked(sigma: Any, sensitivities: Any, weights: Any) -> GaussianMixture:
    """A mixture whose parameters were looked at before."""
    made = object.__new__(GaussianMixture)
    for name, value in (("sigma", sigma), ("sensitivities", sensitivities), ("weights", weights)):
        object.__setattr__(made, name, value)
    return made


@mechanism
class PoissonSampledGroupReplaceOne(PoissonGroup, ExchangeFamily):
    r"""A Gaussian on a Poisson sample, of which a user's k records are exchanged for k others.

    Every record joins by itself with probability q, so that a batch holds Binomial(k, q) of a
    user's, each moving the value by at most the sensitivity; the user's records and those in their
    place push in opposite directions: a `DoubleGaussianMixture` of shifts j Delta and -j Delta,
    symmetric. For k = 1 it is `PoissonSampledReplaceOne` of a `Gaussian`, whose pair is the worst
    one (Lebeda, Regehr, Kamath & Steinke 2024, Proposition 13). For larger k it is the pair of
    Schuchardt et al. 2024 (arXiv 2403.04867, Theorem 3.8, not checked against the paper; there is
    no proof of ours). It is attained by values on a line, so that lower bounds hold in any case; an
    upper bound that is proved is `group_privacy(PoissonSampledReplaceOne(...), k)`, some percent
    above it.

    Args:
      sigma: standard deviation of the noise, in the units of the value, > 0. Any shape.
      sampling_probability: q in (0, 1], of a record.
      group_size: the most records of a user, a known integer from 1 to 256.
      sensitivity: of the value to one record added or removed, > 0.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> user = jaxdp.PoissonSampledGroupReplaceOne(2.0, 0.1, 2)
      >>> round(float(jaxdp.epsilon(user, 1e-5)), 2)
      1.0
    """

    sigma: ArrayLike
    sampling_probability: ArrayLike
    group_size: int = dataclasses.field(metadata={"static": True})
    sensitivity: ArrayLike = 1.0

    _most: ClassVar = 256  # k^2 pairs of Gaussians a point

    def _sides(self) -> Sides:
        group = self._group()
        return Sides(group, group)

    def _symmetric(self) -> bool:
        return True
