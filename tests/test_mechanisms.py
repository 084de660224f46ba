"""Every mechanism's curve, divergences, errors and samples against independent values."""

import functools

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import truth

import jaxdp

DIRECTIONS = ("remove", "add")
BASES = {
    "gaussian": (lambda x: jaxdp.Gaussian(1.0, x), truth.gaussian),
    "laplace": (lambda x: jaxdp.Laplace(1.0, x), truth.laplace),
    "randomized_response": (jaxdp.RandomizedResponse, truth.randomized_response),
}


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


# One run: hockey-stick divergences


def test_oracle_laplace():
    """Breaks when the Laplace curve, Rényi divergence (to order 1000) or KL is off by 1e-12."""
    ids, p, values = truth.oracle("laplace/delta")
    truth.assert_exact(jaxdp.delta(jaxdp.Laplace(1.0, p["x"]), p["eps"]), values, ids)
    ids, p, values = truth.oracle("laplace/rdp")
    truth.assert_exact(jaxdp.renyi(jaxdp.Laplace(1.0, p["x"]), p["alpha"]), values, ids)
    _, p, values = truth.oracle("laplace/kl")
    truth.assert_exact(jaxdp.renyi(jaxdp.Laplace(1.0, p["x"]), 1.0), values)


@pytest.mark.parametrize("name", ["laplace", "randomized_response"])
def test_pure_mechanism_is_certified(name):
    """Breaks when a curve with kinks is wrong on, between or beyond them, or unsafe."""
    build, curve = BASES[name]
    rng = np.random.default_rng(1)
    x = 10 ** rng.uniform(-4, 1.7, 300)
    eps = x * np.where(
        rng.random(300) < 0.1, rng.choice([-1, 0, 1], 300), rng.uniform(-1.2, 1.2, 300)
    )
    truths = [curve(*c) for c in zip(x, eps, strict=True)]
    truth.assert_exact(jaxdp.hockey_stick(build(x), eps), truths, x, eps)
    truth.assert_certified(jaxdp.delta(build(x), eps), truths, x, eps)


@pytest.mark.parametrize("name", ["laplace", "randomized_response"])
def test_pure_mechanism_epsilon(name):
    """Breaks when epsilon is unsafe, loose by 1e-9, or pure DP is not the loss's maximum."""
    build, curve = BASES[name]
    rng = np.random.default_rng(2)
    x, delta = 10 ** rng.uniform(-3, 1.5, 100), 10 ** rng.uniform(-12, -0.01, 100)
    got = np.asarray(jaxdp.epsilon(build(x), delta))
    for value, d, e in zip(x, delta, got, strict=True):
        assert curve(value, e) <= truth.number(d), (value, d, e)
        assert e == 0 or curve(value, e * (1 - 1e-9)) > truth.number(d), (value, d, e)
    np.testing.assert_array_equal(jaxdp.epsilon(build(x), 0.0), x)


def test_laplace_next_to_its_largest_loss():
    """Breaks when bounds at the last floats below 1/3, or the pure epsilon, miss the truth."""
    m = jaxdp.Laplace(3.0)
    eps = 1.0 / 3.0 - 2.0**-54 * np.array([0.0, 1.0, 2.0, 5.0, 100.0])
    low, high = map(np.asarray, jaxdp.delta_bounds(m, eps))
    least, most = map(float, jaxdp.epsilon_bounds(m, 0.0))
    with mp.workdps(40):
        third = 1 / mp.mpf(3)
        for e, below, above in zip(map(mp.mpf, eps), low, high, strict=True):
            assert mp.mpf(below) <= max(-mp.expm1((e - third) / 2), 0) <= mp.mpf(above)
        assert mp.mpf(least) < third < mp.mpf(most) < third + mp.mpf("1e-16")


def test_approximate_dp_is_certified():
    """Breaks when the revealing atom is lost, or not scaled out of the rest."""
    rng = np.random.default_rng(3)
    e0, d0 = 10 ** rng.uniform(-4, 1.5, 200), 10 ** rng.uniform(-12, -0.1, 200)
    eps = e0 * rng.uniform(-1.2, 1.2, 200)
    truths = [truth.approximate_dp(*c) for c in zip(e0, d0, eps, strict=True)]
    got = jaxdp.delta(jaxdp.ApproximateDP(e0, d0), eps)
    truth.assert_certified(got, truths, e0, d0, eps)


def test_approximate_dp_that_can_fail_has_no_renyi_divergence():
    """Breaks when an infinite divergence comes out finite, or the pure case infinite."""
    failing, pure = jaxdp.ApproximateDP(1.0, 1e-3), jaxdp.ApproximateDP(1.0)
    assert np.isinf(jaxdp.renyi(failing, np.array([1.0, 1.5, 64.0, np.inf]))).all()
    truths = [truth.randomized_response_renyi(1.0, 4.0)]
    truth.assert_exact(jaxdp.renyi(pure, np.array([4.0])), truths)


def test_approximate_dp_epsilon_below_its_delta_is_infinite():
    """Breaks when a probability of total failure is forgotten at small delta."""
    got = np.asarray(jaxdp.epsilon(jaxdp.ApproximateDP(1.0, 1e-3), np.array([0.0, 9e-4, 1e-2])))
    assert np.isinf(got[:2]).all()
    assert 0 < got[2] < 1.0


# One run: Rényi divergences


@pytest.mark.parametrize("name", ["laplace", "randomized_response"])
def test_renyi_at_every_order(name):
    """Breaks when an order close to 1, 1 itself, a large one or inf loses accuracy."""
    build, _ = BASES[name]
    formula = {
        "laplace": truth.laplace_renyi,
        "randomized_response": truth.randomized_response_renyi,
    }[name]
    x = np.array([1e-3, 0.1, 1.0, 5.0, 20.0, 50.0])[:, None]
    alpha = np.array([1.0, 1 + 1e-9, 1 + 1e-7, 1 + 1e-5, 1.001, 1.1, 1.5, 2, 7.3, 64, 1e3, np.inf])
    shape = (x.size, alpha.size)
    truths = [formula(u, a) for u in x.ravel() for a in alpha]
    got = jaxdp.renyi(build(x), alpha)
    truth.assert_exact(got, truths, *(np.broadcast_to(v, shape).ravel() for v in (x, alpha)))


# Ornstein-Uhlenbeck and Brownian motion


def test_oracle_diffusion():
    """Breaks when a diffusion's curve, divergence or error is off by 1e-12."""
    ou = jaxdp.OrnsteinUhlenbeck
    ids, p, values = truth.oracle("diffusion/ou_delta")
    got = jaxdp.delta(ou(p["theta"], p["rho"], p["t"], p["Delta"]), p["eps"])
    truth.assert_exact(got, values, ids)
    ids, p, values = truth.oracle("diffusion/ou_rdp")
    got = jaxdp.renyi(ou(p["theta"], p["rho"], p["t"], p["Delta"]), p["alpha"])
    truth.assert_exact(got, values, ids)
    ids, p, values = truth.oracle("diffusion/ou_mse")
    got = ou(p["theta"], p["rho"], p["t"], p["Delta"]).mean_squared_error(p["R"], p["d"])
    truth.assert_exact(got, values, ids)
    ids, p, values = truth.oracle("diffusion/gm_mse")
    got = ou(p["theta"], p["rho"], p["t"], p["Delta"]).gaussian_error(p["d"])
    truth.assert_exact(got, values, ids)
    ids, p, values = truth.oracle("diffusion/bm_rdp")
    got = jaxdp.renyi(jaxdp.Brownian(p["t"], p["Delta"]), p["alpha"])
    truth.assert_exact(got, values, ids)
    ids, p, values = truth.oracle("diffusion/bm_delta")
    got = jaxdp.delta(jaxdp.Brownian(p["t"], p["Delta"]), p["eps"])
    truth.assert_exact(got, values, ids)


def diffusions(size, seed):
    rng = np.random.default_rng(seed)
    ranges = ((-9, 1.5), (-2, 2), (-3, 0.7), (-2, 2))  # theta, rho, t, sensitivity
    columns = [10 ** rng.uniform(*r, size) for r in ranges]
    mu = [truth.ou_mu(*c) for c in zip(*columns, strict=True)]
    keep = [k for k, m in enumerate(mu) if 1e-6 < m < 30]
    return [c[keep] for c in columns], [mu[k] for k in keep]


def test_ornstein_uhlenbeck_is_certified():
    """Breaks when rounding in mu, amplified in the tail, puts a delta below the truth."""
    columns, mu = diffusions(600, seed=4)
    z = np.random.default_rng(4).uniform(-3, 36, len(mu))
    eps = np.array([float(m * (m / 2 + u)) for m, u in zip(mu, z, strict=True)])
    truths = [truth.gaussian(m, e) for m, e in zip(mu, eps, strict=True)]
    got = jaxdp.delta(jaxdp.OrnsteinUhlenbeck(*columns), eps)
    truth.assert_certified(got, truths, *columns, eps, rtol=5e-12)


def test_brownian_is_certified():
    """Breaks in the same way where mu = sensitivity/sqrt(2t)."""
    rng = np.random.default_rng(5)
    t, mu = 10 ** rng.uniform(-3, 3, 300), 10 ** rng.uniform(-4, 1.4, 300)
    sensitivity = mu * np.sqrt(2 * t)
    eps = mu * (mu / 2 + rng.uniform(-3, 36, 300))
    pairs = list(zip(sensitivity, t, strict=True))
    with mp.workdps(60):
        exact = [truth.number(s) / mp.sqrt(2 * truth.number(u)) for s, u in pairs]
    truths = [truth.gaussian(m, e) for m, e in zip(exact, eps, strict=True)]
    got = jaxdp.delta(jaxdp.Brownian(t, sensitivity), eps)
    truth.assert_certified(got, truths, t, sensitivity, eps, rtol=5e-12)


def test_diffusion_errors_and_divergences():
    """Breaks when expm1 is forgotten (theta t small) or an error formula is misread."""
    columns, mu = diffusions(200, seed=6)
    theta, rho, t, _ = columns
    rng = np.random.default_rng(6)
    norm, dimension = 10 ** rng.uniform(-2, 2, t.size), rng.integers(1, 1000, t.size)
    ou, rows = (
        jaxdp.OrnsteinUhlenbeck(*columns),
        list(zip(theta, rho, t, norm, dimension, strict=True)),
    )
    truth.assert_exact(
        ou.mean_squared_error(norm, dimension), [truth.ou_error(*r) for r in rows], *columns
    )
    truth.assert_exact(
        ou.gaussian_error(dimension), [truth.gaussian_error(*r[:3], r[4]) for r in rows], *columns
    )
    truth.assert_exact(
        ou.postprocessed_gaussian_error(norm, dimension),
        [truth.shrunk_gaussian_error(*r) for r in rows],
        *columns,
    )
    truth.assert_exact(jaxdp.renyi(ou, 3.0), [3 * m**2 / 2 for m in mu], *columns)


def test_ornstein_uhlenbeck_forgets_everything():
    """Breaks when e^{2 theta t} overflows into nan or into no privacy at all."""
    ou = jaxdp.OrnsteinUhlenbeck(1.0, 1.0, np.array([300.0, 1000.0]))
    assert np.all(np.asarray(jaxdp.delta(ou, 1.0)) < 1e-300)
    assert np.all(np.asarray(jaxdp.epsilon(ou, 1e-5)) < 1e-9)
    np.testing.assert_allclose(ou.mean_squared_error(2.0, 3), 4.0 + 3.0, rtol=1e-14)


# Poisson sampling, one step


def test_oracle_poisson_subsampled_gaussian():
    """Breaks when a direction of the sampled curve or divergence is off by 1e-12."""
    for prefix, direction in (("rm", "remove"), ("add", "add")):
        ids, p, values = truth.oracle(f"poisson_subsampled_gaussian/{prefix}_")
        step = jaxdp.PoissonSampled(jaxdp.Gaussian(p["sigma"]), p["q"])
        truth.assert_exact(jaxdp.delta(step, p["eps"], direction=direction), values, ids)
        ids, p, values = truth.oracle(f"poisson_subsampled_gaussian/rdp_{prefix}_")
        step = jaxdp.PoissonSampled(jaxdp.Gaussian(p["sigma"]), p["q"])
        truth.assert_exact(jaxdp.renyi(step, p["alpha"], direction=direction), values, ids)


@pytest.mark.parametrize("name", list(BASES))
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_sampled_step_is_certified(name, direction):
    """Breaks when a direction is misread or the arithmetic around the inner curve is unsafe."""
    build, curve = BASES[name]
    rng = np.random.default_rng(7)
    q = np.where(rng.random(300) < 0.5, 10 ** rng.uniform(-5, 0, 300), rng.random(300))
    q[:10] = 1.0
    x = 10 ** rng.uniform(-1.3, 0.9, 300)
    sign = np.where(rng.random(300) < 0.5, 1, -1)
    eps = sign * 10 ** rng.uniform(-5, 0.8, 300)
    truths = [
        truth.sampled(functools.partial(curve, a), b, e, direction)
        for a, b, e in zip(x, q, eps, strict=True)
    ]
    keep = np.array([t == 0 or t > mp.mpf(10) ** -290 for t in truths])
    truths = [t for t, k in zip(truths, keep, strict=True) if k]
    step = jaxdp.PoissonSampled(build(x), q)
    inputs = (x[keep], q[keep], eps[keep])
    exact = np.asarray(jaxdp.hockey_stick(step, eps, direction=direction))[keep]
    truth.assert_exact(exact, truths, *inputs)
    bound = np.asarray(jaxdp.delta(step, eps, direction=direction))[keep]
    truth.assert_certified(bound, truths, *inputs, rtol=1e-11)


def test_sampled_gaussian_against_its_densities():
    """Breaks when both the library and the closed form of the sampled curve are wrong."""
    rows = ((1.0, 0.1, 1.0), (1.0, 0.1, 0.05), (0.7, 0.3, -0.2), (2.0, 0.01, 0.005), (1, 0.9, 1))
    sigma, q, eps = np.array(rows, float).T
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q)
    for direction in DIRECTIONS:
        truths = [truth.sampled_gaussian_by_quadrature(*row, direction) for row in rows]
        got = jaxdp.hockey_stick(step, eps, direction=direction)
        truth.assert_exact(got, truths, sigma, q, eps)


@pytest.mark.parametrize("sigma", [0.3, 0.5, 1.0, 2.0, 10.0])
def test_sampled_gaussian_renyi_at_integer_orders(sigma):
    """Breaks when the exact moment gives way to a bound at a large order or a small sigma."""
    alpha = np.array([2, 3, 4, 8, 16, 32, 64, 128, 256])
    q = np.array([1e-3, 0.01, 0.5])[:, None]
    got = jaxdp.renyi(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), alpha, direction="remove")
    truths = [
        truth.sampled_gaussian_renyi_integer(sigma, p, int(a)) for p in q.ravel() for a in alpha
    ]
    orders = np.broadcast_to(alpha, got.shape).ravel()
    truth.assert_exact(got, truths, orders, np.broadcast_to(q, got.shape).ravel())


# (parameter, q, alpha): KL, orders close to 1, fractional, integer and large
ORDERS = (
    *((0.7, 0.1, a) for a in (1.0, 1 + 1e-6, 1.5, 3.7, 33.3)),
    *((1.0, 0.01, a) for a in (1.0, 1.01, 2.5, 64.0)),
    *((3.0, 0.9, a) for a in (1.2, 20.5)),
    (1.0, 1.0, 2.5),
)


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    ("build", "formula"),
    [
        (jaxdp.Gaussian, truth.sampled_gaussian_renyi),
        (lambda x: jaxdp.Laplace(1.0, x), truth.sampled_laplace_renyi),
        (jaxdp.RandomizedResponse, truth.sampled_randomized_response_renyi),
    ],
    ids=["gaussian", "laplace", "randomized_response"],
)
def test_sampled_renyi_at_fractional_orders(build, formula, direction):
    """Breaks when a direction's moment is not that of the ratio 1 - q + qX, at any real order."""
    x, q, alpha = np.array(ORDERS).T
    got = jaxdp.renyi(jaxdp.PoissonSampled(build(x), q), alpha, direction=direction)
    truth.assert_exact(got, [formula(*row, direction) for row in ORDERS], x, q, alpha)


@pytest.mark.parametrize("sigma", [0.3, 0.45])
def test_sampled_gaussian_add_renyi_at_small_sigma(sigma):
    """Breaks when the add direction falls back to a bound that does not amplify."""
    alpha = np.array([4.5, 20.0, 40.0])
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.01)
    truths = [truth.sampled_gaussian_renyi(sigma, 0.01, a, "add") for a in alpha]
    truth.assert_exact(jaxdp.renyi(step, alpha, direction="add"), truths, alpha)


def test_sampled_max_divergence():
    """Breaks when the largest and least ratio of a sampled pair are not 1 - q + q e^{+-eps}."""
    gaussian = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01)
    laplace = jaxdp.PoissonSampled(jaxdp.Laplace(1.0), 0.01)
    assert np.isinf(jaxdp.renyi(gaussian, np.inf, direction="remove"))
    least, e = -np.log1p(-0.01), np.exp(1.0)
    np.testing.assert_allclose(jaxdp.renyi(gaussian, np.inf, direction="add"), least, 1e-12)
    for query in (
        lambda m, d: jaxdp.renyi(m, np.inf, direction=d),
        lambda m, d: jaxdp.epsilon(m, 0.0, direction=d),
    ):
        np.testing.assert_allclose(query(laplace, "remove"), np.log(0.99 + 0.01 * e), 1e-12)
        np.testing.assert_allclose(query(laplace, "add"), -np.log(0.99 + 0.01 / e), 1e-12)


# Compositions


def test_gaussian_family_composes_exactly():
    """Breaks when a composition inside the Gaussian family is bounded instead of summed."""
    m = jaxdp.Composed(
        [
            jaxdp.Gaussian(3.0),
            jaxdp.Brownian(5.0),
            jaxdp.Repeated(jaxdp.Gaussian(10.0, 2.0), 7),
            jaxdp.Repeated(jaxdp.Composed([jaxdp.OrnsteinUhlenbeck(1.0, 1.0, 1.0)]), 2),
        ]
    )
    with mp.workdps(60):
        square = mp.mpf(1) / 9 + mp.mpf(1) / 10 + mp.mpf(28) / 100 + 2 / mp.expm1(2)
        mu = mp.sqrt(square)
    eps = np.array([-1.0, 0.0, 1.0, 8.0, 30.0])
    truth.assert_certified(jaxdp.delta(m, eps), [truth.gaussian(mu, e) for e in eps], eps)
    truth.assert_exact(jaxdp.renyi(m, np.array([6.0])), [3 * square])


def test_dp_sgd_is_bounded():
    """Breaks when a run's epsilon falls below the truth or its delta there below 1e-5."""
    rows = [(1.0, 0.01, 1e3, 1.828237), (0.6, 1e-3, 1e4, 2.456145), (2.0, 0.1, 5e3, 22.513327)]
    sigma, q, steps, published = np.array(rows).T
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)
    eps = np.asarray(jaxdp.epsilon(run, 1e-5))
    assert np.all(eps >= published - 1e-6), eps
    assert np.all(eps <= published * 1.4), eps
    assert np.all(np.asarray(jaxdp.delta(run, published - 1e-6)) >= 1e-5)


@pytest.mark.parametrize("direction", [*DIRECTIONS, "both"])
def test_repeated_sampled_randomized_response_is_bounded(direction):
    """Breaks when a composed delta falls below the binomial sum, at any count or epsilon."""
    count, q, eps = np.array([1, 2, 5, 50, 400]), np.array([1.0, 0.2]), np.array([-0.5, 0.3, 2.0])
    count, q, eps = (v.ravel() for v in np.meshgrid(count, q, eps))
    step = jaxdp.PoissonSampled(jaxdp.RandomizedResponse(1.0), q)
    got = np.asarray(jaxdp.delta(jaxdp.Repeated(step, count), eps, direction=direction))
    for n, p, e, bound in zip(count, q, eps, got, strict=True):
        rows = DIRECTIONS if direction == "both" else (direction,)
        exact = max(truth.randomized_response_composed(1.0, int(n), e, p, d) for d in rows)
        # (at the largest loss the sum leaves its own rounding, not 0)
        assert exact - 1e-55 <= truth.number(bound) <= 1, (n, p, e, bound, exact)


def test_composed_laplace_is_bounded():
    """Breaks when two Laplace runs, or a Gaussian with a Laplace run, are undercut anywhere."""
    eps = np.array([-1.0, 0.0, 0.5, 1.0, 1.9])
    twice = jaxdp.delta(jaxdp.Repeated(jaxdp.Laplace(1.0), 2), eps)
    mixed = jaxdp.delta(jaxdp.Composed([jaxdp.Laplace(1.0), jaxdp.Gaussian(1.0)]), eps)
    for e, a, b in zip(eps, twice, mixed, strict=True):
        assert truth.laplace_twice(1.0, e) <= truth.number(a)
        assert truth.gaussian_and_laplace(1.0, 1.0, e) <= truth.number(b)


def test_pure_dp_composes_by_addition():
    """Breaks when pure epsilons do not add, or a composed pure mechanism leaks beyond their sum."""
    m = jaxdp.Composed([jaxdp.Repeated(jaxdp.Laplace(1.0), 3), jaxdp.RandomizedResponse(0.5)])
    np.testing.assert_allclose(jaxdp.epsilon(m, 0.0), 3.5, rtol=1e-12)
    assert float(jaxdp.epsilon(m, 1e-9)) <= 3.5 * (1 + 1e-12)
    assert float(jaxdp.delta(m, 3.6)) == 0


def test_failures_compose():
    """Breaks when n chances of total failure do not add up to 1 - (1 - d)^n."""
    run = jaxdp.Repeated(jaxdp.ApproximateDP(1.0, 1e-3), 10)
    failure = -np.expm1(10 * np.log1p(-1e-3))
    assert float(jaxdp.delta(run, 1e3)) >= failure * (1 - 1e-15)
    np.testing.assert_allclose(jaxdp.delta(run, 1e3), failure, rtol=1e-11)
    assert np.isinf(jaxdp.epsilon(run, 0.99 * failure))
    assert float(jaxdp.epsilon(run, 1.5 * failure)) <= 10.0
    mixed = jaxdp.Composed([jaxdp.ApproximateDP(1.0, 1e-3), jaxdp.Gaussian(1.0)])
    assert 1e-3 <= float(jaxdp.delta(mixed, 60.0)) < 1.1e-3
    assert np.isinf(jaxdp.epsilon(mixed, 5e-4))


def test_renyi_divergences_add():
    """Breaks when a composition's divergence is not the sum of its parts', per direction."""
    parts = [
        jaxdp.Laplace(2.0),
        jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1),
        jaxdp.Gaussian(2.0),
    ]
    alpha = np.array([1.0, 1.5, 8.0])
    whole = jaxdp.Composed([parts[0], jaxdp.Repeated(parts[1], 3), parts[2]])
    for direction in DIRECTIONS:
        a, b, c = (jaxdp.renyi(p, alpha, direction=direction) for p in parts)
        got = jaxdp.renyi(whole, alpha, direction=direction)
        np.testing.assert_allclose(got, a + 3 * b + c, rtol=1e-12)


def test_composition_of_one_is_the_mechanism():
    """Breaks when a single mechanism loses its exact curve by being wrapped."""
    eps = np.array([0.2, 0.9])
    for m in (jaxdp.Laplace(1.0), jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.3)):
        np.testing.assert_array_equal(
            jaxdp.delta(jaxdp.Composed([m]), eps), jaxdp.delta(m, eps), strict=True
        )


# Samples


def draws(m, value, key=0):
    return np.asarray(m.sample(jax.random.key(key), value), np.float64)


@pytest.mark.parametrize(
    ("m", "mean", "variance"),
    [
        (jaxdp.Gaussian(0.5, 3.0), 2.0, 0.25),
        (jaxdp.Laplace(0.5, 3.0), 2.0, 0.5),
        (jaxdp.Brownian(0.25, 3.0), 2.0, 0.5),
        (
            jaxdp.OrnsteinUhlenbeck(0.5, 2.0, 0.7, 3.0),
            2 * np.exp(-0.35),
            8 * -np.expm1(-0.7),
        ),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, jaxdp.Mechanism) else None,
)
def test_sample_moments(m, mean, variance):
    """Breaks when a mechanism draws noise of another scale than the one it accounts for."""
    got = draws(m, jnp.full(200_000, 2.0))
    assert abs(got.mean() - mean) < 6 * np.sqrt(variance / got.size)
    assert abs(got.var() / variance - 1) < 0.02


def test_laplace_sample_is_not_gaussian():
    """Breaks when Laplace noise is drawn from another law of the same variance."""
    got = draws(jaxdp.Laplace(1.0), jnp.zeros(200_000))
    assert abs(np.abs(got).mean() - 1.0) < 0.015
    assert abs(np.median(np.abs(got)) - np.log(2)) < 0.015


def test_randomized_response_sample():
    """Breaks when bits flip with another probability than 1/(1 + e^eps), or unequally."""
    bits = jnp.arange(200_000) % 2
    got = draws(jaxdp.RandomizedResponse(1.0), bits)
    assert set(np.unique(got)) <= {0.0, 1.0}
    flipped = got != np.asarray(bits)
    for half in (flipped[::2], flipped[1::2]):
        assert abs(half.mean() - 1 / (1 + np.e)) < 0.01


def test_approximate_dp_sample():
    """Breaks when the revealing answers are not drawn with probability delta."""
    bits = jnp.arange(200_000) % 2
    got = draws(jaxdp.ApproximateDP(1.0, 0.1), bits)
    reveals = (got == 0) | (got == 3)
    assert abs(reveals.mean() - 0.1) < 0.005
    np.testing.assert_array_equal(got[reveals], 3.0 * np.asarray(bits)[reveals])
    kept = got[~reveals] == 1.0 + np.asarray(bits)[~reveals]
    assert abs(kept.mean() - np.e / (1 + np.e)) < 0.01


def test_sample_of_a_tree_keeps_shapes_and_dtypes():
    """Breaks when a PyTree, a float32 leaf or two leaves' independence is lost."""
    tree = {"a": jnp.zeros((3, 2), jnp.float32), "b": (jnp.zeros(4), jnp.zeros(4))}
    for m in (jaxdp.Gaussian(1.0), jaxdp.Laplace(1.0), jaxdp.OrnsteinUhlenbeck(1.0, 1.0, 1.0)):
        got = m.sample(jax.random.key(1), tree)
        assert jax.tree.map(lambda x: (x.shape, x.dtype), got) == jax.tree.map(
            lambda x: (x.shape, x.dtype), tree
        )
        assert not np.allclose(got["b"][0], got["b"][1]), "leaves must not share noise"


def test_combinators_sample_every_release():
    """Breaks when a composition reuses one draw for several releases."""
    m = jaxdp.Composed([jaxdp.Gaussian(1.0), jaxdp.Laplace(1.0)])
    first, second = m.sample(jax.random.key(2), jnp.zeros(3))
    assert first.shape == second.shape == (3,)
    assert not np.allclose(first, second)
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1)
    assert step.sample(jax.random.key(2), jnp.zeros(3)).shape == (3,)
