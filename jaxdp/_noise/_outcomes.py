"""Small trees of finite pairs, all their outcomes enumerated: exact laws, whatever their lattice.

Samples, choices of a step, mixtures and compositions of finite pairs are finite pairs. Where these
have few outcomes nothing is tabulated: every outcome keeps its masses and its loss. Outcomes that
differ in the order of equal draws alone are one, the draws counted: t draws of k outcomes have
C(t + k - 1, k - 1). Counts are static here, for they are sizes.

Errors of rounding: `_outcome_laws`.
"""

import abc
import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _divergences, _special
from jaxdp import _special_subnormal as subnormal
from jaxdp._divergences import SLACK
from jaxdp._mechanisms import Direction, Mechanism, mechanism
from jaxdp._mechanisms._base import Masses
from jaxdp._noise import _atoms
from jaxdp._noise._finite_pairs import FiniteFamily, first_largest
from jaxdp._noise._outcome_laws import Law, counted, draws, finite, power, product, size
from jaxdp._special import log1p


def law_of(pair: FiniteFamily) -> Law:
    """The outcomes of a finite pair: enumerated, or as they are given."""
    if isinstance(pair, Outcomes):
        return pair._law()
    log_p, log_q = pair._logs()
    both = (log_p > -jnp.inf) & (log_q > -jnp.inf)
    loss = jnp.where(both, finite(log_p) - finite(log_q), 0.0)
    error = SLACK * (4.0 * (size(log_p) + size(log_q)) + log_p.shape[0] + 8.0)
    return Law(log_p, log_q, loss, error, jnp.where(both, 2.0 * error, 0.0))


class Outcomes(FiniteFamily):
    """Abstract: a finite pair whose outcomes are computed with bounds of their errors."""

    @abc.abstractmethod
    def _law(self) -> Law:
        """The outcomes."""

    @abc.abstractmethod
    def _parts(self) -> tuple[FiniteFamily, ...]:
        """What it is made of."""

    def _in_domain(self) -> jax.Array:
        parts = jnp.stack([jnp.asarray(part._in_domain()) for part in self._parts()])
        inside = jnp.all(parts)
        for name, domain in self._domains.items():
            inside = inside & jnp.all(domain.contains(getattr(self, name)))
        return inside

    def _logs(self) -> tuple[jax.Array, jax.Array]:
        law = self._law()
        return law.log_p, law.log_q

    def _losses(self) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        law = self._law()
        return law.log_p, law.log_q, law.loss, jnp.where(law.both, law.log_q, -jnp.inf)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        law = self._law()
        off = lax.stop_gradient(law.off + 2.0 * SLACK * jnp.abs(law.loss))
        low = -first_largest(jnp.where(law.both, off - law.loss, -jnp.inf))
        return low, first_largest(jnp.where(law.both, law.loss + off, -jnp.inf))

    def _log_failure(self, direction: Direction) -> jax.Array:
        """Rounded up by what masses are off, or a delta below it would be thought to be met."""
        law = self._law()
        mass, other = (law.log_p, law.log_q) if direction == "remove" else (law.log_q, law.log_p)
        rounding = lax.stop_gradient(law.error) + SLACK * (8.0 + mass.shape[0])
        return _special.logsumexp(jnp.where(other > -jnp.inf, -jnp.inf, mass + rounding))

    def _mass_error(self) -> jax.Array:
        """Of masses, and of losses, as if these were the masses'."""
        law = self._law()
        return lax.stop_gradient(jnp.max(law.error) + jnp.max(law.off))

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return self._masses_function()(lo, hi)

    def _masses_function(self) -> Masses:
        law = self._law()
        log_p, log_q = (jnp.where(law.both, x, -jnp.inf) for x in (law.log_p, law.log_q))
        return lambda lo, hi: _atoms.interval_log_masses(lo, hi, law.loss, log_q, log_p)

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        """Sum of p (1 - e^{epsilon - loss}), each factor moved by what it may be off."""
        law = self._law()
        remove = direction == "remove"
        a, loss = (law.log_p, law.loss) if remove else (law.log_q, -law.loss)
        live = a > -jnp.inf
        units = slack / SLACK
        rounding = 4.0 * slack * (jnp.abs(epsilon) + jnp.abs(law.loss))
        gap = epsilon - loss - lax.stop_gradient(units * law.off + rounding)
        gap = jnp.where(law.both, gap, -jnp.inf)
        inside = live & (gap < 0.0)
        top = jnp.where(live, a, 0.0)
        terms = top + _special.log1mexp(jnp.where(inside, gap, -1.0))
        terms = terms + lax.stop_gradient(units * law.error)
        total = _special.logsumexp(jnp.where(inside, terms, -jnp.inf))
        total = total + (32.0 + a.shape[0]) * slack
        return jnp.minimum(_divergences.log_rounded(total, 4.0 * slack), 0.0)


@mechanism
class Known(Outcomes):
    """Outcomes that are computed already; `inside` says whether the parameters were valid."""

    law: Law
    inside: Any

    _core_ndims: ClassVar = {"law": 1}

    def _parts(self) -> tuple[FiniteFamily, ...]:
        return ()

    def _in_domain(self) -> jax.Array:
        return self.inside

    def _outcomes(self) -> int:
        return self.law.loss.shape[-1]

    def _law(self) -> Law:
        return self.law


def known(m: Mechanism) -> Mechanism:
    """m, its outcomes computed once if it enumerates them: what asks often holds no copies of it.

    Only inside the island.
    """
    return Known(m._law(), m._in_domain()) if isinstance(m, Outcomes) else m


@mechanism
class Response(Outcomes):
    """Randomised response that reveals its input with probability delta; None: which never does."""

    epsilon: ArrayLike
    delta: ArrayLike | None = None

    def _parts(self) -> tuple[FiniteFamily, ...]:
        return ()

    def _in_domain(self) -> jax.Array:
        inside = (jnp.asarray(self.epsilon) > 0.0) & jnp.isfinite(jnp.asarray(self.epsilon))
        delta = 0.0 if self.delta is None else jnp.asarray(self.delta)
        return inside & (delta >= 0.0) & (delta < 1.0)

    def _outcomes(self) -> int:
        return 2 if self.delta is None else 4

    def _law(self) -> Law:
        loss, log_q = _divergences.randomized_response_nodes(jnp.asarray(self.epsilon, jnp.float64))
        log_p = log_q[::-1]  # the same two masses
        if self.delta is not None:
            rest = log1p(-jnp.asarray(self.delta, jnp.float64))
            fails, none = subnormal.log_positive(self.delta)[None], jnp.full((1,), -jnp.inf)
            log_p = jnp.concatenate([log_p + rest, fails, none])
            log_q = jnp.concatenate([log_q + rest, none, fails])
            loss = jnp.concatenate([loss, jnp.zeros((2,))])
        error = SLACK * (8.0 * (size(log_p) + size(log_q)) + 8.0)
        return Law(log_p, log_q, loss, error, jnp.zeros_like(loss))


@mechanism
class Thinned(Outcomes):
    """A finite pair on a Poisson sample: P is (1 - q) Q + q P."""

    pair: FiniteFamily
    sampling_probability: ArrayLike

    def _parts(self) -> tuple[FiniteFamily, ...]:
        return (self.pair,)

    def _in_domain(self) -> jax.Array:
        q = jnp.asarray(self.sampling_probability)
        return self.pair._in_domain() & (q > 0.0) & (q <= 1.0)

    def _outcomes(self) -> int:
        return self.pair._outcomes()

    def _law(self) -> Law:
        law, q = law_of(self.pair), jnp.asarray(self.sampling_probability, jnp.float64)
        log_rate, log_rest = jnp.log(q), _divergences.log_positive(1.0 - q)
        log_p = _divergences.log_add(log_rest + law.log_q, log_rate + law.log_p)
        used = (law.log_q > -jnp.inf) & (log_p > -jnp.inf)
        # Without P, X is 1 - q; a loss that is off moves by as much at most.
        loss = _divergences.sampled_loss(jnp.where(law.both, law.loss, 0.0), q)
        without = log1p(-jnp.where(q < 1.0, q, 0.5))
        loss = jnp.where(law.both, loss, jnp.where(used, without, 0.0))
        # A loss near 0 is off by its slope, q e^L / (1 - q + q e^L), times the inner one's off.
        slope = jnp.exp(jnp.minimum(log_rate + law.loss - loss, 0.0)) * (1.0 + 1e-9)
        off = slope * (1.0 + 2.0 * law.off) * law.off + 16.0 * SLACK * (
            jnp.abs(loss) + slope * jnp.abs(law.loss)
        )
        off = jnp.where(used, lax.stop_gradient(off), 0.0)
        sizes = size(law.log_p) + size(law.log_q) + size(log_rate) + size(log_rest)
        error = law.error + SLACK * (8.0 * (sizes + size(log_p)) + 8.0)
        return Law(log_p, law.log_q, jnp.where(used, loss, 0.0), error, off)


@mechanism
class Labelled(Outcomes):
    """A mixture of finite pairs, the choice known."""

    pairs: Any
    weights: ArrayLike

    _core_ndims: ClassVar = {"weights": 1}

    def _parts(self) -> tuple[FiniteFamily, ...]:
        return tuple(self.pairs)

    def _in_domain(self) -> jax.Array:
        weights = jnp.asarray(self.weights)
        good = jnp.all((weights >= 0.0) & (weights <= 1.0))
        return super()._in_domain() & good & (jnp.abs(jnp.sum(weights) - 1.0) <= 1e-5)

    def _outcomes(self) -> int:
        return sum(pair._outcomes() for pair in self.pairs)

    def _law(self) -> Law:
        weights = jnp.asarray(self.weights, jnp.float64)
        log_weights = _divergences.log_positive(weights / jnp.sum(weights))
        laws = [law_of(pair) for pair in self.pairs]
        moved = []
        for log_weight, law in zip(log_weights, laws, strict=True):
            log_p, log_q = law.log_p + log_weight, law.log_q + log_weight
            sizes = size(log_p) + size(log_q) + size(log_weight)
            error = law.error + SLACK * (8.0 * sizes + 8.0 + len(laws))
            moved.append(law._replace(log_p=log_p, log_q=log_q, error=error))
        return Law(*(jnp.concatenate(parts) for parts in zip(*moved, strict=True)))


@mechanism
class Product(Outcomes):
    """The composition of finite pairs, each so many times."""

    pairs: Any
    counts: tuple[int, ...] = dataclasses.field(metadata={"static": True})

    def _parts(self) -> tuple[FiniteFamily, ...]:
        return tuple(self.pairs)

    def _outcomes(self) -> int:
        parts = zip(self.pairs, self.counts, strict=True)
        return math.prod(draws(n, pair._outcomes()) for pair, n in parts)

    def _law(self) -> Law:
        parts = zip(self.pairs, self.counts, strict=True)
        return functools.reduce(product, [power(law_of(pair), n) for pair, n in parts])


@mechanism
class Chosen(Outcomes):
    """One of `num_steps` steps with a finite pair, chosen uniformly: P is of that step alone."""

    pair: FiniteFamily
    num_steps: int = dataclasses.field(metadata={"static": True})

    def _parts(self) -> tuple[FiniteFamily, ...]:
        return (self.pair,)

    def _outcomes(self) -> int:
        return draws(self.num_steps, self.pair._outcomes())

    def _law(self) -> Law:
        law, t = law_of(self.pair), self.num_steps
        number = law.loss.shape[0]
        times, orders = counted(t, number)
        none_q = (law.log_q == -jnp.inf).astype(jnp.float64)
        lacking = times @ none_q
        base = times @ finite(law.log_q) + orders
        log_q = jnp.where(lacking == 0.0, base, -jnp.inf)
        r = SLACK * (number + 8.0)
        sizes = times @ size(law.log_q) + np.abs(orders)
        error_q = times @ jnp.where(none_q > 0.0, 0.0, law.error) + r * (sizes + 1.0)
        # P: the step that is chosen has outcome i, in n_i / t of the orders.
        with np.errstate(divide="ignore"):
            share = np.log(times / t)
        some = (share > -np.inf) & (law.log_p > -jnp.inf) & (lacking[:, None] == none_q)
        parts = jnp.where(share > -np.inf, share, 0.0) + base[:, None]
        parts = parts + (finite(law.log_p) - finite(law.log_q))
        log_p = _special.logsumexp(jnp.where(some, parts, -jnp.inf), axis=-1)
        own = law.error + r * (size(law.log_p) + size(law.log_q))
        moved = error_q[:, None] + own + 4.0 * SLACK * np.where(times > 0, np.abs(share), 0.0)
        moved = jnp.max(jnp.where(some, moved, 0.0), axis=-1) + r * (size(log_p) + sizes + 1.0)
        both = (log_p > -jnp.inf) & (log_q > -jnp.inf)
        loss, off = _mean_loss(law, times / t)
        loss, off = jnp.where(both, loss, 0.0), jnp.where(both, off, 0.0)
        return Law(log_p, log_q, loss, lax.stop_gradient(jnp.maximum(moved, error_q)), off)


def _mean_loss(law: Law, shares: np.ndarray) -> tuple[jax.Array, jax.Array]:
    """log sum_i s_i X_i for the rows s of shares, and its error: next to 0 through X_i - 1.

    Of outcomes of Q: without P they have X_i = 0, and those that Q lacks have no share that counts.
    """
    number = law.loss.shape[0]
    used = law.log_q > -jnp.inf
    far = jnp.any(jnp.where(used, law.loss, 0.0) > 600.0)
    excess = jnp.expm1(jnp.where(law.both & ~far, law.loss, 0.0))
    excess = jnp.where(law.both, excess, jnp.where(used, -1.0, 0.0))
    change = shares @ excess
    close = ~far & (change > -0.5)
    near = log1p(jnp.where(close, change, 0.0))
    log_shares = np.log(np.where(shares > 0.0, shares, 1.0))
    parts = jnp.where((shares > 0.0) & law.both, log_shares + law.loss, -jnp.inf)
    distant = _special.logsumexp(parts, axis=-1)
    some = distant > -jnp.inf
    loss = jnp.where(close, near, jnp.where(some, distant, 0.0))
    # What X_i - 1 and X_i are off by, relative to the mean.
    r = SLACK * (number + 8.0)
    ratio = jnp.where(law.both & ~far, jnp.exp(jnp.minimum(law.loss, 600.0)), 0.0)
    wrong = shares @ (r * jnp.abs(excess) + 2.0 * ratio * law.off)
    off_near = 2.0 * wrong * jnp.exp(-jnp.where(close, near, 0.0)) + 8.0 * SLACK * jnp.abs(loss)
    largest = jnp.max(jnp.where(law.both, jnp.abs(law.loss) + law.off / SLACK, 0.0))
    off_far = 2.0 * SLACK * (largest + number + 8.0 + jnp.abs(loss) - np.min(log_shares))
    return loss, lax.stop_gradient(jnp.where(close, off_near, off_far))
