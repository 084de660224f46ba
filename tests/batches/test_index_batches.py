"""Index batches against the laws that they are accounted by: chi-square tests, fixed keys."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jaxdp
from jaxdp import training

DRAWS = 20_000


def _draws(function):
    """Many batches; of each, the sets (or multisets) of indices that count, one row a step."""
    keys = jax.random.split(jax.random.key(7), DRAWS)
    batch = jax.jit(jax.vmap(function))(keys)
    indices, mask = np.asarray(batch.indices), np.asarray(batch.mask)
    sets = np.sort(np.where(mask, indices, 99), axis=-1)
    return sets, np.asarray(batch.lost)


def _agree(found, law):
    """Whether rows have the law, a dictionary from tuples to probabilities."""
    rows, counts = np.unique(found.reshape(len(found), -1), axis=0, return_counts=True)
    seen = dict(zip(map(tuple, rows.tolist()), counts.tolist(), strict=True))
    assert set(seen) <= set(law)
    assert math.fsum(law.values()) == pytest.approx(1.0)
    keys = sorted(law)
    test = stats.chisquare([seen.get(k, 0) for k in keys], [DRAWS * law[k] for k in keys])
    assert test.pvalue > 1e-3


def _padded(row, size):
    return tuple(sorted(row)) + (99,) * (size - len(row))


@pytest.mark.parametrize(("q", "size"), [(0.3, 4), (0.6, 2)])
def test_poisson(q, size):
    law = {}
    for joined in itertools.product((0, 1), repeat=4):
        chance = q ** sum(joined) * (1.0 - q) ** (4 - sum(joined))
        kept = list(itertools.combinations(np.flatnonzero(joined).tolist(), min(size, sum(joined))))
        for row in kept:
            row = _padded(row, size)
            law[row] = law.get(row, 0.0) + chance / len(kept)
    found, lost = _draws(lambda key: training.poisson_batch(key, 4, q, size))
    _agree(found, law)
    assert np.mean(lost) == pytest.approx(
        sum(max(s - size, 0) * stats.binom.pmf(s, 4, q) for s in range(5)), abs=0.02
    )


def test_cyclic_poisson():
    step, q = 5, 0.7
    found, _ = _draws(lambda key: training.cyclic_poisson_batch(key, step, 6, q, 3, 2))
    _agree(found, {(99, 99): 0.09, (2, 99): 0.21, (5, 99): 0.21, (2, 5): 0.49})


def test_fixed_size():
    found, _ = _draws(lambda key: training.fixed_size_batch(key, 5, 3))
    _agree(found, dict.fromkeys(itertools.combinations(range(5), 3), 0.1))
    found, _ = _draws(lambda key: training.fixed_size_batch(key, 3, 2, replacement=True))
    law = {}
    for row in itertools.product(range(3), repeat=2):
        law[tuple(sorted(row))] = law.get(tuple(sorted(row)), 0.0) + 1 / 9
    _agree(found, law)


def test_shuffled_epochs():
    found, _ = _draws(lambda key: training.shuffled_batches(key, 5, 2))
    law = {}
    for order in itertools.permutations(range(5)):
        row = _padded(order[:2], 2) + _padded(order[2:4], 2) + _padded(order[4:], 2)
        law[row] = law.get(row, 0.0) + 1 / 120
    _agree(found, law)


@pytest.mark.parametrize(("steps", "selected"), [(3, 1), (3, 2)])
def test_random_allocation(steps, selected):
    draw = functools.partial(
        training.allocation_batches, num_records=3, num_steps=steps, batch_size=3
    )
    found, lost = _draws(lambda key: draw(key, num_selected=selected))
    assert not np.any(lost)
    choices = list(itertools.combinations(range(steps), selected))
    law = {}
    for each in itertools.product(choices, repeat=3):
        rows = [[i for i in range(3) if t in each[i]] for t in range(steps)]
        row = tuple(x for r in rows for x in _padded(r, 3))
        law[row] = law.get(row, 0.0) + 1.0 / len(choices) ** 3
    _agree(found, law)
    lost = np.asarray(draw(jax.random.key(0), batch_size=1, num_selected=selected).lost)
    assert lost.shape == (steps,)
    assert lost.sum() >= 3 * selected - steps


def test_small_rates_and_traced_ones():
    """A uniform float32 could not tell 1e-8 from 0 or from 1.2e-7."""
    draw = jax.jit(lambda key, q: training.poisson_batch(key, 1 << 20, q, 64).mask.sum())
    keys = jax.random.split(jax.random.key(1), 8)
    found = np.asarray(jax.vmap(draw, (0, None))(keys[:8], 1e-6)).sum()
    assert stats.poisson.cdf(found, 8 * 2**20 * 1e-6) > 1e-4
    assert stats.poisson.sf(found - 1, 8 * 2**20 * 1e-6) > 1e-4
    assert int(draw(keys[0], jnp.float32(1.0))) == 64
    assert int(draw(keys[0], 1e-12)) == 0


def test_what_is_drawn_is_what_is_accounted():
    """The event of a cut batch has the probability that the accounting gives it."""
    _, lost = _draws(lambda key: training.poisson_batch(key, 9, 0.3, 3))
    m = jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.3, 3, 10)
    with jax.enable_x64(True):
        tau = float(jnp.exp(m._parts().log_weights[1]))
    # of 9 records, more than 3 were drawn; B or more of them is tau
    assert np.mean(lost > 0) == pytest.approx(stats.binom.sf(3, 9, 0.3), abs=0.015)
    assert tau == pytest.approx(stats.binom.sf(2, 9, 0.3), rel=1e-9)


def test_bad_arguments():
    key = jax.random.key(0)
    with pytest.raises(ValueError, match="batch_size"):
        training.poisson_batch(key, 10, 0.5, 11)
    with pytest.raises(ValueError, match="sampling_probability"):
        training.poisson_batch(key, 10, 0.0, 5)
    with pytest.raises(ValueError, match="num_groups"):
        training.cyclic_poisson_batch(key, 0, 10, 0.5, 11, 5)
    with pytest.raises(ValueError, match="batch_size"):
        training.fixed_size_batch(key, 10, 11)
    with pytest.raises(ValueError, match="num_selected"):
        training.allocation_batches(key, 10, 3, 5, num_selected=4)


@pytest.mark.parametrize("warm_start", [False, True])
def test_min_separation(warm_start):
    """Breaks when gaps are not b - 1 steps and a geometric wait, or the start is not its law."""
    p, b, steps = 0.4, 3, 5
    busy = p / (1.0 + (b - 1) * p)
    waits = {0: 1.0 - (b - 1) * busy, 1: busy, 2: busy} if warm_start else {0: 1.0}
    law = {}
    for joined in itertools.product((0, 1), repeat=steps):
        chance = 0.0
        for wait, weight in waits.items():
            for one in joined:
                weight *= (1.0 - one) if wait else p if one else 1.0 - p
                wait = wait - 1 if wait else (b - 1) * one
            chance += weight
        if chance:
            law[joined] = chance
    keys = jax.random.split(jax.random.key(11), DRAWS)
    draw = functools.partial(
        training.min_sep_batches,
        num_records=2,
        sampling_probability=p,
        min_separation=b,
        num_steps=steps,
        batch_size=2,
        warm_start=warm_start,
    )
    batch = jax.jit(jax.vmap(draw))(keys)
    for record in (0, 1):
        joined = np.asarray((batch.mask & (batch.indices == record)).any(axis=-1)).astype(int)
        _agree(joined, law)
    assert not np.asarray(batch.lost).any()
    both = np.asarray(batch.mask).sum(axis=-1)  # independent of each other
    assert np.mean(both[:, 0] == 2) == pytest.approx((p * waits[0]) ** 2, abs=0.02)


def test_min_separation_counts_what_has_no_room():
    run = training.min_sep_batches(jax.random.key(0), 10, 1.0, 2, 4, 6)
    assert run.mask.sum(axis=1).tolist() == [6, 0, 6, 0]
    assert run.lost.tolist() == [4, 0, 4, 0]


def test_parts_of_disjoint_data():
    draw = jax.jit(jax.vmap(lambda key: training.parallel_groups(key, 2, 3)))
    groups = np.asarray(draw(jax.random.split(jax.random.key(3), DRAWS)))
    _agree(groups, dict.fromkeys(itertools.product(range(3), repeat=2), 1 / 9))
