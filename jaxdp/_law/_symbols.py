"""Measures on a lattice through their generating functions, and the errors of transforming them.

The bounds on what they are off by are derived in `_compose`.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxdp._law import _allowances
from jaxdp._law._places import wrap

_LOG_ZERO, _UNDERFLOW = -1e6, 1e-290
_ROUNDED = -25.0  # log of what the transform of a probability is known to, with room
_LOST = 2.0**40
# In powers of x^2, the highest first; cut off at 2e-18 for |x| <= pi / 4.
_COS = np.array([(-1.0) ** k / math.factorial(2 * k) for k in range(8, -1, -1)])
_SIN = np.array([(-1.0) ** k / math.factorial(2 * k + 1) for k in range(8, -1, -1)])


class Symbol(NamedTuple):
    """A measure on the coarse lattice through its generating function F(z) = sum w_k z^k.

    `wave` holds F on the unit circle (rfft), `real` (3,) F at z = 1 and at the two Chernoff
    tilts of the window, where k counts from the measure's own origin, not cyclically.
    """

    wave: jax.Array
    real: jax.Array

    def __add__(self, other: "Symbol") -> "Symbol":
        return Symbol(self.wave + other.wave, self.real + other.real)

    def __mul__(self, other: "Symbol") -> "Symbol":
        none = (self.real[0] == 0.0) | (other.real[0] == 0.0)  # and the other may be infinite
        product = _held(self.real) * _held(other.real)
        return Symbol(self.wave * other.wave, jnp.where(none, 0.0, product))

    def scaled(self, factor: jax.Array) -> "Symbol":
        real = jnp.where(factor == 0.0, 0.0, self.real)
        return Symbol(self.wave * factor, real * factor)

    def plus(self, mass: float) -> "Symbol":
        """With a mass at the origin."""
        return Symbol(self.wave + mass, self.real + mass)

    def where(self, some: jax.Array) -> "Symbol":
        """Itself or nothing."""
        return Symbol(jnp.where(some, self.wave, 0.0), jnp.where(some, self.real, 0.0))


def _held(real: jax.Array) -> jax.Array:
    """Moments, 0 of nothing only: one that underflows would make Chernoff's bound 0."""
    return jnp.maximum(real, lax.stop_gradient(_UNDERFLOW * real[:1]))


def log_of(spectrum: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Its principal logarithm, as log magnitude and angle; far below 0, and 0, for 0."""
    zero = jnp.abs(spectrum.real) + jnp.abs(spectrum.imag) < 1e-140
    safe = jnp.where(zero, 1.0, spectrum)
    magnitude = 0.5 * jnp.log(safe.real**2 + safe.imag**2)
    angle = jnp.arctan2(safe.imag, safe.real)
    return jnp.where(zero, _LOG_ZERO, magnitude), jnp.where(zero, 0.0, angle)


def from_log(magnitude: jax.Array, angle: jax.Array) -> jax.Array:
    """The inverse of `log_of`, for any angle.

    Cos and sin by Taylor's series, within an eighth of a turn: on a CPU the library's are slow,
    scalar calls. Off by at most 2^-52 (1 + |angle|), which the allowance of `_compose` covers.
    """
    radius = jnp.where(magnitude > -700.0, jnp.exp(jnp.maximum(magnitude, -700.0)), 0.0)
    turns = angle / (2.0 * np.pi)
    turns -= jnp.round(turns)
    quarter = jnp.round(4.0 * turns)
    x = (turns - 0.25 * quarter) * (2.0 * np.pi)
    cos, sin = jnp.polyval(_COS, x * x), x * jnp.polyval(_SIN, x * x)
    swap, sign = jnp.abs(quarter) == 1.0, jnp.where(jnp.abs(quarter) == 2.0, -radius, radius)
    real = jnp.where(swap, -quarter * radius * sin, sign * cos)
    return lax.complex(real, jnp.where(swap, quarter * radius * cos, sign * sin))


def _continuous(magnitude: jax.Array, angle: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The angle that is continuous from frequency 0 on, and how many places are taken off it.

    Followed while z can be told from rounding. Real powers have no waves then if the angle ends
    where it began: its turns up to the last frequency are those of so many places. (Where it cannot
    be followed so far, those of the mean: what is left is small where z is not.)
    """
    turns = jnp.round((angle - jnp.concatenate([angle[:1], angle[:-1]])) / (2.0 * np.pi))
    # (One running sum: of the turns, and far above them of where z is lost.)
    seen = lax.cumsum(lax.stop_gradient(jnp.where(magnitude < _ROUNDED, _LOST, turns)))
    lost = seen > 0.5 * _LOST
    angle = angle - jnp.where(lost, 0.0, 2.0 * np.pi * seen)
    ends = jnp.where(lost[-1], angle[1] * (angle.size - 1.0), angle[-1])
    places = lax.stop_gradient(jnp.round(ends / np.pi))
    return angle - places * np.linspace(0.0, np.pi, angle.size), places


class Logs(NamedTuple):
    """log z: log magnitude, angle, and the continuous one (with what is taken off it)."""

    magnitude: jax.Array
    angle: jax.Array
    smooth: jax.Array
    places: jax.Array


def logs_of(spectrum: jax.Array) -> Logs:
    """What the powers of z need."""
    magnitude, angle = log_of(spectrum)
    return Logs(magnitude, angle, *_continuous(magnitude, angle))


def power(z: Logs, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """z^n, and the places (0 for a whole number) that its origin moves by.

    Of the nearest whole number n by the principal logarithm, and what is left by the one that is
    continuous, about the place where it has no waves. 0 to 0, without a singular gradient.
    """
    whole = lax.stop_gradient(jnp.round(count))
    part = count - whole
    return from_log(count * z.magnitude, whole * z.angle + part * z.smooth), -part * z.places


class Power(NamedTuple):
    """A power of a symbol, its mass apart: e^log_total times the symbol of a probability.

    Its places are counted from `moved` of them (see `power`).
    """

    wave: jax.Array
    log_mgf: jax.Array
    log_total: jax.Array
    moved: jax.Array | float = 0.0

    def where(self, some: jax.Array) -> "Power":
        """Itself or 1."""
        return Power(
            *(jnp.where(some, x, one) for x, one in zip(self, (1.0, 0.0, 0.0, 0.0), strict=True))
        )

    def symbol(self) -> Symbol:
        total = jnp.exp(self.log_total)
        return Symbol(
            self.wave * total, total * jnp.exp(jnp.concatenate([jnp.zeros(1), self.log_mgf]))
        )


def raised(symbol: Symbol, tilts: jax.Array, count: jax.Array | None = None) -> Power:
    """The count-th power, by default the first; `tilts` are those of the symbol's moments."""
    log_total = jnp.log(symbol.real[0])
    log_mgf = jnp.log(_held(symbol.real)[1:]) - log_total
    wave = symbol.wave / symbol.real[0]
    if count is None:
        return Power(wave, log_mgf, log_total)
    some = count > 0.0  # a moment may be infinite
    log_mgf = jnp.where(some, count * jnp.where(some, log_mgf, 0.0), 0.0)
    wave, moved = power(logs_of(wave), count)
    return Power(wave, log_mgf - tilts * moved, count * log_total, moved)


def factors(count: jax.Array) -> jax.Array:
    """Of a power, what `rounding_mass` adds up: n, n 2^(1 - n)."""
    return jnp.stack([count, count * jnp.exp2(1.0 - count)])


def rounding_mass(factors: jax.Array, wave: jax.Array, size: int) -> jax.Array:
    """eta of `_compose`, for the transform of a product of powers."""
    wave = lax.stop_gradient(wave)
    norm = jnp.sqrt(2.0 * jnp.sum(wave.real**2 + wave.imag**2))  # half of it is given
    r = _allowances.fourier(size, operations=48)
    return r * ((2.0 * factors[0] + 1.0) * norm + size**0.5 * factors[1])


def without_noise(weights: jax.Array, lost: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A transformed array without what may be rounding only, and what it is off by then.

    Far from the bulk that is all there is, and would spoil moments.
    """
    size = weights.shape[0]
    return jnp.where(weights > lost / (4.0 * size), weights, 0.0), lost * (1.0 + 1.0 / 4.0)


def outside(log_mgf: jax.Array, tilt: jax.Array, distance: jax.Array) -> jax.Array:
    """Chernoff's bound on the mass beyond the distance."""
    exponent = log_mgf - tilt * distance
    return _allowances.CHERNOFF * jnp.exp(jnp.where(exponent < 0.0, exponent, 0.0))


def log_mgf_of(weights: jax.Array, exponent: jax.Array) -> jax.Array:
    """log sum w e^exponent over the last axis."""
    top = jnp.max(jnp.where(weights > 0.0, exponent, -jnp.inf), axis=-1)
    top = lax.stop_gradient(jnp.where(jnp.isfinite(top), top, 0.0))
    terms = weights * jnp.exp(jnp.minimum(exponent - top[..., None], 0.0))
    return top + jnp.log(_allowances.pairwise(terms))


def count_up(size: int) -> jax.Array:
    return jnp.arange(size, dtype=jnp.float64)


@functools.cache
def _roots(size: int) -> np.ndarray:
    """e^{-2 pi i k / N}."""
    return np.exp(-2j * np.pi * np.arange(size) / size)


class Frame(NamedTuple):
    """What the coarse lattice is: its spacing, its tilts, the tilt theta, the side, the size."""

    spacing: jax.Array
    chernoff: jax.Array
    theta: jax.Array
    side: int
    size: int

    @property
    def tilts(self) -> jax.Array:
        """The two Chernoff tilts, signed, per place."""
        return self.spacing * self.chernoff * jnp.array([-1.0, 1.0])

    def points(self, place: jax.Array, at: jax.Array, next_to: jax.Array) -> Symbol:
        """Of a weight at one integer place, and one at the next."""
        turns = np.arange(self.size // 2 + 1)
        index = turns * place.astype(jnp.int64) % self.size
        roots = jnp.asarray(_roots(self.size))
        tilts = self.tilts
        real = lax.stop_gradient(jnp.exp(tilts * place) * (at + next_to * jnp.exp(tilts)))
        wave = roots[index] * (at + next_to * roots[turns])
        return Symbol(wave, jnp.concatenate([(at + next_to)[None], real]))

    def symbol(self, weights: jax.Array, places: jax.Array) -> Symbol:
        """Of weights at any integer places."""
        size = self.size
        cyclic = jnp.zeros((size,), jnp.float64).at[wrap(places, size)].add(weights)
        tilts = self.tilts
        # (Beyond the range of a double Chernoff's bound is given up: infinite.)
        terms = jnp.where(weights > 0.0, weights * jnp.exp(tilts[:, None] * places), 0.0)
        total = jnp.sum(weights)
        moments = lax.stop_gradient(jnp.sum(terms, axis=-1) + _UNDERFLOW * total)
        real = jnp.concatenate([total[None], moments])
        return Symbol(jnp.fft.rfft(cyclic), real)
