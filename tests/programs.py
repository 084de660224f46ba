"""Programs of the suite, run by NumPy until that has cost what a compilation would.

A test asks a program for a few rows, once: most of its time would be XLA's. Where the compiler is
the subject, use `jax.jit`.
"""

import functools
import os

import jax
import numpy as np

from jaxdp import _devices, _interpreter

# With XLA_FLAGS set by the caller the suite runs as users do: these are the root conftest's.
QUICK = "xla_backend_optimization_level=0" in os.environ.get("XLA_FLAGS", "")


def _is_key(x):
    return isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.extended)


def jit(function):
    """`jax.jit`, without static arguments.

    In 32-bit programs, and of random keys, it is no more than that.
    """
    compiled = jax.jit(function)
    loans = {}

    @functools.wraps(function)
    def run(*args):
        leaves, tree = jax.tree.flatten(args)
        other = any(isinstance(x, jax.core.Tracer) or _is_key(x) for x in leaves)
        if not QUICK or other or not jax.config.jax_enable_x64 or not _interpreter.is_accurate():
            return compiled(*args)
        key = tree, tuple((np.shape(x), getattr(x, "dtype", type(x))) for x in leaves)
        if key not in loans:
            traced = compiled.trace(*args)
            types = [a.dtype for a in traced.jaxpr.in_avals]
            program = _devices.Interpreted(traced.jaxpr)
            lent = _devices.Loan(program, program.costs.compilation)
            loans[key] = lent, types, jax.tree.structure(traced.out_info)
        loan, types, out = loans[key]
        row = [np.asarray(x, dtype) for x, dtype in zip(leaves, types, strict=True)]
        found = loan.run([row])
        if found is None:
            return compiled(*args)
        return jax.tree.unflatten(out, map(jax.numpy.asarray, found[0]))

    return run
