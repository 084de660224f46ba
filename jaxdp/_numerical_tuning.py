"""The best of several runs, alone: both bounds on its curve as they are, and not by a pair."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxdp._mechanisms import Mechanism, _curve
from jaxdp._numerical_terms import Tables, law_of
from jaxdp._tuning import RepeatAndSelect, _order
from jaxdp._tuning._runs import root

_FIRST, _LAST = 1e-14, 690.0  # of epsilons that are looked for
_TOLERANCE = 1e-12  # of a root


def the_one(m: Mechanism) -> RepeatAndSelect | None:
    """The selection that m is, of runs with laws, if it is one."""
    step: Any = _curve.single(_curve.canonical_terms(m))
    return step if step is not None and step._by_curve and step._held() else None


def log_delta(step: RepeatAndSelect, epsilon: jax.Array, tables: Tables) -> jax.Array:
    """A bound on log delta at epsilon >= 0, of the side and the direction of the tables."""
    if tables.side > 0:
        (curve,) = step._curves_above(tables.log_floor, law_of(tables), False)
        return curve(epsilon)
    below = step._pair_below(tables.log_floor, law_of(tables), epsilon=epsilon)
    return _order.log_curve(below, epsilon)


def epsilon(step: RepeatAndSelect, log_target: jax.Array, tables: Tables) -> jax.Array:
    """A bound on epsilon >= 0, likewise."""
    if tables.side > 0:
        (curve,) = step._curves_above(tables.log_floor, law_of(tables), False)
        return _where_it_falls_to(log_target, curve)
    below = step._pair_below(tables.log_floor, law_of(tables), log_delta=log_target)
    found = _where_it_falls_to(log_target, lambda x: _order.log_curve(below, x))
    # (Beyond the last epsilon that is looked at, as much is true of that one.)
    found = jnp.where(jnp.isfinite(found) | (below.log_tau > log_target), found, _LAST)
    known = _order.log_curve(below, jnp.asarray(_LAST)) <= 0.0  # no number, if nothing is known
    return jnp.where(known, found * (1.0 - _TOLERANCE), 0.0)


def _where_it_falls_to(log_target: jax.Array, curve: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """The least epsilon >= 0 with that delta at most; inf if there is none up to `_LAST`."""
    found = root(lambda x: log_target - curve(x), _FIRST, _LAST)
    found = jnp.where(curve(jnp.asarray(_LAST)) <= log_target, found, jnp.inf)
    return jnp.where(curve(jnp.zeros(())) <= log_target, 0.0, found)
