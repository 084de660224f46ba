"""Distributed noise against the oracle: exact to 1e-10, certified values on the safe side."""

import mpmath as mp
import numpy as np
import pytest
import truth
from batches import ask

import jaxdp
from jaxdp import _noise as noise

RTOL = 1e-10
LAWS = {
    "skellam": lambda p: noise.Skellam(p["lambda"], p["D"]),
    "discrete_laplace": lambda p: noise.DiscreteLaplace(p["a"], p["D"]),
    "discrete_gaussian": lambda p: noise.DiscreteGaussian(np.sqrt(p["sigma2"]), p["D"]),
    "gdl": lambda p: noise.GeneralizedDiscreteLaplace(p["beta"], p["a"], p["D"]),
    "negbin": lambda p: noise.NegativeBinomial(p["r"], p["p"], p["D"]),
    "gamma_difference": lambda p: noise.GammaDifference(p["beta"], 1.0, p["x"]),
    "laplace_nfold": lambda p: noise.LaplaceSum(p["n"], 1.0, p["x"]),
}


@pytest.mark.parametrize(
    "group", ["skellam", "discrete_laplace", "discrete_gaussian", "gdl", "laplace_nfold"]
)
def test_renyi(group):
    """Breaks when a Rényi divergence is off by 1e-10."""
    ids, p, values = truth.oracle(f"{group}/rdp")
    truth.assert_exact(ask(jaxdp.renyi, LAWS[group](p), p["alpha"]), values, ids, rtol=RTOL)


@pytest.mark.parametrize("group", sorted(set(LAWS) - {"negbin"}))
def test_delta(group):
    """Breaks when delta is off by 1e-10, or certified delta or epsilon is too small, in any case.

    Epsilon is asked at the float below delta, where the truth is above the case's epsilon.
    """
    ids, p, values = truth.oracle(f"{group}/delta")
    m = LAWS[group](p)
    if group == "laplace_nfold":  # the same law; as LaplaceSum in the Rényi cases and properties
        m = noise.GammaDifference(p["n"], 1.0, p["x"])
    truth.assert_exact(ask(jaxdp.hockey_stick, m, p["eps"]), values, ids, rtol=RTOL)
    truth.assert_certified(ask(jaxdp.delta, m, p["eps"]), values, ids, rtol=RTOL)
    below = np.nextafter([float(v) for v in values], 0.0)
    truth.assert_certified(ask(jaxdp.epsilon, m, below), map(mp.mpf, p["eps"]), ids, rtol=RTOL)


@pytest.mark.parametrize(("side", "direction"), [("up", "remove"), ("down", "add")])
def test_negative_binomial(side, direction):
    """Breaks when a direction of the asymmetric mechanism is wrong or unsafe."""
    ids, p, values = truth.oracle(f"negbin/{side}")
    m = LAWS["negbin"](p)
    exact = ask(jaxdp.hockey_stick, m, p["eps"], direction=direction)
    upper = ask(jaxdp.delta, m, p["eps"], direction=direction)
    zero = np.array([v == 0 for v in values])
    assert np.all(exact[zero] == 0.0)
    assert np.all(upper[zero] == 0.0)
    kept = [v for v in values if v != 0]
    truth.assert_exact(exact[~zero], kept, ids, rtol=RTOL)
    truth.assert_certified(upper[~zero], kept, ids, rtol=RTOL)


def test_negative_binomial_epsilon():
    """Breaks when the certified epsilon of a direction, asked at a case's delta, is too small."""
    for side, direction in (("up", "remove"), ("down", "add")):
        ids, p, values = truth.oracle(f"negbin/{side}")
        m, deltas = LAWS["negbin"](p), np.array([float(v) for v in values])
        found = ask(jaxdp.epsilon, m, np.nextafter(deltas, 0.0), direction=direction)
        # delta = 0 says no more than that the case is at or beyond the largest loss
        kept = deltas > 0.0
        assert np.all(found[~kept] <= p["eps"][~kept])
        epsilons, names = p["eps"][kept], np.array(ids)[kept]
        truth.assert_certified(found[kept], map(mp.mpf, epsilons), names, rtol=RTOL)


@pytest.mark.parametrize("group", ["gdl", "gamma_difference"])
def test_pure_epsilon(group):
    """Breaks when the tight pure-DP epsilon is off by 1e-10 in any regime of beta."""
    ids, p, values = truth.oracle(f"{group}/eps")
    m = LAWS[group](p)
    found = ask(jaxdp.epsilon, m, 0.0)
    truth.assert_exact(found, values, ids, rtol=RTOL)
    # the parameters are decimals: a float64 of them may be less by a rounding
    assert truth.excess(found, values).min() >= -4e-16


def test_gdl_floor():
    """Breaks when the infimum over a is off."""
    ids, p, values = truth.oracle("gdl/floor")
    truth.assert_exact(noise.gdl_epsilon_floor(p["beta"], p["D"]), values, ids)


def test_skellam_bound():
    """Breaks when the bound of Agarwal et al. is misprinted."""
    ids, p, values = truth.oracle("skellam/agarwal")
    bound = noise.skellam_renyi_bound(LAWS["skellam"](p), p["alpha"])
    truth.assert_exact(bound, values, ids)
