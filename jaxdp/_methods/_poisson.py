r"""Methods for random allocation: comparisons with Poisson subsampling (Feldman & Shenfeld 2025).

Write A for the ratio of one of t steps, P for that of t Poisson-subsampled steps at rate lam,
lam' = 1 - (1 - lam)^t. All comparisons are in the convex order, hence hold for every g >= 0 in both
directions, each read with its own curve.

Decomposition (Theorem 4.1). P is a mixture of allocations of 0, 1, 2, ... steps, and more
steps are larger in the convex order (Lemma 4.2: association). So A is below P given that the
record joined at all, whose ratio is (P - (1 - lam'))/lam':

    remove   H_g(A) <= H_{1 + lam' (g - 1)}(P) / lam',
    add      H_g(A) <= (c/lam') H_{g/c}(P),   c = lam' + (1 - lam') g

(the printed theorem has the first alone). Capping the number of steps that a Poisson-sampled record
joins lowers it too (Corollary 4.5), so that its curve needs no formula of its own.

Posterior sampling (Theorem 3.2, Corollary 3.12). Allocation is a sequence of subsampled steps at
the posterior rates 1/(t - sum_{j <= i} (1 - X_j)). These stay below eta = 1/(t (1 - gamma)) but for
an event that has probability <= delta' under Q^t and under A; the steps so truncated are below
Poisson subsampling at eta, hence H_g(A) <= H_g(P_eta) + delta', either direction. X >= 0 and
e^-x <= 1 - x + x^2/2 give, with Doob's inequality, P(max_i sum_{j <= i} (1 - X_j) > gamma t) <=
exp(-t gamma^2/(2 E X^2)); the tilted slot of A only helps. So

    gamma = C sqrt(2 log(1/delta')/t),   C^2 = E_Q X^2,

or C = sinh eps0 for an eps0-DP step (Azuma; printed as cosh); eta = 1 where gamma >= 1. There is no
term t delta0. For n blocks each takes delta'/n, and the blocks' steps compose.
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _checks, _divergences, _numerical, _roots
from jaxdp._mechanisms import Average, Composed, Direction, Mechanism, PoissonSampled, Repeated
from jaxdp._mechanisms._base import Term
from jaxdp._mechanisms._curve import canonical_terms, single
from jaxdp._methods._base import OnGrid, UpperBound
from jaxdp._special import log1p

_RATES = (1.0, 0.5, 0.25, 0.1, 0.03)  # of 1/t: small rates are better for small epsilon
_SHARES = (0.5, 0.1, 0.01, 1e-3)  # of delta that the truncated posterior may take
_SLACK = 16.0 * _divergences.SLACK


class Conditional(NamedTuple):
    """Where the curve of the Poisson scheme bounds that of allocation, and times what."""

    epsilon: jax.Array
    log_factor: jax.Array


def conditional(
    epsilon: jax.Array, rate: jax.Array, t: jax.Array, direction: Direction
) -> Conditional:
    """H_{e^eps}(A) <= e^log_factor H_{e^epsilon}(P), see the module's docstring."""
    joined = -jnp.expm1(t * log1p(-rate))
    if direction == "remove":
        return Conditional(_divergences.sampled_loss(epsilon, joined), -jnp.log(joined))
    missed = _divergences.log_positive(1.0 - joined)
    log_c = jnp.logaddexp(jnp.log(joined), missed + epsilon)
    return Conditional(epsilon - log_c, log_c - jnp.log(joined))


def allocated(epsilon: jax.Array, rate: jax.Array, t: jax.Array, direction: Direction) -> jax.Array:
    """The epsilon of allocation at which `conditional` asks for this one; inf if there is none."""
    joined = -jnp.expm1(t * log1p(-rate))
    if direction == "remove":  # (the inverse of a sample's loss at a rate is that at 1/rate)
        return _divergences.sampled_loss(epsilon, 1.0 / joined)
    rest = 1.0 - jnp.exp(epsilon) * (1.0 - joined)
    return jnp.where(
        rest > 0.0, epsilon + jnp.log(joined) - _divergences.log_positive(rest), jnp.inf
    )


def deviation(constant: jax.Array, t: jax.Array, log_inverse_delta: jax.Array) -> jax.Array:
    """gamma from C, t and log(1/delta')."""
    return constant * jnp.sqrt(2.0 * log_inverse_delta / t)


def posterior_rate(constant: jax.Array, t: jax.Array, log_inverse_delta: jax.Array) -> jax.Array:
    """eta from C, t and log(1/delta')."""
    gamma = deviation(constant, t, log_inverse_delta)
    inside = gamma < 1.0
    rate = 1.0 / (t * (1.0 - jnp.where(inside, gamma, 0.0)))
    return jnp.where(inside, jnp.minimum(rate, 1.0), 1.0)


def deviation_constant(m: Mechanism) -> jax.Array:
    """C of a step: sqrt(E_Q X^2), or sinh eps0 where that is less; inf for a step that can fail."""
    log_second = sum(2.0 * t.multiplicity * t.mechanism._rate(2.0) for t in canonical_terms(m))
    low, high = m._loss_range()
    pure = jnp.maximum(high, -low)
    failing = (m._log_failure("remove") > -jnp.inf) | (m._log_failure("add") > -jnp.inf)
    sinh = jnp.where(pure < 300.0, jnp.sinh(jnp.minimum(pure, 300.0)), jnp.inf)
    return jnp.where(failing, jnp.inf, jnp.minimum(jnp.exp(0.5 * log_second), sinh))


def one_block(m: Mechanism) -> Average | None:
    """The allocation that m is, if it is one block of a step with a law."""
    terms = canonical_terms(m)
    block = terms[0].mechanism
    if len(terms) != 1 or terms[0].count is not None or not isinstance(block, Average):
        return None
    return block


class _Comparison(UpperBound, OnGrid):
    """Abstract: allocations through a Poisson scheme that the engine computes."""

    def _refusal(self, m: Mechanism) -> str | None:
        steps = [t.mechanism for t in canonical_terms(m) if isinstance(t.mechanism, Average)]
        if not steps:
            return f"{type(self).__name__}() is for compositions with RandomAllocation"
        if any(single(canonical_terms(s.mechanism)) is None for s in steps):
            return "a composition inside an allocation has no one-step law"
        if not _numerical.has_law(m):
            return f"{type(self).__name__}() needs loss laws"
        return None


def _engine(m: Mechanism, epsilon: jax.Array, d: Direction, grid_size: int | None) -> jax.Array:
    return jnp.minimum(_numerical.log_delta(m, epsilon, d, (1,), grid_size)[0], 0.0)


def decomposed_log_delta(
    step: Mechanism,
    t: jax.Array,
    rate: jax.Array,
    epsilon: jax.Array,
    d: Direction,
    grid_size: int | None,
) -> jax.Array:
    """Theorem 4.1 at one rate of the Poisson scheme."""
    at = conditional(epsilon, rate, t, d)
    moved = at.epsilon - _SLACK * (1.0 + jnp.abs(epsilon) + jnp.abs(at.epsilon))
    scheme = Repeated(PoissonSampled(step, rate), t)
    return jnp.minimum(at.log_factor + _engine(scheme, moved, d, grid_size) + _SLACK, 0.0)


@dataclasses.dataclass(frozen=True)
class Decomposition(_Comparison):
    """Random allocation through Poisson subsampling given that the record joins at all.

    An upper bound for k = 1, in both directions (Feldman & Shenfeld 2025, Theorem 4.1, with the add
    direction that it leaves out): some 1.6 times the epsilon of Poisson subsampling at rate 1/t.
    For one epoch; `decomposed` makes it a mechanism, which composes.

    Args:
      sampling_probability: the rate of the Poisson scheme, in (0, 1]; None tries several.
      grid_size: as for Numerical, which computes that scheme.

    Raises:
      ValueError: for a rate outside (0, 1] or another grid size.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 100)
      >>> bound = jaxdp.delta(run, 1.0, direction="remove", method=jaxdp.Decomposition(0.01))
      >>> bool(jaxdp.delta_bounds(run, 1.0, direction="remove")[0] < bound < 1e-3)
      True
    """

    sampling_probability: float | None = None
    grid_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sampling_probability is not None:
            rate = _checks.number("sampling_probability", self.sampling_probability, _checks.RATE)
            object.__setattr__(self, "sampling_probability", rate)

    def _refusal(self, m: Mechanism) -> str | None:
        if one_block(m) is None:
            return (
                "Decomposition() is for one RandomAllocation, k = 1, one epoch; jaxdp.decomposed "
                "is that as a mechanism, to be repeated"
            )
        return super()._refusal(m)

    def _scheme(self, m: Mechanism) -> tuple[Mechanism, jax.Array, jax.Array]:
        """One step, how many there are, and the rates to try."""
        block = one_block(m)
        assert block is not None  # as `_refusal` saw to
        given = self.sampling_probability
        rates = jnp.asarray(_RATES) / block.num_steps if given is None else jnp.asarray([given])
        return block.mechanism, block.num_steps, jnp.minimum(rates, 1.0)

    def _log_delta_above(self, m: Mechanism, epsilon: jax.Array, d: Direction) -> jax.Array:
        step, t, rates = self._scheme(m)

        def one(rate):
            return decomposed_log_delta(step, t, rate, epsilon, d, self.grid_size)

        return jnp.min(jax.vmap(one)(rates))

    def _epsilon_above(self, m: Mechanism, log_delta: jax.Array, d: Direction) -> jax.Array:
        """The Poisson scheme's epsilon for lam' delta, moved; to add, a root that begins there.

        (Far beyond the root the bound is trivial: a search that begins there would not come back.)
        """
        step, t, rates = self._scheme(m)

        def moved_of(rate: jax.Array) -> jax.Array:
            aim = log_delta + jnp.log(-jnp.expm1(t * log1p(-rate))) - _SLACK
            scheme = Repeated(PoissonSampled(step, rate), t)
            epsilon = _numerical.epsilon(scheme, aim, d, (1,), self.grid_size)[0]
            return allocated(epsilon, rate, t, d)

        if d == "remove":
            least = jnp.min(jax.vmap(moved_of)(rates))
            return least * (1.0 + _SLACK)  # (every operation is good to a few roundings)
        moved = moved_of(rates[0])

        def excess(e):
            return self._log_delta_above(m, e, d) - log_delta

        start = jax.lax.stop_gradient(jnp.where(jnp.isfinite(moved), moved, 1.0))
        start = jnp.where(jnp.isfinite(log_delta), start, jnp.nan)
        return jnp.maximum(_roots.safe_root(excess, start, 1e-6, 1e-9), 0.0)


def _merged(terms: list[Term]) -> list[Term]:
    """Blocks of m + 1 steps as blocks of m, which dominate them (delta falls with t)."""
    merged: list[Term] = []
    for term in terms:
        if getattr(term.mechanism, "leftover", False):
            first = merged.pop()
            merged.append(Term(first.mechanism, first.multiplicity + term.multiplicity))
        else:
            merged.append(term)
    return merged


def _posterior_scheme(m: Mechanism, log_delta: jax.Array | None) -> Mechanism:
    """The Poisson scheme that bounds m up to delta'; without one, at the rates 1/t."""
    terms = _merged(canonical_terms(m))
    blocks = sum(t.multiplicity for t in terms if isinstance(t.mechanism, Average))

    def replaced(term: Term) -> Mechanism:
        step = term.mechanism
        if not isinstance(step, Average):
            return step if term.count is None else Repeated(step, term.count)
        t = step.num_steps
        rate = 1.0 / t
        if log_delta is not None:
            constant = deviation_constant(step.mechanism)
            rate = posterior_rate(constant, t, jnp.log(blocks) - log_delta)
        return Repeated(PoissonSampled(step.mechanism, rate), t * term.multiplicity)

    return Composed([replaced(t) for t in terms])


@dataclasses.dataclass(frozen=True)
class PosteriorSampling(_Comparison):
    """Random allocation as subsampling at posterior rates, which stay close to 1/t.

    An upper bound (Feldman & Shenfeld 2025, Theorem 3.2 and Corollary 3.12, sharpened): Poisson
    subsampling at a rate (1 + o(1))/t, plus a small delta'. Tight for large t; for small t or
    little noise it is vacuous: the rate is 1.

    Args:
      grid_size: as for Numerical, which computes the Poisson scheme.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.RandomAllocation(jaxdp.Gaussian(2.0), 10_000)
      >>> bound = jaxdp.delta(run, 0.02, direction="remove", method=jaxdp.PosteriorSampling())
      >>> bool(bound < 1e-6)
      True
    """

    grid_size: int | None = None

    def _log_delta_above(self, m: Mechanism, epsilon: jax.Array, d: Direction) -> jax.Array:
        size = self.grid_size
        aim = jax.lax.stop_gradient(_engine(_posterior_scheme(m, None), epsilon, d, size))
        aim = jnp.clip(aim, -690.0, 0.0)

        def one(share):
            log_extra = aim + jnp.log(share)
            bound = _engine(_posterior_scheme(m, log_extra), epsilon, d, size)
            return jnp.logaddexp(bound, log_extra) + _SLACK

        return jnp.minimum(jnp.min(jax.vmap(one)(jnp.asarray(_SHARES))), 0.0)

    def _epsilon_above(self, m: Mechanism, log_delta: jax.Array, d: Direction) -> jax.Array:
        def one(share):
            scheme = _posterior_scheme(m, log_delta + jnp.log(share))
            rest = log_delta + log1p(-share) - _SLACK
            return _numerical.epsilon(scheme, rest, d, (1,), self.grid_size)[0]

        return jnp.min(jax.vmap(one)(jnp.asarray(_SHARES)))
