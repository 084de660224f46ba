"""The decomposition as a mechanism: what the method says of one epoch, and what composes."""

import jax
import numpy as np
import pytest
from scipy import stats

import jaxdp

EPOCH = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 100)
DELTAS = np.array([1e-3, 1e-5])


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_epoch_is_what_the_method_says_and_epochs_are_above_the_truth(direction):
    """Breaks when an argument of the scheme's curve or the factor lam' is wrong.

    Of ten epochs the truth is known from below; the bound is some 1.6 times it (Theorem 4.1).
    """
    with jax.enable_x64(True):
        pair = jaxdp.decomposed(EPOCH, delta=1e-6, direction=direction)
        ten = jaxdp.Repeated(pair, np.array([1.0, 10.0]))
        found = np.asarray(jaxdp.epsilon(ten, DELTAS[:, None], direction="remove"))
        method = jaxdp.Decomposition(0.01)
        one = np.asarray(jaxdp.epsilon(EPOCH, DELTAS, direction=direction, method=method))
        run = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 100, num_epochs=10)
        least, _ = jaxdp.epsilon_bounds(run, DELTAS, direction=direction)
    np.testing.assert_allclose(found[:, 0], one, rtol=2e-4)
    ratio = found[:, 1] / np.asarray(least)
    assert np.all((ratio > 1.3) & (ratio < 2.0))


def test_what_has_no_decomposition_is_refused():
    for m in (
        jaxdp.Gaussian(1.0),
        jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 100, num_epochs=3),
        jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 100, 2),
    ):
        with pytest.raises(ValueError, match="one RandomAllocation"):
            jaxdp.decomposed(m)
    with pytest.raises(ValueError, match="a batch"):
        jaxdp.decomposed(jaxdp.RandomAllocation(jaxdp.Gaussian([1.0, 2.0]), 100))
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda s: jaxdp.decomposed(jaxdp.RandomAllocation(jaxdp.Gaussian(s), 9)).infinity)(
            1.0
        )
    with pytest.raises(ValueError, match="Decomposition"):
        jaxdp.epsilon(
            jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 9, num_epochs=3),
            1e-5,
            method=jaxdp.Decomposition(),
        )


def test_two_answers_by_enumeration():
    """Breaks when a digit of the pair is lost.

    Of X = dP/dQ of t sampled answers it is the pair of C = (X - (1-q)^t) / (1 - (1-q)^t), whose
    curves are E_Q (C - g)_+ and E_Q (1 - g C)_+.
    """
    epsilons = np.array([0.2, 0.7, 1.2])
    g = np.exp(epsilons)[:, None]
    for t in (2, 5):
        ups, missed = np.arange(t + 1), (1.0 - 1.0 / t) ** t
        high, low = 1.0 + np.expm1([1.5, -1.5]) / t
        mass = stats.binom.pmf(ups, t, 1.0 / (1.0 + np.exp(1.5)))
        given = (high**ups * low ** (t - ups) - missed) / (1.0 - missed)
        remove, add = np.maximum(given - g, 0.0) @ mass, np.maximum(1.0 - g * given, 0.0) @ mass
        epoch = jaxdp.RandomAllocation(jaxdp.RandomizedResponse(1.5), t)
        for direction, truth, digits in (("remove", remove, 1e-9), ("add", add, 1e-7)):
            with jax.enable_x64(True):
                pair = jaxdp.decomposed(epoch, delta=1e-3, direction=direction)
                found = np.asarray(jaxdp.delta(pair, epsilons, direction="remove"))
            assert np.all(found >= truth * (1.0 - 1e-14))
            np.testing.assert_allclose(found, truth, rtol=digits)
