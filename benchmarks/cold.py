"""First answers: what a fresh process takes, beside dp_accounting in fresh processes of its own.

    python -m benchmarks.cold [--repeat 5] [--only NAME ...]      (needs the extra `peers`)

Prints a table: the medians of wall and CPU seconds, `import` included, without a compilation cache,
with one that an earlier process has filled, and of a second call in the same process with other
numbers. Run it on idle cores; the load is printed with the table.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

PROGRAM = """
import json, resource, time
start = time.perf_counter()

def spent():
    use = resource.getrusage(resource.RUSAGE_SELF)
    return time.perf_counter() - start, use.ru_utime + use.ru_stime

{setup}

def ask(k):
{body}

ask(0)
first = spent()
ask(1)
second = spent()
print(json.dumps([*first, second[0] - first[0], second[1] - first[1]]))
"""

OURS = """
import jax, numpy as np
import jaxdp
def sgd(sigma):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.01), 1000)
def allocation(sigma, *more):
    return jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 100, *more)
"""

PEER = """
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
def sgd(sigma):
    step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(sigma))
    return dp_event.SelfComposedDpEvent(step, 1000)
"""

GRADIENT = """
    def epsilon(p):
        return jaxdp.epsilon(jaxdp.RandomAllocation(jaxdp.Gaussian(p[0], p[1]), 100), p[2])
    jax.block_until_ready(jax.value_and_grad(epsilon)([1.0 + 0.1 * k, 1.0, 1e-5]))"""

SECOND_LAW = """
    step = [jaxdp.Gaussian(1.0), jaxdp.Laplace(2.0)][k]
    float(jaxdp.epsilon(jaxdp.Repeated(jaxdp.PoissonSampled(step, 0.01), 1000), 1e-5))"""

LISTS = """
import numpy as np, jaxdp
rng = np.random.default_rng(0)
scales = np.exp(rng.uniform(0.0, 1.0, 500)) * 500**0.5
rates = np.exp(rng.uniform(np.log(0.005), np.log(0.02), 500))
KINDS = {
    "Gaussian": lambda s, q: jaxdp.Gaussian(s),
    "Laplace": lambda s, q: jaxdp.Laplace(s),
    "DiscreteGaussian": lambda s, q: jaxdp.DiscreteGaussian(s),
    "Skellam": lambda s, q: jaxdp.Skellam(s * s),
    "sampled Gaussian": lambda s, q: jaxdp.PoissonSampled(jaxdp.Gaussian(0.05 * s), q),
    "sampled Laplace": lambda s, q: jaxdp.PoissonSampled(jaxdp.Laplace(0.05 * s), q),
}
def composed(*kinds):
    each = enumerate(zip(scales, rates))
    return jaxdp.Composed([KINDS[kinds[i * len(kinds) // 500]](s, q) for i, (s, q) in each])
"""
_LISTED = [
    *((k,) for k in ("Gaussian", "Laplace", "DiscreteGaussian", "Skellam")),
    ("sampled Gaussian",),
    ("sampled Laplace",),
    ("Gaussian", "Laplace"),
    ("Laplace", "DiscreteGaussian"),
]

LEAST = """
import jax.numpy as jnp, numpy as np
import calibrate, jaxdp
price = np.exp(np.random.default_rng(1).uniform(0.0, np.log(100.0), 500))
def least(kind, k):
    best = calibrate.minimize(
        lambda s: jnp.sum(price * s**2), lambda s: jaxdp.Schedule(kind(s)),
        epsilon=1.0 + 0.5 * k, delta=1e-5, init=jnp.ones(500), vectors=True)
    assert int(best.status) == 0
"""
_LEAST_KINDS = {
    "discrete Gaussians": "jaxdp.DiscreteGaussian",
    "Laplace": "jaxdp.Laplace",
    "sampled Gaussians": "lambda s: jaxdp.PoissonSampled(jaxdp.Gaussian(s), 0.01)",
}

TASKS = {
    "import jax": ("import jax", "    pass"),
    "import jaxdp": ("import jaxdp", "    pass"),
    "DP-SGD epsilon": (OURS, "    float(jaxdp.epsilon(sgd(1.0 + 0.1 * k), 1e-5))"),
    "DP-SGD epsilon, dp_accounting": (
        PEER,
        "    PLDAccountant().compose(sgd(1.0 + 0.1 * k)).get_epsilon(1e-5)",
    ),
    "DP-SGD epsilon, then another step law": (OURS, SECOND_LAW),
    "DP-SGD bounds": (OURS, "    [float(x) for x in jaxdp.epsilon_bounds(sgd(1 + 0.1 * k), 1e-5)]"),
    "1000 DP-SGD epsilons": (
        OURS,
        "    np.asarray(jaxdp.epsilon(sgd(np.linspace(0.8, 2.0, 1000) + 0.1 * k), 1e-5))",
    ),
    "allocation epsilon": (OURS, "    float(jaxdp.epsilon(allocation(1.0 + 0.1 * k), 1e-5))"),
    "allocation epsilon, 10 of 100": (
        OURS,
        "    float(jaxdp.epsilon(allocation(1.0 + 0.1 * k, 10), 1e-5))",
    ),
    "allocation epsilon and gradient": (OURS, GRADIENT),
    "DP-SGD sigma": (
        OURS + "import calibrate",
        "    float(calibrate.solve(sgd, epsilon=1.0 + 0.1 * k, delta=1e-5).value)",
    ),
    "allocation sigma": (
        OURS + "import calibrate",
        "    float(calibrate.solve(allocation, epsilon=1.0 + 0.1 * k, delta=1e-5).value)",
    ),
    "jaxdp audit": (
        "import sys; from jaxdp.cli._app import app",
        "    app(['--no-cache', 'audit', 'examples/published_runs.csv'], standalone_mode=False)",
    ),
    **{
        f"a list of 500: {' and '.join(kinds)}": (
            LISTS,
            f"    float(jaxdp.epsilon(composed(*{kinds!r}), 1e-5 * (1 + k)))",
        )
        for kinds in _LISTED
    },
    **{
        f"least loss of 500 {name}": (LEAST, f"    least({kind}, k)")
        for name, kind in _LEAST_KINDS.items()
    },
}


def run(name: str, cache: str | None) -> list[float]:
    """Wall and CPU seconds of the first call, import included, and of the second."""
    setup, body = TASKS[name]
    settings = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    # (Nor is bytecode to be compiled again: an installed package has it.)
    others = ("XLA_FLAGS", "PYTHONDONTWRITEBYTECODE", "JAXDP_PROGRAMS")
    environment = {k: v for k, v in os.environ.items() if k not in (*settings, *others)}
    environment.setdefault("PYTHONPYCACHEPREFIX", os.path.join(tempfile.gettempdir(), "cold-pyc"))
    if cache is not None:
        environment |= {settings[0]: cache, settings[1]: "0", "JAXDP_PROGRAMS": cache}
    program = PROGRAM.format(setup=setup, body=body)
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{name}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def medians(name: str, repeat: int, cache: str | None) -> list[float]:
    rows = [run(name, cache) for _ in range(repeat)]
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", nargs="*", choices=TASKS, default=list(TASKS))
    options = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; wall s / CPU s\n")
    print("| first call, import included | no cache | with cache | second call |")
    print("|---|---|---|---|")
    for name in options.only:
        cold = medians(name, options.repeat, None)
        with tempfile.TemporaryDirectory() as cache:
            run(name, cache)
            kept = medians(name, options.repeat, cache)
        cells = [cold[:2], kept[:2], cold[2:]]
        print(f"| {name} | " + " | ".join(f"{w:.3g} / {c:.3g}" for w, c in cells) + " |")


if __name__ == "__main__":
    main()
