"""Where a calibration begins: points ever finer, then the roots of estimates of the curve."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxdp import _lanes, _roots

_PROBES, _PROBE_BITS = 24, 5
_PROBE_RUN, _PROBE_FAR = 0.05, 1.0
_MOST_FOLDS = 40.0  # e-folds to a root: slopes that lead further are those of noise far out
# Of log(value), for roots of estimates: a rough one that another follows, or none; a fine one.
_ROUGH_TOLERANCE, _ESTIMATE_TOLERANCE, _FINE_TOLERANCE = 3e-2, 1e-3, 3e-3


def probe(excess, low, high, differences, valid, lanes):
    """Where to begin in [low, high], and with which slope, from a sequence of ever finer points.

    The first point with a usable slope; where there is none (delta is 0 or 1 wherever one looks),
    between the last point that misses the target and the first that meets it.
    For an estimate differences will do, and take half the time to compile. An estimate off by
    more than it changes nearby may turn the wrong way, as a curve that comes in waves (of integer
    noise, little of it) does: which way privacy rises, far points say.

    Returns: whether there is such a point, the point, the slope; whether all points meet it; the
    first and the last of those that do, and the values there.
    """

    def value_and_slope(x):
        run, far = (
            jnp.minimum(most, 0.5**_PROBE_BITS * (high - low)) for most in (_PROBE_RUN, _PROBE_FAR)
        )
        if differences:
            points = jnp.stack([x - far, x + far, x - 0.5 * run, x + 0.5 * run])
            left, right, value, after = _lanes.few(excess, points)
            slope = (after - value) / run
        else:
            value, slope = jax.jvp(excess, (x,), (jnp.ones_like(x),))
            left, right = jax.vmap(excess)(jnp.stack([x - far, x + far]))
        wide = (right - left) / (2.0 * far)
        # (Met between two points where it is missed, or the other way: noise, not a slope.)
        opposed = (value <= 0.0) & (jnp.minimum(left, right) > 0.0)
        opposed |= (value > 0.0) & (jnp.maximum(left, right) <= 0.0)
        turned = jnp.where(left > right, slope > 0.0, (left < right) & (slope < 0.0))
        wide = jnp.where(jnp.isfinite(wide), wide, jnp.where(left > right, -1.0, 1.0))
        slope = jnp.where(opposed, jnp.nan, jnp.where(turned, wide, slope))
        return value, slope, jnp.minimum(jnp.abs(slope), jnp.abs(wide))

    def body(state):
        index, *_, met, missed, found = state
        # van der Corput: 1/2, 1/4, 3/4, 1/8, ...
        fraction = sum(((index >> k) & 1) * 0.5 ** (k + 1) for k in range(_PROBE_BITS))
        x = low + (high - low) * fraction
        value, slope, least = value_and_slope(x)
        usable = jnp.isfinite(value) & jnp.isfinite(slope) & (slope != 0.0)
        if differences:  # of an estimate, whose noise is a slope too: it has to lead to a root
            root = x - value / jnp.where(usable, slope, 1.0)
            usable &= (root > low) & (root < high) & (jnp.abs(value) <= _MOST_FOLDS * least)
        beyond = (value <= 0.0) & jnp.stack([x < met[0], x > met[1]])
        found = jnp.where(beyond, value, found)
        met = _reach(met, value <= 0.0, x)
        missed = _reach(missed, value > 0.0, x)
        known = jnp.all(jnp.isfinite(met + missed))  # and with it which way privacy rises
        usable &= ~(known & jnp.where(slope < 0.0, met[1] < missed[0], met[0] > missed[1]))
        return index + 1, usable, x, slope, met, missed, found

    nothing = jnp.stack([jnp.full_like(low, jnp.inf), jnp.full_like(low, -jnp.inf)])
    begin = jnp.where(valid, jnp.int32(1), _PROBES)
    first = begin, jnp.zeros((), bool), low, jnp.zeros_like(low)
    state = _lanes.while_loop(
        lambda s: ~s[1] & (s[0] < _PROBES), body, (*first, nothing, nothing, nothing), lanes
    )
    _, usable, x, slope, met, missed, found = state
    rises = met[0] > missed[1]  # all that meet the target lie above all that miss it
    between = (rises | (met[1] < missed[0])) & jnp.all(jnp.isfinite(met + missed))
    middle = 0.5 * jnp.where(rises, met[0] + missed[1], met[1] + missed[0])
    other = between & ~usable
    x, slope = jnp.where(other, middle, x), jnp.where(other, jnp.where(rises, -1.0, 1.0), slope)
    return usable | other, x, slope, jnp.isfinite(met[0]) & ~jnp.isfinite(missed[1]), (met, found)


def _reach(ends, some, x):
    """The least and the largest of the points, with one more if it belongs to them."""
    return jnp.where(some, jnp.stack([jnp.minimum(ends[0], x), jnp.maximum(ends[1], x)]), ends)


def larger(excess, x):
    """The larger of the values of both directions, each by its flag."""
    return jnp.max(_lanes.both(lambda add: excess(x, add)))


class Search(NamedTuple):
    """Estimates of a decreasing constraint: of y and, if `split`, of a direction's flag.

    `split` if one direction is to be followed at a time.
    """

    rough: Callable[..., jax.Array]
    fine: Callable[..., jax.Array]
    split: bool
    lanes: int | None


def estimated(
    search: Search, begin: jax.Array, slope: jax.Array, aims: bool
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Near the root of the constraint; its slope there; the worse of the directions (if split)."""
    rough, fine, split, lanes = search
    parts = None
    if split:  # one direction at a time, from the one that the estimate shows to be worse
        parts = _roots.Parts(rough, jnp.zeros((), bool))
    near, slope, worse = _roots.estimate_root(
        rough,
        begin,
        _ROUGH_TOLERANCE if aims else _ESTIMATE_TOLERANCE,
        slope,
        parts,
        lanes,
    )
    begin = jnp.where(jnp.isfinite(near), near, begin)
    if aims:  # (which is dearer, and right about rare large losses)
        way = (worse,) if split else ()
        near, slope, _ = _roots.estimate_root(
            lambda y: fine(y, *way), begin, _FINE_TOLERANCE, slope, None, lanes
        )
        begin = jnp.where(jnp.isfinite(near), near, begin)
    return begin, slope, worse
