r"""A privacy filter: the run may choose its noise as it goes, the budget holds all the same.

Theorem (Feldman & Zrnic 2021, "Individual Privacy Accounting via a Rényi Filter", arXiv
2008.11193: adaptive composition of Rényi DP and its filter). Let step i, given the outputs before
it, be (alpha, rho_i)-RDP, where rho_i itself may depend on those outputs. If sum_i rho_i <= B
always, the whole run is (alpha, B)-RDP. So it is enough to stop before the sum would exceed B.

Proof. Let X_i be the likelihood ratio of output i given those before. Under Q,
M_n = prod_{i<=n} X_i^alpha e^{-(alpha-1) rho_i} is a supermartingale, since rho_n is known before
output n and E_Q[X_n^alpha | past] <= e^{(alpha-1) rho_n}. Hence E_Q[prod X_i^alpha] <=
e^{(alpha-1) B} E_Q[M] <= e^{(alpha-1) B}. The same holds for the swapped pair.

With K > 1 orders the run may continue while *some* order has room, at the price of delta/K for
each: the run agrees with the one that stops by order k alone on every trajectory that ends within
k's budget, so for any event E, split by the (first) such order,
P(E) <= sum_k P_k(E_k) <= sum_k (e^epsilon Q_k(E_k) + delta/K) = e^epsilon Q(E) + delta.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _structure, _x64
from jaxdp.training import _moments, _words
from jaxdp.training._accountant import (
    RenyiAccountant,
    _State,
    check_settings,
    init,
    inside,
    totals,
)

_LARGER = np.round(np.geomspace(264.0, 65536.0, 160))  # for small targets
_CANDIDATES = (*map(float, range(2, 257)), *_LARGER.tolist())
_LARGEST_BUDGET = 1e30  # of epsilon: tables are kept in float32 words


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class PrivacyFilter(_structure.Compared):
    """What a run has spent, and what it may spend, at each order.

    Attributes:
      accountant: the steps so far.
      epsilon: the target, static.
      delta: the target, static.
    """

    accountant: RenyiAccountant
    epsilon: float = dataclasses.field(metadata={"static": True})
    delta: float = dataclasses.field(metadata={"static": True})


def _budgets(epsilon: float, delta: float, orders: Sequence[float]) -> np.ndarray:
    """(alpha - 1) B at each order: the Rényi moment that implies (epsilon, delta/K)-DP.

    Canonne, Kamath & Steinke 2020, Proposition 12, solved for the divergence; less 1e-13 of its
    parts for rounding.
    """
    alpha = np.asarray(orders)
    parts = [
        (alpha - 1.0) * min(epsilon, _LARGEST_BUDGET),
        -(alpha - 1.0) * np.log1p(-1.0 / alpha),
        np.log(alpha) + math.log(delta) - math.log(len(alpha)),
    ]
    return sum(parts) - 1e-13 * sum(np.abs(part) for part in parts)


def _moments_of(sigma: jax.Array, q: jax.Array, orders: tuple[float, ...]) -> tuple[Any, ...]:
    return tuple(_moments.moments(sigma, q, orders))


def _best_order(
    epsilon: float, delta: float, sigma: float | None, sampling_probability: float | None
) -> float:
    """At which most steps fit: of a sampled Gaussian, or with R_alpha proportional to alpha."""
    q = 1.0
    if sampling_probability is not None:
        q = _checks.number("sampling_probability", sampling_probability, _checks.RATE)
    candidates = _CANDIDATES if q == 1.0 else _CANDIDATES[: -_LARGER.size]
    alpha = np.asarray(candidates)
    step = alpha * (alpha - 1.0)
    if sigma is not None:
        sigma = _checks.number("sigma", sigma, _checks.POSITIVE)
    if sigma is not None and q < 1.0:
        each = ("nearest",) * len(candidates)
        found = _x64.evaluate(
            _moments_of, sigma, q, rounding=each, differentiable=False, orders=candidates
        )
        step = np.asarray(found, np.float64)
    room = np.asarray([_budgets(epsilon, delta, (a,))[0] for a in candidates])
    room = np.where(room > 0.0, room / np.maximum(step, 1e-300), room)
    return candidates[int(np.argmax(room))]


def init_filter(
    *,
    epsilon: float,
    delta: float,
    orders: Sequence[float] | None = None,
    sigma: float | None = None,
    sampling_probability: float | None = None,
) -> PrivacyFilter:
    """A filter for runs of Poisson-subsampled Gaussian steps with settings chosen adaptively.

    Ask `fits` before a step, tell `update` after it. The whole run is then (epsilon, delta)-DP, in
    both directions, even if every sigma and sampling probability depends on all that
    was released before (theorem and proof in the module's docstring).

    Args:
      epsilon: the target, > 0, a Python number.
      delta: the target, in (0, 1), a Python number.
      orders: Rényi orders > 1 to budget by. With several, delta is divided among them. The default
        is one: that at which most steps of the `sigma` and `sampling_probability` given here fit,
        or else, of up to 65536, most with R_alpha proportional to alpha. Unsampled Gaussians are
        such steps; sampled ones are not, and may fit 30 times as often by an order of their own.
      sigma: noise multiplier of a typical step, > 0, a Python number. The guarantee is for all.
      sampling_probability: of a typical step, in (0, 1], a Python number; 1 by default.

    Returns:
      A PyTree of fixed shape, to carry through `lax.while_loop` or `lax.scan`.

    Raises:
      ValueError: for numbers outside their domains, orders as for `init`, a target that no order
        can guarantee, a sampling probability without sigma, or a typical step beside orders.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> budget = training.init_filter(epsilon=2.0, delta=1e-5)
      >>> def step(carry):
      ...     budget, sigma, steps = carry
      ...     budget = training.update(budget, sigma=sigma, sampling_probability=0.1)
      ...     return budget, 0.99 * sigma, steps + 1  # spend more and more
      >>> def affordable(carry):
      ...     return training.fits(carry[0], sigma=carry[1], sampling_probability=0.1)
      >>> int(jax.lax.while_loop(affordable, step, (budget, 4.0, 0))[2])
      88
    """
    epsilon = _checks.number("epsilon", epsilon, _checks.POSITIVE)
    delta = _checks.number("delta", delta, _checks.OPEN_DELTA)
    if sampling_probability is not None and sigma is None:
        raise ValueError("sampling_probability is that of a typical step: give its sigma, too")
    if orders is not None and sigma is not None:
        raise ValueError("sigma is for a choice of orders: give it or orders, not both")
    if orders is None:
        orders = (_best_order(epsilon, delta, sigma, sampling_probability),)
    accountant = init(orders)
    if np.all(_budgets(epsilon, delta, accountant.orders) <= 0.0):
        raise ValueError(
            f"orders must allow some spending, got {_checks.shown(accountant.orders)}: take higher"
        )
    return PrivacyFilter(accountant, epsilon, delta)


def fits(
    state: PrivacyFilter,
    *,
    sigma: ArrayLike,
    sampling_probability: ArrayLike | None = None,
    count: ArrayLike = 1,
) -> jax.Array:
    """Whether the next step (or `count` equal ones) keeps the run within its budget.

    A boolean, for the condition of `lax.while_loop` or `lax.cond`; False for traced settings and
    counts outside their domains, and after an update by such.

    Args:
      state: from `init_filter` and `update`.
      sigma: noise multiplier of the next step.
      sampling_probability: with which each record would join it; 1 by default.
      count: how many such steps, an integer >= 0.

    Raises:
      ValueError: for known settings or counts outside their domains. TypeError: for no filter.
    """
    if not isinstance(state, PrivacyFilter):
        raise TypeError(f"state must be from init_filter, not {type(state).__name__}")
    sigma, rate = check_settings(sigma, sampling_probability)
    _checks.check("count", count, _checks.COUNT)
    room = _x64.evaluate(
        _fits,
        state.accountant._state(),
        sigma,
        rate,
        count,
        differentiable=False,
        orders=state.accountant.orders,
        target=(state.epsilon, state.delta),
        single=not jax.config.jax_enable_x64,
    )
    return room > 0.0


def _fits(state: _State, sigma, q, count, orders, target, single):
    valid = inside(sigma, q, count)
    # the settings as `update` will store them
    sigma = _words.join(_words.split(sigma, "down", single))
    q = _words.join(_words.split(q, "up", single))
    after = _moments.add(totals(state, orders), count, _moments.moments(sigma, q, orders))
    # a store rounds up by 2^-48, twice
    within = after * (1.0 + 2.0**-46) <= _words.constant(_budgets(target[0], target[1], orders))
    return jnp.where(jnp.any(within) & valid, 1.0, 0.0)
