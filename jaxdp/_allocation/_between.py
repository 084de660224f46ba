r"""Moments of an average between those of integer order.

Let n <= s <= n + 1, beta = s - n, and nu the law of A with density A^n/M_n. With its mean
mu = M_{n+1}/M_n and Y = A/mu,

    E[A^s] = M_n^(1-beta) M_{n+1}^beta E_nu[Y^beta],                E_nu[Y^beta] <= 1,

which is the chord of log M. Better: E_nu Y = 1, and M_{n+2}, M_{n+3} give v = E Y^2 - 1 and
r = E Y^3. The cubic that touches y^beta at two points 0 < y < z is above it, as the fourth
derivative is negative, so that its expectation is an upper bound: with the points of Gauss's rule
for these moments, 1 + d for d^2 - (kappa/v) d - v = 0, kappa = r - 1 - 3 v, it is what the rule
gives, the least upper bound that the four moments allow.

The difference of the two has the powers 0, beta, 1, 2, 3 and four zeros on the half-line, so that
(Descartes' rule of signs, for real exponents) the signs of its coefficients alternate: that of y^2
is negative, that of y^3 positive. So v may be rounded down and r up.

What is subtracted, H = sum w ((1 + beta d) - (1 + d)^beta) >= 0, has a factor beta (1 - beta).
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._special import log1p, relative_expm1, relative_log1p

_NEAR = 0.05  # d, and beta d, from which on (1 + d)^beta is not summed as a series
_TERMS = 12
_LARGEST = 600.0  # exponents of moments that are formed
_SHARE = 1.0 - 2.0**-36  # of H, roundings taken off: each term is off by some 2^-48 of it


def _allowed(log_moment: jax.Array, order: jax.Array, log_mean: jax.Array, t: jax.Array):
    """What a logarithm of `_series.average_log_moments`, or what it is made of, may be off by.

    It was raised by half of that; the moments of one step are known to 4e-13. (Their logarithms are
    at most log M_n + (n - 1) log t, and log n! at most n log n.)
    """
    size = jnp.abs(log_moment) + order * jnp.abs(log_mean)
    of_terms = order * (jnp.log(order) + 2.0 * jnp.log(t)) + size
    slack = 2.0**-51 * (16.0 * order + 4.0 * jnp.minimum(of_terms, 1e6))
    return slack * jnp.minimum(size, 1.0) + 2.0**-39 * size


def _gap(d: jax.Array, log: jax.Array, share: jax.Array, side: int) -> jax.Array:
    """(1 + beta d - (1 + d)^beta)/beta >= 0, d > -1, log = log(1 + d), rounded to that side.

    beta in [0, 1], or beta < 0. (Far from 0 it is a difference, and little of it is left near
    beta = 1.)
    """
    near = jnp.abs(d) * jnp.maximum(1.0, jnp.abs(share)) < _NEAR
    small = jnp.where(near, d, 0.0)
    series = jnp.zeros_like(d)
    for k in range(_TERMS, 2, -1):
        series = (k - 1.0 - share) / k * small * (1.0 - series)
    series = 0.5 * (1.0 - share) * small * small * (1.0 - series)
    log = jnp.where(near, 1.0, log)
    product = log * relative_expm1(share * log)
    rounding = lax.stop_gradient(2.0**-48 * (jnp.abs(d) + jnp.abs(product)))
    return jnp.where(near, series, jnp.maximum(d - product + side * rounding, 0.0))


def lack(log_moments: jax.Array, index: jax.Array, share: jax.Array, t: jax.Array) -> jax.Array:
    """At most -log E_nu[Y^beta]/beta, at beta = share in [0, 1] and n = index; 0 if unknown."""
    place = index + jnp.arange(4, dtype=jnp.int32)
    order = place.astype(jnp.float64)
    own = log_moments[jnp.minimum(place, log_moments.shape[0] - 1)]
    some = (place[-1] < log_moments.shape[0]) & jnp.all(jnp.isfinite(own))
    l0, l1, l2, l3 = own = jnp.where(some, own, order * (order - 1.0))
    e0, e1, e2, e3 = lax.stop_gradient(_allowed(own, order, log_moments[1], t))
    log_second = l2 - 2.0 * l1 + l0 - (e2 + 2.0 * e1 + e0)
    log_third = l3 - 3.0 * l1 + 2.0 * l0 + (e3 + 3.0 * e1 + 2.0 * e0)
    some &= (log_second > 0.0) & (log_third < _LARGEST)
    v = jnp.expm1(jnp.where(some, log_second, 1.0))
    skew = (jnp.expm1(jnp.where(some, log_third, 3.0)) - 3.0 * v) / v
    some &= jnp.abs(skew) < 1e100
    skew = jnp.where(some, skew, 0.0)
    far = 0.5 * (jnp.abs(skew) + jnp.sqrt(skew * skew + 4.0 * v))
    right = jnp.where(skew >= 0.0, far, v / far)
    left = -v / right
    some &= left > -1.0 + 2.0**-20
    left = jnp.where(some, left, -0.5)
    at_left, at_right = (_gap(d, log1p(d), share, -1) for d in (left, right))
    subtracted = (right * at_left - left * at_right) / (right - left)
    subtracted = jnp.where(some, _SHARE * subtracted, 0.0)
    return subtracted * relative_log1p(-jnp.minimum(share * subtracted, 0.9))


def inverse(log_second: jax.Array, least: jax.Array, b: jax.Array) -> jax.Array:
    """At least log E[A^-b]/(b (b + 1)), for E A = 1, log E A^2 = log_second and A >= e^least.

    The parabola that meets x^-b at the least A and touches it at a point y is above it from there
    on, as the third derivative is negative: the two values that have these two moments,
    y = 1 + v/(1 - a), are the worst. (Powers -b, 0, 1, 2 and three zeros: the sign of x^2 is
    positive, and v may be rounded up; a smaller a allows more laws.)
    """
    # (A power that overflows would have no slope, chosen or not.)
    some = (jnp.maximum(b, 1.0) * least > -_LARGEST) & (least < 0.0) & (log_second < _LARGEST)
    b = jnp.where(some, b, 1.0)
    log_low = jnp.where(some, least * (1.0 + 2.0**-40), -1.0)
    low = jnp.expm1(log_low)
    v = jnp.expm1(jnp.where(some, log_second, 1.0)) * (1.0 + 2.0**-36)
    high = v / -low
    at_low = high / (high - low)
    at_ends = _gap(low, log_low, -b, 1), _gap(high, log1p(high), -b, 1)
    per_b = at_low * at_ends[0] + (1.0 - at_low) * at_ends[1]
    rate = per_b * relative_log1p(b * per_b) / (1.0 + b)
    return jnp.where(some, rate * (1.0 + 2.0**-36), jnp.inf)
