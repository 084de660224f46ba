"""dp_accounting's events as mechanisms.

An event says what was run; which pairs of inputs are neighbours is said beside it, as to
dp_accounting's accountants. "add or remove one" and "replace special" (a record exchanged for one
without effect) give the same pair for everything additive or Poisson-sampled.
"""

import dataclasses
from typing import Any

import dp_accounting as dpa
import numpy as np
from dp_accounting import dp_event

from jaxdp._amplification import FinitePair
from jaxdp._mechanisms import Composed, Gaussian, Laplace, Mechanism, PoissonSampled, Repeated
from jaxdp._noise import DiscreteLaplace

Neighbours = dpa.NeighboringRelation


class UnsupportedEvent(ValueError):
    """An event without a mechanism here.

    Attributes:
      event: the part of the event that is at fault.
      reason: why, in a sentence.
    """

    def __init__(self, event: dp_event.DpEvent, reason: str) -> None:
        super().__init__(f"{reason}, in {event}")
        self.event, self.reason = event, reason


@dataclasses.dataclass(frozen=True)
class _Absolute:
    """An event that is no mechanism with parameters: it reveals nothing, or everything."""

    private: bool


NOTHING, EVERYTHING = _Absolute(True), _Absolute(False)


def from_dp_event(
    event: dp_event.DpEvent, neighboring_relation: Neighbours = Neighbours.ADD_OR_REMOVE_ONE
) -> Mechanism:
    """The mechanism that a dp_accounting event describes.

    Supported: Gaussian, Laplace, DiscreteLaplace, RandomizedResponse, PoissonSampled, Composed,
    SelfComposed, and NoOp inside compositions; MixtureOfGaussians where it is one Gaussian or a
    Poisson sample of one; SingleEpochTreeAggregation, whose depth of noisy sums is one
    Gaussian (Kairouz et al. 2021, appendix D). Noise parameters are per unit of sensitivity.

    Args:
      event: a `dp_accounting.DpEvent`.
      neighboring_relation: which inputs are neighbours. Replacing a record doubles the sensitivity
        of a Gaussian, and has no proven pair here for a sampled mechanism.

    Returns:
      A jaxdp mechanism, for any query or calibration.

    Raises:
      UnsupportedEvent: (a ValueError) naming the part that is not supported, and why; also for
        events that reveal nothing (NoOp, sampling probability 0) or everything (noise 0) as a
        whole, which have no parameters.

    Example:
      >>> import dp_accounting, jaxdp
      >>> from jaxdp import interop
      >>> event = dp_accounting.SelfComposedDpEvent(
      ...     dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0)), 1000)
      >>> m = interop.from_dp_event(event)
      >>> low, high = jaxdp.epsilon_bounds(m, 1e-5)
      >>> bool(low <= 1.828237 <= high)
      True
    """
    found = convert(event, neighboring_relation)
    if isinstance(found, _Absolute):
        reveals = "reveals nothing: there is nothing to account for"
        raise UnsupportedEvent(event, reveals if found.private else "is not private at all")
    return found


def convert(event: dp_event.DpEvent, relation: Neighbours) -> Mechanism | _Absolute:
    """The mechanism of an event, or NOTHING or EVERYTHING."""
    if isinstance(event, dp_event.NoOpDpEvent):
        return NOTHING
    if isinstance(event, dp_event.NonPrivateDpEvent):
        return EVERYTHING
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return repeat(convert(event.event, relation), event.count)
    if isinstance(event, dp_event.ComposedDpEvent):
        return compose([convert(e, relation) for e in event.events])
    converter = _CONVERTERS.get(type(event))
    if converter is None:
        raise UnsupportedEvent(event, f"{type(event).__name__} has no mechanism in jaxdp")
    return converter(event, relation)


def repeat(m: Mechanism | _Absolute, count: int) -> Mechanism | _Absolute:
    """The composition of `count` runs."""
    if count <= 0:
        raise ValueError(f"count must be positive, got {count}")
    return m if isinstance(m, _Absolute) or count == 1 else Repeated(m, float(count))


def compose(parts: list[Any]) -> Mechanism | _Absolute:
    """The composition of converted events."""
    if EVERYTHING in parts:
        return EVERYTHING
    mechanisms = [part for part in parts if part is not NOTHING]
    if not mechanisms:
        return NOTHING
    return mechanisms[0] if len(mechanisms) == 1 else Composed(mechanisms)


def _require(event: dp_event.DpEvent, relation: Neighbours, *allowed: Neighbours) -> None:
    if relation not in allowed:
        names = " or ".join(f"`{r.name}`" for r in allowed)
        raise UnsupportedEvent(
            event,
            f"neighboring_relation must be {names} for `{type(event).__name__}`. Found {relation}",
        )


_ZEROED = (Neighbours.ADD_OR_REMOVE_ONE, Neighbours.REPLACE_SPECIAL)


def _gaussian(event: dp_event.GaussianDpEvent, relation: Neighbours) -> Mechanism | _Absolute:
    if event.noise_multiplier == 0:
        return EVERYTHING
    return Gaussian(event.noise_multiplier, 2.0 if relation == Neighbours.REPLACE_ONE else 1.0)


def _laplace(event: dp_event.LaplaceDpEvent, relation: Neighbours) -> Mechanism | _Absolute:
    _require(event, relation, *_ZEROED)
    return EVERYTHING if event.noise_multiplier == 0 else Laplace(event.noise_multiplier)


def _discrete_laplace(
    event: dp_event.DiscreteLaplaceDpEvent, relation: Neighbours
) -> Mechanism | _Absolute:
    _require(event, relation, *_ZEROED)
    if event.noise_parameter == 0:
        return EVERYTHING
    return DiscreteLaplace(event.noise_parameter, event.sensitivity)


def _sampled(event: dp_event.PoissonSampledDpEvent, relation: Neighbours) -> Mechanism | _Absolute:
    _require(event, relation, *_ZEROED)
    inner = convert(event.event, relation)
    if event.sampling_probability == 0 or inner is NOTHING:
        return NOTHING
    if isinstance(inner, _Absolute) or event.sampling_probability == 1:
        return inner
    return PoissonSampled(inner, event.sampling_probability)


def _randomized_response(
    event: dp_event.RandomizedResponseDpEvent, relation: Neighbours
) -> Mechanism | _Absolute:
    """Over k buckets, uniform with probability p: x against another bucket, or against uniform."""
    _require(event, relation, Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL)
    p, k = event.noise_parameter, event.num_buckets
    if not 0 <= p <= 1 or k < 1:
        raise ValueError(f"noise_parameter must be in [0, 1] and num_buckets >= 1, got {event}")
    if k == 1 or p == 1:
        return NOTHING
    if p == 0:
        return EVERYTHING
    other = p / k
    if relation == Neighbours.REPLACE_SPECIAL:
        kept = [1.0 - p + other, (k - 1) * other]
        return FinitePair(kept, [1.0 / k, (k - 1.0) / k])
    rest = (k - 2) * other  # the buckets that tell nothing
    return FinitePair([1.0 - p + other, other, rest], [other, 1.0 - p + other, rest])


def _mixture(
    event: dp_event.MixtureOfGaussiansDpEvent, relation: Neighbours
) -> Mechanism | _Absolute:
    """Where at most one sensitivity is not 0, a Poisson sample of a Gaussian."""
    _require(event, relation, *_ZEROED)
    chances: dict[float, float] = {}
    for c, chance in zip(event.sensitivities, event.sampling_probs, strict=True):
        chances[float(c)] = chances.get(float(c), 0.0) + float(chance)
    chances = {c: chance for c, chance in chances.items() if c != 0.0 and chance > 0.0}
    if not chances:
        return NOTHING
    if event.standard_deviation == 0:
        return EVERYTHING
    if len(chances) > 1:
        raise UnsupportedEvent(
            event, "a mixture of several sensitivities has no mechanism in jaxdp"
        )
    ((sensitivity, chance),) = chances.items()
    gaussian = Gaussian(event.standard_deviation, abs(sensitivity))
    return gaussian if chance >= 1.0 else PoissonSampled(gaussian, chance)


def _tree(
    event: dp_event.SingleEpochTreeAggregationDpEvent, relation: Neighbours
) -> Mechanism | _Absolute:
    """A record is in one leaf of one tree; of n steps at most floor(log2 n) + 1 sums hold it."""
    _require(event, relation, Neighbours.REPLACE_SPECIAL)
    if event.noise_multiplier == 0:
        return EVERYTHING
    steps = np.max(np.asarray(event.step_counts))
    if steps < 1:
        raise ValueError(f"step_counts must be positive, got {event}")
    depth = int(steps).bit_length()
    return Gaussian(event.noise_multiplier, float(np.sqrt(depth)))


_CONVERTERS: dict[type, Any] = {
    dp_event.GaussianDpEvent: _gaussian,
    dp_event.LaplaceDpEvent: _laplace,
    dp_event.DiscreteLaplaceDpEvent: _discrete_laplace,
    dp_event.PoissonSampledDpEvent: _sampled,
    dp_event.RandomizedResponseDpEvent: _randomized_response,
    dp_event.MixtureOfGaussiansDpEvent: _mixture,
    dp_event.SingleEpochTreeAggregationDpEvent: _tree,
}
