"""Calibration of long batches: in chunks, on every device and in every process, by one program."""

import contextlib
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.experimental.multihost_utils
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from calibrate._recipe import recipe_of
from calibrate._solution import solution
from calibrate._solve import (
    ROUNDING,
    Solution,
    check_bracket,
    check_target,
    default_chunk,
    most_rows,
    solve_row,
)
from jaxdp import _checks, _queries, _x64
from jaxdp._mechanisms import Mechanism
from jaxdp._methods import Method, check_method

_PATIENCE = 5.0  # seconds
_PATIENCE_TEXT = "Still at work: the first rows of a kind are compiled, for up to a minute or two."


def batch(
    build: Callable[..., Mechanism],
    *,
    epsilon: ArrayLike,
    delta: ArrayLike,
    args: tuple[Any, ...] = (),
    bracket: tuple[ArrayLike, ArrayLike] | None = None,
    direction: _queries.Directions = "both",
    method: Method | None = None,
    mesh: Mesh | None = None,
    chunk: int | None = None,
    progress: bool | Callable[[int, int], Any] = False,
) -> Solution:
    """Calibrate many targets: `calibrate.solve` in bounded memory, on all devices and processes.

    The rows are taken in equal chunks, so that one program is compiled and the memory that a
    device needs is that of one chunk. Every device calibrates its own rows of a chunk (data
    parallel, without communication). Where `jax.distributed.initialize` was called, every
    process passes the same targets, calibrates a contiguous share of them on its own devices, and
    gets the whole result (one all-gather at the end). A row's result depends neither on
    its neighbours nor on the number of devices or processes: bit for bit the same where devices
    receive chunks of the same length (`chunk` given), else to a relative 1e-13 (the compiler may
    order the arithmetic of another length in another way).

    A driver on the host: for use under jit, vmap or grad take `calibrate.solve`.

    Args:
      build: (value, *args) -> mechanism, what varies from row to row through args. Functions that
        differ in numbers only share one compiled program.
      epsilon, delta, args, bracket, direction, method: as for `calibrate.solve`; arrays broadcast
        elementwise.
      mesh: the devices to divide rows among, over all axes of the mesh; all devices of this
        process by default. A mesh of this process's devices keeps all rows in this process; one
        that spans processes divides them among the processes, as the default does.
      chunk: rows handed to one device at a time, of which it searches as many together as it has
        memory for, on a CPU 32 for Rényi divergences and 8 for numerical laws: a row that is done
        makes room for the next. By default 32 times as many (all that are searched together
        where the curve is a closed form: 16384), and no more than there are. A length
        that is given is kept by padding, for calls of different sizes.
      progress: True writes the number of rows done to stderr, and that it is at work where the
        first ones take more than a few seconds (programs are compiled); or a function
        (done, total) that is called after every chunk.

    Returns:
      A Solution of NumPy arrays of the broadcast shape, in float64 if x64 is enabled, else in
      float32 rounded to the safe side.

    Raises:
      ValueError: for targets or brackets outside their domains, a chunk below 1, or a mesh
        without devices of this process. TypeError: if build returns no mechanism.

    Example:
      >>> import calibrate, jaxdp, numpy as np
      >>> targets = np.linspace(0.1, 8.0, 1000)
      >>> many = calibrate.batch(jaxdp.Gaussian, epsilon=targets, delta=1e-6, chunk=256)
      >>> many.value.shape, int(many.status.sum())
      ((1000,), 0)
    """
    check_target(epsilon, delta, direction)
    check_method(method)
    low, high = check_bracket(bracket)
    if chunk is not None:
        chunk = _checks.whole_number("chunk", chunk)
    mesh, shared = _local_mesh(mesh)
    targets = _checks.array_of("epsilon", epsilon), _checks.array_of("delta", delta)
    recipe, inputs = recipe_of(build, tuple(args))
    leaves, treedef = jax.tree.flatten((*targets, inputs, low, high))
    leaves = [np.asarray(leaf, np.float64) for leaf in leaves]
    shape = _checks.common_shape(leaf.shape for leaf in leaves)
    total = int(np.prod(shape, dtype=np.int64))
    first, last = _share(total) if shared else (0, total)

    # (epsilon always is: it tells which rows fill up a chunk)
    mapped = (True, *(leaf.size != 1 for leaf in leaves[1:]))
    devices = mesh.devices.size
    with jax.enable_x64(True):
        lanes = default_chunk(recipe, inputs, method)
    if chunk is None:
        chunk = max(1, min(most_rows(lanes), -(-(last - first) // devices)))
    program = _x64.row_program(
        solve_row,
        treedef,
        mapped,
        mesh,
        ROUNDING,
        build=recipe,
        direction=direction,
        bounded=bracket is not None,
        method=method,
        lanes=lanes,
    )
    dtype = np.dtype(np.float64 if jax.config.jax_enable_x64 else np.float32)
    results = np.empty((4, last - first), dtype)
    report = _reporter(progress, last - first)
    size = chunk * devices
    with _saying_what_takes_long(progress is True) as soon, jax.enable_x64(True):
        pending = None
        for start, rows in _chunks(leaves, mapped, shape, first, last, size):
            running = start - first, program(_placed(rows, mapped, mesh))
            if pending is not None:  # collected while the next chunk is computed
                report(_collect(results, *pending))
                soon.cancel()
            pending = running
        if pending is not None:
            report(_collect(results, *pending))
        if shared:
            results = _gather(results, total)
    found: Any = tuple(row.reshape(shape) for row in results)
    return solution(found, build, epsilon, delta, tuple(args), (low, high), direction, method)


def _local_mesh(mesh: Mesh | None) -> tuple[Mesh, bool]:
    """The devices of this process, and whether the rows are divided among the processes."""
    if mesh is None:
        return Mesh(np.asarray(jax.local_devices()), ("rows",)), jax.process_count() > 1
    own = [d for d in mesh.devices.flat if d.process_index == jax.process_index()]
    if not own:
        raise ValueError("mesh must contain a device of this process")
    if len(own) == mesh.devices.size:
        return mesh, False
    if {d.process_index for d in mesh.devices.flat} != set(range(jax.process_count())):
        raise ValueError("mesh must contain devices of this process only, or of every process")
    return Mesh(np.asarray(own), ("rows",)), True


def _share(total: int) -> tuple[int, int]:
    """The rows of this process."""
    index, count = jax.process_index(), jax.process_count()
    return total * index // count, total * (index + 1) // count


def _chunks(
    leaves: list[np.ndarray],
    mapped: tuple[bool, ...],
    shape: tuple[int, ...],
    first: int,
    last: int,
    size: int,
) -> Iterator[tuple[int, list[np.ndarray]]]:
    """Chunks of `size` rows of the broadcast leaves, the first of which is epsilon.

    The last is filled up with its last row, without a target: nothing is searched there.
    """
    for start in range(first, last, size):
        every = np.arange(start, start + size)
        index = np.unravel_index(np.minimum(every, last - 1), shape) if shape else ()
        rows = [
            # indexed before it is broadcast in memory
            np.broadcast_to(np.broadcast_to(leaf, shape)[index], (size,))
            if many
            else leaf.reshape(())
            for leaf, many in zip(leaves, mapped, strict=True)
        ]
        yield start, [np.where(every < last, rows[0], np.nan), *rows[1:]]


def _placed(rows: list[np.ndarray], mapped: tuple[bool, ...], mesh: Mesh) -> list[jax.Array]:
    divided = NamedSharding(mesh, PartitionSpec(mesh.axis_names))
    whole = NamedSharding(mesh, PartitionSpec())
    return [
        jax.device_put(leaf, divided if many else whole)
        for leaf, many in zip(rows, mapped, strict=True)
    ]


def _collect(results: np.ndarray, start: int, outputs: Any) -> int:
    """Copy a chunk to the host; returns the number of rows done."""
    up, down, falls, target, achieved, status = (np.asarray(out) for out in outputs)
    stop = min(start + len(up), results.shape[1])
    value = np.where(falls > 0.0, down, up)
    for row, out in zip(results, (value, target, achieved, status), strict=True):
        row[start:stop] = out[: stop - start]
    return stop


def _gather(results: np.ndarray, total: int) -> np.ndarray:
    """The shares of all processes, in order."""
    count = jax.process_count()
    bounds = [total * i // count for i in range(count + 1)]
    longest = max(b - a for a, b in itertools.pairwise(bounds))
    padded = np.zeros((results.shape[0], longest), results.dtype)
    padded[:, : results.shape[1]] = results
    shares = np.asarray(jax.experimental.multihost_utils.process_allgather(padded))
    lengths = np.diff(bounds)
    return np.concatenate([s[:, :n] for s, n in zip(shares, lengths, strict=True)], axis=1)


@contextlib.contextmanager
def _saying_what_takes_long(asked: bool) -> Iterator[threading.Timer]:
    """A line on stderr if nothing is done after a few seconds, unless the timer is cancelled."""
    options = {"file": sys.stderr, "flush": True}
    timer = threading.Timer(_PATIENCE, print, [_PATIENCE_TEXT], options)
    timer.daemon = True
    if asked:
        timer.start()
    try:
        yield timer
    finally:
        timer.cancel()


def _reporter(progress: bool | Callable[[int, int], Any], total: int) -> Callable[[int], None]:
    if callable(progress):
        return lambda done: progress(done, total)
    if not progress:
        return lambda done: None

    def show(done: int) -> None:
        end = "\n" if done == total else ""
        print(f"\rcalibrated {done} of {total}", end=end, file=sys.stderr, flush=True)

    return show
