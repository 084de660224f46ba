"""Groups of k records from the law of one: against closed forms and tests by brute force."""

import math

import jax
import mpmath as mp
import numpy as np
import pytest
from scipy import stats

import jaxdp
from jaxdp import _group_privacy

EPSILONS = np.array([0.0, 0.1, 0.4, 0.7, 1.5, 3.0])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def _curves(m):
    return [np.asarray(jaxdp.hockey_stick(m, EPSILONS, direction=d)) for d in ("remove", "add")]


def _by_tests(*pairs):
    """The curve of the pairs' R after each other on a fine grid of levels: the conjugate.

    R is the concave function through the corners of the most powerful tests, by sorting ratios.
    """
    a = np.append(np.geomspace(1e-12, 1e-3, 20_001), np.linspace(1e-3, 1.0, 400_001))
    b = a
    for p, q in pairs:
        order = np.argsort(-p / q)
        levels, powers = (np.append(0.0, np.cumsum(x[order])) for x in (q, p))
        b = np.interp(b, levels, powers)
    return np.array([np.max(b - g * a) for g in np.exp(EPSILONS)])


def test_a_finite_pair_is_what_all_tests_say():
    """Breaks when a corner is lost, or the roles of inner and outer test are exchanged."""
    p, q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.25, 0.24, 0.31, 0.2])
    for k in (2, 5):
        user = jaxdp.group_privacy(jaxdp.FinitePair(p, q), k)
        for found, (one, two) in zip(_curves(user), ((p, q), (q, p)), strict=True):
            truth = _by_tests(*[(one, two)] * k)
            assert np.all(found >= truth * (1.0 - 1e-9) - 1e-12)
            np.testing.assert_allclose(found, truth, rtol=1e-3, atol=3e-6)
    exchanged = jaxdp.group_privacy(jaxdp.FinitePair(p, q), 2, exchanged=True)
    truth = _by_tests(*[(q, p)] * 2, *[(p, q)] * 2)
    for found in _curves(exchanged):
        assert np.all(found >= truth * (1.0 - 1e-9) - 1e-12)
        np.testing.assert_allclose(found, truth, rtol=1e-3, atol=3e-6)


def test_shifts_are_exact():
    """Families of shifts: k records are one shift, whatever route is taken."""
    exact = jaxdp.group_privacy(jaxdp.Repeated(jaxdp.Laplace(4.0), 2), 3)
    assert exact == jaxdp.Repeated(jaxdp.Laplace(4.0, 3.0), 2)
    sampled = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1)
    user = jaxdp.PoissonSampledGroup(1.0, 0.1, 2)
    assert jaxdp.group_privacy(jaxdp.Composed([sampled, jaxdp.Gaussian(2.0)]), 2) == jaxdp.Composed(
        [user, jaxdp.Gaussian(2.0, 2.0)]
    )
    assert jaxdp.group_privacy(sampled, 1) is sampled
    exchanged = jaxdp.group_privacy(
        jaxdp.Composed([sampled, jaxdp.Gaussian(2.0)]), 1, exchanged=True
    )
    assert exchanged == jaxdp.replace_one(jaxdp.Composed([sampled, jaxdp.Gaussian(2.0)]))
    law = jaxdp.FixedSizeSampled(jaxdp.Laplace(4.0), 1.0)  # by its law: an exchange, all records
    for bound, truth in zip(
        _curves(jaxdp.group_privacy(law, 3)), _curves(jaxdp.Laplace(4.0, 6.0)), strict=True
    ):
        assert np.all(bound >= truth)
        np.testing.assert_allclose(bound, truth, rtol=1e-4, atol=1e-9)


def test_closed_forms_to_nine_digits():
    """Of k = 3 records: a Gaussian at sigma / 3, Laplace noise at three times the sensitivity."""
    epsilons = np.array([0.1, 1.0, 2.0])
    with mp.workdps(50):

        def gaussian(mu):
            def curve(e):
                return mp.ncdf(mu / 2 - e / mu) - mp.exp(e) * mp.ncdf(-mu / 2 - e / mu)

            return [curve(mp.mpf(float(e))) for e in epsilons]

        cases = [
            (jaxdp.Gaussian(2.0), gaussian(mp.mpf(3) / 2)),
            (jaxdp.Repeated(jaxdp.Gaussian(8.0), 10), gaussian(3 * mp.sqrt(10) / 8)),
            (
                jaxdp.Laplace(1.25),
                [-mp.expm1((mp.mpf(float(e)) - 3 / mp.mpf(1.25)) / 2) for e in epsilons],
            ),
        ]
        for m, truths in cases:
            found = jaxdp.delta(jaxdp.group_privacy(m, 3), epsilons)
            for value, truth in zip(found, truths, strict=True):
                assert 0 <= mp.mpf(float(value)) / truth - 1 < 1e-9


def test_guarantees_of_two_numbers():
    """(epsilon, delta) for k records: k epsilon, delta (e^(k epsilon) - 1)/(e^epsilon - 1)."""
    user = jaxdp.group_privacy(jaxdp.ApproximateDP(0.3, 1e-7), 4)
    lost = 1e-7 * np.expm1(1.2) / np.expm1(0.3)
    assert lost <= float(jaxdp.delta(user, 1.2 * (1.0 + 1e-9))) <= lost * 1.001
    pure = jaxdp.group_privacy(jaxdp.RandomizedResponse(0.5), 3)
    assert 1.4999 < float(jaxdp.epsilon(pure, 1e-5)) <= 1.5


def test_a_sampled_run_is_above_the_exact_mixture():
    """Breaks when the bound for any mechanism is below what a user's records really tell."""
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1)
    truth = jaxdp.PoissonSampledGroup(1.0, 0.1, 2)
    polygon = _group_privacy._Polygon.of(jaxdp.intersection([step], delta=1e-7))
    table = _group_privacy._table(_group_privacy._power(polygon, 2), 1e-5, 1000)
    for bound, exact in zip(_curves(table), _curves(truth), strict=True):
        assert np.all(bound >= exact)
    assert float(jaxdp.epsilon(table, 1e-5)) < 1.15 * float(jaxdp.epsilon(truth, 1e-5))


def test_exchanged_records_of_a_user_against_the_double_mixture():
    """Two of a user's records exchanged for two others, which push the other way: what that tells.

    P and Q are mixtures of N(j, sigma^2) and N(-j, sigma^2), j binomial: that is attained.
    """
    user = jaxdp.group_privacy(jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(2.0), 0.1), 2)
    x, j = np.linspace(-30.0, 30.0, 200_001), np.arange(3)[:, None]
    weights = stats.binom.pmf(j, 2, 0.1)
    p, q = (np.sum(weights * stats.norm.pdf(x, s * j, 2.0), axis=0) for s in (1.0, -1.0))
    truth = [np.sum(np.maximum(p - g * q, 0.0)) * (x[1] - x[0]) for g in np.exp(EPSILONS)]
    for found in _curves(user):
        assert np.all(found >= truth)
    assert 1.0 < float(jaxdp.epsilon(user, 1e-5)) < 1.03  # the double mixture has 1.00


@pytest.mark.slow
def test_an_exchange_in_an_allocation():
    """Where no pair is proved: between that of a record added, and no allocation at all."""
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 10)
    user = jaxdp.group_privacy(run, 1, exchanged=True, num_points=128)
    found = float(jaxdp.epsilon(user, 1e-5))
    assert 1.2 < found < 1.3
    assert 2.0 * float(jaxdp.epsilon(run, 1e-5)) < found


def test_many_records():
    """A hundred of them, below the sum of pure epsilons; and it composes like any mechanism."""
    noise = jaxdp.FinitePair(*(stats.binom.pmf(np.arange(9), 8, p) for p in (0.51, 0.5)))
    few, many = (jaxdp.group_privacy(noise, k) for k in (2, 100))
    one = float(jaxdp.epsilon(noise, 0.0, direction="remove"))
    found = [float(jaxdp.epsilon(m, 1e-5, direction="remove")) for m in (few, many)]
    assert one < found[0] <= 2.0 * one * (1.0 + 1e-9)
    assert 90.0 * one < found[1] <= 100.0 * one * (1.0 + 1e-9)
    assert float(jaxdp.epsilon(jaxdp.Repeated(few, 2), 1e-5)) > found[0]


def test_bad_arguments():
    m = jaxdp.RandomizedResponse(0.5)
    for wrong in (0, 1025, 1.5, True):
        with pytest.raises((ValueError, TypeError), match="size"):
            jaxdp.group_privacy(m, wrong)
    with pytest.raises(TypeError, match="m must be"):
        jaxdp.group_privacy(1.0, 2)
    with pytest.raises(ValueError, match="batch"):
        jaxdp.group_privacy(jaxdp.RandomizedResponse(np.array([0.5, 1.0])), 2)
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda e: jaxdp.group_privacy(jaxdp.RandomizedResponse(e), 2).losses)(1.0)
    with pytest.raises(ValueError, match="delta"):
        jaxdp.group_privacy(m, 2, delta=0.0)
    with pytest.raises(ValueError, match="exchanged"):
        jaxdp.group_privacy(jaxdp.FixedSizeSampled(m, 0.1), 2, exchanged=True)
    traced = jax.jit(lambda s: jaxdp.epsilon(jaxdp.group_privacy(jaxdp.Gaussian(s), 2), 1e-5))
    assert float(traced(2.0)) == pytest.approx(4.377178, rel=1e-6)


@pytest.mark.parametrize(
    ("m", "remove", "add"),
    [
        (jaxdp.RandomizedResponse(1.0), 1.0, 1.0),
        (jaxdp.RandomizedResponse(12.0), 12.0, 12.0),
        (jaxdp.Repeated(jaxdp.Laplace(10.0), 3), 0.3, 0.3),
        (
            jaxdp.PoissonSampled(jaxdp.Laplace(2.0), 0.1),
            math.log1p(0.1 * math.expm1(0.5)),
            -math.log1p(0.1 * math.expm1(-0.5)),
        ),
    ],
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_groups_of_pure_steps_are_pure(m, remove, add, direction):
    """Never above k epsilon, at delta 0 too: rounding had left a mass at infinite loss."""
    user = jaxdp.group_privacy(m, 2, direction=direction)
    ends = {"remove": remove, "add": add}
    for read in ("remove", "add"):
        one = ends[read] if direction == "remove" else remove + add - ends[read]
        found = np.asarray(jaxdp.epsilon(user, np.array([0.0, 1e-100, 1e-13]), direction=read))
        assert (found <= 2.0 * one * (1.0 + 1e-11)).all()
        assert found[0] >= 2.0 * one * (1.0 - 1e-11)
    both = jaxdp.group_privacy(m, 1, exchanged=True, direction=direction)
    most = np.asarray(jaxdp.epsilon(both, 0.0))
    assert most == pytest.approx(remove + add, rel=1e-11)


@pytest.mark.parametrize("epsilon", [1e-300, 1e-18, 1e-15, 1e-9])
def test_groups_of_next_to_nothing(epsilon):
    """Breaks when losses that are all 0 but for rounding are points at one place."""
    user = jaxdp.group_privacy(jaxdp.RandomizedResponse(epsilon), 3)
    found = np.asarray(jaxdp.epsilon(user, np.array([0.0, 1e-6])))
    assert (found >= 0.0).all()
    assert (found <= 3.0 * epsilon + 1e-11).all()
