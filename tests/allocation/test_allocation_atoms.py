"""One of t steps whose losses are atoms, or end in one, beside exact laws."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp._law import _average_end, _average_grid
from tests.law.laws import laplace, randomized_response


def averaged(p, q, steps):
    """Ratios and Q-masses of the average of so many steps, outcomes with equal counts together."""
    ratio, mass = [], []
    for chosen in itertools.combinations_with_replacement(range(len(p)), steps):
        counts = np.bincount(chosen, minlength=len(p))
        ways = math.factorial(steps) / math.prod(math.factorial(int(c)) for c in counts)
        mass.append(ways * np.prod(q**counts))
        ratio.append(np.sum(counts * (p / q)) / steps)
    return np.array(ratio), np.array(mass)


def hockey_stick(law, epsilon, direction):
    ratio, mass = law
    gap = ratio - np.exp(epsilon) if direction == "remove" else 1.0 - np.exp(epsilon) * ratio
    return float(np.sum(mass * np.maximum(gap, 0.0)))


def integers(sigma, sampling_probability=1.0):
    """The pair of a discrete Gaussian of an integer moved by 1, up to what no double sees."""
    k = np.arange(-7, 9)
    q = np.exp(-(k**2) / (2.0 * sigma**2))
    p = np.exp(-((k - 1) ** 2) / (2.0 * sigma**2))
    p, q = p / p.sum(), q / q.sum()
    return sampling_probability * p + (1.0 - sampling_probability) * q, q


# Each row: sigma, sampling probability, steps, delta.
INTEGERS = [
    (0.484, 1.0, 6, 9.4e-12),  # to add: (0, 12.2) when large ratios were moved back for nothing
    (0.42, 1.0, 3, 4.4e-12),
    (0.72, 1.0, 5, 8.4e-9),
    (0.6, 1.0, 4, 1e-4),
    (0.45, 2e-3, 5, 1e-5),  # one large ratio among bare ones
    (0.5, 0.1, 4, 1e-6),
]


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_integers_beside_their_exact_law(direction):
    """Breaks when atoms far apart get no node, or leave waves where the query is looked for."""
    sigma, rate, steps, delta = np.array(INTEGERS).T
    step = jaxdp.PoissonSampled(jaxdp.DiscreteGaussian(sigma), rate)
    run = jaxdp.RandomAllocation(step, steps)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, delta, direction=direction))
    for i, row in enumerate(INTEGERS):
        law = averaged(*integers(row[0], row[1]), int(row[2]))
        assert hockey_stick(law, low[i], direction) >= row[3] * (1.0 - 1e-9)
        assert hockey_stick(law, high[i], direction) <= row[3] * (1.0 + 1e-9)
        assert high[i] - low[i] <= 2e-2 * high[i]


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_two_atoms_at_every_delta(direction):
    """Breaks when the search for a query goes round in circles: lower bounds of 0."""
    step, steps = 2.7147105415117596, 25
    delta = np.geomspace(1e-14, 1e-2, 30)
    run = jaxdp.RandomAllocation(jaxdp.DiscreteLaplace(step), steps)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, delta, direction=direction))
    up = 1.0 / (1.0 + np.exp(-step))
    law = averaged(np.array([up, 1.0 - up]), np.array([1.0 - up, up]), steps)
    for i, target in enumerate(delta):
        assert hockey_stick(law, low[i], direction) >= target * (1.0 - 1e-9)
        assert hockey_stick(law, high[i], direction) <= target * (1.0 + 1e-9)
    assert np.all(high - low <= 1e-4 * high)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_few_steps_that_end_in_an_atom(direction):
    """Breaks next to the largest loss: a third of these had a lower bound of 0."""
    rng = np.random.default_rng(4)
    scale = np.exp(rng.uniform(np.log(0.05), np.log(10.0), 48))
    steps = np.round(np.exp(rng.uniform(np.log(2), np.log(40), 48)))
    delta = 10.0 ** rng.uniform(-30, -2, 48)
    run = jaxdp.RandomAllocation(jaxdp.Laplace(scale), steps)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, delta, direction=direction))
    assert np.all(high <= 1.0 / scale * (1.0 + 1e-12))
    assert np.all(low <= high)
    assert np.all(high - low <= 5e-3 * high)


@pytest.mark.parametrize("s", [1, -1])
def test_what_all_ratios_at_the_end_attain(s):
    """Breaks when it is above the truth, or not the truth where no other outcome counts."""
    loss, steps = 1.3, 4.0
    at = _average_end.end(randomized_response(loss, 1.0), jnp.float64(steps), s, (-loss, loss))
    log_q = -np.log1p(np.exp(s * loss))
    up = 1.0 / (1.0 + np.exp(-loss))
    law = averaged(np.array([up, 1.0 - up]), np.array([1.0 - up, up]), int(steps))
    direction = "remove" if s > 0 else "add"
    for gap in (0.5, 1e-2, 1e-6):
        found = float(_average_end.log_delta(at, jnp.float64(loss - gap)))
        exact = steps * log_q + np.log(-np.expm1(-gap)) + (loss if s > 0 else 0.0)
        assert exact - 1e-7 <= found <= np.log(hockey_stick(law, loss - gap, direction)) + 1e-13
        back = float(_average_end.epsilon(at, jnp.float64(found)))
        assert loss - gap - 1e-9 <= back <= loss - gap + 1e-13
    assert _average_end.log_delta(at, jnp.float64(loss + 1e-9)) == -jnp.inf
    assert _average_end.epsilon(at, jnp.max(at.log_scale) + 1e-6) == -jnp.inf
    # What is below the least ratio, and what is not.
    assert np.isclose(float(at.bare.least), np.exp(-loss), rtol=1e-8)
    assert float(at.bare.least) < np.exp(-loss)
    assert 0.0 < float(at.bare.mass) < 1e-290
    most = _average_end.end(randomized_response(loss, 1.0), jnp.float64(steps), s, (-0.5, loss))
    assert up <= float(most.bare.mass) <= up * (1.0 + 1e-12)
    # Nothing where there is no largest loss; of a density with an atom, the atom.
    atom = _average_end.end(laplace(1.0, 1.0), jnp.float64(steps), s, (-1.0, 1.0))
    assert np.isclose(
        float(atom.log_scale[-1]), steps * (np.log(0.5) - (s > 0)) + (s > 0), rtol=1e-8
    )


def test_how_often_the_others_are_not_enough():
    """Breaks when a chord is not above what it stands for."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, q = np.sort(rng.uniform(0.1, 3.0, 12)), rng.dirichlet(np.ones(12))
        edges = np.array([0.0, *x[2::3] + 1e-9])
        groups = [(x > lo) & (x <= hi) for lo, hi in itertools.pairwise(edges)]
        mass = np.array([q[g].sum() for g in groups])
        mean = np.array([(q[g] * x[g]).sum() for g in groups]) / mass
        cells = _average_grid.Cells(*(jnp.asarray(v) for v in (edges[:-1], edges[1:], mass, mean)))
        assert np.isclose(float(cells.first), q @ x)
        assert float(cells.first) <= q @ x
        assert 0.0 <= cells.missing <= 1e-10
        for least in (0.0, 0.5 * mean[0], 0.99 * mean[0]):
            kept = x >= least
            for rate in (0.3, 2.0, 11.0):
                exact = np.log(np.sum(q[kept] * np.exp(-rate * (x[kept] - 1.0))))
                found = cells.log_mgf(jnp.float64(rate), jnp.float64(1.0), jnp.float64(least))
                assert float(found) >= exact


def test_derivatives_where_a_node_moves():
    """Breaks when atoms move between nodes that stay: derivatives of 0, nan and of no sign."""
    rng = np.random.default_rng(5)
    sigma = np.exp(rng.uniform(np.log(0.4), np.log(2.5), 16))
    steps = np.round(np.exp(rng.uniform(np.log(2), np.log(2000), 16)))
    delta = 10.0 ** rng.uniform(-12, -3, 16)

    def epsilon(sigma):
        run = jaxdp.RandomAllocation(jaxdp.DiscreteGaussian(sigma), steps)
        return jaxdp.epsilon(run, delta, direction="add")

    _, slope = jax.jvp(epsilon, (jnp.asarray(sigma),), (jnp.ones(16),))
    h = 1e-4 * sigma
    difference = (epsilon(sigma + h) - epsilon(sigma - h)) / (2.0 * h)
    # (3 of 96 draws are off by more: atoms between the nodes of a wide window.)
    off = np.abs(np.asarray(slope / difference) - 1.0)
    assert np.all(off < 0.2)
    assert np.mean(off < 4e-2) >= 15 / 16
