"""Several bounds on one mechanism at once: the largest pair that lies below all of them.

If H <= H_i for every i, then H <= min_i H_i. H is convex in g = e^eps, so that it is below the
convex minorant of that minimum as well, which is convex, falls from 1 with slopes >= -1 and hence
is the curve of a pair (see `_privacy_loss_table`): the tightest that the bounds allow, in both
directions at once. That pair dominates the mechanism, and composes, is sampled and is nested like
any other. Here it is tabulated: bounds at finitely many points, their minorant above that.
"""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import jax
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _devices, _privacy_loss_table, _queries
from jaxdp._mechanisms import Mechanism, require_mechanism
from jaxdp._methods import Method, check_method
from jaxdp._noise import LossDistribution
from jaxdp._numerical_terms import holds_average

Guarantee = Callable[[ArrayLike], ArrayLike]
_BEYOND = 1e-6  # of delta, at the ends of the table
_FARTHEST = 200.0  # loss that a table holds
_ROUNDING = 1e-12  # relative, of what a user's function returns


@_devices.at_once
def intersection(
    bounds: Iterable[Mechanism | Guarantee],
    *,
    delta: ArrayLike = 1e-5,
    direction: Literal["remove", "add"] = "remove",
    num_points: int = 1000,
    method: Method | None = None,
) -> LossDistribution:
    r"""The tightest pair below several that dominate one and the same mechanism.

    Of a mechanism of which several things are known (a law and a pure epsilon, a law and a Rényi
    or zCDP guarantee) each is a bound, and so is the convex minorant of the least of them,

    .. math:: H(g) \le \mathrm{conv} \min_i H_i(g), \quad g = e^\varepsilon \ge 0,

    which is a pair again: a finite one, a few 1e-4 above it near `delta`. What is composed of it,
    sampled or allocated with it is bounded as the mechanism is, in both directions, and at least as
    tightly as through any one of the bounds. Upper bounds asked of it are certified for the
    mechanism if all the parts are bounds on *that* one, which cannot be checked here; lower ones
    are of the pair only, for two bounds do not say what the truth is.

    Args:
      bounds: mechanisms with known parameters, each of which dominates the one that is meant; or
        functions that take epsilons >= 0, a vector, and return a delta for each at which it is
        (epsilon, delta)-DP in both directions. At least one.
      delta: about where the pair is to be accurate, in (0, 1).
      direction: which direction the pair's "remove" is. The other one is exact to 2^-40 only (but
        for losses: where a bound is pure, so is the pair).
      num_points: of the table, at least 16.
      method: for the mechanisms; None as in `epsilon`.

    Returns:
      A finite pair, a mechanism like others.

    Raises:
      ValueError: for no bounds, a batch of mechanisms, num_points < 16 or delta outside (0, 1).
        TypeError: if a bound is neither a mechanism nor a function, or its parameters are traced.

    Example:
      >>> import jaxdp
      >>> law, pure = jaxdp.Gaussian(1.0), jaxdp.ApproximateDP(1.0, 0.0)
      >>> both = jaxdp.Repeated(jaxdp.intersection([law, pure]), 64)
      >>> alone = [jaxdp.epsilon(jaxdp.Repeated(m, 64), 1e-5) for m in (law, pure)]
      >>> bool(jaxdp.epsilon(both, 1e-5) < 0.9 * min(alone))
      True
    """
    parts = list(bounds) if isinstance(bounds, Iterable) else [bounds]
    if not parts:
        raise ValueError("bounds must not be empty")
    for i, part in enumerate(parts):
        if isinstance(part, Mechanism) or not callable(part):
            require_mechanism(f"bounds[{i}]", part, whole=True)
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(part)):
            raise TypeError(f"bounds[{i}] is traced: a table's size would depend on its values")
    aim = _checks.number("delta", delta, _checks.OPEN_DELTA)
    _checks.check_choice("direction", direction, ("remove", "add"))
    check_method(method)
    points = _checks.whole_number("num_points", num_points, least=16)
    with jax.enable_x64(True):
        curves = [_curve(part, direction, method) for part in parts]
        sides = ("add", "remove") if direction == "remove" else ("remove", "add")
        ends = [[_ends(part, _BEYOND * aim, side, method) for part in parts] for side in sides]
        known = [[loss for losses, _ in side for loss in losses] for side in ends]
        low, high = (min(losses, default=_FARTHEST) for losses in known)
        left, right = (min(most for _, most in side) for side in ends)
        exact = -np.array(known[0]), np.array(known[1])
        loss = np.concatenate([np.linspace(-low, high, points), *exact, [0.0]])
        loss = np.unique(loss[np.abs(loss) <= _FARTHEST])
        log_h = np.min([curve(loss) for curve in curves], axis=0)
    table = _privacy_loss_table.above(loss, log_h, (left, right))
    return _privacy_loss_table.as_pair(table, loss.size)


def _curve(part: Any, direction: str, method: Method | None) -> Callable[[np.ndarray], np.ndarray]:
    """log H at any epsilons, from above."""
    if isinstance(part, Mechanism):
        other = "add" if direction == "remove" else "remove"

        def of_mechanism(loss: np.ndarray) -> np.ndarray:
            log = np.asarray(_queries.log_delta(part, loss, direction=direction, method=method))
            if part._structure() is not part or part._alternatives()[0] is not part:
                return log
            if not holds_average(part):
                return log
            # laws of averages are right in one direction: below 0 that of the other one is read
            swapped = _queries.log_delta(part, np.abs(loss), direction=other, method=method)
            return np.where(loss < 0.0, np.minimum(log, _mirrored(loss, np.exp(swapped))), log)

        return of_mechanism

    def of_function(loss: np.ndarray) -> np.ndarray:
        value = np.asarray(part(np.abs(loss)), np.float64)
        if value.shape != loss.shape or np.any(np.isnan(value)):
            raise ValueError(f"a function among the bounds must map {loss.shape} to deltas")
        value = np.minimum(np.maximum(value, 0.0) * (1.0 + _ROUNDING), 1.0)
        with np.errstate(divide="ignore"):
            return np.where(loss < 0.0, _mirrored(loss, value), np.log(np.minimum(value, 1.0)))

    return of_function


def _mirrored(loss: np.ndarray, value: np.ndarray) -> np.ndarray:
    """log H at losses below 0, from the other direction's: H(g) = 1 - g + g H'(1/g)."""
    g = np.exp(np.minimum(loss, 0.0))
    return np.log(np.minimum(1.0 - g * (1.0 - np.minimum(value, 1.0)) + 4.0 * 2.0**-53, 1.0))


def _ends(
    part: Any, delta: float, direction: str, method: Method | None
) -> tuple[list[float], float]:
    """Losses next to where a curve ends, and the largest one of all."""
    if not isinstance(part, Mechanism):
        return [], np.inf
    lost = part._log_failure(direction)
    if np.ndim(lost):
        raise ValueError(f"bounds must be single mechanisms, got a batch: {part!r}")
    failure = float(np.exp(lost)) * (1.0 + _ROUNDING)
    if failure + delta >= 1.0:
        return [], np.inf
    asked = (
        _queries.epsilon(part, failure + delta, direction=direction, method=method),
        _queries.epsilon(part, failure, direction=direction),
    )
    if any(np.ndim(x) for x in asked):
        raise ValueError(f"bounds must be single mechanisms, got a batch: {part!r}")
    losses = [float(e) for e in asked if np.isfinite(e)]
    most = float(asked[1]) * (1.0 + _ROUNDING) if failure == 0.0 else np.inf
    return losses, most
