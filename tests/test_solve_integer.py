"""Integer calibration: at the boundary, from either side."""

import jax
import numpy as np
import pytest

import calibrate
import jaxdp


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def _repeated(count, sigma):
    return jaxdp.Repeated(jaxdp.Gaussian(sigma), count)


def test_most_repetitions():
    """Breaks when the integer is not the last feasible one, anywhere in a batch."""
    sigma = np.array([10.0, 20.0, 3.0])
    found = calibrate.solve_integer(_repeated, epsilon=1.0, delta=1e-5, args=(sigma,))
    value = np.asarray(found.value)
    assert value[0] == 7  # exact: 0.98577 with 7, 1.06079 with 8
    assert np.isnan(value[2])
    assert np.asarray(found.status).tolist() == [0, 0, int(calibrate.Status.INFEASIBLE)]
    at, beyond = (
        np.asarray(jaxdp.delta(_repeated(value[:2] + more, sigma[:2]), 1.0)) for more in (0, 1)
    )
    assert (at <= 1e-5).all()
    assert (beyond > 1e-5).all()
    np.testing.assert_allclose(np.asarray(found.delta)[:2], at, rtol=1e-9)


def test_fewest_steps_where_privacy_rises():
    """Breaks when the direction of monotonicity is not found, or the wrong side is returned."""

    def less(count, sigma):  # the noise of `count` parties
        return jaxdp.Gaussian(sigma * count)

    found = calibrate.solve_integer(less, epsilon=1.0, delta=1e-5, args=(0.1,))
    assert int(found.value) == 38  # sigma 3.73063
    slack = calibrate.solve_integer(
        less, epsilon=1.0, delta=1e-5, args=(0.1,), bracket=(50, 60), direction="add"
    )
    assert (int(slack.value), int(slack.status)) == (50, int(calibrate.Status.SLACK))


def test_all_of_a_bracket_may_be_without_a_loss_that_large():
    """Breaks when ends of equal delta, 0, are told apart by their order: 1 of 100 was returned."""
    laplace = jaxdp.Laplace(10.0)
    for build, high in (
        (lambda n: jaxdp.Repeated(laplace, n), 100),
        (lambda n: jaxdp.RandomAllocation(laplace, 100, n), 20),
    ):
        found = calibrate.solve_integer(build, epsilon=20.0, delta=1e-5, bracket=(1, high))
        assert (int(found.value), int(found.status)) == (high, int(calibrate.Status.SLACK))
    found = calibrate.solve_integer(
        lambda t: jaxdp.RandomAllocation(laplace, t), epsilon=20.0, delta=1e-5, bracket=(2, 9)
    )
    assert int(found.value) == 2


def test_errors():
    """Breaks when a bracket that is not one passes."""
    for bracket in ((0, 5), (5, 5), (1.5, 3), (1, 2.0**60)):
        with pytest.raises(ValueError, match="bracket"):
            calibrate.solve_integer(
                _repeated, epsilon=1.0, delta=1e-5, args=(1.0,), bracket=bracket
            )
    with pytest.raises(ValueError, match="delta"):
        calibrate.solve_integer(_repeated, epsilon=1.0, delta=1.0, args=(1.0,))
    with pytest.raises(TypeError, match="mechanism"):
        calibrate.solve_integer(lambda n: n, epsilon=1.0, delta=1e-5)
    with pytest.raises(TypeError, match="differentiable"):
        jax.grad(
            lambda s: calibrate.solve_integer(_repeated, epsilon=s, delta=1e-5, args=(1.0,)).value
        )(1.0)
