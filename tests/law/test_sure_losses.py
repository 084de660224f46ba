"""Losses so far beyond epsilon that all of their mass counts: the window need not hold them.

Beside losses of 1e4 a bulk of .1 was narrower than the lattice: upper bounds on delta were .975 for
.539, and advantages .999 for .356.
"""

import jax
import numpy as np
import pytest
from scipy.stats import norm

import jaxdp


@pytest.fixture(autouse=True)
def doubles():
    """The bounds are compared to 1e-6."""
    with jax.enable_x64(True):
        yield


def test_far_shifts_of_a_mixture():
    """Any of n steps far out, and else next to nothing: delta is 1 - (1 - p)^n."""
    p = 0.0746
    steps, epsilon = np.array([1.0, 2.0, 3.0, 10.0])[:, None], np.array([1.0, 5.0, 20.0, 300.0])
    mixture = jaxdp.GaussianMixture(0.0733, [0.0, 0.0059, 13.57], [0.7, 0.3 - p, p])
    run = jaxdp.Repeated(mixture, steps)
    low, high = jaxdp.delta_bounds(run, epsilon, direction="remove", method=jaxdp.Numerical())
    truth = -np.expm1(steps * np.log1p(-p))
    assert np.all((low <= truth * (1.0 + 1e-9)) & (truth <= high * (1.0 + 1e-12)))
    np.testing.assert_allclose(low, truth * np.ones(4), rtol=1e-6)
    np.testing.assert_allclose(high, truth * np.ones(4), rtol=1e-6)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_beside_a_step_that_cancels_it(direction):
    """A mass far beyond epsilon that another step brings back to it does not count in full."""
    p, q = np.array([0.02, 0.98]), np.array([np.exp(-500.0), 1.0 - np.exp(-500.0)])
    far = jaxdp.FinitePair(p, q) if direction == "remove" else jaxdp.FinitePair(q, p)
    back = jaxdp.FinitePair([1e-9, 1.0 - 1e-9], [1.0 - 1e-9, 1e-9])  # losses of -20.7 and 20.7
    sigma, epsilon = 2.0, np.array([478.0, 479.0, 480.0, 500.0, 520.0])
    m = jaxdp.Composed([far, back, jaxdp.Gaussian(sigma)])
    low, high = jaxdp.delta_bounds(m, epsilon, direction=direction)
    loss, unlikely = np.log(p[0]) + 500.0, np.log(1e9 - 1.0)
    truth = np.zeros(5)
    for log_p, shift in ((np.log(1e-9), -unlikely), (np.log1p(-1e-9), unlikely)):
        at = (epsilon - loss - shift) * sigma
        excess = norm.sf(at - 0.5 / sigma) - np.exp(epsilon - loss - shift) * norm.sf(
            at + 0.5 / sigma
        )
        truth += p[0] * np.exp(log_p) * excess
    assert np.all((low <= truth * (1.0 + 1e-9)) & (truth <= high * (1.0 + 1e-9)))
    assert np.all((truth <= low * 1.001) & (high <= truth * 1.001))


def test_advantage_beside_next_to_nothing():
    """The law of a step with far shifts in both directions is not wider for a second step."""
    pair = (
        [0.0, 0.018, 0.015],
        [1e-12, 0.2, 0.8 - 1e-12],
        [0.012, 0.1, 23.3],
        [0.724, 0.0014, 0.2746],
    )
    step = jaxdp.DoubleGaussianMixture(0.05, *pair)
    both = jaxdp.Composed([step, jaxdp.RandomizedResponse(1e-12)])
    alone, beside = jaxdp.advantage(step), jaxdp.advantage(both)
    assert alone <= beside <= 1.001 * alone
