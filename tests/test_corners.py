"""Corners where bounds were wrong, trivial or nan: closed forms and the engine beside mpmath."""

import itertools
import math

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
import scipy.special

import calibrate
import jaxdp
from jaxdp._special import log1p

RELATIVE = 1e-11


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True), mp.workdps(120):
        yield


def gaussian(mu, log_ratio):
    """H_g of N(mu, 1) and N(0, 1), g = e^log_ratio: Balle & Wang 2018, Theorem 8."""
    a, b = mu / 2 - log_ratio / mu, -mu / 2 - log_ratio / mu
    tails = mp.erfc(-a / mp.sqrt(2)) / 2, mp.erfc(-b / mp.sqrt(2)) / 2
    return tails[0] - mp.exp(log_ratio) * tails[1]


def sampled_gaussian(sigma, q, epsilon, direction):
    """H_g of ((1-q) Q + q P, Q), or of the reversed pair, from that of the Gaussian."""
    mu, q, g = 1 / mp.mpf(sigma), mp.mpf(q), mp.exp(mp.mpf(epsilon))
    inner = ((g if direction == "remove" else 1 / g) - (1 - q)) / q
    if inner <= 0:
        return 1 - g if direction == "remove" else mp.mpf(0)
    if direction == "remove":
        return q * gaussian(mu, mp.log(inner))
    return g * q * inner * gaussian(mu, -mp.log(inner))


SAMPLED = [
    (0.02, 0.5, 2000.0),
    (0.025, 0.1, 750.0),
    (0.2, 1.0, 20.0),
    (0.2, 1.0, 40.0),
    (0.2, 1.0, -40.0),
    (0.2, 1.0 - 1e-12, 27.0),
    (0.2, 1.0 - 1e-12, -27.0),
    (1e4, 1e-9, 1e-12),
    (1e4, 1e-9, -1e-12),
    (1.0, 1e-3, -1e-3),
    (0.5, 0.3, 0.35),
    (2.0, 1e-12, 1e-13),
    (0.03, 0.5, 690.0),
]


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_one_sampled_gaussian_at_any_epsilon(direction):
    """Breaks where e^epsilon is capped, or where 1 - q + q e^L cancels, at either end of q."""
    sigma, q, epsilon = np.array(SAMPLED).T
    m = jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q)
    lower, upper = jaxdp.delta_bounds(m, epsilon, direction=direction)
    for setting, low, high in zip(SAMPLED, np.asarray(lower), np.asarray(upper), strict=True):
        truth = sampled_gaussian(*setting, direction)
        assert mp.mpf(float(low)) <= truth <= mp.mpf(float(high)), (setting, low, high, truth)
        if truth > 1e-290:
            assert high <= (1.0 + 1e3 * RELATIVE) * low, (setting, low, high)


def test_noise_beyond_the_range_of_a_double():
    """Breaks where mu or epsilon/mu leaves the range of a double: nan, or a bound of a bound."""
    gaussians = jaxdp.Gaussian(np.array([1e308, 1e200, 1e-160, 1e-308]))
    for bounds in (jaxdp.delta_bounds(gaussians, 1.0), jaxdp.epsilon_bounds(gaussians, 1e-6)):
        assert not np.isnan(np.stack(bounds)).any()
        assert np.all(bounds[0] <= bounds[1])
    low, high = jaxdp.delta_bounds(jaxdp.OrnsteinUhlenbeck(1.0, 1.0, 300.0), 0.0)
    mu = mp.exp(-300) / mp.sqrt(1 - mp.exp(-600))
    truth = mp.erf(mu / (2 * mp.sqrt(2)))
    assert mp.mpf(float(low)) <= truth <= mp.mpf(float(high))
    assert high <= (1.0 + 1e-9) * low
    far = jaxdp.PoissonSampled(jaxdp.Gaussian(0.5, 0.5), 1e-5)
    assert not np.isnan(np.stack(jaxdp.delta_bounds(far, np.array([710.0, 1e4])))).any()


def test_compositions_of_many_gaussians_count_their_roundings():
    """Breaks where mu of many terms is rounded by more than its curve allows for."""
    sigmas = np.random.default_rng(5).uniform(20.0, 60.0, 300)
    m = jaxdp.Composed([jaxdp.Gaussian(s) for s in sigmas])
    low, high = jaxdp.delta_bounds(m, 2.0)
    truth = gaussian(mp.sqrt(sum(1 / mp.mpf(s) ** 2 for s in sigmas)), mp.mpf(2))
    assert mp.mpf(float(low)) <= truth <= mp.mpf(float(high))


def test_pure_end_of_compositions():
    """Breaks where delta = 0 gives nan, or where a sum of largest losses is rounded down."""
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Laplace(0.7), 0.3), np.array([1.0, 7.0, 1000.0]))
    low, high = jaxdp.epsilon_bounds(m, 0.0, direction="remove")
    one = mp.log(1 + mp.mpf(0.3) * mp.expm1(1 / mp.mpf(0.7)))
    for n, a, b in zip([1, 7, 1000], np.asarray(low), np.asarray(high), strict=True):
        assert mp.mpf(float(a)) <= n * one <= mp.mpf(float(b))
        assert b <= (1.0 + 1e-12) * a
    # without an end: in the shape of `narrow`
    few = np.ones(6)
    unbounded = jaxdp.epsilon_bounds(dp_sgd(few, 0.1 * few, 10 * few), 0 * few, direction="remove")
    assert np.all(np.isinf(np.stack(unbounded)))


def responses(bound, number, epsilon):
    """H of so many randomised responses, which is the same in both directions."""
    p = 1 / (1 + mp.exp(-mp.mpf(bound)))
    total = mp.mpf(0)
    for k in range(number + 1):
        loss = (2 * k - number) * mp.mpf(bound)
        mass = mp.binomial(number, k) * p**k * (1 - p) ** (number - k)
        total += mass * max(mp.mpf(0), 1 - mp.exp(mp.mpf(epsilon) - loss))
    return total


def test_engine_below_epsilon_zero_and_next_to_the_largest_loss():
    """Breaks where the engine reads its law below 0, or is trivial at its end."""
    epsilon = np.array([-9.0, -3.0, -0.3, -1e-9, 0.0, 0.3, 2.9999, 3.0 - 1e-9, 3.0, 3.1])
    m = jaxdp.Repeated(jaxdp.RandomizedResponse(0.5), 6)
    lower, upper = jaxdp.delta_bounds(m, epsilon, method=jaxdp.Numerical(8192))
    for e, low, high in zip(epsilon, np.asarray(lower), np.asarray(upper), strict=True):
        truth = responses(0.5, 6, e)
        assert mp.mpf(float(low)) <= truth <= mp.mpf(float(high)), (e, low, high, truth)
        if abs(e - 3.0) > 1e-6:  # nearer, the bound above is that of the largest loss alone
            assert high - low <= 2e-3 * high, (e, low, high)


def test_lower_bounds_next_to_the_largest_loss():
    """Breaks where epsilon's lower bound is 0 although the largest loss has an atom."""
    delta = np.array([6.49e-9, 1e-12, 1e-40])
    m = jaxdp.Repeated(jaxdp.Laplace(0.5), 3)
    low, high = jaxdp.epsilon_bounds(m, delta, method=jaxdp.Numerical(2048))
    assert np.all(high <= 6.0 + 1e-13)
    assert np.all(low >= 6.0 + np.log1p(-8.0 * delta) - 1e-11)


def narrow(sigma, q, steps, delta):
    """Bounds of runs, "remove", by the program of six: those of several tests share it."""
    rows = [np.resize(x, 6) for x in (sigma, q, steps, delta)]
    low, high = jaxdp.epsilon_bounds(dp_sgd(*rows[:3]), rows[3], direction="remove")
    assert np.all(low <= high)
    return tuple(np.asarray(x)[: len(sigma)] for x in (low, high))


def test_narrow_bulks_keep_their_tails():
    """Breaks where the law below loses its rare large losses to a bulk between two nodes."""
    q = np.array([1.46e-5, 1.46e-5, 1.46e-5, 1.1454e-3, 4.6908e-3, 1e-2])
    steps = np.array([2.0, 10.0, 723.0, 2.0, 29912.0, 1000.0])
    delta = np.array([4.4e-12, 4.4e-12, 4.4e-12, 8.51e-7, 2.1e-10, 1e-5])
    sigma = np.array([0.45, 0.45, 0.45, 0.45, 0.45, 1.0])
    low, high = narrow(sigma, q, steps, delta)
    assert np.max((high - low) / high) < 2e-3
    assert low[-1] <= 1.828237 <= high[-1]


@pytest.mark.parametrize(
    ("noise", "sigma", "q", "steps", "delta", "direction", "width"),
    [
        ("DiscreteGaussian", 0.313, 0.02, 100.0, 1e-5, "remove", 6e-3),
        ("DiscreteGaussian", 0.2747, 0.02024, 60.0, 7.063e-5, "remove", 6e-3),
        ("DiscreteGaussian", 1.0, 5.14969836e-4, 52.0, 5.726e-9, "remove", 4e-3),
        ("DiscreteGaussian", 1.0, 6.40096612e-4, 1082.0, 1.24878e-7, "remove", 4e-3),
        ("DiscreteGaussian", 1.0, 7.14649633e-2, 8.0, 4.519e-11, "remove", 4e-3),
        *(
            pytest.param("Laplace", *row, "remove", 2e-3, marks=pytest.mark.slow)
            for row in ((0.1478, 0.02024, 60.0, 7.063e-5), (0.13099, 0.06101, 37.0, 1.58e-4))
        ),
        ("Skellam", 0.25857509, 7.758230e-3, 11.0, 6.1344737e-5, "add", 2e-4),
        ("Skellam", 0.26012738, 3.525e-4, 2.0, 4.19264e-6, "add", 2e-4),
    ],
)
def test_rare_atoms_far_from_a_narrow_bulk(noise, sigma, q, steps, delta, direction, width):
    """Breaks where the bulk, next to the low end and narrower than a cell, or what sweeps leave on
    the way to the next atom, or an atom between two nodes, costs the law below all that follows: 0
    or a third of the truth.
    """
    m = jaxdp.PoissonSampled(getattr(jaxdp, noise)(np.array([sigma])), np.array([q]))
    low, high = jaxdp.epsilon_bounds(
        jaxdp.Repeated(m, np.array([steps])), delta, direction=direction
    )
    assert low[0] <= high[0]
    assert high[0] - low[0] < width * high[0]


def test_rare_atoms_beside_all_outcomes():
    """Breaks if the bound below of isolated atoms is above a convolution of all of them."""
    sigma, q, steps, h, size = 0.313, 0.02, 100, 1e-3, 1 << 19
    k = np.arange(-20, 21)
    log_mass = -(k**2) / (2.0 * sigma**2)
    log_mass -= np.log(np.sum(np.exp(log_mass)))
    loss = np.logaddexp(np.log1p(-q), np.log(q) + (2 * k - 1) / (2.0 * sigma**2))
    kept = log_mass + loss > -60.0
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.DiscreteGaussian(sigma), q), steps)
    epsilon = np.array([5.0, 15.0, 26.0, 30.0])
    low, high = jaxdp.delta_bounds(m, epsilon, direction="remove")
    for step, other, side in ((np.floor, high, 1.0), (np.ceil, low, -1.0)):
        place = step(loss[kept] / h).astype(int)
        mass = np.zeros(size)
        np.add.at(mass, place % size, np.exp((log_mass + loss)[kept]))
        mass = np.fft.irfft(np.fft.rfft(mass) ** steps, size)
        at = np.arange(size)
        at = np.where(at > 0.9 * size, at - size, at) * h
        below = -np.expm1(np.minimum(epsilon[:, None] - at, 0.0))
        assert np.all(side * np.asarray(other) >= side * np.sum(below * mass, axis=-1) - 1e-13)
    assert np.all(high - low < 0.06 * high)


def test_few_steps_and_small_answers_are_bracketed_narrowly():
    """Breaks where the law below keeps much of a tilted law in an atom at its last node, loses a
    bulk just under a node, or begins with dust; and where blocks are off the one lattice.
    """
    sigma = np.array([1.04258, 0.484847, 0.401440, 0.403303, 0.854373])
    q = np.array([4.08704e-4, 3.70838e-4, 3.764499e-3, 0.196195, 7.87209e-5])
    steps = np.array([889.0, 70.0, 20.0, 922.0, 78.0])
    delta = np.array([8.42597e-9, 7.77826e-7, 1.02360e-5, 4.87252e-8, 3.61e-12])
    low, high = narrow(sigma, q, steps, delta)
    assert np.max((high - low) / high) < 8e-3


def test_two_sampled_steps_beside_quadrature():
    """Breaks where either bound of two sampled steps is wrong: E_Q X_1 H(g / X_1) by trapezoids."""
    mu, q, epsilon = 1.0 / 0.45, 1.1454e-3, 2.5
    z = np.linspace(-12.0, 16.0, 400_001)
    ratio = 1.0 - q + q * np.exp(mu * z - 0.5 * mu * mu)
    inner = (np.exp(epsilon) / ratio - (1.0 - q)) / q
    log_inner = np.log(np.where(inner > 0.0, inner, 1.0))
    one = scipy.special.ndtr(0.5 * mu - log_inner / mu)
    one = q * (one - inner * scipy.special.ndtr(-0.5 * mu - log_inner / mu))
    one = np.where(inner > 0.0, one, 1.0 - np.exp(epsilon) / ratio)
    density = np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi)
    truth = np.trapezoid(density * ratio * one, z)
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(0.45), q), 2)
    low, high = jaxdp.delta_bounds(m, epsilon, direction="remove")
    assert low <= truth * (1.0 + 1e-7)
    assert truth <= high * (1.0 + 1e-7)
    assert high <= 1.001 * low


def dp_sgd(sigma, q, steps):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)


def test_calibration_with_a_direction_that_is_slack():
    """Breaks where the add direction, which has no loss above epsilon, makes a target infeasible,
    or where the value returned fails its user's own check of epsilon; in the last row but one,
    where an estimate that rises with sigma for a while is believed; in the last, where a slope that
    no curve has lets the search end far from the root.
    """
    rows = [
        (1.05, 1e-6, 8.53e-3, 127.0),
        (1.2, 1e-6, 8.53e-3, 127.0),
        (2.0, 1e-6, 8.53e-3, 127.0),
        (8.177, 1e-6, 8.53e-3, 127.0),
        (0.127163, 3.5e-8, 7.78851e-5, 5872.0),
        (0.256478, 2.3e-5, 3.10999e-5, 17117.0),
        (10.6934, 1.14e-5, 2.90585e-4, 639.0),
        (1.27729, 2.21e-8, 1.28046e-5, 6.0),
        (0.148261, 6.16e-6, 1.53974e-5, 4.0),
    ]
    epsilon, delta, q, steps = np.transpose(rows)
    got = calibrate.solve(dp_sgd, epsilon=epsilon, delta=delta, args=(q, steps))
    np.testing.assert_array_equal(got.status, 0)
    assert np.all(jaxdp.epsilon(dp_sgd(got.value, q, steps), delta) <= epsilon)
    assert np.all(jaxdp.epsilon(dp_sgd(0.99 * got.value, q, steps), delta) > epsilon)
    np.testing.assert_allclose(got.value[-1], 0.29510, rtol=1e-3)


def test_calibration_where_delta_leaps():
    """Breaks where the search takes the noise of an estimate for a slope: a laplacian's end."""
    got = calibrate.solve(
        lambda b, n: jaxdp.Repeated(jaxdp.Laplace(b), n),
        epsilon=np.array([5.87314, 3.8443]),
        delta=np.array([6.49e-9, 1.64e-5]),
        args=(np.array([3.0, 4.0]),),
    )
    np.testing.assert_array_equal(got.status, 0)
    np.testing.assert_allclose(got.value[0], 3.0 / 5.87314, rtol=1e-5)


def test_calibration_of_a_run_that_most_of_the_bracket_knows_nothing_of():
    """Breaks where a probe takes the noise of the estimate for a slope, away from the root."""
    epsilon, delta = np.array([3.40063, 0.399579]), np.array([6.29e-6, 9.6e-7])
    got = calibrate.solve(
        lambda b, n: jaxdp.Repeated(jaxdp.Laplace(b), n),
        epsilon=epsilon,
        delta=delta,
        args=(np.array([594.0, 1078.0]),),
    )
    np.testing.assert_array_equal(got.status, 0)
    np.testing.assert_allclose(got.value, [30.7936, 326.42], rtol=1e-3)


def test_tradeoff_of_reports_that_reveal_nearly_all():
    """Breaks where a curve that is 1 as far as it is first read leaves no trade-off at all."""
    m = jaxdp.RandomizedResponse(170.0)
    got = np.asarray(jaxdp.tradeoff(m, np.array([0.0, 0.2])))
    p = 1 / (1 + mp.exp(170))
    assert got[0] == 1.0
    assert mp.mpf(float(got[1])) <= p * (1 - (mp.mpf(0.2) - p) / (1 - p))
    np.testing.assert_allclose(got[1], 0.8 * math.exp(-170.0), rtol=1e-9)


def test_allocation_of_reports_that_reveal_nearly_all():
    """Breaks where ratios beyond the range of a double make epsilon's lower bound too large."""
    bounds, steps = np.array([36.0, 60.0, 100.0, 319.24]), 6
    m = jaxdp.RandomAllocation(jaxdp.RandomizedResponse(bounds), steps)
    low, high = jaxdp.epsilon_bounds(m, 1e-10, direction="remove")
    # one step tells it all; that two do has probability e^-bound
    truth = bounds - np.log(steps)
    assert np.all(low <= truth)
    assert np.all(truth * (1.0 - 1e-9) <= high)


def test_log_delta_far_out_is_never_trivial():
    """Breaks where a bound far below e^-600 is reported as delta = 1."""
    sigma = np.exp(np.linspace(0.0, 4.0, 24))
    value = np.asarray(jaxdp.log_delta(dp_sgd(sigma, 0.00853, 127), 8.177))
    assert np.all(value < -70.0), value
    assert not math.isnan(value.sum())


def test_log1p_everywhere():
    """Breaks where log(1 + x) is off by more than two ulps, as XLA's own is near -0.4."""
    tiny = np.geomspace(1e-300, 0.99, 500)
    x = np.concatenate([np.linspace(-0.999, 3.0, 4001), tiny, -tiny])
    got = np.asarray(jax.jit(log1p)(jnp.asarray(x)))
    for a, b in itertools.islice(zip(x, got, strict=True), None):
        truth = mp.log1p(mp.mpf(float(a)))
        assert abs(mp.mpf(float(b)) - truth) <= 2 * mp.mpf(2) ** -52 * abs(truth), a


@pytest.mark.parametrize("x64", [True, False])
def test_epsilon_at_the_failure_itself(x64):
    """Breaks where a guarantee's own delta is not met by its epsilon, or a delta just below is."""
    with jax.enable_x64(x64):
        digits = 1e-11 if x64 else 1e-6
        delta = np.array([1e-5, 1e-6, 3e-7, 0.1, 1e-300 if x64 else 1e-30])
        m = jaxdp.ApproximateDP(1.0, delta)
        low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, delta))
        np.testing.assert_allclose([low, high], 1.0, rtol=digits)
        assert np.all(low <= high)
        assert np.all(np.isinf(jaxdp.epsilon(m, delta * (1.0 - 1e-6))))
        pair = jaxdp.FinitePair([0.25, 0.25, 0.5], [0.0, 0.5, 0.5])
        low, high = jaxdp.epsilon_bounds(pair, 0.25, direction="remove")
        assert 0.0 <= low <= high < 1e-6
        slope = jax.grad(lambda e: jaxdp.epsilon(jaxdp.ApproximateDP(e, 1e-5), 1e-5))(1.0)
        assert slope == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("step", "delta", "direction"),
    [
        (jaxdp.FinitePair([0.5, 0.5], [1.0, 0.0]), 0.9, "remove"),
        (jaxdp.FinitePair([0.9999, 0.0001], [1.0, 0.0]), 0.01, "remove"),
        (jaxdp.LossDistribution([0.5, 2.0], np.log([0.4, 0.6])), 0.9, "add"),
    ],
)
def test_epsilon_is_never_below_zero(step, delta, direction):
    """Breaks where all finite losses are negative, the others infinite: -1.386 for 0."""
    run = jaxdp.Repeated(step, 2)
    assert jaxdp.delta(run, 0.0, direction=direction) <= delta
    assert jaxdp.epsilon(run, delta, direction=direction) == 0.0
    assert [float(x) for x in jaxdp.epsilon_bounds(run, delta, direction=direction)] == [0.0, 0.0]


def epsilon_of_atoms(loss, mass, delta):
    """Where the curve of these atoms is at delta."""

    def missing(epsilon):
        return mass @ np.maximum(-np.expm1(np.minimum(epsilon - loss, 0.0)), 0.0) - delta

    return scipy.optimize.brentq(missing, 0.0, np.max(loss), xtol=1e-13)


@pytest.mark.parametrize(
    ("scale", "steps", "delta"),
    [
        (591.2332117676937, 31527, 9.461944387418435e-09),
        (40.39583894818098, 2233, 1.1340639683582774e-07),
        (244.39811457409107, 7297, 5.049666197650825e-06),
    ],
)
def test_atoms_at_nodes_stay_there_in_every_program(scale, steps, delta):
    """Breaks when a compiler works a place out twice: the cell of one, the offset of the other.

    (Upper bounds .004 to .6 % below the truth, of programs that are compiled quickly alone.)
    """
    a = 1.0 / scale
    loss = a * (2.0 * np.arange(steps + 1) - steps)
    mass = scipy.stats.binom.pmf(np.arange(steps + 1), steps, 1.0 / (1.0 + np.exp(-a)))

    def bounds(a):
        return jaxdp.epsilon_bounds(jaxdp.Repeated(jaxdp.DiscreteLaplace(a), steps), delta)

    with jax.enable_x64(True):
        low, high = (float(x) for x in jax.jit(bounds)(a))
    truth = epsilon_of_atoms(loss, mass, delta)
    assert low <= truth * (1.0 + 1e-10)
    assert truth * (1.0 - 1e-10) <= high <= 1.0001 * truth


@pytest.mark.parametrize("shift", [2, 3, 4])
def test_atoms_between_the_ends_are_nodes(shift):
    """Breaks when a lattice holds the ends alone: atoms halfway cost a bound below up to 6 %."""
    a, steps, delta = np.array([0.07, 0.3]), np.array([30, 200]), np.array([1e-6, 1e-6])
    with jax.enable_x64(True):
        m = jaxdp.Repeated(jaxdp.DiscreteLaplace(a, shift), steps)
        low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, delta))
    for i in range(a.size):
        r, k = np.exp(-a[i]), np.arange(shift + 1.0)
        mass = np.tanh(a[i] / 2) * r**k  # of x = 0, ..., Delta with the record, losses falling
        mass[[0, -1]] = np.array([1.0, r**shift]) / (1.0 + r)
        composed = np.ones(1)
        for _ in range(steps[i]):
            composed = np.convolve(composed, mass)
        loss = a[i] * (shift * steps[i] - 2.0 * np.arange(composed.size))
        truth = epsilon_of_atoms(loss, composed, delta[i])
        assert low[i] <= truth * (1.0 + 1e-10)
        assert truth * (1.0 - 1e-10) <= high[i]
    assert np.all(high - low <= 1e-6 * high), (low, high)  # (up to 1e-3 of ends alone)


def test_rare_losses_of_exchanged_records_are_narrow():
    """Breaks when the loss 0 between two large ones is no node: the lower one was 16.96."""
    step = jaxdp.FixedSizeSampled(jaxdp.RandomizedResponse(6.30442454077175), 0.018838054302804302)
    low, high = jaxdp.epsilon_bounds(jaxdp.Repeated(step, 10), 1e-12)
    assert 18.1359 < low <= 18.1359488152  # by the enumeration of a trinomial law
    assert 18.1359488151 <= high < 18.136


def two_sampled_gaussians(sigma, q, epsilon):
    """Delta (remove) of two steps: that of the second, beside every loss of the first."""
    mu, q = 1 / mp.mpf(sigma), mp.mpf(q)

    def rest(x):
        weight = mp.npdf(x) * (1 - q) + q * mp.npdf(x - mu)
        loss = mp.log1p(q * mp.expm1(mu * x - mu**2 / 2))
        return weight * sampled_gaussian(sigma, q, epsilon - loss, "remove")

    return mp.quad(rest, mp.linspace(-10, 14, 13), maxdegree=6)


def test_rare_large_losses_are_narrow():
    """Breaks where the plan takes one rare large loss beside many small ones for a normal law."""
    sigma = np.array([0.585177, 0.707151, 0.6, 0.45])
    q = np.array([2.33135e-5, 1.48699e-5, 2e-5, 4.87e-7])
    steps = np.array([12.0, 5197.0, 2.0, 9692.0])
    delta = np.array([1.16e-10, 5.83e-12, 1e-11, 5.2e-13])
    low, high = narrow(sigma, q, steps, delta)
    assert np.all(high - low <= 1e-2 * high), (low, high)
    with mp.workdps(20):
        at_low, at_high = (two_sampled_gaussians(0.6, 2e-5, float(x[2])) for x in (low, high))
    assert at_low >= delta[2] * (1 - 1e-9)
    assert at_high <= delta[2] * (1 + 1e-9)


TINY_MU = {
    "steps": lambda one: jaxdp.Repeated(one, 3),
    "sampled": lambda one: jaxdp.Repeated(jaxdp.PoissonSampled(one, 0.1), 5),
    "allocation": lambda one: jaxdp.RandomAllocation(one, 5),
    "epochs": lambda one: jaxdp.Repeated(jaxdp.RandomAllocation(one, 5), 2),
}


@pytest.mark.parametrize("of", TINY_MU.values(), ids=TINY_MU)
def test_a_mu_below_every_double(of):
    """Breaks when a valid mechanism whose mu underflows is refused, or bounded by nothing."""

    def build(t):
        return of(jaxdp.OrnsteinUhlenbeck(1.0, 1.0, t))

    with jax.enable_x64(True):
        low, high = jaxdp.epsilon_bounds(build(800.0), 1e-5)
        assert low == high == 0.0
        assert jaxdp.advantage(build(800.0)) < 1e-14
        assert jax.grad(lambda t: jaxdp.renyi(build(t), 2.0))(800.0) == 0.0


def test_next_to_no_noise_says_how_often_a_record_is_sampled():
    """Breaks when a record that is rarely sampled is called lost altogether: delta 1.

    The truth is 1 - (1 - q)^n to all digits; from the other side no loss exceeds -n log(1 - q).
    """
    q, n = np.array([1e-4, 0.02, 1e-6]), np.array([10, 3, 1000])
    with jax.enable_x64(True):
        m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1e-6), q), n)
        truth = -np.expm1(n * np.log1p(-q))
        low, high = jaxdp.delta_bounds(m, 1.0, direction="remove")
        assert np.all(np.asarray(high) >= truth * (1.0 - 1e-13))
        np.testing.assert_allclose(high, truth, rtol=1e-10)
        np.testing.assert_allclose(low, truth, rtol=3e-4)
        assert np.all(np.asarray(jaxdp.epsilon(m, truth * 1.0001)) == 0.0)
        slope = jax.vmap(jax.grad(lambda q, n: jaxdp.log_delta(
            jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1e-6), q), n), 1.0
        )))(jnp.asarray(q), jnp.asarray(n, float))  # fmt: skip
        np.testing.assert_allclose(slope, n * (1.0 - q) ** (n - 1) / truth, rtol=1e-6)


def test_a_pair_next_to_a_certain_outcome():
    """Breaks when the logarithm of a mass next to 1 lacks the digits that the others have."""
    pair = jaxdp.FinitePair([2.1818460109617446e-10, 0.9999999997818154], [0.0, 1.0])
    with jax.enable_x64(True):
        at = np.array([-1e-10, -2e-10, 0.0, 1e-10])
        low, high = jaxdp.delta_bounds(pair, at, direction="remove", method=jaxdp.Numerical())
        assert np.all(np.asarray(high) >= 2.1818460109617446e-10)
        np.testing.assert_allclose(high, 2.1818460109617446e-10, rtol=1e-6)
        assert np.all(np.asarray(low) <= 2.1818460109617446e-10)
