"""What a function builds, told by its steps: one program for all functions that build alike.

A program is kept for the function that it calibrates, and a lambda that is written in a loop is a
new function every time. So the function is traced once, by itself. Its steps and the structure of
its mechanism become the key of the program; the numbers that it holds, the constants of a closure
and those written in its arithmetic, become arguments.
"""

import dataclasses
import enum
import functools
import weakref
from collections.abc import Callable, Hashable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from jaxdp import _x64
from jaxdp._mechanisms import Mechanism


class _From(enum.Enum):
    """Where a leaf comes from, that is not held."""

    STEPS = enum.auto()
    ARGUMENTS = enum.auto()


_STEP, _NUMBER = _From


@dataclasses.dataclass(frozen=True)
class Recipe:
    """(value, args, numbers) -> what is built, equal to every other one that has the same key.

    `held` and `leaves` are the constants of the steps and the leaves of the mechanism, in order:
    themselves, or one of the marks above.
    """

    key: Hashable
    steps: core.Jaxpr = dataclasses.field(compare=False)
    treedef: Any = dataclasses.field(compare=False)
    held: tuple[Any, ...] = dataclasses.field(compare=False)
    leaves: tuple[Any, ...] = dataclasses.field(compare=False)

    _named_by: ClassVar = ("key",)  # where programs are kept

    def __call__(self, value: Any, args: Any, numbers: tuple[Any, ...]) -> Any:
        given = iter(jax.tree.leaves(numbers))
        held = [next(given) if x is _NUMBER else x for x in self.held]
        inputs = [*held, *jax.tree.leaves(value), *jax.tree.leaves(args)]
        steps = core.ClosedJaxpr(self.steps, [])
        found = iter(core.jaxpr_as_fun(steps)(*_typed(inputs, self.steps.invars)))
        sources = {id(_STEP): found, id(_NUMBER): given}
        leaves = [next(sources[id(x)]) if id(x) in sources else x for x in self.leaves]
        return jax.tree.unflatten(self.treedef, leaves)


def _typed(values: list[Any], variables: list[core.Var]) -> list[jax.Array]:
    pairs = zip(values, variables, strict=True)
    return [jnp.asarray(x, v.aval.dtype) for x, v in pairs]  # type: ignore[attr-defined]


_known: weakref.WeakKeyDictionary[Any, dict[Hashable, Any]] = weakref.WeakKeyDictionary()


_MOST_LITERALS = 32
_SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


@functools.cache
def _whole(rank: int) -> Any:
    """The class that holds an array of so many axes, which belong to one evaluation."""

    @jax.tree_util.register_dataclass
    @dataclasses.dataclass(frozen=True)
    class Whole:
        value: Any
        _core_ndims: ClassVar = {"value": rank}

    return Whole


def recipe_of(
    build: Callable[..., Any],
    args: tuple[Any, ...],
    like: Any = _SCALAR,
    kind: type = Mechanism,
    arrays: bool = False,
) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The same as build(value, *args), as a function and arguments that share their program.

    `like` has the structure and the shapes of the value, a number by default. Functions that build
    nothing of this kind, or hold traced arrays, are left as they are. With `arrays`, those of
    several reals that it holds are arguments too, else part of the program. (As jax.jit
    does, a function is read once: what it takes from outside is not looked up again.)
    """
    shapes = tuple(
        np.shape(x)[np.ndim(x) - rank :]
        for x, rank in zip(jax.tree.leaves(args), _x64.core_ranks(args), strict=True)
    )
    values = tuple(x.shape for x in jax.tree.leaves(like))
    form = jax.tree.structure(args), shapes, jax.tree.structure(like), values, kind, arrays
    try:
        known = _known.setdefault(build, {})
    except TypeError:  # no weak references to it: a bound method, say
        known = {}
    if form not in known:
        recipe, numbers = _read(build, *form)
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves(numbers)):
            return recipe, (args, numbers)
        known[form] = recipe, numbers
    recipe, numbers = known[form]
    return (build, args) if recipe is None else (recipe, (args, numbers))


def _read(
    build: Callable[..., Any],
    treedef: Any,
    shapes: tuple[tuple[int, ...], ...],
    like: Any,
    values: tuple[tuple[int, ...], ...],
    kind: type,
    arrays: bool,
) -> tuple[Any, tuple[Any, ...]]:
    """The recipe of a function and its numbers; None where there is none."""
    built: list[Any] = []

    def steps(*flat: jax.Array) -> list[jax.Array]:
        value = jax.tree.unflatten(like, flat[: len(values)])
        m = build(value, *jax.tree.unflatten(treedef, flat[len(values) :]))
        built[:] = [m]
        return [x for x in jax.tree.leaves(m) if isinstance(x, jax.core.Tracer)]

    with jax.enable_x64(True):
        avals = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in (*values, *shapes)]
        closed = jax.make_jaxpr(steps)(*avals)
    (m,) = built
    if not isinstance(m, kind):
        return None, ()
    leaves, structure = jax.tree.flatten(m)
    jaxpr, literals = _without_literals(closed.jaxpr)
    held, some = _marked([*closed.consts, *literals], arrays)
    if any(isinstance(x, jax.core.Tracer) for x in held):
        return None, ()
    known = [_STEP if isinstance(x, jax.core.Tracer) else x for x in leaves]
    fixed, others = _marked(known, arrays)
    key = _steps_key(jaxpr), structure, _key(held), _key(fixed)
    return Recipe(key, jaxpr, structure, held, fixed), (*some, *others)


def _without_literals(jaxpr: core.Jaxpr) -> tuple[core.Jaxpr, list[Any]]:
    """The same steps, constants and real numbers written in their arithmetic as first inputs.

    Also these numbers. (No constants are left: of which JAX 0.12 has another idea than 0.10.) Such
    a number is an operand like any other: what a step does is in its parameters. (Steps that
    hold programs keep theirs, and so does what is handed on as it is.)
    """
    variables: list[core.Var] = []
    found: list[Any] = []

    def named(x: Any) -> Any:
        if not isinstance(x, core.Literal) or np.shape(x.val) or x.aval.dtype.kind != "f":
            return x
        variables.append(core.Var(x.aval))
        found.append(float(x.val))
        return variables[-1]

    def plain(eqn: core.JaxprEqn) -> bool:
        return not any(
            isinstance(x, (core.Jaxpr, core.ClosedJaxpr)) or callable(x)
            for x in jax.tree.leaves(eqn.params, is_leaf=callable)
        )

    eqns = [
        eqn.replace(invars=[named(x) for x in eqn.invars]) if plain(eqn) else eqn
        for eqn in jaxpr.eqns
    ]
    if len(found) > _MOST_LITERALS:  # a program of many arguments takes longer to compile
        eqns, variables, found = jaxpr.eqns, [], []
    inputs = [*jaxpr.constvars, *variables, *jaxpr.invars]
    return jaxpr.replace(constvars=[], invars=inputs, eqns=eqns), found


def _marked(values: list[Any], arrays: bool = False) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """Mechanism leaves or constants with marks for what may vary, and the numbers among these."""
    marks, numbers = [], []
    for x in values:
        if _is_number(x):
            marks.append(_NUMBER)
            numbers.append(x)
        elif arrays and _is_real_array(x):
            marks.append(_NUMBER)
            numbers.append(_whole(np.ndim(x))(x))
        else:
            marks.append(x)
    return tuple(marks), tuple(numbers)


def _is_real_array(x: Any) -> bool:
    return isinstance(x, (np.ndarray, jax.Array)) and x.ndim > 0 and x.dtype.kind == "f"


def _is_number(x: Any) -> bool:
    """Whether x is one real number (no truth value: that is a choice)."""
    if isinstance(x, bool) or not isinstance(x, (int, float, np.generic, np.ndarray, jax.Array)):
        return False
    dtype = np.result_type(x) if isinstance(x, (int, float)) else x.dtype
    return np.ndim(x) == 0 and dtype.kind in "iuf"


def _steps_key(jaxpr: core.Jaxpr) -> Hashable:
    """Equal for equal programs: operations, parameters and types, with variables by their place."""
    places: dict[Any, int] = {}

    def atom(x: Any) -> Hashable:
        if isinstance(x, core.Literal):
            return _key(x.val), x.aval
        return places.setdefault(x, len(places)), x.aval

    heads = tuple(atom(v) for v in (*jaxpr.constvars, *jaxpr.invars))
    lines = tuple(
        (
            eqn.primitive,
            tuple((name, _key(eqn.params[name])) for name in sorted(eqn.params)),
            tuple(atom(x) for x in (*eqn.invars, *eqn.outvars)),
        )
        for eqn in jaxpr.eqns
    )
    return heads, lines, tuple(atom(x) for x in jaxpr.outvars)


class _Itself:
    """A key of what has none: equal to itself alone."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def _key(x: Any) -> Hashable:
    """A key of a parameter, a constant or a leaf; of arrays by their bytes."""
    if isinstance(x, core.ClosedJaxpr):
        return _steps_key(x.jaxpr), tuple(_key(c) for c in x.consts)
    if isinstance(x, core.Jaxpr):
        return _steps_key(x)
    if isinstance(x, (tuple, list)):
        return tuple(_key(y) for y in x)
    if isinstance(x, (np.ndarray, np.generic, jax.Array)):
        array = np.asarray(x)
        return array.shape, array.dtype.str, array.tobytes()
    if isinstance(x, float):  # 0.0 is not -0.0
        return x.hex()
    try:
        hash(x)
    except TypeError:
        return _Itself(x)
    return type(x), x
