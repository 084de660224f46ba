r"""A law below that of k of t steps, chosen uniformly: the law of one statistic of the release.

With the ratios X_1, ..., X_t of the steps the ratio is e_k(X_1, ..., X_t)/C(t, k), the mean of the
products over all choices. Any function T of the release has a law of its own ratio that is below
(data processing: it is a conditional expectation of that ratio). Here T = sum_i j(X_i), j a
function to the integers. Under Q it is a sum of t independent terms; under P, whichever steps were
chosen, one of k terms with the laws that a step has with the record and of t - k without: both are
convolutions, by the FFT.

The choice. e_k is the coefficient of z^k in prod_i (1 + z X_i), so that for z near the saddle point
sum_i log(1 + z X_i) is next to log e_k but for terms that vary little. j is that, with
z = q/(1 - q), in cells of width h: rounding is part of the test and costs no certainty. Steps whose
number is k e, t e in all serve e independent allocations at once.

Where the ratio is infinite in a chosen step, which has probability 1 - (1 - tau)^k, P alone is
there. X = 0 lies in the lowest cell.

What is certified. As in `_table` the two measures are seen at several tilts, each point at the one
where it is known best. The measure of the first law of the pair is to be too small, that of the
second one too large ("remove": with and without the record; "add": the other way round):

* masses of cells are lowered or raised by their relative error;
* the transform is off by eta at every point, and what wraps around adds to a point: Chernoff's
  bound on it is subtracted from the first measure, the second one may keep it;
* unlikely points are left out, which the tests need not use.

sum_j (p_j - g q_j)_+ of any such points is a bound on H from below; they are a sub-measure of a
law that is below, which composes like one.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp import _special as special
from jaxdp._divergences import log_add, log_positive
from jaxdp._law import _allowances, _places, _saddle
from jaxdp._law._places import wrap
from jaxdp._law._symbols import count_up, factors, from_log, log_of
from jaxdp._law._terms import Sign, Term, either, orient_one
from jaxdp._noise._atoms import interval_log_masses
from jaxdp._special import log1p

SIZE = 8192
# Tilts, as shares of those whose means are the ends of the window: its likely end, its rare one.
_SHARES = np.array([0.1, 0.5]), np.array([0.25, 0.45, 0.65, 0.82, 0.95])
_NUMBER = 1 + 2 * sum(len(shares) for shares in _SHARES)
_REACH = 2.0 ** np.arange(-6.0, 10.0, 0.25)  # of tilts to choose from, per deviation
_PROOFS = 4  # every so many bound masses
_LOG_SURE = -40.0  # of the mass that may be left out where the test says no
_ROOM = 24.0
_LARGEST_RATE = 1.0 - 2.0**-20
_BISECTIONS = 60


class Subset(NamedTuple):
    """Logs of the masses of points under both laws of the pair, and of its infinite loss."""

    log_p: jax.Array
    log_q: jax.Array
    log_tau: jax.Array


class _Window(NamedTuple):
    centre: jax.Array  # of one step's cells
    spacing: jax.Array
    first: jax.Array  # index of the first point of T
    tilts: jax.Array  # transformed, then such as only bound masses; per loss


def _statistic(loss: jax.Array, rate: jax.Array) -> jax.Array:
    """log (1 - q + q X)."""
    ratio = jnp.expm1(jnp.minimum(loss, 600.0))
    return jnp.where(loss < 600.0, log1p(rate * ratio), loss + jnp.log(rate))


def _choose(term: Term, k: jax.Array, t: jax.Array, rate: jax.Array, log_floor, size, s: Sign):
    """Choices only."""
    atoms = _saddle.coarse_atoms((term,))
    log_p, loss = atoms.log_p[0], atoms.loss[0]
    log_q = jnp.where(log_p > -jnp.inf, log_p - loss, -jnp.inf)
    f = jnp.append(_statistic(loss, rate), log1p(-rate))  # the last for X = 0
    log_p = jnp.append(log_p, -jnp.inf)
    log_q = jnp.append(log_q, jnp.asarray(term.log_tau_q, jnp.float64))
    log_q -= special.logsumexp(log_q)

    def moments(theta: jax.Array):
        """log MGF and mean of T, under the two laws."""
        each = []
        for log_mass in (log_p, log_q):
            exponent = log_mass + theta * f
            log_norm = special.logsumexp(exponent)
            each.append((log_norm, jnp.sum(jnp.exp(exponent - log_norm) * f)))
        (kp, mp), (kq, mq) = each
        return (k * kp + (t - k) * kq, t * kq), (k * mp + (t - k) * mq, t * mq)

    mean = jnp.sum(jnp.exp(log_q) * f)
    variance = jnp.sum(jnp.exp(log_q) * (f - mean) ** 2)
    deviation = jnp.sqrt(t * variance) + 1e-12
    proofs = np.concatenate([-_REACH[::-1], [0.0], _REACH]) / deviation
    log_mgf, means = jax.vmap(moments)(proofs)
    first = either(s > 0, log_mgf[0], log_mgf[1])
    up, down = proofs > 0.0, proofs < 0.0
    # (What wraps around is taken off every point, and there are many.)
    tail = log_floor - _ROOM
    likely, rare = either(s > 0, (tail, _LOG_SURE), (_LOG_SURE, tail))
    high = jnp.min(jnp.where(up, (first - likely) / jnp.where(up, proofs, 1.0), jnp.inf))
    low = jnp.max(jnp.where(down, (first - rare) / jnp.where(down, proofs, 1.0), -jnp.inf))
    top = jnp.maximum(high - low, 1e-9 * (1.0 + jnp.abs(high)))
    spacing = top / (size - 8)
    # Tails that fall slowly are known best at tilts short of the one whose mean is their end.
    tilts = [jnp.zeros((1,))]
    for at in means:
        ends = jnp.interp(jnp.stack([low, high]), at, proofs)
        end, far = either(s > 0, (ends[0], ends[1]), (ends[1], ends[0]))
        tilts += [end * _SHARES[0], far * _SHARES[1]]
    start = _places.floor((low - t * mean) / spacing) - 3.0
    return _Window(mean, spacing, start, jnp.concatenate([*tilts, proofs[::_PROOFS]]))


def _cells(term: Term, window: _Window, rate: jax.Array, size: int):
    """log P and log Q of the cells -size .. size - 1 about the centre, rounded down and up."""
    edges = window.centre + window.spacing * (count_up(2 * size - 1) - size + 0.5)
    ratio = jnp.expm1(jnp.minimum(edges, 700.0)) / rate
    loss = jnp.where(ratio > -1.0, log1p(jnp.where(ratio > -1.0, ratio, 0.0)), -jnp.inf)
    loss = jnp.where(edges < 700.0, loss, edges - jnp.log(rate))
    end = jnp.full((1,), jnp.inf)
    log_q, log_p = term.masses(jnp.concatenate([-end, loss]), jnp.concatenate([loss, end]))
    error = _allowances.masses(log_q, log_p) + term.mass_error
    # (X = 0 has the least value of the statistic.)
    least = _places.nearest((log1p(-rate) - window.centre) / window.spacing) + size
    least = jnp.clip(least, 0.0, 2.0 * size - 1.0).astype(jnp.int32)
    none = jnp.asarray(term.log_tau_q, jnp.float64)
    log_q = jnp.where(np.arange(2 * size) == least, log_add(log_q, none), log_q)

    def moved(log_mass: jax.Array, sign: float) -> jax.Array:
        return jnp.where(log_mass > -jnp.inf, log_mass + sign * 2.0 * error, -jnp.inf)

    return {-1: (moved(log_p, -1.0), moved(log_q, -1.0)), 1: (moved(log_p, 1.0), moved(log_q, 1.0))}


def _beyond(gap: jax.Array, log_mgf: jax.Array, at: jax.Array, above: bool) -> jax.Array:
    """Chernoff's bound on the mass beyond an index of T."""
    exponent = jnp.where(gap > 0.0 if above else gap < 0.0, log_mgf - gap * at, jnp.inf)
    return _allowances.CHERNOFF * jnp.exp(jnp.minimum(jnp.min(exponent, axis=-1), 0.0))


def _measure(cells, counts, window: _Window, size: int, side: int) -> jax.Array:
    """log of the masses of T at the points of the window, too small or too large."""
    h, number = window.spacing, _NUMBER
    places = count_up(2 * size) - size
    tilts = window.tilts * h  # per index

    def tilted(log_mass: jax.Array):
        def one(theta: jax.Array):
            exponent = log_mass + theta * places
            log_norm = special.logsumexp(exponent)
            return jnp.exp(exponent - log_norm), log_norm

        weights, log_norm = jax.vmap(one)(tilts[:number])
        bounds = lax.stop_gradient(lax.map(lambda theta: one(theta)[1], tilts[number:]))
        cyclic = jnp.concatenate([weights[:, size:], weights[:, :size]], axis=1)
        return log_of(jnp.fft.rfft(cyclic)), jnp.concatenate([log_norm, bounds])

    magnitude = angle = log_mgf = 0.0
    sums = jnp.zeros((2,))
    for log_mass, count in zip(cells, counts, strict=True):
        (own, turn), log_norm = tilted(log_mass)
        some = count > 0.0
        magnitude += jnp.where(some, count * own, 0.0)
        angle += jnp.where(some, count * turn, 0.0)
        log_mgf += jnp.where(some, count * jnp.where(some, log_norm, 0.0), 0.0)
        sums += jnp.where(some, factors(count), 0.0)
    wave = from_log(magnitude, angle)
    index = window.first + count_up(size)
    length = 2 * size
    weights = jnp.fft.irfft(wave, length)[:, wrap(index, length)]
    norm = 2.0 * jnp.sum(jnp.abs(lax.stop_gradient(wave)), axis=-1) / length
    r = _allowances.fourier(length, operations=48)
    stray = r * ((2.0 * sums[0] + 1.0) * norm + sums[1])
    if side < 0:
        frozen = lax.stop_gradient(log_mgf)
        gap = tilts - tilts[:number, None]
        change = frozen - frozen[:number, None]
        ends = window.first - 0.5 * size, window.first + 1.5 * size
        stray += _beyond(gap, change, ends[0], False) + _beyond(gap, change, ends[1], True)
    stray = lax.stop_gradient(stray)[:, None]
    moved = tilts[:number, None] * index
    unit = log_mgf[:number, None] - moved
    slack = _allowances.prefactor(log_mgf[:number, None], moved)
    slack += _allowances.normalised_steps(sums[0])
    # the tilt at which a point is known best
    score = lax.stop_gradient(unit + jnp.log(stray))
    best = jnp.cumsum(score <= jnp.min(score, axis=0) + 0.1, axis=0) == 0
    best = jnp.minimum(jnp.sum(best.astype(jnp.int32), axis=0), number - 1)[None]
    value = log_positive(jnp.maximum(weights + side * stray, 0.0 if side < 0 else 1e-300))
    value += unit + side * lax.stop_gradient(slack)
    return jnp.take_along_axis(value, best, axis=0)[0]


def subset(
    term: Term,
    num_steps: jax.Array,
    num_selected: jax.Array,
    rate: jax.Array,
    log_floor: jax.Array,
    s: Sign,
    size: int = SIZE,
) -> Subset:
    """The law of T for k of t steps, with the record first (s = 1, "remove") or second (-1).

    Args:
      term: of one step, P with the record; a law below will do.
      num_steps, num_selected: t and k, or so many times each for several allocations.
      rate: q of the statistic, about k/t.
      log_floor: log of the mass of the tail that may be left out.
      s: 1 or -1.
      size: points.
    """
    t, k = num_steps, num_selected
    rate = lax.stop_gradient(jnp.minimum(rate, _LARGEST_RATE))
    window = lax.stop_gradient(_choose(term, k, t, rate, log_floor, size, s))
    cells = _cells(term, window, rate, size)

    chosen, none = (k, t - k), (jnp.zeros_like(k), t)
    log_p = _measure(cells[-1], either(s > 0, chosen, none), window, size, -1)
    log_q = _measure(cells[1], either(s > 0, none, chosen), window, size, 1)
    log_q = jnp.minimum(log_q, 0.0)
    unknown = jnp.isnan(jnp.sum(log_q) + jnp.asarray(term.mass_error))
    kept = (log_p > log_floor - 16.0) & ~unknown
    nothing = jnp.asarray(-jnp.inf)
    log_finite = jnp.minimum(special.logsumexp(cells[-1][0]), 0.0)
    tau = jnp.asarray(term.log_tau_p, jnp.float64)
    log_all = jnp.minimum(log_add(log_finite, tau), 0.0)
    some = (tau > -jnp.inf) & (s > 0)
    gap = jnp.where(some, k * (log_finite - log_all), -1.0)
    log_tau = k * log_all + special.log1mexp(jnp.minimum(gap, 0.0))
    log_tau = jnp.where(some, log_tau - 2.0 * _allowances.failure(log_tau, 64, -1), -jnp.inf)
    return Subset(jnp.where(kept, log_p, nothing), jnp.where(kept, log_q, 0.0), log_tau)


def as_term(law: Subset, s: Sign) -> Term:
    """The term whose "remove" (s = 1) or "add" reading is below."""
    some = law.log_p > -jnp.inf
    loss = jnp.where(some, law.log_p - law.log_q, 0.0)
    low, high = (
        jnp.min(jnp.where(some, loss, jnp.inf)),
        jnp.max(jnp.where(some, loss, -jnp.inf)),
    )
    any_point = low <= high
    support = jnp.where(any_point, low, -1.0), jnp.where(any_point, high, 1.0)
    log_q = jnp.where(some, law.log_q, -jnp.inf)

    def masses(lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        return interval_log_masses(lo, hi, loss, log_q, law.log_p)

    term = Term(masses, 1.0, law.log_tau, -jnp.inf, support)
    return orient_one(term, jnp.asarray(s < 0))


def log_delta(law: Subset, epsilon: jax.Array) -> jax.Array:
    """log H at any real epsilon, from below."""
    gap = law.log_q + epsilon - law.log_p
    slack = _allowances.exponent(epsilon, jnp.where(law.log_p > -jnp.inf, law.log_p, 0.0))
    gap = jnp.where(law.log_p > -jnp.inf, gap + slack, 0.0)
    won = gap < 0.0
    terms = law.log_p + special.log1mexp(jnp.where(won, gap, -1.0))
    terms = jnp.where(won, terms, -jnp.inf)
    value = special.logsumexp(terms) - _allowances.log_sum(terms.shape[0], jnp.max(terms))
    value = jnp.where(jnp.any(won), value, -jnp.inf)
    return log_add(value, law.log_tau) - 2.0**-44


def epsilon(law: Subset, log_target: jax.Array) -> jax.Array:
    """A bound on epsilon >= 0 at log delta from below, by bisection; 0 where there is none."""
    most = jnp.max(jnp.where(law.log_p > -jnp.inf, law.log_p - law.log_q, 0.0)) + 1.0
    frozen = lax.stop_gradient(law)

    def halve(_, ends):
        low, high = ends
        middle = 0.5 * (low + high)
        over = log_delta(frozen, middle) > log_target
        return jnp.where(over, middle, low), jnp.where(over, high, middle)

    most = lax.stop_gradient(jnp.maximum(most, 1.0))
    low = lax.fori_loop(0, _BISECTIONS, halve, (jnp.zeros_like(most), most))[0]
    low = lax.stop_gradient(low)
    value, slope = jax.jvp(lambda e: log_delta(law, e) - log_target, (low,), (jnp.ones_like(low),))
    slope = lax.stop_gradient(jnp.where(slope < 0.0, slope, -jnp.inf))
    value = jnp.where(jnp.isfinite(value), value, 0.0)
    found = low - (value - lax.stop_gradient(value)) / slope
    found = jnp.where(low > 0.0, found, 0.0)
    return jnp.where(law.log_tau > log_target, jnp.inf, found)
