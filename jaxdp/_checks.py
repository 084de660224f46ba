"""Argument checks at the boundary: concrete values raise, traced values cannot.

A `Domain` is one predicate with one sentence. `check` raises ValueError for values known now;
inside jit, grad or vmap the same predicate, evaluated on the traced value, turns the result into
nan (see `Mechanism._in_domain`). What is no real number at all (text, None, a truth value, a
complex number, an object) raises TypeError, traced or not. Messages are short, whatever the value.
"""

import dataclasses
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special_subnormal as subnormal

_LONGEST = 60  # characters of a value in a message
_MOST_SHOWN = 8  # entries of an array or a sequence in a message
_LONG_INTEGER = 128  # bits


@dataclasses.dataclass(frozen=True)
class Domain:
    """A set of real numbers: its description, and membership for NumPy and JAX arrays alike."""

    text: str
    contains: Callable[[Any], Any]


def _finite(x: Any) -> Any:
    return abs(x) < np.inf  # False for nan


def _positive(x: Any) -> Any:
    """x > 0, subnormal numbers included, which XLA may take for 0 or not."""
    if isinstance(x, jax.Array) and jnp.issubdtype(x.dtype, jnp.floating):
        return subnormal.is_positive(x)
    return x > 0


def _whole(x: Any) -> Any:
    return (x >= 0) & (x % 1 == 0)  # inf % 1 is nan


POSITIVE = Domain("finite and > 0", lambda x: _positive(x) & _finite(x))
NON_NEGATIVE = Domain("finite and >= 0", lambda x: (x >= 0) & _finite(x))
NON_NEGATIVE_OR_INF = Domain(">= 0", lambda x: x >= 0)
REAL = Domain("finite", _finite)
NOT_NAN = Domain("a number, not nan", lambda x: x == x)
PROBABILITY = Domain("in [0, 1]", lambda x: (x >= 0) & (x <= 1))
# (A rate that arithmetic takes for 0 samples nobody, which is no bound on what it does.)
RATE = Domain("in (0, 1], and at least 2.3e-308", lambda x: (x >= 2.0**-1022) & (x <= 1))
ANY_RATE = Domain("in (0, 1]", lambda x: _positive(x) & (x <= 1))
DELTA = Domain("in [0, 1)", lambda x: (x >= 0) & (x < 1))
OPEN_DELTA = Domain("in (0, 1)", lambda x: _positive(x) & (x < 1))
ORDER = Domain(">= 1 (inf allowed)", lambda x: x >= 1)
FINITE_KL_ORDER = Domain("finite and >= 1", lambda x: (x >= 1) & _finite(x))
FINITE_ORDER = Domain("finite and > 1", lambda x: (x > 1) & _finite(x))
COUNT = Domain("an integer >= 0", _whole)


def shown(value: Any) -> str:
    """A value for a message: short, however large it is."""
    if isinstance(value, int) and value.bit_length() > _LONG_INTEGER:
        return f"an integer of about {int(value.bit_length() * math.log10(2.0)) + 1} digits"
    if isinstance(value, jax.core.Tracer):
        return f"a traced value of dtype {value.dtype}"
    if isinstance(value, (np.ndarray, jax.Array)) and value.size > _MOST_SHOWN:
        return f"an array of shape {value.shape}"
    if isinstance(value, (list, tuple, dict, set, frozenset)) and len(value) > _MOST_SHOWN:
        return f"a {type(value).__name__} of {len(value)} entries"
    try:
        text = repr(value)
    except ValueError:  # integers of more digits than Python prints, inside of something
        return f"a {type(value).__name__}"
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


class TruthValueError(TypeError, ValueError):
    """True or False where a number is meant: of a wrong type, and outside of every domain."""


def concrete(name: str, value: Any) -> np.ndarray | None:
    """The value as a NumPy array, or None if it is traced; TypeError if it is no number."""
    if isinstance(value, jax.core.Tracer):
        _require_real(name, value, value.dtype)
        return None
    _check_entries(name, value, value)
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:  # ragged, or without a NumPy counterpart
        raise TypeError(_sentence(name, value)) from error
    if array.dtype == object:
        array = _from_integers(name, value, array)
    _require_real(name, value, array.dtype)
    return array


def _sentence(name: str, value: Any) -> str:
    return f"{name} must be a real number or an array of them, got {shown(value)}"


def _require_real(name: str, value: Any, dtype: Any) -> None:
    if jnp.issubdtype(dtype, jnp.complexfloating):
        raise TypeError(f"{name} must be real, got {shown(value)}")
    if not jnp.issubdtype(dtype, jnp.number):
        raise TypeError(_sentence(name, value))


def _check_entries(name: str, value: Any, whole: Any) -> None:
    """NumPy takes True among numbers for 1, and cannot make an array of traced values."""
    if isinstance(value, (list, tuple)):
        for entry in value:
            _check_entries(name, entry, whole)
    elif isinstance(value, (bool, np.bool_)):
        raise TruthValueError(_sentence(name, whole))
    elif isinstance(value, jax.core.Tracer):
        raise TypeError(f"{name} must be one array (jnp.stack), not a sequence with traced values")


def _from_integers(name: str, value: Any, array: np.ndarray) -> np.ndarray:
    """Python integers beyond 64 bits as float64."""
    if not all(isinstance(x, int) and not isinstance(x, bool) for x in array.flat):
        raise TypeError(_sentence(name, value))
    try:
        return np.asarray([float(x) for x in array.flat]).reshape(array.shape)
    except OverflowError as error:
        largest = max(array.flat, key=abs)
        raise ValueError(f"{name} must fit a float64, got {shown(largest)}") from error


def array_of(name: str, value: Any) -> Any:
    """Sequences, and integers beyond 64 bits, as float64 arrays; everything else as it is."""
    if isinstance(value, (list, tuple)) or (isinstance(value, int) and value.bit_length() > 63):
        known = concrete(name, value)
        return None if known is None else known.astype(np.float64)
    return value


def check(name: str, value: Any, domain: Domain) -> None:
    """Raise ValueError naming the argument and its domain unless all known values lie in it."""
    try:
        array = concrete(name, value)
    except TruthValueError as error:
        text = f"{name} must be {domain.text}: a real number or an array of them"
        raise TruthValueError(f"{text}, got {shown(value)}") from error
    if array is None:
        return
    with np.errstate(over="ignore", invalid="ignore"):
        array = array.astype(np.float64)
        inside = np.asarray(domain.contains(array))
    if np.all(inside):
        return
    if array.ndim and inside.shape == array.shape:
        at = tuple(int(i) for i in np.argwhere(~inside)[0])
        raise ValueError(f"{name} must be {domain.text}, got {array[at].item()} at {list(at)}")
    raise ValueError(f"{name} must be {domain.text}, got {shown(array.tolist())}")


def number(name: str, value: Any, domain: Domain) -> float:
    """One known number of the domain, as a float."""
    array = concrete(name, value)
    if array is None or array.ndim:
        raise TypeError(f"{name} must be one known number, got {shown(value)}")
    check(name, array, domain)
    return float(array)


def whole_number(name: str, value: Any, least: int = 1, most: int = 2**53) -> int:
    """One known integer from the least to the most (2.0 is one, True is not)."""
    known = number(name, value, NOT_NAN)
    if not least <= known <= most or known % 1 != 0:
        got = shown(value)
        raise ValueError(f"{name} must be an integer from {least} to {most}, got {got}")
    return int(known)


def pair(name: str, value: Any) -> tuple[Any, Any]:
    """A sequence of two as a tuple."""
    if not isinstance(value, (tuple, list, np.ndarray, jax.Array)) or len(value) != 2:
        raise ValueError(f"{name} must be a pair (low, high), got {shown(value)}")
    return value[0], value[1]


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Raise ValueError unless a static option is one of the choices."""
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"{name} must be one of {', '.join(map(repr, choices))}, got {shown(value)}"
        )


def common_shape(shapes: Iterable[tuple[int, ...]]) -> tuple[int, ...]:
    """The batch shape of arguments; ValueError unless their own broadcast."""
    every = tuple(dict.fromkeys(shapes))
    try:
        return np.broadcast_shapes(*every)
    except ValueError:
        shown = " and ".join(str(shape) for shape in every if shape)
        raise ValueError(
            f"parameters and targets must have shapes that broadcast, got {shown}"
        ) from None
