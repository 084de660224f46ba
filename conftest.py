"""What pytest must not collect: modules whose extra is not installed."""

import importlib.util

collect_ignore = [] if importlib.util.find_spec("dp_accounting") else ["jaxdp/interop"]
