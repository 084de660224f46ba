"""Rules for every test: no global configuration may outlive the test that changed it.

And how the suite is run: by NumPy while that takes less than to compile it.
"""

import gc
import itertools
import os
import pathlib

import jax
import mpmath
import pytest

from jaxdp import _devices
from jaxdp._interpreter import _cost
from tests import programs

# A user who asks for a table will ask again, and wants it compiled; a test asks once.
if programs.QUICK:
    _devices._INTERPRETED_ROWS = 256
    _cost._COMPILED *= 2.0  # as long as a large one takes

# Programs are trees of a million objects without cycles: to look through them takes a tenth of the
# time of tracing.
gc.set_threshold(100_000, 50, 100)

_MOST_GIB = 3.0  # of a worker: compiled programs of a whole run would fill a small machine
_LEAST_GIB = 1.0  # between one clearing and the next: what stays is not what a clearing frees
_TESTS_PER_CACHE = 30  # where the system does not tell how much there is
_count = itertools.count(1)
_cleared_at = 0.0


def _resident_gib() -> float | None:
    """The memory of this process, None where the system has no /proc."""
    try:
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**30


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
def _precision_is_its_own():
    """A test says how many digits its truth needs: no other's, nor an imported module's, count."""
    with mpmath.workdps(15):
        yield


@pytest.fixture(autouse=True)
def _bound_the_compilation_cache():
    """Forget compiled programs where they fill the memory: to trace them again takes long."""
    global _cleared_at
    yield
    used = _resident_gib()
    if used is None:
        full = next(_count) % _TESTS_PER_CACHE == 0
    else:
        full = used > max(_MOST_GIB, _cleared_at + _LEAST_GIB)
    if full:
        jax.clear_caches()
        gc.collect()
        _cleared_at = _resident_gib() or 0.0
