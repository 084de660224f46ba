"""Tasks as users have them, drawn at random: what share is answered, narrowly, at default settings?

    python -m benchmarks.population [--seed 1] [--number 64] [--only NAME ...] [--output FILE]

Every kind is one batch of settings, log-uniform in each parameter; every other number has one or
two digits, as people write them. An answer is good if it is finite, ordered, narrow (`WIDTH`)
and, for a calibration, solved, certified by its user's own check and not more than 1 % above the
least noise. Tasks without a meaningful answer are not drawn. Where removing and adding a record
differ, each is asked for, too: of both, the smaller one is not seen. Prints a Markdown table, a
row for each kind, and one example of every class that is not good.
"""

import argparse
import collections
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import numpy as np

import calibrate
import jaxdp
from benchmarks.attack.draw import as_written, log_uniform

Direction = Literal["remove", "add", "both"]
WIDTH = 1e-2  # of epsilon, or 1e-6 absolutely where epsilon is below 1e-4


class Kind(NamedTuple):
    """How mechanisms are built, noise first, and how their arguments are drawn."""

    build: Callable[..., jaxdp.Mechanism]
    draw: Callable[[np.random.Generator, int], tuple[np.ndarray, ...]]
    calibrated: bool = False
    symmetric: bool = False


def count(rng: np.random.Generator, low: float, high: float, n: int) -> np.ndarray:
    return np.maximum(np.round(log_uniform(rng, low, high, n)), 1.0)


def repeated(step: Callable[..., jaxdp.Mechanism]) -> Callable[..., jaxdp.Mechanism]:
    return lambda noise, t: jaxdp.Repeated(step(noise), t)


def sampled(step: Callable[..., jaxdp.Mechanism]) -> Callable[..., jaxdp.Mechanism]:
    return lambda noise, q, t: jaxdp.Repeated(jaxdp.PoissonSampled(step(noise), q), t)


def composed_draw(low: float, high: float, least: float = 0.0, power: float = 1.0):
    """Noise on the scale at which epsilon is neither 0 nor in the thousands, and steps."""

    def draw(rng, n):
        t = count(rng, 1, 1e5, n)
        return np.maximum(least, log_uniform(rng, low, high, n) * np.sqrt(t)) ** power, t

    return draw


def sampled_draw(low: float, high: float, least: float, power: float = 1.0, rate=(1e-5, 0.5)):
    def draw(rng, n):
        q, t = log_uniform(rng, *rate, n), count(rng, 1, 1e5, n)
        scale = np.maximum(1.0, q * np.sqrt(t))
        return np.maximum(least, log_uniform(rng, low, high, n) * scale) ** power, q, t

    return draw


def mixed(s, b, q, t, u):
    noisy = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(s), q), t)
    return jaxdp.Composed([noisy, jaxdp.Repeated(jaxdp.Laplace(b), u)])


def mixed_draw(rng, n):
    s, q, t = sampled_draw(0.5, 3, 0.5)(rng, n)
    u = count(rng, 1, 100, n)
    return s, log_uniform(rng, 1, 20, n) * np.sqrt(u), q, t, u


def epochs_draw(rng, n):
    e = count(rng, 1, 100, n)
    return log_uniform(rng, 0.6, 4, n) * e**0.25, count(rng, 2, 1e4, n), e


def fine_draw(rng, n):
    """Values rounded to a fine grid, as sums of vectors are: sensitivities in many units."""
    s, t = composed_draw(0.3, 5, 0.5)(rng, n)
    return s, count(rng, 10, 1e4, n), t


def responses(noise, t):
    """Randomised responses, by the inverse of their epsilon."""
    return jaxdp.Repeated(jaxdp.RandomizedResponse(1.0 / noise), t)


KINDS = {
    "dp-sgd": Kind(sampled(jaxdp.Gaussian), sampled_draw(0.3, 3, 0.45), True),
    "dp-sgd, large batches": Kind(
        sampled(jaxdp.Gaussian), sampled_draw(0.5, 3, 0.45, rate=(0.05, 1.0)), True
    ),
    "sampled laplace": Kind(sampled(jaxdp.Laplace), sampled_draw(0.3, 3, 0.2), True),
    "sampled discrete gaussian": Kind(sampled(jaxdp.DiscreteGaussian), sampled_draw(0.5, 5, 1.0)),
    "sampled skellam": Kind(sampled(jaxdp.Skellam), sampled_draw(0.5, 5, 2.0**0.5, 2.0)),
    "allocation": Kind(
        lambda s, t: jaxdp.RandomAllocation(jaxdp.Gaussian(s), t),
        lambda rng, n: (log_uniform(rng, 0.5, 4, n), count(rng, 2, 1e5, n)),
        True,
    ),
    "allocation, epochs": Kind(
        lambda s, t, e: jaxdp.RandomAllocation(jaxdp.Gaussian(s), t, num_epochs=e), epochs_draw
    ),
    "laplace": Kind(repeated(jaxdp.Laplace), composed_draw(0.3, 5), True, True),
    "randomised response": Kind(responses, composed_draw(0.3, 5), True, True),
    "discrete gaussian": Kind(
        repeated(jaxdp.DiscreteGaussian), composed_draw(0.3, 5, 0.5), True, True
    ),
    "discrete gaussian, fine": Kind(
        lambda s, x, t: jaxdp.Repeated(jaxdp.DiscreteGaussian(s * x, x), t),
        fine_draw,
        symmetric=True,
    ),
    "discrete laplace": Kind(
        lambda s, t: jaxdp.Repeated(jaxdp.DiscreteLaplace(1.0 / s), t),
        composed_draw(0.3, 5),
        symmetric=True,
    ),
    "mixed": Kind(mixed, mixed_draw),
}


def classify(low: float, high: float) -> str:
    if np.isnan(low) or np.isnan(high):
        return "nan"
    if low > high:
        return "lower above upper"
    if np.isinf(high):
        return "infinite"
    if high - low > max(WIDTH * high, 1e-6):
        return "lower 0" if low == 0 else "wide"
    return "good"


def drawn(kind: Kind, rng: np.random.Generator, n: int) -> tuple[np.ndarray, ...]:
    return tuple(as_written(rng, values) for values in kind.draw(rng, n))


def timed(ask: Callable[[], object]) -> tuple[object, float]:
    start = time.perf_counter()
    answer = jax.block_until_ready(ask())
    return answer, time.perf_counter() - start


def short(*values: float) -> str:
    return ", ".join(f"{value:.6g}" for value in values)


def bounds(kind: Kind, rng: np.random.Generator, n: int, direction: Direction = "both"):
    args = drawn(kind, rng, n)
    delta = as_written(rng, log_uniform(rng, 1e-12, 1e-3, n))

    def ask():
        return jaxdp.epsilon_bounds(kind.build(*args), delta, direction=direction)

    ((lows, highs), first), (_, warm) = timed(ask), timed(ask)
    rows = list(zip(np.asarray(lows), np.asarray(highs), strict=True))
    shown = [
        f"({short(*(a[i] for a in args))}), delta {delta[i]:.3g}: [{short(low, high)}]"
        for i, (low, high) in enumerate(rows)
    ]
    return [classify(low, high) for low, high in rows], shown, first, warm


def calibration(kind: Kind, rng: np.random.Generator, n: int):
    args = drawn(kind, rng, n)
    delta, epsilon = log_uniform(rng, 1e-9, 1e-4, n), log_uniform(rng, 0.1, 16, n)
    delta, epsilon = as_written(rng, delta), as_written(rng, epsilon)
    if len(args) == 3:  # where delta covers being sampled at all, no noise is needed: not asked
        with np.errstate(divide="ignore"):
            delta = np.minimum(delta, -0.1 * np.expm1(args[2] * np.log1p(-args[1])))

    def ask():
        return calibrate.solve(kind.build, epsilon=epsilon, delta=delta, args=args[1:])

    (got, first), (_, warm) = timed(ask), timed(ask)
    solved = np.asarray(got.status) == calibrate.Status.SOLVED  # pyright: ignore
    value = np.where(solved, np.asarray(got.value), args[0])  # pyright: ignore
    at, less = (
        np.asarray(jaxdp.epsilon(kind.build(share * value, *args[1:]), delta))
        for share in (1.0, 0.99)
    )
    certified = at <= epsilon * (1.0 + 1e-6)
    classes = np.where(less > epsilon, "good", "more noise than needed")
    classes = np.where(solved, np.where(certified, classes, "not certified"), "unsolved")
    shown = [
        f"epsilon {epsilon[i]:.6g}, delta {delta[i]:.3g}, ({short(*(a[i] for a in args[1:]))}): "
        f"value, epsilon there, at 0.99 of it: {short(value[i], at[i], less[i])}"
        for i in range(n)
    ]
    return classes.tolist(), shown, first, warm


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=64)
    parser.add_argument("--only", nargs="*", choices=KINDS)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    tasks = [("bounds", bounds, name) for name in KINDS]
    tasks += [("calibration", calibration, name) for name, kind in KINDS.items() if kind.calibrated]
    one_sided = [name for name, kind in KINDS.items() if not kind.symmetric]
    for direction in ("remove", "add"):
        ask = functools.partial(bounds, direction=direction)
        tasks += [(f"bounds, {direction}", ask, name) for name in one_sided]
    lines = ["| task | good | first, s | warm, ms each | others |", "|---|---|---|---|---|"]
    good = total = 0
    examples = []
    for place, (what, task, name) in enumerate(tasks):
        if options.only and name not in options.only:
            continue
        rng = np.random.default_rng([options.seed, place])
        classes, shown, first, warm = task(KINDS[name], rng, options.number)
        tally = collections.Counter(classes)
        good, total = good + tally["good"], total + options.number
        others = ", ".join(f"{c} {k}" for c, k in tally.items() if c != "good")
        ratio = f"{tally['good']}/{options.number}"
        each = 1e3 * warm / options.number
        lines.append(f"| {what}: {name} | {ratio} | {first:.1f} | {each:.1f} | {others} |")
        print(lines[-1], flush=True)
        examples += [
            f"- {what}, {name}, {c}: {shown[classes.index(c)]}" for c in tally if c != "good"
        ]
    lines += [
        "",
        f"{good} of {total} good, seed {options.seed}, {jax.devices()[0]}.",
        "",
        *examples,
    ]
    print("\n".join(lines))
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
