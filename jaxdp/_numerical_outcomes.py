"""Nested mechanisms whose steps are finite pairs, as pairs with all their outcomes enumerated.

A table (`_law._table`) puts the atoms of a composition on one lattice, where few of them lie, and
bounds what that costs: some percent of delta where few and isolated ones decide. With counts that
are known there is nothing to bound (`_noise._outcomes`). So a nested mechanism, or those of its
parts that are compositions and averages, is replaced by its outcomes where they are few.
"""

from typing import Any

import numpy as np

from jaxdp import _checks
from jaxdp._allocation import RandomAllocation
from jaxdp._mechanisms import (
    ApproximateDP,
    Composed,
    Mechanism,
    Mixture,
    PoissonSampled,
    RandomizedResponse,
    Repeated,
)
from jaxdp._methods._base import Method
from jaxdp._noise import _outcome_laws, _outcomes
from jaxdp._noise._finite_pairs import FiniteFamily

_MOST_STEPS = 32  # each number is a program of its own
_MOST_PARTS = 8  # of a plain composition


def with_outcomes(m: Mechanism, method: Method | None) -> Mechanism:
    """The same mechanism, what is nested in it enumerated, if no method was asked for."""
    return _enumerated(m) if method is None and _is_meant(m) else m


def number(m: Mechanism) -> int:
    """How many outcomes m enumerates: 0 where it does not."""
    return m._outcomes() if isinstance(m, _outcomes.Outcomes) else 0


def _runs(m: Mechanism) -> tuple[Mechanism, ...]:
    """What a combinator holds."""
    if isinstance(m, (Composed, Mixture)):
        return tuple(m.mechanisms)
    if isinstance(m, (PoissonSampled, RandomAllocation, Repeated)):
        return (m.mechanism,)
    return ()


def _is_nested(m: Mechanism) -> bool:
    """Whether m holds an average, or a sample or mixture of compositions."""
    inner = _runs(m)
    if isinstance(m, RandomAllocation):
        return True
    composed = any(isinstance(part, (Composed, Repeated)) for part in inner)
    holds = isinstance(m, (PoissonSampled, Mixture)) and composed
    return holds or any(map(_is_nested, inner))


def _is_meant(m: Mechanism) -> bool:
    """Nested, or a few parts composed: equal ones alone have a lattice of their own."""
    return (isinstance(m, Composed) and len(m.mechanisms) <= _MOST_PARTS) or _is_nested(m)


def _enumerated(m: Mechanism) -> Mechanism:
    """The outcomes of m, or m with those of its parts."""
    pair = _pair(m) if _is_meant(m) else None
    if pair is not None:
        return pair
    if isinstance(m, (Composed, Mixture)):
        inside = _enumerated if isinstance(m, Composed) else _run
        parts = [inside(part) for part in m.mechanisms]
        if all(a is b for a, b in zip(parts, m.mechanisms, strict=True)):
            return m
        return Composed(parts) if isinstance(m, Composed) else Mixture(parts, m.weights)
    if not isinstance(m, (PoissonSampled, RandomAllocation, Repeated)):
        return m
    part = _enumerated(m.mechanism) if isinstance(m, Repeated) else _run(m.mechanism)
    if part is m.mechanism:
        return m
    if isinstance(m, PoissonSampled):
        return PoissonSampled(part, m.sampling_probability)
    if isinstance(m, Repeated):
        return Repeated(part, m.count)
    return RandomAllocation(part, m.num_steps, m.num_selected, m.num_epochs)


def _run(m: Mechanism) -> Mechanism:
    """What a sample, a mixture or an average holds: a composition there would be tabulated."""
    pair = _pair(m) if isinstance(m, (Composed, Repeated)) else None
    return _enumerated(m) if pair is None else pair


def _count(name: str, value: Any) -> int | None:
    """A known number of steps, if it is one, and small."""
    known = _checks.concrete(name, value)
    if known is None or known.ndim or known != np.floor(known) or not 1 <= known <= _MOST_STEPS:
        return None
    return int(known)


def _pair(m: Mechanism) -> FiniteFamily | None:
    """m with its outcomes, where they are finitely many and few."""
    if isinstance(m, FiniteFamily):
        return m
    if isinstance(m, RandomizedResponse):
        return _outcomes.Response(m.epsilon)
    if isinstance(m, ApproximateDP):
        return _outcomes.Response(m.epsilon, m.delta)
    if isinstance(m, Repeated):
        count = _count("count", m.count)
        inner = None if count is None else _pair(m.mechanism)
        return None if inner is None else _power(inner, count)
    inner = []
    for part in _runs(m):
        pair = _pair(part)
        if pair is None:
            return None
        inner.append(pair)
    if isinstance(m, Composed):
        return _composed(inner)
    if isinstance(m, Mixture):
        few = sum(pair._outcomes() for pair in inner) <= _outcome_laws.MOST
        return _outcomes.Labelled(tuple(inner), m.weights) if few else None
    if isinstance(m, PoissonSampled):
        return _outcomes.Thinned(inner[0], m.sampling_probability)
    return _chosen(m, inner[0]) if isinstance(m, RandomAllocation) else None


def _chosen(m: RandomAllocation, inner: FiniteFamily) -> FiniteFamily | None:
    steps, epochs = (_count(name, getattr(m, name)) for name in ("num_steps", "num_epochs"))
    if steps is None or epochs is None or _count("num_selected", m.num_selected) != 1:
        return None
    if not _outcome_laws.is_small(steps, inner._outcomes()):
        return None
    return _power(_outcomes.Chosen(inner, steps), epochs)


def _power(pair: FiniteFamily, count: int) -> FiniteFamily | None:
    return pair if count == 1 else _composed([pair] * count)


def _composed(pairs: list[FiniteFamily]) -> FiniteFamily | None:
    """Their composition, equal ones together."""
    counts: dict[FiniteFamily, int] = {}
    for pair in pairs:
        product = isinstance(pair, _outcomes.Product)
        for part, n in zip(pair.pairs, pair.counts, strict=True) if product else [(pair, 1)]:
            counts[part] = counts.get(part, 0) + n
    small = all(_outcome_laws.is_small(n, pair._outcomes()) for pair, n in counts.items())
    if not small:
        return None
    whole = _outcomes.Product(tuple(counts), tuple(counts.values()))
    return whole if whole._outcomes() <= _outcome_laws.MOST else None
