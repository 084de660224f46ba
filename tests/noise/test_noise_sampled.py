"""Poisson-sampled noise in the engine, bracketed against exact curves in both directions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import ask

import jaxdp
from jaxdp import _law, _numerical
from jaxdp import _noise as noise
from jaxdp._law import _terms
from tests.programs import jit

# What is left of generalised discrete Laplace noise of shape 0.2, 0.6, 1 and 3, and of sums of
# Laplace noise: differences of Gamma variables of shape 0.55, 0.7, 1.5 and 4.
CASES = {
    "gdl": noise.PartialNoise(
        noise.GeneralizedDiscreteLaplace([0.5, 1.5, 6.0, 4.0], [0.6, 0.5, 0.6, 0.3], [1, 2, 2, 3]),
        [0.4, 0.4, 0.5, 0.25],
    ),
    "negative_binomial": noise.NegativeBinomial(
        [0.6, 0.6, 8.0, 2.0], [0.4, 0.2, 0.4, 0.3], [2, 1, 1, 2]
    ),
    "laplace_sum": noise.PartialNoise(
        noise.LaplaceSum([1, 1, 2, 8], [2.0, 1.0, 0.8, 0.7]), [0.55, 0.7, 0.75, 0.5]
    ),
}
RATE, EPS = np.array([0.3, 0.7, 0.3, 0.7]), np.array([0.05, 0.3, 0.1, 0.2])
SIZE = 2048  # the laws are coarse: more points cost time and change little


def sampled_curve(m, rate, eps, direction):
    """H of (1 - q) Q + q P against Q, and of Q against it, from the curve of P and Q: exact."""
    curve = {} if m._symmetric() else {"direction": direction}
    g = np.exp(eps)
    if direction == "remove":
        return rate * ask(jaxdp.hockey_stick, m, np.log1p(np.expm1(eps) / rate), **curve)
    left = 1.0 - g * (1.0 - rate)  # Q - g ((1 - q) Q + q P) = left Q - g q P
    assert np.all(left > 0.0)
    return left * ask(jaxdp.hockey_stick, m, np.log(g * rate / left), **curve)


@jit
@jax.vmap
def brackets(m, eps):
    """Bounds below and above log delta: what `delta_bounds` does, both directions at once."""
    terms = _numerical.terms_of(m)

    def answer(flip):
        oriented = tuple(_terms.orient(term, flip) for term in terms)
        return _law.log_delta_bounds(oriented, eps, sides=(-1, 1), size=SIZE)

    return jax.lax.map(answer, jnp.array([False, True]))


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=[] if x == "negative_binomial" else pytest.mark.slow) for x in CASES],
)
def test_sampled_noise_is_bracketed(name):
    """Breaks when a Poisson-sampled noise is not between the engine's bounds, or these are wide."""
    laws = jax.tree.map(lambda x: np.broadcast_to(np.float64(x), RATE.shape), CASES[name])
    bounds = brackets(jaxdp.PoissonSampled(laws, RATE), EPS)
    for i, direction in enumerate(("remove", "add")):
        exact = sampled_curve(laws, RATE, EPS, direction)
        low, high = (np.exp(x[:, i]) for x in bounds)
        assert np.all(low <= exact * (1 + 1e-10))
        assert np.all(high >= exact * (1 - 1e-10))
        np.testing.assert_allclose(low, exact, rtol=2e-2)
        np.testing.assert_allclose(high, exact, rtol=1e-3)
