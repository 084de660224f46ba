"""One law, every reading: against the Gaussian's closed forms, in both directions."""

import functools

import jax
import numpy as np
import pytest

import jaxdp
from tests.programs import jit

EPSILONS = np.array([-2.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 4.37, 5.0])
DELTAS = np.array([1e-1, 1e-3, 1e-5, 1e-7])
RATES = np.array([0.0, 0.05, 0.3, 1.0])
GAUSSIAN = jaxdp.Gaussian(1.0)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@functools.cache
def law(side):
    return jaxdp.privacy_loss(GAUSSIAN, delta=1e-5, side=side)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_laws_bracket_the_curve(direction):
    """Breaks when a reading crosses the truth, or is loose near the delta it was made for."""
    truth = np.asarray(jaxdp.hockey_stick(GAUSSIAN, EPSILONS))
    above, below = (
        np.asarray(law(s).hockey_stick(EPSILONS, direction=direction)) for s in ("upper", "lower")
    )
    assert np.all(below <= truth * (1 + 1e-12))
    assert np.all(truth <= above * (1 + 1e-12))
    if direction == "remove":
        np.testing.assert_allclose(above[2:], truth[2:], rtol=3e-3)
        np.testing.assert_allclose(below[8], truth[8], rtol=1e-3)
    else:  # an absolute error where the other direction is read
        np.testing.assert_allclose(above[:4], truth[:4], rtol=1e-2)
    log_above = np.asarray(law("upper").log_hockey_stick(EPSILONS, direction=direction))
    np.testing.assert_allclose(np.exp(log_above), above, rtol=1e-9)


def test_epsilon_inverts_the_curve():
    """Breaks when epsilon is on the wrong side of the truth or far from it."""
    truth = np.asarray(jaxdp.epsilon(GAUSSIAN, DELTAS))
    above, below = (np.asarray(law(s).epsilon(DELTAS)) for s in ("upper", "lower"))
    assert np.all(below <= truth)
    assert np.all(truth <= above)
    np.testing.assert_allclose(above, truth, rtol=1e-3)
    np.testing.assert_allclose(below[2], truth[2], rtol=1e-3)
    again = np.asarray(law("upper").hockey_stick(above))
    np.testing.assert_allclose(again, DELTAS, rtol=1e-9)


def test_both_directions_are_read_at_once():
    """Breaks when "both" says more privacy than one of the directions, in any reading."""
    pair = jaxdp.FinitePair([0.1, 0.3, 0.6], [0.5, 0.2, 0.3])
    for side in ("upper", "lower"):
        found = jaxdp.privacy_loss(jaxdp.Repeated(pair, 3), side=side)
        for reading, at, worse in (
            (found.epsilon, [1e-5, 0.1, 0.5], np.maximum),
            (found.delta, EPSILONS, np.maximum),
            (found.log_hockey_stick, EPSILONS, np.maximum),
            (found.tradeoff, [0.0, 0.2, 0.9], np.minimum),
            (found.renyi, [1.5, 8.0], np.maximum),
        ):
            each = [np.asarray(reading(at, direction=d)) for d in ("remove", "add")]
            assert not np.array_equal(*each)
            np.testing.assert_array_equal(reading(at, direction="both"), worse(*each))


def test_reversal_trades_the_directions():
    """Breaks when the reversed law reads another pair."""
    one, other = law("upper"), law("upper").reverse()
    for d, e in (("remove", "add"), ("add", "remove")):
        np.testing.assert_array_equal(
            one.hockey_stick(EPSILONS, direction=d), other.hockey_stick(EPSILONS, direction=e)
        )
    assert other.reverse() == one


def test_laws_are_equal_where_their_numbers_are():
    """Breaks when arrays are compared as such: two laws are then neither equal nor unequal."""
    one, again = law("upper"), jax.tree.map(lambda x: x + 0.0, law("upper"))
    assert again == one
    assert hash(again) == hash(one)
    assert one not in (law("lower"), one.reverse(), 2 * one)


def test_renyi_and_tradeoff():
    """Breaks when a moment or a line of the trade-off is read with the wrong measure."""
    np.testing.assert_allclose(
        law("upper").renyi(np.array([1.5, 2.0, 4.0])), [0.75, 1, 2], rtol=1e-3
    )
    truth = np.asarray(jaxdp.tradeoff(GAUSSIAN, RATES))
    got = np.asarray(law("upper").tradeoff(RATES))
    assert np.all(got <= truth + 1e-12)
    np.testing.assert_allclose(got, truth, atol=1e-3)


def test_transforms():
    """Breaks when the law of a traced mechanism has a wrong gradient, or a batch another answer."""

    def at(sigma):
        return jaxdp.privacy_loss(jaxdp.Gaussian(sigma), delta=1e-5).epsilon(1e-5)

    value, slope = jit(jax.value_and_grad(at))(1.0)
    exact = jax.grad(lambda s: jaxdp.epsilon(jaxdp.Gaussian(s), 1e-5))(1.0)
    np.testing.assert_allclose(slope, exact, rtol=5e-2)
    sigmas = np.array([1.0, 2.0])
    batch = jaxdp.privacy_loss(jaxdp.Gaussian(sigmas), delta=1e-5)
    np.testing.assert_allclose(batch.epsilon(1e-5)[0], value, rtol=1e-9)


@pytest.mark.slow
def test_single_precision():
    """Breaks when 32-bit fields or readings are rounded to the unsafe side."""
    with jax.enable_x64(False):
        above, below = (jaxdp.privacy_loss(GAUSSIAN, side=s) for s in ("upper", "lower"))
        assert above.log_mass.dtype == np.float32
        high, low = float(above.epsilon(1e-5)), float(below.epsilon(1e-5))
    truth = float(jaxdp.epsilon(GAUSSIAN, 1e-5))
    assert low <= truth <= high
    assert high - low < 2e-3 * truth


def test_errors():
    """Breaks when a wrong argument is taken."""
    for wrong in ({"delta": 0.0}, {"direction": "either"}, {"side": "middle"}, {"grid_size": 1000}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            jaxdp.privacy_loss(GAUSSIAN, **wrong)
    for method, value in (("hockey_stick", np.nan), ("epsilon", 0.0), ("renyi", 1.0)):
        with pytest.raises(ValueError, match="must be"):
            getattr(law("upper"), method)(value)
    with pytest.raises(ValueError, match="fpr"):
        law("upper").tradeoff(-0.1)
