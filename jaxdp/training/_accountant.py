"""Accountants that live in a training loop: PyTrees of fixed shape, updated and read under jit."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _chunks, _orders, _queries, _structure, _x64
from jaxdp import _special_subnormal as subnormal
from jaxdp._mechanisms import Composed, Mechanism, Repeated, require_mechanism
from jaxdp._mechanisms._base import common_neighbours
from jaxdp._methods import Method, Numerical, check_method
from jaxdp._methods._renyi import known_orders
from jaxdp.training import _counts, _moments, _words

# Every order of DP-SGD practice; between them moments are interpolated, which is a bound too.
DEFAULT_ORDERS: tuple[float, ...] = (
    *(float(a) for a in range(2, 13)),
    *(14.0, 16.0, 18.0, 20.0, 22.0, 25.0, 28.0, 32.0, 36.0, 40.0, 45.0, 50.0, 56.0, 64.0),
    *(80.0, 96.0, 128.0, 192.0, 256.0),
)
_NUMERICAL = Numerical()
_BETWEEN = 8  # interpolated orders to an interval
_LARGEST_ORDER = 1e6  # beyond it nothing is gained at any delta


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _State:
    """What the island sees: the trailing axes of both fields belong to one evaluation."""

    moments: jax.Array
    pending: jax.Array

    _core_ndims: ClassVar[dict[str, int]] = {"moments": 2, "pending": 2}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class RenyiAccountant(_structure.Compared):
    """Rényi moments spent so far, at fixed orders, for settings known only at run time.

    Attributes:
      moments: the sum over past steps of (alpha - 1) R_alpha, in two words. (orders, 2).
      pending: sigma, sampling probability and number of the latest steps with equal settings, not
        yet in the moments, in two words: while settings stay, a step costs one comparison. (3, 2).
      orders: the Rényi orders, static.
    """

    moments: jax.Array
    pending: jax.Array
    orders: tuple[float, ...] = dataclasses.field(metadata={"static": True})

    def _state(self) -> _State:
        return _State(self.moments, self.pending)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, eq=False)
class FixedAccountant(_structure.Compared):
    """A counter of steps through a schedule fixed beforehand, read by the numerical engine.

    Attributes:
      phases: the mechanism of one step of each phase.
      counter: steps taken, in two int32 words: high 2^30 + low, exact up to 2^59. (2,).
      lengths: the number of steps of each phase but the last, static.
      method: how epsilon is computed, static.
    """

    phases: tuple[Mechanism, ...]
    counter: jax.Array
    lengths: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    method: Method | None = dataclasses.field(metadata={"static": True})

    @property
    def steps(self) -> jax.Array:
        """Steps taken, int32: 2^31 - 1 for more than that, -1 after a traced invalid count."""
        return _counts.saturated(self.counter)


Accountant = RenyiAccountant | FixedAccountant


def init(orders: Sequence[float] = DEFAULT_ORDERS) -> RenyiAccountant:
    """An accountant of Poisson-subsampled Gaussian steps whose settings come at run time.

    Args:
      orders: Rényi orders > 1 to track, ascending. Integers cost a sum of as many terms, others a
        quadrature.

    Returns:
      A PyTree of fixed shape and of the program's precision (float32 unless x64 is enabled), to
      carry through `lax.scan`.

    Raises:
      ValueError: for no orders, or orders that are not > 1, at most 1e6 and ascending.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> def step(state, sigma):
      ...     return training.update(state, sigma=sigma, sampling_probability=0.01), None
      >>> state, _ = jax.lax.scan(step, training.init(), jax.numpy.linspace(1.0, 2.0, 100))
      >>> round(float(training.epsilon(state, 1e-5)), 3)
      1.026
    """
    orders = known_orders(orders)
    if max(orders) > _LARGEST_ORDER:
        raise ValueError(f"orders must be at most {_LARGEST_ORDER:g}, got {max(orders)}")
    if any(b <= a for a, b in itertools.pairwise(orders)):
        raise ValueError(f"orders must ascend, got {_checks.shown(orders)}")
    dtype = jnp.float64 if jax.config.jax_enable_x64 else jnp.float32
    pending = jnp.zeros((3, 2), dtype).at[:2, 0].set(1.0)
    return RenyiAccountant(jnp.zeros((len(orders), 2), dtype), pending, orders)


def init_fixed(
    *phases: Mechanism | tuple[Mechanism, int], method: Method | None = _NUMERICAL
) -> FixedAccountant:
    """An accountant for a schedule known beforehand: the numerical bound after every step.

    Args:
      *phases: the mechanism of one step, (mechanism, number of such steps) for every phase but
        the last, which goes on for ever.
      method: Numerical(...), Renyi(...) or Analytic(), as for `jaxdp.epsilon`.

    Returns:
      A PyTree whose only moving part is a counter of steps, which is exact up to 2^59 in 32-bit
      programs too (epsilon is infinite from there on); `update` takes no settings.

    Raises:
      ValueError: for no phases, a phase of less than one step, or phases for different
        neighbours. TypeError: if one is no mechanism.

    Example:
      >>> import jaxdp
      >>> from jaxdp import training
      >>> state = training.init_fixed((jaxdp.Gaussian(5.0), 10), jaxdp.Gaussian(10.0), method=None)
      >>> for _ in range(12):
      ...     state = training.update(state)
      >>> round(float(training.epsilon(state, 1e-5)), 4)
      2.6668
    """
    check_method(method)
    if not phases:
        raise ValueError("phases must not be empty")
    mechanisms, lengths = [], []
    for i, phase in enumerate(phases):
        if isinstance(phase, tuple) and len(phase) != 2:
            raise ValueError(f"phases[{i}] must be (mechanism, steps), got {_checks.shown(phase)}")
        mechanism, length = phase if isinstance(phase, tuple) else (phase, None)
        require_mechanism(f"phases[{i}]", mechanism)
        if length is None and i < len(phases) - 1:
            raise ValueError(f"phases[{i}] must say how many steps >= 1 it has")
        if length is not None:
            length = _checks.whole_number(f"the number of steps of phases[{i}]", length)
        if i < len(phases) - 1:
            lengths.append(length)
        mechanisms.append(mechanism)
    common_neighbours(mechanisms)
    return FixedAccountant(tuple(mechanisms), _counts.zero(), tuple(lengths), method)


def update(
    state: Any,
    *,
    sigma: ArrayLike | None = None,
    sampling_probability: ArrayLike | None = None,
    count: ArrayLike = 1,
) -> Any:
    """Account for one more step, or for `count` equal ones; use the state returned.

    Args:
      state: from `init`, `init_fixed` or `init_filter`.
      sigma: noise multiplier > 0 of the step (standard deviation over the L2 sensitivity that a
        record has when it joins); required but for a fixed schedule, which takes no settings.
      sampling_probability: in (0, 1], with which each record joins, independently; 1 by default.
      count: how many such steps, an integer >= 0.

    Returns:
      The new state, of the same structure, shapes and dtypes. Traced settings and counts outside
      their domains make epsilon nan, now and after every later update.

    Raises:
      ValueError: for known settings or counts outside their domains, or settings where there must
        be none. TypeError: for no state.
    """
    if isinstance(state, FixedAccountant):
        refuse_settings(sigma=sigma, sampling_probability=sampling_probability)
        counter = _counts.add(state.counter, _counts.words_of(count))
        return dataclasses.replace(state, counter=counter)
    if isinstance(getattr(state, "accountant", None), RenyiAccountant):  # a filter
        return dataclasses.replace(
            state,
            accountant=update(
                state.accountant,
                sigma=sigma,
                sampling_probability=sampling_probability,
                count=count,
            ),
        )
    if not isinstance(state, RenyiAccountant):
        raise TypeError(f"state must be an accountant or a filter, not {type(state).__name__}")
    sigma, rate = check_settings(sigma, sampling_probability)
    _checks.check("count", count, _checks.COUNT)
    words = _x64.evaluate(
        _update,
        state._state(),
        sigma,
        rate,
        count,
        # sums, rates and counts up, noise down
        rounding=("nearest", "up", "nearest", "down", "nearest", "up", "nearest", "up"),
        orders=state.orders,
        single=not jax.config.jax_enable_x64,
    )
    moments, *pending = (jnp.stack(words[i : i + 2], axis=-1) for i in range(0, 8, 2))
    return RenyiAccountant(moments, jnp.stack(pending, axis=-2), state.orders)


def refuse_settings(**settings: Any) -> None:
    """Raise ValueError if any is given."""
    for name, value in settings.items():
        if value is not None:
            raise ValueError(f"{name} must not be given: the schedule of this accountant is fixed")


def check_settings(
    sigma: ArrayLike | None, sampling_probability: ArrayLike | None
) -> tuple[ArrayLike, ArrayLike]:
    """The settings of a step; ValueError unless those that are known are in their domains.

    Known subnormal numbers, which programs may take for 0, are moved to the safe side.
    """
    if sigma is None:
        raise ValueError("sigma must be given")
    rate: Any = 1.0 if sampling_probability is None else sampling_probability
    _checks.check("sigma", sigma, _checks.POSITIVE)
    _checks.check("sampling_probability", rate, _checks.ANY_RATE)
    if not isinstance(sigma, jax.core.Tracer):  # as small a sigma as that has no finite moments
        sigma = np.maximum(np.asarray(sigma, np.float64), _words.TINY)
    if not isinstance(rate, jax.core.Tracer):
        rate = np.maximum(np.asarray(rate, np.float64), _words.TINY)
    return sigma, rate


def inside(sigma: jax.Array, q: jax.Array, count: jax.Array) -> jax.Array:
    """Whether traced settings are in their domains."""
    good = _checks.POSITIVE.contains(sigma) & _checks.RATE.contains(q)
    return good & _checks.COUNT.contains(count)


def _update(state, sigma, q, count, orders, single):
    valid = inside(sigma, q, count)
    sigma, q, count = (jnp.where(valid, x, 1.0) for x in (sigma, q, count))
    before = jnp.where(valid, _words.join(state.moments), jnp.nan)
    old_sigma, old_q, old_count = _words.join(state.pending)
    # as they will be stored, so that equal settings are recognised
    sigma = _words.join(_words.split(sigma, "down", single))
    q = _words.join(_words.split(q, "up", single))
    same = (sigma == old_sigma) & (q == old_q)
    keep = same | (old_count == 0.0)
    after = jax.lax.cond(
        keep,
        lambda: before,
        lambda: _moments.add(before, old_count, _moments.moments(old_sigma, old_q, orders)),
    )
    total = jnp.where(same, old_count, 0.0) + count
    total = jnp.where(total < 2.0**53, total, total * (1.0 + 2.0**-52))  # rounded up
    # of equal settings the mean is kept: the same number, with the derivatives of every step
    some = (total > 0.0) & (total < jnp.inf)
    share = jnp.where(same & some, count / jnp.where(some, total, 1.0), 1.0)
    sigma = jnp.where(same, old_sigma + share * (sigma - old_sigma), sigma)
    q = jnp.where(same, old_q + share * (q - old_q), q)
    outputs = (
        _words.split(after, "up", single),
        _words.split(sigma, "down", single),
        _words.split(q, "up", single),
        _words.split(total, "up", single),
    )
    return tuple(words[..., i] for words in outputs for i in (0, 1))


def totals(state: Any, orders: tuple[float, ...]) -> jax.Array:
    """The moments of all steps, inside the island."""
    sigma, q, count = _words.join(state.pending)
    taken = _words.join(state.moments)
    latest = _moments.moments(sigma, q, orders)
    return _moments.add(taken, count, latest)


def epsilon(state: Any, delta: ArrayLike) -> jax.Array:
    """Certified upper bound on the epsilon of the steps so far, at delta; both directions.

    From a Rényi accountant: the best order (Canonne, Kamath & Steinke 2020, Proposition 12);
    between the tracked orders log E[X^alpha] is interpolated linearly, an upper bound since it is
    convex and 0 at alpha = 1. Valid for settings that do not depend on what was released; where
    they do, use a filter (`init_filter`), whose target is the guarantee.

    Args:
      state: from `init`, `init_fixed` or their updates.
      delta: in (0, 1). Any shape.

    Returns:
      epsilon >= 0, 0 before the first step.

    Raises:
      ValueError: for known delta outside (0, 1). TypeError: for a filter, or no state.
    """
    _checks.check("delta", delta, _checks.OPEN_DELTA)
    if isinstance(state, FixedAccountant):
        return _fixed_epsilon(state, delta)
    if not isinstance(state, RenyiAccountant):
        raise TypeError(f"state must be an accountant, not {type(state).__name__}")
    return _x64.evaluate(_epsilon, state._state(), delta, rounding="up", orders=state.orders)


def _epsilon(state, delta, orders):
    moments = totals(state, orders)
    alpha = np.asarray((1.0, *orders))
    share = np.arange(1, _BETWEEN + 1)[:, None] / _BETWEEN
    between = _words.constant(alpha[:-1] + share * (alpha[1:] - alpha[:-1]))
    finite = moments < jnp.inf
    right = jnp.where(finite, moments, 0.0)
    left = jnp.concatenate([jnp.zeros(1), right[:-1]])  # infinite ones follow finite ones
    values = jnp.where(finite, left + _words.constant(share) * (right - left), jnp.inf)
    log_delta = subnormal.log_positive(delta) - 1e-15 * (1.0 - subnormal.log_positive(delta))
    known = jnp.where(values < jnp.inf, values, 0.0)
    bounds = _orders.epsilon_at_order(known, between, log_delta)
    best = jnp.min(jnp.where(values < jnp.inf, bounds, jnp.inf))
    best = jnp.maximum(best * (1.0 + 1e-14) + 1e-15, 0.0)
    best = jnp.where(jnp.max(moments) == 0.0, 0.0, best)
    valid = _checks.OPEN_DELTA.contains(delta) & ~jnp.any(jnp.isnan(moments))
    return jnp.where(valid, best, jnp.nan)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Taken:
    """The counter, as the island sees it."""

    counter: jax.Array

    _core_ndims: ClassVar[dict[str, int]] = {"counter": 1}


def _fixed_epsilon(state: FixedAccountant, delta: ArrayLike) -> jax.Array:
    starts = (0, *itertools.accumulate(state.lengths))
    _checks.check("delta", delta, _checks.OPEN_DELTA)

    def through(last: int) -> jax.Array:
        """Epsilon of all steps, the latest in phase `last`."""
        phases = state.phases[: last + 1]
        whole = _composed(phases, (*state.lengths[:last], 1.0))
        return _x64.evaluate(
            _phases_epsilon,
            phases,
            _Taken(state.counter),
            delta,
            rounding="up",
            chunk=_chunks.chunk_of(whole, state.method, delta),
            quick=True,
            lengths=state.lengths[:last],
            start=starts[last],
            method=state.method,
        )

    phase = _counts.phase(state.counter, starts)
    if isinstance(phase, int):
        return through(phase)
    if phase.ndim == 0:
        return jax.lax.switch(phase, [lambda last=i: through(last) for i in range(len(starts))])
    whole = [through(i) for i in range(len(starts))]
    return jnp.select([phase == i for i in range(len(starts))], whole)


def _composed(phases: Sequence[Mechanism], counts: Sequence[Any]) -> Mechanism:
    runs = [Repeated(m, n) for m, n in zip(phases, counts, strict=True)]
    return Composed(runs) if len(runs) > 1 else runs[0]


def _phases_epsilon(phases, taken, delta, lengths, start, method):
    steps = _counts.value(taken.counter)
    countable = (steps > 0.0) & (steps < jnp.inf)
    latest = jnp.where(countable, jnp.maximum(steps - start, 1.0), 1.0)
    m = _composed(phases, (*(float(n) for n in lengths), latest))
    value = _queries.scalar_epsilon(m, delta, "both", method)
    value = jnp.where(steps > 0.0, value, 0.0)
    value = jnp.where(steps < jnp.inf, value, jnp.where(jnp.isnan(steps), jnp.nan, jnp.inf))
    return jnp.where(m._in_domain() & _checks.OPEN_DELTA.contains(delta), value, jnp.nan)
