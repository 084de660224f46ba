"""Both readings of one law above, for searches: delta at epsilon, and epsilon at delta."""

from typing import Any

import jax
import jax.numpy as jnp

from jaxdp._law._compose import compose
from jaxdp._law._plan import plan
from jaxdp._law._query import _epsilon, _log_delta, cap_epsilons, cap_log_deltas, end_of
from jaxdp._law._terms import AnyDirection, Terms, over_directions


def aimed_bounds(
    terms: Terms,
    epsilon: jax.Array,
    log_delta: jax.Array,
    *,
    direction: AnyDirection,
    size: int,
    ends: tuple[Any, Any],
) -> tuple[jax.Array, jax.Array]:
    """Certified bounds above: (log delta at epsilon >= 0, epsilon at log_delta).

    Both are read from the law that `epsilon_bounds` plans for log_delta: where the second is met,
    that query will say so too. The law that `log_delta_bounds` plans for epsilon is another one.
    """

    def answer(terms: Terms, flip: jax.Array) -> tuple[jax.Array, jax.Array]:
        chosen = plan(terms, None, log_delta, size)
        law, end = compose(terms, chosen, size, 1), end_of(ends, flip)
        delta = cap_log_deltas((_log_delta(law, epsilon, 1),), (1,), epsilon, end)[0]
        there = cap_epsilons((_epsilon(law, log_delta, chosen.epsilon, 1),), (1,), log_delta, end)
        return delta, there[0]

    found = over_directions(terms, direction, answer)
    if isinstance(direction, str) and direction == "both":
        return jnp.max(found[0], axis=0), jnp.max(found[1], axis=0)
    return found
