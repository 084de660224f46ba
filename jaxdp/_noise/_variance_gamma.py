"""The difference of two Gamma(beta) variables (variance-gamma law), unit scale, shift x.

With nu = beta - 1/2 the density is (|y|/2)^nu K_nu(|y|)/(sqrt(pi) Gamma(beta)), and the loss of the
pair (Y + x, Y) at y is l(y) = log f(y - x) - log f(y), antisymmetric about x/2. On y > x/2 it rises
up to y = x; beyond it rises on to its limit x (beta >= 1, f log-concave) or falls to it (beta < 1,
f log-convex on y > 0; f(0), hence l(x), is infinite for beta <= 1/2).

All integrals run over log distances to the points 0 and x where f is singular, by
double-exponential rules, so that any beta > 0 is integrated to full relative accuracy.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _special
from jaxdp._noise._sums import certified
from jaxdp._special_bessel import log_bessel_k
from jaxdp._special_gamma import log_gamma

_NODES = 512
_FALL = 42.0  # log of what the ends of a quadrature may leave out
_FAR = 2.3  # exp(pi/2 sinh 2.3) is 2000: the far end, in units of the width of the law
_DEEP = 1e6  # searches in log distance start from -1e6
_SECTIONS, _ROUNDS = 32, 12
# the slowest power of the distance that the node set of all Rényi orders resolves
SLOWEST = 1e-2


def _log_shape(beta: jax.Array, log_y: jax.Array) -> jax.Array:
    """log f(y) + |y| up to a constant, from log |y|."""
    nu = beta - 0.5
    return nu * (log_y - _special.LOG_2) + log_bessel_k(nu, log_y)


def _log_constant(beta: jax.Array) -> jax.Array:
    return -0.5 * np.log(np.pi) - log_gamma(beta)


def log_density(beta: jax.Array, log_y: jax.Array) -> jax.Array:
    """log f(y) of unit scale, from log |y|."""
    return _log_constant(beta) + _log_shape(beta, log_y) - jnp.exp(log_y)


def peak_loss(beta: jax.Array, x: jax.Array) -> jax.Array:
    """l(x) = log f(0)/f(x); infinite for beta <= 1/2.

    f(0) = Gamma(beta - 1/2)/(2 sqrt(pi) Gamma(beta)).
    """
    finite = beta > 0.5
    safe = jnp.where(finite, beta, 1.0)
    shape = _log_shape(safe, jnp.log(x)) - x
    value = log_gamma(safe - 0.5) - _special.LOG_2 - shape
    return jnp.where(finite, value, jnp.inf)


def largest_loss(beta: jax.Array, x: jax.Array) -> jax.Array:
    """The pure-DP epsilon: x for beta >= 1, l(x) for beta < 1."""
    return jnp.where(beta >= 1.0, x, peak_loss(jnp.where(beta >= 1.0, 0.75, beta), x))


def _log_sum(log_a: jax.Array, b: jax.Array) -> jax.Array:
    """log(e^log_a + b) for b > 0."""
    return jnp.logaddexp(log_a, jnp.log(b))


def _before(beta, x, log_d):
    """Loss at y = x - d, 0 < d <= x/2."""
    d = jnp.exp(log_d)
    rest = jnp.log(x - d)
    return (x - 2.0 * d) + _log_shape(beta, log_d) - _log_shape(beta, rest)


def _after(beta, x, log_d):
    """Loss at y = x + d, d > 0."""
    return x + _log_shape(beta, log_d) - _log_shape(beta, _log_sum(log_d, x))


def _crossing(predicate, low, high):
    """Where a predicate of log distance, false then true, turns true: the true side."""
    fractions = jnp.arange(1, _SECTIONS, dtype=jnp.float64) / _SECTIONS

    def body(_, ends):
        below, above = ends
        points = below + (above - below) * fractions
        false = ~predicate(points)
        low = jnp.max(jnp.where(false, points, below))
        return low, jnp.min(jnp.where(false | (points <= low), above, points))

    ends = jnp.broadcast_arrays(*jax.lax.stop_gradient((1.0 * low, 1.0 * high)))
    return jax.lax.fori_loop(0, _ROUNDS, body, tuple(ends))[1]


def _half_line(rate, width):
    """log d and log weights for int_0^inf, summands at least like d^rate dlog d near 0."""
    low = -jnp.arcsinh(_FALL / rate / (0.5 * jnp.pi))
    step = (_FAR - low) / (_NODES - 1)
    t = low + step * jnp.arange(_NODES, dtype=jnp.float64)
    log_d = jnp.log(width) + 0.5 * jnp.pi * jnp.sinh(t)
    return log_d, log_d + jnp.log(0.5 * jnp.pi * jnp.cosh(t)) + jnp.log(step)


def _interval(rate, log_length):
    """log d and log weights for int_0^length, the same near 0, smooth at the other end."""
    low = -jnp.arcsinh(_FALL / rate / jnp.pi)
    high = jnp.arcsinh(_FALL / jnp.pi)
    step = (high - low) / (_NODES - 1)
    t = low + step * jnp.arange(_NODES, dtype=jnp.float64)
    z = jnp.pi * jnp.sinh(t)
    inside = -jax.nn.softplus(-z)
    log_weight = inside - jax.nn.softplus(z) + jnp.log(jnp.pi * jnp.cosh(t)) + jnp.log(step)
    return log_length + inside, log_length + log_weight


def _frozen(nodes):
    return jax.lax.stop_gradient(nodes)


def log_hockey_stick(
    epsilon: jax.Array, beta: jax.Array, x: jax.Array, slack: float = 0.0
) -> jax.Array:
    """log int (f(y - x) - e^epsilon f(y))_+ dy for any real epsilon."""
    value = _upper_half(jnp.abs(epsilon), beta, x, slack)
    return _divergences._reflect(epsilon, value, slack)


def _upper_half(epsilon, beta, x, slack):
    concave = beta >= 1.0
    if slack:
        epsilon = epsilon - slack * (64.0 + 16.0 * (epsilon + x))
    highest = largest_loss(beta, x)
    peak_in = peak_loss(beta, x) > epsilon
    log_half = jnp.log(0.5 * x)
    deep, far = -_DEEP * jnp.ones_like(x), jnp.log(1e9 * (1.0 + x + beta))
    # before x the loss falls with the distance, after x it rises or falls
    before = _crossing(lambda u: _before(beta, x, u) <= epsilon, deep, log_half)
    after = _crossing(lambda u: (_after(beta, x, u) > epsilon) == concave, deep, far)
    rate = jnp.minimum(2.0 * beta, 1.0)
    width = jnp.maximum(jnp.sqrt(2.0 * beta), 1.0)
    near_u, near_w = _frozen(_interval(rate, before))
    gap = epsilon - _before(beta, x, near_u)
    near = _terms(beta, near_u, near_w, gap, peak_in)
    # after x: (0, inf), or beyond `after`, or up to it
    whole = _half_line(rate, width)
    start = jnp.where(concave & ~peak_in, jnp.exp(jnp.minimum(after, 60.0)), 0.0)
    ray = jnp.logaddexp(whole[0], _divergences.log_positive(start)), whole[1]
    piece = _interval(rate, after)
    bounded = ~concave & (epsilon >= x)
    far_u, far_w = _frozen([jnp.where(bounded, b, a) for a, b in zip(ray, piece, strict=True)])
    gap = epsilon - _after(beta, x, far_u)
    value = _special.logsumexp(
        jnp.concatenate([near, _terms(beta, far_u, far_w, gap, concave | peak_in)])
    )
    value = certified(value, slack)
    return jnp.where(epsilon >= highest, -jnp.inf, jnp.minimum(value, 0.0))


def _terms(beta, log_d, log_weights, gap, used):
    """log of f(d) (1 - e^gap) weight, the summands where the loss exceeds epsilon."""
    inside = (gap < 0.0) & used
    terms = log_density(beta, jnp.minimum(log_d, 300.0)) + log_weights
    return jnp.where(inside, terms + _special.log1mexp(jnp.where(inside, gap, -1.0)), -jnp.inf)


def nodes(beta: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Losses and log Q-weights, for every Rényi order: y < 0, (0, x/2), (x/2, x), y > x."""
    width = jnp.maximum(jnp.sqrt(2.0 * beta), 1.0)
    ray_u, ray_w = _frozen(_half_line(SLOWEST, width))
    piece_u, piece_w = _frozen(_interval(SLOWEST, jnp.log(0.5 * x)))
    ray_u = jnp.minimum(ray_u, 300.0)
    after, before = _after(beta, x, ray_u), _before(beta, x, piece_u)
    log_f = log_density(beta, jnp.concatenate([ray_u, piece_u]))
    ray_f, piece_f = log_f[:_NODES], log_f[_NODES:]
    loss = jnp.concatenate([-after, -before, before, after])
    # f(y) = f(y - x) e^-l: the Q-density at distance d from x follows from that at d from 0
    log_q = jnp.concatenate(
        [ray_f + ray_w, piece_f + piece_w, piece_f + piece_w - before, ray_f + ray_w - after]
    )
    return loss, log_q


# --- masses -------------------------------------------------------------------------------------

_MASS_NODES = 128


def log_interval(beta: jax.Array, low: jax.Array, high: jax.Array) -> jax.Array:
    """log P(low < Y <= high), elementwise: Y is N(0, 2 G) given G ~ Gamma(beta).

    The trapezoidal rule over log g around the peak of g^beta e^{-g - a^2/(4g)}, with a the end
    next to 0: there the exponent falls by A (e^d - 1 - d) + B (e^-d - 1 + d) in d = log g - peak.
    """
    empty = ~(low < high)
    low, high = jnp.where(empty, 0.0, low), jnp.where(empty, 1.0, high)
    a = jnp.maximum(jnp.maximum(low, -high), 0.0)
    a = jax.lax.stop_gradient(jnp.minimum(a, 1e150))
    shape = jax.lax.stop_gradient(beta)
    top = 0.5 * (shape + jnp.sqrt(shape * shape + a * a))
    other = 0.25 * a * a / top

    def spread(y):
        return y + jnp.sqrt(2.0 * y)

    y_top, y_other = _FALL / top, _FALL / jnp.maximum(other, 1e-300)
    right = jnp.log1p(spread(y_top))
    left = jnp.minimum(spread(y_top), jnp.log1p(spread(y_other)))
    core = jnp.minimum((left + right) / 8.0, 2.0)
    start, end = -jnp.arcsinh(left / core), jnp.arcsinh(right / core)
    step = (end - start) / (_MASS_NODES - 1)
    theta = start[..., None] + step[..., None] * jnp.arange(_MASS_NODES, dtype=jnp.float64)
    v = jnp.log(top)[..., None] + core[..., None] * jnp.sinh(theta)
    scale = jnp.exp(-0.5 * (v + _special.LOG_2))
    inner = _special.log_ndtr_interval(low[..., None] * scale, high[..., None] * scale)
    values = beta * v - jnp.exp(v) + inner + jnp.log(jnp.cosh(theta))
    total = _special.logsumexp(values, axis=-1) + jnp.log(step * core) - log_gamma(beta)
    return jnp.where(empty, -jnp.inf, jnp.minimum(total, 0.0))


def log_masses(
    lo: jax.Array, hi: jax.Array, beta: jax.Array, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi}, elementwise; the loss is antisymmetric about x/2."""
    lo, hi = jnp.broadcast_arrays(lo, hi)
    q_right, p_right = _positive_masses(jnp.maximum(lo, 0.0), jnp.maximum(hi, 0.0), beta, x)
    # {lo < L <= hi} below 0 mirrors {-hi <= L < -lo}, half-open the other way
    start, end = (jnp.maximum(jnp.nextafter(-e, jnp.full_like(e, -1.0)), 0.0) for e in (hi, lo))
    p_left, q_left = _positive_masses(start, end, beta, x)
    return jnp.logaddexp(q_right, q_left), jnp.logaddexp(p_right, p_left)


def _positive_masses(lo, hi, beta, x):
    """The same for 0 <= lo <= hi: an interval before x, and where the loss is monotone or falls."""
    before_lo, after_lo = _positions(lo, beta, x)
    before_hi, after_hi = _positions(hi, beta, x)
    parts = []
    for shift in (0.0, x):
        first = log_interval(beta, before_lo - shift, before_hi - shift)
        second = log_interval(beta, after_hi - shift, after_lo - shift)
        parts.append(jnp.logaddexp(first, second))
    return parts[0], parts[1]


def _positions(level, beta, x):
    """{L > level} = (first, second) for level >= 0: both ends (infinite ones where none)."""
    shape = level.shape
    flat = jnp.ravel(level)

    def one(bound):
        concave = beta >= 1.0
        top = peak_loss(beta, x)
        deep, far = -_DEEP * jnp.ones_like(x), jnp.log(1e9 * (1.0 + x + beta))
        before = _crossing(lambda u: _before(beta, x, u) <= bound, deep, jnp.log(0.5 * x))
        after = _crossing(lambda u: (_after(beta, x, u) > bound) == concave, deep, far)
        inside = x - jnp.exp(before)
        outside = x + jnp.exp(after)
        infinite = jnp.asarray(jnp.inf)
        first = jnp.where(top > bound, inside, jnp.where(concave & (bound < x), outside, infinite))
        second = jnp.where(concave | (bound < x), infinite, outside)
        first = jnp.where(~concave & (top <= bound), infinite, first)
        return first, jnp.where(~concave & (top <= bound), infinite, second)

    first, second = jax.vmap(one)(flat)
    return first.reshape(shape), second.reshape(shape)
