"""Loops of a batch in lanes: each row has what it has alone, and no row is stepped in vain."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxdp import _lanes

SIZES = [1, 3, 4, 5, 64]
LANES = 4


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def collatz(start, step, lanes, seen=None):
    """How many steps to 1, and a sum over them; closes over what varies from row to row."""

    def body(state):
        x, count, total, ends = state
        if seen is not None:
            jax.debug.callback(lambda x: seen.append(int(x)), x)
        return (
            jnp.where(x % 2 == 0, x // 2, 3 * x + 1),
            count + 1,
            total + step * x,
            ends | (x > 50),
        )

    state = start, jnp.int32(0), jnp.zeros(2) + 0.0 * step, jnp.zeros((), bool)
    return _lanes.while_loop(lambda s: s[0] > 1, body, state, lanes)


def expected(starts, steps):
    rows = []
    for x, step in zip(starts, steps, strict=True):
        count, total, ends = 0, 0.0, False
        while x > 1:
            ends |= x > 50
            total, count = total + step * x, count + 1
            x = x // 2 if x % 2 == 0 else 3 * x + 1
        rows.append((x, count, total, ends))
    return [np.asarray(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("size", SIZES)
def test_every_row_has_its_own_end(size):
    """Breaks when rows trade places, are left out, or go on after their end; 0 has begun at its."""
    rng = np.random.default_rng(size)
    starts, steps = rng.integers(0, 60, size), rng.uniform(0.5, 2.0, size)
    found = jax.jit(jax.vmap(lambda x, s: collatz(x, s, LANES)))(starts, steps)
    x, count, total, ends = expected(starts, steps)
    for got, wanted in zip(found, (x, count, np.stack([total, total], -1), ends), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=1e-14)


def test_what_all_rows_share_stays_shared():
    starts = np.arange(1, 30)
    found = jax.vmap(lambda x: collatz(x, jnp.float64(2.0), LANES))(starts)
    np.testing.assert_allclose(found[2][:, 0], expected(starts, [2.0] * 29)[2])
    one = collatz(jnp.int64(27), jnp.float64(2.0), LANES)
    np.testing.assert_allclose(one[2], found[2][26])


def test_no_more_steps_than_rows_need():
    """Breaks when a batch waits for its slowest row: that is 111 steps of 64 rows here."""
    seen = []
    starts = np.array([27] + [4] * 63)
    jax.block_until_ready(jax.vmap(lambda x: collatz(x, jnp.float64(1.0), LANES, seen))(starts))
    jax.effects_barrier()
    assert len(seen) <= LANES * (111 + 63 * 2 / LANES + 1)


def test_a_loop_within_a_loop_of_a_batch():
    def outer(start, step):
        def body(state):
            k, total = state
            return k + 1, total + collatz(start + k, step, LANES)[2][0]

        return jax.lax.while_loop(lambda s: s[0] < 3, body, (jnp.int64(0), 0.0 * step))[1]

    starts, steps = np.arange(1, 12), np.linspace(1.0, 2.0, 11)
    sums = sum(expected(starts + k, steps)[2] for k in range(3))
    np.testing.assert_allclose(jax.vmap(outer)(starts, steps), sums)
