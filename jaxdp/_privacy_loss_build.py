"""How a law is built from the engine's: with the ends of both directions, and its anchor."""

import dataclasses

import jax
import jax.numpy as jnp

from jaxdp import _law, _numerical, _privacy_loss_file
from jaxdp import _privacy_loss_readings as readings
from jaxdp._law import _allowances
from jaxdp._mechanisms import _curve
from jaxdp._mechanisms._steps import number_of_steps


def build(m, delta, direction, side, size, kind):
    """The fields of the law of a mechanism, of a class `kind` of laws: one, inside the island."""
    ok = m._in_domain() & (delta > 0.0) & (delta < 1.0)
    sign = 1 if side == "upper" else -1
    terms = _numerical.terms_of(m)
    law = _law.loss_law(terms, jnp.log(delta), direction=direction, side=sign, size=size)
    add = direction == "add" if isinstance(direction, str) else direction  # traced: "add" or not
    ends = _curve.ends(m)
    ends = [jax.tree.map(lambda x, y: jnp.where(add, y, x), *p) for p in (ends, ends[::-1])]
    steps = number_of_steps(m)
    largest = [loss + _allowances.largest_loss(loss, steps) for loss, _ in ends]
    failure = [jnp.minimum(x + sign * _allowances.failure(x), 0.0) for _, x in ends]
    start = jnp.asarray(law.start, jnp.float64)
    known = {"upper": side == "upper", "anchor": -jnp.inf * jnp.ones_like(start)}
    built = kind(
        **law._asdict(),
        **known,
        log_anchor=jnp.zeros_like(start),
        largest=largest[0],
        largest_reversed=largest[1],
        log_failure=failure[0],
        log_failure_reversed=failure[1],
    )
    names = _privacy_loss_file.fields(kind)
    anchor, log_anchor = readings.anchored(built)
    built = dataclasses.replace(built, anchor=anchor, log_anchor=log_anchor)
    return tuple(jnp.where(ok, getattr(built, name), jnp.nan) for name in names)
