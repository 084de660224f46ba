"""The classes of an attack, each with its share of the settings."""

import dataclasses
import functools
import time
from collections.abc import Callable

import jax
import numpy as np

from benchmarks.attack import checks, consistency, derivatives, grammar, many, run, uses, wider

ENGINE_ROWS = 48  # of a structure that needs the numerical engine, for each query


@dataclasses.dataclass(frozen=True)
class Job:
    """One class: its name, how it is attacked, and its share of the settings."""

    name: str
    attack: Callable  # (rng, rows, tally)
    rows: int


def _structure(node: grammar.Node, rows: int) -> Job:
    def attack(rng, rows, tally):
        run.attack(node, rng, rows, min(rows, 512), tally)

    few = ENGINE_ROWS if node.engine else max(8, rows // 32 if node.slow else rows)
    return Job(node.name, attack, few)


def jobs(settings: int, seed: int) -> list[Job]:
    """All classes, in a random order that begins with what is cheap."""
    rng = np.random.default_rng(seed)
    nodes = [*grammar.structures(), *wider.structures()]
    closed = [n for n in nodes if not n.engine]
    quick = sum(not n.slow for n in closed)
    rows = max(8, settings // (11 * quick))
    cheap = [_structure(n, rows) for n in closed]
    for check in checks.checks():
        slow = check.name.startswith("zcdp")  # a minimisation for each
        cheap.append(Job(check.name, _bound(checks.attack, check), rows // (8 if slow else 1)))
    dear = [_structure(n, rows) for n in nodes if n.engine]
    for family in consistency.families():
        dear.append(Job(family.name, _bound(consistency.attack, family), 10))
    for step in many.steps():
        dear.append(Job(f"many runs: {step.name}", _bound(many.attack, step), ENGINE_ROWS))
    for case in derivatives.cases(rng):
        few = min(rows, 24 if case.slow else 200) if case.exact else 12
        name = "derivatives: " + case.name
        dear.append(Job(name, _bound(derivatives.attack, case), few))
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


@functools.cache
def prepared(settings: int, seed: int) -> list[Job]:
    """The classes, once in a process."""
    jax.config.update("jax_enable_x64", True)
    return jobs(settings, seed)


def nth(settings: int, seed: int, stop: float, k: int) -> run.Tally | None:
    """One class in a process of its own: jobs are closures, and cannot be sent there.

    None where it is past the time (of the clock) to stop.
    """
    return attack(prepared(settings, seed)[k], seed) if time.time() < stop else None
