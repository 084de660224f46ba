"""Special functions in log space against mpmath, to |z| = 1e4, and their derivatives."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import truth

from jaxdp import _special, _special_double
from tests import programs


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


Z = np.concatenate([-np.geomspace(1e4, 1e-3, 60), [0.0], np.geomspace(1e-3, 30, 40)])


def log_phi(z):
    """log Phi(z); -expm1 of the other tail keeps the digits at large z."""
    with mp.workdps(60):
        z = truth.number(z)
        return mp.log(mp.ncdf(z)) if z < 0 else mp.log1p(-mp.ncdf(-z))


def slopes(function, x, rtol=1e-12):
    """The derivative of an elementwise function, by forward and by reverse mode."""
    forward = jax.jvp(function, (x,), (jnp.ones_like(x),))[1]
    reverse = jax.grad(lambda v: function(v).sum())(x)
    np.testing.assert_allclose(forward, reverse, rtol=rtol)
    return np.asarray(forward)


def test_log_ndtr():
    """Breaks when either tail of log Phi loses relative accuracy."""
    truth.assert_exact(_special.log_ndtr(Z), [log_phi(z) for z in Z], Z, rtol=1e-13)


def test_log_ndtr_gradient():
    """Breaks when the hazard phi/Phi overflows, cancels or is inexact in the tails."""
    with mp.workdps(60):
        truths = [mp.npdf(truth.number(z)) / mp.ncdf(truth.number(z)) for z in Z]
    keep = [k for k, t in enumerate(truths) if t > mp.mpf(10) ** -290]
    got = slopes(_special.log_ndtr, jnp.asarray(Z))
    assert np.isfinite(got).all()
    truth.assert_exact(got[keep], [truths[k] for k in keep], Z[keep], rtol=1e-12)


def test_log_ndtr_interval():
    """Breaks when a short interval or one far in a tail is formed by subtracting two tails."""
    rng = np.random.default_rng(1)
    low = np.concatenate([rng.uniform(-40, 40, 100), rng.choice([-1, 1], 40) * 1e3])
    high = low + 10 ** rng.uniform(-8, 2, low.size)
    with mp.workdps(60):
        truths = []
        for a, b in zip(low, high, strict=True):
            a, b = (truth.number(v) for v in ((a, b) if a < 0 else (-b, -a)))
            with mp.extradps(30):
                truths.append(mp.log(mp.ncdf(b) - mp.ncdf(a)))
    truth.assert_exact(_special.log_ndtr_interval(low, high), truths, low, high, rtol=1e-12)


def test_log_ndtr_interval_ends():
    """Breaks when an infinite end or an empty interval gives nan."""
    low, high = jnp.array([-np.inf, 1.0, -np.inf, 2.0]), jnp.array([1.0, np.inf, np.inf, 2.0])
    got = _special.log_ndtr_interval(low, high)
    want = [float(log_phi(1.0)), float(log_phi(-1.0)), 0.0, -np.inf]
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-15)


def test_log_ndtri():
    """Breaks when the inverse of log Phi is not one, from log p = -5e7 to p within 1e-15 of 1."""
    p = np.concatenate([-np.geomspace(5e7, 1e-15, 120)])
    z = np.asarray(_special.log_ndtri(p))
    back = np.array([float(log_phi(v)) for v in z])
    slope = np.array([float(mp.npdf(float(v)) / mp.ncdf(float(v))) for v in z])
    # a few ulps of z, carried to log p
    assert np.all(np.abs(back - p) <= 1e-13 * np.abs(p) + 2e-15 * np.abs(z) * slope)
    np.testing.assert_array_equal(_special.log_ndtri(np.array([-np.inf, 0.0])), [-np.inf, np.inf])


def test_log_ndtri_gradient():
    """Breaks when the inverse's derivative is not the reciprocal of the hazard."""
    p = -np.geomspace(1e6, 1e-6, 30)
    z = _special.log_ndtri(p)
    product = slopes(_special.log_ndtri, jnp.asarray(p)) * slopes(_special.log_ndtr, z)
    np.testing.assert_allclose(product, 1.0, rtol=1e-11)


def test_log1mexp():
    """Breaks when 1 - e^x cancels near 0 or rounds to 1 far from it."""
    x = -np.geomspace(1e-300, 700, 80)
    with mp.workdps(400):
        truths = [mp.log(-mp.expm1(truth.number(v))) for v in x]
    truth.assert_exact(_special.log1mexp(x), truths, x, rtol=1e-14)
    assert float(_special.log1mexp(0.0)) == -np.inf
    with mp.workdps(60):
        truths = [-1 / mp.expm1(-truth.number(v)) for v in x[20:]]
    truth.assert_exact(slopes(_special.log1mexp, jnp.asarray(x))[20:], truths, x[20:], rtol=1e-13)


def test_log_sub_exp():
    """Breaks when e^a overflows or e^a - e^b cancels."""
    a = np.array([1000.0, 0.0, -2000.0, 5.0, 1e-9])
    b = a - np.array([1e-9, 1.0, 1e-12, 800.0, 1e-9])
    with mp.workdps(60):
        truths = [
            truth.number(p) + mp.log(-mp.expm1(truth.number(q) - truth.number(p)))
            for p, q in zip(a, b, strict=True)
        ]
    truth.assert_exact(_special.log_sub_exp(a, b), truths, a, b, rtol=1e-13)
    got = _special.log_sub_exp(np.array([3.0, -np.inf, 0.0]), np.array([3.0, -np.inf, 1.0]))
    np.testing.assert_array_equal(got, [-np.inf, -np.inf, np.nan])


def test_log_expm1():
    """Breaks when e^x overflows or e^x - 1 cancels."""
    x = np.geomspace(1e-20, 1e5, 60)
    with mp.workdps(60):
        truths = [mp.log(mp.expm1(truth.number(v))) for v in x]
    truth.assert_exact(_special.log_expm1(x), truths, x, rtol=1e-13)


@pytest.mark.parametrize(
    ("function", "exact"),
    [(_special.relative_expm1, mp.expm1), (_special.relative_log1p, mp.log1p)],
)
def test_relative_functions(function, exact):
    """Breaks when f(x)/x is 0/0 at 0, loses digits near it, or has a nan gradient there."""
    x = np.concatenate([-np.geomspace(0.9, 1e-18, 30), np.geomspace(1e-18, 20, 30)])
    with mp.workdps(60):
        truths = [exact(truth.number(v)) / truth.number(v) for v in x]
    truth.assert_exact(function(x), truths, x, rtol=1e-14)
    assert float(function(0.0)) == 1.0
    with mp.workdps(60):
        truths = [mp.diff(lambda u: exact(u) / u, truth.number(v)) for v in x[::6]]
    got = slopes(function, jnp.append(jnp.asarray(x[::6]), 0.0), rtol=1e-9)
    truth.assert_exact(got[:-1], truths, x[::6], rtol=1e-9)
    assert abs(got[-1]) == pytest.approx(0.5, rel=1e-9)


def test_logsumexp():
    """Breaks when -inf entries or large values give nan in the value or the gradient."""
    x = jnp.array([[1000.0, 999.0, -jnp.inf], [-jnp.inf, -jnp.inf, -jnp.inf]])
    got = _special.logsumexp(x, axis=-1)
    np.testing.assert_allclose(got, [1000 + np.log1p(np.exp(-1)), -np.inf], rtol=1e-15)
    gradient = jax.grad(lambda v: _special.logsumexp(v, axis=-1)[0])(x)
    np.testing.assert_allclose(gradient[0], [0.7310585786300049, 0.2689414213699951, 0], 1e-12)
    assert np.isfinite(gradient).all()


@pytest.mark.parametrize("less_one", [0.0, 1.0])
def test_exponentials_of_twice_the_digits(less_one):
    """Breaks when halves of a number are told by operations that XLA may fuse, or a digit is lost.

    Compiled, operation by operation, and by NumPy.
    """
    rng = np.random.default_rng(7)
    head = np.concatenate([-(10.0 ** rng.uniform(-12, 2.8, 200)), 10.0 ** rng.uniform(-12, 0, 50)])
    rest = 1e-17 * head * rng.uniform(-1.0, 1.0, head.size)
    exponential = _special_double.exponential
    for run in (jax.jit(exponential), exponential, programs.jit(exponential)):
        found = run((head, rest), less_one)
        with mp.workdps(60):
            for x, y, a, b in zip(head, rest, *map(np.asarray, found), strict=True):
                exact = mp.exp(mp.mpf(x) + mp.mpf(y)) - less_one
                if abs(exact) > 1e-290:
                    assert abs(mp.mpf(float(a)) + mp.mpf(float(b)) - exact) < 1e-30 * abs(exact)


def test_sums_that_leave_next_to_nothing():
    """Breaks when what additions round is not added up."""
    values = np.array([1.0, 1e-17, -1.0, 3e-25, 1e-17, -2e-17])
    with mp.workdps(60):
        exact = float(mp.fsum(mp.mpf(x) for x in values))
    assert abs(_special_double.total(values) - exact) < 1e-32
