"""Records that a batch may hold several times: how often the one that is exchanged occurs."""

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _checks, _divergences, _rates, _rates_line
from jaxdp import _special as special
from jaxdp._mechanisms._base import Direction, Mechanism, OnBatch, mechanism, require_mechanism
from jaxdp._mechanisms._curve import canonical_terms, single
from jaxdp._mechanisms._gaussian import GaussianFamily
from jaxdp._mechanisms._groups import log_quotient

_NEGLIGIBLE = 10**60  # one over the probability from which on counts are taken together
_MOST = 256  # counts that are told apart


@functools.cache
def log_counts(b: int, n: int) -> tuple[np.ndarray, np.ndarray]:
    """j = 1 .. J and b, and log P{j | j > 0} of j ~ Binomial(b, 1/n), that of b for all above J."""
    whole, ways = n**b, (n - 1) ** b
    rest = some = whole - ways
    counts, logs = [], []
    for j in range(1, min(b, _MOST) + 1):
        # C(b, j) (n - 1)^(b - j), exactly
        ways = ways * (b - j + 1) // (j * (n - 1)) if n > 1 else int(j == b)
        if ways:
            counts.append(float(j))
            logs.append(log_quotient(ways, some))
        rest -= ways
        if rest * _NEGLIGIBLE < some:
            break
    if rest:
        counts.append(float(b))
        logs.append(log_quotient(rest, some))
    return np.asarray(counts), np.asarray(logs)


@mechanism
class ExchangedSeveral(OnBatch):
    """A Gaussian of a batch in which a record occurs j > 0 times, and is exchanged for another.

    The batch is b draws with replacement from n records; j is revealed. Exchanging j occurrences
    moves the value by up to 2 j Delta. Symmetric. Never built by users.

    Attributes:
      mechanism: one Gaussian, of the sensitivity to one record added or removed.
      batch_size, num_records: b and n.
    """

    mechanism: Mechanism
    batch_size: int = dataclasses.field(metadata={"static": True})
    num_records: int = dataclasses.field(metadata={"static": True})

    _domains: ClassVar = {}

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        if not isinstance(single(canonical_terms(self.mechanism)), GaussianFamily):
            got = _checks.shown(self.mechanism)
            raise ValueError(
                f"mechanism must be one Gaussian for draws with replacement, got {got}"
            )

    def _counts(self) -> tuple[jax.Array, jax.Array]:
        """The mu of every count, and the log of its probability."""
        gaussian = single(canonical_terms(self.mechanism))
        assert isinstance(gaussian, GaussianFamily)  # what __post_init__ made sure of
        counts, logs = log_counts(self.batch_size, self.num_records)
        mu = gaussian._mu() * (1.0 + _divergences.SLACK * (1.0 + gaussian._mu_ulps()))
        return jnp.clip(2.0 * counts * mu, 1e-290, 1e150), jnp.asarray(logs, jnp.float64)

    def _rate(self, s: jax.Array) -> jax.Array:
        mu, logs = self._counts()
        return _rates_line.moments_rate(s, logs, 0.5 * mu * mu)

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        mu, logs = self._counts()
        rates = jax.lax.map(lambda x: _rates.sampled_gaussian_rate(s, x, q), mu)
        return _rates_line.moments_rate(s, logs, rates)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return jnp.asarray(-jnp.inf), jnp.asarray(jnp.inf)

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        return False, False

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        mu, logs = self._counts()
        curves = _divergences.gaussian_log_hockey_stick(epsilon, mu, slack)
        rounding = slack * (8.0 + jnp.abs(logs))
        return jnp.minimum(special.logsumexp(logs + curves + rounding), 0.0)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        mu, logs = self._counts()
        log_q, log_p = _divergences.gaussian_log_masses(lo[..., None], hi[..., None], mu)
        return special.logsumexp(logs + log_q, axis=-1), special.logsumexp(logs + log_p, axis=-1)
