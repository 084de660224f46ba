"""Independent reference values: `cases(group)` gives the parameters of a parametrised test.

data/oracle.json holds decimal strings of 17 to 25 digits, computed with 40 to 50 working digits
and cross-checked by a second method. Numeric parameters are decimal strings taken exactly.
"""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

_FILE = pathlib.Path(__file__).parent / "data" / "oracle.json"


@dataclasses.dataclass(frozen=True)
class Case:
    """One reference value.

    Attributes:
      id: group/name.
      quantity: what the value is, in words.
      params: parameters by name: floats, and ints where the file has integers.
      exact: the same with Decimals, as mpmath.mpf(str(...)) takes them.
      text: the value's decimal digits.
    """

    id: str
    quantity: str
    params: dict[str, Any]
    exact: dict[str, Any]
    text: str

    @property
    def name(self) -> str:
        """The id without its group."""
        return self.id.partition("/")[2]

    @property
    def value(self) -> float:
        """The value as the nearest float64."""
        return float(self.text)

    def __getitem__(self, name: str) -> Any:
        return self.params[name]


def _convert(value: Any, number: Callable[[str], Any]) -> Any:
    if isinstance(value, list):
        return [_convert(v, number) for v in value]
    return number(value) if isinstance(value, str) else value


@functools.cache
def _all() -> tuple[Case, ...]:
    return tuple(
        Case(
            entry["id"],
            entry["quantity"],
            {k: _convert(v, float) for k, v in entry["params"].items()},
            {k: _convert(v, Decimal) for k, v in entry["params"].items()},
            entry["value"],
        )
        for entry in json.loads(_FILE.read_text(encoding="utf-8"))
    )


def cases(group: str, prefix: str = "") -> list[Any]:
    """The cases of a group (whose names start with prefix), for pytest.mark.parametrize."""
    chosen = [case for case in _all() if case.id.startswith(f"{group}/{prefix}")]
    if not chosen:
        raise ValueError(f"no reference case starts with {group}/{prefix}")
    return [pytest.param(case, id=case.name) for case in chosen]
