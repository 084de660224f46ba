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
from jaxdp._amplification._arrays import Matrix, Vector
from jaxdp._amplification._finite import check_distribution, normalised
from jaxdp._amplification._mixing import Dobrushin, Doeblin, UltraMixing

_UP = 1.0 + 16.0 * _divergences.SLACK


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
    if isinstance(kernel, (list, tuple)):
        kernel = np.asarray(kernel, np.float64)
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
    if not isinstance(steps, (int, np.integer)) or isinstance(steps, bool) or steps < least:
        raise ValueError(f"steps must be an integer >= {least}, got {steps!r}")
    rows, columns = np.shape(kernel)[-2:]
    if rows != columns and steps != 1:
        raise ValueError(f"kernel must be square to be iterated, got {rows} x {columns}")


def _coefficients(matrix, epsilon, steps):
    kernel = _matrix_power(normalised(matrix.value), steps)
    log_kernel = _divergences.log_positive(kernel)
    scaled = jnp.exp(epsilon * (1.0 - 4.0 * _divergences.SLACK) + log_kernel)

    def against_all(row):
        return jnp.max(jnp.sum(jnp.maximum(row - scaled, 0.0), axis=-1))

    dobrushin = jnp.max(jax.lax.map(against_all, kernel))
    low, high = jnp.min(kernel, axis=0), jnp.max(kernel, axis=0)
    doeblin = jnp.max(jnp.sum(kernel - low, axis=-1))
    used = high > 0.0
    ultra = jnp.max(jnp.where(used, (high - low) / jnp.where(used, high, 1.0), 0.0))
    valid = (epsilon >= 0.0) & ~jnp.any(jnp.isnan(kernel))
    gammas = (jnp.minimum(gamma * _UP, 1.0) for gamma in (dobrushin, doeblin, ultra))
    return tuple(jnp.where(valid, gamma, jnp.nan) for gamma in gammas)


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

    :math:`R_\alpha(\mu K\|\nu K) \le R_\alpha(\omega\|\nu) +
    \sup_x R_\alpha((H_\pi K)(x)\|K(x))` for a coupling pi of omega and mu, H_pi its transport
    kernel, x in the support of omega: the measure-theoretic shift reduction. The diagonal
    coupling of mu with itself gives the data-processing inequality.

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
    coupling, nu = (
        np.asarray(v, np.float64) if isinstance(v, (list, tuple)) else v for v in (coupling, nu)
    )
    check_distribution("nu", nu, 1)
    if np.ndim(coupling) < 2:
        raise ValueError(f"coupling must be a matrix (or a batch), got {coupling!r}")
    check_distribution("coupling", coupling.reshape((*coupling.shape[:-2], -1)), 1)
    _checks.check("alpha", alpha, _checks.FINITE_ORDER)
    args = (Matrix(coupling), Vector(nu), Matrix(kernel), alpha)
    return _x64.evaluate(_coupling_bound, *args, rounding="up")


def _coupling_bound(coupling, nu, kernel, alpha):
    pi = normalised(coupling.value.reshape(-1)).reshape(coupling.value.shape)
    k = normalised(kernel.value)
    omega = jnp.sum(pi, axis=1)
    used = omega > 0.0
    moved = (pi / jnp.where(used, omega, 1.0)[:, None]) @ k
    rows = jax.vmap(lambda p, q: _renyi(p, q, alpha))(jnp.where(used[:, None], moved, k), k)
    total = _renyi(omega, normalised(nu.value), alpha) + jnp.max(jnp.where(used, rows, 0.0))
    total = total * _UP + 64.0 * _divergences.SLACK * alpha / (alpha - 1.0)
    return jnp.where(alpha > 1.0, total, jnp.nan)


def _renyi(p, q, alpha):
    log_p, log_q = _divergences.log_positive(p), _divergences.log_positive(q)
    both = (p > 0.0) & (q > 0.0)
    terms = alpha * jnp.where(both, log_p, 0.0) + (1.0 - alpha) * jnp.where(both, log_q, 0.0)
    value = _special.logsumexp(jnp.where(both, terms, -jnp.inf)) / (alpha - 1.0)
    return jnp.where(jnp.any((p > 0.0) & (q <= 0.0)), jnp.inf, jnp.maximum(value, 0.0))
