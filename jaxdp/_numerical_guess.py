"""How small a delta is, roughly, before its law is tabulated: choices only, nothing to be right.

A composition is taken for the Gaussian mechanism with its Kullback-Leibler divergence. Tails that
are heavier make delta larger than that, and tables that reach farther than they need to.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp import _divergences, _law
from jaxdp._law import _average_guess
from jaxdp._mechanisms import Average, Gaussian, Mechanism, Mixture, PoissonSampled, _curve

_LEAST, _ROOM, _LIGHTER = -650.0, 8.0, 1.25  # lighter tails: so many times the logarithm


def _spread(m: Mechanism) -> jax.Array:
    """About the variance of the privacy loss."""
    total = jnp.float64(0.0)
    for t in _curve.canonical_terms(m):
        step = t.mechanism
        if isinstance(step, Average):
            one = _spread(step.mechanism) / step.num_steps
        elif isinstance(step, PoissonSampled):
            one = _spread(step.mechanism) * step.sampling_probability**2
        elif isinstance(step, Mixture):
            parts = jnp.stack([_spread(part) for part in step.mechanisms])
            one = jnp.sum(jnp.exp(step._log_weights()) * parts)
        else:
            one = 2.0 * step._rate(jnp.float64(1.0))
        total += t.multiplicity * jnp.where(jnp.isfinite(one), one, 1.0)
    return jnp.clip(total, 1e-6, 1e4)


def as_gaussian(m: Mechanism, epsilon: jax.Array) -> jax.Array:
    """log delta at epsilon >= 0 of the Gaussian mechanism that m is taken for."""
    return _divergences.gaussian_log_hockey_stick(epsilon, jnp.sqrt(_spread(m)))


def rather_small(guess: jax.Array) -> jax.Array:
    """What tables are made for that are to reach far enough, the guess being what it is."""
    guess = jnp.where(jnp.isfinite(guess), _LIGHTER * guess - _ROOM, _LEAST)
    return lax.stop_gradient(jnp.clip(guess, _LEAST, 0.0))


def log_delta(m: Mechanism, epsilon: jax.Array) -> jax.Array:
    """A rough log delta at epsilon, rather too small."""
    terms = _curve.canonical_terms(m)
    epsilon = jnp.abs(epsilon)
    blocks = [t for t in terms if isinstance(t.mechanism, Average)]
    guess = as_gaussian(m, epsilon)
    for t in blocks:
        step = Gaussian(1.0 / jnp.sqrt(_spread(t.mechanism.mechanism)))
        term = _law.Term(step._masses_function())
        count = jnp.asarray(t.multiplicity, jnp.float64)
        steps = jnp.asarray(t.mechanism.num_steps, jnp.float64)
        one = _average_guess.guess_log_delta(term, steps, epsilon, jnp.maximum(count, 1.0))
        guess = jnp.maximum(guess, one) if len(terms) > 1 else one
    return rather_small(guess)
