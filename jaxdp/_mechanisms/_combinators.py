"""Adaptive composition: mechanisms whose losses add up."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp._mechanisms._base import (
    Direction,
    Mechanism,
    Term,
    common_neighbours,
    mechanism,
    require_mechanism,
    require_mechanisms,
)
from jaxdp._mechanisms._steps import (
    all_in_domain,
    log_any_failure,
    log_hazard,
    stacked,
    terms_of_steps,
)


class Composition(Mechanism):
    """Abstract: the adaptive composition of independent terms; everything adds up."""

    @property
    def neighbours(self) -> str | None:
        """Which inputs the parts are for; None where their sensitivities alone say so."""
        return common_neighbours(t.mechanism for t in self._terms())

    def _rate(self, s: jax.Array) -> jax.Array:
        return sum(t.multiplicity * t.mechanism._rate(s) for t in self._terms())

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        ranges = [(t.multiplicity, *t.mechanism._loss_range()) for t in self._terms()]
        low = sum(_times(n, low) for n, low, _ in ranges)
        high = sum(_times(n, high) for n, _, high in ranges)
        return low, high

    def _range_ulps(self) -> Any:
        """The products and the sum add a roundoff a term."""
        terms = self._terms()
        own = functools.reduce(jnp.maximum, [t.mechanism._range_ulps() for t in terms])
        alone = len(terms) == 1 and terms[0].count is None
        return own if alone else own + len(terms) + 1.0

    def _may_fail(self) -> bool:
        return any(t.mechanism._may_fail() for t in self._terms())

    def _log_failure(self, direction: Direction) -> jax.Array:
        """1 - prod_i (1 - failure_i)^{n_i}."""
        failing = [t for t in self._terms() if t.mechanism._may_fail()]
        hazards = [log_hazard(t.mechanism._log_failure(direction), t.multiplicity) for t in failing]
        return log_any_failure(*hazards) if hazards else jnp.asarray(-jnp.inf, jnp.float64)

    def _symmetric(self) -> bool:
        return all(t.mechanism._symmetric() for t in self._terms())


def _times(count: Any, loss: jax.Array) -> jax.Array:
    """count * loss: 0 for no steps, and an infinite loss has no derivative (not 0 * inf)."""
    infinite = jnp.isinf(loss)
    value = jnp.where(infinite, loss, count * jnp.where(infinite, 0.0, loss))
    return jnp.where(jnp.asarray(count) == 0.0, 0.0, value)


@mechanism
class Composed(Composition):
    """The adaptive composition of several mechanisms on the same records.

    Compositions of the Gaussian family (Gaussian, Brownian, OrnsteinUhlenbeck and repetitions of
    them) are one Gaussian with mu^2 summed, exactly; a single mechanism is itself; for all
    others the laws of the losses are composed numerically, or their Rényi divergences added.
    Mechanisms of one kind that differ in their parameters alone are computed as a `Schedule` of
    them would be: hundreds compile like one.

    Args:
      mechanisms: a non-empty sequence of mechanisms (combinators included).

    Raises:
      ValueError: if the sequence is empty, or its elements are for different neighbours.
        TypeError: if an element is no mechanism.

    Example:
      >>> import jaxdp
      >>> two = jaxdp.Composed([jaxdp.Gaussian(5.0), jaxdp.Gaussian(5.0, sensitivity=2.0)])
      >>> round(float(jaxdp.epsilon(two, 1e-6)), 4)
      1.9945
    """

    mechanisms: Sequence[Mechanism]

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", require_mechanisms(self.mechanisms))

    def _in_domain(self) -> jax.Array:
        inside = [
            jnp.all(m._in_domain()) if count is None else all_in_domain(m, count)
            for m, count in stacked(self.mechanisms)
        ]
        return jnp.all(jnp.stack(inside))

    def _terms(self) -> list[Term]:
        terms: list[Term] = []
        for m, count in stacked(self.mechanisms):
            terms += m._terms() if count is None else terms_of_steps(m, count)
        return terms

    def sample(self, key: jax.Array, value: Any) -> tuple[Any, ...]:
        """One release of the value by each mechanism."""
        keys = jax.random.split(key, len(self.mechanisms))
        return tuple(m.sample(k, value) for m, k in zip(self.mechanisms, keys, strict=True))


@mechanism
class Repeated(Composition):
    """The adaptive composition of `count` runs of one mechanism.

    Args:
      mechanism: what is repeated.
      count: > 0; may be traced, and real (for gradients; guarantees are for integers).

    Raises:
      ValueError: if a known count is not finite and positive. TypeError: if no mechanism.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.Repeated(jaxdp.Gaussian(10.0), 100)
      >>> round(float(jaxdp.epsilon(run, 1e-5)), 4)  # the same as Gaussian(1.0)
      4.3772
    """

    mechanism: Mechanism
    count: ArrayLike

    _domains: ClassVar = {"count": _checks.POSITIVE}

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        Mechanism.__post_init__(self)

    def _in_domain(self) -> jax.Array:
        return self.mechanism._in_domain() & self._domains["count"].contains(self.count)

    def _terms(self) -> list[Term]:
        return [t.times(self.count) for t in self.mechanism._terms()]


def repeated(step: Any, count: Any) -> Mechanism:
    """`Repeated`, for steps that are known to be right."""
    run = object.__new__(Repeated)
    object.__setattr__(run, "mechanism", step)
    object.__setattr__(run, "count", count)
    return run


def with_held(step: Any, change: Callable[[Mechanism], Mechanism]) -> Any:
    """A step whose `_held` mechanisms are changed."""
    several = getattr(step, "mechanisms", None)
    if several is not None:
        return dataclasses.replace(step, mechanisms=tuple(map(change, several)))
    return dataclasses.replace(step, mechanism=change(step.mechanism))


def of_terms(terms: Sequence[Term]) -> Mechanism:
    """A mechanism that has these factors."""
    parts = [t.mechanism if t.count is None else repeated(t.mechanism, t.count) for t in terms]
    return parts[0] if len(parts) == 1 else Composed(parts)
