"""What an average attains next to its largest loss, where lattices have few points or none.

All t ratios are in a cell at the end of what there is with probability q^t. On that their mean is
x, the cell's, and E (S - c)_+ >= q^t (t x - c) by Jensen's inequality (with s = -1, E (c - S)_+ >=
q^t (c - t x)): for any cell. So log delta is at least

    remove   t log q + log(x - e^eps),        add   t log q + log(1 - e^eps x),

exact at epsilons next to an atom at the end. Of some cells the best is taken. (So may cells be that
end anywhere: to add, a few small ratios are all about the same.)

Besides, how many ratios are below the least there are to be: next to none (see `Bare`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _special as special
from jaxdp._divergences import exp_log
from jaxdp._law import _allowances, _average_alone
from jaxdp._law._average_alone import One
from jaxdp._law._terms import Sign, Term, either

_BELOW, _FAR = 1e-9, 700.0  # of the least loss; for it, where there is none
_SMALLEST = 1e-300
_BEYOND, _ROUND = 1e-9, 1e-13  # of the range of losses, relative and absolute: room
_BESIDE = 2.0 ** np.arange(-1.0, -31.0, -1.0)  # of the largest loss, where cells begin


class Bare(NamedTuple):
    """A number that ratios are hardly ever below, and the Q-mass there, rounded up."""

    least: jax.Array
    mass: jax.Array


class End(NamedTuple):
    """log q^t, times x to remove, and the direction's loss of x; both rounded down. Of cells.

    And one ratio alone in them (see `_average_alone`).
    """

    log_scale: jax.Array
    loss: jax.Array
    bare: Bare
    one: One


def within(term: Term, reach: tuple[ArrayLike, ArrayLike]) -> Term:
    """The term with an end of its support where it has none: a little beyond its losses."""

    def end(own: ArrayLike, known: ArrayLike, away: int) -> jax.Array:
        own, known = (jnp.asarray(x, jnp.float64) for x in (own, known))
        some = jnp.abs(known) < jnp.inf
        beyond = jnp.where(some, known, 0.0)
        beyond += away * lax.stop_gradient(_BEYOND * jnp.abs(beyond) + _ROUND)
        return jnp.where(some & (jnp.abs(own) == jnp.inf), beyond, own)

    low, high = (end(*ends) for ends in zip(term.support, reach, (-1, 1), strict=True))
    return term._replace(support=(low, high))


def end(
    term: Term,
    steps: jax.Array,
    s: Sign,
    reach: tuple[ArrayLike, ArrayLike],
    about: ArrayLike = (),
) -> End:
    """Of cells at the largest ratios (s = +1) or at the smallest (-1), `reach` being their losses.

    And of cells that begin (end) at losses `about` that of a query, for one ratio alone too. (If
    these are wrong, what is found are bounds still.)
    """
    low, high = (jnp.asarray(x, jnp.float64) for x in lax.stop_gradient(reach))
    edge = either(s > 0, high, low)
    bounded = jnp.abs(edge) < jnp.inf
    edge = jnp.where(bounded, edge, 0.0)
    edge -= s * jnp.asarray(_BESIDE) * jnp.abs(edge)
    about = lax.stop_gradient(jnp.asarray(about, jnp.float64))
    bounded = jnp.concatenate([jnp.full_like(edge, bounded, bool), jnp.full_like(about, 1, bool)])
    edge = jnp.concatenate([edge, about])
    infinite = jnp.full_like(edge, jnp.inf)
    lo, hi = either(s > 0, (edge, infinite), (-infinite, edge))
    # The last cell is for what is below all losses.
    lowest = jnp.where(jnp.abs(low) < jnp.inf, low - _BELOW * jnp.abs(low), -_FAR)
    lo, hi = (jnp.append(x, y) for x, y in ((lo, -jnp.inf), (hi, lowest)))
    log_q, log_p = term.masses(lo, hi)
    bare = _bare(term, lowest, log_q[-1], log_p[-1])
    log_q, log_p = log_q[:-1], log_p[:-1]
    number = _BESIDE.size
    one = _average_alone.tangents(term, steps, log_q[number:], log_p[number:], s)
    some = bounded & (log_q > -jnp.inf) & (log_p > -jnp.inf)
    q, p = (jnp.where(some, x, 0.0) for x in (log_q, log_p))
    rough = lax.stop_gradient(_allowances.masses(q, p) + term.mass_error)
    loss = s * (p - q) - 2.0 * rough
    log_scale = steps * (q - rough) + either(s > 0, loss, 0.0)
    log_scale -= lax.stop_gradient(_allowances.exponent(steps * q, loss))
    some &= loss > 0.0
    return End(jnp.where(some, log_scale, -jnp.inf), jnp.where(some, loss, 0.0), bare, one)


def _bare(term: Term, loss: jax.Array, log_q: jax.Array, log_p: jax.Array) -> Bare:
    """Of ratios below e^loss, those that are 0 among them."""
    q, p = (jnp.where(x > -jnp.inf, x, 0.0) for x in (log_q, log_p))
    mass = exp_log(log_q) * (1.0 + _allowances.masses(q, p) + term.mass_error)
    mass += exp_log(jnp.asarray(term.log_tau_q, jnp.float64)) * (1.0 + _allowances.sums(0))
    least = jnp.exp(loss) * (1.0 - _allowances.exponent(loss))
    return lax.stop_gradient(Bare(least, jnp.minimum(mass + _SMALLEST, 1.0)))


def log_delta(at: End, epsilon: jax.Array) -> jax.Array:
    """log delta at an epsilon, from below."""
    some = (at.log_scale > -jnp.inf) & (epsilon < at.loss)
    short = jnp.where(some, epsilon - at.loss, -1.0)
    short = jnp.minimum(short + lax.stop_gradient(_allowances.exponent(epsilon, at.loss)), 0.0)
    part = jnp.where(some, special.log1mexp(short), -jnp.inf)
    return jnp.max(jnp.where(some, at.log_scale, 0.0) + part)


def epsilon(at: End, log_delta: jax.Array) -> jax.Array:
    """Epsilon at log delta, from below; -inf where delta is not attained there."""
    some = log_delta < at.log_scale
    part = jnp.where(some, log_delta - at.log_scale, -1.0)
    part += lax.stop_gradient(_allowances.exponent(log_delta, at.log_scale) * some)
    found = at.loss + special.log1mexp(jnp.minimum(part, 0.0))
    found -= lax.stop_gradient(_allowances.exponent(at.loss) * (1.0 + at.loss))
    return jnp.max(jnp.where(some, found, -jnp.inf))
