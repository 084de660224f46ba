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
    streak: jax.Array  # how many points in a row fell on the same side
    side: jax.Array  # whether the last point satisfied the constraint
    count: jax.Array
    done: jax.Array


def _search(f, start, relative_tolerance, absolute_tolerance) -> jax.Array:
    """Newton's method aimed just across the root, until the bracket is as tight as the tolerance.

    Steps that keep falling short of crossing are doubled, and those that would leave the bracket
    halve it: neither a misleading slope nor a flat or infinite value can stall or end the search.
    """

    def body(s: _State) -> _State:
        value, slope = jax.jvp(f, (s.x,), (jnp.ones_like(s.x),))
        satisfied = value <= 0.0  # false for nan
        good = jnp.where(satisfied, s.x, s.good)
        bad = jnp.where(satisfied, s.bad, s.x)
        streak = jnp.where(satisfied == s.side, s.streak + 1, 0)
        tolerance = relative_tolerance * jnp.abs(s.x) + absolute_tolerance
        across = jnp.where(satisfied, -0.4, 0.4) * tolerance
        unit = jnp.maximum(jnp.abs(s.x), 1.0)
        growth = jnp.exp2(jnp.maximum(streak - 2, 0).astype(jnp.float64))
        step = jnp.clip(growth * (across - value / slope), -4.0 * unit, 4.0 * unit)
        newton = s.x + step
        bracketed = jnp.isfinite(good) & jnp.isfinite(bad)
        usable = (newton > bad) & (newton < good)
        middle = 0.5 * (bad + good)
        blind = s.x + jnp.sign(across) * unit * growth
        x = jnp.where(usable, newton, jnp.where(bracketed, middle, blind))
        done = (
            (good - bad <= tolerance) | ~jnp.isfinite(x) | (bracketed & ((x <= bad) | (x >= good)))
        )
        return _State(jnp.where(done, s.x, x), bad, good, streak, satisfied, s.count + 1, done)

    start = jnp.asarray(start, jnp.float64)
    state = _State(
        start,
        jnp.full_like(start, -jnp.inf),
        jnp.full_like(start, jnp.inf),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
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

    A point less by the tolerance was evaluated too and violates the constraint (f need not be
    monotone for the result to satisfy it); +inf if no satisfying point is found. Derivatives with
    respect to what f closes over are implicit: dx = -df / f'(x).

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
