"""Averages that are to be composed, in the corners: rare large ratios, and few steps many times."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

import jaxdp
from jaxdp._law import _allocation, _average_jump
from jaxdp._numerical_terms import terms_of
from tests.programs import jit

SIGMA = 0.720061
RATIOS = np.exp(np.linspace(0.0, 10.5, 43))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def curve_of_one(mu, y, limit=np.inf):
    """E[(X - y)_+; X <= limit] of a Gaussian step."""

    def above(g):
        log = np.log(np.maximum(g, 1e-300))
        p, q = norm.sf(log / mu - mu / 2), norm.sf(log / mu + mu / 2)
        return p, q

    (p, q), (p_end, q_end) = above(y), above(np.asarray(limit))
    inside = np.where(y > 0, p - p_end - y * (q - q_end), 1 - p_end - y * (1 - q_end))
    return np.where(y < limit, np.maximum(inside, 0.0), 0.0)


def curve_of_two(mu, a, start=0.0, limit=np.inf):
    """E[(A - a)_+; X_1 > start, X_2 <= limit] of the average of two, by the midpoint rule."""
    first = np.log(start) / mu + mu / 2 if start > 0 else -12.0
    edges = np.linspace(first, max(first, 8.0) + 10.0, 150001)
    z = 0.5 * (edges[1:] + edges[:-1])
    x, q = np.exp(mu * z - mu**2 / 2), norm.pdf(z) * np.diff(edges)
    return np.array([0.5 * np.sum(q * curve_of_one(mu, 2 * g - x, limit)) for g in a])


def read(masses, log_tau):
    log_q, log_p = masses(jnp.log(RATIOS), jnp.full(RATIOS.shape, jnp.inf))
    return jnp.exp(log_p) - RATIOS * jnp.exp(log_q) + jnp.exp(log_tau)


@pytest.mark.parametrize(("limit", "wide"), [(200.0, 1.1), (2700.0, 1.02)])
def test_the_part_with_one_large_ratio(limit, wide):
    """A cell's mass on the wrong side, a lost end, or the others' mean taken wrongly break it."""
    mu = 1.0 / SIGMA
    grid = np.concatenate([[0.0], np.geomspace(1e-3, limit, 2000)])
    # of two ratios up to the limit, from above: by chords
    z = np.linspace(-12.0, np.log(limit) / mu + mu / 2, 20001)
    x, q = np.exp(mu * z - mu**2 / 2), norm.pdf(z) * (z[1] - z[0])
    both = np.array([0.5 * np.sum(q * curve_of_one(mu, 2 * g - x, limit)) for g in grid])
    both = both * (1 + 1e-6) + 1e-18
    assert np.all(both[1:] <= both[:-1])

    @jit
    def parts(limit):
        (term,) = terms_of(jaxdp.Gaussian(SIGMA))
        deviation = jnp.sqrt(2.0 * jnp.expm1(mu**2))
        jumps = _average_jump.Jumps(limit, jnp.float64(4e5), deviation)
        above = _average_jump.above(term, 2.0, jumps, lambda a: jnp.interp(a, grid, both))
        # Nothing is known of the other from below but its mean.
        nothing = lambda lo, hi: (jnp.full_like(lo, -jnp.inf),) * 2  # noqa: E731
        below = _average_jump.below(term, 2.0, jumps, nothing)
        return read(below.masses, -jnp.inf), read(above.masses, above.log_tau), above.log_tau

    low, high, log_tau = (np.asarray(v) for v in parts(jnp.float64(limit)))
    # either of two is the large one
    exact = 2.0 * curve_of_two(mu, RATIOS, limit, limit)
    some = exact > 1e-14
    assert np.all(low[some] <= exact[some] * (1 + 1e-7))
    assert np.all(high[some] >= exact[some] * (1 - 1e-7))
    assert np.all(low[some] >= 0.98 * exact[some])
    twice = norm.sf(np.log(limit) / mu - mu / 2) * norm.sf(np.log(limit) / mu + mu / 2)
    assert twice <= np.exp(log_tau) < 3.0 * twice + 1e-16
    # (The other's tail is taken for that of two: that counts where the limit is low.)
    assert np.all(high[some] <= wide * exact[some] + 3.0 * twice)


def test_a_law_with_a_slow_tail():
    """Of two steps with little noise: rounding in the transform was up to 100 times the tail."""

    @jit
    def laws(log_delta):
        (term,) = terms_of(jaxdp.Gaussian(SIGMA))
        found = []
        for side in (-1, 1):
            law = _allocation.averaged_term(
                term, 2.0, log_delta=log_delta, side=side, count=2.0, others=1.0
            )
            found.append(read(law.masses, law.log_tau_p))
        return found

    low, high = (np.asarray(v) for v in laws(jnp.log(1.64e-12)))
    exact = curve_of_two(1.0 / SIGMA, RATIOS)
    some = exact > 1e-13
    assert np.all(low[some] <= exact[some] * (1 + 1e-6))
    assert np.all(high[some] >= exact[some] * (1 - 1e-6))
    assert np.all(high[some] <= 1.02 * exact[some])
    assert np.all(low[some] >= 0.98 * exact[some])


def test_few_steps_very_often_are_tilted_to_what_counts():
    """51 epochs of four steps, add: each lattice was about ratios as rare as delta alone.

    Then 97 % of the mass were missing below, and moved to infinity above.
    """
    epsilon = jnp.asarray([0.0, 0.1, 0.2, 0.4, 0.8])

    @jit
    def curves(log_delta):
        (term,) = terms_of(jaxdp.Gaussian(2.42265))
        found = []
        for side in (-1, 1):
            law = _allocation.averaged_term(
                term, 4.0, log_delta=log_delta, side=side, count=51.0, direction="add"
            )
            log_q, log_p = law.masses(jnp.full_like(epsilon, -jnp.inf), -epsilon)
            q = jnp.exp(log_q) + jnp.exp(law.log_tau_q)
            found.append(q - jnp.exp(epsilon + log_p))
        return found

    low, high = (np.asarray(v) for v in curves(jnp.log(9.56e-12)))
    assert np.all(low <= high)
    assert np.all(high - low < 1e-2 * high)
