"""Schedules and compositions of what is nested itself, against enumeration of all outcomes."""

import itertools

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp._mechanisms._schedule import by_steps
from tests.programs import jit

DELTAS = np.array([1e-1, 1e-3, 1e-5])


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def _response(epsilon):
    p = 1.0 / (1.0 + np.exp(-epsilon))
    return np.array([p, 1.0 - p]), np.array([1.0 - p, p])


def _product(laws):
    p = np.array([np.prod(x) for x in itertools.product(*(law[0] for law in laws))])
    q = np.array([np.prod(x) for x in itertools.product(*(law[1] for law in laws))])
    return p, q


def _allocated(law, steps):
    """One of so many steps, chosen at random, is that of P."""
    places = np.array(list(itertools.product(range(law[0].size), repeat=steps)))
    q = np.prod(law[1][places], axis=1)
    return q * np.mean((law[0] / law[1])[places], axis=1), q


def _sampled(law, rate):
    return (1.0 - rate) * law[1] + rate * law[0], law[1]


def _curve(law, epsilon, direction):
    p, q = law if direction == "remove" else law[::-1]
    return np.maximum(p - np.exp(epsilon) * q, 0.0).sum()


def _brackets(run, law, direction, width=3e-3):
    found = jaxdp.epsilon_bounds(run, DELTAS, direction=direction, method=jaxdp.Numerical())
    low, high = (np.asarray(x) for x in found)
    at_low, at_high = ([_curve(law, e, direction) for e in side] for side in (low, high))
    # epsilon cannot be less than low, and high is enough
    assert ((at_low >= DELTAS * (1.0 - 1e-9)) | (low == 0.0)).all()
    assert (at_high <= DELTAS * (1.0 + 1e-9)).all()
    assert (high - low <= width * high + 1e-9).all()


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_schedule_of_allocations(direction):
    """Breaks when a step's table is not its own, or is of the other direction."""
    epsilon = np.array([0.5, 1.0, 1.5, 2.0])
    run = jaxdp.Schedule(jaxdp.RandomAllocation(jaxdp.RandomizedResponse(epsilon), 2))
    law = _product([_allocated(_response(e), 2) for e in epsilon])
    _brackets(run, law, direction)


def test_lists_of_allocations_are_schedules():
    """Breaks when an average of a list has the parameters or the number of another."""
    sigma, steps = np.array([1.0, 2.0, 0.5, 3.0]), np.array([10.0, 20.0, 5.0, 7.0])
    epochs = np.array([1.0, 3.0, 2.0, 1.0])
    runs = [
        jaxdp.RandomAllocation(jaxdp.Gaussian(s), t, num_epochs=n)
        for s, t, n in zip(sigma, steps, epochs, strict=True)
    ]
    mixed = jaxdp.Composed([jaxdp.Gaussian(4.0), *runs, jaxdp.Laplace(2.0)])
    gaussian, laplace, family = (t.mechanism for t in by_steps(mixed)._terms())
    assert gaussian == jaxdp.Gaussian(4.0)
    assert laplace == jaxdp.Laplace(2.0)
    found = (
        np.asarray(x)
        for x in (family.mechanism.mechanism.sigma, family.mechanism.num_steps, family.copies)
    )
    assert set(zip(*found, strict=True)) == set(zip(sigma, steps, epochs, strict=True))
    one = jaxdp.Composed([jaxdp.Laplace(2.0), runs[0]])
    assert by_steps(one) is one


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_list_of_allocations(direction):
    """Breaks when a list of allocations is composed otherwise than their schedule."""
    epsilon = np.array([0.5, 1.0, 1.5, 2.0])
    run = jaxdp.Composed([jaxdp.RandomAllocation(jaxdp.RandomizedResponse(e), 2) for e in epsilon])
    _brackets(run, _product([_allocated(_response(e), 2) for e in epsilon]), direction)


def test_schedule_of_sampled_compositions():
    """Breaks when rates or parts of a step are those of another."""
    epsilon, rate = np.array([0.5, 1.0, 2.0]), np.array([0.1, 0.5, 0.9])
    inner = jaxdp.Composed([jaxdp.RandomizedResponse(epsilon), jaxdp.RandomizedResponse(1.0)])
    run = jaxdp.Schedule(jaxdp.PoissonSampled(inner, rate))
    law = _product(
        [
            _sampled(_product([_response(e), _response(1.0)]), q)
            for e, q in zip(epsilon, rate, strict=True)
        ]
    )
    _brackets(run, law, "remove")


@pytest.mark.slow
def test_allocation_beside_four_of_a_kind():
    """Breaks when a family beside an average is refused: four steps of a kind are one."""
    epsilon = [0.2, 0.4, 0.6, 0.8]
    steps = [jaxdp.RandomizedResponse(e) for e in epsilon]
    run = jaxdp.Composed([jaxdp.RandomAllocation(jaxdp.RandomizedResponse(1.0), 3), *steps])
    law = _product([_allocated(_response(1.0), 3), *map(_response, epsilon)])
    _brackets(run, law, "remove")


@pytest.mark.slow
def test_averages_in_tables_of_add():
    """Breaks when few outer steps read a law that is accurate for many: epsilon was inf."""
    gaussian = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 5)
    mixed = jaxdp.Mixture([gaussian, jaxdp.Gaussian(1.0)], [0.9, 0.1])
    run = jaxdp.Repeated(mixed, np.array([1.0, 9.0]))
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(run, 1e-6, direction="add"))
    assert (high - low <= 1e-2 * high).all()


@pytest.mark.slow
def test_derivatives_in_32_bit_programs():
    """Breaks when a table of a step loses its gradient, or does not lower in a 32-bit program."""

    def epsilon(sigma):
        run = jaxdp.Schedule(jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 5))
        return jaxdp.epsilon(run, 1e-6, direction="add")

    sigma = np.array([1.0, 1.5, 2.0])
    with jax.enable_x64(False):
        value, slope = jit(jax.value_and_grad(epsilon))(sigma.astype(np.float32))
    assert value.dtype == slope.dtype == np.float32
    step = 1e-2 * np.eye(3)
    up, down = (np.array([epsilon(sigma + side * x) for x in step]) for side in (1.0, -1.0))
    np.testing.assert_allclose(slope, (up - down) / 2e-2, rtol=5e-3)
    np.testing.assert_allclose(value, epsilon(sigma), rtol=1e-4)


P = np.array([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [0.4, 0.5, 0.1], [0.3, 0.3, 0.4]])
Q = np.array([[0.4, 0.4, 0.2], [0.3, 0.2, 0.5], [0.6, 0.2, 0.2], [0.2, 0.4, 0.4]])


@pytest.mark.parametrize("direction", [pytest.param("remove", marks=pytest.mark.slow), "add"])
def test_schedule_of_vectors(direction):
    """Breaks when the axis of a vector is taken for that of the steps."""
    rate = np.array([0.2, 0.5, 0.9, 1.0])
    pairs = list(zip(P, Q, strict=True))
    law = _product([_sampled(x, q) for x, q in zip(pairs, rate, strict=True)])
    run = jaxdp.Schedule(jaxdp.PoissonSampled(jaxdp.FinitePair(P, Q), rate))
    assert run.steps == 4
    _brackets(run, law, direction)


@pytest.mark.slow
def test_schedule_of_mixtures_and_schedules():
    """Breaks when a step of steps is lost, or parts of a mixture share their weights."""
    epsilon = np.array([[0.2, 0.8], [0.5, 1.0], [0.3, 1.5]])
    weight = np.array([0.9, 0.5, 0.3])
    inner = jaxdp.Schedule(jaxdp.RandomizedResponse(epsilon))
    mixed = jaxdp.Mixture(
        [inner, jaxdp.RandomizedResponse(1.0)], np.stack([weight, 1.0 - weight], axis=-1)
    )
    both = [_product([_response(e) for e in row]) for row in epsilon]
    parts = [
        tuple(np.append(w * a, (1.0 - w) * b) for a, b in zip(x, _response(1.0), strict=True))
        for x, w in zip(both, weight, strict=True)
    ]
    _brackets(jaxdp.Schedule(mixed), _product(parts), "remove")
    _brackets(jaxdp.Schedule(inner), _product(both), "remove")


def test_a_list_in_a_schedule():
    """Breaks when four of a kind are stacked along the axis of the steps that holds them."""
    epsilon = np.outer([0.1, 0.2, 0.3, 0.4], [1.0, 2.0])
    run = jaxdp.Schedule(jaxdp.Composed([jaxdp.RandomizedResponse(e) for e in epsilon]))
    _brackets(run, _product([_response(e) for e in epsilon.ravel()]), "remove")


def test_lists_of_vectors_by_length():
    """Breaks when vectors of several lengths are put together; all else is as in a schedule."""
    short = [jaxdp.FinitePair([a, 1 - a], [0.5, 0.5]) for a in (0.3, 0.4, 0.6, 0.7)]
    long = [jaxdp.FinitePair(p, q) for p, q in zip(P, Q, strict=True)]
    mixed = [x for two in zip(short, long, strict=True) for x in two]
    law = _product([(np.asarray(x.p), np.asarray(x.q)) for x in mixed])
    _brackets(jaxdp.Composed(mixed), law, "remove")


@pytest.mark.slow
def test_vectors_of_steps_have_slopes():
    """Breaks when a gradient loses an axis, or a batch is taken for one of them."""

    def epsilon(shifts):
        weights = np.array([0.5, 0.3, 0.2])
        run = jaxdp.Schedule(jaxdp.GaussianMixture(2.0, shifts, weights))
        return jaxdp.epsilon(run, 1e-4, direction="remove")

    rows = np.array([[[0.5, 1.0, 2.0], [0.2, 0.4, 3.0]], [[0.5, 1.0, 1.0], [0.3, 2.0, 2.5]]])
    values, slopes = jit(jax.vmap(jax.value_and_grad(epsilon)))(rows)
    step = 1e-4 * np.eye(6).reshape(6, 2, 3)
    up, down = (jit(jax.vmap(epsilon))(rows[1] + side * step) for side in (1.0, -1.0))
    np.testing.assert_allclose(slopes[1], ((up - down) / 2e-4).reshape(2, 3), rtol=1e-4)
    with jax.enable_x64(False):
        single = jit(epsilon)(rows[0].astype(np.float32))
    assert single.dtype == np.float32
    assert values[0] * (1 - 1e-6) <= float(single) <= values[0] * (1 + 1e-6)


@pytest.mark.slow
def test_averages_of_averages_of_add():
    """Breaks when an average in an average is a law for its own tail: lower bounds were 0.

    One of t times s steps is one of t runs, one of s steps in it.
    """
    deltas = np.array([1e-2, 1e-4, 1e-8, 1e-12])
    inner, outer = np.array([2, 5, 3, 40]), np.array([14, 3, 500, 10])
    sigma = np.array([1.0, 0.8, 2.0, 1.5])
    nested = jaxdp.RandomAllocation(jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), inner), outer)
    flat = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), inner * outer)
    low, high = (np.asarray(x) for x in jaxdp.epsilon_bounds(nested, deltas, direction="add"))
    least, most = (np.asarray(x) for x in jaxdp.epsilon_bounds(flat, deltas, direction="add"))
    assert ((low <= most) & (least <= high)).all()
    assert (high - low <= 3e-3 * high).all()
