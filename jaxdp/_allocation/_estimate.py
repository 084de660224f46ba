r"""Monte Carlo estimates of random allocation's delta, with a confidence interval and no bound.

With L = (X_1 + ... + X_t)/t (Feldman & Shenfeld 2025, Lemma D.1, and its mirror)

    remove   delta = E_Q (L - g)_+,        add   delta = E_Q (1 - g L)_+,        g = e^epsilon.

Importance sampling with a range that is known, so that a confidence interval follows
(empirical Bernstein; Maurer & Pontil 2009, Theorem 4) and delta = 1e-8 needs some 1e5 samples.
Two proposals, with ratios to Q^t:

* one slot from P given X > tau, the others from Q: r_1 = sum_i X_i 1{X_i > tau}/(t P{X > tau});
* all slots from Q tilted by e^T, T a step function of X: r_2 = e^{sum_i T(X_i) - t psi}.

remove: T >= beta min(X, tau). Let S sum the X_i <= tau. Then (L - g)_+ <= sum_i X_i 1{X_i > tau}/t
+ (S/t - g)_+; the first is p r_1 with p = P{X > tau}, and as r_2 >= e^{beta S - t psi} the second
is at most C r_2, C = e^{t (psi - beta g)}/(e t beta) (x e^-x <= 1/e). A mixture with weights
p/(p + C) and C/(p + C) has (L - g)_+ <= (p + C) q everywhere. tau = 0 is sampling from P alone.
add: T >= -beta X, and (1 - g L)_+ <= C r_2 with C = g e^{t (psi + beta/g)}/(e t beta).
tau and beta minimise the range p + C. Uniforms come from a counter-based generator (threefry), 64
bits each, one for every (sample, slot).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from jaxdp import _checks, _special, _x64
from jaxdp._allocation._mechanism import RandomAllocation
from jaxdp._mechanisms import Laplace, Mechanism, RandomizedResponse
from jaxdp._mechanisms._gaussian import GaussianFamily

_CELLS = 4096
_THRESHOLDS, _TILTS = 48, 64
_SLOTS_AT_A_TIME = 2**18
_LEAST, _MOST = -600.0, 650.0  # exponents of e
_REACH = 9.5  # deviations of a Gaussian within which the cells of T lie


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Estimate:
    """A Monte Carlo estimate; not a bound.

    Attributes:
      value: unbiased.
      low: lower end of the confidence interval.
      high: its upper end.
      confidence: the probability, over the samples, that the interval covers the truth is at least
        this.
      num_samples: how many samples.
    """

    value: Any
    low: Any
    high: Any
    confidence: float = dataclasses.field(metadata={"static": True})
    num_samples: int = dataclasses.field(metadata={"static": True})


def estimate_delta(
    m: Mechanism,
    epsilon: ArrayLike,
    key: jax.Array,
    *,
    num_samples: int = 100_000,
    direction: str = "remove",
    confidence: float = 0.999,
) -> Estimate:
    """Estimate delta at epsilon by importance sampling: one of t steps, or a matrix mechanism.

    Streams over chunks of samples on the device; about num_samples * t draws for each element. The
    values lie in a range known beforehand that is near delta, so that the interval, by the
    empirical Bernstein inequality, holds for any number of samples.

    Args:
      m: RandomAllocation of a Gaussian, Laplace or RandomizedResponse step, k = 1, one epoch, t a
        known integer. Or a MatrixMechanism under balls in bins (t its bins), whose matrix is
        built. Its other parameters broadcast against epsilon.
      epsilon: any real number.
      key: a JAX random key; all elements use the same draws.
      num_samples: >= 2.
      direction: "remove" or "add".
      confidence: in (0, 1).

    Raises:
      ValueError: for arguments outside these domains. TypeError: for another mechanism, or no key.

    Example:
      >>> import jax, jaxdp
      >>> run = jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 100)
      >>> got = jaxdp.estimate_delta(run, 0.8, jax.random.key(0), num_samples=5000)
      >>> low, high = jaxdp.delta_bounds(run, 0.8, direction="remove")
      >>> bool(got.low <= high), bool(low <= got.high)
      (True, True)
    """
    program, options = _program(m)
    _checks.check("epsilon", epsilon, _checks.REAL)
    _checks.check_choice("direction", direction, ("remove", "add"))
    if not isinstance(num_samples, int) or not 2 <= num_samples < 2**63:
        got = _checks.shown(num_samples)
        raise ValueError(f"num_samples must be an integer from 2 to 2^63, got {got}")
    _checks.check("confidence", confidence, _checks.OPEN_DELTA)
    if not isinstance(key, jax.Array):
        raise TypeError(f"key must be a JAX random key (jax.random.key), got {_checks.shown(key)}")
    words = jax.random.key_data(key) if jnp.issubdtype(key.dtype, jax.dtypes.prng_key) else key
    value, low, high = _x64.evaluate(
        program,
        m.mechanism if program is _estimate else m,
        epsilon,
        words[..., 0],
        words[..., 1],
        rounding=("nearest", "down", "up"),
        chunk=1,
        differentiable=False,
        **options,
        samples=num_samples,
        direction=direction,
        miss=1.0 - float(confidence),
    )
    return Estimate(value, low, high, float(confidence), num_samples)


def _program(m: Mechanism) -> tuple[Any, dict[str, int]]:
    """What samples for m, and its static options."""
    own = getattr(m, "_sampler", None)
    if own is not None:
        return own(), {}
    if not isinstance(m, RandomAllocation) or not _has_quantile(m.mechanism):
        got = _checks.shown(m)
        raise TypeError(
            "m must be a MatrixMechanism or a RandomAllocation of Gaussian, Laplace or response, "
            f"got {got}"
        )
    if m.split:
        raise ValueError("m must have num_selected = num_epochs = 1")
    steps = _checks.concrete("num_steps", m.num_steps)
    if steps is None or steps.size != 1 or steps.item() != int(steps.item()):
        raise ValueError("num_steps must be one known integer")
    return _estimate, {"steps": int(steps.item())}


def _has_quantile(m: Mechanism) -> bool:
    return isinstance(m, (GaussianFamily, Laplace, RandomizedResponse))


def _loss(m: Mechanism, lower: jax.Array, upper: jax.Array) -> jax.Array:
    """The loss at probability `lower` = 1 - `upper` of its law under Q."""
    if isinstance(m, GaussianFamily):
        left = lower < 0.5
        tail = _special.log_ndtri(jnp.log(jnp.where(left, lower, upper)))
        return m._mu() * jnp.where(left, tail, -tail) - 0.5 * m._mu() ** 2
    if isinstance(m, Laplace):
        x = m._x
        inner = -2.0 * jnp.log(2.0 * upper) - x
        return jnp.where(lower <= 0.5, -x, jnp.clip(inner, -x, x))
    bound = jnp.asarray(m.epsilon)
    return jnp.where(upper <= jax.nn.sigmoid(-bound), bound, -bound)


class _Plan(NamedTuple):
    """The cells of T, and the mixture."""

    lower: jax.Array  # (cells + 1,) masses under Q below and above the cells' ends
    upper: jax.Array
    edges: jax.Array  # (cells - 1,) finite ends
    tilts: jax.Array  # (cells,) T
    tilted: jax.Array  # (cells + 1,) distribution function of the tilted cells
    psi: jax.Array
    log_threshold: jax.Array
    big: jax.Array  # p
    range: jax.Array  # p + C
    share: jax.Array  # weight of the first proposal


def _cells(m: Mechanism) -> tuple[jax.Array, ...]:
    """Finite ends, Q-masses below and above every end, logs of cells', P-masses beyond ends."""
    if isinstance(m, GaussianFamily):
        centre, radius = -0.5 * m._mu() ** 2, m._mu() * (_REACH + m._mu())
        low, high = centre - m._mu() * _REACH, jnp.minimum(centre + radius, _MOST)
    else:
        low, high = m._loss_range()
        low, high = low - 1e-3 * (high - low), jnp.minimum(high + 1e-3 * (high - low), _MOST)
    edges = jnp.linspace(low, high, _CELLS - 1)
    ends = jnp.concatenate([jnp.array([-jnp.inf]), edges, jnp.array([jnp.inf])])
    log_q, _ = m._log_masses(ends[:-1], ends[1:])
    below, _ = m._log_masses(jnp.full_like(ends, -jnp.inf), ends)
    above, beyond = m._log_masses(ends, jnp.full_like(ends, jnp.inf))
    below, above = jnp.exp(below).at[0].set(0.0), jnp.exp(above).at[-1].set(0.0)
    return edges, below, above, log_q, jnp.exp(beyond).at[-1].set(0.0)


def _tilt(edges: jax.Array, beta: jax.Array, log_threshold: jax.Array, remove: bool) -> jax.Array:
    if remove:
        cap = jnp.exp(log_threshold)
        return beta * jnp.append(jnp.minimum(jnp.exp(edges), cap), cap)
    return -beta * jnp.concatenate([jnp.zeros(1), jnp.exp(edges)])


def _plan(m: Mechanism, epsilon: jax.Array, t: float, remove: bool) -> _Plan:
    edges, lower, upper, log_masses, beyond = _cells(m)
    g = jnp.exp(epsilon)

    def log_psi(tilts):
        # (In logs: the largest tilts are where there is no mass, or less than a double holds.)
        return _special.logsumexp(log_masses + tilts)

    def log_c(beta, log_threshold):
        psi = log_psi(_tilt(edges, beta, log_threshold, remove))
        if remove:
            return t * (psi - beta * g) - 1.0 - jnp.log(t * beta)
        return epsilon + t * (psi + beta / g) - 1.0 - jnp.log(t * beta)

    def best(log_betas, thresholds):
        """The least range on a grid: log C (inf where p = 1 needs no second proposal)."""
        values = lax.map(
            lambda h: jax.vmap(lambda b: log_c(jnp.exp(b), edges[h]))(log_betas),
            thresholds,
            batch_size=4,
        )
        total = jnp.logaddexp(
            values, jnp.log(beyond[thresholds + 1])[:, None] if remove else values
        )
        # (The first of those too small to matter: larger tilts leave fewer digits.)
        total = jnp.maximum(total, _LEAST)
        least = total == jnp.min(total)
        at = jnp.min(jnp.where(least, jnp.arange(total.size).reshape(total.shape), total.size - 1))
        return thresholds[at // log_betas.size], log_betas[at % log_betas.size]

    second = jnp.exp(jnp.minimum(_special.logsumexp(log_masses[1:] + 2.0 * edges), _MOST)) - 1.0
    scale = jnp.log(jnp.maximum(jnp.abs(jnp.expm1(epsilon)), 1.0 / t) / jnp.maximum(second, 1e-9))
    thresholds = jnp.asarray(np.linspace(_CELLS // 8, _CELLS - 2, _THRESHOLDS if remove else 1))
    thresholds = thresholds.astype(jnp.int32)
    # from where the tilt of a single slot matters to where that of all slots does
    low = jnp.minimum(scale - 7.0, -jnp.log(t) - epsilon)
    step = (scale + 7.0 - low) / (_TILTS - 1)
    index, log_beta = best(low + step * jnp.arange(_TILTS), thresholds)
    index, log_beta = best(log_beta + step * jnp.linspace(-1.0, 1.0, _TILTS), index[None])
    beta, log_threshold = jnp.exp(log_beta), edges[index]
    # (Not 0, which nothing can be divided by: a bound of the range may be larger.)
    c = jnp.exp(jnp.clip(log_c(beta, log_threshold), _LEAST, _MOST))
    big = beyond[index + 1] if remove else jnp.asarray(0.0)
    # P's side alone has range 1, and (1 - g L)_+ as it stands too
    alone = remove & (big + c >= 1.0)
    log_threshold = jnp.where(alone, -jnp.inf, log_threshold)
    big, c = jnp.where(alone, 1.0, big), jnp.where(alone, 0.0, c)
    beta = jnp.where((not remove) & (c >= 1.0), 0.0, beta)
    c = jnp.where((not remove) & (c >= 1.0), 1.0, c)
    tilts = _tilt(edges, beta, log_threshold, remove)
    psi = log_psi(tilts)
    cumulative = jnp.concatenate([jnp.zeros(1), jnp.cumsum(jnp.exp(log_masses + tilts - psi))])
    tilted = cumulative / cumulative[-1]
    return _Plan(
        lower, upper, edges, tilts, tilted, psi, log_threshold, big, big + c, big / (big + c)
    )


def uniforms(words: tuple[jax.Array, jax.Array], first: jax.Array, second: jax.Array) -> jax.Array:
    """(0, 1) uniforms with 64 random bits, of counters (first, second)."""
    first, second = jnp.broadcast_arrays(first, second)
    keys = [jnp.broadcast_to(w, first.shape) for w in words]
    high, low = jax.extend.random.threefry2x32_p.bind(*keys, first, second)
    value = (high.astype(jnp.float64) + (low.astype(jnp.float64) + 0.5) * 2.0**-32) * 2.0**-32
    return jnp.minimum(value, 1.0 - 2.0**-53)


def _from_cells(m: Mechanism, plan: _Plan, u: jax.Array) -> jax.Array:
    """Losses of the tilted law at the uniforms u."""
    cell = jnp.clip(jnp.searchsorted(plan.tilted, u, side="right") - 1, 0, _CELLS - 1)
    left, right = plan.tilted[cell], plan.tilted[cell + 1]
    share = jnp.where(right > left, (u - left) / jnp.where(right > left, right - left, 1.0), 0.5)
    lower = plan.lower[cell] + share * (plan.lower[cell + 1] - plan.lower[cell])
    upper = plan.upper[cell + 1] + (1.0 - share) * (plan.upper[cell] - plan.upper[cell + 1])
    return _loss(m, lower, upper)


def _values(m, plan, u, first, epsilon, t, remove):
    """f/q of one chunk: u (samples, t) for the slots, first (samples, 2) for the proposal."""
    single = first[:, 0] < plan.share
    plain = _loss(m, u, 1.0 - u)
    loss = jnp.where(single[:, None], plain, _from_cells(m, plan, u))
    # the slot from P given X > tau: the laws of a symmetric pair mirror each other
    tail = first[:, 1] * plan.big
    chosen = jnp.where(single, -_loss(m, tail, 1.0 - tail), loss[:, 0])
    loss = loss.at[:, 0].set(chosen)
    x = jnp.exp(jnp.minimum(loss, _MOST))
    mean = jnp.sum(x, axis=1) / t
    tilts = plan.tilts[jnp.searchsorted(plan.edges, loss, side="left")]
    second = jnp.exp(jnp.sum(tilts, axis=1) - t * plan.psi)
    if not remove:
        return _ratio(1.0 - jnp.exp(epsilon) * mean, second)
    large = jnp.sum(jnp.where(loss > plan.log_threshold, x, 0.0), axis=1) / t
    one = large / jnp.where(plan.big > 0.0, plan.big, 1.0)
    density = plan.share * one + jnp.where(plan.share < 1.0, (1.0 - plan.share) * second, 0.0)
    return _ratio(mean - jnp.exp(epsilon), density)


def _ratio(excess: jax.Array, density: jax.Array) -> jax.Array:
    """excess_+ / density: 0 where there is none, whatever has become of the density."""
    return jnp.where(excess > 0.0, excess / jnp.where(excess > 0.0, density, 1.0), 0.0)


def interval(total, squares, samples: int, width, miss: float) -> list[jax.Array]:
    """(value, low, high) from the sums of values in [0, 1] of unit `width` and of their squares.

    Empirical Bernstein (Maurer & Pontil 2009, Theorem 4), half the miss on either side.
    """
    mean = total / samples
    variance = jnp.maximum(squares - samples * mean * mean, 0.0) / (samples - 1)
    log_side = np.log(4.0 / miss)
    half = jnp.sqrt(2.0 * variance * log_side / samples) + 7.0 * log_side / (3.0 * (samples - 1))
    return [jnp.clip(width * (mean + s * half), 0.0, 1.0) for s in (0.0, -1.0, 1.0)]


def _estimate(m, epsilon, word0, word1, steps, samples, direction, miss):
    """(value, low, high), inside the float64 island."""
    remove, t = direction == "remove", float(steps)
    plan = _plan(m, epsilon, t, remove)
    words = (word0.astype(jnp.uint32), word1.astype(jnp.uint32))
    chunk = max(1, min(samples, _SLOTS_AT_A_TIME // steps))
    slots = jnp.arange(steps, dtype=jnp.uint32)[None, :]
    extra = (steps + jnp.arange(2, dtype=jnp.uint32))[None, :].astype(jnp.uint32)

    def body(sums, block):
        rows = block * jnp.uint32(chunk) + jnp.arange(chunk, dtype=jnp.uint32)
        u = uniforms(words, rows[:, None], slots)
        first = uniforms(words, rows[:, None], extra)
        values = _values(m, plan, u, first, epsilon, t, remove) / plan.range
        values = jnp.where(rows < samples, jnp.clip(values, 0.0, 1.0), 0.0)
        return (sums[0] + jnp.sum(values), sums[1] + jnp.sum(values * values)), None

    blocks = jnp.arange(-(-samples // chunk), dtype=jnp.uint32)
    start = (jnp.zeros(()), jnp.zeros(()))
    (total, squares), _ = lax.scan(body, start, blocks)
    bounds = interval(total, squares, samples, plan.range, miss)
    inside = m._in_domain()
    return tuple(jnp.where(inside, x, jnp.nan) for x in bounds)
