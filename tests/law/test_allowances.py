"""Every allowance for rounding, against exact arithmetic, at small sizes and at large ones.

Sums are arranged so that every addition rounds the same way: what was allowed for a much smaller
size, or left out, would not hold.
"""

from fractions import Fraction

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

from jaxdp._law import _allowances
from jaxdp._law._grid import Lattice, align

SIZES = [2**8, 2**13, 2**18]


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def unlucky(size):
    """1, then numbers that are lost one after the other when added to it, and their exact sum."""
    small = 2.0**-53 * (1 - 2.0**-20)
    return np.concatenate([[1.0], np.full(size - 1, small)]), 1 + (size - 1) * Fraction(small)


@pytest.mark.parametrize("size", SIZES)
def test_sums(size):
    """Breaks when a sum of N terms, in the worst order, is off by more than is allowed."""
    values, exact = unlucky(size)
    off = exact / Fraction(float(np.cumsum(values)[-1])) - 1
    for allowed in (_allowances.sums, _allowances.tilted_sums, _allowances.running_sums):
        assert off <= allowed(size)
    assert off > _allowances.sums(size // 4)


@pytest.mark.parametrize("size", SIZES)
def test_running_sums(size):
    """Breaks when sums of sums are given the allowance of one sum, or of a smaller size."""
    values, _ = unlucky(size)
    first = np.cumsum(values)
    # (Every partial sum is 1, so that the second sum is a count, and exact.)
    second = Fraction(float(np.cumsum(first)[-1]))
    small = Fraction(values[1])
    exact = size + small * size * (size - 1) / 2
    off = exact / second - 1
    assert 0 < off <= _allowances.running_sums(size)
    # Slopes taken from sums and summed again.
    again = np.cumsum(np.diff(np.cumsum(first), prepend=0.0))[-1]
    assert abs(exact / Fraction(float(again)) - 1) <= _allowances.running_sums(size)


@pytest.mark.parametrize("reverse", [False, True])
def test_running(reverse):
    """Breaks when running sums of running sums over cells are added up one by one."""
    size = 2**17
    values, exact = unlucky(size)
    values = values[::-1] if reverse else values
    once = _allowances.running(jnp.asarray(values), reverse=reverse)
    end = 0 if reverse else -1
    assert abs(Fraction(float(once[end])) / exact - 1) <= _allowances.pairwise_sums(size**2)
    twice = _allowances.running(once, reverse=reverse)
    exact = size + Fraction(2.0**-53 * (1 - 2.0**-20)) * size * (size - 1) / 2
    off = abs(Fraction(float(twice[end])) / exact - 1)
    assert off <= _allowances.cell_sums(size)
    one_by_one = Fraction(float(np.cumsum(np.cumsum(values[::-1] if reverse else values))[-1]))
    assert abs(one_by_one / exact - 1) > _allowances.cell_sums(size)


@pytest.mark.parametrize("size", [3, *SIZES])
def test_pairwise(size):
    """Breaks when a sum by halves is off by more than log2 N roundings, or leaves a term out."""
    values, exact = unlucky(size)
    found = Fraction(float(_allowances.pairwise(jnp.asarray(values))))
    assert abs(found / exact - 1) <= _allowances.pairwise_sums(size)
    if size > 1000:  # in the worst order that would not hold
        assert abs(Fraction(float(np.cumsum(values)[-1])) / exact - 1) > (
            _allowances.pairwise_sums(size)
        )


def test_exponents():
    """Breaks when what magnitudes cost an exponent is not allowed, at 1 or at 1e9."""
    rng = np.random.default_rng(0)
    a, b, c, d = (10.0 ** rng.uniform(-3, 9, 2000) for _ in range(4))
    found = a * b - c * d + np.log(a)
    allowed = np.asarray(_allowances.exponent(a * b, c * d, np.log(a)))
    worst = 0.0
    with mp.workdps(40):
        for i in range(a.size):
            exact = mp.mpf(a[i]) * mp.mpf(b[i]) - mp.mpf(c[i]) * mp.mpf(d[i]) + mp.log(mp.mpf(a[i]))
            off = float(abs(mp.mpf(found[i]) - exact))
            assert off <= allowed[i]
            worst = max(worst, off)
    assert worst > float(_allowances.exponent(1.0))  # no constant would do
    larger = np.asarray(_allowances.prefactor(a * b, c * d))
    assert np.all(larger >= np.asarray(_allowances.exponent(a * b, c * d)))


@pytest.mark.parametrize("size", [2**10, 2**22])
def test_positions(size):
    """Breaks when points of a lattice are off by more than is allowed, far from 0 or at its end."""
    rng = np.random.default_rng(size)
    for start, spacing in ((0.0, 0.1), (-1e6 / 3, 1e-7 / 3), (1e-3 / 7, 1e3 / 7)):
        k = np.concatenate([[size - 1], rng.integers(0, size, 300)])
        exact = [Fraction(start) + int(i) * Fraction(spacing) for i in k]
        off = max(
            abs(Fraction(float(x)) - y) for x, y in zip(start + spacing * k, exact, strict=True)
        )
        assert off <= float(_allowances.lattice(start, spacing, size))
        span = abs(start) + spacing * size
        assert 1000 * off <= float(_allowances.positions(1000.0, span))


@pytest.mark.parametrize("side", [1, -1])
def test_nudge(side):
    """Breaks when an atom at an end of the support is left on the wrong side of its node."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        high = 10.0 ** rng.uniform(-6, 2)
        low = -np.inf if rng.random() < 0.5 else -(10.0 ** rng.uniform(-6, 2))
        centre = rng.normal() * 10.0 ** rng.uniform(-2, 3) if low == -np.inf else 0.5 * (low + high)
        spacing = 10.0 ** rng.uniform(-6, -2)
        lattice = align(Lattice(jnp.float64(centre), jnp.float64(spacing)), (low, high), side)
        c, h = float(lattice.centre), float(lattice.spacing)
        # (Below, a support within half a cell is held by its low end.)
        end = low if side < 0 and high - low <= 0.5 * spacing else high
        node = c + round((end - c) / h) * h
        assert side * (Fraction(node) - Fraction(end)) > 0
        assert abs(node - end) < 1e-12 * (abs(end) + abs(c)) + 2e-13 * abs(min(low, 0.0) or 0.0)


def test_failure_and_largest_loss():
    """Breaks when sums over many terms have the allowance of one."""
    size = 10**5
    rates = np.concatenate([[1e-3], np.full(size - 1, 1e-19)])
    log_tau = np.log(-np.expm1(np.cumsum(np.log1p(-rates))[-1]))
    with mp.workdps(40):
        through = mp.log1p(-mp.mpf(1e-3)) + (size - 1) * mp.log1p(-mp.mpf(1e-19))
        off = float(abs(mp.log(-mp.expm1(through)) - mp.mpf(float(log_tau))))
    assert float(_allowances.failure(log_tau, 1)) < off <= float(_allowances.failure(log_tau, size))
    p, q, steps = 0.5 + 1e-9, 0.5, 10**6
    largest = steps * (np.log(p) - np.log(q))
    with mp.workdps(40):
        off = float(abs(steps * mp.log(mp.mpf(p) / mp.mpf(q)) - mp.mpf(float(largest))))
    assert float(_allowances.largest_loss(largest)) < off
    assert off <= float(_allowances.largest_loss(largest, steps))


def test_ratios():
    """Breaks when thresholds log x of large ratios are off by more than is allowed."""
    rng = np.random.default_rng(2)
    x = rng.uniform(1.0, 2.0, 500) * 2.0 ** rng.integers(-40, 995, 500)
    with mp.workdps(40):
        off = [float(abs(mp.exp(mp.mpf(np.log(v))) / mp.mpf(v) - 1)) for v in x]
    assert np.all(off <= np.asarray(_allowances.ratio_nudge(x)))
    absolute = np.asarray(_allowances.ratios(1.0, x, x))
    assert np.all(off * x <= absolute)
    assert max(off) > 2.0**-46  # what is enough for ratios next to 1 would not do


@pytest.mark.parametrize("steps", [1.0, 1e3, 1e9])
def test_powers(steps):
    """Breaks when a mass raised to many steps is off by more than is allowed."""
    rng = np.random.default_rng(3)
    masses = rng.dirichlet(np.ones(2171)) * (1.0 + 1e-10)
    log_mass = np.log(float(_allowances.pairwise(jnp.asarray(masses))))
    exact = sum(Fraction(m) for m in masses)
    with mp.workdps(60):
        truth = mp.mpf(steps) * mp.log(mp.mpf(exact.numerator) / mp.mpf(exact.denominator))
        off = float(abs(mp.mpf(steps * log_mass) - truth))
    assert off <= float(_allowances.power(log_mass, steps, masses.size))
