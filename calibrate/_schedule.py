"""Inverse noise design: the noise of every step of a run, at least loss for a given privacy."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from calibrate._descend import descend
from calibrate._solve import Status, check_target, excess_over_target, solve_row
from jaxdp import _answers, _checks, _orders, _roots, _x64
from jaxdp._mechanisms import Gaussian, PoissonSampled, Schedule
from jaxdp._methods import Method, Numerical, check_method
from jaxdp.training import _moments

# Integer orders: their moments are short sums. Between them moments are interpolated.
_ORDERS = tuple(
    float(a) for a in (*range(2, 13), 14, 16, 18, 20, 24, 28, 32, 40, 48, 56, 64, 96, 128, 256)
)
_BETWEEN = 4
_STEPS_AT_A_TIME = 64
_MARGIN = 1e-11  # of epsilon, for a re-evaluation
_LEAST_SCALE = 0.25  # of the noise that moments ask for: the engine needs some 0.9


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LearnedSchedule:
    """Noise of every step, its loss, and the guarantee that it was certified to give.

    Attributes:
      sigma: noise multipliers, shape (steps,), rounded up.
      sampling_probability: shape (steps,), rounded down.
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
    `jaxdp.Schedule` of Poisson-subsampled Gaussians, being (epsilon, delta)-DP in both directions.
    The constraint is eliminated, not penalised: whatever the shape of a schedule, its common
    scale is the least that is private (a root, differentiated implicitly in reverse mode), so that
    an optax optimiser works without constraints on as many parameters as there are steps, and every
    iterate is private. The last is certified.

    A driver for design time, on known numbers: not for use under jit, vmap or grad.

    Args:
      objective: (sigma, sampling_probability, *args) -> scalar loss, differentiable, in float64;
        both arrays have shape (steps,). Pass the same function again to reuse its program.
      epsilon: target, > 0.
      delta: target, in (0, 1).
      sigma: noise multipliers to start from, > 0, of shape (steps,); only their ratios matter.
      sampling_probability: in (0, 1], a number or one for each step; 1.0 means no sampling.
      learn_sampling: learn the sampling probabilities too, from those given, which must be < 1;
        the loss must make small ones expensive.
      args: PyTrees of arrays passed to the objective.
      optimizer: any optax.GradientTransformation over the log parameters; optax.lbfgs() by
        default.
      method: how sampled runs are bounded: None searches by Rényi moments at integer orders
        (interpolated between; cheap) and then takes what the numerical engine leaves of the
        noise; any other method that answers for a `jaxdp.Schedule` is used throughout (numerical:
        the least noise, seconds for every iteration). Runs without sampling are exact.
      max_steps: most optimiser steps; the search stops by itself when the loss stops falling.

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
    single = not jax.config.jax_enable_x64
    with jax.enable_x64(True):
        program = _program(objective, optimizer, method, sampled, learn_sampling, single)
        each = np.broadcast_to(rate, sigma.shape)
        inputs = jax.tree.map(np.asarray, args)
        found = program(sigma, each, float(epsilon), float(delta), max_steps, inputs)
        *host, status = (np.asarray(x) for x in found)
    learned, rate, loss, target, achieved = (jnp.asarray(x) for x in host)
    return LearnedSchedule(learned, rate, loss, target, achieved, jnp.asarray(status, jnp.int32))


@functools.lru_cache(maxsize=16)
def _program(*options: Any) -> Callable[..., Any]:
    return jax.jit(functools.partial(_learn, options))


def _learn(options, sigma, rate, epsilon, delta, max_steps, args):
    objective, optimizer, method, sampled, learn_sampling, single = options
    steps = sigma.shape[0]
    fixed = jnp.asarray(rate, jnp.float64)

    def shape_of(theta):
        """Relative sigma and the sampling probabilities of unconstrained parameters."""
        log_sigma = theta[:steps] - jnp.mean(theta[:steps])  # the scale is not a parameter
        return log_sigma, jax.nn.sigmoid(theta[steps:]) if learn_sampling else fixed

    def excess(log_scale, log_sigma, q):
        """<= 0 exactly where the run at this scale is certified."""
        sigma = jnp.exp(log_scale + log_sigma)
        if sampled and method is None:
            return _least_epsilon(_moments_of(sigma, q), delta) - epsilon * (1.0 - _MARGIN)
        return excess_over_target(_run(sigma, q, sampled), epsilon, delta, "both", method)

    def scale_of(log_sigma, q, start):
        return _roots.safe_root(lambda y: excess(y, log_sigma, q), start, 0.0, 1e-10)

    def parameters(theta, start):
        log_sigma, q = shape_of(theta)
        return jnp.exp(scale_of(log_sigma, q, start) + log_sigma), q

    theta = jnp.log(sigma)
    if learn_sampling:
        theta = jnp.concatenate([theta, jnp.log(fixed) - jnp.log1p(-fixed)])
    # from here on the scale is near this one
    start = jax.lax.stop_gradient(scale_of(*shape_of(theta), jnp.mean(jnp.log(sigma))))
    reachable = jnp.isfinite(start)
    start = jnp.where(reachable, start, 0.0)

    def loss(theta):
        return objective(*parameters(theta, start), *args)

    theta = descend(loss, theta, optimizer, max_steps, reachable)
    sigma, q = parameters(theta, start)
    if sampled and method is None:
        achieved = _least_delta(_moments_of(sigma, q), epsilon)
    else:
        achieved = _answers.delta(_run(sigma, q, sampled), epsilon, "both", method)
    if sampled and method is None:
        # The moments shaped the schedule; how much of it is needed, the engine knows better.
        found = solve_row(
            epsilon, delta, (sigma, q), _LEAST_SCALE, 1.0, _scaled, "both", True, Numerical()
        )
        tighter = reachable & (found[5] == Status.SOLVED)
        sigma *= jnp.where(tighter, found[0], 1.0)
        achieved = jnp.where(tighter, found[4], achieved)
    if single:  # more noise and fewer records: more private still
        sigma = _x64.rounded(sigma, "up", jnp.float32).astype(jnp.float64)
        q = _x64.rounded(q, "down", jnp.float32).astype(jnp.float64)
    value = objective(sigma, q, *args)
    ok = reachable & jnp.all(jnp.isfinite(sigma)) & (achieved <= delta) & jnp.isfinite(value)
    status = jnp.where(ok, Status.SOLVED, Status.INFEASIBLE)
    sigma, q, value, achieved = (jnp.where(ok, x, jnp.nan) for x in (sigma, q, value, achieved))
    if single:
        sides = ("up", "down", "nearest", "up", "up")
        outputs = (sigma, q, value, epsilon, achieved)
        cast = [
            _x64.rounded(jnp.asarray(x, jnp.float64), side, jnp.float32)
            for x, side in zip(outputs, sides, strict=True)
        ]
        return *cast, status
    return sigma, q, value, epsilon, achieved, status


def _scaled(scale, sigma, q):
    return _run(scale * sigma, q, True)


def _run(sigma, q, sampled):
    return Schedule(PoissonSampled(Gaussian(sigma), q) if sampled else Gaussian(sigma))


def _moments_of(sigma, q):
    """log E[X^alpha] of the run at every order, recomputed in reverse mode to bound memory."""
    each = jax.lax.map(
        jax.checkpoint(lambda x: _moments.moments(x[0], x[1], _ORDERS)),
        (sigma, q),
        batch_size=_STEPS_AT_A_TIME,
    )
    return jnp.sum(each, axis=0) * (1.0 + sigma.shape[0] * 2.0**-52)


def _interpolated(moments):
    """Orders, and upper bounds on the moments there: convex in the order, 0 at order 1."""
    alpha = np.asarray((1.0, *_ORDERS))
    share = np.arange(1, _BETWEEN + 1)[:, None] / _BETWEEN
    left = jnp.concatenate([jnp.zeros(1), moments[:-1]])
    orders = jnp.asarray(alpha[:-1] + share * (alpha[1:] - alpha[:-1]))
    return orders, left + jnp.asarray(share) * (moments - left)


def _least_epsilon(moments, delta):
    orders, values = _interpolated(moments)
    return jnp.min(_orders.epsilon_at_order(values, orders, jnp.log(delta)))


def _least_delta(moments, epsilon):
    orders, values = _interpolated(moments * (1.0 + 1e-14))
    log_delta = jnp.min(_orders.log_delta_at_order(values, orders, epsilon))
    return jnp.exp(jnp.minimum(log_delta + 1e-13 * (1.0 + jnp.abs(log_delta)), 0.0))
