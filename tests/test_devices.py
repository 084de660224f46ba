"""How programs are shared, compiled and divided: none of it may change an answer."""

import collections
import math
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp
from jaxdp import _chunks, _devices, _interpreter, _x64

SIGMA = np.linspace(0.8, 2.0, 3)


@pytest.fixture
def nothing_interpreted(monkeypatch):
    monkeypatch.setattr(_interpreter, "is_accurate", lambda: False)


@pytest.fixture
def compiled(nothing_interpreted):
    """The names of the functions that are compiled (or come from a cache on disk)."""
    names = []
    jax.clear_caches()

    def listen(event, duration, **more):
        if event == "/jax/core/compile/backend_compile_duration":
            names.append(more.get("fun_name"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield names
    jax.monitoring.unregister_event_duration_listener(listen)


def gaussian(sigma):
    return jaxdp.epsilon(jaxdp.Gaussian(sigma), 1e-5)


@pytest.mark.parametrize(
    "call",
    [
        lambda s: gaussian(s),
        lambda s: jax.vmap(lambda x: gaussian(x))(s),
        lambda s: jax.vmap(jax.grad(lambda x: gaussian(x)))(s),
        lambda s: jax.grad(lambda x: jax.vmap(gaussian)(x).sum())(s),
        lambda s: jax.vmap(
            lambda x: jax.vmap(lambda e: jaxdp.delta(jaxdp.Gaussian(x), e), axis_size=3)(s)
        )(s),
        lambda s: jax.vmap(lambda e: calibrate.solve(jaxdp.Gaussian, epsilon=e, delta=1e-5).value)(
            s
        ),
    ],
    ids=["call", "vmap", "vmap-grad", "grad-vmap", "vmap-vmap", "vmap-solve"],
)
def test_a_second_call_compiles_nothing(compiled, call):
    """Breaks when a call makes a program of its own, as a new jax.jit would for every vmap."""
    first = call(jnp.asarray(SIGMA, jnp.float32))
    assert compiled
    compiled.clear()
    second = call(jnp.asarray(SIGMA + 0.25, jnp.float32))
    assert compiled == []
    assert np.all(np.asarray(first) != np.asarray(second))


def test_a_batch_by_vmap_is_the_batch_by_broadcasting(compiled):
    """Breaks when `vmap` compiles what the broadcast call has compiled."""
    sigma = jnp.asarray(SIGMA + 1.0, jnp.float32)
    got = jaxdp.log_delta(jaxdp.Gaussian(sigma), 0.75)
    assert compiled
    compiled.clear()
    np.testing.assert_array_equal(
        jax.vmap(lambda s: jaxdp.log_delta(jaxdp.Gaussian(s), 0.75))(sigma), got
    )
    assert compiled == []


traces = collections.Counter()


def _scaled(x, y):
    traces["scaled"] += 1
    return x * y


def test_programs_that_ask_the_same_share_its_trace():
    """Breaks when a query is traced anew in every program, or shared though a constant differs."""

    def asked(constant):
        return float(jax.jit(lambda x: _x64.evaluate(_scaled, x, constant) + 1.0)(2.0))

    traces.clear()
    assert [asked(3.0), asked(3.0), asked(3.0)] == [7.0, 7.0, 7.0]
    assert traces["scaled"] == 1
    assert asked(np.nextafter(3.0, 4.0)) == 7.0
    assert asked(4.0) == 9.0
    assert asked(jnp.asarray(4.0, jnp.float32)) == 9.0
    assert traces["scaled"] == 4
    large = np.full(10_000, 5.0)
    assert np.all(jax.jit(lambda x: _x64.evaluate(_times, x, large))(2.0) == 10.0)
    large[:] = 6.0  # a constant that is not compared by its bytes is not shared at all
    assert np.all(jax.jit(lambda x: _x64.evaluate(_times, x, large))(2.0) == 12.0)


def _times(x, y):
    return x * y


@pytest.fixture
def on_the_host(nothing_interpreted):
    """Whatever device the suite runs on: options for quick compilation are a CPU's."""
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        yield


@pytest.fixture
def quickly(monkeypatch, on_the_host):
    """Of the calls that were compiled quickly, the options."""
    calls, run = [], _devices._run_quickly
    _x64._compiled.cache_clear()  # and with it the rows that other tests have counted
    # (A jaxlib that lacks an option has the first call run twice.)
    _devices._check_options(_devices.QUICKEST_OPTIONS)

    def spy(function, leaves, options):
        calls.append(options)
        return run(function, leaves, options)

    monkeypatch.setattr(_devices, "_run_quickly", spy)
    return calls


def _waved(x):
    return jnp.sin(x) * jnp.exp(-x)


def test_only_the_first_rows_of_a_shape_are_compiled_quickly(quickly):
    """Breaks when a long batch runs unoptimised, or a loop over scalars does for ever."""
    none, first = _devices.QUICKEST_OPTIONS, _devices.QUICK_OPTIONS
    for _ in range(_devices._QUICK_EVALUATIONS + 3):
        _x64.evaluate(_waved, 0.5, quick=True)
    fewest = _devices._QUICKEST_EVALUATIONS
    assert quickly == [none] * fewest + [first] * (_devices._QUICK_EVALUATIONS - fewest)
    quickly.clear()
    few, rows = _devices._QUICKEST_ROWS, _devices._QUICK_ROWS
    for size in (few, few + 1):
        for _ in range(fewest // few + 1):
            _x64.evaluate(_waved, np.linspace(0.0, 1.0, size), quick=True)
    assert quickly == [none] * (fewest // few) + [first] * (fewest // few + 2)
    quickly.clear()
    for _ in range(_devices._QUICK_EVALUATIONS // rows + 2):
        _x64.evaluate(_waved, np.linspace(0.0, 1.0, rows), quick=True)
    assert quickly == [first] * (_devices._QUICK_EVALUATIONS // rows)
    quickly.clear()
    _x64.evaluate(_waved, np.linspace(0.0, 1.0, rows + 1), quick=True)
    _x64.evaluate(_waved, np.linspace(0.0, 1.0, 7))
    assert quickly == []
    for _ in range(2):  # however many rows, however often
        _x64.evaluate(_waved, np.linspace(0.0, 1.0, rows + 1), quick="always")
    assert len(quickly) == 2


def test_no_option_enters_a_program_of_the_user(quickly):
    """Breaks when what is known inside a traced function is compiled apart: JAX refuses options
    there, and the answer belongs to the user's program.
    """
    jax.jit(lambda: _x64.evaluate(_waved, 0.25, quick=True))()
    jax.jit(lambda x: x + _x64.evaluate(_waved, 0.25, quick=True))(1.0)
    jax.lax.switch(1, [lambda: _x64.evaluate(_waved, 0.25, quick=True)] * 2)
    jax.grad(lambda x: x * jax.jit(lambda: _x64.evaluate(_waved, 0.25, quick=True))())(1.0)
    jax.lax.scan(lambda c, _: (c + _x64.evaluate(_waved, 0.25, quick=True), None), 0.0, None, 2)
    jax.vmap(lambda x: _x64.evaluate(_waved, x, quick=True) * jax.jit(lambda y: y)(x))(SIGMA)
    jax.jit(jax.grad(lambda x: _x64.evaluate(_waved, x, quick=True)))(0.25)
    assert len(quickly) == 1  # the batch, which runs by itself
    _x64.evaluate(_waved, 0.25, quick=True)
    assert len(quickly) == 2


@pytest.mark.parametrize("derivative", [jax.grad, jax.jacrev])
def test_derivatives_at_known_values_are_compiled_quickly(quickly, derivative):
    """Breaks when jax.grad, called by itself, waits for a program in full."""
    slope = derivative(lambda x: _x64.evaluate(_waved, x, quick=True))
    wanted = math.exp(-0.25) * (math.cos(0.25) - math.sin(0.25))
    assert math.isclose(slope(0.25), wanted, rel_tol=1e-6)
    assert len(quickly) == 1
    assert math.isclose(jax.jit(slope)(0.25), wanted, rel_tol=1e-6)
    assert len(quickly) == 1


@pytest.mark.slow
def test_programs_agree_however_they_are_optimised(monkeypatch):
    """Breaks when fewer optimisations change more than the last digits of a certified bound: when
    a cell of the law below counts on how a number was rounded, say.
    """
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000.0)
    with jax.enable_x64(True):
        quickest = jaxdp.epsilon_bounds(run, 1e-6)
        monkeypatch.setattr(_devices, "QUICKEST_OPTIONS", _devices.QUICK_OPTIONS)
        np.testing.assert_allclose(quickest, jaxdp.epsilon_bounds(run, 1e-6), rtol=1e-9)


@pytest.mark.usefixtures("on_the_host")
def test_an_option_that_is_unknown_is_left_out(monkeypatch):
    """Breaks when another jaxlib, without one of the options, fails or compiles all in full."""
    known = "xla_backend_optimization_level"
    options = {"xla_there_is_no_such_option": True, known: 0}
    monkeypatch.setattr(_devices, "QUICKEST_OPTIONS", options)
    monkeypatch.setattr(_devices, "_unknown_options", set())
    got = _x64.evaluate(_waved, np.array([0.5, 1.5]), quick=True)
    np.testing.assert_allclose(got, [np.sin(x) * np.exp(-x) for x in (0.5, 1.5)], rtol=1e-6)
    assert _devices._known(options) == {known: 0}
    with pytest.raises(jax.errors.JaxRuntimeError):  # and what fails for another reason still does
        _devices._run_quickly(_without_memory, [np.float32(1.0)], options)


def _without_memory(leaves):
    raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED")


class Device:
    """A device with a memory, as accelerators are."""

    def __init__(self, platform, memory):
        self.platform, self._memory = platform, memory

    def memory_stats(self):
        return self._memory and {"bytes_limit": self._memory}


@pytest.mark.parametrize(
    ("device", "rows"),
    [
        (Device("cpu", None), 8),
        (Device("gpu", 105e9), 4096),
        (Device("gpu", 30e9), 1024),
        (Device("gpu", 12e9), 512),
        (Device("tpu", None), 512),
        (Device("gpu", 1e6), 8),
    ],
)
def test_the_device_decides_how_many_rows(monkeypatch, device, rows):
    """Breaks when an accelerator works through a batch in the small steps of a CPU."""
    monkeypatch.setattr(_devices, "device_of", lambda leaves: device)
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000.0)
    assert _chunks.chunk_of(run, None) == rows
    assert _chunks.chunk_of(run, None, chunk=3) == 3
    assert _chunks.chunk_of(run, jaxdp.Renyi()) == max(32, rows // 2 if rows > 8 else 0)
    assert _chunks.chunk_of(jaxdp.Gaussian(1.0), None) is None
    finer = _chunks.chunk_of(run, jaxdp.Numerical(2**17))
    assert finer == max(8, rows // 8)


def test_the_device_of_arguments():
    """Breaks when arrays on a device other than the default one are not asked for theirs."""
    here = jax.devices()[0]
    assert _devices.device_of([1.0, jnp.ones(2)]) == here
    with jax.default_device(here):
        assert _devices.device_of([1.0]) == here
    assert _devices.memory_of(here) > 0


def test_a_chunk_changes_no_answer():
    """Breaks when the rows of a batch that is divided are lost, doubled or out of order."""
    sigma = np.linspace(0.5, 3.0, 7)
    want = np.asarray(gaussian(sigma))
    for chunk in (1, 3, 7, 100):
        np.testing.assert_array_equal(jaxdp.epsilon(jaxdp.Gaussian(sigma), 1e-5, chunk=chunk), want)
    solved = calibrate.solve(jaxdp.Gaussian, epsilon=sigma, delta=1e-5).value
    np.testing.assert_allclose(
        calibrate.solve(jaxdp.Gaussian, epsilon=sigma, delta=1e-5, chunk=2).value, solved, rtol=1e-6
    )
    np.testing.assert_allclose(
        jaxdp.renyi(jaxdp.Laplace(sigma), 3.0, chunk=2), jaxdp.renyi(jaxdp.Laplace(sigma), 3.0)
    )


@pytest.mark.parametrize("chunk", [0, 2.5, True])
@pytest.mark.parametrize(
    "query",
    [
        lambda c: jaxdp.epsilon(jaxdp.Gaussian(1.0), 1e-5, chunk=c),
        lambda c: jaxdp.renyi(jaxdp.Gaussian(1.0), 2.0, chunk=c),
        lambda c: jaxdp.advantage(jaxdp.Gaussian(1.0), chunk=c),
        lambda c: jaxdp.tradeoff(jaxdp.Gaussian(1.0), 0.5, chunk=c),
        lambda c: jaxdp.privacy_loss(jaxdp.Gaussian(1.0), chunk=c),
        lambda c: calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5, chunk=c),
    ],
)
def test_a_chunk_that_is_no_number_of_rows_is_refused(query, chunk):
    with pytest.raises((ValueError, TypeError), match="chunk"):
        query(chunk)


def test_import_brings_little_beside_jax():
    """Breaks when `import jaxdp` loads what few ask for (`benchmarks.cold` measures the time)."""
    program = """
import sys, jax
before = set(sys.modules)
import jaxdp
print(*sorted(set(sys.modules) - before))
"""
    options = {"capture_output": True, "text": True, "check": True}
    loaded = subprocess.run([sys.executable, "-c", program], **options).stdout.split()
    assert {name.split(".")[0] for name in loaded} <= {"jaxdp", "jax", "numpy", "fractions"}
    rooms = {".".join(name.split(".")[:2]) for name in loaded}
    assert rooms.isdisjoint({f"jaxdp.{name}" for name in ("cli", "interop", "plot", "training")})
