"""How a query is computed: a closed form, Rényi divergences or the numerical engine."""

import dataclasses

from jaxdp import _checks


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
        _checks.check("orders", self.orders, _checks.FINITE_ORDER)
        if not self.orders:
            raise ValueError("orders must not be empty")
        object.__setattr__(self, "orders", tuple(float(a) for a in self.orders))


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
        n = self.grid_size
        if n is None:
            return
        if not isinstance(n, int) or not 256 <= n <= 2**22 or n & (n - 1):
            raise ValueError(f"grid_size must be a power of two from 256 to 2^22, got {n!r}")


Method = Analytic | Renyi | Numerical


def check_method(method: Method | None) -> None:
    """Raise TypeError unless method is None or a method object."""
    if method is not None and not isinstance(method, Method):
        raise TypeError(
            "method must be None, jaxdp.Analytic(), jaxdp.Renyi(...) or jaxdp.Numerical(...), "
            f"got {method!r}"
        )
