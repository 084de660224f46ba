"""Parameters of dp_accounting's events: known numbers in their domains, or a reason why not."""

import dataclasses
import math
from typing import Any, Literal

import dp_accounting as dpa
import numpy as np
from dp_accounting import dp_event

from jaxdp import _checks
from jaxdp._mechanisms import Mechanism

Neighbours = dpa.NeighboringRelation


class UnsupportedEvent(ValueError):
    """An event without a mechanism here.

    Attributes:
      event: the part of the event that is at fault.
      reason: why, in a sentence.
    """

    def __init__(self, event: dp_event.DpEvent, reason: str) -> None:
        super().__init__(f"{reason}, in {_checks.shown(event)}")
        self.event, self.reason = event, reason


@dataclasses.dataclass(frozen=True)
class Absolute:
    """An event that is no mechanism with parameters: it reveals nothing, or everything."""

    private: bool


NOTHING, EVERYTHING = Absolute(True), Absolute(False)
SUM_TOLERANCE = 1e-5  # of probabilities, which may come as float32
TINY = 2.3e-308  # just above the smallest normal float64: what is below may be flushed to 0


def check_relation(relation: Any) -> None:
    """Raise TypeError unless this is one of dp_accounting's relations."""
    if not isinstance(relation, Neighbours):
        got = _checks.shown(relation)
        raise TypeError(f"neighboring_relation must be a NeighboringRelation, got {got}")


def whole_count(count: Any) -> int:
    """A known number of runs >= 1."""
    return _checks.whole_number("count", count)


def require(event: dp_event.DpEvent, relation: Neighbours, *allowed: Neighbours) -> None:
    if relation not in allowed:
        names = " or ".join(f"`{r.name}`" for r in allowed)
        raise UnsupportedEvent(
            event,
            f"neighboring_relation must be {names} for `{type(event).__name__}`. Found {relation}",
        )


ZEROED = (Neighbours.ADD_OR_REMOVE_ONE, Neighbours.REPLACE_SPECIAL)
NAMES: dict[Neighbours, Literal["add-or-remove", "replace-one", "replace-special"]] = {
    Neighbours.ADD_OR_REMOVE_ONE: "add-or-remove",
    Neighbours.REPLACE_ONE: "replace-one",
    Neighbours.REPLACE_SPECIAL: "replace-special",
}


def number(event: dp_event.DpEvent, field: str, domain: _checks.Domain) -> float:
    """A parameter in double precision, whatever type it came in."""
    return _checks.number(f"{field} of {type(event).__name__}", getattr(event, field), domain)


def noise(event: dp_event.DpEvent, field: str = "noise_multiplier") -> float:
    """A scale of noise; 0 where it is none to speak of."""
    scale = number(event, field, _checks.NON_NEGATIVE_OR_INF)
    return scale if scale >= TINY else 0.0


def additive(scale: float, m: Any) -> Mechanism | Absolute:
    """The mechanism m(scale); infinite noise hides everything, no noise hides nothing."""
    if scale == 0.0 or math.isinf(scale):
        return EVERYTHING if scale == 0.0 else NOTHING
    return m(scale)


def known_rate(rate: float) -> float:
    """A sampling probability > 0, no less than what programs take for 0."""
    return max(rate, TINY)


def vector(event: dp_event.DpEvent, field: str, domain: _checks.Domain) -> list[float]:
    """A parameter that is one number or a sequence of them, as a list."""
    name, value = f"{field} of {type(event).__name__}", getattr(event, field)
    known = _checks.concrete(name, value)
    if known is None or known.ndim > 1 or known.size == 0:
        raise ValueError(f"{name} must be a sequence of known numbers, got {_checks.shown(value)}")
    _checks.check(name, known, domain)
    return known.astype(np.float64).ravel().tolist()
