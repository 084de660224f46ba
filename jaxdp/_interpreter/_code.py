"""Instructions of a program, loops and branches included."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from jaxdp._interpreter import _indexing, _operations
from jaxdp._interpreter._cost import alone

Operation = Callable[..., Any]

MAKERS = {**_operations.MAKERS, **_indexing.MAKERS}
_INNER = ("jaxpr", "call_jaxpr", "fun_jaxpr")  # under which a call keeps its program


class TooLong(Exception):
    """A run takes longer than it may."""


class Unknown(Exception):
    """This version of JAX writes programs in another way."""


class Meter:
    """Seconds, by estimate, that a run has taken, and may take."""

    def __init__(self) -> None:
        self.spent, self.limit = 0.0, np.inf

    def spend(self, seconds: float) -> None:
        self.spent += seconds
        if self.spent > self.limit:
            raise TooLong


@dataclasses.dataclass(frozen=True)
class Code:
    """Instructions: an operation, the places of what it takes, of what it gives, of what is let go.

    Places are those of a list that begins as `values`: constants, and None for the rest. All take
    `seconds`, without the programs that they run, which tell the same meter.
    """

    instructions: list[tuple[Operation, list[int], list[int], list[int]]]
    values: list[Any]
    inputs: list[int]
    outputs: list[int]
    meter: Meter
    seconds: float

    def run(self, *args: Any, limit: float = np.inf) -> list[Any]:
        """What the program gives for arrays of its types, without NumPy's warnings.

        Args:
          *args: the arrays.
          limit: how many seconds, by estimate, it may take; `meter` tells how many it took.

        Raises:
          TooLong: it takes longer.
        """
        self.meter.spent, self.meter.limit = 0.0, limit
        with np.errstate(all="ignore"):
            return self(*map(plain, args))

    def __call__(self, *args: Any) -> list[Any]:
        self.meter.spend(self.seconds)
        values = self.values.copy()
        for place, value in zip(self.inputs, args, strict=True):
            values[place] = value
        for operation, takes, gives, ends in self.instructions:
            got = operation(*[values[i] for i in takes])
            if len(gives) == 1:
                values[gives[0]] = got
            else:
                for place, value in zip(gives, got, strict=True):
                    values[place] = value
            for place in ends:
                values[place] = None
        return [values[i] for i in self.outputs]


def translated(program: Any) -> Code:
    """The instructions of a (closed) jaxpr; it must be traced, and run, in the same precision.

    Raises:
      Unknown: an operation or a loop has other parameters than here are known.
    """
    try:
        return _Translator(Meter()).code(program)
    except (AttributeError, KeyError) as error:
        raise Unknown from error


class _Translator:
    """Of a program and all that it calls: one translation of each."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._known: dict[int, tuple[Any, Code]] = {}

    def code(self, program: Any) -> Code:
        if id(program) not in self._known:
            # (The program is kept, so that its id remains its own.)
            self._known[id(program)] = program, self._translate(program)
        return self._known[id(program)][1]

    def _translate(self, program: Any) -> Code:
        jaxpr, consts = getattr(program, "jaxpr", program), getattr(program, "consts", ())
        places: dict[Any, int] = {}
        values: list[Any] = []

        def place(variable: Any) -> int:
            if isinstance(variable, Literal):
                values.append(np.asarray(variable.val, variable.aval.dtype)[()])  # pyright: ignore
                return len(values) - 1
            if variable not in places:
                places[variable] = len(values)
                values.append(None)
            return places[variable]

        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            values[place(variable)] = plain(value)
        inputs = [place(v) for v in jaxpr.invars]
        kept = {v for v in (*jaxpr.outvars, *jaxpr.constvars) if not isinstance(v, Literal)}
        last: dict[Any, int] = {}
        instructions = []
        for k, equation in enumerate(jaxpr.eqns):
            last |= dict.fromkeys(equation.outvars, k)
            last |= {v: k for v in equation.invars if not isinstance(v, Literal)}
            takes, gives = [[place(v) for v in vs] for vs in (equation.invars, equation.outvars)]
            instructions.append((self._operation(equation), takes, gives, []))
        for variable, k in last.items():
            if variable not in kept:
                instructions[k][-1].append(places[variable])
        outputs = [place(v) for v in jaxpr.outvars]
        seconds = sum(map(alone, jaxpr.eqns))
        return Code(instructions, values, inputs, outputs, self._meter, seconds)

    def _operation(self, equation: Any) -> Operation:
        name, params = equation.primitive.name, equation.params
        control = {"scan": self._scan, "while": self._while, "cond": self._cond}
        if name in control:
            return _one(equation, control[name](equation))
        made = MAKERS[name](equation) if name in MAKERS else None
        if made is not None:
            return made
        for inner in _INNER:
            if hasattr(getattr(params.get(inner), "jaxpr", params.get(inner)), "eqns"):
                return _one(equation, self.code(params[inner]))
        return _one(equation, _bound(equation))

    def _scan(self, equation: Any) -> Operation:
        params = equation.params
        body = self.code(params["jaxpr"])
        if "num_consts" in params:
            consts, carried = params["num_consts"], params["num_carry"]
        else:  # from JAX 0.12 on
            consts, carried, _ = map(len, params["ft_in"].unpack())
        stacked = [v.aval for v in equation.outvars[carried:]]
        order = range(params["length"])[:: -1 if params["reverse"] else 1]

        def run(*args: Any) -> list[Any]:
            shared, carry = args[:consts], args[consts : consts + carried]
            xs = args[consts + carried :]
            ys = [np.empty(a.shape, a.dtype) for a in stacked]
            for i in order:
                found = body(*shared, *carry, *[x[i] for x in xs])
                carry = found[:carried]
                for y, value in zip(ys, found[carried:], strict=True):
                    y[i] = value
            return [*carry, *ys]

        return run

    def _while(self, equation: Any) -> Operation:
        params = equation.params
        going, body = self.code(params["cond_jaxpr"]), self.code(params["body_jaxpr"])
        first = params["cond_nconsts"]
        second = first + params["body_nconsts"]

        def run(*args: Any) -> list[Any]:
            state = list(args[second:])
            while np.any(on := going(*args[:first], *state)[0]):
                found = body(*args[first:second], *state)
                if not np.all(on):  # of a batch
                    found = [_where(on, *xs) for xs in zip(found, state, strict=True)]
                state = found
            return state

        return run

    def _cond(self, equation: Any) -> Operation:
        branches = [self.code(branch) for branch in equation.params["branches"]]

        def run(index: Any, *args: Any) -> list[Any]:
            return branches[min(max(int(index), 0), len(branches) - 1)](*args)

        return run


def plain(value: Any) -> Any:
    """An array of NumPy, or a number of it."""
    return np.asarray(value)[()]


def _where(rows: Any, x: Any, other: Any) -> Any:
    """x in those rows of a batch: one that is done stays as it is."""
    return np.where(np.reshape(rows, np.shape(rows) + (1,) * (x.ndim - rows.ndim)), x, other)


def _one(equation: Any, function: Operation) -> Operation:
    """What gives a list, for an equation of one output."""
    return (lambda *args: function(*args)[0]) if len(equation.outvars) == 1 else function


def _bound(equation: Any) -> Operation:
    """By JAX itself: what is rare, or new."""
    primitive = equation.primitive
    functions, params = (), primitive.get_bind_params(equation.params)
    if isinstance(params, tuple):  # older versions of JAX
        functions, params = params

    def run(*args: Any) -> list[Any]:
        got = primitive.bind(*functions, *map(jax.numpy.asarray, args), **params)
        return [plain(x) for x in (got if primitive.multiple_results else [got])]

    return run
