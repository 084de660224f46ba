"""Wrong input: one test per argument and error; the message names the argument."""

import contextlib
import decimal
import fractions

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


_NO_NUMBERS = {
    "text": "1.0",
    "texts": ["1.0"],
    "bytes": b"1",
    "none": None,
    "complex": 1j,
    "true": True,
    "numpy-true": np.True_,
    "truths": np.array([True]),
    "true-among-numbers": [True, 2.0],
    "object": object(),
    "function": len,
    "set": {1.0},
    "dict": {},
    "fraction": fractions.Fraction(1, 3),
    "long-fraction": fractions.Fraction(10**5000),
    "decimal": decimal.Decimal(1),
    "ragged": [[1.0], [1.0, 2.0]],
    "none-among-numbers": [None, 1.0],
    "400-digits": 10**400,
    "-5000-digits": -(10**5000),
    "400-digits-among-numbers": [1, 10**400],
    "many": np.full(900, NAN),
}
_TAKES_A_NUMBER = (
    (jaxdp.Gaussian, "sigma"),
    (lambda delta: jaxdp.ApproximateDP(1.0, delta), "delta"),
    (lambda count: jaxdp.Repeated(GAUSSIAN, count), "count"),
    (lambda q: jaxdp.PoissonSampled(GAUSSIAN, q), "sampling_probability"),
    (lambda t: jaxdp.RandomAllocation(GAUSSIAN, t), "num_steps"),
    (lambda k: jaxdp.RandomAllocation(GAUSSIAN, 5, k), "num_selected"),
    (lambda p: jaxdp.FinitePair(p, [0.5, 0.5]), "p"),
    (jaxdp.mixing_coefficients, "kernel"),
    (lambda epsilon: jaxdp.mixing_coefficients(np.eye(2), epsilon), "epsilon"),
    (jaxdp.Doeblin, "gamma"),
    (lambda epsilon: jaxdp.delta(GAUSSIAN, epsilon), "epsilon"),
    (lambda delta: jaxdp.epsilon(GAUSSIAN, delta), "delta"),
    (lambda alpha: jaxdp.renyi(GAUSSIAN, alpha), "alpha"),
    (lambda fpr: jaxdp.tradeoff(GAUSSIAN, fpr), "fpr"),
    (lambda delta: jaxdp.privacy_loss(GAUSSIAN, delta=delta), "delta"),
    (lambda orders: jaxdp.Renyi((orders,)), "orders"),
    (lambda rho: jaxdp.zcdp_to_epsilon(rho, 1e-5), "rho"),
    (lambda e: calibrate.solve(jaxdp.Gaussian, epsilon=e, delta=1e-5), "epsilon"),
    (
        lambda b: calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5, bracket=(b, 2.0)),
        "bracket",
    ),
    (lambda n: jaxdp.kernel_power([[0.5, 0.5], [0.0, 1.0]], n), "steps"),
)


@pytest.mark.parametrize(("function", "name"), _TAKES_A_NUMBER, ids=[n for _, n in _TAKES_A_NUMBER])
@pytest.mark.parametrize("value", _NO_NUMBERS.values(), ids=_NO_NUMBERS)
def test_not_a_number(function, name, value):
    """Breaks when what is no number is taken for one, is not named, or is printed in full."""
    with pytest.raises((TypeError, ValueError), match=name) as caught:
        function(value)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize(
    "size", [True, 1000.0, "256", -(10**5000), 10**400, 300, 2**23], ids=lambda n: type(n).__name__
)
def test_grid_sizes(size):
    """Breaks when a size that is none is taken, or printed in full."""
    for make in (jaxdp.Numerical, lambda n: jaxdp.Decomposition(0.1, n), jaxdp.PosteriorSampling):
        with pytest.raises(ValueError, match="grid_size") as caught:
            make(size)
        assert len(str(caught.value)) < 160


def test_large_integers_are_numbers():
    """Breaks when integers beyond 64 bits, which a float64 holds, are refused."""
    assert jaxdp.Repeated(GAUSSIAN, 10**20).count == 1e20
    assert jaxdp.Numerical(np.int64(256)).grid_size == 256


@pytest.mark.parametrize("kind", [bool, np.complex64])
def test_traced_truth_values_and_complex_numbers(kind):
    """Breaks when what is no real number passes because it is traced."""
    with pytest.raises(TypeError, match="sigma"):
        jax.eval_shape(lambda x: jaxdp.Gaussian(x).sigma, jnp.ones((), kind))
    with pytest.raises(TypeError, match="sigma"):
        jax.eval_shape(lambda x: jaxdp.Gaussian([x, 1.0]).sigma, jnp.ones(()))


@pytest.mark.parametrize(
    "thing",
    [10**400, [1, 10**5000], np.ones(900), GAUSSIAN],
    ids=("integer", "list", "array", "mechanism"),
)
def test_messages_about_structure_stay_short(thing):
    """Breaks when a message holds a long value in full."""
    calls = (
        lambda: jaxdp.Repeated(thing, thing),
        lambda: jaxdp.Composed(thing),
        lambda: jaxdp.delta(GAUSSIAN, 1.0, direction=thing),
        lambda: jaxdp.delta(GAUSSIAN, 1.0, method=thing),
        lambda: calibrate.solve(jaxdp.Gaussian, epsilon=1.0, delta=1e-5, bracket=thing),
        lambda: calibrate.solve(thing, epsilon=1.0, delta=1e-5),
    )
    for call in calls:
        with pytest.raises((TypeError, ValueError)) as caught:
            call()
        assert len(str(caught.value)) < 200


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


@pytest.mark.parametrize(
    "step",
    [jaxdp.Schedule(jaxdp.Laplace(np.ones(3))), jaxdp.FinitePair([0.5, 0.5], [0.25, 0.75])],
    ids=("schedule", "pair"),
)
def test_schedules_of_what_has_axes_of_its_own(step):
    """Breaks when the axis of a vector passes for that of the steps."""
    with pytest.raises(ValueError, match="mechanism must have"):
        jaxdp.Schedule(step)
    assert jaxdp.Schedule(jaxdp.Repeated(step, np.ones(4))).steps == 4


def test_shapes_that_do_not_broadcast_are_named():
    """Breaks when NumPy's own message, with numbers of arguments, is all that is said."""
    with pytest.raises(ValueError, match=r"must have shapes that broadcast, got \(3,\) and \(2,\)"):
        jaxdp.epsilon(jaxdp.Gaussian(np.ones(3)), np.full(2, 1e-5))
    with pytest.raises(ValueError, match="at least one step"):
        jaxdp.Schedule(jaxdp.Gaussian(np.array([])))
