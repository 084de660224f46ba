"""Several bounds at once: against the convex minorant of closed forms, by brute force."""

import jax
import numpy as np
import pytest
from scipy.spatial import ConvexHull
from scipy.stats import norm

import jaxdp

SIGMA, PURE, RHO = 0.7, 1.5, 0.4
EPSILONS = np.array([-2.0, -1.0, -0.3, 0.0, 0.5, 1.0, 1.4, 1.6])


def _curves(g):
    """Of a Gaussian, of the worst pure pair and of what zCDP implies in both directions."""
    mu, loss = 1.0 / SIGMA, np.log(g)
    gaussian = norm.cdf(mu / 2 - loss / mu) - g * norm.cdf(-mu / 2 - loss / mu)
    top = np.exp(PURE)
    pure = np.maximum((top - g) / (1.0 + top), np.maximum(1.0 - g, 0.0))
    with jax.enable_x64(True):
        zcdp = np.asarray(jaxdp.zcdp_to_delta(RHO, np.abs(loss)))
    return gaussian, pure, np.where(loss < 0.0, 1.0 - g + g * zcdp, zcdp)


def _minorant(epsilon, used):
    g = np.append(np.exp(np.linspace(-12.0, 12.0, 40_001)), np.exp(PURE))
    h = np.min(np.array(_curves(g))[used], axis=0)
    points = np.concatenate([[[0.0, 1.0]], np.stack([g, h], axis=1)])
    hull = ConvexHull(points * [np.exp(-12.0), 1.0]).equations  # a x + b y + c <= 0 inside
    below = hull[hull[:, 1] < -1e-12]
    x = np.exp(epsilon)[:, None] * np.exp(-12.0)
    return np.max(-(below[:, 0] * x + below[:, 2]) / below[:, 1], axis=1)


@pytest.fixture(scope="module")
def bounds():
    def zcdp(epsilon):
        return jaxdp.zcdp_to_delta(RHO, epsilon)

    return [jaxdp.Gaussian(SIGMA), jaxdp.ApproximateDP(PURE, 0.0), zcdp]


@pytest.mark.parametrize("used", [[0, 1], [0, 1, 2]])
def test_the_pair_is_the_convex_minorant_in_both_directions(bounds, used):
    """Breaks when a bound is forgotten at some epsilon, or the table cuts below the minorant."""
    pair = jaxdp.intersection([bounds[i] for i in used])
    with jax.enable_x64(True):
        remove, add = (
            np.asarray(jaxdp.hockey_stick(pair, EPSILONS, direction=d)) for d in ("remove", "add")
        )
    truth = _minorant(EPSILONS, used)
    np.testing.assert_allclose(remove, truth, rtol=2e-4, atol=1e-6)
    assert np.all(remove >= truth * (1.0 - 1e-6) - 1e-9)  # chords of the hull's grid are above
    mirrored = 1.0 - np.exp(EPSILONS) * (1.0 - _minorant(-EPSILONS, used))
    np.testing.assert_allclose(add, mirrored, rtol=1e-3, atol=1e-5)


def test_what_is_made_of_it_is_tighter_than_through_each_of_the_bounds():
    """64 times, against closed forms; and where one bound is all there is, no looser than it."""
    law, pure = jaxdp.Gaussian(1.0), jaxdp.ApproximateDP(1.0, 0.0)
    both, one = (jaxdp.intersection(parts) for parts in ([law, pure], [law]))
    with jax.enable_x64(True):
        values = [float(jaxdp.epsilon(jaxdp.Repeated(m, 64), 1e-5)) for m in (both, one)]
        exact = float(jaxdp.epsilon(jaxdp.Repeated(law, 64), 1e-5))
        other = float(jaxdp.epsilon(jaxdp.Repeated(pure, 64), 1e-5))
    assert exact <= values[1] <= 1.005 * exact
    assert values[0] < 0.9 * min(exact, other)


def test_errors(bounds):
    for wrong in ([], ()):
        with pytest.raises(ValueError, match="bounds"):
            jaxdp.intersection(wrong)
    with pytest.raises(TypeError, match="bounds"):
        jaxdp.intersection([1.0])
    with pytest.raises(ValueError, match="batch"):
        jaxdp.intersection([jaxdp.Gaussian(np.array([1.0, 2.0]))])
    with pytest.raises(ValueError, match="delta"):
        jaxdp.intersection(bounds, delta=0.0)
    with pytest.raises(ValueError, match="num_points"):
        jaxdp.intersection(bounds, num_points=3)
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda s: jaxdp.intersection([jaxdp.Gaussian(s)]).losses)(1.0)


def test_with_a_pure_bound_it_is_pure_in_both_directions():
    """Rounding had left a mass at infinite loss, from which on the other direction failed."""
    both = jaxdp.intersection([jaxdp.Gaussian(1.0), jaxdp.ApproximateDP(1.0, 0.0)])
    for direction in ("remove", "add"):
        with jax.enable_x64(True):
            found = np.asarray(jaxdp.epsilon(both, np.array([0.0, 1e-50]), direction=direction))
        np.testing.assert_allclose(found, 1.0, rtol=1e-11)


def test_known_bounds_inside_a_program():
    """Breaks when what is known is traced with the rest: a table's size depends on its values."""
    response = jaxdp.RandomizedResponse(0.4)

    def build():
        group = jaxdp.group_privacy(response, 2)
        return jaxdp.Repeated(jaxdp.intersection([group, jaxdp.ApproximateDP(2.0, 0.0)]), 2)

    inside = jax.jit(lambda delta: jaxdp.epsilon(build(), delta))(1e-3)
    assert inside == pytest.approx(float(jaxdp.epsilon(build(), 1e-3)), rel=1e-6)
    with pytest.raises(TypeError, match="traced"):
        jax.jit(lambda s: jaxdp.epsilon(jaxdp.intersection([jaxdp.Laplace(s)]), 1e-3))(1.0)
