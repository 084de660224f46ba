"""Sums over the integers with a fixed number of nodes, and searches for where to sum.

A smooth summand over many lattice points is sampled with a stride h, and the ends are corrected
so that the sum over *every* lattice point results. With E the unit shift, Y = E^h and u = 1 - Y,

    sum_{k >= 0} E^k = 1/(1 - (1 - u)^{1/h}) = h/u + c_0(h) + c_1(h) u + c_2(h) u^2 + ...,

Gregory's rule for a lattice: weight h everywhere, plus finite differences at the ends. At h = 1
all corrections vanish and the sum is the plain one, exact. The weights are positive.
"""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp._special import log1p

T = TypeVar("T")
_ORDER = 7  # the highest at which all weights stay positive for every h
_DYADIC_PANELS, _DYADIC_NODES, _UNIFORM_NODES = 17, 64, 1024
RAY_NODES = _DYADIC_PANELS * _DYADIC_NODES + _UNIFORM_NODES
FAR = 2.0**40  # searches go this far
QUADRATURE = 1e-12  # relative allowance of certified values for strided sums and quadratures
_SECTIONS, _ROUNDS = 32, 9  # 32^9 > 2^41


def _correction_polynomials() -> np.ndarray:
    """Row m: the coefficients in 1/h of (correction of the weight of node m)/h, exactly.

    (1 - (1 - u)^theta)/(theta u) = sum_j d_j u^j with d_j = prod_{i<=j} (i - theta)/(i + 1); its
    reciprocal sum_j g_j u^j gives c_i = h g_{i+1}, and u^i = (1 - Y)^i the weights.
    """
    size = _ORDER + 2

    def times(p, q):
        out = [Fraction(0)] * size
        for i, a in enumerate(p):
            for j, b in enumerate(q[: size - i]):
                out[i + j] += a * b
        return out

    one = [Fraction(1)] + [Fraction(0)] * (size - 1)
    d, g = [one], [one]
    for j in range(1, size):
        d.append(times(d[-1], [Fraction(j, j + 1), Fraction(-1, j + 1)]))
        products = [times(d[i], g[j - i]) for i in range(1, j + 1)]
        g.append([-sum(column) for column in zip(*products, strict=True)])
    rows = [
        [
            float(sum((-1) ** m * math.comb(i, m) * g[i + 1][n] for i in range(m, _ORDER + 1)))
            for n in range(size)
        ]
        for m in range(_ORDER + 1)
    ]
    return np.asarray(rows)


_CORRECTIONS = _correction_polynomials()


def _end_corrections(h: jax.Array) -> jax.Array:
    """Additions to the weights of the first nodes of a sum that starts there, at stride h."""
    powers = (1.0 / h) ** jnp.arange(_ORDER + 2, dtype=jnp.float64)
    return h * jnp.sum(jnp.asarray(_CORRECTIONS, jnp.float64) * powers, axis=1)


def panel(low: jax.Array, high: jax.Array, nodes: int) -> tuple[jax.Array, jax.Array]:
    """Nodes and log weights of sum_{k=low}^{high} over the integers; empty if high < low."""
    j = jnp.arange(nodes, dtype=jnp.float64)
    count = high - low + 1.0
    dense = count <= nodes
    h = jnp.where(dense, 1.0, (high - low) / (nodes - 1))
    corrections = _end_corrections(h)
    weights = jnp.full((nodes,), h)
    weights = weights.at[: _ORDER + 1].add(corrections)
    weights = weights.at[nodes - 1 - _ORDER :].add(corrections[::-1])
    used = ~dense | (j < count)
    log_weights = jnp.where(used, jnp.log(jnp.where(dense, 1.0, weights)), -jnp.inf)
    return jnp.where(used, low + h * j, low), log_weights


def ray(length: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Nodes and log weights of sum_{k=0}^{length-1} for a summand that is rough at 0.

    Up to RAY_NODES points all are taken; beyond, panels double in length away from 0, the last
    31/32 of the way being one uniform panel.
    """
    last = jnp.maximum(length, 0.0) - 1.0
    all_k, all_w = panel(jnp.zeros_like(last), jnp.minimum(last, RAY_NODES - 1.0), RAY_NODES)
    powers = 0.5 ** jnp.arange(_DYADIC_PANELS - 1, -1, -1, dtype=jnp.float64)
    edges = jnp.concatenate([jnp.zeros((1,)), jnp.floor(last / 32.0 * powers)])
    k, w = jax.vmap(lambda a, b: panel(a, b - 1.0, _DYADIC_NODES))(edges[:-1], edges[1:])
    far_k, far_w = panel(edges[-1], last, _UNIFORM_NODES)
    graded_k = jnp.concatenate([k.ravel(), far_k])
    graded_w = jnp.concatenate([w.ravel(), far_w])
    dense = length <= RAY_NODES
    return jnp.where(dense, all_k, graded_k), jnp.where(dense, all_w, graded_w)


def first_true(
    predicate: Callable[[jax.Array], jax.Array], low: jax.Array, high: jax.Array
) -> jax.Array:
    """The least integer in (low, high] from which on the predicate holds; high if none below.

    Searches by sections of 32; the predicate takes the points of every search on a last axis.
    """
    fractions = jnp.arange(1, _SECTIONS, dtype=jnp.float64) / _SECTIONS

    def body(_, ends):
        below, above = (end[..., None] for end in ends)
        points = below + jnp.floor((above - below) * fractions)
        false = ~predicate(points) & (points > below)
        low = jnp.max(jnp.where(false, points, below), axis=-1)
        later = jnp.where(false | (points <= low[..., None]), above, points)
        return low, jnp.min(later, axis=-1)

    ends = jnp.broadcast_arrays(*jax.lax.stop_gradient((1.0 * low, 1.0 * high)))
    return jax.lax.fori_loop(0, _ROUNDS, body, tuple(ends))[1]


def falls_below(
    log_summand: Callable[[jax.Array], jax.Array], start: jax.Array, drop: float
) -> jax.Array:
    """The first integer after start where a decreasing summand has lost a factor e^-drop."""

    def fallen(k):
        values = log_summand(jnp.append(k, start))
        return values[:-1] < values[-1] - drop

    return first_true(fallen, start, start + FAR)


def certified(log_value: jax.Array, slack: float) -> jax.Array:
    """A computed log sum moved to the safe side of its quadrature and rounding errors.

    Up for slack > 0, down for slack < 0 (a multiple of the unit roundoff).
    """
    if not slack:
        return log_value
    size = jnp.abs(jax.lax.stop_gradient(jnp.where(jnp.isfinite(log_value), log_value, 0.0)))
    return log_value + (QUADRATURE if slack > 0 else -QUADRATURE) + slack * (64.0 + 4.0 * size)


def once(values: T) -> T:
    """The arrays themselves, each computed once.

    The compiler may else repeat a long formula in every place where its value is used.
    """
    return jax.lax.optimization_barrier(values)


def rounded_up(loss: jax.Array) -> jax.Array:
    """A largest loss that is a difference of two computed logarithms, above their errors."""
    return loss + 256.0 * 2.0**-52 * (1.0 + jnp.abs(loss))


def log_geometric_tail(log_first: jax.Array, log_second: jax.Array, limit: jax.Array) -> jax.Array:
    """Upper bound on log sum_{k >= 0} f(k) from f(0), f(1), for log-concave or log-convex f.

    The ratio f(k+1)/f(k) is at most the larger of its first value and its limit.
    """
    ratio = jnp.maximum(jnp.exp(jnp.minimum(log_second - log_first, 0.0)), limit)
    return log_first - log1p(-jnp.minimum(ratio, 1.0 - 1e-15))
