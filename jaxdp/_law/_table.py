"""A composition as one step: the masses of all its losses at once, for what samples it.

The terms are discretised on one lattice (`_discretise`), tilted by each of a few theta_j, and
composed by the FFT as in `_compose`. That is one measure of losses on a lattice, seen at several
tilts: at each its points are known up to an absolute error stray_j, in units of
e^{K_j - theta_j l}, and at a point the tilt counts whose error is the smallest there. With a tilt
every few deviations the errors are next to nothing relative to the masses, over the whole range.

A pointwise error. With the notation of `_compose`, the transform of a product of powers G is off by
2 r n |G_f|, or where a factor is below 1/2 by r n 2^(1-n), at every frequency f, and a point of the
inverse transform by the mean of those over the M frequencies and r times the mean of |G|:

    eta = r ((2 sum n + 1) |G|_1 / M + sum n 2^(1-n)).

What wraps around is below the mass beyond the ends of the transform, which is twice as long as the
list of points that is kept: by Chernoff, between the tilt and any other one, K being that of the
law which is transformed.

The order. A sampled composition is (for "remove", and for "add" as the remove question of the
reversed pair) the expectation of a convex increasing function f >= 0 of the ratio, f(0) > 0
included. So a measure above needs total mass as well, and one below may have less:

* Above, points get w + stray. The Q-mass that the discretised steps leave at X = 0, that which
  rounding took from them, and that of losses below the list go to X = 0 (`log_tau_q`); P-mass below
  the list goes to its first point, which with the former is the chord between 0 and that point;
  P-mass beyond the list goes to infinity.
* Below, points get w - stray, and what is outside the list is left out.

Points are moved by the rounding of their positions, to the safe side.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import exp_log, log_positive
from jaxdp._law import _allowances, _discretise, _places, _table_choice
from jaxdp._law._family import log_through
from jaxdp._law._grid import Lattice, align, between, occupied_positions
from jaxdp._law._intervals import interval_masses
from jaxdp._law._parts import node_at
from jaxdp._law._places import wrap
from jaxdp._law._step import finite_ends
from jaxdp._law._symbols import count_up, factors, from_log, log_of
from jaxdp._law._table_choice import Choice, choose
from jaxdp._law._terms import Family, Term, Terms, of_each
from jaxdp._special import log1p

_SMALLEST = 1e-280  # what underflow may lose
_MASSES = 2.0**-40  # relative, what the rounding of a step's masses may take away


class _Part(NamedTuple):
    """What a term adds to the composition: logarithms of transforms and of masses."""

    magnitude: jax.Array
    angle: jax.Array
    log_norm: jax.Array
    start: jax.Array
    ends: jax.Array
    through: jax.Array
    present: jax.Array
    factors: jax.Array
    shift: jax.Array
    taken: jax.Array


def _stretch(terms: Terms) -> jax.Array:
    """1, with the relative slopes of the widest support: its ends stay on the lattice's nodes."""
    bounded = [term for term in terms if isinstance(term, Term) and term.bounded]
    width = functools.reduce(jnp.maximum, [between(finite_ends(t)) for t in bounded], jnp.zeros(()))
    some = width > 0.0
    width = jnp.where(some, width, 1.0)
    return jnp.where(some, width / lax.stop_gradient(width), 1.0)


def _left_at_zero(term: Term, node: jax.Array) -> jax.Array:
    """Q-mass at X = 0 of the chord between 0 and the first node, which keeps the P-mass there."""
    log_q, log_p = (x[0] for x in term.masses(jnp.full((1,), -jnp.inf), node[None]))
    some = log_p > -jnp.inf
    offset = jnp.where(some, log_p, 0.0) - jnp.where(some, log_q, 0.0) - node
    kept = jnp.where(some, jnp.exp(jnp.minimum(offset, 0.0)), 0.0)
    return jnp.exp(log_q) * (1.0 - kept)


def _between(tilts: jax.Array) -> jax.Array:
    """The middle one of those above 0, or 0: masses below are known some deviations about it."""
    above = jnp.sum((tilts > 0.0).astype(jnp.int32))
    at = tilts[jnp.minimum(tilts.shape[0] - (above + 1) // 2, tilts.shape[0] - 1)]
    return jnp.where(above > 0, at, 0.0)


def _part(term: Term, chosen: Choice, size: int, side: int) -> _Part:
    """One term on the lattice; centre, node and range of `chosen` are its own."""
    inner = _table_choice.TILTS
    low, high = finite_ends(term)
    one_end = jnp.where(jnp.isfinite(high), -jnp.inf, low), high
    centre = chosen.centre if side > 0 else node_at(term, chosen.node, chosen.spacing)
    lattice = align(Lattice(centre, chosen.spacing), one_end, side)
    first = _places.floor((chosen.range[0] - lattice.centre) / lattice.spacing) - 1.0
    places = occupied_positions(lattice, (low, high), chosen.range, first + count_up(size))
    nodes = lattice.centre + places * lattice.spacing
    tilts = chosen.tilts
    if side > 0:
        weights, log_norm, top = jax.vmap(
            lambda t: _discretise.upper(term, nodes, t), out_axes=(0, 0, None)
        )(tilts)
        bottom = _left_at_zero(term, nodes[0])
    else:
        start = _between(tilts[: inner - 1])
        own, log_own = _discretise.lower(term, nodes, start, lattice.centre)
        exponent = log_positive(own) + (tilts - start)[:, None] * (nodes - lattice.centre)
        largest = lax.stop_gradient(jnp.max(exponent, axis=-1))
        weights = jnp.exp(exponent - largest[:, None])
        total = jnp.sum(weights, axis=-1)
        weights = weights / total[:, None]
        log_norm = log_own + largest + jnp.log(total) + (tilts - start) * lattice.centre
        top, bottom = jnp.float64(-jnp.inf), 0.0
    cyclic = jnp.zeros((inner, 2 * size)).at[:, wrap(places, 2 * size)].add(weights[:inner])
    magnitude, angle = log_of(jnp.fft.rfft(cyclic))
    count = jnp.asarray(term.count, jnp.float64)
    absent = jnp.exp(jnp.asarray(term.log_tau_q, jnp.float64)) + bottom
    span = jnp.abs(lattice.centre) + 2.0 * size * lattice.spacing
    reach = jnp.maximum(jnp.abs(nodes[0]), jnp.abs(nodes[-1]))
    part = _Part(
        magnitude,
        angle,
        log_norm,
        lattice.centre,
        jnp.stack([nodes[0], nodes[-1]]),
        log_through(term, top),
        log1p(-jnp.minimum(absent, 1.0 - 1e-16)),
        jnp.zeros((2,)),
        _allowances.positions(1.0, span),
        _MASSES * (1.0 + reach / 64.0) + 4.0 * jnp.asarray(term.mass_error, jnp.float64),
    )
    some = count > 0.0
    part = jax.tree.map(lambda x: jnp.where(some, count * jnp.where(some, x, 0.0), 0.0), part)
    return part._replace(factors=factors(count))


def _parts(terms: Terms, chosen: Choice, size: int, side: int) -> _Part:
    """The sum over the terms, one after the other by one program, and so those of a family."""
    each = chosen.centre, chosen.node, chosen.range

    def one(term: Term, own: Any) -> _Part:
        centre, node, kept = own
        return _part(term, chosen._replace(centre=centre, node=node, range=kept), size, side)

    parts, place, single = [], 0, []
    for term in terms:
        number = term.number if isinstance(term, Family) else 1
        rows = slice(place, place + number)
        own = jax.tree.map(lambda x, rows=rows: x[rows], each)
        place += number
        if isinstance(term, Term):
            single.append((term, jax.tree.map(lambda x: x[0], own)))
            continue

        @jax.jit  # traced once
        @jax.checkpoint
        def member(x: Any, term=term) -> _Part:
            return one(term.term(x[0]), x[1])

        def add(total: _Part, x: Any, member=member) -> tuple[_Part, None]:
            total = jax.tree.map(jnp.add, total, member(x))
            turns = lax.stop_gradient(jnp.round(total.angle / (2.0 * np.pi)))
            return total._replace(angle=total.angle - 2.0 * np.pi * turns), None

        rows_of = (term.parameters, own)
        shape = jax.eval_shape(member, jax.tree.map(lambda x: x[0], rows_of))
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shape)
        parts.append(lax.scan(add, zero, rows_of)[0])
    if single:
        parts += of_each(one, *zip(*single, strict=True))
    return jax.tree.map(lambda *x: sum(x[1:], x[0]), *parts)


def _beyond(tilts: jax.Array, log_mgf: jax.Array, at: jax.Array, above: bool) -> jax.Array:
    """Chernoff's bound on the mass beyond a loss, of a law with these moments at its tilts."""
    proves = tilts > 0.0 if above else tilts < 0.0
    exponent = jnp.where(proves, log_mgf - tilts * at, jnp.inf)
    return _allowances.CHERNOFF * jnp.exp(jnp.minimum(jnp.min(exponent, axis=-1), 0.0))


class Table(NamedTuple):
    """A law on a lattice of losses: its first one, their spacing, Q- and P-masses.

    And log P{L = inf}, log Q{L = -inf}, the losses that have mass, and nan where nothing is known.
    """

    first: jax.Array
    spacing: jax.Array
    q: jax.Array
    p: jax.Array
    log_tau_p: jax.Array
    log_tau_q: jax.Array
    support: tuple[jax.Array, jax.Array]
    error: jax.Array

    def term(self) -> Term:
        """The law as a term."""
        size = self.p.shape[0]

        def index(at: jax.Array) -> jax.Array:
            """How many points have a loss of at most that."""
            place = jnp.floor((at - self.first) / self.spacing) + 1.0
            return jnp.clip(place, 0.0, size).astype(jnp.int32)

        masses = interval_masses(self.q, self.p, index)
        return Term(masses, 1.0, self.log_tau_p, self.log_tau_q, self.support, self.error)


def table(terms: Terms, log_floor: jax.Array, size: int, side: int) -> Table:
    """The composition in a table, above (side = +1) or below (-1) in its "remove" reading.

    Args:
      terms: what is composed.
      log_floor: log of the P-mass that may be put at infinity (left out, below).
      size: of the list of losses, a power of two.
      side: +1 or -1.
    """
    inner = _table_choice.TILTS  # those of all that are transformed
    chosen = lax.stop_gradient(choose(terms, log_floor, size))
    chosen = chosen._replace(spacing=chosen.spacing * _stretch(terms))
    part = _parts(terms, chosen, size, side)
    h, steps = chosen.spacing, part.factors[0]
    first = lax.stop_gradient(_places.floor((chosen.low - part.start) / h) - 1.0)
    loss = part.start + h * (first + count_up(size))
    wave = from_log(part.magnitude, part.angle)
    length = 2 * size
    weights = jnp.fft.irfft(wave, length)[:, wrap(first + count_up(size), length)]
    # the error of a point, and what wraps around
    tilts, log_mgf = chosen.tilts, lax.stop_gradient(part.log_norm)
    norm = 2.0 * jnp.sum(jnp.abs(lax.stop_gradient(wave)), axis=-1) / length
    r = _allowances.fourier(length, operations=48)
    eta = r * ((2.0 * steps + 1.0) * norm + part.factors[1])
    gap, log_gap = tilts - tilts[:inner, None], log_mgf - log_mgf[:inner, None]
    origin = lax.stop_gradient(part.start) + h * first
    ends = origin - 0.5 * h * size, origin + 1.5 * h * size
    wrapped = _beyond(gap, log_gap, ends[0], False) + _beyond(gap, log_gap, ends[1], True)
    stray = lax.stop_gradient(eta + wrapped)
    # the tilt at which a point is known best
    log_unit = part.log_norm[:inner, None] - tilts[:inner, None] * loss
    score = lax.stop_gradient(log_unit + jnp.log(stray)[:, None])
    # (The first that is as good as the best: compiled, both may be rounded differently.)
    order = jnp.arange(inner, dtype=jnp.int32)[:, None]
    best = jnp.where(score <= jnp.min(score, axis=0) + 0.1, order, inner - 1)
    best = jnp.min(best, axis=0, keepdims=True)

    def pick(values: jax.Array) -> jax.Array:
        return jnp.take_along_axis(jnp.broadcast_to(values, log_unit.shape), best, axis=0)[0]

    unit = pick(log_unit)
    allowance = _allowances.prefactor(
        pick(part.log_norm[:inner, None]), pick(tilts[:inner, None]) * loss
    )
    allowance += _allowances.normalised_steps(steps) + 64.0 * _allowances.UNIT * steps
    p = jnp.maximum(pick(weights) + side * pick(stray[:, None]), 0.0)
    # (No mass of the law on the lattice is farther out than all of its steps' last nodes.)
    least, most = lax.stop_gradient(part.ends) + jnp.array([-0.5, 0.5]) * h
    p = jnp.where((loss > least) & (loss < most), p, 0.0)
    shift = lax.stop_gradient(part.shift) + _allowances.lattice(part.start + h * first, h, size)
    loss = loss + side * shift
    p = p * jnp.exp(jnp.minimum(unit + side * lax.stop_gradient(allowance), 600.0))
    log_tau = log_positive(-jnp.expm1(part.through)), log_positive(-jnp.expm1(part.present))
    if side > 0:
        none_below, none_beyond = least > loss[0], most < loss[-1]
        below = jnp.where(none_below, 0.0, _beyond(tilts, log_mgf, loss[0], False))
        p = p.at[0].add(below)
        beyond = jnp.where(none_beyond, 0.0, _beyond(tilts, log_mgf, loss[-1], True)) + _SMALLEST
        q = p * jnp.exp(-loss)
        small = (q < _SMALLEST) & (p > 0.0)
        beyond += jnp.sum(jnp.where(small, p, 0.0))
        absent = jnp.where(none_below, 0.0, _beyond(tilts + 1.0, log_mgf, loss[0], False))
        absent += part.taken + 4.0 * shift
        kept = ~small
        log_tau = (
            jnp.logaddexp(log_tau[0], jnp.log(beyond)) + _allowances.failure(log_tau[0], 64),
            jnp.logaddexp(log_tau[1], jnp.log(absent)) + _allowances.failure(log_tau[1], 64),
        )
    else:
        p = p * (1.0 - 4.0 * shift)
        q = p * jnp.exp(-loss)
        kept = q > _SMALLEST
        log_tau = tuple(x - _allowances.failure(x, 64, -1) for x in log_tau)
    p, q = jnp.where(kept, p, 0.0), jnp.where(kept, q, 0.0)
    known = jnp.isfinite(jnp.sum(p) + jnp.sum(q) + loss[0] + h)

    low, high = (
        jnp.min(jnp.where(p > 0.0, loss, jnp.inf)),
        jnp.max(jnp.where(p > 0.0, loss, -jnp.inf)),
    )
    some = low <= high
    support = jnp.where(some, low, loss[0]), jnp.where(some, high, loss[-1])
    error = jnp.where(known, 0.0, jnp.nan)
    log_tau_p, log_tau_q = (jnp.minimum(x, 0.0) for x in log_tau)
    return Table(loss[0], h, q, p, log_tau_p, log_tau_q, support, error)


def cut(term: Term, log_floor: jax.Array, size: int) -> Table:
    """The masses of one step in cells of a lattice, each named by where it begins.

    That is what is seen of a loss in which cell it is: no law above, and below exactly so.
    """
    chosen = lax.stop_gradient(choose((term,), log_floor, size))
    first, h = chosen.low, chosen.spacing
    start = first + h * jnp.arange(size, dtype=jnp.float64)
    log_q, log_p = term.masses(start, start + h)
    error = jnp.asarray(term.mass_error, jnp.float64) + _MASSES
    q, p = exp_log(log_q) * (1.0 + error), exp_log(log_p) * (1.0 - error)
    log_taus = [jnp.asarray(x, jnp.float64) for x in (term.log_tau_p, term.log_tau_q)]
    tau_p, tau_q = (x - _allowances.failure(x, 1, -1) for x in log_taus)
    known = jnp.where(jnp.isfinite(jnp.sum(p) + jnp.sum(q)), 0.0, jnp.nan)
    return Table(first, h, q, p, tau_p, tau_q, (start[0], start[-1]), known)
