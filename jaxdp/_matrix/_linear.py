r"""Bounds from below by tests: any event has delta >= P(A) - e^epsilon Q(A) ("add": P, Q swapped).

A = {<v, Y> >= tau |v| sigma} (or <= ) of the release Y has Q(A) = Phi(-tau) and, as P is the
mixture of N(M_j, sigma^2 I), P(A) = (1/b) sum_j Phi(r_j - tau) with r = M^T v/(|v| sigma). For
v = M a, r = G a/sqrt(a^T G a): a on the ridge solutions (G + lambda I) a = 1, from that of even r
(lambda = 0) to that of even a, both with the best threshold, is near the likelihood ratio's test
where bins overlap much. v and tau are choices; what is certified is the probability of the event.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special as special
from jaxdp._matrix._strategies import Strategy, products
from jaxdp._mechanisms import Direction

_RIDGES = (1e-4, 1e-2, 0.1, 1.0, 10.0)  # of G's trace over b
_ITERATIONS = 32
_COARSE, _FINE = 160, 33
_REACH = 10.0  # deviations beyond the responses where thresholds are looked for
_ALLOWANCE = 2.0**-42  # of a log probability, for the roundings of log Phi and of few others


def responses(strategy: Strategy, num_steps: int, num_bins: int) -> jax.Array:
    """r for sigma = 1, rounded down, one row for each functional: (tests, b)."""
    m = products(strategy, num_steps, num_bins)
    frozen = products(jax.lax.stop_gradient(strategy), num_steps, num_bins)
    ones = jnp.ones(num_bins)

    def gram(a: jax.Array) -> jax.Array:
        return frozen.adjoint(frozen.forward(a))

    scale = jnp.mean(gram(ones)) / num_bins + 1e-300

    def solution(ridge: jax.Array) -> jax.Array:
        """Conjugate gradients: a few of them are a choice like any other."""

        def body(_, state):
            a, residual, p, size = state
            image = gram(p) + ridge * p
            step = size / jnp.maximum(jnp.sum(p * image), 1e-300)
            a, residual = a + step * p, residual - step * image
            new = jnp.sum(residual * residual)
            return a, residual, residual + new / jnp.maximum(size, 1e-300) * p, new

        start = (jnp.zeros(num_bins), ones, ones, jnp.sum(ones))
        return jax.lax.fori_loop(0, _ITERATIONS, body, start)[0]

    solved = jax.lax.map(solution, scale * jnp.asarray(_RIDGES))
    functionals = jnp.concatenate([ones[None], jnp.where(jnp.isfinite(solved), solved, 1.0)])

    def response(a: jax.Array) -> jax.Array:
        v = jax.lax.stop_gradient(frozen.forward(a))
        norm = jnp.sqrt(jnp.sum(v * v))
        v = v / jnp.where(norm > 0.0, norm, 1.0)
        # no longer than 1, its rounding included: less is a test with more noise
        v = v * (1.0 - 2.0**-40 - 2.0**-52 * num_steps)
        return m.adjoint(v) - m.error

    return jax.lax.map(response, functionals)


def _log_probabilities(r: jax.Array, tau: jax.Array, direction: Direction):
    """log P(A), log Q(A): of large values for remove, of small ones for add."""
    sign = 1.0 if direction == "remove" else -1.0
    p = special.logsumexp(special.log_ndtr(sign * (r[None, :] - tau[:, None])), axis=1)
    p, q = p - np.log(r.shape[0]), special.log_ndtr(-sign * tau)
    summed = 2.0**-52 * r.shape[0]  # what b roundings may move the logarithm of the sum by
    return (p - summed if direction == "remove" else p + summed), q


def _best(r: jax.Array, value) -> jax.Array:
    """The largest value over thresholds, of one functional."""
    low, high = jax.lax.stop_gradient((jnp.minimum(jnp.min(r), 0.0), jnp.maximum(jnp.max(r), 0.0)))
    low, high = low - _REACH, high + _REACH
    step = (high - low) / (_COARSE - 1)
    coarse = low + step * jnp.arange(_COARSE)
    values = jax.lax.stop_gradient(value(coarse))
    values = jnp.where(jnp.isnan(values), -jnp.inf, values)
    index = jnp.arange(_COARSE)
    middle = jnp.min(jnp.where(values == jnp.max(values), index, _COARSE - 1))
    fine = coarse[middle] + step * jnp.linspace(-1.0, 1.0, _FINE)
    # one threshold, so that the gradient is that of one test
    near = jax.lax.stop_gradient(value(fine))
    near = jnp.where(jnp.isnan(near), -jnp.inf, near)
    at = jnp.min(jnp.where(near == jnp.max(near), jnp.arange(_FINE), _FINE - 1))
    return value(fine[at][None])[0]


def _over_tests(r: jax.Array, value) -> jax.Array:
    return jnp.max(jax.vmap(lambda row: _best(row, lambda tau: value(row, tau)))(r))


def log_delta(r: jax.Array, epsilon: jax.Array, direction: Direction) -> jax.Array:
    """A bound on log delta from below; r (tests, b), sigma included."""

    def value(row: jax.Array, tau: jax.Array) -> jax.Array:
        log_p, log_q = _log_probabilities(row, tau, direction)
        gain, cost = (log_p, log_q) if direction == "remove" else (log_q, log_p)
        gain = gain - _ALLOWANCE * (1.0 - gain)
        cost = cost + epsilon + _ALLOWANCE * (1.0 - cost + jnp.abs(epsilon))
        won = gain > cost
        return jnp.where(won, gain + special.log1mexp(jnp.where(won, cost - gain, -1.0)), -jnp.inf)

    return _over_tests(r, value)


def epsilon(r: jax.Array, log_delta: jax.Array, direction: Direction) -> jax.Array:
    """A bound on epsilon >= 0 from below: P(A) - delta <= e^epsilon Q(A)."""

    def value(row: jax.Array, tau: jax.Array) -> jax.Array:
        log_p, log_q = _log_probabilities(row, tau, direction)
        gain, cost = (log_p, log_q) if direction == "remove" else (log_q, log_p)
        gain = gain - _ALLOWANCE * (1.0 - gain)
        cost = cost + _ALLOWANCE * (1.0 - cost)
        miss = log_delta + _ALLOWANCE * jnp.abs(log_delta)
        won = (gain > miss) & (cost > -jnp.inf)
        left = gain + special.log1mexp(jnp.where(won, miss - gain, -1.0))
        return jnp.where(won, left - jnp.where(won, cost, 0.0), 0.0)

    found = _over_tests(r, value)
    return jnp.maximum(found - _ALLOWANCE, 0.0)
