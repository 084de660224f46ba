"""Exact laws of pairs (P, Q) in 150-digit arithmetic: what the library's answers are judged by.

Nothing of the library is used here. A law answers `h(a, reverse)`, the hockey-stick divergence
H_a(P||Q) = sum (P - a Q)_+, or H_a(Q||P) if `reverse`, at any a >= 0.
"""

import bisect
import functools
import itertools
import math
from collections.abc import Iterable, Sequence

from mpmath import mp, mpf

DIGITS = mp.dps = 150  # and of whoever imports this
ZERO, ONE = mpf(0), mpf(1)


class Law:
    """A pair of distributions, known by its hockey-stick curve."""

    least = ZERO  # the deltas from which on epsilon is known

    def h(self, a: mpf, reverse: bool) -> mpf:
        """H_a(P||Q), or H_a(Q||P)."""
        raise NotImplementedError

    def renyi(self, alpha: mpf, reverse: bool) -> mpf | None:
        """The Rényi divergence, or None where it is not known."""
        return None

    def mixed(self, other: "Law", a: mpf, reverse: bool) -> mpf:
        """H_a of the product of this law and another, which is read as a curve."""
        raise NotImplementedError

    def delta(self, epsilon: mpf, direction: str) -> mpf:
        """The delta at epsilon of a direction."""
        a = mp.exp(epsilon) if epsilon != mp.inf else mp.inf
        if direction != "both":
            return self.at(a, direction == "add")
        return max(self.at(a, False), self.at(a, True))

    def at(self, a: mpf, reverse: bool) -> mpf:
        """`h`, with the mass at infinity for an infinite a."""
        return self.infinite(reverse) if a == mp.inf else self.h(a, reverse)

    def infinite(self, reverse: bool) -> mpf:
        """The mass of P that Q does not cover."""
        return ZERO

    def ends(self) -> list[mpf]:
        """Losses at which the curve has kinks, for special points."""
        return []

    def bends(self) -> list[mpf]:
        """Losses between which the curve is smooth on their own scale, for quadratures."""
        return self.ends()


class Pair(Law):
    """Two vectors of masses."""

    def __init__(self, p: Sequence[mpf], q: Sequence[mpf]):
        """Keep the outcomes that have a mass."""
        self.atoms = [(x, y) for x, y in zip(p, q, strict=True) if x or y]
        self.sums = {}

    def masses(self, reverse: bool) -> list[tuple[mpf, mpf]]:
        """(P, Q), or (Q, P)."""
        return [(y, x) for x, y in self.atoms] if reverse else self.atoms

    def h(self, a, reverse):
        """Sums over the outcomes whose ratio is above a; what only rounding has left is 0."""
        if reverse not in self.sums:
            self.sums[reverse] = self._cumulated(reverse)
        ratios, p, q = self.sums[reverse]
        k = bisect.bisect_left(ratios, -a * (ONE + mpf(10) ** (20 - mp.dps)))
        value = p[k] - a * q[k]
        return value if value > p[k] * mpf(10) ** (20 - mp.dps) else ZERO

    def _cumulated(self, reverse):
        """(minus the ratios, P and Q cumulated), from the largest ratio down."""
        rated = sorted((-x / y if y else mp.ninf, x, y) for x, y in self.masses(reverse))
        p = list(itertools.accumulate((x for _, x, _ in rated), initial=ZERO))
        q = list(itertools.accumulate((y for *_, y in rated), initial=ZERO))
        return [r for r, *_ in rated], p, q

    def infinite(self, reverse):
        """The sum of what the other side lacks."""
        return mp.fsum(x for x, y in self.masses(reverse) if not y)

    def renyi(self, alpha, reverse):
        """The sum itself, at orders from 1 to infinity."""
        atoms = self.masses(reverse)
        if any(x and not y for x, y in atoms):
            return mp.inf
        atoms = [(x, y) for x, y in atoms if x]
        if alpha == mp.inf:
            return max(mp.log(x / y) for x, y in atoms)
        if alpha == 1:
            return mp.fsum(x * mp.log(x / y) for x, y in atoms)
        return mp.log(mp.fsum(x * (x / y) ** (alpha - 1) for x, y in atoms)) / (alpha - 1)

    def mixed(self, other, a, reverse):
        """By the first outcome: sum_i p_i H_{a q_i/p_i}."""
        terms = (x * (other.h(a * y / x, reverse)) for x, y in self.masses(reverse) if x)
        return mp.fsum(terms)

    def tradeoff(self, fpr: mpf) -> mpf:
        """The least type II error of both directions, by Neyman and Pearson."""
        return min(self.directed_tradeoff(fpr, reverse) for reverse in (False, True))

    def directed_tradeoff(self, fpr: mpf, reverse: bool) -> mpf:
        """Of tests of P against Q, or of Q against P."""

        def ratio(atom):
            return atom[0] / atom[1] if atom[1] else mp.inf

        left, missed = fpr, []
        for x, y in sorted(self.masses(reverse), key=ratio, reverse=True):
            part = ONE if y <= left else left / y  # rejected, of this outcome
            left -= part * y
            missed.append((1 - part) * x)
        return mp.fsum(missed)

    def ends(self):
        """The losses of the outcomes."""
        return sorted({mp.log(x / y) for x, y in self.atoms if x and y})


class Cut(Pair):
    """A pair of infinite vectors, cut far below any float: orders are known up to 16."""

    least = mpf("1e-320")

    def renyi(self, alpha, reverse):
        """What large orders weigh most may lie beyond the cut."""
        return super().renyi(alpha, reverse) if alpha <= 16 else None


def sampled(law: Law, q: mpf) -> Law:
    """Poisson subsampling at rate q."""
    if isinstance(law, Pair):
        kind = Cut if isinstance(law, Cut) else Pair
        return kind([(1 - q) * y + q * x for x, y in law.atoms], [y for _, y in law.atoms])
    return Sampled(law, q)


class Sampled(Law):
    """((1 - q) Q + q P, Q) of a pair that is known by its curve."""

    def __init__(self, law: Law, q: mpf):
        """Sample a law."""
        self.law, self.q = law, q

    def h(self, a, reverse):
        """Both formulas of Balle, Barthe & Gaboardi, exact arithmetic aside."""
        q = self.q
        if reverse:
            b = 1 - a * (1 - q)
            return b * self.law.h(a * q / b, True) if b > 0 else ZERO
        c = (a - 1 + q) / q
        return q * self.law.h(c, False) if c > 0 else 1 - a

    def infinite(self, reverse):
        """Of remove, q times the step's; of add it survives where q = 1 only."""
        if reverse:
            return self.law.infinite(True) if self.q == 1 else ZERO
        return self.q * self.law.infinite(False)


@functools.cache
def compositions(total: int, parts: int) -> tuple[tuple[tuple[int, ...], int], ...]:
    """All counts of `parts` outcomes in `total` draws, with their multinomial coefficients."""
    found = []
    for bars in itertools.combinations(range(total + parts - 1), parts - 1):
        edges = (-1, *bars, total + parts - 1)
        counts = tuple(b - a - 1 for a, b in itertools.pairwise(edges))
        ways = math.factorial(total)
        for c in counts:
            ways //= math.factorial(c)
        found.append((counts, ways))
    return tuple(found)


def _power(masses: Sequence[mpf], counts: Sequence[int]) -> mpf:
    product = ONE
    for mass, count in zip(masses, counts, strict=True):
        if count:
            product *= mass**count
    return product


def repeated(pair: Pair, count: int) -> Pair:
    """`count` runs of a finite pair, by enumeration of the counts of its outcomes."""
    p, q = [x for x, _ in pair.atoms], [y for _, y in pair.atoms]
    every = compositions(count, len(p))
    return Pair([w * _power(p, c) for c, w in every], [w * _power(q, c) for c, w in every])


def product(pairs: Iterable[Pair]) -> Pair:
    """The composition of finite pairs."""
    atoms, pairs = [(ONE, ONE)], list(pairs)
    kind = Cut if any(isinstance(pair, Cut) for pair in pairs) else Pair
    for pair in pairs:
        atoms = [(x * u, y * v) for x, y in atoms for u, v in pair.atoms]
    return kind([x for x, _ in atoms], [y for _, y in atoms])


def block(pair: Pair, steps: int) -> Pair:
    """One of `steps` steps joined, uniformly: (mean of P at one place and Q elsewhere, Q)."""
    p, q = [x for x, _ in pair.atoms], [y for _, y in pair.atoms]
    with_record, without = [], []
    for counts, ways in compositions(steps, len(p)):
        without.append(ways * _power(q, counts))
        mass = ZERO
        for i, c in enumerate(counts):
            if c:
                others = tuple(n - (j == i) for j, n in enumerate(counts))
                mass += c * p[i] * _power(q, others)
        with_record.append(ways * mass / steps)
    return Pair(with_record, without)


def allocated(pair: Pair, steps: int, selected: int = 1, epochs: int = 1) -> Pair:
    """k of t steps in every epoch: one of each of k blocks, as the documentation splits them."""
    small, larger = divmod(steps, selected)
    blocks = [block(pair, small + 1)] * larger + [block(pair, small)] * (selected - larger)
    return product(blocks * epochs)


class Composed(Law):
    """The composition of a law and a curve, by the first law's outcomes or quadrature."""

    def __init__(self, first: Law, second: Law):
        """Keep both."""
        self.first, self.second = first, second

    def h(self, a, reverse):
        """By the outcome of the first."""
        return self.first.mixed(self.second, a, reverse)

    def infinite(self, reverse):
        """One of both fails."""
        return 1 - (1 - self.first.infinite(reverse)) * (1 - self.second.infinite(reverse))
