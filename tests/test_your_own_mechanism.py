"""The page on mechanisms of one's own, run, and its mechanisms against independent integrals.

References share no code with the library: densities in NumPy, one step by mpmath's quadrature over
the sets where the loss exceeds epsilon, compositions by the Fourier inversion of the moment
generating function of the loss (Carr & Madan 1999), whose line of integration passes near the
saddle point, so that small deltas keep their digits.
"""

import pathlib
import re

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from scipy.optimize import brentq

import calibrate
import jaxdp

PAGE = pathlib.Path(__file__).parents[1] / "docs" / "your-own-mechanism.md"
CODE = "\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL))
RATE, STEPS = 0.02, 1000


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="module")
def page():
    """What the page defines and computes."""
    found = {}
    with jax.enable_x64(True):
        exec(compile(CODE, PAGE.name, "exec"), found)
    return found


# The densities, normalised, of arrays or of mpmath's numbers.


def _truncated(x, sigma, lib):
    norm = sigma * lib.sqrt(2 * lib.pi) * mp.erf(8 / (sigma * mp.sqrt(2)))
    return lib.exp(-(x * x) / (2 * sigma * sigma)) / norm if lib is mp else (
        np.where(np.abs(x) <= 8.0, np.exp(-(x * x) / (2 * sigma * sigma)), 0.0) / float(norm)
    )


def _mixture(x, scale, lib):
    normal = lib.exp(-(x * x) / 2) / lib.sqrt(2 * lib.pi)
    return (lib.exp(-abs(x) / scale) / (2 * scale) + normal) / 2


def _student(x, scale, lib):
    norm = 2 / (lib.pi * lib.sqrt(3) * scale)
    return norm / (1 + x * x / (3 * scale * scale)) ** 2


# name: the factory on the page, its parameter, the density, the end of its support
NOISES = {
    "truncated_gaussian": (1.1, _truncated, 8.0),
    "mixture": (1.5, _mixture, np.inf),
    "student_t": (2.0, _student, np.inf),
}


def one_step_delta(name, scale, epsilon, direction):
    """int (p - e^epsilon q)_+ by quadrature, p at 1 and q at 0 for remove."""
    _, density, edge = NOISES[name]
    top, bottom = (1.0, 0.0) if direction == "remove" else (0.0, 1.0)

    def excess(x):
        return float(np.log(density(x - top, scale, np) / density(x - bottom, scale, np)) - epsilon)

    far = min(edge, 1e6)
    low, high = max(-far, bottom - far), min(far, bottom + far)
    low, high = max(low, top - far), min(high, top + far)
    inner = np.sinh(np.linspace(np.arcsinh(low), np.arcsinh(high), 4001))[1:-1]
    values = np.array([excess(x) for x in inner])
    turns = np.flatnonzero(np.sign(values[1:]) != np.sign(values[:-1]))
    roots = [brentq(excess, inner[i], inner[i + 1], xtol=1e-15) for i in turns]
    points = [low, *sorted([*roots, 0.0, 1.0]), high]
    if np.isinf(edge):
        points = [-mp.inf, *points, mp.inf]
    with mp.workdps(30):
        factor = mp.exp(mp.mpf(epsilon))
        mid = [(a + b) / 2 for a, b in zip(points[:-1], points[1:], strict=True)]
        total = mp.mpf(0)
        for a, b, m in zip(points[:-1], points[1:], mid, strict=True):
            at = b - 1.0 if mp.isinf(a) else a + 1.0 if mp.isinf(b) else m
            if a < b and excess(float(at)) > 0:
                total += mp.quad(
                    lambda x: density(x - top, scale, mp) - factor * density(x - bottom, scale, mp),
                    [a, b],
                )
        if not np.isinf(edge):  # where the other law has no mass
            beyond = (edge, edge + 1) if direction == "remove" else (-edge, 1 - edge)
            total += mp.quad(lambda x: density(x - top, scale, mp), beyond)
    return float(total)


def composed_delta(name, scale, rate, steps, epsilons, direction):
    """delta of `steps` Poisson-sampled steps at positive epsilons."""
    _, density, edge = NOISES[name]
    nodes, weights = np.polynomial.legendre.leggauss(20)
    ends = 40.0 * np.sinh(np.linspace(-14.0, 14.0, 401)) / np.sinh(1.0) if np.isinf(edge) else None
    if ends is None:
        ends = np.linspace(-edge, edge + 1.0, 401)
    ends = np.unique(np.concatenate([ends, [0.0, 1.0], [] if np.isinf(edge) else [edge, 1 - edge]]))
    half = 0.5 * np.diff(ends)[:, None]
    x = (ends[:-1, None] + half * (1.0 + nodes)).ravel()
    w = (half * weights).ravel()
    q, p = density(x, scale, np), density(x - 1.0, scale, np)
    q, p = (q, p) if not np.isinf(edge) else (q / np.sum(w * q), p / np.sum(w * p))
    m = (1.0 - rate) * q + rate * p
    first, second = (m, q) if direction == "remove" else (q, m)
    lost = float(np.sum(w * first * (second <= 0.0)))
    log_lost = steps * np.log1p(-lost)
    some = (first > 0.0) & (second > 0.0)
    loss, mass = np.log(first[some] / second[some]), (w * second)[some]
    # the price of a call on e^L under the second law: near the saddle point, on a line
    a = np.array([_saddle(loss, mass, steps, e) for e in epsilons])
    deltas = []
    for epsilon, alpha in zip(epsilons, a, strict=True):
        spread = np.sqrt(steps * _variance(loss, mass, alpha))
        u = (np.arange(4000) + 0.5) * (12.0 / spread / 4000)
        z = alpha + 1.0 + 1j * u
        shift = np.max((alpha + 1.0) * loss)
        moments = np.exp(np.outer(z, loss) - shift) @ mass
        log = steps * (np.log(moments) + shift) - (alpha + 1j * u) * epsilon
        integrand = np.exp(log) / (z * (z - 1.0))
        deltas.append(np.sum(integrand.real) * (u[1] - u[0]) / np.pi - np.expm1(log_lost))
    return np.array(deltas)


def _tilted(loss, mass, alpha):
    weights = mass * np.exp((alpha + 1.0) * loss - np.max((alpha + 1.0) * loss))
    return weights / np.sum(weights)


def _variance(loss, mass, alpha):
    weights = _tilted(loss, mass, alpha)
    mean = np.sum(weights * loss)
    return np.sum(weights * (loss - mean) ** 2)


def _saddle(loss, mass, steps, epsilon):
    """alpha > 0 at which the tilted mean loss is epsilon, about (any alpha > 0 is exact)."""

    def off(log_alpha):
        return steps * np.sum(_tilted(loss, mass, np.exp(log_alpha)) * loss) - epsilon

    low, high = np.log(0.2), np.log(400.0)
    if off(low) >= 0.0:
        return np.exp(low)
    return np.exp(high) if off(high) <= 0.0 else np.exp(brentq(off, low, high, xtol=1e-3))


EPSILONS = {
    "truncated_gaussian": [0.0, 0.5, 2.0, 4.0, 5.5],
    "mixture": [0.0, 0.2, 0.5, 0.66, 0.8],
    "student_t": [0.0, 0.1, 0.3, 0.5, 0.5753],
}
EPSILONS_OF_RUNS = {
    "truncated_gaussian": ([450.0, 700.0], [0.8, 4.0]),
    "mixture": ([90.0, 140.0], [0.3, 1.5]),
    "student_t": ([60.0, 100.0], [0.2, 1.0]),
}


@pytest.mark.parametrize("name", NOISES)
def test_examples_are_short(name):
    (text,) = re.findall(rf"```python\n(?:(?!```).)*?def {name}.*?```", CODE_BLOCKS, re.DOTALL)
    assert len(text.strip().splitlines()) - 2 <= 20


CODE_BLOCKS = PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", NOISES)
def test_one_step_against_quadrature(page, name):
    """Both directions, under jit, and below zero; deltas down to 1e-12."""
    scale, epsilons = NOISES[name][0], np.array(EPSILONS[name])
    for direction in ("remove", "add"):
        bounds = jax.jit(
            lambda s, e, d=direction: jaxdp.delta_bounds(page[name](s), e, direction=d)
        )
        low, high = bounds(scale, np.append(epsilons, -0.3))
        truth = [one_step_delta(name, scale, e, direction) for e in epsilons]
        truth.append(1.0 - np.exp(-0.3) * (1.0 - one_step_delta(name, scale, 0.3, direction)))
        truth = np.array(truth)
        assert np.all(low <= truth * (1 + 1e-11))
        assert np.all(truth <= high * (1 + 1e-11))
        assert np.all(high - low <= 1e-6 * truth)


@pytest.mark.parametrize("name", NOISES)
def test_runs_against_fourier_inversion(page, name):
    """1,000 steps, all records and Poisson-sampled, both directions in one program."""
    scale, (whole, sampled) = NOISES[name][0], EPSILONS_OF_RUNS[name]
    rates, epsilons = np.repeat([1.0, RATE], 2), np.array([*whole, *sampled])
    run = jaxdp.Repeated(jaxdp.PoissonSampled(page[name](scale), rates), STEPS)
    low, high = jaxdp.delta_bounds(run, epsilons)
    truth = []
    for rate, some in ((1.0, whole), (RATE, sampled)):
        both = [composed_delta(name, scale, rate, STEPS, some, d) for d in ("remove", "add")]
        truth += np.maximum(*both).tolist()
    print(name, truth, low, high)
    assert np.all(low <= truth)
    assert np.all(truth <= high)
    assert np.all(high <= 1.02 * low)
