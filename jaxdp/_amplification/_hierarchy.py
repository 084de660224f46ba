"""The Ornstein-Uhlenbeck mechanism among others: hierarchies of releases, and when it wins.

Section 5 of Balle, Barthe, Gaboardi & Geumlek 2019 (arXiv 1905.12264).
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _x64
from jaxdp._mechanisms import OrnsteinUhlenbeck, mechanism
from jaxdp._mechanisms._base import add_noise
from jaxdp._mechanisms._gaussian import GaussianDP, GaussianFamily


@mechanism
class HierarchicalRelease(GaussianFamily):
    r"""One Ornstein-Uhlenbeck path read at increasing times: a release for every level of trust.

    Level k sees Y_k = X_{t_k}. By the semigroup property P_{t-s} P_s = P_t each release is a
    post-processing of every earlier one, so *all* levels together cost what the first one alone
    costs, mu(t_1), and a group that is given levels k and later only has mu(t_k) = Delta/(rho
    sqrt((e^{2 theta t_k} - 1)/theta)) (Balle et al. 2019, sections 5 and 6). This mechanism is the
    release of all levels; `level_mu` gives each level's own.

    Args:
      theta: mean reversion >= 0; 0 is Brownian motion scaled by rho.
      rho: noise rate > 0, of dX = -theta X dt + sqrt(2) rho dW.
      times: strictly increasing, > 0, shape (..., levels).
      sensitivity: L2 sensitivity Delta > 0.

    Raises:
      ValueError: for known values outside these domains or times that do not increase.

    Example:
      >>> import jax, jaxdp
      >>> levels = jaxdp.HierarchicalRelease(1.0, 1.0, [0.5, 1.0, 2.0])
      >>> [round(float(mu), 4) for mu in levels.level_mu().mu]
      [0.7629, 0.3956, 0.1366]
      >>> levels.sample(jax.random.key(0), jax.numpy.zeros(4)).shape
      (3, 4)
    """

    theta: ArrayLike
    rho: ArrayLike
    times: ArrayLike
    sensitivity: ArrayLike = 1.0

    _domains: ClassVar = {
        "theta": _checks.NON_NEGATIVE,
        "rho": _checks.POSITIVE,
        "times": _checks.POSITIVE,
        "sensitivity": _checks.POSITIVE,
    }
    _core_ndims: ClassVar = {"times": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not np.shape(self.times) or np.shape(self.times)[-1] == 0:
            raise ValueError("times must have one entry per level along its last axis")
        times = _checks.concrete("times", self.times)
        if times is not None and not np.all(np.diff(times, axis=-1) > 0.0):
            raise ValueError(f"times must be strictly increasing, got {_checks.shown(times)}")

    def _in_domain(self) -> jax.Array:
        return super()._in_domain() & jnp.all(self.times[1:] > self.times[:-1])

    def _mu_ulps(self) -> ArrayLike:
        return 4.0 + 0.5 * self.theta * self.times[..., 0]

    def _mu(self) -> jax.Array:
        return _divergences.ornstein_uhlenbeck_mu(
            self.sensitivity, self.theta, self.rho, self.times[..., 0]
        )

    def level_mu(self) -> GaussianDP:
        """What a group that sees level k and all later ones learns, as one mechanism (..., levels).

        Differentiate a single level through `OrnsteinUhlenbeck(theta, rho, t_k)` instead.
        """
        return GaussianDP(_x64.evaluate(_level_mu, self, rounding="up", differentiable=False))

    def sample(self, key: jax.Array, value: Any) -> Any:
        """All releases of an array or PyTree, each made from the one before; levels lead.

        Y_1 = e^{-theta t_1} value + noise, Y_k = e^{-theta (t_k - t_{k-1})} Y_{k-1} + noise.
        """
        times = jnp.asarray(self.times)
        gaps = jnp.diff(times, prepend=jnp.zeros((1,), times.dtype))
        start = jax.tree.map(lambda v: jnp.asarray(v, jnp.result_type(v, float)), value)

        def step(state, inputs):
            step_key, gap = inputs
            std = jnp.sqrt(_divergences.ornstein_uhlenbeck_variance(self.theta, self.rho, gap))
            shrunk = jax.tree.map(
                lambda v: jnp.asarray(jnp.exp(-self.theta * gap) * v, v.dtype), state
            )
            state = add_noise(
                step_key, shrunk, lambda *a: jnp.asarray(std, a[2]) * jax.random.normal(*a)
            )
            return state, state

        return jax.lax.scan(step, start, (jax.random.split(key, len(gaps)), gaps))[1]


def _level_mu(m):
    mu = _divergences.ornstein_uhlenbeck_mu(m.sensitivity, m.theta, m.rho, m.times)
    return jnp.where(m._in_domain(), mu * (1.0 + 16.0 * _divergences.SLACK), jnp.nan)


def dominates_gaussian(
    m: OrnsteinUhlenbeck,
    norm: ArrayLike,
    dimension: ArrayLike,
    *,
    all_times: bool = False,
) -> jax.Array:
    r"""Whether the OU mechanism's error is at most that of the Gaussian with the same privacy.

    Over all values of norm <= R in R^d, at the mechanism's own t exactly when
    :math:`R^2\theta \le d\rho^2(e^{\theta t} + 1)^2`, and at every t > 0 exactly when
    :math:`R^2\theta \le 4d\rho^2` (the condition of Theorem 8, Balle et al. 2019, which is sharp).

    Args:
      m: an OrnsteinUhlenbeck mechanism.
      norm: R >= 0, bound on the Euclidean norm of the value.
      dimension: d > 0.
      all_times: ask for every t instead of m.t.

    Returns:
      Booleans of the broadcast shape; False where a traced argument is outside its domain.

    Raises:
      ValueError: for known arguments outside these domains. TypeError: if m is no
        OrnsteinUhlenbeck.

    Example:
      >>> import jaxdp
      >>> ou = jaxdp.OrnsteinUhlenbeck(theta=1.0, rho=1.0, t=0.1)
      >>> [bool(jaxdp.dominates_gaussian(ou, norm, 1)) for norm in (2.0, 3.0)]
      [True, False]
    """
    if not isinstance(m, OrnsteinUhlenbeck):
        raise TypeError(f"m must be an OrnsteinUhlenbeck mechanism, got {_checks.shown(m)}")
    _checks.check("norm", norm, _checks.NON_NEGATIVE)
    _checks.check("dimension", dimension, _checks.POSITIVE)
    margin = _x64.evaluate(_margin, m, norm, dimension, differentiable=False, all_times=all_times)
    return margin >= 0.0


def _margin(m, norm, dimension, all_times):
    time = jnp.zeros_like(m.t) if all_times else m.t
    margin = dimension * (m.rho * (jnp.exp(m.theta * time) + 1.0)) ** 2 - norm * norm * m.theta
    valid = m._in_domain() & (norm >= 0.0) & (dimension > 0.0)
    return jnp.where(valid, jnp.sign(margin), jnp.nan)
