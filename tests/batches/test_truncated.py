"""Truncated Poisson batches: all samples of all small datasets, and dp_accounting's bound."""

import functools
import itertools

import jax
import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import stats

import jaxdp
from benchmarks.attack import laws, wider

EPSILONS = np.array([-1.0, -0.2, 0.0, 0.3, 1.0, 2.0])
Z = np.linspace(-14.0, 14.0, 2001)


def _law(records, q, size):
    """{shift: probability} of the sum of a truncated batch, over all samples and all cuts."""
    weights = {}
    for joined in itertools.product((0, 1), repeat=len(records)):
        sample = [r for r, j in zip(records, joined, strict=True) if j]
        chance = q ** sum(joined) * (1.0 - q) ** (len(joined) - sum(joined))
        kept = list(itertools.combinations(sample, min(size, len(sample))))
        for batch in kept:
            weights[sum(batch)] = weights.get(sum(batch), 0.0) + chance / len(kept)
    return weights


def _gap(law, other, epsilon, sigma):
    """(P - g Q)_+ of two Gaussian mixtures, exactly: its intervals end at roots, by bisection."""
    shifts = np.asarray([*law, *other])
    weights = np.asarray([*law.values(), *(-np.exp(epsilon) * w for w in other.values())])

    def difference(z):
        return stats.norm.pdf(z[:, None], shifts, sigma) @ weights

    signs = np.sign(difference(Z))
    low, high = Z[:-1][signs[:-1] != signs[1:]], Z[1:][signs[:-1] != signs[1:]]
    before = np.sign(difference(low))
    for _ in range(60):
        middle = 0.5 * (low + high)
        same = np.sign(difference(middle)) == before
        low, high = np.where(same, middle, low), np.where(same, high, middle)
    ends = np.concatenate([[-np.inf], low, [np.inf]])
    parts = np.diff(stats.norm.cdf(ends[:, None], shifts, sigma) @ weights)
    return np.sum(np.maximum(parts, 0.0))


KINDS = {
    "add-or-remove": (jaxdp.TruncatedPoissonSampled, [((1.0,), ())]),
    "replace-one": (
        jaxdp.TruncatedPoissonSampledReplaceOne,
        [((1.0,), (-1.0,)), ((1.0,), (0.0,))],
    ),
    "zero-out": (
        functools.partial(jaxdp.TruncatedPoissonSampled, zero_out=True),
        [((1.0,), (0.0,)), ((1.0,), ())],
    ),
}


@pytest.mark.parametrize(("q", "size", "n"), [(0.4, 1, 4), (0.7, 2, 4), (0.5, 3, 5), (0.6, 4, 4)])
@pytest.mark.parametrize("kind", KINDS)
def test_small_datasets(kind, q, size, n):
    """Breaks when the pair of cut batches, or their probability, is too small."""
    sigma = 1.3
    build, exchanges = KINDS[kind]
    m = build(jaxdp.Gaussian(sigma), q, size, n)
    for direction in ("remove", "add"):
        bound = np.asarray(jaxdp.delta(m, EPSILONS, direction=direction))
        largest = np.zeros(EPSILONS.size)
        for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), n - 1):
            for record, instead in exchanges:
                pair = _law((*record, *others), q, size), _law((*instead, *others), q, size)
                pair = pair if direction == "remove" else pair[::-1]
                found = [_gap(*pair, e, sigma) for e in EPSILONS]
                largest = np.maximum(largest, found)
        assert np.all(largest <= bound * (1.0 + 1e-9))
        assert np.all((largest > 0.5 * bound)[:3])
        if size >= n and kind != "zero-out":
            np.testing.assert_allclose(largest, bound, rtol=1e-9)


def test_from_below_by_records_without_effect():
    """Breaks when a replaced record costs less than where it alone matters."""
    sigma, q, size, n = 1.5, 0.3, 4, 10
    tau = stats.binom.sf(size - 1, n - 1, q)
    kept = q * (1.0 - tau) + size * stats.binom.sf(size, n, q) / n
    least = jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(sigma), kept)
    m = jaxdp.TruncatedPoissonSampledReplaceOne(jaxdp.Gaussian(sigma), q, size, n)
    with jax.enable_x64(True):
        assert float(m._kept_probability()) == pytest.approx(kept, rel=1e-8)
        assert float(m._kept_probability()) <= kept
    pair = {1.0: kept, 0.0: 1.0 - kept}, {-1.0: kept, 0.0: 1.0 - kept}
    for e in (0.0, 0.5, 1.5):
        found = _gap(*pair, e, sigma)
        assert found == pytest.approx(float(jaxdp.delta(least, e)), rel=1e-9)
        assert found < float(jaxdp.delta(m, e))
    assert float(jaxdp.delta(m, 0.0)) < 1.5 * _gap(*pair, 0.0, sigma)
    other = jaxdp.TruncatedPoissonSampledReplaceOne(jaxdp.Laplace(sigma), q, n, n)
    expected = jaxdp.FixedSizeSampled(jaxdp.Laplace(sigma), q)  # the bound for other noise
    np.testing.assert_allclose(
        jaxdp.delta(other, EPSILONS), jaxdp.delta(expected, EPSILONS), rtol=1e-12
    )


@pytest.mark.slow
def test_replaced_records_compose():
    """Breaks when a run is below its steps' Gaussian part, or the engine above Renyi's bound."""
    step = jaxdp.TruncatedPoissonSampledReplaceOne(jaxdp.Gaussian(2.0), 0.01, 130, 10_000)
    run, poisson = (
        jaxdp.Repeated(m, 500)
        for m in (step, jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(2.0), 0.01))
    )
    assert run.neighbours == "replace-one"
    low, high = jaxdp.epsilon_bounds(run, 1e-5)
    assert float(jaxdp.epsilon(poisson, 1e-5)) < low <= high < 1.001 * low
    assert high < float(jaxdp.epsilon(run, 1e-5, method=jaxdp.Renyi()))
    slope = jax.grad(lambda s: jaxdp.delta(jaxdp.replace_one(_step(s)), 0.5))(1.5)
    ends = [float(jaxdp.delta(jaxdp.replace_one(_step(s)), 0.5)) for s in (1.5 - 1e-5, 1.5 + 1e-5)]
    assert float(slope) == pytest.approx((ends[1] - ends[0]) / 2e-5, rel=1e-5)


def _step(sigma):
    return jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(sigma), 0.2, 3, 10)


def test_tails_of_the_binomial():
    cases = [
        (0.01, 130, 10_000),
        (0.01, 80, 10_000),
        (0.5, 5, 10),
        (1e-3, 1100, 10**6),
        (0.9, 1, 2),
    ]
    for q, size, n in cases:
        m = jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), q, size, n)
        pairs, log_weights, error = m._parts()
        tau = stats.binom.sf(size - 1, n - 1, q)
        np.testing.assert_allclose(np.exp(log_weights), [1.0 - tau, tau], rtol=1e-9)
        assert float(error) < 1e-7
        rate = stats.binom.sf(size, n, q) * size / (tau * n)
        assert rate * (1.0 - 1e-12) <= float(pairs[1].sampling_probability) <= rate * (1 + 1e-8)


@pytest.mark.extra
def test_composed_against_dp_accounting():
    """Not above its bound, whose second part is larger; above that of plain Poisson batches."""
    pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    step = jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.01, 115, 10_000)
    found = float(jaxdp.epsilon(jaxdp.Repeated(step, 1000), 1e-5))
    other = pld.from_truncated_subsampled_gaussian_mechanism(10_000, 0.01, 115, 1.0, 1e-3)
    assert 1.8283 < found < other.self_compose(1000).get_epsilon_for_delta(1e-5)


def test_moments_and_slopes():
    def moment(q):
        m = jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(2.0), q, 3, 10)
        return jaxdp.renyi(m, 4.0, direction="remove")

    q = 0.2
    tau = stats.binom.sf(2, 9, q)
    rate = stats.binom.sf(3, 10, q) * 3 / (tau * 10)

    def fourth(q, mu):
        k = np.arange(5)
        return np.sum(stats.binom.pmf(k, 4, q) * np.exp(k * (k - 1) * mu**2 / 2))

    exact = np.log((1.0 - tau) * fourth(q, 0.5) + tau * fourth(rate, 1.0)) / 3.0
    assert float(moment(q)) == pytest.approx(exact, rel=1e-8)
    slope = float(jax.grad(moment)(q))
    assert slope == pytest.approx(float(moment(q + 1e-4) - moment(q - 1e-4)) / 2e-4, rel=1e-4)


def test_bad_arguments():
    with pytest.raises(ValueError, match="sampling_probability"):
        jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 1.0, 5, 10)
    with pytest.raises(ValueError, match="batch_size"):
        jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.5, 0, 10)
    with pytest.raises(ValueError, match="replace_one"):
        jaxdp.TruncatedPoissonSampled(jaxdp.RandomizedResponse(1.0), 0.5, 3, 10)
    with pytest.raises(ValueError, match="replace_one"):
        jaxdp.TruncatedPoissonSampledReplaceOne(jaxdp.RandomizedResponse(1.0), 0.5, 3, 10)
    with pytest.raises(TypeError, match="zero_out"):
        jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.5, 3, 10, zero_out=1)
    assert (
        jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.5, 3, 10).neighbours == "add-or-remove"
    )


@pytest.mark.parametrize(("sigma", "q", "epsilon"), [(17.2, 0.208, 1.0), (1.0, 0.3, 0.5)])
def test_bounds_far_out_hold_the_pair(sigma, q, epsilon):
    """Breaks when q' is rounded up for both bounds: delta of 1e-107 feels it 170 times."""
    step = jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(sigma), q, wider.BATCH, wider.RECORDS)
    with jax.enable_x64(True), mp.workdps(laws.DIGITS):
        low, high = (float(x) for x in jaxdp.delta_bounds(step, epsilon, direction="remove"))
        truth = wider._truncated(mpf(sigma), mpf(q)).h(mp.exp(mpf(epsilon)), False)
        assert low <= truth <= high <= low * 1.00001
