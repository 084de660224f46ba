"""The law of the privacy loss as an object: one law, every reading.

The law is the engine's (see `jaxdp._law`): masses on a uniform grid of the loss L = log dP/dQ, near
a chosen delta, and a bound on all that the grid leaves out. That is a measure which the curve

    H(eps) = E_P (1 - e^{eps - L})_+ + P{L = inf}

weighs with little near that delta. Away from it, and outside the window, readings use what is
known of every such curve (`_privacy_loss_readings`): they are certified everywhere, and tight near
the chosen delta. The other direction is the same curve (H_g of Q against P is
1 - g + g H_{1/g} of P against Q), hence of the same side.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _chunks, _divergences, _law, _numerical, _structure, _x64
from jaxdp import _privacy_loss_readings as readings
from jaxdp._law import _allowances
from jaxdp._mechanisms import Mechanism, _curve, require_mechanism
from jaxdp._mechanisms._schedule import Steps, with_schedules
from jaxdp._methods import Numerical

Direction = Literal["remove", "add"]
_DIRECTIONS = ("remove", "add")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False)
class PrivacyLoss:
    """A law of X = dP/dQ on a log-uniform grid, above or below that of a mechanism.

    Made by `privacy_loss`. "remove" reads the pair (P, Q) as it stands, "add" the pair (Q, P).
    Every reading broadcasts its argument, works under jit, vmap and grad, and is certified: an
    upper bound if `upper`, else a lower one (`renyi` is that of the grid alone).

    Attributes:
      start: the least loss of the grid.
      spacing: the distance of its points.
      log_mass: (grid_size,), log P-masses of the points.
      log_infinity: log P{X = inf}.
      log_error, tilt: e^{log_error - tilt eps} is what the curve of the grid may be off by.
      log_outside, outside_tilt: the same of losses outside the window, at its safe end.
      centre: the epsilon about which the law is accurate.
      anchor, log_anchor: the epsilon below which the grid is not read, and log H there.
      largest, largest_reversed: the largest finite losses of (P, Q) and of (Q, P).
      log_failure, log_failure_reversed: the logs of P{X = inf} and Q{X = 0} of the mechanism.
      upper: whether the law is above the mechanism's or below.
      reversed: whether P and Q have traded places.
    """

    start: jax.Array
    spacing: jax.Array
    log_mass: jax.Array
    log_infinity: jax.Array
    log_error: jax.Array
    tilt: jax.Array
    log_outside: jax.Array
    outside_tilt: jax.Array
    centre: jax.Array
    anchor: jax.Array
    log_anchor: jax.Array
    largest: jax.Array
    largest_reversed: jax.Array
    log_failure: jax.Array
    log_failure_reversed: jax.Array
    upper: bool = dataclasses.field(metadata={"static": True})
    reversed: bool = dataclasses.field(default=False, metadata={"static": True})

    _core_ndims: ClassVar = {"log_mass": 1}

    def __repr__(self) -> str:
        start, spacing, centre = (
            _structure.compact(x) for x in (self.start, self.spacing, self.centre)
        )
        count = np.shape(self.log_mass)[-1] if np.ndim(self.log_mass) else 0
        side = "above" if self.upper else "below"
        swapped = ", P and Q swapped" if self.reversed else ""
        return (
            f"PrivacyLoss({side} the mechanism's, accurate about epsilon {centre}: {count} losses "
            f"from {start} on, {spacing} apart{swapped})"
        )

    @property
    def loss(self) -> jax.Array:
        """The losses of the grid's points, (..., grid_size)."""
        count = jnp.arange(self.log_mass.shape[-1], dtype=self.log_mass.dtype)
        return self.start[..., None] + self.spacing[..., None] * count

    def reverse(self) -> "PrivacyLoss":
        """The law of the pair (Q, P): "remove" and "add" trade places."""
        return dataclasses.replace(self, reversed=not self.reversed)

    def log_hockey_stick(self, epsilon: ArrayLike, *, direction: Direction = "remove") -> jax.Array:
        """log H at any real epsilon (see `hockey_stick`), finite where H underflows."""
        _checks.check("epsilon", epsilon, _checks.NOT_NAN)
        return self._read(readings.log_curve, epsilon, direction)

    def hockey_stick(self, epsilon: ArrayLike, *, direction: Direction = "remove") -> jax.Array:
        """The hockey-stick divergence at e^epsilon, any real epsilon.

        Raises:
          ValueError: for nan epsilon or another direction.

        Example:
          >>> import jaxdp
          >>> law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0), delta=1e-5)
          >>> round(float(law.hockey_stick(1.0)), 2), round(float(law.hockey_stick(-1.0)), 2)
          (0.13, 0.68)
        """
        _checks.check("epsilon", epsilon, _checks.NOT_NAN)
        return self._read(_curve_of, epsilon, direction)

    def epsilon(self, delta: ArrayLike, *, direction: Direction = "remove") -> jax.Array:
        """The least epsilon >= 0 at which the curve meets delta; inf where none does.

        Raises:
          ValueError: for delta outside (0, 1) or another direction.

        Example:
          >>> import jaxdp
          >>> law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0), delta=1e-5)
          >>> round(float(law.epsilon(1e-5)), 2)
          4.38
        """
        _checks.check("delta", delta, _checks.OPEN_DELTA)
        return self._read(readings.epsilon, delta, direction)

    def renyi(self, alpha: ArrayLike, *, direction: Direction = "remove") -> jax.Array:
        """The Rényi divergence of the finite losses of the grid, any order alpha > 1.

        No bound: a law above keeps mass at infinity, where its own divergence is infinite, and
        what an order weighs most may lie off the grid. `jaxdp.renyi` is exact.

        Raises:
          ValueError: for alpha outside (1, inf) or another direction.
        """
        _checks.check("alpha", alpha, _checks.FINITE_ORDER)
        return self._read(_renyi, alpha, direction, "nearest")

    def tradeoff(self, fpr: ArrayLike, *, direction: Direction = "remove") -> jax.Array:
        """The type II error at type I error fpr: a lower bound if the law is `upper`.

        The best line 1 - H_g - g fpr over the g of the grid and some more; from a law below, over
        all g.

        Raises:
          ValueError: for fpr outside [0, 1] or another direction.
        """
        _checks.check("fpr", fpr, _checks.PROBABILITY)
        return self._read(readings.tradeoff, fpr, direction, "down" if self.upper else "up")

    def _read(self, function, argument, direction, rounding=None):
        _checks.check_choice("direction", direction, _DIRECTIONS)
        return _x64.evaluate(
            function,
            self,
            argument,
            rounding=rounding or ("up" if self.upper else "down"),
            chunk=256,
            direct=(direction == "remove") != self.reversed,
            single=self.tilt.dtype != jnp.float64,
        )


_FIELDS = tuple(
    f.name for f in dataclasses.fields(PrivacyLoss) if f.name not in ("upper", "reversed")
)
# To 32 bits: losses and masses go to the law's side, and so does the anchor (where the curve is
# lower than at the exact one above, higher below); errors and the largest losses go up.
_UP = ("log_error", "log_outside", "largest", "largest_reversed")
_NEAREST = ("tilt", "outside_tilt", "centre")


def _rounding(safe: Literal["up", "down"]) -> tuple[_x64.Rounding, ...]:
    return tuple("up" if f in _UP else "nearest" if f in _NEAREST else safe for f in _FIELDS)


_ROUNDING = {"upper": _rounding("up"), "lower": _rounding("down")}


def privacy_loss(
    m: Mechanism,
    *,
    delta: ArrayLike = 1e-5,
    direction: Direction = "remove",
    side: Literal["upper", "lower"] = "upper",
    grid_size: int | None = None,
    chunk: int | None = None,
) -> PrivacyLoss:
    """The certified law of a mechanism's privacy loss, tight about the epsilon of a delta.

    Args:
      m: any mechanism with a numerical law; its parameters broadcast against delta.
      delta: where the law is to be accurate, in (0, 1). Any shape.
      direction: which pair is (P, Q): "remove" (with the record, without it) or "add". Either can
        be read from either law; the other one less tightly at small delta.
      side: a law "upper" (its curve lies above the mechanism's) or "lower".
      grid_size: lattice points, a power of two; None takes 8192.
      chunk: how many laws to compute at a time; by default what the device has memory for.

    Returns:
      A PrivacyLoss whose fields have the broadcast shape.

    Raises:
      ValueError: for delta outside (0, 1), an unknown side or direction, or a mechanism without
        a law that serves both directions (a composition on a Poisson sample, shuffled reports).
        TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000)
      >>> above, below = (jaxdp.privacy_loss(run, side=s) for s in ("upper", "lower"))
      >>> bool(below.epsilon(1e-5) <= 1.828237 <= above.epsilon(1e-5))
      True
    """
    require_mechanism("m", m)
    _checks.check("delta", delta, _checks.OPEN_DELTA)
    _checks.check_choice("direction", direction, _DIRECTIONS)
    _checks.check_choice("side", side, ("upper", "lower"))
    m = with_schedules(m)
    if _curve.has_average(m):
        raise ValueError("m: random allocation has no law that serves every epsilon")
    if not _numerical.has_law(m) or _numerical.has_tables(m):
        raise ValueError(
            "m: a composition on a Poisson sample has no law that serves both directions, "
            "shuffled reports have none; "
            "epsilon, delta and renyi answer for them"
        )
    size = Numerical(grid_size).grid_size or 8192
    fields = _x64.evaluate(
        _build,
        m,
        delta,
        rounding=_ROUNDING[side],
        chunk=_chunks.chunk_of(m, Numerical(size), delta, chunk),
        quick=True,
        direction=direction,
        side=side,
        size=size,
    )
    return PrivacyLoss(*fields, upper=side == "upper")


def _build(m, delta, direction, side, size):
    ok = m._in_domain() & (delta > 0.0) & (delta < 1.0)
    sign = 1 if side == "upper" else -1
    terms = _numerical.terms_of(m)
    law = _law.loss_law(terms, jnp.log(delta), direction=direction, side=sign, size=size)
    add = direction == "add" if isinstance(direction, str) else direction  # traced: "add" or not
    ends = [_curve.end(m, d) for d in ("remove", "add")]
    ends = [jax.tree.map(lambda x, y: jnp.where(add, y, x), *p) for p in (ends, ends[::-1])]
    steps = _number_of_steps(m)
    largest = [loss + _allowances.largest_loss(loss, steps) for loss, _ in ends]
    failure = [jnp.minimum(x + sign * _allowances.failure(x), 0.0) for _, x in ends]
    start = jnp.asarray(law.start, jnp.float64)
    known = {"upper": side == "upper", "anchor": -jnp.inf * jnp.ones_like(start)}
    built = PrivacyLoss(
        **law._asdict(),
        **known,
        log_anchor=jnp.zeros_like(start),
        largest=largest[0],
        largest_reversed=largest[1],
        log_failure=failure[0],
        log_failure_reversed=failure[1],
    )
    anchor, log_anchor = readings.anchored(built)
    built = dataclasses.replace(built, anchor=anchor, log_anchor=log_anchor)
    return tuple(jnp.where(ok, getattr(built, name), jnp.nan) for name in _FIELDS)


def _number_of_steps(m: Mechanism) -> jax.Array:
    steps = jnp.float64(0.0)
    for t in _curve.canonical_terms(m):
        own = jnp.sum(t.mechanism.copies) if isinstance(t.mechanism, Steps) else 1.0
        steps += t.multiplicity * own
    return steps


def _curve_of(law, epsilon, direct, single):
    safe = _divergences.exp_up if law.upper else _divergences.exp_down
    return safe(readings.log_curve(law, epsilon, direct, single))


def _renyi(law, alpha, direct, single):
    return readings.renyi(law, alpha, direct)
