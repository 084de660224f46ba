"""From a mechanism to its hockey-stick curve: exact for one step, else by Rényi divergences."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _orders
from jaxdp import _special as special
from jaxdp._mechanisms._base import Average, Base, Direction, Mechanism, Term
from jaxdp._mechanisms._gaussian import GaussianFamily, composed

Orders = tuple[float, ...] | None
End = tuple[jax.Array, jax.Array]
LARGEST_ORDER = 1024  # averages have exact moments up to it


def canonical_terms(m: Mechanism) -> list[Term]:
    """The factors of a mechanism, all Gaussian ones merged into one: mu^2 = sum_i n_i mu_i^2."""
    terms = m._terms()
    if len(terms) == 1 and terms[0].count is None:
        return terms
    merged, others = _merged(terms)
    return terms if merged is None else [Term(merged, None), *others]


def _merged(terms: list[Term]) -> tuple[GaussianFamily | None, list[Term]]:
    """What all Gaussian factors are together, if there are any, and the others."""
    gaussian = [t for t in terms if isinstance(t.mechanism, GaussianFamily)]
    others = [t for t in terms if not isinstance(t.mechanism, GaussianFamily)]
    return composed([(t.mechanism, t.multiplicity) for t in gaussian]) if gaussian else None, others


def single(terms: list[Term]) -> Base | None:
    """The one step that a list of terms is, if it is one."""
    one = len(terms) == 1 and terms[0].count is None
    return terms[0].mechanism if one and isinstance(terms[0].mechanism, Base) else None


def is_exact(m: Mechanism) -> bool:
    """Whether `log_curve` is the exact curve and not a bound."""
    step = single(canonical_terms(m))
    inner = getattr(step, "mechanism", None)
    parts = getattr(step, "mechanisms", ()) if inner is None else (inner,)
    tabulated = step is not None and step._by_curve and bool(step._held())
    return step is not None and not tabulated and all(is_exact(part) for part in parts)


def any_inside(m: Mechanism, asked: Callable[[Any], bool]) -> bool:
    """Whether that is so of the mechanism, or of one that it holds, at any depth."""

    def is_part(x: Any) -> bool:
        return isinstance(x, Mechanism) and x is not m

    parts = [x for x in jax.tree.leaves(m, is_leaf=is_part) if is_part(x)]
    return asked(m) or any(any_inside(part, asked) for part in parts)


def has_average(m: Mechanism) -> bool:
    """Whether a factor of m is an average (random allocation)."""
    return any(isinstance(t.mechanism, Average) for t in m._terms())


def unamplified(m: Mechanism) -> tuple[GaussianFamily, jax.Array] | None:
    """What dominates m, of which Gaussian steps are sampled: all of them, run on every record.

    And the most that the other steps lose, whose losses add; None if nothing Gaussian is sampled.
    Convex functions of an average, or of 1 - q + q X, are at most the average of theirs.
    """
    terms = m._terms()
    if all(t.mechanism._sampled_terms() is None for t in terms):
        return None
    plain, others = _merged([t for term in terms for t in _sampled_terms(term)])
    if plain is None:
        return None
    lost = jnp.zeros((), jnp.float64)
    for t in others:
        most = t.multiplicity * largest_loss(t.mechanism, "both")
        lost += jnp.where(t.multiplicity > 0.0, most, 0.0)
    return plain, lost * (1.0 + 2.0**-44)


def _sampled_terms(term: Term) -> list[Term]:
    """The steps that a factor samples, at any depth; of one that samples nothing, itself."""
    inner = term.mechanism._sampled_terms()
    if inner is None:
        return [term]
    return [x for t in inner for x in _sampled_terms(t.times(term.multiplicity))]


def log_shared(m: Mechanism) -> jax.Array | None:
    """Log of a c, rounded down, with P = c R + (1 - c) P' and Q = c R + (1 - c) Q'.

    The product of what the steps' P and Q share: 1 - TV, or the chance that no sample has the
    record. The laws of an average share as much as those of one step, by convexity. None where that
    is not known, or takes many operations.
    """
    total = jnp.zeros((), jnp.float64)
    for term in canonical_terms(m):
        one = _log_shared_by(term.mechanism)
        if one is None:
            return None
        times = jnp.asarray(term.multiplicity, jnp.float64)
        total += jnp.where(times > 0.0, jnp.where(times > 0.0, times, 1.0) * one, 0.0)
    return total * (1.0 + 2.0**-46)  # (more than logarithm, product and sum round)


def _log_shared_by(step: Any) -> jax.Array | None:
    if isinstance(step, Average):
        return log_shared(step.mechanism)
    if not isinstance(step, Base):
        return None
    if not step._is_short:
        return step._log_shared()
    apart = step._log_hockey_stick(jnp.zeros(()), "remove", _divergences.SLACK)
    apart = apart + 2.0**-44  # (next to 1 - TV = 0 the difference has no digits)
    some = (apart > -jnp.inf) & (apart < -(2.0**-20))
    shared = special.log1mexp(jnp.where(some, apart, -1.0))
    return jnp.where(some, shared, jnp.where(apart == -jnp.inf, 0.0, -jnp.inf))


def ends(m: Mechanism) -> tuple[End, End]:
    """The largest finite loss, rounded up, and the log of the mass at infinity: remove, add."""
    return _ends(m)[0]


def end(m: Mechanism, direction: Direction) -> End:
    """`ends` in one direction."""
    return ends(m)[direction == "add"]


def _ends(m: Mechanism) -> tuple[tuple[End, End], jax.Array]:
    """The ends, and what was added to a largest loss, relatively."""
    low, high = m._loss_range()
    added = jnp.asarray(_divergences.SLACK * m._range_ulps(), jnp.float64)

    def one(largest: jax.Array, direction: Direction) -> End:
        log_tau = jnp.asarray(m._log_failure(direction), jnp.float64)
        return jnp.asarray(largest, jnp.float64) * (1.0 + added), log_tau

    return (one(high, "remove"), one(-low, "add")), added


def largest_losses(
    m: Mechanism, direction: str | jax.Array, sides: tuple[int, ...]
) -> tuple[jax.Array, ...]:
    """The max divergence D_inf, rounded up (side 1) or down (-1).

    Of both directions the larger; of a flag ("add" or not), of that one.
    """
    each, added = _ends(m)
    attained = not any_inside(m, lambda part: not part._attains_range())

    def one(end: End, side: int) -> jax.Array:
        finite, log_tau = end
        if side < 0 and not attained:
            finite = jnp.zeros_like(finite)
        elif side < 0:  # less what was added, twice, and what one step rounds outwards, 2^-44
            known = jnp.isfinite(finite)
            held = jnp.where(known, finite, 0.0)
            lost = 2.0 * added * held + 2.0**-43 * (1.0 + held)
            finite = jnp.where(known, jnp.maximum(held - lost, 0.0), finite)
        return jnp.where(log_tau > -jnp.inf, jnp.inf, finite)

    def of(way: Direction) -> tuple[jax.Array, ...]:
        return tuple(one(each[way == "add"], side) for side in sides)

    if isinstance(direction, str):
        return worst(m, direction, of)
    pairs = zip(of("remove"), of("add"), strict=True)
    return tuple(jnp.where(direction, add, remove) for remove, add in pairs)


def largest_loss(m: Mechanism, direction: str | jax.Array) -> jax.Array:
    """The max divergence D_inf, which is the pure-DP epsilon, rounded up: see `largest_losses`."""
    return largest_losses(m, direction, (1,))[0]


def rate_function(
    m: Mechanism, direction: Direction, largest: int = LARGEST_ORDER, search: bool = False
) -> Callable[[jax.Array], jax.Array]:
    """The cumulant rate of m, for the s of one direction."""
    parts = []
    for t in canonical_terms(m):
        step = t.mechanism
        average = isinstance(step, Average)
        rate = step._prepare_rate(direction, largest, search) if average else step._rate_function()
        parts.append((t.multiplicity, _at_most_the_largest(step, direction, rate)))
    # a split that leaves no block over has count 0, whatever its rate
    return lambda s: sum(jnp.where(n > 0.0, n * rate(s), 0.0) for n, rate in parts)


def _at_most_the_largest(
    step: Mechanism, direction: Direction, rate: Callable[[jax.Array], jax.Array]
) -> Callable[[jax.Array], jax.Array]:
    """The rate, with the Rényi divergence (of the part of finite loss) at most the largest loss.

    E_Q[X^s] = E_P[X^{s-1}] <= e^{(s-1) high} for s >= 1, E_Q[X^s] <= e^{s low} for s <= 0. What
    could not be computed, nan, becomes that bound.
    """
    largest, _ = end(step, direction)
    known = jnp.isfinite(largest)
    largest = jnp.where(known, largest, 0.0)

    def bounded(s: jax.Array) -> jax.Array:
        value = rate(s)
        cap = jnp.where(known, largest / (s if direction == "remove" else 1.0 - s), jnp.inf)
        return jnp.where(value <= cap, value, cap)

    return bounded


def log_moment_function(
    m: Mechanism, direction: Direction, orders: Orders = None
) -> Callable[[jax.Array], jax.Array]:
    """alpha to (alpha - 1) times the Rényi divergence of the part with finite loss."""
    rate = rate_function(m, direction, largest_order(orders), search=orders is None)

    def moment(alpha: jax.Array) -> jax.Array:
        return alpha * (alpha - 1.0) * rate(alpha if direction == "remove" else 1.0 - alpha)

    return moment


def largest_order(orders: Any) -> int:
    """A bound on the orders asked for: a power of two from 64 to LARGEST_ORDER."""
    if orders is None or isinstance(orders, jax.core.Tracer):
        return LARGEST_ORDER
    finite = np.asarray(orders, np.float64)
    top = np.max(np.where(np.isfinite(finite), finite, 0.0), initial=0.0)
    return next((n for n in (64, 128, 256, 512) if n >= top), LARGEST_ORDER)


def log_curve(
    m: Mechanism, epsilon: jax.Array, direction: Direction, slack: float = 0.0
) -> jax.Array:
    """log H at any real epsilon: exact for one step, else an upper bound."""
    step = single(canonical_terms(m))
    if step is not None:
        return step._log_hockey_stick(epsilon, direction, slack)
    return renyi_log_curve(m, epsilon, direction)


def renyi_log_curve(
    m: Mechanism, epsilon: jax.Array, direction: Direction, orders: Orders = None
) -> jax.Array:
    """Upper bound on log H from the best of the given Rényi orders, or of all."""
    value = _orders.best_log_delta(
        log_moment_function(m, direction, orders),
        m._log_failure(direction),
        epsilon,
        orders,
    )
    return jnp.minimum(value, 0.0)


def renyi_epsilon(
    m: Mechanism, log_delta: jax.Array, direction: Direction, orders: Orders = None
) -> jax.Array:
    """Upper bound on epsilon >= 0 at delta from the best of the given Rényi orders, or of all."""
    return _orders.best_epsilon(
        log_moment_function(m, direction, orders),
        m._log_failure(direction),
        log_delta,
        orders,
    )


def worst(
    m: Mechanism, direction: str, values: Callable[[Direction], tuple[jax.Array, ...]]
) -> tuple[jax.Array, ...]:
    """The larger of the values over the directions asked for; one direction if they agree."""
    if direction != "both":
        return values(direction)  # pyright: ignore[reportArgumentType]
    if m._symmetric():
        return values("remove")
    pairs = zip(values("remove"), values("add"), strict=True)
    return tuple(jnp.maximum(a, b) for a, b in pairs)
