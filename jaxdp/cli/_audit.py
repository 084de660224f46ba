"""The audit of a table of runs: one vectorised JAX call, in chunks for long tables."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
import pyarrow as pa

import calibrate
import jaxdp
from jaxdp.cli._table import Runs

LONG = 256  # a table of more rows shows its progress
_EXACT_CHUNK = 4096  # rows a call: closed forms are fast,
_SAMPLED_CHUNK = 128  # compositions of sampled steps take up to seconds a hundred rows
_ALLOCATED_CHUNK = 32  # of allocations, more
_FINE = jaxdp.Numerical(grid_size=65536)  # little noise makes ratios large, and their lattice wide

HOLDS = "holds"
NOT_CONFIRMED = "not confirmed"


def gaussian_steps(sigma: Any, num_steps: Any) -> jaxdp.Mechanism:
    """Full batches: exact, one Gaussian."""
    return jaxdp.Repeated(jaxdp.Gaussian(sigma), num_steps)


def one_sampled_step(sigma: Any, sampling_probability: Any) -> jaxdp.Mechanism:
    """One subsampled step: exact, without a composition."""
    return jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), sampling_probability)


def sampled_steps(sigma: Any, sampling_probability: Any, num_steps: Any) -> jaxdp.Mechanism:
    """DP-SGD: Poisson-subsampled Gaussian steps."""
    return jaxdp.Repeated(one_sampled_step(sigma, sampling_probability), num_steps)


def allocated_steps(sigma: Any, steps_per_epoch: Any, num_epochs: Any) -> jaxdp.Mechanism:
    """DP-SGD with each record in one batch of every epoch, chosen uniformly."""
    return jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), steps_per_epoch, 1, num_epochs)


@dataclasses.dataclass(frozen=True)
class Audit:
    """What an audit found, row by row."""

    lower: np.ndarray  # certified bounds on the least possible epsilon
    epsilon: np.ndarray
    renyi: np.ndarray  # the Rényi bound, for comparison with accountants of that kind
    sigma: np.ndarray  # nan where no sigma meets the reported epsilon
    status: np.ndarray  # of the calibration, calibrate.Status

    def verdicts(self, runs: Runs) -> np.ndarray:
        """Whether each reported epsilon is at least the certified one.

        A certified epsilon is an upper bound: one above the reported epsilon leaves that
        unconfirmed, and does not refute it.
        """
        return _verdicts(self.epsilon, runs)

    def table(self, runs: Runs) -> pa.Table:
        """The columns of the file, followed by the results (null where there is no sigma)."""
        results = {
            "certified_epsilon": pa.array(self.epsilon),
            "epsilon_lower_bound": pa.array(self.lower),
            "renyi_epsilon": pa.array(self.renyi),
            "sigma_for_reported_epsilon": pa.array(self.sigma, from_pandas=True),
            "verdict": pa.array(self.verdicts(runs).tolist()),
        }
        return _with_columns(runs, results)


def _verdicts(epsilon: np.ndarray, runs: Runs) -> np.ndarray:
    return np.where(epsilon <= runs.reported_epsilon, HOLDS, NOT_CONFIRMED)


def _with_columns(runs: Runs, results: dict[str, pa.Array]) -> pa.Table:
    """The columns of the file, followed by the results, which replace those of the same name."""
    kept = [name for name in runs.table.column_names if name not in results]
    table = runs.table.select(kept)
    for name, column in results.items():
        table = table.append_column(name, column)
    return table


@dataclasses.dataclass(frozen=True)
class AllocationAudit:
    """What the runs' epsilons would be with balls-and-bins batches, row by row."""

    steps_per_epoch: np.ndarray
    num_epochs: np.ndarray  # of all steps, not rounded
    poisson: np.ndarray  # certified for Poisson sampling, for comparison
    lower: np.ndarray
    epsilon: np.ndarray

    def verdicts(self, runs: Runs) -> np.ndarray:
        """Whether each reported epsilon is at least the certified one."""
        return _verdicts(self.epsilon, runs)

    def table(self, runs: Runs) -> pa.Table:
        """The columns of the file, followed by the results."""
        return _with_columns(
            runs,
            {
                "steps_per_epoch": pa.array(self.steps_per_epoch),
                "num_epochs": pa.array(self.num_epochs),
                "poisson_epsilon": pa.array(self.poisson),
                "allocation_epsilon": pa.array(self.epsilon),
                "allocation_epsilon_lower_bound": pa.array(self.lower),
                "verdict": pa.array(self.verdicts(runs).tolist()),
            },
        )


def audit_allocation(
    runs: Runs, direction: Any, advance: Callable[[int], Any] = lambda rows: None
) -> AllocationAudit:
    """Certified epsilon of each run, were its batches those of random allocation.

    t = round(1/q) steps make an epoch, in which each record joins exactly one step. Of T steps,
    T mod t may remain: releasing the others of that epoch too can only add to epsilon, so the
    upper bound is of ceil(T/t) whole epochs, and the lower bound of floor(T/t).

    Args:
      runs: the table.
      direction: "remove", "add" or "both".
      advance: told the number of rows done after each chunk.
    """
    steps = np.round(1.0 / runs.sampling_probability)
    epochs = runs.num_steps / steps
    poisson, lower, upper = np.zeros((3, len(runs)))
    for mask, size, build, args in _kinds(runs):
        for rows, padded in _chunks(np.flatnonzero(mask), size):
            with jax.enable_x64(True):
                m = build(runs.sigma[padded], *(arg[padded] for arg in args))
                found = jaxdp.epsilon_bounds(m, runs.delta[padded], direction=direction)[1]
            poisson[rows] = np.asarray(found)[: len(rows)]
    full = steps == 1.0  # the batch is the whole table: no choice
    for rows, padded in _chunks(np.flatnonzero(full), _EXACT_CHUNK):
        with jax.enable_x64(True):
            m = gaussian_steps(runs.sigma[padded], runs.num_steps[padded])
            found = jaxdp.epsilon_bounds(m, runs.delta[padded], direction=direction)
        lower[rows], upper[rows] = (np.asarray(x)[: len(rows)] for x in found)
        advance(len(rows))
    for rows, padded in _chunks(np.flatnonzero(~full), _ALLOCATED_CHUNK):
        count = len(rows)
        # Both numbers of epochs through one call.
        whole = np.concatenate([np.floor(epochs[padded]), np.ceil(epochs[padded])])
        sigma, t, delta = (np.tile(x[padded], 2) for x in (runs.sigma, steps, runs.delta))
        with jax.enable_x64(True):
            m = allocated_steps(sigma, t, np.maximum(whole, 1.0))
            found = jaxdp.epsilon_bounds(m, delta, direction=direction, method=_FINE)
        low, high = (np.asarray(x) for x in found)
        lower[rows] = np.where(whole >= 1.0, low, 0.0)[:count]
        upper[rows] = high[len(padded) : len(padded) + count]
        advance(count)
    return AllocationAudit(steps, epochs, poisson, lower, upper)


_Kind = tuple[np.ndarray, int, Callable[..., jaxdp.Mechanism], tuple[Any, ...]]


def _kinds(runs: Runs) -> list[_Kind]:
    """Rows with closed forms and without: which, how many a call, their mechanism and its data."""
    full, single = runs.sampling_probability == 1.0, runs.num_steps == 1.0
    rate, steps = runs.sampling_probability, runs.num_steps
    return [
        (full, _EXACT_CHUNK, gaussian_steps, (steps,)),
        (~full & single, _EXACT_CHUNK, one_sampled_step, (rate,)),
        (~full & ~single, _SAMPLED_CHUNK, sampled_steps, (rate, steps)),
    ]


def audit(runs: Runs, direction: Any, advance: Callable[[int], Any] = lambda rows: None) -> Audit:
    """Certified epsilon of each run, and the sigma that would just meet the reported one.

    Args:
      runs: the table.
      direction: "remove", "add" or "both".
      advance: told the number of rows done after each chunk.
    """
    lower, upper, renyi, sigma = np.full((4, len(runs)), np.nan)
    result = Audit(lower, upper, renyi, sigma, np.zeros(len(runs), np.int32))
    for mask, size, build, args in _kinds(runs):
        for rows, padded in _chunks(np.flatnonzero(mask), size):
            count = len(rows)
            chosen = tuple(arg[padded] for arg in args)
            delta = runs.delta[padded]
            with jax.enable_x64(True):
                m = build(runs.sigma[padded], *chosen)
                method = jaxdp.Numerical() if build is sampled_steps else jaxdp.Analytic()
                lower, upper = jaxdp.epsilon_bounds(m, delta, direction=direction)
                renyi = jaxdp.epsilon(m, delta, direction=direction, method=jaxdp.Renyi())
                solution = calibrate.solve(
                    build,
                    epsilon=runs.reported_epsilon[padded],
                    delta=delta,
                    args=chosen,
                    direction=direction,
                    method=method,
                )
            result.lower[rows] = np.asarray(lower)[:count]
            result.epsilon[rows] = np.asarray(upper)[:count]
            result.renyi[rows] = np.asarray(renyi)[:count]
            result.sigma[rows] = np.asarray(solution.value)[:count]
            result.status[rows] = np.asarray(solution.status)[:count]
            advance(count)
    return result


def _chunks(rows: np.ndarray, size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Row numbers in chunks, and the same filled up to one length, so that one program serves."""
    if 0 < len(rows) <= size:
        yield rows, rows
        return
    for start in range(0, len(rows), size):
        chunk = rows[start : start + size]
        yield chunk, np.concatenate([chunk, np.repeat(chunk[-1:], size - len(chunk))])
