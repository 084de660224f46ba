"""One likelihood ratio on a linear lattice: a law above, and one below.

Averaging adds ratios, so the lattice is linear in X = dP/dQ (the law of X is under Q), where sums of
lattice points are lattice points.

The order. Write Y = s X, with s = +1 to read the remove direction, E_Q (X - a)_+, and s = -1 for
the add direction, E_Q (1 - a X)_+ = a E_Q (Y + 1/a)_+. A measure may replace the law of one summand
when it compares in C(c) = E (Y - c)_+ for every real c: (y + r - c)_+ is such a function of y for
every value r of the other summands, so the sums compare in the same way. Raising Y, adding mass and
a mean-preserving spread go up in this order; their opposites go down. With the same mass and mean
the comparison holds for s = +1 and s = -1 at once. The masses (m, e = E[X; cell]) of
a cell are known up to relative errors r: m -> m (1 +- r), and the cell's mean e / m is moved
by 2 r of itself towards the safe side.

Above. Mass within a cell is spread to its two nodes, keeping its mean. Beyond the last node (X too
large) s = -1 moves it back to that node; s = +1 does the same and adds the first moment that is
lost, E (X - x)_+, to the P-mass at infinity, since (X - c)_+ <= (x - c)_+ + (X - x)_+.

Below. Everything up to a cut is collapsed to its mean (Jensen), where the lattice is anchored, and
so is each half of every cell beyond it. Let C be the curve of that collapsed law (s = +1, its mass
and mean kept). The law below is given by a convex piecewise linear phi <= C with kinks on the
lattice: going up, E_k = C(x_k) - phi(x_k) with E_0 = 0, the next slope is -(S_{k+1} + g_k), where
S_{k+1} is the mass above x_{k+1} and g_k the part of the cell's mass m_k that goes to its right
node. phi stays below C on the cell and, with slope <= -S_{k+1}, beyond it, iff g_k >= 0 and, at the
two half means u (measured from x_k), g_k u >= E[min(X - x_k, u); cell] - E_k. The least such g_k
leaves phi convex: by the same condition one cell earlier, continuing with that cell's slope would
stay below C, so g_k <= m_k + g_{k-1}. Any g_k in between will do, and the one that leaves E as large
as the cell's sag keeps the pattern from alternating between nodes (which would double the loss).
Node k gets m_k - g_k + g_{k-1} >= 0: a sum of local masses, relatively accurate in both tails. So
the mass of the two nodes of a cell is moved together with the mass of its neighbours: mass and mean
are kept exactly, whatever the law looks like, atoms and cells far wider than it included.
At the top, s = +1: what lies beyond the last node x moves down to it, and phi is cut at 0, where
it would become negative (convex still). As (X - c)_+ = (x - c)_+ + (X - x)_+ for c <= x, the first
moment that this loses may be kept at infinity if the sum's curve is read only up to x: the
other summands being >= 0, no threshold of this one is larger. s = -1: what lies beyond is dropped, and phi(c) - (mean -
c mass), the curve of -X, is compared from the other side, where E_0 = 0. The recursion's rounding
is local and relative: (1 - 2^-38) covers it.

Thresholds log x are rounded, by a relative 2^-52 (1 + |log x|) in x: `_average` reads its curve
with a shift that covers it.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._law._terms import Term

Masses = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]

_ULP = 2.0**-52
_MASS_ULPS = 20.0  # of `Term.masses`, and the quotient and exponentials of the two
_NUDGE = 1e-13
_SCAN_ALLOWANCE = 2.0**-38
_CUT = 0.75  # of a lattice step: what the law below collapses at its low end, at least


class Lattice(NamedTuple):
    """The points anchor + spacing * k, k = 0 ... top, and the k about which cells are narrow."""

    anchor: jax.Array
    spacing: jax.Array
    middle: jax.Array
    top: jax.Array


class StepLaw(NamedTuple):
    """Q-masses at positions k of the lattice (repeated positions have no mass).

    `tau` is the first moment at infinity; below, it is right only for thresholds up to the top.
    """

    lattice: Lattice
    positions: jax.Array
    mass: jax.Array
    tau: jax.Array


def _log(x: jax.Array) -> jax.Array:
    return jnp.where(x > 0.0, jnp.log(jnp.where(x > 0.0, x, 1.0)), -jnp.inf)


def _exp(x: jax.Array) -> jax.Array:
    some = x > -jnp.inf
    return jnp.where(some, jnp.exp(jnp.where(some, x, 0.0)), 0.0)


def _cells(term: Term, lo: jax.Array, hi: jax.Array, up: int) -> tuple[jax.Array, jax.Array]:
    """Masses and means of lo < X <= hi, mass up (+1) or down (-1) by its error; r of the mean."""
    log_q, log_p = term.masses(_log(lo), _log(hi))
    some = (log_q > -jnp.inf) & (log_p > -jnp.inf) & (hi > lo)
    q, p = jnp.where(some, log_q, 0.0), jnp.where(some, log_p, 0.0)
    r = _ULP * (_MASS_ULPS + 4.0 * jnp.abs(q) + 4.0 * jnp.abs(p))
    mass = jnp.where(some, jnp.exp(q) * (1.0 + up * lax.stop_gradient(r)), 0.0)
    mean = jnp.where(some, jnp.exp(jnp.clip(p - q, -700.0, 700.0)), 0.0)
    return mass, mean, 2.0 * lax.stop_gradient(r) * mean


def support(term: Term) -> tuple[jax.Array, jax.Array]:
    """The smallest and largest finite X: 0 and infinity where the loss is unbounded."""
    low, high = (lax.stop_gradient(jnp.asarray(s, jnp.float64)) for s in term.support)
    revealed = jnp.asarray(term.log_tau_q, jnp.float64) > -jnp.inf
    return jnp.where(revealed, 0.0, _exp(low)), jnp.exp(jnp.minimum(high, 700.0))


def _lattice(
    low: jax.Array, high: jax.Array, largest: jax.Array, spacing: jax.Array, middle: jax.Array
) -> Lattice:
    """Anchored at low, with a finite high end (up to `largest`) on the lattice too."""
    ends = (high <= largest) & (high > low)
    steps = jnp.floor((high - low) / spacing)
    ends &= steps >= 1.0
    spacing = jnp.where(ends, (high - low) / jnp.maximum(steps, 1.0), spacing)
    top = jnp.where(ends, steps, jnp.ceil((largest - low) / spacing))
    top = jnp.maximum(top, 1.0)
    middle = jnp.clip(jnp.round((middle - low) / spacing), 0.0, top)
    return Lattice(low, spacing, middle, top)


def upper(
    term: Term,
    spacing: jax.Array,
    middle: jax.Array,
    largest: jax.Array,
    ladder: jax.Array,
    s: int,
) -> StepLaw:
    """The law above, as the module's docstring has it."""
    low, high = support(term)
    nudge = 1.0 + s * _NUDGE
    lattice = _lattice(low * nudge, high * nudge, largest, spacing, middle)
    positions = jnp.clip(lattice.middle + ladder, 0.0, lattice.top)
    nodes = lattice.anchor + lattice.spacing * positions
    lo = jnp.concatenate([jnp.zeros((1,)), nodes[1:]])
    hi = jnp.concatenate([nodes[1:], jnp.array([jnp.inf])])
    mass, mean, error = _cells(term, lo, hi, +1)
    width = nodes[1:] - nodes[:-1]
    some = width > 0.0
    share = (mean + s * error)[:-1] - nodes[:-1]
    share = jnp.clip(share / jnp.where(some, width, 1.0), 0.0, 1.0)
    right, left = mass[:-1] * share, mass[:-1] * (1.0 - share)
    zero = jnp.zeros((1,))
    out = jnp.concatenate([left, mass[-1:]]) + jnp.concatenate([zero, right])
    revealed = _exp(jnp.asarray(term.log_tau_q, jnp.float64)) * (1.0 + 2.0**-50)
    excess = mass[-1] * jnp.maximum((mean + error)[-1] - nodes[-1], 0.0)
    tau = excess * (1.0 + 2.0**-48) if s > 0 else jnp.float64(0.0)
    return StepLaw(lattice, positions, out.at[0].add(revealed), tau)


class _Cell(NamedTuple):
    """Half masses and means (from the left node), width, and the sag wanted at the right node."""

    mass: tuple[jax.Array, jax.Array]
    mean: tuple[jax.Array, jax.Array]
    width: jax.Array
    sag: jax.Array


def _share(cells: _Cell, atom: jax.Array) -> tuple[jax.Array, jax.Array]:
    """g_k of every cell, and E_k at its left node."""

    def step(carry: tuple[jax.Array, jax.Array], cell: _Cell):
        gap, before = carry
        a, b = cell.mass
        first = a * cell.mean[0] + b * cell.mean[1]
        some = cell.width > 0.0
        least = jnp.float64(0.0)
        for z, inner in ((cell.mean[0], (a + b) * cell.mean[0]), (cell.mean[1], first)):
            secant = jnp.where(z > 0.0, inner - gap, 0.0) / jnp.where(z > 0.0, z, 1.0)
            least = jnp.maximum(least, secant)
        wanted = (cell.sag + first - gap) / jnp.where(some, cell.width, 1.0)
        moved = jnp.minimum(jnp.maximum(least, wanted), a + b + before)
        moved = jnp.where(some, moved, before)
        return (jnp.where(some, gap - first + moved * cell.width, gap), moved), (moved, gap)

    _, out = lax.scan(step, (jnp.float64(0.0), atom), cells, unroll=4)
    return out


def lower(
    term: Term,
    spacing: jax.Array,
    middle: jax.Array,
    largest: jax.Array,
    cut: jax.Array,
    ladder: jax.Array,
    s: int,
) -> StepLaw:
    """The law below, as the module's docstring has it; what is below `cut` is collapsed."""
    low, high = support(term)
    cut = jnp.minimum(jnp.maximum(cut, low + _CUT * spacing), jnp.maximum(high, low))
    revealed = _exp(jnp.asarray(term.log_tau_q, jnp.float64)) * (1.0 - 2.0**-50)
    mass, mean, error = (x[0] for x in _cells(term, jnp.zeros((1,)), cut[None], -1))
    atom = mass + revealed
    some = atom > 0.0
    anchor = mass * (mean - s * error) / jnp.where(some, atom, 1.0)
    anchor = jnp.where(some, jnp.clip(anchor, 0.0, cut) * (1.0 - s * _NUDGE), cut)
    lattice = _lattice(anchor, high * (1.0 - s * _NUDGE), largest, spacing, middle)
    positions = jnp.clip(lattice.middle + ladder, 0.0, lattice.top)
    nodes = lattice.anchor + lattice.spacing * positions
    width = nodes[1:] - nodes[:-1]
    halves = jnp.stack([nodes[:-1], nodes[:-1] + 0.5 * width], axis=-1).reshape(-1)
    edges = jnp.maximum(jnp.concatenate([halves, nodes[-1:]]), cut)
    base = jnp.repeat(nodes[:-1], 2)
    mass, mean, error = _cells(term, edges[:-1], edges[1:], -1)
    least, most = jnp.maximum(edges[:-1] - base, 0.0), jnp.repeat(width, 2)
    offset = jnp.clip(mean - s * error - base, least, most)
    offset = jnp.where(mass > 0.0, offset, 0.0)
    a, b = mass[::2], mass[1::2]
    cell = a + b
    sag = 0.125 * cell * width
    zero = jnp.zeros((1,))
    sag = jnp.maximum(sag, jnp.concatenate([sag[1:], zero]))
    moved, gap = _share(_Cell((a, b), (offset[::2], offset[1::2]), width, sag), atom)
    before = jnp.concatenate([atom[None], moved[:-1]])
    weights = jnp.concatenate([cell - moved + before, moved[-1:]])
    tau = jnp.float64(0.0)
    if s > 0:
        top, above, error = _cells(term, nodes[-1:], jnp.full((1,), jnp.inf), -1)
        tau = jnp.sum(top * jnp.maximum(above - error - nodes[-1:], 0.0)) * (1.0 - 2.0**-48)
        survival = jnp.concatenate([jnp.cumsum(cell[::-1])[::-1][1:], zero]) + top
        whole = survival + moved
        first = a * offset[::2] + b * offset[1::2]
        room = jnp.maximum(jnp.cumsum((survival * width + first)[::-1])[::-1] - gap, 0.0)
        some = width > 0.0
        slope = jnp.where(some, jnp.minimum(whole, room / jnp.where(some, width, 1.0)), whole)
        slope = lax.cummin(slope)
        near = slope < whole
        near |= jnp.concatenate([near[1:], jnp.ones((1,), bool)])
        steps = jnp.concatenate([slope[:-1] - slope[1:], slope[-1:]])
        weights = jnp.concatenate([weights[:1], jnp.where(near, steps, weights[1:])])
    weights = jnp.maximum(weights, 0.0) * (1.0 - _SCAN_ALLOWANCE)
    return StepLaw(lattice, positions, weights, tau)
