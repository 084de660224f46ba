"""Certified root finding: what is returned satisfies the constraint, and hardly more than that."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from jaxdp import _answers, _roots
from tests.programs import jit

TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def part(x, coefficients):
    """Falls through 0 at the first coefficient, steadily or with a bend."""
    root, slope, bend = coefficients
    return -slope * (x - root) - bend * jnp.tanh(3.0 * (x - root))


def both(x, pair):
    return jnp.maximum(part(x, pair[0]), part(x, pair[1]))


@jit
@jax.vmap
def search(pair, start, slope, first):
    def of(x, flag):
        return part(x, jnp.where(flag, pair[1], pair[0]))

    parts = _roots.Parts(of, first)
    found = _roots.safe_root_and_value(lambda x: both(x, pair), start, 0.0, TOLERANCE, slope, parts)
    gradient = jax.grad(
        lambda pair: _roots.safe_root_and_value(
            lambda x: both(x, pair), start, 0.0, TOLERANCE, slope, parts
        )[0]
    )(pair)
    return *found, gradient


def test_parts_are_both_satisfied():
    """Breaks when a search that follows one of two constraints forgets the other one, or its value.

    Roots of the two parts are equal, close or far apart, and the search may begin with either.
    """
    rng = np.random.default_rng(0)
    n = 400
    roots = rng.uniform(-2, 2, n)
    apart = rng.choice([0.0, 1e-7, 1e-3, 1.0], n) * rng.choice([-1.0, 1.0], n)
    shape = rng.uniform([0.3, 0.0], [2.0, 1.0], (n, 2, 2))
    pair = np.concatenate([np.stack([roots, roots + apart], 1)[..., None], shape], axis=-1)
    start = roots + rng.uniform(-0.5, 0.5, n)
    slope = -rng.uniform(0.5, 2.0, n)
    root, value, gradient = search(pair, start, slope, rng.random(n) < 0.5)
    expected = roots + np.maximum(apart, 0.0)
    assert np.all(value <= 0.0)
    np.testing.assert_allclose(value, jax.vmap(both)(root, pair), rtol=1e-12, atol=1e-15)
    excess = np.asarray(root) - expected
    assert excess.min() >= 0.0
    assert excess.max() <= 12 * TOLERANCE  # in x: the slope estimate may be 4 times off
    far = np.abs(apart) >= 1e-3  # else either part may be taken for the larger
    np.testing.assert_allclose(gradient[far].sum(axis=1)[:, 0], 1.0, rtol=1e-5)


def test_a_part_that_is_never_satisfied():
    """Breaks when a point is returned of which the other part was never satisfied, or nan."""
    for value in (1.0, jnp.inf, jnp.nan):
        parts = _roots.Parts(
            lambda x, flag, value=value: jnp.where(flag, value, -x), jnp.asarray(False)
        )
        root, _ = _roots.safe_root_and_value(
            lambda x: -x, jnp.float64(0.5), 0.0, TOLERANCE, jnp.float64(-1.0), parts
        )
        assert root == jnp.inf


def test_a_start_that_is_none():
    """Breaks when nan gives a root."""
    assert _roots.safe_root(lambda x: -x, jnp.float64(jnp.nan)) == jnp.inf


def test_an_estimate_ends_on_either_side():
    """Breaks when a point just short of the root costs another look, or is taken as it is."""
    tolerance = 0.05

    def line(x):
        return 1.0 - x

    start, slope = jnp.float64(0.0), jnp.float64(-1.05)  # leads to 0.97
    near, found, _ = _roots.estimate_root(line, start, tolerance, slope)
    np.testing.assert_allclose((near, found), (1.0, -1.0), rtol=1e-12)
    state = _roots._search(line, start, 0.0, tolerance, slope, either=True)
    assert state.count == 2
    assert _roots._search(line, start, 0.0, tolerance, slope).count == 3


def steep(y, power, scale):
    """Decreasing through 0, on either side as a power of the distance; steep where that is < 1."""
    left = y < 0.0
    distance = jnp.maximum(jnp.abs(y), 1e-300)
    return jnp.where(left, 1.0, -1.0) * jnp.where(
        left, scale[0] * distance ** power[0], scale[1] * distance ** power[1]
    )


@jit
@jax.vmap
def search_steep(power, scale, shift, start):
    return _roots.safe_root(lambda x: steep(x - shift, power, scale), start, 1e-12, 1e-12)


def test_steep_roots_do_not_send_the_search_to_and_fro():
    """Newton's steps change sides, hardly nearer, at powers of little more than .5.

    The search ended near where it began then: epsilon was .78 for a delta that 0 attains.
    """
    rng = np.random.default_rng(1)
    n = 2000
    power = rng.choice([0.3, 0.5, 0.501, 0.51, 0.7, 1.0, 2.0], (n, 2))
    scale = 10.0 ** rng.uniform(-1.0, 1.0, (n, 2))
    shift, start = rng.uniform(-1.0, 1.0, n), rng.choice([-3.0, 1.0, 5.0], n)
    root = search_steep(power, scale, shift, start)
    assert np.all(np.abs(root - shift) <= 1e-11)


def test_epsilon_at_a_delta_that_an_atom_at_0_makes_a_bend():
    """A fixed-size batch has an atom at loss 0: log delta falls 5 times as steeply before as after.

    As a lower bound .0249 was above the truth, 0.
    """
    deltas = np.array([0.07, 0.09, 0.0956, 0.098, 0.099, 0.0999, 0.1, 0.2])
    step = jaxdp.FixedSizeSampled(jaxdp.Gaussian(1.0), 0.1)
    assert float(jaxdp.delta(step, 0.0)) < np.min(deltas)
    low, high = jaxdp.epsilon_bounds(step, deltas)
    np.testing.assert_array_equal(low, 0.0)
    np.testing.assert_array_equal(high, 0.0)


@pytest.mark.parametrize("root", [1e-3, 0.3, 5.0, 40.0])
def test_a_smooth_function_takes_few_evaluations(root):
    """Breaks when the last steps, next to the root, halve the bracket one after another: 33."""

    def gaussian(x):  # as log delta falls
        return root**2 + root - x**2 - x

    state = _roots._search(gaussian, jnp.float64(1.0), 1e-12, 1e-14)
    assert state.done
    assert state.count <= 14


@pytest.mark.parametrize("delta", [1e-1, 1e-5, 1e-12, 1e-30, 1e-100])
def test_epsilon_next_to_the_largest_loss_takes_few_evaluations(delta, monkeypatch):
    """Breaks when it is looked for by halving what is left of the distance: 46."""
    counts, search = [], _roots._search

    def counted(*args, **options):
        state = search(*args, **options)
        jax.debug.callback(lambda count: counts.append(int(count)), state.count)
        return state

    monkeypatch.setattr(_roots, "_search", counted)
    step = jaxdp.PoissonSampled(jaxdp.Laplace(2.0), 0.3)
    most = float(step._loss_range()[1]) * (1.0 + 1e-14)
    found = jax.jit(lambda x: _answers.epsilons(step, x, "remove", None, (-1, 1)))(delta)
    low, high = map(float, found)
    jax.effects_barrier()
    assert low <= high <= most
    assert high - low <= 4e-12 * most
    assert len(counts) == 2
    assert max(counts) <= 16
    truth = jaxdp.hockey_stick(step, np.array([low, high]), direction="remove")
    assert truth[0] >= delta * (1.0 - 1e-9) or low in (0.0, pytest.approx(most, rel=1e-9))
    assert truth[1] <= delta
