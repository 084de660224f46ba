"""Which averages are taken in pairs, on which list, and the law of an average as a term.

What is chosen (`better`, and what is needed of a list) need not be right; the law is certified by
the rules of `_average_pairs`, and by what `_as_term` adds.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_derivatives import SymbolicZero

from jaxdp._divergences import exp_log, log_positive
from jaxdp._law import _allowances
from jaxdp._law._average_atoms import FILLED, Coarse, log_sum
from jaxdp._law._average_pairs import Law, between, contracted, first, one_more, twice
from jaxdp._law._intervals import interval_masses
from jaxdp._law._terms import Sign, Term, either

FEW, LARGEST = 8, 1 << 14  # numbers of ratios
_WIDE, _MANY = 0.5, 512.0  # deviation of an average, and for how many at most
_NEXT = 1e-2  # losses from the least average to the least ratio
_LONG, _SHORT = 80.0, 20.0  # a list, in deviations of an average
_AT_ENDS = 0.05  # a mass of ratios next to which a lattice has no digits
_COARSE = 6.2  # loss of the largest average that is needed
_FAR_OUT = -75.0  # log delta of an average from which on that is so of all ("remove")
_LOST_DIGITS = (4.5, 10.0)  # in logs, where the variance of an average is more than that, and less
_SPREAD = 4e-3
_NARROW = 5e-9  # losses from end to end, of every step, that leave few digits to a cell's shares
_TILTS = 2.0 ** np.arange(-8.0, 40.0)
_FLOOR = np.log(1e-3)  # of delta: what the ends of a list may cost
_RARE = 1e-5  # a mass, over the number of ratios
_PART = 0.05  # of the least average: ratios that are needed
_LOWEST, _HIGHEST = -300.0, 150.0  # losses of a list
_DEEPEST = -500.0  # log delta of an average
_SMALLEST = 1e-290  # what underflow may lose
_LOST = 1e-8  # relative: if more is, something has gone wrong


class _Needed(NamedTuple):
    """The least average, and what bounds the masses of small ones.

    All as losses: `end` is the least of all, `high` that up to which single ratios are needed in
    the direction `s`: with a P-mass above it ("remove"), or where large ones hardly count, a Q-mass
    ("add"). `tilts` and `log_mgf` are of one ratio, `variance` too.
    """

    least: jax.Array
    end: jax.Array
    high: jax.Array
    variance: jax.Array
    log_mass: jax.Array
    q_mass: jax.Array
    tilts: jax.Array
    log_mgf: jax.Array
    s: Sign

    def low(self, number: jax.Array, steps: jax.Array) -> jax.Array:
        """The loss from which on an average of so many ratios, of all steps, is needed."""
        # (A part of the least average hardly counts. Of more, what is cut off is to be as rare as
        # delta: an average to which a 0 is added is less than it is.)
        part = jnp.where(number >= steps, 1.0, _PART)
        bare = jnp.max(_below(self.tilts, self.log_mgf, number, self.log_mass - jnp.log(steps)))
        bare = jnp.log(jnp.maximum(bare, np.exp(_LOWEST)))
        return jnp.maximum(jnp.maximum(self.least + jnp.log(part), bare), self.end)

    @property
    def p_mass(self) -> jax.Array:
        """That is needed of large ratios."""
        return jnp.exp(jnp.maximum(self.log_mass, -690.0))

    def points(self, law: Law) -> jax.Array:
        """Of the law, up to the last one that is needed."""
        p, q = law.mass * law.ratio, law.mass
        mass, least = either(self.s > 0, (p, self.p_mass), (q, self.q_mass))
        return lax.cumsum(mass, reverse=True) > least


def _below(
    tilts: jax.Array, log_mgf: jax.Array, number: jax.Array, log_mass: jax.Array
) -> jax.Array:
    """By every tilt, an average of so many that no more mass than that is below, by Chernoff."""
    return (log_mass - number * log_mgf) / (tilts * number)


def _needed(term: Term, known: Coarse, steps: jax.Array, log_delta: jax.Array, s: Sign) -> _Needed:
    high, end = jnp.asarray(term.support[1], jnp.float64), _end(term, steps)
    end = jnp.maximum(end, _LOWEST)
    log_q, tilts = known.atoms.log_q, jnp.asarray(_TILTS)
    # (Cells of the coarse law at their lower ends.)
    below = jnp.minimum(known.ends[:-1], 1e100)
    x = jnp.maximum(jnp.concatenate([jnp.zeros((1,)), below]), exp_log(end))
    x = jnp.where(jnp.arange(x.shape[0]) > 0, x, 0.0)
    log_mgf = log_sum(log_q - tilts[:, None] * x)
    least = _below(tilts, log_mgf, steps, log_delta)
    least = jnp.log(jnp.maximum(jnp.max(least), np.exp(_LOWEST)))
    rare = _RARE / steps
    found = _Needed(least, end, high, high, log_delta, rare, tilts, log_mgf, s)
    q_above = lax.cumsum(jnp.exp(log_q), reverse=True)
    ratios = jnp.minimum(known.atoms.x, 1e100)
    some = known.above > found.p_mass
    x = jnp.where(some, ratios, 1.0)
    variance = jnp.sum(jnp.exp(log_q) * (x - 1.0) ** 2)
    x = jnp.where(some & either(s > 0, True, q_above > rare), ratios, 1.0)
    high = jnp.minimum(high, jnp.log(jnp.max(x)) + 0.1)
    return found._replace(high=high, variance=variance)


def _end(term: Term, steps: jax.Array) -> jax.Array:
    """The least loss of an average that is not 0: where ratios may be, that of one among zeros."""
    low, revealed = (jnp.asarray(v, jnp.float64) for v in (term.support[0], term.log_tau_q))
    return low - jnp.where(revealed > -jnp.inf, jnp.log(steps), 0.0)


def better(
    term: Term,
    known: Coarse,
    steps: jax.Array,
    count: jax.Array,
    log_delta: jax.Array,
    s: Sign,
    lost: jax.Array | None,
) -> jax.Array:
    """Whether to take pairs: of few ratios, and where their average is off its mean by much.

    Or where all of them may be the least there is, or they are atoms far apart or at the ends, of
    which a lattice below loses most; or where one that reaches the largest ratios is coarse
    ("remove"), or has `lost` the digits of typical averages ("add"). Nearly equal ones leave too
    few digits.
    """
    steps, count, log_delta = lax.stop_gradient((steps, count, log_delta))
    needed = _needed(term, known, steps, log_delta + _FLOOR, s)
    wide = _WIDE**2 * steps * jnp.maximum(steps / _MANY, 1.0)
    some = (steps <= FEW) | (needed.variance > wide)
    some |= needed.least <= needed.end + _NEXT
    # A list holds what the largest ratio makes of an average, too.
    width = jnp.log1p(jnp.expm1(needed.high) / steps) - needed.low(steps, steps)
    width /= jnp.sqrt(needed.variance / steps)
    some |= ((known.filled < FILLED) & (width < _LONG)) | (
        (known.at_ends > _AT_ENDS) & (width < _SHORT)
    )
    coarse = (needed.high - jnp.log(steps) > _COARSE) | (log_delta < _FAR_OUT)
    if lost is not None:
        spread = needed.variance > _SPREAD * steps
        lost = lost > jnp.where(spread, *_LOST_DIGITS)
    some |= coarse if lost is None else either(s > 0, coarse, lost)
    some &= (needed.high < _HIGHEST) & (log_delta > _DEEPEST)
    some &= needed.high - needed.low(jnp.float64(1.0), steps) > _NARROW * steps * count
    return lax.stop_gradient(some & (steps <= LARGEST))


@jax.custom_jvp
def _is_constant(x: jax.Array) -> jax.Array:
    """Whether no derivatives by x are asked for."""
    return jnp.bool_(True)


@functools.partial(_is_constant.defjvp, symbolic_zeros=True)
def _is_constant_jvp(primals: tuple, tangents: tuple) -> tuple[jax.Array, Any]:
    answer = jnp.bool_(isinstance(tangents[0], SymbolicZero))
    return answer, np.zeros((), jax.dtypes.float0)


def averaged(
    term: Term,
    steps: jax.Array,
    log_delta: jax.Array,
    s: Sign,
    side: int,
    known: Coarse,
    size: int,
) -> Term:
    """The term of an average of up to `LARGEST` ratios, above or below.

    Of a number between two whole ones it is the mixture of their laws (no bound), which makes the
    derivative by that number what one ratio more does.

    Args:
      term: one ratio.
      steps: how many.
      log_delta: what the tails are to be accurate for, a choice.
      s: the direction that is read, in which points are moved by their rounding.
      side: +1 above, -1 below.
      known: its coarse law.
      size: of the list.
    """
    levels = LARGEST.bit_length()
    is_constant, log_delta = _is_constant(steps), lax.stop_gradient(log_delta)
    share, steps = steps - lax.stop_gradient(jnp.floor(steps)), lax.stop_gradient(jnp.floor(steps))
    needed = lax.stop_gradient(_needed(term, known, steps, log_delta + _FLOOR, s))
    low, end = needed.low(jnp.float64(1.0), steps), needed.end
    # Atoms at the ends of what there is stay within, next to the first point and the last.
    last = jnp.asarray(term.support[1], jnp.float64)
    bounded = (low <= end) & (end > _LOWEST)
    least = jnp.where(bounded, _end(term, steps), low)
    low = least - jnp.where(bounded, _allowances.nudge(least, 1.0), 0.0)
    highest = jnp.maximum(needed.high, low + 1e-6)
    bounded = last <= highest
    last = jnp.where(bounded, last, highest)
    high = last + jnp.where(bounded, _allowances.nudge(last, 1.0), 0.0)
    law = first(term, low, (high - low) / (size - 1), size, side)
    one, whole = law, steps.astype(jnp.int32)

    def level(i: jax.Array, law: Law) -> Law:
        """From the average of the digits so far, the first of which is a 1, to one digit more."""
        k = levels - 2 - i

        def more() -> Law:
            number = (whole >> k).astype(jnp.float64)
            joined = lax.cond(
                (whole >> k) & 1 == 1,
                lambda law: one_more(law, one, number - 1.0, side),
                lambda law: law,
                twice(law, side),
            )
            return contracted(joined, needed.low(number, steps), needed.points(joined), side)

        return lax.cond(whole >> (k + 1) > 0, more, lambda: law)

    law = lax.fori_loop(0, levels - 1, level, law)

    def further() -> Law:
        return between(law, one_more(law, one, steps, side), share, side)

    law = lax.cond(is_constant & (share == 0.0), lambda: law, further)
    if side > 0:  # (of Q-masses, whose P-masses are e^high times that at most)
        lost = lax.stop_gradient(_SMALLEST * jnp.exp(high))
        law = law._replace(zero=law.zero + _SMALLEST, tau=law.tau + lost)
    return _as_term(law, term, s, side)


def _as_term(law: Law, term: Term, s: Sign, side: int) -> Term:
    """With points moved (see `_average_pairs`); unknown if masses are lost."""
    reach = jnp.abs(law.low) + law.spacing * law.mass.shape[0] - _LOWEST
    shift = 4 * LARGEST.bit_length() * _allowances.exponent(reach)
    shift += 4.0 * lax.stop_gradient(jnp.asarray(term.mass_error, jnp.float64))
    some = (law.mass > 0.0) & (law.ratio > 0.0)
    at = jnp.where(some, jnp.log(jnp.where(some, law.ratio, 1.0)) + s * side * shift, law.losses)
    q = jnp.where(some, law.mass, 0.0)
    p = q * law.ratio * (1.0 + s * side * shift)
    low, high = jnp.min(jnp.where(some, at, jnp.inf)), jnp.max(jnp.where(some, at, -jnp.inf))
    # Both have a mass of 1, above rather more, below rather less.
    totals = jnp.stack([jnp.sum(q) + law.zero, jnp.sum(p) + law.tau])
    right = jnp.all(totals >= 1.0 - _LOST) if side > 0 else jnp.all(totals <= 1.0 + _LOST)
    if side < 0:  # (means of a cell into which others were rounded)
        at, q, p = lax.sort((at, q, p), num_keys=1)
    room = jnp.zeros(((1 << (at.shape[0] - 1).bit_length()) - at.shape[0],))
    at = lax.stop_gradient(at)
    masses = interval_masses(
        jnp.concatenate([q, room]),
        jnp.concatenate([p, room]),
        lambda loss: jnp.searchsorted(at, loss, side="right").astype(jnp.int32),
    )
    error = jnp.where(right, 0.0, jnp.nan)
    return Term(masses, 1.0, log_positive(law.tau), log_positive(law.zero), (low, high), error)
