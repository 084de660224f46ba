"""A million noise calibrations, on every device of this process, in bounded memory.

    python examples/batch_calibration.py [--quick] [--targets N]

To see several devices on one CPU: XLA_FLAGS=--xla_force_host_platform_device_count=4.
"""

import argparse
import resource
import time

import jax
import numpy as np

import calibrate
import jaxdp


def peak_memory() -> float:
    """Peak resident memory of this process, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0


def main() -> None:
    """Calibrate, time, check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10,000 targets")
    parser.add_argument("--targets", type=int, default=1_000_000)
    options = parser.parse_args()
    count = 10_000 if options.quick else options.targets
    rng = np.random.default_rng(0)
    epsilon, delta = 10 ** rng.uniform(-1, 1, count), 10 ** rng.uniform(-12, -3, count)
    print(f"{count} targets on {jax.local_device_count()} {jax.default_backend()} device(s)")
    with jax.enable_x64(True):
        for label, rows in (("first chunk, with compilation", 16384), ("all", count)):
            before, start = peak_memory(), time.perf_counter()
            solution = calibrate.batch(
                jaxdp.Gaussian,
                epsilon=epsilon[:rows],
                delta=delta[:rows],
                chunk=16384,
                progress=label == "all",
            )
            seconds = time.perf_counter() - start
            print(
                f"{label}: {seconds:.2f} s, {1e6 * seconds / len(solution.value):.2f} us a target,"
                f" peak memory +{peak_memory() - before:.0f} MiB"
            )
        reached = np.asarray(jaxdp.delta(jaxdp.Gaussian(solution.value), epsilon))
    print(f"on the unsafe side: {int((reached > delta).sum())} of {count}")
    print(f"solved: {int((solution.status == calibrate.Status.SOLVED).sum())}")


if __name__ == "__main__":
    main()
