"""Conversions between the dialects of privacy: Rényi, zCDP, GDP, pure and approximate DP."""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _orders, _roots, _x64
from jaxdp import _special_subnormal as subnormal


def _valid(value: jax.Array, *conditions: jax.Array) -> jax.Array:
    for condition in conditions:
        value = jnp.where(condition, value, jnp.nan)
    return value


def renyi_to_epsilon(
    rdp: ArrayLike,
    alpha: ArrayLike,
    delta: ArrayLike,
    *,
    form: Literal["optimal", "simple"] = "optimal",
) -> jax.Array:
    r"""Epsilon at delta implied by a Rényi divergence of one order.

    optimal: :math:`r + \log(1 - 1/\alpha) - \log(\alpha\delta)/(\alpha - 1)` (Canonne, Kamath &
    Steinke 2020, Proposition 12); simple: :math:`r + \log(1/\delta)/(\alpha - 1)` (Mironov 2017,
    Proposition 3). Elementwise with broadcasting; take the minimum over an axis of orders. Holds
    for the direction(s) that `rdp` holds for. May be negative (then epsilon = 0 is met).

    Args:
      rdp: Rényi divergence r >= 0 of order alpha.
      alpha: order > 1, finite.
      delta: in (0, 1).

    Raises:
      ValueError: for known arguments outside these domains, or another form.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.renyi_to_epsilon(0.5, 8.0, 1e-5)), 6)
      1.714109
    """
    _checks.check("rdp", rdp, _checks.NON_NEGATIVE_OR_INF)
    _checks.check("alpha", alpha, _checks.FINITE_ORDER)
    _checks.check("delta", delta, _checks.OPEN_DELTA)
    _checks.check_choice("form", form, ("optimal", "simple"))
    return _x64.evaluate(_renyi_to_epsilon, rdp, alpha, delta, rounding="up", form=form)


def _renyi_to_epsilon(rdp, alpha, delta, form):
    if form == "optimal":
        value = rdp + _orders.epsilon_at_order(0.0, alpha, subnormal.log_positive(delta))
    else:
        value = rdp - subnormal.log_positive(delta) / (alpha - 1.0)
    return _valid(value, rdp >= 0.0, alpha > 1.0, _checks.OPEN_DELTA.contains(delta))


def renyi_to_delta(rdp: ArrayLike, alpha: ArrayLike, epsilon: ArrayLike) -> jax.Array:
    r"""Delta at epsilon implied by a Rényi divergence of one order, clipped at 1.

    :math:`\frac{e^{(\alpha-1)(r-\varepsilon)}}{\alpha-1}(1 - 1/\alpha)^\alpha` (Canonne, Kamath &
    Steinke 2020, Proposition 12). Elementwise with broadcasting.

    Args:
      rdp: Rényi divergence r >= 0 of order alpha.
      alpha: order > 1, finite.
      epsilon: any real number.

    Raises:
      ValueError: for known arguments outside these domains.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.renyi_to_delta(0.5, 2.0, 1.5)), 6)
      0.09197
    """
    _checks.check("rdp", rdp, _checks.NON_NEGATIVE_OR_INF)
    _checks.check("alpha", alpha, _checks.FINITE_ORDER)
    _checks.check("epsilon", epsilon, _checks.NOT_NAN)
    return _x64.evaluate(_renyi_to_delta, rdp, alpha, epsilon, rounding="up")


def _renyi_to_delta(rdp, alpha, epsilon):
    log_delta = _orders.log_delta_at_order((alpha - 1.0) * rdp, alpha, epsilon)
    return _valid(_divergences.exp_up(jnp.minimum(log_delta, 0.0)), rdp >= 0.0, alpha > 1.0)


def zcdp_to_renyi(rho: ArrayLike, alpha: ArrayLike) -> jax.Array:
    """Rényi divergence of order alpha of any rho-zCDP mechanism: rho alpha (Bun & Steinke 2016).

    Args:
      rho: > 0.
      alpha: order >= 1.

    Example:
      >>> import jaxdp
      >>> float(jaxdp.zcdp_to_renyi(0.5, 4.0))
      2.0
    """
    _checks.check("rho", rho, _checks.POSITIVE)
    _checks.check("alpha", alpha, _checks.ORDER)
    return _x64.evaluate(_zcdp_to_renyi, rho, alpha, rounding="up")


def _zcdp_to_renyi(rho, alpha):
    return _valid(rho * alpha, rho > 0.0, alpha >= 1.0)


def renyi_to_zcdp(rdp: ArrayLike, alpha: ArrayLike) -> jax.Array:
    """The rho that a Rényi divergence of one order uses up: rdp / alpha.

    A mechanism is rho-zCDP when its divergence stays below rho alpha at *every* alpha > 1: take
    the maximum over all orders, not over some.

    Example:
      >>> import jaxdp
      >>> float(jaxdp.renyi_to_zcdp(2.0, 4.0))
      0.5
    """
    _checks.check("rdp", rdp, _checks.NON_NEGATIVE_OR_INF)
    _checks.check("alpha", alpha, _checks.FINITE_ORDER)
    return _x64.evaluate(_renyi_to_zcdp, rdp, alpha, rounding="up")


def _renyi_to_zcdp(rdp, alpha):
    return _valid(rdp / alpha, rdp >= 0.0, alpha > 1.0)


def zcdp_to_epsilon(rho: ArrayLike, delta: ArrayLike) -> jax.Array:
    """Epsilon at delta of any rho-zCDP mechanism, by the best real Rényi order.

    The conversion of Canonne, Kamath & Steinke 2020 (Proposition 12) minimised over alpha > 1; an
    upper bound, >= 0.

    Args:
      rho: > 0.
      delta: in (0, 1).

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.zcdp_to_epsilon(0.5, 1e-5)), 5)
      4.72839
    """
    _checks.check("rho", rho, _checks.POSITIVE)
    _checks.check("delta", delta, _checks.OPEN_DELTA)
    return _x64.evaluate(_zcdp_to_epsilon, rho, delta, rounding="up")


def _zcdp_to_epsilon(rho, delta):
    value = _orders.best_epsilon(
        lambda a: rho * a * (a - 1.0), jnp.asarray(-jnp.inf), subnormal.log_positive(delta)
    )
    return _valid(value, rho > 0.0, _checks.OPEN_DELTA.contains(delta))


def zcdp_to_delta(rho: ArrayLike, epsilon: ArrayLike) -> jax.Array:
    """Delta at epsilon of any rho-zCDP mechanism, by the best real Rényi order; an upper bound.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.zcdp_to_delta(0.5, 4.728386984943314)), 9)
      1e-05
    """
    _checks.check("rho", rho, _checks.POSITIVE)
    _checks.check("epsilon", epsilon, _checks.NOT_NAN)
    return _x64.evaluate(_zcdp_to_delta, rho, epsilon, rounding="up")


def _zcdp_to_delta(rho, epsilon):
    value = _orders.best_log_delta(lambda a: rho * a * (a - 1.0), jnp.asarray(-jnp.inf), epsilon)
    return _valid(_divergences.exp_up(jnp.minimum(value, 0.0)), rho > 0.0)


def gdp_to_delta(mu: ArrayLike, epsilon: ArrayLike) -> jax.Array:
    """Delta at epsilon of mu-GDP (Dong, Roth & Su 2022, Corollary 1): the Gaussian curve.

    Args:
      mu: > 0.
      epsilon: any real number.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.gdp_to_delta(1.0, 0.0)), 6)
      0.382925
    """
    _checks.check("mu", mu, _checks.POSITIVE)
    _checks.check("epsilon", epsilon, _checks.NOT_NAN)
    return _x64.evaluate(_gdp_to_delta, mu, epsilon, rounding="up")


def _gdp_to_delta(mu, epsilon):
    log_delta = _divergences.gaussian_log_hockey_stick(epsilon, mu, _divergences.SLACK)
    return _valid(_divergences.exp_up(log_delta), _checks.POSITIVE.contains(mu))


def gdp_to_epsilon(mu: ArrayLike, delta: ArrayLike) -> jax.Array:
    """Epsilon >= 0 at delta of mu-GDP, on the safe side, with implicit gradients.

    Args:
      mu: > 0.
      delta: in (0, 1).

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.gdp_to_epsilon(1.0, 1e-5)), 6)
      4.377178
    """
    _checks.check("mu", mu, _checks.POSITIVE)
    _checks.check("delta", delta, _checks.OPEN_DELTA)
    return _x64.evaluate(_gdp_to_epsilon, mu, delta, rounding="up")


def _gdp_to_epsilon(mu, delta):
    log_delta = subnormal.log_positive(delta)

    def excess(epsilon):
        slack = _divergences.SLACK
        return _divergences.gaussian_log_hockey_stick(epsilon, mu, slack) - log_delta

    start = jax.lax.stop_gradient(mu * (0.5 * mu + jnp.sqrt(-2.0 * log_delta)))
    value = jnp.maximum(_roots.safe_root(excess, start), 0.0)
    return _valid(value, _checks.POSITIVE.contains(mu), _checks.OPEN_DELTA.contains(delta))


def epsilon_delta_to_gdp(epsilon: ArrayLike, delta: ArrayLike) -> jax.Array:
    """The largest mu such that every mu-GDP mechanism is (epsilon, delta)-DP, on the safe side.

    Args:
      epsilon: >= 0, finite.
      delta: in (0, 1).

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.epsilon_delta_to_gdp(4.377178, 1e-5)), 6)
      1.0
    """
    _checks.check("epsilon", epsilon, _checks.NON_NEGATIVE)
    _checks.check("delta", delta, _checks.OPEN_DELTA)
    return _x64.evaluate(_epsilon_delta_to_gdp, epsilon, delta, rounding="down")


def _epsilon_delta_to_gdp(epsilon, delta):
    log_delta = subnormal.log_positive(delta)

    def excess(minus_log_mu):
        mu = jnp.exp(-minus_log_mu)
        slack = _divergences.SLACK
        return _divergences.gaussian_log_hockey_stick(epsilon, mu, slack) - log_delta

    tail = jnp.sqrt(-2.0 * log_delta)
    start = jax.lax.stop_gradient(-jnp.log(jnp.sqrt(2.0 * epsilon + tail * tail) - tail + delta))
    value = jnp.exp(-_roots.safe_root(excess, start, 0.0, 1e-12))
    value = value * (1.0 - 4.0 * _divergences.SLACK)
    return _valid(value, epsilon >= 0.0, _checks.OPEN_DELTA.contains(delta))


def pure_to_renyi(epsilon: ArrayLike, alpha: ArrayLike) -> jax.Array:
    """Largest Rényi divergence of order alpha of any epsilon-DP mechanism: randomised response.

    Args:
      epsilon: > 0.
      alpha: order >= 1, finite.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.pure_to_renyi(1.0, 2.0)), 6)
      0.735326
    """
    _checks.check("epsilon", epsilon, _checks.POSITIVE)
    _checks.check("alpha", alpha, _checks.FINITE_KL_ORDER)
    return _x64.evaluate(_pure_to_renyi, epsilon, alpha, rounding="up")


def _pure_to_renyi(epsilon, alpha):
    value = alpha * _divergences.randomized_response_rate(alpha, epsilon)
    return _valid(value, epsilon > 0.0, alpha >= 1.0)


def pure_to_zcdp(epsilon: ArrayLike) -> jax.Array:
    """Smallest rho such that every epsilon-DP mechanism is rho-zCDP: epsilon tanh(epsilon/2).

    Attained by randomised response as alpha -> 1, where R_alpha/alpha is largest; at most the
    epsilon^2/2 of Bun & Steinke 2016 (Proposition 1.4).

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.pure_to_zcdp(1.0)), 6)
      0.462117
    """
    _checks.check("epsilon", epsilon, _checks.POSITIVE)
    return _x64.evaluate(_pure_to_zcdp, epsilon, rounding="up")


def _pure_to_zcdp(epsilon):
    return _valid(epsilon * jnp.tanh(0.5 * epsilon), epsilon > 0.0)


def pure_to_delta(pure_epsilon: ArrayLike, epsilon: ArrayLike) -> jax.Array:
    """Largest delta at epsilon of any pure_epsilon-DP mechanism (randomised response).

    (e^{eps0} - e^eps)/(1 + e^{eps0}) for |eps| < eps0, 0 beyond (Kairouz, Oh & Viswanath 2015).

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.pure_to_delta(1.0, 0.5)), 6)
      0.287649
    """
    _checks.check("pure_epsilon", pure_epsilon, _checks.POSITIVE)
    _checks.check("epsilon", epsilon, _checks.NOT_NAN)
    return _x64.evaluate(_pure_to_delta, pure_epsilon, epsilon, rounding="up")


def _pure_to_delta(pure_epsilon, epsilon):
    log_delta = _divergences.approximate_dp_log_hockey_stick(
        epsilon, pure_epsilon, jnp.zeros_like(pure_epsilon), _divergences.SLACK
    )
    return _valid(_divergences.exp_up(log_delta), pure_epsilon > 0.0)
