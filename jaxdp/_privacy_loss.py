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
import os
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import (
    _checks,
    _chunks,
    _divergences,
    _numerical,
    _privacy_loss_file,
    _privacy_loss_shown,
    _privacy_loss_table,
    _structure,
    _x64,
)
from jaxdp import _privacy_loss_readings as readings
from jaxdp._mechanisms import Composed, Mechanism, Repeated, _curve, require_mechanism
from jaxdp._mechanisms._schedule import with_schedules
from jaxdp._methods import Numerical
from jaxdp._noise import LossDistribution
from jaxdp._privacy_loss_build import build

Direction = Literal["remove", "add", "both"]
_DIRECTIONS = ("remove", "add", "both")


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class PrivacyLoss(_structure.Compared):
    """A law of X = dP/dQ on a log-uniform grid, above or below that of a mechanism.

    Made by `privacy_loss`. "remove", the default, reads the pair (P, Q) as it stands, "add" the
    pair (Q, P), "both" the worse of them, as the queries of jaxdp do. Every reading broadcasts its
    argument, works under jit, vmap and grad, and is certified: an upper bound if `upper`, else a
    lower one (`renyi` is that of the grid alone).

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
      opposite: the law of (Q, P), which reads the other direction, if there is one.
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
    opposite: "PrivacyLoss | None" = None

    _core_ndims: ClassVar = {"log_mass": 1}

    def __repr__(self) -> str:
        return _privacy_loss_shown.text(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return _privacy_loss_shown.page(self)

    @property
    def loss(self) -> jax.Array:
        """The losses of the grid's points, (..., grid_size)."""
        count = jnp.arange(self.log_mass.shape[-1], dtype=self.log_mass.dtype)
        return self.start[..., None] + self.spacing[..., None] * count

    def as_mechanism(self) -> LossDistribution:
        """A finite pair above this law (or below, on its side), to be used as any mechanism.

        It is composed, sampled, allocated and exported like others; "remove" reads what this law
        reads as "remove". What is asked of it is answered for the finite pair: of the mechanism
        that this law is of, upper bounds are certified if the law is `upper`, lower ones if not.
        Tight where the law is, in both directions if it has an opposite (`_privacy_loss_table` has
        the proofs). The table holds P; what Q lacks is a difference, so that delta in the direction
        "add" is exact to 2^-40 only: for smaller ones reverse the law and ask for "remove".

        Raises:
          ValueError: for a batch of laws. TypeError: if the law is traced.

        Example:
          >>> import jaxdp
          >>> law = jaxdp.privacy_loss(jaxdp.Laplace(2.0), delta=1e-5)
          >>> run = jaxdp.Repeated(jaxdp.PoissonSampled(law.as_mechanism(), 0.1), 10)
          >>> exact = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Laplace(2.0), 0.1), 10)
          >>> bool(jaxdp.epsilon_bounds(exact, 1e-5)[0] <= jaxdp.epsilon(run, 1e-5))
          True
        """
        if any(isinstance(getattr(self, name), jax.core.Tracer) for name in _FIELDS):
            raise TypeError("a traced law has no table: its size would depend on its values")
        if np.ndim(self.start):
            raise ValueError(f"the law must be one, got a batch of shape {np.shape(self.start)}")
        return _privacy_loss_table.pair(jax.tree.map(np.asarray, self))

    def _composed_with(self, mechanism: Mechanism, other: "PrivacyLoss") -> "PrivacyLoss":
        if self.upper != other.upper:
            raise ValueError("one law is above its mechanism's, the other below: no bound on both")
        deltas = [float(law.hockey_stick(law.centre)) for law in (self, other)]
        delta = min([d for d in deltas if 0.0 < d < 1.0], default=1e-5)
        side = "upper" if self.upper else "lower"
        known = "remove" if None in (self.opposite, other.opposite) else "both"
        return privacy_loss(mechanism, delta=delta, side=side, direction=known)

    def __add__(self, other: "PrivacyLoss") -> "PrivacyLoss":
        """The law of both releases, on the same side; accurate about the smaller delta of theirs.

        Example:
          >>> import jaxdp
          >>> law = jaxdp.privacy_loss(jaxdp.Gaussian(2.0), delta=1e-5)
          >>> bool(0.0 <= (law + law).epsilon(1e-5) / jaxdp.epsilon(
          ...     jaxdp.Gaussian(2.0 / 2**0.5), 1e-5) - 1.0 < 2e-3)
          True
        """
        if not isinstance(other, PrivacyLoss):
            return NotImplemented
        both = Composed([self.as_mechanism(), other.as_mechanism()])
        return self._composed_with(both, other)

    def __radd__(self, other: int) -> "PrivacyLoss":
        """(What `sum` begins with is 0.)"""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __mul__(self, count: int) -> "PrivacyLoss":
        """The law of so many independent releases."""
        if isinstance(count, bool) or not isinstance(count, (int, np.integer)):
            return NotImplemented
        return self._composed_with(Repeated(self.as_mechanism(), count), self)

    __rmul__ = __mul__

    def save(self, path: str | os.PathLike) -> None:
        """Write the law to a file that NumPy reads (`.npz`, no pickle).

        It holds one array for every attribute of the class, under its name and in its own
        precision, those of the opposite law as "opposite.start" and so on, and `format`, the text
        "jaxdp.PrivacyLoss 1".
        """
        _privacy_loss_file.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "PrivacyLoss":
        """The law that `save` wrote.

        Raises:
          ValueError: if the file holds none, or one of another format.

        Example:
          >>> import os, tempfile, jaxdp
          >>> law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0), delta=1e-5)
          >>> with tempfile.TemporaryDirectory() as folder:
          ...     law.save(os.path.join(folder, "law.npz"))
          ...     again = jaxdp.PrivacyLoss.load(os.path.join(folder, "law.npz"))
          >>> float(again.epsilon(1e-5)) == float(law.epsilon(1e-5))
          True
        """
        return _privacy_loss_file.load(cls, path)

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
          ValueError: for nan epsilon or an unknown direction.

        Example:
          >>> import jaxdp
          >>> law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0), delta=1e-5)
          >>> [round(float(law.hockey_stick(x)), 2) for x in (1.0, -1.0)]
          [0.13, 0.68]
        """
        _checks.check("epsilon", epsilon, _checks.NOT_NAN)
        return self._read(_curve_of, epsilon, direction)

    def delta(self, epsilon: ArrayLike, *, direction: Direction = "remove") -> jax.Array:
        """delta at epsilon: `hockey_stick` by its other name."""
        return self.hockey_stick(epsilon, direction=direction)

    def advantage(self) -> jax.Array:
        """The attack advantage max(TPR - FPR): the total variation distance, of both directions.

        Example:
          >>> import jaxdp
          >>> law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0), delta=0.3)
          >>> round(float(law.advantage()), 3)
          0.383
        """
        return self.hockey_stick(0.0)

    def attack_success(self, prior: ArrayLike) -> jax.Array:
        r"""How often the best attack guesses right whether P or Q was run, P with this prior.

        .. math:: \sup_A \pi P(A) + (1 - \pi) Q(A^c) = 1 - \pi + \pi H_{(1 - \pi)/\pi},

        max(pi, 1 - pi) without a release. P is what "remove" has first: with the record.

        Raises:
          ValueError: for a prior outside [0, 1].

        Example:
          >>> import jaxdp
          >>> law = jaxdp.privacy_loss(jaxdp.Gaussian(1.0), delta=0.3)
          >>> [round(float(law.attack_success(p)), 2) for p in (0.0, 0.1, 0.5)]
          [1.0, 0.9, 0.69]
        """
        _checks.check("prior", prior, _checks.PROBABILITY)
        return self._read(readings.success, prior, "remove")

    def epsilon(self, delta: ArrayLike, *, direction: Direction = "remove") -> jax.Array:
        """The least epsilon >= 0 at which the curve meets delta; inf where none does.

        Raises:
          ValueError: for delta outside (0, 1) or an unknown direction.

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
          ValueError: for alpha outside (1, inf) or an unknown direction.
        """
        _checks.check("alpha", alpha, _checks.FINITE_ORDER)
        return self._read(readings.renyi, alpha, direction, "nearest")

    def tradeoff(self, fpr: ArrayLike, *, direction: Direction = "remove") -> jax.Array:
        """The type II error at type I error fpr: a lower bound if the law is `upper`.

        The best line 1 - H_g - g fpr over the g of the grid and some more; from a law below, over
        all g.

        Raises:
          ValueError: for fpr outside [0, 1] or an unknown direction.
        """
        _checks.check("fpr", fpr, _checks.PROBABILITY)
        return self._read(readings.tradeoff, fpr, direction, "down" if self.upper else "up")

    def _read(self, function, argument, direction, rounding=None):
        _checks.check_choice("direction", direction, _DIRECTIONS)
        if direction == "both":
            worse = jnp.minimum if function is readings.tradeoff else jnp.maximum
            return worse(*(self._read(function, argument, d, rounding) for d in _DIRECTIONS[:2]))
        direct = (direction == "remove") != self.reversed
        if not direct and self.opposite is not None:
            return self.opposite._read(function, argument, "remove", rounding)
        return _x64.evaluate(
            function,
            dataclasses.replace(self, opposite=None),
            argument,
            rounding=rounding or ("up" if self.upper else "down"),
            chunk=256,
            direct=direct,
            single=self.tilt.dtype != jnp.float64,
        )


_FIELDS = _privacy_loss_file.fields(PrivacyLoss)
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
    direction: Direction = "both",
    side: Literal["upper", "lower"] = "upper",
    grid_size: int | None = None,
    chunk: int | None = None,
) -> PrivacyLoss:
    """The certified law of a mechanism's privacy loss, tight about the epsilon of a delta.

    Args:
      m: any mechanism with a numerical law; its parameters broadcast against delta.
      delta: where the law is to be accurate, in (0, 1). Any shape.
      direction: the pair (P, Q) of "remove" (with the record, without it), of "add", or a law of
        each ("both"): one alone says next to nothing of the other direction at small delta.
      side: a law "upper" (its curve lies above the mechanism's) or "lower".
      grid_size: lattice points, a power of two; None takes 8192.
      chunk: how many laws to compute at a time; by default what the device has memory for.

    Returns:
      A PrivacyLoss whose fields have the broadcast shape.

    Raises:
      ValueError: for delta outside (0, 1), an unknown side or direction, or a mechanism without
        such a law (a composition on a Poisson sample, shuffled reports). TypeError: if m is none.

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
            "m: a composition on a Poisson sample, or the best of several runs, has no law that "
            "serves both directions, shuffled reports none that serves every epsilon; "
            "epsilon, delta and renyi answer for them"
        )
    size = Numerical(grid_size).grid_size or 8192
    each = direction == "both" and not m._symmetric()
    add = np.reshape([0.0, 1.0], (2,) + (1,) * len(_x64.batch_shape((m, delta)))) if each else 0.0
    fields = _x64.evaluate(
        _built,
        m,
        delta,
        add + (direction == "add"),
        rounding=_ROUNDING[side],
        chunk=_chunks.chunk_of(m, Numerical(size), delta, chunk),
        quick=True,
        side=side,
        size=size,
    )
    laws = [
        PrivacyLoss(*(x[row] for x in fields), upper=side == "upper")
        for row in ((0, 1) if each else (...,))
    ]
    return dataclasses.replace(laws[0], opposite=laws[-1]) if direction == "both" else laws[0]


def _built(m, delta, add, side, size):
    """Both directions by one program."""
    return build(m, delta, add > 0.5, side, size, PrivacyLoss)


def _curve_of(law, epsilon, direct, single):
    safe = _divergences.exp_up if law.upper else _divergences.exp_down
    return safe(readings.log_curve(law, epsilon, direct, single))
