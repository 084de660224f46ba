"""The Ornstein-Uhlenbeck mechanism of least worst-case error for a privacy target, closed form."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from calibrate._minimize import Minimum
from calibrate._solve import Status
from jaxdp import _answers, _checks, _conversions, _divergences, _special, _x64
from jaxdp._mechanisms import OrnsteinUhlenbeck

_MARGIN = 1e-12  # of mu at an (epsilon, delta) target: far above rounding, far below anything else
_ROUNDING = 32.0 * _divergences.SLACK


def ornstein_uhlenbeck(
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    norm: ArrayLike,
    dimension: ArrayLike,
    sensitivity: ArrayLike = 1.0,
    t: ArrayLike = 1.0,
) -> Minimum:
    r"""The (epsilon, delta)-DP Ornstein-Uhlenbeck mechanism of least worst-case squared error.

    With :math:`\tilde\sigma = \Delta/\mu`, mu the largest that (epsilon, delta) allows, the error
    over ||f|| <= R in R^d, (1 - e^{-theta t})^2 R^2 + d e^{-2 theta t} sigma~^2, is least at

    .. math:: \theta t = \log(1 + d\tilde\sigma^2/R^2), \qquad
              \rho^2 = \theta\tilde\sigma^2/(e^{2\theta t} - 1)

    where it equals that of the optimally shrunk Gaussian, d sigma~^2 R^2/(R^2 + d sigma~^2)
    (Balle, Barthe, Gaboardi & Geumlek 2019, Theorem 8, there for Rényi targets). Only theta t
    and rho^2 t matter, so the time t is free and sets the unit of theta.

    Args:
      epsilon: target >= 0. Any shape.
      delta: target in (0, 1).
      norm: R > 0, bound on the Euclidean norm of the value.
      dimension: d > 0.
      sensitivity: L2 sensitivity Delta > 0.
      t: time of the release, > 0.

    Returns:
      A `Minimum` whose value is a jaxdp.OrnsteinUhlenbeck, rounded to the side of more privacy,
      and whose objective is its worst-case mean squared error. Status 3 and nan for traced
      arguments outside their domains.

    Raises:
      ValueError: for known arguments outside these domains.

    Example:
      >>> import calibrate
      >>> found = calibrate.ornstein_uhlenbeck(
      ...     epsilon=1.0, delta=1e-5, norm=5.0, dimension=10
      ... )
      >>> round(float(found.objective), 3), round(float(found.delta), 9)
      (21.193, 1e-05)
    """
    _checks.check("epsilon", epsilon, _checks.NON_NEGATIVE)
    _checks.check("delta", delta, _checks.OPEN_DELTA)
    _check_design(norm, dimension, sensitivity, t)
    args = (epsilon, delta, norm, dimension, sensitivity, t)
    theta, rho, error, target, achieved, status = _x64.evaluate(
        _for_delta, *args, rounding=("up", "up", "up", "up", "up", "nearest")
    )
    mechanism = _built(theta, rho, t, sensitivity)
    return Minimum(mechanism, error, target, achieved, status.astype(jnp.int32))


def ornstein_uhlenbeck_renyi(
    *,
    alpha: ArrayLike,
    rdp: ArrayLike,
    norm: ArrayLike,
    dimension: ArrayLike,
    sensitivity: ArrayLike = 1.0,
    t: ArrayLike = 1.0,
) -> tuple[OrnsteinUhlenbeck, jax.Array]:
    """The Ornstein-Uhlenbeck mechanism of least worst-case squared error with R_alpha <= rdp.

    As `ornstein_uhlenbeck`, with mu^2 = 2 rdp/alpha: Theorem 8 of Balle et al. 2019 with its
    epsilon = rdp/alpha, at t = 1 exactly its parameters.

    Args:
      alpha: order >= 1, finite. Any shape.
      rdp: target > 0 at that order (rdp/alpha at every order: the guarantee is linear in alpha).
      norm: R > 0.
      dimension: d > 0.
      sensitivity: Delta > 0.
      t: time of the release, > 0.

    Returns:
      The mechanism and its worst-case mean squared error; nan for traced arguments outside
      their domains.

    Raises:
      ValueError: for known arguments outside these domains.

    Example:
      >>> import calibrate
      >>> ou, error = calibrate.ornstein_uhlenbeck_renyi(alpha=2.0, rdp=1.0, norm=1.0, dimension=1)
      >>> round(float(ou.theta), 6), round(float(error), 6)
      (0.693147, 0.5)
    """
    _checks.check("alpha", alpha, _checks.FINITE_KL_ORDER)
    _checks.check("rdp", rdp, _checks.POSITIVE)
    _check_design(norm, dimension, sensitivity, t)
    theta, rho, error = _x64.evaluate(
        _for_renyi, alpha, rdp, norm, dimension, sensitivity, t, rounding=("up",) * 3
    )
    return _built(theta, rho, t, sensitivity), error


def _check_design(norm, dimension, sensitivity, t):
    for name, value in (
        ("norm", norm),
        ("dimension", dimension),
        ("sensitivity", sensitivity),
        ("t", t),
    ):
        _checks.check(name, value, _checks.POSITIVE)


def _built(theta, rho, t, sensitivity):
    """The mechanism, with nan parameters allowed: they are the status of an invalid target."""
    structure = jax.tree.structure(OrnsteinUhlenbeck(1.0, 1.0, 1.0))
    return jax.tree.unflatten(structure, (theta, rho, t, sensitivity))


def _best(mu, norm, dimension, sensitivity, t, margin):
    """theta, rho and the error; theta, rho up means less mu."""
    variance = (sensitivity / mu) ** 2
    theta = jnp.log1p(dimension * variance / (norm * norm)) / t
    rho = jnp.sqrt(variance / (2.0 * t * _special.relative_expm1(2.0 * theta * t)))
    rho = rho * (1.0 + margin)
    m = _built(theta, rho, t, sensitivity)
    bias = jnp.expm1(-theta * t) * norm
    spread = _divergences.ornstein_uhlenbeck_variance(theta, rho, t)
    return m, bias * bias + dimension * spread


def _positive(*values):
    good = jnp.asarray(True)
    for value in values:
        good = good & _checks.POSITIVE.contains(value)
    return good


def _for_delta(epsilon, delta, norm, dimension, sensitivity, t):
    valid = _positive(norm, dimension, sensitivity, t) & _checks.NON_NEGATIVE.contains(epsilon)
    valid = valid & _checks.OPEN_DELTA.contains(delta)
    mu = _conversions._epsilon_delta_to_gdp(epsilon, delta)
    m, error = _best(mu, norm, dimension, sensitivity, t, _MARGIN)
    achieved = _answers.delta(m, epsilon, "both")
    status = jnp.where(valid, float(Status.SOLVED), float(Status.INVALID))
    values = (m.theta, m.rho, error, epsilon, achieved)
    return (*(jnp.where(valid, value, jnp.nan) for value in values), status)


def _for_renyi(alpha, rdp, norm, dimension, sensitivity, t):
    valid = _positive(norm, dimension, sensitivity, t, alpha, rdp) & (alpha >= 1.0)
    m, error = _best(jnp.sqrt(2.0 * rdp / alpha), norm, dimension, sensitivity, t, _ROUNDING)
    return tuple(jnp.where(valid, value, jnp.nan) for value in (m.theta, m.rho, error))
