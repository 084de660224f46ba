"""The engine against the truth at scale: composed Gaussians, which have a closed form.

    python -m benchmarks.validate [--cases 10000] [--seed 0]

Random (sigma, n, epsilon) with delta from 0.5 down to 1e-100; every composition is done
numerically, n-fold. Prints, as JSON: the violations (a bound on the wrong side by more than the
closed form's own 1e-12), the relative widths of the brackets of epsilon, and the time.
"""

import argparse
import json
import platform
import time

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from jaxdp import _law, _numerical

SIZE = _numerical._TWO_SIDED  # by default


def settings(cases: int, seed: int) -> tuple[np.ndarray, ...]:
    """(mu of one step, n, epsilon, log delta), delta between 1e-100 and 0.5."""
    rng = np.random.default_rng(seed)
    mu, n, epsilon = [], [], []
    while len(mu) < cases:
        total = 10 ** rng.uniform(-1.5, 1.2)
        e = total * rng.uniform(-0.5, 21.0) + 0.5 * total**2
        if e > 0:
            n.append(np.round(10 ** rng.uniform(0.0, 5.0)))
            mu.append(total / np.sqrt(n[-1]))
            epsilon.append(e)
    mu, n, epsilon = map(np.array, (mu, n, epsilon))
    exact = np.asarray(jaxdp.log_delta(jaxdp.Gaussian(1.0 / (mu * np.sqrt(n))), epsilon))
    kept = (exact > np.log(1e-100)) & (exact < np.log(0.5))
    return mu[kept], n[kept], epsilon[kept], exact[kept]


def main() -> None:
    """Draw, bound, count."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    drawn = settings(2 * args.cases, args.seed)
    mu, n, epsilon, exact = (x[: args.cases] for x in drawn)

    def bounds(row):
        mu, n, epsilon, log_delta = row
        terms = (_law.Term(jaxdp.Gaussian(1.0 / mu)._log_masses, n),)
        at = _law.log_delta_bounds(terms, epsilon, size=SIZE)
        return *at, *_law.epsilon_bounds(terms, log_delta=log_delta, size=SIZE)

    rows = tuple(map(jnp.asarray, (mu, n, epsilon, exact)))
    start = time.perf_counter()
    results = jax.jit(lambda rows: jax.lax.map(bounds, rows, batch_size=8))(rows)
    low, high, epsilon_low, epsilon_high = map(np.asarray, results)
    seconds = time.perf_counter() - start
    room = 1e-12 * np.abs(exact)
    violations = (low > exact + room) | (high < exact - room)
    violations |= (epsilon_low > epsilon * (1 + 1e-12)) | (epsilon_high < epsilon * (1 - 1e-12))
    width = (epsilon_high - epsilon_low) / epsilon
    ordinary = exact >= np.log(1e-30)
    worst = np.argmax(np.where(ordinary, width, 0.0))
    report = {
        "cases": int(mu.size),
        "violations": int(violations.sum()),
        "delta_smallest": float(np.exp(exact.min())),
        "width_where_delta_ge_1e-30": {
            "median": float(np.median(width[ordinary])),
            "99%": float(np.quantile(width[ordinary], 0.99)),
            "largest": float(width[worst]),
            "share_above_1e-3": float(np.mean(width[ordinary] > 1e-3)),
            "largest_at": {
                "mu": float(mu[worst]),
                "n": float(n[worst]),
                "epsilon": float(epsilon[worst]),
                "log_delta": float(exact[worst]),
            },
        },
        "width_median_below_1e-30": float(np.median(width[~ordinary])),
        "seconds": seconds,
        "jax": jax.__version__,
        "machine": f"{platform.machine()}, {jax.default_backend()}",
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
