"""Probabilities of integer and continuous noise in mpmath, and sums over them term by term."""

import mpmath as mp
import numpy as np
from scipy import special


def discrete_gaussian(sigma):
    """k -> P(k), normalised by direct summation."""
    s2 = 2 * mp.mpf(sigma) ** 2
    reach = int(60 * sigma + 20)
    total = mp.fsum(mp.exp(-(mp.mpf(k) ** 2) / s2) for k in range(-reach, reach + 1))
    return lambda k: mp.exp(-(mp.mpf(k) ** 2) / s2) / total


def skellam(variance):
    """e^-lambda I_k(lambda)."""
    lam = mp.mpf(variance)
    return lambda k: mp.exp(-lam) * mp.besseli(abs(k), lam)


def gdl(beta, a):
    """Lekshmi & Sebastian 2014, eq. 2.5."""
    beta, a = mp.mpf(beta), mp.mpf(a)

    def pmf(k):
        k = abs(k)
        front = mp.exp(-a * k) * (1 - mp.exp(-a)) ** (2 * beta)
        front *= mp.gamma(beta + k) / (mp.gamma(k + 1) * mp.gamma(beta))
        return front * mp.hyp2f1(beta, beta + k, k + 1, mp.exp(-2 * a))

    return pmf


def negative_binomial(r, p):
    """scipy's nbinom convention; 0 below 0."""
    r, p = mp.mpf(r), mp.mpf(p)

    def pmf(k):
        if k < 0:
            return mp.mpf(0)
        return mp.gamma(k + r) / (mp.gamma(k + 1) * mp.gamma(r)) * p**r * (1 - p) ** k

    return pmf


def table(pmf, low, high):
    """The probabilities of low..high, as mpf."""
    return {k: pmf(k) for k in range(low, high + 1)}


def hockey_stick(pmf, shift, eps, low, high, direction="remove"):
    """sum_k of the positive parts between low and high."""
    g = mp.exp(mp.mpf(eps))
    values = table(pmf, low - shift, high)
    pairs = ((values[k - shift], values[k]) for k in range(low, high + 1))
    if direction == "add":
        pairs = ((q, p) for p, q in pairs)
    return mp.fsum(max(p - g * q, 0) for p, q in pairs)


def renyi(pmf, shift, alpha, low, high):
    """log sum_k P(k - shift)^alpha P(k)^(1 - alpha)/(alpha - 1)."""
    alpha = mp.mpf(alpha)
    values = table(pmf, low - shift, high)
    total = mp.fsum(
        values[k - shift] ** alpha * values[k] ** (1 - alpha) for k in range(low, high + 1)
    )
    return mp.log(total) / (alpha - 1)


def laplace_sum_density(n, y):
    """The polynomial form of the n-fold Laplace density, scale 1."""
    y = np.abs(np.asarray(y, np.float64))
    terms = [
        mp.factorial(2 * n - 2 - j) / (mp.factorial(j) * mp.factorial(n - 1 - j)) for j in range(n)
    ]
    scale = mp.mpf(2) ** (2 * n - 1) * mp.factorial(n - 1)
    coefficients = [float(t / scale * 2**j) for j, t in enumerate(terms)]
    return np.exp(-y) * np.polynomial.polynomial.polyval(y, coefficients)


def lattice_atoms(pmf, shift, low, high):
    """P- and Q-masses of the integers low..high, as floats."""
    values = {k: float(v) for k, v in table(pmf, low - shift, high).items()}
    k = range(low, high + 1)
    return np.array([values[j - shift] for j in k]), np.array([values[j] for j in k])


def gamma_difference_atoms(beta, x, panels=60):
    """The same for quadrature nodes of the continuous law, unit scale, shift x.

    Gauss-Legendre panels in the log distance from x, out to both sides; what lies below x/2 is
    the mirror image about x/2, with P and Q in each other's place.
    """
    nu = beta - 0.5

    def density(y):
        return (y / 2) ** nu * special.kv(nu, y) / (np.sqrt(np.pi) * special.gamma(beta))

    t, w = np.polynomial.legendre.leggauss(8)
    p, q = [], []
    for sign, end in ((-1, x / 2), (1, 60.0 + 20.0 * beta)):
        edges = np.linspace(np.log(end) - 40.0 / min(2 * beta, 1.0), np.log(end), panels + 1)
        half = 0.5 * (edges[1] - edges[0])
        d = np.exp((edges[:-1, None] + half * (1 + t)).ravel())
        weights = np.tile(half * w, panels) * d
        p.append(weights * density(d))
        q.append(weights * density(x + sign * d))
    right, left = np.concatenate(p), np.concatenate(q)
    return np.concatenate([right, left]), np.concatenate([left, right])


def composed_hockey_stick(pairs, eps, direction):
    """delta of independent pairs of masses, by the sum over all combinations of outcomes."""
    p, q = np.ones(1), np.ones(1)
    for one in pairs:
        p, q = (np.multiply.outer(a, b).ravel() for a, b in zip((p, q), one, strict=True))
    if direction == "add":
        p, q = q, p
    return np.array([np.maximum(p - np.exp(e) * q, 0.0).sum() for e in eps])
