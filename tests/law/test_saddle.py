"""Estimates that begin searches: cheap ones, near those that plans are made of."""

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from jaxdp import _numerical_terms
from jaxdp._law import _saddle
from tests.programs import jit


def estimates(sigma, rate, steps, epsilon):
    """log delta from cells of either width."""
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), rate), steps)
    terms = _numerical_terms.terms_of(m)
    laws = (_saddle.coarse_atoms(terms, rough) for rough in (False, True))
    return [_saddle.estimate(atoms, epsilon, None)[1] for atoms in laws]


def test_rough_cells_estimate_as_well():
    """Breaks when wider cells are many, or are off by more than an estimate is."""
    with jax.enable_x64(True):
        settings = np.array([[0.6, 0.3, 20.0], [1.0, 0.01, 1000.0], [3.0, 1e-4, 1e5]])
        at = np.array([4.0, 1.5, 0.05])
        fine, rough = jit(jax.vmap(estimates))(*settings.T, at)
        np.testing.assert_allclose(rough, fine, rtol=3e-3)
        terms = _numerical_terms.terms_of(jaxdp.Repeated(jaxdp.Gaussian(1.0), 5))
        size = _saddle.coarse_atoms(terms, rough=True).loss.size
        assert 2 * size < _saddle.coarse_atoms(terms).loss.size
        assert bool(jnp.all(fine < 0.0))
