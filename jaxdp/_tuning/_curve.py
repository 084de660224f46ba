r"""The best of K runs from above, by the curves of one run in both directions.

Let outcomes be ordered, by what is better. An outcome y, with u = Q{better} and u' = P{better}, is
released with density f'(1 - u) Q(y), and f'(1 - u') P(y) on the neighbour (`_runs`). So with X =
dP/dQ of one run, and m the mean of K,

.. math:: H_K(g) = E_Q \left(f'(1 - u') X - g f'(1 - u)\right)_+ .

(u, u') are the levels of a test of one run: u - r u' <= H'(r) for every r, H' being the curve of
the other direction. So for every outcome

.. math:: f'(1 - u') X - g f'(1 - u) \le m\, \psi_g(X), \quad
   \psi_g(x) = \max_{u'} s(u') \left(x - \frac{g}{w(u')}\right)_+

where s(u') = f'(1 - u')/m, and w(u') is the largest f'(1 - u')/f'(1 - u) that the inequalities
allow. psi is convex, rises with slopes up to 1, and is a function of x/g. The chords of psi_1
between nodes y_j are above it; they are positive sums of (x - y_j)_+, whose expectation is H:

.. math:: H_K(g) \le m \sum_j d_j H(g y_j).

(The bound m H(g/max w) of Koskela, Redberg & Wang 2024, arXiv 2402.06701, is the first of them with
all of the slope.) max w needs one r: from u - r u' <= H'(r) follows 1 + o u <= r (1 + o u') where
o H'(r) = r - 1.

Nor is H_K more at any g >= 1 than the distance of both (`Runs.apart`).

From below: `_order`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._divergences import exp_log, log_positive
from jaxdp._law import Table, _from_curve
from jaxdp._law._from_curve import Pair
from jaxdp._special import expm1, log1p, logsumexp
from jaxdp._tuning._runs import LEAST, Runs, root

Curve = Callable[[jax.Array], jax.Array]  # log H at losses, elementwise

_CELLS, _SLOPES, _NODES = 192, 64, 96  # of u', of tangents of a curve, of psi
_FARTHEST = 250.0  # of log r
_LEAST = 1e-3  # of the losses over which psi is bent: the slopes of its chords keep their digits
_SMALL = 1e-7  # what a tangent that is the last one leaves
ROUNDED = 1e-9  # relative, of slopes and masses of sums of some thousands
_NO_MASS = 700.0  # of losses: Q-masses of a law are numbers
_MOST = 4e-12
MOST_ULPS = 2.0 * _MOST * 2.0**52  # of what is rounded up by that


def _best(odds: jax.Array, other: Curve) -> jax.Array:
    """log of the r with o H'(r) = r - 1, rounded up a little: any r is valid."""

    def excess(x: jax.Array) -> jax.Array:
        return expm1(x) - odds * exp_log(other(x))

    return root(excess, LEAST, _FARTHEST) * (1.0 + 1e-13)


def log_most(runs: Runs, other: Curve) -> jax.Array:
    """log of max w, rounded up by `MOST_ULPS` at most."""
    if runs.poisson:
        return runs.mean * exp_log(other(jnp.zeros(()))) * (1.0 + _MOST)
    x = _best(runs.odds, other)
    ratio = jnp.maximum(expm1(x), runs.odds * exp_log(other(x)))
    return (1.0 + runs.shape) * log1p(ratio) * (1.0 + _MOST)


class Shifts(NamedTuple):
    """log y_j and log m d_j, and the log of what H_K is at most."""

    log_y: jax.Array
    log_d: jax.Array
    most: jax.Array


def shifts(runs: Runs, other: Curve) -> Shifts:
    """Of the curve of one run in the other direction, from above."""
    odds = runs.mean if runs.poisson else runs.odds
    coarse = _FARTHEST * 0.5 ** (jnp.arange(64) / 3.0)
    held = lax.stop_gradient(runs.steepness * exp_log(other(coarse)))
    last = jnp.min(jnp.where(held <= _SMALL, coarse, _FARTHEST))
    if runs.poisson:
        best = jnp.zeros(())
    else:
        best = _best(odds, other)
    span = lax.stop_gradient(jnp.maximum(last - best, 1e-6))
    x = best + span * (jnp.arange(_SLOPES) / _SLOPES) ** 2
    height = exp_log(other(x)) * (1.0 + ROUNDED)
    # The touching point of the first tangent, where w is largest: to there in many cells.
    step = 1e-4 * (1.0 + best)
    drop = exp_log(other(best)) - exp_log(other(best + step))
    touch = jnp.clip(drop / (jnp.exp(best) * jnp.expm1(step)), 1e-12, 1.0)
    end = lax.stop_gradient(runs.fall(touch))
    falls = end * (jnp.arange(_CELLS + 1) / _CELLS)
    u = jnp.append(jnp.minimum(runs.at_fall(falls), 1.0), 1.0)

    def excess_of(u: jax.Array) -> jax.Array:
        """What tangents allow for m (u_Q - u), or (1 + o u_Q)/(1 + o u) - 1, along a last axis."""
        free = jnp.append(jnp.expm1(x), 0.0) * u[:, None] + jnp.append(height, 0.0)
        free = free.at[:, -1].set(1.0 - u)
        return odds * free / (1.0 if runs.poisson else 1.0 + odds * u[:, None])

    # Between two nodes a tangent allows for what it allows for at one of them.
    at = excess_of(u)
    allowed = jnp.min(jnp.maximum(at[:-1], at[1:]), axis=-1)
    log_w = allowed if runs.poisson else (1.0 + runs.shape) * log1p(allowed)
    chords = _chords(falls, log_w + 1e-13 * (1.0 + log_w), jnp.log(runs.mean))
    return Shifts(*chords, runs.apart(other(jnp.zeros(()))))


def _chords(falls: jax.Array, log_w: jax.Array, log_mean: jax.Array):
    """log y_j and log m d_j of the chords of psi_1(y) = max_i e^{-fall_i} (y - 1/w_i)_+."""
    most = jnp.max(log_w)
    behind = most - log_w
    # From where on the steepest line is above all others.
    near, far = (jnp.minimum(x, 500.0) for x in (behind[0], behind))
    meets = jnp.exp(far) + (jnp.exp(near) - jnp.exp(far)) / -jnp.expm1(-falls - 1e-300)
    bent = jnp.max(jnp.where(falls > 0.0, meets, 1.0))
    bent = lax.stop_gradient(jnp.clip(jnp.log(jnp.maximum(bent, 1.0)), _LEAST, 500.0))
    t = bent * (jnp.arange(_NODES + 1) / _NODES)
    over = jnp.exp(-falls)[:, None] * jnp.maximum(-expm1(behind[:, None] - t), 0.0)
    psi = jnp.max(over, axis=0).at[0].set(0.0)  # over y
    slopes = psi[1:] + (psi[1:] - psi[:-1]) / jnp.expm1(bent / _NODES)
    slopes = jnp.append(jnp.clip(lax.cummax(slopes), 0.0, 1.0), 1.0)
    bends = jnp.append(slopes[:1], slopes[1:] - slopes[:-1])
    return t - most - 1e-13 * (1.0 + most), log_positive(bends) + log_mean + ROUNDED


def shifted(at: Shifts, one: Curve, epsilon: jax.Array) -> jax.Array:
    """log H_K at an epsilon >= 0 at most, by `shifts` and the curve of one run."""
    value = logsumexp(at.log_d + one(epsilon + at.log_y))
    # (What could not be computed says nothing.)
    most = jnp.where(jnp.isnan(at.most), 0.0, at.most)
    return jnp.where(value <= most, value, most)


class Tabulated:
    """The curve of a law on increasing losses: linear in e^eps between them."""

    def __init__(self, table: Table) -> None:
        """Of a law, right in its "remove" reading."""
        size = table.q.shape[0]
        loss = table.first + table.spacing * jnp.arange(size)
        held = jnp.exp(jnp.minimum(loss, _NO_MASS))
        self.first, self.spacing, self.last = loss[0], table.spacing, loss[-1]
        self.ratio = jnp.append(held, held[-1])
        self.beyond = jnp.append(jnp.cumsum(table.q[::-1])[::-1], 0.0)  # Q of at least that loss
        parts = jnp.append((held[1:] - held[:-1]) * self.beyond[1:-1], 0.0)
        tau = exp_log(table.log_tau_p) + table.error
        self.height = jnp.append(jnp.cumsum(parts[::-1])[::-1] + tau, tau)

    def __call__(self, epsilon: jax.Array) -> jax.Array:
        """Its logarithm, rounded up; 0 where nothing is known."""
        place = jnp.floor((epsilon - self.first) / self.spacing) + 1.0
        k = jnp.clip(lax.stop_gradient(place), 0.0, self.beyond.shape[0] - 1).astype(jnp.int32)
        top = jnp.minimum(self.first + self.spacing * k, self.last)
        less = jnp.exp(jnp.minimum(epsilon, _NO_MASS) - jnp.minimum(top, _NO_MASS))
        value = self.height[k] + self.ratio[k] * jnp.maximum(1.0 - less, 0.0) * self.beyond[k]
        log = log_positive(value)
        return jnp.where(jnp.isnan(log), 0.0, jnp.minimum(log + ROUNDED, 0.0))


def pair_above(curves: list[Curve], top: jax.Array, log_floor: jax.Array, cells: int) -> Pair:
    """The symmetric pair above all of the curves, of losses up to `top`."""

    def curve(epsilon: jax.Array) -> jax.Array:
        return jnp.max(jnp.stack([c(epsilon) for c in curves]))

    # (What tables put at infinity may be more than the floor.)
    least = lax.stop_gradient(curve(jnp.asarray(_from_curve.FARTHEST))) + 0.05
    last = _from_curve.extent(curve, top, jnp.maximum(log_floor, least))
    return _from_curve.above(curve, last, cells)
