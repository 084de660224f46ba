"""Users with several records in batches that are drawn: a batch holds a random number of them."""

import dataclasses
import functools
import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks
from jaxdp import _special as special
from jaxdp._mechanisms._base import mechanism
from jaxdp._mechanisms._mixture import MixtureFamily, RandomAmounts
from jaxdp._mechanisms._mixture_pair import Components
from jaxdp._special import log1p

_MOST = 1024  # records of a user: a mixture of so many Gaussians


@functools.cache
def _log_binomials(k: int) -> np.ndarray:
    """log C(k, j) for j = 1 .. k, from the exact integers."""
    return np.asarray([log_quotient(math.comb(k, j), 1) for j in range(1, k + 1)])


@functools.cache
def _log_hypergeometric(n: int, b: int, k: int) -> tuple[np.ndarray, float, float]:
    """log P{j} for j = 1 .. min(k, b), log P{0} and log P{not 0}, from the exact integers.

    C(n, k) ways of placing the user's records, C(b, j) C(n - b, k - j) with j in the batch.
    """
    ways, none = math.comb(n, k), math.comb(n - b, k)
    counts = [math.comb(b, j) * math.comb(n - b, k - j) for j in range(1, min(k, b) + 1)]
    logs = np.asarray([log_quotient(count, ways) for count in counts])
    return logs, log_quotient(none, ways), log_quotient(ways - none, ways)


def log_quotient(a: int, b: int) -> float:
    """log(a/b) of positive integers of any size, to a roundoff or two."""
    shift = a.bit_length() - b.bit_length()
    near = (a << max(0, -shift)) / (b << max(0, shift))
    return math.log(near) + shift * math.log(2.0)


class PoissonGroup(RandomAmounts):
    """Abstract: how many of a user's records are in a Poisson sample."""

    sampling_probability: Any
    group_size: int
    sensitivity: Any

    _most: ClassVar[int] = _MOST
    _domains: ClassVar = {
        "sigma": _checks.POSITIVE,
        "sampling_probability": _checks.RATE,
        "sensitivity": _checks.POSITIVE,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        size = _checks.whole_number("group_size", self.group_size, most=self._most)
        object.__setattr__(self, "group_size", size)

    def _group(self) -> Components:
        q, k = 1.0 * jnp.asarray(self.sampling_probability), self.group_size
        certain = q >= 1.0
        log_absent = log1p(-jnp.where(certain, 0.5, q))
        j = np.arange(1.0, k + 1.0)
        present, absent = j * jnp.log(q), (k - j) * log_absent
        log_ways = _log_binomials(k)
        logs = log_ways + present + absent
        logs = jnp.where(certain, jnp.where(j == k, 0.0, -jnp.inf), logs)
        log_rest = jnp.where(certain, -jnp.inf, k * log_absent)
        log_rate = jnp.where(certain, 0.0, special.log1mexp(k * log_absent))
        # a logarithm of a weight is a sum: what its parts add to it costs digits
        parts = 4.0 * np.max(log_ways) + 16.0
        return _of_counts(self, j, logs, log_rest, log_rate, parts)


@mechanism
class PoissonSampledGroup(PoissonGroup, MixtureFamily):
    """A Gaussian on a Poisson sample, against a user who may have several records (user level).

    Every record joins by itself with probability q, so that a batch holds Binomial(k, q) of the
    user's k, each moving the value by at most the sensitivity: a `GaussianMixture` of shifts
    j Delta with weights C(k, j) q^j (1 - q)^(k - j) (Charles et al. 2024; Ganesh 2024). It grows
    with k: a user of fewer records is covered. k = 1 is `PoissonSampled(Gaussian(sigma), q)`.

    Args:
      sigma: standard deviation of the noise, in the units of the value, > 0. Any shape.
      sampling_probability: q in (0, 1], of a record.
      group_size: the most records of a user, a known integer from 1 to 1024.
      sensitivity: of the value to one record added or removed, > 0.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> user = jaxdp.PoissonSampledGroup(1.0, 0.1, 2)
      >>> alike = jaxdp.GaussianMixture(1.0, [0.0, 1.0, 2.0], [0.81, 0.18, 0.01])
      >>> abs(float(jaxdp.delta(user, 1.0) / jaxdp.delta(alike, 1.0)) - 1.0) < 1e-6
      True
    """

    sigma: ArrayLike
    sampling_probability: ArrayLike
    group_size: int = dataclasses.field(metadata={"static": True})
    sensitivity: ArrayLike = 1.0

    _relation: ClassVar = "add-or-remove"

    def _components(self) -> Components:
        return self._group()


@mechanism
class FixedSizeGroup(MixtureFamily):
    r"""A Gaussian on a batch of fixed size, drawn without replacement, against a user's records.

    The user's k records are added to, or removed from, the other records; the batch has b of all n
    of them either way. With D the others, a batch of D and the user holds j of the user's with
    hypergeometric probability, and is a batch of D in which j were exchanged: at most 2 j Delta
    apart. So the pair is a `GaussianMixture` of shifts 2 j Delta, in both directions (the coupling
    of Balle, Barthe & Gaboardi 2018 with the mixture kept together). It grows with k and falls with
    n. k = 1 is `fixed_size_sampled(..., neighbours="add-or-remove")`.

    Args:
      sigma: standard deviation of the noise, in the units of the value, > 0. Any shape.
      batch_size: b, a known integer from 1 to num_records.
      num_records: n, the user's records included; a known integer, the least that is to be covered.
      group_size: the most records of a user, a known integer from 1 to 1024, at most n - b.
      sensitivity: of the value to one record added or removed, > 0; exchanging one is twice that.

    Raises:
      ValueError: if a known parameter is outside its domain.

    Example:
      >>> import jaxdp
      >>> user = jaxdp.FixedSizeGroup(4.0, batch_size=10, num_records=1000, group_size=3)
      >>> round(float(jaxdp.epsilon(user, 1e-3)), 4)
      0.0262
    """

    sigma: ArrayLike
    batch_size: int = dataclasses.field(metadata={"static": True})
    num_records: int = dataclasses.field(metadata={"static": True})
    group_size: int = dataclasses.field(metadata={"static": True})
    sensitivity: ArrayLike = 1.0

    _relation: ClassVar = "add-or-remove"
    _domains: ClassVar = {"sigma": _checks.POSITIVE, "sensitivity": _checks.POSITIVE}

    def __post_init__(self) -> None:
        super().__post_init__()
        n = _checks.whole_number("num_records", self.num_records, least=2)
        b = _checks.whole_number("batch_size", self.batch_size, most=n - 1)
        k = _checks.whole_number("group_size", self.group_size, most=min(_MOST, n - b))
        for name, value in (("num_records", n), ("batch_size", b), ("group_size", k)):
            object.__setattr__(self, name, value)

    def _components(self) -> Components:
        known = _log_hypergeometric(self.num_records, self.batch_size, self.group_size)
        logs, log_rest, log_rate = (jnp.asarray(x, jnp.float64) for x in known)
        return _of_counts(
            self, 2.0 * np.arange(1.0, logs.size + 1.0), logs, log_rest, log_rate, 16.0
        )


def _of_counts(
    m: Any, j: np.ndarray, logs: jax.Array, log_rest: jax.Array, log_rate: jax.Array, ulps: float
) -> Components:
    """Components of shifts j Delta / sigma, from the logs of their weights.

    A weight is held in its logarithm, however small it is; `ulps` is its error beyond what a
    logarithm of its size has.
    """
    used = logs > -jnp.inf
    shifts = jnp.clip(j * (m.sensitivity / m.sigma), 1e-100, 1e100)
    log_weights = jnp.where(used, jnp.where(used, logs, 0.0) - log_rate, -jnp.inf)
    return Components(log_rate, log_rest, log_weights, shifts, ulps)
