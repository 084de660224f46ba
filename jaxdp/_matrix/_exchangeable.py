r"""Exchangeable covariances above and below a Gram matrix, and which of them to take.

X_G = (1/b) sum_j exp(Z_j - G_jj/2), Z ~ N(0, G), is the likelihood ratio. For convex f, E f(X_G)
rises with G in two senses.

1. Entrywise (Kahane 1986): if G <= G' in every entry, both covariances, let Z, Z' be independent,
   K(s) = (1 - s) G + s G' and phi(s) = E f(X_{K(s)}). By Gaussian integration by parts (Z_j and its
   compensator cancel the first-order terms)
   phi'(s) = 1/2 sum_{i,j} (G' - G)_{ij} b^{-2} E[e_i e_j f''(X)] >= 0, e_j = exp(Z_j - K_jj/2).
2. Loewner: if G' - G is positive semidefinite, Z' = Z + W with W ~ N(0, G' - G) independent, and
   E[X_{G'} | Z] = X_G, so that Jensen's inequality gives E f(X_G) <= E f(X_{G'}).

Both directions of privacy are expectations of convex functions of X under Q. Any chain of such
steps ends in a bound; here in an exchangeable c 11^T + w I, the pair of
Composed([Gaussian of mu^2 = c, RandomAllocation(Gaussian of mu^2 = w, t)]).

Above. 3. X is the average, over cyclic shifts, of means over t = floor(b/r) bins that are r or
more apart on the circle (every bin is in t of the b shifts), and E f of an average is at most the
average of E f: so t such bins, the worst shift, dominate. For their Gram matrix and any c: with
E_ij = (G_ij - c)_+ off the diagonal, the Laplacian D - E of the weights E (D their row sums) is
positive semidefinite, so G is below G + D - E (2.), whose entries off the diagonal are min(G_ij, c)
and on it G_ii + sum_j E_ij; that is below c 11^T + w I in every entry (1.), with

    w = max_i [ G_ii - c + sum_{j != i} (G_ij - c)_+ ].

c = max G_ij needs no step 2 and is best where all bins are alike; c = 0 is best where few are.
Below. Blocks of s neighbours taken as one, entrywise: w the least entry within s - 1 steps, c = 0,
ceil(b/s) blocks (of unequal blocks the mean of as many equal weights is below theirs, for weights
that majorise others give the larger mean in convex order). Common parts are seen by the tests of
`_linear`, which are better then.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _special as special
from jaxdp._allocation import RandomAllocation
from jaxdp._matrix._strategies import Lags
from jaxdp._mechanisms import Composed, Mechanism
from jaxdp._mechanisms._gaussian import GaussianDP

_NODES = np.linspace(-6.0, 12.0, 48)  # of a normal variable
_LOG_WEIGHTS = -0.5 * _NODES**2 - np.log(np.sum(np.exp(-0.5 * _NODES**2)))
_HALVINGS = 26
_LARGEST = 600.0  # exponent
_DEFAULT_AIM = np.log(1e-6)
_MOST_GAPS = 40
_SHARES = (0.0, 0.03, 0.08, 0.16, 0.3, 0.5, 0.75, 1.0)  # of c in its largest useful value
_LEAST_SHARE = 2.0**-40  # of c in the diagonal: composed laws want some noise in each
_ROUNDING = 2.0**-46  # of sums of up to 2^5 roundings more than of the b entries
_UNIT = 2.0**-52


class Exchangeable(NamedTuple):
    """c 11^T + w I of t bins; arrays of candidates, or one."""

    common: jax.Array
    own: jax.Array
    bins: jax.Array

    def mechanism(self) -> Mechanism:
        """The pair with this covariance."""
        return Composed([GaussianDP(jnp.sqrt(self.common), 4.0), self.allocation()])

    def allocation(self) -> Mechanism:
        """The same with nothing in common."""
        return RandomAllocation(GaussianDP(jnp.sqrt(self.own), 4.0), self.bins)


def gaps(num_bins: int) -> np.ndarray:
    """Which distances between the bins of a sub-family to try: the largest of each floor(b/r)."""
    ratios = np.unique(np.geomspace(1, num_bins, _MOST_GAPS).round().astype(int))
    return np.unique(num_bins // (num_bins // ratios))


def above(lags: Lags, sigma: jax.Array) -> Exchangeable:
    """Candidates that dominate, for every distance and several c."""
    b = lags.largest.shape[0]
    square = (1.0 / sigma) ** 2
    # by distance on the circle, for the last bin of an epoch is next to the first of another; the
    # k-th neighbour is k r or more away: bounds that fall with the distance
    half = b // 2
    back = np.minimum(b - np.arange(half + 1), b - 1)
    around = jnp.maximum(lags.largest[: half + 1], lags.largest[back])
    around = around.at[0].set(lags.largest[0])
    far = jax.lax.cummax(around, reverse=True) * square
    distances = gaps(b)
    bins = b // distances
    neighbours = np.arange(1, half + 1)[None, :]
    entries = far[np.minimum(distances[:, None] * neighbours, half)]  # (gaps, b // 2)
    # a bin has k-th neighbours on two sides; of an even number the last is on both
    left, right = (bins - 1)[:, None] // 2, (bins - 1)[:, None] - (bins - 1)[:, None] // 2
    times = (neighbours <= left) * 1.0 + (neighbours <= right) * 1.0
    top = jnp.where(bins > 1, entries[:, 0], 0.0)
    floor = _LEAST_SHARE * far[0]
    common = jnp.maximum(jnp.asarray(_SHARES)[:, None] * top, floor)  # (shares, gaps)
    excess = jnp.maximum(entries[None] - common[:, :, None], 0.0)
    own = jnp.maximum(far[0] - common, floor) + jnp.sum(times * excess, axis=-1)
    up = 1.0 + _ROUNDING + _UNIT * b
    shape = common.shape
    every = jnp.broadcast_to(jnp.asarray(bins, jnp.float64), shape)
    return Exchangeable((common * up).ravel(), (own * up).ravel(), every.ravel())


def below(lags: Lags, sigma: jax.Array) -> Exchangeable:
    """Candidates that are dominated, one for each size of blocks; with nothing in common."""
    b = lags.least.shape[0]
    within = jax.lax.cummin(lags.least) * (1.0 / sigma) ** 2
    sizes = np.unique(np.geomspace(1, b, _MOST_GAPS).round().astype(int))
    own = within[sizes - 1] * (1.0 - _ROUNDING)
    bins = jnp.asarray(-(-b // sizes), jnp.float64)
    return Exchangeable(jnp.zeros_like(own), own, bins)


def log_delta_estimate(candidate: Exchangeable, epsilon: jax.Array) -> jax.Array:
    """About log delta (remove): one ratio from P, the others a lognormal of their variance.

    X under P is e^{sqrt(c) Z + c/2} (R + e^{sqrt(w) xi + w/2}/t), R the mean of the t - 1 others.
    """
    c, w, t = candidate
    rest = jnp.log1p(jnp.expm1(jnp.minimum(w, _LARGEST)) * (t - 1.0) / (t * t))
    one = jnp.sqrt(w) * _NODES + 0.5 * w - jnp.log(t)
    others = jnp.where(t > 1.0, jnp.log1p(-1.0 / jnp.maximum(t, 1.5)), -jnp.inf)
    mean = 0.5 * (c - rest) + jnp.logaddexp(others, one)
    deviation = jnp.sqrt(c + rest)
    a = (mean - epsilon) / deviation
    kept = special.log_ndtr(a)
    lost = epsilon - mean + 0.5 * deviation**2 + special.log_ndtr(a - deviation)
    some = kept > lost
    gain = kept + special.log1mexp(jnp.where(some, lost - kept, -1.0))
    return special.logsumexp(jnp.where(some, gain, -jnp.inf) + _LOG_WEIGHTS)


def _epsilon(candidate: Exchangeable, log_delta: jax.Array) -> jax.Array:
    """About epsilon, by bisection."""
    most = 2.0 + 40.0 * jnp.sqrt(candidate.common + candidate.own)
    most = most + 0.5 * (candidate.common + candidate.own)

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
        aim = jax.lax.stop_gradient(jnp.abs(epsilon))  # the order at -epsilon is much the same
        value = jax.vmap(lambda x: log_delta_estimate(x, aim))(frozen)
    else:
        aim = _DEFAULT_AIM if log_delta is None else jax.lax.stop_gradient(log_delta)
        value = jax.vmap(lambda x: _epsilon(x, aim))(frozen)
    value = -value if largest else value
    value = jnp.where(jnp.isnan(value), jnp.inf, value)
    index = jnp.arange(value.shape[0])
    first = jnp.min(jnp.where(value == jnp.min(value), index, value.shape[0] - 1))
    return Exchangeable(*(x[first] for x in candidates))
