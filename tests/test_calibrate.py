"""Calibration: the boundary on the safe side, gradients, batches, infeasible targets."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import optax
import pytest
import truth

import calibrate
import jaxdp
from tests.programs import jit


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def scaled_laplace(value, sensitivity):
    return jaxdp.Laplace(value, sensitivity)


def test_oracle_sigma():
    """Breaks when sigma is below the smallest private one or above it by 1e-9."""
    ids, p, values = truth.oracle("gaussian/sigma")
    got = calibrate.solve(jaxdp.Gaussian, epsilon=p["eps"], delta=p["delta"])
    errors = truth.excess(got.value, values)
    assert errors.min() >= 0, truth.worst(errors, ids)
    assert errors.max() <= 1e-9, truth.worst(errors, ids)
    np.testing.assert_array_equal(got.status, 0)


def test_gaussian_sigma_is_safe_and_tight():
    """Breaks at one of 200 targets whose sigma is unsafe, or loose by 1e-9."""
    rng = np.random.default_rng(1)
    eps, delta = 10 ** rng.uniform(-3, 1.7, 200), 10 ** rng.uniform(-200, -0.5, 200)
    got = np.asarray(calibrate.solve(jaxdp.Gaussian, epsilon=eps, delta=delta).value)
    for e, d, sigma in zip(eps, delta, got, strict=True):
        assert truth.gaussian_ratio(sigma, 1.0, e) <= truth.number(d), (e, d, sigma)
        assert truth.gaussian_ratio(sigma * (1 - 1e-9), 1.0, e) > truth.number(d), (e, d, sigma)


def test_epsilon_zero():
    """Breaks when only epsilon > 0 can be asked for: delta bounds the total variation."""
    got = calibrate.solve(jaxdp.Gaussian, epsilon=0.0, delta=0.1)
    sigma = float(got.value)
    assert truth.gaussian_ratio(sigma, 1.0, 0.0) <= mp.mpf(0.1)
    assert truth.gaussian_ratio(sigma * (1 - 1e-9), 1.0, 0.0) > mp.mpf(0.1)


@pytest.mark.parametrize(
    ("build", "rises"),
    [
        (jaxdp.Laplace, True),
        (jaxdp.Brownian, True),
        (lambda v: jaxdp.OrnsteinUhlenbeck(v, 1.0, 1.0), True),
        pytest.param(lambda v: jaxdp.Repeated(jaxdp.Laplace(v), 20), True, marks=pytest.mark.slow),
        (lambda v: jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(v), 0.01), 1000), True),
        (lambda v: jaxdp.Gaussian(10.0, v), False),
        (lambda v: jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), v), False),
        (lambda v: jaxdp.Repeated(jaxdp.Gaussian(20.0), v), False),
        (lambda v: jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Laplace(1.0), 0.01), v), False),
        (jaxdp.RandomizedResponse, False),
    ],
    ids=[
        "laplace",
        "brownian",
        "ou_theta",
        "repeated_laplace",
        "dp_sgd",
        "sensitivity",
        "probability",
        "count",
        "sampled_count",
        "response",
    ],
)
def test_boundary_from_the_safe_side(build, rises):
    """Breaks when privacy is assumed to rise with the parameter, or the boundary is missed."""
    eps, delta = 0.7, 1e-5
    got = calibrate.solve(build, epsilon=eps, delta=delta)
    assert int(got.status) == calibrate.Status.SOLVED
    composed = isinstance(build(1.0), jaxdp.Repeated) and not isinstance(
        build(1.0).mechanism, jaxdp.Gaussian
    )
    step = 1e-4 if composed else 2e-9  # numerical curves have a margin
    beyond = 1 - step if rises else 1 + step
    at, outside = np.asarray(jaxdp.delta(build(got.value * np.array([1.0, beyond])), eps))
    assert at <= delta < outside
    np.testing.assert_allclose(got.delta, at, rtol=1e-3 if composed else 1e-12)
    assert float(got.epsilon) == eps


@pytest.mark.parametrize(
    ("build", "epsilon", "delta", "least", "most"),
    [
        (jaxdp.DiscreteGaussian, [5.0, 5.0, 8.0], [1e-5, 1e-3, 1e-5], 0.4, 0.9),
        (lambda d: jaxdp.Repeated(jaxdp.ApproximateDP(0.25, d), 2), [1.0], [1e-5], 4.9e-6, 5.1e-6),
    ],
    ids=["curve in waves", "delta alone"],
)
def test_which_way_privacy_rises(build, epsilon, delta, least, most):
    """Breaks when the slope at one point decides it, or an estimate has no loss that is infinite.

    Delta of a discrete Gaussian at 5 rises with sigma at sigma = 1, and noise of 5e11 came back;
    of two guarantees below epsilon all of delta is that of failing: 1e-15 came back for 5e-6.
    """
    with jax.enable_x64(True):
        solution = calibrate.solve(build, epsilon=epsilon, delta=delta)
        assert np.all(solution.status == 0)
        value = np.asarray(solution.value)
        assert np.all((value >= least) & (value <= most))
        found = [jaxdp.epsilon(build(v), d) for v, d in zip(value, delta, strict=True)]
    assert np.all(np.asarray(found) <= epsilon)
    assert np.all(np.asarray(solution.delta) >= 0.999 * np.array(delta))


@pytest.mark.parametrize(
    ("of", "epsilon", "delta", "bracket"),
    [
        (lambda m: m, [2.01, 5.0, 4.0], [1e-6, 1e-6, 0.0], None),
        (lambda m: m, [2.01, 5.0, 4.0], [1e-6, 1e-6, 0.0], (1e-6, 1.0)),
        (lambda m: jaxdp.Repeated(m, 2), [5.0], [1e-6], (1e-6, 1.0)),
        (lambda m: jaxdp.Composed([m, jaxdp.Gaussian(5.0)]), [6.0], [1e-5], None),
    ],
    ids=["closed form", "bracketed", "composed", "beside another"],
)
def test_a_probability_that_any_will_do_for_is_one(of, epsilon, delta, bracket):
    """Breaks when targets met by all samples end at the most private one, or above 1 (delta 0)."""

    def build(q):
        return of(jaxdp.PoissonSampled(jaxdp.Laplace(0.5), q))

    with jax.enable_x64(True):
        value = calibrate.solve(build, epsilon=epsilon, delta=delta, bracket=bracket).value
    assert np.all((np.asarray(value) > 1.0 - 2e-6) & (np.asarray(value) <= 1.0))


def test_pure_targets():
    """Breaks when delta = 0 is not read as pure DP."""
    got = calibrate.solve(jaxdp.Laplace, epsilon=np.array([0.5, 3.0]), delta=0.0)
    np.testing.assert_allclose(got.value, [2.0, 1 / 3], rtol=1e-9)
    assert np.all(np.asarray(jaxdp.epsilon(jaxdp.Laplace(got.value), 0.0)) <= [0.5, 3.0])


def test_direction():
    """Breaks when the direction does not reach the queries."""
    solved = {
        d: calibrate.solve(
            lambda q: jaxdp.PoissonSampled(jaxdp.Laplace(1.0), q),
            epsilon=0.1,
            delta=1e-3,
            direction=d,
        ).value
        for d in ("add", "remove", "both")
    }
    least = min(float(solved["add"]), float(solved["remove"]))
    assert float(solved["both"]) == pytest.approx(least, rel=2e-9)
    assert float(solved["add"]) != float(solved["remove"])


def test_arguments_broadcast_with_targets():
    """Breaks when args are closed over instead of batched."""
    sensitivity = np.array([[1.0], [2.0], [5.0]])
    eps = np.array([0.5, 1.0])
    got = calibrate.solve(scaled_laplace, epsilon=eps, delta=1e-6, args=(sensitivity,))
    assert got.value.shape == got.status.shape == (3, 2)
    np.testing.assert_allclose(got.value / sensitivity, np.tile(got.value[:1], (3, 1)), rtol=2e-9)


def test_vmap_and_jit():
    """Breaks when a batch under vmap and jit differs from the same call on arrays."""
    eps, delta = jnp.array([0.5, 1.0, 4.0]), jnp.array([1e-5, 1e-8, 1e-3])
    sensitivity = jnp.array([1.0, 2.0, 0.1])

    def solve(e, d, s):
        return calibrate.solve(scaled_laplace, epsilon=e, delta=d, args=(s,))

    want = solve(eps, delta, sensitivity)
    got = jit(jax.vmap(solve))(eps, delta, sensitivity)
    np.testing.assert_allclose(got.value, want.value, rtol=1e-9)
    np.testing.assert_array_equal(got.status, want.status)


GRADIENTS = (
    ("gaussian", lambda v, s: jaxdp.Gaussian(v, s), (1.0, 1e-5, 2.0)),
    ("laplace", scaled_laplace, (0.4, 0.05, 1.5)),
    (
        "probability",
        lambda v, s: jaxdp.PoissonSampled(jaxdp.Gaussian(s), v),
        (0.3, 1e-4, 1.2),
    ),
    ("count", lambda v, s: jaxdp.Repeated(jaxdp.Gaussian(s), v), (2.0, 1e-5, 20.0)),
)
NUMERICAL = lambda v, s: jaxdp.Repeated(jaxdp.Laplace(s), v), (2.0, 1e-5, 20.0)


@pytest.mark.parametrize(
    ("build", "at"),
    [
        *(pytest.param(*g[1:], id=g[0]) for g in GRADIENTS),
        pytest.param(*NUMERICAL, id="numerical", marks=pytest.mark.slow),
    ],
)
def test_implicit_gradients(build, at):
    """Breaks when the derivative in epsilon, delta or an argument is missing or wrong."""

    def value(e, d, s):
        return calibrate.solve(build, epsilon=e, delta=d, args=(s,)).value

    step = 1e-4
    points = np.repeat(np.array(at)[:, None], 7, 1)
    for k in range(3):
        points[k, 1 + 2 * k] *= 1 + step
        points[k, 2 + 2 * k] *= 1 - step
    # (One program: with another for the values alone it takes twice the time.)
    program = jit(jax.vmap(jax.value_and_grad(value, argnums=(0, 1, 2))))
    v, gradients = jax.device_get(program(*points))
    slopes = (v[1::2] - v[2::2]) / (2 * step * np.array(at))
    np.testing.assert_allclose([g[0] for g in gradients], slopes, rtol=2e-4)


def test_gradient_has_its_closed_form():
    """Breaks when the gradient is right only up to finite differences: sigma is linear in Delta."""
    gradient = jax.grad(
        lambda s: calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5, args=(s,)).value
    )(2.0)
    np.testing.assert_allclose(gradient, 3.730631634815942, rtol=1e-9)


@pytest.mark.parametrize(
    ("build", "epsilon", "delta", "bracket"),
    [
        (jaxdp.Gaussian, 1.0, 0.0, None),
        (lambda v: jaxdp.ApproximateDP(v, 0.1), 1.0, 0.01, None),
        (jaxdp.Gaussian, 1.0, 1e-5, (0.1, 2.0)),
        (lambda v: jaxdp.Repeated(jaxdp.Gaussian(1.0), v), 1.0, 1e-5, (1.0, 10.0)),
    ],
    ids=["gaussian_pure", "failing", "narrow", "first_step"],
)
def test_infeasible_targets(build, epsilon, delta, bracket):
    """Breaks when an unreachable target comes back as a number."""
    got = calibrate.solve(build, epsilon=epsilon, delta=delta, bracket=bracket)
    assert int(got.status) == calibrate.Status.INFEASIBLE
    assert np.isnan(got.value)
    assert got.message.endswith(".")
    assert len(got.message.split()) >= 5, "a sentence that says what is wrong"


def test_infeasible_entries_leave_the_others_alone():
    """Breaks when one unreachable target of a batch spoils the rest."""
    got = calibrate.solve(
        jaxdp.Gaussian, epsilon=np.array([1.0, 1.0, 2.0]), delta=np.array([1e-5, 0.0, 1e-5])
    )
    np.testing.assert_array_equal(np.isnan(got.value), [False, True, False])
    np.testing.assert_array_equal(got.status != 0, [False, True, False])


def test_slack_bracket():
    """Breaks when a bracket that is private throughout is reported as a boundary."""
    got = calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5, bracket=(10.0, 20.0))
    assert float(got.value) == pytest.approx(10.0, rel=1e-12)
    assert int(got.status) == calibrate.Status.SLACK
    assert got.message != calibrate.Status.SOLVED.message


@pytest.mark.parametrize("noise", [jaxdp.Gaussian, jaxdp.Laplace])
def test_no_noise_is_needed_where_delta_covers_being_sampled(noise):
    """Breaks when a target that every value meets is called infeasible."""
    q, delta = 1e-6, np.array([4.3e-5, 2e-6, 1.0001e-6, 9.9e-7])
    got = calibrate.solve(
        lambda s: jaxdp.PoissonSampled(noise(s), q),
        epsilon=np.array([2.5, 26.4, 0.1, 0.5]),
        delta=delta,
    )
    slack, solved = int(calibrate.Status.SLACK), int(calibrate.Status.SOLVED)
    assert np.asarray(got.status).tolist() == [slack, slack, slack, solved]
    assert np.all(np.asarray(got.delta) <= delta)
    assert np.all(np.asarray(got.value)[:3] < 1e-12)
    assert got.value[3] > 1e-3


@pytest.mark.parametrize("noise", [jaxdp.Gaussian, jaxdp.Laplace])
def test_no_noise_is_needed_where_delta_covers_being_sampled_in_many_steps(noise):
    """Breaks when the engine calls a target infeasible that every value meets."""
    n, q = np.array([2.0, 2.0, 100.0, 100.0]), np.array([1e-6, 1e-6, 1e-5, 1e-5])
    delta = np.array([6.58e-6, 2.01e-6, 1e-3, 9e-4])
    got = calibrate.solve(
        lambda s, q, n: jaxdp.Repeated(jaxdp.PoissonSampled(noise(s), q), n),
        epsilon=np.array([1.15, 20.0, 0.3, 0.3]),
        delta=delta,
        args=(q, n),
    )
    slack, solved = int(calibrate.Status.SLACK), int(calibrate.Status.SOLVED)
    assert np.asarray(got.status).tolist() == [slack, slack, slack, solved]
    assert np.all(np.asarray(got.delta) <= delta)
    assert np.all(np.asarray(got.value)[:3] < 1e-12)
    assert got.value[3] > 1e-3


@pytest.mark.slow
def test_targets_of_long_allocations_are_solved_in_batches_of_any_size():
    """Breaks when estimates of allocations of many steps say that privacy falls with noise.

    They were upper bounds of a lattice too coarse for so many steps, noise of 1e5 times delta and
    more; which targets were lost depended on how many of them were asked for at a time.
    """
    epsilon = np.array([0.04866699519382245, 0.045982296532717154, 0.04204318738960418])
    delta = np.array([2.4447891637170134e-06, 9.813568227341615e-07, 3.5862367751092825e-13])
    steps = np.array([21344.0, 35359.0, 48656.0])
    rows = np.tile(np.arange(3), 12)
    got = calibrate.solve(
        lambda s, t: jaxdp.RandomAllocation(jaxdp.Gaussian(s), t),
        epsilon=epsilon[rows],
        delta=delta[rows],
        args=(steps[rows],),
    )
    assert np.all(np.asarray(got.status) == int(calibrate.Status.SOLVED))
    np.testing.assert_allclose(got.value, np.array([0.775385, 0.737126, 0.984519])[rows], rtol=1e-4)


def test_numbers_of_steps_beyond_which_nothing_changes():
    """Breaks when the noise of an estimate that is flat far out counts as its slope.

    In batches of other sizes than one: 347005 steps for 154.07, or "infeasible".
    """
    sigma = np.array([10.817217372872376, 9.651352652982446, 9.651352652982446])
    epsilon = np.array([0.29814799023536426, 0.05034831864686602, 0.05034831864686602])
    delta = np.array([8.198378174315419e-08, 1.2223851998019462e-12, 1.2223851998019462e-12])

    def build(steps, sigma):
        return jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)

    with jax.enable_x64(True):
        got = calibrate.solve(
            build, epsilon=epsilon, delta=delta, args=(sigma,), direction="remove"
        )
        np.testing.assert_allclose(got.value, [1.879324, 154.0713, 154.0713], rtol=1e-5)


def test_bracket_around_the_root():
    """Breaks when a bracket changes the answer it holds."""
    got = calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5, bracket=(3.7, 3.8))
    np.testing.assert_allclose(got.value, 3.730631634815942, rtol=1e-9)


def test_probability_that_needs_no_sampling():
    """Breaks when q runs beyond 1 for a target that the mechanism meets by itself."""
    got = calibrate.solve(
        lambda q: jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), q), epsilon=10.0, delta=1e-2
    )
    assert 1 - 1e-9 <= float(got.value) <= 1.0
    assert int(got.status) in (calibrate.Status.SOLVED, calibrate.Status.SLACK)


def test_every_status_has_a_sentence():
    """Breaks when a status is added without saying what it means."""
    for status in calibrate.Status:
        assert status.message.endswith(".")
    assert len({status.message for status in calibrate.Status}) == len(calibrate.Status)


# Several parameters


def theorem8(rdp, sensitivity, norm, dimension):
    """The optimal theta, rho at t = 1 and their error (Balle et al. 2019, Theorem 8)."""
    noise = dimension * sensitivity**2 / (2 * rdp)
    theta = np.log1p(noise / norm**2)
    rho2 = theta * sensitivity**2 / (2 * rdp * np.expm1(2 * theta))
    return theta, rho2, noise / (1 + noise / norm**2)


def test_theorem8_is_the_oracle():
    """Breaks when the reference optimum of this file is not the published one."""
    _, p, theta = truth.oracle("diffusion/thm8_theta")
    _, _, rho2 = truth.oracle("diffusion/thm8_rho2")
    _, _, mse = truth.oracle("diffusion/thm8_mse")
    got = theorem8(p["rdp_eps"], p["Delta"], p["R"], p["d"])
    for ours, oracle in zip(got, (theta, rho2, mse), strict=True):
        truth.assert_exact(ours, oracle)


def ou(p, *_):
    return jaxdp.OrnsteinUhlenbeck(p["theta"], p["rho"], 1.0)


# (Adam's default b2 remembers the first, huge gradients for 1000 steps, longer than the run.)
@pytest.mark.parametrize("optimizer", [None, optax.adam(0.05, b2=0.95)], ids=["default", "adam"])
def test_minimize_recovers_the_optimal_diffusion(optimizer):
    """Breaks when the optimum of Theorem 8 is missed or the final point is not certified."""
    norm, dimension, eps, delta = 1.0, 10, 1.0, 1e-5
    best = calibrate.minimize(
        lambda p: ou(p).mean_squared_error(norm, dimension),
        ou,
        epsilon=eps,
        delta=delta,
        init={"theta": 0.3, "rho": 3.0},
        optimizer=optimizer,
        max_steps=200 if optimizer is None else 600,
    )
    sigma = float(truth.solve(lambda s: truth.gaussian(1 / s, eps) - truth.number(delta), 1, 10))
    theta, rho2, error = theorem8(1 / (2 * sigma**2), 1.0, norm, dimension)
    assert int(best.status) == calibrate.Status.SOLVED
    np.testing.assert_allclose(best.objective, error, rtol=1e-6)
    np.testing.assert_allclose(best.value["theta"], theta, rtol=2e-3)
    np.testing.assert_allclose(best.value["rho"] ** 2, rho2, rtol=4e-3)
    assert float(best.objective) < dimension * sigma**2 / 2, "the plain Gaussian's error"
    with mp.workdps(40):
        mu = truth.ou_mu(float(best.value["theta"]), float(best.value["rho"]), 1.0, 1.0)
    assert truth.gaussian(mu, eps) <= truth.number(float(best.delta)) <= truth.number(delta)


def test_minimize_splits_a_budget():
    """Breaks when two noises are not balanced as Lagrange asks: b/a = 3^(1/4)."""
    best = calibrate.minimize(
        lambda p, w: w * p["a"] ** 2 + p["b"] ** 2,
        lambda p, w: jaxdp.Composed([jaxdp.Gaussian(p["a"]), jaxdp.Gaussian(p["b"])]),
        epsilon=1.0,
        delta=1e-5,
        init={"a": 5.0, "b": 5.0},
        args=(3.0,),
    )
    np.testing.assert_allclose(best.value["b"] / best.value["a"], 3**0.25, rtol=1e-4)
    square = 3.730631634815942**2
    np.testing.assert_allclose(best.objective, square * (1 + 3**0.5) ** 2, rtol=1e-8)
    assert float(best.delta) <= 1e-5


def test_minimize_infeasible():
    """Breaks when a target that no parameter meets yields parameters."""
    best = calibrate.minimize(
        lambda p: p**2, lambda p: jaxdp.ApproximateDP(p, 0.1), epsilon=1.0, delta=1e-3, init=1.0
    )
    assert int(best.status) == calibrate.Status.INFEASIBLE
    assert np.isnan(best.value)


def test_minimize_batch():
    """Breaks when targets are not solved entry by entry."""
    eps = np.array([0.5, 2.0])
    best = calibrate.minimize(lambda p: p**2, jaxdp.Gaussian, epsilon=eps, delta=1e-5, init=3.0)
    want = calibrate.solve(jaxdp.Gaussian, epsilon=eps, delta=1e-5)
    np.testing.assert_allclose(best.value, want.value, rtol=1e-8)
    assert np.all(np.asarray(best.value) >= want.value * (1 - 1e-9))


def test_infeasible_says_which_direction_and_by_how_much():
    """Breaks where an infeasible target is called that and no more, or of the wrong direction."""
    failing = calibrate.solve(
        lambda e: jaxdp.PoissonSampled(jaxdp.ApproximateDP(e, 0.1), 0.5),
        epsilon=[2.0, 2.0],
        delta=[1e-3, 0.2],
        bracket=(1e-3, 1.0),
    )
    assert failing.status.tolist()[0] == calibrate.Status.INFEASIBLE
    assert "The remove direction (add meets it) has delta 0.05 at best" in failing.message[0]
    assert "50 times the target" in failing.message[0]
    assert failing.status.tolist()[1] == calibrate.Status.SLACK
    assert "at best" not in failing.message[1]
    np.testing.assert_allclose(failing.shortfall.remove[0], 0.05, rtol=1e-6)
    assert np.isnan(failing.shortfall.remove[1])
    solved = calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5)
    assert solved.shortfall is None


@pytest.mark.slow
def test_minimize_vectors_by_moments_then_by_the_engine():
    """Breaks when a vector is taken for a batch, or what moments ask for too much is kept."""
    price = np.array([1.0, 16.0, 1.0, 1.0])
    with jax.enable_x64(True):
        best = calibrate.minimize(
            lambda b: jnp.sum(price * b**2),
            lambda b: jaxdp.Schedule(jaxdp.Laplace(b)),
            epsilon=1.0,
            delta=1e-3,
            init=jnp.full(4, 2.0),
            method=jaxdp.Renyi((2.0, 4.0, 8.0, 16.0)),
            vectors=True,
        )
        value = np.asarray(best.value)
        assert value.shape == (4,)
        assert int(best.status) == 0
        run = jaxdp.Schedule(jaxdp.Laplace(value))
        low, high = (float(x) for x in jaxdp.epsilon_bounds(run, 1e-3))
        assert 0.97 < low <= high <= 1.0 + 1e-9
    np.testing.assert_allclose(value[[2, 3]], value[0], rtol=1e-4)
    assert 1.3 < value[0] / value[1] < 2.6  # 2 for Gaussians
