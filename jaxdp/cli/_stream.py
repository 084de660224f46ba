"""Long tables in pieces: read with row numbers, written so that an interruption loses no row.

pyarrow, not polars: of a million rows (78 MB of CSV read, checked as numbers and written again) it
takes 2.1 s and polars 1.2 s on one core, of a run that takes longer than both to calibrate
even Gaussian targets; and it alone reports malformed rows with their number and goes on.
"""

import contextlib
import csv
import io
import json
import os
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from jaxdp.cli._display import InputError, json_number
from jaxdp.cli._table import number

ROW, ERROR = "row", "error"  # columns added to what is read; ERROR is dropped again
_BLOCK = 1 << 22  # bytes of CSV parsed at a time


def header_of(path: pathlib.Path) -> list[str]:
    """The column names of a CSV or Parquet file; InputError if there are none."""
    if not path.is_file():
        raise InputError(f"{path}: no such file")
    try:
        if path.suffix.lower() == ".parquet":
            return list(pyarrow.parquet.read_schema(path).names)
        with path.open(encoding="utf-8-sig", newline="") as file:
            names = next(csv.reader(file), [])
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowInvalid) as error:
        raise InputError(f"{path}: cannot be read as a table ({error})") from None
    if not any(name.strip() for name in names):
        raise InputError(f"{path}: the file is empty")
    return names


def count_rows(path: pathlib.Path) -> int:
    """About how many rows a file has (for CSV, its lines): for the progress bar."""
    if path.suffix.lower() == ".parquet":
        return pyarrow.parquet.read_metadata(path).num_rows
    with path.open("rb") as file:
        blocks = iter(lambda: file.read(_BLOCK), b"")
        return max(sum(block.count(b"\n") for block in blocks) - 1, 1)


def read(path: pathlib.Path, size: int, index: int = 0, count: int = 1) -> Iterator[pa.Table]:
    """Pieces of up to `size` rows: rows (k size, (k + 1) size] for k = index modulo count.

    The columns of the file (CSV: all as text) with their names stripped, then ROW, the number of
    the row in the file, and ERROR, what is wrong with a malformed one or null. Blank lines are
    counted but left out.
    """
    names = [name.strip() for name in header_of(path)]
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(f"{path}: the column {repeated[0]!r} occurs more than once")
    source = _parquet if path.suffix.lower() == ".parquet" else _csv
    waiting: list[pa.Table] = []
    chunk = 0

    def ready() -> Iterator[pa.Table]:
        if waiting and chunk % count == index:
            yield pa.concat_tables(waiting).combine_chunks()
        waiting.clear()

    for block in source(path, names):
        rows = block.column(ROW).to_numpy()
        ends = np.searchsorted(rows, (np.unique((rows - 1) // size) + 1) * size, side="right")
        start = 0
        for end in ends:
            if (rows[start] - 1) // size != chunk:
                yield from ready()
                chunk = (rows[start] - 1) // size
            waiting.append(block.slice(start, end - start))
            start = end
    yield from ready()


def empty(path: pathlib.Path) -> pa.Table:
    """A piece without rows: the columns alone."""
    names = [name.strip() for name in header_of(path)]
    if path.suffix.lower() == ".parquet":
        table = pyarrow.parquet.read_schema(path).empty_table().rename_columns(names)
    else:
        table = pa.table({name: pa.array([], pa.string()) for name in names})
    return _numbered(table, np.arange(0))


def _parquet(path: pathlib.Path, names: list[str]) -> Iterator[pa.Table]:
    done = 0
    for batch in pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=1 << 16):
        table = pa.Table.from_batches([batch]).rename_columns(names)
        yield _numbered(table, np.arange(done + 1, done + 1 + table.num_rows))
        done += table.num_rows


def _csv(path: pathlib.Path, names: list[str]) -> Iterator[pa.Table]:
    malformed: dict[int, str] = {}  # row -> what is wrong; filled ahead of the batches

    def skip(row: Any) -> str:
        # the header is row 1; only with one thread are rows numbered
        malformed[row.number - 1] = (
            f"{row.actual_columns} values for {row.expected_columns} columns"
        )
        return "skip"

    options = {
        "read_options": pyarrow.csv.ReadOptions(block_size=_BLOCK, use_threads=False),
        "parse_options": pyarrow.csv.ParseOptions(
            newlines_in_values=True, invalid_row_handler=skip, ignore_empty_lines=False
        ),
        "convert_options": pyarrow.csv.ConvertOptions(
            column_types=dict.fromkeys(header_of(path), pa.string())
        ),
    }
    done = 0
    try:
        # closed: it reads ahead, in a thread that must not outlive the program
        with pyarrow.csv.open_csv(path, **options) as batches:
            for batch in batches:
                table = pa.Table.from_batches([batch]).rename_columns(names)
                rows = np.arange(done + 1, done + 1 + table.num_rows + len(malformed))
                rows = rows[~np.isin(rows, list(malformed))][: table.num_rows]
                if table.num_rows:
                    done = int(rows[-1])
                blank = np.logical_and.reduce(
                    [np.asarray(c.to_pylist()) == "" for c in table.columns]
                )
                whole = _numbered(table.filter(~blank), rows[~blank])
                bad = [(n, malformed.pop(n)) for n in sorted(malformed) if n < done]
                if bad:
                    whole = pa.concat_tables([whole, _placeholders(whole, bad)]).sort_by(ROW)
                if whole.num_rows:
                    yield whole
        if malformed:
            empty = _numbered(pa.table({n: pa.array([], pa.string()) for n in names}), np.arange(0))
            yield _placeholders(empty, sorted(malformed.items()))
    except (pa.ArrowInvalid, UnicodeDecodeError) as error:
        raise InputError(f"{path}: cannot be read as UTF-8 CSV ({error})") from None


def _numbered(table: pa.Table, rows: np.ndarray) -> pa.Table:
    for name in (ROW, ERROR):
        if name in table.column_names:
            table = table.drop_columns([name])
    table = table.append_column(ROW, pa.array(rows, pa.int64()))
    return table.append_column(ERROR, pa.nulls(len(rows), pa.string()))


def _placeholders(like: pa.Table, bad: list[tuple[int, str]]) -> pa.Table:
    """Rows for what could not be read, so that no row of the file is missing in the output."""
    columns = {name: pa.nulls(len(bad), pa.string()) for name in like.column_names}
    columns[ROW] = pa.array([n for n, _ in bad], pa.int64())
    columns[ERROR] = pa.array([text for _, text in bad])
    return pa.table(columns, schema=like.schema)


# --- output -------------------------------------------------------------------------------------


class Sink:
    """Where results go, piece by piece: a file that grows, or a folder of Parquet parts.

    A file holds CSV, or JSON lines: an object for each row, where `numbers` are written as such.

    A piece is on the disk when `write` returns. Whatever instant the program is killed at, what
    `resume` finds is a whole number of rows, the first ones, each once.

    Attributes:
      last: the last row already there, as a dictionary of texts; None if there is none.
      written: whether the columns are there, if no row.
    """

    def __init__(self, path: pathlib.Path, resume: bool, numbers: Sequence[str] = ()) -> None:
        if not path.absolute().parent.is_dir():
            raise InputError(f"{path}: there is no folder {path.parent}")
        kind = path.suffix.lower()
        self._path, self._parts, self._lines = path, kind == ".parquet", kind == ".jsonl"
        if kind not in (".csv", ".parquet", ".jsonl"):
            raise InputError(f"{path}: the output must end in .csv, .jsonl or .parquet")
        if path.exists() and not resume:
            raise InputError(f"{path}: exists; continue it with --resume, or remove it")
        if path.exists() and self._parts != path.is_dir():
            raise InputError(f"{path}: is no output of this command")
        self.last: dict[str, str] | None = None
        self._columns: list[str] | None = None
        self._numbers = frozenset(numbers)
        self._count = 0
        if self._parts:
            path.mkdir(exist_ok=True)
            self._resume_parts()
        elif path.exists() and self._lines:
            self._resume_lines()
        elif path.exists():
            self._resume_csv()

    @property
    def written(self) -> bool:
        """Whether anything is there that says what the columns are."""
        return self._columns is not None

    def rows(self) -> Iterator[dict[str, str]]:
        """Those already there, as dictionaries of texts."""
        if self._parts:
            for part in sorted(self._path.glob("part-*.parquet")):
                for row in pyarrow.parquet.ParquetFile(part).read().to_pylist():
                    yield {name: _text(value) for name, value in row.items()}
        elif self._path.exists():
            with self._path.open(encoding="utf-8", newline="") as file:
                if self._lines:
                    for line in file:
                        yield {name: _text(value) for name, value in json.loads(line).items()}
                else:
                    yield from csv.DictReader(file)

    def write(self, table: pa.Table) -> None:
        """Add rows; InputError if the columns are not those already there."""
        if self._columns is not None and self._columns != table.column_names:
            raise InputError(
                f"{self._path}: has the columns {', '.join(self._columns)}, not those of this"
                f" run: {', '.join(table.column_names)}"
            )
        buffer = io.BytesIO()
        try:
            if self._parts:
                pyarrow.parquet.write_table(table, buffer)
                target = self._path / f"part-{self._count:06d}.parquet"
                hidden = target.with_suffix(".unfinished")
                _append(hidden, buffer.getvalue())
                hidden.replace(target)  # atomic
            elif self._lines:
                _append(self._path, "".join(map(self._line, table.to_pylist())).encode())
            else:
                header = pyarrow.csv.WriteOptions(include_header=self._columns is None)
                pyarrow.csv.write_csv(table, buffer, header)
                _append(self._path, buffer.getvalue())
        except (OSError, pa.ArrowInvalid) as error:
            raise InputError(f"{self._path}: cannot be written ({error})") from None
        self._columns, self._count = table.column_names, self._count + 1

    def _line(self, row: dict[str, Any]) -> str:
        clean = {}
        for name, value in row.items():
            if name in self._numbers and isinstance(value, str):
                with contextlib.suppress(ValueError):
                    value = number(value)
            clean[name] = json_number(value) if isinstance(value, float) else value
        return json.dumps(clean, allow_nan=False, ensure_ascii=False, default=str) + "\n"

    def _resume_parts(self) -> None:
        for left in self._path.glob("*.unfinished"):
            left.unlink()
        parts = sorted(self._path.glob("part-*.parquet"))
        self._count = len(parts)
        if parts:
            table = pyarrow.parquet.ParquetFile(parts[-1]).read()
            self._columns = table.column_names
            for row in table.slice(max(table.num_rows - 1, 0)).to_pylist():
                self.last = {name: _text(value) for name, value in row.items()}

    def _resume_lines(self) -> None:
        """Cut off an unfinished last line."""
        end = before = position = 0
        with self._path.open("r+b") as file:
            for block in iter(lambda: file.read(_BLOCK), b""):
                ends = position + 1 + np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
                position += len(block)
                if len(ends):
                    before, end = int(ends[-2]) if len(ends) > 1 else end, int(ends[-1])
            file.truncate(end)
            file.seek(before)
            record = file.read(end - before)
        if record.strip():
            try:
                row = json.loads(record)
                self._columns = list(row)
            except (ValueError, TypeError):
                raise InputError(f"{self._path}: is no output of this command") from None
            self.last = {name: _text(value) for name, value in row.items()}

    def _resume_csv(self) -> None:
        """Cut off an unfinished last record; a record ends at a newline outside of quotes."""
        first = end = before = position = quotes = 0
        with self._path.open("r+b") as file:
            for block in iter(lambda: file.read(_BLOCK), b""):
                data = np.frombuffer(block, np.uint8)
                inside = (quotes + np.cumsum(data == ord('"'))) % 2
                ends = position + 1 + np.flatnonzero((data == ord("\n")) & (inside == 0))
                quotes, position = int(inside[-1]), position + len(block)
                if len(ends):
                    first = first or int(ends[0])
                    before, end = int(ends[-2]) if len(ends) > 1 else end, int(ends[-1])
            file.truncate(end)
            file.seek(0)
            header = file.read(first).decode()
            file.seek(before)
            record = file.read(end - before).decode()
        if not first:
            return
        self._columns = next(csv.reader([header]))
        if end > first:
            values = next(csv.reader(io.StringIO(record, newline="")))
            self.last = dict(zip(self._columns, values, strict=True))


def _append(path: pathlib.Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _text(value: Any) -> str:
    return "" if value is None else str(value)
