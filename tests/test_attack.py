"""A seeded slice of the attack (benchmarks/attack), and that it sees what is wrong.

It would break if a bound fell on the wrong side of an exact law, or if the attack went blind.
"""

import dataclasses

import jax
import numpy as np
import pytest
from mpmath import mp, mpf

from benchmarks.attack import checks, curves, grammar, judge, laws, run

WRONG = ("violation", "error", "nan")
SLICE = {
    "DiscreteLaplace": ("both", 200),
    "Laplace": ("both", 200),
    "FinitePair": ("add", 200),
    "PoissonSampled(ApproximateDP)": ("both", 100),
    "PoissonSampled(Gaussian)": ("remove", 100),
    "Repeated(PoissonSampled(RandomizedResponse))": ("remove", 16),
}


@pytest.fixture(autouse=True)
def doubles():
    """The attack compares float64 answers."""
    with jax.enable_x64(True):
        yield


def _node(name):
    return next(n for n in grammar.structures() if n.name == name)


@pytest.mark.parametrize("name", SLICE)
def test_a_slice_of_the_attack_finds_nothing_wrong(name):
    """A bound on the wrong side of the exact law would be listed."""
    node, (direction, rows) = _node(name), SLICE[name]
    query = judge.directed("delta_bounds", judge.delta_bounds, judge.epsilons, (direction,))
    tally, rng = run.Tally(name), np.random.default_rng(20261122)
    run.ask_all(node, query, node.draw(rng, rows), rng, rows, tally)
    wrong = {key: value for key, value in tally.found.items() if key[1] in WRONG}
    assert tally.settings == rows
    assert not wrong, wrong


@pytest.mark.parametrize("check", checks.checks(), ids=lambda check: check.name)
def test_conversions_and_mixing_agree_with_their_formulas(check):
    """A conversion on the wrong side of its formula in 150 digits would be listed."""
    tally = run.Tally(check.name)
    checks.attack(check, np.random.default_rng(7), 16, tally)
    assert not tally.found, tally.found


def _planted(change):
    """A query of randomised response whose answers are spoilt, and its tally."""
    node = _node("RandomizedResponse")
    query = judge.directed("delta_bounds", judge.delta_bounds, judge.epsilons, ("both",))[0]
    spoilt = dataclasses.replace(query, ask=lambda m, x: change(*query.ask(m, x)))
    tally = run.Tally(node.name)
    rng = np.random.default_rng(3)
    run.ask_all(node, [spoilt], node.draw(rng, 64), rng, 64, tally)
    return tally


@pytest.mark.parametrize(
    ("verdict", "change"),
    [
        ("violation", lambda low, high: (low, high * (1 - 1e-9))),
        ("violation", lambda low, high: (low * (1 + 1e-9), high)),
        ("nan", lambda low, high: (low, high * np.nan)),
        ("trivial", lambda low, high: (low, high * 0 + 1.0)),
        ("wide", lambda low, high: (low, np.minimum(1.2 * np.asarray(high), 0.999))),
    ],
)
def test_the_attack_sees_a_planted_fault(verdict, change):
    """An attack that is blind to a fault of each kind would pass everything."""
    tally = _planted(change)
    assert tally.counts[verdict] > 0
    (line, _) = tally.found["delta_bounds both", verdict]
    assert line.startswith("jaxdp.delta_bounds(jaxdp.RandomizedResponse(")


def test_references_agree_with_each_other():
    """Enumeration, mixture and quadrature of the same law: a slip in one would show."""
    a = mp.exp(mpf("0.3"))
    response = grammar.RESPONSE.law(mpf("0.7"))
    twice = laws.product([response, response])
    for reverse in (False, True):
        assert abs(laws.repeated(response, 2).h(a, reverse) - twice.h(a, reverse)) < 1e-90
        mixed = laws.Composed(response, response).h(a, reverse)
        assert abs(mixed - twice.h(a, reverse)) < 1e-90
        curve = laws.Sampled(response, mpf("0.3")).h(a, reverse)
        assert abs(curve - laws.sampled(response, mpf("0.3")).h(a, reverse)) < 1e-90
        two = curves.Gaussian(mpf(1)).mixed(curves.Gaussian(mpf(1)), a, reverse)
        assert abs(two - curves.Gaussian(mp.sqrt(2)).h(a, reverse)) < 1e-24
        one = laws.allocated(response, 1).h(a, reverse)
        assert abs(one - response.h(a, reverse)) < 1e-90
    assert (
        abs(curves.LaplaceSum(1, mpf(2)).h(a, False) - curves.Laplace(mpf(2)).h(a, False)) < 1e-50
    )
