"""The law of the privacy loss as an object: one law, every reading.

The law is the engine's (see `jaxdp._law`): masses on a uniform grid of the loss L = log dP/dQ, near
a chosen delta, and a bound on all that the grid leaves out. That is a measure which the curve

    H(eps) = E_P (1 - e^{eps - L})_+ + P{L = inf}

weighs with at most e^{log_error - tilt eps}, so that the readings are certified everywhere, and
tight near the chosen delta. The other direction is the same curve (H_g of Q against P is
1 - g + g H_{1/g} of P against Q), hence of the same side.
"""

import dataclasses
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _answers, _checks, _divergences, _law, _numerical, _x64
from jaxdp import _special as special
from jaxdp._mechanisms import Mechanism, require_mechanism
from jaxdp._mechanisms._curve import has_average
from jaxdp._methods import Numerical

Direction = Literal["remove", "add"]
_DIRECTIONS = ("remove", "add")
_STEPS = 60


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
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
      log_error: with tilt, the weight of what the grid leaves out, e^{log_error - tilt eps}.
      tilt: see log_error.
      centre: the epsilon about which the law is accurate.
      floor: below this epsilon a lower law is read as if at it.
      upper: whether the law is above the mechanism's or below.
      reversed: whether P and Q have traded places.
    """

    start: jax.Array
    spacing: jax.Array
    log_mass: jax.Array
    log_infinity: jax.Array
    log_error: jax.Array
    tilt: jax.Array
    centre: jax.Array
    floor: jax.Array
    upper: bool = dataclasses.field(metadata={"static": True})
    reversed: bool = dataclasses.field(default=False, metadata={"static": True})

    _core_ndims: ClassVar = {"log_mass": 1}

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
        return self._read(_log_curve, epsilon, direction)

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
        return self._read(_curve, epsilon, direction)

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
        return self._read(_epsilon, delta, direction)

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

        The best line 1 - H_g - g fpr over the g of the grid and g = 1.

        Raises:
          ValueError: for fpr outside [0, 1] or another direction.
        """
        _checks.check("fpr", fpr, _checks.PROBABILITY)
        return self._read(_tradeoff, fpr, direction, "down" if self.upper else "up")

    def _read(self, function, argument, direction, rounding=None):
        _checks.check_choice("direction", direction, _DIRECTIONS)
        return _x64.evaluate(
            function,
            self,
            argument,
            rounding=rounding or ("up" if self.upper else "down"),
            chunk=256,
            direct=(direction == "remove") != self.reversed,
        )


def privacy_loss(
    m: Mechanism,
    *,
    delta: ArrayLike = 1e-5,
    direction: Direction = "remove",
    side: Literal["upper", "lower"] = "upper",
    grid_size: int | None = None,
) -> PrivacyLoss:
    """The certified law of a mechanism's privacy loss, tight about the epsilon of a delta.

    Args:
      m: any mechanism with a numerical law; its parameters broadcast against delta.
      delta: where the law is to be accurate, in (0, 1). Any shape.
      direction: which pair is (P, Q): "remove" (with the record, without it) or "add". Either can
        be read from either law; the other one less tightly at small delta.
      side: a law "upper" (its curve lies above the mechanism's) or "lower".
      grid_size: lattice points, a power of two; None takes 8192.

    Returns:
      A PrivacyLoss whose fields have the broadcast shape.

    Raises:
      ValueError: for delta outside (0, 1), an unknown side or direction, or a mechanism without
        a law (a Poisson-subsampled composition). TypeError: if m is no mechanism.

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
    if has_average(m):
        raise ValueError("m: random allocation has no law that serves every epsilon")
    _answers.resolve(m, Numerical(grid_size))
    safe = "up" if side == "upper" else "down"
    # (A law below needs its losses and masses low, but what it leaves out and its floor high.)
    rounding = (safe, safe, safe, safe, "up", "nearest", "nearest", "up")
    fields = _x64.evaluate(
        _build,
        m,
        delta,
        rounding=rounding,
        chunk=8,
        direction=direction,
        side=1 if side == "upper" else -1,
        size=grid_size or 8192,
    )
    return PrivacyLoss(*fields, upper=side == "upper")


def _build(m, delta, direction, side, size):
    ok = m._in_domain() & (delta > 0.0) & (delta < 1.0)
    law = _law.loss_law(
        _numerical.terms_of(m), jnp.log(delta), direction=direction, side=side, size=size
    )
    return tuple(jnp.where(ok, x, jnp.nan) for x in law)


def _exact_losses(law: PrivacyLoss) -> jax.Array:
    return law.start + law.spacing * jnp.arange(law.log_mass.shape[-1], dtype=jnp.float64)


def _error(law: PrivacyLoss, epsilon: jax.Array) -> jax.Array:
    """log of what the curve of the grid may be off by at epsilon."""
    at = jnp.minimum(epsilon, law.centre) if law.upper else epsilon
    return law.log_error - law.tilt * at


def _combine(law: PrivacyLoss, epsilon: jax.Array, grid: jax.Array) -> jax.Array:
    """The certified log H of (P, Q) from the grid's part of it."""
    if law.upper:
        parts = jnp.stack(jnp.broadcast_arrays(grid, _error(law, epsilon), law.log_infinity))
        return jnp.minimum(special.logsumexp(parts, axis=0) + 2.0**-40, 0.0)
    error = _error(law, epsilon)
    seen = grid - 2.0**-40 > error
    rest = special.log_sub_exp(jnp.where(seen, grid - 2.0**-40, 0.0), jnp.where(seen, error, -1.0))
    rest = jnp.where(seen, rest, -jnp.inf)
    return jnp.minimum(jnp.logaddexp(rest, law.log_infinity - 2.0**-40), 0.0)


def _remove_log_curve(law: PrivacyLoss, epsilon: jax.Array) -> jax.Array:
    at = epsilon if law.upper else jnp.maximum(epsilon, law.floor)
    loss = _exact_losses(law)
    gap = at - loss
    inside = gap < 0.0
    terms = jnp.where(
        inside, law.log_mass + special.log1mexp(jnp.where(inside, gap, -1.0)), -jnp.inf
    )
    value = _combine(law, at, special.logsumexp(terms, axis=-1))
    # H >= 1 - e^epsilon for every pair.
    trivial = special.log1mexp(jnp.where(epsilon < 0.0, epsilon, -1.0)) - 2.0**-48
    return jnp.where(epsilon < 0.0, jnp.maximum(value, trivial), value)


def _curve(law: PrivacyLoss, epsilon: jax.Array, direct: bool) -> jax.Array:
    if direct:
        safe = _divergences.exp_up if law.upper else _divergences.exp_down
        return safe(_remove_log_curve(law, epsilon))
    ratio = jnp.exp(jnp.minimum(epsilon, 700.0))
    mirrored = jnp.exp(_remove_log_curve(law, -epsilon))
    slack = (1.0 if law.upper else -1.0) * 2.0**-48 * (1.0 + ratio)
    value = -jnp.expm1(jnp.minimum(epsilon, 700.0)) + ratio * mirrored + slack
    return jnp.clip(value, jnp.maximum(-jnp.expm1(epsilon), 0.0) * (1.0 - 2.0**-48), 1.0)


def _log_curve(law: PrivacyLoss, epsilon: jax.Array, direct: bool) -> jax.Array:
    if direct:
        return _remove_log_curve(law, epsilon)
    return _divergences.log_positive(_curve(law, epsilon, direct=False))


def _epsilon(law: PrivacyLoss, delta: jax.Array, direct: bool) -> jax.Array:
    """By bisection over the grid's range: the end of the bracket on the safe side."""
    target = jnp.log(delta)
    span = jnp.maximum(jnp.abs(law.start), jnp.abs(_exact_losses(law)[-1])) + 1.0

    def excess(e: jax.Array) -> jax.Array:
        return _log_curve(law, e, direct) - target

    def halve(_, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        beyond = excess(middle) > 0.0
        return jnp.where(beyond, middle, low), jnp.where(beyond, high, middle)

    frozen = jax.lax.stop_gradient(jnp.stack([jnp.zeros_like(span), span]))
    low, high = jax.lax.fori_loop(0, _STEPS, halve, (frozen[0], frozen[1]))
    low, high = jax.lax.stop_gradient((low, high))
    end = high if law.upper else low
    reachable = excess(span) <= 0.0
    value, slope = jax.jvp(excess, (end,), (jnp.ones_like(end),))
    # The implicit derivative of the root, attached to the bracket's end.
    slope = jax.lax.stop_gradient(jnp.where(slope < 0.0, slope, -jnp.inf))
    value = jnp.where(jnp.isfinite(value), value, 0.0)
    answer = end - (value - jax.lax.stop_gradient(value)) / slope
    answer = jnp.where(reachable, jnp.maximum(answer, 0.0), jnp.inf if law.upper else span)
    return jnp.where((delta > 0.0) & (delta < 1.0), answer, jnp.nan)


def _renyi(law: PrivacyLoss, alpha: jax.Array, direct: bool) -> jax.Array:
    power = alpha - 1.0 if direct else -alpha
    exponent = law.log_mass + power * _exact_losses(law)
    return special.logsumexp(exponent, axis=-1) / (alpha - 1.0)


def _tradeoff(law: PrivacyLoss, fpr: jax.Array, direct: bool) -> jax.Array:
    loss = jnp.concatenate([_exact_losses(law), jnp.zeros((1,), jnp.float64)])
    at = loss if direct else -loss
    lines = 1.0 - _nodes_curve(law, at, direct) - fpr * jnp.exp(jnp.minimum(at, 700.0))
    return jnp.clip(jnp.max(lines), 0.0, 1.0)


def _nodes_curve(law: PrivacyLoss, epsilons: jax.Array, direct: bool) -> jax.Array:
    return jax.lax.map(lambda e: _curve(law, e, direct), epsilons, batch_size=64)
