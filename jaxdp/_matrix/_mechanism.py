"""DP-FTRL's release: prefix sums under correlated noise, and what random batches make of it."""

import dataclasses
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jaxdp import _checks, _x64
from jaxdp._allocation import RandomAllocation
from jaxdp._matrix import _estimate, _exchangeable, _few_bins, _linear, _strategies
from jaxdp._matrix._two_bins import LognormalMixture
from jaxdp._mechanisms import (
    Bracketed,
    Composed,
    Direction,
    Gaussian,
    GaussianMixture,
    Mechanism,
    PoissonSampled,
    Repeated,
    mechanism,
)
from jaxdp._mechanisms._gaussian import GaussianDP

_SAMPLINGS = ("balls in bins", "fixed", "cyclic poisson")
_UNIT = 2.0**-52
_LARGEST_LIST = 2**18  # entries of columns that are listed
_BLOCK = LognormalMixture(np.zeros(1), np.zeros(1), np.ones(1))  # what a bound consists of


def _static(default: Any) -> Any:
    return dataclasses.field(default=default, kw_only=True, metadata={"static": True})


@mechanism
class MatrixMechanism(Bracketed):
    r"""Matrix mechanism (DP-FTRL): n adaptive steps whose noise is sigma C^-1 z, not independent.

    With a lower triangular strategy C >= 0, gradients of norm at most 1 per record and step and
    z ~ N(0, I), what is released is C g + sigma z. Its privacy depends on which steps a record is
    in:

    * "balls in bins": every record draws one of b bins and is in the steps j, j + b, j + 2b, ...
      (Chua et al. 2024; Choquette-Choo et al. 2024, arXiv 2410.06266, Lemma 3.2: the worst pair is
      the mixture of N(M_j, sigma^2 I) against N(0, sigma^2 I), M_j the sum of the bin's columns,
      for C >= 0 and adaptive gradients). There is no closed form, and the field samples it. Here
      epsilon and delta are bounded on both sides without sampling: above by pairs that dominate it
      (Kahane's inequality, Loewner order; see the page on matrix mechanisms), below by
      dominated pairs and by tests. At b = 1, and for C a multiple of the identity
      where b divides n, they are exact.
    * "fixed": the same steps in a known order. The Gaussian of sensitivity max_j |M_j|, exact.
    * "cyclic poisson": records are split into b groups; at step i group i mod b is sampled with
      `sampling_probability`. For p <= b bands the columns of a record are disjoint, and the
      run is a composition of Poisson-sampled Gaussians of sensitivity |c|, exact (Choquette-Choo
      et al. 2023, arXiv 2306.08153, Theorem 4 with p bands and groups).

    Neighbours differ in adding or removing one record. Not a part of other mechanisms, as it is
    known from above and below only: `majorant` is what may be composed.

    Args:
      strategy: C, as the first column (p,) of a lower triangular Toeplitz matrix of p <= n
        bands; as a matrix (n, n); or an object with `buf_decay` and `output_scale` (BLT: c_0 = 1,
        c_k = sum_i output_scale_i buf_decay_i^(k-1)), or with `materialize(n)`, those
        of `jax_privacy.matrix_factorization` for example. Entries >= 0, of a column the first one
        > 0; not normalised.
        (Batches of columns are for vmap: an array of two axes is a matrix.)
      sigma: standard deviation of z, > 0, for records of norm 1.
      num_steps: n; needed unless the strategy is a matrix.
      num_bins: b, 1 <= b <= n: steps of an epoch. n by default (one epoch).
      sampling: "balls in bins", "fixed" or "cyclic poisson".
      sampling_probability: in (0, 1], for "cyclic poisson" alone.

    Raises:
      ValueError: if known arguments lie outside these domains, C has a negative entry or one above
        the diagonal, or "cyclic poisson" is asked for with more bands than bins or
        without a Toeplitz strategy.

    Example:
      >>> import jaxdp, numpy as np
      >>> column = np.cumprod(np.append(1.0, 1.0 - 0.5 / np.arange(1, 4)))  # bands of a square root
      >>> run = jaxdp.MatrixMechanism(column, 8.0, num_steps=1000, num_bins=100)
      >>> bool(0.245 < jaxdp.epsilon(run, 1e-4, direction="remove") < 0.29)  # 0.245: Monte Carlo
      True
    """

    strategy: Any
    sigma: ArrayLike
    num_steps: Any = _static(None)
    num_bins: Any = _static(None)
    sampling: str = _static("balls in bins")
    sampling_probability: Any = dataclasses.field(default=None, kw_only=True)

    _domains: ClassVar = {"sigma": _checks.POSITIVE}

    def __post_init__(self) -> None:
        Bracketed.__post_init__(self)
        _checks.check_choice("sampling", self.sampling, _SAMPLINGS)
        steps = self.num_steps
        if steps is not None:
            steps = _checks.whole_number("num_steps", steps, most=2**31 - 1)
        strategy, steps = _strategies.parse(self.strategy, steps)
        bins = steps if self.num_bins is None else self.num_bins
        bins = _checks.whole_number("num_bins", bins, most=steps)
        for name, value in (("strategy", strategy), ("num_steps", steps), ("num_bins", bins)):
            object.__setattr__(self, name, value)
        if self.sampling != "cyclic poisson":
            if self.sampling_probability is not None:
                raise ValueError("sampling_probability is for sampling='cyclic poisson' alone")
            return
        bands = _strategies.bands(strategy)
        if bands is None or bands > bins:
            raise ValueError(
                "strategy must be Toeplitz, of at most num_bins bands, for cyclic Poisson sampling"
            )
        if self.sampling_probability is None:
            raise ValueError("sampling_probability must be given for cyclic Poisson sampling")
        _checks.check("sampling_probability", self.sampling_probability, _checks.RATE)

    @property
    def neighbours(self) -> str | None:
        """Adding or removing one record (sensitivities of 1 are those of one gradient)."""
        return None

    def _in_domain(self) -> jax.Array:
        inside = self._domains["sigma"].contains(self.sigma) & self.strategy.inside()
        if self.sampling == "cyclic poisson":
            inside = inside & _checks.RATE.contains(self.sampling_probability)
        return inside

    def _lags(self) -> _strategies.Lags:
        return _strategies.lags(self.strategy, self.num_steps, self.num_bins)

    def _is_exact(self) -> bool:
        if self.sampling != "balls in bins" or self.num_bins == 1:
            return True
        return _strategies.bands(self.strategy) == 1 and self.num_steps % self.num_bins == 0

    def _exact(self) -> Mechanism:
        if self.sampling == "cyclic poisson":
            return self._cyclic()
        if self.sampling == "fixed" or self.num_bins == 1:
            # (of both bounds on the largest entry the rounding is far below what a query allows)
            norm = jnp.sqrt(self._lags().largest[0])
            return GaussianDP(norm / self.sigma, 8.0)
        entry = jnp.asarray(self.strategy.column)[0]
        epochs = self.num_steps // self.num_bins
        if epochs == 1:
            return RandomAllocation(Gaussian(self.sigma, entry), self.num_bins)
        step = GaussianDP(entry * jnp.sqrt(float(epochs)) / self.sigma, 4.0)
        return RandomAllocation(step, self.num_bins)

    def _cyclic(self) -> Mechanism:
        """The first group is the worst: no other has more steps, or longer columns in them."""
        column, q = jnp.asarray(self.strategy.column), self.sampling_probability
        rounds = -(-self.num_steps // self.num_bins)
        last = column[: self.num_steps - (rounds - 1) * self.num_bins]

        def step(entries: jax.Array) -> Mechanism:
            ulps = 4.0 + entries.shape[0]
            norm = jnp.sqrt(jnp.sum(entries * entries))
            return PoissonSampled(GaussianDP(norm / self.sigma, ulps), q)

        if rounds == 1:
            return step(last)
        if last.shape[0] == column.shape[0]:
            return Repeated(step(column), float(rounds))
        return Composed([Repeated(step(column), float(rounds - 1)), step(last)])

    def _few(self) -> bool:
        """Whether the mixture itself is put on a grid."""
        small = self.num_steps * self.num_bins <= _LARGEST_LIST
        return not self._is_exact() and self.num_bins <= _few_bins.MOST and small

    def _on_boxes(self, side: int) -> Mechanism:
        gram, error = _strategies.gram_of(self.strategy, self.num_steps, self.num_bins)
        return _few_bins.few_bins(gram * (1.0 / self.sigma) ** 2, error, side)

    def _structure(self) -> Mechanism:
        if self._few():
            return _few_bins.OnBoxes(np.zeros(1), np.zeros(1), np.ones(1))
        if not self._is_exact():
            return Composed([GaussianDP(1.0), RandomAllocation(_BLOCK, 2.0)])
        if self.sampling == "cyclic poisson":
            step = PoissonSampled(GaussianDP(1.0), 0.5)
            rounds = -(-self.num_steps // self.num_bins)
            bands = _strategies.bands(self.strategy) or 1
            whole = rounds > 1 and self.num_steps - (rounds - 1) * self.num_bins >= bands
            return Repeated(step, 2.0) if whole else Composed([step] * min(rounds, 2))
        if self.sampling == "fixed" or self.num_bins == 1:
            return GaussianDP(1.0)
        return RandomAllocation(GaussianDP(1.0), 2.0)

    def _above(self, epsilon: jax.Array | None, log_delta: jax.Array | None) -> Mechanism:
        if self._is_exact():
            return self._exact()
        if self._few():
            return self._on_boxes(1)
        candidates = _exchangeable.above(self._lags(), jnp.asarray(self.sigma))
        return _exchangeable.chosen(candidates, epsilon, log_delta).mechanism()

    def _above_for_orders(self) -> Mechanism:
        """Blocks of one bin: those of two have no closed form of theirs."""
        if self._is_exact():
            return self._exact()
        best = _best_of_single_bins(self, None)
        return Composed([GaussianDP(jnp.sqrt(best.common), 4.0), best.single()])

    def _above_plainly(self) -> Mechanism | None:
        """The bins along one axis, each with its own norm, for matrices whose bins differ.

        Entrywise G_ij <= sqrt(G_ii G_jj), which are the inner products of numbers (Kahane). Where
        norms are alike that is a Gaussian: for sigmas from 10^5 on, where lattices are too coarse.
        """
        if self._is_exact():
            return None
        if not isinstance(self.strategy, _strategies.Dense):
            return GaussianDP(jnp.sqrt(self._lags().largest[0]) / self.sigma, 8.0)
        members = _strategies.members(self.strategy, self.num_steps, self.num_bins)
        squares = jnp.sum(members * members, axis=0)
        norms = jnp.sqrt(squares) * (1.0 + _UNIT * (self.num_steps + 16.0)) / self.sigma
        weights = jnp.full(self.num_bins, 1.0 / self.num_bins)
        return GaussianMixture(jnp.ones(()), norms, weights)

    def _below(self, epsilon: jax.Array | None, log_delta: jax.Array | None) -> Mechanism:
        if self._is_exact():
            return self._exact()
        if self._few():
            return self._on_boxes(-1)
        candidates = _exchangeable.below(self._lags(), jnp.asarray(self.sigma))
        return _exchangeable.chosen(candidates, epsilon, log_delta, largest=True).single()

    def _responses(self) -> jax.Array:
        r = _linear.responses(self.strategy, self.num_steps, self.num_bins)
        return r / self.sigma - 2.0 * _UNIT * jnp.abs(r) / self.sigma

    def _least_log_delta(self, epsilon: jax.Array, direction: Direction) -> jax.Array:
        return _linear.log_delta(self._responses(), epsilon, direction)

    def _least_epsilon(self, log_delta: jax.Array, direction: Direction) -> jax.Array:
        return _linear.epsilon(self._responses(), log_delta, direction)

    def _sampler(self) -> Any:
        """What estimates delta."""
        if self.sampling != "balls in bins":
            raise ValueError("m must be sampled by 'balls in bins'; else its epsilon is exact")
        wrong = _estimate.size_error(self.num_steps, self.num_bins)
        if wrong is not None:
            raise ValueError(wrong)
        return _estimate.estimate

    def majorant(self, delta: ArrayLike = 1e-6) -> Mechanism:
        """An ordinary mechanism that dominates this one, in both directions and for all epsilon.

        It may be composed with others, plotted, or asked for its privacy loss, and is chosen to
        be good at `delta`. A Gaussian beside a RandomAllocation; what the run is where
        that is known exactly.

        Args:
          delta: in (0, 1).

        Raises:
          ValueError: for a delta outside (0, 1), or a batch of strategies.

        Example:
          >>> import jaxdp
          >>> run = jaxdp.MatrixMechanism([1.0, 0.5], 2.0, num_steps=60, num_bins=20)
          >>> both = jaxdp.Composed([run.majorant(1e-5), jaxdp.Gaussian(10.0)])
          >>> [type(m).__name__ for m in both.mechanisms]
          ['Composed', 'Gaussian']
        """
        _checks.check("delta", delta, _checks.OPEN_DELTA)
        if _x64.batch_shape((self, delta)) != ():
            raise ValueError("majorant is of one mechanism at one delta, not of a batch")
        rounding = ("up", "up", "nearest")
        if self._is_exact():
            if self.sampling == "cyclic poisson":
                return self._cyclic()
            if self.sampling == "fixed" or self.num_bins == 1:
                return GaussianDP(*_x64.evaluate(_gaussian, self, rounding=("up", "up")))
            if self.num_steps == self.num_bins:
                return self._exact()
            mu, ulps = _x64.evaluate(_gaussian, self, rounding=("up", "up"))
            return RandomAllocation(GaussianDP(mu, ulps), self.num_bins)
        common, one, bins = _x64.evaluate(_dominating, self, delta, rounding=rounding)
        step = RandomAllocation(GaussianDP(one, 4.0), bins)
        return Composed([GaussianDP(common, 4.0), step])

    def sample(self, key: jax.Array, value: Any) -> Any:
        """C g + sigma z for the rows of an array (n, ...) of per-step sums g, in its dtype.

        All at once and with C as a matrix: for tests. (Training streams C^-1 z, step by step.)
        """
        value = jnp.asarray(value)
        if value.ndim < 1 or value.shape[0] != self.num_steps:
            raise ValueError(f"value must have num_steps = {self.num_steps} rows")
        if isinstance(self.strategy, _strategies.Dense):
            matrix = jnp.asarray(self.strategy.matrix)
        else:
            column = self.strategy.coefficients(self.num_steps)
            at = jnp.arange(self.num_steps)
            behind = at[:, None] - at[None, :]
            matrix = jnp.where(behind >= 0, column[jnp.maximum(behind, 0)], 0.0)
        noise = jax.random.normal(key, value.shape, value.dtype)
        mixed = jnp.tensordot(matrix.astype(value.dtype), value, axes=1)
        return mixed + jnp.asarray(self.sigma, value.dtype) * noise


def _gaussian(m: MatrixMechanism) -> tuple[jax.Array, jax.Array]:
    exact = m._exact()
    step = exact.mechanism if isinstance(exact, RandomAllocation) else exact
    return step._mu(), jnp.asarray(step._mu_ulps(), jnp.float64) + 2.0


def _dominating(m: MatrixMechanism, delta: jax.Array) -> tuple[jax.Array, ...]:
    """The best of blocks of one bin, which is of public mechanisms alone."""
    best = _best_of_single_bins(m, jnp.log(delta))
    return jnp.sqrt(best.common), jnp.sqrt(best.pair), best.bins


def _best_of_single_bins(
    m: MatrixMechanism, log_delta: jax.Array | None
) -> _exchangeable.Exchangeable:
    candidates = _exchangeable.above(m._lags(), jnp.asarray(m.sigma), pairs=False)
    return _exchangeable.chosen(candidates, None, log_delta)
