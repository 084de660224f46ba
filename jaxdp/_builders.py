"""Mechanisms in the words of those who train: records, batches, epochs, neighbours."""

import dataclasses
import math
from typing import Any, Literal, get_args

import jax
from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp._allocation import RandomAllocation, cyclic_poisson_sampled, min_sep_sampled
from jaxdp._attained import separated_sum
from jaxdp._mechanisms import (
    NEIGHBOURS,
    Gaussian,
    Mechanism,
    Neighbours,
    PoissonSampled,
    PoissonSampledReplaceOne,
    Repeated,
    TruncatedPoissonSampled,
    fixed_size_sampled,
    replace_one,
)

Batches = Literal[
    "poisson",
    "truncated poisson",
    "cyclic poisson",
    "b-min-sep",
    "random allocation",
    "fixed size",
    "with replacement",
    "public order",
    "full batch",
    "shuffled",
]
BATCHES: tuple[Batches, ...] = get_args(Batches)
SEPARATED: tuple[Batches, ...] = "cyclic poisson", "b-min-sep"  # a record's batches lie b apart
MIN_SEPARATION = 4  # b, if not given

_REFUSED = {  # the neighbours that a scheme has no proven bound for, and why
    ("b-min-sep", "replace-one"): "no pair is proved for an exchange in separated batches "
    "(group_privacy(run, 1, exchanged=True) bounds it)",
    ("random allocation", "replace-one"): "no pair is proved for an exchange in an "
    "allocation (group_privacy(run, 1, exchanged=True) bounds it)",
    ("shuffled", "add-or-remove"): "with one record more all batches of a shuffled order change",
}

_AGREE = "from below records that all but one agree"
_EFFECTLESS = "from below other records without effect"
GUARANTEES = {  # by the neighbours, too, where it depends on them
    "poisson": "exact pair of Poisson batches, composed (Balle, Barthe & Gaboardi 2018)",
    "truncated poisson": "Poisson's pair, and where batches are cut that of an exchange in a batch "
    "of fixed size (after Ganesh 2025)",
    "cyclic poisson": "exact pair of Poisson batches of a record's group alone",
    "b-min-sep": "dominated by Poisson batches, or by random allocations, of independent noise; "
    "from below the sum of all steps",
    "random allocation": "exact pair of balls and bins (Feldman & Shenfeld 2025)",
    "fixed size": "coupling with the batch without the record: Poisson's pair at twice the "
    "sensitivity (Balle, Barthe & Gaboardi 2018)",
    "with replacement": "coupling as for a fixed size, the number of draws revealed (Balle, Barthe "
    "& Gaboardi 2018, Theorem 10)",
    "public order": "no amplification: one Gaussian an epoch",
    "full batch": "no sampling: one Gaussian an epoch",
    "poisson, replace-one": "exact pair (Lebeda, Regehr, Kamath & Steinke 2024, Proposition 13)",
    "truncated poisson, replace-one": "exact pair of Poisson batches, and where they are cut that "
    "of a fixed size; from below records without effect but the exchanged ones",
    "truncated poisson, replace-special": "Poisson's pair, and where batches are cut that of an "
    f"exchange; {_EFFECTLESS}",
    "cyclic poisson, replace-one": "exact pair of an exchange in the Poisson batches of a record's "
    "group alone",
    "with replacement, replace-one": "symmetric dominating pair, the number of draws revealed; "
    f"{_AGREE}, drawn once at most",
    "fixed size, replace-one": f"symmetric dominating pair (Zhu, Dong & Wang 2022, Theorem 11); "
    f"{_AGREE}",
    "shuffled, replace-one": f"no amplification is proved: one Gaussian an epoch; {_AGREE}",
    "with replacement, replace-special": "symmetric pair of an exchange, the number of draws "
    f"revealed; {_EFFECTLESS}, one draw at most",
    "fixed size, replace-special": f"symmetric pair of an exchange; {_EFFECTLESS}",
    "shuffled, replace-special": "no amplification is proved: one Gaussian an epoch; "
    f"{_EFFECTLESS}",
}


@dataclasses.dataclass(frozen=True)
class Training:
    """A training less its noise: how often a record is looked at, and what is proved of that.

    Attributes:
      batches, neighbours, batch_size, epochs: as for `dp_sgd`.
      num_examples: n.
      room: the most records of a truncated batch.
      min_separation: b of cyclic Poisson and b-min-sep batches.
    """

    batches: Batches
    neighbours: Neighbours
    num_examples: int
    batch_size: float
    epochs: float
    room: int
    min_separation: int

    @property
    def guarantee(self) -> str:
        """Why the run is private, in a sentence."""
        named = f"{self.batches}, {self.neighbours}"
        return GUARANTEES.get(named) or GUARANTEES[self.batches]

    @property
    def sampling_probability(self) -> float:
        """The share of the records in a batch."""
        return self.batch_size / self.num_examples

    @property
    def num_steps(self) -> int:
        """Of the whole run: as many in an epoch as look at every record once, on average."""
        if self.batches == "full batch":
            return int(self.epochs)
        if self.batches == "random allocation":
            return int(self.epochs) * self._steps_per_epoch
        return max(math.ceil(_as_meant(self.epochs * self.num_examples / self.batch_size)), 1)

    @property
    def per_epoch(self) -> Gaussian | None:
        """What all of an epoch is at unit noise, where that is one Gaussian."""
        if self.batches not in ("public order", "full batch", "shuffled"):
            return None
        return Gaussian(1.0, 2.0 if self._exchanged else 1.0)

    @property
    def _steps_per_epoch(self) -> int:
        return math.floor(_as_meant(self.num_examples / self.batch_size))

    @property
    def _exchanged(self) -> bool:
        return self.neighbours == "replace-one"

    @property
    def _sizes(self) -> tuple[int, int]:
        return int(self.batch_size), self.num_examples

    @property
    def _cut(self) -> tuple[float, int, int]:
        """Rate, room and records of truncated batches."""
        return self.sampling_probability, self.room, self.num_examples

    def mechanism(self, noise_multiplier: ArrayLike) -> Mechanism:
        """The run with this noise."""
        step = Gaussian(noise_multiplier)
        if self.per_epoch is not None:
            sensitivity = self.per_epoch.sensitivity
            return Repeated(Gaussian(noise_multiplier, sensitivity), int(self.epochs))
        if self.batches == "poisson" and not self._exchanged:
            return poisson_run(noise_multiplier, self.sampling_probability, self.num_steps)
        if self.batches == "random allocation":
            return RandomAllocation(step, self._steps_per_epoch, num_epochs=int(self.epochs))
        if self.batches == "cyclic poisson":
            b, rate = self.min_separation, self.min_separation * self.sampling_probability
            run = cyclic_poisson_sampled(step, min(rate, 1.0), b, self.num_steps)
            return replace_one(run) if self._exchanged else run
        if self.batches == "b-min-sep":
            # 1/(b - 1 + 1/p) of the records are in a batch
            waits = self.num_examples / self.batch_size - (self.min_separation - 1)
            p = min(1.0 / waits, 1.0)
            return min_sep_sampled(step, p, self.min_separation, self.num_steps, warm_start=True)
        return Repeated(self._batch(step), self.num_steps)

    def _batch(self, step: Gaussian) -> Mechanism:
        """One step on a batch that is drawn afresh."""
        if self.batches == "poisson":
            return PoissonSampledReplaceOne(step, self.sampling_probability)
        if self.batches == "truncated poisson":
            zeroed = self.neighbours == "replace-special"
            truncated = TruncatedPoissonSampled(step, *self._cut, zero_out=zeroed)
            return replace_one(truncated) if self._exchanged else truncated
        again = self.batches == "with replacement"
        return fixed_size_sampled(step, *self._sizes, neighbours=self.neighbours, replacement=again)

    def attained(self, noise_multiplier: ArrayLike) -> Mechanism:
        """A run that these batches are known to attain; the mechanism where that is exact.

        Of fixed and shuffled batches the other records all agree with the one that takes the place
        of ours, or are without effect where ours is replaced by such a one; so are those of
        truncated batches. Of b-min-sep the sum of all steps is looked at.
        """
        apart = {"add-or-remove": 2.0, "replace-one": 2.0, "replace-special": 1.0}[self.neighbours]
        moved = Gaussian(noise_multiplier, apart)
        if self.batches in ("fixed size", "with replacement"):
            rate = self._drawn if self.batches == "with replacement" else self.sampling_probability
            return Repeated(PoissonSampled(moved, rate), self.num_steps)
        if self.batches == "truncated poisson":
            with jax.enable_x64(True), jax.ensure_compile_time_eval():
                kept = float(TruncatedPoissonSampled(Gaussian(1.0), *self._cut)._kept_probability())
            kind = PoissonSampledReplaceOne if self._exchanged else PoissonSampled
            return Repeated(kind(Gaussian(noise_multiplier), kept), self.num_steps)
        if self.batches == "b-min-sep":
            rate, b = self.sampling_probability, self.min_separation
            return separated_sum(noise_multiplier, rate, b, self.num_steps)
        if self.batches == "shuffled":  # unequal batches, the last one smaller, show more
            steps = math.ceil(self.num_examples / self.batch_size)
            return RandomAllocation(moved, steps, num_epochs=int(self.epochs))
        return self.mechanism(noise_multiplier)

    @property
    def _drawn(self) -> float:
        """How often a record is drawn with replacement. (More draws of it only show more.)"""
        size, n = self._sizes
        if n == 1:
            return 1.0
        return -math.expm1(size * math.log1p(-1.0 / n)) * (1.0 - 1e-12)


def _as_meant(steps: float) -> float:
    """Without the rounding of a batch size like 0.1."""
    return round(steps, 9)


def poisson_run(
    noise_multiplier: Any, sampling_probability: ArrayLike, num_steps: ArrayLike
) -> Mechanism:
    """Steps of DP-SGD on Poisson batches."""
    step = PoissonSampled(Gaussian(noise_multiplier), sampling_probability)
    return Repeated(step, num_steps)


def training(
    num_examples: Any,
    batch_size: Any,
    epochs: Any,
    batches: Any = "poisson",
    neighbours: Any = "add-or-remove",
    max_batch_size: Any = None,
    min_separation: Any = None,
) -> Training:
    """Check the settings of `dp_sgd`, whose defaults those that are not given have."""
    _checks.check_choice("batches", batches, BATCHES)
    _checks.check_choice("neighbours", neighbours, NEIGHBOURS)
    reason = _REFUSED.get((batches, neighbours))
    if reason is not None:
        proved = [x for x in NEIGHBOURS if (batches, x) not in _REFUSED]
        names = " or ".join(map(repr, proved))
        raise ValueError(
            f"neighbours must be {names} for batches {batches!r}, got {neighbours!r}: {reason}"
        )
    n = _checks.whole_number("num_examples", num_examples)
    if batches in ("poisson", "truncated poisson", "random allocation"):
        size = _checks.number("batch_size", batch_size, _checks.POSITIVE)
    else:
        size = _checks.whole_number("batch_size", batch_size)
    if size > n:
        raise ValueError(
            f"batch_size must be <= num_examples, got {_checks.shown(batch_size)} > {n}"
        )
    if batches == "poisson":
        number = _checks.number("epochs", epochs, _checks.POSITIVE)
    else:
        number = _checks.whole_number("epochs", epochs)
    room = math.ceil(size + 4.0 * math.sqrt(size))
    if max_batch_size is not None:
        room = _checks.whole_number("max_batch_size", max_batch_size)
        if batches != "truncated poisson":
            raise ValueError(
                f"max_batch_size is of batches 'truncated poisson' alone, got batches {batches!r}"
            )
    if batches == "truncated poisson" and room >= n:
        batches = "poisson"  # nothing is ever cut
    b = MIN_SEPARATION if min_separation is None else min_separation
    b = _checks.whole_number("min_separation", b)
    if batches in SEPARATED and n / size < b:  # (such batches do not exist)
        raise ValueError(
            f"min_separation must be at most num_examples/batch_size, {int(n // size)} here, for "
            f"batches {batches!r}, got {b}"
        )
    return Training(batches, neighbours, n, size, number, room, b)


def dp_sgd(
    *,
    num_examples: int,
    batch_size: float,
    epochs: float,
    noise_multiplier: ArrayLike,
    batches: Batches = "poisson",
    neighbours: Neighbours = "add-or-remove",
    max_batch_size: int | None = None,
    min_separation: int = MIN_SEPARATION,
    attained: bool = False,
) -> Mechanism:
    """DP-SGD: every step adds Gaussian noise to the sum of clipped gradients of a batch.

    Batches are drawn in one of these ways; epsilons for different neighbours do not compare.

    * "poisson": each record joins each of ceil(E n / B) steps with probability B / n;
    * "truncated poisson": the same with room for `max_batch_size` records; more are cut;
    * "cyclic poisson": a record is in one of b groups, which take turns, and joins a step of its
      group with probability b B / n (1 if the batches are whole groups, in the known order);
    * "b-min-sep": a record that was in none of the last b - 1 batches joins the next one with the
      probability that makes batches of B on average, from a warm start;
    * "random allocation": each joins one of floor(n / B) steps in every epoch, chosen uniformly,
      whatever the others do;
    * "fixed size": B records without replacement, every step afresh;
    * "with replacement": B draws with replacement, every step afresh;
    * "public order": each joins one step an epoch, by a rule that looks at no other record (a hash
      of its name, say); the adversary may know it;
    * "full batch": one step an epoch, all records;
    * "shuffled": all records in a new random order every epoch, cut into batches of B (the last one
      may be smaller). Nothing is proved about it at the usual deltas that one Gaussian an epoch
      does not give.

    Args:
      num_examples: records n, >= 1 (of the larger side, for add-or-remove).
      batch_size: the size of a batch B, in (0, n], expected or exact; an integer but for
        "poisson", "truncated poisson" and "random allocation".
      epochs: E > 0; an integer for all but "poisson".
      noise_multiplier: standard deviation of the noise over the clipping norm, > 0. Any shape;
        may be traced.
      batches: one of the above.
      neighbours: "add-or-remove" one record; "replace-one", exchange it for another; or
        "replace-special", exchange it for one that is drawn like it and has no gradient (also
        known as zero-out). Poisson batches and allocations have one pair for the first and the
        last; "b-min-sep" and "random allocation" have none for "replace-one", "shuffled" has none
        for "add-or-remove".
      max_batch_size: of "truncated poisson" alone; B + 4 sqrt(B), rounded up, by default.
      min_separation: b of "cyclic poisson" and "b-min-sep", at most n / B.
      attained: whether the result is to be a run that such batches are known to attain, whose
        lower bounds are lower bounds for these batches, in place of the one that bounds them. Both
        are the same where that one is exact.

    Returns:
      A mechanism: `Repeated(PoissonSampled(Gaussian))`, `RandomAllocation`, ....

    Raises:
      ValueError: for known arguments outside their domains, and for neighbours that nothing is
        proved for. TypeError: for those of no number.

    Example:
      >>> import jaxdp
      >>> jaxdp.dp_sgd(num_examples=60_000, batch_size=256, epochs=1, noise_multiplier=1.1)
      Repeated(mechanism=PoissonSampled(...sampling_probability=0.00426667), count=235)
      >>> jaxdp.dp_sgd(num_examples=60_000, batch_size=256, epochs=3, noise_multiplier=1.1,
      ...     batches="random allocation")
      RandomAllocation(mechanism=Gaussian(sigma=1.1), num_steps=234, num_epochs=3)
      >>> jaxdp.dp_sgd(num_examples=60_000, batch_size=256, epochs=3, noise_multiplier=1.1,
      ...     batches="shuffled", neighbours="replace-special")
      Repeated(mechanism=Gaussian(sigma=1.1), count=3)
    """
    run = training(
        num_examples, batch_size, epochs, batches, neighbours, max_batch_size, min_separation
    )
    return run.attained(noise_multiplier) if attained else run.mechanism(noise_multiplier)
