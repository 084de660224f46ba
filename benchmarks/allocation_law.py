"""Certified epsilon of random allocation: bracket, first call (compilation) and warm call.

    python -m benchmarks.allocation_law

One line of JSON for each setting and direction: Gaussian noise, sensitivity 1. `truth` is known
independently (a contour integral), where given.
"""

import functools
import json
import time

import jax
import numpy as np

import jaxdp
from jaxdp import _numerical
from jaxdp._law._allocation import allocation_epsilon_bounds

# sigma, t, count (None: one allocation), delta, points, truth (remove, add)
SETTINGS = [
    (1.0, 1e3, None, 1e-6, 16384, (0.171729, 0.149431)),
    (2.0, 1e4, None, 1e-6, 16384, (0.0170629, 0.0170331)),
    (0.5, 1e2, None, 1e-6, 16384, (6.393640, 1.481442)),
    (1.0, 1e6, None, 1e-6, 65536, (0.0036744, 0.0036659)),
    (1.0, 1e2, 10.0, 1e-6, 16384, (None, None)),
]


@functools.cache
def program(direction: str, composed: bool, size: int):
    def bounds(sigma, steps, delta, count):
        (term,) = _numerical.terms_of(jaxdp.Gaussian(sigma))
        return allocation_epsilon_bounds(
            term, steps, delta, count=count if composed else None, direction=direction, size=size
        )

    return jax.jit(bounds)


def main() -> None:
    with jax.enable_x64(True):
        for sigma, steps, count, delta, size, truths in SETTINGS:
            for direction, truth in zip(("remove", "add"), truths, strict=True):
                run = functools.partial(
                    program(direction, count is not None, size), sigma, steps, delta, count or 1.0
                )
                times = []
                for _ in range(12):
                    start = time.perf_counter()
                    low, high = (float(x) for x in jax.block_until_ready(run()))
                    times.append(time.perf_counter() - start)
                line = {
                    "sigma": sigma,
                    "steps": steps,
                    "count": count or 1.0,
                    "delta": delta,
                    "direction": direction,
                    "lower": low,
                    "upper": high,
                    "truth": truth,
                    "width_percent": round(100.0 * (high - low) / high, 4),
                    "first_s": round(times[0], 2),
                    "warm_ms": round(1e3 * float(np.median(times[1:])), 2),
                }
                print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
