"""A coarse law of each term, and saddle points of their composition: estimates, never bounds.

The coarse law has its cells collapsed to their mean losses. With K(theta) = log E_P e^{theta L}
per step (P restricted to finite losses), the tilt for epsilon solves sum n K'(theta) = epsilon, and

    log delta = sum n (K - theta K') + log E[e^{-theta y} (1 - e^{-y})_+],   y ~ N(0, S^2),

S^2 = sum n K'', whose expectation is (m(theta S) - m((1 + theta) S)) / sqrt(2 pi), m the Mills
ratio (Lugannani & Rice 1980, to leading order).

Where delta is that of one rare large loss, the saddle point overestimates it, for the tilted law
then is two things, the rest and that loss. So losses beyond a cut are set apart,

    delta ~ (the above for the losses up to it) + sum n p (1 - e^{-y})_+ + pairs,

the sum over the losses l beyond the cut, y = l + mean - epsilon, `mean` that of the rest, smoothed
as the rest's deviation says, `pairs` the chance of two of them. The least over several cuts is
taken. The cut may lie far below epsilon: where a single step makes up delta, nothing else gets
there. For an epsilon at a given delta, the larger one of the rest's and that of one such loss is
taken: delta is then right to a factor of 2.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law._grid import ladder, nudge
from jaxdp._law._terms import Family, Term, Terms

_PILOT_SPACING = 1e-10
# About 0, and from an end of the support inwards; the second pair for one of many steps, and its
# first also where a search begins. (What one step may lose beyond the ladder counts as infinite.)
_PILOT_LADDERS = ladder(24, 2**46), ladder(8, 2**46)
_END_LADDERS = tuple(x[x > 0.0] for x in (ladder(8, 2**36), ladder(4, 2**36)))
AT_A_TIME = 8  # of a family's terms
_FEW = 32  # rows of atoms
# Of tilts that are tried: from where the largest loss, or a deviation, has next to no weight more
# than others, to where a tail is seen that is a millionth of a deviation.
_TILT_RANGE, _LARGEST_TILT = (1e-3, 1e6), 1e12
_BISECTIONS = 13
# Where delta is next to nothing, an estimate stops where a double still holds it.
_LEAST_LOG_DELTA = -600.0
_PRECISION = np.log(_LARGEST_TILT / 1e-5) / 2**_BISECTIONS  # of a tilt's log, or better
# log of how many losses are to be expected beyond a cut: more than log delta, and times log delta.
_SMALL_LEVELS = np.array([-np.inf, -14.0, -7.0, -3.0])
_LARGE_LEVELS = np.array([0.85, 0.7, 0.55])
# A normal law's smoothing of a kink: twice the mean of what is beyond it, in deviations.
_SOFT = 0.8
_JUMP_RANGE, _JUMP_QUARTERINGS = (1e-10, 1e3), 6


class Atoms(NamedTuple):
    """Coarse laws, stacked: log P-weights and losses, (terms, nodes), and counts (terms,).

    `edges`, (terms, nodes - 1), are where one cell ends and the next begins.
    """

    log_p: jax.Array
    loss: jax.Array
    count: jax.Array
    edges: jax.Array


class Moments(NamedTuple):
    """K and its first two derivatives, per term."""

    log_norm: jax.Array
    mean: jax.Array
    variance: jax.Array


def pilot_cells(term: Term, rough: bool, many: bool = False) -> tuple[jax.Array, jax.Array]:
    """All of the line, in cells that begin and end there."""
    edges = _pilot_edges(term, rough, many)
    ends = jnp.array([-jnp.inf]), jnp.array([jnp.inf])
    return jnp.concatenate([ends[0], edges]), jnp.concatenate([edges, ends[1]])


def _pilot_edges(term: Term, rough: bool, many: bool) -> jax.Array:
    """A ladder about 0, and one from each finite end of the support inwards.

    An atom at an end has a cell of its own, and what lies next to it is seen at any tilt.
    """
    # (Sorted as a constant, when a law is known at compile time, they would take seconds.)
    edges = lax.optimization_barrier(jnp.asarray(_PILOT_LADDERS[rough] * _PILOT_SPACING))
    if not term.bounded:
        return edges
    low, high = (jnp.asarray(end, jnp.float64) for end in term.support)
    near = 2.0 * nudge((low, high), jnp.zeros(()))
    steps = jnp.asarray(_END_LADDERS[many] * _PILOT_SPACING)
    has_low, has_high = jnp.isfinite(low), jnp.isfinite(high)
    least = jnp.where(has_low, low + near, -jnp.inf)
    most = jnp.maximum(jnp.where(has_high, high - near, jnp.inf), least)
    from_low = jnp.where(has_low, low, edges[0]) + steps
    from_high = jnp.where(has_high, high, edges[-1]) - steps
    edges = jnp.sort(jnp.concatenate([edges, from_low, from_high]))
    return jnp.clip(edges, least, most)


def coarse_atoms(terms: Terms, rough: bool = False) -> Atoms:
    """The coarse laws of the terms, those of a family one after the other.

    Rough ones have wider cells, an eighth of their losses: a variance is off by a thousandth.
    """

    def one(term: Term, many: bool = False) -> Atoms:
        lo, hi = pilot_cells(term, rough or many, many)
        log_q, log_p = term.masses(lo, hi)
        some = (log_q > -jnp.inf) & (log_p > -jnp.inf) & (hi > lo)
        loss = jnp.where(some, log_p - log_q, 0.0)
        count = jnp.asarray(term.count, jnp.float64)
        return Atoms(jnp.where(some, log_p, -jnp.inf), loss, count, hi[:-1])

    rows = []
    for term in terms:
        if isinstance(term, Family):
            many = term.number > _FEW

            def each(x: Any, term: Family = term, many: bool = many) -> Atoms:
                return one(term.term(x), many)

            # (Frozen here: what is frozen later is differentiated, and compiled so, first.)
            frozen = lax.stop_gradient(term.parameters)
            rows.append(lax.map(each, frozen, batch_size=AT_A_TIME))
        else:
            rows.append(jax.tree.map(lambda x: x[None], one(term)))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *_padded(rows))


def _padded(rows: list[Atoms]) -> list[Atoms]:
    """The same laws with as many cells each: more of them are empty."""
    most = max(atoms.loss.shape[1] for atoms in rows)

    def pad(x: jax.Array, size: int, **options: Any) -> jax.Array:
        return jnp.pad(x, ((0, 0), (0, size - x.shape[1])), **options)

    return [
        Atoms(
            pad(atoms.log_p, most, constant_values=-jnp.inf),
            pad(atoms.loss, most),
            atoms.count,
            pad(atoms.edges, most - 1, mode="edge"),
        )
        for atoms in rows
    ]


def each_of(function: Callable[[jax.Array], jax.Array], values: jax.Array, rows: int) -> jax.Array:
    """The function of every value: all at once for few rows of atoms, else one after the other."""
    return jax.vmap(function)(values) if rows <= _FEW else lax.map(function, values)


def above(atoms: Atoms) -> jax.Array:
    """P-mass from each atom on."""
    return lax.cumsum(jnp.exp(atoms.log_p), axis=1, reverse=True)


def moments(atoms: Atoms, theta: jax.Array) -> Moments:
    """Of the law tilted by theta."""
    exponent = atoms.log_p + theta * atoms.loss
    top = jnp.max(exponent, axis=-1)
    weight = jnp.exp(exponent - top[:, None])
    total = jnp.sum(weight, axis=-1)
    mean = jnp.sum(weight * atoms.loss, axis=-1) / total
    deviation = atoms.loss - mean[:, None]
    return Moments(top + jnp.log(total), mean, jnp.sum(weight * deviation**2, axis=-1) / total)


def log_tail(theta: jax.Array, deviation: jax.Array) -> jax.Array:
    """log E[e^{-theta y} (1 - e^{-y})_+] for y ~ N(0, deviation^2), to about 1%.

    Mills' ratio as 4 / (3 z + sqrt(z^2 + 8)) (Birnbaum 1942, Sampford 1953), the difference without
    cancellation.
    """
    low = theta * deviation
    high = low + deviation
    root_low, root_high = jnp.sqrt(low * low + 8.0), jnp.sqrt(high * high + 8.0)
    rise = deviation * (3.0 + (high + low) / (root_high + root_low))
    drop = 4.0 * rise / ((3.0 * low + root_low) * (3.0 * high + root_high))
    return jnp.log(drop) - 0.5 * jnp.log(2 * jnp.pi)


def _log_sure(mean: jax.Array, epsilon: jax.Array) -> jax.Array:
    """log delta, at least about, where the mean loss is above epsilon: no tilt shows that."""
    over = mean - epsilon
    some = over > 0.0
    return jnp.where(some, jnp.log(-0.5 * jnp.expm1(-jnp.where(some, over, 1.0))), -jnp.inf)


class Tilted(NamedTuple):
    """The composition at a tilt: sum n K - theta eps, the mean and the deviation of its law."""

    exponent: jax.Array
    mean: jax.Array
    deviation: jax.Array


def at_tilt(atoms: Atoms, theta: jax.Array, epsilon: jax.Array | None) -> Tilted:
    """The composition tilted by theta, about epsilon (None: about its mean)."""
    m = moments(atoms, theta)
    mean = jnp.sum(atoms.count * m.mean)
    deviation = jnp.maximum(jnp.sqrt(jnp.sum(atoms.count * m.variance)), 1e-12)
    at = mean if epsilon is None else epsilon
    return Tilted(jnp.sum(atoms.count * m.log_norm) - theta * at, mean, deviation)


def _bisect(
    atoms: Atoms,
    epsilon: jax.Array | None,
    at: Callable[[jax.Array, Tilted, Tilted], Any],
    too_low: Callable[[Any], jax.Array],
) -> tuple[tuple[jax.Array, Any], tuple[jax.Array, Any]]:
    """A tilt near which too_low(at(tilt)) stops holding, by halving in its log, and `at` there.

    The second pair is the largest tilt at which it was seen to hold, 0 if none, and `at` there.
    `at` is given a tilt, the law there, and the law at tilt 0. That is what the loop looks at
    first, as its deviation tells where tilts are to be sought: one program for all.
    """
    at = jax.jit(at)  # traced once
    farthest = jnp.max(jnp.where(atoms.log_p > -jnp.inf, jnp.abs(atoms.loss), 0.0))

    def halve(i: jax.Array, state: tuple) -> tuple:
        low, high, middle, zero, _, before = state
        theta = jnp.exp(middle)
        tilted = at_tilt(atoms, theta, epsilon)
        first = i == 0
        zero = jax.tree.map(lambda new, old: jnp.where(first, new, old), tilted, zero)
        found = at(theta, tilted, zero)
        more = too_low(found) & ~first
        least = np.log(_TILT_RANGE[0]) - jnp.log(jnp.maximum(zero.deviation, farthest))
        most = np.log(_TILT_RANGE[1]) - jnp.log(zero.deviation)
        most = jnp.minimum(most, np.log(_LARGEST_TILT))
        low = jnp.where(more, middle, jnp.where(first, least, low))
        high = jnp.where(first, most, jnp.where(more, high, middle))
        last = theta, found
        before = jax.tree.map(lambda new, old: jnp.where(more | first, new, old), last, before)
        return low, high, 0.5 * (low + high), zero, last, before

    nothing = jnp.zeros((), jnp.float64)
    none = Tilted(nothing, nothing, nothing + 1.0)
    unknown = jax.eval_shape(at, nothing, none, none)
    unknown = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), unknown)
    last = nothing, unknown
    state = nothing, nothing, nothing - jnp.inf, none, last, last
    return lax.fori_loop(0, 1 + _BISECTIONS, halve, state)[-2:]


def tilt_for(atoms: Atoms, epsilon: jax.Array) -> tuple[jax.Array, tuple[Tilted, Tilted]]:
    """The tilt at which the mean is epsilon, and the laws there and at tilt 0.

    Where the mean leaps over epsilon (one large loss takes over from the bulk), no tilt is near
    enough; the last one before the leap then has the smaller exponent, and is taken.
    """

    def too_low(laws: tuple[Tilted, Tilted]) -> jax.Array:
        return laws[0].mean < epsilon

    found, before = _bisect(atoms, epsilon, lambda _, *laws: laws, too_low)
    better = (before[0] > 0.0) & (before[1][0].exponent < found[1][0].exponent)
    return jax.tree.map(lambda a, b: jnp.where(better, a, b), before, found)


def _one_cut(
    atoms: Atoms, level: jax.Array, epsilon: jax.Array | None, log_delta: jax.Array
) -> jax.Array:
    """The estimate with losses beyond a cut apart: at most e^level of them are expected."""
    some = jnp.where(atoms.count > 0.0, atoms.count, 1.0)  # what occurs no times keeps its law
    rare = some[:, None] * above(atoms) <= jnp.exp(level)
    bulk = atoms._replace(log_p=jnp.where(rare, -jnp.inf, atoms.log_p))
    rate = jnp.where(rare, atoms.count[:, None] * jnp.exp(atoms.log_p), 0.0)
    expected = jnp.sum(rate, axis=-1)
    pairs = 0.5 * jnp.sum(expected) ** 2
    pairs -= 0.5 * jnp.sum(expected**2 / jnp.maximum(atoms.count, 1.0))

    def jumps(at: jax.Array, zero: Tilted) -> jax.Array:
        """Delta of one such loss beside the rest, which is about normal where it lies."""
        soft = jnp.maximum(_SOFT * zero.deviation, 1e-12)
        gap = atoms.loss - (at - zero.mean)
        over, lack = jnp.maximum(gap, 0.0), (jnp.minimum(gap, 0.0) / zero.deviation) ** 2
        beyond = 0.5 * (over + jnp.sqrt(over * over + soft * soft))
        met = jnp.exp(-0.5 * lack) / (1.0 + lack) * (1.0 - jnp.exp(-beyond))
        return jnp.sum(rate * met) + pairs

    if epsilon is not None:
        theta, (law, zero) = tilt_for(bulk, epsilon)
        rest = law.exponent + log_tail(theta, law.deviation)
        rest = jnp.maximum(rest, _log_sure(zero.mean, epsilon))
        return jnp.logaddexp(rest, jnp.log(jumps(epsilon, zero)))

    def value(theta: jax.Array, law: Tilted, zero: Tilted) -> tuple[Tilted, jax.Array, Tilted]:
        return law, law.exponent + log_tail(theta, law.deviation), zero

    found, before = _bisect(bulk, None, value, lambda found: found[1] > log_delta)
    zero = found[1][2]

    def onwards(theta: jax.Array, there: tuple[Tilted, jax.Array, Tilted]) -> jax.Array:
        """The rest of the way, by the slope of log delta: the mean may leap over it."""
        law, log_value, _ = there
        change = (log_value - log_delta) / jnp.where(theta > 0.0, theta, 1.0)
        at = law.mean + jnp.maximum(change, -_PRECISION * theta * law.deviation**2)
        return jnp.where(theta > 0.0, at, jnp.inf)

    at = jnp.minimum(onwards(*found), onwards(*before))
    # Where the mean is above it no tilt shows it: 1 - delta is the rest's mass times e^-sure, or
    # less by what of the rest is below epsilon (smoothed as above).
    sure = zero.exponent - jnp.log1p(-jnp.minimum(jnp.exp(log_delta), 1.0 - 2.0**-53))
    some, soft = sure > 0.0, _SOFT * zero.deviation
    known = jnp.where(some, sure, 1.0)
    below = zero.mean - known + soft * soft / (4.0 * known)
    at = jnp.where(some, jnp.minimum(at, below), at)
    # The rest alone may never get to where one large loss is as rare as delta.
    delta = jnp.exp(log_delta)

    least = jnp.log(jnp.maximum(at, _JUMP_RANGE[0]))
    widths = (np.log(_JUMP_RANGE[1]) - least) / 4.0 ** (1.0 + np.arange(_JUMP_QUARTERINGS))

    def quarter(i: jax.Array, low: jax.Array) -> jax.Array:
        points = low + widths[i] * np.arange(1.0, 4.0)
        more = jax.vmap(lambda point: jumps(jnp.exp(point), zero) > delta)(points)
        return low + widths[i] * jnp.sum(more.astype(jnp.float64))

    far = lax.fori_loop(0, _JUMP_QUARTERINGS, quarter, least)
    at = jnp.where(far > least, jnp.exp(far), at)
    return jnp.where((pairs < 0.5 * delta) | (level == -jnp.inf), at, jnp.inf)


def _scale_and_reach(atoms: Atoms, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """About log delta at epsilon, and about where it has fallen to `_LEAST_LOG_DELTA`."""

    def one(far: jax.Array) -> tuple[jax.Array, jax.Array]:
        def too_low(found: tuple[jax.Array, jax.Array]) -> jax.Array:
            mean, value = found
            return jnp.where(far, value > _LEAST_LOG_DELTA, mean < epsilon)

        def at(theta: jax.Array, law: Tilted, _: Tilted) -> tuple[jax.Array, jax.Array]:
            return law.mean, law.exponent + log_tail(theta, law.deviation)

        (theta, (mean, value)), (below, (start, level)) = _bisect(atoms, None, at, too_low)
        # The mean may leap: on from the last tilt before, by its slope.
        some = below > 0.0
        reach = start + (level - _LEAST_LOG_DELTA) / jnp.where(some, below, 1.0)
        at_least = value + theta * (mean - epsilon)
        before = level + below * (start - epsilon)
        value = jnp.where(some, jnp.minimum(at_least, before), at_least)
        return jnp.where(some, reach, mean), value

    mean, value = jax.vmap(one)(jnp.array([False, True]))
    untilted = at_tilt(atoms, jnp.float64(0.0), None).mean
    scale = jnp.maximum(value[0], _log_sure(untilted, epsilon))
    return jnp.minimum(scale, -1e-3), mean[1]


def estimate(
    atoms: Atoms, epsilon: jax.Array | None, log_delta: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """(epsilon, log delta), one of which is given; not beyond `_LEAST_LOG_DELTA` for an epsilon."""
    if epsilon is None:
        scale, reach, rare = log_delta, None, log_delta
    else:
        scale, reach = _scale_and_reach(atoms, epsilon)
        # Of one large loss alone: where that is all there is, the saddle point is far above it.
        rate = atoms.count[:, None] * jnp.exp(atoms.log_p)
        alone = jnp.sum(rate * -jnp.expm1(jnp.minimum(epsilon - atoms.loss, 0.0)))
        alone = jnp.maximum(jnp.log(alone), -700.0)
        rare = jnp.stack([jnp.maximum(alone, 2.0 * scale), alone])
    large = jnp.minimum(jnp.asarray(rare), scale).reshape(-1, 1) * _LARGE_LEVELS
    levels = jnp.concatenate([scale + _SMALL_LEVELS, large.reshape(-1)])
    rows = atoms.count.shape[0]
    found = each_of(lambda level: _one_cut(atoms, level, epsilon, scale), levels, rows)
    best = jnp.nanmin(found)  # (all of a law that mostly fails may lie beyond a cut)
    if epsilon is None:
        return best, log_delta
    far = ~(best > _LEAST_LOG_DELTA)
    nearer = jnp.where(far, jnp.minimum(reach, epsilon), epsilon)
    return nearer, jnp.where(far, _LEAST_LOG_DELTA, best)


def saddle_point(terms: Terms, epsilon: jax.Array) -> jax.Array:
    """log delta at epsilon, by the saddle point: a smooth function, but without a gradient.

    (A step of Newton's method polishes the tilt.)
    """
    atoms, epsilon = lax.stop_gradient((coarse_atoms(terms, rough=True), epsilon))
    theta, (law, zero) = tilt_for(atoms, epsilon)
    step = (epsilon - law.mean) / jnp.maximum(law.deviation**2, 1e-24)
    after = theta + jnp.clip(step, -0.1 * theta, 0.1 * theta)
    polished = at_tilt(atoms, after, epsilon)
    value = polished.exponent + log_tail(after, polished.deviation)
    value = jnp.minimum(value, law.exponent + log_tail(theta, law.deviation))
    value = jnp.maximum(value, _log_sure(zero.mean, epsilon))
    return jnp.minimum(value, -1e-300)


def log_price(theta: jax.Array) -> jax.Array:
    """log sup_{y > 0} e^{-theta y} (1 - e^{-y}) = theta log theta - (1 + theta) log(1 + theta)."""
    return -theta * jnp.log1p(1.0 / theta) - jnp.log1p(theta)
