"""A seeded slice of the attack (benchmarks/attack), and that it sees what is wrong.

It would break if a bound fell on the wrong side of an exact law, or if the attack went blind.
"""

import dataclasses
import math

import jax
import numpy as np
import pytest
from mpmath import mp, mpf

import jaxdp
from benchmarks.attack import checks, curves, grammar, judge, laws, many, run

WRONG = ("violation", "error", "nan", "trivial")
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
    with jax.enable_x64(True), mp.workdps(laws.DIGITS):
        yield


def _node(name):
    return next(n for n in grammar.structures() if n.name == name)


def _wrong(name, query, rows):
    """What the attack says of one query of a structure."""
    node, tally, rng = _node(name), run.Tally(name), np.random.default_rng(20261122)
    run.ask_all(node, [query], node.draw(rng, rows), rng, rows, tally)
    assert tally.settings == rows
    return {key: value for key, value in tally.found.items() if key[1] in WRONG}


@pytest.mark.parametrize("name", SLICE)
def test_a_slice_of_the_attack_finds_nothing_wrong(name):
    """A bound on the wrong side of the exact law would be listed."""
    direction, rows = SLICE[name]
    query = judge.directed("delta_bounds", judge.delta_bounds, judge.epsilons, (direction,))[0]
    wrong = _wrong(name, query, rows)
    assert not wrong, wrong


def test_a_slice_of_the_attack_on_renyi_divergences_finds_nothing_wrong():
    """Pairs that are nearly equal: their divergence was below the truth by some 1e-16."""
    node, rng = _node("FinitePair"), np.random.default_rng(20261601)
    (query,) = [q for q in judge.queries(node, rng) if q.name.startswith("renyi")]
    wrong = _wrong("FinitePair", query, 454)
    assert not wrong, wrong


@pytest.mark.parametrize("name", ["DiscreteLaplace", "PoissonSampled(RandomizedResponse)"])
def test_a_slice_of_the_attack_on_tradeoffs_finds_nothing_wrong(name):
    """Rates down to 1e-300 and losses up to 700: some answers were far too small."""
    wrong = _wrong(name, judge.TRADEOFF, 400)
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


STEEP = {
    "DiscreteLaplace": lambda: jaxdp.DiscreteLaplace(32.5, 4),
    "PoissonSampled(RandomizedResponse)": lambda: jaxdp.PoissonSampled(
        jaxdp.RandomizedResponse(600.0), 0.5
    ),
    "PoissonSampled(DiscreteLaplace)": lambda: jaxdp.PoissonSampled(
        jaxdp.DiscreteLaplace(32.0, 4), 0.3
    ),
}


@pytest.mark.parametrize("name", STEEP)
def test_a_tradeoff_at_a_deep_rate_is_not_lost_where_the_curve_is_flat(name):
    """At a rate of 1e-300 no test of these says anything: all type II errors are 1, to 1e-20.

    The search took a slope of the curve below its rounding for none: 3e-15, 0.5 and 0.7.
    """
    assert 1 - 1e-14 < float(jaxdp.tradeoff(STEEP[name](), 1e-300)) <= 1


def test_a_tradeoff_whose_kink_lies_before_a_rare_outcome():
    """Breaks when digits are taken for lost that a line of a small slope e^-l still has.

    Below the first kink the curve is flat for 54 e-folds; 8e-26 was read at the second for .0127.
    """
    p = [0.02670834287811248, 1.3e-43, 0.0, 4.4e-27, 0.9732916571218875]
    q = [0.729492216535568, 0.0, 0.1345986235202872, 0.019675974836419922, 0.11623318510772501]
    truth = p[0] * (1.0 - (0.5 - q[4]) / q[0])
    got = float(jaxdp.tradeoff(jaxdp.FinitePair(p, q), 0.5))
    assert truth * (1.0 - 1e-9) < got <= truth * (1.0 + 1e-14)


@pytest.mark.parametrize(
    ("p", "q", "alpha"),
    [
        ([0.0, 1.0], [7.203799001096561e-16, 0.9999999999999993], 284.8),
        ([0.0, 1.0], [3e-17, 1.0], 2.0),
        ([0.0, 1.0], [4e-29, 1.0], 1.5),
        ([0.0, 2.5e-56, 1.0], [1.9e-22, 1.0365603414906461e-09, 0.9999999989634397], 1.0026),
    ],
)
def test_pairs_that_are_nearly_equal_keep_their_divergence(p, q, alpha):
    """Where P is all but one outcome, its orders are -log of that share of Q, whose sum is not 1.

    The sum rounded to 1 gave 6.7e-16 for 7.2e-16, which is below the truth, and 0 for the others.
    """
    law = laws.Pair(*([mpf(x) / mp.fsum(map(mpf, v)) for x in v] for v in (p, q)))
    exact = law.renyi(mpf(alpha), False)
    value = mpf(float(jaxdp.renyi(jaxdp.FinitePair(p, q), alpha, direction="remove")))
    assert abs(value / exact - 1) < mpf("1e-12")


def test_the_slope_of_a_discrete_laplace_curve_near_1_has_its_digits():
    """d log delta / d epsilon is -e^{epsilon - a D} there; 1 - e^x lost it where e^x is 1e-19."""
    slope = float(jax.grad(lambda e: jaxdp.log_delta(jaxdp.DiscreteLaplace(32.5, 4), e))(86.0))
    assert slope == pytest.approx(-math.exp(86.0 - 130.0), rel=1e-9)


@pytest.mark.parametrize(("q", "target"), [(1e-15, 9e-16), (0.3, 0.27), (0.5, 0.45)])
def test_a_target_a_rounding_below_the_failure_of_a_sampled_step_is_not_met(q, target):
    """The target is q times the 0.9 that fails, rounded down or exact; met if exact only.

    The logarithm of that product was off by its own last digits, and the bound 1e-15 for inf.
    """
    m = jaxdp.PoissonSampled(jaxdp.ApproximateDP(6.5e-6, 0.9), q)
    met = mpf(q) * mpf(0.9) <= mpf(target)
    low, high = jaxdp.epsilon_bounds(m, target, direction="remove")
    assert float(low) <= float(high)
    assert np.isfinite(high) == met


def test_a_target_a_rounding_below_the_failure_of_a_sampled_pair_is_not_met():
    """The same with a mass that is normalised: the upper bound was 0, the truth is infinite."""
    p, q = [0.43126899719357165, 0.5687310028064284], [0.0, 1.0]
    rate, target = 1.8952720522468862e-08, 8.17372077381517e-09
    assert mpf(rate) * mpf(p[0]) / (mpf(p[0]) + mpf(p[1])) > mpf(target)
    m = jaxdp.PoissonSampled(jaxdp.FinitePair(p, q), rate)
    assert jaxdp.epsilon_bounds(m, target, direction="remove")[1] == np.inf


def test_a_slice_of_the_attack_on_many_runs_finds_nothing_wrong():
    """Breaks when delta's bound above is below what a counting test shows, or trivial."""
    tally = run.Tally("many")
    many.attack(many.steps()[0], np.random.default_rng(20261130), 16, tally)
    assert tally.settings == 64
    assert not {key: value for key, value in tally.found.items() if key[1] in WRONG}


@pytest.mark.parametrize("step", many.steps(), ids=lambda step: step.name)
def test_counting_tests_show_less_than_the_truth(step):
    """Events are the step's own: no test shows more than the library's bound at a usual size."""
    rng = np.random.default_rng(5)
    row = [s(rng, 64) for s in step.samplers]
    one = np.ones(64)
    for direction in ("remove", "add"):
        events = step.events(*row)
        named = events if direction == "remove" else [(q, p) for p, q in events]
        shown = many.least_delta(named, one, np.zeros(64))
        for p, q in named:
            assert ((p >= 0.0) & (q >= 0.0) & (p <= 1.0) & (q <= 1.0)).all()
            shown = np.maximum(shown, p - q)
        most = np.asarray(jaxdp.delta(step.build(*row), 0.0, direction=direction))
        assert (shown <= most + 1e-12).all()
