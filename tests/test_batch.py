"""Batches: the same results in chunks, on several devices and in several processes."""

import os
import pathlib
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import calibrate
import jaxdp

ROOT = pathlib.Path(__file__).parents[1]
TARGETS = """
import sys
import jax, numpy as np
import calibrate, jaxdp
rng = np.random.default_rng(7)
epsilon, delta = 10 ** rng.uniform(-1, 1, 5001), 10 ** rng.uniform(-12, -3, 5001)
def step(sigma, rate):
    return jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), rate)
rate = np.full(500, 0.01)
def columns(s):
    return np.stack([s.value, s.epsilon, s.delta, s.status])
def exact(**options):
    return columns(calibrate.batch(jaxdp.Gaussian, epsilon=epsilon, delta=delta, **options))
def sampled(**options):
    return columns(calibrate.batch(step, epsilon=np.linspace(0.5, 5, 500), delta=1e-5,
        args=(rate,), **options))
"""


def _environment(**variables):
    return dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu", **variables)


def _targets(count):
    rng = np.random.default_rng(1)
    return 10 ** rng.uniform(-1, 1, count), 10 ** rng.uniform(-12, -3, count)


def test_chunks_are_solve_in_one_program():
    epsilon, delta = _targets(1000)
    calls = []

    def build(sigma, sensitivity):
        calls.append(sigma)
        return jaxdp.Gaussian(sigma, sensitivity)

    sensitivity = np.asarray([[1.0], [3.0]])
    seen = []
    with jax.enable_x64(True):
        options = {"epsilon": epsilon, "delta": delta, "args": (sensitivity,), "chunk": 300}
        many = calibrate.batch(build, **options, progress=lambda *a: seen.append(a))
        traces = len(calls)
        again = calibrate.batch(build, **options)
        assert len(calls) == traces  # no chunk and no second call is compiled anew
        one = calibrate.solve(build, epsilon=epsilon, delta=delta, args=(sensitivity,))
        reached = jaxdp.delta(jaxdp.Gaussian(many.value, sensitivity), epsilon)
    assert many.value.shape == (2, 1000)
    assert many.value.dtype == np.float64
    assert seen == [(n, 2000) for n in (300, 600, 900, 1200, 1500, 1800, 2000)]
    np.testing.assert_array_equal(many.value, again.value)
    for name in ("value", "epsilon", "delta"):
        np.testing.assert_allclose(getattr(many, name), np.asarray(getattr(one, name)), rtol=1e-13)
    assert np.all(many.status == calibrate.Status.SOLVED)
    assert np.all(np.asarray(reached) <= delta)


def test_float32_callers_get_the_safe_side_and_status(monkeypatch, capsys):
    monkeypatch.setattr(calibrate._batch, "_PATIENCE", 1e6)  # (on a slow machine, too)
    epsilon = np.asarray([1e-3, 0.1, 1.0, 10.0])
    bracket = (0.6, 50.0)
    low = calibrate.batch(
        jaxdp.Gaussian, epsilon=list(epsilon), delta=1e-6, bracket=bracket, progress=True
    )
    assert capsys.readouterr().err == "\rcalibrated 4 of 4\n"
    assert low.value.dtype == np.float32
    assert low.status.tolist() == [1, 0, 0, 2]
    assert np.isnan(low.value[0])
    exact = np.asarray(calibrate.solve(jaxdp.Gaussian, epsilon=epsilon, delta=1e-6).value)
    np.testing.assert_array_equal(low.value[1:3], exact[1:3])
    with jax.enable_x64(True):
        reached = jaxdp.delta(jaxdp.Gaussian(low.value[1:].astype(np.float64)), epsilon[1:])
    assert np.all(np.asarray(reached) <= 1e-6)


def test_progress_says_that_it_is_at_work_before_the_first_rows_are_done(monkeypatch, capsys):
    monkeypatch.setattr(calibrate._batch, "_PATIENCE", 1e-4)
    targets = {"epsilon": [0.1, 1.0], "delta": 1e-6}
    calibrate.batch(jaxdp.Gaussian, **targets, progress=True)
    assert capsys.readouterr().err.startswith("Still at work")
    calibrate.batch(jaxdp.Gaussian, **targets, progress=lambda *done: None)
    assert capsys.readouterr().err == ""


def test_scalars_and_empty_batches():
    one = calibrate.batch(jaxdp.Gaussian, epsilon=1.0, delta=1e-5)
    assert one.value.shape == ()
    assert float(one.value) == float(calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5).value)
    none = calibrate.batch(jaxdp.Gaussian, epsilon=np.zeros((0,)) + 1.0, delta=1e-5)
    assert none.value.shape == (0,)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": [0.1, 1.0]}, "delta"),
        ({"chunk": 0}, "chunk"),
        ({"chunk": 2.5}, "chunk"),
        ({"bracket": (2.0, 1.0)}, "bracket"),
        ({"direction": "down"}, "direction"),
    ],
)
def test_bad_arguments_are_named(options, problem):
    with pytest.raises(ValueError, match=problem):
        calibrate.batch(jaxdp.Gaussian, **({"epsilon": 1.0, "delta": 1e-5} | options))
    with pytest.raises(TypeError, match="mechanism"):
        calibrate.batch(lambda v: v, epsilon=1.0, delta=1e-5)


def test_four_devices_give_the_bits_of_one(tmp_path):
    code = (
        TARGETS
        + """
assert jax.device_count() == 4
with jax.enable_x64(True):
    one = jax.sharding.Mesh(np.asarray(jax.devices()[:1]), ("rows",))
    grid = jax.sharding.Mesh(np.asarray(jax.devices()).reshape(2, 2), ("a", "b"))
    for run in (exact, sampled):
        chunk = 50 if run is sampled else 256
        np.testing.assert_array_equal(run(mesh=one, chunk=chunk), run(chunk=chunk))
    np.testing.assert_array_equal(exact(mesh=one, chunk=256), exact(mesh=grid, chunk=256))
    np.testing.assert_allclose(exact(mesh=one), exact(), rtol=1e-13)
    np.save(sys.argv[1], exact(chunk=256))
"""
    )
    saved = tmp_path / "exact.npy"
    subprocess.run(
        [sys.executable, "-c", code, saved],
        env=_environment(XLA_FLAGS="--xla_force_host_platform_device_count=4"),
        check=True,
    )
    assert np.all(np.load(saved)[3] == 0)


def test_two_processes_give_the_bits_of_one(tmp_path):
    """Each calibrates its share, both get the whole; a local mesh keeps the work to itself."""
    code = (
        TARGETS
        + """
rank = int(sys.argv[1])
jax.distributed.initialize(f"127.0.0.1:{sys.argv[2]}", num_processes=2, process_id=rank)
assert jax.process_count() == 2
with jax.enable_x64(True):
    shared = exact(chunk=256)
    whole = jax.sharding.Mesh(np.asarray(jax.devices()), ("rows",))
    np.testing.assert_array_equal(shared, exact(chunk=256, mesh=whole))
    own = jax.sharding.Mesh(np.asarray(jax.local_devices()), ("rows",))
    np.testing.assert_array_equal(shared, exact(chunk=256, mesh=own))
    seen = []
    np.testing.assert_array_equal(shared, exact(progress=lambda *a: seen.append(a), chunk=256))
    assert seen[-1][0] == seen[-1][1] == (2500, 2501)[rank], seen
np.save(f"{sys.argv[3]}/{rank}.npy", shared)
jax.distributed.shutdown()
"""
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(rank), port, tmp_path], env=_environment()
        )
        for rank in (0, 1)
    ]
    try:
        assert [process.wait(timeout=240) for process in running] == [0, 0]
    finally:
        for process in running:
            process.kill()
    first, second = (np.load(tmp_path / f"{rank}.npy") for rank in (0, 1))
    np.testing.assert_array_equal(first, second)
    assert first.shape == (4, 5001)
    assert np.all(first[3] == 0)
