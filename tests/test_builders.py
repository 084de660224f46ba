"""Trainings in their users' words are the mechanisms that they say."""

import functools

import jax
import numpy as np
import pytest

import calibrate
import jaxdp

SETTINGS = {"num_examples": 1000, "batch_size": 50, "epochs": 3}


def _poisson(sigma, q, steps):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SETTINGS, _poisson(1.5, 0.05, 60)),
        ({**SETTINGS, "epochs": 0.33}, _poisson(1.5, 0.05, 7)),  # 6.6 steps
        ({"num_examples": 1000, "batch_size": 300, "epochs": 3}, _poisson(1.5, 0.3, 10)),
        ({"num_examples": 10, "batch_size": 10, "epochs": 2}, _poisson(1.5, 1.0, 2)),
        # 0.1 + 0.2 is more than 0.3: no step more for a rounding
        ({"num_examples": 10, "batch_size": 1, "epochs": 0.1 + 0.2}, _poisson(1.5, 0.1, 3)),
        (
            {**SETTINGS, "batches": "random allocation"},
            jaxdp.RandomAllocation(jaxdp.Gaussian(1.5), 20, num_epochs=3),
        ),
        (  # fewer steps, so that none is smaller than was asked for
            {"num_examples": 1000, "batch_size": 300, "epochs": 1, "batches": "random allocation"},
            jaxdp.RandomAllocation(jaxdp.Gaussian(1.5), 3),
        ),
    ],
)
def test_a_training_is_the_mechanism_that_it_says(settings, expected):
    assert jaxdp.dp_sgd(noise_multiplier=1.5, **settings) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_examples", 0),
        ("num_examples", 10.5),
        ("batch_size", 1001),
        ("batch_size", 0.0),
        ("epochs", -1),
        ("noise_multiplier", 0.0),
        ("batches", "shuffled"),
    ],
)
def test_wrong_settings_are_refused_by_name(name, value):
    settings = {"noise_multiplier": 1.5, **SETTINGS, name: value}
    with pytest.raises(ValueError, match="sigma" if name == "noise_multiplier" else name):
        jaxdp.dp_sgd(**settings)


def test_an_allocation_has_whole_epochs():
    with pytest.raises(ValueError, match="epochs"):
        jaxdp.dp_sgd(
            **{**SETTINGS, "epochs": 0.5}, noise_multiplier=1.0, batches="random allocation"
        )


def test_the_noise_may_be_traced_and_have_a_shape():
    sigma = np.array([1.0, 2.0])
    assert jaxdp.dp_sgd(noise_multiplier=sigma, **SETTINGS) == _poisson(sigma, 0.05, 60)
    for batches in ("poisson", "random allocation"):
        build = functools.partial(jaxdp.dp_sgd, batches=batches, **SETTINGS)
        run = jax.jit(lambda s, build=build: build(noise_multiplier=s))(2.0)
        assert jax.tree.structure(run) == jax.tree.structure(build(noise_multiplier=2.0))
        assert jax.tree.leaves(run) == pytest.approx(jax.tree.leaves(build(noise_multiplier=2.0)))


def test_calibration_meets_its_target_and_no_more():
    found = calibrate.dp_sgd(epsilon=3.0, delta=1e-5, **SETTINGS)
    reached = float(jaxdp.epsilon(jaxdp.dp_sgd(noise_multiplier=found.value, **SETTINGS), 1e-5))
    assert 2.999 < reached <= 3.0


@pytest.mark.slow
def test_calibration_of_an_allocation():
    settings = {**SETTINGS, "batches": "random allocation"}
    found = calibrate.dp_sgd(epsilon=3.0, delta=1e-5, **settings)
    reached = float(jaxdp.epsilon(jaxdp.dp_sgd(noise_multiplier=found.value, **settings), 1e-5))
    assert 2.99 < reached <= 3.0
