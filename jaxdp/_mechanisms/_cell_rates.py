"""Rényi rates of a law that is known through the masses of its loss intervals: upper bounds.

With psi_s(L) = (X^s - 1 - s (X - 1)) / (s (s - 1)), X = e^L, the rate k(s) is a function of the
excess E_Q[psi_s] = (E_Q[X^s] - 1) / (s (s - 1)) (`_rates`). psi_s is >= 0 and, its second
derivative in X being X^{s-2}, convex in X for every real s.

* A cell (l_j, l_{j+1}] of Q-mass q and P-mass p has the mean ratio p/q = x_j e^u, 0 <= u <= D. By
  convexity psi_s lies below its chord between the nodes, whose mean is
  q ((1 - t) psi_s(l_j) + t psi_s(l_{j+1})) with t = (e^u - 1) / (e^D - 1): second order in D. It
  is linear in p/q, so that over all p/q which masses of relative error r allow it is largest at one
  of u -+ 2r: the larger one counts, and q e^r is at least the mass.
* Below the first node x_0 (an infinite range only): the chord between X = 0 and x_0, at most
  q max(psi_s(-inf), psi_s(l_0)). It is infinite for s <= 0.
* Above the last node x_N (an infinite range only): for s <= 0 the slope of psi_s in X is at most
  1 / (1 - s), hence at most q psi_s(l_N) + p / (1 - s). For s >= 1 nothing is known: infinite.

A Poisson sample at rate c has the ratio 1 - c + c X, which is linear in X: psi_s of it is convex in
X as well, and everything above holds with psi_s evaluated at the losses after sampling; at c < 1
the ratio at X = 0 is 1 - c > 0, and outcomes with X = 0 (Q{L = -inf}) are an atom there.

Where mass is lost (p0 = P{0 < X < inf} < 1, or q0 = Q{...} < 1), the pair conditioned on the rest
is a pair with ratio X q0/p0, and k(s) = k_0(s) + log p0/(s - 1) - log q0/s, since
E_Q[X^s; 0 < X < inf] = q0^{1-s} p0^s E_{Q0}[X0^s].
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _rates, _special
from jaxdp._mechanisms._base import Masses
from jaxdp._special import log1p

_NODES = 1024  # of each of the two scales
_END = 1e-6  # of the range: half-width of the cells that hold atoms at its ends
_LADDER = 2.0 ** np.arange(-60, 21)  # losses at which the scale of a law is looked for
_SMALLEST_SCALE = 1e-15
_FAR = 2.0**20  # beyond it a loss stands for an infinite one where the range is infinite
_NEGLIGIBLE = -80.0  # log of the mass that an infinite range leaves beyond its nodes
_LOWEST = -750.0  # a loss whose ratio is 0 in float64


class Cells(NamedTuple):
    """The cells of a law between its nodes, and what lies beyond them."""

    nodes: jax.Array
    log_q: jax.Array  # of the cells between nodes, rounded up; -inf where they are empty
    offsets: jax.Array  # (2, cells): the mean ratio's loss above the left node, at least and most
    below: jax.Array  # log Q below the first node
    above: jax.Array  # (log Q, log P) above the last node


def relative_error(log_q: jax.Array, log_p: jax.Array, mass_error: jax.Array | float) -> jax.Array:
    """The relative error that masses may have by the contract, and that of their quotient."""
    size = sum(jnp.abs(jnp.where(jnp.isfinite(x), x, 0.0)) for x in (log_q, log_p))
    return jax.lax.stop_gradient(_divergences.SLACK * (20.0 + 4.0 * size) + mass_error)


def cells(masses: Masses, low: jax.Array, high: jax.Array, mass_error: jax.Array | float) -> Cells:
    """A law in cells that serve all orders: fine about 0 on its scale, and even over its range."""
    low, high = jax.lax.stop_gradient((low, high))
    nodes = _nodes(masses, low, high)
    edges = jnp.concatenate([jnp.array([-jnp.inf]), nodes, jnp.array([jnp.inf])])
    log_q, log_p = masses(edges[:-1], edges[1:])
    error = relative_error(log_q, log_p, mass_error)
    inner_q, inner_p, r = log_q[1:-1], log_p[1:-1], error[1:-1]
    width = nodes[1:] - nodes[:-1]
    some = (inner_q > -jnp.inf) & (inner_p > -jnp.inf) & (width > 0.0)
    gap = jnp.where(some, inner_p, 0.0) - jnp.where(some, inner_q, 0.0) - nodes[:-1]
    offsets = jnp.clip(jnp.stack([gap - 2.0 * r, gap + 2.0 * r]), 0.0, jnp.maximum(width, 0.0))
    ends = jnp.stack([log_q[-1] + error[-1], log_p[-1] + error[-1]])
    return Cells(
        nodes,
        jnp.where(some, inner_q + r, -jnp.inf),
        jnp.where(some, offsets, 0.0),
        jnp.where(jnp.isinf(low), log_q[0] + error[0], -jnp.inf),
        jnp.where(jnp.isinf(high), ends, -jnp.inf),
    )


def _nodes(masses: Masses, low: jax.Array, high: jax.Array) -> jax.Array:
    """Increasing losses from end to end of the range, or to where next to nothing is left."""
    ladder = jnp.asarray(_LADDER)
    edges = jnp.concatenate([-ladder[::-1], jnp.zeros(1), ladder])
    infinite = jnp.array([jnp.inf])
    ends = jnp.concatenate([-infinite, edges, infinite])
    log_q, log_p = jax.lax.stop_gradient(masses(ends[:-1], ends[1:]))
    outer = jnp.maximum(jnp.abs(ends[:-1]), jnp.abs(ends[1:]))
    square = jnp.sum(_divergences.exp_log(log_q) * jnp.minimum(outer, 1.0) ** 2)
    scale = jnp.clip(jnp.sqrt(square), _SMALLEST_SCALE, 1.0)
    heavy = jnp.maximum(log_q, log_p)[1:-1] > _NEGLIGIBLE
    left = jnp.min(jnp.where(heavy, edges[:-1], 0.0))
    right = jnp.max(jnp.where(heavy, edges[1:], 0.0))
    left, right = jnp.minimum(left, -scale), jnp.maximum(right, scale)
    margin = _END * (jnp.minimum(high, _FAR) - jnp.maximum(low, -_FAR)) + 2.0**-40
    start = jnp.where(jnp.isinf(low), left, low - margin)
    stop = jnp.where(jnp.isinf(high), right, high + margin)
    unit = np.linspace(0.0, 1.0, _NODES)
    ends = jnp.arcsinh(start / scale), jnp.arcsinh(stop / scale)
    about = jnp.clip(scale * jnp.sinh(ends[0] + (ends[1] - ends[0]) * unit), start, stop)
    even = start + (stop - start) * unit
    inside = jnp.clip(jnp.stack([start + 2.0 * margin, stop - 2.0 * margin]), start, stop)
    return jax.lax.stop_gradient(jnp.sort(jnp.concatenate([about, even, inside])))


def _log_chord(law: Cells, at_nodes: jax.Array) -> jax.Array:
    """log of the larger mean of the chord between the nodes' values, cell by cell."""
    width = jnp.maximum(law.nodes[1:] - law.nodes[:-1], 0.0)
    wide = width > 0.0
    width = jnp.where(wide, width, 1.0)
    whole = -jnp.expm1(-width)
    right = jnp.exp(law.offsets - width) * -jnp.expm1(-law.offsets) / whole
    left = -jnp.expm1(jnp.where(wide, law.offsets, 0.0) - width) / whole
    means = _divergences.log_add(
        _divergences.log_positive(left) + at_nodes[:-1],
        _divergences.log_positive(right) + at_nodes[1:],
    )
    return jnp.maximum(means[0], means[1])


def sampled_rate_function(
    masses: Masses,
    loss_range: tuple[jax.Array, jax.Array],
    log_lost: tuple[jax.Array, jax.Array],
    mass_error: jax.Array | float,
) -> Callable[[jax.Array, jax.Array], jax.Array]:
    """(s, c) to an upper bound on k(s) of the Poisson sample at rate c, c = 1 for the law itself.

    Args:
      masses: (lo, hi) to (log Q, log P) of {lo < L <= hi}.
      loss_range: bounds on the finite losses, infinite where there is none.
      log_lost: log P{L = inf} and log Q{L = -inf}.
      mass_error: relative, of the masses, beyond roundings.
    """
    low, high = (jnp.asarray(end, jnp.float64) for end in loss_range)
    tau_p, tau_q = (jnp.asarray(tau, jnp.float64) for tau in log_lost)
    law = cells(masses, low, high, mass_error)

    def rate(s: jax.Array, c: jax.Array) -> jax.Array:
        c = jnp.asarray(c, jnp.float64)
        thinned = c < 1.0
        share = jnp.where(thinned, c, 0.5)
        revealed = jnp.where(thinned, log1p(-share), _LOWEST)  # of the ratio at X = 0
        log_p0 = _log_rest(tau_p + jnp.log(c))
        log_q0 = jnp.where(thinned, 0.0, _log_rest(tau_q))
        shift = log_p0 - log_q0
        losses = jnp.where(thinned, _rates.log_mixture(law.nodes, share), law.nodes) - shift
        at_nodes = _rates.log_psi(losses, s)
        at_zero = _rates.log_psi(revealed - shift, s)
        parts = [law.log_q + _log_chord(law, at_nodes)]
        bottom = law.below + jnp.maximum(at_zero, at_nodes[0])
        unknown = (s <= 0.0) & ~thinned & (law.below > -jnp.inf)
        parts.append(jnp.where(unknown, jnp.inf, bottom)[None])
        steep = jnp.where(s <= 0.0, 1.0 - s, 1.0)
        falls = law.above[1] - shift - jnp.log(steep)
        top = _divergences.log_add(law.above[0] + at_nodes[-1], falls)
        unknown = (s > 0.0) & (law.above[1] > -jnp.inf)
        parts.append(jnp.where(unknown, jnp.inf, top)[None])
        atom = jnp.where(thinned & (tau_q > -jnp.inf), tau_q + at_zero, -jnp.inf)
        parts.append(atom[None])
        terms = jnp.concatenate(parts)
        infinite = ~jnp.all(terms < jnp.inf)  # or nan, of masses that are not known
        total = _special.logsumexp(jnp.where(infinite, 0.0, terms)) - log_q0
        size = 1.0 + jnp.max(jnp.abs(s) * jnp.abs(losses))
        total += jax.lax.stop_gradient(_divergences.SLACK * (64.0 + 8.0 * size))
        conditional = _rates.rate_from_log_excess(jnp.where(infinite, 0.0, total), s)
        conditional += _over(log_p0, s - 1.0) - _over(log_q0, s)
        return jnp.where(infinite, jnp.inf, conditional)

    return rate


def _log_rest(log_lost: jax.Array) -> jax.Array:
    """log(1 - lost), 0 where nothing is lost."""
    some = log_lost > -jnp.inf
    return jnp.where(some, _special.log1mexp(jnp.where(some, log_lost, -1.0)), 0.0)


def _over(log_mass: Any, scale: jax.Array) -> jax.Array:
    """log_mass / scale, and 0 where nothing is lost (whose order 0 or 1 is asked for)."""
    some = (log_mass != 0.0) & (scale != 0.0)
    return jnp.where(some, log_mass / jnp.where(some, scale, 1.0), 0.0)
