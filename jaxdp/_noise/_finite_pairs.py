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

from jaxdp import _checks, _divergences, _rates, _special, _special_double
from jaxdp import _special_subnormal as subnormal
from jaxdp._mechanisms import Base, Direction, mechanism
from jaxdp._mechanisms._base import Masses
from jaxdp._noise import _atoms
from jaxdp._rounding import is_least
from jaxdp._special import log1p

_SUM_TOLERANCE = 1e-5  # float32 callers
_MOST = 0.999
_FEW = 128  # outcomes, that are compared with every interval: of more a tree is made


def check_distribution(name: str, value: Any, ndim: int) -> None:
    """Raise ValueError unless there are `ndim` axes or more and known rows are distributions."""
    if np.ndim(value) < ndim:
        shape = "a vector" if ndim == 1 else "a matrix"
        raise ValueError(
            f"{name} must be {shape} of probabilities (or a batch), got {_checks.shown(value)}"
        )
    array = _checks.concrete(name, value)
    if array is None:
        return
    good = np.all(array >= 0.0) and np.all(abs(np.sum(array, axis=-1) - 1.0) <= _SUM_TOLERANCE)
    if not good:
        raise ValueError(
            f"{name} must be >= 0 and sum to 1 along its last axis, got {_checks.shown(array)}"
        )


def _excess(p: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The sums of rows less 1, and whether these are distributions up to rounding.

    What the additions round is added up too: of a row like (1e-20, 1) all that matters is below the
    last digit of its sum.
    """
    values = jnp.concatenate([jnp.full_like(p[..., :1], -1.0), p], axis=-1)
    excess = _special_double.total(jnp.moveaxis(values, -1, 0))[..., None]
    good = jnp.all(p >= 0.0, axis=-1, keepdims=True) & (jnp.abs(excess) <= _SUM_TOLERANCE)
    return jnp.where(good, excess, 0.0), good


def normalised(p: jax.Array) -> jax.Array:
    """Rows divided by their sums; nan unless they are distributions up to rounding."""
    excess, good = _excess(p)
    return jnp.where(good, p / (1.0 + excess), jnp.nan)


def normalised_logs(p: jax.Array) -> jax.Array:
    """The logarithms of `normalised`, those of subnormal probabilities included."""
    excess, good = _excess(p)
    # (A sum that is 1 up to rounding is left alone: tables look for atoms at the very losses.)
    logs = subnormal.log_positive(p) - jnp.log(1.0 + excess)
    # Next to 1 all digits are in what the others have.
    most = p > _MOST
    rest = jnp.where(most, (1.0 - p) + excess, 0.0)
    logs = jnp.where(most, log1p(-rest / (1.0 + excess)), logs)
    return jnp.where(good, logs, jnp.nan)


class FiniteFamily(Base):
    """Abstract: a pair of distributions on a finite set."""

    _is_short: ClassVar = True

    @abc.abstractmethod
    def _logs(self) -> tuple[jax.Array, jax.Array]:
        """log P and log Q, normalised; nan where they are no distributions."""

    @abc.abstractmethod
    def _outcomes(self) -> int:
        """How many outcomes there are."""

    def _rough_logs(self) -> tuple[jax.Array, jax.Array]:
        """The same but for the digits of what P or Q lacks, at less cost where there is one."""
        return self._logs()

    def _losses(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """log P and log Q, and the loss and log Q of the outcomes that have a finite loss."""
        log_p, log_q = self._logs()
        return log_p, log_q, *_finite_loss(log_p, log_q)

    def _in_domain(self) -> jax.Array:
        log_p, log_q = self._rough_logs()
        return ~jnp.any(jnp.isnan(log_p) | jnp.isnan(log_q))

    def _rate(self, s: jax.Array) -> jax.Array:
        log_p, log_q, loss, weight = self._losses()
        return _pair_rate(loss, weight, log_p, log_q, s)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        log_p, log_q, loss, both = self._losses()
        # of the loss itself, for at small q all digits are in its distance from 0; without P, 1 - q
        thinned = q < 1.0
        absent = log1p(-jnp.where(thinned, q, 0.5))
        live = (both > -jnp.inf) | (thinned & (log_q > -jnp.inf))
        mixed = jnp.where(both > -jnp.inf, _rates.log_mixture(loss, q), absent)
        mixed, weight = jnp.where(live, mixed, 0.0), jnp.where(live, log_q, -jnp.inf)
        log_p = jnp.where(live, mixed + weight, log_p + subnormal.log_positive(q))
        return _pair_rate(mixed, weight, log_p, log_q, s)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        """The extreme losses, moved outwards by the rounding of their logarithms."""
        log_p, log_q = self._rough_logs()
        loss, weight = _finite_loss(log_p, log_q)
        live = weight > -jnp.inf
        size = jnp.abs(jnp.where(live, log_p, 0.0)) + jnp.abs(jnp.where(live, log_q, 0.0))
        size = size + live.shape[0]
        error = _divergences.SLACK * jax.lax.stop_gradient(size)
        low = -first_largest(jnp.where(live, error - loss, -jnp.inf))
        return low, first_largest(jnp.where(live, loss + error, -jnp.inf))

    def _log_failure(self, direction: Direction) -> jax.Array:
        log_p, log_q = self._logs()
        with_mass, without = (log_p, log_q) if direction == "remove" else (log_q, log_p)
        return _special.logsumexp(jnp.where(without > -jnp.inf, -jnp.inf, with_mass))

    def _failure(self, direction: Direction) -> jax.Array:
        """The same, above what a sum over all outcomes rounds."""
        rounding = 1.0 + _divergences.SLACK * self._outcomes()
        return jnp.minimum(super()._failure(direction) * rounding, 1.0)

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
        return jnp.minimum(_divergences.log_rounded(total + 32.0 * slack, 2.0 * slack), 0.0)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._masses_function()(lo, hi)

    def _masses_function(self) -> Masses:
        loss, weight = _finite_loss(*self._rough_logs())
        if loss.shape[0] > _FEW:
            return lambda lo, hi: _atoms.interval_log_masses(lo, hi, loss, weight, weight + loss)
        return lambda lo, hi: _divergences.atom_log_masses(lo, hi, loss, weight)

    def sample(self, key: jax.Array, value: Any) -> jax.Array:
        """One outcome index for every bit: from P where it is 1 (or True), from Q where 0."""
        value = jnp.asarray(value)
        log_p, log_q = self._logs()
        logits = jnp.where(value[..., None] > 0, log_p, log_q)
        return jax.random.categorical(key, logits)


def first_largest(values: jax.Array) -> jax.Array:
    """The maximum over the first axis; where several attain it, it differentiates as the first."""
    frozen = jax.lax.stop_gradient(values)
    largest = jnp.max(frozen, axis=0)
    index = jnp.arange(values.shape[0]).reshape((-1,) + (1,) * (values.ndim - 1))
    attained = is_least(-frozen)
    first = jnp.min(jnp.where(attained, index, values.shape[0] - 1), axis=0)
    found = jnp.take_along_axis(values, first[None], axis=0)[0]
    found = jnp.where(jnp.abs(largest) < jnp.inf, found, 0.0)
    return largest + (found - jax.lax.stop_gradient(found))


def _finite_loss(log_p, log_q):
    """log p/q and log q where both are positive; 0 and -inf elsewhere."""
    both = (log_p > -jnp.inf) & (log_q > -jnp.inf)
    loss = jnp.where(both, log_p, 0.0) - jnp.where(both, log_q, 0.0)
    return loss, jnp.where(both, log_q, -jnp.inf)


def _pair_rate(loss, weight, log_p, log_q, s):
    """k(s) of the part with 0 < X < inf: that of the conditional pair, plus the lost masses.

    With p0, q0 the masses of that part, E_Q[X^s 1] = q0^{1-s} p0^s E_{Q0}[X0^s], so that
    k(s) = k_0(s) + log p0/(s - 1) - log q0/s. What is lost lies where P or Q has mass and the
    weight is none.
    """
    empty = jnp.all(weight == -jnp.inf)
    mass_q, mass_p = (_kept(log, weight > -jnp.inf) for log in (log_q, log_p))
    lost_p = jnp.any((log_p > -jnp.inf) & (weight == -jnp.inf)) & ~empty
    lost_q = jnp.any((log_q > -jnp.inf) & (weight == -jnp.inf)) & ~empty
    mass_q, mass_p = jnp.where(lost_q, mass_q, 0.0), jnp.where(lost_p, mass_p, 0.0)
    conditional = _rates.discrete_rate(loss - (mass_p - mass_q), weight - mass_q, s)
    return conditional + _over(mass_p, s - 1.0, lost_p) - _over(mass_q, s, lost_q)


def _kept(log, there):
    """log of the mass that is there: 1 less the rest, whose digits all count where it is small."""
    rest = _special.logsumexp(jnp.where(there, -jnp.inf, log))
    few = rest < -_special.LOG_2
    most = log1p(-jnp.exp(jnp.where(few, rest, -1.0)))
    return jnp.where(few, most, _special.logsumexp(jnp.where(there, log, -jnp.inf)))


def _over(log_mass, scale, lost):
    """log_mass/scale; a mass of which nothing is lost is 1, whatever the scale.

    (What loses mass is infinite at scale 0, whose rate is not asked for.)
    """
    some = lost & (scale != 0.0)
    return jnp.where(some, log_mass / jnp.where(some, scale, 1.0), 0.0)


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
            value = _checks.array_of(name, value)
            object.__setattr__(self, name, value)
            check_distribution(name, value, 1)
        if np.shape(self.p)[-1] != np.shape(self.q)[-1]:
            raise ValueError(
                f"p and q must have the same length, got {np.shape(self.p)}, {np.shape(self.q)}"
            )

    def _logs(self) -> tuple[jax.Array, jax.Array]:
        both = jnp.stack([jnp.asarray(self.p), jnp.asarray(self.q)])
        log_p, log_q = normalised_logs(both)
        return log_p, log_q

    def _outcomes(self) -> int:
        return np.shape(self.p)[-1]

    def _failure(self, direction: Direction) -> jax.Array:
        """Exact where one outcome alone fails, and nothing is normalised.

        Multiples of 2^-52 are added without rounding: what adds up to 1 is 1.
        """
        p, q = jnp.asarray(self.p, jnp.float64), jnp.asarray(self.q, jnp.float64)
        with_mass, without = (p, q) if direction == "remove" else (q, p)
        mass = jnp.where(subnormal.is_positive(without), 0.0, with_mass)
        total = jnp.sum(with_mass)
        units = with_mass * 2.0**52
        exact = (jnp.sum((mass > 0.0).astype(jnp.int32)) <= 1) & (total == 1.0)
        exact &= jnp.all(units == jnp.floor(units))
        rounding = 1.0 + 2.0**-51 * (mass.shape[-1] + 4)
        return jnp.where(exact, 1.0, rounding / total) * jnp.sum(mass)


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
            raise TypeError(f"pair must be a finite pair, got {_checks.shown(self.pair)}")
        object.__setattr__(self, "kernel", _checks.array_of("kernel", self.kernel))
        check_distribution("kernel", self.kernel, 2)
        rows, outcomes = np.shape(self.kernel)[-2], self.pair._outcomes()
        if rows != outcomes:
            raise ValueError(f"kernel must have {outcomes} rows, one per outcome, got {rows}")

    def _logs(self) -> tuple[jax.Array, jax.Array]:
        kernel = normalised_logs(jnp.asarray(self.kernel))
        log_p, log_q = (
            _special.logsumexp(log_mass[:, None] + kernel, axis=0) for log_mass in self.pair._logs()
        )
        return log_p, log_q

    def _outcomes(self) -> int:
        return np.shape(self.kernel)[-1]
