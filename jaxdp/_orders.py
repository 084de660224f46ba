"""From Rényi divergences to epsilon and delta: at one order, and by the best of all orders."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special
from jaxdp._rounding import is_least

# Orders are searched over t = log(alpha - 1): a grid, then zooms onto its best node.
_GRID_LOW, _GRID_HIGH, _GRID_NODES = -9.0, 16.0, 101
_ZOOMS, _ZOOM_NODES = 8, 13  # to 1.5e-7, of which the error is the square

# Relative allowance for the evaluation error of Rényi moments (quadrature and rounding).
_MOMENT_SLACK = 4e-13


def _log_rest(alpha: jax.Array) -> jax.Array:
    """log(1 - 1/alpha), to a few roundoffs also where 1/alpha, rounded, is next to 1."""
    a1 = alpha - 1.0
    return jnp.where(a1 < 1.0, jnp.log(a1) - _special.log1p(a1), jnp.log1p(-1.0 / alpha))


def log_delta_at_order(moment: jax.Array, alpha: jax.Array, epsilon: jax.Array) -> jax.Array:
    """log delta from (alpha - 1) R_alpha = moment (Canonne, Kamath & Steinke 2020, Prop. 12)."""
    a1 = alpha - 1.0
    return moment - a1 * epsilon - jnp.log(a1) + alpha * _log_rest(alpha)


def epsilon_at_order(moment: jax.Array, alpha: jax.Array, log_delta: jax.Array) -> jax.Array:
    """The inverse of `log_delta_at_order` in epsilon; may be negative."""
    a1 = alpha - 1.0
    return (moment - log_delta - jnp.log(alpha)) / a1 + _log_rest(alpha)


def minimise_over_orders(
    objective: Callable[[jax.Array], jax.Array], orders: tuple[float, ...] | None = None
) -> jax.Array:
    """min over real alpha > 1 of the objective; every order is valid, so any minimum found is.

    With `orders`, the minimum over those. Else the minimiser is found without derivatives and
    frozen; by the envelope theorem the gradient there is the gradient of the minimum.
    """

    def number(alpha):
        value = objective(alpha)
        return jnp.where(jnp.isnan(value), jnp.inf, value)

    if orders is not None:
        return jnp.min(jax.vmap(number)(jnp.asarray(orders, jnp.float64)))

    def at(t):
        return number(1.0 + jnp.exp(t))

    def best(nodes):
        values = jax.lax.stop_gradient(jax.vmap(at)(nodes))
        return jnp.max(jnp.where(is_least(values), nodes, -jnp.inf))

    offsets = jnp.linspace(-1.0, 1.0, _ZOOM_NODES, dtype=jnp.float64)
    width = (_GRID_HIGH - _GRID_LOW) / (_GRID_NODES - 1)
    widths = width * (2.0 / (_ZOOM_NODES - 1)) ** np.arange(_ZOOMS)
    t = best(jnp.linspace(_GRID_LOW, _GRID_HIGH, _GRID_NODES, dtype=jnp.float64))
    t, _ = jax.lax.scan(lambda t, width: (best(t + width * offsets), None), t, jnp.asarray(widths))
    return at(jax.lax.stop_gradient(t))


def _inflate(moment: jax.Array) -> jax.Array:
    return moment + _MOMENT_SLACK * jnp.abs(moment)


def best_log_delta(
    moment: Callable[[jax.Array], jax.Array],
    log_failure: jax.Array,
    epsilon: jax.Array,
    orders: tuple[float, ...] | None = None,
) -> jax.Array:
    """Upper bound on log H at any real epsilon from all orders, plus the mass at infinite loss."""
    value = minimise_over_orders(
        lambda a: log_delta_at_order(_inflate(moment(a)), a, epsilon), orders
    )
    return jnp.logaddexp(jnp.minimum(value, 0.0) + _MOMENT_SLACK, log_failure)


def best_epsilon(
    moment: Callable[[jax.Array], jax.Array],
    log_failure: jax.Array,
    log_delta: jax.Array,
    orders: tuple[float, ...] | None = None,
) -> jax.Array:
    """Upper bound on epsilon >= 0 at delta from all orders; inf if delta <= the failure mass."""
    feasible = log_failure < log_delta
    rest = log_delta + _special.log1mexp(jnp.where(feasible, log_failure - log_delta, -1.0))
    value = minimise_over_orders(
        lambda a: epsilon_at_order(_inflate(moment(a)), a, rest - _MOMENT_SLACK), orders
    )
    return jnp.where(feasible, jnp.maximum(value, 0.0), jnp.inf)
