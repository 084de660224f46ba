"""Iterated Laplace noise: shift reduction with the split of the shift optimised numerically.

Example 2 and Theorem 2 of Balle, Barthe, Gaboardi & Geumlek 2019 (arXiv 1905.12264); the shift
reduction is Feldman, Mironov, Talwar & Thakurta 2018 (arXiv 1808.06651, Lemma 20). Every split of
the shift gives a valid guarantee, so how well the optimiser did affects tightness only.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _x64
from jaxdp._mechanisms import Laplace, mechanism
from jaxdp._mechanisms._base import Term
from jaxdp._mechanisms._combinators import Composition

_STEPS = 400
_LEARNING_RATE = 0.1
_LEAST = 1e-150


@mechanism
class LaplaceIteration(Composition):
    r"""Lipschitz maps with Laplace noise, X_j = psi_j(X_{j-1}) + Lap(lambda_j), the last released.

    For weights w_j >= 0 that sum to 1, step j absorbs the part w_j Delta of the shift, and

    .. math:: R_\alpha \le \frac{1}{\alpha-1}
              \sum_j \log g_\alpha(w_j \Delta L_1 \cdots L_j/\lambda_j)

    with g_alpha the moment of one Laplace mechanism (Example 2 of Balle et al. 2019; with L = 1 the
    repeated noise addition P * ... * P). The pair is a post-processing of the adaptive composition
    of these Laplace mechanisms, so every query (delta, epsilon) is certified at any weights. No
    amplification of pure DP beyond the best single step: Delta min_j L_1...L_j/lambda_j, which is
    Delta/max(lambda_j) at L = 1 (Lemma 3). For values on the real line.

    Args:
      scale: lambda_j > 0, shape (..., r), r small (a few hundred at most).
      lipschitz: L_j > 0, shape (..., r), or a scalar for all steps.
      sensitivity: distance Delta > 0 before step 1.
      weights: >= 0 with a positive sum, shape (..., r); equal by default. See `optimised`.

    Raises:
      ValueError: for known values outside these domains or mismatched numbers of steps.

    Example:
      >>> import jaxdp
      >>> two = jaxdp.LaplaceIteration([1.0, 2.0])
      >>> single, equal, best = (
      ...     float(jaxdp.renyi(m, 4.0)) for m in (jaxdp.Laplace(2.0), two, two.optimised(4.0))
      ... )
      >>> round(single, 5), round(equal, 5), round(best, 5)
      (0.32093, 0.42522, 0.29155)
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
            raise ValueError(f"weights must have a positive sum, got {weights}")

    def _shifts(self) -> jax.Array:
        """Delta L_1 ... L_j/lambda_j: what step j would face alone."""
        growth = jnp.cumprod(jnp.asarray(self.lipschitz), axis=-1)
        return jnp.asarray(self.sensitivity)[..., None] * growth / jnp.asarray(self.scale)

    def _terms(self) -> list[Term]:
        weights = jnp.asarray(self.weights)
        weights = weights / jnp.sum(weights, axis=-1, keepdims=True)
        shifts = jnp.maximum(weights * self._shifts(), _LEAST)
        one = jnp.ones((), shifts.dtype)
        count = shifts.shape[-1]
        return [Term(_unchecked_laplace(one, shifts[..., j]), None) for j in range(count)]

    def optimised(self, alpha: ArrayLike) -> "LaplaceIteration":
        """The same iteration with the weights that minimise its Rényi divergence of one order.

        Found by optax (Adam on the logits, in float64, from the small-shift optimum and from the
        best single step); for several orders at once the weights get their shape in front.

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


def _unchecked_laplace(scale, sensitivity):
    """A Laplace factor; its parameters were checked as the iteration's."""
    return jax.tree.unflatten(jax.tree.structure(Laplace(1.0)), (scale, sensitivity))


def _total(shifts, weights, alpha):
    return alpha * jnp.sum(
        jax.vmap(lambda x: _divergences.laplace_rate(alpha, x))(weights * shifts)
    )


def _best_weights(m, alpha):
    shifts = jax.lax.stop_gradient(jnp.maximum(m._shifts(), _LEAST))
    order = jax.lax.stop_gradient(alpha)
    value_and_grad = jax.value_and_grad(lambda z: _total(shifts, jax.nn.softmax(z), order))
    import optax  # here: the rest of jaxdp is imported a tenth of a second sooner without

    optimiser = optax.adam(optax.cosine_decay_schedule(_LEARNING_RATE, _STEPS))

    def descend(start):
        def step(_, state):
            logits, memory, best, best_logits = state
            value, gradient = value_and_grad(logits)
            better = value < best
            best, best_logits = (
                jnp.where(better, value, best),
                jnp.where(better, logits, best_logits),
            )
            # a scale-free gradient: the objective may be 1e-100 or 1e100
            update, memory = optimiser.update(gradient / jnp.maximum(value, _LEAST), memory)
            return optax.apply_updates(logits, update), memory, best, best_logits

        state = start, optimiser.init(start), jnp.asarray(jnp.inf), start
        return jax.lax.fori_loop(0, _STEPS, step, state)[2:]

    small_shift = -2.0 * jnp.log(shifts)
    starts = jnp.stack([small_shift - jnp.max(small_shift), jnp.zeros_like(shifts)])
    values, logits = jax.vmap(descend)(starts)
    own = m.weights / jnp.sum(m.weights)
    single = jnp.where(shifts == jnp.min(shifts), 1.0, 0.0)
    single = single / jnp.sum(single)
    weights = jnp.where(
        values[0] <= values[1], jax.nn.softmax(logits[0]), jax.nn.softmax(logits[1])
    )
    for other in (single, own):
        better = _total(shifts, other, order) < _total(shifts, weights, order)
        weights = jnp.where(better, other, weights)
    return jnp.where(m._in_domain() & (alpha > 1.0), jax.lax.stop_gradient(weights), jnp.nan)


def _best_renyi(m, alpha):
    weights = _best_weights(m, alpha)
    value = _total(jnp.maximum(m._shifts(), _LEAST), weights, alpha)
    return value * (1.0 + 64.0 * _divergences.SLACK)


def _pure_epsilon(m):
    value = jnp.min(m._shifts()) * (1.0 + 2.0 * m.scale.shape[-1] * _divergences.SLACK)
    return jnp.where(m._in_domain(), value, jnp.nan)
