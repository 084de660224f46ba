"""One step: curves of both directions and signs, moments, gradients and what is refused."""

import batches_truth as truth
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import stats

import jaxdp
from benchmarks.attack import laws, wider
from tests.programs import jit

EPSILONS = np.array([-4.0, -0.7, -1e-9, 0.0, 1e-9, 0.3, 1.0, 2.5, 9.0])
MIXTURES = [
    (1.0, (0.0, 1.0, 2.0), (0.81, 0.18, 0.01)),
    (0.7, (0.5, 3.0, 3.0), (0.5, 0.25, 0.25)),
    (2.0, (0.0, 5.0, 20.0), (1.0 - 1e-7, 9e-8, 1e-8)),
    (0.3, (0.0, 1e-3, 4.0), (0.25, 0.25, 0.5)),
]


def _within(bounds, truths, relative=2e-11):
    low, high = (np.asarray(b) for b in bounds)
    for lo, hi, t in zip(low.ravel(), high.ravel(), truths, strict=True):
        assert lo <= t <= hi, (lo, hi, t)
        if t > 1e-290:
            assert (hi - lo) <= relative * t, (lo, hi, t)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_mixture(direction):
    """Breaks when a bracket of a mixture's curve misses quadrature-free mpmath."""
    sigma, s, w = (np.asarray(x)[:, None] for x in zip(*MIXTURES, strict=True))
    m = jaxdp.GaussianMixture(sigma, s, w)
    bounds = jaxdp.delta_bounds(m, EPSILONS, direction=direction)
    cases = [(mix, e) for mix in MIXTURES for e in EPSILONS]
    _within(bounds, [truth.mixture(*mix, float(e), direction) for mix, e in cases])


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_sensitivity_is_poisson_sampling(direction):
    """Breaks when a group of one is not the sampled Gaussian."""
    q = np.array([1e-6, 0.01, 0.5])[:, None]
    group = jaxdp.PoissonSampledGroup(0.8, q, 1)
    sampled = jaxdp.PoissonSampled(jaxdp.Gaussian(0.8), q)
    e = np.array([-0.3, 1e-7, 0.5, 2.0])
    truths = np.asarray(jaxdp.log_delta(sampled, e, direction=direction))
    found = np.asarray(jaxdp.log_delta(group, e, direction=direction))
    np.testing.assert_allclose(found, truths, rtol=1e-12, atol=1e-9)
    moments = jaxdp.renyi(sampled, 3.0, direction=direction)
    np.testing.assert_allclose(jaxdp.renyi(group, 3.0, direction=direction), moments, rtol=1e-9)


def test_groups():
    """Breaks when the weights of a group are not binomial or hypergeometric."""
    k, q, n, b = 12, 0.03, 500, 40
    j = np.arange(k + 1)
    many = jaxdp.PoissonSampledGroup(2.0, 0.5, 1000)
    cases = [
        (jaxdp.PoissonSampledGroup(2.0, q, k), j, stats.binom.pmf(j, k, q)),
        (jaxdp.PoissonSampledGroup(2.0, 1.0, k), j, stats.binom.pmf(j, k, 1.0)),
        (many, np.arange(1001), stats.binom.pmf(np.arange(1001), 1000, 0.5)),
        (jaxdp.FixedSizeGroup(2.0, b, n, k), 2 * j, stats.hypergeom.pmf(j, n, k, b)),
        (jaxdp.FixedSizeGroup(2.0, 3, n, k), 2 * j[:4], stats.hypergeom.pmf(j[:4], n, k, 3)),
    ]
    for group, shifts, weights in cases:
        c = group._components()
        np.testing.assert_array_equal(c.shifts, 0.5 * shifts[1:])
        np.testing.assert_allclose(np.exp(c.log_rate + c.log_weights), weights[1:], rtol=1e-10)
        np.testing.assert_allclose(np.exp(c.log_rest), weights[0], rtol=1e-10)
        np.testing.assert_allclose(np.exp(c.log_rate), weights[1:].sum(), rtol=1e-10)
    one = jaxdp.FixedSizeGroup(2.0, b, n, 1)
    same = jaxdp.fixed_size_sampled(jaxdp.Gaussian(2.0), b, n, neighbours="add-or-remove")
    values = [np.asarray(jaxdp.log_delta(m, EPSILONS)) for m in (one, same)]
    np.testing.assert_allclose(*values, rtol=1e-12, atol=1e-9)


def test_poisson_replace_one():
    """Breaks when the curve is not that of the pair, or is not symmetric."""
    cases = [(1.0, 0.1), (0.5, 0.01), (3.0, 0.3), (1.0, 1.0), (0.125, 1e-6)]
    m, q = (np.asarray(x)[:, None] for x in zip(*cases, strict=True))
    step = jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(1.0, m), q)
    bounds = jaxdp.delta_bounds(step, EPSILONS)
    _within(bounds, [truth.poisson_replace(*c, float(e)) for c in cases for e in EPSILONS])
    certain = jaxdp.delta(jaxdp.Gaussian(1.0, 2.0), EPSILONS)
    np.testing.assert_allclose(bounds[1][3], certain, rtol=1e-11)


def test_fixed_size():
    """Breaks when the profile is not the theorem's at epsilon >= 0 and its reflection below."""
    cases = [(1.0, 0.1), (0.5, 0.01), (3.0, 0.3), (1.0, 1.0), (0.125, 1e-6)]
    m, q = (np.asarray(x)[:, None] for x in zip(*cases, strict=True))
    step = jaxdp.FixedSizeSampled(jaxdp.Gaussian(1.0, m), q)
    bounds = jaxdp.delta_bounds(step, EPSILONS)
    expected = [truth.fixed_size(2 * mu, rate, float(e)) for mu, rate in cases for e in EPSILONS]
    _within(bounds, expected)


def test_masses_add_up():
    """Breaks when cells of a law overlap, miss the atom at 0, or are not of one law."""
    edges = jnp.asarray([-jnp.inf, -3.0, -0.4, -1e-9, 0.0, 1e-9, 0.2, 1.5, jnp.inf])

    @jit
    def tree_laws(m):
        zero = jnp.zeros(())
        return m._log_masses(edges[:-1], edges[1:]), m._log_hockey_stick(zero, "remove", 0.0)

    for m in (
        jaxdp.FixedSizeSampled(jaxdp.Gaussian(1.0), 0.05),
        jaxdp.FixedSizeSampled(jaxdp.Laplace(1.0), 0.05),
        jaxdp.FixedSizeSampled(jaxdp.DiscreteGaussian(2.0), 0.05),
        jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(1.0), 0.05),
        jaxdp.GaussianMixture(np.float64(1.0), np.array([0.0, 1.0]), np.array([0.95, 0.05])),
    ):
        masses, at_zero = tree_laws(m)
        q, p = np.exp(masses)
        np.testing.assert_allclose([q.sum(), p.sum()], 1.0, rtol=1e-12)
        # delta(0) is what P has more of than Q, each cell of one sign
        total = np.sum(np.maximum(p - q, 0.0))
        np.testing.assert_allclose(total, np.exp(at_zero), rtol=1e-9)
        low, high = (np.exp(np.asarray(e)) for e in (edges[:-1], edges[1:]))
        assert np.all(p >= q * low * (1.0 - 1e-12))
        assert np.all(p[:-1] <= q[:-1] * high[:-1] * (1.0 + 1e-12))


def _moments(loss, log_q, width, alpha):
    """log E_Q[X^alpha]/(alpha - 1) as a sum over a fine grid of outcomes."""
    exponent = alpha * loss + log_q
    top = exponent.max()
    return (np.log(np.sum(np.exp(exponent - top)) * width) + top) / (alpha - 1.0)


def test_renyi():
    """Breaks when a Rényi divergence is below its integral or not next to it."""
    z, width = truth.outcomes(-40.0, 80.0, 1_200_001)
    alphas = np.array([1.5, 2.0, 8.0, 24.0])
    w, s, q = np.array([0.81, 0.18, 0.01]), np.array([0.0, 1.0, 2.0]), 0.1
    mixed, plain = truth.log_mixture(z, w, s), stats.norm.logpdf(z)
    up, down = (truth.log_mixture(z, (1.0 - q, q), (0.0, m)) for m in (1.0, -1.0))
    mixture = jaxdp.GaussianMixture(1.0, s, w)
    replaced = jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(1.0), q)
    cases = [
        (jaxdp.renyi(mixture, alphas, direction="remove"), mixed, plain),
        (jaxdp.renyi(mixture, alphas, direction="add"), plain, mixed),
        (jaxdp.renyi(replaced, alphas), up, down),
    ]
    for values, log_p, log_q in cases:
        expected = [_moments(log_p - log_q, log_q, width, a) for a in alphas]
        np.testing.assert_allclose(values, expected, rtol=1e-10)
        assert np.all(np.asarray(values) >= np.asarray(expected) * (1.0 - 1e-12))
    # the symmetric pair: outcomes above 1 = mu/2, their mirror image, and an atom at 0
    half, width = np.linspace(1.0, 81.0, 1_600_001, retstep=True)
    half = half[:-1] + 0.5 * width
    u = np.logaddexp(np.log1p(-q), np.log(q) + 2.0 * half - 2.0)
    weights, mass = stats.norm.logpdf(half), (1.0 - q) * (2.0 * stats.norm.cdf(1.0) - 1.0)
    values = np.asarray(jaxdp.renyi(jaxdp.FixedSizeSampled(jaxdp.Gaussian(1.0), q), alphas))
    for value, a in zip(values, alphas, strict=True):
        parts = [weights + a * u, weights + (1.0 - a) * u]
        both = np.logaddexp.reduce(np.logaddexp(*parts)) + np.log(width)
        expected = np.logaddexp(both, np.log(mass)) / (a - 1.0)
        np.testing.assert_allclose(value, expected, rtol=1e-8)


def test_gradients():
    """Breaks when a derivative is not that of the curve, or is not finite anywhere."""
    e = 0.6

    def value(x):
        return jnp.stack(
            [
                jaxdp.log_delta(jaxdp.GaussianMixture(x[0], [0.0, 1.0, 2.0], [0.8, 0.15, 0.05]), e),
                jaxdp.log_delta(jaxdp.PoissonSampledGroup(x[0], x[1], 3), e, direction="add"),
                jaxdp.log_delta(jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(x[0]), x[1]), e),
                jaxdp.log_delta(jaxdp.FixedSizeSampled(jaxdp.Gaussian(x[0]), x[1]), e),
            ]
        )

    x, step = jnp.array([1.1, 0.2]), 1e-5
    slopes = np.asarray(jax.jacobian(value)(x))
    for i in range(2):
        move = step * jnp.eye(2)[i]
        difference = np.asarray(value(x + move) - value(x - move)) / (2.0 * step)
        np.testing.assert_allclose(slopes[:, i], difference, rtol=1e-6, atol=1e-8)
    weights = jnp.array([0.8, 0.15, 0.05])

    def of_weights(w, s):
        return jaxdp.log_delta(jaxdp.GaussianMixture(1.1, s, w), EPSILONS).sum()

    both = jax.grad(of_weights, argnums=(0, 1))(weights, jnp.array([0.0, 1.0, 2.0]))
    assert all(np.all(np.isfinite(g)) for g in both)
    at_zero = jax.grad(lambda s: jaxdp.delta(replaced(s), 0.0).sum())
    difference = (
        jaxdp.delta(replaced(1.1 + step), 0.0) - jaxdp.delta(replaced(1.1 - step), 0.0)
    ) / (2.0 * step)
    np.testing.assert_allclose(at_zero(1.1), difference, rtol=1e-6)


def replaced(sigma):
    return jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(sigma), 0.3)


def test_tree_laws():
    """Breaks when a mixture forgets a vector, or a static size becomes a leaf or is lost."""
    mixture = jaxdp.GaussianMixture(1.0, [0.0, 1.0], [0.5, 0.5])
    doubled = jax.tree.map(lambda x: 2.0 * x, mixture)
    np.testing.assert_array_equal(doubled.sensitivities, [0.0, 2.0])
    groups = [jaxdp.PoissonSampledGroup(1.0, 0.1, k) for k in (2, 3)]
    assert jax.tree.leaves(groups[0]) == jax.tree.leaves(groups[1]) == [1.0, 0.1, 1.0]
    assert jax.tree.structure(groups[0]) != jax.tree.structure(groups[1])
    sigma = np.array([1.0, 2.0])
    batch = jaxdp.delta(jaxdp.PoissonSampledGroup(sigma, 0.1, 3), 1.0)
    mapped = jax.vmap(lambda s: jaxdp.delta(jaxdp.PoissonSampledGroup(s, 0.1, 3), 1.0))(sigma)
    np.testing.assert_allclose(batch, mapped, rtol=1e-14)


def test_bad_parameters():
    """Breaks when a bad parameter is not refused by name, or a traced one gives a number."""
    bad = [
        ("sigma", lambda: jaxdp.GaussianMixture(0.0, [1.0], [1.0])),
        ("sensitivities", lambda: jaxdp.GaussianMixture(1.0, [-1.0, 1.0], [0.5, 0.5])),
        ("sensitivities", lambda: jaxdp.GaussianMixture(1.0, [0.0, 1.0], [1.0, 0.0])),
        ("weights", lambda: jaxdp.GaussianMixture(1.0, [0.0, 1.0], [0.5, 0.6])),
        ("weights", lambda: jaxdp.GaussianMixture(1.0, [0.0, 1.0], [1.5, -0.5])),
        ("same length", lambda: jaxdp.GaussianMixture(1.0, [0.0, 1.0], [1.0])),
        ("group_size", lambda: jaxdp.PoissonSampledGroup(1.0, 0.1, 0)),
        ("sampling_probability", lambda: jaxdp.PoissonSampledGroup(1.0, 0.0, 2)),
        ("batch_size", lambda: jaxdp.FixedSizeGroup(1.0, 10, 10, 1)),
        ("group_size", lambda: jaxdp.FixedSizeGroup(1.0, 10, 12, 3)),
        ("sampling_probability", lambda: jaxdp.FixedSizeSampled(jaxdp.Gaussian(1.0), 1.5)),
        (
            "replace-one pair",
            lambda: jaxdp.FixedSizeSampled(jaxdp.RandomAllocation(*ALLOCATED), 0.5),
        ),
        ("one Gaussian", lambda: jaxdp.PoissonSampledReplaceOne(jaxdp.Laplace(1.0), 0.5)),
        ("batch_size", lambda: jaxdp.fixed_size_sampled(jaxdp.Gaussian(1.0), 11, 10)),
        ("neighbours", lambda: jaxdp.fixed_size_sampled(jaxdp.Gaussian(1.0), 1, 9, neighbours="x")),
    ]
    for name, build in bad:
        with pytest.raises(ValueError, match=name):
            build()

    @jit
    def traced(sigma, weight, q):
        mixture = jaxdp.GaussianMixture(sigma, jnp.array([0.0, 1.0]), jnp.stack([0.5, weight]))
        others = [f(sigma, q) for f in (_replaced, _fixed, _group)]
        return jnp.stack([jaxdp.delta(m, 1.0) for m in (mixture, *others)])

    assert np.all(np.isfinite(traced(1.0, 0.5, 0.5)))
    assert np.all(np.isnan(traced(-1.0, 0.5, 0.5)))
    assert np.isnan(traced(1.0, 0.7, 0.5)[0])
    assert np.all(np.isnan(traced(1.0, 0.5, 1.5)[1:]))


ALLOCATED = (jaxdp.Gaussian(1.0), 4)


def _replaced(sigma, q):
    return jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(sigma), q)


def _fixed(sigma, q):
    return jaxdp.FixedSizeSampled(jaxdp.Gaussian(sigma), q)


def _group(sigma, q):
    return jaxdp.PoissonSampledGroup(sigma, q, 3)


def test_neighbours():
    """Breaks when runs for different neighbours can be composed, or sampled for the wrong ones."""
    gaussian = jaxdp.Gaussian(1.0)
    poisson, replaced = jaxdp.PoissonSampled(gaussian, 0.1), _replaced(1.0, 0.1)
    fixed = jaxdp.Repeated(_fixed(1.0, 0.1), 3)
    assert gaussian.neighbours is None
    assert poisson.neighbours == _group(1.0, 0.1).neighbours == "add-or-remove"
    assert replaced.neighbours == fixed.neighbours == "replace-one"
    assert jaxdp.Composed([fixed, gaussian, replaced]).neighbours == "replace-one"
    schedule = jaxdp.Schedule(_replaced(np.array([1.0, 2.0]), 0.1))
    for parts in ([poisson, fixed], [schedule, poisson]):
        with pytest.raises(ValueError, match="same neighbours"):
            jaxdp.Composed(parts)
    with pytest.raises(ValueError, match="add-or-remove neighbours"):
        jaxdp.PoissonSampled(fixed, 0.5)
    with pytest.raises(ValueError, match="replace-one pair"):
        jaxdp.replace_one(_group(1.0, 0.1))
    assert isinstance(jaxdp.replace_one(poisson), jaxdp.PoissonSampledReplaceOne)


def test_renyi_of_a_fixed_size_is_the_pairs_own():
    """Of other noise it was a sum over both halves of the line: up to twice the truth."""
    rows = [(4.2e-5, 0.024), (30.0, 4e-6), (1.0, 0.1), (3.0, 0.01), (30.0, 0.5), (3.0, 1.0)]
    alphas = np.array([1.0 + 3e-6, 1.4, 2.0, 8.0, 100.0])
    epsilon, q = np.array(rows).T[:, :, None]
    m = jaxdp.FixedSizeSampled(jaxdp.RandomizedResponse(epsilon), q)
    found = np.asarray(jaxdp.renyi(m, alphas))
    for row, (e, rate) in zip(found, rows, strict=True):
        with mp.workdps(laws.DIGITS):
            pair = wider._fixed_response(mpf(e), mpf(rate))
            for value, alpha in zip(row, alphas, strict=True):
                truth = pair.renyi(mpf(float(alpha)), False)
                assert truth * (1 - mpf("1e-14")) <= value <= truth * mpf("1.001")
