"""Certified curves at points that show them: what the pictures draw."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jaxdp import _queries, _x64
from jaxdp._mechanisms import Mechanism, require_mechanism
from jaxdp._methods import Method

POINTS = 65  # one number for all pictures of a mechanism, so that they share programs
_SCAN = np.concatenate([[0.0], np.geomspace(1e-9, 1e7, POINTS - 1)])
LEAST_REACH = 1e-12


def one(m: Mechanism) -> Mechanism:
    """The mechanism; ValueError if its parameters are those of many."""
    require_mechanism("m", m)
    shape = _x64.batch_shape(m)
    if shape:
        raise ValueError(f"m must be one mechanism, its parameters have the batch shape {shape}")
    return m


def float64(function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """A query's answers as float64 NumPy arrays."""
    with jax.enable_x64(True):
        return jax.tree.map(lambda x: np.asarray(x, np.float64), function(*args, **options))


def log_delta(m: Mechanism, epsilon: Any, direction: str, method: Method | None) -> np.ndarray:
    """The certified upper bound on log delta."""
    return float64(_queries.log_delta, m, epsilon, direction=direction, method=method)


def largest_loss(m: Mechanism, direction: str) -> float:
    """The pure-DP epsilon, which may be inf."""
    return float(float64(_queries.epsilon, m, 0.0, direction=direction))


def reach(log_curve: Callable[[np.ndarray], np.ndarray], least: float, largest: float) -> float:
    """The epsilon up to which a curve is worth drawing: where delta falls to `least`.

    Or to its floor, where it has one above that; never beyond the largest loss.

    Args:
      log_curve: epsilons of shape (POINTS,) to log delta.
      least: delta > 0.
      largest: the largest loss; may be inf.
    """
    found = 0.0
    target = np.log(least)
    points = np.minimum(_SCAN, largest)
    for _ in range(3):  # from the second time on, between the two points next to it
        values = log_curve(points)
        target = max(target, np.min(values) + 1e-3)
        last = int(np.flatnonzero(values <= target)[0])
        found = float(points[last])
        points = np.linspace(points[max(last - 1, 0)], points[last], POINTS)
    return min(max(found, LEAST_REACH), largest)
