"""Complex powers and transforms: as accurate as the engine's allowances for rounding say."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp._law import _symbols


def test_unit_circle():
    """Breaks when an angle, small or of many turns, comes out off by 2^-52 (1 + |angle|)."""
    rng = np.random.default_rng(0)
    angle = rng.uniform(-1.0, 1.0, 100_000) * 10.0 ** rng.uniform(-3.0, 6.0, 100_000)
    angle = np.concatenate([angle, np.arange(-40, 41) * (np.pi / 4.0)])
    with jax.enable_x64(True):
        found = np.asarray(_symbols.from_log(np.zeros_like(angle), angle))
    exact = np.cos(angle) + 1j * np.sin(angle)
    assert np.all(np.abs(found - exact) <= 2.0**-52 * (1.0 + np.abs(angle)))


@pytest.mark.parametrize("count", [1, 2, 5, 40])
@pytest.mark.parametrize("spread", [0.5, 3.0, 1e6])
def test_rounding(count, spread):
    """Breaks when a power by FFT is off by more mass than allowed, or the allowance is vast."""
    size = 64
    weights = np.exp(-0.5 * (np.arange(size) / spread) ** 2)
    exact = [Fraction(int(w * 2**40), 2**40) for w in weights / weights.sum()]
    total = sum(exact)
    exact = [w / total for w in exact]
    power = [Fraction(int(k == 0)) for k in range(size)]
    for _ in range(count):
        power = [sum(exact[j] * power[(k - j) % size] for j in range(size)) for k in range(size)]
        power = [Fraction(int(w * 2**200), 2**200) for w in power]
    with jax.enable_x64(True):
        wave = jnp.fft.rfft(jnp.array([float(w) for w in exact]))
        raised, moved = _symbols.power(_symbols.logs_of(wave), jnp.float64(count))
        found = np.asarray(jnp.fft.irfft(raised, size))
        allowed = float(_symbols.rounding_mass(_symbols.factors(jnp.float64(count)), raised, size))
    off = float(sum(abs(Fraction(float(f)) - w) for f, w in zip(found, power, strict=True)))
    assert off <= allowed
    assert float(moved) == 0.0
    assert allowed < 2.0**-53 * 96 * (2 * count + 2) * size**0.5


@pytest.mark.parametrize("mean", [0.0, 0.4, 5.7, -20.3])
def test_real_powers_have_no_waves(mean):
    """Breaks when a bulk narrower than a place, or one beside its origin, rings when it is raised.

    Two places hold nine tenths of it, and another, 200 on, the rest.
    """
    size, count, jumps = 4096, 7.3, np.arange(16)
    low = int(np.floor(mean))
    share = 0.5 * (mean - low)
    places = np.array([low, low + 1, 200])
    weights = np.array([0.9 * (1.0 - share), 0.9 * share, 0.1])
    cyclic = np.zeros(size)
    np.add.at(cyclic, places % size, weights)
    with jax.enable_x64(True):
        wave, moved = _symbols.power(_symbols.logs_of(jnp.fft.rfft(cyclic)), jnp.float64(count))
        found = np.asarray(jnp.fft.irfft(wave, size))
    start = count * low - float(moved)  # where a bulk of one place alone is
    assert abs(start - round(start)) < 1e-9
    near = np.arange(-12, 16) + round(start) + (200 - low) * jumps[:, None]
    quiet = np.delete(found, near % size)
    assert np.max(np.abs(quiet)) < 1e-6
    assert np.max(found) > 0.1
