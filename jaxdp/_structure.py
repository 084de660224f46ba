"""What a mechanism is made of: how it is shown, and when two of them are the same.

Two mechanisms are equal if they are of one class and their parameters have the same shapes and
values (1, 1.0 and a float32 1.0 alike). Parameters that are traced have no values yet: a mechanism
that holds some is equal to itself alone, so that nothing here stands in the way of a
transformation. (NumPy arrays are held as they were given: one that is changed in place changes its
mechanism, and the hash.)
"""

import dataclasses
import html
from collections.abc import Hashable, Iterable
from typing import Any

import jax
import numpy as np

_MOST = 4  # entries of a sequence or an array that are shown in full
_DIGITS = 6
_LEFT = ' style="text-align:left"'


class NoValueError(TypeError):
    """A parameter is traced, or is no number at all (a placeholder of a transformation)."""


def key(value: Any) -> Hashable:
    """A key that is equal for equal structures; NoValueError if a parameter has no value."""
    if value is None or isinstance(value, (str, bool)):
        return value
    if isinstance(value, jax.core.Tracer):
        raise NoValueError
    if isinstance(value, (list, tuple)):
        return tuple(key(x) for x in value)
    if dataclasses.is_dataclass(value):
        fields = (key(getattr(value, f.name)) for f in dataclasses.fields(value))
        return (type(value), *fields)
    if callable(value):
        return value
    try:
        if np.iscomplexobj(value):
            raise NoValueError
        array = np.asarray(value, np.float64) + 0.0  # of two zeros, one
    except (TypeError, ValueError, RuntimeError) as error:
        raise NoValueError from error
    return array.shape, array.tobytes()


class Compared:
    """Equal where classes and values are; where an entry is traced, the same object alone."""

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        try:
            return key(self) == key(other)
        except NoValueError:
            return NotImplemented

    def __hash__(self) -> int:
        try:
            return hash(key(self))
        except TypeError:  # traced, or a field that cannot be hashed
            return object.__hash__(self)


def compact(value: Any) -> str:
    """A value in a few words: numbers to six digits, long arrays by their shape and range."""
    if isinstance(value, jax.core.Tracer):
        return f"traced {value.dtype}{list(value.shape)}"
    if isinstance(value, (list, tuple)):
        shown = [compact(x) for x in value[:_MOST]]
        if len(value) > _MOST:
            shown.append(f"... {len(value)} in all")
        return f"[{', '.join(shown)}]"
    if isinstance(value, (bool, str)) or not isinstance(
        value, (int, float, np.generic, np.ndarray, jax.Array)
    ):
        return repr(value)
    try:
        array = np.asarray(value)
    except RuntimeError:  # deleted, or not on this host
        return repr(value)
    real = np.issubdtype(array.dtype, np.integer) or np.issubdtype(array.dtype, np.floating)
    if not (real and array.size):
        return repr(value)
    if not array.ndim:
        return _number(array[()])
    if array.size <= _MOST:
        return np.array2string(array, precision=_DIGITS, separator=", ", max_line_width=10**6)
    least, most = _number(array.min()), _number(array.max())
    span = f"of {least}" if least == most else f"from {least} to {most}"
    return f"<{list(array.shape)} {span}>"


def describe(value: Any) -> str:
    """A dataclass as its constructor, less the fields that have their default."""
    shown = []
    for field in dataclasses.fields(value):
        if field.repr and not _is_default(field, getattr(value, field.name)):
            shown.append(f"{field.name}={compact(getattr(value, field.name))}")
    return f"{type(value).__name__}({', '.join(shown)})"


class Markup(str):
    """Text that is HTML already."""


def page(name: str, rows: Iterable[tuple[str, str]]) -> Markup:
    """A thing for notebooks: its name over a table of labels and what stands there."""

    def row(label: str, shown: str) -> str:
        inside = shown if isinstance(shown, Markup) else html.escape(shown)
        return f"<tr><th{_LEFT}>{html.escape(label)}</th><td{_LEFT}>{inside}</td></tr>"

    lines = "".join(row(*x) for x in rows)
    return Markup(f"<div><strong>{html.escape(name)}</strong><table>{lines}</table></div>")


def nested(value: Any) -> str:
    """`describe` for notebooks: what a mechanism is made of stands inside it."""
    if isinstance(value, (list, tuple)) and any(map(_is_shown, value)):
        shown = [nested(x) for x in value[:_MOST]]
        if len(value) > _MOST:
            shown.append(f"... {len(value)} in all")
        return Markup("".join(shown))
    if not _is_shown(value):
        return compact(value)
    fields = [(f, getattr(value, f.name)) for f in dataclasses.fields(value) if f.repr]
    rows = [(f.name, nested(x)) for f, x in fields if not _is_default(f, x)]
    return page(type(value).__name__, rows)


def _is_shown(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and hasattr(value, "_repr_html_")


def _number(value: Any) -> str:
    if np.issubdtype(type(value), np.integer):
        return f"{value:d}"
    text = f"{float(value):.{_DIGITS}g}"
    return text if any(c in text for c in ".enai") else f"{text}.0"


def _is_default(field: dataclasses.Field, value: Any) -> bool:
    if field.default is dataclasses.MISSING or isinstance(value, jax.core.Tracer):
        return False
    try:
        return key(value) == key(field.default)
    except NoValueError:
        return False
