"""Integer-valued noise: exact curves, moments and masses from the log probabilities.

The pair is (P, Q) = (law of X + Delta, law of X), so with f the probabilities of X the loss at k is
l(k) = log f(k - Delta) - log f(k). What must never change: every sum is one of positive terms;
what a window leaves out is bounded and added to certified values, never dropped from them.
"""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _checks, _divergences, _special
from jaxdp._mechanisms import Base
from jaxdp._mechanisms._base import add_noise
from jaxdp._noise import _atoms, _runs
from jaxdp._noise._entries import require_entries
from jaxdp._noise._sums import (
    FAR,
    QUADRATURE,
    certified,
    falls_below,
    first_true,
    log_geometric_tail,
    once,
    panel,
    ray,
    rounded_up,
)


def _is_shift(x: Any) -> Any:
    if jnp.issubdtype(jnp.result_type(x), jnp.bool_):
        return False
    floor = jnp.floor if isinstance(x, jax.Array) else np.floor
    return (x >= 1) & (abs(x) < 2.0**53) & (floor(x) == x)


INTEGER = _checks.Domain(
    "an integer >= 1 (a fractional shift of integer noise is not private)", _is_shift
)
DROP = 60.0  # a window ends where the summand has lost this many e-folds
WIDE_DROP = 700.0  # of windows that serve all Rényi orders at once


class LatticeNoise(Base):
    """Abstract: adds integer noise of log probabilities `_log_pmf` to an integer value."""

    sensitivity: Any
    _takes_runs: ClassVar[bool] = True
    _vector_form: ClassVar[str] = ""  # what is for whole vectors, if there is one

    @abc.abstractmethod
    def _log_pmf(self, k: jax.Array) -> jax.Array:
        """log f(k), elementwise, smooth in real k between the kinks at 0."""

    @abc.abstractmethod
    def _draw(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        """Samples of the noise."""

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + noise for every entry of an array or PyTree of integers, as floats.

        The queries are for one entry, and so is the value, unless the parameters have its shape:
        each entry then has a mechanism of its own. A record that changes several is protected by
        their composition, at every entry's sensitivity (`Composed`, `Schedule`).

        Raises:
          ValueError: for a value of more entries than the mechanism has parameters for.
        """
        require_entries(self, value, self._vector_form)
        return add_noise(key, value, self._draw)


class SymmetricLattice(LatticeNoise):
    """Abstract: symmetric unimodal noise, log-concave or else log-convex on k >= 0."""

    @abc.abstractmethod
    def _loss(self, k: jax.Array) -> jax.Array:
        """log f(k - Delta) - log f(k)."""

    def _log_envelope(self, k: jax.Array) -> jax.Array:
        """About log f(k), by which windows are placed; decreasing in k >= 0."""
        return self._log_pmf(k)

    def _log_pmf_and_loss(
        self, k: jax.Array, needed: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """log f(k - Delta) and the loss at k; where not `needed`, some numbers."""
        return self._log_pmf(jnp.abs(k - self.sensitivity)), self._loss(k)

    @abc.abstractmethod
    def _log_concave(self) -> jax.Array | bool:
        """Whether f is log-concave (the loss is monotone); True if for every parameter value."""

    @abc.abstractmethod
    def _tail(self) -> tuple[jax.Array, jax.Array]:
        """The limits of f(k + 1)/f(k) and of the loss as k grows."""

    @abc.abstractmethod
    def _loss_error(self, epsilon: jax.Array) -> jax.Array:
        """Bound on the rounding error of the loss where it is about epsilon, in roundoffs."""

    def _log_pmf_error(self) -> jax.Array | float:
        """Bound on the rounding error of log f, in roundoffs, beyond that of any sum."""
        return 0.0

    def _third_derivative(self, k: jax.Array) -> jax.Array:
        """A bound on that of log f at k >= 0, where no parabola is exact."""
        return jnp.zeros_like(k)

    def _mass_error(self) -> jax.Array:
        far = _runs.reach(jax.lax.stop_gradient(self))
        rough = jax.lax.cond(is_wide(self, far), lambda: _run_error(self, far), lambda: 0.0)
        return QUADRATURE + _divergences.SLACK * jnp.asarray(self._log_pmf_error()) + rough

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        """-+ the larger of the loss at Delta (rounded up) and in the limit."""
        at_peak = self._loss(jnp.asarray(self.sensitivity, jnp.float64))
        highest = jnp.where(self._log_concave(), self._tail()[1], rounded_up(at_peak))
        return -highest, highest

    def _symmetric(self) -> bool:
        return True

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return symmetric_log_masses(self, lo, hi)


def symmetric_log_hockey_stick(m: SymmetricLattice, epsilon: jax.Array, slack: float) -> jax.Array:
    """log sum_k (f(k - Delta) - e^epsilon f(k))_+ for any real epsilon.

    For epsilon >= 0 the terms are positive from a point right of Delta/2 on: to infinity where f
    is log-concave, else on an interval around Delta, where the loss peaks.
    """
    value = _upper_half(m, _divergences.magnitude(epsilon), slack)
    return _divergences._reflect(epsilon, value, slack)


def _upper_half(m, epsilon, slack):
    frozen = jax.lax.stop_gradient(m)  # where to sum carries no gradient
    shift = 1.0 * frozen.sensitivity
    concave = m._log_concave()
    ratio_limit, loss_limit = m._tail()
    if slack:
        epsilon = epsilon - slack * m._loss_error(epsilon)
    start, stop = _positive_range(frozen, jax.lax.stop_gradient(epsilon), shift)
    stop = jnp.where(concave | (epsilon < loss_limit), shift + FAR, stop)
    tail_start = jnp.maximum(start, shift)
    reach = falls_below(frozen._log_envelope, tail_start - shift, DROP)  # first distance left out
    steps, weights = ray(jnp.minimum(reach + shift, stop) - tail_start)
    back, back_weights = ray(jnp.minimum(shift - start, reach))
    k = jnp.concatenate([tail_start + steps, shift - 1.0 - back])
    weights = jnp.concatenate([weights, back_weights])
    others = jnp.stack([shift + reach, shift + reach + 1.0, shift])
    needed = jnp.append(weights > -jnp.inf, jnp.ones((3,), bool))
    log_mass, loss = m._log_pmf_and_loss(jnp.concatenate([k, others]), needed)
    gap = epsilon - loss[:-3]
    inside = (gap < 0.0) & needed[:-3]
    terms = log_mass[:-3] + weights + _special.log1mexp(jnp.where(inside, gap, -1.0))
    value = _special.logsumexp(jnp.where(inside, terms, -jnp.inf))
    if slack > 0:
        tail = log_geometric_tail(log_mass[-3], log_mass[-2], ratio_limit)
        value = jnp.logaddexp(value, tail + _special.LOG_2)
    value = certified(value, slack) + slack * m._log_pmf_error()
    highest = jnp.where(concave, loss_limit, loss[-1])
    return jnp.where(epsilon >= highest, -jnp.inf, jnp.minimum(value, 0.0))


def _positive_range(m, epsilon, shift):
    """The first k > Delta/2 whose loss exceeds epsilon, and the first k > Delta where it does not.

    Where f is log-concave the loss is monotone: the second is void. Elsewhere it peaks at Delta,
    which is returned as the first even if the loss exceeds epsilon nowhere.
    """
    middle, far = jnp.floor(0.5 * shift), shift + FAR
    if m._log_concave() is True:
        return first_true(lambda k: m._loss(k) > epsilon, middle, far), far
    up = jnp.asarray([[True], [False]])
    low = jnp.stack([middle, shift])
    high = jnp.stack([jnp.where(m._log_concave(), far, shift), far])
    start, stop = first_true(lambda k: (m._loss(k) > epsilon) == up, low, high)
    return start, stop


def symmetric_nodes(m: SymmetricLattice) -> tuple[jax.Array, jax.Array]:
    """Losses and log Q-weights that serve all orders s >= 1: four rays and the far right tail.

    The tail beyond the window carries the largest loss, which bounds its moments from above.
    """
    shift = 1.0 * m.sensitivity
    frozen = jax.lax.stop_gradient(m)
    reach = falls_below(frozen._log_envelope, jnp.zeros_like(shift), WIDE_DROP)
    middle = jnp.floor(0.5 * shift)
    k, w = ray(reach)
    inner_k, inner_w = ray(jnp.minimum(middle, reach))
    outer_k, outer_w = ray(jnp.minimum(shift - 1.0 - middle, reach))
    end = shift + reach
    right, inner = shift + k, jnp.concatenate([1.0 + inner_k, shift - 1.0 - outer_k])
    log_p, loss = m._log_pmf_and_loss(jnp.concatenate([right, inner, jnp.stack([end, end + 1.0])]))
    log_q = log_p - loss
    ratio_limit, _ = m._tail()
    tail = log_geometric_tail(log_q[-2], log_q[-1], ratio_limit)
    _, highest = m._loss_range()
    # the mirror -k of shift + k has the loss negated and the Q-mass f(k) = P-mass there
    losses = jnp.concatenate([-loss[: k.size], loss[:-2]])
    log_weights = jnp.concatenate([log_p[: k.size], log_q[:-2]])
    weights = jnp.concatenate([w, w, inner_w, outer_w])
    used = weights > -jnp.inf
    losses = jnp.where(used, losses, 0.0)
    log_weights = jnp.where(used, log_weights + weights, -jnp.inf)
    return once((jnp.append(losses, highest), jnp.append(log_weights, tail)))


def tilted_nodes(m: SymmetricLattice, s: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Losses and log Q-weights for order s >= 1 of smooth log-concave noise of unbounded loss.

    One panel from the left tail of Q to the right tail of the tilted law f(k) e^{s l(k)}.
    """
    order = jax.lax.stop_gradient(s)
    zero = jnp.zeros_like(order)

    frozen = jax.lax.stop_gradient(m)

    def tilted(k):
        return frozen._log_envelope(jnp.abs(k)) + order * frozen._loss(k)

    peak = first_true(lambda k: tilted(k + 1.0) <= tilted(k), zero - 1.0, FAR)
    right = falls_below(tilted, peak, DROP + 20.0)
    left = falls_below(frozen._log_envelope, zero, DROP + 20.0)
    k, w = panel(-left, right, 1536)
    return m._loss(k), w + m._log_pmf(jnp.abs(k))


def symmetric_log_masses(m: SymmetricLattice, lo: jax.Array, hi: jax.Array):
    """log Q and log P of {lo < L <= hi}: from 8192 atoms around the centre, or of runs of integers.

    What is left out, of mass e^-745: the right tail goes to the largest loss with its P-mass (and
    to loss -inf with the rest of its Q-mass), the left tail to the smallest loss kept, spreads.
    """
    shift = 1.0 * m.sensitivity
    half = _atoms.ATOMS // 2
    centre = jnp.floor(0.5 * shift)
    k = centre - half + 2.0 + jnp.arange(_atoms.ATOMS - 2, dtype=jnp.float64)
    far = _runs.reach(jax.lax.stop_gradient(m))
    wide = is_wide(m, far)
    ratio_limit, _ = m._tail()
    _, highest = m._loss_range()

    def tail(start):
        return log_geometric_tail(m._log_pmf(start), m._log_pmf(start + 1.0), ratio_limit)

    right_p = tail(jnp.where(wide, far + 1.0, jnp.maximum(k[-1] + 1.0 - shift, 0.0)))
    left_p = tail(jnp.where(wide, far + 1.0 + shift, jnp.maximum(shift - k[0] + 1.0, 0.0)))
    lowest = jnp.where(wide, m._loss(-far), m._loss(k[0]))
    ends = jnp.stack([highest, jnp.minimum(lowest, highest)])
    tails = jnp.stack([right_p, left_p])
    left_out = (ends, tails - ends, tails)

    # (Outside the condition, where what several calls have in common is worked out once.)
    log_p, loss = m._log_pmf_and_loss(k)
    atoms = zip((loss, log_p - loss, log_p), left_out, strict=True)
    of_atoms = _atoms.interval_log_masses(lo, hi, *(jnp.concatenate(x) for x in atoms))

    def of_runs() -> tuple[jax.Array, jax.Array]:
        found = jax.lax.stop_gradient(_runs.runs(shift, far))
        if m._log_concave() is True:  # the loss rises everywhere
            found = _runs.Runs(*(x.reshape(1, -1) for x in found))
        return _runs.log_masses(m._log_pmf_and_loss, found, left_out, lo, hi)

    return jax.lax.cond(wide, of_runs, lambda: of_atoms)


def is_wide(m: SymmetricLattice, far: jax.Array) -> jax.Array:
    """Whether the list of atoms does not hold both laws, which reach so far."""
    return far + 0.5 * jax.lax.stop_gradient(m.sensitivity) + 4.0 > _atoms.ATOMS // 2


def _run_error(m: SymmetricLattice, far: jax.Array) -> jax.Array:
    """The relative error of masses by runs."""
    m = jax.lax.stop_gradient(m)
    shift = 1.0 * m.sensitivity
    found, end = _runs.runs(shift, far), shift + far
    middle = found.first + 0.5 * found.size
    nearest = jnp.minimum(jnp.abs(middle), jnp.abs(middle - shift))
    third = jnp.max(m._third_derivative(jnp.stack([nearest, jnp.abs(middle)])), axis=0)
    slope = jnp.abs(m._log_envelope(end + 1.0) - m._log_envelope(end))
    return _runs.rule_error(found, slope) + _runs.parabola_error(found, third)
