"""Rényi moments of one Poisson-subsampled Gaussian step at many orders, cheap enough for a loop.

For an integer order alpha, X = 1 - q + q e^{z/sigma - 1/(2 sigma^2)} and z ~ N(0, 1),

    E_Q[X^alpha] - 1 = sum_{k=2..alpha} C(alpha, k) (1-q)^{alpha-k} q^k (e^{k(k-1)/(2 sigma^2)} - 1)

(Mironov, Talwar & Zhang 2019, section 3.3, less the binomial sum, which is 1): all terms are
positive, so that nothing cancels however small q is. This is the remove direction; for the
subsampled Gaussian it is the larger one at every order (their Theorem 5), so it serves for both.
Other orders > 1 are by quadrature (`jaxdp.renyi`'s).
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _rates
from jaxdp._special import log1p
from jaxdp.training import _words

SLACK = 4e-13  # relative error of the quadrature
_GROUPS = (16, 64, 1024)  # integer orders up to these share an array of terms
_NOISE = (1e-150, 1e150)  # outside of it squares leave the range of float64
_LEAST = 1e-300  # above what may be flushed to 0: steps are never free


@functools.lru_cache(maxsize=64)
def _tables(orders: tuple[float, ...]) -> tuple[list[tuple[np.ndarray, ...]], list[int]]:
    """For each group of integer orders (positions, alpha, k, log C(alpha, k)); other positions."""
    whole = [i for i, a in enumerate(orders) if a == int(a) and a <= _GROUPS[-1]]
    groups, low = [], 0
    for high in _GROUPS:
        members = [i for i in whole if low < orders[i] <= high]
        low = high
        if members:
            alpha = np.asarray([int(orders[i]) for i in members])
            k = np.arange(2, alpha.max() + 1)
            logs = [
                [math.log(math.comb(int(a), int(j))) if j <= a else 0.0 for j in k] for a in alpha
            ]
            groups.append((np.asarray(members), alpha[:, None] * 1.0, k * 1.0, np.asarray(logs)))
    return groups, [i for i in range(len(orders)) if i not in whole]


def moments(sigma: jax.Array, q: jax.Array, orders: tuple[float, ...]) -> jax.Array:
    """Upper bounds on log E_Q[X^alpha] = (alpha - 1) R_alpha of one step, at every order.

    Each term carries an allowance of 4 roundoffs for every unit of the logarithms it is made of.
    Noise above a limit is taken for less; below one moments are infinite, as they are at sigma = 0
    (too little for a float32). nan outside sigma >= 0, 0 < q <= 1.
    """
    groups, others = _tables(orders)
    inside = (sigma >= 0.0) & (q > 0.0) & (q <= 1.0)
    some = sigma >= _NOISE[0]
    sigma = jnp.where(some, jnp.minimum(sigma, _NOISE[1]), 1.0)
    q = jnp.where(inside, jnp.maximum(q, _words.TINY), 1.0)
    u = _divergences.SLACK
    result = jnp.zeros(len(orders), jnp.float64)
    stays = log1p(-jnp.minimum(q, 1.0 - 2.0**-53))  # at q = 1 terms of 1e-16 are added: safe
    for positions, *tables in groups:
        alpha, k, log_binomial = (_words.constant(table) for table in tables)
        exponent = 0.5 * k * (k - 1.0) / sigma**2
        small = exponent < 30.0
        near = jnp.log(jnp.expm1(jnp.where(small, exponent, 1.0)))
        growth = jnp.where(small, near, exponent)  # log(e^x - 1) <= x
        kept = jnp.maximum(alpha - k, 0.0) * stays
        logs = jnp.where(k <= alpha, log_binomial, -jnp.inf) + kept + k * jnp.log(q) + growth
        size = log_binomial - kept - k * jnp.log(q)
        logs = logs + 4.0 * u * (size + jnp.abs(growth) + len(k) + 8.0)
        top = jax.lax.stop_gradient(jnp.max(logs, axis=1))
        total = top + jnp.log(jnp.sum(jnp.exp(logs - top[:, None]), axis=1))
        result = result.at[positions].set(jnp.logaddexp(total, 0.0) * (1.0 + 16.0 * u))
    if others:
        alpha = jnp.asarray([orders[i] for i in others], jnp.float64)
        rates = jax.vmap(lambda a: _rates.sampled_gaussian_rate(a, 1.0 / sigma, q))(alpha)
        rates = jnp.where(jnp.isnan(rates), jnp.inf, rates)
        # sampling lowers every moment (they are convex in the law)
        rates = jnp.minimum(rates, 0.5 / sigma**2)
        exact = alpha * (alpha - 1.0) * rates * (1.0 + SLACK)
        result = result.at[np.asarray(others)].set(exact)
    result = jnp.where(some, jnp.maximum(result, _LEAST), jnp.inf)
    return jnp.where(inside, result, jnp.nan)


def add(total: jax.Array, count: jax.Array, step: jax.Array) -> jax.Array:
    """total + count step, rounded up; no steps add nothing, even if one would add infinity."""
    some = count > 0.0
    spent = jnp.where(some, count, 1.0) * jnp.where(some, step, 0.0)
    return (total + spent) * (1.0 + 4.0 * _divergences.SLACK)
