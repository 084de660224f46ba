"""Tables of training runs: read and checked, and written with the results.

Columns are read as text, so that a bad value can be shown as it stands in the file; those with
numbers are parsed in one vectorised call each, and only a failure looks at single rows.
"""

import csv
import dataclasses
import json
import pathlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from jaxdp.cli._display import InputError, json_number

OUTPUT_SUFFIXES = (".csv", ".parquet", ".json")

_LARGEST_COUNT = 2.0**53  # above it float64 no longer counts one by one
_CONDITIONS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "sigma": ("finite and > 0", lambda x: (x > 0) & np.isfinite(x)),
    "num_steps": (
        "a positive integer",
        lambda x: (x >= 1) & (x == np.floor(x)) & (x <= _LARGEST_COUNT),
    ),
    "delta": ("in (0, 1)", lambda x: (x > 0) & (x < 1)),
    "reported_epsilon": ("finite and > 0", lambda x: (x > 0) & np.isfinite(x)),
    "sampling_probability": ("in (0, 1]", lambda x: (x > 0) & (x <= 1)),
    "num_examples": ("finite and > 0", lambda x: (x > 0) & np.isfinite(x)),
    "batch_size": ("finite and > 0", lambda x: (x > 0) & np.isfinite(x)),
}
_REQUIRED = ("sigma", "num_steps", "delta", "reported_epsilon")


@dataclasses.dataclass(frozen=True)
class Runs:
    """A table of DP-SGD runs: its numbers as float64, all columns of the file as they came."""

    table: pa.Table
    labels: list[str]
    sigma: np.ndarray
    sampling_probability: np.ndarray
    num_steps: np.ndarray
    delta: np.ndarray
    reported_epsilon: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)


def read_runs(path: pathlib.Path) -> Runs:
    """Read a CSV file of runs; InputError names the row and column of what is wrong."""
    table = _read_text(path)
    names = table.column_names
    labels = table.column("name").to_pylist() if "name" in names else [""] * table.num_rows
    sampling = "sampling_probability" in names
    needed = _REQUIRED + (("sampling_probability",) if sampling else ("num_examples", "batch_size"))
    for name in needed:
        if name not in names:
            hint = "" if name in _REQUIRED else " (or a column 'sampling_probability')"
            raise InputError(f"{path}: there is no column {name!r}{hint}; found {', '.join(names)}")
    numbers = {name: _parse(table, name, labels, path) for name in needed}
    for name, values in numbers.items():
        integral = bool(np.all(values == np.floor(values)) and np.all(values <= _LARGEST_COUNT))
        counts = name in ("num_steps", "num_examples", "batch_size") and integral
        column = pa.array(values.astype(np.int64) if counts else values)
        table = table.set_column(names.index(name), name, column)
    if sampling:
        rate = numbers["sampling_probability"]
    else:
        rate = numbers["batch_size"] / numbers["num_examples"]
        bad = np.flatnonzero(rate > 1.0)
        if bad.size:
            where = _where(path, int(bad[0]), labels, "batch_size")
            raise InputError(f"{where}: the batch size exceeds the number of examples")
        table = table.append_column("sampling_probability", pa.array(rate))
    return Runs(
        table,
        labels,
        numbers["sigma"],
        rate,
        numbers["num_steps"],
        numbers["delta"],
        numbers["reported_epsilon"],
    )


def _where(path: pathlib.Path, row: int, labels: list[str], column: str) -> str:
    label = f" ({labels[row]})" if labels[row] else ""
    return f"{path}: row {row + 1}{label}, column {column!r}"


def _read_text(path: pathlib.Path) -> pa.Table:
    """All columns of a CSV file as strings, under their stripped names."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file)
            header = next(reader, [])
            empty = not any(reader)
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 CSV ({error})") from None
    names = [name.strip() for name in header]
    if not any(names):
        raise InputError(f"{path}: the file is empty")
    if empty:
        raise InputError(f"{path}: the table has no rows")
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: the column {repeated[0]!r} occurs more than once")
    try:
        table = pyarrow.csv.read_csv(
            path,
            # one thread: only then are rows numbered in errors
            read_options=pyarrow.csv.ReadOptions(use_threads=False),
            parse_options=pyarrow.csv.ParseOptions(newlines_in_values=True),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict.fromkeys(header, pa.string())
            ),
        )
    except pa.ArrowInvalid as error:
        ragged = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", str(error))
        if ragged is None:
            raise InputError(f"{path}: cannot be read as UTF-8 CSV ({error})") from None
        row, expected, actual = map(int, ragged.groups())
        raise InputError(
            f"{path}: row {row - 1} has {actual} values for {expected} columns"
        ) from None
    return table.rename_columns(names)


def number(text: str) -> float:
    """What float() reads, but for what only Python would: 1_000, digits of other scripts."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def _parse(table: pa.Table, name: str, labels: list[str], path: pathlib.Path) -> np.ndarray:
    """One column as float64, every value checked against its condition."""
    text = table.column(name)
    trimmed = pc.call_function("utf8_trim_whitespace", [text])
    try:
        values = pc.cast(trimmed, pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # a missing value, no number, or an unusual notation of one
        values = np.empty(len(text))
        for row, entry in enumerate(text.to_pylist()):
            try:
                values[row] = number(entry)
            except ValueError:
                where = _where(path, row, labels, name)
                problem = f"{entry!r} is not a number" if entry.strip() else "the value is missing"
                raise InputError(f"{where}: {problem}") from None
    condition, holds = _CONDITIONS[name]
    bad = np.flatnonzero(~holds(values))
    if bad.size:
        row = int(bad[0])
        where = _where(path, row, labels, name)
        raise InputError(f"{where}: must be {condition}, got {text[row].as_py().strip()}")
    return values


def check_output(path: pathlib.Path) -> None:
    """Refuse an output that could not be written, before the work is done."""
    if path.suffix.lower() not in OUTPUT_SUFFIXES:
        raise InputError(f"{path}: the output must end in one of {', '.join(OUTPUT_SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")
    if path.is_dir():
        raise InputError(f"{path}: is a folder")


def write_table(table: pa.Table, path: pathlib.Path) -> None:
    """Write a table as its suffix says; JSON is a list with one object per row."""
    try:
        match path.suffix.lower():
            case ".csv":
                pyarrow.csv.write_csv(table, path)
            case ".parquet":
                pyarrow.parquet.write_table(table, path)
            case _:
                with path.open("w", encoding="utf-8") as file:
                    json.dump(_records(table), file, indent=1, allow_nan=False, ensure_ascii=False)
                    file.write("\n")
    except OSError as error:
        raise InputError(f"{path}: cannot be written ({error})") from None


def _records(table: pa.Table) -> list[dict[str, Any]]:
    return [
        {k: json_number(v) if isinstance(v, float) else v for k, v in row.items()}
        for row in table.to_pylist()
    ]
