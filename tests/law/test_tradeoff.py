"""Trade-off curves by the engine: below the truth everywhere, and close to it.

Against closed forms (composed Gaussians), exact enumeration (failures, sampled and composed finite
pairs, an allocation), Rényi divergences, and laws from below.
"""

import jax
import mpmath as mp
import numpy as np
import pytest
from scipy.stats import norm

import jaxdp
from tests.law import finite_truth
from tests.law.test_privacy_loss_exact import ROWS, truth
from tests.programs import jit

RATES = np.concatenate([np.geomspace(1e-10, 0.1, 100), np.linspace(0.11, 1.0, 100)])
NUMERICAL = jaxdp.Numerical()


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True), mp.workdps(finite_truth.DIGITS):
        yield


def sgd(sigma, rate=0.01, steps=1000.0):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), rate), steps)


def test_composed_gaussians_have_their_closed_form():
    """Breaks when some rate is read from a law that does not know it, or from the wrong one."""
    mu = np.array([0.02, 0.3, 1.0, 4.0])[:, None]
    runs = jaxdp.Repeated(jaxdp.Gaussian(10.0 / mu), 100)
    got = np.asarray(jaxdp.tradeoff(runs, RATES, method=NUMERICAL))
    want = norm.cdf(norm.isf(RATES) - mu)
    assert np.all(got <= want * (1 + 1e-13))
    np.testing.assert_allclose(1 - got, 1 - want, rtol=1e-5, atol=1e-12)  # what attacks detect
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-8)


@pytest.mark.slow
def test_exact_pairs_that_fail_or_reveal_nothing():
    """Breaks when a failure, a direction or an end of the curve is lost, or rounding unpaid."""
    rates = np.array([0.0, 1e-12, 1e-3, 0.05, 0.3, 0.7, 0.99, 1.0])
    p, q, rate, steps, _ = (np.array(x, np.float64) for x in zip(*ROWS, strict=True))
    # (a batch of pairs, whose steps differ: parameters vary over the rows, not along the rates)
    pairs = jaxdp.FinitePair(p[:, None, :], q[:, None, :])
    m = jaxdp.Repeated(jaxdp.PoissonSampled(pairs, rate[:, None]), steps[:, None])
    got = np.asarray(jaxdp.tradeoff(m, rates, method=jaxdp.Numerical(1024)))
    for row, outcomes in zip(got, truth(), strict=True):
        for found, fpr in zip(row, rates, strict=True):
            want = min(finite_truth.tradeoff(outcomes, fpr, add) for add in (False, True))
            assert mp.mpf(float(found)) <= want + mp.mpf(10) ** -50
            assert found >= float(want) - 2e-3


@pytest.mark.slow
def test_the_default_is_never_looser_than_renyi():
    """Breaks when the default is the looser method."""
    m, rates = sgd(1.0), RATES[::20]
    got = np.asarray(jaxdp.tradeoff(m, rates))
    renyi = np.asarray(jaxdp.tradeoff(m, rates, method=jaxdp.Renyi((1.5, 2.0, 4.0, 8.0, 16.0))))
    assert np.all(got >= renyi)
    assert np.max(got - renyi) > 0.01


def test_dp_sgd_is_bracketed():
    """Breaks when a rate is read from the wrong law, or one direction is forgotten."""
    m = sgd(1.0)
    got = np.asarray(jaxdp.tradeoff(m, RATES))
    below = jaxdp.privacy_loss(m, delta=np.array([1e-2, 1e-5]), side="lower")
    most = np.min([below.tradeoff(RATES[:, None], direction=d) for d in ("remove", "add")], axis=0)
    most = most.min(-1)
    assert np.all(got <= most)
    np.testing.assert_allclose(got, most, rtol=2e-3, atol=1e-4)
    assert np.all(np.diff(got) <= 1e-12)


def test_an_allocation_of_two_steps_by_enumeration():
    """Breaks when the curve's points are joined from above, or the directions trade places."""
    epsilon = 1.5
    m = jaxdp.RandomAllocation(jaxdp.RandomizedResponse(epsilon), 2)
    rates = np.array([0.0, 1e-3, 0.05, 0.3, 0.7, 1.0])
    got = np.asarray(jaxdp.tradeoff(m, rates))
    one = finite_truth.response(epsilon)
    outcomes = [
        ((p0 * q1 + q0 * p1) / 2, q0 * q1) for p0, q0 in one for p1, q1 in one if q0 * q1 > 0
    ]
    want = [
        float(min(finite_truth.tradeoff(outcomes, fpr, add) for add in (False, True)))
        for fpr in rates
    ]
    assert np.all(got <= np.array(want) * (1 + 1e-12))
    np.testing.assert_allclose(got, want, atol=5e-3)


def test_transforms():
    """Breaks when the value or the gradient depends on who asks."""
    asked = np.array([0.999, 1.0, 1.001, 1.0]), np.array([0.5, 0.5, 0.5, 1.5])

    def one(sigma, rate):
        return jaxdp.tradeoff(sgd(sigma), rate)

    found = jit(jax.vmap(jax.value_and_grad(one, argnums=(0, 1))))(*asked)
    value, slopes = jax.tree.map(np.asarray, found)
    assert slopes[0][1] == pytest.approx(float(value[2] - value[0]) / 0.002, rel=1e-3)
    assert -1.0 < slopes[1][1] < 0.0
    assert np.isnan(value[3]), "a rate beyond 1, traced"


@pytest.mark.slow
def test_callers_in_32_bits():
    """Breaks when rounding goes up: what is promised is a bound from below."""
    value = float(jaxdp.tradeoff(sgd(1.0), 0.5))
    with jax.enable_x64(False):
        single = np.asarray(jaxdp.tradeoff(sgd(1.0), 0.5))
        assert single.dtype == np.float32
        assert value - 1e-6 < float(single) <= value * (1 + 1e-12)
