"""Diffusion mechanisms: the generic path against closed forms, and the OU mechanism in full."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from scipy import integrate

import calibrate
import jaxdp
from calibrate import _diffusion as design
from jaxdp import _amplification as amp
from tests.programs import jit


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def close(got, want, rtol=1e-12):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=0.0)


def ou_of(case):
    return jaxdp.OrnsteinUhlenbeck(case["theta"], case["rho"], case["t"], case["Delta"])


@pytest.mark.parametrize("case", oracle.cases("diffusion"))
def test_oracle(case):
    """Breaks when a diffusion closed form, or Theorem 8's design, is off in the 12th digit."""
    kind = "_".join(case.name.split("_")[:2])
    if kind.startswith("thm8"):
        ou, error = design.ornstein_uhlenbeck_renyi(
            alpha=3.0,
            rdp=3.0 * case["rdp_eps"],
            norm=case["R"],
            dimension=case["d"],
            sensitivity=case["Delta"],
        )
        value = {"thm8_theta": ou.theta, "thm8_rho2": ou.rho**2, "thm8_mse": error}[kind]
        close(value, case.value)
    elif kind == "ou_mse":
        close(ou_of(case).mean_squared_error(case["R"], case["d"]), case.value)
    elif kind == "gm_mse":
        close(ou_of(case).gaussian_error(case["d"]), case.value)
    elif kind.startswith("ou"):
        ou = ou_of(case)
        level = amp.HierarchicalRelease(
            case["theta"], case["rho"], [case["t"], 2 * case["t"]], case["Delta"]
        )
        for m in (ou, level):
            if kind == "ou_rdp":
                close(jaxdp.renyi(m, case["alpha"]), case.value)
            else:
                close(jaxdp.delta(m, case["eps"]), case.value)
    else:
        m = jaxdp.Brownian(case["t"], case["Delta"])
        if kind == "bm_rdp":
            close(jaxdp.renyi(m, case["alpha"]), case.value)
        else:
            close(jaxdp.delta(m, case["eps"]), case.value)


# --- the generic path ---------------------------------------------------------------------------


@pytest.mark.parametrize("t", [1e-3, 0.5, 30.0])
def test_brownian_generic(t):
    """Breaks when the quadrature or the carré du champ misses Brownian motion's closed form."""
    found = amp.Diffusion.brownian().intrinsic_sensitivity(t, [1.0, 2.0, 3.0], [0.0, 2.5, 3.0])
    close(found.value, 1.25 / (4 * t), rtol=1e-8)
    assert abs(found.value - 1.25 / (4 * t)) <= found.error
    assert found.guarantee == "exact"
    close(found.renyi(2.0), jaxdp.renyi(jaxdp.Brownian(t, np.sqrt(1.25)), 2.0), rtol=1e-8)


@pytest.mark.parametrize("theta", [1e-7, 0.3, 2.0, 50.0])
@pytest.mark.parametrize("t", [0.02, 1.0])
def test_ou_generic(theta, t):
    """Breaks when the generic Lambda differs from theta Delta^2/(2 rho^2 expm1(2 theta t))."""
    found = amp.Diffusion.ornstein_uhlenbeck(theta, 0.7).intrinsic_sensitivity(t, [1.0], [-1.0])
    exact = theta * 4.0 / (2 * 0.49 * np.expm1(2 * theta * t))
    close(found.value, exact, rtol=1e-8)
    assert abs(found.value - exact) <= found.error
    assert float(found.error) <= 1e-7 * exact


def test_ou_on_a_domain():
    """Breaks when the search on a box, or its certified version, misses a known supremum."""
    closed = amp.Diffusion.ornstein_uhlenbeck(0.5, 1.0)
    box = ((-3.0, -3.0), (3.0, 3.0))
    parts = closed.drift, closed.diffusion, closed.log_density, closed.params
    search = amp.Diffusion(*parts, domain=box, grid=8)
    sure = amp.Diffusion(*parts, domain=box, lipschitz=_no_slope, grid=8)
    assert (search.guarantee, sure.guarantee) == ("numerical", "upper bound")
    for model in (search, sure):
        found = model.intrinsic_sensitivity(0.4, [1.0, 0.0], [0.0, 0.0])
        close(found.value, 0.5 / (2 * np.expm1(0.4)), rtol=1e-8)


def _no_slope(params, t, x, other):
    return 0.0 * t


def _zero_drift(params, y):
    return jnp.zeros_like(y)


def _sqrt_two(params, y):
    return np.sqrt(2.0) * jnp.eye(1)


def _interval_log_density(params, t, x, y):
    """Brownian motion reflected at 0 and 1: images for small t, cosines for large."""
    images = jnp.arange(-6.0, 7.0) * 2.0
    small = jnp.minimum(t, 0.3)
    gaps = jnp.concatenate([y[0] - x[0] + images, y[0] + x[0] + images])
    near = jax.nn.logsumexp(-(gaps**2) / (4 * small)) - 0.5 * jnp.log(4 * jnp.pi * small)
    k = jnp.arange(1.0, 9.0)
    decay = jnp.exp(-((jnp.pi * k) ** 2) * jnp.maximum(t, 0.2))
    far = jnp.log1p(2 * jnp.sum(decay * jnp.cos(jnp.pi * k * x[0]) * jnp.cos(jnp.pi * k * y[0])))
    return jnp.where(t < 0.25, near, far)


def test_reflected_brownian_motion():
    """Breaks when kappa's maximum varies in y and the search, the tail or Theorem 6 fails."""
    model = amp.Diffusion(
        _zero_drift, _sqrt_two, _interval_log_density, domain=((0.0,), (1.0,)), grid=64
    )
    x, other, t = [0.2], [0.7], 0.05
    found = model.intrinsic_sensitivity(t, x, other)
    ys = np.linspace(0.0, 1.0, 4001)[:, None]

    @jit
    def density(s, start, y):
        return _interval_log_density((), s, jnp.array(start), y)

    slope = jit(
        jax.vmap(
            jax.grad(
                lambda y, s: density(s, x, y) - density(s, other, y),
            ),
            (0, None),
        )
    )

    def kappa(s):
        return float(np.max(np.square(slope(ys, s))))

    for s in (0.05, 0.2, 0.6):
        close(model.kappa(s, x, other), kappa(s), rtol=1e-6)
    reference = integrate.quad(kappa, t, 3.0, points=[0.1, 0.25], limit=200)[0]
    close(found.value, reference, rtol=1e-5)
    p, q = (np.exp(jax.vmap(lambda y, z=z: density(t, z, y))(ys)) for z in (x, other))
    for alpha in (1.5, 2.0, 8.0):
        exact = np.log(np.trapezoid(p**alpha * q ** (1 - alpha), ys[:, 0])) / (alpha - 1)
        assert exact <= float(found.renyi(alpha))


def _log_normal(params, t, x, y):
    gap = jnp.log(y[0]) - jnp.log(x[0])
    return -(gap**2) / (4 * t) - jnp.log(y[0])


def test_state_dependent_diffusion():
    """Breaks when v(y) is not taken at y: exp of Brownian motion has its divergences."""
    model = amp.Diffusion(
        lambda params, y: y,
        lambda params, y: jnp.sqrt(2.0) * jnp.diag(y),
        _log_normal,
        maximiser=lambda params, t, x, other: x,
    )
    found = model.intrinsic_sensitivity(0.3, [2.0], [3.0])
    close(found.value, np.log(1.5) ** 2 / (4 * 0.3), rtol=1e-8)


def test_carre_du_champ_is_that_of_the_generator():
    """Breaks when Gamma is not (L(fg) - f Lg - g Lf)/2, or log p solves no forward equation."""
    model = amp.Diffusion.ornstein_uhlenbeck(0.6, 1.3)
    f = lambda y: jnp.sin(y[0]) * y[1]  # noqa: E731
    g = lambda y: jnp.exp(0.3 * y[0]) + y[1] ** 2  # noqa: E731
    y = jnp.array([0.4, -1.1])
    both = model.generator(lambda z: f(z) * g(z))(y)
    other = both - f(y) * model.generator(g)(y) - g(y) * model.generator(f)(y)
    close(model.carre_du_champ(f, g)(y), 0.5 * other)
    close(model.generator(lambda z: jnp.sum(z * z))(y), -1.2 * jnp.sum(y * y) + 4 * 1.69)


def test_generic_transforms():
    """Breaks when parameters, times or points are not batched or differentiated."""
    pairs = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[1.0, 0.0], [3.0, 1.0]])
    model = amp.Diffusion.ornstein_uhlenbeck(0.5, 1.0)
    found = model.intrinsic_sensitivity(np.array([[0.5], [1.0]]), *pairs)
    assert found.value.shape == (2, 2)
    exact = 0.5 * np.array([1.0, 4.0]) / (2 * np.expm1(np.array([[0.5], [1.0]])))
    close(found.value, exact, rtol=1e-10)

    def value(theta, t):
        m = amp.Diffusion.ornstein_uhlenbeck(theta, 1.0)
        return m.intrinsic_sensitivity(t, jnp.zeros(1), jnp.ones(1)).value

    closed = lambda theta, t: theta / (2 * jnp.expm1(2 * theta * t))  # noqa: E731
    got = jit(jax.vmap(jax.grad(value, (0, 1))))(jnp.array([0.3, 2.0]), jnp.array([0.5, 0.2]))
    want = jax.vmap(jax.grad(closed, (0, 1)))(jnp.array([0.3, 2.0]), jnp.array([0.5, 0.2]))
    for a, b in zip(got, want, strict=True):
        close(a, b, rtol=1e-8)
    with jax.enable_x64(False):
        narrow = jit(value)(0.3, 0.5)
        assert narrow.dtype == np.float32
        assert float(narrow) >= float(closed(0.3, 0.5)) * (1 - 1e-7)
        searched = amp.Diffusion(
            model.drift, model.diffusion, model.log_density, (0.5, 1.0), domain=((-1.0,), (1.0,))
        )
        slope = jit(jax.grad(lambda t: searched.kappa(t, jnp.zeros(1), jnp.ones(1))))(0.7)
        assert np.isfinite(slope)


def test_generic_bad_input():
    """Breaks when nonsense is accepted or an overflow passes as a small number."""
    model = amp.Diffusion.brownian()
    with pytest.raises(ValueError, match="t must"):
        model.kappa(0.0, [0.0], [1.0])
    with pytest.raises(ValueError, match="vector"):
        model.kappa(1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="maximiser"):
        amp.Diffusion(model.drift, model.diffusion, model.log_density)
    with pytest.raises(ValueError, match="domain"):
        amp.Diffusion(*[model.drift] * 3, domain=((1.0,), (0.0,)))
    with pytest.raises(ValueError, match="grid"):
        amp.Diffusion(*[model.drift] * 3, domain=((0.0,) * 4, (1.0,) * 4), grid=64).kappa(
            1.0, [0.0] * 4, [1.0] * 4
        )
    with pytest.raises(ValueError, match="theta"):
        amp.Diffusion.ornstein_uhlenbeck(-1.0, 1.0)
    overflow = amp.Diffusion(_zero_drift, _sqrt_two, _overflowing, maximiser=lambda p, t, x, o: x)
    found = overflow.intrinsic_sensitivity(1.0, [0.0], [1.0])
    assert np.isnan(found.value)
    assert np.isnan(jit(lambda t: model.kappa(t, jnp.zeros(1), jnp.ones(1)))(-1.0))


def _overflowing(params, t, x, y):
    return jnp.exp(t) * jnp.dot(x, y) / (jnp.exp(2 * t) + 1.0)  # (else the compiler mends it)


# --- the OU mechanism in full -------------------------------------------------------------------


def test_sharp_condition_of_theorem_8():
    """Breaks when the condition is not exactly where the two errors cross."""
    rng = np.random.default_rng(0)
    theta, rho, t = np.exp(rng.normal(0, 1, (3, 2000)))
    norm, d = np.exp(rng.normal(1, 1, 2000)), rng.integers(1, 20, 2000).astype(float)
    ou = jaxdp.OrnsteinUhlenbeck(theta, rho, t)
    better = ou.mean_squared_error(norm, d) <= ou.gaussian_error(d)
    np.testing.assert_array_equal(amp.dominates_gaussian(ou, norm, d), better)
    always = np.asarray(amp.dominates_gaussian(ou, norm, d, all_times=True))
    for time in (1e-3, 0.1, 1.0, 5.0):
        at = jaxdp.OrnsteinUhlenbeck(theta, rho, time)
        assert np.all(np.asarray(amp.dominates_gaussian(at, norm, d))[always])
    soon = jaxdp.OrnsteinUhlenbeck(theta, rho, 1e-9)
    np.testing.assert_array_equal(amp.dominates_gaussian(soon, norm, d), always)
    with pytest.raises(TypeError, match="OrnsteinUhlenbeck"):
        amp.dominates_gaussian(jaxdp.Gaussian(1.0), 1.0, 1.0)


def test_hierarchy_is_a_chain():
    """Breaks when releases at increasing t are not a post-processing chain of the first."""
    theta, rho, times = 0.8, 1.3, np.array([0.3, 0.9, 2.0])
    m = amp.HierarchicalRelease(theta, rho, times, 1.5)
    alone = [jaxdp.OrnsteinUhlenbeck(theta, rho, t, 1.5) for t in times]
    close(m.level_mu().mu, np.sqrt(2 * np.array([float(jaxdp.renyi(a, 1.0)) for a in alone])))
    close(jaxdp.delta(m, 0.4), jaxdp.delta(alone[0], 0.4))
    assert all(np.diff(m.level_mu().mu) < 0)
    # the kernel of the chain: means and covariances by composition of Gaussians
    draws = m.sample(jax.random.key(3), jnp.full(400_000, 2.0))
    assert draws.shape == (3, 400_000)
    means = 2.0 * np.exp(-theta * times)
    variances = rho**2 / theta * -np.expm1(-2 * theta * times)
    covariance = np.array(
        [
            [np.exp(-theta * abs(s - t)) * variances[min(i, j)] for j, s in enumerate(times)]
            for i, t in enumerate(times)
        ]
    )
    np.testing.assert_allclose(np.mean(draws, axis=1), means, atol=0.012)
    np.testing.assert_allclose(np.cov(draws), covariance, atol=0.02)
    # semigroup: the variance of two short runs is that of one long run
    for i in (0, 1):
        gap = times[i + 1] - times[i]
        more = rho**2 / theta * -np.expm1(-2 * theta * gap)
        close(np.exp(-2 * theta * gap) * variances[i] + more, variances[i + 1])
    brownian = amp.HierarchicalRelease(0.0, 1.0, [0.5, 1.0])
    close(jaxdp.epsilon(brownian, 1e-5), jaxdp.epsilon(jaxdp.Brownian(0.5), 1e-5))
    tree = m.sample(jax.random.key(0), {"a": jnp.zeros(2), "b": jnp.zeros(())})
    assert tree["a"].shape == (3, 2)
    for times, match in (([1.0, 0.5], "increasing"), ([0.0, 0.5], "times"), (1.0, "times")):
        with pytest.raises(ValueError, match=match):
            amp.HierarchicalRelease(1.0, 1.0, times)
    bad = jit(lambda s: jaxdp.delta(amp.HierarchicalRelease(1.0, 1.0, s), 0.1))
    assert np.isnan(bad(jnp.array([1.0, 0.5])))


def test_calibrated_error_never_above_the_shrunk_gaussian():
    """Breaks when one of 1000 designs is worse than the optimally post-processed Gaussian's.

    One vmapped call; the Gaussian's own sigma comes from its (epsilon, delta) curve.
    """
    rng = np.random.default_rng(1)
    d = np.exp(rng.uniform(0, np.log(1e6), 1000))
    norm, sensitivity = np.exp(rng.uniform(np.log(0.01), np.log(100), (2, 1000)))
    eps = np.exp(rng.uniform(np.log(1e-3), np.log(20), 1000))
    delta = 10.0 ** rng.uniform(-12, -2, 1000)

    def one(eps, delta, norm, d, sensitivity):
        return design.ornstein_uhlenbeck(
            epsilon=eps, delta=delta, norm=norm, dimension=d, sensitivity=sensitivity
        )

    found = jit(jax.vmap(one))(eps, delta, norm, d, sensitivity)
    assert np.all(found.status == calibrate.Status.SOLVED)
    sigma = sensitivity / np.asarray(jaxdp.epsilon_delta_to_gdp(eps, delta))
    gaussian = d * sigma**2
    shrunk = gaussian * norm**2 / (norm**2 + gaussian)
    assert np.all(found.objective <= shrunk * (1 + 1e-6))
    assert np.all(found.delta <= delta)
    assert np.all(jaxdp.delta(found.value, eps) <= delta)
    close(found.value.mean_squared_error(norm, d), found.objective, rtol=1e-11)
    assert np.all(amp.dominates_gaussian(found.value, norm, d))
    again = design.ornstein_uhlenbeck(
        epsilon=eps, delta=delta, norm=norm, dimension=d, sensitivity=sensitivity
    )
    close(again.objective, found.objective, rtol=1e-11)


def test_calibrated_design_is_a_minimum():
    """Breaks when another theta with the same privacy has less worst-case error."""
    target = {"epsilon": 0.7, "delta": 1e-6, "norm": 3.0, "dimension": 12.0, "sensitivity": 0.4}
    found = design.ornstein_uhlenbeck(**target, t=2.5)
    close(jaxdp.delta(found.value, 0.7), 1e-6, rtol=1e-9)
    mu = float(jaxdp.epsilon_delta_to_gdp(0.7, 1e-6))
    for factor in (0.7, 0.99, 1.01, 1.5):
        theta = float(found.value.theta) * factor
        rho = 0.4 / mu * np.sqrt(theta / np.expm1(2 * theta * 2.5))
        other = jaxdp.OrnsteinUhlenbeck(theta, rho, 2.5, 0.4)
        assert float(other.mean_squared_error(3.0, 12.0)) > float(found.objective)
    f = lambda e: design.ornstein_uhlenbeck(**(target | {"epsilon": e})).objective  # noqa: E731
    close(jax.grad(f)(0.7), (f(0.7 + 1e-6) - f(0.7 - 1e-6)) / 2e-6, rtol=1e-5)
    with jax.enable_x64(False):
        narrow = design.ornstein_uhlenbeck(**target)
        assert narrow.value.theta.dtype == np.float32
        privacy = narrow.value
    assert float(jaxdp.delta(privacy, 0.7)) <= 1e-6


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 0.0}, "delta"),
        ({"norm": 0.0}, "norm"),
        ({"dimension": 0.0}, "dimension"),
        ({"sensitivity": -1.0}, "sensitivity"),
        ({"t": 0.0}, "t must"),
    ],
)
def test_bad_targets(changes, match):
    """Breaks when a target outside its domain gives parameters."""
    good = {"epsilon": 1.0, "delta": 1e-5, "norm": 1.0, "dimension": 2.0}
    with pytest.raises(ValueError, match=match):
        design.ornstein_uhlenbeck(**good | changes)
    traced = jit(lambda kw: design.ornstein_uhlenbeck(**kw))(good | changes)
    assert int(traced.status) == calibrate.Status.INVALID
    assert np.isnan(traced.value.theta)
    assert np.isnan(traced.objective)
    if match in ("norm", "dimension"):
        other = {"alpha": 2.0, "rdp": 1.0, "norm": 1.0, "dimension": 2.0}
        with pytest.raises(ValueError, match=match):
            design.ornstein_uhlenbeck_renyi(**other | changes)


def test_tiny_values_have_errors():
    """Breaks when 2e-44 is 0 +- 0, or a gradient that is lost in rounding is certain."""
    ou = jaxdp.Diffusion.ornstein_uhlenbeck(1.0, 1.0)
    with jax.enable_x64(True):
        for t, rest in ((50.0, 1e-9), (300.0, 1e-9), (400.0, 1.0)):
            found = ou.intrinsic_sensitivity(t, [0.0], [1.0])
            exact = 0.5 * np.exp(-2.0 * t)
            assert abs(float(found.value) - exact) <= float(found.error)
            assert 0.0 < float(found.error) <= max(rest * exact, 1e-307)
        lost = dataclasses.replace(
            jaxdp.Diffusion.brownian(), maximiser=lambda params, t, x, other: 0.0 * x + 1e6
        ).intrinsic_sensitivity(1.0, [0.0], [1e-11])
        assert abs(float(lost.value) - 2.5e-23) <= float(lost.error)
        same = ou.intrinsic_sensitivity(1.0, [0.5], [0.5])
        assert float(same.value) == float(same.error) == 0.0
