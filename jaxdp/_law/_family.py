"""Terms of a family, each on the lattice of the composition, multiplied up a few at a time.

The logarithms of their generating functions are summed. A sum is linear, so that reverse mode
keeps none of them: memory does not grow with the number of terms, beyond their parameters. Angles
are brought back to (-pi, pi] after every few, so that their rounding stays within what
`_symbols.rounding_mass` allows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law import _allowances
from jaxdp._law._grid import Lattice, align, family_rungs
from jaxdp._law._plan import FamilyPlan
from jaxdp._law._saddle import AT_A_TIME
from jaxdp._law._step import discretise, finite_ends
from jaxdp._law._symbols import Frame, factors, log_of
from jaxdp._law._terms import Family, Term
from jaxdp._special import log1p

_LEAST_TOP = -708.0  # what is less than e^that would underflow


class Product(NamedTuple):
    """What a product of powers amounts to, in logarithms: see `_compose.compose`."""

    magnitude: jax.Array
    angle: jax.Array
    log_scale: jax.Array
    start: jax.Array
    log_mgf: jax.Array
    through: jax.Array
    factors: jax.Array
    shift: jax.Array


def log_through(term: Term, top: jax.Array) -> jax.Array:
    """log of the P-mass at finite losses, of one step; e^top is at losses that count as infinite.

    (A mass that would underflow counts as more than it is, not as nothing.)
    """
    top = jnp.where(top > -jnp.inf, jnp.maximum(top, _LEAST_TOP), -jnp.inf)
    tau = jnp.exp(jnp.asarray(term.log_tau_p, jnp.float64)) + jnp.exp(top)
    return log1p(-jnp.minimum(tau, 1.0 - 1e-16))


def _one(term: Term, chosen: FamilyPlan, frame: Frame, positions: np.ndarray) -> Product:
    centre = chosen.centre if frame.side > 0 else chosen.anchor
    low, high = finite_ends(term)
    # The spacing is given, so only one end of the support can lie on the lattice.
    low = jnp.where(jnp.isfinite(high), -jnp.inf, low)
    lattice = align(Lattice(centre, frame.spacing), (low, high), frame.side)
    one = discretise(
        term, lattice, finite_ends(term), chosen.range, frame.theta, positions, frame.side
    )
    symbol = frame.symbol(one.weights, one.positions)
    total = symbol.real[0]
    magnitude, angle = log_of(symbol.wave / total)
    count = jnp.asarray(term.count, jnp.float64)
    some = count > 0.0
    span = jnp.abs(lattice.centre) + 2.0 * frame.size * frame.spacing
    logs = Product(
        magnitude,
        angle,
        one.log_norm + jnp.log(total),
        lattice.centre,
        jnp.log(symbol.real[1:]) - jnp.log(total),
        log_through(term, one.top),
        jnp.zeros((2,)),
        _allowances.positions(1.0, span),
    )
    logs = jax.tree.map(lambda x: jnp.where(some, count * jnp.where(some, x, 0.0), 0.0), logs)
    return logs._replace(factors=factors(count))


def family_product(family: Family, chosen: FamilyPlan, frame: Frame) -> Product:
    """The product over the family."""
    number = family.number
    chunks = -(-number // AT_A_TIME)
    padded = chunks * AT_A_TIME
    positions = family_rungs(frame.size, number)

    def split(x: jax.Array) -> jax.Array:
        index = jnp.minimum(jnp.arange(padded), number - 1)
        return x[index].reshape(chunks, AT_A_TIME, *x.shape[1:])

    real = (jnp.arange(padded) < number).reshape(chunks, AT_A_TIME)

    @jax.checkpoint
    def one(chunk: Any) -> Product:
        x, chosen, real = chunk
        term = family.term(x)
        count = jnp.where(real, jnp.asarray(term.count, jnp.float64), 0.0)
        return _one(term._replace(count=count), chosen, frame, positions)

    def add(total: Product, chunk: Any) -> tuple[Product, None]:
        part = jax.tree.map(lambda x: jnp.sum(x, axis=0), jax.vmap(one)(chunk))
        total = jax.tree.map(jnp.add, total, part)
        turns = lax.stop_gradient(jnp.round(total.angle / (2.0 * jnp.pi)))
        return total._replace(angle=total.angle - 2.0 * jnp.pi * turns), None

    points = frame.size // 2 + 1
    zero = jnp.zeros((), jnp.float64)
    start = Product(
        jnp.zeros(points), jnp.zeros(points), zero, zero, jnp.zeros(2), zero, jnp.zeros(2), zero
    )
    return lax.scan(add, start, (*jax.tree.map(split, (family.parameters, chosen)), real))[0]
