"""Matrix mechanisms: covariances against NumPy, bounds against quadrature and Monte Carlo."""

import jax
import jax.numpy as jnp
import matrix_truth as truth
import numpy as np
import pytest

import calibrate
import jaxdp
from jaxdp._matrix import _exchangeable, _linear, _strategies
from tests.programs import jit

QUICK = jaxdp.Renyi(orders=(2.0, 3.0, 5.0, 8.0, 12.0, 20.0, 32.0, 48.0, 64.0))
RATIOS = np.exp([0.0, 0.3, 1.0, 2.5])
BANDS = truth.square_root(4)


def _random_strategies(seed, count, n):
    """Lower triangular, non-negative: smooth, rough, banded, far from Toeplitz."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        matrix = np.tril(rng.uniform(0.0, 1.0, (n, n)) ** rng.choice([0.5, 3.0]))
        matrix *= np.exp(-rng.uniform(0.0, 3.0) * (np.arange(n)[:, None] - np.arange(n)[None, :]))
        matrix = np.tril(matrix) * rng.uniform(0.3, 1.0, n)
        yield matrix + np.eye(n) * 0.1, rng.uniform(0.5, 4.0)


@pytest.fixture
def in_float64():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize(("n", "b"), [(7, 3), (40, 8), (12, 12), (100, 1)])
def test_lags_bound_the_gram_matrix_tightly(n, b, in_float64):
    decay, scale = np.array([0.9, 0.5]), np.array([0.1, 0.3])
    blt = np.append(1.0, (scale * decay ** np.arange(n - 1)[:, None]).sum(axis=1))
    for strategy, matrix in (
        (_strategies.Toeplitz(BANDS), truth.toeplitz(BANDS, n)),
        (_strategies.Toeplitz(truth.square_root(n)), truth.toeplitz(truth.square_root(n), n)),
        (_strategies.BufferedToeplitz(decay, scale), truth.toeplitz(blt, n)),
        (_strategies.Dense(np.tril(np.ones((n, n)))), np.tril(np.ones((n, n)))),
    ):
        gram = truth.gram(matrix, b)
        lags = _strategies.lags(strategy, n, b)
        tiny = 1e-10 * gram.max()
        for d in range(b):
            entries = np.diag(gram, d)
            exact = 1e-13 * gram.max()  # of NumPy's own product
            assert entries.max() - exact <= lags.largest[d] <= entries.max() + tiny
            assert entries.min() + exact >= lags.least[d] >= entries.min() - tiny


def _lags(matrix):
    return _strategies.lags(_strategies.Dense(matrix), len(matrix), len(matrix) // 2)


def _covariance(common, pair, own, blocks):
    """Blocks of two bins, or of one where nothing is a bin's own."""
    if own == 0.0:
        return common + pair * np.eye(int(blocks))
    return (
        common
        + np.kron(pair * np.eye(int(blocks)), np.ones((2, 2)))
        + own * np.eye(2 * int(blocks))
    )


def test_every_candidate_bounds_every_curve(in_float64):
    """Against quadrature: Kahane, Loewner and patterns of bins from above, blocks from below."""
    loose = []
    evaluate = {
        family: jit(lambda matrix, sigma, family=family: family(_lags(matrix), sigma))
        for family in (_exchangeable.above, _exchangeable.below)
    }
    for b in (2, 3):
        for matrix, sigma in _random_strategies(b, 4, 2 * b):
            gram = truth.gram(matrix, b) / sigma**2
            exact = truth.curves(gram, RATIOS)
            for family, sign in ((_exchangeable.above, 1.0), (_exchangeable.below, -1.0)):
                candidates = evaluate[family](matrix, sigma)
                best = np.full((2, RATIOS.size), np.inf)
                for candidate in {tuple(map(float, x)) for x in zip(*candidates, strict=True)}:
                    found = np.array(truth.curves(_covariance(*candidate), RATIOS))
                    assert np.all(sign * (found - exact) >= -1e-6)
                    best = np.minimum(best, sign * (found - exact))
                loose.append(best.max())
    assert np.mean(loose) < 0.1


def test_long_patterns_apart_from_short_ones_are_the_same(monkeypatch, in_float64):
    """Breaks when a pattern's blocks are more than the places it is given."""
    lags = _strategies.lags(_strategies.Toeplitz(truth.square_root(90)), 90, 45)
    whole = np.stack(_exchangeable.above(lags, 2.0))
    monkeypatch.setattr(_exchangeable, "_LONG", 0)
    apart = np.stack(_exchangeable.above(lags, 2.0))
    for rows in (whole, apart):
        rows[:] = np.round(rows, 9)
    np.testing.assert_array_equal(*(x[:, np.lexsort(x)] for x in (whole, apart)))


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_tests_are_below_every_curve_and_near_it(direction, in_float64):
    index, gaps = ("remove", "add").index(direction), []
    responses = jit(lambda matrix: _linear.responses(_strategies.Dense(matrix), 6, 3))
    log_delta = jax.vmap(lambda r, e: _linear.log_delta(r, e, direction), (None, 0))
    log_delta = jit(log_delta)
    for matrix, sigma in _random_strategies(7, 6, 6):
        gram = truth.gram(matrix, 3) / sigma**2
        exact = truth.curves(gram, RATIOS)[index]
        r = responses(matrix) / sigma
        below = np.exp(log_delta(r, np.log(RATIOS)))
        assert np.all(np.array(below) <= exact + 1e-7)
        gaps.append(np.max(exact - below))
    # the inverse reading of the same tests
    epsilon = _linear.epsilon(r, jnp.log(exact[1]), direction)
    assert 0.0 < epsilon <= np.log(RATIOS[1]) + 1e-5
    assert np.mean(gaps) < 0.03


SETTINGS = (  # the first bands of a square root, sigma, the truth at delta = 1e-4 by Monte Carlo
    (1000, 8.0, 3.86),
    (1000, 16.0, 1.71),
    (4, 8.0, 0.245),
    (4, 4.0, 0.65),
    (16, 8.0, 0.54),
)


@pytest.mark.slow
def test_a_hundred_bins_against_monte_carlo():
    delta, direction = 0.01, "remove"
    columns = [np.pad(truth.square_root(p), (0, 1000 - p)) for p, _, _ in SETTINGS]

    def bounds(column, sigma):
        run = jaxdp.MatrixMechanism(column, sigma, num_steps=1000, num_bins=100)
        return jaxdp.epsilon_bounds(run, delta, direction=direction)

    low, high = jax.vmap(bounds)(jnp.array(columns), jnp.array([s for _, s, _ in SETTINGS]))
    for i, (p, sigma, _) in enumerate(SETTINGS):
        assert 0.55 * high[i] < low[i] < high[i]
        matrix = truth.toeplitz(truth.square_root(p), 1000)
        gram = truth.gram(matrix, 100) / sigma**2
        # at epsilon = low the true delta is not below, at high not above the target
        assert truth.monte_carlo(gram, low[i], 100_000, 1, direction)[1] >= delta
        assert truth.monte_carlo(gram, high[i], 100_000, 2, direction)[0] <= delta


def test_identity_is_random_allocation():
    run = jaxdp.MatrixMechanism(np.eye(30), 2.0)
    plain = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 30)
    assert run.majorant(1e-5) == plain
    ask = {"direction": "add", "method": jaxdp.Renyi()}
    assert jaxdp.epsilon(run, 1e-5, **ask) == jaxdp.epsilon(plain, 1e-5, **ask)
    epochs = jaxdp.MatrixMechanism([2.0], 12.0, num_steps=120, num_bins=30)
    same = jaxdp.RandomAllocation(jaxdp.Gaussian(3.0), 30)
    found = jaxdp.epsilon(epochs, 1e-5, **ask)
    np.testing.assert_allclose(found, jaxdp.epsilon(same, 1e-5, **ask), rtol=1e-6)


def test_fixed_order_is_the_gaussian_of_the_largest_sum_of_columns():
    column, n, b = truth.square_root(50), 50, 20
    gram = truth.gram(truth.toeplitz(column, n), b)
    run = jaxdp.MatrixMechanism(column, 3.0, num_steps=n, num_bins=b, sampling="fixed")
    gaussian = jaxdp.Gaussian(3.0, np.sqrt(np.diag(gram).max()))
    for value, exact in zip(
        jaxdp.epsilon_bounds(run, 1e-6), jaxdp.epsilon_bounds(gaussian, 1e-6), strict=True
    ):
        np.testing.assert_allclose(value, exact, rtol=1e-6)


def test_cyclic_poisson_is_a_composition_of_sampled_gaussians():
    n = 41  # the column of the last step has one entry
    run = jaxdp.MatrixMechanism(
        BANDS, 2.0, num_steps=n, num_bins=10, sampling="cyclic poisson", sampling_probability=0.1
    )
    norms = [np.linalg.norm(BANDS)] * 4 + [np.linalg.norm(BANDS[: min(4, n - 40)])]
    parts = [jaxdp.PoissonSampled(jaxdp.Gaussian(2.0, s), 0.1) for s in norms]
    for order in (2.0, 9.0):
        exact = sum(float(jaxdp.renyi(part, order)) for part in parts)
        np.testing.assert_allclose(jaxdp.renyi(run, order), exact, rtol=1e-5)


def _epsilon(column, sigma):
    run = jaxdp.MatrixMechanism(column, sigma, num_steps=60, num_bins=20)
    return jaxdp.epsilon(run, 1e-5, direction="remove", method=QUICK)


def test_gradients_agree_with_differences_under_jit_and_vmap(in_float64):
    column = jnp.asarray(BANDS)
    sigmas = jnp.array([1.5, 6.0])
    evaluate = jit(jax.vmap(_epsilon, (None, 0)))
    grads = jit(jax.vmap(jax.grad(_epsilon, (0, 1)), (None, 0)))(column, sigmas)
    step = 1e-5
    for i in range(4):
        shift = jnp.zeros(4).at[i].set(step)
        slope = (evaluate(column + shift, sigmas) - evaluate(column - shift, sigmas)) / (2 * step)
        np.testing.assert_allclose(grads[0][:, i], slope, rtol=1e-3, atol=1e-6)
    slope = (evaluate(column, sigmas + step) - evaluate(column, sigmas - step)) / (2 * step)
    np.testing.assert_allclose(grads[1], slope, rtol=1e-3)
    plain = [_epsilon(column, float(s)) for s in sigmas]
    np.testing.assert_allclose(evaluate(column, sigmas), plain, rtol=1e-9)
    # what is traced and wrong has no answer
    assert np.all(np.isnan(evaluate(column.at[1].set(-0.1), sigmas)))
    assert np.isnan(evaluate(column, jnp.array([-1.0, 1.0]))[0])


@pytest.mark.slow
def test_gradients_of_the_engine_agree_with_differences(in_float64):
    """Breaks when a choice of the pair above carries a gradient, or its cells lose theirs."""

    def epsilon(x):
        run = jaxdp.MatrixMechanism(x[:4], x[4], num_steps=60, num_bins=20)
        return jaxdp.epsilon(run, 1e-5, direction="remove")

    at, step = jnp.append(jnp.asarray(BANDS), 3.0), 1e-4
    shifts = step * jnp.eye(5)
    ends = jit(lambda x: jax.lax.map(epsilon, x))(jnp.concatenate([at + shifts, at - shifts]))
    slopes = (ends[:5] - ends[5:]) / (2.0 * step)
    np.testing.assert_allclose(jit(jax.grad(epsilon))(at), slopes, rtol=1e-3)


@pytest.mark.parametrize(
    ("column", "steps", "bins", "sigma"), [([1.0, 0.5], 4, 2, 3.0), (np.ones(4), 8, 4, 10.0)]
)
def test_gradients_of_one_block(column, steps, bins, sigma, in_float64):
    """Breaks where the modulus of an eigenvalue is 0: nan, by ordinary settings of few bins."""

    def epsilon(log_sigma):
        m = jaxdp.MatrixMechanism(column, jnp.exp(log_sigma), num_steps=steps, num_bins=bins)
        return jaxdp.epsilon(m, 1e-5, direction="remove")

    at, h = np.log(sigma), 0.01
    secant = (epsilon(at + h) - epsilon(at - h)) / (2.0 * h)
    assert jax.grad(epsilon)(at) == pytest.approx(float(secant), rel=5e-3)


@pytest.mark.parametrize(
    "sampling",
    [
        {"sampling": "fixed", "num_bins": 20},
        {"sampling": "cyclic poisson", "sampling_probability": 0.1},
    ],
    ids=["fixed", "cyclic"],
)
def test_sigma_is_calibrated(sampling):
    """Breaks when a search asks for the one law that a mechanism known by bounds has not."""

    def build(sigma):
        return jaxdp.MatrixMechanism(BANDS, sigma, num_steps=60, **sampling)

    solution = calibrate.solve(build, epsilon=1.0, delta=1e-5)
    assert solution.status == calibrate.Status.SOLVED
    assert 0.99999 < jaxdp.epsilon(build(solution.value), 1e-5) <= 1.0


@pytest.mark.parametrize("sigma", [1.0, 4.0])
def test_renyi_divergences_are_finite_and_close(sigma, in_float64):
    """Breaks when they are read from a pair that has none: all were infinite.

    Of order 2, to remove, they are log mean_ij e^{G_ij}.
    """
    gram = truth.gram(truth.toeplitz([1.0, 0.5], 12), 4) / sigma**2
    exact = np.log(np.mean(np.exp(gram)))
    m = jaxdp.MatrixMechanism([1.0, 0.5], sigma, num_steps=12, num_bins=4)
    found = float(jaxdp.renyi(m, 2.0, direction="remove"))
    assert exact <= found <= 1.3 * exact
    orders = np.array([1.0, 1.5, 3.0, 10.0])
    rising = np.asarray(jaxdp.renyi(m, orders))
    assert np.all(np.isfinite(rising))
    assert np.all(np.diff(rising) > 0.0)


class _Buffered:  # as jax_privacy.matrix_factorization.buffered_toeplitz.BufferedToeplitz
    buf_decay, output_scale = np.array([0.9, 0.5]), np.array([0.1, 0.3])


class _Materialised:
    def materialize(self, n):
        return truth.toeplitz(BANDS, n)


def test_strategies_of_other_libraries_are_taken():
    column = [1.0, *(np.array([[0.9], [0.5]]) ** np.arange(19) * [[0.1], [0.3]]).sum(axis=0)]
    sizes = {"num_steps": 20, "num_bins": 10, "sampling": "fixed"}
    for other, same in ((_Buffered(), column), (_Materialised(), BANDS)):
        values = [
            jaxdp.epsilon(jaxdp.MatrixMechanism(s, 2.0, **sizes), 1e-5) for s in (other, same)
        ]
        np.testing.assert_allclose(*values, rtol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "options", "named"),
    [
        (([1.0, -0.5], 1.0), {"num_steps": 4}, "strategy"),
        (([0.0, 0.5], 1.0), {"num_steps": 4}, "strategy"),
        (([1.0, 0.5], 1.0), {}, "num_steps"),
        (([1.0, 0.5, 0.2], 1.0), {"num_steps": 2}, "strategy"),
        ((1.0, 1.0), {"num_steps": 2}, "strategy"),
        ((np.ones((3, 3)), 1.0), {}, "strategy"),
        ((np.ones((3, 2)), 1.0), {}, "strategy"),
        ((np.eye(3), 1.0), {"num_steps": 4}, "num_steps"),
        ((np.eye(3), 0.0), {}, "sigma"),
        ((np.eye(3), 1.0), {"num_bins": 4}, "num_bins"),
        ((np.eye(3), 1.0), {"num_bins": 1.5}, "num_bins"),
        ((np.eye(3), 1.0), {"sampling": "poisson"}, "sampling"),
        ((np.eye(3), 1.0), {"sampling": "cyclic poisson"}, "sampling_probability"),
        ((np.eye(3), 1.0), {"sampling_probability": 0.1}, "sampling_probability"),
        (
            (np.tril(np.ones((3, 3))), 1.0),
            {"num_bins": 2, "sampling": "cyclic poisson", "sampling_probability": 0.1},
            "strategy",
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(arguments, options, named):
    with pytest.raises(ValueError, match=named):
        jaxdp.MatrixMechanism(*arguments, **options)


def test_it_is_no_part_of_other_mechanisms():
    run = jaxdp.MatrixMechanism(BANDS, 2.0, num_steps=20)
    for combine in (
        lambda m: jaxdp.Composed([m]),
        lambda m: jaxdp.Repeated(m, 2),
        lambda m: jaxdp.PoissonSampled(m, 0.1),
        lambda m: jaxdp.RandomAllocation(m, 3),
        jaxdp.privacy_loss,
    ):
        with pytest.raises(TypeError, match=r"majorant\(delta\)"):
            combine(run)
    with pytest.raises(ValueError, match="delta"):
        run.majorant(0.0)


def test_it_says_what_it_is_and_releases():
    run = jaxdp.MatrixMechanism([1.0, 0.5], 2.0, num_steps=20)
    assert repr(run) == (
        "MatrixMechanism(strategy=Toeplitz(column=[1. , 0.5]), sigma=2.0, "
        "num_steps=20, num_bins=20)"
    )
    assert run == jaxdp.MatrixMechanism([1.0, 0.5], 2, num_steps=20)
    assert run != jaxdp.MatrixMechanism([1.0, 0.6], 2.0, num_steps=20)
    value = jnp.ones((20, 500))
    released = run.sample(jax.random.key(0), value)
    np.testing.assert_allclose(released[1:].mean(), 1.5, atol=0.1)
    np.testing.assert_allclose(released[1:].std(), 2.0, atol=0.1)
