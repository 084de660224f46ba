"""Correlated noise of least error: the bands of a strategy, with amplification counted."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from calibrate._descend import check_optimizer, descend
from calibrate._solution import Status
from calibrate._solve import check_target
from jaxdp import _checks, _queries, _roots
from jaxdp._matrix import MatrixMechanism, _exchangeable, _strategies
from jaxdp._methods import Method, check_method

_ERRORS = ("mean", "max")
_LEAST = 1e-12  # of a coefficient, for its logarithm
_TOLERANCE = 1e-5  # of epsilon, relatively
_MOST_LOG_SIGMA, _MOST_QUERIES = 30.0, 60
_ROUNDS = 3  # of the choice of a pair and its noise
_TILTS = (0.0, -0.5, 0.3)  # of log coefficients, for each step that they are behind


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LearnedStrategy:
    """A banded Toeplitz strategy, its noise, and the guarantee that both were certified to give.

    Attributes:
      coefficients: the first column of C, (bands,), its first entry 1.
      sigma: standard deviation of z for records of norm 1, rounded up.
      error: root of the mean (or largest) variance of a prefix sum's noise, sigma included.
      epsilon: the target epsilon; the run is (epsilon, delta)-DP.
      delta: the target delta, at which the run's certified epsilon is at most the target.
      status: `calibrate.Status` as int32.
    """

    coefficients: jax.Array
    sigma: jax.Array
    error: jax.Array
    epsilon: jax.Array
    delta: jax.Array
    status: jax.Array


def strategy(
    *,
    epsilon: float,
    delta: float,
    num_steps: int,
    num_bins: int | None = None,
    bands: int | None = None,
    error: str = "mean",
    optimizer: optax.GradientTransformation | None = None,
    max_steps: int = 100,
    direction: _queries.Directions = "both",
    method: Method | None = None,
) -> LearnedStrategy:
    r"""Bands of least error of prefix sums for balls-in-bins batches at (epsilon, delta).

    With A the matrix of prefix sums, their noise is sigma A C^-1 z; the mean (or largest) squared
    norm of a row of A C^-1 times sigma^2 is minimised, sigma being what (epsilon, delta)
    asks for *with* the amplification by random bins. The bands are searched by an optax optimiser
    on a closed-form estimate of the dominating pair; sigma is then certified for the bands
    found, by queries for epsilon. One band is DP-SGD's independent noise.

    Args:
      epsilon: target, > 0.
      delta: target in (0, 1).
      num_steps: n.
      num_bins: b, steps of an epoch; n by default.
      bands: p, 1 <= p <= n; min(b, 32) by default.
      error: "mean" over the n prefix sums, or "max".
      optimizer: over log coefficients; optax.lbfgs() by default.
      max_steps: most optimiser steps.
      direction: "remove", "add" or "both".
      method: of the final calibration; the engine by default.

    Returns:
      A LearnedStrategy; nan and status 1 where the target is not met by any sigma.

    Raises:
      ValueError: for arguments outside these domains.

    Example:
      >>> import calibrate, jaxdp
      >>> learned = calibrate.strategy(
      ...     epsilon=2.0, delta=1e-5, num_steps=60, num_bins=20, bands=3, direction="remove",
      ...     method=jaxdp.Renyi(orders=(4.0, 8.0, 16.0)))
      >>> learned.coefficients.shape, bool(learned.status == calibrate.Status.SOLVED)
      ((3,), True)
    """
    check_target(epsilon, delta, direction)
    check_method(method)
    check_optimizer(optimizer)
    epsilon = _checks.number("epsilon", epsilon, _checks.POSITIVE)
    delta = _checks.number("delta", delta, _checks.OPEN_DELTA)
    _checks.check_choice("error", error, _ERRORS)
    n = _checks.whole_number("num_steps", num_steps, most=2**31 - 1)
    b = n if num_bins is None else _checks.whole_number("num_bins", num_bins, most=n)
    p = min(b, 32) if bands is None else _checks.whole_number("bands", bands, most=n)
    max_steps = _checks.whole_number("max_steps", max_steps, most=2**31 - 1)
    column = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1, p)))  # of the square root of A
    kind = np.float64 if jax.config.jax_enable_x64 else np.float32
    if p > 1:
        with jax.enable_x64(True):
            program = _program(n, b, error, optimizer, max_steps)
            column = np.asarray(program(np.log(column[1:]), epsilon, delta))
    column = column.astype(kind)

    with jax.enable_x64(True):

        def excess(log_sigma: float) -> float:
            """log of epsilon over its target, certified from above."""
            run = MatrixMechanism(column, float(np.exp(log_sigma)), num_steps=n, num_bins=b)
            spent = float(_queries.epsilon(run, delta, direction=direction, method=method))
            return float(np.log(spent / epsilon)) if spent > 0.0 else -np.inf

        log_sigma, solved = _least(excess)
        spread = np.asarray(jnp.sqrt(squared_error(jnp.asarray(column, jnp.float64), n, error)))
    sigma = np.asarray(np.exp(log_sigma) * (1.0 + 1e-15), np.float64)
    rounded = sigma.astype(kind)
    sigma = np.where(rounded < sigma, np.nextafter(rounded, kind(np.inf)), rounded)
    sigma = jnp.asarray(sigma if solved else np.nan, kind)
    return LearnedStrategy(
        jnp.asarray(column),
        sigma,
        sigma * spread.astype(kind),
        jnp.asarray(epsilon, kind),
        jnp.asarray(delta if solved else np.nan, kind),
        jnp.asarray(Status.SOLVED if solved else Status.INFEASIBLE, jnp.int32),
    )


def _least(excess: Callable[[float], float]) -> tuple[float, bool]:
    """The least point, up to `_TOLERANCE` in the excess, at which a falling excess is <= 0.

    Regula falsi with halved values (Illinois) between points that are evaluated one by one: a
    query is one program, compiled once, where an implicit derivative would need several.
    Whether there is such a point; what is returned has been evaluated.
    """
    low = high = 0.0
    below = above = excess(0.0)
    step = 0.5
    while above > 0.0 and high < _MOST_LOG_SIGMA:
        low, below = high, above
        high += step
        above, step = excess(high), 2.0 * step
    while below <= 0.0 and low > -_MOST_LOG_SIGMA:
        high, above = low, below
        low -= step
        below, step = excess(low), 2.0 * step
    if not (above <= 0.0 < below):
        return high, bool(above <= 0.0)
    met, kept = above, 0
    for _ in range(_MOST_QUERIES):
        if met >= -_TOLERANCE:
            break
        share = below / (below - above) if np.isfinite(below - above) else 0.5
        # a hair further, so that the end that meets the target moves too
        middle = low + (high - low) * min(share + 0.3 * _TOLERANCE / (below - above), 1.0)
        value = excess(middle)
        if value <= 0.0:
            high, above, met = middle, value, value
            below, kept = (0.5 * below, 0) if kept > 0 else (below, 1)
        else:
            low, below = middle, value
            above, kept = (0.5 * above, 0) if kept < 0 else (above, -1)
    return high, True


def squared_error(column: jax.Array, num_steps: int, error: str) -> jax.Array:
    """Mean or largest squared norm of the rows of A C^-1, C of this first column."""
    tail = column[1:][::-1] / column[0]

    def step(last: jax.Array, index: jax.Array) -> tuple[jax.Array, jax.Array]:
        value = jnp.where(index == 0, 1.0 / column[0], 0.0) - jnp.sum(tail * last)
        return jnp.append(last, value)[1:], value

    start = jnp.zeros(column.shape[0] - 1, column.dtype)
    _, inverse = jax.lax.scan(step, start, jnp.arange(num_steps))
    squares = jnp.cumsum(inverse) ** 2  # of the first column of A C^-1
    if error == "max":
        return jnp.sum(squares)
    return jnp.sum(squares * (1.0 - jnp.arange(num_steps) / num_steps))


@functools.lru_cache(maxsize=16)
def _program(*options: Any):
    return jax.jit(functools.partial(_learn, options))


def _learn(options, theta, epsilon, delta):
    n, b, error, optimizer, max_steps = options
    log_delta = jnp.log(delta)

    def column_of(theta):
        return jnp.concatenate([jnp.ones(1), jnp.exp(jnp.maximum(theta, np.log(_LEAST)))])

    def scaled(pairs, log_sigma):  # covariances fall as 1/sigma^2
        by = jnp.exp(-2.0 * log_sigma)
        return pairs._replace(common=pairs.common * by, pair=pairs.pair * by, own=pairs.own * by)

    def best_at(log_sigma, units):
        """The candidate that is best at this noise, for sigma = 1."""
        best = _exchangeable.chosen(scaled(units, log_sigma), epsilon, None)
        return scaled(best, -log_sigma)

    def needed(unit, start):
        def excess(y):
            return _exchangeable.log_delta_estimate(scaled(unit, y), epsilon) - log_delta

        return _roots.safe_root(excess, start, 0.0, 1e-9)

    def loss(theta):
        column = column_of(theta)
        lags = _strategies.lags(_strategies.Toeplitz(column), n, b)
        units = _exchangeable.above(lags, jnp.ones(()))
        frozen = jax.lax.stop_gradient(units)
        start = 0.5 * jnp.log(jax.lax.stop_gradient(lags.largest[0]))
        # what is best at some noise needs less, or as much: a few rounds find the least
        near = jax.lax.fori_loop(0, _ROUNDS, lambda _, y: needed(best_at(y, frozen), y), start)
        log_sigma = needed(best_at(near, units), near)
        return 2.0 * log_sigma + jnp.log(squared_error(column, n, error))

    def search(theta):
        return descend(loss, theta, optimizer, max_steps, jnp.asarray(True))

    # the least of several pairs above has several minima: from a faster and a slower decay, too
    tilts = jnp.asarray(_TILTS)[:, None] * jnp.arange(1, theta.size + 1)
    found, values = jax.lax.map(search, theta + tilts)
    at = jnp.min(jnp.where(values == jnp.min(values), jnp.arange(values.size), values.size - 1))
    return column_of(found[at])
