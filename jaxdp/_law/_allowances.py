"""What rounding may cost: every certified error term of the engine, as a function of the sizes.

Model. u = 2^-53. Every operation of float64 is off by a relative u at most; the library's exp, log,
expm1 and log1p by 4 u of their value (2 u were seen). A compiler may add in any order. Derivations
are to first order in u and then doubled: (1 + u)^n - 1 <= 2 n u for n u <= 1/2, which holds for
every size that is allowed. Magnitudes that are passed may have either sign.

A *relative* allowance r says that the true value lies within a factor 1 +- r of the computed one.
In logarithms the same number is an *absolute* allowance.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp._law import _places

UNIT = 2.0**-53  # half a unit in the last place of 1
# Exponentials whose argument is further than this below the largest underflow.
_RANGE = 745
# A bound by Chernoff's inequality is taken twice over: its exponent, a number of magnitude below
# 2^46, is off by `exponent` of it, which is below log 2.
CHERNOFF = 2.0
# Relative, of the recursion of `_average_grid`: a gap is a running sum of terms m width that differ
# from those of the curve above by a bounded factor, each off by 16 u: some hundred u of the curve.
RECURSION = 2.0**-38
RUNNING_BLOCK = 32  # numbers that `running` adds at a time


def _size(x: ArrayLike) -> jax.Array:
    """|x|, and 0 for what is infinite: there no digit is lost."""
    x = jnp.asarray(x, jnp.float64)
    return jax.lax.stop_gradient(jnp.where(jnp.isfinite(x), jnp.abs(x), 0.0))


def pairwise(values: jax.Array) -> jax.Array:
    """The sum over the last axis by halves: off by `sums(log2 N)`, whatever the compiler does."""
    size = values.shape[-1]
    padding = (1 << (size - 1).bit_length()) - size
    values = jnp.concatenate([values, jnp.zeros((*values.shape[:-1], padding))], axis=-1)
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def sums(number: int, operations: int = 8) -> float:
    """Relative, of a sum of `number` terms >= 0, each of which took so many `operations`.

    In any order a term goes through at most number - 1 additions, each a factor 1 +- u (Higham
    2002, section 4.2); all terms are positive: the largest product of factors bounds the sum.
    """
    return 2.0 * UNIT * (number + operations)


def pairwise_sums(number: int) -> float:
    """Relative, of `pairwise`: log2 additions."""
    return sums(max(number - 1, 1).bit_length())


def tilted_sums(number: int) -> float:
    """Relative, of sum w_k e^{-theta y_k} f(y_k), f of some 16 operations.

    theta y_k is rounded once, y_k itself is accounted for as a position: what is not negligible has
    |theta y_k| <= 745, so that the exponential is off by 745 u.
    """
    return sums(number, _RANGE + 16)


def running_sums(number: int) -> float:
    """Relative, of running sums of running sums of the same terms, and of their differences summed.

    Each running sum takes at most `number` additions. Its differences, taken and summed again (the
    slopes of a curve and the masses between them), telescope to within as many roundings twice.
    """
    return 2.0 * UNIT * (6 * number + _RANGE + 16)


def running(values: jax.Array, reverse: bool = False) -> jax.Array:
    """Running sums of numbers >= 0 (those beyond 1e290 count as that), by blocks.

    A block is multiplied by a matrix of zeros and ones, which adds nothing but its numbers, in an
    order that is the compiler's: see `running_additions`. That takes few passes over memory, and is
    quick to compile.
    """
    # (So far below the largest double that no sum is infinite, and meets a 0 of the matrix.)
    return _by_blocks(jnp.minimum(values, 1e290), None, reverse)


def fading(values: jax.Array, rate: jax.Array) -> jax.Array:
    """sum_{j >= k} e^{-rate (j - k)} values_j for every k, of numbers >= 0, by blocks as well.

    A product of powers instead of one power, of as many roundings: e^x is off by 4 u, one for each
    level of blocks, and x by u of itself, which is below 745 for what does not underflow.
    """
    return _by_blocks(jnp.minimum(values, 1e290), rate, True)


def _by_blocks(values: jax.Array, rate: jax.Array | None, reverse: bool) -> jax.Array:
    size, block = values.shape[0], RUNNING_BLOCK
    before, share = jnp.asarray(np.tri(block)), 1.0
    if rate is not None:
        between = np.arange(block)[:, None] - np.arange(block)
        before *= jnp.exp(-rate * np.maximum(between, 0))
        share = jnp.exp(-rate * np.arange(block, 0, -1))  # of the next block's sum, at each place
    blocks = jnp.pad(values, (0, -size % block)).reshape(-1, block)
    inside = blocks @ (before if reverse else before.T)
    if blocks.shape[0] > 1:
        rate = None if rate is None else rate * block
        others = _by_blocks(inside[:, 0 if reverse else -1], rate, reverse)
        none = jnp.zeros((1,), values.dtype)
        others = [others[1:], none] if reverse else [none, others[:-1]]
        inside += jnp.concatenate(others)[:, None] * share
    return inside.reshape(-1)[:size]


def running_additions(number: int) -> int:
    """How many additions a sum of `running` goes through at most.

    In each level's block (Higham 2002, section 4.2, in any order), and one that joins the levels.
    """
    levels, reached = 1, RUNNING_BLOCK
    while reached < number:
        levels, reached = levels + 1, reached * RUNNING_BLOCK
    return levels * RUNNING_BLOCK


def cell_sums(number: int) -> float:
    """Relative, of running sums of running sums over cells, and the operations in every cell.

    (This is paid at every step, so that the order of additions counts.) Masses in linear scale have
    exponents below 600, differences of numbers below 2^12: 2^-38 = 2^15 u holds four roundings of
    these, and a few hundred u for what is done in a cell. A sum of sums is off by u for either's
    additions, doubled, and so are the masses, which are differences of such sums.
    """
    return 2.0**-38 + 8.0 * UNIT * running_additions(number)


def exponent(*magnitudes: ArrayLike) -> jax.Array:
    """Absolute, of a sum of up to eight numbers of such magnitudes (and 1).

    Forming each takes four roundings at most (a product, a logarithm), adding them seven, each u of
    a partial sum, which is at most the sum of the magnitudes: 11 u, and room.
    """
    return 32.0 * UNIT * sum((_size(m) for m in magnitudes), jnp.float64(1.0))


def log_sum(number: int, top: ArrayLike) -> jax.Array:
    """Absolute, of log sum e^{x_j} of `number` terms, the largest x_j being `top`.

    What counts has |x_j| <= |top| + 745; x_j is off by `exponent` of that, as is x_j - top.
    """
    return exponent(top, _RANGE) + sums(number, 16)


def prefactor(log_scale: ArrayLike, moved: ArrayLike) -> jax.Array:
    """Absolute, of sum n K - theta eps, with the logarithms next to it."""
    return exponent(log_scale, moved, 3.0)


def lattice(start: ArrayLike, spacing: ArrayLike, number: int) -> jax.Array:
    """Absolute, of the points start + spacing k, k < number: a product and a sum, u of each."""
    return 4.0 * UNIT * (_size(start) + _size(spacing) * number)


def positions(count: ArrayLike, span: ArrayLike) -> jax.Array:
    """Absolute, of a loss that is a sum of `count` points of a lattice of that span.

    A point is off by 2 u of the span, brought to the coarse lattice by another 2 u, and is read by
    another 2 u: 8 u hold them.
    """
    return 8.0 * UNIT * count * span


def moved_up(blocks: ArrayLike, window: ArrayLike) -> jax.Array:
    """Absolute, of a loss that `_jumps.coarsen` raised: the law of a block, and up to three jumps.

    Each by two hairs of the window. (The blocks, and what is left over of one.)
    """
    return 2.0 * _places.HAIR * 4.0 * (_size(blocks) + 2.0) * _size(window)


def masses(log_q: ArrayLike, log_p: ArrayLike) -> jax.Array:
    """Relative, of the masses of a cell: the contract on `Term.masses`, and what is done with them.

    The contract is 2^-52 (16 + 4 |log q| + 4 |log p|), what a few units in the last place of the
    arguments of a normal tail cost; their exponentials and quotient take four more.
    """
    return 2.0 * UNIT * (20.0 + 4.0 * _size(log_q) + 4.0 * _size(log_p))


def failure(log_tau: ArrayLike, number: int = 1, side: int = 1) -> jax.Array:
    """Absolute, of log P{L = inf}: an expm1 of a sum of `number` terms n log1p(-tau_i).

    A step's own failure may be rounded up, and off by as much: by 2^-41, and by 2^-50 of its size.
    Bounds from below (side -1) take that off.
    """
    raised = 2.0**-40 + 2.0**-49 * _size(log_tau) if side < 0 else 0.0
    return exponent(log_tau, 1.0) + sums(number, 16) + raised


def largest_loss(largest: ArrayLike, steps: ArrayLike = 1.0) -> jax.Array:
    """Absolute, of the largest loss of so many steps.

    A step's own, the difference of two logarithms next to 0 or a formula in the parameters, is off
    by 8 u (1 + |loss|), and so many times that in the sum; adding takes u of the sum a term, where
    equal steps are one term: 128 u hold up to a hundred different ones.
    """
    return 16.0 * UNIT * _size(steps) + 128.0 * UNIT * _size(largest)


def nudge(ends: ArrayLike, centre: ArrayLike) -> jax.Array:
    """Absolute: by how much a lattice must move for an atom at an end to lie inside its cell.

    A term compares thresholds with its atoms to within 2^-44 of the loss (a thousand roundings: the
    inverse of sampling loses e^loss of them); a node at an end is a sum of multiples of the spacing
    that is off by 8 u of the distance from the centre, which is at most |ends| + |centre|.
    """
    return 2.0**-43 * _size(ends) + 16.0 * UNIT * _size(centre)


def ratio_nudge(ratio: ArrayLike) -> jax.Array:
    """Relative: the same of a ratio x = e^loss, whose logarithm is off by u (1 + |log x|)."""
    some = jnp.asarray(ratio, jnp.float64) > 0.0
    log_ratio = jnp.log(jnp.where(some, ratio, 1.0))
    return 2.0**-44 + 8.0 * UNIT * (1.0 + _size(log_ratio))


def ratios(steps: ArrayLike, reach: ArrayLike, largest: ArrayLike) -> jax.Array:
    """Absolute, of a sum of so many ratios, points of a linear lattice, that is at most `reach`.

    A threshold log x, off by u (1 + |log x|), moves x by x u (1 + |log x|), which increases with x:
    at most u (1 + |log largest|) of the largest, of 1 if that is more, and a relative u (1 + log
    largest) beyond. A point is off by 4 u of itself.
    """
    log_largest = jnp.log(jnp.maximum(largest, 1e-300))
    scale = _size(reach) + _size(steps) * jnp.minimum(_size(largest), 1.0)
    return 2.0 * UNIT * (8.0 + _size(log_largest)) * scale


def normalised_steps(steps: ArrayLike) -> jax.Array:
    """Relative, of the product of so many laws, tilted and of mass 1.

    A weight m e^{theta y - K} has an exponent whose parts are below 745 where it counts, rounded
    three times: 2240 u. Where the middle holds half the mass it takes up what the others' sum
    lacks: another 128 u of it. (K's own digits are `prefactor`'s.)
    """
    return 4096.0 * UNIT * _size(steps)


def power(log_mass: ArrayLike, steps: ArrayLike, number: int) -> jax.Array:
    """Relative, of (pairwise sum of `number` masses)^steps through its logarithm."""
    return (pairwise_sums(number) + 16.0 * UNIT * (1.0 + _size(log_mass))) * _size(steps)


def fourier(size: int, operations: int = 16) -> float:
    """r: a transform of weights of 1-norm 1 is off by at most r at every frequency.

    An output is a sum over the inputs, each multiplied along its path by log2 N twiddle factors and
    added as often: 5 u a stage (Higham 2002, section 24.1), so that 8 u also hold the additions of
    a sum by halves. `operations` is what the weights took, or a power of the transform takes.
    """
    return UNIT * (8 * (size.bit_length() - 1) + operations)
