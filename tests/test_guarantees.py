"""zCDP guarantees and private tuning: enumeration of all runs, identities, transformations."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

import jaxdp
from tests.programs import jit


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


EPSILONS = np.array([-0.5, 0.0, 0.2, 0.6, 1.0, 1.7, 2.5])


def test_concentrated_is_its_divergences():
    m = jaxdp.ConcentratedDP(np.array([0.05, 0.4]), 0.02)
    np.testing.assert_allclose(jaxdp.renyi(m, 3.0), [0.17, 1.22], rtol=1e-12)
    plain = jaxdp.ConcentratedDP(0.1)
    np.testing.assert_allclose(jaxdp.epsilon(plain, 1e-6), jaxdp.zcdp_to_epsilon(0.1, 1e-6))
    np.testing.assert_allclose(jaxdp.delta(plain, 2.0), jaxdp.zcdp_to_delta(0.1, 2.0), rtol=1e-6)
    low, high = jaxdp.delta_bounds(plain, EPSILONS)
    np.testing.assert_allclose(low, np.maximum(-np.expm1(EPSILONS), 0.0), rtol=1e-12)
    gaussian = jaxdp.delta(jaxdp.Gaussian(math.sqrt(5.0)), EPSILONS)  # has these divergences
    assert np.all(gaussian <= high)
    assert np.all(high <= 1.0)
    assert jaxdp.epsilon(plain, 0.0) == np.inf
    with pytest.raises(ValueError, match="rho"):
        jaxdp.ConcentratedDP(0.0)


def _chances(mean, shape, most=4000):
    """P{K = k}, k >= 1 (for Poisson k >= 0), by its definition."""
    k = np.arange(most)
    if math.isinf(shape):
        return np.exp(-mean + k * np.log(mean) - special.gammaln(k + 1.0))

    def law(gamma):
        log = special.gammaln(k[1:] + shape) - special.gammaln(k[1:] + 1.0)
        log += k[1:] * np.log1p(-gamma)
        return np.append(0.0, np.exp(log - special.logsumexp(log)))

    low, high = 1e-4, 1.0 - 1e-9
    for _ in range(80):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if law(middle) @ k > mean else (low, middle)
    return law(low)


@functools.cache
def _selected(mean, shape, order, which):
    """The law of the best of K outputs of a pair on three letters, by the law of K itself."""
    pair = np.array([[0.5, 0.3, 0.2], [0.25, 0.35, 0.4]])[which]
    chances = _chances(mean, shape)
    k = np.arange(chances.size)
    below, out = 0.0, np.zeros(4)
    for letter in order:
        upto = below + pair[letter]
        # all at most this letter, and not all below it
        out[letter] = chances[1:] @ (upto ** k[1:] - below ** k[1:])
        below = upto
    out[3] = chances[0]
    return out


@pytest.mark.parametrize("shape", [0.0, pytest.param(3.0, marks=pytest.mark.slow), math.inf])
def test_tuning_of_a_finite_pair_by_its_definition(shape):
    """Breaks when delta of the best of K runs, summed over K, is above the bound, for any order."""
    base = jaxdp.FinitePair([0.5, 0.3, 0.2], [0.25, 0.35, 0.4])
    means = np.array([1.5, 6.0])
    m = jaxdp.RepeatAndSelect(base, means, shape)
    bounds = np.asarray(jaxdp.delta(m, EPSILONS[:, None])).T
    divergences = np.asarray(jaxdp.renyi(m, 4.0))
    for mean, bound, divergence in zip(means, bounds, divergences, strict=True):
        for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
            laws = [_selected(mean, shape, order, which) for which in (0, 1)]
            for p, q in (laws, laws[::-1]):
                found = np.maximum(p - np.exp(EPSILONS)[:, None] * q, 0.0).sum(axis=1)
                assert np.all(found <= bound + 1e-9), (order, found, bound)
                some = p > 0.0
                moment = np.sum(p[some] ** 4 * q[some] ** -3.0)
                assert math.log(moment) / 3.0 <= divergence + 1e-9


@pytest.mark.parametrize("shape", [0.0, 1.0, 3.0, math.inf])
def test_tuning_of_pure_dp_is_pure_dp(shape):
    """Breaks when epsilon at delta = 0 is infinite, below a pair's largest loss, or far above all.

    Three outcomes attain it: the best one but for what is better with probability 1/(1 + e^eps0).
    """
    once, means = np.array([[0.1], [1.0], 4.0 * np.ones(1)]), np.array([1.5, 6.0])
    base = jaxdp.RandomizedResponse(once)
    with jax.enable_x64(True):
        m = jaxdp.RepeatAndSelect(base, means, shape)
        pure = np.asarray(jaxdp.epsilon(m, 0.0))
        nearly = np.asarray(jaxdp.epsilon(m, 1e-100))
        largest = np.asarray(jaxdp.renyi(m, np.inf))
        fails = jaxdp.epsilon(jaxdp.RepeatAndSelect(jaxdp.ApproximateDP(1.0, 1e-9), 6.0, shape), 0)
    for (i, j), bound in np.ndenumerate(pure):
        e0, chances = once[i, 0], _chances(means[j], shape)
        k, small = np.arange(chances.size), 1e-9
        below, above = 1.0 / (1.0 + math.exp(-e0)), 1.0 / (1.0 + math.exp(e0))
        # a rare outcome, worse than the last one and better than the first one
        one = chances[1:] @ ((below + math.exp(e0) * small) ** k[1:] - below ** k[1:])
        other = chances[1:] @ ((above + small) ** k[1:] - above ** k[1:])
        loss = abs(math.log(one / other))
        assert loss <= bound * (1.0 + 1e-6)
        np.testing.assert_allclose(loss, bound, rtol=1e-6)
    np.testing.assert_allclose(largest, pure, rtol=1e-12)
    assert np.all(nearly <= pure)
    assert np.isinf(fails)


def test_tuning_under_transformations():
    def epsilon(sigma, mean):
        return jaxdp.epsilon(jaxdp.RepeatAndSelect(jaxdp.Gaussian(sigma), mean), 1e-6)

    sigmas = jnp.array([2.0, 5.0])
    with_slopes = jax.value_and_grad(epsilon, argnums=(0, 1))
    values, slopes = jit(jax.vmap(with_slopes, in_axes=(0, None)))(sigmas, 8.0)
    assert np.all(np.isfinite(values))
    assert np.all(slopes[0] < 0.0)
    assert np.all(slopes[1] > 0.0)
    assert values[1] < values[0]
    np.testing.assert_allclose(values[0], epsilon(2.0, 8.0), rtol=1e-6)
    many = jaxdp.renyi(jaxdp.RepeatAndSelect(jaxdp.Gaussian(2.0), np.array([1.0, 2.0, 9.0])), 4.0)
    assert np.all(np.diff(many) > 0.0)
    with pytest.raises(ValueError, match="mean"):
        jaxdp.RepeatAndSelect(jaxdp.Gaussian(1.0), 0.5)
    with pytest.raises(ValueError, match="shape"):
        jaxdp.RepeatAndSelect(jaxdp.Gaussian(1.0), 2.0, -1.0)
    with pytest.raises(TypeError, match="releases nothing"):
        jaxdp.ConcentratedDP(1.0).sample(jax.random.key(0), 1.0)
