"""Runs in which a record takes part every b steps at most: cyclic Poisson batches, b-min-sep."""

from typing import Any

import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp._allocation._mechanism import RandomAllocation
from jaxdp._mechanisms import (
    Mechanism,
    PoissonSampled,
    Repeated,
    TruncatedPoissonSampled,
    require_mechanism,
)


def cyclic_poisson_sampled(
    mechanism: Mechanism,
    sampling_probability: ArrayLike,
    num_groups: int,
    num_steps: int,
    *,
    batch_size: int | None = None,
    group_size: int | None = None,
) -> Mechanism:
    """T steps of which step i runs on a Poisson sample of the records' group i mod b.

    Every record is in one of b groups by a rule that looks at no other record (its index mod b, a
    hash, a draw of its own). All but the steps of its group are run on data that it is not in, so
    that the run is the composition of ceil(T/b) sampled steps, exactly: for independent steps
    (`sampling_probability` 1 included, the known order), and for a banded Toeplitz strategy of at
    most b bands, the mechanism being the Gaussian of its column norm (Choquette-Choo et al.
    2023, arXiv 2306.08153, Theorem 4). Groups of a fixed size, cut from a shuffled order, are for
    records that are replaced by one without effect: others may change groups with them otherwise.

    Args:
      mechanism: one step, or several on one batch.
      sampling_probability: q in (0, 1], within the group.
      num_groups: b, a known integer.
      num_steps: T, a known integer.
      batch_size: if given, the most records of a batch: more are cut at random, see
        `TruncatedPoissonSampled`.
      group_size: the (largest) number of records of a group, the record included; with
        batch_size.

    Returns:
      A mechanism: `PoissonSampled` or `TruncatedPoissonSampled`, repeated; for a known rate of 1
      the mechanism itself.

    Raises:
      ValueError: for known arguments outside their domains, or one of batch_size and group_size
        without the other. TypeError: for no mechanism.

    Example:
      >>> import jaxdp
      >>> jaxdp.cyclic_poisson_sampled(jaxdp.Gaussian(1.0), 0.1, num_groups=8, num_steps=100)
      Repeated(mechanism=PoissonSampled(...sampling_probability=0.1), count=13)
    """
    require_mechanism("mechanism", mechanism)
    groups = _checks.whole_number("num_groups", num_groups)
    rounds = -(-_checks.whole_number("num_steps", num_steps) // groups)
    if (batch_size is None) != (group_size is None):
        raise ValueError("batch_size and group_size must be given together")
    if batch_size is None or group_size is None:
        known = _checks.concrete("sampling_probability", sampling_probability)
        if known is not None and np.all(known == 1.0):
            return _times(mechanism, rounds)
        return _times(PoissonSampled(mechanism, sampling_probability), rounds)
    step = TruncatedPoissonSampled(mechanism, sampling_probability, batch_size, group_size)
    return _times(step, rounds)


def min_sep_sampled(
    mechanism: Mechanism,
    sampling_probability: ArrayLike,
    min_separation: int,
    num_steps: int,
    *,
    warm_start: bool = False,
) -> Mechanism:
    r"""What dominates b-min-sep: a record joins with probability p once b - 1 steps have passed.

    A record that was in none of the last b - 1 batches is in the next one with probability p
    (Dong & Ganesh 2026, arXiv 2602.09338, whose accounting samples). For steps of independent
    noise, X_i the ratio of step i, two compositions bound the run in convex order, from above:

    * Given all that was released before step i, the record is in its batch with a probability
      that is at most p. A Poisson sample's ratio grows with its rate: T Poisson steps at rate p.
    * Of b steps in a row, given all that was released before, it is in one at most, and the ratio
      is :math:`1 + \sum_i \pi_i (X_i - 1)`, :math:`\pi` a mixture (over which steps are free) of
      p, p (1-p), p (1-p)^2, ... from some place on. Any convex expectation of it is convex in
      :math:`\pi`, so that one of these is the worst. The X_i are exchangeable, so that it grows
      with :math:`\pi` in the order of majorization: k = floor(1/p) weights of 1/k >= p bound it.
      That is a random allocation to k steps, ceil(T/b) times.

    The first is taken where p b <= 1 or p is traced, the second elsewhere. At b = 1 it is the
    Poisson sample, exactly, and at p = 1 the known order, exactly; with a warm start that is
    balls and bins: X is the average over b bins of the runs of their ceil(T/b) steps. Lower bounds
    of the answers are those of the dominating run, not of b-min-sep.

    For a banded strategy of at most b bands a record's columns are orthogonal, but steps are not
    independent; `Repeated(step, ceil(T/b))` of its column's Gaussian is what is proved.

    Args:
      mechanism: one step.
      sampling_probability: p in (0, 1]: n/(b - 1 + 1/p) records are expected in a batch.
      min_separation: b, a known integer: the least distance of two batches with the same record.
      num_steps: T, a known integer.
      warm_start: whether the run begins in the stationary state (batches of one expected size), as
        if it had been going on; the bounds hold for any start.

    Returns:
      A mechanism, of `Repeated`, `PoissonSampled` and `RandomAllocation`.

    Raises:
      ValueError: for known arguments outside their domains. TypeError: for no mechanism.

    Example:
      >>> import jaxdp
      >>> jaxdp.min_sep_sampled(jaxdp.Gaussian(1.0), 0.3, min_separation=10, num_steps=100)
      RandomAllocation(mechanism=Gaussian(sigma=1.0), num_steps=3, num_epochs=10)
    """
    require_mechanism("mechanism", mechanism)
    separation = _checks.whole_number("min_separation", min_separation)
    steps = _checks.whole_number("num_steps", num_steps)
    rounds = -(-steps // separation)
    _checks.check("sampling_probability", sampling_probability, _checks.RATE)
    known = _checks.concrete("sampling_probability", sampling_probability)
    sure = known is not None and bool(np.all(known == 1.0))
    if sure and separation > 1 and warm_start:
        return RandomAllocation(_times(mechanism, rounds), separation)
    if sure:
        return _times(mechanism, rounds)
    if known is None or separation == 1 or not np.all(known * separation > 1.0):
        return _times(PoissonSampled(mechanism, sampling_probability), steps)
    # (1/k >= p, rounding included: a p just above 1/k has k - 1)
    length = np.vectorize(_most_steps, otypes=[np.float64])(known.astype(np.float64))
    number: Any = int(length) if np.ndim(length) == 0 else length
    if np.all(length == 1.0):
        return _times(mechanism, rounds)
    return RandomAllocation(mechanism, number, num_epochs=rounds)


def _most_steps(p: float) -> int:
    """floor(1/p), exactly."""
    top, bottom = float(p).as_integer_ratio()
    return bottom // top


def _times(m: Mechanism, count: int) -> Mechanism:
    return m if count == 1 else Repeated(m, count)
