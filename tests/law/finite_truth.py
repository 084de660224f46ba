"""Exact curves of composed finite laws by enumeration, with 60 digits."""

import itertools
import math

import mpmath as mp

DIGITS = 60


def response(epsilon, delta=0.0):
    """ApproximateDP, randomised response at delta = 0."""
    epsilon, delta = mp.mpf(epsilon), mp.mpf(delta)
    up, down = (1 - delta) / (1 + mp.exp(-epsilon)), (1 - delta) / (1 + mp.exp(epsilon))
    return [(delta, mp.mpf(0)), (up, down), (down, up), (mp.mpf(0), delta)]


def pair(p, q):
    return [(mp.mpf(float(a)), mp.mpf(float(b))) for a, b in zip(p, q, strict=True)]


def sampled(outcomes, rate):
    rate = mp.mpf(float(rate))
    return [((1 - rate) * q + rate * p, q) for p, q in outcomes]


def composed(outcomes, count):
    """The pairs (p, q) of the count-fold composition, outcomes with equal counts together."""
    outcomes = [o for o in outcomes if o != (0, 0)]
    total = []
    for chosen in itertools.combinations_with_replacement(range(len(outcomes)), count):
        ways = math.factorial(count)
        p = q = mp.mpf(1)
        for i in set(chosen):
            times = chosen.count(i)
            ways //= math.factorial(times)
            p *= outcomes[i][0] ** times
            q *= outcomes[i][1] ** times
        total.append((ways * p, ways * q))
    return total


def hockey_stick(outcomes, epsilon, reverse=False):
    g = mp.exp(mp.mpf(float(epsilon)))
    pairs = ((q, p) if reverse else (p, q) for p, q in outcomes)
    return mp.fsum(p - g * q for p, q in pairs if p > g * q)


def _vertices(outcomes, reverse):
    """(g, H_g) at g = 0 and at every finite ratio, and tau."""
    pairs = [(q, p) if reverse else (p, q) for p, q in outcomes]
    ratios = sorted({p / q for p, q in pairs if q > 0} | {mp.mpf(0)})
    tau = mp.fsum(p for p, q in pairs if q == 0)
    # (The last is tau but for the last digits, and a small delta would see them.)
    heights = [mp.fsum(p - g * q for p, q in pairs if p > g * q) for g in ratios[:-1]]
    return list(zip(ratios, [*heights, tau], strict=True)), tau


def epsilon(outcomes, delta, reverse=False):
    """The least epsilon >= 0 at which the curve, linear between its vertices, meets delta."""
    delta = mp.mpf(float(delta))
    vertices, tau = _vertices(outcomes, reverse)
    if tau > delta:
        return mp.inf
    for (g, h), (k, i) in itertools.pairwise(vertices):
        if i <= delta < h:
            return max(mp.log(g + (k - g) * (h - delta) / (h - i)), mp.mpf(0))
    return mp.mpf(0)


def tradeoff(outcomes, fpr, reverse=False):
    fpr = mp.mpf(float(fpr))
    return max(1 - h - g * fpr for g, h in _vertices(outcomes, reverse)[0])
