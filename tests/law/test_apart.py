"""One rare large loss, composed apart from the others: certified, and tight far below rounding."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxdp
from jaxdp._law import _plan
from jaxdp._numerical_terms import terms_of
from tests.programs import jit

# sigma, q and log delta of two steps; sigma, q, steps and log delta of many.
TWO = np.array([(1.007, 1.87e-5, -26.04), (2.6156, 6.137e-4, -71.4), (2.465, 6.117e-5, -125.3)])
MANY = np.array(
    [
        (2.688, 2.736e-4, 482.0, -94.43),
        (1.316, 2.935e-6, 521.0, -173.4),
        (4.684, 2.847e-5, 103.0, -199.5),
        (3.424, 7.647e-3, 502.0, -199.3),
        (1.414, 6.102e-6, 146.0, -123.4),
        (1.593, 5.241e-4, 29557.0, -112.1),
    ]
)


def run(sigma, q, steps):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)


def bounds(sigma, q, steps, log_delta):
    return jaxdp.epsilon_bounds(run(sigma, q, steps), jnp.exp(log_delta), direction="remove")


@functools.cache
def brackets():
    """Of all rows, by one program: those of two steps, those of many."""
    rows = np.concatenate([np.insert(TWO, 2, 2.0, axis=1), MANY])
    with jax.enable_x64(True):
        assert np.all(jax.vmap(one_is_apart)(*rows.T))
        found = np.stack([np.asarray(x) for x in jax.vmap(bounds)(*rows.T)], axis=-1)
    return found[: len(TWO)], found[len(TWO) :]


def one_is_apart(sigma, q, steps, log_delta):
    terms = terms_of(run(sigma, q, steps))
    return _plan.plan(terms, None, jnp.float64(log_delta), 8192).steps[0].apart.some


def log_delta_of_two(sigma, q, epsilon, about):
    """log of int p(x) H(epsilon - l(x)) dx, H the closed form of one step, in 40 digits.

    In units of e^about, as quadrature stops at an absolute tolerance.
    """
    with mp.workdps(40):
        sigma, q, epsilon = (mp.mpf(float(v)) for v in (sigma, q, epsilon))

        def loss(x):
            return mp.log1p(q * mp.expm1((x - 0.5) / sigma**2))

        def one(at):  # E_P (1 - e^{at - L})_+
            rise = (mp.expm1(at) + q) / q
            if rise <= 0:
                return -mp.expm1(at)
            x = sigma**2 * mp.log(rise) + mp.mpf(1) / 2
            low, high = mp.ncdf(-x / sigma), mp.ncdf((1 - x) / sigma)
            return (1 - q) * low + q * high - mp.exp(at) * low

        def integrand(x):
            density = (1 - q) * mp.npdf(x, 0, sigma) + q * mp.npdf(x, 1, sigma)
            return density * one(epsilon - loss(x)) * mp.exp(-mp.mpf(float(about)))

        single = sigma**2 * mp.log(mp.expm1(epsilon) / q + 1) + mp.mpf(1) / 2
        ends = [*np.linspace(-40.0, 0.0, 9), *np.linspace(0.0, float(single), 25)[1:]]
        ends += [float(single) * (1.0 + 0.05 * k) for k in range(1, 20)]
        return float(about) + mp.log(mp.quad(integrand, [mp.mpf(e) for e in ends]))


@pytest.mark.parametrize("side", [-1, 1])
def test_two_steps_against_quadrature(side):
    """Breaks when what is not composed is not in the bound above, or is in the one below."""
    for (sigma, q, log_delta), (low, high) in zip(TWO, brackets()[0], strict=True):
        truth = log_delta_of_two(sigma, q, high if side > 0 else low, log_delta)
        assert side * (truth - log_delta) <= 1e-9
        assert 0.0 < low <= high < low * (1.0 + 2e-3)


def test_many_steps_have_narrow_brackets():
    """Breaks where rounding is more than delta: these were 3 to 25 % wide."""
    low, high = brackets()[1].T
    assert np.all((low > 0.0) & (low <= high) & (high < low * (1.0 + 1e-3)))


def test_delta_there_is_the_inverse_and_has_a_slope():
    """Breaks when delta at an epsilon is planned otherwise, or its derivatives are not its own."""
    sigma, q, steps, log_delta = MANY[:3].T
    low, high = brackets()[1][:3].T
    with jax.enable_x64(True):

        def value(sigma, q, steps, epsilon):
            return jaxdp.log_delta(run(sigma, q, steps), epsilon, direction="remove")

        values = jit(jax.vmap(value))
        found = np.asarray(values(sigma, q, steps, high))
        slopes = jit(jax.vmap(jax.grad(value, argnums=(0, 1, 2, 3))))(sigma, q, steps, high)
        steep = np.asarray(slopes[3])
        assert np.all(np.abs(found - log_delta) < 0.1 + 2.0 * np.abs(steep) * (high - low))
        for i, slope in enumerate(slopes):
            at = [sigma, q, steps, np.asarray(high)]
            step = 1e-4 * at[i]
            after = values(*[x + step * (k == i) for k, x in enumerate(at)])
            before = values(*[x - step * (k == i) for k, x in enumerate(at)])
            np.testing.assert_allclose(slope, (after - before) / (2.0 * step), rtol=0.02, atol=1e-4)
