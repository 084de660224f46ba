"""A law above from several lattices: nowhere below the truth, nowhere above the better of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp._law import _allocation
from jaxdp._law._average_stitch import stitched
from jaxdp._law._average_term import Nodes
from jaxdp._numerical_terms import terms_of
from tests.programs import jit

SIZE = 64


def curve(x, mass, tau, g):
    return np.sum(mass * np.maximum(x - g[:, None], 0.0), axis=-1) + tau


def nodes(x, mass, tau):
    x, mass = jnp.asarray(x), jnp.asarray(mass)
    return Nodes(x, mass, x[1] - x[0], jnp.log(tau), -jnp.inf)


@pytest.mark.parametrize("seed", range(6))
def test_the_better_of_two_laws(seed):
    """One is exact but ends early, the other one reaches far in coarse steps (spread masses).

    A chord below the truth (a tangent from the wrong side), a lost mass, or a law chosen where the
    other one is better would break it.
    """
    rng = np.random.default_rng(seed)
    x = 0.05 * np.arange(16 * SIZE)
    mass = np.exp(-rng.uniform(1, 4) * x) * rng.uniform(0.1, 1.0, x.size)
    mass /= mass.sum()
    # What lies beyond the fine lattice is lost to infinity.
    fine, end = mass[:SIZE], x[SIZE - 1]
    excess = np.sum(mass[SIZE:] * (x[SIZE:] - end))
    fine = np.append(fine[:-1], fine[-1] + mass[SIZE:].sum())
    share = (np.arange(16 * SIZE) % 16) / 16
    coarse = np.zeros(SIZE + 1)
    np.add.at(coarse, np.arange(16 * SIZE) // 16, mass * (1 - share))
    np.add.at(coarse, np.arange(16 * SIZE) // 16 + 1, mass * share)
    far = 0.8 * np.arange(SIZE + 1)
    assert coarse[-1] * far[-1] < 1e-12
    g = np.concatenate([x[1:], far[1:-1]])
    with jax.enable_x64(True):
        read, log_tau, _ = stitched(
            [nodes(x[:SIZE], fine, excess), nodes(far[:-1], coarse[:-1], 1e-300)]
        )
        log_q, log_p = map(np.asarray, read(jnp.log(g), jnp.full(g.shape, jnp.inf)))
    found = np.exp(log_p) - g * np.exp(log_q) + np.exp(log_tau)
    truth = curve(x, mass, 0.0, g)
    one = curve(x[:SIZE], fine, excess, g)
    two = curve(far[:-1], coarse[:-1], 0.0, g)
    some = truth > 1e-9
    assert np.all(found[some] >= truth[some] * (1 - 1e-12) - 1e-13)
    assert np.all(found[some] <= np.minimum(one, two)[some] * (1 + 1e-6) + 1e-11)
    assert np.any(one < 0.99 * two)
    assert np.any(two < 0.99 * one)


@pytest.mark.parametrize(
    ("sigma", "num_steps", "delta", "top"),
    [(0.777555, 49, 2.13e-11, 5.75), (0.772118, 4224, 1.39e-7, 0.31)],
)
def test_all_of_a_law_of_an_average(sigma, num_steps, delta, top):
    """Of an average to be composed twice, against its own curve, planned for every epsilon alone.

    One lattice had up to 2.4 times the curve there; a law below the truth would break it as well.
    """
    epsilon = jnp.asarray(top) * jnp.asarray([-0.5, -0.1, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 1.0])

    @jit
    def law(sigma):
        (term,) = terms_of(jaxdp.Gaussian(sigma))
        found = _allocation.averaged_term(
            term, num_steps, log_delta=jnp.log(delta), count=2.0, others=1.0
        )
        log_q, log_p = found.masses(epsilon, jnp.full_like(epsilon, jnp.inf))
        return jnp.exp(log_p) - jnp.exp(epsilon + log_q) + jnp.exp(found.log_tau_p)

    with jax.enable_x64(True):
        found = np.asarray(law(jnp.float64(sigma)))
    allocation = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), num_steps)
    lower, upper = jaxdp.delta_bounds(allocation, epsilon, direction="remove")
    assert np.all(found >= np.asarray(lower) * (1 - 1e-9))
    assert np.all(found <= np.asarray(upper) * 1.25)
