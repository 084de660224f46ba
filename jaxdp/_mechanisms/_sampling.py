"""Poisson subsampling of any mechanism."""

from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates
from jaxdp._mechanisms._base import (
    Direction,
    Masses,
    Mechanism,
    OnBatch,
    Term,
    mechanism,
    require_mechanism,
)
from jaxdp._mechanisms._curve import canonical_terms, log_curve, log_shared, single
from jaxdp._rounding import product_up
from jaxdp._special import log1p


@mechanism
class PoissonSampled(OnBatch):
    """A mechanism run on a Poisson subsample: each record joins with the sampling probability.

    With (P, Q) the pair of the mechanism, the pair is ((1-q) Q + q P, Q). One run has the exact
    curve of formulas by Balle, Barthe & Gaboardi 2018 (remove) and its mirror (add); repeated
    runs are composed numerically, or by the exact Rényi divergences of both directions. Several
    mechanisms on one sample, a composition, are tabulated and sampled numerically, at any depth
    (Rényi divergences of these are bounds only, and loose).
    Neither direction bounds the other; direction="both" takes the larger at the very end.

    Args:
      mechanism: what runs on the sample (add/remove adjacency).
      sampling_probability: q in (0, 1].

    Raises:
      ValueError: if a known q is outside (0, 1], or the mechanism is for replace-one neighbours.
        TypeError: if no mechanism.

    Example:
      >>> import jaxdp
      >>> step = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1)
      >>> float(jaxdp.delta(step, 1.0)) < float(jaxdp.delta(jaxdp.Gaussian(1.0), 1.0)) / 10
      True
    """

    mechanism: Mechanism
    sampling_probability: ArrayLike

    _relation: ClassVar = "add-or-remove"
    _domains: ClassVar = {"sampling_probability": _checks.RATE}

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        if self.mechanism.neighbours not in (None, "add-or-remove"):
            raise ValueError(
                "mechanism must be for add-or-remove neighbours, got "
                f"{_checks.shown(self.mechanism)} for {self.mechanism.neighbours}"
            )
        Mechanism.__post_init__(self)

    def _held(self) -> tuple[Mechanism, ...]:
        return (self.mechanism,)

    def _sampled_terms(self) -> list[Term]:
        return self.mechanism._terms()

    def _poisson_sample(self) -> tuple[Mechanism, ArrayLike]:
        return self.mechanism, self.sampling_probability

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._sampled_rate(s, 1.0)

    def _rate_function(self) -> Callable[[jax.Array], jax.Array]:
        step = single(canonical_terms(self.mechanism))
        if step is None:
            return self._rate
        rate = step._sampled_rate_function()
        return lambda s: rate(s, 1.0 * self.sampling_probability)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        """Exact over one step; the convexity bound over a sampled composition."""
        # both directions grow with the rate: a product of two is rounded up
        rate = product_up(q, self.sampling_probability)
        terms = canonical_terms(self.mechanism)
        step = single(terms)
        if step is not None:
            return step._sampled_rate(s, rate)
        return self._composition_rate(s, rate)

    def _composition_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        """The least of what bounds a sampled composition, whose steps share one sample.

        Convexity, and what is not sampled. Where outcomes reveal that the record is absent (mass
        tau, X = 0), both hold for the others alone; sampled, the revealing ones have X = 1 - q and
        add tau (1 - q)^s. Divergences rise with the order: next to s = 0, that of a lower s counts.
        """
        terms = canonical_terms(self.mechanism)
        log_tau = self.mechanism._log_failure("add")
        fails = (log_tau > -jnp.inf) | (self.mechanism._log_failure("remove") > -jnp.inf)
        near = fails & (s > -0.01) & (s < 0.5)
        order = jnp.where(near, -0.01, s)
        inner = sum(t.multiplicity * t.mechanism._rate(order) for t in terms)
        convex = _rates.convex_rate(order, inner, q)
        whole = jnp.where(inner < convex, inner, convex)
        reveals = (log_tau > -jnp.inf) & (s < 0.5) & (q < 1.0)
        rest = jnp.where(reveals, log_tau + order * log1p(-jnp.where(reveals, q, 0.5)), -1.0)
        scale = jnp.where(reveals, order * (order - 1.0), 1.0)
        # the others have mass 1 - tau: q E[X^s] + (1 - q)(1 - tau)
        others = jnp.logaddexp(
            jnp.log(q) + scale * jnp.where(reveals, inner, 0.0),
            _divergences.log_positive(1.0 - q) + log1p(-jnp.exp(jnp.where(reveals, log_tau, -1.0))),
        )
        revealed = (jnp.logaddexp(others, rest) + 1e-15) / scale
        revealed = revealed * (1.0 - order) / (1.0 - jnp.where(s <= 0.0, s, 0.0))
        return jnp.where(reveals, revealed, jnp.where(fails, convex, whole))

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        lo, hi = self.mechanism._loss_range()
        # outcomes that only the absent record allows have X = 1 - q > 0 after sampling
        if self._may_fail():
            revealed = self.mechanism._log_failure("add") > -jnp.inf
            lo = jnp.where(revealed & (self.sampling_probability < 1.0), -jnp.inf, lo)
        return tuple(_divergences.sampled_loss(x, self.sampling_probability) for x in (lo, hi))

    def _range_ulps(self) -> Any:
        """How much f(L) = log(1 - q + q e^L) moves for L, relatively, and its own rounding.

        That is L f'/f, with f convex, f(0) = 0 and f' in [0, 1]: at most 1 for L < 0, and above at
        most 1 + L and L/f. It is evaluated to a few ulps, and to a few of L beyond the range of
        e^L: of these L/f counts as well.
        """
        high = jnp.asarray(self.mechanism._loss_range()[1], jnp.float64)
        high = jnp.where(jnp.isfinite(high), jnp.maximum(high, 0.0), 0.0)
        own = _divergences.sampled_loss(high, 1.0 * jnp.asarray(self.sampling_probability))
        share = 2.0 * high / jnp.where(own > 0.0, own, 1.0)  # twice: own is rounded, too
        share = jnp.where(own > 0.0, jnp.minimum(share, 1.0 + high), 1.0 + high)
        share = jnp.maximum(share, 1.0)
        far = jnp.where(high > 650.0, 4.0 * share, 0.0)
        return jax.lax.stop_gradient(8.0 + self.mechanism._range_ulps() * share + far)

    def _may_fail(self) -> bool:
        return self.mechanism._may_fail()

    def _log_failure(self, direction: Direction) -> jax.Array:
        if not self._may_fail():
            return jnp.asarray(-jnp.inf, jnp.float64)
        inner = self.mechanism._log_failure(direction)
        if direction == "remove":
            return inner + jnp.log(self.sampling_probability)
        return jnp.where(self.sampling_probability < 1.0, -jnp.inf, inner)

    def _failure(self, direction: Direction) -> jax.Array:
        """The product rounded up: a logarithm of it is off by as many ulps as it is large."""
        inner = self.mechanism._failure(direction)
        if direction == "remove":
            product = product_up(inner, 1.0 * self.sampling_probability)
            # (What a product rounds is lost itself where that is below the range of float64.)
            small = (inner > 0.0) & (product < 1e-280)
            above = product * (1.0 + _divergences.SLACK) + 2.3e-308
            return jnp.where(small, above, product)
        return jnp.where(self.sampling_probability < 1.0, 0.0, inner)

    def _log_shared(self) -> jax.Array:
        """That of 1 - q + q c: the record is on no sample, or what runs there does not tell."""
        q, inner = 1.0 * jnp.asarray(self.sampling_probability), log_shared(self.mechanism)
        inner = jnp.asarray(-jnp.inf, jnp.float64) if inner is None else inner
        return _divergences.sampled_loss(inner, q)

    def _symmetric(self) -> bool:
        return False

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        return _divergences.sampled_log_hockey_stick(
            lambda e, d: log_curve(self.mechanism, e, d, slack),
            epsilon,
            self.sampling_probability,
            direction,
            slack,
        )

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._masses_function()(lo, hi)

    def _masses_function(self) -> Masses:
        step = single(canonical_terms(self.mechanism))
        if step is None:
            raise TypeError("a composition on a sample has no one-step law of its own")
        log_absent = step._log_failure("add") if step._may_fail() else None
        return self._masses_from(step._masses_function(), log_absent)

    def _masses_from(self, base: Masses, log_absent: jax.Array | None) -> Masses:
        """The masses from those of what runs on the sample, and log Q{L = -inf}, if any."""
        q = self.sampling_probability

        def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
            revealed = None
            if log_absent is not None:
                revealed = _divergences.atom_log_masses(lo, hi, log1p(-q)[None], log_absent[None])
            return _divergences.sampled_log_masses(base, lo, hi, q, revealed)

        return masses

    def _mass_error(self) -> jax.Array | float:
        step = single(canonical_terms(self.mechanism))
        return 0.0 if step is None else step._mass_error()

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        step = single(canonical_terms(self.mechanism))
        return (True, True) if step is None else step._atoms_at_ends()
