"""Steps that are known by bounds on their curve alone."""

import abc
from collections.abc import Callable
from typing import Any, ClassVar

import jax

from jaxdp._mechanisms._base import Base

Law = Callable[..., Any]


class OfCurve(Base):
    """Abstract: where it is part of others, a pair above and one below (or nothing) stand for it.

    They are made for one question.
    """

    _has_law: ClassVar = False
    _by_curve: ClassVar = True
    _is_envelope: ClassVar = True

    @abc.abstractmethod
    def _pair(self, side: int, log_floor: jax.Array, law: Law) -> tuple[jax.Array, ...]:
        """The pair above (side +1) or below (-1): losses, logs of Q- and P-masses, and at infinity.

        That much, by its log, may be put at infinity. It is for both directions, or for that in
        which `law(m, log_floor)` tabulates what runs inside (`law(m, log_floor, True)`: the other).
        """

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        raise TypeError(f"{type(self).__name__} has no law of its own, but bounds on its curve")

    def _symmetric(self) -> bool:
        return True
