"""Derivatives of public queries in every real argument, against differences of the same query.

At a kink any value between the two one-sided slopes will do. Where two step sizes disagree
about a slope, so may the derivative.
"""

import dataclasses
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

import jaxdp
from benchmarks.attack import draw
from benchmarks.attack.grammar import literal


@dataclasses.dataclass(frozen=True)
class Case:
    """A query of a mechanism: samplers of its real arguments, the last one the query's."""

    name: str
    samplers: tuple
    ask: Callable
    exact: bool  # a closed form: small steps, sharp comparison
    slow: bool = False  # fewer rows


def _orders(rng, n):
    values = 1.0 + draw.log_uniform(rng, 1e-2, 60, n)
    return np.where(rng.random(n) < 0.4, np.maximum(np.round(values), 2.0), values)


def _epsilons(rng, n):
    values = draw.log_uniform(rng, 1e-2, 5, n)
    return np.where(rng.random(n) < 0.2, -values, values)


def _deltas(rng, n):
    return draw.log_uniform(rng, 1e-10, 0.3, n)


def _rates(rng, n):
    return np.clip(draw.log_uniform(rng, 1e-4, 1.0, n), 1e-4, 0.999)


def _fpr(rng, n):
    return rng.uniform(0.01, 0.99, n)


SCALE = draw.real(0.2, 10)
MIDDLE = draw.real(0.1, 5)
SLOW = ("LaplaceSum(3)", "GammaDifference", "DiscreteGaussian", "Skellam", "NegativeBinomial",
        "GeneralizedDiscreteLaplace",
        "Shuffled(RandomizedResponse, 100)")  # fmt: skip
QUERIES = {
    "delta": _epsilons,
    "log_delta": _epsilons,
    "hockey_stick": _epsilons,
    "epsilon": _deltas,
    "renyi": _orders,
    "tradeoff": _fpr,
}


def _cases(name, samplers, build, exact, queries, directions=("remove", "add", "both")):
    for query in queries:
        for direction in directions if query != "tradeoff" else ("",):
            options = {"direction": direction} if direction else {}

            def ask(*args, query=query, options=options):
                return getattr(jaxdp, query)(build(*args[:-1]), args[-1], **options)

            label = f"{query} {direction} of {name}"
            yield Case(label, (*samplers, QUERIES[query]), ask, exact, name in SLOW)


def cases(rng: np.random.Generator) -> list[Case]:
    """Every mechanism in some queries and one direction, for compile time."""
    p, r, a = jaxdp.PoissonSampled, jaxdp.Repeated, jaxdp.RandomAllocation
    steps = draw.integer(2, 50)
    closed = [
        ("Gaussian", (SCALE, MIDDLE), jaxdp.Gaussian),
        ("Laplace", (SCALE, MIDDLE), jaxdp.Laplace),
        ("RandomizedResponse", (MIDDLE,), jaxdp.RandomizedResponse),
        ("ApproximateDP", (MIDDLE, _deltas), jaxdp.ApproximateDP),
        ("DiscreteGaussian", (SCALE,), jaxdp.DiscreteGaussian),
        ("DiscreteLaplace", (MIDDLE,), jaxdp.DiscreteLaplace),
        ("Skellam", (SCALE,), jaxdp.Skellam),
        ("NegativeBinomial", (SCALE, _fpr), jaxdp.NegativeBinomial),
        ("LaplaceSum(3)", (SCALE,), lambda s: jaxdp.LaplaceSum(3, s)),
        ("GammaDifference", (draw.real(0.6, 5), SCALE), jaxdp.GammaDifference),
        ("GeneralizedDiscreteLaplace", (draw.real(0.3, 5), MIDDLE),
         jaxdp.GeneralizedDiscreteLaplace),
        ("OrnsteinUhlenbeck", (MIDDLE, MIDDLE, MIDDLE), jaxdp.OrnsteinUhlenbeck),
        ("Brownian", (MIDDLE,), jaxdp.Brownian),
        ("PoissonSampled(Gaussian)", (SCALE, _rates), lambda s, q: p(jaxdp.Gaussian(s), q)),
        ("PoissonSampled(Laplace)", (SCALE, _rates), lambda s, q: p(jaxdp.Laplace(s), q)),
        ("PoissonSampled(RandomizedResponse)", (MIDDLE, _rates),
         lambda e, q: p(jaxdp.RandomizedResponse(e), q)),
        ("FinitePair", (_rates, _rates), lambda x, y: jaxdp.FinitePair(
            jnp.stack([0.9 * x, 1 - 0.9 * x], -1), jnp.stack([0.9 * y, 1 - 0.9 * y], -1))),
        ("ConstantNoisyIteration", (MIDDLE, SCALE, steps), jaxdp.ConstantNoisyIteration),
        ("Shuffled(RandomizedResponse, 100)", (MIDDLE,),
         lambda e: jaxdp.Shuffled(jaxdp.RandomizedResponse(e), 100)),
    ]  # fmt: skip
    numerical = [
        ("DP-SGD", (SCALE, _rates, steps), lambda s, q, t: r(p(jaxdp.Gaussian(s), q), t)),
        ("Repeated(Laplace)", (SCALE, steps), lambda b, t: r(jaxdp.Laplace(b), t)),
        ("RandomAllocation(Gaussian)", (SCALE, steps), lambda s, t: a(jaxdp.Gaussian(s), t)),
        ("RandomAllocation(RandomizedResponse)", (MIDDLE, steps),
         lambda e, t: a(jaxdp.RandomizedResponse(e), t)),
        ("Composed(Laplace, sampled Gaussian)", (SCALE, SCALE, _rates), lambda b, s, q:
         jaxdp.Composed([jaxdp.Laplace(b), p(jaxdp.Gaussian(s), q)])),
    ]  # fmt: skip
    found = []
    for n, s, b in closed:
        some = rng.choice(list(QUERIES), 2, replace=False)
        found += _cases(n, s, b, True, some, (str(rng.choice(["remove", "add", "both"])),))
    for n, s, b in numerical:
        some = (str(rng.choice(["log_delta", "epsilon"])),)
        found += _cases(n, s, b, False, some, (str(rng.choice(["remove", "add"])),))
        found += _cases(n, s, b, True, ("renyi",), (str(rng.choice(["remove", "add", "both"])),))
    return found


def attack(case: Case, rng: np.random.Generator, rows: int, tally) -> None:
    """All partial derivatives of every row, one program; and differences of another."""
    start = time.perf_counter()
    args = [jnp.asarray(s(rng, rows)) for s in case.samplers]

    def total(args):
        return jnp.sum(case.ask(*args))

    gradients = [np.asarray(g) for g in jax.grad(total)(args)]
    value = np.asarray(case.ask(*args))
    relative = 1e-5 if case.exact else 1e-3
    for k, x in enumerate(args):
        slopes = {}
        for scale in (relative, 2 * relative):
            step = scale * jnp.abs(x)
            for sign in (-1, 1):
                moved = [*args[:k], x + sign * step, *args[k + 1 :]]
                slopes[sign, scale] = (np.asarray(case.ask(*moved)) - value) / (sign * step)
        _compare(case, tally, args, k, value, gradients[k], slopes, relative)
    tally.settings += rows * len(args)
    tally.seconds += time.perf_counter() - start


def _compare(case, tally, args, k, value, gradient, slopes, relative) -> None:
    """The derivative within the one-sided slopes, extrapolated, and what they are unsure of."""
    sides = [2 * slopes[s, relative] - slopes[s, 2 * relative] for s in (-1, 1)]
    unsure = sum(np.abs(slopes[s, relative] - slopes[s, 2 * relative]) for s in (-1, 1))
    argument = np.abs(np.asarray(args[k]))
    size = np.abs(value)
    if not case.exact and case.name.startswith("log_delta"):
        size = np.maximum(size, 1e-3)  # of a delta next to 1 a bound shows no digits of 1 - delta
    noise = (1e-11 if case.exact else 3e-4) * size / (relative * argument)
    slack = 2 * unsure + 4 * noise + 1e-5 * np.abs(gradient) * (1 if case.exact else 1e3) + 1e-290
    low, high = np.minimum(*sides) - slack, np.maximum(*sides) + slack
    for i in np.flatnonzero(np.isfinite(value)):
        g = gradient[i]
        row = ", ".join(literal(x[i]) for x in args)
        note = f"argument {k}: {g!r}, differences {sides[0][i]:.8g} and {sides[1][i]:.8g}"
        line = f"{case.name} at ({row})  # {note}"
        if not np.isfinite(low[i]) or not np.isfinite(high[i]):
            continue  # at an end of the domain
        if np.isnan(g):
            tally.note(case.name, "nan", line)
        elif not low[i] <= g <= high[i]:
            tally.note(case.name, "violation", line)
