"""Shuffled reports against direct sums over all counts, and against published code."""

import jax
import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import stats

import calibrate
import jaxdp
from jaxdp._allocation import _shuffle_curve
from tests.programs import jit

BLOCKS = 1024, 12.0  # of the number of clones


def _direct(n, e0, eps, p):
    """H of the pair by summing over every number of clones and every count."""
    a, total = np.exp(e0) / (1 + np.exp(e0)), 0.0
    for c in range(n):
        b = stats.binom.pmf(np.arange(-1, c + 2), c, 0.5)
        one, other = a * b[:-1] + (1 - a) * b[1:], (1 - a) * b[:-1] + a * b[1:]
        total += stats.binom.pmf(c, n - 1, p) * np.maximum(one - np.exp(eps) * other, 0).sum()
    return total


def test_small_numbers_of_records():
    """Breaks when the pair's curve, summed block by block, is not the sum over every count."""
    cases = [(1, 1.0, 0.5), (2, 1.0, 0.5), (30, 3.0, 1.0), (100, 1.0, 0.3), (100, 1.0, -0.3)]
    n, e0, eps = (np.array(x, float) for x in zip(*cases, strict=True))

    def upper(e, b, m):
        return _shuffle_curve.log_delta_of_clones(
            e, b, jax.numpy.exp(-b), -jax.numpy.expm1(-b), m, BLOCKS
        )

    got = np.exp(jit(jax.vmap(upper))(eps, e0, n))
    want = [_direct(m, b, e, np.exp(-b)) for m, b, e in cases]
    np.testing.assert_allclose(got, want, rtol=2e-11)
    assert (got >= want).all()


def test_published_numbers():
    """Breaks when the bound is not that of github.com/apple/ml-shuffling-amplification.

    Its `onestep`, summed over every number of clones: (n, eps0, eps) to delta.
    """
    n, e0, eps = np.array([(10_000, 1.0, 0.04), (10_000, 1.0, 0.05), (1000, 2.0, 0.3)]).T
    theirs = np.array([2.1036197233e-05, 2.1406567307e-06, 6.1099292408e-04])

    def upper(e, b, m):
        clone = jax.numpy.exp(-b)
        return _shuffle_curve.log_delta_of_clones(e, b, clone, 1.0 - clone, m, BLOCKS)

    high = np.exp(jit(jax.vmap(upper))(eps, e0, n))
    digits = 1e-10  # theirs are printed to
    assert (theirs * (1 - digits) <= high).all()
    np.testing.assert_allclose(high, theirs, rtol=0.03)


def test_mechanisms():
    """Breaks when randomised response is not below its clones, or more records do not help."""
    clones = _direct(60, 1.5, 0.4, 2 / (np.exp(1.5) + 1))
    reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(1.5), 60)
    low, high = jaxdp.delta_bounds(reports, 0.4)
    assert float(low) < clones <= float(high) <= clones * (1 + 1e-9)
    laplace = jaxdp.Shuffled(jaxdp.Laplace(1.0), np.array([1.0, 100.0, 1e4, 1e6]))
    deltas = np.asarray(jaxdp.delta(laplace, 0.5))
    assert (np.diff(deltas) < 0).all()
    assert deltas[0] <= float(jaxdp.delta(jaxdp.Laplace(1.0), 0.5)) * (1 + 1e-9)


def test_gaussian():
    """Breaks when the best (eps0, delta0) reading of the Gaussian exceeds the local curve."""
    sigma = np.array([1.0, 3.0, 5.0])
    epsilon = np.asarray(jaxdp.epsilon(jaxdp.Shuffled(jaxdp.Gaussian(sigma), 1e6), 1e-10))
    local = np.asarray(jaxdp.epsilon(jaxdp.Gaussian(sigma), 1e-10))
    assert (epsilon < local / 4).all()
    assert (np.diff(epsilon) < 0).all()
    # the sum over every number of clones and every count by scipy, the best eps0 by its minimiser
    np.testing.assert_allclose(epsilon, [1.0010386, 0.0366856, 0.0155294], rtol=1e-4)


def _exact_log(n, e0, eps, dps=500):
    """log H by summing over every number of clones and every count, for randomised response."""
    with mp.workdps(dps):
        b, e = mpf(e0), mpf(eps)
        keep, p, g = 1 / (1 + mp.exp(-b)), 2 / (mp.exp(b) + 1), mp.exp(e)
        total = mpf(0)
        for c in range(n):
            weight = mp.binomial(n - 1, c) * p**c * (1 - p) ** (n - 1 - c) / mpf(2) ** c
            for k in range(c + 2):
                low = mp.binomial(c, k - 1) if k > 0 else 0
                high = mp.binomial(c, k) if k <= c else 0
                one, other = keep * low + (1 - keep) * high, (1 - keep) * low + keep * high
                total += weight * max(one - g * other, 0)
        return float(mp.log(total))


def test_deep_tails():
    """Breaks when digits are lost between delta = 1 and 1e-2000, eps0 = 1e-12 and 800.

    The sums are of 500 digits. epsilon is drawn next to 0, next to eps0 and between, and below 0.
    """
    rng = np.random.default_rng(5)
    cases = [(n, 1.0, f) for n in (1, 2, 37) for f in (0.0, 0.5, 1 - 1e-12, -0.5)]
    cases += [(60, 800.0, 0.9), (60, 1e-12, 0.3), (60, 30.0, 1 - 1e-9), (40, 3.0, 1e-9)]
    for _ in range(20):
        e0, share = 10 ** rng.uniform(-2, 2), rng.choice([rng.random(), 1 - 1e-6 * rng.random()])
        cases.append((int(rng.integers(1, 70)), e0, share))
    n, e0, eps = (np.array(x, float) for x in np.array([(n, b, b * f) for n, b, f in cases]).T)
    reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(e0), n)
    want = np.array([_exact_log(int(m), b, e) for m, b, e in zip(n, e0, eps, strict=True)])
    with jax.enable_x64(True):
        high = np.asarray(jaxdp.log_delta(reports, eps))
    assert (want <= high).all()
    np.testing.assert_allclose(want, high, rtol=1e-11, atol=1e-11)


def _log_alike(n, e0, eps):
    """log H at |eps| of n reports of equal records against one that differs, a sum of mpmath."""
    with mp.workdps(750):
        b, e = mpf(e0), abs(mpf(eps))
        p = 1 / (mp.exp(b) + 1)
        left = n * mp.exp(-e - b) * (1 - mp.exp(e - b)) / (1 - mp.exp(-2 * b))
        zeros = int(mp.ceil(left)) - 1  # fewer reports than these differ
        first = mp.binomial(n, zeros) * p**zeros * (1 - p) ** (n - zeros)
        total, weight = mpf(0), mpf(1)
        for j in range(zeros, -1, -1):
            total += (left - j) * weight
            weight *= mpf(j) / (n - j + 1) * (1 - p) / p
            if weight * left < total * mpf(10) ** -20:
                break
        value = total * first * mp.exp(e) * 2 * mp.sinh(b) / n
        if eps < 0:
            value = 1 - mp.exp(-e) + mp.exp(-e) * value
        return float(mp.log(value))


def test_deep_tails_from_below():
    """Breaks when digits are lost below: of few and many records, delta to 1e-2000, any eps0."""
    cases = [(n, 1.0, f) for n in (1, 2, 37) for f in (0.0, 0.5, 1 - 1e-12, -0.5)]
    cases += [(60, 800.0, 0.9), (60, 1e-12, 0.3), (60, 30.0, 1 - 1e-9), (40, 3.0, -1e-9)]
    cases += [(10**4, 0.1, 0.9), (10**6, 1e-4, 0.06), (10**6, 10.0, 0.3), (10**6, 3.0, 1e-3)]
    n, e0, eps = (np.array(x, float) for x in np.array([(n, b, b * f) for n, b, f in cases]).T)
    want = np.array([_log_alike(int(m), b, e) for m, b, e in zip(n, e0, eps, strict=True)])
    with jax.enable_x64(True):
        low = np.asarray(jax.vmap(_shuffle_curve.log_delta_of_alike)(eps, e0, n))
    assert (low <= want).all()
    np.testing.assert_allclose(low, want, rtol=1e-12, atol=2e-11)


def _counts(others, own, one):
    """The law of the number of ones: so many other reports are of a one, `others` in all."""
    ones, number = others
    law = [mpf(1)]
    for keep in [one] * ones + [1 - one] * (number - ones) + [own]:
        law = [keep * a + (1 - keep) * b for a, b in zip([0, *law], [*law, 0], strict=True)]
    return law


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20, 60])
def test_bounds_bracket_the_worst_inputs(n):
    """Breaks when a bound is on the wrong side of the largest delta over all inputs of the others.

    All of them are enumerated by their number of ones, in both directions, in 60 digits (k and
    n - 1 - k ones are the same pairs, with 0 and 1 exchanged).
    """
    bounds = np.array([0.1, 1.0, 3.0])[:, None]
    eps = bounds * np.array([0.0, 0.1, 0.3, 0.5, 0.7, 0.999, 1 - 1e-9, 1 - 1e-14, -0.2, -0.9])
    with jax.enable_x64(True):
        reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(bounds), n)
        low, high = (np.asarray(x) for x in jaxdp.delta_bounds(reports, eps))
    assert (low > 0.0).all()
    with mp.workdps(60):
        for i, bound in enumerate(bounds[:, 0]):
            one = 1 / (1 + mp.exp(-mpf(float(bound))))
            pairs = [
                [_counts((k, n - 1), x, one) for x in (1 - one, one)] for k in range((n + 1) // 2)
            ]
            for j, e in enumerate(eps[i]):
                g = mp.exp(mpf(float(e)))

                def curve(p, q, g=g):
                    return mp.fsum(max(a - g * b, 0) for a, b in zip(p, q, strict=True))

                both = [(curve(p, q), curve(q, p)) for p, q in pairs]
                assert low[i, j] <= max(map(max, both)) <= high[i, j]
                alike = both[0][0 if e >= 0.0 else 1]
                assert 0 <= alike - low[i, j] <= 1e-11 * alike


def test_far_tails_of_many_records():
    """Breaks when delta = 1e-300 of many records is lost, or the bracket is wide there."""
    reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(1.0), np.array([[1e4], [1e6], [1e9]]))
    delta = np.array([1e-5, 1e-130, 1e-300])
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(reports, delta))
    assert (low > 0.5 * high).all()
    assert (low < high).all()
    assert (np.diff(high, axis=0) < 0).all()  # in the number of records
    assert (np.diff(high, axis=1) > 0).all()


def test_derivatives():
    """Breaks when eps0, or where the sum is cut into blocks, moves without the derivative.

    (Blocks double in length at a deviation of 43, 85, ... clones, where the bound jumps a little.)
    """
    inputs = np.array([2.0, 3e4, 0.3])

    def gaussian(v):
        return jaxdp.log_delta(jaxdp.Shuffled(jaxdp.Gaussian(v[..., 0]), v[..., 1]), v[..., 2])

    def response(v):
        report = jaxdp.RandomizedResponse(v[..., 0])
        return jaxdp.log_delta(jaxdp.Shuffled(report, v[..., 1]), v[..., 2])

    steps = 1e-6 * np.concatenate([np.diag(inputs), -np.diag(inputs)])
    with jax.enable_x64(True):
        for f in (response, gaussian):
            up, down = np.split(np.asarray(f(inputs + steps)), 2)
            slope = jit(jax.jacrev(f))(jax.numpy.asarray(inputs))
            np.testing.assert_allclose(slope, (up - down) / (2e-6 * inputs), rtol=1e-4)


@pytest.mark.parametrize(
    "noise",
    [
        pytest.param(jaxdp.RandomizedResponse, marks=pytest.mark.slow),
        pytest.param(jaxdp.Laplace, marks=pytest.mark.slow),
        jaxdp.Gaussian,
    ],
)
def test_derivatives_of_renyi_divergences(noise):
    """Breaks when the points of the integral stay where they are while the largest loss moves."""
    points = np.array([[1.3123, 1.0159], [1.0, 4.3], [2.5, 10.0], [0.2, 1.5]])

    def f(v):
        return jaxdp.renyi(jaxdp.Shuffled(noise(v[..., 0]), 100), v[..., 1])

    with jax.enable_x64(True):
        step = 1e-5 * np.array([1.0, 0.0])
        differences = np.asarray(f(points + step) - f(points - step)) / 2e-5
        slopes = jit(jax.vmap(jax.grad(f)))(jax.numpy.asarray(points))[:, 0]
    np.testing.assert_allclose(slopes, differences, rtol=1e-6)


def _pair(n, e0):
    """P and Q of n shuffled randomised responses, over the clones and the counts."""
    p, a = 2.0 / (np.exp(e0) + 1.0), 1.0 / (1.0 + np.exp(-e0))
    sides = [], []
    for c in range(n):
        b = stats.binom.pmf(np.arange(-1, c + 2), c, 0.5)
        for side, keep in zip(sides, (a, 1.0 - a), strict=True):
            weight = stats.binom.pmf(c, n - 1, p)
            side.append(weight * (keep * b[:-1] + (1.0 - keep) * b[1:]))
    return (np.concatenate(side) for side in sides)


@pytest.mark.parametrize("rate", [None, pytest.param(0.3, marks=pytest.mark.slow)])
def test_renyi_divergences_bound_those_of_the_pair_closely(rate):
    """Breaks when the integral of the curve loses a part of it, in either direction, or sampled."""
    e0, n = np.array([0.1, 1.0, 3.0]), np.array([3, 20, 40])
    orders = np.array([1.5, 2.0, 2.5, 5.0, 100.0])
    with jax.enable_x64(True):
        m = jaxdp.Shuffled(jaxdp.RandomizedResponse(e0[:, None]), n[:, None])
        m = m if rate is None else jaxdp.PoissonSampled(m, rate)
        found = np.asarray(jaxdp.renyi(m, orders, direction="both" if rate is None else "add"))
    for e, size, got in zip(e0, n, found, strict=True):
        p, q = _pair(size, e)
        one, other = (p, q) if rate is None else (q, rate * p + (1.0 - rate) * q)
        exact = [np.log(np.sum(other * (one / other) ** s)) / (s - 1.0) for s in orders]
        assert np.all(got >= exact)
        assert np.all(got <= 1.03 * np.asarray(exact))


def _brackets(run, pairs, direction):
    """Breaks unless epsilon is above the least one of every pair, closely, and 0 from below."""
    delta = np.array([1e-2, 1e-6])[:, None]
    with jax.enable_x64(True):
        low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, delta, direction=direction))

    def curve(epsilon):
        found = np.empty_like(epsilon)
        for j, pair in enumerate(pairs):
            p, q = pair if direction == "remove" else pair[::-1]
            found[:, j] = np.maximum(p - np.exp(epsilon[:, j : j + 1]) * q, 0.0).sum(axis=1)
        return found

    assert (low == 0.0).all()  # reports do not show which of them are the clones of the pairs
    assert (curve(high) <= delta * (1.0 + 1e-9)).all()
    assert ((curve(high * (1.0 - 2e-3)) >= delta * (1.0 - 1e-9)) | (high < 1e-9)).all()


@pytest.mark.parametrize(
    "kind",
    ["sampled", *(pytest.param(x, marks=pytest.mark.slow) for x in ("composed", "allocated"))],
)
def test_reports_that_are_part_of_others(kind):
    """Breaks when the pair made of the curve is not above that of the clones, in any nesting."""
    n, epsilon = np.array([7, 3]), np.array([0.1, 3.0])
    reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(epsilon), n)
    pairs = [tuple(_pair(*x)) for x in zip(n, epsilon, strict=True)]

    def twice(pair):
        return tuple(np.outer(x, x).ravel() for x in pair)

    if kind == "composed":
        _brackets(jaxdp.Repeated(reports, 2), [twice(x) for x in pairs], "remove")
    elif kind == "sampled":
        run = jaxdp.Repeated(jaxdp.PoissonSampled(reports, 0.3), 2)
        _brackets(run, [twice((0.7 * q + 0.3 * p, q)) for p, q in pairs], "add")
    else:
        means = [
            (0.5 * (np.outer(p, q) + np.outer(q, p)).ravel(), np.outer(q, q).ravel())
            for p, q in pairs
        ]
        _brackets(jaxdp.RandomAllocation(reports, 2), means, "remove")


def test_compositions_of_reports_that_fail():
    """Breaks when an infinite loss is lost, or what is certain from below."""
    failing = jaxdp.Shuffled(jaxdp.ApproximateDP(0.5, 0.1), 100)
    low, high = jaxdp.delta_bounds(jaxdp.Repeated(failing, 3), 5.0)
    assert 0.271 - 1e-6 <= low <= 0.271 + 1e-9
    assert 0.271 - 1e-9 <= high <= 0.271 + 1e-6


@pytest.mark.slow
def test_compositions_of_other_reports():
    """Breaks when a composition loses what shuffling gains, or has a bound from below."""
    one = jaxdp.Shuffled(jaxdp.Laplace(2.0), 1000)
    low, high = jaxdp.epsilon_bounds(jaxdp.Repeated(one, 4), 1e-6)
    assert low == 0.0
    assert 0.02 < high < 0.7 * float(jaxdp.epsilon(jaxdp.Repeated(jaxdp.Laplace(2.0), 4), 1e-6))
    assert high <= float(jaxdp.epsilon(jaxdp.Repeated(one, 4), 1e-6, method=jaxdp.Renyi()))


_KNOWN = jaxdp.ConcentratedDP(0.1)


def _bell(y, sigma):
    return -0.5 * (y / sigma) ** 2


def test_noise_that_is_stated_is_amplified_like_its_own():
    """Breaks when eps0 is not looked for where losses are: no amplification of 10,000 reports."""
    n = np.array([1e4, 1e6])
    stated = jaxdp.Shuffled(jaxdp.AdditiveNoise(_bell, (1.3,)), n)
    with jax.enable_x64(True):
        found = jaxdp.epsilon(stated, 1e-6)
        np.testing.assert_allclose(
            found, jaxdp.epsilon(jaxdp.Shuffled(jaxdp.Gaussian(1.3), n), 1e-6), 1e-6
        )


@pytest.mark.parametrize(
    "m",
    [
        _KNOWN,
        jaxdp.Repeated(_KNOWN, 3),
        jaxdp.PoissonSampled(_KNOWN, 0.1),
        jaxdp.RandomAllocation(_KNOWN, 5),
        jaxdp.Schedule(jaxdp.ConcentratedDP(np.ones(3))),
    ],
    ids=lambda m: type(m).__name__,
)
def test_methods_that_need_a_law_are_refused_at_once(m):
    """Breaks when a query fails inside of its trace, or does not say what can answer."""
    numerical = jaxdp.Numerical()
    calls = (
        lambda: jaxdp.epsilon(m, 1e-5, method=numerical),
        lambda: jaxdp.delta_bounds(m, 1.0, method=numerical),
        lambda: jaxdp.log_delta(m, 1.0, method=numerical),
        lambda: jaxdp.tradeoff(m, 0.1, method=numerical),
        lambda: jaxdp.advantage(m, method=numerical),
        lambda: calibrate.solve(lambda s: m, epsilon=1.0, delta=1e-5, method=numerical),
    )
    for call in calls:
        with pytest.raises(ValueError, match=r"one-step law for Numerical\(\), use .*Renyi\(\)"):
            call()
    _no_privacy_loss(m)


def _no_privacy_loss(m):
    with pytest.raises(ValueError, match=r"^m: .* no (one-step )?law"):
        jaxdp.privacy_loss(m)
    for method in (jaxdp.Decomposition(), jaxdp.PosteriorSampling()):
        with pytest.raises(ValueError, match="method"):
            jaxdp.epsilon(m, 1e-5, method=method)


def test_reports_have_no_law_for_every_epsilon():
    """Breaks when their pairs, made for one delta, are taken for a law."""
    one = jaxdp.Shuffled(jaxdp.RandomizedResponse(1.0), 50)
    for m in (one, jaxdp.Repeated(one, 3)):
        _no_privacy_loss(m)


def test_a_sample_is_of_all_reports():
    """Breaks when reports are lost, or not randomised."""
    reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(1.0), 100)
    shuffled = reports.sample(jax.random.key(0), np.zeros(1000, int))
    assert 200 < int(np.sum(shuffled)) < 350


def test_a_composition_is_not_shuffled():
    """Breaks when it fails only inside of a query."""
    with pytest.raises(ValueError, match="one step"):
        jaxdp.Shuffled(jaxdp.Repeated(jaxdp.Laplace(1.0), 2), 10)
    with pytest.raises(ValueError, match="num_records"):
        jaxdp.Shuffled(jaxdp.Gaussian(1.0), 0)
