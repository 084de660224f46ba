"""Iterated Laplace noise: the law of the sum of all noises, and the split of the shift.

Example 2 and Theorem 2 of Balle, Barthe, Gaboardi & Geumlek 2019 (arXiv 1905.12264); the shift
reduction is Feldman, Mironov, Talwar & Thakurta 2018 (arXiv 1808.06651, Lemma 20).

**The sum is the worst case.** For values on the real line and independent symmetric log-concave
noises Z_j, the pair of any iteration X_j = psi_j(X_{j-1}) + Z_j from two values at distance Delta
is dominated by that of S + Delta and S, S = sum_j Z_j/(L_1 ... L_j). Write I_G = G' o G^{-1} for
the profile of a law G, and let a test phi: R -> [0, 1] satisfy |phi'| <= I_G(phi) (any test does,
for the point mass). Then

* with psi L-Lipschitz, |(phi o psi)'| <= L I_G(phi o psi), the profile of G scaled by 1/L;
* with Z of density k, T phi(u) = E phi(u + Z) satisfies |(T phi)'| <= I_{G*k}(T phi): choose c with
  T phi(u) = E G(u + Z - c). Where phi meets G(. - c) it rises no faster, so that their difference
  changes sign once, from + to -; -k'/k does not fall, hence E[(phi - G(. - c))(u + Z) (-k'/k)(Z)]
  <= 0, which is (T phi)' minus the derivative of G*k at the same level. (The mirror image
  bounds it from below.)

From the last step back to the first: the power of the test, as a function of the value, rises no
faster than the distribution function F of S, F^{-1}(power) by at most Delta. QED.

The exact law is that of a sum of Laplace variables of scales b_j = lambda_j/(L_1 ... L_j). Noise of
a larger scale is noise of a smaller one plus independent noise, hence more private: of the
m variables with b_j >= b each may be replaced by one of scale b, and the others left out
(an upper bound, exact where all scales agree), and all by ones of the largest scale (below).
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates, _x64
from jaxdp._mechanisms import Base, Direction, mechanism
from jaxdp._mechanisms._base import Masses
from jaxdp._noise import _variance_gamma as law
from jaxdp._noise._finite_pairs import first_largest
from jaxdp._noise._sums import QUADRATURE
from jaxdp._noise._variance_gamma_masses import masses_function
from jaxdp._rounding import product_up, quotient_up
from jaxdp._special import log1p

_BISECTIONS = 60
_LEAST = 1e-150


@mechanism
class LaplaceIteration(Base):
    r"""Lipschitz maps with Laplace noise, X_j = psi_j(X_{j-1}) + Lap(lambda_j), the last released.

    The worst maps are linear ones: the pair is that of a sum of Laplace variables of scales
    b_j = lambda_j/(L_1 ... L_j) with a shift of Delta, so that delta, epsilon and Rényi divergences
    are those of LaplaceSum where all b_j agree (the repeated noise addition P * ... * P), and else
    the best of several bounds: the sum of the m variables of the largest scales, taken for equal;
    the largest alone, Delta min_j L_1...L_j/lambda_j being the epsilon of pure DP (Lemma 3); and,
    for Rényi divergences, the split of the shift

    .. math:: R_\alpha \le \frac{1}{\alpha-1}
              \sum_j \log g_\alpha(w_j \Delta L_1 \cdots L_j/\lambda_j), \qquad \sum_j w_j = 1,

    with g_alpha the moment of one Laplace mechanism (Example 2 of Balle et al. 2019), at the best
    weights. In compositions the pair is that of the m variables of the largest scales, whose bounds
    below are not the mechanism's unless all b_j agree. For values on the real line.

    Args:
      scale: lambda_j > 0, shape (..., r), r small (a few hundred at most).
      lipschitz: L_j > 0, shape (..., r), or a scalar for all steps.
      sensitivity: distance Delta > 0 before step 1.
      weights: one more split to try, >= 0 with a positive sum, shape (..., r). See `optimised`.

    Raises:
      ValueError: for known values outside these domains or mismatched numbers of steps.

    Example:
      >>> import jaxdp
      >>> two = jaxdp.LaplaceIteration([1.0, 2.0])
      >>> round(float(jaxdp.epsilon(two, 0.0)), 5)
      0.5
      >>> bool(jaxdp.renyi(two, 4.0) <= two.best_renyi(4.0) < jaxdp.renyi(jaxdp.Laplace(2.0), 4.0))
      True
    """

    scale: ArrayLike
    lipschitz: ArrayLike = 1.0
    sensitivity: ArrayLike = 1.0
    weights: ArrayLike = 1.0

    _domains: ClassVar = {
        "scale": _checks.POSITIVE,
        "lipschitz": _checks.POSITIVE,
        "sensitivity": _checks.POSITIVE,
        "weights": _checks.NON_NEGATIVE,
    }
    _core_ndims: ClassVar = {"scale": 1, "lipschitz": 1, "weights": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.shape(self.scale) or np.shape(self.scale)[-1] == 0:
            raise ValueError("scale must have one entry per step along its last axis")
        count = np.shape(self.scale)[-1]
        for name in ("lipschitz", "weights"):
            value = getattr(self, name)
            if not np.shape(value):
                like = jnp if isinstance(value, jax.Array) else np
                object.__setattr__(self, name, like.broadcast_to(value, (count,)))
            elif np.shape(value)[-1] != count:
                raise ValueError(f"{name} must have {count} steps, got shape {np.shape(value)}")
        weights = _checks.concrete("weights", self.weights)
        if weights is not None and not np.all(np.sum(weights, axis=-1) > 0.0):
            raise ValueError(f"weights must have a positive sum, got {_checks.shown(weights)}")

    def _shifts(self) -> jax.Array:
        """Delta L_1 ... L_j/lambda_j: what step j would face alone, rounded up."""

        def grow(product, factor):
            product = product_up(product, factor)
            return product, product

        _, growth = jax.lax.scan(grow, 1.0 * jnp.asarray(self.sensitivity), self.lipschitz)
        return quotient_up(growth, jnp.asarray(self.scale))

    def _single(self) -> jax.Array:
        """Delta/b_j of the largest scale, rounded up."""
        return -first_largest(-self._shifts())

    def _several(self) -> tuple[jax.Array, jax.Array]:
        """How many variables are taken for equal, two or more if there are, and Delta/b.

        Those of the largest variance m b^2, which is what counts if they are many.
        """
        shifts = self._shifts()
        frozen = jax.lax.stop_gradient(shifts)
        counts = jnp.sum(frozen[None] <= frozen[:, None], axis=1).astype(jnp.float64)
        strength = jnp.where(counts > 1.0, jnp.log(counts) - 2.0 * jnp.log(frozen), -jnp.inf)
        index = jnp.arange(shifts.shape[0])
        best = jnp.min(jnp.where(strength >= jnp.max(strength), index, shifts.shape[0] - 1))
        return counts[best], shifts[best]

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return -self._single(), self._single()

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        count = self._shifts().shape[0]
        x = self._single()
        if slack < 0.0:
            x = x * (1.0 - 2.0 * (count + 1.0) * _divergences.SLACK)
        one = _divergences.laplace_log_hockey_stick(epsilon, x, slack)
        if count == 1:
            return one
        if slack < 0.0:  # as much noise as this at the most
            return law.log_hockey_stick(epsilon, jnp.asarray(1.0 * count), x, slack)
        return _smaller(one, law.log_hockey_stick(epsilon, *self._several(), slack))

    def _rate(self, s: jax.Array) -> jax.Array:
        order = jnp.where(s >= 0.5, s, 1.0 - s)
        shifts, own = jnp.maximum(self._shifts(), _LEAST), self.weights / jnp.sum(self.weights)
        best = _splits(jax.lax.stop_gradient(shifts), jax.lax.stop_gradient(order))
        rate = _smaller(_total_rate(shifts, own, order), _total_rate(shifts, best, order))
        rate = _smaller(rate, _divergences.laplace_rate(order, self._single()))
        if shifts.shape[0] == 1:
            return rate
        several = _rates.discrete_rate(*law.nodes(*self._several()), order)
        return _smaller(rate, several * (1.0 + QUADRATURE))

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        def rate(nodes):
            loss, log_weights = nodes
            return _rates.discrete_rate(_divergences.sampled_loss(loss, q), log_weights, s)

        one = rate(_divergences.laplace_nodes(self._single()))
        if self._shifts().shape[0] == 1:
            return one
        return _smaller(one, rate(law.nodes(*self._several())) * (1.0 + QUADRATURE))

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._masses_function()(lo, hi)

    def _masses_function(self) -> Masses:
        if self._shifts().shape[0] == 1:
            x = self._single()
            return lambda lo, hi: _divergences.laplace_log_masses(lo, hi, x)
        return masses_function(*self._several())

    def _mass_error(self) -> float:
        return QUADRATURE

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        """Of one step alone; the pair of several has more losses than the range of the truth."""
        one = np.shape(self.scale)[-1] == 1
        return one, one

    def optimised(self, alpha: ArrayLike) -> "LaplaceIteration":
        """The same iteration with the weights that minimise its Rényi divergence of one order.

        By its multiplier: the moment is convex in each part, with a derivative that is inverted
        in closed form. For several orders at once the weights get their shape in front.

        Args:
          alpha: order > 1, finite.

        Raises:
          ValueError: for a known alpha <= 1.
        """
        _checks.check("alpha", alpha, _checks.FINITE_ORDER)
        weights = _x64.evaluate(_best_weights, self, alpha, differentiable=False)
        return LaplaceIteration(self.scale, self.lipschitz, self.sensitivity, weights)

    def best_renyi(self, alpha: ArrayLike) -> jax.Array:
        """Rényi divergence of order alpha with the weights optimised for that order.

        An upper bound like `jaxdp.renyi` of the iteration, never above it nor above the best
        single step. Differentiable: at the optimum the weights' own derivatives vanish.

        Args:
          alpha: order > 1, finite. Any shape.

        Raises:
          ValueError: for a known alpha <= 1.

        Example:
          >>> import jaxdp
          >>> round(float(jaxdp.LaplaceIteration([1.0, 2.0]).best_renyi(4.0)), 5)
          0.29155
        """
        _checks.check("alpha", alpha, _checks.FINITE_ORDER)
        return _x64.evaluate(_best_renyi, self, alpha, rounding="up")

    def pure_epsilon(self) -> jax.Array:
        """The epsilon of pure DP by the best single step, exact for two steps at L = 1 (Lemma 3).

        Example:
          >>> import jaxdp
          >>> round(float(jaxdp.LaplaceIteration([1.0, 2.0]).pure_epsilon()), 6)
          0.5
        """
        return _x64.evaluate(_pure_epsilon, self, rounding="up")

    def sample(self, key: jax.Array, value: ArrayLike) -> jax.Array:
        """The linear iteration X_j = L_j X_{j-1} + Lap(lambda_j) from an array."""
        value = jnp.asarray(value, jnp.result_type(value, float))
        for j, step_key in enumerate(jax.random.split(key, np.shape(self.scale)[-1])):
            noise = jax.random.laplace(step_key, value.shape, value.dtype)
            value = jnp.asarray(self.lipschitz[j] * value + self.scale[j] * noise, value.dtype)
        return value


def _smaller(a: jax.Array, b: jax.Array) -> jax.Array:
    """The minimum, with the derivative of one of both where they agree."""
    return jnp.where(b < a, b, a)


def _total_rate(shifts, weights, order):
    return jnp.sum(jax.vmap(lambda x: _divergences.laplace_rate(order, x))(weights * shifts))


def _splits(shifts, alpha):
    """The weights of the least Rényi divergence of order alpha, by bisection of one part.

    c(x) = R_alpha of one Laplace mechanism is a log-sum-exp, convex in x, with E = e^{-(2a-1)x},

        c'(x) = (1 - E)/(1 + (a-1) E/a),    (2a-1) x = log(1 + (a-1) y/a) - log(1 - y) at c'(x) = y.

    At the optimum c'(x_j)/b_j is the same for all j, and sum_j b_j x_j = Delta. The part of
    the largest scale is between 1/r of Delta and all of it.
    """
    spread = 2.0 * alpha - 1.0
    least = jnp.min(shifts)
    ratio = least / shifts  # b_j over the largest one
    log_rest = jnp.log(jnp.where(ratio < 1.0, 1.0 - ratio, 1.0))
    log_rest = jnp.where(ratio < 1.0, log_rest, -jnp.inf)

    def parts(share):
        x = share * least
        decay = jnp.exp(-spread * x)
        below = log1p((alpha - 1.0) / alpha * decay)
        y = ratio * -jnp.expm1(-spread * x) * jnp.exp(-below)
        log_missing = jnp.log(spread / alpha) - spread * x - below  # log(1 - y) of the largest
        far = _divergences.log_add(log_rest, jnp.log(ratio) + log_missing)
        log_left = jnp.where(y < 0.5, log1p(-jnp.minimum(y, 0.5)), far)
        found = (log1p((alpha - 1.0) / alpha * y) - log_left) / spread
        return found / shifts  # the weights, of sum 1 where the multiplier is right

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        short = jnp.sum(parts(middle)) < 1.0
        return jnp.where(short, middle, low), jnp.where(short, high, middle)

    ends = jnp.asarray(1.0 / shifts.shape[0]), jnp.asarray(1.0)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, ends)
    weights = parts(0.5 * (low + high))
    total = jnp.sum(weights)
    good = jnp.isfinite(total) & (total > 0.0)
    single = jnp.where(shifts == least, 1.0, 0.0)
    return jnp.where(good, weights / jnp.where(good, total, 1.0), single / jnp.sum(single))


def _best_weights(m, alpha):
    shifts = jax.lax.stop_gradient(jnp.maximum(m._shifts(), _LEAST))
    weights = _splits(shifts, jax.lax.stop_gradient(alpha))
    own = jax.lax.stop_gradient(m.weights / jnp.sum(m.weights))
    better = _total_rate(shifts, own, alpha) < _total_rate(shifts, weights, alpha)
    weights = jnp.where(better, own, weights)
    return jnp.where(m._in_domain() & (alpha > 1.0), jax.lax.stop_gradient(weights), jnp.nan)


def _best_renyi(m, alpha):
    weights = _best_weights(m, alpha)
    value = alpha * _total_rate(jnp.maximum(m._shifts(), _LEAST), weights, alpha)
    value = _smaller(value, alpha * _divergences.laplace_rate(alpha, m._single()))
    return value * (1.0 + 64.0 * _divergences.SLACK)


def _pure_epsilon(m):
    return jnp.where(m._in_domain(), m._single(), jnp.nan)
