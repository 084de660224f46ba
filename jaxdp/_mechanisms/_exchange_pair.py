"""A mixture of Gaussians to one side against one of some to the other: curve, masses, moments.

P = sum_i w_i N(a_i, 1), Q = sum_j v_j N(-b_j, 1), a_i, b_j >= 0, one of each > 0. At an outcome z
let p and q be the densities over that of N(0, 1): the loss l(z) = log p - log q increases, its
slope being the mean of a under p's terms and that of b under q's. So every threshold of the loss is
one of z, and there, with s_j the share of q's term j and G_m(epsilon) the curve of N(m, 1) against
N(0, 1),

    P{> z} - e^{l(z)} Q{> z} = sum_ij w_i s_j G_{a_i + b_j}(l_ij),
    l_ij = (a_i + b_j) (z - (a_i - b_j)/2):

w_i is split over j by s_j, and e^l v_j over i by the shares of p's terms, and then the densities of
each pair (i, j) are equal at z. These are sums of positive terms, exact whatever z is: a z a little
to the left of the threshold asked for is the curve at a smaller epsilon, hence a larger one, and
rounding is covered. In the other direction the two sides trade places, and z its sign.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _divergences, _rates_line
from jaxdp import _special as special
from jaxdp._divergences import SLACK, exp_log, log_add
from jaxdp._mechanisms._mixture_pair import Components
from jaxdp._mechanisms._mixture_pair import _log_ratio as _log_moved
from jaxdp._mechanisms._mixture_pair import _loss as _log_density

_STEPS = 80  # of Newton's method, a bisection where it would leave the bracket
_FLATTEST = 1e-290  # slope of a loss


class Sides(NamedTuple):
    """The mixture of P, and that of Q mirrored."""

    own: Components
    other: Components

    def swapped(self) -> "Sides":
        """The reversed pair, mirrored."""
        return Sides(self.other, self.own)


def _all_terms(c: Components) -> tuple[jax.Array, jax.Array]:
    """Shifts, 0 among them, and log weights."""
    shifts = jnp.concatenate([jnp.zeros(1), c.shifts])
    return shifts, jnp.concatenate([c.log_rest[None], c.log_rate + c.log_weights])


def _slope(z: jax.Array, c: Components) -> jax.Array:
    """The slope of log p, the mean shift of its terms."""
    log_y, inner, _ = _log_moved(z, c)
    moved = c.log_rate + log_y
    return inner * jnp.exp(moved - log_add(c.log_rest, moved))


def _spread(z: jax.Array, c: Components) -> jax.Array:
    """What log p is off by at most, in units of 2^-52 (see `_mixture_pair._loss`)."""
    exponent = c.shifts * (z[..., None] - 0.5 * c.shifts)
    size = jnp.abs(c.shifts * z[..., None]) + c.shifts**2 + 4.0 + c.ulps
    weights = exp_log(c.log_rate + c.log_weights)
    small = jnp.max(jnp.abs(exponent), axis=-1) < 30.0
    held = jnp.where(small[..., None], exponent, 0.0)
    grown = jnp.exp(held)
    near = jnp.sum(weights * (jnp.abs(jnp.expm1(held)) * (8.0 + c.ulps) + grown * size), axis=-1)
    log_y, _, inner = _log_moved(z, c)
    value = _log_density(z, c)
    share = jnp.exp(jnp.minimum(c.log_rate + log_y - value, 0.0))
    rest = jnp.where(c.log_rest > -jnp.inf, jnp.abs(c.log_rest), 0.0)
    far = share * (inner + jnp.abs(log_y) + jnp.abs(c.log_rate)) + rest + jnp.abs(value)
    far += c.ulps + 8.0
    return jnp.where(small & (near < far), 2.0 * near, 4.0 * far)


def _loss(z: jax.Array, sides: Sides) -> jax.Array:
    return _log_density(z, sides.own) - _log_density(-z, sides.other)


def _reaches(target: jax.Array, c: Components) -> jax.Array:
    """A z >= 0 from which on log p alone, of one of its terms, is at least the target."""
    used = c.log_weights > -jnp.inf
    weights = jnp.where(used, c.log_rate + c.log_weights, 0.0)
    each = (target[..., None] - weights) / c.shifts + 0.5 * c.shifts
    return jnp.maximum(jnp.min(jnp.where(used, each, jnp.inf), axis=-1), 0.0)


def _find(target: jax.Array, sides: Sides) -> jax.Array:
    """The z of a loss (finite).

    (Right of 0 the density of Q over that of N(0, 1) is at most 1, left of it that of P.)
    """
    high = _reaches(target, sides.own) + 1e-3
    low = -_reaches(-target, sides.other) - 1e-3

    def step(_, ends: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        low, high, z = ends
        off = _loss(z, sides) - target
        low, high = jnp.where(off < 0.0, z, low), jnp.where(off < 0.0, high, z)
        slope = _slope(z, sides.own) + _slope(-z, sides.other)
        newton = z - off / slope
        inside = (newton > low) & (newton < high)
        return low, high, jnp.where(inside, newton, 0.5 * (low + high))

    return jax.lax.fori_loop(0, _STEPS, step, (low, high, 0.5 * (low + high)))[2]


def _rough(z: jax.Array, sides: Sides) -> jax.Array:
    """A bound on the error of the loss at z."""
    return SLACK * (_spread(z, sides.own) + _spread(-z, sides.other))


def _position(loss: jax.Array, sides: Sides, slack: float = 0.0) -> tuple[jax.Array, jax.Array]:
    """The z of a loss (finite), and a bound on its error; z carries gradients.

    With slack the bound is of one side alone. Where only the terms without a shift count, the loss
    is the same for many z, and next to them goes on as an exponential: the bound there is the
    distance to a z that surely has less (more) of a loss, not one by the slope.
    """
    target, frozen = jax.lax.stop_gradient((loss, sides))
    if slack == 0.0:
        z, away = _find(target, frozen), jnp.inf
    else:
        side = jnp.sign(slack)
        flat = sum(
            c.ulps + 8.0 + jnp.where(c.log_rest > -jnp.inf, 2.0 * jnp.abs(c.log_rest), 0.0)
            for c in frozen
        )
        margin = SLACK * (8.0 * flat + 4.0 * jnp.abs(target))
        z, beyond = _find(jnp.stack([target, target - side * margin]), frozen)
        surely = side * (target - _loss(beyond, frozen)) >= _rough(beyond, frozen)
        away = jnp.where(surely, jnp.abs(z - beyond), jnp.inf)
    value = _loss(z, frozen)
    slope = jnp.maximum(_slope(z, frozen.own) + _slope(-z, frozen.other), _FLATTEST)
    error = jnp.abs(value - target) + _rough(z, frozen) + 2.0 * SLACK * jnp.abs(target)
    error = jnp.minimum(2.0 * error / slope, away) + 2.0 * SLACK * jnp.abs(z)
    # one more step, of no length, has the derivatives of the implicit function
    moved = (_loss(z, sides) - value) - (loss - target)
    moved = jnp.where(slope > _FLATTEST, moved / slope, 0.0)
    return z - moved, jax.lax.stop_gradient(error)


def log_hockey_stick(epsilon: jax.Array, sides: Sides, slack: float) -> jax.Array:
    """log H of P against Q at any real epsilon; with slack an upper (> 0) or lower (< 0) bound."""
    z, error = _position(epsilon, sides, slack)
    z = z - slack / SLACK * error
    (a, log_w), (b, log_v) = _all_terms(sides.own), _all_terms(sides.other)
    exponents = log_v - b * (z + 0.5 * b)
    shares = exponents - special.logsumexp(exponents)
    m = a[:, None] + b
    used = (m > 0.0) & (log_w > -jnp.inf)[:, None] & (log_v > -jnp.inf)
    shift = jnp.where(used, m, 1.0)
    own = shift * (z - 0.5 * (a[:, None] - b))
    off = jax.lax.stop_gradient(4.0 * jnp.abs(shift * z) + 4.0 * shift**2)
    curve = _divergences.gaussian_log_hockey_stick(own - slack * off, shift, slack)
    sizes = jnp.where(log_v > -jnp.inf, jnp.abs(log_v) + jnp.abs(b * z) + b * b, 0.0)
    ulps = sides.own.ulps + sides.other.ulps
    # (Of a share the largest exponent is rounded too: it is what all are measured by.)
    held = jnp.where(log_w > -jnp.inf, jnp.abs(log_w), 0.0)[:, None]
    allowance = 24.0 + 4.0 * ulps + 4.0 * held + 8.0 * jnp.max(sizes) + 4.0 * sizes
    allowance += 4.0 * jnp.log(1.0 * m.size)
    log_weight = jnp.where(used, log_w[:, None] + shares, -jnp.inf)
    value = jnp.where(used, curve + slack * jax.lax.stop_gradient(allowance), 0.0) + log_weight
    return jnp.minimum(special.logsumexp(value.ravel()), 0.0)


def log_masses(lo: jax.Array, hi: jax.Array, sides: Sides) -> tuple[jax.Array, jax.Array]:
    """log Q and log P of {lo < L <= hi}, elementwise."""
    loss = jnp.stack(jnp.broadcast_arrays(lo, hi))
    finite = jnp.isfinite(loss)
    z, _ = _position(jnp.where(finite, loss, 0.0), sides)
    z = jnp.where(finite, z, loss)[..., None]
    (a, log_w), (b, log_v) = _all_terms(sides.own), _all_terms(sides.other)
    p = special.log_ndtr_interval(z[0] - a, z[1] - a)
    q = special.log_ndtr_interval(z[0] + b, z[1] + b)
    return special.logsumexp(log_v + q, axis=-1), special.logsumexp(log_w + p, axis=-1)


def mass_error(sides: Sides) -> jax.Array:
    """Relative: by how much rounding moves the weights, and the loss at which an outcome is."""
    error = jnp.zeros(())
    for c in sides:
        used = c.log_weights > -jnp.inf
        sizes = jnp.where(used, jnp.abs(c.log_weights) + 8.0 * c.shifts**2, 0.0)
        error += 4.0 * jnp.max(sizes) + 4.0 * c.ulps + 32.0
    return jax.lax.stop_gradient(SLACK * error)


def rate(s: jax.Array, sides: Sides) -> jax.Array:
    """k(s) by quadrature over z, or joint convexity where it is not resolved.

    Numerator and denominator of X are sums of exponentials of slopes up to a and b: they have no
    zeros within pi/m of the real line, m the largest shift; a power of one of them is negative and
    grows off the line (see `_mixture_pair.rate`). The pair is a mixture of Gaussian pairs, i and j
    independent, whose moments are at least those of the mixture.
    """
    order, frozen = jax.lax.stop_gradient((s, sides))
    largest = [jnp.max(jnp.where(c.log_weights > -jnp.inf, c.shifts, 0.0)) for c in frozen]
    m = jnp.maximum(*largest)

    def laws(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        down = _log_density(-z, sides.other)
        return _log_density(z, sides.own) - down, special.log_normal_density(z) + down

    reach = (jnp.abs(order) + 1.0) * m + 14.0
    scale = jnp.exp(jnp.maximum(*(c.log_rate for c in frozen))) * jnp.minimum(m, 1.0)
    density = _rates_line.pace(jnp.pi / m, 0.5 * (jnp.abs(order) + 1.0) * m * m)
    rounding = 4.0 * m * m + 4.0 * (sides.own.ulps + sides.other.ulps)
    value, resolved = _rates_line.rate(s, laws, (-reach, reach), scale, density, rounding)
    (a, log_w), (b, log_v) = _all_terms(sides.own), _all_terms(sides.other)
    halves = 0.5 * (a[:, None] + b) ** 2
    weights = (log_w[:, None] + log_v).ravel()
    bound = _rates_line.moments_rate(s, weights, jnp.where(weights > -jnp.inf, halves.ravel(), 0.0))
    return _rates_line.least(value, resolved, bound)
