"""Numbers of twice the digits, as pairs: a double next to it, and what that lacks.

For sums that leave next to nothing of their terms. The error of a product or a sum of pairs is some
2^-100 of its operands (Dekker 1971). On CPUs XLA contracts products and sums, and works out the
same number in several loops, here contracted and there not: what a head lacks would be that of
another one. So heads are rounded, to a bit less than they have, by an operation on their bits.
"""

import fractions
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

Pair = tuple[jax.Array, jax.Array]

_BITS = 25  # of a head's fraction: it has 26 with the leading one, and so has the rest
# exp next to multiples of 1/64, by its series: terms from that degree on as doubles.
_STEPS, _DOUBLE, _DEGREE = 64.0, 6, 14
_FARTHEST = 23  # multiples of 1/64 up to log(2)/2


def _pairs(values: list[fractions.Fraction]) -> np.ndarray:
    heads = [float(x) for x in values]
    rests = [float(x - fractions.Fraction(h)) for x, h in zip(values, heads, strict=True)]
    return np.array([heads, rests]).T


def _coefficient(n: int) -> fractions.Fraction:
    return fractions.Fraction(1, math.factorial(n))


def _power(j: int) -> fractions.Fraction:
    """exp(j/64) to 1e-40."""
    unit = 10**45
    total, term, n = 0, unit, 0
    while term:
        total, n = total + term, n + 1
        term = term * abs(j) // (int(_STEPS) * n)
    return fractions.Fraction(total, unit) ** (1 if j >= 0 else -1)


_SERIES = _pairs([_coefficient(n) for n in range(_DOUBLE - 1, 0, -1)])
_HIGH = [float(_coefficient(n)) for n in range(_DEGREE, _DOUBLE - 1, -1)]
_POWERS = _pairs([_power(j) for j in range(-_FARTHEST, _FARTHEST + 1)])
# log 2 in three parts, of which so many bits are 0 that a multiple of the first two is exact.
_LOG_2 = fractions.Fraction("0.6931471805599453094172321214581765680755001343602552541206800094934")
_FIRST = math.floor(_LOG_2 * 2**42) / 2.0**42
_SECOND = math.floor((_LOG_2 - fractions.Fraction(_FIRST)) * 2**84) / 2.0**84
_THIRD = float(_LOG_2 - fractions.Fraction(_FIRST) - fractions.Fraction(_SECOND))


def _kept(x: jax.Array) -> jax.Array:
    """x to 52 bits: one number wherever it is worked out, as no operation can be contracted with
    that which rounds it.
    """
    return jax.lax.reduce_precision(x, exponent_bits=11, mantissa_bits=51)


def add(a: jax.Array, b: jax.Array) -> Pair:
    """Their sum (Knuth 1974, 4.2.2)."""
    head = _kept(a + b)
    moved = head - a
    return head, (a - (head - moved)) + (b - moved)


def _add_smaller(a: jax.Array, b: jax.Array) -> Pair:
    """The same where b is no larger than a, or a is 0."""
    head = _kept(a + b)
    return head, b - (head - a)


def _halves(x: jax.Array) -> Pair:
    head = jax.lax.reduce_precision(x, exponent_bits=11, mantissa_bits=_BITS)
    return head, x - head


def times(x: Pair, y: Pair) -> Pair:
    """The product of two pairs."""
    (a, b), (c, d) = _halves(x[0]), _halves(y[0])
    head = _kept(x[0] * y[0])
    rest = (((a * c - head) + a * d) + b * c) + b * d  # exact
    return _add_smaller(head, rest + (x[0] * y[1] + x[1] * y[0]))


def plus(x: Any, y: Pair) -> Pair:
    """The sum of two pairs."""
    head, rest = add(x[0], y[0])
    return _add_smaller(head, rest + (x[1] + y[1]))


def exponential(x: Pair, less_one: jax.Array | float = 0.0) -> Pair:
    """exp(x), less 1 where `less_one` is 1 (with all its digits), for x <= 700."""
    turns = jnp.clip(jnp.round(x[0] / float(_LOG_2)), -1022.0, 1022.0)
    rest = add(x[0] - turns * _FIRST, -(turns * _SECOND))
    rest = _add_smaller(rest[0], rest[1] + (x[1] - turns * _THIRD))
    step = jnp.clip(jnp.round(rest[0] * _STEPS), -_FARTHEST, _FARTHEST)
    rest = _add_smaller(rest[0] - step / _STEPS, rest[1])

    high = jnp.full_like(rest[0], _HIGH[0])
    for coefficient in _HIGH[1:]:
        high = coefficient + high * rest[0]

    series = high, jnp.zeros_like(high)
    for head, rounded in _SERIES:
        series = plus((head, rounded), times(rest, series))
    power = jnp.asarray(_POWERS)[jnp.nan_to_num(step).astype(jnp.int32) + _FARTHEST]
    whole = power[..., 0], power[..., 1]
    moved = times(whole, times(rest, series))
    bits = (turns.astype(jnp.int64) + 1023) * 2**52
    scale = jax.lax.bitcast_convert_type(bits, jnp.float64)
    head, lost = add(scale * whole[0], -jnp.asarray(less_one, jnp.float64))
    found = plus(_add_smaller(head, lost + scale * whole[1]), (scale * moved[0], scale * moved[1]))
    tiny = x[0] < -708.0
    return jnp.where(tiny, -less_one, found[0]), jnp.where(tiny, 0.0, found[1])


def total(heads: jax.Array, rests: jax.Array | float = 0.0) -> jax.Array:
    """The sum of pairs over the first axis, to the last digits of a double."""
    lost = jnp.sum(rests, axis=0) if jnp.ndim(rests) else rests
    while heads.shape[0] > 1:
        if heads.shape[0] % 2:
            heads = jnp.concatenate([heads, jnp.zeros_like(heads[:1])])
        heads, less = add(heads[0::2], heads[1::2])
        lost = lost + jnp.sum(less, axis=0)
    return heads[0] + lost
