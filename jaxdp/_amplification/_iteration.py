"""Amplification by iteration: contractive noisy maps after the differing step.

Theorem 4 of Balle, Barthe, Gaboardi & Geumlek 2019 (arXiv 1905.12264) and the contractive noisy
iteration of Feldman, Mironov, Talwar & Thakurta 2018 (arXiv 1808.06651), with the split of the
shift optimised in closed form. The split 1/mu^2 = sum_j sigma_j^2 (L_1 ... L_j)^{-2} / Delta^2
is attained by x -> L_j x + noise, and the shifted process proves the same mu for the whole
trade-off curve (Bok, Su & Altschuler 2024, arXiv 2403.00278): the result is mu-GDP, not only a
Rényi bound. What must never change: everything stays in log space until mu, which is rounded up.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _special, _x64
from jaxdp._amplification._arrays import Vector
from jaxdp._amplification._shift import (
    LOG_LEAST_MU,
    SLACK,
    IterationFamily,
    log_add,
    log_strengths,
    rounding_of_log,
)
from jaxdp._mechanisms import mechanism
from jaxdp._mechanisms._gaussian import GaussianDP


@mechanism
class NoisyIteration(IterationFamily):
    r"""Noisy Lipschitz maps X_j = Pi(psi_j(X_{j-1}) + N(0, sigma_j^2 I)), only the last released.

    .. math:: \mu^2 = \Delta^2 / \sum_{j=1}^r \sigma_j^2 (L_1 \cdots L_j)^{-2}

    and :math:`R_\alpha = \alpha\mu^2/2`. Delta is the W_infinity distance of the two laws before
    step 1 (Theorem 4 of Balle et al. 2019, any L_j >= 0, per-step sigma_j; the optimal split of
    its equation (2) in closed form, where equation (3) is exponentially loose). Tight: attained
    by X_j = L_j X_{j-1} + noise. Pi is any projection on a convex set, psi_j any L_j-Lipschitz
    map on it; projections and maps must not depend on the data. With `position` = i >= 1 the two
    inputs agree before step i and their maps psi_i differ by at most Delta everywhere, the others
    not at all (replacement of the record used at step i); its noise then counts in full.

    Args:
      lipschitz: L_j >= 0, shape (..., r), or a scalar for all steps.
      sigma: sigma_j >= 0, shape (..., r), or a scalar. Steps without noise are allowed, not all.
      sensitivity: Delta > 0.
      position: 0 for a distance before the first step, or the differing step i in 1..r. Any
        shape: a vector gives the guarantees of all records.

    Raises:
      ValueError: for known values outside these domains or mismatched numbers of steps.

    Example:
      >>> import jaxdp
      >>> steps = jaxdp.NoisyIteration([0.9, 1.2, 0.8], [1.0, 0.5, 2.0])
      >>> round(float(jaxdp.renyi(steps, 3.0)), 6)
      0.220353
    """

    lipschitz: ArrayLike
    sigma: ArrayLike
    sensitivity: ArrayLike = 1.0
    position: ArrayLike = 0

    _domains: ClassVar = {
        "lipschitz": _checks.NON_NEGATIVE,
        "sigma": _checks.NON_NEGATIVE,
        "sensitivity": _checks.POSITIVE,
        "position": _checks.NON_NEGATIVE,
    }
    _core_ndims: ClassVar = {"lipschitz": 1, "sigma": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        shapes = np.shape(self.lipschitz), np.shape(self.sigma)
        steps = {count for shape in shapes for count in shape[-1:]}
        if len(steps) > 1 or steps == {0}:
            raise ValueError(
                f"lipschitz and sigma must have the same number of steps, got {shapes}"
            )
        count = steps.pop() if steps else 1
        for name, shape in zip(("lipschitz", "sigma"), shapes, strict=True):
            if not shape:
                value = getattr(self, name)
                like = jnp if isinstance(value, jax.Array) else np
                object.__setattr__(self, name, like.broadcast_to(value, (count,)))
        noise = _checks.concrete("sigma", self.sigma)
        if noise is not None and not np.all(np.any(noise > 0.0, axis=-1)):
            raise ValueError(f"sigma must be > 0 at one step or more, got {_checks.shown(noise)}")
        _checks.check("position", self.position, self._positions())

    def _positions(self) -> _checks.Domain:
        count = np.shape(self.sigma)[-1]
        return _checks.Domain(
            f"an integer in [0, {count}]", lambda i: (i >= 0) & (i <= count) & (i == i // 1)
        )

    def _in_domain(self) -> jax.Array:
        return super()._in_domain() & self._positions().contains(self.position)

    def _log_mu(self) -> jax.Array:
        step = jnp.arange(1, np.shape(self.sigma)[-1] + 1)
        lipschitz = jnp.where(step <= self.position, 1.0, self.lipschitz)
        sigma = jnp.where(step < self.position, 0.0, self.sigma)
        return jnp.log(self.sensitivity) - 0.5 * log_strengths(lipschitz, sigma)[0]

    @property
    def _levels(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return np.shape(self.sigma)[-1].bit_length()

    def log_mu(self) -> jax.Array:
        """log mu, finite where mu itself underflows; -inf where a map with L_j = 0 forgets all.

        Example:
          >>> import jaxdp, numpy as np
          >>> round(float(jaxdp.NoisyIteration(np.full(1000, 0.5), 1.0).log_mu()), 3)
          -693.291
        """
        return _x64.evaluate(_log_mu, self, rounding="up")

    def all_positions(self) -> GaussianDP:
        """The guarantee of every position i = 1..r at once, as one mechanism of shape (..., r).

        One pass over the steps whatever r; not differentiable (use `position` for that).

        Raises:
          ValueError: if the last step is known to be without noise.

        Example:
          >>> import jaxdp
          >>> every = jaxdp.NoisyIteration([1.0, 1.0], 1.0).all_positions()
          >>> [round(float(r), 6) for r in jaxdp.renyi(every, 2.0)]
          [0.5, 1.0]
        """
        _checks.check("sigma[..., -1]", self.sigma[..., -1], _checks.POSITIVE)
        mu = _x64.evaluate(_all_mu, self, rounding="up", differentiable=False)
        return GaussianDP(mu)

    def optimal_split(self) -> jax.Array:
        """How much of the shift each step absorbs at the optimum, shape (..., r), summing to Delta.

        Proportional to sigma_j^2 (L_1 ... L_j)^{-2}; entry j is W_infinity(mu_i, mu_{i-1}) of
        equation (2) with i = r - j + 1. For position 0; not differentiable.

        Example:
          >>> import jaxdp
          >>> [round(float(w), 6) for w in jaxdp.NoisyIteration([1.0, 0.5], 1.0).optimal_split()]
          [0.2, 0.8]
        """
        return _x64.evaluate(_optimal_split, self, differentiable=False)

    def split_bound(self, alpha: ArrayLike, split: ArrayLike) -> jax.Array:
        r"""Equation (2) of Balle et al. 2019, Theorem 4, at any split of the shift.

        :math:`\frac\alpha2 \sum_j w_j^2 (L_1 \cdots L_j)^2/\sigma_j^2`, never below the
        mechanism's own Rényi divergence. For position 0.

        Args:
          alpha: order >= 1, finite.
          split: weights >= 0 of shape (..., r), scaled here to sum to Delta; w_j is absorbed by
            step j.

        Raises:
          ValueError: for known arguments outside these domains.

        Example:
          >>> import jaxdp
          >>> steps = jaxdp.NoisyIteration([0.5] * 5, 2.0)
          >>> round(float(steps.split_bound(8.0, [1.0] * 5)), 6)
          0.01332
        """
        _checks.check("alpha", alpha, _checks.FINITE_KL_ORDER)
        split = _checks.array_of("split", split)
        _checks.check("split", split, _checks.NON_NEGATIVE)
        if np.shape(split)[-1:] != np.shape(self.sigma)[-1:]:
            raise ValueError(f"split must have one weight per step, got shape {np.shape(split)}")
        return _x64.evaluate(_split_bound, self, alpha, Vector(split), rounding="up")

    def printed_bound(self, alpha: ArrayLike) -> jax.Array:
        r"""Equation (3) of Balle et al. 2019, Theorem 4: the split that equalises all terms.

        :math:`\frac{\alpha\Delta^2}{2r} \prod_j (c_j)^{1/r}`, c_j = (L_1 ... L_j)^2/sigma_j^2; for
        constant L and sigma alpha Delta^2 L^{r+1}/(2 r sigma^2). True for every L (not only
        L <= 1) by the inequality of means, and never below the optimum. For position 0.

        Args:
          alpha: order >= 1, finite.

        Example:
          >>> import jaxdp
          >>> round(float(jaxdp.NoisyIteration([0.5] * 5, 2.0).printed_bound(8.0)), 9)
          0.003125
        """
        _checks.check("alpha", alpha, _checks.FINITE_KL_ORDER)
        return _x64.evaluate(_printed_bound, self, alpha, rounding="up")

    def sample(self, key: jax.Array, value: Any) -> Any:
        """The linear iteration X_j = L_j X_{j-1} + N(0, sigma_j^2) from an array or PyTree."""
        leaves, treedef = jax.tree.flatten(value)
        keys = jax.random.split(key, max(len(leaves), 1))

        def run(leaf_key, leaf):
            leaf = jnp.asarray(leaf, jnp.result_type(leaf, float))
            steps = jnp.asarray(self.lipschitz, leaf.dtype), jnp.asarray(self.sigma, leaf.dtype)

            def step(x, inputs):
                k, contraction, std = inputs
                return contraction * x + std * jax.random.normal(k, x.shape, x.dtype), None

            step_keys = jax.random.split(leaf_key, steps[0].shape[-1])
            return jax.lax.scan(step, leaf, (step_keys, *steps))[0]

        return jax.tree.unflatten(treedef, [run(*kl) for kl in zip(keys, leaves, strict=False)])


def _log_mu(m):
    value = m._log_mu()
    moved = value + rounding_of_log(value, m._levels)
    return jnp.where(m._in_domain(), jnp.where(jnp.isfinite(value), moved, value), jnp.nan)


def _all_mu(m):
    """A difference inside step i is absorbed by sigma_i^2 + B_{i+1}."""
    later = jnp.append(log_strengths(m.lipschitz, m.sigma)[1:], -jnp.inf)
    own = 2.0 * _divergences.log_positive(m.sigma)
    total = jnp.where(jnp.isposinf(later), jnp.inf, log_add(own, jnp.minimum(later, 1e300)))
    log_mu = jnp.maximum(jnp.log(m.sensitivity) - 0.5 * total, LOG_LEAST_MU)
    mu = jnp.exp(log_mu + rounding_of_log(log_mu, m._levels))
    return jnp.where(m._in_domain(), mu, jnp.nan)


def _log_costs(m):
    """log (L_1 ... L_j)^2 / sigma_j^2; +inf without noise, -inf after an L = 0."""
    zero = jax.lax.associative_scan(jnp.maximum, (m.lipschitz <= 0.0).astype(jnp.float64)) > 0.0
    log_l = jnp.log(jnp.where(m.lipschitz <= 0.0, 1.0, m.lipschitz))
    costs = 2.0 * jax.lax.associative_scan(jnp.add, log_l)
    noisy = m.sigma > 0.0
    costs = costs - 2.0 * jnp.log(jnp.where(noisy, m.sigma, 1.0))
    return jnp.where(zero, -jnp.inf, jnp.where(noisy, costs, jnp.inf))


def _optimal_split(m):
    costs = _log_costs(m)
    free = jnp.isneginf(costs)
    strengths = jnp.where(jnp.any(free), jnp.where(free, 0.0, -jnp.inf), -costs)
    split = m.sensitivity * jnp.exp(strengths - _special.logsumexp(strengths))
    return jnp.where(m._in_domain(), split, jnp.nan)


def _split_bound(m, alpha, split):
    weights = split.value / jnp.sum(split.value)
    used = weights > 0.0
    log_weights = jnp.log(jnp.where(used, weights, 1.0))
    terms = jnp.where(used, 2.0 * log_weights + _log_costs(m), -jnp.inf)
    unbounded = jnp.any(jnp.isposinf(terms))
    log_total = _special.logsumexp(jnp.where(unbounded, 0.0, terms))
    value = 0.5 * alpha * jnp.exp(2.0 * jnp.log(m.sensitivity) + log_total)
    value = value * (1.0 + SLACK * (16.0 + 2.0 * m._levels))
    valid = m._in_domain() & (alpha >= 1.0) & jnp.all(split.value >= 0.0)
    return jnp.where(valid, jnp.where(unbounded, jnp.inf, value), jnp.nan)


def _printed_bound(m, alpha):
    count = m.sigma.shape[-1]
    costs = _log_costs(m)
    forgets = jnp.any(jnp.isneginf(costs))
    mean = jnp.mean(jnp.where(forgets, 0.0, costs))
    log_value = 2.0 * jnp.log(m.sensitivity) + mean - np.log(2.0 * count)
    value = alpha * jnp.exp(log_value) * (1.0 + 16.0 * SLACK)
    value = jnp.where(forgets, 0.0, value)
    return jnp.where(m._in_domain() & (alpha >= 1.0), value, jnp.nan)
