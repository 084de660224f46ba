"""Closed-form curves, and epsilon as their roots."""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxdp import _devices, _divergences, _numerical_outcomes, _roots
from jaxdp._law import Bounds, Sides
from jaxdp._mechanisms import Direction, Mechanism, _curve
from jaxdp._methods._base import Method

_ROOT_TOLERANCE = (1e-12, 1e-14)  # relative, absolute
_ROUNDED = 2.0**-50
_STRAIGHT = 40.0 * math.log(2.0)
_UNSURE = 2.0**-36  # of a log probability of failure: a sum over enumerated outcomes at most
_ROWS, _OUTCOME_BYTES = 64, 2048  # at a time on a CPU, of enumerated outcomes, and of one of these


@dataclasses.dataclass(frozen=True)
class Analytic(Method):
    """The closed-form curve; a query raises ValueError where the mechanism has none.

    Example:
      >>> import jaxdp
      >>> jaxdp.delta_bounds(jaxdp.Laplace(1.0), 2.0, method=jaxdp.Analytic())[1].item()
      0.0
    """

    _exact: ClassVar = True
    _margin: ClassVar = 1e-11
    _root_error: ClassVar = _ROOT_TOLERANCE

    def _refusal(self, m: Mechanism) -> str | None:
        return None if _curve.is_exact(m) else "this mechanism has no closed form"

    def _chunk(self, m: Mechanism, leaves: Sequence[Any]) -> int | None:
        bytes_of_all = _numerical_outcomes.number(m) * _OUTCOME_BYTES
        return _devices.rows_at_a_time(_ROWS, bytes_of_all, leaves) if bytes_of_all else None

    def _log_delta(self, m: Mechanism, epsilon: jax.Array, direction: Any, sides: Sides) -> Bounds:
        def one(d: Direction) -> Bounds:
            return tuple(_curve.log_curve(m, epsilon, d, x * _divergences.SLACK) for x in sides)

        return _curve.worst(m, direction, one)

    def _epsilon(self, m: Mechanism, delta: jax.Array, direction: Any, sides: Sides) -> Bounds:
        step, log_delta = _curve.single(_curve.canonical_terms(m)), jnp.log(delta)
        assert step is not None  # an exact curve is that of one step

        def one(d: Direction) -> Bounds:
            found = _roots_of_curve(m, log_delta, d, sides)
            most, lost = _curve.end(m, d)
            most = jnp.where((lost > -jnp.inf) & ~(step._failure(d) <= delta), jnp.inf, most)
            return tuple(jnp.maximum(jnp.minimum(e, most), 0.0) for e in found)

        return _curve.worst(m, direction, one)


def _roots_of_curve(m: Mechanism, log_target: jax.Array, d: Direction, sides: Sides) -> Bounds:
    """The root of the closed-form curve: above it for side 1, below it for side -1.

    Where delta is the failure but for its rounding, epsilon at a little more of it is below.
    """
    log_failure = m._log_failure(d)
    feasible = log_failure < log_target
    near = ~feasible & (log_failure <= log_target + _UNSURE)

    most = jax.lax.stop_gradient(_curve.end(m, d)[0])

    def one(side: int) -> jax.Array:
        sought = feasible | near if side < 0 else feasible
        target = jnp.where(feasible, log_target, log_failure + 2.0 * _UNSURE)
        target = jnp.where(sought, target, 0.0)
        start = jnp.where(sought, 1.0, jnp.nan)

        def excess(x):
            return _curve.log_curve(m, _before(most, x), d, side * _divergences.SLACK) - target

        relative, absolute = _ROOT_TOLERANCE
        x = _roots.safe_root(excess, start, relative, absolute, lambda x: _size(most, x))
        found = jnp.isfinite(x)
        root = _before(most, jnp.where(found, x, 0.0))
        if side < 0:  # a point less by the tolerance is known to miss the target
            root = jnp.where(found, root, 0.0)
            root = root - 2.0 * (relative * jnp.abs(root) + absolute)
        else:  # (rounded here as there, or not)
            root = jnp.where(found, root + _ROUNDED * jnp.abs(root), jnp.inf)
            # (Of a delta that is met at 0 the root is within the tolerance of it.)
            none = jax.lax.stop_gradient(excess(jnp.zeros_like(root))) <= 0.0
            root = jnp.where(none, 0.0, root)
        return jnp.where(sought, jnp.maximum(root, 0.0), jnp.inf)

    return tuple(one(side) for side in sides)


def _before(most: jax.Array, x: jax.Array) -> jax.Array:
    """Epsilons for x: about x (times `most`, if that is below 1), but less than the largest loss.

    A curve of bounded losses falls next to their end like a power of the distance to it, which is
    e^-x here: its logarithm is nearly a line. Past 2^-40 of the distance it goes straight through.
    """
    bounded, scale, y = _part(most, x)
    far = y > _STRAIGHT
    share = -jnp.expm1(-jnp.where(far, _STRAIGHT, y))
    beyond = math.exp(-_STRAIGHT) * jnp.where(far, y - _STRAIGHT, 0.0)
    return jnp.where(bounded, scale * (share + beyond), x)


def _size(most: jax.Array, x: jax.Array) -> jax.Array:
    """How much x may change for that of epsilon to be all of it: at most, next to the end."""
    bounded, scale, y = _part(most, x)
    most_of_all = jnp.maximum(scale, 1.0) * jnp.expm1(jnp.clip(y, 0.0, _STRAIGHT))
    return jnp.where(bounded, jnp.maximum(most_of_all, jnp.abs(x)), jnp.abs(x))


def _part(most: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Whether losses are bounded; by what, if so; x in units of that."""
    bounded = jnp.isfinite(most) & (most > 0.0)
    scale = jnp.where(bounded, most, 1.0)
    return bounded, scale, x / jnp.maximum(scale, 1.0)
