"""By how much the law below is lowered between its nodes: the E of `_discretise`, made concave."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law import _running
from jaxdp._law._halves import count

_SWEEPS = 16
_STRIDES = 2 ** np.arange(8, 0, -1, dtype=np.int32)  # of the sweeps before those, from far to near


def relaxed(
    lowering: jax.Array,
    call: jax.Array,
    ratio: jax.Array,
    load: jax.Array,
    step: jax.Array,
    fixed: jax.Array,
) -> jax.Array:
    """Raise E where its second difference exceeds the mass (an obstacle problem, by sweeps).

    C_w - E is brought towards its convex minorant: no point above the chord of two others. Chords
    over many cells first: about an isolated atom E has to fall slowly.
    """
    inverse = jnp.where(step > 0.0, 1.0 / jnp.where(step > 0.0, step, 1.0), 0.0)
    none = jnp.zeros((1,), step.dtype)
    to_left, to_right = jnp.concatenate([none, inverse]), jnp.concatenate([inverse, none])
    free = (to_left > 0.0) & (to_right > 0.0) & ~fixed
    size, most = ratio.shape[0], int(_STRIDES[0])
    strides = jnp.asarray(_STRIDES)

    def chord(i: jax.Array, e: jax.Array) -> jax.Array:
        stride = strides[i]

        def beside(values: jax.Array) -> tuple[jax.Array, jax.Array]:
            padded = jnp.pad(values, most, mode="edge")
            return tuple(lax.dynamic_slice(padded, (most + s,), (size,)) for s in (-stride, stride))

        (x, z), (left, right) = beside(ratio), beside(e - call)
        wide = jnp.where(free, z - x, 1.0)
        line = left + (ratio - x) / wide * (right - left) + call
        # (No rounding of the sums may raise E: that would be mass where there is none.)
        rough = 2.0**-44 * (call + ratio / wide * jnp.abs(right - left))
        return jnp.where(free, jnp.maximum(e, line - rough), e)

    both = jnp.where(free, 1.0 / jnp.where(free, to_left + to_right, 1.0), 0.0)
    to_left, to_right, load = to_left * both, to_right * both, load * both

    def sweep(_, e: jax.Array) -> jax.Array:
        left, right = jnp.concatenate([none, e[:-1]]), jnp.concatenate([e[1:], none])
        return jnp.maximum(e, to_left * left + to_right * right - load)

    return lax.fori_loop(0, _SWEEPS, sweep, lax.fori_loop(0, _STRIDES.size, chord, lowering))


def bridged(begin: jax.Array, end: jax.Array, ratio: jax.Array, empty: jax.Array) -> jax.Array:
    """On empty stretches the line between the nearest values on either side; 0 elsewhere."""
    size = begin.shape[0]
    index = count(size)
    before = _running.maximum(jnp.where(empty, jnp.int32(0), index))
    after = _running.minimum(jnp.where(empty, jnp.int32(size - 1), index), reverse=True)
    gap = ratio[after] - ratio[before]
    share = (ratio - ratio[before]) / jnp.where(gap > 0.0, gap, 1.0)
    line = begin[before] + share * (end[after] - begin[before])
    return jnp.where(empty, line, 0.0)
