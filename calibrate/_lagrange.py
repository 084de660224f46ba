"""Minimise f subject to c <= 0: sequential quadratic programming, one evaluation a step.

In logarithms of parameters a loss and a privacy curve are close to sums of exponentials: their
curvature is near the size of their slopes. A diagonal of slopes, corrected by the last few steps
(L-BFGS of the Lagrangian), solves hundreds of them in some ten steps.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

_MEMORY = 8
_CURVATURE = 2.0  # of e^{2 x}, over its slope
_LEAST = 1e-6  # of the diagonal, over its largest entry
_PENALTY = 4.0  # times the multiplier: of the constraint's square
_LONGEST = 1.5  # step of a parameter's logarithm
_SHORTEST = 1e-7  # share of a step after which the search has stalled
_NEAR = 0.5  # of the constraint: how far from it the loss does not count, and how far one may fall
_BLIND = 24  # places to look at for a first one with slopes


class Point(NamedTuple):
    """Where both functions have been evaluated: their values and slopes."""

    x: jax.Array
    f: jax.Array
    g: jax.Array
    c: jax.Array
    a: jax.Array

    def usable(self) -> jax.Array:
        sums = self.f + self.c + jnp.sum(self.g) + jnp.sum(self.a)
        return jnp.isfinite(sums) & jnp.any(self.a != 0.0)


class _State(NamedTuple):
    at: Point
    found: jax.Array  # whether `at` is usable
    near: jax.Array  # whether the constraint has been about met: the loss counts from there on
    step: jax.Array
    share: jax.Array  # of the step, that is tried next
    multiplier: jax.Array
    slope: jax.Array  # of the merit along the step
    moves: jax.Array  # (memory, n): steps, and the changes of the Lagrangian's gradient
    turns: jax.Array
    scale: jax.Array  # of the diagonal
    count: jax.Array
    done: jax.Array


def _merit(at: Point, multiplier: jax.Array, penalty: jax.Array) -> jax.Array:
    """The augmented Lagrangian, of an equality where the multiplier is positive."""
    off = jnp.where(multiplier > 0.0, at.c, jnp.maximum(at.c, 0.0))
    return at.f + multiplier * at.c + 0.5 * penalty * off**2


def _diagonal(at: Point, multiplier: jax.Array) -> jax.Array:
    size = _CURVATURE * (jnp.abs(at.g) + multiplier * jnp.abs(at.a))
    return jnp.maximum(size, _LEAST * jnp.max(size)) + 1e-300


def _inverse(vectors: jax.Array, diagonal: jax.Array, moves: jax.Array, turns: jax.Array):
    """The approximate inverse of the Hessian times the columns: L-BFGS, the newest pair last."""
    products = jnp.sum(moves * turns, axis=1)
    some = products > 0.0
    inverse = jnp.where(some, 1.0 / jnp.where(some, products, 1.0), 0.0)

    def back(i, state):
        q, alphas = state
        k = _MEMORY - 1 - i
        alpha = inverse[k] * (moves[k] @ q)
        return q - turns[k][:, None] * alpha, alphas.at[k].set(alpha)

    def forth(k, q):
        beta = inverse[k] * (turns[k] @ q)
        return q + moves[k][:, None] * (alphas[k] - beta)

    alphas = jnp.zeros((_MEMORY, vectors.shape[1]))
    q, alphas = jax.lax.fori_loop(0, _MEMORY, back, (vectors, alphas))
    return jax.lax.fori_loop(0, _MEMORY, forth, q / diagonal[:, None])


def multiplier_of(at: Point) -> jax.Array:
    """A first estimate: what the loss changes by where all parameters change alike."""
    size = jnp.sum(jnp.abs(at.a))
    return jnp.sum(jnp.abs(at.g)) / jnp.where(size > 0.0, size, 1.0)


def _remembered(s: _State, new: Point, keep: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The memory with one more pair, damped where curvature is missing (Powell 1978)."""
    move = new.x - s.at.x
    turn = new.g - s.at.g + s.multiplier * (new.a - s.at.a)
    bend = s.scale * _diagonal(s.at, s.multiplier) * move
    along, expected = turn @ move, bend @ move
    low = along < 0.1 * expected
    share = jnp.where(low, 0.9 * expected / jnp.where(low, expected - along, 1.0), 1.0)
    turn = share * turn + (1.0 - share) * bend
    keep = keep & (expected > 0.0)
    ratio = s.scale * (turn @ move) / jnp.where(expected > 0.0, expected, 1.0)
    moves = jnp.where(keep, jnp.concatenate([s.moves[1:], move[None]]), s.moves)
    turns = jnp.where(keep, jnp.concatenate([s.turns[1:], turn[None]]), s.turns)
    return moves, turns, jnp.where(keep, jnp.clip(ratio, 0.1, 10.0), s.scale)


class _Step(NamedTuple):
    """Of the quadratic program: its multiplier and step, the merit's slope, what it is to gain."""

    multiplier: jax.Array
    step: jax.Array
    slope: jax.Array
    gain: jax.Array


def _step(
    at: Point,
    near: jax.Array,
    multiplier: jax.Array,
    moves: jax.Array,
    turns: jax.Array,
    scale: jax.Array,
) -> _Step:
    """The least of the Lagrangian's model where the constraint's holds; far away, just that."""
    diagonal = scale * _diagonal(at, multiplier)
    columns = _inverse(jnp.stack([at.g, at.a], axis=1), diagonal, moves, turns)
    own, other = columns[:, 0], columns[:, 1]
    bend = at.a @ other
    some = bend > 0.0
    bend = jnp.where(some, bend, 1.0)
    after = jnp.where(some, jnp.maximum((at.c - at.a @ own) / bend, 0.0), multiplier)
    step = jnp.where(near, -own - after * other, -(at.c / bend) * other)
    after = jnp.where(near, after, multiplier)
    step *= jnp.minimum(1.0, _LONGEST / jnp.maximum(jnp.max(jnp.abs(step)), 1e-300))
    off = jnp.where(after > 0.0, at.c, jnp.maximum(at.c, 0.0))
    fall = (at.g + after * at.a) @ step
    slope = fall + _PENALTY * multiplier_of(at) * off * (at.a @ step)
    return _Step(after, step, jnp.minimum(slope, 0.0), -0.5 * fall)


def solve(
    evaluate: Callable[[jax.Array], Point],
    start: jax.Array,
    low: jax.Array,
    high: jax.Array,
    tolerance: float,
    slack: jax.Array | float,
    max_steps: int | jax.Array,
) -> tuple[Point, jax.Array]:
    """A local minimum between low and high, and its multiplier (0 where the constraint is slack).

    Args:
      evaluate: x -> Point; what is not finite, or has no slope, is never gone to.
      start: where to begin: there, or with all entries moved by the same, both are finite.
      tolerance: a step that gains less of the loss, times its slopes, ends the search.
      slack: by how much the constraint may be off, either way.
    """

    def body(s: _State) -> _State:
        trial = jnp.clip(s.at.x + s.share * s.step, low, high)
        new = evaluate(trial)
        penalty = _PENALTY * multiplier_of(s.at)
        least = 1e-14 * (jnp.abs(s.at.f) + s.multiplier * jnp.abs(s.at.c))
        most = _merit(s.at, s.multiplier, penalty) + 1e-4 * s.share * s.slope + least
        better = _merit(new, s.multiplier, penalty) <= most
        better &= new.c >= jnp.minimum(s.at.c, 0.0) - _NEAR  # no leap to where all is private
        better = jnp.where(s.near, better, jnp.abs(new.c) < jnp.abs(s.at.c))
        better = new.usable() & (~s.found | better)
        near = s.near | (jnp.abs(new.c) <= _NEAR)
        moves, turns, scale = _remembered(s, new, better & s.found)
        first = jnp.where(s.found, s.multiplier, multiplier_of(new))
        after, step, slope, gain = _step(new, near, first, moves, turns, scale)
        met = (new.c <= slack) & ((after <= 0.0) | (new.c >= -slack))
        enough = tolerance * jnp.sum(jnp.abs(new.g)) + 1e-15 * jnp.abs(new.f)
        at = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, s.at)
        # (Before the first usable point: further and further, on both sides in turn.)
        blind = jnp.where(s.count % 2 == 0, 1.0, -1.0) * (0.5 * s.count + 1.0)
        aside = jnp.where(s.found, s.step, jnp.full_like(s.step, blind))
        share = jnp.where(better, 1.0, jnp.where(s.found, 0.3 * s.share, 1.0))
        lost = ~better & jnp.where(s.found, share < _SHORTEST, s.count >= _BLIND)
        return _State(
            at,
            s.found | better,
            jnp.where(better, near, s.near),
            jnp.where(better, step, aside),
            share,
            jnp.where(better, after, s.multiplier),
            jnp.where(better, slope, s.slope),
            moves,
            turns,
            scale,
            s.count + 1,
            lost | (better & met & (gain <= enough)),
        )

    nothing = jnp.zeros((), jnp.float64)
    memory = jnp.zeros((_MEMORY, start.size))
    unknown = Point(start, nothing, jnp.zeros_like(start), nothing, jnp.zeros_like(start))
    state = _State(
        unknown,
        jnp.zeros((), bool),
        jnp.zeros((), bool),
        jnp.zeros_like(start),
        nothing + 1.0,
        nothing,
        nothing,
        memory,
        memory,
        nothing + 1.0,
        jnp.zeros((), jnp.int32),
        jnp.zeros((), bool),
    )
    state = jax.lax.while_loop(lambda s: ~s.done & (s.count < max_steps), body, state)
    found = jnp.where(state.found, state.at.c, jnp.inf)
    return state.at._replace(c=found), state.multiplier
