"""One training under every way of drawing its batches: how much noise each takes, and why."""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from calibrate._solve import solve
from jaxdp import _builders, _checks, _queries
from jaxdp._mechanisms import Gaussian, Mechanism, Repeated

_BY_NEIGHBOURS = {
    "add-or-remove": tuple(b for b in _builders.BATCHES if b != "shuffled"),
    "replace-one": (
        "poisson",
        "truncated poisson",
        "cyclic poisson",
        "fixed size",
        "with replacement",
        "shuffled",
    ),
    "replace-special": ("truncated poisson", "fixed size", "with replacement", "shuffled"),
}
SCHEMES = tuple(
    batches if neighbours == "add-or-remove" else f"{batches}, {neighbours}"
    for neighbours, names in _BY_NEIGHBOURS.items()
    for batches in names
)
_TOLERANCE = 1e-4  # of epsilon, below its target
_MOST_STEPS = 60
_REACH = 2.0**40  # of sigma: beyond there is none to be found


@dataclasses.dataclass(frozen=True)
class Sampler:
    """One way of drawing batches, with the least noise that is certified for it.

    Attributes:
      name: one of the schemes of `compare_samplers`.
      neighbours: "add-or-remove", "replace-one" or "replace-special": epsilons for the one and the
        other do not compare.
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
    schemes: Sequence[str] | None = None,
    min_separation: int = 4,
) -> Comparison:
    """Compare the ways of drawing batches: the least noise multiplier of DP-SGD under each.

    A scheme is one of the `batches` of `jaxdp.dp_sgd`, "poisson" for example, for adding or
    removing a record; or that and the neighbours, "shuffled, replace-one" for exchanging a record
    for another (which moves a sum by twice as much), "shuffled, replace-special" for exchanging it
    for one without a gradient.

    Args:
      num_examples: records n, a known integer (of the larger side, for add-or-remove).
      batch_size: B <= n, a known integer, expected or exact; truncated Poisson batches have room
        for B + 4 sqrt(B).
      epochs: a known integer.
      epsilon, delta: the target, epsilon > 0 and delta in (0, 1).
      schemes: which of them, by default `calibrate.SCHEMES`, those that differ ("cyclic poisson"
        and "b-min-sep" only where an epoch has `min_separation` batches). Each is a program of its
        own, which takes some seconds.
      min_separation: b of "cyclic poisson" and "b-min-sep", a known integer: what banded strategies
        of b bands need.

    Returns:
      A Comparison. Of each sampler epsilon[1] <= epsilon is certified, and within 1e-4 of it.

    Raises:
      ValueError: for arguments outside their domains, for a scheme that nothing is proved about, or
        where no noise meets the target. TypeError: for those of no number.

    Example:
      >>> import calibrate
      >>> found = calibrate.compare_samplers(
      ...     num_examples=1000, batch_size=100, epochs=4, epsilon=2.0, delta=1e-5,
      ...     schemes=("public order", "full batch"))
      >>> [(s.name, s.num_steps, round(s.sigma, 3)) for s in found]
      [('public order', 40, 3.988), ('full batch', 4, 3.988)]
    """
    target = _checks.number("epsilon", epsilon, _checks.POSITIVE)
    least = _checks.number("delta", delta, _checks.DELTA)
    if least == 0.0:
        raise ValueError("delta must be > 0: no Gaussian noise is epsilon-DP")
    size = _checks.whole_number("batch_size", batch_size)
    number = _checks.whole_number("epochs", epochs)
    if schemes is None:
        n = _checks.whole_number("num_examples", num_examples)
        b = _checks.whole_number("min_separation", min_separation)
        schemes = _possible(n, size, b)
    tasks = []
    for scheme in schemes:
        batches, neighbours = _named(scheme)
        training = _builders.training(
            num_examples, size, number, batches, neighbours, min_separation=min_separation
        )
        tasks.append(_Task(scheme, training, target, least))
    with jax.enable_x64(True):
        return Comparison(tuple(task.sampler() for task in tasks), (target, least))


def _possible(num_examples: int, batch_size: int, min_separation: int) -> list[str]:
    """Those of SCHEMES that there are: an epoch must have as many batches as are to be apart."""
    apart = num_examples >= min_separation * batch_size
    return [s for s in SCHEMES if apart or s not in _builders.SEPARATED]


def _named(scheme: Any) -> tuple[Any, Any]:
    """How batches are drawn, and the neighbours."""
    batches, _, neighbours = scheme.partition(", ") if isinstance(scheme, str) else (scheme, "", "")
    _checks.check_choice("schemes", batches, _builders.BATCHES)
    return batches, neighbours or "add-or-remove"


@dataclasses.dataclass(frozen=True)
class _Task:
    """A scheme and its target."""

    scheme: str
    training: _builders.Training
    epsilon: float
    delta: float

    def _bounds(self, m: Mechanism) -> tuple[float, float]:
        low, high = _queries.epsilon_bounds(m, self.delta)
        return float(low), float(high)

    def _least(self) -> tuple[float, tuple[float, float]]:
        """The least noise multiplier, and its bounds; one Gaussian an epoch has a closed form."""
        run = self.training.mechanism
        once = self.training.per_epoch
        if once is not None:
            settings = once.sensitivity, int(self.training.epochs)
            target = {"epsilon": self.epsilon, "delta": self.delta}
            sigma = float(solve(_gaussians, args=settings, **target).value)
            return sigma, self._bounds(run(sigma))
        return _least_sigma(lambda sigma: self._bounds(run(sigma)), self.epsilon)

    def sampler(self) -> Sampler:
        """What is certified, and what is attained, with the least noise."""
        sigma, (low, high) = self._least()
        run, attained = self.training.mechanism(sigma), self.training.attained(sigma)
        if attained != run:
            low = self._bounds(attained)[0]
        t = self.training
        size = t.num_examples if t.batches == "full batch" else t.batch_size
        return Sampler(
            self.scheme,
            t.neighbours,
            t.guarantee,
            t.num_steps,
            sigma,
            sigma / size,
            (low, high),
            run,
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
