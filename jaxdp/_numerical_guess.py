"""How small a delta is, roughly, before its law is tabulated: choices only, nothing to be right.

A composition is taken for the Gaussian mechanism with its Kullback-Leibler divergence. Tails that
are heavier make delta larger than that, and tables that reach farther than they need to.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp import _divergences, _law
from jaxdp._law import _average_guess
from jaxdp._mechanisms import Average, Gaussian, Mechanism, Mixture, PoissonSampled, _curve
from jaxdp._mechanisms._gaussian import GaussianFamily

_LEAST, _ROOM, _LIGHTER = -650.0, 8.0, 1.25  # lighter tails: so many times the logarithm


def _spread(m: Mechanism) -> jax.Array:
    """About the variance of the privacy loss, no extreme number."""
    return jnp.clip(_variance(m), 1e-6, 1e4)


def _variance(m: Mechanism) -> jax.Array:
    total = jnp.float64(0.0)
    for t in _curve.canonical_terms(m):
        step = t.mechanism
        if isinstance(step, Average):
            one = _spread(step.mechanism) / step.num_steps
            one *= getattr(step, "num_selected", 1.0) ** 2
        elif hasattr(step, "copies"):  # a schedule's
            one = jnp.sum(step._mapped(lambda m, n: n * _variance(m)))
        elif isinstance(step, PoissonSampled):
            one = _spread(step.mechanism) * step.sampling_probability**2
        elif step._by_curve and step._held():  # (what is selected makes delta larger)
            one = _spread(step.mechanism)
        elif isinstance(step, Mixture):
            parts = jnp.stack([_spread(part) for part in step.mechanisms])
            one = jnp.sum(jnp.exp(step._log_weights()) * parts)
        else:
            one = 2.0 * step._rate(jnp.float64(1.0))
        total += t.multiplicity * jnp.where(jnp.isfinite(one), one, 1.0)
    return total


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


def _gaussian_variance(m: Mechanism) -> jax.Array:
    """The variance of the loss of the Gaussian that is composed with the averages."""
    terms = [t for t in _curve.canonical_terms(m) if isinstance(t.mechanism, GaussianFamily)]
    return sum((t.multiplicity * t.mechanism._mu() ** 2 for t in terms), jnp.zeros(()))


def of_averages(
    m: Mechanism, epsilon: jax.Array, s: _law.Sign, step: Callable[[Average], _law.Term]
) -> jax.Array:
    """About log delta: the largest of one average's, and of several kinds what a Gaussian says."""
    terms = _curve.canonical_terms(m)
    averages = [t for t in terms if isinstance(t.mechanism, Average)]
    # The parts into which one allocation is split, which hold the same step, count together.
    kinds: dict[int, list[Any]] = {}
    for t in averages:
        kinds.setdefault(id(t.mechanism.mechanism), []).append(t)
    beside = lax.stop_gradient(_gaussian_variance(m))

    def of(parts: list[Any]) -> jax.Array:
        number = sum(jnp.asarray(t.multiplicity, jnp.float64) for t in parts)
        numbers = (parts[0].mechanism.num_steps, epsilon, number)
        return _average_guess.guess_log_delta(
            step(parts[0].mechanism),
            *(jnp.asarray(x, jnp.float64) for x in numbers),
            beside=beside,
            s=s,
        )

    guess = functools.reduce(jnp.maximum, [of(parts) for parts in kinds.values()])
    # (A schedule's steps may be tests of a choice, which have no moments to take a Gaussian by.)
    if len(kinds) == 1 or any(hasattr(t.mechanism, "copies") for t in terms):
        return guess
    return jnp.maximum(guess, rather_small(as_gaussian(m, jnp.abs(epsilon))))
