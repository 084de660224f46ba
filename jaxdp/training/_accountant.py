"""Accountants that live in a training loop: PyTrees of fixed shape, updated and read under jit."""

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _orders, _queries, _x64
from jaxdp._mechanisms import Composed, Mechanism, Repeated, require_mechanism
from jaxdp._methods import Method, Numerical, check_method
from jaxdp.training import _moments, _words

# Every order of DP-SGD practice; between them moments are interpolated, which is a bound too.
DEFAULT_ORDERS: tuple[float, ...] = (
    *(float(a) for a in range(2, 13)),
    *(14.0, 16.0, 18.0, 20.0, 22.0, 25.0, 28.0, 32.0, 36.0, 40.0, 45.0, 50.0, 56.0, 64.0),
    *(80.0, 96.0, 128.0, 192.0, 256.0),
)
_NUMERICAL = Numerical()
_BETWEEN = 8  # interpolated orders to an interval


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _State:
    """What the island sees: the trailing axes of both fields belong to one evaluation."""

    moments: jax.Array
    pending: jax.Array

    _core_ndims: ClassVar[dict[str, int]] = {"moments": 2, "pending": 2}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RenyiAccountant:
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
@dataclasses.dataclass(frozen=True)
class FixedAccountant:
    """A counter of steps through a schedule fixed beforehand, read by the numerical engine.

    Attributes:
      phases: the mechanism of one step of each phase.
      steps: steps taken, int32.
      lengths: the number of steps of each phase but the last, static.
      method: how epsilon is computed, static.
    """

    phases: tuple[Mechanism, ...]
    steps: jax.Array
    lengths: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    method: Method | None = dataclasses.field(metadata={"static": True})


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
      ValueError: for no orders, or orders that are not finite, > 1 and ascending.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> def step(state, sigma):
      ...     return training.update(state, sigma=sigma, sampling_probability=0.01), None
      >>> state, _ = jax.lax.scan(step, training.init(), jax.numpy.linspace(1.0, 2.0, 100))
      >>> round(float(training.epsilon(state, 1e-5)), 3)
      1.026
    """
    orders = tuple(float(a) for a in orders)
    if not orders:
        raise ValueError("orders must not be empty")
    _checks.check("orders", orders, _checks.FINITE_ORDER)
    if any(b <= a for a, b in itertools.pairwise(orders)):
        raise ValueError(f"orders must ascend, got {orders}")
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
      A PyTree whose only moving part is an int32 counter; `update` takes no settings.

    Raises:
      ValueError: for no phases, or a phase of less than one step. TypeError: if one is no
        mechanism.

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
        mechanism, length = phase if isinstance(phase, tuple) else (phase, None)
        require_mechanism(f"phases[{i}]", mechanism)
        if i < len(phases) - 1:
            if length is None or int(length) != length or length < 1:
                raise ValueError(f"phases[{i}] must say how many steps >= 1 it has, got {length!r}")
            lengths.append(int(length))
        mechanisms.append(mechanism)
    steps = jnp.zeros((), jnp.int32)
    return FixedAccountant(tuple(mechanisms), steps, tuple(lengths), method)


def update(
    state: Any,
    *,
    sigma: ArrayLike | None = None,
    sampling_probability: ArrayLike = 1.0,
    count: ArrayLike = 1,
) -> Any:
    """Account for one more step, or for `count` equal ones; use the state returned.

    Args:
      state: from `init`, `init_fixed` or `init_filter`.
      sigma: noise multiplier > 0 of the step (standard deviation over the L2 sensitivity that a
        record has when it joins); required but for a fixed schedule, which takes no settings.
      sampling_probability: in (0, 1], with which each record joins, independently.
      count: how many such steps, >= 0.

    Returns:
      The new state, of the same structure, shapes and dtypes. Traced settings outside their
      domains make epsilon nan.

    Raises:
      ValueError: for known settings outside their domains, or settings where there must be none.
    """
    if isinstance(state, FixedAccountant):
        if sigma is not None:
            raise ValueError("sigma must not be given: the schedule of this accountant is fixed")
        steps = state.steps + jnp.asarray(count, jnp.int32)
        return dataclasses.replace(state, steps=steps)
    if not isinstance(state, RenyiAccountant):
        return dataclasses.replace(
            state,
            accountant=update(
                state.accountant,
                sigma=sigma,
                sampling_probability=sampling_probability,
                count=count,
            ),
        )
    sigma = check_settings(sigma, sampling_probability)
    _checks.check("count", count, _checks.NON_NEGATIVE)
    words = _x64.evaluate(
        _update,
        state._state(),
        sigma,
        sampling_probability,
        count,
        # sums, rates and counts up, noise down
        rounding=("nearest", "up", "nearest", "down", "nearest", "up", "nearest", "up"),
        orders=state.orders,
        single=not jax.config.jax_enable_x64,
    )
    moments, *pending = (jnp.stack(words[i : i + 2], axis=-1) for i in range(0, 8, 2))
    return RenyiAccountant(moments, jnp.stack(pending, axis=-2), state.orders)


def check_settings(sigma: ArrayLike | None, sampling_probability: ArrayLike) -> ArrayLike:
    """Raise ValueError unless the settings of a step that are known are in their domains."""
    if sigma is None:
        raise ValueError("sigma must be given")
    _checks.check("sigma", sigma, _checks.POSITIVE)
    _checks.check("sampling_probability", sampling_probability, _checks.RATE)
    return sigma


def _update(state, sigma, q, count, orders, single):
    before = _words.join(state.moments)
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
    # of equal settings the mean is kept: the same number, with the derivatives of every step
    share = jnp.where(same, count / jnp.where(total > 0.0, total, 1.0), 1.0)
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
    return jnp.where(count > 0.0, _moments.add(taken, count, latest), taken)


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
    left = jnp.concatenate([jnp.zeros(1), moments[:-1]])
    values = left + _words.constant(share) * (moments - left)
    log_delta = jnp.log(delta) - 1e-15 * (1.0 - jnp.log(delta))
    best = jnp.min(_orders.epsilon_at_order(values, between, log_delta))
    best = jnp.maximum(best * (1.0 + 1e-14) + 1e-15, 0.0)
    best = jnp.where(jnp.max(moments) == 0.0, 0.0, best)
    valid = _checks.OPEN_DELTA.contains(delta) & ~jnp.any(jnp.isnan(moments))
    return jnp.where(valid, best, jnp.nan)


def _fixed_epsilon(state: FixedAccountant, delta: ArrayLike) -> jax.Array:
    starts = np.concatenate([[0], np.cumsum(state.lengths)]).astype(int).tolist()

    def through(last: int) -> jax.Array:
        """Epsilon of all steps, the latest in phase `last`."""
        taken = jnp.maximum(state.steps - starts[last], 1)
        runs = [
            Repeated(m, float(n))
            for m, n in zip(state.phases[:last], state.lengths[:last], strict=True)
        ]
        runs.append(Repeated(state.phases[last], taken))
        m = Composed(runs) if len(runs) > 1 else runs[0]
        return _queries.epsilon(m, delta, method=state.method)

    if len(starts) == 1:
        value = through(0)
    else:
        phase = sum((state.steps > start).astype(jnp.int32) for start in starts[1:])
        value = jax.lax.switch(phase, [lambda last=i: through(last) for i in range(len(starts))])
    return jnp.where(state.steps > 0, value, jnp.zeros_like(value))
