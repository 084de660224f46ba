r"""Covariances above and below a Gram matrix whose pairs are tractable, and which of them to take.

X_G = (1/b) sum_j exp(Z_j - G_jj/2), Z ~ N(0, G), is the likelihood ratio. For convex f, E f(X_G)
rises with G in two senses.

1. Entrywise (Kahane 1986): if G <= G' in every entry, both covariances, let Z, Z' be independent,
   K(s) = (1 - s) G + s G' and phi(s) = E f(X_{K(s)}). By Gaussian integration by parts (Z_j and its
   compensator cancel the first-order terms)
   phi'(s) = 1/2 sum_{i,j} (G' - G)_{ij} b^{-2} E[e_i e_j f''(X)] >= 0, e_j = exp(Z_j - K_jj/2).
2. Loewner: if G' - G is positive semidefinite, Z' = Z + W with W ~ N(0, G' - G) independent, and
   E[X_{G'} | Z] = X_G, so that Jensen's inequality gives E f(X_G) <= E f(X_{G'}).

Both directions of privacy are expectations of convex functions of X under Q. Any chain of such
steps ends in a bound; here in t blocks of two bins, of covariance c + pair within a block, c
between blocks and c + pair + own of a bin with itself: the pair of Composed([Gaussian of mu^2 = c,
RandomAllocation(two_bins(pair, own), t)]). With own = 0 a block is one bin.

Above. 3. X is the average, over cyclic shifts, of means over a pattern of bins (every bin is in as
many of the b shifts), and E f of an average is at most the average of E f: so the pattern,
at the worst shift, dominates. Patterns are t = floor(b/l) blocks l apart on the circle of a bin
each, or of two bins d apart. By 1. every entry is raised to the largest at its distance or beyond
on the circle of the pattern, and to q at least between blocks. What results is a block-circulant
matrix H: with E_k the entries between alike members of blocks k apart, F_k those between the
first and the second, and alpha, beta (complex) their discrete Fourier transforms at a frequency,
its eigenvalues are alpha +- |beta|. (E - q and F - q fall to both sides of their largest: beyond
some frequencies, at angles theta or more, |sum_{k > 0} (F_k - q) e^{ik theta}| is at most
(F_1 - q)/sin(theta/2) by Abel's summation, and its real part at most half of 1/sin(theta/2) - 1
times F_1 - q.) Those of c 11^T + pair (blocks) + own I less H are, by 2 x 2
blocks, never negative if and only if

    own + pair >= alpha + |beta - pair|                 at every frequency but 0, and
    own + pair + c t >= alpha_0 + |beta_0 - pair - c t|  there.

For any pair >= 0, own is the least that meets the first line and is alpha_0 - beta_0 at least, c
the least (alpha_0 + beta_0 - own - 2 pair)/(2 t) or 0. For blocks of one bin, c 11^T + w I >= H
where w is at least every alpha but the first and c t + w at least that one.
Below. Blocks of s neighbours taken as one, entrywise: w the least entry within s - 1 steps, c = 0,
ceil(b/s) blocks (of unequal blocks the mean of as many equal weights is below theirs, for weights
that majorise others give the larger mean in convex order). Common parts are seen by the tests of
`_linear`, which are better then.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special as special
from jaxdp._allocation import RandomAllocation
from jaxdp._matrix._strategies import Lags
from jaxdp._matrix._two_bins import two_bins
from jaxdp._mechanisms import Composed, Mechanism
from jaxdp._mechanisms._gaussian import GaussianDP

_NODES = np.linspace(-5.0, 11.0, 36)  # of a normal variable
_LOG_WEIGHTS = -0.5 * _NODES**2 - np.log(np.sum(np.exp(-0.5 * _NODES**2)))
_HALVINGS = 13
_STRIDE = 8  # one candidate of so many tells where epsilon is
_LARGEST = 600.0  # exponent
_DEFAULT_AIM = np.log(1e-6)
_MOST_SIZES, _MOST_SPACINGS, _MOST_DISTANCES = 32, 24, 5
_FREQUENCIES = 16
_LONG, _SHORTER = 1024, 8  # so many bins, and by so much patterns of fewer blocks are shorter
_LEAST_ENTRIES = (0.0, 0.08, 0.25, 0.5, 1.0)  # q, in units of the largest between blocks
_PAIRS = (0.35, 0.7, 1.0)  # of the entry within a block less q
# Of c in the diagonal G, 2^-15 + 2^-16 G, at most 2^-10: atoms and lattices of the blocks show in
# the slopes of composed laws, unless some noise blurs them.
_SHARE, _SHARE_BY_SIZE, _MOST_SHARE = 2.0**-15, 2.0**-16, 2.0**-10
_LEAST_PAIR = 2.0**-40  # of the diagonal
_ROUNDING = 2.0**-46  # of sums of up to 2^5 roundings more than of the b entries
_UNIT = 2.0**-52


class Exchangeable(NamedTuple):
    """c 11^T + pair (blocks of two) + own I of t blocks; arrays of candidates, or one."""

    common: jax.Array
    pair: jax.Array
    own: jax.Array
    bins: jax.Array

    def mechanism(self) -> Mechanism:
        """The pair with this covariance."""
        common = GaussianDP(jnp.sqrt(self.common), 4.0)
        return Composed([common, RandomAllocation(two_bins(self.pair, self.own), self.bins)])

    def single(self) -> RandomAllocation:
        """The same of blocks of one bin, nothing in common."""
        return RandomAllocation(GaussianDP(jnp.sqrt(self.pair), 4.0), self.bins)


def _spacings(num_bins: int, most: int) -> list[int]:
    """Distances l between blocks to try: the largest of each floor(b/l)."""
    ratios = np.unique(np.geomspace(1, num_bins, most).round().astype(int))
    return [int(x) for x in np.unique(num_bins // (num_bins // ratios))]


def _around(lags: Lags, sigma: jax.Array) -> jax.Array:
    """Bounds on the entries by distance on the circle, falling: 0 .. b // 2.

    The last bin of an epoch is next to the first of another.
    """
    b = lags.largest.shape[0]
    half = b // 2
    back = np.minimum(b - np.arange(half + 1), b - 1)
    around = jnp.maximum(lags.largest[: half + 1], lags.largest[back])
    around = around.at[0].set(lags.largest[0])
    return jax.lax.cummax(around, reverse=True) * (1.0 / sigma) ** 2


def _frequencies(t: jax.Array, places: jax.Array) -> tuple[jax.Array, ...]:
    """Cosines and sines (frequencies, places) of the first frequencies but 0.

    And which of them are any, and 1/sin(theta/2) at the next (0 if there is none).
    """
    f = jnp.arange(1, _FREQUENCIES + 1)
    angle = 2.0 * jnp.pi * ((f[:, None] * places[None, :]) % t) / t
    following = _FREQUENCIES + 1
    more = 2 * following <= t
    theta = jnp.where(more, jnp.pi * following / t, 1.0)
    return jnp.cos(angle), jnp.sin(angle), f < t, jnp.where(more, 1.0 / jnp.sin(theta), 0.0)


class _Pattern(NamedTuple):
    """t blocks `spacing` apart, of two bins at a distance (of one where it is 0)."""

    blocks: jax.Array
    spacing: jax.Array
    distance: jax.Array

    def entries(self, far: jax.Array, places: jax.Array, offset: jax.Array) -> jax.Array:
        """By blocks, on the pattern's own circle, 0 beyond it.

        (Its last block is as far from the first as any two neighbours, or farther.)
        """
        length = self.blocks * self.spacing
        at = (places * self.spacing + offset) % length
        value = far[jnp.minimum(jnp.minimum(at, length - at), far.shape[0] - 1)]
        return jnp.where(places < self.blocks, value, 0.0)


def _eigenvalues(pattern: _Pattern, raised: jax.Array, least: jax.Array, wave: tuple) -> jax.Array:
    """alpha, the bound on those of the higher frequencies last: (q, frequencies + 1)."""
    cos, _, some, wide = wave
    alpha = jnp.where(some, raised @ cos.T, -jnp.inf)
    one = raised[:, 1] - least[:, 0] * (pattern.blocks > 1)
    # by Abel's summation, or by the sum of the excess over q
    total = jnp.sum(raised, axis=1) - least[:, 0] * pattern.blocks
    rest = jnp.minimum(raised[:, 0] + one * jnp.maximum(wide - 1.0, 0.0), total)
    return jnp.concatenate([alpha, jnp.where(wide > 0.0, rest, -jnp.inf)[:, None]], axis=1)


def _single_bins(far: jax.Array, places: jax.Array, pattern: _Pattern) -> Exchangeable:
    """Blocks of one bin, for each q."""
    t = pattern.blocks
    alike = pattern.entries(far, places, jnp.zeros_like(t))
    least = jnp.asarray(_LEAST_ENTRIES)[:, None] * jnp.where(t > 1, alike[1], 0.0)
    inside = (places > 0) & (places < t)
    raised = jnp.maximum(alike, jnp.where(inside, least, 0.0))
    first = jnp.sum(raised, axis=1)
    error = _UNIT * (2.0 * t + 64.0) * first
    own = jnp.max(_eigenvalues(pattern, raised, least, _frequencies(t, places)), axis=1) + error
    own = jnp.where(t > 1, jnp.maximum(own, 0.0), far[0])
    common = jnp.where(t > 1, jnp.maximum(first + error - own, 0.0) / t, 0.0)
    return _candidates(common, own, jnp.zeros_like(own), t, far[0])


def _modulus(x: jax.Array, y: jax.Array) -> jax.Array:
    """|x + iy|, with derivatives of 0 where that is 0 (those of jnp.hypot(1e-300, 0) are nan)."""
    top = jax.lax.stop_gradient(jnp.maximum(jnp.abs(x), jnp.abs(y)))
    some = top > 0.0
    scale = jnp.where(some, top, 1.0)
    square = jnp.where(some, (x / scale) ** 2 + (y / scale) ** 2, 1.0)
    return jnp.where(some, scale * jnp.sqrt(square), 0.0)


def _two_bins(far: jax.Array, places: jax.Array, pattern: _Pattern) -> Exchangeable:
    """Blocks of two bins, for each q and each covariance of the two."""
    t = pattern.blocks
    alike = pattern.entries(far, places, jnp.zeros_like(t))
    other = pattern.entries(far, places, pattern.distance)
    between = (places > 0) & (places < t)
    before = jnp.max(jnp.where(places == t - 1, other, 0.0)) * (t > 1)
    top = jnp.maximum(jnp.where(t > 1, alike[1], 0.0), before)
    least = jnp.asarray(_LEAST_ENTRIES)[:, None] * top
    raised, crossed = (jnp.maximum(x, jnp.where(between, least, 0.0)) for x in (alike, other))
    sums = jnp.sum(raised, axis=1)[:, None], jnp.sum(crossed, axis=1)[:, None]
    error = _UNIT * (2.0 * t + 64.0) * (sums[0] + sums[1])
    wave = _frequencies(t, places)
    cos, sin, _, wide = wave
    alpha = _eigenvalues(pattern, raised, least, wave)[:, None, :]
    # within a block: shares of what is not common
    inner = other[0]
    pair = jnp.asarray(_PAIRS) * jnp.maximum(inner - least * (t > 1), 0.0)
    x = (crossed @ cos.T)[:, None, :] - pair[..., None]
    y = (crossed @ sin.T)[:, None, :]
    size = _modulus(x, y)
    sides = jnp.maximum(crossed[:, 1], least[:, 0]) + jnp.maximum(before, least[:, 0])
    sides = jnp.maximum(sides - 2.0 * least[:, 0], 0.0)[:, None]
    excess = sums[1] - inner - (t - 1) * least
    rest = jnp.abs(inner - least - pair) + jnp.minimum(sides * wide, excess)
    own = jnp.max(alpha + jnp.concatenate([size, rest[..., None]], axis=-1), axis=-1) - pair
    own = jnp.maximum(jnp.maximum(own, sums[0] - sums[1]) + error, 0.0)
    common = jnp.maximum(0.5 * (sums[0] + sums[1] - own) - pair + error, 0.0) / t
    return _candidates(common, pair, own, t, far[0])


def _candidates(common, pair, own, t: jax.Array, diagonal: jax.Array) -> Exchangeable:
    """Rounded up, with no part that is 0."""
    up, least = 1.0 + _ROUNDING, _LEAST_PAIR * diagonal
    share = jnp.minimum(_SHARE + _SHARE_BY_SIZE * diagonal, _MOST_SHARE)
    common, pair, own = jnp.broadcast_arrays(
        jnp.maximum(common, share * diagonal) * up, jnp.maximum(pair, least) * up, own * up
    )
    return Exchangeable(common, pair, own, jnp.full_like(common, t))


def _patterns(num_bins: int) -> tuple[_Pattern, _Pattern]:
    """Those of one bin and those of two."""
    one = np.array([(num_bins // x, x, 0) for x in _spacings(num_bins, _MOST_SIZES)])
    two = []
    for x in _spacings(num_bins, _MOST_SPACINGS):
        # up to the middle of the spacing, beyond which patterns repeat
        inner = np.unique(np.geomspace(1, max(x / 2, 1), _MOST_DISTANCES).round().astype(int))
        two += [(num_bins // x, x, d) for d in inner if 2 * d <= x]
    return _Pattern(*one.T), _Pattern(*np.array(two).reshape(-1, 3).T)


def _by_length(patterns: _Pattern, num_bins: int) -> list[tuple[_Pattern, int]]:
    """Patterns of as many blocks as there are bins, or nearly, apart from the many of few."""
    if num_bins < _LONG:
        return [(patterns, num_bins)] if patterns.blocks.size else []
    short = patterns.blocks <= num_bins // _SHORTER
    groups = [(~short, num_bins), (short, num_bins // _SHORTER)]
    return [(_Pattern(*(x[some] for x in patterns)), most) for some, most in groups if some.any()]


def above(lags: Lags, sigma: jax.Array, pairs: bool = True) -> Exchangeable:
    """Candidates that dominate: of one bin and of two, for several spacings, q and pairs."""
    b = lags.largest.shape[0]
    far = _around(lags, sigma)
    parts = []
    for patterns, family in zip(_patterns(b), (_single_bins, _two_bins), strict=True):
        if not pairs and family is _two_bins:
            continue
        for of, most in _by_length(patterns, b):
            places = jnp.arange(most)
            evaluate = functools.partial(family, far, places)
            found = jax.lax.map(evaluate, jax.tree.map(jnp.asarray, of))
            parts.append([x.ravel() for x in found])
    return Exchangeable(*(jnp.concatenate(x) for x in zip(*parts, strict=True)))


def below(lags: Lags, sigma: jax.Array) -> Exchangeable:
    """Candidates that are dominated, one for each size of blocks; with nothing in common."""
    b = lags.least.shape[0]
    within = jax.lax.cummin(lags.least) * (1.0 / sigma) ** 2
    sizes = np.unique(np.geomspace(1, b, _MOST_SIZES).round().astype(int))
    whole = within[sizes - 1] * (1.0 - _ROUNDING)
    bins = jnp.asarray(-(-b // sizes), jnp.float64)
    return Exchangeable(jnp.zeros_like(whole), whole, jnp.zeros_like(whole), bins)


def log_delta_estimate(candidate: Exchangeable, epsilon: jax.Array) -> jax.Array:
    """About log delta (remove): one block from P, the others a lognormal of their variance.

    Of the bin that the record is in, the exponent is s N + s^2/2 with s^2 = pair + own; of the
    other in its block the conditional mean given N is taken.
    """
    c, pair, w, t = candidate
    square = pair + w
    s = jnp.sqrt(square)
    grow = jnp.exp(jnp.minimum(pair, _LARGEST)) * (1.0 + 0.5 * jnp.expm1(jnp.minimum(w, _LARGEST)))
    rest = jnp.log1p((grow - 1.0) * (t - 1.0) / (t * t))
    slope = pair / s
    main = s * _NODES + 0.5 * square
    other = pair + slope * _NODES - 0.5 * slope**2
    one = jnp.logaddexp(main, other) - special.LOG_2 - jnp.log(t)
    others = jnp.where(t > 1.0, jnp.log1p(-1.0 / jnp.maximum(t, 1.5)), -jnp.inf)
    total = jnp.logaddexp(others, one)
    # what the other bin of the block is by itself counts by its share: of few blocks, much
    share = jnp.exp(2.0 * (other - special.LOG_2 - jnp.log(t) - total))
    free = jnp.clip(square - slope**2, 0.0, _LARGEST)
    rest = rest + jnp.log1p(share * jnp.expm1(free))
    mean = 0.5 * (c - rest) + total
    deviation = jnp.sqrt(c + rest)
    a = (mean - epsilon) / deviation
    kept = special.log_ndtr(a)
    lost = epsilon - mean + 0.5 * deviation**2 + special.log_ndtr(a - deviation)
    some = kept > lost
    gain = kept + special.log1mexp(jnp.where(some, lost - kept, -1.0))
    return special.logsumexp(jnp.where(some, gain, -jnp.inf) + _LOG_WEIGHTS)


def _epsilon(candidate: Exchangeable, log_delta: jax.Array) -> jax.Array:
    """About epsilon, by bisection."""
    square = candidate.common + candidate.pair + candidate.own
    most = 2.0 + 40.0 * jnp.sqrt(square) + 0.5 * square

    def body(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        above = log_delta_estimate(candidate, middle) > log_delta
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    return jax.lax.fori_loop(0, _HALVINGS, body, (jnp.zeros_like(most), most))[1]


def chosen(
    candidates: Exchangeable,
    epsilon: jax.Array | None,
    log_delta: jax.Array | None,
    largest: bool = False,
) -> Exchangeable:
    """The candidate of about the least (or largest) epsilon or delta; a choice, frozen.

    Nothing here needs to be right: every candidate is a bound. Gradients are those of the one
    that is chosen.
    """
    frozen = jax.lax.stop_gradient(candidates)
    if epsilon is not None:
        at = jax.lax.stop_gradient(jnp.abs(epsilon))  # the order at -epsilon is much the same
    else:
        aim = _DEFAULT_AIM if log_delta is None else jax.lax.stop_gradient(log_delta)
        some = jax.tree.map(lambda x: x[::_STRIDE], frozen)
        each = jax.vmap(lambda x: _epsilon(x, aim))(some)
        each = jnp.where(jnp.isnan(each), -jnp.inf if largest else jnp.inf, each)
        at = jnp.max(each) if largest else jnp.min(each)
    value = jax.vmap(lambda x: log_delta_estimate(x, at))(frozen)
    value = -value if largest else value
    value = jnp.where(jnp.isnan(value), jnp.inf, value)
    index = jnp.arange(value.shape[0])
    first = jnp.min(jnp.where(value == jnp.min(value), index, value.shape[0] - 1))
    return Exchangeable(*(x[first] for x in candidates))
