"""What users state themselves: noise by its log density, a law by its masses."""

import jax
import jax.numpy as jnp
from mpmath import mpf

import jaxdp
from benchmarks.attack import curves, draw, grammar, pairs
from benchmarks.attack.grammar import Node, literal

LEVEL = draw.real(1e-3, 1e3, 1.0, 0.5)


def logistic(y, scale):
    """The log density of logistic noise, at distances."""
    return -y / scale - 2.0 * jnp.log1p(jnp.exp(-y / scale))


def student(y, scale, freedom):
    """That of Student's t."""
    return -0.5 * (freedom + 1.0) * jnp.log1p((y / scale) ** 2 / freedom)


def stretched(y, scale):
    """That of noise with a cusp and heavy tails."""
    return -jnp.sqrt(y / scale)


def gaussian(y, sigma):
    """That of a Gaussian."""
    return -0.5 * (y / sigma) ** 2


def laplace(y, scale):
    """That of Laplace noise."""
    return -y / scale


class LaplaceByMasses(jaxdp.CustomMechanism):
    """Laplace noise as a user would state it: atoms at +-x, and e^((l - x)/2)/4 between."""

    x: jax.Array
    domains = {"x": "positive"}

    def log_masses(self, lo, hi):
        """log Q and log P of {lo < L <= hi}."""
        x = jnp.asarray(self.x)

        def of_p(low, high, bottom, top):
            # (low, high] within [-x, x], and whether the atoms at -x and x are in it
            some = low < high
            gap = jnp.where(some, low - high, -1.0)
            inner = 0.5 * (high - x) + jnp.log(-jnp.expm1(0.5 * gap)) - jnp.log(2.0)
            parts = [
                jnp.where(some, inner, -jnp.inf),
                jnp.where(top, -jnp.log(2.0), -jnp.inf),
                jnp.where(bottom, -x - jnp.log(2.0), -jnp.inf),
            ]
            return jax.nn.logsumexp(jnp.stack(jnp.broadcast_arrays(*parts)), axis=0)

        low, high = jnp.clip(lo, -x, x), jnp.clip(hi, -x, x)
        bottom, top = (lo < -x) & (-x <= hi), (lo < x) & (x <= hi)
        return of_p(-high, -low, top, bottom), of_p(low, high, bottom, top)

    def loss_range(self):
        """From -x to x."""
        return -self.x, self.x


def node(name, samplers, build, law, code, **options) -> Node:
    """A leaf, with its code as a format of its parameters."""

    def written(*row):
        return code.format(*map(literal, row))

    return Node(name, tuple(samplers), build, law, written, **options)


def own() -> list[Node]:
    """What users state themselves."""
    positive = grammar.SENSITIVITY
    return [
        node(
            "AdditiveNoise(logistic)",
            [LEVEL, positive],
            lambda s, d: jaxdp.AdditiveNoise(logistic, (s,), sensitivity=d, tail_rate=1.0 / s),
            lambda s, d: pairs.Logistic(d / s),
            "jaxdp.AdditiveNoise(logistic, ({0},), sensitivity={1}, tail_rate=1/{0})",
            engine=True,
        ),
        node(
            "AdditiveNoise(student)",
            [LEVEL, lambda rng, n: rng.choice([1.0, 3.0], n), positive],
            lambda s, v, d: jaxdp.AdditiveNoise(student, (s, v), sensitivity=d, turns=1),
            lambda s, v, d: pairs.Student(d / s, int(v)),
            "jaxdp.AdditiveNoise(student, ({0}, {1}), sensitivity={2}, turns=1)",
            engine=True,
        ),
        node(
            "AdditiveNoise(gaussian, cut)",
            [LEVEL, draw.real(0.1, 40.0, 1.0, 8.0), positive],
            lambda s, c, d: jaxdp.AdditiveNoise(gaussian, (s,), sensitivity=d, support=c * s),
            lambda s, c, d: pairs.truncated_gaussian(d / s, _rounded(c, s)),
            "jaxdp.AdditiveNoise(gaussian, ({0},), sensitivity={2}, support={1}*{0})",
            engine=True,
        ),
        node(
            "AdditiveNoise(laplace, cut)",
            [LEVEL, draw.real(0.1, 500.0, 1.0, 8.0), positive],
            lambda s, c, d: jaxdp.AdditiveNoise(laplace, (s,), sensitivity=d, support=c * s),
            lambda s, c, d: pairs.truncated_laplace(d / s, _rounded(c, s)),
            "jaxdp.AdditiveNoise(laplace, ({0},), sensitivity={2}, support={1}*{0})",
            engine=True,
        ),
        node(
            "AdditiveNoise(stretched)",
            [LEVEL, positive],
            lambda s, d: jaxdp.AdditiveNoise(stretched, (s,), sensitivity=d, turns=1),
            lambda s, d: pairs.Stretched(d / s),
            "jaxdp.AdditiveNoise(stretched, ({0},), sensitivity={1}, turns=1)",
            engine=True,
        ),
        node(
            "LaplaceByMasses",
            [draw.real(1e-3, 300.0, 1.0)],
            LaplaceByMasses,
            curves.Laplace,
            "LaplaceByMasses({0})",
            engine=True,
        ),
    ]


def _rounded(c, s):
    """c times s as the library was given it, in units of s."""
    return mpf(float(c) * float(s)) / s
