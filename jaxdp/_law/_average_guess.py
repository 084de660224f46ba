"""Guesses for planning the law of an average that is to be composed; no bounds."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp._law import _average_atoms
from jaxdp._law._terms import Term

_SHARES = np.geomspace(1e-4, 1.0, 64)  # of the saddle point's tilt
_RARE = 1e-8  # averages that rare, where delta is made up, do not count


def typical(
    term: Term, steps: jax.Array, log_delta: jax.Array, times: jax.Array
) -> _average_atoms.Typical:
    """What the average is in each of `times` blocks whose composition makes up a delta (add).

    To leading order log delta is the sum of the blocks' n (K - theta K'). Where delta is made up,
    a ratio x has the weight x^-T times its own, T / x being the slope of n (K - theta K') at the
    typical average.
    """
    steps, log_delta, times = lax.stop_gradient((steps, log_delta, times))
    atoms, _ = _average_atoms.coarse(term)
    thetas = _average_atoms.saddle(atoms, steps, None, log_delta, -1) * jnp.asarray(_SHARES)
    m = jax.vmap(lambda theta: _average_atoms.moments(atoms, theta, -1))(thetas)
    exponent = steps * (m.log_norm + thetas * (m.mean - 1.0))
    near = times * exponent >= log_delta
    slope = jnp.max(jnp.where(near, steps * thetas * m.mean, 0.0))
    weight = exponent - slope * jnp.log(jnp.maximum(m.mean, 1e-300))
    counts = weight >= jnp.max(weight) + np.log(_RARE) - jnp.log(times)
    return _average_atoms.Typical(
        jnp.min(jnp.where(near, m.mean, 1.0)),
        jnp.min(jnp.where(counts, m.mean, 1.0)),
        jnp.min(jnp.where(counts, exponent, 0.0)) - jnp.log(times),
    )


def guess_log_delta(
    term: Term, steps: jax.Array, epsilon: jax.Array, times: jax.Array, beside: ArrayLike = 0.0
):
    """A rough log delta at epsilon of `times` averages: a normal loss, or one large ratio.

    `beside` is the variance of the loss of what else is composed with them.
    """
    steps, epsilon, times = lax.stop_gradient((steps, epsilon, times))
    atoms, _ = _average_atoms.coarse(term)
    one = _average_atoms.guess(atoms, steps, steps * jnp.exp(epsilon)) + jnp.log(times)
    near = jnp.where(atoms.x <= 1.0 + steps * jnp.expm1(jnp.abs(epsilon)), atoms.x - 1.0, 0.0)
    variance = jnp.sum(jnp.exp(atoms.log_q) * near * near)
    deviation = jnp.sqrt(times * jnp.log1p(variance / steps) + beside) + 1e-300
    z = jnp.maximum(epsilon / deviation - 0.5 * deviation, 0.0)
    return jnp.maximum(one, jnp.log(deviation) - 0.5 * z * z - jnp.log1p(z * z) - 1.0)
