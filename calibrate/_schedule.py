"""Inverse noise design: the noise of every step of a run, at least loss for a given privacy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from calibrate._minimize import minimize
from calibrate._solve import check_target
from jaxdp import _checks
from jaxdp._mechanisms import Gaussian, PoissonSampled, Schedule
from jaxdp._methods import Method, check_method


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LearnedSchedule:
    """Noise of every step, its loss, and the guarantee that it was certified to give.

    Attributes:
      sigma: noise multipliers, shape (steps,).
      sampling_probability: shape (steps,), given ones rounded down.
      objective: the loss there.
      epsilon: the target epsilon; the run is (epsilon, delta)-DP.
      delta: certified upper bound on the run's delta at epsilon, <= the target.
      status: `calibrate.Status` as int32.
    """

    sigma: jax.Array
    sampling_probability: jax.Array
    objective: jax.Array
    epsilon: jax.Array
    delta: jax.Array
    status: jax.Array


def schedule(
    objective: Callable[..., jax.Array],
    *,
    epsilon: float,
    delta: float,
    sigma: ArrayLike,
    sampling_probability: ArrayLike = 1.0,
    learn_sampling: bool = False,
    args: tuple[Any, ...] = (),
    optimizer: optax.GradientTransformation | None = None,
    method: Method | None = None,
    max_steps: int = 300,
) -> LearnedSchedule:
    """Choose sigma (and the sampling probability) of every step of a run of Gaussian steps.

    Minimises objective(sigma, sampling_probability, *args) subject to the whole run, a
    `jaxdp.Schedule` of Poisson-subsampled Gaussians, being (epsilon, delta)-DP in both directions:
    `calibrate.minimize` of as many parameters as there are steps. What is returned was itself
    certified. Losses that differ in numbers and arrays only share one compiled program.

    A driver for design time, on known numbers: not for use under jit, vmap or grad.

    Args:
      objective: (sigma, sampling_probability, *args) -> scalar loss, differentiable, in float64;
        both arrays have shape (steps,).
      epsilon: target, > 0.
      delta: target, in (0, 1).
      sigma: noise multipliers to start from, > 0, of shape (steps,); only their ratios matter.
      sampling_probability: in (0, 1], a number or one for each step; 1.0 means no sampling.
      learn_sampling: learn the sampling probabilities too, from those given, which must be < 1;
        the loss must make small ones expensive.
      args: PyTrees of arrays passed to the objective.
      optimizer: as for `calibrate.minimize`: its own search by default.
      method: how sampled runs are bounded, as for `calibrate.minimize`: the numerical engine by
        default, jaxdp.Renyi(...) for a search by moments. Runs without sampling are exact.
      max_steps: most steps of a round of the search, which stops by itself.

    Returns:
      A LearnedSchedule; status 1 and nan where no scale is private.

    Raises:
      ValueError: for arguments outside their domains.

    Example:
      >>> import calibrate, jax.numpy as jnp
      >>> weights = jnp.asarray([1.0, 16.0, 81.0])  # noise late in the run hurts more
      >>> best = calibrate.schedule(
      ...     lambda sigma, q, w: jnp.sum(w * sigma**2),
      ...     epsilon=1.0, delta=1e-5, sigma=jnp.ones(3), args=(weights,))
      >>> [round(float(s), 3) for s in best.sigma / best.sigma[2]]  # 81 ** (1/4) / w ** (1/4)
      [3.0, 1.5, 1.0]
    """
    check_target(epsilon, delta, "both")
    max_steps = _checks.whole_number("max_steps", max_steps, most=2**31 - 1)
    _checks.check("epsilon", epsilon, _checks.POSITIVE)
    _checks.check("delta", delta, _checks.OPEN_DELTA)
    _checks.check("sigma", sigma, _checks.POSITIVE)
    _checks.check("sampling_probability", sampling_probability, _checks.RATE)
    check_method(method)
    sigma, rate = np.asarray(sigma, np.float64), np.asarray(sampling_probability, np.float64)
    if sigma.ndim != 1 or sigma.size == 0:
        raise ValueError(f"sigma must have shape (steps,), got {sigma.shape}")
    if rate.shape not in ((), sigma.shape):
        got = _checks.shown(rate)
        raise ValueError(f"sampling_probability must be a number or of sigma's shape, got {got}")
    if learn_sampling and np.any(rate >= 1.0):
        raise ValueError("sampling_probability must be < 1 to be learned")
    sampled = bool(np.any(rate < 1.0))
    if not jax.config.jax_enable_x64:  # fewer records: more private
        rate = np.asarray(_rounded_down(rate), np.float64)
    each = np.broadcast_to(rate, sigma.shape)
    start = {"sigma": sigma, "rate": each} if learn_sampling else {"sigma": sigma}

    def rates(parameters: dict[str, Any]) -> Any:
        return jnp.minimum(parameters["rate"], 1.0) if learn_sampling else each

    def run(parameters: dict[str, Any]) -> Schedule:
        step = Gaussian(parameters["sigma"])
        return Schedule(PoissonSampled(step, rates(parameters)) if sampled else step)

    found = minimize(
        lambda parameters: objective(parameters["sigma"], rates(parameters), *args),
        run,
        epsilon=float(epsilon),
        delta=float(delta),
        init=start,
        optimizer=optimizer,
        method=method,
        vectors=True,
        max_steps=max_steps,
    )
    learned = found.value["sigma"]
    known = jnp.where(jnp.isnan(learned), jnp.nan, jnp.asarray(each, learned.dtype))
    return LearnedSchedule(
        learned,
        rates(found.value) if learn_sampling else known,
        found.objective,
        found.epsilon,
        found.delta,
        found.status,
    )


def _rounded_down(x: np.ndarray) -> np.ndarray:
    """In float32, at most what it was."""
    near = x.astype(np.float32)
    return np.where(near > x, np.nextafter(near, np.float32(0.0)), near)
