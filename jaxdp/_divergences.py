"""Closed-form divergences: hockey-stick curves and Rényi moments of the base mechanisms.

Conventions, for a pair (P, Q) with likelihood ratio X = dP/dQ, u = log X, g = e^epsilon:

* `*_log_hockey_stick` is log H_g(P||Q) = log E_Q[(X - g)_+] for any real epsilon.
  With `slack` > 0 (a multiple of the unit roundoff) it is an upper bound in exact arithmetic on
  the stated float64 inputs: every argument is moved by its rounding error to the larger side.
* `*_rate` is the cumulant rate k(s) = log E_Q[X^s] / (s (s - 1)), positive and smooth through
  s = 0 and s = 1, from which both Rényi directions read off (van Erven & Harremoës 2014):
  R_alpha(P||Q) = alpha k(alpha), R_alpha(Q||P) = alpha k(1 - alpha), KL(P||Q) = k(1),
  KL(Q||P) = k(0). It is computed from the excess E_Q[psi_s] = (E_Q[X^s] - 1)/(s (s - 1)), a mean
  of the non-negative psi_s(u) = u^2 exp[0, s u, u], so nothing cancels when privacy is strong.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special as special

# Rounding allowance of certified values, in multiples of one unit roundoff per elementary step.
SLACK = 2.0**-52
_TINY = 2.3e-308  # just above the smallest normal float64: what is below may be flushed to 0


def log_positive(x: jax.Array) -> jax.Array:
    """log x, and -inf with zero gradient where x <= 0."""
    positive = x > 0.0
    return jnp.where(positive, jnp.log(jnp.where(positive, x, 1.0)), -jnp.inf)


def exp_log(x: jax.Array) -> jax.Array:
    """e^x, and 0 with zero gradient where x = -inf."""
    some = x > -jnp.inf
    return jnp.where(some, jnp.exp(jnp.where(some, x, 0.0)), 0.0)


def log_add(*logs: jax.Array) -> jax.Array:
    """log of the sum of exponentials, with -inf for 0 and no gradient there."""
    values = jnp.stack(jnp.broadcast_arrays(*logs))
    return special.logsumexp(jnp.where(jnp.isneginf(values), -jnp.inf, values), axis=0)


def exp_up(log_value: jax.Array) -> jax.Array:
    """e^log_value for log_value <= 0, rounded up: never below the exact one, and 0 only at -inf."""
    value = jnp.minimum(jnp.exp(log_value) * (1.0 + 4.0 * SLACK), 1.0)
    return jnp.where(value < _TINY, jnp.where(jnp.isneginf(log_value), 0.0, _TINY), value)


def exp_down(log_value: jax.Array) -> jax.Array:
    """e^log_value for log_value <= 0, rounded down: never above the exact exponential."""
    value = jnp.exp(log_value) * (1.0 - 4.0 * SLACK)
    return jnp.where(value < _TINY, 0.0, value)


def rate_from_excess(excess: jax.Array, s: jax.Array) -> jax.Array:
    """k(s) from the excess (E[X^s] - 1)/(s (s - 1))."""
    return excess * special.relative_log1p(s * (s - 1.0) * excess)


# --- Gaussian -----------------------------------------------------------------------------------


@jax.custom_jvp
def _gaussian_log_delta(epsilon: jax.Array, mu: jax.Array) -> jax.Array:
    """log H for epsilon >= 0, mu > 0. With x = epsilon/mu - mu/2 (Balle & Wang 2018, Thm 8)

    H = Phi(-x) - e^epsilon Phi(-x - mu) = phi(x) [m(x) - m(x + mu)],

    since e^epsilon phi(x + mu) = phi(x); for x < -1 one minus two small tails.
    """
    return _gaussian_log_delta_and_slopes(epsilon, mu)[0]


def _gaussian_log_delta_and_slopes(epsilon: jax.Array, mu: jax.Array) -> tuple[jax.Array, ...]:
    """log H, d log H/dmu = phi(x)/H and d log H/depsilon = -phi(x) m(x + mu)/H: no cancellation."""
    x = epsilon / mu - 0.5 * mu
    tail = x >= -1.0
    a, b = jnp.where(tail, x, 0.0), jnp.where(tail, -1.0, x)
    near, far = special.mills(jnp.where(tail, a, -b)), special.mills(x + mu)
    drop = special.mills_drop(a, mu, near, far)
    density = jnp.exp(special.log_normal_density(b))
    missing = jnp.where(tail, 0.5, density * (near + far))
    value = jnp.where(tail, special.log_normal_density(a) + jnp.log(drop), jnp.log1p(-missing))
    per_mu = jnp.where(tail, 1.0 / drop, density / (1.0 - missing))
    return value, per_mu, -per_mu * far


@_gaussian_log_delta.defjvp
def _gaussian_log_delta_jvp(primals, tangents):
    value, per_mu, per_epsilon = _gaussian_log_delta_and_slopes(*primals)
    return value, per_epsilon * tangents[0] + per_mu * tangents[1]


def gaussian_log_hockey_stick(epsilon: jax.Array, mu: jax.Array, slack: float = 0.0) -> jax.Array:
    """log H_{e^epsilon}(N(mu, 1) || N(0, 1)), any real epsilon, mu > 0; both directions agree.

    Rounding: x carries at most 2 epsilon/mu + mu + |x| roundoffs and log H moves by at most
    |x| + 2 per unit of x, the evaluation itself by x^2 + 64 roundoffs.
    """
    magnitude = jnp.abs(epsilon)
    value = _gaussian_log_delta(magnitude, mu)
    if slack:
        x = jax.lax.stop_gradient(magnitude / mu - 0.5 * mu)
        steep, argument = jnp.abs(x) + 2.0, jax.lax.stop_gradient(2.0 * magnitude / mu + mu)
        value = value + 0.5 * slack * (steep * (argument + jnp.abs(x)) + x * x + 64.0)
        value = jnp.minimum(value, 0.0)
    return _reflect(epsilon, value, slack)


def _reflect(epsilon: jax.Array, log_mirrored: jax.Array, slack: float) -> jax.Array:
    """log H at epsilon from log H' at |epsilon| (H' the swapped pair): H_g = 1 - g + g H'_{1/g}."""
    negative = epsilon < 0.0
    e = jnp.where(negative, epsilon, -1.0)
    mirrored = jnp.where(negative, log_mirrored, -1.0)
    value = jnp.log(jnp.exp(e + mirrored) - jnp.expm1(e))
    value = jnp.minimum(value + 4.0 * slack * (1.0 - value), 0.0)
    return jnp.where(negative, value, log_mirrored)


def gaussian_log_masses(lo: jax.Array, hi: jax.Array, mu: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi}: L ~ N(-+mu^2/2, mu^2) under Q and P."""
    a, b = (jnp.where(jnp.isinf(x), x, jnp.where(jnp.isinf(x), 0.0, x) / mu) for x in (lo, hi))
    shift = 0.5 * mu
    q, p = special.log_ndtr_interval(
        jnp.stack([a + shift, a - shift]), jnp.stack([b + shift, b - shift])
    )
    return q, p


# --- Laplace ------------------------------------------------------------------------------------


def laplace_log_hockey_stick(epsilon: jax.Array, x: jax.Array, slack: float = 0.0) -> jax.Array:
    """log H of Laplace noise at x = sensitivity/scale: 1 - e^{(epsilon - x)/2} for |epsilon| < x.

    Both directions agree. For epsilon <= -x it is 1 - e^epsilon, for epsilon >= x (as rounded) 0.
    """
    inside = epsilon < x
    gap = epsilon - x - 2.0 * slack * (jnp.abs(epsilon) + x)
    gap = jnp.where(inside, jnp.minimum(gap, 0.0), -1.0)
    middle = jnp.where(inside, special.log1mexp(0.5 * gap), -jnp.inf)
    below = epsilon <= -x
    left = special.log1mexp(jnp.where(below, epsilon, -1.0))
    return jnp.where(below, left, middle) * (1.0 - 4.0 * slack)


def laplace_rate(s: jax.Array, x: jax.Array) -> jax.Array:
    """k(s) of Laplace noise at x = sensitivity/scale (Mironov 2017, Prop. 6), s outside (0, 1).

    E_Q[X^s] = (s e^{(s-1)x} + (s-1) e^{-sx})/(2s - 1); its excess is x^2 exp[0, (s-1)x, -sx].
    """
    r = jnp.maximum(s, 1.0 - s)  # the pair is symmetric: k(s) = k(1 - s)
    direct = r * x < 30.0
    y = jnp.where(direct, x, 0.0)
    small = rate_from_excess(y * y * special.exp_divided_difference((r - 1.0) * y, -r * y), r)
    # beyond, with d = r - 1: log E = d x - log1p(d/r) + log1p(d/r e^{-(2r-1)x}), divided by d r
    p = jnp.where(direct, 2.0, r)
    share = (p - 1.0) / p
    decay = jnp.exp(-(2.0 * p - 1.0) * x)
    bend = special.relative_log1p(share) - decay * special.relative_log1p(share * decay)
    return jnp.where(direct, small, (x - bend / p) / p)


def laplace_log_masses(lo: jax.Array, hi: jax.Array, x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi}: atoms at -x and x, and L = 2 z - x between.

    z has Q-density e^{-z}/2 and P-density e^{z-x}/2 on (0, x).
    """
    a, b = (jnp.clip(0.5 * (end + x), 0.0, x) for end in (lo, hi))
    log_width = special.log1mexp(jnp.minimum(a - b, 0.0)) - special.LOG_2
    left = jnp.where((lo < -x) & (hi >= -x), 0.0, -jnp.inf)
    right = jnp.where((lo < x) & (hi >= x), 0.0, -jnp.inf)
    half = -special.LOG_2
    q = log_add(log_width - a, left + half, right + half - x)
    return q, log_add(log_width + b - x, left + half - x, right + half)


# --- randomised response and the worst (epsilon, delta) pair -------------------------------------


def approximate_dp_log_hockey_stick(
    epsilon: jax.Array, bound: jax.Array, failure: jax.Array, slack: float = 0.0
) -> jax.Array:
    """log H of the worst (bound, failure)-DP pair (Kairouz, Oh & Viswanath 2015, Thm 3.1).

    X is e^{+-bound} outside an event of probability `failure` that reveals everything.
    """
    low, high = -bound, bound
    gap = epsilon - high - 2.0 * slack * (jnp.abs(epsilon) + bound)
    gap = jnp.where(epsilon < high, jnp.minimum(gap, 0.0), 0.0)
    middle = -jnp.expm1(gap) * jax.nn.sigmoid(bound)
    left = -jnp.expm1(jnp.where(epsilon < low, epsilon, low))
    value = failure + (1.0 - failure) * jnp.where(epsilon <= low, left, middle)
    return jnp.minimum(log_positive(value * (1.0 + 8.0 * slack)), 0.0)


def randomized_response_rate(s: jax.Array, bound: jax.Array) -> jax.Array:
    """k(s) of X = e^{+-bound} with odds e^{-bound}: E_Q[X^s] = cosh((s - 1/2) b)/cosh(b/2).

    The excess is 2 sinh(s b/2) sinh((s-1) b/2)/cosh(b/2)/(s (s-1)).
    """
    direct = (jnp.abs(s) + 1.0) * bound < 30.0
    b = jnp.where(direct, bound, 0.0)
    excess = 0.5 * b * b * _sinhc(0.5 * s * b) * _sinhc(0.5 * (s - 1.0) * b) / jnp.cosh(0.5 * b)
    small = rate_from_excess(excess, s)
    # beyond, with r >= 1 the larger of s and 1 - s, d = r - 1: cosh((r - 1/2) b) / cosh(b/2) is
    # e^{d b} (1 + y), y = e^-b (e^{-2 d b} - 1)/(1 + e^-b)
    r = jnp.maximum(s, 1.0 - s)
    per_d = -2.0 * bound * special.relative_expm1(-2.0 * (r - 1.0) * bound)
    per_d = per_d * jax.nn.sigmoid(-bound)
    large = (bound + per_d * special.relative_log1p((r - 1.0) * per_d)) / r
    return jnp.where(direct, small, large)


def atom_log_masses(
    lo: jax.Array, hi: jax.Array, loss: jax.Array, log_q: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi} for a vector of atoms; P has e^loss times the Q-mass."""
    lo, hi = lo[..., None], hi[..., None]
    log_in = jnp.where((lo < loss) & (loss <= hi), log_q, -jnp.inf)
    return special.logsumexp(log_in, axis=-1), special.logsumexp(log_in + loss, axis=-1)


def _sinhc(y: jax.Array) -> jax.Array:
    """sinh(y)/y."""
    return jnp.exp(-y) * special.relative_expm1(2.0 * y)


# --- Poisson subsampling ------------------------------------------------------------------------


def sampled_loss(loss: jax.Array, q: jax.Array) -> jax.Array:
    """log(1 - q + q e^loss), accurate for small q and for small or large loss."""
    small = loss < 30.0
    near = jnp.log1p(q * jnp.expm1(jnp.where(small, loss, 0.0)))
    near = jnp.where((q == 1.0) & (loss < -30.0), loss, near)  # where 1 - q + q e^loss is lost
    far = jnp.where(small, 30.0, loss)
    return jnp.where(small, near, far + jnp.log(q) + jnp.log1p((1.0 / q - 1.0) * jnp.exp(-far)))


def discrete_rate(loss: jax.Array, log_weights: jax.Array, s: jax.Array) -> jax.Array:
    """k(s) of a law given by nodes: E_Q[f(L)] = sum_i e^{log_weights_i} f(loss_i).

    The weighted losses must satisfy sum e^{w} (e^l - 1) = 0 up to the accuracy wanted.
    """
    exponent = jnp.maximum(jnp.abs(s), jnp.abs(s - 1.0)) * jnp.max(jnp.abs(loss))
    direct = jax.lax.stop_gradient(exponent) < 300.0
    u = jnp.where(direct, loss, 0.0)
    excess = jnp.sum(jnp.exp(log_weights) * u * u * special.exp_divided_difference(s * u, u))
    small = rate_from_excess(excess, s)
    scale = s * (s - 1.0)
    r = jnp.where(direct | (scale == 0.0), 2.0, s)
    large = special.logsumexp(log_weights + r * loss) / (r * (r - 1.0))
    # s in {0, 1} with very large losses: the Kullback-Leibler limits
    one = s > 0.5
    kl = jnp.sum(jnp.exp(log_weights + jnp.where(one, loss, 0.0)) * jnp.where(one, loss, -loss))
    return jnp.where(direct, small, jnp.where(scale == 0.0, kl, large))


_PANELS, _PANEL_NODES, _SCAN = 128, 10, 512
_LEGENDRE = np.polynomial.legendre.leggauss(_PANEL_NODES)
_UNIT_NODES = (np.arange(_PANELS)[:, None] + 0.5 * (1.0 + _LEGENDRE[0])).ravel() / _PANELS
_UNIT_LOG_WEIGHTS = np.tile(np.log(0.5 * _LEGENDRE[1] / _PANELS), _PANELS)


def _sampled_gaussian_window(s: jax.Array, mu: jax.Array, q: jax.Array):
    """The interval of z outside of which the integrand of `sampled_gaussian_rate` is negligible.

    The hull of the nodes of a scan where it is within e^-50 of its peak, a scan step wider.
    """
    left = jnp.minimum(s, 0.0) * mu - 13.0
    right = (jnp.maximum(s, 1.0) + 1.0) * mu + 13.0
    step = (right - left) / (_SCAN - 1)
    z = left + step * jnp.arange(_SCAN, dtype=jnp.float64)
    u = sampled_loss(mu * z - 0.5 * mu * mu, q)
    size = jnp.abs(u)
    growth = jnp.maximum(jnp.maximum(s * u, u), 0.0) + 2.0 * jnp.log((size + 1e-300) / (1.0 + size))
    height = growth - 0.5 * z * z
    high = height > jnp.max(height) - 50.0
    low_end = jnp.min(jnp.where(high, z, jnp.inf)) - step
    high_end = jnp.max(jnp.where(high, z, -jnp.inf)) + step
    return jax.lax.stop_gradient((low_end, high_end - low_end))


def sampled_gaussian_rate(s: jax.Array, mu: jax.Array, q: jax.Array) -> jax.Array:
    """k(s) of the Poisson-subsampled Gaussian, X = 1 - q + q exp(mu z - mu^2/2), z ~ N(0, 1).

    Composite Gauss-Legendre in z over the window that matters; log X is analytic within pi/mu of
    the real line, so that panels no wider than 2 min(1, 1/mu) reach 1e-13. Where 128 panels
    cannot be that narrow (mu above about 8, or two peaks more than 250 deviations apart), the value
    is the convexity bound E[X^s] <= 1 - q + q E[(P/Q)^s]: an upper bound there, exact elsewhere.
    """
    left, width = _sampled_gaussian_window(s, mu, q)
    resolved = width / _PANELS <= 2.0 * jnp.minimum(1.0, 1.2 / mu)
    z = left + width * jnp.asarray(_UNIT_NODES, jnp.float64)
    log_weights = (
        special.log_normal_density(z) + jnp.log(width) + jnp.asarray(_UNIT_LOG_WEIGHTS, jnp.float64)
    )
    loss = sampled_loss(mu * z - 0.5 * mu * mu, q)
    exact = discrete_rate(loss, log_weights, s)
    return jnp.where(resolved, exact, convex_rate(s, 0.5 * mu * mu, q))


def convex_rate(s: jax.Array, base_rate: jax.Array, q: jax.Array) -> jax.Array:
    """Upper bound on k(s) of 1 - q + q X, s outside (0, 1), from k(s) of X: X^s is convex."""
    scale = s * (s - 1.0)
    y = scale * base_rate
    small = y < 30.0
    near = rate_from_excess(q * base_rate * special.relative_expm1(jnp.where(small, y, 0.0)), s)
    far = sampled_loss(jnp.where(small, 31.0, y), q) / jnp.where(small, 1.0, scale)
    return jnp.where(small, near, far)


def laplace_nodes(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Losses and log Q-weights of Laplace noise: atoms 1/2 at -x and e^{-x}/2 at x, and between.

    Between, the loss 2 z - x at z ~ e^{-z}/2 on (0, x), by composite Gauss-Legendre.
    """
    z = x * jnp.asarray(_UNIT_NODES, jnp.float64)
    loss = jnp.concatenate([jnp.stack([-x, x]), 2.0 * z - x])
    atoms = jnp.stack([-special.LOG_2 + 0.0 * x, -special.LOG_2 - x])
    inner = jnp.log(x) + jnp.asarray(_UNIT_LOG_WEIGHTS, jnp.float64) - z - special.LOG_2
    return loss, jnp.concatenate([atoms, inner])


def randomized_response_nodes(bound: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The two losses -bound and bound, and their log Q-weights."""
    loss = jnp.stack([-bound, bound])
    return loss, jax.nn.log_sigmoid(-loss)


def sampled_log_masses(masses, lo, hi, q, revealed):
    """log Q and log P of {lo < L' <= hi}, e^{L'} = 1 - q + q e^L, from the masses of L.

    Args:
      masses: (lo, hi) -> (log Q, log P) of {lo < L <= hi}.
      revealed: the same of the atom L' = log(1 - q) that the outcomes with L = -inf become, None
        if there are none.
    """
    base_q, base_p = masses(*_unsampled_loss(jnp.stack([lo, hi]), q))
    parts = log_positive(1.0 - q) + base_q, jnp.log(q) + base_p
    if revealed is None:
        return base_q, log_add(*parts)
    return log_add(base_q, revealed[0]), log_add(*parts, revealed[1])


def _unsampled_loss(loss, q):
    """The L with log(1 - q + q e^L) = loss; -inf below log(1 - q)."""
    small = loss < 30.0
    ratio = jnp.expm1(jnp.where(small, loss, 0.0)) / q
    above = ratio > -1.0
    near = jnp.where(above, jnp.log1p(jnp.where(above, ratio, 0.0)), -jnp.inf)
    far = jnp.where(small, 30.0, loss)
    return jnp.where(small, near, far - jnp.log(q) + (q - 1.0) * jnp.exp(-far))


def sampled_log_hockey_stick(log_base, epsilon, q, direction, slack=0.0):
    """log H of the Poisson-subsampled pair from the curve of the base pair, exact.

    With M = (1-q) Q + q P: remove H_g(M||Q) = q H_{g'}(P||Q), g' = 1 + (g-1)/q, and 1 - g where
    g' < 0; add H_g(Q||M) = b H_{gq/b}(Q||P), b = 1 - g (1-q), and 0 where b <= 0.

    Args:
      log_base: the base curve (epsilon, direction) -> log H, an upper bound if slack > 0.
    """
    excess = jnp.expm1(jnp.minimum(epsilon, 700.0))
    if direction == "remove":
        ratio = excess / q
        above = ratio > -1.0
        inner = jnp.log1p(jnp.where(above, ratio, 0.0))
        inner = inner - 4.0 * slack * (
            1.0 + jnp.abs(inner) + 1.0 / (1.0 + jnp.where(above, ratio, 0.0))
        )
        value = jnp.log(q) + log_base(inner, direction)
        left = special.log1mexp(jnp.where(above, -1.0, epsilon))
        return jnp.where(above, value, left) + 4.0 * slack
    b = q * (1.0 + excess) - excess
    b = b + 4.0 * slack * (q * (1.0 + excess) + jnp.abs(excess))
    positive = b > 0.0
    log_b = jnp.log(jnp.where(positive, b, 1.0))
    inner = jnp.where(positive, epsilon + jnp.log(q) - log_b, 1.0)
    inner = inner - 4.0 * slack * (1.0 + jnp.abs(inner))
    return jnp.where(positive, log_b + log_base(inner, direction) + 4.0 * slack, -jnp.inf)


def ornstein_uhlenbeck_variance(theta: jax.Array, rho: jax.Array, t: jax.Array) -> jax.Array:
    """(rho^2/theta)(1 - e^{-2 theta t}), equal to 2 rho^2 t at theta = 0."""
    return 2.0 * rho * rho * t * special.relative_expm1(-2.0 * theta * t)


def ornstein_uhlenbeck_mu(sensitivity, theta, rho, t):
    """mu of the OU mechanism: a Gaussian of sensitivity e^{-theta t} Delta (Balle et al. 2019)."""
    std = jnp.sqrt(ornstein_uhlenbeck_variance(theta, rho, t))
    return jnp.maximum(sensitivity * jnp.exp(-theta * t) / std, 1e-100)
