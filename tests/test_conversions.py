"""Conversions between notions of privacy, against the oracle and the printed formulas."""

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


def random_orders(size, seed):
    rng = np.random.default_rng(seed)
    rdp, alpha = 10 ** rng.uniform(-4, 2, size), 1 + 10 ** rng.uniform(-3, 3, size)
    return rdp, alpha, 10 ** rng.uniform(-200, -0.3, size)


@pytest.mark.parametrize(("prefix", "form"), [("simple", "simple"), ("cks_", "optimal")])
def test_oracle_renyi_to_epsilon(prefix, form):
    """Breaks when either conversion differs from its source."""
    ids, p, values = truth.oracle(f"rdp_conversion/{prefix}")
    got = jaxdp.renyi_to_epsilon(p["rdp"], p["alpha"], p["delta"], form=form)
    truth.assert_exact(got, values, ids)


def test_oracle_renyi_to_delta():
    """Breaks when the inverse conversion differs from its source."""
    ids, p, values = truth.oracle("rdp_conversion/cksdelta")
    truth.assert_exact(jaxdp.renyi_to_delta(p["rdp"], p["alpha"], p["eps"]), values, ids)


def test_oracle_best_order():
    """Breaks when the best order is picked from a list instead of all reals."""
    ids, p, values = truth.oracle("rdp_conversion/gauss_opt_cks")
    truth.assert_exact(jaxdp.zcdp_to_epsilon(p["mu"] ** 2 / 2, p["delta"]), values, ids)


def test_oracle_best_order_of_the_simple_form():
    """Breaks when the simple form at its own best order is not Mironov's."""
    ids, p, values = truth.oracle("rdp_conversion/gauss_opt_simple")
    rho = p["mu"] ** 2 / 2
    alpha = 1 + np.sqrt(np.log(1 / p["delta"]) / rho)
    got = jaxdp.renyi_to_epsilon(rho * alpha, alpha, p["delta"], form="simple")
    truth.assert_exact(got, values, ids)


def test_renyi_to_epsilon_over_wide_parameters():
    """Breaks when an order near 1, a large order or a tiny delta loses accuracy."""
    columns = random_orders(300, seed=1)
    for form, formula in (("simple", truth.simple_epsilon), ("optimal", truth.optimal_epsilon)):
        truths = [formula(*c) for c in zip(*columns, strict=True)]
        scale = np.array([float(truth.simple_epsilon(*c)) for c in zip(*columns, strict=True)])
        got = np.asarray(jaxdp.renyi_to_epsilon(*columns, form=form))
        errors = np.array([float(truth.number(g) - t) for g, t in zip(got, truths, strict=True)])
        assert np.abs(errors / scale).max() <= 1e-14, truth.worst(errors / scale, *columns)


def test_optimal_form_never_exceeds_the_simple_one():
    """Breaks when the forms are swapped."""
    columns = random_orders(300, seed=2)
    optimal = jaxdp.renyi_to_epsilon(*columns)
    assert np.all(optimal <= jaxdp.renyi_to_epsilon(*columns, form="simple"))


def test_renyi_to_delta_over_wide_parameters():
    """Breaks when the exponent loses accuracy or delta is not clipped at 1."""
    rdp, alpha, _ = random_orders(300, seed=3)
    eps = rdp + np.random.default_rng(3).uniform(-1, 5, 300)
    truths = [truth.optimal_delta(*c) for c in zip(rdp, alpha, eps, strict=True)]
    keep = np.array([t > mp.mpf(10) ** -290 for t in truths])
    got = np.asarray(jaxdp.renyi_to_delta(rdp, alpha, eps))
    truth.assert_exact(got[keep], [t for t, k in zip(truths, keep, strict=True) if k])
    assert got.max() == 1


def test_zcdp_to_epsilon_is_a_tight_upper_bound():
    """Breaks when the optimal order is missed (loose) or rounding undercuts it (unsafe)."""
    rng = np.random.default_rng(4)
    rho, delta = 10 ** rng.uniform(-5, 1.5, 40), 10 ** rng.uniform(-30, -0.5, 40)
    truths = [max(truth.zcdp_epsilon(*c), mp.mpf(0)) for c in zip(rho, delta, strict=True)]
    truth.assert_certified(jaxdp.zcdp_to_epsilon(rho, delta), truths, rho, delta, rtol=1e-9)


def test_zcdp_to_delta_inverts_zcdp_to_epsilon():
    """Breaks when the two optimise over different orders."""
    rho = np.array([1e-3, 0.5, 10.0])
    delta = np.array([1e-6, 1e-12, 1e-3])
    back = jaxdp.zcdp_to_delta(rho, jaxdp.zcdp_to_epsilon(rho, delta))
    np.testing.assert_allclose(back, delta, rtol=1e-8)


def test_zcdp_bounds_the_gaussian_that_attains_it():
    """Breaks when zCDP's bound falls below the exact curve of a rho-zCDP mechanism."""
    delta = np.array([1e-2, 1e-5, 1e-10])
    assert np.all(jaxdp.zcdp_to_epsilon(0.5, delta) >= jaxdp.epsilon(jaxdp.Gaussian(1.0), delta))


def test_zcdp_and_renyi():
    """Breaks when alpha multiplies where it should divide."""
    assert float(jaxdp.zcdp_to_renyi(0.25, 8.0)) == 2.0
    assert float(jaxdp.renyi_to_zcdp(2.0, 8.0)) == 0.25


def test_gdp_to_delta_is_the_gaussian_curve():
    """Breaks when mu-GDP is not read as N(mu, 1) against N(0, 1)."""
    mu, eps = np.array([0.01, 1.0, 5.0]), np.array([0.05, -0.5, 30.0])
    truths = [truth.gaussian(*c) for c in zip(mu, eps, strict=True)]
    truth.assert_certified(jaxdp.gdp_to_delta(mu, eps), truths, mu, eps)


def test_gdp_to_epsilon_and_back_on_the_safe_side():
    """Breaks when either inverse lands on the unsafe side or further than 1e-9 away."""
    rng = np.random.default_rng(5)
    mu, delta = 10 ** rng.uniform(-3, 1, 40), 10 ** rng.uniform(-100, -3, 40)
    eps = np.asarray(jaxdp.gdp_to_epsilon(mu, delta))
    for m, d, e in zip(mu, delta, eps, strict=True):
        assert truth.gaussian(m, e) <= truth.number(d), (m, d, e)
        assert e == 0 or truth.gaussian(m, e * (1 - 1e-9)) > truth.number(d), (m, d, e)
    eps = 10 ** rng.uniform(-3, 2, 40)
    largest = np.asarray(jaxdp.epsilon_delta_to_gdp(eps, delta))
    for m, d, e in zip(largest, delta, eps, strict=True):
        assert truth.gaussian(m, e) <= truth.number(d), (m, d, e)
        assert truth.gaussian(m * (1 + 1e-9), e) > truth.number(d), (m, d, e)


def test_pure_dp_is_randomized_response():
    """Breaks when a pure bound is not attained by randomised response."""
    pure = np.array([1e-3, 1.0, 20.0])
    alpha = np.array([1.0, 2.5, 40.0])
    truths = [truth.randomized_response_renyi(*c) for c in zip(pure, alpha, strict=True)]
    truth.assert_exact(jaxdp.pure_to_renyi(pure, alpha), truths)
    for eps in (-0.5, 0.0, 0.3):
        truths = [truth.randomized_response(p, p * eps) for p in pure]
        truth.assert_exact(jaxdp.pure_to_delta(pure, pure * eps), truths, pure)
        truth.assert_certified(jaxdp.pure_to_delta(pure, pure * eps), truths, pure)


def test_pure_to_zcdp_is_valid_and_attained():
    """Breaks when rho is below some R_alpha/alpha, or above all of them."""
    pure, alpha = np.array([0.01, 1.0, 8.0])[:, None], np.geomspace(1.0, 1e4, 200)
    rho = np.asarray(jaxdp.pure_to_zcdp(pure))
    ratio = np.asarray(jaxdp.pure_to_renyi(pure, alpha)) / alpha
    assert np.all(ratio <= rho * (1 + 1e-13))
    np.testing.assert_allclose(ratio.max(1, keepdims=True), rho, rtol=1e-13)
    assert np.all(rho <= pure**2 / 2)


def test_orders_next_to_one_are_not_below_the_truth():
    """Breaks when 1 - 1/alpha is what rounding 1/alpha leaves of it: 5e-13 below at alpha = 1.0001.

    The reference minimises over real orders in 40 digits.
    """
    rho, epsilon = 10.150463266685135, 1.0191424605997956
    got = float(jaxdp.zcdp_to_delta(rho, epsilon))
    with mp.workdps(40):

        def log_delta(t):
            a1 = mp.exp(t)
            return a1 * ((a1 + 1) * mp.mpf(rho) - mp.mpf(epsilon) + t) - (a1 + 1) * mp.log1p(a1)

        low, high = mp.mpf(-12), mp.mpf(-6)
        for _ in range(120):
            third = (high - low) / 3
            left = log_delta(low + third) <= log_delta(high - third)
            low, high = (low, high - third) if left else (low + third, high)
        off = float(got / mp.exp(log_delta(low)) - 1)
    assert 0.0 <= off <= 2e-12, off
