"""`jaxdp calibrate TARGETS`: its options, its progress and its summary."""

import dataclasses
import pathlib
import sys
from typing import Annotated

import jax
import rich.console
import rich.progress
import typer

from jaxdp.cli import _stream, _targets
from jaxdp.cli._display import InputError

OutputOption = Annotated[
    pathlib.Path | None,
    typer.Option(help="Where results of TARGETS go: a .csv file, or a .parquet folder of parts."),
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
    progress = rich.progress.Progress(
        *rich.progress.Progress.get_default_columns(),
        rich.progress.MofNCompleteColumn(),
        console=rich.console.Console(stderr=True),
    )
    with progress:
        task = progress.add_task("targets", total=_stream.count_rows(path) // processes.count)
        summary = _targets.run(
            job,
            path,
            output,
            resume,
            lambda rows: progress.advance(task, rows),
            processes.index,
            processes.count,
        )
        progress.update(task, completed=progress.tasks[task].completed, total=None)
    for line in summary.bad:
        print(line, file=sys.stderr)
    if summary.bad_count > len(summary.bad):
        print(f"and {summary.bad_count - len(summary.bad)} more bad rows", file=sys.stderr)
    print(
        f"{summary.rows} rows: {summary.solved} calibrated,"
        f" {summary.rows - summary.solved - summary.bad_count} infeasible,"
        f" {summary.bad_count} bad; written: {output}"
    )
    return summary.solved == summary.rows
