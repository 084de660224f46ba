r"""Moments of an average of independent likelihood ratios: a power of a power series.

With D_p = E_Q[X^p], E X = 1 and A = (X_1 + ... + X_t)/t (Feldman & Shenfeld 2025, Theorem 4.6, in a
form that needs no partitions and has the right multinomial coefficients),

    M_n = E[A^n] = n!/t^n [z^n] (sum_p D_p z^p/p!)^t.

The n-th coefficient h_n of a power f^t with f_0 = 1 satisfies n h_n = sum_k (k (t + 1) - n) f_k
h_{n-k}. In terms of M that is M_n = sum_{k=1..n} w_{n,k} D_k M_{n-k} with weights

    w_{n,k} = C(n, k) t^-k (k (t + 1)/n - 1),      sum_k w_{n,k} = 1 (all D = 1 gives all M = 1),

all >= 0 for n <= t + 1. The excess U_n = M_n - 1 >= 0 therefore obeys, without cancellation,

    U_n = sum_k w_{n,k} (D_k M_{n-k} - 1) = sum_k w_{n,k} D_k M_{n-k} (v_{n-k} + e_k c_{n-k}),

v = U/M, c = 1/M = 1 - v and e_k = 1 - 1/D_k: full relative precision of U at any t, t real.

For n > t + 1 the weights change sign; there t is small and the moments come from adding copies one
by one and doubling: for weights p and 1 - p, B = p A + (1 - p) A' has

    E[B^n] = sum_k C(n, k) p^k (1 - p)^(n-k) M_k M'_{n-k},    all positive, the excess too,
    M M' - 1 = M M' (v + c v').

Between integers t the logarithm is interpolated linearly in that range.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp import _special
from jaxdp._special import log1p

# Above this a logarithm counts as infinite (sums of two stay far from overflow).
LARGEST = 1e140
_SEGMENT = 64  # the first rows are computed on arrays of this length, then twice, ...


class Moments(NamedTuple):
    """log M_n, v_n = 1 - 1/M_n and c_n = 1/M_n for n = 0 .. size."""

    log: jax.Array
    excess: jax.Array
    inverse: jax.Array


def _log_factorials(size: int) -> jax.Array:
    return jnp.asarray(np.concatenate([[0.0], np.cumsum(np.log(np.arange(1.0, size + 1)))]))


def from_log_excess(log_excess: jax.Array) -> Moments:
    """The three readings of M = 1 + U from log U."""
    finite = jnp.minimum(log_excess, LARGEST)
    log = jnp.maximum(finite, 0.0) + log1p(jnp.exp(-jnp.abs(finite)))
    return Moments(log, jax.nn.sigmoid(finite), jax.nn.sigmoid(-finite))


def from_log(log: jax.Array) -> Moments:
    """The three readings of M from log M >= 0."""
    return Moments(jnp.minimum(log, LARGEST), -jnp.expm1(-log), jnp.exp(-log))


def _reversed_buffers(moments: Moments, log_factorial: jax.Array) -> jax.Array:
    """Rows (log M_j - log j!, v_j, c_j), entry j at index size - j, nothing beyond."""
    size = log_factorial.shape[0] - 1
    rows = jnp.stack([moments.log - log_factorial, moments.excess, moments.inverse])
    blank = jnp.stack([jnp.full(size + 1, -jnp.inf), jnp.zeros(size + 1), jnp.zeros(size + 1)])
    return jnp.concatenate([rows[:, ::-1], blank], axis=1)


def _exp_sum(exponents: jax.Array, factors: jax.Array) -> jax.Array:
    """log sum e^exponent factor, for factors >= 0."""
    top = lax.stop_gradient(jnp.max(exponents))
    total = jnp.sum(jnp.exp(exponents - top) * factors)
    some = total > 0.0
    return jnp.where(some, top + jnp.log(jnp.where(some, total, 1.0)), -jnp.inf)


def recurrence(log_d: jax.Array, t: jax.Array) -> Moments:
    """M_0 .. M_size of the average of t copies; right for n <= t + 1 (beyond: meaningless).

    Args:
      log_d: log D_p for p = 0 .. size, with D_0 = D_1 = 1.
      t: real, >= 1.
    """
    size = log_d.shape[0] - 1
    log_f = _log_factorials(size)
    orders = jnp.arange(size + 1, dtype=jnp.float64)
    base = from_log(log_d)
    g = jnp.where(orders >= 3, log_d - log_f - orders * jnp.log(t), -jnp.inf)
    start = Moments(*(jnp.zeros(size + 1).at[:2].set(x) for x in (0.0, 0.0, 1.0)))
    buffers = _reversed_buffers(start, log_f)

    # 32-bit indices: batched slices would not lower in a program without 64-bit integers
    def step(length, buffers, n):
        x = n.astype(jnp.float64)
        zero = jnp.zeros((), jnp.int32)
        window = lax.dynamic_slice(buffers, (zero, size - n), (3, length))
        log_m, v, c = window[0], window[1], window[2]
        # k = 1 and 2, which dominate at large t, with exact weights
        w1 = jnp.where(t + 1.0 >= x, (t + 1.0 - x) / t, 0.0)  # with its slope at n = t + 1
        w2 = jnp.maximum((x - 1.0) * (2.0 * (t + 1.0) - x), 0.0) / (2.0 * t * t)
        first = log_m[1] + log_f[n - 1]
        second = log_m[2] + log_f[n - 2] + log_d[2]
        factor = jnp.maximum(orders[:length] * ((t + 1.0) / x) - 1.0, 0.0)
        exponents = g[:length] + log_m + log_f[n]
        values = factor * (v + base.excess[:length] * c)
        exponents = exponents.at[:3].set(jnp.stack([-jnp.inf, first, second]))
        values = values.at[:3].set(jnp.stack([0.0, w1 * v[1], w2 * (v[2] + base.excess[2] * c[2])]))
        m = from_log_excess(_exp_sum(exponents, values))
        column = jnp.stack([m.log - log_f[n], m.excess, m.inverse])
        return lax.dynamic_update_slice(buffers, column[:, None], (zero, size - n)), None

    done, length = 2, min(_SEGMENT, size)
    while done <= size:
        rows = jnp.arange(done, length + 1, dtype=jnp.int32)
        buffers, _ = lax.scan(lambda b, n, length=length: step(length + 1, b, n), buffers, rows)
        done, length = length + 1, min(2 * length, size)
    log, excess, inverse = buffers[:, : size + 1][:, ::-1]
    near = excess < 0.5  # log M from U itself, which the sum with log n! would round
    log = jnp.where(near, -log1p(-jnp.where(near, excess, 0.0)), log + log_f)
    return Moments(jnp.minimum(log, LARGEST), excess, inverse)


def weighted(a: Moments, b: Moments, p: jax.Array) -> Moments:
    """The moments of p A + (1 - p) B, 0 < p < 1."""
    size = a.log.shape[0] - 1
    log_f = _log_factorials(size)
    orders = jnp.arange(size + 1, dtype=jnp.float64)
    buffers = _reversed_buffers(b, log_f)
    rest = log1p(-p)
    left = a.log - log_f + orders * (jnp.log(p) - rest)

    def row(n):
        window = lax.dynamic_slice(buffers, (jnp.zeros((), jnp.int32), size - n), (3, size + 1))
        exponents = left + window[0]
        log_excess = _exp_sum(exponents, a.excess + a.inverse * window[1])
        return log_excess + log_f[n] + n.astype(jnp.float64) * rest

    return from_log_excess(lax.map(row, jnp.arange(size + 1, dtype=jnp.int32), batch_size=16))


def by_doubling(log_d: jax.Array, t: jax.Array) -> Moments:
    """M_0 .. M_size for any t in [1, 2 size): integers by binary powering, real t between them."""
    size = log_d.shape[0] - 1
    bits = size.bit_length() + 1
    whole = jnp.floor(jnp.clip(lax.stop_gradient(t), 1.0, 2.0**bits - 1.0))
    one = from_log(log_d)

    def step(state, k):
        count, current = state
        bit = jnp.floor(whole / jnp.exp2(k))  # the leading digits down to the k-th
        doubled = lax.cond(
            bit >= 2.0, lambda m: weighted(m, m, jnp.asarray(0.5)), lambda m: m, current
        )
        count = jnp.where(bit >= 2.0, 2.0 * count, count)
        odd = bit > count
        added = lax.cond(
            odd, lambda m: weighted(m, one, count / (count + 1.0)), lambda m: m, doubled
        )
        return (jnp.where(odd, count + 1.0, count), added), None

    places = jnp.arange(bits - 1, -1, -1, dtype=jnp.float64)
    (_, below), _ = lax.scan(step, (jnp.asarray(1.0), one), places)
    above = weighted(below, one, whole / (whole + 1.0))
    share = t - whole
    log = (1.0 - share) * below.log + share * above.log
    log_excess = _special.log_expm1(jnp.where(log > 0.0, log, 1.0))
    return from_log_excess(jnp.where(log > 0.0, log_excess, -jnp.inf))


def average_log_moments(log_d: jax.Array, t: jax.Array, small: int) -> tuple[jax.Array, jax.Array]:
    """log M_n, n = 0 .. size, and whether each is known: all n <= t + 1, and all n <= small.

    Relative errors of U_n: a few units of 2^-53 a step from the weights, and the rounding of the
    exponents, whose size along a chain of terms adds up to log n! + n log t + log D_n at most;
    the values are moved up by that much, so that they are upper bounds.
    """
    size = log_d.shape[0] - 1
    moments = recurrence(log_d, t)
    orders = jnp.arange(size + 1, dtype=jnp.float64)
    known = orders <= t + 1.0
    small = min(small, size)
    if small >= 2:
        few = lax.cond(
            lax.stop_gradient(t) + 1.0 < small,
            lambda: by_doubling(log_d[: small + 1], t),
            lambda: Moments(*(x[: small + 1] for x in moments)),
        )
        inside = known[: small + 1]
        moments = Moments(
            *(
                x.at[: small + 1].set(jnp.where(inside, x[: small + 1], y))
                for x, y in zip(moments, few, strict=True)
            )
        )
        known = known | (orders <= small)
    size_of_terms = _log_factorials(size) + orders * jnp.log(t) + log_d
    slack = 2.0**-52 * (16.0 * orders + 4.0 * jnp.minimum(size_of_terms, 1e6))
    infinite = (log_d >= LARGEST) | (moments.log >= LARGEST)
    log = jnp.where(infinite, jnp.inf, moments.log + slack * moments.excess)
    return log + 2.0**-51 * jnp.abs(jnp.where(infinite, 0.0, log)), known
