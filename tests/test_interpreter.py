"""Programs as NumPy runs them, beside the same programs compiled."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import calibrate
import jaxdp
from jaxdp import _devices, _interpreter, _x64
from jaxdp._interpreter import _code, _cost

NUMBERS = np.array([-np.inf, -3.7, -2.5, -1.0, -0.3, -0.0, 0.0, 1e-300, 0.4, 0.5, 1.5, 2.0, np.nan])
POSITIVE = np.array([0.0, 1e-300, 0.2, 0.5, 1.0, 1.5, 700.0, np.inf, np.nan])
INTEGERS = np.array([-7, -2, -1, 1, 2, 7], np.int32)
TABLE = np.random.default_rng(0).normal(size=(5, 4, 3))
PLACES = np.array([[0, 3], [4, -1], [9, 2]])

_UNARY = [
    *(jnp.abs, jnp.ceil, jnp.floor, jnp.sign, jnp.negative, jnp.square, jnp.isfinite, lax.cbrt),
    *(jnp.exp, jnp.exp2, jnp.expm1, jnp.log, jnp.log1p, jnp.sqrt, lax.rsqrt, lax.logistic),
    *(jnp.sin, jnp.cos, jnp.tan, jnp.sinh, jnp.cosh, jnp.tanh),
    *(jnp.arcsin, jnp.arccos, jnp.arctan, jnp.arcsinh, jnp.arccosh, jnp.arctanh),
]
_OFF = {"cbrt", "sinh", "cosh", "arctanh"}  # XLA's are, by more than a few units
_BINARY = [
    *(lax.add, lax.sub, lax.mul, lax.div, lax.max, lax.min, lax.pow, lax.rem, lax.atan2),
    *(lax.nextafter, lax.eq, lax.ne, lax.lt, lax.le, lax.gt, lax.ge, lax.complex),
]
_OF_INTEGERS = [
    *(lax.div, lax.rem, lax.bitwise_and, lax.bitwise_or, lax.bitwise_xor, lax.shift_left),
    lax.shift_right_arithmetic,
]
_ROUNDING = lax.RoundingMethod
_RUNNING = [lax.cumsum, lax.cumprod, lax.cummax, lax.cummin, lax.cumlogsumexp]


def _total(x, y):
    return (
        jax.extend.core.primitives.lt_to_p.bind(x, y),
        jax.extend.core.primitives.le_to_p.bind(x, y),
    )


def _pairs(functions, x):
    left, right = (a.ravel() for a in np.meshgrid(x, x))
    return {f"{f.__name__}-{x.dtype}": (f, (left, right)) for f in functions}


def _loop(x):
    def inner(c):
        return c[0] + 1, c[1] * 0.5 + x

    def step(carry, y):
        carry = lax.while_loop(lambda c: c[0] < 3, inner, (0, carry + y))[1]
        return carry, (carry, y > 0.1)

    total, (all_, flags) = lax.scan(step, jnp.zeros(()), x * jnp.arange(4.0), reverse=True)
    grown = lax.while_loop(lambda c: c[0] < 20.0, lambda c: (c[0] * (2.0 + x), c[1] + 1), (1.0, 0))
    return total, all_, flags, lax.fori_loop(0, 3, lambda i, c: c + i * x, x), grown


@jax.custom_jvp
def _clipped(x):
    return jnp.minimum(x, 1.0)


_clipped.defjvps(lambda t, _, x: jnp.where(x < 1.0, t, 2.0 * t))


@jax.custom_vjp
def _doubled(x):
    return 2.0 * x


_doubled.defvjp(lambda x: (2.0 * x, x), lambda x, t: (3.0 * t * x,))


def _gathers(x, i):
    batched = jax.vmap(lambda row, j: row[j], (0, None))
    clipped = x.at[i[:, 0], :, i[:, 1]].get(mode="clip")
    filled = x.at[i].get(mode="fill"), x.at[i[:, 0]].get(mode="fill", fill_value=7.0)
    along = jnp.take_along_axis(x[:, :, 0], jnp.argsort(x[:, :, 0], axis=1), axis=1)
    return x[i], batched(x, i % 4), clipped, filled, along, x[..., 1], x[2, i % 4]


def _scatters(x, i):
    flat = x[:, 0, 0]
    at = x.at[i[:, 0], 0]
    batched = jax.vmap(lambda row, j: row.at[j].add(1.5))(x[:3], i)
    return (
        at.add(jnp.ones(3), mode="drop"),
        at.max(0.2, mode="clip"),
        at.min(-0.2),
        x.at[1:3].set(0.0),
        flat.at[jnp.array([1, 1, 9, 2])].add(jnp.arange(4.0)),
        flat.at[jnp.array([4, 0])].set(jnp.arange(2.0)),
        batched,
    )


def _shapes(x):
    parts = jnp.split(x, [1, 3], axis=1)
    there = jnp.stack([x, -x], axis=1)
    return (
        parts,
        jnp.unstack(x, axis=2),
        there,
        lax.expand_dims(x, (1,)),
        x[::2, 1:, ::-1],
        x.transpose(2, 0, 1).reshape(6, 10),
        jnp.broadcast_to(x[:1], (2, 5, 4, 3)[1:]),
        lax.pad(x, 0.5, [(1, 0, 0), (0, 2, 0), (0, 0, 0)]),
        lax.pad(x, 0.5, [(-1, 0, 0), (0, 2, 1), (0, -1, 0)]),
        lax.dynamic_slice(x, (7, -3, 1), (2, 2, 2)),
        lax.dynamic_update_slice(x, x[:2, :2], (7, 1, 0)),
        lax.squeeze(x[:1], (0,)),
        lax.rev(x, (0, 2)),
        jnp.concatenate([x, x[:, :1]], axis=1),
        lax.iota(np.int32, 4),
        lax.broadcasted_iota(np.float64, (2, 3), 1),
        lax.optimization_barrier((x, x + 1.0)),
    )


def _reductions(x):
    return (
        x.sum(axis=(0, 2)),
        x.prod(axis=1),
        x.max(axis=0),
        x.min(),
        (x > 0).all(axis=1),
        (x > 0).any(axis=1),
        x.argmax(axis=2),
        x.argmin(axis=0),
        jnp.sum(jnp.arange(5, dtype=np.int32)),
    )


def _sorts(x):
    keys = jnp.round(x[:, :, 0])
    return jnp.sort(x, axis=1), lax.sort((keys, x[:, :, 1], x[:, :, 2]), dimension=0, num_keys=2)


def _products(x):
    batched = lax.dot_general(x, x, (((2,), (2,)), ((0,), (0,))))
    return batched, x[0] @ x[1].T, x[0] @ x[0, 1], jnp.einsum("ijk,ljk->il", x, x)


def _conversions(x, n):
    kinds = (np.int32, np.int64, bool, np.float32)
    found = [x.astype(kind) for kind in kinds], (x * 1e300).astype(np.int64), n.astype(float)
    bits = [lax.bitcast_convert_type(y, np.int64) for y in (x, x[3])]
    back = lax.bitcast_convert_type(bits[0], np.float64)
    scales = np.array([1.0, 1e-46, 1e-40, 1.1754943e-38, 1.1754944e-38, 1e38, 1e39, 1.0 + 2.0**-24])
    found = found, lax.reduce_precision(scales * x[:, None], 8, 23)
    return found, bits, back, lax.bitcast_convert_type(x, np.int32), (n > 0).astype(np.int32)


def _transforms(x):
    wave = jnp.fft.rfft(x[:, 0, 0])
    whole = jnp.fft.fft(x, axis=1)
    return wave, jnp.fft.irfft(wave, 5), whole, jnp.fft.ifft(whole), whole.real, whole.imag


def _choices(x):
    flags = x > 0.0
    cases = lax.select_n(jnp.array([0, 2, 1]), x[0, 0], x[0, 1], x[0, 2])
    branch = lax.switch(jnp.int32(7), [lambda y: y, lambda y: 2.0 * y], x)
    wide = jnp.where(x[0, 0, 0] > 0.0, x, -x), jnp.broadcast_to(x[:1], (2000, 1, 4, 3))[7]
    return jnp.where(flags, x, -1.0), wide, cases, branch, lax.clamp(-0.1, x, 0.2), ~flags


CASES = {
    **{f.__name__: (f, (np.append(NUMBERS, POSITIVE),)) for f in _UNARY},
    **_pairs(_BINARY, np.append(NUMBERS, 3.0)),
    **_pairs(_OF_INTEGERS, INTEGERS),
    **_pairs([lax.div, lax.rem], np.array([1, 2, 7], np.uint32)),
    **_pairs([_total], NUMBERS),
    "round": (lambda x: [lax.round(x, r) for r in _ROUNDING], (NUMBERS,)),
    "power": (lambda x: [lax.integer_pow(x, n) for n in (-3, -1, 0, 1, 2, 3, 5)], (NUMBERS,)),
    "bits": (lambda n: (~n, ~(n > 0), lax.clamp(np.int32(-1), n, np.int32(1))), (INTEGERS,)),
    "running": (lambda x: [f(x, 1, bool(r)) for f in _RUNNING for r in (0, 1)], (abs(TABLE),)),
    "copy": (lambda x: (jnp.copy(x), jax.jit(lambda y: lax.stop_gradient(y) + 1.0)(x)), (TABLE,)),
    "shapes": (_shapes, (TABLE,)),
    "reductions": (_reductions, (TABLE,)),
    "sorts": (_sorts, (TABLE,)),
    "products": (_products, (TABLE,)),
    "conversions": (_conversions, (NUMBERS, INTEGERS)),
    "transforms": (_transforms, (TABLE,)),
    "choices": (_choices, (TABLE,)),
    "gathers": (_gathers, (TABLE, PLACES)),
    "scatters": (_scatters, (TABLE, PLACES)),
    "loops": (_loop, (0.7,)),
    "batched loops": (jax.vmap(_loop), (TABLE[0, 0],)),
    "gradients": (jax.grad(lambda x: (_clipped(x) + jax.checkpoint(jnp.sin)(x)) * 2.0), (0.5,)),
    "a number for an array": (
        jax.grad(lambda x: jnp.sum(lax.imag(jnp.sin(lax.complex(x, 2.0 * x))))),
        (TABLE,),
    ),
    "a real part": (
        jax.grad(lambda x: jnp.sum(lax.abs(1.0 + jnp.exp(1j * x.astype(jnp.complex128))))),
        (TABLE,),
    ),
    "custom rules": (lambda x: (_clipped(x), _doubled(x), jax.grad(_doubled)(x)), (0.5,)),
    "rare": (lambda x: (jax.scipy.special.gammaln(x), lax.erf_inv(x)), (POSITIVE,)),
}


def _programs(program):
    for equation in getattr(program, "jaxpr", program).eqns:
        yield equation.primitive.name
        for inner in _interpreter.programs(equation.params):
            yield from _programs(inner)


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def accurate(monkeypatch):
    """Whatever this machine's functions are."""
    monkeypatch.setattr(_interpreter, "is_accurate", lambda: True)
    _x64._compiled.cache_clear()


def _traced(function, args):
    return jax.jit(function).trace(*map(jnp.asarray, args)).jaxpr


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore:scatter inputs")
def test_operations(name):
    """Breaks when an operation of NumPy's is another than JAX's, at special values as well."""
    function, args = CASES[name]
    exact = jax.tree.leaves(jax.jit(function)(*map(jnp.asarray, args)))
    found = _interpreter.translated(_traced(function, args)).run(*args)
    assert len(found) == len(exact)
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.dtype == theirs.dtype
        assert np.shape(ours) == theirs.shape
        np.testing.assert_allclose(ours, theirs, rtol=1e-13 if name in _OFF else 4e-15)


def test_every_operation_is_tested():
    """Breaks when an operation has no case above."""
    seen = {name for f, args in CASES.values() for name in _programs(_traced(f, args))}
    # (Other versions of JAX have these, or do not.)
    optional = {
        "add_any",
        "copy_p",
        "lt_to",
        "le_to",
        "stack",
        "unstack",
        "stop_gradient",
        "expand_dims",
    }
    assert _code.MAKERS.keys() - optional <= seen


def test_numbers_that_are_not_used_any_more_are_let_go():
    """Breaks when all that a program computes stays in memory to its end."""
    x = np.ones(10)
    code = _interpreter.translated(_traced(lambda x: jnp.sin(x) * 2.0 + 1.0, (x,)))
    ends = [place for *_, ends in code.instructions for place in ends]
    assert len(set(ends)) == len(ends) == len(code.instructions)  # x and all but the last


def sgd(sigma):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.02), 300)


QUERIES = {
    "epsilon": lambda: jaxdp.epsilon(sgd(1.1), 1e-6),
    "epsilons": lambda: jaxdp.epsilon(sgd(np.linspace(0.8, 2.0, 3)), [1e-9, 1e-6, 1e-3]),
    "bounds": lambda: jaxdp.delta_bounds(jaxdp.Repeated(jaxdp.Laplace(2.0), 30), 1.0),
    "allocation": lambda: jaxdp.epsilon(jaxdp.RandomAllocation(jaxdp.Gaussian(1.5), 20), 1e-5),
    "gradient": lambda: jax.grad(lambda s: jaxdp.epsilon(sgd(s), 1e-5))(1.2),
    "renyi": lambda: jaxdp.renyi(sgd(0.9), np.array([1.0, 2.5, 30.0])),
    "solve": lambda: calibrate.solve(sgd, epsilon=2.0, delta=1e-5).value,
}


@pytest.mark.parametrize("name", QUERIES)
def test_queries_agree(name, accurate, monkeypatch):
    """Breaks when an answer of NumPy's differs from that of the compiled program by more than
    rounding.
    """
    runs = []
    run = _interpreter.Code.run
    monkeypatch.setattr(_interpreter.Code, "run", lambda *a, **k: runs.append(1) or run(*a, **k))
    interpreted = QUERIES[name]()
    assert runs
    monkeypatch.setattr(_interpreter, "is_accurate", lambda: False)
    compiled = QUERIES[name]()
    tolerance = 1e-6 if name == "solve" else 1e-10
    jax.tree.map(
        functools.partial(np.testing.assert_allclose, rtol=tolerance), interpreted, compiled
    )


def _waved(x):
    return jnp.sin(x) * jnp.exp(-x)


def test_a_program_is_compiled_when_it_was_asked_often(accurate, monkeypatch):
    """Breaks when what is asked again and again is interpreted for ever, or never."""
    runs, quick = [], []
    run, compile_ = _interpreter.Code.run, _devices._run_quickly
    monkeypatch.setattr(_interpreter.Code, "run", lambda *a, **k: runs.append(1) or run(*a, **k))
    monkeypatch.setattr(_devices, "_run_quickly", lambda *a: quick.append(1) or compile_(*a))
    costs = _interpreter.costs
    monkeypatch.setattr(
        _interpreter, "costs", lambda p: costs(p)._replace(compilation=4.5 * costs(p).run)
    )
    for _ in range(7):
        found = _x64.evaluate(_waved, 0.5, quick=True)
        np.testing.assert_allclose(found, np.sin(0.5) * np.exp(-0.5), rtol=1e-6)
    assert (len(runs), len(quick)) == (4, 3)
    _x64.evaluate(_waved, np.array([0.5, 1.0]), quick=True)  # row by row
    _x64.evaluate(_waved, 0.5)  # to be compiled in full
    assert (len(runs), len(quick)) == (6, 3)


def test_rows_of_batches_share_a_program(accurate, monkeypatch):
    """Breaks when a batch is traced anew at every size, or its rows and axes change places."""
    traced = []

    def branched(x, y):
        traced.append(1)
        return lax.cond(x > y, lambda: jnp.sin(x), lambda: y + 1.0), jnp.exp(y)

    x, y = np.linspace(0.0, 2.0, 6).reshape(2, 3), np.array([0.5, 1.0, 1.5])
    expected = np.where(x > y, np.sin(x), y + 1.0), np.broadcast_to(np.exp(y), x.shape)
    for rows in (np.s_[:, :], np.s_[1, :], np.s_[0, 2]):
        at = x[rows], y[rows[1]]
        found = _x64.evaluate(branched, *at, rounding=("nearest", "nearest"), quick=True)
        for value, exact in zip(found, expected, strict=True):
            np.testing.assert_allclose(value, exact[rows], rtol=1e-6)
    assert len(traced) == 1


def test_a_loop_that_does_not_end_is_compiled(accurate, monkeypatch):
    """Breaks when a loop of unknown length runs on by NumPy, whatever it takes."""
    code = _interpreter.translated(_traced(_long, (0.5,)))
    with pytest.raises(_interpreter.TooLong):
        code.run(0.5, limit=1e-3)
    quick, compile_ = [], _devices._run_quickly
    monkeypatch.setattr(_devices, "_run_quickly", lambda *a: quick.append(1) or compile_(*a))
    for _ in range(2):
        assert _x64.evaluate(_long, 0.5, quick=True) == 2500.5
    assert len(quick) == 2


def _long(x):
    return lax.while_loop(lambda c: c[1] < 5000, lambda c: (c[0] + x, c[1] + 1), (x, 0))[0]


def test_a_program_that_is_written_in_another_way_is_compiled(accurate, monkeypatch):
    """Breaks when another version of JAX, with other parameters, fails."""

    def other(equation):
        raise KeyError("axes")

    monkeypatch.setitem(_code.MAKERS, "sin", other)
    quick, compile_ = [], _devices._run_quickly
    monkeypatch.setattr(_devices, "_run_quickly", lambda *a: quick.append(1) or compile_(*a))
    np.testing.assert_allclose(_x64.evaluate(_waved, 0.5, quick=True), _waved(0.5), rtol=1e-6)
    assert quick


def test_costs():
    """Breaks when a loop counts once, or all branches do."""

    def looped(x):
        return lax.fori_loop(0, 50, lambda _, c: jnp.sin(c) + x, x)

    def branched(x):
        return lax.cond(x[0] > 0.0, lambda y: looped(y), lambda y: y, x)

    x = np.ones(1000)
    once, loop, branch = (
        _interpreter.costs(_traced(f, (x,))) for f in (lambda x: jnp.sin(x) + x, looped, branched)
    )
    assert 40.0 * once.run < loop.run < 70.0 * once.run
    assert loop.run < branch.run < 1.2 * loop.run
    assert once.compilation < loop.compilation < branch.compilation < 20.0 * once.compilation
    wide = _interpreter.costs(_traced(looped, (np.ones(100_000),)))
    assert wide.overhead == loop.overhead < loop.run < wide.run
    assert wide.compilation == loop.compilation


def test_what_is_not_accurate_is_seen(monkeypatch):
    """Breaks when a NumPy whose functions are off by 4 u is used."""
    assert _cost._is_near(np.exp, np.linspace(-700.0, 700.0, 1000))

    def off(x):
        return np.exp(x) * (1.0 + 2.0**-51 * (x.dtype == np.float64))

    assert not _cost._is_near(off, np.linspace(-700.0, 700.0, 1000))


def test_answers_stay_where_their_arguments_are(accurate):
    """Breaks when an answer about an array on one device is on another."""
    device = jax.devices("cpu")[0]
    sigma = jax.device_put(jnp.float32(1.3), device)
    found = jaxdp.epsilon(sgd(sigma), 1e-5)
    assert found.devices() == {device}
    assert found.committed
    assert not jaxdp.epsilon(sgd(1.3), 1e-5).committed
