"""Pure differential privacy from shares of discrete Laplace noise."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _roots, _x64
from jaxdp._noise import GeneralizedDiscreteLaplace, gdl_epsilon_floor
from jaxdp._noise._bounds import _gdl_epsilon_floor

_MARGIN = 1e-12  # relative, of epsilon: a re-evaluation that rounds differently stays private
_SMALLEST = 1e-12  # of a: less than that is a variance above 1e24
_CHUNK = 2048


def gdl_decay(epsilon: ArrayLike, beta: ArrayLike, sensitivity: ArrayLike = 1) -> jax.Array:
    r"""The largest a, hence the least noise, at which GDL(beta, a) is epsilon-DP.

    Let every party add a share of DiscreteLaplace(a): if at least the fraction beta of them is
    honest, the release is epsilon-DP. For beta >= 1 it is a = epsilon/Delta; for beta < 1 the
    root of the tight log f(0)/f(Delta) (see `jaxdp.GeneralizedDiscreteLaplace`). Below beta = 1/2
    targets at or under `jaxdp.gdl_epsilon_floor` are infeasible at any a.

    Args:
      epsilon: pure-DP target > 0. Any shape.
      beta: worst-case honest fraction > 0; broadcasts against epsilon.
      sensitivity: integer >= 1; broadcasts against epsilon.

    Returns:
      a, rounded down: the safe side. nan where the target is infeasible (traced arguments only),
      or where a would have to be below 1e-12. Derivatives are implicit.

    Raises:
      ValueError: for known arguments outside their domains, or a known epsilon that is not above
        the floor of its beta and sensitivity.

    Example:
      >>> import calibrate, jaxdp
      >>> a = calibrate.gdl_decay(1.0, beta=0.7, sensitivity=2)
      >>> noise = jaxdp.GeneralizedDiscreteLaplace(0.7, a, 2)
      >>> round(float(a), 6), 0.999 < float(jaxdp.epsilon(noise, 0.0)) <= 1.000001
      (0.294336, True)
    """
    _checks.check("epsilon", epsilon, _checks.POSITIVE)
    floor = gdl_epsilon_floor(beta, sensitivity)
    target, known = _checks.concrete("epsilon", epsilon), _checks.concrete("floor", floor)
    if target is not None and known is not None and not np.all(target > known):
        least = np.broadcast_to(known, np.broadcast_shapes(target.shape, known.shape))
        worst = np.max(np.where(target > known, 0.0, least))
        raise ValueError(
            f"epsilon must be above the floor {worst:.6g} that generalised discrete Laplace noise "
            f"of this beta < 1/2 and sensitivity cannot go below at any a,"
            f" got {_checks.shown(epsilon)}"
        )
    return _x64.evaluate(
        _gdl_decay, epsilon, beta, 1.0 * sensitivity, rounding="down", chunk=_CHUNK
    )


def _gdl_decay(epsilon, beta, sensitivity):
    simple = beta >= 1.0
    shape = jnp.where(simple, 0.75, beta)

    def excess(minus_log_a):
        m = GeneralizedDiscreteLaplace(shape, jnp.exp(-minus_log_a), sensitivity)
        return jnp.log(m._loss_range()[1] * (1.0 + _MARGIN)) - jnp.log(epsilon)

    feasible = epsilon > _gdl_epsilon_floor(beta, sensitivity)
    start = jnp.log(sensitivity / epsilon)  # the loss is above a Delta: the root is beyond
    least = -jnp.log(_SMALLEST)
    reachable = feasible & (excess(least) <= 0.0)
    root = _roots.safe_root(excess, jnp.where(reachable & ~simple, start, jnp.nan), 0.0, 1e-13)
    a = jnp.where(simple, epsilon / sensitivity * (1.0 - _MARGIN), jnp.exp(-root))
    inside = _checks.POSITIVE.contains(epsilon) & (simple | (reachable & jnp.isfinite(root)))
    return jnp.where(inside, a, jnp.nan)
