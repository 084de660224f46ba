"""Amplification by iteration: the oracle, tightness, long runs, positions, Laplace noise."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import oracle
import pytest
from scipy import optimize

import jaxdp
from jaxdp import _amplification as amp
from tests.programs import jit


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def close(got, want, rtol=1e-12):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=0.0)


@pytest.mark.parametrize(
    "case",
    [c for kind in ("eq3", "best_a", "eq2eq") for c in oracle.cases("iteration", kind)],
)
def test_oracle_constant(case):
    """Breaks when the optimum or a printed equation of Theorem 4 is off in the 12th digit."""
    length, sigma, r = case["L"], case["sigma"], case["r"]
    constant = amp.ConstantNoisyIteration(length, sigma, r, case["Delta"])
    steps = amp.NoisyIteration([length] * r, sigma, case["Delta"])
    if case.name.startswith("best"):
        close(jaxdp.renyi(constant, case["alpha"]), case.value)
        close(jaxdp.renyi(steps, case["alpha"]), case.value)
        close(steps.split_bound(case["alpha"], steps.optimal_split()), case.value)
    elif case.name.startswith("eq3"):
        close(constant.printed_bound(case["alpha"]), case.value)
        close(steps.printed_bound(case["alpha"]), case.value)
    else:
        close(steps.split_bound(case["alpha"], np.ones(r)), case.value)


@pytest.mark.parametrize("case", oracle.cases("iteration", "best_het"))
def test_oracle_per_step(case):
    """Breaks when per-step constants are combined in the wrong order."""
    steps = amp.NoisyIteration(case["L"], case["sigma"], case["Delta"])
    close(jaxdp.renyi(steps, case["alpha"]), case.value)


@pytest.mark.parametrize("case", oracle.cases("iteration", "ex3"))
def test_oracle_example_3(case):
    """Breaks when a Lipschitz map with noise after a Gaussian mechanism is miscounted."""
    steps = amp.NoisyIteration([1.0, case["L"]], [case["sigma1"], case["sigma2"]], case["Delta"])
    close(jaxdp.renyi(steps, case["alpha"]), case.value)


def random_steps(count, r, seed):
    rng = np.random.default_rng(seed)
    lipschitz = np.exp(rng.normal(0.0, 0.4, (count, r)))
    sigma = np.exp(rng.normal(0.0, 1.0, (count, r)))
    return lipschitz, sigma, np.exp(rng.normal(size=count))


def exact_mu(lipschitz, sigma, sensitivity):
    """|mean shift|/std of x -> L x + noise after all steps, in 50 digits."""
    with mp.workdps(50):
        shift, variance = mp.mpf(float(sensitivity)), mp.mpf(0)
        for length, std in zip(lipschitz, sigma, strict=True):
            shift *= mp.mpf(float(length))
            variance = mp.mpf(float(length)) ** 2 * variance + mp.mpf(float(std)) ** 2
        return shift / mp.sqrt(variance)


@pytest.mark.parametrize("r", [1, 2, 7, 40])
def test_optimal_split_is_the_exact_linear_law(r):
    """Breaks when the bound is not exactly the Rényi divergence of x -> L x + noise, or below."""
    lipschitz, sigma, sensitivity = random_steps(60, r, seed=r)
    m = amp.NoisyIteration(lipschitz, sigma, sensitivity)
    mu = [exact_mu(*row) for row in zip(lipschitz, sigma, sensitivity, strict=True)]
    got = np.asarray(jaxdp.renyi(m, 3.0))
    close(got, [float(1.5 * x**2) for x in mu])
    assert all(
        mp.mpf(float(g)) >= 1.5 * x**2 * (1 - mp.mpf(10) ** -15)
        for g, x in zip(got, mu, strict=True)
    )
    gaussian = jaxdp.Gaussian(1.0, np.array([float(x) for x in mu]))
    for query in (jaxdp.delta, jaxdp.log_delta):  # log delta is as large as (0.7/mu)^2
        close(query(m, 0.7), query(gaussian, 0.7), rtol=1e-11 if query is jaxdp.delta else 1e-12)
    logs = np.asarray(m.log_mu())
    close(np.exp(logs), [float(x) for x in mu])


@pytest.mark.parametrize("r", [1, 3, 12])
def test_never_above_any_split_or_the_printed_bounds(r):
    """Breaks when the optimum exceeds equation (2) at a random split, or equation (3)."""
    lipschitz, sigma, sensitivity = random_steps(400, r, seed=100 + r)
    m = amp.NoisyIteration(lipschitz, sigma, sensitivity)
    best = np.asarray(jaxdp.renyi(m, 5.0)) * (1 - 1e-13)
    rng = np.random.default_rng(r)
    for _ in range(10):
        split = rng.standard_gamma(0.5, (400, r)) + 1e-12
        assert np.all(best <= np.asarray(m.split_bound(5.0, split)))
    assert np.all(best <= np.asarray(m.printed_bound(5.0)))
    close(np.sum(m.optimal_split(), axis=-1), sensitivity)


def test_real_steps_and_limits_of_the_constant_form():
    """Breaks at L = 1, for L > 1 in the limit, for L = 0, or between integers."""
    mu2 = lambda *a: 2.0 * jaxdp.renyi(amp.ConstantNoisyIteration(*a), 1.0)  # noqa: E731
    close(mu2(1.0, 2.0, 8), 1.0 / 32.0)
    close(mu2(1.0 + 1e-9, 1.0, 1e6), mu2(1.0 - 1e-9, 1.0, 1e6), rtol=3e-3)
    close(mu2(1.1, 1.0, 1e6), 1.1**2 - 1.0, rtol=1e-11)
    assert 0.0 < float(mu2(0.0, 1.0, 3)) < 1e-290
    between = mu2(0.9, 1.0, np.array([3.0, 3.5, 4.0]))
    assert between[0] > between[1] > between[2]
    length, r = mp.mpf("0.9"), mp.mpf("3.5")
    with mp.workdps(40):
        length = mp.mpf(0.9)
        exact = length ** (2 * r) * (1 - length**2) / (1 - length ** (2 * r))
    close(between[1], float(exact))


def test_a_million_steps():
    """Breaks when long runs overflow, lose digits, or are slow."""
    r = 1_000_000
    for length in (1.0 + 1e-6, 1.001):
        m = amp.NoisyIteration(np.full(r, length), 1.0)
        close(m.log_mu(), amp.ConstantNoisyIteration(length, 1.0, r)._log_mu(), rtol=1e-11)
    deep = amp.NoisyIteration(np.full(r, 0.9), 1.0)
    log_mu = float(deep.log_mu())
    assert log_mu == pytest.approx(r * np.log(0.9) + 0.5 * np.log(1 - 0.81), rel=1e-11)
    assert float(jaxdp.epsilon(deep, 1e-10)) == 0.0
    assert 0.0 <= float(jaxdp.delta(deep, 1.0)) < 1e-300
    m = amp.NoisyIteration(np.full(r, 0.999), np.full(r, 2.0))
    slope = jax.grad(lambda s: amp.NoisyIteration(m.lipschitz, s, 1.0).log_mu())(jnp.full(r, 2.0))
    assert np.all(np.isfinite(slope))
    close(np.sum(slope) * 2.0, -1.0, rtol=1e-9)  # log mu is homogeneous of degree -1 in sigma


def test_positions():
    """Breaks when the differing record's own noise, or later steps, are miscounted."""
    lipschitz, sigma, _ = random_steps(1, 6, seed=4)
    lipschitz, sigma = lipschitz[0], sigma[0]
    m = amp.NoisyIteration(lipschitz, sigma, 0.7, position=np.arange(7))
    mu = np.sqrt(2.0 * np.asarray(jaxdp.renyi(m, 1.0)))
    close(mu[0], float(exact_mu(lipschitz, sigma, 0.7)))
    for i in range(1, 7):
        own = np.concatenate([[1.0], lipschitz[i:]])
        close(mu[i], float(exact_mu(own, sigma[i - 1 :], 0.7)))
    close(amp.NoisyIteration(lipschitz, sigma, 0.7).all_positions().mu, mu[1:])
    batch = amp.NoisyIteration(np.stack([lipschitz] * 3), sigma, [0.7, 1.4, 2.1])
    close(batch.all_positions().mu[1], 2.0 * mu[1:])


def test_forgetting_and_silent_steps():
    """Breaks when L = 0 or sigma = 0 at a step gives nan or a wrong sum."""
    m = amp.NoisyIteration([0.5, 0.0, 0.5], [1.0, 1.0, 0.0])
    assert float(m.log_mu()) == -np.inf
    assert float(jaxdp.delta(m, 0.1)) < 1e-300
    with pytest.raises(ValueError, match="sigma"):
        m.all_positions()
    mu = np.asarray(amp.NoisyIteration([0.5, 0.0, 0.5], 1.0).all_positions().mu)
    assert mu[0] < 1e-100
    close(mu[1:], [5.0**-0.5, 1.0])
    close(m.split_bound(2.0, [0.0, 1.0, 0.0]), 0.0)
    assert float(m.split_bound(2.0, [0.0, 0.0, 1.0])) == 0.0
    silent = amp.NoisyIteration([1.0, 2.0, 0.5], [0.0, 1.0, 0.0])
    close(jaxdp.renyi(silent, 2.0), 4.0)
    assert float(silent.split_bound(2.0, [1.0, 1.0, 0.0])) == np.inf
    slope = jax.grad(lambda s: jaxdp.renyi(amp.NoisyIteration([1.0, 2.0, 0.5], s), 2.0))(
        jnp.array([0.0, 1.0, 0.0])
    )
    assert np.all(np.isfinite(slope))


def test_sampled_linear_iteration_has_the_stated_law():
    """Breaks when the sampler's law is not the one that is accounted for."""
    m = amp.NoisyIteration([0.9, 0.5, 1.2], [1.0, 0.3, 0.7])
    constant = amp.ConstantNoisyIteration(0.8, 1.5, 4)
    for mechanism, shrink in ((m, 0.54), (constant, 0.8**4)):
        drawn = mechanism.sample(jax.random.key(1), jnp.full(400_000, 3.0))
        std = shrink / np.sqrt(2.0 * float(jaxdp.renyi(mechanism, 1.0)))
        assert abs(float(jnp.mean(drawn)) - 3.0 * shrink) < 5 * std / np.sqrt(400_000)
        assert abs(float(jnp.std(drawn)) / std - 1.0) < 5e-3


def test_transforms_and_composition():
    """Breaks when jit, vmap, grad, a composition or a 32-bit caller disagrees."""
    lipschitz, sigma, _ = random_steps(3, 5, seed=9)

    def value(length, std, sensitivity):
        return jaxdp.epsilon(amp.NoisyIteration(length, std, sensitivity), 1e-5)

    single = [value(a, b, 1.3) for a, b in zip(lipschitz, sigma, strict=True)]
    close(jit(jax.vmap(value, (0, 0, None)))(lipschitz, sigma, 1.3), single)
    close(value(lipschitz, sigma, 1.3), single)
    gradients = jax.grad(value, (0, 1, 2))(jnp.array(lipschitz[0]), jnp.array(sigma[0]), 1.3)
    rng = np.random.default_rng(1)
    direction = rng.normal(size=5), rng.normal(size=5), rng.normal()
    h = 1e-6
    points = [
        value(
            *(x + s * h * d for x, d in zip((lipschitz[0], sigma[0], 1.3), direction, strict=True))
        )
        for s in (1, -1)
    ]
    numeric = (points[0] - points[1]) / (2 * h)
    close(sum(np.sum(g * d) for g, d in zip(gradients, direction, strict=True)), numeric, rtol=1e-5)
    m = amp.NoisyIteration(lipschitz[0], sigma[0])
    four = jaxdp.Repeated(m, 4)
    twice = amp.NoisyIteration(lipschitz[0], sigma[0], 2.0)
    close(jaxdp.delta(four, 0.5), jaxdp.delta(twice, 0.5))
    with jax.enable_x64(False):
        narrow = jaxdp.epsilon(amp.NoisyIteration(lipschitz, sigma, 1.3), 1e-5)
        assert narrow.dtype == np.float32
        assert np.all(np.float64(narrow) >= np.asarray(single))
        f = jit(jax.grad(lambda s: jaxdp.epsilon(amp.NoisyIteration(lipschitz[0], s), 1e-5)))
        assert np.all(np.isfinite(f(jnp.asarray(sigma[0], jnp.float32))))


def test_gradient_in_real_steps():
    """Breaks when the constant form is not differentiable in L (through 1) and in r."""
    f = lambda length, r: jnp.log(jaxdp.renyi(amp.ConstantNoisyIteration(length, 1.0, r), 2.0))  # noqa: E731
    for length in (0.8, 1.0, 1.3):
        got = jax.grad(f, (0, 1))(length, 20.0)
        h = 1e-5
        close(got[0], (f(length + h, 20.0) - f(length - h, 20.0)) / (2 * h), rtol=1e-5)
        close(got[1], (f(length, 20.0 + h) - f(length, 20.0 - h)) / (2 * h), rtol=1e-4)


# --- Laplace noise ------------------------------------------------------------------------------


def laplace_renyi(alpha, z):
    return (
        np.logaddexp(
            np.log(alpha / (2 * alpha - 1)) + z * (alpha - 1),
            np.log((alpha - 1) / (2 * alpha - 1)) - z * alpha,
        )
    ) / (alpha - 1)


@pytest.mark.parametrize("alpha", [1.3, 2.0, 8.0, 64.0])
@pytest.mark.parametrize("scale", [[1.0, 1.0], [1.0, 3.0], [0.3, 1.0, 2.0, 0.7]])
def test_laplace_split_is_optimal(scale, alpha):
    """Breaks when the split is worse than scipy's optimum, or answers are above a split's."""
    scale = np.array(scale)
    m = amp.LaplaceIteration(scale, sensitivity=2.5)
    got = float(m.best_renyi(alpha))

    def objective(logits):
        w = np.exp(logits - logits.max())
        return np.sum(laplace_renyi(alpha, 2.5 * w / w.sum() / scale))

    starts = [np.zeros(len(scale)), 2 * np.log(scale), 6 * np.log(scale)]
    best = min(optimize.minimize(objective, s, method="BFGS", tol=1e-12).fun for s in starts)
    assert best * (1 - 1e-9) <= got <= best * (1 + 1e-9)
    weights = np.asarray(m.optimised(alpha).weights)
    close(np.sum(laplace_renyi(alpha, 2.5 * weights / scale)), got, rtol=1e-9)
    assert float(jaxdp.renyi(m, alpha)) <= got * (1 + 1e-12)
    assert got <= float(jaxdp.renyi(jaxdp.Laplace(scale.max(), 2.5), alpha)) * (1 + 1e-12)


def test_equal_split_is_repeated_noise_addition():
    """Breaks when equal weights are not n D(P + 1/n || P), or fall below the exact divergence."""
    for n, ratio in (
        (2, 1.474),
        (5, 1.818),
        (20, 1.963),
    ):  # bound over exact, order 2, in 50 digits
        bound = float(amp.LaplaceIteration(np.ones(n)).best_renyi(2.0))
        close(jaxdp.renyi(amp.LaplaceIteration(np.ones(n)), 2.0), bound / ratio, rtol=2e-3)
        close(bound, n * laplace_renyi(2.0, 1.0 / n), rtol=1e-10)
        y = np.linspace(-60.0, 60.0, 400_001)
        exact = np.log(np.sum(_repeated(n, y - 1.0) ** 2 / _repeated(n, y)) * (y[1] - y[0]))
        np.testing.assert_allclose(bound / exact, ratio, atol=2e-3)


def _repeated(n, x):
    x = np.abs(x)
    total = np.zeros_like(x)
    for j in range(n):
        weight = mp.factorial(2 * n - 2 - j) / (mp.factorial(j) * mp.factorial(n - 1 - j))
        total += float(weight / (2 ** (2 * n - 1) * mp.factorial(n - 1))) * (2 * x) ** j
    return np.exp(-x) * total


def test_laplace_queries_gradients_and_limits():
    """Breaks when the other queries, the pure limit or the derivatives of a split are wrong."""
    m = amp.LaplaceIteration([1.0, 2.0], [1.0, 0.5], 1.5)
    close(m.pure_epsilon(), 1.5 * 0.5 / 2.0)
    assert float(jaxdp.epsilon(m, 1e-6)) <= float(jaxdp.epsilon(m, 0.0))
    large = float(amp.LaplaceIteration([1.0, 2.0]).best_renyi(1e6))
    np.testing.assert_allclose(large, 0.5, rtol=1e-4)
    f = lambda s: amp.LaplaceIteration(s, sensitivity=2.0).best_renyi(4.0)  # noqa: E731
    scale, step = jnp.array([1.0, 1.7]), 1e-4
    for j in range(2):
        shift = step * np.eye(2)[j]
        numeric = (f(scale + shift) - f(scale - shift)) / (2 * step)
        close(jax.grad(f)(scale)[j], numeric, rtol=1e-4)
    several = amp.LaplaceIteration([1.0, 2.0]).best_renyi(np.array([2.0, 4.0, 8.0]))
    one = [amp.LaplaceIteration([1.0, 2.0]).best_renyi(a) for a in (2.0, 4.0, 8.0)]
    close(several, one)
    drawn = amp.LaplaceIteration([1.0, 2.0], [1.0, 0.5]).sample(
        jax.random.key(2), jnp.full(400_000, 1.0)
    )
    assert abs(float(jnp.mean(drawn)) - 0.5) < 0.03
    assert abs(float(jnp.var(drawn)) - (0.25 * 2 + 8.0)) < 0.1
    with jax.enable_x64(False):
        narrow = amp.LaplaceIteration([1.0, 2.0]).best_renyi(4.0)
        jitted = jit(lambda a: amp.LaplaceIteration([1.0, 2.0]).best_renyi(a))(4.0)
    assert narrow.dtype == jitted.dtype == np.float32
    assert min(float(narrow), float(jitted)) >= float(one[1])


def test_the_law_of_several_is_that_of_their_sum():
    """Breaks when compositions of equal steps are not those of the sum, or one step is no step."""
    edges = np.linspace(-1.1, 1.1, 23)
    pairs = [
        (amp.LaplaceIteration([2.0, 2.0]), jaxdp.LaplaceSum(2, 2.0)),
        (amp.LaplaceIteration([2.0]), jaxdp.Laplace(2.0)),
    ]
    with jax.enable_x64(True):
        for maps, noise in pairs:
            found, known = (jit(m._log_masses)(edges[:-1], edges[1:]) for m in (maps, noise))
            np.testing.assert_allclose(np.exp(found), np.exp(known), rtol=1e-11, atol=1e-300)


def test_laplace_answers_are_the_best_ones():
    """Breaks when a query is looser than a bound that is known, or below the law of the sum."""
    two = amp.LaplaceIteration([1.0, 2.0])
    epsilon = np.array([-0.3, 0.0, 0.1, 0.3, 0.49, 0.5])
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(two, epsilon))
    # the density of the sum, (4 f_2 - f_1)/3 for f_b of scale b
    y = np.linspace(-80.0, 80.0, 800_001)
    shifted, other = ((np.exp(-0.5 * z) - 0.5 * np.exp(-z)) / 3.0 for z in (abs(y - 1.0), abs(y)))
    step = y[1] - y[0]
    exact = np.array([np.maximum(shifted - np.exp(e) * other, 0.0).sum() * step for e in epsilon])
    assert (low <= exact + 1e-8).all()
    assert (exact <= high + 1e-8).all()
    for known in (jaxdp.Laplace(2.0), jaxdp.LaplaceSum(2, 1.0)):
        assert (high <= np.asarray(jaxdp.delta(known, epsilon)) * (1 + 1e-12)).all()
    close(jaxdp.epsilon(two, 0.0), two.pure_epsilon())
    close(jaxdp.renyi(two, np.inf), 0.5)
    # three of one scale, pulled back to before the first step
    maps = amp.LaplaceIteration([1.0, 0.5, 0.25], 0.5)
    same, law = (jaxdp.delta(m, epsilon) for m in (maps, jaxdp.LaplaceSum(3, 2.0)))
    np.testing.assert_allclose(same, law, rtol=1e-11)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: amp.NoisyIteration([-0.1], 1.0), "lipschitz"),
        (lambda: amp.NoisyIteration([1.0, 1.0], [0.0, 0.0]), "sigma"),
        (lambda: amp.NoisyIteration([1.0, 1.0], [1.0, 1.0, 1.0]), "number of steps"),
        (lambda: amp.NoisyIteration([], []), "number of steps"),
        (lambda: amp.NoisyIteration([1.0], 1.0, 0.0), "sensitivity"),
        (lambda: amp.NoisyIteration([1.0], 1.0, position=2), "position"),
        (lambda: amp.NoisyIteration([1.0], 1.0, position=0.5), "position"),
        (lambda: amp.NoisyIteration([1.0], 1.0).split_bound(2.0, [1.0, 1.0]), "split"),
        (lambda: amp.NoisyIteration([1.0], 1.0).split_bound(0.5, [1.0]), "alpha"),
        (lambda: amp.ConstantNoisyIteration(1.0, 1.0, 0.5), "steps"),
        (lambda: amp.ConstantNoisyIteration(1.0, 0.0, 2), "sigma"),
        (lambda: amp.LaplaceIteration(1.0), "scale"),
        (lambda: amp.LaplaceIteration([1.0, 0.0]), "scale"),
        (lambda: amp.LaplaceIteration([1.0, 1.0], weights=[0.0, 0.0]), "weights"),
        (lambda: amp.LaplaceIteration([1.0, 1.0], [1.0]), "lipschitz"),
        (lambda: amp.LaplaceIteration([1.0]).best_renyi(1.0), "alpha"),
    ],
)
def test_bad_input(call, match):
    """Breaks when a known value outside its domain is accepted."""
    with pytest.raises(ValueError, match=match):
        call()


def test_traced_bad_input_is_never_a_small_number():
    """Breaks when a traced value outside its domain gives a finite epsilon."""

    @jit
    def at(lipschitz, sigma, position):
        m = amp.NoisyIteration(lipschitz, sigma, 1.0, position)
        return jaxdp.epsilon(m, 1e-5), jaxdp.renyi(m, 2.0), m.log_mu()

    good, bad = jnp.array([0.5, 0.5]), jnp.array([0.5, -0.5])
    for args in ((bad, good, 0.0), (good, bad, 0.0), (good, good, 3.0), (good, good, 0.5)):
        assert not any(np.isfinite(x) for x in at(*args))
    silent = at(good, jnp.zeros(2), 0.0)
    assert not any(np.isfinite(x) for x in silent)
    f = jit(lambda s: amp.LaplaceIteration(s).best_renyi(2.0))
    assert not np.isfinite(f(bad))
