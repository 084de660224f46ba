"""Composition by the tilted (Esscher) FFT, in two stages, with everything left out accounted for.

The tilted law p_theta = p e^{theta l - K(theta)} of the one-step law (a law above or below, see
`_discretise`) is a probability on the lattice. With g(y) = e^{-theta y} (1 - e^{-y})_+,

    delta(eps) = e^{sum n K - theta eps} E_theta[g(S - eps)],         S the composed loss.

The powers of one term are in `_parts`.

What is left out is a (signed) measure of known total mass, and 0 <= g <= G := sup g:
* Mass outside the window: at most lambda = e^{n M(s) - s d} on either side (Chernoff, with M
  the cumulant function of the very law that is transformed). Cyclically it reappears inside, so the
  array is off by at most lambda too much; and lambda is missing. (Of a block of the first stage the
  law without that is as good for what follows: M is the smaller of the two, see `_parts._fold`.)
* Rounding. The transform of an array w >= 0 of sum 1 is off by at most 2^-53 (8 log2 N + 16) at
  every frequency (`_average_fft`), and a power z^n by another n 2^-48 |z|^n: r n |z|^(n-1) in all,
  r = 2^-53 (8 log2 N + 48). In a product G of powers of modulus <= 1 that is at most 2 r n |G|, or
  where |z| < 1/2, r n 2^(1-n). The inverse transform adds r |G|_2 in 2-norm (Higham 2002, Theorem
  24.2, with room). The sum of |errors| over the N points is at most the 2-norm of the error before
  the inverse: eta = r ((2 sum n + 1) |G|_2 + sqrt(N) sum n 2^(1-n)). (Few |G| count.)
With laws A_i in place of A_i + B_i, |B_i| <= l_i, in a product whose true factors have mass 1,
the product is off by at most prod (1 + l_i) - 1 =: Lambda, hence delta by
e^{sum n K - theta eps} G Lambda: added above, subtracted below. What may be rounding noise in an
array, eta / (4 N) at a point, is replaced by 0: that costs another eta / 4 at most. (A quarter of
that was seen at a point. Left far below the bulk, its Q-mass would drown that of all the rest.)

Positions c + h k are rounded, by 2^-52 of the window at most, n times, and what the law below has
a hair before a node of the coarse lattice counts there: the curve is read at eps -+ that shift
(`_allowances.positions`, `moved_up`). All other roundings are functions of the sizes, too.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp import _lanes
from jaxdp._divergences import log_add
from jaxdp._law import _allowances, _places
from jaxdp._law._family import family_product, log_through
from jaxdp._law._grid import between, dividing
from jaxdp._law._parts import ends_of, one_step, parts
from jaxdp._law._places import wrap
from jaxdp._law._plan import FamilyPlan, Plan, StepPlan
from jaxdp._law._saddle import log_price
from jaxdp._law._symbols import (
    Frame,
    count_up,
    from_log,
    outside,
    rounding_mass,
    without_noise,
)
from jaxdp._law._terms import Family, Term, Terms, of_each

_RARE = -650.0  # a mass of e^that or less is kept as its logarithm


class Composed(NamedTuple):
    """The tilted composed law near the query, and what it leaves out.

    weights (N,) in order of loss, tilted by theta, at losses start + spacing * k; the untilted
    P-mass of a point is e^{log_scale - theta loss} times its weight. stray, outside and log_mgf,
    tilt are for `left_out`. Above, it says nothing of what is below `least`.
    """

    theta: jax.Array
    start: jax.Array
    spacing: jax.Array
    weights: jax.Array
    log_scale: jax.Array
    log_tau: jax.Array
    shift: jax.Array
    stray: jax.Array
    outside: jax.Array
    beyond: tuple[jax.Array, jax.Array]
    least: jax.Array | float = -jnp.inf


def compose(terms: Terms, plan: Plan, size: int, side: int) -> Composed:
    """The composed law above (side = +1) or below (-1), as the plan says."""
    theta = plan.theta
    single_terms = [t for t in terms if isinstance(t, Term)]
    single_steps = [step for step in plan.steps if isinstance(step, StepPlan)]
    ones = of_each(
        lambda term, step: one_step(term, step, theta, size, side), single_terms, single_steps
    )
    plain = list(zip(single_terms, single_steps, ones, strict=True))
    spacing = (plan.window[1] - plan.window[0]) / (size - 8)
    for _, _, one in plain:  # with room for `_fold` to round places up
        spacing = jnp.maximum(spacing, one.lattice.spacing * (1.0 + 2.0 / size))
    low = plan.window[0]
    if len(terms) == len(plain) == 1:
        # One stage in all: keep the lattice and its window, atoms stay where they are. Two: put the
        # atoms of the blocks, whole widths of the support apart, on the coarse lattice.
        term, step, one = plain[0]
        single = (step.outer <= 1.0) & (step.rest <= 0.0) & jnp.isinf(step.cut[1])
        aligned = dividing(between(ends_of(term, step, side)), spacing, least=4.0)
        spacing = jnp.where(single, one.lattice.spacing, aligned)
        low = jnp.where(single, step.inner * step.centre + step.window[0], low)
    else:  # the same for the first of several that has blocks, and atoms at both ends
        free = jnp.asarray(True)
        for term, step, _ in plain:
            width = between(ends_of(term, step, side))
            blocks = free & (width > 0.0) & ((step.outer > 1.0) | (step.rest > 0.0))
            spacing = jnp.where(blocks, dividing(width, spacing, least=4.0), spacing)
            free &= ~blocks
    frame = Frame(spacing, plan.chernoff, theta, side, size)
    log_scale = start = stray = shift = through = steps = jnp.float64(0.0)
    factors = log_mgf = jnp.zeros((2,), jnp.float64)
    waves, rare, besides = [], [], []
    counts = [jnp.asarray(term.count, jnp.float64) for term in single_terms]
    least = plan.epsilon - plan.margin
    one_apart = functools.reduce(jnp.logical_or, [s.apart.some for s in single_steps], False)
    powers = _lanes.each(
        lambda one, step, count: parts(one, step, count, frame, least),
        list(zip(ones, single_steps, counts, strict=True)),
    )
    for term, step, one, count, factored in zip(
        single_terms, single_steps, ones, counts, powers, strict=True
    ):
        far = one.top < _RARE
        through += count * log_through(term, jnp.where(far, -jnp.inf, one.top))
        rare.append(_some_step_at(jnp.where(far, one.top, -jnp.inf), count))
        span = jnp.abs(one.lattice.centre) + size * one.lattice.spacing
        shift += _allowances.positions(count, span + size * spacing)
        if side < 0:
            shift += _allowances.moved_up(step.outer, size * spacing)
        steps += count
        for part in factored:
            log_scale += part.log_unit + part.power.log_total
            start += part.origin + part.power.moved * spacing
            stray += part.stray
            factors += part.factors
            log_mgf += part.power.log_mgf
            waves.append(part.power.wave)
            besides.append(jnp.asarray(part.log_besides))
    for term, step in zip(terms, plan.steps, strict=True):
        if isinstance(term, Family) and isinstance(step, FamilyPlan):
            product = family_product(term, step, frame)
            log_scale += product.log_scale
            start += product.start
            log_mgf += product.log_mgf
            through += product.through
            factors += product.factors
            shift += product.shift
            steps += product.factors[0]
            waves.append(from_log(product.magnitude, product.angle))
    # Each step's K and cumulants are logarithms of sums over its points.
    log_scale += side * lax.stop_gradient(64.0 * _allowances.UNIT * steps)
    log_mgf += lax.stop_gradient(_allowances.pairwise_sums(size) * steps)
    number = len(plain) + sum(t.number for t in terms if isinstance(t, Family))
    wave = functools.reduce(jnp.multiply, waves)
    first = _places.floor((low - start) / spacing) - 2.0
    weights = jnp.fft.irfft(wave, size)[wrap(count_up(size) + first, size)]
    weights, rounding = without_noise(weights, rounding_mass(factors, wave, size))
    if side > 0:
        lost = outside(log_mgf[1], plan.chernoff[1], (first + size) * spacing)
    else:
        lost = outside(log_mgf[0], plan.chernoff[0], -first * spacing)
    return Composed(
        theta,
        start + first * spacing,
        spacing,
        weights,
        log_scale,
        log_add(_log_tau(through, side, number), *rare, *besides),
        lax.stop_gradient(shift),
        jnp.expm1(stray) + rounding,
        lost,
        (log_mgf[1] + plan.chernoff[1] * start, plan.chernoff[1]),
        jnp.where(one_apart, least, -jnp.inf),
    )


def _some_step_at(top: jax.Array, count: jax.Array) -> jax.Array:
    """log of at least the chance that one of so many steps is where a mass of e^top is."""
    some = (count > 0.0) & (top > -jnp.inf)
    value = jnp.where(some, top, 0.0) + jnp.log(jnp.where(some, count, 1.0))
    return jnp.where(some, value + _allowances.exponent(value, 8.0), -jnp.inf)


def _log_tau(through: jax.Array, side: int, number: int) -> jax.Array:
    """log of the P-mass at infinity, from the log of the mass that never got there.

    That is a sum of so many terms: the mass is on the safe side.
    """
    some = through < 0.0
    value = jnp.where(some, jnp.log(-jnp.expm1(jnp.where(some, through, -1.0))), -jnp.inf)
    return value + side * _allowances.failure(value, number, side)


def left_out(law: Composed, epsilon: jax.Array, side: int) -> jax.Array:
    """What delta(epsilon) may be off by, in units of e^{sum n K - theta eps}, any shape.

    Besides what is off within the window, above: losses beyond its end are missing; there
    g <= e^{-theta (end - eps)}. (Smoothed over a cell, sup g grows by e^{theta h} at most.) Below:
    losses that wrap around and come to lie beyond eps are too much: all below the window, and
    those beyond eps + its width.
    """
    size, h, theta = law.weights.shape[0], law.spacing, law.theta
    price = jnp.exp(log_price(theta))
    if side > 0:
        end = law.start + h * size
        fall = jnp.exp(jnp.minimum(-theta * (end - epsilon), 0.0))
        price *= jnp.exp(theta * h)
        return law.stray * price + jnp.minimum(law.outside * price, fall)
    log_mgf, tilt = law.beyond
    wrapped = outside(log_mgf, tilt, epsilon + (size - 1) * h)
    return price * (law.stray + law.outside + wrapped)
