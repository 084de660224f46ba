"""A dp_accounting accountant that computes by jaxdp."""

import math
from typing import Any

import dp_accounting as dpa
import jax

from jaxdp import _answers, _checks, _queries
from jaxdp._mechanisms import Mechanism
from jaxdp._methods import Analytic, Method, Numerical, Renyi, check_method
from jaxdp._numerical import has_law
from jaxdp.interop._events import (
    EVERYTHING,
    NOTHING,
    UnsupportedEvent,
    check_relation,
    compose,
    convert,
    repeat,
    whole_count,
)

Neighbours = dpa.NeighboringRelation
_GRID = 16384  # for DP-SGD within some 3e-5 of the least epsilon, as dp_accounting's own default


class Accountant(dpa.PrivacyAccountant):
    """Drop-in for dp_accounting's accountants: certified bounds, compiled once per kind of event.

    `dp_accounting.calibrate_dp_mechanism(interop.Accountant, ...)` and whatever takes a
    `PrivacyAccountant` run on it unchanged. Both directions are accounted for.

    Args:
      neighboring_relation: as for dp_accounting's accountants.
      method: Analytic(), Renyi(...) or Numerical(...); by default the closed form where there is
        one, else Numerical with 16384 lattice points, else Rényi (a composition inside an
        allocation).

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

    def _chosen(self, m: Mechanism) -> Method | None:
        if self._method is not None:
            return self._method
        if isinstance(_answers.resolve(m, None), Analytic):
            return None
        return Numerical(_GRID) if has_law(m) else Renyi()

    def get_epsilon(self, target_delta: float) -> float:
        """Certified upper bound on epsilon at target_delta, of everything composed so far."""
        target = _checks.number("target_delta", target_delta, _checks.NON_NEGATIVE_OR_INF)
        m = self._composed()
        if m is EVERYTHING:  # whatever the target, as to dp_accounting
            return math.inf
        if m is NOTHING or target >= 1.0:
            return 0.0
        method = self._chosen(m)
        with jax.enable_x64(True):
            value = float(_queries.epsilon(m, target, method=method))
            if math.isinf(value) and isinstance(method, Numerical):
                # beyond the grid's arithmetic; root finders need a finite number there too
                value = float(_queries.epsilon(m, target, method=Renyi()))
        return value

    def _failure(self, m: Mechanism) -> float:
        """The mass at infinite loss, rounded up: that of (epsilon, delta)-DP events."""
        lost = max(float(m._log_failure(d)) for d in ("remove", "add"))
        return math.exp(lost) * (1.0 + 1e-12) if lost > -math.inf else 0.0

    def get_delta(self, target_epsilon: float) -> float:
        """Certified upper bound on delta at target_epsilon, of everything composed so far."""
        epsilon = _checks.number("target_epsilon", target_epsilon, _checks.NOT_NAN)
        m = self._composed()
        if m is NOTHING:
            return max(-math.expm1(min(epsilon, 0.0)), 0.0)
        if m is EVERYTHING:
            return 1.0
        with jax.enable_x64(True):
            if epsilon == math.inf:
                return self._failure(m)
            value = float(_queries.delta(m, epsilon, method=self._chosen(m)))
            # delta <= 1 - e^{epsilon - max loss} <= max loss - epsilon: 0 beyond the largest loss
            most = float(_queries.epsilon(m, 0.0)) * (1.0 + 1e-14)
            if 0.99 * most < epsilon < most:  # where no tilt of a numerical law reaches
                value = min(value, float(_queries.delta(m, epsilon, method=Renyi())))
        return min(value, max(most - epsilon, 0.0))
