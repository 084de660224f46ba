"""What must hold for every parameter: order, duality, limits, data processing, composition."""

import functools
from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from batches import ask
from noise_reference import (
    discrete_gaussian,
    gdl,
    hockey_stick,
    laplace_sum_density,
    negative_binomial,
    renyi,
    skellam,
)

import jaxdp
from jaxdp import _hypergeometric
from jaxdp import _noise as noise
from jaxdp._noise import _variance_gamma
from tests.programs import jit

RNG = np.random.default_rng(20)
N = 12
SHIFT = RNG.integers(1, 6, N).astype(float)
EPS = RNG.uniform(0.0, 1.5, N)
# name -> (random parameters, build, position of the parameter that privacy rises with)
LAWS = {
    "discrete_gaussian": ([RNG.uniform(0.3, 6, N)], noise.DiscreteGaussian),
    "skellam": ([10 ** RNG.uniform(-0.5, 3, N)], noise.Skellam),
    "discrete_laplace": ([RNG.uniform(0.05, 1.5, N)], noise.DiscreteLaplace),
    "gdl": (
        [10 ** RNG.uniform(-1, 1, N), RNG.uniform(0.05, 1.0, N)],
        noise.GeneralizedDiscreteLaplace,
    ),
    "gamma_difference": (
        [10 ** RNG.uniform(-0.7, 1, N), RNG.uniform(0.5, 9, N)],
        noise.GammaDifference,
    ),
    "negative_binomial": (
        [10 ** RNG.uniform(-0.3, 2, N), RNG.uniform(0.05, 0.9, N)],
        noise.NegativeBinomial,
    ),
}
MORE_NOISE = dict.fromkeys(LAWS, 1.25) | {"discrete_laplace": 0.8}


@pytest.mark.parametrize("name", LAWS)
def test_order_duality_and_monotonicity(name):
    """Breaks when H leaves [max(0, 1 - e^eps), 1], H_g(P|Q) differs from 1 - g + g H_{1/g}(Q|P),
    certified values are below exact ones, or more noise or less sensitivity hurts.
    """
    parameters, build = LAWS[name]
    m = build(*parameters, SHIFT)
    less = build(parameters[0] * MORE_NOISE[name], *parameters[1:], SHIFT)

    def curve(m, eps, direction):
        return ask(jaxdp.hockey_stick, m, eps, direction=direction)

    g = np.exp(EPS)
    swapped = {"remove": "add", "add": "remove", "both": "both"}
    directions = ("both",) if m._symmetric() else ("remove", "add")
    larger = build(*parameters, SHIFT + 1.0)
    for one in directions:
        here = curve(m, EPS, one)
        dual = 1 - g + g * curve(m, -EPS, swapped[one])
        np.testing.assert_allclose(here, dual, rtol=1e-9, atol=1e-12)
        assert np.all((here >= 0) & (here <= 1))
        upper = ask(jaxdp.delta, m, EPS, direction=one)
        assert np.all(upper >= here)
        assert np.all(upper <= here * (1 + 1e-9) + 1e-300)
        assert np.all(curve(less, EPS, one) <= here * (1 + 1e-10))
        assert np.all(curve(larger, EPS, one) >= here * (1 - 1e-10))


@pytest.mark.parametrize("name", sorted(set(LAWS) - {"negative_binomial"}))
def test_renyi_is_ordered(name):
    """Breaks when a Rényi divergence is not increasing in its order, or KL is not its limit."""
    parameters, build = LAWS[name]
    m = build(*(p[:4, None] for p in parameters), SHIFT[:4, None])
    values = ask(jaxdp.renyi, m, np.array([1.0, 1.001, 1.2, 2.0, 8.0, 60.0]))
    assert np.all(np.diff(values, axis=1) >= -1e-12 * values[:, 1:])
    np.testing.assert_allclose(values[:, 0], values[:, 1], rtol=5e-2)
    pure = ask(jaxdp.epsilon, m, 0.0)
    assert np.all(values[:, -1:] <= pure * (1 + 1e-12))


@pytest.mark.parametrize(
    ("m", "pmf", "low", "high"),
    [
        (noise.DiscreteGaussian(1.7, 3), discrete_gaussian(1.7), -40, 60),
        (noise.Skellam(3.3, 2), skellam(3.3), -60, 80),
        (noise.Skellam(120.0, 2), skellam(120.0), -150, 200),
        (noise.GeneralizedDiscreteLaplace(0.35, 0.6, 3), gdl(0.35, 0.6), -90, 110),
        (noise.GeneralizedDiscreteLaplace(4.5, 0.9, 2), gdl(4.5, 0.9), -80, 100),
        (noise.NegativeBinomial(0.6, 0.4, 2), negative_binomial(0.6, 0.4), 0, 160),
        (noise.NegativeBinomial(7.5, 0.6, 1), negative_binomial(7.5, 0.6), 0, 120),
    ],
)
def test_against_sums_term_by_term(m, pmf, low, high):
    """Breaks when a curve or divergence is off by 1e-10 from the sum over all integers."""
    eps = np.array([0.0, 0.4, 1.1])
    one_sided = isinstance(m, noise.NegativeBinomial)
    with mp.workdps(30):
        for direction in ("remove", "add") if one_sided else ("both",):
            values = ask(jaxdp.hockey_stick, m, eps, direction=direction)
            way = "remove" if direction == "both" else direction
            expected = [float(hockey_stick(pmf, m.sensitivity, e, low, high, way)) for e in eps]
            np.testing.assert_allclose(values, expected, rtol=1e-10, atol=1e-15)
        expected = float(renyi(pmf, m.sensitivity, 2.6, m.sensitivity if one_sided else low, high))
    direction = "remove" if one_sided else "both"
    assert ask(jaxdp.renyi, m, 2.6, direction=direction) == pytest.approx(expected, rel=1e-10)


def test_wide_laws_are_summed_with_a_stride():
    """Breaks when laws far wider than the number of nodes lose accuracy, against the Gaussian.

    A lattice Gaussian of sigma = 1e5 differs from the continuous one by e^{-2 pi^2 sigma^2}, up to
    the half-integer end of the sum; Skellam noise of variance 1e8 by 1e-8.
    """
    eps = np.array([1e-6, 1e-5, 3e-5])
    gaussian = jaxdp.hockey_stick(jaxdp.Gaussian(1e5, 1.0), eps)
    lattice = ask(jaxdp.hockey_stick, noise.DiscreteGaussian(1e5), eps)
    np.testing.assert_allclose(lattice, gaussian, rtol=1e-8)
    np.testing.assert_allclose(
        ask(jaxdp.hockey_stick, noise.Skellam(1e8), 1e-4),
        jaxdp.hockey_stick(jaxdp.Gaussian(1e4), 1e-4),
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        ask(jaxdp.renyi, noise.Skellam(1e8), 3.0), jaxdp.renyi(jaxdp.Gaussian(1e4), 3.0), rtol=1e-7
    )


def test_limits():
    """Breaks when a limit is missed: GDL at beta = 1, towards Skellam, Gaussian and Gamma."""
    eps = np.array([0.05, 0.2, 0.7])
    geometric = ask(jaxdp.hockey_stick, noise.DiscreteLaplace(0.3, 3), eps)
    np.testing.assert_allclose(
        ask(jaxdp.hockey_stick, noise.GeneralizedDiscreteLaplace(1.0, 0.3, 3), eps),
        geometric,
        rtol=1e-11,
    )
    a, variance = 12.0, 8.0
    poisson_like = noise.GeneralizedDiscreteLaplace(0.5 * variance * np.exp(a), a, 2)
    np.testing.assert_allclose(
        ask(jaxdp.hockey_stick, poisson_like, eps),
        ask(jaxdp.hockey_stick, noise.Skellam(variance, 2), eps),
        rtol=1e-3,
    )
    # variance 2 beta q/(1 - q)^2
    beta, a = 2000.0, 0.5
    sigma = np.sqrt(2 * beta * np.exp(-a)) / -np.expm1(-a)
    np.testing.assert_allclose(
        ask(jaxdp.hockey_stick, noise.GeneralizedDiscreteLaplace(beta, a, 20), eps[:2]),
        jaxdp.hockey_stick(jaxdp.Gaussian(sigma, 20.0), eps[:2]),
        rtol=2e-2,
    )
    fine = noise.GeneralizedDiscreteLaplace(0.7, 1e-3, 1000)
    np.testing.assert_allclose(
        ask(jaxdp.hockey_stick, fine, eps),
        ask(jaxdp.hockey_stick, noise.GammaDifference(0.7, 1.0, 1.0), eps),
        rtol=2e-2,
    )


def test_gdl_rounding_allowance():
    """Breaks when log f is off by more than the allowance of certified masses.

    Nearly Skellam noise (large a and beta) and beta far above k: terms that cancel must not be of
    the size of beta. The truth is the integral of the characteristic function, in 30 digits.
    """
    beta, a = np.array([1e8, 2e4, 40.0, 6e4]), np.array([25.0, 9.3, 0.5, 4e-3])
    k = np.array([0.0, 11.0, 25.0, 2e5])
    m = noise.GeneralizedDiscreteLaplace(beta, a, np.ones(4))
    log_f, allowed = jit(jax.vmap(lambda m, k: (m._log_pmf(k), m._log_pmf_error())))(m, k)
    with mp.workdps(30):
        for i in range(k.size):
            b, top, order = mp.mpf(beta[i]), mp.cosh(mp.mpf(a[i])), mp.mpf(k[i])
            ratio = order / b
            t = (ratio * top + mp.sqrt(1 + ratio**2 * (top**2 - 1))) / (1 + ratio)
            theta = mp.log(t)
            gap = top - mp.cosh(theta)
            deviation = mp.sqrt(b * (mp.cosh(theta) / gap + (mp.sinh(theta) / gap) ** 2))
            reach = min(mp.pi, 40 / deviation)

            def log_mgf(z, b=b, top=top, order=order):
                return -b * mp.log((top - mp.cosh(z)) / (top - 1)) - order * z

            peak, points = log_mgf(theta), 240
            values = [
                mp.re(mp.exp(log_mgf(mp.mpc(theta, reach * j / points)) - peak))
                for j in range(points + 1)
            ]
            total = (mp.fsum(values) - (values[0] + values[-1]) / 2) * reach / points
            truth = peak + mp.log(total / mp.pi)
            error = float(abs(mp.mpf(float(log_f[i])) - truth)) * 2.0**52
            assert error <= 16 + 2 * abs(float(truth)) + float(allowed[i])


def test_laplace_sum():
    """Breaks when a sum of n Laplace variables is not Gamma(n) - Gamma(n), or at n = 1 Laplace."""
    n = np.array([2.0, 5.0, 40.0])
    y = np.array([1e-3, 0.7, 4.0, 30.0])
    log_f = jit(jax.vmap(_variance_gamma.log_density))(n, jnp.log(jnp.tile(y, (3, 1))))
    expected = [laplace_sum_density(int(count), y) for count in n]
    np.testing.assert_allclose(np.exp(log_f), expected, rtol=1e-11)
    eps = np.array([0.1, 0.4, 0.8])
    np.testing.assert_allclose(
        ask(jaxdp.hockey_stick, noise.LaplaceSum(n, 2.0), eps),
        ask(jaxdp.hockey_stick, noise.GammaDifference(n, 2.0), eps),
        rtol=1e-13,
    )
    np.testing.assert_allclose(
        ask(jaxdp.hockey_stick, noise.LaplaceSum(1, 2.0), eps / 2),
        jaxdp.hockey_stick(jaxdp.Laplace(2.0), eps / 2),
        rtol=1e-11,
    )


def test_skellam_bound_holds():
    """Breaks when the exact divergence exceeds the published bound, or is far from it."""
    variance, alpha = np.array([[0.3], [10.0], [300.0]]), np.array([1.3, 2.0, 5.0, 17.5])
    m = noise.Skellam(variance, 2)
    exact, bound = ask(jaxdp.renyi, m, alpha), noise.skellam_renyi_bound(m, alpha)
    assert np.all(exact <= bound)
    assert np.max(exact / bound) > 0.95


@pytest.mark.parametrize("name", LAWS)
def test_masses_rebuild_the_curve(name):
    """Breaks when the masses of loss intervals are not those of the law.

    They must add up to P and Q, and E_Q[(X - g)_+] from thin intervals must give the curve.
    """
    parameters, build = LAWS[name]

    @jit
    def cells(m):
        ends = jnp.clip(jnp.stack(m._loss_range()), -40.0, 40.0)
        inner = ends[0] + (ends[1] - ends[0]) * jnp.linspace(0.0, 1.0, 400)
        edges = jnp.concatenate([jnp.asarray([-jnp.inf]), inner, jnp.asarray([jnp.inf])])
        lost = jnp.stack([m._log_failure("remove"), m._log_failure("add")])
        return edges, lost, m._log_masses(edges[:-1], edges[1:])

    # with two parameters the first is a shape, below and above which the loss peaks or rises
    shapes = (0.3, 0.75, 2.5) if len(parameters) == 2 else (float(parameters[0][0]),)
    for shape in shapes:
        m = build(shape, *(float(p[0]) for p in parameters[1:]), float(SHIFT[0]))
        edges, lost, masses = jax.tree.map(np.asarray, cells(m))
        q, p = np.exp(masses)
        assert p.sum() == pytest.approx(1 - np.exp(lost[0]), rel=1e-11)
        assert q.sum() == pytest.approx(1 - np.exp(lost[1]), rel=1e-11)
        chosen = np.array([150, 210, 260, 390])
        direction = "both" if m._symmetric() else "remove"
        exact = ask(jaxdp.hockey_stick, m, edges[chosen], direction=direction)
        rebuilt = [p[i:].sum() - np.exp(edges[i]) * q[i:].sum() for i in chosen]
        # unbounded losses of Gamma noise below shape 1/2: masses to 1e-12 in absolute terms
        atol = 1e-11 if name == "gamma_difference" and shape < 0.5 else 1e-14
        np.testing.assert_allclose(rebuilt, exact, rtol=1e-9, atol=atol)


def test_pure_epsilon_is_rounded_up():
    """Breaks when a pure-DP epsilon that is no float64 is rounded below itself, or changed else."""
    scale = RNG.uniform(0.5, 9.0, N)
    quotient = ask(jaxdp.epsilon, noise.GammaDifference(2.0, scale, SHIFT), 0.0)
    product = ask(jaxdp.epsilon, noise.DiscreteLaplace(scale, SHIFT), 0.0)
    np.testing.assert_array_equal(ask(jaxdp.epsilon, jaxdp.Laplace(scale, SHIFT), 0.0), quotient)
    for q, p, s, d in zip(quotient, product, scale, SHIFT, strict=True):
        assert Fraction(q) * Fraction(s) >= Fraction(d) > Fraction(np.nextafter(q, 0)) * Fraction(s)
        assert Fraction(p) >= Fraction(s) * Fraction(d) > Fraction(np.nextafter(p, 0))


def test_negative_binomial_of_tiny_success_probability():
    """Breaks when 1 - (1 - p) stands for p: the mass p^r of 0 was lost below p = 1e-16."""
    r, p = np.array([0.5, 1.0, 3.0, 0.5]), np.array([1e-20, 1e-300, 1e-20, 1e-12])
    log_delta = jaxdp.log_delta(jaxdp.NegativeBinomial(r, p), 2.0, direction="add")
    assert (np.asarray(log_delta) >= r * np.log(p) * (1 + 1e-12)).all()
    # f(1)/f(0) = r (1 - p): only for r > e^2 there is more
    np.testing.assert_allclose(log_delta, r * np.log(p), rtol=1e-10)


def test_only_what_is_needed_of_shares_is_worked_out():
    """Breaks when a block of values is taken for another, left out, or given another slope."""
    k = np.concatenate([np.arange(0.0, 600.0), np.arange(3.0, 403.0)])
    weight = functools.partial(_hypergeometric.log_gdl_weight, k=k)

    @jit
    def both(beta, a, needed):
        def value_and_slope(needed):
            return jax.jvp(lambda a: weight(beta, a=a, needed=needed), (a,), (jnp.ones_like(a),))

        return weight(beta, a=a, needed=needed), value_and_slope(needed), value_and_slope(None)

    masks = np.random.default_rng(8).random(k.size) < 0.2, (k > 130.0) & (k < 140.0), k < 0.0
    with jax.enable_x64(True):
        for needed in (*masks, k >= 0.0):
            for beta, a in ((0.2, 0.01), (3.0, 0.3), (400.0, 2.0)):
                some, (same, slope), (value, true) = both(beta, a, needed)
                assert np.isfinite(some).all()
                for got in (some, same):
                    np.testing.assert_allclose(got[needed], value[needed], rtol=1e-12)
                np.testing.assert_allclose(slope[needed], true[needed], rtol=1e-12)
