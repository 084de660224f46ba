"""What every query promises on any mechanism: directions, broadcasting, the read-outs."""

import jax
import numpy as np
import pytest
import truth

import jaxdp


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


SAMPLED = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.3)
MECHANISMS = {
    "gaussian": jaxdp.Gaussian(0.8),
    "laplace": jaxdp.Laplace(1.3),
    "randomized_response": jaxdp.RandomizedResponse(1.1),
    "approximate": jaxdp.ApproximateDP(0.7, 0.05),
    "brownian": jaxdp.Brownian(0.4),
    "ou": jaxdp.OrnsteinUhlenbeck(0.4, 0.9, 0.5),
    "sampled": SAMPLED,
    "repeated": jaxdp.Repeated(SAMPLED, 4),
    "composed": jaxdp.Composed([jaxdp.Laplace(1.0), jaxdp.Gaussian(2.0)]),
}
every_mechanism = pytest.mark.parametrize("m", MECHANISMS.values(), ids=MECHANISMS.keys())


@every_mechanism
def test_both_is_the_larger_direction(m):
    """Breaks when a direction is read from the other end of the law or maximised early."""
    eps = np.array([-1.0, -0.2, 0.0, 0.3, 1.5])
    for query, argument in (
        (jaxdp.hockey_stick, eps),
        (jaxdp.delta, eps),
        (jaxdp.log_delta, eps),
        (jaxdp.renyi, np.array([1.0, 1.7, 9.0])),
        (jaxdp.epsilon, np.array([0.3, 0.06, 0.051])),
    ):
        add, remove, both = (
            np.asarray(query(m, argument, direction=d)) for d in ("add", "remove", "both")
        )
        np.testing.assert_allclose(both, np.maximum(add, remove), rtol=1e-10)


@every_mechanism
def test_the_upper_bounds_agree(m):
    """Breaks when delta, log_delta and hockey_stick are three different curves."""
    eps = np.array([-1.0, -0.2, 0.0, 0.3, 1.5])
    exact, bound = np.asarray(jaxdp.hockey_stick(m, eps)), np.asarray(jaxdp.delta(m, eps))
    assert np.all(bound >= exact * (1 - 1e-14))
    np.testing.assert_allclose(bound, exact, rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(np.exp(jaxdp.log_delta(m, eps)), bound, rtol=1e-11)


@every_mechanism
def test_epsilon_inverts_delta(m):
    """Breaks when delta at the returned epsilon exceeds the target, or epsilon has much slack."""
    target = np.array([0.2, 0.08, 0.055])
    eps = np.asarray(jaxdp.epsilon(m, target))
    assert np.all(eps >= 0)
    assert np.all(np.asarray(jaxdp.delta(m, eps)) <= target * (1 + 1e-9))
    inside = eps > 0
    assert np.all(np.asarray(jaxdp.delta(m, eps * (1 - 1e-6)))[inside] > target[inside] * 0.9)


@every_mechanism
def test_a_single_step_swaps_direction_under_inversion(m):
    """Breaks when H_g(P|Q) = 1 - g + g H_{1/g}(Q|P) fails: the directions are not one law."""
    if isinstance(m, jaxdp.Repeated | jaxdp.Composed):
        m = jaxdp.Composed([m.mechanism if isinstance(m, jaxdp.Repeated) else m.mechanisms[0]])
    eps = np.array([-2.0, -0.4, 0.0, 0.7, 1.6])
    g = np.exp(eps)
    for one, other in (("remove", "add"), ("add", "remove")):
        left = jaxdp.hockey_stick(m, eps, direction=one)
        right = -np.expm1(eps) + g * jaxdp.hockey_stick(m, -eps, direction=other)
        np.testing.assert_allclose(left, right, rtol=1e-11, atol=1e-13)


@every_mechanism
def test_advantage_is_delta_at_zero(m):
    """Breaks when the attack advantage is not the total variation distance."""
    np.testing.assert_allclose(jaxdp.advantage(m), jaxdp.delta(m, 0.0), rtol=1e-13)


@every_mechanism
def test_curve_is_convex_in_e_to_the_epsilon(m):
    """Breaks when the curve is not a hockey-stick curve: convex, falling, above 1 - g, below 1."""
    g = np.linspace(0.05, 4.0, 41)
    for direction in ("add", "remove"):
        h = np.asarray(jaxdp.hockey_stick(m, np.log(g), direction=direction))
        assert np.all(np.diff(h) <= 1e-13)
        assert np.all(h >= 1 - g - 1e-13)
        assert np.all((h >= 0) & (h <= 1))
        if not isinstance(m, jaxdp.Repeated | jaxdp.Composed):  # an upper bound need not be convex
            assert np.all(np.diff(h, 2) >= -1e-13)


# Trade-off curves


def test_tradeoff_of_the_gaussian():
    """Breaks when the type II error is not Phi(Phi^-1(1 - fpr) - mu), over the whole curve."""
    fpr = np.concatenate([np.geomspace(1e-12, 0.1, 12), np.linspace(0.15, 0.999, 18)])
    truths = np.array([float(truth.gaussian_tradeoff(0.7, f)) for f in fpr])
    got = np.asarray(jaxdp.tradeoff(jaxdp.Gaussian(1.0, 0.7), fpr))
    assert np.all(got <= truths * (1 + 1e-15)), "a lower bound on the error of every test"
    np.testing.assert_allclose(got, truths, rtol=1e-6)


def laplace_tradeoff(x, fpr):
    """Dong, Roth & Su 2022, Proposition A.6 (three pieces)."""
    low, high = np.exp(-x) / 2, 0.5
    return np.where(
        fpr < low,
        1 - np.exp(x) * fpr,
        np.where(fpr <= high, np.exp(-x) / (4 * np.maximum(fpr, low)), np.exp(-x) * (1 - fpr)),
    )


def test_tradeoff_of_laplace():
    """Breaks when one of the three pieces of the curve is missing."""
    fpr = np.linspace(0.0, 1.0, 41)
    got = np.asarray(jaxdp.tradeoff(jaxdp.Laplace(1.0), fpr))
    np.testing.assert_allclose(got, laplace_tradeoff(1.0, fpr), rtol=1e-6, atol=1e-15)


def test_tradeoff_of_approximate_dp():
    """Breaks when the (eps, delta) region loses one of its two sides."""
    fpr, e = np.linspace(0.0, 1.0, 41), np.exp(0.7)
    want = np.maximum(0, np.maximum(0.95 - e * fpr, (0.95 - fpr) / e))
    got = np.asarray(jaxdp.tradeoff(jaxdp.ApproximateDP(0.7, 0.05), fpr))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-12)


@every_mechanism
def test_tradeoff_agrees_with_the_curve(m):
    """Breaks when some (eps, delta) line lies above the reported trade-off by more than rounding."""
    fpr = np.linspace(0.02, 0.98, 13)
    got = np.asarray(jaxdp.tradeoff(m, fpr))
    eps = np.linspace(-4.0, 4.0, 81)[:, None]
    lines = 1 - np.exp(eps) * fpr - np.asarray(jaxdp.delta(m, eps))
    assert np.all(got >= np.maximum(lines.max(0), 0) - 1e-6)
    assert np.all(got <= 1 - fpr)
    assert np.all(np.diff(got) <= 1e-12)


@every_mechanism
def test_advantage_is_the_best_point_of_the_tradeoff(m):
    """Breaks when max(TPR - FPR) read off the trade-off differs from the advantage."""
    fpr = np.linspace(0.0, 1.0, 401)
    best = (1 - fpr - np.asarray(jaxdp.tradeoff(m, fpr))).max()
    advantage = float(jaxdp.advantage(m))
    assert best <= advantage * (1 + 1e-6)
    assert best >= advantage - 5e-3


# Shapes


def test_parameters_broadcast_against_the_argument():
    """Breaks when a query does not broadcast like numpy, or changes a value by doing so."""
    sigma, eps = np.array([[0.5], [1.0], [3.0]]), np.array([0.1, 1.0])
    m = jaxdp.Gaussian(sigma)
    for query, argument in (
        (jaxdp.delta, eps),
        (jaxdp.epsilon, eps / 100),
        (jaxdp.renyi, 1 + eps),
        (jaxdp.tradeoff, eps / 2),
    ):
        got = query(m, argument)
        assert got.shape == (3, 2)
        one = query(jaxdp.Gaussian(1.0), argument[1])
        assert one.shape == ()
        np.testing.assert_allclose(got[1, 1], one, rtol=1e-12)
    assert jaxdp.advantage(m).shape == (3, 1)


def test_stacked_parameters_inside_combinators():
    """Breaks when a combinator's count or probability does not broadcast with what it holds."""
    q, count = np.array([0.01, 0.1]), np.array([[10.0], [100.0], [1000.0]])
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(2.0), q), count)
    got = jaxdp.epsilon(run, 1e-5)
    assert got.shape == (3, 2)
    one = jaxdp.epsilon(jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(2.0), 0.1), 100.0), 1e-5)
    np.testing.assert_allclose(got[1, 1], one, rtol=1e-9)


def test_empty_arrays():
    """Breaks when a query of no points is an error."""
    assert jaxdp.delta(jaxdp.Gaussian(1.0), np.zeros((0,))).shape == (0,)
    assert jaxdp.epsilon(jaxdp.Gaussian(1.0), np.zeros((0, 3))).shape == (0, 3)
