"""The Gaussian curve against the oracle and against mpmath at the exact inputs."""

import jax
import mpmath as mp
import numpy as np
import pytest
import truth

import jaxdp


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def cases(size, seed):
    """Random (mu, eps) with delta from about 1e-300 to nearly 1; one in five eps is negative."""
    rng = np.random.default_rng(seed)
    mu = 10 ** rng.uniform(-4, np.log10(30), size)
    eps = (mu / 2 + rng.uniform(-6, 36.9, size)) * mu
    eps = np.where(rng.random(size) < 0.2, -(10 ** rng.uniform(-4, 2, size)), eps)
    return mu, eps


def test_oracle_delta():
    """Breaks when delta loses relative accuracy anywhere from 0.5 down to 1e-96."""
    ids, p, values = truth.oracle("gaussian/delta")
    gaussian = jaxdp.Gaussian(1.0, p["mu"])
    truth.assert_exact(jaxdp.delta(gaussian, p["eps"]), values, ids)
    truth.assert_exact(jaxdp.hockey_stick(gaussian, p["eps"]), values, ids)


def test_oracle_negative_epsilon():
    """Breaks when the curve is only right for eps >= 0."""
    ids, p, values = truth.oracle("gaussian/H_")
    for direction in ("add", "remove", "both"):
        got = jaxdp.hockey_stick(jaxdp.Gaussian(1.0, p["mu"]), p["eps"], direction=direction)
        truth.assert_exact(got, values, ids)


def test_oracle_epsilon():
    """Breaks when epsilon(delta) is looser than 1e-9 or falls below the truth."""
    ids, p, values = truth.oracle("gaussian/eps")
    got = jaxdp.epsilon(jaxdp.Gaussian(1.0, p["mu"]), p["delta"])
    errors = truth.excess(got, values)
    # the decimal inputs are rounded to doubles: half an ulp each
    assert errors.min() >= -4e-16, truth.worst(errors, ids)
    assert errors.max() <= 1e-9, truth.worst(errors, ids)


def test_oracle_renyi():
    """Breaks when the order or the variance enters the divergence wrongly."""
    _, p, values = truth.oracle("gaussian/rdp")
    truth.assert_exact(jaxdp.renyi(jaxdp.Gaussian(p["sigma"]), p["alpha"]), values)


def test_delta_is_certified():
    """Breaks at one delta of 2000 below the truth, or inflated by more than 2e-12."""
    mu, eps = cases(2000, seed=1)
    truths = [truth.gaussian(m, e) for m, e in zip(mu, eps, strict=True)]
    truth.assert_certified(jaxdp.delta(jaxdp.Gaussian(1.0, mu), eps), truths, mu, eps)
    truth.assert_exact(jaxdp.hockey_stick(jaxdp.Gaussian(1.0, mu), eps), truths, mu, eps)


def test_delta_is_certified_when_mu_is_a_quotient():
    """Breaks when the rounding of sensitivity/sigma, amplified in the tail, is not allowed for."""
    rng = np.random.default_rng(2)
    mu, eps = cases(400, seed=2)
    sigma = 10 ** rng.uniform(-3, 3, 400)
    sensitivity = mu * sigma
    truths = [truth.gaussian_ratio(*c) for c in zip(sigma, sensitivity, eps, strict=True)]
    got = jaxdp.delta(jaxdp.Gaussian(sigma, sensitivity), eps)
    truth.assert_certified(got, truths, sigma, sensitivity, eps)


def test_log_delta_is_certified():
    """Breaks when log delta falls below the truth, at delta near 1 included, or drifts by 2e-12."""
    mu, eps = cases(400, seed=3)
    got = np.asarray(jaxdp.log_delta(jaxdp.Gaussian(1.0, mu), eps))
    with mp.workdps(120):
        errors = np.array(
            [
                float(truth.number(g) - mp.log(truth.gaussian(m, e)))
                for g, m, e in zip(got, mu, eps, strict=True)
            ]
        )
    assert errors.min() >= 0, truth.worst(errors, mu, eps, got)
    assert errors.max() <= 2e-12, truth.worst(errors, mu, eps, got)


def test_log_delta_far_below_the_smallest_float():
    """Breaks when log delta is taken of a delta that underflows."""
    mu, eps = np.array([1.0, 1.0, 0.01]), np.array([50.0, 1000.0, 3.0])
    with mp.workdps(60):
        truths = [mp.log(truth.gaussian(m, e)) for m, e in zip(mu, eps, strict=True)]
    truth.assert_exact(jaxdp.log_delta(jaxdp.Gaussian(1.0, mu), eps), truths, mu, eps)


def test_delta_below_the_smallest_float_is_not_zero():
    """Breaks when an upper bound underflows to 0, which no positive delta is below."""
    assert float(jaxdp.delta(jaxdp.Gaussian(1.0), 50.0)) > 0  # truth 2e-536


def test_epsilon_is_certified_and_tight():
    """Breaks when epsilon is on the wrong side at one of 300 deltas from 0.5 to 1e-300."""
    rng = np.random.default_rng(4)
    mu, delta = 10 ** rng.uniform(-4, 1.5, 300), 10 ** rng.uniform(-300, -0.3, 300)
    got = np.asarray(jaxdp.epsilon(jaxdp.Gaussian(1.0, mu), delta))
    for m, d, e in zip(mu, delta, got, strict=True):
        assert truth.gaussian(m, e) <= truth.number(d), (m, d, e)
        assert e == 0 or truth.gaussian(m, e * (1 - 1e-9)) > truth.number(d), (m, d, e)
    assert (got == 0).any(), "a delta above the total variation asks for no epsilon"


@pytest.mark.parametrize("mu", [1e-8, 1e-6, 100.0, 1000.0])
def test_extreme_sensitivity(mu):
    """Breaks when a difference of nearly equal normal tails is formed by subtraction."""
    eps = mu * (mu / 2 + np.array([-0.3, 3.0, 20.0, 36.0]))
    truths = [truth.gaussian(mu, e) for e in eps]
    truth.assert_exact(jaxdp.hockey_stick(jaxdp.Gaussian(1.0, mu), eps), truths, eps)
    truth.assert_certified(jaxdp.delta(jaxdp.Gaussian(1.0, mu), eps), truths, eps, rtol=1e-11)


def test_epsilon_of_pure_dp_is_infinite():
    """Breaks when delta = 0 gives a finite epsilon to a mechanism that is never pure."""
    assert np.isinf(jaxdp.epsilon(jaxdp.Gaussian(1.0), 0.0))


def test_renyi_at_one_and_infinity():
    """Breaks when KL or the max divergence is not the limit of the family."""
    gaussian = jaxdp.Gaussian(2.0, 3.0)
    np.testing.assert_allclose(jaxdp.renyi(gaussian, np.array([1.0, 2.0])), [1.125, 2.25], 1e-15)
    assert np.isinf(jaxdp.renyi(gaussian, np.inf))
