"""jax_privacy's analysis and calibration on our accountant."""

import sys
import types

import pytest

pytest.importorskip("dp_accounting")

import dp_accounting

import jaxdp
from jaxdp import interop


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
    params = accounting.DpParams(
        noise_multipliers=1.0, num_samples=10_000, batch_size=100, delta=1e-5
    )
    theirs = accounting.DpsgdTrainingAccountant(dp_accountant_config=interop.AccountantConfig())
    found = theirs.compute_epsilon(num_updates=1000, dp_params=params)
    assert 1.828237 <= found < 1.829  # the truth is 1.828237
