"""Noise in the engine: composed and sampled, bracketed against direct convolution."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import special

import jaxdp
from jaxdp import _noise as noise
from jaxdp._noise import _atoms


def convolved_skellam(variance, count, eps):
    """delta of `count` Skellam releases: their loss law on a fine lattice, convolved by FFT.

    Ratios of the law by backward recurrence (Miller). Each loss is split between two lattice
    points with its P- and Q-mass kept, an error of second order in their distance, below 1e-8.
    """
    reach = int(14 * np.sqrt(variance) + 40)
    ratios, r = np.zeros(reach + 402), 0.0
    for k in range(reach + 401, -1, -1):
        r = ratios[k] = 1.0 / (r + 2 * (k + 1) / variance)
    log_f = np.log(special.ive(0, variance)) + np.concatenate([[0], np.cumsum(np.log(ratios))])
    k = np.arange(-reach, reach + 2)
    log_p = log_f[np.abs(k - 1)]
    loss, p = log_p - log_f[np.abs(k)], np.exp(log_p)
    mean = np.sum(p * loss)
    size = 1 << 21
    deviation = np.sqrt(np.sum(p * (loss - mean) ** 2))
    h = (24 * deviation * np.sqrt(count) + 4 * np.abs(loss).max()) / size
    cell = np.floor(loss / h)
    u, index = loss - cell * h, cell.astype(int)
    law = np.zeros(size)
    np.add.at(law, index % size, p * np.exp(-u) * np.expm1(u - h) / np.expm1(-h))
    np.add.at(law, (index + 1) % size, p * np.expm1(-u) / np.expm1(-h))
    total = np.fft.irfft(np.fft.rfft(law) ** count, size)
    at = np.arange(size) - size // 2 + round(count * mean / h)
    deltas = [np.sum(total[at % size] * -np.expm1(np.minimum(e - h * at, 0.0))) for e in eps]
    return np.array(deltas), log_f


def test_skellam_composed_is_bracketed():
    """Breaks when 100 Skellam releases are not between the engine's bounds, or these are wide."""
    count = 100
    # Isolated atoms off the lattice cost the bound below most: at variance 25 they are 0.04 apart.
    for variance, below, above in ((4000.0, 6e-4, 2e-4), (25.0, 1.2e-2, 3e-4)):
        scale = np.sqrt(count / variance)
        eps = 0.5 * scale**2 + scale * np.array([0.5, 2.0, 4.0])
        expected, log_f = convolved_skellam(variance, count, eps)
        for k in (0, 7, 200):
            spot = mp.log(mp.besseli(k, variance, maxterms=10**6)) - variance
            assert log_f[k] == pytest.approx(float(spot), rel=1e-12)
        m = jaxdp.Repeated(noise.Skellam(variance), count)
        low, high = jaxdp.delta_bounds(m, eps, method=jaxdp.Numerical())
        assert np.all(low <= expected * (1 + 1e-7))
        assert np.all(high >= expected * (1 - 1e-7))
        np.testing.assert_allclose(low, expected, rtol=below)
        np.testing.assert_allclose(high, expected, rtol=above)


@pytest.mark.parametrize("size", [1, 2, 8, _atoms._SMALL_LEVEL, 4 * _atoms._SMALL_LEVEL])
def test_sums_over_any_range_of_atoms(size):
    """Breaks when a level of blocks is looked for in another's place, or a slope is lost."""
    rng = np.random.default_rng(size)
    values = 30.0 * rng.normal(size=(2, size))
    values[:, rng.random(size) < 0.2] = -np.inf
    left, right = rng.integers(0, size + 1, (2, 40))
    left[0], right[0] = 0, size
    inside = (left[:, None] <= np.arange(size)) & (np.arange(size) < right[:, None])
    each = np.where(inside, values[:, None], -np.inf)
    with jax.enable_x64(True):
        found = _atoms.range_sum(jnp.asarray(values), left, right)
        np.testing.assert_allclose(found, np.logaddexp.reduce(each, axis=2), rtol=1e-13)
        some = np.isfinite(np.asarray(found))
        finite = jnp.asarray(np.where(np.isfinite(values), values, -500.0))
        slopes = jax.grad(
            lambda x: jnp.sum(jnp.where(some, _atoms.range_sum(x, left, right), 0.0))
        )(finite)
    np.testing.assert_allclose(float(jnp.sum(slopes)), some.sum(), rtol=1e-12)
