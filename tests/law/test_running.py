"""Running sums and extremes beside NumPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp._law import _allowances, _running

RUNNING = {
    _allowances.running: np.cumsum,
    _running.minimum: np.minimum.accumulate,
    _running.maximum: np.maximum.accumulate,
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("size", [1, 31, 1025])
def test_running(size, reverse):
    """Breaks at the seams of blocks, in what pads them, and where a sum cancels.

    The numbers fall over 600 orders of magnitude, both ways: a sum that were a difference of sums
    would have nothing of the small ones.
    """
    rng = np.random.default_rng(size)
    scale = 10.0 ** rng.permutation(np.linspace(-300.0, 280.0, size))
    for values in (rng.random(size), scale, np.sort(scale), np.sort(scale)[::-1]):
        for ours, numpy in RUNNING.items():
            expected = numpy(values[::-1])[::-1] if reverse else numpy(values)
            found = np.asarray(ours(jnp.asarray(values), reverse=reverse))
            error = 2.0**-52 * (size + _allowances.running_additions(size))
            tolerance = error if ours is _allowances.running else 0.0
            np.testing.assert_allclose(found, expected, rtol=tolerance)


@pytest.mark.parametrize("rate", [0.0, 1e-5, 0.3, 40.0])
@pytest.mark.parametrize("size", [1, 33, 8192])
def test_fading(size, rate):
    """Breaks at the seams of blocks, and where a share is that of another distance."""
    rng = np.random.default_rng(size)
    values = 10.0 ** rng.uniform(-250.0, 0.0, size)
    expected = np.zeros(size, np.longdouble)
    stay, total = np.exp(-np.longdouble(rate)), np.longdouble(0.0)
    for k in range(size)[::-1]:
        expected[k] = total = values[k] + stay * total
    found = np.asarray(_allowances.fading(jnp.asarray(values), jnp.float64(rate)))
    off = np.max(np.abs(found / expected - 1.0))
    assert off <= 2.0**-52 * (_allowances.running_additions(size) + 745)


def test_what_overflows_stays_in_its_place():
    """Breaks if an infinite term makes sums before it nan."""
    values = np.ones(100)
    values[70] = np.inf
    found = np.asarray(_allowances.running(jnp.asarray(values)))
    np.testing.assert_array_equal(found[:70], np.arange(1.0, 71.0))
    assert np.all(found[70:] >= 1e290)


def test_gradients():
    """Breaks if a derivative goes to another term than the sum's or the extreme's own."""
    values = jnp.asarray(np.random.default_rng(0).random(70))
    matrix = jax.jacrev(_allowances.running)(values)
    np.testing.assert_array_equal(matrix, np.tril(np.ones((70, 70))))
    matrix = np.asarray(jax.jacfwd(_running.minimum)(values))
    np.testing.assert_array_equal(matrix @ values, np.minimum.accumulate(values))
    np.testing.assert_array_equal(matrix.sum(axis=1), np.ones(70))
