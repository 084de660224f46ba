"""Amplification by mixing: the oracle, random channels against exact curves, the transforms."""

import jax
import jax.numpy as jnp
import numpy as np
import oracle
import pytest

import jaxdp
from jaxdp import _amplification as amp
from tests.programs import jit


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def close(got, want):
    np.testing.assert_allclose(float(got), want, rtol=1e-12, atol=0.0)
    assert float(got) >= want * (1.0 - 1e-15)


@pytest.mark.parametrize("case", oracle.cases("mixing"))
def test_oracle(case):
    """Breaks when a line of Theorem 1 is wrong in the 12th digit, or rounds to the unsafe side."""
    eps, delta, gamma = case["eps"], case["delta"], case["gamma"]
    kind = case.name.split("_")[0]
    if kind == "dobrushin":
        close(amp.amplify_by_mixing(eps, delta, amp.Dobrushin(gamma)).delta, case.value)
        at = amp.Dobrushin(gamma, float(amp.dobrushin_epsilon(eps, delta)))
        close(amp.amplify_by_mixing(eps, delta, at).delta, case.value)
    elif kind == "epstilde":
        np.testing.assert_allclose(amp.dobrushin_epsilon(eps, delta), case.value, rtol=1e-12)
    elif kind == "eps":
        close(amp.amplify_by_mixing(eps, delta, amp.Doeblin(gamma)).epsilon, case.value)
        close(amp.amplify_by_mixing(eps, delta, amp.UltraMixing(gamma)).epsilon, case.value)
    else:
        condition = {"doeblin": amp.Doeblin, "ultra": amp.UltraMixing}[kind](gamma)
        close(amp.amplify_by_mixing(eps, delta, condition).delta, case.value)


def channels(count, size, seed):
    """Random pairs and square kernels, from nearly uniform to nearly deterministic, with zeros."""
    rng = np.random.default_rng(seed)
    sharp = 10 ** rng.uniform(-1.3, 1.3, (count, 1, 1))
    kernel = rng.standard_gamma(np.broadcast_to(sharp, (count, size, size))) + 1e-12
    kernel[: count // 10] *= rng.random((count // 10, size, size)) < 0.7
    kernel += 1e-300
    kernel /= kernel.sum(-1, keepdims=True)
    pair = rng.standard_gamma(np.broadcast_to(sharp, (count, 2, size))) + 1e-12
    pair /= pair.sum(-1, keepdims=True)
    return pair[:, 0], pair[:, 1], kernel, rng


def hockey_stick(p, q, eps):
    return np.maximum(p - np.exp(eps)[:, None] * q, 0.0).sum(-1)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_random_channels_stay_above_the_exact_divergence(size):
    """Breaks when any condition's (epsilon', delta') is below the exact post-processed curve."""
    p, q, kernel, rng = channels(4000, size, seed=size)
    eps = rng.uniform(0.0, 2.0, len(p)) * (rng.random(len(p)) < 0.9)
    mixed = np.einsum("ni,nij->nj", p, kernel), np.einsum("ni,nij->nj", q, kernel)
    for one, other, after, after_other in ((p, q, *mixed), (q, p, *mixed[::-1])):
        delta = hockey_stick(one, other, eps)
        needed = amp.dobrushin_epsilon(eps, delta)
        elsewhere = rng.uniform(0.0, 6.0, len(p))
        found = amp.mixing_coefficients(kernel)
        conditions = [
            *found,
            amp.mixing_coefficients(kernel, np.minimum(needed, 700.0)).dobrushin,
            amp.mixing_coefficients(kernel, elsewhere).dobrushin,
        ]
        for condition in conditions:
            pair = amp.amplify_by_mixing(eps, delta, condition)
            exact = hockey_stick(after, after_other, np.asarray(pair.epsilon))
            assert np.all(exact <= np.asarray(pair.delta) + 4e-16)
            assert np.all(np.asarray(pair.epsilon) <= eps)


def test_two_parameter_condition_is_tight():
    """Breaks when the curve carried down from a larger epsilon~ is not the worst one."""
    gamma, at = 0.01, 2.0
    # the extreme channel: (at, gamma)-local DP
    keep = np.exp(at) / (1 + np.exp(at)) * (1 - gamma)
    lose = 1 - gamma - keep
    kernel = np.array([[gamma, keep, lose, 0.0], [0.0, lose, keep, gamma]])
    eps, delta = 0.3, 0.2
    needed = float(amp.dobrushin_epsilon(eps, delta))
    assert needed < at
    exact = amp.mixing_coefficients(kernel, needed).dobrushin.gamma
    pair = amp.amplify_by_mixing(eps, delta, amp.Dobrushin(gamma, at))
    np.testing.assert_allclose(pair.delta / delta, exact, rtol=1e-12)


def test_coefficients_by_hand_and_powers():
    """Breaks when a coefficient, a power or their submultiplicativity is wrong."""
    _, _, kernel, _ = channels(200, 4, seed=11)
    found = amp.mixing_coefficients(kernel)
    tv = 0.5 * np.abs(kernel[:, :, None] - kernel[:, None]).sum(-1).max((1, 2))
    np.testing.assert_allclose(found.dobrushin.gamma, tv, rtol=1e-9)
    np.testing.assert_allclose(found.doeblin.gamma, 1 - kernel.min(1).sum(-1), rtol=1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.nanmin(kernel.min(1) / kernel.max(1), axis=-1)
    np.testing.assert_allclose(found.ultra_mixing.gamma, 1 - ratio, rtol=1e-9)
    # figure 1: ultra-mixing implies Doeblin implies Dobrushin
    assert np.all(found.dobrushin.gamma <= found.doeblin.gamma + 1e-15)
    assert np.all(found.doeblin.gamma <= found.ultra_mixing.gamma + 1e-15)
    power = amp.kernel_power(kernel, 5)
    np.testing.assert_allclose(power, np.linalg.matrix_power(kernel, 5), rtol=1e-9, atol=1e-15)
    for bound, exact in zip(found, amp.mixing_coefficients(kernel, steps=5), strict=True):
        assert np.all(exact.gamma <= bound.power(5).gamma + 1e-15)
    np.testing.assert_array_equal(amp.kernel_power(kernel[0], 0), np.eye(4))
    off = amp.mixing_coefficients(kernel, 0.7)
    assert np.all(
        amp.mixing_coefficients(power, 0.7).dobrushin.gamma <= off.dobrushin.power(5).gamma + 1e-15
    )


def test_profiles_stay_above_exact_ones():
    """Breaks when a whole profile after mixing is below the exact post-processed profile."""
    p, q, kernel, _ = channels(300, 4, seed=5)
    pair = jaxdp.FinitePair(p, q)
    after = jaxdp.PostProcessed(pair, kernel)
    for eps in (0.0, 0.1, 0.7, 2.0):
        before = jaxdp.delta(pair, eps)
        for direction in ("remove", "add", "both"):
            exact = jaxdp.hockey_stick(after, eps, direction=direction)
            for condition in amp.mixing_coefficients(kernel):
                bound = amp.delta_after_mixing(pair, eps, condition, direction=direction)
                assert np.all(exact <= bound + 4e-16)
                assert np.all(bound <= before + 1e-300)


def test_profile_of_a_gaussian_and_of_constant_channels():
    """Breaks when gamma = 0 (all forgotten) or gamma = 1 (nothing) is mishandled."""
    m = jaxdp.Gaussian(1.0)
    for condition in (amp.Dobrushin, amp.Doeblin, amp.UltraMixing):
        assert float(amp.delta_after_mixing(m, 1.0, condition(0.0))) == 0.0
        whole = amp.delta_after_mixing(m, 1.0, condition(1.0))
        np.testing.assert_allclose(whole, jaxdp.delta(m, 1.0), rtol=1e-13)
    slope = jax.grad(lambda g: amp.delta_after_mixing(m, 1.0, amp.UltraMixing(g)))
    step = 1e-6
    numeric = (
        amp.delta_after_mixing(m, 1.0, amp.UltraMixing(0.3 + step))
        - amp.delta_after_mixing(m, 1.0, amp.UltraMixing(0.3 - step))
    ) / (2 * step)
    np.testing.assert_allclose(slope(0.3), numeric, rtol=1e-6)


def test_finite_pair_is_exact():
    """Breaks when a finite pair's curve, Rényi divergences or failure masses are wrong."""
    p = np.array([0.5, 0.3, 0.2, 0.0])
    q = np.array([0.1, 0.3, 0.4, 0.2])
    pair = jaxdp.FinitePair(p, q)
    for eps in (-1.0, 0.0, 0.4, 3.0):
        remove = np.maximum(p - np.exp(eps) * q, 0).sum()
        add = np.maximum(q - np.exp(eps) * p, 0).sum()
        np.testing.assert_allclose(jaxdp.hockey_stick(pair, eps, direction="remove"), remove)
        np.testing.assert_allclose(jaxdp.hockey_stick(pair, eps, direction="add"), add)
    for alpha in (1.5, 2.0, 7.0):
        value = np.log(np.sum(p[:3] ** alpha * q[:3] ** (1 - alpha))) / (alpha - 1)
        np.testing.assert_allclose(jaxdp.renyi(pair, alpha, direction="remove"), value, rtol=1e-12)
    kl = np.sum(p[:3] * np.log(p[:3] / q[:3]))
    np.testing.assert_allclose(jaxdp.renyi(pair, 1.0, direction="remove"), kl, rtol=1e-9)
    assert float(jaxdp.renyi(pair, 2.0, direction="add")) == np.inf
    assert float(jaxdp.epsilon(pair, 0.1, direction="add")) == np.inf
    response = jaxdp.FinitePair([0.75, 0.25], [0.25, 0.75])
    same = jaxdp.RandomizedResponse(np.log(3.0))
    np.testing.assert_allclose(jaxdp.delta(response, 0.4), jaxdp.delta(same, 0.4), rtol=1e-12)
    np.testing.assert_allclose(jaxdp.renyi(response, 3.0), jaxdp.renyi(same, 3.0), rtol=1e-12)
    sampled = [jaxdp.PoissonSampled(m, 0.1) for m in (response, same)]
    np.testing.assert_allclose(*(jaxdp.renyi(m, 5.0) for m in sampled), rtol=1e-12)
    bits = np.arange(200_000) % 2
    drawn = pair.sample(jax.random.key(0), bits)
    for bit, law in ((1, p), (0, q)):
        share = np.bincount(np.asarray(drawn)[bits == bit], minlength=4) / 100_000
        np.testing.assert_allclose(share, law, atol=6e-3)


def test_coupling_bound():
    """Breaks when Theorem 2 on a finite set is below the exact divergence, or not tight at all."""
    rng = np.random.default_rng(3)
    coupling = rng.standard_gamma(0.7, (500, 4, 4)) + 1e-6
    coupling /= coupling.sum((1, 2), keepdims=True)
    nu = rng.dirichlet(np.ones(4), 500)
    kernel = rng.dirichlet(np.ones(3), (500, 4))
    mu = coupling.sum(1)
    mixed, other = np.einsum("ni,nij->nj", mu, kernel), np.einsum("ni,nij->nj", nu, kernel)
    for alpha in (1.2, 2.0, 8.0):
        exact = np.log(np.sum(mixed**alpha * other ** (1 - alpha), -1)) / (alpha - 1)
        bound = amp.coupling_bound(coupling, nu, kernel, alpha)
        assert np.all(bound >= exact)
        diagonal = np.einsum("ni,ij->nij", mu, np.eye(4))
        processed = amp.coupling_bound(diagonal, nu, kernel, alpha)
        before = np.log(np.sum(mu**alpha * nu ** (1 - alpha), -1)) / (alpha - 1)
        np.testing.assert_allclose(processed, before, rtol=1e-9)
    impossible = amp.coupling_bound([[0.5, 0.0], [0.0, 0.5]], [1.0, 0.0], np.eye(2), 2.0)
    assert float(impossible) == np.inf


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: amp.Dobrushin(1.5), "gamma"),
        (lambda: amp.Doeblin(-0.1), "gamma"),
        (lambda: amp.UltraMixing(np.nan), "gamma"),
        (lambda: amp.Dobrushin(0.5, -1.0), "epsilon"),
        (lambda: amp.amplify_by_mixing(-1.0, 0.1, amp.Doeblin(0.5)), "epsilon"),
        (lambda: amp.amplify_by_mixing(1.0, 1.0, amp.Doeblin(0.5)), "delta"),
        (lambda: amp.dobrushin_epsilon(1.0, -0.1), "delta"),
        (lambda: amp.mixing_coefficients([[0.5, 0.6], [0.5, 0.5]]), "kernel"),
        (lambda: amp.mixing_coefficients([[1.0, 0.0]], steps=2), "square"),
        (lambda: amp.kernel_power(np.eye(2), -1), "steps"),
        (lambda: jaxdp.FinitePair([0.5, 0.5], [1.0]), "same length"),
        (lambda: jaxdp.FinitePair([0.5, 0.4], [0.5, 0.5]), "sum to 1"),
        (lambda: jaxdp.PostProcessed(jaxdp.FinitePair([1.0], [1.0]), np.eye(2)), "rows"),
        (lambda: amp.Doeblin(0.5).power(0.5), "steps"),
        (lambda: amp.coupling_bound(np.eye(2) / 2, [0.5, 0.5], np.eye(2), 1.0), "alpha"),
    ],
)
def test_bad_input(call, match):
    """Breaks when a known value outside its domain is accepted."""
    with pytest.raises(ValueError, match=match):
        call()


def test_traced_bad_input_is_never_a_small_number():
    """Breaks when a traced value outside its domain gives a finite answer."""

    @jit
    def at(gamma, eps, delta):
        return amp.amplify_by_mixing(eps, delta, amp.Doeblin(gamma))

    for args in ((1.5, 1.0, 0.1), (0.5, -1.0, 0.1), (0.5, 1.0, 1.0)):
        assert all(np.isnan(x) for x in at(*args))
    bad = jnp.array([[0.5, 0.9], [0.5, 0.5]])
    assert np.isnan(jit(lambda k: amp.mixing_coefficients(k).doeblin.gamma)(bad))
    assert np.isnan(
        jit(lambda p: jaxdp.delta(jaxdp.FinitePair(p, jnp.array([0.5, 0.5])), 0.1))(bad[0])
    )


def test_gradients_of_coefficients():
    """Breaks when the derivative in the kernel's entries disagrees with finite differences."""
    _, _, kernels, _ = channels(1, 4, seed=2)

    def strength(logits):
        kernel = jax.nn.softmax(logits)
        found = amp.mixing_coefficients(kernel, 0.2, steps=2)
        return found.dobrushin.gamma + 2.0 * found.doeblin.gamma + 3.0 * found.ultra_mixing.gamma

    logits = jnp.log(kernels[0])
    gradient = jax.grad(strength)(logits)
    direction = np.random.default_rng(0).normal(size=(4, 4))
    step = 1e-6
    numeric = (strength(logits + step * direction) - strength(logits - step * direction)) / step / 2
    np.testing.assert_allclose(np.sum(gradient * direction), numeric, rtol=1e-6)


def test_float32_callers_get_upper_bounds():
    """Breaks when a 32-bit program sees a bound below the 64-bit one."""
    wide = amp.amplify_by_mixing(1.0, 1e-5, amp.Doeblin(0.3))
    _, _, kernel, _ = channels(5, 3, seed=8)
    coefficients = [np.asarray(c.gamma) for c in amp.mixing_coefficients(kernel)]
    with jax.enable_x64(False):
        narrow = amp.amplify_by_mixing(1.0, 1e-5, amp.Doeblin(0.3))
        jitted = jit(lambda e: amp.amplify_by_mixing(e, 1e-5, amp.Doeblin(0.3)))(1.0)
        found = [np.asarray(c.gamma) for c in amp.mixing_coefficients(kernel)]
        for value in (*narrow, *jitted, *found):
            assert value.dtype == np.float32
        slope = jit(jax.grad(lambda g: amp.amplify_by_mixing(1.0, 0.1, amp.Doeblin(g)).delta))
        assert np.isfinite(slope(0.3))
    for small, exact in zip((*narrow, *found), (*wide, *coefficients), strict=True):
        assert np.all(np.float64(small) >= np.float64(exact))


def test_subnormal_probabilities():
    """Breaks when a probability below 2e-308 is taken for 0, as XLA's arithmetic takes it."""
    pair = jaxdp.FinitePair([0.5, 0.5], [5e-324, 1.0])
    log_least = -1074 * np.log(2.0)
    close(jaxdp.epsilon(pair, 0.0), np.log(0.5) - log_least)
    close(jaxdp.renyi(pair, np.inf), np.log(0.5) - log_least)
    kl = 0.5 * (np.log(0.5) - log_least) + 0.5 * np.log(0.5)
    np.testing.assert_allclose(jaxdp.renyi(pair, 1.0), kl, rtol=1e-12)
    lost = jaxdp.FinitePair([5e-324, 1.0], [0.0, 1.0])
    np.testing.assert_allclose(jaxdp.log_delta(lost, 3.0), log_least, rtol=1e-14)
    assert float(jaxdp.epsilon(lost, 0.0)) == np.inf
    # products of the probabilities lie below every float64
    pair = jaxdp.FinitePair([2e-200, 1.0], [1e-200, 1.0])
    after = jaxdp.PostProcessed(pair, [[1e-200, 1.0], [0, 1]])
    close(jaxdp.epsilon(after, 0.0), np.log(2.0))
    worst = jaxdp.ApproximateDP(1.0, 1e-310)
    np.testing.assert_allclose(jaxdp.log_delta(worst, [1.0, 5.0]), np.log(1e-310), rtol=1e-12)
    assert float(jaxdp.renyi(worst, 2.0)) == np.inf
    kernel = [[1e-310, 1.0], [2e-310, 1.0]]
    found = amp.mixing_coefficients(kernel)
    np.testing.assert_allclose(found.ultra_mixing.gamma, 0.5, rtol=1e-12)
    assert 0.0 < float(found.dobrushin.gamma) < 1e-300
    identity = np.diag([0.5, 0.5])
    assert float(amp.coupling_bound(identity, [0.5, 0.5], kernel, 2.0)) < 1e-12
    moved = [[0.0, 0.5], [0.5, 0.0]]
    assert float(amp.coupling_bound(moved, [0.5, 0.5], [[1.0, 0.0], [1.0, 1e-310]], 2.0)) == np.inf
    with jax.enable_x64(False):
        single = jit(lambda d: jaxdp.log_delta(jaxdp.ApproximateDP(1.0, d), 2.0))
        assert float(single(jnp.float32(1e-40))) >= np.log(1e-40) - 1e-5


def test_derivatives_at_ties_and_at_order_one():
    """Breaks when a tie gives the mean of two slopes, or the order 1 no slope."""
    kernel = jnp.array([[0.75, 0.25], [0.25, 0.75]])
    slope = jax.grad(lambda k: amp.mixing_coefficients(k).dobrushin.gamma)(kernel)
    # K(x, y)/sum K(x): the slope of a row's share, of the one or of the other pair of rows
    np.testing.assert_allclose(np.abs(slope), [[0.25, 0.75], [0.75, 0.25]], rtol=1e-9)
    pair = jaxdp.FinitePair([0.2, 0.8], [0.4, 0.6])
    loss, p = np.log([0.5, 4 / 3]), np.array([0.2, 0.8])
    half_variance = 0.5 * (p @ loss**2 - (p @ loss) ** 2)
    slope = jax.grad(lambda a: jaxdp.renyi(pair, a, direction="remove"))(1.0)
    np.testing.assert_allclose(slope, half_variance, rtol=1e-9)
