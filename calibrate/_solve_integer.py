"""Calibration of an integer: the smallest number of steps, or the most selected, that will do."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from calibrate._recipe import recipe_of
from calibrate._solution import solution
from calibrate._solve import (
    Solution,
    Status,
    check_target,
    default_chunk,
    delta_of_excess,
    excess_over_target,
    privacy_falls,
)
from jaxdp import _answers, _checks, _queries, _x64
from jaxdp._mechanisms import Mechanism, _curve
from jaxdp._methods import Method, check_method

_LARGEST = 2**53
_WHOLE = _checks.Domain(
    "an integer from 1 to 2^53", lambda x: (x >= 1) & (x <= _LARGEST) & (x == np.floor(x))
)


def solve_integer(
    build: Callable[..., Mechanism],
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    args: tuple[Any, ...] = (),
    bracket: tuple[int, int] = (1, 2**20),
    direction: _queries.Directions = "both",
    method: Method | None = None,
    chunk: int | None = None,
) -> Solution:
    """Find the least private integer for which build(integer, *args) is (epsilon, delta)-DP.

    The smallest feasible integer where privacy rises with it (the steps t of a random allocation),
    the largest where it falls (the steps selected k, epochs, repetitions): whichever end of the
    bracket is feasible tells. Bisection; the value returned was itself certified, and the next
    integer towards less privacy was tried and is not. Targets and args broadcast; works under
    jit and vmap.

    Args:
      build: (integer, *args) -> mechanism; the integer comes as a float64 scalar.
      epsilon: target, >= 0 (> 0 if delta is 0). Any shape.
      delta: target in [0, 1). Any shape.
      args: PyTrees of real arrays that broadcast against the targets.
      bracket: (low, high), known integers, 1 <= low < high <= 2^53.
      direction: "remove", "add" or "both".
      method, chunk: as for the queries.

    Returns:
      A Solution: status 0 at a boundary; 1 and value nan if neither end of the bracket will do; 2
      if both do, with the less private end.

    Raises:
      ValueError: for known targets or brackets outside their domains. TypeError: if build returns
        no mechanism.

    Example:
      >>> import calibrate, jaxdp
      >>> def run(count):
      ...     return jaxdp.Repeated(jaxdp.Gaussian(10.0), count)
      >>> solution = calibrate.solve_integer(run, epsilon=1.0, delta=1e-5)
      >>> int(solution.value)  # epsilon would be 1.0608 with 8
      7
    """
    check_target(epsilon, delta, direction)
    check_method(method)
    low, high = _checks.pair("bracket", bracket)
    for name, end in (("bracket[0]", low), ("bracket[1]", high)):
        _checks.number(name, end, _WHOLE)
    if not low < high:
        raise ValueError(
            f"bracket must satisfy bracket[0] < bracket[1], got {_checks.shown(bracket)}"
        )
    chunk = default_chunk(build, tuple(args), method, chunk)
    recipe, inputs = recipe_of(build, tuple(args))
    found = _x64.evaluate(
        _row,
        epsilon,
        delta,
        inputs,
        float(low),
        float(high),
        rounding=("nearest", "up", "up", "nearest"),
        chunk=chunk,
        quick=True,
        differentiable=False,
        build=recipe,
        direction=direction,
        method=method,
    )
    asked = build, epsilon, delta, tuple(args), (low, high), direction, method
    return solution(found, *asked, whole=True)


def _row(epsilon, delta, args, low, high, build, direction, method):
    """One search, inside the float64 island: (value, epsilon, certified delta, status).

    The state holds the number of evaluations, the excess at both ends, a feasible and an
    infeasible integer, and the excess of the feasible one. One program evaluates all of them.
    """

    def body(state):
        count, ends, good, bad, best = state
        middle = jnp.floor(0.5 * (good + bad))
        x = jnp.where(count == 0, low, jnp.where(count == 1, high, middle))
        excess = excess_over_target(build(x, *args), epsilon, delta, direction, method)
        met = excess <= 0.0
        ends = jnp.where(jnp.arange(2) == count, excess, ends)
        low_met = ends[0] <= 0.0
        # once both ends are known
        start_good, start_bad = jnp.where(low_met, low, high), jnp.where(low_met, high, low)
        later = count >= 2
        good = jnp.where(later, jnp.where(met, x, good), start_good)
        bad = jnp.where(later, jnp.where(met, bad, x), start_bad)
        first = jnp.where(low_met, ends[0], ends[1])
        return count + 1, ends, good, bad, jnp.where(later, jnp.where(met, excess, best), first)

    def open_(state):
        count, ends, good, bad, _ = state
        one = (ends[0] <= 0.0) != (ends[1] <= 0.0)
        return (count < 2) | (one & (jnp.abs(good - bad) > 1.0) & (count < 64))

    zero = jnp.zeros_like(epsilon)
    start = (
        jnp.zeros((), jnp.int32),
        jnp.full(2, jnp.inf),
        zero + low,
        zero + high,
        zero + jnp.inf,
    )
    _, ends, good, _, best = jax.lax.while_loop(open_, body, start)
    both, some = jnp.all(ends <= 0.0), jnp.any(ends <= 0.0)
    losses = [_curve.largest_loss(build(x, *args), direction) for x in (low, high)]
    # (Where no loss of either end is as large as epsilon, the largest ones say which is.)
    less_private = jnp.where(privacy_falls(ends, losses), high, low)
    value = jnp.where(both, less_private, jnp.where(some, good, jnp.nan))
    best = jnp.where(both, jnp.max(ends), best)
    valid = (epsilon >= 0.0) & _checks.DELTA.contains(delta)
    status = jnp.where(both, Status.SLACK, jnp.where(some, Status.SOLVED, Status.INFEASIBLE))
    status = jnp.where(valid, status, Status.INVALID)
    value = jnp.where(valid, value, jnp.nan)
    m = build(jnp.where(some, value, low), *args)
    achieved = delta_of_excess(best, delta, _answers.resolve(m, method))
    return value, epsilon, jnp.where(some & valid, achieved, jnp.nan), status.astype(jnp.float64)
