"""Many runs, at epsilons anywhere between 0 and beyond the mean loss.

Where delta is far from its usual sizes, up to 1, and a run has up to 1e9 steps, no law can be
enumerated. Counting tests can: of a step, an event A has a probability p with the record and q
without it, so the number of times it happens is binomial, and for every k

    delta(epsilon) >= P(N >= k) - e^epsilon Q(N >= k),   Q(N >= k) <= exp(-T KL(k/T || q)).

Lower bounds on delta are judged by upper bounds on epsilon (delta cannot exceed the target
there), and where a step has two outcomes by the binomial law itself.
"""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
from scipy import special, stats

import jaxdp
from benchmarks.attack import draw
from benchmarks.attack.grammar import literal

LOST = 1e-9  # of a binomial tail, by SciPy's rounding
DEVIATIONS = (0.0, 1.0, 2.0, 3.0, 5.0, 8.0, 20.0)
ROUNDED = 1e-12  # below it the tests say nothing


@dataclasses.dataclass(frozen=True)
class Step:
    """A step whose events are known.

    Attributes:
      name: for the table.
      samplers: of its parameters.
      build: parameters -> mechanism.
      events: parameters -> pairs (probability with the record, without it).
      exact: parameters -> the loss of a step of two outcomes, each the other's mirror.
    """

    name: str
    samplers: tuple
    build: Callable
    events: Callable
    exact: Callable | None = None


def _thresholds(tail):
    """Events {noise + shift > x} of symmetric noise of scale s and a shift of 1."""

    def events(scale):
        return [(tail((x - 1) / scale), tail(x / scale)) for x in (-0.5, 0.0, 0.5, 1.0, 1.5)]

    return events


def _laplace_tail(x):
    return np.where(x > 0, 0.5 * np.exp(-np.abs(x)), 1 - 0.5 * np.exp(-np.abs(x)))


def _geometric_events(a):
    """{noise + 1 >= x}, of noise on the integers with masses falling by e^-a."""
    first = 1 / (1 + np.exp(-a))  # of {noise >= 0}
    return [(first, first * np.exp(-a)), (1 - first * np.exp(-a), first)]


def sampled(step: Step) -> Step:
    """Poisson sampling: with the record, a mixture."""

    def events(*row):
        *inner, rate = row
        return [((1 - rate) * q + rate * p, q) for p, q in step.events(*inner)]

    return Step(
        f"PoissonSampled({step.name})",
        (*step.samplers, draw.rate),
        lambda *row: jaxdp.PoissonSampled(step.build(*row[:-1]), row[-1]),
        events,
    )


def allocated(step: Step, most: int) -> Step:
    """One of t steps: that an event happens in any of them, and in all of them."""

    def events(*row):
        *inner, t = row
        found = []
        for p, q in step.events(*inner):
            without, rest = q**t, q ** (t - 1)
            found.append((p * rest, without))
            without, rest = (1 - q) ** t, (1 - q) ** (t - 1)
            found.append((1 - (1 - p) * rest, 1 - without))
        return found

    return Step(
        f"RandomAllocation({step.name})",
        (*step.samplers, draw.integer(1, most)),
        lambda *row: jaxdp.RandomAllocation(step.build(*row[:-1]), row[-1]),
        events,
    )


def steps() -> list[Step]:
    """Those that are repeated."""
    response = Step(
        "RandomizedResponse",
        (draw.real(1e-3, 60, 1.0, 20.0),),
        jaxdp.RandomizedResponse,
        lambda e: [(special.expit(e), special.expit(-e))],
        lambda e: e,
    )
    gaussian = Step(
        "Gaussian", (draw.real(0.02, 1e3, 1.0, 0.5),), jaxdp.Gaussian, _thresholds(stats.norm.sf)
    )
    laplace = Step(
        "Laplace", (draw.real(0.01, 1e3, 1.0),), jaxdp.Laplace, _thresholds(_laplace_tail)
    )
    geometric = Step(
        "DiscreteLaplace", (draw.real(1e-3, 60, 1.0),), jaxdp.DiscreteLaplace, _geometric_events
    )
    plain = [response, laplace, geometric]  # composed Gaussians have a closed form
    found = [*plain, *(sampled(s) for s in (*plain, gaussian))]
    return [*found, *(allocated(s, 100) for s in (response, gaussian))]


def _relative_entropy(x, q):
    """KL(x || q) of two coins, in nats."""
    return special.rel_entr(x, q) + special.rel_entr(1 - x, 1 - q)


def mean_loss(events) -> np.ndarray:
    """At least this is the mean loss of a step."""
    with np.errstate(all="ignore"):
        found = [np.nan_to_num(_relative_entropy(p, q), posinf=0.0) for p, q in events]
    return np.max(found, axis=0)


def least_delta(events, count, epsilon) -> np.ndarray:
    """What the best counting test shows."""
    best = np.zeros_like(epsilon)
    for p, q in events:
        # (The complement of a nearly sure event has lost its digits.)
        complement = (1 - p, np.where(1 - q > 1e-3, 1 - q, 1.0))
        for p_one, q_one in ((p, q), complement):
            deviation = np.sqrt(count * p_one * (1 - p_one))
            for c in DEVIATIONS:
                k = np.floor(count * p_one - c * deviation)
                with np.errstate(all="ignore"):
                    power = stats.binom.sf(k - 1, count, p_one) * (1 - LOST)
                    exponent = epsilon - count * _relative_entropy(k / count, q_one)
                    shown = power - np.exp(np.minimum(exponent + 1e-3, 1.0))
                valid = (k > 0) & (k / count > q_one) & (q_one < p_one)
                best = np.maximum(best, np.where(valid, np.nan_to_num(shown, nan=0.0), 0.0))
    return best


def most_delta(loss, count, epsilon) -> np.ndarray:
    """P(L > epsilon) of a sum of losses +-e, which is above delta."""
    k = np.floor(0.5 * (epsilon / loss + count) * (1 - 1e-14))
    return stats.binom.sf(k, count, special.expit(loss)) * (1 + LOST) + ROUNDED


def _epsilons(rng, events, count):
    share = rng.uniform(0.0, 1.3, len(count))
    values = share * count * mean_loss(events)
    return draw.spiced(rng, values, (0.0, 1e-3, 1.0, 100.0), share=0.3)


def attack(step: Step, rng: np.random.Generator, rows: int, tally) -> None:
    """Bounds on delta between what tests show, and epsilon read against delta."""
    start = time.perf_counter()
    row = [s(rng, rows) for s in step.samplers]
    count = np.round(draw.log_uniform(rng, 2.0, 1e9, rows))
    m = jaxdp.Repeated(step.build(*row), count)
    events = step.events(*row)
    drawn = [*row, count]

    def line(query, i, note):
        at = ", ".join(literal(x[i]) for x in drawn)
        return f"{query} of Repeated({step.name}) at ({at})  # {note}"

    def judge(query, verdict, where, note):
        for i in np.flatnonzero(where):
            tally.note(query, verdict, line(query, i, note(i)))

    for direction in ("remove", "add"):
        named = events if direction == "remove" else [(q, p) for p, q in events]
        epsilon = _epsilons(rng, named, count)
        query = f"delta_bounds {direction}"
        low, high = map(np.asarray, jaxdp.delta_bounds(m, epsilon, direction=direction))
        least = least_delta(named, count, epsilon)
        tally.settings += rows

        def delta(i, low=low, high=high, least=least, epsilon=epsilon):
            return f"({low[i]!r}, {high[i]!r}) at {epsilon[i]!r}, a test shows {least[i]!r}"

        judge(query, "nan", np.isnan(low) | np.isnan(high), delta)
        judge(query, "violation", (high < least - ROUNDED) | (low > high), delta)
        judge(query, "trivial", (low < 1e-3) & (least > 0.5), delta)
        if step.exact:
            most = most_delta(step.exact(*row), count, epsilon)
            judge(query, "violation", low > most, delta)
            judge(query, "trivial", (high > 0.99) & (most < 0.5), delta)
        _inverse(m, rng, direction, rows, judge)
        tally.settings += rows
    tally.seconds += time.perf_counter() - start


def _inverse(m, rng, direction, rows, judge) -> None:
    """Where epsilon's upper bound says that delta is met, delta's lower bound must not differ."""
    target = draw.log_uniform(rng, 1e-12, 0.9, rows)
    low, high = map(np.asarray, jaxdp.epsilon_bounds(m, target, direction=direction))
    met = np.isfinite(high)
    below, _ = jaxdp.delta_bounds(m, np.where(met, high, 1.0), direction=direction)
    below = np.asarray(below)

    def note(i):
        return f"({low[i]!r}, {high[i]!r}) at {target[i]!r}, where delta is at least {below[i]!r}"

    query = f"epsilon_bounds {direction}"
    judge(query, "nan", np.isnan(low) | np.isnan(high), note)
    judge(query, "violation", (low > high) | (met & (below > target * (1 + LOST))), note)
    judge(query, "trivial", ~met, note)
    judge(query, "wide", met & (high - low > np.maximum(0.05 * high, 1e-6)), note)
