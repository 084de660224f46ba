"""Random allocation through Poisson subsampling, as a pair that composes.

The comparison behind `Decomposition` (Feldman & Shenfeld 2025, Theorem 4.1; see
`_methods._poisson`) is one of likelihood ratios in the convex order: the ratio of an allocation is
below C = (P - (1 - lam'))/lam', that of t Poisson-subsampled steps given that the record joined at
all. Products of independent ratios keep the order, so that n epochs are below the n-fold
composition of C. Here C is tabulated: its curve, by the theorem's formula from a certified law of
the Poisson scheme, at the points of that law, and the convex minorant above that
(`_privacy_loss_table`).
"""

from typing import Literal

import jax
import numpy as np

from jaxdp import _checks, _devices, _privacy_loss_table
from jaxdp._divergences import SLACK
from jaxdp._mechanisms import Mechanism, PoissonSampled, Repeated, require_mechanism
from jaxdp._methods._poisson import allocated, conditional, one_block
from jaxdp._noise import LossDistribution
from jaxdp._privacy_loss import privacy_loss

_SLACK = 16.0 * SLACK


@_devices.at_once
def decomposed(
    allocation: Mechanism,
    sampling_probability: float | None = None,
    *,
    delta: float = 1e-5,
    direction: Literal["remove", "add"] = "remove",
    grid_size: int | None = None,
) -> LossDistribution:
    """One epoch of random allocation, bounded through Poisson subsampling, as a finite pair.

    What `Decomposition` answers for a single epoch this is as a mechanism (Feldman & Shenfeld 2025,
    Theorem 4.1): repeat or compose it for runs of several epochs or allocations. For comparison;
    the engine's own law of an allocation is tighter.

    Args:
      allocation: a `RandomAllocation` with k = 1 and one epoch, of known numbers.
      sampling_probability: the rate of the Poisson scheme, in (0, 1]; 1/t by default.
      delta: about where the pair is to be accurate, in (0, 1): the target of a run of it. (It puts
        some 1e-6 of that at infinity, in every epoch.)
      direction: which direction the pair's "remove" is. The other one is exact to 2^-40 only.
      grid_size: points of the scheme's law, a power of two; None takes 8192.

    Returns:
      A finite pair, a mechanism like others.

    Raises:
      ValueError: for another mechanism or a batch, or numbers outside their domains. TypeError: if
        it is no mechanism, or its parameters are traced.

    Example:
      >>> import jaxdp
      >>> epoch = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 100)
      >>> run = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 100, num_epochs=10)
      >>> bound = jaxdp.epsilon(jaxdp.Repeated(jaxdp.decomposed(epoch, delta=1e-6), 10), 1e-5)
      >>> bool(jaxdp.epsilon(run, 1e-5, direction="remove") < bound)
      True
    """
    require_mechanism("allocation", allocation, whole=True)
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(allocation)):
        raise TypeError("allocation is traced: a table's size would depend on its values")
    block = one_block(allocation)
    if block is None:
        raise ValueError("allocation must be one RandomAllocation, k = 1, one epoch")
    if any(np.ndim(x) for x in jax.tree.leaves(allocation)):
        raise ValueError(f"allocation must be single, got a batch: {allocation!r}")
    aim = _checks.number("delta", delta, _checks.OPEN_DELTA)
    _checks.check_choice("direction", direction, ("remove", "add"))
    with jax.enable_x64(True):
        t = np.float64(block.num_steps)
        given = 1.0 / t if sampling_probability is None else sampling_probability
        rate = np.float64(_checks.number("sampling_probability", given, _checks.RATE))
        scheme = Repeated(PoissonSampled(block.mechanism, rate), t)
        law = privacy_loss(scheme, delta=aim, direction=direction, grid_size=grid_size)
        loss = np.asarray(allocated(law.loss, rate, t, direction))
        loss = loss[np.isfinite(loss)]
        at = conditional(loss, rate, t, direction)
        moved = at.epsilon - _SLACK * (1.0 + np.abs(loss) + np.abs(at.epsilon))
        log_h = np.asarray(at.log_factor + law.log_hockey_stick(moved) + _SLACK)
    table = _privacy_loss_table.above(loss, np.minimum(log_h, 0.0))
    return _privacy_loss_table.as_pair(table, law.log_mass.shape[-1])
