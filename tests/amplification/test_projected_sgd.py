"""Noisy projected SGD: Theorem 5 as printed and sharper, and an audit of the algorithm itself."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest
from scipy import stats

import jaxdp
from jaxdp import _amplification as amp


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def close(got, want, rtol=1e-12):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=0.0)


@pytest.mark.parametrize(
    "case", oracle.cases("iteration", "thm5") + oracle.cases("iteration", "sharp5")
)
def test_oracle(case):
    """Breaks when epsilon_i, printed or sharper, is off in the 12th digit."""
    sgd = amp.NoisyProjectedSGD(
        case["C"], case["beta"], case["rho"], case["eta"], case["sigma"], case["n"], case["i"]
    )
    close(sgd.printed_rate() if case.name.startswith("thm5") else sgd.rate(), case.value)


def random_sgd(count, seed, num_records=30):
    rng = np.random.default_rng(seed)
    beta = np.exp(rng.normal(size=count))
    rho = beta * rng.uniform(0.0, 1.0, count)
    eta = rng.uniform(0.05, 1.0, count) * 2.0 / (beta + rho)
    c, sigma = np.exp(rng.normal(size=(2, count)))
    return c, beta, rho, eta, sigma, num_records


def test_never_above_theorem_5():
    """Breaks when the sharper form exceeds the printed one at any record."""
    parameters = [p if np.ndim(p) == 0 else p[:, None] for p in random_sgd(200, 1)]
    sgd = amp.NoisyProjectedSGD(*parameters, record=np.arange(1, 31))
    sharp, printed = np.asarray(sgd.rate()), np.asarray(sgd.printed_rate())
    assert sharp.shape == (200, 30)
    assert np.all(sharp <= printed * (1 + 1e-13))
    assert np.all(np.diff(sharp, axis=1) >= 0.0)
    close(sharp[:, -1:], printed[:, -1:])
    close(jaxdp.renyi(sgd, 3.0), 3.0 * sharp, rtol=1e-11)


def test_same_as_the_general_iteration():
    """Breaks when the closed form disagrees with the per-step scan at the record's position."""
    c, beta, rho, eta, sigma, n = (p if np.ndim(p) == 0 else p[0] for p in random_sgd(1, 2))
    sgd = amp.NoisyProjectedSGD(c, beta, rho, eta, sigma, n)
    length = max(abs(1 - eta * rho), abs(1 - eta * beta))
    steps = amp.NoisyIteration(np.full(n, length), eta * sigma, 2 * eta * c)
    close(np.sqrt(2 * sgd.per_record().rate()), steps.all_positions().mu, rtol=1e-11)


def test_special_cases():
    """Breaks at L = 0, rho = 0, eta = 2/beta, or for composition over passes."""
    flat = amp.NoisyProjectedSGD(1.0, 1.0, 0.0, 2.0, 3.0, 5).per_record()
    close(flat.rate(), 2.0 / 9.0 / np.arange(5, 0, -1))
    assert np.all(np.isnan(amp.NoisyProjectedSGD(1.0, 1.0, 0.5, 1.5, 3.0, 5).printed_rate()))
    forgets = amp.NoisyProjectedSGD(1.0, 2.0, 2.0, 0.5, 1.0, 4).per_record()
    assert np.all(np.asarray(forgets.rate())[:3] < 1e-290)
    close(forgets.rate()[3], 2.0)
    sgd = amp.NoisyProjectedSGD(1.0, 1.0, 0.2, 1.0, 5.0, 10)
    close(jaxdp.renyi(jaxdp.Repeated(sgd, 3), 2.0), 3.0 * jaxdp.renyi(sgd, 2.0))
    released = sgd.sample(jax.random.key(0), jnp.zeros(100_000))
    np.testing.assert_allclose(np.std(released), 2.0 / np.sqrt(2 * sgd.rate()), rtol=2e-2)


def quadratic(model, record):
    """Curvature 1 within the ball, gradient model - record."""
    return 0.5 * jnp.sum((model - record) ** 2)


def test_run_is_algorithm_1():
    """Breaks when the order, the noise scale or the projection of the algorithm is wrong."""
    rng = np.random.default_rng(0)
    data = jnp.asarray(rng.normal(size=(6, 3)))
    sgd = amp.NoisyProjectedSGD(1.0, 1.0, 1.0, 0.3, 1e-9, 6)
    model = jnp.full(3, 0.1)
    for _ in range(2):
        for record in data:
            model = model - 0.3 * (model - record)
            model = model * jnp.minimum(1.0, 0.8 / jnp.linalg.norm(model))
    out = sgd.run(jax.random.key(1), data, quadratic, jnp.full(3, 0.1), radius=0.8, passes=2)
    np.testing.assert_allclose(out, model, atol=1e-7)
    tree = sgd.run(
        jax.random.key(1),
        {"a": data[:, :2], "b": data[:, 2:]},
        lambda m, r: quadratic(m["a"], r["a"]) + quadratic(m["b"], r["b"]),
        {"a": jnp.full(2, 0.1), "b": jnp.full(1, 0.1)},
        radius=0.8,
        passes=2,
    )
    np.testing.assert_allclose(jnp.concatenate([tree["a"], tree["b"]]), model, atol=1e-7)
    away = sgd.run(jax.random.key(1), data, quadratic, jnp.ones(3), radius=0.5, center=5.0)
    assert float(jnp.linalg.norm(away - 5.0)) <= 0.5 + 1e-12


def test_run_in_32_bits():
    """Breaks when the algorithm changes the caller's precision."""
    with jax.enable_x64(False):
        sgd = amp.NoisyProjectedSGD(1.0, 1.0, 1.0, 0.3, 0.1, 6)
        out = sgd.run(jax.random.key(1), jnp.zeros((6, 3)), quadratic, jnp.ones(3), radius=2.0)
        assert out.dtype == jnp.float32


@pytest.mark.parametrize("record", [1, 4, 6])
def test_audit_on_a_quadratic(record):
    """Breaks when an empirical hockey-stick divergence exceeds the certified one.

    One dimension, loss (w - z)^2/2, no active projection: the law is Gaussian and known, the
    bound tight. Thresholds are fixed in advance; Clopper-Pearson intervals at 1e-6.
    """
    n, eta, sigma, runs = 6, 0.4, 1.0, 200_000
    sgd = amp.NoisyProjectedSGD(0.5, 1.0, 1.0, eta, sigma, n, record)
    data = jnp.zeros((n, 1))
    other = data.at[record - 1, 0].set(1.0)  # gradients differ by 1 = 2 C
    keys = jax.random.split(jax.random.key(7), 2 * runs).reshape(2, runs)

    @jax.jit
    def final(run_keys, records):
        run = lambda k: sgd.run(k, records, quadratic, jnp.zeros(1), radius=1e3)[0]  # noqa: E731
        return jax.vmap(run)(run_keys)

    zero, one = (np.asarray(final(k, d)) for k, d in zip(keys, (data, other), strict=True))
    shrink = 1.0 - eta
    shift = eta * shrink ** (n - record)
    std = eta * sigma * np.sqrt(np.sum(shrink ** (2.0 * np.arange(n))))
    assert abs(one.mean() - zero.mean() - shift) < 6 * std * np.sqrt(2.0 / runs)
    np.testing.assert_allclose(zero.std(), std, rtol=1e-2)
    certified_mu = np.sqrt(2 * float(sgd.rate()))
    # steps before the record add noise too, which the guarantee for record i does not count
    later = np.sqrt(np.sum(shrink ** (2.0 * np.arange(n - record + 1))))
    close(certified_mu, shift / (eta * sigma * later))
    for eps in (0.0, 0.2, 1.0):
        certified = float(jaxdp.delta(sgd, eps))
        for threshold in shift / 2 + std * np.array([-0.5, 0.0, 0.5, 1.0, 2.0]):
            hits = np.sum(one > threshold), np.sum(zero > threshold)
            lower = stats.beta.ppf(1e-6, hits[0], runs - hits[0] + 1)
            upper = stats.beta.ppf(1 - 1e-6, hits[1] + 1, runs - hits[1])
            assert lower - np.exp(eps) * upper <= certified
        if record == 1:  # tight: the best threshold's estimate reaches the certified value
            best = std**2 * eps / shift + shift / 2
            estimate = np.mean(one > best) - np.exp(eps) * np.mean(zero > best)
            np.testing.assert_allclose(estimate, certified, atol=6e-3)


def test_gradients_and_32_bit_callers():
    """Breaks when a derivative is wrong or a 32-bit bound is below the 64-bit one."""
    f = lambda eta, sigma: jaxdp.epsilon(  # noqa: E731
        amp.NoisyProjectedSGD(1.0, 1.0, 0.3, eta, sigma, 20, 15), 1e-5
    )
    got, h = jax.jit(jax.grad(f, (0, 1)))(0.7, 2.0), 1e-6
    close(got[0], (f(0.7 + h, 2.0) - f(0.7 - h, 2.0)) / (2 * h), rtol=1e-5)
    close(got[1], (f(0.7, 2.0 + h) - f(0.7, 2.0 - h)) / (2 * h), rtol=1e-5)
    wide = amp.NoisyProjectedSGD(1.0, 1.0, 0.3, 0.7, 2.0, 20).per_record()
    exact = np.asarray(jaxdp.epsilon(wide, 1e-5)), np.asarray(wide.printed_rate())
    with jax.enable_x64(False):
        narrow = jaxdp.epsilon(wide, 1e-5), wide.printed_rate()
    for small, large in zip(narrow, exact, strict=True):
        assert small.dtype == np.float32
        assert np.all(np.float64(small) >= large)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"learning_rate": 2.1}, "learning_rate must be <= 2/smoothness"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"strong_convexity": 1.5}, "strong_convexity"),
        ({"strong_convexity": -0.1}, "strong_convexity"),
        ({"sigma": 0.0}, "sigma"),
        ({"record": 11}, "record"),
        ({"record": 0}, "record"),
        ({"num_records": 0}, "num_records"),
        ({"lipschitz_constant": np.inf}, "lipschitz_constant"),
    ],
)
def test_bad_input(changes, match):
    """Breaks when a parameter outside its range is accepted, known or traced."""
    good = {
        "lipschitz_constant": 1.0,
        "smoothness": 1.0,
        "strong_convexity": 0.5,
        "learning_rate": 1.0,
        "sigma": 1.0,
        "num_records": 10,
    }
    with pytest.raises(ValueError, match=match):
        amp.NoisyProjectedSGD(**good | changes)

    @jax.jit
    def traced(parameters):
        sgd = amp.NoisyProjectedSGD(**parameters)
        return jaxdp.epsilon(sgd, 1e-5), sgd.rate(), sgd.printed_rate()

    assert not any(np.isfinite(x) for x in traced(good | changes))


def test_bad_runs():
    """Breaks when the data or options do not fit and no error says so."""
    sgd = amp.NoisyProjectedSGD(1.0, 1.0, 1.0, 0.3, 1.0, 6)
    call = lambda data, **kw: sgd.run(jax.random.key(0), data, quadratic, jnp.zeros(2), **kw)  # noqa: E731
    with pytest.raises(ValueError, match="num_records"):
        call(jnp.zeros((5, 2)))
    with pytest.raises(ValueError, match="radius"):
        call(jnp.zeros((6, 2)), radius=-1.0)
    with pytest.raises(ValueError, match="passes"):
        call(jnp.zeros((6, 2)), passes=0)
    with pytest.raises(ValueError, match="num_records"):
        jax.jit(lambda n: amp.NoisyProjectedSGD(1.0, 1.0, 1.0, 0.3, 1.0, n).per_record().rate())(6)


def test_slopes_at_ties():
    """Breaks when a tie of contractions, L = 1 or the last record has half a slope or none."""

    def rate(v):
        return jaxdp.NoisyProjectedSGD(*v).rate()

    with jax.enable_x64(True):
        # eta (beta + rho) = 2: both contractions are 1/3; then L = 1 - eta rho = 1, and i = n
        tie, flat, last = (
            np.array(x)
            for x in ((1, 1, 0.5, 4 / 3, 1, 3, 2), (1, 1, 0, 1, 1, 9, 3), (1, 1, 0.2, 1, 1, 9, 9))
        )
        slope = jax.grad(rate)
        for at, index, step in ((tie, 1, 1e-6), (tie, 2, -1e-6), (flat, 2, 1e-7), (last, 5, 1e-6)):
            move = step * np.eye(7)[index]
            ahead = (rate(at + move) - rate(at)) / step
            behind = 0.0 if at is tie else ahead
            got = float(slope(jnp.asarray(at, float))[index])
            assert min(abs(got - ahead), abs(got - behind)) <= 1e-4 * abs(ahead), (at, index, got)
