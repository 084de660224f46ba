"""Random allocation over the whole range of epsilon: at 0, below it, and where delta underflows."""

import jax
import numpy as np
import pytest

import jaxdp

# Each row: sigma, t.
ROWS = np.array([(s, t) for s in (0.3, 0.5, 1.0, 2.0, 30.0) for t in (2.0, 100.0, 2e4)])
POSITIVE = np.array([1e-9, 1e-6, 1e-3, 0.03, 1.0])
EPSILONS = np.concatenate([-POSITIVE[::-1], [0.0], POSITIVE, [-50.0, -800.0, 50.0, 1000.0]])
FEW = len(POSITIVE)


@pytest.fixture(scope="module")
def curves():
    """Bounds of delta, below and above, in each direction: rows, epsilons."""
    # The last rows are steps that hide nothing, and steps that hide all.
    sigma = np.append(ROWS[:, 0], [1e-3, 5e-3, 1e2, 1e3])[:, None]
    steps = np.append(ROWS[:, 1], [10.0, 2e4, 10.0, 2e4])[:, None]
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)
    with jax.enable_x64(True):
        return {
            d: [np.asarray(x) for x in jaxdp.delta_bounds(m, EPSILONS, direction=d)]
            for d in ("remove", "add")
        }


def test_delta_at_zero_is_tight_and_the_same_in_both_directions(curves):
    """Breaks when the tilt vanishes at the mean: the bound above was 1, the one below 0."""
    (low, high), (least, most) = ([x[: len(ROWS), FEW] for x in curves[d]] for d in curves)
    assert (high - low <= 5e-3 * high).all()
    assert (low <= most).all()
    assert (least <= high).all()
    # sigma = 0.5, 1, 2 at t = 100, by a contour integral
    exact = np.array([0.18787895024, 0.05141635457, 0.02123654146])
    assert (low[[4, 7, 10]] <= exact).all()
    assert (exact <= high[[4, 7, 10]]).all()


def test_negative_epsilons_mirror_positive_ones(curves):
    """Breaks when a bound at epsilon < 0 is loose, or not that of H_g = 1 - g + g H'_{1/g}."""
    g = np.exp(-POSITIVE)
    for d, other in (("remove", "add"), ("add", "remove")):
        low, high = (x[: len(ROWS), FEW - 1 :: -1] for x in curves[d])
        mirrored = [
            -np.expm1(-POSITIVE) + g * x[: len(ROWS), FEW + 1 : 2 * FEW + 1] for x in curves[other]
        ]
        assert (low <= mirrored[1] * (1.0 + 1e-12)).all()
        assert (mirrored[0] <= high * (1.0 + 1e-12)).all()
        assert (high - low <= 6e-2 * high).all()
        # far below 0 delta is 1 - g
        far, exact = [x[: len(ROWS), 2 * FEW + 1] for x in curves[d]], -np.expm1(-50.0)
        assert (far[0] >= exact * (1.0 - 1e-12)).all()
        assert (far[1] <= exact + 1e-3).all()


def test_far_queries_are_neither_trivial_nor_below_the_truth(curves):
    """Breaks when ratios beyond the doubles are lost, or far tails become a delta of 1."""
    for d in curves:
        low, high = (x[len(ROWS) :] for x in curves[d])
        assert (low <= high).all()
        assert (high[:2, : 2 * FEW + 1] > 0.99).all()  # nothing is hidden
        assert (high[2:, [2 * FEW - 1, 2 * FEW]] <= [[1e-3, 1e-300], [1e-290, 1e-280]]).all()
        assert (high[2:, 2 * FEW + 3 :] < 1e-280).all()
    assert (curves["remove"][1][len(ROWS) : len(ROWS) + 2, -2] > 0.99).all()


def test_epsilon_is_zero_where_delta_covers_the_total_variation():
    """Breaks when the search for the query does not end at epsilon 0: the bound was infinite."""
    sigma, steps, delta = np.array([(2.59879, 49326.0, 9.16e-4), (2.0, 100.0, 0.1)]).T
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)
    for direction in ("remove", "add"):
        low, high = jaxdp.epsilon_bounds(m, delta, direction=direction)
        assert (np.asarray(low) == 0.0).all()
        assert (np.asarray(high) <= 1e-12).all()


@pytest.mark.parametrize(
    "steps", [50, *(pytest.param(x, marks=pytest.mark.slow) for x in (300, 21344)), 1e6]
)
def test_more_noise_is_never_worse_far_beyond_the_bulk(steps):
    """Breaks when an epsilon of many deviations is read at a nearer one: log delta -24 of -700.

    Where noise is so large that a lattice shows rounding alone (from 1e10 on), what one step loses
    is the bound: with 1e6 steps epsilon was inf, delta 1.
    """
    with jax.enable_x64(True):
        sigma = np.geomspace(0.5, 300.0, 14)
        m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)
        for direction in ("remove", "add"):
            log_delta = np.asarray(jaxdp.log_delta(m, 0.3, direction=direction))
            kept = np.maximum(log_delta, -640.0)  # deeper ones may stop anywhere beyond
            assert np.all(np.diff(kept) <= 1e-9), log_delta
            assert log_delta[-1] < -640.0
        sigma = np.geomspace(1e4, 1e150, 12)
        m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)
        step = jaxdp.Gaussian(sigma)
        assert np.all(jaxdp.epsilon(m, 1e-6) <= jaxdp.epsilon(step, 1e-6) * (1.0 + 1e-12))
        bound = np.asarray(jaxdp.log_delta(step, 1.0 / sigma))
        assert np.all(np.asarray(jaxdp.log_delta(m, 1.0 / sigma)) <= bound + 1e-9)


@pytest.mark.parametrize(("sigma", "steps"), [(0.3, 300), (0.4, 3445), (0.5, 300), (0.7, 3445)])
def test_many_epochs_to_add_are_narrow(sigma, steps):
    """Breaks when windows hold ratios that are moved back anyway: epsilon was (0, inf) or (0, 267).

    And the bound by moments, another derivation, is above the one below.
    """
    epochs = np.array([2.0, 10.0, 57.0])
    with jax.enable_x64(True):
        m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps, num_epochs=epochs)
        low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, 7.7e-6, direction="add"))
        moments = np.asarray(jaxdp.epsilon(m, 7.7e-6, direction="add", method=jaxdp.Renyi()))
    np.testing.assert_allclose(low, high, rtol=8e-3)
    assert np.all(low <= moments)
    assert np.all(high <= moments)


def test_two_steps_at_next_to_no_delta():
    """Breaks when points far behind the query have one unit: lower bounds above the upper ones."""
    rng = np.random.default_rng(0)
    sigma = np.exp(rng.uniform(np.log(0.2), np.log(1.5), 160))
    delta = 10.0 ** rng.uniform(-290, -60, 160)
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 2)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, delta, direction="remove"))
    # One ratio is large: half of it, and of a one, is to be e^epsilon.
    one = np.asarray(jaxdp.epsilon(jaxdp.Gaussian(sigma), delta))
    exact = np.logaddexp(one, 0.0) - np.log(2.0)
    assert np.all(low <= exact * (1.0 + 1e-6))
    assert np.all(high >= exact * (1.0 - 1e-6))
