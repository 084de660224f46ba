"""One-step laws for the engine's tests, and their exact composed values by mpmath."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np

from jaxdp import _special
from jaxdp._law import Term


def gaussian(mu):
    def masses(lo, hi):
        # Infinite thresholds times a parameter have no reverse-mode derivative: 1e3 deviations do.
        far = 1e3 * jax.lax.stop_gradient(mu) + 1e3
        a, b = jnp.clip(lo, -far, far) / mu, jnp.clip(hi, -far, far) / mu
        return (
            _special.log_ndtr_interval(a + mu / 2, b + mu / 2),
            _special.log_ndtr_interval(a - mu / 2, b - mu / 2),
        )

    return masses


def sampled_gaussian(sigma, q, count):
    base = gaussian(1.0 / sigma)

    def unsampled(loss):
        ordinary = jnp.isfinite(loss)
        x = jnp.expm1(jnp.where(ordinary, loss, 0.0)) / q
        inside = x > -1.0
        value = jnp.where(inside, jnp.log1p(jnp.where(inside, x, 0.0)), -jnp.inf)
        return jnp.where(ordinary, value, loss)

    def masses(lo, hi):
        log_q, log_p = base(unsampled(lo), unsampled(hi))
        some = (log_q > -jnp.inf) & (log_p > -jnp.inf)
        mixed = jnp.logaddexp(
            jnp.log1p(-q) + jnp.where(some, log_q, 0.0), jnp.log(q) + jnp.where(some, log_p, 0.0)
        )
        return jnp.where(some, log_q, -jnp.inf), jnp.where(some, mixed, -jnp.inf)

    return Term(masses, count)  # no atom at its lowest loss


def _log(x):
    return jnp.where(x > 0.0, jnp.log(jnp.where(x > 0.0, x, 1.0)), -jnp.inf)


def randomized_response(epsilon0, count):
    def masses(lo, hi):
        up, down = (lo < epsilon0) & (epsilon0 <= hi), (lo < -epsilon0) & (-epsilon0 <= hi)
        high, low = 1.0 / (1.0 + jnp.exp(-epsilon0)), 1.0 / (1.0 + jnp.exp(epsilon0))
        return _log(up * low + down * high), _log(up * high + down * low)

    return Term(masses, count, support=(-epsilon0, epsilon0))


def laplace(x, count):
    """Loss 2 z - x, z exponential(1) under Q, kept in [-x, x]: atoms at both ends."""

    def masses(lo, hi):
        a, b = jnp.clip(lo, -x, x), jnp.clip(hi, -x, x)
        # Between the ends Q has density e^{-(l + x) / 2} / 4, P has e^l times it.
        between = -jnp.expm1(-(b - a) / 2) / 2
        top, bottom = (lo < x) & (x <= hi), (lo < -x) & (-x <= hi)
        q = jnp.exp(-(a + x) / 2) * between + top * jnp.exp(-x) / 2 + bottom * 0.5
        p = jnp.exp((b - x) / 2) * between + top * 0.5 + bottom * jnp.exp(-x) / 2
        return _log(q), _log(p)

    return Term(masses, count, support=(-x, x))


def gaussian_log_delta(mu, epsilon):
    with mp.workdps(60):
        mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
        value = mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)
        return float(mp.log(value))


def randomized_response_log_delta(epsilon0, count, epsilon):
    with mp.workdps(60):
        e0, e = mp.mpf(epsilon0), mp.mpf(epsilon)
        p = 1 / (1 + mp.exp(-e0))
        total = mp.mpf(0)
        for k in range(count + 1):
            loss = (2 * k - count) * e0
            if loss > e:
                mass = mp.binomial(count, k) * p**k * (1 - p) ** (count - k)
                total += mass * (1 - mp.exp(e - loss))
        return float(mp.log(total))


def laplace_pair_log_delta(x, epsilon):
    """Two Laplace steps: the curve of one, known at every real epsilon, averaged."""
    with mp.workdps(30):
        x, epsilon = mp.mpf(x), mp.mpf(epsilon)

        def curve(e):
            if e >= x:
                return mp.mpf(0)
            return 1 - mp.exp(e) if e <= -x else -mp.expm1((e - x) / 2)

        kinks = sorted({-x, x, *(k for k in (epsilon - x, epsilon + x) if -x < k < x)})
        between = mp.quad(lambda t: mp.exp((t - x) / 2) / 4 * curve(epsilon - t), kinks)
        return float(mp.log(curve(epsilon - x) / 2 + mp.exp(-x) / 2 * curve(epsilon + x) + between))


def composed_laplace_log_delta(x, count, epsilon):
    """The inverse Laplace transform along the line through the saddle point, by the trapezium rule.

    delta = 1 / (2 pi i) int E_P[e^{z L}]^count e^{-z epsilon} / (z (1 + z)) dz.
    """

    def log_mgf(z):  # of L under P: E_Q[X^s], s = 1 + z
        s = 1.0 + z
        return z * x + np.log((s + z * np.exp(-(2.0 * s - 1.0) * x)) / (2.0 * s - 1.0))

    def mean(z, step=1e-5):
        return count * (log_mgf(z + step) - log_mgf(z - step)) / (2.0 * step)

    low, high = 1e-4, 50.0
    for _ in range(100):
        theta = np.sqrt(low * high)
        low, high = (theta, high) if mean(theta) < epsilon else (low, theta)
    spread = 1.0 / np.sqrt((mean(theta + 1e-4) - mean(theta - 1e-4)) / 2e-4)
    line = np.linspace(-40.0 * spread, 40.0 * spread, 200_001)
    z = theta + 1j * line
    rest = np.exp(count * (log_mgf(z) - log_mgf(theta)) - 1j * line * epsilon) / (z * (1.0 + z))
    integral = np.sum(rest.real) * (line[1] - line[0]) / (2.0 * np.pi)
    return count * log_mgf(theta) - theta * epsilon + np.log(integral)


def random_gaussian_settings(number, seed):
    """(mu, count, epsilon, log delta) with delta from 0.5 down to 1e-100."""
    rng = np.random.default_rng(seed)
    rows = []
    while len(rows) < number:
        count = float(np.floor(10 ** rng.uniform(0.0, 5.0)))
        total = 10 ** rng.uniform(-1.3, 0.8)
        mu = total / np.sqrt(count)
        epsilon = total**2 / 2 + rng.uniform(-1.0, 20.0) * total
        if not 0.0 < epsilon < 200.0:
            continue
        with mp.workdps(60):
            exact = mp.mpf(mu) * mp.sqrt(mp.mpf(count))
        log_delta = gaussian_log_delta(exact, epsilon)
        if np.log(1e-100) < log_delta < np.log(0.5):
            rows.append((mu, count, epsilon, log_delta))
    return np.array(rows).T


def sampled_gaussian_log_delta(sigma, q, epsilon):
    """Of one step, removing: q H of the unsampled pair at log(1 + (e^epsilon - 1) / q)."""
    inner = np.log1p(np.expm1(float(epsilon)) / q)
    return np.log(q) + gaussian_log_delta(1.0 / sigma, inner)
