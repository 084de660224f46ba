"""Random allocation in the numerical engine: one average directly, or averages as terms."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _law, _numerical_guess
from jaxdp._allocation._selected import Selected
from jaxdp._divergences import log_add
from jaxdp._law import (
    Bounds,
    Sides,
    _allocation,
    _average_atoms,
    _average_guess,
    _average_pairs_plan,
    _average_plan,
    _subset,
    either,
    may_add,
)
from jaxdp._mechanisms import Average, Mechanism, _curve

StepTerm = Callable[..., _law.Term]
_ESTIMATE_SIZE = 2048
_RARE = -690.0  # log of failures that may not be numbers
_RATES, _RATE = (0.25, 0.5, 1.0), 0.5  # of tests for a choice of steps, relative to k/t
_FLOOR = 4.0  # of the tail that tests see, below log delta
_POINTS_OF_PAIRS = 768  # of lists
_POINTS = {1: 8192, -1: 16384}  # of the composition: the bound below needs more


def step_of(block: Average) -> Any:
    """What is averaged: one step, or a composition."""
    one = _curve.single(_curve.canonical_terms(block.mechanism))
    return block.mechanism if one is None else one


def is_one(m: Mechanism) -> bool:
    """Whether m is exactly one average, which is asked about any epsilon directly."""
    return _curve.has_average(m) and _one(m) is not None


def takes_flag(m: Mechanism) -> bool:
    """Whether both directions of m cost the same: of one average of steps, one of them chosen.

    (A law to be composed is made of other lattices for one direction than for the other.)
    """
    one = _one(m) if is_one(m) else None
    return one is not None and one._has_two_readings


def _one(m: Mechanism) -> Average | None:
    """The average that m is, if it is exactly one."""
    terms = _curve.canonical_terms(m)
    one = len(terms) == 1 and terms[0].count is None
    return terms[0].mechanism if one else None


def _perhaps_once(m: Mechanism) -> Any:
    """The term that m is: one average, so many times as only the running program knows."""
    terms = _curve.canonical_terms(m)
    known = len(terms) != 1 or terms[0].count is None or not getattr(m, "once", ())
    return None if known else terms[0]


def _once_or_more(term: Any, once: Callable[[], Bounds], more: Callable[[], Bounds]) -> Bounds:
    """One average has a lattice for the query alone; a law to be composed serves all of them.

    The derivatives, that with respect to the number of times among them, are those of the latter.
    """
    several = more()
    if term is None:
        return several
    alone = _as_derived(once(), several)
    return tuple(
        jnp.where(term.multiplicity == 1.0, a, b) for a, b in zip(alone, several, strict=True)
    )


@jax.custom_jvp
def _as_derived(value: Bounds, other: Bounds):
    """The value with the derivatives of the other one."""
    return value


@_as_derived.defjvp
def _as_derived_jvp(primals, tangents):
    return primals[0], tangents[1]


def _size(m: Mechanism, grid_size: int | None) -> int:
    """Of the lattices of averages: larger where some average is known to be long."""
    averages = [t.mechanism for t in _curve.canonical_terms(m)]
    return grid_size or _allocation.size_for(max(len(getattr(a, "long", ())) for a in averages))


def _terms(
    m: Mechanism,
    as_term: StepTerm,
    aim: jax.Array,
    direction: Any,
    side: int,
    size: int,
    reading: Any,
) -> tuple[_law.Term, ...]:
    """The factors of m, laws of averages above or below, right in one direction.

    `reading` is that in which they are read, the other one at a negative epsilon.
    """
    terms, every = [], _curve.canonical_terms(m)
    alone = all(isinstance(t.mechanism, Average) for t in every)
    number = sum(jnp.asarray(t.multiplicity, jnp.float64) for t in every)
    others = jnp.maximum(number - 1.0, 0.0) if alone else None
    for t in every:
        block = t.mechanism
        if not isinstance(block, Average):
            terms.append(as_term(block, t.multiplicity))
            continue
        terms.append(
            averaged(
                block, t.multiplicity, as_term, aim, direction, side, size, others, reading=reading
            )
        )
    return tuple(terms)


def averaged(
    block: Average,
    count: ArrayLike,
    as_term: StepTerm,
    aim: jax.Array,
    direction: Any,
    side: int,
    size: int,
    others: Any = None,
    outside: ArrayLike = 1.0,
    several: ArrayLike | None = None,
    reading: Any = None,
) -> _law.Term:
    """An average as a term, its law above or below, right in one direction and about one delta.

    So many of what it is in (`outside`) are composed, or averaged (`several` of them). `reading` is
    the direction that is read, if not that one.
    """
    count = jnp.asarray(count, jnp.float64)
    if isinstance(block, Selected):
        number = jnp.maximum(count, 1.0)
        law = _selection(block, as_term, aim - jnp.log(number) - _FLOOR, direction, size)(_RATE)
        return _subset.as_term(law, _law.sign_of(direction))._replace(count=count)
    step = as_term(step_of(block), 1.0, of=block.num_steps)
    steps = jnp.asarray(block.num_steps, jnp.float64)
    known = _average_atoms.coarse(step)

    s, number = _law.sign_of(direction), jnp.maximum(count, 1.0)
    aim_of_each, typical, lost = aim - jnp.log(number), None, None
    if may_add(s):
        typical = _average_guess.typical(
            known, steps, aim + jnp.log(outside), number * outside, several
        )
        lost = _average_plan.lost(step, known, steps, aim_of_each, typical, size)

    def on_ratios() -> _law.Term:
        return _allocation.averaged_term(
            step,
            steps,
            log_delta=aim + jnp.log(outside),
            direction=direction,
            side=side,
            size=size,
            count=number * outside,
            others=others,
            several=several,
            known=known,
            typical=typical,
        )

    def in_pairs() -> _law.Term:
        term = _average_pairs_plan.averaged(
            step,
            steps,
            aim_of_each,
            _law.sign_of(direction if reading is None else reading),
            side,
            known,
            _POINTS_OF_PAIRS if size > _ESTIMATE_SIZE else _POINTS_OF_PAIRS // 4,
        )
        error = jnp.where(jnp.isnan(step.mass_error), jnp.nan, term.mass_error)
        return term._replace(mass_error=error)

    if getattr(block, "long", ()):
        return on_ratios()._replace(count=count)
    better = _average_pairs_plan.better(step, known, steps, count, aim_of_each, s, lost)
    return _law.one_of(better, in_pairs, on_ratios)._replace(count=count)


def _selection(
    block: Selected, as_term: StepTerm, log_floor: jax.Array, direction: Any, size: int
) -> Callable[[ArrayLike], _subset.Subset]:
    """The law of the test with a rate, that of the choice being 1."""
    term = as_term(step_of(block), 1.0, of=block.num_steps)
    t, k = (jnp.asarray(x, jnp.float64) for x in (block.num_steps, block.num_selected))

    def law(rate: ArrayLike) -> _subset.Subset:
        return _subset.subset(
            term, t, k, rate * k / t, log_floor, _law.sign_of(direction), size // 2
        )

    return law


def _tested(
    block: Selected,
    as_term: StepTerm,
    aim: jax.Array,
    direction: Any,
    size: int,
    read: Callable[[_subset.Subset], jax.Array],
) -> tuple[jax.Array]:
    """The best bound from below of several tests."""
    law = _selection(block, as_term, aim - _FLOOR, direction, size)
    return (jnp.max(lax.map(lambda rate: read(law(rate)), jnp.asarray(_RATES))),)


def _each_side(
    bounds: Callable[..., Bounds],
    terms: Callable[[int], tuple[_law.Term, ...]],
    direction: Any,
    sides: Sides,
) -> Bounds:
    """Bounds of a composition whose averages have a law above and one below."""
    return tuple(
        bounds(terms(side), direction=direction, sides=(side,), size=_POINTS[side])[0]
        for side in sides
    )


def _at_least(
    bounds: Bounds, sides: Sides, epsilon: jax.Array, log_failure: jax.Array, log_other: jax.Array
) -> Bounds:
    """delta is at least 1 - e^epsilon (1 - f), f the failure of the other direction.

    (No more than the mass 1 - f is there to be subtracted.) Failures of this direction too rare
    for a double are added above.
    """
    negative = epsilon < 0.0
    e = jnp.where(negative, epsilon, -1.0)
    least = log_add(jnp.log(-jnp.expm1(e)), e + log_other) - 2.0**-40
    rare = jnp.where(log_failure < _RARE, log_failure, -jnp.inf)
    return tuple(
        log_add(bound, rare)
        if side > 0
        else jnp.maximum(bound, jnp.where(negative, least, -jnp.inf))
        for bound, side in zip(bounds, sides, strict=True)
    )


def _log_delta(
    m: Mechanism,
    epsilon: jax.Array,
    direction: Any,
    sides: Sides,
    grid_size: int | None,
    as_term: StepTerm,
) -> Bounds:
    size, repeated = _size(m, grid_size), _perhaps_once(m)
    block = _one(m) if repeated is None else repeated.mechanism

    def once(block: Any) -> Bounds:
        if isinstance(block, Selected):
            k = jnp.asarray(block.num_selected, jnp.float64)
            step = as_term(step_of(block), 1.0, of=block.num_steps)
            aim = _average_guess.guess_log_delta(step, block.num_steps / k, epsilon, k)
            aim = jnp.maximum(aim - _FLOOR, _RARE)
            read = functools.partial(_subset.log_delta, epsilon=epsilon)
            return _tested(block, as_term, aim, direction, size, read)
        return _allocation.allocation_log_delta_bounds(
            as_term(step_of(block), 1.0, of=block.num_steps),
            block.num_steps,
            epsilon,
            direction=direction,
            sides=sides,
            size=size,
            reach=step_of(block)._loss_range(),
        )

    if block is not None and repeated is None:
        return once(block)
    aim = _numerical_guess.of_averages(
        m,
        epsilon,
        _law.sign_of(direction),
        lambda block: as_term(step_of(block), 1.0, of=block.num_steps),
    )
    add = direction == "add" if isinstance(direction, str) else direction
    reading = add ^ (epsilon < 0.0)
    more = functools.partial(
        _each_side,
        functools.partial(_law.log_delta_bounds, epsilon=epsilon),
        lambda side: _terms(m, as_term, aim, direction, side, size, reading),
        direction,
        sides,
    )
    return _once_or_more(repeated, lambda: once(block), more)


def log_delta(
    m: Mechanism,
    epsilon: jax.Array,
    direction: Any,
    sides: Sides,
    grid_size: int | None,
    as_term: StepTerm,
) -> Bounds:
    """Certified bounds on log delta in one direction; `as_term(step, count)` is a step's law."""
    bounds = _log_delta(m, epsilon, direction, sides, grid_size, as_term)
    return _at_least(bounds, sides, epsilon, *_failure(m, direction))


def epsilon(
    m: Mechanism,
    log_target: jax.Array,
    direction: Any,
    sides: Sides,
    grid_size: int | None,
    as_term: StepTerm,
) -> Bounds:
    """Certified bounds on epsilon >= 0 at log delta, in one direction."""
    size, repeated = _size(m, grid_size), _perhaps_once(m)
    block = _one(m) if repeated is None else repeated.mechanism

    def once(block: Any) -> Bounds:
        if isinstance(block, Selected):
            read = functools.partial(_subset.epsilon, log_target=log_target)
            return _tested(block, as_term, log_target, direction, size, read)
        return _allocation.allocation_epsilon_bounds(
            as_term(step_of(block), 1.0, of=block.num_steps),
            block.num_steps,
            log_delta=log_target,
            direction=direction,
            sides=sides,
            size=size,
            reach=step_of(block)._loss_range(),
        )

    if block is not None and repeated is None:
        return once(block)
    more = functools.partial(
        _each_side,
        functools.partial(_law.epsilon_bounds, log_delta=log_target),
        lambda side: _terms(m, as_term, log_target, direction, side, size, direction),
        direction,
        sides,
    )
    return _once_or_more(repeated, lambda: once(block), more)


def log_delta_estimate(
    m: Mechanism, epsilon: jax.Array, direction: Any, as_term: StepTerm
) -> jax.Array:
    """log delta as a start for searches: of one average as its plan reads it, else a coarse bound.

    (A coarse lattice is useless for one of very many steps; the plan takes out what it spreads.)
    """
    block = _one(m) if takes_flag(m) else None
    if block is None:
        value = log_delta(m, epsilon, direction, (1,), _ESTIMATE_SIZE, as_term)[0]
        return jnp.minimum(value, 0.0)
    term = as_term(step_of(block), 1.0, of=block.num_steps)
    value = _allocation.allocation_log_delta_estimate(term, block.num_steps, epsilon, direction)
    return jnp.minimum(log_add(value, _failure(m, direction)[0]), 0.0)


def _failure(m: Mechanism, direction: Any) -> tuple[jax.Array, jax.Array]:
    """log P{inf} of the direction, and of the other one."""
    own, other = m._log_failure("remove"), m._log_failure("add")
    add = direction == "add" if isinstance(direction, str) else direction
    return either(add, (other, own), (own, other))
