"""Mixtures of Gaussians on opposite sides, against mpmath and quadrature that share no code."""

import math

import batches_truth as truth
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

import jaxdp
from tests.programs import jit

SHIFTS = np.array([[0.0, 0.5, 2.0], [0.0, 1.0, 3.0], [0.1, 0.2, 4.0], [0.0, 0.0, 0.01]])
WEIGHTS = np.array([[0.7, 0.2, 0.1], [1.0 - 2e-6, 1e-6, 1e-6], [0.3, 0.3, 0.4], [0.5, 0.2, 0.3]])
OTHERS = np.array([[0.0, 1.5], [0.0, 0.3], [0.05, 2.5], [0.0, 0.02]])
OTHER_WEIGHTS = np.array([[0.9, 0.1], [0.99, 0.01], [1.0 - 1e-9, 1e-9], [0.9, 0.1]])
EPSILONS = np.array([-2.0, -0.01, 0.0, 1e-5, 0.3, 3.0, 40.0])


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_curves_of_double_mixtures(direction):
    """Breaks when a threshold, a share, the mirrored direction or an allowance is wrong."""
    rows = SHIFTS, WEIGHTS, OTHERS, OTHER_WEIGHTS
    m = jaxdp.DoubleGaussianMixture(1.0, *(x[:, None] for x in rows))
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(m, EPSILONS, direction=direction))
    for i, row in enumerate(zip(*rows, strict=True)):
        for j, epsilon in enumerate(EPSILONS):
            exact = truth.double_mixture(*row, epsilon, direction)
            assert float(low[i, j]) <= exact <= float(high[i, j])
            assert float(high[i, j] - low[i, j]) <= 1e-9 * exact + mp.mpf(1e-300)


def test_moments_are_those_of_the_mixtures():
    """Rényi divergences against quadrature, in both directions."""
    m = jaxdp.DoubleGaussianMixture(2.0, SHIFTS[0], WEIGHTS[0], OTHERS[0], OTHER_WEIGHTS[0])
    z, step = np.linspace(-60.0, 60.0, 400_001, retstep=True)
    p, q = (
        sum(w * stats.norm.pdf(z, sign * s, 2.0) for s, w in zip(*side, strict=True))
        for sign, side in ((1, (SHIFTS[0], WEIGHTS[0])), (-1, (OTHERS[0], OTHER_WEIGHTS[0])))
    )
    some = (p > 0.0) & (q > 0.0)
    for direction, (a, b) in {"remove": (p[some], q[some]), "add": (q[some], p[some])}.items():
        for alpha in (1.5, 8.0):
            exact = np.log(np.sum((a / b) ** alpha * b) * step) / (alpha - 1.0)
            found = float(jaxdp.renyi(m, alpha, direction=direction))
            assert exact * (1.0 - 1e-9) <= found <= exact * (1.0 + 1e-8)


def test_one_exchanged_record():
    """A group of one is a record; from a mixture's parameters, with Poisson's pair as reference."""
    group = jaxdp.PoissonSampledGroupReplaceOne(1.3, 0.2, 1)
    one = jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(1.3), 0.2)
    np.testing.assert_allclose(
        jaxdp.delta(group, EPSILONS), jaxdp.delta(one, EPSILONS), rtol=1e-9, atol=1e-300
    )


@pytest.mark.parametrize("sigma", [0.5, 0.1, 0.05, 0.003])
def test_at_a_loss_of_many_outcomes(sigma):
    """Next to 0 the loss is the same for outcomes 100 deviations apart, and of a mass of an eighth.

    Where an outcome's place was uncertain by the rounding of its loss over the slope there, the
    advantage was 1.
    """
    group = jaxdp.PoissonSampledGroupReplaceOne(sigma, 0.5, 3)
    low, high = (float(x) for x in jaxdp.delta_bounds(group, 0.0))
    weights = [math.comb(3, k) / 8.0 for k in range(4)]
    exact = sum(w * (2.0 * stats.norm.cdf(k / sigma) - 1.0) for k, w in enumerate(weights))
    assert low <= exact <= high
    assert high - low <= 1e-8
    assert float(jaxdp.advantage(group)) == high


@pytest.mark.slow
def test_groups_in_runs():
    """Composed, with a derivative; below the bound that is proved for any mechanism."""

    def run(sigma):
        return jaxdp.Repeated(jaxdp.PoissonSampledGroupReplaceOne(sigma, 0.1, 2), 30.0)

    lows, highs = (
        np.asarray(x) for x in jaxdp.epsilon_bounds(run(np.array([2.0, 1.95, 2.05])), 1e-5)
    )
    assert np.all((lows > 0.0) & (lows <= highs) & (highs < lows * 1.002))
    high = highs[0]
    table = jaxdp.group_privacy(jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(2.0), 0.1), 2)
    assert high < float(jaxdp.epsilon(jaxdp.Repeated(table, 30.0), 1e-5)) < 1.1 * high
    slope = float(jax.grad(lambda s: jaxdp.epsilon(run(s), 1e-5))(2.0))
    assert (highs[2] - highs[1]) / 0.1 == pytest.approx(slope, rel=2e-3)


def test_slopes_of_every_parameter():
    """Against differences, inside one program and under vmap."""
    parts = SHIFTS[0], WEIGHTS[0], OTHERS[0], OTHER_WEIGHTS[0]

    def value(x):
        m = jaxdp.DoubleGaussianMixture(x[0], parts[0] * x[1], parts[1], parts[2] * x[2], parts[3])
        return jaxdp.log_delta(m, x[3])

    at = jnp.array([1.3, 1.0, 1.0, 0.4])
    slopes = jit(jax.grad(value))(at)
    moved = at + 1e-5 * np.concatenate([np.eye(4), -np.eye(4)])
    found = np.asarray(jit(jax.vmap(value))(moved))
    np.testing.assert_allclose(slopes, (found[:4] - found[4:]) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("other side", lambda: jaxdp.DoubleGaussianMixture(1.0, [1.0], [1.0], [0.0], [1.0])),
        ("weights", lambda: jaxdp.DoubleGaussianMixture(1.0, [1.0], [0.5], [1.0], [1.0])),
        ("sigma", lambda: jaxdp.DoubleGaussianMixture(-1.0, [1.0], [1.0], [1.0], [1.0])),
        ("group_size", lambda: jaxdp.PoissonSampledGroupReplaceOne(1.0, 0.1, 257)),
    ],
)
def test_bad_parameters(name, make):
    with pytest.raises(ValueError, match=name):
        make()


def test_neighbours():
    group = jaxdp.PoissonSampledGroupReplaceOne(1.0, 0.1, 2)
    assert group.neighbours == "replace-one"
    with pytest.raises(ValueError, match="neighbours"):
        jaxdp.Composed([group, jaxdp.PoissonSampledGroup(1.0, 0.1, 2)])
