"""The composed law as an object: masses, and the error of their curve at every epsilon.

With the notation of `_compose`, the curve of the masses on the grid, C(eps), is off by

    e^{sum n K - theta eps} (G l + missing(eps)).

l is what is off within the window (below: also what lies below the window and wraps around), and
G = sup g. What is missing is one Chernoff bound more, on the tilted mass lambda(x) <= 2 e^{M - t x}
beyond x:

* above, the losses beyond the window's end E. They count with at most lambda(max(E, eps)), times
  g <= min(G, e^{-theta (E - eps)}). Losses below the window are not counted: the curve above is one
  from the window's start on.
* below, the losses that wrap around and come to lie beyond eps: those beyond eps + N h - h, all
  beyond E where eps is below the window. They count with G.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdp._divergences import log_positive
from jaxdp._law import _allowances
from jaxdp._law._compose import Composed, compose
from jaxdp._law._plan import plan
from jaxdp._law._saddle import log_price
from jaxdp._law._terms import Direction, Terms, over_directions

_DEFAULT_SIZE = 8192


class LossLaw(NamedTuple):
    """Masses at start + spacing k, and the error of their curve: see the module.

    The curve is off by e^{-tilt eps} (e^{log_error} + e^{log_outside - outside_tilt (eps - edge)_+
    + log g}), `edge` being the window's end above and its start below.
    """

    start: jax.Array
    spacing: jax.Array
    log_mass: jax.Array
    log_infinity: jax.Array
    log_error: jax.Array
    tilt: jax.Array
    log_outside: jax.Array
    outside_tilt: jax.Array
    centre: jax.Array


def loss_law(
    terms: Terms,
    log_delta: jax.Array,
    *,
    direction: Direction = "remove",
    side: int = 1,
    size: int = _DEFAULT_SIZE,
) -> LossLaw:
    """The composed law about the epsilon of a delta, as `PrivacyLoss` holds it.

    What cannot be computed is the trivial law: all mass at infinity above, none of it below.
    """

    def answer(terms: Terms, _: jax.Array) -> tuple[jax.Array, ...]:
        chosen = plan(terms, None, log_delta, size)
        law = compose(terms, chosen, size, side)
        return _known(_law_of(law, chosen.epsilon, size, side), side)

    if direction == "both":
        raise ValueError("a law has one direction")
    return LossLaw(*over_directions(terms, direction, answer))


def _law_of(law: Composed, centre: jax.Array, size: int, side: int) -> LossLaw:
    theta, h = law.theta, law.spacing
    start = law.start + side * law.shift
    loss = start + h * jnp.arange(size, dtype=jnp.float64)
    # Weights are read at the losses as they came out, masses at these.
    moved = theta * (loss - side * law.shift)
    log_mass = law.log_scale - moved + log_positive(law.weights)
    rounding = _allowances.prefactor(law.log_scale, theta * loss)
    within = law.stray + (law.outside if side < 0 else 0.0)
    unit = law.log_scale + theta * law.shift
    unit += _allowances.prefactor(law.log_scale, theta * law.shift)
    log_mgf, tilt = law.beyond
    # (Above, the shift moves the end as well; below, it only takes away.)
    edge = law.start + size * h if side > 0 else start + (size - 1) * h
    exponent = log_mgf - tilt * edge
    known = exponent < 0.0
    return LossLaw(
        start,
        h,
        log_mass + side * rounding,
        law.log_tau + side * _allowances.failure(law.log_tau),
        unit + log_positive(within) + log_price(theta),
        theta,
        unit + jnp.log(2.0) + jnp.where(known, exponent, 0.0),
        jnp.where(known, tilt, 0.0),
        centre,
    )


def _known(law: LossLaw, side: int) -> tuple[jax.Array, ...]:
    """The law, or the trivial one where a part of it is no number."""
    parts = law.start + law.spacing + law.tilt + law.centre + law.outside_tilt
    ok = jnp.isfinite(parts) & ~jnp.isnan(law.log_infinity + law.log_error + law.log_outside)
    ok &= ~jnp.any(jnp.isnan(law.log_mass) | jnp.isposinf(law.log_mass))
    nothing = -jnp.inf
    trivial = LossLaw(
        0.0, 1.0, nothing, 0.0 if side > 0 else nothing, nothing, 1.0, nothing, 0.0, 0.0
    )
    return tuple(jnp.where(ok, x, other) for x, other in zip(law, trivial, strict=True))
