"""What pytest must not collect, and how the suite is compiled."""

import atexit
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

collect_ignore = [] if importlib.util.find_spec("dp_accounting") else ["jaxdp/interop"]
if importlib.util.find_spec("jax_privacy") is None:
    collect_ignore.append("jaxdp/interop/_jax_privacy.py")
if importlib.util.find_spec("opacus") is None or importlib.util.find_spec("torch") is None:
    collect_ignore.append("jaxdp/interop/_opacus.py")

# Nearly all the suite's time is compilation, which XLA's older emitters do in half the time, and
# in a quarter where LLVM optimises nothing (such programs are a few times slower), a tenth less
# where a program is not split for several cores, which other workers have. With XLA_FLAGS
# set, if only to nothing, the suite runs as users do.
_QUICK = (
    "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=0"
    " --xla_cpu_parallel_codegen_split_count=1"
)


def _compiles_with(flags: str) -> bool:
    """Whether this jaxlib knows the flags: it ends the process where it does not."""
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    return subprocess.run(command, env=environment, capture_output=True).returncode == 0


if "XLA_FLAGS" not in os.environ:  # the workers of pytest-xdist have it from here
    os.environ["XLA_FLAGS"] = _QUICK if _compiles_with(_QUICK) else ""

# Programs that several tests or workers need are compiled once a run: JAX's own cache on disk, in
# a folder that goes with the process that made it.
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    _cache = tempfile.mkdtemp(prefix="jaxdp-tests-")
    atexit.register(shutil.rmtree, _cache, ignore_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _cache
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.3")
