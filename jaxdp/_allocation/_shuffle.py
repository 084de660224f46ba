r"""Shuffled reports of local randomisers, as a comparison for random allocation.

n records each send one report through a local randomiser, in random order. The curve of eps0-DP
randomisers is in `_shuffle_curve`: from above that of a pair with known clones (of randomised
response p = 2/(e^eps0 + 1) are; Feldman, McMillan & Talwar 2023, arXiv 2208.04591, first stated
that p for every randomiser, which their errata take back), and from below, for randomised response,
that of all other records holding one value.

(eps0, delta0)-DP randomisers lose another (e^eps + 1)(1 + e^-eps0/2) n delta0 in delta (Feldman,
McMillan & Talwar 2021, arXiv 2012.12803, Theorem 3.8); eps0 is chosen to minimise the total.
"""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences
from jaxdp._allocation import _shuffle_curve, _shuffle_renyi
from jaxdp._law import _from_curve
from jaxdp._mechanisms import (
    Base,
    Direction,
    Mechanism,
    RandomizedResponse,
    mechanism,
    require_mechanism,
)
from jaxdp._mechanisms._curve import canonical_terms, single
from jaxdp._mechanisms._of_curve import OfCurve
from jaxdp._special import log1p

_CHOICES, _ROUNDS = 32, 5  # of eps0: so many, then so many between the neighbours of the best
_CELLS = 511  # of the losses > 0 of a pair: the nodes are whole batches
_BLOCKS, _FEW_BLOCKS = (1024, 12.0), (512, 7.0)  # for a point, for each of a pair
_INSIDE = 1.0 - 1e-9
_NEAR = 1e-5  # of the range of eps0: steps of differences, and what counts as its end
_LARGEST = 1e9
_DEEP = 60.0  # deviations of the loss up to which eps0 is looked for: delta0 is e^-1800 there
# Where these are not known: among so many points, up to a delta0 of e to that.
_POINTS, _NOTHING = 64, -1000.0


@mechanism
class Shuffled(OfCurve):
    """n reports of a local randomiser, in random order.

    Bounds for replacing one record's input, for comparison with random allocation. From above: the
    clones' pair of the module's source for pure-DP steps, and the best (eps0, delta0) reading of
    other steps, as for the Gaussian. From below, for randomised response: all other records hold
    one value; reports do not show which of them are clones, so that the two bounds differ. Add and
    remove agree. One shuffle has a curve; where it is composed, sampled or allocated, the pair with
    the curve above stands for it, and nothing is known from below.

    Args:
      mechanism: the local randomiser; its sensitivity is that of replacing one input by another.
      num_records: n >= 1, up to 1e9.

    Raises:
      ValueError: for a known num_records outside its domain, or a composition to be shuffled.
        TypeError: if no mechanism.

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
        if single(canonical_terms(self.mechanism)) is None:
            raise ValueError("mechanism must be one step, to be shuffled, and not a composition")
        Mechanism.__post_init__(self)

    def _in_domain(self) -> jax.Array:
        inside = self._domains["num_records"].contains(self.num_records)
        return self.mechanism._in_domain() & inside

    def _step(self) -> Base:
        step = single(canonical_terms(self.mechanism))
        assert step is not None  # as was checked
        return step

    def _curve(self, up: bool, blocks: _shuffle_curve.Blocks) -> Callable[[jax.Array], jax.Array]:
        """A bound on log H at any real epsilon, from above or from below."""
        n, step = jnp.asarray(self.num_records, jnp.float64), self._step()
        if isinstance(step, RandomizedResponse):
            if not up:
                return lambda e: _shuffle_curve.log_delta_of_alike(e, jnp.asarray(step.epsilon), n)
            return lambda e: _shuffle_curve.log_delta_of_clones(e, *_coins(step), n, blocks)
        if up:
            return lambda e: _of_failing(step, n, e, blocks)
        # A failure is seen among all reports, where the others' inputs cannot fail so.
        lost = jnp.maximum(*(step._log_failure(d) for d in ("remove", "add"))) - 2.0**-40
        return lambda e: jnp.full_like(e, lost)

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return self._curve(slack >= 0.0, _BLOCKS)(epsilon)

    def _pair(self, side: int, log_floor: jax.Array, law: Any) -> tuple[jax.Array, ...]:
        if side < 0:  # the curve below is of no one pair that is as likely as its reversal
            return _from_curve.nothing()
        n, step = jnp.asarray(self.num_records, jnp.float64), self._step()
        pure, upper = isinstance(step, RandomizedResponse), self._curve(True, _FEW_BLOCKS)

        def rough(e: jax.Array) -> jax.Array:
            return _shuffle_curve.estimate(e * _INSIDE, *_coins(step), n) if pure else upper(e)

        last = _from_curve.extent(rough, _range(step, jnp.zeros(()))[1], log_floor)
        return _from_curve.above(upper, last, _CELLS)

    def _sampled_rate_function(self) -> _shuffle_renyi.SampledRate:
        return _shuffle_renyi.sampled_rate_function(self, self._step())

    def _rate_function(self) -> Callable[[jax.Array], jax.Array]:
        rate = self._sampled_rate_function()
        return lambda s: rate(s, jnp.asarray(1.0))

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._rate_function()(s)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return self._sampled_rate_function()(s, q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return self.mechanism._loss_range()

    def _log_failure(self, direction: Direction) -> jax.Array:
        return self.mechanism._log_failure(direction)

    def sample(self, key: jax.Array, value: Any) -> jax.Array:
        """One report for every entry along the first axis of an array, in random order."""
        report, order = jax.random.split(key)
        return jax.random.permutation(order, self.mechanism.sample(report, jnp.asarray(value)))


def _coins(step: RandomizedResponse) -> tuple[jax.Array, jax.Array, jax.Array]:
    """eps0, and the probabilities that a report is a fair coin or not."""
    bound = jnp.asarray(step.epsilon)
    return bound, 2.0 * jax.nn.sigmoid(-bound), jnp.tanh(0.5 * bound)


def _of_failing(
    step: Base, n: jax.Array, epsilon: jax.Array, blocks: _shuffle_curve.Blocks
) -> jax.Array:
    """log H of n shuffled reports of any step at most, by the best reading as (eps0, delta0)-DP."""
    local = _worse(step, epsilon, _divergences.SLACK)  # shuffling is a post-processing

    def lost(bound: jax.Array) -> jax.Array:
        factor = jnp.logaddexp(epsilon, 0.0) + log1p(0.5 * jnp.exp(-bound)) + jnp.log(n)
        failing = _worse(step, bound, _divergences.SLACK)
        return factor + failing + 16.0 * _divergences.SLACK

    def rough(bound: jax.Array) -> jax.Array:
        e = jnp.clip(epsilon, 0.0, bound * _INSIDE)
        clone, rest = jnp.exp(-bound), -jnp.expm1(-bound)
        return jnp.logaddexp(_shuffle_curve.estimate(e, bound, clone, rest, n), lost(bound))

    # Any eps0 is valid: it is chosen by estimates, a thousand times cheaper than the bound.
    bound = _best(rough, *_range(step, epsilon))
    clone, rest = jnp.exp(-bound), -jnp.expm1(-bound)
    kept = _shuffle_curve.log_delta_of_clones(epsilon, bound, clone, rest, n, blocks)
    value = _divergences.log_add(kept, lost(bound))
    return jnp.minimum(jnp.where(value < local, value, local), 0.0)


def _worse(step: Base, epsilon: jax.Array, slack: float) -> jax.Array:
    """log H of one report, the larger of both directions."""
    remove = step._log_hockey_stick(epsilon, "remove", slack)
    if step._symmetric():
        return remove
    add = step._log_hockey_stick(epsilon, "add", slack)
    return jnp.where(add > remove, add, remove)


def _range(step: Base, epsilon: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where eps0 is looked for: from epsilon up to the largest loss, or far beyond the bulk."""
    low, high = step._loss_range()
    pure = jnp.where(high > -low, high, -low)
    second = 2.0 * step._rate(jnp.asarray(2.0))  # mu^2 for the Gaussian
    start = jnp.where(epsilon > 0.0, epsilon, 0.0)

    def by_moment() -> jax.Array:
        spread = jnp.where(second < 1e6, second, 1e6)
        return start + 0.5 * spread + _DEEP * jnp.sqrt(spread)

    def by_curve() -> jax.Array:  # (stated noise may not know that moment)
        points = start + jnp.geomspace(1e-3, 1e6, _POINTS)
        some = jax.vmap(lambda e: _worse(step, e, 0.0))(points) > _NOTHING
        return jnp.max(jnp.where(some, points, points[0])) * (points[-1] / points[-2])

    far = lax.cond(second < jnp.inf, by_moment, by_curve)
    top = jnp.where(pure < far, pure, far)
    return jnp.where(start < top, start, 0.0), top


def _best(cost: Callable[[jax.Array], jax.Array], start: jax.Array, top: jax.Array) -> jax.Array:
    """About the minimiser of the cost in (start, top], which moves as the minimiser does.

    The search carries no gradient. Newton's step from where it ends brings the minimum to all its
    digits, and its derivative: that of the cost stays 0. At the end, x is the top.
    """
    shares = jnp.arange(1, _CHOICES + 1, dtype=jnp.float64) / _CHOICES
    frozen = lax.stop_gradient((start, top))

    def narrower(_, ends):
        low, high = ends
        points = low + (high - low) * shares
        costs = lax.stop_gradient(jax.vmap(cost)(points))
        costs = jnp.where(jnp.isnan(costs), jnp.inf, costs)
        best = jnp.min(jnp.where(costs <= jnp.min(costs), jnp.arange(_CHOICES), _CHOICES - 1))
        width = (high - low) / _CHOICES
        return points[best] - width, jnp.minimum(points[best] + width, frozen[1])

    low, high = lax.fori_loop(0, _ROUNDS, narrower, frozen)
    x = jnp.maximum(0.5 * (low + high), frozen[0])
    reach = _NEAR * (frozen[1] - frozen[0])
    at_end = x + 4.0 * reach >= frozen[1]
    x, reach = lax.stop_gradient((jnp.where(at_end, 0.5 * (frozen[0] + frozen[1]), x), reach))
    below, middle, above = jax.vmap(cost)(jnp.stack([x - reach, x, x + reach]))
    slope = 0.5 * (above - below) / reach
    bend = lax.stop_gradient((above - 2.0 * middle + below) / reach**2)
    curved = jnp.isfinite(bend) & (bend > 0.0) & jnp.isfinite(slope)
    step = jnp.where(curved, slope, 0.0) / jnp.where(curved, bend, 1.0)
    short = jnp.abs(lax.stop_gradient(step)) <= 4.0 * reach
    return jnp.where(at_end, top, x - jnp.where(short, step, 0.0))
