"""Two to four bins: bounds against quadrature, in both directions, at any noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from tests.matrix import matrix_truth
from tests.programs import jit


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def _root(n):
    column = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1, n)))
    return np.array([[column[i - j] if i >= j else 0.0 for j in range(n)] for i in range(n)])


def _dense(n):
    rng = np.random.default_rng(n)
    return np.tril(rng.random((n, n))) + 0.1 * np.eye(n)


def _settings():
    for matrix, bins in ((_root(6), 2), (_dense(7), 3), (_root(9), 3), (_dense(8), 4)):
        gram = matrix_truth.gram(matrix, bins)
        for factor in (0.5, 1.0, 4.0):
            yield matrix, bins, factor * np.sqrt(np.max(np.diag(gram)))


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_brackets_hold_the_quadrature(direction):
    """Breaks when a box counts for more than is in it, or for less; or a bracket is wide."""
    width = {2: 1e-3, 3: 1e-2, 4: 0.15}  # of delta
    for matrix, bins, sigma in _settings():
        run = jaxdp.MatrixMechanism(matrix, sigma, num_bins=bins)
        epsilons = np.array([0.1, 0.5, 1.5]) / sigma * np.sqrt(np.sum(matrix, axis=0).max())
        low, high = jaxdp.delta_bounds(run, epsilons, direction=direction)
        gram = matrix_truth.gram(matrix, bins) / sigma**2
        truth = matrix_truth.curves(gram, np.exp(epsilons))[direction == "add"]
        some = truth > 1e-9
        assert np.all(low[some] <= truth[some] * (1.0 + 1e-6))
        assert np.all(high[some] >= truth[some] * (1.0 - 1e-6))
        assert np.all(high[some] <= (1.0 + width[bins]) * low[some]), (bins, sigma, low, high)


def test_bins_of_different_weight_and_next_to_no_noise():
    """Breaks when the plane of the bins is missed, where one of them is far from the others."""
    matrix = np.array(
        [[1.0, 0.0, 0.0, 0.0], [3.0, 0.2, 0.0, 0.0], [0.0, 0.1, 1.0, 0.0], [0, 0, 2, 9]]
    )
    for sigma in (0.3, 40.0):
        for bins in (2, 3, 4):
            run = jaxdp.MatrixMechanism(matrix, sigma, num_bins=bins)
            low, high = jaxdp.epsilon_bounds(run, 1e-5)
            assert 0.0 < low <= high <= 1.08 * low
            # at least as the heaviest bin alone, one time in so many
            gram = matrix_truth.gram(matrix, bins) / sigma**2
            alone = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0, np.sqrt(gram.max())), 1.0 / bins)
            assert high >= 0.5 * jaxdp.epsilon(alone, 1e-5)


def test_far_out():
    """Breaks when what is beyond the grid shows at small delta."""
    run = jaxdp.MatrixMechanism(_root(6), 9.0, num_bins=3)
    low, high = jaxdp.epsilon_bounds(run, np.array([1e-12, 1e-20, 1e-60, 1e-100]))
    np.testing.assert_allclose(low[:2], high[:2], rtol=2e-3)
    np.testing.assert_allclose(low, high, rtol=0.08)  # (cells are as long as tails are there)


def test_a_toeplitz_strategy_is_its_matrix():
    """Breaks when the columns of a bin are listed with a shift."""
    matrix = _root(7)
    for bins in (2, 3):
        banded = jaxdp.MatrixMechanism(matrix[:, 0], 2.0, num_steps=7, num_bins=bins)
        dense = matrix.copy()
        dense[-1, 0] *= 1.0 + 1e-12  # (else it is recognised)
        listed = jaxdp.MatrixMechanism(dense, 2.0, num_bins=bins)
        np.testing.assert_allclose(
            jaxdp.epsilon_bounds(banded, 1e-6), jaxdp.epsilon_bounds(listed, 1e-6), rtol=1e-8
        )


def test_slopes_and_batches():
    """Breaks when a derivative is not that of the bound, or a batch is not its rows."""
    column = _root(6)[:, 0]

    def epsilon(sigma):
        run = jaxdp.MatrixMechanism(column, sigma, num_steps=6, num_bins=3)
        return jaxdp.epsilon(run, 1e-6)

    slope = jax.grad(epsilon)(2.0)
    difference = (epsilon(2.001) - epsilon(1.999)) / 0.002
    np.testing.assert_allclose(slope, difference, rtol=1e-3)
    rows = jit(jax.vmap(epsilon))(jnp.array([1.0, 2.0, 8.0]))
    np.testing.assert_allclose(rows[1], epsilon(2.0), rtol=1e-9)


def test_slopes_are_those_of_the_bound():
    """Breaks where the cells stand still as the bins move: the first slope was 7 % too large.

    (The bound is above the truth by what cells make coarse; they grow with the bins' distances.)
    """
    matrix = np.tril(np.arange(1.0, 10.0).reshape(3, 3)) / 4.0

    def delta(c):
        m = jaxdp.MatrixMechanism(c, 2.0, num_bins=3)
        return jaxdp.delta(m, 0.5, direction="remove")

    with jax.enable_x64(True):
        slope = np.asarray(jax.grad(delta)(matrix))
        step = 1e-4 * np.eye(9).reshape(9, 3, 3)[[0, 3, 8]]
        ends = np.asarray(delta(np.concatenate([matrix + step, matrix - step])))
    differences = (ends[:3] - ends[3:]) / 2e-4
    np.testing.assert_allclose(slope[[0, 1, 2], [0, 0, 2]], differences, rtol=1e-5)
