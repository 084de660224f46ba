"""Disjoint data: the worst of the parts, by enumeration and by their own answers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp
from tests.programs import jit

EPSILONS = np.array([-2.0, -0.5, 0.0, 0.2, 0.7, 1.1, 3.0])
FIRST = ([0.6, 0.3, 0.1], [0.2, 0.5, 0.3])
SECOND = ([0.05, 0.35, 0.6], [0.05, 0.5, 0.45])


def test_one_record_is_in_one_part():
    """Breaks when delta is not the largest over where the record is, all answers enumerated."""
    m = jaxdp.Parallel([jaxdp.FinitePair(*FIRST), jaxdp.FinitePair(*SECOND)])
    curves = {"remove": 0.0, "add": 0.0}
    for part in (0, 1):
        law = {"with": 0.0, "without": 0.0}
        pairs = [FIRST, SECOND]
        rows = []
        for answer in itertools.product(range(3), repeat=2):
            # the other part has records of its own: either law of it, the same on both sides
            other = pairs[1 - part][0][answer[1 - part]]
            rows.append([other * side[answer[part]] for side in pairs[part]])
        law["with"], law["without"] = np.asarray(rows).T
        for direction, (p, q) in (("remove", ("with", "without")), ("add", ("without", "with"))):
            gaps = law[p] - np.exp(EPSILONS)[:, None] * law[q]
            curves[direction] = np.maximum(curves[direction], np.maximum(gaps, 0.0).sum(axis=1))
    for direction, expected in curves.items():
        low, high = jaxdp.delta_bounds(m, EPSILONS, direction=direction)
        np.testing.assert_allclose(low, expected, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(high, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_composed_parts_against_all_their_answers(direction):
    """Breaks when the bracket of composed parts leaves the worst one's, by 1e-9, either way."""
    first, second = jaxdp.FinitePair(*FIRST), jaxdp.FinitePair(*SECOND)
    parts = [(FIRST, 4), (SECOND, 2)]
    m = jaxdp.Parallel([jaxdp.Repeated(first, 4), jaxdp.Repeated(second, 2)])
    worst = np.zeros(EPSILONS.size)
    for pair, count in parts:
        p, q = (
            np.prod(list(itertools.product(law, repeat=count)), axis=1)
            for law in (pair if direction == "remove" else pair[::-1])
        )
        gaps = np.maximum(p - np.exp(EPSILONS)[:, None] * q, 0.0).sum(axis=1)
        worst = np.maximum(worst, gaps)
    low, high = (np.asarray(d) for d in jaxdp.delta_bounds(m, EPSILONS, direction=direction))
    assert np.all(high >= worst * (1.0 - 1e-9))
    assert np.all(low <= worst * (1.0 + 1e-9))


def test_answers_are_the_worst_ones_of_the_parts():
    """Breaks when a question forgets a part, one of the same structure as another included."""
    parts = [
        jaxdp.Gaussian(2.0),
        jaxdp.Gaussian(1.5),
        jaxdp.Laplace(1.1),
        jaxdp.Parallel([jaxdp.RandomizedResponse(0.3)]),
        jaxdp.MatrixMechanism([1.0, 0.5], 4.0, num_steps=4, num_bins=2, sampling="fixed"),
    ]
    m = jaxdp.Parallel(parts)
    deltas = np.array([1e-6, 0.05])
    each = [jaxdp.epsilon(part, deltas) for part in parts]
    np.testing.assert_allclose(jaxdp.epsilon(m, deltas), np.max(each, axis=0), rtol=1e-12)
    each = [jaxdp.delta(part, EPSILONS) for part in parts]
    np.testing.assert_allclose(jaxdp.delta(m, EPSILONS), np.max(each, axis=0), rtol=1e-12)
    each = [jaxdp.renyi(part, np.array([2.0, 8.0])) for part in parts]
    np.testing.assert_allclose(jaxdp.renyi(m, np.array([2.0, 8.0])), np.max(each, axis=0))
    rates = np.array([0.0, 0.01, 0.4, 1.0])
    each = [jaxdp.tradeoff(part, rates) for part in parts]
    np.testing.assert_allclose(jaxdp.tradeoff(m, rates), np.min(each, axis=0), atol=1e-9)
    assert jaxdp.epsilon(m, 0.0) == np.inf
    assert jaxdp.epsilon(jaxdp.Parallel(parts[2:4]), 0.0) == jaxdp.epsilon(parts[2], 0.0)


@pytest.mark.slow
def test_laws_and_closed_forms_together():
    """Breaks when a part that is composed numerically is answered by another part's method."""
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 100)
    for sigma in (1.5, 8.0):
        m = jaxdp.Parallel([run, jaxdp.Gaussian(sigma)])
        expected = np.maximum(
            jaxdp.epsilon_bounds(run, 1e-5), jaxdp.epsilon_bounds(jaxdp.Gaussian(sigma), 1e-5)
        )
        np.testing.assert_allclose(jaxdp.epsilon_bounds(m, 1e-5), expected, rtol=1e-9)


def test_transformations_and_calibration():
    """Breaks when gradients are not those of the worst part, or batches do not broadcast."""

    def epsilon(sigma):
        return jaxdp.epsilon(jaxdp.Parallel([jaxdp.Gaussian(sigma), jaxdp.Laplace(9.0)]), 1e-5)

    sigmas = jnp.array([1.0, 3.0, 1e3])
    alone = jax.vmap(lambda s: jaxdp.epsilon(jaxdp.Gaussian(s), 1e-5))(sigmas)
    np.testing.assert_allclose(
        jit(jax.vmap(epsilon))(sigmas), jnp.maximum(alone, epsilon(1e9)), rtol=1e-9
    )
    slopes = jit(jax.vmap(jax.grad(epsilon)))(sigmas)
    assert slopes[0] < slopes[1] < 0.0 == slopes[2]
    found = calibrate.solve(
        lambda s: jaxdp.Parallel([jaxdp.Gaussian(s), jaxdp.Gaussian(2.0 * s)]),
        epsilon=1.0,
        delta=1e-5,
    )
    runs = calibrate.solve(
        lambda s: jaxdp.Parallel([jaxdp.Repeated(jaxdp.Laplace(s), 2), jaxdp.Gaussian(2.0 * s)]),
        epsilon=1.0,
        delta=1e-5,
    )
    assert runs.status == calibrate.Status.SOLVED
    alone = calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5)
    np.testing.assert_allclose(found.value, alone.value, rtol=1e-9)
    with jax.enable_x64(False):
        assert epsilon(jnp.float32(1.0)).dtype == jnp.float32
    assert np.isnan(jit(epsilon)(-1.0))


def test_it_is_no_part_of_others():
    """Breaks when a composition could leave open whether a record stays in its part."""
    m = jaxdp.Parallel([jaxdp.Gaussian(1.0), jaxdp.Laplace(1.0)])
    for make in (
        lambda: jaxdp.Repeated(m, 2),
        lambda: jaxdp.Composed([m, jaxdp.Gaussian(1.0)]),
        lambda: jaxdp.PoissonSampled(m, 0.1),
        lambda: jaxdp.privacy_loss(m),
    ):
        with pytest.raises(TypeError, match="inside its parts"):
            make()
    batches = jaxdp.FixedSizeSampled(jaxdp.Gaussian(1.0), 0.1)
    with pytest.raises(ValueError, match="same neighbours"):
        jaxdp.Parallel([batches, jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1)])
    assert jaxdp.Parallel([batches, jaxdp.Gaussian(1.0)]).neighbours == "replace-one"
    with pytest.raises(ValueError, match="empty"):
        jaxdp.Parallel([])


def test_each_part_has_its_own_value():
    m = jaxdp.Parallel([jaxdp.Gaussian(1e-9), jaxdp.Gaussian(1e-9)])
    first, second = m.sample(jax.random.key(0), (jnp.zeros(2), jnp.ones(3)))
    np.testing.assert_allclose(first, np.zeros(2), atol=1e-7)
    np.testing.assert_allclose(second, np.ones(3), atol=1e-7)
    with pytest.raises(ValueError, match="2 elements"):
        m.sample(jax.random.key(0), (jnp.zeros(2),))
