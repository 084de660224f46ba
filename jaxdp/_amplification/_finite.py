"""Finite channels: exact privacy of a pair of finite distributions, before and after a kernel.

The pair (P, Q) on a finite set is the law of X = p_i/q_i; post-processing by a Markov kernel K
gives (PK, QK), whose curve is what every mixing bound must stay above. All sums are of
non-negative terms.
"""

import abc
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _special
from jaxdp._mechanisms import Base, Direction, mechanism

_SUM_TOLERANCE = 1e-5  # float32 callers


def check_distribution(name: str, value: Any, ndim: int) -> None:
    """Raise ValueError unless there are `ndim` axes or more and known rows are distributions."""
    if np.ndim(value) < ndim:
        shape = "a vector" if ndim == 1 else "a matrix"
        raise ValueError(f"{name} must be {shape} of probabilities (or a batch), got {value!r}")
    array = _checks.concrete(name, value)
    if array is None:
        return
    good = np.all(array >= 0.0) and np.all(abs(np.sum(array, axis=-1) - 1.0) <= _SUM_TOLERANCE)
    if not good:
        raise ValueError(f"{name} must be >= 0 and sum to 1 along its last axis, got {array}")


def normalised(p: jax.Array) -> jax.Array:
    """Rows divided by their sums; nan unless they are distributions up to rounding."""
    total = jnp.sum(p, axis=-1, keepdims=True)
    good = jnp.all(p >= 0.0, axis=-1, keepdims=True) & (jnp.abs(total - 1.0) <= _SUM_TOLERANCE)
    return jnp.where(good, p / jnp.where(good, total, 1.0), jnp.nan)


class FiniteFamily(Base):
    """Abstract: a pair of distributions on a finite set."""

    @abc.abstractmethod
    def _masses(self) -> tuple[jax.Array, jax.Array]:
        """P and Q, normalised."""

    @abc.abstractmethod
    def _outcomes(self) -> int:
        """How many outcomes there are."""

    def _logs(self) -> tuple[jax.Array, jax.Array]:
        p, q = self._masses()
        return _divergences.log_positive(p), _divergences.log_positive(q)

    def _in_domain(self) -> jax.Array:
        p, q = self._masses()
        return ~jnp.any(jnp.isnan(p) | jnp.isnan(q))

    def _rate(self, s: jax.Array) -> jax.Array:
        return _pair_rate(*self._logs(), s)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        log_p, log_q = self._logs()
        rest = _divergences.log_positive(1.0 - q)
        mixed = jnp.stack([rest + log_q, jnp.log(q) + log_p])
        return _pair_rate(_special.logsumexp(mixed, axis=0), log_q, s)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        loss, log_q = _finite_loss(*self._logs())
        live = log_q > -jnp.inf
        low = jnp.min(jnp.where(live, loss, jnp.inf))
        return low, jnp.max(jnp.where(live, loss, -jnp.inf))

    def _log_failure(self, direction: Direction) -> jax.Array:
        p, q = self._masses()
        with_mass, without = (p, q) if direction == "remove" else (q, p)
        return _divergences.log_positive(jnp.sum(jnp.where(without > 0.0, 0.0, with_mass)))

    def _symmetric(self) -> bool:
        return False

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        a, b = self._logs()
        if direction == "add":
            a, b = b, a
        live, both = a > -jnp.inf, (a > -jnp.inf) & (b > -jnp.inf)
        top, base = jnp.where(live, a, 0.0), jnp.where(both, b, 0.0)
        gap = epsilon + base - top
        size = jnp.abs(epsilon) + jnp.abs(base) + jnp.abs(top) + a.shape[-1]
        gap = jnp.where(both, gap - 4.0 * slack * size, -jnp.inf)
        inside = live & (gap < 0.0)
        terms = top + _special.log1mexp(jnp.where(inside, gap, -1.0))
        total = _special.logsumexp(jnp.where(inside, terms, -jnp.inf))
        return jnp.minimum(total + 32.0 * slack, 0.0)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return _divergences.atom_log_masses(lo, hi, *_finite_loss(*self._logs()))

    def sample(self, key: jax.Array, value: Any) -> jax.Array:
        """One outcome index for every bit: from P where it is 1 (or True), from Q where 0."""
        value = jnp.asarray(value)
        log_p, log_q = self._logs()
        logits = jnp.where(value[..., None] > 0, log_p, log_q)
        return jax.random.categorical(key, logits)


def _finite_loss(log_p, log_q):
    """log p/q and log q where both are positive; 0 and -inf elsewhere."""
    both = (log_p > -jnp.inf) & (log_q > -jnp.inf)
    loss = jnp.where(both, log_p, 0.0) - jnp.where(both, log_q, 0.0)
    return loss, jnp.where(both, log_q, -jnp.inf)


def _pair_rate(log_p, log_q, s):
    """k(s) of the part with 0 < X < inf: that of the conditional pair, plus the lost masses.

    With p0, q0 the masses of that part, E_Q[X^s 1] = q0^{1-s} p0^s E_{Q0}[X0^s], so that
    k(s) = k_0(s) + log p0/(s - 1) - log q0/s.
    """
    loss, weight = _finite_loss(log_p, log_q)
    mass_q, mass_p = _special.logsumexp(weight), _special.logsumexp(weight + loss)
    empty = mass_q == -jnp.inf
    mass_q, mass_p = jnp.where(empty, 0.0, mass_q), jnp.where(empty, 0.0, mass_p)
    conditional = _divergences.discrete_rate(loss - (mass_p - mass_q), weight - mass_q, s)
    return conditional + _over(mass_p, s - 1.0) - _over(mass_q, s)


def _over(log_mass, scale):
    """log_mass/scale; a mass that is 1 up to rounding is 1, whatever the scale."""
    lost = jnp.abs(log_mass) > 1e-14
    return jnp.where(lost, log_mass, 0.0) / jnp.where(scale == 0.0, 1e-300, scale)


@mechanism
class FinitePair(FiniteFamily):
    """The pair (P, Q) of two distributions on a finite set: any finite mechanism, exactly.

    delta, epsilon, Rényi divergences and compositions of the likelihood ratio p_i/q_i, in both
    directions ("remove" is P against Q). Vectors are normalised to sum to 1.

    Args:
      p: distribution with the record, shape (..., outcomes), >= 0.
      q: distribution without it, the same shape.

    Raises:
      ValueError: unless p and q are known or traced vectors of the same length whose known
        entries are >= 0 and sum to 1 within 1e-5.

    Example:
      >>> import jaxdp
      >>> pair = jaxdp.FinitePair([0.75, 0.25], [0.25, 0.75])
      >>> round(float(jaxdp.epsilon(pair, 0.0)), 6)  # log 3
      1.098612
    """

    p: ArrayLike
    q: ArrayLike

    _core_ndims: ClassVar = {"p": 1, "q": 1}

    def __post_init__(self) -> None:
        for name in ("p", "q"):
            value = getattr(self, name)
            if isinstance(value, (list, tuple)):
                value = np.asarray(value, np.float64)
                object.__setattr__(self, name, value)
            check_distribution(name, value, 1)
        if np.shape(self.p)[-1] != np.shape(self.q)[-1]:
            raise ValueError(
                f"p and q must have the same length, got {np.shape(self.p)}, {np.shape(self.q)}"
            )

    def _masses(self) -> tuple[jax.Array, jax.Array]:
        return normalised(jnp.asarray(self.p)), normalised(jnp.asarray(self.q))

    def _outcomes(self) -> int:
        return np.shape(self.p)[-1]


@mechanism
class PostProcessed(FiniteFamily):
    """A finite pair after a Markov kernel: the exact (PK, QK).

    What `amplify_by_mixing` bounds from the mixing coefficients of K alone. Nest for several
    kernels.

    Args:
      pair: a FinitePair or PostProcessed.
      kernel: row-stochastic matrix, shape (..., outcomes of the pair, new outcomes).

    Raises:
      ValueError: for a kernel of the wrong shape, or whose known rows are no distributions.
        TypeError: if pair is no finite pair.

    Example:
      >>> import jaxdp
      >>> pair = jaxdp.FinitePair([0.75, 0.25], [0.25, 0.75])
      >>> noisy = jaxdp.PostProcessed(pair, [[0.75, 0.25], [0.25, 0.75]])
      >>> round(float(jaxdp.epsilon(noisy, 0.0)), 6)  # log(5/3)
      0.510826
    """

    pair: FiniteFamily
    kernel: ArrayLike

    _core_ndims: ClassVar = {"kernel": 2}

    def __post_init__(self) -> None:
        if not isinstance(self.pair, FiniteFamily):
            raise TypeError(f"pair must be a finite pair, got {self.pair!r}")
        if isinstance(self.kernel, (list, tuple)):
            object.__setattr__(self, "kernel", np.asarray(self.kernel, np.float64))
        check_distribution("kernel", self.kernel, 2)
        rows, outcomes = np.shape(self.kernel)[-2], self.pair._outcomes()
        if rows != outcomes:
            raise ValueError(f"kernel must have {outcomes} rows, one per outcome, got {rows}")

    def _masses(self) -> tuple[jax.Array, jax.Array]:
        kernel = normalised(jnp.asarray(self.kernel))
        p, q = self.pair._masses()
        return jnp.sum(p[:, None] * kernel, axis=0), jnp.sum(q[:, None] * kernel, axis=0)

    def _outcomes(self) -> int:
        return np.shape(self.kernel)[-1]
