"""The engine's bounds against exact values: every one fails if a bound is on the wrong side."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp._law import Term, epsilon_bounds, log_delta_bounds
from jaxdp._law._compose import Composed, compose
from jaxdp._law._plan import plan
from jaxdp._law._query import _epsilon, _log_delta
from jaxdp._law._terms import orient
from tests.law import laws
from tests.programs import jit


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


ROWS = 8


def in_chunks(program, *columns):
    """A program of 8 rows over any number of them, padded with the last: one compilation."""
    rows = np.stack(np.broadcast_arrays(*(np.asarray(c, float) for c in columns)), axis=-1)
    number = len(rows)
    rows = np.concatenate([rows, np.repeat(rows[-1:], -number % ROWS, axis=0)])
    found = [program(*rows[i : i + ROWS].T) for i in range(0, len(rows), ROWS)]
    return tuple(np.concatenate(each)[:number] for each in zip(*found, strict=True))


LAWS = {
    "gaussian": lambda mu, count: Term(laws.gaussian(mu), count),
    "laplace": laws.laplace,
    "response": laws.randomized_response,
}


@functools.cache
def _program(law):
    def row(parameter, count, epsilon, log_delta, add, log_tau_p, mass_error):
        term = LAWS[law](parameter, count)._replace(log_tau_p=log_tau_p, mass_error=mass_error)
        terms = (orient(term, add > 0),)
        deltas = log_delta_bounds(terms, epsilon)
        return deltas if law == "response" else deltas + epsilon_bounds(terms, log_delta=log_delta)

    return jit(jax.vmap(row))


def bounds(law, parameter, count, epsilon=1.0, log_delta=-10.0, **more):
    """Bounds on log delta, and (but for responses) on epsilon: one program for each law."""
    more = {"add": 0, "log_tau_p": -np.inf, "mass_error": 0.0} | more
    return in_chunks(_program(law), parameter, count, epsilon, log_delta, *more.values())


def test_composed_gaussian_brackets_the_closed_form():
    """Breaks if rounding, wrap-around or a discretisation ever falls on the unsafe side."""
    mu, count, epsilon, exact = laws.random_gaussian_settings(24, seed=1)
    low, high, epsilon_low, epsilon_high = bounds("gaussian", mu, count, epsilon, exact)
    room = 1e-12 * np.abs(exact)  # of the closed form's own arguments
    assert np.all(low <= exact + room)
    assert np.all(high >= exact - room)
    assert np.all(epsilon_low <= epsilon * (1 + 1e-12))
    assert np.all(epsilon_high >= epsilon * (1 - 1e-12))
    ordinary = exact > np.log(1e-30)
    width = (epsilon_high - epsilon_low) / epsilon
    assert np.median(width[ordinary]) < 3e-4
    assert np.all(np.isfinite(high[ordinary]))


def test_wide_laws():
    """Breaks where a law reaches so far beyond epsilon that ratios overflow a double."""
    settings = [
        (1.0, 1000.0, 474.0),
        (1.0, 70000.0, 26663.0),
        (1 / 0.3432, 30000.0, 60141.0),
        (1 / 0.3432, 70000.0, 139447.0),
        (1 / 0.3432, 70000.0, 140534.0),
    ]
    x, count, epsilon = np.transpose(settings)
    exact = np.array([laws.composed_laplace_log_delta(*row) for row in settings])

    delta_low, delta_high, low, high = bounds("laplace", x, count, epsilon, exact)
    assert np.all(low <= epsilon)
    assert np.all(epsilon <= high)
    assert np.all(high - low < 2e-3 * epsilon)
    assert np.all(delta_low <= exact)
    assert np.all(exact <= delta_high)


# sigma, q, count: epsilon at delta = 1e-5 (exact), and the width allowed
KNOWN = [
    (1.0, 0.01, 1e3, 1.828237, 1e-3),
    (0.6, 1e-3, 1e4, 2.456145, 3e-3),
    (2.0, 0.1, 5e3, 22.513327, 1e-3),
    (1.1, 256 / 60000, 14062.0, 2.381597, 1e-3),
    (0.8, 1e-4, 1e6, 0.708271, 3e-3),
]
SMALL = [1e-14, 1e-18, 1e-25, 1e-50]
PUBLISHED = [
    (256, 60000, 1.12, 14062.0, 1e-5, 2.3102),
    (256, 60000, 0.6, 7031.0, 1e-5, 7.6900),
    (256, 60000, 1.2, 2343.0, 1e-5, 0.7923),
    (4096, 50000, 10.0, 875.0, 1e-5, 0.9028),
    (16384, 50000, 21.1, 250.0, 1e-5, 0.9121),
    (16384, 1271167, 2.5, 71589.0, 8e-7, 7.5088),
]


@functools.cache
def _sampled_program(**size):
    def row(sigma, q, count, delta, add):
        terms = (orient(laws.sampled_gaussian(sigma, q, count), add > 0),)
        return epsilon_bounds(terms, delta, **size)

    return jit(jax.vmap(row))


@functools.cache
def _sampled_epsilons():
    """All the single settings of a sampled Gaussian at once, in the direction remove."""
    rows = [(sigma, q, count, 1e-5) for sigma, q, count, *_ in KNOWN]
    rows += [(1.0, 0.01, 1e3, delta) for delta in SMALL]
    rows += [(sigma, b / n, count, delta) for b, n, sigma, count, delta, _ in PUBLISHED]
    low, high = in_chunks(_sampled_program(), *np.transpose(rows), 0.0)
    return dict(zip(rows, np.stack([low, high], axis=-1), strict=True))


def sampled_epsilon(*row):
    return _sampled_epsilons()[row]


@pytest.mark.parametrize(("sigma", "q", "count", "exact", "width"), KNOWN)
def test_sampled_gaussian_brackets_the_truth(sigma, q, count, exact, width):
    """Breaks if the rare large losses are priced wrongly, or if accuracy is lost."""
    low, high = sampled_epsilon(sigma, q, count, 1e-5)
    assert low <= exact + 1e-6
    assert high >= exact - 1e-6
    assert (high - low) / exact < width


def test_rare_losses():
    """Breaks if one loss far above epsilon misleads the search, if two of them wrap around to near
    epsilon, if one of few steps is taken for the mean of all, if a law that is mostly in one cell
    of the lattice loses its mean, or one that ends in a peak (add) its peak.
    """
    settings = [
        (0.4, 0.01, 1e3, 1e-5),
        (0.3, 0.01, 1e3, 1e-5),
        (0.6, 1e-3, 1e4, 1e-5),
        (0.8, 1e-4, 1e6, 1e-5),
        (2.0, 1e-4, 1e4, 1e-6),
        (1.0, 1e-3, 10.0, 1e-5),
        (0.739, 0.00138, 14.0, 4.8e-7),
        (0.8, 0.003, 100.0, 1e-7),
        (0.75, 1e-3, 200.0, 1e-8),
        (1.0, 0.3, 4.0, 1e-12),
        (1.0, 1e-3, 1.0, 1e-5),
        (1.0, 0.1, 1.0, 1e-5),
    ]

    settings = [(*row, add) for row in settings for add in (0, 1)]
    lows, highs = in_chunks(_sampled_program(size=16384), *np.transpose(settings))
    for setting, low, high in zip(settings, lows, highs, strict=True):
        sigma, q, count, delta, add = setting
        assert 0.0 <= low <= high < (1 + 5e-4) * low + 1e-12, setting
        if count == 1 and not add:
            at_low, at_high = (laws.sampled_gaussian_log_delta(sigma, q, e) for e in (low, high))
            assert at_low >= np.log(delta) - 1e-9
            assert at_high <= np.log(delta) + 1e-9


def test_next_to_no_delta_is_next_to_none():
    """Breaks if a delta below what a double holds makes the bound trivial, or fall too low."""
    epsilon = np.array([300.0, 450.0, 3000.0, 1e6])
    low, high, *_ = bounds("gaussian", 1.0, 100.0, epsilon)
    exact = np.array([laws.gaussian_log_delta(10.0, e) for e in epsilon])
    assert np.all(low <= exact)
    assert np.all(exact <= high)
    assert np.all(high[1:] < -550.0)


@pytest.mark.parametrize("delta", SMALL)
def test_small_delta_stays_finite_and_ordered(delta):
    """Breaks if the transform's rounding noise reaches the answer."""
    low, high = sampled_epsilon(1.0, 0.01, 1e3, delta)
    assert 0.0 < low <= high < 1.01 * low


@pytest.mark.parametrize(("batch", "records", "sigma", "count", "delta", "reported"), PUBLISHED)
def test_published_runs(batch, records, sigma, count, delta, reported):
    low, high = sampled_epsilon(sigma, batch / records, count, delta)
    assert abs(high / reported - 1) < 2e-3
    assert 0 <= high - low < 2e-3 * reported


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_randomised_response(direction):
    """Breaks if atoms are put in the wrong cell; the two directions agree by symmetry."""
    settings = [(0.3, 5, 0.7), (0.1, 400, 5.5)]
    exact = np.array([laws.randomized_response_log_delta(*s) for s in settings])
    low, high = bounds("response", *np.transpose(settings), add=direction == "add")
    assert np.all(low <= exact + 1e-11)
    assert np.all(high >= exact - 1e-11)
    assert np.all(high - exact < 0.05)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_laplace_pair(direction):
    """Breaks if the atoms at the two ends of the losses are lost or moved."""
    settings = [(1.0, 0.8), (0.5, 0.1)]
    exact = np.array([laws.laplace_pair_log_delta(*s) for s in settings])
    x, epsilon = np.transpose(settings)
    low, high, *_ = bounds("laplace", x, 2.0, epsilon, add=direction == "add")
    assert np.all(low <= exact + 1e-11)
    assert np.all(high >= exact - 1e-11)
    assert np.all(high - low < 2e-2)


def test_gradients_are_those_of_the_bound():
    """Breaks if a grid choice carries a gradient, or a mask poisons one.

    A moving grid would add steps to the bound: the differences are taken on one plan. They reach
    over many cells, whose ends would be kinks if the curve were not read smoothed.
    """

    def law(sigma, q, count):
        return (laws.sampled_gaussian(sigma, q, count),)

    log_delta = jnp.log(1e-5)
    chosen = jit(lambda x: plan(law(1.0, 0.01, 1000.0), None, x, 8192))(log_delta)

    def upper(parameters):
        sigma, q, count, log_delta = parameters
        composed = compose(law(sigma, q, count), chosen, 8192, 1)
        return _epsilon(composed, log_delta, chosen.epsilon, 1)

    def public(parameters):
        sigma, q, count, log_delta = parameters
        return epsilon_bounds(law(sigma, q, count), log_delta=log_delta, sides=(1,))[0]

    at = jnp.array([1.0, 0.01, 1000.0, log_delta])
    steps = np.array([1e-3, 1e-5, 1.0, 1e-2])
    points = np.concatenate([at[None], at + np.diag(steps), at - np.diag(steps)])

    def with_value(parameters):
        return 2 * (upper(parameters),)

    slopes, values = jit(jax.vmap(jax.jacfwd(with_value, has_aux=True)))(points)
    np.testing.assert_allclose(jit(jax.grad(public))(at), slopes[0], rtol=1e-6)
    differences = (values[1:5] - values[5:]) / (2 * steps)
    np.testing.assert_allclose(slopes[0], differences, rtol=1e-4)


@functools.cache
def _upper_and_slopes(mechanism):
    def upper(sigma, count, delta):
        term = Term(mechanism(sigma)._log_masses, count, support=mechanism(sigma)._loss_range())
        return epsilon_bounds((term,), delta, sides=(1,))[0]

    return jit(jax.vmap(jax.value_and_grad(upper, argnums=(0, 2))))


@pytest.mark.parametrize(
    ("mechanism", "sigma", "count", "delta"),
    [
        (jaxdp.Gaussian, 5.0, 1.0, 1e-5),
        (jaxdp.Gaussian, 20.0, 40.0, 1e-5),
        (jaxdp.Laplace, 20.0, 300.0, 1e-5),
        (jaxdp.Laplace, 50.0, 2000.0, 1e-6),
    ],
)
def test_gradients_are_slopes_at_any_scale(mechanism, sigma, count, delta):
    """Breaks if the nodes of one step or the atoms of many leave kinks between the points."""
    steps = np.array([1e-6, 1e-5, 1e-4])
    factors = np.concatenate([[1.0], 1.0 + steps, 1.0 - steps])
    ones = np.ones(factors.size - 1)
    sigmas = sigma * np.concatenate([factors, ones])
    deltas = delta * np.concatenate([[1.0], ones, factors[1:]])
    program = _upper_and_slopes(mechanism)
    values, slopes = program(sigmas, np.full(sigmas.size, count), deltas)
    up, down = np.asarray(values)[1:].reshape(2, 2, steps.size).swapaxes(0, 1)
    by_sigma, by_delta = (up - down) / (2 * steps * np.array([[sigma], [delta]]))
    np.testing.assert_allclose(slopes[0][0], by_sigma, rtol=1e-4)
    np.testing.assert_allclose(slopes[1][0], by_delta, rtol=1e-4)


def test_smoothed_readings_are_above_and_inverse():
    """Breaks if delta or epsilon, read smoothed, falls below the lattice's own curve by 1e-12."""
    theta, start, spacing = 1.5, -6.0, 0.05
    loss = start + spacing * np.arange(256)
    weights = np.exp(-0.5 * (loss - 0.4) ** 2)
    weights /= weights.sum()
    zero, nothing = jnp.float64(0.0), jnp.float64(-jnp.inf)
    law = Composed(
        *map(jnp.asarray, (theta, start, spacing, weights)),
        zero,
        nothing,
        *3 * (zero,),
        (zero, zero),
    )
    for epsilon in np.linspace(0.2, 3.0, 29):
        log_delta = _log_delta(law, epsilon, 1)
        y = np.maximum(loss - epsilon, 0.0)
        own = np.log(np.sum(weights * np.exp(-theta * loss) * -np.expm1(-y)))
        assert (
            own - 1e-12 < log_delta < own + 4.0 * spacing**2
        )  # C'' / 8 C at a point of the lattice
        again = float(_epsilon(law, log_delta, jnp.float64(1.0), 1))
        assert epsilon - 1e-12 < again < epsilon + 1e-9


def test_atoms_stay_on_the_lattice():
    """Breaks if blocks of many steps put their atoms between the points of the coarse lattice."""
    settings = [(0.1, 400, 5.5), (0.02, 5000, 7.3), (0.02, 5000, 2.0)]

    exact = np.array([laws.randomized_response_log_delta(*s) for s in settings])
    low, high = bounds("response", *np.transpose(settings))
    assert np.all(low <= exact + 1e-11)
    assert np.all(high >= exact - 1e-11)
    assert np.all(high - low < 1e-5)


@pytest.mark.slow
def test_two_terms_equal_one():
    """Breaks if the parts of a heterogeneous composition lose track of their lattices."""
    parts = (Term(laws.gaussian(0.1), 300.0), Term(laws.gaussian(0.2), 50.0))
    exact = laws.gaussian_log_delta(np.sqrt(300 * 0.01 + 50 * 0.04), 8.0)
    low, high = jit(lambda e: log_delta_bounds(parts, e))(8.0)
    assert low <= exact <= high
    assert high - low < 2e-2


def test_infinite_losses_are_kept_apart():
    """Breaks if P{L = inf} is forgotten, or counted in the wrong direction."""
    through = -np.expm1(100 * np.log1p(-1e-9))
    common = {"epsilon": np.full(2, 30.0), "log_tau_p": np.log(1e-9), "add": [0, 1]}
    low, high, *_ = bounds("gaussian", 0.1, 100.0, **common)
    assert low[0] >= np.log(through) - 1e-6
    assert high[1] < np.log(through) - 10


def test_unknown_masses_give_trivial_bounds():
    """Breaks if nan, which compares as false, is taken for an empty law, whose delta is 0."""
    log_deltas_and_epsilons = bounds("gaussian", 0.1, [100.0], mass_error=np.nan)
    np.testing.assert_array_equal(np.ravel(log_deltas_and_epsilons), [-np.inf, 0.0, 0.0, np.inf])
