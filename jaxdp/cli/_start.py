"""Starts the command `jaxdp`, and says before JAX is loaded what only then can be said.

XLA prints an alarm ("Very slow compile?") when a program takes it two minutes, which on a busy
machine the larger ones do; it reads how much to log once, as JAX is imported. The command says
itself that it is at work. What goes wrong is raised, not logged. TF_CPP_MIN_LOG_LEVEL, where it is
set, is kept. (Installed as the module `_jaxdp_command`: to import one of `jaxdp` loads JAX.)
"""

import os


def main() -> None:
    """Run the command line."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from jaxdp.cli import main as run

    run()
