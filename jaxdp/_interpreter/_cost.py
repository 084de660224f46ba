"""What a program costs, run by NumPy and compiled; and whether NumPy is accurate enough."""

import functools
import math
from typing import Any, NamedTuple

import numpy as np

# Seconds, as measured on a slow machine of 2 cores: of an operation, of a number that it makes, of
# an operation that is traced for a batch, or compiled. And how often a loop turns whose length the
# data decides, and one within another.
_OPERATION, _NUMBER, _TRACED, _COMPILED = 2.5e-6, 2.5e-9, 3e-4, 8e-4
_TURNS, _INNER_TURNS = 4, 2
# By what a run of many branches may be faster than is guessed, which counts the longest of all (a
# calibration of epochs of random allocation: 85 seconds guessed, 62 to compile it, 12 needed).
_BRANCHES = 8.0


class Costs(NamedTuple):
    """Seconds: of one run by NumPy, of what it would take for empty arrays; of what is instead."""

    run: float
    overhead: float
    tracing: float  # it for a batch
    compilation: float  # quickly

    @property
    def least(self) -> float:
        """Of a run by NumPy, whose branches may be the short ones."""
        return self.run / _BRANCHES

    @property
    def saved(self) -> float:
        """What is not spent if it is never compiled, nor its numbers worked out so once."""
        return self.compilation + (self.run - self.overhead) / _BRANCHES


def costs(program: Any) -> Costs:
    """Of a (closed) jaxpr, by estimate."""
    seconds, overhead, operations = _walk(program, _TURNS, {})
    return Costs(seconds, overhead, _TRACED * operations, _COMPILED * operations)


_Walk = tuple[float, float, int]


def _walk(program: Any, turns: int, known: dict[tuple[int, int], _Walk]) -> _Walk:
    """Seconds of a run and of its overhead, and how many operations are written."""
    if (id(program), turns) in known:
        return known[id(program), turns]
    seconds, overhead, written = 0.0, 0.0, 0
    for equation in getattr(program, "jaxpr", program).eqns:
        name, params = equation.primitive.name, equation.params
        often = {"scan": params.get("length"), "while": turns}.get(name) or 1
        within = _INNER_TURNS if name == "while" else turns
        inner = [_walk(p, within, known) for p in programs(params)] or [(0.0, 0.0, 0)]
        written += 1 + sum(n for _, _, n in inner)
        of_all = max if name == "cond" else sum
        seconds += alone(equation) + often * of_all(s for s, _, _ in inner)
        overhead += _OPERATION + often * of_all(o for _, o, _ in inner)
    known[id(program), turns] = seconds, overhead, written
    return known[id(program), turns]


def alone(equation: Any) -> float:
    """Seconds that an equation takes by NumPy, without the programs in it."""
    if programs(equation.params):
        return _OPERATION
    return _OPERATION + _NUMBER * sum(math.prod(v.aval.shape) for v in equation.outvars)


def programs(params: dict[str, Any]) -> list[Any]:
    """The (closed) jaxprs among the parameters of an equation."""
    found = []
    for value in params.values():
        for one in value if isinstance(value, tuple | list) else (value,):
            if hasattr(getattr(one, "jaxpr", one), "eqns"):
                found.append(one)
    return found


@functools.cache
def is_accurate() -> bool:
    """Whether NumPy's exp, log, expm1 and log1p are off by 3 u of their value at most here.

    The allowances say 4 u. What NumPy calls depends on the processor (its vector library may be off
    by 8 u, https://github.com/numpy/numpy/pull/19478), hence a look, by numbers of 64 bits or more.
    """
    share = (np.arange(1.0, 2048.0) * 0.6180339887498949) % 1.0
    small = np.concatenate([share - 0.5, (share - 0.5) * 10.0 ** (-18.0 * share[::-1])])
    wide = 1400.0 * share - 700.0
    tasks = {
        np.exp: np.concatenate([wide, small]),
        np.expm1: np.concatenate([wide, small]),
        np.log: np.concatenate([10.0 ** (0.4 * wide), 1.0 + small]),
        np.log1p: np.concatenate([10.0 ** (0.4 * wide), small]),
    }
    return all(_is_near(function, x) for function, x in tasks.items())


def _is_near(function: Any, x: Any) -> bool:
    exact = function(x.astype(np.longdouble))
    off = np.abs(function(x) - exact)
    return bool(np.all(off <= 3.0 * 2.0**-53 * np.abs(exact)))
