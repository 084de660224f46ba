"""Random allocation of steps that can fail, and of any step at epsilon 0 and below: exact laws."""

import itertools
import math

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp._allocation import _inverse
from tests.programs import jit

STEPS = (1, 2, 3, 6)
EPSILONS = np.array([-50.0, -2.0, -0.3, 0.0, 1e-9, 0.2, 0.499999, 0.5, 1.0, 3.0, 5.0, 8.5, 650.0])


def _response(e0, failure):
    """The outcomes of ApproximateDP: (p, q)."""
    s = 1.0 / (1.0 + math.exp(-e0))
    kept = 1.0 - failure
    return [failure, 0.0, kept * s, kept * (1.0 - s)], [0.0, failure, kept * (1.0 - s), kept * s]


def _sampled(pair, rate):
    p, q = (np.array(x) for x in pair)
    return (1.0 - rate) * q + rate * p, q


PAIRS = [
    _response(0.5, 0.1),
    _response(2.0, 0.3),
    _response(1.0, 0.0),
    _response(3.0, 1e-100),
    _response(8.0, 1e-3),
    _sampled(_response(0.5, 0.1), 0.3),
    ([0.5, 0.25, 0.25, 0.0], [0.0, 0.5, 0.25, 0.25]),  # a geometric law, moved by one
    ([0.05, 0.95, 0.0, 0.0], [0.0, 0.9, 0.1, 0.0]),
]


def _law(pair, t):
    """Q-masses and ratios of the average, and P{X = inf}."""
    p, q = (np.array(x) / np.sum(x) for x in pair)
    some = q > 0.0
    x, w = p[some] / q[some], q[some]
    masses, ratios = [], []
    for counts in itertools.product(range(t + 1), repeat=len(x)):
        if sum(counts) == t:
            ways = math.factorial(t) / math.prod(math.factorial(k) for k in counts)
            masses.append(ways * math.prod(v**k for k, v in zip(counts, w, strict=True)))
            ratios.append(sum(k * v for k, v in zip(counts, x, strict=True)) / t)
    return np.array(masses), np.array(ratios), float(np.sum(p[~some]))


def _composed(law, times):
    masses, ratios, tau = law
    for _ in range(times - 1):
        masses, ratios = np.outer(masses, law[0]).ravel(), np.outer(ratios, law[1]).ravel()
    return masses, ratios, -math.expm1(times * math.log1p(-tau))


def _delta(law, epsilon, direction):
    masses, ratios, tau = law
    g = math.exp(epsilon)
    if direction == "add":
        return float(np.sum(masses * np.maximum(1.0 - g * ratios, 0.0)))
    if epsilon < 0.0:
        return -math.expm1(epsilon) + g * float(np.sum(masses * np.maximum(1.0 - ratios / g, 0.0)))
    return float(np.sum(masses * np.maximum(ratios - g, 0.0))) + tau


def _rows(epochs):
    return list(itertools.product(PAIRS, STEPS, epochs))


def _check(m, rows, direction, width, epsilons=EPSILONS):
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(m, epsilons, direction=direction))
    exact = np.array(
        [[_delta(_composed(_law(p, t), n), e, direction) for e in epsilons] for p, t, n in rows]
    )
    assert (low <= exact * (1.0 + 1e-9) + 1e-300).all()
    assert (high >= exact * (1.0 - 1e-9) - 1e-300).all()
    # (atoms between the nodes of the lattice cost more)
    assert np.mean(high - low <= width * high + 1e-13) > 0.94


def _allocation(rows, epochs):
    p, q = (np.array([pair[i] for pair, *_ in rows])[:, None, :] for i in (0, 1))
    t = np.array([[float(t)] for _, t, _ in rows])
    return jaxdp.RandomAllocation(jaxdp.FinitePair(p, q), t, 1, epochs)


@pytest.mark.parametrize("direction", [pytest.param("remove", marks=pytest.mark.slow), "add"])
def test_one_epoch_is_enumerated(direction):
    """Breaks when the mass of failure is that of one step, or where epsilon is 0 or less.

    (All t steps have to fail for the absent record to be revealed.)
    """
    rows = _rows((1,))
    _check(_allocation(rows, 1), rows, direction, 2e-2)


@pytest.mark.slow
def test_few_epochs_of_few_steps_are_bracketed_narrowly():
    """Breaks when a plan looks for an average rarer than that of steps which all fail.

    And when it takes rare large ratios for nothing, or the bound below loses its first node, which
    here holds most of the law: bounds then were the failure's alone, or nearly 1.
    """
    rows = [(PAIRS[0], 3, 2), (PAIRS[1], 6, 2), (PAIRS[4], 6, 2), (PAIRS[7], 3, 3)]
    epochs = np.array([[float(n)] for *_, n in rows])
    _check(_allocation(rows, epochs), rows, "add", 2e-2, EPSILONS[[1, 2, 3, 5, 7, 9, 11]])


@pytest.mark.slow
def test_epochs_are_enumerated():
    """Breaks when composed averages fail with another probability than 1 - (1 - f^t)^n."""
    rows = _rows((1, 2, 3))
    epochs = np.array([[float(n)] for *_, n in rows])
    _check(_allocation(rows, epochs), rows, "add", 2e-2)


def test_masses_of_failure():
    """Breaks when a rare failure underflows, or that of one step stands for that of all."""
    step = jaxdp.ApproximateDP(0.5, 1e-200)
    run = jaxdp.RandomAllocation(step, 3, num_epochs=7)
    log_f = math.log(1e-200)
    assert float(run._log_failure("add")) == pytest.approx(3.0 * log_f + math.log(7.0), rel=1e-14)
    assert float(run._log_failure("remove")) == pytest.approx(log_f + math.log(7.0), rel=1e-14)
    sure = jaxdp.RandomAllocation(jaxdp.ApproximateDP(0.5, 0.1), 2, num_epochs=2)
    assert float(sure._log_failure("add")) == pytest.approx(math.log(0.0199), rel=1e-13)
    twice = jaxdp.Schedule(jaxdp.ApproximateDP(0.5, np.array([0.1, 0.2])))
    assert float(twice._log_failure("add")) == pytest.approx(math.log(0.28), rel=1e-13)


def test_moments_where_some_steps_fail():
    """Breaks when E[A^-b; A > 0] of steps that can fail is bounded by that of one step."""
    rows = [(p, t) for p in (PAIRS[0], PAIRS[1], PAIRS[6], PAIRS[7]) for t in (1, 2, 3, 6)]
    orders = np.array([0.01, 0.5, 1.0, 4.0, 20.0])

    def bound(pair, t, b):
        m = jaxdp.RandomAllocation(jaxdp.FinitePair(*pair), t)
        return m._terms()[0].mechanism._rate(-b) * b * (b + 1.0)

    pairs = tuple(np.array([p[i] for p, _ in rows], np.float64) for i in (0, 1))
    each = jax.vmap(jax.vmap(bound, (None, None, 0)), (0, 0, None))
    got = np.asarray(jit(each)(pairs, np.array([float(t) for _, t in rows]), orders))
    for (pair, t), values in zip(rows, got, strict=True):
        masses, ratios, _ = _law(pair, t)
        some = ratios > 0.0
        for b, value in zip(orders, values, strict=True):
            exact = math.log(np.sum(masses[some] * ratios[some] ** -b))
            assert value >= exact - 1e-12, (pair, t, b)
            assert value <= exact + 0.2 + b * math.log(3.0), (pair, t, b)


def test_numbers_of_steps_that_do_not_fail():
    """Breaks when E[(t/K)^b; K >= 1] is below the binomial sum, or far above it."""
    program = jit(_inverse._log_successes)
    for f, t, b in itertools.product((1e-6, 0.1, 0.9), (1, 2, 7, 64, 1000), (0.1, 3.0, 30.0)):
        k = np.arange(1, t + 1)
        log_ways = [math.lgamma(t + 1) - math.lgamma(i + 1) - math.lgamma(t - i + 1) for i in k]
        log = np.array(log_ways) + k * math.log1p(-f) + (t - k) * math.log(f) + b * np.log(t / k)
        exact = float(np.logaddexp.reduce(log))
        got = float(program(math.log(f), float(t), b))
        assert exact - 1e-9 <= got <= exact + 0.3 + 0.05 * b, (f, t, b)
