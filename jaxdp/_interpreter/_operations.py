"""JAX's operations as functions of NumPy arrays: makers of these from an equation of a program.

A maker returns None where it does not cover a case; JAX itself does that one. Semantics are those
of StableHLO (https://openxla.org/stablehlo/spec): conversions saturate, integers divide towards 0,
running operations go either way.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

_FEW = 2**14  # numbers that are copied rather than looked at

Function = Callable[..., Any] | None
Maker = Callable[[Any], Function]


def _dtype(equation: Any) -> Any:
    return equation.outvars[0].aval.dtype


def _identity(x: Any) -> Any:
    return x


# One number at a time


def _divide(equation: Any) -> Function:
    dtype = _dtype(equation)
    if np.issubdtype(dtype, np.inexact):
        return np.divide
    if np.issubdtype(dtype, np.unsignedinteger):
        return np.floor_divide
    return lambda x, y: np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))


def _integer_pow(equation: Any) -> Function:
    power = equation.params["y"]

    def run(x: Any) -> Any:
        out, square, left = None, x, abs(power)
        while left:
            if left % 2:
                out = square if out is None else out * square
            left //= 2
            square = square * square if left else square
        out = np.ones_like(x) if out is None else out
        return 1.0 / out if power < 0 else out

    return run


def _round(equation: Any) -> Function:
    if int(equation.params["rounding_method"]) == 1:  # to even
        return np.rint
    return lambda x: np.copysign(np.floor(np.abs(x) + 0.5), x)


def _reduce_precision(equation: Any) -> Function:
    single, double = np.finfo(np.float32), np.finfo(np.float64)
    exponent, mantissa = (equation.params[f"{name}_bits"] for name in ("exponent", "mantissa"))
    if _dtype(equation) == np.float64 and exponent == double.nexp:
        return functools.partial(_head, 2.0 ** (double.nmant - mantissa) + 1.0)
    if (exponent, mantissa) != (single.nexp, single.nmant) or _dtype(equation) != np.float64:
        return None

    def run(x: Any) -> Any:
        with np.errstate(over="ignore", under="ignore"):
            narrow = np.asarray(x).astype(np.float32).astype(np.float64)
        return np.where(np.abs(x) < single.tiny, np.copysign(0.0, x), narrow)

    return run


def _head(factor: float, x: Any) -> Any:
    """x with fewer bits (Dekker 1971), 2^k + 1 times less than the largest number."""
    more = factor * x
    return more - (more - x)


def _logistic(x: Any) -> Any:
    return 1.0 / (1.0 + np.exp(-x))


def _reciprocal_root(x: Any) -> Any:
    return 1.0 / np.sqrt(x)


def _select(equation: Any) -> Function:
    which = equation.invars[0].aval
    if which.shape == ():
        return lambda which, *cases: cases[int(which)]
    if which.dtype == np.bool_:
        return lambda which, no, yes: np.where(which, yes, no)
    return lambda which, *cases: np.choose(which, cases)


def _clamp(low: Any, x: Any, high: Any) -> Any:
    return np.minimum(np.maximum(x, low), high)


def _complex(x: Any, y: Any) -> Any:
    # (A number may stand for an array of it.)
    shape = np.broadcast_shapes(np.shape(x), np.shape(y))
    out = np.empty(shape, np.result_type(x, np.complex64))
    out.real, out.imag = x, y
    return out


def _convert(equation: Any) -> Function:
    dtype = np.dtype(equation.params["new_dtype"])
    before = np.dtype(equation.invars[0].aval.dtype)
    if before == dtype:
        return _identity
    if np.issubdtype(before, np.complexfloating) and not np.issubdtype(dtype, np.complexfloating):
        return lambda x: x.real.astype(dtype)  # (NumPy would warn of that)
    if not (np.issubdtype(before, np.floating) and np.issubdtype(dtype, np.integer)):
        return lambda x: x.astype(dtype)
    limits = np.iinfo(dtype)
    low, high = float(limits.min), float(limits.max)

    def saturate(x: Any) -> Any:
        inside = (x > low) & (x < high)
        found = np.where(inside, x, 0.0).astype(dtype)
        return np.where(x >= high, limits.max, np.where(x <= low, limits.min, found)).astype(dtype)

    return saturate


def _bitcast(equation: Any) -> Function:
    dtype = np.dtype(equation.params["new_dtype"])
    if dtype.itemsize != np.dtype(equation.invars[0].aval.dtype).itemsize:
        return None
    return lambda x: np.ascontiguousarray(x).view(dtype).reshape(np.shape(x))[()]


def _in_total_order(compare: Callable[..., Any], equation: Any) -> Function:
    """Of -nan < -inf < ... < -0 < 0 < ... < inf < nan."""
    dtype = np.dtype(equation.invars[0].aval.dtype)
    if not np.issubdtype(dtype, np.floating) or dtype.itemsize not in (4, 8):
        return compare if np.issubdtype(dtype, np.integer) else None
    bits = np.dtype(f"int{8 * dtype.itemsize}")
    most = np.iinfo(bits).max

    def key(x: Any) -> Any:
        number = np.ascontiguousarray(x).view(bits).reshape(np.shape(x))
        return np.where(number < 0, number ^ most, number)

    return lambda x, y: compare(key(x), key(y))


# Shapes


def _broadcast(equation: Any) -> Function:
    shape, places = equation.params["shape"], equation.params["broadcast_dimensions"]
    if len(equation.invars) > 1:
        return None
    if not shape:
        return _identity
    wide = [1] * len(shape)
    for axis, size in zip(places, equation.invars[0].aval.shape, strict=True):
        wide[axis] = size
    wide, dtype = tuple(wide), _dtype(equation)
    if wide == shape:
        return lambda x: np.reshape(x, shape)
    if math.prod(shape) > _FEW:
        return lambda x: np.broadcast_to(np.reshape(x, wide), shape)

    def copied(x: Any) -> Any:  # (which takes a fraction of the time in which a view is made)
        out = np.empty(shape, dtype)
        out[...] = np.reshape(x, wide) if places else x
        return out

    return copied


def _reshape(equation: Any) -> Function:
    shape = equation.outvars[0].aval.shape
    return lambda x: np.reshape(x, shape)[()]


def _concatenate(equation: Any) -> Function:
    axis = equation.params["dimension"]
    return lambda *xs: np.concatenate(xs, axis=axis)


def _stack(equation: Any) -> Function:
    axis = equation.params["axis"]
    return lambda *xs: np.stack(xs, axis=axis)


def _unstack(equation: Any) -> Function:
    axis = equation.params["axis"]
    one = len(equation.outvars) == 1
    return lambda x: np.moveaxis(x, axis, 0)[0] if one else np.moveaxis(x, axis, 0)


def _split(equation: Any) -> Function:
    axis, places = equation.params["axis"], np.cumsum(equation.params["sizes"])[:-1]
    return lambda x: np.split(x, places, axis=axis) if len(places) else x


def _iota(equation: Any) -> Function:
    shape, axis = equation.params["shape"], equation.params["dimension"]
    if equation.invars:
        return None
    along = [1] * len(shape)
    along[axis] = -1
    numbers = np.broadcast_to(np.arange(shape[axis], dtype=_dtype(equation)).reshape(along), shape)
    return lambda: numbers


def _transpose(equation: Any) -> Function:
    order = equation.params["permutation"]
    return lambda x: np.transpose(x, order)


def _rev(equation: Any) -> Function:
    axes = equation.params["dimensions"]
    return lambda x: np.flip(x, axes)


# Many numbers to one, or in a row


def _reduce(function: Callable[..., Any], typed: bool = False) -> Maker:
    def make(equation: Any) -> Function:
        axes, dtype = tuple(equation.params["axes"]), _dtype(equation)
        if typed:  # (NumPy adds small integers up as large ones)
            return lambda x: function(x, axis=axes, dtype=dtype)
        return lambda x: function(x, axis=axes)

    return make


def _argument(function: Callable[..., Any]) -> Maker:
    def make(equation: Any) -> Function:
        (axis,), dtype = equation.params["axes"], equation.params["index_dtype"]
        return lambda x: function(x, axis=axis).astype(dtype)

    return make


def _running(function: Any) -> Maker:
    def make(equation: Any) -> Function:
        axis, dtype, back = equation.params["axis"], _dtype(equation), equation.params["reverse"]

        def run(x: Any) -> Any:
            found = function.accumulate(np.flip(x, axis) if back else x, axis=axis, dtype=dtype)
            return np.flip(found, axis) if back else found

        return run

    return make


def _dot(equation: Any) -> Function:
    (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
    x_shape, y_shape = (v.aval.shape for v in equation.invars)
    left_free = [i for i in range(len(x_shape)) if i not in (*left, *left_batch)]
    right_free = [i for i in range(len(y_shape)) if i not in (*right, *right_batch)]
    x_order, y_order = (*left_batch, *left_free, *left), (*right_batch, *right, *right_free)
    batch = [x_shape[i] for i in left_batch]
    inner = math.prod(x_shape[i] for i in left)
    rows = math.prod(x_shape[i] for i in left_free)
    columns = math.prod(y_shape[i] for i in right_free)
    shape, dtype = equation.outvars[0].aval.shape, _dtype(equation)

    def run(x: Any, y: Any) -> Any:
        x = np.transpose(x, x_order).reshape(*batch, rows, inner)
        y = np.transpose(y, y_order).reshape(*batch, inner, columns)
        return np.matmul(x, y).reshape(shape).astype(dtype, copy=False)[()]

    return run


_TRANSFORMS = {
    "FFT": np.fft.fft, "IFFT": np.fft.ifft, "RFFT": np.fft.rfft, "IRFFT": np.fft.irfft
}  # fmt: skip


def _fft(equation: Any) -> Function:
    kind, lengths = equation.params["fft_type"], equation.params["fft_lengths"]
    name = str(getattr(kind, "name", kind)).upper()
    if len(lengths) != 1 or name not in _TRANSFORMS:
        return None
    function, dtype = _TRANSFORMS[name], _dtype(equation)
    return lambda x: function(x, lengths[0]).astype(dtype, copy=False)


def _sort(equation: Any) -> Function:
    axis, keys = equation.params["dimension"], equation.params["num_keys"]

    def run(*xs: Any) -> Any:
        if len(xs) == 1:
            return np.sort(xs[0], axis=axis, kind="stable")
        order = np.lexsort(xs[:keys][::-1], axis=axis)
        return [np.take_along_axis(x, order, axis=axis) for x in xs]

    return run


_PLAIN: dict[str, Callable[..., Any]] = {
    "abs": np.abs, "acos": np.arccos, "acosh": np.arccosh, "add": np.add, "add_any": np.add,
    "and": np.bitwise_and, "asin": np.arcsin, "asinh": np.arcsinh, "atan": np.arctan,
    "atan2": np.arctan2, "atanh": np.arctanh, "cbrt": np.cbrt, "ceil": np.ceil, "clamp": _clamp,
    "complex": _complex, "copy": _identity, "copy_p": _identity, "cos": np.cos, "cosh": np.cosh,
    "eq": np.equal, "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "floor": np.floor,
    "ge": np.greater_equal, "gt": np.greater, "imag": np.imag, "is_finite": np.isfinite,
    "le": np.less_equal, "log": np.log, "log1p": np.log1p, "logistic": _logistic, "lt": np.less,
    "max": np.maximum, "min": np.minimum, "mul": np.multiply, "ne": np.not_equal,
    "neg": np.negative, "nextafter": np.nextafter, "not": np.invert, "or": np.bitwise_or,
    "pow": np.power, "real": np.real, "rem": np.fmod, "rsqrt": _reciprocal_root,
    "shift_left": np.left_shift, "shift_right_arithmetic": np.right_shift,
    "sign": np.sign, "sin": np.sin, "sinh": np.sinh, "sqrt": np.sqrt, "square": np.square,
    "stop_gradient": _identity, "sub": np.subtract, "tan": np.tan, "tanh": np.tanh,
    "xor": np.bitwise_xor,
}  # fmt: skip

MAKERS: dict[str, Maker] = {
    **{name: lambda _, function=function: function for name, function in _PLAIN.items()},
    "argmax": _argument(np.argmax),
    "argmin": _argument(np.argmin),
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "concatenate": _concatenate,
    "convert_element_type": _convert,
    "cumlogsumexp": _running(np.logaddexp),
    "cummax": _running(np.maximum),
    "cummin": _running(np.minimum),
    "cumprod": _running(np.multiply),
    "cumsum": _running(np.add),
    "div": _divide,
    "dot_general": _dot,
    "expand_dims": _reshape,
    "fft": _fft,
    "integer_pow": _integer_pow,
    "iota": _iota,
    "le_to": functools.partial(_in_total_order, np.less_equal),
    "lt_to": functools.partial(_in_total_order, np.less),
    "optimization_barrier": lambda e: _identity if len(e.invars) == 1 else lambda *xs: xs,
    "reduce_and": _reduce(np.all),
    "reduce_max": _reduce(np.max),
    "reduce_min": _reduce(np.min),
    "reduce_or": _reduce(np.any),
    "reduce_precision": _reduce_precision,
    "reduce_prod": _reduce(np.prod, typed=True),
    "reduce_sum": _reduce(np.sum, typed=True),
    "reshape": _reshape,
    "rev": _rev,
    "round": _round,
    "select_n": _select,
    "sort": _sort,
    "split": _split,
    "squeeze": _reshape,
    "stack": _stack,
    "transpose": _transpose,
    "unstack": _unstack,
}
