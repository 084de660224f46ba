"""Modified Bessel functions of real order, in log space, differentiable in order and argument."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special
from jaxdp._special_gamma import EULER_GAMMA, log_gamma, log_gamma_ratio

_DEBYE_TERMS = 14
DEBYE_FROM = 50.0  # sqrt(nu^2 + x^2) from which the uniform expansion reaches 1e-16
_SERIES_TERMS = 90


def _debye_polynomials() -> np.ndarray:
    """Coefficients in p^2 of U_k(p)/p^k, one row each, exactly (DLMF 10.41.9).

    U_{k+1} = p^2 (1 - p^2) U_k'/2 + (1/8) int_0^p (1 - 5 t^2) U_k dt.
    """
    polynomial, table = {0: Fraction(1)}, np.zeros((_DEBYE_TERMS, _DEBYE_TERMS))
    for k in range(_DEBYE_TERMS):
        for i in range(k + 1):
            table[k, i] = float(polynomial.get(k + 2 * i, 0))
        following: dict[int, Fraction] = {}
        for power, c in polynomial.items():
            for shift, factor in (
                (1, Fraction(power, 2) + Fraction(1, 8 * (power + 1))),
                (3, -Fraction(power, 2) - Fraction(5, 8 * (power + 3))),
            ):
                following[power + shift] = following.get(power + shift, Fraction(0)) + c * factor
        polynomial = following
    return table


_DEBYE = _debye_polynomials()[1:]


def log_debye_series(w: jax.Array, p2: jax.Array) -> jax.Array:
    """log(1 + sum_{k >= 1} U_k(p)/nu^k), p = nu/w, 1/nu^k = (p/w)^k / p^k; -w: (-nu)^k."""

    def row(k, total):
        coefficients = jnp.asarray(_DEBYE, jnp.float64)[_DEBYE_TERMS - 2 - k]
        value = jnp.zeros_like(p2)
        for i in range(_DEBYE_TERMS - 1, -1, -1):
            value = coefficients[i] + p2 * value
        return (value + total) / w

    zero = jnp.zeros_like(w)
    return jnp.log1p(jax.lax.fori_loop(0, _DEBYE_TERMS - 1, row, zero))


def log_power_series(nu: jax.Array, x: jax.Array) -> jax.Array:
    """log sum_m (x^2/4)^m/(m! (nu + 1)_m), a sum of positive terms."""
    quarter = 0.25 * x * x

    def term(i, total):
        m = 1.0 * _SERIES_TERMS - i
        return (1.0 + total) * quarter / (m * (nu + m))

    zero = jnp.zeros_like(nu * quarter)
    return jnp.log1p(jax.lax.fori_loop(0, _SERIES_TERMS, term, zero))


@_special.traced_once
def log_bessel_i(nu: jax.Array, x: jax.Array) -> jax.Array:
    """log(e^{-x} I_nu(x)) for nu >= 0, x > 0.

    Debye's uniform expansion (DLMF 10.41.3) where w = sqrt(nu^2 + x^2) >= 50,

        e^{-x} I_nu(x) = exp(nu^2/(w + x) - nu asinh(nu/x)) / sqrt(2 pi w) sum_k U_k(nu/w)/nu^k,

    and the power series, a sum of positive terms, below.
    """
    nu, x = jnp.broadcast_arrays(nu, x)
    w = jnp.sqrt(nu * nu + x * x)
    far = w >= DEBYE_FROM
    nu_far, x_far = jnp.where(far, nu, 0.0), jnp.where(far, x, DEBYE_FROM)
    w_far = jnp.where(far, w, DEBYE_FROM)
    series = log_debye_series(w_far, (nu_far / w_far) ** 2)
    exponent = nu_far * (nu_far / (w_far + x_far) - jnp.arcsinh(nu_far / x_far))
    uniform = exponent - 0.5 * jnp.log(w_far) - _special.LOG_SQRT_2PI + series
    order, y = jnp.where(far, 0.0, nu), jnp.where(far, 1.0, x)
    power = order * (jnp.log(y) - _special.LOG_2) - y - log_gamma(order + 1.0)
    return jnp.where(far, uniform, power + log_power_series(order, y))


@_special.traced_once
def log_bessel_i_ratio(nu: jax.Array, d: jax.Array, x: jax.Array) -> jax.Array:
    """log(I_nu(x)/I_{nu+d}(x)) >= 0 for nu, d >= 0, x > 0, without subtracting large logarithms.

    The exponents of Debye's expansion at nu and nu + d = v differ by

        d asinh(v/x) - d (nu + v)/(w + w') + nu asinh(d (nu + v)/(v w + nu w')),

    w = sqrt(nu^2 + x^2), w' = sqrt(v^2 + x^2).
    """
    nu, d, x = jnp.broadcast_arrays(nu, d, x)
    far = jnp.sqrt(nu * nu + x * x) >= DEBYE_FROM
    low, y = jnp.where(far, nu, 0.0), jnp.where(far, x, DEBYE_FROM)
    high = low + d
    w_low, w_high = jnp.sqrt(low * low + y * y), jnp.sqrt(high * high + y * y)
    both = low + high
    cross = jnp.maximum(high * w_low + low * w_high, 1e-300)
    exponent = d * jnp.arcsinh(high / y) - d * both / (w_low + w_high)
    exponent = exponent + low * jnp.arcsinh(d * both / cross)
    series = log_debye_series(
        jnp.stack([w_low, w_high]), jnp.stack([(low / w_low) ** 2, (high / w_high) ** 2])
    )
    uniform = exponent + 0.25 * jnp.log1p(d * both / (w_low * w_low)) + series[0] - series[1]
    order, z = jnp.where(far, 0.0, nu), jnp.where(far, 1.0, x)
    terms = log_power_series(jnp.stack([order, order + d]), z)
    power = d * (_special.LOG_2 - jnp.log(z)) + log_gamma_ratio(order + 1.0, d)
    return jnp.where(far, uniform, power + terms[0] - terms[1])


_NODES = 128
_DROP = 42.0  # the integrand is followed until it has fallen by e^-42
SMALL = -18.0  # log x below which terms of relative size x^2 do not count


def log_bessel_k(nu: jax.Array, log_x: jax.Array) -> jax.Array:
    """log(e^x K_nu(x)) for real nu and x = e^log_x > 0 (x may underflow).

    The trapezoidal rule on K_nu(x) = int_0^inf e^{-x cosh t} cosh(nu t) dt (DLMF 10.32.9), whose
    even integrand falls double-exponentially: the window is centred on the saddle
    t_0 = asinh(nu/x), where with w = sqrt(nu^2 + x^2) the exponent has dropped at t_0 + d by
    w (cosh d - 1) + nu (sinh d - d). For tiny x, DLMF 10.27.4 and 10.25.2:
    2 K_nu(x) = Gamma(nu) (2/x)^nu + Gamma(-nu) (2/x)^-nu.
    """
    nu = jnp.abs(nu)
    nu, log_x = jnp.broadcast_arrays(nu, log_x)
    tiny = log_x < SMALL
    return jnp.where(
        tiny, _small_argument(nu, jnp.where(tiny, log_x, SMALL)), _integral(nu, log_x, tiny)
    )


def _integral(nu, log_x, tiny):
    x = jnp.exp(jnp.where(tiny, 0.0, log_x))
    centre, order = jax.lax.stop_gradient((x, nu))
    w = jnp.sqrt(order * order + centre * centre)
    saddle = jnp.arcsinh(order / centre)
    right = jnp.arccosh(1.0 + _DROP / w)
    y = _DROP / jnp.maximum(order, 1e-300)
    left = jnp.minimum(
        jnp.arccosh(1.0 + _DROP * (w + order) / (centre * centre)), y + jnp.sqrt(2.0 * y)
    )
    start = jnp.maximum(saddle - left, 0.0)
    step = (saddle + right - start) / _NODES
    index = jnp.arange(_NODES + 1, dtype=jnp.float64)
    t = start[..., None] + step[..., None] * index
    # half weight at 0, where the even integrand starts; elsewhere the ends do not count
    weight = jnp.where(index == 0.0, 0.5, 1.0)
    exponent = nu[..., None] * t - 2.0 * x[..., None] * jnp.sinh(0.5 * t) ** 2
    even = 0.5 * (1.0 + jnp.exp(-2.0 * nu[..., None] * t))
    return jnp.log(step) + _special.logsumexp(exponent + jnp.log(weight * even), axis=-1)


def _small_argument(nu, log_x):
    """log(e^x K_nu(x)), log x < -18; Gamma(1 + nu) and Gamma(1 - nu) kept apart from their sum."""
    a = _special.LOG_2 - log_x
    single = nu > 0.95  # then (x/2)^{2 nu} is below 1e-15
    order = jnp.where(single, 0.5, nu)
    flat = order < 1e-9
    safe = jnp.where(flat, 1e-9, order)
    both = 0.5 * (log_gamma(1.0 + safe) + log_gamma(1.0 - safe))
    half = 0.5 * log_gamma_ratio(1.0 - safe, 2.0 * safe)
    # sinh(nu a) cosh(half)/nu + cosh(nu a) sinh(half)/nu = sinh(nu a + half)/nu
    y = safe * a + half
    value = both + y + _special.log1mexp(-2.0 * y) - jnp.log(2.0 * safe)
    value = jnp.where(flat, jnp.log(jnp.where(flat, a - EULER_GAMMA, 1.0)), value)
    large = jnp.where(single, nu, 1.0)
    leading = log_gamma(large) + large * a - _special.LOG_2
    return jnp.where(single, leading, value) + jnp.exp(log_x)
