"""One training under every way of drawing its batches: how much noise each takes, and why."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from calibrate._attained import separated_sum
from calibrate._solve import solve
from jaxdp import _checks, _queries
from jaxdp._allocation import RandomAllocation, cyclic_poisson_sampled, min_sep_sampled
from jaxdp._mechanisms import (
    FixedSizeSampled,
    Gaussian,
    Mechanism,
    PoissonSampled,
    PoissonSampledReplaceOne,
    Repeated,
    TruncatedPoissonSampled,
    TruncatedPoissonSampledReplaceOne,
    fixed_size_sampled,
)

SCHEMES = (
    "poisson",
    "truncated poisson",
    "cyclic poisson",
    "b-min-sep",
    "random allocation",
    "fixed size",
    "with replacement",
    "public order",
    "full batch",
    "poisson, replace-one",
    "truncated poisson, replace-one",
    "fixed size, replace-one",
    "with replacement, replace-one",
    "shuffled, replace-one",
)
_TOLERANCE = 1e-4  # of epsilon, below its target
_MOST_STEPS = 60
_REACH = 2.0**40  # of sigma: beyond there is none to be found

_GUARANTEES = {
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
    "with replacement, replace-one": "symmetric dominating pair, the number of draws revealed; "
    "from below records that all but one agree, drawn once at most",
    "fixed size, replace-one": "symmetric dominating pair (Zhu, Dong & Wang 2022, Theorem 11); "
    "from below records that all but one agree",
    "shuffled, replace-one": "no amplification is proved: one Gaussian an epoch; from below "
    "records that all but one agree",
}


@dataclasses.dataclass(frozen=True)
class Sampler:
    """One way of drawing batches, with the least noise that is certified for it.

    Attributes:
      name: one of the schemes of `compare_samplers`.
      neighbours: "add-or-remove" or "replace-one": epsilons for the one and the other do not
        compare.
      guarantee: why the run is private, in a sentence.
      num_steps: of the whole run.
      sigma: the noise multiplier.
      noise: sigma over the (expected) batch size: the standard deviation of the noise of a mean of
        gradients clipped to 1.
      epsilon: (low, high) at delta: high is certified, low what the sampler is known to attain.
      mechanism: the run that is accounted for.
    """

    name: str
    neighbours: str
    guarantee: str
    num_steps: int
    sigma: float
    noise: float
    epsilon: tuple[float, float]
    mechanism: Mechanism


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What `compare_samplers` found: an iterable of `Sampler`, printed as a table."""

    samplers: tuple[Sampler, ...]
    target: tuple[float, float]

    def __iter__(self) -> Iterator[Sampler]:
        return iter(self.samplers)

    def __len__(self) -> int:
        return len(self.samplers)

    def __getitem__(self, name: str) -> Sampler:
        """The sampler of that name; KeyError if it is not among them."""
        return {s.name: s for s in self.samplers}[name]

    def __str__(self) -> str:
        rows = [("scheme", "neighbours", "steps", "sigma", "epsilon", "guarantee")]
        for s in self.samplers:
            bracket = f"{s.epsilon[0]:.5g} to {s.epsilon[1]:.5g}"
            sigma = f"{s.sigma:.5g}"
            rows.append((s.name, s.neighbours, str(s.num_steps), sigma, bracket, s.guarantee))
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        lines = ("  ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) for r in rows)
        return "\n".join(line.rstrip() for line in lines)


def compare_samplers(
    *,
    num_examples: int,
    batch_size: int,
    epochs: int,
    epsilon: float,
    delta: float,
    schemes: Sequence[str] = SCHEMES,
    min_separation: int = 4,
) -> Comparison:
    """Compare the ways of drawing batches: the least noise multiplier of DP-SGD under each.

    For adding or removing a record:

    * "poisson": each record joins each step with probability B/n;
    * "truncated poisson": the same with room for B + 4 sqrt(B) records, rounded up; more are cut;
    * "cyclic poisson": a record is in one of b groups, which take turns, and joins a step of its
      group with probability b B/n (or 1, in the known order);
    * "b-min-sep": a record that was in none of the last b - 1 batches joins the next one with the
      probability that makes batches of B on average, from a warm start;
    * "random allocation": each joins one of floor(n/B) steps in every epoch, at random;
    * "fixed size": B records without replacement, every step afresh;
    * "with replacement": B draws with replacement, every step afresh;
    * "public order": each joins one step an epoch, by a rule that looks at no other record (a hash
      of its name, say); the adversary may know it;
    * "full batch": one step an epoch, all records.

    For exchanging a record for another, which moves a sum by twice as much:

    * "poisson, replace-one", "truncated poisson, replace-one", "fixed size, replace-one" and "with
      replacement, replace-one";
    * "shuffled, replace-one": all records in a new random order every epoch, cut into batches of B
      (the last one may be smaller). Nothing is proved about it that one Gaussian an epoch does not
      give (in a fixed order, too); from below, records that all but one agree make it a random
      allocation at twice the sensitivity.

    Args:
      num_examples: records n, a known integer (of the larger side, for add-or-remove).
      batch_size: B <= n, a known integer, expected or exact.
      epochs: a known integer.
      epsilon, delta: the target, epsilon > 0 and delta in (0, 1).
      schemes: which of them, all by default. Each compiles its own program, random allocation (and
        the lower end of "shuffled, replace-one") for a minute or more.
      min_separation: b of "cyclic poisson" and "b-min-sep", a known integer: what banded strategies
        of b bands need.

    Returns:
      A Comparison. Of each sampler epsilon[1] <= epsilon is certified, and within 1e-4 of it.

    Raises:
      ValueError: for arguments outside their domains, or where no noise meets the target.
      TypeError: for those of no number.

    Example:
      >>> import calibrate
      >>> found = calibrate.compare_samplers(
      ...     num_examples=1000, batch_size=100, epochs=4, epsilon=2.0, delta=1e-5,
      ...     schemes=("public order", "full batch"))
      >>> [(s.name, s.num_steps, round(s.sigma, 3)) for s in found]
      [('public order', 40, 3.988), ('full batch', 4, 3.988)]
    """
    n = _checks.whole_number("num_examples", num_examples)
    size = _checks.whole_number("batch_size", batch_size, most=n)
    number = _checks.whole_number("epochs", epochs)
    target = _checks.number("epsilon", epsilon, _checks.POSITIVE)
    separation = _checks.whole_number("min_separation", min_separation)
    least = _checks.number("delta", delta, _checks.DELTA)
    if least == 0.0:
        raise ValueError("delta must be > 0: no Gaussian noise is epsilon-DP")
    for scheme in schemes:
        _checks.check_choice("schemes", scheme, SCHEMES)
    with jax.enable_x64(True):
        task = _Task(n, size, number, target, least, separation)
        return Comparison(tuple(task.sampler(scheme) for scheme in schemes), (target, least))


@dataclasses.dataclass(frozen=True)
class _Task:
    num_examples: int
    batch_size: int
    epochs: int
    epsilon: float
    delta: float
    separation: int

    @property
    def _steps(self) -> int:
        return math.ceil(self.epochs * self.num_examples / self.batch_size)

    @property
    def _rate(self) -> float:
        return self.batch_size / self.num_examples

    @property
    def _cut(self) -> tuple[float, int, int]:
        """Rate, room and records of truncated batches."""
        room = math.ceil(self.batch_size + 4.0 * math.sqrt(self.batch_size))
        return self._rate, min(room, self.num_examples), self.num_examples

    def _run(self, scheme: str, sigma: float) -> Mechanism:
        exchanged = scheme.endswith("replace-one")
        step = Gaussian(sigma, 2.0 if scheme in ("fixed size", "shuffled, replace-one") else 1.0)
        if scheme in ("public order", "full batch", "shuffled, replace-one"):
            return Repeated(step, self.epochs)
        if scheme == "random allocation":
            per_epoch = self.num_examples // self.batch_size
            return RandomAllocation(step, per_epoch, num_epochs=self.epochs)
        if scheme == "cyclic poisson":
            rate = min(self.separation * self._rate, 1.0)
            return cyclic_poisson_sampled(step, rate, self.separation, self._steps)
        if scheme == "b-min-sep":
            return self._separated(step)
        return Repeated(self._batch(scheme, step, exchanged), self._steps)

    def _batch(self, scheme: str, step: Mechanism, exchanged: bool) -> Mechanism:
        """One step on a batch that is drawn afresh."""
        if scheme.startswith("truncated"):
            kind = TruncatedPoissonSampledReplaceOne if exchanged else TruncatedPoissonSampled
            return kind(step, *self._cut)
        if scheme.startswith("with replacement"):
            name = "replace-one" if exchanged else "add-or-remove"
            sizes = self.batch_size, self.num_examples
            return fixed_size_sampled(step, *sizes, neighbours=name, replacement=True)
        if not exchanged:
            return PoissonSampled(step, self._rate)
        kind = PoissonSampledReplaceOne if scheme.startswith("poisson") else FixedSizeSampled
        return kind(step, self._rate)

    def _separated(self, step: Mechanism) -> Mechanism:
        """B/n = 1/(b - 1 + 1/p) of the records in a batch."""
        waits = self.num_examples / self.batch_size - (self.separation - 1)
        if waits < 1.0:
            most = self.num_examples // self.batch_size
            raise ValueError(
                f"min_separation must be at most num_examples/batch_size, {most} here, "
                f"got {self.separation}"
            )
        return min_sep_sampled(step, 1.0 / waits, self.separation, self._steps, warm_start=True)

    def _attained(self, scheme: str, sigma: float) -> Mechanism | None:
        """What the sampler attains, where its run is only dominated by the mechanism's pair."""
        twice = Gaussian(sigma, 2.0)
        if scheme == "fixed size, replace-one":
            return Repeated(PoissonSampled(twice, self._rate), self._steps)
        if scheme.startswith("with replacement"):
            return Repeated(PoissonSampled(twice, self._drawn), self._steps)
        if scheme == "truncated poisson":
            return Repeated(PoissonSampled(Gaussian(sigma), self._kept), self._steps)
        if scheme == "truncated poisson, replace-one":
            return Repeated(PoissonSampledReplaceOne(Gaussian(sigma), self._kept), self._steps)
        if scheme == "b-min-sep":
            return separated_sum(sigma, self._rate, self.separation, self._steps)
        if scheme == "shuffled, replace-one":
            per_epoch = math.ceil(self.num_examples / self.batch_size)
            return RandomAllocation(twice, per_epoch, num_epochs=self.epochs)
        return None

    @property
    def _drawn(self) -> float:
        """How often a record is drawn with replacement. (More draws of it only show more.)"""
        if self.num_examples == 1:
            return 1.0
        return -math.expm1(self.batch_size * math.log1p(-1.0 / self.num_examples)) * (1.0 - 1e-12)

    @property
    def _kept(self) -> float:
        """How often a record is in a truncated batch, rounded down."""
        return float(TruncatedPoissonSampled(Gaussian(1.0), *self._cut)._kept_probability())

    def _bounds(self, m: Mechanism) -> tuple[float, float]:
        low, high = _queries.epsilon_bounds(m, self.delta)
        return float(low), float(high)

    def _of_gaussians(self, sensitivity: float) -> float:
        """One Gaussian an epoch: in closed form."""
        settings = (sensitivity, self.epochs)
        target = {"epsilon": self.epsilon, "delta": self.delta}
        return float(solve(_gaussians, args=settings, **target).value)

    def sampler(self, scheme: str) -> Sampler:
        if scheme in ("public order", "full batch", "shuffled, replace-one"):
            sigma = self._of_gaussians(2.0 if scheme.startswith("shuffled") else 1.0)
            low, high = self._bounds(self._run(scheme, sigma))
        else:
            evaluate = lambda s: self._bounds(self._run(scheme, s))  # noqa: E731
            sigma, (low, high) = _least_sigma(evaluate, self.epsilon)
        attained = self._attained(scheme, sigma)
        if attained is not None:
            low = self._bounds(attained)[0]
        alone = scheme == "full batch"
        steps = self.epochs if alone else self._steps
        if scheme == "random allocation":
            steps = self.epochs * (self.num_examples // self.batch_size)
        size = self.num_examples if alone else self.batch_size
        exchanged = scheme.endswith("replace-one")
        return Sampler(
            scheme,
            "replace-one" if exchanged else "add-or-remove",
            _GUARANTEES[scheme],
            steps,
            sigma,
            sigma / size,
            (low, high),
            self._run(scheme, sigma),
        )


def _gaussians(sigma: Any, sensitivity: Any, count: Any) -> Mechanism:
    return Repeated(Gaussian(sigma, sensitivity), count)


def _least_sigma(
    bounds: Callable[[float], tuple[float, float]], target: float
) -> tuple[float, tuple[float, float]]:
    """The least sigma whose certified epsilon meets the target, to 1e-4 of epsilon; its bounds.

    By bisection and secants of log epsilon over log sigma, which falls. What is returned was
    evaluated.
    """
    low, high, best = None, None, None
    x = 0.0
    for _ in range(_MOST_STEPS):
        found = bounds(math.exp(x))
        y = math.log(max(found[1], 1e-300) / target) if math.isfinite(found[1]) else math.inf
        if y <= 0.0:
            high, best = (x, y), (math.exp(x), found)
            if y >= math.log1p(-_TOLERANCE):
                return best
        else:
            low = (x, y)
        if low is None or high is None:
            x += math.log(2.0) if high is None else -math.log(2.0)
            if abs(x) > math.log(_REACH):
                break
            continue
        middle = 0.5 * (low[0] + high[0])
        x = middle
        if math.isfinite(low[1]) and low[1] - high[1] > 0.0:
            aim = 0.5 * math.log1p(-_TOLERANCE)
            secant = low[0] + (aim - low[1]) * (high[0] - low[0]) / (high[1] - low[1])
            margin = 0.02 * (high[0] - low[0])
            x = min(max(secant, low[0] + margin), high[0] - margin)
        if high[0] - low[0] < 1e-9:
            break
    if best is None:
        raise ValueError(f"epsilon: no noise multiplier is certified for {target:g}")
    return best
