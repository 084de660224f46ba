"""Mechanisms whose privacy loss has a bounded range: the worst law of one, and its moments."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates
from jaxdp import _special as special
from jaxdp._divergences import SLACK
from jaxdp._mechanisms._base import Base, Direction, mechanism
from jaxdp._rates_line import least

_ERROR = 1e-13  # of moments, relative
_RESOLVED = 500.0  # of |s| epsilon: panels of the quadrature are 1/64 of epsilon wide


@mechanism
class BoundedRange(Base):
    r"""Any mechanism whose losses lie within an interval of length epsilon (Durfee & Rogers 2019).

    Where the interval is [t - epsilon, t], 0 <= t <= epsilon, the ratio X lies in [e^(t - epsilon),
    e^t] with mean 1, and the worst law is that on both ends (Dong, Durfee & Rogers 2020, arXiv
    1909.13830, Lemma 3.2): X = e^t with P-probability (1 - e^(t - epsilon))/(1 - e^-epsilon). The
    worst t depends on what is asked.

    * At x in [-epsilon, epsilon] the curve is largest at t = (epsilon + x)/2:

      .. math:: \delta(x) = (1 - e^{(x - \varepsilon)/2})^2 / (1 - e^{-\varepsilon}),

      the curve of one pair: loss density e^{(u - epsilon)/2}/(2 (1 - e^-epsilon)) under P. That
      pair dominates all of them, and `_log_masses` is its law.
    * The moment E_Q X^s is largest at t = epsilon/2 + f(s epsilon) - f((s - 1) epsilon),
      f(x) = log(sinh(x/2)/(x/2)), and less than that of the dominating pair: `_rate`.

    Composed, neither is the worst: `_numerical_range` has what is. Never built by users.
    """

    epsilon: ArrayLike

    _domains: ClassVar = {"epsilon": _checks.POSITIVE}
    _is_envelope: ClassVar = True

    def _rate(self, s: jax.Array) -> jax.Array:
        epsilon = 1.0 * jnp.asarray(self.epsilon)
        order = jnp.maximum(s, 1.0 - s)  # the pairs of t and epsilon - t mirror each other
        frozen, power = jax.lax.stop_gradient((epsilon, order))
        # at the maximum over t, an error of t (and its derivative) is of second order
        share = _rest(frozen, power) / frozen
        size = SLACK * (1.0 + power) * frozen
        return _rates.discrete_rate(*_two_points(epsilon, share), order, _ERROR + 8.0 * size)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        """The dominating pair's, by quadrature; the convexity bound where it is not resolved."""
        epsilon = 1.0 * jnp.asarray(self.epsilon)
        loss = epsilon * (2.0 * jnp.asarray(_divergences._UNIT_NODES) - 1.0)
        log_q = jnp.asarray(_divergences._UNIT_LOG_WEIGHTS) - 0.5 * (loss + epsilon)
        log_q = log_q + jnp.log(epsilon) - special.log1mexp(-epsilon)
        size = SLACK * (1.0 + jnp.abs(s)) * epsilon
        error = jax.lax.stop_gradient(_ERROR + 8.0 * size)
        value = _rates.discrete_rate(_rates.log_mixture(loss, q), log_q, s, error)
        resolved = jnp.abs(s) * epsilon < _RESOLVED
        return least(value, resolved, _rates.convex_rate(s, self._rate(s), q))

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return -self.epsilon, self.epsilon

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        return False, False

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        top = 1.0 * jnp.asarray(self.epsilon)
        inside, below = epsilon < top, epsilon <= -top
        gap = epsilon - top - 2.0 * slack * (jnp.abs(epsilon) + top)
        gap = jnp.where(inside & ~below, jnp.minimum(gap, 0.0), -1.0)
        parts = 2.0 * special.log1mexp(0.5 * gap), special.log1mexp(-top)
        rounding = slack * jax.lax.stop_gradient(8.0 + 4.0 * jnp.abs(parts[0]) - 4.0 * parts[1])
        middle = jnp.where(inside, parts[0] - parts[1] + rounding, -jnp.inf)
        left = special.log1mexp(jnp.where(below, epsilon, -1.0)) * (1.0 - 4.0 * slack)
        return jnp.minimum(jnp.where(below, left, middle), 0.0)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        top = 1.0 * jnp.asarray(self.epsilon)
        a, b = (jnp.clip(end, -top, top) for end in (lo, hi))
        width = special.log1mexp(jnp.minimum(0.5 * (a - b), 0.0)) - special.log1mexp(-top)
        return width - 0.5 * (a + top), width + 0.5 * (b - top)

    def sample(self, key: jax.Array, value: Any) -> Any:
        """Stands for many mechanisms, none in particular."""
        raise TypeError("BoundedRange stands for many mechanisms: none of them to sample")


def _rest(epsilon: jax.Array, s: jax.Array) -> jax.Array:
    """epsilon - t in (0, epsilon/2] at the t of the largest moment of order s >= 1.

    That is log E((s - 1) epsilon) - log E(s epsilon), E(x) = (1 - e^-x)/x, relatively accurate:
    with logarithms of sinh(x/2)/(x/2) where x is small, without the quotients where it is large.
    """
    before, at = (s - 1.0) * epsilon, s * epsilon
    small, large = at < 30.0, before > 25.0
    held = jnp.where(small, at, 1.0), jnp.where(small, before, 1.0)
    near = 0.5 * epsilon - (_log_sinhc(held[0]) - _log_sinhc(held[1]))
    far = special.log1mexp(-jnp.where(large, before, 1.0)) - special.log1mexp(-at)
    far = far - special.log1p(-1.0 / jnp.where(large, s, 2.0))
    quotient = special.relative_expm1(-before) / special.relative_expm1(-at)
    return jnp.where(large, far, jnp.where(small, near, jnp.log(quotient)))


def _two_points(epsilon: jax.Array, share: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The losses t - epsilon and t, epsilon - t = share epsilon, and their log Q-probabilities."""
    rest = share * epsilon
    t = epsilon - rest
    both = jnp.stack([special.log1mexp(-t), special.log1mexp(-rest) - t])
    return jnp.stack([-rest, t]), both - special.log1mexp(-epsilon)


def _log_sinhc(y: jax.Array) -> jax.Array:
    """log(sinh(y/2)/(y/2)), y >= 0, to a roundoff of 1 + y."""
    small = y < 0.01
    z = jnp.where(small, 1.0, y)
    far = 0.5 * z + special.log1mexp(-z) - jnp.log(z)
    return jnp.where(small, y * y * (1.0 / 24.0 - y * y / 2880.0), far)
