r"""Rényi divergences of shuffled reports, from above, by integrals of their hockey-stick curve.

For a pair with ratio X and E_Q X = 1, curve H(g) = E_Q (X - g)_+ the same in both directions, and
any s, f(x) = (1 - q + q x)^s, Taylor's formula f(X) = f(1) + f'(1)(X - 1) + int f''(g) ((X - g)_+
or (g - X)_+) dg and E_Q (g - X)_+ = g H(1/g) for g < 1 give

    E_Q (1 - q + q X)^s = 1 + s (s - 1) q^2 int_1^inf [w(g) + g^-3 w(1/g)] H(g) dg,
    w(g) = (1 - q + q g)^{s-2},

so that every upper bound on H is one on the moments, of the pair itself (q = 1) and of its Poisson
sample. H is convex in g: between points of a grid it is below its chord, and the weights are below
the products of their factors' larger ends. Beyond the grid, for a step of unbounded loss, H(g) <=
E_Q X^b g^{1-b}, with the moment of the unshuffled step, for any b. Shuffling is a post-processing:
the moments of the unshuffled step are bounds too, and the only ones if that step can fail.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp import _divergences, _special
from jaxdp._mechanisms import Base

_POINTS = 512
_SPAN = 1e-6  # the first point of the grid over the last
_AT_A_TIME = 32
_SHARES = np.asarray((0.25, 0.5, 1.0, 2.0))  # of top/mu^2, by which b exceeds the order
_LARGE = 600.0  # log of an excess whose exponential is not taken
# relative to the last point: 0, and points of constant ratio
_GRID = np.concatenate([[0.0], np.geomspace(_SPAN, 1.0, _POINTS - 1)])

SampledRate = Callable[[jax.Array, jax.Array], jax.Array]


def sampled_rate_function(shuffled: Base, step: Base) -> SampledRate:
    """(s, q) to an upper bound on the cumulant rate at s, of the pair sampled at the rate q."""

    def local(s: jax.Array, q: jax.Array) -> jax.Array:
        return jnp.maximum(step._sampled_rate(s, q), step._sampled_rate(1.0 - s, q))

    def worst_local(s: jax.Array, q: jax.Array) -> jax.Array:
        value = local(s, q)
        return jnp.where(jnp.isnan(value), jnp.inf, value)

    low, high = step._loss_range()
    bound = jnp.maximum(high, -low)
    pure = jnp.isfinite(bound)
    second = 2.0 * step._rate(jnp.asarray(2.0))  # mu^2 for the Gaussian
    far = 0.5 * second + 30.0 * jnp.sqrt(second)
    top = jnp.where(pure, bound, jnp.clip(far, 1e-12, 1e5))
    at = top * _GRID
    slack = _divergences.SLACK
    log_h = lax.map(
        lambda e: shuffled._log_hockey_stick(e, "remove", slack), at, batch_size=_AT_A_TIME
    )
    log_h = jnp.where(jnp.isnan(log_h), 0.0, jnp.minimum(log_h, 0.0))
    gap = at[1:] - at[:-1]
    chords = _divergences.log_add(log_h[1:], log_h[:-1]) - jnp.log(2.0)
    areas = chords + at[:-1] + _special.log_expm1(gap)

    def log_excess(s: jax.Array, q: jax.Array) -> jax.Array:
        left, right = (_divergences.sampled_loss(e, q) for e in (at[:-1], at[1:]))
        down_left, down_right = (_divergences.sampled_loss(-e, q) for e in (at[:-1], at[1:]))
        rises = s >= 2.0
        up = (s - 2.0) * jnp.where(rises, right, left)
        down = -3.0 * at[:-1] + (s - 2.0) * jnp.where(rises, down_left, down_right)
        total = _special.logsumexp(_divergences.log_add(areas + up, areas + down), axis=-1)
        rounding = 16.0 * slack * (_POINTS + (jnp.abs(s) + 5.0) * (top + 1.0))
        return 2.0 * jnp.log(q) + total + rounding

    def log_tail(s: jax.Array) -> jax.Array:
        order = jnp.maximum(jnp.maximum(s, 1.0 - s), 2.0)
        more = _SHARES * top / jnp.where(second > 0.0, second, 1.0)
        b = order + more
        moments = b * (b - 1.0) * jax.vmap(lambda x: local(x, jnp.asarray(1.0)))(b)
        logs = jnp.log(2.0) + moments - more * top - jnp.log(more)
        logs = jnp.where(jnp.isnan(logs), jnp.inf, logs)
        return jnp.where(pure, -jnp.inf, jnp.min(logs))

    failing = (step._log_failure("remove") > -jnp.inf) | (step._log_failure("add") > -jnp.inf)

    def rate(s: jax.Array, q: jax.Array) -> jax.Array:
        value = _divergences.log_add(log_excess(s, q), log_tail(s))
        near = value < _LARGE
        excess = _divergences.exp_log(jnp.where(near, value, 0.0))
        small = _divergences.rate_from_excess(excess, s)
        scale = jnp.where(near, 1.0, s * (s - 1.0))  # s = 1 and huge excess: the bound of one step
        large = jnp.where(
            scale > 0.0,
            jnp.logaddexp(
                jnp.where(near, 0.0, value) + _divergences.log_positive(scale), 0.0
            ) / jnp.where(scale > 0.0, scale, 1.0),
            jnp.inf,
        )  # fmt: skip
        bound = jnp.where(near, small, large) * (1.0 + 16.0 * slack)
        bound = jnp.where(failing | jnp.isnan(bound), jnp.inf, bound)
        return jnp.minimum(bound, worst_local(s, q))

    return rate
