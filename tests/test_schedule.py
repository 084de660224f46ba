"""Runs whose steps have their own parameters, and the noise learned for them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import calibrate
import jaxdp
from jaxdp import _x64
from tests.programs import jit

SIGMA = np.linspace(0.8, 2.0, 40)
RATE = np.linspace(0.05, 0.01, 40)


def test_a_schedule_is_the_composition_of_its_steps():
    with jax.enable_x64(True):
        run = jaxdp.Schedule(jaxdp.PoissonSampled(jaxdp.Gaussian(SIGMA), RATE))
        orders = np.asarray([1.0, 1.5, 8.0, 32.0])
        each = jaxdp.renyi(
            jaxdp.PoissonSampled(jaxdp.Gaussian(SIGMA[:, None]), RATE[:, None]),
            orders,
            direction="add",
        )
        np.testing.assert_allclose(
            jaxdp.renyi(run, orders, direction="add"), np.asarray(each).sum(axis=0), rtol=1e-12
        )
        same = jaxdp.Schedule(
            jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(np.ones(3)), 0.02), 100)
        )
        one = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.02), 300)
        method = jaxdp.Renyi(orders=(2.0, 4.0, 8.0, 16.0))
        assert float(jaxdp.epsilon(same, 1e-5, method=method)) == pytest.approx(
            float(jaxdp.epsilon(one, 1e-5, method=method)), rel=1e-12
        )


def test_schedules_of_gaussians_are_exact_batched_and_differentiable():
    with jax.enable_x64(True):
        batch = np.stack([SIGMA, 2 * SIGMA]) * 5.0
        run = jaxdp.Schedule(jaxdp.Gaussian(batch))
        exact = jaxdp.gdp_to_delta(np.sqrt((1 / batch**2).sum(axis=1)), 1.0)
        np.testing.assert_allclose(jaxdp.delta(run, 1.0), exact, rtol=1e-11)
        found = jit(lambda s: jaxdp.delta(jaxdp.Schedule(jaxdp.Gaussian(s)), 1.0))(batch)
        np.testing.assert_allclose(found, exact, rtol=1e-11)

        def spent(sigma):
            m = jaxdp.Composed([jaxdp.Schedule(jaxdp.Gaussian(sigma)), jaxdp.Gaussian(20.0)])
            return jaxdp.epsilon(m, 1e-5)

        slope = np.asarray(jax.grad(spent)(batch[0]))
        # epsilon depends on sum 1/sigma^2 alone
        np.testing.assert_allclose(slope * batch[0] ** 3, slope[0] * batch[0, 0] ** 3, rtol=1e-9)
        assert slope[0] < 0
    tail = jaxdp.Schedule(jaxdp.ApproximateDP(0.1, np.full(5, 1e-3)))
    assert float(jaxdp.delta(tail, 50.0)) == pytest.approx(1 - (1 - 1e-3) ** 5, rel=1e-5)


def test_slopes_of_a_batch_in_what_all_steps_share():
    """Breaks when the axis of a batch is taken for that of the steps, and summed over."""
    delta = np.array([1e-3, 1e-4, 1e-5])

    def epsilon(sigma):
        run = jaxdp.Schedule(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), RATE[:3]))
        return jaxdp.epsilon(run, delta, method=jaxdp.Renyi(orders=(2.0, 8.0, 32.0)))

    with jax.enable_x64(True):
        up, down = epsilon(1.0 + 1e-5), epsilon(1.0 - 1e-5)
        for derivative in (jax.jacfwd, jax.jacrev):
            np.testing.assert_allclose(derivative(epsilon)(1.0), (up - down) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize(
    "m", [jaxdp.Gaussian(1.0), jaxdp.PoissonSampled(jaxdp.Gaussian(np.ones(3)), np.full(4, 0.1))]
)
def test_a_schedule_needs_one_number_of_steps(m):
    with pytest.raises(ValueError, match="mechanism must have"):
        jaxdp.Schedule(m)


def test_learned_gaussian_noise_is_the_known_optimum():
    """min sum w sigma^2 with sum 1/sigma^2 = mu^2: sigma^2 = sum(sqrt w) / (mu^2 sqrt w)."""
    weights = np.geomspace(1.0, 1e4, 2000)
    with jax.enable_x64(True):
        found = calibrate.schedule(
            lambda sigma, q, w: jnp.sum(w * sigma**2),
            epsilon=2.0,
            delta=1e-6,
            sigma=np.ones(2000),
            args=(weights,),
        )
        mu = float(jaxdp.epsilon_delta_to_gdp(2.0, 1e-6))
        reached = float(jaxdp.delta(jaxdp.Schedule(jaxdp.Gaussian(np.asarray(found.sigma))), 2.0))
    assert int(found.status) == calibrate.Status.SOLVED
    least = np.sqrt(weights).sum() ** 2 / mu**2
    constant = 2000 * weights.sum() / mu**2
    assert least <= float(found.objective) <= least * (1 + 1e-6)
    assert constant / least > 2.3
    np.testing.assert_allclose(
        found.sigma, np.sqrt(np.sqrt(weights).sum() / np.sqrt(weights)) / mu, rtol=1e-3
    )
    assert reached <= 1e-6


def test_another_loss_of_the_same_form_is_no_new_program():
    """Breaks when numbers and arrays of a loss, or of a run, are part of its program."""
    found = []
    with jax.enable_x64(True):
        misses = _x64._compiled.cache_info().misses
        for scale, weights in ((2.0, np.array([1.0, 16.0])), (3.0, np.array([16.0, 1.0]))):
            best = calibrate.schedule(
                lambda sigma, q: jnp.sum(scale * weights * sigma**2),  # noqa: B023
                epsilon=1.0,
                delta=1e-5,
                sigma=np.ones(2),
            )
            found.append(float(best.sigma[0] / best.sigma[1]))
    np.testing.assert_allclose(found, [2.0, 0.5], rtol=1e-4)
    assert _x64._compiled.cache_info().misses == misses + 1


def _final_error(sigma, q, decay):
    """Noisy SGD on a strongly convex quadratic: noise of step t shrinks by decay a step after."""
    steps = sigma.shape[0]
    remaining = decay ** (2.0 * (steps - 1 - jnp.arange(steps)))
    return jnp.sum(remaining * (sigma**2 + 0.05 / q))


@pytest.mark.slow
def test_learned_dp_sgd_beats_the_best_constant_noise():
    steps, rate, decay = 30, 0.05, 0.85
    with jax.enable_x64(True):
        common = {"epsilon": 2.0, "delta": 1e-5, "args": (decay,), "max_steps": 40}
        learned = calibrate.schedule(
            _final_error, sigma=np.ones(steps), sampling_probability=rate, **common
        )
        level = calibrate.solve(
            lambda s: jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(s), rate), steps),
            epsilon=2.0,
            delta=1e-5,
        )
        constant = _final_error(jnp.full(steps, level.value), jnp.full(steps, rate), decay)
        both = calibrate.schedule(
            _final_error,
            sigma=np.asarray(learned.sigma),
            sampling_probability=rate,
            learn_sampling=True,
            **common,
        )
    assert float(learned.objective) < 0.93 * float(constant)
    assert float(both.objective) < float(learned.objective)
    assert np.ptp(np.asarray(both.sampling_probability)) > 0.01
    for found in (learned, both):
        assert int(found.status) == calibrate.Status.SOLVED
        assert 0.999e-5 < float(found.delta) <= 1e-5
        with jax.enable_x64(True):
            m = jaxdp.PoissonSampled(
                jaxdp.Gaussian(np.asarray(found.sigma)), np.asarray(found.sampling_probability)
            )
            low, high = map(float, jaxdp.epsilon_bounds(jaxdp.Schedule(m), 1e-5))
        assert 1.997 < low <= 2.0  # the target is not missed, and nearly used up
        assert high <= 2.002
    # steps that matter less get more noise
    noise = np.asarray(learned.sigma)
    assert noise[:5].min() > 1.5 * noise[-5:].max()


def test_float32_callers_get_more_noise_and_optimisers_are_free():
    found = calibrate.schedule(
        lambda sigma, q: jnp.sum(sigma * jnp.arange(1.0, 5.0)),
        epsilon=1.0,
        delta=1e-5,
        sigma=[1.0, 1.0, 1.0, 1.0],
        optimizer=optax.adam(0.05),
    )
    assert found.sigma.dtype == jnp.float32
    with jax.enable_x64(True):
        reached = jaxdp.delta(jaxdp.Schedule(jaxdp.Gaussian(np.asarray(found.sigma, float))), 1.0)
    assert 0.99e-5 < float(reached) <= 1e-5


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"epsilon": 0.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"sigma": 1.0}, "shape"),
        ({"sigma": [1.0, -1.0]}, "sigma"),
        ({"sampling_probability": [0.1, 0.1, 0.1]}, "sampling_probability"),
        ({"learn_sampling": True}, "to be learned"),
    ],
)
def test_bad_arguments_are_named(options, problem):
    with pytest.raises(ValueError, match=problem):
        calibrate.schedule(
            lambda sigma, q: 0.0, **{"epsilon": 1.0, "delta": 0.1, "sigma": [1.0, 1.0]} | options
        )
