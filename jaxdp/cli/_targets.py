"""Calibration of a table of targets: streamed, resumable, on every device."""

import dataclasses
import math
import pathlib
import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import calibrate
import jaxdp
from jaxdp.cli import _setting, _stream, _table
from jaxdp.cli._display import InputError

# Rows to a piece of output, by what a row costs: closed forms, Rényi orders, numerical laws.
_EXACT_ROWS, _RENYI_ROWS, _NUMERICAL_ROWS, _ALLOCATED_ROWS = 65536, 1024, 512, 64
_EXACT_CHUNK = 16384  # rows at a time, at most
_FEW = 8  # a group of fewer rows than a piece over this is computed by a smaller program
_SHOWN = 20  # bad rows that are also printed

_LARGEST_COUNT = 2.0**53
POISSON, ALLOCATION = _setting.TABLE_SCHEMES
SETTINGS = ("epsilon", "delta", "sampling_probability", "num_steps", "sensitivity")
_COMPARED = frozenset((_stream.ROW, *SETTINGS, "num_examples", "batch_size"))
_AS_BEGUN = "--resume needs the table and the options it was begun with"
_CONDITIONS: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "epsilon": ("finite and >= 0", lambda x: (x >= 0) & np.isfinite(x)),
    "delta": ("in [0, 1)", lambda x: (x >= 0) & (x < 1)),
    "sampling_probability": ("in (0, 1]", lambda x: (x > 0) & (x <= 1)),
    "num_examples": ("finite and > 0", lambda x: (x > 0) & np.isfinite(x)),
    "batch_size": ("finite and > 0", lambda x: (x > 0) & np.isfinite(x)),
    "num_steps": (
        "a positive integer",
        lambda x: (x >= 1) & (x == np.floor(x)) & (x <= _LARGEST_COUNT),
    ),
    "sensitivity": ("finite and > 0", lambda x: (x > 0) & np.isfinite(x)),
}


@dataclasses.dataclass(frozen=True)
class Build:
    """Build one kind of mechanism from its noise; equal ones share a compiled program."""

    laplace: bool
    sampled: bool
    repeated: bool
    allocated: bool = False

    def __call__(self, noise: Any, sensitivity: Any, rate: Any, steps: Any) -> jaxdp.Mechanism:
        """The mechanism with this noise; allocated, with 1/rate steps in each of `steps` epochs."""
        kind = jaxdp.Laplace if self.laplace else jaxdp.Gaussian
        m: jaxdp.Mechanism = kind(noise, sensitivity)
        if self.sampled and self.allocated:
            length = jnp.maximum(jnp.round(1.0 / rate), 1.0)
            return jaxdp.RandomAllocation(m, length, num_epochs=steps if self.repeated else 1)
        if self.sampled:
            m = jaxdp.PoissonSampled(m, rate)
        return jaxdp.Repeated(m, steps) if self.repeated else m

    @property
    def exact(self) -> bool:
        """Whether the mechanism has a closed form."""
        if self.sampled and self.allocated:
            return False
        return not self.repeated or not (self.sampled or self.laplace)


@dataclasses.dataclass(frozen=True)
class Job:
    """What to do with a table.

    Attributes:
      laplace: Laplace noise, not Gaussian.
      direction: "remove", "add" or "both".
      numerical: numerical laws for compositions, not Rényi divergences.
      defaults: settings for all rows, where the table has no such column.
      allocated: batches by random allocation: of T steps at a rate q, ceil(T/t) epochs of
        t = round(1/q) steps, each record in one of them. Else Poisson samples.
    """

    laplace: bool
    direction: Any
    numerical: bool
    defaults: dict[str, float | None]
    allocated: bool = False

    @property
    def noise_name(self) -> str:
        """The column of results."""
        return "scale" if self.laplace else "sigma"

    def rows(self, names: list[str]) -> int:
        """Rows to a piece of output."""
        steps, rate = self.defaults["num_steps"], self.defaults["sampling_probability"]
        composed = "num_steps" in names or steps != 1.0
        sampled = not {"sampling_probability", "batch_size"}.isdisjoint(names) or rate != 1.0
        if self.allocated and sampled:
            return _ALLOCATED_ROWS
        if not composed or not (sampled or self.laplace):
            return _EXACT_ROWS
        return _NUMERICAL_ROWS if self.numerical else _RENYI_ROWS

    def piece(self, names: list[str], total: int, count: int) -> int:
        """The same, where so many processes divide so many rows: a share for everybody."""
        size = self.rows(names)
        return size if count == 1 else max(1, min(size, -(-total // count)))

    def share(self, names: list[str], total: int, index: int, count: int) -> int:
        """How many of them are one process's: every `count`-th piece."""
        size = self.piece(names, total, count)
        starts = range(index * size, total, count * size)
        return sum(min(size, total - start) for start in starts)

    def check_columns(self, path: pathlib.Path, names: list[str]) -> None:
        """Refuse a table without targets."""
        for name in ("epsilon", "delta"):
            if name not in names and self.defaults[name] is None:
                raise InputError(
                    f"{path}: there is no column {name!r} (and no --{name});"
                    f" found {', '.join(names)}"
                )
        if "sampling_probability" not in names and ("num_examples" in names) != (
            "batch_size" in names
        ):
            raise InputError(f"{path}: 'num_examples' and 'batch_size' only serve together")


@dataclasses.dataclass
class Summary:
    """What came of a table: of the rows of this run, and how many earlier runs had done.

    Of those `before`, `missed_before` have no result.
    """

    rows: int = 0
    before: int = 0
    missed_before: int = 0
    solved: int = 0
    bad: list[str] = dataclasses.field(default_factory=list)
    bad_count: int = 0


def part_path(output: pathlib.Path, index: int, count: int) -> pathlib.Path:
    """The output of one of several processes."""
    if count == 1:
        return output
    return output.with_name(f"{output.stem}-{index}-of-{count}{output.suffix}")


def run(
    job: Job,
    path: pathlib.Path,
    output: pathlib.Path,
    resume: bool,
    advance: Callable[[int], Any],
    index: int = 0,
    count: int = 1,
    skip: Callable[[int], Any] | None = None,
) -> Summary:
    """Calibrate every row of a table; pieces are written as they finish.

    `advance` hears of rows that were computed, `skip` (else advance) of those done before.
    """
    names = [name.strip() for name in _stream.header_of(path)]
    job.check_columns(path, names)
    sink = _stream.Sink(output, resume, tuple(_CONDITIONS))
    done = 0
    if sink.last is not None:
        if not re.fullmatch(r"\d+", sink.last.get(_stream.ROW, "")):
            raise InputError(f"{output}: is no output of this command")
        if job.noise_name not in sink.last:
            raise InputError(f"{output}: has no column {job.noise_name!r}: {_AS_BEGUN}")
        done = int(sink.last[_stream.ROW])
    summary, total = Summary(), _stream.count_rows(path)
    size = job.piece(names, total, count)
    small = count == 1 and total < size
    before = sink.rows()
    for piece in _stream.read(path, size, index, count):
        rows = piece.column(_stream.ROW).to_numpy()
        skipped = int(np.searchsorted(rows, done, side="right"))
        if skipped:
            summary.before += skipped
            (skip or advance)(skipped)
            for expected in _settings(job, piece.slice(0, skipped))[0].to_pylist():
                row = next(before, None)
                summary.missed_before += not (row or {}).get(job.noise_name)
                if row != sink.last:  # (further columns are looked at once)
                    expected = {k: v for k, v in expected.items() if k in _COMPARED}
                _check_same(expected | _tags(job), row or {}, output)
            piece = piece.slice(skipped)
            if not piece.num_rows:
                continue
        _check_none_left(before, path, output)
        whole = 1 << (piece.num_rows - 1).bit_length() if small else size
        table = _calibrated(job, piece, whole, summary)
        sink.write(table)
        advance(table.num_rows)
    _check_none_left(before, path, output)
    if not sink.written:  # no row is this process's: the columns at least
        sink.write(_calibrated(job, _stream.empty(path), size, summary))
    return summary


def _check_same(expected: dict[str, Any], row: dict[str, str], output: pathlib.Path) -> None:
    """Refuse to continue the output of another table or of other options."""
    for name, value in expected.items():
        found, wanted = row.get(name), "" if value is None else str(value)
        if found is None or (found != wanted and not _same_number(found, wanted)):
            raise InputError(
                f"{output}: row {row.get(_stream.ROW)} has {name} {found!r}, this run {wanted!r}:"
                f" {_AS_BEGUN}"
            )


def _check_none_left(
    before: Iterator[dict[str, str]], path: pathlib.Path, output: pathlib.Path
) -> None:
    row = next(before, None)
    if row is not None:
        raise InputError(
            f"{output}: row {row.get(_stream.ROW)} is done, {path} has none: --resume needs the "
            "table it was begun with"
        )


def _same_number(a: str, b: str) -> bool:
    """Whether two texts are one number (JSON has no nan: it is nothing there)."""
    try:
        x, y = float(a or "nan"), float(b or "nan")
    except ValueError:
        return False
    return x == y or (math.isnan(x) and math.isnan(y))


def _tags(job: Job) -> dict[str, str]:
    method = "numerical" if job.numerical else "renyi"
    scheme = ALLOCATION if job.allocated else POISSON
    return {"scheme": scheme, "direction": str(job.direction), "method": method}


def _settings(job: Job, piece: pa.Table) -> tuple[pa.Table, dict[str, np.ndarray], list[str]]:
    """The table with all settings, those as numbers, and what is wrong with each row ("": nil)."""
    errors = [error or "" for error in piece.column(_stream.ERROR).to_pylist()]
    names, count = piece.column_names, piece.num_rows
    table = piece.drop_columns([_stream.ERROR])
    table = table.select([_stream.ROW, *(n for n in table.column_names if n != _stream.ROW)])
    ratio = "sampling_probability" not in names and "batch_size" in names
    values: dict[str, np.ndarray] = {}
    for name in (*SETTINGS, "num_examples", "batch_size"):
        if name in names and (name in SETTINGS or ratio):
            values[name] = _numbers(piece, name, errors)
        elif name in SETTINGS and not (ratio and name == "sampling_probability"):
            values[name] = np.full(count, job.defaults[name])
            table = table.append_column(name, pa.array(values[name]))
    if ratio:
        with np.errstate(invalid="ignore", divide="ignore"):
            rate = values["batch_size"] / values["num_examples"]
        for row in np.flatnonzero(rate > 1.0):
            errors[row] = errors[row] or "the batch size exceeds the number of examples"
        values["sampling_probability"] = rate
        table = table.append_column("sampling_probability", pa.array(rate, from_pandas=True))
    for row in np.flatnonzero((values["epsilon"] == 0.0) & (values["delta"] == 0.0)):
        errors[row] = errors[row] or "epsilon and delta are both 0: no noise gives that"
    return table, values, errors


def _numbers(piece: pa.Table, name: str, errors: list[str]) -> np.ndarray:
    """One column as float64, nan where it is no number; what is wrong goes to `errors`."""
    column = piece.column(name)
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    try:
        trimmed = pc.call_function("utf8_trim_whitespace", [column]) if text else column
        values = np.asarray(pc.cast(trimmed, pa.float64()).to_numpy(), np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        values = np.full(len(column), np.nan)
        for row, entry in enumerate(column.to_pylist()):
            try:
                values[row] = _table.number(str(entry))
            except (TypeError, ValueError):
                continue
    condition, holds = _CONDITIONS[name]
    for row in np.flatnonzero(~holds(values)):
        if not errors[row]:
            entry = column[int(row)].as_py()
            shown = "" if entry is None else str(entry).strip()
            if not shown:
                errors[row] = f"{name} is missing"
            elif math.isnan(values[row]):
                errors[row] = f"{name}: {shown!r} is not a number"
            else:
                errors[row] = f"{name} must be {condition}, got {shown}"
    return values


def _calibrated(job: Job, piece: pa.Table, size: int, summary: Summary) -> pa.Table:
    """The piece with its results; `size` is the length that programs are compiled for."""
    table, values, errors = _settings(job, piece)
    good = np.asarray([not error for error in errors], bool)
    noise, reached = np.full((2, piece.num_rows), np.nan)
    status = np.asarray([f"bad row: {error}" for error in errors], object)
    reason = np.full(piece.num_rows, None, object)
    if job.allocated:
        values |= _in_epochs(values)
    sampled, repeated = values["sampling_probability"] < 1.0, values["num_steps"] > 1.0
    for kind in ((s, r) for s in (False, True) for r in (False, True)):
        rows = np.flatnonzero(good & (sampled == kind[0]) & (repeated == kind[1]))
        if len(rows):
            solution = _solve(job, Build(job.laplace, *kind, job.allocated), values, rows, size)
            noise[rows], reached[rows] = solution.value, solution.delta
            for code in calibrate.Status:
                status[rows[solution.status == code]] = code.name.lower()
            missed = np.flatnonzero(np.asarray(solution.status) == calibrate.Status.INFEASIBLE)
            why = solution.shortfall
            if why is not None:
                for at in missed:
                    reason[rows[at]] = why.sentence((int(at),)) or None
            summary.solved += int(np.isfinite(np.asarray(solution.value)).sum())
    summary.rows += piece.num_rows
    summary.bad_count += int((~good).sum())
    numbers = table.column(_stream.ROW).to_pylist()
    for row in np.flatnonzero(~good)[: max(_SHOWN - len(summary.bad), 0)]:
        summary.bad.append(f"row {numbers[row]}: {errors[row]}")
    results = {
        **{name: pa.array([tag] * piece.num_rows) for name, tag in _tags(job).items()},
        job.noise_name: pa.array(noise, from_pandas=True),
        "certified_delta": pa.array(reached, from_pandas=True),
        "status": pa.array(status.tolist(), pa.string()),
        "reason": pa.array(reason.tolist(), pa.string()),
    }
    table = table.select([name for name in table.column_names if name not in results])
    for name, column in results.items():
        table = table.append_column(name, column)
    return table


def _in_epochs(values: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Rates of whole numbers of steps, and epochs of so many in place of steps.

    (A batch of all records is one step of no choice.)
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        length = np.round(1.0 / values["sampling_probability"])
        epochs = np.ceil(values["num_steps"] / length)
    return {"sampling_probability": 1.0 / length, "num_steps": epochs}


def _solve(
    job: Job, build: Build, values: dict[str, np.ndarray], rows: np.ndarray, size: int
) -> calibrate.Solution:
    # one of two lengths, and never a scalar: few programs
    length = max(size if len(rows) * _FEW > size else size // _FEW, 2)
    some = np.concatenate([rows, rows]) if len(rows) == 1 else rows
    epsilon, delta, rate, steps, sensitivity = (values[name][some] for name in SETTINGS)
    method = jaxdp.Numerical() if job.numerical else jaxdp.Renyi()
    with jax.enable_x64(True):
        solution = calibrate.batch(
            build,
            epsilon=epsilon,
            delta=delta,
            args=(sensitivity, rate, steps),
            direction=job.direction,
            method=None if build.exact else method,
            chunk=min(length, _EXACT_CHUNK),
        )
    return jax.tree.map(lambda x: np.asarray(x)[: len(rows)], solution)
