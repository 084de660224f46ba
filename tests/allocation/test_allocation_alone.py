"""Averages that one large ratio decides, or a few small ones: far out, and of few steps."""

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest

import jaxdp
from jaxdp._law import _average_alone, _average_atoms
from jaxdp._law._terms import Term

N = 48


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def drawn(seed, low=-120.0):
    rng = np.random.default_rng(seed)
    sigma = np.exp(rng.uniform(np.log(0.12), np.log(4.0), N))
    q = np.exp(rng.uniform(np.log(1e-3), np.log(0.9), N))
    steps = np.floor(np.exp(rng.uniform(0.0, np.log(40.0), N)))
    return sigma, q, steps, 10.0 ** rng.uniform(low, -4, N)


def mechanism(kind, sigma, q):
    return {
        "gaussian": lambda: jaxdp.Gaussian(sigma),
        "sampled": lambda: jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q),
        "discrete": lambda: jaxdp.DiscreteGaussian(sigma),
    }[kind]()


@pytest.mark.parametrize(
    "kind", ["gaussian", "sampled", pytest.param("discrete", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_epsilon_of_few_steps_far_out(kind, direction):
    """Breaks when a bound is of no use: lower ones of 0 (60 in 100), upper ones of twice that."""
    sigma, q, steps, delta = drawn(1)
    if (kind, direction) == ("discrete", "add"):  # (atoms farther apart have wide bounds)
        sigma = np.maximum(sigma, 0.6)
    run = jaxdp.RandomAllocation(mechanism(kind, sigma, q), steps)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, delta, direction=direction))
    assert np.all(low <= high)
    assert np.mean(high - low <= 1e-2 * high) >= 0.95
    assert np.all(high - low <= 0.1 * high)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_step_is_the_step(direction):
    """Breaks when the bounds of an average of one are not about its own, a closed form."""
    sigma, _, _, delta = drawn(2)
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), np.ones(N))
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, delta, direction=direction))
    own = np.asarray(jaxdp.epsilon(jaxdp.Gaussian(sigma), delta, direction=direction))
    some = own > 0.0
    assert np.all(low <= own * (1 + 1e-12))
    assert np.all(high >= own * (1 - 1e-12))
    assert np.all((high - low)[some] <= 2e-2 * own[some])


def two_steps(sigma, ratio):
    """H of (X_1 + X_2) / 2 by quadrature in X_2, the other one in closed form."""
    mu, c = 1 / mpmath.mpf(sigma), 2 * mpmath.mpf(ratio)

    def excess(k):  # E (X - k)_+
        if k <= 0:
            return 1 - k
        z = mpmath.log(k) / mu
        return mpmath.ncdf(mu / 2 - z) - k * mpmath.ncdf(-mu / 2 - z)

    def integrand(z):
        return mpmath.npdf(z) * excess(c - mpmath.exp(mu * z - mu * mu / 2))

    kink = mpmath.log(c) / mu + mu / 2
    points = sorted({mpmath.mpf(x) for x in range(-12, 40, 2)} | {kink, kink - 0.1, kink + 0.1})
    return mpmath.quad(integrand, points) / 2


@pytest.mark.parametrize(("sigma", "epsilon"), [(0.3, 40.0), (1.0, 12.0), (2.0, 4.0), (0.5, 9.0)])
def test_two_steps_by_quadrature(sigma, epsilon):
    """Breaks when a bound is on the wrong side, or off by a part in 50 of delta."""
    with mpmath.workdps(60):
        truth = float(mpmath.log(two_steps(sigma, mpmath.exp(mpmath.mpf(epsilon)))))
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 2)
    bounds = jaxdp.delta_bounds(run, epsilon, direction="remove")
    low, high = (float(jnp.log(bound)) for bound in bounds)
    assert low <= truth + 1e-11
    assert high >= truth - 1e-11
    assert high - low <= 2e-2


def test_a_law_of_few_atoms():
    """Breaks when a bound by one large ratio is on the wrong side of an exact law."""
    rng = np.random.default_rng(3)
    for number in (1, 2, 5):
        x = np.sort(np.concatenate([rng.uniform(0.3, 1.0, 3), 40.0 + 10.0 * rng.uniform(size=2)]))
        q = np.array([0.3, 0.4, 0.3, 0.0, 0.0])
        q[3:] = [1e-6, 3e-7]
        q[:3] *= 1 - q[3:].sum()
        x[:3] *= (1 - q[3:] @ x[3:]) / (q[:3] @ x[:3])
        losses, atoms = jnp.log(jnp.asarray(x)), jnp.asarray(q)

        def masses(lo, hi, losses=losses, atoms=atoms):
            inside = (losses > lo[..., None]) & (losses <= hi[..., None])
            q = jnp.sum(jnp.where(inside, atoms, 0.0), axis=-1)
            p = jnp.sum(jnp.where(inside, atoms * jnp.exp(losses), 0.0), axis=-1)
            return jnp.log(q), jnp.log(p)

        term, steps = Term(masses, 1.0), jnp.float64(number)
        known = _average_atoms.coarse(term)
        sums, weights = np.zeros(1), np.ones(1)
        for _ in range(number):
            sums = (sums[:, None] + x).ravel()
            weights = (weights[:, None] * q).ravel()
        for ratio in (1.5, 3.0, 20.0, 45.0):
            c = number * ratio
            truth = np.sum(weights * np.maximum(sums - c, 0.0)) / number
            if truth == 0.0:
                continue
            epsilon = jnp.log(jnp.float64(ratio))
            about = _average_alone.about_epsilon(steps, epsilon, 1)
            log_q, log_p = masses(about, jnp.full_like(about, jnp.inf))
            one = _average_alone.tangents(term, steps, log_q, log_p, 1)
            below = float(_average_alone.log_delta_below(one, steps, epsilon))
            above = float(
                _average_alone.log_delta_above(
                    term, known, steps, epsilon, jnp.log(jnp.float64(truth))
                )
            )
            assert below <= np.log(truth) + 1e-12 <= above + 2e-12
            back = float(_average_alone.epsilon_below(one, steps, jnp.log(jnp.float64(truth))))
            assert back <= float(epsilon) + 1e-12
            most = float(
                _average_alone.epsilon_above(
                    term, known, steps, jnp.log(jnp.float64(truth)), jnp.float64(back)
                )
            )
            assert most >= float(epsilon) - 1e-12


def test_derivatives_far_out():
    """Breaks when a bound by one ratio has no derivative, or another one than its differences."""
    sigma, _, _, _ = drawn(4)
    sigma, steps, delta = (
        sigma[:8],
        np.array([2.0, 3, 5, 8, 13, 2, 20, 40]),
        10.0 ** -np.arange(12, 92, 10.0),
    )

    def bounds(sigma, steps, log_delta):
        run = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)
        return jnp.stack(jaxdp.epsilon_bounds(run, jnp.exp(log_delta), direction="remove"))

    at = [jnp.asarray(v) for v in (sigma, steps, np.log(delta))]
    for k in (0, 2):
        one = [jnp.ones(8) if i == k else jnp.zeros(8) for i in range(3)]
        _, slope = jax.jvp(bounds, tuple(at), tuple(one))
        h = 1e-5 * jnp.abs(at[k])
        up, down = ([*at[:k], at[k] + sign * h, *at[k + 1 :]] for sign in (1, -1))
        difference = (bounds(*up) - bounds(*down)) / (2.0 * h)
        np.testing.assert_allclose(slope, difference, rtol=2e-2)
