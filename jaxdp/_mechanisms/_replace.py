"""Replace-one adjacency for mechanisms whose noise has a scale."""

import dataclasses

from jaxdp._mechanisms._base import Mechanism, require_mechanism
from jaxdp._mechanisms._combinators import Composed, Repeated
from jaxdp._mechanisms._gaussian import Gaussian
from jaxdp._mechanisms._groups import PoissonSampledGroup
from jaxdp._mechanisms._poisson_replace import PoissonSampledReplaceOne, is_gaussian
from jaxdp._mechanisms._sampling import PoissonSampled


def replace_one(m: Mechanism) -> Mechanism:
    """The mechanism under replace-one adjacency: one record exchanged for another.

    A record that moves the value by at most the sensitivity when added or removed moves it by at
    most twice that when replaced, so additive noise is accounted at twice the sensitivity. Both
    directions then describe the same exchange. Compositions are converted term by term.

    Args:
      m: Gaussian, Laplace, Brownian, OrnsteinUhlenbeck, AdditiveNoise, the Poisson sample of one
        Gaussian, a truncated Poisson sample, or a composition of these.

    Raises:
      ValueError: for other Poisson-subsampled mechanisms: their replace-one pair, ((1-q) Q + q P,
        (1-q) Q + q P') with three laws, is not the sampled pair at twice the sensitivity (see
        `PoissonSampledReplaceOne`, the one that is proven; `FixedSizeSampled` at the same rate is
        above it); for mechanisms without a sensitivity, and for those whose neighbours are stated.
        TypeError: if m is no mechanism.

    Example:
      >>> import jaxdp
      >>> pair = jaxdp.replace_one(jaxdp.Gaussian(2.0)), jaxdp.Gaussian(1.0)
      >>> [round(float(jaxdp.epsilon(m, 1e-5)), 4) for m in pair]
      [4.3772, 4.3772]
    """
    require_mechanism("m", m)
    if isinstance(m, Composed):
        return Composed([replace_one(part) for part in m.mechanisms])
    if isinstance(m, Repeated):
        return Repeated(replace_one(m.mechanism), m.count)
    if isinstance(m, PoissonSampled) and is_gaussian(m.mechanism):
        return PoissonSampledReplaceOne(m.mechanism, m.sampling_probability)
    replaced = m._replaced()
    if replaced is not None:
        return replaced
    stated = m.neighbours is not None or not m._replaceable
    if not hasattr(m, "sensitivity") or hasattr(m, "mechanism") or stated:
        raise ValueError(
            f"replace_one: no proven replace-one pair for {type(m).__name__}; upper bounds are "
            "FixedSizeSampled at the rate of a Poisson sample, and group_privacy(..., "
            "exchanged=True) of any mechanism"
        )
    return dataclasses.replace(m, sensitivity=2 * m.sensitivity)  # pyright: ignore


def scaled(m: Mechanism, k: int, exchanged: bool) -> Mechanism | None:
    """For k records, or k that are exchanged for others, where a class of its own is exact."""
    if isinstance(m, Repeated):
        inner = scaled(m.mechanism, k, exchanged)
        return None if inner is None else Repeated(inner, m.count)
    if isinstance(m, Composed):
        parts = [scaled(part, k, exchanged) for part in m.mechanisms]
        known = [part for part in parts if part is not None]
        return Composed(known) if len(known) == len(parts) else None
    if isinstance(m, PoissonSampled) and isinstance(m.mechanism, Gaussian):
        inside = m.mechanism
        if exchanged:
            return PoissonSampledReplaceOne(inside, m.sampling_probability) if k == 1 else None
        return PoissonSampledGroup(inside.sigma, m.sampling_probability, k, inside.sensitivity)
    stated = m.neighbours is not None or not m._replaceable
    if stated or not hasattr(m, "sensitivity") or hasattr(m, "mechanism"):
        return None
    times = 2 * k if exchanged else k
    return dataclasses.replace(m, sensitivity=times * m.sensitivity)  # pyright: ignore
