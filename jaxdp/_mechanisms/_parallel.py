"""Parallel composition: mechanisms on disjoint parts of the records."""

import functools
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from jaxdp import _checks
from jaxdp._mechanisms._base import (
    Direction,
    Mechanism,
    Term,
    common_neighbours,
    mechanism,
    no_one_law,
    require_mechanisms,
)
from jaxdp._mechanisms._combinators import Composed


@mechanism
class Parallel(Mechanism):
    r"""Mechanisms of which each sees its own part of the records: the worst of them counts.

    Which part a record is in does not depend on other records, nor on what was released (a public
    rule: a hash of its name, its country, ...). All else has the same law with and without it, so
    that what one record changes is one pair, that of its part's mechanism; and

    .. math:: H_\gamma = \max_i H_\gamma(P_i \| Q_i)

    at every gamma, attained by a record of the worst part (McSherry 2009, Theorem 4, for pure
    DP). Bounds from above and below, Rényi divergences and trade-off curves are the worst ones of
    the parts. A record that is exchanged must stay in its part, or both parts' guarantees add up.

    Not a part of other mechanisms: what is composed or sampled goes inside, as a record stays in
    its part: `Parallel([Repeated(a, 10), Repeated(b, 10)])`. (A `Repeated(Parallel([a, b]), 10)`
    would leave open whether it does.)

    Args:
      mechanisms: a non-empty sequence of mechanisms for the same neighbours, combinators,
        `MatrixMechanism` and `Parallel` included.

    Raises:
      ValueError: if the sequence is empty, or its elements are for different neighbours.
        TypeError: if an element is no mechanism.

    Example:
      >>> import jaxdp
      >>> by_country = jaxdp.Parallel([jaxdp.Gaussian(2.0), jaxdp.Gaussian(1.0)])
      >>> bool(jaxdp.epsilon(by_country, 1e-6) == jaxdp.epsilon(jaxdp.Gaussian(1.0), 1e-6))
      True
    """

    mechanisms: Sequence[Mechanism]

    _instead: ClassVar = "put what is composed, sampled or plotted inside its parts"

    def __post_init__(self) -> None:
        object.__setattr__(self, "mechanisms", require_mechanisms(self.mechanisms, whole=True))

    @property
    def neighbours(self) -> str | None:
        """Which inputs the parts are for; None where their sensitivities alone say so."""
        return common_neighbours(self.mechanisms)

    def sample(self, key: jax.Array, value: Any) -> tuple[Any, ...]:
        """One release by each mechanism, of its own part's value.

        Args:
          key: a PRNG key.
          value: a sequence of values, one for each part.

        Raises:
          ValueError: if there are not as many values as parts.
        """
        if len(value) != len(self.mechanisms):
            got = _checks.shown(len(value))
            raise ValueError(f"value must have {len(self.mechanisms)} elements, got {got}")
        keys = jax.random.split(key, len(self.mechanisms))
        parts: Any = zip(self.mechanisms, keys, value, strict=True)
        return tuple(m.sample(k, x) for m, k, x in parts)

    def _alternatives(self) -> tuple[Mechanism, ...]:
        return tuple(one for m in self.mechanisms for one in m._alternatives())

    def _structure(self) -> Mechanism:
        return Composed([m._structure() for m in self.mechanisms])

    def _in_domain(self) -> jax.Array:
        return jnp.all(jnp.stack([jnp.all(m._in_domain()) for m in self.mechanisms]))

    def _terms(self) -> list[Term]:
        raise no_one_law(self)

    def _rate(self, s: jax.Array) -> jax.Array:
        return _largest(m._rate(s) for m in self.mechanisms)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        lows, highs = zip(*(m._loss_range() for m in self.mechanisms), strict=True)
        return functools.reduce(jnp.minimum, lows), _largest(highs)

    def _range_ulps(self) -> Any:
        return _largest(m._range_ulps() for m in self.mechanisms)

    def _log_failure(self, direction: Direction) -> jax.Array:
        return _largest(m._log_failure(direction) for m in self.mechanisms)

    def _symmetric(self) -> bool:
        return all(m._symmetric() for m in self.mechanisms)


def _largest(values: Iterable[Any]) -> Any:
    return functools.reduce(jnp.maximum, values)
