"""What lies below k of t steps: one statistic of the release, as `_law._subset` has it."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxdp._allocation._mechanism import Block
from jaxdp._mechanisms import (
    Average,
    Direction,
    Mechanism,
    mechanism,
)
from jaxdp._mechanisms._base import Term
from jaxdp._mechanisms._combinators import of_terms, with_held
from jaxdp._mechanisms._curve import canonical_terms
from jaxdp._mechanisms._schedule import Steps
from jaxdp._special import log1p


@mechanism
class Selected(Average):
    """`num_selected` of `num_steps` steps: known from below only, by a test that asks for a tail.

    Its failure in the add direction (fewer steps than k have X > 0) is taken for none.
    """

    mechanism: Mechanism
    num_steps: Any
    num_selected: Any
    _has_two_readings: ClassVar[bool] = False

    def _sampled_terms(self) -> list[Term]:
        return [t.times(self.num_selected) for t in self.mechanism._terms()]

    def _in_domain(self) -> jax.Array:
        return self.mechanism._in_domain() & (self.num_selected <= self.num_steps)

    def _rate(self, s: jax.Array) -> jax.Array:
        raise NotImplementedError("a test has no moments")

    def _prepare_rate(
        self, direction: Direction, largest: int, search: bool
    ) -> Callable[[jax.Array], jax.Array]:
        return self._rate

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        low, high = self.mechanism._loss_range()
        failing = self.mechanism._log_failure("add") > -jnp.inf
        low = jnp.where(failing, -jnp.inf, self.num_selected * low)
        return low, self.num_selected * high

    def _range_ulps(self) -> Any:
        return self.mechanism._range_ulps() + 4.0

    def _log_failure(self, direction: Direction) -> jax.Array:
        log_tau = self.mechanism._log_failure(direction)
        if direction == "add":
            return jnp.full_like(log_tau, -jnp.inf)
        some = log_tau > -jnp.inf
        lost = jnp.minimum(jnp.exp(jnp.where(some, log_tau, -1.0)), 1.0 - 1e-16)
        total = -jnp.expm1(self.num_selected * log1p(-lost))
        return jnp.where(some, jnp.log(total), -jnp.inf)

    def _symmetric(self) -> bool:
        return False

    def _terms(self) -> list[Term]:
        return [Term(self, None)]


def has_selection(m: Mechanism) -> bool:
    """Whether m holds k of t steps, at any depth, where k may be another number than 1."""
    return any(_step_has(t.mechanism) for t in canonical_terms(m))


def _step_has(step: Any) -> bool:
    if isinstance(step, Block) and step.whole is not None:
        return True
    if isinstance(step, Steps):
        return _step_has(step.mechanism)
    return any(has_selection(part) for part in step._held())


def blocks_are_exact(m: Mechanism) -> jax.Array | None:
    """Whether blocks are the mechanism itself, k being 1 or t all over; None if surely not."""
    found = [x for t in canonical_terms(m) for x in _extremes(t.mechanism)]
    if any(x is None for x in found):
        return None
    return jnp.all(jnp.stack(found))


def _extremes(step: Any) -> list[jax.Array | None]:
    if isinstance(step, Block) and step.whole is not None:
        whole = step.whole
        extreme = (whole.num_selected == 1.0) | (whole.num_selected == whole.num_steps)
        return [None if not whole.perhaps else jnp.all(extreme)]
    if isinstance(step, Steps):
        return _extremes(step.mechanism)
    return [
        x for part in step._held() for t in canonical_terms(part) for x in _extremes(t.mechanism)
    ]


def below(m: Mechanism) -> Mechanism:
    """m with every choice of k steps replaced by what lies below it.

    A choice that is all there is serves all its repetitions at once.
    """
    parts: list[tuple[Any, Any]] = []
    for t in canonical_terms(m):
        step, many = t.mechanism, isinstance(t.mechanism, Steps)
        one = step.mechanism if many else step
        if isinstance(one, Block) and one.leftover:
            continue  # the shorter blocks stand for all of the choice
        if isinstance(one, Block) and one.whole is not None:
            whole = one.whole
            chosen = Selected(below(one.mechanism), whole.num_steps, whole.num_selected)
            if many:
                parts.append((Steps(chosen, step.copies / whole.blocks), t.count))
            else:
                parts.append((chosen, t.multiplicity / whole.blocks))
        else:
            found = _below_step(one)
            parts.append((Steps(found, step.copies) if many else found, t.count))
    if len(parts) == 1:
        step, count = parts[0]
        if count is not None and isinstance(step, Selected):
            return Selected(step.mechanism, count * step.num_steps, count * step.num_selected)
    return of_terms([Term(step, n) for step, n in parts])


def _below_step(step: Any) -> Any:
    if not _step_has(step):
        return step
    return with_held(step, below)
