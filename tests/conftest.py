"""Rules for every test: no global JAX configuration may outlive the test that changed it."""

import itertools

import jax
import pytest

_TESTS_PER_CACHE = 30  # compiled programs of more would fill the memory of a small machine
_count = itertools.count(1)


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


@pytest.fixture(autouse=True)
def _bound_the_compilation_cache():
    """Forget compiled programs now and then."""
    yield
    if next(_count) % _TESTS_PER_CACHE == 0:
        jax.clear_caches()
