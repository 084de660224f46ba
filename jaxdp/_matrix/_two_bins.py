r"""Two bins that overlap: the step of which a random allocation takes one.

P = (N(m_1, I) + N(m_2, I))/2 against Q = N(0, I), |m_i|^2 = c + w and <m_1, m_2> = c, has the ratio

    X = e^{U - v/2} A,   A = cosh(sqrt(m) D) e^{-m/2},   v = c + w/2, m = w/2,

U ~ N(0, v) and D ~ N(0, 1) independent under Q: half the sum and half the difference of the two
exponents. A is replaced by a larger law in convex order, so that the pair here dominates:

* on a cell d_k <= |D| <= d_{k+1} by the two-point law on the ends of A with the same mass and mean;
* beyond the last d, where A given D is a function of a normal variable with a logarithmic slope of
  at most sqrt(m) (D given D > d is a contraction of a normal variable, Caffarelli 2000), by the
  lognormal of variance m and the same mean: the quotient of two such increasing functions is
  monotone, they cross once, and their means agree, which is convex order.

So X is a finite mixture of lognormals with positive weights. w = 0 is one Gaussian, exactly.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _divergences, _rates
from jaxdp import _special as special
from jaxdp._matrix import _lattice
from jaxdp._mechanisms._base import Base, Direction, mechanism
from jaxdp._special import log1p

# ends of the cells of |D|: fine to some 3, then by ever longer ones to 53
_ENDS = 1.25 * np.sinh(0.04 * np.arange(112))
_BEYOND = 39.0  # deviations, that the ends reach
_LEAST = 1e-60  # of w, for its root
_UNIT = 2.0**-52


def _log_cosh(y: jax.Array) -> jax.Array:
    """Of y >= 0, relatively accurate."""
    near = y < 1.0
    small = jnp.where(near, y, 0.0)
    far = jnp.where(near, 1.0, y)
    return jnp.where(
        near,
        log1p(2.0 * jnp.sinh(0.5 * small) ** 2),
        far + log1p(jnp.exp(-2.0 * far)) - special.LOG_2,
    )


def two_points(
    log_mass: jax.Array, mean: jax.Array, low: jax.Array, high: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Logs of the masses at two points with that mass and mean: what is above all in between.

    Points and means are given by their logarithms.
    """
    step = high - low
    some = step > 0.0
    inner = jnp.clip(mean - low, 0.0, step)  # of the mean, from the left end
    whole = -jnp.expm1(-jnp.where(some, step, 1.0))
    left, right = (
        jnp.where(some, -jnp.expm1(-jnp.where(some, x, 0.5)) / whole, other)
        for x, other in ((step - inner, 1.0), (inner, 0.0))
    )
    return (
        log_mass + _divergences.log_positive(left),
        log_mass + _divergences.log_positive(right) + (inner - step),
    )


def two_bins(common: ArrayLike, own: ArrayLike) -> "LognormalMixture":
    """The pair above, for c > 0 of both bins and w >= 0 of each."""
    half = 0.5 * jnp.maximum(jnp.asarray(own), _LEAST)
    root = jnp.sqrt(half)
    wider = jnp.maximum(1.0, (root + _BEYOND) / _ENDS[-1])  # D is about root under P
    ends = jnp.asarray(_ENDS) * jax.lax.stop_gradient(wider)
    scales = _log_cosh(root * ends) - 0.5 * half
    last = jnp.append(ends[1:], jnp.inf)
    log_q, log_p, log_n = special.log_ndtr_interval(  # in one go, for one program
        jnp.stack([ends, ends - root, ends + root]), jnp.stack([last, last - root, last + root])
    )
    log_q = log_q + special.LOG_2
    means = jnp.logaddexp(log_p, log_n) - log_q  # log of the mean of A in every cell
    lower, upper = two_points(log_q[:-1], means[:-1], scales[:-1], scales[1:])
    edge = jnp.full(1, -jnp.inf)
    weights = _divergences.log_add(jnp.concatenate([lower, edge]), jnp.concatenate([edge, upper]))
    v = jnp.asarray(common) + 0.5 * jnp.asarray(own)
    return LognormalMixture(
        jnp.append(weights, log_q[-1]),
        jnp.append(scales, jnp.maximum(means[-1], scales[-1])),
        v + jnp.append(jnp.zeros_like(scales), half),
    )


@mechanism
class LognormalMixture(Base):
    """X = sum of e^{log_scale + N(-variance/2, variance)}, with probabilities under Q.

    Attributes:
      log_weights: of the probabilities, (K,).
      log_scales: (K,).
      variances: > 0, (K,).
    """

    log_weights: ArrayLike
    log_scales: ArrayLike
    variances: ArrayLike

    _core_ndims: ClassVar = {"log_weights": 1, "log_scales": 1, "variances": 1}

    def _parts(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        weights, scales, variances = map(
            jnp.asarray, (self.log_weights, self.log_scales, self.variances)
        )
        return weights, scales, variances

    def _rate(self, s: jax.Array) -> jax.Array:
        """E X^s = e^{s (s - 1) v/2} sum_k q_k a_k^s, the wider lognormal as an a_k that grows."""
        weights, scales, variances = self._parts()
        v = variances[0]
        scales = scales + 0.5 * (s - 1.0) * (variances - v)
        return 0.5 * v + _rates.discrete_rate(scales, weights, s)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.convex_rate(s, self._rate(s), q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(-jnp.inf), jnp.asarray(jnp.inf)

    def _symmetric(self) -> bool:
        return False

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        weights, scales, variances = self._parts()
        remove = direction == "remove"
        inner = epsilon - scales if remove else epsilon + scales
        curve = _divergences.gaussian_log_hockey_stick(inner, jnp.sqrt(variances), slack)
        weights = weights + (scales if remove else 0.0)
        value = special.logsumexp(weights + curve)
        return value + slack * (64.0 + jnp.abs(value)) + jnp.sign(slack) * self._mass_error()

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        weights, scales, variances = self._parts()

        def inner(x: jax.Array) -> jax.Array:
            return jnp.where(jnp.isinf(x)[..., None], x[..., None], x[..., None] - scales)

        lo, hi = jnp.broadcast_arrays(lo, hi)
        q, p = _divergences.gaussian_log_masses(inner(lo), inner(hi), jnp.sqrt(variances))
        return (
            special.logsumexp(q + weights, axis=-1),
            special.logsumexp(p + weights + scales, axis=-1),
        )

    def _masses_function(self):
        """Of a law above on a lattice: at every threshold the masses are there already."""
        weights, scales, variances = self._parts()
        v = variances[0]
        return _lattice.masses(weights[:-1], scales[:-1], v, variances[-1] - v)

    def _log_failure(self, direction: Direction) -> jax.Array:
        """What that law leaves out."""
        weights, scales, _ = self._parts()
        last = weights[-1] + (scales[-1] if direction == "remove" else 0.0)
        return jnp.logaddexp(_lattice.LOG_BEYOND, jax.lax.stop_gradient(last))

    def _mass_error(self) -> jax.Array:
        """Scales and means of cells err by less than 2^6 roundoffs.

        Each moves a mass by z/sqrt(v) of its own size, z < 60 deviations from the middle. On the
        lattice, exponents up to 745 and sums of some 2^7 terms, or exponents up to a few v.
        """
        v = jnp.asarray(self.variances)[0]
        return jax.lax.stop_gradient(_UNIT * (2.0**13 + 2.0**12 / jnp.sqrt(v) + 16.0 * v))

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        return False, False

    def sample(self, key: jax.Array, value: Any) -> Any:
        raise NotImplementedError("a pair for bounds only")
