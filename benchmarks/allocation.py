"""Random allocation: certified brackets, their time, and the peers' in the same run.

    python -m benchmarks.allocation [--peers PYTHON] [--random 300]

One line of JSON for each piece of work. Times are CPU seconds of the process, so that other work on
the machine does not count: of the first call (compilation included) and the median of warm ones.
Gaussian noise, sensitivity 1, delta = 1e-6 unless said otherwise. `truth` is known independently (a
contour integral). PYTHON is an interpreter that has the package PLD_accounting; without it the
peer's times stated are those of earlier measurements on two such cores, and are labelled so.
`--random` checks that many random settings, in both directions, against Monte Carlo intervals.
"""

import argparse
import json
import resource
import subprocess
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp

# sigma, t, k; truth (remove, add); CPU seconds and bracket of PLD_accounting 2.0, stated
SETTINGS = [
    (1.0, 1_000, 1, (0.171729, 0.149431), 11.4, (0.1687, 0.1757)),
    (1.0, 1_000, 10, (None, None), 4.2, (1.925, 2.006)),
    (2.0, 10_000, 1, (0.0170629, 0.0170331), 120.0, None),  # its time limit
    (0.5, 100, 1, (6.393640, 1.481442), 1.8, (6.383, 6.406)),
    (1.0, 1_000_000, 1, (0.0036744, 0.0036659), 41.0, (None, 0.00744)),
]
DELTA = 1e-6
SIMULATED_STEPS = (1, 2, 3, 5, 10, 20, 50, 100, 300, 1000)  # each is compiled once
STATED_MOMENT_S = 11.3  # random_allocation 1.0.5, order 64 at sigma = 2, t = 1e4
PEER_EPSILON = """
import json, resource, sys, time
resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
import PLD_accounting as peer
sigma, steps, selected, delta = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), 1e-6
start = time.process_time()
high, low = peer.gaussian_allocation_epsilon_range(
    delta=delta, sigma=sigma, num_steps=steps, num_selected=selected, num_epochs=1
)
print(json.dumps([time.process_time() - start, low, high]))
"""


def cpu_seconds(function: Callable[[], Any], runs: int = 1) -> tuple[float, Any]:
    """Median over runs, and the last result."""
    times, result = [], None
    for _ in range(runs):
        start = time.process_time()
        result = jax.block_until_ready(function())
        times.append(time.process_time() - start)
    return float(np.median(times)), result


def report(**line: Any) -> None:
    print(json.dumps({k: _short(v) for k, v in line.items()}), flush=True)


def _short(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.7g}")
    return [_short(v) for v in value] if isinstance(value, (list, tuple)) else value


def peer_epsilon(python: str | None, sigma: float, steps: int, selected: int) -> Any:
    """CPU seconds and bracket of PLD_accounting, or a word if it fails or takes over 120 s."""
    if python is None:
        return None
    arguments = [python, "-c", PEER_EPSILON, str(sigma), str(steps), str(selected)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        return "over 120 s" if done.returncode < 0 else "failed"
    return json.loads(done.stdout.splitlines()[-1])


def brackets(python: str | None) -> None:
    for sigma, steps, selected, truths, stated, stated_bracket in SETTINGS:
        measured = peer_epsilon(python, sigma, steps, selected)
        seconds = measured[0] if isinstance(measured, list) else stated
        for direction, truth in zip(("remove", "add"), truths, strict=True):

            def bounds(s, d=direction, t=steps, k=selected):
                m = jaxdp.RandomAllocation(jaxdp.Gaussian(s), t, k)
                return jaxdp.epsilon_bounds(m, DELTA, direction=d)

            program, at = jax.jit(bounds), jnp.asarray(sigma)
            first, _ = cpu_seconds(lambda run=program, at=at: run(at))
            warm, found = cpu_seconds(lambda run=program, at=at: run(at), 9)
            low, high = (float(x) for x in found)
            report(
                sigma=sigma,
                steps=steps,
                selected=selected,
                direction=direction,
                lower=low,
                upper=high,
                truth=truth,
                contains_truth=None
                if truth is None
                else low <= truth * (1 + 2e-5) and high >= truth * (1 - 2e-5),
                width_percent=100 * (high - low) / high,
                first_s=first,
                warm_ms=1e3 * warm,
                peer_measured=measured,
                peer_stated=[stated, stated_bracket],
                times_faster=seconds / warm,
            )


def moments() -> None:
    def one(sigma):
        return jaxdp.renyi(
            jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 10_000), 64, direction="remove"
        )

    first, _ = cpu_seconds(lambda: one(2.0))
    warm, value = cpu_seconds(lambda: one(2.0), 15)
    report(
        work="Rényi divergence, order 64, sigma = 2, t = 1e4",
        value=float(value),
        expected=9.0902024e-4,  # mpmath, 60 digits
        first_s=first,
        warm_ms=1e3 * warm,
        peer_stated_s=STATED_MOMENT_S,
        times_faster=STATED_MOMENT_S / warm,
    )
    orders = jaxdp.Renyi(orders=tuple(range(2, 65)))
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 10_000)
    _, value = cpu_seconds(lambda: jaxdp.epsilon(run, 1e-8, method=orders, direction="remove"))
    report(work="epsilon at 1e-8 from orders <= 64", value=float(value), expected=0.21154)
    sigmas, alphas = np.linspace(0.5, 5.0, 1000), np.arange(2.0, 257.0)

    def many():
        m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigmas[:, None]), 10_000)
        return jaxdp.renyi(m, alphas, direction="remove")

    first, _ = cpu_seconds(many)
    start = time.perf_counter()
    warm, _ = cpu_seconds(many)
    report(
        work="1000 sigmas, all orders from 2 to 256, t = 1e4",
        first_s=first,
        warm_s=warm,
        warm_wall_s=time.perf_counter() - start,
    )


def batch() -> None:
    sigmas = jnp.linspace(0.5, 4.0, 1000)
    for direction in ("remove", "add"):

        def upper(s, d=direction):
            m = jaxdp.RandomAllocation(jaxdp.Gaussian(s), 1000)
            return jaxdp.epsilon_bounds(m, DELTA, direction=d)

        program = jax.jit(upper)
        first, _ = cpu_seconds(lambda run=program: run(sigmas))
        warm, (low, high) = cpu_seconds(lambda run=program: run(sigmas))
        report(
            work=f"1000 brackets of epsilon, t = 1000, {direction}",
            first_s=first,
            warm_s=warm,
            widest_percent=float(np.max(100 * (high - low) / high)),
            peak_memory_GiB=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        )


def random_settings(number: int) -> None:
    """Bounds against importance-sampled intervals, together wrong with probability 1e-4 at most."""
    rng = np.random.default_rng(0)
    each = -(-number // len(SIMULATED_STEPS))
    number = each * len(SIMULATED_STEPS)
    for direction in ("remove", "add"):
        wrong, intervals, brackets_, deltas = 0, [], [], []
        for steps in SIMULATED_STEPS:
            sigma = rng.uniform(0.4, 5.0, each)
            spread = np.sqrt(np.expm1(1.0 / sigma**2) / steps)
            epsilon = rng.uniform(0.0, 2.0, each) * np.minimum(spread, 1.0)
            m = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)
            low, high = (np.asarray(x) for x in jaxdp.delta_bounds(m, epsilon, direction=direction))
            seen = jaxdp.estimate_delta(
                m,
                epsilon,
                jax.random.key(steps),
                num_samples=min(20_000, 4_000_000 // steps),
                direction=direction,
                confidence=1.0 - 1e-4 / (2 * number),
            )
            wrong += int(np.sum((low > np.asarray(seen.high)) | (high < np.asarray(seen.low))))
            intervals += list((np.asarray(seen.high) - np.asarray(seen.low)) / high)
            brackets_ += list((high - low) / high)
            deltas += list(high)
        report(
            work=f"random settings, {direction}",
            settings=number,
            violations=wrong,
            smallest_delta=float(np.min(deltas)),
            median_interval_percent=100 * float(np.median(intervals)),
            widest_interval_percent=100 * float(np.max(intervals)),
            median_bracket_percent=100 * float(np.median(brackets_)),
            widest_bracket_percent=100 * float(np.max(brackets_)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", help="an interpreter with the peers installed")
    parser.add_argument("--random", type=int, default=0)
    parser.add_argument("--only", choices=("brackets", "moments", "batch", "random"))
    options = parser.parse_args()
    with jax.enable_x64(True):
        report(device=jax.devices()[0].device_kind, jax=jax.__version__)
        if options.only in (None, "brackets"):
            brackets(options.peers)
        if options.only in (None, "moments"):
            moments()
        if options.only in (None, "batch"):
            batch()
        if options.only in (None, "random") and options.random:
            random_settings(options.random)


if __name__ == "__main__":
    main()
