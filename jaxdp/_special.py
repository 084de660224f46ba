"""Special functions in log space, with full relative accuracy in both tails.

Everything about the normal law is written through two positive, smooth functions of one variable,
the Mills ratio and minus its derivative,

    m(z) = Phi(-z) / phi(z) = int_0^inf exp(-z t - t^2/2) dt,
    g(z) = 1 - z m(z)       = int_0^inf t exp(-z t - t^2/2) dt,        m' = -g,

each evaluated for z >= -1 by one polynomial (no cancellation, no branch). All functions
assume float64 inputs; they only use primitives that XLA lowers in a 32-bit program.

What must never change: a result is a relative-accuracy result. Nothing here may subtract two
nearly equal numbers to get it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

LOG_SQRT_2PI = 0.9189385332046727  # log(sqrt(2 pi))
LOG_2 = 0.6931471805599453

# Polynomials in t = (u - 5) / (u + 5), u = z + 1 >= 0, for (u + 1/2) m(z) and (u + 1/2)^2 g(z).
# Both functions stay within [1, 1.9] and their coefficients sum to 3.4 and 7 in absolute value,
# so Horner's rule keeps relative accuracy. From Chebyshev series computed with 60 digits and
# truncated at 2e-17; lowest power first.
_MILLS_POLYNOMIAL = (
    1.3015881060245837,
    -0.5699519298810457,
    0.440891356439356,
    -0.22033428058115692,
    -0.011110320253608185,
    0.17313005183508878,
    -0.22850217182040392,
    0.1947856239403354,
    -0.12134346595252284,
    0.054129495441092135,
    -0.01432481090831711,
    -0.0004325432285037307,
    0.00219056002495767,
    -0.000714974665911237,
    -0.0001186030733444683,
    0.00014539865201519846,
    -1.2051233145772279e-05,
    -2.2847118886541813e-05,
    5.421098548574965e-06,
    3.5636689101434496e-06,
    -1.2802164865557041e-06,
    -6.025746640020429e-07,
    2.4638390508321044e-07,
    1.0623075648763853e-07,
    -3.6645931429157274e-08,
    -1.6030467804864443e-08,
    3.0583328481541483e-09,
    1.3865141880121182e-09,
)
_MILLS_SLOPE_POLYNOMIAL = (
    1.615061667459159,
    -1.1119276149524437,
    0.6361428222396629,
    0.1348103605980896,
    -0.7891133696859489,
    0.9937536682942338,
    -0.7259855104576997,
    0.24809094714450972,
    0.1272154743090436,
    -0.2552039778691035,
    0.19319172092992434,
    -0.07982767437955365,
    0.0077902134126761405,
    0.011097774852119905,
    -0.005666792569526121,
    -0.0002774955958669096,
    0.001163737668529976,
    -0.00020246286367708782,
    -0.0001968551013668863,
    6.884902790578064e-05,
    3.360118586779814e-05,
    -1.694065729103131e-05,
    -6.257420666633164e-06,
    3.704210854304729e-06,
    1.1979302661508365e-06,
    -7.100006948928373e-07,
    -1.9025972301515404e-07,
    1.0406993592711481e-07,
    1.682276321418718e-08,
    -8.341980082194184e-09,
)
_GAUSS_NODES, _GAUSS_WEIGHTS = (a.tolist() for a in np.polynomial.legendre.leggauss(5))


def traced_once(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays that is traced once for those of a shape, by all who call it."""
    return jax.jit(function, inline=True)


def _horner(coefficients: tuple[float, ...], t: jax.Array) -> jax.Array:
    """Unrolled, so that XLA fuses it into one loop over the array."""
    total = jnp.full_like(t, coefficients[-1])
    for c in coefficients[-2::-1]:
        total = total * t + c
    return total


def _polynomial_argument(z: jax.Array) -> tuple[jax.Array, jax.Array]:
    u = z + 1.0
    finite = jnp.where(jnp.isinf(u), 1e300, u)  # m(inf) = g(inf) = 0 without inf/inf
    return finite, (finite - 5.0) / (finite + 5.0)


@jax.custom_jvp
def mills(z: jax.Array) -> jax.Array:
    """Mills ratio m(z) = Phi(-z)/phi(z) for z >= -1, to a few units in the last place."""
    u, t = _polynomial_argument(z)
    return _horner(_MILLS_POLYNOMIAL, t) / (u + 0.5)


@jax.custom_jvp
def mills_slope(z: jax.Array) -> jax.Array:
    """g(z) = -m'(z) = 1 - z m(z) for z >= -1, without the cancellation of that difference."""
    u, t = _polynomial_argument(z)
    return _horner(_MILLS_SLOPE_POLYNOMIAL, t) / (u + 0.5) ** 2


@mills.defjvp
def _mills_jvp(primals, tangents):
    (z,), (dz,) = primals, tangents
    return mills(z), -mills_slope(z) * dz


@mills_slope.defjvp
def _mills_slope_jvp(primals, tangents):
    (z,), (dz,) = primals, tangents
    slope = mills_slope(z)
    return slope, (z * slope - mills(z)) * dz


def mills_drop(
    x: jax.Array, width: jax.Array, start: jax.Array | None = None, end: jax.Array | None = None
) -> jax.Array:
    """m(x) - m(x + width) > 0 for x >= -1, width >= 0, with full relative accuracy.

    start = m(x) and end = m(x + width) may be given where they are known.

    Wide steps: the difference loses at most a factor of about 35. Narrow ones: the integral of the
    positive g over the step, by Gauss-Legendre quadrature (g is entire, and the step is short
    against the scale x + 2 on which it varies: 5 nodes reach 1e-16).
    """
    narrow = width <= 0.06 * (x + 2.0)
    short = jnp.where(narrow, width, 0.0)
    # One program for all nodes: the polynomial is long.
    nodes = np.reshape(_GAUSS_NODES, (-1,) + (1,) * jnp.ndim(short))
    slopes = mills_slope(x + short * (0.5 + 0.5 * nodes))
    integral = sum(0.5 * w * slope for w, slope in zip(_GAUSS_WEIGHTS, slopes, strict=True))
    start = mills(x) if start is None else start
    end = mills(x + width) if end is None else end
    return jnp.where(narrow, short * integral, start - end)


def log_normal_density(z: jax.Array) -> jax.Array:
    """log phi(z)."""
    return -0.5 * z * z - LOG_SQRT_2PI


@jax.custom_jvp
def log_ndtr(z: jax.Array) -> jax.Array:
    """log Phi(z), full relative accuracy in both tails."""
    magnitude = jnp.abs(z)
    log_tail = log_normal_density(magnitude) + jnp.log(mills(magnitude))
    return jnp.where(z < 0.0, log_tail, log1p(-jnp.exp(log_tail)))


@log_ndtr.defjvp
def _log_ndtr_jvp(primals, tangents):
    (z,), (dz,) = primals, tangents
    value = log_ndtr(z)
    negative = z < 0.0
    tail = 1.0 / mills(jnp.where(negative, -z, 0.0))  # phi/Phi: no exponential, no overflow
    bulk = jnp.exp(
        log_normal_density(jnp.where(negative, 0.0, z)) - jnp.where(negative, 0.0, value)
    )
    return value, jnp.where(negative, tail, bulk) * dz


@jax.custom_jvp
def log_ndtr_interval(lo: jax.Array, hi: jax.Array) -> jax.Array:
    """log(Phi(hi) - Phi(lo)) for lo <= hi (infinite ends allowed), full relative accuracy.

    Reflected so that |lo| <= hi. With E = (hi^2 - lo^2)/2 >= 0 the mass is
    phi(lo) [m(lo) - m(hi) + (1 - e^-E) m(hi)], a sum of positive terms; when lo < -1 it is one
    minus two small tails instead.
    """
    reflect = lo + hi < 0.0
    x = jnp.where(reflect, -hi, lo)
    y = jnp.where(reflect, -lo, hi)
    upper_tail = x >= -1.0
    a = jnp.where(upper_tail, x, 0.0)
    a = jnp.where(jnp.isinf(a), 1e300, a)
    width = jnp.where(jnp.isinf(y), 1e300, jnp.maximum(y - a, 0.0))
    gap = jnp.where(jnp.isinf(y), jnp.inf, 0.5 * width * (jnp.minimum(y, 1e300) + a))
    # Where the mass is one minus two tails, the same places hold the ends of those.
    c, d = jnp.where(upper_tail, a, -x), jnp.where(upper_tail, a + width, y)
    at_c, at_d = mills(jnp.stack([c, d]))
    drop = mills_drop(a, jnp.where(upper_tail, width, 0.0), at_c, at_d)
    tail = log_normal_density(a) + jnp.log(
        jnp.where(upper_tail & (width > 0.0), drop - jnp.expm1(-gap) * at_d, 0.0)
    )
    outside = jnp.exp(log_normal_density(c)) * at_c + jnp.exp(log_normal_density(d)) * at_d
    outside = jnp.where(upper_tail, 0.0, outside)
    return jnp.where(upper_tail, tail, log1p(-outside))


@log_ndtr_interval.defjvp
def _log_ndtr_interval_jvp(primals, tangents):
    (lo, hi), (dlo, dhi) = primals, tangents
    value = log_ndtr_interval(lo, hi)
    empty = jnp.isneginf(value)
    base = jnp.where(empty, 0.0, value)

    def slope(z, dz):
        ratio = jnp.exp(log_normal_density(z) - base)
        # dz of an infinite end may be inf or nan: its density is 0 and it does not count
        return jnp.where(empty | jnp.isinf(z), 0.0, ratio) * jnp.where(jnp.isinf(z), 0.0, dz)

    return value, slope(hi, dhi) - slope(lo, dlo)


@jax.custom_jvp
def log_ndtri(log_probability: jax.Array) -> jax.Array:
    """The z with log Phi(z) = log_probability (<= 0): -inf at -inf, +inf at 0, nan above 0.

    Reflected into the lower tail, then Newton's method on the concave log Phi, from the left,
    where it converges monotonically.
    """
    y = jnp.asarray(log_probability, jnp.float64)
    upper = y > -LOG_2
    inside = (y < 0.0) & ~jnp.isneginf(y)
    safe = jnp.where(inside, y, -1.0)
    tail = jnp.where(upper & inside, log1mexp(safe), safe)
    # Phi(-z) <= exp(-z^2/2)/2: the start is to the left of the root
    z = -jnp.sqrt(jnp.maximum(-2.0 * (tail + LOG_2), 0.0))
    for _ in range(6):
        z = z - (log_ndtr(z) - tail) * mills(-jnp.minimum(z, 0.0))
    z = jnp.where(upper, -z, z)
    z = jnp.where(jnp.isneginf(y), -jnp.inf, jnp.where(y == 0.0, jnp.inf, z))
    return jnp.where(y > 0.0, jnp.nan, z)


@log_ndtri.defjvp
def _log_ndtri_jvp(primals, tangents):
    (y,), (dy,) = primals, tangents
    z = log_ndtri(y)
    lower = z < 0.0
    tail = mills(jnp.where(lower, -z, 0.0))
    bulk = jnp.exp(y - log_normal_density(jnp.where(lower, 0.0, z)))
    return z, jnp.where(lower, tail, bulk) * dy


def log1p(x: jax.Array) -> jax.Array:
    """log(1 + x) to a few ulps for every x.

    XLA's own is off by up to 120 ulps between about -0.42 and -0.34 (jaxlib 0.10 on a CPU); there,
    and below, the logarithm of the sum is as good as that of any number.
    """
    x = jnp.asarray(x)
    low = x < -0.25
    direct = jnp.log(1.0 + jnp.where(low, x, 0.0))
    return jnp.where(low, direct, jnp.log1p(jnp.where(low, 0.0, x)))


def expm1(x: jax.Array) -> jax.Array:
    """e^x - 1 to a few ulps for every x, and its derivative e^x as well.

    (JAX takes the derivative for the value plus 1: all its digits are lost below about -37.)
    """
    x = jnp.asarray(x)
    low = x < -1.0
    direct = jnp.exp(jnp.where(low, x, -1.0)) - 1.0
    return jnp.where(low, direct, jnp.expm1(jnp.where(low, 0.0, x)))


_ROUNDED = 2.0**-30  # next to 0, of a difference of numbers up to some thousands


def log1mexp(x: jax.Array) -> jax.Array:
    """log(1 - e^x) for x <= 0 (-inf at 0), relative accuracy at both ends, finite gradients.

    A little above 0 is 0: a compiler may work x out twice, once for the condition that it is
    negative, and round each copy otherwise.
    """
    x = jnp.asarray(x, jnp.float64)
    inside = x < 0.0
    safe = jnp.where(inside, x, -1.0)
    near = safe > -LOG_2
    value = jnp.where(
        near,
        jnp.log(-jnp.expm1(jnp.where(near, safe, -1.0))),
        log1p(-jnp.exp(jnp.where(near, -1.0, safe))),
    )
    return jnp.where(inside, value, jnp.where(x <= _ROUNDED, -jnp.inf, jnp.nan))


def log_sub_exp(a: jax.Array, b: jax.Array) -> jax.Array:
    """log(e^a - e^b) for a >= b; -inf where they are equal or both -inf; nan where a < b."""
    a, b = jnp.asarray(a, jnp.float64), jnp.asarray(b, jnp.float64)
    gap = b - jnp.where(jnp.isneginf(a), 0.0, a)
    return jnp.where(
        jnp.isneginf(b), a, jnp.where(a == b, -jnp.inf, a + log1mexp(jnp.where(a == b, -1.0, gap)))
    )


def log_expm1(x: jax.Array) -> jax.Array:
    """log(e^x - 1) for x >= 0; large x does not overflow."""
    return x + log1mexp(-jnp.asarray(x, jnp.float64))


def relative_expm1(x: jax.Array) -> jax.Array:
    """(e^x - 1)/x, equal to 1 at 0, with a finite gradient there."""
    small = jnp.abs(x) < 1e-5
    safe = jnp.where(small, 1.0, x)
    return jnp.where(small, 1.0 + 0.5 * x * (1.0 + x / 3.0), jnp.expm1(safe) / safe)


def relative_log1p(x: jax.Array) -> jax.Array:
    """log(1 + x)/x, equal to 1 at 0, with a finite gradient there."""
    small = jnp.abs(x) < 1e-5
    safe = jnp.where(small, 1.0, x)
    return jnp.where(small, 1.0 - 0.5 * x * (1.0 - x / 1.5), log1p(safe) / safe)


def exp_divided_difference(a: jax.Array, b: jax.Array) -> jax.Array:
    """exp[0, a, b] > 0, the second divided difference of the exponential (1/2 at a = b = 0).

    Near 0 its Taylor series sum_k h_k(a, b)/(k + 2)!, with h_k the complete homogeneous
    polynomial; elsewhere (e^b E(a - b) - E(b))/a for |a| >= |b|, E(x) = (e^x - 1)/x, which is
    free of cancellation also where a meets b.
    """
    a, b = jnp.where(jnp.abs(a) >= jnp.abs(b), a, b), jnp.where(jnp.abs(a) >= jnp.abs(b), b, a)
    near = jnp.abs(a) <= 1.0
    p, q = jnp.where(near, a, 0.0), jnp.where(near, b, 0.0)
    series = homogeneous = power = jnp.ones_like(p)
    factorial = 2.0
    series = series / factorial
    for k in range(1, 17):
        power = power * q
        homogeneous = p * homogeneous + power
        factorial *= k + 2
        series = series + homogeneous / factorial
    c, d = jnp.where(near, 2.0, a), jnp.where(near, 1.0, b)
    direct = (jnp.exp(d) * relative_expm1(c - d) - relative_expm1(d)) / c
    return jnp.where(near, series, direct)


def log_excess(a: jax.Array, b: jax.Array) -> jax.Array:
    """`log_sub_exp` for a > b, else -inf."""
    some = a > b
    value = log_sub_exp(jnp.where(some, a, 0.0), jnp.where(some, b, -1.0))
    return jnp.where(some, value, -jnp.inf)


def logsumexp(values: ArrayLike, axis: int | None = None) -> jax.Array:
    """log(sum(exp(values))) with -inf entries allowed: no nan in value or gradient."""
    values = jnp.asarray(values, jnp.float64)
    top = jax.lax.stop_gradient(jnp.max(values, axis=axis, keepdims=True))
    top = jnp.where(jnp.isfinite(top), top, 0.0)
    total = jnp.sum(jnp.exp(values - top), axis=axis, keepdims=True)
    empty = total == 0.0
    result = jnp.where(empty, -jnp.inf, jnp.log(jnp.where(empty, 1.0, total)) + top)
    return jnp.squeeze(result) if axis is None else jnp.squeeze(result, axis)
