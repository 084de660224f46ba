"""estimate_delta of matrix mechanisms against quadrature and its range; the pair of two bins."""

import jax
import jax.numpy as jnp
import matrix_truth as truth
import numpy as np
import pytest

import jaxdp
from jaxdp._matrix import _estimate
from jaxdp._matrix._two_bins import two_bins
from tests.programs import jit

RATIOS = np.exp([0.0, 0.3, 1.0, 2.5])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("bins", [3])
def test_intervals_cover_quadrature(bins, direction):
    """Breaks when a weight, a shift or the range is wrong: a miss has probability 1e-6 each."""
    rng = np.random.default_rng(bins)
    index = ("remove", "add").index(direction)
    matrices = np.tril(rng.uniform(0.0, 1.0, (4, 2 * bins, 2 * bins))) + 0.1 * np.eye(2 * bins)
    sigmas = rng.uniform(1.0, 4.0, 4)
    run = jaxdp.MatrixMechanism(matrices[:, None], sigmas[:, None], num_bins=bins)
    got = jaxdp.estimate_delta(
        run,
        np.log(RATIOS),
        jax.random.key(3),
        num_samples=20_000,
        direction=direction,
        confidence=1.0 - 1e-6,
    )
    exact = np.array(
        [
            truth.curves(truth.gram(matrix, bins) / sigma**2, RATIOS)[index]
            for matrix, sigma in zip(matrices, sigmas, strict=True)
        ]
    )
    assert np.all(got.low <= exact)
    assert np.all(exact <= got.high)
    assert np.median((got.high - got.low) / exact) < 0.2


def test_a_small_delta_with_few_samples():
    """1e-9 from 20 000 samples."""
    column = truth.square_root(1000)
    run = jaxdp.MatrixMechanism(column, 16.0, num_steps=1000, num_bins=100)
    for direction in ("remove", "add"):
        got = jaxdp.estimate_delta(
            run, 3.0, jax.random.key(0), num_samples=20_000, direction=direction
        )
        assert 0.0 < got.low <= got.value <= got.high < 1.5 * got.value
        assert got.value < 1e-8


def test_a_caller_in_32_bits_under_jit_and_vmap():
    run = jaxdp.MatrixMechanism([1.0, 0.5], 2.0, num_steps=12, num_bins=4)
    with jax.enable_x64(False):
        ask = jit(
            jax.vmap(lambda e: jaxdp.estimate_delta(run, e, jax.random.key(1), num_samples=2000))
        )
        got = ask(jnp.array([0.5, 1.0]))
    assert got.value.dtype == jnp.float32
    assert np.all((got.low < got.value) & (got.value < got.high))
    assert got.value[1] < got.value[0]


def test_values_are_within_their_range():
    """Breaks when R_a or R_s is below what a sample may be: the interval would not be honest."""
    rng = np.random.default_rng(0)
    for b in (2, 5):
        half = rng.uniform(0.0, 1.0, (b, b))
        gram = jnp.asarray(half @ half.T)
        a, log_range = _estimate._order(gram, jnp.float64(0.7))
        bins = rng.integers(b, size=(2000, int(a)))
        weights = np.zeros(2000)
        for k in range(1, int(a)):
            total = np.asarray(gram)[:, bins[:, :k]].sum(axis=2)
            weights += np.log(np.exp(total).mean(axis=0))
        peak = 0.0 if a == 1 else (a - 1) * np.log(a - 1) - a * np.log(a)
        assert np.all(weights + peak - (a - 1) * 0.7 <= log_range + 1e-9)


def test_two_bins_dominate_tightly():
    """Breaks when a cell of the difference loses its mean, or the mixture a weight."""
    commons, owns = np.array([0.01, 0.3, 2.0]), np.array([1.5, 0.0, 9.0])
    logs, ends = jnp.log(RATIOS), jnp.linspace(-60.0, 60.0, 41)

    @jit
    @jax.vmap
    def answers(common, own):
        pair = two_bins(common, own)
        curves = [
            jax.vmap(lambda e, d=d: pair._log_hockey_stick(e, d, 2.0**-52))(logs)
            for d in ("remove", "add")
        ]
        return jnp.stack(curves), pair._log_masses(ends[:-1], ends[1:]), pair._rate(2.0)

    curves, masses, rates = answers(commons, owns)
    for i, (common, own) in enumerate(zip(commons, owns, strict=True)):
        gram = common + own * np.eye(2)
        exact, found = np.array(truth.curves(gram, RATIOS)), np.exp(curves[i])
        assert np.all(found >= exact * (1.0 - 1e-7) - 1e-9)
        assert np.all(found <= exact * 1.03 + 1e-6)
        # the second moment is the mean of e^G, from above
        moment, second = np.exp(gram).mean(), np.exp(2.0 * rates[i])
        assert moment * (1.0 - 1e-9) <= second <= moment * (1.0 + 0.05 * own + 1e-9)
    for log_mass in masses:
        np.testing.assert_allclose(np.exp(log_mass).sum(axis=1), 1.0, rtol=1e-9)


def test_what_cannot_be_sampled_is_refused():
    key = jax.random.key(0)
    fixed = jaxdp.MatrixMechanism([1.0, 0.5], 1.0, num_steps=10, sampling="fixed")
    with pytest.raises(ValueError, match="balls in bins"):
        jaxdp.estimate_delta(fixed, 1.0, key)
    large = jaxdp.MatrixMechanism([1.0, 0.5], 1.0, num_steps=10**6, num_bins=1000)
    with pytest.raises(ValueError, match="num_steps"):
        jaxdp.estimate_delta(large, 1.0, key)
