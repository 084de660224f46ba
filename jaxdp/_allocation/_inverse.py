r"""Rényi divergences of allocation in the add direction: moments of order -b of an average.

For A = (X_1 + ... + X_t)/t, E X = 1, and any b > 0, t >= 1 (Gamma integral; phi(x) = E e^{-xX}),

    E[A^-b] = 1/Gamma(b) int u^(b-1) phi(u/t)^t du,
    E[A^-b] - 1 = 1/Gamma(b) int u^(b-1) e^-u (e^{t G(u/t)} - 1) du,

G(x) = log phi(x) + x = log E e^{-x (X - 1)} >= 0 by Jensen: a positive integrand, no cancellation.
(E[A^-b] - 1)/b stays finite at b = 0, where it is the Kullback-Leibler divergence. The laws have
their expectations as sums over nodes, exactly or by quadrature to 1e-14; the integrand over log u
is analytic in a strip around the window that matters, and the trapezoid rule there good to 1e-13.

Always valid, for every base and without quadrature: E[A^-b] <= E[X^-b] (Jensen, copies averaged)
and, A being at least the geometric mean, E[A^-b] <= E[X^{-b/t}]^t. They close the formula where the
window or the nodes do not suffice.

Steps that can fail have X = 0 with probability f under Q. With K ~ Bin(t, 1 - f) the number of
steps that did not fail, and Y the law of X given X > 0, they leave

    E[A^-b; A > 0] = sum_{k >= 1} P{K = k} (t/k)^b E[((Y_1 + ... + Y_k)/k)^-b]
                  <= E[Y^-b] sum_{k >= 1} P{K = k} (t/k)^b,

since averaging lowers a convex expectation. The sum is taken over intervals of k, to the right of
the middle intervals of t - k; with KL(x, p) the divergence of two coins each has at most

    P{K = k} <= sqrt(t/(2 pi k (t - k))) e^{-t KL(k/t, 1 - f)}

(Robbins 1955), at the point nearest the mean, times the number of its points, and no more than 1.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp import _divergences, _special, _special_gamma
from jaxdp._mechanisms import Laplace, Mechanism, RandomizedResponse
from jaxdp._mechanisms._gaussian import GaussianFamily
from jaxdp._special import log1p

_SCAN, _ZOOM, _NODES = 128, 48, 128
_DROP = 45.0  # what is below e^-45 of the peak is left out
_Z_NODES, _Z_ROUGH = 360, 90
_SLACK = 2e-12
# Starts of intervals of integers: one each up to 64, then 3 % longer each time, to 2^53.
_STARTS = np.unique(
    np.concatenate([np.arange(1.0, 65.0), np.floor(np.geomspace(64.0, 2.0**53, 1200))])
)


class Nodes(NamedTuple):
    """E_Q f(L) = sum_i e^{log_weights_i} f(loss_i), good for E e^{-x X} where log x <= reach."""

    loss: jax.Array
    log_weights: jax.Array
    reach: jax.Array


def nodes_of(m: Mechanism, t: jax.Array, b: jax.Array, rough: bool = False) -> Nodes | None:
    """The law of X under Q, of the mechanisms whose expectations are sums; rough: to find the peak.

    Gaussian: e^{-z^2/2} exp(-x e^{mu z}) is analytic within pi/(2 mu) of the line, so that a
    step of 0.3/mu is good to 1e-14; tilted by X^{-b/t}, z moves left by mu b/t.
    """
    if isinstance(m, GaussianFamily):
        mu = m._mu()
        left = -13.0 - mu * b / t - 10.0 / jnp.sqrt(t)
        count = _Z_ROUGH if rough else _Z_NODES
        step = (9.0 + mu - left) / (count - 1)
        z = left + step * jnp.arange(count, dtype=jnp.float64)
        peak = -left - 2.0  # nothing is lost as long as the integrand peaks right of -peak
        reach = peak * mu + 0.5 * mu * mu + jnp.log(peak / mu)
        reach = jnp.where((mu * step <= 0.3) | rough, reach, -jnp.inf)
        return Nodes(mu * z - 0.5 * mu * mu, _special.log_normal_density(z) + jnp.log(step), reach)
    if isinstance(m, Laplace):
        return Nodes(*_divergences.laplace_nodes(m._x), jnp.where(m._x < 20.0, jnp.inf, -jnp.inf))
    if isinstance(m, RandomizedResponse):
        nodes = _divergences.randomized_response_nodes(jnp.asarray(m.epsilon))
        return Nodes(*nodes, jnp.asarray(jnp.inf))
    return None


def _log_integrand(nodes: Nodes, t: jax.Array, log_u: jax.Array) -> jax.Array:
    """log of e^-u (e^{t G(u/t)} - 1).

    By G itself where that is small or x is; by phi beyond, where e^-y may be no double.
    """
    x = jnp.minimum(jnp.exp(log_u) / t, 1e300)
    y = x * jnp.expm1(nodes.loss)
    # psi(y) = e^-y - 1 + y = y^2 exp[0, 0, -y] >= 0
    far = jnp.abs(y) > 0.5
    direct = jnp.expm1(-jnp.where(far, jnp.maximum(y, -700.0), 1.0)) + y
    series = jnp.where(far, 0.0, y)
    near = jnp.full_like(y, 1.0 / 20.0)
    for k in range(19, 2, -1):
        near = (1.0 - series * near) / k
    near = 0.5 * series * series * (1.0 - series * near)
    close = t * log1p(jnp.sum(jnp.exp(nodes.log_weights) * jnp.where(far, direct, near)))
    # (x + log phi would be rounding alone where G is below it, and the moment below the truth.)
    small = (x < 30.0) | ((close < 1.0) & (jnp.min(y) > -700.0))
    close = _special.log_expm1(jnp.maximum(jnp.where(small, close, 1.0), 1e-300))
    close -= jnp.where(small, t * x, 0.0)
    x = jnp.where(small, 30.0, x)
    log_phi = _special.logsumexp(nodes.log_weights - x * jnp.exp(nodes.loss))
    gap = -t * (x + log_phi)
    tail = t * log_phi + _special.log1mexp(jnp.minimum(gap, -1e-300))
    return jnp.where(small, close, tail)


def inverse_rate(m: Mechanism, t: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log E[A^-b]/(b (b + 1)) for b >= 0, and whether it can be trusted.

    The step in log u needs to be below 0.33 for 1e-13 (phi is analytic for |arg u| < pi/2), and
    the window holds all within e^-45 of the peak.
    """
    nodes, rough = nodes_of(m, t, b), lax.stop_gradient(nodes_of(m, t, b, rough=True))
    assert nodes is not None
    assert rough is not None

    def log_integrand(v, law=nodes):
        return b * v + _log_integrand(law, t, v)

    def hull(left, right, count):
        v = left + (right - left) * jnp.arange(count, dtype=jnp.float64) / (count - 1)
        height = lax.map(lambda v: log_integrand(v, rough), v, batch_size=_ZOOM)
        step = (right - left) / (count - 1)
        high = height > jnp.max(height) - _DROP
        low = jnp.min(jnp.where(high, v, jnp.inf)) - step
        return lax.stop_gradient((low, jnp.max(jnp.where(high, v, -jnp.inf)) + step))

    left = jnp.log(b + 2.0) - _DROP / 2.0
    right = jnp.log(b + 40.0 * t) - jnp.min(rough.loss)
    left, right = hull(left, jnp.maximum(right, jnp.log(b + 2.0) + 8.0), _SCAN)
    left, right = hull(left, right, _ZOOM)
    left, right = hull(left, right, _ZOOM)
    step = (right - left) / (_NODES - 1)
    v = left + step * jnp.arange(_NODES, dtype=jnp.float64)
    values = lax.map(log_integrand, v, batch_size=32)
    log_sum = _special.logsumexp(values) + jnp.log(step)
    log_gamma = _special_gamma.log_gamma(b + 1.0)
    rounded = 2.0**-50 * jnp.abs(log_gamma)  # as the sum's exponents are
    log_per_b = log_sum - log_gamma + rounded  # of (E[A^-b] - 1)/b
    moderate = log_per_b < 30.0
    per_b = jnp.exp(jnp.where(moderate, log_per_b, 0.0))
    near = per_b * _special.relative_log1p(b * per_b) / (1.0 + b)
    large = jnp.where(moderate, 1.0, b)  # b > 0 there
    far = (jnp.logaddexp(log_per_b + jnp.log(large), 0.0)) / (large * (large + 1.0))
    rate = jnp.where(moderate, near, far)
    ends = jnp.stack([values[0], values[-1]]) < jnp.max(values) - 0.7 * _DROP
    trusted = (
        jnp.all(ends) & (step <= 0.3) & (right - jnp.log(t) <= nodes.reach) & jnp.isfinite(rate)
    )
    return rate * (1.0 + _SLACK), trusted


def add_rate(m: Mechanism | None, base, t: jax.Array, s: jax.Array) -> jax.Array:
    """An upper bound on the cumulant rate k(s) of the average of t copies at s <= 0.

    Exact, to 1e-12, for the laws of `nodes_of`.

    Args:
      m: the mechanism if it is one step.
      base: its cumulant rate.
    """
    b = jnp.where(s <= 0.0, -s, 0.0)  # at s = 0 the slope of -s
    geometric = (t + b) / (t * (1.0 + b)) * base(-b / t)
    bound = jnp.minimum(base(-b), jnp.where(jnp.isnan(geometric), jnp.inf, geometric))
    if m is None or nodes_of(m, t, b) is None:
        return bound
    exact, trusted = inverse_rate(m, t, b)
    return jnp.where(trusted, jnp.minimum(exact, bound), bound)


def _log_coin(x: jax.Array, log_p: jax.Array, log_rest: jax.Array) -> jax.Array:
    """KL(x, p) of two coins, 0 <= x <= 1."""
    heads = jnp.where(x > 0.0, x * (jnp.log(jnp.where(x > 0.0, x, 1.0)) - log_p), 0.0)
    y = 1.0 - x
    tails = jnp.where(y > 0.0, y * (jnp.log(jnp.where(y > 0.0, y, 1.0)) - log_rest), 0.0)
    return jnp.maximum(heads + tails, 0.0)


def _log_successes(log_failure: jax.Array, t: jax.Array, b: jax.Array) -> jax.Array:
    """An upper bound on log E[(t/K)^b; K >= 1], K ~ Bin(t, 1 - failure)."""
    log_success = _special.log1mexp(log_failure)
    mean = t * jnp.exp(log_success)
    first, last = jnp.asarray(_STARTS), jnp.asarray(np.append(_STARTS[1:] - 1.0, 2.0**53))
    half = jnp.floor(0.5 * t)

    def total(low: jax.Array, high: jax.Array) -> jax.Array:
        """The intervals low .. high of k, those with high < low left out."""
        some = (low >= 1.0) & (high >= low) & (high <= t - 1.0)
        low, high = jnp.where(some, low, 1.0), jnp.where(some, high, 1.0)
        n = jnp.where(some, t, 2.0)
        ends = jnp.maximum(1.0 / low + 1.0 / (n - low), 1.0 / high + 1.0 / (n - high))
        log_most = jnp.log(high - low + 1.0) + 0.5 * jnp.log(ends / (2.0 * jnp.pi))
        divergence = n * _log_coin(jnp.clip(mean, low, high) / n, log_success, log_failure)
        slack = _SLACK * (1.0 + divergence) + 2.0**-50 * n
        log = jnp.minimum(log_most - divergence + slack, 0.0) + b * jnp.log(n / low)
        return _special.logsumexp(jnp.where(some, log, -jnp.inf))

    left = total(first, jnp.minimum(last, half))
    right = total(jnp.maximum(t - last, half + 1.0), t - first)
    return _divergences.log_add(left, right, t * log_success)


def failing_add_rate(log_failure: jax.Array, base, t: jax.Array, s: jax.Array) -> jax.Array:
    """An upper bound on log E[A^s; A > 0]/(s (s - 1)), s < 0, of steps that can fail."""
    b = jnp.maximum(-s, 0.0)
    some = log_failure > -jnp.inf
    log_failure = jnp.where(some, log_failure, -1.0)
    scale = jnp.where(b > 0.0, b * (b + 1.0), 1.0)
    one = b * (b + 1.0) * base(-b) - _special.log1mexp(log_failure)
    log = one + _log_successes(log_failure, t, b)
    return log / scale + _SLACK * (1.0 + jnp.abs(log)) / scale
