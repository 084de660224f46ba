"""Index batches of every scheme that is accounted for, from a PRNG key, with static shapes.

A batch is a vector of indices of a known length and a mask of those that count: multiply the loss
of each record by it, and divide by the expected size. The functions run under jit and vmap; each
says which mechanism its batches are accounted by.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks


class Batch(NamedTuple):
    """Indices of records, int32; whether each counts, bool, of the same shape; how many were left.

    `lost` is int32: how many of the records that were drawn the batch has no room for.
    """

    indices: jax.Array
    mask: jax.Array
    lost: jax.Array


def poisson_batch(
    key: jax.Array, num_records: int, sampling_probability: ArrayLike, batch_size: int
) -> Batch:
    """A Poisson batch of at most `batch_size` records: of more, so many are kept at random.

    Accounted for by `jaxdp.TruncatedPoissonSampled`; at batch_size = num_records, and only there,
    by `jaxdp.PoissonSampled`. The probability is rounded down to a multiple of 2^-32.

    Args:
      key: a PRNG key.
      num_records: n, a known integer.
      sampling_probability: q in (0, 1]; may be traced.
      batch_size: B <= n, a known integer.

    Returns:
      A Batch of shape (B,): a random order of the records that joined, then padding.

    Raises:
      ValueError: for known arguments outside their domains.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> batch = training.poisson_batch(jax.random.key(0), 1000, 0.01, 20)
      >>> batch.indices.shape, 0 < int(batch.mask.sum()) <= 20
      ((20,), True)
    """
    n = _checks.whole_number("num_records", num_records)
    size = _checks.whole_number("batch_size", batch_size, most=n)
    _checks.check("sampling_probability", sampling_probability, _checks.RATE)
    first, second = jax.random.split(key)
    return _kept(second, _coins(first, sampling_probability, n), size)


def cyclic_poisson_batch(
    key: jax.Array,
    step: ArrayLike,
    num_records: int,
    sampling_probability: ArrayLike,
    num_groups: int,
    batch_size: int,
) -> Batch:
    """A Poisson batch from the group whose turn it is: that of the indices i = step mod b.

    A record takes part every b-th step only. Where nothing is cut (batch_size >= ceil(n/b)), T
    steps are accounted for by `jaxdp.cyclic_poisson_sampled(step, q, b, T)`.

    Args:
      key: a PRNG key.
      step: number of the step, >= 0; may be traced.
      num_records: n, a known integer.
      sampling_probability: q in (0, 1], within the group; may be traced.
      num_groups: b <= n, a known integer.
      batch_size: a known integer <= n.

    Returns:
      A Batch of shape (batch_size,).

    Raises:
      ValueError: for known arguments outside their domains.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> batch = training.cyclic_poisson_batch(jax.random.key(0), 7, 100, 1.0, 4, 25)
      >>> bool((batch.indices % 4 == 3).all()), int(batch.mask.sum())
      (True, 25)
    """
    n = _checks.whole_number("num_records", num_records)
    groups = _checks.whole_number("num_groups", num_groups, most=n)
    size = _checks.whole_number("batch_size", batch_size, most=n)
    _checks.check("sampling_probability", sampling_probability, _checks.RATE)
    first, second = jax.random.split(key)
    turn = jnp.arange(n, dtype=jnp.int32) % groups == jnp.asarray(step) % groups
    return _kept(second, turn & _coins(first, sampling_probability, n), size)


def min_sep_batches(
    key: jax.Array,
    num_records: int,
    sampling_probability: ArrayLike,
    min_separation: int,
    num_steps: int,
    batch_size: int,
    *,
    warm_start: bool = False,
) -> Batch:
    """Batches in which a record joins with probability p once b - 1 steps have passed (b-min-sep).

    Accounted for by `jaxdp.min_sep_sampled`, with the same `warm_start`, where nothing was lost.
    A record that there was no room for counts as one that joined.

    Args:
      key: a PRNG key.
      num_records: n, a known integer.
      sampling_probability: p in (0, 1]; may be traced.
      min_separation: b, a known integer.
      num_steps: T, a known integer.
      batch_size: room in each batch, a known integer <= n.
      warm_start: whether to begin in the stationary state, where every batch has
        n/(b - 1 + 1/p) records on average; else all are free at first.

    Returns:
      A Batch of shape (T, batch_size); `lost` has the shape (T,).

    Raises:
      ValueError: for known arguments outside their domains.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> run = training.min_sep_batches(jax.random.key(0), 100, 1.0, 4, 8, 100)
      >>> run.mask.sum(axis=1).tolist()
      [100, 0, 0, 0, 100, 0, 0, 0]
    """
    n = _checks.whole_number("num_records", num_records)
    separation = _checks.whole_number("min_separation", min_separation)
    steps = _checks.whole_number("num_steps", num_steps)
    size = _checks.whole_number("batch_size", batch_size, most=n)
    _checks.check("sampling_probability", sampling_probability, _checks.RATE)
    first, second = jax.random.split(key)
    waits = jnp.zeros(n, jnp.int32)  # steps until a record is free
    if warm_start:
        # of the stationary gaps b - 1 + G, a point falls on each of the b - 1 waits with weight p
        p = jnp.asarray(sampling_probability, jnp.result_type(sampling_probability, jnp.float32))
        blocked = (separation - 1) * p / (1.0 + (separation - 1) * p)
        where, which = jax.random.split(first)
        some = jax.random.randint(which, (n,), 1, max(separation, 2), dtype=jnp.int32)
        waits = jnp.where(_coins(where, blocked, n), some, 0)

    def step(waits: jax.Array, key: jax.Array) -> tuple[jax.Array, Batch]:
        coin, order = jax.random.split(key)
        joined = (waits == 0) & _coins(coin, sampling_probability, n)
        waits = jnp.where(joined, separation - 1, jnp.maximum(waits - 1, 0))
        return waits, _kept(order, joined, size)

    return jax.lax.scan(step, waits, jax.random.split(second, steps))[1]


def parallel_groups(key: jax.Array, num_records: int, num_groups: int) -> jax.Array:
    """A part for each record, at random and independently: what `jaxdp.Parallel` accounts for.

    Args:
      key: a PRNG key.
      num_records: n, a known integer.
      num_groups: how many parts, a known integer.

    Returns:
      int32 of shape (n,), in [0, num_groups).

    Raises:
      ValueError: for arguments outside their domains.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> sorted(set(training.parallel_groups(jax.random.key(0), 50, 3).tolist()))
      [0, 1, 2]
    """
    n = _checks.whole_number("num_records", num_records)
    groups = _checks.whole_number("num_groups", num_groups, most=2**31 - 1)
    return jax.random.randint(key, (n,), 0, groups, dtype=jnp.int32)


def fixed_size_batch(
    key: jax.Array, num_records: int, batch_size: int, *, replacement: bool = False
) -> Batch:
    """Exactly `batch_size` records, drawn with or without replacement.

    Accounted for by `jaxdp.fixed_size_sampled`, with the same `replacement`.

    Args:
      key: a PRNG key.
      num_records: n, a known integer.
      batch_size: B, a known integer; at most n without replacement.
      replacement: whether a record may be drawn several times.

    Returns:
      A Batch of shape (B,) without padding.

    Raises:
      ValueError: for known arguments outside their domains.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> batch = training.fixed_size_batch(jax.random.key(0), 10, 10)
      >>> sorted(batch.indices.tolist()) == list(range(10))
      True
    """
    n = _checks.whole_number("num_records", num_records)
    size = _checks.whole_number("batch_size", batch_size, most=2**31 - 1 if replacement else n)
    if replacement:
        indices = jax.random.randint(key, (size,), 0, n, dtype=jnp.int32)
    else:
        indices = _order(key, n)[:size]
    return Batch(indices, jnp.ones(size, bool), jnp.zeros((), jnp.int32))


def shuffled_batches(key: jax.Array, num_records: int, batch_size: int) -> Batch:
    """One epoch of a random order of all records, cut into batches; the last may be smaller.

    What is proved of it is one Gaussian an epoch, with the order revealed: see
    `calibrate.compare_samplers`, "shuffled, replace-one".

    Args:
      key: a PRNG key, a new one for every epoch.
      num_records: n, a known integer.
      batch_size: B <= n, a known integer.

    Returns:
      A Batch of shape (ceil(n/B), B).

    Raises:
      ValueError: for known arguments outside their domains.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> epoch = training.shuffled_batches(jax.random.key(0), 10, 4)
      >>> sorted(epoch.indices[epoch.mask].tolist()) == list(range(10)), epoch.mask.sum(1).tolist()
      (True, [4, 4, 2])
    """
    n = _checks.whole_number("num_records", num_records)
    size = _checks.whole_number("batch_size", batch_size, most=n)
    steps = -(-n // size)
    padded = jnp.concatenate([_order(key, n), jnp.zeros(steps * size - n, jnp.int32)])
    mask = jnp.arange(steps * size, dtype=jnp.int32) < n
    shape = (steps, size)
    return Batch(padded.reshape(shape), mask.reshape(shape), jnp.zeros((), jnp.int32))


def allocation_batches(
    key: jax.Array, num_records: int, num_steps: int, batch_size: int, *, num_selected: int = 1
) -> Batch:
    """One epoch in which each record joins k of the t steps at random, whatever the others do.

    Accounted for by `jaxdp.RandomAllocation(step, t, num_selected=k)` where nothing was lost:
    batches vary in size (by a few roots of n k/t), so leave room, and look at `lost`.

    Args:
      key: a PRNG key, a new one for every epoch.
      num_records: n, a known integer.
      num_steps: t, a known integer.
      batch_size: room in each batch, a known integer <= n.
      num_selected: k <= t, a known integer.

    Returns:
      A Batch of shape (t, batch_size); `lost` has the shape (t,).

    Raises:
      ValueError: for known arguments outside their domains.

    Example:
      >>> import jax
      >>> from jaxdp import training
      >>> epoch = training.allocation_batches(jax.random.key(0), 100, 10, 30)
      >>> int(epoch.lost.sum()), sorted(epoch.indices[epoch.mask].tolist()) == list(range(100))
      (0, True)
    """
    n = _checks.whole_number("num_records", num_records)
    t = _checks.whole_number("num_steps", num_steps)
    size = _checks.whole_number("batch_size", batch_size, most=n)
    k = _checks.whole_number("num_selected", num_selected, most=t)
    if k == 1:
        steps = jax.random.randint(key, (n,), 0, t, dtype=jnp.int32)
        joined = jnp.arange(t, dtype=jnp.int32)[:, None] == steps
    else:
        orders = jax.vmap(lambda one: _order(one, t))(jax.random.split(key, n))
        joined = jnp.zeros((n, t), bool).at[jnp.arange(n)[:, None], orders[:, :k]].set(True).T
    return jax.vmap(lambda row: _first(jnp.arange(n, dtype=jnp.int32), row, size))(joined)


def _coins(key: jax.Array, probability: Any, n: int) -> jax.Array:
    """n coins of a probability rounded down to 32 bits; a uniform float32 has 23."""
    q = jnp.asarray(probability, jnp.result_type(probability, jnp.float32))
    bits = jax.random.bits(key, (n,), jnp.uint32)
    level = jnp.where(q < 1.0, q, 0.0) * 2.0**32
    return (bits < level.astype(jnp.uint32)) | (q >= 1.0)


def _order(key: jax.Array, n: int) -> jax.Array:
    return jax.random.permutation(key, jnp.arange(n, dtype=jnp.int32))


def _kept(key: jax.Array, joined: jax.Array, size: int) -> Batch:
    """At most `size` of those who joined, at random."""
    order = _order(key, joined.shape[0])
    return _first(order, joined[order], size)


def _first(indices: jax.Array, joined: jax.Array, size: int) -> Batch:
    """The first of the indices that joined, then others that do not count."""
    found = jnp.argsort(~joined, stable=True)[:size]
    lost = jnp.maximum(jnp.sum(joined, dtype=jnp.int32) - size, 0)
    return Batch(indices[found], joined[found], lost)
