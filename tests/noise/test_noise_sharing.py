"""Shares of noise, what is left of them, repeated noise, samplers, errors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxdp
from jaxdp import _noise as noise
from tests.programs import jit

SHARED = {
    "gaussian": jaxdp.Gaussian(3.0, 2.0),
    "skellam": noise.Skellam(9.0, 2),
    "discrete_laplace": noise.DiscreteLaplace(0.4, 2),
    "gdl": noise.GeneralizedDiscreteLaplace(1.5, 0.4, 2),
    "negative_binomial": noise.NegativeBinomial(6.0, 0.3, 2),
    "laplace": jaxdp.Laplace(2.0, 1.0),
    "gamma_difference": noise.GammaDifference(2.5, 2.0, 1.0),
    "laplace_sum": noise.LaplaceSum(4, 2.0, 1.0),
}


def _drawn(m, key, shape):
    """Independent draws: a mechanism for every entry."""
    return jax.tree.map(lambda x: np.broadcast_to(x, shape), m).sample(key, jnp.zeros(shape))


@pytest.mark.parametrize("name", SHARED)
def test_shares_add_up(name):
    """Breaks when the sum of the shares is not distributed as the whole (chi-square, 5 sigma)."""
    whole, parties, draws = SHARED[name], 7, 20_000
    share = noise.noise_share(whole, parties)
    first, second = jax.random.split(jax.random.key(5))
    shares = np.asarray(_drawn(share, first, (parties, draws)))
    total, direct = shares.sum(axis=0), np.asarray(_drawn(whole, second, (draws,)))
    edges = np.unique(np.quantile(direct, np.linspace(0.0, 1.0, 12)[1:-1]))
    counts = [
        np.bincount(np.searchsorted(edges, x), minlength=edges.size + 1) for x in (total, direct)
    ]
    assert stats.chi2_contingency(counts).pvalue > 1e-6
    if isinstance(whole, noise.Skellam | noise.DiscreteLaplace | noise.NegativeBinomial):
        assert np.all(total == np.round(total))


@pytest.mark.parametrize(
    ("m", "pmf"),
    [
        (noise.DiscreteGaussian(1.8), lambda k: np.exp(-(k**2) / 6.48)),
        (noise.DiscreteGaussian(0.4), lambda k: np.exp(-(k**2) / 0.32)),
        (noise.Skellam(3.0), stats.skellam(1.5, 1.5).pmf),
        (noise.DiscreteLaplace(0.6), stats.dlaplace(0.6).pmf),
        (noise.NegativeBinomial(2.5, 0.4), stats.nbinom(2.5, 0.4).pmf),
    ],
)
def test_samples_follow_the_law(m, pmf):
    """Breaks when a sampler's law is not the mechanism's (chi-square, 5 sigma)."""
    k = np.arange(-40, 41)
    expected = pmf(k) / np.sum(pmf(k))
    samples = np.asarray(_drawn(m, jax.random.key(3), (40_000,))).astype(int)
    observed = np.bincount(samples + 40, minlength=81)
    common = expected * samples.size > 5
    o, e = observed[common], expected[common] * samples.size
    o, e = np.append(o, samples.size - o.sum()), np.append(e, samples.size - e.sum())
    e = np.maximum(e, 1e-9)
    kept = e > 1.0
    assert stats.chisquare(o[kept], e[kept] * o[kept].sum() / e[kept].sum()).pvalue > 1e-6


LEFT = [  # a mechanism, and what a quarter of its shares adds up to
    (jaxdp.Gaussian(3.0, 2.0), jaxdp.Gaussian(1.5, 2.0)),
    (noise.Skellam(9.0, 2), noise.Skellam(2.25, 2)),
    (noise.DiscreteLaplace(0.4, 2), noise.GeneralizedDiscreteLaplace(0.25, 0.4, 2)),
    (noise.GeneralizedDiscreteLaplace(6.0, 0.4, 2), noise.GeneralizedDiscreteLaplace(1.5, 0.4, 2)),
    (noise.NegativeBinomial(6.0, 0.3, 2), noise.NegativeBinomial(1.5, 0.3, 2)),
    (jaxdp.Laplace(2.0, 1.0), noise.GammaDifference(0.25, 2.0, 1.0)),
    (noise.GammaDifference(6.0, 2.0, 1.0), noise.GammaDifference(1.5, 2.0, 1.0)),
    (noise.LaplaceSum(6, 2.0, 1.0), noise.GammaDifference(1.5, 2.0, 1.0)),
]


@pytest.mark.parametrize(("whole", "left"), LEFT, ids=lambda m: type(m).__name__)
def test_partial_noise_is_the_law_left(whole, left):
    """Breaks when a fraction of a mechanism is not the mechanism of the fraction."""
    for found in (noise.PartialNoise(whole, 0.25)._left(), noise.noise_share(whole, 4)):
        assert type(found) is type(left)
        np.testing.assert_allclose(jax.tree.leaves(found), jax.tree.leaves(left), rtol=1e-15)
    assert noise.PartialNoise(whole, 0.25).sample(jax.random.key(0), 0.0).shape == ()


def test_partial_gaussians_compose_exactly():
    """Breaks when what is left of a Gaussian does not compose as a Gaussian."""
    four = jaxdp.Repeated(noise.PartialNoise(jaxdp.Gaussian(2.0), 0.25), 4)
    expected = float(jaxdp.epsilon(jaxdp.Gaussian(0.5), 1e-5))
    assert float(jaxdp.epsilon(four, 1e-5)) == pytest.approx(expected)


def test_repeated_noise():
    """Breaks when the bound is below the exact n-fold Laplace, or off the published ratios."""
    n, alpha = np.array([[2], [20], [100]]), np.array([1.5, 4.0, 64.0])
    bound = noise.repeated_noise_renyi(jaxdp.Laplace(1.0), alpha, count=n)
    exact = np.asarray(jaxdp.renyi(noise.LaplaceSum(n, 1.0), alpha))
    ratios = [[1.471, 1.477, 1.209], [1.962, 1.969, 1.943], [1.993, 1.994, 2.088]]
    np.testing.assert_allclose(bound / exact, ratios, atol=6e-4)
    gaussians = [jaxdp.Gaussian(s) for s in (1.0, 2.0, 5.0)]
    best = noise.repeated_noise_renyi(gaussians, 3.0, count=[1, 2, 1], sensitivity=2.0)
    assert float(best) == pytest.approx(3.0 * 4.0 / 2.0 / 34.0, rel=1e-9)  # of variance 1 + 8 + 25


def test_repeated_noise_splits():
    """Breaks when the optimised split is not the best, or integer shifts are split wrongly."""
    pair = [jaxdp.Laplace(1.0), jaxdp.Laplace(3.0)]
    best = float(noise.repeated_noise_renyi(pair, 6.0, sensitivity=4.0))
    part = np.linspace(0.05, 3.95, 14)
    others = noise.repeated_noise_renyi(pair, 6.0, sensitivity=4.0, split=[part, 4.0 - part])
    assert np.all(best <= others * (1 + 1e-9))
    gaussian = noise.DiscreteGaussian(1.0)
    three = noise.repeated_noise_renyi(gaussian, 2.0, count=2, sensitivity=3)
    assert float(three) == pytest.approx(5.0)  # R(2) + R(1) = 4 + 1
    two = noise.repeated_noise_renyi(gaussian, 2.0, count=5, sensitivity=2)
    assert float(two) == pytest.approx(2.0)
    split = noise.repeated_noise_renyi(
        [gaussian, noise.Skellam(5.0)], 2.0, sensitivity=3, split=[1, 2]
    )
    alone = jaxdp.renyi(noise.Skellam(5.0, 2), 2.0)
    assert float(split) == pytest.approx(1.0 + float(alone))


BAD = [
    (lambda: noise.DiscreteGaussian(0.0), "sigma must be finite and > 0"),
    (lambda: noise.DiscreteGaussian(1.0, 1.5), "sensitivity must be an integer"),
    (lambda: noise.Skellam(-1.0), "variance must be finite and > 0"),
    (lambda: noise.Skellam(1.0, 0), "sensitivity must be an integer"),
    (lambda: noise.Skellam(1.0, np.inf), "sensitivity must be an integer"),
    (lambda: noise.DiscreteLaplace(1.0, True), "sensitivity must be an integer"),
    (
        lambda: noise.GeneralizedDiscreteLaplace(1.0, 1.0, np.True_),
        "sensitivity must be an integer",
    ),
    (lambda: noise.LaplaceSum(True, 1.0), "count must be an integer >= 1"),
    (lambda: noise.DiscreteLaplace(np.nan), "a must be finite and > 0"),
    (lambda: noise.GeneralizedDiscreteLaplace(0.0, 1.0), "beta must be finite and > 0"),
    (lambda: noise.NegativeBinomial(1.0, 1.0), r"p must be in \(0, 1\)"),
    (lambda: noise.NegativeBinomial(0.0, 0.5), "r must be finite and > 0"),
    (lambda: noise.GammaDifference(1.0, 0.0), "scale must be finite and > 0"),
    (lambda: noise.LaplaceSum(1.5, 1.0), "count must be an integer >= 1"),
    (lambda: noise.PartialNoise(jaxdp.Gaussian(1.0), 0.0), "honest_fraction must be"),
    (lambda: noise.noise_share(jaxdp.Gaussian(1.0), 2.5), "num_parties must be an integer"),
    (lambda: noise.gdl_epsilon_floor(-0.1), "beta must be"),
    (lambda: noise.skellam_renyi_bound(noise.Skellam(1.0), 1.0), "alpha must be"),
    (lambda: noise.repeated_noise_renyi([], 2.0), "noise must not be empty"),
    (
        lambda: noise.repeated_noise_renyi(jaxdp.Laplace(1.0), 2.0, split=[0.5]),
        "split must add up to sensitivity",
    ),
    (
        lambda: noise.repeated_noise_renyi([noise.Skellam(1.0)] * 2, 2.0, sensitivity=2),
        "split is required",
    ),
]


@pytest.mark.parametrize(("call", "message"), BAD)
def test_bad_arguments(call, message):
    """Breaks when an argument outside its domain does not raise a ValueError that names it."""
    with pytest.raises(ValueError, match=message):
        call()


def test_bad_types_and_traced_values():
    """Breaks when a wrong mechanism is accepted, or a traced bad value gives a finite answer."""
    for wrong in (noise.DiscreteGaussian(1.0), jaxdp.RandomizedResponse(1.0)):
        with pytest.raises(TypeError, match="independent shares"):
            noise.PartialNoise(wrong, 0.5)
    with pytest.raises(TypeError, match=r"jaxdp\.Skellam"):
        noise.skellam_renyi_bound(jaxdp.Gaussian(1.0), 2.0)
    with pytest.raises(TypeError, match="adds noise"):
        noise.repeated_noise_renyi(jaxdp.RandomizedResponse(1.0), 2.0)
    with pytest.raises(TypeError, match="all integer-valued"):
        noise.repeated_noise_renyi([noise.Skellam(1.0), jaxdp.Laplace(1.0)], 2.0)
    shifted = jit(lambda d: jaxdp.delta(noise.DiscreteGaussian(1.0, d), 0.5))
    assert np.isnan(shifted(1.5))
    assert np.isnan(jit(lambda d: jaxdp.renyi(noise.DiscreteLaplace(1.0, d), 2.0))(0.5))


def test_splits_of_integers_add_up():
    """Breaks when an integer split that misses the shift, by however little, is accepted."""
    pair = [jaxdp.DiscreteLaplace(1.0), jaxdp.Skellam(3.0)]
    far = 2**40
    for shift, split in ((3, [1, 1]), (far + 1, [far, 0]), (2, [2, 1])):
        with pytest.raises(ValueError, match="add up"):
            noise.repeated_noise_renyi(pair, 2.0, sensitivity=shift, split=split)

    def traced(part):
        return noise.repeated_noise_renyi(pair, 2.0, sensitivity=far + 1, split=[part, 0.0])

    values = jit(traced)(np.array([far, far + 1.0]))
    assert np.isnan(values[0])
    assert np.isfinite(values[1])
    alone = noise.repeated_noise_renyi(pair, 2.0, sensitivity=1, split=[0, 1])
    np.testing.assert_allclose(alone, jaxdp.renyi(pair[1], 2.0), rtol=1e-12)


def test_whole_vectors_are_not_drawn_by_laws_of_one_coordinate():
    """Breaks when an epsilon of one entry is taken for that of a vector, unasked."""
    key, vector = jax.random.key(0), jnp.zeros(3)
    for m, instead in (
        (noise.Skellam(3.0), "SkellamVector"),
        (noise.DiscreteGaussian(2.0), "DiscreteGaussianVector"),
        (noise.DiscreteLaplace(0.5), "one mechanism for each entry"),
        (noise.PartialNoise(noise.LaplaceSum(4, 2.0, 1.0), 0.5), "one mechanism for each entry"),
    ):
        for value in (vector, {"a": 0.0, "b": 1.0}):
            with pytest.raises(ValueError, match=instead):
                m.sample(key, value)
        assert m.sample(key, 0.0).shape == ()
        assert m.sample(key, {"a": jnp.zeros(1)})["a"].shape == (1,)
    assert noise.DiscreteGaussian(np.array([1.0, 2.0, 3.0])).sample(key, vector).shape == (3,)
    with pytest.raises(ValueError, match="4 entries"):
        noise.DiscreteGaussian(np.ones(3)).sample(key, jnp.zeros(4))
