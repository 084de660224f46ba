"""Wrong input: one test per argument and error; the message names the argument."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import calibrate
import jaxdp

NAN, INF = float("nan"), float("inf")
POSITIVE = (0.0, -1.0, NAN, INF)  # each outside "finite and positive"
GAUSSIAN = jaxdp.Gaussian(1.0)


def renyi_epsilon(rdp=0.5, alpha=2.0, delta=1e-5):
    return jaxdp.renyi_to_epsilon(rdp, alpha, delta)


def renyi_delta(rdp=0.5, alpha=2.0, epsilon=1.0):
    return jaxdp.renyi_to_delta(rdp, alpha, epsilon)


def minimize(epsilon=1.0, delta=1e-5, init=1.0):
    return calibrate.minimize(
        lambda p: p**2, jaxdp.Gaussian, epsilon=epsilon, delta=delta, init=init
    )


def ou(theta=1.0, rho=1.0, t=1.0, sensitivity=1.0):
    return jaxdp.OrnsteinUhlenbeck(theta, rho, t, sensitivity)


# (function, argument, values that are outside its domain)
REAL_DOMAINS = (
    (jaxdp.Gaussian, "sigma", POSITIVE),
    (lambda sensitivity: jaxdp.Gaussian(1.0, sensitivity), "sensitivity", POSITIVE),
    (jaxdp.Laplace, "scale", POSITIVE),
    (lambda sensitivity: jaxdp.Laplace(1.0, sensitivity), "sensitivity", POSITIVE),
    (jaxdp.RandomizedResponse, "epsilon", POSITIVE),
    (jaxdp.ApproximateDP, "epsilon", POSITIVE),
    (lambda delta: jaxdp.ApproximateDP(1.0, delta), "delta", (-1e-9, 1.0, 2.0, NAN)),
    (jaxdp.Brownian, "t", POSITIVE),
    (lambda sensitivity: jaxdp.Brownian(1.0, sensitivity), "sensitivity", POSITIVE),
    *((ou, name, POSITIVE) for name in ("theta", "rho", "t", "sensitivity")),
    (lambda count: jaxdp.Repeated(GAUSSIAN, count), "count", POSITIVE),
    (
        lambda sampling_probability: jaxdp.PoissonSampled(GAUSSIAN, sampling_probability),
        "sampling_probability",
        (0.0, -0.1, 1.0000001, NAN, INF),
    ),
    *(
        (lambda epsilon, q=q: q(GAUSSIAN, epsilon), "epsilon", (NAN,))
        for q in (jaxdp.delta, jaxdp.log_delta, jaxdp.hockey_stick)
    ),
    (lambda delta: jaxdp.epsilon(GAUSSIAN, delta), "delta", (-1e-9, 1.0, 2.0, NAN)),
    (lambda alpha: jaxdp.renyi(GAUSSIAN, alpha), "alpha", (0.999, 0.0, -2.0, NAN)),
    (lambda fpr: jaxdp.tradeoff(GAUSSIAN, fpr), "fpr", (-1e-9, 1.0000001, NAN)),
    (renyi_epsilon, "rdp", (-0.1, NAN)),
    (renyi_epsilon, "alpha", (1.0, 0.5, NAN, INF)),
    (renyi_epsilon, "delta", (0.0, -0.1, 1.0, NAN)),
    (renyi_delta, "rdp", (-0.1, NAN)),
    (renyi_delta, "alpha", (1.0, 0.5, NAN, INF)),
    (renyi_delta, "epsilon", (NAN,)),
    (lambda rho: jaxdp.zcdp_to_epsilon(rho, 1e-5), "rho", POSITIVE),
    (lambda delta: jaxdp.zcdp_to_epsilon(0.5, delta), "delta", (0.0, -0.1, 1.0, NAN)),
    (lambda rho: jaxdp.zcdp_to_delta(rho, 1.0), "rho", POSITIVE),
    (lambda epsilon: jaxdp.zcdp_to_delta(0.5, epsilon), "epsilon", (NAN,)),
    (lambda rho: jaxdp.zcdp_to_renyi(rho, 2.0), "rho", POSITIVE),
    (lambda alpha: jaxdp.zcdp_to_renyi(0.5, alpha), "alpha", (0.9, NAN)),
    (lambda rdp: jaxdp.renyi_to_zcdp(rdp, 2.0), "rdp", (-0.1, NAN)),
    (lambda alpha: jaxdp.renyi_to_zcdp(0.5, alpha), "alpha", (0.9, NAN)),
    (lambda mu: jaxdp.gdp_to_delta(mu, 1.0), "mu", POSITIVE),
    (lambda epsilon: jaxdp.gdp_to_delta(1.0, epsilon), "epsilon", (NAN,)),
    (lambda mu: jaxdp.gdp_to_epsilon(mu, 1e-5), "mu", POSITIVE),
    (lambda delta: jaxdp.gdp_to_epsilon(1.0, delta), "delta", (0.0, -0.1, 1.0, NAN)),
    (lambda epsilon: jaxdp.epsilon_delta_to_gdp(epsilon, 1e-5), "epsilon", (-0.1, NAN, INF)),
    (lambda delta: jaxdp.epsilon_delta_to_gdp(1.0, delta), "delta", (0.0, -0.1, 1.0, NAN)),
    (lambda epsilon: jaxdp.pure_to_renyi(epsilon, 2.0), "epsilon", POSITIVE),
    (lambda alpha: jaxdp.pure_to_renyi(1.0, alpha), "alpha", (0.9, NAN)),
    (jaxdp.pure_to_zcdp, "epsilon", POSITIVE),
    (lambda pure_epsilon: jaxdp.pure_to_delta(pure_epsilon, 1.0), "pure_epsilon", POSITIVE),
    (lambda epsilon: jaxdp.pure_to_delta(1.0, epsilon), "epsilon", (NAN,)),
    (
        lambda epsilon: calibrate.solve(jaxdp.Gaussian, epsilon=epsilon, delta=1e-5),
        "epsilon",
        (-0.1, NAN),
    ),
    (
        lambda delta: calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=delta),
        "delta",
        (-1e-9, 1.0, NAN),
    ),
    (lambda epsilon: minimize(epsilon=epsilon), "epsilon", (-0.1, NAN)),
    (lambda delta: minimize(delta=delta), "delta", (-1e-9, 1.0, NAN)),
    (lambda init: minimize(init=init), "init", (0.0, -1.0, NAN)),
)
CASES = [
    pytest.param(f, name, value, id=f"{k}-{name}-{value}")
    for k, (f, name, values) in enumerate(REAL_DOMAINS)
    for value in values
]


@pytest.mark.parametrize(("function", "name", "value"), CASES)
def test_value_outside_its_domain(function, name, value):
    """Breaks when a bad number is accepted, or the message does not name the argument."""
    with pytest.raises(ValueError, match=name):
        function(**{name: value})


@pytest.mark.parametrize(("function", "name", "value"), CASES[:6])
def test_one_bad_entry_of_an_array(function, name, value):
    """Breaks when only scalars are checked."""
    with pytest.raises(ValueError, match=name):
        function(**{name: np.array([1.0, value])})


@pytest.mark.parametrize(
    "query",
    [
        lambda d: jaxdp.delta(GAUSSIAN, 1.0, direction=d),
        lambda d: jaxdp.log_delta(GAUSSIAN, 1.0, direction=d),
        lambda d: jaxdp.hockey_stick(GAUSSIAN, 1.0, direction=d),
        lambda d: jaxdp.epsilon(GAUSSIAN, 1e-5, direction=d),
        lambda d: jaxdp.renyi(GAUSSIAN, 2.0, direction=d),
        lambda d: calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5, direction=d),
        lambda d: calibrate.minimize(
            lambda p: p, jaxdp.Gaussian, epsilon=1.0, delta=1e-5, init=1.0, direction=d
        ),
    ],
)
@pytest.mark.parametrize("direction", ["removal", "", None, "Both"])
def test_unknown_direction(query, direction):
    """Breaks when another direction silently means "both"."""
    with pytest.raises(ValueError, match="direction"):
        query(direction)


@pytest.mark.parametrize("form", ["best", "", None])
def test_unknown_form(form):
    """Breaks when another form silently means the optimal one."""
    with pytest.raises(ValueError, match="form"):
        jaxdp.renyi_to_epsilon(0.5, 2.0, 1e-5, form=form)


@pytest.mark.parametrize(
    "query",
    [
        lambda m: jaxdp.delta(m, 1.0),
        lambda m: jaxdp.log_delta(m, 1.0),
        lambda m: jaxdp.hockey_stick(m, 1.0),
        lambda m: jaxdp.epsilon(m, 1e-5),
        lambda m: jaxdp.renyi(m, 2.0),
        lambda m: jaxdp.tradeoff(m, 0.1),
        jaxdp.advantage,
        lambda m: jaxdp.Composed([GAUSSIAN, m]),
        lambda m: jaxdp.Repeated(m, 2),
        lambda m: jaxdp.PoissonSampled(m, 0.1),
        lambda m: calibrate.solve(lambda v: m, epsilon=1.0, delta=1e-5),
        lambda m: calibrate.minimize(lambda p: p, lambda p: m, epsilon=1.0, delta=1e-5, init=1.0),
    ],
)
@pytest.mark.parametrize("thing", [1.0, "gaussian", None, jaxdp.Gaussian])
def test_not_a_mechanism(query, thing):
    """Breaks when something else than a mechanism is accepted, or fails deep inside."""
    with pytest.raises(TypeError, match=r"[Mm]echanism"):
        query(thing)


def test_empty_composition():
    """Breaks when nothing composes to a mechanism of no loss."""
    with pytest.raises(ValueError, match="mechanisms"):
        jaxdp.Composed([])


@pytest.mark.parametrize("bracket", [(0.0, 1.0), (2.0, 1.0), (-1.0, 1.0), (1.0, NAN)])
def test_bad_bracket(bracket):
    """Breaks when a bracket that holds nothing is searched."""
    with pytest.raises(ValueError, match="bracket"):
        calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5, bracket=bracket)


def test_pure_target_of_zero():
    """Breaks when epsilon = 0 with delta = 0, which no useful mechanism meets, is attempted."""
    with pytest.raises(ValueError, match="epsilon"):
        calibrate.solve(jaxdp.Laplace, epsilon=0.0, delta=0.0)


@pytest.mark.parametrize("value", ["1.0", None, 1j])
def test_not_a_number(value):
    """Breaks when text or a complex number is accepted as a parameter."""
    with pytest.raises(TypeError, match="sigma"):
        jaxdp.Gaussian(value)


def test_shapes_that_do_not_broadcast():
    """Breaks when incompatible shapes are cut to fit."""
    with pytest.raises((ValueError, TypeError), match=r"broadcast|shape"):
        jaxdp.delta(jaxdp.Gaussian(np.ones(2)), np.ones(3))


def test_combinations_beyond_the_closed_forms():
    """Breaks when a mechanism is frozen only in name: parameters must not be assignable."""
    with pytest.raises((AttributeError, TypeError)):
        GAUSSIAN.sigma = 2.0


# Traced values cannot raise: the answer must not look like a guarantee

BAD_ANSWERS = (
    ("delta", lambda v: jaxdp.delta(jaxdp.Gaussian(v), 1.0), (0.0, -1.0, NAN)),
    ("epsilon", lambda v: jaxdp.epsilon(jaxdp.Gaussian(v), 1e-5), (0.0, -1.0, NAN)),
    ("renyi", lambda v: jaxdp.renyi(jaxdp.Gaussian(v), 2.0), (0.0, -1.0, NAN)),
    ("laplace", lambda v: jaxdp.epsilon(jaxdp.Laplace(v), 1e-5), (0.0, -1.0, NAN)),
    ("response", lambda v: jaxdp.delta(jaxdp.RandomizedResponse(v), 0.1), (-1.0, NAN)),
    ("approximate", lambda v: jaxdp.delta(jaxdp.ApproximateDP(1.0, v), 0.1), (-0.5, 1.5, NAN)),
    ("count", lambda v: jaxdp.epsilon(jaxdp.Repeated(GAUSSIAN, v), 1e-5), (-1.0, NAN)),
    (
        "probability",
        lambda v: jaxdp.epsilon(jaxdp.PoissonSampled(GAUSSIAN, v), 1e-5),
        (-0.1, 1.5, NAN),
    ),
    ("target", lambda v: jaxdp.epsilon(GAUSSIAN, v), (-0.1, 1.5, NAN)),
    ("order", lambda v: jaxdp.renyi(GAUSSIAN, v), (0.5, -1.0, NAN)),
    ("rate", lambda v: jaxdp.tradeoff(GAUSSIAN, v), (-0.1, 1.5, NAN)),
    ("rdp_order", lambda v: jaxdp.renyi_to_epsilon(0.5, v, 1e-5), (1.0, 0.5, NAN)),
    ("rdp_target", lambda v: jaxdp.renyi_to_epsilon(0.5, 2.0, v), (0.0, -0.1, 1.5, NAN)),
    ("zcdp", lambda v: jaxdp.zcdp_to_epsilon(v, 1e-5), (-1.0, NAN)),
    ("gdp", lambda v: jaxdp.gdp_to_epsilon(v, 1e-5), (-1.0, NAN)),
    (
        "solve_epsilon",
        lambda v: calibrate.solve(jaxdp.Gaussian, epsilon=v, delta=1e-5).value,
        (-1.0, NAN),
    ),
    (
        "solve_delta",
        lambda v: calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=v).value,
        (-1.0, 1.5, NAN),
    ),
)


@pytest.mark.parametrize(
    ("function", "values"), [r[1:] for r in BAD_ANSWERS], ids=[r[0] for r in BAD_ANSWERS]
)
def test_bad_traced_value_gives_no_finite_number(function, values):
    """Breaks when a bad value under jit comes back as a plausible, finite number."""
    got = np.asarray(jax.jit(jax.vmap(function))(jnp.array(values)))
    assert not np.isfinite(got).any(), dict(zip(values, got, strict=True))


def test_checks_do_not_stop_tracing():
    """Breaks when a check on a traced value raises a TracerBoolConversionError."""
    with contextlib.nullcontext():
        assert np.isfinite(jax.jit(lambda s: jaxdp.delta(jaxdp.Gaussian(s), s))(1.0))
