"""What samplers attain, where their runs are only dominated."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxdp._mechanisms import GaussianMixture, Mechanism

_ROUNDING = 1e-9  # of what the sum moves by, and of how often a record takes part
_FAR = 12.0  # standard deviations of the number of batches, at least: more count as so many


def bracket(
    bounds: Callable[[Mechanism], tuple[Any, Any]], run: Mechanism, attained: Mechanism
) -> tuple[Any, Any]:
    """(low, high): from above what bounds a run, from below what it is known to attain."""
    low, high = bounds(run)
    return (low if attained == run else bounds(attained)[0]), high


def separated_sum(
    sigma: float, rate: float, min_separation: int, num_steps: int
) -> GaussianMixture:
    """What the sum of all steps of b-min-sep shows of a record that moves each of its batches by 1.

    A record is in K of T batches, so that the sum moves by K and has noise of sqrt(T) sigma: a
    mixture of Gaussians, of post-processed outputs. K is counted from the stationary start, in
    which a record is in a batch with probability `rate`. (A mixture grows with its amounts: large
    numbers are taken for smaller ones.)
    """
    free = 1.0 - (min_separation - 1) * rate
    joins = min(rate / free, 1.0)  # (1 where every free record joins, rounding aside)
    mean = rate * num_steps
    most = min(-(-num_steps // min_separation), int(mean + _FAR * np.sqrt(mean) + 2.0 * _FAR))
    # chances[w, k]: w steps until it is free again, k batches so far
    chances = np.zeros((min_separation, most + 1))
    chances[:, 0] = rate
    chances[0, 0] = free
    for _ in range(num_steps):
        following = np.zeros_like(chances)
        following[:-1] = chances[1:]
        joined = joins * chances[0]
        following[0] += chances[0] - joined
        following[-1, 1:] += joined[:-1]
        following[-1, -1] += joined[-1]
        chances = following
    amounts = np.arange(most + 1) * (1.0 - _ROUNDING) / np.sqrt(num_steps)
    weights = chances.sum(axis=0)
    return GaussianMixture(sigma, amounts, weights / weights.sum())
