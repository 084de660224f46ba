"""What a composition is made of, and its two directions."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend import core
from jax.typing import ArrayLike

from jaxdp import _lanes

Masses = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
Direction = Literal["remove", "add", "both"]
# A direction, or whether it is "add": known, or traced where both directions are one program.
Flag = bool | jax.Array
AnyDirection = Direction | Flag
Sides = tuple[int, ...]  # of bounds: +1 above, -1 below
# +1 or -1 as "remove" or "add" is read.
Sign = int | jax.Array
Bounds = tuple[jax.Array, ...]  # one for each side


def either(some: bool | jax.Array, yes: Any, no: Any) -> Any:
    """One of two arrays, or trees of some: chosen in the program where the condition is traced."""
    if isinstance(some, bool):
        return yes if some else no
    return jax.tree.map(lambda a, b: jnp.where(some, a, b), yes, no)


def sign_of(direction: AnyDirection) -> Sign:
    """+1 of "remove", -1 of "add"."""
    add = direction == "add" if isinstance(direction, str) else direction
    return either(add, -1, 1) if isinstance(add, bool) else jnp.where(add, -1.0, 1.0)


def may_remove(s: Sign) -> bool:
    """Whether s is +1 or only the running program knows."""
    return not isinstance(s, int) or s > 0


def may_add(s: Sign) -> bool:
    """Whether s is -1 or only the running program knows."""
    return not isinstance(s, int) or s < 0


class Term(NamedTuple):
    """A one-step law, `count` times.

    With L = log dP/dQ, `masses(lo, hi)` returns (log Q{lo < L <= hi}, log P{lo < L <= hi}),
    elementwise, each with relative error below 2^-52 (16 + 4 |log q| + 4 |log p|) + `mass_error`
    (nan if that is unknown: then all bounds are trivial), and may close over traced parameters.
    Atoms are compared with lo and hi to within 2^-44 of their loss (`_allowances.nudge`).
    `log_tau_p` is log P{L = inf}, `log_tau_q` is log Q{L = -inf}, and `support` the (infimum,
    supremum) of the finite losses, infinite where there is none; finite ends become nodes, so that
    atoms there are represented exactly.
    """

    masses: Masses
    count: ArrayLike = 1.0
    log_tau_p: ArrayLike = -jnp.inf
    log_tau_q: ArrayLike = -jnp.inf
    support: tuple[ArrayLike, ArrayLike] = (-jnp.inf, jnp.inf)
    mass_error: ArrayLike = 0.0

    @property
    def bounded(self) -> bool:
        """Whether an end of the support may be finite (numbers, not arrays, say that none is)."""
        return not all(isinstance(end, float) and np.isinf(end) for end in self.support)


def of_each(one: Callable[..., Any], terms: Sequence[Term], rows: Sequence[Any]) -> list[Any]:
    """`one(term, row)` of every term and its row, by one program: only masses differ in kind."""
    if len(terms) == 1:
        return [one(terms[0], rows[0])]
    bounded = any(term.bounded for term in terms)

    def of_shape(term: Term) -> Masses:
        def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
            log_q, log_p = (jnp.asarray(x, jnp.float64) for x in term.masses(lo, hi))
            return jnp.broadcast_to(log_q, lo.shape), jnp.broadcast_to(log_p, lo.shape)

        return masses

    def numbers(term: Term) -> Any:
        own = term._replace(support=term.support if bounded else ())
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tuple(own[1:]))

    def at(index: jax.Array, own: Any, row: Any) -> Any:
        def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
            return lax.switch(index, [of_shape(t) for t in terms], *jnp.broadcast_arrays(lo, hi))

        term = Term(masses, *own)
        return one(term if bounded else term._replace(support=terms[0].support), row)

    index = [jnp.int32(i) for i in range(len(terms))]
    return _lanes.each(at, list(zip(index, map(numbers, terms), rows, strict=True)))


def one_of(some: jax.Array, yes: Callable[[], Term], no: Callable[[], Term]) -> Term:
    """One of two terms, of which that one alone is worked out (but in a batch)."""
    a, b = _where(some, yes), _where(~some, no)

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return lax.cond(some, a.masses, b.masses, *jnp.broadcast_arrays(lo, hi))

    return Term(
        masses, *jax.tree.map(lambda x, y: jnp.where(some, x, y), tuple(a[1:]), tuple(b[1:]))
    )


def _where(some: jax.Array, build: Callable[[], Term]) -> Term:
    """The term where that is so, else one of zeros: what its masses close over is handed on."""
    program = []

    @jax.jit  # traced once
    def numbers() -> tuple[list[jax.Array], Any]:
        term = build()
        closed = jax.make_jaxpr(term.masses)(*jnp.zeros((2,), jnp.float64))
        program[:] = [closed.jaxpr]
        rest = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), tuple(term[1:]))
        return [jnp.asarray(x) for x in closed.consts], rest

    shapes = jax.eval_shape(numbers)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    consts, rest = lax.cond(some, numbers, lambda: nothing)

    def at(lo: jax.Array, hi: jax.Array) -> list[jax.Array]:
        return core.jaxpr_as_fun(core.ClosedJaxpr(program[0], consts))(lo, hi)

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_q, log_p = jax.vmap(at)(lo.reshape(-1), hi.reshape(-1))
        return log_q.reshape(lo.shape), log_p.reshape(lo.shape)

    return Term(masses, *rest)


class Family(NamedTuple):
    """Many terms: `term(x)` for every x along the leading axis of the arrays in `parameters`."""

    term: Callable[[Any], Term]
    parameters: Any

    @property
    def number(self) -> int:
        """How many."""
        return jax.tree.leaves(self.parameters)[0].shape[0]


Terms = tuple[Term | Family, ...]


def orient(term: Term | Family, flip: jax.Array) -> Term | Family:
    """The term itself, or where flip is true that of the reversed pair (Q, P).

    Reversed, the loss changes sign and the two laws trade places. Cells become half-open on the
    other side, which is as good a partition of the line. (flip is traced, so that both
    directions are one program, for a batch of two or for one at a time.)
    """
    if isinstance(term, Family):
        return term._replace(term=lambda x: orient_one(term.term(x), flip))
    return orient_one(term, flip)


def orient_one(term: Term, flip: jax.Array) -> Term:
    """`orient` of one term."""

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_q, log_p = term.masses(jnp.where(flip, -hi, lo), jnp.where(flip, -lo, hi))
        return jnp.where(flip, log_p, log_q), jnp.where(flip, log_q, log_p)

    low, high = support = term.support
    if term.bounded:
        low, high = (jnp.asarray(end, jnp.float64) for end in support)
        support = jnp.where(flip, -high, low), jnp.where(flip, -low, high)
    tau_p, tau_q = (jnp.asarray(t, jnp.float64) for t in (term.log_tau_p, term.log_tau_q))
    return Term(
        masses,
        term.count,
        jnp.where(flip, tau_q, tau_p),
        jnp.where(flip, tau_p, tau_q),
        support,
        term.mass_error,
    )


def over_directions(
    terms: Terms,
    direction: AnyDirection,
    answer: Callable[[Terms, jax.Array], Any],
    mirrored: jax.Array | None = None,
) -> Any:
    """The answers to a remove question in the direction asked for; for "both" remove's, add's.

    The question is also told which direction that is. Where it is mirrored, it is asked of the
    other one's law.
    """
    known = direction if isinstance(direction, str) else None
    if mirrored is None and (direction is False or known == "remove"):
        return answer(terms, jnp.asarray(False))

    def one(flip: jax.Array) -> Any:
        return answer(oriented(terms, flip, mirrored), flip)

    if known == "both":
        return _lanes.both(one)
    return one(jnp.asarray(direction if known is None else known == "add"))


def oriented(terms: Terms, flip: jax.Array, mirrored: jax.Array | None = None) -> Terms:
    """The terms in the other direction where that is asked for, or, mirrored, where it is not."""
    turned = flip if mirrored is None else flip ^ mirrored
    return tuple(orient(term, turned) for term in terms)
