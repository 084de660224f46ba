r"""The random number of runs K, of which the best one is released.

With f the generating function of K, 1 - u the probability that a run is no better than an outcome,
and gamma that of the truncated negative binomial law of shape eta and mean m,

.. math:: f'(1 - u) = m (1 + o u)^{-1-\eta}, \quad o = 1/\gamma - 1,

and m e^{-m u} of the Poisson law. Minus the log of what multiplies m is called `fall` here.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._divergences import exp_log, log_positive
from jaxdp._special import expm1, log1mexp, log1p

_BISECTIONS = 60
LEAST, _LARGEST = 1e-290, 1500.0  # of log 1/gamma
ROUNDED = 1e-12  # relative, of log 1/gamma and of what follows from it


def root(f: Callable[[jax.Array], jax.Array], low: float, high: float) -> jax.Array:
    """Where f, which rises in low <= x <= high (> 0), is 0; rounded up, with its derivative.

    By bisection of log x; the derivative is that of Newton's step from there.
    """

    def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = jnp.sqrt(ends[0]) * jnp.sqrt(ends[1])
        above = f(middle) >= 0.0
        return jnp.where(above, ends[0], middle), jnp.where(above, middle, ends[1])

    ends = jnp.asarray(low, jnp.float64), jnp.asarray(high, jnp.float64)
    x = lax.stop_gradient(lax.fori_loop(0, _BISECTIONS, halve, lax.stop_gradient(ends))[1])
    value, slope = jax.jvp(f, (x,), (jnp.ones_like(x),))
    slope = lax.stop_gradient(slope)
    moves = jnp.isfinite(slope) & (slope > 0.0)
    off = jnp.where(moves, value - lax.stop_gradient(value), 0.0)
    return x - off / jnp.where(moves, slope, 1.0)


def log_odds(mean: jax.Array, shape: float) -> jax.Array:
    """log 1/gamma of the mean: m = (e^L - 1) eta/(1 - e^{-eta L})."""
    target = jnp.log(mean)

    def excess(x: jax.Array) -> jax.Array:
        rest = log1mexp(-shape * x) - jnp.log(shape) if shape else jnp.log(x)
        return x + log1mexp(-x) - rest - target

    return root(excess, LEAST, _LARGEST)


class Runs(NamedTuple):
    """The law of K, by its mean and log 1/gamma (0, unused, if it is Poisson's)."""

    mean: jax.Array
    log_odds: jax.Array
    shape: float

    @staticmethod
    def of(mean: Any, shape: float) -> "Runs":
        """Of a mean and a shape eta; log 1/gamma is rounded up, for bounds from above."""
        found = Runs.nearest(mean, shape)
        more = found.log_odds * (1.0 + ROUNDED) + 1e-13 / (1.0 + min(shape, 1e300))
        return found._replace(log_odds=more)

    @staticmethod
    def nearest(mean: Any, shape: float) -> "Runs":
        """`of`, not rounded up."""
        mean = jnp.asarray(mean, jnp.float64)
        poisson = shape == float("inf")
        return Runs(mean, jnp.zeros(()) if poisson else log_odds(mean, shape), shape)

    @property
    def poisson(self) -> bool:
        """Whether the law is Poisson's."""
        return self.shape == float("inf")

    @property
    def steepness(self) -> jax.Array:
        """Of the fall, at u = 0."""
        return self.mean if self.poisson else (1.0 + self.shape) * self.odds

    @property
    def odds(self) -> jax.Array:
        """1/gamma - 1."""
        return expm1(self.log_odds)

    def fall(self, u: jax.Array) -> jax.Array:
        """log m less log f'(1 - u)."""
        if self.poisson:
            return self.mean * u
        return (1.0 + self.shape) * log1p(self.odds * u)

    def at_fall(self, fall: jax.Array) -> jax.Array:
        """The u of a fall."""
        if self.poisson:
            return fall / self.mean
        return expm1(fall / (1.0 + self.shape)) / self.odds

    def apart(self, log_delta: jax.Array) -> jax.Array:
        """Log of the chance that the best is another one, rounded up.

        Neighbours' runs may be the same ones but for the delta of one run at epsilon 0, each: then
        they are all the same ones with the probability of f(1 - delta).
        """
        found = self.log_share(jnp.zeros(()), exp_log(log_delta))
        return jnp.minimum(found * (1.0 - ROUNDED) + ROUNDED, 0.0)

    def log_share(self, u: jax.Array, mass: jax.Array) -> jax.Array:
        """Log of the probability of the best being in a mass, with u better than all of that."""
        if self.poisson:
            return -self.mean * u + log_positive(-expm1(-self.mean * mass))
        held = log1p(self.odds * u)
        more = log1p(self.odds * mass * jnp.exp(-held))
        if not self.shape:
            return log_positive(more) - jnp.log(self.log_odds)
        whole = log_positive(-expm1(-self.shape * self.log_odds))
        return -self.shape * held + log_positive(-expm1(-self.shape * more)) - whole
