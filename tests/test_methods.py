"""Closed form, Rényi and the engine answer the same question, and agree where they should."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp
from jaxdp._methods._base import UpperBound

SGD = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000)
TRUTH = 1.828237  # of SGD at delta = 1e-5, to 7 digits


def test_bounds_bracket_the_closed_form():
    """Breaks when either side of the engine crosses the exact curve of a Gaussian."""
    with jax.enable_x64(True):
        m, delta = jaxdp.Gaussian(1.3), np.array([1e-3, 1e-8, 1e-20, 1e-60])
        low, high = jaxdp.epsilon_bounds(m, delta, method=jaxdp.Numerical())
        exact = np.asarray(jaxdp.epsilon_bounds(m, delta))
    assert np.all(np.asarray(low) <= exact[1])
    assert np.all(exact[0] <= np.asarray(high))
    assert np.all(np.asarray(high) <= 1.003 * np.asarray(low))
    np.testing.assert_allclose(exact[0], exact[1], rtol=1e-11)


def test_subsampled_training_is_bracketed():
    """Breaks when the engine loses the published epsilon, or its bracket widens beyond 0.1 %."""
    with jax.enable_x64(True):
        low, high = jaxdp.epsilon_bounds(SGD, 1e-5)
        assert float(low) <= TRUTH + 5e-7
        assert TRUTH - 5e-7 <= float(high) <= 1.001 * float(low)
        renyi = float(jaxdp.epsilon(SGD, 1e-5, method=jaxdp.Renyi()))
        few = float(jaxdp.epsilon(SGD, 1e-5, method=jaxdp.Renyi(orders=(8.0, 9.0, 10.0))))
    assert float(high) < renyi <= few


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_sampled_failures_are_bracketed(direction):
    """Breaks when outcomes that give a record away are lost where it may not have been sampled."""
    m = jaxdp.PoissonSampled(jaxdp.ApproximateDP(0.7, 0.05), 0.3)
    epsilon = np.array([-0.3, 0.0, 0.1, 0.2, 0.3])
    with jax.enable_x64(True):
        exact = np.asarray(jaxdp.delta(m, epsilon, direction=direction))
        low, high = jaxdp.delta_bounds(m, epsilon, direction=direction, method=jaxdp.Numerical())
    assert np.all(np.asarray(low) <= exact * (1.0 + 1e-11))
    assert np.all(exact <= np.asarray(high) * (1.0 + 1e-11))
    np.testing.assert_allclose(high, exact, rtol=1e-8)
    np.testing.assert_allclose(low, exact, rtol=2e-3)


def test_float32_bounds_are_rounded_apart():
    """Breaks when a 32-bit caller gets a lower bound above, or an upper bound below, the truth."""
    low, high = jaxdp.delta_bounds(jaxdp.Gaussian(1.0), 1.0)
    assert low.dtype == high.dtype == np.float32
    assert float(low) < 0.126936737506643946 < float(high)


def test_a_method_that_cannot_answer_is_refused():
    """Breaks when an unavailable method is replaced silently."""
    with pytest.raises(ValueError, match="closed form"):
        jaxdp.epsilon(SGD, 1e-5, method=jaxdp.Analytic())
    mixed = jaxdp.Composed([jaxdp.Laplace(1.0), jaxdp.Gaussian(1.0)])
    run = jaxdp.RandomAllocation(mixed, 4)
    with pytest.raises(ValueError, match="one-step law"):
        jaxdp.epsilon(run, 1e-5, method=jaxdp.PosteriorSampling())
    with pytest.raises(TypeError, match="method"):
        jaxdp.epsilon(SGD, 1e-5, method="numerical")
    with pytest.raises(ValueError, match="grid_size"):
        jaxdp.Numerical(grid_size=1000)
    with pytest.raises(ValueError, match="orders"):
        jaxdp.Renyi(orders=(1.0, 2.0))


def test_replace_one():
    """Breaks when a sampled mechanism is given a replace-one guarantee that is not proven."""
    with pytest.raises(ValueError, match="replace-one"):
        jaxdp.replace_one(jaxdp.PoissonSampled(jaxdp.Laplace(1.0), 0.01))
    with pytest.raises(ValueError, match="replace-one"):
        jaxdp.replace_one(jaxdp.RandomizedResponse(1.0))
    pair = jaxdp.replace_one(jaxdp.Repeated(jaxdp.Gaussian(2.0), 4))
    assert float(jaxdp.epsilon(pair, 1e-5)) == float(jaxdp.epsilon(jaxdp.Gaussian(0.5), 1e-5))


@dataclasses.dataclass(frozen=True)
class _Basic(UpperBound):
    """Nothing but what the largest loss of a composition implies."""

    def _refusal(self, m):
        return None if len(m._terms()) == 1 else "basic composition is for one kind of step"

    def _chunk(self, m, leaves):
        return None

    def _log_delta_above(self, m, epsilon, d):
        return jnp.zeros_like(epsilon)

    def _epsilon_above(self, m, log_delta, d):
        return jnp.full_like(log_delta, jnp.inf)


def test_a_method_unknown_to_the_library_answers_everywhere():
    """Breaks when some query knows the methods that there are, and not what a method says."""
    run = jaxdp.Repeated(jaxdp.Laplace(10.0), 20)
    with jax.enable_x64(True):
        low, high = jaxdp.epsilon_bounds(run, 1e-5, method=_Basic())
        np.testing.assert_allclose(high, 2.0, rtol=1e-12)
        assert float(low) == 0.0
        delta = jaxdp.delta(run, 1.9, method=_Basic())
        assert -np.expm1(-0.1) <= float(delta) <= -np.expm1(-0.1) * (1.0 + 1e-11)
        assert float(jaxdp.hockey_stick(run, 2.1, method=_Basic())) == 0.0
        assert float(jaxdp.tradeoff(run, 0.1, method=_Basic())) <= 0.9
        found = calibrate.solve(
            lambda scale: jaxdp.Repeated(jaxdp.Laplace(scale), 20),
            epsilon=2.0,
            delta=1e-5,
            method=_Basic(),
        )
    np.testing.assert_allclose(found.value, 10.0, rtol=1e-4)
    mixed = jaxdp.Composed([jaxdp.Laplace(1.0), jaxdp.Gaussian(1.0)])
    with pytest.raises(ValueError, match=r"one kind of step, use Numerical\(\) or Renyi\(\)"):
        jaxdp.delta(mixed, 1.0, method=_Basic())
