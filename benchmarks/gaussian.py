"""A million Gaussian sigma calibrations in one call, beside dp_accounting's loop in the same run.

    python -m benchmarks.gaussian [--targets 1000000]      (needs the extra `peers`)

Prints seconds for compilation, a warm call and the peer's loop per target, their ratio, and the
worst relative excess of sigma and of delta over the target, as JSON.
"""

import argparse
import json
import platform
import time

import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np

import calibrate
import jaxdp


def targets(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Epsilon in [0.05, 10] and delta in [1e-12, 1e-3], log-uniform."""
    rng = np.random.default_rng(0)
    return 10 ** rng.uniform(np.log10(0.05), 1, count), 10 ** rng.uniform(-12, -3, count)


def median_seconds(function, runs: int) -> float:
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=1_000_000)
    parser.add_argument("--peer-targets", type=int, default=300)
    options = parser.parse_args()
    epsilon, delta = targets(options.targets)

    with jax.enable_x64(True):
        solve = jax.jit(lambda e, d: calibrate.solve(jaxdp.Gaussian, epsilon=e, delta=d))
        e, d = jnp.asarray(epsilon), jnp.asarray(delta)
        start = time.perf_counter()
        solution = jax.block_until_ready(solve(e, d))
        first = time.perf_counter() - start
        warm = median_seconds(lambda: jax.block_until_ready(solve(e, d)), 7)
        reached = np.asarray(jaxdp.delta(jaxdp.Gaussian(solution.value), e))
        # at a sigma less by 1e-6 the target must be missed
        missed = np.asarray(jaxdp.hockey_stick(jaxdp.Gaussian(solution.value * (1 - 1e-6)), e))

    few = range(options.peer_targets)
    start = time.perf_counter()
    peer = [dp_accounting.get_sigma_gaussian(epsilon[i], delta[i]) for i in few]
    per_peer = (time.perf_counter() - start) / len(few)
    gap = np.abs(np.asarray(solution.value)[: len(peer)] / np.asarray(peer) - 1)
    per_target = warm / options.targets
    print(
        json.dumps(
            {
                "device": f"{jax.devices()[0].device_kind}, {platform.machine()}",
                "jax": jax.__version__,
                "targets": options.targets,
                "first_call_s": round(first, 3),
                "compile_s": round(first - warm, 3),
                "warm_call_s": round(warm, 3),
                "per_target_us": round(1e6 * per_target, 3),
                "dp_accounting_per_target_us": round(1e6 * per_peer, 1),
                "ratio": round(per_peer / per_target),
                "all_solved": bool((np.asarray(solution.status) == 0).all()),
                "unsafe": int((reached > delta).sum()),
                "sigma_excess_below_1e-6": bool((missed > delta).all()),
                "largest_gap_to_dp_accounting": float(gap.max()),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
