"""Parameters and epsilons far beyond use: what is asked there has a bound, and a valid one."""

import math

import jax
import mpmath as mp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats

import calibrate
import jaxdp
from jaxdp import _divergences, _special_subnormal, training

EPSILON = np.array([-np.inf, -1e300, -1e4, -1.0, 0.0, 1e-300, 1.0, 1e4, 1e17, 1e300, np.inf])
ORDERS = np.array([1.0, 1.0 + 1e-12, 1.5, 2.0, 7.3, 64.0, 1e4])


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True), mp.workdps(330):
        yield


def grid(*axes):
    return [x.ravel()[:, None] for x in np.meshgrid(*axes, indexing="ij")]


SIGMA, RATE = grid([1e-160, 1e-50, 1e-20, 1e-8, 1e-3, 1.0, 1e20], [1e-300, 1e-12, 0.3, 1.0])
SAMPLED = {
    "PoissonSampled(Gaussian)": lambda: jaxdp.PoissonSampled(jaxdp.Gaussian(SIGMA), RATE),
    "PoissonSampled(Laplace)": lambda: jaxdp.PoissonSampled(jaxdp.Laplace(SIGMA), RATE),
    "FixedSizeSampled": lambda: jaxdp.FixedSizeSampled(jaxdp.Gaussian(SIGMA), RATE),
    "ReplaceOne": lambda: jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(SIGMA), RATE),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_sampled_steps_at_any_noise_and_epsilon(name):
    """Breaks where an infinite epsilon gives nan, or a large one a trivial bound."""
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(SAMPLED[name](), EPSILON))
    assert not np.isnan(low + high).any()
    assert np.all(low <= high)
    assert np.all(high[:, -1] == 0.0)
    assert np.all(low[:, EPSILON < 0.0] >= -np.expm1(EPSILON[EPSILON < 0.0]) * (1.0 - 1e-13))
    least = EPSILON >= 0.0
    assert np.all(high[:, least] <= RATE * (1.0 + 1e-11))


@pytest.mark.parametrize("name", SAMPLED)
def test_renyi_divergences_of_sampled_steps_at_any_noise(name):
    """Breaks where a quadrature that sees nothing of its integrand is believed: 0 for 1e17."""
    value = np.asarray(jaxdp.renyi(SAMPLED[name](), ORDERS, direction="remove"))
    # The event of noise beyond the shift: P >= q/2 and Q <= e^-loss/2, hence R_a >= this.
    with np.errstate(over="ignore"):
        loss = 1.0 / SIGMA if "Laplace" in name else 0.5 / SIGMA**2
    least = loss + ORDERS[2:] / (ORDERS[2:] - 1.0) * np.log(RATE / 2.0)
    assert np.all(value[:, 2:] >= least)
    finite = np.isfinite(value[:, -1])
    assert np.all(np.diff(value[finite], axis=1) >= -1e-7 * value[finite, 1:])


def test_largest_losses_of_samples_have_both_roundings():
    """Breaks where delta = 0 has a bound below above the truth, or one above far beyond it."""
    scale, rate = grid([1e-160, 1e-8, 1e-4, 1 / 600.0, 0.3], [1e-250, 1e-12, 0.3, 1.0 - 1e-12, 1.0])
    m = jaxdp.PoissonSampled(jaxdp.Laplace(scale), rate)
    for direction, sign in (("remove", 1), ("add", -1)):
        low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(m, 0.0, direction=direction))
        for b, q, least, most in zip(scale, rate, low, high, strict=True):
            loss, q = sign / mp.mpf(b[0]), mp.mpf(q[0])
            if abs(loss) > 1e3:  # what is left out is below e^-400
                truth = loss + mp.log(q) if loss > 0 or q == 1 else mp.log1p(-q)
            else:
                truth = mp.log1p(q * mp.expm1(loss))
            assert mp.mpf(least[0]) <= sign * truth <= mp.mpf(most[0]), (b, q, direction)
            assert most[0] - least[0] <= 1e-9 * most[0] + 1e-12


def test_deltas_and_rates_below_the_normal_numbers():
    """Breaks where what arithmetic takes for 0 gives nan: a delta is one, a rate is refused."""
    delta = 1e-310
    conversions = (
        jaxdp.gdp_to_epsilon(1.0, delta),
        jaxdp.zcdp_to_epsilon(1.0, delta),
        jaxdp.renyi_to_epsilon(1.0, 2.0, delta),
        jaxdp.epsilon_delta_to_gdp(1.0, delta),
        training.epsilon(training.update(training.init(), sigma=1.0), delta),
    )
    above = jaxdp.gdp_to_epsilon(1.0, 1e-307), jaxdp.zcdp_to_epsilon(1.0, 1e-307)
    assert np.isfinite(conversions).all()
    assert np.all(np.asarray(conversions[:2]) > above)
    with pytest.raises(ValueError, match="sampling_probability must be in"):
        jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 5e-324)
    with pytest.raises(ValueError, match="sensitivities must be 0, or"):
        jaxdp.GaussianMixture(1e-120, [0.0, 1.0], [0.5, 0.5])


def test_calibration_to_epsilons_next_to_zero_passes_its_own_check():
    """Breaks where the tolerance of epsilon's root is more than the margin of the target."""
    epsilon, delta = (x[:, 0] for x in grid([1e-12, 1e-9, 1e-7, 1e-5, 1e-3], [1e-20, 1e-5, 0.1]))
    for build in (jaxdp.Gaussian, jaxdp.Laplace):
        got = calibrate.solve(build, epsilon=epsilon, delta=delta)
        np.testing.assert_array_equal(got.status, 0)
        assert np.all(jaxdp.epsilon(build(got.value), delta) <= epsilon)


def test_many_nearly_lone_atoms_have_a_bound_below():
    """Breaks where the node at the low end is above the mean of its cell, which then is lost.

    Of one step all mass is next to two atoms; a coarse law took the mean for larger. (A scale in
    eight gave 0.)
    """
    counts = np.round(np.geomspace(1e2, 1e5, 6))
    scale, count = (x[:, 0] for x in grid(np.geomspace(30.0, 700.0, 9), counts))
    run = jaxdp.Repeated(jaxdp.Laplace(scale), count)
    lower, upper = map(np.asarray, jaxdp.epsilon_bounds(run, 1e-6, direction="remove"))
    assert np.all(lower <= upper)
    assert np.all(upper - lower <= 2e-3 * upper + 1e-6)


def test_small_noise_at_small_rates_is_bracketed_narrowly():
    """Breaks where the law below has no node at a bulk that is narrower than its cells.

    Next to all mass of a step then moves to other nodes: brackets were 2 to 18 % wide.
    """
    rate, count, delta = np.transpose(
        [
            [2.76445e-05, 52510.0, 4.86e-05],
            [0.00118165, 52593.0, 1.06e-09],
            [0.000474946, 50502.0, 2.09e-12],
            [0.000264043, 9789.0, 1.79e-05],
            [0.000543882, 2.0, 0.00019],
        ]
    )
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(0.45), rate), count)
    lower, upper = map(np.asarray, jaxdp.epsilon_bounds(run, delta))
    assert np.all(lower <= upper)
    assert np.all(upper - lower <= 1e-3 * upper)


def test_a_narrow_tail_beside_a_large_atom_is_bracketed_narrowly():
    """Breaks when tilts are sought up to a thousand times the inverse deviation alone.

    Half of P is at the Laplace noise's largest loss, .92950; delta is made up by what two rare
    samples add to it, some 1e-3. The upper bound was .9934, or 8.27 on a finer lattice, for .93077.
    """
    rare = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(2.94923), 2.38e-4), 2)
    m = jaxdp.Composed([rare, jaxdp.Laplace(1.07585)])
    low, high = (float(x) for x in jaxdp.epsilon_bounds(m, 1.95e-12))
    assert 0.9307 < low <= high < 0.9308
    assert high - low < 1e-6


def test_samples_of_very_little_noise_have_a_bound_above():
    """Breaks when losses of one step beyond some hundreds count as infinite.

    Above the chance that eight of fifty samples hold the record, each at its mean loss or beyond,
    and no worse than Rényi's bound.
    """
    sigma, q, delta = np.array([0.02, 0.03, 0.04]), 0.02, 1e-9
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), 50)
    eight = math.comb(50, 8) * q**8 * (1.0 - q) ** 42 * 0.5**8
    assert eight > 2.0 * delta
    least = 8.0 * (0.5 / sigma**2 + np.log(q)) + 42.0 * np.log1p(-q) - 1.0
    got = np.asarray(jaxdp.epsilon(run, delta, direction="remove"))
    renyi = np.asarray(jaxdp.epsilon(run, delta, direction="remove", method=jaxdp.Renyi()))
    assert ((least < got) & (got < renyi)).all()


@pytest.mark.parametrize(("sigma", "q", "num_steps"), [(0.001, 0.1, 2), (0.005, 0.5, 10)])
def test_hardly_any_noise_beside_other_losses(sigma, q, num_steps):
    """Beyond what a lattice reaches the steps, run on every record, bound epsilon.

    The truth, but for e^-1000: outputs say which steps had the record, so that with k of them the
    loss is normal. Fails if epsilon is infinite (as it was) or too small.
    """
    mu, delta = 1.0 / sigma, 1e-5
    steps = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), num_steps)
    upper = float(jaxdp.epsilon(steps, delta))

    def beyond(epsilon):
        k = np.arange(1, num_steps + 1)
        mean, deviation = k * (mu**2 / 2 + math.log(q)), np.sqrt(k) * mu
        mean += (num_steps - k) * math.log1p(-q)
        weight = scipy.stats.binom.pmf(k, num_steps, q)
        return float(weight @ scipy.stats.norm.sf((epsilon - mean) / deviation))

    truth = scipy.optimize.brentq(lambda e: beyond(e) - delta, 0.0, num_steps * mu**2)
    # (delta is less than that tail, as if epsilon were larger by about 1)
    assert truth * (1.0 - 1e-5) < upper < 1.02 * truth
    mixed = jaxdp.Composed(
        [steps, jaxdp.Laplace(0.1), jaxdp.PoissonSampled(jaxdp.Gaussian(2.0), q)]
    )
    assert upper < float(jaxdp.epsilon(mixed, delta)) < 1.02 * truth + 10.0
    assert 0.0 < float(jaxdp.delta(steps, 0.95 * truth)) < 1.0


def test_delta_of_losses_far_above_epsilon():
    """Lattices of a spacing beyond 40: delta was 0, from above, where it is 1.

    The truth is between tails of a binomial law: all of the losses above epsilon, and those above
    epsilon + 40. Fails for any bound on the wrong side, and for an upper one that is trivial where
    delta is under a half.
    """
    rng = np.random.default_rng(3)
    epsilon0 = np.exp(rng.uniform(np.log(0.01), np.log(50.0), 200))
    count = np.round(np.exp(rng.uniform(np.log(10.0), np.log(1e9), 200)))
    mean = epsilon0 * count * np.tanh(epsilon0 / 2.0)
    epsilon = rng.uniform(0.0, 1.1, 200) * mean
    epsilon[::3] = rng.choice([0.0, 1e-3, 1.0, 10.0, 100.0], len(epsilon[::3]))

    def above(loss):
        heads = np.floor((loss / epsilon0 + count) / 2.0)
        return scipy.stats.binom.sf(heads, count, 1.0 / (1.0 + np.exp(-epsilon0)))

    run = jaxdp.Repeated(jaxdp.RandomizedResponse(epsilon0), count)
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(run, epsilon))
    least, most = above(epsilon + 40.0), above(epsilon)
    assert (high >= least * (1.0 - 1e-6) - 1e-12).all()
    assert (low <= most * (1.0 + 1e-6) + 1e-12).all()
    assert (low <= high).all()
    assert not ((high > 0.99) & (most < 0.5)).any()
    assert not ((low < 0.01) & (least > 0.5)).any()


@pytest.mark.parametrize(
    "run",
    [
        jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(0.7), 0.9), 1e6),
        jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(0.1), 0.5), 1e6),
        jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.5), 1e8),
        jaxdp.Repeated(jaxdp.Laplace(0.01368), 11453),
        jaxdp.Repeated(jaxdp.DiscreteLaplace(20.0, 1), 1e6),
        jaxdp.Composed([jaxdp.Repeated(jaxdp.Laplace(0.02), 17365), jaxdp.Gaussian(1.0)]),
    ],
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_delta_is_one_where_almost_all_losses_are_far_above(run, direction):
    """Mean losses are 1e4 and more deviations above: a bound above under 1 - 1e-6 is wrong."""
    epsilons = np.array([0.0, 1.0, 5.0, 100.0])
    low, high = jaxdp.delta_bounds(run, epsilons, direction=direction)
    assert (np.asarray(high) > 1.0 - 1e-6).all()
    assert (np.asarray(low) <= np.asarray(high)).all()


@pytest.mark.parametrize(
    "run",
    [
        jaxdp.Repeated(jaxdp.RandomizedResponse(0.546), 683747272.0),
        jaxdp.Repeated(jaxdp.RandomizedResponse(1.49), 14135783.0),
        jaxdp.Repeated(jaxdp.Laplace(1.0), 982234058.0),
        jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(0.7), 0.9), 1e6),
        jaxdp.Composed([jaxdp.Repeated(jaxdp.Laplace(0.02), 1e8), jaxdp.Laplace(1.0)]),
    ],
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_very_many_steps_have_a_bound_below(run, direction):
    """Their lattice is wider than a step's losses: epsilon was at least 0, and so was delta."""
    deltas = np.array([1e-10, 1e-5, 1e-2, 0.4])
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, deltas, direction=direction))
    assert (low <= high).all()
    assert (low > 0.97 * high).all()
    below, above = jaxdp.delta_bounds(run, 0.9 * low, direction=direction)
    assert (np.asarray(below) > 0.99).all()
    assert (np.asarray(below) <= np.asarray(above)).all()


def test_a_step_that_mostly_fails_keeps_its_bound_below():
    """What a law lacks of 1, or has at infinity, is not above everything, nor below it."""
    m = jaxdp.Repeated(jaxdp.ApproximateDP(1.0, 1e-6), 1e8)
    low, high = jaxdp.delta_bounds(m, np.array([0.0, 1e7, 4.6e7, 5e7]))
    surely = -math.expm1(1e8 * math.log1p(-1e-6))  # that some step fails
    np.testing.assert_array_less(low, np.nextafter(high, 2.0))
    assert (np.asarray(high) >= surely * (1.0 - 1e-12)).all()
    averages = jaxdp.Repeated(
        jaxdp.RandomAllocation(
            jaxdp.RandomizedResponse(np.array([0.005391279232236429, 8.264])), np.array([1.0, 13.0])
        ),
        np.array([17553254.0, 347430.0]),
    )
    # mean losses are 255.1 with a deviation of 22.6, and 2 to 3 millions
    low, high = jaxdp.delta_bounds(averages, np.array([209.616, 5e6]))
    np.testing.assert_array_less(low, np.nextafter(high, 2.0))
    assert float(low[0]) < 0.98
    assert float(low[1]) == 0.0


def test_losses_below_all_rounding_have_no_bound_below_that_is_above():
    """A moment that underflowed counted as 0, and what had wrapped around as not there.

    Delta at 0 of T steps is at most T times that of one, q tanh(epsilon/2).
    """
    rng = np.random.default_rng(11)
    rate = 10.0 ** rng.uniform(-16.0, -11.0, 40)
    epsilon0 = 10.0 ** rng.uniform(-3.0, 1.0, 40)
    count = np.round(10.0 ** rng.uniform(5.0, 9.0, 40))
    rate[0], epsilon0[0], count[0] = 1e-15, 0.02665982112894845, 62281241.0
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.RandomizedResponse(epsilon0), rate), count)
    for direction in ("remove", "add"):
        low, high = map(np.asarray, jaxdp.delta_bounds(run, 0.0, direction=direction))
        assert (low <= high).all()
        assert (low <= count * rate * np.tanh(epsilon0 / 2.0)).all()
        assert (high <= count * rate * np.tanh(epsilon0 / 2.0) + 1e-14 * count).all()


def test_counts_are_not_taken_for_private_where_losses_are_large():
    """Pure epsilons of 20 a step: no more than five of them stay below 100 (267,797 did)."""
    found = calibrate.solve_integer(
        lambda count: jaxdp.Repeated(jaxdp.Laplace(0.05), count), epsilon=100.0, delta=1e-5
    )
    assert int(found.value) == 5


def test_the_logarithm_of_nan_is_none():
    """It was -inf, which a bound on delta takes for 0. Its slope at 0 stays 0."""
    x = np.array([-1.0, 0.0, 2.0, np.nan, np.inf])
    for log_positive in (_divergences.log_positive, _special_subnormal.log_positive):
        value = np.asarray(log_positive(jax.numpy.asarray(x)))
        np.testing.assert_array_equal(value, [-np.inf, -np.inf, np.log(2.0), np.nan, np.inf])
        assert float(jax.grad(log_positive)(0.0)) == 0.0
    assert float(_special_subnormal.log_positive(5e-324)) == pytest.approx(-744.44007, abs=1e-5)
