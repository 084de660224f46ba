"""Integer noise wider than a list of its atoms: by runs of integers, against sums and closed forms.

The closed forms (`hockey_stick` of one step) sum probabilities with other rules and share no masses
with the engine.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp._noise import _runs


def _loguniform(rng, low, high, size):
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def _drawn(kind, rng, n):
    """Mechanisms of every width, and the scale of their losses."""
    if kind == "Gaussian":
        sigma = _loguniform(rng, 30, 1e7, n)
        shift = np.maximum(1.0, np.floor(sigma * _loguniform(rng, 1e-4, 10, n)))
        return jaxdp.DiscreteGaussian(sigma, shift), shift / sigma
    if kind == "Skellam":
        sigma = _loguniform(rng, 30, 1e5, n)
        shift = np.maximum(1.0, np.floor(sigma * _loguniform(rng, 1e-3, 5, n)))
        return jaxdp.Skellam(sigma**2, shift), shift / sigma
    if kind == "Laplace":
        a = _loguniform(rng, 1e-7, 1, n)
        shift = np.maximum(1.0, np.floor(_loguniform(rng, 1e-3, 5, n) / a))
        return jaxdp.DiscreteLaplace(a, shift), a * shift
    shift = np.floor(_loguniform(rng, 1, 100, n))
    if kind == "binomial":
        r, p = _loguniform(rng, 0.3, 1e4, n), _loguniform(rng, 1e-5, 0.9, n)
        return jaxdp.NegativeBinomial(r, p, shift), p * shift
    beta, a = _loguniform(rng, 0.1, 1e3, n), _loguniform(rng, 1e-5, 0.5, n)
    return jaxdp.GeneralizedDiscreteLaplace(beta, a, shift), a * shift


# (The last one's probabilities are a matter of milliseconds each.)
@pytest.mark.parametrize(
    ("kind", "number", "width"),
    [
        ("Gaussian", 8, 1e-3),
        ("Skellam", 4, 1e-3),
        ("Laplace", 6, 1e-4),
        ("binomial", 8, 0.02),
        pytest.param("generalised Laplace", 1, 0.02, marks=pytest.mark.slow),
    ],
)
def test_one_step_agrees_with_its_closed_form(kind, number, width):
    """Breaks when what a window does not hold is taken for an infinite loss, or for nothing."""
    rng = np.random.default_rng(7)
    m, scale = _drawn(kind, rng, number)
    epsilon = np.where(
        rng.uniform(size=number) < 0.25, 0.0, scale * _loguniform(rng, 1e-3, 4, number)
    )
    for direction in ("remove", "add") if kind == "binomial" else ("remove",):
        exact = [np.asarray(x) for x in jaxdp.delta_bounds(m, epsilon, direction=direction)]
        low, high = (
            np.asarray(x)
            for x in jaxdp.delta_bounds(m, epsilon, direction=direction, method=jaxdp.Numerical())
        )
        assert np.all(low <= exact[1])
        assert np.all(exact[0] <= high)
        some = exact[1] > 1e-60
        assert some.sum() >= number // 2
        assert np.all(high[some] - low[some] <= width * high[some])


@pytest.mark.parametrize("shift", [30, 1000])
def test_ten_steps_of_rounded_noise_are_ten_steps_of_gaussian_noise(shift):
    """Breaks when wide noise is cut off: 0.07 was certified where epsilon is 1.37."""
    sigma = 10.0 * shift
    rounded = jaxdp.Repeated(jaxdp.DiscreteGaussian(sigma, shift), 10)
    low, high = jaxdp.epsilon_bounds(rounded, 1e-6)
    truth = float(jaxdp.epsilon(jaxdp.Repeated(jaxdp.Gaussian(sigma, float(shift)), 10), 1e-6))
    assert low <= high <= low * (1 + 1e-4)
    # (A loss is rounded by half its distance from the next: shift / (2 sigma^2) a step, at most.)
    assert low <= truth + 5.0 * shift / sigma**2
    assert high >= truth - 5.0 * shift / sigma**2


def test_sampled_and_allocated_steps():
    """Breaks when a step's masses are right for the closed form's directions only."""
    wide, narrow = jaxdp.DiscreteGaussian(4e4, 20000), jaxdp.Gaussian(2.0)
    for build in (
        lambda m: jaxdp.Repeated(jaxdp.PoissonSampled(m, 0.05), 100),
        lambda m: jaxdp.RandomAllocation(m, 20),
    ):
        for direction in ("remove", "add"):
            low, high = jaxdp.epsilon_bounds(build(wide), 1e-6, direction=direction)
            truth = float(jaxdp.epsilon(build(narrow), 1e-6, direction=direction))
            assert low * (1 - 1e-3) <= truth <= high * (1 + 1e-3)
            assert high - low <= 0.01 * high


def test_derivative():
    """Breaks when probabilities on runs are taken for constants."""

    def epsilon(make):
        return lambda sigma: jaxdp.epsilon(jaxdp.Repeated(make(sigma), 10), 1e-6)

    slope = jax.grad(epsilon(lambda s: jaxdp.DiscreteGaussian(s, 1000)))(1e4)
    truth = jax.grad(epsilon(lambda s: jaxdp.Gaussian(s, 1000.0)))(1e4)
    np.testing.assert_allclose(slope, truth, rtol=1e-3)


@pytest.mark.parametrize(("shift", "far"), [(1.0, 40.0), (7.0, 1e4), (1e6, 3e7), (3e4, 5e11)])
def test_runs_hold_every_integer_once(shift, far):
    """Breaks when runs overlap, leave a gap, or grow where probabilities have kinks."""
    first, size = (
        np.asarray(x).reshape(-1) for x in _runs.runs(jnp.float64(shift), jnp.float64(far))
    )
    first, size = first[size > 0], size[size > 0]
    assert first[0] == -far
    assert np.all(first[1:] == first[:-1] + size[:-1])
    assert first[-1] + size[-1] - 1 == shift + far
    for kink in (0.0, shift):
        inside = (first < kink) & (kink < first + size - 1)
        assert not np.any(inside)
        near = size[(np.abs(first - kink) < 8) | (np.abs(first + size - 1 - kink) < 8)]
        assert np.all(near == 1)


def test_a_sum_by_three_values_is_exact_for_parabolas_and_next_to_it_for_exponentials():
    """Breaks when a weight or a place of the rule is off."""
    size = np.array([1.0, 2.0, 3.0, 4.0, 9.0, 250.0])
    for first, parts in ((0.0, 1.0), (0.25, 0.5)):
        begin, number = np.floor(first * size), np.ceil(parts * size)
        log_p = _runs.Parabola(*(np.full(6, x) for x in (-3.0, 2e-3, -1e-6)))
        loss = _runs.Parabola(*(np.full(6, x) for x in (0.1, 1e-3, 0.0)))
        found = _runs._log_sums(log_p, loss, *(jnp.asarray(x) for x in (size, begin, number)))
        for i, n in enumerate(size):
            d = begin[i] + np.arange(number[i]) - 0.5 * (n - 1)
            p = -3.0 + 2e-3 * d - 1e-6 * d * d
            q = p - (0.1 + 1e-3 * d)
            for value, exact in zip(found[:, i], (q, p), strict=True):
                np.testing.assert_allclose(value, np.log(np.sum(np.exp(exact))), atol=1e-13)


def test_equal_losses_far_out_are_equal():
    """Breaks when |k| - |k - Delta| is rounded: atoms off their nodes, runs out of order.

    (Of a = 0.04 epsilon was between 0 and 7.15.)
    """
    k = jnp.asarray([-18625.3, -8200.77, -0.5, 0.0, 0.5, 1.0, 2.25, 9000.31])
    with jax.enable_x64(True):
        loss = jaxdp.DiscreteLaplace(0.04)._loss(k)
        np.testing.assert_array_equal(loss, 0.04 * np.clip(2.0 * np.asarray(k) - 1.0, -1.0, 1.0))
    a = np.array([0.04, 0.0399999, 0.04, 0.040000001])
    shift = np.array([1, 1, 2, 2])
    low, high = jaxdp.epsilon_bounds(jaxdp.Repeated(jaxdp.DiscreteLaplace(a, shift), 300), 1e-8)
    assert np.all(high - low < 1e-3 * high), (low, high)
    # (Of sensitivity 1, the binomial law: as in `test_corners`.)
    assert low[0] <= 3.8210876, low
    assert high[0] >= 3.8210874, high
