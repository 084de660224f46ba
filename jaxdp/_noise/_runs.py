"""Masses of loss intervals of integer noise wider than a list of its atoms: by runs of integers.

Runs are single integers next to 0 and Delta, where probabilities may have kinks, grow with the
distance from there, a small part of it, and end as a uniform part of the noise. On each the loss is
monotone, so that an interval of losses holds whole runs, and parts of one at either end.

On a run log f and the loss are taken for the parabolas through three points c - x, c, c + x of it:
off by at most n^3 T / 100, T the largest third derivative (0 for Gaussian and Laplace noise). A sum
of n values of a smooth f is that of three,

    sum_{|j| <= (n - 1)/2} f(j) = w f(-x) + (n - 2 w) f(0) + w f(x) + R,
    x^2 = (3 n^2 - 7) / 20,     w = n (n^2 - 1) / (24 x^2),

Gauss's rule for the discrete uniform law: exact for polynomials of degree 5, and for n <= 3. With
log f of slope at most s, R is about (s n / 2)^6 / 31500 of the sum, as it is for the rule of
Legendre, its limit; each run is taken in four parts. Both errors are relative ones of the masses: a
loss off by l is a P-mass off by a factor e^l.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp import _special
from jaxdp._noise import _atoms
from jaxdp._noise._sums import falls_below

Values = Callable[[jax.Array], tuple[jax.Array, jax.Array]]

RUNS = 2048  # from 0 or Delta outwards, each
DROP = 745.0  # log of what a window leaves out: less than the least double
_SHARE = 0.45  # of them, for the way to the uniform ones
_GROWTH = 512.0  # a run is at least one such part of its distance
_PARTS = 4
_ROUNDS = 4  # of Newton's steps to a point of a parabola that is next to a line


class Runs(NamedTuple):
    """The first integers and the numbers of integers, increasing: rows on which losses are so."""

    first: jax.Array
    size: jax.Array


class Parabola(NamedTuple):
    """A function of the distance from the middle of a run."""

    value: jax.Array
    slope: jax.Array
    bend: jax.Array

    def at(self, d: jax.Array) -> jax.Array:
        return self.value + d * (self.slope + d * self.bend)


def _edges(length: jax.Array, number: int) -> jax.Array:
    """Where so many runs begin, and the last one ends, at distances 0, 1, ... length - 1."""
    growth = jnp.clip(_SHARE * number / jnp.log(length + 3.0), 1.0, _GROWTH)
    per_log = 1.0 / jnp.log1p(1.0 / growth)
    size = jnp.maximum(length / number, 1.0)
    for _ in range(16):
        size = jnp.maximum(length / (number - per_log * jnp.log(size)), 1.0)
    i = jnp.arange(number + 1, dtype=jnp.float64)
    turn = growth + per_log * jnp.log(size)
    grown = growth * jnp.exp(jnp.clip(i - growth, 0.0, turn - growth) / per_log)
    place = jnp.where(i <= growth, i, grown + size * jnp.maximum(i - turn, 0.0))
    place = jnp.where(length <= number, i, jnp.ceil(place - 1e-6))
    return jnp.minimum(jnp.where(i < number, place, length), length)


def reach(m: Any) -> jax.Array:
    """How far probabilities are more than nothing."""
    return falls_below(m._log_envelope, jnp.zeros_like(1.0 * m.sensitivity), DROP)


def onward(start: jax.Array, length: jax.Array, number: int) -> Runs:
    """So many integers from the start on, where probabilities may have a kink: one row."""
    edges = _edges(length, number)
    return Runs((start + edges[:-1])[None], (edges[1:] - edges[:-1])[None])


def runs(shift: jax.Array, far: jax.Array) -> Runs:
    """All integers from -far to Delta + far: four rows, to 0, Delta/2, Delta and beyond."""
    middle = jnp.floor(0.5 * shift)
    parts = (
        (far + 1.0, 0.0, -1),
        (middle, 1.0, 1),
        (jnp.maximum(shift - 1.0 - middle, 0.0), shift - 1.0, -1),
        (far + 1.0, shift, 1),
    )
    rows = []
    for length, origin, sign in parts:
        edges = _edges(length, RUNS)
        size = edges[1:] - edges[:-1]
        if sign > 0:
            rows.append((origin + edges[:-1], size))
        else:
            rows.append((origin - edges[1:][::-1] + 1.0, size[::-1]))
    first, size = (jnp.stack(x) for x in zip(*rows, strict=True))
    return Runs(first, size)


def _square(size: jax.Array) -> jax.Array:
    return jnp.maximum((3.0 * size * size - 7.0) / 20.0, 0.25)


def _three(first: jax.Array, size: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The nodes and weights of a sum of so many, the nodes as distances, on a last axis."""
    some, square = size > 1.0, _square(size)
    side = jnp.where(some, size * (size * size - 1.0) / (24.0 * square), 0.0)
    weights = jnp.stack([side, jnp.maximum(size - 2.0 * side, 0.0), side], axis=-1)
    x = jnp.where(some, jnp.sqrt(square), 0.0)
    places = (first + 0.5 * jnp.maximum(size - 1.0, 0.0))[..., None]
    return places + x[..., None] * jnp.asarray([-1.0, 0.0, 1.0]), weights


def parabolas(values: Values, found: Runs) -> tuple[Parabola, Parabola]:
    """log f(k - Delta) and the loss about the middles of all runs."""
    x = jnp.sqrt(_square(found.size))
    middle = found.first + 0.5 * jnp.maximum(found.size - 1.0, 0.0)
    x = jnp.where(found.size > 1.0, x, 0.0)
    log_p, loss = values(jnp.stack([middle - x, middle, middle + x]))
    some = found.size > 1.0
    x = jnp.where(some, x, 1.0)

    def through(y: jax.Array) -> Parabola:
        slope = (y[2] - y[0]) / (2.0 * x)
        bend = (y[2] - 2.0 * y[1] + y[0]) / (2.0 * x * x)
        return Parabola(y[1], jnp.where(some, slope, 0.0), jnp.where(some, bend, 0.0))

    return through(log_p), through(loss)


def _log_sums(
    log_p: Parabola, loss: Parabola, size: jax.Array, first: jax.Array, number: jax.Array
) -> jax.Array:
    """log Q and log P, stacked, of so many integers of each run, from one on."""
    edges = first[..., None] + jnp.floor(number[..., None] * jnp.arange(_PARTS + 1.0) / _PARTS)
    places, weights = _three(edges[..., :-1], edges[..., 1:] - edges[..., :-1])
    d = places - 0.5 * jnp.maximum(size - 1.0, 0.0)[..., None, None]
    spread = [Parabola(*(x[..., None, None] for x in f)) for f in (log_p, loss)]
    of_p, of_loss = (f.at(d) for f in spread)
    some = weights > 1e-9  # (2 - 2 of two)
    log_weights = jnp.log(jnp.where(some, weights, 1.0))
    exponents = jnp.where(some, jnp.stack([of_p - of_loss, of_p]) + log_weights, -jnp.inf)
    return _special.logsumexp(exponents.reshape(*exponents.shape[:-2], -1), axis=-1)


def _place(
    loss: Parabola, size: jax.Array, last: jax.Array, rising: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """How many runs, and integers of the next one, come before those beyond the loss x.

    Beyond are losses above x where they rise, and up to x where they fall.
    """
    sign = jnp.where(rising, 1.0, -1.0)
    # (Of equal losses all or none are before.)
    index = jnp.where(
        rising,
        jnp.searchsorted(sign * last, sign * x, side="right"),
        jnp.searchsorted(sign * last, sign * x, side="left"),
    )
    run = jnp.minimum(index, last.shape[0] - 1)
    here, number = Parabola(*(f[run] for f in loss)), size[run]
    middle = 0.5 * jnp.maximum(number - 1.0, 0.0)
    d = jnp.zeros_like(middle)
    for _ in range(_ROUNDS):
        slope = here.slope + 2.0 * d * here.bend
        step = (x - here.at(d)) / jnp.where(slope != 0.0, slope, jnp.inf)
        d = jnp.clip(d + jnp.where(jnp.isnan(step), 0.0, step), -middle - 1.0, middle + 1.0)
    inside = jnp.clip(jnp.floor(d + middle) + 1.0, 0.0, jnp.maximum(number - 1.0, 0.0))
    return index, jnp.where((index < last.shape[0]) & (number > 1.0), inside, 0.0)


def log_masses(
    values: Values, found: Runs, ends: tuple[jax.Array, ...], lo: jax.Array, hi: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of the integers of {lo < L <= hi}, elementwise.

    Args:
      values: integers -> (log f(k - Delta), the loss), smooth on every run.
      found: the runs.
      ends: losses, log Q and log P of what is left out, atoms (n,).
      lo: lower ends of intervals.
      hi: upper ends.
    """
    shape, lo, hi = lo.shape, lo.ravel(), hi.ravel()
    log_p, loss = parabolas(values, found)
    still = lax.stop_gradient(loss)
    whole = _log_sums(log_p, loss, found.size, jnp.zeros_like(found.size), found.size)
    last = still.at(0.5 * jnp.maximum(found.size - 1.0, 0.0))

    def of_row(i: int) -> jax.Array:
        size, ends = found.size[i], last[i]
        rising = ends[-1] >= ends[0]
        # (Next to equal ones may be out of order by rounding, and are searched.)
        ends = jnp.where(rising, lax.cummax(ends), lax.cummin(ends))
        own = [Parabola(*(x[i] for x in f)) for f in (log_p, loss, still)]
        places = [_place(own[2], size, ends, rising, x) for x in (lo, hi)]
        (a, at_a), (b, at_b) = (
            tuple(jnp.where(rising, x, y) for x, y in zip(*pair, strict=True))
            for pair in (places, places[::-1])
        )
        end = ends.shape[0] - 1
        same, run_a, run_b = a == b, jnp.minimum(a, end), jnp.minimum(b, end)
        # (Where losses are next to equal, rounding may have the end come before.)
        left = jnp.where(same, at_b, size[run_a]) - at_a
        left = jnp.where((a <= end) & (a <= b), jnp.maximum(left, 0.0), 0.0)
        right = jnp.where(a < b, at_b, 0.0)
        which = jnp.concatenate([run_a, run_b])
        of_p, of_loss = (Parabola(*(x[which] for x in f)) for f in own[:2])
        parts = _log_sums(
            of_p,
            of_loss,
            size[which],
            jnp.concatenate([at_a, jnp.zeros_like(right)]),
            jnp.concatenate([left, right]),
        )
        sums = _atoms.range_sum(whole[:, i], jnp.minimum(a + 1, b), b)
        parts = parts.reshape(2, 2, -1)
        return _special.logsumexp(jnp.concatenate([sums[:, None], parts], axis=1), axis=1)

    rows = [of_row(i) for i in range(found.size.shape[0])]
    at, *masses = ends
    inside = (lo[:, None] < at) & (at <= hi[:, None])
    outer = jnp.where(inside, jnp.stack(masses)[:, None], -jnp.inf)
    total = jnp.concatenate([jnp.stack(rows, axis=-1), outer], axis=-1)
    total = _special.logsumexp(total, axis=-1).reshape(2, *shape)
    return total[0], total[1]


def parabola_error(found: Runs, third: jax.Array) -> jax.Array:
    """Of log f and the loss on the runs, by the third derivative of log f: relative, of masses."""
    return 2.0 * jnp.max(jnp.where(found.size > 3.0, found.size**3 * third / 100.0, 0.0))


def rule_error(found: Runs, slope: jax.Array) -> jax.Array:
    """The relative error of the rule for sums: twice its remainder, for slopes of log f on runs."""
    half = jnp.where(found.size > 3.0, 0.5 * found.size / _PARTS, 0.0)
    return 2.0 * jnp.max(slope * half) ** 6 / 31500.0
