"""Matrix mechanisms beside jax_privacy's Monte Carlo: brackets, estimates, CPU seconds, samples.

    python -m benchmarks.matrix_peers [--seconds 30] [--deltas 1e-4 1e-5 1e-8]

Prints Markdown; needs the extra `peers`, and JAX_COMPILATION_CACHE_DIR not to be set. Ours: the
certified bracket of epsilon of both directions, all settings of one n by one program; "first" has
import and compilation of a fresh process, "warm" is the next setting. Theirs: privacy losses drawn
by `jax_privacy.experimental.monte_carlo` (with the record; the other direction would take as many),
the epsilon at which their estimate of delta is `delta`, and the samples that
`minimum_samples_to_calibrate` asks for to certify delta from an estimate of half of it, for each
sigma tried; at the measured time a sample that is so many CPU seconds (computed, not run).
Settings whose samples would see fewer than ten losses above epsilon have no estimate.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import numpy as np

from benchmarks.matrix import SETTINGS, truth

BINS = 100

OURS = """
import json, sys, time
import jax, numpy as np, jaxdp
settings, n, deltas = json.loads(sys.argv[1])

def bounds(column, sigma, delta):
    run = jaxdp.MatrixMechanism(column, sigma, num_steps=n, num_bins=100)
    return jaxdp.epsilon_bounds(run, delta)

def above(column, sigma, delta):
    run = jaxdp.MatrixMechanism(column, sigma, num_steps=n, num_bins=100)
    return jaxdp.epsilon(run, delta)

jax.config.update("jax_enable_x64", True)
for kind, ask in (("above", above), ("bracket", bounds)):
    for column, sigma in settings:
        for delta in deltas:
            start = time.process_time()
            values = np.asarray(ask(np.array(column), sigma, delta)).tolist()
            print(json.dumps([kind, values, time.process_time() - start]), flush=True)
"""


def ours(n: int, deltas: list[float]) -> Iterator[list]:
    """Rows (kind, value or bracket, CPU seconds) of a fresh process: settings by deltas, twice."""
    settings = [
        (np.pad(truth.square_root(bands), (0, n - bands)).tolist(), sigma)
        for _, bands, steps, sigma in SETTINGS
        if steps == n
    ]
    arguments = [sys.executable, "-c", OURS, json.dumps([settings, n, deltas])]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as process:
        yield from map(json.loads, process.stdout or ())


def theirs(bands: int, n: int, sigma: float, seconds: float) -> tuple[np.ndarray, float]:
    """As many privacy losses with the record as take so long, and CPU seconds a sample."""
    from jax_privacy import batch_selection
    from jax_privacy.experimental.monte_carlo import sample_generation

    strategy = batch_selection.BallsInBinsSampling(cycle_length=BINS, iterations=n)

    def draw(seed: int, samples: int) -> tuple[np.ndarray, float]:
        start = time.process_time()
        losses, _ = sample_generation.get_privacy_loss_sample(
            strategy, sigma, truth.square_root(bands), seed=seed, num_samples=samples
        )
        return np.asarray(losses), (time.process_time() - start) / samples

    _, each = draw(0, 200)
    return draw(1, max(200, min(200_000, int(seconds / each))))


def estimate(losses: np.ndarray, delta: float) -> str:
    """The epsilon at which their estimate is delta."""
    from jax_privacy.experimental.monte_carlo import delta_calculation

    low, high = 0.0, 40.0
    for _ in range(50):
        middle = 0.5 * (low + high)
        above = delta_calculation.delta_from_epsilon_and_samples(middle, losses) > delta
        low, high = (middle, high) if above else (low, middle)
    return f"{low:.3f}" if np.sum(losses > low) >= 10 else "-"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=30.0, help="of CPU for their samples")
    parser.add_argument("--deltas", type=float, nargs="+", default=[1e-4, 1e-5, 1e-8])
    options = parser.parse_args()
    from jax_privacy.experimental.monte_carlo import delta_calculation

    needed = {
        delta: delta_calculation.minimum_samples_to_calibrate(0.5 * delta, delta)
        for delta in options.deltas
    }
    drawn = {s: theirs(*s[1:], options.seconds) for s in SETTINGS}
    print(
        "| strategy | sigma | delta | bracket | CPU s | their estimate | their samples"
        " | CPU s a sample | CPU s in all |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    firsts = []
    for n in sorted({s[2] for s in SETTINGS}, reverse=True):
        rows, some = ours(n, options.deltas), [s for s in SETTINGS if s[2] == n]
        cells = [(setting, delta) for setting in some for delta in options.deltas]
        above = [next(rows)[2] for _ in cells]
        brackets = []
        for (setting, delta), (_, (low, high), spent) in zip(cells, rows, strict=True):
            brackets.append(spent)
            losses, each = drawn[setting]
            print(
                f"| {setting[0]} | {setting[3]:g} | {delta:g} | {low:.3f} to {high:.3f} |"
                f" {spent:.2f} | {estimate(losses, delta)} | {needed[delta]:.2g} |"
                f" {each:.1e} | {each * needed[delta]:.2g} |",
                flush=True,
            )
        firsts.append((n, above[0], np.median(above[1:]), brackets[0]))
    for n, first, warm, bracket in firsts:
        print(
            f"\n`epsilon` of both directions, n = {n}: first {first:.1f} s of CPU, then"
            f" {warm:.2f} s; the first bracket after it {bracket:.1f} s."
        )


if __name__ == "__main__":
    main()
