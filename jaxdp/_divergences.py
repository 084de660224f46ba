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
from jaxdp._special import expm1, log1p

# Rounding allowance of certified values, in multiples of one unit roundoff per elementary step.
SLACK = 2.0**-52
_FAR = 1e150  # of epsilon/mu: squares stay within the range of a double
_TINY = 2.3e-308  # just above the smallest normal float64: what is below may be flushed to 0


def log_positive(x: jax.Array) -> jax.Array:
    """log x, and -inf with zero gradient where x <= 0; nan of nan, which is not to look like 0."""
    nothing = x <= 0.0
    return jnp.where(nothing, -jnp.inf, jnp.log(jnp.where(nothing, 1.0, x)))


def magnitude(x: jax.Array) -> jax.Array:
    """|x|, with slope 1 at 0: curves read at |epsilon| are reflected at negative epsilon only."""
    return jnp.where(x < 0.0, -x, x)


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


def log_rounded(log_value: jax.Array, slack: float) -> jax.Array:
    """A logarithm moved to the side of `slack` by its own last digit, which is not small of it."""
    size = jax.lax.stop_gradient(jnp.where(log_value > -jnp.inf, jnp.abs(log_value), 0.0))
    return log_value + slack * size


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
    x = jnp.minimum(epsilon / mu, _FAR) - 0.5 * mu
    tail = x >= -1.0
    a, b = jnp.where(tail, x, 0.0), jnp.where(tail, -1.0, x)
    near, far = special.mills(jnp.where(tail, a, -b)), special.mills(x + mu)
    drop = special.mills_drop(a, mu, near, far)
    density = jnp.exp(special.log_normal_density(b))
    missing = jnp.where(tail, 0.5, density * (near + far))
    value = jnp.where(tail, special.log_normal_density(a) + jnp.log(drop), log1p(-missing))
    per_mu = jnp.where(tail, 1.0 / drop, density / (1.0 - missing))
    return value, per_mu, -per_mu * far


@_gaussian_log_delta.defjvp
def _gaussian_log_delta_jvp(primals, tangents):
    value, per_mu, per_epsilon = _gaussian_log_delta_and_slopes(*primals)
    return value, per_epsilon * tangents[0] + per_mu * tangents[1]


def gaussian_log_hockey_stick(epsilon: jax.Array, mu: jax.Array, slack: float = 0.0) -> jax.Array:
    """log H_{e^epsilon}(N(mu, 1) || N(0, 1)), any real epsilon, mu > 0; both directions agree.

    Rounding: x carries at most 2 epsilon/mu + mu + |x| roundoffs and log H moves by at most
    |x| + 2 per unit of x, the evaluation itself by x^2 + 64 roundoffs; where x < -1, H is 1 less
    two small tails, and moves by at most 4 e^{-x^2/2} as much.
    """
    distance = magnitude(epsilon)
    value = _gaussian_log_delta(distance, mu)
    if slack:
        z = jax.lax.stop_gradient(jnp.minimum(distance / mu, _FAR))
        x, argument = z - 0.5 * mu, 2.0 * z + mu
        share = jnp.where(x < -1.0, jnp.minimum(4.0 * jnp.exp(-0.5 * x * x), 1.0), 1.0)
        moved = (jnp.abs(x) + 2.0) * (argument + jnp.abs(x)) + x * x + 64.0
        value = log_rounded(value + 0.5 * slack * (share * moved + 4.0), slack)
        value = jnp.minimum(value, 0.0)
    return _reflect(epsilon, value, slack)


def _reflect(epsilon: jax.Array, log_mirrored: jax.Array, slack: float) -> jax.Array:
    """log H at epsilon from log H' at |epsilon| (H' the swapped pair): H_g = 1 - g + g H'_{1/g}."""
    negative = epsilon < 0.0
    e = jnp.where(negative, epsilon, -1.0)
    mirrored = jnp.where(negative, log_mirrored, -1.0)
    value = jnp.log(jnp.exp(e + mirrored) - expm1(e))
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
    middle = -expm1(gap) * jax.nn.sigmoid(bound)
    left = -expm1(jnp.where(epsilon < low, epsilon, low))
    value = failure + (1.0 - failure) * jnp.where(epsilon <= low, left, middle)
    return jnp.minimum(log_rounded(log_positive(value * (1.0 + 8.0 * slack)), slack), 0.0)


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
    """log(1 - q + q e^loss), to a few ulps for any q and loss.

    By log1p where 1 - q + q e^loss is near 1 or above; as a sum of two positive terms where it is
    far below (q is then large, so that 1 - q is exact); relative to e^loss beyond its range.
    """
    small, low = loss < 700.0, (loss < -special.LOG_2) & (q > 0.5)
    near = log1p(q * jnp.expm1(jnp.where(small & ~low, loss, 0.0)))
    sum_of_two = (1.0 - q) + q * jnp.exp(jnp.where(low, jnp.maximum(loss, -700.0), 0.0))
    below = jnp.log(sum_of_two)
    below = jnp.where((q == 1.0) & (loss < -700.0), loss, below)
    far = jnp.where(small, 700.0, loss)
    far = far + jnp.log(q) + log1p((1.0 / q - 1.0) * jnp.exp(-far))
    return jnp.where(low, below, jnp.where(small, near, far))


_PANELS, _PANEL_NODES = 128, 10
_LEGENDRE = np.polynomial.legendre.leggauss(_PANEL_NODES)
_UNIT_NODES = (np.arange(_PANELS)[:, None] + 0.5 * (1.0 + _LEGENDRE[0])).ravel() / _PANELS
_UNIT_LOG_WEIGHTS = np.tile(np.log(0.5 * _LEGENDRE[1] / _PANELS), _PANELS)


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
    base_q, base_p = masses(*_unsampled_loss(jnp.stack([lo, hi]), q)[0])
    parts = log_positive(1.0 - q) + base_q, jnp.log(q) + base_p
    if revealed is None:
        return base_q, log_add(*parts)
    return log_add(base_q, revealed[0]), log_add(*parts, revealed[1])


# A loss this little above log(1 - q), relatively, may as well be below: the rest is all rounding.
_UNSURE = 8.0 * SLACK


def _unsampled_loss(loss, q):
    """The L with log(1 - q + q e^L) = loss, a bound on its rounding, and what is sure of it.

    q e^L = e^loss - (1 - q) is the difference of two numbers that carry a roundoff each: near
    loss = 0 by expm1, far below as it stands (1 - q is exact where it can be smaller than e^loss),
    above with e^loss as a factor. Each is exact for a loss that differs by a roundoff or two.

    Returns:
      L, -inf where there is none; the bound; the rest (e^loss - (1 - q)) as a share of what it is
      the difference of: there is surely an L if it exceeds _UNSURE, surely none below -_UNSURE.
    """
    low, high = loss < -special.LOG_2, loss > special.LOG_2
    log_q = jnp.log(q)
    ratio = jnp.expm1(jnp.where(low | high, 0.0, loss)) / q
    safe = jnp.where(ratio > -1.0, ratio, 0.0)
    near = jnp.where(ratio > -1.0, log1p(safe), -jnp.inf)
    near_error = 3.0 * jnp.abs(safe) / (1.0 + safe) + 2.0 * jnp.abs(log1p(safe))
    exponent = jnp.where(low, jnp.maximum(loss, -700.0), 0.0)
    grown = jnp.exp(exponent)
    rest = grown - (1.0 - q)
    some = low & (rest > 0.0)
    left = jnp.where(some, rest, 1.0)
    below = jnp.where(some, jnp.log(left) - log_q + jnp.where(low, loss, 0.0) - exponent, -jnp.inf)
    below_error = 2.0 * grown / left + jnp.abs(jnp.log(left)) + 2.0 * jnp.abs(log_q)
    top = jnp.where(high, loss, 1.0)
    far = top - log_q + log1p((q - 1.0) * jnp.exp(-top))
    far_error = jnp.abs(top) + 3.0 * jnp.abs(log_q) + 4.0
    error = jnp.where(low, below_error, jnp.where(high, far_error, near_error))
    share = jnp.where(low, rest / grown, jnp.where(high, 1.0, 1.0 + ratio))
    return jnp.where(low, below, jnp.where(high, far, near)), SLACK * error, share


def sampled_log_hockey_stick(log_base, epsilon, q, direction, slack=0.0):
    """log H of the Poisson-subsampled pair from the curve of the base pair, exact.

    With M = (1-q) Q + q P and g = e^epsilon: remove H_g(M||Q) = q H_{g'}(P||Q), q g' = g - (1-q),
    and 1 - g where g' < 0; add H_g(Q||M) = g q g' H_{1/g'}(Q||P), q g' = 1/g - (1-q), and 0 where
    g' <= 0. Either way log g' is the loss before sampling of the loss epsilon, or -epsilon.

    Args:
      log_base: the base curve (epsilon, direction) -> log H, an upper bound if slack > 0.
      epsilon: any real number.
      q: the sampling probability.
      direction: "remove" or "add".
      slack: the rounding to allow for, in all: 0, or positive above and negative below.
    """
    remove = direction == "remove"
    inner, error, share = _unsampled_loss(epsilon if remove else 0.0 - epsilon, q)
    error, share = jax.lax.stop_gradient((slack / SLACK * error, share))
    some = inner > -jnp.inf
    inner, error = jnp.where(some, inner, 0.0), jnp.where(some, error, 0.0)
    log_q = jnp.log(q)
    if remove:
        value = log_q + log_base(inner - error, direction)
        left = special.log1mexp(jnp.where(some, -1.0, epsilon))
        value = jnp.where(some, value, left) + slack * (8.0 - 2.0 * log_q)
        return jnp.minimum(log_rounded(value, slack), 0.0)
    unsure = jnp.zeros_like(some)
    if slack > 0.0:
        # Where it is not sure that there is a loss before sampling, that is at most log(8 u) and
        # the factor is at most 16 u, u the roundoff.
        unsure = (share <= _UNSURE) & (share > -_UNSURE)
        inner = jnp.where(unsure, np.log(_UNSURE), inner)
        error = jnp.where(unsure, 0.0, error)
        some = some | unsure
    elif slack < 0.0:
        some = some & (share > _UNSURE)
    log_factor = jnp.where(unsure, np.log(2.0 * _UNSURE), epsilon + log_q + inner)
    value = log_factor + log_base(-inner - error, direction)
    rounding = 4.0 + jnp.abs(epsilon) - 2.0 * log_q + 2.0 * jnp.abs(inner)
    value = log_rounded(value + error + slack * jax.lax.stop_gradient(rounding), slack)
    if slack > 0.0:  # (Q - g M)_+ <= q (Q - P)_+ for g >= 1, whatever is sure
        most = log_q * (1.0 - 2.0 * slack)
        value = jnp.where(unsure & (epsilon >= 0.0), jnp.minimum(value, most), value)
    return jnp.minimum(jnp.where(some, value, -jnp.inf), 0.0)


def ornstein_uhlenbeck_variance(theta: jax.Array, rho: jax.Array, t: jax.Array) -> jax.Array:
    """(rho^2/theta)(1 - e^{-2 theta t}), equal to 2 rho^2 t at theta = 0."""
    return 2.0 * rho * rho * t * special.relative_expm1(-2.0 * theta * t)


def ornstein_uhlenbeck_mu(sensitivity, theta, rho, t):
    """mu of the OU mechanism: a Gaussian of sensitivity e^{-theta t} Delta (Balle et al. 2019)."""
    std = jnp.sqrt(ornstein_uhlenbeck_variance(theta, rho, t))
    return sensitivity * jnp.exp(-theta * t) / std
