r"""The best of K runs from below: what some order of the outcomes attains.

Outcomes with X = dP/dQ from some c on are the better the larger it is, and those below c are better
than all. For the best event at any g, what is before it, inside and after it are intervals of X in
this order (its contribution, differentiated by where an outcome belongs, is linear in X with slopes
in this order). So that is a mechanism, and its masses those of K's generating function; only c is
to be chosen. Where many outcomes have one X, some of them are better than others.

A law below has events that none of the outcomes are: what is known is that each of its tails, with
Q-mass b and P-mass a, lies below the best test of level b of the mechanism, whose tests are nested.
Let x and a be the P-mass from c on and from some outcome on: that event has, by selection, P-mass
f(x) - f(x - a), which rises in x and a as f is convex, and so does not have less by the best tests
of the levels; and the same Q-mass. So the events that count are those from one piece on, and
pieces' ratios rise along the order. The best outcomes, below c, are one piece, of a ratio that is
at most that of all others: where it counts, all do, and H(g) is at least 1 - g anyway.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._divergences import exp_log, log_positive
from jaxdp._law import Table
from jaxdp._law._from_curve import Pair
from jaxdp._special import log_excess
from jaxdp._tuning._runs import Runs

_PIECES = 1535  # of a pair, from c on
_CHOICES, _FINER, _EVENTS = 96, 24, 384  # of c, of a better one, of events
_AIMS, _ROUNDS = 16, 5  # of epsilons: so many, then so many between two of them
_ROUNDED = 1e-9  # relative, of masses of sums of some thousands
_INTERPOLATED = 2.0**-50
_TINY = 1e-13  # of sums of probabilities
_HALVES = 52  # of the list of cells, for each place


class _Cells(NamedTuple):
    """The masses of one run at increasing losses, at infinity, and those that are left out."""

    q: jax.Array
    p: jax.Array
    tau: jax.Array
    rest: tuple[jax.Array, jax.Array]

    @staticmethod
    def of(table: Table) -> "_Cells":
        """Of a law in its "remove" reading; those left out are better than all others."""
        tau = exp_log(table.log_tau_p) + table.error
        rest = 1.0 - jnp.sum(table.q), 1.0 - jnp.sum(table.p) - tau
        return _Cells(table.q, table.p, tau, (jnp.maximum(rest[0], 0.0), jnp.maximum(rest[1], 0.0)))


def _from_low(mass: jax.Array) -> jax.Array:
    return jnp.append(0.0, jnp.cumsum(mass))


def _from_high(mass: jax.Array) -> jax.Array:
    return jnp.append(jnp.cumsum(mass[::-1])[::-1], 0.0)


def _places(
    measures: Callable[[jax.Array], list[jax.Array]], first: jax.Array | float, last: float, n: int
) -> jax.Array:
    """n + 1 places from the first to the last, at equal steps of the sum of measures of 1 each.

    Measures rise along the list of cells, and inside of a cell as what is in it is better, not in
    proportion to its masses: one cell may be all that there is.
    """

    def total(at: jax.Array) -> jax.Array:
        parts = zip(measures(at), ends[0], ends[1], strict=True)
        return sum((x - low) / jnp.maximum(high - low, _TINY) for x, low, high in parts)

    start, stop = jnp.asarray(first, jnp.float64), jnp.asarray(last, jnp.float64)
    ends = measures(start), measures(stop)
    aim = total(stop) * (jnp.arange(n + 1) / n)

    def halve(_: Any, held: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = 0.5 * (held[0] + held[1])
        above = total(middle) >= aim
        return jnp.where(above, held[0], middle), jnp.where(above, middle, held[1])

    held = jnp.full(n + 1, start), jnp.full(n + 1, stop)
    found = lax.fori_loop(0, _HALVES, halve, held)[1]
    return lax.stop_gradient(found.at[0].set(start).at[-1].set(stop))


def _at(sums: jax.Array, places: jax.Array) -> jax.Array:
    """Sums over cells up to places between them, in proportion."""
    cell = jnp.clip(jnp.floor(places), 0.0, sums.shape[0] - 2.0)
    k = lax.stop_gradient(cell).astype(jnp.int32)
    share = places - cell
    return sums[k] * (1.0 - share) + sums[k + 1] * share


class Events:
    """Events of a coarse list: choices only."""

    def __init__(self, runs: Runs, table: Table) -> None:
        """Of a law of one run."""
        self.cells = lax.stop_gradient(_Cells.of(table))
        self.runs = Runs(*lax.stop_gradient((runs.mean, runs.log_odds)), runs.shape)
        q, p, _, rest = self.cells
        self.low = rest[0] + _from_low(q), rest[1] + _from_low(p)
        high = _from_high(q), _from_high(p)

        def near_low(at: jax.Array) -> list[jax.Array]:
            return [at, *(jnp.log1p(self.runs.fall(_at(x, at))) for x in self.low)]

        def near_high(at: jax.Array) -> list[jax.Array]:
            return [at, *(-jnp.log1p(self.runs.fall(_at(x, at))) for x in high)]

        self.places = _places(near_low, 0.0, q.shape[0], _CHOICES)
        self.starts = _places(near_high, 0.0, q.shape[0], _EVENTS)
        self.event = [_at(x, self.starts)[:, None] for x in high]
        self.coarse = self._masses(self.places)

    def _masses(self, places: jax.Array) -> tuple[jax.Array, jax.Array]:
        """log Q and log P of events from each of `self.starts` on, for some c."""
        better = [_at(low, places) for low in self.low]
        log_q = self.runs.log_share(better[0], self.event[0])
        log_p = self.runs.log_share(better[1], self.event[1] + self.cells.tau)
        return log_q, jnp.where(self.starts[:, None] >= places, log_p, -jnp.inf)

    @staticmethod
    def _log_delta(logs: tuple[jax.Array, jax.Array], epsilon: jax.Array) -> jax.Array:
        """log(P - e^epsilon Q) of the best event, for each c."""
        log_q, log_p = logs
        return jnp.max(log_excess(log_p, epsilon + log_q), axis=0)

    def best(self, epsilon: jax.Array) -> jax.Array:
        """A good c at an epsilon, in cells."""
        value = self._log_delta(self.coarse, epsilon)
        order = jnp.arange(_CHOICES + 1, dtype=jnp.int32)
        k = jnp.min(jnp.where(value >= jnp.max(value), order, _CHOICES))
        ends = self.places[jnp.maximum(k - 1, 0)], self.places[jnp.minimum(k + 1, _CHOICES)]
        finer = ends[0] + (ends[1] - ends[0]) * (jnp.arange(_FINER + 1) / _FINER)
        value = self._log_delta(self._masses(finer), epsilon)
        return jnp.min(jnp.where(value >= jnp.max(value), finer, finer[-1]))

    def epsilon(self, log_delta: jax.Array, most: jax.Array) -> jax.Array:
        """About the epsilon of a delta, at most that one."""

        def narrower(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            at = ends[0] + (ends[1] - ends[0]) * (jnp.arange(_AIMS + 1) / _AIMS) ** 2
            value = lax.map(lambda e: jnp.max(self._log_delta(self.coarse, e)), at)
            held = value >= log_delta
            return jnp.max(jnp.where(held, at, ends[0])), jnp.min(jnp.where(held, ends[1], at))

        return lax.fori_loop(0, _ROUNDS, narrower, (jnp.zeros(()), lax.stop_gradient(most)))[0]


def pair(runs: Runs, table: Table, place: jax.Array) -> Pair:
    """The masses of a selection, of a law of one run in its "remove" reading, and of c in cells.

    The pieces from c on come first, the better the later, then those that are better than all.
    """
    q, p, tau, rest = _Cells.of(table)
    first = lax.stop_gradient(place)
    cells = jnp.arange(q.shape[0], dtype=jnp.float64)
    inside = jnp.clip(cells + 1.0 - first, 0.0, 1.0)  # parts of cells
    best_q, best_p = (r + jnp.sum(x * (1.0 - inside)) for r, x in zip(rest, (q, p), strict=True))
    masses, then = (q * inside, p * inside), (best_q, best_p + tau)
    above = [_from_high(mass) for mass in masses]

    def measures(at: jax.Array) -> list[jax.Array]:
        falls = [runs.fall(more + _at(x, at)) for more, x in zip(then, above, strict=True)]
        return [at, *(-jnp.log1p(x) for x in falls)]

    places = _places(measures, jnp.floor(first), q.shape[0], _PIECES)
    sums = [_at(x, places) for x in above]
    q_of, p_of = (x[:-1] - x[1:] for x in sums)
    q_of = jnp.maximum(q_of, 0.0) + _INTERPOLATED * sums[0][:-1]
    p_of = jnp.maximum(p_of - _INTERPOLATED * sums[1][:-1], 0.0)
    after_q, after_p = sums[0][1:] + then[0], sums[1][1:] + then[1]

    def shares(q: jax.Array, p: jax.Array, after_q: Any, after_p: Any) -> list[jax.Array]:
        """Logs of masses, both less by what Q has too much of."""
        log_q = runs.log_share(jnp.maximum(after_q - _TINY, 0.0), q) + _ROUNDED
        log_p = runs.log_share(after_p + _TINY, p) - _margin(runs)
        some = (p > 0.0) & jnp.isfinite(log_p) & jnp.isfinite(log_q)
        return [jnp.where(some, x - 4.0 * _ROUNDED, -jnp.inf) for x in (log_q, log_p)]

    pieces = shares(q_of, p_of, after_q, after_p)
    best = shares(best_q[None], best_p[None], 0.0, 0.0)
    # (Not more likely than all that are worse: see the module.)
    some = pieces[1] > -jnp.inf
    least = jnp.min(jnp.where(some, pieces[1] - jnp.where(some, pieces[0], 0.0), jnp.inf))
    best[1] = jnp.minimum(best[1], best[0] + lax.stop_gradient(least))
    parts = [pieces, best]
    if runs.poisson:  # no run, nothing released
        parts.append([jnp.reshape(-runs.mean - 4.0 * _ROUNDED, (1,))] * 2)
    log_q, log_p = (jnp.concatenate(x) for x in zip(*parts, strict=True))
    some = log_p > -jnp.inf
    loss = jnp.where(some, log_p, 0.0) - jnp.where(some, log_q, 0.0)
    return Pair(loss, log_q, log_p, runs.log_share(best_p + _TINY, tau) - _margin(runs))


def log_curve(of: Pair, epsilon: jax.Array) -> jax.Array:
    """log H of a pair at epsilon >= 0 at most: by the best event of all pieces from one on."""
    tails = [jnp.cumsum(exp_log(x[:_PIECES])[::-1]) for x in (of.log_q, of.log_p)]
    log_q, log_p = log_positive(tails[0]), log_positive(tails[1] + exp_log(of.log_tau))
    value = jnp.max(log_excess(log_p, epsilon + log_q))
    return jnp.maximum(value, of.log_tau) - _ROUNDED


def _margin(runs: Runs) -> float | jax.Array:
    """What the rounding of log 1/gamma may do to a mass: to 1 + eta times log(1 + o u)."""
    if runs.poisson:
        return _ROUNDED
    return _ROUNDED * (1.0 + (1.0 + runs.shape) * jnp.minimum(runs.odds, 1.0 + runs.log_odds))
