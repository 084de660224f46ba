"""Mechanisms of one kind as one with an axis of steps, and what their composition adds up to."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences
from jaxdp import _special as special
from jaxdp._mechanisms._base import Base, Direction, Mechanism, Term, mechanism
from jaxdp._mechanisms._curve import canonical_terms, single
from jaxdp._mechanisms._gaussian import GaussianFamily, composed_steps
from jaxdp._special import log1p

_NEGLIGIBLE = -37.0  # e^-37 / 2 is below a roundoff of 1: x, log(1 + x) and e^x - 1 agree
FEWEST = 4  # mechanisms of one kind that become steps: each would compile for seconds
_STEPS_AT_A_TIME = 16  # bounds memory: a sampled step holds the nodes of its quadrature


def log_hazard(log_failure: jax.Array, count: Any) -> jax.Array:
    """log of -count log(1 - failure), for failures of any size."""
    log_failure = jnp.asarray(log_failure, jnp.float64)
    large = log_failure > _NEGLIGIBLE
    direct = -log1p(-jnp.exp(jnp.where(large, log_failure, -1.0)))
    return _divergences.log_positive(count) + jnp.where(large, jnp.log(direct), log_failure)


def log_any_failure(*log_hazards: jax.Array) -> jax.Array:
    """log of 1 - e^{-h}, h the sum of the hazards."""
    log_h = _divergences.log_add(*log_hazards)
    large = log_h > _NEGLIGIBLE
    return jnp.where(large, special.log1mexp(-jnp.exp(jnp.where(large, log_h, 0.0))), log_h)


def terms_of_steps(m: Mechanism, count: int) -> list[Term]:
    """For each factor of a mechanism whose last axis counts steps, the composition over them."""
    inner = jax.tree.map(lambda x: jnp.broadcast_to(x, (*jnp.shape(x)[:-1], count)), m)
    terms = []
    for term in inner._terms():
        copies = term.multiplicity * jnp.ones(count)
        if isinstance(term.mechanism, GaussianFamily):
            terms.append(Term(composed_steps(term.mechanism, copies), None))
        else:
            terms.append(Term(Steps(term.mechanism, copies), 1.0))
    return terms


def stacked(
    mechanisms: Sequence[Mechanism], exactly: bool = False
) -> list[tuple[Mechanism, int | None]]:
    """The mechanisms, those of one kind as one with a last axis of so many steps (else None).

    Of one kind are those of equal structure. Inside the island every parameter is a scalar.
    Outside, shapes of a batch broadcast; where not the structure alone matters, but the numbers
    too, `exactly` leaves alone what an array of one type cannot hold.
    """
    groups: dict[Any, list[Mechanism]] = {}
    for m in mechanisms:
        groups.setdefault(jax.tree.structure(m), []).append(m)
    parts: list[tuple[Mechanism, int | None]] = []
    for group in groups.values():
        alone = len(group) < FEWEST or not _may_be_steps(group[0])
        if alone or (exactly and not _of_one_type(group)):
            parts += [(m, None) for m in group]
        else:
            parts.append((jax.tree.map(_stack, *group), len(group)))
    return parts


def _stack(*leaves: Any) -> Any:
    known = not any(isinstance(leaf, jax.Array) for leaf in leaves)
    xp = np if known else jnp
    return xp.stack(xp.broadcast_arrays(*leaves), axis=-1)


def _of_one_type(group: Sequence[Mechanism]) -> bool:
    """Whether each parameter is a number of the host in all of the group, or an array of a type."""
    for leaves in zip(*(jax.tree.leaves(m) for m in group), strict=True):
        if len({x.dtype if isinstance(x, jax.Array) else None for x in leaves}) > 1:
            return False
    return True


def _may_be_steps(m: Mechanism) -> bool:
    """Whether every factor is one step with scalar parameters, or a sample of one."""
    return not _has_axes(m) and all(_is_one_step(t.mechanism) for t in m._terms())


def _is_one_step(step: Mechanism) -> bool:
    inner = getattr(step, "mechanism", None)
    if not isinstance(step, Base) or inner is None:
        return isinstance(step, Base)
    one = single(canonical_terms(inner))
    return one is not None and _is_one_step(one)


def _has_axes(m: Mechanism) -> bool:
    """Whether axes of its parameters belong to one evaluation already."""
    return has_axes(m) or any(has_axes(x) for x in jax.tree.leaves(m, is_leaf=has_axes))


def has_axes(x: Any) -> bool:
    """Whether axes of its own parameters belong to one evaluation already."""
    return isinstance(x, Mechanism) and bool(x._core_ndims)


def _rounded_up(count: int) -> float:
    return 1.0 + count * _divergences.SLACK


@mechanism
class Steps(Mechanism):
    """Factors over an axis of steps: like a `Term`, but many. Never seen by users."""

    mechanism: Any
    copies: Any

    @property
    def neighbours(self) -> str | None:
        """Those of the steps."""
        return self.mechanism.neighbours

    def _mapped(self, function: Any) -> Any:
        """The function of every step's mechanism, a few at a time, recomputed in reverse mode."""
        return jax.lax.map(
            jax.checkpoint(lambda x: function(*x)),
            (self.mechanism, self.copies),
            batch_size=_STEPS_AT_A_TIME,
        )

    def _in_domain(self) -> jax.Array:
        return jnp.all(self.mechanism._in_domain())

    def _rate(self, s: jax.Array) -> jax.Array:
        rates = self._mapped(lambda m, n: n * m._rate(s))
        return jnp.sum(rates) * _rounded_up(rates.shape[0])

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        low, high = self._mapped(lambda m, n: tuple(n * end for end in m._loss_range()))
        return jnp.sum(low), jnp.sum(high)

    def _range_ulps(self) -> Any:
        own = jnp.max(self._mapped(lambda m, n: jnp.asarray(m._range_ulps(), jnp.float64)))
        return own + jax.tree.leaves(self.copies)[0].shape[-1] + 1.0

    def _log_failure(self, direction: Direction) -> jax.Array:
        hazards = self._mapped(lambda m, n: log_hazard(m._log_failure(direction), n))
        return log_any_failure(special.logsumexp(hazards))

    def _symmetric(self) -> bool:
        return self.mechanism._symmetric()

    def _terms(self) -> list[Term]:
        return [Term(self, 1.0)]

    def _held(self) -> tuple[Mechanism, ...]:
        return (self.mechanism,)


def number_of_steps(m: Mechanism) -> jax.Array:
    """How many factors m has."""
    steps = jnp.float64(0.0)
    for t in canonical_terms(m):
        own = jnp.sum(t.mechanism.copies) if isinstance(t.mechanism, Steps) else 1.0
        steps += t.multiplicity * own
    return steps


def has_cheap_moments(m: Mechanism) -> bool:
    """Whether Rényi divergences cost next to nothing: no step holds another, which it samples."""
    steps = [t.mechanism for t in m._terms()]
    steps = [step.mechanism if isinstance(step, Steps) else step for step in steps]
    return not any(hasattr(s, "mechanism") or hasattr(s, "mechanisms") for s in steps)
