"""One likelihood ratio on a linear lattice: a law above, and one below.

Averaging adds ratios, so the lattice is linear in X = dP/dQ (the law of X is under Q), where sums
of lattice points are lattice points.

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
lost, E (X - x)_+, to the P-mass at infinity, since (X - c)_+ <= (x - c)_+ + (X - x)_+. Cells whose
Q-mass is too small for a double are left out; s = +1 puts all their P-mass at infinity, with s = -1
delta grows by their mass at most in any of the sum's terms.

Below. Everything up to a cut is collapsed to its mean (Jensen), where the lattice is anchored (and
the cut put about one step above), and so is each half of every cell beyond it. Mass beyond the last
node x moves down to it (s = +1) or is dropped (s = -1). Let C be the curve of what is left. The
law below is given by a convex piecewise linear phi <= C with kinks on the lattice, going down in Y
from the top node, where phi = C. Let E = C - phi at a node, m the mass of the cell below it, and g
the part of m that goes to the next node. On the cell, and extended beyond it, the line lies below C
iff g >= 0 and, at the half means' distances u from the node,

    g u >= E[min(distance, u); cell] - E;    at the next node E' = E - E[distance; cell] + g width.

The least such g leaves phi convex: by the same condition one cell earlier, going on with that
cell's slope would stay below C, so g <= m + (the g before). Any g in between will do, and the one
that leaves E as large as the cell's sag keeps the pattern from alternating between nodes (which
would double the loss). A node gets m - g + (the g before) >= 0: a sum of local masses, relatively
accurate in both tails. At the bottom what remains of E is lost from the mean, which goes down; an
atom there (s = +1) joins the last cell as a third point, and repays it. The recursion's rounding
is local and relative (`_allowances.RECURSION`), a node's own that of the masses that meet there.
With s = +1, let B = min(X, x). As (S - c)_+ >= (sum B_i - c)_+ + sum (X_i - x)_+ 1{sum B_j >= c},
and B_i = x where X_i > x, the first moment lost at the top may be kept at infinity, times a bound
on P{sum of t - 1 B_j >= c - x}. For any v and rate,

    P{sum of n B_j <= r} <= n P{B < v} + (e^{rate r / n} E[e^{-rate B}; B >= v])^n,

where e^{-rate B} is at most its chord over a cell: that of the first one from v on (below v the
chord is positive).

Thresholds log x are rounded, by a relative 2^-52 (1 + |log x|) in x: `_average` reads its curve
with a shift that covers it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxdp._divergences import exp_log, log_positive
from jaxdp._law import _allowances, _places
from jaxdp._law._terms import Sign, Term, either

Masses = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]

_CUTS = 4
_WITHIN, _APART = 1e-9, 2.0  # relative, of an atom's ratio; steps of a lattice from another atom
_FARTHEST = 600.0  # exponents of e
_SMALLEST = -700.0  # log of a mass; a ratio of two is a double too


class Lattice(NamedTuple):
    """The points anchor + spacing * k, k = 0 ... top, and the k about which cells are narrow."""

    anchor: jax.Array
    spacing: jax.Array
    middle: jax.Array
    top: jax.Array


class StepLaw(NamedTuple):
    """Q-masses at positions k of the lattice (repeated positions have no mass).

    `tau` is the first moment at infinity, or, below, what may be kept there in part, by `cells`.
    `dropped` bounds the Q-mass that was too small for doubles.
    """

    lattice: Lattice
    positions: jax.Array
    mass: jax.Array
    tau: jax.Array
    cells: Any = None
    dropped: jax.Array | float = 0.0


class Cells(NamedTuple):
    """What B = min(X, x) is made of: cells, their masses and means, which are rounded down.

    The last one is x alone. Mass that is missing may be anywhere.
    """

    lo: jax.Array
    hi: jax.Array
    mass: jax.Array
    mean: jax.Array

    @property
    def first(self) -> jax.Array:
        """E B, rounded down."""
        return jnp.sum(self.mass * self.mean) * (1.0 - self._rough)

    @property
    def missing(self) -> jax.Array:
        """The mass that no cell has, rounded up."""
        return jnp.maximum(1.0 - jnp.sum(self.mass), 0.0) + self._rough

    def log_mgf(self, rate: jax.Array, centre: jax.Array, least: jax.Array) -> jax.Array:
        """log E[e^{-rate (B - centre)}; B >= least], at most; inf where that is no double."""
        ends = jnp.stack([self.lo.at[0].set(least), self.hi])
        low, high = jnp.exp(jnp.minimum(-rate * (ends - centre), _FARTHEST))
        width = ends[1] - ends[0]
        share = (self.mean - ends[0]) / jnp.where(width > 0.0, width, 1.0)
        share = jnp.where(width > 0.0, jnp.clip(share, 0.0, 1.0), 1.0)
        value = jnp.log(jnp.sum(self.mass * (low + share * (high - low)))) + self._rough
        return jnp.where(rate * (centre - least) < _FARTHEST, value, jnp.inf)

    @property
    def _rough(self) -> float:
        return _allowances.sums(self.mass.size, 64)


def _cells(term: Term, lo: jax.Array, hi: jax.Array, up: int) -> tuple[jax.Array, ...]:
    """Masses and means of lo < X <= hi, mass up (+1) or down (-1) by its error; r of the mean.

    Last, the P-masses, rounded up, of cells whose Q-mass is no double: they are left out.
    """
    log_q, log_p = term.masses(log_positive(lo), log_positive(hi))
    some = (log_q > -jnp.inf) & (log_p > -jnp.inf) & (hi > lo)
    q, p = jnp.where(some, log_q, 0.0), jnp.where(some, log_p, 0.0)
    r = _allowances.masses(q, p) + term.mass_error
    tiny = some & (q <= _SMALLEST)
    lost = jnp.where(tiny, jnp.exp(jnp.where(tiny, p, 0.0)) * (1.0 + lax.stop_gradient(r)), 0.0)
    some &= ~tiny
    mass = jnp.where(some, jnp.exp(q) * (1.0 + up * lax.stop_gradient(r)), 0.0)
    mean = jnp.where(some, jnp.exp(jnp.clip(p - q, -700.0, 700.0)), 0.0)
    return mass, mean, 2.0 * lax.stop_gradient(r) * mean, lost


def support(term: Term) -> tuple[jax.Array, jax.Array]:
    """The smallest and largest finite X: 0 and infinity where the loss is unbounded.

    Lattices move with them, and so with what are atoms there: spread over nodes that stay, they
    would have a derivative where the law of a sum has no mass, and what is read of it is rounding.
    """
    low, high = (jnp.asarray(s, jnp.float64) for s in term.support)
    revealed = jnp.asarray(term.log_tau_q, jnp.float64) > -jnp.inf
    return jnp.where(revealed, 0.0, exp_log(low)), jnp.exp(jnp.minimum(high, 700.0))


def _lattice(
    low: jax.Array, high: jax.Array, largest: jax.Array, spacing: jax.Array, middle: jax.Array
) -> Lattice:
    """Anchored at low, with a finite high end (up to `largest`) on the lattice too."""
    ends = (high <= largest * (1.0 + 1e-12)) & (high > low)
    steps = _places.floor((high - low) / spacing)
    ends &= steps >= 1.0
    spacing = jnp.where(ends, (high - low) / jnp.maximum(steps, 1.0), spacing)
    top = jnp.where(ends, steps, _places.ceil((largest - low) / spacing))
    top = jnp.maximum(top, 1.0)
    middle = jnp.clip(_places.nearest((middle - low) / spacing), 0.0, top)
    return Lattice(low, spacing, middle, top)


def _on_lattice(term: Term, low: jax.Array, spacing: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where X = 0 too, a spacing not smaller with the least other X on the lattice, and its place.

    (An atom there between nodes would be spread to them, and one of them may be 0.)
    """
    least = lax.stop_gradient(exp_log(jnp.asarray(term.support[0], jnp.float64)))
    least = least * (1.0 - _allowances.ratio_nudge(least))
    place = _places.floor(least / spacing)
    some = (least > low) & (place >= 4.0) & (least < jnp.inf)
    place = jnp.where(some, place, 0.0)
    return jnp.where(some, least / jnp.maximum(place, 1.0), spacing), place


def _positions(lattice: Lattice, ladder: jax.Array) -> jax.Array:
    inner = jnp.clip(lattice.middle + jnp.asarray(ladder)[1:-1], 0.0, lattice.top)
    return jnp.concatenate([jnp.zeros((1,)), inner, lattice.top[None]])


def _snapped(positions: jax.Array, some: jax.Array, place: jax.Array, top: jax.Array) -> jax.Array:
    """With the inner position nearest to a place moved there, if that is to have a node."""
    inner = positions[1:-1]
    far = jnp.abs(inner - place)
    nearest = some & (place < top) & (far <= jnp.min(far))
    return jnp.concatenate([positions[:1], jnp.where(nearest, place, inner), positions[-1:]])


def upper(
    term: Term,
    spacing: jax.Array,
    middle: jax.Array,
    largest: jax.Array,
    ladder: jax.Array,
    s: Sign,
    limit: ArrayLike = jnp.inf,
) -> StepLaw:
    """The law above, as the module's docstring has it: of ratios up to a limit alone."""
    low, high = support(term)
    placed = _on_lattice(term, low, spacing)
    spacing, place = either(s > 0, (spacing, jnp.float64(0.0)), placed)
    high = jnp.where(place > 0.0, jnp.inf, high)
    low, high = (x * (1.0 + s * _allowances.ratio_nudge(x)) for x in (low, high))
    lattice = _lattice(low, high, largest, spacing, middle)
    positions = _snapped(_positions(lattice, ladder), place > 0.0, place, lattice.top)
    nodes = lattice.anchor + lattice.spacing * positions
    lo = jnp.concatenate([jnp.zeros((1,)), nodes[1:]])
    hi = jnp.concatenate([nodes[1:], jnp.array([jnp.inf])])
    lo, hi = jnp.minimum(lo, limit), jnp.minimum(hi, limit)
    mass, mean, error, lost = _cells(term, lo, hi, +1)
    width = nodes[1:] - nodes[:-1]
    some = width > 0.0
    share = (mean + s * error)[:-1] - nodes[:-1]
    share = jnp.clip(share / jnp.where(some, width, 1.0), 0.0, 1.0)
    right, left = mass[:-1] * share, mass[:-1] * (1.0 - share)
    zero = jnp.zeros((1,))
    out = jnp.concatenate([left, mass[-1:]]) + jnp.concatenate([zero, right])
    revealed = exp_log(jnp.asarray(term.log_tau_q, jnp.float64)) * (1.0 + _allowances.sums(0))
    excess = mass[-1] * jnp.maximum((mean + error)[-1] - nodes[-1], 0.0)
    tau = excess * (1.0 + _allowances.sums(0, 16)) + jnp.sum(lost)
    tau = either(s > 0, tau, jnp.float64(0.0))
    dropped = lax.stop_gradient(jnp.sum(jnp.where(lost > 0.0, 2.0 * jnp.exp(_SMALLEST), 0.0)))
    return StepLaw(lattice, positions, out.at[0].add(revealed), tau, None, dropped)


class _Cell(NamedTuple):
    """A cell as the recursion meets it, offsets measured from the node that it comes from."""

    mass: tuple[jax.Array, jax.Array, jax.Array]
    offset: tuple[jax.Array, jax.Array, jax.Array]
    width: jax.Array
    sag: jax.Array


def _share(cells: _Cell, start: jax.Array) -> jax.Array:
    """g of every cell, in the order of the recursion, `start` being the mass at its first node."""

    def step(carry: tuple[jax.Array, jax.Array], cell: _Cell):
        gap, before = carry
        first = sum(m * u for m, u in zip(cell.mass, cell.offset, strict=True))
        whole = sum(cell.mass)
        some = cell.width > 0.0
        least = jnp.float64(0.0)
        for z in cell.offset:
            inner = sum(m * jnp.minimum(u, z) for m, u in zip(cell.mass, cell.offset, strict=True))
            secant = jnp.where(z > 0.0, inner - gap, 0.0) / jnp.where(z > 0.0, z, 1.0)
            least = jnp.maximum(least, secant)
        wanted = (cell.sag + first - gap) / jnp.where(some, cell.width, 1.0)
        moved = jnp.minimum(jnp.maximum(least, wanted), whole + before)
        moved = jnp.where(some, moved, before)
        return (jnp.where(some, gap - first + moved * cell.width, gap), moved), moved

    return lax.scan(step, (jnp.float64(0.0), start), cells, unroll=4)[1]


def _anchor(
    term: Term, cut: jax.Array, heavy: jax.Array, spacing: jax.Array, s: Sign
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Where to cut, the mass up to there, and its mean: about one lattice step below the cut.

    And a node for the heavy atom: just below (in Y) the mean of what is next to it, and moves as
    that does; 0 for nothing.
    """
    low, high = support(term)
    highest = jnp.maximum(high, low)
    cut = jnp.minimum(jnp.maximum(cut, low + 0.5 * spacing), highest)
    revealed = exp_log(jnp.asarray(term.log_tau_q, jnp.float64)) * (1.0 - _allowances.sums(0))
    beside = heavy * (1.0 - _WITHIN), heavy * (1.0 + _WITHIN)

    def collapse(cut: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        lo, hi = jnp.stack([jnp.zeros(()), beside[0]]), jnp.stack([cut, beside[1]])
        mass, mean, error, _ = _cells(term, lo, hi, -1)
        node = (mean - 2.0 * s * error)[1] * (1.0 - s * _allowances.ratio_nudge(mean[1]))
        node = jnp.where(mass[1] > 0.0, node, 0.0)
        atom = mass[0] + revealed
        some = atom > 0.0
        mean = (mass * (mean - s * error))[0] / jnp.where(some, atom, 1.0)
        mean = jnp.clip(mean, 0.0, cut)
        mean *= 1.0 - s * _allowances.ratio_nudge(mean)
        return atom, jnp.where(some, mean, cut), node

    def further(_, cut: jax.Array) -> jax.Array:
        anchor = lax.stop_gradient(collapse(cut)[1])
        return jnp.minimum(jnp.maximum(cut, anchor + spacing), highest)

    cut = lax.fori_loop(0, _CUTS, further, cut)
    return cut, *collapse(cut)


def lower(
    term: Term,
    spacing: jax.Array,
    middle: jax.Array,
    largest: jax.Array,
    cut: jax.Array,
    ladder: jax.Array,
    s: Sign,
    limit: ArrayLike = jnp.inf,
    heavy: ArrayLike = 0.0,
) -> StepLaw:
    """The law below, as the module's docstring has it; what is below `cut`, at least, collapses.

    Of ratios up to a limit alone. A `heavy` atom there may be gets a node.
    """
    high = support(term)[1]
    heavy = jnp.where(high <= heavy * (1.0 + _WITHIN), 0.0, heavy)
    cut, atom, anchor, heavy = _anchor(term, cut, heavy, spacing, s)
    high *= 1.0 - s * _allowances.ratio_nudge(high)
    gap = jnp.where(heavy > cut, heavy - anchor, 0.0)
    place = _places.floor(lax.stop_gradient(gap / spacing))
    alone = place >= _APART
    spacing = jnp.where(alone, gap / jnp.maximum(place, 1.0), spacing)
    lattice = _lattice(anchor, jnp.where(alone, jnp.inf, high), largest, spacing, middle)
    positions = _snapped(_positions(lattice, ladder), alone, place, lattice.top)
    nodes = lattice.anchor + lattice.spacing * positions
    width = nodes[1:] - nodes[:-1]
    halves = jnp.stack([nodes[:-1], nodes[:-1] + 0.5 * width], axis=-1).reshape(-1)
    edges = jnp.minimum(jnp.maximum(jnp.concatenate([halves, nodes[-1:]]), cut), limit)
    base = jnp.repeat(nodes[:-1], 2)
    # Half cells, and last what is beyond the top node.
    ends = jnp.minimum(jnp.stack([nodes[-1], jnp.float64(jnp.inf)]), limit)
    lo, hi = (jnp.concatenate(x) for x in ((edges[:-1], ends[:1]), (edges[1:], ends[1:])))
    found = _cells(term, lo, hi, -1)
    (mass, mean, error), (top, above, beyond) = zip(
        *((x[:-1], x[-1]) for x in found[:3]), strict=True
    )
    least, most = jnp.maximum(edges[:-1] - base, 0.0), jnp.repeat(width, 2)
    offset = jnp.clip(mean - s * error - base, least, most)
    (a, b), (u, v) = (mass[::2], mass[1::2]), (offset[::2], offset[1::2])
    whole = a + b
    sag = 0.125 * whole * width
    tau = top * jnp.maximum(above - beyond - nodes[-1], 0.0) * (1.0 - _allowances.sums(0, 16))
    lowest = (nodes[:-1] <= nodes[0]) & (width > 0.0)
    at_end = jnp.where(lowest, atom, 0.0)
    # (At the lowest node no mean is to be lost.)
    first = jnp.stack([jnp.zeros(()), cut, atom, jnp.minimum(anchor, cut)])
    cells = Cells(
        *(
            lax.stop_gradient(jnp.concatenate([one[None], each, last[None]]))
            for one, each, last in zip(
                first,
                (edges[:-1], edges[1:], mass, mean - error),
                (nodes[-1], nodes[-1], top, nodes[-1]),
                strict=True,
            )
        )
    )
    zero, none = jnp.zeros((1,)), jnp.zeros_like(a)
    # The recursion goes down in Y: for s = +1 from the largest ratio, its cells reversed.
    sag_up = jnp.maximum(sag, jnp.concatenate([sag[1:], zero]))
    sag_down = jnp.where(lowest, 0.0, jnp.maximum(sag, jnp.concatenate([zero, sag[:-1]])))
    up = _Cell((a, b, none), (_where(a, u), _where(b, v), none), width, sag_up)
    offsets = _where(b, width - v), _where(a, width - u), _where(at_end, width)
    down = _Cell((b, a, at_end), offsets, width, sag_down)
    down = jax.tree.map(lambda x: x[::-1], down)
    start = either(s > 0, top, atom)
    moved = _share(either(s > 0, down, up), start)
    weights = _nodes(either(s > 0, (whole + at_end)[::-1], whole), moved, start)
    weights = either(s > 0, weights[::-1], weights)
    tau = either(s > 0, tau, jnp.float64(0.0))
    weights = jnp.maximum(weights, 0.0) * (1.0 - _allowances.RECURSION)
    return StepLaw(lattice, positions, weights, tau, cells)


def _where(mass: jax.Array, offset: jax.Array) -> jax.Array:
    return jnp.where(mass > 0.0, offset, 0.0)


def _nodes(mass: jax.Array, moved: jax.Array, start: jax.Array) -> jax.Array:
    """Node masses in the order of the recursion."""
    before = jnp.concatenate([start[None], moved[:-1]])
    rough = _allowances.sums(0, 2) * (mass + before)
    return jnp.concatenate([mass - moved + before - rough, moved[-1:]])
