"""Steps that are known by bounds on their curve alone."""

import abc
from typing import ClassVar

import jax

from jaxdp._mechanisms._base import Base


class OfCurve(Base):
    """Abstract: where it is part of others, a pair above and one below (or nothing) stand for it.

    Both are as likely as their reversals, and made for one question.
    """

    _has_law: ClassVar = False
    _by_curve: ClassVar = True

    @abc.abstractmethod
    def _pair(self, side: int, log_floor: jax.Array) -> tuple[jax.Array, ...]:
        """The pair above (side +1) or below (-1): losses, logs of Q- and P-masses, and at infinity.

        That much, by its log, may be put at infinity.
        """

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        raise TypeError(f"{type(self).__name__} has no law of its own, but bounds on its curve")

    def _symmetric(self) -> bool:
        return True
