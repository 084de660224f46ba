"""Parameters as an adversary draws them: log-uniform to the extremes, and special points."""

import numpy as np

Rng = np.random.Generator
RATES = (1.0, 1 - 1e-12, 1 - 2**-53, 0.5, 0.1, 1e-3, 1e-9, 1e-15)
EPSILONS = (0.0, 1e-9, 1e-3, 0.5, 1.0, 2.0, 36.0, 37.0, 700.0, 710.0, 1e4, -1e-9, -1.0, -40.0)
DELTAS = (0.0, 1e-300, 1e-100, 1e-16, 1e-10, 1e-6, 1e-5, 1e-3, 0.1, 0.5, 0.9)


def log_uniform(rng: Rng, low: float, high: float, n: int) -> np.ndarray:
    """From low to high."""
    return np.exp(rng.uniform(np.log(low), np.log(high), n))


def as_written(rng: Rng, values: np.ndarray) -> np.ndarray:
    """The values, half of them with one or two digits, as people write them."""
    rounded = [float(f"{x:.{rng.integers(1, 3)}g}") for x in values]
    return np.where(rng.random(len(values)) < 0.5, rounded, values)


def spiced(rng: Rng, values: np.ndarray, special, share: float = 0.2) -> np.ndarray:
    """Values of which a share is replaced by special points."""
    chosen = rng.choice(np.asarray(special, float), len(values))
    return np.where(rng.random(len(values)) < share, chosen, values)


def real(low: float, high: float, *special: float):
    """A sampler of positive reals: half of them from the middle of the range, in logs."""

    def draw(rng, n):
        inner = np.exp(rng.normal(0.5 * np.log(low * high), 0.2 * np.log(high / low), n))
        wide = log_uniform(rng, low, high, n)
        values = np.where(rng.random(n) < 0.5, np.clip(inner, low, high), wide)
        values = np.clip(as_written(rng, values), low, high)
        return spiced(rng, values, special) if special else values

    return draw


def rate(rng: Rng, n: int) -> np.ndarray:
    """A sampling probability, up to 1."""
    low = log_uniform(rng, 1e-9, 1.0, n)
    near = 1.0 - log_uniform(rng, 1e-15, 0.5, n)
    values = np.where(rng.random(n) < 0.7, as_written(rng, low), near)
    return spiced(rng, np.clip(values, 1e-15, 1.0), RATES)


def integer(low: int, high: int):
    """A sampler of integers, log-uniform."""

    def draw(rng, n):
        return np.clip(np.round(log_uniform(rng, low, high, n)), low, high)

    return draw


def failure(rng: Rng, n: int) -> np.ndarray:
    """The delta of a step that fails with this probability."""
    values = log_uniform(rng, 1e-12, 0.9, n)
    return spiced(rng, values, (0.0, 1e-300, 1e-30, 0.5, 0.9, 0.999))


def masses(outcomes: int):
    """A sampler of probability vectors with masses down to 1e-60, and some that are 0."""

    def draw(rng, n):
        wild = rng.random((n, 1)) < 0.5
        scale = np.where(wild, 60.0, 3.0)
        values = 10.0 ** (-scale * rng.random((n, outcomes)) ** 2)
        values = np.where(rng.random((n, outcomes)) < 0.08, 0.0, values)
        values[:, -1] = np.maximum(values[:, -1], 0.1)
        return values / values.sum(axis=1, keepdims=True)

    return draw


def delta(rng: Rng, n: int) -> np.ndarray:
    """Targets from 1e-300 to 0.9."""
    deep = log_uniform(rng, 1e-300, 0.9, n)
    usual = log_uniform(rng, 1e-12, 0.9, n)
    return spiced(rng, np.where(rng.random(n) < 0.7, usual, deep), DELTAS)
