"""One Poisson sample on which a composition runs, against the binomial law of two outcomes."""

import jax
import numpy as np
import pytest
from mpmath import mp, mpf

import jaxdp

STEPS = 60
# The first outcome's masses with and without the record, the sampling probability, delta.
SETTINGS = (
    (1e-6, 0.9998, 0.03, 1e-5),  # nearly disjoint: the table had no bound below
    (1.0438e-6, 0.9998355, 0.0281169, 1e-5),
    (3.791671950475399e-10, 1.8332344855572777e-10, 4.730754e-4, 3.52778e-12),  # nearly equal
    (1.0 - 2.2e-8, 6e-9, 0.0379, 1e-7),
    (0.3, 0.25, 0.2, 1e-6),
    (0.6, 0.4, 1e-4, 1e-9),
    (0.55, 0.45, 1.0, 1e-5),
    (0.02, 0.05, 0.5, 0.01),
)
P, Q, RATE, DELTA = (np.array(column) for column in zip(*SETTINGS, strict=True))


@pytest.fixture(autouse=True)
def doubles():
    with jax.enable_x64(True), mp.workdps(60):
        yield


def run(p, q, rate):
    pair = jaxdp.FinitePair(np.stack([p, 1.0 - p], -1), np.stack([q, 1.0 - q], -1))
    return jaxdp.PoissonSampled(jaxdp.Repeated(pair, STEPS), rate)


def exact_delta(p, q, rate, epsilon, direction):
    """By the number of first outcomes, as the pair's floats say."""
    masses = []
    for first, second in ((p, 1.0 - p), (q, 1.0 - q)):
        total = mpf(first) + mpf(second)
        a, b = mpf(first) / total, mpf(second) / total
        counts = range(STEPS + 1)
        masses.append([mp.binomial(STEPS, k) * a**k * b ** (STEPS - k) for k in counts])
    with_record, without = masses
    rate = mpf(rate)
    sampled = [(1 - rate) * y + rate * x for x, y in zip(with_record, without, strict=True)]
    pair = (sampled, without) if direction == "remove" else (without, sampled)
    return mp.fsum(max(x - mp.exp(mpf(epsilon)) * y, 0) for x, y in zip(*pair, strict=True))


def exact_epsilon(p, q, rate, delta, direction):
    low, high = mpf(0), mpf(2000)
    for _ in range(120):
        middle = (low + high) / 2
        met = exact_delta(p, q, rate, middle, direction) <= delta
        low, high = (low, middle) if met else (middle, high)
    return high


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_bounds_hold_and_are_narrow(direction):
    """Breaks when the composition's curve is read at another epsilon or delta than its own."""
    m = run(P, Q, RATE)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, DELTA, direction=direction))
    for i, (p, q, rate, delta) in enumerate(SETTINGS):
        truth = exact_epsilon(p, q, rate, delta, direction)
        assert float(low[i]) <= truth * (1 + mpf("1e-12")), (i, low[i], truth)
        assert float(high[i]) >= truth * (1 - mpf("1e-12")), (i, high[i], truth)
        assert high[i] - low[i] <= max(1e-3 * high[i], 1e-6), (i, low[i], high[i])
    middle = 0.6 * high
    below, above = (np.asarray(x) for x in jaxdp.delta_bounds(m, middle, direction=direction))
    for i, (p, q, rate, _) in enumerate(SETTINGS):
        truth = exact_delta(p, q, rate, float(middle[i]), direction)
        assert float(below[i]) <= truth * (1 + mpf("1e-12")) <= float(above[i]) * (1 + 2e-12)
        assert above[i] - below[i] <= 0.02 * above[i] + 1e-14, (i, below[i], above[i])


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_derivatives_are_those_of_the_root(direction):
    """Breaks when the point at which the composition is read is taken for a constant."""
    p, q, rate, delta = SETTINGS[4]

    def epsilon(rate, delta):
        return jaxdp.epsilon(run(p, q, rate), delta, direction=direction)

    found = jax.grad(epsilon, (0, 1))(rate, delta)
    h = mpf("1e-9")
    for k, got in enumerate(found):
        ends = []
        for sign in (1, -1):
            moved = [mpf(rate), mpf(delta)]
            moved[k] *= 1 + sign * h
            ends.append(exact_epsilon(p, q, *moved, direction))
        exact = (ends[0] - ends[1]) / (2 * h * (rate, delta)[k])
        assert float(got) == pytest.approx(float(exact), rel=2e-3)


def test_in_a_program_and_in_a_batch():
    """Breaks when the search needs known numbers, or a row's answer another row's."""
    p, q, rate, delta = SETTINGS[4]
    one = float(jaxdp.epsilon(run(p, q, rate), delta, direction="add"))
    traced = jax.jit(lambda rate: jaxdp.epsilon(run(p, q, rate), delta, direction="add"))
    assert float(traced(rate)) == pytest.approx(one, rel=1e-5)
    assert np.isnan(float(traced(-1.0)))
    batch = np.asarray(jaxdp.epsilon(run(P, Q, RATE), delta, direction="add"))
    assert batch[4] == pytest.approx(one, rel=1e-5)
    whole = float(jaxdp.epsilon(run(p, q, 1.0), delta))
    assert whole == pytest.approx(float(jaxdp.epsilon(run(p, q, 1.0).mechanism, delta)), rel=1e-3)
