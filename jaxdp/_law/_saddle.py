"""A coarse law of each term, and saddle points of their composition: estimates, never bounds.

The coarse law has its cells collapsed to their mean losses. With K(theta) = log E_P e^{theta L}
per step (P restricted to finite losses), the tilt for epsilon solves sum n K'(theta) = epsilon, and

    log delta = sum n (K - theta K') + log E[e^{-theta y} (1 - e^{-y})_+],   y ~ N(0, S^2),

S^2 = sum n K'', whose expectation is (m(theta S) - m((1 + theta) S)) / sqrt(2 pi), m the Mills
ratio (Lugannani & Rice 1980, to leading order).

Where delta is that of one rare loss far above epsilon, the saddle point overestimates it, for
the tilted law then is two things, the rest and that loss. So losses beyond a cut c >= epsilon are
set apart,

    delta ~ (the above for the losses up to c) + sum n p (1 - e^{eps - l - mean})_+ + pairs,

the sum over the losses l > c, `mean` that of the rest, `pairs` the chance of two of them. (With a
cut below epsilon, each such loss counts with 1.) The least over several cuts is taken.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law._grid import ladder
from jaxdp._law._terms import Family, Term, Terms

_PILOT_SPACING = 1e-10
_PILOT_LADDER = ladder(24, 2**42)
AT_A_TIME = 8  # of a family's terms
_FEW = 32  # rows of atoms
_TILT_RANGE = (1e-3, 1e3)
_BISECTIONS = 12
_PRECISION = np.log(_TILT_RANGE[1] / _TILT_RANGE[0]) / 2**_BISECTIONS  # of a tilt's log
# log of how many losses are to be expected beyond a cut: more than log delta, and times log delta.
_SMALL_LEVELS = np.array([-np.inf, -14.0, -7.0, -3.0])
_LARGE_LEVELS = np.array([0.9, 0.7, 0.5])


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


def pilot_edges() -> jax.Array:
    """Where one cell of the coarse law ends and the next begins."""
    return jnp.asarray(_PILOT_LADDER * _PILOT_SPACING)


def coarse_atoms(terms: Terms) -> Atoms:
    """The coarse laws of the terms, those of a family one after the other."""
    edges = pilot_edges()
    lo = jnp.concatenate([jnp.array([-jnp.inf]), edges])
    hi = jnp.concatenate([edges, jnp.array([jnp.inf])])

    def one(term: Term) -> Atoms:
        log_q, log_p = term.masses(lo, hi)
        some = (log_q > -jnp.inf) & (log_p > -jnp.inf)
        loss = jnp.where(some, log_p - log_q, 0.0)
        return Atoms(jnp.where(some, log_p, -jnp.inf), loss, jnp.asarray(term.count, jnp.float64))

    rows = []
    for term in terms:
        if isinstance(term, Family):
            each = jax.checkpoint(lambda x, term=term: one(term.term(x)))
            rows.append(lax.map(each, term.parameters, batch_size=AT_A_TIME))
        else:
            rows.append(jax.tree.map(lambda x: x[None], one(term)))
    return jax.tree.map(lambda *x: jnp.concatenate(x), *rows)


def each_of(function: Callable[[jax.Array], jax.Array], values: jax.Array, rows: int) -> jax.Array:
    """The function of every value: all at once for few rows of atoms, else one after the other."""
    return jax.vmap(function)(values) if rows <= _FEW else lax.map(function, values)


def above(atoms: Atoms) -> jax.Array:
    """P-mass from each atom on."""
    return lax.cumsum(jnp.exp(atoms.log_p), axis=1, reverse=True)


def moments(atoms: Atoms, theta: jax.Array) -> Moments:
    """Of the law tilted by theta."""
    exponent = atoms.log_p + theta * atoms.loss
    top = jnp.max(exponent, axis=-1)
    weight = jnp.exp(exponent - top[:, None])
    total = jnp.sum(weight, axis=-1)
    mean = jnp.sum(weight * atoms.loss, axis=-1) / total
    deviation = atoms.loss - mean[:, None]
    return Moments(top + jnp.log(total), mean, jnp.sum(weight * deviation**2, axis=-1) / total)


def log_tail(theta: jax.Array, deviation: jax.Array) -> jax.Array:
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


class Tilted(NamedTuple):
    """The composition at a tilt: sum n K - theta eps, the mean and the deviation of its law."""

    exponent: jax.Array
    mean: jax.Array
    deviation: jax.Array


def _tilted(atoms: Atoms, theta: jax.Array, epsilon: jax.Array | None) -> Tilted:
    m = moments(atoms, theta)
    mean = jnp.sum(atoms.count * m.mean)
    deviation = jnp.maximum(jnp.sqrt(jnp.sum(atoms.count * m.variance)), 1e-12)
    at = mean if epsilon is None else epsilon
    return Tilted(jnp.sum(atoms.count * m.log_norm) - theta * at, mean, deviation)


def _bisect(
    atoms: Atoms, at: Callable[[jax.Array], Any], too_low: Callable[[Any], jax.Array]
) -> tuple[jax.Array, Any]:
    """A tilt near which too_low(at(tilt)) stops holding, by halving in its log, and `at` there."""
    scale = -jnp.log(_tilted(atoms, jnp.float64(0.0), None).deviation)

    def halve(_, state: tuple[jax.Array, jax.Array, jax.Array, Any]) -> tuple:
        low, high, middle, _ = state
        found = at(jnp.exp(middle))
        more = too_low(found)
        low, high = jnp.where(more, middle, low), jnp.where(more, high, middle)
        return low, high, 0.5 * (low + high), (middle, found)

    low, high = scale + np.log(_TILT_RANGE[0]), scale + np.log(_TILT_RANGE[1])
    first = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(at, scale))
    state = low, high, 0.5 * (low + high), (scale, first)
    middle, found = lax.fori_loop(0, _BISECTIONS, halve, state)[3]
    return jnp.exp(middle), found


def tilt_for(atoms: Atoms, epsilon: jax.Array) -> jax.Array:
    """The tilt at which the mean is epsilon."""

    def mean(theta: jax.Array) -> jax.Array:
        return _tilted(atoms, theta, None).mean

    return _bisect(atoms, mean, lambda mean: mean < epsilon)[0]


def reach(atoms: Atoms, log_delta: float) -> jax.Array:
    """About where delta has fallen so low."""

    def value(theta: jax.Array) -> tuple[jax.Array, jax.Array]:
        at = _tilted(atoms, theta, None)
        return at.mean, at.exponent + log_tail(theta, at.deviation)

    return _bisect(atoms, value, lambda found: found[1] > log_delta)[1][0]


def _one_cut(
    atoms: Atoms, level: jax.Array, epsilon: jax.Array | None, log_delta: jax.Array
) -> jax.Array:
    """The estimate with losses beyond a cut apart: at most e^level of them are expected."""
    some = jnp.where(atoms.count > 0.0, atoms.count, 1.0)  # what occurs no times keeps its law
    rare = some[:, None] * above(atoms) <= jnp.exp(level)
    bulk = atoms._replace(log_p=jnp.where(rare, -jnp.inf, atoms.log_p))
    rate = jnp.where(rare, atoms.count[:, None] * jnp.exp(atoms.log_p), 0.0)
    expected = jnp.sum(rate, axis=-1)
    pairs = 0.5 * jnp.sum(expected) ** 2
    pairs -= 0.5 * jnp.sum(expected**2 / jnp.maximum(atoms.count, 1.0))
    shift = _tilted(bulk, jnp.float64(0.0), None).mean
    shrunk = rate * jnp.exp(-jnp.maximum(atoms.loss, -700.0))
    cut = jnp.min(jnp.where(rare & (rate > 0.0), atoms.loss, jnp.inf))

    def log_value(theta: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Where the law is looked at, log delta there, and how at grows with log theta."""
        exponent, mean, deviation = _tilted(bulk, theta, epsilon)
        at = mean if epsilon is None else epsilon
        factor = jnp.exp(jnp.minimum(at - shift, 700.0))
        jumps = jnp.sum(jnp.maximum(rate - factor * shrunk, 0.0)) + pairs
        jumps = jnp.where(at <= cut + shift, jumps, jnp.sum(expected))
        value = jnp.logaddexp(exponent + log_tail(theta, deviation), jnp.log(jumps))
        return at, value, theta * deviation**2

    if epsilon is None:
        theta, found = _bisect(bulk, log_value, lambda found: found[1] > log_delta)
        at, value, growth = found
        # The rest of the way, by the slope of log delta.
        at += jnp.clip((value - log_delta) / theta, -_PRECISION * growth, _PRECISION * growth)
        return jnp.where((value < log_delta + 1.0) | (level == -jnp.inf), at, jnp.inf)
    return log_value(tilt_for(bulk, epsilon))[1]


def estimate(
    atoms: Atoms, epsilon: jax.Array | None, log_delta: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """(epsilon, log delta), one of which is given."""
    if epsilon is None:
        scale = log_delta
    else:
        theta = tilt_for(atoms, epsilon)
        exponent, _, deviation = _tilted(atoms, theta, epsilon)
        scale = jnp.minimum(exponent + log_tail(theta, deviation), -1e-3)
    levels = jnp.concatenate([scale + _SMALL_LEVELS, scale * _LARGE_LEVELS])
    rows = atoms.count.shape[0]
    best = jnp.min(each_of(lambda level: _one_cut(atoms, level, epsilon, scale), levels, rows))
    return (best, log_delta) if epsilon is None else (epsilon, best)


def saddle_point(terms: Terms, epsilon: jax.Array) -> jax.Array:
    """log delta at epsilon, by the saddle point, with a gradient.

    A step of Newton's method polishes the tilt and gives it its implicit derivative.
    """
    atoms = coarse_atoms(terms)
    theta = tilt_for(*lax.stop_gradient((atoms, epsilon)))
    m = moments(atoms, theta)
    curvature = lax.stop_gradient(jnp.maximum(jnp.sum(atoms.count * m.variance), 1e-24))
    step = (epsilon - jnp.sum(atoms.count * m.mean)) / curvature
    theta += jnp.clip(step, -0.1 * theta, 0.1 * theta)
    exponent, _, deviation = _tilted(atoms, theta, epsilon)
    return jnp.minimum(exponent + log_tail(theta, deviation), -1e-300)


def log_price(theta: jax.Array) -> jax.Array:
    """log sup_{y > 0} e^{-theta y} (1 - e^{-y}) = theta log theta - (1 + theta) log(1 + theta)."""
    return -theta * jnp.log1p(1.0 / theta) - jnp.log1p(theta)
