"""Rényi moments of sampled laws: never below the truth, nor above what always holds."""

import itertools

import jax
import numpy as np
import pytest

import jaxdp

# (sigma, q, order, remove, add): truths by 30-node quadrature of psi_s in extended precision on
# panels of 1/4 min(1, 2/mu), pruned at e^-75. q next to 0 and 1, two peaks far apart, KL.
GAUSSIAN = np.array(
    [
        (0.5, 0.999999999999, 7.3, 1.45999999999988409e01, 1.43558891700025129e01),
        (0.05, 0.5, 2.0, 3.98613705638880065e02, 6.93147180559945279e-01),
        (0.05, 0.5, 1.000000001, 9.93068579194404697e01, 6.93147180559945269e-01),
        (1.0, 1.0, 3.0, 1.49999999999999997e00, 1.49999999999999997e00),
        (1.0, 0.01, 1.0, 8.38122076508317863e-05, 8.18897691406257755e-05),
        (3.0, 1e-09, 1.0, 5.87595343637559586e-20, 5.87595343565800888e-20),
        (3.0, 1e-09, 1.000000001, 5.87595344225154978e-20, 5.87595344153396280e-20),
        (0.2, 1e-12, 64.0, 7.71930391247310592e02, 1.52242943006845285e-14),
        (0.11, 2e-08, 1000.0, 4.13045687707445418e04, 1.99887012945618667e-08),
        (10000.0, 0.9999999999999999, 7.3, 3.6499999999999989e-08, 3.6499999999999989e-08),
        (10000.0, 1e-12, 2.0, 1.00000000499999991e-32, 1.00000000499999991e-32),
        (0.3, 0.9999999, 12.5, 6.94444443357487920e01, 1.52701175490805555e01),
        (2.0, 0.3, 256.0, 3.07913057336963152e01, 2.75677776353763579e-01),
        (0.7, 1e-05, 1.5, 5.02212469636674799e-10, 5.0199602635486484e-10),
        (0.1, 0.999, 3.0, 1.49998499249499608e02, 6.90774713245508991e00),
        (40.0, 0.05, 5000.0, 4.63544471446900857e-03, 3.41981916329609264e-03),
    ]
)
# The same for Laplace noise of this scale: far more panels than e^-z needs, and sharp ends.
LAPLACE = np.array(
    [
        (1.0, 0.1, 2.0, 8.53645701948974141e-03, 7.81807403026684024e-03),
        (0.05, 0.5, 2.0, 1.82082405400471351e01, 6.93111522902764763e-01),
        (0.001, 0.3, 1.0, 2.99089135697945083e02, 3.56674943938732356e-01),
        (0.001, 1e-09, 64.0, 9.7893691559416396e02, 1.00000000049999998e-09),
        (2.0, 0.999, 10000.0, 4.99537097225168042e-01, 4.99282172416640682e-01),
        (30.0, 1e-12, 1.0, 5.49535343127661292e-28, 5.49535343127661090e-28),
        (0.08, 0.999999999999, 7.3, 1.24012388183182599e01, 1.24012385523453681e01),
        (1.0, 1.0, 1.5, 5.12883511294508592e-01, 5.12883511294508591e-01),
    ]
)


def _renyi(m, alpha, direction):
    with jax.enable_x64(True):
        return np.asarray(jaxdp.renyi(m, alpha, direction=direction))


@pytest.mark.parametrize(("kind", "table"), [(jaxdp.Gaussian, GAUSSIAN), (jaxdp.Laplace, LAPLACE)])
@pytest.mark.parametrize(("direction", "column"), [("remove", 3), ("add", 4)])
def test_sampled_divergences_are_certified(kind, table, direction, column):
    """Panels that miss a peak or a pole, or a cancelling 1 - q + q X, fall below by 1e-10 to 1e-4.

    And the convexity bound in place of a quadrature lies far above: 399 where D_inf is 0.69.
    """
    scale, q, alpha = table[:, :3].T
    got = _renyi(jaxdp.PoissonSampled(kind(scale), q), alpha, direction)
    np.testing.assert_array_less(table[:, column] * (1.0 - 2e-14), got)
    np.testing.assert_array_less(got, table[:, column] * (1.0 + 1e-12))


def test_sampled_divergences_rise_with_order_and_rate():
    """A switch between two ways of computing them shows as a step down."""
    sigma, q = (
        np.array([0.05, 0.4, 3.0])[:, None, None],
        np.array([1e-6, 0.3, 0.9999, 1.0])[:, None],
    )
    alpha = np.concatenate([[1.0, 1.0 + 1e-9], np.geomspace(1.001, 2e4, 14)])
    for direction in ("remove", "add"):
        got = _renyi(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), alpha, direction)
        assert np.all(got > 0.0)
        assert np.all(np.diff(got, axis=-1) >= -1e-12 * got[..., 1:])
        assert np.all(np.diff(got, axis=-2) >= -1e-12 * got[..., 1:, :])
        assert np.all(np.diff(got, axis=-3) <= 1e-12 * got[:-1])


def _revealing_law(epsilon, delta, count):
    """(X, Q-mass) of `count` runs of ApproximateDP, where Q has mass."""
    step = [(0.0, delta)]
    for sign in (-1.0, 1.0):
        step.append((np.exp(sign * epsilon), (1.0 - delta) / (1.0 + np.exp(sign * epsilon))))
    runs = list(itertools.product(step, repeat=count))
    return np.array([(np.prod([x for x, _ in run]), np.prod([w for _, w in run])) for run in runs])


@pytest.mark.parametrize(("count", "tight"), [(1, True), (2, False)])
def test_sampled_steps_that_reveal_absence(count, tight):
    """Sampled, an outcome with X = 0 has X = 1 - q and counts, at order 1 as at any other."""
    epsilon, delta, q = 0.5, 0.1, 0.5
    step = jaxdp.ApproximateDP(epsilon, delta)
    m = jaxdp.PoissonSampled(step if count == 1 else jaxdp.Repeated(step, count), q)
    x, weight = _revealing_law(epsilon, delta, count).T
    mixed = 1.0 - q + q * x
    alpha = np.array([1.0, 1.005, 2.0, 8.0, 300.0])
    truth = [-np.sum(weight * np.log(mixed))]
    truth += [np.log(np.sum(weight * mixed ** (1.0 - a))) / (a - 1.0) for a in alpha[1:]]
    got = _renyi(m, alpha, "add")
    assert np.all(got >= np.array(truth) * (1.0 - 1e-12))
    assert np.all(got <= -np.log1p(-q) * (1.0 + 1e-12))
    if tight:
        np.testing.assert_allclose(got, truth, rtol=1e-11)


def test_sampled_compositions_stay_below_every_bound():
    """A sampled composition has a convexity bound alone, which neither D_inf nor sampling obeys."""
    inner = jaxdp.Repeated(jaxdp.Laplace(np.array([0.1, 1.0, 10.0])[:, None]), 3)
    alpha = np.array([1.0, 2.0, 64.0])
    for direction, largest in (("add", np.log(2.0)), ("remove", np.inf)):
        got = _renyi(jaxdp.PoissonSampled(inner, 0.5), alpha, direction)
        whole = _renyi(inner, alpha, direction)
        assert np.all(got <= np.minimum(whole, largest) * (1.0 + 1e-12))


def test_small_rates_of_finite_pairs():
    """log(M/Q) as a difference of logarithms has lost all its digits at q = 1e-12."""
    p, w, q = np.array([0.6, 0.3, 0.1]), np.array([0.3, 0.3, 0.4]), 1e-12
    m = jaxdp.PoissonSampled(jaxdp.FinitePair(p, w), q)
    chi = np.sum((p - w) ** 2 / w)
    np.testing.assert_allclose(_renyi(m, 2.0, "both"), q * q * chi, rtol=1e-9)
