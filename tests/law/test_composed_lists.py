"""Compositions as users write them: a list of mechanisms of one kind is computed as a schedule."""

import jax
import mpmath as mp
import numpy as np
import pytest

import jaxdp
from jaxdp._mechanisms._schedule import with_schedules
from tests.law import finite_truth
from tests.programs import jit

SCALES = np.linspace(2.0, 6.0, 16)
MIXED = [
    *(jaxdp.Laplace(s) for s in SCALES[:7]),
    *(jaxdp.Gaussian(s) for s in SCALES),
    *(jaxdp.Laplace(s) for s in SCALES[7:]),
    jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1),
]
ONES = np.ones(16)
SAME = [
    jaxdp.Schedule(jaxdp.Laplace(SCALES, ONES)),
    jaxdp.Schedule(jaxdp.Gaussian(SCALES, ONES)),
    MIXED[-1],
]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True), mp.workdps(finite_truth.DIGITS):
        yield


def test_hundreds_of_gaussians_are_one_gaussian():
    """Breaks when a closed form is lost, or squares beyond a double overflow."""
    sigma = np.random.default_rng(0).uniform(20.0, 40.0, 500)
    many = jaxdp.Composed([jaxdp.Gaussian(s) for s in sigma])
    one = jaxdp.Gaussian(1.0 / np.sqrt(np.sum(sigma**-2.0)))
    got, want = (float(jaxdp.epsilon(m, 1e-5, method=jaxdp.Analytic())) for m in (many, one))
    assert want * (1 - 1e-12) <= got <= want * (1 + 1e-11)
    far = jaxdp.Composed([jaxdp.Gaussian(s) for s in (1e-200, 1e-200, 1e-201, 1e-202)])
    assert float(jaxdp.renyi(far, 1.0)) == np.inf  # beyond every float64, and not nan
    small = jaxdp.Composed([jaxdp.Gaussian(1e200)] * 4)
    assert float(jaxdp.advantage(small)) == pytest.approx(2 * 0.3989422804e-200, rel=1e-6)


def test_a_list_is_the_schedule_it_amounts_to():
    """Breaks when a step is lost or counted twice, or equal atoms have to share a lattice."""
    assert with_schedules(jaxdp.Composed(MIXED)) == jaxdp.Composed(SAME)
    few = [*MIXED[:3], *MIXED[7:23]]
    assert with_schedules(jaxdp.Composed(few)) == jaxdp.Composed([*MIXED[:3], SAME[1]])
    response = jaxdp.RandomizedResponse(1.0)
    alike = [response, MIXED[0], *(jaxdp.RandomizedResponse(1.0) for _ in range(19))]
    found = with_schedules(jaxdp.Composed(alike))
    assert found == jaxdp.Composed([jaxdp.Repeated(response, 20), MIXED[0]])
    rows = [jaxdp.Laplace(s * np.ones((3, 1))) for s in SCALES]
    assert jaxdp.epsilon(jaxdp.Composed(rows), np.zeros(2)).shape == (3, 2)
    # Numbers of several types stay a list, and become steps inside: the same program but for that.
    typed = [jaxdp.Laplace(jax.numpy.asarray(SCALES[0])), *MIXED[1:7], *MIXED[23:32]]
    assert isinstance(with_schedules(jaxdp.Composed(typed)), jaxdp.Composed)
    got, want = (jaxdp.epsilon(m, 1e-5) for m in (jaxdp.Composed(typed), SAME[0]))
    np.testing.assert_allclose(got, want, rtol=1e-12)
    got, want = (jaxdp.renyi(m, 3.0) for m in (jaxdp.Composed(MIXED), jaxdp.Composed(SAME)))
    np.testing.assert_allclose(got, want, rtol=1e-12)


def test_hundreds_are_a_program_no_longer_than_a_few():
    """Breaks when every mechanism of a list is a piece of program of its own."""

    def length(count):
        run = jaxdp.Composed([jaxdp.Laplace(s) for s in np.linspace(20.0, 40.0, count)])
        jaxpr = jax.make_jaxpr(lambda delta: jaxdp.epsilon(run, delta))(1e-5)
        return len(str(jaxpr).splitlines())

    assert length(200) <= length(20) * 1.01


def test_atoms_and_failures_by_enumeration():
    """Breaks when the lattice of all steps serves an atomic law badly, or a failure is lost."""
    epsilons, failures = np.array([0.5, 0.7, 0.9, 1.1]), np.array([0.0, 1e-7, 0.0, 1e-6])
    pairs = [finite_truth.response(e, d) for e, d in zip(epsilons, failures, strict=True)]
    outcomes = [(mp.mpf(1), mp.mpf(1))]
    for one in pairs:
        outcomes = [(p * a, q * b) for p, q in outcomes for a, b in one if (a, b) != (0, 0)]
    steps = zip(epsilons, failures, strict=True)
    m = jaxdp.Composed([jaxdp.ApproximateDP(e, d) for e, d in steps])
    at = np.array([0.0, 0.8, 1.9, 3.1])
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(m, at, method=jaxdp.Numerical()))
    want = np.array([float(finite_truth.hockey_stick(outcomes, e)) for e in at])
    assert np.all(low <= want * (1 + 1e-14))
    assert np.all(want <= high * (1 + 1e-14))
    np.testing.assert_allclose(low, high, rtol=0.1)  # (atoms of four sizes: no lattice has all)


def test_gradients_and_mixed_numbers():
    """Breaks when a list under grad or jit, or with numbers of several types, loses a parameter."""

    def epsilon(first, rest):
        steps = [jaxdp.Gaussian(first), *(jaxdp.Gaussian(s) for s in rest)]
        return jaxdp.epsilon(jaxdp.Composed(steps), 1e-5)

    rest = np.array([2.0, 3.0, 4.0])
    slope, slopes = jit(jax.grad(epsilon, argnums=(0, 1)))(2.5, rest)
    h = 1e-5
    up, down = epsilon(2.5 + h, rest), epsilon(2.5 - h, rest)
    assert slope == pytest.approx(float(up - down) / (2 * h), rel=1e-6)
    np.testing.assert_allclose(slopes * rest**3, slope * 2.5**3, rtol=1e-9)  # mu^2 decides alone
    with jax.enable_x64(False):
        mixed = jaxdp.Composed(
            [jaxdp.Gaussian(s) for s in (0.1, np.float32(0.1), jax.numpy.ones(()), 1)]
        )
        exact = 1.0 / np.sqrt(0.1**-2.0 + float(np.float32(0.1)) ** -2.0 + 2.0)
        got = float(jax.jit(lambda: jaxdp.epsilon(mixed, 1e-5))())
    want = float(jaxdp.epsilon(jaxdp.Gaussian(exact), 1e-5))
    assert want * (1 - 1e-12) <= got <= want * (1 + 1e-6)


@pytest.mark.slow
def test_a_delta_of_allocations_of_different_kinds():
    """Breaks when it is looked for about that of the first one alone: (2e-12, .4) were bounds."""
    allocations = [(jaxdp.Gaussian(4.24), 8), (jaxdp.Laplace(1.62), 5)]
    m = jaxdp.Composed([jaxdp.RandomAllocation(*one) for one in allocations])
    lower, upper = jaxdp.delta_bounds(m, 0.53, direction="add")
    assert 0.99 * upper < lower < upper
