"""What comes of a calibration: the value, what it was certified to give, and a sentence."""

import dataclasses
import enum
import html
import itertools
from typing import Any

import jax
import numpy as np

from calibrate._shortfall import Shortfall, shortfall
from jaxdp import _structure


class Status(enum.IntEnum):
    """What came of a calibration."""

    SOLVED = 0
    INFEASIBLE = 1
    SLACK = 2
    INVALID = 3

    @property
    def message(self) -> str:
        """The status as a sentence."""
        return _MESSAGES[self]


_MESSAGES = {
    Status.SOLVED: "The value meets the target and is at the boundary of doing so.",
    Status.INFEASIBLE: "No value in the bracket meets the target: relax epsilon or delta.",
    Status.SLACK: "The least noisy end of the bracket already meets the target.",
    Status.INVALID: "A target is outside its domain: epsilon >= 0, delta in [0, 1), a bracket > 0.",
}


_NAMES = {status.value: status.name for status in Status}
_SHOWN = ("value", "epsilon", "delta")
_MOST_ROWS = 10  # of a batch in a notebook


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Solution(_structure.Compared):
    """A calibrated parameter and the guarantee that it was certified to give.

    Attributes:
      value: the parameter, rounded to the side of more privacy; nan unless status is 0 or 2.
      epsilon: the target epsilon; the built mechanism is (epsilon, delta)-DP.
      delta: certified upper bound on the built mechanism's delta at epsilon, <= the target.
        (Of a composition it is read from the law that answers `jaxdp.epsilon` at delta;
        `jaxdp.delta` plans another one for epsilon, whose bound may be a little larger.)
      status: `calibrate.Status` as int32.
      shortfall: what the infeasible targets miss, in which direction (`calibrate.Shortfall`); None
        where there are none, and under a transformation.
    """

    value: jax.Array
    epsilon: jax.Array
    delta: jax.Array
    status: jax.Array
    shortfall: Shortfall | None = None

    def __repr__(self) -> str:
        """Values, and what came of them: of a batch, how often."""
        shown = (f"{n}={_structure.compact(getattr(self, n))}" for n in _SHOWN)
        return f"Solution({', '.join(shown)}, status={self._outcome()})"

    def _repr_html_(self) -> str:
        """For notebooks: one target as a list, of a batch the first ones as rows."""
        try:
            return _structure.page("Solution", self._rows())
        except (TypeError, ValueError, RuntimeError):  # traced, or no numbers
            return html.escape(repr(self))

    def _rows(self) -> list[tuple[str, str]]:
        status = np.asarray(self.status)
        values = [np.broadcast_to(np.asarray(getattr(self, n)), status.shape) for n in _SHOWN]
        if not status.ndim:
            rows = [(n, _structure.compact(x[()])) for n, x in zip(_SHOWN, values, strict=True)]
            return [*rows, ("status", self.message)]
        rows = []
        for row in itertools.islice(np.ndindex(status.shape), _MOST_ROWS):
            cells = zip(_SHOWN, (_structure.compact(x[row]) for x in values), strict=True)
            name = _NAMES.get(int(status[row]), str(status[row]))
            text = ", ".join(f"{n} = {x}" for n, x in cells)
            rows.append((", ".join(map(str, row)), f"{text}, {name}"))
        return [*rows, ("in all", self._outcome())]

    def _outcome(self) -> str:
        if isinstance(self.status, jax.core.Tracer):
            return _structure.compact(self.status)
        found, counts = np.unique(np.asarray(self.status), return_counts=True)
        names = [_NAMES.get(x, str(x)) for x in found.tolist()]
        if np.ndim(self.status):
            names = [f"{count} {name}" for count, name in zip(counts, names, strict=True)]
        return ", ".join(names)

    @property
    def message(self) -> Any:
        """The status as a sentence; an array of sentences for a batch."""
        status = np.asarray(self.status)
        sentences = np.empty(status.shape, object)
        for row in np.ndindex(status.shape):
            more = "" if self.shortfall is None else self.shortfall.sentence(row)
            sentences[row] = f"{Status(int(status[row])).message} {more}".strip()
        return sentences.item() if sentences.ndim == 0 else sentences


def solution(found: tuple[Any, Any, Any, Any], *asked: Any, **options: Any) -> Solution:
    """Of (value, epsilon, delta, status), with what the targets fall short by that none meets.

    What was asked is passed on to `shortfall`.
    """
    value, epsilon, delta, status = found
    missed = shortfall(status == Status.INFEASIBLE, *asked, **options)
    return Solution(value, epsilon, delta, status.astype(np.int32), missed)
