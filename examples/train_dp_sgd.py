"""DP-SGD on scikit-learn's digits: balls-and-bins batches beside Poisson batches, equal privacy.

    python examples/train_dp_sgd.py [--quick] [--method renyi]      (needs the extra `examples`)

A float32 network trained by optax, with per-example clipping and noise by
`optax.contrib.differentially_private_aggregate`. The noise is calibrated here to the same
(epsilon, delta): under random allocation, where every epoch throws each record into one of its
batches (as a shuffled epoch does, but independently for each record), and under Poisson sampling.
The epsilon that is printed after every epoch is computed inside the jitted epoch.
"""

import argparse
import functools
import math
import os
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no alarm where XLA compiles for minutes

import jax
import jax.numpy as jnp
import numpy as np
import optax

import calibrate
import jaxdp
from jaxdp import training

EPSILON, DELTA = 3.0, 1e-5
BATCHES = 25  # in an epoch: a record joins each with probability 1/25, or exactly one
CLIP, LEARNING_RATE, HIDDEN = 1.0, 0.5, 64


def data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Training and test images, 1500 and 297, in [0, 1]."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images, labels = images[order].astype(np.float32) / 16.0, labels[order].astype(np.int32)
    return (images[:1500], labels[:1500]), (images[1500:], labels[1500:])


def initial(key: jax.Array) -> dict[str, jax.Array]:
    """One hidden layer."""
    first, second = jax.random.split(key)
    return {
        "w1": jax.random.normal(first, (64, HIDDEN)) / 8.0,
        "b1": jnp.zeros(HIDDEN),
        "w2": jax.random.normal(second, (HIDDEN, 10)) / math.sqrt(HIDDEN),
        "b2": jnp.zeros(10),
    }


def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    """Class scores."""
    return jnp.tanh(x @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]


def members(key: jax.Array, sampler: str, records: int) -> jax.Array:
    """Who is in which batch of one epoch: booleans of shape (BATCHES, records)."""
    if sampler == "poisson":
        return jax.random.bernoulli(key, 1.0 / BATCHES, (BATCHES, records))
    return jax.random.randint(key, (records,), 0, BATCHES) == jnp.arange(BATCHES)[:, None]


def padded_batches(joined: jax.Array, size: int) -> tuple[jax.Array, jax.Array]:
    """Indices of each batch, filled up to `size`, and which of them count."""
    index = jax.vmap(lambda row: jnp.nonzero(row, size=size, fill_value=-1)[0])(joined)
    return index, index >= 0


def train(
    sampler: str, sigma: float, epochs: int, method: jaxdp.Numerical | jaxdp.Renyi
) -> tuple[float, float]:
    """Train and report; returns the accuracy on the test images and the final epsilon."""
    (images, labels), (test_images, test_labels) = data()
    records = len(labels)
    mean = records / BATCHES
    size = int(mean + 8.0 * math.sqrt(mean))  # a larger batch has probability below 1e-11
    aggregate = optax.contrib.differentially_private_aggregate(CLIP, sigma, key=1)
    optimiser = optax.chain(aggregate, optax.sgd(LEARNING_RATE * size / mean, momentum=0.9))
    # Both are schedules fixed beforehand: an epoch of allocation, or BATCHES Poisson steps.
    step = jaxdp.Gaussian(sigma)
    if sampler == "poisson":
        phase, taken = jaxdp.PoissonSampled(step, 1.0 / BATCHES), BATCHES
    else:
        phase, taken = jaxdp.RandomAllocation(step, BATCHES), 1
    spent = training.init_fixed(phase, method=method)

    def loss(params, image, label):
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, image), label)

    @jax.jit
    def epoch(params, state, spent, key):
        batches = padded_batches(members(key, sampler, records), size)

        def body(carry, batch):
            params, state = carry
            index, counts = batch
            gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(params, images[index], labels[index])
            gradients = jax.tree.map(
                lambda g: g * counts.reshape((-1,) + (1,) * (g.ndim - 1)), gradients
            )
            updates, state = optimiser.update(gradients, state, params)
            return (optax.apply_updates(params, updates), state), None

        (params, state), _ = jax.lax.scan(body, (params, state), batches)
        spent = training.update(spent, count=taken)
        accuracy = jnp.mean(jnp.argmax(logits(params, test_images), axis=1) == test_labels)
        return params, state, spent, training.epsilon(spent, DELTA), accuracy

    images, labels = jnp.asarray(images), jnp.asarray(labels)
    params = initial(jax.random.key(0))
    state = optimiser.init(params)
    accuracy = epsilon = jnp.nan
    for number, key in enumerate(jax.random.split(jax.random.key(2), epochs), start=1):
        params, state, spent, epsilon, accuracy = epoch(params, state, spent, key)
        print(
            f"{sampler:>10} epoch {number:2}: epsilon {float(epsilon):.4f},"
            f" accuracy {float(accuracy):.3f}"
        )
    return float(accuracy), float(epsilon)


def main() -> None:
    """Calibrate, train twice, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 epochs instead of 20")
    parser.add_argument("--method", choices=("numerical", "renyi"), default="numerical")
    options = parser.parse_args()
    epochs = 3 if options.quick else 20
    method = jaxdp.Numerical() if options.method == "numerical" else jaxdp.Renyi()
    builders = {
        "allocation": lambda s: jaxdp.RandomAllocation(
            jaxdp.Gaussian(s), BATCHES, num_epochs=epochs
        ),
        "poisson": lambda s: jaxdp.Repeated(
            jaxdp.PoissonSampled(jaxdp.Gaussian(s), 1.0 / BATCHES), epochs * BATCHES
        ),
    }
    rows = []
    for sampler, build in builders.items():
        start = time.perf_counter()
        solve = functools.partial(calibrate.solve, build, method=method)
        sigma = float(solve(epsilon=EPSILON, delta=DELTA, bracket=(0.3, 30.0)).value)
        seconds = time.perf_counter() - start
        accuracy, epsilon = train(sampler, sigma, epochs, method)
        rows.append((sampler, sigma, epsilon, accuracy, seconds))
    print(f"\n({EPSILON:g}, {DELTA:g})-DP, {epochs} epochs of {BATCHES} batches")
    print("sampler       sigma  epsilon  accuracy  calibrated in")
    for sampler, sigma, epsilon, accuracy, seconds in rows:
        print(f"{sampler:10}  {sigma:6.4f}  {epsilon:7.4f}  {accuracy:8.3f}  {seconds:.1f} s")


if __name__ == "__main__":
    main()
