"""Random allocation in figures, with the numbers beside them as CSV.

Draws the three figures of Feldman & Shenfeld 2025 (arXiv 2502.08202) with certified bounds, by
`jaxdp.plot`, and adds the numerical bound of random allocation, which the paper does not have:

* epsilon against sigma (delta = 1e-10, t = 1e6);
* epsilon against the number of times the scheme is run (sigma = 1, delta = 1e-8, t = 1e4);
* delta against the number of steps (sigma = 0.3, epsilon = 10).

The full figures are for the worse direction; --quick has fewer points, of the remove direction.

Run: python examples/random_allocation_figures.py [--quick] [--output DIRECTORY]
(needs matplotlib: pip install "jaxdp-accounting[plot]")
"""

import argparse
import csv
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

import jaxdp
from jaxdp import plot


def poisson(sigma: Any, steps: Any, count: Any = 1) -> jaxdp.Mechanism:
    """`count` times t steps at rate 1/t."""
    step = jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 1.0 / np.asarray(steps))
    return jaxdp.Repeated(step, np.asarray(steps) * np.asarray(count))


def save(
    output: pathlib.Path,
    name: str,
    x: np.ndarray,
    curves: Mapping[str, Any],
    labels: Sequence[str],
    title: str,
) -> None:
    """Write name.png and name.csv; where a bound is vacuous, its line ends."""
    values = {k: np.broadcast_to(np.asarray(v, float), x.shape) for k, v in curves.items()}
    axis = plot.lines(x, values, xlabel=labels[0], ylabel=labels[1], log=True)
    axis.set_title(title)
    axis.figure.savefig(output / f"{name}.png", dpi=110, bbox_inches="tight")
    plt.close(axis.figure)
    with (output / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow((labels[0], *values))
        writer.writerows(zip(x, *values.values(), strict=True))
    print(f"wrote {output / name}.png and .csv")


def figure_sigma(output: pathlib.Path, quick: bool, direction: Any) -> None:
    """Epsilon against sigma."""
    steps, delta = 1_000_000, 1e-10
    sigma = np.geomspace(0.5, 5.0, 4 if quick else 24)
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)

    def epsilon(m, method=None):
        return jaxdp.epsilon(m, delta, direction=direction, method=method)

    curves = {
        "local": epsilon(jaxdp.Gaussian(sigma)),
        "shuffle": epsilon(jaxdp.Shuffled(jaxdp.Gaussian(sigma), steps)),
        "posterior sampling": epsilon(run, jaxdp.PosteriorSampling()),
        "decomposition": epsilon(run, jaxdp.Decomposition(1.0 / steps)),
        "allocation (Rényi)": epsilon(run, jaxdp.Renyi()),
        "Poisson": epsilon(poisson(sigma, steps), jaxdp.Numerical()),
        "allocation (numerical)": epsilon(run),
    }
    title = "Gaussian noise, t = 10⁶, δ = 10⁻¹⁰"
    save(output, "allocation_sigma", sigma, curves, ("σ", "ε"), title)


def figure_count(output: pathlib.Path, quick: bool, direction: Any) -> None:
    """Epsilon against the number of epochs: Rényi bounds lose less the more there are."""
    steps, delta = 10_000, 1e-8
    count = np.unique(np.round(np.geomspace(1.0, 1000.0, 4 if quick else 16)))
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), steps, num_epochs=count)

    def epsilon(m, method):
        return jaxdp.epsilon(m, delta, direction=direction, method=method)

    sampled = poisson(1.0, steps, count)
    epoch = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), steps)

    def decomposed(d):  # (a pair is sharp in the direction that it is made for, its "remove")
        pair = jaxdp.decomposed(epoch, delta=delta, direction=d)
        return jaxdp.epsilon(jaxdp.Repeated(pair, count), delta, direction="remove")

    directions = ("remove", "add") if direction == "both" else (direction,)
    curves = {
        "Poisson (Rényi)": epsilon(sampled, jaxdp.Renyi()),
        "allocation (Rényi)": epsilon(run, jaxdp.Renyi()),
        "decomposition": np.max([decomposed(d) for d in directions], axis=0),
        "Poisson": epsilon(sampled, jaxdp.Numerical()),
        "allocation (numerical)": epsilon(run, jaxdp.Numerical(grid_size=65536)),
    }
    title = "Gaussian noise, σ = 1, t = 10⁴, δ = 10⁻⁸"
    save(output, "allocation_count", count, curves, ("number of runs", "ε"), title)


def figure_steps(output: pathlib.Path, quick: bool, direction: Any) -> None:
    """Delta against t, at a large epsilon."""
    sigma, epsilon = 0.3, 10.0
    steps = np.round(np.geomspace(10.0, 10_000.0, 5 if quick else 19))
    run = jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps)

    def delta(m, method):
        return jaxdp.delta(m, epsilon, direction=direction, method=method)

    curves = {
        "Poisson (Rényi)": delta(poisson(sigma, steps), jaxdp.Renyi()),
        "decomposition": delta(run, jaxdp.Decomposition()),
        "allocation (Rényi)": delta(run, jaxdp.Renyi()),
        "Poisson": delta(poisson(sigma, steps), jaxdp.Numerical()),
        "allocation (numerical)": delta(run, jaxdp.Numerical()),
    }
    title = "Gaussian noise, σ = 0.3, ε = 10"
    save(output, "allocation_steps", steps, curves, ("number of steps t", "δ"), title)


FIGURES = {"sigma": figure_sigma, "count": figure_count, "steps": figure_steps}


def main() -> None:
    """Draw every figure, or those asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few points, one direction")
    parser.add_argument("--only", choices=tuple(FIGURES), action="append")
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("figures"))
    arguments = parser.parse_args()
    arguments.output.mkdir(parents=True, exist_ok=True)
    jax.config.update("jax_enable_x64", True)
    direction = "remove" if arguments.quick else "both"
    for name in arguments.only or FIGURES:
        FIGURES[name](arguments.output, arguments.quick, direction)


if __name__ == "__main__":
    main()
