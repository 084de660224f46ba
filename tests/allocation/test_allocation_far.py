"""Ratios so large that, averaged with any others, nothing of delta is left ("add").

They decided the deviation by which the tilt is chosen, and what was read before all of the law had
no bound from below: (.10, .99) for a delta of .975.
"""

import itertools
import math

import jax
import numpy as np
import pytest
from scipy.optimize import brentq

import jaxdp

LARGE = [-3.9, 1.5, 86.0, 96.0], [0.00877, 0.00128, 0.00511, 0.98484]
STEPS = np.array([2.0, 4.0, 12.0])  # an array: what is known to be an integer is enumerated


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True):
        yield


def mechanism(losses, masses):
    masses = np.array(masses) / np.sum(masses)
    return jaxdp.LossDistribution(losses, np.log(masses))


MECHANISMS = {
    "large": (mechanism(*LARGE), LARGE),
    "response": (jaxdp.RandomizedResponse(20.0), ([-20.0, 20.0], [1.0, math.exp(20.0)])),
}


def average(losses, masses, steps):
    """(Q, ratio) of the average, by enumeration; what Q has besides are ratios of 0."""
    masses = np.array(masses) / np.sum(masses)
    ratios = np.exp([*losses, -np.inf])
    q = masses * np.exp(-np.array(losses))
    q = np.array([*q, max(1.0 - math.fsum(q), 0.0)])
    for counts in itertools.product(range(steps + 1), repeat=len(q) - 1):
        left = steps - sum(counts)
        if left >= 0:
            counts = [*counts, left]
            ways = math.factorial(steps) / math.prod(math.factorial(n) for n in counts)
            terms = [n * x for n, x in zip(counts, ratios, strict=True) if n]
            yield ways * math.prod(q**counts), math.fsum(terms) / steps


def curve(law, epsilon):
    return math.fsum(q * max(1.0 - math.exp(epsilon) * ratio, 0.0) for q, ratio in law)


@pytest.mark.parametrize("name", MECHANISMS)
def test_ratios_beyond_those_that_count(name):
    m, (losses, masses) = MECHANISMS[name]
    epsilons, deltas = np.array([-1.0, 0.1, 1.0, 3.0, 19.0]), np.array([0.1, 0.5, 0.9])
    run = jaxdp.RandomAllocation(m, STEPS[:, None])
    low, high = jaxdp.delta_bounds(run, epsilons, direction="add")
    least, most = jaxdp.epsilon_bounds(run, deltas, direction="add")
    for i, steps in enumerate(STEPS):
        law = list(average(losses, masses, int(steps)))
        truth = np.array([curve(law, epsilon) for epsilon in epsilons])
        assert np.all((low[i] <= truth * (1.0 + 1e-9)) & (truth <= high[i] * (1.0 + 1e-9)))
        np.testing.assert_allclose(low[i], truth, rtol=1e-3)
        np.testing.assert_allclose(high[i], truth, rtol=2e-3)
        unless = [curve(law, 40.0) >= delta for delta in deltas]  # all of them 0: delta for ever
        for j, delta in enumerate(deltas):
            if unless[j]:
                assert np.isinf(least[i, j])
                continue
            where = brentq(lambda e, d=delta, law=law: curve(law, e) - d, -1.0, 40.0, xtol=1e-12)
            assert least[i, j] <= where + 1e-9 <= most[i, j] + 2e-9
            assert most[i, j] - least[i, j] <= 3e-3


def test_a_rounding_beside_an_integer_is_that_integer():
    """Breaks when 0.7/0.1 steps are no 7: just above 4 the upper bound was 1e-11, truth .144.

    No law belongs to a number of steps that is no integer.
    """
    step, steps = jaxdp.RandomizedResponse(1.0), np.array([4.0, 7.0])
    for direction in ("remove", "add"):
        truth = jaxdp.delta_bounds(jaxdp.RandomAllocation(step, steps), 0.3, direction=direction)
        for factor in (1.0 - 2.0**-52, 1.0 + 2.0**-52, 1.0 + 1e-13):
            run = jaxdp.RandomAllocation(step, steps * factor)
            found = jaxdp.delta_bounds(run, 0.3, direction=direction)
            np.testing.assert_array_equal(found, truth)
    assert jaxdp.RandomAllocation(step, 0.7 / 0.1)._terms()[0].mechanism.num_steps == 7.0
    slope = jax.grad(lambda t: jaxdp.RandomAllocation(step, t)._terms()[0].mechanism.num_steps)
    assert slope(4.0 * (1.0 + 1e-13)) == 1.0


@pytest.mark.parametrize("sigma", [1.0, 2.0])
def test_composed_averages_far_out(sigma):
    """Breaks where the law is made for the delta of a normal loss: 1e-30 there for 1e-84, and 1e-3.

    Two are (2 e, 2 delta(e))-private by the theorem of composition, and no better than one.
    """
    one = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 50)
    two = jaxdp.Repeated(one, 2)
    epsilon = np.array([1.0, 2.0, 3.0, 6.0])
    half, whole = (
        np.asarray(jaxdp.log_delta(one, e, direction="add")) for e in (epsilon / 2, epsilon)
    )
    low, high = map(np.asarray, jaxdp.delta_bounds(two, epsilon, direction="add"))
    known = whole > -600.0
    assert np.all(np.log(high) <= np.maximum(np.log(2.0) + half, -600.0) + 1e-6)
    assert np.all(np.log(high[known]) >= whole[known] - 1e-3)
    near = np.log(high) > -300.0
    assert near.sum() >= 2
    assert np.all(low[near] >= 0.4 * high[near])
    assert np.all(low <= high)
