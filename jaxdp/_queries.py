"""The questions one asks of a mechanism, all read off the law of its likelihood ratio.

Every query broadcasts the mechanism's parameters against its other argument, works under jit,
vmap, grad and scan, computes in float64 and returns float64 to x64 callers, float32 (rounded to
the safe side) to others. Values that are known and wrong raise ValueError; traced ones give nan.
"""

from typing import Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _roots, _x64
from jaxdp._mechanisms import Mechanism, _curve, require_mechanism

Directions = Literal["remove", "add", "both"]
_DIRECTIONS = ("remove", "add", "both")
_CHUNK = 4096  # batch elements evaluated at a time where one element needs many nodes


def _chunk(m: Mechanism) -> int | None:
    return None if _curve.is_exact(m) else _CHUNK


def _checked(m: Mechanism, direction: str) -> None:
    require_mechanism("m", m)
    _checks.check_choice("direction", direction, _DIRECTIONS)


def hockey_stick(m: Mechanism, epsilon: ArrayLike, *, direction: Directions = "both") -> jax.Array:
    r"""The hockey-stick divergence at e^epsilon.

    remove: :math:`E_Q[(X - e^\varepsilon)_+]` plus the mass at X = infinity; add: the same with P
    and Q swapped; both: the larger. Exact (to a relative 1e-12) for a single mechanism, for
    Gaussian compositions and for one Poisson-subsampled step; an upper bound otherwise.

    Args:
      m: a mechanism; its parameters broadcast against epsilon.
      epsilon: any real number, negative included. Any shape.
      direction: "remove" (with the record || without), "add" (without || with) or "both".

    Returns:
      Values in [0, 1], of the broadcast shape.

    Raises:
      ValueError: for nan epsilon or an unknown direction. TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.hockey_stick(jaxdp.Gaussian(1.0), 0.0)), 6)
      0.382925
    """
    _checked(m, direction)
    _checks.check("epsilon", epsilon, _checks.NOT_NAN)
    return _x64.evaluate(
        _hockey_stick, m, epsilon, rounding="nearest", chunk=_chunk(m), direction=direction
    )


def _hockey_stick(m, epsilon, direction):
    return jnp.exp(_log_curve(m, epsilon, direction, 0.0))


def _log_curve(m, epsilon, direction, slack):
    value = _curve.worst(m, direction, lambda d: _curve.log_curve(m, epsilon, d, slack))
    return jnp.where(m._in_domain(), jnp.minimum(value, 0.0), jnp.nan)


def log_delta(m: Mechanism, epsilon: ArrayLike, *, direction: Directions = "both") -> jax.Array:
    """Upper bound on log delta(epsilon), finite far below the smallest float32 or float64.

    The certified counterpart of `hockey_stick`: rounding errors included. -inf where delta = 0.

    Args:
      m: a mechanism; its parameters broadcast against epsilon.
      epsilon: any real number. Any shape.
      direction: "remove", "add" or "both".

    Raises:
      ValueError: for nan epsilon or an unknown direction. TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.log_delta(jaxdp.Gaussian(1.0), 50.0)), 3)
      -1233.869
    """
    _checked(m, direction)
    _checks.check("epsilon", epsilon, _checks.NOT_NAN)
    return _x64.evaluate(
        log_delta_64, m, epsilon, rounding="up", chunk=_chunk(m), direction=direction
    )


def log_delta_64(m: Mechanism, epsilon: jax.Array, direction: str) -> jax.Array:
    """`log_delta` of float64 scalars, inside the island."""
    return _log_curve(m, epsilon, direction, _divergences.SLACK)


def delta(m: Mechanism, epsilon: ArrayLike, *, direction: Directions = "both") -> jax.Array:
    """Upper bound on delta at epsilon, within 1e-12 (relative) of the truth where that is exact.

    Args:
      m: a mechanism; its parameters broadcast against epsilon.
      epsilon: any real number. Any shape.
      direction: "remove", "add" or "both".

    Raises:
      ValueError: for nan epsilon or an unknown direction. TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.delta(jaxdp.Laplace(1.0), 0.5)), 6)
      0.221199
    """
    _checked(m, direction)
    _checks.check("epsilon", epsilon, _checks.NOT_NAN)
    return _x64.evaluate(delta_64, m, epsilon, rounding="up", chunk=_chunk(m), direction=direction)


def delta_64(m: Mechanism, epsilon: jax.Array, direction: str) -> jax.Array:
    """`delta` of float64 scalars, inside the island."""
    return _divergences.exp_up(log_delta_64(m, epsilon, direction))


def epsilon(m: Mechanism, delta: ArrayLike, *, direction: Directions = "both") -> jax.Array:
    """Upper bound on the least epsilon >= 0 at which m is (epsilon, delta)-DP.

    A safeguarded root of `log_delta` where the curve is exact (within 1e-11 of it, on the safe
    side, with implicit derivatives); the best real Rényi order otherwise. delta = 0 asks for
    pure DP: sensitivity/scale for Laplace, inf for Gaussian. inf also where delta is below the
    probability of total failure (ApproximateDP).

    Args:
      m: a mechanism; its parameters broadcast against delta.
      delta: in [0, 1). Any shape.
      direction: "remove", "add" or "both".

    Raises:
      ValueError: for delta outside [0, 1) or an unknown direction. TypeError: if m is no
        mechanism.

    Example:
      >>> import jaxdp
      >>> sgd = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000)
      >>> 1.8282 < float(jaxdp.epsilon(sgd, 1e-5)) < 2.3
      True
    """
    _checked(m, direction)
    _checks.check("delta", delta, _checks.DELTA)
    return _x64.evaluate(_epsilon, m, delta, rounding="up", chunk=_chunk(m), direction=direction)


def _epsilon(m, delta, direction):
    pure = delta == 0.0
    log_target = jnp.log(jnp.where(pure, 0.5, delta))
    value = _curve.worst(m, direction, lambda d: _epsilon_one(m, log_target, d))
    least = max_loss_64(m, direction)
    value = jnp.where(pure, least, jnp.minimum(value, least))
    return jnp.where(m._in_domain() & _checks.DELTA.contains(delta), value, jnp.nan)


def _epsilon_one(m, log_target, direction):
    if not _curve.is_exact(m):
        return _curve.renyi_epsilon(m, log_target, direction)
    feasible = m._log_failure(direction) < log_target
    target = jnp.where(feasible, log_target, 0.0)

    def excess(e):
        return _curve.log_curve(m, e, direction, _divergences.SLACK) - target

    start = jnp.where(feasible, 1.0, jnp.nan)
    root = _roots.safe_root(excess, start, 1e-12, 1e-14)
    return jnp.where(feasible, jnp.maximum(root, 0.0), jnp.inf)


def max_loss_64(m: Mechanism, direction: str) -> jax.Array:
    """The max divergence D_inf, which is the pure-DP epsilon, inside the island."""

    def one(d):
        low, high = m._loss_range()
        return jnp.where(m._log_failure(d) > -jnp.inf, jnp.inf, high if d == "remove" else -low)

    return _curve.worst(m, direction, one)


def renyi(m: Mechanism, alpha: ArrayLike, *, direction: Directions = "both") -> jax.Array:
    r"""The Rényi divergence of order alpha, for every real order >= 1.

    :math:`R_\alpha(P\|Q) = \log E_Q[X^\alpha]/(\alpha - 1)` for remove, P and Q swapped for add;
    alpha = 1 is the Kullback-Leibler divergence, alpha = inf the max divergence. Exact for every
    mechanism here and their compositions (Poisson-subsampled ones by quadrature, to 1e-12;
    beyond alpha of about 100 sigma/sensitivity, and for a Poisson-subsampled composition, the
    upper bound 1 - q + q E[X^alpha]).

    Args:
      m: a mechanism; its parameters broadcast against alpha.
      alpha: order in [1, inf]. Any shape.
      direction: "remove", "add" or "both".

    Raises:
      ValueError: for alpha below 1 or nan, or an unknown direction. TypeError: if m is no
        mechanism.

    Example:
      >>> import jaxdp
      >>> float(jaxdp.renyi(jaxdp.Gaussian(2.0), 8.0))
      1.0
    """
    _checked(m, direction)
    _checks.check("alpha", alpha, _checks.ORDER)
    return _x64.evaluate(_renyi, m, alpha, rounding="up", chunk=_chunk(m), direction=direction)


def _renyi(m, alpha, direction):
    infinite = jnp.isposinf(alpha)
    order = jnp.where(infinite, 2.0, alpha)

    def one(d):
        s = order if d == "remove" else 1.0 - order
        terms = _curve.canonical_terms(m)
        finite = order * sum(t.multiplicity * t.mechanism._rate(s) for t in terms)
        finite = jnp.where(m._log_failure(d) > -jnp.inf, jnp.inf, finite)
        return jnp.where(infinite, max_loss_64(m, d), finite)

    value = _curve.worst(m, direction, one)
    return jnp.where(m._in_domain() & (alpha >= 1.0), value, jnp.nan)


def tradeoff(m: Mechanism, fpr: ArrayLike) -> jax.Array:
    r"""Lower bound on the type II error of every test, at type I error fpr (Dong et al. 2022).

    :math:`T(\alpha) = \max_{g \ge 0} [1 - g\alpha - H_g]`, the smaller of both directions: what
    any attack that decides whether the record is there must get wrong. Tight where the curve is
    exact.

    Args:
      m: a mechanism; its parameters broadcast against fpr.
      fpr: false positive rate in [0, 1]. Any shape.

    Raises:
      ValueError: for fpr outside [0, 1]. TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.tradeoff(jaxdp.Gaussian(1.0), 0.05)), 5)  # Phi(Phi^-1(.95) - 1)
      0.74049
    """
    _checked(m, "both")
    _checks.check("fpr", fpr, _checks.PROBABILITY)
    return _x64.evaluate(_tradeoff, m, fpr, rounding="down", chunk=_chunk(m))


def _tradeoff(m, fpr):
    worst = _curve.worst(m, "both", lambda d: -_tradeoff_one(m, fpr, d))
    inside = m._in_domain() & _checks.PROBABILITY.contains(fpr)
    return jnp.where(inside, jnp.clip(-worst, 0.0, 1.0), jnp.nan)


_LOSS_CAP = 740.0  # e^-740 is the smallest float64
_BISECTIONS = 64


def _tradeoff_one(m, fpr, direction):
    """The maximum over g = e^l of a function that rises, then falls: bisection on its slope.

    Any l gives a valid bound; by the envelope theorem the gradient at the frozen best one is
    that of the maximum.
    """

    def power(loss):
        return _divergences.exp_up(_curve.log_curve(m, loss, direction, _divergences.SLACK))

    def body(_, bracket):
        low, high = bracket
        middle = 0.5 * (low + high)
        slope = jax.jvp(power, (middle,), (jnp.ones_like(middle),))[1]
        rising = -slope > fpr * jnp.exp(middle)
        return jnp.where(rising, middle, low), jnp.where(rising, high, middle)

    ends = jnp.full_like(fpr, -_LOSS_CAP), jnp.full_like(fpr, _LOSS_CAP)
    low, high = jax.lax.fori_loop(0, _BISECTIONS, body, jax.lax.stop_gradient(ends))
    best = jax.lax.stop_gradient(0.5 * (low + high))
    return 1.0 - fpr * jnp.exp(best) - power(best)


def advantage(m: Mechanism) -> jax.Array:
    """Upper bound on the attack advantage max(TPR - FPR): the total variation distance, delta(0).

    Args:
      m: a mechanism. The result has its parameters' broadcast shape.

    Raises:
      TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.advantage(jaxdp.Gaussian(1.0))), 6)
      0.382925
    """
    return delta(m, 0.0)
