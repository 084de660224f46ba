"""Reference values in mpmath, written from the papers and not from the library.

Every function takes the parameters *exactly* (a float is the binary number it holds, a string
the decimal it spells) and works with `DIGITS` digits, so that a certified bound can be compared
with the truth at the very same inputs. Nothing here imports jaxdp.
"""

import functools
import json
import pathlib

import mpmath as mp
import numpy as np
from scipy import special

DIGITS = 60


def number(x):
    """The exact value of a float, an int, a decimal string or an mpf."""
    with mp.workdps(400):
        return mp.mpf(x if isinstance(x, (str, int, mp.mpf)) else float(x))


def working(digits=DIGITS):
    """A decorator: exact arguments, `digits` working digits."""

    def decorate(function):
        @functools.wraps(function)
        def wrapped(*args):
            with mp.workdps(digits):
                return +function(*[number(a) for a in args])

        return wrapped

    return decorate


# Hockey-stick divergences, one run


@working()
def gaussian(mu, eps):
    """H_{e^eps} of N(mu, 1) and N(0, 1), any sign of eps (Balle & Wang 2018, Theorem 8)."""
    with mp.extradps(40):
        return mp.ncdf(mu / 2 - eps / mu) - mp.exp(eps) * mp.ncdf(-mu / 2 - eps / mu)


@working()
def gaussian_ratio(sigma, sensitivity, eps):
    """The same at mu = sensitivity/sigma, formed without rounding."""
    return gaussian(sensitivity / sigma, eps)


@working()
def laplace(x, eps):
    """H_{e^eps} of two Laplace laws x scales apart."""
    if eps >= x:
        return mp.mpf(0)
    if eps <= -x:
        return -mp.expm1(eps)
    return -mp.expm1((eps - x) / 2)


@working()
def randomized_response(e0, eps):
    """(P - gQ)_+ summed over the two answers."""
    if eps >= e0:
        return mp.mpf(0)
    p, g = mp.exp(e0) / (1 + mp.exp(e0)), mp.exp(eps)
    return max(p - g * (1 - p), 0) + max((1 - p) - g * p, 0)


@working()
def approximate_dp(e0, d0, eps):
    """The four-point pair: a revealing atom of mass d0 on either side of randomised response."""
    return d0 + (1 - d0) * randomized_response(e0, eps)


def sampled(curve, q, eps, direction):
    """One Poisson-sampled step from the curve eps -> H_{e^eps} of a symmetric pair."""
    with mp.workdps(DIGITS):
        q, g = number(q), mp.exp(number(eps))
        if direction == "remove":
            shifted = 1 + (g - 1) / q
            return q * curve(mp.log(shifted)) if shifted > 0 else 1 - g
        b = 1 - g * (1 - q)
        return b * curve(mp.log(g * q / b)) if b > 0 else mp.mpf(0)


def integral(f, points):
    """Gauss-Legendre between the given points."""
    return mp.quad(f, points, method="gauss-legendre", maxdegree=8)


def normal(z):
    """Standard normal density."""
    return mp.npdf(z)


def sampled_gaussian_by_quadrature(sigma, q, eps, direction):
    """The densities themselves, integrated over the half-line where the integrand is positive."""
    with mp.workdps(40):
        sigma, q, g = number(sigma), number(q), mp.exp(number(eps))

        def without(z):
            return mp.npdf(z, 0, sigma)

        def with_record(z):
            return (1 - q) * mp.npdf(z, 0, sigma) + q * mp.npdf(z, 1, sigma)

        # (1 - q) + q exp((z - 1/2)/sigma^2) is the ratio, increasing in z
        level = g if direction == "remove" else 1 / g
        if level <= 1 - q:
            return max(1 - g, mp.mpf(0)) if direction == "remove" else mp.mpf(0)
        cut = mp.mpf(1) / 2 + sigma**2 * mp.log((level - 1 + q) / q)
        steps = [sigma * k for k in range(41)]
        if direction == "remove":
            return integral(lambda z: with_record(z) - g * without(z), [cut + s for s in steps])
        return integral(lambda z: without(z) - g * with_record(z), [cut - s for s in steps][::-1])


# Rényi divergences


@working()
def laplace_renyi(x, alpha):
    """Mironov 2017, Proposition 6; alpha = 1 and inf included."""
    if mp.isinf(alpha):
        return x
    if alpha == 1:
        return x + mp.expm1(-x)
    top = alpha * mp.exp((alpha - 1) * x) + (alpha - 1) * mp.exp(-alpha * x)
    return mp.log(top / (2 * alpha - 1)) / (alpha - 1)


@working()
def randomized_response_renyi(e0, alpha):
    """log(p^a (1-p)^(1-a) + (1-p)^a p^(1-a))/(a - 1)."""
    p = mp.exp(e0) / (1 + mp.exp(e0))
    if mp.isinf(alpha):
        return e0
    if alpha == 1:
        return (2 * p - 1) * e0
    return mp.log(p**alpha * (1 - p) ** (1 - alpha) + (1 - p) ** alpha * p ** (1 - alpha)) / (
        alpha - 1
    )


def _sampled_moment(law, q, alpha, direction):
    """Divergence of order alpha of 1 - q + q X from E_Q[f(X)], alpha = 1 included."""
    with mp.workdps(40):
        q, alpha = number(q), number(alpha)

        def mixed(ratio):
            return 1 - q + q * ratio

        if alpha == 1:
            if direction == "remove":
                return law(lambda x: mixed(x) * mp.log(mixed(x)))
            return law(lambda x: -mp.log(mixed(x)))
        power = alpha if direction == "remove" else 1 - alpha
        return mp.log(law(lambda x: mixed(x) ** power)) / (alpha - 1)


def sampled_gaussian_renyi(sigma, q, alpha, direction):
    """Quadrature over the standard normal, wide enough for the tilted integrand."""

    def law(f):
        s = number(sigma)
        top = 14 + (number(alpha) if direction == "remove" else 0) / s
        knots = [mp.mpf(-14) + k for k in range(int(mp.ceil(top)) + 15)]
        return integral(lambda u: normal(u) * f(mp.exp(u / s - 1 / (2 * s * s))), knots)

    return _sampled_moment(law, q, alpha, direction)


def sampled_gaussian_renyi_integer(sigma, q, alpha):
    """The binomial sum (remove, integer alpha)."""
    with mp.workdps(DIGITS):
        s, q = number(sigma), number(q)
        total = mp.fsum(
            mp.binomial(alpha, k)
            * (1 - q) ** (alpha - k)
            * q**k
            * mp.exp(mp.mpf(k) * (k - 1) / (2 * s * s))
            for k in range(alpha + 1)
        )
        return mp.log(total) / (alpha - 1)


def laplace_law(x):
    """E_Q[f(X)]: atoms at e^-x and e^x, a density of the loss between them."""
    x = number(x)

    def law(f):
        low, high = mp.mpf(1) / 2, mp.exp(-x) / 2
        # z < 0: ratio e^-x with mass 1/2; z > x: e^x with mass e^-x/2; loss 2z - x between
        middle = integral(lambda z: mp.exp(-z) / 2 * f(mp.exp(2 * z - x)), [0, x / 2, x])
        return low * f(mp.exp(-x)) + high * f(mp.exp(x)) + middle

    return law


def sampled_laplace_renyi(x, q, alpha, direction):
    """Quadrature over the Laplace loss."""
    with mp.workdps(40):
        return _sampled_moment(laplace_law(x), q, alpha, direction)


def sampled_randomized_response_renyi(e0, q, alpha, direction):
    """A two-point sum."""
    with mp.workdps(40):
        e = mp.exp(number(e0))
        return _sampled_moment(
            lambda f: f(1 / e) * e / (1 + e) + f(e) / (1 + e), q, alpha, direction
        )


# Compositions


def randomized_response_composed(e0, count, eps, q=1, direction="remove"):
    """`count` (Poisson-sampled) randomised responses: a binomial sum."""
    with mp.workdps(DIGITS):
        e, q, g = mp.exp(number(e0)), number(q), mp.exp(number(eps))
        up, down, p = 1 - q + q * e, 1 - q + q / e, 1 / (1 + e)
        total = mp.mpf(0)
        for k in range(count + 1):
            mass = mp.binomial(count, k) * p**k * (1 - p) ** (count - k)
            ratio = up**k * down ** (count - k)
            total += mass * max(ratio - g if direction == "remove" else 1 - g * ratio, 0)
        return total


def laplace_twice(x, eps):
    """Two Laplace mechanisms: the curve of one averaged over the loss of the other, under P."""
    with mp.workdps(30):
        x, eps = number(x), number(eps)

        def inner(loss):
            return laplace(x, eps - loss)

        # kinks of the curve of one at eps - loss = -x, x; loss = 2z - x on 0 < z < x
        knots = sorted({mp.mpf(0), x, *(z for z in ((eps + 2 * x) / 2, eps / 2) if 0 < z < x)})
        middle = integral(lambda z: mp.exp(z - x) / 2 * inner(2 * z - x), knots)
        return mp.exp(-x) / 2 * inner(-x) + inner(x) / 2 + middle


def gaussian_and_laplace(mu, x, eps):
    """One Gaussian and one Laplace mechanism: the Gaussian curve averaged over the Laplace loss."""
    with mp.workdps(30):
        mu, x, eps = number(mu), number(x), number(eps)
        middle = integral(
            lambda z: mp.exp(z - x) / 2 * gaussian(mu, eps - 2 * z + x), [0, x / 2, x]
        )
        return mp.exp(-x) / 2 * gaussian(mu, eps + x) + gaussian(mu, eps - x) / 2 + middle


# Conversions, diffusion


@working()
def simple_epsilon(r, alpha, delta):
    """Mironov 2017, Proposition 3."""
    return r + mp.log(1 / delta) / (alpha - 1)


@working()
def optimal_epsilon(r, alpha, delta):
    """Canonne, Kamath & Steinke 2020, Proposition 12; not clipped."""
    return r + mp.log1p(-1 / alpha) - mp.log(alpha * delta) / (alpha - 1)


@working()
def optimal_delta(r, alpha, eps):
    """Its inverse, clipped at 1."""
    return min(mp.exp((alpha - 1) * (r - eps)) / (alpha - 1) * (1 - 1 / alpha) ** alpha, mp.mpf(1))


def zcdp_epsilon(rho, delta):
    """min over alpha > 1 of the optimal conversion of R = rho alpha."""
    with mp.workdps(30):
        rho, delta = number(rho), number(delta)

        def value(log_excess):
            return optimal_epsilon(rho * (1 + mp.exp(log_excess)), 1 + mp.exp(log_excess), delta)

        best = min((value(mp.mpf(v) / 4), v) for v in range(-60, 81))[1]
        low, high = mp.mpf(best - 1) / 4, mp.mpf(best + 1) / 4
        for _ in range(90):  # ternary search: unimodal in log(alpha - 1) near the minimum
            a, b = low + (high - low) / 3, high - (high - low) / 3
            low, high = (low, b) if value(a) < value(b) else (a, high)
        return value((low + high) / 2)


@working()
def gaussian_tradeoff(mu, fpr):
    """Phi(Phi^-1(1 - fpr) - mu) (Dong, Roth & Su 2022, eq. 6)."""
    quantile = mp.mpf(float(special.ndtri(float(fpr))))
    for _ in range(4):  # Newton from a double: 16, 32, 64 digits
        quantile -= (mp.ncdf(quantile) - fpr) / mp.npdf(quantile)
    return mp.ncdf(-quantile - mu)


@working()
def ou_mu(theta, rho, t, sensitivity):
    """Sensitivity over standard deviation of the Ornstein-Uhlenbeck release."""
    return sensitivity * mp.sqrt(theta / (rho**2 * mp.expm1(2 * theta * t)))


@working()
def ou_error(theta, rho, t, norm, dimension):
    """Balle et al. 2019, eq. 4."""
    return (mp.expm1(-theta * t) * norm) ** 2 - dimension * rho**2 / theta * mp.expm1(
        -2 * theta * t
    )


@working()
def gaussian_error(theta, rho, t, dimension):
    """E_GM, the plain Gaussian of the same privacy."""
    return dimension * rho**2 * mp.expm1(2 * theta * t) / theta


@working()
def shrunk_gaussian_error(theta, rho, t, norm, dimension):
    """E_PGM = R^2 E_GM/(R^2 + E_GM)."""
    plain = gaussian_error(theta, rho, t, dimension)
    return norm**2 * plain / (norm**2 + plain)


def solve(f, low, high):
    """The root of a monotone f between low and high, by bisection in the logarithm."""
    with mp.workdps(30):
        low, high = number(low), number(high)
        sign = f(low) > 0
        for _ in range(90):
            middle = mp.sqrt(low * high)
            low, high = (middle, high) if (f(middle) > 0) == sign else (low, middle)
        return mp.sqrt(low * high)


# Comparison of floats with the truth


def excess(values, truths):
    """(value - truth)/truth for every pair, exactly; 0 where both are 0 or both infinite."""
    out = []
    with mp.workdps(DIGITS + 20):
        for value, truth in zip(np.ravel(np.asarray(values, np.float64)), truths, strict=True):
            if np.isfinite(value) and mp.isfinite(truth):
                error = number(value) - truth
                out.append(float(error / abs(truth)) if truth else float(error))
            else:
                out.append(0.0 if mp.mpf(float(value)) == truth else np.inf)
    return np.array(out)


def worst(errors, *inputs):
    """Where the error is least and most, for a failure's message."""
    rows = [np.broadcast_to(i, errors.shape) for i in inputs]
    return [(errors[k], *(row[k] for row in rows)) for k in (errors.argmin(), errors.argmax())]


def assert_exact(values, truths, *inputs, rtol=1e-12):
    """Every value within rtol of its truth."""
    errors = excess(values, truths)
    assert np.abs(errors).max() <= rtol, worst(errors, *inputs)


def assert_certified(values, truths, *inputs, rtol=2e-12):
    """Every value an upper bound, with no tolerance, and inflated by rtol at most."""
    errors = excess(values, truths)
    assert errors.min() >= 0, worst(errors, *inputs)
    assert errors.max() <= rtol, worst(errors, *inputs)


ORACLE = json.loads((pathlib.Path(__file__).parent / "data" / "oracle.json").read_text())


def oracle(prefix):
    """Columns of the oracle's cases whose id starts with prefix: ids, parameters, values."""
    cases = [case for case in ORACLE if case["id"].startswith(prefix)]
    assert cases, prefix
    names = cases[0]["params"]
    columns = {k: np.array([float(case["params"][k]) for case in cases]) for k in names}
    with mp.workdps(40):
        return [case["id"] for case in cases], columns, [mp.mpf(case["value"]) for case in cases]
