"""Averages of ratios in pairs, on a list of losses: all digits of both tails.

A lattice of ratios, as in `_average`, is coarse where ratios are small, and a tilted transform is
right about its tilt, while laws that are composed are read where their losses are, over all of
them. Here an average of 2 n is that of two of n, and one of n + 1 takes one ratio more: all pairs
of some hundred points, sums of positive terms. One law serves both directions and every epsilon.
The list is geometric, x_i = e^{l + h i}, so that the place of (x_i + x_j) / 2 relative to that of
x_i depends on j - i alone.

Above. The law has its mass at the points x_i and at 0, and P-mass at infinity. A ratio between two
points is spread to them, which keeps its mean; one below the first to that and 0; one above the
last goes to that, and what its mean lacks to infinity.

Below. Every cell between two points has a mass and its mean, where the cell's ratios are collapsed.
Which ratios share a cell is a choice: whatever they are, the law is one below.

Both keep the order, and so do averages. The variance of a loss is off by some h^2 / 6 a pairing, so
the list follows the law as it contracts: where what is needed of it fits into half of the list, h
is halved. Small ratios are needed from the average that next to no mass is below, and those that
are averaged from a part of that on, by Chernoff bounds; large ones up to a P-mass ("remove") or,
where they hardly count, a Q-mass ("add"): choices.

Rounding. Masses are sums of so many terms, and are raised (lowered) by that at each pairing. A
point's loss is off by a few u of the width of the list at each, and so are means: in the end all
points are moved by that, to the safe side of the direction that is read.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import exp_log, log_positive
from jaxdp._law import _allowances, _places
from jaxdp._law._average_grid import _cells
from jaxdp._law._terms import Term

_ROWS = 64  # of pairs at a time
_ROUND = 2.0**-42  # relative, of the shares of a cell: some thousand u
_TRACE = 1e-9


class Law(NamedTuple):
    """Masses at ratios (points, or means of cells) and at 0, P{inf}; the list's start and h."""

    mass: jax.Array
    ratio: jax.Array
    zero: jax.Array
    tau: jax.Array
    low: jax.Array
    spacing: jax.Array

    @property
    def losses(self) -> jax.Array:
        """Of the points."""
        return self.low + self.spacing * jnp.arange(self.mass.shape[0], dtype=jnp.float64)


def _shares(
    low: jax.Array, spacing: jax.Array, loss: jax.Array, size: int
) -> tuple[jax.Array, jax.Array]:
    """The point at or before a loss, and the part of its mass that the next one gets.

    (A hair before a point it counts there: less than losses are rounded by.)
    """
    place = _places.floor(lax.stop_gradient((loss - low) / spacing), size)
    place = jnp.clip(place, -(2.0**30), 2.0**30)
    part = jnp.expm1(loss - low - spacing * place) / jnp.expm1(spacing)
    return place.astype(jnp.int32), jnp.clip(part, 0.0, 1.0)


def _spread(law: Law, ratio: jax.Array, mass: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Masses at the points of the law's list, at 0, and P{inf}, of masses at any ratios."""
    some = (mass > 0.0) & (ratio > 0.0)
    loss = jnp.log(jnp.where(some, ratio, 1.0))
    size, ends = law.mass.shape[0], jnp.exp(law.losses[jnp.array([0, -1])])
    place, part = _shares(law.low, law.spacing, loss, size)
    inside = some & (place >= 0) & (place < size - 1)
    found = jnp.zeros((size,))
    for at, share in ((place, 1.0 - part), (place + 1, part)):
        found = found.at[jnp.where(inside, at, size)].add(mass * share, mode="drop")
    below = some & (place < 0)
    share = jnp.where(below, ratio / ends[0], 1.0)
    above = some & (place >= size - 1)
    beyond = jnp.where(above, mass * jnp.maximum(ratio - ends[1], 0.0), 0.0)
    found = found.at[0].add(jnp.sum(jnp.where(below, mass * share, 0.0)))
    found = found.at[-1].add(jnp.sum(jnp.where(above, mass, 0.0)))
    zero = jnp.sum(jnp.where(below, mass * jnp.maximum(1.0 - share, 0.0), 0.0))
    zero += jnp.sum(jnp.where(ratio > 0.0, 0.0, mass))
    return found, zero, jnp.sum(beyond)


def _collapsed(law: Law, ratio: jax.Array, mass: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Masses and first moments of the cells of the law's list, of masses at any ratios > 0."""
    size = law.mass.shape[0]
    loss = log_positive(lax.stop_gradient(ratio))
    place = _places.floor((loss - law.low) / law.spacing, size)
    place = jnp.clip(place, 0.0, size - 1.0).astype(jnp.int32)
    zero = jnp.zeros((size,))
    return zero.at[place].add(mass), zero.at[place].add(mass * ratio)


def means(law: Law, mass: jax.Array, moment: jax.Array) -> jax.Array:
    some = mass > 0.0
    return jnp.where(some, moment / jnp.where(some, mass, 1.0), jnp.exp(law.losses))


def _on(law: Law, grid: Law, side: int) -> Law:
    """The law on the list of another one."""
    if side > 0:
        mass, zero, tau = _spread(grid, law.ratio, law.mass)
        return grid._replace(
            mass=mass, ratio=jnp.exp(grid.losses), zero=law.zero + zero, tau=law.tau + tau
        )
    mass, moment = _collapsed(grid, law.ratio, law.mass)
    return grid._replace(mass=mass, ratio=means(grid, mass, moment), zero=law.zero, tau=law.tau)


def first(term: Term, low: jax.Array, spacing: jax.Array, size: int, side: int) -> Law:
    """The law of one ratio."""
    losses = low + spacing * jnp.arange(size, dtype=jnp.float64)
    x, zero, last = jnp.exp(losses), jnp.zeros((1,)), jnp.full((1,), jnp.inf)
    log_tau = (jnp.asarray(v, jnp.float64) for v in (term.log_tau_p, term.log_tau_q))
    tau, revealed = (exp_log(v) for v in log_tau)
    if side < 0:
        mass, mean, error, _ = _cells(
            term, jnp.concatenate([zero, x[1:]]), jnp.concatenate([x[1:], last]), -1
        )
        # (Rather less: the mean is off, the law of the others is what it was.)
        mass *= 1.0 - _ROUND
        return Law(mass, mean, revealed * (1.0 - _ROUND), tau * (1.0 - _ROUND), low, spacing)
    mass, mean, error, lost = _cells(
        term, jnp.concatenate([zero, x]), jnp.concatenate([x, last]), 1
    )
    width = x[1:] - x[:-1]
    part = jnp.clip((mean[1:-1] - x[:-1]) / width, 0.0, 1.0)
    rough = lax.stop_gradient(error[1:-1] / width) + _ROUND
    left = mass[1:-1] * jnp.minimum(1.0 - part + rough, 1.0)
    right = mass[1:-1] * jnp.minimum(part + rough, 1.0)
    found = jnp.concatenate([left, zero]) + jnp.concatenate([zero, right])
    part = jnp.clip(mean[0] / x[0], 0.0, 1.0)
    rough = jnp.where(mean[0] < x[0] * (1.0 - _ROUND), _ROUND + error[0] / x[0], 0.0)
    found = found.at[0].add(mass[0] * jnp.minimum(part + rough, 1.0)).at[-1].add(mass[-1])
    revealed = revealed * (1.0 + _ROUND) + mass[0] * jnp.minimum(1.0 - part + rough, 1.0)
    beyond = mass[-1] * jnp.maximum(mean[-1] + error[-1] - x[-1], 0.0)
    tau = (tau + beyond + jnp.sum(lost)) * (1.0 + _ROUND)
    return Law(found, x, revealed, tau, low, spacing)


def _products(law: Law, side: int) -> tuple[jax.Array, ...]:
    """Sums over all pairs of points of a law, by the point at or before that of their average.

    Above, the masses of it and of the next one; below, of its cell and the next one, and moments.
    """
    size = law.mass.shape[0]
    away = np.arange(size)
    # log (1 + e^gap) / 2, about the larger of the two
    gap = law.spacing * away
    loss = gap + jnp.log(0.5 + 0.5 * jnp.exp(-gap))
    before, part = _shares(jnp.float64(0.0), law.spacing, loss, size)
    twice = np.where(away > 0, 2.0, 1.0)
    masses, ratios = (jnp.concatenate([v, jnp.zeros((1,))]) for v in (law.mass, law.ratio))
    low, spacing = law.low, law.spacing

    def rows(start: jax.Array) -> tuple[jax.Array, ...]:
        place = start + jnp.arange(_ROWS, dtype=jnp.int32)[:, None]
        i = place - before
        j = i + jnp.asarray(away, jnp.int32)
        inside = (i >= 0) & (j < size)
        i, j = jnp.where(inside, i, size), jnp.where(inside, j, size)
        mass = masses[i] * masses[j] * twice
        if side > 0:
            return mass @ (1.0 - part), mass @ part
        ratio = 0.5 * (ratios[i] + ratios[j])
        mass, ratio = lax.optimization_barrier((mass, ratio))  # (not worked out four times)
        # (A choice, but the same one for masses and moments, however a compiler rounds them.)
        beyond = ratio * (1.0 + _ROUND) >= jnp.exp(low + spacing * (place + 1.0))
        here, there = jnp.where(beyond, 0.0, mass), jnp.where(beyond, mass, 0.0)
        each = (here, there, here * ratio, there * ratio)
        return tuple(jnp.sum(v, axis=-1) for v in each)

    found = lax.map(rows, jnp.arange(0, size, _ROWS, dtype=jnp.int32))
    return tuple(v.reshape(-1) for v in found)


def _next(values: jax.Array) -> jax.Array:
    """Values of the points before."""
    return jnp.concatenate([jnp.zeros((1,)), values[:-1]])


def _with(
    law: Law, mass: jax.Array, ratio: jax.Array, more: jax.Array, moment: Any, side: int
) -> tuple[jax.Array, ...]:
    """Masses (and moments) with those at some ratios added; what is more at 0, and P{inf}."""
    if side > 0:
        found, zero, tau = _spread(law, ratio, mass)
        return more + found, moment, zero, tau
    found, first = _collapsed(law, ratio, mass)
    return more + found, moment + first, 0.0, 0.0


def twice(law: Law, side: int) -> Law:
    """The law of the average of two."""
    found = _products(law, side)
    mass, moment = found[0] + _next(found[1]), 0.0
    tau = law.tau
    if side > 0:
        top = found[1][-1]
        mass = mass.at[-1].add(top)
        tau += top * law.ratio[-1] * jnp.expm1(law.spacing)
    else:
        moment = found[2] + _next(found[3])
    alone = 2.0 * law.zero * law.mass
    mass, moment, zero, more = _with(law, alone, 0.5 * law.ratio, mass, moment, side)
    zero += law.zero**2
    return _rounded(law, mass, moment, zero, tau + more, 4 * law.mass.shape[0], side)


def one_more(law: Law, one: Law, number: jax.Array, side: int) -> Law:
    """The law of an average of so many, and one ratio more."""
    share = number / (number + 1.0)
    ratio = share * law.ratio[:, None] + (1.0 - share) * one.ratio
    every = (
        (law.mass[:, None] * one.mass, ratio),
        (law.mass * one.zero, share * law.ratio),
        (one.mass * law.zero, (1.0 - share) * one.ratio),
    )
    mass, ratio = (
        jnp.concatenate([v.reshape(-1) for v in values]) for values in zip(*every, strict=True)
    )
    nothing = jnp.zeros_like(law.mass)
    found, moment, zero, more = _with(law, mass, ratio, nothing, nothing, side)
    zero += law.zero * one.zero
    tau = share * law.tau + (1.0 - share) * one.tau + more
    return _rounded(law, found, moment, zero, tau, 2 * mass.size, side)


def _rounded(
    law: Law, mass: jax.Array, moment: Any, zero: Any, tau: Any, number: int, side: int
) -> Law:
    """A law of sums of so many terms, raised (lowered) by what rounding costs."""
    eta = 1.0 + side * _allowances.sums(number, 32)
    ratio = law.ratio if side > 0 else means(law, mass, moment)
    return law._replace(mass=mass * eta, ratio=ratio, zero=zero * eta, tau=tau * eta)


def contracted(law: Law, low: jax.Array, needed: jax.Array, side: int) -> Law:
    """On a list of half the spacing, if what is needed fits: from low on, up to some points."""
    size = law.mass.shape[0]
    place = jnp.arange(size, dtype=jnp.float64)
    last = jnp.max(jnp.where(needed, place, 0.0)) + 1.0
    first = jnp.clip(_places.floor((low - law.low) / law.spacing, size), 0.0, last - 1.0)
    first, last = lax.stop_gradient((first, last))
    fits = 2.0 * (last - first) <= size - 4.0
    start, spacing = law.low + law.spacing * first, 0.5 * law.spacing
    grid = law._replace(low=start, spacing=spacing)
    fine = _on(law, grid, side)
    return jax.tree.map(lambda new, old: jnp.where(fits, new, old), fine, law)


def between(law: Law, more: Law, share: jax.Array, side: int) -> Law:
    """The mixture with the law of one ratio more, on the same list.

    Of that there is a trace at least, as points without mass have no derivatives: above it is added
    to the whole law, below mixed, being below as well.
    """
    added, share = (_TRACE, share) if side > 0 else (0.0, share + _TRACE)

    def mixed(one: jax.Array, other: jax.Array) -> jax.Array:
        return one + share * (other - one) + added * other

    mass = mixed(law.mass, more.mass)
    moment = mixed(law.mass * law.ratio, more.mass * more.ratio)
    ratio = law.ratio if side > 0 else means(law, mass, moment)
    zero, tau = mixed(law.zero, more.zero), mixed(law.tau, more.tau)
    return law._replace(mass=mass, ratio=ratio, zero=zero, tau=tau)
