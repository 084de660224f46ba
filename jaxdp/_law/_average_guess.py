"""Guesses for planning the law of an average that is to be composed; no bounds."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp._law import _average_atoms
from jaxdp._law._terms import Sign, Term, may_add

_SHARES = np.geomspace(1e-4, 1.0, 64)  # of the saddle point's tilt
_UNTYPICAL = 20.0  # windows of ratios below the typical one count as larger by that power
_AT_END = 1e-2  # of delta, rounding's mass at the window's end: at X = 0 it is an infinite loss
_OF_SEVERAL = 1e-6  # of 1, over the number of blocks that are averaged: all ratios count there
_LARGEST, _LEAST = -0.1, -650.0  # log delta
_TAIL = -0.5  # log Q of an average whose tilt says more than a normal loss (near 0 it says -0.1)
_FACTOR = -3.0  # of such tails: log delta is that much below the information
_RARE = 1e-8  # averages that rare, where delta is made up, do not count


def typical(
    known: _average_atoms.Coarse,
    steps: jax.Array,
    log_delta: jax.Array,
    times: jax.Array,
    several: jax.Array | None = None,
) -> _average_atoms.Typical:
    """What the average is in each of `times` blocks whose composition makes up a delta (add).

    To leading order log delta is the sum of the blocks' n (K - theta K'). Where delta is made up,
    a ratio x has the weight x^-T times its own, T / x being the slope of n (K - theta K') at the
    typical average. Of these blocks `several` are averaged, if they are not a product.
    """
    steps, log_delta, times = lax.stop_gradient((steps, log_delta, times))
    atoms, no_loss = known.atoms, jnp.float64(-jnp.inf)
    if several is not None:
        no_loss = jnp.where(several > 1.0, np.log(_OF_SEVERAL) - jnp.log(several), no_loss)
    log_delta = _average_atoms.within_reach(atoms, steps, log_delta, -1)
    thetas = _average_atoms.saddle(atoms, steps, None, log_delta, -1) * jnp.asarray(_SHARES)
    m = jax.vmap(lambda theta: _average_atoms.moments(atoms, theta, -1))(thetas)
    exponent = steps * m.log_norm
    near = times * exponent >= log_delta
    slope = jnp.max(jnp.where(near, steps * thetas * m.mean, 0.0))
    weight = exponent - slope * jnp.log(jnp.maximum(m.mean, 1e-300))
    counts = weight >= jnp.max(weight) + np.log(_RARE) - jnp.log(times)
    return _average_atoms.Typical(
        jnp.min(jnp.where(near, m.mean, 1.0)),
        jnp.min(jnp.where(counts, m.mean, 1.0)),
        jnp.min(jnp.where(counts, exponent, 0.0)) - jnp.log(times),
        no_loss,
    )


def where_seen(
    typical: _average_atoms.Typical,
    log_delta: jax.Array,
    steps: jax.Array,
    theta: jax.Array,
    m: _average_atoms.Moments,
    end: jax.Array,
) -> jax.Array:
    """Log of the rounding that matters (add): where ratios hardly count, at the window's end."""
    y = -steps * typical.least
    here, last = steps * m.log_norm - theta * (jnp.stack([y, end]) + steps * m.mean)
    counts = typical.log_delta + jnp.log(jnp.maximum(-y, 1e-300)) + jnp.log(theta) + 1.0
    counts, at_end = jnp.maximum(jnp.stack([counts, log_delta + np.log(_AT_END)]), typical.no_loss)
    return jnp.minimum(counts - here, at_end - last)


def log_untypical(typical: _average_atoms.Typical, middle: jax.Array) -> jax.Array:
    """By what, in logs, a window counts as larger whose average ratio is below a typical one."""
    gap = (1.0 - middle) / jnp.maximum(1.0 - typical.ratio, 1e-15)
    gap = jnp.maximum(gap, typical.ratio / middle)
    return jnp.where(middle < typical.ratio, _UNTYPICAL * jnp.log(gap), 0.0)


def untypical(typical: _average_atoms.Typical, middle: jax.Array) -> jax.Array:
    """The same as a factor, within limits."""
    most = jnp.where(typical.no_loss > -jnp.inf, 1e12, 1e3)  # (averaged: the bulk is all there is)
    factor = jnp.exp(jnp.minimum(log_untypical(typical, middle), 300.0))
    return jnp.where(middle < typical.ratio, jnp.clip(factor, 4.0, most), 1.0)


def guess_log_delta(
    term: Term,
    steps: jax.Array,
    epsilon: jax.Array,
    times: jax.Array,
    beside: ArrayLike = 0.0,
    s: Sign = 1,
):
    """A rough log delta at epsilon of `times` averages: a normal loss, or one large ratio.

    `beside` is the variance of the loss of what else is composed with them.
    """
    steps, epsilon, times = lax.stop_gradient((steps, epsilon, times))
    atoms = _average_atoms.coarse(term).atoms
    one = _average_atoms.guess(atoms, steps, steps * jnp.exp(epsilon)) + jnp.log(times)
    near = jnp.where(atoms.x <= 1.0 + steps * jnp.expm1(jnp.abs(epsilon)), atoms.x - 1.0, 0.0)
    variance = jnp.sum(jnp.exp(atoms.log_q) * near * near)
    deviation = jnp.sqrt(times * jnp.log1p(variance / steps) + beside) + 1e-300
    z = jnp.maximum(epsilon / deviation - 0.5 * deviation, 0.0)
    normal = -0.5 * z * z - jnp.log1p(z * z)
    if not may_add(s):
        return _at_most(one, jnp.log(deviation) + normal - 1.0)
    # The losses of an average have a lighter tail than that: of a ratio x it is a power of e^{1/x}.
    alone = (s < 0) & (jnp.asarray(beside) <= 0.0)
    small = jnp.where(alone, _of_small_ratios(atoms, steps, epsilon, times), -jnp.inf)
    usual = _at_most(one, jnp.log(deviation) + jnp.maximum(normal, small) - 1.0)
    light = alone & (small < _TAIL * times)
    return jnp.where(light, jnp.clip(small + _FACTOR, _LEAST, usual), usual)


def _at_most(one: jax.Array, normal: jax.Array) -> jax.Array:
    return jnp.minimum(jnp.maximum(one, normal), _LARGEST)


def _of_small_ratios(
    atoms: _average_atoms.Atoms, steps: jax.Array, epsilon: jax.Array, times: jax.Array
) -> jax.Array:
    """log Q of averages of a loss epsilon / times each, as many: a tilt's information."""
    ratio = jnp.exp(-jnp.maximum(epsilon, 0.0) / times)
    theta = _average_atoms.saddle(atoms, steps, -steps * ratio, None, -1)
    m = _average_atoms.moments(atoms, theta, -1)
    information = steps * m.log_norm
    return jnp.where(m.mean < 1.1 * ratio, times * jnp.minimum(information, 0.0), -jnp.inf)
