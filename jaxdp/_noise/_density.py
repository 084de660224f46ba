"""Masses of a symmetric law given by its log density, and where its loss crosses a level.

The noise has the density f(|x|)/(2 int f), f = e^h non-increasing on y >= 0. `table` cuts y >= 0
into panels on which h changes by a few units at most and y by a third of itself or of the width of
the peak; a panel, or a part of one, is integrated by ten Gauss-Legendre nodes, which is exact to
roundings where h is analytic on the panel and about it. That is the rule; the largest difference
between a panel and its two halves is measured and added to the error that is stated. (Panels that
are graded towards 0 serve h like -y^1.5, which is not analytic there.) All sums are
of positive terms; whole panels are differences of sums from either end, of those that are smaller:
next to these a panel is no less than some thousandth (towards 0 it is half of what is before it).

Beyond the last panel, where f has lost a factor of e^1800 or y is 2^400 times the width, the mass
is at most Y f(Y) / (kappa - 1), kappa = -Y h'(Y), if h is concave in log y from there on (exact for
powers). It is counted where the last panel's end is.

The loss of the pair (Y + Delta, Y) at x = Delta + w is L(w) = h(|w|) - h(w + Delta), odd about
w = -Delta/2, and >= 0 from there on. It rises from 0 to its first turn, falls to the second, and so
on; turns are found on a grid and located by bisection on the slope. (Where f has a cusp the loss
turns at w = 0, and what is next to its largest value has a w of any size.)
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _special

_PANELS, _NODES = 1024, 10
_GRADED = 40  # of them towards 0, each half as wide as the next
_LEGENDRE = np.polynomial.legendre.leggauss(_NODES)
_OFFSETS, _WEIGHTS = 0.5 * (1.0 + _LEGENDRE[0]), 0.5 * _LEGENDRE[1]
_LADDER = np.exp2(np.arange(-6400, 8001) / 16.0)  # distances at which the width is looked for
_DROP = 1800.0  # e-folds down to which the density is integrated: some 600 panels
_FARTHEST = 2.0**400  # of the width
_CELLS = 2048  # on which panels are laid out
_PER_FOLD, _PER_SCALE = 1.0 / 3.0, 3.0  # panels for an e-fold of f, and of y
_CERTAIN = 2.0**-36  # relative: cancellation among sums and positions, a thousand roundings
_PART = 0.25  # of a panel: so little may lie in two
_BISECTIONS = 64
_NEWTON, _CROSSING = 16, 120  # steps to a crossing of the loss: Newton's alone, and at most
NOISE = 2.0**-50  # of a loss, relative to the log densities of which it is the difference

LogDensity = Callable[[jax.Array], jax.Array]


class Table(NamedTuple):
    """Panels of y >= 0; the one-sided masses up to their edges, and beyond them."""

    edges: jax.Array
    log_head: jax.Array
    log_tail: jax.Array
    log_norm: jax.Array  # of 2 int f
    error: jax.Array  # relative, of masses
    width: jax.Array  # of the peak, about
    unimodal: jax.Array
    integrable: jax.Array


def _gauss(h: LogDensity, start: jax.Array, length: jax.Array) -> jax.Array:
    """log int e^h over so much from the start on, elementwise; -inf where it is nothing."""
    some = length > 0.0
    first = jnp.where(some, start, 0.0)
    nodes = first[..., None] + jnp.where(some, length, 1.0)[..., None] * _OFFSETS
    values = h(nodes) + np.log(_WEIGHTS)
    top = jax.lax.stop_gradient(jnp.max(values, axis=-1, keepdims=True))
    live = some & jnp.isfinite(top[..., 0])
    values = jnp.where(live[..., None], values - jnp.where(live[..., None], top, 0.0), 0.0)
    total = jnp.log(jnp.sum(jnp.exp(values), axis=-1)) + jnp.where(live, top[..., 0], 0.0)
    return jnp.where(live, total + jnp.log(jnp.where(some, length, 1.0)), -jnp.inf)


def table(h: LogDensity, frozen: LogDensity, support: jax.Array, reach: jax.Array) -> Table:
    """The panels of a density.

    Args:
      h: the log density, up to a constant, of distances y >= 0 of any shape.
      frozen: the same, whose derivatives do not count.
      support: the distance from which on the density is 0, or inf.
      reach: how much further than where f ends, for all practical purposes, panels go.
    """
    edge = jax.lax.stop_gradient(support)
    ladder = jnp.minimum(jnp.asarray(_LADDER), edge)
    drop = frozen(jnp.zeros(1)) - frozen(ladder)
    width = jnp.max(jnp.where(drop <= 1.0, ladder, ladder[0]))
    gone = (drop >= _DROP) | (ladder >= _FARTHEST * width) | (ladder >= edge)
    end = jnp.minimum(jnp.min(jnp.where(gone, ladder, ladder[-1])) + reach, edge)
    t = jnp.arcsinh(end / width) * np.linspace(0.0, 1.0, _CELLS + 1)
    y = jnp.minimum(width * jnp.sinh(t), end)
    values = frozen(y)
    change = values[:-1] - values[1:]
    noise = NOISE * (jnp.abs(values[:-1]) + jnp.abs(values[1:])) * 4.0
    finite = jnp.isfinite(values[0]) & ~jnp.any(jnp.isnan(values)) & jnp.isfinite(width)
    steps = _PER_FOLD * jnp.clip(jnp.abs(change), 0.0, 1e6) + _PER_SCALE * (t[1:] - t[:-1])
    needed = jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
    even = np.linspace(0.0, 1.0, _PANELS - _GRADED + 1)
    edges = jnp.interp(needed[-1] * even, needed, y)
    edges = jnp.concatenate([edges[:1], edges[1] * 0.5 ** np.arange(_GRADED, 0, -1), edges[1:]])
    edges = jax.lax.stop_gradient(edges.at[0].set(0.0).at[-1].set(end))
    # (The end of the support carries a derivative.)
    edges = edges.at[-1].add(jnp.where(jnp.isfinite(edge), support - edge, 0.0))
    middle = 0.5 * (edges[:-1] + edges[1:])
    starts = jnp.stack([edges[:-1], middle])
    halves = _gauss(h, starts, jnp.stack([middle, edges[1:]]) - starts)
    masses = _divergences.log_add(*halves)
    whole = jax.lax.stop_gradient(_gauss(frozen, edges[:-1], edges[1:] - edges[:-1]))
    off = jnp.where(whole > -jnp.inf, jnp.abs(jnp.expm1(whole - masses)), 0.0)
    off = jnp.where(masses > jnp.max(masses) - _DROP, off, 0.0)
    at, slope = jax.jvp(frozen, (end,), (jnp.ones_like(end),))
    steepness = -end * slope - 1.0
    falls = steepness > 0.0
    beyond = at + jnp.log(end) - jnp.log(jnp.where(falls, steepness, 1.0))
    beyond = jnp.where(jnp.isfinite(edge), -jnp.inf, beyond)
    beyond = jnp.where(jnp.isnan(beyond), -jnp.inf, beyond)
    heads = _sums(jnp.append(masses[::-1], -jnp.inf))[::-1]
    tails = _sums(jnp.append(masses, beyond))
    return Table(
        edges,
        heads,
        tails,
        tails[0] + _special.LOG_2,
        jax.lax.stop_gradient(_CERTAIN + 4.0 * jnp.max(off)),
        width,
        finite & jnp.all(change >= -noise),
        finite & (falls | jnp.isfinite(edge)) & jnp.isfinite(tails[0]),
    )


def _sums(log_masses: jax.Array) -> jax.Array:
    """log of the sums from every entry on: of one, of two, of four, ..."""
    size = log_masses.shape[0]
    nothing = jnp.full_like(log_masses, -jnp.inf)

    def further(level: jax.Array, total: jax.Array) -> jax.Array:
        start = jnp.left_shift(jnp.int32(1), level.astype(jnp.int32))
        after = jax.lax.dynamic_slice(jnp.append(total, nothing), (start,), (size,))
        return _divergences.log_add(total, after)

    return jax.lax.fori_loop(0, (size - 1).bit_length(), further, log_masses)


def log_mass(
    h: LogDensity,
    law: Table,
    start: jax.Array,
    stop: jax.Array,
    length: jax.Array,
    to_end: jax.Array,
) -> jax.Array:
    """log of the mass of y in [start, stop], elementwise; of all beyond start where `to_end`.

    (The length says more than the ends do where it is short.)
    """
    edges = jax.lax.stop_gradient(law.edges)
    at, until, size = jax.lax.stop_gradient((start, stop, length))
    some = to_end | (size > 0.0)
    i = jnp.clip(jnp.searchsorted(edges, at, side="right") - 1, 0, _PANELS - 1)
    j = jnp.clip(jnp.searchsorted(edges, until, side="left") - 1, 0, _PANELS - 1)
    j = jnp.where(size <= _PART * (edges[i + 1] - edges[i]), i, jnp.maximum(i, j))
    j = jnp.where(to_end, _PANELS, j)
    same = i == j
    # a part of the first panel, whole ones, and a part of the last
    begin = jnp.stack([start, law.edges[jnp.minimum(j, _PANELS - 1)]])
    first = jnp.where(same, length, law.edges[i + 1] - start)
    last = jnp.where(same | to_end, 0.0, stop - begin[1])
    parts = _gauss(h, begin, jnp.maximum(jnp.stack([first, last]), 0.0))
    upper, lower = law.log_tail[i + 1], jnp.where(to_end, -jnp.inf, law.log_tail[j])
    near_0 = ~to_end & (law.log_head[j] < upper)
    upper = jnp.where(near_0, law.log_head[j], upper)
    lower = jnp.where(near_0, law.log_head[i + 1], lower)
    upper, lower = jnp.where(same, 0.0, upper), jnp.where(same, -jnp.inf, lower)
    gap = jnp.where(jnp.isneginf(lower), -1.0, lower - jnp.where(upper > -jnp.inf, upper, 0.0))
    inside = gap < 0.0
    between = upper + jnp.where(
        jnp.isneginf(lower), 0.0, _special.log1mexp(jnp.where(inside, gap, -1.0))
    )
    between = jnp.where(same | ~inside | jnp.isneginf(upper), -jnp.inf, between)
    total = _divergences.log_add(*parts, between) - law.log_norm
    return jnp.where(some, jnp.minimum(total, 0.0), -jnp.inf)


def log_mass_at_end(h: LogDensity, law: Table, end: jax.Array, length: jax.Array) -> jax.Array:
    """log of the mass of the last `length` of the support; nan where that is not in one panel."""
    inside = length <= law.edges[-1] - law.edges[-2]
    length = jnp.where(inside, length, law.edges[-1] - law.edges[-2])
    value = _gauss(lambda back: h(end - back), jnp.zeros_like(length), length) - law.log_norm
    return jnp.where(inside, value, jnp.nan)


class Turns(NamedTuple):
    """The loss for w >= -Delta/2: a grid of it, and the pieces on which it is monotone."""

    grid: jax.Array
    losses: jax.Array
    ends: jax.Array  # (pieces + 1,), -Delta/2, the turns and the end of w
    number: jax.Array  # of turns found
    starts_rising: jax.Array


def turns(
    loss: Callable[[jax.Array], jax.Array],
    noise: Callable[[jax.Array], jax.Array],
    shift: jax.Array,
    width: jax.Array,
    end: jax.Array,
    most: int,
) -> Turns:
    """Where the loss turns, up to `most` times; missing turns are at the end.

    Args:
      loss: L(w), frozen.
      noise: what differences of losses at w are rounded by.
      shift: Delta.
      width: of the peak of the density.
      end: of w, >= -Delta/2.
      most: how many turns there may be.
    """
    half, scale = 0.5 * shift, jnp.minimum(shift, width)
    unit = np.linspace(0.0, 1.0, 512)

    def spread(reach: jax.Array, unit: np.ndarray) -> jax.Array:
        return scale * jnp.sinh(jnp.arcsinh(reach / scale) * unit)

    right = spread(end + half, unit) - half
    beyond, before = spread(jnp.maximum(end, 0.0), unit), -spread(half, unit[::2])
    grid = jnp.sort(jnp.clip(jnp.concatenate([right, beyond, before]), -half, end))
    losses = loss(grid)
    rounding = noise(grid)
    change = losses[1:] - losses[:-1]
    sure = jnp.abs(change) > rounding[1:] + rounding[:-1]
    # The last sure change up to each and its sign, as one number: compilers compute a comparison
    # again where it is used again, and not always alike.
    index = jnp.arange(change.shape[0])
    rises = jnp.where(change > 0.0, 1, 0)
    last = jax.lax.cummax(jnp.where(sure, 2 * index + rises, jnp.where(index == 0, 1, 0)))
    known, signs = last // 2, jnp.where(last % 2 == 1, 1.0, -1.0)
    turned = jnp.concatenate([jnp.zeros(1, bool), signs[1:] != signs[:-1]])
    count = jnp.cumsum(turned.astype(jnp.int32))

    def locate(which: jax.Array) -> jax.Array:
        here = turned & (count == which + 1)
        at = jnp.min(jnp.where(here, index, change.shape[0] - 1))
        low, high = grid[known[jnp.maximum(at - 1, 0)]], grid[at + 1]
        sign = jnp.where(which % 2 == 0, 1.0, -1.0)

        def halve(_, bracket):
            low, high = bracket
            middle = 0.5 * (low + high)
            _, slope = jax.jvp(loss, (middle,), (jnp.ones_like(middle),))
            on = sign * slope > 0.0
            return jnp.where(on, middle, low), jnp.where(on, high, middle)

        low, high = jax.lax.fori_loop(0, _BISECTIONS, halve, (low, high))
        middle = jnp.where((low <= 0.0) & (high >= 0.0), 0.0, 0.5 * (low + high))
        return jnp.where(jnp.any(here), middle, end)

    found = jax.vmap(locate)(jnp.arange(most)) if most else []
    ends = jnp.stack([-half, *found, end])
    return Turns(grid, losses, ends, count[-1], signs[0] > 0.0)


def crossings(loss: LogDensity, sizes: LogDensity, law: Turns, level: jax.Array) -> jax.Array:
    """(pieces, ...): the w at which the loss crosses a level >= 0 on every piece, or its end.

    On a rising piece it is above the level to the right of that, on a falling one to the left.
    `sizes` are those of the numbers whose difference the loss is.
    """
    numbers = jnp.arange(law.ends.shape[0] - 1)
    signs = jnp.where(numbers % 2 == 0, 1.0, -1.0)
    found = jax.vmap(lambda *piece: _crossing(loss, sizes, law, level, *piece))(
        law.ends[:-1], law.ends[1:], signs
    )
    return jax.lax.stop_gradient(found)


def _crossing(loss, sizes, law, level, start, end, sign):
    """On one piece, where sign * L rises. (Where L equals the level, it is not above it.)"""
    before, after = law.grid < start, law.grid > end
    keys = jnp.where(before, -jnp.inf, jnp.where(after, jnp.inf, sign * law.losses))
    keys = jax.lax.cummax(keys)
    wanted = sign * level
    # the first key that is larger, or on a falling piece at least as large
    sought = jnp.where(sign > 0.0, wanted, jnp.nextafter(wanted, jnp.full_like(wanted, -jnp.inf)))
    index = jnp.searchsorted(keys, sought, side="right")
    last = law.grid.shape[0] - 1
    low = jnp.clip(law.grid[jnp.clip(index - 1, 0, last)], start, end)
    high = jnp.where(index > last, end, jnp.clip(law.grid[jnp.clip(index, 0, last)], start, end))

    def excess(w):
        return sign * loss(w) - wanted

    def over(value):
        return jnp.where(sign > 0.0, value > 0.0, value >= 0.0)

    at_low, at_high = excess(low), excess(high)
    gap = at_high - at_low
    share = jnp.clip(-at_low / jnp.where(gap > 0.0, gap, 1.0), 0.0, 1.0)
    share = jnp.where(jnp.isfinite(share) & (gap > 0.0), share, 0.5)

    def unsettled(state):
        return jnp.any(state[-1]) & (state[0] < _CROSSING)

    def newton(state):
        i, w, low, high, open_ = state
        value, slope = jax.jvp(excess, (w,), (jnp.ones_like(w),))
        low = jnp.where(open_ & ~over(value), w, low)
        high = jnp.where(open_ & over(value), w, high)
        moved = w - value / slope
        # (Next to a turn Newton's steps halve the way, at a kink they may circle.)
        inside = (moved >= low) & (moved <= high) & ((i < _NEWTON) | (i % 2 == 0))
        moved = jnp.where(inside, moved, 0.5 * (low + high))
        near = jnp.abs(moved - w) <= 2.0**-51 * jnp.abs(w)
        open_ &= ~(near | (jnp.abs(value) <= _divergences.SLACK * sizes(w)) | (low >= high))
        return i + 1, jnp.where(open_, moved, w), low, high, open_

    state = low + share * (high - low), low, high, low < high
    _, w, left, right, _ = jax.lax.while_loop(unsettled, newton, (0, *state))
    w = jnp.clip(w, left, right)
    return jnp.where(over(at_low), low, jnp.where(over(at_high), w, high))
