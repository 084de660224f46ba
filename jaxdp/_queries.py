"""The questions one asks of a mechanism, all read off the law of its likelihood ratio.

Every query broadcasts the mechanism's parameters against its other argument, works under jit,
vmap, grad and scan, computes in float64 and returns float64 to x64 callers, float32 (rounded to
the safe side) to others. Values that are known and wrong raise ValueError; traced ones give nan.
"""

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _answers, _checks, _chunks, _divergences, _tradeoff, _x64
from jaxdp._mechanisms import Mechanism, _curve, require_mechanism
from jaxdp._mechanisms._schedule import with_schedules
from jaxdp._methods import Method, check_method
from jaxdp._numerical_outcomes import with_outcomes

Directions = Literal["remove", "add", "both"]
_DIRECTIONS = ("remove", "add", "both")


def _query(
    function: Any,
    m: Mechanism,
    argument: tuple[str, Any, _checks.Domain],
    direction: str,
    method: Method | None,
    rounding: Any,
    chunk: int | None,
) -> Any:
    require_mechanism("m", m, whole=True)
    _checks.check_choice("direction", direction, _DIRECTIONS)
    check_method(method)
    _checks.check(*argument)
    m = with_schedules(with_outcomes(m, method))
    return _x64.evaluate(
        function,
        m,
        argument[1],
        rounding=rounding,
        chunk=_chunks.chunk_of(m, method, argument[1], chunk),
        quick=True,
        direction=direction,
        method=method,
    )


def hockey_stick(
    m: Mechanism,
    epsilon: ArrayLike,
    *,
    direction: Directions = "both",
    method: Method | None = None,
    chunk: int | None = None,
) -> jax.Array:
    r"""The hockey-stick divergence at e^epsilon.

    remove: :math:`E_Q[(X - e^\varepsilon)_+]` plus the mass at X = infinity; add: the same with P
    and Q swapped; both: the larger. Exact (to a relative 1e-12) for a single mechanism, for
    Gaussian compositions and for one Poisson-subsampled step; the upper bound otherwise.

    Args:
      m: a mechanism; its parameters broadcast against epsilon.
      epsilon: any real number, negative included. Any shape.
      direction: "remove" (with the record || without), "add" (without || with) or "both".
      method: Analytic(), Renyi() or Numerical(); the closed form, else the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Returns:
      Values in [0, 1], of the broadcast shape.

    Raises:
      ValueError: for nan epsilon, an unknown direction or a method that cannot answer.
      TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.hockey_stick(jaxdp.Gaussian(1.0), 0.0)), 6)
      0.382925
    """
    argument = ("epsilon", epsilon, _checks.NOT_NAN)
    return _query(_hockey_stick, m, argument, direction, method, "nearest", chunk)


def _hockey_stick(m, epsilon, direction, method):
    side = 0 if _answers.resolve(m, method)._exact else 1
    return jnp.exp(_answers.log_deltas(m, epsilon, direction, method, (side,))[0])


def log_delta(
    m: Mechanism,
    epsilon: ArrayLike,
    *,
    direction: Directions = "both",
    method: Method | None = None,
    chunk: int | None = None,
) -> jax.Array:
    """Upper bound on log delta(epsilon), finite far below the smallest float32 or float64.

    The certified counterpart of `hockey_stick`: rounding errors included. -inf where delta = 0.

    Args:
      m: a mechanism; its parameters broadcast against epsilon.
      epsilon: any real number. Any shape.
      direction: "remove", "add" or "both".
      method: Analytic(), Renyi() or Numerical(); the closed form, else the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Raises:
      ValueError: for nan epsilon, an unknown direction or a method that cannot answer.
      TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.log_delta(jaxdp.Gaussian(1.0), 50.0)), 3)
      -1233.869
    """
    argument = ("epsilon", epsilon, _checks.NOT_NAN)
    return _query(_answers.log_delta, m, argument, direction, method, "up", chunk)


def delta(
    m: Mechanism,
    epsilon: ArrayLike,
    *,
    direction: Directions = "both",
    method: Method | None = None,
    chunk: int | None = None,
) -> jax.Array:
    """Upper bound on delta at epsilon, within 1e-12 (relative) of the truth where that is exact.

    Args:
      m: a mechanism; its parameters broadcast against epsilon.
      epsilon: any real number. Any shape.
      direction: "remove", "add" or "both".
      method: Analytic(), Renyi() or Numerical(); the closed form, else the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Raises:
      ValueError: for nan epsilon, an unknown direction or a method that cannot answer.
      TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.delta(jaxdp.Laplace(1.0), 0.5)), 6)
      0.221199
    """
    argument = ("epsilon", epsilon, _checks.NOT_NAN)
    return _query(_answers.delta, m, argument, direction, method, "up", chunk)


def delta_bounds(
    m: Mechanism,
    epsilon: ArrayLike,
    *,
    direction: Directions = "both",
    method: Method | None = None,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Certified (lower, upper) bounds on delta at epsilon; the truth lies between.

    Args:
      m: a mechanism; its parameters broadcast against epsilon.
      epsilon: any real number. Any shape.
      direction: "remove", "add" or "both".
      method: Analytic(), Renyi() (whose lower bound is 0) or Numerical(); the closed form, else
        the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Raises:
      ValueError: for nan epsilon, an unknown direction or a method that cannot answer.
      TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.Repeated(jaxdp.Laplace(10.0), 20)
      >>> low, high = jaxdp.delta_bounds(run, 1.0)
      >>> bool(0 < low <= high <= 1.01 * low)
      True
    """
    argument = ("epsilon", epsilon, _checks.NOT_NAN)
    return _query(_delta_bounds, m, argument, direction, method, ("down", "up"), chunk)


def _delta_bounds(m, epsilon, direction, method):
    lower, upper = _answers.log_deltas(m, epsilon, direction, method, (-1, 1))
    return _divergences.exp_down(lower), _divergences.exp_up(upper)


def epsilon(
    m: Mechanism,
    delta: ArrayLike,
    *,
    direction: Directions = "both",
    method: Method | None = None,
    chunk: int | None = None,
) -> jax.Array:
    """Upper bound on the least epsilon >= 0 at which m is (epsilon, delta)-DP.

    A safeguarded root of `log_delta` where the curve is exact (within 1e-11 of it, on the safe
    side, with implicit derivatives); otherwise by the numerical engine, some 0.1 % above the least
    epsilon. (Rényi divergences are quicker to compile, and up to half as much again above it;
    what is known to be zCDP has no other answer.) delta = 0 asks for pure DP:
    sensitivity/scale for Laplace, inf for Gaussian. inf also where delta is below the probability
    of total failure (ApproximateDP).

    Args:
      m: a mechanism; its parameters broadcast against delta.
      delta: in [0, 1). Any shape.
      direction: "remove", "add" or "both".
      method: Analytic(), Renyi() or Numerical(); the closed form, else the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Raises:
      ValueError: for delta outside [0, 1), an unknown direction or a method that cannot answer.
      TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> sgd = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000)
      >>> 1.828237 <= float(jaxdp.epsilon(sgd, 1e-5)) < 1.8301
      True
    """
    argument = ("delta", delta, _checks.DELTA)
    known = _checks.concrete("delta", delta)
    pure = known is not None and not known.any()
    return _query(
        _pure_epsilon if pure else scalar_epsilon, m, argument, direction, method, "up", chunk
    )


def _pure_epsilon(m, delta, direction, method):  # no curve to search, no engine to compile
    _answers.resolve(m, method)
    return jnp.where(m._in_domain(), _curve.largest_loss(m, direction), jnp.nan)


def scalar_epsilon(m, delta, direction, method):
    """`epsilon` of one mechanism at one delta, inside the float64 island."""
    return _answers.epsilons(m, delta, direction, method, (1,))[0]


def epsilon_bounds(
    m: Mechanism,
    delta: ArrayLike,
    *,
    direction: Directions = "both",
    method: Method | None = None,
    chunk: int | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Certified (lower, upper) bounds on the least epsilon >= 0 at delta; the truth lies between.

    Args:
      m: a mechanism; its parameters broadcast against delta.
      delta: in [0, 1). Any shape.
      direction: "remove", "add" or "both".
      method: Analytic(), Renyi() (whose lower bound is 0) or Numerical(); the closed form, else
        the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Raises:
      ValueError: for delta outside [0, 1), an unknown direction or a method that cannot answer.
      TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> sgd = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000)
      >>> low, high = jaxdp.epsilon_bounds(sgd, 1e-5)
      >>> bool(low <= 1.828237 <= high <= 1.001 * low)
      True
    """
    argument = ("delta", delta, _checks.DELTA)
    return _query(_epsilon_bounds, m, argument, direction, method, ("down", "up"), chunk)


def _epsilon_bounds(m, delta, direction, method):
    return _answers.epsilons(m, delta, direction, method, (-1, 1))


def renyi(
    m: Mechanism,
    alpha: ArrayLike,
    *,
    direction: Directions = "both",
    chunk: int | None = None,
) -> jax.Array:
    r"""The Rényi divergence of order alpha, for every real order >= 1.

    :math:`R_\alpha(P\|Q) = \log E_Q[X^\alpha]/(\alpha - 1)` for remove, P and Q swapped for add;
    alpha = 1 is the Kullback-Leibler divergence, alpha = inf the max divergence. Exact for every
    mechanism here and their compositions (Poisson-subsampled ones by quadrature, to 1e-12 and
    rounded up), but for upper bounds: of random allocations to add, and at orders that are no
    integers above 1; of a Poisson-subsampled composition the least of those that are known:
    1 - q + q E[X^alpha], the composition itself, the largest loss.

    Args:
      m: a mechanism; its parameters broadcast against alpha.
      alpha: order in [1, inf]. Any shape.
      direction: "remove", "add" or "both".
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Raises:
      ValueError: for alpha below 1 or nan, or an unknown direction. TypeError: if m is no
        mechanism.

    Example:
      >>> import jaxdp
      >>> float(jaxdp.renyi(jaxdp.Gaussian(2.0), 8.0))
      1.0
    """
    require_mechanism("m", m, whole=True)
    _checks.check_choice("direction", direction, _DIRECTIONS)
    _checks.check("alpha", alpha, _checks.ORDER)
    m = with_schedules(m)
    chunk = _chunks.chunk_of_orders(m, direction, alpha, chunk)
    options: Any = {"rounding": "up", "chunk": chunk, "quick": True, "direction": direction}
    if not _curve.has_average(m._structure()):
        return _x64.evaluate(_answers.renyi, m, alpha, **options)
    options["largest"] = _curve.largest_order(alpha)
    shared = _chunks.share_last(m, alpha)
    if shared is None:
        return _x64.evaluate(_answers.renyi, m, alpha, **options)
    rows, orders = shared
    return _x64.evaluate(_answers.renyi_of_orders, rows, _answers.Orders(orders), **options)


def tradeoff(
    m: Mechanism,
    fpr: ArrayLike,
    *,
    method: Method | None = None,
    chunk: int | None = None,
) -> jax.Array:
    r"""Lower bound on the type II error of every test, at type I error fpr (Dong et al. 2022).

    :math:`T(\alpha) = \max_{g \ge 0} [1 - g\alpha - H_g]`, the smaller of both directions: what
    any attack that decides whether the record is there must get wrong. Within a relative 1e-6 where
    the curve is exact, some 1e-4 by the engine, whose laws all rates along the last axis share. (Of
    random allocations and of compositions on a sample the curve is asked for at 32 epsilons; rates
    below some 1e-8 are then bounded less tightly.)

    Args:
      m: a mechanism; its parameters broadcast against fpr.
      fpr: false positive rate in [0, 1]. Any shape.
      method: Analytic(), Renyi() or Numerical(); the closed form, else the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Raises:
      ValueError: for fpr outside [0, 1] or a method that cannot answer. TypeError: if m is no
        mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.tradeoff(jaxdp.Gaussian(1.0), 0.05)), 5)  # Phi(Phi^-1(.95) - 1)
      0.74049
      >>> sgd = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000)
      >>> 0.34 < float(jaxdp.tradeoff(sgd, 0.5)) < 0.35
      True
    """
    require_mechanism("m", m, whole=True)
    check_method(method)
    _checks.check("fpr", fpr, _checks.PROBABILITY)
    m = with_schedules(with_outcomes(m, method))
    chosen = _answers.resolve(m, method)
    chunk = _chunks.chunk_of(m, chosen, fpr, chunk)
    options: Any = {"rounding": "down", "chunk": chunk, "quick": True, "method": chosen}
    if not chosen._reads_laws:
        return _x64.evaluate(_tradeoff.tradeoff, m, fpr, **options)
    shared = _chunks.share_last(m, fpr)
    if shared is not None:
        rows, rates = shared
        return _x64.evaluate(
            _tradeoff.tradeoff_by_the_engine, rows, _tradeoff.Rates(rates), **options
        )
    alone = _tradeoff.Rates(_chunks.array_of(fpr)[..., None])
    return _x64.evaluate(_tradeoff.tradeoff_by_the_engine, m, alone, **options)[..., 0]


def advantage(m: Mechanism, *, method: Method | None = None, chunk: int | None = None) -> jax.Array:
    """Upper bound on the attack advantage max(TPR - FPR): the total variation distance, delta(0).

    Args:
      m: a mechanism. The result has its parameters' broadcast shape.
      method: Analytic(), Renyi() or Numerical(); the closed form, else the engine, by default.
      chunk: how many answers to compute at a time; by default what the device has memory for.

    Raises:
      ValueError: for a method that cannot answer. TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.advantage(jaxdp.Gaussian(1.0))), 6)
      0.382925
    """
    return delta(m, 0.0, method=method, chunk=chunk)
