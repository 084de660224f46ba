"""Attack every public query with random mechanisms, and say what is wrong with the answers.

    python -m benchmarks.attack --settings 100000 --seed 1 [--only CLASS] [--minutes M]

A setting is a mechanism with drawn parameters, a query and its argument. The references, which
share no code with the library, are exact laws in 150-digit arithmetic, closed forms and
quadratures; where there is no truth, brackets must overlap and move the right way. Many rows of
one structure are one broadcast query: a program takes seconds to compile, a row milliseconds.

Verdicts: violation (a certified bound on the wrong side of the truth, without any tolerance but
the reference's own; a derivative outside the one-sided differences), error, nan, trivial, wide
(more than 1 % of epsilon), inexact (not within what is documented), unsolved, slow.
"""

import argparse
import dataclasses
import pathlib
import platform
import time
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.attack import checks, consistency, derivatives, grammar, run, uses

CLASSES_KEPT = 8  # whose programs are kept: all of them do not fit into memory
ENGINE_ROWS = 32  # of a structure that needs the numerical engine, for each query
HEADER = ("class", "settings", *run.VERDICTS, "seconds")


@dataclasses.dataclass(frozen=True)
class Job:
    """One class: its name, how it is attacked, and its share of the settings."""

    name: str
    attack: Callable  # (rng, rows, tally)
    rows: int


def _structure(node: grammar.Node, rows: int) -> Job:
    def attack(rng, rows, tally):
        run.attack(node, rng, rows, min(rows, 256), tally)

    return Job(node.name, attack, ENGINE_ROWS if node.engine else rows)


def jobs(settings: int, seed: int) -> list[Job]:
    """All classes, in a random order that begins with what is cheap."""
    rng = np.random.default_rng(seed)
    nodes = grammar.structures()
    closed = [n for n in nodes if not n.engine]
    rows = max(8, settings // (20 * len(closed)))
    cheap = [_structure(n, rows) for n in closed]
    for check in checks.checks():
        slow = check.name.startswith("zcdp")  # a minimisation for each
        cheap.append(Job(check.name, _bound(checks.attack, check), rows // (8 if slow else 1)))
    dear = [_structure(n, rows) for n in nodes if n.engine]
    for family in consistency.families():
        dear.append(Job(family.name, _bound(consistency.attack, family), 10))
    for case in derivatives.cases(rng):
        few = rows if case.exact else 12
        name = "derivatives: " + case.name
        dear.append(Job(name, _bound(derivatives.attack, case), min(few, 500)))
    for node in (*grammar.FINITE, *grammar.SMOOTH, *[n for n in nodes if n.engine][:9]):
        few = ENGINE_ROWS if node.engine else min(rows, 200)
        dear.append(Job(f"{node.name}, 32 bits", _bound(run.attack_single, node), few))
    for build in uses.builds():
        dear.append(Job("calibrate.solve: " + build[0], _bound(uses.solve, *build), 16))
    dear.append(Job("training", uses.account, min(rows, 200)))
    dear.append(Job("training, sampled", uses.sampled_account, ENGINE_ROWS))
    return cheap + [dear[k] for k in rng.permutation(len(dear))]


def _bound(function, *first):
    return lambda rng, rows, tally: function(*first, rng, rows, tally)


def attack(job: Job, seed: int) -> run.Tally:
    """One class; what breaks the attack itself is shown, not hidden."""
    tally = run.Tally(job.name)
    name = np.frombuffer(job.name.encode(), np.uint8)
    start = time.perf_counter()
    try:
        job.attack(np.random.default_rng([seed, *name]), job.rows, tally)
    except Exception as error:
        tally.note("attack", "error", f"{job.name}: {error!r}"[:400])
    tally.seconds = time.perf_counter() - start
    return tally


def row(tally: run.Tally) -> str:
    """A row of the table."""
    counts = (str(tally.counts[v]) for v in run.VERDICTS)
    return f"| {tally.name} | {tally.settings} | {' | '.join(counts)} | {tally.seconds:.1f} |"


def lines(tally: run.Tally) -> list[str]:
    """The reproductions of a class."""
    found = tally.found.items()
    return [f"* {v} x {n} ({q}): `{line}`" for (q, v), (line, n) in found]


def total(tallies: list[run.Tally]) -> run.Tally:
    """The sum of all classes."""
    result = run.Tally("all")
    for tally in tallies:
        result.settings += tally.settings
        result.counts += tally.counts
        result.seconds += tally.seconds
    return result


def report(tallies: list[run.Tally], seed: int) -> str:
    """The table and what remains, in Markdown."""
    head = f"| {' | '.join(HEADER)} |"
    rule = "|" + "---|" * len(HEADER)
    rows = [row(t) for t in [*tallies, total(tallies)]]
    remaining = [line for t in tallies for line in lines(t)]
    machine = f"{platform.machine()}, jax {jax.__version__}, seed {seed}"
    text = ["# Attack", "", machine, "", head, rule, *rows, "", "## What remains", "", *remaining]
    return "\n".join(text) + "\n"


def main() -> None:
    """Draw, ask, judge, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="classes whose name contains this")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no class after them")
    parser.add_argument("--output", type=pathlib.Path, help="where to write the table")
    args = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    start, tallies = time.perf_counter(), []
    for job in jobs(args.settings, args.seed):
        if args.only not in job.name:
            continue
        if time.perf_counter() - start > 60 * args.minutes:
            break
        tallies.append(attack(job, args.seed))
        if len(tallies) % CLASSES_KEPT == 0:
            jax.clear_caches()
        print(row(tallies[-1]), *lines(tallies[-1]), sep="\n", flush=True)
        if args.output:
            args.output.write_text(report(tallies, args.seed))
    print(row(total(tallies)))


if __name__ == "__main__":
    main()
