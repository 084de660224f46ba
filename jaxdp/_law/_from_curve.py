r"""A symmetric pair from bounds on its curve from above: what composes like a step.

H, as a function of g = e^eps, is convex and falls, and for a pair that is as likely as its reversal
the half g >= 1 determines the whole: H(g) = 1 - g + g H(1/g) below 1. There H(g) = tau + int_g^inf
S, with slopes S that fall from at most (1 - H(1))/2: their falls are the Q-masses of X = g. So
slopes and tau make a pair: Q-mass q at a loss l > 0 is P-mass q e^l there, at -l it is the other
way round, and X = 1 has what is missing of 1. If one half is above, so is all of it.

Chords between bounds at nodes are above H. A running maximum of their slopes from the right makes
them convex, where rounding does not; it only raises them.

Slopes and sums of N numbers are off by a relative 4 N 2^-52 at most (`_privacy_loss_table`), which
the bounds are moved by before.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import exp_log, log_positive

_AT_A_TIME = 16  # bounds memory: a curve may sum thousands of terms
_EXTENT = 0.5 ** (np.arange(96)[::-1] / 3.0)  # of the largest loss: where the masses may end
FARTHEST = 250.0  # of losses: that masses of e^-l times a mass are numbers
_LOG_LEAST, _LOG_UNDERFLOW = -690.0, -708.0


class Pair(NamedTuple):
    """Losses in any order, their masses' logarithms, and that of both masses at infinity."""

    loss: jax.Array
    log_q: jax.Array
    log_p: jax.Array
    log_tau: jax.Array


def _each(function: Callable[[jax.Array], jax.Array], at: jax.Array) -> jax.Array:
    return lax.map(jax.checkpoint(function), at, batch_size=_AT_A_TIME)


def extent(
    rough: Callable[[jax.Array], jax.Array], top: jax.Array, log_floor: jax.Array
) -> jax.Array:
    """Up to which loss the curve is looked at: where it is about a floor, or the top. A choice."""
    top = lax.stop_gradient(jnp.minimum(top, FARTHEST))
    at = top * _EXTENT
    return jnp.min(jnp.where(lax.stop_gradient(_each(rough, at)) <= log_floor, at, top))


def _mirrored(loss: jax.Array, q: jax.Array, log_tau: jax.Array) -> Pair:
    """The pair of masses at losses > 0: those at the mirror images and at 0 are added."""
    p = q * jnp.exp(loss)
    # (A difference next to 0 as a rule, rounded up.)
    middle = 1.0 - exp_log(log_tau) - jnp.sum(p) - jnp.sum(q) + 2.0**-44
    middle = jnp.maximum(middle, 0.0)[None]
    every = (loss, q, p), (jnp.zeros((1,)), middle, middle), (-loss, p, q)
    losses, all_q, all_p = (jnp.concatenate(x) for x in zip(*every, strict=True))
    return Pair(losses, log_positive(all_q), log_positive(all_p), log_tau)


def above(log_curve: Callable[[jax.Array], jax.Array], last: jax.Array, cells: int) -> Pair:
    """The pair above a curve, bounded from above by log_curve(eps >= 0); inf from `last` on."""
    loss = last * (jnp.arange(cells + 1) / cells)
    log_h = jnp.minimum(_each(log_curve, loss) + _off(cells), 0.0)
    log_h = jnp.where(log_h > -jnp.inf, jnp.maximum(log_h, _LOG_LEAST), -jnp.inf)
    h = lax.cummin(exp_log(log_h))
    width = jnp.exp(loss[:-1]) * jnp.expm1(last / cells)
    slopes = lax.cummax((h[:-1] - h[1:]) / width, reverse=True)
    masses = slopes - jnp.append(slopes[1:], 0.0)
    # What underflows is not lost.
    return _mirrored(loss[1:], masses, jnp.log(h[-1] + cells * jnp.exp(last + _LOG_UNDERFLOW)))


def nothing() -> Pair:
    """The pair of equal laws, below every other one."""
    zero = jnp.zeros((1,))
    return Pair(zero, zero, zero, jnp.float64(-jnp.inf))


def _off(cells: int) -> float:
    return 4.0 * (cells + 64) * 2.0**-52
