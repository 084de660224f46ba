"""The commands."""

import enum
import math
import pathlib
import sys
from collections.abc import Callable
from typing import Annotated, Any

import rich.console
import rich.progress
import typer

import calibrate as _calibrate
import jaxdp
from jaxdp.cli import (
    _audit,
    _audit_view,
    _cache,
    _compare,
    _display,
    _report,
    _table,
    _targets,
    _targets_view,
)
from jaxdp.cli._display import InputError, round_up


class Mechanism(enum.StrEnum):
    """The noise of one step."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"


class Direction(enum.StrEnum):
    """Which neighbour is the one with the record."""

    BOTH = "both"
    ADD = "add"
    REMOVE = "remove"


class MethodName(enum.StrEnum):
    """How compositions without a closed form are bounded."""

    RENYI = "renyi"
    NUMERICAL = "numerical"


class Scheme(enum.StrEnum):
    """How records are chosen for batches."""

    POISSON = "poisson"
    ALLOCATION = "allocation"


MechanismOption = Annotated[Mechanism, typer.Option(help="Noise of one step.")]
SigmaOption = Annotated[
    float | None,
    typer.Option(help="Standard deviation of Gaussian noise (the noise multiplier, for DP-SGD)."),
]
ScaleOption = Annotated[float | None, typer.Option(help="Scale of Laplace noise.")]
EpsilonOption = Annotated[float, typer.Option(help="Epsilon, >= 0.")]
DeltaOption = Annotated[float, typer.Option(help="Delta in [0, 1); 0 asks for pure DP.")]
OptionalEpsilonOption = Annotated[float | None, typer.Option(help="Target epsilon, >= 0.")]
OptionalDeltaOption = Annotated[
    float | None, typer.Option(help="Target delta in [0, 1); 0 asks for pure DP.")
]
MethodOption = Annotated[
    MethodName,
    typer.Option(help="Bound on compositions without a closed form; numerical needs less noise."),
]
SamplingOption = Annotated[
    float,
    typer.Option(help="Probability in (0, 1] with which a record joins each step (Poisson)."),
]
StepsOption = Annotated[int, typer.Option(min=1, help="Number of steps.")]
SensitivityOption = Annotated[float, typer.Option(help="Sensitivity of one step, > 0.")]
DirectionOption = Annotated[
    Direction, typer.Option(help="Adding a record, removing one, or the worse of both.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON object, all digits.")]

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
app.command("report")(_report.command)


def _require(option: str, value: float, holds: bool, condition: str) -> None:
    if not holds:
        raise InputError(f"{option} must be {condition}, got {value:g}")


def _positive(option: str, value: float) -> None:
    _require(option, value, 0.0 < value < math.inf, "finite and > 0")


def _noise(mechanism: Mechanism, sigma: float | None, scale: float | None) -> float:
    """The one noise parameter that the mechanism takes, checked."""
    options = {Mechanism.GAUSSIAN: ("--sigma", sigma), Mechanism.LAPLACE: ("--scale", scale)}
    option, value = options.pop(mechanism)
    ((other, unused),) = options.values()
    if unused is not None:
        raise InputError(f"--mechanism {mechanism} takes {option}, not {other}")
    if value is None:
        raise InputError(f"--mechanism {mechanism} needs {option}")
    _positive(option, value)
    return value


def _builder(
    mechanism: Mechanism, sampling_probability: float, num_steps: int, sensitivity: float
) -> tuple[Callable[..., jaxdp.Mechanism], dict[str, Any]]:
    """How to build the setting from its noise; and the setting, as printed."""
    _require(
        "--sampling-probability",
        sampling_probability,
        0.0 < sampling_probability <= 1.0,
        "in (0, 1]",
    )
    _positive("--sensitivity", sensitivity)

    def build(noise):
        kind = jaxdp.Gaussian if mechanism == Mechanism.GAUSSIAN else jaxdp.Laplace
        built: jaxdp.Mechanism = kind(noise, sensitivity)
        # no needless combinators: the plain mechanisms have exact curves
        if sampling_probability < 1.0:
            built = jaxdp.PoissonSampled(built, sampling_probability)
        return jaxdp.Repeated(built, num_steps) if num_steps > 1 else built

    return build, {
        "mechanism": mechanism.value,
        "sensitivity": sensitivity,
        "sampling_probability": sampling_probability,
        "num_steps": num_steps,
    }


def _check_delta(delta: float) -> None:
    _require("--delta", delta, 0.0 <= delta < 1.0, "in [0, 1)")


def _check_epsilon(epsilon: float) -> None:
    _require("--epsilon", epsilon, 0.0 <= epsilon < math.inf, "finite and >= 0")


@app.command()
def epsilon(
    delta: DeltaOption,
    sigma: SigmaOption = None,
    scale: ScaleOption = None,
    mechanism: MechanismOption = Mechanism.GAUSSIAN,
    sampling_probability: SamplingOption = 1.0,
    num_steps: StepsOption = 1,
    sensitivity: SensitivityOption = 1.0,
    direction: DirectionOption = Direction.BOTH,
    as_json: JsonOption = False,
) -> None:
    """Certified upper bound on epsilon at a given delta.

    Example: jaxdp epsilon --sigma 1.1 --sampling-probability 0.01 --num-steps 1000 --delta 1e-5
    """
    with _refusing_bad_input():
        _check_delta(delta)
        noise = _noise(mechanism, sigma, scale)
        build, setting = _builder(mechanism, sampling_probability, num_steps, sensitivity)
        value = float(jaxdp.epsilon(build(noise), delta, direction=direction.value))
    if as_json:
        noise_name = "sigma" if mechanism == Mechanism.GAUSSIAN else "scale"
        _display.print_json(
            setting
            | {noise_name: noise, "direction": direction.value, "delta": delta, "epsilon": value}
        )
    else:
        print(f"epsilon <= {round_up(value)}")


@app.command()
def delta(
    epsilon: EpsilonOption,
    sigma: SigmaOption = None,
    scale: ScaleOption = None,
    mechanism: MechanismOption = Mechanism.GAUSSIAN,
    sampling_probability: SamplingOption = 1.0,
    num_steps: StepsOption = 1,
    sensitivity: SensitivityOption = 1.0,
    direction: DirectionOption = Direction.BOTH,
    as_json: JsonOption = False,
) -> None:
    """Certified upper bound on delta, and on its logarithm, at a given epsilon.

    Example: jaxdp delta --sigma 1.1 --sampling-probability 0.01 --num-steps 1000 --epsilon 2
    """
    with _refusing_bad_input():
        _check_epsilon(epsilon)
        noise = _noise(mechanism, sigma, scale)
        build, setting = _builder(mechanism, sampling_probability, num_steps, sensitivity)
        built = build(noise)
        value = float(jaxdp.delta(built, epsilon, direction=direction.value))
        log10 = float(jaxdp.log_delta(built, epsilon, direction=direction.value)) / math.log(10.0)
        log10 = math.nextafter(math.nextafter(log10, math.inf), math.inf)  # covers the division
    if as_json:
        noise_name = "sigma" if mechanism == Mechanism.GAUSSIAN else "scale"
        _display.print_json(
            setting
            | {noise_name: noise, "direction": direction.value, "epsilon": epsilon}
            | {"delta": value, "log10_delta": log10}
        )
    else:
        print(f"delta <= {round_up(value)} (log10: {round_up(log10)})")


@app.command()
def calibrate(
    targets: Annotated[
        pathlib.Path | None,
        typer.Argument(metavar="[TARGETS]", help="Table, .csv or .parquet, one target per row."),
    ] = None,
    epsilon: OptionalEpsilonOption = None,
    delta: OptionalDeltaOption = None,
    mechanism: MechanismOption = Mechanism.GAUSSIAN,
    sampling_probability: SamplingOption = 1.0,
    num_steps: StepsOption = 1,
    sensitivity: SensitivityOption = 1.0,
    direction: DirectionOption = Direction.BOTH,
    method: MethodOption = MethodName.NUMERICAL,
    as_json: JsonOption = False,
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
    are missing, further columns are carried to the output. The output, a .csv or .jsonl file or a
    .parquet folder of parts, has the row's number, all its settings, sigma (or scale),
    certified_delta, status: solved, infeasible, slack, or what is wrong with the row; and as the
    reason of an infeasible one which direction misses the target, and by how much. Rows are written
    as they finish; after an interruption the same command with --resume goes on where it stopped.
    Exits with code 1 if some row has no result.

    Example: jaxdp calibrate targets.csv --output noise.csv
    """
    with _refusing_bad_input():
        if epsilon is not None:
            _check_epsilon(epsilon)
        if delta is not None:
            _check_delta(delta)
        build, setting = _builder(mechanism, sampling_probability, num_steps, sensitivity)
        if targets is not None:
            defaults = {k: v for k, v in setting.items() if k != "mechanism"}
            job = _targets.Job(
                mechanism == Mechanism.LAPLACE,
                direction.value,
                method == MethodName.NUMERICAL,
                {"epsilon": epsilon, "delta": delta} | defaults,
            )
            processes_of = _targets_view.Processes(processes, process_id, coordinator)
            complete = _targets_view.run(job, targets, output, resume, processes_of)
            raise typer.Exit(0 if complete else 1)
        if epsilon is None or delta is None:
            raise InputError("calibrate needs --epsilon and --delta, or a table of TARGETS")
        if output is not None or resume or processes != 1 or coordinator is not None:
            raise InputError("--output, --resume and --processes need a table of TARGETS")
        composed = num_steps > 1 and (sampling_probability < 1.0 or mechanism == Mechanism.LAPLACE)
        bound = jaxdp.Numerical() if method == MethodName.NUMERICAL else jaxdp.Renyi()
        solution = _calibrate.solve(
            build,
            epsilon=epsilon,
            delta=delta,
            direction=direction.value,
            method=bound if composed else None,
        )
        value, achieved = float(solution.value), float(solution.delta)
        status = _calibrate.Status(int(solution.status))
    noise_name = "sigma" if mechanism == Mechanism.GAUSSIAN else "scale"
    if as_json:
        _display.print_json(
            setting
            | {"direction": direction.value, "epsilon": epsilon, "delta": delta}
            | {noise_name: value, "certified_delta": achieved, "status": solution.message}
        )
    elif not math.isnan(value):
        print(f"{noise_name} = {round_up(value)}")
    if status != _calibrate.Status.SOLVED:
        print(solution.message, file=sys.stderr)
    if math.isnan(value):
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
    direction: DirectionOption = Direction.BOTH,
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
    possible epsilon: "not confirmed" is no refutation. With --scheme allocation, T steps are
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
            allocated = scheme == Scheme.ALLOCATION
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
