"""Queries in batches of one fixed shape, so that all tests of a law share its compiled programs."""

import jax
import numpy as np

WIDTH = 12


def ask(query, m, argument, **options):
    """query(m, argument) for broadcast parameters, 12 at a time, padded with the last one."""
    leaves, treedef = jax.tree.flatten((m, argument))
    arrays = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in leaves))
    shape = arrays[0].shape
    rows = np.stack([a.ravel() for a in arrays], axis=1)
    values = []
    for start in range(0, len(rows), WIDTH):
        part = rows[start : start + WIDTH]
        padded = np.concatenate([part, np.repeat(part[-1:], WIDTH - len(part), axis=0)])
        moved, x = jax.tree.unflatten(treedef, list(padded.T.copy()))
        values.append(np.asarray(query(moved, x, **options))[: len(part)])
    return np.concatenate(values).reshape(shape)


def concatenate(mechanisms):
    """One mechanism of vectors from several of one class."""
    flat = [
        jax.tree.map(np.ravel, jax.tree.unflatten(s, np.broadcast_arrays(*leaves)))
        for leaves, s in (jax.tree.flatten(m) for m in mechanisms)
    ]
    return jax.tree.map(lambda *x: np.concatenate(x), *flat)
