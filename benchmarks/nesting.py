"""Finite pairs, shuffled reports and schedules nested at random, against enumeration.

    python -m benchmarks.nesting --structures 40 --rows 50 --output benchmarks/results/X-nesting.md

A structure is a tree of samples, allocations, mixtures, repetitions, compositions and schedules, to
a depth of 4, of pairs and shuffled or plain randomised responses. Its rows are drawn parameters,
asked of the engine (unasked, most would be enumerated) as one broadcast query per direction, so
that they share a program. Of every row the outcomes are enumerated, those of equal ratio together
(to 13 digits), and epsilon is read off the exact curve, linear in e^epsilon between its vertices.
Shuffled reports are bounded from above by their pair with known clones, and are judged from below
by the pairs of all others holding one value, in either direction.
"""

import argparse
import functools
import itertools
import math
import pathlib
import time

import jax
import numpy as np

import jaxdp

_MOST = 1500  # outcomes of a law that is enumerated
_SLACK = 1e-9  # of the enumeration's own rounding


class Law:
    """Outcomes (p, q) of one row."""

    def __init__(self, p, q):
        with np.errstate(divide="ignore"):
            key = np.round(np.log(p) - np.log(np.where(q > 0, q, 1)), 13)
        key = np.where(q > 0.0, np.where(p > 0.0, key, -np.inf), np.inf)
        _, index = np.unique(key, return_inverse=True)
        self.p, self.q = np.bincount(index, p), np.bincount(index, q)

    @property
    def size(self):
        return self.p.size

    def times(self, other):
        return Law(np.outer(self.p, other.p).ravel(), np.outer(self.q, other.q).ravel())

    def epsilon(self, delta):
        """The least epsilon >= 0."""
        with np.errstate(divide="ignore"):
            g = np.where(self.q > 0.0, self.p / np.where(self.q > 0.0, self.q, 1.0), np.inf)
        tau = float(self.p[g == np.inf].sum())
        if tau > delta:
            return math.inf
        nodes = np.sort(g[np.isfinite(g)])
        h = [math.fsum(np.maximum(self.p - x * self.q, 0.0)) for x in nodes]
        for (a, u), (b, v) in itertools.pairwise(zip([0.0, *nodes], [1.0, *h], strict=True)):
            if v <= delta < u:
                return max(math.log(a + (b - a) * (u - delta) / (u - v)), 0.0)
        return 0.0


def _each(made, *rows):
    """A row is the law that bounds from above are of, and those that bounds from below are under.

    The three are one unless reports are shuffled.
    """
    if all(x is row[0] for row in rows for x in row):
        return (made(*(row[0] for row in rows)),) * 3
    return tuple(made(*laws) for laws in zip(*rows, strict=True))


def _size(row):
    return max(x.size for x in row)


def _sampled(law, rate):
    return Law((1.0 - rate) * law.q + rate * law.p, law.q)


def _allocated(law, steps):
    parts = [Law(law.p, law.q)] * steps
    every = list(itertools.product(*(range(x.size) for x in parts)))
    every = np.array(every)
    own, other = law.p[every], law.q[every]
    q = np.prod(other, axis=1)
    p = sum(np.prod(np.where(np.arange(steps) == i, own, other), axis=1) for i in range(steps))
    return Law(p / steps, q)


def _mixed(one, other, weight):
    p = np.append(weight * one.p, (1.0 - weight) * other.p)
    return Law(p, np.append(weight * one.q, (1.0 - weight) * other.q))


def _pair(rng, rows):
    """A pair of two or three outcomes, about as far apart as one step of a training run."""
    number = int(rng.integers(2, 4))
    q = rng.dirichlet(np.full(number, 3.0), rows)
    p = q * np.exp(rng.uniform(-1.0, 1.0, (rows, number)) * rng.uniform(0.2, 1.0, (rows, 1)))
    p /= p.sum(axis=1, keepdims=True)
    return jaxdp.FinitePair(p, q), [(Law(a, b),) * 3 for a, b in zip(p, q, strict=True)], "pair"


def _response(epsilon):
    p = 1.0 / (1.0 + math.exp(-epsilon))
    return Law(np.array([p, 1.0 - p]), np.array([1.0 - p, p]))


def _shuffled(epsilon, number):
    """So many randomised responses in random order: how many are coins, and how many ones."""
    p, coin = 1.0 / (1.0 + math.exp(-epsilon)), 2.0 / (1.0 + math.exp(epsilon))
    one, other = [], []
    for coins in range(number):
        weight = math.comb(number - 1, coins) * coin**coins * (1.0 - coin) ** (number - 1 - coins)
        ones = np.array([math.comb(coins, k) for k in range(coins + 1)]) * weight * 0.5**coins
        more, fewer = np.append(0.0, ones), np.append(ones, 0.0)
        one.append(p * more + (1.0 - p) * fewer)
        other.append((1.0 - p) * more + p * fewer)
    return Law(np.concatenate(one), np.concatenate(other))


def _alike(epsilon, number):
    """The law of the ones where all hold 0, and where one of them holds 1."""
    p = 1.0 / (1.0 + math.exp(epsilon))
    rest = [math.comb(number - 1, k) * p**k * (1.0 - p) ** (number - 1 - k) for k in range(number)]
    more, fewer = np.append(0.0, rest), np.append(rest, 0.0)
    return p * more + (1.0 - p) * fewer, (1.0 - p) * more + p * fewer


def _reports(rng, rows):
    """A few randomised responses, shuffled."""
    epsilon, number = rng.uniform(0.1, 2.0, rows), rng.integers(1, 4, rows)
    laws = []
    for e, n in zip(epsilon, number, strict=True):
        zero, one = _alike(e, int(n))
        laws.append((_shuffled(e, int(n)), Law(one, zero), Law(zero, one)))
    return jaxdp.Shuffled(jaxdp.RandomizedResponse(epsilon), number), laws, "shuffled"


def _plain(rng, rows):
    """Randomised response."""
    epsilon = rng.uniform(0.1, 2.0, rows)
    return jaxdp.RandomizedResponse(epsilon), [(_response(e),) * 3 for e in epsilon], "response"


def _schedule(rng, depth, rows):
    """Two or three of a tree, each with parameters of its own."""
    steps = int(rng.integers(2, 4))
    m, laws, name = tree(rng, depth, rows * steps)
    if max(map(_size, laws)) ** steps > 200_000:
        return tree(rng, depth, rows)
    m = jax.tree.map(lambda x: x.reshape((rows, steps, *x.shape[1:])) if np.ndim(x) else x, m)
    parts = [laws[k * steps : (k + 1) * steps] for k in range(rows)]
    made = [_each(lambda *x: functools.reduce(Law.times, x), *part) for part in parts]
    return jaxdp.Schedule(m), made, f"schedule({name})"


def tree(rng, depth, rows):
    """(mechanism, the laws of its rows, its name)."""
    kinds = ["sample", "allocation", "mixture", "repeat", "compose", "schedule"]
    if not depth:
        return rng.choice([_pair, _reports, _plain], p=[0.5, 0.25, 0.25])(rng, rows)
    kind = str(rng.choice(kinds))
    if kind == "schedule":
        return _schedule(rng, depth - 1, rows)
    m, laws, name = tree(rng, depth - 1, rows)
    largest = max(map(_size, laws))
    if kind == "sample":
        rate = rng.uniform(0.05, 0.9, rows)
        sampled = [
            _each(lambda x, r=r: _sampled(x, r), row) for row, r in zip(laws, rate, strict=True)
        ]
        return jaxdp.PoissonSampled(m, rate), sampled, f"sample({name})"
    if kind in ("allocation", "repeat"):
        count = int(rng.integers(2, 5))
        while count > 1 and largest**count > (20_000 if kind == "allocation" else 200_000):
            count -= 1
        if count == 1:
            return m, laws, name
        if kind == "allocation":
            made = [_each(lambda x: _allocated(x, count), row) for row in laws]
            m, name = jaxdp.RandomAllocation(m, count), f"1 of {count}({name})"
        else:
            made = laws
            for _ in range(count - 1):
                made = [_each(Law.times, x, y) for x, y in zip(made, laws, strict=True)]
            m, name = jaxdp.Repeated(m, count), f"{count} times({name})"
        return m, made, name
    other, others, label = tree(rng, int(rng.integers(0, depth)), rows)
    if kind == "mixture":
        weight = rng.uniform(0.1, 0.9, rows)
        mixed = [
            _each(lambda x, y, w=w: _mixed(x, y, w), *both)
            for *both, w in zip(laws, others, weight, strict=True)
        ]
        weights = np.stack([weight, 1.0 - weight], axis=-1)
        return jaxdp.Mixture([m, other], weights), mixed, f"mixture({name}, {label})"
    if largest * max(map(_size, others)) > 200_000:
        return m, laws, name
    both = [_each(Law.times, x, y) for x, y in zip(laws, others, strict=True)]
    return jaxdp.Composed([m, other]), both, f"composed({name}, {label})"


def structure(rng, depth, rows):
    """A tree whose laws are small enough to be enumerated."""
    while True:
        m, laws, name = tree(rng, depth, rows)
        if "(" in name and max(map(_size, laws)) <= _MOST:
            return m, laws, name


def ask(m, laws, delta, method):
    """(violations, widths relative to epsilon), over both directions."""
    violations, widths = 0, []
    for direction in ("remove", "add"):
        found = jaxdp.epsilon_bounds(m, delta, direction=direction, method=method)
        low, high = (np.asarray(x) for x in found)
        for row, d, a, b in zip(laws, delta, low, high, strict=True):
            asked = [x if direction == "remove" else Law(x.q, x.p) for x in row]
            truth, *under = (x.epsilon(d) for x in asked)
            attained = max(under)
            violations += bool(a > attained * (1 + _SLACK) + _SLACK)
            violations += bool(b < truth * (1 - _SLACK) - _SLACK)
            if math.isfinite(truth) and attained > 0.0:
                widths.append((attained - a) / attained)
                widths.append((b - truth) / truth)
    return violations, widths


def run(seed, structures, rows, depth, minutes):
    """One line for every structure."""
    rng, start, lines = np.random.default_rng(seed), time.monotonic(), []
    for _ in range(structures):
        if time.monotonic() - start > 60.0 * minutes:
            break
        m, laws, name = structure(rng, int(rng.integers(1, depth + 1)), rows)
        delta = 10.0 ** rng.uniform(-4.0, -1.0, rows)
        begun = time.process_time()
        violations, widths = ask(m, laws, delta, jaxdp.Numerical())
        below, above = (np.array(widths[i::2]) for i in (0, 1))
        seconds = time.process_time() - begun
        lines.append((name, 2 * rows, violations, below, above, seconds))
        quantiles = [f"{np.quantile(x, 0.95):.1e}" if x.size else "-" for x in (below, above)]
        print(name, violations, *quantiles, f"{seconds:.0f} s", flush=True)
    return lines


def report(lines, seed):
    """Markdown."""
    below, above = (np.concatenate([line[i] for line in lines]) for i in (3, 4))
    asked, wrong = sum(x[1] for x in lines), sum(x[2] for x in lines)
    text = [
        "# Pairs, reports and schedules nested at random, against enumeration",
        "",
        f"`python -m benchmarks.nesting --seed {seed}`: {len(lines)} structures, {asked} questions "
        f'(half of them "add"), {wrong} violations.',
        "",
        "| side | median | 95 % | largest | share within 1e-3 of epsilon |",
        "|---|---|---|---|---|",
    ]
    for side, x in (("above", above), ("below", below)):
        numbers = [f"{np.quantile(x, p):.1e}" for p in (0.5, 0.95, 1.0)]
        text.append(f"| {side} | {' | '.join(numbers)} | {np.mean(x <= 1e-3):.0%} |")
    text += ["", "| structure | questions | violations | below, median | above, median | CPU s |"]
    text.append("|---|---|---|---|---|---|")
    for name, number, violations, a, b, seconds in lines:
        medians = " | ".join(f"{np.median(x):.1e}" if x.size else "-" for x in (a, b))
        text.append(f"| {name} | {number} | {violations} | {medians} | {seconds:.0f} |")
    return "\n".join(text) + "\n"


def main():
    """Run it, and write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--structures", type=int, default=40)
    parser.add_argument("--rows", type=int, default=25)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--output", type=pathlib.Path)
    options = parser.parse_args()
    with jax.enable_x64(True):
        lines = run(options.seed, options.structures, options.rows, options.depth, options.minutes)
    text = report(lines, options.seed)
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
