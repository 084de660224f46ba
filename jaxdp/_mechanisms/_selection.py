"""Private selection: the best of several candidates, or the first queries above a threshold."""

import abc
import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp._mechanisms._base import Base, Direction, Mechanism, Term, mechanism
from jaxdp._mechanisms._bounded_range import BoundedRange
from jaxdp._mechanisms._laplace import Laplace
from jaxdp._mechanisms._sparse_vector import ShiftedThreshold

Noise = Literal["gumbel", "exponential", "laplace"]
_SHARE_ERROR = 1e-15  # relative: of a quotient of powers


class Selection(Mechanism):
    """Abstract: a mechanism that one pair dominates, whatever the scores and the neighbours.

    Attributes:
      epsilon: of its pure differential privacy.
      monotone: whether one record moves all scores in the same direction.
    """

    epsilon: Any
    monotone: bool

    _domains: ClassVar = {"epsilon": _checks.POSITIVE}
    _replaceable: ClassVar = False  # the scores' sensitivity says what an exchange may do

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.monotone, bool):
            raise TypeError(f"monotone must be True or False, got {_checks.shown(self.monotone)}")

    @abc.abstractmethod
    def _pair(self) -> Base:
        """The pair."""

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._pair()._rate(s)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return self._pair()._loss_range()

    def _log_failure(self, direction: Direction) -> jax.Array:
        return self._pair()._log_failure(direction)

    def _failure(self, direction: Direction) -> jax.Array:
        return self._pair()._failure(direction)

    def _terms(self) -> list[Term]:
        return [Term(self._pair(), None)]

    def _symmetric(self) -> bool:
        return True

    def _scaled(self, scores: ArrayLike) -> jax.Array:
        """Scores in units of what the noise of scale 1 is for."""
        scores = jnp.asarray(scores, jnp.result_type(scores, float))
        scale = jnp.asarray(self.epsilon, scores.dtype)
        return scores * (scale if self.monotone else 0.5 * scale)


@mechanism
class ExponentialMechanism(Selection):
    r"""Chooses a candidate with probability proportional to e^(epsilon score/2), of sensitivity 1.

    McSherry & Talwar 2007; with e^(epsilon score) where the scores are monotone. It is epsilon-DP,
    and more: its losses span an interval of length epsilon (Durfee & Rogers 2019, arXiv
    1905.04273), so that one step has

    .. math:: \delta(x) = (1 - e^{(x - \varepsilon)/2})^2 / (1 - e^{-\varepsilon})
              \quad (0 \le x \le \varepsilon)

    and Rényi divergences below epsilon^2 alpha/8 (Cesar & Rogers 2021, arXiv 2004.07223; here the
    exact ones of the worst mechanism). Compositions are adaptive. Repeated alone, up to 256 times,
    the bounds bracket the optimal adaptive composition (Dong, Durfee & Rogers 2020, arXiv
    1909.13830), by dynamic programming; composed with other mechanisms, that of both in any order
    (proof in `jaxdp._numerical_range`). Above, Rényi divergences are looked at as well, beyond 256
    steps alone. Sampled, the bounds are the least of what the dominating law and the Rényi
    divergences say, and allocated, mixed or selected what the law says; from below, what two
    candidates of equal score attain, or of one much better. (`privacy_loss` has the dominating law,
    above as below.)

    Args:
      epsilon: > 0, any shape: the range of the loss.
      monotone: whether one record can only raise scores, or only lower them.

    Raises:
      ValueError: if a known epsilon is not finite and positive. TypeError: if monotone is no bool.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.Repeated(jaxdp.ExponentialMechanism(0.5), 16)
      >>> low, high = jaxdp.epsilon_bounds(run, 1e-6)  # pure composition has 8
      >>> bool(4.750 <= low <= high <= 4.755)
      True
    """

    epsilon: ArrayLike
    monotone: bool = dataclasses.field(default=False, metadata={"static": True})

    def _pair(self) -> Base:
        return BoundedRange(self.epsilon)

    def sample(self, key: jax.Array, value: ArrayLike) -> jax.Array:
        """The index of a candidate, int32.

        Args:
          key: a PRNG key.
          value: scores (..., candidates), in units of their sensitivity.
        """
        return _noisy_argmax(key, self._scaled(value), "gumbel")


@mechanism
class PermuteAndFlip(Selection):
    """The permute-and-flip mechanism (McKenna & Sheldon 2020, arXiv 2010.12603).

    Epsilon-DP like the exponential mechanism, and never worse in expected score. It reports the
    largest score after exponential noise of scale 2/epsilon, 1/epsilon if monotone (Ding et al.
    2021, arXiv 2105.07260), hence is dominated by the Laplace mechanism of scale 1/epsilon (see
    `ReportNoisyMax`), which two candidates attain in one step. Of compositions and samples, bounds
    from below are of that pair: candidates may come less near it.

    Args:
      epsilon: > 0, any shape.
      monotone: whether one record can only raise scores, or only lower them.

    Raises:
      ValueError: if a known epsilon is not finite and positive. TypeError: if monotone is no bool.

    Example:
      >>> import jaxdp
      >>> run = jaxdp.Repeated(jaxdp.PermuteAndFlip(0.5), 16)
      >>> float(jaxdp.epsilon(run, 1e-6)) < 8.0
      True
    """

    epsilon: ArrayLike
    monotone: bool = dataclasses.field(default=False, metadata={"static": True})

    def _pair(self) -> Base:
        return Laplace(1.0, self.epsilon)

    def sample(self, key: jax.Array, value: ArrayLike) -> jax.Array:
        """The index of a candidate, int32.

        Args:
          key: a PRNG key.
          value: scores (..., candidates), in units of their sensitivity.
        """
        return _noisy_argmax(key, self._scaled(value), "exponential")


@mechanism
class ReportNoisyMax(Selection):
    r"""The candidate of the largest score after noise of scale 2/epsilon, 1/epsilon if monotone.

    With Gumbel noise it is the exponential mechanism, with exponential noise permute-and-flip. With
    exponential or Laplace noise one step is dominated by the Laplace mechanism of scale 1/epsilon.
    Proof: let S be a set of candidates and D its largest noisy score less that of all others.
    Neighbours differ in D by at most a shift of 2 (1 if monotone). The noise has a hazard rate of
    at most lambda, one over its scale, and so has the largest of several (its density is at most
    lambda times the sum over i of the probabilities that i exceeds and all before i do not). So
    given the others, Pr(D > d) falls by a factor of e^-lambda at most for a unit of d, and given
    those in S so does Pr(D < d) in the other direction: the density of D is at most lambda min(Pr(D
    > d), Pr(D < d)). Equality is a Laplace law, whose shift makes the most of Pr(S). Two candidates
    with exponential noise have it, in one step: of compositions and samples, bounds from below are
    of that pair.

    Args:
      epsilon: > 0, any shape.
      noise: "gumbel", "exponential" or "laplace".
      monotone: whether one record can only raise scores, or only lower them.

    Raises:
      ValueError: if a known epsilon is not finite and positive, or for another noise. TypeError: if
        monotone is no bool.

    Example:
      >>> import jaxdp
      >>> laws = [jaxdp.ReportNoisyMax(1.0, n) for n in ("gumbel", "exponential", "laplace")]
      >>> [round(float(jaxdp.delta(m, 0.5)), 4) for m in laws]
      [0.0774, 0.2212, 0.2212]
    """

    epsilon: ArrayLike
    noise: Noise = dataclasses.field(default="gumbel", metadata={"static": True})
    monotone: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        Selection.__post_init__(self)
        _checks.check_choice("noise", self.noise, ("gumbel", "exponential", "laplace"))

    def _pair(self) -> Base:
        return BoundedRange(self.epsilon) if self.noise == "gumbel" else Laplace(1.0, self.epsilon)

    def sample(self, key: jax.Array, value: ArrayLike) -> jax.Array:
        """The index of a candidate, int32.

        Args:
          key: a PRNG key.
          value: scores (..., candidates), in units of their sensitivity.
        """
        return _noisy_argmax(key, self._scaled(value), self.noise)


@mechanism
class SparseVector(Selection):
    r"""The sparse vector technique: which queries exceed a threshold, up to c of them.

    Threshold and queries get Laplace noise of scales 1/epsilon_1 and 2 c/epsilon_2, c/epsilon_2 if
    monotone, epsilon_1 + epsilon_2 = epsilon in the ratio 1 : (2 c)^(2/3), or 1 : c^(2/3) (Lyu, Su
    & Li 2017, arXiv 1603.01699, Algorithm 7 and Theorem 4): epsilon-DP for any number of queries,
    chosen adaptively, and more: the threshold's noise hides as Laplace noise does, so that

    .. math:: \delta(x) \le 1 - e^{(x - \varepsilon)/2} \quad
              (\varepsilon_2 - \varepsilon_1 \le x \le \varepsilon)

    and next to 0 the chord of that curve (in e^x): one pair dominates, by law and by Rényi
    divergences, below that of randomised response (proof in `ShiftedThreshold`). For one positive
    answer to monotone queries it is that of `Laplace(1/epsilon)`. Fresh instances compose,
    `Repeated(SparseVector(epsilon), c)`; for many positive answers that is less than one of c.
    Bounds from below are of that pair: it is not known which queries, if any, come near it.

    Args:
      epsilon: > 0, any shape.
      num_positive: c, a known integer >= 1.
      monotone: whether one record moves all queries in the same direction.

    Raises:
      ValueError: if a known epsilon is not finite and positive, or c is not an integer >= 1.
        TypeError: if monotone is no bool.

    Example:
      >>> import jax, jax.numpy as jnp, jaxdp
      >>> svt = jaxdp.SparseVector(100.0)
      >>> svt.sample(jax.random.key(0), jnp.array([-9.0, -5.0, 9.0, 9.0])).tolist()
      [False, False, True, False]
    """

    epsilon: ArrayLike
    num_positive: int = dataclasses.field(default=1, metadata={"static": True})
    monotone: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        Selection.__post_init__(self)
        count = _checks.whole_number("num_positive", self.num_positive)
        object.__setattr__(self, "num_positive", count)

    def _ratio(self) -> float:
        """epsilon_2/epsilon_1."""
        return (self.num_positive if self.monotone else 2 * self.num_positive) ** (2.0 / 3.0)

    def _pair(self) -> Base:
        ratio = self._ratio()
        share = (ratio - 1.0) / (ratio + 1.0) * (1.0 + _SHARE_ERROR)
        return ShiftedThreshold(self.epsilon, share)

    def sample(self, key: jax.Array, value: ArrayLike) -> jax.Array:
        """Whether each query is above, bool; False for all that follow the last positive answer.

        Args:
          key: a PRNG key.
          value: queries less their thresholds (..., queries), in units of their sensitivity.
        """
        value = jnp.asarray(value, jnp.result_type(value, float))
        draws = self.num_positive if self.monotone else 2 * self.num_positive
        ratio = self._ratio()
        first = jnp.asarray(self.epsilon, value.dtype) / (1.0 + ratio)
        of_threshold, of_queries = jax.random.split(key)
        rho = jax.random.laplace(of_threshold, value.shape[:-1], value.dtype) / first
        nu = jax.random.laplace(of_queries, value.shape, value.dtype) * draws / (first * ratio)
        above = value + nu >= rho[..., None]
        before = jnp.cumsum(above, axis=-1) - above
        return above & (before < self.num_positive)


def _noisy_argmax(key: jax.Array, scores: jax.Array, noise: Noise) -> jax.Array:
    draw = getattr(jax.random, noise)
    return jnp.argmax(scores + draw(key, scores.shape, scores.dtype), axis=-1).astype(jnp.int32)
