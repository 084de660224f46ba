"""Next to nothing beside much: masses that a lattice far coarser than them must not lose."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxdp
from jaxdp._law import _begins, _compose, _discretise, _jumps, _plan, _query
from jaxdp._law._grid import Lattice, align, even_rungs
from jaxdp._law._step import OneStep, discretise, finite_ends
from jaxdp._law._symbols import Frame
from jaxdp._numerical_terms import terms_of
from tests.programs import jit


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def test_a_thin_tail_beside_a_narrow_bulk():
    """Breaks if the law below ends where the curve falls by much within one cell."""
    cells, width = 40, 3.6e-3
    tail = 0.005 * (1.0 + np.arange(cells)) ** -2.0
    left, right = 0.5 * tail, 0.5 * tail
    left[0], right[0] = 1.4, 0.034  # on its node, and in the middle of a cell
    rise = np.expm1(width * np.where(np.arange(cells) == 0, [[0.0], [0.65]], [[0.25], [0.75]]))
    ratio = np.exp(width * np.arange(cells + 1.0))
    halves = _discretise.HalfCells(*map(jnp.asarray, (left, right, *rise)))
    empty = jnp.zeros(cells + 1, bool)
    steps = jnp.full(cells, width)
    found = _discretise.lower_measure(halves, steps, jnp.asarray(ratio), jnp.float64(0.0), empty)
    points, masses = ratio[:-1] * (1.0 + rise), np.stack([left, right])
    for k in (1, 3, 10, 20):
        given = np.sum(masses * np.maximum(points - ratio[k], 0.0))
        got = np.sum(found * np.maximum(ratio - ratio[k], 0.0))
        assert 0.9 * given < got <= given


def test_an_atom_at_the_low_end_keeps_its_mean_and_its_node():
    """Breaks if what lies beside the atom is moved to it: 3 % of the cumulant here."""
    b, q, theta, spacing = 0.364338, 0.000770917, 6.74, 3.558e-5
    (term,) = terms_of(jaxdp.PoissonSampled(jaxdp.Laplace(b), q))
    lattice = align(Lattice(jnp.float64(0.0), jnp.float64(spacing)), finite_ends(term), -1)
    kept = jnp.float64(-jnp.inf), jnp.float64(jnp.inf)
    ends = finite_ends(term)
    below = discretise(term, lattice, ends, kept, jnp.float64(theta), even_rungs(4096), -1)

    def moment(loss):
        return mp.mpf(1 - q + q * mp.exp(loss)) ** (1 + mp.mpf(theta))

    x = 1 / mp.mpf(b)
    density = mp.quad(lambda y: mp.exp(-(y + x) / 2) / 4 * moment(y), [-x, 0, x])
    truth = float(mp.log(mp.exp(-x) / 2 * moment(x) + moment(-x) / 2 + density))
    assert (1.0 - 2e-3) * truth < float(below.log_norm) <= truth


def test_jumps_beside_a_bulk_far_from_zero():
    """Breaks if jumps are counted from loss 0: off the lattice, and e^{theta loss} infinite."""
    size, theta, centre = 256, 2000.0, 0.65
    positions = jnp.array([-20.0, -1.0, 0.0, 1.0, 30.0])
    weights = jnp.array([2e-3, 0.2, 0.5, 0.295, 3e-3])
    none = jnp.float64(0.0)
    one = OneStep(
        weights,
        positions,
        Lattice(jnp.float64(centre), jnp.float64(2e-6)),
        jnp.float64(theta * centre),
        -none,
        none,
    )
    rare = jnp.abs(positions) > 10.0
    chernoff = jnp.array([100.0, 100.0])
    for side in (1, -1):
        frame = Frame(jnp.float64(3e-6), chernoff, jnp.float64(theta), side, size)
        jumps = _jumps.jumps_of(
            one, rare, jnp.asarray(True), jnp.asarray(False), jnp.float64(0.0), frame
        )
        mass = float(jumps.own.real[0] * jnp.exp(jumps.log_mass))
        assert side * mass >= side * 5e-3 * (1.0 - 1e-12)
        assert mass == pytest.approx(5e-3, rel=1e-2)
        assert np.all(np.isfinite(np.asarray(jumps.beside.real)))


def test_where_a_coarse_law_begins_and_ends():
    """Breaks if a first atom of next to no mass takes the lattice, or a wide cell hides a cut."""
    log_p = jnp.log(jnp.array([1e-6, 0.0, 0.5, 0.0, 0.5]))
    loss = jnp.array([-0.22, 0.0, -0.05, 0.0, 0.07])
    ends, cell = jnp.float64(-0.22), jnp.float64(1e-3)
    low = float(_begins._coarsely(log_p, loss, ends, cell))
    assert -0.05 - 1e-6 < low < -0.05
    heavy = jnp.log(jnp.array([1e-2, 0.0, 0.5, 0.0, 0.5]))
    assert float(_begins._coarsely(heavy, loss, ends, cell)) == -0.22
    # a bulk within one cell is collapsed to its mean, unless more comes right after it
    loss = jnp.array([-0.22, -0.21999, 0.0, 0.0, 0.5])
    narrow = jnp.log(jnp.array([1e-2, 0.9, 0.0, 0.0, 0.09]))
    low = float(_begins._coarsely(narrow, loss, ends, cell))
    assert low == pytest.approx(-0.22 + 1e-5 * 0.9 / 0.91, abs=1e-9)
    spread = jnp.array([-0.22, -0.21999, -0.2193, 0.0, 0.5])
    also = jnp.log(jnp.array([1e-2, 0.9, 0.05, 0.0, 0.09]))
    assert float(_begins._coarsely(also, spread, ends, cell)) == -0.22

    edges = jnp.array([[-3.0, -0.6, 0.5, 2.0]])
    centred = jnp.array([[-4.0, -1.5, 0.0, 0.7, 3.0]])
    log_p = jnp.log(jnp.array([[0.1, 0.2, 0.4, 0.2, 0.1]]))
    kept, (down, up) = _plan._within(edges, centred, centred, log_p, jnp.array([[1.0]]))
    np.testing.assert_array_equal(np.asarray(kept > -jnp.inf), [[False, True, True, True, False]])
    assert float(down[0, 1]) == -1.0
    assert float(up[0, 3]) == 1.0


def test_rounding_of_what_is_next_to_nothing():
    """Breaks if 1 less a failure, a logarithm or a theta function is rounded the wrong way."""
    with mp.workdps(60):
        # of a logarithm of -147 the last digit is 3e-14 of what it stands for
        ou = jaxdp.OrnsteinUhlenbeck(1.0, 1.0, 150.0, np.array([65.69683165239341, 3.7, 1e-3]))
        for value, size in zip(np.asarray(jaxdp.advantage(ou)), ou.sensitivity, strict=True):
            mu = mp.mpf(float(size)) / mp.sqrt(mp.expm1(300))
            assert value >= mp.erf(mu / mp.sqrt(8))
            assert value <= mp.erf(mu / mp.sqrt(8)) * (1 + mp.mpf("1e-12"))
        failures = np.array([1.7388938492508216e-07, 1e-25, 0.3])
        sure = np.asarray(jaxdp.tradeoff(jaxdp.ApproximateDP(0.7, failures), 0.0))
        for value, failure in zip(sure, failures, strict=True):
            assert 0 <= 1 - mp.mpf(float(failure)) - mp.mpf(float(value)) < 1e-15
        alphas, sigmas = np.array([4.153868176496441, 7.49, 1.3]), np.array([0.054876, 0.02, 0.3])
        found = np.asarray(jaxdp.renyi(jaxdp.DiscreteGaussian(sigmas, 4), alphas))
        for value, a, s in zip(found, map(mp.mpf, alphas), map(mp.mpf, sigmas), strict=True):
            theta = [
                sum(mp.exp(-((k - c) ** 2) / (2 * s**2)) for k in range(-9, 40)) for c in (0, 4 * a)
            ]
            truth = 8 * a / s**2 + mp.log(theta[1] / theta[0]) / (a - 1)
            assert abs(value / truth - 1) < 1e-12


def test_what_underflows_far_from_the_centre_is_no_bound():
    """Breaks when a reading far from the law's centre takes what underflows for e^-650."""
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(0.45), 1.04e-7), 979.0)
    terms, log_delta = terms_of(m), jnp.log(1.98e-10)
    chosen = _plan.plan(terms, None, log_delta, 16384)

    def low(centre):
        law = _compose.compose(terms, chosen._replace(epsilon=centre), 16384, -1)
        return _query._epsilon(law, log_delta, centre, -1)

    found = jit(lambda centres: jax.lax.map(low, centres))(jnp.linspace(1.0, 800.0, 40))
    assert np.all(found <= 0.15)  # the truth is about .02


STEPS = np.array([5.0, 18.0, 29.0, 100.0])
SETTINGS = np.array([(1.7967, 0.001648, 1.0381), (0.86288, 1.19834e-5, 0.0168)])


@pytest.mark.parametrize(
    "sigma_q_epsilon", [SETTINGS[0], pytest.param(SETTINGS[1], marks=pytest.mark.slow)]
)
def test_slopes_in_the_number_of_steps_where_one_loss_decides(sigma_q_epsilon):
    """Breaks when a real number of steps makes waves of a bulk narrower than the lattice.

    delta of n steps is nearly n times that of one rare loss beside n - 1 others: the slope of its
    logarithm is about that from n to n + 1, and what is in between lies between.
    """
    sigma, q, epsilon = sigma_q_epsilon

    def log_delta(steps):
        m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)
        return jaxdp.log_delta(m, epsilon, direction="remove")

    def bounds(steps):
        m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)
        return jaxdp.delta_bounds(m, epsilon, direction="remove")

    value, slope = jit(jax.vmap(jax.value_and_grad(log_delta)))(STEPS)
    after = jit(jax.vmap(log_delta))(STEPS + 1.0)
    np.testing.assert_allclose(slope, after - value, rtol=0.6, atol=0.02)
    low, high = (np.log(x) for x in jit(jax.vmap(bounds))(STEPS + 0.3))
    assert np.all((low <= high) & (high > value - 0.02) & (high < after + 0.02))


def test_what_wraps_around_does_not_spoil_the_bound_below():
    """Breaks (a lower bound of 0) when Chernoff's bound feels what wrapped around in a block."""
    sigma = 2.1870627800311175 * (1.0 + 1e-3 * np.arange(0.0, 64.0, 4.0))
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.0024816761), 59)
    low, high = jaxdp.epsilon_bounds(m, 2.0119774631e-4, direction="add")
    assert np.all(low > 0.999 * high)
