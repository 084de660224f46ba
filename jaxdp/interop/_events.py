"""dp_accounting's events as mechanisms.

An event says what was run; which pairs of inputs are neighbours is said beside it, as to
dp_accounting's accountants. "add or remove one" and "replace special" (a record exchanged for one
without effect) give the same pair for everything additive or Poisson-sampled.
"""

import functools
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from dp_accounting import dp_event

from jaxdp import _checks
from jaxdp._allocation import RandomAllocation
from jaxdp._mechanisms import (
    ApproximateDP,
    Composed,
    ConcentratedDP,
    ExponentialMechanism,
    Gaussian,
    GaussianMixture,
    Laplace,
    Mechanism,
    PermuteAndFlip,
    PoissonSampled,
    PoissonSampledReplaceOne,
    Repeated,
    TruncatedPoissonSampled,
    TruncatedPoissonSampledReplaceOne,
    fixed_size_sampled,
    replace_one,
)
from jaxdp._noise import DiscreteGaussian, DiscreteGaussianVector, DiscreteLaplace, FinitePair
from jaxdp._tuning import RepeatAndSelect
from jaxdp.interop._event_parameters import (
    EVERYTHING,
    NAMES,
    NOTHING,
    SUM_TOLERANCE,
    TINY,
    ZEROED,
    Absolute,
    Neighbours,
    UnsupportedEvent,
    additive,
    check_relation,
    known_rate,
    noise,
    number,
    require,
    vector,
    whole_count,
)


def from_dp_event(
    event: dp_event.DpEvent, neighboring_relation: Neighbours = Neighbours.ADD_OR_REMOVE_ONE
) -> Mechanism:
    """The mechanism that a dp_accounting event describes.

    Supported: Gaussian, Laplace, DiscreteLaplace, RandomizedResponse, PoissonSampled, Composed,
    SelfComposed, and NoOp inside compositions; SampledWithoutReplacement, SampledWithReplacement,
    TruncatedSubsampledGaussian; MixtureOfGaussians of sensitivities of one sign;
    SingleEpochTreeAggregation, whose depth of noisy sums is one Gaussian (Kairouz et al. 2021,
    appendix D); ZCDp and RepeatAndSelect, by Rényi divergences; of later versions EpsilonDelta,
    ExponentialMechanism, PermuteAndFlip, DiscreteGaussian, and RandomAllocation. Noise
    parameters are per unit of sensitivity.

    Args:
      event: a `dp_accounting.DpEvent`.
      neighboring_relation: which inputs are neighbours. Replacing a record doubles the sensitivity
        of a Gaussian; of Poisson samples only those of Gaussians have a proven pair for it. A
        batch of fixed size of which a record is zeroed out is bounded by one where it is replaced.

    Returns:
      A jaxdp mechanism, for any query or calibration.

    Raises:
      UnsupportedEvent: (a ValueError) naming the part that is not supported, and why; also for
        events that reveal nothing (NoOp, sampling probability 0) or everything (noise 0) as a
        whole, which have no parameters.
      ValueError or TypeError: for parameters outside their domains.

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
    check_relation(neighboring_relation)
    found = convert(event, neighboring_relation)
    if isinstance(found, Absolute):
        reveals = "reveals nothing: there is nothing to account for"
        raise UnsupportedEvent(event, reveals if found.private else "is not private at all")
    return found


def convert(event: dp_event.DpEvent, relation: Neighbours) -> Mechanism | Absolute:
    """The mechanism of an event, or NOTHING or EVERYTHING."""
    if isinstance(event, dp_event.NoOpDpEvent):
        return NOTHING
    if isinstance(event, dp_event.NonPrivateDpEvent):
        return EVERYTHING
    if isinstance(event, dp_event.SelfComposedDpEvent):
        return repeat(convert(event.event, relation), whole_count(event.count))
    if isinstance(event, dp_event.ComposedDpEvent):
        if not isinstance(event.events, Iterable):
            raise TypeError(f"events must be a list of events, got {_checks.shown(event.events)}")
        return compose([convert(e, relation) for e in event.events])
    converter = _CONVERTERS.get(type(event)) or _LATER.get(type(event).__name__)
    if converter is None:
        raise UnsupportedEvent(event, f"{type(event).__name__} has no mechanism in jaxdp")
    return converter(event, relation)


def repeat(m: Mechanism | Absolute, count: int) -> Mechanism | Absolute:
    """The composition of `count` >= 1 runs."""
    if isinstance(m, Absolute) or count == 1:
        return m
    known = float(count)
    return Repeated(m, known if known >= count else math.nextafter(known, math.inf))


def compose(parts: list[Any]) -> Mechanism | Absolute:
    """The composition of converted events."""
    if EVERYTHING in parts:
        return EVERYTHING
    mechanisms = [part for part in parts if part is not NOTHING]
    if not mechanisms:
        return NOTHING
    return mechanisms[0] if len(mechanisms) == 1 else Composed(mechanisms)


def _gaussian(event: dp_event.GaussianDpEvent, relation: Neighbours) -> Mechanism | Absolute:
    sensitivity = 2.0 if relation == Neighbours.REPLACE_ONE else 1.0
    return additive(noise(event), lambda sigma: Gaussian(sigma, sensitivity))


def _laplace(event: dp_event.LaplaceDpEvent, relation: Neighbours) -> Mechanism | Absolute:
    require(event, relation, *ZEROED)
    return additive(noise(event), Laplace)


def _discrete_laplace(
    event: dp_event.DiscreteLaplaceDpEvent, relation: Neighbours
) -> Mechanism | Absolute:
    """The parameter is an inverse scale; 0 means no noise, as to dp_accounting."""
    require(event, relation, *ZEROED)
    a = noise(event, "noise_parameter")
    sensitivity = _checks.whole_number(
        "sensitivity of DiscreteLaplaceDpEvent", event.sensitivity, least=0
    )
    if sensitivity == 0:
        return NOTHING
    if a == 0.0 or math.isinf(a):
        return EVERYTHING
    return DiscreteLaplace(a, sensitivity)


def _sampled(event: dp_event.PoissonSampledDpEvent, relation: Neighbours) -> Mechanism | Absolute:
    rate = number(event, "sampling_probability", _checks.PROBABILITY)
    if isinstance(event.event, dp_event.SampledWithoutReplacementDpEvent):
        raise UnsupportedEvent(event, "a batch of fixed size of a Poisson sample has no mechanism")
    replaced = relation == Neighbours.REPLACE_ONE
    if replaced and not isinstance(event.event, dp_event.GaussianDpEvent):
        require(event, relation, *ZEROED)
    inner = convert(event.event, Neighbours.ADD_OR_REMOVE_ONE if replaced else relation)
    if rate == 0.0 or inner is NOTHING:
        return NOTHING
    if isinstance(inner, Absolute) or rate == 1.0:
        return convert(event.event, relation)
    return (PoissonSampledReplaceOne if replaced else PoissonSampled)(inner, known_rate(rate))


def _batch(event: Any, relation: Neighbours, replacement: bool = False) -> Mechanism | Absolute:
    """The batch of Gaussian or Laplace noise, whose sensitivity doubles when one is replaced."""
    inner = convert(event.event, Neighbours.ADD_OR_REMOVE_ONE)
    if isinstance(inner, Absolute):
        return inner
    if not isinstance(inner, Gaussian if replacement else (Gaussian, Laplace)):
        name = type(event.event).__name__
        raise UnsupportedEvent(event, f"a batch of fixed size of {name} has no mechanism in jaxdp")
    sizes = event.sample_size, event.source_dataset_size
    return fixed_size_sampled(inner, *sizes, neighbours=NAMES[relation], replacement=replacement)


def _truncated(
    event: dp_event.TruncatedSubsampledGaussianDpEvent, relation: Neighbours
) -> Mechanism | Absolute:
    """A batch that is always cut, at probability 1, is one of fixed size."""
    replaced, zeroed = (relation == r for r in (Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL))
    rate = number(event, "sampling_probability", _checks.PROBABILITY)
    name = "TruncatedSubsampledGaussianDpEvent"
    n = _checks.whole_number(f"dataset_size of {name}", event.dataset_size, least=0)
    size = _checks.whole_number(
        f"truncated_batch_size of {name}", event.truncated_batch_size, least=0
    )
    if rate == 0.0 or n == 0 or size == 0:
        return NOTHING
    gaussian = additive(noise(event), Gaussian)
    if isinstance(gaussian, Absolute):
        return gaussian
    if rate == 1.0 and size < n:
        return fixed_size_sampled(gaussian, size, n, neighbours=NAMES[relation])
    if rate == 1.0:
        return replace_one(gaussian) if replaced else gaussian
    if size >= n:
        kind = PoissonSampledReplaceOne if replaced else PoissonSampled
        return kind(gaussian, known_rate(rate))
    if replaced:
        return TruncatedPoissonSampledReplaceOne(gaussian, known_rate(rate), size, n)
    return TruncatedPoissonSampled(gaussian, known_rate(rate), size, n, zero_out=zeroed)


def _epsilon_delta(event: Any, relation: Neighbours) -> Mechanism | Absolute:
    """A guarantee, for whichever neighbours are meant."""
    epsilon = number(event, "epsilon", _checks.NON_NEGATIVE_OR_INF)
    delta = number(event, "delta", _checks.PROBABILITY)
    if math.isinf(epsilon) or delta >= 1.0:
        return EVERYTHING
    return NOTHING if epsilon == delta == 0.0 else ApproximateDP(max(epsilon, TINY), delta)


def _concentrated(event: Any, relation: Neighbours) -> Mechanism | Absolute:
    """A guarantee, for whichever neighbours are meant: its Rényi divergences are all it has."""
    rho = number(event, "rho", _checks.NON_NEGATIVE_OR_INF)
    xi = _checks.number(
        f"xi of {type(event).__name__}", getattr(event, "xi", 0.0), _checks.NON_NEGATIVE_OR_INF
    )
    if math.isinf(rho) or math.isinf(xi):
        return EVERYTHING
    return NOTHING if rho == xi == 0.0 else ConcentratedDP(max(rho, TINY), xi)


def _best_of_several(
    event: dp_event.RepeatAndSelectDpEvent, relation: Neighbours
) -> Mechanism | Absolute:
    """One run's guarantee, of all hyperparameters that are drawn."""
    mean = number(event, "mean", _checks.NON_NEGATIVE_OR_INF)
    shape = number(event, "shape", _checks.NON_NEGATIVE_OR_INF)
    if not 1.0 <= mean < 1e300:
        raise ValueError(f"mean of RepeatAndSelectDpEvent must be finite and >= 1, got {mean}")
    inner = convert(event.event, relation)
    if isinstance(inner, Absolute):
        return inner
    return RepeatAndSelect(inner, mean, shape)


def _selection(event: Any, relation: Neighbours) -> Mechanism | Absolute:
    """The exponential mechanism's epsilon is for whichever neighbours are meant.

    That of permute-and-flip is not, as that of the Laplace noise in whose place it stands.
    """
    named = type(event).__name__ == "PermuteAndFlipDpEvent"
    if named:
        require(event, relation, *ZEROED)
    epsilon = number(event, "epsilon", _checks.NON_NEGATIVE_OR_INF)
    if epsilon < TINY or math.isinf(epsilon):
        return EVERYTHING if epsilon > 1.0 else NOTHING
    return (PermuteAndFlip if named else ExponentialMechanism)(epsilon)


def _discrete_gaussian(event: Any, relation: Neighbours) -> Mechanism | Absolute:
    """The law in one dimension; of vectors, whose worst shift depends on the question, a bound.

    That of `DiscreteGaussianVector`, or for small noise, where it is not as tight, the zCDP alone.
    """
    sensitivity = number(event, "sensitivity", _checks.NON_NEGATIVE_OR_INF)
    if sensitivity == 0.0:
        return NOTHING
    if event.dimension != 1:
        sigma = noise(event, "sigma")
        rho = 0.5 * (sensitivity / sigma) ** 2 if sigma > 0.0 else math.inf
        rho *= 1.0 + 1e-15
        if math.isinf(rho):
            return EVERYTHING
        if sigma < 2.0:
            return ConcentratedDP(max(rho, TINY))
        return NOTHING if math.isinf(sigma) else DiscreteGaussianVector(sigma, sensitivity)
    whole = _checks.whole_number("sensitivity of DiscreteGaussianDpEvent", sensitivity)
    return additive(noise(event, "sigma"), lambda sigma: DiscreteGaussian(sigma, whole))


def _allocation(event: Any, relation: Neighbours) -> Mechanism | Absolute:
    """By the fields of its authors' package, random-allocation: no version has the event yet."""
    require(event, relation, *ZEROED)
    inner, steps = (getattr(event, name, None) for name in ("event", "num_steps"))
    if inner is None or steps is None:
        raise UnsupportedEvent(event, "its fields are not known here: event and num_steps, or more")
    inside = convert(inner, relation)
    if isinstance(inside, Absolute):
        return inside
    selected, epochs = (getattr(event, name, 1) for name in ("num_selected", "num_epochs"))
    t = _checks.whole_number("num_steps of RandomAllocationDpEvent", steps)
    return RandomAllocation(inside, t, num_selected=selected, num_epochs=epochs)


def _randomized_response(
    event: dp_event.RandomizedResponseDpEvent, relation: Neighbours
) -> Mechanism | Absolute:
    """Over k buckets, uniform with probability p: x against another bucket, or against uniform."""
    p = number(event, "noise_parameter", _checks.PROBABILITY)
    k = _checks.whole_number("num_buckets of RandomizedResponseDpEvent", event.num_buckets)
    require(event, relation, Neighbours.REPLACE_ONE, Neighbours.REPLACE_SPECIAL)
    if k == 1 or p == 1:
        return NOTHING
    other = p / k
    if other < TINY:
        return EVERYTHING
    if relation == Neighbours.REPLACE_SPECIAL:
        kept = [1.0 - p + other, (k - 1) * other]
        return FinitePair(kept, [1.0 / k, (k - 1.0) / k])
    rest = (k - 2) * other  # the buckets that tell nothing
    return FinitePair([1.0 - p + other, other, rest], [other, 1.0 - p + other, rest])


def _mixture(
    event: dp_event.MixtureOfGaussiansDpEvent, relation: Neighbours
) -> Mechanism | Absolute:
    """Sensitivities of one sign; where at most one is not 0, a Poisson sample of a Gaussian."""
    require(event, relation, *ZEROED)
    sigma = noise(event, "standard_deviation")
    sensitivities = vector(event, "sensitivities", _checks.REAL)
    chances = vector(event, "sampling_probs", _checks.PROBABILITY)
    if len(sensitivities) != len(chances):
        sizes = f"{len(sensitivities)} and {len(chances)}"
        raise ValueError(f"sensitivities and sampling_probs must be as many, got {sizes}")
    total = math.fsum(chances)
    if abs(total - 1.0) > SUM_TOLERANCE:
        raise ValueError(f"sampling_probs must sum to 1, got a sum of {total!r}")
    both = list(zip(sensitivities, chances, strict=True))
    found = sorted((abs(c), chance) for c, chance in both if c != 0.0 and chance > 0.0)
    if not found or math.isinf(sigma):
        return NOTHING
    if sigma == 0.0:
        return EVERYTHING
    if len({c > 0.0 for c, chance in both if c != 0.0 and chance > 0.0}) > 1:
        raise UnsupportedEvent(event, "a mixture of both signs has no mechanism in jaxdp")
    # what the probabilities lack of 1, by rounding, goes to the largest sensitivity
    moving = math.fsum(chance for _, chance in found)
    chance = min(max(moving, 1.0 - math.fsum(p for c, p in both if c == 0.0)), 1.0)
    if found[0][0] == found[-1][0]:
        gaussian = Gaussian(sigma, found[0][0])
        return gaussian if chance >= 1.0 else PoissonSampled(gaussian, known_rate(chance))
    found[-1] = found[-1][0], found[-1][1] + max(chance - moving, 0.0)
    shifts, weights = zip((0.0, 1.0 - chance), *found, strict=True)
    return GaussianMixture(sigma, np.asarray(shifts), np.asarray(weights))


def _tree(
    event: dp_event.SingleEpochTreeAggregationDpEvent, relation: Neighbours
) -> Mechanism | Absolute:
    """A record is in one leaf of one tree; of n steps at most floor(log2 n) + 1 sums hold it."""
    require(event, relation, Neighbours.REPLACE_SPECIAL)
    sigma = noise(event)
    steps = vector(event, "step_counts", _checks.COUNT)
    if min(steps) < 1:
        raise ValueError(f"step_counts must be >= 1, got {min(steps)}")
    depth = int(max(steps)).bit_length()
    return additive(sigma, lambda scale: Gaussian(scale, math.sqrt(depth)))


_CONVERTERS: dict[type, Any] = {
    dp_event.GaussianDpEvent: _gaussian,
    dp_event.LaplaceDpEvent: _laplace,
    dp_event.DiscreteLaplaceDpEvent: _discrete_laplace,
    dp_event.PoissonSampledDpEvent: _sampled,
    dp_event.SampledWithoutReplacementDpEvent: _batch,
    dp_event.SampledWithReplacementDpEvent: functools.partial(_batch, replacement=True),
    dp_event.TruncatedSubsampledGaussianDpEvent: _truncated,
    dp_event.RandomizedResponseDpEvent: _randomized_response,
    dp_event.MixtureOfGaussiansDpEvent: _mixture,
    dp_event.SingleEpochTreeAggregationDpEvent: _tree,
    dp_event.RepeatAndSelectDpEvent: _best_of_several,
    dp_event.ZCDpEvent: _concentrated,
}
# Events of versions after 0.6.0, by name.
_LATER: dict[str, Any] = {
    "EpsilonDeltaDpEvent": _epsilon_delta,
    "ExponentialMechanismDpEvent": _selection,
    "PermuteAndFlipDpEvent": _selection,
    "DiscreteGaussianDpEvent": _discrete_gaussian,
    "RandomAllocationDpEvent": _allocation,
}
