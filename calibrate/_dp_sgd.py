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
    neighbours: _builders.Neighbours = "add-or-remove",
    max_batch_size: int | None = None,
    min_separation: int = 4,
    direction: _queries.Directions = "both",
    method: Method | None = None,
) -> Solution:
    """Find the least noise multiplier for which `jaxdp.dp_sgd` is (epsilon, delta)-DP.

    Args:
      epsilon: target, >= 0 (> 0 if delta is 0). Any shape.
      delta: target in (0, 1). Any shape.
      num_examples, batch_size, epochs, batches, neighbours, max_batch_size, min_separation: as for
        `jaxdp.dp_sgd`.
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
    run = _builders.training(
        num_examples, batch_size, epochs, batches, neighbours, max_batch_size, min_separation
    )
    targets = {"epsilon": epsilon, "delta": delta, "direction": direction, "method": method}
    if run.batches == "poisson" and neighbours != "replace-one":  # one program for all settings
        settings = (run.sampling_probability, run.num_steps)
        return solve(_builders.poisson_run, args=settings, **targets)
    return solve(run.mechanism, **targets)
