"""Numbers, errors and tables as a person or a program reads them."""

import contextlib
import decimal
import json
import math
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import rich.box
import rich.console
import rich.table
import rich.text
import typer

_PATIENCE = 5.0  # seconds
_PATIENCE_TEXT = (
    "Still at work. (The first question of a kind is compiled, for up to a minute or two; the next"
    " ones take from what was compiled.)"
)
_UNBOUNDED = 1_000_000  # columns, where the output is no terminal and nothing may be cut


class InputError(Exception):
    """Input that cannot be used, in a sentence for the user."""


@contextlib.contextmanager
def saying_what_takes_long() -> Iterator[None]:
    """A line on stderr if what is done meanwhile takes longer than a few seconds."""
    timer = threading.Timer(_PATIENCE, print, [_PATIENCE_TEXT], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextlib.contextmanager
def refusing_bad_input() -> Iterator[None]:
    """Bad input is a message and exit code 2; numbers are computed in float64 meanwhile."""
    try:
        with saying_what_takes_long(), jax.enable_x64(True):
            yield
    except InputError as error:
        print_error(str(error))
        raise typer.Exit(2) from None


def round_up(value: float, digits: int = 6) -> str:
    """The shortest usual notation of the least `digits`-digit decimal number >= value.

    Example:
      >>> round_up(2.51857639), round_up(1e-30), round_up(7.99999999), round_up(math.inf)
      ('2.51858', '1.00001e-30', '8.00000', 'inf')
    """
    if value == 0.0:
        return "0"
    if not math.isfinite(value):
        return str(value)
    exact = decimal.Decimal(value)
    quantum = decimal.Decimal(1).scaleb(exact.adjusted() - digits + 1)
    rounded = exact.quantize(quantum, rounding=decimal.ROUND_CEILING)
    if rounded.adjusted() > exact.adjusted():  # 9.999... became 10.000
        rounded = rounded.quantize(quantum.scaleb(1), rounding=decimal.ROUND_CEILING)
    if -5 < rounded.adjusted() < digits:
        return f"{rounded:f}"
    return f"{rounded:.{digits - 1}e}".replace("e+", "e")


def round_down(value: float, digits: int = 6) -> str:
    """The greatest `digits`-digit decimal number <= value >= 0, in the notation of `round_up`.

    Example:
      >>> round_down(2.51857639), round_down(0.0)
      ('2.51857', '0')
    """
    if value <= 0.0 or not math.isfinite(value):
        return round_up(value, digits)
    context = decimal.Context(prec=digits, rounding=decimal.ROUND_FLOOR)
    return f"{context.create_decimal(decimal.Decimal(value)):g}"


def json_number(value: float) -> float | str | None:
    """Infinities as strings and nan as null, since JSON has neither."""
    if math.isnan(value):
        return None
    return value if math.isfinite(value) else str(value)


def print_json(record: Mapping[str, Any]) -> None:
    """Print one JSON object, floats with all their digits."""
    clean = {k: json_number(v) if isinstance(v, float) else v for k, v in record.items()}
    print(json.dumps(clean, indent=2, allow_nan=False))


def print_error(message: str) -> None:
    """Print an error to stderr."""
    print(f"Error: {message}", file=sys.stderr)


def stdout() -> rich.console.Console:
    """A console that never cuts or wraps what is piped."""
    console = rich.console.Console(highlight=False, soft_wrap=True)
    if not console.is_terminal:
        console = rich.console.Console(highlight=False, width=_UNBOUNDED)
    return console


def print_table(
    console: rich.console.Console,
    columns: Sequence[tuple[str, str]],
    rows: Sequence[Sequence[str]],
    styles: Sequence[str],
) -> None:
    """Print a table with (header, justification) columns and one style per row."""
    box = rich.box.SIMPLE_HEAD if console.is_terminal else None
    table = rich.table.Table(box=box, header_style="bold", pad_edge=False)
    for header, justify in columns:
        # fold, so that on a narrow terminal no digit is lost
        table.add_column(header, justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row, style in zip(rows, styles, strict=True):
        cells = [rich.text.Text(cell) for cell in row]  # no markup is read out of the data
        cells[-1].stylize(style)
        table.add_row(*cells)
    console.print(table, soft_wrap=False)
