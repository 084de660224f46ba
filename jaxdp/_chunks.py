"""How many rows of a batch a query computes at a time, from the memory that a row takes; and what
rows share.
"""

from typing import Any

import jax
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _answers, _checks, _devices, _x64
from jaxdp._mechanisms import Mechanism, _curve
from jaxdp._methods import Method

# On a CPU so many Rényi divergences, and bytes that one takes for intermediate results (150 kB).
_ORDER_ROWS, _ORDER_BYTES = 1024, 160 * 2**10
_AVERAGE_ROWS = (8, 256)  # quadratures of averages in the add direction; their power series


def chunk_of(
    m: Mechanism, method: Method | None, argument: Any = (), chunk: int | None = None
) -> int | None:
    """How many rows to compute at a time, None for all: `chunk`, if it is given.

    Where m and the argument are, there the query will run.
    """
    chosen = _answers.resolve(m, method)
    if chunk is not None:
        return _checks.whole_number("chunk", chunk)
    return chosen._chunk(m._structure(), jax.tree.leaves((m, argument)))


def chunk_of_orders(m: Mechanism, direction: str, alpha: Any, chunk: int | None = None) -> int:
    """The same for Rényi divergences of given orders."""
    if chunk is not None:
        return _checks.whole_number("chunk", chunk)
    average = _curve.has_average(m._structure())
    rows = _AVERAGE_ROWS[direction == "remove"] if average else _ORDER_ROWS
    return _devices.rows_at_a_time(rows, _ORDER_BYTES, jax.tree.leaves((m, alpha)))


def share_last(m: Mechanism, argument: ArrayLike) -> tuple[Mechanism, Any] | None:
    """m and the vectors along the argument's last axis, if no parameter varies along it."""
    axes = [-1 - rank for rank in _x64.core_ranks(m)]  # the last axis of a batch
    leaves, treedef = jax.tree.flatten(m)
    batched = [np.ndim(x) >= -axis for x, axis in zip(leaves, axes, strict=True)]
    varying = (np.shape(x)[a] != 1 for x, a, b in zip(leaves, axes, batched, strict=True) if b)
    if np.ndim(argument) == 0 or np.size(argument) == 0 or any(varying):
        return None
    one = [x.squeeze(a) if b else x for x, a, b in zip(leaves, axes, batched, strict=True)]
    return jax.tree.unflatten(treedef, one), array_of(argument)


def array_of(argument: ArrayLike) -> Any:
    """A JAX array as it is, else NumPy's."""
    return argument if isinstance(argument, jax.Array) else np.asarray(argument)
