"""Rounding to the safe side: products and quotients in 64 bits, and answers that go to 32."""

from typing import Any, Literal

import jax
import jax.numpy as jnp

Rounding = Literal["up", "down", "nearest"]


def nearest(value: jax.Array, dtype: Any) -> jax.Array:
    """Value to the nearest number of dtype, in value's own precision; what is subnormal is 0.

    A conversion there and back is not that on accelerators, where XLA takes it for the identity
    (xla_allow_excess_precision), so that nothing would ever be found to have been rounded.
    """
    info = jnp.finfo(dtype)
    return jax.lax.reduce_precision(value, exponent_bits=info.nexp, mantissa_bits=info.nmant)


def is_least(values: jax.Array) -> jax.Array:
    """Where the minimum over the first axis is attained, or all but.

    XLA may work values out once for the minimum and again to be compared with it, and round them
    differently, as it contracts products and sums in some loops: nothing would be equal to it.
    """
    least = jnp.min(values, axis=0)
    room = jnp.where(jnp.abs(least) < jnp.inf, 2.0**-48 * jnp.abs(least), 0.0)
    return values <= least + room


def rounded(value: jax.Array, rounding: Rounding, dtype: Any) -> jax.Array:
    """Cast to dtype; to 32 bits on the stated side, keeping clear of subnormals (flushed to 0)."""
    if dtype == jnp.float64 or rounding == "nearest":
        return value.astype(dtype)
    if rounding == "down":
        return 0.0 - rounded(-value, "up", dtype)
    info = jnp.finfo(dtype)
    cast = value.astype(dtype)
    above = jnp.nextafter(cast, jnp.asarray(jnp.inf, dtype))
    up = jnp.where(nearest(value, dtype) < value, above, cast)
    up = jnp.where(value < -float(info.max), jnp.asarray(-info.max, dtype), up)
    up = jnp.where(jnp.isneginf(value), jnp.asarray(-jnp.inf, dtype), up)
    up = jnp.where((value > 0.0) & (value < float(info.tiny)), jnp.asarray(info.tiny, dtype), up)
    return jnp.where((value <= 0.0) & (value > -float(info.tiny)), jnp.zeros((), dtype), up)


def exact_product(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """a b rounded, and its rounding error, which is a float64 too (Dekker 1971).

    From halves of the digits; gradients go through the first only.
    """

    def halves(x):
        shifted = 134217729.0 * x  # 2^27 + 1
        high = shifted - (shifted - x)
        return high, x - high

    x, y = jax.lax.stop_gradient((1.0 * jnp.asarray(a), 1.0 * jnp.asarray(b)))
    (x_high, x_low), (y_high, y_low) = halves(x), halves(y)
    error = ((x_high * y_high - x * y) + x_high * y_low + x_low * y_high) + x_low * y_low
    return a * b, error


def product_up(a: jax.Array, b: jax.Array) -> jax.Array:
    """a b rounded up; exact where it is a float64."""
    product, error = exact_product(a, b)
    rounded = jax.lax.stop_gradient(product)
    above = jnp.nextafter(rounded, jnp.full_like(rounded, jnp.inf))
    return product + jnp.where(error > 0.0, above - rounded, 0.0)


def quotient_up(a: jax.Array, b: jax.Array) -> jax.Array:
    """a/b > 0 rounded up; exact where it is a float64."""
    quotient = a / b
    product, error = exact_product(quotient, b)
    rounded = jax.lax.stop_gradient(quotient)
    short = (a - product) - error > 0.0  # exact: a and the product are next to each other
    above = jnp.nextafter(rounded, jnp.full_like(rounded, jnp.inf))
    return quotient + jnp.where(jax.lax.stop_gradient(short), above - rounded, 0.0)
