"""Powers of a law on a cyclic lattice, and their rounding.

The transform of w is taken of w - delta_0, whose 1-norm is m = 2 (1 - w_0) for weights of sum 1,
and 1 added to it in the logarithm, so that a law that hardly moves is hardly off. Every output of a
fast Fourier transform of size N is a sum over its inputs, each multiplied along its path by log2 N
twiddle factors and roundings, hence off by at most r m, r = 2^-53 (8 log2 N + 16) (cf. Higham
2002, section 24.1, with room). With z the exact value and z' the computed one, |z'^n - z^n| <=
n (|z'| + r m)^{n-1} r m, and z'^n itself, as exp(n log z'), is off by
|z'|^n (2^-49 n |log z'| + 2^-50). The
inverse adds r times the 2-norm of its input. The sum of |errors| over the N points is at most
sqrt(N) times their 2-norm, and that is the 2-norm of the error before the inverse:

    eta <= | n (|z| + r m)^{n-1} r m + |z|^n (2^-49 n |log z| + 2^-50 + r) |_2,

over the N frequencies; few of them have |z|^n that counts.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxdp._law import _allowances
from jaxdp._law._places import wrap
from jaxdp._special import log1p


def cyclic_power(
    weights: jax.Array,
    index: jax.Array,
    count: jax.Array,
    size: int,
    spread: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The count-fold convolution of weights of sum 1 at integer places modulo size, and eta.

    Real counts by the principal logarithm. Negative rounding noise is replaced by 0. A variance
    `spread`, that of splitting masses between neighbouring places, is taken out (estimates only).
    """
    law = jnp.zeros((size,), jnp.float64).at[wrap(index, size)].add(weights)
    others = jnp.concatenate([jnp.zeros((1,)), law[1:]])
    moved = _allowances.pairwise(others)
    change = jnp.fft.rfft(others - moved * (jnp.arange(size) == 0))
    # log |z|: through |z|^2 - 1 where that is small, which keeps its digits, else directly.
    square = 2.0 * change.real + change.real**2 + change.imag**2
    norm = (1.0 + change.real) ** 2 + change.imag**2
    direct = square < -0.5
    near, far = jnp.where(direct, 0.0, square), jnp.where(direct, jnp.maximum(norm, 1e-60), 1.0)
    magnitude = 0.5 * jnp.where(direct, jnp.log(far), log1p(near))
    if spread is not None:
        wave = 1.0 - jnp.cos(2.0 * jnp.pi / size * jnp.arange(size // 2 + 1))
        magnitude = jnp.minimum(magnitude + spread * wave, 0.0)
    some = norm > 1e-60  # atan2 has no gradient at 0
    real = jnp.where(some, 1.0 + change.real, 1.0)
    angle = jnp.arctan2(jnp.where(some, change.imag, 0.0), real)
    radius = jnp.exp(jnp.maximum(count * magnitude, -700.0))
    spectrum = lax.complex(radius * jnp.cos(count * angle), radius * jnp.sin(count * angle))
    powered = jnp.maximum(jnp.fft.irfft(spectrum, size), 0.0)
    r = _allowances.fourier(size)
    # Half the mass at 0 takes up what the others' sum is off by (`_allowances.normalised_steps`).
    # (That sum's own digits, log2 N u, are within r.)
    lacking = jnp.abs(law[0] + moved - 1.0) + 2.0 * _allowances.UNIT
    off = 2.0 * r * moved + jnp.where(law[0] > 0.5, 0.0, lacking)
    nearby = jnp.exp((count - 1.0) * jnp.log(jnp.exp(magnitude) + off))
    log_size = jnp.abs(magnitude) + jnp.abs(angle)
    error = count * nearby * off + radius * (2.0**-49 * count * log_size + 2.0**-50 + r)
    both = 2.0 * jnp.sum(error**2)  # a real law's spectrum is symmetric
    return powered, lax.stop_gradient(1.01 * jnp.sqrt(both))
