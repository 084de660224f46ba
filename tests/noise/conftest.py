"""Noise tests run in float64 (but those about 32-bit callers) and share compiled programs."""

import jax
import pytest


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


@pytest.fixture(autouse=True)
def _bound_the_compilation_cache():
    """Keep programs from test to test, unlike the other tests: most of the time is compilation."""
