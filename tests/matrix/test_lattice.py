"""The law of two bins on a lattice: above the curves of the pair, by quadrature, and close."""

import jax
import jax.numpy as jnp
import matrix_truth as truth
import numpy as np
import pytest

import jaxdp
from jaxdp._matrix._two_bins import two_bins


def _curves(pair, own, epsilon):
    """E (X - g)_+ and E (1 - g X)_+ of the lattice's law: P and Q of what is beyond a loss."""
    masses = two_bins(pair, own)._masses_function()
    (q, below_q), (p, below_p) = (
        jnp.exp(x) for x in masses(jnp.stack([epsilon, -jnp.inf]), jnp.stack([jnp.inf, -epsilon]))
    )
    return p - jnp.exp(epsilon) * q, below_q - jnp.exp(epsilon) * below_p


@pytest.mark.parametrize("own", [0.0, 0.04, 1.0])
@pytest.mark.parametrize("pair", [0.01, 0.5, 4.0])
def test_curves_are_above_and_close(pair, own):
    gram = pair + own * np.eye(2)
    spread = np.sqrt(pair + own)
    epsilons = spread * np.array([-1.5, -0.3, 0.1, 1.0, 2.5, 4.0])
    with jax.enable_x64(True):
        found = np.array(jax.vmap(lambda e: jnp.stack(_curves(pair, own, e)))(epsilons))
    exact = np.array(truth.curves(gram, np.exp(epsilons))).T
    assert np.all(found >= exact * (1.0 - 1e-7) - 1e-12)
    assert np.all(found <= exact * 1.03 + 1e-12)


def test_masses_are_those_of_a_law_at_any_scale():
    with jax.enable_x64(True):
        for pair, own in ((1e-10, 1e-10), (1e-3, 1.0), (300.0, 300.0), (1e4, 1e4), (1e10, 1.0)):
            masses = two_bins(pair, own)._masses_function()
            whole = np.exp(masses(jnp.array([-jnp.inf]), jnp.array([jnp.inf])))
            assert np.all(whole >= 1.0 - 1e-9)
            assert np.all(whole <= (1.0 + 1e-9 if pair + own < 900.0 else 25.0))


def test_epsilon_is_finite_and_no_more_than_without_amplification():
    sigma = np.array([1e-3, 0.1, 30.0, 1e6])
    found, most = (
        np.asarray(
            jaxdp.epsilon(
                jaxdp.MatrixMechanism([1.0, 0.5], sigma, num_steps=12, num_bins=4, sampling=by),
                1e-6,
            )
        )
        for by in ("balls in bins", "fixed")
    )
    assert np.all(found >= 0.0)
    assert np.all(found <= most * (1.0 + 1e-5))
