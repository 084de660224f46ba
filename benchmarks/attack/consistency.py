"""What needs no truth: brackets must overlap, and move the right way with every parameter."""

import dataclasses
import time
from collections.abc import Callable

import numpy as np

import jaxdp
from benchmarks.attack import draw
from benchmarks.attack.grammar import literal
from benchmarks.attack.judge import DIRECTIONS


@dataclasses.dataclass(frozen=True)
class Family:
    """A structure without an exact law.

    Attributes:
      name: for the table, and the build in Python.
      samplers: of its parameters.
      signs: +1 where privacy falls with the parameter, -1 where it rises, 0 if neither is known.
      build: parameters -> mechanism.
      whole: which parameters are integers.
    """

    name: str
    samplers: tuple
    signs: tuple[int, ...]
    build: Callable
    whole: tuple[bool, ...]


def _dp_sgd(s, q, t):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(s), q), t)


NOISE = draw.real(0.3, 100, 1.0, 0.5)
COUNT = draw.integer(1, 10**6)
SMALL = draw.integer(1, 100)
STEPS = draw.integer(1, 10**5)
FINE = draw.integer(10, 10**4)  # a sensitivity, of noise much wider than a list of integers


def families() -> list[Family]:
    """The ordinary ground, and some nesting."""
    g, p, r = jaxdp.Gaussian, jaxdp.PoissonSampled, jaxdp.Repeated
    a, c, lap = jaxdp.RandomAllocation, jaxdp.Composed, jaxdp.Laplace
    n, y = False, True
    return [
        Family("DP-SGD", (NOISE, draw.rate, COUNT), (-1, 1, 1), _dp_sgd, (n, n, y)),
        Family(
            "Repeated(PoissonSampled(Laplace))",
            (NOISE, draw.rate, STEPS), (-1, 1, 1), lambda b, q, t: r(p(lap(b), q), t), (n, n, y),
        ),
        Family("Repeated(Laplace)", (NOISE, STEPS), (-1, 1), lambda b, t: r(lap(b), t), (n, y)),
        Family(
            "RandomAllocation(Gaussian)",
            (NOISE, STEPS), (-1, -1), lambda s, t: a(g(s), t), (n, y),
        ),
        Family(
            "RandomAllocation(Laplace)",
            (NOISE, STEPS), (-1, -1), lambda s, t: a(lap(s), t), (n, y),
        ),
        Family(
            "RandomAllocation(Gaussian, epochs)",
            (NOISE, STEPS, SMALL), (-1, -1, 1),
            lambda s, t, e: a(g(s), t, num_epochs=e), (n, y, y),
        ),
        Family(
            "RandomAllocation(Gaussian, selected)",
            (NOISE, draw.integer(100, 10**5), SMALL), (-1, 0, 0),
            lambda s, t, k: a(g(s), t, num_selected=k), (n, y, y),
        ),
        Family(
            "RandomAllocation(NegativeBinomial)",
            (draw.real(0.3, 30, 1.0), draw.real(0.05, 0.95), SMALL), (0, 0, 0),
            lambda x, z, t: a(jaxdp.NegativeBinomial(x, z), t), (n, n, y),
        ),
        Family(
            "Repeated(DiscreteGaussian)",
            (draw.real(0.3, 30, 1.0), STEPS), (0, 1),
            lambda s, t: r(jaxdp.DiscreteGaussian(s), t), (n, y),
        ),
        Family(
            "Repeated(DiscreteGaussian), fine",
            (NOISE, FINE, STEPS), (0, 0, 1),
            lambda s, x, t: r(jaxdp.DiscreteGaussian(s * x, x), t), (n, y, y),
        ),
        Family(
            "Repeated(PoissonSampled(Skellam)), fine",
            (NOISE, FINE, draw.rate, STEPS), (-1, 0, 1, 1),
            lambda s, x, q, t: r(p(jaxdp.Skellam((s * x) ** 2, x), q), t), (n, y, n, y),
        ),
        Family(
            "Repeated(NegativeBinomial), fine",
            (draw.real(0.3, 1e3, 1.0), draw.real(1e-5, 0.5), SMALL), (0, 0, 1),
            lambda x, z, t: r(jaxdp.NegativeBinomial(x, z), t), (n, n, y),
        ),
        Family(
            "Repeated(PoissonSampled(Skellam))",
            (draw.real(0.3, 100, 1.0), draw.rate, STEPS), (-1, 1, 1),
            lambda v, q, t: r(p(jaxdp.Skellam(v), q), t), (n, n, y),
        ),
        Family(
            "Composed(DP-SGD, Repeated(Laplace))",
            (NOISE, draw.rate, STEPS, NOISE, SMALL), (-1, 1, 1, -1, 1),
            lambda s, q, t, b, u: c([_dp_sgd(s, q, t), r(lap(b), u)]), (n, n, y, n, y),
        ),
        Family(
            "Composed(RandomAllocation, DP-SGD)",
            (NOISE, STEPS, NOISE, draw.rate, STEPS), (-1, -1, -1, 1, 1),
            lambda s, t, b, q, u: c([a(g(s), t), _dp_sgd(b, q, u)]), (n, y, n, n, y),
        ),
        Family(
            "Repeated(PoissonSampled(ApproximateDP))",
            (draw.real(1e-3, 5), draw.failure, draw.rate, STEPS), (1, 1, 1, 1),
            lambda e, d, q, t: r(p(jaxdp.ApproximateDP(e, d), q), t), (n, n, n, y),
        ),
        Family(
            "Repeated(PoissonSampled(GammaDifference))",
            (draw.real(0.5, 10, 1.0), NOISE, draw.rate, STEPS), (0, -1, 1, 1),
            lambda b, s, q, t: r(p(jaxdp.GammaDifference(b, s), q), t), (n, n, n, y),
        ),
        Family(
            "Repeated(GeneralizedDiscreteLaplace)",
            (draw.real(0.3, 5, 1.0), draw.real(0.01, 3), STEPS), (0, 0, 1),
            lambda b, x, t: r(jaxdp.GeneralizedDiscreteLaplace(b, x), t), (n, n, y),
        ),
        Family(
            "Repeated(RandomAllocation(PoissonSampled(Gaussian)))",
            (NOISE, draw.rate, SMALL, SMALL), (-1, 1, -1, 1),
            lambda s, q, t, u: r(a(p(g(s), q), t), u), (n, n, y, y),
        ),
    ]  # fmt: skip


def _variants(family: Family, rng, base):
    """(rows, less private): every row, then with one parameter moved towards less privacy."""
    moved = [np.array(x) for x in base]
    usable = [k for k, s in enumerate(family.signs) if s]
    for i in range(len(base[0])):
        if not usable:
            break
        k = rng.choice(usable)
        factor = 1 + float(draw.log_uniform(rng, 1e-9, 1.0, 1)[0])
        old = moved[k][i]
        new = old * factor if family.signs[k] > 0 else old / factor
        if family.whole[k]:
            new = np.ceil(new) if family.signs[k] > 0 else max(1.0, np.floor(new))
        if family.samplers[k] is draw.rate:
            new = min(new, 1.0)
        if family.samplers[k] is draw.failure:
            new = min(new, 0.999)
        moved[k][i] = new
    return [np.concatenate([x, y]) for x, y in zip(base, moved, strict=True)]


def _line(family, query, rows, i, argument, note) -> str:
    row = ", ".join(literal(x[i]) for x in rows)
    return f"{query} of {family.name} at ({row}), {literal(argument)}  # {note}"


def _overlap(family, tally, query, rows, argument, bounds) -> None:
    """Ordered, not nan, and the less private of two rows not below the more private one."""
    low, high = bounds
    half = len(argument) // 2
    for i in range(len(argument)):
        pair = f"({float(low[i])!r}, {float(high[i])!r})"
        if np.isnan(low[i]) or np.isnan(high[i]):
            tally.note(query, "nan", _line(family, query, rows, i, argument[i], pair))
        elif low[i] > high[i]:
            tally.note(query, "violation", _line(family, query, rows, i, argument[i], pair))
        compared = i < half and any(family.signs) and argument[i] == argument[i + half]
        if compared and low[i] > high[i + half]:
            other = ", ".join(literal(x[i + half]) for x in rows)
            note = f"low {low[i]!r} above high {high[i + half]!r} of ({other}), less private"
            tally.note(query, "violation", _line(family, query, rows, i, argument[i], note))


def _widths(family, tally, query, rows, target, bounds) -> None:
    low, high = bounds
    for i in range(len(target)):
        line = _line(family, query, rows, i, target[i], f"({low[i]!r}, {high[i]!r})")
        if np.isinf(high[i]) and not np.isinf(low[i]):
            tally.note(query, "trivial", line)
        elif high[i] - low[i] > max(1e-2 * high[i], 1e-6):
            tally.note(query, "trivial" if low[i] == 0 else "wide", line)


def attack(family: Family, rng: np.random.Generator, rows: int, tally) -> None:
    """One-sided brackets, both, other methods, and the one read against the other."""
    start = time.perf_counter()
    base = [s(rng, rows) for s in family.samplers]
    drawn = _variants(family, rng, base)
    target = np.tile(np.maximum(draw.delta(rng, rows), 1e-250), 2)
    m = family.build(*drawn)

    def ask(query, argument, direction, **options):
        found = getattr(jaxdp, query)(m, argument, direction=direction, **options)
        found = [np.broadcast_to(np.asarray(x), argument.shape) for x in found]
        tally.settings += len(argument)
        _overlap(family, tally, f"{query} {direction} {options or ''}", drawn, argument, found)
        return found

    direction = str(rng.choice(DIRECTIONS[:2]))
    low, high = ask("epsilon_bounds", target, direction)
    _widths(family, tally, f"epsilon_bounds {direction}", drawn, target, (low, high))
    check = rng.choice(["inverse", "methods", "both"])  # the others are another seed's
    if check == "inverse":  # delta at these epsilons lies on the right side of the target
        at = np.where(np.isfinite(high), high, 1e4)
        below, _ = ask("delta_bounds", at, direction)
        for i in np.flatnonzero(np.isfinite(high) & (below > target)):
            note = f"delta >= {below[i]!r} at epsilon's upper bound {at[i]!r}"
            line = _line(family, f"epsilon_bounds {direction}", drawn, i, target[i], note)
            tally.note("inverse", "violation", line)
    if check == "methods":
        grid = jaxdp.Numerical(int(rng.choice([1024, 4096, 16384])))
        other = ask("epsilon_bounds", target, direction, method=grid)
        _cross(family, tally, drawn, target, (low, high), other, f"{direction} {grid}")
    if check == "both":
        both = ask("epsilon_bounds", target, "both")
        for i in np.flatnonzero(both[1] < low):
            note = f"{both[1][i]!r} < {low[i]!r} of {direction}"
            line = _line(family, "epsilon_bounds both", drawn, i, target[i], note)
            tally.note("both", "violation", line)
    tally.seconds += time.perf_counter() - start


def _cross(family, tally, rows, target, one, other, name) -> None:
    for i in range(len(target)):
        if one[0][i] > other[1][i] or other[0][i] > one[1][i]:
            note = f"({one[0][i]!r}, {one[1][i]!r}) and ({other[0][i]!r}, {other[1][i]!r})"
            line = _line(family, f"epsilon_bounds {name}", rows, i, target[i], note)
            tally.note("methods", "violation", line)
