"""1,000 federated rounds: client sampling, 30 % dropouts, quantisation, discrete Gaussian noise.

    python examples/federated_rounds.py [--quick]

Two hundred clients fit one linear model, and no server is trusted with their gradients. In every
round each client flips a coin that it keeps to itself: with probability 10 % it sends its gradient,
else zeros; either way with noise. What it sends is clipped, rotated at random, scaled, rounded to
integers and taken modulo 2^18; secure aggregation shows the server the sum of those who stay.
Nearly a third do not. The noise is calibrated for the least number of survivors with which a round
counts, and the privacy of what happened is that of the survivors there were.

Neighbours: one client's data are there or are not. It sends noise in either case, so that the sum
moves by what it would have sent: a Poisson sample of a vector of integers.
"""

import argparse
import dataclasses
import math
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import calibrate
import jaxdp

EPSILON, DELTA = 4.0, 1e-5
CLIENTS, PER_CLIENT, DIMENSION = 200, 8, 32
SAMPLING, DROPOUT = 0.1, 0.3
SURVIVORS = 120  # a round with fewer is void
CLIP, LEVELS, MODULUS = 1.0, 64.0, 2**18  # integers in a unit of the gradient; of the sum
ATTEMPTS, BETA = 32, math.exp(-0.5)
LEARNING_RATE = 0.1


def rounded_norm() -> float:
    """The L2 sensitivity of a rounded gradient, in integers.

    Stochastic rounding is repeated until the norm is within this bound (Kairouz, Liu & Steinke
    2021, arXiv 2102.06387, Proposition 22), which an attempt fails with probability BETA at most.
    """
    norm, root = CLIP * LEVELS, math.sqrt(DIMENSION)
    likely = norm**2 + DIMENSION / 4 + math.sqrt(2 * math.log(1 / BETA)) * (norm + root / 2)
    return min(norm + root, math.sqrt(likely))


def release(sigma: jax.typing.ArrayLike, survivors: jax.typing.ArrayLike) -> jaxdp.Mechanism:
    """One round: what the sum of so many clients, with their noise, tells of one of them."""
    noise = jaxdp.DiscreteGaussianVector(sigma, rounded_norm(), num_parties=survivors)
    return jaxdp.PoissonSampled(noise, SAMPLING)


def rotation(key: jax.Array) -> jax.Array:
    """Random signs and a Hadamard matrix: no coordinate is large, whatever the gradient."""
    matrix = np.ones((1, 1))
    while matrix.shape[0] < DIMENSION:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    signs = jax.random.rademacher(key, (DIMENSION,), jnp.float32)
    return jnp.asarray(matrix / math.sqrt(DIMENSION), jnp.float32) * signs


def rounded(key: jax.Array, value: jax.Array) -> jax.Array:
    """Stochastic rounding of a vector, repeated until its norm is within `rounded_norm`."""
    low = jnp.floor(value)
    up = jax.random.uniform(key, (ATTEMPTS, DIMENSION)) < value - low
    tries = low + up
    fits = jnp.sum(tries * tries, axis=1) <= rounded_norm() ** 2
    # (rounding towards zero always fits, and is needed once in e^16)
    return jnp.where(jnp.any(fits), tries[jnp.argmax(fits)], jnp.trunc(value))


def encoded(
    key: jax.Array, gradient: jax.Array, joins: jax.Array, turn: jax.Array, sigma: float
) -> jax.Array:
    """What one client sends: integers modulo MODULUS."""
    round_key, noise_key = jax.random.split(key)
    clipped = gradient * jnp.minimum(1.0, CLIP / jnp.maximum(jnp.linalg.norm(gradient), 1e-12))
    # (a hair less than CLIP: float32 rotates to within 1e-6)
    exact = rounded(round_key, (LEVELS * (1.0 - 1e-5)) * (turn @ clipped))
    share = jaxdp.DiscreteGaussianVector(sigma, rounded_norm())
    sent = share.sample(noise_key, jnp.where(joins, exact, 0.0))
    return sent.astype(jnp.int32) % MODULUS


def problem(key: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Features and labels of every client, (CLIENTS, PER_CLIENT, ...), and the true model."""
    features, model, noise = jax.random.split(key, 3)
    x = jax.random.normal(features, (CLIENTS, PER_CLIENT, DIMENSION))
    truth = jax.random.normal(model, (DIMENSION,)) / math.sqrt(DIMENSION)
    y = x @ truth + 0.1 * jax.random.normal(noise, (CLIENTS, PER_CLIENT))
    return x, y, truth


def simulate(rounds: int, sigma: float | None) -> tuple[float, np.ndarray]:
    """Train; the error of the later rounds' mean model, and how many survived each round.

    Without a sigma the server sees the mean gradient of the clients who joined and stayed.
    """
    x, y, truth = problem(jax.random.key(0))

    def loss(model: jax.Array, features: jax.Array, labels: jax.Array) -> jax.Array:
        return 0.5 * jnp.mean((features @ model - labels) ** 2)

    def step(model: jax.Array, key: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        joins_key, stays_key, turn_key, sends_key = jax.random.split(key, 4)
        joins = jax.random.bernoulli(joins_key, SAMPLING, (CLIENTS,))
        stays = jax.random.bernoulli(stays_key, 1.0 - DROPOUT, (CLIENTS,))
        gradients = jax.vmap(jax.grad(loss), (None, 0, 0))(model, x, y)
        survivors = jnp.sum(stays)
        if sigma is None:
            mean = (joins & stays) @ gradients / (SAMPLING * survivors)
            model = model - LEARNING_RATE * mean
            return model, (model, survivors)
        turn = rotation(turn_key)
        keys = jax.random.split(sends_key, CLIENTS)
        send: Callable = jax.vmap(lambda k, g, j: encoded(k, g, j, turn, sigma))
        total = stays @ send(keys, gradients, joins) % MODULUS
        total = jnp.where(total < MODULUS // 2, total, total - MODULUS)
        mean = turn.T @ total / (LEVELS * SAMPLING * survivors)
        counts = survivors >= SURVIVORS
        model = jnp.where(counts, model - LEARNING_RATE * mean, model)
        return model, (model, survivors)

    keys = jax.random.split(jax.random.key(1), rounds)
    scan = jax.jit(lambda: jax.lax.scan(step, jnp.zeros(DIMENSION), keys))
    _, (models, survivors) = scan()
    model = jnp.mean(models[rounds // 2 :], axis=0)
    return float(jnp.linalg.norm(model - truth) / jnp.linalg.norm(truth)), np.asarray(survivors)


def spent(sigma: float, survivors: np.ndarray) -> float:
    """Epsilon of rounds with these numbers of survivors, which depend on nobody's data.

    Rounds with as many survivors are alike: the next lower multiple of 8 stands for them.
    """
    counted = survivors[survivors >= SURVIVORS]
    numbers, rounds = np.unique(counted // 8 * 8, return_counts=True)
    pairs = zip(numbers, rounds, strict=True)
    parts = [jaxdp.Repeated(release(sigma, float(n)), float(r)) for n, r in pairs]
    return float(jaxdp.epsilon(jaxdp.Composed(parts), DELTA))


@dataclasses.dataclass(frozen=True)
class Report:
    """What `run` found.

    Attributes:
      sigma: of each client's noise.
      planned, everyone, seen: epsilon of SURVIVORS in every round, of all clients, of the rounds.
      continuous: the error of the same training without privacy; private: with it.
    """

    sigma: float
    planned: float
    everyone: float
    seen: float
    continuous: float
    private: float


def run(rounds: int) -> Report:
    """Calibrate, train and account."""

    def planned(sigma: jax.typing.ArrayLike) -> jaxdp.Mechanism:
        return jaxdp.Repeated(release(sigma, SURVIVORS), rounds)

    found = calibrate.solve(planned, epsilon=EPSILON, delta=DELTA, bracket=(0.5, 200.0))
    sigma = float(found.value)
    private, survivors = simulate(rounds, sigma)
    return Report(
        sigma=sigma,
        planned=float(jaxdp.epsilon(planned(sigma), DELTA)),
        everyone=float(jaxdp.epsilon(jaxdp.Repeated(release(sigma, CLIENTS), rounds), DELTA)),
        seen=spent(sigma, survivors),
        continuous=simulate(rounds, None)[0],
        private=private,
    )


def main() -> None:
    """Print what a plan for dropouts costs, and what training then learns."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="50 rounds instead of 1,000")
    rounds = 50 if parser.parse_args().quick else 1000
    start = time.perf_counter()
    report = run(rounds)
    print(f"{rounds} rounds, {CLIENTS} clients, each in a round with probability {SAMPLING:g}")
    print(f"L2 sensitivity {rounded_norm():.3f} integers, {LEVELS * CLIP:g} before rounding")
    print(f"sigma of a client's noise: {report.sigma:.3f}")
    print(f"\nepsilon at delta = {DELTA:g}")
    print(f"  {SURVIVORS} survivors in every round, as planned  {report.planned:.4f}")
    print(f"  the survivors there were ({DROPOUT:.0%} drop out)   {report.seen:.4f}")
    print(f"  no dropouts                                 {report.everyone:.4f}")
    print(
        f"\nrelative error of the model: {report.private:.3f}; not private {report.continuous:.3f}"
    )
    print(f"({time.perf_counter() - start:.0f} s)")


if __name__ == "__main__":
    main()
