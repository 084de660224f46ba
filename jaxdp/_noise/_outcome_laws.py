"""Laws of finitely many outcomes with bounds on what they are off by, their powers and products.

Rounding. With each outcome go bounds: `error`, relative, of its masses (absolute, of their
logarithms), and `off`, absolute, of its loss. The loss is carried by itself, since next to 0 it
has digits that a difference of logarithms has not. Each operation adds what its inputs are off by
(times the count; of a sum of positive terms the largest) and a few u = 2^-53 of the numbers that it
adds: a sum of m numbers is off by m u of the sum of their magnitudes, a logarithm or an exponential
by 4 u.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._divergences import SLACK

MOST = 8192  # outcomes
_MOST_NUMBERS = 2**17  # of a table of counts


class Law(NamedTuple):
    """Outcomes (N,): logarithms of masses, losses (0 where a mass is none), bounds of errors."""

    log_p: jax.Array
    log_q: jax.Array
    loss: jax.Array
    error: jax.Array
    off: jax.Array

    @property
    def both(self) -> jax.Array:
        """Which have a finite loss."""
        return (self.log_p > -jnp.inf) & (self.log_q > -jnp.inf)


def size(x: jax.Array) -> jax.Array:
    """The magnitude, 0 where there is none."""
    return lax.stop_gradient(jnp.where(x > -jnp.inf, jnp.abs(x), 0.0))


def finite(x: jax.Array) -> jax.Array:
    return jnp.where(x > -jnp.inf, x, 0.0)


def draws(count: int, outcomes: int) -> int:
    """How many outcomes so many draws have, their order apart."""
    return math.comb(count + outcomes - 1, outcomes - 1)


def is_small(count: int, outcomes: int) -> bool:
    """Whether they are few enough."""
    number = draws(count, outcomes)
    return number <= MOST and number * outcomes <= _MOST_NUMBERS


@functools.cache
def counted(count: int, outcomes: int) -> tuple[np.ndarray, np.ndarray]:
    """How often each outcome occurs in so many draws, (N, k), and log numbers of orders, (N,)."""
    rows = [[]]
    left = [count]
    for i in range(outcomes - 1, -1, -1):
        kept, rest = [], []
        for row, n in zip(rows, left, strict=True):
            for m in range(n + 1) if i else [n]:
                kept.append([*row, m])
                rest.append(n - m)
        rows, left = kept, rest
    orders = [
        math.log(math.factorial(count) // math.prod(map(math.factorial, row))) for row in rows
    ]
    return np.asarray(rows, np.float64), np.asarray(orders)


def power(law: Law, count: int) -> Law:
    """The composition of so many equal ones."""
    if count == 1:
        return law
    number = law.loss.shape[0]
    times, orders = counted(count, number)
    none_p, none_q = law.log_p == -jnp.inf, law.log_q == -jnp.inf

    def total(logs: jax.Array, none: jax.Array) -> jax.Array:
        some = times @ none.astype(jnp.float64) == 0.0
        return jnp.where(some, times @ finite(logs) + orders, -jnp.inf)

    log_p, log_q = total(law.log_p, none_p), total(law.log_q, none_q)
    r = SLACK * (number + 8.0)
    sizes = times @ (size(law.log_p) + size(law.log_q)) + 2.0 * np.abs(orders)
    error = times @ law.error + r * (sizes + 1.0)
    both = (log_p > -jnp.inf) & (log_q > -jnp.inf)
    loss = jnp.where(both, times @ law.loss, 0.0)
    off = times @ law.off + r * (times @ lax.stop_gradient(jnp.abs(law.loss)))
    return Law(log_p, log_q, loss, error, jnp.where(both, off, 0.0))


def product(a: Law, b: Law) -> Law:
    """The composition of two."""

    def outer(x: jax.Array, y: jax.Array) -> jax.Array:
        return (x[:, None] + y[None, :]).reshape(-1)

    log_p, log_q = outer(a.log_p, b.log_p), outer(a.log_q, b.log_q)
    both = (log_p > -jnp.inf) & (log_q > -jnp.inf)
    sizes = size(log_p) + size(log_q)
    error = outer(a.error, b.error) + SLACK * sizes
    magnitudes = outer(jnp.abs(a.loss), jnp.abs(b.loss))
    off = outer(a.off, b.off) + SLACK * lax.stop_gradient(magnitudes)
    loss = jnp.where(both, outer(a.loss, b.loss), 0.0)
    return Law(log_p, log_q, loss, error, jnp.where(both, off, 0.0))
