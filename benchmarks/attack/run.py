"""Evaluate a structure's rows in a few broadcast queries, and count what is wrong."""

import collections
import dataclasses
import time

import jax
import numpy as np
from mpmath import mpf

from benchmarks.attack import readings
from benchmarks.attack.grammar import Node, exact_row, literal
from benchmarks.attack.judge import Query, certified, queries

SLOW = 10.0  # seconds of processor time, warm, a row
VERDICTS = (
    "violation", "error", "nan", "trivial", "wide", "inexact", "unsolved", "underflow", "slow",
)  # fmt: skip


@dataclasses.dataclass
class Tally:
    """What was seen of one class.

    Attributes:
      name: the class.
      settings: rows judged: a mechanism with its parameters, a query, its argument.
      counts: of each verdict.
      seconds: spent, references included.
      found: one reproduction of each (query, verdict), and how many there are.
    """

    name: str
    settings: int = 0
    counts: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    seconds: float = 0.0
    found: dict = dataclasses.field(default_factory=dict)

    def note(self, query: str, verdict: str, line: str) -> None:
        """Count a verdict, and keep its first reproduction."""
        self.counts[verdict] += 1
        lines = self.found.setdefault((query, verdict), [line, 0])
        lines[1] += 1


def answers(query: Query, node: Node, rows, argument) -> list[np.ndarray]:
    """The query's one or two arrays."""
    result = query.ask(node.build(*rows), argument)
    result = result if isinstance(result, tuple) else (result,)
    return [np.broadcast_to(np.asarray(r), argument.shape) for r in result]


def reproduction(query: Query, node: Node, row, argument, note: str) -> str:
    """One line of Python, and what is wrong with it."""
    return f"{query.code(node.code(*row), literal(argument))}  # {note}"


def _judge_all(query, node, rows, argument, known) -> list:
    """The verdict of every row."""
    got = answers(query, node, rows, argument)
    found = []
    for i in range(len(argument)):
        if not known[i] or not query.takes(known[i]):
            found.append(None)
            continue
        values = [mpf(float(g[i])) for g in got]
        found.append(query.judge(known[i], mpf(float(argument[i])), values, node.slack))
    return found


def shrink(query: Query, node: Node, row, argument, verdict, size: int):
    """Simpler numbers with the same verdict: round a parameter or the argument at a time.

    All candidates of a round are one call of the program that found the violation.
    """
    best = ([np.asarray(x) for x in row], float(argument))
    note = None
    for _ in range(6):
        candidates = list(_simpler(*best))[:size]
        if not candidates:
            break
        padded = candidates + [candidates[-1]] * (size - len(candidates))
        kind = np.asarray(row[0]).dtype
        rows = [np.stack([c[0][k] for c in padded]).astype(kind) for k in range(len(row))]
        arguments = np.array([c[1] for c in padded]).astype(kind)
        candidates = [([x[i] for x in rows], arguments[i]) for i in range(len(candidates))]
        known = []
        for c in candidates:
            try:
                known.append(node.law(*exact_row(c[0])))
            except (ValueError, ZeroDivisionError, OverflowError):
                known.append(None)
        known += [None] * (size - len(candidates))
        try:
            verdicts = _judge_all(query, node, rows, arguments, known)
        except ValueError:  # a candidate outside its domain
            break
        kept = [i for i, v in enumerate(verdicts) if v and v[0] == verdict]
        if not kept:
            break
        best, note = candidates[kept[0]], verdicts[kept[0]][1]
    return *best, note


def _simpler(row, argument):
    """Candidates with one number simpler, the simplest first."""
    plain = [0.5, 1.0, 2.0, 3.0]
    for k in range(len(row) + 1):
        value = argument if k == len(row) else row[k]
        if np.ndim(value):
            continue
        for new in [*plain, *(float(f"{value:.{d}g}") for d in (1, 2, 3))]:
            if len(f"{new!r}") >= len(f"{float(value)!r}") or new == value:
                continue
            if k == len(row):
                yield row, new
            elif new > 0 and (float(value) > 1 or new <= 1):
                whole = float(value).is_integer() and value >= 1
                if not whole or new.is_integer():
                    yield [*row[:k], np.asarray(new), *row[k + 1 :]], argument


def attack_single(node: Node, rng: np.random.Generator, rows: int, tally: Tally) -> None:
    """Callers whose program is in 32 bits: answers are rounded to the safe side."""
    jax.config.update("jax_enable_x64", False)
    try:
        drawn = [x.astype(np.float32) for x in node.draw(rng, rows)]
        ask_all(node, certified(node, rng), drawn, rng, rows, tally)
    finally:
        jax.config.update("jax_enable_x64", True)


def attack(node: Node, rng: np.random.Generator, rows: int, chunk: int, tally: Tally) -> None:
    """Draw rows of a structure and try every query on all of them."""
    asked = queries(node, rng)
    whole = "RandomAllocation" not in node.name  # which has no law that serves every epsilon
    if node.engine and whole and not node.method and rng.random() < 0.5:
        asked += readings.queries(rng)
    ask_all(node, asked, node.draw(rng, rows), rng, chunk, tally)


def ask_all(node: Node, asked: list[Query], drawn, rng, chunk: int, tally: Tally) -> None:
    """Every query on all rows, a chunk at a time."""
    rows = len(drawn[0])
    known = [node.law(*exact_row([x[i] for x in drawn])) for i in range(rows)]
    for query in asked:
        if not any(map(query.takes, known)):
            continue
        argument = np.asarray(query.draw(rng, rows, known)).astype(drawn[0].dtype)
        for at in range(0, rows, chunk):
            part = slice(at, at + chunk)
            _attack_chunk(query, node, [x[part] for x in drawn], argument[part], known[part], tally)


def _attack_chunk(query, node, rows, argument, known, tally) -> None:
    before = time.process_time()
    try:
        verdicts = _judge_all(query, node, rows, argument, known)
    except Exception as error:  # a valid setting must be answered
        line = reproduction(query, node, [x[0] for x in rows], argument[0], repr(error)[:200])
        tally.note(query.name, "error", line)
        return
    took = time.process_time() - before
    tally.settings += len(argument)
    if took > SLOW * len(argument):  # once more, without compilation and references
        before = time.process_time()
        answers(query, node, rows, argument)
        took = (time.process_time() - before) / len(argument)
        if took > SLOW:
            tally.note(query.name, "slow", query.code(node.name, f"{took:.1f} s a row"))
    for i, verdict in enumerate(verdicts):
        if not verdict:
            continue
        key = (query.name, verdict[0])
        row, at, note = [x[i] for x in rows], argument[i], verdict[1]
        if key not in tally.found and verdict[0] in ("violation", "nan", "trivial"):
            row, at, shrunk = shrink(query, node, row, at, verdict[0], len(argument))
            note = shrunk if shrunk is not None else note
        tally.note(*key, reproduction(query, node, row, at, note))
