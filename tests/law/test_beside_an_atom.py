"""A smooth step composed with one that is next to a single atom, against the sum over its outcomes.

Tilted towards epsilon such a pair is one outcome but for 1e-8: its other losses counted as rare,
which one step feels. Upper bounds on epsilon were infinite to add, and some percent off to remove.
Where its rarer outcome is all that gets to epsilon, but under Q is less than rounding takes from
the other, that outcome was lost: lower bounds on delta were 0.
"""

import jax
import numpy as np
import pytest
from scipy.stats import norm

import jaxdp


@pytest.fixture(autouse=True)
def doubles():
    """The curve is read at the bounds to 1e-12."""
    with jax.enable_x64(True):
        yield


def _log_delta(epsilon, sigma, p, q):
    losses = np.log(p) - np.log(q)
    x = (epsilon - losses) * sigma
    tails = p * norm.sf(x - 0.5 / sigma) - np.exp(epsilon) * q * norm.sf(x + 0.5 / sigma)
    return np.log(max(tails.sum(), 1e-300))


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_a_gaussian_beside_a_finite_pair(direction):
    """Masses of the rarer outcome from .3 to 1e-5 with it, and down to 1e-30 without."""
    p0, q0, sigma = (
        x.ravel()
        for x in np.meshgrid([0.3, 0.01, 1e-5], [1e-3, 1e-7, 1e-12, 1e-30], [0.5, 1.0, 4.0])
    )
    p, q = np.stack([p0, 1.0 - p0], -1), np.stack([q0, 1.0 - q0], -1)
    m = jaxdp.Composed([jaxdp.Gaussian(sigma), jaxdp.FinitePair(p, q)])
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, 1e-5, direction=direction))
    pairs = (p, q) if direction == "remove" else (q, p)
    for i in range(sigma.size):
        law = sigma[i], pairs[0][i], pairs[1][i]
        # (Where delta is just the mass of the rarer outcome the curve is flat: in deltas, then.)
        above, below = _log_delta(low[i], *law), _log_delta(high[i], *law)
        assert -1e-12 <= above - np.log(1e-5) <= 5e-3
        assert -1e-12 <= np.log(1e-5) - below <= 5e-4


@pytest.mark.parametrize("q0", [1e-12, 1e-30, 1e-60])
def test_beyond_the_rarer_outcome(q0):
    """Epsilons up to ten deviations beyond its loss, where delta falls from 1e-3 to 1e-27."""
    beyond = np.array([-1.5, -0.5, -0.1, 0.2, 0.33, 0.5, 0.6, 0.8, 1.5, 2.5])
    p, q = np.array([0.01, 0.99]), np.array([q0, 1.0 - q0])
    epsilons = np.log(p[0] / q[0]) + beyond
    m = jaxdp.Composed([jaxdp.Gaussian(4.0), jaxdp.FinitePair(p, q)])
    low, high = (np.log(x) for x in jaxdp.delta_bounds(m, epsilons, direction="remove"))
    truth = np.array([_log_delta(epsilon, 4.0, p, q) for epsilon in epsilons])
    assert np.all((low - 1e-12 <= truth) & (truth <= high + 1e-12))
    assert np.all((truth - low <= 1e-3) & (high - truth <= 2e-3))


def test_large_deltas_of_a_narrow_law():
    """All losses beyond epsilon: delta is 1 - e^epsilon Q{finite}. The plan looked at the mean."""
    pair = jaxdp.FinitePair([1.0, 0.0], [0.24, 0.76])
    delta = np.array([0.1, 0.3, 0.5, 0.7])
    truth = np.log1p(-delta) - np.log(0.24)
    for step in (jaxdp.Laplace(50.0), jaxdp.Gaussian(300.0)):
        m = jaxdp.Composed([pair, step])
        low, high = jaxdp.epsilon_bounds(m, delta, direction="remove")
        assert np.all((low <= truth * (1 + 1e-9)) & (truth <= high * (1 + 1e-9)))
        np.testing.assert_allclose(low, high, rtol=2e-5)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_beside_two_atoms_much_closer_than_the_lattice(direction):
    """Randomised response of next to nothing changes no curve by more than itself.

    Its lattice began at the larger of its losses, so that the law below lost the other: half of
    delta at epsilon 0, and epsilons were 0 for .0036.
    """
    nothing, epsilon = np.array([1e-15, 1e-12, 1e-9, 1e-6])[:, None], np.array([0.0, 1e-3])
    m = jaxdp.Composed([jaxdp.Gaussian(1.0), jaxdp.RandomizedResponse(nothing)])
    low, high = jaxdp.delta_bounds(m, epsilon, direction=direction, method=jaxdp.Numerical())
    truth = norm.cdf(0.5 - epsilon) - np.exp(epsilon) * norm.cdf(-0.5 - epsilon)
    assert np.all((low <= truth + nothing) & (truth - nothing <= high))
    np.testing.assert_array_less(truth * (1.0 - 1e-5) - nothing, low)
    np.testing.assert_array_less(high, truth * (1.0 + 1e-5) + nothing)
