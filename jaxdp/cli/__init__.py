"""The command line, `jaxdp`: single settings, calibration, and audits of whole tables.

Needs the extra `cli` (typer, rich, pyarrow, platformdirs). Results shown are rounded to the safe
side: an epsilon, a delta or a noise scale on screen is never smaller than the certified one.
"""

import sys

_EXTRA = {"platformdirs", "pyarrow", "rich", "typer"}


def main() -> None:
    """Run the command line; without its extra, say how to install it."""
    try:
        from jaxdp.cli._app import app
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.exit(f"The command line needs {package}: pip install 'jaxdp-accounting[cli]'")
    app()
