"""What every query promises on any mechanism: directions, broadcasting, the read-outs."""

import functools
import types

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
EXACT = {
    "gaussian": jaxdp.OrnsteinUhlenbeck(0.4, 0.9, 0.5),
    "laplace": jaxdp.Laplace(1.3),
    "approximate": jaxdp.ApproximateDP(0.7, 0.05),
    "sampled": SAMPLED,
}
BOUNDED = {
    "repeated": jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Laplace(1.0), 0.3), 4),
    "composed": jaxdp.Composed([jaxdp.Laplace(1.0), jaxdp.Gaussian(2.0)]),
}
MECHANISMS = EXACT | BOUNDED
# Numerical laws have tests of their own; here their programs would take minutes to compile, as
# would searches of real orders: `test_epsilon_inverts_delta_at_real_orders` has those.
ORDERS_OF_BOUNDS = (1.25, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0)
BY = dict.fromkeys(BOUNDED, jaxdp.Renyi(ORDERS_OF_BOUNDS))
every_mechanism = pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow if x == "composed" else ()) for x in MECHANISMS]
)
every_exact_mechanism = pytest.mark.parametrize("name", EXACT)

DIRECTIONS = ("add", "remove", "both")
LEVELS = np.linspace(0.125, 4.0, 32)  # e^epsilon, evenly spaced
EPSILONS = np.concatenate([np.log(LEVELS), -np.log(LEVELS)])
ORDERS = np.array([1.0, 1.7, 9.0])
DELTAS = np.array([0.2, 0.08, 0.055])
RATES = np.linspace(0.0, 1.0, 9)


@functools.cache
def readings(name):
    """Every query of one mechanism, evaluated once for the whole file."""
    m, by = MECHANISMS[name], {"method": BY.get(name)}
    return types.SimpleNamespace(
        curve={
            d: np.asarray(jaxdp.hockey_stick(m, EPSILONS, direction=d, **by)) for d in DIRECTIONS
        },
        renyi={d: np.asarray(jaxdp.renyi(m, ORDERS, direction=d)) for d in DIRECTIONS},
        epsilon={d: np.asarray(jaxdp.epsilon(m, DELTAS, direction=d, **by)) for d in DIRECTIONS},
        delta=np.asarray(jaxdp.delta(m, EPSILONS, **by)),
        log_delta=np.asarray(jaxdp.log_delta(m, EPSILONS, **by)),
        tradeoff=np.asarray(jaxdp.tradeoff(m, RATES, **by)),
        advantage=float(jaxdp.advantage(m, **by)),
    )


@every_mechanism
def test_both_is_the_larger_direction(name):
    """Breaks when a direction is read from the other end of the law or maximised early."""
    read = readings(name)
    for by in (read.curve, read.renyi, read.epsilon):
        np.testing.assert_allclose(by["both"], np.maximum(by["add"], by["remove"]), rtol=1e-10)


@every_mechanism
def test_the_upper_bounds_agree(name):
    """Breaks when delta, log_delta and hockey_stick are three different curves."""
    read = readings(name)
    assert np.all(read.delta >= read.curve["both"] * (1 - 1e-14))
    np.testing.assert_allclose(read.delta, read.curve["both"], rtol=1e-11, atol=1e-300)
    np.testing.assert_allclose(np.exp(read.log_delta), read.delta, rtol=1e-11)


@every_mechanism
def test_epsilon_inverts_delta(name):
    """Breaks when delta at the returned epsilon exceeds the target, or epsilon has much slack."""
    eps = readings(name).epsilon["both"]
    assert np.all(eps >= 0)
    m = MECHANISMS[name]
    around = np.stack([eps, eps * (1 - 1e-6)])
    at, before = np.asarray(jaxdp.delta(m, around, method=BY.get(name)))
    assert np.all(at <= DELTAS * (1 + 1e-9))
    assert np.all(before[eps > 0] > (DELTAS * 0.9)[eps > 0])


def test_epsilon_inverts_delta_at_real_orders():
    """Breaks when the search over all orders ends above the best of some, or in another's bound."""
    m, by = MECHANISMS["repeated"], {"method": jaxdp.Renyi(), "direction": "remove"}
    eps = np.asarray(jaxdp.epsilon(m, DELTAS, **by))
    assert np.all(eps > 0)
    assert np.all(eps <= readings("repeated").epsilon["remove"])
    at, before = np.asarray(jaxdp.delta(m, np.stack([eps, eps * (1 - 1e-6)]), **by))
    assert np.all(at <= DELTAS * (1 + 1e-9))
    assert np.all(before > DELTAS * 0.9)


@every_exact_mechanism
def test_directions_are_one_law(name):
    """Breaks when H_g(P|Q) = 1 - g + g H_{1/g}(Q|P) fails."""
    curve, g = readings(name).curve, np.exp(EPSILONS)
    for one, other in (("remove", "add"), ("add", "remove")):
        mirrored = np.roll(curve[other], LEVELS.size)  # the curve at -epsilon
        np.testing.assert_allclose(curve[one], 1 - g + g * mirrored, rtol=1e-10, atol=1e-13)


@every_mechanism
def test_advantage_is_delta_at_zero(name):
    """Breaks when the attack advantage is not the total variation distance."""
    at_zero = readings(name).delta[LEVELS.tolist().index(1.0)]
    np.testing.assert_allclose(readings(name).advantage, at_zero, rtol=1e-12)


@every_mechanism
def test_curve_is_a_hockey_stick_curve(name):
    """Breaks when a curve rises, leaves [max(0, 1 - g), 1], or an exact one is not convex in g."""
    for direction in ("add", "remove"):
        h = readings(name).curve[direction][: LEVELS.size]
        assert np.all(np.diff(h) <= 1e-13)
        assert np.all(h >= np.maximum(0, 1 - LEVELS) - 1e-13)
        assert np.all(h <= 1)
        if name in EXACT:  # an upper bound need not be convex
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
    low = np.exp(-x) / 2
    middle = np.exp(-x) / (4 * np.maximum(fpr, low))
    return np.where(
        fpr < low, 1 - np.exp(x) * fpr, np.where(fpr <= 0.5, middle, np.exp(-x) * (1 - fpr))
    )


def test_tradeoff_of_laplace():
    """Breaks when one of the three pieces of the curve is missing."""
    want = laplace_tradeoff(1 / 1.3, RATES)
    np.testing.assert_allclose(readings("laplace").tradeoff, want, rtol=1e-6, atol=1e-12)


def test_tradeoff_of_approximate_dp():
    """Breaks when the (eps, delta) region loses one of its two sides."""
    e = np.exp(0.7)
    want = np.maximum(0, np.maximum(0.95 - e * RATES, (0.95 - RATES) / e))
    np.testing.assert_allclose(readings("approximate").tradeoff, want, rtol=1e-6, atol=1e-12)


@every_mechanism
def test_tradeoff_is_the_envelope_of_the_curve(name):
    """Breaks when some (eps, delta) line lies above the trade-off, or it is no trade-off curve."""
    read = readings(name)
    lines = 1 - np.exp(EPSILONS)[:, None] * RATES - read.delta[:, None]
    assert np.all(read.tradeoff >= np.maximum(lines.max(0), 0) - 1e-6)
    assert np.all(read.tradeoff <= 1 - RATES)
    assert np.all(np.diff(read.tradeoff) <= 1e-12)
    assert np.all(1 - RATES - read.tradeoff <= read.advantage * (1 + 1e-6))


# Shapes


@pytest.mark.parametrize(
    ("query", "argument"),
    [
        (jaxdp.delta, [0.1, 1.0]),
        (jaxdp.epsilon, [1e-3, 1e-2]),
        (jaxdp.renyi, [1.1, 2.0]),
        (jaxdp.tradeoff, [0.05, 0.2]),
    ],
)
def test_parameters_broadcast_against_the_argument(query, argument):
    """Breaks when a query does not broadcast like numpy, or changes a value by doing so."""
    sigma, argument = np.array([[0.5], [1.0], [3.0]]), np.array(argument)
    got, one = query(jaxdp.Gaussian(sigma), argument), query(jaxdp.Gaussian(1.0), argument[1])
    assert (got.shape, one.shape) == ((3, 2), ())
    np.testing.assert_allclose(got[1, 1], one, rtol=1e-9)


def test_stacked_parameters_inside_combinators():
    """Breaks when a combinator's count or probability does not broadcast with what it holds."""
    q, count = np.array([0.01, 0.1]), np.array([[10.0], [1000.0]])

    def run(q, count):
        return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Laplace(2.0), q), count)

    got, one = jaxdp.epsilon(run(q, count), 1e-5), jaxdp.epsilon(run(0.1, 10.0), 1e-5)
    assert (got.shape, one.shape) == ((2, 2), ())
    np.testing.assert_allclose(got[0, 1], one, rtol=1e-9)


def test_advantage_has_the_shape_of_the_parameters():
    """Breaks when a query without an argument forgets the parameters' shape."""
    assert jaxdp.advantage(jaxdp.Gaussian(np.ones((3, 1)), np.ones(2))).shape == (3, 2)


@pytest.mark.parametrize("query", [jaxdp.delta, jaxdp.epsilon, jaxdp.renyi, jaxdp.tradeoff])
def test_empty_arrays(query):
    """Breaks when a query of no points is an error."""
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1), 10)
    for m in (jaxdp.Gaussian(1.0), run):
        assert query(m, np.zeros((0, 3))).shape == (0, 3)
        assert query(m, np.zeros(0)).shape == (0,)
