"""jax_privacy's batch selection strategies as runs, by the names of their classes and fields."""

from collections.abc import Callable
from typing import Any

from jaxdp import _checks
from jaxdp._allocation import RandomAllocation, cyclic_poisson_sampled, min_sep_sampled
from jaxdp._mechanisms import (
    NEIGHBOURS,
    Mechanism,
    Neighbours,
    Repeated,
    TruncatedPoissonSampled,
    fixed_size_sampled,
    replace_one,
    require_mechanism,
)

_Strategy = Any


def from_batch_selection(
    strategy: Any,
    mechanism: Mechanism,
    *,
    num_examples: int | None = None,
    neighbours: Neighbours = "add-or-remove",
) -> Mechanism:
    """What a run with one of `jax_privacy.batch_selection`'s strategies is accounted for by.

    | strategy | run |
    |---|---|
    | `CyclicPoissonSampling` | `cyclic_poisson_sampled`, truncated or not |
    | `BallsInBinsSampling` | `RandomAllocation` to the bins of all steps of one |
    | `RandomAllocationSampling` | `RandomAllocation(..., num_selected=k)` |
    | `FixedBatchSampling` | `fixed_size_sampled`, with or without replacement, repeated |
    | `BMinSepSampling` | `min_sep_sampled`, from above; not where it is truncated |
    | `UserSelectionStrategy` | that of its base strategy: records are users |
    | `MultiOwnerMinSepSampling` | refused: records of several users have no pair here |

    Args:
      strategy: of jax_privacy (which need not be installed for this), or of the same class name and
        fields.
      mechanism: one step on a batch: `Gaussian(noise_multiplier)` for DP-SGD. Sensitivities are
        those of adding or removing a record; they double for replace-one. For a banded strategy
        of the matrix mechanism see `MatrixMechanism` and `cyclic_poisson_sampled`.
      num_examples: n, the larger side for add-or-remove; needed for fixed and truncated batches.
      neighbours: "add-or-remove"; "replace-special", a record exchanged for one without effect,
        jax_privacy's default; "replace-one" for (cyclic) Poisson batches and for fixed ones.
        (Groups of an equal split are for exchanges; truncated, they need one.)

    Returns:
      A jaxdp mechanism: the whole run.

    Raises:
      ValueError: for a strategy without one, saying why; for numbers outside their domains.
        TypeError: if the mechanism is none.

    Example:
      >>> import jaxdp
      >>> from jaxdp import interop
      >>> class BallsInBinsSampling:  # or jax_privacy's
      ...     iterations, cycle_length = 40, 10
      >>> interop.from_batch_selection(BallsInBinsSampling(), jaxdp.Gaussian(2.0))
      RandomAllocation(mechanism=Repeated(mechanism=Gaussian(sigma=2.0), count=4), num_steps=10)
    """
    require_mechanism("mechanism", mechanism)
    _checks.check_choice("neighbours", neighbours, NEIGHBOURS)
    while type(strategy).__name__ == "UserSelectionStrategy":
        strategy = strategy.base_strategy
    name = type(strategy).__name__
    convert = _STRATEGIES.get(name)
    if convert is None:
        known = ", ".join(_STRATEGIES)
        raise ValueError(f"strategy: {name} has no run in jaxdp; these have: {known}")
    return convert(strategy, mechanism, num_examples, neighbours)


def _need(num_examples: int | None, name: str) -> int:
    if num_examples is None:
        raise ValueError(f"num_examples must be given for {name}")
    return _checks.whole_number("num_examples", num_examples)


def _only_added(strategy: _Strategy, neighbours: Neighbours) -> None:
    """Refuse an exchange: zeroed out, a record of an independent draw is one that is removed."""
    if neighbours == "replace-one":
        name = type(strategy).__name__
        raise ValueError(
            f"neighbours must be 'add-or-remove' or 'replace-special' for {name}, "
            f"got {neighbours!r}"
        )


def _cyclic(s: _Strategy, m: Mechanism, n: int | None, neighbours: Neighbours) -> Mechanism:
    groups, most = s.cycle_length, getattr(s, "truncated_batch_size", None)
    if most is None:
        run = cyclic_poisson_sampled(m, s.sampling_prob, groups, s.iterations)
        return replace_one(run) if neighbours == "replace-one" else run
    split = getattr(getattr(s, "partition_type", None), "name", "EQUAL_SPLIT") == "EQUAL_SPLIT"
    if groups > 1 and (neighbours == "add-or-remove" or not split):
        raise ValueError(
            "strategy: truncated batches of groups have a proven pair here for an equal split and "
            "records that are exchanged alone: else what is cut depends on who is in the group"
        )
    size = _need(n, "truncated batches") // groups
    rounds = -(-s.iterations // groups)
    if s.sampling_prob >= 1.0 and most < size:
        return _times(fixed_size_sampled(m, most, size, neighbours=neighbours), rounds)
    zeroed = neighbours == "replace-special"
    step = TruncatedPoissonSampled(m, s.sampling_prob, most, size, zero_out=zeroed)
    return _times(replace_one(step) if neighbours == "replace-one" else step, rounds)


def _bins(s: _Strategy, m: Mechanism, n: int | None, neighbours: Neighbours) -> Mechanism:
    _only_added(s, neighbours)
    return min_sep_sampled(m, 1.0, s.cycle_length, s.iterations, warm_start=True)


def _allocation(s: _Strategy, m: Mechanism, n: int | None, neighbours: Neighbours) -> Mechanism:
    _only_added(s, neighbours)
    return RandomAllocation(m, s.iterations, num_selected=s.total_participations)


def _fixed(s: _Strategy, m: Mechanism, n: int | None, neighbours: Neighbours) -> Mechanism:
    size = _need(n, "batches of a fixed size")
    batch = fixed_size_sampled(
        m, s.batch_size, size, neighbours=neighbours, replacement=bool(s.replace)
    )
    return _times(batch, s.iterations)


def _separated(s: _Strategy, m: Mechanism, n: int | None, neighbours: Neighbours) -> Mechanism:
    _only_added(s, neighbours)
    if getattr(s, "truncated_batch_size", None) is not None:
        raise ValueError(
            "strategy: truncated b-min-sep batches have no proven pair here: give room for all"
        )
    warm = bool(getattr(s, "warm_start", True))
    return min_sep_sampled(m, s.sampling_prob, s.min_sep, s.iterations, warm_start=warm)


def _times(m: Mechanism, count: Any) -> Mechanism:
    count = _checks.whole_number("iterations", count)
    return m if count == 1 else Repeated(m, count)


_STRATEGIES: dict[str, Callable[[Any, Mechanism, int | None, Neighbours], Mechanism]] = {
    "CyclicPoissonSampling": _cyclic,
    "BallsInBinsSampling": _bins,
    "RandomAllocationSampling": _allocation,
    "FixedBatchSampling": _fixed,
    "BMinSepSampling": _separated,
}
