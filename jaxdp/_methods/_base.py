"""The contract of a method: it says for which mechanisms it answers, and answers for them.

A method is a frozen dataclass of its options, and so a static argument of programs. What it is
asked acts on float64 scalars, inside the island, and on mechanisms that have one law: `_answers`
takes those apart that are known between others only, and those that may be one of several.

`sides` are +1 for a certified upper bound, -1 for a certified lower bound and 0 for the nearest
value (of an exact method; else as +1). The true value of direction "both" is the larger of the two
directions, so both its bounds are larger ones of two. A bound from above must be one at every
argument; a method without a lower bound answers log delta = -inf, epsilon = 0.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _checks, _devices, _law
from jaxdp._law import Bounds, Sides
from jaxdp._mechanisms import Direction, Mechanism, _curve

Aimed = Callable[[jax.Array, jax.Array, Any], tuple[jax.Array, jax.Array]]

# On a CPU the engine computes so many rows at a time, and this is what a row takes for intermediate
# results, by the points of its grid and by law (measured for two bounds of one law: 540 bytes a
# point, of three laws: 968, of an allocation: 666).
_ROWS, _POINT_BYTES, _POINTS = 8, 256, 16384
# All pairs of points of `_law._average_pairs`, and what is worked out of them.
_PAIR_BYTES = 6 * 8 * 768**2
_RUN_BYTES = 16 << 20  # of integer noise, by runs


class Method(abc.ABC):
    """Abstract method; see the module's docstring."""

    # Whether its curve is the mechanism's own, and smooth where that is.
    _exact: ClassVar[bool] = False
    # Whether it reads laws on a lattice: its curve has steps, `_answers.log_delta_estimate` is a
    # start for searches, one law serves many questions, and some losses are beyond all lattices.
    _reads_laws: ClassVar[bool] = False
    # By how much, relatively, a search makes log(delta) smaller than its target. So a re-evaluation
    # that rounds differently, a root of epsilon found to its tolerance, or epsilon read from
    # another tilt of a law stays private.
    _margin: ClassVar[float] = 2e-5
    # By how much, relatively and absolutely, a root of epsilon may be above the least one, where
    # that is more than the margin makes up for: at epsilons next to 0.
    _root_error: ClassVar[tuple[float, float]] = (0.0, 0.0)

    @abc.abstractmethod
    def _refusal(self, m: Mechanism) -> str | None:
        """Why it cannot answer for m; None where it can. The structure of m alone decides."""

    def _supports(self, m: Mechanism) -> bool:
        """Whether it answers for m."""
        return self._refusal(m) is None

    @abc.abstractmethod
    def _chunk(self, m: Mechanism, leaves: Sequence[Any]) -> int | None:
        """How many rows to compute at a time where these arrays are; None for all."""

    @abc.abstractmethod
    def _log_delta(self, m: Mechanism, epsilon: jax.Array, direction: Any, sides: Sides) -> Bounds:
        """log delta at any real epsilon, one value for each side."""

    @abc.abstractmethod
    def _epsilon(self, m: Mechanism, delta: jax.Array, direction: Any, sides: Sides) -> Bounds:
        """Epsilon >= 0 at delta in (0, 1), one value for each side."""

    def _takes_flag(self, m: Mechanism) -> bool:
        """Whether the direction may be traced: "add" or not."""
        return False

    def _aimed(self, m: Mechanism) -> Aimed | None:
        """What bounds log delta at epsilon >= 0 and epsilon at log delta from above, by one law.

        A function of epsilon, log delta and the direction: the second answer is that of `_epsilon`,
        at the cost of one of both. None where there is none.
        """
        return None

    def _certifier(self, m: Mechanism) -> "Method":
        """The method by which a search that this one has guided is to end."""
        return self


class UpperBound(Method):
    """Abstract: a method that bounds one direction at a time, from above alone."""

    @abc.abstractmethod
    def _log_delta_above(self, m: Mechanism, epsilon: jax.Array, d: Direction) -> jax.Array:
        """Upper bound on log delta, whatever the largest loss."""

    @abc.abstractmethod
    def _epsilon_above(self, m: Mechanism, log_delta: jax.Array, d: Direction) -> jax.Array:
        """Upper bound on epsilon >= 0, whatever the largest loss."""

    def _log_delta(self, m: Mechanism, epsilon: jax.Array, direction: Any, sides: Sides) -> Bounds:
        def one(d: Direction) -> Bounds:
            upper = self._log_delta_above(m, epsilon, d)
            found = tuple(upper if x >= 0 else jnp.full_like(upper, -jnp.inf) for x in sides)
            return _law.cap_log_deltas(found, sides, epsilon, _curve.end(m, d))

        return _curve.worst(m, direction, one)

    def _epsilon(self, m: Mechanism, delta: jax.Array, direction: Any, sides: Sides) -> Bounds:
        log_delta = jnp.log(delta)

        def one(d: Direction) -> Bounds:
            upper = self._epsilon_above(m, log_delta, d)
            upper = jnp.minimum(upper, _curve.largest_loss(m, d))
            return tuple(upper if side >= 0 else jnp.zeros_like(upper) for side in sides)

        return _curve.worst(m, direction, one)


class OnGrid(Method):
    """Abstract: a method that asks the engine, on a grid of so many points."""

    grid_size: Any

    def __post_init__(self) -> None:
        size = self.grid_size
        if size is None:
            return
        n = int(size) if isinstance(size, (int, np.integer)) and not isinstance(size, bool) else 0
        if not 256 <= n <= 2**22 or n & (n - 1):
            got = _checks.shown(size)
            raise ValueError(f"grid_size must be a power of two from 256 to 2^22, got {got}")
        object.__setattr__(self, "grid_size", n)

    def _chunk(self, m: Mechanism, leaves: Sequence[Any]) -> int | None:
        terms = _curve.canonical_terms(m)
        laws = 1 + len(terms) + _curve.has_average(m)
        row_bytes = _POINT_BYTES * laws * (self.grid_size or _POINTS)
        # (Composed averages take as many steps as a row needs, alone; a batch takes all.)
        alone = _curve.has_average(m) and (len(terms) > 1 or terms[0].count is not None)
        row_bytes += _PAIR_BYTES if alone else 0
        if _curve.any_inside(m, lambda part: part._takes_runs):  # (likewise, where it is narrow)
            alone, row_bytes = True, row_bytes + _RUN_BYTES
        return _devices.rows_at_a_time(1 if alone else _ROWS, row_bytes, leaves)


def check_method(method: Method | None) -> None:
    """Raise TypeError unless method is None or a method object."""
    if method is not None and not isinstance(method, Method):
        raise TypeError(
            "method must be None, jaxdp.Analytic(), jaxdp.Renyi(...), jaxdp.Numerical(...) or one "
            f"for RandomAllocation, got {_checks.shown(method)}"
        )
