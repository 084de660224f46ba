"""`jaxdp calibrate TARGETS`: its options, its progress and its summary."""

import dataclasses
import datetime
import pathlib
import shlex
import sys
import time
from typing import Annotated

import jax
import rich.console
import rich.progress
import typer

from jaxdp.cli import _stream, _targets
from jaxdp.cli._display import InputError

_SECONDS_BETWEEN_LINES = 10.0

OutputOption = Annotated[
    pathlib.Path | None,
    typer.Option(
        help="Where results of TARGETS go: a .csv file, a .jsonl file (an object a line), or a"
        " .parquet folder of parts."
    ),
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Continue an interrupted output, without losing a row.")
]
ProcessesOption = Annotated[
    int,
    typer.Option(
        min=1,
        help="Divide TARGETS among this many processes, on any hosts that can read the table:"
        " start the same command once for each, with --process-id 0, 1, ...; each writes its own"
        " output, NAME-0-of-N and so on, and can be resumed by itself. Together they hold every"
        " row once; the row's number is in the column 'row'.",
    ),
]
ProcessIdOption = Annotated[int, typer.Option(min=0, help="Which of the --processes this is.")]
CoordinatorOption = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Also join the processes by jax.distributed.initialize, where the accelerators need"
        " it (a TPU slice, say). The work itself needs no communication.",
    ),
]


@dataclasses.dataclass(frozen=True)
class Processes:
    """Which share of the table is this process's."""

    count: int
    index: int
    coordinator: str | None


class _Lines:
    """Progress where stderr is no terminal: a line now and then.

    Attributes:
      total: the rows there are to do.
    """

    def __init__(self, total: int, quiet: bool) -> None:
        self.total, self._quiet, self._done = total, quiet, 0
        self._start = time.monotonic()
        self._next = self._start + _SECONDS_BETWEEN_LINES

    def advance(self, rows: int) -> None:
        """So many rows more."""
        self._done += rows
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + _SECONDS_BETWEEN_LINES
        rate = self._done / (now - self._start)
        left = max(self.total - self._done, 0) / rate
        print(
            f"targets: {self._done} of {self.total}, {rate:.3g} a second,"
            f" {datetime.timedelta(seconds=round(left))} left",
            file=sys.stderr,
            flush=True,
        )


def _say_how_to_continue(output: pathlib.Path) -> None:
    command = ["jaxdp", *sys.argv[1:]]
    if "--resume" not in command:
        command.append("--resume")
    done = f"the rows in {output} are" if output.exists() else "no row is"
    print(
        f"\nInterrupted; {done} finished. Continue with\n  {shlex.join(command)}",
        file=sys.stderr,
    )


def run(
    job: _targets.Job,
    path: pathlib.Path,
    output: pathlib.Path | None,
    resume: bool,
    processes: Processes,
) -> bool:
    """Calibrate a table with a progress bar; whether every row has a result."""
    if output is None:
        raise InputError("a table of TARGETS needs --output")
    if processes.index >= processes.count:
        raise InputError(
            f"--process-id must be below --processes {processes.count}, got {processes.index}"
        )
    if processes.coordinator is not None:
        jax.distributed.initialize(processes.coordinator, processes.count, processes.index)
    output = _targets.part_path(output, processes.index, processes.count)
    names = [name.strip() for name in _stream.header_of(path)]
    job.check_columns(path, names)
    total = job.share(names, _stream.count_rows(path), processes.index, processes.count)
    terminal = sys.stderr.isatty()
    progress = rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        rich.progress.MofNCompleteColumn(),
        console=rich.console.Console(stderr=True),
        disable=not terminal,
    )
    plain = _Lines(total, quiet=terminal)
    try:
        with progress:
            task = progress.add_task("targets", total=total)

            def advance(rows: int) -> None:
                progress.advance(task, rows)
                plain.advance(rows)

            def skip(rows: int) -> None:  # done before: they say nothing of the time that is left
                plain.total -= rows
                progress.update(task, total=plain.total)

            summary = _targets.run(
                job, path, output, resume, advance, processes.index, processes.count, skip
            )
            progress.update(task, completed=progress.tasks[task].completed, total=None)
    except KeyboardInterrupt:
        _say_how_to_continue(output)
        raise typer.Exit(130) from None
    for line in summary.bad:
        print(line, file=sys.stderr)
    if summary.bad_count > len(summary.bad):
        print(f"and {summary.bad_count - len(summary.bad)} more bad rows", file=sys.stderr)
    missed = f", {summary.missed_before} without a result" if summary.missed_before else ""
    before = f" (and {summary.before} done before{missed})" if summary.before else ""
    print(
        f"{summary.rows} rows: {summary.solved} calibrated,"
        f" {summary.rows - summary.solved - summary.bad_count} infeasible,"
        f" {summary.bad_count} bad{before}; written: {output}"
    )
    return summary.solved == summary.rows and not summary.missed_before
