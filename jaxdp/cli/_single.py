"""`jaxdp epsilon` and `jaxdp delta`, and `jaxdp calibrate` for one target: one run, bracketed."""

import dataclasses
import math
from typing import Any

import calibrate
import jaxdp
from jaxdp.cli import _display, _setting
from jaxdp.cli._display import round_down, round_up

_SMALL = 1e-290  # below, delta is asked for in logarithms


def epsilon(
    delta: _setting.DeltaOption,
    sigma: _setting.SigmaOption = None,
    scale: _setting.ScaleOption = None,
    mechanism: _setting.MechanismOption = _setting.Mechanism.GAUSSIAN,
    sampling_probability: _setting.SamplingOption = 1.0,
    num_steps: _setting.StepsOption = 1,
    sensitivity: _setting.SensitivityOption = 1.0,
    direction: _setting.DirectionOption = _setting.Direction.BOTH,
    records: _setting.RecordsOption = None,
    batch: _setting.BatchOption = None,
    epochs: _setting.EpochsOption = None,
    scheme: _setting.SchemeOption = "poisson",
    neighbours: _setting.NeighboursOption = "add-or-remove",
    max_batch: _setting.MaxBatchOption = None,
    min_separation: _setting.SeparationOption = None,
    plot: _setting.PlotOption = None,
    as_json: _setting.JsonOption = False,
) -> None:
    """Certified bounds on epsilon at a given delta: at most the first, at least the second.

    Example: jaxdp epsilon --sigma 1.1 --sampling-probability 0.01 --num-steps 1000 --delta 1e-5

    Example: jaxdp epsilon --sigma 1.1 --records 60000 --batch 256 --epochs 10 --delta 1e-5
    """
    training = _setting.Training(
        records, batch, epochs, scheme, neighbours, max_batch, min_separation
    )
    with _display.refusing_bad_input():
        _setting.check_delta(delta)
        _setting.check_plot(plot)
        noise = _setting.noise_of(mechanism, sigma, scale)
        run = _setting.setting(mechanism, sampling_probability, num_steps, sensitivity, training)
        low, high = run.bracket(
            noise, lambda m: jaxdp.epsilon_bounds(m, delta, direction=direction.value)
        )
        if plot is not None:
            _setting.draw_profile(run.build(noise), plot)
    if as_json:
        asked = {run.noise_name: noise, "direction": direction.value, "delta": delta}
        answer = {"epsilon": float(high), "epsilon_lower": float(low)}
        _display.print_json(run.shown | asked | answer | _setting.versions())
        return
    print(f"epsilon <= {round_up(float(high))}")
    print(f"epsilon >= {round_down(float(low))}")


def delta(
    epsilon: _setting.EpsilonOption,
    sigma: _setting.SigmaOption = None,
    scale: _setting.ScaleOption = None,
    mechanism: _setting.MechanismOption = _setting.Mechanism.GAUSSIAN,
    sampling_probability: _setting.SamplingOption = 1.0,
    num_steps: _setting.StepsOption = 1,
    sensitivity: _setting.SensitivityOption = 1.0,
    direction: _setting.DirectionOption = _setting.Direction.BOTH,
    records: _setting.RecordsOption = None,
    batch: _setting.BatchOption = None,
    epochs: _setting.EpochsOption = None,
    scheme: _setting.SchemeOption = "poisson",
    neighbours: _setting.NeighboursOption = "add-or-remove",
    max_batch: _setting.MaxBatchOption = None,
    min_separation: _setting.SeparationOption = None,
    plot: _setting.PlotOption = None,
    as_json: _setting.JsonOption = False,
) -> None:
    """Certified bounds on delta, and on its logarithm, at a given epsilon.

    Example: jaxdp delta --sigma 1.1 --sampling-probability 0.01 --num-steps 1000 --epsilon 2

    Example: jaxdp delta --sigma 1.1 --records 60000 --batch 256 --epochs 10 --epsilon 2
    """
    training = _setting.Training(
        records, batch, epochs, scheme, neighbours, max_batch, min_separation
    )
    with _display.refusing_bad_input():
        _setting.check_epsilon(epsilon)
        _setting.check_plot(plot)
        noise = _setting.noise_of(mechanism, sigma, scale)
        run = _setting.setting(mechanism, sampling_probability, num_steps, sensitivity, training)
        m = run.build(noise)
        low, high = run.bracket(
            noise, lambda m: jaxdp.delta_bounds(m, epsilon, direction=direction.value)
        )
        log_delta = math.log(high) if high > _SMALL else _log_delta(m, epsilon, direction)
        log10 = log_delta / math.log(10.0)
        log10 = math.nextafter(math.nextafter(log10, math.inf), math.inf)  # covers the division
        if plot is not None:
            _setting.draw_profile(m, plot)
    if as_json:
        asked = {run.noise_name: noise, "direction": direction.value, "epsilon": epsilon}
        answer = {"delta": float(high), "delta_lower": float(low), "log10_delta": log10}
        _display.print_json(run.shown | asked | answer | _setting.versions())
        return
    print(f"delta <= {round_up(float(high))} (log10: {round_up(log10)})")
    print(f"delta >= {round_down(float(low))}")


def _log_delta(m: jaxdp.Mechanism, epsilon: float, direction: _setting.Direction) -> float:
    return float(jaxdp.log_delta(m, epsilon, direction=direction.value))


@dataclasses.dataclass(frozen=True)
class Calibrated:
    """The noise of one run.

    Attributes:
      noise_name: "sigma" or "scale".
      noise: the least that meets the target; nan if none does.
      certified_delta: at the target's epsilon.
      epsilon: (low, high) at the target's delta.
      solved: whether it meets the target with equality.
      message: what was found.
    """

    noise_name: str
    noise: float
    certified_delta: float
    epsilon: tuple[float, float]
    solved: bool
    message: str

    def shown(self) -> dict[str, Any]:
        """For machines."""
        return {
            self.noise_name: self.noise,
            "certified_delta": self.certified_delta,
            "certified_epsilon": self.epsilon[1],
            "epsilon_lower": self.epsilon[0],
            "status": self.message,
        }


def calibrated(
    run: _setting.Setting, epsilon: float, delta: float, direction: Any, method: Any
) -> Calibrated:
    """The least noise for which the run meets the target."""
    found = calibrate.solve(
        run.build, epsilon=epsilon, delta=delta, direction=direction, method=method
    )
    noise = float(found.value)
    low, high = math.nan, math.nan
    if not math.isnan(noise):
        m = run.build(noise)

        def bounds(of: jaxdp.Mechanism) -> tuple[Any, Any]:
            by = method if of == m else None  # the method was chosen for the run
            return jaxdp.epsilon_bounds(of, delta, direction=direction, method=by)

        low, high = map(float, run.bracket(noise, bounds))
    solved = calibrate.Status(int(found.status)) == calibrate.Status.SOLVED
    return Calibrated(run.noise_name, noise, float(found.delta), (low, high), solved, found.message)
