r"""Shuffled reports of local randomisers, as a comparison for random allocation.

n records each send one report through an eps0-DP randomiser, in random order. Every other
report is, with probability p, a fair coin between the reports of the two candidate inputs of the
record in question ("clones"), so that the shuffled reports are a post-processing of the pair

    P: A + D of 1 + C,    Q: A + 1 - D of 1 + C,    C ~ Bin(n - 1, p), A ~ Bin(C, 1/2),
                                                    D ~ Bernoulli(e^eps0/(1 + e^eps0)), C known

(Feldman, McMillan & Talwar 2021, arXiv 2012.12803, Theorem 3.1, with p = e^-eps0). For randomised
response p = 2/(e^eps0 + 1), which is its exact decomposition; Feldman, McMillan & Talwar 2023
(arXiv 2208.04591) first stated that p for every randomiser, which their errata take back.

Given C = c, with b the binomial weights, g = e^eps, a = e^eps0/(1 + e^eps0), the ratio of the laws
a b(k-1) + (1-a) b(k) and (1-a) b(k-1) + a b(k) rises with k, and the curve is

    H_c = u b(K-1) - (g - 1) T(K),    u = a - g (1 - a),    T(K) = P{Bin(c, 1/2) >= K},

K the first k with u b(k-1) > (g a - 1 + a) b(k); 0 for g >= e^eps0. More clones add a fair coin to
the counts, a post-processing: H_c falls with c, and a block of values of c lies between its ends.

(eps0, delta0)-DP randomisers lose another (e^eps + 1)(1 + e^-eps0/2) n delta0 in delta (the same
paper, Theorem 3.8); eps0 is chosen to minimise the total.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _special, _special_gamma
from jaxdp._mechanisms import (
    Base,
    Direction,
    Mechanism,
    RandomizedResponse,
    mechanism,
    require_mechanism,
)
from jaxdp._mechanisms._curve import canonical_terms, single

_BLOCKS = 160  # of the number of clones, up to 13 deviations from its mean
_CHOICES = 48  # of eps0
_SLACK = 1e-11  # relative: of the continued fraction, and of weights through log Gamma
_LARGEST = 1e9


def log_binomial(n: jax.Array, k: jax.Array, p: jax.Array) -> jax.Array:
    """log of the binomial weight in saddle-point form (Loader 2000), -inf outside 0 <= k <= n."""
    between = (k > 0.0) & (k < n)
    m, j = jnp.where(between, n, 2.0), jnp.where(between, k, 1.0)
    mu = _special_gamma.stirling_remainder
    excess = j - m * p
    apart = _special_gamma.deviance(j, m * p, excess)
    apart += _special_gamma.deviance(m - j, m * (1.0 - p), -excess)
    middle = mu(m) - mu(j) - mu(m - j) - apart - 0.5 * jnp.log(2.0 * jnp.pi * j * (1.0 - j / m))
    ends = jnp.where(k == 0.0, n * jnp.log1p(-p), n * jnp.log(p))
    ends = jnp.where((k == 0.0) | (k == n), ends, -jnp.inf)
    return jnp.where(between, middle, ends)


def _fraction(a: jax.Array, b: jax.Array, x: jax.Array) -> jax.Array:
    """The continued fraction of the incomplete beta function (DLMF 8.17.22), x < (a+1)/(a+b+2)."""
    tiny = 1e-300

    def guarded(v):
        return jnp.where(jnp.abs(v) < tiny, tiny, v)

    def step(state):
        m, c, d, h, _ = state
        even = m * (b - m) * x / ((a + 2.0 * m - 1.0) * (a + 2.0 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2.0 * m) * (a + 2.0 * m + 1.0))
        d, c = 1.0 / guarded(1.0 + even * d), guarded(1.0 + even / c)
        h = h * d * c
        d, c = 1.0 / guarded(1.0 + odd * d), guarded(1.0 + odd / c)
        return m + 1.0, c, d, h * d * c, jnp.abs(d * c - 1.0)

    first = 1.0 / guarded(1.0 - (a + b) * x / (a + 1.0))
    start = (jnp.ones_like(a), jnp.ones_like(a), first, first, jnp.ones_like(a))
    done = lax.while_loop(lambda s: jnp.any(s[4] > 1e-15) & jnp.all(s[0] < 2e4), step, start)
    return done[3]


@jax.custom_jvp
def binomial_tail(n: jax.Array, k: jax.Array, p: jax.Array) -> jax.Array:
    """P{Bin(n, p) >= k} for integers n and k, elementwise; differentiable in p alone."""
    n, k, p = jnp.broadcast_arrays(n, k, p)
    inside = (k >= 1.0) & (k <= n)
    j = jnp.where(inside, k, 1.0)
    size = jnp.where(inside, n, 1.0)
    upper = p < (j + 1.0) / (size + 3.0)  # else the complement, from the other end
    a, b = jnp.where(upper, j, size - j + 1.0), jnp.where(upper, size - j + 1.0, j)
    x = jnp.where(upper, p, 1.0 - p)
    # I_x(a, b) = x^a (1-x)^b/(a B(a, b)) * fraction, x^a (1-x)^b/(a B) = weight * (1 - x)
    log_front = log_binomial(size, a, x) + jnp.log1p(-x)
    tail = jnp.exp(log_front) * _fraction(a, b, x)
    value = jnp.where(upper, tail, 1.0 - tail)
    return jnp.where(inside, value, jnp.where(k < 1.0, 1.0, 0.0))


@binomial_tail.defjvp
def _binomial_tail_jvp(primals, tangents):
    """d P{Bin(n, p) >= k}/dp = k/p P{Bin(n, p) = k}."""
    n, k, p = primals
    slope = jnp.where(k > 0.0, k / p * jnp.exp(log_binomial(n, k, p)), 0.0)
    value = binomial_tail(n, k, p)
    return value, jnp.broadcast_to(slope * tangents[2], value.shape)


def rough_tail(n: jax.Array, k: jax.Array, p: jax.Array) -> jax.Array:
    """The same by a saddle point (Lugannani & Rice 1980), to 1% or better unless n is small."""
    inside = (k >= 1.0) & (k <= n)
    m, j = jnp.where(inside, n, 2.0), jnp.where(inside, k, 1.0) - 0.5
    excess = j - m * p
    apart = _special_gamma.deviance(j, m * p, excess)
    apart += _special_gamma.deviance(m - j, m * (1.0 - p), -excess)
    r = jnp.sign(excess) * jnp.sqrt(2.0 * jnp.maximum(apart, 0.0))
    tilt = jnp.log(j / (m * p)) - jnp.log((m - j) / (m * (1.0 - p)))
    u = 2.0 * jnp.sinh(0.5 * tilt) * jnp.sqrt(j * (1.0 - j / m))
    far = jnp.abs(r) > 0.01
    change = jnp.where(far, 1.0 / jnp.where(far, u, 1.0) - 1.0 / jnp.where(far, r, 1.0), 0.0)
    tail = jnp.exp(_special.log_ndtr(-r)) + change * jnp.exp(-0.5 * r * r) / np.sqrt(2.0 * np.pi)
    return jnp.where(inside, jnp.clip(tail, 0.0, 1.0), jnp.where(k < 1.0, 1.0, 0.0))


Tail = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def _given_clones(
    epsilon: jax.Array, bound: jax.Array, c: jax.Array, binomial_tail: Tail
) -> jax.Array:
    """H_c, elementwise, for |epsilon| < bound."""
    g, a = jnp.exp(epsilon), jax.nn.sigmoid(bound)
    rest = jax.nn.sigmoid(-bound)
    u, w = a - g * rest, g * a - rest
    first = jnp.floor(jnp.maximum((c + 1.0) * w / (u + w), -1.0)) + 1.0
    first = jnp.clip(first, 0.0, c + 1.0)
    half = jnp.full_like(c, 0.5)
    value = u * jnp.exp(log_binomial(c, first - 1.0, half)) - (g - 1.0) * binomial_tail(
        c, first, half
    )
    # at K = 0 all of P is counted: 1 - g
    return jnp.maximum(jnp.where(first <= 0.0, 1.0 - g, value), 0.0)


def pure_log_delta(
    epsilon: jax.Array,
    bound: jax.Array,
    clone: jax.Array,
    n: jax.Array,
    up: bool,
    tail: Tail = binomial_tail,
) -> jax.Array:
    """log H of the pair of an eps0-DP randomiser, from above or below (for that tail)."""
    inside = jnp.abs(epsilon) < bound
    e = jnp.where(inside, epsilon, 0.0)
    others = n - 1.0
    mean, deviation = others * clone, jnp.sqrt(others * clone * (1.0 - clone))
    z = jnp.linspace(-13.0, 13.0, _BLOCKS)
    # ends of blocks: every integer if there are few, else a grid of deviations
    few = others < _BLOCKS
    grid = jnp.where(few, jnp.arange(_BLOCKS, dtype=jnp.float64), jnp.round(mean + deviation * z))
    ends = jnp.clip(jnp.concatenate([jnp.zeros(1), grid]), 0.0, others + 1.0)
    ends = lax.stop_gradient(jnp.append(lax.cummax(ends), others + 1.0))
    tails = tail(others, ends, clone)
    weights = jnp.maximum(tails[:-1] - tails[1:], 0.0)
    at = ends[:-1] if up else ends[1:] - 1.0
    curve = _given_clones(e, bound, jnp.clip(at, 0.0, others), tail)
    # weights are differences of tails: 1e-14 of the whole may be missing or too much
    total = jnp.sum(weights * curve) * (1.0 + (_SLACK if up else -_SLACK))
    total = total + (1e-14 if up else -1e-14) * jnp.max(weights * 0.0 + curve * (weights > 0.0))
    left = _special.log1mexp(jnp.where(epsilon <= -bound, epsilon, -1.0))
    value = jnp.where(inside, _divergences.log_positive(total), -jnp.inf)
    return jnp.where(epsilon <= -bound, left, jnp.minimum(value, 0.0))


@mechanism
class Shuffled(Base):
    """n reports of a local randomiser, in random order.

    A bound for replacing one record's input, for comparison with random allocation: the pair of the
    module's source for pure-DP steps, exact for randomised response, and the best (eps0, delta0)
    reading of other steps, as for the Gaussian. Add and remove agree. One shuffle has a curve;
    compositions of it are refused.

    Args:
      mechanism: the local randomiser; its sensitivity is that of replacing one input by another.
      num_records: n >= 1, up to 1e9.

    Raises:
      ValueError: for a known num_records outside its domain. TypeError: if no mechanism.

    Example:
      >>> import jaxdp
      >>> reports = jaxdp.Shuffled(jaxdp.RandomizedResponse(1.0), 10_000)
      >>> bool(jaxdp.epsilon(reports, 1e-6) < 0.1)
      True
    """

    mechanism: Mechanism
    num_records: ArrayLike

    _domains: ClassVar = {
        "num_records": _checks.Domain("in [1, 1e9]", lambda x: (x >= 1) & (x <= _LARGEST))
    }

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        Mechanism.__post_init__(self)

    def _in_domain(self) -> jax.Array:
        inside = self._domains["num_records"].contains(self.num_records)
        return self.mechanism._in_domain() & inside

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        n, up = jnp.asarray(self.num_records, jnp.float64), slack >= 0.0
        step = single(canonical_terms(self.mechanism))
        if step is None:
            raise ValueError("mechanism must be one step, to be shuffled")
        if isinstance(step, RandomizedResponse):
            bound = jnp.asarray(step.epsilon)
            return pure_log_delta(epsilon, bound, 2.0 * jax.nn.sigmoid(-bound), n, up)
        if not up:
            return jnp.full_like(epsilon, -jnp.inf)
        curve = [step._log_hockey_stick(epsilon, d, slack) for d in ("remove", "add")]
        local = jnp.maximum(*curve)  # shuffling is a post-processing

        def total(bound, tail):
            failing = jnp.maximum(
                step._log_hockey_stick(bound, "remove", _divergences.SLACK),
                step._log_hockey_stick(bound, "add", _divergences.SLACK),
            )
            lost = jnp.logaddexp(epsilon, 0.0) + jnp.log1p(0.5 * jnp.exp(-bound)) + jnp.log(n)
            kept = pure_log_delta(epsilon, bound, jnp.exp(-bound), n, True, tail)
            return jnp.logaddexp(kept, lost + failing + 16.0 * _divergences.SLACK)

        # Any eps0 is valid: it is chosen by rough tails, a hundred times cheaper than exact ones.
        bounds = self._choices(step, epsilon)
        totals = jax.vmap(lambda bound: total(bound, rough_tail))(bounds)
        totals = lax.stop_gradient(jnp.where(jnp.isnan(totals), jnp.inf, totals))
        best = jnp.max(jnp.where(totals <= jnp.min(totals), bounds, -jnp.inf))
        exact = total(lax.stop_gradient(best), binomial_tail)
        return jnp.minimum(jnp.minimum(exact, local), 0.0)

    def _choices(self, step: Base, epsilon: jax.Array) -> jax.Array:
        """Values of eps0: up to the largest loss, or to where delta0 is about 1e-200."""
        low, high = step._loss_range()
        pure = jnp.maximum(high, -low)
        second = 2.0 * step._rate(jnp.asarray(2.0))  # mu^2 for the Gaussian
        far = 0.5 * second + 30.0 * jnp.sqrt(second)
        top = jnp.where(jnp.isfinite(pure), pure, far)
        share = jnp.asarray(np.linspace(0.0, 1.0, _CHOICES + 1)[1:])
        start = jnp.minimum(jnp.maximum(epsilon, 0.0), top)
        return lax.stop_gradient(start + (top - start) * share)

    def _rate(self, s: jax.Array) -> jax.Array:
        raise ValueError("Shuffled has no Rényi divergences and does not compose")

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return self._rate(s)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        raise ValueError("Shuffled has no loss law and does not compose")

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return self.mechanism._loss_range()

    def _log_failure(self, direction: Direction) -> jax.Array:
        return self.mechanism._log_failure(direction)

    def _symmetric(self) -> bool:
        return True

    def sample(self, key: jax.Array, value: Any) -> jax.Array:
        """One report for every entry along the first axis of an array, in random order."""
        report, order = jax.random.split(key)
        return jax.random.permutation(order, self.mechanism.sample(report, jnp.asarray(value)))
