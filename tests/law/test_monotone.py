"""Properties of the engine over random runs of a sampled Gaussian, both directions, one program."""

import jax
import numpy as np
import pytest

from jaxdp._law import epsilon_bounds
from jaxdp._law._terms import orient
from tests.law import laws
from tests.programs import jit

RUNS = 8


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def epsilons():
    """(low, high) of sigma, q, first, second, delta, add: the steps of two terms, perhaps 0."""

    def row(x):
        sigma, q, first, second, delta, add = x
        terms = tuple(
            orient(laws.sampled_gaussian(sigma, q, count), add > 0) for count in (first, second)
        )
        return epsilon_bounds(terms, delta, size=8192)

    def run(*columns):
        columns = np.broadcast_arrays(*(np.asarray(c, float) for c in columns))
        with jax.enable_x64(True):
            low, high = jit(lambda x: jax.lax.map(row, x, batch_size=8))(columns)
        return np.asarray(low), np.asarray(high)

    return run


@pytest.fixture(scope="module")
def runs(epsilons):
    """Random settings and changed ones: more sigma, less q, fewer steps, and the steps halved."""
    rng = np.random.default_rng(11)
    sigma, q = 10 ** rng.uniform(-0.3, 0.6, RUNS), 10 ** rng.uniform(-3.0, -0.3, RUNS)
    steps = np.round(10 ** rng.uniform(0.5, 4.0, RUNS))
    delta, add = 10 ** rng.uniform(-12.0, -3.0, RUNS), np.arange(RUNS) % 2
    more = 1.0 + 10 ** rng.uniform(-3.0, -0.3, RUNS)
    half = np.floor(steps / 2)
    columns = [
        (sigma, q, steps, 0 * steps, delta, add),
        (sigma * more, q, steps, 0 * steps, delta, add),
        (sigma, q / more, steps, 0 * steps, delta, add),
        (sigma, q, np.maximum(steps - np.round(steps * (more - 1)), 1), 0 * steps, delta, add),
        (sigma, q, half, steps - half, delta, add),
        (sigma, q, steps, 0 * steps, np.minimum(delta * more, 0.5), add),
    ]
    low, high = epsilons(*(np.concatenate(c) for c in zip(*columns, strict=True)))
    return low.reshape(6, RUNS), high.reshape(6, RUNS)


@pytest.mark.parametrize(
    ("row", "what"),
    [(1, "more noise"), (2, "less sampling"), (3, "fewer steps"), (5, "more delta")],
)
def test_bounds_are_monotone(runs, row, what):
    """Breaks if a plan suits one setting and not its neighbour."""
    low, high = runs
    assert np.all(low[0] > 0.0)
    assert np.all(low[row] <= high[0]), what
    # as bounds too, to within what the grid costs
    assert np.all(high[row] <= high[0] * (1 + 1e-3)), what
    assert np.all(low[row] <= low[0] * (1 + 1e-3) + 1e-12), what


def test_steps_in_two_terms_are_steps_in_one(runs):
    """Breaks if a composition of terms loses track of a lattice, a centre or a mass."""
    low, high = runs
    assert np.all(low[4] <= high[0])
    assert np.all(low[0] <= high[4])
    np.testing.assert_allclose(high[4], high[0], rtol=2e-3)
    np.testing.assert_allclose(low[4], low[0], rtol=2e-3)
