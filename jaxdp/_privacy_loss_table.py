"""A law as a pair with finitely many outcomes, above or below it: what composes like a mechanism.

H, as a function of g = e^eps, is convex, falls from H(0) = 1 with slopes >= -1, and every such
function is the curve of a pair: its slope changes by the Q-mass of X = g there, and what it tends
to is P{X = inf}.

Above. Let h_k be certified bounds on H at nodes g_k. The convex minorant of the points (0, 1) and
(g_k, h_k), constant from the last one on, is above H, which is convex, falls and is below all of
them. (So the least of several bounds may be taken before.)

Below. The masses of the grid, each less all that the masses from it on may be off by together, are
a measure whose curve F lies below H at every g. So does max(F, 1 - g), which is convex and starts
at 1: beyond the point where the two meet these are the masses, and an atom there has what is
missing of 1.

Of both directions. A law and the one of (Q, P) are accurate on either side of g = 1. Above, the
minorant is that of the points of both: the map (g, h) -> (1/g, 1 - (1 - h)/g) keeps lines, so each
direction's slopes are those of its own curve, without cancellation. Below, H is at least the larger
of both curves, which is convex.

Sums and slopes of N numbers are off by a relative 4 N 2^-52 at most, which h_k have in addition and
the masses below less.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _devices
from jaxdp import _privacy_loss_readings as readings
from jaxdp._law import _allowances
from jaxdp._noise import LossDistribution

_FARTHEST = 690.0  # of losses whose ratios are doubles
_DIFFERENCE = 2.0**-40  # what Q lacks is a difference next to 1: so much to the law's side
_LOWERED = 200  # times that a bound at 0 is

Table = tuple[np.ndarray, np.ndarray, float]  # losses, P-masses and P{X = inf}


def _rough(count: int) -> float:
    return 4.0 * (count + 64) * 2.0**-52


def above(
    loss: np.ndarray, log_h: np.ndarray, ends: tuple[float, float] = (np.inf, np.inf)
) -> Table:
    """Losses, P-masses and P{X = inf} of the convex minorant of bounds at increasing losses.

    `ends` says that all losses are at least minus the first, and at most the second: H is 1 - g up
    to the one, and 0 from the other on.
    """
    low, high = (e if e < _FARTHEST else np.inf for e in ends)
    used = (np.abs(loss) < _FARTHEST) & (log_h < np.inf) & (-low < loss) & (loss < high)
    g, h = np.exp(loss[used]), np.exp(log_h[used])
    h = np.minimum(h * (1.0 + _rough(loss.size)), 1.0)
    if high < np.inf:
        g, h = np.append(g, np.exp(high)), np.append(h, 0.0)
    if not g.size:  # nothing is known
        return np.zeros(1), np.zeros(1), 1.0
    first = np.exp(-low)
    first = first if first < g[0] else 0.0  # (losses may all be 0 but for rounding)
    g, slope, q, infinity = _minorant(first, 1.0 - first, g, h)
    if first > 0.0:
        g, q = np.append(first, g), np.append(max(slope + 1.0, 0.0), q)
    return np.log(g), q * g, infinity


def as_pair(table: Table, points: int) -> LossDistribution:
    """It as a mechanism. (One shape, one program: points without mass are none.)"""
    losses, masses, infinity = table
    room = (0, (1 << (max(points, losses.size) - 1).bit_length()) - losses.size)
    losses, masses = np.pad(losses, room), np.pad(masses, room)
    with np.errstate(divide="ignore"), jax.enable_x64(True):
        return LossDistribution(losses, np.log(masses), infinity)


def _minorant(
    first: float, value: float, g: np.ndarray, h: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray, float]:
    """Of (first, value) and the points (g, h), constant at last, as it falls.

    Its corners but the first, the slope after that, by how much slopes rise at the others (the
    Q-masses there), and what it falls to.
    """
    g = np.concatenate([[first], g])
    h = np.minimum.accumulate(np.concatenate([[value], h]))
    corners: list[int] = []
    for k in range(g.size):
        while len(corners) > 1:
            i, j = corners[-2:]
            if (h[j] - h[i]) * (g[k] - g[j]) < (h[k] - h[j]) * (g[j] - g[i]):
                break
            corners.pop()
        corners.append(k)
    g, h = g[corners], h[corners]
    slopes = np.concatenate([np.diff(h) / np.diff(g), [0.0]])
    return g[1:], float(slopes[0]), np.maximum(np.diff(slopes), 0.0), float(h[-1])


Side = tuple[np.ndarray, np.ndarray]  # losses above 0, increasing, and bounds on H there


def _above_both(right: Side, left: Side, at_zero: float) -> Table | None:
    """The same from bounds of both directions, and one at 0; None where no curve was found.

    Each direction's curve is convex in its own g, and the two are one convex curve if the mass at
    loss 0 is not negative. Where it would be, the minorant passes below the bound at 0.
    """
    points = [(np.exp(loss), h) for loss, h in (right, left)]
    value = at_zero
    for _ in range(_LOWERED):  # (each time a corner goes)
        (g, slope, q, tau), (x, fall, p, _) = (_minorant(1.0, value, *side) for side in points)
        middle = slope + fall + 1.0 - value
        if middle >= 0.0:
            losses = np.concatenate([-np.log(x)[::-1], [0.0], np.log(g)])
            masses = np.concatenate([p[::-1], [middle], q * g])
            return losses, masses, tau
        # The chord between the corners next to 1: slopes are (end - value) / width there.
        inverse = [1.0 / (c[0] - 1.0) if c.size else 0.0 for c in (g, x)]
        ends = slope + value * inverse[0], fall + value * inverse[1]
        value = min((sum(ends) + 1.0) / (sum(inverse) + 1.0), value * (1.0 - 2.0**-50))
    return None


def _sure(law: Any, single: bool) -> Table:
    """Losses, P-masses and P{X = inf} that the law has for sure, increasing."""
    loss = np.asarray(readings.losses(law))
    slack = float(np.asarray(_allowances.lattice(law.start, law.spacing, loss.size)))
    tilt, unit = float(law.tilt), float(np.asarray(readings.log_price(law.tilt)))
    # What wraps around and comes to lie at a point or beyond it is all that may lie at the point.
    fall = float(law.outside_tilt) * np.maximum(loss - loss[0], 0.0)
    exponent = np.abs(tilt * loss) + np.abs(fall) + abs(unit) + 64.0
    off = np.logaddexp(law.log_error, law.log_outside - fall) - unit - tilt * loss
    off += (2.0**-21 if single else 2.0**-44) * exponent
    used = np.abs(loss) < _FARTHEST
    with np.errstate(over="ignore"):
        p = np.where(used, np.exp(law.log_mass) - np.exp(np.minimum(off, 700.0)), 0.0)
    p = np.maximum(p, 0.0) * (1.0 - _rough(loss.size))
    tau = float(np.exp(law.log_infinity)) * (1.0 - _rough(loss.size))
    loss = np.where(used, loss - slack, 0.0)
    keep = p > 0.0
    return loss[keep], p[keep], tau


def _meeting(sure: Table, most: float = 1.0, fall: float = 1.0) -> Table:
    """Of the larger of `most` - g `fall` and the curve of the sure masses: from where they meet."""
    loss, p, tau = sure
    x = np.exp(loss)
    zero = np.zeros(1)
    mass = np.concatenate([np.cumsum(p[::-1])[::-1], zero])  # from point j on
    q = np.concatenate([np.cumsum((p / x)[::-1])[::-1], zero])
    rest, room = most - tau - mass, fall - q
    # The two between two points: beyond point j - 1, and not beyond j.
    meets = np.where((rest > 0.0) & (room > 0.0), rest, 1.0) / np.where(room > 0.0, room, 1.0)
    right = (rest > 0.0) & (room > 0.0) & (meets < np.append(x, np.inf))
    j = int(np.argmax(right))
    losses = np.concatenate([[np.log(meets[j])], loss[j:]])
    return losses, np.concatenate([[rest[j]], p[j:]]), tau


def _below_both(sure: Table, other: Table) -> Table:
    """The same of the sure masses of both directions: those of the other one are Q-masses.

    Those at losses above 0 count. The other direction's curve, read as this one's, is a line from
    g = 1 on, and the larger of the two is one curve if it is larger there: else they trade places.
    """
    right, left = ((loss[loss > 0.0], p[loss > 0.0], tau) for loss, p, tau in (sure, other))
    at_zero = [np.sum(p * -np.expm1(-loss)) + tau for loss, p, tau in (right, left)]
    if at_zero[0] > at_zero[1]:
        losses, masses, tau = _below_both(other, sure)
        masses = masses * np.exp(-losses)
        return -losses[::-1], masses[::-1], sure[2]
    far, q, lost = left
    p = q * np.exp(-far)
    losses, masses, tau = _meeting(right, 1.0 - float(np.sum(p)), 1.0 - float(np.sum(q)) - lost)
    return np.concatenate([-far[::-1], losses]), np.concatenate([p[::-1], masses]), tau


def table(law: Any) -> Table:
    """Of a pair above the law's, or below: on its side."""
    single, law = _in_full(law)
    with jax.enable_x64(True):
        if not law.upper:
            return _meeting(_sure(law, single))
        loss, log_h, _ = map(np.asarray, _bounds(law, single))
    return above(loss, log_h)


def _table_of_both(law: Any, other: Any) -> Table | None:
    """Of a pair above those of a law and of the one of the other direction, or below."""
    known = [_in_full(x) for x in (law, other)]
    with jax.enable_x64(True):
        if not law.upper:
            return _below_both(*(_sure(x, single) for single, x in known))
        sides, at_zero = [], 1.0
        for single, x in known:
            loss, log_h, zero = map(np.asarray, _bounds(x, single))
            used = (loss > 0.0) & (loss < _FARTHEST)
            rough = 1.0 + _rough(loss.size)
            sides.append((loss[used], np.exp(log_h[used]) * rough))
            at_zero = min(at_zero, float(np.exp(zero)) * rough)
    return _above_both(sides[0], sides[1], at_zero)


def _in_full(law: Any) -> tuple[bool, Any]:
    """Whether fields are rounded, to 2^-24 of themselves, and the law in 64 bits.

    (NumPy's functions keep 32.)
    """
    single = np.asarray(law.tilt).dtype != np.float64
    return single, jax.tree.map(lambda x: np.asarray(x, np.float64), law)


@functools.partial(jax.jit, static_argnums=1)
def _bounds(law: Any, single: bool) -> tuple[jax.Array, ...]:
    """The points of the grid and the certified log H there, and log H at 0."""
    zero = readings.log_direct(law, jnp.zeros(()), single)
    return readings.losses(law), readings.log_at_points(law, single), zero


@_devices.at_once
def pair(law: Any) -> LossDistribution:
    """The table of a law of known numbers, in its direction, as a mechanism."""
    losses, masses, infinity = _pair_of_both(law) or _pair_of_one(law)
    some = masses > 0.0
    losses, masses = losses[some], masses[some]
    if not losses.size:
        losses, masses = np.zeros(1), np.zeros(1)
    with np.errstate(divide="ignore"):
        return LossDistribution(losses, np.log(masses), infinity)


def _pair_of_both(law: Any) -> Table | None:
    """By the opposite law, too, if there is one."""
    if law.opposite is None:
        return None
    laws = dataclasses.replace(law, opposite=None), law.opposite
    found = _table_of_both(*laws[:: -1 if law.reversed else 1])
    if found is None:
        return None
    losses, masses, infinity = found
    return losses + (_DIFFERENCE if law.upper else -_DIFFERENCE), masses, infinity


def _pair_of_one(law: Any) -> Table:
    losses, masses, infinity = table(dataclasses.replace(law, opposite=None))
    if not law.reversed:
        return losses, masses, infinity
    other = masses * np.exp(-losses)
    # (A difference next to 1, rounded to the law's side.)
    infinity = 1.0 - float(np.sum(other)) + (_DIFFERENCE if law.upper else -_DIFFERENCE)
    return -losses, other, min(max(infinity, 0.0), 1.0)
