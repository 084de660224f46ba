"""jax_privacy's analysis and calibration on our accountant."""

import sys
import types

import pytest

pytest.importorskip("dp_accounting")

import dp_accounting
import numpy as np

import jaxdp
from jaxdp import interop

pytestmark = pytest.mark.extra


def test_without_jax_privacy_the_message_says_what_to_install(monkeypatch):
    monkeypatch.setattr(interop.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="pip install jax-privacy"):
        interop.AccountantConfig  # noqa: B018
    with pytest.raises(AttributeError, match="no attribute 'Config'"):
        interop.Config  # noqa: B018


def test_the_config_makes_accountants_with_nothing_in_them(monkeypatch):
    """Breaks when the subclass forgets the relation or the method, or shares its state.

    (The contract of jax_privacy 2.0 is one abstract method: so much stands in for it here.)
    """
    if interop.importlib.util.find_spec("jax_privacy") is None:
        accounting = types.ModuleType("jax_privacy.accounting")
        accounting.DpAccountantConfig = type("DpAccountantConfig", (), {"__slots__": ()})
        package = types.ModuleType("jax_privacy")
        package.accounting = accounting
        monkeypatch.setitem(sys.modules, "jax_privacy", package)
        monkeypatch.setitem(sys.modules, "jax_privacy.accounting", accounting)
        monkeypatch.setattr(interop.importlib.util, "find_spec", lambda name: True)
        monkeypatch.delitem(sys.modules, "jaxdp.interop._jax_privacy", raising=False)
    config = interop.AccountantConfig(method=jaxdp.Analytic())
    first, second = config.create_accountant(), config.create_accountant()
    first.compose(dp_accounting.GaussianDpEvent(2.0), 4)
    assert first.get_epsilon(1e-5) == pytest.approx(4.377178, rel=1e-6)
    assert second.get_epsilon(1e-5) == 0.0
    assert first.neighboring_relation == dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    sys.modules.pop("jaxdp.interop._jax_privacy", None)


def test_jax_privacy_calibrates_on_it():
    """Breaks when their analysis asks for more than the accountant gives."""
    accounting = pytest.importorskip("jax_privacy.accounting")
    if not hasattr(accounting, "DpParams"):
        pytest.skip("later versions calibrate plans alone")
    params = accounting.DpParams(
        noise_multipliers=1.0, num_samples=10_000, batch_size=100, delta=1e-5
    )
    theirs = accounting.DpsgdTrainingAccountant(dp_accountant_config=interop.AccountantConfig())
    found = theirs.compute_epsilon(num_updates=1000, dp_params=params)
    assert 1.828237 <= found < 1.829  # the truth is 1.828237


@pytest.mark.parametrize("cut", [{}, {"truncated_batch_size": 60, "num_examples": 4000}])
def test_a_banded_plan_of_the_released_version(cut):
    """Breaks when a plan of 2.0 cannot be calibrated on it, or takes more noise than on theirs."""
    plans = pytest.importorskip("jax_privacy.experimental.execution_plan")
    relation = dp_accounting.NeighboringRelation.REPLACE_SPECIAL
    settings = {"iterations": 400, "epsilon": 1.0, "delta": 1e-5, "sampling_prob": 0.05} | cut

    def noise(**accountant):
        config = plans.BandMFExecutionPlanConfig(
            strategy=np.array([1.0, 0.5, 0.25, 0.1]), **settings, **accountant
        )
        return config.plan.dp_event

    ours, theirs = noise(accountant=interop.Accountant(relation)), noise()
    spent = interop.Accountant(relation).compose(ours).get_epsilon(1e-5)
    assert 0.999 < spent <= 1.0
    step, other = (getattr(e.event, "event", e.event) for e in (ours, theirs))
    assert step.noise_multiplier < other.noise_multiplier * (1.0 + 1e-5)
    if cut:  # their pair of batches that are cut is a larger one
        assert step.noise_multiplier < 0.9 * other.noise_multiplier


def test_a_banded_plan_of_later_versions():
    """The same by `BandMFConfig.calibrate`, which 2.0 does not have."""
    plans = pytest.importorskip("jax_privacy.execution_plan")
    config = plans.BandMFConfig(
        strategy=np.array([1.0, 0.5]), iterations=100, expected_participations=5
    )
    found = config.calibrate(epsilon=1.0, delta=1e-5, accountant_fn=interop.Accountant)
    plan = found.make()
    accountant = interop.Accountant(plan.neighboring_relation).compose(plan.dp_event)
    assert 0.99 < accountant.get_epsilon(1e-5) <= 1.0
