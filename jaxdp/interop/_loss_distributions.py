"""Privacy loss distributions of dp_accounting, both ways."""

import jax
import jax.numpy as jnp
import numpy as np
from dp_accounting.pld import pld_pmf, privacy_loss_distribution

from jaxdp import _checks, _numerical, _x64
from jaxdp._mechanisms import Direction, Mechanism, _curve, require_mechanism
from jaxdp._noise import LossDistribution

_MOST_POINTS = 2**22
_LADDER = np.concatenate([np.zeros(1), np.geomspace(1e-6, 1e15, 4201)])
_ROUNDING = 2.0**-44  # relative, of masses
_NUDGE = 2.0**-42  # relative: more than what thresholds may be off by


def from_privacy_loss_distribution(
    pld: privacy_loss_distribution.PrivacyLossDistribution, *, direction: Direction = "remove"
) -> LossDistribution:
    """One direction of a dp_accounting PrivacyLossDistribution as a mechanism.

    dp_accounting keeps a table for each direction, rounded pessimistically for that one. What comes
    back reads the table of the direction asked for as "remove": ask it with `direction="remove"`,
    and take the larger answer of both tables for both directions.

    Args:
      pld: any PrivacyLossDistribution of pessimistic estimates.
      direction: "remove" or "add".

    Returns:
      A LossDistribution with the same losses and masses (those of mass 0 left out).

    Raises:
      TypeError: if pld is no PrivacyLossDistribution. ValueError: for optimistic estimates, which
        are no upper bounds, or another direction.

    Example:
      >>> import jaxdp
      >>> from dp_accounting.pld import privacy_loss_distribution as dpa
      >>> pld = dpa.from_laplace_mechanism(1.0, value_discretization_interval=0.01)
      >>> law = jaxdp.interop.from_privacy_loss_distribution(pld)
      >>> round(float(jaxdp.delta(law, 0.5, direction="remove")), 4)  # 1 - e^{-1/4}
      0.2212
    """
    if not isinstance(pld, privacy_loss_distribution.PrivacyLossDistribution):
        raise TypeError(f"pld must be a PrivacyLossDistribution, got {_checks.shown(pld)}")
    _checks.check_choice("direction", direction, ("remove", "add"))
    pmf = pld._pmf_remove if direction == "remove" else pld._pmf_add
    if not pmf._pessimistic_estimate:
        raise ValueError("pld must hold pessimistic estimates: optimistic ones are no upper bounds")
    dense = pmf.to_dense_pmf()
    probabilities = np.asarray(dense._probs, np.float64)
    used = probabilities > 0.0
    index = dense._lower_loss + np.arange(probabilities.size)
    losses = index[used] * np.float64(dense._discretization)
    return LossDistribution(losses, np.log(probabilities[used]), float(dense._infinity_mass))


def to_privacy_loss_distribution(
    m: Mechanism, *, value_discretization_interval: float = 1e-4, log_tail_mass: float = -50.0
) -> privacy_loss_distribution.PrivacyLossDistribution:
    """A mechanism of one step as a dp_accounting PrivacyLossDistribution, pessimistic.

    In both directions every loss is rounded up to a multiple of the interval, with its P-mass (for
    "add", its Q-mass), and losses above the table count as infinite: all that dp_accounting reads
    from it is an upper bound, up to its own rounding.

    Args:
      m: one step with known parameters that are no batch; compose what comes back.
      value_discretization_interval: > 0, the distance of the losses.
      log_tail_mass: log of the mass that the table may leave out at either end.

    Raises:
      ValueError: for a composition, a mechanism without a one-step law, a batch, or where more than
        2^22 losses would be needed. TypeError: if m is no mechanism or its parameters are traced.

    Example:
      >>> import jaxdp
      >>> pld = jaxdp.interop.to_privacy_loss_distribution(
      ...     jaxdp.Laplace(2.0), value_discretization_interval=0.01)
      >>> round(pld.self_compose(10).get_epsilon_for_delta(1e-6), 2)
      5.1
    """
    require_mechanism("m", m)
    interval = _checks.number(
        "value_discretization_interval", value_discretization_interval, _checks.POSITIVE
    )
    _checks.number("log_tail_mass", log_tail_mass, _checks.REAL)
    if _curve.single(_curve.canonical_terms(m)) is None or not _numerical.has_law(m):
        raise ValueError("m must be one step with a loss law; compose what is exported")
    leaves, treedef = jax.tree.flatten(m)
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise TypeError("m must have known parameters, got traced ones")
    leaves = [np.asarray(leaf, np.float64) for leaf in leaves]
    if any(x.ndim != rank for x, rank in zip(leaves, _x64.core_ranks(m), strict=True)):
        raise ValueError("m must be one mechanism, got a batch of them")
    with jax.enable_x64(True):
        known = jax.tree.unflatten(treedef, [jnp.asarray(leaf) for leaf in leaves])
        step = _curve.single(_curve.canonical_terms(known))
        assert step is not None  # as it was above
        masses = jax.jit(step._masses_function())
        remove, add = (
            _pmf(step, masses, d, interval, float(log_tail_mass)) for d in ("remove", "add")
        )
    return privacy_loss_distribution.PrivacyLossDistribution(remove, add)


def _pmf(step, masses, direction, interval, log_tail_mass) -> pld_pmf.PLDPmf:
    """The table of one direction."""

    def log_mass(lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
        """The log of the P-mass, or for add of the Q-mass of the negated loss."""
        if direction == "remove":
            return np.asarray(masses(jnp.asarray(lo), jnp.asarray(hi))[1])
        return np.asarray(masses(jnp.asarray(-hi), jnp.asarray(-lo))[0])

    ends = np.concatenate([-_LADDER[:0:-1], _LADDER])
    everything = np.full_like(ends, np.inf)
    above, below = log_mass(ends, everything), log_mass(-everything, ends)
    low = np.max(ends, where=below <= log_tail_mass, initial=ends[0])
    high = np.min(ends, where=above <= log_tail_mass, initial=ends[-1])
    first, last = int(np.floor(low / interval)), int(np.ceil(high / interval)) + 1
    if last - first >= _MOST_POINTS:
        raise ValueError(
            f"value_discretization_interval: {last - first} losses would be needed, at most 2^22 "
            f"are; got {interval}"
        )
    count = 1 << int(last - first + 1).bit_length()  # few shapes, and the last ones hold nothing
    nodes = (first + np.arange(count)) * interval
    # (A loss that may be above a node is rounded up to the next one.)
    edges = nodes - _NUDGE * np.abs(nodes)
    start = np.append(-np.inf, edges[:-1])
    up = np.exp(float(step._mass_error()) + _ROUNDING)
    probabilities = np.exp(log_mass(start, edges)) * up
    lost = np.exp(float(step._log_failure(direction))) * up
    lost += float(np.exp(log_mass(edges[-1:], np.array([np.inf])))[0]) * up
    used = np.flatnonzero(probabilities)
    keep = slice(used[0], used[-1] + 1) if used.size else slice(0, 1)
    return pld_pmf.DensePLDPmf(
        interval, first + (int(used[0]) if used.size else 0), probabilities[keep], lost, True
    )
