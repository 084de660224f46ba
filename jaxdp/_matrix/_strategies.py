"""Strategy matrices C >= 0, lower triangular, and what accounting wants to know of them.

Bin j of b holds the steps j, j + b, j + 2b, ... and M_j is the sum of these columns of C. With
M = (M_0, ..., M_{b-1}) the Gram matrix G = M^T M (here for sigma = 1) decides privacy. Of it,

    largest[d] >= G_{i, i+d} >= least[d]        for all i, at each distance d = 0 .. b - 1.

A Toeplitz strategy with first column c has M_j[s] = h[s - j] with h_u = c_u + c_{u-b} + ..., thus
G_{i, i+d} = sum_{u < n-i-d} h_u h_{u+d}, which falls with i: correlations of h, in O(n log n).
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _checks, _structure

_UNIT = 2.0**-52


class Lags(NamedTuple):
    """Bounds on the entries of the Gram matrix at each distance, both (b,)."""

    largest: jax.Array
    least: jax.Array


class _Shown:
    """Strategies show themselves like mechanisms."""

    def __repr__(self) -> str:
        return _structure.describe(self)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Toeplitz(_Shown):
    """A lower triangular Toeplitz matrix; `column` (p,) holds its first p <= n entries c_0, ..."""

    column: Any

    _core_ndims: ClassVar = {"column": 1}

    def inside(self) -> jax.Array:
        return jnp.all(_checks.NON_NEGATIVE.contains(self.column)) & (self.column[0] > 0.0)

    def coefficients(self, num_steps: int) -> jax.Array:
        column = jnp.asarray(self.column)
        return jnp.concatenate([column, jnp.zeros(num_steps - column.shape[0], column.dtype)])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class BufferedToeplitz(_Shown):
    """c_0 = 1, c_k = sum_i output_scale_i buf_decay_i^{k-1} (BLT, Dvijotham et al. 2024)."""

    buf_decay: Any
    output_scale: Any

    _core_ndims: ClassVar = {"buf_decay": 1, "output_scale": 1}

    def inside(self) -> jax.Array:
        decay, scale = jnp.asarray(self.buf_decay), jnp.asarray(self.output_scale)
        return jnp.all(_checks.PROBABILITY.contains(decay) & _checks.NON_NEGATIVE.contains(scale))

    def coefficients(self, num_steps: int) -> jax.Array:
        decay = jnp.asarray(self.buf_decay)[:, None]
        some = decay > 0.0
        exponent = jnp.arange(num_steps - 1, dtype=decay.dtype)
        powers = jnp.exp(exponent * jnp.log(jnp.where(some, decay, 1.0)))
        powers = jnp.where(some, powers, (exponent == 0.0).astype(decay.dtype))
        tail = jnp.sum(jnp.asarray(self.output_scale)[:, None] * powers, axis=0)
        return jnp.concatenate([jnp.ones(1, tail.dtype), tail])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, repr=False, eq=False)
class Dense(_Shown):
    """Any lower triangular matrix, (n, n)."""

    matrix: Any

    _core_ndims: ClassVar = {"matrix": 2}

    def inside(self) -> jax.Array:
        upper = jnp.triu(jnp.asarray(self.matrix), 1)
        return jnp.all(_checks.NON_NEGATIVE.contains(self.matrix)) & jnp.all(upper == 0.0)


Strategy = Toeplitz | BufferedToeplitz | Dense


def parse(strategy: Any, num_steps: int | None) -> tuple[Strategy, int]:
    """The strategy as one of the three classes, and the number of steps; checked where known."""
    if isinstance(strategy, (Toeplitz, BufferedToeplitz, Dense)):
        parsed = strategy
    elif hasattr(strategy, "buf_decay") and hasattr(strategy, "output_scale"):
        parsed = BufferedToeplitz(strategy.buf_decay, strategy.output_scale)
    elif hasattr(strategy, "materialize"):
        if num_steps is None:
            raise ValueError("num_steps must be given with a strategy that materialises itself")
        strategy = np.asarray(strategy.materialize(num_steps))
        parsed = _from_array(strategy)
    else:
        parsed = _from_array(strategy)
    given: Any = strategy.matrix if isinstance(strategy, Dense) else strategy
    if isinstance(parsed, Dense) or np.ndim(given) > 1:
        size = int(np.shape(given)[-1])
        if num_steps not in (None, size):
            raise ValueError(f"num_steps must be {size}, the size of strategy, got {num_steps}")
        return parsed, size
    if num_steps is None:
        raise ValueError("num_steps must be given with a Toeplitz strategy")
    if isinstance(parsed, BufferedToeplitz):
        _checks.check("strategy.buf_decay", parsed.buf_decay, _checks.PROBABILITY)
        _checks.check("strategy.output_scale", parsed.output_scale, _checks.NON_NEGATIVE)
        return parsed, num_steps
    bands = int(np.shape(parsed.column)[-1])
    if bands > num_steps:
        raise ValueError(f"strategy must have at most num_steps = {num_steps} bands, got {bands}")
    return parsed, num_steps


def _from_array(strategy: Any) -> Toeplitz | Dense:
    array = _checks.array_of("strategy", strategy)
    if not hasattr(array, "ndim") or array.ndim < 1 or not array.shape[-1]:
        got = _checks.shown(strategy)
        raise ValueError(f"strategy must be a first column or a lower triangular matrix, got {got}")
    _checks.check("strategy", array, _checks.NON_NEGATIVE)
    known = _checks.concrete("strategy", array)
    if array.ndim == 1:
        return _toeplitz(array, known)
    if array.shape[-1] != array.shape[-2]:
        raise ValueError(f"strategy must be a square matrix, got shape {array.shape}")
    if known is not None and np.any(np.triu(known, 1)):
        raise ValueError("strategy must be lower triangular, got entries above the diagonal")
    if known is not None and known.ndim == 2 and _is_toeplitz(known):
        return _toeplitz(known[:, 0], known[:, 0])
    return Dense(array)


def _toeplitz(column: Any, known: np.ndarray | None) -> Toeplitz:
    """Without the zeros at the end, which are no bands."""
    if known is None:
        return Toeplitz(column)
    if not np.all(known[..., 0] > 0.0):
        raise ValueError(f"strategy must begin with an entry > 0, got {known[..., 0].min()}")
    used = np.flatnonzero(known.reshape(-1, known.shape[-1]).any(axis=0))
    return Toeplitz(column[..., : int(used[-1]) + 1])


def _is_toeplitz(matrix: np.ndarray) -> bool:
    return bool(np.all(matrix[1:, 1:] == matrix[:-1, :-1]))


def bands(strategy: Strategy) -> int | None:
    """How many entries the columns have, where that is part of the structure."""
    return int(np.shape(strategy.column)[-1]) if isinstance(strategy, Toeplitz) else None


def folded(column: jax.Array, num_bins: int) -> jax.Array:
    """h_u = c_u + c_{u-b} + c_{u-2b} + ..."""
    n = column.shape[0]
    rows = -(-n // num_bins)
    table = jnp.concatenate([column, jnp.zeros(rows * num_bins - n, column.dtype)])
    return jnp.cumsum(table.reshape(rows, num_bins), axis=0).reshape(-1)[:n]


def _fft_size(n: int, num_bins: int) -> int:
    return 1 << (n + num_bins - 1).bit_length()


def fft_error(size: int, x: jax.Array, y: jax.Array) -> jax.Array:
    """Bound on every entry of the correlation (or convolution) of x and y by FFT.

    An FFT errs by less than 4 log2(size) roundoffs relatively in the Euclidean norm (Higham 2002,
    Theorem 24.2, has 3 log2(size) for accurate twiddles), so does each of the three, and the norm
    of a correlation is at most |x|_1 |y|_2 (Young).
    """
    log_size = float(size.bit_length())
    norm = jnp.sum(jnp.abs(x)) * jnp.sqrt(jnp.sum(y * y))
    return jax.lax.stop_gradient(_UNIT * (12.0 * log_size + 32.0) * norm)


def _correlation(x: jax.Array, y: jax.Array, size: int, num_bins: int) -> jax.Array:
    """sum_u x_u y_{u+d}, d = 0 .. b - 1."""
    product = jnp.conj(jnp.fft.rfft(x, size)) * jnp.fft.rfft(y, size)
    return jnp.fft.irfft(product, size)[:num_bins]


def members(strategy: Strategy, num_steps: int, num_bins: int) -> jax.Array:
    """M, (n, b): of a Toeplitz strategy for few bins."""
    if not isinstance(strategy, Dense):
        h = folded(strategy.coefficients(num_steps), num_bins)
        shifted = [jnp.zeros_like(h).at[j:].set(h[: num_steps - j]) for j in range(num_bins)]
        return jnp.stack(shifted, axis=1)
    matrix = jnp.asarray(strategy.matrix)
    rows = -(-num_steps // num_bins)
    padding = jnp.zeros((num_steps, rows * num_bins - num_steps), matrix.dtype)
    return jnp.concatenate([matrix, padding], 1).reshape(num_steps, rows, num_bins).sum(axis=1)


def gram_of(strategy: Strategy, num_steps: int, num_bins: int) -> tuple[jax.Array, float]:
    """G, (b, b), and a bound on the relative error of its entries."""
    m = members(strategy, num_steps, num_bins)
    return m.T @ m, _UNIT * (num_steps + 2.0 * (num_steps // num_bins) + 16.0)


def lags(strategy: Strategy, num_steps: int, num_bins: int) -> Lags:
    """Bounds on the entries of the Gram matrix by their distance, rounding included."""
    n, b = num_steps, num_bins
    if isinstance(strategy, Dense):
        gram, relative = gram_of(strategy, n, b)
        rows, columns = np.indices((b, b))
        distance = np.abs(rows - columns)
        largest = jnp.zeros(b).at[distance].max(gram)
        least = jnp.full(b, jnp.inf).at[distance].min(gram)
        return Lags(largest * (1.0 + relative), least * (1.0 - relative))
    h = folded(strategy.coefficients(n), b)
    size = _fft_size(n, b)
    short = jnp.where(jnp.arange(n) <= n - b, h, 0.0)
    largest, least = _correlation(h, h, size, b), _correlation(short, h, size, b)
    error = fft_error(size, h, h)
    relative = _UNIT * (2.0 * (n // b) + 16.0)
    return Lags(
        (jnp.maximum(largest, 0.0) + error) * (1.0 + relative),
        jnp.maximum(least - error, 0.0) * (1.0 - relative),
    )


class Products(NamedTuple):
    """M a and M^T v, and a bound on the error of the entries of the latter relative to |v|."""

    forward: Any
    adjoint: Any
    error: jax.Array


def products(strategy: Strategy, num_steps: int, num_bins: int) -> Products:
    """What linear functionals of the release need."""
    n, b = num_steps, num_bins
    if isinstance(strategy, Dense):
        m = members(strategy, n, b)
        norm = jnp.max(jnp.sqrt(jnp.sum(m * m, axis=0)))
        return Products(lambda a: m @ a, lambda v: m.T @ v, _UNIT * (n + 16.0) * norm)
    h = folded(strategy.coefficients(n), b)
    size = _fft_size(n, b)

    def forward(a: jax.Array) -> jax.Array:
        return jnp.fft.irfft(jnp.fft.rfft(a, size) * jnp.fft.rfft(h, size), size)[:n]

    def adjoint(v: jax.Array) -> jax.Array:
        return _correlation(h, v, size, b)

    relative = _UNIT * (2.0 * (n // b) + 16.0)
    error = fft_error(size, h, jnp.ones(1)) + relative * jnp.sqrt(jnp.sum(h * h))
    return Products(forward, adjoint, error)
