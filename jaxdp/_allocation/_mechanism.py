"""Random allocation as a mechanism: each record joins k of t steps, chosen uniformly."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp._allocation import _between, _inverse, _series
from jaxdp._mechanisms import Average, Direction, Mechanism, mechanism, require_mechanism
from jaxdp._mechanisms._base import Term
from jaxdp._mechanisms._combinators import Composition
from jaxdp._mechanisms._curve import canonical_terms, single
from jaxdp._special import log1p

_AT_LEAST_ONE = _checks.Domain("finite and >= 1", lambda x: (x >= 1) & (abs(x) < np.inf))
_TABLE = np.geomspace(0.05, 3e5, 224)  # orders less 1 that a search in the add direction knows
_ROUNDING = 2.0**-40
# Steps of a block for which lattices are 2, 4, ... times as fine: where it is read alone, and where
# it is composed, which is narrower, and takes longer.
_LONG_ALONE, _LONG = (3e3, 2e4, 6e4, 3e5), (3e4, 1e5)
_SMALL_ORDERS = 256  # a search over all orders wants more of them only where t is large


class Whole(NamedTuple):
    """The k of t steps that blocks stand for, one for each `blocks` of the first kind of them.

    `perhaps` is () where 1 < k < t is known, else (None,).
    """

    num_steps: Any
    num_selected: Any
    blocks: Any
    perhaps: tuple


@mechanism
class Block(Average):
    """One of `num_steps` steps: X = (X_1 + ... + X_t)/t.

    What is known exactly: all moments of integer order up to the largest asked for (`_series`), and
    the moments of negative order of the laws of `_inverse`. Elsewhere bounds: by a few moments
    (`_between`), and averaging lowers log E X^s below that of one step.

    Attributes:
      needed: 0 for blocks that occur no times, whose moments are not computed then; None for
        those that surely occur.
      long: one None for each doubling of the lattice that so many steps need.
      whole: of what choice of several steps these are the (shorter) blocks; None for others.
    """

    mechanism: Mechanism
    num_steps: ArrayLike
    needed: Any = None
    long: Any = ()
    whole: Any = None

    @property
    def leftover(self) -> bool:
        """Whether these are the longer blocks of a split, next to shorter ones."""
        return self.needed is not None

    def _in_domain(self) -> jax.Array:
        return self.mechanism._in_domain() & (self.num_steps >= 1.0)

    def _base_rate(self) -> Callable[[jax.Array], jax.Array]:
        parts = [
            (t.multiplicity, t.mechanism._rate_function()) for t in canonical_terms(self.mechanism)
        ]
        return lambda s: sum(n * rate(s) for n, rate in parts)

    def _prepare_rate(
        self, direction: Direction, largest: int, search: bool
    ) -> Callable[[jax.Array], jax.Array]:
        if direction == "add":
            return self._interpolated_add_rate() if search else self._add_rate

        def known() -> jax.Array:
            return self._log_moments(largest, _SMALL_ORDERS if search else largest)

        if self.needed is None:
            log_moments = known()
        else:
            none = jnp.zeros((largest + 1,), jnp.float64)
            log_moments = jax.lax.cond(self.needed > 0.0, known, lambda: none)
        return lambda s: self._remove_rate(log_moments, s)

    def _log_moments(self, largest: int, small: int) -> jax.Array:
        """log E_Q[X^n], n = 0 .. largest; inf where unknown."""
        base = self._base_rate()
        p = jnp.arange(largest + 1, dtype=jnp.float64)
        values = jax.vmap(base)(jnp.maximum(p, 2.0))
        finite = jnp.where(jnp.isnan(values), jnp.inf, p * (p - 1.0) * values)
        log_d = jnp.where(p >= 2.0, jnp.minimum(finite, _series.LARGEST), 0.0)
        # the part with finite loss has E X = 1 - tau: its moments are those of X/(1 - tau), scaled
        log_mean = log1p(-jnp.exp(self.mechanism._log_failure("remove")))
        log_d = jnp.where(p >= 2.0, jnp.maximum(log_d - p * log_mean, 0.0), 0.0)
        log_m, known = _series.average_log_moments(log_d, self.num_steps, small)
        return jnp.where(known, log_m + p * log_mean, jnp.inf)

    def _remove_rate(self, log_moments: jax.Array, s: jax.Array) -> jax.Array:
        """k(s), s >= 1: by the moments around it (`_between`), or the bound of one step.

        At an integer the slope in s is the one to the right, and that to the left where no more
        moments are known.
        """
        top = log_moments.shape[0] - 1
        known = jnp.isfinite(log_moments)
        below = jnp.clip(jnp.floor(s), 1.0, top - 1.0)
        index = below.astype(jnp.int32)
        last = (s == below) & (index > 1) & known[index] & ~known[index + 1]
        index = jnp.where(last, index - 1, index)
        ends = known[index] & known[index + 1] & (s <= top)
        left, right = (jnp.where(ends, log_moments[i], 0.0) for i in (index, index + 1))
        share = s - index.astype(jnp.float64)
        lack = _between.lack(log_moments, index, jnp.where(ends, share, 0.0), self.num_steps)
        rise = right - left - jnp.where(ends, lack, 0.0)
        first = index == 1  # log E X^s is (s - 1) times that, whatever s - 1: no division by it
        rate = jnp.where(
            first,
            (left + rise) / jnp.where(first, s, 2.0),
            (left + share * rise) / jnp.where(first, 2.0, s * (s - 1.0)),
        )
        base = self._base_rate()(s)
        return jnp.where(ends & (rate < base), rate, base)

    def _add_rate(self, s: jax.Array) -> jax.Array:
        step = single(canonical_terms(self.mechanism))
        base = self._base_rate()
        averaged = jnp.minimum(
            _inverse.add_rate(step, base, self.num_steps, s), self._from_variance(base, s)
        )
        if step is not None and not step._may_fail():
            return averaged
        log_failure = self.mechanism._log_failure("add")
        failing = _inverse.failing_add_rate(log_failure, base, self.num_steps, s)
        return jnp.where(log_failure > -jnp.inf, failing, averaged)

    def _from_variance(self, base: Callable[[jax.Array], jax.Array], s: jax.Array) -> jax.Array:
        """A bound on the rate at s <= 0 by the variance, where X is bounded away from 0."""
        if self._may_fail():
            return jnp.full_like(s, jnp.inf)
        low, _ = self.mechanism._loss_range()
        log_second = log1p(jnp.expm1(2.0 * base(jnp.full_like(s, 2.0))) / self.num_steps)
        return _between.inverse(log_second, low, jnp.where(s <= 0.0, -s, 0.0))

    def _interpolated_add_rate(self) -> Callable[[jax.Array], jax.Array]:
        """An upper bound: log E A^-b, A > 0, is convex in b, <= 0 at b = 0: below its chords."""
        b = jnp.asarray(np.concatenate([[0.0], _TABLE]))
        log = b * (b + 1.0) * jax.vmap(self._add_rate)(-b)
        base = self._base_rate()
        revealing = self.mechanism._log_failure("add") > -jnp.inf

        def rate(s: jax.Array) -> jax.Array:
            order = jnp.where(s <= 0.0, -s, 0.0)
            index = jnp.sum((b[1:-1] <= order).astype(jnp.int32))
            left, right = b[index], b[index + 1]
            share = (order - left) / (right - left)
            first = index == 0  # log <= b log[1] / b[1], whatever b: no division by it
            value = jnp.where(
                first,
                log[1] / (b[1] * (order + 1.0)),
                ((1.0 - share) * log[index] + share * log[index + 1])
                / jnp.where(first, 1.0, order * (order + 1.0)),
            )
            value = jnp.where((order <= b[-1]) & jnp.isfinite(value), value, jnp.inf)
            # one step may fail where the average does not: its moment is of less mass
            return jnp.where(revealing, value, jnp.minimum(value, base(s)))

        return rate

    def _rate(self, s: jax.Array) -> jax.Array:
        remove = self._prepare_rate("remove", _SMALL_ORDERS, search=False)
        positive = s >= 1.0
        return jnp.where(
            positive,
            remove(jnp.where(positive, s, 2.0)),
            self._add_rate(jnp.where(positive, 0.0, s)),
        )

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        low, high = self.mechanism._loss_range()
        if not self._may_fail():
            return low, high
        # with X = 0 possible, a single step may be left to make the average positive
        revealing = self.mechanism._log_failure("add") > -jnp.inf
        return jnp.where(revealing, low - jnp.log(self.num_steps), low), high

    def _range_ulps(self) -> Any:
        return self.mechanism._range_ulps() + 4.0

    def _may_fail(self) -> bool:
        return self.mechanism._may_fail()

    def _log_failure(self, direction: Direction) -> jax.Array:
        """remove: that of the step chosen; add: A = 0 where X = 0 in all t steps."""
        inner = self.mechanism._log_failure(direction)
        if direction == "remove" or not self._may_fail():
            return inner
        some = inner > -jnp.inf
        return jnp.where(some, self.num_steps * jnp.where(some, inner, 0.0), -jnp.inf)

    def _symmetric(self) -> bool:
        return False

    def _terms(self) -> list[Term]:
        return [Term(self, None)]


@mechanism
class RandomAllocation(Composition):
    r"""Each record joins k of t steps, chosen uniformly (balls and bins), in every epoch.

    With X the likelihood ratio of one step, the pair of k = 1 is (A, Q^t) with ratio
    :math:`(X_1 + \dots + X_t)/t`, read in both directions; neither bounds the other. For k > 1 the
    steps are split at random into k blocks of floor(t/k) or ceil(t/k) steps, one of each joined:
    the same choice of steps, so that by joint convexity the composition of the blocks, which is
    the pair used from above, bounds it: where k is not far below t, epsilon is up to 7 % too large
    in either direction (t = 3, k = 2, delta = 1e-5, Gaussian steps of any noise), up to a fifth
    where delta is above .1 or steps have few outcomes, less for less of t. From below it is the law
    of one statistic (see `_law._subset`), within some 1 %, but for rare combinations of few
    outcomes. Epochs compose. (Feldman & Shenfeld 2025, arXiv 2502.08202: Lemmas 3.1 and 3.11, with
    the add direction, which they leave out.)

    Methods: Numerical() (the default, the tightest), Renyi() (exact moments of integer order,
    Theorem 4.6 as a power of a power series), Decomposition() and PosteriorSampling() (Theorems 4.1
    and 3.2 through Poisson subsampling).

    Args:
      mechanism: one step; a composition, which may hold allocations itself, is tabulated.
      num_steps: t >= 1. A real value is there to be differentiated: no law belongs to one that is
        no integer (nor next to one, by rounding), and its bounds, which may jump, bound nothing.
      num_selected: k, 1 <= k <= t.
      num_epochs: how often all of it is repeated, > 0. A known 1 here or for k is a fact about
        the structure, not a parameter: derivatives with respect to it are 0.

    Raises:
      ValueError: if known parameters lie outside these domains. TypeError: if no mechanism.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 10_000)
      >>> round(float(jaxdp.renyi(run, 64, direction="remove")), 10)
      0.0009090203
    """

    mechanism: Mechanism
    num_steps: ArrayLike
    num_selected: ArrayLike = 1
    num_epochs: ArrayLike = 1
    # Decides the structure and holds no parameter: () if k = 1 and one epoch are known, (None,)
    # if k = 1 is, (None, None) otherwise, with a third None if k is known to divide t, a fourth if
    # it is known to be t (a composition).
    split: Any = dataclasses.field(init=False, repr=False, default=())
    # Likewise, of blocks that are known to be long: see `Block`.
    long: Any = dataclasses.field(init=False, repr=False, default=())
    # (None,) where k = 1 is known, and that there is more than one epoch is not.
    once: Any = dataclasses.field(init=False, repr=False, default=())
    # (None,) where k may be 1 or t: the blocks are exact then.
    perhaps: Any = dataclasses.field(init=False, repr=False, default=(None,))

    _domains: ClassVar = {
        "num_steps": _AT_LEAST_ONE,
        "num_selected": _AT_LEAST_ONE,
        "num_epochs": _checks.POSITIVE,
    }

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        Mechanism.__post_init__(self)
        steps = _checks.concrete("num_steps", self.num_steps)
        selected = _checks.concrete("num_selected", self.num_selected)
        if steps is not None and selected is not None and np.any(selected > steps):
            got = f"{_checks.shown(selected.tolist())} > {_checks.shown(steps.tolist())}"
            raise ValueError(f"num_selected must be <= num_steps, got {got}")
        epochs = _checks.concrete("num_epochs", self.num_epochs)
        one = selected is not None and bool(np.all(selected == 1))
        once = one and epochs is not None and bool(np.all(epochs == 1))
        perhaps_once = one and (epochs is None or bool(np.any(epochs == 1)))
        even, length, between, every = False, 0, False, False
        if steps is not None and selected is not None:
            between = bool(np.all((selected > 1) & (selected < steps)))
            even = bool(np.all(np.remainder(steps, selected) == 0))
            every = bool(np.all((selected > 1) & (selected == steps)))
            bounds = _LONG_ALONE if once else _LONG
            length = sum(bool(np.any(steps > bound * selected)) for bound in bounds)
        split = (None,) * (4 if every else 3 if even else 2)
        object.__setattr__(self, "split", () if once else (None,) if one else split)
        object.__setattr__(self, "long", (None,) * length)
        object.__setattr__(self, "once", (None,) if perhaps_once and not once else ())
        object.__setattr__(self, "perhaps", () if between else (None,))

    def _in_domain(self) -> jax.Array:
        inside = self.mechanism._in_domain() & (self.num_selected <= self.num_steps)
        for name, domain in self._domains.items():
            inside = inside & domain.contains(getattr(self, name))
        # other leaves put by hand into a structure for ones have no certified answer
        if not self.split:
            inside = inside & (self.num_epochs == 1.0)
        if len(self.split) < 2:
            return inside & (self.num_selected == 1.0)
        if len(self.split) == 4:
            return inside & (self.num_selected == self.num_steps)
        even = jnp.remainder(self.num_steps, self.num_selected) == 0.0
        return inside & even if len(self.split) == 3 else inside

    def _terms(self) -> list[Term]:
        t, k, epochs = _beside_a_rounding(self.num_steps), self.num_selected, self.num_epochs
        if len(self.split) < 2:
            block = Block(self.mechanism, t, long=self.long)
            return [Term(block, epochs if self.split else None)]
        if len(self.split) == 4:
            return [term.times(k * epochs) for term in self.mechanism._terms()]
        if len(self.split) == 3:
            whole = Whole(t, k, k, self.perhaps)
            return [Term(Block(self.mechanism, t / k, long=self.long, whole=whole), k * epochs)]
        # t = k m + r: r blocks of m + 1 steps and k - r of m. Real t in between: t/k steps each.
        frozen = jax.lax.stop_gradient
        m = jnp.floor(frozen(t) / frozen(k))
        m = jnp.where(m * frozen(k) > frozen(t), m - 1.0, m)
        rest = t - k * m
        uneven = (rest > 0.0) & (t == jnp.floor(t)) & (k == jnp.floor(k))
        many = jnp.where(uneven, k - rest, k)
        extra = jnp.where(uneven, rest, 0.0)
        whole, length = Whole(t, k, many, self.perhaps), jnp.where(uneven, m, t / k)
        return [
            Term(Block(self.mechanism, length, long=self.long, whole=whole), many * epochs),
            Term(Block(self.mechanism, m + 1.0, frozen(extra), self.long), extra * epochs),
        ]

    def sample_steps(self, key: jax.Array, num_records: int) -> jax.Array:
        """Which steps each record joins: int32 of shape (num_records, num_selected), one epoch.

        Needs known integers t and k.

        Example:
          >>> import jax, jaxdp
          >>> run = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 10, num_selected=3)
          >>> steps = run.sample_steps(jax.random.key(0), 5)
          >>> steps.shape, bool((steps >= 0).all() and (steps < 10).all())
          ((5, 3), True)
        """
        t, k = int(np.asarray(self.num_steps)), int(np.asarray(self.num_selected))
        keys = jax.random.split(key, num_records)
        return jax.vmap(lambda one: jax.random.permutation(one, t)[:k])(keys).astype(jnp.int32)


def _beside_a_rounding(count: jax.Array) -> jax.Array:
    """The integer next to a real number, where a rounding lies between; the derivative is 1.

    No law belongs to a number of steps that is no integer: its values are to be differentiated.
    """
    rest = jax.lax.stop_gradient(jnp.round(count) - count)
    return count + jnp.where(jnp.abs(rest) <= _ROUNDING * jax.lax.stop_gradient(count), rest, 0.0)
