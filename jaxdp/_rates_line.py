"""Rényi moments of laws on the line: panels of one width over all that matters.

The rule is that of `_rates`: ten Gauss-Legendre nodes a panel, whose half-width is at most 0.38 of
the distance of the singularities of log X from the real line, and 1. Here a bound on that distance
for the whole line is enough, and there are four times as many panels.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _rates
from jaxdp import _special as special
from jaxdp._divergences import SLACK

_PANELS, _POINTS = 256, 512


def pace(distance: jax.Array, curvature: jax.Array) -> jax.Array:
    """How many panels of half the widest size a unit of the line takes.

    Args:
      distance: of singularities from the line.
      curvature: the integrand grows by at most curvature y^2/2 at a distance y from the line,
        beyond the e^{y^2/2} of the normal density.
    """
    return jnp.sqrt(1.0 + curvature) + 2.62 / distance


def rate(
    s: jax.Array,
    laws: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    ends: tuple[jax.Array, jax.Array],
    scale: jax.Array,
    density: jax.Array,
    rounding: jax.Array,
    mirrored: bool = False,
) -> tuple[jax.Array, jax.Array]:
    """k(s) of a law on the line by quadrature, with its error added, and whether it is resolved.

    Args:
      s: outside (0, 1).
      laws: from outcomes z to losses and log Q-densities.
      ends: all outcomes that matter; where the law has an end, that is where the first panel
        begins, and moves with it.
      scale: of a typical loss near 0.
      density: panels a unit of the line, see `pace`.
      rounding: of losses, in units of 2^-52, beyond that of the exponents of the integrand.
      mirrored: the law is symmetric (log P{L} = log Q{-L}), and given for positive losses only.
    """
    low, high = jax.lax.stop_gradient(ends)
    order, scale, density = jax.lax.stop_gradient((s, scale, density))
    z = low + (high - low) * jnp.asarray(np.linspace(0.0, 1.0, _POINTS))
    u, log_q = jax.lax.stop_gradient(laws(z))
    height = _rates._log_height(u, order, scale)
    if mirrored:
        height = jnp.maximum(height, u + _rates._log_height(-u, order, scale))
    height = height + log_q
    matters = height >= jnp.max(height) - _rates._DROP
    index = jnp.arange(_POINTS, dtype=jnp.int32)
    first = jnp.min(jnp.where(matters, index, _POINTS - 1))
    last = jnp.max(jnp.where(matters, index, 0))
    left, right = (z[jnp.clip(i, 0, _POINTS - 1)] for i in (first - 1, last + 1))
    width = (right - left) / _PANELS
    nodes = (left + width * (np.arange(_PANELS)[:, None] + _rates._OFFSETS)).ravel()
    nodes = jax.lax.stop_gradient(nodes) + (ends[0] - low)
    shares = np.tile(_rates._LOG_SHARES, _PANELS)
    u, log_q = laws(nodes)
    log_weights = log_q + shares + jax.lax.stop_gradient(jnp.log(width))
    size = jnp.max(_rates._growth(u, order) + jnp.abs(log_q)) + rounding
    error = jax.lax.stop_gradient(_rates._SLACK + SLACK * size)
    if mirrored:
        u, log_weights = jnp.append(u, -u), jnp.append(log_weights, log_weights + u)
    value = _rates.discrete_rate(u, log_weights, s, error)
    resolved = (density * (right - left) <= 2.0 * _PANELS) & (error < _rates.ROUGH)
    return value, resolved & jnp.any(matters)


def least(value: jax.Array, resolved: jax.Array, bound: jax.Array) -> jax.Array:
    """The quadrature where it is good, the bound that always holds where it is not."""
    return jnp.where(resolved & (value < bound), value, bound)


def moments_rate(s: jax.Array, log_weights: jax.Array, rates: jax.Array) -> jax.Array:
    """k(s) of E[X^s] = 1 + sum_j w_j (E_j - 1), E_j = e^{s (s - 1) k_j}: no cancellation.

    Where an E_j is beyond e^30, from the sum itself, for weights of sum 1 or more.
    """
    scale = s * (s - 1.0)
    growth = scale * rates
    large = jnp.max(growth) > 30.0
    held = jnp.minimum(growth, 30.0)
    weights = _divergences.exp_log(log_weights)
    excess = jnp.sum(weights * rates * special.relative_expm1(held))
    near = _divergences.rate_from_excess(excess, s)
    rest = _divergences.log_positive(1.0 - jnp.sum(weights))
    total = special.logsumexp(jnp.append(log_weights + growth, rest))
    return jnp.where(large, total / jnp.where(large, scale, 1.0), near)
