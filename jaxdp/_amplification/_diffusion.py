"""Diffusion mechanisms: the intrinsic sensitivity of a symmetric diffusion semigroup.

Theorem 6 of Balle, Barthe, Gaboardi & Geumlek 2019 (arXiv 1905.12264): with the carré du champ
Gamma of the generator and the kernel p_t, the mechanism P_t(f(D)) has R_alpha <= alpha Lambda(t),

    Lambda(t) = sup_{D ~ D'} int_t^inf kappa_{f(D), f(D')}(s) ds,
    kappa_{x, x'}(s) = sup_y Gamma(log p_s(x, .)/p_s(x', .))(y).

What must never change: a number that rests on quadrature or on a search says so
(`IntrinsicSensitivity.guarantee`, `.error`). `jaxdp.Brownian` and `jaxdp.OrnsteinUhlenbeck` are
the certified closed-form members.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _x64
from jaxdp._amplification._arrays import Vector
from jaxdp._amplification._search import box_grid, maximise_on_box

Guarantee = Literal["exact", "upper bound", "numerical"]

# Exp-sinh quadrature s = t + t exp(pi/2 sinh v): doubly exponential decay at both ends.
_HALF_NODES = 96
_NODES = np.linspace(-4.2, 4.2, 2 * _HALF_NODES + 1)
_STEP = float(_NODES[1] - _NODES[0])
_ROUNDING = 2.0**-44
_GRADIENT = 2.0**-48  # relative: of a gradient by autodiff, a few operations
_LOST = 2.3e-308  # above what arithmetic may take for 0


@dataclasses.dataclass(frozen=True)
class IntrinsicSensitivity:
    """Lambda(t) of a diffusion mechanism, with what is known about its accuracy.

    Attributes:
      value: Lambda; the mechanism has R_alpha <= alpha Lambda, that is Lambda-zCDP, if exact.
      error: estimate (not a proof) of the absolute error, of the quadrature in time and of
        rounding; 0 only where the value is exact.
      guarantee: of the supremum over y. "exact": attained at the maximiser given; "upper bound":
        on the domain, with the Lipschitz constant given; "numerical": the best point found.
    """

    value: jax.Array
    error: jax.Array
    guarantee: Guarantee

    def renyi(self, alpha: ArrayLike) -> jax.Array:
        """alpha (Lambda + error): numerical, as Lambda is."""
        _checks.check("alpha", alpha, _checks.FINITE_KL_ORDER)
        return jnp.asarray(alpha) * (self.value + self.error)


jax.tree_util.register_dataclass(
    IntrinsicSensitivity, data_fields=["value", "error"], meta_fields=["guarantee"]
)


@dataclasses.dataclass(frozen=True)
class Diffusion:
    r"""A symmetric diffusion semigroup dX = u(X) dt + v(X) dW on R^d, given by its functions.

    Generator L f = <u, grad f> + <v v^T, Hess f>/2, carré du champ
    Gamma(f, g) = (L(fg) - f L g - g L f)/2 = <v^T grad f, v^T grad g>/2, by autodiff. The user
    answers for Assumption 1 of Balle et al. 2019 (a reversible invariant measure) and for the
    functions, which must be smooth and free of overflow up to times about 1e25 t.

    The supremum over y in kappa comes from one of: `maximiser` (a formula for a point where it is
    attained: exact), `domain` with `lipschitz` (a Lipschitz constant of y -> Gamma on the box: an
    upper bound), or `domain` alone (a multi-start search: numerical). Lambda integrates kappa in
    time by doubly exponential quadrature and is numerical in every case.

    For constant v = sqrt(2) rho I and a drift u with -(J + J^T)/2 >= theta I everywhere (J its
    Jacobian), `jaxdp.OrnsteinUhlenbeck(theta, rho, t)` is a certified bound without any of this
    (the limit of `NoisyIteration` with L = 1 - theta dt).

    Args:
      drift: (params, y) -> u(y), shape (d,).
      diffusion: (params, y) -> v(y), shape (d, d).
      log_density: (params, t, x, y) -> log p_t(x, y) with respect to any fixed measure in y.
      params: PyTree of real arrays, passed to all functions. Do not close over traced values.
      maximiser: (params, t, x, other) -> y, or None.
      domain: (lower, upper), the box of state space as two tuples of d numbers, or None.
      lipschitz: (params, t, x, other) -> Lipschitz constant on the domain, or None.
      grid: points per axis of the search on the domain (static).

    Raises:
      ValueError: if neither maximiser nor domain is given, or the domain is no box.

    Example:
      >>> import jaxdp
      >>> brownian = jaxdp.Diffusion.brownian()
      >>> found = brownian.intrinsic_sensitivity(1.0, [0.0, 0.0], [1.0, 0.0])
      >>> round(float(found.value), 6), found.guarantee  # Delta^2/(4 t)
      (0.25, 'exact')
    """

    drift: Callable[..., jax.Array]
    diffusion: Callable[..., jax.Array]
    log_density: Callable[..., jax.Array]
    params: Any = ()
    maximiser: Callable[..., jax.Array] | None = None
    domain: tuple[tuple[float, ...], tuple[float, ...]] | None = None
    lipschitz: Callable[..., jax.Array] | None = None
    grid: int = 64

    def __post_init__(self) -> None:
        if self.domain is None:
            if self.maximiser is None:
                raise ValueError("one of maximiser and domain must be given")
            return
        for end in self.domain:
            _checks.check("domain", end, _checks.REAL)
        ends = tuple(tuple(np.ravel(np.asarray(end, np.float64)).tolist()) for end in self.domain)
        box = len(ends) == 2 and len(ends[0]) == len(ends[1])
        if not box or not all(a < b for a, b in zip(*ends, strict=True)):
            got = _checks.shown(self.domain)
            raise ValueError(f"domain must be (lower, upper) with lower < upper, got {got}")
        object.__setattr__(self, "domain", ends)

    @classmethod
    def brownian(cls) -> "Diffusion":
        """Brownian motion dX = sqrt(2) dW: Lambda(t) = Delta^2/(4 t) (Example 5)."""
        return cls.ornstein_uhlenbeck(0.0, 1.0)

    @classmethod
    def ornstein_uhlenbeck(cls, theta: ArrayLike, rho: ArrayLike) -> "Diffusion":
        """dX = -theta X dt + sqrt(2) rho dW: Lambda = theta Delta^2/(2 rho^2 expm1(2 theta t))."""
        _checks.check("theta", theta, _checks.NON_NEGATIVE)
        _checks.check("rho", rho, _checks.POSITIVE)
        return cls(_ou_drift, _ou_diffusion, _ou_log_density, (theta, rho), _middle)

    @property
    def guarantee(self) -> Guarantee:
        """What kappa is: "exact", "upper bound" or "numerical"."""
        if self.maximiser is not None:
            return "exact"
        return "numerical" if self.lipschitz is None else "upper bound"

    def generator(self, f: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
        """L f as a function, in the caller's own precision."""

        def image(y):
            v = self.diffusion(self.params, y)
            drift = jnp.dot(self.drift(self.params, y), jax.grad(f)(y))
            return drift + 0.5 * jnp.sum((v @ v.T) * jax.hessian(f)(y))

        return image

    def carre_du_champ(
        self, f: Callable[[jax.Array], jax.Array], g: Callable[[jax.Array], jax.Array]
    ) -> Callable[[jax.Array], jax.Array]:
        """Gamma(f, g) as a function, in the caller's own precision."""

        def image(y):
            v = self.diffusion(self.params, y)
            return 0.5 * jnp.dot(v.T @ jax.grad(f)(y), v.T @ jax.grad(g)(y))

        return image

    def kappa(self, t: ArrayLike, x: ArrayLike, other: ArrayLike) -> jax.Array:
        """kappa_{x, other}(t); see `guarantee` for what is known of it.

        Args:
          t: time > 0. Any shape.
          x: value of f on one input, shape (..., d).
          other: its value on the neighbouring input, shape (..., d).

        Raises:
          ValueError: for known arguments outside these domains.

        Example:
          >>> import jaxdp
          >>> kappa = jaxdp.Diffusion.brownian().kappa(2.0, [0.0], [4.0])
          >>> round(float(kappa), 6)  # Delta^2/(4 t^2)
          1.0
        """
        return self._evaluate(_kappa, t, x, other, ("up",))[0]

    def intrinsic_sensitivity(
        self, t: ArrayLike, x: ArrayLike, other: ArrayLike
    ) -> IntrinsicSensitivity:
        """Lambda(t) of one pair of values: the integral of kappa from t on, numerically.

        For the guarantee of a mechanism take the maximum over all neighbouring pairs. Nan (never
        a finite value that is too small) where a function overflows.

        Args:
          t: time > 0. Any shape.
          x: value of f on one input, shape (..., d).
          other: its value on the neighbouring input, shape (..., d).

        Raises:
          ValueError: for known arguments outside these domains.

        Example:
          >>> import jaxdp
          >>> ou = jaxdp.Diffusion.ornstein_uhlenbeck(theta=1.0, rho=1.0)
          >>> found = ou.intrinsic_sensitivity(0.5, [0.0], [1.0])
          >>> round(float(found.value), 6), float(found.error) < 1e-8
          (0.290988, True)
        """
        value, error = self._evaluate(_lambda, t, x, other, ("up", "up"))
        return IntrinsicSensitivity(value, error, self.guarantee)

    def _evaluate(self, function, t, x, other, rounding):
        _checks.check("t", t, _checks.POSITIVE)
        points = []
        for name, point in (("x", x), ("other", other)):
            point = _checks.array_of(name, point)
            _checks.check(name, point, _checks.REAL)
            if np.ndim(point) < 1:
                got = _checks.shown(point)
                raise ValueError(f"{name} must be a vector (or a batch of them), got {got}")
            points.append(Vector(point))
        flat, structure = _flatten(self.params)
        model = dataclasses.replace(self, params=None)
        return _x64.evaluate(
            function, t, *points, Vector(flat), rounding=rounding, model=model, structure=structure
        )


jax.tree_util.register_dataclass(
    Diffusion,
    data_fields=["params"],
    meta_fields=[f.name for f in dataclasses.fields(Diffusion) if f.name != "params"],
)


def _flatten(params: Any) -> tuple[Any, Any]:
    """The parameters as one vector, in float64 if all are known, and how to take it apart."""
    leaves, treedef = jax.tree.flatten(params)
    like = jnp if any(isinstance(leaf, jax.Array) for leaf in leaves) else np
    dtype = None if like is jnp else np.float64
    parts = [like.ravel(like.asarray(leaf, dtype)) for leaf in leaves]
    flat = like.concatenate([np.zeros(0, np.float32), *parts]) if leaves else np.zeros(0)
    return flat, (treedef, tuple(np.shape(leaf) for leaf in leaves))


def _unflatten(flat, structure):
    treedef, shapes = structure
    leaves, start = [], 0
    for shape in shapes:
        size = math.prod(shape)
        leaves.append(flat[start : start + size].reshape(shape))
        start += size
    return jax.tree.unflatten(treedef, leaves)


def _energy(model, params, t, x, other, y):
    """Gamma(log p_t(x, .)/p_t(other, .))(y), and an estimate of its rounding error.

    Both gradients are rounded, which is seen in their difference where they nearly agree.
    """

    def gradient(point):
        return jax.grad(lambda z: model.log_density(params, t, point, z))(y)

    image = model.diffusion(params, y).T
    first, second = gradient(x), gradient(other)
    difference = image @ (first - second)
    rounding = _GRADIENT * (jnp.abs(image) @ (jnp.abs(first) + jnp.abs(second)))
    value = 0.5 * jnp.dot(difference, difference)
    # a change r of the difference d moves |d|^2/2 by at most |d| |r| + |r|^2/2
    error = jnp.dot(jnp.abs(difference), rounding) + 0.5 * jnp.dot(rounding, rounding)
    error = error + _ROUNDING * value + _LOST
    return value, jnp.where(jnp.all(x == other), 0.0, error)


def _kappa_at(model, params, t, x, other):
    """kappa, and an estimate of its rounding error."""
    energy = functools.partial(_energy, model, params, t, x, other)
    if model.maximiser is not None:
        return energy(model.maximiser(params, t, x, other))
    constant = None if model.lipschitz is None else model.lipschitz(params, t, x, other)
    lower, upper = model.domain
    search = functools.partial(maximise_on_box, lower=lower, upper=upper, points=model.grid)
    value = search(lambda y: energy(y)[0], lipschitz=constant)
    # of the centres of the cells: the points found lie among them
    centres = jnp.asarray(box_grid(lower, upper, model.grid), jnp.float64)
    errors = jax.lax.map(lambda y: energy(y)[1], centres, batch_size=min(4096, len(centres)))
    return value, jax.lax.stop_gradient(jnp.max(errors))


def _kappa(t, x, other, flat, model, structure):
    value, error = _kappa_at(model, _unflatten(flat.value, structure), t, x.value, other.value)
    return (jnp.where(t > 0.0, value + error, jnp.nan),)


def _lambda(t, x, other, flat, model, structure):
    params = _unflatten(flat.value, structure)

    def term(v):
        """kappa(s) ds/dv and its rounding error; beyond float64's range of e^-x both are 0."""
        stretch = jnp.exp(0.5 * math.pi * jnp.sinh(v))
        kappa, error = _kappa_at(model, params, t * (1.0 + stretch), x.value, other.value)
        factor = t * stretch * 0.5 * math.pi * jnp.cosh(v)
        # the allowance for numbers lost to underflow is made once, for the whole integral
        return kappa * factor, jnp.maximum(error - _LOST, 0.0) * factor

    nodes = jnp.asarray(_NODES, jnp.float64)
    batch = len(_NODES) if model.maximiser is not None else 8
    terms, errors = jax.lax.map(term, nodes, batch_size=batch)
    fine = _STEP * jnp.sum(terms)
    coarse = 2.0 * _STEP * jnp.sum(terms[::2])
    ends = jnp.abs(terms[0]) + jnp.abs(terms[-1])
    # of the coarse rule; that of the fine one is below it, about its square
    error = jnp.abs(fine - coarse) + ends + _ROUNDING * jnp.abs(fine) + _STEP * jnp.sum(errors)
    error = error + jnp.where(jnp.all(x.value == other.value), 0.0, _LOST)
    valid = (t > 0.0) & jnp.all(jnp.isfinite(terms)) & jnp.isfinite(error)
    return jnp.where(valid, fine, jnp.nan), jnp.where(valid, error, jnp.nan)


# --- the closed-form members, given generically -------------------------------------------------


def _ou_drift(params, y):
    return -params[0] * y


def _ou_diffusion(params, y):
    return math.sqrt(2.0) * params[1] * jnp.eye(y.shape[0], dtype=y.dtype)


def _ou_log_density(params, t, x, y):
    """Without the normaliser, which does not depend on x; by differences stable at every t."""
    theta, rho = params
    spread = 4.0 * rho * rho * t * _relative_decay(2.0 * theta * t)
    gap = y - jnp.exp(-theta * t) * x
    return -jnp.dot(gap, gap) / spread


def _relative_decay(z):
    """(1 - e^{-z})/z, 1 at 0."""
    small = jnp.abs(z) < 1e-5
    safe = jnp.where(small, 1.0, z)
    return jnp.where(small, 1.0 - 0.5 * z * (1.0 - z / 3.0), -jnp.expm1(-safe) / safe)


def _middle(params, t, x, other):
    """The log ratio is affine in y, so Gamma is constant: any point attains the supremum.

    Between the two means the gradients have opposite signs, and their difference all its digits.
    """
    return jnp.exp(-params[0] * t) * (0.5 * x + 0.5 * other)
