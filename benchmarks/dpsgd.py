"""DP-SGD accounting and calibration beside dp_accounting in the same run.

    python -m benchmarks.dpsgd [--targets 1000]      (needs the extra `peers`)

Prints, as JSON: the first call (import and compilation included) and the peak memory of the
calibrations, each in a process of its own, one warm epsilon, epsilons in a batch, sigma
calibrations in a batch, the peer's time for each, and the ratios.
"""

import argparse
import json
import platform
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant

import calibrate
import jaxdp

RATE, STEPS, DELTA = 0.01, 1000, 1e-5
TRUTH = {1.0: 1.41462, 3.0: 0.81358, 8.0: 0.58626}  # sigma at RATE, STEPS, DELTA
FIRST_CALL = """
import time
start = time.perf_counter()
import jaxdp
run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000)
float(jaxdp.epsilon(run, 1e-5, method=jaxdp.Numerical()))
print(time.perf_counter() - start)
"""


PEAK = """
import resource, numpy as np
import calibrate, jaxdp
def run(sigma):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.01), 1000)
calibrate.solve(run, epsilon=np.resize([1.0, 3.0, 8.0], TARGETS), delta=1e-5)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def alone(script: str) -> float:
    """What a script prints last, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return float(done.stdout.split()[-1])


def dp_sgd(sigma, rate=RATE, steps=STEPS):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), rate), steps)


def peer_epsilon(sigma: float, interval: float) -> float:
    """dp_accounting's epsilon; `interval` is its discretisation."""
    accountant = PLDAccountant(value_discretization_interval=interval)
    step = dp_event.PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(sigma))
    return accountant.compose(dp_event.SelfComposedDpEvent(step, STEPS)).get_epsilon(DELTA)


def peer_sigma(epsilon: float) -> float:
    """The sigma at which dp_accounting's epsilon is the target, by its own root finder."""
    import dp_accounting

    return dp_accounting.calibrate_dp_mechanism(
        lambda: PLDAccountant(value_discretization_interval=1e-4),
        lambda sigma: dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(RATE, dp_event.GaussianDpEvent(sigma)), STEPS
        ),
        epsilon,
        DELTA,
        bracket_interval=dp_accounting.ExplicitBracketInterval(0.4, 4.0),
        tol=1e-4,
    )


def seconds(function, runs: int = 1) -> float:
    """Median over runs."""
    times = []
    for _ in range(runs):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return float(np.median(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--targets", type=int, default=1000)
    options = parser.parse_args()
    first = alone(FIRST_CALL)
    memory = alone(PEAK.replace("TARGETS", str(options.targets)))
    with jax.enable_x64(True):
        one = jax.jit(lambda s: jaxdp.epsilon(dp_sgd(s), DELTA, method=jaxdp.Numerical()))
        sigma = jnp.asarray(1.0)
        jax.block_until_ready(one(sigma))
        warm = seconds(lambda: jax.block_until_ready(one(sigma)), 15)

        rng = np.random.default_rng(0)
        sigmas = jnp.asarray(rng.uniform(0.6, 2.0, options.targets))
        jax.block_until_ready(one(sigmas))
        batch = seconds(lambda: jax.block_until_ready(one(sigmas))) / options.targets

        targets = np.resize(list(TRUTH), options.targets)
        solve = jax.jit(
            lambda e: calibrate.solve(dp_sgd, epsilon=e, delta=DELTA, method=jaxdp.Numerical())
        )
        e = jnp.asarray(targets)
        start = time.perf_counter()
        solution = jax.block_until_ready(solve(e))
        solve_first = time.perf_counter() - start
        solve_warm = seconds(lambda: jax.block_until_ready(solve(e)))
        reached = np.asarray(jaxdp.delta(dp_sgd(solution.value), e, method=jaxdp.Numerical()))
    exact = np.array([TRUTH[t] for t in targets])
    excess = np.asarray(solution.value) / exact - 1

    peer_one = {i: seconds(lambda i=i: peer_epsilon(1.0, i)) for i in (1e-4, 1e-5)}
    peer_each = {t: seconds(lambda t=t: peer_sigma(t)) for t in TRUTH}
    peer_calibration = float(np.mean(list(peer_each.values())))
    per_target = solve_warm / options.targets
    print(
        json.dumps(
            {
                "device": f"{jax.devices()[0].device_kind}, {platform.machine()}",
                "jax": jax.__version__,
                "first_epsilon_import_and_compile_s": round(first, 2),
                "warm_epsilon_ms": round(1e3 * warm, 2),
                "batch_epsilon_ms": round(1e3 * batch, 2),
                "dp_accounting_epsilon_s": {k: round(v, 2) for k, v in peer_one.items()},
                "ratio_one": round(peer_one[1e-4] / warm),
                "ratio_batch": round(peer_one[1e-4] / batch),
                "calibrations": options.targets,
                "calibration_compile_s": round(solve_first - solve_warm, 2),
                "calibration_ms": round(1e3 * per_target, 2),
                "dp_accounting_calibration_s": {k: round(v, 2) for k, v in peer_each.items()},
                "ratio_calibration": round(peer_calibration / per_target),
                "unsafe": int((reached > DELTA).sum()),
                "sigma_over_truth": [float(excess.min()), float(excess.max())],
                "calibrations_peak_memory_GB": round(memory / 1e9, 2),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
