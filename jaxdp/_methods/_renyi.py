"""Rényi divergences: the best order of those asked for, or of all."""

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import jax

from jaxdp import _checks, _devices
from jaxdp._mechanisms import Direction, Mechanism, _curve
from jaxdp._methods._base import Method, UpperBound
from jaxdp._methods._numerical import Numerical

_ROWS, _ROW_BYTES = 32, 16 * 2**20  # at a time on a CPU; 15 MB for a search over orders
_AVERAGE_ROWS = 8


def known_orders(orders: Any) -> tuple[float, ...]:
    """Rényi orders as floats; ValueError unless there are some, all finite and > 1."""
    known = _checks.concrete("orders", orders)
    if known is None or known.ndim != 1:
        raise TypeError(f"orders must be a sequence of known orders, got {_checks.shown(orders)}")
    if not known.size:
        raise ValueError("orders must not be empty")
    _checks.check("orders", known, _checks.FINITE_ORDER)
    return tuple(known.astype(float).tolist())


@dataclasses.dataclass(frozen=True)
class Renyi(UpperBound):
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

    _margin: ClassVar = 1e-11

    def __post_init__(self) -> None:
        if self.orders is not None:
            object.__setattr__(self, "orders", known_orders(self.orders))

    def _refusal(self, m: Mechanism) -> str | None:
        return None

    def _chunk(self, m: Mechanism, leaves: Sequence[Any]) -> int | None:
        rows = _AVERAGE_ROWS if _curve.has_average(m) else _ROWS
        return _devices.rows_at_a_time(rows, _ROW_BYTES, leaves)

    def _log_delta_above(self, m: Mechanism, epsilon: jax.Array, d: Direction) -> jax.Array:
        return _curve.renyi_log_curve(m, epsilon, d, self.orders)

    def _epsilon_above(self, m: Mechanism, log_delta: jax.Array, d: Direction) -> jax.Array:
        return _curve.renyi_epsilon(m, log_delta, d, self.orders)

    def _certifier(self, m: Mechanism) -> Method:
        """The engine, which is tighter where there is no closed form, and too dear to search by."""
        tighter = Numerical()
        return tighter if not _curve.is_exact(m) and tighter._supports(m) else self
