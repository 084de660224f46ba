"""Compositions on one Poisson sample, tabulated: against enumeration and convolution."""

import itertools

import jax
import numpy as np
import pytest
from scipy.stats import laplace, norm

import jaxdp
from tests.programs import jit

RATE, COUNT = 0.2, 3
PAIRS = [([0.6, 0.3, 0.1], [0.2, 0.3, 0.5]), ([0.9, 0.1, 0.0], [0.5, 0.3, 0.2])]


def _later(direction):
    """A direction whose program, of half a minute, holds no code that the other's does not."""
    return pytest.param(direction, marks=pytest.mark.slow)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def _products(*laws):
    return np.array([np.prod(masses) for masses in itertools.product(*laws)])


def _enumerated(p, q, rate, count, epsilon, direction):
    """delta of the sampled product, `count` times, over all outcomes."""
    p, q = (_products(*x) for x in (p, q))
    p = _products(*[(1.0 - rate) * q + rate * p] * count)
    q = _products(*[q] * count)
    if direction == "add":
        p, q = q, p
    return np.maximum(p - np.exp(epsilon) * q, 0.0).sum()


def _run(first, second, rate, count):
    inner = jaxdp.Composed([jaxdp.FinitePair(*first), jaxdp.FinitePair(*second)])
    return jaxdp.Repeated(jaxdp.PoissonSampled(inner, rate), count)


@pytest.mark.parametrize("direction", ["remove", _later("add")])
def test_finite_pairs_against_enumeration(direction):
    """Breaks when a table loses mass above, gains it below, or mistakes a direction."""
    first, second = PAIRS
    rates = np.repeat([0.02, 0.2, 0.9], 4)
    epsilons = np.tile([-0.3, 0.0, 0.2, 0.9], 3)
    run = _run(first, second, rates, COUNT)
    low, high = jaxdp.delta_bounds(run, epsilons, direction=direction, method=jaxdp.Numerical())
    p, q = zip(first, second, strict=True)
    truth = [
        _enumerated(p, q, r, COUNT, e, direction) for r, e in zip(rates, epsilons, strict=True)
    ]
    assert np.all(low <= np.array(truth) * (1.0 + 1e-12))
    assert np.all(high >= np.array(truth) * (1.0 - 1e-12))
    assert np.all(high <= np.array(truth) * (1.0 + 1e-5))
    assert np.all(low >= np.array(truth) * 0.85)  # few isolated atoms, off the lattice


def _allocated(p, q, steps):
    """P and Q of one of so many steps, over all outcomes of all of them."""
    each = [_products(*[p if i == j else q for i in range(steps)]) for j in range(steps)]
    return np.mean(each, axis=0), _products(*[q] * steps)


@pytest.mark.parametrize("direction", [_later("remove"), "add"])
def test_an_allocation_within_an_allocation_against_enumeration(direction):
    """Breaks when an average loses what a table needs: its mass at X = 0, or its mean's."""
    first, second = PAIRS
    inner = [jaxdp.FinitePair(*first), jaxdp.RandomAllocation(jaxdp.FinitePair(*second), 2)]
    run = jaxdp.RandomAllocation(jaxdp.Composed(inner), 2)
    two = _allocated(*second, 2)
    p, q = _allocated(*(_products(a, b) for a, b in zip(first, two, strict=True)), 2)
    if direction == "add":
        p, q = q, p
    epsilons = np.array([-0.3, 0.0, 0.3, 0.7])
    truth = np.array([np.maximum(p - np.exp(e) * q, 0.0).sum() for e in epsilons])
    low, high = jaxdp.delta_bounds(run, epsilons, direction=direction, method=jaxdp.Numerical())
    assert np.all(low <= truth * (1.0 + 1e-12))
    assert np.all(high >= truth * (1.0 - 1e-12))
    assert np.all(high <= truth * 1.05)
    assert np.all(low >= truth * 0.6)  # few isolated atoms, off every lattice


def _convolved(sigma, scale, rate, count, direction, delta):
    """Epsilon of a Gaussian and a Laplace mechanism on one sample, on 2^21 points."""
    number, h = 2**21, 2e-5
    loss = (np.arange(number) - number // 2) * h
    edges = np.append(loss - h / 2, loss[-1] + h / 2)
    mu, x = 1.0 / sigma, 1.0 / scale
    gaussian = np.diff(norm.cdf(edges, -0.5 * mu * mu, mu))
    inside = laplace.cdf((edges + x) / 2.0)
    laplacian = np.diff(np.where(edges < -x, 0.0, np.where(edges >= x, 1.0, inside)))
    spectra = [np.fft.rfft(np.fft.ifftshift(m)) for m in (gaussian, laplacian)]
    q = np.maximum(np.fft.fftshift(np.fft.irfft(spectra[0] * spectra[1], number)), 0.0)
    loss, q = loss[q > 1e-18], q[q > 1e-18]
    q /= q.sum()
    p = q * np.exp(loss)
    p /= p.sum()
    sampled = np.log1p(rate * np.expm1(loss))
    mass = (1.0 - rate) * q + rate * p
    if direction == "add":
        sampled, mass = -sampled, q
    places = np.rint(sampled / h).astype(int)
    step = np.bincount(places % number, mass, number)
    run = np.maximum(np.fft.irfft(np.fft.rfft(step) ** count, number), 0.0)
    moved = count * ((sampled - places * h) * mass).sum()
    total = np.fft.fftfreq(number, 1.0 / number) * h + moved
    order = np.argsort(total)
    total, run = total[order], run[order]
    tail = np.cumsum(run[::-1])[::-1]
    weighted = np.cumsum((run * np.exp(-total))[::-1])[::-1]
    curve = tail - np.exp(total) * weighted
    return np.interp(-np.log(delta), -np.log(np.maximum(curve[total > 0], 1e-14)), total[total > 0])


@pytest.mark.parametrize("direction", ["remove", _later("add")])
def test_a_sum_and_a_count_on_one_batch_against_convolution(direction):
    """A pipeline: two queries on the same sample, a thousand times; Rényi says 29.7 for 2.207."""
    inner = jaxdp.Composed([jaxdp.Gaussian(1.0), jaxdp.Laplace(2.0)])
    run = jaxdp.Repeated(jaxdp.PoissonSampled(inner, 0.01), 1000)
    truth = _convolved(1.0, 2.0, 0.01, 1000, direction, 1e-5)
    low, high = jaxdp.epsilon_bounds(run, 1e-5, direction=direction)
    assert low <= truth * (1.0 + 1e-6)
    assert high >= truth * (1.0 - 1e-6)
    assert high - low <= 3e-4 * truth  # 1e-2 where the Laplace step's atoms are off the lattice
    assert high <= truth * (1.0 + 3e-4)


def test_deltas_that_are_next_to_nothing_have_bounds_on_both_sides():
    """Breaks when tables end where delta is e^-120, whatever is asked of them."""
    inner = jaxdp.Composed([jaxdp.Gaussian(1.0), jaxdp.Laplace(2.0)])
    run = jaxdp.Repeated(jaxdp.PoissonSampled(inner, 0.01), 1000)
    low, high = jaxdp.epsilon_bounds(run, 1e-100, direction="remove")
    assert 0.99 * high <= low <= high


def test_gradients_of_a_nested_run_agree_with_differences():
    """Breaks when a choice of the table carries a gradient, or its masses lose theirs."""

    def epsilon(x):
        inner = jaxdp.Composed([jaxdp.Gaussian(x[0]), jaxdp.Laplace(x[1])])
        run = jaxdp.Repeated(jaxdp.PoissonSampled(inner, x[2]), 100)
        return jaxdp.epsilon(run, 1e-5, direction="remove")

    at = np.array([1.0, 2.0, 0.05])
    step = 1e-3 * at
    points = np.concatenate([at[None], at + np.diag(step), at - np.diag(step)])
    values, slopes = jit(jax.vmap(jax.value_and_grad(epsilon)))(points)  # one program
    differences = (values[1:4] - values[4:]) / (2.0 * step)
    assert np.isfinite(values[0])
    np.testing.assert_allclose(slopes[0], differences, rtol=2e-2)


@pytest.mark.slow
def test_a_sample_of_a_sample_of_a_composition():
    """Depth three: the product of the rates, as sampling twice is sampling once."""
    inner = jaxdp.Repeated(jaxdp.RandomizedResponse(0.7), 2)
    twice = jaxdp.PoissonSampled(jaxdp.PoissonSampled(inner, 0.5), 0.4)
    once = jaxdp.PoissonSampled(inner, 0.2)
    one, two = (
        jaxdp.delta_bounds(
            jaxdp.Repeated(step, 5), 0.3, direction="remove", method=jaxdp.Numerical(2048)
        )
        for step in (once, twice)
    )
    np.testing.assert_allclose(two, one, rtol=1e-3)
    assert one[0] <= two[1]
    assert two[0] <= one[1]


@pytest.mark.parametrize(
    ("sigma", "q", "steps", "delta"),
    [
        (1.0, 0.05, 50, 1e-5),
        (1.0, 0.05, 100, 1e-5),
        (0.7, 0.02, 200, 1e-6),
        (0.5, 0.01, 30, 1e-9),
        (0.5, 0.01, 300, 1e-6),
        (0.6, 0.001, 1000, 1e-7),
    ],
)
def test_a_sampled_run_next_to_whose_smallest_loss_there_is_nothing(sigma, q, steps, delta):
    """Breaks when tilts go to the end of the support: (0.48, 4.03) for 2.658, the second of them.

    Or when the law below has no node where most losses are: 1.79 for 1.971, the last one.

    The curve of a sampled pair is that of the pair: H_g(rate P + (1 - rate) Q || Q) is
    rate H_g'(P || Q) with g' = 1 + (g - 1)/rate.
    """
    rate = 0.5
    with jax.enable_x64(True):
        run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)
        inner = jaxdp.epsilon_bounds(run, delta / rate, direction="remove")
        truth = np.log1p(rate * np.expm1(np.asarray(inner)))
        low, high = jaxdp.epsilon_bounds(jaxdp.PoissonSampled(run, rate), delta, direction="remove")
    assert low <= truth[1]
    assert high >= truth[0]
    assert high - low <= 2e-3 * high


@pytest.mark.parametrize(
    ("inner", "square"),
    [
        (jaxdp.Repeated(jaxdp.Gaussian(2.0), 3), 3.0 / 4.0),
        (jaxdp.Composed([jaxdp.Gaussian(2.0), jaxdp.Gaussian(3.0)]), 1.0 / 4.0 + 1.0 / 9.0),
        (jaxdp.Schedule(jaxdp.Gaussian(np.array([2.0, 3.0]))), 1.0 / 4.0 + 1.0 / 9.0),
    ],
)
def test_a_sample_of_several_gaussians_is_that_of_one(inner, square):
    """Breaks when what is one step, but not by its class, has no failure: an AttributeError."""
    one = jaxdp.PoissonSampled(jaxdp.Gaussian(square**-0.5), 0.1)
    for direction in ("remove", "add", "both"):
        found = jaxdp.epsilon_bounds(jaxdp.PoissonSampled(inner, 0.1), 1e-5, direction=direction)
        truth = jaxdp.epsilon_bounds(one, 1e-5, direction=direction)
        np.testing.assert_allclose(found, truth, rtol=1e-6)
