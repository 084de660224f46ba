"""Maximisation of a smooth function on a box."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _checks

_STARTS = 4
_STEPS = 60
_MOST_POINTS = 2**20


def box_grid(lower: tuple[float, ...], upper: tuple[float, ...], points: int) -> np.ndarray:
    """The centres of points^d equal cells of the box, shape (points^d, d).

    Raises:
      ValueError: if there are more than 2^20 of them.
    """
    points = _checks.whole_number("grid", points, most=_MOST_POINTS)
    if points ** len(lower) > _MOST_POINTS:
        got = _checks.shown(points)
        raise ValueError(f"grid must be >= 1 with at most 2^20 points in all, got {got}")
    axes = [
        a + (b - a) * (np.arange(points) + 0.5) / points for a, b in zip(lower, upper, strict=True)
    ]
    return np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=-1)


def maximise_on_box(
    f: Callable[[jax.Array], jax.Array],
    lower: tuple[float, ...],
    upper: tuple[float, ...],
    points: int,
    lipschitz: jax.Array | None = None,
) -> jax.Array:
    """The maximum of f over a box.

    With a Lipschitz constant of f (Euclidean norm): an upper bound, the largest value at a cell
    centre plus the constant times the half diagonal of a cell. Without: the best value found by
    pattern search from the best cells, a lower bound on the maximum in general;
    its derivatives are those at the frozen maximiser (envelope theorem).
    """
    centres = jnp.asarray(box_grid(lower, upper, points), jnp.float64)
    values = jax.lax.map(f, centres, batch_size=min(4096, len(centres)))
    low, high = jnp.asarray(lower, jnp.float64), jnp.asarray(upper, jnp.float64)
    cell = (high - low) / points
    if lipschitz is not None:
        return jnp.max(values) + lipschitz * 0.5 * jnp.sqrt(jnp.sum(cell * cell))
    frozen = jax.lax.stop_gradient(values)
    starts = _largest(frozen, min(_STARTS, len(centres)))
    found = jax.vmap(lambda y: _climb(f, y, cell, low, high))(centres[starts])
    best_values = jax.vmap(f)(jax.lax.stop_gradient(found))
    return jnp.maximum(jnp.max(best_values), jnp.max(values))


def _largest(values, count):
    """Indices of the largest values (argmax and sort have no float64 kernel in 32-bit programs)."""
    indices = jnp.arange(values.shape[0])
    found = []
    for _ in range(count):
        first = jnp.min(jnp.where(values == jnp.max(values), indices, values.shape[0] - 1))
        found.append(first)
        values = jnp.where(indices == first, -jnp.inf, values)
    return jnp.stack(found)


def _climb(f, start, reach, low, high):
    """Pattern search: try a step of the current reach along every axis, halve it if none helps."""
    dimension = start.shape[0]
    moves = jnp.concatenate([jnp.eye(dimension), -jnp.eye(dimension)])

    def step(_, state):
        y, value, size = state
        trial = jnp.clip(y + moves * (size * reach), low, high)
        found = jax.vmap(f)(trial)
        best = jnp.max(found)
        better = best > value
        # the first trial that attains the best value
        chosen = jnp.min(jnp.where(found == best, jnp.arange(2 * dimension), 2 * dimension - 1))
        y = jnp.where(better, trial[chosen], y)
        return y, jnp.where(better, best, value), jnp.where(better, size, 0.5 * size)

    state = start, f(start), jnp.asarray(1.0, start.dtype)
    frozen = jax.lax.fori_loop(0, _STEPS, step, jax.lax.stop_gradient(state))
    return frozen[0]
