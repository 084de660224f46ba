"""Distributed and repeated noise in figures, with the numbers beside them as CSV.

Draws the figures of two public notes on distributed and on repeated noise addition, and answers
the questions they leave open:

* how tight the bound n D_alpha(P + 1/n || P) is for n Laplace variables;
* how close generalised discrete Laplace noise comes to the Gaussian as beta grows, and to Skellam
  noise as a grows;
* whether the difference of two Gamma variables is a pure-DP mechanism.

Run: python examples/distributed_noise_figures.py [--quick] [--epsilon E ...] [--output DIRECTORY]
(needs matplotlib: pip install "jaxdp-accounting[plot]")
"""

import argparse
import csv
import pathlib
from collections.abc import Iterable, Sequence

import jax
import matplotlib as mpl
import numpy as np

mpl.use("Agg")
from matplotlib import pyplot as plt

import jaxdp
from jaxdp import plot

STYLE = {
    "figure.figsize": (7.0, 4.4),
    "figure.dpi": 110,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.titlesize": 11,
}


class Output:
    """A directory that takes pairs of figures and tables."""

    def __init__(self, directory: pathlib.Path):
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def save(self, name: str, figure, header: Sequence[str], rows: Iterable[Sequence]) -> None:
        """Write name.png and name.csv."""
        if figure.get_layout_engine() is None:
            figure.tight_layout()
        figure.savefig(self.directory / f"{name}.png", bbox_inches="tight")
        plt.close(figure)
        with (self.directory / f"{name}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(header)
            writer.writerows(rows)
        print(f"wrote {self.directory / name}.png and .csv")


def gdl_pmf(beta: float, a: float, k: np.ndarray) -> np.ndarray:
    """The law of GDL(beta, a), by convolving two negative binomial laws."""
    reach = int(60 / a)
    j = np.arange(reach)
    ratios = (beta + j[:-1]) / (j[:-1] + 1) * np.exp(-a)
    one = (1 - np.exp(-a)) ** beta * np.concatenate([[1.0], np.cumprod(ratios)])
    both = np.correlate(one, one, mode="full")
    return both[reach - 1 + k]


def figure_pmf(output: Output, quick: bool) -> None:
    """GDL(beta, a) beside the discrete Laplace law that scales epsilon to epsilon/beta."""
    a, k = 0.25, np.arange(-20, 21)
    figure, axes = plt.subplots(1, 2, figsize=(10.0, 4.2), sharey=True)
    rows = []
    for axis, beta in zip(axes, (0.5, 0.25), strict=True):
        left = gdl_pmf(beta, a, k)
        scaled = np.tanh(0.5 * a / beta) * np.exp(-a / beta * np.abs(k))
        whole = np.tanh(0.5 * a) * np.exp(-a * np.abs(k))
        axis.plot(k, whole, color="0.6", lw=1.2, label=f"all parties: DLap({a})")
        axis.plot(k, scaled, "s-", ms=3, lw=0.8, label=f"DLap(a/β) = DLap({a / beta:g})")
        axis.plot(k, left, "o-", ms=3, lw=0.8, label=f"a fraction β: GDL({beta}, {a})")
        axis.set(yscale="log", ylim=(1e-6, 1.0), xlabel="noise value", title=f"β = {beta}")
        axis.legend(fontsize=8, loc="lower center")
        rows += [(beta, *row) for row in zip(k, left, scaled, whole, strict=True)]
    axes[0].set_ylabel("probability")
    header = ("beta", "k", "gdl", "discrete_laplace_a_over_beta", "discrete_laplace_a")
    output.save("gdl_pmf", figure, header, rows)


def figure_epsilon(output: Output, quick: bool, epsilons: Sequence[float] = (1.0,)) -> None:
    """The pure-DP epsilon of GDL noise against the honest fraction, a = epsilon0/Delta.

    All parties together give epsilon0; a picture for each that is asked for.
    """
    beta = np.linspace(0.05, 1.0, 20 if quick else 96)
    for whole in epsilons:
        curves, rows = {}, []
        for shift in (1, 2, 5, 20):
            m = jaxdp.GeneralizedDiscreteLaplace(beta, whole / shift, shift)
            epsilon = np.asarray(jaxdp.epsilon(m, 0.0))
            floor = np.asarray(jaxdp.gdl_epsilon_floor(beta, shift))
            curves[f"Δ = {shift}"] = epsilon
            columns = zip(beta, epsilon, floor, whole / beta, strict=True)
            rows += [(whole, shift, *row) for row in columns]
        curves["ε₀/β (discrete Laplace)"] = whole / beta
        axis = plot.lines(beta, curves, xlabel="honest fraction β", ylabel="pure-DP ε")
        few = beta < 0.5  # below, more noise leaves a floor
        for shift, line in zip((1, 2, 5, 20), list(axis.get_lines()), strict=False):
            floor = np.asarray(jaxdp.gdl_epsilon_floor(beta[few], shift))
            axis.plot(beta[few], floor, ":", color=line.get_color(), lw=1)
        axis.set(ylim=(0, 12 * whole), xlim=(0, 1.0))
        axis.set_title(f"GDL(β, ε₀/Δ) at ε₀ = {whole:g}: exact ε; dotted, its floor as a → 0")
        header = ("epsilon0", "sensitivity", "beta", "epsilon", "floor", "epsilon0_over_beta")
        name = "gdl_epsilon" if whole == 1.0 else f"gdl_epsilon_{whole:g}"
        output.save(name, axis.figure, header, rows)


def figure_negative_binomial(output: Output, quick: bool) -> None:
    """The mean of negative binomial noise against log 1/delta: never below it."""
    r = np.geomspace(1.0, 300.0, 12 if quick else 40)
    figure, axis = plt.subplots()
    rows = []
    for epsilon in (0.5, 1.0, 2.0):
        p = -np.expm1(-0.2 * epsilon) * np.ones_like(r)
        log_delta = np.asarray(
            jaxdp.log_delta(jaxdp.NegativeBinomial(r, p), epsilon, direction="add")
        )
        mean = r * (1 - p) / p
        axis.plot(-log_delta, mean, label=f"ε = {epsilon}, p = {p[0]:.3f}")
        rows += [(epsilon, *row) for row in zip(r, p, mean, -log_delta, strict=True)]
    ends = np.array([0.5, 120.0])
    axis.plot(ends, ends, "k--", lw=1, label="mean = log 1/δ")
    axis.set(xscale="log", yscale="log", xlabel="log 1/δ", ylabel="mean of the noise")
    axis.set(xlim=tuple(ends), ylim=(0.5, 5e3))
    axis.set_title("Non-negative noise: the mean stays above log 1/δ")
    axis.legend()
    header = ("epsilon", "r", "p", "mean", "log_1_over_delta")
    output.save("negative_binomial_mean", figure, header, rows)


def figure_repeated(output: Output, quick: bool) -> None:
    """Bound over exact divergence for n Laplace variables."""
    counts = np.array([2, 5, 20, 100])
    alpha = np.geomspace(1.5, 256.0, 10 if quick else 60)
    alpha = np.unique(np.concatenate([alpha, [1.5, 2.0, 4.0, 16.0, 64.0, 256.0]]))
    bound = jaxdp.repeated_noise_renyi(jaxdp.Laplace(1.0), alpha, count=counts[:, None])
    exact = jaxdp.renyi(jaxdp.LaplaceSum(counts[:, None], 1.0), alpha)
    ratio = np.asarray(bound) / np.asarray(exact)
    figure, axis = plt.subplots()
    for n, row in zip(counts, ratio, strict=True):
        axis.plot(alpha, row, label=f"n = {n}")
    axis.axhline(2.0, color="k", ls="--", lw=1)
    axis.set(xscale="log", xlabel="order α", ylabel="bound / exact", ylim=(1.0, 2.2))
    axis.set_title("n·D(P + 1/n ‖ P) against the exact n-fold Laplace divergence")
    axis.legend()
    rows = [
        (n, order, float(b), float(e), float(b / e))
        for n, bs, es in zip(counts, np.asarray(bound), np.asarray(exact), strict=True)
        for order, b, e in zip(alpha, bs, es, strict=True)
    ]
    output.save("repeated_laplace", figure, ("n", "alpha", "bound", "exact", "ratio"), rows)


def figure_gaussian(output: Output, quick: bool) -> None:
    """GDL noise of a large beta against the Gaussian of its variance: delta and Rényi."""
    sigma, shift = 8.0, 4.0
    epsilon = np.linspace(0.0, 4.0, 9 if quick else 201)
    alpha = np.geomspace(1.2, 400.0, 9 if quick else 40)
    gaussian = jaxdp.Gaussian(sigma, shift)
    curves = [("Gaussian", np.inf, gaussian)]
    for beta in (1.0, 4.0, 16.0, 64.0):
        # variance 2 beta q/(1 - q)^2 = beta/(2 sinh^2(a/2)) = sigma^2
        a = 2 * np.arcsinh(np.sqrt(0.5 * beta) / sigma)
        name = f"GDL, β = {beta:g}: ε ≤ {a * shift:.2f}"
        curves.append((name, beta, jaxdp.GeneralizedDiscreteLaplace(beta, a, shift)))
    figure, axes = plt.subplots(1, 2, figsize=(11.0, 4.4))
    rows = []
    for name, beta, m in curves:
        style = {"color": "k", "ls": "--"} if m is gaussian else {}
        delta = np.exp(np.asarray(jaxdp.log_delta(m, epsilon)))
        renyi = np.asarray(jaxdp.renyi(m, alpha))
        shown = np.where(delta > 0, delta, np.nan)
        axes[0].plot(epsilon, shown, label=name, **style)
        axes[1].plot(alpha, renyi, label=name, **style)
        rows += [("delta", beta, e, d) for e, d in zip(epsilon, delta, strict=True)]
        rows += [("renyi", beta, o, v) for o, v in zip(alpha, renyi, strict=True)]
    axes[0].set(yscale="log", ylim=(1e-18, 1), xlabel="ε", ylabel="δ(ε)")
    axes[1].set(xscale="log", yscale="log", xlabel="order α", ylabel="Rényi divergence")
    axes[0].set_title(f"equal standard deviation {sigma:g}, Δ = {shift:g}")
    axes[1].set_title("bounded by the pure-DP ε, unlike the Gaussian's")
    axes[0].legend(fontsize=8, loc="upper right")
    output.save("gdl_gaussian", figure, ("quantity", "beta", "argument", "value"), rows)


def figure_skellam(output: Output, quick: bool) -> None:
    """How fast GDL of fixed variance approaches Skellam noise as a grows."""
    variance, epsilon = 20.0, 0.5
    a = np.linspace(0.5, 12.0, 8 if quick else 47)
    beta = 2 * variance * np.sinh(0.5 * a) ** 2
    gdl = np.asarray(jaxdp.hockey_stick(jaxdp.GeneralizedDiscreteLaplace(beta, a), epsilon))
    skellam = float(jaxdp.hockey_stick(jaxdp.Skellam(variance), epsilon))
    k = np.arange(-60, 61)
    exact = np.asarray(pmf(jaxdp.Skellam(variance), k))
    distance = [
        0.5 * np.abs(np.asarray(pmf(jaxdp.GeneralizedDiscreteLaplace(b, x), k)) - exact).sum()
        for b, x in zip(beta, a, strict=True)
    ]
    figure, axis = plt.subplots()
    axis.plot(a, distance, label="total variation distance of the noise")
    axis.plot(a, np.abs(gdl - skellam) / skellam, label=f"relative difference of δ({epsilon})")
    axis.plot(a, np.exp(-a), "k:", label="e⁻ᵃ")
    axis.set(yscale="log", xlabel="a", ylim=(1e-7, 3))
    axis.set_title(f"GDL of variance {variance:g} against Skellam noise as a grows")
    axis.legend()
    rows = zip(a, beta, distance, gdl, [skellam] * a.size, strict=True)
    header = ("a", "beta", "total_variation", "gdl_delta", "skellam_delta")
    output.save("gdl_skellam", figure, header, rows)


def pmf(m, k: np.ndarray) -> np.ndarray:
    """Probabilities of integer noise from its characteristic function."""
    if isinstance(m, jaxdp.Skellam):
        theta = np.pi * (np.arange(4096) + 0.5) / 4096
        transform = np.exp(-m.variance * (1 - np.cos(theta)))
    else:
        q, theta = np.exp(-m.a), np.pi * (np.arange(4096) + 0.5) / 4096
        transform = np.exp(-m.beta * np.log1p(2 * q * (1 - np.cos(theta)) / (1 - q) ** 2))
    return np.array([np.mean(transform * np.cos(j * theta)) for j in k])


def figure_gamma(output: Output, quick: bool) -> None:
    """The pure-DP epsilon of Gamma(beta) - Gamma(beta) noise."""
    beta = np.linspace(0.51, 1.5, 21 if quick else 100)
    figure, axis = plt.subplots()
    rows = []
    for x in (0.1, 0.5, 1.0, 2.0):
        epsilon = np.asarray(jaxdp.epsilon(jaxdp.GammaDifference(beta, 1.0, x), 0.0))
        axis.plot(beta, epsilon, label=f"Δ/scale = {x:g}")
        rows += [(x, *row) for row in zip(beta, epsilon, strict=True)]
    axis.axvline(0.5, color="0.5", lw=1, ls="--")
    axis.text(0.49, 0.12, "no pure DP for β ≤ 1/2", rotation=90, fontsize=8, ha="right")
    axis.set(xlabel="β", ylabel="pure-DP ε", yscale="log", xlim=(0.44, 1.5))
    axis.set_title("Gamma(β) − Gamma(β) noise: ε = Δ/scale from β = 1 on, more below")
    axis.legend()
    output.save("gamma_difference_epsilon", figure, ("x", "beta", "epsilon"), rows)


FIGURES = (
    figure_pmf,
    figure_epsilon,
    figure_negative_binomial,
    figure_repeated,
    figure_gaussian,
    figure_skellam,
    figure_gamma,
)


def main() -> None:
    """Draw every figure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer points")
    parser.add_argument(
        "--epsilon", type=float, nargs="+", default=[1.0], help="of all parties, for gdl_epsilon"
    )
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("figures"))
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    output = Output(arguments.output)
    with plt.rc_context(STYLE):
        for draw in FIGURES:
            asked = {"epsilons": arguments.epsilon} if draw is figure_epsilon else {}
            draw(output, arguments.quick, **asked)


if __name__ == "__main__":
    main()
