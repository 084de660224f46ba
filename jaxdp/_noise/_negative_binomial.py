"""Negative binomial noise: non-negative, hence with different curves in both directions."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates, _special
from jaxdp._mechanisms import Direction, mechanism
from jaxdp._noise import _atoms, _runs, _samplers
from jaxdp._noise._lattice import DROP, INTEGER, WIDE_DROP, LatticeNoise
from jaxdp._noise._sums import (
    FAR,
    QUADRATURE,
    certified,
    falls_below,
    first_true,
    log_geometric_tail,
    ray,
    rounded_up,
)
from jaxdp._special import log1p
from jaxdp._special_gamma import log_gamma_ratio, negative_binomial_log_pmf

_OPEN = _checks.Domain("in (0, 1)", lambda x: (x > 0) & (x < 1))


@mechanism
class NegativeBinomial(LatticeNoise):
    r"""Adds non-negative integer noise with f(k) = Gamma(k+r)/(k! Gamma(r)) p^r (1-p)^k.

    .. math:: \text{remove: } \sum_{k \ge \Delta} (f(k-\Delta) - e^\varepsilon f(k))_+, \quad
              \text{add: } \sum_{k < \Delta} f(k)
              + \sum_{k \ge \Delta} (f(k) - e^\varepsilon f(k - \Delta))_+

    The directions differ: outcomes below Delta are impossible with the record, so the add
    direction keeps delta >= sum_{k < Delta} f(k) >= p^r at every epsilon (no pure DP, infinite
    Rényi divergence), whence mean >= log(1/delta). The remove direction has loss at most
    -Delta log(1-p) for r >= 1. (Ghazi, Kumar, Manurangsi & Pagh 2021, Theorem 13 and Lemma 15.)

    Args:
      r: number of successes, > 0, real. Any shape.
      p: success probability in (0, 1); broadcasts against r. The mean is r (1-p)/p.
      sensitivity: integer >= 1, of one coordinate: the privacy is that of one noisy number (see
        `sample`); broadcasts against r.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> noise = jaxdp.NegativeBinomial(10.0, 0.2)
      >>> f"{float(jaxdp.delta(noise, 1.0, direction='add')):.4e}"
      '3.7573e-06'
      >>> float(jaxdp.delta(noise, 1.0, direction="remove"))
      0.0
    """

    r: ArrayLike
    p: ArrayLike
    sensitivity: ArrayLike = 1

    _domains = {"r": _checks.POSITIVE, "p": _OPEN, "sensitivity": INTEGER}

    def _log_pmf(self, k: jax.Array) -> jax.Array:
        return negative_binomial_log_pmf(k, jnp.asarray(self.r), jnp.asarray(self.p))

    def _loss(self, k: jax.Array) -> jax.Array:
        """log f(k - Delta) - log f(k) for k >= Delta."""
        j, shift = k - self.sensitivity, 1.0 * self.sensitivity
        ratios = log_gamma_ratio(jnp.stack([j + 1.0, j + self.r]), shift)
        return (ratios[0] - ratios[1]) + self._loss_limit()

    def _loss_limit(self) -> jax.Array:
        return -self.sensitivity * log1p(-self.p)

    def _mode(self) -> jax.Array:
        return jnp.maximum(jnp.floor((self.r - 1.0) * (1.0 - self.p) / self.p), 0.0)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        first = self._loss(1.0 * self.sensitivity)
        limit = self._loss_limit()
        rising = jnp.asarray(self.r) >= 1.0
        ulps = 2.0**-50
        low = jnp.where(rising, -rounded_up(-first), limit * (1.0 - ulps))
        return low, jnp.where(rising, limit * (1.0 + ulps), rounded_up(first))

    def _log_failure(self, direction: Direction) -> jax.Array:
        if direction == "remove":
            return jnp.asarray(-jnp.inf)
        zero = jnp.zeros_like(1.0 * self.sensitivity)
        return _window_sum(self, zero, self.sensitivity - 1.0, 0.0)

    def _symmetric(self) -> bool:
        return False

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return _log_hockey_stick(self, epsilon, direction, slack)

    def _rate(self, s: jax.Array) -> jax.Array:
        loss, log_weights = _nodes(self)
        finite = _rates.discrete_rate(loss, log_weights, jnp.where(s >= 1.0, s, 2.0))
        order = jnp.where(s >= 1.0, s, 2.0)
        # the outcomes of X = 0 add (0 - 1 - s (0 - 1))/(s (s - 1)) = 1/s of their mass
        excess = finite * _special.relative_expm1(order * (order - 1.0) * finite)
        moment = order * (order - 1.0) * finite
        small = moment < 1.0
        lost = jnp.exp(self._log_failure("add"))
        total = jnp.where(small, excess, 0.0) + lost / order
        near = _divergences.rate_from_excess(total, order)
        far = finite + log1p(
            (order - 1.0) * lost * jnp.exp(-jnp.where(small, 1.0, moment))
        ) / jnp.where(order > 1.0, order * (order - 1.0), 1.0)
        scale = s * (s - 1.0)
        below = _special.logsumexp(log_weights + s * loss) / jnp.where(scale == 0.0, 1.0, scale)
        return jnp.where(s >= 1.0, jnp.where(small, near, far), below)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        loss, log_weights = _nodes(self)
        certain = q >= 1.0
        absent = log1p(-jnp.where(certain, 0.5, q))  # at small q all digits are in 1 - q's distance
        loss = jnp.append(_rates.log_mixture(loss, q), absent)
        log_weights = jnp.append(log_weights, self._log_failure("add"))
        thinned = jnp.where(certain, 0.0, loss)
        return jnp.where(certain, self._rate(s), _rates.discrete_rate(thinned, log_weights, s))

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _log_masses(self, lo, hi)

    def _mass_error(self) -> jax.Array:
        return _mass_error(self)

    def _draw(self, key: jax.Array, shape: tuple[int, ...], dtype: Any) -> jax.Array:
        p = jnp.asarray(self.p, dtype)
        return _samplers.negative_binomial(key, shape, dtype, self.r, (1.0 - p) / p)


def _window_sum(m, low, high, slack, offset=0.0, log_factor=None):
    """log of sum_{k=low}^{high} f(k - offset) e^{log_factor(k)}, log_factor <= 0.

    The window keeps what is within e^-60 of the largest f; with slack > 0 the rest is bounded and
    added: on the right by a geometric tail, on the left by (first - low) times its largest value.
    """
    frozen = jax.lax.stop_gradient(m)
    low, high = jax.lax.stop_gradient((1.0 * low, 1.0 * high))
    top = jnp.clip(frozen._mode() + offset, low, high)

    def border(k):  # row 0: high enough from here on; row 1: not any more
        values = frozen._log_pmf(jnp.append(k, top) - offset)
        fallen = values[:-1].reshape(k.shape) < values[-1] - DROP
        return fallen == jnp.asarray([[False], [True]])

    ends = jnp.stack([low - 1.0, top]), jnp.stack([top, top + FAR])
    first, end = first_true(border, *ends)
    end = jnp.minimum(end, high + 1.0)
    steps, log_weights = ray(end - first)
    used = log_weights > -jnp.inf
    k = jnp.where(used, first + steps, top)
    log_f = m._log_pmf(jnp.concatenate([k, jnp.stack([end, end + 1.0, top])]) - offset)
    terms = log_f[:-3] + log_weights
    if log_factor is not None:
        terms = terms + log_factor(k)
    value = _special.logsumexp(jnp.where(used, terms, -jnp.inf))
    if slack > 0:
        tail = log_geometric_tail(log_f[-3], log_f[-2], 1.0 - m.p)
        tail = jnp.where(end > high, -jnp.inf, tail)
        left = _divergences.log_positive(first - low) + log_f[-1] - DROP
        value = _special.logsumexp(jnp.stack([value, tail, left]))
    return jnp.where(high >= low, certified(value, slack), -jnp.inf)


def _log_hockey_stick(m, epsilon, direction, slack):
    """The terms are positive on one interval, whose end the monotone loss decides."""
    frozen = jax.lax.stop_gradient(m)
    shift = 1.0 * frozen.sensitivity
    if slack:
        epsilon = epsilon - slack * (32.0 + 16.0 * jnp.abs(epsilon) + 16.0 * shift)
    rising = jnp.asarray(m.r) >= 1.0  # the loss increases in k to its limit, else it decreases
    remove = direction == "remove"
    target = epsilon if remove else -epsilon
    sign = 1.0 if remove else -1.0

    # the k >= Delta of positive terms are an up-set (from some k on) or a down-set
    upward = rising if remove else ~rising
    frozen_target = jax.lax.stop_gradient(target)

    def changed(k):
        return (sign * (frozen._loss(k) - frozen_target) > 0.0) == upward

    limit_in = sign * (frozen._loss_limit() - frozen_target) > 0.0
    border = first_true(changed, shift - 1.0, shift + FAR)
    low = jnp.where(upward, border, shift)
    high = jnp.where(limit_in, shift + FAR, jnp.where(upward, shift - 1.0, border - 1.0))
    offset = shift if remove else 0.0

    def log_factor(k):  # 0 where the outcome is impossible with the record (only under add)
        certain = k < shift
        gap = sign * (target - m._loss(jnp.maximum(k, shift)))
        inside = (gap < 0.0) & ~certain
        value = _special.log1mexp(jnp.where(inside, gap, -1.0))
        return jnp.where(inside, value, jnp.where(certain, 0.0, -jnp.inf))

    if remove:
        return jnp.minimum(_window_sum(m, low, high, slack, offset, log_factor), 0.0)
    lows, highs = jnp.stack([jnp.zeros_like(low), low]), jnp.stack([shift - 1.0, high])
    values = jax.vmap(lambda a, b: _window_sum(m, a, b, slack, 0.0, log_factor))(lows, highs)
    return jnp.minimum(jnp.logaddexp(values[0], values[1]), 0.0)


def _nodes(m):
    """Losses and log Q-weights of k >= Delta, for all orders, and the far tail.

    The tail carries the limit of the loss, or where the loss falls (r < 1) the last one: more.
    """
    shift = 1.0 * m.sensitivity
    frozen = jax.lax.stop_gradient(m)
    top = frozen._mode()
    level = frozen._log_pmf(top) - WIDE_DROP
    # P lives right of its own left end: both laws are kept from there on
    first = first_true(lambda k: frozen._log_pmf(k) >= level, -jnp.ones_like(top), top)
    start = jnp.maximum(first, shift)
    end = falls_below(frozen._log_pmf, jnp.maximum(top, start), WIDE_DROP) + shift
    steps, log_weights = ray(end - start)
    used = log_weights > -jnp.inf
    k = jnp.where(used, start + steps, start)
    tail = log_geometric_tail(m._log_pmf(end), m._log_pmf(end + 1.0), 1.0 - m.p)
    loss = jnp.append(m._loss(k), jnp.maximum(m._loss(end), m._loss_limit()))
    return loss, jnp.append(m._log_pmf(k) + log_weights, tail)


class _Window(NamedTuple):
    """The integers from `start` on that hold both laws but for e^-745 each; above Delta."""

    mode: jax.Array
    level: jax.Array
    start: jax.Array
    length: jax.Array

    @property
    def is_wide(self) -> jax.Array:
        """Whether a list of atoms does not hold it."""
        return self.length + 4.0 > _atoms.ATOMS


def _window(m) -> _Window:
    frozen = jax.lax.stop_gradient(m)
    shift, mode = 1.0 * frozen.sensitivity, frozen._mode()
    level = frozen._log_pmf(mode) - _runs.DROP
    first = first_true(lambda k: frozen._log_pmf(k) >= level, -jnp.ones_like(mode), mode)
    start = jnp.maximum(first, shift)
    end = falls_below(frozen._log_pmf, jnp.maximum(mode, start), _runs.DROP) + shift
    return _Window(mode, level, start, end - start + 1.0)


def _log_masses(m, lo, hi):
    """From 8192 atoms, or of runs of integers; the right tail goes to the largest loss."""
    shift, window = 1.0 * m.sensitivity, _window(m)
    k = window.start + jnp.arange(_atoms.ATOMS - 2, dtype=jnp.float64)
    _, high = m._loss_range()

    def values(k: jax.Array) -> tuple[jax.Array, jax.Array]:
        return m._log_pmf(k - shift), m._loss(k)

    after = jnp.where(window.is_wide, window.start + window.length, k[-1] + 1.0)
    right_p = log_geometric_tail(
        m._log_pmf(after - shift), m._log_pmf(after + 1.0 - shift), 1.0 - m.p
    )
    # P-mass left of the window, below the level each
    left_p = _divergences.log_positive(window.start - shift) + window.level
    ends = jnp.stack([high, jnp.minimum(m._loss(k[0]), high)])
    tails = jnp.stack([right_p, left_p])
    left_out = (ends, tails - ends, tails)

    # (As for symmetric noise, `_lattice`: outside the condition.)
    atoms = zip((m._loss(k), m._log_pmf(k), m._log_pmf(k - shift)), left_out, strict=True)
    of_atoms = _atoms.interval_log_masses(lo, hi, *(jnp.concatenate(x) for x in atoms))

    def of_runs() -> tuple[jax.Array, jax.Array]:
        found = _runs.onward(window.start, window.length, _atoms.ATOMS)
        return _runs.log_masses(values, jax.lax.stop_gradient(found), left_out, lo, hi)

    return jax.lax.cond(window.is_wide, of_runs, lambda: of_atoms)


def _mass_error(m) -> jax.Array:
    """Of runs: the third derivative of log f is that of log Gamma(k + r) - log Gamma(k + 1)."""
    frozen = jax.lax.stop_gradient(m)
    shift, window = 1.0 * frozen.sensitivity, _window(frozen)

    def of_runs() -> jax.Array:
        found = _runs.onward(window.start, window.length, _atoms.ATOMS)
        distance = found.first - shift
        one, other = (1.0 / (distance + x) ** 2 for x in (frozen.r, 1.0))
        # (Steepest at the ends of runs, and of P.)
        places = jnp.stack([distance, distance + jnp.maximum(found.size - 2.0, 0.0)])
        slope = jnp.max(jnp.abs(frozen._log_pmf(places + 1.0) - frozen._log_pmf(places)), axis=0)
        rough = _runs.parabola_error(found, 2.0 * jnp.abs(one - other))
        return QUADRATURE + rough + _runs.rule_error(found, slope)

    return jax.lax.cond(window.is_wide, of_runs, lambda: 0.0)
