"""Calibration of several parameters: minimise a utility loss subject to (epsilon, delta)-DP."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jax.typing import ArrayLike

from calibrate._solve import Status, check_target, excess_over_target
from jaxdp import _answers, _checks, _queries, _roots, _x64
from jaxdp._mechanisms import Mechanism
from jaxdp._methods import Method, check_method

_MARGIN = 0.5  # the search starts this far (in log parameters) outside the feasible set
# Steps without a lower loss after which the search ends: a line search that fails has converged,
# a method without one may oscillate for long.
_PATIENCE_LBFGS, _PATIENCE = 5, 60


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Vectors:
    """Parameters whose last axes belong to one problem."""

    leaves: tuple[Any, ...]

    _core_ndims: ClassVar = {"leaves": 1}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Minimum:
    """Calibrated parameters, their loss, and the guarantee that they were certified to give.

    Attributes:
      value: the parameters, a PyTree like `init`; nan where infeasible.
      objective: the loss there.
      epsilon: the target epsilon; the built mechanism is (epsilon, delta)-DP.
      delta: certified upper bound on the built mechanism's delta at epsilon, <= the target.
      status: `calibrate.Status` as int32.
    """

    value: Any
    objective: jax.Array
    epsilon: jax.Array
    delta: jax.Array
    status: jax.Array


def minimize(
    objective: Callable[..., jax.Array],
    build: Callable[..., Mechanism],
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    init: Any,
    args: tuple[Any, ...] = (),
    optimizer: optax.GradientTransformation | None = None,
    direction: _queries.Directions = "both",
    method: Method | None = None,
    vectors: bool = False,
    max_steps: int = 200,
) -> Minimum:
    """Minimise objective(params, *args) over positive params with build(params, *args) private.

    The constraint is eliminated, not penalised: parameters are moved, in log space, along a fixed
    direction of more privacy until the mechanism is (epsilon, delta)-DP (a root with implicit
    derivatives), and the loss at that point is minimised without constraints by an optax
    optimiser. Every iterate is feasible; the final one is certified. Targets, args and the leaves
    of init broadcast elementwise; works under jit and vmap (not grad).

    Args:
      objective: (params, *args) -> scalar loss, differentiable.
      build: (params, *args) -> mechanism.
      epsilon: target, >= 0 (> 0 if delta is 0). Any shape.
      delta: target in [0, 1). Any shape.
      init: PyTree of positive numbers to start from, less private than pure epsilon-DP (delta is 0
        there and has no slope: status 1).
      args: PyTrees of real arrays passed to both functions.
      optimizer: any optax.GradientTransformation over the log parameters; optax.lbfgs() by
        default (measured: benchmarks/minimize.py).
      direction: "remove", "add" or "both".
      method: how compositions without a closed form are bounded in the search: the numerical
        engine by default, which takes seconds for every step. With Renyi(...) moments shape the
        parameters and the engine, where it can, takes back the noise that they ask for too much:
        as private, within a few percent of the least loss, and a thousand times sooner.
      vectors: whether arrays in init are vectors of parameters of one problem (all of one
        dimension at least), for a `jaxdp.Schedule` say; else their entries are problems of a batch.
      max_steps: most optimiser steps; the search stops by itself when the loss stops falling.

    Returns:
      A Minimum; status 1 and nan where the direction of more privacy never meets the target.

    Raises:
      ValueError: for known targets or init outside their domains, or scalars for vectors.

    Example:
      >>> import calibrate, jaxdp
      >>> best = calibrate.minimize(
      ...     lambda p: 3.0 * p["a"] ** 2 + p["b"] ** 2,
      ...     lambda p: jaxdp.Composed([jaxdp.Gaussian(p["a"]), jaxdp.Gaussian(p["b"])]),
      ...     epsilon=1.0, delta=1e-5, init={"a": 5.0, "b": 5.0})
      >>> round(float(best.value["b"] / best.value["a"]), 4)  # 3 ** 0.25
      1.3161
      >>> import jax.numpy as jnp
      >>> price = jnp.array([16.0, 1.0, 1.0, 81.0])
      >>> many = calibrate.minimize(
      ...     lambda s: jnp.sum(price * s**2),
      ...     lambda s: jaxdp.Schedule(jaxdp.Gaussian(s)),
      ...     epsilon=1.0, delta=1e-5, init=jnp.ones(4), vectors=True)
      >>> [round(float(s), 2) for s in many.value / many.value[3]]  # (81 / price) ** 0.25
      [1.5, 3.0, 3.0, 1.0]
    """
    check_target(epsilon, delta, direction)
    check_method(method)
    max_steps = _checks.whole_number("max_steps", max_steps, most=2**31 - 1)
    leaves, treedef = jax.tree.flatten(init)
    if not leaves:
        raise ValueError("init must contain at least one parameter")
    for leaf in leaves:
        _checks.check("init", leaf, _checks.POSITIVE)
    if vectors and any(np.ndim(leaf) == 0 for leaf in leaves):
        raise ValueError("init must hold arrays of one dimension or more where vectors=True")
    count = len(leaves)
    *value, loss, target, achieved, status = _x64.evaluate(
        _minimize,
        Vectors(tuple(leaves)) if vectors else tuple(leaves),
        epsilon,
        delta,
        tuple(args),
        rounding=("nearest",) * (count + 1) + ("up", "up", "nearest"),
        differentiable=False,
        objective=objective,
        build=build,
        optimizer=optimizer,
        treedef=treedef,
        direction=direction,
        method=method,
        max_steps=max_steps,
        single=not jax.config.jax_enable_x64,
    )
    params = jax.tree.unflatten(treedef, value)
    return Minimum(params, loss, target, achieved, status.astype(jnp.int32))


def _minimize(
    init,
    epsilon,
    delta,
    args,
    objective,
    build,
    optimizer,
    treedef,
    direction,
    method,
    max_steps,
    single,
):
    leaves = init.leaves if isinstance(init, Vectors) else init
    theta, unravel = jax.flatten_util.ravel_pytree([jnp.log(leaf) for leaf in leaves])

    def unpack(theta):
        return jax.tree.unflatten(treedef, unravel(jnp.exp(theta)))

    def excess(theta, by=method):
        return excess_over_target(build(unpack(theta), *args), epsilon, delta, direction, by)

    slope = jax.grad(excess)(theta)
    ray = -slope / jnp.linalg.norm(slope)

    def distance(theta, by=method):
        """How far along the ray the boundary is; negative inside the feasible set."""
        return _roots.safe_root(lambda s: excess(theta + s * ray, by), jnp.zeros(()), 0.0, 1e-12)

    def feasible(theta):
        return theta + jnp.maximum(distance(theta), 0.0) * ray

    def loss(theta):
        return objective(unpack(feasible(theta)), *args)

    # outside the feasible set the loss is smooth, and constant along the ray
    start = distance(theta)
    reachable = jnp.isfinite(start)
    theta = theta + (jnp.where(reachable, start, 0.0) - _MARGIN) * ray
    theta = feasible(descend(loss, theta, optimizer, max_steps, reachable))
    last, more = method, ()
    if method is not None:
        last = method._certifier(build(unpack(theta), *args))
    if last != method:
        # The moments shaped the parameters; how much noise is needed, the engine knows better.
        back = distance(theta, last)
        back = jnp.where(jnp.isfinite(back) & (back < 0.0), back, 0.0)
        theta = theta + back * ray
        # (Its curve has steps, and a root may lie beside one; where the moments ended is private.)
        more = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, -back)

    def certified(theta):
        return excess(theta, last)

    params, ok, mechanism = _certify(theta, ray, unpack, build, certified, args, single, more)
    status = jnp.where(ok & reachable, Status.SOLVED, Status.INFEASIBLE)
    status = jnp.where(
        jnp.isnan(slope).any() | ~_checks.DELTA.contains(delta), Status.INVALID, status
    )
    solved = status == Status.SOLVED
    achieved = _answers.delta(mechanism, epsilon, direction, last)
    outputs = [*jax.tree.leaves(params), objective(params, *args)]
    outputs = [jnp.where(solved, x, jnp.nan) for x in outputs]
    achieved = jnp.where(solved, achieved, jnp.nan)
    return *outputs, epsilon, achieved, status.astype(jnp.float64)


def descend(loss, theta, optimizer, max_steps, reachable):
    """Minimise an unconstrained loss by an optax optimiser; the best point seen."""
    patience = _PATIENCE_LBFGS if optimizer is None else _PATIENCE
    optimizer = optax.with_extra_args_support(optimizer or optax.lbfgs())
    value_and_grad = jax.value_and_grad(loss)

    def body(state):
        theta, opt_state, best, best_value, stalled, count = state
        value, grad = value_and_grad(theta)
        better = value < best_value
        gain = best_value - value > 1e-13 * jnp.abs(best_value)
        best, best_value = jnp.where(better, theta, best), jnp.where(better, value, best_value)
        updates, opt_state = optimizer.update(
            grad, opt_state, theta, value=value, grad=grad, value_fn=loss
        )
        theta = optax.apply_updates(theta, updates)
        stalled = jnp.where(gain | jnp.isinf(best_value), 0, stalled + 1)
        return theta, opt_state, best, best_value, stalled, count + 1

    def going(state):
        return (state[4] < patience) & (state[5] < max_steps) & reachable

    zero = jnp.zeros((), jnp.int32)
    inf = jnp.asarray(jnp.inf, jnp.float64)
    state = (theta, optimizer.init(theta), theta, inf, zero, zero)
    return jax.lax.while_loop(going, body, state)[2]


def _certify(theta, ray, unpack, build, excess, args, single, more=()):
    """The least of a few steps along the ray at which the parameters, as returned, are private."""

    def at(step):
        candidate = theta + step * ray
        if single:  # the caller receives float32 parameters: certify those
            candidate = jnp.log(jnp.exp(candidate).astype(jnp.float32).astype(jnp.float64))
        return candidate, excess(candidate) <= 0.0

    unit = 2.0**-23 if single else 2.0**-50
    steps = unit * jnp.asarray([0.0, 1.0, 2.0, 4.0, 16.0, 64.0, 1024.0], jnp.float64)
    if more:
        steps = jnp.concatenate([steps, jnp.stack([jnp.asarray(x, jnp.float64) for x in more])])
    candidates, certified = jax.vmap(at)(steps)
    least = jnp.min(jnp.where(certified, steps, jnp.inf))
    chosen = jnp.max(jnp.where((steps == least)[:, None], candidates, -jnp.inf), axis=0)
    ok = jnp.isfinite(least)
    params = unpack(jnp.where(ok, chosen, theta))
    return params, ok, build(params, *args)
