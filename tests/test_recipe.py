"""Functions that build alike share one program: what is the same, and what must not be taken so."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp
from calibrate._recipe import recipe_of
from jaxdp import _x64


def dp_sgd(q, count):
    return lambda s: jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(s), q), count)


def built(build, value, args=()):
    recipe, inputs = recipe_of(build, args)
    return recipe(jnp.float64(value), *inputs)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


BUILDS = {
    "a constant": (lambda k: lambda s: jaxdp.Repeated(jaxdp.Gaussian(s), k), (10, 20)),
    "an array of one": (
        lambda k: lambda s: jaxdp.Laplace(s * k),
        (jnp.array(2.0), jnp.array(3.0)),
    ),
    "a nested one": (lambda k: dp_sgd(k, 100), (0.01, 0.02)),
    "written in arithmetic": (lambda k: lambda s: jaxdp.Gaussian(s * k + 1.0), (2.0, 3.0)),
    "an exponent": (lambda k: lambda s: jaxdp.Gaussian(s**k), (1.5, 2.5)),
    "next to zero": (lambda k: lambda s: jaxdp.Gaussian(s + k), (0.0, -0.0, 1e-300)),
    "a threshold": (lambda k: lambda s: jaxdp.Gaussian(jnp.maximum(s, k)), (1.0, 2.0)),
}


@pytest.mark.parametrize("kind", BUILDS)
def test_numbers_are_arguments(kind):
    """Breaks when a number of a closure is part of the program, or of another's answer."""
    write, values = BUILDS[kind]
    recipes = [recipe_of(write(k), ()) for k in values]
    (first, _), (second, _), *_ = recipes
    assert first == second
    assert hash(first) == hash(second)
    for k in values:
        found, wanted = built(write(k), 1.5), write(k)(jnp.float64(1.5))
        # By the recipe of the other one, too: it is in the cache.
        assert found == wanted
        assert first(jnp.float64(1.5), *recipe_of(write(k), ())[1]) == wanted


OTHERS = {
    "steps": (lambda s: jaxdp.Gaussian(2.0 * s), lambda s: jaxdp.Gaussian(2.0 / s)),
    "an integer exponent": (lambda s: jaxdp.Gaussian(s**2), lambda s: jaxdp.Gaussian(s**3)),
    "what is no operand": (
        lambda s: jaxdp.Gaussian(s + jnp.full(3, 2.0)[0]),
        lambda s: jaxdp.Gaussian(s + jnp.full(4, 2.0)[0]),
    ),
    "structure": (jaxdp.Gaussian, jaxdp.Laplace),
    "where the value goes": (
        lambda s: jaxdp.Gaussian(s, sensitivity=2.0),
        lambda s: jaxdp.Gaussian(2.0, sensitivity=s),
    ),
    "an array": (
        lambda s: jaxdp.Gaussian(jnp.sum(s * np.array([1.0, 2.0]))),
        lambda s: jaxdp.Gaussian(jnp.sum(s * np.array([1.0, 3.0]))),
    ),
    "an inner function": (
        lambda s: jaxdp.Gaussian(jax.jit(lambda x: x + 1.0)(s)),
        lambda s: jaxdp.Gaussian(jax.jit(lambda x: x + 2.0)(s)),
    ),
    "too many numbers": (
        lambda s: jaxdp.Gaussian(sum(s * k for k in np.arange(1.5, 40.5))),
        lambda s: jaxdp.Gaussian(sum(s * k for k in np.arange(2.5, 41.5))),
    ),
    "order": (lambda s: jaxdp.Gaussian(s / 1.2), lambda s: jaxdp.Gaussian(1.2 / s)),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_what_differs_otherwise_is_another_program(kind):
    """Breaks when two functions share a program, and one of them gets the other's answer."""
    first, second = OTHERS[kind]
    assert recipe_of(first, ())[0] != recipe_of(second, ())[0]
    for build in (first, second):
        assert built(build, 1.5) == build(jnp.float64(1.5))


def test_arrays_of_a_closure_are_arguments_where_asked_for():
    """Breaks when an array is part of the key, has axes of a batch, or its shape does not count."""
    like = jax.ShapeDtypeStruct((3,), np.float32)

    def read(weights, shift):
        loss = lambda s: jnp.sum(weights * s**2) + shift  # noqa: E731
        return recipe_of(loss, (), like, jax.Array, arrays=True)

    weights = np.array([1.0, 2.0, 3.0])
    (first, own), (second, others) = read(weights, 1.0), read(5.0 * weights, 2.0)
    assert first == second
    assert sorted(_x64.core_ranks(own)) == [0, 1]
    assert float(first(jnp.ones(3), *others)) == 32.0
    assert float(second(jnp.ones(3), *own)) == 7.0
    assert read(np.ones((2, 3)), 1.0)[0] != first


def test_a_lambda_in_a_loop_is_compiled_once():
    """Breaks when every function has a program of its own; the answers are those of `args`."""
    targets = [(10.0, 4), (20.0, 9), (30.0, 16)]
    found = []
    for k, count in targets:
        misses = _x64._compiled.cache_info().misses
        build = lambda s: jaxdp.Repeated(jaxdp.Gaussian(s, sensitivity=k), count)  # noqa: B023, E731
        found.append(float(calibrate.solve(build, epsilon=1.0, delta=1e-6).value))
        assert _x64._compiled.cache_info().misses - misses <= (not found[1:])
    k, count = (np.array(x) for x in zip(*targets, strict=True))
    given = calibrate.solve(
        lambda s, k, count: jaxdp.Repeated(jaxdp.Gaussian(s, sensitivity=k), count),
        epsilon=1.0,
        delta=1e-6,
        args=(k, count),
    )
    np.testing.assert_allclose(found, given.value, rtol=1e-9)


def test_what_is_traced_outside_is_an_argument():
    """Breaks when a function may not hold what is traced outside of it, or loses its slope."""

    def sigma(scale):
        build = lambda s: jaxdp.Gaussian(s * scale)  # noqa: E731
        return calibrate.solve(build, epsilon=2.0, delta=1e-6).value

    whole = sigma(1.0)
    for scale in (0.5, 2.0):
        value, slope = jax.jit(jax.value_and_grad(sigma))(scale)
        np.testing.assert_allclose(value, whole / scale, rtol=1e-8)
        np.testing.assert_allclose(slope, -whole / scale**2, rtol=1e-6)


def test_arguments_keep_their_place():
    """Breaks when args of a structure of their own reach the function in another order."""

    def build(s, settings):
        return jaxdp.Repeated(jaxdp.Laplace(s * settings["wide"], 2.0), settings["count"])

    args = ({"wide": 3.0, "count": 5},)
    assert built(build, 1.5, args) == build(jnp.float64(1.5), *args)


def test_what_is_no_mechanism_is_left_to_the_check():
    assert recipe_of(lambda s: 2.0 * s, ())[1] == ()
    with pytest.raises(TypeError, match="build must return a jaxdp mechanism"):
        calibrate.solve(lambda s: 2.0 * s, epsilon=1.0, delta=1e-6)
