"""What a composition is made of, and the reversed pair."""

from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

Masses = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
Direction = Literal["remove", "add"]


class Term(NamedTuple):
    """A one-step law, `count` times.

    With L = log dP/dQ, `masses(lo, hi)` returns (log Q{lo < L <= hi}, log P{lo < L <= hi}),
    elementwise, each with relative error below 2^-52 (16 + 4 |log q| + 4 |log p|), and may close
    over traced parameters. `log_tau_p` is log P{L = inf}, `log_tau_q` is log Q{L = -inf}, and
    `support` the (infimum, supremum) of the finite losses, infinite where there is none; finite
    ends become nodes, so that atoms there are represented exactly.
    """

    masses: Masses
    count: ArrayLike = 1.0
    log_tau_p: ArrayLike = -jnp.inf
    log_tau_q: ArrayLike = -jnp.inf
    support: tuple[ArrayLike, ArrayLike] = (-jnp.inf, jnp.inf)


def reverse(term: Term) -> Term:
    """The term of the pair (Q, P): the loss changes sign and the two laws trade places.

    Cells become half-open on the other side, which is as good a partition of the line.
    """

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_q, log_p = term.masses(-hi, -lo)
        return log_p, log_q

    low, high = term.support
    return Term(
        masses,
        term.count,
        term.log_tau_q,
        term.log_tau_p,
        (-jnp.asarray(high, jnp.float64), -jnp.asarray(low, jnp.float64)),
    )


def orient(terms: tuple[Term, ...], direction: Direction) -> tuple[Term, ...]:
    """The terms of which the asked direction is the "remove" one."""
    return terms if direction == "remove" else tuple(reverse(term) for term in terms)
