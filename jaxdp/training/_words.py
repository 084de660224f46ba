"""Float64 numbers as two words of the caller's precision, so that a loop may carry them.

In a 32-bit program a sum of many steps is kept as hi + lo, two float32 (48 bits), and each update
errs by a relative 2^-48 to the safe side; a single float32 would err by 2^-24 a step. With x64
enabled lo is 0. Derivatives flow through hi.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _rounding, _x64

TINY = 2.3e-308  # just above the smallest normal float64: what is below may be flushed to 0


def constant(table: np.ndarray) -> jax.Array:
    """A float64 table, exactly, from three float32 words.

    Constants of a loop's body become operands of the loop: these are then of the caller's
    precision, like all else outside of the island.
    """
    words = []
    rest = np.asarray(table, np.float64)
    for _ in range(3):
        words.append(rest.astype(np.float32))
        rest = np.where(np.isfinite(rest), rest - words[-1], 0.0)
    hi, middle, lo = (jnp.asarray(word).astype(jnp.float64) for word in words)
    return hi + (middle + lo)


def join(words: jax.Array) -> jax.Array:
    """The float64 number of (hi, lo) on the last axis."""
    return words[..., 0] + jax.lax.stop_gradient(words[..., 1])


def split(value: jax.Array, rounding: _x64.Rounding, single: bool) -> jax.Array:
    """(hi, lo) of a float64 number, rounded to the stated side, still in float64."""
    if not single:
        return jnp.stack([value, jnp.zeros_like(value)], axis=-1)
    exact = jax.lax.stop_gradient(value)
    hi = _rounding.nearest(exact, jnp.float32)
    # a number beyond the range of float32 is infinite, or the largest if it is to be rounded down
    if rounding == "down":
        hi = jnp.where(exact < jnp.inf, jnp.minimum(hi, float(jnp.finfo(jnp.float32).max)), hi)
    rest = jnp.where(jnp.isfinite(hi), exact - hi, 0.0)
    lo = _x64.rounded(rest, rounding, jnp.float32).astype(jnp.float64)
    change = jnp.where(jnp.isfinite(exact), value - exact, 0.0)  # 0, with the derivative of value
    return jnp.stack([hi + change, lo], axis=-1)
