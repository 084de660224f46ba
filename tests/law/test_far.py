"""Losses hundreds from the centre of a step's law: no double holds their Q-masses beside others."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import norm

import jaxdp
from jaxdp._law import _jumps, _places
from jaxdp._law._discretise import lower
from jaxdp._law._grid import ladder
from jaxdp._law._terms import Term
from tests.programs import jit

ATOMS, CASES = 12, 60


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def delta(losses, log_p, epsilon):
    """sum p (1 - e^{epsilon - l})_+ in 40 digits."""
    with mp.workdps(40):
        above = [(mp.mpf(float(y)), mp.mpf(float(x))) for x, y in zip(losses, log_p, strict=True)]
        above = [(y, x) for y, x in above if x > epsilon and y > -mp.inf]
        return mp.fsum(mp.exp(y) * (1 - mp.exp(mp.mpf(float(epsilon)) - x)) for y, x in above)


@pytest.mark.parametrize("spread", [3.0, 100.0, 3000.0])
def test_the_law_below_lies_below_however_far_its_atoms_are(spread):
    """Breaks when a far mass counts as more than it is, or is lost."""
    rng = np.random.default_rng(5)
    positions = jnp.asarray(ladder(128, 2**18))

    @jit
    def below(losses, log_p, theta, centre, spacing):
        def masses(lo, hi):
            inside = (losses > lo[:, None]) & (losses <= hi[:, None])
            each = jnp.where(inside, log_p, -jnp.inf), jnp.where(inside, log_p - losses, -jnp.inf)
            p, q = (jax.scipy.special.logsumexp(x, axis=1) for x in each)
            return q, p

        nodes = centre + spacing * positions
        weights, log_norm = lower(Term(masses, 1.0), nodes, theta, centre)
        return nodes, log_norm + jnp.log(weights) - theta * nodes

    kept = []
    for _ in range(CASES):
        losses = rng.normal(0.0, spread, ATOMS)
        log_p = np.log(rng.dirichlet(np.full(ATOMS, 0.5)) + 1e-12)
        theta, centre = 10 ** rng.uniform(-2.0, 1.0) / spread, rng.choice(losses) + rng.normal()
        spacing = 10 ** rng.uniform(-3.0, -1.0)
        nodes, found = (np.asarray(x) for x in below(losses, log_p, theta, centre, spacing))
        assert not np.any(np.isnan(found))
        some = found > -600.0
        for epsilon in [*losses, *rng.choice(losses, 6) + rng.normal(size=6), -2e4]:
            given = delta(losses, log_p, epsilon)
            got = delta(nodes[some], found[some], epsilon)
            assert got <= given * (1 + mp.mpf(10) ** -14)
        tilted = np.exp(theta * (losses - np.max(losses)) + log_p)
        of_it = np.exp(theta * (nodes[some] - np.max(losses)) + found[some])
        kept.append(np.sum(of_it) / np.sum(tilted))
    assert np.median(kept) > 0.2  # (of isolated atoms E takes much: see `_discretise`)


def test_a_coarser_lattice_below_holds_what_is_far():
    """Breaks where blocks are composed on a lattice wider than the range of a double."""
    size, spacing, theta = 8192, 0.25, 0.03
    place = np.array([5.0, 200.25, 3000.5, 4000.0, 8000.75])
    weights = np.array([0.1, 0.2, 0.4, 0.2, 0.1])
    coarsen = jit(lambda w, x: _jumps.coarsen(w, x, spacing, jnp.float64(theta), -1, size))
    found = coarsen(weights, place)
    found, points = np.asarray(found), np.arange(size)
    assert found[5] == pytest.approx(0.1)
    assert 0.098 < found[8000] < 0.1
    log_p, losses = np.log(weights) - theta * spacing * place, spacing * place
    some = found > 0.0
    nodes = spacing * points[some]
    log_found = np.log(found[some]) - theta * nodes
    for epsilon in [-1.0, *losses, *(losses - 0.3), *(losses - 30.0)]:
        given, got = delta(losses, log_p, epsilon), delta(nodes, log_found, epsilon)
        assert got <= given * (1 + mp.mpf(10) ** -14)


@pytest.mark.parametrize("side", [1, -1])
def test_a_hair_beside_a_node_is_at_the_node(side):
    """Breaks when an atom has the cell of one place and the half or the offset of another.

    Places are worked out again for each use, and rounded otherwise: 643 and a hair less.
    """
    size, spacing, theta = 4096, 0.01, 3.0
    places = np.array([0.0, 1.0, 640.0, 640.5, 643.0, 700.0, 701.25, 3000.0])
    weights = np.array([1e-3, 1e-3, 0.2, 0.1, 0.4, 0.2, 0.09, 0.008])
    coarsen = jit(lambda x: _jumps.coarsen(jnp.asarray(weights), x, spacing, theta, side, size))
    exact = np.asarray(coarsen(places))
    assert exact[643] == pytest.approx(0.4, rel=1e-9)
    for hair in (-1e-12, 1e-12):
        np.testing.assert_allclose(coarsen(places + hair), exact, rtol=1e-6, atol=1e-11)


def test_whole_numbers_are_the_same_however_places_are_rounded():
    """Breaks where a lattice has its first point by one rounding, and its list by another."""
    size = 4096
    for off in (-3e-12, 0.0, 3e-12):
        whole = np.array([-2048.0, -1.0, 0.0, 1.0, 777.0, 4095.0])
        np.testing.assert_array_equal(_places.floor(whole + off, size), whole)
        np.testing.assert_array_equal(_places.ceil(whole + off, size), whole)
        np.testing.assert_array_equal(_places.nearest(whole + 0.5 + off, size), whole + 1.0)


def convolved(sigma, q, steps, target, points=2**20):
    """Epsilon of sampled Gaussians to remove, each loss counted from its least, by one FFT."""
    least = np.log1p(-q)
    spacing = 0.25 * steps * (0.5 / sigma**2 + 9.0 / sigma) / points

    def beyond(loss):  # P of a larger loss
        loss = np.maximum(loss, 1e-300) + least
        small = np.log(np.maximum(np.expm1(np.minimum(loss - least, 700.0)), 1e-300)) + least
        at = sigma**2 * (np.where(loss > 30.0, loss, small) - np.log(q)) + 0.5
        return (1.0 - q) * norm.sf(at / sigma) + q * norm.sf((at - 1.0) / sigma)

    tail = np.append(1.0, beyond((np.arange(points - 1) + 0.5) * spacing))
    composed = np.fft.irfft(np.fft.rfft(tail - np.append(tail[1:], 0.0)) ** steps, points)
    losses = np.arange(points) * spacing + steps * least

    def log_delta(epsilon):
        rise = -np.expm1(np.minimum(epsilon - losses, 0.0))
        return np.log(max(np.sum(composed * rise), 1e-300) / target)

    return brentq(log_delta, 0.0, 0.9 * losses[-1])


def test_little_noise_has_bounds_from_both_sides():
    """Breaks where a step loses more than a double holds beside its bulk: the bound below was 0."""
    sigma, q, steps, target = np.array([0.2, 0.1, 0.07, 0.05, 0.03]), 0.02, 50, 1e-9
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, target, direction="remove"))
    truth = np.array([convolved(s, q, steps, target) for s in sigma])
    assert np.all(low <= truth * (1.0 + 1e-4))
    assert np.all(truth <= high * (1.0 + 1e-4))
    assert np.all(high - low < 6e-3 * high)
    # To add, all but next to nothing is next to the largest loss, -steps log(1 - q).
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, target, direction="add"))
    largest = -steps * np.log1p(-q)
    assert np.all(high <= largest * (1.0 + 1e-14))
    assert np.all(low > (1.0 - 1e-4) * largest)
    assert np.all(low <= largest - 0.999 * target)
    both = jaxdp.epsilon_bounds(m, target)
    assert np.all(np.asarray(both[0]) > 0.99 * np.asarray(both[1]))


def test_a_target_that_no_lattice_shows_is_no_small_epsilon():
    """Breaks when points where the bound overflows count as points where it is met: it was 0."""
    pair = jaxdp.FinitePair([2.3849430313277592e-40, 1.0], [0.8708845469655043, 0.1291154530344957])
    m = jaxdp.Repeated(pair, 5)
    largest = 5 * (np.log(0.8708845469655043) - np.log(2.3849430313277592e-40))
    for direction in ("add", "both"):
        low, high = jaxdp.epsilon_bounds(m, 5.019206712004771e-229, direction=direction)
        assert low == pytest.approx(largest, rel=1e-9)
        assert high == pytest.approx(largest, rel=1e-9)


def test_a_mass_that_underflows_is_not_nothing():
    """Breaks when what counts as infinite is less than a double, and so 0: the bound was -4e11."""
    m = jaxdp.PoissonSampled(jaxdp.Gaussian(2.0, 0.5), 1e-15)
    for epsilon in (1e-15, 0.01, 0.5, 2.0):
        exact = jaxdp.log_delta(m, epsilon, direction="remove")
        bound = jaxdp.log_delta(m, epsilon, direction="remove", method=jaxdp.Numerical())
        assert exact <= bound < -30.0


@pytest.mark.parametrize("failure", [0.1, 0.7, 0.99])
def test_a_law_that_mostly_fails_is_planned_by_the_rest(failure):
    """Breaks when nothing is left before a cut and that spoils the estimate: the bound was 1."""
    likely, rare = 0.229, 1e-6
    pair = jaxdp.FinitePair([rare, 1.0 - rare], [likely, 1.0 - likely])
    m = jaxdp.Composed([jaxdp.ApproximateDP(1.0, failure), pair])
    epsilon = np.array([0.0, 0.5, 2.0, 5.0])
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(m, epsilon, direction="add"))
    left = (1.0 - failure) / (1.0 + np.exp(-1.0)) * np.array([1.0, np.exp(-1.0)])
    second = np.log([likely / rare, (1.0 - likely) / (1.0 - rare)])
    loss = np.array([1.0, -1.0])[:, None] + second
    mass = left[:, None] * np.array([likely, 1.0 - likely])
    gain = mass * -np.expm1(np.minimum(epsilon[:, None, None] - loss, 0.0))
    truth = failure + gain.sum(axis=(1, 2))
    assert np.all(low <= truth * (1.0 + 1e-12))
    assert np.all(truth <= high * (1.0 + 1e-12))
    assert np.all(high - low < 2e-3 * high)
