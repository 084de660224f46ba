"""Averages taken in pairs: beside exact laws, where lattices of ratios say nothing, and slopes."""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxdp
from jaxdp._law import _average_atoms, _average_pairs_plan
from tests.law import finite_truth
from tests.law.laws import laplace, randomized_response, sampled_gaussian


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def averaged(outcomes, steps):
    """The pairs (p, q) of one of so many steps, outcomes with equal counts together."""
    total = []
    for chosen in itertools.combinations_with_replacement(range(len(outcomes)), steps):
        ways = math.factorial(steps) // math.prod(
            math.factorial(chosen.count(i)) for i in set(chosen)
        )
        q = mp.fprod(outcomes[i][1] for i in chosen)
        parts = (
            outcomes[i][0] * mp.fprod(outcomes[j][1] for n, j in enumerate(chosen) if n != k)
            for k, i in enumerate(chosen)
        )
        total.append((ways * mp.fsum(parts) / steps, ways * q))
    return total


STEPS = {
    "response": (jaxdp.RandomizedResponse(1.7), finite_truth.response(1.7)),
    "weak response": (jaxdp.RandomizedResponse(0.01), finite_truth.response(0.01)),
    "strong response": (jaxdp.RandomizedResponse(9.0), finite_truth.response(9.0)),
    "failing": (jaxdp.ApproximateDP(1.0, 0.01), finite_truth.response(1.0, 0.01)),
    "pair": (
        jaxdp.FinitePair([0.5, 0.25, 0.25], [0.015625, 0.234375, 0.75]),
        finite_truth.pair([0.5, 0.25, 0.25], [0.015625, 0.234375, 0.75]),
    ),
}


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("kind", STEPS)
def test_beside_the_exact_law(kind, direction):
    """Breaks when a pair's mass goes to a wrong point, is lost, or rounded to the wrong side."""
    step, outcomes = STEPS[kind]
    steps, epochs = np.array([3.0, 5.0]), np.array([3.0, 2.0])
    run = jaxdp.RandomAllocation(step, steps[:, None], num_epochs=epochs[:, None])
    at = np.array([-0.4, 0.1, 1.3]) * float(step._loss_range()[1])
    low, high = jaxdp.delta_bounds(run, at, direction=direction, method=jaxdp.Numerical())
    for i, (t, n) in enumerate(zip(steps, epochs, strict=True)):
        law = finite_truth.composed(averaged(outcomes, int(t)), int(n))
        for j, epsilon in enumerate(at):
            truth = float(finite_truth.hockey_stick(law, epsilon, direction == "add"))
            assert low[i, j] <= truth * (1.0 + 1e-14)
            assert high[i, j] >= truth * (1.0 - 1e-14)
            assert high[i, j] - low[i, j] <= 5e-2 * truth + 1e-13


# Where a lattice of ratios answered 0, or several times the truth.
HARD = {
    "Laplace, 10 x 15": (jaxdp.Laplace(8.143), 10, 15, 2.6e-8),
    "Laplace, 19 x 13": (jaxdp.Laplace(0.44), 19, 13, 2.2e-11),
    "response, 95 x 140": (jaxdp.RandomizedResponse(5.552), 95, 140, 2.3e-6),
    "response, 1486 x 209": (jaxdp.RandomizedResponse(4.905), 1486, 209, 2.6e-12),
    "Gaussian, 3 x 109": (jaxdp.Gaussian(0.9339), 3, 109, 9e-11),
    "Gaussian, 60 x 288": (jaxdp.Gaussian(0.3), 60, 288, 5.6e-9),
    "integers, 3 x 109": (jaxdp.DiscreteGaussian(1.319), 3, 109, 9e-11),
    "half of 20": (jaxdp.Laplace(0.6), 2, 10, 1e-9),
    "Gaussian, 26 x 30": (jaxdp.Gaussian(0.7116), 26, 30, 1.6e-14),
    "far out, 16 x 39": (jaxdp.Gaussian(3.29), 16, 39, 6e-24),
    "far out, 34 x 26": (jaxdp.Gaussian(1.182), 34, 26, 1e-81),
    "far out, 36 x 16": (jaxdp.Gaussian(8.766), 36, 16, 4e-79),
    "far out, 10 x 4": (jaxdp.Gaussian(3.732), 10, 4, 2.5e-77),
}
SECOND = {"response, 95 x 140", "integers, 3 x 109", "half of 20"}  # looks at what others see


@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=pytest.mark.slow if x in SECOND else ()) for x in HARD]
)
def test_large_losses_and_few_steps(kind):
    """Breaks when laws are read where they have no digits: 0 below, some times too much above."""
    step, steps, epochs, delta = HARD[kind]
    run = jaxdp.RandomAllocation(step, steps, num_epochs=epochs)
    for direction in ("remove", "add", "both"):
        low, high = jaxdp.epsilon_bounds(run, delta, direction=direction)
        assert low <= high <= low * 1.01


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_step_an_epoch_far_out(direction):
    """Breaks when small averages are cut off that make up delta: one step is known exactly."""
    rng = np.random.default_rng(11)
    sigma, epochs = np.exp(rng.uniform(np.log(0.3), np.log(9), 12)), rng.integers(2, 60, 12)
    delta = 10.0 ** rng.uniform(-100, -6, 12)
    truth = jaxdp.epsilon(jaxdp.Repeated(jaxdp.Gaussian(sigma), epochs), delta)
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), np.ones(12), num_epochs=epochs)
    low, high = jaxdp.epsilon_bounds(run, delta, direction=direction)
    assert np.all(low <= truth * (1 + 1e-12))
    assert np.all(truth <= high * (1 + 1e-12))
    assert np.all(high <= low * 1.02)


@pytest.mark.slow
def test_agrees_with_lattices_of_ratios(monkeypatch):
    """Breaks when one of the two is no bound: where both are narrow, they overlap."""
    rng = np.random.default_rng(5)
    run = jaxdp.RandomAllocation(
        jaxdp.Gaussian(rng.uniform(1.0, 3.0, 4)),
        np.round(np.exp(rng.uniform(np.log(20), np.log(500), 4))),
        num_epochs=np.round(rng.uniform(2, 40, 4)),
    )
    delta = 10.0 ** rng.uniform(-9, -3, 4)
    found = []
    for some in (True, False):
        monkeypatch.setattr(_average_pairs_plan, "better", lambda *_, some=some: jnp.bool_(some))
        jax.clear_caches()
        for direction in ("remove", "add"):
            # (A size of its own, for a program of its own.)
            method = jaxdp.Numerical(16384 if some else 32768)
            found.append(jaxdp.epsilon_bounds(run, delta, direction=direction, method=method))
    for (low, high), (below, above) in zip(found[:2], found[2:], strict=True):
        assert np.all(low <= above)
        assert np.all(below <= high)
        assert np.all(high <= low * 1.03)
        assert np.all(above <= below * 1.03)


@pytest.mark.parametrize("s", [1, -1])
@pytest.mark.parametrize("side", [1, -1])
def test_masses_of_an_average(side, s):
    """Breaks when the law's mass or mean is not what rounding leaves of 1, or ends are cut off."""
    terms = {
        "response": randomized_response(2.0, 1.0),
        "Laplace": laplace(1.5, 1.0),
        "sampled": sampled_gaussian(0.8, 0.3, 1.0),
    }
    for term in terms.values():
        known = _average_atoms.coarse(term)
        law = _average_pairs_plan.averaged(
            term, jnp.float64(21.0), jnp.float64(-20.0), s, side, known, 256
        )
        log_q, log_p = law.masses(jnp.full((1,), -jnp.inf), jnp.full((1,), jnp.inf))
        q = float(jnp.exp(log_q[0]) + jnp.exp(law.log_tau_q))
        p = float(jnp.exp(log_p[0]) + jnp.exp(law.log_tau_p))
        assert 0.0 <= side * (q - 1.0) <= 1e-8
        assert 0.0 <= side * (p - 1.0) <= 1e-8
        low, high = (float(x) for x in law.support)
        assert low < 0.0 < high


@pytest.mark.parametrize("direction", ["remove", pytest.param("add", marks=pytest.mark.slow)])
def test_derivatives(direction):
    """Breaks when atoms stay as losses move, or a number of steps is taken for a constant."""

    def epsilon(x, t, n):
        run = jaxdp.RandomAllocation(jaxdp.RandomizedResponse(x), t, num_epochs=n)
        return jaxdp.epsilon(run, 8e-7, direction=direction)

    at = (2.81, 55.0, 263.0)
    slope = jax.grad(epsilon, (0, 1, 2))(*at)
    for i, (size, room) in enumerate([(1e-4, 1e-3), (1e-2, 1e-3), (1e-3, 1e-3)]):
        # (By the number of steps to the right: between whole numbers it is a mixture.)
        further = [x + size * (k == i) for k, x in enumerate(at)]
        before = [x - size * (k == i and i != 1) for k, x in enumerate(at)]
        width = size * (1 if i == 1 else 2)
        difference = (epsilon(*further) - epsilon(*before)) / width
        np.testing.assert_allclose(slope[i], difference, rtol=room)


def test_a_batch_is_its_rows():
    """Breaks when a row of a batch takes the way of another one."""
    steps, epochs = np.array([3.0, 900.0, 40.0]), np.array([50.0, 4.0, 9.0])
    sigma, delta = np.array([0.8, 1.5, 0.4]), np.array([1e-9, 1e-6, 1e-11])
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps, num_epochs=epochs)
    together = jaxdp.epsilon_bounds(run, delta, direction="add")
    for i in range(3):
        one = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma[i]), steps[i], num_epochs=epochs[i])
        alone = jaxdp.epsilon_bounds(one, delta[i], direction="add")
        np.testing.assert_allclose([x[i] for x in together], alone, rtol=1e-5)
