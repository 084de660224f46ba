"""Mixtures with a revealed label, against enumeration and against the sum over their parts."""

import itertools

import jax
import numpy as np
import pytest

import calibrate
import jaxdp
from tests.programs import jit

PAIRS = [([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]), ([0.9, 0.1], [0.5, 0.5])]
WEIGHTS = [0.3, 0.7]
DIRECTIONS = pytest.mark.parametrize("direction", ["remove", "add"])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def _mixture(weights=WEIGHTS):
    return jaxdp.Mixture([jaxdp.FinitePair(*pair) for pair in PAIRS], weights)


def _joint(pairs=PAIRS, weights=WEIGHTS, rate=1.0):
    """p and q of (label, outcome), a part on a sample if rate < 1."""
    p, q = (
        np.concatenate([w * np.array(x[i]) for w, x in zip(weights, pairs, strict=True)])
        for i in (0, 1)
    )
    return (1.0 - rate) * q + rate * p, q


def _power(p, q, count):
    return tuple(
        np.array([np.prod(masses) for masses in itertools.product(*[x] * count)]) for x in (p, q)
    )


def _delta(p, q, epsilon, direction):
    p, q = (p, q) if direction == "remove" else (q, p)
    return np.maximum(p - np.exp(epsilon) * q, 0.0).sum()


@DIRECTIONS
def test_one_and_several_runs_against_enumeration(direction):
    """Breaks when a weight goes to P and not to Q, or a part's failure loses its weight."""
    epsilons = np.array([-0.5, 0.0, 0.4, 1.0])
    for rate in (1.0, 0.3):
        run = _mixture() if rate == 1.0 else jaxdp.PoissonSampled(_mixture(), rate)
        one = [_delta(*_joint(rate=rate), e, direction) for e in epsilons]
        low, high = jaxdp.delta_bounds(run, epsilons, direction=direction)
        np.testing.assert_allclose(high, one, rtol=1e-12)
        assert np.all((low <= np.array(one) * (1 + 1e-14)) & (high >= np.array(one) * (1 - 1e-14)))


@DIRECTIONS
def test_renyi_divergences_against_enumeration(direction):
    """Low and high orders: next to 1 nothing cancels, far out the largest part is all there is."""
    orders = np.array([1.0, 1.0 + 1e-9, 2.0, 7.5, 400.0])
    for rate in (1.0, 0.3):
        run = _mixture() if rate == 1.0 else jaxdp.PoissonSampled(_mixture(), rate)
        p, q = _joint(rate=rate) if direction == "remove" else _joint(rate=rate)[::-1]
        truth = [
            np.sum(p * np.log(p / q))
            if a < 1.1 and a - 1.0 < 1e-6
            else np.log(np.sum(p**a * q ** (1.0 - a))) / (a - 1.0)
            for a in orders[:-1]
        ]
        top = np.max(np.log(p / q) * 399.0 + np.log(p))
        truth.append((top + np.log(np.sum(np.exp(399.0 * np.log(p / q) + np.log(p) - top)))) / 399)
        np.testing.assert_allclose(jaxdp.renyi(run, orders, direction=direction), truth, rtol=1e-8)


@pytest.mark.slow
def test_a_random_number_of_steps_run_twice_against_enumeration():
    """A part that is a composition is tabulated, for this side and direction, then composed."""
    pairs = [jaxdp.FinitePair(*pair) for pair in PAIRS]
    run = jaxdp.Repeated(jaxdp.Mixture([jaxdp.Repeated(pairs[0], 2), pairs[1]], WEIGHTS), 2)
    parts = _power(*(np.array(x) for x in PAIRS[0]), 2), PAIRS[1]
    twice = _power(*_joint(parts), 2)
    epsilons = np.array([-0.5, 0.0, 0.4, 1.0])
    low, high = jaxdp.delta_bounds(run, epsilons, method=jaxdp.Numerical())
    truth = np.array([max(_delta(*twice, e, d) for d in ("remove", "add")) for e in epsilons])
    assert np.all((low <= truth * (1 + 1e-12)) & (high >= truth * (1 - 1e-12)))
    np.testing.assert_allclose(high, truth, rtol=1e-4)
    np.testing.assert_allclose(low, truth, rtol=0.1)


def test_failures_and_zero_weights():
    """A part that may fail, and one that is never drawn and would else be the worst."""
    weights = np.array([0.5, 0.5, 0.0])
    parts = [jaxdp.ApproximateDP(0.5, 1e-3), jaxdp.RandomizedResponse(0.2), jaxdp.Laplace(0.1)]
    run = jaxdp.Mixture(parts, weights)
    np.testing.assert_allclose(jaxdp.delta(run, 1.0), 5e-4, rtol=1e-12)
    assert np.isinf(jaxdp.epsilon(run, 4e-4))
    assert np.isclose(jaxdp.epsilon(run, 6e-4), 0.5, atol=1e-2)
    pure = jaxdp.Mixture([parts[1], parts[2]], [1.0, 0.0])
    np.testing.assert_allclose(jaxdp.epsilon(pure, 0.0), 0.2, rtol=1e-12)


def test_transforms_and_calibration():
    """Weights and parameters traced: under jit and vmap as without, slopes as differences."""

    def delta(sigma, share):
        parts = [jaxdp.Gaussian(sigma), jaxdp.Laplace(2.0)]
        run = jaxdp.Mixture(parts, jax.numpy.stack([share, 1.0 - share]))
        return jaxdp.delta(run, 1.0, direction="remove")

    at = np.array([[1.0, 0.3], [2.0, 0.6]])
    values = jit(jax.vmap(delta))(*at.T)
    np.testing.assert_allclose(values, [delta(*x) for x in at], rtol=1e-9)
    slopes = jit(jax.vmap(jax.grad(delta, (0, 1))))(*at.T)
    for i in (0, 1):
        step = 1e-4 * np.eye(2)[i]
        ends = [jax.vmap(delta)(*(at + x * step).T) for x in (1, -1)]
        np.testing.assert_allclose(slopes[i], (ends[0] - ends[1]) / 2e-4, rtol=1e-4)

    def build(sigma):
        return jaxdp.Mixture([jaxdp.Gaussian(sigma), jaxdp.Gaussian(2.0 * sigma)], [0.5, 0.5])

    sigma = calibrate.solve(build, epsilon=1.0, delta=1e-5).value
    assert 0.99e-5 <= jaxdp.delta(build(sigma), 1.0) <= 1e-5


def test_errors_and_samples():
    gaussian = jaxdp.Gaussian(1.0)
    for weights in ([0.5, 0.6], [1.0], 1.0, [1.5, -0.5]):
        with pytest.raises(ValueError, match="weights"):
            jaxdp.Mixture([gaussian, gaussian], weights)
    with pytest.raises(ValueError, match="mechanisms"):
        jaxdp.Mixture([], [])
    with pytest.raises(TypeError, match="mechanisms"):
        jaxdp.Mixture(gaussian, [1.0])
    run = jaxdp.Mixture([gaussian, jaxdp.Gaussian(100.0)], [0.5, 0.5])
    keys = jax.random.split(jax.random.key(0), 4000)
    labels, values = jax.vmap(lambda k: run.sample(k, 0.0))(keys)
    assert 0.45 < labels.mean() < 0.55
    assert np.std(values[labels == 0]) < 2.0 < 50.0 < np.std(values[labels == 1])
