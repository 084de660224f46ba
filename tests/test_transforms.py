"""THE table: every public function under every transformation, from 32- and 64-bit callers."""

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp


@dataclasses.dataclass(frozen=True)
class Row:
    """A public name, a function of real numbers that exercises it, and a point to do so at.

    Attributes:
      covers: the public names exercised.
      function: real arrays -> one real array, broadcasting.
      at: the arguments.
      smooth: the positions in which it is differentiable there (none: no gradient is promised).
      side: +1 an upper bound (float32 results are rounded up), -1 a lower one, 0 neither.
      step: relative step of its differences: less than a cell of the lattice, if it has one.
    """

    covers: tuple[str, ...]
    function: Callable
    at: tuple[float, ...]
    smooth: tuple[int, ...]
    side: int = 0
    step: float = 1e-4


def row(name, function, at, smooth=None, side=0, step=1e-4):
    smooth = tuple(range(len(at))) if smooth is None else smooth
    return Row(tuple(name.split()), function, at, smooth, side, step)


def sampled(s, q):
    return jaxdp.PoissonSampled(jaxdp.Laplace(s), q)


def solved(*args):
    *args, e, d = args
    return calibrate.solve(
        lambda v, s: jaxdp.Gaussian(v, s), epsilon=e, delta=d, args=tuple(args)
    ).value


def minimized(e, d):
    return calibrate.minimize(
        lambda p: 2 * p["a"] ** 2 + p["b"] ** 2,
        lambda p: jaxdp.Composed([jaxdp.Gaussian(p["a"]), jaxdp.Gaussian(p["b"])]),
        epsilon=e,
        delta=d,
        init={"a": 3.0, "b": 3.0},
    ).objective


def noise(m):
    return m.sample(jax.random.key(0), jnp.zeros((), jnp.result_type(float)))


TABLE = (
    # queries
    row("hockey_stick Gaussian", lambda s, e: jaxdp.hockey_stick(jaxdp.Gaussian(s), e), (1.3, 0.7)),
    row("delta", lambda s, r, e: jaxdp.delta(jaxdp.Gaussian(s, r), e), (1.3, 0.8, 0.7), side=1),
    row("log_delta", lambda s, e: jaxdp.log_delta(jaxdp.Gaussian(s), e), (0.9, 40.0), side=1),
    row("epsilon", lambda s, d: jaxdp.epsilon(jaxdp.Gaussian(s), d), (1.1, 1e-5), side=1),
    row("renyi", lambda s, a: jaxdp.renyi(jaxdp.Laplace(s), a), (1.1, 2.7)),
    row("tradeoff", lambda s, f: jaxdp.tradeoff(jaxdp.Gaussian(s), f), (1.1, 0.2), side=-1),
    row("advantage", lambda s: jaxdp.advantage(jaxdp.Gaussian(s)), (1.1,), side=1),
    row(
        "delta_bounds",
        lambda s, e: jaxdp.delta_bounds(jaxdp.Gaussian(s), e)[1],
        (1.3, 0.7),
        side=1,
    ),
    row(
        "epsilon_bounds",
        lambda s, d: jaxdp.epsilon_bounds(jaxdp.Gaussian(s), d)[0],
        (1.1, 1e-5),
        side=-1,
    ),
    # mechanisms
    row(
        "replace_one",
        lambda s, e: jaxdp.delta(jaxdp.replace_one(jaxdp.Laplace(s)), e),
        (1.3, 0.7),
        side=1,
    ),
    row("Laplace", lambda s, r, e: jaxdp.delta(jaxdp.Laplace(s, r), e), (1.5, 1.2, 0.2), side=1),
    row(
        "PoissonSampledReplaceOne",
        lambda s, q, e: jaxdp.delta(jaxdp.PoissonSampledReplaceOne(jaxdp.Gaussian(s), q), e),
        (1.3, 0.2, 0.3),
        side=1,
    ),
    row(
        "FixedSizeSampled fixed_size_sampled",
        lambda s, q, e: jaxdp.delta(jaxdp.FixedSizeSampled(jaxdp.Gaussian(s), q), e),
        (1.3, 0.2, 0.3),
        side=1,
    ),
    row(
        "PoissonSampledGroup GaussianMixture",
        lambda s, q, e: jaxdp.delta(jaxdp.PoissonSampledGroup(s, q, 3), e),
        (1.3, 0.1, 0.3),
        side=1,
    ),
    row(
        "PoissonSampledGroupReplaceOne DoubleGaussianMixture",
        lambda s, q, e: jaxdp.delta(jaxdp.PoissonSampledGroupReplaceOne(s, q, 3), e),
        (1.3, 0.1, 0.3),
        side=1,
    ),
    row(
        "FixedSizeGroup",
        lambda s, e: jaxdp.delta(jaxdp.FixedSizeGroup(s, 10, 100, 3), e),
        (1.3, 0.3),
        side=1,
    ),
    row(
        "TruncatedPoissonSampled",
        lambda s, q, e: jaxdp.delta(
            jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(s), q, 3, 10), e, direction="add"
        ),
        (1.3, 0.2, 0.3),
        side=1,
    ),
    row(
        "TruncatedPoissonSampledReplaceOne",
        lambda s, q, e: jaxdp.delta(
            jaxdp.TruncatedPoissonSampledReplaceOne(jaxdp.Gaussian(s), q, 3, 10), e
        ),
        (1.3, 0.2, 0.3),
        side=1,
    ),
    row(
        "Parallel",
        lambda s, e: jaxdp.delta(jaxdp.Parallel([jaxdp.Gaussian(s), jaxdp.Laplace(2.0)]), e),
        (0.8, 0.3),
        side=1,
    ),
    row(
        "cyclic_poisson_sampled",
        lambda s, q, e: jaxdp.delta(
            jaxdp.cyclic_poisson_sampled(jaxdp.Gaussian(s), q, 4, 3), e, direction="add"
        ),
        (1.3, 0.2, 0.3),
        side=1,
    ),
    row(
        "min_sep_sampled",
        lambda s, p, a: jaxdp.renyi(jaxdp.min_sep_sampled(jaxdp.RandomizedResponse(s), p, 2, 3), a),
        (1.3, 0.2, 3.0),
        side=1,
    ),
    row("ConcentratedDP", lambda r, a: jaxdp.renyi(jaxdp.ConcentratedDP(r), a), (0.3, 3), side=1),
    row(
        "RepeatAndSelect",
        lambda s, m, a: jaxdp.renyi(jaxdp.RepeatAndSelect(jaxdp.Gaussian(s), m), a),
        (2.0, 5.0, 3.0),
        side=1,
    ),
    row(
        "ExponentialMechanism", lambda p, e: jaxdp.delta(jaxdp.ExponentialMechanism(p), e), (1, 0.3)
    ),
    row(
        "PermuteAndFlip ReportNoisyMax",
        lambda p, e: jaxdp.delta(jaxdp.PermuteAndFlip(p), e),
        (1, 0.3),
        side=1,
    ),
    row("SparseVector", lambda p, a: jaxdp.renyi(jaxdp.SparseVector(p), a), (1.0, 3.0), side=1),
    row("RandomizedResponse", lambda p, e: jaxdp.delta(jaxdp.RandomizedResponse(p), e), (1, 0.3)),
    row("ApproximateDP", lambda p, d, e: jaxdp.delta(jaxdp.ApproximateDP(p, d), e), (1, 0.1, 0.3)),
    row("Brownian", lambda t, r, e: jaxdp.delta(jaxdp.Brownian(t, r), e), (0.6, 1.2, 0.5), side=1),
    row(
        "OrnsteinUhlenbeck",
        lambda h, r, t, d: jaxdp.epsilon(jaxdp.OrnsteinUhlenbeck(h, r, t), d),
        (0.6, 0.9, 0.5, 1e-4),
        side=1,
    ),
    row(
        "OrnsteinUhlenbeck.mean_squared_error",
        lambda h, r, t, n: jaxdp.OrnsteinUhlenbeck(h, r, t).mean_squared_error(n, 3),
        (0.6, 0.9, 0.5, 2.0),
    ),
    row(
        "OrnsteinUhlenbeck.gaussian_error",
        lambda h, r, t: jaxdp.OrnsteinUhlenbeck(h, r, t).gaussian_error(3),
        (0.6, 0.9, 0.5),
    ),
    row(
        "OrnsteinUhlenbeck.postprocessed_gaussian_error",
        lambda h, r, t, n: jaxdp.OrnsteinUhlenbeck(h, r, t).postprocessed_gaussian_error(n, 3),
        (0.6, 0.9, 0.5, 2.0),
    ),
    row(
        "PoissonSampled",
        lambda s, q, e: jaxdp.delta(jaxdp.PoissonSampled(jaxdp.Gaussian(s), q), e),
        (0.8, 0.2, 0.3),
        side=1,
    ),
    row(
        "Repeated",
        lambda s, q, n, d: jaxdp.epsilon(jaxdp.Repeated(sampled(s, q), n), d),
        (1.0, 0.1, 50.0, 1e-4),
        side=1,
        step=1e-7,
    ),
    row(
        "Composed",
        lambda s, b, e: jaxdp.delta(
            jaxdp.Composed([jaxdp.Gaussian(s), jaxdp.Laplace(b)]), e, method=jaxdp.Renyi()
        ),
        (1.4, 2.0, 1.5),
        side=1,
    ),
    row(
        "Mixture",
        lambda s, b, e: jaxdp.delta(
            jaxdp.Mixture([jaxdp.Gaussian(s), jaxdp.Laplace(b)], [0.3, 0.7]), e
        ),
        (1.4, 2.0, 0.3),
        side=1,
    ),
    # samples: reparametrised, so differentiable in the noise
    row("Gaussian.sample", lambda s: noise(jaxdp.Gaussian(s)), (1.3,)),
    row("Laplace.sample", lambda s: noise(jaxdp.Laplace(s)), (1.3,)),
    row("Brownian.sample", lambda t: noise(jaxdp.Brownian(t)), (1.3,)),
    row(
        "OrnsteinUhlenbeck.sample",
        lambda h, r, t: noise(jaxdp.OrnsteinUhlenbeck(h, r, t)),
        (1.3, 0.4, 0.5),
    ),
    # conversions
    row("renyi_to_epsilon", jaxdp.renyi_to_epsilon, (0.5, 8.0, 1e-5), side=1),
    row("renyi_to_delta", jaxdp.renyi_to_delta, (0.5, 8.0, 1.5), side=1),
    row("zcdp_to_epsilon", jaxdp.zcdp_to_epsilon, (0.3, 1e-5), side=1),
    row("zcdp_to_delta", jaxdp.zcdp_to_delta, (0.3, 3.0), side=1),
    row("zcdp_to_renyi", jaxdp.zcdp_to_renyi, (0.3, 3.0)),
    row("renyi_to_zcdp", jaxdp.renyi_to_zcdp, (0.3, 3.0)),
    row("gdp_to_delta", jaxdp.gdp_to_delta, (0.7, 1.5), side=1),
    row("gdp_to_epsilon", jaxdp.gdp_to_epsilon, (0.7, 1e-4), side=1),
    row("epsilon_delta_to_gdp", jaxdp.epsilon_delta_to_gdp, (1.5, 1e-4), side=-1),
    row("pure_to_renyi", jaxdp.pure_to_renyi, (1.5, 3.0)),
    row("pure_to_zcdp", jaxdp.pure_to_zcdp, (1.5,)),
    row("pure_to_delta", jaxdp.pure_to_delta, (1.5, 0.3), side=1),
    # calibrate
    row("solve Solution", solved, (1.2, 1.5, 1e-4), side=1),
    row("minimize Minimum", minimized, (1.5, 1e-4), smooth=()),
)
IDS = [" ".join(r.covers) for r in TABLE]
every_row = pytest.mark.parametrize("r", TABLE, ids=IDS)
smooth_rows = pytest.mark.parametrize(
    "r", [r for r in TABLE if r.smooth], ids=[" ".join(r.covers) for r in TABLE if r.smooth]
)
NO_NUMBERS = {"Mechanism", "Status"}  # an abstract base, an enumeration
# Static options; tests/test_methods.py and tests/allocation.
METHODS = {"Analytic", "Renyi", "Numerical", "Decomposition", "PosteriorSampling"}


def public(module):
    return {
        name
        for name, thing in vars(module).items()
        if not name.startswith("_") and not isinstance(thing, types.ModuleType)
    }


def test_the_table_is_complete():
    """Breaks when a public name, or a public method that computes, is added without a row.

    Packages, and what runs on the host, are tested in folders and files of their own.
    """
    covered = {name for r in TABLE for name in r.covers}
    elsewhere = public(jaxdp._amplification) | public(jaxdp._noise) | public(jaxdp._allocation)
    elsewhere |= public(jaxdp._matrix) | {"strategy", "LearnedStrategy"}  # tests/matrix
    elsewhere |= {"ornstein_uhlenbeck", "ornstein_uhlenbeck_renyi", "gdl_decay"}
    elsewhere |= {"PrivacyLoss", "privacy_loss"}  # tests/law
    elsewhere |= {"Schedule", "schedule", "LearnedSchedule", "batch"}  # test_schedule, test_batch
    elsewhere |= {"solve_integer"}  # tests/allocation
    elsewhere |= {"Shortfall"}  # test_calibrate; not under transformations
    elsewhere |= {"CustomMechanism", "dp_sgd"}  # test_custom_mechanism, test_builders
    elsewhere |= {"intersection", "group_privacy", "decomposed"}  # tests/law; on the host
    elsewhere |= {"compare_samplers", "Comparison", "Sampler", "SCHEMES"}  # test_compare
    names = (public(jaxdp) | public(calibrate)) - elsewhere - NO_NUMBERS - METHODS
    assert names <= covered, names - covered
    for name in names:
        thing = getattr(jaxdp, name, None)
        if inspect.isclass(thing):
            methods = [m for m, f in vars(thing).items() if inspect.isfunction(f) and m[0] != "_"]
            methods = [m for m in methods if m != "sample"]  # in test_mechanisms for all
            assert {f"{name}.{m}" for m in methods} <= covered


@functools.cache
def reference(k):
    """Values around the point of a row, from one call: [the point, then +- a step in each]."""
    r = TABLE[k]
    at = np.array(r.at, float)
    points = np.tile(at[:, None], (1, 1 + 2 * at.size))
    for i in range(at.size):
        points[i, 1 + 2 * i] *= 1 + r.step
        points[i, 2 + 2 * i] *= 1 - r.step
    with jax.enable_x64(True):
        return points, np.asarray(jax.vmap(r.function)(*map(jnp.asarray, points)))


@every_row
def test_64_bit_caller(r):
    """Breaks when eager, jit and vmap disagree, or a float64 caller gets another dtype."""
    points, values = reference(TABLE.index(r))
    with jax.enable_x64(True):
        eager = r.function(*map(jnp.float64, r.at))
        # (Of a smooth row the next test compiles the values with their derivatives.)
        compiled = values if r.smooth else jax.jit(r.function)(*points[:, :1])
    assert eager.dtype == compiled.dtype == jnp.float64
    assert eager.shape == () or "sample" in r.covers[0]
    assert np.isfinite(values).all()
    rtol = 1e-5 if not r.smooth else 1e-10
    np.testing.assert_allclose(values[0], eager, rtol=rtol)
    np.testing.assert_allclose(compiled.ravel()[0], eager, rtol=rtol)


@smooth_rows
def test_derivatives(r):
    """Breaks when jacrev is not the slope of the values, in any argument, or jit moves a value.

    (Grad of one setting: in `test_32_bit_scan`.)
    """
    points, values = reference(TABLE.index(r))
    slopes = (values[1::2] - values[2::2]) / (2 * r.step * np.array(r.at))

    def twice(*args):
        found = jax.vmap(r.function)(*args)
        return found, found

    with jax.enable_x64(True):
        both = [jnp.asarray(p[:2]) for p in points]
        found = jax.jit(jax.jacrev(twice, r.smooth, has_aux=True))(*both)
        jacobian, compiled = jax.device_get(found)
    np.testing.assert_allclose(compiled[:2].ravel(), values[:2].ravel(), rtol=1e-10)
    for i, j in zip(r.smooth, jacobian, strict=True):
        assert j.dtype == compiled.dtype == jnp.float64
        rtol = 1e-5 if r.step > 1e-6 else 1e-4
        np.testing.assert_allclose(
            j[0, 0], slopes[i], rtol=rtol, atol=1e-9, err_msg=f"argument {i}"
        )
        assert j[0, 1] == j[1, 0] == 0, "entries of a batch do not depend on each other"


@every_row
def test_32_bit_caller(r):
    """Breaks when a float32 caller gets float64, or a value on the unsafe side."""
    points = np.float32(reference(TABLE.index(r))[0])
    got = jax.vmap(r.function)(*points)
    assert got.dtype == jnp.float32
    if "sample" in " ".join(r.covers):
        return  # other random bits in 32 than in 64 bits
    with jax.enable_x64(True):
        want = np.asarray(jax.vmap(r.function)(*map(jnp.float64, points)))
    rtol = 2e-7 if r.smooth else 1e-5
    np.testing.assert_allclose(got, want, rtol=rtol)
    assert np.all(r.side * (np.float64(got) - want) >= 0)


@every_row
def test_32_bit_scan(r):
    """Breaks when a value (and its gradient) cannot be a scan's float32 carry."""
    at = [jnp.float32(a) for a in r.at]

    def body(carry, _):
        if not r.smooth:
            return carry + r.function(*at), carry
        value, gradient = jax.value_and_grad(lambda *a: r.function(*a).sum(), r.smooth)(*at)
        return carry + value + 0 * sum(gradient), sum(gradient)

    total, seen = jax.jit(lambda c: jax.lax.scan(body, c, None, length=2))(jnp.float32(0))
    assert total.dtype == seen.dtype == jnp.float32
    assert np.isfinite(total)
    assert np.isfinite(seen).all()
    if "sample" not in " ".join(r.covers):
        np.testing.assert_allclose(total, 2 * reference(TABLE.index(r))[1][0], rtol=1e-4)
