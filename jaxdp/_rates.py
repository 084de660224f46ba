"""Rényi moments of Poisson-subsampled laws, X = 1 - q + q Y, by sums and quadratures.

`*_rate` is k(s) = log E_Q[X^s] / (s (s - 1)) as in `_divergences`. A quadrature is composite
Gauss-Legendre in the noise z: ten nodes a panel, good to 1e-13 of the whole where the ellipse about
a panel that is 5.4 times as large as its interval (which leaves 5.4^-20 = 2e-15) holds neither a
singularity of log X nor values much above those on the real line. Panels are laid by that rule
where the integrand matters, and nowhere else; where the rule would take more panels than there
are, the least of the bounds that always hold is returned.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxdp import _divergences
from jaxdp import _special as special
from jaxdp._special import log1p

_PANELS, _PANEL_NODES, _CELLS = 64, 10, 128
_LEGENDRE = np.polynomial.legendre.leggauss(_PANEL_NODES)
_OFFSETS = 0.5 * (1.0 + _LEGENDRE[0])
_LOG_SHARES = np.log(0.5 * _LEGENDRE[1])
# Distances from the points where the integrand may change or peak at which it is looked at.
_STEPS = 2.0 ** np.arange(22)
_DISTANCES = np.concatenate([-_STEPS[::-1], [0.0], _STEPS])
_DROP = 50.0  # what is below e^-50 of the peak is left out
T = TypeVar("T")
_SLACK = 2e-13  # of the quadrature: by its rule 1e-13, measured 3e-14
ROUGH = 2.0**-10  # of a quadrature's error: beyond, rounding may move or hide what is summed
_LARGE = 300.0
_TINY = 2.3e-308


def log_mixture(loss: jax.Array, q: jax.Array) -> jax.Array:
    """log(1 - q + q e^loss) to a few roundoffs of itself, and of its distance from log(1 - q).

    The smaller part is added to the larger one wherever they differ from 1 by more than a half:
    1 - q is exact there, 1 + q (e^loss - 1) would cancel.
    """
    log_q, rest = jnp.log(q), _divergences.log_positive(1.0 - q)
    change = q * jnp.expm1(jnp.minimum(loss, 30.0))
    near = (change > -0.5) & (loss < 30.0)
    main = ~near & (log_q + loss >= rest)
    larger = jnp.where(near, 0.0, jnp.where(main, loss + log_q, rest))
    gap = jnp.where(main, -jnp.maximum(loss, -700.0), loss + log_q - jnp.where(main, 0.0, rest))
    ratio = jnp.where(main, (1.0 - q) / q, 1.0) * jnp.exp(jnp.where(near, 0.0, gap))
    return larger + log1p(jnp.where(near, change, ratio))


def log_psi(u: jax.Array, s: jax.Array) -> jax.Array:
    """log of psi_s(u) = u^2 exp[0, s u, u] >= 0, which may be as large or small as it likes.

    exp[a, b, c] = e^top exp[a - top, b - top, c - top] with top the largest of the three, one of
    them where two are equal (at s = 0 and 1): its derivative has to be that of the one.
    """
    a = s * u
    at_zero, at_a = (a <= 0.0) & (u <= 0.0), a >= u
    top = jnp.where(at_zero, 0.0, jnp.where(at_a, a, u))
    first = jnp.where(at_zero, a, jnp.where(at_a, -a, -u))
    second = jnp.where(at_zero, u, jnp.where(at_a, (1.0 - s) * u, (s - 1.0) * u))
    difference = special.exp_divided_difference(first, second)
    return 2.0 * _divergences.log_positive(jnp.abs(u)) + top + jnp.log(difference)


def discrete_rate(
    loss: jax.Array,
    log_weights: jax.Array,
    s: jax.Array,
    error: jax.Array | float = 0.0,
    missing: jax.Array | None = None,
) -> jax.Array:
    """k(s) of a law given by nodes: E_Q[f(L)] = sum_i e^{log_weights_i} f(loss_i).

    The weighted losses must satisfy sum e^{w} (e^l - 1) = 0 up to the accuracy wanted, or, for
    s <= 0, minus the `missing` P-mass where Q has none: E[X^s] - 1 is larger by s times that sum.
    With an error, of E[X^s] - 1 and relative, the value is larger by that.
    """
    total = special.logsumexp(log_weights + log_psi(loss, s)) + error
    if missing is not None:
        lost = _divergences.log_positive(missing) - jnp.log(1.0 - s)
        total = _divergences.log_add(total, lost)
    return rate_from_log_excess(total, s)


def rate_from_log_excess(total: jax.Array, s: jax.Array) -> jax.Array:
    """k(s) from the logarithm of the excess (E[X^s] - 1)/(s (s - 1)), however large that is."""
    scale = s * (s - 1.0)
    far = total >= _LARGE  # E X^s is beyond e^300 s (s - 1): not at s = 0 or 1
    near = _divergences.rate_from_excess(_divergences.exp_log(jnp.where(far, 0.0, total)), s)
    safe = jnp.where(far, scale, 1.0)
    log = jnp.where(far, total, 0.0) + jnp.log(jnp.where(far, scale, 1.0))
    return jnp.where(far, (log + log1p(jnp.exp(-log))) / safe, near)


def sampled_discrete_rate(
    loss: jax.Array, log_weights: jax.Array, s: jax.Array, q: jax.Array
) -> jax.Array:
    """k(s) of the Poisson-subsampled law, from the nodes of the one that is sampled."""
    return discrete_rate(log_mixture(loss, q), log_weights, s)


def convex_rate(s: jax.Array, base_rate: jax.Array, q: jax.Array) -> jax.Array:
    """Upper bound on k(s) of 1 - q + q X, s outside (0, 1), from k(s) of X: X^s is convex."""
    scale = s * (s - 1.0)
    y = scale * base_rate
    small = y < 30.0
    near = _divergences.rate_from_excess(
        q * base_rate * special.relative_expm1(jnp.where(small, y, 0.0)), s
    )
    far = log_mixture(jnp.where(small, 31.0, y), q) / jnp.where(small, 1.0, scale)
    return jnp.where(small, near, far)


def _interpolate(x: jax.Array, xs: jax.Array, ys: jax.Array) -> jax.Array:
    """Linear interpolation between points of increasing xs (quick to compile)."""
    i = jnp.sum(xs[1:-1] <= x[..., None], axis=-1, dtype=jnp.int32)
    width = xs[i + 1] - xs[i]
    share = jnp.clip((x - xs[i]) / jnp.where(width > 0.0, width, 1.0), 0.0, 1.0)
    return ys[i] + share * (ys[i + 1] - ys[i])


def _once(values: T) -> T:
    """The arrays themselves, each computed once: the compiler may else repeat their formulas."""
    return jax.lax.optimization_barrier(values)


class _Panels(NamedTuple):
    nodes: jax.Array
    log_widths: jax.Array  # of the nodes, their share of the panel
    resolved: jax.Array  # whether no panel is too wide


def _panels(
    z: jax.Array,
    height: Callable[[jax.Array], jax.Array],
    needed: Callable[[jax.Array], jax.Array],
    centre: jax.Array,
    scale: jax.Array | float,
) -> _Panels:
    """Panels over all that is within e^-50 of the peak, in two windows about the lowest point.

    Args:
      z: points next to every peak and every bend of the integrand, in any order.
      height: log of the integrand.
      needed: an increasing function, how many panels of half the widest size lie to the left.
      centre, scale: where `needed` bends, and how sharply.
    """
    values, z = _once((height(z), z))
    high = values >= jnp.max(values) - _DROP

    def least(mask):
        return jnp.min(jnp.where(mask, z, jnp.inf))

    def most(mask):
        return jnp.max(jnp.where(mask, z, -jnp.inf))

    left = jnp.maximum(most(z < least(high)), jnp.min(z))  # a point further out
    right = jnp.minimum(least(z > most(high)), jnp.max(z))
    inside = (z >= left) & (z <= right)
    lowest = jnp.min(jnp.where(inside, values, jnp.inf))
    split = least(inside & (values == lowest))
    before = jnp.clip(least(z > most(high & (z <= split))), left, split)
    after = jnp.clip(most(z < least(high & (z >= split))), split, right)
    ends = jnp.stack([left, before, after, right])
    # needed(z) is inverted on a grid that is dense about the centre
    low, high_end = jnp.arcsinh((ends[0] - centre) / scale), jnp.arcsinh((ends[3] - centre) / scale)
    unit = np.arange(_CELLS + 1) / _CELLS
    grid = jnp.clip(centre + scale * jnp.sinh(low + (high_end - low) * unit), left, right)
    grid, counts, ends = _once((grid, needed(grid), ends))
    at = _interpolate(ends, grid, counts)
    first, second = at[1] - at[0], at[3] - at[2]
    share = jnp.where(first + second > 0.0, first / (first + second), 0.5)
    number = jnp.clip(jnp.round(_PANELS * share), 1.0, _PANELS - 1.0)
    resolved = jnp.maximum(first / number, second / (_PANELS - number)) <= 2.0
    step = np.arange(_PANELS) + np.asarray([[0.0], [1.0]])
    targets = jnp.where(
        step[0] < number,
        at[0] + first * step / number,
        at[2] + second * (step - number) / (_PANELS - number),
    )
    start, stop = _interpolate(targets, counts, grid)
    width = jnp.maximum(stop - start, 0.0)
    nodes = (start[:, None] + width[:, None] * _OFFSETS).ravel()
    log_widths = (_divergences.log_positive(width)[:, None] + _LOG_SHARES).ravel()
    return _Panels(*_once(jax.lax.stop_gradient((nodes, log_widths, resolved))))


def _growth(u: jax.Array, s: jax.Array) -> jax.Array:
    """log psi_s(u) but for powers of u."""
    return jnp.maximum(jnp.maximum(s * u, u), 0.0)


def _log_height(u: jax.Array, s: jax.Array, q: jax.Array) -> jax.Array:
    """log psi_s(u) up to a polynomial factor, the zero at u = 0 filled in."""
    size = jnp.abs(u)
    return _growth(u, s) + 2.0 * jnp.log((size + 1e-3 * q) / (1.0 + size))


def _stationary(s: jax.Array, mu: jax.Array, log_odds: jax.Array) -> jax.Array:
    """The two outermost maxima of s log X - z^2/2, both the only one where there is just one.

    z = s mu c(z), c = sigmoid(mu z - mu^2/2 - log_odds) the posterior of having been sampled. Where
    s mu^2 c (1 - c) > 1 the function is convex: that lies between c = 1/2 -+ root/2.
    """
    bend = 4.0 / jnp.maximum(s * mu * mu, 4.0)
    root = jnp.sqrt(1.0 - bend)
    log_far = jnp.log((1.0 + root) ** 2 / bend)  # log (1 + root)/(1 - root)
    turns = (log_odds + 0.5 * mu * mu + jnp.stack([-log_far, log_far])) / mu
    low, high = jnp.minimum(s * mu, 0.0), jnp.maximum(s * mu, 0.0)
    turns = jnp.clip(turns, low, high)
    convex = s * mu * mu > 4.0
    low, high = jnp.stack([low, low]), jnp.stack([high, high])
    low = jnp.where(convex, jnp.stack([low[0], turns[1]]), low)
    high = jnp.where(convex, jnp.stack([turns[0], high[1]]), high)

    def body(_, ends):
        low, high = ends
        z = 0.5 * (low + high)
        rising = s * mu * jax.nn.sigmoid(mu * z - 0.5 * mu * mu - log_odds) > z
        return jnp.where(rising, z, low), jnp.where(rising, high, z)

    low, high = jax.lax.fori_loop(0, 32, body, (low, high))
    return 0.5 * (low + high)


_LARGEST_SLOPE = 1e6  # of |s| mu, for quadrature


def sampled_gaussian_rate(s: jax.Array, mu: jax.Array, q: jax.Array) -> jax.Array:
    """k(s) of the Poisson-subsampled Gaussian, X = 1 - q + q exp(mu z - mu^2/2), z ~ N(0, 1).

    log X is analytic but for z0 +- i pi/mu, z0 = (log_odds + mu^2/2)/mu, log_odds = log((1 - q)/q).
    A panel of half-width w has its ellipse within 2.6 w of the real line: w is at most 0.38 of the
    distance from z0 +- i pi/mu, and 1, so that e^{-z^2/2} grows by e^{3.4} at most. For s > 0 the
    power X^s is largest on the real line. For s < 0 the integrand is log-concave there; X^s grows
    by |s| c (1 - c) (mu y)^2/2 at a distance y from it (c as in `_stationary`), which right of the
    peak lags behind the fall along the line: w is at most the inverse root of the curvature there.
    """
    certain = q >= 1.0
    p = jnp.where(certain, 0.5, jnp.maximum(q, 1e-300))
    log_odds = log1p(-p) - jnp.log(p)
    frozen_s, m, r, odds = jax.lax.stop_gradient((s, mu, p, log_odds))

    def loss(z, mu, p):
        return log_mixture(mu * z - 0.5 * mu * mu, p)

    def height(z):
        return _log_height(loss(z, m, r), frozen_s, r * jnp.minimum(m, 1.0)) - 0.5 * z * z

    z0 = (odds + 0.5 * m * m) / m
    peaks = _stationary(jnp.stack([frozen_s, jnp.ones_like(frozen_s)]), m, odds)
    c = jax.nn.sigmoid(m * peaks[0, 0] - 0.5 * m * m - odds)
    curvature = 1.0 + jnp.maximum(-frozen_s, 0.0) * m * m * c * (1.0 - c)
    centres = jnp.append(peaks, jnp.stack([jnp.minimum(2.0 * m, z0), z0]))
    z = centres[:, None] + 0.25 * jnp.minimum(1.0, 1.0 / m) * _DISTANCES

    def needed(z):
        return jnp.sqrt(curvature) * z + 2.62 * jnp.arcsinh(m * (z - z0) / np.pi)

    panels = _panels(z.ravel(), height, needed, z0, np.pi / m)
    nodes = panels.nodes
    u = loss(nodes, mu, p)
    log_weights = special.log_normal_density(nodes) + panels.log_widths
    size = jnp.max(_growth(u, frozen_s) + nodes * nodes)
    error = jax.lax.stop_gradient(_SLACK + _divergences.SLACK * size)
    exact = discrete_rate(u, log_weights, s, error)
    base = 0.5 * mu * mu + 0.0 * s
    bound = jnp.minimum(base, convex_rate(s, base, p))
    # (Beyond, squares of what the nodes are would lose what they differ by.)
    sure = panels.resolved & ((1.0 + jnp.abs(frozen_s)) * m < _LARGEST_SLOPE)
    value = jnp.where(sure & (exact < bound), exact, bound)
    # at q = 1 the value of the Gaussian, with the slope of k in q: only the value is constant there
    slope = mu * mu * special.relative_expm1(jnp.minimum((1.0 - s) * mu * mu, _LARGE))
    edge = base + (q - 1.0) * jnp.where(certain, slope, 0.0)
    return jnp.where(certain, edge, jnp.maximum(value, _TINY))


def sampled_laplace_rate(s: jax.Array, x: jax.Array, q: jax.Array) -> jax.Array:
    """k(s) of Poisson-subsampled Laplace noise at x = sensitivity/scale.

    The loss has Q-atoms 1/2 at -x and e^{-x}/2 at x; between it is 2 z - x, z ~ e^{-z}/2 on
    (0, x). log X has singularities z0 +- i pi/2, z0 = (x + log_odds)/2; the integrand changes by at
    most |s| log X + z between points, by 6 over a panel.
    """
    frozen_s, y, p = jax.lax.stop_gradient((s, x, q))
    p = jnp.maximum(p, 1e-300)
    odds = _divergences.log_positive(1.0 - p) - jnp.log(p)
    z0 = jnp.clip(0.5 * (y + odds), 0.0, y)

    def loss(z, x, q):
        return log_mixture(2.0 * z - x, q)

    def height(z):
        return _log_height(loss(z, y, p), frozen_s, p * jnp.minimum(y, 1.0)) - z

    def needed(z):
        slopes = z + jnp.abs(frozen_s) * loss(z, y, p)
        return slopes / 3.0 + 2.62 * jnp.arcsinh(2.0 * (z - z0) / np.pi)

    centres = jnp.stack([jnp.zeros_like(y), y, z0])
    smallest = 0.1 / (1.0 + jnp.abs(frozen_s))
    z = jnp.clip(centres[:, None] + smallest * _DISTANCES, 0.0, y)
    z = jnp.concatenate([z.ravel(), y * jnp.linspace(0.0, 1.0, 64, dtype=jnp.float64)])
    panels = _panels(z, height, needed, z0, 0.5 * np.pi)
    share = panels.nodes / y  # the nodes move with the end
    inner = loss(x * share, x, q)
    log_weights = panels.log_widths + jnp.log(x / y) - x * share
    atoms = jnp.stack([log_mixture(-x, q), log_mixture(x, q)])
    u = jnp.concatenate([atoms, inner])
    weights = jnp.concatenate([jnp.stack([0.0 * x, -x]), log_weights]) - special.LOG_2
    size = jnp.max(_growth(u, frozen_s)) + y
    error = jax.lax.stop_gradient(_SLACK + _divergences.SLACK * size)
    exact = discrete_rate(u, weights, s, error)
    base = _divergences.laplace_rate(s, x)
    bound = jnp.minimum(base, convex_rate(s, base, q))
    sure = panels.resolved & (error < ROUGH)
    return jnp.where(sure & (exact < bound), exact, bound)
