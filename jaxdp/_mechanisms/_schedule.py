"""Runs of many steps with their own parameters each: one mechanism with an axis of steps."""

from typing import ClassVar

import jax

from jaxdp import _x64
from jaxdp._mechanisms._base import Average, Mechanism, Term, mechanism, require_mechanism
from jaxdp._mechanisms._combinators import Composed, Composition, Repeated, of_terms, repeated
from jaxdp._mechanisms._steps import FEWEST, all_in_domain, stacked, terms_of_steps
from jaxdp._mechanisms._steps import Steps as Steps


@mechanism
class Schedule(Composition):
    """The adaptive composition of steps whose parameters are arrays over the steps.

    The last axis of the mechanism's parameters counts the steps (axes before it are a batch; where
    a parameter is a vector, its own axis comes after); parameters without it are the same in every
    step, and a schedule of schedules has two such axes. Thousands of steps are one small
    program, differentiable with respect to every entry. A schedule of Gaussians is one Gaussian
    with mu^2 summed, exactly; any other is composed numerically, or by its Rényi divergences.

    Args:
      mechanism: of one step, with parameters of shape (..., steps) or (), and vectors of shape
        (..., steps, length) or (length,).

    Raises:
      ValueError: if no parameter has an axis of steps, or their lengths differ. TypeError: if no
        mechanism.

    Example:
      >>> import jaxdp, numpy as np
      >>> run = jaxdp.Schedule(jaxdp.Gaussian(np.linspace(5.0, 15.0, 100)))
      >>> round(float(jaxdp.epsilon(run, 1e-5)), 4)
      5.1953
      >>> sgd = jaxdp.Schedule(jaxdp.PoissonSampled(jaxdp.Gaussian(np.linspace(1.0, 2.0, 9)), 0.1))
      >>> round(float(jaxdp.renyi(sgd, 4.0)), 4)
      0.1746
    """

    mechanism: Mechanism

    _core_ndims: ClassVar = {"mechanism": 1}

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        if self.steps is None:
            raise ValueError(
                "mechanism must have parameters with an axis of steps"
                " (calibrate.minimize gives it vectors where vectors=True)"
            )

    @property
    def steps(self) -> int | None:
        """The number of steps; None if no parameter has an axis."""
        leaves, ranks = jax.tree.leaves(self.mechanism), _x64.core_ranks(self.mechanism)
        shapes = [_x64.split_shape(x, rank)[0] for x, rank in zip(leaves, ranks, strict=True)]
        lengths = {shape[-1] for shape in shapes if shape}
        lengths = lengths - {1} or lengths
        if len(lengths) > 1:
            raise ValueError(f"mechanism must have one number of steps, got {sorted(lengths)}")
        if 0 in lengths:
            raise ValueError("mechanism must have at least one step, got none")
        return lengths.pop() if lengths else None

    def _in_domain(self) -> jax.Array:
        return all_in_domain(self.mechanism, self.steps or 1)

    def _symmetric(self) -> bool:
        return self.mechanism._symmetric()

    def _terms(self) -> list[Term]:
        """For each factor of a step, the composition over all steps."""
        return terms_of_steps(self.mechanism, self.steps or 1)


def with_schedules(m: Mechanism) -> Mechanism:
    """The same mechanism with few parameters: lists of one kind are schedules where they can be.

    A program with hundreds of arguments compiles for seconds more. Numbers of the host and arrays
    of one type are put together without a rounding; what is mixed stays as it is. Equal mechanisms
    are one, repeated: its atoms have a lattice of their own.
    """
    if not isinstance(m, Composed):
        return m
    counts: dict[Mechanism, int] = {}
    for one in m.mechanisms:
        counts[one] = counts.get(one, 0) + 1
    rest = [one for one in m.mechanisms if counts[one] < FEWEST]
    parts: list[Mechanism] = [Repeated(one, n) for one, n in counts.items() if n >= FEWEST]
    for part, group in stacked(rest, exactly=True):
        parts.append(part if group is None else Schedule(part))
    return parts[0] if len(parts) == 1 else Composed(parts)


def by_steps(m: Mechanism) -> Mechanism:
    """m, of whose averages those of one kind are steps of a schedule.

    These compile as one, and each has a table for the delta of all.
    """
    terms = m._terms()
    parts = [t for t in terms if not isinstance(t.mechanism, Average)]
    runs = [
        repeated(t.mechanism, t.multiplicity) for t in terms if isinstance(t.mechanism, Average)
    ]
    groups = stacked(runs, averages=True)
    if len(groups) == len(runs):
        return m
    for run, count in groups:
        parts += run._terms() if count is None else terms_of_steps(run, count)
    return of_terms(parts)
