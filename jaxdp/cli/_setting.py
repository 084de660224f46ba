"""What `epsilon`, `delta` and `calibrate` are asked about: steps, or a training in users' words."""

import dataclasses
import enum
import math
import pathlib
from collections.abc import Callable
from typing import Annotated, Any

import jax
import typer

import jaxdp
from jaxdp import _attained, _builders
from jaxdp.cli._display import InputError

PLOT_SUFFIXES = (".png", ".svg", ".pdf")


class Mechanism(enum.StrEnum):
    """The noise of one step."""

    GAUSSIAN = "gaussian"
    LAPLACE = "laplace"


class Direction(enum.StrEnum):
    """Which neighbour is the one with the record."""

    BOTH = "both"
    ADD = "add"
    REMOVE = "remove"


EpsilonOption = Annotated[float, typer.Option(help="Epsilon, >= 0.")]
DeltaOption = Annotated[float, typer.Option(help="Delta in [0, 1); 0 asks for pure DP.")]
MechanismOption = Annotated[Mechanism, typer.Option(help="Noise of one step.")]
SigmaOption = Annotated[
    float | None,
    typer.Option(help="Standard deviation of Gaussian noise (the noise multiplier, for DP-SGD)."),
]
ScaleOption = Annotated[float | None, typer.Option(help="Scale of Laplace noise.")]
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
PlotOption = Annotated[
    pathlib.Path | None,
    typer.Option(help="Also draw delta against epsilon (.png, .svg, .pdf)."),
]
_PANEL = "A training of DP-SGD, in place of the probability and the number of steps"


def _of_a_training(*names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=_PANEL, **settings)


_SCHEME = _of_a_training("--scheme", "--batches", help="How batches are drawn.")
_NEIGHBOURS = _of_a_training(
    help="One record added or removed, exchanged for another, or for one without a gradient."
)
RecordsOption = Annotated[
    int | None,
    _of_a_training("--records", "--num-examples", min=1, help="Records n in the data."),
]
BatchOption = Annotated[
    float | None,
    _of_a_training("--batch", "--batch-size", help="Batch size B <= n, expected or exact."),
]
EpochsOption = Annotated[
    float | None, _of_a_training(help="Epochs, > 0; whole ones but for Poisson batches.")
]
SchemeOption = Annotated[_builders.Batches, _SCHEME]
OptionalSchemeOption = Annotated[_builders.Batches | None, _SCHEME]
NeighboursOption = Annotated[_builders.Neighbours, _NEIGHBOURS]
OptionalNeighboursOption = Annotated[_builders.Neighbours | None, _NEIGHBOURS]
MaxBatchOption = Annotated[
    int | None,
    _of_a_training(min=1, help="Room of truncated Poisson batches, B + 4 sqrt(B) if not given."),
]
SeparationOption = Annotated[
    int | None,
    _of_a_training(min=1, help='b of "cyclic poisson" and "b-min-sep" batches, 4 if not given.'),
]


TABLE_SCHEMES = "poisson", "random allocation"  # of calibrations of a table


@dataclasses.dataclass(frozen=True)
class Training:
    """The options of a training, as given."""

    records: int | None
    batch: float | None
    epochs: float | None
    scheme: str
    neighbours: str
    max_batch: int | None
    min_separation: int | None

    @property
    def given(self) -> bool:
        """Whether any of them is."""
        return (self.records, self.batch, self.epochs) != (None, None, None)


@dataclasses.dataclass(frozen=True)
class Setting:
    """A run but for its noise.

    Attributes:
      noise_name: "sigma" or "scale".
      build: the run with some noise.
      attained: what it is known to attain with that noise, for bounds from below.
      shown: as printed.
    """

    noise_name: str
    build: Callable[[Any], jaxdp.Mechanism]
    attained: Callable[[Any], jaxdp.Mechanism]
    shown: dict[str, Any]

    def bracket(
        self, noise: Any, bounds: Callable[[jaxdp.Mechanism], tuple[Any, Any]]
    ) -> tuple[Any, Any]:
        """Bounds (low, high) of the run with some noise."""
        return _attained.bracket(bounds, self.build(noise), self.attained(noise))


def setting(
    mechanism: Mechanism,
    sampling_probability: float,
    num_steps: int,
    sensitivity: float,
    training: Training,
    of_table: bool = False,
) -> Setting:
    """The run that the options describe, or, of a table, what its rows have in common."""
    if not training.given:
        _refuse_without_records(training, TABLE_SCHEMES if of_table else ("poisson",))
        return _of_steps(mechanism, sampling_probability, num_steps, sensitivity)
    if None in (training.records, training.batch, training.epochs):
        raise InputError("a training needs --records, --batch and --epochs")
    if (sampling_probability, num_steps) != (1.0, 1):
        raise InputError(
            "--records, --batch and --epochs say what --sampling-probability and "
            "--num-steps would: give one or the other"
        )
    if mechanism != Mechanism.GAUSSIAN or sensitivity != 1.0:
        raise InputError("--records: the noise of a training is Gaussian, of sensitivity 1")
    return _of_training(training)


def _refuse_without_records(training: Training, schemes: tuple[str, ...]) -> None:
    given = training.neighbours, training.max_batch, training.min_separation
    if training.scheme not in schemes or given != ("add-or-remove", None, None):
        if len(schemes) > 1:
            raise InputError(
                f"a table of targets has no --neighbours, --max-batch or --min-separation, and as"
                f" --scheme one of {', '.join(schemes)}; got {training.scheme}"
            )
        raise InputError(
            "--scheme, --neighbours, --max-batch and --min-separation need --records, --batch and "
            "--epochs"
        )


def _of_steps(
    mechanism: Mechanism, sampling_probability: float, num_steps: int, sensitivity: float
) -> Setting:
    require(
        "--sampling-probability",
        sampling_probability,
        0.0 < sampling_probability <= 1.0,
        "in (0, 1]",
    )
    positive("--sensitivity", sensitivity)
    gaussian = mechanism == Mechanism.GAUSSIAN

    def build(noise: Any) -> jaxdp.Mechanism:
        kind = jaxdp.Gaussian if gaussian else jaxdp.Laplace
        built: jaxdp.Mechanism = kind(noise, sensitivity)
        # no needless combinators: the plain mechanisms have exact curves
        if sampling_probability < 1.0:
            built = jaxdp.PoissonSampled(built, sampling_probability)
        return jaxdp.Repeated(built, num_steps) if num_steps > 1 else built

    shown = {
        "mechanism": mechanism.value,
        "sensitivity": sensitivity,
        "sampling_probability": sampling_probability,
        "num_steps": num_steps,
    }
    return Setting("sigma" if gaussian else "scale", build, build, shown)


def _of_training(given: Training) -> Setting:
    try:
        run = _builders.training(
            given.records,
            given.batch,
            given.epochs,
            given.scheme,
            given.neighbours,
            given.max_batch,
            given.min_separation,
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    shown = {
        "mechanism": "gaussian",
        "num_examples": run.num_examples,
        "batch_size": run.batch_size,
        "epochs": run.epochs,
        "batches": run.batches,
        "neighbours": run.neighbours,
        "num_steps": run.num_steps,
        "guarantee": run.guarantee,
    }
    return Setting("sigma", run.mechanism, run.attained, shown)


def noise_of(mechanism: Mechanism, sigma: float | None, scale: float | None) -> float:
    """The one noise parameter that the mechanism takes, checked."""
    options = {Mechanism.GAUSSIAN: ("--sigma", sigma), Mechanism.LAPLACE: ("--scale", scale)}
    option, value = options.pop(mechanism)
    ((other, unused),) = options.values()
    if unused is not None:
        raise InputError(f"--mechanism {mechanism} takes {option}, not {other}")
    if value is None:
        raise InputError(f"--mechanism {mechanism} needs {option}")
    positive(option, value)
    return value


def require(option: str, value: float, holds: bool, condition: str) -> None:
    """Refuse an option's value, unless its condition holds."""
    if not holds:
        raise InputError(f"{option} must be {condition}, got {value:g}")


def positive(option: str, value: float) -> None:
    """Refuse what is not finite and positive."""
    require(option, value, 0.0 < value < math.inf, "finite and > 0")


def check_delta(delta: float) -> None:
    """Refuse what is no delta."""
    require("--delta", delta, 0.0 <= delta < 1.0, "in [0, 1)")


def check_epsilon(epsilon: float) -> None:
    """Refuse what is no epsilon."""
    require("--epsilon", epsilon, 0.0 <= epsilon < math.inf, "finite and >= 0")


def check_plot(path: pathlib.Path | None) -> None:
    """Refuse a picture of another format, or in no folder, before anything is computed."""
    if path is not None and path.suffix not in PLOT_SUFFIXES:
        raise InputError(f"--plot must end in one of {', '.join(PLOT_SUFFIXES)}, got {path.name}")
    if path is not None and not path.absolute().parent.is_dir():
        raise InputError(f"{path}: there is no folder {path.parent}")


def draw_profile(m: jaxdp.Mechanism, path: pathlib.Path) -> None:
    """Delta against epsilon, as a file."""
    try:
        from jaxdp import plot
    except ImportError as error:
        raise InputError(str(error)) from None
    plot.profile(m).figure.savefig(path)


def versions() -> dict[str, str]:
    """What computed the numbers."""
    return {"jaxdp": jaxdp.__version__, "jax": jax.__version__}
