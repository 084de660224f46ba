"""An accountant for opacus. Imported on first use alone."""

import math
from typing import Any

import jax
from opacus.accountants.accountant import IAccountant  # pyright: ignore[reportMissingImports]

from jaxdp import _checks, _queries
from jaxdp._mechanisms import Composed, Gaussian, Mechanism, PoissonSampled, Repeated


class OpacusAccountant(IAccountant):
    """For `opacus.accountants.registry`, beside its "rdp", "gdp" and "prv": certified bounds.

    `register_accountant("jaxdp", jaxdp.interop.OpacusAccountant)` once; then
    `PrivacyEngine(accountant="jaxdp")` and `opacus.accountants.utils.get_noise_multiplier(...,
    accountant="jaxdp")` run on it unchanged. As for the others, `history` holds (noise multiplier,
    sample rate, steps), batches are Poisson samples, and a record is added or removed.
    """

    def __init__(self) -> None:
        super().__init__()

    def step(self, *, noise_multiplier: float, sample_rate: float) -> None:
        """Count one step of optimisation."""
        if self.history and self.history[-1][:2] == (noise_multiplier, sample_rate):
            steps = self.history.pop()[2]
            self.history.append((noise_multiplier, sample_rate, steps + 1))
        else:
            self.history.append((noise_multiplier, sample_rate, 1))

    def _run(self) -> Mechanism:
        """What the history describes, equal steps as one."""
        counts: dict[tuple[float, float], int] = {}
        for sigma, rate, steps in self.history:
            counts[sigma, rate] = counts.get((sigma, rate), 0) + int(steps)
        parts = []
        for (sigma, rate), steps in counts.items():
            step: Mechanism = Gaussian(float(sigma))
            if rate != 1.0:
                step = PoissonSampled(step, float(rate))
            parts.append(step if steps == 1 else Repeated(step, steps))
        return parts[0] if len(parts) == 1 else Composed(parts)

    def get_epsilon(self, delta: float, **kwargs: Any) -> float:
        """Certified upper bound on epsilon at delta, of all steps so far.

        Args:
          delta: in [0, 1).
          kwargs: none is needed; those of other accountants are not looked at.

        Returns:
          epsilon, 0 before the first step, inf after one without noise.

        Raises:
          ValueError: for a delta, noise multiplier or sample rate outside its domain.
        """
        target = _checks.number("delta", delta, _checks.DELTA)
        if not self.history:
            return 0.0
        if any(sigma == 0.0 and rate > 0.0 for sigma, rate, _ in self.history):
            return math.inf
        with jax.enable_x64(True):
            return float(_queries.epsilon(self._run(), target))

    def __len__(self) -> int:
        """How many entries the history has, as for opacus's own accountants."""
        return len(self.history)

    @classmethod
    def mechanism(cls) -> str:
        """The name to register it by."""
        return "jaxdp"
