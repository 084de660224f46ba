"""Calibration of noise under a worst-case honest fraction of the parties."""

import jax
import numpy as np
import pytest
from batches import ask

import calibrate
import jaxdp
from calibrate._distributed import gdl_decay
from jaxdp import _noise as noise

# parameter -> (what a fraction of honest parties leaves, bracket, targets epsilon and delta)
BOTH = [1.0, 1.0], [1e-3, 0.0]
TARGETS = {
    "variance": (lambda v, f: noise.PartialNoise(noise.Skellam(v, 2), f), (1.0, 1e4), (1.0, 1e-6)),
    "a": (lambda v, f: noise.PartialNoise(noise.DiscreteLaplace(v, 2), f), (0.05, 5.0), BOTH),
    "beta": (
        lambda v, f: noise.PartialNoise(noise.GeneralizedDiscreteLaplace(v, 0.45, 2), f),
        (0.3, 30.0),
        BOTH,
    ),
    "scale": (lambda v, f: noise.PartialNoise(jaxdp.Laplace(v), f), (0.5, 50.0), BOTH),
    "p": (
        lambda v, f: noise.PartialNoise(noise.NegativeBinomial(50.0, v), f),
        (1e-6, 1 - 1e-6),
        (1.0, 1e-6),
    ),
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=[] if x == "beta" else pytest.mark.slow) for x in TARGETS]
)
def test_calibration_under_an_honest_fraction(name):
    """Breaks when a calibrated parameter misses its target, or is not at its boundary.

    Discrete Laplace noise of which a quarter is left has the floor log 3 + log 1.4 at Delta = 2.
    """
    build, bracket, targets = TARGETS[name]
    direction = "add" if name == "p" else "both"
    epsilon, delta = (np.atleast_1d(x) for x in targets)
    fraction = np.full(epsilon.shape, 0.6)
    if name == "a":
        epsilon, delta, fraction = (
            np.append(x, y) for x, y in ((epsilon, 1.4), (delta, 0.0), (fraction, 0.25))
        )
    found = calibrate.solve(
        build,
        epsilon=epsilon,
        delta=delta,
        args=(fraction,),
        bracket=bracket,
        direction=direction,
    )
    solved = np.asarray(found.status) == calibrate.Status.SOLVED
    if name == "a":
        assert found.status[-1] == calibrate.Status.INFEASIBLE
        assert np.all(solved[:-1])
    else:
        assert np.all(solved)
    left = build(np.where(solved, found.value, 1.0), fraction)._left()
    private = solved & (delta > 0.0)
    reached = ask(jaxdp.delta, left, epsilon, direction=direction)[private]
    assert np.all(reached <= delta[private])
    np.testing.assert_allclose(reached, delta[private], rtol=1e-5)
    pure = solved & (delta == 0.0)
    if np.any(pure):
        largest = ask(jaxdp.epsilon, left, 0.0)[pure]
        assert np.all(largest <= epsilon[pure])
        np.testing.assert_allclose(largest, epsilon[pure], rtol=1e-5)


def test_targets_below_the_floor_are_explained():
    """Breaks when a target below the floor of its honest fraction is met, or not explained."""
    with pytest.raises(ValueError, match=r"floor 1\.09861"):
        gdl_decay(1.0, 0.25)
    assert np.isnan(jax.jit(gdl_decay)(1.0, 0.25))


def test_gdl_decay():
    """Breaks when a calibrated decay misses its target or its boundary, or its gradient is off."""
    epsilon, beta = np.array([0.8, 2.5, 3.0, 40.0]), np.array([0.7, 0.3, 1.5, 0.5])
    a = ask(gdl_decay, epsilon, beta, sensitivity=2)
    reached = ask(jaxdp.epsilon, noise.GeneralizedDiscreteLaplace(beta, a, 2), 0.0)
    assert np.all(reached <= epsilon)
    np.testing.assert_allclose(reached, epsilon, rtol=1e-10)
    slopes = jax.grad(lambda e, b: gdl_decay(e, b, 2), (0, 1))(2.5, 0.3)
    step = 1e-5 * np.array([1.0, -1.0, 0.0, 0.0])
    ends = ask(gdl_decay, 2.5 + step, 0.3 + np.roll(step, 2), sensitivity=2)
    np.testing.assert_allclose(slopes, (ends[::2] - ends[1::2]) / 2e-5, rtol=1e-6)
