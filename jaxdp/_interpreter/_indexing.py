"""Operations that read, or write, at places: slices, padding, gathers and scatters."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxdp._interpreter._operations import Function, Maker


def _slice(equation: Any) -> Function:
    p = equation.params
    steps = p["strides"] or (1,) * len(p["start_indices"])
    where = tuple(map(slice, p["start_indices"], p["limit_indices"], steps))
    return lambda x: x[where]


def _pad(equation: Any) -> Function:
    config = equation.params["padding_config"]
    if any(before < 0 or after < 0 or between for before, after, between in config):
        return None
    shape = equation.outvars[0].aval.shape
    sizes = equation.invars[0].aval.shape
    inside = tuple(slice(b, b + n) for (b, *_), n in zip(config, sizes, strict=True))

    def run(x: Any, value: Any) -> Any:
        out = np.full(shape, value, x.dtype)
        out[inside] = x
        return out

    return run


def _dynamic_slice(equation: Any) -> Function:
    sizes = equation.params["slice_sizes"]

    def run(x: Any, *starts: Any) -> Any:
        return x[_window(x.shape, sizes, starts)]

    return run


def _dynamic_update_slice(equation: Any) -> Function:
    def run(x: Any, update: Any, *starts: Any) -> Any:
        out = np.array(x)
        out[_window(x.shape, update.shape, starts)] = update
        return out

    return run


def _window(shape: Any, sizes: Any, starts: Any) -> tuple[slice, ...]:
    begins = [min(max(int(s), 0), n - k) for s, n, k in zip(starts, shape, sizes, strict=True)]
    return tuple(slice(b, b + k) for b, k in zip(begins, sizes, strict=True))


def _gather(equation: Any) -> Function:
    p = equation.params
    numbers, sizes = p["dimension_numbers"], p["slice_sizes"]
    mode, fill = _mode(p["mode"]), p.get("fill_value")
    shape, dtype = equation.outvars[0].aval.shape, equation.outvars[0].aval.dtype
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    window = [d for d in range(len(sizes)) if d not in dropped]
    batch = [d for d in range(len(shape)) if d not in numbers.offset_dims]
    order = np.argsort([*batch, *numbers.offset_dims])
    if mode == "fill" and fill is None:
        if not np.issubdtype(dtype, np.inexact):
            return None
        fill = np.nan
    batching = numbers.operand_batching_dims, numbers.start_indices_batching_dims
    places = numbers.start_index_map

    def run(x: Any, starts: Any) -> Any:
        index, inside = _places(x.shape, starts, sizes, window, places, batching)
        got = x[index]
        if mode == "fill":
            got = np.where(inside.reshape(inside.shape + (1,) * len(window)), got, fill)
        return np.transpose(got, order).astype(dtype, copy=False)

    return run


def _scatter(function: Any) -> Maker:
    def make(equation: Any) -> Function:
        p = equation.params
        numbers, mode = p["dimension_numbers"], _mode(p["mode"])
        dropped = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
        shapes = [v.aval.shape for v in equation.invars]
        window = [d for d in range(len(shapes[0])) if d not in dropped]
        batch = [d for d in range(len(shapes[2])) if d not in numbers.update_window_dims]
        sizes = [1] * len(shapes[0])
        for d, axis in zip(window, numbers.update_window_dims, strict=True):
            sizes[d] = shapes[2][axis]
        order = [*batch, *numbers.update_window_dims]
        batching = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
        places = numbers.scatter_dims_to_operand_dims

        def run(x: Any, starts: Any, updates: Any) -> Any:
            index, inside = _places(x.shape, starts, sizes, window, places, batching)
            updates = np.transpose(updates, order)
            if mode == "fill":
                index, updates = tuple(i[inside] for i in index), updates[inside]
            out = np.array(x)
            if function is None:
                out[index] = updates
            else:
                function.at(out, index, updates)
            return out

        return run

    return make


def _mode(mode: Any) -> str:
    """What becomes of a window that is not inside: "clip", moved there; or "fill", left out."""
    name = str(getattr(mode, "name", mode)).upper()
    return "clip" if name in ("CLIP", "PROMISE_IN_BOUNDS") else "fill"


def _places(
    shape: tuple[int, ...],
    starts: Any,
    sizes: Sequence[int],
    window: list[int],
    start_map: Sequence[int],
    batching: tuple[Sequence[int], Sequence[int]],
) -> tuple[tuple[Any, ...], Any]:
    """Indices of windows into an array, along the axes of starts and then those of the window.

    Args:
      shape: of the array.
      starts: where windows begin, a vector each along the last axis.
      sizes: of a window, along every axis of the array.
      window: the axes of the array that a window keeps.
      start_map: the axes that starts are along.
      batching: axes of the array, and of starts, that go together.

    Returns:
      The indices, and which windows lie inside.
    """
    starts = np.asarray(starts).astype(np.int64)
    number, extra = starts.ndim - 1, len(window)
    inside = np.ones(starts.shape[:-1], bool)
    begins: dict[int, Any] = {d: np.zeros((1,) * number, np.int64) for d in range(len(shape))}
    for d, axis in zip(*batching, strict=True):
        begins[d] = np.arange(shape[d]).reshape([-1 if i == axis else 1 for i in range(number)])
    for k, d in enumerate(start_map):
        begin, most = starts[..., k], shape[d] - sizes[d]
        inside &= (begin >= 0) & (begin <= most)
        begins[d] = np.clip(begin, 0, most)
    index = []
    for d, begin in begins.items():
        at = begin.reshape(begin.shape + (1,) * extra)
        if d in window:
            along = [-1 if i == window.index(d) else 1 for i in range(extra)]
            at = at + np.arange(sizes[d]).reshape(along)
        index.append(np.broadcast_to(at, inside.shape + tuple(sizes[e] for e in window)))
    return tuple(index), inside


MAKERS: dict[str, Maker] = {
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "gather": _gather,
    "pad": _pad,
    "scatter": _scatter(None),
    "scatter-add": _scatter(np.add),
    "scatter-max": _scatter(np.maximum),
    "scatter-min": _scatter(np.minimum),
    "slice": _slice,
}
