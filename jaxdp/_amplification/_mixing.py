"""Amplification by mixing: what a Markov post-processing does to (epsilon, delta).

Theorem 1 of Balle, Barthe, Gaboardi & Geumlek 2019 (arXiv 1905.12264): the output of an
(epsilon, delta)-DP mechanism is passed through a Markov operator K that forgets its input
uniformly. The conditions are immutable PyTrees; each knows its own line of the theorem. What
must never change: every output is an upper bound (rounded up), in either direction separately.
"""

import abc
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _answers, _checks, _chunks, _divergences, _queries, _x64
from jaxdp._mechanisms import Mechanism, mechanism, require_mechanism

_UP = 1.0 + 16.0 * _divergences.SLACK  # covers the rounding of the few operations below


class PrivacyPair(NamedTuple):
    """An (epsilon, delta) guarantee.

    Attributes:
      epsilon: upper bound on epsilon.
      delta: upper bound on delta at that epsilon.
    """

    epsilon: jax.Array
    delta: jax.Array


class MixingCondition(abc.ABC):
    """Abstract: a uniform mixing condition of a Markov operator K (Balle et al. 2019, Def. 1)."""

    _domains: ClassVar[dict[str, _checks.Domain]] = {}

    def __post_init__(self) -> None:
        for name, domain in self._domains.items():
            value = _checks.array_of(name, getattr(self, name))
            _checks.check(name, value, domain)
            object.__setattr__(self, name, value)

    def _in_domain(self) -> jax.Array:
        inside = jnp.asarray(True)
        for name, domain in self._domains.items():
            inside = inside & domain.contains(getattr(self, name))
        return inside

    @abc.abstractmethod
    def _amplify(self, epsilon: jax.Array, delta: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(epsilon', delta') of the post-processed mechanism, epsilon >= 0."""

    @abc.abstractmethod
    def _source(self, epsilon: jax.Array) -> jax.Array:
        """The epsilon of the mechanism that `_amplify` maps to this one."""

    @abc.abstractmethod
    def _power(self, steps: jax.Array) -> tuple[jax.Array, ...]:
        """The fields of the condition that K^steps satisfies."""

    def power(self, steps: ArrayLike) -> Any:
        """The condition of `steps` applications of K: gamma multiplies (steps >= 1, real).

        Dobrushin, Doeblin and ultra-mixing coefficients are submultiplicative; the two-parameter
        Dobrushin one is multiplied by the total variation that it implies. The coefficients of
        an explicit K^n (`jaxdp.kernel_power`) are never larger.

        Example:
          >>> import jaxdp
          >>> round(float(jaxdp.Doeblin(0.5).power(3).gamma), 6)
          0.125
        """
        _checks.check("steps", steps, _checks.FINITE_KL_ORDER)
        fields = _x64.evaluate(
            _power, self, steps, rounding=("up",) + ("nearest",) * (len(self._domains) - 1)
        )
        return jax.tree.unflatten(jax.tree.structure(self), fields)


def _power(condition, steps):
    fields = condition._power(steps)
    valid = condition._in_domain() & (steps >= 1.0)
    gamma = jnp.minimum(fields[0] * _UP, 1.0)
    return (jnp.where(valid, gamma, jnp.nan), *fields[1:])


def _power_of(gamma, steps):
    positive = gamma > 0.0
    return jnp.where(positive, jnp.exp(steps * jnp.log(jnp.where(positive, gamma, 1.0))), 0.0)


@mechanism
class Dobrushin(MixingCondition):
    r"""(gamma, epsilon)-Dobrushin: H_{e^epsilon}(K(x) || K(x')) <= gamma for all x, x'.

    At epsilon = 0 this is the classical coefficient, the largest total variation. As a guarantee
    of K it is (epsilon, gamma)-local DP. delta' = gamma delta at the same epsilon when the
    condition holds at `dobrushin_epsilon(epsilon, delta)` (Theorem 1 (1), (2)); a condition at
    a larger epsilon~ is carried down along the worst curve through it (Kairouz, Oh & Viswanath
    2015): :math:`\gamma + (1 - \gamma)(1 - e^{a - \tilde\varepsilon})/(1 + e^{-\tilde\varepsilon})`
    at a < epsilon~.

    Args:
      gamma: in [0, 1]. Any shape.
      epsilon: >= 0, where the divergence is taken; broadcasts against gamma.

    Raises:
      ValueError: for known values outside their domains.

    Example:
      >>> import jaxdp
      >>> pair = jaxdp.amplify_by_mixing(1.0, 1e-5, jaxdp.Dobrushin(0.5))
      >>> round(float(pair.delta), 8)
      5e-06
    """

    gamma: ArrayLike
    epsilon: ArrayLike = 0.0

    _domains: ClassVar = {"gamma": _checks.PROBABILITY, "epsilon": _checks.NON_NEGATIVE}

    def _gamma_at(self, log_g):
        """Bound on sup H_{e^log_g}(K(x)||K(x')), log_g in [0, inf]."""
        gap = jnp.minimum(log_g - self.epsilon, 0.0)
        carried = -jnp.expm1(gap) * jax.nn.sigmoid(self.epsilon)
        return self.gamma + (1.0 - self.gamma) * carried

    def _amplify(self, epsilon, delta):
        return epsilon, self._gamma_at(_dobrushin_epsilon(epsilon, delta)) * delta

    def _source(self, epsilon):
        return epsilon

    def _power(self, steps):
        total_variation = jnp.minimum(self._gamma_at(jnp.zeros_like(self.epsilon)), 1.0)
        return self.gamma * _power_of(total_variation, steps - 1.0), self.epsilon + 0.0 * steps


@mechanism
class Doeblin(MixingCondition):
    r"""gamma-Doeblin: K(x) >= (1 - gamma) omega for all x and one distribution omega.

    :math:`\varepsilon' = \log(1 + \gamma(e^\varepsilon - 1))`,
    :math:`\delta' = \gamma(1 - e^{\varepsilon'-\varepsilon}(1 - \delta))` (Theorem 1 (3)), which is
    positive even at delta = 0: a smaller epsilon is paid for in delta.

    Args:
      gamma: in [0, 1]. Any shape.

    Raises:
      ValueError: for a known gamma outside [0, 1].

    Example:
      >>> import jaxdp
      >>> pair = jaxdp.amplify_by_mixing(1.0, 1e-5, jaxdp.Doeblin(0.5))
      >>> round(float(pair.epsilon), 6), round(float(pair.delta), 6)
      (0.620115, 0.158034)
    """

    gamma: ArrayLike

    _domains: ClassVar = {"gamma": _checks.PROBABILITY}

    def _amplify(self, epsilon, delta):
        missing = (1.0 - self.gamma) * -jnp.expm1(-epsilon)  # 1 - e^{epsilon' - epsilon}
        return _mixed_loss(epsilon, self.gamma), self.gamma * (delta * (1.0 - missing) + missing)

    def _source(self, epsilon):
        return _unmixed_loss(epsilon, self.gamma)

    def _power(self, steps):
        return (_power_of(self.gamma, steps),)


@mechanism
class UltraMixing(MixingCondition):
    r"""gamma-ultra-mixing: dK(x)/dK(x') >= 1 - gamma for all x, x'.

    As a guarantee of K it is (log 1/(1 - gamma), 0)-local DP.
    :math:`\varepsilon' = \log(1 + \gamma(e^\varepsilon - 1))`,
    :math:`\delta' = \gamma\delta e^{\varepsilon'-\varepsilon}` (Theorem 1 (4)).

    Args:
      gamma: in [0, 1]. Any shape.

    Raises:
      ValueError: for a known gamma outside [0, 1].

    Example:
      >>> import jaxdp
      >>> pair = jaxdp.amplify_by_mixing(1.0, 0.0, jaxdp.UltraMixing(0.5))
      >>> round(float(pair.epsilon), 6), float(pair.delta)
      (0.620115, 0.0)
    """

    gamma: ArrayLike

    _domains: ClassVar = {"gamma": _checks.PROBABILITY}

    def _amplify(self, epsilon, delta):
        missing = (1.0 - self.gamma) * -jnp.expm1(-epsilon)
        return _mixed_loss(epsilon, self.gamma), self.gamma * delta * (1.0 - missing)

    def _source(self, epsilon):
        return _unmixed_loss(epsilon, self.gamma)

    def _power(self, steps):
        return (_power_of(self.gamma, steps),)


def _mixed_loss(epsilon, gamma):
    """log(1 + gamma (e^epsilon - 1)), 0 at gamma = 0."""
    positive = gamma > 0.0
    value = _divergences.sampled_loss(epsilon, jnp.where(positive, gamma, 1.0))
    return jnp.where(positive, value, 0.0)


def _unmixed_loss(epsilon, gamma):
    """The inverse of `_mixed_loss` in epsilon; inf at gamma = 0."""
    positive = gamma > 0.0
    value = _divergences.sampled_loss(epsilon, 1.0 / jnp.where(positive, gamma, 1.0))
    return jnp.where(positive, value, jnp.inf)


def amplify_by_mixing(
    epsilon: ArrayLike, delta: ArrayLike, condition: MixingCondition
) -> PrivacyPair:
    """The (epsilon', delta') of an (epsilon, delta)-DP mechanism after one Markov step.

    Theorem 1 of Balle et al. 2019 (arXiv 1905.12264), the line of the given condition:
    `Dobrushin` amplifies delta alone; `Doeblin` and `UltraMixing` also epsilon. For several
    steps use `condition.power(n)`; for a whole privacy profile `delta_after_mixing`. Holds for
    whichever direction(s) the given pair holds for.

    Args:
      epsilon: >= 0, finite. Any shape.
      delta: in [0, 1). Any shape.
      condition: a mixing condition of the Markov operator; its fields broadcast too.

    Returns:
      A `PrivacyPair` of upper bounds of the broadcast shape.

    Raises:
      ValueError: for known epsilon or delta outside their domains. TypeError: if condition is
        no mixing condition.

    Example:
      >>> import jaxdp
      >>> pair = jaxdp.amplify_by_mixing(2.0, 0.01, jaxdp.UltraMixing(0.1))
      >>> round(float(pair.epsilon), 6), round(float(pair.delta), 9)
      (0.494029, 0.000221802)
    """
    _checks.check("epsilon", epsilon, _checks.NON_NEGATIVE)
    _checks.check("delta", delta, _checks.DELTA)
    _require_condition(condition)
    values = _x64.evaluate(_amplify, condition, epsilon, delta, rounding=("up", "up"))
    return PrivacyPair(*values)


def _require_condition(condition: Any) -> None:
    if not isinstance(condition, MixingCondition):
        raise TypeError(
            f"condition must be a jaxdp mixing condition, got {_checks.shown(condition)}"
        )


def _amplify(condition, epsilon, delta):
    mixed_epsilon, mixed_delta = condition._amplify(epsilon, delta)
    valid = condition._in_domain() & (epsilon >= 0.0) & _checks.DELTA.contains(delta)
    mixed_delta = jnp.minimum(mixed_delta * _UP, 1.0)
    mixed_epsilon = jnp.minimum(mixed_epsilon * _UP, epsilon)
    return tuple(jnp.where(valid, value, jnp.nan) for value in (mixed_epsilon, mixed_delta))


def dobrushin_epsilon(epsilon: ArrayLike, delta: ArrayLike) -> jax.Array:
    r"""Where the two-parameter Dobrushin condition must hold for delta' = gamma delta.

    :math:`\tilde\varepsilon = \log(1 + (e^\varepsilon - 1)/\delta)` (Theorem 1 (2) of Balle et al.
    2019), inf at delta = 0 unless epsilon = 0. Rounded down, where the condition asks for more.

    Args:
      epsilon: >= 0, finite. Any shape.
      delta: in [0, 1). Any shape.

    Raises:
      ValueError: for known arguments outside their domains.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.dobrushin_epsilon(1.0, 1e-5)), 4)
      12.0543
    """
    _checks.check("epsilon", epsilon, _checks.NON_NEGATIVE)
    _checks.check("delta", delta, _checks.DELTA)
    return _x64.evaluate(_checked_dobrushin_epsilon, epsilon, delta, rounding="down")


def _checked_dobrushin_epsilon(epsilon, delta):
    valid = (epsilon >= 0.0) & _checks.DELTA.contains(delta)
    return jnp.where(valid, _dobrushin_epsilon(epsilon, delta), jnp.nan)


def _dobrushin_epsilon(epsilon, delta):
    positive = delta > 0.0
    value = _divergences.sampled_loss(epsilon, 1.0 / jnp.where(positive, delta, 1.0))
    return jnp.where(positive, value, jnp.where(epsilon > 0.0, jnp.inf, 0.0))


def delta_after_mixing(
    m: Mechanism,
    epsilon: ArrayLike,
    condition: MixingCondition,
    *,
    direction: _queries.Directions = "both",
) -> jax.Array:
    """Upper bound on delta at epsilon of a mechanism followed by one Markov step.

    The whole privacy profile amplified at once: Theorem 1 of Balle et al. 2019 is applied at the
    epsilon of `m` that the condition maps to the one asked for, e.g.
    log(1 + (e^epsilon - 1)/gamma) for Doeblin; never larger than `jaxdp.delta(m, epsilon)`.

    Args:
      m: a mechanism; its parameters broadcast against epsilon.
      epsilon: >= 0, of the result. Any shape.
      condition: a mixing condition of the Markov operator.
      direction: "remove", "add" or "both".

    Raises:
      ValueError: for a known epsilon < 0 or an unknown direction. TypeError: if m is no
        mechanism or condition no mixing condition.

    Example:
      >>> import jaxdp
      >>> profile = jaxdp.delta_after_mixing(jaxdp.Laplace(1.0), 0.5, jaxdp.UltraMixing(0.5))
      >>> round(float(profile), 6), round(float(jaxdp.delta(jaxdp.Laplace(1.0), 0.5)), 6)
      (0.028943, 0.221199)
    """
    require_mechanism("m", m)
    _require_condition(condition)
    _checks.check_choice("direction", direction, ("remove", "add", "both"))
    _checks.check("epsilon", epsilon, _checks.NON_NEGATIVE)
    return _x64.evaluate(
        _delta_after_mixing,
        m,
        epsilon,
        condition,
        rounding="up",
        chunk=_chunks.chunk_of(m, None, epsilon),
        quick=True,
        direction=direction,
    )


def _delta_after_mixing(m, epsilon, condition, direction):
    source = condition._source(epsilon) * (1.0 - 8.0 * _divergences.SLACK)
    finite = jnp.isfinite(source)
    source = jnp.where(finite, jnp.maximum(source, epsilon), epsilon)
    at_source = _answers.delta(m, source, direction)
    _, mixed = condition._amplify(source, at_source)
    mixed = jnp.where(finite, mixed * _UP, 0.0)
    plain = _answers.delta(m, epsilon, direction)
    valid = condition._in_domain() & (epsilon >= 0.0)
    return jnp.where(valid, jnp.minimum(mixed, plain), jnp.nan)
