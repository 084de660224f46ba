"""One term of a composition as a product of powers, in two stages.

n = inner * outer + rest. The inner-fold law is computed on the fine lattice, brought to a
coarser one by the same step above or below as before (legitimate: it is one more factor of
the product), and its outer-fold composed there. Either lattice has as many points as the FFT, and
the relative error in the variance is of the order of (n_stage / points^2), so that two stages cost
sqrt(n) where one costs n.

Rare large losses, of either sign. The fine lattice need not hold them: split the one-step law into
its bulk b, losses up to a cut, and the rest j, and compose (b + j)^n = sum_k C(n, k) b^(n-k) j^k.
Let m be the Q-mass of b, m e^s its P-mass, and d the mass m at loss s. (Losses may be counted from
any point, and masses in any unit.) By Jensen b^k >= d^k in the order of `_discretise`, so
* above: b^(n-k) = d^-k b^(n-k) d^k <= d^-k b^n, and the sum is at most b^n (1 + j/d)^n, where
  j/d is j with its losses less s and its Q-masses divided by m;
* below, within a block: the term k = 0 as it is; for k = 1, 2, 3, b^(n-k) >= b^(n-3) d^(3-k); the
  others are dropped. With m = 1, losses are shifted by min(2 s, 0). The steps
  that are left over (`rest`) are bulk alone, and their jumps are shared out: a block of i steps has
  C(n', k) terms, n' = n / outer. With T the first four terms of (1 + x)^n', T^outer <= (1 + x)^n,
  term by term: by induction from Vandermonde's identity, in which the terms of degree k >= 4 that
  T lacks add up to at least 0. For n' >= 6 they are positive up to K = ceil(n'), then alternate
  and fall, and the first outweighs what follows K. (So blocks have six steps at least.)
Either costs a fraction of about P{rare} of the variance, and next to a jump some steps of n, which
counts where n is small. Few steps are therefore one block (no `outer`, no `rest`), in which the
terms k = 0 and 1 are as they are:
* above: b^(n-k) <= d^(1-k) b^(n-1) for k >= 2; with x = j/d and C(n, k) = n/k C(n-1, k-1) the
  terms from 1 on are at most b^(n-1) j (n/4) (3 + (n-1) x + (n-1)(n-2)/6 x^2 + (1 + x)^(n-1)): what
  they are up to k = 4, k/4 times it beyond;
* below: k = 2 and 3 from b^(n-3) as before.
The jumps go straight to the coarse lattice.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law import _allowances, _places
from jaxdp._law._grid import Lattice, align, even_rungs, rungs
from jaxdp._law._jumps import at_least_one, coarsen, jumps_of, not_one
from jaxdp._law._places import wrap
from jaxdp._law._plan import StepPlan
from jaxdp._law._step import OneStep, discretise, finite_ends
from jaxdp._law._symbols import (
    Frame,
    Logs,
    Power,
    Symbol,
    count_up,
    factors,
    log_mgf_of,
    logs_of,
    outside,
    power,
    raised,
    rounding_mass,
    without_noise,
)
from jaxdp._law._terms import Term

_ANCHOR_ROUNDS = 16


def ends_of(term: Term, step: StepPlan, side: int) -> tuple[jax.Array, jax.Array]:
    """The support as the lattice of that side has it."""
    low, high = finite_ends(term)
    return (step.low if side < 0 else low), high


def one_step(term: Term, step: StepPlan, theta: jax.Array, size: int, side: int) -> OneStep:
    """Discretise one term on a ladder about the tilted mean, below about the anchor."""
    even = step.even > 0.0
    spacing = jnp.where(even, step.even, (step.window[1] - step.window[0]) / (size - 8))
    spacing = jnp.maximum(spacing, 1e-12 * jnp.abs(step.centre) + 1e-200)
    centre = step.centre if side > 0 else node_at(term, step.node, spacing)
    ends = ends_of(term, step, side)
    lattice = align(Lattice(centre, spacing), ends, side)
    positions = jnp.where(even, even_rungs(size), rungs(size))
    far = step.apart.cut, step.beyond
    one = discretise(term, lattice, ends, step.range, theta, positions, side, far)
    if side > 0:
        return one
    # The losses of a block lie about the anchor of the plan, which is wider: on the coarse lattice
    # that is to be a node.
    free = jnp.isinf(finite_ends(term)[1]) & jnp.isfinite(step.cut[1])
    return one._replace(end=jnp.where(free, (step.anchor - lattice.centre) / spacing, one.end))


def node_at(term: Term, start: jax.Array, spacing: jax.Array) -> jax.Array:
    """Just below the log mean ratio of the losses nearer to it than half the spacing.

    By iteration from a node that a plan has, which knows it to a coarse cell.
    """

    def again(_, anchor: jax.Array) -> jax.Array:
        log_q, log_p = term.masses(anchor - 0.5 * spacing, anchor + 0.5 * spacing)
        some = (log_q > -jnp.inf) & (log_p > -jnp.inf)
        mean = jnp.where(some, log_p, 0.0) - jnp.where(some, log_q, 0.0)
        return jnp.where(some, jnp.clip(mean, start - spacing, start + spacing), anchor)

    anchor = lax.stop_gradient(lax.fori_loop(0, _ANCHOR_ROUNDS, again, start))
    # rounding is to leave the mean above its node, not below
    return anchor - (2.0**-42 + 2.0**-46 * jnp.abs(anchor))


class _Fine(NamedTuple):
    """The bulk of a term, transformed on its fine lattice, and its moments.

    Those at the Chernoff tilts of its own window, and at those of the composition.
    """

    logs: Logs
    lattice: Lattice
    log_norm: jax.Array
    log_mgf: jax.Array
    composed: jax.Array
    end: jax.Array


def _offset(fine: _Fine, origin: jax.Array, frame: Frame) -> jax.Array:
    """In coarse steps, of what lies on the lattice for so many steps: see `OneStep.end`."""
    place = origin * fine.end * (fine.lattice.spacing / frame.spacing)
    return place - _places.nearest(place, frame.size)


def _fold(
    fine: _Fine,
    step: StepPlan,
    fold: jax.Array,
    origin: jax.Array,
    from_d: jax.Array,
    frame: Frame,
) -> tuple[Symbol, jax.Array]:
    """The fold-fold bulk on the coarse lattice, and log1p of the mass it may be off by.

    Its coarse points are (in losses) origin * centre + spacing * (k + `_offset`), k any integer,
    once jumps make up for the steps that it lacks, each counted from `from_d` below the centre;
    normalised by the fold-th power of the bulk's mass.
    """
    size, h = frame.size, fine.lattice.spacing
    low = step.window[0] + fold * (step.centre - fine.lattice.centre)
    wave, moved = power(fine.logs, fold)
    first = _places.floor(low / h - moved, size) - 2.0
    ordered = jnp.fft.irfft(wave, size)[wrap(count_up(size) + first, size)]
    ordered, lost = without_noise(ordered, rounding_mass(factors(fold), wave, size))
    from_origin = (fold - origin) * (from_d / frame.spacing)
    ratio = h / frame.spacing
    start = (first + moved) * ratio + from_origin - _offset(fine, origin, frame)
    middle = _places.ceil(-start, size)  # where place 0 goes: none becomes negative
    place = start + count_up(size) * ratio + middle
    coarse = coarsen(ordered, place, frame.spacing, frame.theta, frame.side, size)
    edges = h * jnp.stack([-first - moved, first + moved + size])
    log_mgf = fold * fine.log_mgf
    lost += jnp.sum(outside(log_mgf, step.chernoff, edges))
    symbol = frame.symbol(coarse, count_up(size) - middle)
    # What has wrapped around is among what the array may be off by, and nothing that its moments
    # need to feel: those of the law itself, each point moved by a place (here two), do as well.
    apart = jnp.abs(frame.tilts) + (1.0 + frame.theta) * frame.spacing
    own = fold * fine.composed + frame.tilts * (from_origin - _offset(fine, origin, frame))
    own = lax.stop_gradient(jnp.exp(own + 2.0 * apart))
    real = jnp.concatenate([symbol.real[:1], jnp.minimum(symbol.real[1:], own)])
    return Symbol(symbol.wave, real), jnp.log1p(lost)


class Part(NamedTuple):
    """A factor of the composition: what it adds up to, and where its origin lies."""

    power: Power
    log_unit: jax.Array | float = 0.0
    origin: jax.Array | float = 0.0
    stray: jax.Array | float = 0.0
    factors: jax.Array | float = 0.0  # see `_symbols.factors`
    log_besides: jax.Array | float = -jnp.inf  # of delta, what the composition does not have


def parts(
    one: OneStep, step: StepPlan, count: jax.Array, frame: Frame, least: jax.Array
) -> list[Part]:
    """One term as a product of powers; what is not composed is bounded from epsilon = least on."""
    size, h = frame.size, one.lattice.spacing
    middle = step.centre + step.cut[0] - one.lattice.centre
    rare = jnp.abs(one.positions * h - middle) > step.cut[1]
    weights = jnp.where(rare, 0.0, one.weights)
    bulk, apart = jnp.sum(weights), step.apart.some
    # Where one is composed apart, what is between the bulk and the cut is left out.
    beyond = jnp.abs(one.lattice.centre + one.positions * h) > step.apart.cut
    between = jnp.sum(jnp.where(rare & ~beyond & apart, one.weights, 0.0)) / bulk
    rare &= beyond | ~apart
    weights /= bulk
    cyclic = jnp.zeros((size,), jnp.float64).at[wrap(one.positions, size)].add(weights)
    tilts = h * jnp.stack([step.chernoff, frame.chernoff]) * np.array([-1.0, 1.0])
    log_mgf, composed = log_mgf_of(weights, tilts[:, :, None] * one.positions)
    log_mgf += _allowances.pairwise_sums(size)
    composed += _allowances.pairwise_sums(size)
    log_norm = one.log_norm + jnp.log(bulk)
    fine = _Fine(logs_of(jnp.fft.rfft(cyclic)), one.lattice, log_norm, log_mgf, composed, one.end)
    few = (step.outer <= 1.0) & (step.rest <= 0.0)
    about = jnp.where(apart, _places.floor(step.apart.cut / frame.spacing, size), 0.0)
    own, beside, from_d, log_mass, some = jumps_of(one, rare, few, apart, about, frame)
    # (A real number of few steps is a power on the fine lattice: a bulk narrower than a coarse cell
    # has none without waves there.)
    inner, rest = jnp.where(few & (count >= 1.0), count, step.inner), step.rest
    # The folds go through one program: inner and rest (of few steps all but one instead), below
    # also inner with three factors fewer.
    folds = [inner, jnp.where(few, inner - 1.0, rest)]
    origins = [inner, jnp.where(few, inner, rest)]
    used = [jnp.asarray(True), (rest > 0.0) | apart | (few & some)]
    if frame.side < 0:
        folds, origins = [*folds, jnp.maximum(inner - 3.0, 0.0)], [*origins, inner]
        used.append(some)
    folds, origins = jnp.stack(folds), jnp.stack(origins)

    # What is not used stands for no steps.
    nothing = Symbol(jnp.ones((size // 2 + 1,), jnp.complex128), jnp.ones((3,))), jnp.zeros(())

    def fold(x: tuple[jax.Array, ...]) -> tuple[Symbol, jax.Array]:
        return lax.cond(x[0], lambda: _fold(fine, step, x[1], x[2], from_d, frame), lambda: nothing)

    each = lax.map(fold, (jnp.stack(used), folds, origins))
    # In units of the bulk's mass to the number of steps in the block, jumps in units of d's.
    unit = jnp.exp((origins - folds) * (log_mass - jnp.log(bulk)))
    blocks = [jax.tree.map(lambda x, i=i: x[i], each) for i in range(folds.shape[0])]
    blocks[0] = blocks[0][0].where(~apart), blocks[0][1]

    def add(to: int, fold: int, series: Symbol) -> None:
        """To a block, a fold beside jumps."""
        (symbol, stray), (bulk, off) = blocks[to], blocks[fold]
        symbol += (bulk * series).scaled(unit[fold])
        blocks[to] = symbol, stray + off * series.real[0] * unit[fold]

    times, jumps = (count - rest) / inner, []
    if frame.side > 0:
        # (1 + x)^count, or of few steps the (1 + x)^(n - 1) beside one.
        power = raised(beside.plus(1.0), frame.tilts, jnp.where(few, inner - 1.0, count))
        # (Of few steps it is part of a sum, which may be small where it is not: no 2 n |G| there.)
        whole = jnp.where(few, count, factors(count))
        jumps = [Part(power.where(~few), factors=whole)]
        several = at_least_one(own, beside, power, few & ~apart, inner)
        add(0, 1, several + own.scaled(inner).where(apart))
    else:
        add(0, 1, own.scaled(inner).where(few))
        square, n = beside * beside, count / jnp.where(times > 0.0, times, 1.0)
        series = beside.where(~few).scaled(n) + square.scaled(n * (n - 1.0) / 2.0)
        series += (square * beside).scaled(n * (n - 1.0) * (n - 2.0) / 6.0)
        add(0, 2, series.where(~apart))
    once = jnp.where(few, 0.0, 1.0)
    (first, off), (second, more) = blocks[:2]
    # (Of all but one step, in units of their mass.)
    off = jnp.where(apart, 2.0 * (each[1][1] + count * between), off)
    second = raised(second, frame.tilts).where(~few)
    at = one.lattice.centre
    moved = [frame.spacing * _offset(fine, o, frame) for o in (inner, rest)]
    return [
        Part(
            raised(first, frame.tilts, times),
            (count - rest) * log_norm,
            (count - rest) * at + times * moved[0] + about * frame.spacing,
            times * off,
            factors(times),
            not_one(one, rare, step, count, frame, least) if frame.side > 0 else -jnp.inf,
        ),
        Part(second, rest * log_norm, rest * at + once * moved[1], once * more, factors(once)),
        *jumps,
    ]
