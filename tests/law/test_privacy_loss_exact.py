"""Readings of a law at every epsilon, delta and rate against exact enumeration, on either side.

The rows: sampled randomised response; pairs that fail, in one direction and in both, alone and
composed; a law of one point; disjoint supports; a pair that reveals nothing.
"""

import functools

import jax
import mpmath as mp
import numpy as np
import pytest

import jaxdp
from tests.law import finite_truth

UP = float(1 / (1 + np.exp(-0.5)))
ROWS = [  # p, q, sampling probability, steps, the delta that the law is about
    ([UP, 1 - UP, 0.0], [1 - UP, UP, 0.0], 0.3, 6, 1e-5),
    ([0.5, 0.25, 0.25], [0.0, 0.5, 0.5], 1.0, 6, 0.3),
    ([0.625, 0.25, 0.125], [0.0, 0.125, 0.875], 0.5, 3, 0.3),
    ([0.0, 0.5, 0.5], [0.375, 0.25, 0.375], 1.0, 2, 1e-2),
    ([0.375, 0.625, 0.0], [0.0, 0.5, 0.5], 1.0, 1, 1e-3),
    ([0.25, 0.75, 0.0], [0.0, 1.0, 0.0], 1.0, 1, 0.3),
    ([1.0, 0.0, 0.0], [0.0, 0.5, 0.5], 1.0, 2, 0.3),
    ([0.5, 0.25, 0.25], [0.5, 0.25, 0.25], 1.0, 3, 1e-6),
    ([1 - 2.0**-20, 2.0**-20, 0.0], [2.0**-30, 0.5, 0.5 - 2.0**-30], 1.0, 4, 1e-9),
]
EPSILONS = np.array([-800.0, -40.0, -2.0, -0.3, -1e-9, 0.0, 0.3, 0.7, 1.0, 1.5, 4.0, 40.0, 800.0])
DELTAS = np.array([1e-300, 1e-30, 1e-12, 1e-5, 1e-3, 0.01, 0.05, 0.3, 0.5, 0.9])
RATES = np.array([0.0, 1e-12, 1e-3, 0.05, 0.3, 0.7, 0.99, 1.0])
ROUNDED = mp.mpf(10) ** -50  # the truth's own digits


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True), mp.workdps(finite_truth.DIGITS):
        yield


@functools.cache
def truth():
    rows = []
    for p, q, rate, steps, _ in ROWS:
        one = finite_truth.sampled(finite_truth.pair(p, q), rate)
        rows.append(finite_truth.composed(one, steps))
    return rows


@functools.cache
def law(side):
    p, q, rate, steps, delta = (np.array(x, np.float64) for x in zip(*ROWS, strict=True))
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.FinitePair(p, q), rate), steps)
    return jaxdp.privacy_loss(m, delta=delta, side=side, grid_size=1024)


def holds(found, exact, above):
    """Every entry is on its side of the truth, and a number."""
    for i, row in enumerate(exact):
        for j, value in enumerate(row):
            got = mp.mpf(float(found[i, j]))
            assert not mp.isnan(got), (i, j)
            assert (got >= value - ROUNDED) if above else (got <= value + ROUNDED), (i, j, got)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("side", ["upper", "lower"])
def test_certified(side, direction):
    """Breaks when a law is read outside its window as if nothing were there, or loses a failure."""
    add = direction == "add"
    pairs = (
        ("hockey_stick", finite_truth.hockey_stick, EPSILONS, side == "upper"),
        ("epsilon", finite_truth.epsilon, DELTAS, side == "upper"),
        ("tradeoff", finite_truth.tradeoff, RATES, side == "lower"),
    )
    for name, exact, arguments, above in pairs:
        found = np.asarray(getattr(law(side), name)(arguments[:, None], direction=direction))
        holds(found, [[exact(row, x, add) for row in truth()] for x in arguments], above)


def test_tight():
    """Breaks when readings far from the chosen delta are trivial where the ends are known."""
    above, below = law("upper"), law("lower")
    gap = above.hockey_stick(EPSILONS[:, None]) - below.hockey_stick(EPSILONS[:, None])
    # Whole windows, ends and failures are exact. The first row's window starts at 0.46, which
    # leaves a chord from there to the smallest loss, and the value there.
    gap = np.asarray(gap)
    assert np.all(gap[:, 1:] < 2e-3)
    assert np.all(gap[[0, 1, 2, 7, 8, 9, 10, 11, 12], 0] < 1e-4)
    assert np.all(gap[:, 0] < 0.3)
    assert np.all(np.asarray(above.hockey_stick(800.0))[[0, 3, 7]] == 0.0)
    failing = np.asarray(below.epsilon(0.01))[[1, 2, 4, 5, 6]]
    assert np.all(failing == np.inf)
    for_one = np.asarray(above.epsilon(np.array([1e-300, 1e-30])[:, None]))[:, [0, 3, 7]]
    assert np.all(np.isfinite(for_one))
    rates = np.asarray(below.tradeoff(RATES[:, None]) - above.tradeoff(RATES[:, None]))
    assert np.all(rates[:, 1:] < 2e-3)
