"""Closed-form bounds that accompany the exact laws."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _x64
from jaxdp._noise._discrete import Skellam
from jaxdp._noise._lattice import INTEGER
from jaxdp._noise._vectors import SkellamVector
from jaxdp._special_gamma import log_gamma_ratio


def skellam_renyi_bound(
    m: Skellam | SkellamVector, alpha: ArrayLike, l1_sensitivity: ArrayLike | None = None
) -> jax.Array:
    r"""The Rényi bound of Agarwal, Kairouz & Liu for Skellam noise, for comparison.

    .. math:: R_\alpha \le \frac{\alpha\Delta^2}{2\lambda} + \min\Big(
              \frac{(2\alpha - 1)\Delta^2 + 6\Delta_1}{4\lambda^2},
              \frac{3\Delta_1}{2\lambda}\Big)

    (2021, arXiv 2110.04995, Corollary 3.6, for integer alpha; between integers the chord of the
    convex alpha -> (alpha - 1) R_alpha, which is an upper bound too.) Of one coordinate the L1
    sensitivity is Delta, and `renyi(m, alpha)` is exact; of a vector it is at most Delta^2, as
    entries are integers, and `renyi(m, alpha)` is less at all but large orders. Both directions.

    Args:
      m: a Skellam mechanism; its parameters broadcast against alpha.
      alpha: order > 1, finite. Any shape.
      l1_sensitivity: > 0, of a vector; None for what follows from its L2 sensitivity.

    Raises:
      ValueError: for a known argument outside its domain. TypeError: if m is no Skellam mechanism.

    Example:
      >>> import jaxdp
      >>> float(jaxdp.skellam_renyi_bound(jaxdp.Skellam(1.0), 2.0))
      2.5
    """
    if not isinstance(m, (Skellam, SkellamVector)):
        raise TypeError(f"m must be a jaxdp.Skellam or SkellamVector, got {_checks.shown(m)}")
    _checks.check("alpha", alpha, _checks.FINITE_ORDER)
    if l1_sensitivity is None:
        l1_sensitivity = m.sensitivity if isinstance(m, Skellam) else jnp.square(m.sensitivity)
    _checks.check("l1_sensitivity", l1_sensitivity, _checks.POSITIVE)
    return _x64.evaluate(_skellam_renyi_bound, m, alpha, l1_sensitivity, rounding="up")


def _skellam_renyi_bound(m, alpha, l1):
    def moment(order):  # (order - 1) times the bound at an integer order
        first = order * m.sensitivity**2 / (2.0 * m.variance)
        tight = ((2.0 * order - 1.0) * m.sensitivity**2 + 6.0 * l1) / (4.0 * m.variance**2)
        return (order - 1.0) * (first + jnp.minimum(tight, 1.5 * l1 / m.variance))

    low = jax.lax.stop_gradient(jnp.floor(alpha))
    chord = moment(low) + (alpha - low) * (moment(low + 1.0) - moment(low))
    inside = m._in_domain() & _checks.FINITE_ORDER.contains(alpha) & _checks.POSITIVE.contains(l1)
    return jnp.where(inside, chord / (alpha - 1.0), jnp.nan)


def gdl_epsilon_floor(beta: ArrayLike, sensitivity: ArrayLike = 1) -> jax.Array:
    r"""What the pure-DP epsilon of generalised discrete Laplace noise exceeds, however much of it.

    .. math:: \lim_{a \to 0} \varepsilon
              = \sum_{j<\Delta} \log\frac{1 - \beta + j}{\beta + j} \quad (\beta < 1/2), \qquad
              0 \quad (\beta \ge 1/2)

    The limit (DLMF 15.4.20) is the infimum over a > 0: a pure-DP target at or below it cannot be
    met with a fraction beta of a discrete Laplace law. Both directions.

    Args:
      beta: shape > 0. Any shape.
      sensitivity: integer >= 1; broadcasts against beta.

    Raises:
      ValueError: if a known argument is outside its domain.

    Example:
      >>> import jaxdp
      >>> round(float(jaxdp.gdl_epsilon_floor(0.25)), 6)  # log 3
      1.098612
    """
    _checks.check("beta", beta, _checks.POSITIVE)
    _checks.check("sensitivity", sensitivity, INTEGER)
    return _x64.evaluate(_gdl_epsilon_floor, beta, sensitivity, rounding="nearest")


def _gdl_epsilon_floor(beta, sensitivity):
    low = beta < 0.5
    b = jnp.where(low, beta, 0.25)
    floor = log_gamma_ratio(1.0 - b, sensitivity) - log_gamma_ratio(b, sensitivity)
    inside = _checks.POSITIVE.contains(beta) & INTEGER.contains(sensitivity)
    return jnp.where(inside, jnp.where(low, floor, 0.0), jnp.nan)
