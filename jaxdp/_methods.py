"""How a query is computed: a closed form, Rényi divergences or the numerical engine."""

import dataclasses
from typing import Any

import numpy as np

from jaxdp import _checks


def known_orders(orders: Any) -> tuple[float, ...]:
    """Rényi orders as floats; ValueError unless there are some, all finite and > 1."""
    known = _checks.concrete("orders", orders)
    if known is None or known.ndim != 1:
        raise TypeError(f"orders must be a sequence of known orders, got {_checks.shown(orders)}")
    if not known.size:
        raise ValueError("orders must not be empty")
    _checks.check("orders", known, _checks.FINITE_ORDER)
    return tuple(known.astype(float).tolist())


def _grid_size(size: Any) -> int | None:
    if size is None:
        return None
    n = int(size) if isinstance(size, (int, np.integer)) and not isinstance(size, bool) else 0
    if not 256 <= n <= 2**22 or n & (n - 1):
        got = _checks.shown(size)
        raise ValueError(f"grid_size must be a power of two from 256 to 2^22, got {got}")
    return n


@dataclasses.dataclass(frozen=True)
class Analytic:
    """The closed-form curve; a query raises ValueError where the mechanism has none.

    Example:
      >>> import jaxdp
      >>> jaxdp.delta_bounds(jaxdp.Laplace(1.0), 2.0, method=jaxdp.Analytic())[1].item()
      0.0
    """


@dataclasses.dataclass(frozen=True)
class Renyi:
    """The best Rényi order (Canonne, Kamath & Steinke 2020, Proposition 12): an upper bound.

    Args:
      orders: a tuple of orders > 1 to choose from; None searches all real orders.

    Raises:
      ValueError: for an empty tuple or an order that is not finite and > 1.

    Example:
      >>> import jaxdp
      >>> m = jaxdp.Gaussian(1.0)
      >>> round(float(jaxdp.epsilon(m, 1e-5, method=jaxdp.Renyi(orders=(4.0, 5.0, 6.0)))), 4)
      4.7527
    """

    orders: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.orders is None:
            return
        object.__setattr__(self, "orders", known_orders(self.orders))


@dataclasses.dataclass(frozen=True)
class Numerical:
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid_size", _grid_size(self.grid_size))


@dataclasses.dataclass(frozen=True)
class Decomposition:
    """Random allocation through Poisson subsampling given that the record joins at all.

    An upper bound for k = 1, in both directions (Feldman & Shenfeld 2025, Theorem 4.1, with the add
    direction that it leaves out): some 1.6 times the epsilon of Poisson subsampling at rate 1/t.

    Args:
      sampling_probability: the rate of the Poisson scheme, in (0, 1]; None tries several.
      grid_size: as for Numerical, which computes that scheme.

    Raises:
      ValueError: for a rate outside (0, 1] or another grid size.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 100)
      >>> bound = jaxdp.delta(run, 1.0, direction="remove", method=jaxdp.Decomposition(0.01))
      >>> bool(jaxdp.delta_bounds(run, 1.0, direction="remove")[0] < bound < 1e-3)
      True
    """

    sampling_probability: float | None = None
    grid_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid_size", _grid_size(self.grid_size))
        if self.sampling_probability is not None:
            rate = _checks.number("sampling_probability", self.sampling_probability, _checks.RATE)
            object.__setattr__(self, "sampling_probability", rate)


@dataclasses.dataclass(frozen=True)
class PosteriorSampling:
    """Random allocation as subsampling at posterior rates, which stay close to 1/t.

    An upper bound (Feldman & Shenfeld 2025, Theorem 3.2 and Corollary 3.12, sharpened): Poisson
    subsampling at a rate (1 + o(1))/t, plus a small delta'. Tight for large t; for small t or
    little noise it is vacuous: the rate is 1.

    Args:
      grid_size: as for Numerical, which computes the Poisson scheme.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 10_000)
      >>> bound = jaxdp.delta(run, 0.02, direction="remove", method=jaxdp.PosteriorSampling())
      >>> bool(bound < 1e-6)
      True
    """

    grid_size: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "grid_size", _grid_size(self.grid_size))


Method = Analytic | Renyi | Numerical | Decomposition | PosteriorSampling


def check_method(method: Method | None) -> None:
    """Raise TypeError unless method is None or a method object."""
    if method is not None and not isinstance(method, Method):
        raise TypeError(
            "method must be None, jaxdp.Analytic(), jaxdp.Renyi(...), jaxdp.Numerical(...) or one "
            f"for RandomAllocation, got {_checks.shown(method)}"
        )
