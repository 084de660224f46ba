"""Numbers of steps: checked where known, and exact in two 32-bit words where a program counts them.

A counter holds steps = high 2^30 + low, 0 <= low < 2^30, as int32. It never wraps: from 2^59 steps
on it stays there, for which epsilon is infinite. A high word below 0 is a count outside its domain;
it stays, and epsilon is nan.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _checks

_BITS = 30
_BASE = 1 << _BITS
_FULL = 1 << 29  # high words from here on: too many steps to be counted
_INVALID = -1


def zero() -> jax.Array:
    """The counter of no steps."""
    return jnp.zeros((2,), jnp.int32)


def _known_words(count: np.ndarray) -> np.ndarray:
    """The words of known counts >= 0, which may be integers of any type, or floats."""
    whole = [min(int(x), _FULL << _BITS) for x in count.flat]
    words = [(n >> _BITS, n & (_BASE - 1)) for n in whole]
    return np.asarray(words, np.int32).reshape((*count.shape, 2))


def _float_words(count: jax.Array) -> jax.Array:
    """Exact, since powers of two divide floats without rounding."""
    count = count.astype(jnp.promote_types(count.dtype, jnp.float32))
    inside = _checks.COUNT.contains(count)
    count = jnp.where(inside, count, 0.0)
    high = jnp.floor(count * 2.0**-_BITS)
    low = count - high * 2.0**_BITS
    full = high >= _FULL
    high = jnp.where(full, 0.0, high).astype(jnp.int32)
    high = jnp.where(full, _FULL, jnp.where(inside, high, _INVALID))
    return jnp.stack([high, low.astype(jnp.int32)], axis=-1)


def _integer_words(count: jax.Array) -> jax.Array:
    signed = jnp.issubdtype(count.dtype, jnp.signedinteger)
    if jnp.iinfo(count.dtype).bits < 32:
        count = count.astype(jnp.int32)
    high = jnp.minimum(count >> _BITS, jnp.asarray(_FULL).astype(count.dtype)).astype(jnp.int32)
    low = (count & jnp.asarray(_BASE - 1).astype(count.dtype)).astype(jnp.int32)
    if signed:
        high = jnp.where(count < 0, _INVALID, high)
    return jnp.stack([high, low], axis=-1)


def words_of(count: Any) -> Any:
    """A number of steps, known (and then checked) or traced, in words on a new last axis."""
    known = _checks.concrete("count", count)
    if known is not None:
        _checks.check("count", count, _checks.COUNT)
        return _known_words(known)
    if jnp.issubdtype(count.dtype, jnp.floating):
        return _float_words(count)
    return _integer_words(count)


def add(counter: jax.Array, words: Any) -> jax.Array:
    """The counter after more steps."""
    low = counter[..., 1] + words[..., 1]  # < 2^31
    high = counter[..., 0] + words[..., 0] + (low >> _BITS)  # <= 2^30 + 1
    invalid = (counter[..., 0] < 0) | (words[..., 0] < 0)
    high = jnp.where(invalid, _INVALID, jnp.minimum(high, _FULL))
    return jnp.stack([high, low & (_BASE - 1)], axis=-1)


def beyond(counter: Any, steps: int) -> Any:
    """Whether there are more steps than these."""
    high, low = min(steps >> _BITS, _FULL), steps & (_BASE - 1)
    same = counter[..., 0] == high
    return (counter[..., 0] > high) | (same & (counter[..., 1] > low))


def phase(counter: jax.Array, starts: Sequence[int]) -> int | jax.Array:
    """The phase of the latest step, of those that begin after so many steps, the first after 0.

    An int where it is known: a `lax.switch` outside of a program traces and compiles every phase
    at every call, with the counter as a constant, while the program of one phase is kept.
    """
    if len(starts) == 1:
        return 0
    known = not isinstance(counter, jax.core.Tracer) and counter.ndim == 1
    words = np.asarray(counter) if known else counter
    latest = sum(beyond(words, start).astype(jnp.int32) for start in starts[1:])
    return int(latest) if known else latest


def value(counter: jax.Array) -> jax.Array:
    """The number of steps in float64, rounded up; inf for too many, nan for an invalid one.

    For use inside the float64 island, where the words come as float64 too.
    """
    high, low = counter[..., 0], counter[..., 1]
    steps = high * float(_BASE) + low
    steps = jnp.where(steps < 2.0**53, steps, steps * (1.0 + 2.0**-52))
    return jnp.where(high < 0.0, jnp.nan, jnp.where(high >= _FULL, jnp.inf, steps))


def saturated(counter: jax.Array) -> jax.Array:
    """The number of steps as int32: at most 2^31 - 1, and -1 for an invalid one."""
    high, low = counter[..., 0], counter[..., 1]
    few = jnp.clip(high, 0, 1) * _BASE + low
    return jnp.where(high < 0, -1, jnp.where(high > 1, jnp.iinfo(jnp.int32).max, few))
