"""Bounds for random allocation against exact values: each fails if a bound is on the wrong side."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp._law import Term, _average_grid
from jaxdp._law._allocation import allocation_epsilon_bounds, allocation_log_delta_bounds
from jaxdp._law._grid import ladder
from tests import oracle
from tests.law import laws
from tests.programs import jit


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


KINDS = ("sigma", "x", "e0")  # Gaussian, Laplace, randomised response


def _term(kind, parameter):
    """The base of that number: one program for all three."""
    bases = (
        Term(laws.gaussian(1.0 / parameter)),
        laws.laplace(parameter, 1.0),
        laws.randomized_response(parameter, 1.0),
    )

    def select(*values):
        return jnp.select([kind == i for i in range(len(bases))], values)

    def masses(lo, hi):
        found = [base.masses(lo, hi) for base in bases]
        return select(*(f[0] for f in found)), select(*(f[1] for f in found))

    ends = tuple(select(*(jnp.float64(base.support[i]) for base in bases)) for i in (0, 1))
    return Term(masses, support=ends)


@functools.cache
def _programs(direction):
    def bounds(kind, parameter, steps, epsilon):
        return allocation_log_delta_bounds(
            _term(kind, parameter), steps, epsilon, direction=direction
        )

    return jit(bounds)


def log_deltas(base, direction):
    program, kind = _programs(direction), KINDS.index(base)
    return lambda *numbers: program(*(jnp.float64(x) for x in (kind, *numbers)))


@functools.cache
def epsilons(direction, size):
    def bounds(sigma, steps, delta):
        term = Term(laws.gaussian(1.0 / sigma))
        return allocation_epsilon_bounds(term, steps, delta, direction=direction, size=size)

    return jit(bounds)


def _cases(base):
    every = oracle.cases("allocation_hs") + oracle.cases("allocation_hs_anyt")
    unique = {case.id: case for case in (p.values[0] for p in every)}
    return [case for case in unique.values() if base in case.params]


def _directions(case):
    found = [d for d, mark in (("remove", "rm_"), ("add", "add_")) if mark in case.name]
    return found or ["remove", "add"]


@pytest.mark.parametrize("base", KINDS)
def test_oracle_values_are_bracketed(base):
    """Breaks if an atom is moved, a tail is priced wrongly, or the two directions are confused."""
    cases = _cases(base)
    assert cases
    for case in cases:
        for direction in _directions(case):
            if case.params["t"] > 1e5:  # a finer lattice, as the mechanism has it
                arguments = [float(case.params[base]), float(case.params["t"]), float(case.value)]
                low, high = (float(v) for v in epsilons(direction, 65536)(*arguments))
                assert low <= case.params["eps"] * (1 + 1e-9), (case.id, direction)
                assert high >= case.params["eps"] * (1 - 1e-9), (case.id, direction)
                assert high - low < 0.01 * low, (case.id, direction, low, high)
                continue
            arguments = [float(case.params[k]) for k in (base, "t", "eps")]
            low, high = (float(v) for v in log_deltas(base, direction)(*arguments))
            exact = np.log(case.value)
            # The oracle's parameters are decimals, ours the nearest doubles.
            assert low <= exact + 1e-10, (case.id, direction)
            assert high >= exact - 1e-10, (case.id, direction)
            assert high - low < 0.05, (case.id, direction, low, high)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_step_is_the_mechanism_itself(direction):
    for sigma, epsilon in ((1.0, 1.0), (0.5, 8.0), (5.0, 0.3), (1.0, 6.0)):
        exact = laws.gaussian_log_delta(1.0 / sigma, epsilon)
        low, high = log_deltas("sigma", direction)(sigma, 1.0, epsilon)
        assert low <= exact <= high
        assert high - low < 1e-2


TRUTHS = [
    (1.0, 1e3, 1e-6, 0.171729, 0.149431, 5e-3),
    (2.0, 1e4, 1e-6, 0.0170629, 0.0170331, 5e-3),
    (0.5, 1e2, 1e-6, 6.393640, 1.481442, 5e-3),
    (1.0, 1e6, 1e-6, 0.0036744, 0.0036659, 1e-2),
]


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_known_epsilons_are_bracketed_tightly(direction):
    for sigma, steps, delta, remove, add, width in TRUTHS:
        exact = remove if direction == "remove" else add
        low, high = epsilons(direction, 65536)(sigma, steps, delta)
        assert low <= exact * (1 + 1e-5), (sigma, steps)
        assert high >= exact * (1 - 1e-5), (sigma, steps)
        assert (high - low) / exact < width, (sigma, steps)


def _monte_carlo(rng, sigma, steps, epsilon, direction, samples=30_000):
    """Mean and standard error of the estimate; remove under P (one ratio size-biased)."""
    z = rng.standard_normal((samples, steps))
    if direction == "remove":
        z[:, 0] += 1.0 / sigma
    average = np.exp(z / sigma - 0.5 / sigma**2).mean(axis=1)
    if direction == "remove":
        value = np.maximum(1.0 - np.exp(epsilon) / average, 0.0)
    else:
        value = np.maximum(1.0 - np.exp(epsilon) * average, 0.0)
    return value.mean(), value.std() / np.sqrt(samples)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_bounds_agree_with_simulation(direction):
    """Breaks if the bounds bracket something else than the average's law."""
    rng = np.random.default_rng(7)
    for _ in range(10):
        sigma, steps = rng.uniform(0.4, 4.0), int(rng.integers(2, 40))
        spread = np.sqrt(np.expm1(1.0 / sigma**2) / steps)
        epsilon = rng.uniform(0.2, 1.2) * min(spread, 1.0)
        estimate, error = _monte_carlo(rng, sigma, steps, epsilon, direction)
        low, high = np.exp(log_deltas("sigma", direction)(sigma, float(steps), epsilon))
        assert low <= estimate + 4.5 * error
        assert high >= estimate - 4.5 * error
        assert high - low < 0.02 * high


def test_small_deltas_stay_tight():
    """Breaks if the transform's rounding noise reaches the answer."""
    for sigma, steps, delta in ((1.0, 30.0, 1e-20), (5.0, 30.0, 1e-30), (2.0, 1e4, 1e-15)):
        for direction in ("remove", "add"):
            low, high = epsilons(direction, 65536)(sigma, steps, delta)
            assert 0.0 < low <= high < 1.005 * low


@pytest.mark.slow
def test_smooth_laws_stay_tight():
    """Breaks if a transform that vanishes counts as infinite rounding."""
    for sigma, steps, delta in ((5.0, 1e6, 1e-10), (10.0, 1e5, 1e-8)):
        for direction in ("remove", "add"):
            low, high = epsilons(direction, 65536)(sigma, steps, delta)
            assert 0.0 < low <= high < 1.01 * low


def _curve(law, s, points):
    x = np.asarray(law.lattice.anchor + law.lattice.spacing * law.positions)
    gain = np.maximum(s * x[:, None] - points[None, :], 0.0)
    return np.asarray(law.mass) @ gain + (float(law.tau) if s > 0 else 0.0)


@pytest.mark.parametrize("s", [1, -1])
def test_one_step_laws_lie_above_and_below(s):
    """The curves E (s X - c)_+ themselves, coarse lattices and isolated atoms included."""
    cells = ladder(64, 2**28)

    @jit
    def both(sigma, spacing):
        term = Term(laws.gaussian(1.0 / sigma))
        common = spacing, jnp.float64(1.0), jnp.float64(50.0)
        above = _average_grid.upper(term, *common, cells, s)
        return above, _average_grid.lower(term, *common, jnp.float64(0.05), cells, s)

    for sigma, spacing in itertools.product((0.8, 2.0), (0.02, 0.6, 7.0)):
        above, below = both(sigma, spacing)
        points = s * np.linspace(0.05, 45.0, 400)
        a = s * np.log(np.abs(points))
        # C(a) = E (X - a)_+ and E (a - X)_+ = a H_{1/a}: the base is symmetric.
        exact = np.array([np.exp(laws.gaussian_log_delta(1.0 / sigma, e)) for e in a])
        exact *= 1.0 if s > 0 else -points
        slack = 1e-9 * np.abs(points) if s < 0 else 0.0  # mass beyond the lattice
        assert np.all(_curve(above, s, points) >= exact * (1 - 1e-12))
        assert np.all(_curve(below, s, points) <= exact * (1 + 1e-12) + slack)


@pytest.mark.slow
def test_gradients_are_those_of_epsilon():
    def upper(parameters):
        sigma, steps, log_delta = parameters
        term = Term(laws.gaussian(1.0 / sigma))
        return allocation_epsilon_bounds(term, steps, log_delta=log_delta, sides=(1,))[0]

    at = jnp.array([1.0, 1000.0, jnp.log(1e-6)])
    slopes = np.asarray(jit(jax.jacfwd(upper))(at))
    middle = epsilons("remove", 65536)
    for i, step in enumerate((0.02, 30.0, 0.3)):
        move = np.zeros(3)
        move[i] = step
        ends = [
            middle(p[0], p[1], np.exp(p[2])) for p in (np.asarray(at) - move, np.asarray(at) + move)
        ]
        difference = (np.mean(ends[1]) - np.mean(ends[0])) / (2 * step)
        np.testing.assert_allclose(slopes[i], difference, rtol=2e-2)


def _exact_response(e0, steps, count, epsilon, direction):
    """delta of `count` independent allocations of randomised response, by enumeration."""
    k = np.arange(steps + 1)
    p = 1.0 / (1.0 + np.exp(e0))
    choose = np.array([float(np.prod((steps - np.arange(i)) / (1.0 + np.arange(i)))) for i in k])
    mass = choose * p**k * (1 - p) ** (steps - k)
    ratio = (k * np.exp(e0) + (steps - k) * np.exp(-e0)) / steps
    masses, ratios = np.ones(1), np.ones(1)
    for _ in range(count):
        masses, ratios = np.outer(masses, mass).ravel(), np.outer(ratios, ratio).ravel()
    if direction == "remove":
        return masses @ np.maximum(ratios - np.exp(epsilon), 0.0)
    return masses @ np.maximum(1.0 - np.exp(epsilon) * ratios, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_composed_averages_bracket_an_enumeration(direction):
    """Breaks if the averaged law, as the engine reads it, is not above or below."""

    @jit
    def bounds(e0, steps, epsilon, count):
        term = laws.randomized_response(e0, 1.0)
        return allocation_log_delta_bounds(
            term, steps, epsilon, count=count, direction=direction, size=4096
        )

    for e0, steps, count, epsilon in ((0.5, 20, 3, 0.3), (1.0, 40, 4, 0.5), (0.3, 6, 2, 0.2)):
        exact = np.log(_exact_response(e0, steps, count, epsilon, direction))
        low, high = bounds(e0, float(steps), epsilon, float(count))
        assert low <= exact + 1e-11
        assert high >= exact - 1e-11
        assert high - exact < 0.5
