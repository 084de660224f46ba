r"""Groups of k records, for any mechanism, from what is known of one record.

Let R(a) be the largest power of a test of level a between two inputs one record apart, M(D) and
M(D'), 1 less their trade-off curve: R is concave, rises, and R(1) = 1. A test of level a between
M(D_0) and M(D_k), inputs k records apart in the same direction, has power at most R(a) on M(D_1);
as a test between M(D_1) and M(D_2) it has that level, and so power at most R(R(a)), and so on:

.. math:: R_k = R \circ R \circ \dots \circ R

(Dong, Roth & Su 2022, arXiv 1905.02383, Theorem 2.14; the proof above is all of it.) R_k is concave
and rises, hence belongs to a pair, which dominates; with the inverse of R in place of R the same
holds for the other direction, and gives the same pair, its roles exchanged. The hockey stick of a
pair is the conjugate, H(g) = max_a R(a) - g a, so that a larger R is a larger H.

Exchanged for k others, k records are removed and k added: with A in place of R where one is added,

.. math:: R_k \circ A_k

bounds the power, and belongs to a symmetric pair.

Tabulated, R is a polygon through the cumulated masses of a finite pair above the mechanism's, and
so is R_k: its corners are those of the inner polygon, and the preimages of the outer one's.

Rounding. A computed corner (a, b) lies within a relative eta of b from the polygon of exact
arithmetic: sums of N positive numbers, one chord, and k times that, for R(c a) <= c R(a), c >= 1.
So H(g) <= max (1 + eta) b - g a over the computed corners: eta is some 5e-13 k, and what is below
it in delta is not resolved.
"""

import dataclasses
import functools
from typing import Any, Literal

import jax
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _conversions, _devices, _privacy_loss_table, _queries
from jaxdp._intersection import intersection
from jaxdp._mechanisms import Mechanism, require_mechanism
from jaxdp._mechanisms._replace import scaled
from jaxdp._methods import Method, check_method
from jaxdp._noise import LossDistribution

_BEYOND = 1e-6  # of delta, at the ends of the table
_LEAST_DELTA = 1e-100  # at which the law of one record is asked for
_MOST = 1024
_AT_ONCE = 1 << 22
_FARTHEST = 600.0  # loss
_LOST = 1e-14  # a level that is 0 but for rounding
_ROUNDING = 2.0**-48  # of a product


@_devices.at_once
def group_privacy(
    m: Mechanism,
    size: int,
    *,
    exchanged: bool = False,
    delta: ArrayLike = 1e-5,
    direction: Literal["remove", "add"] = "remove",
    num_points: int = 1000,
    method: Method | None = None,
) -> Mechanism:
    r"""A mechanism that bounds m for inputs that differ in up to k records instead of one.

    * Noise with a sensitivity, and compositions of such: at k times the sensitivity, exactly.
    * A Poisson sample of a `Gaussian`: `PoissonSampledGroup`, exactly.
    * All else, by the law of m: if R(a) is the largest power of a test of level a for one record,
      then R(R(...R(a))) is for k of them (Dong, Roth & Su 2022, Theorem 2.14), and belongs to a
      pair that dominates. In general no more can be said of m from its law. It is exact for
      families of shifts, and never above k epsilon.

    With `exchanged`, k records are exchanged for k others, and m is for adding or removing one: for
    mechanisms that `replace_one` has no pair for (allocations, b-min-sep, ...), the power of a test
    is that of removing k after that of adding k.

    A composition is taken term by term where all its parts are of the first two kinds, else as a
    whole; `Repeated(group_privacy(step, k), T)` is valid as well, and at times the tighter one.

    Args:
      m: the mechanism, for one record (added or removed, or exchanged: then k are exchanged). Where
        it names the number of records, let that be the least on the way from one input to the
        other: k less, for batches of fixed size or truncated ones.
      size: k, a known integer from 1 to 1024: the most records of a user, all of them in one input
        and not in the other.
      exchanged: whether they are exchanged for as many others, m being for add-or-remove.
      delta: about where a table is to be accurate, in (0, 1).
      direction: which direction the "remove" of a table is. In the other one up to 2^-40 e^epsilon
        more is lost at infinity, unless m is pure: where epsilon is beyond 10, ask each of a table
        of its own.
      num_points: of a table, at least 16; it is a few 1e-4 above the exact one near `delta`.
      method: for the law of m; None as in `epsilon`.

    Returns:
      A mechanism: of the kind of m (m itself, for one record), with both directions as they are, or
      a table (`LossDistribution`), see `direction`. Upper bounds asked of it are certified for m;
      lower ones of a table are of the worst mechanism with the law of m only.

    Raises:
      ValueError: for a size outside of 1 to 1024, num_points < 16, delta outside (0, 1), a batch of
        mechanisms, `exchanged` where m is for exchanged records itself.
      TypeError: if m is no mechanism, or is traced and of the third kind.

    Example:
      >>> import jaxdp
      >>> jaxdp.group_privacy(jaxdp.Repeated(jaxdp.Gaussian(4.0), 10), 3)
      Repeated(mechanism=Gaussian(sigma=4.0, sensitivity=3.0), count=10)
      >>> user = jaxdp.group_privacy(jaxdp.RandomizedResponse(0.5), 3)
      >>> round(float(jaxdp.epsilon(user, 1e-5)), 4)
      1.5
    """
    require_mechanism("m", m, whole=True)
    k = _checks.whole_number("size", size, most=_MOST)
    aim = _checks.number("delta", delta, _checks.OPEN_DELTA)
    points = _checks.whole_number("num_points", num_points, least=16)
    _checks.check_choice("direction", direction, ("remove", "add"))
    check_method(method)
    if exchanged and m.neighbours == "replace-one":
        raise ValueError("exchanged must be False: m is for an exchanged record itself")
    exact = m if k == 1 and not exchanged else scaled(m, k, exchanged)
    if exact is not None:
        return exact
    if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(m)):
        raise TypeError("m is traced: the size of a table would depend on its values")
    steps = 2 * k if exchanged else k
    remove, add = (_pure(m, d, method) for d in ("remove", "add"))
    together = k * (remove + add)
    ends = (together, together) if exchanged else (k * add, k * remove)

    def power(d: Literal["remove", "add"]) -> _Polygon:
        least = _least_delta(m, steps, aim, d, remove if d == "remove" else add, method)
        pair = intersection([m], delta=least, direction=d, num_points=points, method=method)
        return _power(_Polygon.of(pair), k)

    tests = power("remove").after(power("add")) if exchanged else power(direction)
    return _table(tests, aim, points, ends if direction == "remove" else ends[::-1])


def _pure(m: Mechanism, direction: Any, method: Any) -> float:
    """Epsilon at delta 0, that is the largest loss."""
    with jax.enable_x64(True):
        found = _queries.epsilon(m, 0.0, direction=direction, method=method)
        if np.ndim(found):
            raise ValueError(f"m must be a single mechanism, got a batch: {m!r}")
        return float(found) * (1.0 + _ROUNDING)


def _least_delta(
    m: Mechanism, k: int, aim: float, direction: Any, pure: float, method: Any
) -> float:
    """A delta as small as the levels of the tests that matter, if m were about Gaussian."""
    with jax.enable_x64(True):
        near = float(_queries.epsilon(m, aim, direction=direction, method=method))
        if not 0.0 < near < np.inf:
            return aim
        mu = float(_conversions.epsilon_delta_to_gdp(near, aim))
        together = min(float(_conversions.gdp_to_epsilon(k * mu, aim)), k * pure)
    return max(aim * np.exp(-min(together, _FARTHEST)), _LEAST_DELTA)


@dataclasses.dataclass(frozen=True)
class _Polygon:
    """A concave R: levels from 0 to 1, powers up to 1, the slopes between; and its roundings."""

    levels: np.ndarray
    powers: np.ndarray
    slopes: np.ndarray
    eta: float

    @classmethod
    def of(cls, pair: LossDistribution) -> "_Polygon":
        """Of the masses of a pair, largest losses first."""
        loss, p = np.asarray(pair.losses), np.exp(np.asarray(pair.log_masses))
        order = np.argsort(-loss[p > 0.0], kind="stable")
        loss, p = loss[p > 0.0][order], p[p > 0.0][order]
        infinity = float(pair.infinity_mass)
        return cls.through(np.exp(-loss) * p, p, np.exp(loss), infinity, loss.size)

    @classmethod
    def through(
        cls, q: np.ndarray, p: np.ndarray, slopes: np.ndarray, start: float, sums: int
    ) -> "_Polygon":
        levels = np.concatenate([[0.0], np.minimum(np.cumsum(q), 1.0), [1.0]])
        powers = np.concatenate([[start], np.minimum(start + np.cumsum(p), 1.0), [1.0]])
        # what the sums lack of 1 by rounding is no loss
        powers[-2] = np.where(1.0 - powers[-2] < 1e-9, 1.0, powers[-2])
        return cls(levels, powers, np.append(slopes, 0.0), 2.0 * (sums + 64) * 2.0**-52)

    def after(self, inner: "_Polygon") -> "_Polygon":
        """self(inner(a)): corners where either has one."""
        seen = self.levels[(self.levels > inner.powers[0]) & (self.levels < 1.0)]
        between = np.searchsorted(inner.powers, seen, side="left") - 1
        between = np.clip(between, 0, inner.slopes.size - 1)
        steep = np.maximum(inner.slopes[between], 1e-300)
        found = inner.levels[between] + (seen - inner.powers[between]) / steep
        found = np.clip(found, inner.levels[between], inner.levels[between + 1])
        levels = np.concatenate([inner.levels, found])
        powers = np.concatenate([self(inner.powers), self(seen)])
        slopes = np.concatenate(  # of what begins at a corner
            [
                np.append(inner.slopes, 0.0) * self._slope(inner.powers),
                inner.slopes[between] * self._slope(seen),
            ]
        )
        order = np.lexsort((powers, levels))
        powers = np.maximum.accumulate(powers[order])
        return _Polygon(levels[order], powers, slopes[order][:-1], self.eta + inner.eta)

    def _begins(self, x: np.ndarray) -> np.ndarray:
        return np.clip(np.searchsorted(self.levels, x, side="right") - 1, 0, self.slopes.size - 1)

    def _slope(self, x: np.ndarray) -> np.ndarray:
        return self.slopes[self._begins(x)]

    def __call__(self, x: np.ndarray) -> np.ndarray:
        i = self._begins(x)
        value = self.powers[i] + self.slopes[i] * (x - self.levels[i])
        return np.where(x >= 1.0, 1.0, np.clip(value, self.powers[i], self.powers[i + 1]))

    def log_h(self, loss: np.ndarray) -> np.ndarray:
        """log H at losses, from above."""
        best = np.zeros(loss.size)
        raised = self.powers * (1.0 + self.eta)
        each = max(_AT_ONCE // self.levels.size, 1)
        for i in range(0, loss.size, each):
            g = np.exp(loss[i : i + each])[:, None]
            best[i : i + each] = np.max(raised - g * self.levels, axis=1)
        with np.errstate(divide="ignore"):
            return np.minimum(np.log(np.maximum(best, 0.0)), 0.0)

    def reach(self, delta: float) -> tuple[float, float]:
        """How far losses matter on either side: to where the curve, or the other's, is delta."""
        loss = np.concatenate([[0.0], np.geomspace(1e-7, _FARTHEST, 400)])
        mirrored = _Polygon(1.0 - self.powers[::-1], 1.0 - self.levels[::-1], self.slopes, self.eta)
        ends = []
        for side in (mirrored, self):
            lost = np.max(side.powers[side.levels <= _LOST])  # at infinite loss
            far = side.log_h(loss) > np.log(lost + delta + 4.0 * side.eta)
            ends.append(float(loss[min(int(np.sum(far)), loss.size - 1)]))
        return ends[0], ends[1]


def _power(one: _Polygon, k: int) -> _Polygon:
    """one after itself, k times in all, by doubling."""
    parts, square = [], one
    while k:
        if k & 1:
            parts.append(square)
        k >>= 1
        if k:
            square = square.after(square)
    return functools.reduce(lambda a, b: a.after(b), parts)


def _table(
    r: _Polygon, aim: float, points: int, known: tuple[float, float] = (np.inf, np.inf)
) -> LossDistribution:
    """All losses are known to be at least minus the first, and at most the second."""
    low, high = (min(ends) for ends in zip(r.reach(_BEYOND * aim), known, strict=True))
    # and where the curve ends, if it does
    steps = r.slopes[(np.diff(r.levels) > _LOST) & (r.slopes > 0.0)]
    ends = np.log(steps[[0, -1]])
    ends = ends[(-2.0 * low < ends) & (ends < 2.0 * high)]
    loss = np.unique(np.concatenate([np.linspace(-low, high, points), ends, [0.0]]))
    table = _privacy_loss_table.above(loss, r.log_h(loss), known)
    return _privacy_loss_table.as_pair(table, loss.size)
