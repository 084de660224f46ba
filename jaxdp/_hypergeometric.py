"""The probabilities of the generalised discrete Laplace law, in log space.

    f(k) = e^{-ak} g(k),   g(k) = (1-q)^{2 beta} (beta)_k/k! 2F1(beta, beta + k; k + 1; z),

beta > 0, a > 0, k >= 0 real, q = e^{-a}, z = q^2. The function is a Legendre function, and both
Euler's integral (DLMF 15.6.1) and Laplace's (DLMF 14.12.7, after tau = tan^2(phi/2)) write it as a
positive integral of one shape,

    J(A, B, c, E) = int e^{A v} (1 + c e^v)^B (1 + e^v)^-E dv.

With T = tanh(a/2), and b = beta or, where beta < 1/2, b = 1 - beta (Euler's transformation 15.8.1:
g(beta, k) = g(b, k) (beta)_k/(b)_k T^{2 beta - 1}),

    k >= b - 1/2:  g = T^b Gamma(k+b)/(Gamma(k+1-b) Gamma(b)^2) J(b, b-1, 1/(1-z), b+k),
    k <  b - 1/2:  g = T (b)_k/(k! pi^{1/2}) Gamma(k+1)/Gamma(k+1/2) (1+T)^{2k}
                       J(k+1/2, b-k-1, T^2, b+k).

With s = e^v/(1 + e^v), D = E - B and d = c - 1 (-1/cosh^2(a/2) in the second case, where c rounds
to 1 once a is large) the exponent is A v + B log(1 + d s) - D log(1 + e^v). At its peak

    D s = A + B d s (1 - s)/(1 + d s).

Second case: D = 2 A, -1 < d < 0, so that A/(2 b) <= s <= 1/2 and |B log(1 + d s)| <= 2 A.
First case: b/(k + 1) <= s <= (2b - 1)/(k + b) for b >= 1, so that b |v| and D log(1 + e^v) are at
most 4 b log(4 b + k/b), and B log(1 + d s) at most b log(1 + 1/(2a)). So no term is larger than a
small multiple of min(b, k + 1/2) log(b + 1/a + k), however large b or a is. Both ends of J fall at
least like e^{-|v|/2}; the trapezoidal rule on a sinh-stretched grid around its peak reaches 2e-14
from a = 1e-9 on and 1e-12 at a = 1e-12 (relative to 1 + the logarithm), where the power series
needs 20/a terms.

A caller that asks for more values than it uses says which are `needed`: those are worked out in
blocks, and a block of none is left out, so that a narrow law costs what it has points.
"""

import jax
import jax.numpy as jnp

from jaxdp._special import log1p
from jaxdp._special_gamma import log_gamma, log_gamma_ratio

_NODES = 160
_DROP = 42.0  # the integrand is followed until it has fallen by e^-42
_HALVINGS = 14
_PLATEAU = 0.35
_BLOCK = 128  # values at a time, where some are not needed


def log_gdl_weight(
    beta: jax.Array, k: jax.Array, a: jax.Array, needed: jax.Array | None = None
) -> jax.Array:
    """log g(k) for scalars beta, a and an array k, 0 or >= 1; where not `needed`, some number.

    At k = 0, where J has its longest tails, by the contiguous relation (b = max(beta, 1 - beta))

        g(0) = [(1 + z) g(1) - z (2 - b) g(2)]/b,

    which for b >= 1/2 loses at most a factor 3 to cancellation.
    """
    at_zero, values = log_gdl_weight_from_zero(beta, k, a, needed)
    return jnp.where(k == 0.0, at_zero, values)


def log_gdl_weight_from_zero(
    beta: jax.Array, k: jax.Array, a: jax.Array, needed: jax.Array | None = None
) -> tuple[jax.Array, jax.Array]:
    """The logarithm at k = 0, and those at an array k >= 1 (smaller k count as 1)."""
    mirrored = beta < 0.5
    b = jnp.where(mirrored, 1.0 - beta, beta)
    flat = jnp.maximum(jnp.ravel(k), 1.0)
    if needed is not None:
        needed = jnp.append(jnp.ravel(needed), jnp.asarray([True, True]))
    flat = jnp.append(flat, jnp.asarray([1.0, 2.0]))
    values, mirror = _log_weight(b, beta, flat, a, needed)
    one, two = values[-2], values[-1]
    z = jnp.exp(-2.0 * a)
    at_zero = one + jnp.log(((1.0 + z) - z * (2.0 - b) * jnp.exp(two - one)) / b)
    both = jnp.where(mirrored, (2.0 * beta - 1.0) * jnp.log(jnp.tanh(0.5 * a)), 0.0)
    values = values + jnp.where(mirrored, mirror, 0.0)
    return at_zero + both, jnp.reshape(values[:-2], jnp.shape(k)) + both


def _log_weight(b, beta, k, a, needed):
    """log g(k) at b >= 1/2, k >= 1, and log (beta)_k/(b)_k."""
    b, beta, k, a = jnp.broadcast_arrays(b, beta, k, a)
    log_tanh = jnp.log(jnp.tanh(0.5 * a))
    euler = k >= b - 0.5
    far, near = jnp.where(euler, k, b), jnp.where(euler, 0.0, k)
    # log of Gamma(x + d)/Gamma(x)
    ratios = log_gamma_ratio(
        jnp.stack([far + 1.0 - b, b, jnp.ones_like(b), near + 0.5, beta, b]),
        jnp.stack([2.0 * b - 1.0, near, near, jnp.full_like(b, 0.5), k, k]),
    )
    front = jnp.where(
        euler,
        b * log_tanh + ratios[0] - 2.0 * log_gamma(b),
        log_tanh
        + (ratios[1] - ratios[2])
        + (ratios[3] - 0.5 * jnp.log(jnp.pi))
        + 2.0 * near * log1p(jnp.tanh(0.5 * a)),
    )
    integral = _log_integral(
        jnp.where(euler, b, k + 0.5),
        jnp.where(euler, b - 1.0, b - k - 1.0),
        jnp.where(euler, -1.0 / jnp.expm1(-2.0 * a), jnp.tanh(0.5 * a) ** 2),
        jnp.where(euler, 1.0 / jnp.expm1(2.0 * a), -(4.0 * jnp.exp(-a) / (1.0 + jnp.exp(-a)) ** 2)),
        jnp.where(euler, k + 1.0, 2.0 * k + 1.0),
        needed,
    )
    return front + integral, ratios[4] - ratios[5]


def _logs(t, c, excess):
    """log((1 + c t)/(1 + t)) to relative accuracy, c = 1 + excess, and log(1 + t)."""
    change = excess * (t / (1.0 + t))
    near = change > -0.5
    log_one = log1p(t)
    return log1p(jnp.where(near, change, c * t)) - jnp.where(near, 0.0, log_one), log_one


def _log_integrand(v, rise, power, c, excess, drop):
    ratio, log_one = _logs(jnp.exp(v), c, excess)  # |v| stays below 250
    return rise * v + power * ratio - drop * log_one


def _weighted_nodes(*parameters):
    """Nodes v of the stretched grid (a new last axis), their weights over e^top, and top."""
    peak, left, right = _window(*parameters)
    c = parameters[2]
    # both bends, at v = 0 and -log c, must lie where the stretched grid is fine
    core = jnp.maximum(jnp.minimum((left + right) / 8.0, 4.0), _PLATEAU * jnp.abs(jnp.log(c)))
    low, high = -jnp.arcsinh(left / core), jnp.arcsinh(right / core)
    step = (high - low) / (_NODES - 1)
    grow = jnp.exp(low[..., None] + step[..., None] * jnp.arange(_NODES, dtype=jnp.float64))
    v = peak[..., None] + 0.5 * core[..., None] * (grow - 1.0 / grow)
    values = _log_integrand(v, *(x[..., None] for x in parameters))
    top = jnp.max(values, axis=-1)
    weights = (
        0.5 * (step * core)[..., None] * (grow + 1.0 / grow) * jnp.exp(values - top[..., None])
    )
    return v, weights, top


def _log_total(parameters):
    _, weights, top = _weighted_nodes(*parameters)
    return jnp.log(jnp.sum(weights, axis=-1)) + top


@jax.custom_jvp
def _log_integral(rise, power, c, excess, drop, needed):
    """log J(rise, power, c, power + drop), c = 1 + excess; 0 where it is not needed."""
    parameters = rise, power, c, excess, drop
    if needed is None:
        return _log_total(parameters)
    short = -needed.size % _BLOCK
    rows = jnp.stack([jnp.pad(x, (0, short), mode="edge").reshape(-1, _BLOCK) for x in parameters])
    some = jnp.any(jnp.pad(needed, (0, short)).reshape(-1, _BLOCK), axis=1)
    before = jnp.cumsum(some.astype(jnp.int32))  # blocks with some, each with itself

    def one(i, values):
        block = jnp.sum((before <= i).astype(jnp.int32))  # the i-th of those with some
        return values.at[block].set(_log_total(rows[:, block]))

    values = jax.lax.fori_loop(0, before[-1], one, jnp.zeros(rows.shape[1:], jnp.float64))
    return jnp.where(needed, values.reshape(-1)[: needed.size], 0.0)


@_log_integral.defjvp
def _log_integral_rule(primals, tangents):
    """Slopes are means of the integrand's own: four sums, however many tangents there are."""
    *primals, _ = primals
    shape, size = primals[0].shape, primals[0].size
    if size > _BLOCK:  # a block at a time: nodes of all would take gigabytes in a batch
        flat = [jnp.pad(x.reshape(-1), (0, -size % _BLOCK), mode="edge") for x in primals]
        found = jax.lax.map(_value_and_slopes, jnp.stack([x.reshape(-1, _BLOCK) for x in flat], 1))
        value, *slopes = (x.reshape(-1)[:size].reshape(shape) for x in found)
    else:
        value, *slopes = _value_and_slopes(primals)
    moved = (*tangents[:3], tangents[4])
    return value, sum(slope * dx for slope, dx in zip(slopes, moved, strict=True))


def _value_and_slopes(parameters):
    v, weights, top = _weighted_nodes(*parameters)
    power, c, excess = (x[..., None] for x in parameters[1:4])
    total = jnp.sum(weights, axis=-1)

    def mean(values):
        return jnp.sum(weights * values, axis=-1) / total

    t = jnp.exp(v)
    ratio, log_one = _logs(t, c, excess)
    slopes = mean(v), mean(ratio), mean(power * (t / (1.0 + c * t))), -mean(log_one)
    return jnp.log(total) + top, *slopes


def _window(rise, power, c, excess, drop):
    """The peak of the integrand, and how far to either side it takes to fall by e^-42.

    The peak solves c (rise - drop) t^2 + (rise (1 + c) + power (c - 1) - drop) t + rise = 0 in
    t = e^v; the integrand is unimodal and falls at least like e^{-|v|/2} far out.
    """
    square, linear = c * (drop - rise), rise * (1.0 + c) + power * excess - drop
    root = jnp.sqrt(linear * linear + 4.0 * square * rise)
    t = jnp.where(linear > 0.0, (linear + root) / (2.0 * square), 2.0 * rise / (root - linear))
    peak = jnp.log(t)
    top = _log_integrand(peak, rise, power, c, excess, drop)
    widest = 4.0 * _DROP + jnp.abs(jnp.log(c))

    def halve(_, logs):
        low, high = logs
        middle = 0.5 * (low + high)
        reach = jnp.exp(middle)
        sides = jnp.stack([peak - reach[0], peak + reach[1]])
        inside = top - _log_integrand(sides, rise, power, c, excess, drop) < _DROP
        return jnp.where(inside, middle, low), jnp.where(inside, high, middle)

    ends = jnp.stack([jnp.full_like(peak, -12.0)] * 2), jnp.stack([jnp.log(widest)] * 2)
    left, right = jnp.exp(jax.lax.fori_loop(0, _HALVINGS, halve, ends)[1])
    return peak, left, right
