"""The example of DP-FTRL: its mechanisms, and the noise that it has streamed."""

import importlib
import pathlib
import sys

import jax
import jax.numpy as jnp
import matrix_truth as truth
import numpy as np
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples"


@pytest.fixture
def example(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    yield importlib.import_module("train_dp_ftrl")
    for name in ("train_dp_ftrl", "train_dp_sgd"):
        sys.modules.pop(name, None)


def test_the_epochs_of_a_batch_are_prefixes_of_the_run(example):
    """Breaks when a step to come counts, or a band is missing, in the epsilon of an epoch."""
    column, epochs = truth.square_root(3), np.arange(1.0, 4.0)
    batch = example.run("ftrl", 2.0, column, epochs)
    assert batch.num_bins == example.BATCHES
    for matrix, done in zip(batch.strategy.matrix, epochs, strict=True):
        one = example.run("ftrl", 2.0, column, done)
        n = one.num_steps
        assert n == example.BATCHES * done
        np.testing.assert_allclose(matrix[:n, :n], truth.toeplitz(one.strategy.column, n))
        assert not np.any(matrix[n:])


def test_without_jax_privacy_the_message_says_what_to_install(example, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install 'jax-privacy"):
        example.library()


@pytest.mark.extra
def test_the_noise_that_is_streamed_is_that_of_the_strategy(example):
    """Breaks when C is taken for its inverse, sigma for another, or draws are kept for good."""
    pytest.importorskip("jax_privacy")
    noise_addition, toeplitz = example.library()
    column, sigma, n = truth.square_root(4), 1.7, 12
    noise = noise_addition.matrix_factorization_privatizer(
        toeplitz.inverse_as_streaming_matrix(jnp.asarray(column, jnp.float32)),
        stddev=sigma,
        prng_key=jax.random.key(0),
    )
    still = jnp.zeros(4000)
    state = noise.init(still)
    assert sum(x.size for x in jax.tree.leaves(state[1])) == 3 * still.size
    _, streamed = jax.lax.scan(lambda s, _: noise.update(still, s)[::-1], state, None, n)
    white = truth.toeplitz(column, n) @ np.asarray(streamed)
    np.testing.assert_allclose(white @ white.T / still.size, sigma**2 * np.eye(n), atol=0.35)
