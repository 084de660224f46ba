"""A mechanism chosen at random, the choice known: the law of its ratio is a mixture of laws."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences
from jaxdp import _special as special
from jaxdp._mechanisms._base import (
    Base,
    Direction,
    Masses,
    Mechanism,
    common_neighbours,
    mechanism,
    require_mechanisms,
)
from jaxdp._mechanisms._curve import canonical_terms, log_curve, single
from jaxdp._mechanisms._sampling import PoissonSampled

_SUM_TOLERANCE = 1e-5  # of weights, which may come as float32
_LARGE = 300.0  # log of a moment beyond which 1 is nothing next to it
# Relative, of masses. A part's own error grows with its |log p|, which may exceed that of the
# mixture where the part has next to no P-mass but much Q-mass: this holds |log p| to a thousand.
MIXED = 2.0**-40


@mechanism
class Mixture(Base):
    r"""One of several mechanisms, chosen at random; which one is known to all, data apart.

    With weights w_i, the adversary sees i and the release of mechanism i. The likelihood ratio is
    that of the mechanism chosen, so that its law is the mixture of their laws, and

    .. math:: H_a = \sum_i w_i H_a^{(i)}, \quad E_Q[X^s] = \sum_i w_i E_{Q_i}[X_i^s]

    in either direction. Numbers of steps, batch sizes or noise levels that are drawn at random and
    published are such mixtures. Where every part has a closed form, so has the mixture; parts that
    are compositions are tabulated when they are composed further. A mixture whose label is
    *not* revealed is a post-processing of this one: every upper bound here is one for it too, and
    nothing but 0 is known from below, since its curve also depends on how the parts overlap.

    Args:
      mechanisms: a non-empty sequence of mechanisms for the same neighbours, compositions and
        other mixtures among them, each with a numerical law or a closed form.
      weights: their probabilities, shape (..., number of mechanisms), of sum 1 (normalised).

    Raises:
      ValueError: if the sequence is empty, its elements are for different neighbours, or known
        weights lie outside [0, 1], do not sum to 1 within 1e-5 or are not as many.
        TypeError: if an element is no mechanism.

    Example:
      >>> import jaxdp
      >>> quiet, loud = jaxdp.Gaussian(2.0), jaxdp.Gaussian(1.0)
      >>> either = jaxdp.Mixture([quiet, loud], [0.75, 0.25])
      >>> each = [float(jaxdp.delta(m, 1.0)) for m in (either, quiet, loud)]
      >>> abs(each[0] - (0.75 * each[1] + 0.25 * each[2])) < 1e-6
      True
    """

    mechanisms: Sequence[Mechanism]
    weights: ArrayLike

    _domains: ClassVar = {"weights": _checks.PROBABILITY}
    _core_ndims: ClassVar = {"weights": 1}

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", require_mechanisms(self.mechanisms))
        Mechanism.__post_init__(self)
        shape = np.shape(self.weights)
        if not shape or shape[-1] != len(self.mechanisms):
            raise ValueError(
                f"weights must have {len(self.mechanisms)} entries along the last axis, one for "
                f"each mechanism, got shape {shape}"
            )
        known = _checks.concrete("weights", self.weights)
        if known is not None:
            total = np.sum(known.astype(np.float64), axis=-1)
            if np.any(np.abs(total - 1.0) > _SUM_TOLERANCE):
                got = _checks.shown(total.tolist())
                raise ValueError(f"weights must sum to 1 along the last axis, got sums {got}")

    @property
    def neighbours(self) -> str | None:
        """Which inputs the mechanisms are for; None where their sensitivities alone say so."""
        return common_neighbours(self.mechanisms)

    def _held(self) -> tuple[Mechanism, ...]:
        return tuple(self.mechanisms)

    def _in_domain(self) -> jax.Array:
        weights = jnp.asarray(self.weights)
        inside = self._domains["weights"].contains(weights).all()
        inside &= jnp.abs(jnp.sum(weights) - 1.0) <= _SUM_TOLERANCE
        return inside & jnp.all(jnp.stack([m._in_domain() for m in self.mechanisms]))

    def _log_weights(self) -> jax.Array:
        weights = jnp.asarray(self.weights, jnp.float64)
        return _divergences.log_positive(weights / jnp.sum(weights))

    def _steps(self) -> list[Base]:
        """The parts as one step each; TypeError where one is a composition."""
        steps = [single(canonical_terms(m)) for m in self.mechanisms]
        if any(step is None for step in steps):
            raise TypeError("a mixture of compositions has no one-step law of its own")
        return [step for step in steps if step is not None]

    def _mixed_rate(self, rates: list[jax.Array], s: jax.Array) -> jax.Array:
        """k(s) from those of the parts, without cancellation: moments less 1, or their logarithms.

        (The latter where a moment is beyond e^300; rates next to order 0 or 1 are finite then.)
        """
        k = jnp.stack(jnp.broadcast_arrays(*rates))
        log_weights = self._log_weights()
        used = log_weights > -jnp.inf
        k = jnp.where(used, k, 0.0)
        scale = s * (s - 1.0)
        infinite = jnp.any(jnp.isposinf(k))
        k = jnp.where(infinite, 1.0, k)
        y = scale * k
        far = jnp.any(y > _LARGE)
        near_y, near_k = jnp.where(far, 0.0, y), jnp.where(far, 0.0, k)
        excess = jnp.exp(log_weights) * near_k * special.relative_expm1(near_y)
        slack = 16.0 * _divergences.SLACK
        near = _divergences.rate_from_excess(jnp.sum(excess) + slack * jnp.sum(jnp.abs(excess)), s)
        total = special.logsumexp(jnp.where(far, log_weights + y, 0.0))
        total = (total + slack * (1.0 + jnp.abs(total))) / jnp.where(far, scale, 1.0)
        return jnp.where(infinite, jnp.inf, jnp.where(far, total, near))

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._rate_function()(s)

    def _rate_function(self) -> Callable[[jax.Array], jax.Array]:
        parts = [
            [(t.multiplicity, t.mechanism._rate_function()) for t in canonical_terms(m)]
            for m in self.mechanisms
        ]
        return lambda s: self._mixed_rate([sum(n * k(s) for n, k in part) for part in parts], s)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return self._sampled_rate_function()(s, q)

    def _sampled_rate_function(self) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """On a sample, each part is run on the sample."""

        def part(m: Mechanism) -> Callable[[jax.Array, jax.Array], jax.Array]:
            step = single(canonical_terms(m))
            if step is not None:
                return step._sampled_rate_function()
            return lambda s, q: PoissonSampled(m, q)._composition_rate(s, q)

        parts = [part(m) for m in self.mechanisms]
        return lambda s, q: self._mixed_rate([k(s, q) for k in parts], s)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        used = self._log_weights() > -jnp.inf
        ranges = zip(*(m._loss_range() for m in self.mechanisms), strict=True)
        low, high = (jnp.stack(ends) for ends in ranges)
        return jnp.min(jnp.where(used, low, jnp.inf)), jnp.max(jnp.where(used, high, -jnp.inf))

    def _range_ulps(self) -> Any:
        ulps = [jnp.asarray(m._range_ulps(), jnp.float64) for m in self.mechanisms]
        return jnp.max(jnp.stack(ulps))

    def _log_failure(self, direction: Direction) -> jax.Array:
        parts = jnp.stack([m._log_failure(direction) for m in self.mechanisms])
        return jnp.minimum(_divergences.log_add(*(self._log_weights() + parts)), 0.0)

    def _symmetric(self) -> bool:
        return all(m._symmetric() for m in self.mechanisms)

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        parts = [log_curve(m, epsilon, direction, slack) for m in self.mechanisms]
        value = _divergences.log_add(*(self._log_weights() + jnp.stack(parts)))
        rounding = slack * (len(parts) + 8.0 + jnp.where(jnp.isfinite(value), -value, 0.0))
        return jnp.minimum(value + rounding, 0.0)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._masses_function()(lo, hi)

    def _masses_function(self) -> Masses:
        return mixed_masses([s._masses_function() for s in self._steps()], self._log_weights())

    def _mass_error(self) -> jax.Array:
        errors = [jnp.asarray(s._mass_error(), jnp.float64) for s in self._steps()]
        return jnp.max(jnp.stack(errors)) + MIXED

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        try:
            ends = [s._atoms_at_ends() for s in self._steps()]
        except TypeError:
            return True, True
        low, high = zip(*ends, strict=True)
        return any(low), any(high)

    def sample(self, key: jax.Array, value: Any) -> tuple[jax.Array, Any]:
        """(i, the release of mechanism i), i drawn with the weights.

        The mechanisms must release arrays of the same shapes and types.
        """
        which, run = jax.random.split(key)
        weights = jnp.asarray(self.weights)
        label = jax.random.categorical(which, jnp.log(weights))
        releases = [lambda key, m=m: m.sample(key, value) for m in self.mechanisms]
        return label, jax.lax.switch(label, releases, run)


def mixed_masses(parts: list[Masses], log_weights: jax.Array) -> Masses:
    """The masses of the mixture of laws."""

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        log_q, log_p = zip(*(part(lo, hi) for part in parts), strict=True)
        return tuple(
            _divergences.log_add(*(w + x for w, x in zip(log_weights, logs, strict=True)))
            for logs in (log_q, log_p)
        )

    return masses
