"""Losses of many parameters under a privacy curve: optima that are known, and few looks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp
from calibrate import _approach, _lagrange
from calibrate._solve import excess_over_target
from jaxdp import _x64
from tests.programs import jit

EPSILON, DELTA = 1.0, 1e-5
PRICE = np.exp(np.random.default_rng(1).uniform(0.0, np.log(1e4), 500))


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def optimum(power):
    """min sum w sigma^k where sum sigma^-2 = mu^2: sigma ~ w^(-1 / (k + 2)), by Lagrange."""
    mu = float(jaxdp.epsilon_delta_to_gdp(EPSILON, DELTA))
    sigma = PRICE ** (-1.0 / (power + 2.0))
    sigma *= np.sqrt(np.sum(sigma**-2.0)) / mu
    return sigma, np.sum(PRICE * sigma**power)


def excess(x):
    run = jaxdp.Schedule(jaxdp.Gaussian(jnp.exp(x)))
    return excess_over_target(run, jnp.float64(EPSILON), jnp.float64(DELTA), "both")


def test_many_noises_are_the_known_optimum():
    """Breaks when the optimum of 500 prices is missed, or its user's check fails."""
    sigma, least = optimum(2)
    best = calibrate.minimize(
        lambda s: jnp.sum(PRICE * s**2),
        lambda s: jaxdp.Schedule(jaxdp.Gaussian(s)),
        epsilon=EPSILON,
        delta=DELTA,
        init=jnp.ones(500),
        vectors=True,
    )
    assert float(best.objective) == pytest.approx(least, rel=1e-9)
    np.testing.assert_allclose(best.value, sigma, rtol=1e-4)
    run = jaxdp.Schedule(jaxdp.Gaussian(best.value))
    assert float(jaxdp.epsilon(run, DELTA)) <= EPSILON
    assert float(jaxdp.delta(run, EPSILON)) <= float(best.delta) <= DELTA


KINDS = {
    # curve of x -> (F, slopes); most looks, excess of the loss
    "smooth": (lambda v, a: (v, a), 10, 1e-6),
    "in steps": (lambda v, a: (jnp.ceil(v * 2e5) / 2e5, a), 16, 3e-5),
    "unknown at first": (
        lambda v, a: (jnp.where(v > 3.0, jnp.inf, v), jnp.where(v > 3.0, 0.0, a)),
        12,
        1e-6,
    ),
    "no slope where a check fails": (
        lambda v, a: (
            jnp.where((v > -1e-6) & (v <= 0.0), 1e-6, v),
            jnp.where((v > -1e-6) & (v <= 0.0), 0.0, a),
        ),
        12,
        1e-5,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_dear_curve_is_looked_at_a_few_times(kind):
    """Breaks when rounds grow many, what is returned is not private, or not the optimum."""
    seen_as, most, off = KINDS[kind]
    looks = []

    def curve(x):
        value, slopes = seen_as(*jax.value_and_grad(excess)(x))
        jax.debug.callback(looks.append, value)
        return value, slopes

    dear = _approach.Curve(curve, False, lambda x, slopes: x, 3e-7)
    found = jit(
        lambda x: _approach.approach(lambda x: jnp.sum(PRICE * jnp.exp(2.0 * x)), dear, x, 200)
    )(jnp.zeros(500))
    x, value, _ = jax.block_until_ready(found)
    jax.effects_barrier()
    assert float(value) <= 0.0
    assert float(seen_as(*jax.value_and_grad(excess)(x))[0]) <= 0.0
    loss = float(np.sum(PRICE * np.exp(2.0 * np.asarray(x))))
    assert loss == pytest.approx(optimum(2)[1], rel=off)
    assert len(looks) <= most


def test_a_constraint_that_costs_nothing_is_left():
    """Breaks when a loss whose least point is private is driven to the boundary, or past it."""

    def evaluate(x):
        f, g = jax.value_and_grad(lambda x: jnp.sum((x - jnp.array([1.0, 2.0])) ** 2))(x)
        return _lagrange.Point(x, f, g, 2.0 - jnp.sum(x), -jnp.ones(2))

    ends = jnp.full(2, -jnp.inf), jnp.full(2, jnp.inf)
    found, multiplier = _lagrange.solve(evaluate, jnp.array([0.0, 0.5]), *ends, 1e-14, 1e-12, 100)
    np.testing.assert_allclose(found.x, [1.0, 2.0], atol=1e-6)
    assert float(multiplier) == 0.0


def test_a_lambda_in_a_loop_is_compiled_once():
    """Breaks when every loss and every mechanism has a program of its own."""
    misses = _x64._compiled.cache_info().misses
    found = []
    for weight, sensitivity in ((3.0, jnp.array(1.0)), (5.0, jnp.array(2.0))):
        price = jnp.array(weight)
        best = calibrate.minimize(
            lambda p: price * p["a"] ** 2 + p["b"] ** 2,  # noqa: B023
            lambda p: jaxdp.Composed([jaxdp.Gaussian(p["a"], sensitivity), jaxdp.Gaussian(p["b"])]),  # noqa: B023
            epsilon=EPSILON,
            delta=DELTA,
            init={"a": 5.0, "b": 5.0},
        )
        # the noise over its sensitivity costs its square more
        whole = weight * float(sensitivity) ** 2
        ratio = float(best.value["b"] / best.value["a"]) * float(sensitivity)
        found.append((ratio, whole**0.25))
    np.testing.assert_allclose(*zip(*found, strict=True), rtol=1e-4)
    assert _x64._compiled.cache_info().misses == misses + 1


@pytest.mark.slow
def test_many_targets_of_a_numerical_curve():
    """Breaks when a batch of them is not what each is alone: certified, and near the optimum."""

    def run(s):
        return jaxdp.Schedule(jaxdp.Laplace(s))

    def least(epsilon):
        best = calibrate.minimize(
            lambda s: jnp.sum(jnp.array([1.0, 4.0, 9.0, 16.0]) * s**2),
            run,
            epsilon=epsilon,
            delta=DELTA,
            init=jnp.ones(4),
            vectors=True,
        )
        return best.value, best.objective, best.delta

    targets = jnp.array([0.5, 1.0])
    values, losses, deltas = jax.vmap(least)(targets)
    for target, value, loss, delta in zip(targets, values, losses, deltas, strict=True):
        assert float(jaxdp.epsilon(run(value), DELTA)) <= float(target)
        assert float(delta) <= DELTA
        _, alone, _ = least(target)
        assert float(loss) == pytest.approx(float(alone), rel=1e-4)


@pytest.mark.parametrize("start", [1e-300, 1e-12, 1e-6, 1e30])
def test_starts_without_a_slope(start):
    """Breaks where the powers of e that are tried end before privacy begins."""
    found = calibrate.minimize(
        lambda p: p["a"] ** 2 + p["b"] ** 2,
        lambda p: jaxdp.Composed([jaxdp.Gaussian(p["a"]), jaxdp.Gaussian(p["b"])]),
        epsilon=EPSILON,
        delta=DELTA,
        init={"a": start, "b": start},
    )
    one = calibrate.solve(jaxdp.Gaussian, epsilon=EPSILON, delta=DELTA).value
    assert found.status == calibrate.Status.SOLVED  # 1/a^2 + 1/b^2 = 1/one^2
    np.testing.assert_allclose(found.objective, 4.0 * one**2, rtol=1e-8)


RENYI = {
    "Laplace": (jaxdp.Laplace, [1.0, 4.0, 100.0], 377.7, 1.01),
    "sampled": (
        lambda s: jaxdp.PoissonSampled(jaxdp.Gaussian(s), 0.02),
        [1.0, 3.0, 5.0],
        6.398,
        1.06,
    ),
}


@pytest.mark.parametrize("name", RENYI)
def test_moments_shape_noise(name):
    """Breaks where the search by Rényi divergences ends far from their optimum, or nowhere.

    (It was infeasible from 1, six times the least loss from 3. The least losses are those of the
    engine; of sampled steps equal noise has 6.524.)
    """
    step, weights, least, share = RENYI[name]
    found = calibrate.minimize(
        lambda s: jnp.sum(jnp.array(weights) * s**2),
        lambda s: jaxdp.Schedule(step(s)),
        epsilon=1.0,
        delta=1e-5,
        init=jnp.ones(3),
        vectors=True,
        method=jaxdp.Renyi(),
    )
    assert found.status == calibrate.Status.SOLVED
    assert least * (1.0 - 1e-3) <= float(found.objective) <= share * least
    assert jaxdp.epsilon(jaxdp.Schedule(step(found.value)), 1e-5) <= 1.0


def test_few_steps_still_end_at_a_private_point():
    """Breaks when a round of one step never comes to the boundary: "infeasible"."""

    def build(p):
        return jaxdp.Composed([jaxdp.Gaussian(p["a"]), jaxdp.Gaussian(p["b"])])

    def found(objective, **options):
        init = {"a": 5.0, "b": 5.0}
        return calibrate.minimize(objective, build, epsilon=1.0, delta=1e-5, init=init, **options)

    few = found(lambda p: 3.0 * p["a"] ** 2 + p["b"] ** 2, max_steps=1)
    assert float(few.objective) == pytest.approx(103.8825, rel=1e-4)
    endless = found(lambda p: -p["a"])  # no least loss: not "solved" by an infinite one
    assert endless.status == calibrate.Status.INFEASIBLE or np.isfinite(endless.value["a"])
    with pytest.raises(ValueError, match="objective must return a scalar"):
        found(lambda p: p["a"] * np.ones(2))
    with pytest.raises(ValueError, match="optimizer"):
        found(lambda p: p["a"], optimizer="adam")
