"""Public functions of noise in jitted, vmapped, differentiated programs of 32 and 64 bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from batches import ask

import calibrate
import jaxdp
from jaxdp import _noise as noise
from tests.programs import jit

STEP = 1e-5


def law(build, sensitivity, **options):
    """delta as a function of real parameters and epsilon, and its reference in float64."""

    def function(*at):
        return jaxdp.delta(build(*at[:-1], sensitivity), at[-1], **options)

    def reference(*at):
        return ask(jaxdp.hockey_stick, build(*at[:-1], sensitivity), at[-1], **options)

    return function, reference


def partial_laplace(fraction, scale, sensitivity):
    return noise.PartialNoise(jaxdp.Laplace(scale, sensitivity), fraction)


def left_of_laplace(fraction, scale, sensitivity):
    return noise.GammaDifference(fraction, scale, sensitivity)


# name -> (function, its float64 reference, where, +1 if results are rounded up)
ROWS = {
    "GeneralizedDiscreteLaplace": (
        *law(noise.GeneralizedDiscreteLaplace, 3),
        (0.7, 0.2, 0.25),
        1,
    ),
    "PartialNoise GammaDifference LaplaceSum": (
        law(partial_laplace, 1)[0],
        law(left_of_laplace, 1)[1],
        (0.8, 2.0, 0.25),
        1,
    ),
    "Skellam": (*law(noise.Skellam, 2), (20.0, 0.25), 1),
    "NegativeBinomial": (
        *law(noise.NegativeBinomial, 1, direction="add"),
        (10.0, 0.2, 0.25),
        1,
    ),
    "DiscreteLaplace": (*law(noise.DiscreteLaplace, 2), (0.3, 0.25), 1),
    "DiscreteGaussian": (*law(noise.DiscreteGaussian, 3), (2.0, 0.25), 1),
    "DiscreteGaussianVector": (*law(noise.DiscreteGaussianVector, 3), (2.0, 0.25), 1),
    "SkellamVector": (*law(noise.SkellamVector, 2), (20.0, 0.25), 1),
    "renyi": (lambda s, a: jaxdp.renyi(noise.DiscreteGaussian(s, 3), a), None, (2.0, 2.7), 0),
    "noise_share": (
        lambda a, e: jaxdp.renyi(noise.noise_share(noise.Skellam(a, 2), 5), e),
        None,
        (20.0, 2.7),
        0,
    ),
    "skellam_renyi_bound": (
        lambda v, a: noise.skellam_renyi_bound(noise.Skellam(v, 2), a),
        None,
        (20.0, 2.7),
        1,
    ),
    "gdl_epsilon_floor": (lambda b: noise.gdl_epsilon_floor(b, 3), None, (0.3,), 0),
    "gdl_decay": (lambda e, b: calibrate.gdl_decay(e, b, 2), None, (2.5, 0.3), -1),
    "repeated_noise_renyi": (
        lambda b, a, s: noise.repeated_noise_renyi(jaxdp.Laplace(b), a, count=3, sensitivity=s),
        None,
        (1.5, 2.7, 2.0),
        1,
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_single_precision_program(name):
    """Breaks when jit of vmap of value-and-grad fails in 32 bits, or is off or unsafe.

    Values must be on their safe side and within a rounding or two of the float64 ones at the same
    arguments; slopes are compared with central differences of those.
    """
    function, reference, at, side = ROWS[name]
    reference = reference or jit(jax.vmap(function))
    at = np.float32(at)
    rows = np.stack([at, at * np.float32(1.03125)])
    with jax.enable_x64(False):
        program = jit(jax.vmap(jax.value_and_grad(function, tuple(range(at.size)))))
        values, slopes = program(*map(jnp.float32, rows.T))
        assert {x.dtype for x in (values, *slopes)} == {jnp.dtype(jnp.float32)}
    exact = rows.astype(np.float64)
    steps = STEP * np.eye(at.size)[:, None, :] * exact
    points = np.concatenate([exact[None], exact + steps, exact - steps])
    wanted = np.asarray(reference(*points.reshape(-1, at.size).T)).reshape(points.shape[:2])
    errors = np.float64(values) / wanted[0] - 1.0
    assert np.all(np.abs(errors) <= 3e-7)
    assert np.all(side * errors >= -1e-15)
    higher, lower = wanted[1:].reshape(2, at.size, 2)
    differences = (higher - lower) / (2.0 * STEP * exact.T)
    np.testing.assert_allclose(slopes, differences, rtol=1e-6)


@pytest.mark.parametrize(
    ("build", "at"),
    [(noise.GeneralizedDiscreteLaplace, (0.7, 0.2)), (noise.GammaDifference, (0.8, 2.0))],
)
def test_gradients_of_pure_epsilon(build, at):
    """Breaks when a derivative of the pure-DP epsilon differs from central differences by 1e-6."""
    at = np.asarray(at)
    slopes = jit(jax.grad(lambda p: jaxdp.epsilon(build(*p, 3.0), 0.0)))(tuple(at))
    steps = np.eye(at.size) * STEP * at
    values = ask(jaxdp.epsilon, build(*np.concatenate([at + steps, at - steps]).T, 3.0), 0.0)
    differences = (values[: at.size] - values[at.size :]) / (2 * STEP * at)
    np.testing.assert_allclose(slopes, differences, rtol=1e-6)
    assert np.asarray(slopes).dtype == np.float64
