"""Argument checks at the boundary: concrete values raise, traced values cannot.

A `Domain` is one predicate with one sentence. `check` raises ValueError for values known now;
inside jit, grad or vmap the same predicate, evaluated on the traced value, turns the result into
nan (see `Mechanism._in_domain`).
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np


@dataclasses.dataclass(frozen=True)
class Domain:
    """A set of real numbers: its description, and membership for NumPy and JAX arrays alike."""

    text: str
    contains: Callable[[Any], Any]


def _finite(x: Any) -> Any:
    return abs(x) < np.inf  # False for nan


POSITIVE = Domain("finite and > 0", lambda x: (x > 0) & _finite(x))
NON_NEGATIVE = Domain("finite and >= 0", lambda x: (x >= 0) & _finite(x))
NON_NEGATIVE_OR_INF = Domain(">= 0", lambda x: x >= 0)
REAL = Domain("finite", _finite)
NOT_NAN = Domain("a number, not nan", lambda x: x == x)
PROBABILITY = Domain("in [0, 1]", lambda x: (x >= 0) & (x <= 1))
RATE = Domain("in (0, 1]", lambda x: (x > 0) & (x <= 1))
DELTA = Domain("in [0, 1)", lambda x: (x >= 0) & (x < 1))
OPEN_DELTA = Domain("in (0, 1)", lambda x: (x > 0) & (x < 1))
ORDER = Domain(">= 1 (inf allowed)", lambda x: x >= 1)
FINITE_KL_ORDER = Domain("finite and >= 1", lambda x: (x >= 1) & _finite(x))
FINITE_ORDER = Domain("finite and > 1", lambda x: (x > 1) & _finite(x))


def concrete(name: str, value: Any) -> np.ndarray | None:
    """The value as a NumPy array, or None if it is traced; TypeError if it is no number."""
    if isinstance(value, jax.core.Tracer):
        return None
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.number) or array.dtype == bool):
        raise TypeError(f"{name} must be a real number or an array of them, got {value!r}")
    if np.iscomplexobj(array):
        raise TypeError(f"{name} must be real, got {value!r}")
    return array


def check(name: str, value: Any, domain: Domain) -> None:
    """Raise ValueError naming the argument and its domain unless all known values lie in it."""
    array = concrete(name, value)
    if array is not None and not np.all(domain.contains(array)):
        shown = array.item() if array.ndim == 0 else array
        raise ValueError(f"{name} must be {domain.text}, got {shown}")


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless a static option is one of the choices."""
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
