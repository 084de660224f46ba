"""Composition by the tilted (Esscher) FFT, in two stages, with everything left out accounted for.

The tilted law p_theta = p e^{theta l - K(theta)} of the one-step law (a law above or below, see
`_discretise`) is a probability on the lattice. With g(y) = e^{-theta y} (1 - e^{-y})_+,

    delta(eps) = e^{sum n K - theta eps} E_theta[g(S - eps)],         S the composed loss.

n = inner * outer + rest. The inner-fold law is computed on the fine lattice, brought to a
coarser one by the same step above or below as before (legitimate: it is one more factor of
the product), and its outer-fold composed there. Either lattice has as many points as the FFT, and
the relative error in the variance is of the order of (n_stage / points^2), so that two stages cost
sqrt(n) where one costs n.

Rare large losses, of either sign. The fine lattice need not hold them: split the one-step law into
its bulk b, losses up to a cut, and the rest j, and compose (b + j)^n = sum_k C(n, k) b^(n-k) j^k.
Let m be the Q-mass of b, m e^s its P-mass, and d the mass m at loss s. By Jensen b^k >= d^k in the
order of `_discretise`, so
* above: b^(n-k) = d^-k b^(n-k) d^k <= d^-k b^n, and the sum is at most b^n (1 + j/d)^n, where
  j/d is j with its losses less s and its Q-masses divided by m;
* below, within a block: the term k = 0 as it is; for k = 1, 2, 3, b^(n-k) >= b^(n-3) d^(3-k); the
  others are dropped. Losses are shifted by min(2 s, 0), masses multiplied by min(m^2, 1).
Either takes a deviation of some steps of n from what is added to a jump. Where the steps are few,
one block holds them all (no `outer`, no `rest`), and the terms k = 0 and 1 are as they are:
* above: b^(n-k) <= d^(1-k) b^(n-1) for k >= 2; with x = j/d and C(n, k) = n/k C(n-1, k-1) the
  terms from 1 on are at most b^(n-1) j (n/4) (3 + (n-1) x + (n-1)(n-2)/6 x^2 + (1 + x)^(n-1)): what
  they are up to k = 4, k/4 times it beyond;
* below: k = 2 and 3 from b^(n-3) as before.
Either costs a fraction of about P{rare} of the variance. The few jumps go straight to the
coarse lattice.

What is left out is a (signed) measure of known total mass, and 0 <= g <= G := sup g:
* Mass outside the window: at most lambda = e^{n M(s) - s d} on either side (Chernoff, with M
  the cumulant function of the very law that is transformed). Cyclically it reappears inside, so the
  array is off by at most lambda too much; and lambda is missing.
* Rounding. For an array w >= 0 of sum 1: the FFT is off by r |F w|_2 in 2-norm, r = 2^-53
  (8 log2 N + 16) (Higham 2002, Theorem 24.2, with room); |F w|_2 <= sqrt(N). Then
  |a^n - b^n| <= n |a - b| for |a|, |b| <= 1, and the power itself is off by n pi 2^-50 at most. The
  inverse divides the 2-norm by sqrt(N), and the sum of |errors| over N points is at most sqrt(N)
  times it: eta(n) = sqrt(N) (n + 1) 2^-53 (8 log2 N + 48).
With laws A_i in place of A_i + B_i, |B_i| <= l_i, in a product whose true factors have mass 1,
the product is off by at most prod (1 + l_i) - 1 =: Lambda, hence delta by
e^{sum n K - theta eps} G Lambda: added above, subtracted below. Negative rounding noise in an array
is replaced by 0, which is within the same allowance.

Positions c + h k are rounded, by 2^-52 of the window at most, n times: the curve is read at
eps -+ that shift. The prefactor's rounding is covered by 2^-48 (4 + |sum n K| + |theta eps|).
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._law import _discretise
from jaxdp._law._family import family_product, log_through
from jaxdp._law._grid import Lattice, align
from jaxdp._law._plan import FamilyPlan, Plan, StepPlan
from jaxdp._law._saddle import log_price
from jaxdp._law._step import OneStep, discretise, finite_ends
from jaxdp._law._symbols import (
    Frame,
    Symbol,
    count_up,
    from_log,
    log_mgf_of,
    outside,
    power,
    rounding_mass,
    wrap,
)
from jaxdp._law._terms import Family, Term, Terms


class Composed(NamedTuple):
    """The tilted composed law near the query, and what it leaves out.

    weights (N,) in order of loss, tilted by theta, at losses start + spacing * k; the untilted
    P-mass of a point is e^{log_scale - theta loss} times its weight. stray, outside and log_mgf,
    tilt are for `left_out`.
    """

    theta: jax.Array
    start: jax.Array
    spacing: jax.Array
    weights: jax.Array
    log_scale: jax.Array
    log_tau: jax.Array
    shift: jax.Array
    stray: jax.Array
    outside: jax.Array
    beyond: tuple[jax.Array, jax.Array]


def one_step(term: Term, step: StepPlan, theta: jax.Array, size: int, side: int) -> OneStep:
    """Discretise one term on a ladder about the tilted mean, below about the anchor."""
    spacing = (step.window[1] - step.window[0]) / (size - 8)
    spacing = jnp.maximum(spacing, 1e-12 * jnp.abs(step.centre) + 1e-200)
    centre = step.centre if side > 0 else step.anchor
    lattice = align(Lattice(centre, spacing), finite_ends(term), side)
    return discretise(term, lattice, step.range, theta, size, side)


def coarsen(
    weights: jax.Array,
    place: jax.Array,
    spacing: jax.Array,
    theta: jax.Array,
    side: int,
    size: int,
) -> jax.Array:
    """Tilted weights on a coarser lattice: the law above (side +1) or below (-1).

    Point k lies at place[k] coarse steps. Points placed outside [0, N) are lost (which only the
    side below may do).
    """
    inside = (place >= 0.0) & (place < size)
    place = jnp.where(inside, place, 0.0)
    weights = jnp.where(inside, weights, 0.0)
    cell = jnp.floor(place)
    offset = (place - cell) * spacing
    at_node = weights * jnp.exp(-theta * offset)  # P-mass, in the units of the left node
    if side > 0:
        left, right = _discretise.split(offset, spacing)
        index = cell.astype(jnp.int32)
        out = jnp.zeros((size + 1,), jnp.float64)
        out = out.at[index].add(at_node * left)
        return out.at[index + 1].add(at_node * right * jnp.exp(theta * spacing))[:size]
    half = jnp.floor(2.0 * place).astype(jnp.int32)
    q = at_node * jnp.exp(-offset)
    empty = jnp.zeros((2 * size,), jnp.float64)
    mass = empty.at[half].add(q)
    moment = empty.at[half].add(q * jnp.expm1(offset))
    rise = moment / jnp.where(mass > 0.0, mass, 1.0)
    middle = jnp.round(jnp.sum(weights * place) / jnp.maximum(jnp.sum(weights), 1e-300))
    relative = (count_up(size) - lax.stop_gradient(middle)) * spacing
    exponent = jnp.clip((1.0 + theta) * relative, -600.0, 600.0)
    unit = jnp.exp(-exponent)
    mass, rise = mass.reshape(size, 2), rise.reshape(size, 2)
    tilted = mass[:, 0] + mass[:, 1]
    quiet = tilted < _discretise.EMPTY
    node_quiet = quiet & jnp.concatenate([jnp.ones((1,), bool), quiet[:-1]])
    halves = _discretise.HalfCells(
        mass[:-1, 0] * unit[:-1], mass[:-1, 1] * unit[:-1], rise[:-1, 0], rise[:-1, 1]
    )
    width = jnp.full((size - 1,), spacing)
    ratio = jnp.exp(jnp.clip(relative, -600.0, 600.0))
    top = tilted[-1] * unit[-1]
    measure = _discretise.lower_measure(halves, width, ratio, top, node_quiet)
    return measure * jnp.exp(exponent)


class _Fine(NamedTuple):
    """The bulk of a term, transformed on its fine lattice."""

    wave: jax.Array
    lattice: Lattice
    log_norm: jax.Array
    log_mgf: tuple[jax.Array, jax.Array]


def _fold(fine: _Fine, step: StepPlan, fold: jax.Array, origin: jax.Array, frame: Frame):
    """The fold-fold bulk on the coarse lattice, and log1p of the mass it may be off by.

    Its coarse points are (in losses) origin * centre + spacing * k, k any integer; normalised by
    the fold-th power of the bulk's mass.
    """
    size, h = frame.size, fine.lattice.spacing
    low = step.window[0] + fold * (step.centre - fine.lattice.centre)
    first = jnp.floor(low / h) - 2.0
    weights = jnp.maximum(jnp.fft.irfft(power(fine.wave, fold), size), 0.0)
    ordered = weights[wrap(count_up(size) + first, size)]
    # Far out, rounding is all there is; it would spoil the coarse law's moments at its tilts.
    lost = rounding_mass(fold, size)
    noise = lost / (16.0 * size)
    ordered = jnp.where(ordered > noise, ordered, 0.0)
    lost *= 1.0 + 1.0 / 16.0
    from_origin = (fold - origin) * (fine.lattice.centre / frame.spacing)
    place = (count_up(size) + first) * (h / frame.spacing) + from_origin
    middle = jnp.ceil(-place[0])  # where place 0 goes: none becomes negative
    place += middle
    coarse = coarsen(ordered, place, frame.spacing, frame.theta, frame.side, size)
    for log_mgf, tilt, edge in zip(
        fine.log_mgf, step.chernoff, (-first, first + size), strict=True
    ):
        lost += outside(fold * log_mgf, tilt, edge * h)
    return frame.symbol(coarse, count_up(size) - middle), jnp.log1p(lost)


def _jumps(one: OneStep, rare: jax.Array, frame: Frame) -> tuple[Symbol, Symbol]:
    """The rare large losses on the coarse lattice, j itself and what may stand beside others.

    The second is j/d above, and j with its losses and masses reduced below: see the module.
    """
    loss = one.lattice.centre + one.positions * one.lattice.spacing
    exponent = jnp.where(rare, -jnp.inf, -(1.0 + frame.theta) * (loss - one.lattice.centre))
    q_log = log_mgf_of(jnp.where(rare, 0.0, one.weights), exponent)
    p_log = log_mgf_of(jnp.where(rare, 0.0, one.weights), exponent + loss - one.lattice.centre)
    log_m = q_log + one.log_norm - (1.0 + frame.theta) * one.lattice.centre
    s = p_log - q_log + one.lattice.centre
    if frame.side > 0:
        move, log_mass = -s, -log_m
    else:
        move, log_mass = jnp.minimum(2.0 * s, 0.0), jnp.minimum(2.0 * log_m, 0.0)

    def placed(move: jax.Array, log_mass: jax.Array) -> Symbol:
        # Moving a Q-mass by `move` multiplies its tilted weight by e^{(1 + theta) move}.
        factor = jnp.exp(one.log_norm + log_mass + (1.0 + frame.theta) * move)
        weights = jnp.where(rare, one.weights, 0.0) * factor
        place = (jnp.where(rare, loss, 0.0) + move) / frame.spacing
        place = jnp.where(rare, place, 0.0)
        cell = jnp.floor(place)
        offset = (place - cell) * frame.spacing
        if frame.side > 0:
            left, right = _discretise.split(offset, frame.spacing)
            at_node = weights * jnp.exp(-frame.theta * offset)
            symbol = frame.symbol(at_node * left, cell)
            beyond = at_node * right * jnp.exp(frame.theta * frame.spacing)
            return symbol + frame.symbol(beyond, cell + 1.0)
        size = frame.size
        before = jnp.clip(-jnp.floor(jnp.min(place)), 0.0, size // 2)
        coarse = coarsen(weights, place + before, frame.spacing, frame.theta, frame.side, size)
        return frame.symbol(coarse, count_up(size) - before)

    zero = jnp.float64(0.0)
    both = jax.vmap(placed)(jnp.stack([zero, move]), jnp.stack([zero, log_mass]))
    own, beside = (jax.tree.map(lambda x, i=i: x[i], both) for i in range(2))
    return own, beside


def _term_symbols(
    one: OneStep, step: StepPlan, count: jax.Array, frame: Frame
) -> list[tuple[Symbol, jax.Array, jax.Array, jax.Array, jax.Array]]:
    """One term as a product of powers: (symbol, exponent, log unit, origin loss, stray)."""
    size, h = frame.size, one.lattice.spacing
    middle = step.centre + step.cut[0] - one.lattice.centre
    rare = jnp.abs(one.positions * h - middle) > step.cut[1]
    weights = jnp.where(rare, 0.0, one.weights)
    bulk = jnp.sum(weights)
    weights /= bulk
    cyclic = jnp.zeros((size,), jnp.float64).at[wrap(one.positions, size)].add(weights)
    log_mgf = tuple(
        log_mgf_of(weights, sign * tilt * h * one.positions)
        for sign, tilt in zip((-1.0, 1.0), step.chernoff, strict=True)
    )
    log_norm = one.log_norm + jnp.log(bulk)
    fine = _Fine(jnp.fft.rfft(cyclic), one.lattice, log_norm, log_mgf)
    own, beside = _jumps(one, rare, frame)
    few = (step.outer <= 1.0) & (step.rest <= 0.0)
    inner, rest = step.inner, step.rest
    # The folds go through one program: inner and rest (of few steps all but one instead), below
    # also with three factors fewer.
    folds = jnp.stack([inner, jnp.where(few, inner - 1.0, rest)])
    origins = jnp.stack([inner, jnp.where(few, inner, rest)])
    if frame.side < 0:
        folds = jnp.concatenate([folds, jnp.maximum(jnp.stack([inner, rest]) - 3.0, 0.0)])
        origins = jnp.concatenate([origins, jnp.stack([inner, rest])])
    each = lax.map(lambda pair: _fold(fine, step, pair[0], pair[1], frame), (folds, origins))
    # In units of the bulk's mass to the number of steps in the block.
    unit = jnp.exp((folds - origins) * log_norm)
    folded = [jax.tree.map(lambda x, i=i: x[i], each) for i in range(folds.shape[0])]

    def beside_jumps(i: int, series: Symbol) -> tuple[Symbol, jax.Array]:
        symbol, stray = folded[i]
        return (symbol * series).scaled(unit[i]), stray * series.real[0] * unit[i]

    steps = jnp.where(few, inner, 1.0)
    alone = _at_least_one(own, beside, steps) if frame.side > 0 else own.scaled(steps)
    more, off = beside_jumps(1, alone.where(few))
    first = folded[0][0] + more, folded[0][1] + off
    second = folded[1][0].where(~few).plus(jnp.where(few, 1.0, 0.0)), folded[1][1]
    blocks = zip((first, second), ((count - rest) / inner, jnp.where(few, 0.0, 1.0)), strict=True)
    parts = []
    for i, ((symbol, stray), times) in enumerate(blocks):
        n = origins[i]
        if frame.side < 0:
            square = beside * beside
            series = beside.where(~few).scaled(n) + square.scaled(n * (n - 1.0) / 2.0)
            series += (square * beside).scaled(n * (n - 1.0) * (n - 2.0) / 6.0)
            others, off = beside_jumps(i + 2, series)
            symbol, stray = symbol + others, stray + off
        parts.append((symbol, times, n * log_norm, n * one.lattice.centre, stray))
    if frame.side > 0:
        zero = jnp.float64(0.0)
        parts.append((beside.plus(1.0), jnp.where(few, 0.0, count), zero, zero, zero))
    return parts


def _at_least_one(own: Symbol, beside: Symbol, steps: jax.Array) -> Symbol:
    """Above, the jumps of a few steps when there is one: see the module."""
    n = steps
    series = beside.plus(1.0).power(n - 1.0) + (beside * beside).scaled((n - 1.0) * (n - 2.0) / 6.0)
    series += beside.scaled(n - 1.0).plus(3.0)
    return (own * series).scaled(n / 4.0)


def compose(terms: Terms, plan: Plan, size: int, side: int) -> Composed:
    """The composed law above (side = +1) or below (-1), as the plan says."""
    theta = plan.theta
    plain = [
        (term, step, one_step(term, step, theta, size, side))
        for term, step in zip(terms, plan.steps, strict=True)
        if isinstance(term, Term) and isinstance(step, StepPlan)
    ]
    spacing = (plan.window[1] - plan.window[0]) / (size - 8)
    for _, _, one in plain:  # with room for `_fold` to round places up
        spacing = jnp.maximum(spacing, one.lattice.spacing * (1.0 + 2.0 / size))
    low = plan.window[0]
    if len(terms) == len(plain) == 1:
        # One stage in all: keep the lattice and its window, atoms stay where they are.
        _, step, one = plain[0]
        single = (step.outer <= 1.0) & (step.rest <= 0.0) & jnp.isinf(step.cut[1])
        spacing = jnp.where(single, one.lattice.spacing, spacing)
        low = jnp.where(single, step.inner * step.centre + step.window[0], low)
    frame = Frame(spacing, plan.chernoff, theta, side, size)
    log_scale = start = stray = factors = shift = through = jnp.float64(0.0)
    log_mgf = jnp.zeros((2,), jnp.float64)
    waves = []
    for term, step, one in plain:
        count = jnp.asarray(term.count, jnp.float64)
        through += count * log_through(term, one.top)
        span = jnp.abs(one.lattice.centre) + size * one.lattice.spacing
        shift += 2.0**-50 * count * (span + size * spacing)
        for symbol, times, log_unit, origin, off in _term_symbols(one, step, count, frame):
            total = symbol.real[0]
            log_scale += times * (log_unit + jnp.log(total))
            start += times * origin
            stray += times * off
            factors += times
            log_mgf += times * (jnp.log(symbol.real[1:]) - jnp.log(total))
            waves.append(power(symbol.wave / total, times))
    for term, step in zip(terms, plan.steps, strict=True):
        if isinstance(term, Family) and isinstance(step, FamilyPlan):
            product = family_product(term, step, frame)
            log_scale += product.log_scale
            start += product.start
            log_mgf += product.log_mgf
            through += product.through
            factors += product.factors
            shift += product.shift
            waves.append(from_log(product.magnitude, product.angle))
    wave = functools.reduce(jnp.multiply, waves)
    first = jnp.floor((low - start) / spacing) - 2.0
    weights = jnp.fft.irfft(wave, size)
    weights = jnp.maximum(weights[wrap(count_up(size) + first, size)], 0.0)
    if side > 0:
        lost = outside(log_mgf[1], plan.chernoff[1], (first + size) * spacing)
    else:
        lost = outside(log_mgf[0], plan.chernoff[0], -first * spacing)
    return Composed(
        theta,
        start + first * spacing,
        spacing,
        weights,
        log_scale,
        _log_tau(through),
        lax.stop_gradient(shift),
        jnp.expm1(stray) + rounding_mass(factors, size),
        lost,
        (log_mgf[1] + plan.chernoff[1] * start, plan.chernoff[1]),
    )


def _log_tau(through: jax.Array) -> jax.Array:
    """log of the P-mass at infinity, from the log of the mass that never got there."""
    some = through < 0.0
    return jnp.where(some, jnp.log(-jnp.expm1(jnp.where(some, through, -1.0))), -jnp.inf)


def left_out(law: Composed, epsilon: jax.Array, side: int) -> jax.Array:
    """What delta(epsilon) may be off by, in units of e^{sum n K - theta eps}, any shape.

    Besides what is off within the window, above: losses beyond its end are missing; there
    g <= e^{-theta (end - eps)}. Below: losses that wrap around and come to lie beyond eps are
    too much: all below the window, and those beyond eps + its width.
    """
    size, h, theta = law.weights.shape[0], law.spacing, law.theta
    price = jnp.exp(log_price(theta))
    if side > 0:
        end = law.start + h * size
        fall = jnp.exp(jnp.minimum(-theta * (end - epsilon), 0.0))
        return law.stray * price + jnp.minimum(law.outside * price, fall)
    log_mgf, tilt = law.beyond
    wrapped = outside(log_mgf, tilt, epsilon + (size - 1) * h)
    return price * (law.stray + law.outside + wrapped)
