"""What bounds delta where a window is on another scale than the losses that make it up."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp


@pytest.mark.parametrize(("shift", "rate", "epsilon"), [(65.0, 1.9e-5, 0.0147), (900.0, 1e-9, 1.0)])
def test_total_variation_is_at_most_the_sum(shift, rate, epsilon):
    """Breaks when small losses of one term drown in the window of another: .91 for .0074."""
    sampled = jaxdp.PoissonSampled(jaxdp.Gaussian(0.0658, shift), rate)
    m = jaxdp.Composed([sampled, jaxdp.RandomizedResponse(epsilon)])
    own = np.tanh(0.5 * epsilon)
    low, high = np.asarray(jaxdp.delta_bounds(m, 0.0))
    assert own * (1 - 1e-6) <= high <= 1.05 * (own + rate)
    assert low <= own + rate


def test_the_cap_has_a_slope():
    """Breaks when what total variation bounds does not move with the parameters."""

    def of(epsilon):
        sampled = jaxdp.PoissonSampled(jaxdp.Gaussian(0.0658, 65.0), 1.9e-5)
        return jaxdp.delta(jaxdp.Composed([sampled, jaxdp.RandomizedResponse(epsilon)]), 0.0)

    with jax.enable_x64(True):
        x, h = jnp.float64(0.0147), 1e-6
        slope, change = float(jax.grad(of)(x)), float(of(x + h) - of(x - h)) / (2 * h)
    assert 0.49 < slope < 0.51
    assert abs(slope - change) < 1e-3


def test_a_delta_beyond_total_variation_needs_no_epsilon():
    """Breaks when epsilon is that of a grid's end where none is needed."""
    step = jaxdp.FinitePair([1.6663e-13, 1 - 1.6663e-13], [1.2312e-25, 1])
    m = jaxdp.RandomAllocation(step, 25)
    assert np.asarray(jaxdp.epsilon_bounds(m, 1e-10, direction="remove")).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("grid_size", [8192, 16384, 32768])
def test_windows_see_what_is_moved_up_to_the_lowest_loss(grid_size):
    """Breaks when Chernoff's tilt of a window makes much of it: 9.1e-4 for 6.67e-4."""
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.DiscreteGaussian(1.0), 0.000111782), 10)
    method = jaxdp.Numerical(grid_size=grid_size)
    low, high = np.asarray(jaxdp.epsilon_bounds(m, 5e-7, direction="add", method=method))
    assert 6.65e-4 < low <= high < 6.68e-4
