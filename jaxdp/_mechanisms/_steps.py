"""Mechanisms of one kind as one with an axis of steps, and what their composition adds up to."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _x64
from jaxdp import _special as special
from jaxdp._mechanisms._base import Base, Direction, Mechanism, Term, mechanism
from jaxdp._mechanisms._curve import canonical_terms
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


def _each(function: Callable[[Any, int], Any], m: Mechanism) -> Any:
    """The mechanism with every parameter replaced; the function is told the rank of vectors."""
    leaves, treedef = jax.tree.flatten(m)
    ranks = _x64.core_ranks(m)
    return jax.tree.unflatten(treedef, [function(*x) for x in zip(leaves, ranks, strict=True)])


def _with_axes(x: Any, rank: int, xp: Any = jnp) -> Any:
    """An array with all axes that belong to one evaluation: of length 1 where it lacks them."""
    return xp.reshape(x, (1,) * (rank - np.ndim(x)) + np.shape(x))


def _over_steps(function: Callable[[Any], Any], m: Mechanism, count: int) -> Any:
    """The function of each of so many steps, which have an axis in some parameters of m.

    It is the last of a batch, before those of vectors; in the outputs, the first.
    """

    def first(x: Any, rank: int) -> jax.Array:
        x = _with_axes(x, rank)
        batch, own = _x64.split_shape(x, rank)
        whole = jnp.broadcast_to(x, (*batch[:-1], count, *own))
        return jnp.moveaxis(whole, len(batch[:-1]), 0)

    return jax.vmap(function)(_each(first, m))


def terms_of_steps(m: Mechanism, count: int) -> list[Term]:
    """For each factor of a mechanism that has an axis of steps, the composition over them."""

    def factors(one: Mechanism) -> list[tuple[Any, Any]]:
        return [(t.mechanism, jnp.asarray(t.multiplicity, float)) for t in one._terms()]

    def last(x: jax.Array, rank: int) -> jax.Array:
        return jnp.moveaxis(x, 0, -1 - rank)

    def merged(x: jax.Array, rank: int) -> jax.Array:
        batch, own = _x64.split_shape(x, rank)
        return x.reshape((*batch[:-2], batch[-2] * batch[-1], *own))

    terms = []
    for factor, copies in _over_steps(factors, m, count):
        factor, copies = _each(last, factor), last(copies, 0)
        if isinstance(factor, GaussianFamily):
            terms.append(Term(composed_steps(factor, copies), None))
        elif isinstance(factor, Steps):  # of schedules: their steps, one after another
            copies = merged(factor.copies * copies[..., None], 0)
            terms.append(Term(Steps(_each(merged, factor.mechanism), copies), 1.0))
        else:
            terms.append(Term(Steps(factor, copies), 1.0))
    return terms


def all_in_domain(m: Mechanism, count: int) -> jax.Array:
    """Whether the parameters of every step are."""
    return jnp.all(_over_steps(lambda one: one._in_domain(), m, count))


def stacked(
    mechanisms: Sequence[Mechanism], exactly: bool = False, averages: bool = False
) -> list[tuple[Mechanism, int | None]]:
    """The mechanisms, those of one kind as one with an axis of so many steps (else None).

    Of one kind are those of equal structure, with vectors of equal lengths. Inside the island every
    other parameter is a scalar. Outside, shapes of a batch broadcast; where not the structure alone
    matters, but the numbers too, `exactly` leaves alone what an array of one type cannot hold.
    Averages stay, there being methods for them alone, unless `averages` asks for two of them.
    """
    groups: dict[Any, list[Mechanism]] = {}
    for m in mechanisms:
        groups.setdefault((jax.tree.structure(m), _own_shapes(m)), []).append(m)
    parts: list[tuple[Mechanism, int | None]] = []
    for group in groups.values():
        few = len(group) < (2 if averages else FEWEST)
        alone = few or not (averages or _may_be_steps(group[0]))
        if alone or (exactly and not _of_one_type(group)):
            parts += [(m, None) for m in group]
        else:
            parts.append((_stack(group), len(group)))
    return parts


def _own_shapes(m: Mechanism) -> tuple[tuple[int, ...], ...]:
    """Of every parameter, the axes that belong to one evaluation."""
    ranks = _x64.core_ranks(m)
    return tuple(_x64.split_shape(x, r)[1] for x, r in zip(jax.tree.leaves(m), ranks, strict=True))


def _stack(group: Sequence[Mechanism]) -> Mechanism:
    ranks, columns = _x64.core_ranks(group[0]), []
    for rank, *leaves in zip(ranks, *map(jax.tree.leaves, group), strict=True):
        xp = jnp if any(isinstance(x, jax.Array) for x in leaves) else np
        whole = xp.broadcast_arrays(*(_with_axes(x, rank, xp) for x in leaves))
        columns.append(xp.stack(whole, axis=-1 - rank))
    return jax.tree.unflatten(jax.tree.structure(group[0]), columns)


def _of_one_type(group: Sequence[Mechanism]) -> bool:
    """Whether each parameter is a number of the host in all of the group, or an array of a type."""
    for leaves in zip(*(jax.tree.leaves(m) for m in group), strict=True):
        if len({x.dtype if isinstance(x, jax.Array) else None for x in leaves}) > 1:
            return False
    return True


def _may_be_steps(m: Mechanism) -> bool:
    """Whether every factor is one step, and none an average."""
    return all(isinstance(t.mechanism, Base) for t in m._terms())


def _rounded_up(count: int) -> float:
    return 1.0 + count * _divergences.SLACK


@mechanism
class Steps(Mechanism):
    """Factors over an axis of steps: like a `Term`, but many. Never seen by users."""

    mechanism: Any
    copies: Any

    _core_ndims: ClassVar = {"mechanism": 1, "copies": 1}

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
        return jnp.all(jax.vmap(lambda m: m._in_domain())(self.mechanism))

    def _rate(self, s: jax.Array) -> jax.Array:
        rates = self._mapped(lambda m, n: n * m._rate(s))
        return jnp.sum(rates) * _rounded_up(rates.shape[0])

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        low, high = self._mapped(lambda m, n: tuple(n * end for end in m._loss_range()))
        return jnp.sum(low), jnp.sum(high)

    def _range_ulps(self) -> Any:
        own = jnp.max(self._mapped(lambda m, n: jnp.asarray(m._range_ulps(), jnp.float64)))
        return own + jax.tree.leaves(self.copies)[0].shape[-1] + 1.0

    def _may_fail(self) -> bool:
        return self.mechanism._may_fail()

    def _log_failure(self, direction: Direction) -> jax.Array:
        if not self._may_fail():
            return jnp.asarray(-jnp.inf, jnp.float64)
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
