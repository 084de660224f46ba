"""The contract of a mechanism: one likelihood ratio, described in log space.

A mechanism is an immutable PyTree whose leaves are its real parameters. Under the pair
(P, Q) = (with the record, without it) it knows the law of the privacy loss L = log dP/dQ through

* `_rate(s)`: the cumulant rate log E_Q[X^s 1{0 < X < inf}] / (s (s - 1)), s >= 1 or s <= 0;
* `_loss_range()`: the essential infimum and supremum of L where it is finite;
* `_log_failure(direction)`: log of the mass at infinite loss ("remove": P where Q = 0; "add":
  Q where P = 0);
* `_log_hockey_stick(epsilon, direction, slack)` and `_log_masses(lo, hi)`: the exact curve and
  the Q- and P-masses of intervals of L, of a one-step mechanism (`Base`).

All of these act on float64 scalars, inside the float64 island. What must never change: they
describe one pair; "remove" and "add" are two readings of it, and neither bounds the other.
"""

import abc
import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp

from jaxdp import _checks, _divergences, _structure

Direction = Literal["remove", "add"]
Masses = Callable[[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
T = TypeVar("T", bound=type)


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def mechanism(cls: T) -> T:
    """Make a class a frozen dataclass and a PyTree, every field a child.

    A field with metadata {"static": True} (an integer that sets a size, hashable) is none.
    Unflattening bypasses `__init__`: gradients, avals and sentinels are no parameters to check.
    """
    cls = dataclasses.dataclass(frozen=True, eq=False, repr=False)(cls)
    fields = dataclasses.fields(cls)
    names = tuple(field.name for field in fields if not field.metadata.get("static"))
    fixed = tuple(field.name for field in fields if field.metadata.get("static"))

    def sizes(m):
        return tuple(getattr(m, n) for n in fixed)

    def flatten_with_keys(m):
        return [(jax.tree_util.GetAttrKey(n), getattr(m, n)) for n in names], sizes(m)

    def flatten(m):
        return [getattr(m, n) for n in names], sizes(m)

    def unflatten(sizes, children):
        m = object.__new__(cls)
        for name, child in zip(names + fixed, (*children, *sizes), strict=True):
            object.__setattr__(m, name, child)
        return m

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    return cls


class Mechanism(_structure.Compared, abc.ABC):
    """A randomised computation, by the law of its privacy loss: the base of all mechanisms.

    One of your own derives from `CustomMechanism`, or is an `AdditiveNoise`, a `LossDistribution`.
    """

    # What inputs are neighbours: "add-or-remove" or "replace-one"; None where the sensitivity says.
    _relation: ClassVar[str | None] = None
    _domains: ClassVar[dict[str, _checks.Domain]] = {}
    _core_ndims: ClassVar[dict[str, int]] = {}  # trailing axes of a field's arrays, if any
    _replaceable: ClassVar[bool] = True  # whether twice a `sensitivity` is that of an exchange
    _takes_runs: ClassVar[bool] = False  # whether its masses may be those of runs (`_noise._runs`)
    _by_curve: ClassVar[bool] = False  # whether it is an `_of_curve.OfCurve`, known by bounds
    _is_envelope: ClassVar[bool] = False  # whether no one pair it may have has all of its curve
    _instead: ClassVar[str | None] = None  # what to do with one that is no part of others

    def __post_init__(self) -> None:
        for name, domain in self._domains.items():
            value = _checks.array_of(name, getattr(self, name))
            _checks.check(name, value, domain)
            object.__setattr__(self, name, value)

    def __repr__(self) -> str:
        return _structure.describe(self)

    def _repr_html_(self) -> str:
        return _structure.nested(self)

    @property
    def neighbours(self) -> str | None:
        """Which inputs this pair is for, "add-or-remove" or "replace-one" of one record (or user).

        None where the sensitivity alone says so. Parts for different ones cannot be composed.
        """
        return self._relation

    def _in_domain(self) -> jax.Array:
        """Whether the (traced) parameters lie in their domains."""
        inside = jnp.asarray(True)
        for name, domain in self._domains.items():
            inside = inside & jnp.all(domain.contains(getattr(self, name)))
        return inside

    def _may_fail(self) -> bool:
        """Whether `_log_failure` is to be asked: else what it would lead to is left out."""
        return type(self)._log_failure is not Base._log_failure

    @abc.abstractmethod
    def _rate(self, s: jax.Array) -> jax.Array:
        """The cumulant rate k(s)."""

    def _rate_function(self) -> Callable[[jax.Array], jax.Array]:
        """`_rate`, with what all its arguments share computed once."""
        return self._rate

    @abc.abstractmethod
    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        """Infimum and supremum of the finite privacy loss."""

    def _range_ulps(self) -> Any:
        """How far a finite end of it may be inside the exact one, relatively, in units of 2^-52.

        One step rounds its ends outwards; what is computed from them adds up roundings.
        """
        return 0.0

    def _attains_range(self) -> bool:
        """Whether there is no less loss range."""
        return True

    @abc.abstractmethod
    def _log_failure(self, direction: Direction) -> jax.Array:
        """Log of the mass at infinite loss."""

    def _failure(self, direction: Direction) -> jax.Array:
        """The mass at infinite loss itself, or what is a little above: exact where it is a field.

        A delta equal to it is met from the largest finite loss on, which its logarithm cannot tell.
        """
        log = _divergences.log_rounded(self._log_failure(direction), 4.0 * _divergences.SLACK)
        return _divergences.exp_up(log)

    @abc.abstractmethod
    def _terms(self) -> list["Term"]:
        """The independent factors of the composition that this mechanism is."""

    @abc.abstractmethod
    def _symmetric(self) -> bool:
        """Whether both directions have the same curve, for every parameter value."""

    def _replaced(self) -> "Mechanism | None":
        """Itself with one record exchanged for another, where a class of its own says so."""
        return None

    def _held(self) -> tuple["Mechanism", ...]:
        """Of a step: what runs in it and may be a composition, whose law is tabulated first."""
        return ()

    def _sampled_terms(self) -> "list[Term] | None":
        """Of a step: the factors of what dominates it, run on every record that it samples."""
        return None

    def _poisson_sample(self) -> "tuple[Mechanism, Any] | None":
        """Of what runs on one Poisson sample: that, and the sampling probability."""
        return None

    # What is no part of others answers by mechanisms that are: which ones, these say.
    def _alternatives(self) -> tuple["Mechanism", ...]:
        """What it may be, not known which, so that the worst counts: itself."""
        return (self,)

    def _structure(self) -> "Mechanism":
        """One of the structure of what answers for it, its numbers of no meaning: itself."""
        return self

    def _above(self, epsilon: jax.Array | None, log_delta: jax.Array | None) -> "Mechanism":
        """One that dominates, good at an epsilon or at a delta: itself."""
        return self

    def _above_for_orders(self) -> "Mechanism":
        """What `_above` is where Rényi divergences are asked for."""
        return self._above(None, None)

    def _bracketed(self) -> "Mechanism | None":
        """Itself, where it is known between others only."""
        return None


class Base(Mechanism):
    """A mechanism that is one step: no composition, exact hockey-stick curve."""

    _has_law: ClassVar[bool] = True  # whether `_log_masses` answers
    _is_short: ClassVar[bool] = False  # whether `_log_hockey_stick` takes few operations

    @abc.abstractmethod
    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        """log H at any real epsilon; an upper bound in exact arithmetic if slack > 0."""

    @abc.abstractmethod
    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        """The cumulant rate of the Poisson-subsampled pair, 1 - q + q X."""

    def _sampled_rate_function(self) -> Callable[[jax.Array, jax.Array], jax.Array]:
        """`_sampled_rate`, with what all its arguments share computed once."""
        return self._sampled_rate

    @abc.abstractmethod
    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        """log Q{lo < L <= hi} and log P{lo < L <= hi} of the finite loss, elementwise."""

    def _masses_function(self) -> Masses:
        """`_log_masses`, with what all its intervals share computed once."""
        return functools.partial(_masses, self)

    def _log_failure(self, direction: Direction) -> jax.Array:
        """None, unless a class says otherwise."""
        return jnp.asarray(-jnp.inf)

    def _log_shared(self) -> jax.Array | None:
        """Log of a mass that P and Q share, if not 1 - TV by a short curve; None where unknown."""
        return None

    def _mass_error(self) -> jax.Array | float:
        """Relative error of `_log_masses` beyond a few roundoffs; nan where none is known."""
        return 0.0

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        """Whether a finite end of the loss range (low, high) may carry an atom."""
        return True, True

    @abc.abstractmethod
    def sample(self, key: jax.Array, value: Any) -> Any:
        """Release `value` (an array or PyTree) once."""

    def _terms(self) -> list["Term"]:
        return [Term(self, None)]


@jax.jit
def _masses(step: Base, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Traced once for all that ask for as many intervals."""
    return step._log_masses(lo, hi)


class OnBatch(Base):
    """Abstract: one step that runs on a batch of the records; how it is drawn, the class says.

    Attributes:
      mechanism: what runs on the batch.
    """

    mechanism: Any

    def _in_domain(self) -> jax.Array:
        return self.mechanism._in_domain() & super()._in_domain()

    def sample(self, key: jax.Array, value: Any) -> Any:
        """The inner mechanism's release of a value computed on the batch."""
        return self.mechanism.sample(key, value)


class Average(Mechanism):
    """Abstract: one of `num_steps` steps, chosen uniformly; X averages that many copies' ratios.

    Attributes:
      mechanism: one step.
      num_steps: how many.
    """

    mechanism: Any
    num_steps: Any
    _has_two_readings: ClassVar[bool] = True  # of one law; the direction may then be traced

    def _held(self) -> tuple[Mechanism, ...]:
        return (self.mechanism,)

    def _sampled_terms(self) -> "list[Term]":
        return self.mechanism._terms()

    @abc.abstractmethod
    def _prepare_rate(
        self, direction: Direction, largest: int, search: bool
    ) -> Callable[[jax.Array], jax.Array]:
        """`_rate` of one direction, what orders up to `largest` share computed once.

        For a search over all orders it may be interpolated between a fixed set of them.
        """


@dataclasses.dataclass(frozen=True)
class Term:
    """A factor of a composition; count None means exactly one."""

    mechanism: Any
    count: Any

    def times(self, count: Any) -> "Term":
        return Term(self.mechanism, count if self.count is None else self.count * count)

    @property
    def multiplicity(self) -> Any:
        return 1.0 if self.count is None else self.count


def no_one_law(m: Mechanism) -> TypeError:
    return TypeError(f"a {type(m).__name__} has no one law: {m._instead}")


def require_mechanism(name: str, value: Any, whole: bool = False) -> None:
    """Raise TypeError unless the value is a mechanism, and one that may be a part (or is whole)."""
    if not isinstance(value, Mechanism):
        raise TypeError(f"{name} must be a jaxdp mechanism, got {_checks.shown(value)}")
    if value._instead is not None and not whole:
        kind = type(value).__name__
        raise TypeError(f"{name} must not be a {kind}: {value._instead}, got {value!r}")


def require_mechanisms(value: Any, whole: bool = False) -> tuple[Mechanism, ...]:
    """The mechanisms of a combinator: some, for the same neighbours."""
    if isinstance(value, Mechanism) or not isinstance(value, Iterable):
        got = _checks.shown(value)
        raise TypeError(f"mechanisms must be a sequence of jaxdp mechanisms, got {got}")
    mechanisms = tuple(value)
    if not mechanisms:
        raise ValueError("mechanisms must not be empty")
    for i, m in enumerate(mechanisms):
        require_mechanism(f"mechanisms[{i}]", m, whole)
    common_neighbours(mechanisms)
    return mechanisms


def common_neighbours(mechanisms: Iterable[Mechanism]) -> str | None:
    """What all the mechanisms are for; ValueError if they are for different neighbours."""
    found = {m.neighbours: m for m in mechanisms if m.neighbours is not None}
    if len(found) > 1:
        parts = " and ".join(f"{type(m).__name__} for {n}" for n, m in sorted(found.items()))
        raise ValueError(
            f"mechanisms must be for the same neighbours, got {parts}: a guarantee has one relation"
        )
    return next(iter(found), None)


def add_noise(
    key: jax.Array, value: Any, noise: Callable[[jax.Array, tuple[int, ...], Any], jax.Array]
) -> Any:
    """Add noise(key, shape, dtype) to every array of a PyTree, in the array's own float dtype."""
    leaves, treedef = jax.tree.flatten(value)
    keys = jax.random.split(key, max(len(leaves), 1))
    noisy = []
    for k, leaf in zip(keys, leaves, strict=False):
        leaf = jnp.asarray(leaf)
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            leaf = leaf.astype(jnp.result_type(float))
        noisy.append(leaf + noise(k, leaf.shape, leaf.dtype))
    return jax.tree.unflatten(treedef, noisy)
