r"""Importance sampling of delta for balls in bins, each sample within a range known beforehand.

X = (1/b) sum_j e_j, e_j = exp(Z_j - G_jj/2), Z ~ N(0, G) under Q; g = e^epsilon.

remove: X^a = b^{-a} sum over tuples (i_1 .. i_a) of e_{i_1} .. e_{i_a}, and such a product is
exp(sum_{k<l} G_{i_k i_l}) times the density of Z shifted by G_{i_1} + .. + G_{i_a}. Bins are drawn
one after the other, the k-th with probability proportional to exp(sum_{l<k} G_{i, i_l}), whose
mean over the bins is W_k: then E_Q (X - g)_+ = E[W_1 .. W_a (X - g)_+/X^a]. As (X - g)_+ is at most
X^a g^{1-a} (a - 1)^{a-1}/a^a, and W_k by Jensen's inequality at most max_j mean_i e^{(k-1) G_ij},
the values lie in [0, R_a]. The order a, a choice, minimises R_a; a = 1 is sampling from P.
add: X >= exp(mean_j (Z_j - G_jj/2)), so that with m = mean_j Z_j, v = Var m and d the mean of G_jj
(1 - g X)_+ <= (s^s/(1 + s)^{1+s}) g^{-s} e^{s d/2 - s m}, and e^{-s m} is e^{s^2 v/2} times the
density of Z shifted by -s Cov(Z, m): the values (1 - g X)_+ e^{s m + s^2 v/2} are at most
R_s, which s >= 0 minimises; s = 0 is sampling from Q.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences
from jaxdp import _special as special
from jaxdp._allocation._estimate import interval, uniforms
from jaxdp._matrix import _strategies

_MOST_ORDER = 64
_TILTS = 256
_CELLS_AT_A_TIME = 2**19
_JITTER = 2.0**-44  # of the trace: more noise in Z, far below what sampling resolves
_MOST_ENTRIES = 2**27


def size_error(num_steps: int, num_bins: int) -> str | None:
    """What is wrong with a run that is too large for its matrix to be held, if it is."""
    if num_steps * num_bins <= _MOST_ENTRIES and num_bins**2 <= _MOST_ENTRIES // 8:
        return None
    return f"m must have num_steps * num_bins <= {_MOST_ENTRIES} to be sampled"


def _gram(m: Any) -> jax.Array:
    n, b = m.num_steps, m.num_bins
    if isinstance(m.strategy, _strategies.Dense):
        members = _strategies.members(m.strategy, n, b)
    else:
        h = _strategies.folded(m.strategy.coefficients(n), b)
        behind = np.arange(n)[:, None] - np.arange(b)[None, :]
        members = jnp.where(behind >= 0, h[np.maximum(behind, 0)], 0.0)
    members = members / m.sigma
    return members.T @ members


def _order(gram: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a and log R_a."""
    b = gram.shape[0]

    def log_mean(k: jax.Array) -> jax.Array:
        return jnp.max(special.logsumexp(k * gram, axis=1)) - np.log(b)

    # (rounding: a part in 2^46, which the comparison of orders and samples forgives)
    growth = jnp.cumsum(jax.lax.map(log_mean, jnp.arange(float(_MOST_ORDER))))
    a = np.arange(1.0, _MOST_ORDER + 1.0)
    peak = np.append(0.0, (a[1:] - 1.0) * np.log(a[1:] - 1.0)) - a * np.log(a)
    log_range = growth + peak - (a - 1.0) * epsilon
    at = jnp.max(jnp.where(log_range == jnp.min(log_range), jnp.arange(_MOST_ORDER), 0))
    return at + 1, log_range[at]


def _tilt(gram: jax.Array, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """s and log R_s."""
    v, d = jnp.mean(gram), jnp.mean(jnp.diagonal(gram))
    positive = np.geomspace(1e-2, 1e5, _TILTS)
    s = np.append(0.0, positive)
    peak = np.append(0.0, positive * np.log(positive)) - (1.0 + s) * np.log1p(s)
    s = jnp.asarray(s)
    log_range = peak - s * epsilon + 0.5 * s * d + 0.5 * s * s * v
    at = jnp.max(jnp.where(log_range == jnp.min(log_range), jnp.arange(s.size), 0))
    return s[at], log_range[at]


def _normals(words: Any, rows: jax.Array, count: int, first: int) -> jax.Array:
    """(rows, count) independent normal variables (Box & Muller 1958)."""
    half = (count + 1) // 2
    slots = jnp.arange(2 * half, dtype=jnp.uint32)[None, :] + jnp.uint32(first)
    u = uniforms(words, rows[:, None], slots)
    radius = jnp.sqrt(-2.0 * jnp.log(u[:, :half]))
    angle = 2.0 * jnp.pi * u[:, half:]
    both = [radius * jnp.cos(angle), radius * jnp.sin(angle)]
    return jnp.concatenate(both, axis=1)[:, :count]


def estimate(m: Any, epsilon, word0, word1, samples: int, direction: str, miss: float):
    """(value, low, high), inside the float64 island."""
    gram = _gram(m)
    b = gram.shape[0]
    diagonal = jnp.diagonal(gram)
    root = jnp.linalg.cholesky(gram + _JITTER * jnp.sum(diagonal) * jnp.eye(b))
    words = (word0.astype(jnp.uint32), word1.astype(jnp.uint32))
    chunk = max(1, min(samples, _CELLS_AT_A_TIME // b))
    remove = direction == "remove"
    # the order of the power of X, or the tilt of the mean
    order, log_range = (_order if remove else _tilt)(gram, epsilon)

    def drawn(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Sums of the rows of G of the bins drawn, and log of the product of the W_k."""

        def body(k, state):
            total, log_weight = state
            top = jnp.max(total, axis=1, keepdims=True)
            cumulative = jnp.cumsum(jnp.exp(total - top), axis=1)
            u = uniforms(words, rows, jnp.full_like(rows, 0) + k.astype(jnp.uint32))
            bin_ = jnp.sum(cumulative < u[:, None] * cumulative[:, -1:], axis=1)
            grown = top[:, 0] + jnp.log(cumulative[:, -1]) - np.log(b)
            return total + gram[jnp.minimum(bin_, b - 1)], log_weight + grown

        start = jnp.zeros((chunk, b)), jnp.zeros(chunk)
        return jax.lax.fori_loop(0, order, body, start)

    def log_values(rows: jax.Array) -> jax.Array:
        z = _normals(words, rows, b, _MOST_ORDER) @ root.T
        if remove:
            shift, log_weight = drawn(rows)
            z = z + shift
            log_x = special.logsumexp(z - 0.5 * diagonal, axis=1) - np.log(b)
            gap = jnp.where(log_x > epsilon, epsilon - log_x, -1.0)
            part = special.log1mexp(gap) + log_weight - (order - 1.0) * log_x
            return jnp.where(log_x > epsilon, part, -jnp.inf)
        z = z - order * jnp.mean(gram, axis=1)
        log_x = special.logsumexp(z - 0.5 * diagonal, axis=1) - np.log(b)
        loss = log_x + epsilon
        part = special.log1mexp(jnp.where(loss < 0.0, loss, -1.0))
        part = part + order * jnp.mean(z, axis=1) + 0.5 * order**2 * jnp.mean(gram)
        return jnp.where(loss < 0.0, part, -jnp.inf)

    def body(sums, block):
        rows = block * jnp.uint32(chunk) + jnp.arange(chunk, dtype=jnp.uint32)
        values = _divergences.exp_log(log_values(rows) - log_range)
        values = jnp.where(rows < samples, jnp.clip(values, 0.0, 1.0), 0.0)
        return (sums[0] + jnp.sum(values), sums[1] + jnp.sum(values * values)), None

    blocks = jnp.arange(-(-samples // chunk), dtype=jnp.uint32)
    sums, _ = jax.lax.scan(body, (jnp.zeros(()), jnp.zeros(())), blocks)
    found = interval(*sums, samples, jnp.exp(log_range), miss)
    inside = m._in_domain() & jnp.isfinite(epsilon)
    return tuple(jnp.where(inside, x, jnp.nan) for x in found)
