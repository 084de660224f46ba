"""Masses of differences of Gamma variables, by tables, against closed forms and high precision."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

from jaxdp._noise import _variance_gamma
from jaxdp._noise import _variance_gamma_masses as masses
from jaxdp._noise._sums import QUADRATURE
from tests.programs import jit


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def _intervals(deviation, number, seed):
    """Short and long ones, next to 0 and far from it."""
    rng = np.random.default_rng(seed)
    low = deviation * np.exp(rng.uniform(-38.0, 3.0, number))
    return low, low * (1.0 + np.exp(rng.uniform(-12.0, 2.0, number)))


def _of_noise(beta, low, high):
    noise = masses.pair(beta, 1.0).noise
    return np.asarray(jit(noise.log_interval)(jnp.asarray(low), jnp.asarray(high)))


@pytest.mark.parametrize("count", [1.0, 2.0])
def test_sums_of_laplace_variables_against_closed_forms(count):
    """Breaks when a piece of the table, a difference of its values or Gauss's rule is inexact."""
    low, high = _intervals(np.sqrt(2.0 * count), 2000, 1)
    length = high - low
    # P(Y > y) = e^-y/2, and (2 + y) e^-y/4 of two
    rise = -np.expm1(-length)
    lost = rise if count == 1.0 else ((2.0 + low) * rise - length * np.exp(-length)) / 2.0
    error = np.abs(_of_noise(count, low, high) - (np.log(lost / 2.0) - low))
    assert np.max(error) < QUADRATURE


@pytest.mark.parametrize("beta", [0.51, 0.75, 1.3, 40.0])
def test_against_high_precision(beta):
    """Breaks when what is next to an infinite or sharp peak is taken for less than it is.

    (Quadratures over the mixing variable were off by 1e-6 there at beta = 0.51.)
    """
    low, high = _intervals(np.sqrt(2.0 * beta), 24, 2)
    with mpmath.workdps(30):
        nu = mpmath.mpf(beta) - 0.5

        def density(y):
            return (y / 2) ** nu * mpmath.besselk(nu, y) / (mpmath.sqrt(mpmath.pi) * scale)

        scale = mpmath.gamma(beta)
        exact = [
            float(mpmath.log(mpmath.quad(density, mpmath.linspace(a, b, 5))))
            for a, b in zip(low, high, strict=True)
        ]
    np.testing.assert_allclose(_of_noise(beta, low, high), exact, rtol=0.0, atol=QUADRATURE)


def test_large_sums_are_normal_to_all_digits():
    """Breaks when logarithms of size beta log beta are subtracted: 2e-9 at beta = 1e6."""
    half = _of_noise(1e6, np.array([0.0]), np.array([np.inf]))
    np.testing.assert_allclose(half, np.log(0.5), rtol=0.0, atol=1e-13)
    low = np.array([100.0, 1000.0, 5000.0])
    found = _of_noise(1e6, low, low + 1e-3)
    # the density from the first terms of its expansion in 1/beta: an excess kurtosis of 3/beta
    z = (low + 5e-4) / np.sqrt(2e6)
    hermite = z**4 - 6.0 * z**2 + 3.0
    dense = np.log1p(3e-6 / 24.0 * hermite) - 0.5 * z**2 - 0.5 * np.log(2.0 * np.pi * 2e6)
    np.testing.assert_allclose(found, dense + np.log(1e-3), rtol=0.0, atol=2e-9)


@pytest.mark.parametrize("beta", [0.51, 0.99, 2.0, 8.0])
def test_the_loss_is_the_level_where_it_is_met(beta):
    """Breaks when a root that was met is left again: Newton's steps are kept in a bracket."""
    pair = masses.pair(beta, 0.5)
    most = min(float(jnp.max(pair.losses)), 0.99 * float(pair.top) if beta < 1.0 else 0.4999)
    level = np.linspace(1e-3 * most, 0.999 * most, 1500)
    first, second = (np.asarray(x) for x in jit(masses._positions)(pair, jnp.asarray(level)))
    for place in (first, second):
        some = np.isfinite(place) & (np.abs(place) > 1e-300)
        distance = jnp.asarray(np.log(np.abs(place[some])))
        after = jnp.asarray(place[some] > 0.0)
        loss, _ = _variance_gamma.losses(pair.noise.log_shape, pair.x, distance, after)
        np.testing.assert_allclose(loss, level[some], rtol=0.0, atol=1e-11)
