"""Rules for every test: no global JAX configuration may outlive the test that changed it."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _jax_config_is_restored():
    """Fail a test that leaves jax.config changed, and undo the change for the tests after it."""
    before = dict(jax.config.values)
    yield
    changed = {
        name: (before[name], value)
        for name, value in jax.config.values.items()
        if name in before and before[name] != value
    }
    for name, (old, _) in changed.items():
        jax.config.update(name, old)
    assert not changed, f"the test changed jax.config (name: before, after): {changed}"
