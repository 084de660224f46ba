"""Attack every public query with random mechanisms, and say what is wrong with the answers.

    python -m benchmarks.attack --settings 100000 --seed 1 [--only CLASS] [--minutes M]
        [--workers N]

A setting is a mechanism with drawn parameters, a query and its argument. The references, which
share no code with the library, are exact laws in 150-digit arithmetic, closed forms and
quadratures; where there is no truth, brackets must overlap and move the right way. Many rows of
one structure are one broadcast query: a program takes seconds to compile, a row milliseconds.

Verdicts: violation (a certified bound on the wrong side of the truth, without any tolerance but
the reference's own; a derivative outside the one-sided differences), error, nan, trivial, wide
(more than 1 % of epsilon), inexact (not within what is documented), unsolved, slow.
"""

import argparse
import functools
import multiprocessing
import pathlib
import platform
import time

import jax

from benchmarks.attack import plan, run

CLASSES_KEPT = 8  # of a process, whose programs stay: those of all do not fit into memory
HEADER = ("class", "settings", *run.VERDICTS, "seconds")


def tallies(settings: int, seed: int, only: str, minutes: float, workers: int):
    """Every class as it ends; after some minutes none begins."""
    stop = time.time() + 60 * minutes
    chosen = [k for k, job in enumerate(plan.prepared(settings, seed)) if only in job.name]
    # (Not concurrent.futures, whose processes are not always replaced: CPython's gh-115634.)
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(workers, maxtasksperchild=CLASSES_KEPT) as pool:
        each = functools.partial(plan.nth, settings, seed, stop)
        for found in pool.imap_unordered(each, chosen):
            if found is not None:
                yield found


def row(tally: run.Tally) -> str:
    """A row of the table."""
    counts = (str(tally.counts[v]) for v in run.VERDICTS)
    return f"| {tally.name} | {tally.settings} | {' | '.join(counts)} | {tally.seconds:.1f} |"


def lines(tally: run.Tally) -> list[str]:
    """The reproductions of a class."""
    found = tally.found.items()
    return [f"* {v} x {n} ({q}): `{line}`" for (q, v), (line, n) in found]


def total(done: list[run.Tally]) -> run.Tally:
    """The sum of all classes."""
    result = run.Tally("all")
    for tally in done:
        result.settings += tally.settings
        result.counts += tally.counts
        result.seconds += tally.seconds
    return result


def report(done: list[run.Tally], seed: int) -> str:
    """The table and what remains, in Markdown."""
    head = f"| {' | '.join(HEADER)} |"
    rule = "|" + "---|" * len(HEADER)
    rows = [row(t) for t in [*done, total(done)]]
    remaining = [line for t in done for line in lines(t)]
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
    parser.add_argument("--workers", type=int, default=1, help="processes")
    args = parser.parse_args()
    done = []
    for tally in tallies(args.settings, args.seed, args.only, args.minutes, args.workers):
        done.append(tally)
        print(row(tally), *lines(tally), sep="\n", flush=True)
        if args.output:
            args.output.write_text(report(done, args.seed))
    print(row(total(done)))


if __name__ == "__main__":
    main()
