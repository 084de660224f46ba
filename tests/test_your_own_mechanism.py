"""The page on mechanisms of one's own, run, and its mechanisms against independent integrals.

References share no code with the library: densities in NumPy, one step by Gauss-Legendre panels
over the sets where the loss exceeds epsilon, compositions by the Fourier inversion of the moment
generating function of the loss (Carr & Madan 1999), whose line of integration passes near the
saddle point, so that small deltas keep their digits.
"""

import math
import pathlib
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import brentq

import jaxdp
from tests.programs import jit

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "your-own-mechanism.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)
RATE, STEPS = 0.02, 1000


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


def _run(blocks):
    found = {}
    with jax.enable_x64(True):
        exec(compile("\n".join(blocks), PAGE.name, "exec"), found)
    return found


@pytest.fixture(scope="module")
def noises():
    """What the page defines: it computes more, which every worker would do again."""
    return _run(b for b in BLOCKS if any(f"def {name}" in b for name in NOISES))


def _truncated(x, sigma):
    norm = sigma * math.sqrt(2 * math.pi) * math.erf(8 / (sigma * math.sqrt(2)))
    return np.where(np.abs(x) <= 8.0, np.exp(-(x**2) / (2 * sigma**2)) / norm, 0.0)


def _mixture(x, scale):
    normal = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return (np.exp(-np.abs(x) / scale) / (2 * scale) + normal) / 2


def _student(x, scale):
    return 2 / (np.pi * np.sqrt(3) * scale) / (1 + x**2 / (3 * scale**2)) ** 2


# the factory on the page: its parameter, the normalised density, the end of its support
NOISES = {
    "truncated_gaussian": (0.98, _truncated, 8.0),
    "mixture": (1.5, _mixture, np.inf),
    "student_t": (2.0, _student, np.inf),
}
EPSILONS = {  # of one step; the last deltas are 1e-11, 0.06 and 3e-7
    "truncated_gaussian": [0.0, 0.5, 2.0, 4.0, 7.0],
    "mixture": [0.0, 0.2, 0.5, 0.66, 0.8],
    "student_t": [0.0, 0.1, 0.3, 0.5, 0.5753],
}
EPSILONS_OF_RUNS = {  # of all records, and of samples
    "truncated_gaussian": ([560.0, 700.0], [0.8, 6.0]),
    "mixture": ([300.0, 360.0], [0.3, 3.0]),
    "student_t": ([100.0, 170.0], [0.2, 1.0]),
}


def _panels(edge, extra=()):
    """Nodes and weights of both densities' supports, fine about 0 and 1, to 6e5 where infinite."""
    nodes, weights = np.polynomial.legendre.leggauss(12)
    if np.isinf(edge):
        ends = np.sinh(np.linspace(-14.0, 14.0, 301))
    else:
        ends = np.append(np.linspace(-edge, edge + 1.0, 161), [edge, 1.0 - edge])
    ends = np.unique(np.concatenate([ends, [0.0, 1.0], extra]))
    half = 0.5 * np.diff(ends)[:, None]
    return (ends[:-1, None] + half * (1.0 + nodes)).ravel(), (half * weights).ravel()


def one_step_delta(name, scale, epsilon, direction):
    """int (p - e^epsilon q)_+, with p about 1 and q about 0 for remove."""
    _, density, edge = NOISES[name]
    top, bottom = (1.0, 0.0) if direction == "remove" else (0.0, 1.0)

    def excess(x):
        return density(x - top, scale) - np.exp(epsilon) * density(x - bottom, scale)

    grid = np.linspace(1.0 - edge, edge, 4001)[1:-1] if np.isfinite(edge) else None
    grid = np.sinh(np.linspace(-6.0, 6.0, 4001)) + 0.5 if grid is None else grid
    turns = np.flatnonzero(np.sign(excess(grid[1:])) != np.sign(excess(grid[:-1])))
    roots = [brentq(excess, grid[i], grid[i + 1], xtol=1e-15) for i in turns]
    x, w = _panels(edge, roots)
    return float(np.sum(w * np.maximum(excess(x), 0.0)))


def composed_delta(name, scale, rate, steps, epsilons, direction):
    """Delta of `steps` Poisson-sampled steps, as the price of a call on e^L under the other law."""
    _, density, edge = NOISES[name]
    x, w = _panels(edge)
    q, p = density(x, scale), density(x - 1.0, scale)
    m = (1.0 - rate) * q + rate * p
    first, second = (m, q) if direction == "remove" else (q, m)
    lost = float(np.sum(w * first * (second <= 0.0)))
    some = (first > 0.0) & (second > 0.0)
    loss, mass = np.log(first[some] / second[some]), (w * second)[some]

    def tilted(alpha):
        weights = mass * np.exp((alpha + 1.0) * loss - np.max((alpha + 1.0) * loss))
        return weights / np.sum(weights)

    def off(log_alpha, epsilon):
        return steps * np.sum(tilted(np.exp(log_alpha)) * loss) - epsilon

    def price(epsilon):
        alpha = np.exp(brentq(off, -12.0, 6.0, args=(epsilon,), xtol=1e-3))
        weights = tilted(alpha)
        spread = np.sqrt(steps * np.sum(weights * (loss - np.sum(weights * loss)) ** 2))
        width = 10.0 / spread / 4000 if alpha < 0.02 else 10.0 / spread / 400
        u = (np.arange(round(10.0 / spread / width)) + 0.5) * width
        z = alpha + 1.0 + 1j * u
        top = np.max((alpha + 1.0) * loss)
        log_moments = np.log(np.exp(np.outer(z, loss) - top) @ mass) + top
        integrand = np.exp(steps * log_moments - (z - 1.0) * epsilon) / (z * (z - 1.0))
        return np.sum(integrand.real) * width / np.pi

    return np.array([price(e) for e in epsilons]) - np.expm1(steps * np.log1p(-lost))


@pytest.mark.parametrize("name", NOISES)
def test_examples_are_short(name):
    (block,) = (b for b in BLOCKS if f"def {name}" in b)
    assert len(block.strip().splitlines()) <= 20


@pytest.mark.parametrize("name", NOISES)
def test_one_step_against_quadrature(noises, name):
    """Both directions, under jit, below zero too."""
    scale, epsilons = NOISES[name][0], np.array(EPSILONS[name])
    truth = {}
    for direction in ("remove", "add"):
        values = [one_step_delta(name, scale, e, direction) for e in [*epsilons, 0.3]]
        truth[direction] = np.array(values)

    @jit
    def bounds(scale, epsilons):
        m = noises[name](scale)
        return tuple(jaxdp.delta_bounds(m, epsilons, direction=d) for d in ("remove", "add"))

    for direction, (low, high) in zip(
        ("remove", "add"), bounds(scale, np.append(epsilons, -0.3)), strict=True
    ):
        other = truth["add" if direction == "remove" else "remove"][-1]
        known = np.append(truth[direction][:-1], 1.0 - np.exp(-0.3) * (1.0 - other))
        assert np.all(low <= known * (1.0 + 1e-9))
        assert np.all(known <= high * (1.0 + 1e-9))
        assert np.all(high - low <= 1e-5 * known)


@pytest.mark.parametrize("name", NOISES)
def test_runs_against_fourier_inversion(noises, name):
    """1,000 steps of all records and of Poisson samples: the worse direction, one program."""
    scale, (whole, sampled) = NOISES[name][0], EPSILONS_OF_RUNS[name]
    rates, epsilons = np.repeat([1.0, RATE], 2), np.array([*whole, *sampled])
    run = jaxdp.Repeated(jaxdp.PoissonSampled(noises[name](scale), rates), STEPS)
    low, high = jaxdp.delta_bounds(run, epsilons)
    truth = []
    for rate, some in ((1.0, whole), (RATE, sampled)):
        both = [composed_delta(name, scale, rate, STEPS, some, d) for d in ("remove", "add")]
        truth.append(np.maximum(*both))
    truth = np.concatenate(truth)
    assert np.all(low <= truth * (1.0 + 1e-7))
    assert np.all(truth <= high * (1.0 + 1e-7))
    assert np.all(high <= 1.02 * low)


def test_the_page_says_the_truth():
    """The bounds of a sampled run, a slope, calibrated scales, and the other classes."""
    page = _run(BLOCKS)
    low, high = float(page["low"]), float(page["high"])

    def delta(epsilon):
        return max(
            composed_delta("student_t", 2.0, 0.05, 1000, [epsilon], d)[0] for d in ("remove", "add")
        )

    assert delta(low) >= 1e-6 * (1.0 - 1e-6)
    assert delta(high) <= 1e-6 * (1.0 + 1e-6)
    assert high <= 1.001 * low
    h = 1e-4
    steps = [
        brentq(lambda e, s=s: one_step_delta("student_t", s, e, "remove") - 1e-6, 0.3, 0.9)
        for s in (2.0 - h, 2.0 + h)
    ]
    assert page["slope"] == pytest.approx((steps[1] - steps[0]) / (2.0 * h), rel=1e-4)
    for scale, epsilon in zip(np.asarray(page["scales"]), (0.5, 1.0), strict=True):
        assert one_step_delta("student_t", scale, epsilon, "remove") <= 1e-6
        assert one_step_delta("student_t", scale * 0.9999, epsilon, "remove") > 1e-6
    assert page["removing"] == pytest.approx(0.5 + np.log1p(-1e-6), abs=1e-10)
    assert page["adding"] == pytest.approx(-math.expm1(-0.5), rel=1e-12)
    assert 19.99 < page["composed"] <= 20.0


@pytest.mark.parametrize("name", ["truncated_gaussian", "mixture"])
def test_gradients_batched(noises, name):
    """vmap of grad of one step's delta, against differences of the quadrature."""
    scale, h = NOISES[name][0], 1e-4
    epsilons = np.array([0.2, 0.5])
    slope = jax.vmap(
        jax.grad(lambda s, e: jaxdp.delta(noises[name](s), e, direction="remove")), (None, 0)
    )
    for got, e in zip(slope(scale, epsilons), epsilons, strict=True):
        ends = [one_step_delta(name, s, e, "remove") for s in (scale - h, scale + h)]
        assert got == pytest.approx((ends[1] - ends[0]) / (2.0 * h), rel=1e-5)


def _rising(y):
    return y - 0.1 * y**2


def _heavy(y):
    return -jnp.log1p(y)


def _gaussian(y):
    return -0.5 * y**2


def _student_density(y):
    return -2.0 * jnp.log1p(y**2 / 3.0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"log_density": _rising}, "must not rise"),
        ({"log_density": _heavy}, "integrable"),
        ({"log_density": _student_density}, "turns more often"),
        ({"log_density": _gaussian, "tail_rate": 0.5}, "tail_rate"),
        ({"log_density": _gaussian, "support": -1.0}, "support must be > 0"),
        ({"log_density": _gaussian, "parameters": (np.nan,)}, r"parameters\[0\]"),
    ],
)
def test_what_has_no_proof_is_refused(arguments, sentence):
    with pytest.raises(ValueError, match=sentence):
        jaxdp.AdditiveNoise(**arguments)
