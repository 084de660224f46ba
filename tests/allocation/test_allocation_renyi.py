"""Rényi divergences of random allocation: enumeration, exact laws and the reference values."""

import allocation_truth as truth
import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import oracle
import pytest

import jaxdp
from tests.programs import jit

RENYI = jaxdp.Renyi()


def _cases(prefix, name):
    cases = [c.values[0] for c in oracle.cases("allocation_rdp", prefix)]
    return [c for c in cases if name in c.params]


def _renyi(base, t, alpha, direction="remove", **options):
    m = jaxdp.RandomAllocation(base, t, **options)
    return np.asarray(jaxdp.renyi(m, alpha, direction=direction))


@pytest.mark.parametrize(
    ("prefix", "name", "family", "direction"),
    [
        ("rdp_rm", "sigma", jaxdp.Gaussian, "remove"),
        ("logD_rm", "sigma", jaxdp.Gaussian, "remove"),
        ("rdp_rm", "x", lambda x: jaxdp.Laplace(1.0, x), "remove"),
        ("rdp_add", "sigma", jaxdp.Gaussian, "add"),
    ],
)
def test_reference_values(prefix, name, family, direction):
    """Breaks when a moment is wrong, below the truth, or off by more than rounding."""
    cases = _cases(prefix, name)
    values = np.array([float(c[name]) for c in cases])
    alpha, t = (np.array([float(c[k]) for c in cases]) for k in ("alpha", "t"))
    got = _renyi(family(values), t, alpha, direction)
    exact = np.array([c.value for c in cases])
    exact = exact / (alpha - 1) if prefix == "logD_rm" else exact
    assert (got >= exact * (1 - 1e-15)).all()
    np.testing.assert_allclose(got, exact, rtol=1e-11)


def test_partition_sum():
    """Breaks when the power series is not the sum over partitions, alpha > t included."""
    orders, t = np.arange(2, 13), np.array([1, 2, 3, 5, 12, 1000])
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(0.8), t[:, None].astype(float))
    got = np.asarray(jaxdp.renyi(m, orders.astype(float), direction="remove"))
    with mp.workdps(60):
        d = truth.gaussian_moments(0.8)
        want = [
            [
                float(mp.log(truth.moment_by_partitions(d, int(n), int(a))) / (int(a) - 1))
                for a in orders
            ]
            for n in t
        ]
    np.testing.assert_allclose(got, want, rtol=2e-12)
    assert (got >= np.array(want) * (1 - 1e-15)).all()


def test_large_orders_and_steps():
    """Breaks when precision is lost at t = 1e12, or orders of hundreds overflow."""
    cases = [(3.0, 10**12, 20), (100.0, 10**12, 30), (0.3, 7, 40), (2.0, 31, 64), (1.0, 10**4, 64)]
    sigma, t, alpha = (np.array([float(c[i]) for c in cases]) for i in range(3))
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), t)
    got = np.asarray(jaxdp.renyi(m, alpha, direction="remove"))
    with mp.workdps(700):
        want = [
            float(mp.log(truth.power_series_moment(truth.gaussian_moments(s), n, a)) / (a - 1))
            for s, n, a in cases
        ]
    np.testing.assert_allclose(got, want, rtol=4e-12)
    assert (got >= np.array(want) * (1 - 1e-15)).all()


def test_order_1024():
    """Breaks when order 1024 leaves the range between the leading terms and one step's moment.

    M >= t^(1 - alpha) D_alpha (one step alone), and M <= D_alpha; at t = 1 they agree.
    """
    sigma, t = 1.5, np.array([1.0, 2.0, 50.0, 1e4, 1e8])
    r = _renyi(jaxdp.Gaussian(sigma), t, 1024.0)
    one = 1024 / (2 * sigma**2)
    assert (r >= (one - np.log(t)) * (1 - 1e-14)).all()
    assert (r <= one * (1 + 1e-12)).all()
    np.testing.assert_allclose(r, one - np.log(t), rtol=1e-9)  # and nothing else matters
    assert r[0] == pytest.approx(one, rel=1e-12)


def test_real_orders_are_bounds():
    """Breaks when a fractional order, or one beyond 1024, is below the exact law's divergence."""
    alpha = np.array([1.0, 1.05, 1.5, 2.5, 7.3, 30.9, 1500.0])
    t = np.array([1.0, 2.0, 9.0, 60.0])
    m = jaxdp.RandomAllocation(jaxdp.RandomizedResponse(1.3), t[:, None])
    for direction, loose in (("remove", 1.25), ("add", 1.0 + 1e-9)):
        got = np.asarray(jaxdp.renyi(m, alpha, direction=direction))
        for i, n in enumerate(t):
            for j, a in enumerate(alpha):
                with mp.workdps(50):
                    if a == 1.0:
                        law = list(truth.response_law(int(n), mp.mpf(1.3)))
                        sign = 1 if direction == "remove" else -1
                        weight = (lambda x: x) if direction == "remove" else (lambda x: 1)
                        exact = sign * mp.fsum(w * weight(x) * mp.log(x) for w, x in law)
                    else:
                        s = a if direction == "remove" else 1 - a
                        exact = mp.log(truth.response_moment(int(n), 1.3, s)) / (a - 1)
                assert got[i, j] >= float(exact) * (1 - 1e-14)
                if a < 1000:
                    assert got[i, j] <= float(exact) * loose


def test_tiny_losses_at_large_orders_are_not_below_the_truth():
    """Breaks when a moment of 1 + 1e-21 is what rounding leaves of it: 0 for 1.25e-22."""
    epsilon = np.geomspace(1e-15, 3.0, 13)[:, None, None]
    steps, alpha = np.array([2, 4, 30])[:, None], np.array([1.3, 20.0, 115.7, 1000.0, 4600.0])
    with jax.enable_x64(True):
        got = np.asarray(_renyi(jaxdp.RandomizedResponse(epsilon), steps, alpha, "add"))
    for index in np.ndindex(got.shape):
        e, t, order = epsilon[index[0], 0, 0], int(steps[index[1], 0]), mp.mpf(alpha[index[2]])
        with mp.workdps(80):
            p, moment = 1 / (1 + mp.exp(-mp.mpf(e))), mp.mpf(0)
            for k in range(t + 1):
                ratio = (k * mp.exp(mp.mpf(e)) + (t - k) * mp.exp(-mp.mpf(e))) / t
                moment += mp.binomial(t, k) * (1 - p) ** k * p ** (t - k) * ratio ** (1 - order)
            truth = mp.log(moment) / (order - 1)
            off = float(mp.mpf(got[index]) / truth - 1)
        assert -1e-15 <= off <= 1e-9, (e, t, order, off)


def test_epsilon_from_integer_orders():
    """Breaks when epsilon of orders up to 64 is not the known 0.21154 of (2, 1e4) at 1e-8."""
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 10_000)
    method = jaxdp.Renyi(orders=tuple(range(2, 65)))
    assert float(jaxdp.epsilon(m, 1e-8, method=method, direction="remove")) == pytest.approx(
        0.21154, abs=5e-6
    )


def test_add_epsilon_bounds_the_truth():
    """Breaks when the add direction at sigma = 0.5 is no bound, where a known bound is not."""
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(0.5), np.array([100.0, 1e4, 1e6]))
    got = np.asarray(jaxdp.epsilon(m, 1e-8, method=RENYI, direction="add"))
    exact = np.array([1.7300, 0.2478, 0.02885])
    assert (got > exact).all()
    assert (got < 1.08 * exact).all()


def test_blocks():
    """Breaks when k of t is not the composition of k blocks of floor(t/k) or ceil(t/k)."""
    alpha = np.array([2.0, 5.0, 8.0])
    g = jaxdp.Gaussian(1.0)

    def of(t, k=1, epochs=1):
        return _renyi(g, t, alpha, num_selected=k, num_epochs=epochs)

    np.testing.assert_allclose(of(1000, 10), 10 * of(100), rtol=1e-13)
    np.testing.assert_allclose(of(103, 10), 7 * of(10) + 3 * of(11), rtol=1e-13)
    np.testing.assert_allclose(of(103, 10, 4), 4 * of(103, 10), rtol=1e-13)
    np.testing.assert_allclose(of(50, epochs=3), 3 * of(50), rtol=1e-13)
    both = jaxdp.Composed([jaxdp.Repeated(jaxdp.RandomAllocation(g, 50), 2), jaxdp.Gaussian(3.0)])
    np.testing.assert_allclose(
        jaxdp.renyi(both, alpha, direction="remove"), 2 * of(50) + alpha / 18, rtol=1e-13
    )


def test_any_mechanism():
    """Breaks when a base without closed forms, or with a failure mass, is no bound.

    A Poisson-subsampled base, a composition, a finite law by enumeration, and one with failures.
    """
    with mp.workdps(40):
        q, e0, t, a = mp.mpf("0.3"), mp.mpf(1), 6, 5
        p = 1 / (1 + mp.exp(e0))
        law = [(p, 1 - q + q * mp.exp(e0)), (1 - p, 1 - q + q * mp.exp(-e0))]
        want = truth.moment_by_partitions(lambda n: mp.fsum(w * x**n for w, x in law), t, a)
        want = float(mp.log(want) / (a - 1))
        failing = truth.moment_by_partitions(
            lambda n: mp.mpf("0.9") * mp.fsum(w * x**n for w, x in truth.response_law(1, e0)), t, a
        )
    sampled = jaxdp.PoissonSampled(jaxdp.RandomizedResponse(1.0), 0.3)
    got = float(jaxdp.renyi(jaxdp.RandomAllocation(sampled, t), a, direction="remove"))
    assert got == pytest.approx(want, rel=1e-12)
    composed = jaxdp.RandomAllocation(jaxdp.Repeated(jaxdp.Gaussian(2.0), 4), t)
    plain = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), t)
    assert float(jaxdp.renyi(composed, a)) == pytest.approx(float(jaxdp.renyi(plain, a)), rel=1e-12)
    m = jaxdp.RandomAllocation(jaxdp.ApproximateDP(1.0, 0.1), t)
    assert np.isinf(jaxdp.renyi(m, a))
    # delta >= the failure mass of the step chosen, and the finite part has this moment
    assert float(jaxdp.delta(m, 0.9, method=RENYI, direction="remove")) >= 0.1
    block = m._terms()[0].mechanism
    rate = block._rate(jnp.asarray(5.0))
    assert float(rate) * a * (a - 1) == pytest.approx(float(mp.log(failing)), rel=1e-11)


@pytest.mark.parametrize("k", [1, 10])
def test_gradients(k):
    """Breaks when the derivative with respect to sigma or real t is not the difference quotient."""
    method = jaxdp.Renyi(orders=(3.0, 4.0, 5.0))

    def epsilon(sigma, t):
        m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), t, k)
        return jaxdp.epsilon(m, 1e-6, method=method, direction="remove")

    t, h = 1000.0, np.array([1e-4, -1e-4])
    got = jax.grad(epsilon, (0, 1))(1.0, t)
    by_sigma = np.asarray(epsilon(1.0 + h, t))
    by_t = np.asarray(epsilon(1.0, t * (1 + h)))
    assert float(got[0]) == pytest.approx((by_sigma[0] - by_sigma[1]) / 2e-4, rel=1e-4)
    assert float(got[1]) == pytest.approx((by_t[0] - by_t[1]) / (2e-4 * t), rel=1e-4)


def test_transforms_from_a_float32_program():
    """Breaks when jit, vmap or a float32 caller change the value, or round it down."""
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 100.0)
    exact = float(jaxdp.renyi(m, 4.0))
    with jax.enable_x64(False):
        sigmas = jnp.array([1.0, 2.0])
        one = jit(lambda s, t: jaxdp.renyi(jaxdp.RandomAllocation(jaxdp.Gaussian(s), t), 4.0))
        many = jax.vmap(one, in_axes=(0, None))(sigmas, 100.0)
        slope = jax.grad(one)(1.0, 100.0)
    assert many.dtype == jnp.float32
    assert exact <= float(many[0]) <= exact * (1 + 1e-6)
    assert np.isfinite(float(slope))
    assert float(slope) < 0


def test_errors():
    """Breaks when bad input passes: ValueError where known, nan where traced."""
    g = jaxdp.Gaussian(1.0)
    for args, name in (
        ((0.5,), "num_steps"),
        ((10, 0), "num_selected"),
        ((10, 1, 0), "num_epochs"),
        ((10, 11), "num_selected"),
    ):
        with pytest.raises(ValueError, match=name):
            jaxdp.RandomAllocation(g, *args)
    with pytest.raises(TypeError, match="mechanism"):
        jaxdp.RandomAllocation(1.0, 10)
    traced = jit(lambda t, k: jaxdp.renyi(jaxdp.RandomAllocation(g, t, k), 3.0))
    assert np.isnan(traced(5.0, 7.0))
    assert np.isfinite(traced(7.0, 5.0))


def test_sampled_steps_are_balanced():
    """Breaks when a record joins a step twice, or some step more often than others."""
    m = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 8, num_selected=3)
    steps = np.asarray(m.sample_steps(jax.random.key(1), 4000))
    assert all(len(set(row)) == 3 for row in steps.tolist())
    counts = np.bincount(steps.ravel(), minlength=8)
    assert (abs(counts - 1500) < 5 * np.sqrt(1500)).all()


def test_orders_between_integers_are_tight():
    """Breaks when they are chords of integer ones (a third too large at order 1.5) or too small."""
    epsilon, t = np.array([1e-7, 1e-3, 0.1])[:, None, None], np.array([2.0, 10.0])[:, None]
    alpha = np.array([1.0 + 1e-9, 1.01, 1.5, 1.999, 2.5, 3.5, 7.3, 61.5])
    got = _renyi(jaxdp.RandomizedResponse(epsilon), t, alpha)
    with mp.workdps(60):
        want = [
            [
                [
                    mp.log(truth.response_moment(int(n), e, mp.mpf(a))) / (mp.mpf(a) - 1)
                    for a in alpha
                ]
                for n in t[:, 0]
            ]
            for e in epsilon[:, 0, 0]
        ]
        ratio = np.array([[[float(x) for x in y] for y in z] for z in got / np.array(want)])
    assert (ratio >= 1.0).all()
    assert (ratio <= 1.0 + 1e-8 + 0.25 * epsilon**2).all()


def test_an_average_of_two_values_is_known_at_all_orders():
    """Breaks when Gauss's rule is not that of the moments: here it is the law (beside A = 0)."""
    c, alpha = 7.0, np.array([1.0, 1.3, 2.5, 6.7, 30.2])
    got = _renyi(jaxdp.FinitePair([1.0, 0.0], [1 / c, 1 - 1 / c]), 2, alpha)
    one, both = 2 / c * (1 - 1 / c), 1 / c**2  # P{A = c/2}, P{A = c} under Q
    kl = one * c / 2 * np.log(c / 2) + both * c * np.log(c)
    power = np.log(one * (c / 2) ** alpha + both * c**alpha) / np.maximum(alpha - 1, 1e-9)
    np.testing.assert_allclose(got, np.where(alpha == 1, kl, power), rtol=1e-9)


def test_slopes_between_integers():
    """Breaks when a derivative by the order or a parameter is not that of the bound itself."""

    def of(x):
        m = jaxdp.RandomAllocation(jaxdp.Gaussian(x[1]), x[2])
        return jaxdp.renyi(m, x[0], direction="remove")

    with jax.enable_x64(True):
        slope_of, many = jit(jax.grad(of)), jit(jax.vmap(of))
        for x in ([1.2, 1.0, 12.0], [2.5, 0.6, 300.0], [5.7, 3.0, 40.0]):
            x = jnp.array(x)
            slope = slope_of(x)
            steps = 1e-5 * x[:, None] * jnp.eye(3)
            ahead, back = many(x + steps), many(x - steps)
            np.testing.assert_allclose(slope, (ahead - back) / (2e-5 * x), rtol=1e-6)


def test_added_moments_of_bounded_ratios():
    """Breaks when averaging is not counted in the add direction (a factor of t), or too much is."""
    rng = np.random.default_rng(5)
    epsilon, q = np.exp(rng.uniform(-9, 1, 40)), np.exp(rng.uniform(-7, 0, 40))
    t, alpha = rng.integers(2, 30, 40).astype(float), 1 + np.exp(rng.uniform(-6, 3, 40))
    got = _renyi(
        jaxdp.PoissonSampled(jaxdp.RandomizedResponse(epsilon), q), t, alpha, direction="add"
    )
    with mp.workdps(60):
        for i, value in enumerate(got):
            e, rate, n = mp.e ** mp.mpf(epsilon[i]), mp.mpf(q[i]), int(t[i])
            high, low, p = 1 - rate + rate * e, 1 - rate + rate / e, 1 / (1 + e)
            moment = mp.fsum(
                mp.binomial(n, k)
                * p**k
                * (1 - p) ** (n - k)
                * ((k * high + (n - k) * low) / n) ** (1 - mp.mpf(alpha[i]))
                for k in range(n + 1)
            )
            ratio = float(value / (mp.log(moment) / (mp.mpf(alpha[i]) - 1)))
            assert 1.0 - 1e-15 <= ratio <= 1.0 + 1e-9 + 4 * rate * epsilon[i] * max(1, alpha[i])
