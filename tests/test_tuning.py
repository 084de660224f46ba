"""The best of several runs, by the law of one: events, orders, limits, and as a part of others."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

import calibrate
import jaxdp
from tests.programs import jit


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


MU = 0.25
GAUSSIAN = jaxdp.Gaussian(1.0 / MU)


def _generating(mean, shape):
    """f(p) = E p^K by its definition (Papernot & Steinke 2022, Definition 1)."""
    if math.isinf(shape):
        return lambda p: np.exp(-mean * (1.0 - p))

    def of(gamma):
        if shape:
            return shape * (1.0 - gamma) / (gamma * (1.0 - gamma**shape))
        return (1.0 - gamma) / (gamma * -math.log(gamma))

    gamma = optimize.brentq(lambda x: math.log(of(x) / mean), 1e-9, 1.0 - 1e-9)
    if not shape:
        return lambda p: np.log1p(-(1.0 - gamma) * p) / math.log(gamma)
    return lambda p: ((1.0 - (1.0 - gamma) * p) ** -shape - 1.0) / (gamma**-shape - 1.0)


@functools.cache
def _best_event(mean, shape, epsilon):
    """delta of the best event of outcomes in an order: all below c, then [c, a), then the event."""
    f = _generating(mean, shape)
    loss = np.linspace(-2.0, 3.0, 1001)
    p, q = stats.norm.sf(loss, MU**2 / 2, MU), stats.norm.sf(loss, -(MU**2) / 2, MU)

    def gain(tail):  # of an event from a on (rows), with all that is below c (columns) better
        return f(tail) - f(np.maximum(tail - tail[:, None], 0.0))

    value = gain(p) - math.exp(epsilon) * gain(q)
    return np.max(np.where(loss[:, None] >= loss, value, 0.0))


RUNS = [(1.5, 1.0), (10.0, 1.0), (10.0, 0.0), (6.0, 3.0), (10.0, math.inf), (200.0, 1.0)]


@pytest.mark.parametrize(("mean", "shape"), RUNS)
@pytest.mark.parametrize("delta", [1e-4, 1e-7])
def test_no_event_is_above_and_the_best_one_is_near(mean, shape, delta):
    """Breaks when an event of some order has more than the bound, or a bound is far from it."""
    low, high = jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(GAUSSIAN, mean, shape), delta)

    def excess(epsilon):
        return math.log(max(_best_event(mean, shape, epsilon), 1e-300) / delta)

    attained = optimize.brentq(excess, 0.0, 6.0)
    assert attained <= high
    assert low >= attained * (1.0 - 2e-3)
    assert high <= attained * 1.025


@pytest.mark.parametrize("epsilon", [0.3, 1.0])
def test_delta_between_the_best_event_and_the_bound(epsilon):
    """Breaks when delta from above is less than an event has, or delta from below is next to 0."""
    for mean, shape in RUNS:
        low, high = jaxdp.delta_bounds(jaxdp.RepeatAndSelect(GAUSSIAN, mean, shape), epsilon)
        attained = _best_event(mean, shape, epsilon)
        assert attained <= high
        assert 0.97 * attained <= low <= high


def test_bounds_from_below_are_no_more_than_any_order_has():
    """Breaks when a pair from below is more than one run, which a single run is the best of."""
    base = jaxdp.Composed([jaxdp.Laplace(3.0), jaxdp.Gaussian(5.0)])
    once = np.asarray(jaxdp.epsilon_bounds(base, np.array([1e-3, 1e-8, 1e-30])))
    alone = np.asarray(jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(base, 1.0), [1e-3, 1e-8, 1e-30]))
    assert np.all(alone[0] <= once[1])
    assert np.all(once[0] <= alone[1])
    np.testing.assert_allclose(alone, once, rtol=2e-3)


def test_a_composition_is_what_it_is_alone():
    """Breaks when runs that are compositions are taken by their moments."""
    one, many = GAUSSIAN, jaxdp.Repeated(jaxdp.Gaussian(20.0), 25)
    means = np.array([2.0, 30.0])
    a, b = (
        np.asarray(jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(x, means), 1e-6)) for x in (one, many)
    )
    np.testing.assert_allclose(a, b, rtol=1e-3)


def test_tuned_dp_sgd_is_bracketed_in_each_direction():
    """Breaks when bounds are as wide as moments leave them, or one direction is the other."""
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000)
    tuned = jaxdp.RepeatAndSelect(run, 10.0)
    found = {
        d: np.asarray(jaxdp.epsilon_bounds(tuned, 1e-6, direction=d))
        for d in ("remove", "add", "both")
    }
    for low, high in found.values():
        assert low <= high <= 1.015 * low
    np.testing.assert_allclose(found["both"], np.maximum(found["remove"], found["add"]), rtol=1e-6)
    moments = jaxdp.epsilon(tuned, 1e-6, method=jaxdp.Renyi())
    assert found["both"][1] < 0.7 * moments


def test_far_out_and_next_to_the_largest_loss():
    """Breaks when a tail is lost in a table, or a bounded loss is exceeded."""
    deltas = np.array([1e-20, 1e-50, 1e-100])
    low, high = jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(GAUSSIAN, 10.0), deltas)
    np.testing.assert_allclose(low, high, rtol=2e-3)
    bounded = jaxdp.RepeatAndSelect(jaxdp.Laplace(2.0), np.array([1.5, 10.0, 100.0]))
    largest = np.asarray(jaxdp.epsilon(bounded, 0.0))
    low, high = jaxdp.epsilon_bounds(bounded, 1e-7)
    assert np.all(high <= largest * (1.0 + 1e-9))
    assert np.all(low >= 0.99 * largest)
    # (No more is known of two runs' largest loss than what their sum allows for.)
    low, high = jaxdp.epsilon_bounds(
        jaxdp.RepeatAndSelect(jaxdp.Repeated(jaxdp.Laplace(2.0), 2), 3.0), 0
    )
    assert low == 0.0
    assert np.isfinite(high)


def test_failures_are_those_of_an_order_that_has_them_for_the_best():
    """Breaks when m failures count where some of them are of one selection."""
    tau, mean = 1e-3, 10.0
    m = jaxdp.RepeatAndSelect(jaxdp.ApproximateDP(0.5, tau), mean)
    truth = tau / (1.0 - (1.0 - 1.0 / mean) * (1.0 - tau))  # 1 - f(1 - tau), K being geometric
    low, high = jaxdp.delta_bounds(m, 8.0)
    np.testing.assert_allclose([low, high], truth, rtol=0.02)
    assert low <= truth <= high
    assert np.isinf(jaxdp.epsilon(m, 0.5 * tau))


def test_as_a_part_of_others():
    """Breaks when a pair that stands for a selection is not above it, or is not composed."""
    tuned = jaxdp.RepeatAndSelect(jaxdp.Gaussian(8.0), 5.0)
    one = jaxdp.epsilon_bounds(tuned, 1e-6)
    four = jaxdp.epsilon_bounds(jaxdp.Repeated(tuned, 4), 1e-6)
    beside = jaxdp.epsilon_bounds(jaxdp.Composed([tuned, jaxdp.Gaussian(2.0)]), 1e-6)
    sampled = jaxdp.epsilon_bounds(jaxdp.PoissonSampled(tuned, 0.1), 1e-6)
    again = jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(tuned, 2.0), 1e-6)
    for low, high in (four, beside, sampled, again):
        assert 0.0 < 0.8 * high < low <= high
    assert one[1] < four[0]
    assert jaxdp.epsilon(jaxdp.Gaussian(2.0), 1e-6) < beside[0]
    assert sampled[1] < one[0] < again[0]
    moments = jaxdp.epsilon(jaxdp.Repeated(tuned, 4), 1e-6, method=jaxdp.Renyi())
    assert four[1] < 0.7 * moments


def test_guarantees_without_a_law_are_tuned_from_above():
    """Breaks when a zCDP guarantee's own curve is not looked at, or a bound below is made up."""
    low, high = jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(jaxdp.ConcentratedDP(0.05), 10.0), 1e-6)
    once = jaxdp.epsilon(jaxdp.ConcentratedDP(0.05), 1e-6)
    assert low == 0.0
    assert once < high < 2.0 * once


def test_slopes_and_batches():
    """Breaks when a derivative is not that of the bound, or rows of a batch differ from one."""

    def epsilon(sigma, mean):
        run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.02), 200)
        return jaxdp.epsilon(jaxdp.RepeatAndSelect(run, mean), 1e-6)

    slopes = jax.grad(epsilon, argnums=(0, 1))(1.0, 8.0)
    for i, step in enumerate((1e-3, 1e-2)):
        at = [1.0, 8.0]
        ends = [epsilon(*(x + s * step * (j == i) for j, x in enumerate(at))) for s in (-1, 1)]
        np.testing.assert_allclose(slopes[i], (ends[1] - ends[0]) / (2.0 * step), rtol=0.02)
    sigmas = jnp.array([0.9, 1.0, 1.4])
    np.testing.assert_allclose(
        jit(jax.vmap(epsilon, (0, None)))(sigmas, 8.0)[1], epsilon(1.0, 8.0), rtol=1e-6
    )


def test_the_noise_that_tuning_needs():
    """Breaks when a calibration of tuned runs fails, or its answer does not pass a check."""

    def build(sigma):
        run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.01), 1000)
        return jaxdp.RepeatAndSelect(run, 10.0)

    found = calibrate.solve(build, epsilon=3.0, delta=1e-6)
    assert found.status == calibrate.Status.SOLVED
    assert jaxdp.epsilon(build(found.value), 1e-6) <= 3.0
    assert jaxdp.epsilon(build(0.99 * found.value), 1e-6) > 3.0


def test_large_shapes_are_next_to_a_poisson_law():
    """Breaks when 1/gamma - 1, the smaller the larger the shape is, loses its digits."""
    limit = jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(GAUSSIAN, 10.0, math.inf), 1e-6)
    for shape in (1e8, 1e12, 1e15, 1e100):
        found = jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(GAUSSIAN, 10.0, shape), 1e-6)
        np.testing.assert_allclose(found, limit, rtol=1e-4)


@pytest.mark.parametrize(("mean", "shape"), RUNS)
def test_two_outcomes_at_epsilon_0(mean, shape):
    """Breaks when delta at 0 is above the chance that any run is another one, or a law of one loss
    has too much mass: the better outcome is the best unless all runs are the worse one.
    """
    pair = jaxdp.FinitePair([0.3, 0.7], [0.0, 1.0])
    exact = 1.0 - _generating(mean, shape)(0.7)
    run = jaxdp.RepeatAndSelect(pair, mean, shape)
    low, high = jaxdp.delta_bounds(run, 0.0, direction="remove")
    assert exact * (1.0 - 1e-4) <= low <= exact * (1.0 + 1e-12)
    assert exact * (1.0 - 1e-12) <= high <= exact * (1.0 + 1e-4)


def test_many_runs_of_few_outcomes():
    """Breaks when what is better than all others is cut where the masses of an outcome are even."""
    run = jaxdp.RepeatAndSelect(jaxdp.RandomizedResponse(6.0), 1e4, math.inf)
    share = np.geomspace(1e-6, 1.0, 1001)
    p, q = ((x, 1.0 - x) for x in (1.0 / (1.0 + math.exp(6.0)), 1.0 / (1.0 + math.exp(-6.0))))
    f = _generating(1e4, math.inf)

    def event(x):  # a share (rows) of the likelier outcome, after one (columns) of the other
        better = 1.0 - x[0] * share
        return f(better) - f(np.maximum(better - x[1] * share[:, None], 0.0))

    attained = np.max(event(p) - math.exp(2.0) * event(q))
    low, high = jaxdp.delta_bounds(run, 2.0)
    assert attained * (1.0 - 3e-3) <= low <= attained * (1.0 + 1e-6)
    assert attained <= high
