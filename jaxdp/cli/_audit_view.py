"""What an audit shows on the terminal."""

import math
from typing import Any

import numpy as np

import calibrate
from jaxdp.cli import _audit, _display, _table
from jaxdp.cli._display import round_down, round_up


def show(runs: _table.Runs, result: _audit.Audit) -> None:
    """Print the table, noise and epsilon rounded up, and what follows from it."""
    verdicts = result.verdicts(runs)
    columns = [
        ("run", "left"),
        ("q", "right"),
        ("steps", "right"),
        ("sigma", "right"),
        ("delta", "right"),
        ("reported epsilon", "right"),
        ("Rényi epsilon", "right"),
        ("certified epsilon", "right"),
        ("and at least", "right"),
        ("sigma for reported", "right"),
        ("verdict", "left"),
    ]
    rows = [
        (
            label or str(index + 1),
            f"{q:.4g}",
            f"{steps:.0f}",
            f"{sigma:g}",
            f"{delta:g}",
            f"{reported:g}",
            round_up(renyi, 5),
            round_up(epsilon, 5),
            round_down(lower, 5),
            "none" if math.isnan(needed) else round_up(needed, 5),
            verdict,
        )
        for index, (
            label,
            q,
            steps,
            sigma,
            delta,
            reported,
            renyi,
            epsilon,
            lower,
            needed,
            verdict,
        ) in enumerate(
            zip(
                runs.labels,
                runs.sampling_probability.tolist(),
                runs.num_steps.tolist(),
                runs.sigma.tolist(),
                runs.delta.tolist(),
                runs.reported_epsilon.tolist(),
                result.renyi.tolist(),
                result.epsilon.tolist(),
                result.lower.tolist(),
                result.sigma.tolist(),
                verdicts.tolist(),
                strict=True,
            )
        )
    ]
    _print_with_verdicts(columns, rows, verdicts)
    for status in sorted(set(result.status.tolist()) - {calibrate.Status.SOLVED}):
        count = int((result.status == status).sum())
        print(f"sigma for reported, {count} rows: {calibrate.Status(status).message}")


def show_allocation(runs: _table.Runs, result: _audit.AllocationAudit) -> None:
    """Print the table for balls-and-bins batches, beside the epsilon for Poisson sampling."""
    verdicts = result.verdicts(runs)
    columns = [
        ("run", "left"),
        ("steps an epoch", "right"),
        ("epochs", "right"),
        ("sigma", "right"),
        ("delta", "right"),
        ("reported epsilon", "right"),
        ("Poisson epsilon", "right"),
        ("allocation epsilon", "right"),
        ("and at least", "right"),
        ("verdict", "left"),
    ]
    numbers = (
        result.steps_per_epoch,
        result.num_epochs,
        runs.sigma,
        runs.delta,
        runs.reported_epsilon,
        result.poisson,
        result.epsilon,
        result.lower,
    )
    rows = [
        (
            label or str(index + 1),
            f"{steps:.0f}",
            f"{epochs:.4g}",
            f"{sigma:g}",
            f"{delta:g}",
            f"{reported:g}",
            round_up(poisson, 5),
            round_up(epsilon, 5),
            round_down(lower, 5),
            verdict,
        )
        for index, (
            label,
            (steps, epochs, sigma, delta, reported, poisson, epsilon, lower),
            verdict,
        ) in enumerate(
            zip(runs.labels, np.stack(numbers, axis=1).tolist(), verdicts.tolist(), strict=True)
        )
    ]
    _print_with_verdicts(columns, rows, verdicts)


def _print_with_verdicts(columns: Any, rows: Any, verdicts: np.ndarray) -> None:
    styles = ["green" if verdict == _audit.HOLDS else "yellow" for verdict in verdicts]
    _display.print_table(_display.stdout(), columns, rows, styles)
    holding = int((verdicts == _audit.HOLDS).sum())
    print(
        f"{len(rows)} runs: the reported epsilon holds for {holding},"
        f" is not confirmed for {len(rows) - holding}."
    )
