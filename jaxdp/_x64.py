"""The float64 island: accounting in double precision inside any program.

`evaluate(function, *args)` computes a scalar function elementwise over broadcast arguments, in
float64, whatever the caller's precision, and flips no global flag. What must never change:

* All float64 work, the Jacobian included, is traced inside `jax.enable_x64(True)`. Lowering and
  transposition happen after that context has closed, so the caller's program sees one custom-JVP
  call whose tangent rule ends in multiplications in the caller's own dtype. Those alone are
  ever transposed.
* Nor is what was traced ever batched (by vmap of a jitted function, say), for that happens
  outside of the context too, where FFTs fall back to float32: a batch is traced anew, as one.
* No float64 leaves the island when the caller runs in 32 bits. The float32 result is rounded to
  the safe side: an upper bound up, a lower bound down.
* Python and NumPy numbers enter exactly (1e-5 means the double 1e-5, also in a 32-bit program).
* Parameters are arguments, never closed-over tracers; sizes and options are static and hashable.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.custom_derivatives import SymbolicZero

from jaxdp import _checks, _devices, _special_subnormal
from jaxdp._rounding import Rounding as Rounding
from jaxdp._rounding import rounded as rounded

# Up to this many scalar inputs the Jacobian is formed in forward mode; beyond it in reverse.
_FORWARD_MODE_INPUTS = 12


@dataclasses.dataclass(frozen=True)
class _Core:
    """A scalar function of flat leaves; hashable, so that compilations are shared."""

    function: Callable[..., Any]
    options: tuple[tuple[str, Hashable], ...]
    treedef: Any
    core_ndims: tuple[int, ...]

    def __call__(self, leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        out = self.function(*jax.tree.unflatten(self.treedef, leaves), **dict(self.options))
        return out if isinstance(out, tuple) else (out,)


@dataclasses.dataclass(frozen=True)
class _WithPartials:
    """The outputs of a core followed by their partial derivatives, output by output."""

    core: Any
    wrt: tuple[int, ...]

    @property
    def core_ndims(self) -> tuple[int, ...]:
        return self.core.core_ndims

    def __call__(self, leaves: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        def outputs(*selected):
            full = list(leaves)
            for index, value in zip(self.wrt, selected, strict=True):
                full[index] = value
            out = self.core(full)
            return out, out

        selected = [leaves[index] for index in self.wrt]
        if [leaf.shape for leaf in selected] == [()]:  # no batch of directions
            values, slopes, _ = jax.jvp(outputs, selected, [jnp.ones(())], has_aux=True)
            return values + slopes
        forward = sum(leaf.size for leaf in selected) <= _FORWARD_MODE_INPUTS
        jacobian = jax.jacfwd if forward else jax.jacrev
        every = tuple(range(len(selected)))
        partials, values = jacobian(outputs, argnums=every, has_aux=True)(*selected)
        return values + tuple(p for row in partials for p in row)


@dataclasses.dataclass(frozen=True)
class _Job:
    """A core with how its outputs leave the island."""

    core: Any
    rounding: tuple[Rounding, ...]
    dtype: Any
    chunk: int | None
    differentiable: bool
    quick: _devices.Quick = False


def split_shape(leaf: Any, core_ndim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The axes of a batch, and those of one evaluation (which may lack the first ones)."""
    shape = np.shape(leaf)
    cut = max(len(shape) - core_ndim, 0)
    return shape[:cut], shape[cut:]


def _batch_shape(leaves: Sequence[Any], core_ndims: Sequence[int]) -> tuple[int, ...]:
    shapes = (split_shape(x, n)[0] for x, n in zip(leaves, core_ndims, strict=True))
    return _checks.common_shape(shapes)


def _map_in_chunks(function, arrays, size: int, chunk: int) -> tuple[jax.Array, ...]:
    """One compiled body over equal chunks; the last is padded with copies of the last element."""
    if chunk == 1:  # no batch: a batch goes both ways at every branch
        return jax.lax.map(function, arrays)
    blocks = -(-size // chunk)
    more = blocks * chunk - size
    padded = [jnp.concatenate([x, jnp.broadcast_to(x[-1:], (more, *x.shape[1:]))]) for x in arrays]
    split = [x.reshape((blocks, chunk, *x.shape[1:])) for x in padded]
    outputs = jax.lax.map(jax.vmap(function), split)
    return tuple(out.reshape((blocks * chunk, *out.shape[2:]))[:size] for out in outputs)


def _compute(job: _Job, leaves: Sequence[Any]) -> tuple[jax.Array, ...]:
    core = job.core
    leaves = [_special_subnormal.widen(leaf) for leaf in leaves]
    shapes = [split_shape(x, n) for x, n in zip(leaves, core.core_ndims, strict=True)]
    batch = _batch_shape(leaves, core.core_ndims)
    if batch == ():
        outputs = core(leaves)
    else:
        size = math.prod(batch)
        mapped = [math.prod(b) != 1 for b, _ in shapes]
        flat = [
            jnp.broadcast_to(x, batch + c).reshape((size, *c)) if m else x.reshape(c)
            for x, m, (_, c) in zip(leaves, mapped, shapes, strict=True)
        ]

        def at(moving):
            source = iter(moving)
            return core([next(source) if m else x for x, m in zip(flat, mapped, strict=True)])

        moving = [x for x, m in zip(flat, mapped, strict=True) if m]
        if size == 0:
            shapes_out = jax.eval_shape(core, [jnp.zeros(c) for _, c in shapes])
            outputs = tuple(jnp.zeros((0, *out.shape)) for out in shapes_out)
        elif not moving:  # a batch of size one
            outputs = jax.vmap(core, axis_size=size)(
                [jnp.broadcast_to(x, (size, *x.shape)) for x in flat]
            )
        elif job.chunk is not None and size > job.chunk:
            outputs = _map_in_chunks(at, moving, size, job.chunk)
        else:
            outputs = jax.vmap(at)(moving)
        outputs = tuple(out.reshape(batch + out.shape[1:]) for out in outputs)
    modes = job.rounding + ("nearest",) * (len(outputs) - len(job.rounding))
    return tuple(rounded(out, mode, job.dtype) for out, mode in zip(outputs, modes, strict=True))


@functools.lru_cache(maxsize=512)
def _compiled(job: _Job) -> _devices.Program:
    return _devices.Program(functools.partial(_compute, job), job.quick, job.core.core_ndims)


def _run(job: _Job, leaves: Sequence[Any]) -> tuple[jax.Array, ...]:
    """Run the job on concrete leaves, by the program that all calls with such leaves share."""
    with jax.enable_x64(True):
        return _compiled(job)(leaves, _batch_shape(leaves, job.core.core_ndims))


class _Constant:
    """A concrete leaf, equal to another one if it has the same bytes (if few, and on the host)."""

    _MOST_BYTES = 2**16

    def __init__(self, leaf: Any) -> None:
        self.leaf = leaf
        self._key: Hashable = self
        small = leaf.nbytes <= self._MOST_BYTES
        if small and _devices.is_on_host(leaf):
            host = np.asarray(leaf)
            kind = getattr(leaf, "aval", None)  # of a JAX array, with whether its type is weak
            self._key = (kind, host.dtype, host.shape, host.tobytes())

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Constant) or self._key is self or other._key is other:
            return self is other
        return self._key == other._key

    def __hash__(self) -> int:
        return id(self) if self._key is self else hash(self._key)


@functools.lru_cache(maxsize=256)
def _embedded(job: _Job, constants: tuple[_Constant | None, ...]) -> Callable[..., Any]:
    """The job as a program of the traced leaves (None): calls within a program share its trace.

    It keeps its constants to itself: a batched lax.cond batches loose ones.
    """

    def program(*arrays):
        source = iter(arrays)
        return _compute(job, [next(source) if c is None else c.leaf for c in constants])

    return jax.jit(program)


def _dispatch(job: _Job, leaves: Sequence[Any]) -> tuple[jax.Array, ...]:
    """Run the job on concrete leaves, or trace it as one custom-JVP call that batches itself."""
    traced = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.core.Tracer)]
    if not traced:
        return _run(job, leaves)

    def merge(arrays):
        full = list(leaves)
        for index, value in zip(traced, arrays, strict=True):
            full[index] = _exact(value)  # (JAX hands on Python's numbers as they are)
        return full

    known = tuple(None if i in traced else _Constant(x) for i, x in enumerate(leaves))
    program = _embedded(job, known)

    @jax.custom_batching.custom_vmap
    def compute(*arrays):
        with jax.enable_x64(True):
            return program(*arrays)

    @compute.def_vmap
    def _batch(size, batched, *arrays):
        core_ndims = job.core.core_ndims
        ranks = [np.ndim(leaf) - n for leaf, n in zip(leaves, core_ndims, strict=True)]
        for index, new, array in zip(traced, batched, arrays, strict=True):
            ranks[index] = np.ndim(array) - core_ndims[index] - new
        # The new axis goes before all others, where broadcasting keeps it.
        arrays = [
            x.reshape((size,) + (1,) * (max(ranks) - ranks[i]) + x.shape[1:]) if new else x
            for i, new, x in zip(traced, batched, arrays, strict=True)
        ]
        if any(isinstance(x, jax.core.Tracer) for x in arrays):
            outputs = compute(*arrays)
        else:
            outputs = _run(job, merge(arrays))
        return outputs, (True,) * len(outputs)

    @jax.custom_jvp
    def call(*arrays):
        return compute(*arrays)

    @functools.partial(call.defjvp, symbolic_zeros=True)
    def _rule(primals, tangents):
        live = [
            (index, tangent)
            for index, tangent in zip(traced, tangents, strict=True)
            if not isinstance(tangent, SymbolicZero) and _is_real(tangent)
        ]
        if not live:
            values = _dispatch(job, merge(primals))
            return values, tuple(jnp.zeros(v.shape, v.dtype) for v in values)
        if not job.differentiable:
            raise TypeError(f"{job.core.function.__name__} is not differentiable")
        partials_job = dataclasses.replace(
            job, core=_WithPartials(job.core, tuple(index for index, _ in live))
        )
        results = _dispatch(partials_job, merge(primals))
        count = len(results) // (1 + len(live))
        full = merge(primals)
        batch = _batch_shape(full, job.core.core_ndims)
        values, partials = results[:count], iter(results[count:])
        outputs = []
        for value in values:
            total = jnp.zeros(value.shape, value.dtype)
            for index, tangent in live:
                partial = next(partials)
                _, inner = split_shape(full[index], job.core.core_ndims[index])
                # (batch, 1 for each axis of one output, the axes of one input)
                ones = (1,) * (value.ndim - len(batch))
                tangent = jnp.broadcast_to(jnp.asarray(tangent, value.dtype), (*batch, *inner))
                tangent = tangent.reshape((*batch, *ones, *inner))
                axes = tuple(range(partial.ndim - len(inner), partial.ndim))
                total = total + jnp.sum(partial * tangent, axis=axes)
            outputs.append(total)
        return values, tuple(outputs)

    return call(*(leaves[i] for i in traced))


def _is_real(tangent: Any) -> bool:
    return isinstance(tangent, float) or jnp.issubdtype(tangent.dtype, jnp.inexact)


def _exact(leaf: Any) -> Any:
    """Keep JAX arrays as they are; Python and NumPy numbers become float64 without loss."""
    return leaf if isinstance(leaf, jax.Array) else np.asarray(leaf, np.float64)


def core_ranks(node: Any) -> tuple[int, ...]:
    """Trailing axes of every leaf that belong to one evaluation: a class may declare its fields'.

    A PyTree dataclass with `_core_ndims = {field: rank}` (a schedule of per-step values, say) has
    that many axes in the leaves of those fields, before what these declare themselves; all other
    leaves are scalars per evaluation.
    """
    return _ranks_of(jax.tree.structure(node))


@functools.lru_cache(maxsize=512)
def _ranks_of(structure: Any) -> tuple[int, ...]:
    def declares(x: Any) -> bool:
        return hasattr(type(x), "_core_ndims")

    def ranks(node: Any) -> list[int]:
        found: list[int] = []
        for leaf in jax.tree.leaves(node, is_leaf=declares):
            if not declares(leaf):
                found.append(0)
                continue
            for field in dataclasses.fields(leaf):
                if not field.metadata.get("static"):
                    rank = type(leaf)._core_ndims.get(field.name, 0)
                    found += [rank + own for own in ranks(getattr(leaf, field.name))]
        return found

    return tuple(ranks(jax.tree.unflatten(structure, [0.0] * structure.num_leaves)))


def batch_shape(node: Any) -> tuple[int, ...]:
    """The batch shape that the leaves of a PyTree broadcast to; () for one evaluation."""
    return _batch_shape(jax.tree.leaves(node), core_ranks(node))


def evaluate(
    function: Callable[..., Any],
    *args: Any,
    rounding: Rounding | tuple[Rounding, ...] = "nearest",
    chunk: int | None = None,
    differentiable: bool = True,
    quick: _devices.Quick = False,
    **options: Hashable,
) -> Any:
    """Evaluate a float64 scalar function elementwise over broadcast argument PyTrees.

    Args:
      function: a module-level function of scalars (or of arrays of fixed core rank) that returns
        a scalar or a tuple of scalars; it runs inside the x64 context and may use no primitive
        that fails to lower there (argmax, random, incomplete gamma or beta functions).
      *args: PyTrees of numbers and arrays; leaf batch shapes broadcast together (trailing axes
        that a class declares in `_core_ndims` apart).
      rounding: how each output goes to 32 bits: "up" for upper bounds, "down" for lower ones.
      chunk: evaluate at most this many batch elements at a time (bounds memory).
      differentiable: if False, taking a derivative raises TypeError instead of being wrong.
      quick: on a CPU the first concrete evaluations are compiled quickly and run slowly (see
        `_devices`): for functions that compile for seconds and run for milliseconds. "always":
        all are, less quickly, for those that compile for a minute and run for seconds.
      **options: static keyword arguments of the function.

    Returns:
      The outputs, with the broadcast batch shape, in float64 if the caller runs with x64 enabled
      and else in float32.
    """
    args = tuple(np.asarray(a, np.float64) if isinstance(a, list) else a for a in args)
    leaves, treedef = jax.tree.flatten(args)
    leaves = [_exact(leaf) for leaf in leaves]
    core = _Core(function, tuple(sorted(options.items())), treedef, core_ranks(args))
    dtype = jnp.dtype(jnp.float64 if jax.config.jax_enable_x64 else jnp.float32)
    single = isinstance(rounding, str)
    modes = (rounding,) if single else tuple(rounding)
    job = _Job(core, modes, dtype, chunk, differentiable, quick)
    outputs = _dispatch(job, leaves)
    return outputs[0] if single else outputs


@functools.lru_cache(maxsize=64)
def _sharded(job: _Job, mapped: tuple[bool, ...], mesh: jax.sharding.Mesh) -> Callable[..., Any]:
    rows, whole = jax.sharding.PartitionSpec(mesh.axis_names), jax.sharding.PartitionSpec()
    specs = [rows if m else whole for m in mapped]
    # shard_map, not sharded inputs to jit: a loop over a batch ends on each device by itself
    body = functools.partial(_compute, job)
    return jax.jit(
        jax.shard_map(body, mesh=mesh, in_specs=(specs,), out_specs=rows, check_vma=False)
    )


def row_program(
    function: Callable[..., Any],
    treedef: Any,
    mapped: tuple[bool, ...],
    mesh: jax.sharding.Mesh,
    rounding: tuple[Rounding, ...],
    **options: Hashable,
) -> Callable[[Sequence[Any]], tuple[jax.Array, ...]]:
    """A compiled `evaluate` of many rows, divided evenly among the devices of a mesh.

    Args:
      function: as for `evaluate`, of scalars.
      treedef: the structure of its argument tuple.
      mapped: which leaves of it have one value a row (a number of rows that the number of devices
        divides); the others are scalars.
      mesh: the devices; rows are divided over all its axes.
      rounding, **options: as for `evaluate`.

    Returns:
      A function from the leaves to the outputs, to be called inside `jax.enable_x64(True)`;
      outputs have the precision of the caller of `row_program`.
    """
    core = _Core(function, tuple(sorted(options.items())), treedef, (0,) * len(mapped))
    dtype = jnp.dtype(jnp.float64 if jax.config.jax_enable_x64 else jnp.float32)
    return _sharded(_Job(core, rounding, dtype, None, False), mapped, mesh)
