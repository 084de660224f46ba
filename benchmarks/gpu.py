"""Batches of every size on the default device and on the CPU, with their memory.

    python -m benchmarks.gpu [--sizes 1 10 ... 1000000] [--only NAME ...] [--limit 60]

Each row is a warm call: microseconds a target on the device and on the CPU, how many rows are
computed at a time, the peak of the device's memory so far. The answers of both are compared: they
may differ by rounding only, and that is checked before a time is printed. A size that would take
longer than the limit, by the size before, is left out. Without an accelerator both columns are the
CPU's, which serves to try the program.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

import calibrate
import jaxdp
from jaxdp import _chunks


def sgd(sigma: Any) -> jaxdp.Mechanism:
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.01), 1000)


def allocation(sigma: Any) -> jaxdp.Mechanism:
    return jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 100)


def solve(build: Callable[..., jaxdp.Mechanism], epsilon: Any) -> jax.Array:
    return calibrate.solve(build, epsilon=epsilon, delta=1e-5).value


# name -> the batch, the mechanism whose rows are counted, relative difference that rounding makes
TASKS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], jaxdp.Mechanism], float]] = {
    "Gaussian epsilon": (
        lambda x: jaxdp.epsilon(jaxdp.Gaussian(x), 1e-5),
        jaxdp.Gaussian,
        1e-9,
    ),
    "DP-SGD epsilon": (lambda x: jaxdp.epsilon(sgd(x), 1e-5), sgd, 1e-6),
    "DP-SGD bounds": (lambda x: jaxdp.epsilon_bounds(sgd(x), 1e-5)[1], sgd, 1e-6),
    "DP-SGD epsilon, Rényi": (
        lambda x: jaxdp.epsilon(sgd(x), 1e-5, method=jaxdp.Renyi()),
        sgd,
        1e-6,
    ),
    "allocation epsilon": (lambda x: jaxdp.epsilon(allocation(x), 1e-5), allocation, 1e-6),
    "Gaussian sigma": (lambda x: solve(jaxdp.Gaussian, x), jaxdp.Gaussian, 1e-9),
    "DP-SGD sigma": (lambda x: solve(sgd, x), sgd, 1e-5),
}


def warm(function: Callable[[Any], Any], batch: Any) -> tuple[float, np.ndarray]:
    """Seconds of a second call, and its answers."""
    jax.block_until_ready(function(batch))
    start = time.perf_counter()
    answers = jax.block_until_ready(function(batch))
    return time.perf_counter() - start, np.asarray(answers)


def memory(device: Any) -> str:
    stats = device.memory_stats() or {}
    return f"{stats['peak_bytes_in_use'] / 2**20:.0f} MiB" if "peak_bytes_in_use" in stats else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10**k for k in range(7)])
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--limit", type=float, default=60.0)
    options = parser.parse_args()
    device, host = jax.devices()[0], jax.local_devices(backend="cpu")[0]
    print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}; us a target\n")
    print("| batch | targets | device | CPU | ratio | rows at a time | peak memory |")
    print("|---|---|---|---|---|---|---|")
    with jax.enable_x64(True):
        for name in options.only:
            function, build, tolerance = TASKS[name]
            slowest: dict[Any, float] = {}
            before = 0
            for size in sorted(options.sizes):
                growth = size / before if before else 0.0
                if any(s * growth > options.limit for s in slowest.values()):
                    break
                answers = []
                for place in (device, host):
                    batch = jax.device_put(np.linspace(0.8, 4.0, size), place)
                    slowest[place], found = warm(function, batch)
                    answers.append(found)
                np.testing.assert_allclose(*answers, rtol=tolerance)
                rows = _chunks.chunk_of(build(jax.device_put(1.0, device)), None) or size
                ours, cpu = (1e6 * slowest[place] / size for place in (device, host))
                print(
                    f"| {name} | {size} | {ours:.3g} | {cpu:.3g} | {cpu / ours:.2g} |"
                    f" {min(rows, size)} | {memory(device)} |",
                    flush=True,
                )
                before = size


if __name__ == "__main__":
    main()
