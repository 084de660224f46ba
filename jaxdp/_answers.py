"""Answers for float64 scalars, inside the island: one direction, one method, then the worse.

`side` is +1 for a certified upper bound, -1 for a certified lower bound and 0 for the nearest value
(closed forms only). The true value of direction "both" is the larger of the two directions, so both
its bounds are larger ones of two.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from jaxdp import _checks, _divergences, _law, _numerical, _numerical_range, _roots
from jaxdp._allocation import _poisson
from jaxdp._mechanisms import Alternatives, Base, Bracketed, Composed, Direction, Mechanism, _curve
from jaxdp._methods import (
    Analytic,
    Decomposition,
    Method,
    Numerical,
    PosteriorSampling,
    Renyi,
)
from jaxdp._noise._outcomes import known

Side = Literal[-1, 0, 1]
_ROOT_TOLERANCE = (1e-12, 1e-14)  # relative, absolute
_UNSURE = 2.0**-36  # of a log probability of failure: a sum over enumerated outcomes at most


def structure(m: Mechanism) -> Mechanism:
    """m, or one of the structure of what answers for it: how many laws of which kinds."""
    if isinstance(m, Alternatives):
        return Composed([structure(part) for part in m.mechanisms])
    return m._structure() if isinstance(m, Bracketed) else m


def resolve(m: Mechanism, method: Method | None) -> Method:
    """The method that answers for m: the closed form where it is exact, else the engine.

    Shuffled reports have no one-step law: Rényi divergences, above only. Of alternatives each has
    its own; this is then one that could answer for all.
    """
    if isinstance(m, Alternatives):
        each = [resolve(part, method) for part in m.mechanisms]
        for kind in (Renyi, Numerical):
            some = [chosen for chosen in each if isinstance(chosen, kind)]
            if some:
                return some[0]
        return each[0]
    m = structure(m)
    if method is None:
        if _curve.is_exact(m):
            return Analytic()
        return Numerical() if _numerical.has_law(m) else Renyi()
    if isinstance(method, Analytic) and not _curve.is_exact(m):
        others = "Numerical() or Renyi()" if _numerical.has_law(m) else "Renyi()"
        raise ValueError(f"method: this mechanism has no closed form, use {others}")
    if isinstance(method, Numerical) and not _numerical.has_law(m):
        others = "Analytic() or Renyi()" if _curve.is_exact(m) else "Renyi()"
        raise ValueError(
            f"method: shuffled reports have no one-step law for Numerical(), use {others}"
        )
    if isinstance(method, (Decomposition, PosteriorSampling)):
        _poisson.check(m, method)
    return method


def in_parts(m: Mechanism, direction: str, method: Method) -> bool:
    """Whether "both" may be asked for one direction at a time, by a flag: "add" or not."""
    if isinstance(m, Alternatives):
        return False
    m = structure(m)
    both = direction == "both" and not m._symmetric()
    return both and isinstance(method, Numerical) and _numerical.takes_flag(m)


def worst_of(
    m: Alternatives,
    values: Callable[[Mechanism], tuple[jax.Array, ...]],
    larger: Callable[[jax.Array, jax.Array], jax.Array] = jnp.maximum,
) -> tuple[jax.Array, ...]:
    """The larger of the values over the alternatives, those of one structure by one program.

    Bounds on the largest of several numbers, from above or below, are the largest of theirs.
    """
    groups: dict[Any, list[Mechanism]] = {}
    for part in m.mechanisms:
        leaves, treedef = jax.tree.flatten(part)
        groups.setdefault((treedef, tuple(map(jnp.shape, leaves))), []).append(part)
    found: list[tuple[jax.Array, ...]] = []
    for group in groups.values():
        if len(group) == 1:
            found.append(values(group[0]))
            continue
        # (Outside of any batch every parameter is a float64 here, whatever it came as.)
        parts = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y, jnp.float64) for y in x]), *group)
        each = jax.vmap(values)(parts)
        found += [tuple(x[i] for x in each) for i in range(len(group))]
    return tuple(functools.reduce(larger, side) for side in zip(*found, strict=True))


def _worst(
    m: Mechanism, direction: Any, method: Method, values: Callable[[str], tuple[jax.Array, ...]]
) -> tuple[jax.Array, ...]:
    """The larger of the values over the directions; the engine takes both through one program."""
    if not isinstance(direction, str):
        return values(direction)  # pyright: ignore[reportArgumentType]
    if isinstance(method, Numerical) and direction == "both" and not m._symmetric():
        return values("both")
    return _curve.worst(m, direction, values)


def _log_delta(
    m: Mechanism, epsilon: jax.Array, d: Direction, method: Method, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    if isinstance(method, Numerical):
        room = _numerical_range if _numerical_range.has_range(m) else _numerical
        return room.log_delta(m, epsilon, d, sides, method.grid_size)
    if isinstance(method, Renyi):
        upper = _curve.renyi_log_curve(m, epsilon, d, method.orders)
        return tuple(upper if side >= 0 else jnp.full_like(upper, -jnp.inf) for side in sides)
    if isinstance(method, (Decomposition, PosteriorSampling)):
        upper = _poisson.log_delta(m, epsilon, d, method)
        return tuple(upper if side >= 0 else jnp.full_like(upper, -jnp.inf) for side in sides)
    slack = _divergences.SLACK
    return tuple(_curve.log_curve(m, epsilon, d, side * slack) for side in sides)


def _capped(
    m: Mechanism, epsilon: jax.Array, d: Direction, method: Method, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    """`_log_delta` within what the largest loss implies, which exact curves know by themselves."""
    bounds = _log_delta(m, epsilon, d, method, sides)
    if isinstance(method, (Analytic, Numerical)):
        return bounds
    return _law.cap_log_deltas(bounds, sides, epsilon, _curve.end(m, d))


def log_deltas(
    m: Mechanism,
    epsilon: jax.Array,
    direction: str | jax.Array,
    method: Method | None,
    sides: tuple[Side, ...],
) -> tuple[jax.Array, ...]:
    """log delta at any real epsilon, one value for each side; nan outside the domain."""
    if isinstance(m, Alternatives):
        return worst_of(m, lambda part: log_deltas(part, epsilon, direction, method, sides))
    if isinstance(m, Bracketed):
        return _bracketed_log_deltas(m, epsilon, direction, method, sides)
    m = known(m)
    chosen = resolve(m, method)
    values = _worst(m, direction, chosen, lambda d: _capped(m, epsilon, d, chosen, sides))
    return tuple(jnp.where(m._in_domain(), jnp.minimum(v, 0.0), jnp.nan) for v in values)


def _between(
    m: Bracketed,
    question: tuple[jax.Array | None, jax.Array | None],
    sides: tuple[Side, ...],
    ask: Callable[[Mechanism, Method | None, tuple[Side, ...]], tuple[jax.Array, ...]],
    method: Method | None,
    tested: Callable[[jax.Array], jax.Array],
) -> tuple[jax.Array, ...]:
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
            values.append(tested(value) if side < 0 else value)
    return tuple(jnp.where(inside, v, jnp.nan) for v in values)


def _bracketed_log_deltas(
    m: Bracketed, epsilon: jax.Array, direction: Any, method: Method | None, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    def tested(value: jax.Array) -> jax.Array:
        least = _numerical.larger(direction, lambda d: m._least_log_delta(epsilon, d))
        return jnp.maximum(value, least)

    def ask(other, method, sides):
        return log_deltas(other, epsilon, direction, method, sides)

    return _between(m, (epsilon, None), sides, ask, method, tested)


def _bracketed_epsilons(
    m: Bracketed, delta: jax.Array, direction: str, method: Method | None, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    pure = delta == 0.0
    log_target = jnp.log(jnp.where(pure, 0.5, delta))

    def tested(value: jax.Array) -> jax.Array:
        least = _numerical.larger(direction, lambda d: m._least_epsilon(log_target, d))
        return jnp.where(pure, value, jnp.maximum(value, least))

    def ask(other, method, sides):
        return epsilons(other, delta, direction, method, sides)

    return _between(m, (None, log_target), sides, ask, method, tested)


def log_delta(
    m: Mechanism, epsilon: jax.Array, direction: str | jax.Array, method: Method | None = None
) -> jax.Array:
    """Certified upper bound on log delta (the direction may be a flag, see `in_parts`)."""
    return log_deltas(m, epsilon, direction, method, (1,))[0]


def has_aim(m: Mechanism, method: Method) -> bool:
    """Whether `aimed` answers for m by this method."""
    plain = not isinstance(m, (Alternatives, Bracketed)) and isinstance(method, Numerical)
    return plain and not _numerical_range.has_range(m) and _numerical.has_aim(m)


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
    chosen = resolve(m, method)
    size = chosen.grid_size if isinstance(chosen, Numerical) else None
    both = isinstance(direction, str) and direction == "both"
    way = "remove" if both and m._symmetric() else direction
    found = _numerical.aimed(m, epsilon, jnp.log(delta), way, size)
    log_delta, least = (jnp.where(m._in_domain(), value, jnp.nan) for value in found)
    return log_delta, least


def log_delta_estimate(m: Mechanism, epsilon: jax.Array, direction: str | jax.Array) -> jax.Array:
    """log delta to a few percent by a saddle point: a start for searches, no bound.

    -inf from the largest loss on, where there is nothing to estimate; nan outside the domain.
    """
    if isinstance(m, Alternatives):
        return worst_of(m, lambda part: (log_delta_estimate(part, epsilon, direction),))[0]
    if isinstance(m, Bracketed):
        value = log_delta_estimate(m._above(epsilon, None), epsilon, direction)
        return jnp.where(m._in_domain(), value, jnp.nan)
    value = _numerical.log_delta_estimate(m, epsilon, "remove" if m._symmetric() else direction)
    value = jnp.where(epsilon < max_loss(m, direction), value, -jnp.inf)
    return jnp.where(m._in_domain(), value, jnp.nan)


def delta(
    m: Mechanism, epsilon: jax.Array, direction: str, method: Method | None = None
) -> jax.Array:
    """Certified upper bound on delta."""
    return _divergences.exp_up(log_delta(m, epsilon, direction, method))


def max_loss(m: Mechanism, direction: str | jax.Array) -> jax.Array:
    """The max divergence D_inf, which is the pure-DP epsilon."""
    if not isinstance(direction, str):
        remove, add = (_curve.largest_loss(m, d) for d in ("remove", "add"))
        return jnp.where(direction, add, remove)
    return _curve.worst(m, direction, lambda d: (_curve.largest_loss(m, d),))[0]


def _exact_epsilon(
    m: Mechanism, log_target: jax.Array, d: Direction, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    """The root of the closed-form curve: above it for side 1, below it for side -1.

    Where delta is the failure but for its rounding, epsilon at a little more of it is below.
    """
    log_failure = m._log_failure(d)
    feasible = log_failure < log_target
    near = ~feasible & (log_failure <= log_target + _UNSURE)

    def one(side: Side) -> jax.Array:
        sought = feasible | near if side < 0 else feasible
        target = jnp.where(feasible, log_target, log_failure + 2.0 * _UNSURE)
        target = jnp.where(sought, target, 0.0)
        start = jnp.where(sought, 1.0, jnp.nan)

        def excess(e):
            return _curve.log_curve(m, e, d, side * _divergences.SLACK) - target

        relative, absolute = _ROOT_TOLERANCE
        root = _roots.safe_root(excess, start, relative, absolute)
        if side < 0:  # a point less by the tolerance is known to miss the target
            found = jnp.isfinite(root)
            root = jnp.where(found, root, 0.0)
            root = root - 2.0 * (relative * jnp.abs(root) + absolute)
        return jnp.where(sought, jnp.maximum(root, 0.0), jnp.inf)

    return tuple(one(side) for side in sides)


def _epsilon(
    m: Mechanism, log_target: jax.Array, d: Direction, method: Method, sides: tuple[Side, ...]
) -> tuple[jax.Array, ...]:
    if isinstance(method, Numerical):
        room = _numerical_range if _numerical_range.has_range(m) else _numerical
        return room.epsilon(m, log_target, d, sides, method.grid_size)
    if isinstance(method, Renyi):
        upper = _curve.renyi_epsilon(m, log_target, d, method.orders)
        return tuple(upper if side >= 0 else jnp.zeros_like(upper) for side in sides)
    if isinstance(method, (Decomposition, PosteriorSampling)):
        upper = _poisson.epsilon(m, log_target, d, method)
        return tuple(upper if side >= 0 else jnp.zeros_like(upper) for side in sides)
    return _exact_epsilon(m, log_target, d, sides)


def epsilons(
    m: Mechanism,
    delta: jax.Array,
    direction: str,
    method: Method | None,
    sides: tuple[Side, ...],
) -> tuple[jax.Array, ...]:
    """Epsilon >= 0 at delta, one value for each side; the max loss at delta = 0."""
    if isinstance(m, Alternatives):
        return worst_of(m, lambda part: epsilons(part, delta, direction, method, sides))
    if isinstance(m, Bracketed):
        return _bracketed_epsilons(m, delta, direction, method, sides)
    m = known(m)
    chosen = resolve(m, method)
    pure = delta == 0.0
    log_target = jnp.log(jnp.where(pure, 0.5, delta))

    def one(d: str) -> tuple[jax.Array, ...]:
        found = _epsilon(m, log_target, d, chosen, sides)
        if isinstance(chosen, Numerical):  # which takes both directions at once
            return found
        most = _curve.largest_loss(m, d)
        if isinstance(chosen, Analytic) and isinstance(m, Base):
            most = jnp.where(m._failure(d) <= delta, _curve.end(m, d)[0], most)
        return tuple(jnp.maximum(jnp.minimum(e, most), 0.0) for e in found)

    values = _worst(m, direction, chosen, one)
    least = max_loss(m, direction)
    inside = m._in_domain() & _checks.DELTA.contains(delta)
    # a largest loss is rounded up, by at most 2^-44 (1 + itself)
    finite = jnp.where(jnp.isfinite(least), least, 0.0)
    below = jnp.maximum(finite - 2.0**-43 * (1.0 + finite), 0.0)
    below = jnp.where(jnp.isinf(least), least, below)
    return tuple(
        jnp.where(inside, jnp.where(pure, least if side >= 0 else below, v), jnp.nan)
        for v, side in zip(values, sides, strict=True)
    )


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
    if isinstance(m, Alternatives):
        return worst_of(m, lambda part: (renyi_of_orders(part, orders, direction, largest),))[0]
    if isinstance(m, Bracketed):
        value = renyi_of_orders(m._above(None, None), orders, direction, largest)
        return jnp.where(m._in_domain(), value, jnp.nan)
    infinite = jnp.isposinf(orders.values)
    alphas = jnp.where(infinite, 2.0, orders.values)

    def one(d: Direction) -> tuple[jax.Array]:
        rate = _curve.rate_function(m, d, largest)
        finite = alphas * jax.vmap(rate)(alphas if d == "remove" else 1.0 - alphas)
        finite = jnp.where(m._log_failure(d) > -jnp.inf, jnp.inf, finite)
        return (jnp.where(infinite, _curve.largest_loss(m, d), finite),)

    value = _curve.worst(m, direction, one)[0]
    return jnp.where(m._in_domain() & (orders.values >= 1.0), value, jnp.nan)
