"""Mechanisms as what the numerical engine composes: one-step laws, and how many times each.

What runs on a sample, in one step of an allocation or in a part of a mixture may be a composition
itself: its law is tabulated (`_law._table`), above or below, for the direction that is asked for,
and is then one step like any other; of a schedule of such, each step has a table of its own.
Averages are right in one direction only, and tables that hold one, too. What is known by bounds on
its curve has a pair above and one below.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _divergences, _law, _numerical_average
from jaxdp._mechanisms import Average, Base, Mechanism, Mixture, _curve
from jaxdp._mechanisms._revealed import MIXED, mixed_masses
from jaxdp._mechanisms._schedule import Steps
from jaxdp._noise import _atoms

TABLE_FLOOR = 16.0  # what a tabulated law puts at infinity is less than delta by this
_AVERAGE_ROOM = 2.0  # an average in a table is accurate about a delta that is smaller by this
_SHARED = 3.0  # what is averaged is tabulated for so many times as many: its bulk counts as well


class Tables(NamedTuple):
    """How laws of sampled compositions are tabulated: for which direction ("add" or not), side,
    size, with how much P-mass at infinity (its log), for how many outer factors, and how many of
    these are averaged.
    """

    add: _law.Flag
    side: int
    size: int
    log_floor: jax.Array
    number: ArrayLike
    several: ArrayLike | None = None


def has_law(m: Mechanism) -> bool:
    """Whether every factor of m knows its one-step loss law, or has one that can be tabulated."""
    return all(_step_has_law(t.mechanism) for t in _curve.canonical_terms(m))


def _step_has_law(step: Base) -> bool:
    held = step._held()
    if held:
        return all(_run_has_law(m) for m in held)
    return step._has_law or step._by_curve


def _run_has_law(m: Mechanism) -> bool:
    inner = _curve.canonical_terms(m)
    one = _curve.single(inner)
    if one is not None:
        return _step_has_law(one)
    return all(_step_has_law(t.mechanism) for t in inner)


def _is_nested(step: Base) -> bool:
    """Whether it holds compositions, or has no law but its curve: what has to be tabulated."""
    if step._by_curve:
        return True
    ones = [_curve.single(_curve.canonical_terms(m)) for m in step._held()]
    return any(one is None or _is_nested(one) for one in ones)


def has_tables(m: Mechanism) -> bool:
    """Whether a factor of m is nested."""
    return any(_is_nested(t.mechanism) for t in _curve.canonical_terms(m))


def _atomic_range(step: Base) -> tuple[jax.Array, jax.Array]:
    """The ends of the loss range where an atom may sit, infinite where none does."""
    low, high = step._loss_range()
    at_low, at_high = step._atoms_at_ends()
    return (low if at_low else -jnp.inf), (high if at_high else jnp.inf)


def holds_average(m: Mechanism) -> bool:
    """Whether there is an average in m, at any depth."""
    inside = [x for t in _curve.canonical_terms(m) for x in t.mechanism._held()]
    return _curve.has_average(m) or any(holds_average(x) for x in inside)


def terms_of(m: Mechanism, tables: Tables | None = None) -> _law.Terms:
    """The factors of m as one-step laws with their counts; nested ones need `tables`."""
    return tuple(_factor(t.mechanism, t.multiplicity, tables) for t in _curve.canonical_terms(m))


def _factor(step: Any, count: ArrayLike, tables: Tables | None) -> Any:
    """A step or an average so many times, as a term; steps of one kind as a family."""
    if isinstance(step, Steps):
        return _family(step, count, tables)
    if not (isinstance(step, Average) or _is_nested(step)):
        return _term(step, count)
    assert tables is not None
    if isinstance(step, Average):
        return _averaged(step, count, tables)
    return _nested_term(step, tables)._replace(count=count)


def _family(step: Steps, count: ArrayLike, tables: Tables | None) -> _law.Family:
    """Steps of one kind: by their parameters, or by a table for each of them."""
    one = step.mechanism
    if not _is_nested(step):
        return _law.Family(lambda x: _term(x[0], count * x[1]), (one, step.copies))
    assert tables is not None
    add, side, size, log_floor, *_ = tables

    @jax.checkpoint
    def law(x: tuple[Any, jax.Array]) -> _law.Table:
        inner = _law.oriented((_factor(x[0], count * x[1], tables)._replace(count=1.0),), add)
        return _law.table(inner, log_floor, size, side)

    laws = jax.lax.map(law, (one, step.copies))

    def term(x: tuple[_law.Table, jax.Array]) -> _law.Term:
        return _law.orient_one(x[0].term()._replace(count=count * x[1]), add)

    return _law.Family(term, (laws, step.copies))


def _averaged(block: Average, count: ArrayLike, tables: Tables) -> _law.Term:
    """An average as one of the terms of a table, right in the direction of the tables."""
    step = as_term(tables, _numerical_average.step_of(block), 1.0, of=block.num_steps)  # (once)
    tail = tables.log_floor + TABLE_FLOOR - _AVERAGE_ROOM
    aim = jnp.maximum(tail, _log_end(step, block, tables.add))
    return _numerical_average.averaged(
        block,
        count,
        lambda *_, **__: step,
        aim,
        tables.add,
        tables.side,
        2 * tables.size,
        outside=tables.number,
        several=tables.several,
    )


def _log_end(term: _law.Term, block: Average, add: _law.Flag) -> jax.Array:
    """log of the mass at the largest loss of a direction, all steps at theirs: no tail is beyond.

    That is of P, one step being its own and the others of Q; or of Q, at the smallest ratio.
    """
    low, high = (jnp.asarray(e, jnp.float64) for e in jax.lax.stop_gradient(term.support))
    end = _law.either(add, low, high)
    some = jnp.isfinite(end)
    width = 1e-9 * (1.0 + jnp.abs(jnp.where(some, end, 0.0)))
    near = jnp.where(some, end, 0.0) + jnp.stack([-width, width])
    log_q, log_p = (x[0] for x in term.masses(near[:1], near[1:]))
    mass = (block.num_steps - 1.0) * log_q + _law.either(add, log_q, log_p)
    return jax.lax.stop_gradient(jnp.where(some & jnp.isfinite(mass), mass - 1.0, -jnp.inf))


def as_term(
    tables: Tables | None, m: Mechanism, count: ArrayLike, of: ArrayLike | None = None
) -> Any:
    """A run as one term; steps of one kind as a family. It is one `of` so many that are averaged.

    In the add direction all of them are read where each makes up its part of delta.
    """
    if tables is not None and of is not None:
        many = _SHARED * jax.lax.stop_gradient(jnp.asarray(of, jnp.float64))
        many = _law.either(tables.add, many, 1.0)
        tables = tables._replace(
            log_floor=tables.log_floor - jnp.log(many),
            number=tables.number * many,
            several=many if tables.several is None else many * tables.several,
        )
    if isinstance(m, (Steps, Base)):
        return _factor(m, count, tables)
    assert tables is not None
    return _run_term(m, tables)._replace(count=count)


def _run_term(m: Mechanism, tables: Tables) -> _law.Term:
    """A mechanism as one term, right in the direction of the tables."""
    if _curve.single(_curve.canonical_terms(m)) is not None:
        (term,) = terms_of(m, tables)
        assert isinstance(term, _law.Term)  # one step has no steps of its own
        return term
    return _law.orient_one(_tabulated(m, tables).term(), jnp.asarray(tables.add))


def _mixed_term(step: Mixture, tables: Tables) -> _law.Term:
    """A mixture of compositions as a term, right in the direction of the tables."""
    log_weights = step._log_weights()
    parts = [_run_term(m, tables) for m in step.mechanisms]

    def total(logs: list[Any]) -> jax.Array:
        return jnp.minimum(_divergences.log_add(*(log_weights + jnp.stack(logs))), 0.0)

    low, high = (
        jnp.stack([jnp.asarray(end) for end in ends])
        for ends in zip(*(part.support for part in parts), strict=True)
    )
    used = log_weights > -jnp.inf
    return _law.Term(
        mixed_masses([part.masses for part in parts], log_weights),
        1.0,
        total([part.log_tau_p for part in parts]),
        total([part.log_tau_q for part in parts]),
        (jnp.min(jnp.where(used, low, jnp.inf)), jnp.max(jnp.where(used, high, -jnp.inf))),
        jnp.max(jnp.stack([jnp.asarray(part.mass_error) for part in parts])) + MIXED,
    )


def _tabulated(m: Mechanism, tables: Tables) -> _law.Table:
    """A run's law, in the direction of the tables."""
    inner = _law.oriented(terms_of(m, tables), jnp.asarray(tables.add))
    return _law.table(inner, tables.log_floor, tables.size, tables.side)


def law_of(tables: Tables) -> Callable[..., _law.Table]:
    """What tabulates the laws of runs, as `_mechanisms._of_curve` has it; below in cells."""

    def law(m: Mechanism, log_floor: jax.Array, other: bool = False) -> _law.Table:
        add = jnp.asarray(tables.add) ^ other
        one = _curve.single(_curve.canonical_terms(m))
        if tables.side < 0 and isinstance(one, Base) and not _is_nested(one):
            return _law.cut(_law.orient_one(_term(one, 1.0), add), log_floor, tables.size)
        return _tabulated(m, tables._replace(add=add, log_floor=log_floor))

    return law


def _pair_term(step: Any, tables: Tables) -> _law.Term:
    """The pair that stands for an `OfCurve`, as a term: right in the tables' direction at least."""
    loss, log_q, log_p, log_tau = step._pair(tables.side, tables.log_floor, law_of(tables))
    masses = functools.partial(_atoms.interval_log_masses, loss=loss, log_q=log_q, log_p=log_p)
    some = jnp.where((log_q > -jnp.inf) | (log_p > -jnp.inf), loss, 0.0)
    both = tables.side > 0 or not step._held()
    absent = log_tau if both else jnp.float64(-jnp.inf)
    term = _law.Term(masses, 1.0, log_tau, absent, (jnp.min(some), jnp.max(some)))
    return term if both else _law.orient_one(term, jnp.asarray(tables.add))


def _nested_term(step: Base, tables: Tables) -> _law.Term:
    """A sample or a mixture of compositions, or a pair, as a term of the tables' direction."""
    if step._by_curve:
        return _pair_term(step, tables)
    if isinstance(step, Mixture):
        return _mixed_term(step, tables)
    base = _run_term(step.mechanism, tables)
    q = jnp.asarray(step.sampling_probability)
    log_absent = jnp.asarray(base.log_tau_q)
    low, high = (jnp.asarray(end) for end in base.support)
    low = jnp.where((log_absent > -jnp.inf) & (q < 1.0), -jnp.inf, low)
    return _law.Term(
        step._masses_from(base.masses, log_absent),
        1.0,
        base.log_tau_p + jnp.log(q),
        jnp.where(q < 1.0, -jnp.inf, log_absent),
        (_divergences.sampled_loss(low, q), _divergences.sampled_loss(high, q)),
        base.mass_error,
    )


def _term(step: Base, count: ArrayLike) -> _law.Term:
    return _law.Term(
        step._masses_function(),
        count,
        step._log_failure("remove"),
        step._log_failure("add"),
        _atomic_range(step),
        step._mass_error(),
    )
