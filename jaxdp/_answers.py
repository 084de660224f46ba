"""Answers for float64 scalars, inside the island: of every part by its method, then the worst.

A method answers for mechanisms that have one law (`_methods._base`, where `sides` are explained).
What is known between others only, or may be one of several, is taken apart here.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxdp import _checks, _divergences, _numerical
from jaxdp._law import Bounds, Sides
from jaxdp._mechanisms import Bracketed, Direction, Mechanism, _curve
from jaxdp._methods import Analytic, Method, Numerical, Renyi
from jaxdp._noise._outcomes import known
from jaxdp._special import LOG_2, log1mexp

# Without a method the first of these that supports a mechanism answers for it.
_BY_DEFAULT = Analytic(), Numerical(), Renyi()


def resolve(m: Mechanism, method: Method | None) -> Method:
    """The method that answers for m; ValueError, naming those that can, if the given one cannot.

    Of alternatives each has its own; this is then one that could answer for all.
    """
    parts = [part._structure() for part in m._alternatives()]
    if method is None:
        each = (next(by for by in _BY_DEFAULT if by._supports(part)) for part in parts)
        return max(each, key=_BY_DEFAULT.index)
    for part in parts:
        reason = method._refusal(part)
        if reason is not None:
            able = [f"{type(by).__name__}()" for by in _BY_DEFAULT if by._supports(part)]
            raise ValueError(f"method: {reason}, use {' or '.join(able)}")
    return method


def in_parts(m: Mechanism, direction: str, method: Method) -> bool:
    """Whether "both" may be asked for one direction at a time, by a flag: "add" or not."""
    if direction != "both" or m._alternatives()[0] is not m:
        return False
    m = m._structure()
    return not m._symmetric() and method._takes_flag(m)


def worst_of(
    m: Mechanism,
    values: Callable[[Mechanism], Bounds],
    larger: Callable[[jax.Array, jax.Array], jax.Array] = jnp.maximum,
) -> Bounds:
    """The larger of the values over the alternatives, those of one structure by one program.

    Bounds on the largest of several numbers, from above or below, are the largest of theirs.
    """
    groups: dict[Any, list[Mechanism]] = {}
    for part in m._alternatives():
        leaves, treedef = jax.tree.flatten(part)
        groups.setdefault((treedef, tuple(map(jnp.shape, leaves))), []).append(part)
    found: list[Bounds] = []
    for group in groups.values():
        if len(group) == 1:
            found.append(values(group[0]))
            continue
        # (Outside of any batch every parameter is a float64 here, whatever it came as.)
        parts = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y, jnp.float64) for y in x]), *group)
        each = jax.vmap(values)(parts)
        found += [tuple(x[i] for x in each) for i in range(len(group))]
    return tuple(functools.reduce(larger, side) for side in zip(*found, strict=True))


def log_deltas(
    m: Mechanism,
    epsilon: jax.Array,
    direction: str | jax.Array,
    method: Method | None,
    sides: Sides,
) -> Bounds:
    """log delta at any real epsilon, one value for each side; nan outside the domain."""

    def one(part: Mechanism) -> Bounds:
        bracketed = part._bracketed()
        if bracketed is not None:
            return _between(
                bracketed,
                (epsilon, None),
                lambda other, by, some: log_deltas(other, epsilon, direction, by, some),
                method,
                sides,
                lambda: _numerical.larger(
                    direction, functools.partial(bracketed._least_log_delta, epsilon)
                ),
            )
        part = known(part)
        by = resolve(part, method)
        values = by._log_delta(part, epsilon, direction, sides)
        if by._reads_laws:  # far from the bulk a lattice may say nothing
            values = _at_most(values, sides, _log_delta_unamplified(part, epsilon))
            values = _at_most(values, sides, log_unshared(part, epsilon))
        inside, gone = part._in_domain() & (epsilon == epsilon), _lost(part, direction)
        least = jnp.where(epsilon < 0.0, log1mexp(jnp.minimum(epsilon, -1e-300)), -jnp.inf)
        least = jnp.where(epsilon == -jnp.inf, 0.0, least * (1.0 + 2.0**-48))
        found = []
        for v, side in zip(values, sides, strict=True):
            v = jnp.where(jnp.isnan(v), -jnp.inf if side < 0 else 0.0, v)  # what was not computed
            if side < 0:  # H_g >= 1 - g
                v = jnp.where(v < least, least, v)
            else:  # no finite loss counts at an infinite epsilon
                v = jnp.where(epsilon == jnp.inf, jnp.minimum(v, gone), v)
            found.append(jnp.where(inside, jnp.minimum(v, 0.0), jnp.nan))
        return tuple(found)

    return worst_of(m, one)


def _lost(m: Mechanism, direction: str | jax.Array) -> jax.Array:
    """The log of the mass at infinite loss, an upper bound."""
    remove, add = (jnp.asarray(m._log_failure(d), jnp.float64) for d in ("remove", "add"))
    if not isinstance(direction, str):
        worse = jnp.where(direction, add, remove)
    else:
        worse = {"remove": remove, "add": add, "both": jnp.maximum(remove, add)}[direction]
    return worse + 2.0**-40


def _between(
    m: Bracketed,
    question: tuple[jax.Array | None, jax.Array | None],
    ask: Callable[[Mechanism, Method | None, Sides], Bounds],
    method: Method | None,
    sides: Sides,
    tests: Callable[[], jax.Array],
) -> Bounds:
    """Above from what dominates m, below from the better of what is dominated and of tests."""
    above, inside = m._above(*question), m._in_domain()
    if m._is_exact():
        values = ask(above, method, sides)
    else:
        values = []
        for side in sides:
            (value,) = ask(m._below(*question) if side < 0 else above, method, (side,))
            plain = m._above_plainly() if side > 0 else None
            if plain is not None:
                value = jnp.minimum(value, ask(plain, Analytic(), (side,))[0])
            values.append(jnp.maximum(value, tests()) if side < 0 else value)
    return tuple(jnp.where(inside, v, jnp.nan) for v in values)


def _log_delta_unamplified(m: Mechanism, epsilon: jax.Array) -> jax.Array:
    """What log delta is at most by `unamplified`."""
    found = _curve.unamplified(m)
    if found is None:
        return jnp.zeros(())
    plain, lost = found
    some = (lost < jnp.inf) & (jnp.abs(epsilon) < jnp.inf)
    left = jnp.where(some, epsilon, 0.0) - jnp.where(some, lost, 0.0)
    left -= 2.0**-50 * jnp.abs(left)
    value = plain._log_hockey_stick(left, "remove", _divergences.SLACK)
    return jnp.where(some, value, 0.0)


def _epsilon_unamplified(m: Mechanism, log_delta: jax.Array) -> jax.Array:
    """What epsilon is at most by that, to some tens of percent (little where delta covers all).

    delta(eps) <= Phi(mu/2 - eps/mu) <= exp(-(eps/mu - mu/2)^2 / 2) / 2: no search is needed where
    only the order of magnitude is.
    """
    found = _curve.unamplified(m)
    if found is None:
        return jnp.asarray(jnp.inf)
    plain, lost = found
    all_of_it = plain._log_hockey_stick(jnp.zeros(()), "remove", _divergences.SLACK)
    mu = plain._mu() * (1.0 + _divergences.SLACK * plain._mu_ulps())
    square = -2.0 * (log_delta + LOG_2)
    deep = square > 0.0
    deviations = jnp.sqrt(jnp.where(deep, square, 1.0))
    cap = mu * (0.5 * mu + jnp.where(deep, deviations, 0.0)) * (1.0 + 16.0 * _divergences.SLACK)
    little = all_of_it <= log_delta * (1.0 + _divergences.SLACK)
    return (jnp.where(little, 0.0, cap) + lost) * (1.0 + 2.0**-50)


def _at_most(values: Bounds, sides: Sides, cap: jax.Array) -> Bounds:
    """Bounds, those above at most the cap."""
    both = zip(values, sides, strict=True)
    return tuple(jnp.where(v > cap, cap, v) if side > 0 else v for v, side in both)


def log_unshared(m: Mechanism, epsilon: jax.Array) -> jax.Array:
    """Log of what delta is at most where P and Q share a mass of c: 1 - c min(1, e^eps).

    With P = c R + (1 - c) P' and Q = c R + (1 - c) Q', P(S) - e^eps Q(S) is at most that. Of
    alternatives the largest; what is only known between others may share nothing.
    """
    return functools.reduce(jnp.maximum, [_unshared(x, epsilon) for x in m._alternatives()])


def _unshared(m: Mechanism, epsilon: jax.Array) -> jax.Array:
    log_c = None if m._bracketed() is not None else _curve.log_shared(m)
    if log_c is None:
        return jnp.zeros(())
    log_c += jnp.minimum(epsilon, 0.0)
    some = (log_c < 0.0) & (log_c > -jnp.inf)
    value = log1mexp(jnp.where(some, log_c, -1.0)) * (1.0 - 2.0**-44)
    return jnp.where(some, value, jnp.where(log_c < 0.0, 0.0, -jnp.inf))


def log_delta(
    m: Mechanism, epsilon: jax.Array, direction: str | jax.Array, method: Method | None = None
) -> jax.Array:
    """Certified upper bound on log delta (the direction may be a flag, see `in_parts`)."""
    return log_deltas(m, epsilon, direction, method, (1,))[0]


def has_aim(m: Mechanism, method: Method) -> bool:
    """Whether `aimed` answers for m by this method."""
    return m._structure() is m and method._aimed(m) is not None


def _epsilon_unshared(m: Mechanism, log_delta: jax.Array) -> jax.Array:
    """What epsilon is at most by `log_unshared`: 0 or inf."""
    rare = log_unshared(m, jnp.zeros(())) <= log_delta * (1.0 + 2.0**-48)
    return jnp.where(rare, 0.0, jnp.inf)


def aimed(
    m: Mechanism,
    epsilon: jax.Array,
    delta: jax.Array,
    direction: str | jax.Array,
    method: Method | None,
) -> tuple[jax.Array, jax.Array]:
    """Upper bounds of one law: log delta at epsilon >= 0, epsilon at delta > 0; see `has_aim`.

    The second is what `epsilons` answers, at the cost of one of both.
    """
    bounds = resolve(m, method)._aimed(m)
    assert bounds is not None  # as `has_aim` says
    found = bounds(epsilon, jnp.log(delta), direction)
    caps = log_unshared(m, epsilon), _epsilon_unshared(m, jnp.log(delta))
    found = [_at_most((v,), (1,), cap)[0] for v, cap in zip(found, caps, strict=True)]
    log_delta, least = (jnp.where(m._in_domain(), value, jnp.nan) for value in found)
    return log_delta, least


def log_delta_estimate(
    m: Mechanism, epsilon: jax.Array, direction: str | jax.Array, fine: bool = False
) -> jax.Array:
    """log delta to a few percent by a saddle point: a start for searches, no bound.

    Fine (where `has_aim` says yes), to as much where rare large losses make up delta, too.
    From the largest finite loss on it is the mass beyond; nan outside the domain.
    """

    def one(part: Mechanism) -> tuple[jax.Array]:
        above = part._above(epsilon, None)
        way = "remove" if above._symmetric() else direction
        value = _numerical.log_delta_estimate(above, epsilon, way, fine)
        value = jnp.minimum(value, log_unshared(above, epsilon))
        beyond = epsilon >= _curve.largest_loss(above, direction)
        lost = -jnp.inf  # (an average may lose less than its bound)
        if not _curve.has_average(above):
            lost = jnp.minimum(_lost(above, way), 0.0)
        value = jnp.where(beyond, lost, jnp.maximum(value, lost))
        return (jnp.where(part._in_domain() & above._in_domain(), value, jnp.nan),)

    return worst_of(m, one)[0]


def delta(
    m: Mechanism, epsilon: jax.Array, direction: str, method: Method | None = None
) -> jax.Array:
    """Certified upper bound on delta."""
    return _divergences.exp_up(log_delta(m, epsilon, direction, method))


def epsilons(
    m: Mechanism, delta: jax.Array, direction: str, method: Method | None, sides: Sides
) -> Bounds:
    """Epsilon >= 0 at delta, one value for each side; the max loss at delta = 0."""
    pure = delta == 0.0
    positive = jnp.where(pure, 0.5, delta)

    def one(part: Mechanism) -> Bounds:
        bracketed = part._bracketed()
        if bracketed is not None:
            log_target = jnp.log(positive)

            def tests() -> jax.Array:
                least = _numerical.larger(
                    direction, lambda d: bracketed._least_epsilon(log_target, d)
                )
                return jnp.where(pure, 0.0, least)

            return _between(
                bracketed,
                (None, log_target),
                lambda other, by, some: epsilons(other, delta, direction, by, some),
                method,
                sides,
                tests,
            )
        part = known(part)
        by = resolve(part, method)
        values = by._epsilon(part, positive, direction, sides)
        if by._reads_laws:
            values = _at_most(values, sides, _epsilon_unamplified(part, jnp.log(positive)))
            values = _at_most(values, sides, _epsilon_unshared(part, jnp.log(positive)))
        largest = _curve.largest_losses(part, direction, sides)
        inside = part._in_domain() & _checks.DELTA.contains(delta)
        found = []
        for v, most, side in zip(values, largest, sides, strict=True):
            v = jnp.where(pure, most, v)
            v = jnp.where(jnp.isnan(v), 0.0 if side < 0 else jnp.inf, v)  # what was not computed
            found.append(jnp.where(inside, v, jnp.nan))
        return tuple(found)

    return worst_of(m, one)


def renyi(
    m: Mechanism, alpha: jax.Array, direction: str, largest: int = _curve.LARGEST_ORDER
) -> jax.Array:
    """The Rényi divergence of order alpha in [1, inf]; orders up to `largest` are exact."""
    return renyi_of_orders(m, Orders(alpha[None]), direction, largest)[0]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Orders:
    """A vector of orders for each mechanism."""

    values: Any

    _core_ndims: ClassVar = {"values": 1}


def renyi_of_orders(m: Mechanism, orders: Orders, direction: str, largest: int) -> jax.Array:
    """The Rényi divergences of several orders, (n,): what they share is computed once."""
    infinite = jnp.isposinf(orders.values)
    alphas = jnp.where(infinite, 2.0, orders.values)

    def one(part: Mechanism) -> tuple[jax.Array]:
        above = part._above_for_orders()

        def of(d: Direction) -> tuple[jax.Array]:
            rate = _curve.rate_function(above, d, largest)
            finite = alphas * jax.vmap(rate)(alphas if d == "remove" else 1.0 - alphas)
            finite = jnp.where(above._log_failure(d) > -jnp.inf, jnp.inf, finite)
            return (jnp.where(infinite, _curve.largest_loss(above, d), finite),)

        value = _curve.worst(above, direction, of)[0]
        inside = part._in_domain() & above._in_domain()
        return (jnp.where(inside & (orders.values >= 1.0), value, jnp.nan),)

    return worst_of(m, one)[0]
