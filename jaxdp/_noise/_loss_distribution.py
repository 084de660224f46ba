"""A pair given by the law of its privacy loss in a table, as other accountants export it."""

from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _special, _special_double
from jaxdp import _special_subnormal as subnormal
from jaxdp._mechanisms import Direction, mechanism
from jaxdp._noise._finite_pairs import FiniteFamily

_TOLERANCE = 1e-5  # of sums of masses, for float32 callers
_ROUNDING = 2.0**-46  # of sums per thousand masses, so little is no mass
_Lacks = tuple[jax.Array, jax.Array]
_LOG_MASS = _checks.Domain("<= 0, up to 1e-5 (-inf allowed)", lambda x: x <= _TOLERANCE)


@mechanism
class LossDistribution(FiniteFamily):
    r"""The pair (P, Q) whose privacy loss has the given finite law under P.

    A finite pair: the outcome i has P-mass p_i and Q-mass :math:`q_i = p_i e^{-l_i}`, one more has
    P-mass `infinity_mass` and no Q-mass, and one more has what Q lacks of 1 and no P-mass. So the
    table determines both directions: "remove" reads the law as it is, "add" that of the pair
    (Q, P), whose infinite loss has mass 1 - sum_i q_i. That sum has the digits of what it leaves;
    if this is less than 1e-14 of its terms 1 - e^-l_i, it is taken for rounding of the table.

    A table that was rounded pessimistically (upwards) for one direction bounds that direction only:
    ask it with `direction="remove"`, and a table of its own for the other one.

    Masses are normalised to sum to 1. Where sum_i q_i exceeds 1, by 1e-5 at most, which no pair
    allows, every loss is raised by the logarithm of it: on the safe side.

    Args:
      losses: finite, in any order, shape (..., outcomes).
      log_masses: log p_i <= 0, -inf allowed; the same shape.
      infinity_mass: P{L = inf}, in [0, 1]; broadcasts against the batch.

    Raises:
      ValueError: if known losses are not finite, known masses do not sum to 1 with infinity_mass
        within 1e-5, or sum_i q_i exceeds 1 by more than that.

    Example:
      >>> import numpy as np, jaxdp
      >>> law = jaxdp.LossDistribution([-1.0, 1.0], np.log([0.268941, 0.731059]))
      >>> round(float(jaxdp.epsilon(law, 1e-3)), 4)  # randomised response: all but 1
      0.9986
    """

    losses: ArrayLike
    log_masses: ArrayLike
    infinity_mass: ArrayLike = 0.0

    _core_ndims: ClassVar = {"losses": 1, "log_masses": 1}

    def __post_init__(self) -> None:
        domains = {
            "losses": _checks.REAL,
            "log_masses": _LOG_MASS,
            "infinity_mass": _checks.PROBABILITY,
        }
        for name, domain in domains.items():
            value = _checks.array_of(name, getattr(self, name))
            _checks.check(name, value, domain)
            object.__setattr__(self, name, value)
        shapes = np.shape(self.losses), np.shape(self.log_masses)
        if not shapes[0] or not shapes[1] or shapes[0][-1] != shapes[1][-1] or not shapes[0][-1]:
            raise ValueError(f"losses and log_masses must be vectors of one length, got {shapes}")
        known = [_checks.concrete(name, getattr(self, name)) for name in domains]
        if any(value is None for value in known):
            return
        losses, log_masses, lost = (np.asarray(x, np.float64) for x in known)
        with np.errstate(over="ignore"):
            total = np.sum(np.exp(log_masses), axis=-1) + lost
            other = np.sum(np.exp(log_masses - losses), axis=-1)
        if not np.all(np.abs(total - 1.0) <= _TOLERANCE):
            got = _checks.shown(total.tolist())
            raise ValueError(f"the masses and infinity_mass must sum to 1, got {got}")
        if not np.all(other <= 1.0 + _TOLERANCE):
            raise ValueError(
                "log_masses: sum exp(log_masses - losses) must be at most 1 (it is the mass of Q; "
                f"an optimistic table, or one of -losses, exceeds it), got {_checks.shown(other)}"
            )

    def _outcomes(self) -> int:
        return np.shape(self.losses)[-1] + 2

    def _logs(self) -> tuple[jax.Array, jax.Array]:
        return self._logs_with(_lacking)

    def _rough_logs(self) -> tuple[jax.Array, jax.Array]:
        return self._logs_with(_roughly_lacking)

    def _logs_with(self, lacking: Callable[..., _Lacks]) -> tuple[jax.Array, jax.Array]:
        losses, log_p = jnp.asarray(self.losses), jnp.asarray(self.log_masses)
        lost = subnormal.log_positive(self.infinity_mass)
        log_total = _special.logsumexp(jnp.append(log_p, lost))
        lacks, size = lacking(losses, log_p, jnp.asarray(self.infinity_mass, losses.dtype))
        lacks, size = lacks * jnp.exp(-log_total), size * jnp.exp(-log_total)
        good = (jnp.abs(log_total) <= 2.0 * _TOLERANCE) & jnp.all(jnp.isfinite(losses))
        good &= _checks.PROBABILITY.contains(jnp.asarray(self.infinity_mass))
        log_p, lost = log_p - log_total, lost - log_total
        log_q = log_p - losses
        good &= lacks >= -2.0 * _TOLERANCE
        some = lacks > _ROUNDING * (1.0 + losses.shape[0] / 1000.0) * size
        log_rest = jnp.where(some, jnp.log(jnp.where(some, lacks, 1.0)), -jnp.inf)
        log_other = jnp.log1p(-jnp.where(some | ~good, 0.0, lacks))
        log_q = log_q - log_other
        nothing = jnp.full((1,), -jnp.inf)
        log_p = jnp.concatenate([log_p, lost[None], nothing])
        log_q = jnp.concatenate([log_q, nothing, log_rest[None]])
        return tuple(jnp.where(good, x, jnp.nan) for x in (log_p, log_q))

    def _log_failure(self, direction: Direction) -> jax.Array:
        if direction == "add":
            return super()._log_failure(direction)
        return self._rough_logs()[0][-2]  # that outcome's P-mass, which lacks no digits

    def _failure(self, direction: Direction) -> jax.Array:
        """Of P the field itself, where all masses sum to 1 but for rounding."""
        above = super()._failure(direction)
        if direction == "add":
            return above
        log_p, tau = jnp.asarray(self.log_masses), jnp.asarray(self.infinity_mass)
        excess = jnp.sum(jnp.exp(log_p)) + tau - 1.0
        exact = jnp.abs(excess) <= _divergences.SLACK * (log_p.shape[0] + 4.0)
        return jnp.where(exact, jnp.minimum(tau, above), above)


def _roughly_lacking(losses: jax.Array, log_p: jax.Array, tau: jax.Array) -> _Lacks:
    """What Q lacks of sum_i p_i + tau: tau + sum_i p_i (1 - e^{-l_i}); and its terms' sizes."""
    near = losses > -1.0
    small = jnp.exp(log_p) * -jnp.expm1(-jnp.where(near, losses, 0.0))
    large = jnp.exp(log_p) - jnp.exp(log_p - jnp.where(near, 0.0, losses))
    terms = jnp.where(near, small, large)
    return jnp.sum(terms) + tau, jnp.sum(jnp.abs(terms)) + tau


@jax.jit  # traced once for all that ask
def _lacking(losses: jax.Array, log_p: jax.Array, tau: jax.Array) -> _Lacks:
    """The same with the digits of what terms of both signs leave, 1e-14 of them say.

    They are summed with twice the digits (and differentiated without).
    """
    lacks, size = _roughly_lacking(losses, log_p, tau)
    losses, log_p, tau = jax.lax.stop_gradient((losses, log_p, tau))
    near = losses > -1.0
    head, rest = _special_double.add(log_p, -losses)
    mass = _special_double.exponential((log_p, jnp.zeros_like(log_p)))
    other = jnp.where(near, -losses, head), jnp.where(near, 0.0, rest)
    other = _special_double.exponential(other, jnp.where(near, 1.0, 0.0))
    small = _special_double.times(mass, other)
    large = _special_double.plus((-mass[0], -mass[1]), other)
    heads, rests = (-jnp.where(near, a, b) for a, b in zip(small, large, strict=True))
    exact = _special_double.total(jnp.append(heads, tau), rests)
    return lacks + jax.lax.stop_gradient(exact - lacks), size
