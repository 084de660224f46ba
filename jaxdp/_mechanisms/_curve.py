"""From a mechanism to its hockey-stick curve: exact for one step, else by Rényi divergences."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxdp import _conversions
from jaxdp._mechanisms._base import Base, Direction, Mechanism, Term
from jaxdp._mechanisms._gaussian import GaussianDP, GaussianFamily

Orders = tuple[float, ...] | None


def canonical_terms(m: Mechanism) -> list[Term]:
    """The factors of a mechanism, all Gaussian ones merged into one: mu^2 = sum_i n_i mu_i^2."""
    terms = m._terms()
    gaussian = [t for t in terms if isinstance(t.mechanism, GaussianFamily)]
    if len(terms) == 1 and terms[0].count is None:
        return terms
    if not gaussian:
        return terms
    mu = jnp.sqrt(sum(t.multiplicity * t.mechanism._mu() ** 2 for t in gaussian))
    others = [t for t in terms if not isinstance(t.mechanism, GaussianFamily)]
    return [Term(GaussianDP(mu), None), *others]


def single(terms: list[Term]) -> Base | None:
    """The one step that a list of terms is, if it is one."""
    return terms[0].mechanism if len(terms) == 1 and terms[0].count is None else None


def is_exact(m: Mechanism) -> bool:
    """Whether `log_curve` is the exact curve and not a bound."""
    step = single(canonical_terms(m))
    inner = getattr(step, "mechanism", None)
    return step is not None and (inner is None or is_exact(inner))


def log_moment(m: Mechanism, alpha: jax.Array, direction: Direction) -> jax.Array:
    """(alpha - 1) times the Rényi divergence of the part with finite loss."""
    s = alpha if direction == "remove" else 1.0 - alpha
    rate = sum(t.multiplicity * t.mechanism._rate(s) for t in canonical_terms(m))
    return alpha * (alpha - 1.0) * rate


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
    value = _conversions.best_log_delta(
        lambda alpha: log_moment(m, alpha, direction), m._log_failure(direction), epsilon, orders
    )
    return jnp.minimum(value, 0.0)


def renyi_epsilon(
    m: Mechanism, log_delta: jax.Array, direction: Direction, orders: Orders = None
) -> jax.Array:
    """Upper bound on epsilon >= 0 at delta from the best of the given Rényi orders, or of all."""
    return _conversions.best_epsilon(
        lambda alpha: log_moment(m, alpha, direction), m._log_failure(direction), log_delta, orders
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
