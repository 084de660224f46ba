"""What is known between other mechanisms only."""

import abc
from typing import Any, ClassVar

import jax

from jaxdp._mechanisms._base import Direction, Mechanism, Term, no_one_law


class Bracketed(Mechanism):
    """Abstract: known between others only, from above by one and from below by another.

    Which ones depends on the question: they are chosen for an epsilon or a delta. Such a mechanism
    answers questions, but is no part of others: what dominates it is (`majorant`).
    """

    _instead: ClassVar = "take its majorant(delta)"

    def _bracketed(self) -> "Bracketed":
        return self

    @abc.abstractmethod
    def _structure(self) -> Mechanism:
        """A mechanism of the structure of those above, its numbers of no meaning."""

    @abc.abstractmethod
    def _above(self, epsilon: jax.Array | None, log_delta: jax.Array | None) -> Mechanism:
        """One that dominates, good at an epsilon or at a delta."""

    def _above_plainly(self) -> Mechanism | None:
        """Another that dominates, of a closed form: the better of both is taken. None if none."""
        return None

    @abc.abstractmethod
    def _below(self, epsilon: jax.Array | None, log_delta: jax.Array | None) -> Mechanism:
        """One that is dominated."""

    @abc.abstractmethod
    def _is_exact(self) -> bool:
        """Whether both are the mechanism itself."""

    @abc.abstractmethod
    def _least_log_delta(self, epsilon: jax.Array, direction: Direction) -> jax.Array:
        """A bound on log delta from below."""

    @abc.abstractmethod
    def _least_epsilon(self, log_delta: jax.Array, direction: Direction) -> jax.Array:
        """A bound on epsilon from below."""

    def _terms(self) -> list[Term]:
        raise no_one_law(self)

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._above(None, None)._rate(s)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return self._above(None, None)._loss_range()

    def _range_ulps(self) -> Any:
        return self._above(None, None)._range_ulps()

    def _log_failure(self, direction: Direction) -> jax.Array:
        return self._above(None, None)._log_failure(direction)

    def _symmetric(self) -> bool:
        return self._structure()._symmetric()
