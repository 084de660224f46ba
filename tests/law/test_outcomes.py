"""Finite pairs nested, all outcomes enumerated: against enumeration that shares no code with it."""

import jax
import numpy as np
import pytest

import jaxdp
from benchmarks import nesting
from jaxdp._numerical_outcomes import number, with_outcomes
from tests.programs import jit

PAIRS = [([0.6, 0.3, 0.1, 0.0], [0.2, 0.3, 0.3, 0.2]), ([0.7, 0.3, 0.0], [0.5, 0.4, 0.1])]
RATE, WEIGHTS, DELTA = 0.3, [0.25, 0.75], 0.02


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def _everything(rate=RATE, weights=WEIGHTS):
    """Every operation, with outcomes that only one of the inputs allows."""
    first, second = (jaxdp.FinitePair(*pair) for pair in PAIRS)
    batch = jaxdp.Composed(
        [first, jaxdp.RandomAllocation(second, 2), jaxdp.RandomizedResponse(0.4)]
    )
    either = jaxdp.Mixture(
        [jaxdp.PoissonSampled(batch, rate), jaxdp.ApproximateDP(0.3, 0.01)], weights
    )
    return jaxdp.Repeated(either, 2)


def _law():
    first, second = (nesting.Law(*map(np.array, pair)) for pair in PAIRS)
    e = np.exp([0.4, 0.3])
    kept = e / (1.0 + e)
    response = nesting.Law(np.array([kept[0], 1 - kept[0]]), np.array([1 - kept[0], kept[0]]))
    batch = first.times(nesting._allocated(second, 2)).times(response)
    batch = nesting._sampled(batch, RATE)
    p = np.array([0.01, 0.99 * kept[1], 0.99 * (1 - kept[1]), 0.0])
    a, b = WEIGHTS
    either = nesting.Law(np.append(a * batch.p, b * p), np.append(a * batch.q, b * p[::-1]))
    return either.times(either)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_every_operation_against_enumeration(direction):
    """Breaks when an operation loses a mass that Q or P lacks, or an error is not added up."""
    law = _law()
    p, q = (law.p, law.q) if direction == "remove" else (law.q, law.p)
    epsilons = np.array([-0.7, -0.1, 0.0, 0.2, 0.9])
    truth = np.array([np.maximum(p - np.exp(e) * q, 0.0).sum() for e in epsilons])
    low, high = jaxdp.delta_bounds(_everything(), epsilons, direction=direction)
    assert np.all((low <= truth * (1 + 1e-13)) & (high >= truth * (1 - 1e-13)))
    np.testing.assert_allclose(low, high, rtol=1e-9)
    low, high = jaxdp.epsilon_bounds(_everything(), DELTA, direction=direction)
    exact = nesting.Law(p, q).epsilon(DELTA)
    assert exact > 0.1
    assert exact * (1 - 1e-9) <= high <= exact * (1 + 1e-9)
    assert exact * (1 - 1e-9) <= low <= exact * (1 + 1e-9)
    assert low <= high


def test_a_random_structure_against_enumeration():
    """A slice of the benchmark: no violation, and brackets as narrow as rounding allows."""
    rng = np.random.default_rng(26)
    outcomes = 0
    while outcomes <= 200:  # (shuffled reports and schedules have laws, and are not enumerated)
        m, laws, name = nesting.structure(rng, 4, 6)
        outcomes = number(with_outcomes(m, None))
    violations, widths = nesting.ask(m, laws, 10.0 ** rng.uniform(-4.0, -1.0, 6), None)
    assert not violations, name
    assert max(widths) < 1e-8, name


def test_transforms_and_slopes():
    """Parameters traced, counts known: as without, above in float32, slopes as differences."""

    def epsilon(x):
        return jaxdp.epsilon(_everything(x[0], jax.numpy.stack([x[1], 1.0 - x[1]])), DELTA)

    at, step = np.array([RATE, WEIGHTS[0]]), np.diag([1e-5, 1e-5])
    rows = np.concatenate([at[None], at + step, at - step])
    values, slopes = jit(jax.vmap(jax.value_and_grad(epsilon)))(rows)
    np.testing.assert_allclose(slopes[0], (values[1:3] - values[3:]) / 2e-5, rtol=1e-5)
    with jax.enable_x64(False):
        single = jaxdp.epsilon(_everything(), DELTA)
    assert single.dtype == np.float32
    assert values[0] <= float(single) <= values[0] * (1 + 1e-6)


def test_no_epsilon_is_negative():
    """Breaks when the largest finite loss, below 0 beside a failure, is taken for an epsilon."""
    pair = jaxdp.FinitePair([0.3, 0.7], [0.0, 1.0])
    assert jaxdp.epsilon_bounds(pair, 0.5, direction="remove") == (0.0, 0.0)


def test_what_is_enumerated():
    """Few outcomes and known counts: else, and where a method is asked for, laws are tabulated."""
    pair = jaxdp.FinitePair([0.6, 0.4], [0.5, 0.5])
    two = jaxdp.PoissonSampled(jaxdp.Repeated(pair, 2), 0.1)
    assert number(with_outcomes(jaxdp.Repeated(two, 5), None)) == 21
    assert with_outcomes(jaxdp.Repeated(two, 5), jaxdp.Numerical()).mechanism is two
    for many in (jaxdp.Repeated(two, 1000), jaxdp.Repeated(two, 2.5)):
        inside = with_outcomes(many, None)
        assert not number(inside)
        assert number(inside.mechanism) == 3
    traced = jax.make_jaxpr(lambda n: number(with_outcomes(jaxdp.Repeated(two, n), None)))(3.0)
    assert not int(traced.jaxpr.outvars[0].val)
    gaussian = jaxdp.Composed([jaxdp.Gaussian(1.0), two])
    assert with_outcomes(jaxdp.Gaussian(1.0), None) == jaxdp.Gaussian(1.0)
    assert number(with_outcomes(gaussian, None).mechanisms[1]) == 3
