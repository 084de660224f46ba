"""One cell at a time: a law on a grid above, and one below, the given law.

Notation. X = e^L is the likelihood ratio under Q, C(a) = E_Q (X - a)_+ its curve (the "remove"
hockey stick without the mass at infinity), x_k = e^{l_k} the nodes. A cell (l_j, l_{j+1}] has
Q-mass m, P-mass e = E_Q[X; cell] and mean ratio e/m = x_j e^u, 0 <= u <= D = l_{j+1} - l_j.

The order. Only the remove direction is read from a law; the add direction of a pair is the remove
direction of the reversed pair (`_terms.orient`). Composition multiplies ratios, and
x -> (x y - a)_+ is increasing, convex and 0 at 0 for every y, a >= 0. So measures (not
necessarily probabilities) may replace X as soon as their curves compare,

    C'(a) >= C(a) for all a >= 0  (upper),      C'(a) <= C(a) for all a >= 0  (lower),

one factor at a time, and the composed curves compare in the same way.

Upper. Within a cell (X - a)_+ is convex, so it lies below its chord; the chord's expectation is the
two-point law with the same m and e: right node P-mass e (1 - e^-u) / (1 - e^-D), left node P-mass
e e^-u (1 - e^-(D-u)) / (1 - e^-D). Below the grid the chord between 0 and x_0 leaves P-mass e at
x_0. Above it (X - a)_+ <= X: P-mass e at infinity. The chord's expectation grows with e and falls
with m, so rounding is covered by e -> e (1 + r) and u -> min(u + 2r, D), where r bounds the
relative error of the masses; where the minimum acts, all of e sits at the right end, and
(X - a)_+ <= X (1 - a / x_{j+1})_+ shows that to be above as well.

Lower. What is nearer to a node than to any other is collapsed to its mean (Jensen: below). So a
cell holds at most two atoms, that of its left node and that of its right one; where a law is
narrow and its mean is a node, there is none at all. Let w be the two-point spread
of that collapsed law, C_w its curve; over each cell C_w is the chord, above the collapsed curve by
the sag s(a), which is largest at one of the two means. Lower C_w at the nodes by E_k >= 0:
phi = C_w - E at the nodes, linear between. On cell j the interpolant of E is at least
min(E_j, E_{j+1}), so

    E_j >= s_j and E_{j+1} >= s_j   =>   phi <= C on the cell,            s_j = max over the cell.

E_k = max(s_{k-1}, s_k) does that. It is second order, and its second differences (s is about
m x D / 8) stay below w, which keeps phi convex, wherever the mass per cell changes by less than a
factor of about eight. Three places need more:
* The first occupied cell. E may usefully not exceed the put B(a) = E_w (a - X)_+; where it would,
  it is replaced by it, there and at the next node inwards. With E = B at both ends of a cell phi
  is e_w - m_w a <= C. (The extra node inwards had E <= B, so it is raised, and the next cell keeps
  both its ends >= s.) A narrow bulk at the low end moves down to its node (which lowers X); there
  E = 0, so that no mean is lost, and at the next node E is at least the put of the rest of the
  cell: phi is then the line from C(x_0), at least as steep as C is at x_0.
  (Unless that put is much of what comes after the cell, which then is a steep one, see below.)
* The last occupied cell. E may not exceed the call C_w (phi would be negative); where it would, it
  is replaced by it and phi ends there. On the cell before, phi is the line from
  C_w(x_j) - E_j to 0 at x_{j+1}: at most C if it is at the two means a, that is
  E_j >= (s(a) (x_{j+1} - x_j) - C_w(x_{j+1}) (a - x_j)) / (x_{j+1} - a).
* Between isolated atoms E must not fall back to 0 (it would be convex where there is no mass), so
  on empty stretches it follows the line between the neighbouring values.
* A steep cell: its sag is much of C_w(x_{j+1}) (isolated atoms, each far below the one before; at
  the low end, a bulk narrower than a cell and a thin tail). With E_{j+1} >= s_j most of what comes
  would be lost. With r what w has at x_{j+1} of the cell, E_j = r (x_{j+1} - x_j) is enough,
  whatever E_{j+1} >= 0 is: the atom moves to its left node (phi is a line from there, not steeper
  than C at x_{j+1}), and the line of E to the next atom starts from 0 there, as what goes to that
  atom makes up for what this one lost. G_j is then Q{X > x_{j+1}} + E_{j+1} / (x_{j+1} - x_j),
  less what E_j has more: r may be so much that rounding would hide what follows beside it. The
  first cell counts as steep where less mass follows it than its put takes (a bulk of one or two
  cells next to the low end).
* Where the second differences of E still exceed w, sweeps raise E (which keeps E >= s).
* Whatever is left. phi is given by its slopes, the survival masses of the cells,
  G_j = Q_w{X > x_j} + (E_{j+1} - E_j) / (x_{j+1} - x_j). A cell for which none of these
  conditions holds gets G_j <= Q{X > x_{j+1}}, the slope of C at its right end, so phi <= C there by
  convexity. A running minimum of max(G, 0) from below makes phi convex; it only lowers
  phi(a) = int_a^inf G (where G < 0 was first met, E <= C_w says phi >= 0, so cutting the rest to 0
  lowers it too). Lowering phi on the right lowers it by a constant on the left, which keeps all
  the conditions. So every outcome is a measure below X, whatever E was: smoothness of the law
  decides the accuracy, never the validity.
Below x_0 the slope is min(W, .) with W = Q{X > x_0} and phi(x_0) <= C(x_0), and
C(a) >= C(x_0) + (x_0 - a) W. Above the last node mass moves down to it, where E = 0: both
lower (X - a)_+. The running sums have relative errors (`_allowances.cell_sums`): G is scaled down.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxdp._divergences import exp_log
from jaxdp._law import _allowances, _running
from jaxdp._law._grid import between_nodes
from jaxdp._law._halves import (
    HalfCells,
    beside_nodes,
    count,
    front,
    heavy_first,
    lead_of,
    least,
    lifted_first,
    sags,
)
from jaxdp._law._obstacle import bridged, relaxed
from jaxdp._law._terms import Term

_LARGEST_EXPONENT, _LARGEST_RATIO = 600.0, 80.0
EMPTY = 1e-14
_MUCH, _SHARE = 0.5, 1e-3  # of a curve, that E may not take; of a mass, next to nothing
_NOISE, _LEFT = 2.0**-49, 1e-8  # of a difference of masses, relative to them
# A compiler may work a number out once for each use, and round each otherwise (fused multiply-adds,
# say): E >= s is asked with 64 u to spare, of the thousands by which s was made larger before.
_TWICE = 1.0 + 2.0**-47
_SAME = 2.0**-50  # and nodes at one place need not be equal: relative


class Cells(NamedTuple):
    """Log masses of cells and the loss offset u of their mean ratio from the cell's left node."""

    log_q: jax.Array
    log_p: jax.Array
    offset: jax.Array


def cells(term: Term, lo: jax.Array, hi: jax.Array, node: jax.Array, side: int) -> Cells:
    """Masses of (lo, hi] with rounding on the safe side: side = +1 for upper, -1 for lower.

    Empty cells come back with log masses -inf and offset 0, and no gradient. An unbounded cell
    whose mean lies below the node counts as empty on the lower side (its mass is dropped).
    """
    log_q, log_p = term.masses(lo, hi)
    some = (log_q > -jnp.inf) & (log_p > -jnp.inf) & (hi > lo)
    q, p = jnp.where(some, log_q, 0.0), jnp.where(some, log_p, 0.0)
    r = _allowances.masses(q, p) + term.mass_error
    r = lax.stop_gradient(r)
    offset = p - q - node + 2.0 * side * r
    some &= (side > 0) | (lo > -jnp.inf) | (offset >= 0.0)
    offset = jnp.clip(offset, jnp.where(lo > -jnp.inf, lo - node, 0.0), hi - node)
    return Cells(
        jnp.where(some, q - r, -jnp.inf),
        jnp.where(some, p + side * r, -jnp.inf),
        jnp.where(some, offset, 0.0),
    )


def split(offset: jax.Array, width: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Shares of the P-mass of a cell that go to its left and right node, u = offset in [0, D]."""
    whole = -jnp.expm1(-jnp.where(width > 0.0, width, 1.0))
    left = jnp.exp(-offset) * -jnp.expm1(-(width - offset)) / whole
    right = -jnp.expm1(-offset) / whole
    return left, right


def upper(term: Term, nodes: jax.Array, theta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The law above: tilted P-weights of the nodes (sum 1), log normaliser K(theta), log P{inf}."""
    ends = jnp.array([-jnp.inf]), jnp.array([jnp.inf])
    edges = jnp.concatenate([ends[0], nodes, ends[1]])
    whole = cells(term, edges[:-1], edges[1:], jnp.concatenate([nodes[:1], nodes]), +1)
    bottom, top = whole.log_p[:1], whole.log_p[-1]
    law = Cells(*(x[1:-1] for x in whole))
    lo = nodes[:-1]
    width = jnp.maximum(nodes[1:] - lo, 0.0)
    left, right = split(law.offset, width)
    exponent = law.log_p + theta * lo
    exponent += _allowances.exponent(law.log_p, theta * lo)
    lowest = bottom + theta * nodes[:1]
    shift = lax.stop_gradient(jnp.maximum(jnp.max(exponent), lowest[0]))
    shift = jnp.where(jnp.isfinite(shift), shift, 0.0)
    mass = exp_log(exponent - shift)
    at_left = mass * left
    at_right = mass * right * jnp.exp(theta * width)
    below = exp_log(lowest - shift)
    weights = jnp.concatenate([below + at_left[:1], at_right[:-1] + at_left[1:], at_right[-1:]])
    total = jnp.sum(weights)
    log_norm = shift + jnp.log(total)
    return weights / total, log_norm + _allowances.exponent(shift, log_norm), top


def lower_measure(
    halves: HalfCells, width: jax.Array, ratio: jax.Array, top: jax.Array, empty: jax.Array
) -> jax.Array:
    """Q-masses of the nodes of the law below.

    Args:
      halves: the law, cell by cell (N - 1 cells).
      width: D of each cell.
      ratio: x_k of the nodes (N,), in any unit.
      top: Q-mass above the last node.
      empty: nodes with no mass nearby that matters: affects accuracy, not validity.
    """
    allowance = _allowances.cell_sums(ratio.shape[0])
    some = width > 0.0
    span = jnp.expm1(jnp.where(some, width, 1.0))
    m_a, m_b, x_a, x_b = halves
    halves = HalfCells(m_a, m_b, jnp.minimum(x_a, span), jnp.minimum(x_b, span))
    cell, node = count(halves.mass_left.shape[0]), count(ratio.shape[0])
    halves = lifted_first(halves, span, ratio, allowance)
    first, known = front(halves, span, ratio)
    lead, lead_put = lead_of(known)
    heavy = heavy_first(halves, known, first, jnp.where(lead, lead_put, jnp.inf), top)
    lead &= ~heavy
    leads = lead & (cell == first)
    m_a, m_b, x_a, x_b = halves = halves._replace(rise_left=jnp.where(leads, 0.0, halves.rise_left))
    mass = m_a + m_b
    zero, no = jnp.zeros((1,), mass.dtype), jnp.zeros((1,), bool)
    below = jnp.concatenate([zero, _allowances.running(mass)[:-1]])
    sag, to_left = sags(halves, span)
    to_right = (m_a * x_a + m_b * x_b) / span
    sag = sag * ratio[:-1] * (1.0 + allowance)
    above = jnp.concatenate([_allowances.running(mass, reverse=True)[1:], zero]) + top
    survival = to_right + above
    step = jnp.where(some, span * ratio[:-1], 0.0)
    call = jnp.concatenate([_allowances.running(survival * step, reverse=True), zero])
    put = jnp.concatenate([zero, _allowances.running((to_left + below) * step)])
    lead_put *= known.span[0] * known.ratio[0] * (1.0 + allowance)
    lead &= lead_put <= _MUCH * jnp.take(call, first + 1, mode="fill", fill_value=0.0)
    lead_put, leads = jnp.where(lead, lead_put, 0.0), lead & (cell == first)
    low = (cell == first) & (to_left > 0.5 * mass)
    steep = _steep(mass, sag, call[1:], empty, low) | (heavy & (cell == first))
    held = jnp.where(steep, 0.0, sag)
    wanted = jnp.maximum(jnp.concatenate([zero, held]), jnp.concatenate([held, zero]))
    lines = steep & (call[1:] > 0.0)
    moved, at_left = to_right * step * (1.0 - allowance), lines & ~leads
    to_end = _line_to_end(halves, span, ratio[:-1], jnp.where(steep, 0.0, call[1:]))
    begin, after_begin = jnp.concatenate([lines, no]), jnp.concatenate([no, lines])
    higher = jnp.maximum(wanted, jnp.where(begin, jnp.concatenate([moved, zero]), 0.0))
    line = bridged(jnp.where(begin, 0.0, higher), higher, ratio, empty | after_begin)
    wanted = jnp.maximum(higher, line)
    at_lead, after = lead & (node == first), lead & (node == first + 1)
    wanted = jnp.where(at_lead, 0.0, jnp.maximum(wanted, jnp.where(after, lead_put, 0.0)))
    over = (put < wanted) & ~at_lead & ~after & ~begin
    is_put = (over | jnp.concatenate([no, over[:-1]])) & ~begin
    is_call = call < wanted
    is_put &= ~is_call & (put <= call)
    ends = is_call[1:] & ~is_call[:-1]
    wanted = jnp.maximum(wanted, jnp.concatenate([jnp.where(ends, to_end, 0.0), zero]))
    lowering = jnp.minimum(jnp.where(is_put, put, wanted), call)
    # (The ends of a line may have moved.)
    line = bridged(jnp.where(begin, 0.0, lowering), lowering, ratio, empty | after_begin)
    lowering = jnp.minimum(jnp.maximum(lowering, line), call)
    load = jnp.concatenate([to_left, zero]) + jnp.concatenate([zero, to_right])
    fixed = is_put | is_call | at_lead
    raised = relaxed(*lax.stop_gradient((lowering, call, ratio, load, step, fixed)))
    lowering += lax.stop_gradient(jnp.minimum(raised, call) - lowering)
    # (What is compared may have been worked out twice, and rounded otherwise: see `_TWICE`.)
    left, right = lowering[:-1] * _TWICE, lowering[1:] * _TWICE
    shown = (left >= sag) & (right >= sag)
    shown |= (is_put[:-1] & is_put[1:]) | (is_call[:-1] & is_call[1:])
    shown |= ((ends | steep) & (left >= to_end)) | at_left
    shown |= leads & (left <= 0.0) & (right >= lead_put)
    survival = jnp.where(at_left, above, survival)
    lowered = jnp.where(at_left, jnp.maximum(lowering[:-1] - moved * _TWICE, 0.0), lowering[:-1])
    survival += (lowering[1:] - lowered) / jnp.where(some, step, 1.0)
    survival = jnp.maximum(jnp.where(shown, survival, jnp.minimum(survival, above)), 0.0)
    # A cell without width repeats its left neighbour. Where phi has ended, no rounding is left.
    survival = jnp.where(some, survival, jnp.inf)
    survival = jnp.where(cell >= least(is_call[:-1]), 0.0, survival)
    survival = _running.minimum(jnp.concatenate([mass[:1] + above[:1], survival]))
    survival *= 1.0 - allowance
    measure = jnp.concatenate([survival[:-1] - survival[1:], survival[-1:]])
    # Far below the bulk rounding is all there is, and would spoil moments; less mass is lower. So
    # would what sweeps leave between isolated atoms.
    return jnp.where(measure > jnp.where(empty, _LEFT, _NOISE) * survival, measure, 0.0)


def _steep(
    mass: jax.Array, sag: jax.Array, call: jax.Array, empty: jax.Array, low: jax.Array
) -> jax.Array:
    """Cells before a gap whose E would take much of what comes after it (see the module).

    That is half of its curve, or a thousandth where what is left on this side is next to nothing.
    Without a gap, only the low end, near its node: further on, the way back costs more than it
    saves.
    """
    none = jnp.zeros((1,), mass.dtype)
    follows = jnp.concatenate([mass[1:], none]) + jnp.concatenate([mass[2:], none, none])
    index = count(mass.shape[0])
    last = jnp.max(jnp.where(empty[1:], jnp.int32(0), index))
    gap = jnp.concatenate([empty[2:], none > 0.0])
    much = (sag > _MUCH * call) & (gap | low)
    much |= (sag > _SHARE * call) & (follows <= _SHARE * mass) & gap
    return much & (index + 2 < last)


def _line_to_end(
    halves: HalfCells, span: jax.Array, ratio: jax.Array, call: jax.Array
) -> jax.Array:
    """E at the left end of a cell at whose right end phi is 0, where C_w is `call`."""
    allowance = _allowances.cell_sums(ratio.shape[0])
    m_a, m_b, x_a, x_b = halves
    call *= 1.0 - 2.0 * allowance

    def least(mass: jax.Array, product: jax.Array, x: jax.Array) -> jax.Array:
        inside = (x < span) & (mass > 0.0)
        rest = jnp.where(inside, span - x, 1.0)
        bound = (1.0 + allowance) * product * ratio - x / rest * call
        return jnp.where(inside, jnp.maximum(bound, 0.0), 0.0)

    share = jnp.where(x_a < span, (span - x_b) / jnp.where(x_a < span, span - x_a, 1.0), 0.0)
    at_a = least(m_a, x_a * (m_a + m_b * share), x_a)
    return jnp.maximum(at_a, least(m_b, m_a * x_a + m_b * x_b, x_b))


def _led(about: Cells, lead: jax.Array) -> Cells:
    """The first node's share, if any, in place of that of node `lead`, at the same place."""
    index = count(about.log_q.shape[0])
    here = (index == lead) & (about.log_q[0] > -jnp.inf)
    none = Cells(jnp.float64(-jnp.inf), jnp.float64(-jnp.inf), jnp.float64(0.0))

    def moved(values: jax.Array, nothing: jax.Array) -> jax.Array:
        return jnp.where(here, values[0], jnp.where(index < lead, nothing, values))

    return Cells(*(moved(x, y) for x, y in zip(about, none, strict=True)))


def lower(
    term: Term,
    nodes: jax.Array,
    theta: jax.Array,
    centre: jax.Array,
    reach: ArrayLike = -jnp.inf,
) -> tuple[jax.Array, jax.Array]:
    """The law below: tilted P-weights of the nodes (sum 1) and log normaliser K(theta).

    The first cell reaches down to -inf, for an atom at the low end (`between_nodes`). What lies
    next to the last node moves down to it (an atom at the high end, where `align` left it), and
    what is beyond up to `reach`; what is beyond that is cut: it may be much of the tilted law, and
    where all of that is, it only widens windows. Masses are held in linear scale, in units that put
    1 where the tilted law has its bulk. What would overflow there, or its curve, is a measure of
    its own, which may be lowered by itself (curves add up): its P-masses move down to nodes, as
    those at the last node do. (That is lower, as e (1 - a / x)_+ increases with x; more is lost by
    moving Q-masses.)
    """
    width = nodes[1:] - nodes[:-1]
    width = jnp.where(width > _SAME * jnp.abs(nodes[1:]), width, 0.0)
    middle = between_nodes(nodes, width, term, centre)
    step = jnp.min(jnp.where(width > 0.0, width, jnp.inf), keepdims=True)
    start = jnp.concatenate([jnp.array([-jnp.inf]), middle, nodes[-1:]])
    end = jnp.maximum(nodes[-1:] + jnp.where(step < jnp.inf, step, 0.0), reach)
    stop = jnp.concatenate([middle, nodes[-1:], end])
    # Of nodes pulled up to one place (`occupied_positions`) the first has all that is nearest, and
    # what is below as well; if the mean of that is below, the last has what is above the place.
    lead = jnp.min(jnp.where(width > 0.0, count(width.shape[0]), jnp.int32(width.shape[0])))
    stop = stop.at[0].set(stop[lead])
    whole = cells(term, start, stop, jnp.concatenate([nodes, nodes[-1:]]), -1)
    about, top = _led(Cells(*(x[:-1] for x in whole)), lead), Cells(*(x[-1] for x in whole))
    tilt = 1.0 + theta
    relative = nodes - centre
    held = (relative > -_LARGEST_EXPONENT) & (relative < _LARGEST_RATIO)
    far = ~(held & _beside(held, -1) & _beside(held, 1))
    exponent = jnp.where(far, -jnp.inf, about.log_q + tilt * nodes)
    moved, at_top = _moved_down(about, top, nodes, width, theta)
    moved, at_top = jnp.where(far, moved, -jnp.inf), jnp.where(held[-1], -jnp.inf, at_top)
    log_top = top.log_p - nodes[-1] - _allowances.exponent(top.log_p, nodes[-1])
    last = jnp.where(held[-1], log_top + tilt * nodes[-1], at_top)
    best = jnp.maximum(jnp.max(jnp.maximum(exponent, moved)), last)
    best = lax.stop_gradient(jnp.where(jnp.isfinite(best), best, 0.0))
    unit = best - tilt * centre

    def scaled(log_q: jax.Array) -> jax.Array:
        return exp_log(jnp.minimum(log_q - unit, _LARGEST_EXPONENT))

    halves = beside_nodes(jnp.where(far, 0.0, scaled(about.log_q)), about.offset, width)
    heavy, no = exponent > best + jnp.log(EMPTY), jnp.zeros((1,), bool)
    in_cell = (heavy & (about.offset >= 0.0))[:-1] | (heavy & (about.offset < 0.0))[1:]
    empty = ~(heavy | jnp.concatenate([in_cell, no]) | jnp.concatenate([no, in_cell]))
    ratio = jnp.exp(jnp.clip(relative, -_LARGEST_EXPONENT, _LARGEST_RATIO))
    near = jnp.where(held[:-1] & held[1:], width, 0.0)
    above = jnp.where(held[-1], scaled(log_top), 0.0)
    measure = lower_measure(halves, near, ratio, above, empty)
    weight_exponent = jnp.where(held, jnp.minimum(tilt * relative, _LARGEST_EXPONENT), -jnp.inf)
    weights = measure * exp_log(weight_exponent)
    back = about.offset < 0.0
    moved = exp_log(moved - best)
    weights += jnp.where(back, 0.0, moved)
    weights += jnp.concatenate([jnp.where(back, moved, 0.0)[1:], exp_log(at_top - best)[None]])
    total = jnp.maximum(jnp.sum(weights), 1e-300)
    log_norm = jnp.log(total) + best
    return weights / total, log_norm - _allowances.exponent(best, log_norm)


def _beside(values: jax.Array, side: int) -> jax.Array:
    """The next value on that side; at the end the value itself."""
    parts = (values[:1], values[:-1]) if side < 0 else (values[1:], values[-1:])
    return jnp.concatenate(parts)


def _moved_down(
    about: Cells, top: Cells, nodes: jax.Array, width: jax.Array, theta: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Log tilted weights of the masses, and of the top's, each at the node before it.

    (A node at the place of the one after it is not below that one's atom.)
    """
    back = about.offset < 0.0
    some = ~back | (jnp.concatenate([jnp.zeros((1,)), width]) > 0.0)
    place = theta * jnp.where(back, _beside(nodes, -1), nodes), theta * nodes[-1]

    def weight(log_p: jax.Array, place: jax.Array) -> jax.Array:
        return log_p + place - _allowances.exponent(log_p, place)

    return jnp.where(some, weight(about.log_p, place[0]), -jnp.inf), weight(top.log_p, place[1])
