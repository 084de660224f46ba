r"""Curves of shuffled reports, from above and below, as sums of positive terms in log space.

Above. n records each send one report through an eps0-DP randomiser, in random order. Every other
report is, with probability p, a fair coin between the reports of the two candidate inputs of the
record in question ("clones"), so that the shuffled reports are a post-processing of the pair

    P: A + D of 1 + C,    Q: A + 1 - D of 1 + C,    C ~ Bin(n - 1, p), A ~ Bin(C, 1/2),
                                                    D ~ Bernoulli(e^eps0/(1 + e^eps0)), C known

(Feldman, McMillan & Talwar 2021, arXiv 2012.12803, Theorem 3.1, with p = e^-eps0). For randomised
response p = 2/(e^eps0 + 1), the share of its reports that are coins. Reports do not show which of
them are, so that its curve is below that of the pair, too.

Given C = M - 1, with b_M the weights of B ~ Bin(M, 1/2) and g = e^eps, the ratio of the two laws is
linear in k/M: summed over its positive part, with b_{M-1}(k-1) = 2 k b_M(k)/M,

    H = 2 (1 + g) tanh(eps0/2) E[(B - k0)_+]/M,    k0 = M (1 + rho)/2,
    rho = tanh(eps/2)/tanh(eps0/2),                0 <= eps < eps0.

Nothing is subtracted. With K the first integer above k0, d = K - k0 and v = 1 - 2 x in the beta
integrals of the two tails that E[(B - k0)_+] = d P{B >= K} + sum_{k > K} P{B >= k} consists of,

    E[(B - k0)_+] = K b_M(K) int_0^1 (1 - v)^{K-1} (1 + v)^{M-K-1} [d (1 + v) + (M - K) v] dv.

For coins that show a one with probability x >= 1/2, x (1 - v) is the variable, and v has the
factor r = x/(1 - x) wherever it is added to 1 or multiplied by M - K.

H falls with C, since one more clone adds a fair coin to the counts, a post-processing: a block of
values of C lies between its ends. Blocks are placed around the C that matter, which the
Chernoff tilt of (B, M) gives: under it B ~ Bin(M, (1 + rho)/2) and M ~ Bin(n, p').

Below, for randomised response: all others hold 0, one of the inputs that the guarantee is about.
With q = e^eps0/(1 + e^eps0), Z ~ Bin(n, q) counts the zeros if the record in question holds 0, too.
If it holds 1, the ratio is the mean of those of n reports, as of a random allocation, which again
is linear in the count. From equal records to the one that differs is, but for the lattice of few
records, the larger side of this pair:

    X(Z) = e^eps0 - 2 sinh(eps0) Z/n,    H = E[(1 - g X)_+] = 2 g sinh(eps0) E[(Z - z0)_+]/n,
    z0 = n (1 - e^-(eps + eps0) (1 - e^(eps - eps0))/(1 - e^-2 eps0)).

The inputs with 0 and 1 exchanged give the same curve, so that the largest over all inputs agrees in
both directions, and what is below it at eps is so at -eps after H(g) = 1 - g + g H(1/g).
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _special, _special_gamma
from jaxdp._rounding import exact_product
from jaxdp._special import log1p

Blocks = tuple[int, float]
_NODES = np.polynomial.legendre.leggauss(40)
_FALL = 42.0  # log of what the integral may leave out
_QUADRATURE = 1e-13
_ULPS = 8.0 * _divergences.SLACK  # of rho, of 1 - rho and of p
_LEAST = 1e-300


def _apart(m: jax.Array, j: jax.Array, means: tuple[jax.Array, ...], excess: jax.Array):
    """The two deviances of j among m, of expectations `means` = (m p, m - m p)."""
    deviance = _special_gamma.deviance
    return deviance(j, means[0], excess) + deviance(m - j, means[1], -excess)


def _log_choose(m: jax.Array, j: jax.Array, apart: jax.Array) -> jax.Array:
    """log of the binomial weight of j among m, 0 < j < m, in saddle-point form (Loader 2000)."""
    mu = _special_gamma.stirling_remainder
    return mu(m) - mu(j) - mu(m - j) - apart - 0.5 * jnp.log(2.0 * jnp.pi * j * ((m - j) / m))


def _log_clones(n, c, p, rest):
    """log P{Bin(n - 1, p) = c} and its rounding error; gamma functions between integers n.

    It is (n - c)/(n (1 - p)) times the weight of c among n. Of p and 1 - p the smaller one counts,
    as it is: the product with n is exact, and with it the distance from the mean.
    """
    few = p < 0.5
    product, error = exact_product(n, jnp.where(few, p, rest))
    between = (c > 0.0) & (c < n)
    j = jnp.where(between, c, 0.5 * n)
    excess = jnp.where(few, (j - product) - error, error + (product - (n - j)))
    means = jnp.where(few, product, n * p), jnp.where(few, n * rest, product)
    apart = _apart(n, j, means, excess)
    log_rest = jnp.where(few, log1p(-jnp.where(few, p, 0.5)), jnp.log(rest))
    middle = _log_choose(n, j, apart) + log1p(-j / n) - log_rest
    ends = jnp.where(c <= 0.0, (n - 1.0) * log_rest, -jnp.inf)
    size = jnp.where(between, apart, (n - 1.0) * jnp.abs(log_rest))
    return jnp.where(between, middle, ends), _divergences.SLACK * (64.0 + 32.0 * size)


def _down_from(m, most, log_share):
    """K, the least number above k0 = m - most share, in whole steps from m, and log(K - k0)."""
    left = most * jnp.exp(log_share)
    over = jnp.maximum(jnp.ceil(jax.lax.stop_gradient(left)) - 1.0, 0.0)
    last = over <= 0.0  # K = m, where the share may be below every float64
    distance = jnp.log(jnp.maximum(jnp.where(last, 1.0, left - over), _LEAST))
    return m - over, jnp.where(last, jnp.log(most) + log_share, distance)


def _first_above(m, rho, log_gap):
    """K, the first integer above k0 = m (1 + rho)/2, and log(K - k0).

    From the middle m/2 up, or from m down by m (1 - rho)/2, whichever is the shorter way.
    """
    near = rho < 0.5
    shift = 0.5 * m * rho
    frozen = jax.lax.stop_gradient(shift)
    k = jnp.floor(0.5 * m + frozen) + 1.0
    k = k + (k - 0.5 * m - frozen <= 0.0) - (k - 0.5 * m - frozen > 1.0)
    log_distance = jnp.log(jnp.maximum(jnp.where(near, (k - 0.5 * m) - shift, 1.0), _LEAST))
    far, log_far = _down_from(m, 0.5 * m, log_gap)
    return jnp.where(near, k, far), jnp.where(near, log_distance, log_far)


def _width(k, more, one, odds):
    """Up to where (1 - v)^{k-1} (1 + r v)^{more-1} falls by e^-_FALL, or a little further.

    By its least curvature, and for r > 1 by log(1 + y) <= y (6 + y)/(6 + 4 y), which leaves a
    quadratic in y = r v. Any width is right: what is left out is lost from below, and nothing more.
    """
    slope, bend = jnp.maximum(k - odds * more, 0.0), (k - 1.0) + one**2 * (more - 1.0)
    root = slope + jnp.sqrt(slope**2 + 2.0 * _FALL * jnp.maximum(bend, 0.0))
    width = jnp.minimum(2.0 * _FALL / jnp.maximum(root, 1.0), 1.0)
    excess = slope / odds + 1.0
    a, b = 4.0 * excess + 3.0 * jnp.maximum(more - 1.0, 0.0), 6.0 * excess - 4.0 * _FALL
    root = jnp.sqrt(b * b + 24.0 * _FALL * a)
    y = jnp.where(b > 0.0, 12.0 * _FALL / (jnp.abs(b) + root), (root - b) / (2.0 * a))
    return jax.lax.stop_gradient(jnp.minimum(width, y / odds))


def _log_excess(m, k, log_distance, zero):
    """log of E[(B - k0)_+], k > m (1 - zero), and its rounding error.

    B counts the ones among m coins that show a zero with probability `zero` <= 1/2.
    """
    more, log_all = m - k, m * log1p(-zero)
    zero = jnp.where(more > 0.0, zero, 0.5)  # all ones: the integrand is (1 - v)^{m-1}
    one = 1.0 - zero
    odds = one / zero
    width = _width(k, more, one, odds)[..., None]
    v = width * jnp.asarray(0.5 + 0.5 * _NODES[0])
    up = odds[..., None] * v
    weight = jnp.exp((k - 1.0)[..., None] * log1p(-v) + (more - 1.0)[..., None] * log1p(up))
    weight = weight * (0.5 * width * jnp.asarray(_NODES[1]))
    first = jnp.log(jnp.sum(weight * (1.0 + up), axis=-1)) + log_distance
    second = jnp.log(jnp.maximum(more, 0.5)) + jnp.log(jnp.sum(weight * up, axis=-1))
    inner = _divergences.log_add(first, jnp.where(more > 0.0, second, -jnp.inf))
    # Of both probabilities the smaller one counts, as it is (`_log_clones`).
    product, error = exact_product(m, zero)
    j = jnp.where(more > 0.0, k, 0.5 * m)
    apart = _apart(m, j, (m * one, product), error + (product - (m - j)))
    log_weight = jnp.where(more > 0.0, _log_choose(m, j, apart), log_all)
    size = jnp.where(more > 0.0, apart, -log_all)
    # A deviance far from its mean may be some 1/50 of the numbers that it is a difference of.
    terms = jnp.where(more > 0.0, jnp.minimum(96.0 * size, 8.0 * m), 0.0)
    terms = terms + 32.0 * (size + jnp.abs(log_distance)) + 4.0 * k * width[..., 0]
    error = _divergences.SLACK * (512.0 + jax.lax.stop_gradient(terms))
    return jnp.log(k) + log_weight + inner, error


def _tilt(rho, log_gap, n, p, rest):
    """The tilt, n log of the moment of (B - theta M) under it, and the mean share p' of clones."""
    small = rho < 1e-3
    r = jnp.where(small, 0.5, rho)
    entropy = 0.5 * ((1.0 + r) * log1p(r) + jnp.exp(log_gap) * log_gap)
    missing = -jnp.expm1(-jnp.where(small, 0.5 * rho * rho, entropy))  # 1 - e^-entropy
    log_moment = n * log1p(-p * missing)
    kept = p * (1.0 - missing)
    return log1p(rho) - log_gap, log_moment, kept / (kept + rest), rest / (kept + rest)


def _ratio(epsilon, bound):
    """rho and log(1 - rho), 1 - rho = 2 e^-eps (1 - e^(eps - eps0))/((1 - e^-eps0)(1 + e^-eps))."""
    rho = jnp.tanh(0.5 * epsilon) / jnp.tanh(0.5 * bound)
    log_gap = _special.LOG_2 - jax.nn.softplus(epsilon)
    log_gap = log_gap + _special.log1mexp(epsilon - bound) - _special.log1mexp(-bound)
    return jnp.minimum(rho, 1.0), jnp.minimum(log_gap, 0.0)


def _log_factor(epsilon, bound):
    """log 2 (1 + g) tanh(eps0/2)."""
    log_tanh = _special.log1mexp(-bound) - jax.nn.softplus(-bound)
    return _special.LOG_2 + jax.nn.softplus(epsilon) + log_tanh


def estimate(epsilon, bound, clone, rest, n):
    """log H to some percent by the normal law under the tilt, 0 <= epsilon < bound; no bound."""
    rho, log_gap = _ratio(epsilon, bound)
    p = jnp.maximum(clone, _LEAST)
    tilt, log_moment, share, _ = _tilt(rho, log_gap, n, p, rest)
    deviation = jnp.sqrt(n * share * 0.25 * (1.0 + rho) * jnp.exp(log_gap))
    x = tilt * deviation
    near = x < 20.0
    y = jnp.where(near, x, 0.0)
    part = jnp.where(near, 1.0 - y * _special.mills(y), 1.0 / (x * x + 3.0))
    value = _log_factor(epsilon, bound) - jnp.log(n * p) + log_moment
    return value + jnp.log(deviation * part) - _special.LOG_SQRT_2PI


def _edges(n, share, rest, blocks: Blocks):
    """Block i holds the numbers of clones from edges[i] on, below edges[i + 1].

    They lie on multiples of a power of two, so that they stay where they are when a parameter
    moves a little: the bound is then differentiable, as its derivative at frozen edges says.
    """
    mean, deviation = n * share, jnp.sqrt(n * share * rest)
    number, width = blocks
    wanted = 2.0 * width / number * deviation
    spacing = jnp.exp2(jnp.ceil(jnp.log2(jnp.maximum(wanted, 1.0))))
    first = jnp.maximum(jnp.floor(mean / spacing) - 0.5 * number, 0.0)
    edges = spacing * (first + jnp.arange(number + 1, dtype=jnp.float64))
    return jax.lax.stop_gradient(jnp.minimum(edges, jnp.ceil(n)))


def _log_geometric(count, log_ratio):
    """log sum_{i < count} e^{i log_ratio}."""
    many = count > 1.0
    x = jnp.where(many, log_ratio, 0.0)
    total = jnp.where(many, count, 1.0) * _special.relative_expm1(jnp.minimum(count * x, 700.0))
    return jnp.where(many, jnp.log(total / _special.relative_expm1(x)), 0.0)


def _left_out(edges, n, share, rest, tilt, log_moment):
    """log of E[(B - theta M)_+] over the M = C + 1 outside of all blocks, from above.

    Under the tilt of value t the variable is e^{-t S} S <= min(1/(e t), n), and M beyond m on
    either side of its mean n p' has probability e^{-D(m)} at most (Chernoff).
    """
    low, high = edges[0], edges[-1] + 1.0
    most = jnp.minimum(-1.0 - jnp.log(jnp.maximum(tilt, _LEAST)), jnp.log(n))

    def beyond(m, there):
        j = jnp.where(there, m, 0.5 * n)
        apart = _apart(n, j, (n * share, n * rest), j - n * share)
        return jnp.where(there, -apart * (1.0 - 1e-9), -jnp.inf)

    parts = beyond(low, low > 0.0), beyond(high, high < jnp.ceil(n) + 0.5)
    return _divergences.log_add(*parts) + log_moment * (1.0 - 1e-12) + most + 1e-6


def _mirrored(epsilon, bound, log_value, error, slack):
    """The answer at any real epsilon from log H at |epsilon|, moved by its error to a side."""
    size = jnp.abs(jax.lax.stop_gradient(jnp.where(jnp.isfinite(log_value), log_value, 0.0)))
    value = log_value + error + slack * (64.0 + 8.0 * size)
    value = jnp.where(jnp.abs(epsilon) < bound, jnp.minimum(value, 0.0), -jnp.inf)
    return _divergences._reflect(epsilon, value, slack)


def _inside(epsilon, bound):
    """|epsilon|, and 0 from eps0 on, where there is no loss."""
    magnitude = _divergences.magnitude(epsilon)
    return jnp.where(magnitude < bound, magnitude, 0.0)


def log_delta_of_clones(
    epsilon: jax.Array,
    bound: jax.Array,
    clone: jax.Array,
    rest: jax.Array,
    n: jax.Array,
    blocks: Blocks,
) -> jax.Array:
    """log H of shuffled reports of an eps0-DP randomiser, from above, at any real epsilon.

    Args:
      bound: eps0.
      clone: p, and `rest` is 1 - p, which both have few roundoffs of relative error.
      n: the number of records.
      blocks: how many of the number of clones, and to how many deviations on either side.
    """
    e = _inside(epsilon, bound)
    # fewer clones, and a smaller rho, are the larger side
    p = jnp.maximum(clone * (1.0 - _ULPS), _LEAST)
    rest = jnp.maximum(rest * (1.0 + _ULPS), _LEAST)
    rho, log_gap = _ratio(e, bound)
    tilt, log_moment, share, others = _tilt(rho, log_gap, n, p, rest)
    edges = _edges(n, share, others, blocks)
    rho = rho * (1.0 - _ULPS)
    log_gap = log_gap + _divergences.SLACK * (16.0 + 4.0 * jnp.abs(log_gap))
    first, count = edges[:-1], edges[1:] - edges[:-1]
    full = count > 0.0
    first = jnp.where(full, first, 0.0)
    m = first + 1.0
    k, log_distance = _first_above(m, rho, jnp.minimum(log_gap, 0.0))
    value, error = _log_excess(m, k, log_distance, 0.5)
    start, start_error = _log_clones(n, first, p, rest)
    # Weights are log-concave: the ratio of the first two bounds that of all others.
    log_ratio = jnp.log(jnp.maximum((n - m) * p / (m * rest), _LEAST)) + _ULPS
    terms = value - jnp.log(m) + start + _log_geometric(count, log_ratio) + (error + start_error)
    total = _special.logsumexp(jnp.where(full, terms, -jnp.inf)) + _log_factor(e, bound)
    scale = _log_factor(e, bound) - jnp.log(n * p)
    gone = _left_out(edges, n, share, others, tilt, log_moment) + scale
    total = _divergences.log_add(total, gone)
    return _mirrored(epsilon, bound, total, _QUADRATURE, _divergences.SLACK)


def log_delta_of_alike(epsilon: jax.Array, bound: jax.Array, n: jax.Array) -> jax.Array:
    """log H of n shuffled randomised responses, from below: all others hold the same value.

    A number between integers counts as the next one, since more records never raise the curve; its
    derivative is that of the gamma functions between them.
    """
    slack, e = _divergences.SLACK, _inside(epsilon, bound)
    n = n + jax.lax.stop_gradient(jnp.ceil(n) - n)
    part = _special.expm1(e - bound) / _special.expm1(-2.0 * bound)
    log_share = jnp.log(part) - (e + bound)  # of 1 - z0/n, the smaller the safer
    log_share = log_share - slack * (16.0 + 4.0 * jnp.abs(log_share))
    k, log_distance = _down_from(n, n, log_share)
    # and so are more ones
    one = jnp.minimum(jax.nn.sigmoid(-bound) * (1.0 + _ULPS), 0.5)
    value, error = _log_excess(n, k, log_distance, one)
    value = value + (e + bound) + _special.log1mexp(-2.0 * bound) - jnp.log(n)
    error = error + _QUADRATURE + slack * (16.0 + 4.0 * (e + bound))
    return _mirrored(epsilon, bound, value, -error, -slack)
