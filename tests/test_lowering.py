"""Every query as a program for accelerators: what it may ask of them, without one at hand."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import Literal

import calibrate
import jaxdp
from jaxdp import _devices, _interpreter, training

PLATFORMS = ("cuda", "tpu")


def sgd(sigma):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.01), 1000.0)


def allocation(sigma):
    return jaxdp.RandomAllocation(jaxdp.Gaussian(sigma), 100)


def plain(sigma):
    return jaxdp.Repeated(jaxdp.Laplace(sigma), 30.0)


# Steps that run one after the other, whatever the batch, and loops whose length the data decides:
# today's, so that a change which adds some is seen. Fewer are better: lower them where they fall.
QUERIES = {
    "epsilon": (lambda s: jaxdp.epsilon(sgd(s), 1e-5), 131, 0),
    "epsilon-exact": (lambda s: jaxdp.epsilon(jaxdp.Gaussian(s), 1e-5), 1, 1),
    "epsilon-renyi": (lambda s: jaxdp.epsilon(plain(s), 1e-5, method=jaxdp.Renyi()), 8, 0),
    "epsilon-allocation": (lambda s: jaxdp.epsilon(allocation(s), 1e-5), 299, 0),
    "epsilon-bounds": (lambda s: jaxdp.epsilon_bounds(sgd(s), 1e-5), 339, 0),
    "delta-bounds": (lambda s: jaxdp.delta_bounds(plain(s), 1.0), 347, 0),
    "log-delta": (lambda s: jaxdp.log_delta(jaxdp.Laplace(s), 1.0), 0, 0),
    "hockey-stick": (lambda s: jaxdp.hockey_stick(jaxdp.Gaussian(s), 1.0), 0, 0),
    "renyi": (lambda s: jaxdp.renyi(sgd(s), 3.5), 64, 0),
    "tradeoff": (lambda s: jaxdp.tradeoff(jaxdp.Gaussian(s), 0.1), 56, 0),
    "advantage": (lambda s: jaxdp.advantage(plain(s)), 139, 0),
    "law": (lambda s: jaxdp.privacy_loss(sgd(s)).epsilon(1e-5), 191, 0),
    "solve": (lambda e: calibrate.solve(jaxdp.Gaussian, epsilon=e, delta=1e-5).value, 2, 2),
    "solve-numerical": (lambda e: calibrate.solve(sgd, epsilon=e, delta=1e-5).value, 187, 4),
    "solve-integer": (
        lambda e: (
            calibrate.solve_integer(
                lambda n: jaxdp.Repeated(jaxdp.Gaussian(10.0), n), epsilon=e, delta=1e-5
            ).value
        ),
        1,
        1,
    ),
}


def sequential(jaxpr):
    """(steps one after the other, loops of unknown length) of a program, each loop body once."""
    steps, loops = 0, 0
    for equation in jaxpr.eqns:
        inner = [sequential(j) for j in _programs(equation.params)]
        most = max((n for n, _ in inner), default=0)
        unknown = sum(n for _, n in inner)
        if equation.primitive.name == "scan":
            most = equation.params["length"] * max(most, 1)
        elif equation.primitive.name == "while":
            most, unknown = max(most, 1), unknown + 1
        elif equation.primitive.name != "cond":
            most = sum(n for n, _ in inner)
        steps, loops = steps + most, loops + unknown
    return steps, loops


def _programs(params):
    return [getattr(p, "jaxpr", p) for p in _interpreter.programs(params)]


def test_the_count_of_steps():
    """Breaks when a nested loop, a branch or an inner program is not counted."""

    def inner(x):
        return jax.lax.fori_loop(0, 5, lambda _, c: jnp.sin(c), x)

    def outer(x):
        y = jax.lax.scan(lambda c, _: (jax.jit(inner)(c), None), x, None, 3)[0]
        y = jax.lax.cond(y > 0.0, inner, lambda c: c, y)
        return jax.lax.while_loop(lambda c: c < 9.0, lambda c: inner(c) + 1.0, y)

    assert sequential(jax.make_jaxpr(outer)(1.0).jaxpr) == (3 * 5 + 5 + 5, 1)


def padded_sums(jaxpr):
    """Running sums of a program whose numbers are others with zeros before or behind them."""
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    found = [
        e for e in jaxpr.eqns if e.primitive.name == "cumsum" and _is_padded(e.invars[0], made)
    ]
    for program in itertools.chain(*(_programs(e.params) for e in jaxpr.eqns)):
        found += padded_sums(program)
    return found


def _is_padded(variable, made):
    equation = made.get(variable)
    name = equation and equation.primitive.name
    ends = equation.invars if name == "concatenate" else ()
    return name == "pad" or any(_is_constant(v, made) for v in ends)


def _is_constant(variable, made):
    if isinstance(variable, Literal):
        return True
    return variable in made and all(_is_constant(v, made) for v in made[variable].invars)


def test_padded_sums_are_found():
    """Breaks when a running sum over numbers with zeros at an end is overlooked."""

    def behind(x):
        return jax.lax.cumsum(jnp.concatenate([2.0 * x, jnp.zeros(1)]))

    def after(x):
        return jnp.concatenate([jax.lax.cumsum(2.0 * x), jnp.zeros(1)])

    for function, number in ((behind, 1), (after, 0)):
        for one, x in ((jax.jit(function), jnp.ones(4)), (jax.vmap(function), jnp.ones((3, 4)))):
            assert len(padded_sums(jax.make_jaxpr(one)(x).jaxpr)) == number


def narrowed_and_back(jaxpr):
    """Conversions to 64 bits of what was just converted to 32: nothing at all, to a GPU."""
    found, narrow = [], set()
    for equation in jaxpr.eqns:
        if equation.primitive.name == "convert_element_type":
            (old,), (new,) = equation.invars, equation.outvars
            if isinstance(old, Literal):
                continue
            if (old.aval.dtype, new.aval.dtype) == (jnp.float64, jnp.float32):
                narrow.add(new)
            elif new.aval.dtype == jnp.float64 and old in narrow:
                found.append(equation)
        found += itertools.chain(*(narrowed_and_back(p) for p in _programs(equation.params)))
    return found


def _spent(sigma):
    state = training.update(training.init(), sigma=sigma, sampling_probability=0.01)
    return training.epsilon(state, 1e-5)


def _least(epsilon):
    return calibrate.minimize(
        lambda p: p[0] ** -1.0 + 2.0 / p[1],
        lambda p: jaxdp.Composed([jaxdp.Gaussian(p[0]), jaxdp.Gaussian(p[1])]),
        epsilon=epsilon,
        delta=1e-5,
        init=(1.0, 1.0),
    ).value


ROUNDED = {
    **{name: function for name, (function, *_) in QUERIES.items()},
    "training": _spent,
    "minimize": _least,
}


@pytest.mark.parametrize("name", ROUNDED)
def test_what_is_rounded_is_compared_with_what_it_was(name):
    """Breaks when a float32 answer is compared with its float64 by converting it back.

    XLA takes that for the identity on accelerators, and answers were rounded to the nearest: half
    of the upper bounds were below the truth by 3e-8, and sums in two words were sums in one.
    """
    program = jax.jit(ROUNDED[name]).trace(jnp.float32(1.0)).jaxpr.jaxpr
    assert narrowed_and_back(program) == []


def test_conversions_there_and_back_are_found():
    """Breaks when a conversion to 32 bits and back is overlooked."""
    with jax.enable_x64(True):
        program = jax.make_jaxpr(jax.jit(lambda x: x.astype(jnp.float32).astype(jnp.float64) + x))(
            1.0
        )
        assert len(narrowed_and_back(program.jaxpr)) == 1


def host_calls(function):
    """What a function, lowered for the accelerators, calls by name."""
    exported = jax.export.export(jax.jit(function), platforms=PLATFORMS)
    module = exported(jax.ShapeDtypeStruct((4,), jnp.float32)).mlir_module()
    return re.findall(r"custom_call @([\w.]+)", module)


def test_calls_are_found():
    """Breaks when a callback, or a routine that is no XLA operation, is overlooked."""

    def back(x):
        return jax.pure_callback(np.sin, x, x)

    with pytest.raises(NotImplementedError, match="callback"):  # the lowering itself refuses it
        host_calls(back)
    assert host_calls(lambda x: jnp.linalg.eigvalsh(x[:, None] * x))


@pytest.mark.parametrize("name", QUERIES)
def test_a_query_lowers_for_accelerators(name, monkeypatch):
    """Breaks when a query calls back to the host, needs a library beside XLA, or grows loops."""
    function, steps, loops = QUERIES[name]
    monkeypatch.setattr(_devices, "platform_of", lambda leaves: "gpu")  # as where one is at hand
    assert host_calls(function) == []
    program = jax.jit(function).trace(jnp.ones(4, jnp.float32)).jaxpr.jaxpr
    # XLA takes such a sum for one over a wider window, of which a GPU makes no tree: its cost is
    # quadratic (half of an epsilon's time, on an H200).
    assert padded_sums(program) == []
    found = sequential(program)
    assert found[0] <= steps
    assert found[1] <= loops


def largest_array(jaxpr) -> int:
    """How many numbers the largest array has that a program works out."""
    inner = itertools.chain(*(_programs(e.params) for e in jaxpr.eqns))
    sizes = (int(np.prod(v.aval.shape)) for e in jaxpr.eqns for v in e.outvars)
    return max([0, *sizes, *map(largest_array, inner)])


@pytest.mark.parametrize("family", [jaxdp.FinitePair, jaxdp.LossDistribution])
def test_many_outcomes_are_not_compared_with_every_threshold(family):
    """Breaks when intervals of a long table are not sums of a tree: 2e7 numbers, and seconds."""
    p = np.arange(1.0, 4001.0)
    p /= p.sum()
    if family is jaxdp.FinitePair:
        step = jaxdp.FinitePair(p, p[::-1])
    else:
        step = jaxdp.LossDistribution(np.log(p / p[::-1]), np.log(p))
    run = jaxdp.Composed([step, step])
    with jax.enable_x64(True):
        program = jax.make_jaxpr(lambda d: jaxdp.epsilon(run, d, direction="remove"))(1e-5)
    assert 4000 <= largest_array(program.jaxpr) < 2**20
