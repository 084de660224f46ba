"""How many rows of a batch a query computes at a time, from the memory that a row takes."""

from typing import Any

import jax

from jaxdp import _answers, _checks, _devices
from jaxdp._mechanisms import Mechanism, _curve
from jaxdp._methods import Analytic, Method, Renyi

# On a CPU so many rows, and bytes that a row takes for intermediate results: those of the engine
# by the points of its grid and by law (measured for two bounds of one law: 540 a point, of three
# laws: 968, of an allocation: 666), 15 MB for a search over Rényi orders, 150 kB for one order.
_NUMERICAL_ROWS, _POINT_BYTES, _POINTS = 8, 256, 16384
_RENYI_ROWS, _RENYI_BYTES = 32, 16 * 2**20
_ORDER_ROWS, _ORDER_BYTES = 1024, 160 * 2**10
_AVERAGE_ROWS = (8, 256)  # quadratures of averages in the add direction; their power series


def chunk_of(
    m: Mechanism, method: Method | None, argument: Any = (), chunk: int | None = None
) -> int | None:
    """How many rows to compute at a time, None for all: `chunk`, if it is given.

    Where m and the argument are, there the query will run.
    """
    chosen = _answers.resolve(m, method)
    structure = _answers.structure(m)
    if chunk is not None:
        return _checks.whole_number("chunk", chunk)
    if isinstance(chosen, Analytic):
        return None
    average, leaves = _curve.has_average(structure), jax.tree.leaves((m, argument))
    if isinstance(chosen, Renyi):
        rows = _AVERAGE_ROWS[0] if average else _RENYI_ROWS
        return _devices.rows_at_a_time(rows, _RENYI_BYTES, leaves)
    laws = 1 + len(_curve.canonical_terms(structure)) + average
    row_bytes = _POINT_BYTES * laws * (chosen.grid_size or _POINTS)
    return _devices.rows_at_a_time(_NUMERICAL_ROWS, row_bytes, leaves)


def chunk_of_orders(m: Mechanism, direction: str, alpha: Any, chunk: int | None = None) -> int:
    """The same for Rényi divergences of given orders."""
    if chunk is not None:
        return _checks.whole_number("chunk", chunk)
    average = _curve.has_average(_answers.structure(m))
    rows = _AVERAGE_ROWS[direction == "remove"] if average else _ORDER_ROWS
    return _devices.rows_at_a_time(rows, _ORDER_BYTES, jax.tree.leaves((m, alpha)))
