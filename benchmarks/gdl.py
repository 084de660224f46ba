"""10,000 pure-DP calibrations of generalised discrete Laplace noise in one vectorised call.

Run: python benchmarks/gdl.py
"""

import time

import jax
import numpy as np

import calibrate
import jaxdp


def main() -> None:
    """Time the call, and check every result from the safe side."""
    jax.config.update("jax_enable_x64", True)
    beta, sensitivity, above = np.meshgrid(
        np.linspace(0.05, 1.2, 50), np.arange(1.0, 21.0), np.geomspace(0.7, 5.0, 10), indexing="ij"
    )
    floor = np.asarray(jaxdp.gdl_epsilon_floor(beta, sensitivity))
    target = floor + above

    def run():
        return calibrate.gdl_decay(target, beta, sensitivity).block_until_ready()

    start = time.perf_counter()
    a = run()
    compiled = time.perf_counter() - start
    times = []
    for _ in range(3):
        start = time.perf_counter()
        a = run()
        times.append(time.perf_counter() - start)
    some = np.random.default_rng(0).choice(a.size, 32, replace=False)
    noise = jaxdp.GeneralizedDiscreteLaplace(
        beta.ravel()[some], a.ravel()[some], sensitivity.ravel()[some]
    )
    reached, wanted = np.asarray(jaxdp.epsilon(noise, 0.0)), target.ravel()[some]
    print(f"{a.size} calibrations: {min(times):.2f} s warm, {compiled:.2f} s with compilation")
    print(
        f"epsilon reached / target - 1: {np.min(reached / wanted) - 1.0:.1e} to "
        f"{np.max(reached / wanted) - 1.0:.1e}, nan: {np.sum(np.isnan(a))}"
    )


if __name__ == "__main__":
    main()
