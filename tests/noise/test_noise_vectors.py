"""Vectors of integer noise: against every vector of small cases, and the published bounds."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from noise_reference import discrete_gaussian, skellam
from scipy import special, stats

import calibrate
import jaxdp

EPSILONS = np.array([0.0, 0.05, 0.3, 1.0, 2.0, 4.0])
REACH = 40


def pmf(m, reach=REACH):
    """Probabilities of one coordinate at -reach ... reach, by mpmath and convolutions."""
    sum_of = isinstance(m, jaxdp.DiscreteGaussianVector)
    f = discrete_gaussian(m.sigma) if sum_of else skellam(m.variance)
    half = [float(f(k)) for k in range(reach + 1)]
    one = np.array(half[:0:-1] + half)
    total = one
    for _ in range(int(m.num_parties) - 1 if sum_of else 0):
        total = np.convolve(total, one, mode="same")
    return total


def hockey_sticks(f, difference, epsilons):
    """sum (P - e^epsilon Q)_+ over all outcomes of a vector of one or two coordinates."""
    p, q = np.ones(1), np.ones(1)
    for v in difference:
        p = np.multiply.outer(p, np.roll(f, v)).ravel()
        q = np.multiply.outer(q, f).ravel()
    return np.array([np.sum(np.maximum(p - math.exp(e) * q, 0.0)) for e in epsilons])


LAWS = (
    jaxdp.DiscreteGaussianVector(0.4),
    jaxdp.DiscreteGaussianVector(0.9),
    jaxdp.DiscreteGaussianVector(2.3),
    jaxdp.DiscreteGaussianVector(0.6, num_parties=2),
    jaxdp.DiscreteGaussianVector(0.9, num_parties=4),
    jaxdp.SkellamVector(0.05),
    jaxdp.SkellamVector(0.7),
    jaxdp.SkellamVector(5.0),
)


@pytest.mark.parametrize("m", LAWS, ids=str)
def test_no_vector_is_above_the_bound(m):
    """Breaks when a difference of one or two coordinates has a larger delta, either way."""
    f = pmf(m)
    vectors = [(v,) for v in range(1, 7)]
    vectors += [(a, b) for a, b in itertools.product(range(1, 6), range(-5, 6)) if b]
    norms = np.array([math.hypot(*v) for v in vectors])
    bounds = np.asarray(
        jaxdp.delta(type(m)(**{**vars(m), "sensitivity": norms[:, None]}), EPSILONS)
    )
    for vector, bound in zip(vectors, bounds, strict=True):
        for sign in (1, -1):
            truth = hockey_sticks(f, [sign * v for v in vector], EPSILONS)
            assert np.all(truth <= bound * (1.0 + 1e-13)), (vector, truth, bound)


ORDERS = np.array([1.1, 2.0, 3.5, 8.0])


@pytest.mark.parametrize("m", LAWS, ids=str)
def test_no_shift_diverges_more(m):
    """Breaks when a coordinate that is moved has a larger Rényi divergence."""
    f = pmf(m, 70)
    shifts = np.arange(1, 6)
    bounds = jaxdp.renyi(type(m)(**{**vars(m), "sensitivity": shifts[:, None]}), ORDERS)
    for shift, bound in zip(shifts, np.asarray(bounds), strict=True):
        p, q = f[shift:], f[:-shift]
        some = (p > 1e-280) & (q > 1e-280)
        log_p, log_q = np.log(p[some]), np.log(q[some])
        for alpha, most in zip(ORDERS, bound, strict=True):
            least = special.logsumexp(alpha * log_p + (1 - alpha) * log_q) / (alpha - 1)
            assert least <= most * (1 + 1e-12), (shift, alpha)


@pytest.mark.parametrize(
    ("build", "f", "at"),
    [
        (jaxdp.DiscreteGaussianVector, discrete_gaussian, [0.2, 0.44, 0.46, 1.0, 7.0, 40.0]),
        (jaxdp.SkellamVector, skellam, [1e-6, 0.2, 0.99, 1.01, 40.0, 60.0, 1e4]),
    ],
)
def test_one_unit_is_attained(build, f, at):
    """Breaks when mu is not the least: at sensitivity 1 and epsilon 0 delta is f(0) itself."""
    got = np.asarray(jaxdp.delta(build(np.array(at)), 0.0))
    truth = np.array([float(f(x)(0)) for x in at])
    assert np.all(got >= truth)
    np.testing.assert_allclose(got, truth, rtol=4e-12)


@pytest.mark.parametrize("scale", [0.3, 0.8, 2.0])
def test_the_widest_cell_is_the_middle_one(scale):
    """Breaks the theorem: quantiles of a tail one step apart differ by at most h anywhere."""
    for m in (jaxdp.DiscreteGaussianVector(scale), jaxdp.SkellamVector(scale**2)):
        tail = np.cumsum(pmf(m, 70)[:70])[::-1]  # S(1), S(2), ...
        z = stats.norm.isf(tail[tail > 1e-290])
        h = float(m._mu())
        assert 2.0 * z[0] == pytest.approx(h, rel=1e-11)
        assert np.all(np.diff(z) <= h)
        assert z.size > 8


def test_second_differences_of_skellam_fall():
    """Breaks the lemma: log I_k - log I_{k+1} is concave over k >= 0."""
    for variance in (0.1, 1.0, 5.0, 40.0):
        f = pmf(jaxdp.SkellamVector(variance))[REACH : REACH + 20]
        steps = -np.diff(np.log(f))
        second = np.diff(np.concatenate([[-steps[0]], steps]))
        assert np.all(np.diff(second) < 1e-12)
        assert np.all(second > 0.0)


def test_bounds_of_attained_vectors_are_below_and_near():
    """Breaks when `at` is not the law of a vector, or the bound is far above the attained ones."""
    m = jaxdp.DiscreteGaussianVector(6.0, sensitivity=4.0)
    most, least = jaxdp.delta(m, EPSILONS), jaxdp.delta_bounds(m.at([4]), EPSILONS)[0]
    assert np.all(least <= most)
    assert np.all(most <= 1.15 * least)
    two = jaxdp.DiscreteGaussianVector(0.9, 3.0).at((2, -2))
    truth = hockey_sticks(pmf(LAWS[1]), (2, -2), EPSILONS)
    low, high = jaxdp.delta_bounds(two, EPSILONS)
    assert np.all(low <= truth * (1 + 1e-12))
    assert np.all(truth <= high * (1 + 1e-12))
    assert np.all(high <= 1.001 * truth)
    several = jaxdp.SkellamVector(3.0, 4.0).at([[2, 0], [-2, 2]])
    assert several == jaxdp.Repeated(jaxdp.Skellam(3.0, 2.0), 3.0)
    mixed = jaxdp.SkellamVector(3.0, 4.0).at([1, -2])
    assert mixed == jaxdp.Composed([jaxdp.Skellam(3.0, 1.0), jaxdp.Skellam(3.0, 2.0)])


@pytest.mark.parametrize(
    ("difference", "message"),
    [
        ([0.5], "difference must be integers"),
        ([0, 0], "not all 0"),
        ([2, 2], "norm of at most the sensitivity"),
    ],
)
def test_bad_differences(difference, message):
    with pytest.raises(ValueError, match=message):
        jaxdp.SkellamVector(1.0, 2.0).at(difference)


def test_sums_have_no_law_of_one_coordinate():
    with pytest.raises(ValueError, match="num_parties must be 1"):
        jaxdp.DiscreteGaussianVector(1.0, num_parties=2).at([1])
    with pytest.raises(TypeError, match="must be known"):
        jax.jit(lambda s: jaxdp.SkellamVector(1.0, s).at([1]))(1.0)


# Published bounds


def test_renyi_divergences():
    """Breaks when they exceed the theorem's, or add up otherwise."""
    alpha = np.array([1.5, 2.0, 3.0, 10.0])
    m = jaxdp.DiscreteGaussianVector(0.8, sensitivity=3.0)
    np.testing.assert_allclose(jaxdp.renyi(m, alpha), alpha * 9 / (2 * 0.64), rtol=1e-14)
    run = jaxdp.Composed([jaxdp.Repeated(m, 10), jaxdp.Gaussian(2.0)])
    np.testing.assert_allclose(jaxdp.renyi(run, alpha), alpha * (90 / 1.28 + 1 / 8), rtol=1e-14)
    steps = jaxdp.Schedule(jaxdp.DiscreteGaussianVector(np.array([0.8, 1.6]), 3.0))
    np.testing.assert_allclose(jaxdp.renyi(steps, alpha), alpha * 1.25 * 9 / 1.28, rtol=1e-14)


def test_skellam_is_below_its_published_bound():
    """Breaks when the bound of Agarwal et al., of L1 and L2 norms, is the lower one."""
    alpha, variance = np.array([2.0, 3.0, 5.0, 16.0, 64.0]), np.array([[0.5], [3.0], [30.0], [1e3]])
    for l2 in (1.0, 3.0):
        m = jaxdp.SkellamVector(variance, l2)
        ours = np.asarray(jaxdp.renyi(m, alpha))
        for l1, v in ((l2, [int(l2)]), (l2**2, [1] * int(l2**2))):
            theirs = np.asarray(jaxdp.skellam_renyi_bound(m, alpha, l1))
            # beyond, theirs has a term that does not grow with alpha
            usual = alpha < 9.0 * variance * l1 / l2**2 - 1.0
            assert np.sum(usual) >= 9
            assert np.all((ours < theirs)[usual])
            exact = float(jaxdp.renyi(jaxdp.SkellamVector(3.0, l2).at(v), 5.0))
            assert exact <= min(ours[1, 2], theirs[1, 2]) * (1 + 1e-12)
        np.testing.assert_array_equal(jaxdp.skellam_renyi_bound(m, alpha), theirs)


def published_rho(sigma, parties, l1, l2, dimension):
    """Kairouz, Liu & Steinke 2021, Proposition 14: R_alpha <= (alpha/2) x + y, at alpha = 2."""
    k = np.arange(1, parties)
    tau = 10.0 * np.sum(np.exp(-2.0 * (np.pi * sigma) ** 2 * k / (k + 1)))
    one, two = (x / (math.sqrt(parties) * sigma) for x in (l1, l2))
    return min(
        two**2 + tau * dimension,
        two**2 + 2.0 * one * tau + tau**2 * dimension,
        (two + math.sqrt(dimension) * tau) ** 2,
    )


def test_sums_are_below_their_published_bound():
    """Breaks when the price of adding discrete Gaussians exceeds that of Kairouz et al."""
    for sigma, parties in itertools.product((0.6, 0.8, 1.0), (10, 100, 1000)):
        m = jaxdp.DiscreteGaussianVector(sigma, 20.0, parties)
        theirs = published_rho(sigma, parties, l1=400.0, l2=20.0, dimension=10_000)
        plain = 400.0 / (parties * sigma**2)
        ours = float(jaxdp.renyi(m, 2.0))
        assert plain < ours < theirs


# As a mechanism


@pytest.mark.slow
def test_sampled_rounds_and_shares():
    """Breaks when runs of sampled rounds, or what is left of shared noise, are another's."""
    rounds = [
        jaxdp.Repeated(jaxdp.PoissonSampled(m, 0.05), 200)
        for m in (
            jaxdp.DiscreteGaussianVector(16.0, 10.0),
            jaxdp.DiscreteGaussianVector(16.0, 10.0).at([10]),
        )
    ]
    most, (least, _) = jaxdp.epsilon(rounds[0], 1e-6), jaxdp.epsilon_bounds(rounds[1], 1e-6)
    assert float(least) < float(most) < 1.005 * float(least)
    whole = jaxdp.SkellamVector(400.0, 10.0)
    left = jaxdp.PartialNoise(whole, 0.7)
    same = float(jaxdp.epsilon(jaxdp.SkellamVector(280.0, 10.0), 1e-6))
    assert float(jaxdp.epsilon(left, 1e-6)) == pytest.approx(same, rel=1e-14)
    assert float(jaxdp.noise_share(whole, 100).variance) == pytest.approx(4.0)
    assert jaxdp.replace_one(whole).sensitivity == 20.0


def test_calibration_and_gradients():
    """Breaks when sigma misses its target, or a derivative is not that of the value."""
    build = lambda s: jaxdp.DiscreteGaussianVector(s, 10.0, 50)  # noqa: E731
    solved = calibrate.solve(build, epsilon=1.0, delta=1e-6, bracket=(0.5, 100.0))
    assert float(jaxdp.epsilon(build(solved.value), 1e-6)) == pytest.approx(1.0, rel=1e-8)
    for f, x in ((build, [0.8, 3.0]), (lambda v: jaxdp.SkellamVector(v, 3.0), [0.4, 9.0])):
        value = lambda x, f=f: jnp.sum(jaxdp.log_delta(f(x), 8.0))  # noqa: E731
        x = jnp.array(x)
        for i in range(2):
            step = 1e-6 * x[i] * jnp.eye(2)[i]
            slope = (value(x + step) - value(x - step)) / (2e-6 * x[i])
            assert float(jax.grad(value)(x)[i]) == pytest.approx(float(slope), rel=1e-6)


def test_domains():
    with pytest.raises(ValueError, match="sigma must be finite and > 0"):
        jaxdp.DiscreteGaussianVector(0.0)
    with pytest.raises(ValueError, match="num_parties must be an integer >= 1"):
        jaxdp.DiscreteGaussianVector(1.0, 1.0, 2.5)
    with pytest.raises(ValueError, match="variance must be finite and > 0"):
        jaxdp.SkellamVector(-1.0)
    with pytest.raises(ValueError, match="l1_sensitivity must be"):
        jaxdp.skellam_renyi_bound(jaxdp.SkellamVector(1.0), 2.0, 0.0)
    bad = jax.jit(lambda n: jaxdp.epsilon(jaxdp.DiscreteGaussianVector(1.0, 1.0, n), 1e-6))(0)
    assert np.isnan(bad)


def test_extremes():
    """Breaks when noise of any scale gives nan, or less than the Gaussian of that variance."""
    sigma = np.array([1e-3, 0.02, 0.03, 1e6, 1e8, 1e150])
    for m in (jaxdp.DiscreteGaussianVector(sigma), jaxdp.SkellamVector(sigma**2)):
        got = np.asarray(jaxdp.delta(m, 0.0))
        assert np.all(got[3:] >= np.asarray(jaxdp.delta(jaxdp.Gaussian(sigma), 0.0))[3:])
        assert got[0] <= 1.0
        assert np.all(np.diff(got) <= 0.0)


def test_samples():
    """Breaks when drawn noise is no integer, or has another variance or another sum of parties."""
    key, value = jax.random.key(0), {"a": jnp.zeros((200, 50)), "b": jnp.ones(3)}
    for m, variance in (
        (jaxdp.DiscreteGaussianVector(2.0, num_parties=5), 20.0),
        (jaxdp.SkellamVector(9.0), 9.0),
    ):
        drawn = np.asarray(m.sample(key, value)["a"])
        assert np.all(drawn == np.round(drawn))
        # 10^4 draws: a standard error of about 1.5 percent
        assert drawn.var() == pytest.approx(variance, rel=0.07)
