"""`AdditiveNoise` at the ends of its loss, against closed forms in 150 digits.

Each test failed on what it is about: crossings of the loss next to its turn took more steps than
there were (an upper bound 340 times below the truth), the mass beyond a support had lost the digits
of a short shift, and a compiler that computed one comparison twice had logistic noise refused.
"""

import jax
import numpy as np
import pytest
from mpmath import mp, mpf

import jaxdp
from benchmarks.attack import laws, own, pairs


@pytest.fixture(autouse=True)
def doubles():
    """The bounds are compared to 1e-11."""
    with jax.enable_x64(True), mp.workdps(laws.DIGITS):
        yield


def _bounds(m, epsilons):
    low, high = (np.asarray(x) for x in jaxdp.delta_bounds(m, epsilons, direction="remove"))
    return [mpf(float(x)) for x in low], [mpf(float(x)) for x in high]


def _largest(build, *parameters):
    return np.asarray(jax.vmap(lambda *row: build(*row).loss_range()[1])(*parameters))


def test_next_to_the_turn_of_the_loss():
    """Student's t has its largest loss at a turn, and two crossings next to it."""

    def build(freedom, shift):
        return jaxdp.AdditiveNoise(own.student, (1.0, freedom), sensitivity=shift, turns=1)

    freedom, shift, power = (
        x.ravel()
        for x in np.meshgrid([1.0, 3.0], [0.01, 1.0, 72.6], np.arange(1.0, 9.0), indexing="ij")
    )
    epsilons = _largest(build, freedom, shift) * (1.0 - 10.0**-power)
    lows, highs = _bounds(build(freedom, shift), epsilons)
    for low, high, v, x, e in zip(lows, highs, freedom, shift, epsilons, strict=True):
        law, e = pairs.Student(mpf(x), int(v)), mpf(float(e))
        truth = law.delta(e, "remove")
        assert 0 < low <= truth <= high
        # (the curve is about (largest - epsilon)^(3/2), and its masses are known to 2^-36)
        assert high <= max(law.delta(e * (1 - mpf("1e-7")), "remove"), truth * mpf("1.001"))


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_mass_beyond_the_support(noise):
    """Past the largest finite loss delta is that mass, however short the shift is."""
    rng = np.random.default_rng(5)
    scale, support, shift = (
        np.exp(rng.uniform(np.log(a), np.log(b), 48))
        for a, b in [(1e-3, 1e3), (0.1, 30.0), (1e-8, 10.0)]
    )
    support *= scale
    shift *= scale
    density, make = getattr(own, noise), getattr(pairs, "truncated_" + noise)

    def build(scale, support, shift):
        return jaxdp.AdditiveNoise(density, (scale,), sensitivity=shift, support=support)

    m, largest = build(scale, support, shift), _largest(build, scale, support, shift)
    lows, highs = _bounds(m, 2.0 * largest + 1.0)
    laws = [
        make(mpf(x) / mpf(s), mpf(c) / mpf(s))
        for s, c, x in zip(scale, support, shift, strict=True)
    ]
    for low, high, law in zip(lows, highs, laws, strict=True):
        truth = law.infinite(False)
        assert low <= truth <= high
        assert high <= low * mpf("1.0000000001")
    # At a delta just below that mass no epsilon is enough; just above one is.
    below, above = (np.array([float(law.infinite(False) * (1 + s)) for law in laws])
                    for s in (mpf("-1e-10"), mpf("1e-10")))  # fmt: skip
    inside = above < 1.0
    assert np.all(np.isinf(jaxdp.epsilon(m, np.minimum(below, 0.999)))[inside])
    assert np.all((jaxdp.epsilon(m, np.minimum(above, 0.999)) <= largest * (1 + 1e-12))[inside])


def test_batches_of_ordinary_noise_are_accepted():
    """Far out the loss of logistic noise changes by its roundings, which are no turns."""
    rng = np.random.default_rng(1)
    scale, shift = (np.exp(rng.uniform(np.log(a), np.log(b), 1000))
                    for a, b in [(1e-3, 1e3), (1e-2, 1e2)])  # fmt: skip
    shift = np.minimum(shift, 1e4 * scale)
    m = jaxdp.AdditiveNoise(own.logistic, (scale,), sensitivity=shift, tail_rate=1.0 / scale)
    truth = np.array([
        float(pairs.Logistic(mpf(x) / mpf(s)).delta(mpf(0.5), "add"))
        for s, x in zip(scale, shift, strict=True)
    ])  # fmt: skip
    got = np.asarray(jaxdp.hockey_stick(m, 0.5, direction="add"))
    np.testing.assert_allclose(got, truth, rtol=1e-10, atol=1e-300)
    assert mp.dps >= 100


def test_known_numbers_within_a_program():
    """Breaks when the check of the density runs where nothing runs yet: it raised JAX's error."""

    def delta(epsilon, scale=2.0):
        m = jaxdp.AdditiveNoise(own.logistic, (scale,), tail_rate=1.0 / scale)
        return jaxdp.delta(m, epsilon)

    truth = pairs.Logistic(mpf(0.5)).delta(mpf(0.1), "add")
    found = mpf(float(jax.jit(delta)(0.1)))
    assert truth <= found <= truth * mpf("1.0000001")
    refused = jaxdp.AdditiveNoise, lambda y: y  # rises with the distance

    def nothing(epsilon):
        return jaxdp.delta(refused[0](refused[1]), epsilon)

    assert np.isnan(jax.jit(nothing)(0.1))


def steep(y, scale):
    return -((y / scale) ** 1.5)


@pytest.mark.parametrize(
    ("epsilon", "truth"),
    [(1.0, "-5.50594974"), (6.0, "-517.62741"), (7.0, "-818.6254"), (8.0, "-1219.1176")],
)
def test_unbounded_losses_far_out(epsilon, truth):
    """Breaks when mass beyond e^-650 is lost (-inf from 7 on), or y^1.5 next to 0 is not resolved.

    Truths by quadrature from the outcome of that loss.
    """
    noise = jaxdp.AdditiveNoise(steep, (2.0,))
    assert float(noise.mass_error()) < 1e-10  # 7e-8 by even panels
    x = mp.findroot(lambda x: (x**1.5 - abs(x - 1) ** 1.5) / 2**1.5 - epsilon, 2 * epsilon**2 + 0.5)
    first, second = (
        mp.quad(lambda y, a=a: mp.exp(-(((y - a) / 2) ** 1.5)), mp.linspace(x, x + 60, 61))
        for a in (1, 0)
    )
    norm = 2 * mp.quad(lambda y: mp.exp(-((y / 2) ** 1.5)), [0, 1, 4, mp.inf])
    exact = mp.log((first - mp.exp(epsilon) * second) / norm)
    assert exact == pytest.approx(mpf(truth), rel=1e-6)
    assert exact <= float(jaxdp.log_delta(noise, epsilon)) <= exact + 1e-6 * abs(exact)


def test_noise_without_a_support_has_no_infinite_loss():
    """Breaks when a support that there is not refuses what needs finite losses."""
    noise = jaxdp.AdditiveNoise(own.gaussian, (3.0,))
    assert noise == jaxdp.AdditiveNoise(own.gaussian, (3.0,), support=np.inf)
    batch = jaxdp.FixedSizeSampled(noise, 0.1)
    exact = jaxdp.FixedSizeSampled(jaxdp.Gaussian(3.0), 0.1)
    assert jaxdp.epsilon(batch, 1e-6) == pytest.approx(float(jaxdp.epsilon(exact, 1e-6)), rel=1e-6)
    bounded = jaxdp.AdditiveNoise(own.gaussian, (3.0,), support=9.0)
    with pytest.raises(ValueError, match="finite losses"):
        jaxdp.FixedSizeSampled(bounded, 0.1)
    both = jaxdp.delta(
        jaxdp.AdditiveNoise(own.gaussian, (3.0,), support=np.array([9.0, np.inf])), 1
    )
    assert both[0] > both[1] == pytest.approx(float(jaxdp.delta(noise, 1.0)), rel=1e-9)
    every = jaxdp.AdditiveNoise(own.gaussian, (3.0,), support=np.full(2, np.inf))
    assert jaxdp.delta(every, 1.0).shape == (2,)  # a batch stays one


def test_a_loss_that_peaks_where_the_density_does():
    """Of e^-sqrt|x| the largest loss is at the peak: panels next to it are sums of few others.

    (As differences of sums of all that is beyond them they were off by all of delta.)
    """
    m, law = jaxdp.AdditiveNoise(own.stretched, (1.0,), turns=1), pairs.Stretched(mpf(1))
    gaps = 10.0 ** -np.linspace(0.2, 6.0, 30)
    lows, highs = _bounds(m, 1.0 - gaps)
    for low, high, gap in zip(lows, highs, gaps, strict=True):
        delta = law.delta(mpf(1.0 - gap), "remove")
        assert low <= delta <= high
        assert high <= low * (1 + mpf("1e-8") / mpf(gap))

    def largest(scale, shift):  # sqrt(shift/scale)
        noise = jaxdp.AdditiveNoise(own.stretched, (scale,), sensitivity=shift, turns=1)
        return jaxdp.epsilon(noise, 0.0)

    slopes = jax.grad(largest, (0, 1))(1.0, 1.0)
    np.testing.assert_allclose(slopes, [-0.5, 0.5], rtol=1e-9)
