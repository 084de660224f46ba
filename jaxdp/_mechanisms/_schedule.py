"""Runs of many steps with their own parameters each: one mechanism with an axis of steps."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences
from jaxdp import _special as special
from jaxdp._mechanisms._base import Direction, Mechanism, Term, mechanism, require_mechanism
from jaxdp._mechanisms._combinators import Composition, log_any_failure, log_hazard
from jaxdp._mechanisms._gaussian import GaussianDP, GaussianFamily

_STEPS_AT_A_TIME = 16  # bounds memory: a sampled step holds the nodes of its quadrature


@mechanism
class Schedule(Composition):
    """The adaptive composition of steps whose parameters are arrays over the steps.

    The last axis of the mechanism's parameters counts the steps (axes before it are a batch);
    parameters without axes are the same in every step. Thousands of steps are one small
    program, differentiable with respect to every entry. A schedule of Gaussians is one Gaussian
    with mu^2 summed, exactly; any other is composed numerically, or by its Rényi divergences.

    Args:
      mechanism: of one step, with parameters of shape (..., steps) or (); not with parameters
        that are vectors in themselves.

    Raises:
      ValueError: if no parameter has an axis of steps, their lengths differ, or some are vectors
        in themselves. TypeError: if no mechanism.

    Example:
      >>> import jaxdp, numpy as np
      >>> run = jaxdp.Schedule(jaxdp.Gaussian(np.linspace(5.0, 15.0, 100)))
      >>> round(float(jaxdp.epsilon(run, 1e-5)), 4)
      5.1953
      >>> sgd = jaxdp.Schedule(jaxdp.PoissonSampled(jaxdp.Gaussian(np.linspace(1.0, 2.0, 9)), 0.1))
      >>> round(float(jaxdp.renyi(sgd, 4.0)), 4)
      0.1746
    """

    mechanism: Mechanism

    _core_ndims: ClassVar = {"mechanism": 1}

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        inner = jax.tree.leaves(self.mechanism, is_leaf=_has_axes)
        if any(_has_axes(x) for x in inner):
            raise ValueError(
                "mechanism must not be a schedule itself, nor have parameters that are vectors"
            )
        if self.steps is None:
            raise ValueError("mechanism must have parameters with an axis of steps")

    @property
    def steps(self) -> int | None:
        """The number of steps; None if no parameter has an axis."""
        lengths = {shape[-1] for x in jax.tree.leaves(self.mechanism) if (shape := np.shape(x))}
        lengths = lengths - {1} or lengths
        if len(lengths) > 1:
            raise ValueError(f"mechanism must have one number of steps, got {sorted(lengths)}")
        return lengths.pop() if lengths else None

    def _in_domain(self) -> jax.Array:
        return jnp.all(self.mechanism._in_domain())

    def _symmetric(self) -> bool:
        return self.mechanism._symmetric()

    def _terms(self) -> list[Term]:
        """For each factor of a step, the composition over all steps."""
        count = self.steps or 1
        inner = jax.tree.map(
            lambda x: jnp.broadcast_to(x, (*jnp.shape(x)[:-1], count)), self.mechanism
        )
        terms = []
        for term in inner._terms():
            copies = term.multiplicity * jnp.ones(count)
            if isinstance(term.mechanism, GaussianFamily):
                square = jnp.sum(copies * term.mechanism._mu() ** 2, axis=-1)
                # a sum of n terms errs by n roundoffs
                ulps = jnp.max(jnp.asarray(term.mechanism._mu_ulps())) + count + 4.0
                terms.append(Term(GaussianDP(jnp.sqrt(square), ulps), None))
            else:
                terms.append(Term(Steps(term.mechanism, copies), 1.0))
        return terms


def _has_axes(x: Any) -> bool:
    """Whether axes of its parameters belong to one evaluation already."""
    return isinstance(x, Mechanism) and bool(x._core_ndims)


def _rounded_up(count: int) -> float:
    return 1.0 + count * _divergences.SLACK


@mechanism
class Steps(Mechanism):
    """Factors over an axis of steps: like a `Term`, but many. Never seen by users."""

    mechanism: Any
    copies: Any

    @property
    def neighbours(self) -> str | None:
        """Those of the steps."""
        return self.mechanism.neighbours

    def _mapped(self, function: Any) -> Any:
        """The function of every step's mechanism, a few at a time, recomputed in reverse mode."""
        return jax.lax.map(
            jax.checkpoint(lambda x: function(*x)),
            (self.mechanism, self.copies),
            batch_size=_STEPS_AT_A_TIME,
        )

    def _in_domain(self) -> jax.Array:
        return jnp.all(self.mechanism._in_domain())

    def _rate(self, s: jax.Array) -> jax.Array:
        rates = self._mapped(lambda m, n: n * m._rate(s))
        return jnp.sum(rates) * _rounded_up(rates.shape[0])

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        low, high = self._mapped(lambda m, n: tuple(n * end for end in m._loss_range()))
        return jnp.sum(low), jnp.sum(high)

    def _range_ulps(self) -> Any:
        own = jnp.max(self._mapped(lambda m, n: jnp.asarray(m._range_ulps(), jnp.float64)))
        return own + jax.tree.leaves(self.copies)[0].shape[-1] + 1.0

    def _log_failure(self, direction: Direction) -> jax.Array:
        hazards = self._mapped(lambda m, n: log_hazard(m._log_failure(direction), n))
        return log_any_failure(special.logsumexp(hazards))

    def _symmetric(self) -> bool:
        return self.mechanism._symmetric()

    def _terms(self) -> list[Term]:
        return [Term(self, 1.0)]
