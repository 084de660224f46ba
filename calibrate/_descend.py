"""A loss without constraints, minimised by an optax optimiser."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from jaxdp import _checks

# Steps without a lower loss after which the search ends: a line search that fails has converged,
# a method without one may oscillate for long.
_PATIENCE_LBFGS, _PATIENCE = 5, 60


def check_optimizer(optimizer: Any) -> None:
    """ValueError unless it is one of optax's, or None."""
    known = callable(getattr(optimizer, "init", None))
    known = known and callable(getattr(optimizer, "update", None))
    if optimizer is not None and not known:
        got = _checks.shown(optimizer)
        raise ValueError(f"optimizer must be an optax.GradientTransformation, got {got}")


def descend(loss, theta, optimizer, max_steps, reachable):
    """Minimise an unconstrained loss by an optax optimiser: the best point seen, the loss there."""
    patience = _PATIENCE_LBFGS if optimizer is None else _PATIENCE
    optimizer = optax.with_extra_args_support(optimizer or optax.lbfgs())
    value_and_grad = jax.value_and_grad(loss)

    def body(state):
        theta, opt_state, best, best_value, stalled, count = state
        value, grad = value_and_grad(theta)
        better = value < best_value
        gain = best_value - value > 1e-13 * jnp.abs(best_value)
        best, best_value = jnp.where(better, theta, best), jnp.where(better, value, best_value)
        updates, opt_state = optimizer.update(
            grad, opt_state, theta, value=value, grad=grad, value_fn=loss
        )
        theta = optax.apply_updates(theta, updates)
        stalled = jnp.where(gain, 0, stalled + 1)
        return theta, opt_state, best, best_value, stalled, count + 1

    def going(state):
        return (state[4] < patience) & (state[5] < max_steps) & reachable

    zero = jnp.zeros((), jnp.int32)
    inf = jnp.asarray(jnp.inf, jnp.float64)
    state = (theta, optimizer.init(theta), theta, inf, zero, zero)
    return jax.lax.while_loop(going, body, state)[2:4]
