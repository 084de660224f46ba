"""Batches of every size on the default device and on the CPU, with their memory and their limit.

    python -m benchmarks.gpu [--sizes 1 10 ... 1000000] [--host-sizes ...] [--only NAME ...]
                             [--limit 60]

Each row is a warm call: microseconds a target on the device and on the CPU, what the physical limit
is, how many rows are computed at a time, the peak of the device's memory so far. The answers of
both are compared: they may differ by rounding only, and that is checked before a time is printed. A
size that would take longer than the limit, by the size before, is left out. (A CPU's programs for
256 rows and fewer are interpreted, or compiled quickly, and slower.) Without an accelerator both
columns are the CPU's, which serves to try the program.

The limit is the time of a program's transcendental functions and Fourier transforms alone, at the
rates that the device reaches in programs of nothing else (measured first): additions and memory
cost nothing, and a loop whose length the data decides counts as one step.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import calibrate
import jaxdp
from jaxdp import _chunks, _interpreter


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
    """Seconds of the fastest of three more calls, and their answers."""
    jax.block_until_ready(function(batch))
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        answers = jax.block_until_ready(function(batch))
        seconds.append(time.perf_counter() - start)
        if sum(seconds) > 5.0:
            break
    return min(seconds), np.asarray(answers)


# An element of one of these counts as one exponential. (The slower ones make the limit too low.)
TRANSCENDENTAL = {
    "exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tan", "atan2", "pow", "tanh", "logistic",
    "erf", "erfc", "erf_inv", "lgamma", "digamma",
}  # fmt: skip


def work(jaxpr: Any) -> np.ndarray:
    """How many transcendental functions a program takes, and operations in transforms."""
    done = np.zeros(2)
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        name, shape = equation.primitive.name, equation.outvars[0].aval.shape
        if name in TRANSCENDENTAL:
            done[0] += np.prod(shape)
        elif name == "fft":  # of real numbers or to them: half of a complex one's 5 N log2 N
            size = float(equation.params["fft_lengths"][0])
            rows = np.prod(shape) / shape[-1]
            done[1] += 2.5 * rows * size * np.log2(size)
        inner = sum((work(j) for j in _interpreter.programs(equation.params)), np.zeros(2))
        done += inner * (equation.params["length"] if name == "scan" else 1)
    return done


def rates(device: Any) -> np.ndarray:
    """Transcendental functions and operations in transforms, a second: the most that is reached."""
    points = jax.device_put(np.linspace(-1.0, 0.0, 2**13), device)
    rows, turns = (4096, 64) if device.platform != "cpu" else (64, 4)

    def exponentials(x: jax.Array) -> jax.Array:
        scale = jnp.arange(1.0, turns + 1.0)[:, None, None] + jnp.arange(float(rows))[:, None]
        return jnp.sum(jnp.exp(x * scale), axis=-1)

    def transforms(x: jax.Array) -> jax.Array:
        return jnp.fft.rfft(jnp.arange(1.0, rows + 1.0)[:, None] * x)

    tasks = (jax.jit(exponentials), jax.jit(transforms))
    done = [np.sum(work(jax.make_jaxpr(task)(points))) for task in tasks]
    return np.array(done) / [warm(task, points)[0] for task in tasks]


def memory(device: Any) -> str:
    stats = device.memory_stats() or {}
    return f"{stats['peak_bytes_in_use'] / 2**20:.0f} MiB" if "peak_bytes_in_use" in stats else "-"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="*", default=[10**k for k in range(7)])
    parser.add_argument("--host-sizes", type=int, nargs="*", help="of them, those for the CPU too")
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    parser.add_argument("--limit", type=float, default=60.0)
    options = parser.parse_args()
    device, host = jax.devices()[0], jax.local_devices(backend="cpu")[0]
    with jax.enable_x64(True):
        most = rates(device)
        print(f"{device.device_kind} ({device.platform}), jax {jax.__version__}; us a target;")
        print("limit by {:.3g} exponentials/s, {:.3g} flop/s in transforms\n".format(*most))
        print("| batch | targets | device | CPU | ratio | limit | rows at a time | peak memory |")
        print("|---|---|---|---|---|---|---|---|")
        for name in options.only:
            function, build, tolerance = TASKS[name]
            some = jax.ShapeDtypeStruct((64,), np.float64)
            least = np.sum(work(jax.make_jaxpr(function)(some)) / most) / 64
            last: dict[Any, tuple[float, int]] = {}  # seconds, size
            for size in sorted(options.sizes):
                answers = {}
                for place in dict.fromkeys((device, host)):
                    seconds, before = last.get(place, (0.0, 1))
                    if seconds * size / before > options.limit:
                        continue
                    asked = options.host_sizes or options.sizes
                    if place != device and size not in asked:
                        continue
                    batch = jax.device_put(np.linspace(0.8, 4.0, size), place)
                    seconds, answers[place] = warm(function, batch)
                    last[place] = seconds, size
                if device not in answers:
                    break
                if host in answers:
                    np.testing.assert_allclose(answers[device], answers[host], rtol=tolerance)
                rows = _chunks.chunk_of(build(jax.device_put(1.0, device)), None) or size
                ours = 1e6 * last[device][0] / size
                cpu = 1e6 * last[host][0] / size if host in answers else np.nan
                print(
                    f"| {name} | {size} | {ours:.3g} | {cpu:.3g} | {cpu / ours:.2g} |"
                    f" {1e6 * least:.2g} | {min(rows, size)} | {memory(device)} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
