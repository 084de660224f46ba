"""Tests of batches run in float64; those about 32-bit callers leave it themselves."""

import jax
import pytest


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield
