"""The pair that dominates the sparse vector technique: its curve, law and moments."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _rates
from jaxdp import _special as special
from jaxdp._divergences import SLACK
from jaxdp._mechanisms._base import Base, Direction, mechanism
from jaxdp._mechanisms._finite import RandomizedResponse
from jaxdp._rates_line import least

_ERROR = 1e-13  # of moments, relative
_RESOLVED = 500.0  # of |s| epsilon: panels of the quadrature are 1/128 of it wide


@mechanism
class ShiftedThreshold(Base):
    r"""What one Laplace threshold and c positive answers reveal, of budgets e_1 <= e_2.

    The threshold's noise is Laplace of scale 1/e_1, the pair (P, Q) that of the answers. Couple the
    threshold r under P with r + 1 under Q, densities at a ratio of at most e^{e_1}. Given it, every
    negative answer is at least as likely under Q, and every positive one at least e^{-e_2/c} times:
    a series of answers has at least e^{-e_2} of its P-probability. So the ratio of both, threshold
    and answers, is at most that of two Laplace laws a unit apart, times one of mean 1 that is at
    most e^{e_2}, whose worst law is {0, e^{e_2}}:

    .. math:: H_\gamma(P \| Q) \le f(\gamma) = H^{Laplace(e_1)}_{\gamma e^{-e_2}}.

    The same holds for Q against P, so that H is also below 1 - g + g f(1/g); and H is convex in g.
    With e = e_1 + e_2 and d = e_2 - e_1, the largest convex function below both is the curve of
    Laplace noise of scale 1/e, 1 - e^{(x - e)/2}, for d <= |x| <= e (x = log g), and its chord in g
    for |x| <= d. It is the curve of one symmetric pair: that of the Laplace noise, its losses
    within (-d, d) moved to the ends, ½ e^{-e_2} tanh(d/2) to d and ½ e^{-e_1} tanh(d/2) to -d
    under Q. It is below that of randomised response, of one number epsilon. (Moments by the same
    coupling: Zhu & Wang 2020, "Improving sparse vector technique with Renyi differential privacy",
    have the sum of D_alpha of the threshold and e_2.) Never built by users.

    Args:
      epsilon: e > 0.
      share: d/e in [0, 1), a known number, rounded up: the curve rises with it.
    """

    epsilon: ArrayLike
    share: float = dataclasses.field(metadata={"static": True})

    _domains: ClassVar = {"epsilon": _checks.POSITIVE}

    def _ends(self) -> tuple[jax.Array, jax.Array]:
        top = 1.0 * jnp.asarray(self.epsilon)
        return top, self.share * top

    def _log_atoms(self) -> tuple[jax.Array, jax.Array]:
        """log Q of the losses -d and d."""
        top, d = self._ends()
        size = jnp.log(jnp.tanh(0.5 * d)) - special.LOG_2
        return size - 0.5 * (top - d), size - 0.5 * (top + d)

    def _nodes(self) -> tuple[jax.Array, jax.Array]:
        """Losses and log Q-weights: atoms at -+e and -+d, and between by quadrature."""
        top, d = self._ends()
        x = d + (top - d) * jnp.asarray(_divergences._UNIT_NODES)
        weights = jnp.log(top - d) + jnp.asarray(_divergences._UNIT_LOG_WEIGHTS)
        weights = weights - 2.0 * special.LOG_2 - 0.5 * top
        half = -special.LOG_2 + 0.0 * top
        losses, atoms = [-top, top], [half, half - top]
        if self.share:
            losses, atoms = [*losses, -d, d], [*atoms, *self._log_atoms()]
        loss = jnp.concatenate([jnp.stack(losses), x, -x])
        return loss, jnp.concatenate([jnp.stack(atoms), weights - 0.5 * x, weights + 0.5 * x])

    def _rate(self, s: jax.Array) -> jax.Array:
        return self._sampled_rate(s, jnp.ones(()))

    def _sampled_rate(self, s: jax.Array, q: jax.Array) -> jax.Array:
        loss, log_q = self._nodes()
        top = 1.0 * jnp.asarray(self.epsilon)
        error = jax.lax.stop_gradient(_ERROR + 8.0 * SLACK * (1.0 + jnp.abs(s)) * top)
        value = _rates.discrete_rate(_rates.log_mixture(loss, q), log_q, s, error)
        resolved = (jnp.abs(s) + 1.0) * top < _RESOLVED
        bound = _rates.convex_rate(s, RandomizedResponse(self.epsilon)._rate(s), q)
        return least(value, resolved, bound)

    def _loss_range(self) -> tuple[jax.Array, jax.Array]:
        return -self.epsilon, self.epsilon

    def _symmetric(self) -> bool:
        return True

    def _log_hockey_stick(self, epsilon: jax.Array, direction: Direction, slack: float):
        top, d = self._ends()
        outside = _divergences.laplace_log_hockey_stick(epsilon, top, slack)
        if not self.share:
            return outside
        within = jnp.abs(epsilon) < d
        x = jnp.where(within, epsilon, 0.0)
        ends = _divergences.laplace_log_hockey_stick(jnp.stack([-d, d]), top, slack)
        whole = special.log1mexp(-2.0 * d)
        low = special.log1mexp(x - d) - whole
        high = x - d + special.log1mexp(-d - x) - whole
        off = jax.lax.stop_gradient(8.0 + 4.0 * d + jnp.abs(low) + jnp.abs(high))
        chord = _divergences.log_add(low + ends[0], high + ends[1]) + slack * off
        return jnp.minimum(jnp.where(within, chord, outside), 0.0)

    def _log_masses(self, lo: jax.Array, hi: jax.Array) -> tuple[jax.Array, jax.Array]:
        top, d = self._ends()
        if not self.share:
            return _divergences.laplace_log_masses(lo, hi, top)
        above = _divergences.laplace_log_masses(jnp.maximum(lo, d), jnp.maximum(hi, d), top)
        below = _divergences.laplace_log_masses(jnp.minimum(lo, -d), jnp.minimum(hi, -d), top)
        left, right = self._log_atoms()
        near = jnp.where((lo < -d) & (hi >= -d), left, -jnp.inf)
        far = jnp.where((lo < d) & (hi >= d), right, -jnp.inf)
        q = _divergences.log_add(above[0], below[0], near, far)
        return q, _divergences.log_add(above[1], below[1], near - d, far + d)

    def sample(self, key: jax.Array, value: Any) -> Any:
        """Stands for many mechanisms, none in particular."""
        raise TypeError("ShiftedThreshold stands for many mechanisms: none of them to sample")
