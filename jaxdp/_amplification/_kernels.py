"""Finite Markov kernels: mixing coefficients, powers, and the coupling bound.

Definition 1 and Theorem 2 of Balle, Barthe, Gaboardi & Geumlek 2019 (arXiv 1905.12264) for
kernels given by their matrices. What must never change: the coefficients are upper bounds.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _special, _x64
from jaxdp import _special_subnormal as subnormal
from jaxdp._amplification._arrays import Matrix, Vector
from jaxdp._amplification._mixing import Dobrushin, Doeblin, UltraMixing
from jaxdp._noise._finite_pairs import (
    check_distribution,
    first_largest,
    normalised,
    normalised_logs,
)

_UP = 1.0 + 16.0 * _divergences.SLACK
_LOST = 2.3e-308  # above every number that may be flushed to 0
_SMALL = 1e-290  # entries below may lose digits to such numbers


class MixingCoefficients(NamedTuple):
    """The best conditions that a finite kernel satisfies, each for `amplify_by_mixing`.

    Attributes:
      dobrushin: at the epsilon asked for.
      doeblin: with omega proportional to the column minima.
      ultra_mixing: from the ratio of column minima to maxima.
    """

    dobrushin: Dobrushin
    doeblin: Doeblin
    ultra_mixing: UltraMixing


def _kernel(name: str, kernel: Any) -> Any:
    kernel = _checks.array_of(name, kernel)
    check_distribution(name, kernel, 2)
    return kernel


def mixing_coefficients(
    kernel: ArrayLike, epsilon: ArrayLike = 0.0, *, steps: int = 1
) -> MixingCoefficients:
    r"""The mixing coefficients of a finite Markov kernel, or of its power K^steps.

    Dobrushin: :math:`\max_{x,x'} \sum_y (K(x,y) - e^\varepsilon K(x',y))_+`; Doeblin:
    :math:`1 - \sum_y \min_x K(x,y)`; ultra-mixing: :math:`1 - \min_{y,x,x'} K(x,y)/K(x',y)` (Balle
    et al. 2019, Definition 1), each the smallest possible gamma, rounded up. Differentiable in
    the matrix.

    Args:
      kernel: row-stochastic, shape (..., inputs, outputs); rows are normalised to sum to 1.
      epsilon: >= 0, where the Dobrushin coefficient is taken: `dobrushin_epsilon(...)` of the
        guarantee to amplify, or 0 for total variation. Broadcasts against the batch of kernels.
      steps: a static integer >= 1 (a square kernel if above 1).

    Raises:
      ValueError: for a known kernel with a row that is no distribution, epsilon < 0 or steps < 1.

    Example:
      >>> import jaxdp
      >>> found = jaxdp.mixing_coefficients([[0.75, 0.25], [0.25, 0.75]])
      >>> [round(float(c.gamma), 6) for c in found]
      [0.5, 0.5, 0.666667]
    """
    kernel = _kernel("kernel", kernel)
    _checks.check("epsilon", epsilon, _checks.NON_NEGATIVE)
    _check_steps(kernel, steps, 1)
    dobrushin, doeblin, ultra = _x64.evaluate(
        _coefficients, Matrix(kernel), epsilon, rounding=("up",) * 3, steps=steps
    )
    return MixingCoefficients(Dobrushin(dobrushin, epsilon), Doeblin(doeblin), UltraMixing(ultra))


def _check_steps(kernel: Any, steps: int, least: int) -> None:
    if not isinstance(steps, (int, np.integer)):
        raise ValueError(f"steps must be an integer >= {least}, got {_checks.shown(steps)}")
    _checks.whole_number("steps", steps, least)
    rows, columns = np.shape(kernel)[-2:]
    if rows != columns and steps != 1:
        raise ValueError(f"kernel must be square to be iterated, got {rows} x {columns}")


def _coefficients(matrix, epsilon, steps):
    first = matrix.value
    kernel = _matrix_power(normalised(first), steps)
    scale = jnp.exp(epsilon * (1.0 - 4.0 * _divergences.SLACK))

    def against_all(row):  # 0 times an infinite scale is 0
        scaled = jnp.where(kernel > 0.0, scale * jnp.where(kernel > 0.0, kernel, 1.0), 0.0)
        excess = jnp.where(row > scaled, row - jnp.where(row > scaled, scaled, 0.0), 0.0)
        return first_largest(jnp.sum(excess, axis=-1))

    # what is positive in exact arithmetic but may be 0 here, or be short of digits
    support = _support_power(subnormal.is_positive(first), steps)
    faint = support & (kernel < _SMALL)
    lost = jnp.where(jnp.any(faint), kernel.shape[-1] * _LOST, 0.0)
    dobrushin = first_largest(jax.lax.map(against_all, kernel)) + lost
    low, high = -first_largest(-kernel), first_largest(kernel)
    doeblin = first_largest(jnp.sum(kernel - low, axis=-1)) + lost
    if steps == 1:  # subnormal numbers are multiples of the least one: the ratios are exact
        digits = subnormal.split(first)[0] / jnp.sum(first, axis=-1, keepdims=True)
        least = -first_largest(-jnp.where(kernel > 0.0, jnp.inf, digits))
        most = first_largest(jnp.where(kernel > 0.0, 0.0, digits))
        tiny = (high <= 0.0) & (most > 0.0)
        low, high = jnp.where(tiny, least, low), jnp.where(tiny, most, high)
        unknown = jnp.zeros_like(tiny)
    else:
        unknown = jnp.any(faint, axis=0) & (high < _SMALL)
    used = high > 0.0
    ratios = jnp.where(used, (high - low) / jnp.where(used, high, 1.0), 0.0)
    ultra = jnp.where(jnp.any(unknown), 1.0, first_largest(ratios))
    valid = (epsilon >= 0.0) & ~jnp.any(jnp.isnan(kernel))
    gammas = (jnp.minimum(gamma * _UP, 1.0) for gamma in (dobrushin, doeblin, ultra))
    return tuple(jnp.where(valid, gamma, jnp.nan) for gamma in gammas)


def _support_power(positive, steps):
    """Where the power of a kernel is positive in exact arithmetic."""
    support = jnp.eye(positive.shape[0], dtype=jnp.float64)
    square = positive.astype(jnp.float64)
    if steps == 1:
        return positive
    while steps:
        if steps & 1:
            support = jnp.minimum(support @ square, 1.0)
        steps >>= 1
        square = jnp.minimum(square @ square, 1.0)
    return support > 0.0


def _matrix_power(kernel, steps):
    """K^steps by squaring; rows stay distributions."""
    result = None
    while True:
        if steps & 1:
            result = kernel if result is None else normalised(result @ kernel)
        steps >>= 1
        if not steps:
            return jnp.eye(kernel.shape[-1], dtype=kernel.dtype) if result is None else result
        kernel = normalised(kernel @ kernel)


def kernel_power(kernel: ArrayLike, steps: int) -> jax.Array:
    """K^steps of a finite Markov kernel, by repeated squaring, rows normalised.

    Args:
      kernel: square row-stochastic matrix, shape (..., states, states).
      steps: a static integer >= 0.

    Raises:
      ValueError: for a known kernel with a row that is no distribution, or steps < 0.

    Example:
      >>> import jaxdp
      >>> [[float(x) for x in row] for row in jaxdp.kernel_power([[0.75, 0.25], [0.25, 0.75]], 2)]
      [[0.625, 0.375], [0.375, 0.625]]
    """
    kernel = _kernel("kernel", kernel)
    _check_steps(kernel, steps, 0)
    return _x64.evaluate(_kernel_power, Matrix(kernel), steps=int(steps))


def _kernel_power(matrix, steps):
    return _matrix_power(normalised(matrix.value), steps)


def coupling_bound(
    coupling: ArrayLike, nu: ArrayLike, kernel: ArrayLike, alpha: ArrayLike
) -> jax.Array:
    r"""Theorem 2 of Balle et al. 2019 on a finite set: Rényi divergence after a Markov kernel.

    .. math:: R_\alpha(\mu K\,\|\,\nu K) \le R_\alpha(\omega\,\|\,\nu)
              + \sup_x R_\alpha((H_\pi K)(x)\,\|\,K(x))

    for a coupling pi of omega and mu, H_pi its transport kernel, x in the support of omega: the
    measure-theoretic shift reduction. The diagonal coupling of mu with itself gives the
    data-processing inequality.

    Args:
      coupling: pi, shape (..., states, states); row sums omega, column sums mu; sums to 1.
      nu: distribution of shape (..., states).
      kernel: row-stochastic, shape (..., states, outputs).
      alpha: order > 1, finite; broadcasts against the batches.

    Returns:
      An upper bound on R_alpha(mu K || nu K); inf where omega is not absolutely continuous.

    Raises:
      ValueError: for known arguments outside these domains.

    Example:
      >>> import jaxdp
      >>> bound = jaxdp.coupling_bound(
      ...     [[0.5, 0.25], [0.0, 0.25]], [0.5, 0.5], [[0.6, 0.4], [0.4, 0.6]], 2.0
      ... )
      >>> round(float(bound), 6)
      0.241493
    """
    kernel = _kernel("kernel", kernel)
    coupling, nu = _checks.array_of("coupling", coupling), _checks.array_of("nu", nu)
    check_distribution("nu", nu, 1)
    if np.ndim(coupling) < 2:
        raise ValueError(f"coupling must be a matrix (or a batch), got {_checks.shown(coupling)}")
    check_distribution("coupling", coupling.reshape((*coupling.shape[:-2], -1)), 1)
    _checks.check("alpha", alpha, _checks.FINITE_ORDER)
    args = (Matrix(coupling), Vector(nu), Matrix(kernel), alpha)
    return _x64.evaluate(_coupling_bound, *args, rounding="up")


def _coupling_bound(coupling, nu, kernel, alpha):
    shape = coupling.value.shape
    log_pi = normalised_logs(coupling.value.reshape(-1)).reshape(shape)
    log_k = normalised_logs(kernel.value)
    log_omega = _special.logsumexp(log_pi, axis=1)
    used = log_omega > -jnp.inf

    def row(x):  # in logs, where no product of positive numbers is 0
        transported = log_pi[x] - jnp.where(used[x], log_omega[x], 0.0)
        moved = _special.logsumexp(transported[:, None] + log_k, axis=0)
        return _renyi(jnp.where(used[x], moved, log_k[x]), log_k[x], alpha)

    rows = jax.lax.map(row, jnp.arange(shape[0]))
    source = _renyi(log_omega, normalised_logs(nu.value), alpha)
    total = source + first_largest(jnp.where(used, rows, 0.0))
    total = total * _UP + 64.0 * _divergences.SLACK * alpha / (alpha - 1.0)
    valid = (alpha > 1.0) & ~jnp.any(jnp.isnan(log_k)) & ~jnp.any(jnp.isnan(log_pi))
    return jnp.where(valid & ~jnp.isnan(total), total, jnp.nan)


def _renyi(log_p, log_q, alpha):
    some, both = log_p > -jnp.inf, (log_p > -jnp.inf) & (log_q > -jnp.inf)
    terms = alpha * jnp.where(both, log_p, 0.0) + (1.0 - alpha) * jnp.where(both, log_q, 0.0)
    value = _special.logsumexp(jnp.where(both, terms, -jnp.inf)) / (alpha - 1.0)
    infinite = jnp.any(some & ~both)
    return jnp.where(infinite, jnp.inf, jnp.where(value > 0.0, value, 0.0))
