"""Poisson batches that are cut down to a largest size, as programs of fixed shapes train on."""

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates, _rates_line
from jaxdp import _special as special
from jaxdp._divergences import SLACK
from jaxdp._mechanisms._base import (
    Base,
    Direction,
    Mechanism,
    OnBatch,
    mechanism,
    require_mechanism,
)
from jaxdp._mechanisms._curve import canonical_terms, single
from jaxdp._mechanisms._fixed_size import FixedSizeSampled, exchanged
from jaxdp._mechanisms._poisson_replace import PoissonSampledReplaceOne, is_gaussian
from jaxdp._mechanisms._replace import replace_one
from jaxdp._mechanisms._sampling import PoissonSampled

_MOST_TERMS = 2**16  # of a binomial tail
_CUMULATED = 1e-10  # relative error of what is summed from so many terms


class _Parts(NamedTuple):
    """Two pairs, the logs of their probabilities, and the relative error of these."""

    pairs: tuple[Base, Base]
    log_weights: jax.Array
    error: jax.Array


class Truncated(OnBatch):
    """Abstract: a Poisson batch of which B records are kept, as a mixture of two revealed pairs.

    Attributes:
      sampling_probability: q in (0, 1).
      batch_size: B.
      num_records: n.
    """

    sampling_probability: Any
    batch_size: int
    num_records: int

    _domains: ClassVar = {"sampling_probability": _checks.RATE}

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        super().__post_init__()
        for name in ("batch_size", "num_records"):
            object.__setattr__(self, name, _checks.whole_number(name, getattr(self, name)))
        known = _checks.concrete("sampling_probability", self.sampling_probability)
        if known is not None and np.any(known >= 1.0) and self.batch_size < self.num_records:
            raise ValueError("sampling_probability must be < 1 where batches are cut")
        if single(canonical_terms(self.mechanism)) is None:
            got = _checks.shown(self.mechanism)
            raise ValueError(f"mechanism must be one step, got {got}")
        replace_one(self.mechanism)

    @abc.abstractmethod
    def _pairs(self, q: jax.Array, rate: jax.Array) -> tuple[Base, Base]:
        """The pair of batches that had room for all, at rate q, and that of the others, at q'."""

    def _in_domain(self) -> jax.Array:
        cut = self.batch_size < self.num_records
        return super()._in_domain() & ((self.sampling_probability < 1.0) | (not cut))

    def _parts(self, side: int = 1) -> _Parts:
        """With q' rounded up (side = +1), or down (-1): curves rise with it."""
        q = 1.0 * jnp.asarray(self.sampling_probability)
        log_weights, rates, error = _tail(q, self.batch_size, self.num_records)
        return _Parts(self._pairs(q, rates[side > 0]), log_weights, error)

    def _kept_probability(self) -> jax.Array:
        """How often a record is in the batch and kept, rounded down."""
        q = 1.0 * jnp.asarray(self.sampling_probability)
        log_weights, (rate, _), error = _tail(q, self.batch_size, self.num_records)
        weights = jnp.exp(log_weights)
        return (weights[0] * q + weights[1] * rate) * (1.0 - error)

    def _rate(self, s: jax.Array) -> jax.Array:
        pairs, log_weights, error = self._parts()
        rates = jnp.stack([pair._rate(s) for pair in pairs])
        return _rates_line.moments_rate(s, log_weights, rates) * (1.0 + error)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.convex_rate(s, self._rate(s), q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        ranges = [pair._loss_range() for pair in self._parts().pairs]
        if self.batch_size >= self.num_records:  # nothing is ever cut
            return ranges[0]
        return jnp.minimum(ranges[0][0], ranges[1][0]), jnp.maximum(ranges[0][1], ranges[1][1])

    def _range_ulps(self) -> Any:
        first, second = self._parts().pairs
        return jnp.maximum(first._range_ulps(), second._range_ulps())

    def _log_failure(self, direction: Direction) -> jax.Array:
        pairs, log_weights, _ = self._parts()
        both = zip(pairs, log_weights, strict=True)
        return _divergences.log_add(*(w + pair._log_failure(direction) for pair, w in both))

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        first, second = (pair._atoms_at_ends() for pair in self._parts().pairs)
        return first[0] or second[0], first[1] or second[1]

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        pairs, log_weights, error = self._parts(-1 if slack < 0.0 else 1)
        parts = [
            w + pair._log_hockey_stick(epsilon, direction, slack)
            for pair, w in zip(pairs, log_weights, strict=True)
        ]
        rounding = slack * (8.0 + error / SLACK)
        return jnp.minimum(_divergences.log_add(*parts) + rounding, 0.0)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        pairs, log_weights, _ = self._parts()
        first, second = (pair._log_masses(lo, hi) for pair in pairs)
        weights = log_weights[0], log_weights[1]
        return tuple(
            _divergences.log_add(weights[0] + a, weights[1] + b)
            for a, b in zip(first, second, strict=True)
        )

    def _mass_error(self) -> jax.Array | float:
        pairs, _, error = self._parts()
        return error + jnp.maximum(pairs[0]._mass_error(), pairs[1]._mass_error())


@mechanism
class TruncatedPoissonSampled(Truncated):
    r"""A mechanism on a Poisson batch of which B records are kept, at random, where it has more.

    Let x be the record, the others n - 1, and T the event that B or more of these are sampled, of
    probability tau, the same with and without x. Where T fails, x is in the batch with probability
    q: the Poisson-sampled pair. Where it holds, the batch without x is a uniform set of B of the
    others, whatever was sampled; with x it is that too, but with probability

    .. math:: q' = \frac{q}{\tau} \sum_{s \ge B} \binom{n-1}{s} q^s (1-q)^{n-1-s} \frac{B}{s+1}

    a uniform set of B - 1 of them, and x. Draw the B - 1 first and the last one y after: x takes
    the place of y with probability q', so that by joint convexity the pair of this case is the
    Poisson-sampled one at rate q' and twice the sensitivity. Whether T holds is revealed (an upper
    bound): the curve is (1 - tau) H + tau H', in both directions, and composes adaptively. (The
    scheme is that of Ganesh 2025, arXiv 2508.15089, whose bound has a larger pair in its second
    part.) With B >= n it is the Poisson sample, exactly.

    Where x is instead exchanged for a record that is drawn like it and moves nothing (`zero_out`),
    both sides have n records, and either one takes the place of y with probability q': the second
    pair is that of `FixedSizeSampled` at rate q' (see `TruncatedPoissonSampledReplaceOne`), the
    first as before. It is above the pair of adding and removing, and holds for both.

    Args:
      mechanism: one step that runs on the batch, that `replace_one` takes: a Gaussian, Laplace
        noise, ..., of the sensitivity to one record added or removed.
      sampling_probability: q in (0, 1).
      batch_size: B, a known integer >= 1.
      num_records: n, a known integer: the larger side, with the record.
      zero_out: whether records that are replaced by one without effect are neighbours, too (then
        the mechanism must be symmetric).

    Raises:
      ValueError: if a known argument is outside its domain, or the mechanism has no replace-one
        pair. TypeError: if it is no mechanism.

    Example:
      >>> import jaxdp
      >>> step = jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.01, 130, 10_000)
      >>> float(jaxdp.delta(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1.0)) < float(
      ...     jaxdp.delta(step, 1.0)) < 2e-4
      True
    """

    mechanism: Mechanism
    sampling_probability: ArrayLike
    batch_size: int = dataclasses.field(metadata={"static": True})
    num_records: int = dataclasses.field(metadata={"static": True})
    zero_out: bool = dataclasses.field(default=False, metadata={"static": True})

    _relation: ClassVar = "add-or-remove"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.zero_out, bool):
            raise TypeError(f"zero_out must be True or False, got {_checks.shown(self.zero_out)}")
        if self.zero_out:
            exchanged(self.mechanism)

    def _pairs(self, q: jax.Array, rate: jax.Array) -> tuple[Base, Base]:
        first = PoissonSampled(self.mechanism, q)
        if self.zero_out:
            return first, FixedSizeSampled(self.mechanism, rate)
        return first, PoissonSampled(replace_one(self.mechanism), rate)

    def _symmetric(self) -> bool:
        return False

    def _replaced(self) -> Mechanism:
        return TruncatedPoissonSampledReplaceOne(
            self.mechanism, self.sampling_probability, self.batch_size, self.num_records
        )


@mechanism
class TruncatedPoissonSampledReplaceOne(Truncated):
    r"""A truncated Poisson batch, of whose n records one is exchanged for another.

    With tau and q' of `TruncatedPoissonSampled` (n - 1 others on both sides), B or more of the
    others are sampled with probability 1 - tau or tau on both sides, which is revealed:

    * where fewer are, x and x' are in the batch with probability q: the pair of
      `PoissonSampledReplaceOne` for a Gaussian, of `FixedSizeSampled` at rate q for other noise
      (an upper bound: with M the law without either, (1-q) M + q P and (1-q) M + q P' are those
      of a batch of fixed size whose other record moves the value by less);
    * where B or more are, B - 1 of them are a uniform set, and the last place goes to the exchanged
      record with probability q', else to another one, y. Given the set and y, the pair is
      (1-q') P_y + q' P_x against (1-q') P_y + q' P_x', any two of which are one exchange apart: by
      advanced joint convexity (Balle, Barthe & Gaboardi 2018, Theorem 2) it has at e^epsilon >= 1
      at most the curve q' H(log(1 + (e^epsilon - 1)/q')) of `FixedSizeSampled`, in both directions.
      (Both agree where y is x' or x.)

    An upper bound, symmetric, that composes adaptively; with B >= n it is the first pair alone.
    From below, records without effect but x = -x' attain `PoissonSampledReplaceOne` at the rate at
    which x is kept, q P(fewer than B others) + q' tau.

    Args:
      mechanism: one symmetric step with a replace-one pair (a Gaussian, Laplace noise, ...), of the
        sensitivity to one record added or removed.
      sampling_probability: q in (0, 1).
      batch_size: B, a known integer >= 1.
      num_records: n, a known integer, the same on both sides.

    Raises:
      ValueError: if a known argument is outside its domain, or the mechanism has no such pair.
        TypeError: if it is no mechanism.

    Example:
      >>> import jaxdp
      >>> step = jaxdp.TruncatedPoissonSampledReplaceOne(jaxdp.Gaussian(4.0), 0.01, 130, 10_000)
      >>> round(float(jaxdp.epsilon(step, 1e-5)), 3), step.neighbours
      (0.013, 'replace-one')
    """

    mechanism: Mechanism
    sampling_probability: ArrayLike
    batch_size: int = dataclasses.field(metadata={"static": True})
    num_records: int = dataclasses.field(metadata={"static": True})

    _relation: ClassVar = "replace-one"

    def __post_init__(self) -> None:
        super().__post_init__()
        exchanged(self.mechanism)

    def _pairs(self, q: jax.Array, rate: jax.Array) -> tuple[Base, Base]:
        first = PoissonSampledReplaceOne if is_gaussian(self.mechanism) else FixedSizeSampled
        return first(self.mechanism, q), FixedSizeSampled(self.mechanism, rate)

    def _symmetric(self) -> bool:
        return True


@functools.cache
def _log_choose(n: int, k: int) -> tuple[float, float]:
    """log C(n, k), and a bound on its error."""
    parts = math.lgamma(n + 1.0), math.lgamma(k + 1.0), math.lgamma(n - k + 1.0)
    return parts[0] - parts[1] - parts[2], 4.0 * SLACK * (1.0 + sum(map(abs, parts)))


def _tail(
    q: jax.Array, size: int, n: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array], jax.Array]:
    """(log(1 - tau), log tau), the rate q' (rounded down, up), the relative error of the weights.

    With f(s) the probabilities of Bin(n - 1, q), tau = sum_{s >= B} f(s), from the ratios
    f(s + 1)/f(s) = (n - 1 - s)/(s + 1) q/(1 - q), which fall with s: what is beyond the last term
    is less than a geometric series. Of tau and 1 - tau the smaller one is summed.
    """
    others = n - 1
    if size > others:
        return jnp.asarray([0.0, -jnp.inf]), (q, q), jnp.zeros(())
    p = jnp.minimum(q, 1.0 - 2.0**-53)
    log_odds = jnp.log(p) - special.log1p(-p)
    choose, rounding = _log_choose(others, size)
    at = choose + size * jnp.log(p) + (others - size) * special.log1p(-p)  # log f(B)

    def series(numbers: np.ndarray, ratios: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Logs of f(s)/f(B) for the numbers s, and of what is beyond the last of them."""
        logs = jnp.concatenate([jnp.zeros(1), jnp.cumsum(ratios)])
        last = ratios[-1] if ratios.size else jnp.asarray(-jnp.inf)
        open_ended = 0 < numbers[-1] < others
        falls = last < 0.0
        rest = logs[-1] + last - special.log1mexp(jnp.where(falls, last, -1.0))
        return logs, jnp.where(open_ended, jnp.where(falls, rest, jnp.inf), -jnp.inf)

    up = np.arange(size, min(others, size + _MOST_TERMS) + 1, dtype=np.float64)
    logs, beyond = series(up, np.log((others - up[:-1]) / up[1:]) + log_odds)
    upper = special.logsumexp(logs)
    down = np.arange(size, max(0, size - _MOST_TERMS) - 1, -1, dtype=np.float64)
    fallen, below = series(down, np.log(down[:-1] / (others - down[1:])) - log_odds)
    lower = special.logsumexp(fallen[1:])
    log_tau, log_rest = at + upper, at + lower
    small = log_tau < log_rest
    half = -special.LOG_2
    rarer = jnp.minimum(jnp.where(small, log_tau, log_rest), half)
    other = special.log1mexp(rarer)
    weights = jnp.stack([jnp.where(small, other, rarer), jnp.where(small, rarer, other)])
    kept = special.logsumexp(logs + np.log(size / (up + 1.0)))
    rate = jnp.minimum(q * jnp.exp(kept - upper) * (1.0 + _CUMULATED), q)
    seen = jnp.maximum(jnp.exp(kept - jnp.logaddexp(upper, beyond)), size / n)
    least = q * jnp.minimum(seen * (1.0 - _CUMULATED), 1.0)
    lost = jnp.where(small, beyond - upper, below - lower)
    shift = jnp.abs(size * jnp.log(p)) + jnp.abs((others - size) * special.log1p(-p))
    error = rounding + _CUMULATED + 4.0 * SLACK * shift + jnp.exp(jnp.minimum(lost, 0.0))
    # tau near 1 with terms beyond the last: q' may be too small by as much, and is at most q
    rate = jnp.where(beyond - upper < -40.0, rate, q)
    return weights, (least, rate), jax.lax.stop_gradient(error)
