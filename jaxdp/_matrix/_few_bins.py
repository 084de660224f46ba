r"""Two to four bins: the mixture itself, on a grid of cells, from above and from below.

P = (1/b) sum_j N(m_j, I) against Q = N(0, I). With p the point of the plane through all m_j that is
next to 0, m_j = p + r_j and r_j orthogonal to p, the ratio is

    X = e^{U - c/2} A(D),   A(x) = (1/b) sum_j e^{<r_j, x> - |r_j|^2/2},   c = |p|^2,

U ~ N(0, c) and D ~ N(0, I) of b - 1 dimensions, independent under Q. On a grid of boxes the masses
of both laws are products of normal ones. A is replaced in every box

* above, in convex order: by the two-point law of the same mass and mean on bounds of A there, which
  is convex in x: the largest at the corners, and the tangent in the middle below, or the least of
  every term. What is beyond the grid, 38 deviations from all r_j and 0, has less than e^-700 of
  either law: e^-690 goes to ratios of e^690 and e^-690.
* below: by its mean (what is seen of x is its box), and what is beyond the grid is left out.

Rounding: the c and r_j that are found have a covariance whose entries are next to those of G; c is
moved by the largest difference, so that all entries are on one side (Kahane's inequality).
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp import _special as special
from jaxdp._divergences import log_positive
from jaxdp._matrix._two_bins import LognormalMixture, two_points
from jaxdp._mechanisms._base import Direction, mechanism

MOST = 4
_INNER = {1: 256, 2: 84, 3: 26}  # cells of an axis about all of the r_j and 0, by dimension
_OUTER = {1: 96, 2: 16, 3: 5}  # on either side of them
_ABOUT, _REACH = 4.5, 38.7  # deviations: of the inner cells, and of all
_BEYOND = 690.0
_UNIT = 2.0**-52
_LEAST = 1e-30


@mechanism
class OnBoxes(LognormalMixture):
    """Of one variance, all of it on the grid."""

    def _masses_function(self):
        return self._log_masses

    def _log_failure(self, direction: Direction) -> jax.Array:
        return jnp.asarray(-jnp.inf)


def _places(gram: jax.Array) -> tuple[jax.Array, jax.Array]:
    """c and the r_j, (b, b - 1), in the basis of Gram and Schmidt of the m_j - m_last."""
    last = gram.shape[0] - 1
    size = range(last)
    rows = [jnp.zeros((last,)) for _ in size]
    point = jnp.zeros((last,))  # of m_last, less p
    for i in size:
        for k in range(i + 1):
            inner = gram[i, k] - gram[i, last] - gram[k, last] + gram[last, last]
            rest = inner - jnp.dot(rows[i], rows[k])
            if k < i:
                entry = rest / rows[k][k]
            else:
                entry = jnp.sqrt(jnp.maximum(rest, _UNIT * gram[last, last]))
            rows[i] = rows[i].at[k].set(entry)
        along = gram[i, last] - gram[last, last] - jnp.dot(rows[i], point)
        point = point.at[i].set(along / rows[i][i])
    r = jnp.stack([point + row for row in rows] + [point])
    return gram[last, last] - jnp.sum(point * point), r


def _nodes(r: jax.Array) -> jax.Array:
    """The ends of the cells of an axis: even about all r_j and 0, then longer and longer ones."""
    dimension = r.shape[1]
    inner, outer = _INNER[dimension], _OUTER[dimension]
    low, high = jnp.minimum(jnp.min(r, axis=0), 0.0), jnp.maximum(jnp.max(r, axis=0), 0.0)
    share = (np.arange(inner + 1) / inner)[:, None]
    even = (low - _ABOUT) + share * (high - low + 2.0 * _ABOUT)
    step = (high - low + 2.0 * _ABOUT) / inner
    # step k + a k^2 reaches the end
    k = np.arange(1, outer + 1)[:, None]
    more = jnp.maximum(_REACH - _ABOUT - step * outer, 0.0) / outer**2
    tail = step * k + more * k * k
    return jnp.concatenate([even[0] - tail[::-1], even, even[-1] + tail])


def _on_grid(of_axes: list[jax.Array]) -> jax.Array:
    """Sums of one number of each axis, for all boxes: (..., n, ..., n)."""
    dimension = len(of_axes)
    total = jnp.zeros(())
    for i, values in enumerate(of_axes):
        lead, n = values.shape[:-1], values.shape[-1]
        total = total + values.reshape(*lead, *(n if k == i else 1 for k in range(dimension)))
    return total


def few_bins(gram: jax.Array, error: float, side: int) -> OnBoxes:
    """The pair above (side +1) or below (-1), of a Gram matrix with that relative error."""
    bins = gram.shape[0]
    common, r = _places(gram)
    off = jnp.max(jnp.abs(common + r @ r.T - gram))
    off = lax.stop_gradient(2.0 * off + (error + 64.0 * _UNIT) * jnp.max(gram))
    common = common + side * off
    some = common > _LEAST  # (else nothing is known from below)
    common, r = jnp.where(some, common, _LEAST), jnp.where(some | (side > 0), r, 0.0)
    nodes = _nodes(r)
    axes = range(bins - 1)
    log_b = np.log(float(bins))
    square = 0.5 * jnp.sum(r * r, axis=1)

    def total(terms: jax.Array) -> jax.Array:  # over the bins
        return special.logsumexp(terms, axis=0) - log_b

    def exponents(at: jax.Array, off: jax.Array | float = 0.0) -> jax.Array:
        """<r_j, x> - |r_j|^2/2 at least, for an x that is off by that in each coordinate."""
        off = off * jnp.ones_like(at)
        each = [r[:, i, None] * at[:, i] - jnp.abs(r[:, i, None]) * off[:, i] for i in axes]
        return _on_grid(each) - square.reshape(-1, *([1] * len(axes)))

    lo, hi = nodes[:-1], nodes[1:]
    shifted = jnp.concatenate([jnp.zeros_like(r[:1]), r])[:, None]  # of Q, and of each bin
    each = special.log_ndtr_interval(lo - shifted, hi - shifted)
    masses = _on_grid([each[..., i] for i in axes])
    log_q, mean = masses[0], total(masses[1:]) - masses[0]  # (logarithms: nothing underflows)
    if side < 0:
        return _mixture([log_q], [mean], common)
    corners = total(exponents(nodes))
    ends = itertools.product((slice(0, -1), slice(1, None)), repeat=len(axes))
    high = jnp.max(jnp.stack([corners[c] for c in ends]), axis=0)
    middle, half = 0.5 * (lo + hi), 0.5 * (hi - lo)
    logs = exponents(middle)
    centre = total(logs)
    shares = jnp.exp(logs - centre - log_b)  # of the bins
    falls = [
        jnp.abs(jnp.tensordot(r[:, i], shares, axes=1)) * _on_axis(half[:, i], i, len(axes))
        for i in axes
    ]
    low = centre + log_positive(1.0 - sum(falls))
    least = total(exponents(middle, half))
    low = jnp.maximum(low, least) - 1e-13 * (1.0 + jnp.abs(least))
    high = high + 1e-13 * (1.0 + jnp.abs(high))
    lower, upper = two_points(log_q, jnp.clip(mean, low, high), low, high)
    return _mixture([lower, upper], [low, high], common, True)


def _on_axis(values: jax.Array, axis: int, dimension: int) -> jax.Array:
    return values.reshape(*(-1 if k == axis else 1 for k in range(dimension)))


def _mixture(
    log_weights: list[jax.Array], scales: list[jax.Array], common: jax.Array, beyond: bool = False
) -> OnBoxes:
    weights, a = (jnp.concatenate([x.ravel() for x in xs]) for xs in (log_weights, scales))
    if beyond:
        weights = jnp.append(weights, jnp.array([-2.0 * _BEYOND, -_BEYOND]))
        a = jnp.append(a, jnp.array([_BEYOND, -_BEYOND]))
    return OnBoxes(weights, a, jnp.full_like(a, 1.0) * common)
