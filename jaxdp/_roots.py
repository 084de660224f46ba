"""Certified one-dimensional root finding, with implicit derivatives.

`safe_root` returns a point where a constraint f(x) <= 0 holds, next to where it stops holding.
The point returned was itself evaluated: no tolerance is taken on trust.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

_MAX_STEPS = 200


class _State(NamedTuple):
    x: jax.Array
    bad: jax.Array  # largest point known to violate the constraint, -inf at first
    good: jax.Array  # smallest point known to satisfy it, +inf at first
    step: jax.Array  # expansion step while a side of the bracket is open
    count: jax.Array
    done: jax.Array


def _search(f, start, relative_tolerance, absolute_tolerance) -> jax.Array:
    """Newton's method, aimed half a tolerance into the safe side, inside a closing bracket."""

    def body(s: _State) -> _State:
        value, slope = jax.jvp(f, (s.x,), (jnp.ones_like(s.x),))
        satisfied = value <= 0.0  # false for nan
        good = jnp.where(satisfied, s.x, s.good)
        bad = jnp.where(satisfied, s.bad, s.x)
        tolerance = relative_tolerance * jnp.abs(s.x) + absolute_tolerance
        newton = s.x - value / slope
        close = satisfied & ((s.x - newton <= tolerance) | (s.x - bad <= tolerance))
        reach = 4.0 * (jnp.abs(s.x) + s.step)
        target = jnp.clip(newton + 0.5 * tolerance, s.x - reach, s.x + reach)
        usable = (target > bad) & (target < good)
        open_right, open_left = jnp.isinf(good), jnp.isinf(bad)
        middle = 0.5 * (jnp.where(open_left, 0.0, bad) + jnp.where(open_right, 0.0, good))
        fallback = jnp.where(open_right, s.x + s.step, jnp.where(open_left, s.x - s.step, middle))
        # every fourth step halves the bracket, so that a bad slope cannot stall the search
        halve = (s.count % 4 == 3) & (s.count > 12) & ~open_left & ~open_right
        x = jnp.where(usable & ~halve, target, fallback)
        step = jnp.where(usable, s.step, 2.0 * s.step)
        done = close | (good - bad <= tolerance) | ~jnp.isfinite(x)
        return _State(jnp.where(done, s.x, x), bad, good, step, s.count + 1, done)

    start = jnp.asarray(start, jnp.float64)
    state = _State(
        start,
        jnp.full_like(start, -jnp.inf),
        jnp.full_like(start, jnp.inf),
        jnp.maximum(jnp.abs(start), 1.0),
        jnp.zeros((), jnp.int32),
        jnp.isnan(start),
    )
    state = jax.lax.while_loop(lambda s: ~s.done & (s.count < _MAX_STEPS), body, state)
    return state.good


def safe_root(
    f: Callable[[jax.Array], jax.Array],
    start: jax.Array,
    relative_tolerance: float = 1e-12,
    absolute_tolerance: float = 1e-300,
) -> jax.Array:
    """The least x with f(x) <= 0, for f decreasing through 0, from the side where f(x) <= 0.

    The distance to the root is at most the tolerance (estimated by Newton's step); +inf if no
    such point is found. Derivatives with respect to what f closes over are implicit:
    dx = -df / f'(x).

    Args:
      f: scalar function, differentiable in forward mode; nan counts as a violation.
      start: where to begin, any finite number; nan gives +inf.
    """
    return jax.lax.custom_root(
        f,
        start,
        lambda g, x0: _search(g, x0, relative_tolerance, absolute_tolerance),
        lambda g, y: y / g(jnp.ones_like(y)),
    )
