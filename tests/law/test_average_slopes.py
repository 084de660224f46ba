"""Derivatives of averages of steps with atoms: a lattice moves with those at its ends."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from tests.programs import jit

KINDS = {
    "response": (jaxdp.RandomizedResponse, 0.77),
    "Laplace": (jaxdp.Laplace, 1.3),
    "discrete Laplace": (lambda a: jaxdp.DiscreteLaplace(a, 2), 0.4),
    "sampled response": (lambda a: jaxdp.PoissonSampled(jaxdp.RandomizedResponse(a), 0.3), 0.77),
    "pair": (
        lambda a: jaxdp.FinitePair(jnp.stack([0.2 + a, 0.3, 0.5 - a]), jnp.array([0.2, 0.3, 0.5])),
        0.15,
    ),
}


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def slopes(build, at, steps, direction):
    """The derivative by the parameter, beside differences, of epsilon at 1e-4."""

    def epsilon(x, t):
        return jaxdp.epsilon(build(x, t), 1e-4, direction=direction, method=jaxdp.Numerical())

    both = jit(jax.vmap(jax.value_and_grad(epsilon)))
    change = 1e-4 * at
    moved = jnp.array([at - change, at, at + change])
    x, t = jnp.tile(moved, len(steps)), jnp.repeat(jnp.asarray(steps, jnp.float64), 3)
    value, slope = (np.asarray(y).reshape(-1, 3) for y in both(x, t))
    return slope[:, 1], (value[:, 2] - value[:, 0]) / (2.0 * change)


@pytest.mark.parametrize("direction", ["remove", "add"])
@pytest.mark.parametrize("kind", KINDS)
def test_of_one_step_in_many(kind, direction):
    """Breaks when atoms stay where they are as their losses move, or move by half."""
    mechanism, at = KINDS[kind]

    def build(x, t):
        return jaxdp.RandomAllocation(mechanism(x), t)

    found, differences = slopes(build, at, [60.0, 61.0, 300.0, 1000.0], direction)
    np.testing.assert_allclose(found, differences, rtol=1e-2)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_of_epochs(direction):
    """Breaks when the law of an average, to be composed, has ends that stay."""

    def build(x, t):
        return jaxdp.RandomAllocation(jaxdp.Laplace(x), t, num_epochs=3)

    found, differences = slopes(build, 1.3, [60.0, 300.0], direction)
    np.testing.assert_allclose(found, differences, rtol=1e-2)
