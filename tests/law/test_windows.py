"""Windows that have to hold what the law above moves."""

import numpy as np
import pytest

import jaxdp


@pytest.mark.parametrize("grid_size", [8192, 16384, 32768])
def test_windows_see_what_is_moved_up_to_the_lowest_loss(grid_size):
    """Breaks when Chernoff's tilt of a window makes much of it: 9.1e-4 for 6.67e-4."""
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.DiscreteGaussian(1.0), 0.000111782), 10)
    method = jaxdp.Numerical(grid_size=grid_size)
    low, high = np.asarray(jaxdp.epsilon_bounds(m, 5e-7, direction="add", method=method))
    assert 6.65e-4 < low <= high < 6.68e-4
