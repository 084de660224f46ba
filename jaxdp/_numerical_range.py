r"""Compositions with mechanisms of bounded range: what a law and Rényi divergences leave open.

Every single law is dominated by that of `BoundedRange`, and its moments by those of `_rate`: both
bounds hold for adaptive compositions with anything, so does the smaller one. From below: what
`attained` has.

Repeated alone, the worst adaptive composition is known (Dong, Durfee & Rogers 2020, arXiv
1909.13830): H of n + 1 steps, the next one with the pair of some t,

.. math:: V_{n+1}(x) = \max_{0 \le t \le \varepsilon}
          p_t V_n(x - t) + (1 - p_t) V_n(x - t + \varepsilon),
          \quad p_t = \frac{1 - e^{t - \varepsilon}}{1 - e^{-\varepsilon}},

V_0(x) = (1 - e^x)_+, for the first outcome divides the level e^x by its ratio. V_n is convex in
e^x, and V_n(-x) = 1 - e^-x + e^-x V_n(x), for the pairs of t and epsilon - t mirror each other.

On a lattice of x with spacing h = epsilon/T:

* Below: t among the multiples of h. Exponential mechanisms whose scores follow x attain that.
* Above: with y = e^t, u_1 = y V_n(x - t) and u_2 = y V_n(x - t + epsilon) are convex in y (they are
  perspectives), so between multiples of h they lie below their chords. Up to 1/(1 - e^-epsilon) the
  value is D/y + e^-epsilon (u_2 - u_1), D = u_1 - e^-epsilon u_2 >= 0, and 1/y lies below its chord
  as well: a quadratic in the share w of the cell, q_0 + w (q_1 - q_0) + kappa w (1 - w) with
  kappa = (1/y_0 - 1/y_1) (D_1 - D_0), whose maximum is taken. Second order in h.
* Beyond the largest x of the lattice V_n is at most its value there, and at least 0.

A count between integers is interpolated (for gradients).

Beside other mechanisms (`joined`): V_n is convex in e^x and begins like the curve of a pair, so it
is that of one, and the worst adaptive composition of n steps and others, in whatever order, is the
composition of that pair with theirs,

.. math:: W_n(g) = E_Q X V_n(\log g - \log X), \quad X\ \text{the ratio of the others.}

Proof: a step more of t first has p_t W_{n-1}(g e^{-t}) + (1 - p_t) W_{n-1}(g e^{epsilon - t}),
which is E_Q X of the same of V_{n-1}, at most W_n by the recursion; one of the others first has
W_n. And the others first, then the t that are best for what they have shown, have W_n. (Two kinds
of steps of bounded range: the product of their pairs is above, by the same steps.)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences, _law, _numerical
from jaxdp import _special as special
from jaxdp._divergences import SLACK
from jaxdp._law import AnyDirection, Bounds, Sides
from jaxdp._mechanisms import (
    Composed,
    Mechanism,
    PoissonSampled,
    RandomizedResponse,
    Repeated,
    _curve,
)
from jaxdp._mechanisms._base import Term
from jaxdp._mechanisms._bounded_range import BoundedRange
from jaxdp._mechanisms._combinators import of_terms, with_held
from jaxdp._mechanisms._schedule import Steps
from jaxdp._noise import FinitePair
from jaxdp._numerical_range_table import as_pair

_CELLS = 64  # of epsilon
_SIZE = 48 * _CELLS  # of the lattice of x >= 0
_MOST_STEPS = 256
_LARGEST = 30.0  # epsilon: beyond, e^epsilon is 0 or infinite to some of what follows
_LARGEST_TABLED = 7.0  # epsilon: slopes over e^(48 epsilon) do not underflow
_ROUNDING = 64.0 * SLACK  # of a step, relative
_LEAST = 1e-290  # what underflows is less
# Of a range, the larger loss of two outcomes, for samples, allocations and selections: to remove
# what counts is how large it is, to add how small the other one.
_SHARES = {"remove": (0.5, 0.65, 0.8, 0.9), "add": (0.6, 0.45, 0.3, 0.12)}


def has_range(m: Mechanism) -> bool:
    """Whether a step of m, or what runs in one at any depth, is known by its range only."""
    return any(_step_has_range(t.mechanism) for t in _curve.canonical_terms(m))


def _step_has_range(step: Any) -> bool:
    if isinstance(step, Steps):
        return _step_has_range(step.mechanism)
    return _is_range(step) or any(has_range(m) for m in step._held())


def _sampled_range(step: Any) -> bool:
    """Whether that is a step itself, perhaps sampled: then its moments may say more."""
    if isinstance(step, (Steps, PoissonSampled)):
        inner = step.mechanism
        return any(_sampled_range(t.mechanism) for t in _curve.canonical_terms(inner))
    return _is_range(step)


def _is_range(step: Any) -> bool:
    return isinstance(step, BoundedRange)


def attained(m: Mechanism, share: jax.Array | None = None) -> Mechanism:
    """m with steps that attain their range: two outcomes that neighbours exchange.

    Or two of losses t and t - epsilon, t being that share of epsilon.
    """
    terms = _curve.canonical_terms(m)
    return of_terms([Term(_attained_step(t.mechanism, share), t.count) for t in terms])


def _attained_step(step: Any, share: jax.Array | None = None) -> Any:
    if not _step_has_range(step):
        return step
    if _is_range(step):
        top = 1.0 * jnp.asarray(step.epsilon)
        return RandomizedResponse(0.5 * top) if share is None else _two_outcomes(top, share)
    if isinstance(step, Steps):
        return dataclasses.replace(step, mechanism=_attained_step(step.mechanism, share))
    return with_held(step, lambda m: attained(m, share))


def _two_outcomes(top: jax.Array, share: jax.Array) -> FinitePair:
    t = share * top
    often = -jnp.expm1(t - top) / -jnp.expm1(-top)
    rarely = jnp.exp(t - top) * -jnp.expm1(-t) / -jnp.expm1(-top)
    without = often * jnp.exp(-t) * (1.0 + 2.0**-48)  # (rounding is not to make the range wider)
    p, q = jnp.stack([often, rarely], axis=-1), jnp.stack([without, 1.0 - without], axis=-1)
    return FinitePair(p, q)


def joined(m: Mechanism, side: int) -> Mechanism:
    """m with the optimal composition of its unsampled selections in their place, as one pair.

    Above, each kind has a pair of its own. Below, one of them has; the others attain their range.
    """
    terms = _curve.canonical_terms(m)
    kinds = [i for i, t in enumerate(terms) if _is_range(t.mechanism)]
    if not kinds:
        return m if side > 0 else attained(m)
    parts: list[Mechanism] = []
    for i, t in enumerate(terms):
        step = t.mechanism
        if i not in (kinds if side > 0 else kinds[:1]):
            step = step if side > 0 else _attained_step(step)
            parts.append(step if t.count is None else Repeated(step, t.count))
            continue
        top, count = 1.0 * jnp.asarray(step.epsilon), 1.0 * jnp.asarray(t.multiplicity)
        held = jnp.where(top <= _LARGEST_TABLED, jnp.clip(count, 0.0, _MOST_STEPS), 0.0)
        optimal = _of_steps(jnp.minimum(top, _LARGEST_TABLED), held, jnp.asarray(True))
        rest = BoundedRange(top) if side > 0 else RandomizedResponse(0.5 * top)
        parts += [as_pair(optimal.spacing, optimal.values, side), Repeated(rest, count - held)]
    return Composed(parts)


def log_delta(
    m: Mechanism, epsilon: jax.Array, direction: AnyDirection, sides: Sides, grid_size: int | None
) -> Bounds:
    """As `_numerical.log_delta`."""
    return _best(
        m,
        direction,
        sides,
        lambda optimal, side: optimal.log_delta(epsilon, side),
        lambda d: _renyi(m, epsilon, d),
        lambda asked, side: _numerical.log_delta(asked, epsilon, direction, (side,), grid_size),
    )


def epsilon(
    m: Mechanism, log_target: jax.Array, direction: str, sides: Sides, grid_size: int | None
) -> Bounds:
    """As `_numerical.epsilon`."""
    return _best(
        m,
        direction,
        sides,
        lambda optimal, side: optimal.epsilon(log_target, side),
        lambda d: _renyi_epsilon(m, log_target, d),
        lambda asked, side: _numerical.epsilon(asked, log_target, direction, (side,), grid_size),
    )


def _best(
    m: Mechanism,
    direction: Any,
    sides: Sides,
    read: Callable[["_Optimal", int], jax.Array],
    renyi: Callable[[Any], jax.Array],
    ask: Callable[[Mechanism, int], Bounds],
) -> Bounds:
    """The best of the bounds known: of Rényi's, the engine's, and the optimal composition's."""
    optimal = _optimal(m)

    def one(side: int) -> jax.Array:
        known = None if optimal is None else read(optimal, side)
        if side > 0:
            other = ask(joined(m, side), side)[0] if known is None else known
            steps = [t.mechanism for t in _curve.canonical_terms(m)]
            if not any(map(_sampled_range, steps)):
                return other
            return jnp.minimum(_numerical.larger(direction, renyi), other)
        if known is not None:
            return jnp.maximum(ask(attained(m), side)[0], known)
        if any(_is_range(t.mechanism) for t in _curve.canonical_terms(m)):
            return ask(joined(m, side), side)[0]
        shares = _SHARES["add" if direction == "add" else "remove"]  # (of both the larger one)
        return jnp.max(jax.lax.map(lambda x: ask(attained(m, x), side)[0], jnp.asarray(shares)))

    return tuple(one(side) for side in sides)


def _renyi(m: Mechanism, epsilon: jax.Array, direction: Any) -> jax.Array:
    bound = _curve.renyi_log_curve(m, epsilon, direction)
    return _law.cap_log_deltas((bound,), (1,), epsilon, _curve.end(m, direction))[0]


def _renyi_epsilon(m: Mechanism, log_target: jax.Array, direction: Any) -> jax.Array:
    bound = _curve.renyi_epsilon(m, log_target, direction)
    return jnp.minimum(bound, _curve.largest_loss(m, direction))


@dataclasses.dataclass(frozen=True)
class _Optimal:
    """The optimal adaptive composition on the lattice: V above and below, for x = 0, h, 2h, ..."""

    spacing: jax.Array
    values: dict[int, jax.Array]
    usable: jax.Array
    top: jax.Array  # epsilon of a step
    once: jax.Array  # whether it is one step, whose curve is known

    def _cell(self, index: jax.Array, side: int) -> Bounds:
        """A line through g = e^(x - x_i) on the cell after x_i: above the chord, below another one.

        Below, V is convex: left of x_{i+1} it lies above the line through a point that is at most
        its own there and one that is at least its own at x_{i+2}.
        """
        above, below = self.values[1], self.values[-1]
        width = jnp.expm1(self.spacing)
        if side > 0:
            return above[index], (above[index + 1] - above[index]) / width
        at, after = below[index + 1], above[index + 2]
        slope = jnp.minimum((after - at) / (width * (1.0 + width)), 0.0)
        return at - slope * width, slope

    def log_delta(self, epsilon: jax.Array, side: int) -> jax.Array:
        x = _divergences.magnitude(epsilon)
        place = x / self.spacing
        inside = place < _SIZE - 3.0
        index = jnp.where(inside, place, 0.0).astype(jnp.int32)
        start, slope = self._cell(index, side)
        value = start + slope * jnp.expm1(x - index * self.spacing)
        value = value * (1.0 + side * _ROUNDING)
        value = jnp.maximum(value, _LEAST) if side > 0 else jnp.where(value > _LEAST, value, 0.0)
        log = jnp.minimum(_divergences.log_positive(value), 0.0)
        nothing = 0.0 if side > 0 else -jnp.inf
        log = _divergences._reflect(epsilon, log, side * SLACK)
        log = jnp.where(inside & self.usable, log, nothing)
        exact = BoundedRange(self.top)._log_hockey_stick(epsilon, "remove", side * SLACK)
        return jnp.where(self.once, exact, log)

    def epsilon(self, log_target: jax.Array, side: int) -> jax.Array:
        """The x at which the lines of `log_delta` fall to delta, found cell by cell."""
        target = jnp.exp(log_target) * (1.0 - side * _ROUNDING)
        values = self.values[side]
        index = jnp.sum(values[1:-3] > target, dtype=jnp.int32)  # of the cell that holds it
        start, slope = self._cell(index, side)
        falls = slope < 0.0
        growth = jnp.where(falls, (target - start) / jnp.where(falls, slope, -1.0), 0.0)
        growth = jnp.clip(growth, 0.0, jnp.expm1(self.spacing))
        x = index * self.spacing + jnp.log1p(growth)
        found = (values[-4] <= target) & (target > _LEAST) & self.usable
        x = jnp.where(found, x * (1.0 + side * _ROUNDING), jnp.inf if side > 0 else 0.0)
        # (1 - e^{(x - top)/2})^2 = delta (1 - e^-top)
        root = jnp.sqrt(jnp.exp(log_target) * -jnp.expm1(-self.top))
        exact = self.top + 2.0 * special.log1p(-jnp.minimum(root, 1.0 - 1e-16))
        exact = jnp.maximum(exact + side * _ROUNDING * (1.0 + self.top), 0.0)
        return jnp.where(self.once, exact, x)


def _optimal(m: Mechanism) -> _Optimal | None:
    """Of one mechanism of bounded range, repeated; None for others."""
    terms = _curve.canonical_terms(m)
    if len(terms) != 1 or not _is_range(terms[0].mechanism):
        return None
    top = 1.0 * jnp.asarray(terms[0].mechanism.epsilon)
    count = 1.0 * jnp.asarray(terms[0].multiplicity)
    usable = (count <= _MOST_STEPS) & (top <= _LARGEST)
    held = _of_steps(jnp.minimum(top, _LARGEST), jnp.clip(count, 0.0, _MOST_STEPS), usable)
    return dataclasses.replace(held, top=top, once=count == 1.0)


def _of_steps(top: jax.Array, held: jax.Array, usable: jax.Array) -> _Optimal:
    whole = jax.lax.stop_gradient(jnp.floor(held))
    spacing = top / _CELLS
    start = jnp.zeros(_SIZE + 1)
    values = {}
    for side in (1, -1):
        step = _step_function(top, side)
        before = jax.lax.fori_loop(0, whole.astype(jnp.int32), lambda _, v, f=step: f(v), start)
        share = held - whole
        values[side] = before + share * (step(before) - before)
    return _Optimal(spacing, values, usable, top, jnp.asarray(False))


def _step_function(top: jax.Array, side: int) -> Any:
    """V_n at x = 0, h, ... to V_{n+1}, above or below."""
    x = (top / _CELLS) * np.arange(_SIZE + 1)
    t = top * (np.arange(_CELLS + 1) / _CELLS)
    total = -jnp.expm1(-top)
    p = -jnp.expm1(-top * (np.arange(_CELLS, -1, -1) / _CELLS)) / total
    rest = jnp.exp(-top) * jnp.expm1(t) / total
    lower = np.arange(_SIZE + 1)[:, None] - np.arange(_CELLS + 1) + _CELLS
    upper = lower + _CELLS
    mirror = x[_CELLS:0:-1]
    y, c = jnp.exp(t), jnp.exp(-top)
    falls = -jnp.expm1(-top / _CELLS) * jnp.exp(-t[:-1]) / total

    def step(v: jax.Array) -> jax.Array:
        left = -jnp.expm1(-mirror) + jnp.exp(-mirror) * v[_CELLS:0:-1]
        beyond = v[-1] if side > 0 else jnp.zeros(())
        extended = jnp.concatenate([left, v, jnp.full(_CELLS, beyond)])
        near, far = extended[lower], extended[upper]
        at_nodes = p * near + rest * far
        if side < 0:
            return jnp.max(at_nodes, axis=1) * (1.0 - _ROUNDING)
        d = y * (near - c * far)
        kappa = jnp.maximum(falls * (d[:, 1:] - d[:, :-1]), 0.0)
        first, rise = at_nodes[:, :-1], at_nodes[:, 1:] - at_nodes[:, :-1]
        bent = kappa > 0.0
        w = 0.5 + 0.5 * rise / jnp.where(bent, kappa, 1.0)
        w = jax.lax.stop_gradient(jnp.where(bent, jnp.clip(w, 0.0, 1.0), 0.0))
        inner = first + w * (rise + kappa * (1.0 - w))
        value = jnp.maximum(jnp.max(at_nodes, axis=1), jnp.max(inner, axis=1))
        return jnp.minimum(value * (1.0 + _ROUNDING), 1.0)

    return step
