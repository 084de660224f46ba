"""The accountant's trade-off curve, GDP parameter and ends, as dp_accounting's head has them."""

import math

import numpy as np
import pytest
from scipy import stats

pytest.importorskip("dp_accounting")

from dp_accounting import dp_event
from dp_accounting.rdp import rdp_privacy_accountant

import jaxdp
from jaxdp import interop

pytestmark = pytest.mark.extra


class EpsilonDeltaDpEvent(dp_event.DpEvent):
    """As dp_accounting's after 0.6.0."""

    def __init__(self, epsilon, delta):
        vars(self).update(epsilon=epsilon, delta=delta)


def _pure(*guarantees):
    """An accountant of (epsilon, delta) guarantees."""
    accountant = interop.Accountant()
    for epsilon, delta in guarantees:
        accountant.compose(EpsilonDeltaDpEvent(epsilon, delta))
    return accountant


def test_what_reveals_nothing_and_everything():
    accountant = interop.Accountant().compose(dp_event.NoOpDpEvent())
    assert accountant.get_true_positive_rates(0.5) == 0.5
    np.testing.assert_array_equal(
        accountant.get_true_positive_rates(np.array([0.0, 0.3, 1.0])), [0.0, 0.3, 1.0]
    )
    assert accountant.get_gdp_parameter_estimate() == 0.0
    assert not accountant._contains_non_dp_event
    accountant.compose(dp_event.GaussianDpEvent(0.0))
    assert accountant._contains_non_dp_event
    assert accountant.get_true_positive_rates(0.1) == 1.0
    assert accountant.get_true_positive_rates(np.full(3, 0.1)).tolist() == [1.0] * 3
    assert accountant.get_gdp_parameter_estimate() == math.inf


def test_a_gaussian_is_its_own_curve():
    """Breaks when rates are not above the truth, or the parameter is not the Gaussian's."""
    accountant = interop.Accountant().compose(dp_event.GaussianDpEvent(math.sqrt(3.0)), 3)
    rates = np.array([1e-6, 0.1, 0.5, 0.99])
    exact = stats.norm.sf(stats.norm.isf(rates) - 1.0)
    found = accountant.get_true_positive_rates(rates)
    assert np.all(found >= exact * (1.0 - 1e-13))
    np.testing.assert_allclose(found, exact, rtol=1e-6)
    assert accountant.get_gdp_parameter_estimate() == pytest.approx(1.0, abs=1e-6)


def test_ends_are_exact():
    """Breaks when the sum of two pure epsilons, or two failures, is rounded more than once."""
    accountant = _pure((1.0, 0.0), (2.0, 0.0))
    assert accountant.get_epsilon(0.0) == 3.0
    assert accountant.get_delta(3.0) == 0.0
    corner = 1.0 / (1.0 + math.exp(2.0))  # of the trade-off curve, where the parameter is largest
    rates = np.concatenate([[0.1, corner], np.geomspace(0.005, 0.5, 100)])
    assert accountant.get_true_positive_rates(rates)[0] == pytest.approx(0.8286, abs=1e-3)
    assert accountant.get_gdp_parameter_estimate(rates) == pytest.approx(2.358, abs=1e-3)
    accountant = _pure((1.0, 0.1), (2.0, 0.2))
    assert accountant.get_delta(3.0) == 0.28  # 1 - 0.9 0.8
    assert accountant.get_epsilon(0.28) == 3.0
    assert accountant.get_epsilon(0.0) == math.inf
    assert accountant.get_true_positive_rates(rates)[0] == pytest.approx(0.91938, abs=1e-3)
    assert accountant.get_gdp_parameter_estimate() == math.inf
    many = _pure(*[(1e-3, 1e-9)] * 100)
    assert many.get_delta(1.0) == pytest.approx(1e-7, rel=1e-6)
    assert many.get_delta(1.0) >= -math.expm1(100 * math.log1p(-1e-9))


def test_rates_outside_their_domain():
    accountant = interop.Accountant().compose(dp_event.GaussianDpEvent(1.0))
    with pytest.raises(ValueError, match="false_positive_rates"):
        accountant.get_true_positive_rates([0.1, 1.1])
    with pytest.raises(ValueError, match="false_positive_rates"):
        accountant.get_gdp_parameter_estimate([0.0, 0.1])


@pytest.mark.parametrize("shape", [0.0, 0.3, 1.0, math.inf])
def test_tuning_is_never_above_theirs(shape):
    """Breaks when the best of several runs costs more than by Theorems 2 and 6 on their orders."""
    event = dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(4.0), 10.0, shape)
    assert interop.from_dp_event(event) == jaxdp.RepeatAndSelect(jaxdp.Gaussian(4.0), 10.0, shape)
    theirs = rdp_privacy_accountant.RdpAccountant().compose(event).get_epsilon(1e-6)
    ours = interop.Accountant().compose(event).get_epsilon(1e-6)
    alone = float(jaxdp.epsilon(jaxdp.Gaussian(4.0), 1e-6))
    assert alone < ours < theirs


def test_concentrated_guarantees():
    event = dp_event.ZCDpEvent(0.1, 0.05)
    assert interop.from_dp_event(event) == jaxdp.ConcentratedDP(0.1, 0.05)
    theirs = rdp_privacy_accountant.RdpAccountant().compose(event, 8).get_epsilon(1e-6)
    ours = interop.Accountant().compose(event, 8).get_epsilon(1e-6)
    assert 0.999 * theirs < ours <= theirs
    with pytest.raises(interop.UnsupportedEvent, match="reveals nothing"):
        interop.from_dp_event(dp_event.ZCDpEvent(0.0))
