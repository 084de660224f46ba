"""What two laws share caps delta: compositions where a lattice sees little or nothing."""

import functools

import jax
import numpy as np
import pytest
import scipy.special

import jaxdp
from tests.programs import jit


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


N = 8


@pytest.mark.parametrize("direction", ["remove", pytest.param("add", marks=pytest.mark.slow)])
def test_curves_of_many_scales_hold_the_exact_ones(direction):
    """Breaks when the cap forgets failures, or rounds to the wrong side."""
    rng = np.random.default_rng(5)
    responses = np.exp(rng.uniform(-25.0, 1.0, (2, N)))
    failure = np.exp(rng.uniform(-30.0, -1.0, N))
    p = np.exp(rng.uniform(-30.0, 0.0, (N, 3)))
    q = p * np.exp(np.exp(rng.uniform(-25.0, 1.0, (N, 1))) * rng.uniform(-1.0, 1.0, (N, 3)))
    p, q = p / p.sum(axis=1, keepdims=True), q / q.sum(axis=1, keepdims=True)
    epsilons = np.array([-0.7, -1e-6, 0.0, 1e-9, 1e-3, 0.3])
    steps = [
        jaxdp.RandomizedResponse(responses[0][:, None]),
        jaxdp.ApproximateDP(responses[1][:, None], failure[:, None]),
        jaxdp.FinitePair(p[:, None], q[:, None]),
    ]
    low, high = jaxdp.delta_bounds(
        jaxdp.Composed(steps), epsilons, direction=direction, method=jaxdp.Numerical()
    )
    for i in range(N):
        up, kept = 1.0 / (1.0 + np.exp(-responses[:, i])), 1.0 - failure[i]
        one = np.array([up[0], 1.0 - up[0]])
        two = np.array([failure[i], 0.0, up[1] * kept, (1.0 - up[1]) * kept])
        laws = [(one, one[::-1]), (two, two[[1, 0, 3, 2]]), (p[i], q[i])]
        with_record, without = (
            functools.reduce(np.multiply.outer, side).ravel() for side in zip(*laws, strict=True)
        )
        if direction == "add":
            with_record, without = without, with_record
        gap = with_record - np.exp(epsilons)[:, None] * without
        truth = np.where(gap > 0.0, gap, 0.0).sum(axis=1)
        room = 1e-14  # of the truth here: sums of numbers up to 1
        assert np.all(np.asarray(low)[i] <= truth * (1.0 + 1e-9) + room)
        assert np.all(np.asarray(high)[i] >= truth * (1.0 - 1e-9) - room)


def test_steps_of_two_scales_are_not_read_off_the_coarser_one():
    """Breaks where the advantage is that of the largest loss: .91 for .0074."""
    q, epsilon = 1.93e-5, 0.0147
    sampled = jaxdp.PoissonSampled(jaxdp.Gaussian(0.0658, 65.13), q)
    run = jaxdp.Composed([sampled, jaxdp.RandomizedResponse(epsilon)])
    least = np.tanh(0.5 * epsilon)
    assert least <= float(jaxdp.advantage(run)) <= (least + q) * (1.0 + 1e-9)


def test_targets_beyond_all_that_differs_cost_nothing():
    """Breaks where epsilon is the largest loss although delta covers it: 4.5 and 1.58 for 0."""
    rare = jaxdp.FinitePair([1.7e-13, 1.0 - 1.7e-13], [1.2e-25, 1.0])
    assert float(jaxdp.epsilon(jaxdp.RandomAllocation(rare, 25), 1e-10)) == 0.0
    coarse = jaxdp.FinitePair([0.794, 0.206], [8e-21, 1.0])
    # What is left of .7: log(.794 / 8e-21) + log(1 - .7 / .794), and log(.3 / .206).
    for direction, least in (("remove", 43.9103), ("add", 0.375906)):
        ask = {"direction": direction, "method": jaxdp.Numerical()}
        assert float(jaxdp.epsilon(coarse, 0.9, **ask)) == 0.0
        assert least < float(jaxdp.epsilon(coarse, 0.7, **ask)) < 1.001 * least


def test_the_cap_has_the_slope_of_what_it_is_made_of():
    """On a lattice far too coarse for the narrow step, which the cap then answers for."""

    def delta(x, size):
        steps = [jaxdp.Laplace(1.0, x[0]), jaxdp.PoissonSampled(jaxdp.Gaussian(0.05, 60.0), x[1])]
        chosen = {"direction": "remove", "method": jaxdp.Numerical(size)}
        return jaxdp.log_delta(jaxdp.Composed(steps), 0.0, **chosen)

    at = np.array([0.01, 2e-5])
    value, slope = jit(jax.value_and_grad(lambda x: delta(x, 512)))(at)
    total = 1.0 - np.exp(-0.5 * at[0]) * (1.0 - at[1])
    np.testing.assert_allclose(value, np.log(total), rtol=1e-9)
    np.testing.assert_allclose(slope, np.array([0.5, 1.0]) / total, rtol=1e-2)
    # On a finer one the law itself is nearer: the far shift, or else the narrow step's own curve.
    alone = 1.0 - np.exp(-0.5 * (at[0] + np.log1p(-at[1])))
    truth = np.log(at[1] + (1.0 - at[1]) * alone)
    assert truth <= delta(at, 8192) <= truth + 1e-4


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_samples_share_what_their_steps_do(direction):
    """A thousandth of the runs has the record, and most of those do not show it: epsilon was inf.

    Breaks where a sample is taken to tell all who are on it.
    """
    sigma, q, num_steps = 100.0, 1e-9, 1e6
    step = jaxdp.Gaussian(sigma)
    run = jaxdp.Repeated(jaxdp.PoissonSampled(step, q), num_steps)
    told = scipy.special.erf(0.5 / sigma / np.sqrt(2.0))
    ask = {"direction": direction, "method": jaxdp.Numerical()}
    delta = float(jaxdp.delta(run, 0.0, **ask))
    assert delta <= num_steps * q * told * (1.0 + 1e-6)
    # (of one run it is the truth, from which 1e-9 on the wrong side is too far)
    alone = float(jaxdp.delta(jaxdp.Repeated(jaxdp.PoissonSampled(step, q), 1.0), 0.0, **ask))
    assert q * told * (1.0 - 1e-11) <= alone <= q * told * (1.0 + 1e-9)
    assert float(jaxdp.epsilon(run, 1e-5, **ask)) == 0.0
    one = jaxdp.PoissonSampled(step, q)
    assert float(jaxdp.delta_bounds(one, 0.0, direction=direction)[0]) <= delta
