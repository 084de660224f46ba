"""One law above from several lattices, each of which knows a range of ratios ("remove" alone).

A lattice and a tilt know a law about one place: the bulk of an average wants steps a thousandth of
those that reach its largest ratios. Each law here is above for every ratio, and so is what is taken
from two of them. Curves are C(g) = E (X - g)_+ + tau, convex, linear between nodes.

The law's curve C is convex and below both C_1 and C_2; so it is below the chord from a point
(a, C_1(a)) to (b, C_2(b)), a < b. What is C_1 up to a, that chord, and C_2 from b on is therefore
above C, and it is a law's curve where its slopes rise: by the common tangent of both. With sigma
the slope of the chord, a keeps the mass P_1{X >= a} - sigma and b gets sigma - P_2{X > b}. Any a
and b do: a mass that came out negative is replaced by 0, which raises the curve to its left.

Running sums of positive terms are off by a relative `_allowances.running_sums`.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._law import _allowances
from jaxdp._law._average_term import Nodes, count_up_to
from jaxdp._law._intervals import interval_masses
from jaxdp._law._terms import Masses

_TURNS = 4  # of the search for a common tangent
_BETTER = 1e-9


def _curve(law: Nodes) -> tuple[jax.Array, jax.Array]:
    """C at the nodes, and P{X >= node}."""
    survival = lax.cumsum(law.mass, reverse=True)
    rise = survival[1:] * (law.x[1:] - law.x[:-1])
    value = jnp.concatenate([lax.cumsum(rise, reverse=True), jnp.zeros((1,))])
    return value + jnp.exp(law.log_tau_p), survival


def _at(law: Nodes, curve: jax.Array, survival: jax.Array, x: jax.Array) -> jax.Array:
    """C at x, a line to the left of the nodes."""
    before = jnp.maximum(law.x[0] - x, 0.0) * survival[0]
    return jnp.interp(x, law.x, curve) + before


def _last(where: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The last place that is so, 0 if none, and whether there is one."""
    k = jnp.max(jnp.where(where, jnp.arange(where.shape[0], dtype=jnp.int32), -1))
    return jnp.maximum(k, 0), k >= 0


def _largest(value: jax.Array) -> jax.Array:
    """A place of the largest value, to rounding: a compiler may work a value out twice.

    (argmax does not lower in 64 bits inside a 32-bit program.)
    """
    top = jnp.max(value)
    return _last(value >= top - 1e-14 * jnp.abs(top))[0]


def _tangent(
    one: Nodes, two: Nodes, alone: bool | jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Places of a and b, whether the second law is better everywhere, and whether the first is."""
    (c_1, p_1), (c_2, p_2) = _curve(one), _curve(two)
    start, some = _last(c_1 < _at(two, c_2, p_2, one.x) * (1.0 - _BETTER))
    onward = c_2 < _at(one, c_1, p_1, two.x) * (1.0 - _BETTER)
    onward = jnp.any(onward & (two.x > one.x[start]))
    least = 0.25 * jnp.minimum(one.step, two.step)

    def turn(_, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        gap = two.x - one.x[ends[0]]
        slope = (c_1[ends[0]] - c_2) / jnp.maximum(gap, least)
        j = _largest(jnp.where(gap > least, slope, -jnp.inf))
        gap = two.x[j] - one.x
        slope = (c_1 - c_2[j]) / jnp.maximum(gap, least)
        return _largest(jnp.where(gap > least, -slope, -jnp.inf)), j

    i, j = lax.fori_loop(0, _TURNS, turn, (start, start))
    first = some & (~onward | (two.x[j] <= one.x[i]))
    return i, j, ~some & jnp.logical_not(alone), first | alone


def _join(one: Nodes, two: Nodes, alone: bool | jax.Array) -> tuple[Nodes, jax.Array]:
    """The nodes of both, increasing, and the ratio from which on they are the second law's."""
    i, j, second, first = _tangent(*lax.stop_gradient((one, two)), alone)
    (c_1, p_1), (c_2, p_2) = _curve(one), _curve(two)
    rough = _allowances.running_sums(one.x.shape[0] + two.x.shape[0])
    a, b = one.x[i], two.x[j]
    width = jnp.where(b > a, b - a, 1.0)
    slope = (c_1[i] * (1.0 + rough) - c_2[j] * (1.0 - rough)) / width * (1.0 + rough)
    kept = jnp.maximum(p_1[i] * (1.0 + rough) - slope, 0.0) + rough * slope
    beyond = jnp.concatenate([p_2[1:], jnp.zeros((1,))])[j]
    added = jnp.maximum(slope - beyond, 0.0) + rough * slope
    place = jnp.arange(one.x.shape[0])
    left = jnp.where(place < i, one.mass, jnp.where(place == i, kept, 0.0))
    left = jnp.where(second, 0.0, jnp.where(first, one.mass, left))
    place = jnp.arange(two.x.shape[0])
    right = jnp.where(place > j, two.mass, jnp.where(place == j, added, 0.0))
    right = jnp.where(second, two.mass, jnp.where(first, 0.0, right))
    a = jnp.where(second, two.x[0], jnp.where(first, one.x[-1], a))
    b = jnp.where(second, two.x[0], jnp.where(first, one.x[-1], b))
    split = jnp.where(second, -jnp.inf, jnp.where(first, jnp.inf, 0.5 * (a + b)))
    joined = Nodes(
        jnp.concatenate([jnp.minimum(one.x, a), jnp.maximum(two.x, b)]),
        jnp.concatenate([left, right]),
        two.step,
        jnp.where(first, one.log_tau_p, two.log_tau_p),
        jnp.where(second, two.log_tau_q, one.log_tau_q),
    )
    return joined, lax.stop_gradient(split)


class Joined(NamedTuple):
    """One law of the nodes of several, and the ratios from which on they are the next one's."""

    law: Nodes
    splits: list[jax.Array]

    def curve(self, x: jax.Array) -> jax.Array:
        """C at x, above up to running sums."""
        rough = _allowances.running_sums(self.law.x.shape[0])
        return _at(self.law, *_curve(self.law), x) * (1.0 + rough)


def joined(laws: list[Nodes], alone: bool | jax.Array = False) -> Joined:
    """One law above, from several.

    From the law that knows the smallest ratios to that which knows the largest; or the first law
    alone, which then is right in whichever direction.
    """
    found, splits = laws[0], []
    for law in laws[1:]:
        found, split = _join(found, law, alone)
        splits.append(split)
    return Joined(found, splits)


def stitched(laws: list[Nodes]) -> tuple[Masses, jax.Array, jax.Array]:
    """Masses of intervals of one law above, from several: also log P{inf} and log Q{0}."""
    return as_masses(laws, joined(laws))


def as_masses(laws: list[Nodes], join: Joined) -> tuple[Masses, jax.Array, jax.Array]:
    """As `stitched`, of laws that are joined."""
    found, splits = join
    counts = [functools.partial(count_up_to, law.x, law.step) for law in laws]
    sizes = [law.x.shape[0] for law in laws]

    def index(loss: jax.Array) -> jax.Array:
        ratio = jnp.exp(jnp.minimum(loss, 700.0))
        at, before = counts[0](loss), 0
        for count, split, size in zip(counts[1:], splits, sizes, strict=False):
            before += size
            at = jnp.where(ratio >= split, before + count(loss), at)
        return at

    room = (1 << (sum(sizes) - 1).bit_length()) - sum(sizes)
    mass, x = (jnp.concatenate([v, jnp.zeros((room,))]) for v in (found.mass, found.x))
    return interval_masses(mass, mass * x, index), found.log_tau_p, found.log_tau_q
