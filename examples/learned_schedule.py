"""Noise learned step by step for a convex problem, beside the best constant noise.

    python examples/learned_schedule.py [--quick]      (needs the extra `examples`)

Logistic regression on scikit-learn's digits by noisy gradient descent. Features have norm at most
1, so that a gradient has norm at most sqrt(2) and nothing is clipped. Half of the images are taken
as public: at their optimum, noise of step t enters the final excess loss, to second order, as

    sigma_t^2 (sqrt(2)/n)^2 eta^2 / 2 * sum_i lambda_i (1 - eta lambda_i)^{2 (T - 1 - t)},

lambda_i the eigenvalues of the Hessian. `calibrate.schedule` minimises the sum over t at the same
(epsilon, delta); then both schedules train on the private half and their excess losses over
noiseless descent are compared, with the same seeds.
"""

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.datasets import load_digits

import calibrate
import jaxdp

EPSILON, DELTA = 1.0, 1e-5
REGULARISATION, ETA = 0.01, 2.0


def data() -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """A public and a private half, features of norm at most 1."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    images = (images / np.linalg.norm(images, axis=1, keepdims=True)).astype(np.float32)
    public, private = order[::2], order[1::2]
    return (images[public], labels[public]), (images[private], labels[private])


def loss(weights: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Mean cross-entropy with ridge."""
    scores = jax.nn.log_softmax(images @ weights.reshape(64, 10))
    fit = -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1))
    return fit + 0.5 * REGULARISATION * jnp.sum(weights**2)


@jax.jit
def descend(noise: jax.Array, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Gradient descent with the noise (steps, 640) added to the gradients; the final loss."""

    def step(weights, noise):
        return weights - ETA * (jax.grad(loss)(weights, images, labels) + noise), None

    weights, _ = jax.lax.scan(step, jnp.zeros(640), noise)
    return loss(weights, images, labels)


def noise_weights(steps: int) -> np.ndarray:
    """What one unit of noise variance of each step adds to the final loss, from public images."""
    images, labels = data()[0]

    def step(weights, _):
        return weights - ETA * jax.grad(loss)(weights, images, labels), None

    optimum, _ = jax.lax.scan(step, jnp.zeros(640), None, length=1000)
    eigenvalues = np.linalg.eigvalsh(np.asarray(jax.hessian(loss)(optimum, images, labels), float))
    decay = (1.0 - ETA * eigenvalues) ** (2.0 * np.arange(steps - 1, -1, -1)[:, None])
    return 0.5 * ETA**2 * (decay * eigenvalues).sum(axis=1) * 2.0 / len(labels) ** 2


def predicted(sigma: jax.Array, q: jax.Array, weights: jax.Array) -> jax.Array:
    """Excess loss at the end."""
    return jnp.sum(weights * sigma**2)


def main() -> None:
    """Learn, train, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="30 steps and 20 seeds, not 200 and 200"
    )
    quick = parser.parse_args().quick
    steps, seeds = (30, 20) if quick else (200, 200)
    weights = noise_weights(steps)
    common = {"epsilon": EPSILON, "delta": DELTA, "sigma": np.ones(steps), "args": (weights,)}
    learned = calibrate.schedule(predicted, **common)
    sigma = calibrate.solve(
        lambda s: jaxdp.Repeated(jaxdp.Gaussian(s), steps), epsilon=EPSILON, delta=DELTA
    ).value
    schedules = {"constant": np.full(steps, float(sigma)), "learned": np.asarray(learned.sigma)}

    images, labels = data()[1]
    sensitivity = np.sqrt(2.0) / len(labels)
    train = jax.vmap(functools.partial(descend, images=images, labels=labels))
    keys = jax.random.split(jax.random.key(1), seeds)
    unit = jax.vmap(lambda k: jax.random.normal(k, (steps, 640)))(keys)
    noiseless = descend(jnp.zeros((steps, 640)), images, labels)
    print(f"{steps} steps, ({EPSILON:g}, {DELTA:g})-DP; noiseless loss {float(noiseless):.5f}")
    print(
        "schedule     first sigma   last sigma  predicted excess  measured excess  certified delta"
    )
    excess = {}
    for name, values in schedules.items():
        # one block of seeds at a time: memory
        blocks = [train(part * values[:, None] * sensitivity) for part in jnp.split(unit, 10)]
        excess[name] = float(jnp.mean(jnp.concatenate(blocks)) - noiseless)
        with jax.enable_x64(True):
            reached = float(jaxdp.delta(jaxdp.Schedule(jaxdp.Gaussian(values)), EPSILON))
        print(
            f"{name:10} {values[0]:13.3f} {values[-1]:12.3f}"
            f" {float(np.sum(weights * values**2)):17.6f} {excess[name]:16.6f} {reached:14.4e}"
        )
    print(
        f"the learned schedule's excess loss is {excess['learned'] / excess['constant']:.3f} of it"
    )


if __name__ == "__main__":
    main()
