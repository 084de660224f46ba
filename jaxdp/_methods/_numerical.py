"""The likelihood-ratio engine as a method."""

import dataclasses
from typing import Any, ClassVar

import jax

from jaxdp import _numerical, _numerical_range, _numerical_sample
from jaxdp._law import Bounds, Sides
from jaxdp._mechanisms import Mechanism
from jaxdp._methods._base import Aimed, OnGrid


@dataclasses.dataclass(frozen=True)
class Numerical(OnGrid):
    """The likelihood-ratio engine: certified two-sided bounds on a grid of the privacy loss.

    Args:
      grid_size: lattice points, a power of two from 256 to 2^22; None chooses a size that brackets
        epsilon to about a relative 1e-3.

    Raises:
      ValueError: for any other size.

    Example:
      >>> import jaxdp
      >>> low, high = jaxdp.epsilon_bounds(jaxdp.Gaussian(1.0), 1e-5, method=jaxdp.Numerical())
      >>> bool(low <= 4.377178 <= high)
      True
    """

    grid_size: int | None = None

    _reads_laws: ClassVar = True

    def _refusal(self, m: Mechanism) -> str | None:
        if _numerical.has_law(m):
            return None
        return "what is known by Rényi divergences has no one-step law for Numerical()"

    def _log_delta(self, m: Mechanism, epsilon: jax.Array, direction: Any, sides: Sides) -> Bounds:
        return _room(m).log_delta(m, epsilon, _way(m, direction), sides, self.grid_size)

    def _epsilon(self, m: Mechanism, delta: jax.Array, direction: Any, sides: Sides) -> Bounds:
        log_delta = jax.numpy.log(delta)
        return _room(m).epsilon(m, log_delta, _way(m, direction), sides, self.grid_size)

    def _takes_flag(self, m: Mechanism) -> bool:
        return _room(m) is not _numerical_sample and _numerical.takes_flag(m)

    def _aimed(self, m: Mechanism) -> Aimed | None:
        if _room(m) is not _numerical or not _numerical.has_aim(m):
            return None
        return lambda epsilon, log_delta, direction: _numerical.aimed(
            m, epsilon, log_delta, _way(m, direction), self.grid_size
        )


def _room(m: Mechanism) -> Any:
    if _numerical_range.has_range(m):
        return _numerical_range
    return _numerical if _numerical_sample.lone(m) is None else _numerical_sample


def _way(m: Mechanism, direction: Any) -> Any:
    """The direction, which may be a flag; one of two that agree."""
    both = isinstance(direction, str) and direction == "both"
    return "remove" if both and m._symmetric() else direction
