"""Additive noise of any symmetric unimodal density, from its logarithm."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _devices, _divergences, _special, _x64
from jaxdp._mechanisms import CustomMechanism
from jaxdp._noise import _density
from jaxdp._rounding import product_up

_WIDTH = _checks.Domain("> 0 (inf allowed)", lambda x: x > 0)
_MOST_TURNS = 8
_ROUNDED_UP = 2.0**-46
_NEXT_TO_0 = 2.0**-900  # in widths of the peak
_SUMMED = 2.0**-42  # of a log mass: some panels, and a running sum of the others
_REFUSALS = (
    "log_density must be finite at 0 and not nan on its support",
    "log_density must not rise with the distance from 0: sensitivity is not the worst shift of "
    "noise that is not unimodal; give the masses of its worst pair as a CustomMechanism",
    "log_density must be integrable: from far out on it must fall faster than 1/y",
    "the loss log f(x - sensitivity) - log f(x) turns more often than `turns` says, right of "
    "sensitivity/2; say how often (0 for log-concave noise)",
    "log_density falls faster than `tail_rate` far from 0",
    "log_density is not smooth enough for its integrals to be known to a relative 1e-3",
)


class AdditiveNoise(CustomMechanism):
    r"""Adds noise of density f(|x|), symmetric and unimodal, to a real value.

    .. math:: (P, Q) = (f(|x - \Delta|)\,dx,\ f(|x|)\,dx), \qquad
              L(x) = \log f(|x - \Delta|) - \log f(|x|)

    **The worst shift is Delta, for every epsilon, and for every symmetric unimodal f**: let
    0 <= d < d' and g >= 1. Where f(|x - d|) > g f(|x|), x is nearer to d than to 0, so that the
    set S of these x lies in x > d/2 >= 0. Moved to the right by h = d' - d it has the same mass
    under the law around d', and no more mass around 0, since f falls on x >= 0. So
    H_g(d') >= P'(S + h) - g Q(S + h) >= P(S) - g Q(S) = H_g(d). For g < 1 the same follows from
    H_g = 1 - g + g H_{1/g} of the reversed pair, which symmetry makes the same one; shifts by -d
    are mirrored. (Noise that is not symmetric or not unimodal has no such pair and is refused.)

    Masses of loss intervals are integrals of f between the points where the loss crosses their
    ends. f log-concave makes L monotone. Otherwise L rises from 0 at Delta/2, and turns to the
    right of it: `turns` says how often at most, and is checked on a grid of some 1,500 points. They
    are good to a relative 2^-36 if f is analytic on x > 0 (and next to 0 from the right), by the
    rule of `_density`; the difference between two quadratures is measured and allowed for besides.
    Mass further out than where f has fallen by e^-1800, or than 2^400 widths of its peak, is placed
    at the nearest loss. Add and remove have the same curve.

    Args:
      log_density: (y, *parameters) to log f(y) up to a constant, for arrays of distances y >= 0; a
        function of the module (not a new one at every call, for which all would be compiled anew).
      parameters: what it is called with besides y: a tuple of numbers or arrays that broadcast.
        Derivatives with respect to them are taken of log_density.
      sensitivity: Delta > 0; how far a record may move the value.
      support: the noise lies in [-support, support]; None (a known inf) for all reals. Outcomes
        beyond support of one of the two laws only have an infinite loss.
      tail_rate: the most by which log f falls per unit of y far out, r for tails like e^{-r y}: the
        loss there is at most r Delta. It is asked for where there is no support and the loss does
        not fall to 0 far out. (With inf the loss is unbounded, and Rényi divergences come back
        infinite.)
      turns: how often the loss turns right of Delta/2 between rising and falling, at most: 0 for
        log-concave f, 1 for Student's t. At most 8.

    Raises:
      ValueError: where known parameters are outside these domains, or the density is none of the
        above (a sentence says why). Traced ones give nan. TypeError: if log_density is no function.

    Example:
      >>> import jax.numpy as jnp, jaxdp
      >>> def logistic(y, scale):
      ...     return -y / scale - 2.0 * jnp.log1p(jnp.exp(-y / scale))
      >>> noise = jaxdp.AdditiveNoise(logistic, (2.0,), tail_rate=0.5)
      >>> float(jaxdp.epsilon(noise, 0.0))
      0.5
      >>> round(float(jaxdp.delta(noise, 0.1)), 5)
      0.08351
    """

    log_density: Callable[..., jax.Array] = dataclasses.field(metadata={"static": True})
    parameters: tuple[Any, ...] = ()
    sensitivity: ArrayLike = 1.0
    support: ArrayLike | None = None
    tail_rate: ArrayLike = np.inf
    turns: int = dataclasses.field(default=0, metadata={"static": True})

    symmetric: ClassVar = True
    _replaceable: ClassVar = True

    def __post_init__(self) -> None:
        """Check what is known."""
        if not callable(self.log_density):
            got = _checks.shown(self.log_density)
            raise TypeError(f"log_density must be a function of distances, got {got}")
        if not isinstance(self.parameters, tuple):
            got = _checks.shown(self.parameters)
            raise TypeError(
                f"parameters must be a tuple of numbers or arrays, got {got}"
                " (the sensitivity is said by name: sensitivity=...)"
            )
        object.__setattr__(self, "turns", _checks.whole_number("turns", self.turns, 0, _MOST_TURNS))
        values = []
        for i, value in enumerate(self.parameters):
            values.append(_checks.array_of(f"parameters[{i}]", value))
            _checks.check(f"parameters[{i}]", values[-1], _checks.REAL)
        object.__setattr__(self, "parameters", tuple(values))
        for name, domain in self._checked().items():
            value = _checks.array_of(name, getattr(self, name))
            _checks.check(name, value, domain)
            object.__setattr__(self, name, value)
        if self.support is not None:
            known = _checks.concrete("support", self.support)
            if known is not None and np.ndim(known) == 0 and np.isinf(known):
                object.__setattr__(self, "support", None)
        leaves = jax.tree.leaves(self)
        traced = any(isinstance(leaf, jax.core.Tracer) for leaf in leaves)
        if not traced and _devices.at_top_level():
            code = int(np.max(np.asarray(_x64.evaluate(_refusal, self, differentiable=False))))
            if code:
                raise ValueError(_REFUSALS[code - 1])

    def _checked(self) -> dict[str, _checks.Domain]:
        """What must lie where; of the support, if there is one."""
        domains = {"sensitivity": _checks.POSITIVE, "support": _WIDTH, "tail_rate": _WIDTH}
        if self.support is None:
            del domains["support"]
        return domains

    def _may_fail(self) -> bool:
        return self.support is not None

    def _in_domain(self) -> jax.Array:
        inside = jnp.asarray(True)
        for value in self.parameters:
            inside &= jnp.isfinite(value)
        for name, domain in self._checked().items():
            inside &= domain.contains(getattr(self, name))
        return inside & (_refusal(self) == 0.0)

    def log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        """(log Q, log P) of {lo < L <= hi}: those of losses >= 0, and of their mirror images."""
        return _Law(self).log_masses(lo, hi)

    def _masses_function(self) -> Any:
        return _Law(self).log_masses

    def loss_range(self) -> tuple[jax.Array, jax.Array]:
        """The largest loss is at a turn, at the end of the support, or in the limit."""
        largest = _Law(self).largest()
        return -largest, largest

    def log_infinity(self) -> tuple[jax.Array, jax.Array]:
        """The mass of P beyond the support of Q, rounded up by what a sum over panels is off by."""
        lost = jnp.minimum(_Law(self).log_lost() + _SUMMED, 0.0)
        return lost, lost

    def mass_error(self) -> jax.Array:
        """By the rule, and as measured."""
        return _Law(self).table.error


class _Law:
    """The density's table and the pieces of the loss, of float64 scalars.

    Positions are those of the frozen parameters. At fixed sets of outcomes x the masses carry all
    of the derivative, for a curve is largest at the sets that are chosen.
    """

    def __init__(self, m: AdditiveNoise) -> None:
        frozen = jax.lax.stop_gradient(m)
        self.mechanism, self.shift = m, jnp.asarray(m.sensitivity, jnp.float64)
        support = np.inf if m.support is None else m.support
        self.support = jnp.asarray(support, jnp.float64)
        self.bounded = jnp.isfinite(self.support)
        self.fixed_shift = jax.lax.stop_gradient(self.shift)

        def h(y: jax.Array) -> jax.Array:
            return jnp.asarray(m.log_density(y, *m.parameters), jnp.float64)

        def fixed(y: jax.Array) -> jax.Array:
            return jnp.asarray(frozen.log_density(y, *frozen.parameters), jnp.float64)

        self.h, self.fixed = h, fixed
        self.table = _density.table(h, fixed, self.support, self.fixed_shift)
        edge = jax.lax.stop_gradient(self.table.edges[-1])
        self.end = jnp.maximum(edge - self.fixed_shift, -0.5 * self.fixed_shift)
        self.turns = _density.turns(
            self.loss, self.noise, self.fixed_shift, self.table.width, self.end, m.turns
        )

    def loss(self, w: jax.Array) -> jax.Array:
        """L at x = Delta + w, without a derivative in the parameters."""
        near, far = self.fixed(jnp.abs(w)), self.fixed(w + self.fixed_shift)
        known = jnp.isfinite(near) | jnp.isfinite(far)  # both are log 0 at most far out
        return jnp.where(known, near - far, 0.0)

    def noise(self, w: jax.Array) -> jax.Array:
        """By how much rounding may move L."""
        return _density.NOISE * (1.0 + self.sizes(w))

    def sizes(self, w: jax.Array) -> jax.Array:
        """Of the log densities whose difference L is."""
        sizes = jnp.abs(self.fixed(jnp.abs(w))) + jnp.abs(self.fixed(w + self.fixed_shift))
        return jnp.where(jnp.isfinite(sizes), sizes, 0.0)

    def _at_turn(self, w: jax.Array) -> jax.Array:
        """L at w, with its derivative in the parameters; it turns there, or has a cusp.

        (At a cusp parameters have none by h: there it is that next to it.)
        """
        near = jnp.where(w == 0.0, _NEXT_TO_0 * self.table.width, jnp.abs(w))
        return self.h(near) - self.h(w + self.shift)

    def limit(self) -> jax.Array:
        """The largest loss far out, rounded up; infinite where the tail's rate is."""
        rate = jnp.asarray(self.mechanism.tail_rate, jnp.float64)
        some = jnp.isfinite(rate)
        return jnp.where(some, product_up(jnp.where(some, rate, 1.0), self.shift), jnp.inf)

    def largest(self) -> jax.Array:
        """The largest finite loss, rounded up."""
        ends = self.turns.ends[1:]
        last = jnp.arange(ends.shape[0]) == ends.shape[0] - 1
        at = self._at_turn(ends)
        of_end = self.h(jnp.abs(self.support - self.shift)) - self.h(self.support)
        at = jnp.where(last & self.bounded, of_end, at)
        noise = jnp.where(jnp.isfinite(at), self.noise(ends), 0.0)
        # (Without a support the end is no turn: `limit` speaks for it, or the loss falls there.)
        at = jnp.where(last & ~self.bounded, -jnp.inf, at * (1.0 + _ROUNDED_UP) + noise)
        seen = jnp.max(at)
        limit = self.limit()
        falls = self.turns.number % 2 == 1
        known = self.bounded | falls
        return jnp.where(
            known, seen, jnp.where(jnp.isinf(limit), jnp.inf, jnp.maximum(limit, seen))
        )

    def log_lost(self) -> jax.Array:
        """log P{x > support}."""
        some = self.bounded
        edge = jnp.where(some, self.support, 1.0)
        gap = edge - self.shift
        no = jnp.zeros((2,), bool)
        # y from |support - Delta| on if that is right of the centre, else all and what is left
        start = jnp.stack([jnp.maximum(gap, 0.0), jnp.zeros_like(gap)])
        stop = jnp.stack([edge, jnp.clip(-gap, 0.0, edge)])
        parts = _density.log_mass(self.h, self.table, start, stop, stop - start, no)
        # (Of a short way to the end the difference of positions has lost the digits.)
        total = _density.log_mass_at_end(self.h, self.table, edge, self.shift)
        total = jnp.minimum(jnp.where(jnp.isnan(total), _special.logsumexp(parts), total), 0.0)
        return jnp.where(some, jnp.where(gap <= -edge, 0.0, total), -jnp.inf)

    def log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        lo, hi = jax.lax.stop_gradient(jnp.broadcast_arrays(lo, hi))
        at = _density.crossings(self.loss, self.sizes, self.turns, jnp.abs(jnp.stack([lo, hi])))
        at_lo, at_hi = at[:, 0], at[:, 1]  # (pieces, ...)
        pieces = at.shape[0]
        shape = (pieces,) + (1,) * lo.ndim
        start, stop = (x.reshape(shape) for x in (self.turns.ends[:-1], self.turns.ends[1:]))
        rising = (jnp.arange(pieces) % 2 == 0).reshape(shape)
        whole = jnp.where(rising, start, stop)  # all of a piece has a loss of 0 or more
        right = jnp.where(lo < 0.0, whole, at_lo), jnp.where(hi < 0.0, whole, at_hi)
        # {lo < -L <= hi} = {-hi <= L} less {-lo <= L}: an atom at 0 is right of both
        left = jnp.where(hi >= 0.0, whole, at_hi), jnp.where(lo >= 0.0, whole, at_lo)
        first, second = (jnp.stack(x) for x in zip(right, left, strict=True))  # (2, pieces, ...)
        low = jnp.where(rising, first, second)
        high = jnp.where(rising, second, first)
        log_q, log_p = self._interval(low, high, lo, hi)
        q = _divergences.log_add(log_q[0], log_p[1])
        p = _divergences.log_add(log_p[0], log_q[1])
        some = (p > -jnp.inf) & (lo < hi)
        return jnp.where(some, q, -jnp.inf), jnp.where(some, p, -jnp.inf)

    def _interval(self, low, high, lo, hi) -> tuple[jax.Array, jax.Array]:
        """log Q and log P of w in (low, high], by halves, summed over pieces."""
        h, law = self.h, self.table
        at_end = (high >= self.end) & (low < high)
        to_end, to_support = at_end & ~self.bounded, at_end & self.bounded
        x = low + self.fixed_shift
        x_end = jnp.where(to_support, self.support, high + self.fixed_shift)
        no = jnp.zeros_like(to_end)
        moved = self.shift - self.fixed_shift  # 0, with a derivative: x stay, w do not
        w, w_end = low - moved, jnp.where(to_support, self.support - self.shift, high - moved)
        # of Q, and of P left and right of its centre
        starts = x, jnp.maximum(-w_end, 0.0), jnp.maximum(w, 0.0)
        stops = x_end, jnp.maximum(-w, 0.0), jnp.maximum(w_end, 0.0)
        starts, stops, ends = jnp.stack(starts), jnp.stack(stops), jnp.stack([to_end, no, to_end])
        lengths = (stops - starts).at[0].set(w_end - w)
        parts = _density.log_mass(h, law, starts, stops, lengths, ends)
        q, p = parts[0], _divergences.log_add(parts[1], parts[2])
        q, p = _special.logsumexp(q, axis=1), _special.logsumexp(p, axis=1)
        # of the two laws the loss knows best, where positions have lost the digits of an interval
        least = jnp.stack([jnp.maximum(lo, 0.0), jnp.maximum(-hi, 0.0)])
        most = jnp.stack([jnp.maximum(hi, 0.0), jnp.maximum(-lo, 0.0)])
        some = p > -jnp.inf
        near = jnp.where(some, p, 0.0)
        most = jnp.minimum(most, 1e300)
        return jnp.where(some, jnp.clip(q, near - most, near - least), -jnp.inf), p


def _refusal(m: AdditiveNoise) -> jax.Array:
    """0, or 1 more than the index of the sentence that says what is wrong, as a float."""
    law = _Law(jax.lax.stop_gradient(m))
    found, table = law.turns, law.table
    start = jnp.isfinite(law.fixed(jnp.zeros(1))[0])
    rises = ~found.starts_rising & (found.number > 0)
    limit = law.limit()
    at_end = law.loss(law.end)
    above = ~law.bounded & (found.number % 2 == 0)
    above &= at_end > limit * (1.0 + 2.0**-40) + law.noise(law.end)
    wrong = jnp.stack(
        [
            ~start,
            ~table.unimodal,
            ~table.integrable,
            (found.number > m.turns) | rises,
            above,
            ~(table.error < 1e-3),
        ]
    )
    index = jnp.arange(1.0, wrong.shape[0] + 1.0)
    first = jnp.min(jnp.where(wrong, index, jnp.inf))
    return jnp.where(jnp.isinf(first), 0.0, first)
