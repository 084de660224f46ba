"""One Gaussian against a mixture of Gaussians that lie to one side of it: curve, masses, moments.

P = w_0 N(0, 1) + q sum_k w_k N(m_k, 1), Q = N(0, 1), all m_k > 0, sum_k w_k = 1, w_0 + q = 1. At an
outcome z the ratio is X = w_0 + q Y, Y(z) = sum_k w_k e^{l_k}, l_k = m_k z - m_k^2/2, increasing in
z: every threshold of the loss is one of z. There, with G_m(epsilon) the curve of N(m, 1) against
N(0, 1), P - X(z) Q splits into the components' own differences:

* remove, at epsilon = log X(z):   H = q sum_k w_k G_{m_k}(l_k),
* add, at epsilon = -log X(z):     H = sum_k (q w_k e^{l_k} / X(z)) G_{m_k}(-l_k),

sums of positive terms, exact whatever z is. A z a little to the left (remove) or right (add) of the
threshold asked for is the curve at a smaller epsilon, hence a larger one: so rounding is covered.

log Y is convex in z with slopes between the least and the largest m_k: Newton's method from the
right (where the first of the components alone reaches the threshold) falls monotonically to it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _divergences, _rates_line
from jaxdp import _special as special
from jaxdp._divergences import SLACK, exp_log
from jaxdp._mechanisms._base import Direction
from jaxdp._special import log1p

_STEPS = 64  # of Newton's method: where components differ by a factor r, some log r + 6 are taken


class Components(NamedTuple):
    """log q, log w_0 (-inf if there is none), log w_k (K,), m_k > 0 (K,), their relative error.

    Components without weight have log w_k = -inf and any m_k > 0. `ulps` bounds the relative error
    of q, w_0 and w_k, in units of 2^-52.
    """

    log_rate: jax.Array
    log_rest: jax.Array
    log_weights: jax.Array
    shifts: jax.Array
    ulps: jax.Array | float


def _inner_loss(loss: jax.Array, c: Components) -> jax.Array:
    """log Y at log X = loss, -inf where there is none: exact for a loss a roundoff or two away.

    By e^loss - 1 near 0, where w_0 and q nearly cancel; as it stands below.
    """
    low, high = loss < -special.LOG_2, loss > special.LOG_2
    q, rest = jnp.exp(c.log_rate), exp_log(c.log_rest)
    ratio = jnp.expm1(jnp.where(low | high, 0.0, loss)) / q
    some_near = ratio > -1.0
    near = jnp.where(some_near, log1p(jnp.where(some_near, ratio, 0.0)), -jnp.inf)
    exponent = jnp.where(low, jnp.maximum(loss, -700.0), 0.0)
    left = jnp.exp(exponent) - rest
    some = low & (left > 0.0)
    moved = jnp.log(jnp.where(some, left, 1.0)) - c.log_rate + jnp.where(low, loss - exponent, 0.0)
    below = jnp.where(some, moved, -jnp.inf)
    top = jnp.where(high, loss, 1.0)
    far = top - c.log_rate + log1p(-rest * jnp.exp(-top))
    return jnp.where(low, below, jnp.where(high, far, near))


def _log_ratio(z: jax.Array, c: Components) -> tuple[jax.Array, jax.Array, jax.Array]:
    """log Y at z, its slope, and the size of what it is a sum of: rounded to 2^-52 of that."""
    exponents = c.log_weights + c.shifts * (z[..., None] - 0.5 * c.shifts)
    top = jax.lax.stop_gradient(jnp.max(exponents, axis=-1))
    shares = exp_log(exponents - top[..., None])
    total = jnp.sum(shares, axis=-1)
    size = jnp.where(c.log_weights > -jnp.inf, jnp.abs(c.log_weights), 0.0)
    size = size + jnp.abs(c.shifts * z[..., None]) + c.shifts**2
    slope = jnp.sum(shares * c.shifts, axis=-1) / total
    return top + jnp.log(total), slope, jnp.sum(shares * size, axis=-1) / total


def _position(inner: jax.Array, c: Components) -> tuple[jax.Array, jax.Array]:
    """The z at which log Y is `inner` (finite), and a bound on its error; z carries gradients."""
    target, frozen = jax.lax.stop_gradient((inner, c))
    starts = (target[..., None] - frozen.log_weights + 0.5 * frozen.shifts**2) / frozen.shifts
    start = jnp.min(starts, axis=-1)

    def step(_, z: jax.Array) -> jax.Array:
        value, slope, _ = _log_ratio(z, frozen)
        return z - jnp.maximum(value - target, 0.0) / slope

    z = jax.lax.fori_loop(0, _STEPS, step, start)
    value, slope, size = _log_ratio(z, frozen)
    error = jnp.abs(value - target) + SLACK * (
        4.0 * size + 2.0 * jnp.abs(target) + 2.0 * frozen.ulps + 8.0
    )
    error = error / slope + 2.0 * SLACK * jnp.abs(z)
    # one more step, of no length, has the derivatives of the implicit function
    moved = (_log_ratio(z, c)[0] - value) - (inner - target)
    return z - moved / slope, jax.lax.stop_gradient(error)


def log_hockey_stick(
    epsilon: jax.Array, direction: Direction, c: Components, slack: float
) -> jax.Array:
    """log H at any real epsilon: see the module. With slack an upper (> 0) or lower (< 0) bound."""
    remove = direction == "remove"
    side = -1.0 if remove else 1.0
    loss = epsilon if remove else 0.0 - epsilon
    size = jnp.abs(loss)
    near = jnp.where(size > special.LOG_2, 1.0, 0.0)
    loss = loss + side * slack * jax.lax.stop_gradient(4.0 * size + (4.0 + 2.0 * c.ulps) * near)
    inner = _inner_loss(loss, c)
    some = inner > -jnp.inf
    z, error = _position(jnp.where(some, inner, 0.0), c)
    z = z + side * slack / SLACK * error
    used = c.log_weights > -jnp.inf
    exponent = c.shifts * (z - 0.5 * c.shifts)
    off = jax.lax.stop_gradient(4.0 * jnp.abs(c.shifts * z) + 4.0 * c.shifts**2)
    own = exponent if remove else 0.0 - exponent
    curve = _divergences.gaussian_log_hockey_stick(own - slack * off, c.shifts, slack)
    weights = c.log_rate + c.log_weights
    allowance = 12.0 + 2.0 * c.ulps + 2.0 * jnp.abs(weights)
    if not remove:
        weights = weights + exponent + epsilon
        allowance = allowance + off + jnp.abs(epsilon)
    allowance = jnp.where(used, jax.lax.stop_gradient(allowance), 0.0)
    value = special.logsumexp(weights + jnp.where(used, curve, 0.0) + slack * allowance)
    if remove:
        least = special.log1mexp(jnp.where(epsilon < 0.0, epsilon, -1.0)) * (1.0 - 4.0 * slack)
        value = jnp.where(some, value, least)
    else:
        value = jnp.where(some, value, -jnp.inf)
    return jnp.minimum(value, 0.0)


def log_masses(lo: jax.Array, hi: jax.Array, c: Components) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi}, elementwise."""
    loss = jnp.stack(jnp.broadcast_arrays(lo, hi))
    inner = _inner_loss(jnp.where(jnp.isinf(loss), 0.0, loss), c)
    some = (inner > -jnp.inf) & jnp.isfinite(loss)
    z, _ = _position(jnp.where(some, inner, 0.0), c)
    z = jnp.where(some, z, jnp.where(loss == jnp.inf, jnp.inf, -jnp.inf))
    shifts = jnp.concatenate([jnp.zeros(1), c.shifts])
    logs = special.log_ndtr_interval(z[0][..., None] - shifts, z[1][..., None] - shifts)
    weights = jnp.concatenate([c.log_rest[None], c.log_rate + c.log_weights])
    return logs[..., 0], special.logsumexp(weights + logs, axis=-1)


def mass_error(c: Components) -> jax.Array:
    """Relative: by how much rounding moves the weights, and the loss at which an outcome is.

    The part of it that grows with z^2 is within what the masses so far out are allowed anyway.
    """
    used = c.log_weights > -jnp.inf
    sizes = jnp.where(used, jnp.abs(c.log_weights) + 4.0 * c.shifts**2, 0.0)
    return jax.lax.stop_gradient(SLACK * (4.0 * jnp.max(sizes) + 4.0 * c.ulps + 32.0))


# --- Rényi moments --------------------------------------------------------------------------------


def _loss(z: jax.Array, c: Components) -> jax.Array:
    """log X at z, relative to itself also where it is small: next to 0 as a sum of e^{l_k} - 1."""
    inner = _log_ratio(z, c)[0]
    far = _divergences.log_add(c.log_rest, c.log_rate + inner)
    exponents = c.shifts * (z[..., None] - 0.5 * c.shifts)
    small = jnp.max(jnp.abs(exponents), axis=-1) < 30.0
    exponents = jnp.where(small[..., None], exponents, 0.0)
    change = jnp.sum(exp_log(c.log_rate + c.log_weights) * jnp.expm1(exponents), axis=-1)
    near = small & (jnp.abs(change) < 0.5)
    return jnp.where(near, log1p(jnp.where(near, change, 0.0)), far)


def rate(s: jax.Array, c: Components) -> jax.Array:
    """k(s) by quadrature over z, or convexity where it is not resolved.

    X, a sum of exponentials with positive coefficients and slopes from 0 to m, the largest m_k, has
    no zero within pi/m of the real line. For s < 0 the power X^s grows off the line, at most by
    |s| (m y)^2/4 at a distance y that panels reach. (Each component alone, X^s being convex:
    E X^s <= w_0 + q sum_k w_k e^{s (s - 1) m_k^2/2}.)
    """
    used = c.log_weights > -jnp.inf
    order, frozen = jax.lax.stop_gradient((s, c))
    m = jnp.max(jnp.where(used, frozen.shifts, 0.0))
    ends = jnp.minimum(order, 0.0) * m - 14.0, jnp.maximum(order, 1.0) * m + 14.0
    scale = jnp.exp(frozen.log_rate) * jnp.minimum(m, 1.0)
    density = _rates_line.pace(jnp.pi / m, 0.5 * jnp.maximum(-order, 0.0) * m * m)

    def laws(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _loss(z, c), special.log_normal_density(z)

    rounding = 4.0 * m * m + 4.0 * c.ulps
    value, resolved = _rates_line.rate(s, laws, ends, scale, density, rounding)
    halves = 0.5 * jnp.where(used, c.shifts, 1.0) ** 2
    bound = _rates_line.moments_rate(s, c.log_rate + c.log_weights, halves)
    return _rates_line.least(value, resolved, bound)


def sampled(c: Components, q: jax.Array) -> Components:
    """The components of the Poisson-subsampled pair."""
    log_q = jnp.log(q)
    rest = _divergences.log_add(_divergences.log_positive(1.0 - q), log_q + c.log_rest)
    return c._replace(log_rate=c.log_rate + log_q, log_rest=rest, ulps=c.ulps + 4.0)
