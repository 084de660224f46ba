"""Matrix mechanisms under balls in bins: brackets against Monte Carlo and quadrature, and times.

    python -m benchmarks.matrix [--part large | small] [--small 200] [--samples 400000]

Prints Markdown. Times are wall seconds, the first call of a program with its compilation;
JAX_COMPILATION_CACHE_DIR should not be set. The truth at
b = 100 is a Monte Carlo estimate under P (its relative error in delta is some 2/sqrt(samples
delta)), beside it the interval of `estimate_delta` at that epsilon with 1e5 samples. `--small` so
many random strategies each of 2 and 3 bins, and half as many of 4, are checked against
quadrature, in both directions at two epsilons: violations, and widths.
"""

import argparse
import pathlib
import sys
import time

import jax
import numpy as np

import jaxdp

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "tests" / "matrix"))
import matrix_truth as truth

DELTA = 1e-4
# name, bands, n, sigma: first bands of the square root of the prefix sums; b = 100
SETTINGS = [
    ("square root, 10 epochs", 1000, 1000, 8.0),
    ("square root, 10 epochs", 1000, 1000, 16.0),
    ("square root, 1 epoch", 100, 100, 2.0),
    ("4 bands, 10 epochs", 4, 1000, 8.0),
    ("4 bands, 10 epochs", 4, 1000, 4.0),
    ("16 bands, 10 epochs", 16, 1000, 8.0),
]


def true_epsilon(gram: np.ndarray, samples: int, direction: str) -> float:
    """epsilon at DELTA, by Monte Carlo."""
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(gram + 1e-12 * np.trace(gram) * np.eye(len(gram)))
    ratios = []
    for _ in range(-(-samples // 20_000)):
        z = rng.standard_normal((20_000, len(gram))) @ root.T
        if direction == "remove":
            z += gram[rng.integers(len(gram), size=len(z))]
        ratios.append(np.exp(z - 0.5 * np.diag(gram)).mean(axis=1))
    x = np.concatenate(ratios)
    x = 1.0 / x if direction == "add" else x
    low, high = 0.0, 60.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        above = np.maximum(1.0 - np.exp(middle) / x, 0.0).mean() > DELTA
        low, high = (middle, high) if above else (low, middle)
    return low


def large(samples: int) -> None:
    """Brackets at a hundred bins; bands are traced, so that settings of one n share programs."""

    def bounds(column, sigma, n, direction):
        run = jaxdp.MatrixMechanism(column, sigma, num_steps=n, num_bins=100)
        return jaxdp.epsilon_bounds(run, DELTA, direction=direction)

    evaluate = jax.jit(bounds, static_argnums=(2, 3))
    print(
        "| strategy | sigma | direction | Monte Carlo | lower | upper | wall s | estimated delta |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, bands, n, sigma in SETTINGS:
        column = np.pad(truth.square_root(bands), (0, n - bands))
        gram = truth.gram(truth.toeplitz(column, n), 100) / sigma**2
        for direction in ("remove", "add"):
            start = time.perf_counter()
            low, high = map(float, evaluate(column, sigma, n, direction))
            spent = time.perf_counter() - start
            exact = true_epsilon(gram, samples, direction)
            row = f"| {name} | {sigma:g} | {direction} | {exact:.3f} | {low:.3f} | {high:.3f} |"
            run = jaxdp.MatrixMechanism(column, sigma, num_steps=n, num_bins=100)
            got = jaxdp.estimate_delta(run, exact, jax.random.key(0), direction=direction)
            print(row, f"{spent:.2f} | {got.low:.3e} to {got.high:.3e} |", flush=True)
    run = jaxdp.MatrixMechanism(truth.square_root(4), 8.0, num_steps=1000, num_bins=100)
    times = []
    for _ in range(6):
        start, cpu = time.perf_counter(), time.process_time()
        jaxdp.epsilon(run, DELTA).block_until_ready()
        times.append((time.perf_counter() - start, time.process_time() - cpu))
    (wall, cpu), warm = times[0], np.median(times[1:], axis=0)
    print(f"\n`epsilon` of both directions: first {wall:.1f} s ({cpu:.1f} s of CPU),", end=" ")
    print(f"then {warm[0]:.3f} s ({warm[1]:.3f} s of CPU).", flush=True)


def small(count: int) -> None:
    """Random strategies of few bins: every bound on the right side of quadrature?"""
    epsilons = np.array([0.2, 1.0])
    print("\n| bins | direction | bounds checked | violations | upper - truth, median (worst) |")
    print("|---|---|---|---|---|")
    for b in (2, 3, 4):
        rng, n = np.random.default_rng(b), 2 * b
        matrices, sigmas, exact = [], [], []
        for _ in range(count if b < 4 else count // 2):
            fall = rng.uniform(0.0, 3.0) * (np.arange(n)[:, None] - np.arange(n)[None, :])
            matrix = np.tril(rng.uniform(0.0, 1.0, (n, n)) * np.exp(-np.maximum(fall, 0.0)))
            matrices.append(matrix * rng.uniform(0.3, 1.0, n) + 0.1 * np.eye(n))
            sigmas.append(np.exp(rng.uniform(-1.0, 1.5)))
            gram = truth.gram(matrices[-1], b) / sigmas[-1] ** 2
            exact.append(truth.curves(gram, np.exp(epsilons)))
        run = jaxdp.MatrixMechanism(
            np.array(matrices)[:, None], np.array(sigmas)[:, None], num_bins=b
        )
        for i, direction in enumerate(("remove", "add")):
            low, high = jaxdp.delta_bounds(run, epsilons, direction=direction)
            true = np.array(exact)[:, i]
            slack = 1e-9 + 1e-9 * true  # of the quadrature
            wrong = np.sum(low > true + slack) + np.sum(high < true - slack)
            width = high - true
            widths = f"{np.median(width):.1e} ({width.max():.1e})"
            print(f"| {b} | {direction} | {2 * true.size} | {wrong} | {widths} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--part", choices=("large", "small"))
    parser.add_argument("--small", type=int, default=200)
    parser.add_argument("--samples", type=int, default=400_000)
    options = parser.parse_args()
    with jax.enable_x64(True):
        if options.part != "small":
            large(options.samples)
        if options.part != "large":
            small(options.small)


if __name__ == "__main__":
    main()
