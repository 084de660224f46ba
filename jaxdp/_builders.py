"""Mechanisms in the words of those who train: records, batches, epochs."""

import dataclasses
import math
from typing import Any, Literal

from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp._allocation import RandomAllocation
from jaxdp._mechanisms import Gaussian, Mechanism, PoissonSampled, Repeated

Batches = Literal["poisson", "random allocation"]
_BATCHES = ("poisson", "random allocation")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How often a record is looked at: the training less its noise.

    Attributes:
      batches: how they are drawn.
      sampling_probability: of Poisson batches.
      num_steps: of Poisson batches in all, of an allocation in an epoch.
      num_epochs: of an allocation.
    """

    batches: Batches
    sampling_probability: float
    num_steps: int
    num_epochs: int

    def mechanism(self, noise_multiplier: ArrayLike) -> Mechanism:
        """The run with this noise."""
        if self.batches == "poisson":
            return poisson_run(noise_multiplier, self.sampling_probability, self.num_steps)
        step = Gaussian(noise_multiplier)
        return RandomAllocation(step, self.num_steps, num_epochs=self.num_epochs)


def poisson_run(
    noise_multiplier: Any, sampling_probability: ArrayLike, num_steps: ArrayLike
) -> Mechanism:
    """Steps of DP-SGD on Poisson batches."""
    step = PoissonSampled(Gaussian(noise_multiplier), sampling_probability)
    return Repeated(step, num_steps)


def plan(num_examples: Any, batch_size: Any, epochs: Any, batches: Any) -> Plan:
    """Check the settings of `dp_sgd` and count."""
    _checks.check_choice("batches", batches, _BATCHES)
    examples = _checks.whole_number("num_examples", num_examples)
    size = _checks.number("batch_size", batch_size, _checks.POSITIVE)
    if size > examples:
        got = f"{_checks.shown(batch_size)} > {examples}"
        raise ValueError(f"batch_size must be <= num_examples, got {got}")
    if batches == "poisson":
        number = _checks.number("epochs", epochs, _checks.POSITIVE)
        # an epoch is as many steps as look at every record once, on average
        steps = math.ceil(round(number * examples / size, 9))
        return Plan(batches, size / examples, max(steps, 1), 1)
    return Plan(batches, 1.0, int(examples // size), _checks.whole_number("epochs", epochs))


def dp_sgd(
    *,
    num_examples: int,
    batch_size: float,
    epochs: float,
    noise_multiplier: ArrayLike,
    batches: Batches = "poisson",
) -> Mechanism:
    """DP-SGD: every step adds Gaussian noise to the sum of clipped gradients of a batch.

    Args:
      num_examples: records n, >= 1.
      batch_size: the expected size of a batch B, in (0, n]; both schemes draw batches that vary
        in size.
      epochs: E > 0; an integer for a random allocation.
      noise_multiplier: standard deviation of the noise over the clipping norm, > 0. Any shape;
        may be traced.
      batches: "poisson", each record joins each of ceil(E n / B) steps with probability B / n; or
        "random allocation", each record joins one of floor(n / B) steps in every epoch, chosen
        uniformly, whatever the others do. Batches cut from a shuffled data set are neither.

    Returns:
      A mechanism: `Repeated(PoissonSampled(Gaussian))` or `RandomAllocation`. Its guarantee is for
      adding and removing one record.

    Raises:
      ValueError: for known arguments outside their domains. TypeError: for those of no number.

    Example:
      >>> import jaxdp
      >>> jaxdp.dp_sgd(num_examples=60_000, batch_size=256, epochs=1, noise_multiplier=1.1)
      Repeated(mechanism=PoissonSampled(...sampling_probability=0.00426667), count=235)
      >>> jaxdp.dp_sgd(num_examples=60_000, batch_size=256, epochs=3, noise_multiplier=1.1,
      ...     batches="random allocation")
      RandomAllocation(mechanism=Gaussian(sigma=1.1), num_steps=234, num_epochs=3)
    """
    return plan(num_examples, batch_size, epochs, batches).mechanism(noise_multiplier)
