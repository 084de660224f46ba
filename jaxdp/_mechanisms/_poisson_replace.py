"""Poisson batches of a Gaussian when one record is exchanged for another."""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates, _rates_line
from jaxdp import _special as special
from jaxdp._divergences import SLACK
from jaxdp._mechanisms._base import Direction, Mechanism, OnBatch, mechanism, require_mechanism
from jaxdp._mechanisms._curve import canonical_terms, single
from jaxdp._mechanisms._gaussian import GaussianFamily
from jaxdp._special import log1p

_LEAST, _LARGEST = 1e-100, 1e100  # of a shift, in standard deviations
_FARTHEST = 1e100  # epsilon


@mechanism
class PoissonSampledReplaceOne(OnBatch):
    r"""A Gaussian on a Poisson sample, of which one record is exchanged for another.

    .. math:: P = (1-q) N(0, \sigma^2) + q N(\Delta, \sigma^2), \quad
              Q = (1-q) N(0, \sigma^2) + q N(-\Delta, \sigma^2)

    The worst pair of the Poisson-subsampled Gaussian under replace-one adjacency (Lebeda, Regehr,
    Kamath & Steinke 2024, arXiv 2405.20769, Proposition 13): the records push in opposite
    directions. It is symmetric, and not the Poisson-sampled pair of twice the sensitivity. The loss
    at an outcome z (in standard deviations, m = Delta/sigma) increases and has a closed-form
    inverse,

    .. math:: m z = \ell/2 + \operatorname{asinh}(\alpha \sinh(\ell/2)), \quad
              \alpha = \tfrac{1-q}{q} e^{m^2/2},

    and with G_m the curve of one Gaussian, the curve at epsilon is the sum of positive terms
    q G_m(m z - m^2/2) + q e^{epsilon - m z - m^2/2} G_m(m z + m^2/2). `replace_one` of a
    `PoissonSampled` makes it.

    Args:
      mechanism: what runs on the sample: a Gaussian, Brownian or OrnsteinUhlenbeck release, or a
        composition of these, of the sensitivity to one record added or removed.
      sampling_probability: q in (0, 1].

    Raises:
      ValueError: if a known q is outside (0, 1], or the mechanism is not one Gaussian.
      TypeError: if it is no mechanism.

    Example:
      >>> import jaxdp
      >>> step = jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(1.0), 1.0)
      >>> round(float(jaxdp.epsilon(step, 1e-5)), 4)  # all records: twice the sensitivity
      9.9973
      >>> jaxdp.Repeated(step, 1000).neighbours
      'replace-one'
    """

    mechanism: Mechanism
    sampling_probability: ArrayLike

    _relation: ClassVar = "replace-one"
    _domains: ClassVar = {"sampling_probability": _checks.RATE}

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        super().__post_init__()
        if not is_gaussian(self.mechanism):
            raise ValueError(
                "mechanism must be one Gaussian (compositions of Gaussians are): no worst pair is "
                "proven for other Poisson samples under replace-one adjacency; FixedSizeSampled at "
                "the same rate is an upper bound"
            )

    def _parameters(self, slack: float = 0.0) -> tuple[jax.Array, jax.Array]:
        """m and q, m moved by its rounding: the curve grows with it."""
        gaussian = single(canonical_terms(self.mechanism))
        assert isinstance(gaussian, GaussianFamily)  # what __post_init__ made sure of
        m = gaussian._mu() * (1.0 + slack * (1.0 + gaussian._mu_ulps()))
        return jnp.clip(m, _LEAST, _LARGEST), 1.0 * jnp.asarray(self.sampling_probability)

    def _beyond(self) -> tuple[jax.Array, jax.Array]:
        """Whether the shift itself is below, or above, what it is held to."""
        gaussian = single(canonical_terms(self.mechanism))
        assert isinstance(gaussian, GaussianFamily)
        return gaussian._mu() < _LEAST, gaussian._mu() > _LARGEST

    def _rate(self, s: jax.Array) -> jax.Array:
        return jnp.where(self._beyond()[1], jnp.inf, _rate(s, *self._parameters()))

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.convex_rate(s, self._rate(s), q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(-jnp.inf), jnp.asarray(jnp.inf)

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        return False, False

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return _divergences._reflect(
            epsilon, self._log_curve(_divergences.magnitude(epsilon), slack), slack
        )

    def _log_curve(self, epsilon: jax.Array, slack: float) -> jax.Array:
        """At epsilon >= 0. It is at most q: that is how much of P and Q differs."""
        m, q = self._parameters(slack)
        near = epsilon <= _FARTHEST  # beyond, the curve is lower still
        epsilon = jnp.where(near, epsilon, _FARTHEST)
        z, error = _position(epsilon, m, q)
        z = z - slack / SLACK * error
        half = 0.5 * m * m
        off = slack * jax.lax.stop_gradient(4.0 * jnp.abs(m * z) + 4.0 * half)
        ends = jnp.stack([m * z - half, m * z + half])
        both = _divergences.gaussian_log_hockey_stick(ends - off, m, slack)
        weight = epsilon - ends[1] + 2.0 * off
        rounding = 16.0 + jax.lax.stop_gradient(jnp.abs(epsilon) - 2.0 * jnp.log(q))
        value = jnp.log(q) + _divergences.log_add(both[0], both[1] + weight)
        value = value + slack * rounding
        small, large = self._beyond()
        if slack < 0.0:  # what is held to a larger shift knows nothing
            value = jnp.where(small | ~near, -jnp.inf, value)
        if slack > 0.0:
            value = jnp.where(large | (value > jnp.log(q)), jnp.log(q) * (1.0 - slack), value)
        return jnp.minimum(value, 0.0)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        m, q = self._parameters()
        loss = jnp.stack(jnp.broadcast_arrays(lo, hi))
        finite = jnp.isfinite(loss)
        z, _ = _position(jnp.where(finite, loss, 0.0), m, q)
        z = jnp.where(finite, z, loss)
        shifts = jnp.stack([-m, 0.0 * m, m]).reshape((3,) + (1,) * (z.ndim - 1))
        left, middle, right = special.log_ndtr_interval(z[0] - shifts, z[1] - shifts)
        rest = _divergences.log_positive(1.0 - q) + middle
        log_q, log_p = (_divergences.log_add(rest, jnp.log(q) + side) for side in (left, right))
        return log_q, log_p

    def _mass_error(self) -> jax.Array:
        m, _ = self._parameters()
        return jax.lax.stop_gradient(SLACK * (8.0 + 8.0 * m * m))


def is_gaussian(m: Mechanism) -> bool:
    """Whether m is one Gaussian, or a composition that is."""
    return isinstance(single(canonical_terms(m)), GaussianFamily)


def _position(loss: jax.Array, m: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The outcome z at a loss, and a bound on its rounding error; odd in the loss.

    asinh(e^t) = t + log(1 + sqrt(1 + e^{-2t})) where e^t is large, log1p of it and less where not.
    (At loss 0 the derivative, alpha/2 of it, is kept.)
    """
    half = 0.5 * _divergences.magnitude(loss)
    log_ratio = _divergences.log_positive(1.0 - q) - jnp.log(q) + 0.5 * m * m
    some = (half > 0.0) & (log_ratio > -jnp.inf)
    h = jnp.where(some, half, 1.0)
    log_sinh = h + special.log1mexp(-2.0 * h) - special.LOG_2
    log_alpha = jnp.where(some, log_ratio, 0.0)
    t = log_alpha + jnp.where(some, log_sinh, 0.0)
    large = t > 0.0
    far = jnp.where(large, t, 1.0)
    far = far + jnp.log(1.0 + jnp.sqrt(1.0 + jnp.exp(-2.0 * far)))
    x = jnp.exp(jnp.where(large, -1.0, t))
    near = log1p(x + x * x / (1.0 + jnp.sqrt(1.0 + x * x)))
    at_zero = _divergences.exp_log(jnp.minimum(log_ratio, 700.0)) * half
    tail = jnp.where(some, jnp.where(large, far, near), jnp.where(half > 0.0, 0.0, at_zero))
    z = (half + tail) / m
    parts = jnp.abs(t) + jnp.abs(log_alpha) + jnp.abs(log_sinh) + 0.5 * m * m
    size = jnp.where(some & large, 4.0 + 2.0 * parts, 0.0)
    relative = 8.0 + jnp.where(some & ~large, 2.0 * parts, 0.0)
    error = SLACK * (size / m + relative * z)
    return jnp.where(loss < 0.0, -z, z), jax.lax.stop_gradient(error)


def _rate(s: jax.Array, m: jax.Array, q: jax.Array) -> jax.Array:
    """k(s) by quadrature over z, or convexity in the pair where it is not resolved.

    Numerator and denominator of X have zeros at distance pi/m from the real line; a power of one of
    them is negative and grows off the line (see `_mixture_pair.rate`).
    """
    order, frozen_m, frozen_q = jax.lax.stop_gradient((s, m, q))

    def laws(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        up, down = (_rates.log_mixture(sign * m * z - 0.5 * m * m, q) for sign in (1.0, -1.0))
        return up - down, special.log_normal_density(z) + down

    reach = (jnp.abs(order) + 1.0) * frozen_m + 14.0
    scale = frozen_q * jnp.minimum(frozen_m, 1.0)
    squared = frozen_m * frozen_m
    density = _rates_line.pace(jnp.pi / frozen_m, 0.5 * (jnp.abs(order) + 1.0) * squared)
    value, resolved = _rates_line.rate(s, laws, (-reach, reach), scale, density, 4.0 * squared)
    bound = _rates.convex_rate(s, 2.0 * m * m + 0.0 * s, q)
    return _rates_line.least(value, resolved, bound)
