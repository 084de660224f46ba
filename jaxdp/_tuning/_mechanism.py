"""`RepeatAndSelect`: a mechanism run several times, of which the best output is released."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _orders
from jaxdp import _special as special
from jaxdp._law import _from_curve
from jaxdp._mechanisms import (
    Direction,
    Mechanism,
    RandomizedResponse,
    _curve,
    mechanism,
    require_mechanism,
)
from jaxdp._mechanisms._guarantees import OfDivergences
from jaxdp._mechanisms._of_curve import Law, OfCurve
from jaxdp._tuning import _curve as _selected
from jaxdp._tuning import _order
from jaxdp._tuning._runs import Runs

_ROUNDING = 1.0 + 1e-12
_ORDERS = (1.02, 1.1, 1.3, 1.7, 2.5, 4.0, 7.0, 12.0, 24.0, 48.0, 96.0)
_CELLS = 511  # of the losses > 0 of a pair: the nodes are whole batches
_ABOUT = 16.0  # a delta is so far above the floor of its tables

_DIRECTIONS: tuple[Direction, Direction] = ("remove", "add")


@mechanism
class RepeatAndSelect(OfCurve, OfDivergences):
    r"""A mechanism run K times, of which the best output alone is released: private tuning.

    K is drawn, and kept secret, from a truncated negative binomial law of shape eta >= 0 and mean
    m (eta = 1: geometric; 0: logarithmic), or from a Poisson law (eta = inf; K = 0 releases
    nothing). "Best" is by any fixed order of the outputs; those of hyperparameters drawn at random
    in every run, too.

    Bounds are by the law of one run, which may be a composition, for the worst order. With f the
    generating function of K, an output has the density f'(1 - u) Q, u the probability of a better
    one. From above,

    .. math:: \delta_K(\varepsilon) \le m \sum_j d_j\, \delta(\varepsilon + \log y_j),
              \quad \sum_j d_j = 1

    (proof in `jaxdp._tuning._curve`, which sharpens m delta(epsilon - c) of Koskela, Redberg & Wang
    2024, arXiv 2402.06701); from below, what an order attains that ranks outputs by their loss from
    some loss upwards, and those below it as the best. (Outputs of one loss may be told apart, by a
    random tag say: of few outcomes that are not, no order may attain that much.) Epsilons are a
    percent apart or less as a rule, a fifth where K is Poisson and many runs of little loss count,
    more at delta above 1e-3.
    Composed with others, or sampled, a symmetric pair of that curve stands for it. Of guarantees
    without a law (`ConcentratedDP`) there is nothing below. Rényi divergences are those of
    Papernot & Steinke 2022, arXiv 2110.03620, Theorems 2 and 6.

    Args:
      mechanism: one run, a composition as a rule.
      mean: m >= 1 runs on average.
      shape: eta, a known number >= 0, or inf.

    Raises:
      ValueError: if a known parameter is outside its domain. TypeError: if no mechanism.

    Example:
      >>> import jaxdp
      >>> once = jaxdp.Gaussian(4.0)  # epsilon 1.06
      >>> low, high = jaxdp.epsilon_bounds(jaxdp.RepeatAndSelect(once, mean=10.0), 1e-6)
      >>> bool(1.54 < low <= high < 1.56)
      True
    """

    mechanism: Mechanism
    mean: ArrayLike
    shape: float = dataclasses.field(default=1.0, metadata={"static": True})

    _domains: ClassVar = {
        "mean": _checks.Domain("finite and >= 1", lambda x: (x >= 1) & (x < 1e300))
    }

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        super().__post_init__()
        shape = _checks.number("shape", self.shape, _checks.NON_NEGATIVE_OR_INF)
        object.__setattr__(self, "shape", shape)

    @property
    def neighbours(self) -> str | None:
        """Those of the mechanism."""
        return self.mechanism.neighbours

    def _in_domain(self) -> jax.Array:
        return self.mechanism._in_domain() & super()._in_domain()

    def _held(self) -> tuple[Mechanism, ...]:
        one = _curve.single(_curve.canonical_terms(self.mechanism))
        known = one is None or one._has_law or one._by_curve or one._held()
        return (self.mechanism,) if known else ()

    def _symmetric(self) -> bool:
        return self.mechanism._symmetric()

    def _runs(self) -> Runs:
        return Runs.of(self.mean, self.shape)

    def _log_mean(self) -> jax.Array:
        return jnp.log(self.mean * _ROUNDING)

    # -- by the curve of one run --

    def _one(self, direction: Direction) -> Callable[[jax.Array], jax.Array]:
        """log of the curve of one run, elementwise, from above: without tables."""

        def at(epsilon: jax.Array) -> jax.Array:
            value = _curve.log_curve(self.mechanism, epsilon, direction, _divergences.SLACK)
            return jnp.minimum(value, 0.0)

        return lambda e: jnp.vectorize(at)(jnp.asarray(e, jnp.float64))

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        if slack < 0.0:  # (its law is tabulated for that)
            return jnp.full_like(jnp.asarray(epsilon, jnp.float64), -jnp.inf)
        ways = _DIRECTIONS if direction == "remove" else _DIRECTIONS[::-1]
        own, other = (self._at_most(*way) for way in (ways, ways[::-1]))
        # H_g = 1 - g + g H'_{1/g} at g < 1
        distance, low = jnp.abs(epsilon), jnp.minimum(epsilon, -1e-300)
        reflected = jnp.logaddexp(special.log1mexp(low), low + other(distance))
        value = jnp.where(epsilon < 0.0, reflected, own(distance))
        value = jnp.minimum(value + 8.0 * _divergences.SLACK, 0.0)
        return jnp.where(
            epsilon >= _curve.end(self, direction)[0], self._log_failure(direction), value
        )

    def _at_most(self, own: Direction, other: Direction) -> Callable[[jax.Array], jax.Array]:
        one, at = self._one(own), _selected.shifts(self._runs(), self._one(other))
        return lambda epsilon: _selected.shifted(at, one, epsilon)

    # -- by its law, in tables --

    def _curves_above(self, log_floor: jax.Array, law: Law, both: bool) -> list[_selected.Curve]:
        """Curves from above: in the direction of `law`; if both, in the other one as well."""
        ways = (False,) if self._symmetric() else (False, True)
        if self._held():
            floor = log_floor - self._log_mean() - 1.0
            ones = [_selected.Tabulated(law(self.mechanism, floor, other)) for other in ways]
        else:
            ones = [self._one(d) for d in _DIRECTIONS[: len(ways)]]
        runs, pairs = self._runs(), list(zip(ones, ones[::-1], strict=True))
        return [
            functools.partial(_selected.shifted, _selected.shifts(runs, other), one)
            for one, other in (pairs if both else pairs[:1])
        ]

    def _pair_below(
        self,
        log_floor: jax.Array,
        law: Law,
        epsilon: jax.Array | None = None,
        log_delta: jax.Array | None = None,
    ) -> _from_curve.Pair:
        """A pair from below in the direction of `law`, good at an epsilon or at a delta."""
        runs, table = self._runs(), law(self.mechanism, log_floor - self._log_mean() - 1.0)
        events = _order.Events(runs, table)
        if epsilon is None:
            assert log_delta is not None
            most = jnp.minimum(self._loss_range()[1], _from_curve.FARTHEST)
            epsilon = events.epsilon(log_delta, most)
        return _order.pair(runs, table, events.best(epsilon))

    def _pair(self, side: int, log_floor: jax.Array, law: Law) -> tuple[jax.Array, ...]:
        if side > 0:
            top = _curve.largest_loss(self, "both")
            curves = self._curves_above(log_floor, law, True)
            return _selected.pair_above(curves, top, log_floor, _CELLS)
        if not self._held():
            return _from_curve.nothing()
        return self._pair_below(log_floor, law, log_delta=log_floor + _ABOUT)

    # -- by Rényi divergences --

    def _worst_log_curve(self, epsilon: jax.Array) -> jax.Array:
        """log delta of one run, the larger of both directions."""
        return jnp.maximum(*(self._one(d)(epsilon) for d in _DIRECTIONS))

    def _divergence_function(self) -> Callable[[jax.Array], jax.Array]:
        remove, add = (_curve.rate_function(self.mechanism, d) for d in _DIRECTIONS)
        fails = jnp.maximum(*(self.mechanism._log_failure(d) for d in _DIRECTIONS))
        log_mean = self._log_mean()

        def one(alpha: jax.Array) -> jax.Array:
            found = alpha * jnp.maximum(remove(alpha), add(1.0 - alpha))
            return jnp.where(fails > -jnp.inf, jnp.inf, found)

        if self.shape == float("inf"):

            def at(alpha: jax.Array) -> jax.Array:
                a1 = jnp.maximum(alpha - 1.0, 1e-12)
                lost = jnp.exp(self._worst_log_curve(special.log1p(1.0 / a1)))
                return one(alpha) + self.mean * lost * _ROUNDING + log_mean / a1
        else:
            odds = self._runs().log_odds

            def shared(a: jax.Array) -> jax.Array:
                return (1.0 - 1.0 / a) * one(a) + odds / a

            constant = (1.0 + self.shape) * _orders.minimise_over_orders(shared)

            def at(alpha: jax.Array) -> jax.Array:
                a1 = jnp.maximum(alpha - 1.0, 1e-12)
                return one(alpha) + constant + log_mean / a1

        def divergence(alpha: jax.Array) -> jax.Array:  # which rises with alpha
            orders = jnp.append(jnp.maximum(alpha, jnp.asarray(_ORDERS)), alpha)
            return jnp.minimum(jnp.min(jax.vmap(at)(orders)) * _ROUNDING, most)

        low, high = self._loss_range()
        most = jnp.maximum(-low, high)
        return divergence

    # -- the largest loss --

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        low, high = self.mechanism._loss_range()
        return -self._largest(-low, "add"), self._largest(high, "remove")

    def _largest(self, once: jax.Array, direction: Direction) -> jax.Array:
        """The largest loss of one run, where a run is the most probable to be the best.

        Of a composition, whose curve is not known, as if it were randomised response.
        """
        runs, other = self._runs(), _DIRECTIONS[direction == "remove"]
        most = jnp.maximum(*(abs(end) for end in self.mechanism._loss_range()))
        pure = jnp.isfinite(once) & (self.mechanism._log_failure(direction) == -jnp.inf)
        if _curve.is_exact(self.mechanism):
            log_w = _selected.log_most(runs, self._one(other))
        else:
            both = jnp.isfinite(most) & (self.mechanism._log_failure(other) == -jnp.inf)
            one = RandomizedResponse(jnp.where(both, jnp.maximum(most, 1e-300), 1.0))
            log_w = _selected.log_most(
                runs, lambda e: one._log_hockey_stick(e, other, _divergences.SLACK)
            )
            pure &= both
        return jnp.where(pure, jnp.where(pure, once, 0.0) + log_w, jnp.inf)

    def _range_ulps(self) -> Any:
        return self.mechanism._range_ulps() + _selected.MOST_ULPS

    def _attains_range(self) -> bool:
        """Where one pair has all of the run's curve."""
        return _curve.is_exact(self.mechanism) and not _curve.any_inside(
            self.mechanism, lambda m: any(t.mechanism._is_envelope for t in m._terms())
        )

    def _log_failure(self, direction: Direction) -> jax.Array:
        """That of an order that has failures for the best."""
        log_tau = self.mechanism._log_failure(direction)
        tau = _divergences.exp_log(log_tau)
        runs = Runs.nearest(self.mean, self.shape)
        return jnp.where(tau > 0.0, runs.log_share(jnp.zeros(()), tau), -jnp.inf)
