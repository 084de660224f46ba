"""Parallel composition: mechanisms on disjoint parts of the records."""

from collections.abc import Sequence
from typing import Any

import jax

from jaxdp import _checks
from jaxdp._mechanisms._base import (
    Alternatives,
    Mechanism,
    common_neighbours,
    mechanism,
    require_mechanisms,
)


@mechanism
class Parallel(Alternatives):
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
