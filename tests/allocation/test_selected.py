"""k of t steps between blocks above and tests below, against sampling and enumeration."""

import itertools
import math

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp._law import _subset
from jaxdp._numerical_terms import as_term
from tests.programs import jit

DIRECTIONS = pytest.mark.parametrize("direction", ["remove", "add"])
CHOICES = [(4.0, 2.0), (6.0, 3.0), (20.0, 2.0)]
EPSILONS = np.array([0.2, 1.0, 2.0])
STEPS, SELECTED = (np.array(x)[:, None] for x in zip(*CHOICES, strict=True))


def _elementary(x, k):
    """The mean of the products of k of the entries along the last axis."""
    t = x.shape[-1]
    e = np.zeros((k + 1, *x.shape[:-1]))
    e[0] = 1.0
    for i in range(t):
        for j in range(min(k, i + 1), 0, -1):
            e[j] += e[j - 1] * x[..., i]
    return e[k] / math.comb(t, k)


def _sampled(t, k, direction, number=400_000):
    """delta at the epsilons for sigma = 1, and three deviations, by importance sampling."""
    rng = np.random.default_rng(t + k)
    y = rng.normal(size=(number, t))
    if direction == "remove":
        y[:, :k] += 1.0
    loss = np.log(_elementary(np.exp(y - 0.5), k))
    loss = loss if direction == "remove" else -loss
    lost = np.maximum(-np.expm1(EPSILONS[:, None] - loss), 0.0)
    return lost.mean(axis=1), 3.0 * lost.std(axis=1) / number**0.5


@pytest.mark.parametrize("direction", ["remove", pytest.param("add", marks=pytest.mark.slow)])
def test_the_truth_lies_between_blocks_and_tests(direction):
    """Breaks when a test has more of P, or less of Q, than there is; or is a poor one."""
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), STEPS, SELECTED)
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(m, EPSILONS, direction=direction))
    truth, off = np.stack([_sampled(int(t), int(k), direction) for t, k in CHOICES], axis=1)
    assert np.all(low <= truth + off)
    assert np.all(high >= truth - off)
    assert np.all(low >= 0.96 * truth - off)
    assert np.all(low < high)


def _enumerated(p, q, t, k, epsilon, direction):
    every = np.array(list(itertools.product(range(len(p)), repeat=t)))
    own, other = p[every], q[every]
    with_record = np.zeros(len(every))
    for chosen in itertools.combinations(range(t), k):
        mask = np.isin(np.arange(t), chosen)
        with_record += np.prod(np.where(mask, own, other), axis=1) / math.comb(t, k)
    pair = with_record, np.prod(other, axis=1)
    a, b = pair if direction == "remove" else pair[::-1]
    return np.maximum(a - np.exp(epsilon)[:, None] * b, 0.0).sum(axis=1)


@DIRECTIONS
def test_finite_pairs_against_enumeration(direction):
    """An outcome without the record's mass and one without the others': failures, both ways."""
    p, q = np.array([0.5, 0.3, 0.17, 0.03, 0.0]), np.array([0.2, 0.3, 0.45, 0.0, 0.05])
    choices = [(4, 2), (6, 3), (6, 2)]
    s = 1 if direction == "remove" else -1
    term = as_term(None, jaxdp.FinitePair(p, q), 1.0)

    def least(t, k, rate):
        law = _subset.subset(term, t, k, rate * k / t, np.log(1e-8), s, 1024)
        return jax.vmap(lambda e: _subset.log_delta(law, e))(EPSILONS)

    every = jit(jax.vmap(jax.vmap(least, (None, None, 0)), (0, 0, None)))
    steps, selected = np.array(choices, float).T
    low = np.exp(np.asarray(every(steps, selected, np.array([0.25, 0.5, 1.0]))))
    truth = np.array([_enumerated(p, q, t, k, EPSILONS, direction) for t, k in choices])[:, None]
    assert np.all(low <= truth * (1.0 + 1e-12))
    # Few outcomes are told apart by the statistic, but for those that share a point of the lattice.
    np.testing.assert_allclose(np.max(low, axis=1), truth[:, 0], rtol=1e-9)
    assert np.all(low >= 0.99 * truth)


def test_gradients_of_the_bound_from_below_agree_with_differences():
    """Breaks when a choice of the test carries a gradient, or its masses lose theirs.

    (The lattice moves with the parameters: by a few 1e-5 of epsilon, to which the steps are large.)
    """

    def least(x):
        term = as_term(None, jaxdp.Gaussian(x[0]), 1.0)
        law = _subset.subset(term, 20.0 * x[1], 2.0 * x[1], 0.05, np.log(1e-7), -1)
        return _subset.epsilon(law, np.log(1e-5))

    at = np.array([1.0, 2.0])
    value, slopes = jit(jax.value_and_grad(least))(at)
    step = 3e-2 * at
    ends = jit(jax.vmap(least))(np.concatenate([at + np.diag(step), at - np.diag(step)]))
    assert np.isfinite(value)
    np.testing.assert_allclose(slopes, (ends[:2] - ends[2:]) / (2.0 * step), rtol=2e-2)


def test_blocks_that_have_to_be_spent_together():
    """Breaks when delta is guessed by one of the blocks, whose loss never reaches such epsilons."""
    at = np.array([0.3, 0.45, 0.5, 0.6])
    x = np.exp(0.3645)  # the ratio of one outcome, 1/x that of the other
    losses, weights = np.zeros(1), np.ones(1)
    for t in (3, 4):
        ups = np.arange(t + 1)
        q = np.array([math.comb(t, i) for i in ups]) * x ** (t - ups) / (1.0 + x) ** t
        mean = (ups * x + (t - ups) / x) / t
        losses = (losses[:, None] - np.log(mean)).ravel()
        weights = (weights[:, None] * q).ravel()
    truth = [np.sum(weights * np.maximum(-np.expm1(e - losses), 0.0)) for e in at]
    run = jaxdp.RandomAllocation(jaxdp.RandomizedResponse(0.3645), 7, 2)
    got = np.asarray(jaxdp.delta(run, at, direction="add"))
    assert np.all(got >= np.array(truth) * (1.0 - 1e-6))
    np.testing.assert_allclose(got, truth, rtol=2e-3)


def test_all_steps_are_a_composition():
    """Breaks when k = t is more than the composition of t steps, or asks for an average."""
    chosen = jaxdp.RandomAllocation(jaxdp.Gaussian(0.7), 7, 7, num_epochs=2)
    exact = jaxdp.Gaussian(0.7 / math.sqrt(14.0))
    deltas = np.array([0.3, 1e-5, 1e-30])
    np.testing.assert_allclose(jaxdp.epsilon(chosen, deltas), jaxdp.epsilon(exact, deltas), 1e-6)
    step = jaxdp.PoissonSampled(jaxdp.RandomizedResponse(2.0), 0.3)
    found = jaxdp.epsilon_bounds(jaxdp.RandomAllocation(step, [3, 5], [3, 5]), 1e-3)
    np.testing.assert_array_equal(found, jaxdp.epsilon_bounds(jaxdp.Repeated(step, [3, 5]), 1e-3))
    # (steps and choices put into that structure by hand are no composition)
    leaves, structure = jax.tree.flatten(jaxdp.RandomAllocation(step, 5, 5))
    other = jax.tree.unflatten(structure, [*leaves[:-2], 3, leaves[-1]])
    assert (other.num_steps, other.num_selected) == (5, 3)
    assert np.isnan(jaxdp.epsilon(other, 1e-3))
