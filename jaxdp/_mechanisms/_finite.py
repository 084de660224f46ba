"""Randomised response, and the worst mechanism that an (epsilon, delta) guarantee allows."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates
from jaxdp import _special_subnormal as subnormal
from jaxdp._mechanisms._base import Base, Direction, mechanism
from jaxdp._special import log1p


@mechanism
class RandomizedResponse(Base):
    """Binary randomised response: a bit is kept with probability e^epsilon/(1 + e^epsilon).

    Its likelihood ratio is e^{+-epsilon}: the extreme point of all epsilon-DP mechanisms
    (Kairouz, Oh & Viswanath 2015). Add and remove have the same curve.

    Args:
      epsilon: > 0. Any shape.

    Raises:
      ValueError: if a known epsilon is not finite and positive.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.delta(jaxdp.RandomizedResponse(1.0), 0.5)), 6)
      0.287649
    """

    epsilon: ArrayLike

    _is_short: ClassVar = True
    _domains: ClassVar = {"epsilon": _checks.POSITIVE}

    def _rate(self, s: jax.Array) -> jax.Array:
        return _divergences.randomized_response_rate(s, self.epsilon)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _sampled_response_rate(s, self.epsilon, q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return -self.epsilon, self.epsilon

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        zero = jnp.zeros_like(self.epsilon)
        return _divergences.approximate_dp_log_hockey_stick(epsilon, self.epsilon, zero, slack)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _divergences.atom_log_masses(
            lo, hi, *_divergences.randomized_response_nodes(self.epsilon)
        )

    def sample(self, key: jax.Array, value: Any) -> jax.Array:
        """Flip every bit of an array (0/1 or bool) with probability 1/(1 + e^epsilon)."""
        return _respond(key, jnp.asarray(value), self.epsilon)


@mechanism
class ApproximateDP(Base):
    """The worst pair of any (epsilon, delta)-DP mechanism.

    With probability delta the outcome reveals the input; otherwise it is randomised response
    (Kairouz, Oh & Viswanath 2015, Theorem 3.1): every (epsilon, delta)-DP mechanism is a
    post-processing of it, so what holds for this pair holds for all. Rényi divergences are
    infinite when delta > 0.

    Args:
      epsilon: > 0. Any shape.
      delta: in [0, 1); broadcasts against epsilon.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.delta(jaxdp.ApproximateDP(1.0, 1e-3), 1.0)), 6)
      0.001
    """

    epsilon: ArrayLike
    delta: ArrayLike = 0.0

    _is_short: ClassVar = True
    _domains: ClassVar = {"epsilon": _checks.POSITIVE, "delta": _checks.DELTA}

    def _rate(self, s: jax.Array) -> jax.Array:
        rate = _divergences.randomized_response_rate(s, self.epsilon)
        return rate + log1p(-self.delta) / _nonzero(s * (s - 1.0))

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        scale = _nonzero(s * (s - 1.0))
        inner = _sampled_response_rate(s, self.epsilon, q)
        # the revealing outcomes of Q have X = 0, that is 1 - q after sampling (none at q = 1)
        thinned = q < 1.0
        atom = log1p(-jnp.where(thinned, q, 0.5))
        log_delta = self._log_failure("remove")
        both = jnp.logaddexp(
            log1p(-self.delta) + scale * inner,
            log_delta + jnp.where(thinned, atom * s, -jnp.inf),
        )
        # s <= 0, without failure after sampling: P-mass q delta lies where Q has none
        loss, log_weights = _divergences.randomized_response_nodes(self.epsilon)
        add = _rates.discrete_rate(
            jnp.append(_rates.log_mixture(loss, q), atom),
            jnp.append(log_weights + log1p(-self.delta), log_delta),
            jnp.where(s <= 0.0, s, 0.0),
            missing=q * self.delta,
        )
        failing = jnp.where((s <= 0.0) & thinned, add, both / scale)
        return jnp.where(subnormal.is_positive(self.delta), failing, inner)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return -self.epsilon, self.epsilon

    def _log_failure(self, direction: Direction) -> jax.Array:
        return subnormal.log_positive(self.delta)

    def _failure(self, direction: Direction) -> jax.Array:
        return jnp.asarray(self.delta, jnp.float64)

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        # A subnormal failure (0 to XLA on CPUs, not so elsewhere) is added, 1 - delta being 1.
        small = subnormal.split(self.delta)[1]
        value = _divergences.approximate_dp_log_hockey_stick(
            epsilon, self.epsilon, jnp.where(small, 0.0, self.delta), slack
        )
        lost = jnp.where(small, self._log_failure(direction), -jnp.inf)
        lost = lost * (1.0 - 2.0 * slack)
        return jnp.where(small, _divergences.log_add(value, lost), value)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, log_q = _divergences.randomized_response_nodes(self.epsilon)
        return _divergences.atom_log_masses(lo, hi, loss, log_q + log1p(-self.delta))

    def sample(self, key: jax.Array, value: Any) -> jax.Array:
        """Respond to every bit: 0 or 3 reveal it (probability delta), 1 or 2 are the response."""
        reveal_key, response_key = jax.random.split(key)
        bit = jnp.asarray(value).astype(jnp.int32)
        reveal = jax.random.uniform(reveal_key, bit.shape) < jnp.asarray(self.delta)
        return jnp.where(reveal, 3 * bit, 1 + _respond(response_key, bit, self.epsilon))


def _nonzero(scale: jax.Array) -> jax.Array:
    """Rényi moments of order 0 and 1 are never asked of a law with failure mass."""
    return jnp.where(scale == 0.0, 1.0, scale)


def _sampled_response_rate(s: jax.Array, epsilon: jax.Array, q: jax.Array) -> jax.Array:
    loss, log_weights = _divergences.randomized_response_nodes(epsilon)
    return _rates.sampled_discrete_rate(loss, log_weights, s, q)


def _respond(key: jax.Array, bit: jax.Array, epsilon: ArrayLike) -> jax.Array:
    flip = jax.random.uniform(key, bit.shape) < jax.nn.sigmoid(-jnp.asarray(epsilon))
    return jnp.where(flip, 1 - bit.astype(jnp.int32), bit).astype(bit.dtype)
