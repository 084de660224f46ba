"""Where a computation runs: how it is compiled there, and how much of it at a time.

What a concrete call asks first on a CPU is not compiled at all, but run by NumPy (`_interpreter`),
until that would have taken as long as to compile it; then it is compiled without optimisations, a
batch or what is asked again with the first level of them, and in full in the end. (Bounds of
DP-SGD, 24 rows, two busy cores: 23 CPU seconds to compile, .16 a row then; 33 and .06; 47 and
.045.) Each of these costs about as much as it would have saved till then. By NumPy a few rows are
run one by one: to trace a batch takes longer, and again at every size of it, and where arrays are
long NumPy takes as long for them at once. All are the same program with the same allowances for
rounding: answers agree to rounding, not to the last bit.

What runs for seconds and compiles for a minute has the first level of optimisations at every call:
that halves the minute, and adds a tenth to the seconds.
"""

import functools
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Literal, ParamSpec, TypeVar

import jax
import numpy as np
from jax.extend.core import find_top_trace

from jaxdp import _interpreter, _programs

_Options = dict[str, bool | int]

# XLA's newer emitters take half the time, LLVM's optimisations much of the rest. An option that
# this jaxlib does not know is left out.
QUICK_OPTIONS: _Options = {
    "xla_cpu_use_fusion_emitters": False,
    "xla_backend_optimization_level": 1,
}
QUICKEST_OPTIONS: _Options = {**QUICK_OPTIONS, "xla_backend_optimization_level": 0}
# Rows of one call, and evaluations of one program (a row of a batch each), up to which there are no
# optimisations; up to which there is the first level of them.
_QUICKEST_ROWS, _QUICKEST_EVALUATIONS = 32, 256
_QUICK_ROWS, _QUICK_EVALUATIONS = 512, 4096
# Of one call, that NumPy may run: who asks for more at once asks for a table, and will again.
_INTERPRETED_ROWS = 32

# Of an accelerator's memory, what a query may take for the rows that it computes at a time.
_SHARE = 0.5
_UNKNOWN_MEMORY = 8 * 2**30  # where the device does not tell
_MOST_ROWS = 4096


Quick = bool | Literal["always"]
_P = ParamSpec("_P")
_R = TypeVar("_R")


class Program:
    """A function; for the first rows of a shape on a CPU interpreted, then compiled quickly, and in
    full for the rest.

    Where quick is "always", all that are compiled have the first level of optimisations.

    What a call is computed by depends on the calls before it in this process alone, not on time.

    Args:
      function: of a list of arrays, each with the axes of a batch before those of one evaluation.
      quick: as for `_x64.evaluate`.
      core_ndims: how many axes of each array belong to one evaluation.
    """

    def __init__(
        self, function: Callable[..., Any], quick: Quick, core_ndims: Sequence[int]
    ) -> None:
        self._function = function
        self._full = jax.jit(function)
        self._quick = quick
        self._core_ndims = core_ndims
        self._rows: dict[Any, int] = {}
        self._kept: dict[Any, Callable[..., Any]] = {}
        self._loans: dict[Any, tuple[Loan, bool]] = {}
        # (Those that no loan is left for are let go.)
        self._of_one: weakref.WeakValueDictionary[Any, Interpreted] = weakref.WeakValueDictionary()

    def __call__(self, leaves: Sequence[Any], batch: tuple[int, ...]) -> Any:
        """Run on concrete leaves, whose batch has this shape."""
        rows = math.prod(batch)
        options = self._options(leaves, rows)
        if options is None:
            return self._full(list(leaves))
        few = 0 < rows <= _INTERPRETED_ROWS
        answers = self._interpreted(leaves, batch) if few else None
        if answers is not None:
            return answers
        return _run_quickly(self._traced(leaves), list(leaves), options)

    def _interpreted(
        self, leaves: Sequence[Any], batch: tuple[int, ...]
    ) -> tuple[jax.Array, ...] | None:
        """The answers by NumPy, None where it is time to compile."""
        arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
        elsewhere = any(len(a.devices()) > 1 for a in arrays)
        if elsewhere or _programs.folder() is not None or not _interpreter.is_accurate():
            return None
        key = _shapes(leaves)
        if key not in self._loans:
            self._loans[key] = self._lent(leaves, batch)
        loan, by_row = self._loans[key]
        if loan.is_used_up:
            return None
        rows = _split(leaves, self._core_ndims, batch) if by_row else [leaves]
        device = device_of(leaves)
        with jax.default_device(device):
            found = loan.run(rows)
            if found is None:
                return None
            if by_row:
                stacks = [np.stack(parts) for parts in zip(*found, strict=True)]
                found = [[x.reshape(batch + x.shape[1:]) for x in stacks]]
            answers = tuple(map(jax.numpy.asarray, found[0]))
        return jax.device_put(answers, device) if any(a.committed for a in arrays) else answers

    def _lent(self, leaves: Sequence[Any], batch: tuple[int, ...]) -> "tuple[Loan, bool]":
        """For calls of these shapes; and whether they are run row by row.

        Batches of all sizes share the program of a row. One of many rows is traced anew if it is
        mostly NumPy's overhead that they share.
        """
        one = self._of_one_row(_split(leaves, self._core_ndims, batch)[0])
        costs = one.costs
        overhead = costs.overhead * min(one.seconds / max(costs.run, 1e-9), 1.0)
        if (math.prod(batch) - 1) * overhead <= costs.tracing:
            return Loan(one, costs.saved + (costs.tracing if batch else 0.0)), True
        whole = Interpreted(self._full.trace(list(leaves)).jaxpr)
        return Loan(whole, whole.costs.saved), False

    def _of_one_row(self, row: Sequence[Any]) -> "Interpreted":
        key = _shapes(row)
        program = self._of_one.get(key)
        if program is None:
            program = self._of_one[key] = Interpreted(self._full.trace(list(row)).jaxpr)
        return program

    def _traced(self, leaves: Sequence[Any]) -> Callable[..., Any]:
        """The function, as an earlier process may have traced it."""
        where = _programs.folder()
        if where is None:
            return self._function
        key = where, tuple(map(_programs.type_of, leaves))
        if key not in self._kept:
            self._kept[key] = _programs.kept(self._function, leaves, where)
        return self._kept[key]

    def _options(self, leaves: Sequence[Any], rows: int) -> _Options | None:
        """What the rows are compiled with, None where it is all optimisations."""
        # (JAX refuses options inside another program, and that one is its author's.)
        if not self._quick or not at_top_level() or platform_of(leaves) != "cpu":
            return None
        if self._quick == "always":
            return QUICK_OPTIONS
        if rows > _QUICK_ROWS:
            return None
        key = _shapes(leaves)
        done = self._rows.get(key, 0) + max(rows, 1)
        self._rows[key] = done
        if rows <= _QUICKEST_ROWS and done <= _QUICKEST_EVALUATIONS:
            return QUICKEST_OPTIONS
        return QUICK_OPTIONS if done <= _QUICK_EVALUATIONS else None


class Interpreted:
    """A program for NumPy, translated when it is first run.

    Attributes:
      costs: of a run and of what is instead, by estimate.
      seconds: what the last run took, by estimate; what one may take, before the first.
      least: what a run may as well take (see `_interpreter.Costs`).
    """

    def __init__(self, program: Any) -> None:
        self.costs = _interpreter.costs(program)
        self.seconds = 1.5 * self.costs.run  # (Loops may turn more often than is guessed.)
        self.least = self.costs.least
        self._program, self._code = program, None

    def run(self, leaves: Sequence[Any], limit: float) -> list[Any]:
        """What it gives, if it takes no longer than the limit."""
        self._code = self._code or _interpreter.translated(self._program)
        answers = self._code.run(*leaves, limit=limit)
        self.seconds = self.least = self._code.meter.spent
        return answers


class Loan:
    """A program that NumPy may run for so many seconds: until that has cost what it saves."""

    def __init__(self, program: Interpreted, seconds: float) -> None:
        self._program: Interpreted | None = program
        self._left = seconds

    @property
    def is_used_up(self) -> bool:
        """Whether nothing will be run any more."""
        return self._program is None

    def run(self, rows: Sequence[Sequence[Any]]) -> list[list[Any]] | None:
        """What it gives for each row, None where the loan is used up."""
        program = self._program
        if program is not None and self._affords(program, len(rows)):
            try:
                return [self._spend(program, row) for row in rows]
            except (_interpreter.TooLong, _interpreter.Unknown):
                pass
        self._program = None
        return None

    def _affords(self, program: Interpreted, rows: int) -> bool:
        """(Of one row it is tried, and given up where the loan ends.)"""
        return (program.least if rows == 1 else rows * program.seconds) <= self._left

    def _spend(self, program: Interpreted, row: Sequence[Any]) -> list[Any]:
        answers = program.run(row, self._left)
        self._left -= program.seconds
        return answers


def _split(
    leaves: Sequence[Any], core_ndims: Sequence[int], batch: tuple[int, ...]
) -> list[list[np.ndarray]]:
    """The arrays of each row of a batch."""
    flat = []
    for leaf, rank in zip(leaves, core_ndims, strict=True):
        x = np.asarray(leaf)
        core = x.shape[max(x.ndim - rank, 0) :]
        flat.append(np.broadcast_to(x, batch + core).reshape(-1, *core))
    if not flat:  # a mechanism without parameters
        return [[] for _ in range(math.prod(batch))]
    return [list(row) for row in zip(*flat, strict=True)]


def _shapes(leaves: Sequence[Any]) -> Any:
    return tuple((np.shape(leaf), leaf.dtype) for leaf in leaves)


_unknown_options: set[str] = set()


def _run_quickly(function: Callable[..., Any], leaves: list[Any], options: _Options) -> Any:
    known = _known(options)
    try:
        return _quick(function, tuple(known.items()))(leaves)
    except jax.errors.JaxRuntimeError:
        _check_options(known)
        if _known(options) == known:
            raise
        return _run_quickly(function, leaves, options)


@functools.lru_cache(maxsize=512)
def _quick(function: Callable[..., Any], options: tuple[Any, ...]) -> Callable[..., Any]:
    return jax.jit(function, compiler_options=dict(options))


def _known(options: _Options) -> _Options:
    return {name: value for name, value in options.items() if name not in _unknown_options}


def _check_options(options: _Options) -> None:
    """Find those that this jaxlib refuses; asked only when a compilation has failed."""
    for name, value in options.items():
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


def at_once(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function where values decide on sizes: inside a program known arguments are worked out."""

    @functools.wraps(function)
    def evaluated(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):
            return function(*args, **kwargs)
        with jax.ensure_compile_time_eval():
            return function(*args, **kwargs)

    return evaluated


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
