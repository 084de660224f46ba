"""Programs are kept for the next command, traced and compiled, in the user's cache folder."""

import contextlib
import importlib.util
import pathlib
from collections.abc import Iterator

import jax
import platformdirs
from jax.experimental.compilation_cache import compilation_cache

from jaxdp import _programs

MOST_COMPILED = 192 * 2**20  # the programs used least recently go first
MOST_BYTES = MOST_COMPILED + _programs.MOST_BYTES


def folder() -> pathlib.Path:
    """Where programs are kept: ~/.cache/jaxdp, or as the system and XDG_CACHE_HOME have it."""
    return platformdirs.user_cache_path("jaxdp", appauthor=False) / "programs"


@contextlib.contextmanager
def kept_programs() -> Iterator[None]:
    """Keep what is compiled meanwhile, unless the user has a cache, or none can be written.

    Processes may share the folder: a lock guards every read and write, and an entry that cannot be
    read is compiled again. Nothing in an entry's name depends on the numbers that were asked about.
    """
    where = folder()
    if jax.config.values["jax_compilation_cache_dir"] is not None or not _is_usable(where):
        yield
        return
    settings = {
        "jax_compilation_cache_dir": str(where),
        "jax_compilation_cache_max_size": MOST_COMPILED,
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    before = {name: jax.config.values[name] for name in settings}
    _configure(settings)
    try:
        with _programs.in_folder(where):
            yield
    finally:
        _configure(before)


def _configure(settings: dict) -> None:
    for name, value in settings.items():
        jax.config.update(name, value)
    compilation_cache.reset_cache()  # it is opened anew, with these settings


def _is_usable(where: pathlib.Path) -> bool:
    if importlib.util.find_spec("filelock") is None:  # what JAX bounds a cache's size with
        return False
    try:
        where.mkdir(parents=True, exist_ok=True)
        probe = where / ".writable"
        probe.touch()
    except OSError:
        return False
    return True
