"""What each choice of the engine is worth: width and time with it halved, doubled and off.

    python -m benchmarks.ablation [--only NAME ...] [--minutes M] [--output FILE.md]

A choice is a constant that steers a lattice, a tilt or a search and that no certificate rests on:
every answer is a bound whatever its value. 200 fixed settings of five kinds are asked for brackets
of epsilon, once as they are and once for each other value of each choice, those kinds alone that
the choice can matter to. A row of the table says how many brackets became trivial, wider or
narrower by more than 5 %, by how much in the median and at worst, and what became of the time.
Brackets that do not overlap the default's are counted as wrong: there must be none.
"""

import argparse
import contextlib
import dataclasses
import datetime
import importlib
import pathlib
import platform
import time
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

import jaxdp
from jaxdp._devices import QUICK_OPTIONS

SEED, CHUNK = 20261124, 8
NOTABLE = 0.05  # of a width


def runs(step: Any) -> Any:
    return lambda noise, q, steps: jaxdp.Repeated(jaxdp.PoissonSampled(step(noise), q), steps)


# How many settings, the mechanism by (noise, q, steps), and the range of the noise. Steps of an
# allocation take the place of 1/q.
KINDS = {
    "gaussian": (80, runs(jaxdp.Gaussian), (0.4, 8.0)),
    "discrete gaussian": (30, runs(jaxdp.DiscreteGaussian), (0.3, 4.0)),
    "laplace": (30, runs(jaxdp.Laplace), (0.15, 8.0)),
    "allocation": (
        40,
        lambda noise, q, steps: jaxdp.RandomAllocation(jaxdp.Gaussian(noise), 1.0 / q),
        (0.4, 4.0),
    ),
    "nested": (
        20,
        lambda noise, q, steps: jaxdp.Repeated(
            jaxdp.PoissonSampled(
                jaxdp.Composed([jaxdp.Gaussian(noise), jaxdp.Laplace(2.0 * noise)]), q
            ),
            steps,
        ),
        (0.5, 4.0),
    ),
}
PRODUCTS = ("gaussian", "discrete gaussian", "laplace")
SAMPLED = ("gaussian", "laplace")
AVERAGES, TABLES = ("allocation",), ("nested",)


@dataclasses.dataclass(frozen=True)
class Choice:
    """A constant of a module, the kinds that it may matter to, and a value that turns it off."""

    module: str
    name: str
    kinds: tuple[str, ...]
    off: Any = None

    @property
    def home(self) -> Any:
        return importlib.import_module(f"jaxdp.{self.module}")

    def values(self) -> Iterator[tuple[str, Any]]:
        """The other values: what they are called, and what they are."""
        value = getattr(self.home, self.name)
        whole = isinstance(value, int)
        yield "halved", max(value // 2, 1) if whole else 0.5 * value
        yield "doubled", 2 * value
        if self.off is not None:
            yield "off", self.off


CHOICES = (
    Choice("_law._grid", "_NODES_PER_DENSITY", PRODUCTS),
    Choice("_law._grid", "_STEPS_SHARE", PRODUCTS),
    Choice("_law._grid", "_COARSEST", PRODUCTS),
    Choice("_law._plan_tilt", "_UNDERTILT", PRODUCTS, 0.0),
    Choice("_law._plan_tilt", "_TOLERANCE", PRODUCTS),
    Choice("_law._plan_tilt", "_LEAST_SHARE", PRODUCTS, 1.0),
    Choice("_law._plan_tilt", "_SEEN", PRODUCTS, 1e300),
    Choice("_law._plan_tilt", "_MORE", PRODUCTS, 1.0),
    Choice("_law._plan_tilt", "_TYPICAL", PRODUCTS),
    Choice("_law._plan_tilt", "_STEEP", PRODUCTS, np.inf),
    Choice("_law._plan", "BULK", PRODUCTS),
    Choice("_law._plan", "_BULK_ROUNDS", PRODUCTS, 1),
    Choice("_law._plan", "_BULK_POINTS", PRODUCTS, 0.0),
    Choice("_law._plan", "_FEW_STEPS", PRODUCTS, 0.0),
    Choice("_law._begins", "_LOG_RARE", PRODUCTS, -1e300),
    Choice("_law._begins", "_WIDENINGS", PRODUCTS, 0),
    Choice("_law._plan", "_LEAST_BLOCK", PRODUCTS),
    Choice("_law._plan_apart", "_NOISE", PRODUCTS, 1e3),
    Choice("_law._plan_apart", "_LOG_MASS", PRODUCTS),
    Choice("_law._saddle", "_BISECTIONS", SAMPLED),
    Choice("_law._saddle", "_SOFT", SAMPLED),
    Choice("_law._saddle", "_JUMP_QUARTERINGS", SAMPLED),
    Choice("_law._discretise", "EMPTY", PRODUCTS, 0.0),
    Choice("_law._discretise", "_MUCH", PRODUCTS),
    Choice("_law._discretise", "_SHARE", PRODUCTS, 0.0),
    Choice("_law._halves", "_PART", PRODUCTS, 0.0),
    Choice("_law._halves", "_NEAR", PRODUCTS, 0.0),
    Choice("_law._obstacle", "_SWEEPS", PRODUCTS, 1),
    Choice("_law._parts", "_ANCHOR_ROUNDS", PRODUCTS, 1),
    Choice("_law._jumps", "_DUST", PRODUCTS, 0.0),
    Choice("_law._query", "_FAR", PRODUCTS),
    Choice("_law._query", "_ROUGH", PRODUCTS, 0.0),
    Choice("_law._average", "_DENSITY", AVERAGES),
    Choice("_law._average_atoms", "_BISECTIONS", AVERAGES),
    Choice("_law._average_atoms", "_TOP_ALONE", AVERAGES, 0.0),
    Choice("_law._average_grid", "_CUTS", AVERAGES),
    Choice("_law._average_plan", "_TOP", AVERAGES),
    Choice("_law._average_tilt", "_WINDOW", AVERAGES),
    Choice("_law._average_plan", "_SIZE", AVERAGES),
    Choice("_law._average_plan", "ROUNDS", AVERAGES, 1),
    Choice("_law._average_plan", "_SETTLED", AVERAGES),
    Choice("_law._average_tilt", "_REST", AVERAGES),
    Choice("_law._table_choice", "TILTS", TABLES),
    Choice("_law._table_choice", "_DIVISORS", TABLES, 1),
    Choice("_law._table_choice", "_LOG_LOW", TABLES),
    Choice("_numerical", "_TABLE_SHARE", TABLES),
)


def settings(kind: str) -> tuple[np.ndarray, ...]:
    """Columns (noise, q, steps, delta), log-uniform; epsilon is neither next to 0 nor beyond 60."""
    number, _, noises = KINDS[kind]
    rng = np.random.default_rng([SEED, list(KINDS).index(kind)])

    def draw(low: float, high: float) -> np.ndarray:
        return np.exp(rng.uniform(np.log(low), np.log(high), 40 * number))

    noise, q, steps, delta = draw(*noises), draw(1e-4, 0.5), draw(1.0, 3e4), draw(1e-12, 1e-3)
    steps = np.round(steps)
    # (roughly that of a Gaussian: no code of the library decides which settings there are)
    mu = q * np.sqrt(steps * np.minimum(np.expm1(noise**-2.0), 1e4))
    roughly = mu * np.sqrt(-2.0 * np.log(delta)) + 0.5 * mu**2
    kept = np.flatnonzero((roughly > 0.02) & (roughly < 30.0))[:number]
    assert kept.size == number
    return (
        noise[kept],
        np.where(kind == "allocation", 1.0 / np.round(1.0 / q), q)[kept],
        steps[kept],
        delta[kept],
    )


@dataclasses.dataclass
class Answers:
    """Brackets of the settings of a kind, and CPU seconds of a row, warm, and of compilation."""

    low: np.ndarray
    high: np.ndarray
    warm: float
    cold: float

    @property
    def width(self) -> np.ndarray:
        with np.errstate(invalid="ignore", divide="ignore"):
            width = (self.high - self.low) / self.high
        return np.where(np.isfinite(self.high) & (self.low > 0.0), width, np.inf)


def ask(kind: str) -> Answers:
    build, columns = KINDS[kind][1], settings(kind)

    def bounds(noise: Any, q: Any, steps: Any, delta: Any) -> Any:
        return jaxdp.epsilon_bounds(build(noise, q, steps), delta, chunk=CHUNK)

    jax.clear_caches()
    with jax.enable_x64(True):
        program = jax.jit(bounds, compiler_options=QUICK_OPTIONS)
        start = time.process_time()
        compiled = program.lower(*columns).compile()
        cold = time.process_time() - start
        jax.block_until_ready(compiled(*columns))
        start = time.process_time()
        low, high = jax.block_until_ready(compiled(*columns))
        warm = time.process_time() - start
    return Answers(np.asarray(low), np.asarray(high), warm / len(columns[0]), cold)


@contextlib.contextmanager
def chosen(choice: Choice, value: Any) -> Iterator[None]:
    before = getattr(choice.home, choice.name)
    setattr(choice.home, choice.name, value)
    try:
        yield
    finally:
        setattr(choice.home, choice.name, before)


def compared(defaults: dict[str, Answers], others: dict[str, Answers]) -> dict[str, Any]:
    one = np.concatenate([defaults[kind].width for kind in others])
    two = np.concatenate([others[kind].width for kind in others])
    both = np.isfinite(one) & np.isfinite(two)
    ratio = two[both] / np.maximum(one[both], 1e-12)
    slack = 1e-9
    wrong = sum(
        int(np.sum((x.low > y.high * (1 + slack)) | (y.low > x.high * (1 + slack))))
        for x, y in ((defaults[kind], others[kind]) for kind in others)
    )
    warm, cold = (
        sum(getattr(others[kind], what) for kind in others)
        / sum(getattr(defaults[kind], what) for kind in others)
        for what in ("warm", "cold")
    )
    return {
        "settings": one.size,
        "wrong": wrong,
        "trivial": int(np.sum(np.isinf(two)) - np.sum(np.isinf(one))),
        "wider": int(np.sum(ratio > 1.0 + NOTABLE)),
        "narrower": int(np.sum(ratio < 1.0 - NOTABLE)),
        "median": float(np.median(ratio)),
        "worst": float(np.max(ratio)),
        "warm": warm,
        "cold": cold,
    }


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(rows: list[tuple[Choice, str, Any, dict[str, Any]]]) -> Iterator[str]:
    columns = ("settings", "wrong", "trivial", "wider", "narrower")
    columns += ("median", "worst", "warm", "cold")
    yield "| choice | value | other | " + " | ".join(columns) + " |"
    yield "|---|---|---|" + "---|" * len(columns)
    for choice, what, value, found in rows:
        cells = [
            f"{found[c]:+d}"
            if c == "trivial"
            else f"{found[c]:.3g}"
            if c in columns[5:]
            else found[c]
            for c in columns
        ]
        own = shown(getattr(choice.home, choice.name))
        name = f"`{choice.module.removeprefix('_law.')}.{choice.name}`"
        yield f"| {name} | {own} | {what}: {shown(value)} | " + " | ".join(map(str, cells)) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", help="choices whose module.name contains one of these")
    parser.add_argument("--minutes", type=float, default=np.inf, help="stop after so many")
    parser.add_argument("--output", type=pathlib.Path, help="a Markdown file; else it is printed")
    given = parser.parse_args()
    end = time.monotonic() + 60.0 * given.minutes
    choices = [
        c
        for c in CHOICES
        if not given.only or any(part in f"{c.module}.{c.name}" for part in given.only)
    ]
    defaults = {kind: ask(kind) for kind in sorted({k for c in choices for k in c.kinds})}
    lines = [
        f"# Ablation, {datetime.date.today()}",
        "",
        f"`python -m benchmarks.ablation`, {platform.machine()}, jax {jax.__version__}, "
        f"seed {SEED}.",
        "Times are CPU times relative to the default's; widths are (high - low) / high of epsilon.",
        "",
        "| kind | settings | trivial | median width | 95 % | worst | ms a row | compilation, s |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for kind, answers in defaults.items():
        width = answers.width
        finite = width[np.isfinite(width)]
        numbers = np.median(finite), np.quantile(finite, 0.95), np.max(finite)
        cells = [kind, width.size, width.size - finite.size, *(f"{x:.2e}" for x in numbers)]
        cells += [f"{1e3 * answers.warm:.1f}", f"{answers.cold:.1f}"]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    rows: list[tuple[Choice, str, Any, dict[str, Any]]] = []
    for choice in choices:
        for what, value in choice.values():
            if time.monotonic() > end:
                break
            with chosen(choice, value):
                found = compared(defaults, {kind: ask(kind) for kind in choice.kinds})
            rows.append((choice, what, value, found))
            print(choice.module, choice.name, what, found, flush=True)
    lines += ["", *table(rows)]
    if len({row[0] for row in rows}) < len(choices):
        lines += ["", "Stopped by its time; what is missing was not tried."]
    text = "\n".join(lines) + "\n"
    if given.output is None:
        print(text)
    else:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
