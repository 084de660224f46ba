"""Batches of a fixed size, drawn with or without replacement from a known number of records."""

import fractions
import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates, _rates_line
from jaxdp import _special as special
from jaxdp._mechanisms import _cell_rates
from jaxdp._mechanisms._base import (
    Base,
    Direction,
    Mechanism,
    OnBatch,
    mechanism,
    require_mechanism,
)
from jaxdp._mechanisms._curve import canonical_terms, single
from jaxdp._mechanisms._finite import RandomizedResponse
from jaxdp._mechanisms._gaussian import GaussianFamily
from jaxdp._mechanisms._replace import replace_one
from jaxdp._mechanisms._sampling import PoissonSampled
from jaxdp._mechanisms._with_replacement import ExchangedSeveral

Neighbours = Literal["add-or-remove", "replace-one", "replace-special"]
NEIGHBOURS: tuple[Neighbours, ...] = get_args(Neighbours)
_NEXT_TO_0 = 1e-300  # a loss
_MOST_DRAWN = 2**16  # with replacement, where probabilities are quotients of n^b


@mechanism
class FixedSizeSampled(OnBatch):
    r"""A mechanism on a batch of fixed size without replacement, one record exchanged for another.

    With (P, Q) the replace-one pair of the mechanism (twice the sensitivity), H its curve, and
    q = b/n, a batch of b of the n records has at e^epsilon >= 1

    .. math:: \delta(\varepsilon) \le q H\big(\log(1 + (e^\varepsilon - 1)/q)\big)

    (Balle, Barthe & Gaboardi 2018, Theorem 9), in either direction, hence at negative epsilon the
    reflection 1 - e^epsilon + e^epsilon delta(-epsilon). No sampled pair has that curve on both
    sides: ((1-q) Q + q P, Q) has it for epsilon >= 0 only, and composing it is unsafe (Lebeda,
    Regehr, Kamath & Steinke 2024, arXiv 2405.20769). The pair that has it is symmetric: its losses
    above 0 are those of ((1-q) Q + q P, Q), those below 0 their mirror image, and what is missing
    is an atom at 0 (Zhu, Dong & Wang 2022, arXiv 2106.08567, Theorem 11). That pair dominates, so
    its composition is an upper bound on the privacy of the run. Bounds on delta and epsilon bracket
    this pair; the run itself is bounded below by `PoissonSampled(replace_one(mechanism), q)`, which
    records that all but one agree attain.

    The pair also dominates a Poisson batch at rate q of which a record is exchanged, whatever the
    additive noise: there (1-q) M + q P is told from (1-q) M + q P', M the law without either, and
    M is no further from P than P' is. (For a Gaussian, `PoissonSampledReplaceOne` is exact.)

    Args:
      mechanism: one step that runs on the batch, of the sensitivity to one record added or removed
        (which is doubled here), symmetric; or RandomizedResponse of the record.
      sampling_probability: q = b/n in (0, 1]; see `fixed_size_sampled`.

    Raises:
      ValueError: if a known q is outside (0, 1], or the mechanism is not one symmetric step with a
        replace-one pair. TypeError: if it is no mechanism.

    Example:
      >>> import jaxdp
      >>> step = jaxdp.FixedSizeSampled(jaxdp.Gaussian(4.0), 0.01)
      >>> round(float(jaxdp.epsilon(step, 1e-5)), 4), step.neighbours
      (0.0283, 'replace-one')
    """

    mechanism: Mechanism
    sampling_probability: ArrayLike

    _relation: ClassVar = "replace-one"
    _domains: ClassVar = {"sampling_probability": _checks.RATE}

    def __post_init__(self) -> None:
        require_mechanism("mechanism", self.mechanism)
        super().__post_init__()
        exchanged(self.mechanism)

    def _sampled(self) -> PoissonSampled:
        """((1-q) Q + q P, Q)."""
        return PoissonSampled(exchanged(self.mechanism), self.sampling_probability)

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._rate_function()(s)

    def _rate_function(self) -> Callable[[jax.Array], jax.Array]:
        """For a Gaussian the half-line is integrated itself, else cells of the loss are summed."""
        sampled = self._sampled()
        base = sampled.mechanism
        if isinstance(base, GaussianFamily):
            mu, q = base._mu(), 1.0 * jnp.asarray(sampled.sampling_probability)
            return lambda s: _rates_line.least(*_half_line(s, mu, q), _rate(s, sampled))
        none = jnp.float64(-jnp.inf)
        cells = _cell_rates.sampled_rate_function(
            self._masses_function(), self._loss_range(), (none, none), self._mass_error()
        )
        return lambda s: jnp.minimum(_rate(s, sampled), cells(s, jnp.float64(1.0)))

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        return _rates.convex_rate(s, self._rate(s), q)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        _, high = self._sampled()._loss_range()
        return -high, high

    def _range_ulps(self) -> Any:
        return self._sampled()._range_ulps()

    def _mass_error(self) -> jax.Array | float:
        return self._sampled()._mass_error()

    def _atoms_at_ends(self) -> tuple[bool, bool]:
        high = self._sampled()._atoms_at_ends()[1]
        return high, high

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        distance = _divergences.magnitude(epsilon)
        value = self._sampled()._log_hockey_stick(distance, "remove", slack)
        return _divergences._reflect(epsilon, value, slack)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Above 0 the sampled law, below its mirror image, at 0 what both leave.

        With F the base law, Q{L > 0} = Q{F > 0} and P{L > 0} = (1 - q) Q{F > 0} + q P{F > 0}, so
        that 1 - Q{L > 0} - P{L > 0} = (1 - q) (P{F > 0} - Q{F > 0}) + Q{F = 0}.
        """
        sampled, base = self._sampled(), exchanged(self.mechanism)
        above = sampled._log_masses(jnp.maximum(lo, 0.0), jnp.maximum(hi, 0.0))
        below = sampled._log_masses(jnp.maximum(-hi, 0.0), jnp.maximum(-lo, 0.0))
        apart = base._log_hockey_stick(jnp.zeros(()), "remove", 0.0)
        alike = base._log_masses(jnp.full(1, -_NEXT_TO_0), jnp.zeros(1))[0][0]
        rest = _divergences.log_positive(1.0 - self.sampling_probability)
        atom = _divergences.log_add(rest + apart, alike)
        atom = jnp.where((lo < 0.0) & (hi >= 0.0), atom, -jnp.inf)
        pairs = zip(above, below[::-1], strict=True)
        return tuple(_divergences.log_add(x, y, atom) for x, y in pairs)


def exchanged(m: Mechanism) -> Base:
    """The symmetric one-step pair of m with one record exchanged, or ValueError."""
    itself = isinstance(m, (RandomizedResponse, ExchangedSeveral))
    step = single(canonical_terms(m if itself else replace_one(m)))
    if step is None or not step._symmetric() or step._may_fail() or step.neighbours is not None:
        raise ValueError(
            "mechanism must be one symmetric step of finite losses with a replace-one pair (a "
            f"Gaussian, Laplace noise, ...), got {_checks.shown(m)}"
        )
    return step


def fixed_size_sampled(
    mechanism: Mechanism,
    batch_size: int,
    num_records: int,
    *,
    neighbours: Neighbours = "replace-one",
    replacement: bool = False,
) -> FixedSizeSampled | PoissonSampled:
    """A mechanism on a batch of fixed size, b of n records drawn at random, for any neighbours.

    Without replacement, for "replace-one" it is `FixedSizeSampled` at rate b/n. For
    "add-or-remove", b stays and n differs by one: with x the record, a batch of D and x is a batch
    of D with probability 1 - b/n, else one in which x has taken the place of a random record;
    coupled with a batch of D it is the pair ((1-q) Q + q P, Q), q = b/n, with (P, Q) the pair of
    one record exchanged: the Poisson-sampled pair at twice the sensitivity (by the joint convexity
    of the hockey stick, in both directions and composed).

    With replacement the record may be drawn j times, with probability 1 - (1 - 1/n)^b at least
    once, and exchanging it moves the value by 2 j Delta: the same two pairs at that rate, with a
    base in which j is drawn and revealed (Balle, Barthe & Gaboardi 2018, Theorem 10, as one pair;
    an upper bound).

    Args:
      mechanism: what runs on the batch, of the sensitivity to one record added or removed (which is
        doubled here). For "replace-one" see `FixedSizeSampled`; for "add-or-remove" whatever
        `replace_one` takes, compositions included.
      batch_size: b, a known integer >= 1.
      num_records: n >= b, a known integer, the same on both sides for "replace-one"; for
        "add-or-remove" that of the larger side, the least that is to be covered (the pair falls
        with n). Public.
      neighbours: "replace-one"; "replace-special", a record exchanged for one that is drawn like it
        and moves nothing (the exchange bounds it); or "add-or-remove".
      replacement: whether records are drawn with replacement; then b may exceed n, up to 65536, and
        the mechanism is to be one Gaussian.

    Raises:
      ValueError: if a known size is outside its domain or b > n, for another relation, or for a
        mechanism without a replace-one pair. TypeError: if it is no mechanism.

    Example:
      >>> import jaxdp
      >>> once = jaxdp.fixed_size_sampled(jaxdp.Gaussian(4.0), 100, 10_000)
      >>> more = jaxdp.fixed_size_sampled(jaxdp.Gaussian(4.0), 100, 10_000, replacement=True)
      >>> [round(float(jaxdp.epsilon(m, 1e-5)), 4) for m in (once, more)]
      [0.0283, 0.0305]
    """
    require_mechanism("mechanism", mechanism)
    _checks.check_choice("neighbours", neighbours, NEIGHBOURS)
    n = _checks.whole_number("num_records", num_records)
    b = _checks.whole_number("batch_size", batch_size, most=_MOST_DRAWN if replacement else n)
    if replacement:
        drawn = ExchangedSeveral(mechanism, b, n)
        rate = _rounded_up(n**b - (n - 1) ** b, n**b)
        sampled = PoissonSampled if neighbours == "add-or-remove" else FixedSizeSampled
        return sampled(drawn, rate)
    rate = _rounded_up(b, n)
    if neighbours == "add-or-remove":
        return PoissonSampled(replace_one(mechanism), rate)
    return FixedSizeSampled(mechanism, rate)


def _rounded_up(a: int, b: int) -> float:
    """a/b <= 1 of integers of any size, rounded up."""
    quotient = a / b
    return math.nextafter(quotient, 1.0) if fractions.Fraction(quotient) * b < a else quotient


# --- Rényi moments --------------------------------------------------------------------------------


def _rate(s: jax.Array, sampled: PoissonSampled) -> jax.Array:
    """k(s) of the symmetric pair: E_Q[psi_s(X)] over X > 1, and its mirror image E_Q[X psi_s(1/X)].

    That is psi_{1-s}(X): over all X instead of X > 1 both are moments of the sampled pair, which
    bounds their sum.
    """
    base = sampled.mechanism
    assert isinstance(base, Base)  # what `exchanged` returns
    rates = jnp.stack([sampled._rate(s), sampled._rate(1.0 - s)])
    bound = _rates_line.moments_rate(s, jnp.zeros(2), rates)
    return jnp.minimum(bound, base._rate(s))


def _half_line(s: jax.Array, mu: jax.Array, q: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The same of X = 1 - q + q e^{mu z - mu^2/2} by quadrature over z > mu/2; whether it is good.

    X has zeros at distance pi/mu from the real line; powers of either sign occur (see
    `_mixture_pair.rate`).
    """
    order, m, rate = jax.lax.stop_gradient((s, mu, q))

    def laws(z: jax.Array) -> tuple[jax.Array, jax.Array]:
        u = _rates.log_mixture(mu * z - 0.5 * mu * mu, q)
        return u, special.log_normal_density(z)

    ends = 0.5 * mu, jnp.maximum(order, 1.0 - order) * m + 14.0
    density = _rates_line.pace(jnp.pi / m, 0.5 * (jnp.abs(order) + 1.0) * m * m)
    scale = rate * jnp.minimum(m, 1.0)
    return _rates_line.rate(s, laws, ends, scale, density, 4.0 * m * m, mirrored=True)
