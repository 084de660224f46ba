"""Amplification by iteration and by diffusion: figures, CSV files and a private model.

    python examples/iteration_and_diffusion.py --output out/ [--quick]

1. amplification.{csv,png}: privacy against the number of later noisy steps: the printed bound of
   Balle, Barthe, Gaboardi & Geumlek (2019, arXiv 1905.12264, equation 3), the optimal split, and
   the exact law of x -> L x + noise, which the optimal split meets.
2. errors.{csv,png}: worst-case error of the Ornstein-Uhlenbeck mechanism against the Gaussian and
   the optimally shrunk Gaussian with the same (epsilon, delta).
3. records.{csv,png}: a logistic regression trained by noisy projected SGD on real data
   (scikit-learn's bundled breast cancer data), with the privacy of every single record.

Needs matplotlib and scikit-learn: pip install "jaxdp-accounting[plot]" scikit-learn
"""

import argparse
import csv
import pathlib

import jax
import jax.numpy as jnp
import matplotlib
import numpy as np

import calibrate
import jaxdp

matplotlib.use("Agg")

import matplotlib.pyplot as plt

ALPHA = 8.0
DELTA = 1e-5
BLUE, ORANGE, GREEN, GREY = "#2b6cb0", "#dd6b20", "#2f855a", "#4a5568"


def write_csv(path: pathlib.Path, columns: dict[str, np.ndarray]) -> None:
    """One row per entry of the columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(zip(*(np.asarray(c).tolist() for c in columns.values()), strict=True))


def save(figure, path: pathlib.Path) -> None:
    """Write a figure and forget it."""
    figure.savefig(path, dpi=150)
    plt.close(figure)


def style(axis, title: str, x: str, y: str) -> None:
    """Title, labels, a light grid."""
    axis.set_title(title, fontsize=10)
    axis.set_xlabel(x)
    axis.set_ylabel(y)
    axis.grid(True, which="major", alpha=0.3, linewidth=0.6)
    axis.spines[["top", "right"]].set_visible(False)


def amplification(output: pathlib.Path, quick: bool) -> None:
    """Rényi divergence of order 8 against the number of later steps."""
    lengths = (0.9, 1.0, 1.1)
    steps = np.unique(np.round(np.geomspace(1, 100, 12 if quick else 40)))
    length, r = (x.ravel() for x in np.meshgrid(lengths, steps, indexing="ij"))
    m = jaxdp.ConstantNoisyIteration(length, 1.0, r)
    printed = np.asarray(m.printed_bound(ALPHA))
    optimal = np.asarray(jaxdp.renyi(m, ALPHA))
    variance = np.array(
        [np.sum(a ** (2.0 * np.arange(int(n)))) for a, n in zip(length, r, strict=True)]
    )
    exact = 0.5 * ALPHA * length ** (2.0 * r) / variance
    write_csv(
        output / "amplification.csv",
        {"L": length, "steps": r, "printed": printed, "optimal": optimal, "exact_linear": exact},
    )
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.6), layout="constrained", sharey=True)
    for axis, one in zip(axes, lengths, strict=True):
        at = length == one
        axis.loglog(
            r[at], printed[at], color=ORANGE, linewidth=4, alpha=0.6, label="printed, eq. (3)"
        )
        axis.loglog(r[at], optimal[at], color=BLUE, linewidth=2, label="optimal split")
        marks = slice(None, None, max(1, int(at.sum()) // 10))
        axis.loglog(
            r[at][marks],
            exact[at][marks],
            "o",
            color="black",
            markersize=4,
            label="exact, linear map",
        )
        kind = {0.9: "contraction", 1.0: "non-expansive", 1.1: "expansion"}[one]
        style(axis, f"{kind}, L = {one}", "later steps r", "")
    axes[0].set_ylabel(f"Rényi divergence, order {ALPHA:g}")
    axes[0].legend(frameon=False, fontsize=9, loc="lower left")
    save(figure, output / "amplification.png")


def errors(output: pathlib.Path, quick: bool) -> None:
    """Worst-case mean squared error over the unit ball, against epsilon and dimension."""
    count = 9 if quick else 41
    epsilon = np.concatenate([np.geomspace(0.05, 20.0, count), np.full(count, 1.0)])
    dimension = np.concatenate([np.full(count, 10.0), np.geomspace(1.0, 1e4, count)])
    design = calibrate.ornstein_uhlenbeck(
        epsilon=epsilon, delta=DELTA, norm=1.0, dimension=dimension, sensitivity=0.1
    )
    sigma = 0.1 / np.asarray(jaxdp.epsilon_delta_to_gdp(epsilon, DELTA))
    gaussian = dimension * sigma**2
    columns = {
        "epsilon": epsilon,
        "dimension": dimension,
        "gaussian": gaussian,
        "shrunk_gaussian": gaussian / (1.0 + gaussian),
        "ornstein_uhlenbeck": design.objective,
        "theta": design.value.theta,
        "rho": design.value.rho,
    }
    write_csv(output / "errors.csv", columns)
    figure, axes = plt.subplots(1, 2, figsize=(9.0, 3.8), layout="constrained")
    halves = slice(0, count), slice(count, None)
    for axis, half, x in zip(axes, halves, (epsilon, dimension), strict=True):
        axis.loglog(x[half], gaussian[half], color=ORANGE, linewidth=2, label="Gaussian")
        axis.loglog(
            x[half],
            columns["shrunk_gaussian"][half],
            color=GREY,
            linewidth=5,
            alpha=0.35,
            label="Gaussian, optimally shrunk",
        )
        axis.loglog(
            x[half], design.objective[half], color=BLUE, linewidth=1.5, label="Ornstein-Uhlenbeck"
        )
        axis.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    style(axes[0], "10 dimensions", r"$\varepsilon$  ($\delta = 10^{-5}$)", "worst squared error")
    style(axes[1], r"$\varepsilon = 1$", "dimension d", "")
    axes[0].text(20.0, 1.15, "releasing nothing", ha="right", fontsize=8)
    axes[1].legend(frameon=False, fontsize=9)
    save(figure, output / "errors.png")


def logistic(model: jax.Array, record: tuple[jax.Array, jax.Array]) -> jax.Array:
    """Logistic loss with ridge penalty; see `records` for its constants."""
    features, label = record
    return jax.nn.softplus(-label * jnp.dot(features, model)) + 0.5 * RIDGE * jnp.dot(model, model)


RIDGE = 0.05


def records(output: pathlib.Path, quick: bool) -> None:
    """Per-record epsilon of a model trained by one pass of noisy projected SGD."""
    from sklearn.datasets import load_breast_cancer

    bunch = load_breast_cancer()
    order = np.random.default_rng(0).permutation(len(bunch.target))
    # the scaling of the features is treated as public knowledge here
    features = np.log1p(bunch.data[order])
    features = (features - features.mean(0)) / features.std(0)
    features = np.column_stack([features, np.ones(len(order))])
    features = features / np.maximum(1.0, np.linalg.norm(features, axis=1, keepdims=True))
    labels = 2.0 * bunch.target[order] - 1.0
    held_out = 169
    train = jnp.asarray(features[held_out:]), jnp.asarray(labels[held_out:])
    test = features[:held_out], labels[:held_out]
    sgd = jaxdp.NoisyProjectedSGD(
        lipschitz_constant=1.0,  # gradients of two records differ by at most 2: |features| <= 1
        smoothness=0.25 + RIDGE,
        strong_convexity=RIDGE,
        learning_rate=0.05,
        sigma=1.0,
        num_records=len(order) - held_out,
    )
    seeds = jax.random.split(jax.random.key(0), 20 if quick else 200)
    start = jnp.zeros(features.shape[1])
    models = jax.vmap(lambda key: sgd.run(key, train, logistic, start, radius=5.0))(seeds)
    accuracy = np.mean(np.sign(np.asarray(models) @ test[0].T) == test[1], axis=1)
    every = sgd.per_record()
    epsilon = np.asarray(jaxdp.epsilon(every, DELTA))
    printed = np.asarray(jaxdp.zcdp_to_epsilon(np.asarray(every.printed_rate(), np.float64), DELTA))
    index = np.arange(1, len(epsilon) + 1)
    write_csv(
        output / "records.csv", {"record": index, "epsilon": epsilon, "epsilon_printed": printed}
    )
    print(f"accuracy on held-out records: {accuracy.mean():.3f} +- {accuracy.std():.3f}")
    print(f"epsilon at delta = {DELTA:g}: last {epsilon[-1]:.3f}, median {np.median(epsilon):.3g}")
    figure, axis = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    later = len(epsilon) - index
    axis.loglog(later + 1, printed, color=ORANGE, linewidth=2, label="Theorem 5 as printed")
    axis.loglog(later + 1, epsilon, color=BLUE, linewidth=2, label="sharper form, exact conversion")
    style(axis, "breast cancer data, one pass", "steps from the record's own to the end", "")
    axis.set_ylabel(r"$\varepsilon$ of the record  ($\delta = 10^{-5}$)")
    axis.legend(frameon=False, fontsize=9)
    save(figure, output / "records.png")


def main() -> None:
    """Write all tables and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("out"))
    parser.add_argument("--quick", action="store_true", help="fewer points and runs")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    amplification(options.output, options.quick)
    errors(options.output, options.quick)
    records(options.output, options.quick)
    print(f"figures and tables are in {options.output}/")


if __name__ == "__main__":
    main()
