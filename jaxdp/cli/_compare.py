"""`jaxdp compare`: the ways of drawing batches, side by side."""

import math
import pathlib
from typing import Annotated

import jax
import typer

import calibrate
from jaxdp.cli import _display, _setting
from jaxdp.cli._display import InputError, round_down, round_up

RecordsOption = Annotated[
    int, typer.Option("--records", "--num-examples", min=1, help="Records n in the data.")
]
BatchOption = Annotated[
    int,
    typer.Option("--batch", "--batch-size", min=1, help="Batch size B <= n, expected or exact."),
]
EpochsOption = Annotated[int, typer.Option(min=1, help="Epochs.")]
SchemeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--scheme",
        help=f"One of {', '.join(calibrate.SCHEMES)}, or another scheme with its neighbours; may be"
        " repeated.",
    ),
]
SeparationOption = Annotated[
    int, typer.Option(min=1, help='b of "cyclic poisson" and "b-min-sep".')
]
PlotOption = Annotated[
    pathlib.Path | None,
    typer.Option(help="Also draw the noise that each takes (.png, .svg, .pdf)."),
]


def compare(
    records: RecordsOption,
    batch: BatchOption,
    epochs: EpochsOption,
    epsilon: Annotated[float, typer.Option(help="Target epsilon, > 0.")],
    delta: Annotated[float, typer.Option(help="Target delta in (0, 1).")],
    scheme: SchemeOption = None,
    min_separation: SeparationOption = 4,
    plot: PlotOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, all digits.")] = False,
) -> None:
    """The noise multiplier of DP-SGD for each way of drawing batches, and what is proved of it.

    Epsilons for different neighbours (a record added or removed, or exchanged) do not compare.

    Example: jaxdp compare --records 60000 --batch 256 --epochs 10 --epsilon 2 --delta 1e-5
    """
    try:
        _setting.check_plot(plot)
        schemes = tuple(scheme) if scheme else None
        with _display.saying_what_takes_long():
            found = _found(records, batch, epochs, epsilon, delta, schemes, min_separation)
        if plot is not None:
            _draw(found, plot)
    except InputError as error:
        _display.print_error(str(error))
        raise typer.Exit(2) from None
    if as_json:
        asked = {"num_examples": records, "batch_size": batch, "epochs": epochs}
        _print_json(asked | {"min_separation": min_separation}, found)
        return
    columns = [("scheme", "left"), ("neighbours", "left"), ("steps", "right"), ("sigma", "right")]
    columns += [("sigma / batch", "right"), ("epsilon", "left"), ("guarantee", "left")]
    rows = [
        (
            s.name,
            s.neighbours,
            str(s.num_steps),
            round_up(s.sigma, 5),
            round_up(s.noise, 4),
            f"{round_down(s.epsilon[0], 4)} to {round_up(s.epsilon[1], 5)}",
            s.guarantee,
        )
        for s in found
    ]
    _display.print_table(_display.stdout(), columns, rows, [""] * len(rows))
    if plot is not None:
        print(f"written: {plot}")


def _found(
    records: int,
    batch: int,
    epochs: int,
    epsilon: float,
    delta: float,
    schemes: tuple[str, ...] | None,
    min_separation: int,
) -> calibrate.Comparison:
    if not 0.0 < epsilon < math.inf:
        raise InputError(f"--epsilon must be finite and > 0, got {epsilon:g}")
    if not 0.0 < delta < 1.0:
        raise InputError(f"--delta must be in (0, 1), got {delta:g}")
    if batch > records:
        raise InputError(f"--batch must be at most --records, got {batch} > {records}")
    try:
        return calibrate.compare_samplers(
            num_examples=records,
            batch_size=batch,
            epochs=epochs,
            epsilon=epsilon,
            delta=delta,
            schemes=schemes,
            min_separation=min_separation,
        )
    except ValueError as error:
        raise InputError(str(error).replace("schemes", "--scheme")) from None


def _draw(found: calibrate.Comparison, path: pathlib.Path) -> None:
    try:
        from jaxdp import plot
    except ImportError as error:
        raise InputError(str(error)) from None
    with jax.enable_x64(True):
        plot.samplers(found).figure.savefig(path)


def _print_json(asked: dict[str, int], found: calibrate.Comparison) -> None:
    target = dict(zip(("epsilon", "delta"), found.target, strict=True))
    samplers = [
        {
            "scheme": s.name,
            "neighbours": s.neighbours,
            "num_steps": s.num_steps,
            "sigma": s.sigma,
            "noise": s.noise,
            "epsilon_low": s.epsilon[0],
            "epsilon_high": s.epsilon[1],
            "guarantee": s.guarantee,
        }
        for s in found
    ]
    _display.print_json(asked | target | {"samplers": samplers} | _setting.versions())
