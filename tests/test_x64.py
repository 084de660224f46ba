"""A 32-bit program: safe rounding, no 64-bit leak, no global flag, exact Python numbers."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp


def in_x64(function, *args):
    """The same call in a 64-bit program, at the very numbers that the 32-bit one passed."""
    with jax.enable_x64(True):
        exact = [a if isinstance(a, float | int) else np.asarray(a, np.float64) for a in args]
        return np.asarray(function(*exact), np.float64)


def check_above(function, *args):
    """Compare a 32-bit call with the 64-bit value: not below it, and within one float32 ulp."""
    got = function(*args)
    assert got.dtype == jnp.float32
    want = in_x64(function, *args)
    got = np.asarray(got, np.float64)
    assert np.all(got >= want), (got - want).min()
    np.testing.assert_allclose(got, want, rtol=1.3e-7, atol=1.2e-38)


SIGMA = np.geomspace(0.3, 30, 200).astype(np.float32)


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_upper_bounds_round_up(transform):
    """Breaks when a result is rounded to the nearest float32: half of them fall below."""
    check_above(transform(lambda s: jaxdp.delta(jaxdp.Gaussian(s), 1.0)), SIGMA)
    check_above(transform(lambda s: jaxdp.epsilon(jaxdp.Gaussian(s), 1e-5)), SIGMA)
    check_above(transform(lambda s: jaxdp.log_delta(jaxdp.Gaussian(s), 3.0)), SIGMA)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: jaxdp.delta(jaxdp.Laplace(s), 0.01),
        lambda s: jaxdp.epsilon(jaxdp.PoissonSampled(jaxdp.Laplace(s), 0.1), 1e-3),
        lambda s: jaxdp.epsilon(jaxdp.Repeated(jaxdp.Laplace(s), 30), 1e-5),
        lambda s: jaxdp.advantage(jaxdp.Brownian(s)),
        lambda s: jaxdp.gdp_to_epsilon(s, 1e-5),
        lambda s: jaxdp.gdp_to_delta(s, 1.0),
        lambda s: jaxdp.zcdp_to_epsilon(s, 1e-5),
        lambda s: jaxdp.renyi_to_epsilon(s, 3.3, 1e-5),
        lambda s: jaxdp.renyi_to_delta(0.1, 3.3, s),
        lambda s: jaxdp.pure_to_delta(s, 0.1),
    ],
)
def test_more_upper_bounds_round_up(function):
    """Breaks when one of the upper bounds forgets its rounding."""
    check_above(function, SIGMA)


@pytest.mark.parametrize(
    "function",
    [
        lambda s: jaxdp.tradeoff(jaxdp.Gaussian(s), 0.01),
        lambda s: jaxdp.epsilon_delta_to_gdp(s, 1e-5),
    ],
)
def test_lower_bounds_round_down(function):
    """Breaks when a quantity that is safe from below is rounded up or to the nearest."""
    got, want = function(SIGMA), in_x64(function, SIGMA)
    assert got.dtype == jnp.float32
    assert np.all(np.asarray(got, np.float64) <= want)
    np.testing.assert_allclose(got, want, rtol=1.3e-7, atol=1.2e-38)


def test_calibrated_noise_rounds_up():
    """Breaks when the float32 sigma, taken as it is, misses the target it was solved for."""
    eps = np.geomspace(0.05, 20, 50).astype(np.float32)
    value = calibrate.solve(jaxdp.Gaussian, epsilon=eps, delta=1e-5).value
    assert value.dtype == jnp.float32
    reached = in_x64(lambda s, e: jaxdp.delta(jaxdp.Gaussian(s), e), value, eps)
    assert np.all(reached <= 1e-5)


def test_calibrated_probability_rounds_down():
    """Breaks when rounding always goes up: the safe side of a sampling probability is below."""
    eps = np.geomspace(0.01, 1.0, 20).astype(np.float32)

    def build(q, e=None):
        return jaxdp.PoissonSampled(jaxdp.Laplace(1.0), q)

    value = calibrate.solve(build, epsilon=eps, delta=1e-3).value
    reached = in_x64(lambda q, e: jaxdp.delta(build(q), e), value, eps)
    assert np.all(reached <= 1e-3)


@pytest.mark.parametrize("epsilon", [14.5, 20.0, 30.0, 50.0, 300.0])
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_tiny_deltas_do_not_become_zero(epsilon, transform):
    """Breaks when an upper bound underflows to 0 (or to a subnormal that is flushed to 0)."""
    got = transform(lambda e: jaxdp.delta(jaxdp.Gaussian(1.0), e))(jnp.float32(epsilon))
    assert float(got) > 0
    assert float(got + jnp.float32(0)) > 0


def test_exact_zero_stays_zero():
    """Breaks when rounding up gives a pure mechanism a positive delta."""
    assert float(jaxdp.delta(jaxdp.Laplace(np.float32(1.0)), 1.5)) == 0.0


def test_log_delta_far_below_float32():
    """Breaks when log delta is the log of a float32 delta (truth: -491.85 at 1e-200 or so)."""
    got = jax.jit(lambda e: jaxdp.log_delta(jaxdp.Gaussian(1.0), e))(jnp.float32(30.75))
    want = in_x64(lambda: jaxdp.log_delta(jaxdp.Gaussian(1.0), 30.75))
    assert got.dtype == jnp.float32
    assert want < np.log(1e-200)
    assert want <= float(got) <= want + 1e-4


def test_python_numbers_are_exact():
    """Breaks when 1e-5 becomes float32(1e-5), which is larger by 2.5e-13."""
    got = jaxdp.epsilon(jaxdp.Gaussian(0.1), 1e-5)
    assert got.dtype == jnp.float32
    assert float(got) >= in_x64(lambda: jaxdp.epsilon(jaxdp.Gaussian(0.1), 1e-5))
    # an argument whose float32 has lost the difference altogether
    near, one = jaxdp.delta(jaxdp.Laplace(1.0), 1 - 1e-9), jaxdp.delta(jaxdp.Laplace(1.0), 1.0)
    np.testing.assert_allclose(float(near), 5e-10, rtol=1e-3)
    assert float(one) == 0


def test_numpy_float64_arguments_are_exact():
    """Breaks when a NumPy double is cut to float32 on the way in."""
    got = jaxdp.delta(jaxdp.Laplace(1.0), np.array([1 - 1e-9]))
    np.testing.assert_allclose(got, 5e-10, rtol=1e-3)


def test_x64_callers_get_unrounded_float64():
    """Breaks when a 64-bit caller gets float32 precision or dtype."""
    with jax.enable_x64(True):
        got = jaxdp.epsilon(jaxdp.Gaussian(1.0), 1e-5)
        assert got.dtype == jnp.float64
        assert abs(float(got) - 4.377178095681224) < 1e-9


def test_a_training_scan_in_32_bits():
    """Breaks when a 64-bit value leaks into a scan carry or reverse mode fails inside a scan."""

    def run(sigma):
        return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Laplace(sigma), 0.01), 100.0)

    def step(carry, _):
        sigma, spent = carry
        eps, slope = jax.value_and_grad(lambda s: jaxdp.epsilon(run(s), 1e-5))(sigma)
        return (sigma - 0.1 * slope, spent + eps), (eps, slope)

    @jax.jit
    def train(sigma):
        return jax.lax.scan(step, (sigma, jnp.float32(0)), None, length=3)

    (sigma, spent), (eps, slopes) = train(jnp.float32(1.0))
    assert {x.dtype for x in (sigma, spent, eps, slopes)} == {jnp.dtype("float32")}
    assert np.all(np.asarray(slopes) < 0)
    assert np.all(np.diff(eps) < 0), "more noise, less epsilon"


@pytest.mark.parametrize(
    "function",
    [
        lambda s: jaxdp.epsilon(jaxdp.Gaussian(s), 1e-5),
        jax.grad(lambda s: jaxdp.log_delta(jaxdp.Gaussian(s), 1.0)),
        jax.vmap(lambda s: jaxdp.renyi(jaxdp.Laplace(s), 3.0), axis_size=2, in_axes=None),
        lambda s: calibrate.solve(jaxdp.Gaussian, epsilon=s, delta=1e-5),
    ],
    ids=["epsilon", "grad", "vmap", "solve"],
)
def test_no_float64_leaves_the_island(function):
    """Breaks when an output, or a value between calls, of a 32-bit program is 64 bits wide."""
    closed = jax.make_jaxpr(function)(jnp.float32(1.0))
    wide = (jnp.dtype("float64"), jnp.dtype("int64"))
    assert not [v for v in closed.out_avals if v.dtype in wide]


def sampled(sigma):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), 0.01), 1000.0)


def test_traced_first_and_batched_later():
    """Breaks when a program traced in 64 bits is batched in 32, where transforms lose digits."""
    sigma = jnp.array([0.9, 1.0, 1.1], jnp.float32)

    def function(s):
        return jaxdp.epsilon(sampled(s), 1e-5, direction="add")

    got = jax.vmap(jax.jit(function))(sigma)
    assert got.dtype == jnp.float32
    np.testing.assert_allclose(got, in_x64(jax.jit(jax.vmap(function)), sigma), rtol=2e-7)


@pytest.mark.filterwarnings("error")  # of values truncated to 32 bits
@pytest.mark.parametrize("transform", [lambda f: f, jax.grad], ids=["value", "grad"])
def test_batched_branches(transform):
    """Breaks when what a program knows beforehand is batched with the branch that it is part of."""
    deltas = np.array([1e-5, 1e-6])

    def numerical(s):
        return jaxdp.epsilon(sampled(s), deltas, direction="add").sum()

    def closed(s):
        return jaxdp.epsilon(jaxdp.Gaussian(s), jnp.float32(deltas)).sum()

    def either(choice, s):
        return jax.lax.cond(choice, transform(numerical), transform(closed), s)

    sigma = jnp.array([0.9, 1.0, 1.1], jnp.float32)
    got = jax.jit(jax.vmap(either))(jnp.array([True, False, True]), sigma)
    each = jax.jit(transform(numerical)), jax.jit(transform(closed))
    want = [each[0](sigma[0]), each[1](sigma[1]), each[0](sigma[2])]
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.filterwarnings("error")  # of values truncated to 32 bits
@pytest.mark.parametrize(
    "function",
    [
        lambda s: jaxdp.epsilon_bounds(sampled(s), 1e-5)[0],
        lambda s: jaxdp.delta(jaxdp.RandomAllocation(jaxdp.Gaussian(s), 100, 3), 1.0),
        lambda s: jaxdp.epsilon(jaxdp.PoissonSampled(jaxdp.DiscreteGaussian(s), 0.1), 1e-5),
        lambda s: jaxdp.epsilon(jaxdp.Repeated(jaxdp.LaplaceSum(s, 3), 5.0), 1e-5),
        lambda s: jaxdp.epsilon(
            jaxdp.Schedule(jaxdp.PoissonSampled(jaxdp.Gaussian(s * jnp.ones(9)), 0.1)), 1e-5
        ),
    ],
    ids=["bounds", "allocation", "discrete", "sum", "schedule"],
)
def test_lowered_in_32_bits(function):
    """Breaks when a program, its batch or its gradient, needs 64 bits after it was traced."""
    jax.jit(function).lower(jnp.float32(1.0))
    jax.jit(jax.vmap(jax.jit(jax.grad(function)))).lower(jnp.ones(2, jnp.float32))


def test_inside_shard_map():
    """Breaks when a query cannot be traced over the axes of a mesh."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("devices",))
    rows = jax.sharding.PartitionSpec("devices")
    sigma = jnp.array([0.9, 1.0, 1.1], jnp.float32)

    def function(s):
        return jax.vmap(jax.grad(lambda x: jaxdp.renyi(sampled(x), 4.0)))(s)

    sharded = jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    np.testing.assert_allclose(jax.jit(sharded)(sigma), function(sigma), rtol=1e-6)


def test_batches_of_batches():
    """Breaks when axes of a batch that was traced first end up in the wrong order."""
    sigma = jnp.array([0.9, 1.0, 1.1], jnp.float32)
    delta = jnp.array([1e-5, 1e-6], jnp.float32)
    epsilon = jnp.linspace(0.1, 1.0, 12, dtype=jnp.float32).reshape(2, 1, 2, 3)

    @jax.jit
    def function(s, e, d):
        return jaxdp.log_delta(jaxdp.Gaussian(s), e) - jnp.log(d)

    inner = jax.vmap(function, in_axes=(0, -1, None))
    got = jax.vmap(inner, in_axes=(None, None, 0))(sigma, epsilon, delta)
    want = (
        jaxdp.log_delta(jaxdp.Gaussian(sigma), epsilon) - jnp.log(delta)[:, None, None, None, None]
    )
    np.testing.assert_allclose(got, jnp.moveaxis(want, -1, 1), rtol=1e-6)


def test_integer_parameters():
    """Breaks when an int or an int32 array is refused or truncates the result."""
    got = jaxdp.epsilon(jaxdp.Repeated(jaxdp.Gaussian(10), jnp.array([100, 400])), 1e-5)
    want = jaxdp.epsilon(jaxdp.Gaussian(jnp.array([1.0, 0.5])), 1e-5)
    np.testing.assert_allclose(got, want, rtol=1e-6)


def test_importing_changes_no_configuration():
    """Breaks when `import jaxdp, calibrate` flips a JAX flag or sets an environment variable."""
    program = """
import os, jax
before, environment = dict(jax.config.values), dict(os.environ)
import jaxdp, calibrate
jaxdp.epsilon(jaxdp.Gaussian(1.0), 1e-5)
after = dict(jax.config.values)
assert all(after[k] == v for k, v in before.items()), [k for k in before if after[k] != before[k]]
assert dict(os.environ) == environment
assert jax.numpy.ones(()).dtype == "float32"
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
