"""Batches from their definitions: mpmath for curves, enumeration for schemes. No jaxdp here."""

import itertools

import mpmath as mp
import numpy as np
from scipy import stats

DIGITS = 60


def mixture(sigma, sensitivities, weights, eps, direction):
    """H of sum_k w_k N(s_k, sigma^2) and N(0, sigma^2), by bisection for the outcome."""
    with mp.workdps(DIGITS):
        shifts = [mp.mpf(s) / mp.mpf(sigma) for s in sensitivities]
        weights = [mp.mpf(w) for w in weights]
        weights = [w / mp.fsum(weights) for w in weights]
        g = mp.exp(mp.mpf(eps))
        level = g if direction == "remove" else 1 / g
        rest = mp.fsum(w for w, m in zip(weights, shifts, strict=True) if m == 0)
        if level <= rest:
            return 1 - g if direction == "remove" else mp.mpf(0)
        low, high = mp.mpf(-500), mp.mpf(500)
        for _ in range(220):
            z = (low + high) / 2
            pairs = zip(weights, shifts, strict=True)
            ratio = mp.fsum(w * mp.exp(m * z - m * m / 2) for w, m in pairs if m)
            low, high = (z, high) if ratio < level - rest else (low, z)
        sign = 1 if direction == "remove" else -1
        pairs = zip(weights, shifts, strict=True)
        with_record = mp.fsum(w * mp.ncdf(sign * (m - z)) for w, m in pairs)
        without = mp.ncdf(-sign * z)
        return with_record - g * without if direction == "remove" else without - g * with_record


def poisson_replace(m, q, eps):
    """H of (1-q) N(0, 1) + q N(+-m, 1), its outcome by bisection."""
    with mp.workdps(DIGITS):
        m, q, g = mp.mpf(m), mp.mpf(q), mp.exp(mp.mpf(eps))

        def half(z, sign):
            return 1 - q + q * mp.exp(sign * m * z - m * m / 2)

        low, high = mp.mpf(-500), mp.mpf(500)
        for _ in range(220):
            z = (low + high) / 2
            low, high = (z, high) if half(z, 1) < g * half(z, -1) else (low, z)
        middle = (1 - q) * mp.ncdf(-z)
        return middle + q * mp.ncdf(m - z) - g * (middle + q * mp.ncdf(-m - z))


def fixed_size(mu, q, eps):
    """A Gaussian's profile by Balle, Barthe & Gaboardi 2018, Theorem 9, and its reflection."""
    with mp.workdps(DIGITS):
        mu, q, e = mp.mpf(mu), mp.mpf(q), mp.mpf(eps)
        g = mp.exp(e)
        if e < 0:
            return 1 - g + g * fixed_size(mu, q, -e)
        inner = mp.log(1 + (g - 1) / q)
        tails = mp.ncdf(mu / 2 - inner / mu), mp.ncdf(-mu / 2 - inner / mu)
        return q * (tails[0] - mp.exp(inner) * tails[1])


def convolved(loss, mass, count, epsilons, spacing=5e-5, size=1 << 20):
    """delta of `count` steps with P-masses at losses, in NumPy: a lattice and one FFT.

    A loss is shared between its neighbours so that its mean stays; to some 1e-5 of delta.
    """
    place = loss / spacing
    cell = np.floor(place)
    share, cell = place - cell, cell.astype(np.int64)
    law = np.zeros(size)
    np.add.at(law, cell % size, mass * (1.0 - share))
    np.add.at(law, (cell + 1) % size, mass * share)
    law = np.fft.irfft(np.fft.rfft(law / law.sum()) ** count, size)
    losses = spacing * np.where(
        np.arange(size) < size // 2, np.arange(size), np.arange(size) - size
    )
    return np.asarray([np.sum(law * -np.expm1(np.minimum(e - losses, 0.0))) for e in epsilons])


def outcomes(start=-14.0, stop=24.0, number=1_000_001):
    """A fine grid of outcomes and its spacing."""
    return np.linspace(start, stop, number), (stop - start) / (number - 1)


def log_mixture(z, weights, shifts):
    """log density of sum_k w_k N(m_k, 1)."""
    parts = [np.log(w) + stats.norm.logpdf(z - m) for w, m in zip(weights, shifts, strict=True)]
    return np.logaddexp.reduce(parts)


# Every mechanism with one bit of output that is epsilon0-DP when a record of the batch is exchanged


def responses(records, batches, functions, epsilon0):
    """Pr(1) of randomised response to g(batch), averaged over the batches, for every function g.

    Args:
      records: of the dataset, letters.
      batches: tuples of indices, equally likely.
      functions: (number, letters ...) tables of 0 and 1, symmetric in the letters of the batch.
      epsilon0: of the randomised response.
    """
    kept = np.exp(epsilon0) / (1.0 + np.exp(epsilon0))
    letters = np.asarray([[records[i] for i in batch] for batch in batches])
    answers = functions[(slice(None), *letters.T)].mean(axis=1)
    return (1.0 - kept) + (2.0 * kept - 1.0) * answers


def all_functions(letters, size):
    """Every 0/1 function of a multiset of `size` letters, as tables over ordered tuples."""
    multisets = list(itertools.combinations_with_replacement(range(letters), size))
    index = {key: i for i, key in enumerate(multisets)}
    values = np.asarray(list(itertools.product((0.0, 1.0), repeat=len(multisets))))
    table = np.empty((len(values), *(letters,) * size))
    for batch in itertools.product(range(letters), repeat=size):
        table[(slice(None), *batch)] = values[:, index[tuple(sorted(batch))]]
    return table


def worst_delta(pairs, epsilon, steps):
    """The largest delta of adaptive steps, each any of the pairs (Pr(1 | D), Pr(1 | D')).

    sup_A P(A) - g Q(A) is a maximum over the choices after every answer: by recursion over what
    the weights of P and Q have become.
    """

    def value(p, q, left):
        if left == 0:
            return np.maximum(p - np.exp(epsilon) * q, 0.0)
        best = 0.0
        for a, b in pairs:
            one = value(p * a, q * b, left - 1)
            best = np.maximum(best, one + value(p * (1.0 - a), q * (1.0 - b), left - 1))
        return best

    return float(value(np.float64(1.0), np.float64(1.0), steps))


def double_mixture(shifts, weights, others, other_weights, eps, direction):
    """H of sum_i w_i N(s_i, 1) and sum_j v_j N(-t_j, 1), its outcome by bisection."""
    with mp.workdps(DIGITS):

        def side(values, probabilities, sign):
            total = mp.fsum(mp.mpf(float(w)) for w in probabilities)
            pairs = zip(values, probabilities, strict=True)
            return [(sign * mp.mpf(float(s)), mp.mpf(float(w)) / total) for s, w in pairs]

        p, q = side(shifts, weights, 1), side(others, other_weights, -1)
        if direction == "add":
            p, q = ([(-m, w) for m, w in x] for x in (q, p))
        g = mp.exp(mp.mpf(float(eps)))

        def height(x, z):
            return mp.fsum(w * mp.exp(m * z - m * m / 2) for m, w in x)

        low, high = mp.mpf(-5000), mp.mpf(5000)
        for _ in range(240):
            z = (low + high) / 2
            low, high = (z, high) if height(p, z) < g * height(q, z) else (low, z)
        own, other = (mp.fsum(w * mp.ncdf(m - z) for m, w in x) for x in (p, q))
        return own - g * other
