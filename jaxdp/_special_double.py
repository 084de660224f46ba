"""Numbers of twice the digits, as pairs: the nearest double, and what it lacks.

For sums that leave next to nothing of their terms. The error of a product or a sum of pairs is some
2^-100 of its operands (Dekker 1971); operations may be contracted (fused), as XLA does on CPUs:
halves of a number are told by their bits, and what a sum lacks by differences that are exact.
"""

import fractions
import math

import jax
import jax.numpy as jnp
import numpy as np

Pair = tuple[jax.Array, jax.Array]

_DEGREE = 24  # of exp on [-log(2)/2, log(2)/2]
_BITS = 25  # of a head's fraction: it has 26 with the leading one, and so has the rest


def _pair_of(x: fractions.Fraction) -> tuple[float, float]:
    head = float(x)
    return head, float(x - fractions.Fraction(head))


_COEFFICIENTS = np.array(
    [_pair_of(fractions.Fraction(1, math.factorial(n))) for n in range(_DEGREE, 0, -1)]
)
# log 2 in three parts, of which so many bits are 0 that a multiple of the first two is exact.
_LOG_2 = fractions.Fraction(
    "0.6931471805599453094172321214581765680755001343602552541206800094933936"
)
_FIRST = math.floor(_LOG_2 * 2**42) / 2.0**42
_SECOND = math.floor((_LOG_2 - fractions.Fraction(_FIRST)) * 2**84) / 2.0**84
_THIRD = float(_LOG_2 - fractions.Fraction(_FIRST) - fractions.Fraction(_SECOND))


def add(a: jax.Array, b: jax.Array) -> Pair:
    """Their sum (Knuth 1974, 4.2.2)."""
    head = a + b
    moved = head - a
    return head, (a - (head - moved)) + (b - moved)


def _add_smaller(a: jax.Array, b: jax.Array) -> Pair:
    """The same where b is no larger than a, or a is 0."""
    head = a + b
    return head, b - (head - a)


def _halves(x: jax.Array) -> Pair:
    head = jax.lax.reduce_precision(x, exponent_bits=11, mantissa_bits=_BITS)
    return head, x - head


def times(x: Pair, y: Pair) -> Pair:
    """The product of two pairs."""
    (a, b), (c, d) = _halves(x[0]), _halves(y[0])
    head = x[0] * y[0]
    rest = (((a * c - head) + a * d) + b * c) + b * d  # exact
    return _add_smaller(head, rest + (x[0] * y[1] + x[1] * y[0]))


def plus(x: Pair, y: Pair) -> Pair:
    """The sum of two pairs."""
    head, rest = add(x[0], y[0])
    return _add_smaller(head, rest + (x[1] + y[1]))


def exponential(x: Pair, less_one: jax.Array | float = 0.0) -> Pair:
    """exp(x), less 1 where `less_one` is 1 (with all its digits), for x <= 700."""
    turns = jnp.clip(jnp.round(x[0] / float(_LOG_2)), -1022.0, 1022.0)
    rest = add(x[0] - turns * _FIRST, -(turns * _SECOND))
    rest = _add_smaller(rest[0], rest[1] + (x[1] - turns * _THIRD))

    def further(n: jax.Array, total: Pair) -> Pair:
        coefficient = jnp.asarray(_COEFFICIENTS)[n]
        return plus((coefficient[0], coefficient[1]), times(rest, total))

    zero = jnp.zeros_like(rest[0])
    total = times(rest, jax.lax.fori_loop(0, _DEGREE, further, (zero, zero)))
    bits = (turns.astype(jnp.int64) + 1023) * 2**52
    scale = jax.lax.bitcast_convert_type(bits, jnp.float64)
    one = add(scale, -jnp.asarray(less_one, jnp.float64))
    found = plus(one, (scale * total[0], scale * total[1]))
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
