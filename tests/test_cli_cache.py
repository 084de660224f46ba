"""Programs that the command line keeps: for every number, for every process, within bounds."""

import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[1]
MAIN = [sys.executable, "-c", "from jaxdp.cli import main; main()"]


def start(home, *arguments):
    """A command with a cache folder of its own, and no other setting for caches."""
    unset = ["JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"]
    unset += ["JAXDP_PROGRAMS"]
    environment = {k: v for k, v in os.environ.items() if k not in unset}
    environment |= {"XDG_CACHE_HOME": str(home), "HOME": str(home), "JAX_PLATFORMS": "cpu"}
    return subprocess.Popen(
        [*MAIN, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=ROOT,
    )


def epsilon(home, sigma, *options, steps=100):
    setting = ["--sigma", str(sigma), "--num-steps", str(steps)]
    return start(home, *options, "epsilon", *setting, "--delta", "1e-5")


def answer(process):
    out, error = process.communicate()
    assert process.returncode == 0, error
    return out


def programs(home):
    kept = [*pathlib.Path(home).rglob("*-cache"), *pathlib.Path(home).rglob("*.traced")]
    return {p.name: p.stat().st_size for p in kept}


def test_programs_are_kept_for_every_number(tmp_path):
    """Breaks when a program is compiled for its numbers, or two processes spoil the folder."""
    both = epsilon(tmp_path, 1.0), epsilon(tmp_path, 2.0)  # at the same time
    first, second = (answer(process) for process in both)
    assert first != second
    kept = programs(tmp_path)
    assert sum(name.endswith(".traced") for name in kept) >= 1
    assert sum(name.endswith("-cache") for name in kept) >= 1
    assert list(tmp_path.rglob(".lockfile")), "JAX keeps the folder within no bounds"

    assert answer(epsilon(tmp_path, 1.5, steps=1000)) not in (first, second)
    assert programs(tmp_path) == kept

    for name in ("*-cache", "*.traced"):  # as a process that is killed may leave them
        for path in tmp_path.rglob(name):
            path.write_bytes(path.read_bytes()[:100])
    assert answer(epsilon(tmp_path, 2.0)) == second


def test_no_cache(tmp_path):
    """Breaks when programs are kept against the user's will, or must be: a folder is no duty."""
    setting = ["epsilon", "--sigma", "1", "--delta", "1e-5"]
    plain = answer(start(tmp_path, "--no-cache", *setting))
    assert list(tmp_path.iterdir()) == []
    unusable = tmp_path / "file"
    unusable.touch()
    assert answer(start(unusable, *setting)) == plain
