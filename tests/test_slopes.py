"""Derivatives where functions bend: at integer orders, order 1, epsilon 0 and moving kinks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp._allocation._mechanism import Block
from tests.programs import jit

THETA = 0.7


def _pair(t):
    p = jnp.stack([0.5 - t, 0.3 + 0.0 * t, 0.2 + t], axis=-1)
    return jaxdp.FinitePair(p, jnp.array([0.2, 0.3, 0.5]))


FAMILIES = {
    "randomised response": lambda t: jaxdp.RandomizedResponse(t),
    "discrete Laplace": lambda t: jaxdp.DiscreteLaplace(t, 2),
    "a finite pair with X = 1 in it": lambda t: _pair(0.1 * t),
    "sampled": lambda t: jaxdp.PoissonSampled(jaxdp.RandomizedResponse(t), 0.3),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_tradeoffs_of_atoms(name):
    """The best likelihood ratio is that of an atom, which moves: frozen, the slope is wrong or 0.

    Not at the corners of the trade-off, where the two sides differ.
    """
    fpr = np.array([0.03, 0.12, 0.23, 0.37, 0.47, 0.61, 0.83])
    with jax.enable_x64(True):

        def value(theta, x):
            return jaxdp.tradeoff(FAMILIES[name](theta), x)

        def slopes(theta, x):
            return jax.grad(lambda *a: jnp.sum(value(*a)), argnums=(0, 1))(theta, x)

        got = jit(slopes)(jnp.full(fpr.shape, THETA), fpr)
        run = jit(value)
        h = 1e-6
        at = np.full(fpr.shape, THETA)
        want = (run(at + h, fpr) - run(at - h, fpr)) / (2.0 * h)
        want_x = (run(at, fpr + h) - run(at, fpr - h)) / (2.0 * h)
    np.testing.assert_allclose(got[0], want, atol=2e-8)
    np.testing.assert_allclose(got[1], want_x, atol=2e-8)


def test_tradeoff_of_randomised_response_at_its_ends():
    """1 - e^theta fpr left of the corner; at fpr 0 and 1 the slopes are those inside."""
    with jax.enable_x64(True):
        m = jaxdp.RandomizedResponse(1.0)
        slopes = jax.vmap(jax.grad(lambda x: jaxdp.tradeoff(m, x)))(jnp.array([0.0, 0.2, 1.0]))
        moved = jax.grad(lambda t: jaxdp.tradeoff(jaxdp.RandomizedResponse(t), 0.2))(1.0)
    np.testing.assert_allclose(slopes, [-np.e, -np.e, -1.0 / np.e], rtol=1e-12)
    np.testing.assert_allclose(moved, -0.2 * np.e, rtol=1e-12)


def test_allocation_has_one_sided_slopes_at_integer_orders():
    """Between integers log E X^n is joined by lines: at an integer, the slope to the right.

    To the left at the last known moment. (A constant on one side gave wrong slopes, and signs.)
    """
    with jax.enable_x64(True):
        n = jnp.arange(66.0)
        log_moments = jnp.where(n <= 60, 1e-3 * n * (n - 1.0) * (1.0 + 0.01 * n), jnp.inf)
        block = Block(jaxdp.Gaussian(jnp.asarray(1.0)), jnp.asarray(50.0))

        def divergence(s):
            return s * block._remove_rate(log_moments, s)

        orders = jnp.array([1.0, 1.5, 2.0, 3.0, 8.0, 8.25, 59.0, 60.0])
        values, slopes = jax.vmap(jax.value_and_grad(divergence))(orders)
        h = 1e-7 * jnp.where(orders == 60.0, -1.0, 1.0)
        want = (jax.vmap(divergence)(orders + h) - values) / h
        last = jax.vmap(jax.grad(divergence))(jnp.array([65.0, 61.0]))  # one step's bound
        slopes, want, last = (np.asarray(x) for x in (slopes, want, last))
    np.testing.assert_allclose(slopes, want, atol=1e-6)
    assert np.all(slopes >= 0.0)
    np.testing.assert_allclose(last, 0.5, rtol=1e-12)


def _kl_slope(p, w):
    """d R_alpha / d alpha at alpha = 1: half the variance of the loss."""
    loss = np.log(p / w)
    return 0.5 * (np.sum(p * loss**2) - np.sum(p * loss) ** 2)


def test_slopes_at_order_one():
    """Order 1 is a limit of 0/0, and where two exponents meet: nan, or half of the slope."""
    p, w, q = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.3, 0.4]), 0.3
    mixed = (1.0 - q) * w + q * p
    pair = jaxdp.FinitePair(p, w)
    with jax.enable_x64(True):

        def slope(m, direction):
            return jax.grad(lambda a: jaxdp.renyi(m, a, direction=direction))(1.0)

        np.testing.assert_allclose(slope(pair, "remove"), _kl_slope(p, w), rtol=1e-9)
        np.testing.assert_allclose(slope(pair, "add"), _kl_slope(w, p), rtol=1e-9)
        sampled = jaxdp.PoissonSampled(pair, q)
        np.testing.assert_allclose(slope(sampled, "remove"), _kl_slope(mixed, w), rtol=1e-9)
        np.testing.assert_allclose(slope(sampled, "add"), _kl_slope(w, mixed), rtol=1e-9)

        def divergence(p, w):
            return jaxdp.renyi(jaxdp.FinitePair(p, w), 1.0, direction="remove")

        per_p, per_w = jax.grad(divergence, argnums=(0, 1))(p, w)
    # sum p log(p/w) of masses that are divided by their sums
    kl = np.sum(p * np.log(p / w))
    np.testing.assert_allclose(per_p, np.log(p / w) - kl, atol=1e-12)
    np.testing.assert_allclose(per_w, 1.0 - p / w, atol=1e-12)


def test_sampled_gaussian_slope_at_certain_sampling():
    """At q = 1 the value is the Gaussian's; its slope in q is not 0: E Y^s - E Y^{s-1}."""
    with jax.enable_x64(True):

        def divergence(q):
            m = jaxdp.PoissonSampled(jaxdp.Gaussian(2.0), q)
            return jaxdp.renyi(m, jnp.array([2.0, 3.5]), direction="remove")

        slope = jax.jacfwd(divergence)(1.0)
        want = (divergence(1.0) - divergence(1.0 - 1e-6)) / 1e-6
    np.testing.assert_allclose(slope, want, rtol=1e-5)


@pytest.mark.parametrize(
    "m",
    [jaxdp.Gaussian(1.3), jaxdp.DiscreteGaussian(1.1), jaxdp.GeneralizedDiscreteLaplace(1.5, 0.4)],
    ids=["gaussian", "discrete gaussian", "generalised discrete Laplace"],
)
def test_curves_have_slopes_at_epsilon_zero(m):
    """The curve is read at |epsilon| and reflected: the slope of |x| at 0 may not count as 0."""
    with jax.enable_x64(True):
        slope = jax.grad(lambda e: jaxdp.hockey_stick(m, e))
        got = np.asarray(jax.vmap(slope)(jnp.array([0.0, 1e-9])))
    assert got[0] < -0.1
    np.testing.assert_allclose(got[0], got[1], rtol=1e-7)
