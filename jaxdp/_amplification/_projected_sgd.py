"""Noisy projected SGD on a strongly convex loss: per-record privacy of the last iterate.

Theorem 5 of Balle, Barthe, Gaboardi & Geumlek 2019 (arXiv 1905.12264), after Feldman, Mironov,
Talwar & Thakurta 2018 (arXiv 1808.06651, Theorem 23), as printed and in a sharper form, and the
algorithm itself.
"""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _divergences, _x64
from jaxdp._amplification._shift import STEPS, IterationFamily, log_geometric_sum
from jaxdp._mechanisms import mechanism
from jaxdp._mechanisms._base import add_noise

_UP = 1.0 + 16.0 * _divergences.SLACK


@mechanism
class NoisyProjectedSGD(IterationFamily):
    r"""One pass x_i = Pi(x_{i-1} - eta (grad l(x_{i-1}, z_i) + N(0, sigma^2 I))), x_n released.

    For the record used at step i = `record`, the others fixed (replacement of z_i by any other),

    .. math:: \mu_i^2 = \frac{4 C^2}{\sigma^2} \Big/ \sum_{j=0}^{n-i} L^{-2j}, \qquad
              L = \max(|1 - \eta\rho|, |1 - \eta\beta|)

    and R_alpha = alpha epsilon_i, epsilon_i = mu_i^2/2: a shift of at most 2 eta C, hidden by
    noise eta sigma in step i and all later ones. Sharper than Theorem 5 of Balle et al. 2019
    (`printed_rate`), valid on the wider range eta <= 2/beta, and it is Gaussian DP. A pass uses
    every record once, in an order fixed in advance. For several passes compose:
    `jaxdp.Repeated(sgd, passes)` (which also covers releasing the model after each pass).

    Args:
      lipschitz_constant: C > 0; half of the largest distance between two records' gradients
        suffices, for which a Lipschitz constant of the loss serves.
      smoothness: beta > 0, of every record's loss on the feasible set.
      strong_convexity: rho in [0, beta].
      learning_rate: eta in (0, 2/beta].
      sigma: standard deviation of the noise on the gradient, > 0.
      num_records: n >= 1.
      record: the position i in 1..n of the record in question; the last one, which has the
        least privacy, by default. Any shape: see `per_record`.

    Raises:
      ValueError: for known parameters outside these domains.

    Example:
      >>> import jaxdp
      >>> sgd = jaxdp.NoisyProjectedSGD(1.0, 1.0, 0.5, 1.2, 4.0, num_records=20)
      >>> round(float(jaxdp.renyi(sgd, 2.0)), 6), round(float(jaxdp.epsilon(sgd, 1e-5)), 4)
      (0.25, 1.9931)
      >>> jaxdp.renyi(sgd.per_record(), 2.0).shape
      (20,)
    """

    lipschitz_constant: ArrayLike
    smoothness: ArrayLike
    strong_convexity: ArrayLike
    learning_rate: ArrayLike
    sigma: ArrayLike
    num_records: ArrayLike
    record: ArrayLike | None = None

    _domains: ClassVar = {
        "lipschitz_constant": _checks.POSITIVE,
        "smoothness": _checks.POSITIVE,
        "strong_convexity": _checks.NON_NEGATIVE,
        "learning_rate": _checks.POSITIVE,
        "sigma": _checks.POSITIVE,
        "num_records": STEPS,
        "record": STEPS,
    }

    def __post_init__(self) -> None:
        if self.record is None:
            object.__setattr__(self, "record", self.num_records)
        super().__post_init__()
        names = ("smoothness", "strong_convexity", "learning_rate", "num_records", "record")
        known = {name: _checks.concrete(name, getattr(self, name)) for name in names}
        for limited, limit, text, inside in (
            ("strong_convexity", "smoothness", "<= smoothness", lambda x, y: x <= y),
            ("learning_rate", "smoothness", "<= 2/smoothness", _rate_allowed),
            ("record", "num_records", "<= num_records", lambda x, y: x <= y),
        ):
            a, b = known[limited], known[limit]
            if a is not None and b is not None and not np.all(inside(a, b)):
                got = f"{_checks.shown(a.tolist())} with {limit} = {_checks.shown(b.tolist())}"
                raise ValueError(f"{limited} must be {text}, got {got}")

    def _in_domain(self) -> jax.Array:
        inside = super()._in_domain() & (self.strong_convexity <= self.smoothness)
        allowed = _rate_allowed(self.learning_rate, self.smoothness)
        return inside & allowed & (self.record <= self.num_records)

    def _log_mu(self) -> jax.Array:
        slow = jnp.abs(1.0 - self.learning_rate * self.strong_convexity)
        fast = jnp.abs(1.0 - self.learning_rate * self.smoothness)
        # at a tie, and where L is rounded to 1, the derivative is that of one of the two
        contraction = jnp.where(slow >= fast, slow, fast)
        rounding = jnp.where(contraction > 0.0, 1.5 * _divergences.SLACK, 0.0)  # of 1 - eta rho
        moved = jnp.minimum(contraction + rounding, 1.0)
        contraction = contraction + jax.lax.stop_gradient(moved - contraction)
        count = self.num_records - self.record + 1.0
        own = jnp.log(2.0 * self.lipschitz_constant) - jnp.log(self.sigma)
        forgets = contraction <= 0.0
        log_l = jnp.log(jnp.where(forgets, 1.0, contraction))
        value = own - 0.5 * log_geometric_sum(log_l, jnp.where(count >= 1.0, count, 1.0))
        return jnp.where(forgets, jnp.where(count > 1.0, -jnp.inf, own), value)

    def per_record(self) -> "NoisyProjectedSGD":
        """The guarantees of all records at once: the same mechanism with record = 1, ..., n.

        Raises:
          ValueError: if num_records is traced or not one integer.
        """
        count = _checks.concrete("num_records", self.num_records)
        if count is None or count.ndim or count != count // 1:
            got = _checks.shown(self.num_records)
            raise ValueError(f"num_records must be a known integer, got {got}")
        return self.at_record(np.arange(1, int(count) + 1))

    def at_record(self, record: ArrayLike) -> "NoisyProjectedSGD":
        """The same mechanism for another record (or an array of them)."""
        return NoisyProjectedSGD(
            self.lipschitz_constant,
            self.smoothness,
            self.strong_convexity,
            self.learning_rate,
            self.sigma,
            self.num_records,
            record,
        )

    def rate(self) -> jax.Array:
        r"""epsilon_i of the sharper form: R_alpha = alpha epsilon_i, epsilon_i = mu_i^2/2.

        Example:
          >>> import jaxdp
          >>> sgd = jaxdp.NoisyProjectedSGD(2.0, 1.0, 0.0, 1.0, 10.0, num_records=50, record=1)
          >>> round(float(sgd.rate()), 9), round(float(sgd.printed_rate()), 9)
          (0.0016, 0.001632653)
        """
        return _x64.evaluate(_rate, self, rounding="up")

    def printed_rate(self) -> jax.Array:
        r"""epsilon_i of Theorem 5 as printed, never below `rate`.

        :math:`\frac{2C^2}{(n-i)\sigma^2}(1 - \frac{2\eta\beta\rho}{\beta+\rho})^{(n-i+1)/2}` for
        i < n and 2C^2/sigma^2 at i = n, for eta <= 2/(beta + rho); nan beyond.
        """
        return _x64.evaluate(_printed_rate, self, rounding="up")

    def run(
        self,
        key: jax.Array,
        data: Any,
        loss: Callable[[Any, Any], jax.Array],
        initial: Any,
        *,
        radius: ArrayLike = np.inf,
        center: ArrayLike = 0.0,
        passes: int = 1,
    ) -> Any:
        """Run the algorithm (jitted) and return the last iterate.

        The noise is drawn in the model's own precision by jax.random: for the mathematical
        guarantee, not against floating-point attacks.

        Args:
          key: a jax.random key.
          data: PyTree of arrays whose leading axis is the records, num_records of them, in order.
          loss: (model, record) -> scalar; C-Lipschitz, beta-smooth and rho-strongly convex in the
            model on the ball. A module-level function is compiled once.
          initial: the model before the first step, a PyTree of float arrays independent of data.
          radius: of the ball on which every iterate is projected.
          center: of the ball; a scalar or a PyTree like `initial`.
          passes: how often to go through the data (static).

        Raises:
          ValueError: if the data do not have num_records records, or a known radius is not > 0.
        """
        sizes = {np.shape(leaf)[:1] for leaf in jax.tree.leaves(data)}
        count = _checks.concrete("num_records", self.num_records)
        if len(sizes) != 1 or (count is not None and sizes != {(int(count),)}):
            raise ValueError(f"data must have num_records = {count} records, got {sizes}")
        _checks.check("radius", radius, _checks.Domain("> 0", lambda r: r > 0))
        passes = _checks.whole_number("passes", passes)
        if jax.tree.structure(center) != jax.tree.structure(initial):
            center = jax.tree.map(lambda leaf: jnp.full_like(leaf, center), initial)
        parameters = self.learning_rate, self.sigma, radius, center
        return _run(loss, passes, parameters, key, data, initial)

    def sample(self, key: jax.Array, value: Any) -> Any:
        """value + noise of exactly this privacy, for a value of sensitivity 2 eta C."""
        std = 2.0 * self.learning_rate * self.lipschitz_constant / jnp.asarray(self._mu())
        return add_noise(key, value, lambda *a: jnp.asarray(std, a[2]) * jax.random.normal(*a))


def _rate_allowed(learning_rate, smoothness):
    return learning_rate * smoothness <= 2.0 * _UP


def _rate(m):
    return jnp.where(m._in_domain(), 0.5 * m._mu() ** 2 * _UP, jnp.nan)


def _printed_rate(m):
    beta, rho = m.smoothness, m.strong_convexity
    later = m.num_records - m.record
    own = 2.0 * (m.lipschitz_constant / m.sigma) ** 2
    factor = 1.0 - 2.0 * m.learning_rate * beta * rho / (beta + rho)
    positive = factor > 0.0
    log_power = 0.5 * (later + 1.0) * jnp.log(jnp.where(positive, factor, 1.0))
    value = own / jnp.maximum(later, 1.0) * jnp.where(positive, jnp.exp(log_power), 0.0)
    value = value * (_UP + 4.0 * _divergences.SLACK * jnp.abs(log_power))
    value = jnp.where(later > 0.0, value, own * _UP)
    allowed = m.learning_rate * (beta + rho) <= 2.0 * _UP
    return jnp.where(m._in_domain() & allowed, value, jnp.nan)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _run(loss, passes, parameters, key, data, initial):
    learning_rate, sigma, radius, center = parameters

    def project(model):
        shift = jax.tree.map(jnp.subtract, model, center)
        norm = jnp.sqrt(sum(jnp.sum(leaf * leaf) for leaf in jax.tree.leaves(shift)))
        scale = jnp.minimum(1.0, radius / jnp.maximum(norm, 1e-30))
        return jax.tree.map(lambda c, s: jnp.asarray(c + scale * s, s.dtype), center, shift)

    def step(model, inputs):
        step_key, record = inputs
        gradient = jax.grad(loss)(model, record)
        noisy = add_noise(step_key, gradient, lambda *a: _gaussian(sigma, *a))
        moved = jax.tree.map(lambda x, g: jnp.asarray(x - learning_rate * g, x.dtype), model, noisy)
        return project(moved), None

    def one_pass(model, pass_key):
        count = jax.tree.leaves(data)[0].shape[0]
        return jax.lax.scan(step, model, (jax.random.split(pass_key, count), data))[0], None

    start = project(jax.tree.map(lambda x: jnp.asarray(x, jnp.result_type(x, float)), initial))
    return jax.lax.scan(one_pass, start, jax.random.split(key, passes))[0]


def _gaussian(sigma, key, shape, dtype):
    return jnp.asarray(sigma, dtype) * jax.random.normal(key, shape, dtype)
