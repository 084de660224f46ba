"""DP-FTRL with banded noise beside DP-SGD and random allocation: digits, float32, equal privacy.

    python examples/train_dp_ftrl.py [--quick]      (needs the extras `examples` and `peers`)

The network, the data and the clipping are those of `train_dp_sgd.py`. What differs is who is in
which batch, and the noise:

* poisson: a record is in every batch with probability 1/25; independent noise;
* allocation: every epoch throws each record into one of its batches anew; independent noise;
* ftrl: each record draws its batch once, for all epochs, and the noise is correlated over the
  steps: bands of least error of prefix sums, found by `calibrate.strategy` with the
  amplification by random batches counted.

Each sigma is calibrated to the same (epsilon, delta). jax_privacy streams the noise C^-1 z: it
keeps the last `bands` - 1 draws, whatever the number of steps. The epsilons of a line are
certified for the steps until then.
"""

import argparse
import importlib.util
import os
import time
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no alarm where XLA compiles for minutes

import jax
import jax.numpy as jnp
import numpy as np
import optax
from train_dp_sgd import BATCHES, CLIP, data, initial, logits, members, padded_batches

import calibrate
import jaxdp

EPSILON, DELTA = 3.0, 1e-5
BANDS = 8
LEARNING_RATE, MOMENTUM = 0.15, 0.9
SAMPLERS = ("poisson", "allocation", "ftrl")


def library() -> Any:
    """The parts of jax_privacy that stream noise; an ImportError that says what to install."""
    if importlib.util.find_spec("jax_privacy") is None:
        raise ModuleNotFoundError(
            "the noise of this example is streamed by jax_privacy: pip install 'jax-privacy>=2.0'"
        )
    from jax_privacy import noise_addition
    from jax_privacy.matrix_factorization import toeplitz

    return noise_addition, toeplitz


def run(sampler: str, sigma: Any, column: np.ndarray, epochs: Any) -> Any:
    """The mechanism of the first `epochs` epochs; of several numbers of them, a batch."""
    step = jaxdp.Gaussian(sigma)
    if sampler == "poisson":
        return jaxdp.Repeated(jaxdp.PoissonSampled(step, 1.0 / BATCHES), BATCHES * epochs)
    if sampler == "allocation":
        return jaxdp.Repeated(jaxdp.RandomAllocation(step, BATCHES), epochs)
    if np.ndim(epochs) == 0:
        return jaxdp.MatrixMechanism(
            column, sigma, num_steps=BATCHES * int(epochs), num_bins=BATCHES
        )
    # a batch of matrices of one size, so that one program answers: steps to come are rows of zeros
    n = BATCHES * int(np.max(epochs))
    behind = np.arange(n)[:, None] - np.arange(n)[None, :]
    whole = np.where((behind >= 0) & (behind < len(column)), column[behind % len(column)], 0.0)
    done = np.arange(n) < BATCHES * np.asarray(epochs)[:, None]
    return jaxdp.MatrixMechanism(whole * done[:, :, None], sigma, num_bins=BATCHES)


def train(
    sampler: str, sigma: float, column: np.ndarray, epochs: int, seed: int
) -> tuple[list[float], int]:
    """Accuracy on the test images after each epoch, and the noise values that are kept."""
    noise_addition, toeplitz = library()
    (images, labels), (test_images, test_labels) = data()
    records = len(labels)
    images, labels = jnp.asarray(images), jnp.asarray(labels)
    mean = records / BATCHES
    size = int(mean + 8.0 * mean**0.5)  # a larger batch has probability below 1e-11
    batch_key, noise_key, first_key = jax.random.split(jax.random.key(seed), 3)
    noise = noise_addition.matrix_factorization_privatizer(
        toeplitz.inverse_as_streaming_matrix(jnp.asarray(column, jnp.float32)),
        stddev=sigma * CLIP,
        prng_key=noise_key,
    )
    optimiser = optax.chain(
        noise, optax.scale(1.0 / mean), optax.sgd(LEARNING_RATE, momentum=MOMENTUM)
    )

    def loss(params, image, label):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), label)

    def clipped(params, image, label, counts):
        gradient = jax.grad(loss)(params, image, label)
        scale = counts * jnp.minimum(1.0, CLIP / optax.global_norm(gradient))
        return jax.tree.map(lambda g: g * scale, gradient)

    @jax.jit
    def epoch(params, state, key):
        batches = padded_batches(members(key, sampler, records), size)

        def body(carry, batch):
            params, state = carry
            index, counts = batch
            each = jax.vmap(clipped, (None, 0, 0, 0))(params, images[index], labels[index], counts)
            updates, state = optimiser.update(jax.tree.map(lambda g: g.sum(0), each), state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, state), _ = jax.lax.scan(body, (params, state), batches)
        right = jnp.argmax(logits(params, test_images), axis=1) == test_labels
        return params, state, jnp.mean(right)

    params = initial(first_key)
    state = optimiser.init(params)
    kept = sum(x.size for x in jax.tree.leaves(state[0][1]))
    accuracies = []
    for number in range(epochs):
        # a record of ftrl stays in its batch: the same draw in every epoch
        key = batch_key if sampler == "ftrl" else jax.random.fold_in(batch_key, number)
        params, state, accuracy = epoch(params, state, key)
        accuracies.append(float(accuracy))
    return accuracies, kept


def calibrated(
    sampler: str, epochs: int, bands: int, method: jaxdp.Numerical | jaxdp.Renyi
) -> tuple[np.ndarray, float]:
    """The first column of C and sigma."""
    if sampler == "ftrl":
        found = calibrate.strategy(
            epsilon=EPSILON,
            delta=DELTA,
            num_steps=epochs * BATCHES,
            num_bins=BATCHES,
            bands=bands,
            method=method,
        )
        return np.asarray(found.coefficients), float(found.sigma)
    column = np.ones(1, np.float32)
    found = calibrate.solve(
        lambda s: run(sampler, s, column, epochs),
        epsilon=EPSILON,
        delta=DELTA,
        bracket=(0.3, 30.0),
        method=method,
    )
    return column, float(found.value)


def main() -> None:
    """Calibrate, train and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="2 epochs, 2 bands, one run, Renyi")
    options = parser.parse_args()
    library()
    epochs, bands, seeds = (2, 2, 1) if options.quick else (20, BANDS, 3)
    method = jaxdp.Renyi(orders=(2.0, 4.0, 8.0, 16.0)) if options.quick else jaxdp.Numerical()
    print(f"({EPSILON:g}, {DELTA:g})-DP, {epochs} epochs of {BATCHES} batches, {seeds} run(s)\n")
    for sampler in SAMPLERS:
        start = time.process_time()
        column, sigma = calibrated(sampler, epochs, bands, method)
        so_far = run(sampler, sigma, column, np.arange(1.0, epochs + 1.0))
        spent = jaxdp.epsilon(so_far, DELTA, method=method)
        seconds = time.process_time() - start
        runs = [train(sampler, sigma, column, epochs, seed) for seed in range(seeds)]
        accuracies = np.array([accuracy for accuracy, _ in runs])
        print(
            f"{sampler}: sigma {sigma:.4f}, {len(column)} band(s), {runs[0][1]} values of noise"
            f" kept; {seconds:.0f} s of CPU to calibrate and account",
            flush=True,
        )
        for number in range(epochs):
            of_runs = accuracies[:, number]
            print(
                f"  epoch {number + 1:2}: epsilon {float(spent[number]):.4f},"
                f" accuracy {of_runs.mean():.3f} +- {of_runs.std():.3f}"
            )


if __name__ == "__main__":
    main()
