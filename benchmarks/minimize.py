"""Which optax optimiser finds the optimal Ornstein-Uhlenbeck parameters: loss against steps.

    python -m benchmarks.minimize

The truth is known: the optimally post-processed Gaussian error (Balle et al. 2019, Theorem 8).
Prints, per optimiser, the relative excess of the loss after at most 200 steps and the warm time.
"""

import json
import time

import jax
import optax

import calibrate
import jaxdp

OPTIMISERS = {
    "lbfgs": optax.lbfgs(),
    "adam 0.03": optax.adam(0.03),
    "adam 0.1": optax.adam(0.1),
    "adamw 0.1": optax.adamw(0.1),
    "sgd 0.01, momentum 0.9": optax.sgd(0.01, 0.9),
    "rmsprop 0.03": optax.rmsprop(0.03),
}
SETTINGS = [(1.0, 1.0, 10.0, 1.0), (2.0, 1.0, 100.0, 0.5), (1.0, 0.1, 1000.0, 4.0)]


def build(params, norm, sensitivity, dimension):
    return jaxdp.OrnsteinUhlenbeck(params["theta"], params["rho"], 1.0, sensitivity)


def loss(params, norm, sensitivity, dimension):
    return build(params, norm, sensitivity, dimension).mean_squared_error(norm, dimension)


def main() -> None:
    rows = {}
    with jax.enable_x64(True):
        for name, optimizer in OPTIMISERS.items():
            excess = []
            for norm, sensitivity, dimension, epsilon in SETTINGS:
                problem = {
                    "epsilon": epsilon,
                    "delta": 1e-6,
                    "init": {"theta": 1.0, "rho": 1.0},
                    "args": (norm, sensitivity, dimension),
                    "optimizer": optimizer,
                }
                best = calibrate.minimize(loss, build, **problem)
                start = time.perf_counter()
                jax.block_until_ready(calibrate.minimize(loss, build, **problem).objective)
                seconds = time.perf_counter() - start
                release = build(best.value, norm, sensitivity, dimension)
                truth = release.postprocessed_gaussian_error(norm, dimension)
                excess.append(float(best.objective / truth - 1))
            rows[name] = {"relative_excess": excess, "last_warm_s": round(seconds, 4)}
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
