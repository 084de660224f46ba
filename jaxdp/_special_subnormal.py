"""Numbers below the smallest normal one, which XLA's arithmetic takes for 0 on CPUs.

Copies, selections and integer operations keep them, so that their digits can be read as integers.
A subnormal number has derivative 0 here, like 0 itself: what depends on it smoothly is below
every normal number.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np


class _Format(NamedTuple):
    integer: type
    digits: int  # of the fraction
    least: int  # the smallest positive number is 2^least


_FORMATS = {
    np.dtype(np.float64): _Format(np.int64, 52, -1074),
    np.dtype(np.float32): _Format(np.int32, 23, -149),
}


def split(x: jax.Array) -> tuple[jax.Array, jax.Array, int]:
    """y, whether x is subnormal, and k: x is y where it is not, and y 2^k where it is."""
    x = jnp.asarray(x)
    integer, digits, least = _FORMATS[np.dtype(x.dtype)]
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(x), integer)
    fraction = bits & integer(2**digits - 1)
    magnitude = bits & integer(np.iinfo(integer).max)
    small = (magnitude == fraction) & (fraction != 0)
    value = fraction.astype(x.dtype)
    return jnp.where(small, jnp.where(bits < 0, -value, value), x), small, least


def is_positive(x: jax.Array) -> jax.Array:
    """x > 0, subnormal numbers included."""
    return split(x)[0] > 0.0


def log_positive(x: jax.Array) -> jax.Array:
    """log x, subnormal numbers included; -inf with zero gradient where x <= 0, and nan of nan."""
    y, small, least = split(x)
    nothing = y <= 0.0
    value = jnp.log(jnp.where(nothing, 1.0, y)) + jnp.where(small, least * np.log(2.0), 0.0)
    return jnp.where(nothing, -jnp.inf, value)


def widen(x: jax.Array) -> jax.Array:
    """x in float64 without loss: the plain conversion takes subnormal float32 numbers for 0."""
    x = jnp.asarray(x)
    if x.dtype != jnp.float32:
        return x.astype(jnp.float64)
    y, small, least = split(x)
    return y.astype(jnp.float64) * jnp.where(small, 2.0**least, 1.0)
