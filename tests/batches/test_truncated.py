"""Truncated Poisson batches: all samples of all small datasets, and dp_accounting's bound."""

import itertools

import jax
import numpy as np
import pytest
from scipy import stats

import jaxdp

EPSILONS = np.array([-1.0, -0.2, 0.0, 0.3, 1.0, 2.0])
Z, STEP = np.linspace(-14.0, 14.0, 8001, retstep=True)


def _law(records, q, size, sigma):
    """The density of the noisy sum of a truncated batch, over all samples and all cuts."""
    weights = {}
    for joined in itertools.product((0, 1), repeat=len(records)):
        sample = [r for r, j in zip(records, joined, strict=True) if j]
        chance = q ** sum(joined) * (1.0 - q) ** (len(joined) - sum(joined))
        kept = list(itertools.combinations(sample, min(size, len(sample))))
        for batch in kept:
            weights[sum(batch)] = weights.get(sum(batch), 0.0) + chance / len(kept)
    return sum(w * stats.norm.pdf(Z, loc=shift, scale=sigma) for shift, w in weights.items())


@pytest.mark.parametrize(("q", "size", "n"), [(0.4, 1, 4), (0.7, 2, 4), (0.5, 3, 5), (0.6, 4, 4)])
def test_small_datasets(q, size, n):
    """Breaks when the pair of cut batches, or their probability, is too small."""
    sigma = 1.3
    m = jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(sigma), q, size, n)
    for direction in ("remove", "add"):
        bound = np.asarray(jaxdp.delta(m, EPSILONS, direction=direction))
        largest = np.zeros(EPSILONS.size)
        for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), n - 1):
            p, absent = _law((1.0, *others), q, size, sigma), _law(others, q, size, sigma)
            pair = (p, absent) if direction == "remove" else (absent, p)
            found = [STEP * np.sum(np.maximum(pair[0] - np.exp(e) * pair[1], 0)) for e in EPSILONS]
            largest = np.maximum(largest, found)
        assert np.all(largest <= bound + 1e-7)
        assert np.all((largest > 0.5 * bound)[:3])
        if size >= n:
            np.testing.assert_allclose(largest, bound, rtol=1e-5)


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
    assert (
        jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.5, 3, 10).neighbours == "add-or-remove"
    )
