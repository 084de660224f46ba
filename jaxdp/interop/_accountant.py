"""A dp_accounting accountant that computes by jaxdp."""

import functools
import math
from fractions import Fraction
from typing import Any

import dp_accounting as dpa
import jax
import numpy as np
from jax.scipy import special
from jax.typing import ArrayLike

from jaxdp import _answers, _checks, _queries
from jaxdp._mechanisms import ApproximateDP, Mechanism, _curve
from jaxdp._methods import Method, Numerical, Renyi, check_method
from jaxdp.interop._event_parameters import (
    EVERYTHING,
    NOTHING,
    Neighbours,
    UnsupportedEvent,
    check_relation,
    whole_count,
)
from jaxdp.interop._events import compose, convert, repeat

_GRID = 16384  # for DP-SGD within some 3e-5 of the least epsilon, as dp_accounting's own default
# (About a larger epsilon windows are so wide that those lie twenty times as far apart as theirs.)
_LARGE, _FINE = 16.0, 131072
_FEW = 64  # mechanisms whose ends are added up in exact arithmetic: digits grow with each
# Their default rates of a GDP parameter, from where the laws of the engine see them.
_RATES = np.logspace(-10.0, np.log10(0.5), 500)


class Accountant(dpa.PrivacyAccountant):
    """Drop-in for dp_accounting's accountants: certified bounds, compiled once per kind of event.

    `dp_accounting.calibrate_dp_mechanism(interop.Accountant, ...)` and whatever takes a
    `PrivacyAccountant` run on it unchanged. Both directions are accounted for.

    Args:
      neighboring_relation: as for dp_accounting's accountants.
      method: Analytic(), Renyi(...) or Numerical(...); by default the closed form where there is
        one, else Numerical with 16384 lattice points (131072 where epsilon is above 16), else
        Rényi (a composition inside an allocation).

    Example:
      >>> import dp_accounting
      >>> from jaxdp import interop
      >>> accountant = interop.Accountant().compose(dp_accounting.GaussianDpEvent(2.0), 4)
      >>> round(accountant.get_epsilon(1e-5), 4)
      4.3772
    """

    def __init__(
        self,
        neighboring_relation: Neighbours = Neighbours.ADD_OR_REMOVE_ONE,
        method: Method | None = None,
    ) -> None:
        check_relation(neighboring_relation)
        super().__init__(neighboring_relation)
        check_method(method)
        self._method = method
        # equal mechanisms (by value) with their counts: a run composed step by step stays one term
        self._counts: dict[Any, int] = {}

    def _maybe_compose(self, event: dpa.DpEvent, count: int, do_compose: bool) -> Any:
        asked = not do_compose and isinstance(count, int) and count == 0  # only whether it could
        count = 0 if asked else whole_count(count)
        try:
            converted = convert(event, self._neighboring_relation)
        except UnsupportedEvent as error:
            return self.CompositionErrorDetails(error.event, error.reason)
        if do_compose:
            self._counts[converted] = self._counts.get(converted, 0) + count
        return None

    def _composed(self) -> Any:
        return compose([repeat(part, count) for part, count in self._counts.items()])

    def _chosen(self, m: Mechanism, fine: bool = False) -> Method | None:
        if self._method is not None:
            return self._method
        chosen = _answers.resolve(m, None)
        if chosen._exact:
            return None
        return Numerical(_FINE if fine else _GRID) if chosen._reads_laws else chosen

    @property
    def _contains_non_dp_event(self) -> bool:
        """Whether anything composed so far hides nothing, by dp_accounting's name for it."""
        return EVERYTHING in self._counts

    def _ends(self) -> tuple[float, float]:
        """The largest finite loss and the failure of all that was composed, rounded up once.

        Sums and products of the ends of the parts in exact arithmetic: two steps of 1 and 2 are 3.
        """
        parts = [
            (step.mechanism, Fraction(float(step.multiplicity)) * count)
            for m, count in self._counts.items()
            if isinstance(m, Mechanism)
            for step in m._terms()
        ]
        largest, failures = [], []
        with jax.enable_x64(True):
            for d in ("remove", "add"):
                ends = [(*map(float, _curve.end(m, d)), m, n) for m, n in parts]
                finite = all(math.isfinite(end) for end, *_ in ends)
                total = (
                    sum((n * Fraction(end) for end, _, _, n in ends), Fraction(0)) if finite else 0
                )
                largest.append(_up(total) if finite else math.inf)
                failing = [(_failure(m, log), n) for _, log, m, n in ends if log > -math.inf]
                failures.append(_any(failing))
        return max(largest), max(failures)

    def get_epsilon(self, target_delta: float) -> float:
        """Certified upper bound on epsilon at target_delta, of everything composed so far."""
        target = _checks.number("target_delta", target_delta, _checks.NON_NEGATIVE_OR_INF)
        m = self._composed()
        if m is EVERYTHING:  # whatever the target, as to dp_accounting
            return math.inf
        if m is NOTHING or target >= 1.0:
            return 0.0
        largest, failure = self._ends()
        most = largest if target >= failure else math.inf
        if target == 0.0:
            return most
        method = self._chosen(m)
        with jax.enable_x64(True):
            value = float(_queries.epsilon(m, target, method=method))
            if math.isinf(min(value, most)) and method is not None and method._reads_laws:
                # beyond the grid's arithmetic; root finders need a finite number there too
                value = float(_queries.epsilon(m, target, method=Renyi()))
            elif value > _LARGE and (fine := self._chosen(m, fine=True)) != method:
                # (No less than where it begins: what falls with delta is to stay so.)
                value = min(value, max(float(_queries.epsilon(m, target, method=fine)), _LARGE))
        return min(value, most)

    def get_delta(self, target_epsilon: float) -> float:
        """Certified upper bound on delta at target_epsilon, of everything composed so far."""
        epsilon = _checks.number("target_epsilon", target_epsilon, _checks.NOT_NAN)
        m = self._composed()
        if m is NOTHING:
            return max(0.0, -math.expm1(min(epsilon, 0.0)))
        if m is EVERYTHING:
            return 1.0
        largest, failure = self._ends()
        if epsilon >= largest:
            return failure
        with jax.enable_x64(True):
            method = self._chosen(m, fine=epsilon > _LARGE)
            value = float(_queries.delta(m, epsilon, method=method))
            if 0.99 * largest < epsilon:  # where no tilt of a numerical law reaches
                value = min(value, float(_queries.delta(m, epsilon, method=Renyi())))
        # delta <= failure + 1 - e^{epsilon - largest} <= failure + largest - epsilon
        return min(value, (failure + (largest - epsilon)) * (1.0 + 1e-15))

    def get_true_positive_rates(
        self, false_positive_rates: ArrayLike, deltas: ArrayLike | None = None
    ) -> Any:
        """Certified upper bounds on the true positive rate of any attack, at false positive rates.

        1 less the trade-off curve, the worse of both directions (each by itself: the curve of
        dp_accounting is made symmetric, and so larger for sampled steps).

        Args:
          false_positive_rates: in [0, 1], one number or an array.
          deltas: for compatibility, and not looked at: the whole curve is used.

        Returns:
          A float for a number, a NumPy array of their shape for an array.

        Raises:
          ValueError: for rates outside [0, 1].

        Example:
          >>> import dp_accounting
          >>> from jaxdp import interop
          >>> accountant = interop.Accountant().compose(dp_accounting.GaussianDpEvent(1.0))
          >>> round(accountant.get_true_positive_rates(0.1), 4)  # Phi(1 - Phi^-1(0.9))
          0.3891
        """
        rates = np.asarray(false_positive_rates, np.float64)
        _checks.check("false_positive_rates", rates, _checks.PROBABILITY)
        if self._composed() is NOTHING:
            return float(rates) if rates.ndim == 0 else rates
        misses = self._misses(rates)
        found = 1.0 - misses
        # rounded up: 1 - found is exact where found >= 1/2, and found itself is elsewhere
        found = np.where(1.0 - found > misses, np.nextafter(found, 2.0), found)
        found = np.maximum(np.minimum(found, 1.0), rates)
        return float(found) if found.ndim == 0 else found

    def _misses(self, rates: np.ndarray) -> np.ndarray:
        """Bounds from below on the false negative rates at false positive rates."""
        m = self._composed()
        if m is EVERYTHING:
            return np.zeros_like(rates)
        with jax.enable_x64(True):
            return np.asarray(_queries.tradeoff(m, rates, method=self._chosen(m)))

    def get_gdp_parameter_estimate(
        self, false_positive_rates: ArrayLike | None = None, deltas: ArrayLike | None = None
    ) -> float:
        """The least mu whose Gaussian is above all bounds on true positive rates at those rates.

        An estimate, as dp_accounting's: the bounds are certified, but between the rates a larger mu
        may be needed. inf where more than the smallest rate is lost to infinite losses.

        Args:
          false_positive_rates: in (0, 1); 500 of them from 1e-10 to 1/2 by default.
          deltas: for compatibility, and not looked at.

        Raises:
          ValueError: for rates outside (0, 1).

        Example:
          >>> import dp_accounting
          >>> from jaxdp import interop
          >>> accountant = interop.Accountant().compose(dp_accounting.GaussianDpEvent(2.0), 4)
          >>> round(accountant.get_gdp_parameter_estimate(), 4)
          1.0
        """
        rates = _RATES if false_positive_rates is None else false_positive_rates
        rates = np.atleast_1d(np.asarray(rates, np.float64))
        _checks.check("false_positive_rates", rates, _checks.OPEN_DELTA)
        m = self._composed()
        if m is NOTHING:
            return 0.0
        if m is EVERYTHING or self._ends()[1] > np.min(rates):
            return math.inf
        misses = self._misses(rates)
        with jax.enable_x64(True):
            mu = np.asarray(-special.ndtri(rates) - special.ndtri(misses))
        return max(float(np.max(mu)), 0.0)


def _up(total: Fraction) -> float:
    """A float no less than an exact number."""
    value = float(total)
    return value if Fraction(value) >= total else math.nextafter(value, math.inf)


def _failure(m: Mechanism, log_failure: float) -> Fraction:
    """The mass at infinite loss: the given delta itself of an (epsilon, delta) guarantee."""
    if isinstance(m, ApproximateDP):
        return Fraction(float(m.delta))
    return Fraction(min(math.exp(log_failure) * (1.0 + 1e-12), 1.0))


def _any(failures: list[tuple[Fraction, Fraction]]) -> float:
    """1 - prod (1 - failure)^count, rounded up."""
    if not failures:
        return 0.0
    whole = all(count.denominator == 1 for _, count in failures)
    if whole and sum(count for _, count in failures) <= _FEW:
        kept = functools.reduce(lambda x, y: x * y, [(1 - x) ** int(n) for x, n in failures])
        return _up(1 - kept)
    log_kept = sum(float(n) * math.log1p(-float(x)) if x < 1 else -math.inf for x, n in failures)
    return min(-math.expm1(log_kept) * (1.0 + 1e-12), 1.0)
