"""Repeated noise addition: a bound from the noise of every party alone."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _x64
from jaxdp._mechanisms import Gaussian, Laplace, Mechanism
from jaxdp._noise._continuous import COUNT, GammaDifference, LaplaceSum
from jaxdp._noise._lattice import INTEGER, LatticeNoise

_REAL_SHIFT = (Gaussian, Laplace, GammaDifference, LaplaceSum)
_STEPS = 12
_NO_SHIFT_OR_INTEGER = _checks.Domain(
    "an integer >= 0", lambda x: INTEGER.contains(x) | (abs(x) == 0)
)


def repeated_noise_renyi(
    noise: Mechanism | Sequence[Mechanism],
    alpha: ArrayLike,
    *,
    count: ArrayLike | Sequence[ArrayLike] = 1,
    sensitivity: ArrayLike = 1.0,
    split: Sequence[ArrayLike] | None = None,
    direction: str = "both",
) -> jax.Array:
    r"""Rényi bound for the sum of independent noises, from every noise's own divergence.

    .. math:: D_\alpha(P_1 * \dots * P_n + s \,\|\, P_1 * \dots * P_n)
              \le \sum_i D_\alpha(P_i + s_i \,\|\, P_i), \qquad \sum_i s_i = s

    by data processing: the sum is a function of the vector of shifted noises. It holds for every
    law and every split of the shift s, which is the sensitivity; with n equal noises and equal
    parts it is n D_alpha(P + s/n || P). (The shift-reduction lemma of Feldman, Mironov, Talwar &
    Thakurta 2018, arXiv 1808.06651, gives the same.) For Laplace noise it tends to twice the exact
    value `renyi(LaplaceSum(n, scale), alpha)` as n grows at fixed alpha.

    Args:
      noise: a mechanism that adds noise, or a sequence of them (their own sensitivity is not
        used): Gaussian, Laplace, GammaDifference, LaplaceSum, or one integer-valued one
        (DiscreteGaussian, Skellam, DiscreteLaplace, GeneralizedDiscreteLaplace,
        NegativeBinomial), whose shift is split into integers as equal as can be.
      alpha: order > 1, finite. Any shape.
      count: how many independent copies of each are added, integers >= 1.
      sensitivity: the shift s > 0 of the sum (integer for integer-valued noise). Any shape.
      split: the shifts >= 0 of one copy of each noise, with sum_i count_i split_i = sensitivity; by
        default the split that minimises the bound (found by Newton's method on its optimality
        conditions; any split gives a valid bound). Required for several integer-valued noises.
      direction: "remove", "add" or "both" (they differ for NegativeBinomial only).

    Raises:
      ValueError: for known arguments outside their domains, or a split that does not add up.
      TypeError: for a mechanism that adds no noise, or mixed real and integer noises.

    Example:
      >>> import jaxdp
      >>> bound = jaxdp.repeated_noise_renyi(jaxdp.Laplace(1.0), 2.0, count=20)
      >>> round(float(bound), 6), round(float(jaxdp.renyi(jaxdp.LaplaceSum(20, 1.0), 2.0)), 6)
      (0.049137, 0.025035)
    """
    noises = (noise,) if isinstance(noise, Mechanism) else tuple(noise)
    if not noises:
        raise ValueError("noise must not be empty")
    integer = _integer_valued(noises)
    counts = tuple(count) if isinstance(count, (list, tuple)) else (count,) * len(noises)
    if len(counts) != len(noises):
        raise ValueError(f"count must have one entry for each of {len(noises)} noises")
    for value in counts:
        _checks.check("count", value, COUNT)
    _checks.check("alpha", alpha, _checks.FINITE_ORDER)
    _checks.check("sensitivity", sensitivity, INTEGER if integer else _checks.POSITIVE)
    _checks.check_choice("direction", direction, ("remove", "add", "both"))
    if split is None and integer and len(noises) > 1:
        raise ValueError("split is required for several integer-valued noises")
    shifts = None if split is None else _checked_split(split, counts, sensitivity, integer)
    return _x64.evaluate(
        _bound,
        noises,
        alpha,
        counts,
        sensitivity,
        shifts,
        rounding="up",
        direction=direction,
        integer=integer,
    )


def _integer_valued(noises: tuple[Any, ...]) -> bool:
    lattice = [isinstance(m, LatticeNoise) for m in noises]
    for m, is_lattice in zip(noises, lattice, strict=True):
        if not is_lattice and not isinstance(m, _REAL_SHIFT):
            raise TypeError(f"noise must be a mechanism that adds noise, got {_checks.shown(m)}")
    if any(lattice) and not all(lattice):
        raise TypeError("noise must be all integer-valued or all real-valued")
    return lattice[0]


def _checked_split(split, counts, sensitivity, integer):
    shifts = tuple(split)
    if len(shifts) != len(counts):
        raise ValueError(f"split must have one entry for each of {len(counts)} noises")
    for value in shifts:
        _checks.check("split", value, _NO_SHIFT_OR_INTEGER if integer else _checks.NON_NEGATIVE)
    values = [_checks.concrete("split", v) for v in (*shifts, *counts, sensitivity)]
    known = [v for v in values if v is not None]
    if len(known) == len(values):
        total = sum(s * c for s, c in zip(known, known[len(shifts) : -1], strict=False))
        # single precision is made up for by scaling, which integers do not allow
        if not np.allclose(total, known[-1], rtol=0.0 if integer else 1e-6, atol=0.0):
            raise ValueError(f"split must add up to sensitivity {known[-1]}, adds up to {total}")
    return shifts


def _divergence(m, alpha, shift, direction):
    """D_alpha of one noise at a shift >= 0, in one direction or the worse one."""
    some = shift > 0.0
    shifted = dataclasses.replace(m, sensitivity=jnp.where(some, shift, 1.0))

    def one(d):
        value = alpha * shifted._rate(alpha if d == "remove" else 1.0 - alpha)
        value = jnp.where(shifted._log_failure(d) > -jnp.inf, jnp.inf, value)
        return jnp.where(some, value, 0.0)

    if direction != "both":
        return one(direction)
    return one("remove") if m._symmetric() else jnp.maximum(one("remove"), one("add"))


def _bound(noises, alpha, counts, sensitivity, split, direction, integer):
    inside = _checks.FINITE_ORDER.contains(alpha)
    inside &= (INTEGER if integer else _checks.POSITIVE).contains(sensitivity)
    for m, count in zip(noises, counts, strict=True):
        inside &= dataclasses.replace(m, sensitivity=1.0)._in_domain() & COUNT.contains(count)
    if split is not None:
        total = sum(c * s for c, s in zip(counts, split, strict=True))
        slack = 0.0 if integer else 1e-6 * sensitivity  # of single precision, see below
        inside &= jnp.abs(total - sensitivity) <= slack
        for shift in split:
            inside &= (_NO_SHIFT_OR_INTEGER if integer else _checks.NON_NEGATIVE).contains(shift)
        shifts = split if integer else [s * (sensitivity / total) for s in split]
        parts = [
            c * _divergence(m, alpha, s, direction)
            for m, c, s in zip(noises, counts, shifts, strict=True)
        ]
        value = sum(parts)
    elif integer:
        value = _equal_integers(noises[0], alpha, counts[0], sensitivity, direction)
    elif len(noises) == 1:
        value = counts[0] * _divergence(noises[0], alpha, sensitivity / counts[0], direction)
    else:
        value = _optimised(noises, alpha, counts, sensitivity, direction)
    return jnp.where(inside, value, jnp.nan)


def _equal_integers(m, alpha, count, sensitivity, direction):
    """count copies share the shift: some take its integer part's ceiling, the others its floor."""
    low = jnp.floor(sensitivity / count)
    more = sensitivity - low * count
    high = _divergence(m, alpha, low + 1.0, direction)
    some = _divergence(m, alpha, low, direction)
    rest = jnp.where((low > 0.0) & (more < count), (count - more) * some, 0.0)
    return jnp.where(more > 0.0, more * high, 0.0) + rest


def _optimised(noises, alpha, counts, sensitivity, direction):
    """The split at which all marginal costs R_i'(s_i) agree; the best of the points visited.

    Newton's method on the optimality conditions; by the envelope theorem the bound's gradient is
    that at the frozen split.
    """
    counts = jnp.stack(jnp.broadcast_arrays(*counts))

    def cost(shifts):
        return jnp.stack(
            [_divergence(m, alpha, shifts[i], direction) for i, m in enumerate(noises)]
        )

    def along(function):  # the derivative of every entry in its own shift
        return lambda shifts: jax.jvp(function, (shifts,), (jnp.ones_like(shifts),))[1]

    first = along(cost)
    second = along(first)

    def step(_, state):
        shifts, best, best_value = state
        value = jnp.sum(counts * cost(shifts))
        better = value < best_value
        best, best_value = jnp.where(better, shifts, best), jnp.where(better, value, best_value)
        slope, curvature = first(shifts), jnp.maximum(second(shifts), 1e-300)
        price = jnp.sum(counts * slope / curvature) / jnp.sum(counts / curvature)
        moved = shifts + (price - slope) / curvature
        moved = jnp.clip(jnp.where(jnp.isfinite(moved), moved, shifts), 0.1 * shifts, 10.0 * shifts)
        return moved * (sensitivity / jnp.sum(counts * moved)), best, best_value

    # for small shifts the cost of each is quadratic: its curvature there gives the start
    even = jnp.full(len(noises), 1.0) * sensitivity / jnp.sum(counts)
    weights = 1.0 / cost(1e-3 * even)
    start = weights * (sensitivity / jnp.sum(counts * weights))
    start = jnp.where(jnp.isfinite(start), start, even)
    state = jax.lax.stop_gradient((start, even, jnp.sum(counts * cost(even))))
    best = jax.lax.fori_loop(0, _STEPS, step, state)[1]
    best = jax.lax.stop_gradient(best)
    best = best * (sensitivity / jax.lax.stop_gradient(sensitivity))
    return jnp.sum(counts * cost(best))
