r"""The optimal composition of selections as a pair: a finite one, above or below its curve.

V, convex in g = e^x, is known from above (u_i) and below (l_i) at x_i = i h, i >= 0, and mirrored:
V(-x) = 1 - e^-x + e^-x V(x). A symmetric pair of atoms at +-x_i has a curve that is linear in g
between the nodes, with slopes -D_i, D falling.

* Above: chords of a convex function are above it, so D_i = (u_i - u_{i+1})/(g_{i+1} - g_i); where
  these do not fall, they are raised to the largest that follows, which raises the curve. What V
  has beyond the last node is at most u there: mass at infinite loss.
* Below: left of x_{i+1}, V is above the line through l_{i+1} with the slope to u_{i+2}. With f_i
  the least of l_i and that line at x_i, the chords of f are below those lines, hence below V. Where
  their slopes do not fall they are lowered to the least before, and the curve with them.
* Next to x = 0 the mirrored slope is 1 - V(1) - D_0 >= D_0: no mass is negative. Of V itself the
  same holds, so that D_0 may be lowered to it above, too: with D_0 <= (1 - V(1))/2 and convexity,
  V(1) <= (V(g_1) + w/2)/(1 + w/2), w = g_1 - 1, which is the curve's value then.

All u and l are moved outwards by a relative 1e-11 first, for the rounding of differences of slopes.
"""

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _divergences
from jaxdp._mechanisms import mechanism
from jaxdp._noise import _atoms
from jaxdp._noise._finite_pairs import FiniteFamily, _finite_loss

_MARGIN = 1e-11


@mechanism
class SymmetricTable(FiniteFamily):
    """A symmetric pair: log Q-masses at losses, and the mass at infinite loss of either direction.

    Both lists are in order of the losses, which mirror each other. Never built by users.
    """

    losses: ArrayLike
    log_q: ArrayLike
    log_infinity: ArrayLike

    _core_ndims: ClassVar = {"losses": 1, "log_q": 1}

    def __post_init__(self) -> None:
        """Made of what was computed: there is nothing to check."""

    def _outcomes(self) -> int:
        return jnp.shape(self.losses)[-1] + 2

    def _symmetric(self) -> bool:
        return True

    def _logs(self) -> tuple[jax.Array, jax.Array]:
        loss, log_q = jnp.asarray(self.losses), jnp.asarray(self.log_q)
        infinity, nothing = jnp.asarray(self.log_infinity)[None], jnp.full((1,), -jnp.inf)
        log_p = jnp.where(
            log_q > -jnp.inf, jnp.where(log_q > -jnp.inf, log_q, 0.0) + loss, -jnp.inf
        )
        return (
            jnp.concatenate([log_p, infinity, nothing]),
            jnp.concatenate([log_q, nothing, infinity]),
        )

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        loss, weight = _finite_loss(*self._logs())
        return _atoms.interval_log_masses(lo, hi, loss, weight, weight + loss)


def as_pair(spacing: jax.Array, values: dict[int, jax.Array], side: int) -> SymmetricTable:
    """Of V at x = 0, h, 2 h, ...: values[1] above it, values[-1] below; side: which is wanted."""
    above, below = values[1], values[-1]
    x = spacing * jnp.arange(above.shape[0])
    g = jnp.exp(x)
    width = g[:-1] * jnp.expm1(spacing)
    if side > 0:
        nodes = above * (1.0 + _MARGIN)
        slopes = jnp.maximum(nodes[:-1] - nodes[1:], 0.0) / width
        slopes = jax.lax.cummax(slopes, reverse=True)
        infinity = nodes[-1]
    else:
        low, high = below * (1.0 - _MARGIN), above * (1.0 + _MARGIN)
        steep = jnp.maximum(low[1:-1] - high[2:], 0.0)
        line = low[1:-1] + steep * jnp.exp(-spacing)  # cells grow by e^h
        nodes = jnp.concatenate([jnp.minimum(low[:-2], line), jnp.minimum(low[-2:], low[-1])])
        slopes = jax.lax.cummin(jnp.maximum(nodes[:-1] - nodes[1:], 0.0) / width)
        infinity = jnp.zeros(())
    beyond = infinity + jnp.sum((slopes * width)[1:])
    most = (1.0 - beyond) / (2.0 + width[0])
    slopes = slopes.at[0].set(jnp.maximum(jnp.minimum(slopes[0], most), slopes[1]))
    atoms = jnp.maximum(slopes - jnp.append(slopes[1:], 0.0), 0.0)
    centre = jnp.maximum(1.0 - beyond - slopes[0] * (2.0 + width[0]), 0.0)
    log_q = _divergences.log_positive(atoms)
    right = x[1:]
    return SymmetricTable(
        jnp.concatenate([-right[::-1], jnp.zeros(1), right]),
        jnp.concatenate([(log_q + right)[::-1], _divergences.log_positive(centre)[None], log_q]),
        _divergences.log_positive(infinity),
    )
