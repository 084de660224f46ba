"""Runs of two losses, whose curve is level between multiples of the larger one, then leaps.

An estimate of where such a curve is at delta may be one leap off. `epsilon_bounds` of three steps
with losses 1200 (of mass .001) and 0 was (1199.9957, 1199.9677) at 1e-5, truth 1199.9977, and of
losses of 1e4 the bound below was above the truth: read 650 and more from where it is met, powers
were cut off. A rarer loss beside one atom left a bulk narrower than what was known of its place:
upper bounds were those of epsilon 0, or the largest loss.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import gammaln

import jaxdp

RUNS = np.array(
    [  # losses, log of the larger one's mass, steps, delta
        [1200.0, 0.0, np.log(1e-3), 3.0, 1e-5],
        [2500.0, 0.0, np.log(1e-3), 3.0, 1e-5],
        [1e4, 0.0, np.log(1e-3), 3.0, 1e-5],
        [2000.0, 0.0, np.log(0.01), 10.0, 3e-4],
        [1e4, 1.0, np.log(0.3), 5.0, 0.05],
        [842.679142, 0.5, np.log(6.126053e-4), 3.0, 1.0067051e-3],
        [401.647065, 1.0, np.log(0.01298708), 3.0, 0.0308619],
        [5.0, 1.0, -30.0, 3.0, 1e-5],
        [5.0, 1.0, -50.0, 10.0, 1e-5],
        [700.0, 0.5, -100.0, 3.0, 1e-5],
    ]
)
EPSILONS = np.array(  # the same without delta, with epsilon
    [
        [5.0, 1.0, -20.0, 3.0, 2.5],
        [700.0, 0.5, -1e5, 3.0, 1.0],
        [5.0, 3.0, -20.0, 3.0, 8.0],
        [5.0, 0.01, -25.0, 100.0, 0.5],
        [5.0, 1.0, -350.0, 3.0, 2.9],
    ]
)


@pytest.fixture(autouse=True)
def doubles():
    """The bounds are compared to 1e-8."""
    with jax.enable_x64(True):
        yield


def _run(row, direction):
    """Of the pair for remove; for add of it reversed, with what Q lacks at an infinite loss."""
    losses, log_p = row[:2], row[2]
    log_masses, lost = jnp.stack([log_p, jnp.log1p(-jnp.exp(log_p))]), 0.0
    if direction == "add":
        lost = -jnp.sum(jnp.exp(log_masses) * jnp.expm1(-losses))
        losses, log_masses = -losses, log_masses - losses
    return jaxdp.Repeated(jaxdp.LossDistribution(losses, log_masses, lost), row[3])


def _delta(row, epsilon):
    """Of the binomial law of how many losses are the larger one: a sum of positive terms."""
    large, small, log_p, steps = row[:4]
    k = np.arange(steps + 1.0)
    log_mass = gammaln(steps + 1.0) - gammaln(k + 1.0) - gammaln(steps - k + 1.0)
    log_mass += k * log_p + (steps - k) * np.log1p(-np.exp(log_p))
    gap = np.minimum(epsilon - (k * large + (steps - k) * small), 0.0)
    return np.sum(np.exp(log_mass) * -np.expm1(gap))


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_epsilon(direction):
    """Breaks when epsilon is read from powers that overflow, or only where a plan expects it."""

    def ask(row):
        return jaxdp.epsilon_bounds(_run(row, direction), row[4], direction=direction)

    low, high = jax.vmap(ask)(RUNS)
    for row, below, above in zip(RUNS, np.asarray(low), np.asarray(high), strict=True):
        assert _delta(row, below * (1.0 - 1e-13)) >= row[4] * (1.0 - 1e-8), row
        assert _delta(row, above * (1.0 + 1e-13)) <= row[4] * (1.0 + 1e-8), row
        assert above - below <= 1e-9 * above, row


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_delta(direction):
    """Breaks when a window does not hold the one atom that nearly all of the mass is at."""

    def ask(row):
        return jaxdp.delta_bounds(_run(row, direction), row[4], direction=direction)

    low, high = (np.asarray(x) for x in jax.vmap(ask)(EPSILONS))
    truth = np.array([_delta(row, row[4]) for row in EPSILONS])
    assert np.all((low <= truth * (1.0 + 1e-10)) & (truth <= high * (1.0 + 1e-10)))
    np.testing.assert_allclose(high, low, rtol=1e-6)
