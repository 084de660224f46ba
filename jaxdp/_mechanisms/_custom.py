"""A mechanism of the user's own: the masses of its loss intervals, and nothing else.

Everything that `_base` asks of one step is derived here from a few facts about the pair (P, Q), by
bounds that are certified as soon as the facts hold. A class overrides any of it for speed only.
"""

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences
from jaxdp._mechanisms import _cell_rates, _stated_law
from jaxdp._mechanisms._base import Base, Direction, Mechanism, mechanism
from jaxdp._special import expm1

_DOMAINS = {
    "positive": _checks.POSITIVE,
    "non-negative": _checks.NON_NEGATIVE,
    "real": _checks.REAL,
    "probability": _checks.PROBABILITY,
    "rate": _checks.RATE,
}
_NUDGE = 2.0**-43  # relative: twice what a threshold may be off by
_ROUNDED, _LOST = 2.0**-50, 2.0**-40  # of log masses of infinite loss: up, and down again
_SMALLEST = 2.0**-1000  # a threshold at 0 needs room too


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
class CustomMechanism(Base):
    r"""A mechanism of your own: subclass it and say what determines its pair (P, Q).

    P is the law of the release with the record and Q the law without it, X = dP/dQ their
    likelihood ratio and L = log X the privacy loss. One method is required, `log_masses`; the
    others state facts whose default is "none". From them follow, certified in both directions and
    differentiable: `epsilon`, `delta`, `hockey_stick` and `tradeoff` of one step, Rényi
    divergences, and everything that is built of steps (`Repeated`, `Composed`, `PoissonSampled`,
    `RandomAllocation`, `Shuffled`, `privacy_loss`, `calibrate`).

    A subclass becomes a frozen dataclass and a PyTree by itself. Its annotated fields are its
    parameters: numbers or arrays that broadcast, traced or not. The methods below see one mechanism
    at a time, each parameter a float64 scalar, and return float64. Fields declared with
    `dataclasses.field(metadata={"static": True})` are compared instead, like functions and options.

    **log_masses(lo, hi)** returns (log Q{lo < L <= hi}, log P{lo < L <= hi}) of the finite losses,
    elementwise for arrays of thresholds of one shape, -inf <= lo <= hi <= inf.

    * Accuracy: each mass must have a relative error of at most
      2^-52 (16 + 4 |log q| + 4 |log p|) + `mass_error()`, a few roundings of a normal tail. So take
      no differences of nearly equal numbers; -inf where the mass is 0.
    * Thresholds may be off by a relative 2^-44, if every call is off by as much: the masses of
      adjacent intervals must add up.
    * Derivatives with respect to the fields must be finite: choose what is passed to a logarithm or
      a quotient by `jnp.where`, not only its result. Thresholds may be taken as constants.

    **loss_range()** returns bounds (least, largest) of the finite losses, rounded outwards;
    infinite by default. Epsilon at delta = 0 is read from it. Where the largest loss is infinite,
    Rényi divergences of order above 1 in the "remove" direction cannot be bounded by masses and
    come back infinite, so does the "add" direction where the least one is (`Numerical()`, the
    default of compositions, needs neither).

    **log_infinity()** returns (log P{L = inf}, log Q{L = -inf}): the outcomes that only one of the
    two laws allows, as accurate as masses are without `mass_error`. None by default.

    **mass_error()** is a bound on the relative error of the masses beyond that; 0 by default.

    **symmetric** (class attribute) says that both directions have the same curve. False by default.

    **domains** (class attribute) names the domain of fields: "positive", "non-negative", "real"
    (of a field that is not named), "probability" or "rate", which is (0, 1].

    **axes** (class attribute) gives the number of trailing axes of fields that hold a vector or a
    matrix for each mechanism, e.g. {"weights": 1}.

    **sample(key, value)** releases a value; by default it raises TypeError.

    One step has the exact curve: H at epsilon is p - e^epsilon q with the masses of (epsilon, inf)
    (Balle, Barthe & Gaboardi 2018), and P{L = inf} in addition. Rényi divergences are upper bounds
    by the convexity of x^s on some two thousand loss intervals, a relative 1e-4 or so above.

    What is stated is looked at on a hundred intervals, which finds most mistakes: masses that are
    nan or do not add up to 1, P and Q in the other order, atoms at a wrong loss, a range that is
    too small, a mass of infinite loss that was forgotten.

    Raises:
      ValueError: by the constructor, if a known parameter is outside its domain, or what is stated
        for known parameters can be no law (a sentence says why). Masses that are nan in a traced
        program count as all there is: bounds are on the safe side.

    Example:
      >>> import jax.numpy as jnp, jaxdp
      >>> class Response(jaxdp.CustomMechanism):  # a bit is kept with probability `keep`
      ...     keep: float
      ...     domains = {"keep": "rate"}
      ...     symmetric = True
      ...
      ...     def log_masses(self, lo, hi):
      ...         loss = jnp.log(self.keep) - jnp.log1p(-self.keep)
      ...         up = jnp.where((lo < loss) & (loss <= hi), 1.0, 0.0)
      ...         down = jnp.where((lo < -loss) & (-loss <= hi), 1.0, 0.0)
      ...         q = up * (1.0 - self.keep) + down * self.keep
      ...         p = up * self.keep + down * (1.0 - self.keep)
      ...         some = q > 0.0
      ...         return tuple(jnp.where(some, jnp.log(jnp.where(some, x, 1.0)), -jnp.inf)
      ...                      for x in (q, p))
      ...
      ...     def loss_range(self):
      ...         loss = jnp.log(self.keep) - jnp.log1p(-self.keep)
      ...         return -loss, loss
      >>> run = jaxdp.Repeated(jaxdp.PoissonSampled(Response(0.75), 0.1), 100)
      >>> low, high = jaxdp.epsilon_bounds(run, 1e-6)
      >>> bool(low <= high < 1.001 * low)
      True
    """

    domains: ClassVar[dict[str, str]] = {}
    axes: ClassVar[dict[str, int]] = {}
    symmetric: ClassVar[bool] = False
    _replaceable: ClassVar[bool] = False  # a field `sensitivity` says nothing of other shifts

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls._core_ndims = dict(cls.axes)
        mechanism(cls)
        names = {f.name for f in dataclasses.fields(cls) if not f.metadata.get("static")}
        _check_table(cls, "domains", set(cls.domains), names)
        _check_table(cls, "axes", set(cls.axes), names)
        for name, domain in cls.domains.items():
            choices = tuple(_DOMAINS)
            _checks.check_choice(f"{cls.__name__}.domains[{name!r}]", domain, choices)
        cls._domains = {name: _DOMAINS[cls.domains.get(name, "real")] for name in sorted(names)}

    def __post_init__(self) -> None:
        """Check the known parameters: ValueError unless they lie in their domains."""
        for name, domain in self._domains.items():
            value = getattr(self, name)
            if isinstance(value, Mechanism):
                raise TypeError(f"{name} must hold numbers, got {_checks.shown(value)}")
            value = _checks.array_of(name, value)
            _checks.check(name, value, domain)
            if np.ndim(value) < self.axes.get(name, 0):
                axes = self.axes[name]
                raise ValueError(f"{name} must have {axes} axes or more, got {np.ndim(value)}")
            object.__setattr__(self, name, value)
        _stated_law.check(self)

    @abc.abstractmethod
    def log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[ArrayLike, ArrayLike]:
        """(log Q, log P) of {lo < L <= hi}, elementwise; see the class."""

    def loss_range(self) -> tuple[ArrayLike, ArrayLike]:
        """Bounds on the finite losses, rounded outwards."""
        return -jnp.inf, jnp.inf

    def log_infinity(self) -> tuple[ArrayLike, ArrayLike]:
        """Log P{L = inf} and log Q{L = -inf}."""
        return -jnp.inf, -jnp.inf

    def mass_error(self) -> ArrayLike:
        """A bound on the relative error of the masses beyond the roundings of the contract."""
        return 0.0

    def sample(self, key: jax.Array, value: Any) -> Any:
        """Release a value once; a class that only accounts for a mechanism has no sampler."""
        raise TypeError(f"{type(self).__name__} defines no sample(key, value)")

    # What the library asks of one step, from the above.

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        low, high = self.loss_range()
        return jnp.asarray(low, jnp.float64), jnp.asarray(high, jnp.float64)

    def _log_failure(self, direction: Direction) -> jax.Array:
        """Rounded up by the roundings of the contract."""
        log_p, log_q = self.log_infinity()
        log_tau = jnp.asarray(log_p if direction == "remove" else log_q, jnp.float64)
        some = log_tau > -jnp.inf
        size = jax.lax.stop_gradient(jnp.abs(jnp.where(some, log_tau, 0.0)))
        return jnp.where(some, jnp.minimum(log_tau + _ROUNDED * (4.0 + size), 0.0), log_tau)

    def _may_fail(self) -> bool:
        return type(self).log_infinity is not CustomMechanism.log_infinity

    def _mass_error(self) -> jax.Array | float:
        return jnp.asarray(self.mass_error(), jnp.float64)

    def _symmetric(self) -> bool:
        return self.symmetric

    def _stated_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        lo, hi = jnp.broadcast_arrays(jnp.asarray(lo, jnp.float64), jnp.asarray(hi, jnp.float64))
        log_q, log_p = self.log_masses(lo, hi)
        return tuple(
            jnp.broadcast_to(jnp.asarray(x, jnp.float64), lo.shape) for x in (log_q, log_p)
        )

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Those that are stated; what is nan passes for no mass outside of the range alone."""
        log_q, log_p = self._stated_masses(lo, hi)
        low, high = self._loss_range()
        unknown = jnp.isnan(log_q) | jnp.isnan(log_p)
        if_unknown = jnp.where((lo < hi) & (lo < high) & (hi >= low), jnp.inf, -jnp.inf)
        return tuple(jnp.where(unknown, if_unknown, x) for x in (log_q, log_p))

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        """Exact but for rounding, which slack > 0 allows for above and slack < 0 below.

        At |epsilon|, of the pair or the reversed one: H_g = 1 - g + g H'_{1/g}.
        """
        distance = _divergences.magnitude(epsilon)
        reverse = (epsilon < 0.0) ^ (direction == "add")
        value = one_step_log_curve(self, distance, reverse, slack)
        return _divergences._reflect(epsilon, value, slack)

    def _sampled_rate_function(self) -> Callable[[jax.Array, jax.Array], jax.Array]:
        log_lost = self._log_failure("remove"), self._log_failure("add")
        return _cell_rates.sampled_rate_function(
            self._masses_function(), self._loss_range(), log_lost, self._mass_error()
        )

    def _rate_function(self) -> Callable[[jax.Array], jax.Array]:
        rate = self._sampled_rate_function()
        return lambda s: rate(s, jnp.float64(1.0))

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return self._sampled_rate_function()(s, q)

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._rate_function()(s)


def _check_table(cls: type, table: str, given: set[str], fields: set[str]) -> None:
    unknown = sorted(given - fields)
    if unknown:
        raise ValueError(f"{cls.__name__}.{table} names {unknown}, which are no parameters of it")


def one_step_log_curve(m: Base, distance: jax.Array, reverse: jax.Array, slack: float) -> jax.Array:
    """log H at distance >= 0 from the masses beyond it; `reverse` says of which pair.

    With S the outcomes of loss above epsilon, H = P(S) - e^epsilon Q(S) + P{L = inf}. The masses p
    and q that come back are within e^{-+r} of P(S') and Q(S') of a set S' whose threshold is off by
    a relative 2^-44.

    Below. Any set is a lower bound: p e^-r - e^epsilon q e^r.
    Above. From a threshold that is lower by n = 2^-43 epsilon, S' contains S, and the outcomes in
    between, of a loss above epsilon - 2 n, take away at most (1 - e^{-2 n}) P(S'): H is at most
    p e^r (1 - e^{epsilon - u - 2 r} + 2 n), with u = log p/q.
    By the optimality of S, the derivative is that at a fixed set: the threshold is frozen.
    """
    low, high = m._loss_range()
    largest = jnp.where(reverse, -low, high)
    frozen = jax.lax.stop_gradient(distance)
    room = (_NUDGE * frozen + _SMALLEST) if slack > 0.0 else 0.0 * frozen
    at, infinity = (frozen - room)[None], jnp.full((1,), jnp.inf)
    masses = m._log_masses(jnp.where(reverse, -infinity, at), jnp.where(reverse, -at, infinity))
    log_q, log_p = (x[0] for x in masses)
    log_q, log_p = jnp.where(reverse, log_p, log_q), jnp.where(reverse, log_q, log_p)
    error = _cell_rates.relative_error(log_q, log_p, m._mass_error())
    sign = (slack > 0.0) * 1.0 - (slack < 0.0) * 1.0
    some = (log_p > -jnp.inf) & (frozen < largest)
    both = some & (log_q > -jnp.inf)
    gap = jnp.where(both, log_p, 0.0) - jnp.where(both, log_q, 0.0) - distance
    gap = jnp.where(both, gap + 2.0 * sign * jnp.where(jnp.isnan(error), 0.0, error), 800.0)
    inside = some & (gap > 0.0)
    gain = -expm1(-jnp.where(inside, gap, 1.0))
    gain = jnp.where(inside, gain, 0.0) + jnp.where(some, 2.0 * room, 0.0)
    # (What is beyond the largest loss is P{L = inf} exactly.)
    value = jnp.where(some, log_p, 0.0) + jnp.minimum(_divergences.log_positive(gain), 0.0)
    value = jnp.where(some, value + sign * error, -jnp.inf)
    if slack:
        trivial = 0.0 if slack > 0.0 else -jnp.inf
        value = jnp.where(jnp.isnan(error), trivial, value)
    if m._may_fail():
        log_tau = jnp.where(reverse, m._log_failure("add"), m._log_failure("remove"))
        # (It is rounded up already, by less than is taken off.)
        size = jax.lax.stop_gradient(jnp.abs(jnp.where(log_tau > -jnp.inf, log_tau, 0.0)))
        lost = jnp.where(sign < 0.0, log_tau - _LOST - 2.0 * _ROUNDED * size, log_tau)
        value = _divergences.log_add(value, lost) + 4.0 * slack * (log_tau > -jnp.inf)
    return jnp.minimum(value, 0.0)
