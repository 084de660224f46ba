"""The difference of two Gamma(beta) variables (variance-gamma law), unit scale, shift x.

With nu = beta - 1/2 the density is (|y|/2)^nu K_nu(|y|)/(sqrt(pi) Gamma(beta)), and the loss of the
pair (Y + x, Y) at y is l(y) = log f(y - x) - log f(y), antisymmetric about x/2. On y > x/2 it rises
up to y = x; beyond it rises on to its limit x (beta >= 1, f log-concave) or falls to it (beta < 1,
f log-convex on y > 0; f(0), hence l(x), is infinite for beta <= 1/2).

All integrals run over log distances to the points 0 and x where f is singular, by
double-exponential rules, so that any beta > 0 is integrated to full relative accuracy.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _special
from jaxdp._noise._sums import certified, rounded_up
from jaxdp._special import log1p
from jaxdp._special_bessel import DEBYE_FROM, log_bessel_k, log_debye_series
from jaxdp._special_gamma import log_gamma, stirling_remainder

_NODES = 512
_LEAST = 1e-150  # |nu|
_FALL = 42.0  # log of what the ends of a quadrature may leave out
_FAR = 2.3  # exp(pi/2 sinh 2.3) is 2000: the far end, in units of the width of the law
DEEP = 1e6  # searches in log distance start from -1e6
_SECTIONS, _ROUNDS = 32, 12
# the slowest power of the distance that the node set of all Rényi orders resolves
SLOWEST = 1e-2


def _orders(beta: jax.Array) -> tuple[jax.Array, jax.Array]:
    """|nu|, or a little more, and nu - |nu|."""
    nu = beta - 0.5
    return jnp.maximum(jnp.abs(nu), _LEAST), jnp.minimum(2.0 * nu, 0.0)


def log_constant(beta: jax.Array) -> jax.Array:
    """log of nu^nu e^-nu/(pi^{1/2} Gamma(beta)), |nu| for nu, without large terms.

    log f(y) + |y| is that more than `log_shape`.
    """
    large = beta > 1.0
    safe = jnp.where(large, beta, 2.0)
    value = (safe - 0.5) * log1p(-0.5 / safe) + 0.5 - _special.LOG_SQRT_2PI
    value -= stirling_remainder(safe)
    small, order = jnp.where(large, 1.0, beta), _orders(jnp.where(large, 1.0, beta))[0]
    near = order * jnp.log(order) - order - log_gamma(small)
    return jnp.where(large, value, near) - 0.5 * np.log(np.pi)


def leading(beta: jax.Array, log_y: jax.Array) -> jax.Array:
    """The leading term of e^y f(y) by DLMF 10.41.4, up to `log_constant`; finite at nu = 0.

    With w = (nu^2 + y^2)^{1/2} the exponent is nu log((nu + w)/2) - w, less nu log nu - nu.
    """
    order, twice = _orders(beta)
    y = jnp.exp(log_y)
    w = jnp.sqrt(order * order + y * y)
    d = y * (y / (w + order))  # w - nu
    value = order * log1p(0.5 * d / order) + order * ((y + d) / (w + y))
    return value + twice * (log_y - _special.LOG_2) - 0.25 * jnp.log(1.0 + w * w)


def relative_shape(beta: jax.Array, log_y: jax.Array) -> jax.Array:
    """log of e^y f(y) over its leading term: by Debye's series where it holds, or a quadrature."""
    order, y = _orders(beta)[0], jnp.exp(log_y)
    w = jnp.sqrt(order * order + y * y)
    far = w >= DEBYE_FROM
    root = jnp.where(far, w, DEBYE_FROM)
    series = log_debye_series(-root, jnp.where(far, order / root, 0.0) ** 2)
    series += 0.5 * (jnp.log(0.5 * jnp.pi) - jnp.log(root) + 0.5 * jnp.log(1.0 + root * root))
    near = _plain_shape(beta, log_y) - log_gamma(beta) - 0.5 * np.log(np.pi) - log_constant(beta)
    return jnp.where(far, series, near - leading(beta, log_y))


def _plain_shape(beta: jax.Array, log_y: jax.Array) -> jax.Array:
    """log of e^y (y/2)^nu K_nu(y)."""
    nu = beta - 0.5
    return nu * (log_y - _special.LOG_2) + log_bessel_k(nu, log_y)


def log_shape(beta: jax.Array, log_y: jax.Array) -> jax.Array:
    """log f(y) + |y|, less `log_constant`, from log |y|."""
    return leading(beta, log_y) + relative_shape(beta, log_y)


def log_density(beta: jax.Array, log_y: jax.Array) -> jax.Array:
    """log f(y) of unit scale, from log |y|."""
    return log_constant(beta) + log_shape(beta, log_y) - jnp.exp(log_y)


def peak_loss(beta: jax.Array, x: jax.Array) -> jax.Array:
    """l(x) = log f(0)/f(x); infinite for beta <= 1/2.

    f(0) = Gamma(beta - 1/2)/(2 sqrt(pi) Gamma(beta)).
    """
    finite = beta > 0.5
    safe = jnp.where(finite, beta, 1.0)
    shape = _plain_shape(safe, jnp.log(x)) - x
    value = log_gamma(safe - 0.5) - _special.LOG_2 - shape
    return jnp.where(finite, value, jnp.inf)


def largest_loss(beta: jax.Array, x: jax.Array) -> jax.Array:
    """The pure-DP epsilon: x for beta >= 1, l(x) for beta < 1."""
    peak = peak_loss(jnp.where(beta >= 1.0, 0.75, beta), x)
    return jnp.where(beta >= 1.0, x, rounded_up(peak))


def losses(shape_of, x, log_d, after):
    """Loss at y = x + d (after) or x - d, d <= x/2 (before), and `log_shape` of d.

    By a function for the latter: of here, or of `_variance_gamma_masses`.
    """
    d = jnp.exp(log_d)
    log_rest = jnp.log(x - jnp.minimum(d, 0.5 * x))
    other = jnp.where(after, jnp.logaddexp(log_d, jnp.log(x)), log_rest)
    shapes = shape_of(jnp.stack([log_d, other]))
    return jnp.where(after, x, x - 2.0 * d) + (shapes[0] - shapes[1]), shapes[0]


def _losses(beta, x, log_d, after):
    return losses(functools.partial(log_shape, beta), x, log_d, after)


def _crossings(epsilon, beta, x):
    """Log distances from x, before and after it, at which the loss crosses epsilon.

    Going away from x the loss falls before x; after x it rises (beta >= 1) or falls. Searched by
    sections of 32, both together; the far end of a search where there is no crossing.
    """
    after = jnp.asarray([[False], [True]])
    rising = after & (beta >= 1.0)
    fractions = jnp.arange(1, _SECTIONS, dtype=jnp.float64) / _SECTIONS

    def body(_, ends):
        below, above = (end[:, None] for end in ends)
        points = below + (above - below) * fractions
        false = (_losses(beta, x, points, after)[0] > epsilon) != rising
        low = jnp.max(jnp.where(false, points, below), axis=1)
        later = jnp.where(false | (points <= low[:, None]), above, points)
        return low, jnp.min(later, axis=1)

    high = jnp.stack([jnp.log(0.5 * x), jnp.log(1e9 * (1.0 + x + beta))])
    ends = jax.lax.stop_gradient((jnp.full_like(high, -DEEP), high))
    return jax.lax.fori_loop(0, _ROUNDS, body, ends)[1]


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
    peak = peak_loss(beta, x)
    highest = jnp.where(concave, x, peak)
    peak_in = peak > epsilon
    before, after = _crossings(*jax.lax.stop_gradient((epsilon, beta, x)))
    rate = jnp.minimum(2.0 * beta, 1.0)
    width = jnp.maximum(jnp.sqrt(2.0 * beta), 1.0)
    near = _interval(rate, before)
    # after x: (0, inf), or beyond `after`, or up to it
    whole = _half_line(rate, width)
    start = jnp.where(concave & ~peak_in, jnp.exp(jnp.minimum(after, 60.0)), 0.0)
    ray = jnp.logaddexp(whole[0], _divergences.log_positive(start)), whole[1]
    piece = _interval(rate, after)
    bounded = ~concave & (epsilon >= x)
    far = [jnp.where(bounded, b, a) for a, b in zip(ray, piece, strict=True)]
    log_d, log_weights = _frozen([jnp.concatenate(pair) for pair in zip(near, far, strict=True)])
    log_d = jnp.minimum(log_d, 300.0)
    is_after = jnp.arange(2 * _NODES) >= _NODES
    loss, shape = _losses(beta, x, log_d, is_after)
    gap = epsilon - loss
    inside = (gap < 0.0) & (peak_in | (is_after & concave))
    terms = log_constant(beta) + shape - jnp.exp(log_d) + log_weights
    terms = terms + _special.log1mexp(jnp.where(inside, gap, -1.0))
    value = certified(_special.logsumexp(jnp.where(inside, terms, -jnp.inf)), slack)
    return jnp.where(epsilon >= highest, -jnp.inf, jnp.minimum(value, 0.0))


def nodes(beta: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Losses and log Q-weights, for every Rényi order: y < 0, (0, x/2), (x/2, x), y > x."""
    width = jnp.maximum(jnp.sqrt(2.0 * beta), 1.0)
    ray_u, ray_w = _frozen(_half_line(SLOWEST, width))
    piece_u, piece_w = _frozen(_interval(SLOWEST, jnp.log(0.5 * x)))
    log_d = jnp.concatenate([piece_u, jnp.minimum(ray_u, 300.0)])
    loss, shape = _losses(beta, x, log_d, jnp.arange(2 * _NODES) >= _NODES)
    log_f = log_constant(beta) + shape - jnp.exp(log_d) + jnp.concatenate([piece_w, ray_w])
    # y at distance d from 0 has the loss -l of its mirror at d from x, where f(y) = f(d) e^-l
    return jnp.concatenate([-loss, loss]), jnp.concatenate([log_f, log_f - loss])


_MASS_NODES, _AT_A_TIME = 384, 1024


def log_survival(beta: jax.Array, y: jax.Array) -> jax.Array:
    """log P(Y > y) of y > 0, elementwise; a few at a time, since each holds a quadrature."""
    each = jax.checkpoint(lambda y: _log_survival(beta, y))
    return jax.lax.map(each, y.ravel(), batch_size=_AT_A_TIME).reshape(y.shape)


def _log_survival(beta: jax.Array, y: jax.Array) -> jax.Array:
    """The same for all at once: Y is N(0, 2 G) given G ~ Gamma(beta).

    The trapezoidal rule over log g around the peak of g^beta e^{-g - y^2/(4g)}: there the exponent
    falls by A (e^d - 1 - d) + B (e^-d - 1 + d) in d = log g - peak.
    """
    a = jax.lax.stop_gradient(jnp.minimum(y, 1e150))
    shape = jax.lax.stop_gradient(beta)
    peak = 0.5 * (shape + jnp.sqrt(shape * shape + a * a))
    other = 0.25 * a * a / peak

    def spread(y):
        return y + jnp.sqrt(2.0 * y)

    y_top, y_other = _FALL / peak, _FALL / jnp.maximum(other, 1e-300)
    right = log1p(spread(y_top))
    left = jnp.minimum(spread(y_top), log1p(spread(y_other)))
    core = jnp.minimum((left + right) / 8.0, 2.0)
    start, end = -jnp.arcsinh(left / core), jnp.arcsinh(right / core)
    step = (end - start) / (_MASS_NODES - 1)
    theta = start[..., None] + step[..., None] * jnp.arange(_MASS_NODES, dtype=jnp.float64)
    bend = core[..., None] * jnp.sinh(theta)
    scale = jnp.exp(-0.5 * (jnp.log(peak)[..., None] + bend + _special.LOG_2))
    inner = _special.log_ndtr_interval(y[..., None] * scale, jnp.inf)
    # beta v - e^v - log Gamma(beta) at v = log g, with its largest terms taken out
    tau = jnp.log(peak / beta)[..., None] + bend
    values = beta * (tau - jnp.expm1(tau)) + inner + jnp.log(jnp.cosh(theta))
    constant = 0.5 * jnp.log(beta) - _special.LOG_SQRT_2PI - stirling_remainder(beta)
    total = _special.logsumexp(values, axis=-1) + jnp.log(step * core) + constant
    return jnp.minimum(total, 0.0)
