r"""A mixture of lognormals of one variance as a law on a lattice of losses, above it.

X = e^{U - v/2} A, U ~ N(0, v), A of finitely many values a_k independent of U, under Q. Both
factors are replaced by laws on the lattice e^{h i}, larger in convex order, and so is X, as
E f(x y) is convex in either factor: the product is a convolution of masses >= 0 on the lattice, and
no mass has to be worked out at every threshold for every a_k.

* U: on a cell l <= L <= l + h the chord of a convex function is above it, so that what lies at
  l + s goes to the two ends, (e^s - 1)/(e^h - 1) of it to the right one: mass and mean are kept.
  The shares' integrals over the density are sums of ten positive terms by Gauss's rule. At z <= 39
  deviations the integrand is analytic, on the ellipse of radius rho about a cell of h <= v^{1/2}/20
  at most e^{39 rho/40} times as large and its factor of the share some 2 rho times, so that
  the rule is off by (64/15) e^{rho} 2 rho^{-19}, at rho = 20 less than 2^-48 (Trefethen 2013,
  Theorem 19.3). For larger cells (v > 900) sums over a cell are replaced by h times the largest
  density, of Q for the left end and of P for the right one: (x - a)_+ is at most
  (x_l - a)_+ + x (1 - a/x_r)_+ for x_l <= x <= x_r and a >= 0, and (1 - a x)_+ at most
  (1 - a x_l)_+, so that this is above as well.
* A: its values go to two points of the lattice each in the same way.

What lies beyond the lattice, 38.7 deviations of all of L from the middle of P and Q, has less than
e^{-722} of the mass of either, and what underflows less than 2^-1000: e^{-690} of P at an infinite
loss, and of Q at X = 0, are above that. So is a last value of A, with a variance of its own, of
whose masses all are put there.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp import _divergences
from jaxdp._law._intervals import interval_masses

_POINTS = 4096
_HALF = _POINTS // 2
_DEVIATIONS = 38.7
_WIDEST = 0.05  # h in units of v^{1/2}, for the quadrature
_NODES, _WEIGHTS = (0.5 * x for x in np.polynomial.legendre.leggauss(10))
_NODES = _NODES + 0.5  # on (0, 1)
_LOG_SQRT_2_PI = 0.5 * np.log(2.0 * np.pi)
LOG_BEYOND = -690.0


def _shares(s: jax.Array, h: jax.Array) -> tuple[jax.Array, ...]:
    """What of Q goes from l + s to l and to l + h, and what of P."""
    left, right = (-jnp.expm1(-x) / -jnp.expm1(-h) for x in (h - s, s))
    return left, right * jnp.exp(s - h), left * jnp.exp(-s), right


def _normal_cells(v: jax.Array, h: jax.Array) -> tuple[jax.Array, ...]:
    """Masses of U's cells at their ends: of Q at the left and the right, of P."""
    root = jnp.sqrt(v)
    lo = h * (jnp.arange(_POINTS - 1) - _HALF)
    s = h * _NODES[:, None]
    weights = _WEIGHTS[:, None] * jnp.stack([x * jnp.ones(()) for x in _shares(s, h)])
    # (exponents, not products: neither factor may be the one that underflows)
    unit = jnp.log(h / root) - _LOG_SQRT_2_PI
    under_q, under_p = (
        jnp.exp(unit - 0.5 * ((lo + s + side * 0.5 * v) / root) ** 2) for side in (1.0, -1.0)
    )
    fine = [
        jnp.sum(w * x, axis=0)
        for w, x in zip(weights, (under_q, under_q, under_p, under_p), strict=True)
    ]
    top_q, top_p = (
        unit - 0.5 * ((jnp.clip(-side * 0.5 * v, lo, lo + h) + side * 0.5 * v) / root) ** 2
        for side in (1.0, -1.0)
    )
    top_p = top_p - jnp.log(-jnp.expm1(-h)) + 1e-9
    top_q = top_q + 1e-9  # (rounding, of exponents up to 10^4)
    coarse = [jnp.exp(x) for x in (top_q, top_p - lo - h, top_q + lo, top_p)]
    some = h <= _WIDEST * root
    return tuple(jnp.where(some, x, y) for x, y in zip(fine, coarse, strict=True))


def masses(log_weights: jax.Array, log_scales: jax.Array, v: jax.Array, more: jax.Array):
    """Masses of intervals of the law above: log_weights of A under Q, `more` what A varies by."""
    reach = _DEVIATIONS * jnp.sqrt(v + more) + 0.5 * v + more
    h = lax.stop_gradient(reach / (_HALF - 2.0))
    left_q, right_q, left_p, right_p = _normal_cells(v, h)
    none = jnp.zeros((1,))
    normal = jnp.stack(
        [
            jnp.concatenate([left, none]) + jnp.concatenate([none, right])
            for left, right in ((left_q, right_q), (left_p, right_p))
        ]
    )
    normal = jnp.pad(normal, ((0, 0), (_POINTS, _POINTS)))
    place = jnp.clip(jnp.floor(lax.stop_gradient(log_scales) / h), 1 - _POINTS, _POINTS - 2)
    shares = _shares(jnp.clip(log_scales - h * place, 0.0, h), h)
    both = jnp.stack([log_weights, log_weights + log_scales])
    to_ends = jnp.stack([jnp.stack(shares[:2]), jnp.stack(shares[2:])], axis=1)
    weights = _divergences.exp_log(both) * to_ends  # (left or right, Q or P, k)

    def add(total: jax.Array, value: tuple[jax.Array, jax.Array]):
        at, share = value
        first = _POINTS - at
        for end in (0, 1):
            part = lax.dynamic_slice_in_dim(normal, first - end, _POINTS, axis=1)
            total += share[end][:, None] * part
        return total, None

    start = jnp.zeros((2, _POINTS))
    each = place.astype(jnp.int32), jnp.moveaxis(weights, -1, 0)
    (q, p), _ = lax.scan(add, start, each)

    def index(loss: jax.Array) -> jax.Array:
        near = jnp.round(jnp.clip(loss / h, -_POINTS, _POINTS)) + _HALF
        near = jnp.clip(near, 0.0, _POINTS - 1.0)
        return (near + (h * (near - _HALF) <= loss)).astype(jnp.int32)

    return interval_masses(q, p, index)
