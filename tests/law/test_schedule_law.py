"""Schedules through the engine: many steps with their own parameters, in one composition."""

import jax
import numpy as np
import pytest

import jaxdp
from tests.programs import jit

STEPS = 60
DELTA = 1e-5
ENGINE = jaxdp.Numerical(4096)
_rng = np.random.default_rng(0)
SIGMA, RATE = _rng.uniform(0.8, 2.0, STEPS), _rng.uniform(0.01, 0.05, STEPS)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def sampled(sigma, q):
    return jaxdp.Schedule(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q))


def repeated(sigma, q, count):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), count)


@pytest.mark.slow
def test_equal_steps_are_repetitions_and_order_does_not_matter():
    """Breaks if a step is lost, padded in, misplaced, or paired with another's parameters."""
    order = _rng.permutation(STEPS)
    sigma = np.stack([SIGMA, SIGMA[order], np.ones(STEPS)])
    q = np.stack([RATE, RATE[order], np.full(STEPS, 0.02)])
    low, high = jaxdp.epsilon_bounds(sampled(sigma, q), DELTA, direction="remove", method=ENGINE)
    np.testing.assert_allclose(high[0], high[1], rtol=1e-9)
    np.testing.assert_allclose(low[0], low[1], rtol=1e-9)
    same = repeated(1.0, 0.02, STEPS)
    other_low, other_high = jaxdp.epsilon_bounds(same, DELTA, direction="remove", method=ENGINE)
    assert max(low[2], other_low) <= min(high[2], other_high)
    assert np.all(high - low < 5e-3 * high)


@pytest.mark.slow
def test_schedules_compose_with_repetitions():
    """Breaks if the two kinds of factors lose their common lattice."""
    parts = jaxdp.Composed([sampled(np.ones(STEPS), 0.02), repeated(1.0, 0.02, 40)])
    low, high = jaxdp.epsilon_bounds(parts, DELTA, direction="add", method=ENGINE)
    whole_low, whole_high = jaxdp.epsilon_bounds(
        repeated(1.0, 0.02, STEPS + 40), DELTA, direction="add", method=ENGINE
    )
    assert max(low, whole_low) <= min(high, whole_high)
    assert high - low < 5e-3 * high


@pytest.mark.slow
def test_laws_with_atoms_at_both_ends():
    """Breaks if an atom off the lattice moves to the unsafe side."""
    m = jaxdp.Schedule(jaxdp.Repeated(jaxdp.RandomizedResponse(np.full(4, 0.3)), 5))
    same = jaxdp.Repeated(jaxdp.RandomizedResponse(0.3), 20)
    low, high = jaxdp.delta_bounds(m, 1.5, direction="remove", method=ENGINE)
    other_low, other_high = jaxdp.delta_bounds(same, 1.5, direction="remove")
    assert low <= other_high
    assert other_low <= high < 1.02 * other_high


def test_reverse_mode_gradient_is_that_of_the_bound():
    """Breaks if a mask, a recomputation or the sum over steps loses a derivative."""

    def spent(sigma, q):
        return jaxdp.epsilon(sampled(sigma, q), DELTA, direction="remove", method=ENGINE)

    h = 1e-6
    moves = [_rng.normal(size=STEPS) * x for x in (SIGMA, RATE)]
    off = h * np.array([0, 1, -1, 0, 0]), h * np.array([0, 0, 0, 1, -1])
    points = (x + np.outer(o, m) for x, o, m in zip((SIGMA, RATE), off, moves, strict=True))
    values, slopes = jit(jax.vmap(jax.value_and_grad(spent, argnums=(0, 1))))(*points)
    differences = (values[1] - values[2], values[3] - values[4])
    for slope, move, difference in zip(slopes, moves, differences, strict=True):
        assert np.vdot(slope[0], move) == pytest.approx(float(difference) / (2 * h), rel=1e-5)
    assert np.all(np.asarray(slopes[0]) < 0)
    assert np.all(np.asarray(slopes[1]) > 0)
