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

from calibrate._approach import Curve, approach
from calibrate._descend import check_optimizer, descend
from calibrate._recipe import recipe_of
from calibrate._solve import (
    Status,
    check_target,
    delta_of_excess,
    epsilon_excess,
    excess_over_target,
    require_mechanism,
)
from jaxdp import _answers, _checks, _queries, _roots, _rounding, _x64
from jaxdp._mechanisms import Mechanism, _curve
from jaxdp._mechanisms._steps import has_cheap_moments
from jaxdp._methods import Method, Renyi, check_method

_MARGIN = 0.5  # the search starts this far (in log parameters) outside the feasible set
# Of the curve, and of the loss over its slopes: where the curve is exact, smooth, or has steps.
_EXACT, _SMOOTH, _NUMERICAL = 1e-11, 1e-9, 3e-7
_FEWEST_STEPS = 8  # of a round, that it may come to private parameters at all
_GRAIN = 1.2e-7  # of parameters in 32 bits


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

    Sequential quadratic programming over the logarithms of the parameters, with the curvature that
    sums of exponentials have. Where the curve has no closed form it is looked at once a round,
    with its slopes, and taken for a sum of exponentials between two looks: a few rounds do,
    and they begin at the optimum by Rényi divergences where these cost little. The point that is
    returned was itself looked at and certified, so that `jaxdp.epsilon` of it at delta is at
    most epsilon. Targets, args and the leaves of init broadcast elementwise; works under jit and
    vmap (not grad).

    Args:
      objective: (params, *args) -> scalar loss, differentiable.
      build: (params, *args) -> mechanism.
      epsilon: target, >= 0 (> 0 if delta is 0). Any shape.
      delta: target in [0, 1). Any shape.
      init: PyTree of positive numbers to start from. Where the curve has no slope there (delta is
        0 or 1), all of them times powers of e are tried.
      args: PyTrees of real arrays passed to both functions.
      optimizer: any optax.GradientTransformation over the log parameters, to search by it instead:
        every iterate is moved to the boundary along a fixed direction of more privacy (a root with
        implicit derivatives), which takes several looks (measured: benchmarks/minimize.py).
      direction: "remove", "add" or "both".
      method: how compositions without a closed form are bounded in the search: the numerical
        engine by default, which takes seconds for every look. With Renyi(...) moments shape the
        parameters and the engine, where it can, takes back the noise that they ask for too much:
        as private, some percent above the least loss, and sooner where steps have moments of
        little cost.
      vectors: whether arrays in init are vectors of parameters of one problem (all of one
        dimension at least), for a `jaxdp.Schedule` say; else their entries are problems of a batch.
      max_steps: most optimiser steps (of a round, where it is 8 at least); the search stops by
        itself when the loss stops falling.

    Returns:
      A Minimum; status 1 and nan where no parameters that meet the target were found.

    Raises:
      ValueError: for known targets or init outside their domains, scalars for vectors, an optimizer
        that is none of optax's, or an objective that is no scalar.

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
    check_optimizer(optimizer)
    max_steps = _checks.whole_number("max_steps", max_steps, most=2**31 - 1)
    leaves, treedef = jax.tree.flatten(init)
    if not leaves:
        raise ValueError("init must contain at least one parameter")
    for leaf in leaves:
        _checks.check("init", leaf, _checks.POSITIVE)
    if vectors and any(np.ndim(leaf) == 0 for leaf in leaves):
        raise ValueError("init must hold arrays of one dimension or more where vectors=True")
    count = len(leaves)
    shapes = [np.shape(leaf)[-1:] if vectors else () for leaf in leaves]
    like = jax.tree.unflatten(treedef, [jax.ShapeDtypeStruct(x, np.float32) for x in shapes])
    made, makes = recipe_of(build, tuple(args), like, arrays=True)
    valued, values = recipe_of(objective, tuple(args), like, jax.Array, arrays=True)
    *value, loss, target, achieved, status = _x64.evaluate(
        _minimize,
        Vectors(tuple(leaves)) if vectors else tuple(leaves),
        epsilon,
        delta,
        makes,
        values,
        rounding=("nearest",) * (count + 1) + ("up", "up", "nearest"),
        differentiable=False,
        quick="always",
        objective=valued,
        build=made,
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
    priced,
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

    def made(theta):
        return build(unpack(theta), *args)

    def excess(theta, by=method, aimed=False):
        return excess_over_target(made(theta), epsilon, delta, direction, by, aimed=aimed)

    def loss(theta):
        value = objective(unpack(theta), *priced)
        if jnp.shape(value):
            raise ValueError(f"objective must return a scalar, got the shape {jnp.shape(value)}")
        return value

    first = require_mechanism(made(theta))
    invalid = jnp.isnan(jnp.sum(theta) + epsilon) | (epsilon < 0.0) | ~_checks.DELTA.contains(delta)
    invalid |= ~jnp.all(first._in_domain())
    chosen = _answers.resolve(first, method)
    last = chosen if method is None else method._certifier(first)
    if optimizer is None:
        curve = _curve_of(first, made, epsilon, delta, direction, method, single, last == chosen)
        theta, found, slopes = approach(loss, curve, theta, max(max_steps, _FEWEST_STEPS))
        ray, ok = _ray(slopes), jnp.isfinite(found)
    else:
        theta, ray, ok = _eliminated(theta, loss, excess, optimizer, max_steps)
    if optimizer is None and last == chosen:
        params, achieved = unpack(theta), delta_of_excess(found, delta, chosen)
    else:
        more = ()
        if last != chosen:
            # The moments shaped the parameters; how much noise is needed, the engine knows better.
            back = _distance(lambda x: excess(x, last), theta, ray)
            back = jnp.where(jnp.isfinite(back) & (back < 0.0), back, 0.0)
            theta = theta + back * ray
            # (Its curve has steps, and a root may lie beside one; the moments' end is private.)
            more = (1e-8, 1e-6, 1e-4, 1e-3, 1e-2, -back)
        aims = _answers.has_aim(first, last)
        params, certified, mechanism = _certify(
            theta, ray, unpack, build, lambda x: excess(x, last, aims), args, single, more
        )
        ok &= certified
        achieved = _answers.delta(mechanism, epsilon, direction, last)
    ok &= jnp.all(jnp.isfinite(theta))  # (a loss may fall for ever)
    status = jnp.where(ok, Status.SOLVED, Status.INFEASIBLE)
    status = jnp.where(invalid, Status.INVALID, status)
    solved = status == Status.SOLVED
    outputs = [*jax.tree.leaves(params), objective(params, *priced)]
    outputs = [jnp.where(solved, x, jnp.nan) for x in outputs]
    achieved = jnp.where(solved, achieved, jnp.nan)
    return *outputs, epsilon, achieved, status.astype(jnp.float64)


def _curve_of(first, made, epsilon, delta, direction, method, single, checked) -> Curve:
    """The excess over the target as `approach` asks for it; checked as its user will, if so."""
    chosen = _answers.resolve(first, method)
    aims = checked and _answers.has_aim(first, chosen)

    def excess(theta):
        m = made(theta)
        value = excess_over_target(m, epsilon, delta, direction, method, aimed=aims)
        if aims or chosen._exact or not checked:
            return value
        off = epsilon_excess(jax.lax.stop_gradient(m), epsilon, delta, direction, method)
        return jnp.where((value <= 0.0) & (off > 0.0), off, value)

    def moments(theta):
        by = Renyi() if chosen._reads_laws else method
        return excess_over_target(made(theta), epsilon, delta, direction, by)

    def rounded(theta, slopes):
        """The parameters in 32 bits on the private side, which are those that are certified."""
        value = jnp.exp(theta)
        up, down = (_x64.rounded(value, side, jnp.float32) for side in ("up", "down"))
        return jnp.log(jnp.where(slopes > 0.0, down, up).astype(jnp.float64))

    alone = first._structure() is first and not _curve.has_average(first)
    hinted = not chosen._exact and alone and has_cheap_moments(first)
    return Curve(
        jax.value_and_grad(excess),
        not chosen._reads_laws,
        rounded if single else lambda theta, slopes: theta,
        _EXACT if chosen._exact else _NUMERICAL if chosen._reads_laws else _SMOOTH,
        _GRAIN if single else 0.0,
        jax.value_and_grad(moments) if hinted else None,
    )


def _ray(slopes):
    return -slopes / jnp.linalg.norm(slopes)


def _distance(excess, theta, ray):
    """How far along the ray the boundary is; negative inside the feasible set."""
    return _roots.safe_root(lambda s: excess(theta + s * ray), jnp.zeros(()), 0.0, 1e-12)


def _eliminated(theta, loss, excess, optimizer, max_steps):
    """The optimum by a given optimiser, every iterate moved to the boundary along one ray."""
    ray = _ray(jax.grad(excess)(theta))

    def feasible(theta):
        return theta + jnp.maximum(_distance(excess, theta, ray), 0.0) * ray

    # outside the feasible set the loss is smooth, and constant along the ray
    start = _distance(excess, theta, ray)
    reachable = jnp.isfinite(start)
    theta = theta + (jnp.where(reachable, start, 0.0) - _MARGIN) * ray
    found, _ = descend(lambda x: loss(feasible(x)), theta, optimizer, max_steps, reachable)
    return feasible(found), ray, reachable


def _certify(theta, ray, unpack, build, excess, args, single, more=()):
    """The least of a few steps along the ray at which the parameters, as returned, are private."""

    def at(step):
        candidate = theta + step * ray
        if single:  # the caller receives float32 parameters: certify those
            candidate = jnp.log(_rounding.nearest(jnp.exp(candidate), jnp.float32))
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
