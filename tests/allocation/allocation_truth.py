"""Random allocation from its definition, in mpmath; nothing here imports jaxdp."""

import math
from collections import Counter

import mpmath as mp


def partitions(n, largest=None):
    """The ways to write n as a sum of positive integers, as non-increasing tuples."""
    largest = n if largest is None else largest
    if n == 0:
        yield ()
    for first in range(min(n, largest), 0, -1):
        for rest in partitions(n - first, first):
            yield (first, *rest)


def moment_by_partitions(moments, t, order):
    """E[A^order] of Feldman & Shenfeld 2025, Theorem 4.6, with the right multinomial coefficient.

    binom(t; P) = t!/((t - |P|)! prod c_j!) * order!/prod p!, c_j the multiplicities of the parts;
    partitions of more than t parts are dropped.
    """
    total = mp.mpf(0)
    for p in partitions(order):
        if len(p) > t:
            continue
        ways = math.factorial(t) // math.factorial(t - len(p))
        for c in Counter(p).values():
            ways //= math.factorial(c)
        ways *= math.factorial(order) // math.prod(math.factorial(q) for q in p)
        total += ways * mp.fprod(moments(q) for q in p)
    return total / mp.mpf(t) ** order


def response_law(t, e0):
    """The (probability under Q, ratio) pairs of 1-of-t randomised response."""
    p = 1 / (1 + mp.exp(e0))
    for n in range(t + 1):
        yield (
            mp.binomial(t, n) * p**n * (1 - p) ** (t - n),
            (n * mp.exp(e0) + (t - n) * mp.exp(-e0)) / t,
        )


def response_moment(t, e0, s):
    """E_Q[A^s] of 1-of-t randomised response, any real s."""
    return mp.fsum(w * a**s for w, a in response_law(t, mp.mpf(e0)))


def response_delta(t, e0, eps, direction):
    """The hockey-stick divergence of 1-of-t randomised response."""
    g = mp.exp(eps)
    if direction == "remove":
        return mp.fsum(w * max(a - g, 0) for w, a in response_law(t, mp.mpf(e0)))
    return mp.fsum(w * max(1 - g * a, 0) for w, a in response_law(t, mp.mpf(e0)))


def power_series_moment(moments, t, order):
    """order!/t^order [z^order] (sum D_p z^p/p!)^t by repeated squaring, all digits of mp.mp."""
    base = [moments(p) / mp.factorial(p) for p in range(order + 1)]

    def times(x, y):
        return [mp.fsum(x[i] * y[n - i] for i in range(n + 1)) for n in range(order + 1)]

    result, power, left = [mp.mpf(1)] + [mp.mpf(0)] * order, base, t
    while left:
        if left & 1:
            result = times(result, power)
        power, left = times(power, power), left // 2
    return result[order] * mp.factorial(order) / mp.mpf(t) ** order


def gaussian_moments(sigma):
    """D_p of the Gaussian of sensitivity 1."""
    return lambda p: mp.exp(mp.mpf(p) * (p - 1) / (2 * mp.mpf(sigma) ** 2))
