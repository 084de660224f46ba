"""A Gaussian whose sum the records may move by several amounts, each with its probability."""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences
from jaxdp._mechanisms import _mixture_pair
from jaxdp._mechanisms._base import Base, Direction, add_noise, mechanism
from jaxdp._mechanisms._mixture_pair import Components

_SUM_TOLERANCE = 1e-5  # of weights, which may come as float32
_LEAST, _LARGEST = 1e-100, 1e100  # of a shift, in standard deviations


class RandomAmounts(Base):
    """Abstract: Gaussian noise on a value that is moved by random amounts."""

    sigma: Any

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        return False, False

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + N(0, sigma^2) for every entry of an array or PyTree, in its float dtype.

        Which records take part is up to the caller: the value is what was computed from them.
        """
        return add_noise(
            key, value, lambda *a: jnp.asarray(self.sigma, a[2]) * jax.random.normal(*a)
        )


class MixtureFamily(RandomAmounts):
    """Abstract: equivalent to distinguishing a mixture of N(m_k, 1), m_k >= 0, from N(0, 1)."""

    @abc.abstractmethod
    def _components(self) -> Components:
        """The mixture."""

    def _rate(self, s: jax.Array) -> jax.Array:
        return _mixture_pair.rate(s, self._components())

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _mixture_pair.rate(s, _mixture_pair.sampled(self._components(), q))

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return self._components().log_rest, jnp.asarray(jnp.inf)

    def _range_ulps(self) -> Any:
        c = self._components()
        size = jnp.where(c.log_rest > -jnp.inf, jnp.abs(c.log_rest), 1.0)
        return jax.lax.stop_gradient(4.0 + c.ulps / jnp.maximum(size, 1e-300))

    def _symmetric(self) -> bool:
        return False

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return _mixture_pair.log_hockey_stick(epsilon, direction, self._components(), slack)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _mixture_pair.log_masses(lo, hi, self._components())

    def _mass_error(self) -> jax.Array:
        return _mixture_pair.mass_error(self._components())


@mechanism
class GaussianMixture(MixtureFamily):
    r"""Adds N(0, sigma^2) to a value that the change of inputs moves by a random amount.

    .. math:: P = \sum_k w_k N(s_k, \sigma^2), \quad Q = N(0, \sigma^2), \quad s_k \ge 0

    The amount (how much of a user a batch holds, say) is s_k with probability w_k, and is not
    revealed. A vector moved by v_k with ||v_k|| <= s_k is dominated by this pair, in both
    directions and composed: by Kahane's inequality (1986) every E_Q f(sum_k w_k e^{Y_k - Var Y_k /
    2}), f convex, Y Gaussian, grows with each covariance of Y, here <v_j, v_k>/sigma^2 <= s_j
    s_k/sigma^2. (Choquette-Choo, Ganesh, Steinke & Thakurta 2023, section 4, by another way.) So it
    also grows with each s_k. Both directions are exact for one step; `neighbours` is
    "add-or-remove", what the amounts are usually from.

    Args:
      sigma: standard deviation of the noise, in the units of the value, > 0. Any shape.
      sensitivities: the s_k, shape (..., K), finite and >= 0, one at least > 0; those that are > 0
        from 1e-100 to 1e100 sigma.
      weights: the w_k, the same shape, in [0, 1], of sum 1 (they are normalised).

    Raises:
      ValueError: if a known parameter is outside its domain, the shapes differ, the weights do not
        sum to 1 within 1e-5, or no weight goes to a positive sensitivity.

    Example:
      >>> import jaxdp
      >>> user = jaxdp.GaussianMixture(1.0, [0.0, 1.0, 2.0], [0.81, 0.18, 0.01])
      >>> round(float(jaxdp.delta(user, 1.0)), 6)
      0.003826
    """

    sigma: ArrayLike
    sensitivities: ArrayLike
    weights: ArrayLike

    _relation: ClassVar = "add-or-remove"
    _domains: ClassVar = {
        "sigma": _checks.POSITIVE,
        "sensitivities": _checks.NON_NEGATIVE,
        "weights": _checks.PROBABILITY,
    }
    _core_ndims: ClassVar = {"sensitivities": 1, "weights": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes = np.shape(self.sensitivities), np.shape(self.weights)
        if min(map(len, shapes)) < 1 or shapes[0][-1] != shapes[1][-1] or not shapes[0][-1]:
            raise ValueError(
                "sensitivities and weights must be vectors of the same length, got shapes "
                f"{shapes[0]} and {shapes[1]}"
            )
        known = [_checks.concrete(n, getattr(self, n)) for n in ("sensitivities", "weights")]
        if known[1] is not None:
            total = np.sum(known[1].astype(np.float64), axis=-1)
            if np.any(np.abs(total - 1.0) > _SUM_TOLERANCE):
                got = _checks.shown(total.tolist())
                raise ValueError(f"weights must sum to 1 along the last axis, got sums {got}")
        if known[0] is None or known[1] is None:
            return
        some = (known[0] > 0.0) & (known[1] >= 2.0**-1022)
        if not np.all(np.any(some, axis=-1)):
            raise ValueError("sensitivities must be > 0 for one weight > 0 at least")
        sigma = _checks.concrete("sigma", self.sigma)
        if sigma is None:
            return
        with np.errstate(over="ignore", under="ignore"):
            shifts = known[0].astype(np.float64) / np.asarray(sigma, np.float64)[..., None]
        if np.any((known[0] > 0.0) & ~((shifts >= _LEAST) & (shifts <= _LARGEST))):
            raise ValueError(f"sensitivities must be 0, or from {_LEAST} to {_LARGEST} sigma")

    def _in_domain(self) -> jax.Array:
        weights, shifts = jnp.asarray(self.weights), self.sensitivities / self.sigma
        moves = (shifts > 0.0) & (weights > 0.0)
        inside = super()._in_domain() & jnp.any(moves)
        inside &= jnp.abs(jnp.sum(weights) - 1.0) <= _SUM_TOLERANCE
        return inside & jnp.all(~moves | ((shifts >= _LEAST) & (shifts <= _LARGEST)))

    def _components(self) -> Components:
        shifts = self.sensitivities / self.sigma
        moves = (shifts > 0.0) & (jnp.asarray(self.weights) > 0.0)
        weights = self.weights / jnp.sum(jnp.asarray(self.weights), axis=-1)
        log_rate = _divergences.log_positive(jnp.sum(jnp.where(moves, weights, 0.0)))
        log_rest = _divergences.log_positive(jnp.sum(jnp.where(moves, 0.0, weights)))
        log_weights = _divergences.log_positive(jnp.where(moves, weights, 0.0)) - log_rate
        shifts = jnp.where(moves, jnp.clip(shifts, _LEAST, _LARGEST), 1.0)
        return Components(log_rate, log_rest, log_weights, shifts, weights.size + 4.0)
