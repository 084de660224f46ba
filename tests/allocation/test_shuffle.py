"""Shuffled reports against direct sums over all counts, and against published code."""

import jax
import numpy as np
import pytest
from scipy import stats

import jaxdp
from jaxdp._allocation import _shuffle


def _direct(n, e0, eps, p):
    """H of the pair by summing over every number of clones and every count."""
    a, total = np.exp(e0) / (1 + np.exp(e0)), 0.0
    for c in range(n):
        b = stats.binom.pmf(np.arange(-1, c + 2), c, 0.5)
        one, other = a * b[:-1] + (1 - a) * b[1:], (1 - a) * b[:-1] + a * b[1:]
        total += stats.binom.pmf(c, n - 1, p) * np.maximum(one - np.exp(eps) * other, 0).sum()
    return total


def test_binomial_tails():
    """Breaks when a tail loses digits, either side of the mean, up to n = 1e8."""
    n = np.array([5, 10, 100, 300, 1e4, 1e6, 1e8])
    k = np.array([0, 3, 60, 299, 5200, 503_000, 49_990_000])
    p = np.array([0.2, 0.5, 0.5, 0.9, 0.5, 0.5, 0.5])
    got = np.asarray(_shuffle.binomial_tail(n, k, p))
    np.testing.assert_allclose(got, stats.binom.sf(k - 1, n, p), rtol=3e-11)
    slope = jax.vmap(jax.grad(_shuffle.binomial_tail, 2))(n[1:4], k[1:4], p[1:4])
    h = 1e-6
    by_hand = (stats.binom.sf(k - 1, n, p + h) - stats.binom.sf(k - 1, n, p - h)) / (2 * h)
    np.testing.assert_allclose(slope, by_hand[1:4], rtol=1e-6)


def test_small_numbers_of_records():
    """Breaks when the pair's curve, summed block by block, is not the sum over every count."""
    cases = [(1, 1.0, 0.5), (2, 1.0, 0.5), (30, 3.0, 1.0), (100, 1.0, 0.3), (100, 1.0, -0.3)]
    n, e0, eps = (np.array(x, float) for x in zip(*cases, strict=True))

    def upper(e, b, m):
        return _shuffle.pure_log_delta(e, b, jax.numpy.exp(-b), m, True)

    got = np.exp(jax.jit(jax.vmap(upper))(eps, e0, n))
    want = [_direct(m, b, e, np.exp(-b)) for m, b, e in cases]
    np.testing.assert_allclose(got, want, rtol=2e-11)
    assert (got >= want).all()


def test_published_numbers():
    """Breaks when the bracket misses the curve of github.com/apple/ml-shuffling-amplification.

    Its `onestep`, summed over every number of clones: (n, eps0, eps) to delta.
    """
    n, e0, eps = np.array([(10_000, 1.0, 0.04), (10_000, 1.0, 0.05), (1000, 2.0, 0.3)]).T
    theirs = np.array([2.1036197233e-05, 2.1406567307e-06, 6.1099292408e-04])

    def both(e, b, m):
        clone = jax.numpy.exp(-b)
        return tuple(_shuffle.pure_log_delta(e, b, clone, m, up) for up in (False, True))

    low, high = (np.exp(x) for x in jax.jit(jax.vmap(both))(eps, e0, n))
    assert (low <= theirs).all()
    assert (theirs <= high).all()
    np.testing.assert_allclose(low, high, rtol=0.03)


def test_mechanisms():
    """Breaks when randomised response is not exact, or more records do not help."""
    exact = _direct(60, 1.5, 0.4, 2 / (np.exp(1.5) + 1))
    reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(1.5), 60)
    low, high = jaxdp.delta_bounds(reports, 0.4)
    assert float(low) <= exact <= float(high) <= exact * (1 + 1e-9)
    laplace = jaxdp.Shuffled(jaxdp.Laplace(1.0), np.array([1.0, 100.0, 1e4, 1e6]))
    deltas = np.asarray(jaxdp.delta(laplace, 0.5))
    assert (np.diff(deltas) < 0).all()
    assert deltas[0] <= float(jaxdp.delta(jaxdp.Laplace(1.0), 0.5)) * (1 + 1e-9)


def test_gaussian():
    """Breaks when the best (eps0, delta0) reading of the Gaussian exceeds the local curve."""
    sigma = np.array([1.0, 3.0, 5.0])
    epsilon = np.asarray(jaxdp.epsilon(jaxdp.Shuffled(jaxdp.Gaussian(sigma), 1e6), 1e-10))
    local = np.asarray(jaxdp.epsilon(jaxdp.Gaussian(sigma), 1e-10))
    assert (epsilon < local / 4).all()
    assert (np.diff(epsilon) < 0).all()
    # eps0 by an exhaustive search with exact tails
    np.testing.assert_allclose(epsilon, [1.35838685, 0.03687069, 0.01572062], rtol=1e-6)


def test_rough_tails():
    """Breaks when the tails that choose eps0 are off by more than 1%."""
    n = np.array([100.0, 1e4, 1e6, 1e6, 1e6])
    k = np.array([60.0, 5200.0, 500_000.0, 503_000.0, 497_000.0])
    exact = np.asarray(_shuffle.binomial_tail(n, k, 0.5))
    np.testing.assert_allclose(_shuffle.rough_tail(n, k, 0.5), exact, rtol=1e-2)


def test_refusals():
    """Breaks when a composition of shuffles is answered without a proof."""
    reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(1.0), 100)
    with pytest.raises(ValueError, match="compose"):
        jaxdp.epsilon(jaxdp.Repeated(reports, 3), 1e-5)
    with pytest.raises(ValueError, match="num_records"):
        jaxdp.Shuffled(jaxdp.RandomizedResponse(1.0), 0)
    shuffled = reports.sample(jax.random.key(0), np.zeros(1000, int))
    assert 200 < int(np.sum(shuffled)) < 350
