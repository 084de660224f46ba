"""Interoperation with dp_accounting: its events as mechanisms, and an accountant for its tools.

Needs the extra `interop` (dp-accounting). `AccountantConfig` is jax_privacy's `DpAccountantConfig`
for that accountant, and needs jax_privacy besides, as `OpacusAccountant` needs opacus: they are
imported when they are first asked for. `from_batch_selection` reads jax_privacy's strategies.
"""

import importlib
import importlib.util
from typing import Any

if importlib.util.find_spec("dp_accounting") is None:
    raise ModuleNotFoundError(
        "jaxdp.interop needs dp_accounting: pip install 'jaxdp-accounting[interop]'",
        name="dp_accounting",
    )

from jaxdp.interop._accountant import Accountant as Accountant
from jaxdp.interop._batch_selection import from_batch_selection as from_batch_selection
from jaxdp.interop._event_parameters import UnsupportedEvent as UnsupportedEvent
from jaxdp.interop._events import from_dp_event as from_dp_event
from jaxdp.interop._loss_distributions import (
    from_privacy_loss_distribution as from_privacy_loss_distribution,
)
from jaxdp.interop._loss_distributions import (
    to_privacy_loss_distribution as to_privacy_loss_distribution,
)

__all__ = [
    "Accountant",
    "UnsupportedEvent",
    "from_batch_selection",
    "from_dp_event",
    "from_privacy_loss_distribution",
    "to_privacy_loss_distribution",
]

_LAZY = {
    "AccountantConfig": ("jaxdp.interop._jax_privacy", "jax_privacy", "jax-privacy"),
    "OpacusAccountant": ("jaxdp.interop._opacus", "opacus", "opacus"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, needed, package = _LAZY[name]
    if importlib.util.find_spec(needed) is None:
        raise ModuleNotFoundError(
            f"jaxdp.interop.{name} needs {needed}: pip install {package}", name=needed
        )
    return getattr(importlib.import_module(module), name)
