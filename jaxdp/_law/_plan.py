"""Where to look: the tilt and the windows, from a coarse law. Nothing here needs to be right.

Every number of a plan is a choice (no gradient passes): a bad one makes the bounds wide, never
wrong, because `_compose` bounds afterwards what the choice left out. The choices are rounded to a
few digits, so that nearby parameters share a plan: the bounds are then smooth in between, and their
finite differences agree with their gradients, at a frozen plan.

The coarse law has its cells collapsed to their mean losses. With K(theta) = log E_P e^{theta L}
per step (P restricted to finite losses), the tilt of the query solves sum n K'(theta) = epsilon;
for a given delta it solves the saddle-point form

    log delta = sum n (K - theta K') + log E[e^{-theta y} (1 - e^{-y})_+],   y ~ N(0, S^2),

S^2 = sum n K'', whose expectation is (m(theta S) - m((1 + theta) S)) / sqrt(2 pi), m the Mills
ratio (Lugannani & Rice 1980, to leading order).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law._grid import ladder
from jaxdp._law._terms import Term

_PILOT_SPACING = 1e-10
_PILOT_LADDER = ladder(24, 2**42)
_BISECTIONS = 16
# How many deviations below the saddle point's the mean is put: that costs the FFT a factor of a few
# and suppresses losses much larger than a deviation, which hardly count for delta, exponentially.
_UNDERTILT = 0.75
_TILT_RANGE = (1e-3, 1e3)
_CHERNOFF_TILTS = 2.0 ** np.arange(-8.0, 6.0)
# What windows and truncation may cost, relative to delta.
_TOLERANCE = 1e-6
# The same for wrapped mass below, where a wider window costs more than it gains.
_WRAPPED = 50.0
# Losses beyond so many deviations of the rest count as rare and large.
_BULK = 60.0
_BULK_ROUNDS = 8
# One stage suffices while its lattice has so many points per deviation of one step.
_BULK_POINTS = 64.0
_SIGNS = np.array([-1.0, 1.0])


class Atoms(NamedTuple):
    """Coarse laws, stacked: log P-weights and losses, (terms, nodes), and counts (terms,)."""

    log_p: jax.Array
    loss: jax.Array
    count: jax.Array


class Moments(NamedTuple):
    """K and its first two derivatives, per term."""

    log_norm: jax.Array
    mean: jax.Array
    variance: jax.Array


class StepPlan(NamedTuple):
    """How one term is composed: inner^outer * rest, and the losses above the cut apart.

    The cut and the window are relative to the centre.
    """

    centre: jax.Array
    inner: jax.Array
    outer: jax.Array
    rest: jax.Array
    cut: jax.Array
    window: jax.Array
    chernoff: jax.Array
    range: tuple[jax.Array, jax.Array]


class Plan(NamedTuple):
    """The tilt, the epsilon that is looked for (and its margin below), and the windows."""

    theta: jax.Array
    epsilon: jax.Array
    margin: jax.Array
    window: jax.Array
    chernoff: jax.Array
    steps: tuple[StepPlan, ...]


def _atoms(terms: tuple[Term, ...]) -> Atoms:
    edges = jnp.asarray(_PILOT_LADDER * _PILOT_SPACING)
    lo = jnp.concatenate([jnp.array([-jnp.inf]), edges])
    hi = jnp.concatenate([edges, jnp.array([jnp.inf])])
    rows = []
    for term in terms:
        log_q, log_p = term.masses(lo, hi)
        some = (log_q > -jnp.inf) & (log_p > -jnp.inf)
        rows.append((jnp.where(some, log_p, -jnp.inf), jnp.where(some, log_p - log_q, 0.0)))
    count = jnp.stack([jnp.asarray(t.count, jnp.float64) for t in terms])
    return Atoms(jnp.stack([r[0] for r in rows]), jnp.stack([r[1] for r in rows]), count)


def _coarse(x: jax.Array) -> jax.Array:
    """A positive number, to 3%."""
    return jnp.exp(jnp.round(16.0 * jnp.log(x)) / 16.0)


def _log_mean_exp(log_p: jax.Array, shift: jax.Array) -> jax.Array:
    exponent = log_p + shift
    top = jnp.max(exponent, axis=-1)
    return top + jnp.log(jnp.sum(jnp.exp(exponent - top[..., None]), axis=-1))


def _moments(atoms: Atoms, theta: jax.Array) -> Moments:
    log_norm = _log_mean_exp(atoms.log_p, theta * atoms.loss)
    weight = jnp.exp(atoms.log_p + theta * atoms.loss - log_norm[:, None])
    mean = jnp.sum(weight * atoms.loss, axis=-1)
    deviation = atoms.loss - mean[:, None]
    return Moments(log_norm, mean, jnp.sum(weight * deviation**2, axis=-1))


def _log_tail(theta: jax.Array, deviation: jax.Array) -> jax.Array:
    """log E[e^{-theta y} (1 - e^{-y})_+] for y ~ N(0, deviation^2), to about 1%.

    Mills' ratio as 4 / (3 z + sqrt(z^2 + 8)) (Birnbaum 1942, Sampford 1953), the difference without
    cancellation.
    """
    low = theta * deviation
    high = low + deviation
    root_low, root_high = jnp.sqrt(low * low + 8.0), jnp.sqrt(high * high + 8.0)
    rise = deviation * (3.0 + (high + low) / (root_high + root_low))
    drop = 4.0 * rise / ((3.0 * low + root_low) * (3.0 * high + root_high))
    return jnp.log(drop) - 0.5 * jnp.log(2 * jnp.pi)


def _saddle(
    atoms: Atoms, epsilon: jax.Array | None, log_delta: jax.Array | None
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The saddle point theta, sum n K - theta eps, and mean and deviation of the tilted law.

    Bisection in log theta: the tilt need not be exact, only near.
    """

    def at(theta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        m = _moments(atoms, theta)
        mean = jnp.sum(atoms.count * m.mean)
        deviation = jnp.maximum(jnp.sqrt(jnp.sum(atoms.count * m.variance)), 1e-12)
        target = mean if epsilon is None else epsilon
        return jnp.sum(atoms.count * m.log_norm) - theta * target, mean, deviation

    def halve(_, bracket: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = bracket
        middle = 0.5 * (low + high)
        theta = jnp.exp(middle)
        exponent, mean, deviation = at(theta)
        if epsilon is None:
            short = exponent + _log_tail(theta, deviation) > log_delta
        else:
            short = mean < epsilon
        return jnp.where(short, middle, low), jnp.where(short, high, middle)

    scale = -jnp.log(at(jnp.float64(0.0))[2])
    bracket = scale + np.log(_TILT_RANGE[0]), scale + np.log(_TILT_RANGE[1])
    low, high = lax.fori_loop(0, _BISECTIONS, halve, bracket)
    theta = jnp.exp(0.5 * (low + high))
    return theta, *at(theta)


def saddle_point(terms: tuple[Term, ...], epsilon: jax.Array) -> jax.Array:
    """log delta at epsilon, by the saddle point, with a gradient.

    A step of Newton's method polishes the tilt and gives it its implicit derivative.
    """
    atoms = _atoms(terms)
    theta = _saddle(*lax.stop_gradient((atoms, epsilon)), None)[0]
    m = _moments(atoms, theta)
    curvature = lax.stop_gradient(jnp.maximum(jnp.sum(atoms.count * m.variance), 1e-24))
    step = (epsilon - jnp.sum(atoms.count * m.mean)) / curvature
    theta += jnp.clip(step, -0.1 * theta, 0.1 * theta)
    m = _moments(atoms, theta)
    deviation = jnp.maximum(jnp.sqrt(jnp.sum(atoms.count * m.variance)), 1e-12)
    exponent = jnp.sum(atoms.count * m.log_norm) - theta * epsilon
    return jnp.minimum(exponent + _log_tail(theta, deviation), -1e-300)


def _chernoff_edge(
    log_mgf: jax.Array, tilts: jax.Array, log_mass: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The distance beyond which Chernoff leaves at most e^log_mass, and the tilt that shows it."""
    reach = (log_mgf - log_mass) / tilts
    nearest = jnp.min(reach)
    return nearest, jnp.min(jnp.where(reach <= nearest, tilts, jnp.inf))


def _bulk(weight: jax.Array, centred: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Per term: the deviation of the law without its rare large losses, and where these begin."""
    cut = jnp.full(weight.shape[:1], jnp.inf)
    deviation = jnp.zeros(weight.shape[:1])
    for _ in range(_BULK_ROUNDS):
        inside = jnp.where(centred < cut[:, None], weight, 0.0)
        deviation = _coarse(jnp.maximum(jnp.sqrt(jnp.sum(inside * centred**2, axis=-1)), 1e-15))
        cut = _BULK * deviation
    return deviation, cut


def plan(
    terms: tuple[Term, ...], epsilon: jax.Array | None, log_delta: jax.Array | None, size: int
) -> Plan:
    """Choose for a given epsilon, or for a given log delta (one of them None)."""
    epsilon, log_delta = lax.stop_gradient((epsilon, log_delta))
    atoms = lax.stop_gradient(_atoms(terms))
    count = atoms.count
    theta, exponent, mean, deviation = _saddle(atoms, epsilon, log_delta)
    log_answer = exponent + _log_tail(theta, deviation)
    centre = mean if epsilon is None else epsilon
    saddle = theta
    for _ in range(2):
        grain = 0.25 / _coarse(deviation)
        theta = grain * jnp.round((saddle - _UNDERTILT / deviation) / grain)
        theta = jnp.maximum(theta, _coarse(0.05 * saddle))
        m = _moments(atoms, theta)
        mean = jnp.sum(count * m.mean)
        deviation = _coarse(jnp.maximum(jnp.sqrt(jnp.sum(count * m.variance)), 1e-12))
    # How far below the centre epsilon may be read: e^{-theta y} changes by at most a factor 2.
    margin = jnp.minimum(jnp.log(2.0) / theta, 2.0 * deviation)
    if epsilon is None:
        centre = 0.25 * margin * jnp.floor(4.0 * centre / margin)
    log_value = log_answer - jnp.sum(count * m.log_norm) + theta * centre
    # A stray mass costs at most sup g, see `_compose`.
    log_mass = jnp.log(_TOLERANCE) + log_value - log_price(theta)
    log_p = atoms.log_p + theta * atoms.loss - m.log_norm[:, None]
    centred = atoms.loss - m.mean[:, None]
    used = jnp.maximum(count, 1.0)  # a term may occur no times: its powers are 1
    # Losses so large that P hardly sees them go to infinity, so small that the tilted law hardly
    # does are cut; what remains has windows that do not have to hold those tails.
    allowed = jnp.log(_TOLERANCE) + log_answer - jnp.log(used)[:, None]
    keep_above = jnp.cumsum(jnp.exp(atoms.log_p)[:, ::-1], axis=-1)[:, ::-1] > jnp.exp(
        jnp.maximum(allowed, -700.0)
    )
    edges = jnp.asarray(_PILOT_LADDER * _PILOT_SPACING)
    # (The law above keeps the P-mass of what it cuts below, at the edge.)
    below = jnp.cumsum(jnp.exp(atoms.log_p), axis=-1)[:, :-1]
    moved = jnp.log(below) + theta * edges - m.log_norm[:, None]
    keep_below = moved > log_mass - jnp.log(used)[:, None] - 25.0
    highest = jnp.max(jnp.where(keep_above[:, :-1], edges, edges[0]), axis=-1)
    lowest = jnp.max(jnp.where(keep_below, edges[0], edges), axis=-1)
    log_p = jnp.where(keep_above & (centred + m.mean[:, None] >= lowest[:, None]), log_p, -jnp.inf)

    def log_mgf(log_weight: jax.Array, tilts: jax.Array) -> jax.Array:
        """Per term, at each of its tilts: (terms, tilts)."""
        exponent = log_weight[:, None, :] + tilts[:, :, None] * centred[:, None, :]
        return _log_mean_exp(exponent, jnp.float64(0.0))

    base = jnp.asarray(_CHERNOFF_TILTS)
    each = jnp.ones((len(terms), 1))
    tilts = base / deviation
    both = jnp.concatenate([-tilts, tilts])
    total = jnp.sum(count[:, None] * log_mgf(log_p, each * both), axis=0)
    below, tilt_below = _chernoff_edge(total[: base.size], tilts, log_mass)
    above, tilt_above = _chernoff_edge(total[base.size :], tilts, log_mass)
    # Above, g itself falls like e^{-theta y}, and what is wrapped around comes to lie below.
    low = jnp.minimum(mean - below, centre - 4.0 * deviation)
    high = jnp.minimum(mean + above, centre - (jnp.log(_TOLERANCE) + log_value) / theta)
    high = jnp.maximum(high, low + 8.0 * deviation)
    # Below, what is wrapped around must not come to lie beyond epsilon.
    wide, tilt_wide = _chernoff_edge(total[base.size :], tilts, log_mass + jnp.log(_WRAPPED))
    wide = jnp.maximum(high, low + mean + wide - centre + margin)
    chernoff = jnp.stack([tilt_below, tilt_above, tilt_wide])
    unit = 0.25 * deviation
    window = unit * jnp.stack([jnp.floor(low / unit), jnp.ceil(high / unit), jnp.ceil(wide / unit)])

    bulk, cut = _bulk(jnp.exp(log_p), centred)
    whole = jnp.round(used)
    single = (window[1] - window[0]) / size < bulk / _BULK_POINTS
    inner = jnp.where(single, whole, jnp.maximum(jnp.floor(jnp.sqrt(whole)), 1.0))
    cut = jnp.where(single, jnp.inf, cut)
    outer = jnp.maximum(jnp.floor(whole / inner), 1.0)
    rest = whole - inner * outer
    kept = jnp.where(centred < cut[:, None], log_p, -jnp.inf)
    units = jnp.sqrt(inner) * bulk
    tilts = base / units[:, None]
    # Moving the centre moves the middle of the inner fold, by an eighth of its deviation at most.
    grain = 0.25 * units / inner
    means = grain * jnp.round(m.mean / grain)
    values = inner[:, None] * log_mgf(kept, jnp.concatenate([-tilts, tilts], axis=-1))
    steps = []
    for i in range(len(terms)):
        mass = log_mass - jnp.log(outer[i])
        low, tilt_low = _chernoff_edge(values[i, : base.size], tilts[i], mass)
        high, tilt_high = _chernoff_edge(values[i, base.size :], tilts[i], mass)
        steps.append(
            StepPlan(
                means[i],
                inner[i],
                outer[i],
                rest[i],
                cut[i],
                _SIGNS * _coarse(1.04 * (jnp.stack([low, high]) + 0.125 * units[i])),
                jnp.stack([tilt_low, tilt_high]),
                (lowest[i], highest[i]),
            )
        )
    return Plan(theta, centre, margin, window, chernoff, tuple(steps))


def log_price(theta: jax.Array) -> jax.Array:
    """log sup_{y > 0} e^{-theta y} (1 - e^{-y}) = theta log theta - (1 + theta) log(1 + theta)."""
    return -theta * jnp.log1p(1.0 / theta) - jnp.log1p(theta)
