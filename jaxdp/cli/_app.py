"""The commands."""

import enum
import math
import pathlib
import sys
from typing import Annotated

import rich.console
import rich.progress
import typer

import jaxdp
from jaxdp.cli import (
    _audit,
    _audit_view,
    _cache,
    _compare,
    _display,
    _report,
    _setting,
    _single,
    _table,
    _targets,
    _targets_view,
)
from jaxdp.cli._display import InputError, round_down, round_up


class MethodName(enum.StrEnum):
    """How compositions without a closed form are bounded."""

    RENYI = "renyi"
    NUMERICAL = "numerical"


class Scheme(enum.StrEnum):
    """How records are chosen for batches."""

    POISSON = "poisson"
    RANDOM_ALLOCATION = "random allocation"


OptionalEpsilonOption = Annotated[float | None, typer.Option(help="Target epsilon, >= 0.")]
OptionalDeltaOption = Annotated[
    float | None, typer.Option(help="Target delta in [0, 1); 0 asks for pure DP.")
]
MethodOption = Annotated[
    MethodName,
    typer.Option(help="Bound on compositions without a closed form; numerical needs less noise."),
]
app = typer.Typer(
    name="jaxdp",
    help="Certified differential-privacy accounting: every number shown is a valid bound.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,
)


def _version(show: bool) -> None:
    if show:
        print(f"jaxdp {jaxdp.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
    no_cache: Annotated[
        bool,
        typer.Option(
            "--no-cache",
            help="Before the command: neither use nor keep compiled programs"
            f" (in {_cache.folder()}, at most {_cache.MOST_BYTES >> 20} MB).",
        ),
    ] = False,
) -> None:
    """Certified differential-privacy accounting: every number shown is a valid bound."""
    if not no_cache:
        context.with_resource(_cache.kept_programs())


_refusing_bad_input = _display.refusing_bad_input
app.command()(_single.epsilon)
app.command()(_single.delta)


@app.command()
def calibrate(
    targets: Annotated[
        pathlib.Path | None,
        typer.Argument(metavar="[TARGETS]", help="Table, .csv or .parquet, one target per row."),
    ] = None,
    epsilon: OptionalEpsilonOption = None,
    delta: OptionalDeltaOption = None,
    mechanism: _setting.MechanismOption = _setting.Mechanism.GAUSSIAN,
    sampling_probability: _setting.SamplingOption = 1.0,
    num_steps: _setting.StepsOption = 1,
    sensitivity: _setting.SensitivityOption = 1.0,
    direction: _setting.DirectionOption = _setting.Direction.BOTH,
    method: MethodOption = MethodName.NUMERICAL,
    records: _setting.RecordsOption = None,
    batch: _setting.BatchOption = None,
    epochs: _setting.EpochsOption = None,
    scheme: _setting.SchemeOption = "poisson",
    neighbours: _setting.NeighboursOption = "add-or-remove",
    max_batch: _setting.MaxBatchOption = None,
    min_separation: _setting.SeparationOption = None,
    plot: _setting.PlotOption = None,
    as_json: _setting.JsonOption = False,
    output: _targets_view.OutputOption = None,
    resume: _targets_view.ResumeOption = False,
    processes: _targets_view.ProcessesOption = 1,
    process_id: _targets_view.ProcessIdOption = 0,
    coordinator: _targets_view.CoordinatorOption = None,
) -> None:
    """The least noise (sigma, or the Laplace scale) that is certified to meet epsilon and delta.

    For one target, given by options: exits with code 1 where there is none.

    Example: jaxdp calibrate --sampling-probability 0.01 --num-steps 1000 --epsilon 1 --delta 1e-5

    For a table of TARGETS, of any length. Columns: epsilon, delta, sampling_probability (or
    num_examples and batch_size), num_steps, sensitivity; the options stand in for columns that
    are missing, further columns are carried to the output (but one named like a result is replaced
    by it). Batches are Poisson samples, or, with
    --scheme "random allocation", T steps count as ceil(T/t) epochs of t = round(1/q) steps, each
    record in one of them. The output, a .csv or .jsonl file or a
    .parquet folder of parts, has the row's number, all its settings, sigma (or scale),
    certified_delta, status: solved, infeasible, slack, or what is wrong with the row; and as the
    reason of an infeasible one which direction misses the target, and by how much. Rows are written
    as they finish; after an interruption the same command with --resume goes on where it stopped.
    Exits with code 1 if some row has no result.

    Example: jaxdp calibrate targets.csv --output noise.csv
    """
    training = _setting.Training(
        records, batch, epochs, scheme, neighbours, max_batch, min_separation
    )
    with _refusing_bad_input():
        if epsilon is not None:
            _setting.check_epsilon(epsilon)
        if delta is not None:
            _setting.check_delta(delta)
        _setting.check_plot(plot)
        of_table = targets is not None
        run = _setting.setting(
            mechanism, sampling_probability, num_steps, sensitivity, training, of_table
        )
        if targets is not None:
            if training.given or plot is not None:
                raise InputError("--records and --plot are for one target: a table has columns")
            if as_json:
                raise InputError("--json is for one target: a table's --output may end in .jsonl")
            defaults = {k: v for k, v in run.shown.items() if k != "mechanism"}
            job = _targets.Job(
                mechanism == _setting.Mechanism.LAPLACE,
                direction.value,
                method == MethodName.NUMERICAL,
                {"epsilon": epsilon, "delta": delta} | defaults,
                training.scheme == _targets.ALLOCATION,
            )
            processes_of = _targets_view.Processes(processes, process_id, coordinator)
            complete = _targets_view.run(job, targets, output, resume, processes_of)
            raise typer.Exit(0 if complete else 1)
        if epsilon is None or delta is None:
            raise InputError("calibrate needs --epsilon and --delta, or a table of TARGETS")
        if output is not None or resume or processes != 1 or coordinator is not None:
            raise InputError("--output, --resume and --processes need a table of TARGETS")
        bound = None if method == MethodName.NUMERICAL else jaxdp.Renyi()
        found = _single.calibrated(run, epsilon, delta, direction.value, bound)
        if plot is not None and found.solved:
            _setting.draw_profile(run.build(found.noise), plot)
    if as_json:
        asked = {"direction": direction.value, "epsilon": epsilon, "delta": delta}
        _display.print_json(run.shown | asked | found.shown() | _setting.versions())
    elif not math.isnan(found.noise):
        print(f"{run.noise_name} = {round_up(found.noise)}")
        print(f"epsilon <= {round_up(found.epsilon[1])}")
        print(f"epsilon >= {round_down(found.epsilon[0])}")
    if not found.solved:
        print(found.message, file=sys.stderr)
    if math.isnan(found.noise):
        raise typer.Exit(1)


@app.command()
def audit(
    file: Annotated[
        pathlib.Path, typer.Argument(metavar="FILE", help="CSV table, one training run per row.")
    ],
    output: Annotated[
        pathlib.Path | None,
        typer.Option(help="Also write the table, with all digits, as .csv, .parquet or .json."),
    ] = None,
    direction: _setting.DirectionOption = _setting.Direction.BOTH,
    scheme: Annotated[
        Scheme,
        typer.Option(
            help="Batches by Poisson sampling, or by random allocation (balls and bins): what"
            " epsilon would be if each record joined one of round(1/q) steps in every epoch."
        ),
    ] = Scheme.POISSON,
) -> None:
    """Set certified epsilons beside the reported ones, for every DP-SGD run in a table.

    Columns: sigma, num_steps, delta, reported_epsilon, and num_examples with batch_size or else
    sampling_probability; name labels the rows, further columns are carried to the output. Also
    shown: the sigma that would just meet the reported epsilon. A run "holds" if its reported
    epsilon is at least the certified one, an upper bound that may itself exceed the least
    possible epsilon: "not confirmed" is no refutation. With random allocation, T steps are
    counted as ceil(T/t) epochs of t = round(1/q) steps, at least floor(T/t).
    """
    with _refusing_bad_input():
        if output is not None:
            _table.check_output(output)
        runs = _table.read_runs(file)
        progress = rich.progress.Progress(
            *rich.progress.Progress.get_default_columns(),
            rich.progress.MofNCompleteColumn(),
            console=rich.console.Console(stderr=True),
            disable=len(runs) <= _audit.LONG,
        )
        with progress:
            task = progress.add_task("runs", total=len(runs))
            allocated = scheme == Scheme.RANDOM_ALLOCATION
            run = _audit.audit_allocation if allocated else _audit.audit
            result = run(runs, direction.value, lambda rows: progress.advance(task, rows))
        if output is not None:
            _table.write_table(result.table(runs), output)
    if isinstance(result, _audit.AllocationAudit):
        _audit_view.show_allocation(runs, result)
    else:
        _audit_view.show(runs, result)
    if output is not None:
        print(f"written: {output}")


app.command()(_compare.compare)
app.command("report")(_report.command)
