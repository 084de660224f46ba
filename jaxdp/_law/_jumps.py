"""The rare large losses of one term, beside its bulk: see `_parts`, which says what for."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import log_add
from jaxdp._law import _allowances, _discretise, _places
from jaxdp._law._plan import StepPlan
from jaxdp._law._saddle import log_price
from jaxdp._law._step import OneStep
from jaxdp._law._symbols import Frame, Power, Symbol, count_up, log_mgf_of

_DUST = 1e-12  # of the largest weight


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
    side below may do). A point may go up by two hairs of `_places`: see `_allowances.moved_up`.
    """
    inside = (place > -2.0 * _places.HAIR * size) & (place < size)
    place = jnp.where(inside, place, 0.0)
    weights = jnp.where(inside, weights, 0.0)
    cell = jnp.maximum(_places.floor(place, size), 0.0)
    offset = _places.after(place, cell) * spacing
    at_node = weights * jnp.exp(-theta * offset)  # P-mass, in the units of the left node
    if side > 0:
        left, right = _discretise.split(offset, spacing)
        index = cell.astype(jnp.int32)
        out = jnp.zeros((size + 1,), jnp.float64)
        out = out.at[index].add(at_node * left)
        return out.at[index + 1].add(at_node * right * jnp.exp(theta * spacing))[:size]
    # Dust below the bulk is cut: it would be what the law below begins with.
    begins = weights > _DUST * jnp.max(weights)
    start = jnp.min(jnp.where(begins, place, jnp.inf)) - _places.HAIR * size
    at_node = jnp.where(place >= start, at_node, 0.0)
    half = jnp.maximum(_places.floor(2.0 * place, 2 * size), 0.0).astype(jnp.int32)
    q = at_node * jnp.exp(-offset)
    empty = jnp.zeros((2 * size,), jnp.float64)
    mass = empty.at[half].add(q)
    moment = empty.at[half].add(q * jnp.expm1(offset))
    rise = moment / jnp.where(mass > 0.0, mass, 1.0)
    mean = jnp.sum(weights * place) / jnp.maximum(jnp.sum(weights), 1e-300)
    middle = _places.nearest(mean, size)
    relative = (count_up(size) - lax.stop_gradient(middle)) * spacing
    exponent = jnp.clip((1.0 + theta) * relative, -600.0, 600.0)
    unit = jnp.exp(-exponent)
    mass, rise = mass.reshape(size, 2), rise.reshape(size, 2)
    tilted = mass[:, 0] + mass[:, 1]
    # What is beyond the range of a double is a measure of its own: its P-mass moves down to nodes.
    held = jnp.abs(exponent) < 600.0
    inside = jnp.append(held[:-1] & held[1:], False)
    apart = jnp.where(inside, 0.0, jnp.sum(mass * (1.0 + rise), axis=1))
    apart *= 1.0 - _allowances.cell_sums(size)
    mass, tilted = jnp.where(inside[:, None], mass, 0.0), jnp.where(inside, tilted, 0.0)
    quiet = tilted < _discretise.EMPTY
    node_quiet = quiet & jnp.concatenate([jnp.ones((1,), bool), quiet[:-1]])
    halves = _discretise.HalfCells(
        mass[:-1, 0] * unit[:-1], mass[:-1, 1] * unit[:-1], rise[:-1, 0], rise[:-1, 1]
    )
    width = jnp.where(inside[:-1], spacing, 0.0)
    ratio = jnp.exp(jnp.clip(relative, -600.0, 600.0))
    measure = _discretise.lower_measure(halves, width, ratio, jnp.float64(0.0), node_quiet)
    return measure * jnp.exp(exponent) + apart


class Jumps(NamedTuple):
    """The rare large losses on the coarse lattice, j itself and what may stand beside others.

    The second is j/d above, and j with its losses reduced below: see the module. (Where the steps
    are not few, the first is not needed.) Losses are counted from the point of the coarse lattice
    next to d, which is `from_d` below the centre, and masses in units of d's: so they stay on the
    lattice, and within the range of a double, wherever the bulk is.
    """

    own: Symbol
    beside: Symbol
    from_d: jax.Array
    log_mass: jax.Array  # of d, in units of the step's
    some: jax.Array  # else both are nothing


def jumps_of(
    one: OneStep, rare: jax.Array, few: jax.Array, apart: jax.Array, about: jax.Array, frame: Frame
) -> Jumps:
    """Those of the losses that are rare; where one is composed apart, from the place `about` on."""
    size, h, theta = frame.size, frame.spacing, frame.theta
    offset = one.positions * one.lattice.spacing
    exponent = jnp.where(rare, 0.0, offset)
    tilts = jnp.stack([-1.0 - theta, -theta])
    q_log, p_log = log_mgf_of(jnp.where(rare, 0.0, one.weights), tilts[:, None] * exponent)
    some = jnp.any(rare)  # else there is nothing to multiply what follows with
    mean = jnp.where(some, p_log - q_log, 0.0)
    place_of_d = lax.stop_gradient(_places.nearest((one.lattice.centre + mean) / h, size))
    from_d = one.lattice.centre - place_of_d * h
    log_m, s = q_log - (1.0 + theta) * from_d, mean + from_d
    # A d that is lower is right on either side: here by what its two sums may be off by.
    rough = _allowances.pairwise_sums(exponent.size) + _allowances.exponent(
        q_log, p_log, (1.0 + theta) * from_d
    )
    log_m, s = jnp.where(some, log_m - rough, 0.0), jnp.where(some, s - 2.0 * rough, 0.0)
    loss = from_d + offset
    weights = jnp.where(rare, one.weights, 0.0) * jnp.exp(-log_m)
    move = jnp.minimum(2.0 * s, 0.0)
    if frame.side < 0:
        # Moving a Q-mass by l multiplies its tilted weight by e^{(1 + theta) l}. Moving to a whole
        # number of places costs up to one: of few steps only the second jump pays it.
        now = jnp.where(few, 0.0, move)
        weights *= jnp.exp((1.0 + theta) * now)
        loss += now
        # (What one step has beyond the cut, where one is composed apart.)
        far, log_p = one.beyond
        known = log_p > -jnp.inf
        exponent = jnp.where(known, log_p, 0.0) + theta * far - one.log_norm - log_m
        exponent -= _allowances.exponent(log_p, theta * far, one.log_norm, log_m)
        far_weights = jnp.where(known, jnp.exp(jnp.minimum(exponent, 700.0)), 0.0)
        weights = jnp.concatenate([weights, far_weights])
        loss = jnp.concatenate([loss, far - one.lattice.centre + from_d])
        rare = jnp.concatenate([rare, known])
        some = jnp.any(rare)

    def below() -> tuple[Symbol, Symbol]:
        place = loss / h
        first = jnp.min(jnp.where(weights > 0.0, place, jnp.inf))
        first = jnp.where(first < jnp.inf, first, 0.0)
        before = jnp.minimum(-_places.floor(first, size), size // 2)
        place = jnp.where(rare, place, -before)
        # (Their own unit, next to which nothing is next to nothing.)
        unit = lax.stop_gradient(jnp.max(weights))
        unit = jnp.where(apart & (unit > 0.0), unit, 1.0)
        coarse = coarsen(weights / unit, place + before, h, theta, frame.side, size) * unit
        own = frame.symbol(coarse, count_up(size) - before - about)
        cell = jnp.where(few, jnp.floor(move / h), 0.0)  # (of less than 0, by more than rounding)
        mass = jnp.exp((1.0 + theta) * cell * h)
        return own, own * frame.points(cell, mass, jnp.zeros_like(mass))

    def two(weights: jax.Array, place: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        cell = _places.floor(place, size)
        offset = _places.after(place, cell) * h
        left, right = _discretise.split(offset, h)
        at_node = weights * jnp.exp(-theta * offset)
        return cell, at_node * left, at_node * right * jnp.exp(theta * h)

    def above() -> tuple[Symbol, Symbol]:
        cell, left, right = two(weights, jnp.where(rare, loss, 0.0) / h)
        places = jnp.concatenate([cell, cell + 1.0]) - about
        own = frame.symbol(jnp.concatenate([left, right]), places)
        return own, own * frame.points(*two(jnp.exp(-(1.0 + theta) * s), -s / h))

    none = Symbol(jnp.zeros((size // 2 + 1,), jnp.complex128), jnp.zeros((3,)))
    symbols = below if frame.side < 0 else above
    own, beside = lax.cond(some, symbols, lambda: (none, none))
    return Jumps(own, beside, from_d, log_m, some)


def at_least_one(
    own: Symbol, beside: Symbol, power: Power, few: jax.Array, steps: jax.Array
) -> Symbol:
    """Above, the jumps of a few steps when there is one, given (1 + x)^(n - 1): see the module."""
    n = jnp.where(few, steps, 1.0)
    own, x = own.where(few), beside.where(few)
    series = power.where(few).symbol() + (x * x).scaled((n - 1.0) * (n - 2.0) / 6.0)
    return (own * (series + x.scaled(n - 1.0).plus(3.0))).scaled(n / 4.0)


def not_one(
    one: OneStep,
    rare: jax.Array,
    step: StepPlan,
    count: jax.Array,
    frame: Frame,
    least: jax.Array,
) -> jax.Array:
    """log of delta at `least` or beyond, at most, of no loss beyond the cut and of two or more.

    Where one is composed apart: see `_plan_apart`.
    """
    apart, theta = step.apart.some, frame.theta
    tilt = jnp.where(apart, step.apart.tilt, 1.0)
    loss = one.lattice.centre + one.lattice.spacing * one.positions
    weights = jnp.where(jnp.stack([rare, ~rare]), 0.0, one.weights)
    tilts = jnp.stack([tilt - theta, -theta])
    log_none, log_one = one.log_norm + log_mgf_of(weights, tilts[:, None] * loss)
    log_none = count * (log_none + _allowances.pairwise_sums(loss.size)) + log_price(tilt)
    log_twice = 2.0 * (log_one + jnp.log(jnp.maximum(count, 1.0))) - np.log(2.0)
    log_none -= tilt * least
    found = log_add(log_none, log_twice)
    largest = jnp.max(jnp.abs(loss)) * (theta + tilt)
    found += _allowances.exponent(found, count * one.log_norm, count * largest, tilt * least)
    return lax.stop_gradient(jnp.where(apart, found, -jnp.inf))
