"""Laws that hold for every parameter: monotone, convex, one law in two directions, PyTrees."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import jaxdp


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def examples(count=15):
    return settings(derandomize=True, max_examples=count, deadline=None, database=None)


SCALES = st.floats(0.3, 20.0)
RATES = st.floats(1e-4, 1.0)
EPSILONS = st.floats(-2.0, 6.0)
LESS_OR_MORE = np.array([1.0, 1.2])
# Every family through one call: the parameter x is its noise
FAMILIES = (
    jaxdp.Gaussian,
    jaxdp.Laplace,
    jaxdp.Brownian,
    lambda x: jaxdp.OrnsteinUhlenbeck(0.3, x, 0.7),
    lambda x: jaxdp.RandomizedResponse(1 / x),
    lambda x: jaxdp.ApproximateDP(1 / x, 0.01),
    lambda x: jaxdp.PoissonSampled(jaxdp.Gaussian(x), 0.2),
    lambda x: jaxdp.PoissonSampled(jaxdp.Laplace(x), 0.2),
)
family = st.sampled_from(FAMILIES)


@examples(40)
@given(family, SCALES, EPSILONS)
def test_more_noise_is_more_private(build, scale, eps):
    """Breaks when delta rises with the noise anywhere."""
    less, more = np.asarray(jaxdp.delta(build(scale * LESS_OR_MORE), eps))
    assert more <= less * (1 + 1e-11)


@examples(40)
@given(family, SCALES, EPSILONS, st.floats(0.001, 2.0))
def test_delta_falls_with_epsilon(build, scale, eps, step):
    """Breaks when delta(epsilon) is not a falling curve, or falls faster than e^step allows."""
    first, second = np.asarray(jaxdp.delta(build(scale), np.array([eps, eps + step])))
    assert second <= first * (1 + 1e-11)
    # H_g is 1-Lipschitz in g
    assert first - second <= math.exp(eps + step) - math.exp(eps) + 1e-11


@examples(30)
@given(SCALES, RATES, EPSILONS)
def test_sampling_never_hurts(scale, q, eps):
    """Breaks when a subsample of the records leaks more than all of them (data processing)."""
    q = np.array([q, min(1.0, 1.3 * q), 1.0])
    for inner in (jaxdp.Gaussian(scale), jaxdp.Laplace(scale)):
        for direction in ("add", "remove"):
            step = jaxdp.PoissonSampled(inner, q)
            low, high, all_ = np.asarray(jaxdp.delta(step, eps, direction=direction))
            rounding = 1e-13  # what the bounds allow where the curve ends in a kink
            assert low <= high * (1 + 1e-10) + rounding <= all_ * (1 + 2e-10) + 2 * rounding
            whole = float(jaxdp.delta(inner, eps, direction=direction))
            np.testing.assert_allclose(all_, whole, rtol=1e-10, atol=rounding)


@examples(15)
@given(SCALES, st.floats(1.0, 200.0), st.floats(0.01, 6.0))
def test_repeating_never_helps(scale, count, eps):
    """Breaks when a longer composition is more private than a shorter one."""
    count = count * LESS_OR_MORE
    for inner in (jaxdp.Gaussian(scale), jaxdp.Laplace(scale)):
        fewer, more = np.asarray(jaxdp.delta(jaxdp.Repeated(inner, count), eps))
        assert fewer <= more * (1 + 1e-9)


@examples(15)
@given(SCALES, SCALES, EPSILONS)
def test_composing_never_helps(first, second, eps):
    """Breaks when running one more mechanism lowers delta (data processing)."""
    a, b = jaxdp.Gaussian(first), jaxdp.Laplace(second)
    both = float(jaxdp.delta(jaxdp.Composed([a, b]), eps))
    for one in (a, b):
        assert both >= float(jaxdp.delta(one, eps)) * (1 - 1e-9)


@examples(15)
@given(SCALES, SCALES, EPSILONS)
def test_order_of_composition_does_not_matter(first, second, eps):
    """Breaks when composition is not commutative."""
    a, b = jaxdp.Gaussian(first), jaxdp.Laplace(second)
    one, other = (float(jaxdp.delta(jaxdp.Composed(m), eps)) for m in ([a, b], [b, a]))
    assert one == pytest.approx(other, rel=1e-9)


@examples(30)
@given(family, SCALES, EPSILONS)
def test_directions_mirror_each_other(build, scale, eps):
    """Breaks when H_g(P|Q) = 1 - g + g H_{1/g}(Q|P) fails for a family."""
    m, both = build(scale), np.array([eps, -eps])
    remove = np.asarray(jaxdp.hockey_stick(m, both, direction="remove"))
    add = np.asarray(jaxdp.hockey_stick(m, both, direction="add"))
    for ours, theirs in ((remove, add), (add, remove)):
        mirrored = -math.expm1(eps) + math.exp(eps) * theirs[1]
        assert ours[0] == pytest.approx(mirrored, rel=1e-10, abs=1e-13 * (1 + math.exp(eps)))


@examples(30)
@given(family, SCALES, st.floats(0.1, 5.0), st.floats(0.01, 2.0))
def test_curve_is_convex(build, scale, level, width):
    """Breaks when g -> H_g is not convex: then it is no hockey-stick curve of any pair."""
    g = level + width * np.arange(3)
    low, middle, high = np.asarray(jaxdp.hockey_stick(build(scale), np.log(g)))
    assert middle <= (low + high) / 2 * (1 + 1e-11) + 1e-15


@examples(30)
@given(family, SCALES, st.floats(0.0, 1.0))
def test_tradeoff_lies_between_advantage_and_chance(build, scale, fpr):
    """Breaks when a test beats total variation, or does worse than guessing."""
    m = build(scale)
    miss = float(jaxdp.tradeoff(m, fpr))
    assert max(0.0, 1 - fpr - float(jaxdp.advantage(m))) - 1e-9 <= miss <= 1 - fpr + 1e-12


@examples(30)
@given(family, SCALES, st.floats(1.0, 60.0), st.floats(0.01, 10.0))
def test_renyi_rises_with_the_order(build, scale, alpha, step):
    """Breaks when a divergence falls with its order, or is negative."""
    low, high = np.asarray(jaxdp.renyi(build(scale), np.array([alpha, alpha + step])))
    assert high >= low * (1 - 1e-11)
    assert low >= 0


@examples(30)
@given(family, SCALES, st.floats(1.1, 30.0), st.floats(0.05, 4.0))
def test_renyi_bounds_the_exact_curve(build, scale, alpha, eps):
    """Breaks when delta converted from a divergence undercuts the exact delta."""
    m = build(scale)
    r = jaxdp.renyi(m, alpha)
    if np.isfinite(r):
        bound = float(jaxdp.renyi_to_delta(r, alpha, eps))
        assert bound >= float(jaxdp.hockey_stick(m, eps)) * (1 - 1e-11)


# PyTrees

SAMPLES = (
    jaxdp.Gaussian(1.0, 2.0),
    jaxdp.Laplace(1.0, 2.0),
    jaxdp.RandomizedResponse(1.0),
    jaxdp.ApproximateDP(1.0, 0.1),
    jaxdp.Brownian(1.0),
    jaxdp.OrnsteinUhlenbeck(1.0, 1.0, 1.0),
    jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1),
    jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(1.0), 0.1),
    jaxdp.FixedSizeSampled(jaxdp.Laplace(1.0), 0.1),
    jaxdp.PoissonSampledGroup(1.0, 0.1, 3),
    jaxdp.PoissonSampledGroupReplaceOne(1.0, 0.1, 3),
    jaxdp.FixedSizeGroup(1.0, 10, 100, 3),
    jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.1, 20, 100),
    jaxdp.TruncatedPoissonSampledReplaceOne(jaxdp.Gaussian(1.0), 0.1, 20, 100),
    jaxdp.ExponentialMechanism(1.0),
    jaxdp.PermuteAndFlip(1.0),
    jaxdp.ReportNoisyMax(1.0, "laplace"),
    jaxdp.SparseVector(1.0, 2),
    jaxdp.Repeated(jaxdp.Gaussian(1.0), 3.0),
    jaxdp.Composed([jaxdp.Gaussian(1.0), jaxdp.Laplace(2.0)]),
    jaxdp.ConcentratedDP(0.1, 0.0),
    jaxdp.RepeatAndSelect(jaxdp.Gaussian(4.0), 3.0),
)
every_mechanism = pytest.mark.parametrize("m", SAMPLES, ids=lambda m: type(m).__name__)


def test_every_mechanism_is_tested():
    """Breaks when a mechanism is added without its PyTree laws (those of packages: their tests)."""
    classes = {c for c in vars(jaxdp).values() if isinstance(c, type)} - {jaxdp.Mechanism}
    classes = {c for c in classes if c.__module__.startswith("jaxdp._mechanisms.")}
    mechanisms = {c for c in classes if issubclass(c, jaxdp.Mechanism)}
    # (schedules and mixtures, which hold vectors, the abstract one, and parallel ones, of which the
    # worst part alone has gradients, have tests of their own)
    own = {jaxdp.Schedule, jaxdp.GaussianMixture, jaxdp.Mixture, jaxdp.CustomMechanism}
    own |= {jaxdp.Parallel, jaxdp.DoubleGaussianMixture}
    assert mechanisms - own <= {type(m) for m in SAMPLES}


@every_mechanism
def test_tree_laws(m):
    """Breaks when flattening forgets a parameter or mapping the identity changes the mechanism."""
    leaves, structure = jax.tree.flatten(m)
    assert all(np.ndim(leaf) == 0 for leaf in leaves)
    assert jax.tree.structure(jax.tree.unflatten(structure, leaves)) == structure
    assert jax.tree.leaves(jax.tree.map(lambda x: x, m)) == leaves
    doubled = jax.tree.map(lambda x: 2 * x, m)
    assert isinstance(doubled, type(m))
    assert jax.tree.leaves(doubled) == [2 * x for x in leaves]


@every_mechanism
def test_unflattening_accepts_anything(m):
    """Breaks when a constructor's checks run on the placeholders that JAX puts into trees."""
    structure = jax.tree.structure(m)
    for leaf in (None, object(), -1.0, np.zeros((2, 3))):
        jax.tree.unflatten(structure, [leaf] * structure.num_leaves)


@every_mechanism
def test_parameters_do_not_change_the_structure(m):
    """Breaks when a value sits in the treedef: every value would recompile, and none vmaps."""
    other = jax.tree.map(lambda x: x * 0.9, m)
    assert jax.tree.structure(other) == jax.tree.structure(m)


@every_mechanism
def test_gradients_are_mechanisms(m):
    """Breaks when a gradient with respect to a mechanism is not one of the same shape."""
    m = jax.tree.map(jnp.float64, m)
    gradient = jax.grad(lambda m: jaxdp.delta(m, 0.3))(m)
    assert jax.tree.structure(gradient) == jax.tree.structure(m)
    values = np.array(jax.tree.leaves(jax.device_get(gradient)))
    assert np.isfinite(values).all()
    assert (values != 0).all()


@every_mechanism
def test_mechanisms_are_immutable(m):
    """Breaks when a parameter can be changed behind the back of a cached result."""
    for field in dataclasses.fields(m):
        with pytest.raises(AttributeError):
            setattr(m, field.name, getattr(m, field.name))


@every_mechanism
def test_mechanisms_vmap(m):
    """Breaks when a batch of mechanisms under vmap differs from the mechanisms one by one."""
    batch = jax.tree.map(lambda x: jnp.stack([jnp.float64(x), jnp.float64(x) * 0.9]), m)
    # numerical laws under vmap have tests of their own
    method = jaxdp.Renyi() if isinstance(m, (jaxdp.Composed, jaxdp.Repeated)) else None
    got = jax.vmap(lambda m: jaxdp.delta(m, 0.3, method=method))(batch)
    np.testing.assert_allclose(got[0], jaxdp.delta(m, 0.3, method=method), rtol=1e-11)


@pytest.mark.parametrize(
    ("around", "remove", "add"),
    [
        (lambda m: m, 0.1, 0.1),
        (lambda m: jaxdp.Repeated(m, 3), 1 - 0.9**3, 1 - 0.9**3),
        (lambda m: jaxdp.Composed([jaxdp.Gaussian(1.0), m, m]), 0.19, 0.19),
        (lambda m: jaxdp.PoissonSampled(m, 0.3), 0.03, 0.0),
        (lambda m: jaxdp.PoissonSampled(jaxdp.Composed([jaxdp.Laplace(1.0), m]), 0.3), 0.03, 0.0),
        (lambda m: jaxdp.Repeated(jaxdp.PoissonSampled(m, 1.0), 2), 0.19, 0.19),
        (lambda m: jaxdp.RandomAllocation(m, 3), 0.1, 0.001),
        (lambda m: jaxdp.Composed([jaxdp.Gaussian(1.0), jaxdp.RandomAllocation(m, 3)]), 0.1, 0.001),
    ],
    ids=["alone", "repeated", "composed", "sampled", "below", "all", "allocated", "beside"],
)
def test_the_mass_at_infinity_of_what_holds_a_step(around, remove, add):
    """Breaks when what holds a step that can fail is said not to, or the other way round."""
    m = around(jaxdp.ApproximateDP(0.5, 0.1))
    found = [np.exp(float(m._log_failure(d))) for d in ("remove", "add")]
    assert m._may_fail()
    np.testing.assert_allclose(found, [remove, add], rtol=1e-12)
    m = around(jaxdp.RandomizedResponse(0.5))
    assert not m._may_fail()
    assert [float(m._log_failure(d)) for d in ("remove", "add")] == [-np.inf, -np.inf]
