"""Programs as they were traced, kept in a folder: the next process need not trace them again.

JAX's own cache keeps what XLA made of a program, but is asked only once the program is there, and
to trace one takes a fresh process most of the time that is left then (DP-SGD: 1.3 of 1.6 seconds).
Here the program itself is kept, as `jax.export` writes it, under a name of all that it was traced
from: function, structure and options, shapes and types, JAX's configuration, versions, and the
source of these packages. What cannot be named by its content, like a user's own class or the
density of a user's noise, is traced in every process: no name stands for two programs.

A folder is used where one is given: by `in_folder`, as the command line does, or by the environment
variable JAXDP_PROGRAMS.
"""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import os
import pathlib
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax import export
from jax.extend import core

MOST_BYTES = 64 * 2**20  # of a folder: what was used least recently goes first
_OURS = ("jaxdp", "calibrate")
_OTHERS = ("builtins", "numpy", "jax", "jaxlib")  # whose types have names: versions are in them
_SUFFIX = ".traced"
_given: list[pathlib.Path | None] = []


class _NoName(Exception):
    """What was traced from something that has no name by its content."""


@contextlib.contextmanager
def in_folder(where: pathlib.Path | None) -> Iterator[None]:
    """Keep what is traced meanwhile in this folder, or, with None, nowhere."""
    _given.append(where)
    try:
        yield
    finally:
        _given.pop()


def folder() -> pathlib.Path | None:
    """Where programs are kept now."""
    if _given:
        return _given[-1]
    named = os.environ.get("JAXDP_PROGRAMS")
    return pathlib.Path(named).expanduser() if named else None


def type_of(leaf: Any) -> tuple[tuple[int, ...], Any, bool]:
    """What a program knows of an array: its shape, its dtype, and whether that is weak."""
    return np.shape(leaf), np.dtype(leaf.dtype), bool(getattr(leaf, "weak_type", False))


def kept(
    function: Callable[..., Any], leaves: Sequence[Any], where: pathlib.Path
) -> Callable[..., Any]:
    """The function of a list of leaves like these, as it is kept; as it is where it cannot be."""
    if not _can_export():
        return function
    try:
        name = _name((function, [type_of(x) for x in leaves], _surroundings()))
    except _NoName:
        return function
    path = where / (hashlib.sha256(name.encode()).hexdigest() + _SUFFIX)
    exported = _read(path)
    if exported is None:
        kinds = map(type_of, leaves)
        arguments = [jax.ShapeDtypeStruct(s, dtype, weak_type=weak) for s, dtype, weak in kinds]
        try:
            exported = export.export(jax.jit(function))(arguments)
        except (
            NotImplementedError,
            ValueError,
        ):  # some operation that JAX does not promise to keep
            return function
        _write(path, bytes(exported.serialize()))
    call = exported.call
    return lambda arguments: call(arguments)


# Names


@functools.cache
def _sources() -> str:
    """A digest of the source of all that a program may be traced from, but JAX."""
    digest = hashlib.sha256()
    for package in _OURS:
        spec = importlib.util.find_spec(package)
        for root in (spec and spec.submodule_search_locations) or ():
            for path in sorted(pathlib.Path(root).rglob("*.py")):
                digest.update(f"{package}/{path.relative_to(root)}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    versions = [importlib.metadata.version(x) for x in ("jax", "jaxlib", "numpy")]
    return digest.hexdigest() + " ".join(versions)


def _surroundings() -> tuple[Any, ...]:
    # (As they are here and now: a context may have changed them.)
    settings = {key: getattr(jax.config, key, value) for key, value in jax.config.values.items()}
    return _sources(), sorted((key, repr(x)) for key, x in settings.items()), jax.default_backend()


def _name(x: Any) -> str:
    """A text that nothing else has; _NoName where there is none.

    A dataclass is named by its fields, by some of them if its class says so (`_named_by`).
    """
    if x is None or type(x) in (bool, int, str, bytes):
        return f"{type(x).__name__} {x!r}"
    if type(x) is float:
        return f"float {x.hex()}"
    if isinstance(x, np.dtype):
        return f"dtype {x}"
    if isinstance(x, enum.Enum):
        return f"{_qualified(type(x))}.{x.name}"
    if type(x) in (tuple, list):
        return f"{type(x).__name__}({', '.join(map(_name, x))})"
    if isinstance(x, jax.tree_util.PyTreeDef):
        return _structure(x)
    if type(x) is functools.partial:
        return f"partial({_name((x.func, x.args, sorted(x.keywords.items())))})"
    if isinstance(x, type | types.FunctionType):
        return _qualified(x)
    if type(x) is jax.core.ShapedArray:
        return f"array {x.shape} {x.dtype} {x.weak_type}"
    if isinstance(x, core.Primitive):
        if getattr(core.primitives, f"{x.name}_p", None) is x:
            return f"primitive {x.name}"
    elif dataclasses.is_dataclass(x):
        fields = [f.name for f in dataclasses.fields(x)]
        fields = getattr(type(x), "_named_by", fields if vars(x).keys() <= set(fields) else None)
        if fields is not None:
            return f"{_qualified(type(x))}({_name([(f, getattr(x, f)) for f in fields])})"
    raise _NoName


def _qualified(x: Any) -> str:
    """What a module of ours, or of Python, holds under a name of its own."""
    if x is type(None):
        return "None"
    module, name = x.__module__, x.__qualname__
    if module.split(".")[0] not in (_OURS + _OTHERS if isinstance(x, type) else _OURS):
        raise _NoName
    held: Any = importlib.import_module(module)
    for part in name.split("."):
        held = getattr(held, part, None)
    if held is not x:  # a function made in another, or one in the place of another
        raise _NoName
    return f"{module}:{name}"


def _structure(tree: Any) -> str:
    node = tree.node_data()
    if node is None:
        return "*"
    kind, static = node
    return f"{_qualified(kind)}[{_name(static)}]({', '.join(map(_structure, tree.children()))})"


# Files


@functools.cache
def _can_export() -> bool:
    return importlib.util.find_spec("flatbuffers") is not None  # what JAX writes programs with


def _read(path: pathlib.Path) -> Any:
    """The program of a file, None if there is none or it is not whole."""
    try:
        content = path.read_bytes()
        os.utime(path)
    except OSError:
        return None
    check, body = content[:32], content[32:]
    whole = hashlib.sha256(body).digest() == check
    return export.deserialize(bytearray(body)) if whole else None


def _write(path: pathlib.Path, body: bytes) -> None:
    """Under another name first: another process never reads half a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        os.replace(temporary, path)
        _bound(path.parent)
    except OSError:  # a folder is no duty
        pass


def _bound(where: pathlib.Path) -> None:
    files = sorted(where.glob(f"*{_SUFFIX}"), key=lambda p: p.stat().st_mtime)
    total = sum(p.stat().st_size for p in files)
    for path in files[:-1]:
        if total <= MOST_BYTES:
            return
        total -= path.stat().st_size
        path.unlink(missing_ok=True)
