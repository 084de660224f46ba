"""examples/federated_rounds.py: what is sent, what it decodes to, and what it costs."""

import importlib.util
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp

PATH = pathlib.Path(__file__).parents[1] / "examples" / "federated_rounds.py"


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("federated_rounds", PATH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_rounding_stays_within_its_sensitivity(example):
    """Breaks when a rounded vector is no integer, too long, or far from what was rounded."""
    keys = jax.random.split(jax.random.key(0), 500)
    values = jax.random.normal(keys[0], (500, example.DIMENSION))
    values = example.LEVELS * values / jnp.linalg.norm(values, axis=1, keepdims=True)
    got = np.asarray(jax.vmap(example.rounded)(keys, values))
    assert np.all(got == np.round(got))
    assert np.all(np.linalg.norm(got, axis=1) <= example.rounded_norm())
    assert np.all(np.abs(got - values) < 1.0)
    # rounding errors of either sign: a mean over 16,000 of variance 1/6
    assert abs(np.mean((got - values) * np.sign(values))) < 0.03


def test_what_is_sent_decodes(example):
    """Breaks when rotating, scaling, rounding or the modulus loses the gradient, or a coin."""
    keys = jax.random.split(jax.random.key(1), 3)
    turn = example.rotation(keys[0])
    np.testing.assert_allclose(turn @ turn.T, np.eye(example.DIMENSION), atol=1e-6)
    gradient = 3.0 * jax.random.normal(keys[1], (example.DIMENSION,))
    # noise of sigma 0.05 is 0, but once in e^200
    sent, nothing = (example.encoded(keys[2], gradient, j, turn, 0.05) for j in (True, False))
    assert sent.dtype == jnp.int32
    assert jnp.all((sent >= 0) & (sent < example.MODULUS))
    assert not jnp.any(nothing)
    centred = np.where(sent < example.MODULUS // 2, sent, sent - example.MODULUS)
    clipped = gradient / np.linalg.norm(gradient)
    decoded = np.asarray(turn).T @ centred / example.LEVELS
    assert np.linalg.norm(decoded - clipped) < 0.5 * example.DIMENSION**0.5 / example.LEVELS


def test_training_learns(example):
    """Breaks when noise, dropouts or the modulus keep the model from the truth."""
    error, survivors = example.simulate(60, 3.0)
    assert error < 0.25
    assert survivors.shape == (60,)
    assert abs(survivors.mean() - 140.0) < 4.0  # a standard error of 0.8


def test_rounds_are_charged_by_their_survivors(example):
    """Breaks when void rounds are charged, or others as if fewer had dropped out."""

    def alike(number, rounds):
        part = jaxdp.Repeated(example.release(4.0, number), rounds)
        return float(jaxdp.epsilon(jaxdp.Composed([part]), 1e-5))

    spent = example.spent(4.0, np.array([119, 121, 127, 120, 125]))
    assert spent == alike(120.0, 4.0)
    assert spent > alike(127.0, 4.0)
