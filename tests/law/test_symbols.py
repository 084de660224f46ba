"""Complex powers by their logarithms: as accurate as the engine's allowance for rounding says."""

import jax
import numpy as np

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
