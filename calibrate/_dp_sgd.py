"""The noise multiplier of DP-SGD, from what a training is described by."""

from jax.typing import ArrayLike

from calibrate._solution import Solution
from calibrate._solve import solve
from jaxdp import _builders, _queries
from jaxdp._methods import Method


def dp_sgd(
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    num_examples: int,
    batch_size: float,
    epochs: float,
    batches: _builders.Batches = "poisson",
    direction: _queries.Directions = "both",
    method: Method | None = None,
) -> Solution:
    """Find the least noise multiplier for which `jaxdp.dp_sgd` is (epsilon, delta)-DP.

    Args:
      epsilon: target, >= 0 (> 0 if delta is 0). Any shape.
      delta: target in (0, 1). Any shape.
      num_examples, batch_size, epochs, batches: as for `jaxdp.dp_sgd`.
      direction: "remove", "add" or "both".
      method: Renyi() or Numerical(); the engine by default. (Random allocation takes minutes to
        compile its calibration by the engine.)

    Returns:
      A Solution, as of `calibrate.solve`; differentiable in epsilon and delta.

    Raises:
      ValueError: for known arguments outside their domains. TypeError: for those of no number.

    Example:
      >>> import calibrate
      >>> found = calibrate.dp_sgd(
      ...     epsilon=3.0, delta=1e-5, num_examples=1000, batch_size=50, epochs=3)
      >>> 0.8 < float(found.value) < 1.1
      True
    """
    plan = _builders.plan(num_examples, batch_size, epochs, batches)
    targets = {"epsilon": epsilon, "delta": delta, "direction": direction, "method": method}
    if plan.batches == "poisson":  # one program for all settings
        settings = (plan.sampling_probability, plan.num_steps)
        return solve(_builders.poisson_run, args=settings, **targets)
    return solve(plan.mechanism, **targets)
