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

Sums and slopes of N numbers are off by a relative 4 N 2^-52 at most, which h_k have in addition and
the masses below less.
"""

from typing import Any

import jax
import numpy as np

from jaxdp import _privacy_loss_readings as readings
from jaxdp._law import _allowances
from jaxdp._noise import LossDistribution

_FARTHEST = 690.0  # of losses whose ratios are doubles


def _rough(count: int) -> float:
    return 4.0 * (count + 64) * 2.0**-52


def above(loss: np.ndarray, log_h: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Losses, P-masses and P{X = inf} of the convex minorant of bounds at increasing losses."""
    used = (np.abs(loss) < _FARTHEST) & (log_h < np.inf)
    if not used.any():  # nothing is known
        return np.zeros(1), np.zeros(1), 1.0
    g = np.concatenate([[0.0], np.exp(loss[used])])
    h = np.minimum(np.exp(log_h[used]) * (1.0 + _rough(loss.size)), 1.0)
    h = np.concatenate([[1.0], np.minimum.accumulate(h)])
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
    q = np.maximum(np.diff(slopes), 0.0)
    return np.log(g[1:]), q * g[1:], float(h[-1])


def below(law: Any, single: bool) -> tuple[np.ndarray, np.ndarray, float]:
    """Losses, P-masses and P{X = inf} of the larger of 1 - g and the curve of the sure masses."""
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
    loss, p = loss[keep], p[keep]
    x = np.exp(loss)
    zero = np.zeros(1)
    mass = np.concatenate([np.cumsum(p[::-1])[::-1], zero])  # from point j on
    q = np.concatenate([np.cumsum((p / x)[::-1])[::-1], zero])
    rest, room = 1.0 - tau - mass, 1.0 - q
    # F = 1 - g between two points: beyond point j - 1, and not beyond j.
    meets = np.where((rest > 0.0) & (room > 0.0), rest, 1.0) / np.where(room > 0.0, room, 1.0)
    right = (rest > 0.0) & (room > 0.0) & (meets < np.append(x, np.inf))
    j = int(np.argmax(right))
    losses = np.concatenate([[np.log(meets[j])], loss[j:]])
    return losses, np.concatenate([[rest[j]], p[j:]]), tau


def table(law: Any) -> tuple[np.ndarray, np.ndarray, float]:
    """Losses, P-masses and P{X = inf} of a pair above the law's, or below: on its side."""
    single = np.asarray(law.tilt).dtype != np.float64  # fields are rounded, to 2^-24 of themselves
    law = jax.tree.map(lambda x: np.asarray(x, np.float64), law)  # (NumPy's functions keep 32 bits)
    with jax.enable_x64(True):
        if not law.upper:
            return below(law, single)
        loss = np.asarray(readings.losses(law))
        log_h = _bounds(law, loss, single)
    return above(loss, log_h)


@jax.jit
def _wide(law: Any, loss: Any) -> Any:
    return jax.lax.map(lambda e: readings.log_direct(law, e, False), loss, batch_size=256)


@jax.jit
def _rounded(law: Any, loss: Any) -> Any:
    return jax.lax.map(lambda e: readings.log_direct(law, e, True), loss, batch_size=256)


def _bounds(law: Any, loss: np.ndarray, single: bool) -> np.ndarray:
    """The certified log H at the points of the grid."""
    return np.asarray((_rounded if single else _wide)(law, loss))


def pair(law: Any) -> LossDistribution:
    """The table of a law of known numbers, in its direction, as a mechanism."""
    losses, masses, infinity = table(law)
    some = masses > 0.0
    losses, masses = losses[some], masses[some]
    if law.reversed:
        other = masses * np.exp(-losses)
        # (A difference next to 1, rounded to the law's side.)
        infinity = 1.0 - float(np.sum(other)) + (2.0**-40 if law.upper else -(2.0**-40))
        infinity = min(max(infinity, 0.0), 1.0)
        losses, masses = -losses, other
    if not losses.size:
        losses, masses = np.zeros(1), np.zeros(1)
    with np.errstate(divide="ignore"):
        return LossDistribution(losses, np.log(masses), infinity)
