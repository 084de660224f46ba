"""Programs that are kept as they were traced: used again, never in the place of another."""

import dataclasses
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend import core

import calibrate
import jaxdp
from jaxdp import _answers, _programs, _queries, _x64
from jaxdp._programs import _name, _NoName

pytest.importorskip("flatbuffers")
DELTAS = np.array([1e-3, 1e-5])


@pytest.fixture(autouse=True)
def _as_in_another_process():
    _x64._compiled.cache_clear()
    yield
    _x64._compiled.cache_clear()  # what was read from a folder that is gone


def ask(sigma=1.0, delta=1e-5):
    return jaxdp.epsilon(jaxdp.Repeated(jaxdp.Laplace(sigma), 3), delta, method=jaxdp.Renyi((2.0,)))


def files(where):
    return {path.name for path in where.glob("*.traced")}


def test_what_was_traced_is_not_traced_again(tmp_path, monkeypatch):
    """Breaks when programs are kept for their numbers, or not at all, or answer otherwise."""
    plain = ask(), ask(2.0, DELTAS)
    _x64._compiled.cache_clear()
    with _programs.in_folder(tmp_path):
        kept = ask(), ask(2.0, DELTAS)
        assert len(files(tmp_path)) == 2

        def traced(self, leaves):
            raise AssertionError("traced")

        monkeypatch.setattr(_x64._Core, "__call__", traced)
        _x64._compiled.cache_clear()
        again = ask(), ask(2.0, DELTAS)
        other = ask(3.0), ask(5.0, 10 * DELTAS)
        with pytest.raises(AssertionError, match="traced"):
            ask(2.0, np.append(DELTAS, 0.1))  # of another shape
    for found in (kept, again):
        for a, b in zip(found, plain, strict=True):
            np.testing.assert_array_equal(a, b)
    assert other[0] < plain[0]
    monkeypatch.undo()
    np.testing.assert_array_equal(other[1], ask(5.0, 10 * DELTAS))


@pytest.mark.parametrize("content", [b"", b"nothing", b"\0" * 5000])
def test_a_file_that_is_not_whole_is_written_again(tmp_path, content):
    with _programs.in_folder(tmp_path):
        value = ask()
        (path,) = tmp_path.glob("*.traced")
        whole = path.read_bytes()
        path.write_bytes(content or whole[:-100])
        _x64._compiled.cache_clear()
        assert ask() == value
        assert path.stat().st_size == len(whole)


def test_a_folder_that_cannot_be_is_no_duty(tmp_path):
    (tmp_path / "file").touch()
    with _programs.in_folder(tmp_path / "file"):
        assert ask() > 0.0
    with _programs.in_folder(None):
        assert ask(2.0) > 0.0


def test_the_environment_names_a_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("JAXDP_PROGRAMS", raising=False)
    assert _programs.folder() is None
    monkeypatch.setenv("JAXDP_PROGRAMS", str(tmp_path))
    ask()
    assert len(files(tmp_path)) == 1
    with _programs.in_folder(None):
        assert _programs.folder() is None


def test_folders_are_bounded(tmp_path, monkeypatch):
    """Breaks when a folder grows for ever, or what is used goes before what is not."""
    with _programs.in_folder(tmp_path):
        ask()
        (first,) = tmp_path.glob("*.traced")
        ask(2.0, DELTAS)
        (second,) = set(tmp_path.glob("*.traced")) - {first}
        for age, path in ((100, first), (200, second)):
            os.utime(path, (1e9 - age, 1e9 - age))
        _x64._compiled.cache_clear()
        ask(2.0, DELTAS)
        monkeypatch.setattr(_programs, "MOST_BYTES", int(1.5 * second.stat().st_size))
        ask(2.0, np.append(DELTAS, 0.1))
        assert first.name not in files(tmp_path)


STRUCTURES = [
    jaxdp.Gaussian(1.0),
    jaxdp.Laplace(1.0),
    jaxdp.Repeated(jaxdp.Gaussian(1.0), 2),
    jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.5),
    jaxdp.Composed([jaxdp.Gaussian(1.0)]),
    jaxdp.Composed([jaxdp.Gaussian(1.0), jaxdp.Gaussian(1.0)]),
    jaxdp.Composed([jaxdp.Gaussian(1.0), jaxdp.Laplace(1.0)]),
    jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 10),
    jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 10, 2),
    jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 10, 3),
    jaxdp.RandomAllocation(jaxdp.Gaussian(1.0), 10, 1, 2),
]
PARTS = [None, True, 1, 1.0, -0.0, 0.0, "1", b"1", (1,), [1], (), ((1,), 2), (1, (2,)), "None"]
PARTS += [np.dtype("float32"), np.dtype("float64"), jaxdp.Numerical(), jaxdp.Numerical(1024)]
PARTS += [jaxdp.Renyi(), jaxdp.Renyi((2.0,)), jaxdp.Gaussian, jaxdp.Laplace, _answers.log_delta]
PARTS += [_queries.scalar_epsilon, functools.partial(_answers.log_delta, 1)]
PARTS += [core.primitives.mul_p, core.primitives.add_p, np.float32, int, bool, jnp.float64]
PARTS += [
    jax.core.ShapedArray((2,), np.dtype("float32")),
    jax.core.ShapedArray((), np.dtype("int8")),
]
PARTS += [*calibrate.Status][:2]
PARTS += [functools.partial(_answers.log_delta, m=1), jaxdp.Gaussian(1.0), jaxdp.Gaussian(2.0)]


def test_no_name_stands_for_two_programs():
    """Breaks when what a program was traced from is missing in its name."""
    names = [_name(jax.tree.structure(m)) for m in STRUCTURES] + [_name(x) for x in PARTS]
    assert len(set(names)) == len(names)
    assert names == [_name(jax.tree.structure(m)) for m in STRUCTURES] + [_name(x) for x in PARTS]
    weak, strong = jnp.asarray(1.0), jnp.asarray(1.0, jnp.float32)
    assert _programs.type_of(weak) != _programs.type_of(strong)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Own:
    """A user's container."""

    value: float


@dataclasses.dataclass(frozen=True)
class Options:
    """A user's options."""

    size: int = 1


@pytest.mark.parametrize(
    "x",
    [
        lambda x: x,
        Own,
        Options(),
        object(),
        np.ones(2),
        np.float64(1.0),
        jnp.ones(2),
        {"a": 1},
        functools.partial(lambda x: x, 1),
        (1, (2, lambda x: x)),
        jnp.sin,
        core.Primitive("mul"),
        jax.tree.structure(Own(1.0)),
    ],
)
def test_what_has_no_name_by_its_content(x):
    with pytest.raises(_NoName):
        _name(x)


def test_users_own_code_is_traced_in_every_process(tmp_path):
    """Breaks when a changed function of a user's is answered for by what it was before."""
    with _programs.in_folder(tmp_path):
        noise = jaxdp.AdditiveNoise(lambda x: -jnp.abs(x))
        assert float(jaxdp.delta(noise, 0.5)) > 0.0
    assert files(tmp_path) == set()


def test_a_calibrated_function_is_known_by_its_steps(tmp_path):
    """Breaks when functions that build otherwise share a program, or that build alike do not."""
    with _programs.in_folder(tmp_path):
        for function, wanted, number in (
            (lambda s: jaxdp.Gaussian(s, 1.0), 1.0, 1),
            (lambda s: jaxdp.Gaussian(s, 2.0), 2.0, 1),
            (lambda s: jaxdp.Gaussian(s * s, 1.0), 1.0, 2),
            (lambda s: jaxdp.Gaussian(s + s, 1.0), 1.0, 3),
            (lambda s: jaxdp.Repeated(jaxdp.Gaussian(s), 1.0), 1.0, 4),
        ):
            _x64._compiled.cache_clear()
            found = calibrate.solve(function, epsilon=1.0, delta=1e-5)
            sigma = function(found.value)
            sigma = sigma.mechanism if isinstance(sigma, jaxdp.Repeated) else sigma
            assert float(sigma.sigma) == pytest.approx(3.730632 * wanted, rel=1e-6)
            assert len(files(tmp_path)) == number


def test_one_in_the_place_of_another_has_no_name(monkeypatch):
    before = _answers.log_delta
    monkeypatch.setattr(_answers, "log_delta", lambda *x: before(*x))
    for function in (before, _answers.log_delta):
        with pytest.raises(_NoName):
            _name(function)


def test_source_versions_and_settings_are_in_the_name(monkeypatch):
    """Breaks when a program outlives the code that it was traced from."""
    here = _programs._surroundings()
    with jax.default_matmul_precision("bfloat16"):
        assert _programs._surroundings() != here
    monkeypatch.setattr(_programs, "_sources", lambda: "other")
    assert _programs._surroundings() != here
    monkeypatch.undo()
    _programs._sources.cache_clear()
    assert _programs._surroundings() == here
    read = type(_programs.pathlib.Path()).read_bytes
    monkeypatch.setattr(
        type(_programs.pathlib.Path()), "read_bytes", lambda path: read(path) + b"# changed"
    )
    _programs._sources.cache_clear()
    assert _programs._surroundings() != here
    monkeypatch.undo()
    _programs._sources.cache_clear()
