"""Mechanisms of which a Rényi curve is known and no law: zCDP, and the best of several runs."""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _orders, _rates
from jaxdp import _special as special
from jaxdp._mechanisms import _curve
from jaxdp._mechanisms._base import Base, Direction, Mechanism, mechanism, require_mechanism

_BISECTIONS = 60
_ROUNDING = 1.0 + 1e-12
_ORDERS = (1.02, 1.1, 1.3, 1.7, 2.5, 4.0, 7.0, 12.0, 24.0, 48.0, 96.0)


class OfDivergences(Base):
    """Abstract: bounded from above by Rényi divergences, the same for both directions."""

    _has_law: ClassVar = False

    @abc.abstractmethod
    def _divergence_function(self) -> Callable[[jax.Array], jax.Array]:
        """alpha > 1 to a bound on the Rényi divergence, what all orders share computed once."""

    def _rate_function(self) -> Callable[[jax.Array], jax.Array]:
        divergence = self._divergence_function()

        def rate(s: jax.Array) -> jax.Array:
            alpha = jnp.where(s > 0.5, jnp.maximum(s, 1.0), 1.0 - s)
            return divergence(alpha) / alpha

        return rate

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._rate_function()(s)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.convex_rate(s, self._rate(s), q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(-jnp.inf), jnp.asarray(jnp.inf)

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        if slack < 0.0:  # nothing is known from below
            return jnp.full_like(jnp.asarray(epsilon, jnp.float64), -jnp.inf)
        value = self._renyi_log_curve(epsilon, direction)
        # H_g = 1 - g + g H_{1/g} at g < 1, of a symmetric pair
        distance = jnp.abs(epsilon)
        other = jnp.minimum(self._renyi_log_curve(distance, direction), 0.0)
        low = jnp.minimum(epsilon, -1e-300)
        reflected = jnp.logaddexp(special.log1mexp(low), low + other) + 4.0 * _divergences.SLACK
        return jnp.minimum(jnp.where(epsilon < 0.0, jnp.minimum(value, reflected), value), 0.0)

    def _renyi_log_curve(self, epsilon: jax.Array, direction: Direction) -> jax.Array:
        divergence = self._divergence_function()
        return _orders.best_log_delta(
            lambda a: (a - 1.0) * divergence(a), self._log_failure(direction), epsilon
        )

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        raise TypeError(f"{type(self).__name__} has no law, but a bound on Rényi divergences")

    def sample(self, key: jax.Array, value: Any) -> Any:
        """A guarantee is not a release: raises TypeError."""
        raise TypeError(f"{type(self).__name__} is a guarantee, and releases nothing by itself")


@mechanism
class ConcentratedDP(OfDivergences):
    r"""Any (xi, rho)-zCDP mechanism: Rényi divergences :math:`R_\alpha \le \xi + \rho\alpha`.

    In both directions (Bun & Steinke 2016, arXiv 1605.02065). All that is known are its Rényi
    divergences: compositions with others are answered by Rényi divergences, from above. A Gaussian
    of mu^2 = 2 rho has them, but does not dominate all such mechanisms.

    Args:
      rho: > 0. Any shape.
      xi: >= 0; broadcasts against rho.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> both = jaxdp.Composed([jaxdp.ConcentratedDP(0.1), jaxdp.Gaussian(2.0)])
      >>> round(float(jaxdp.renyi(both, 8.0)), 6)  # 0.1 * 8 + 8/8
      1.8
    """

    rho: ArrayLike
    xi: ArrayLike = 0.0

    _domains: ClassVar = {"rho": _checks.POSITIVE, "xi": _checks.NON_NEGATIVE}

    def _divergence_function(self) -> Callable[[jax.Array], jax.Array]:
        return lambda alpha: self.xi + self.rho * alpha


@mechanism
class RepeatAndSelect(OfDivergences):
    r"""A mechanism run K times, of which the best output alone is released: private tuning.

    K is drawn, and kept secret, from a truncated negative binomial law of shape eta >= 0 and mean
    m (eta = 1: geometric; 0: logarithmic), or from a Poisson law (eta = inf; K = 0 releases
    nothing). "Best" is by any fixed order of the outputs; those of hyperparameters drawn at random
    in every run, too. With f the generating function of K, an output y has the density
    :math:`f'(p_y) Q(y)`, p_y the probability of one no better. By the base's curve at any e >= 0,

    .. math:: f'(p_y) / f'(p'_y) \le e^{c}, \quad
              c = (1 + \eta) \log(e^{e} + (1/\gamma - 1)\,\delta(e))

    (f' is proportional to (1 - (1-\gamma) p)^{-1-eta}, and 1 - p' <= e^e (1 - p) + delta(e));
    for Poisson :math:`c = m (e^{e} - 1 + \delta(e))`. So, as f' <= f'(1) = m,

    .. math:: \delta_K(\varepsilon) \le m\,\delta(\varepsilon - c)

    for every e: the best one is taken (as in Koskela, Redberg & Wang 2024, arXiv 2402.06701), or
    what Rényi divergences give if it is less (Papernot & Steinke 2022, arXiv 2110.03620, Theorems
    2 and 6). Compositions are answered by the latter.

    Args:
      mechanism: one run, a composition as a rule.
      mean: m >= 1 runs on average.
      shape: eta, a known number >= 0, or inf.

    Raises:
      ValueError: if a known parameter is outside its domain. TypeError: if no mechanism.

    Example:
      >>> import jaxdp
      >>> once = jaxdp.Gaussian(4.0)
      >>> tuned = jaxdp.RepeatAndSelect(once, mean=10.0)
      >>> bool(jaxdp.epsilon(once, 1e-6) < jaxdp.epsilon(tuned, 1e-6)
      ...      < 3.1 * jaxdp.epsilon(once, 1e-6))
      True
    """

    mechanism: Mechanism
    mean: ArrayLike
    shape: float = dataclasses.field(default=1.0, metadata={"static": True})

    _domains: ClassVar = {
        "mean": _checks.Domain("finite and >= 1", lambda x: (x >= 1) & (x < 1e300))
    }

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        super().__post_init__()
        shape = _checks.number("shape", self.shape, _checks.NON_NEGATIVE_OR_INF)
        object.__setattr__(self, "shape", shape)

    @property
    def neighbours(self) -> str | None:
        """Those of the mechanism."""
        return self.mechanism.neighbours

    def _in_domain(self) -> jax.Array:
        return self.mechanism._in_domain() & super()._in_domain()

    def _log_mean(self) -> jax.Array:
        return jnp.log(self.mean * _ROUNDING)

    def _log_odds(self) -> jax.Array:
        """log 1/gamma of the mean, rounded up: m = (e^L - 1) eta/(1 - e^{-eta L}), L by bisection.

        Its derivative is that of one Newton step from the frozen root.
        """
        target = jnp.log(1.0 * jnp.asarray(self.mean))

        def log_mean(x: jax.Array) -> jax.Array:
            rest = (
                special.log1mexp(-self.shape * x) - jnp.log(self.shape)
                if self.shape
                else jnp.log(x)
            )
            return x + special.log1mexp(-x) - rest

        frozen = jax.lax.stop_gradient(target)

        def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            middle = jnp.sqrt(ends[0] * ends[1])
            above = log_mean(middle) >= frozen
            return jnp.where(above, ends[0], middle), jnp.where(above, middle, ends[1])

        ends = jnp.float64(1e-14), jnp.float64(1500.0)
        root = jax.lax.fori_loop(0, _BISECTIONS, halve, ends)[1]
        root = jax.lax.stop_gradient(root)
        slope = jax.lax.stop_gradient(jax.grad(log_mean)(root))
        return (root + (target - frozen) / slope) * _ROUNDING + 1e-13

    def _worst_log_curve(self, epsilon: jax.Array) -> jax.Array:
        """log delta of one run, the larger of both directions."""
        slack = _divergences.SLACK
        curves = [_curve.log_curve(self.mechanism, epsilon, d, slack) for d in ("remove", "add")]
        return jnp.minimum(jnp.maximum(*curves), 0.0)

    def _divergence_function(self) -> Callable[[jax.Array], jax.Array]:
        remove, add = (_curve.rate_function(self.mechanism, d) for d in ("remove", "add"))
        fails = jnp.maximum(*(self.mechanism._log_failure(d) for d in ("remove", "add")))
        log_mean = self._log_mean()

        def one(alpha: jax.Array) -> jax.Array:
            found = alpha * jnp.maximum(remove(alpha), add(1.0 - alpha))
            return jnp.where(fails > -jnp.inf, jnp.inf, found)

        if self.shape == float("inf"):

            def at(alpha: jax.Array) -> jax.Array:
                a1 = jnp.maximum(alpha - 1.0, 1e-12)
                lost = jnp.exp(self._worst_log_curve(special.log1p(1.0 / a1)))
                return one(alpha) + self.mean * lost * _ROUNDING + log_mean / a1
        else:
            odds = self._log_odds()

            def shared(a: jax.Array) -> jax.Array:
                return (1.0 - 1.0 / a) * one(a) + odds / a

            constant = (1.0 + self.shape) * _orders.minimise_over_orders(shared)

            def at(alpha: jax.Array) -> jax.Array:
                a1 = jnp.maximum(alpha - 1.0, 1e-12)
                return one(alpha) + constant + log_mean / a1

        def divergence(alpha: jax.Array) -> jax.Array:  # which rises with alpha
            orders = jnp.append(jnp.maximum(alpha, jnp.asarray(_ORDERS)), alpha)
            return jnp.minimum(jnp.min(jax.vmap(at)(orders)) * _ROUNDING, most)

        most = self._loss_range()[1]
        return divergence

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        """Of runs of eps0-DP: f'(p)/f'(p') is largest where p = 1 - p' = 1/(1 + e^eps0).

        With u = 1 - p the ratio is ((1 + r u')/(1 + r u))^{1+eta}, r = 1/gamma - 1, and u' is at
        most e^eps0 u and at most 1 - e^-eps0 (1 - u): it rises in u, then falls, where these meet.
        """
        low, high = self.mechanism._loss_range()
        once = jnp.maximum(-low, high) * (1.0 + self.mechanism._range_ulps() * 2.0**-52)
        pure = jnp.isfinite(once)
        for direction in ("remove", "add"):
            pure &= self.mechanism._log_failure(direction) == -jnp.inf
        once = jnp.where(pure, once, 0.0)
        if self.shape == float("inf"):
            change = self.mean * jnp.tanh(0.5 * once)  # f'(p) = m e^{-m (1 - p)}
        else:
            r = jnp.expm1(self._log_odds())
            more = 1.0 / (1.0 + jnp.exp(-once))  # (logistic has no lowering in 32-bit programs)
            less = jnp.exp(-once) * more
            change = (1.0 + self.shape) * (special.log1p(r * more) - special.log1p(r * less))
        whole = jnp.where(pure, (once + change) * _ROUNDING, jnp.inf)
        return -whole, whole

    def _log_failure(self, direction: Direction) -> jax.Array:
        fails = jnp.maximum(*(self.mechanism._log_failure(d) for d in ("remove", "add")))
        return jnp.minimum(fails + self._log_mean(), 0.0)

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        by_orders = super()._log_hockey_stick(epsilon, direction, slack)
        if slack < 0.0:
            return by_orders
        poisson = self.shape == float("inf")
        odds = jnp.zeros(()) if poisson else self._log_odds()

        def lost(e: jax.Array) -> jax.Array:
            return jnp.exp(self._worst_log_curve(e)) * _ROUNDING

        def bound(order: jax.Array) -> jax.Array:
            e = order - 1.0
            if poisson:
                change = self.mean * (jnp.expm1(e) + lost(e))
            else:
                rest = jnp.log(lost(e)) + jnp.log(jnp.expm1(odds))
                change = (1.0 + self.shape) * jnp.logaddexp(e, rest)
            return self._worst_log_curve(epsilon - change * _ROUNDING) + self._log_mean()

        by_curve = _orders.minimise_over_orders(bound)
        value = jnp.where(by_curve < by_orders, by_curve, by_orders)
        value = jnp.minimum(value + 8.0 * _divergences.SLACK, 0.0)
        return jnp.where(epsilon >= self._loss_range()[1], -jnp.inf, value)
