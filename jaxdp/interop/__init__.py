"""Interoperation with dp_accounting: its events as mechanisms, and an accountant for its tools.

Needs the extra `interop` (dp-accounting). `AccountantConfig` is jax_privacy's `DpAccountantConfig`
for that accountant, and needs jax_privacy besides: it is imported when it is first asked for.
"""

import importlib.util
from typing import Any

if importlib.util.find_spec("dp_accounting") is None:
    raise ModuleNotFoundError(
        "jaxdp.interop needs dp_accounting: pip install 'jaxdp[interop]'", name="dp_accounting"
    )

from jaxdp.interop._accountant import Accountant as Accountant
from jaxdp.interop._events import UnsupportedEvent as UnsupportedEvent
from jaxdp.interop._events import from_dp_event as from_dp_event
from jaxdp.interop._loss_distributions import (
    from_privacy_loss_distribution as from_privacy_loss_distribution,
)
from jaxdp.interop._loss_distributions import (
    to_privacy_loss_distribution as to_privacy_loss_distribution,
)


def __getattr__(name: str) -> Any:
    if name != "AccountantConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if importlib.util.find_spec("jax_privacy") is None:
        raise ModuleNotFoundError(
            "jaxdp.interop.AccountantConfig needs jax_privacy: pip install jax-privacy",
            name="jax_privacy",
        )
    from jaxdp.interop._jax_privacy import AccountantConfig

    return AccountantConfig
