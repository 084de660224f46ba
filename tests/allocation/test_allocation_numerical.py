"""The numerical law of random allocation through the public functions."""

import jax
import numpy as np
import pytest

import calibrate
import jaxdp
from jaxdp import _numerical_average
from tests.programs import jit

# sigma, t: epsilon at 1e-6, remove and add, by a contour integral
TRUTHS = np.array(
    [
        (1.0, 1e3, 0.171729, 0.149431),
        (2.0, 1e4, 0.0170629, 0.0170331),
        (0.5, 1e2, 6.393640, 1.481442),
    ]
)


RNG = np.random.default_rng(7)
NUMBER = 12
SIGMA = np.append(TRUTHS[:, 0], np.exp(RNG.uniform(np.log(0.4), np.log(3.0), NUMBER)))
STEPS = np.append(TRUTHS[:, 1], np.round(10 ** RNG.uniform(0.5, 4.0, NUMBER)))
DELTA = np.append([1e-6] * 3, 10 ** RNG.uniform(-9.0, -3.0, NUMBER))


@pytest.mark.parametrize("direction", ["remove", pytest.param("add", marks=pytest.mark.slow)])
def test_brackets_contain_the_truth_and_other_bounds_lie_above(direction):
    """Breaks when the law as the queries use it is not that of the mechanism, or is wide.

    Where epsilon is at least the lower bound, Rényi and decomposition bounds of delta there are
    at least delta: neither is below the numerical law by more than its bracket.
    """
    exact = TRUTHS[:, 3 if direction == "add" else 2]
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(SIGMA), STEPS)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, DELTA, direction=direction))
    assert (low[:3] <= exact * (1 + 2e-5)).all()
    assert (high[:3] >= exact * (1 - 2e-5)).all()
    assert (high - low < 5e-3 * high + 1e-5).all()
    orders = jaxdp.Renyi(orders=(2.0, 4.0, 8.0, 16.0, 32.0, 64.0))
    some = low > 0.0
    assert some.sum() > 9
    for method in (orders, jaxdp.Decomposition()):
        other = np.asarray(jaxdp.delta(m, low, direction=direction, method=method))
        assert (other >= DELTA * (1 - 1e-9))[some].all()


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_composed_averages(direction):
    """Breaks when the composition of averages is not tight in either direction.

    Ten of a thousand; one of ten thousand, 25 times. Then few steps, very often (added, brackets
    were 63 to 100 % wide) or with little noise (removed, 5 %).
    """
    sigma = np.array([1.0, 1.0, 2.15391356, 2.17257713, 2.42265164, 0.720060601])
    steps, epochs = np.array([100.0, 1e4, 4.0, 2.0, 4.0, 2.0]), np.array([10, 25, 31, 80, 51, 2])
    delta = np.array([1e-6, 1e-8, 7.65417e-11, 2.38354e-11, 9.55579e-12, 1.63991e-12])
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps, 1, epochs)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, delta, direction=direction))
    known = np.array([1.964, 0.3175] if direction == "remove" else [1.750, 0.3155])
    assert (low[:2] > 0.995 * known).all()
    assert (high[:2] < 1.005 * known).all()
    assert (high[:2] - low[:2] < 7e-3 * high[:2]).all()
    assert (high - low < 1e-2 * high).all()


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_short_and_unequal_blocks(direction):
    """Breaks when blocks of a few steps, or of two lengths, are loose: some bounds were trivial.

    Five of t steps: more steps are more private, whether or not 5 divides them. The bounds above
    are those of blocks, which are up to 8 % above the mechanism, the ones below a test's.
    """
    steps = np.array([12.0, 20.0, 500.0, 503.0, 505.0])
    program = jit(
        lambda t: jaxdp.epsilon_bounds(
            jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), t, 5), 1e-6, direction=direction
        )
    )
    low, high = (np.asarray(x) for x in program(steps))
    assert (low <= high).all()
    few, many = ([0.1, 0.09], 0.02) if direction == "remove" else ([0.06, 0.02], 3.5e-3)
    assert ((high - low) / high < [*few, many, many, many]).all()
    assert (np.diff(high) < 0.0).all()
    assert (np.diff(low) < 0.0).all()


def test_known_structure():
    """Breaks when blocks that cannot occur are computed, or long ones take the coarse lattice."""
    g = jaxdp.Gaussian(1.0)
    assert len(jaxdp.RandomAllocation(g, 1000, 10)._terms()) == 1
    assert len(jaxdp.RandomAllocation(g, 1003, 10)._terms()) == 2
    sizes = [
        _numerical_average._size(jaxdp.RandomAllocation(g, t, k), None)
        for t, k in ((1e3, 1), (1e4, 1), (1e6, 1), (1e6, 100))
    ]
    assert sizes == [16384, 32768, 262144, 16384]
    # leaves put by hand where k is known to divide t, and does not
    m = jaxdp.RandomAllocation(g, 10, 5)
    broken = jax.tree.map(lambda x: x + (np.asarray(x) == 10), m)
    assert bool(m._in_domain())
    assert not bool(broken._in_domain())


@pytest.mark.parametrize(
    ("sigma", "steps", "delta"),
    [(0.95, 25_000, 3e-11), (0.95, 100_000, 3e-11), (0.99, 22_365, 6.6e-11), (1.7, 64_296, 9.5e-4)],
)
def test_many_steps_of_which_one_may_lose_much(sigma, steps, delta):
    """Breaks where the lattice is too coarse for so many ratios: 1 to 4 % of epsilon."""
    low, high = jaxdp.epsilon_bounds(jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps), delta)
    assert 0.0 < low <= high
    assert high - low <= 6e-3 * high


def test_gradients_are_difference_quotients():
    """Breaks when the derivative with respect to sigma or real t, in the add direction, is not."""

    def upper(sigma, steps):
        m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)
        return jaxdp.epsilon(m, 1e-6, direction="add")

    slopes = jax.grad(upper, (0, 1))(1.0, 1000.0)
    near = np.array([(0.98, 1000.0), (1.02, 1000.0), (1.0, 970.0), (1.0, 1030.0)])
    values = np.asarray(upper(near[:, 0], near[:, 1]))
    assert float(slopes[0]) == pytest.approx((values[1] - values[0]) / 0.04, rel=0.02)
    assert float(slopes[1]) == pytest.approx((values[3] - values[2]) / 60.0, rel=0.02)


def test_calibration_of_sigma():
    """Breaks when the noise found does not meet the target, or much less noise does."""

    def run(sigma):
        return jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 1000)

    found = calibrate.solve(run, epsilon=0.5, delta=1e-6, direction="remove")
    assert int(found.status) == 0
    sigma = float(found.value) * np.array([1.0, 0.995])
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(run(sigma), 0.5, direction="remove"))
    assert high[0] <= 1e-6
    assert low[1] > 1e-6


@pytest.mark.slow
def test_calibration_of_steps_and_selected():
    """Breaks when the integer is not the last that meets the target."""

    def of_steps(steps):
        return jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), steps)

    def of_selected(selected):
        return jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 1000, selected)

    common = {"delta": 1e-6, "direction": "remove"}
    found = calibrate.solve_integer(of_steps, epsilon=0.25, bracket=(1, 10_000), **common)
    steps = float(found.value)
    # The lower bound of one step fewer shows that it would not do, up to the bracket's width.
    deltas = jaxdp.delta_bounds(of_steps(np.array([steps, 0.99 * steps])), 0.25, direction="remove")
    assert float(deltas[1][0]) <= 1e-6 < float(deltas[0][1])
    method = jaxdp.Renyi(orders=(4.0, 8.0, 16.0))
    found = calibrate.solve_integer(
        of_selected, epsilon=3.0, bracket=(1, 1000), method=method, **common
    )
    selected = int(found.value)
    assert 1 < selected < 1000
    reached = [
        float(jaxdp.epsilon(of_selected(float(k)), 1e-6, direction="remove", method=method))
        for k in (selected, selected + 1)
    ]
    assert reached[0] <= 3.0 < reached[1]
