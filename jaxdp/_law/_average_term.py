"""The law of an average as a one-step law for the engine.

`_average` gives the weights w of the tilted law of Y = s S on a lattice, and l, the mass by which
they are off: the curve C of the lattice law is within B(c) = A e^{-theta c} l / (e theta) of C_w.
Here w becomes a law whose curve lies on one side of C for every c.

Above. Errors within the window have masses A e^{-theta y_j} e_j, sum |e_j| <= l, so that their
curve at a node y_k is at most A e^{-theta y_k} l max z e^{-theta z} over the lattice distances z up
to the window's end, n steps away. With v = theta h, beta added to every w_j adds to the curve
A e^{-theta y_k} beta times a sum over i <= n of (i h) e^{-v i}, which is at least
(1 - (1 + n v) e^{-n v}) h / v^2 - h / (e v); and l more at the last node adds l n h e^{-n v}, which
suffices while n v <= 1. From there on the sum does with beta = 8 l v / e if v <= 0.3, since
1 - 2 / e = 0.264 and 8 (0.264 - 0.368 v) >= 1; beta = l always does, term by term. What lies beyond
the window is put at its last node, and its first moment past that (s = +1) at infinity, or (s = -1)
its mass at X = 0. Far to the left the errors e^{-theta y} outgrow the law itself. But no slope of C
is steeper than the mass M of the lattice law: from the first node on where what lies beyond is at
most M, the curve continues to the left with slope -M, which is above everywhere, to the left of
the window too.

Below. Let F = C_w - B at the nodes, which is at most C. The law below is given by its slopes G,
those of F: from the first node used on, made monotone by a running minimum, and cut to 0 from the
first cell on where F rises or ends below 0. That only lowers phi = sum G h, and F is >= 0 where it
is cut, so phi <= F <= C at the nodes; C is linear between them. To the left of the first node used
phi goes on with the slope (mass of w from that node on) - A e^{-theta y} l, and no more: a mass
that C surely has there. The first node is the one where this is largest.

Functions that do not vanish at the far end (of a law that is tabulated, see `_table`) see the mass
there as well: for s = +1 that of sums at X = 0 stays, and for s = -1 the P-mass that the law above
lacks of 1 is put at X = infinity, where reversed ratios are 0.

Points are moved by the shift of `_average` to the safe side. Masses of intervals are sums over a
binary tree: at most 2 log2 N additions of positive terms each.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._divergences import log_positive
from jaxdp._law import _allowances
from jaxdp._law._average import Total, _slack, curve
from jaxdp._law._intervals import interval_masses
from jaxdp._law._terms import Sign, Term, either

_E = 2.718281828459045
_SMALLEST = 1e-280  # what underflow may lose


class Nodes(NamedTuple):
    """A law on ratios x, increasing by steps (to 0, where there is no mass), and its two ends."""

    x: jax.Array
    mass: jax.Array
    step: jax.Array
    log_tau_p: jax.Array
    log_tau_q: jax.Array


def as_term(law: Total, term: Term, s: Sign, side: int) -> Term:
    """The term whose "remove" (s = +1) or "add" (s = -1) reading is above or below."""
    return of_nodes(nodes(law, term, s, side), ends(law, term, s, side))


def of_nodes(at: Nodes, support: tuple[jax.Array, jax.Array]) -> Term:
    """The law of nodes as a term."""
    masses = interval_masses(at.mass, at.mass * at.x, functools.partial(count_up_to, at.x, at.step))
    return Term(masses, 1.0, at.log_tau_p, at.log_tau_q, support)


def nodes(law: Total, term: Term, s: Sign, side: int) -> Nodes:
    """The law above or below, the direction's."""
    size = law.weights.shape[0]
    y = law.start + law.spacing * jnp.arange(size, dtype=jnp.float64)
    mass, beyond = (_above if side > 0 else _below)(law, y)
    x = jnp.maximum((s * y + s * side * law.shift) / law.steps, 0.0)
    nothing = (x <= 0.0) | ((law.ends[0] <= 0.0) & (jnp.abs(y) < 0.5 * law.spacing))
    at_zero = jnp.sum(jnp.where(nothing, mass, 0.0))
    mass = jnp.where(nothing, 0.0, mass)
    tau, lost = jnp.exp(jnp.asarray(term.log_tau_p, jnp.float64)), either(s > 0, 0.0, beyond)
    if side > 0:  # (reversed, all mass is to be there)
        all_of_it = 1.0 - jnp.sum(mass * x) * (1.0 - _allowances.sums(size))
        tau = either(s > 0, law.tau + beyond / law.steps, jnp.maximum(law.tau, all_of_it))
    log_tau_q = log_positive(at_zero + lost)
    x, mass = either(s > 0, (x, mass), (x[::-1], mass[::-1]))
    return Nodes(x, mass, law.spacing / law.steps, log_positive(tau), log_tau_q)


def ends(law: Total, term: Term, s: Sign, side: int) -> tuple[jax.Array, jax.Array]:
    """The smallest and the largest finite loss, where there are such; above, as nodes are moved."""
    low, high = (jnp.asarray(e, jnp.float64) for e in term.support)
    moved = law.shift / law.steps if side > 0 else 0.0
    least, largest = (
        law.ends[0] - either(s > 0, 0.0, moved),
        law.ends[1] + either(s > 0, moved, 0.0),
    )
    return (
        jnp.where(jnp.isfinite(low), log_positive(least), -jnp.inf),
        jnp.where(jnp.isfinite(high), log_positive(largest), jnp.inf),
    )


def _above(law: Total, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Masses of the nodes, and for what lies beyond the window: first moment (s = +1) or mass."""
    v = law.theta * law.spacing
    beta = jnp.where(v <= 0.3, jnp.minimum(8.0 * v / _E, 1.0), 1.0) * law.stray
    nobody = jnp.zeros((1,), bool)
    last = law.possible & ~jnp.concatenate([law.possible[1:], nobody])
    first = law.possible & ~jnp.concatenate([nobody, law.possible[:-1]])
    weights = law.weights + jnp.where(law.possible, beta, 0.0) + jnp.where(last, law.stray, 0.0)
    exponent = law.log_scale - law.theta * (y - law.origin)
    size = y.shape[0]
    exponent += _slack(law, y) + _allowances.running_sums(size)
    unit = jnp.exp(jnp.clip(exponent, -690.0, 690.0))
    mass = weights * unit
    # (No more than surely is there, and all of it: else the sums' rounding would be cut off.)
    rough = _allowances.power(jnp.log(law.mass), law.steps, size) + _allowances.running_sums(size)
    whole = law.mass * (1.0 + rough)
    onward = lax.cumsum(mass, reverse=True)
    order = jnp.arange(y.shape[0])
    start = jnp.max(
        jnp.where(onward > whole, order + 1, jnp.min(jnp.where(first, order, order[-1])))
    )
    start = jnp.minimum(start, jnp.max(jnp.where(last, order, 0)))
    mass = jnp.where(order > start, mass, 0.0)
    mass += jnp.where(order == start, whole - jnp.sum(mass), 0.0)
    end = jnp.sum(jnp.where(last, unit, 0.0))
    past = law.beyond * end * jnp.where(law.origin > 0.0, 1.0 / (_E * law.theta), 1.0)
    return mass, past + _SMALLEST


def _below(law: Total, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Masses of the nodes, and 0."""
    at = curve(law, law.origin, -1)
    unit = jnp.exp(jnp.clip(-law.theta * (y - law.origin), -650.0, 650.0))
    zero = jnp.zeros((1,))
    sure = at.survival - law.stray * unit  # beyond and at node k
    value = at.value
    usable = value > -jnp.inf
    best = jnp.maximum(jnp.max(jnp.where(usable, sure, 0.0)), 0.0)
    value = jnp.where(usable, value, 0.0)
    order = jnp.arange(y.shape[0])
    first = jnp.min(jnp.where(usable & (sure >= best), order, y.shape[0] - 1))
    slope = (value[:-1] - value[1:]) / law.spacing
    slope = jnp.where(usable[:-1] & usable[1:], slope, 0.0)
    used = order[:-1] >= first
    alive = (slope > 0.0) & (value[1:] >= 0.0)
    alive = lax.cummin(jnp.where(used, alive, True).astype(jnp.int32)) > 0
    slope = jnp.where(used, jnp.minimum(slope, best), best)
    slope = jnp.where(alive, lax.cummin(slope), 0.0)
    before = jnp.concatenate([best[None], slope])
    mass = jnp.where(order >= first, before - jnp.concatenate([slope, zero]), 0.0)
    scale = jnp.exp(jnp.clip(at.log_unit, -690.0, 690.0)) * (
        1.0 - _allowances.running_sums(y.shape[0])
    )
    # (What is beyond the range of a double is dropped.)
    scale = jnp.where(at.log_unit > -690.0, scale, 0.0)
    return jnp.maximum(mass, 0.0) * scale, jnp.float64(0.0)


def count_up_to(x: jax.Array, step: jax.Array, loss: jax.Array) -> jax.Array:
    """How many points have log x <= loss."""
    size = x.shape[0]
    at = (jnp.exp(jnp.minimum(loss, 700.0)) - lax.stop_gradient(x[-1])) / step
    return jnp.clip(jnp.floor(at) + size, 0.0, size).astype(jnp.int32)
