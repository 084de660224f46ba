"""Where a computation runs: how it is compiled there, and how much of it at a time.

What a concrete call compiles first on a CPU is compiled quickly, with fewer optimisations: a fresh
process has its first answer in a quarter of the time (DP-SGD: 2.3 instead of 7.9 CPU seconds), and
each of these answers takes some five times as long (28 instead of 6 milliseconds). From
`_QUICK_ROWS` evaluations of one program on, when they have cost about as much as it saved, it is
compiled once more, in full. All are the same program with the same allowances for rounding: answers
agree to rounding, not to the last bit.

What runs for seconds and compiles for a minute has the first level of optimisations at every call:
that halves the minute, and adds a tenth to the seconds.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import jax
import numpy as np
from jax.extend.core import find_top_trace

from jaxdp import _programs

# XLA's newer emitters take half the time, LLVM's optimisations much of the rest: a batch of many
# rows has the first level of them, a call of few has none. An option that this jaxlib does not know
# is left out.
QUICK_OPTIONS = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
QUICKEST_OPTIONS = {**QUICK_OPTIONS, "xla_backend_optimization_level": 0}
_QUICKEST_ROWS = 32  # of one call
# Evaluations of one program, a row of a batch each, that are run with fewer optimisations.
_QUICK_ROWS = 256

# Of an accelerator's memory, what a query may take for the rows that it computes at a time.
_SHARE = 0.5
_UNKNOWN_MEMORY = 8 * 2**30  # where the device does not tell
_MOST_ROWS = 4096


Quick = bool | Literal["always"]


class Program:
    """A function, compiled quickly for the first rows of a shape on a CPU, in full for the rest.

    Where quick is "always", all are compiled with the first level of optimisations.

    What a call is compiled by depends on the calls before it in this process alone, not on time.
    """

    def __init__(self, function: Callable[..., Any], quick: Quick) -> None:
        self._function = function
        self._full = jax.jit(function)
        self._quick = quick
        self._rows: dict[Any, int] = {}
        self._kept: dict[Any, Callable[..., Any]] = {}

    def __call__(self, leaves: Sequence[Any], batch: tuple[int, ...]) -> Any:
        """Run on concrete leaves, whose batch has this shape."""
        rows = math.prod(batch)
        if self._is_quick(leaves, rows):
            level = rows if self._quick is True else _QUICK_ROWS
            return _run_quickly(self._traced(leaves), list(leaves), level)
        return self._full(list(leaves))

    def _traced(self, leaves: Sequence[Any]) -> Callable[..., Any]:
        """The function, as an earlier process may have traced it."""
        where = _programs.folder()
        if where is None:
            return self._function
        key = where, tuple(map(_programs.type_of, leaves))
        if key not in self._kept:
            self._kept[key] = _programs.kept(self._function, leaves, where)
        return self._kept[key]

    def _is_quick(self, leaves: Sequence[Any], rows: int) -> bool:
        always = self._quick == "always"
        if not self._quick or (rows > _QUICK_ROWS and not always):
            return False
        # (JAX refuses options inside another program, and that one is its author's.)
        if not at_top_level() or platform_of(leaves) != "cpu":
            return False
        if always:
            return True
        key = tuple((np.shape(leaf), leaf.dtype) for leaf in leaves)
        done = self._rows.get(key, 0) + max(rows, 1)
        self._rows[key] = done
        return done <= _QUICK_ROWS


def _run_quickly(function: Callable[..., Any], leaves: list[Any], rows: int) -> Any:
    options = _known_options(rows)
    try:
        return _quick(function, options)(leaves)
    except jax.errors.JaxRuntimeError:
        _check_options(options)
        if _known_options(rows) == options:
            raise
        return _run_quickly(function, leaves, rows)


_Options = tuple[tuple[str, bool | int], ...]
_unknown_options: set[str] = set()


@functools.lru_cache(maxsize=512)
def _quick(function: Callable[..., Any], options: _Options) -> Callable[..., Any]:
    return jax.jit(function, compiler_options=dict(options))


def _known_options(rows: int) -> _Options:
    options = QUICKEST_OPTIONS if rows <= _QUICKEST_ROWS else QUICK_OPTIONS
    return tuple(o for o in options.items() if o[0] not in _unknown_options)


def _check_options(options: _Options) -> None:
    """Find those that this jaxlib refuses; asked only when a compilation has failed."""
    for name, value in options:
        try:
            jax.jit(lambda x: x + 1, compiler_options={name: value})(np.float32(0.0))
        except jax.errors.JaxRuntimeError:
            _unknown_options.add(name)


def at_top_level() -> bool:
    """Whether what is called with known arguments runs now, and by itself.

    Under no transformation, that is, or in the part of a derivative that is evaluated at once.
    """
    trace = find_top_trace(())  # the current one
    while type(trace).__name__ == "JaxprTrace":  # hands what is known to its parent
        trace = trace.parent_trace
    return type(trace).__name__ == "EvalTrace"


def device_of(leaves: Sequence[Any]) -> Any:
    """A device that holds one of the arrays, else that on which new arrays are made."""
    for leaf in leaves:
        if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
            return min(leaf.devices(), key=lambda d: d.id)
    default = jax.config.jax_default_device  # type: ignore[attr-defined]
    if default is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=default)[0] if isinstance(default, str) else default


def is_on_host(leaf: Any) -> bool:
    """Whether the bytes of a concrete array can be read without a transfer."""
    return not isinstance(leaf, jax.Array) or all(d.platform == "cpu" for d in leaf.devices())


def platform_of(leaves: Sequence[Any]) -> str:
    """The platform on which a call with these arguments runs: "cpu", "gpu" or "tpu"."""
    return device_of(leaves).platform


def rows_at_a_time(on_cpu: int, row_bytes: int, leaves: Sequence[Any] = ()) -> int:
    """How many rows of a batch to compute at a time: a CPU is busy with few, the rest in a loop.

    Args:
      on_cpu: the number for a CPU.
      row_bytes: what one row takes for intermediate results.
      leaves: arguments, by which the device is known.

    Returns:
      On an accelerator the largest power of two whose rows fit into a share of its memory, from
      `on_cpu` to 4096 (to `on_cpu`, if that is more).
    """
    device = device_of(leaves)
    if device.platform == "cpu":
        return on_cpu
    fit = max(1.0, _SHARE * memory_of(device) / row_bytes)
    return max(on_cpu, min(2 ** math.floor(math.log2(fit)), _MOST_ROWS))


def memory_of(device: Any) -> float:
    """The bytes of memory that a device lets us use, a modest guess where it does not tell."""
    try:
        stats = device.memory_stats()
    except jax.errors.JaxRuntimeError:  # a backend without them
        stats = None
    return float((stats or {}).get("bytes_limit", _UNKNOWN_MEMORY))
