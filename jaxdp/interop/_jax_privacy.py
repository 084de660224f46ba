"""jax_privacy's analysis and calibration on our accountant. Imported on first use alone."""

import dataclasses
from typing import Any

import dp_accounting as dpa
from jax_privacy.accounting import DpAccountantConfig  # pyright: ignore[reportMissingImports]

from jaxdp._methods import Method
from jaxdp.interop._accountant import Accountant


@dataclasses.dataclass(kw_only=True, slots=True)
class AccountantConfig(DpAccountantConfig):
    """For jax_privacy, in the place of its `PldAccountantConfig` and `RdpAccountantConfig`.

    Attributes:
      neighboring_relation: as for `jaxdp.interop.Accountant`.
      method: as there.
    """

    neighboring_relation: Any = dpa.NeighboringRelation.ADD_OR_REMOVE_ONE
    method: Method | None = None

    def create_accountant(self) -> Accountant:
        """A `jaxdp.interop.Accountant` that has composed nothing yet."""
        return Accountant(self.neighboring_relation, self.method)
