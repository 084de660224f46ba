"""Accounting inside training loops: the same numbers as outside, in the program's own precision."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxdp
from jaxdp import training
from jaxdp.training import _filter, _moments

ORDERS = training.DEFAULT_ORDERS


def test_moments_are_the_exact_renyi_divergences_of_the_worse_direction():
    orders = (1.5, 2.0, 3.0, 4.5, 16.0, 50.0, 64.0, 200.0)
    sigma = np.asarray([0.4, 0.7, 1.0, 3.0, 30.0, 1.0, 2.0, 1.3])[:, None]
    q = np.asarray([0.01, 1e-3, 0.3, 0.1, 1e-4, 1.0, 1e-8, 0.9])[:, None]
    with jax.enable_x64(True):
        ours = np.asarray(
            jax.jit(jax.vmap(lambda s, r: _moments.moments(s, r, orders)))(sigma[:, 0], q[:, 0])
        )
        m = jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q)
        exact = np.asarray(jaxdp.renyi(m, np.asarray(orders))) * (np.asarray(orders) - 1.0)
    np.testing.assert_allclose(ours, exact, rtol=1e-12)
    assert np.all(ours > 0.0)


def _run(sigmas, rates):
    def step(state, setting):
        return training.update(state, sigma=setting[0], sampling_probability=setting[1]), None

    return jax.lax.scan(step, training.init(), (sigmas, rates))[0]


def test_epsilon_in_jit_is_the_one_outside_and_certified():
    rng = np.random.default_rng(0)
    sigmas = jnp.asarray(rng.uniform(0.8, 3.0, 300), jnp.float32)
    rates = jnp.asarray(10 ** rng.uniform(-3, -1, 300), jnp.float32)
    deltas = np.asarray([1e-9, 1e-5, 1e-2])

    @jax.jit
    def inside(sigmas, rates):
        state = _run(sigmas, rates)
        return state, training.epsilon(state, deltas)

    state, found = inside(sigmas, rates)
    assert found.dtype == jnp.float32
    np.testing.assert_array_equal(found, training.epsilon(state, deltas))
    one_by_one = training.init()
    for sigma, rate in zip(sigmas[:3], rates[:3], strict=True):
        one_by_one = training.update(one_by_one, sigma=sigma, sampling_probability=rate)
    np.testing.assert_array_equal(one_by_one.moments, inside(sigmas[:3], rates[:3])[0].moments)
    with jax.enable_x64(True):
        m = jaxdp.PoissonSampled(
            jaxdp.Gaussian(np.asarray(sigmas, float)[:, None]), np.asarray(rates, float)[:, None]
        )
        total = np.asarray(jaxdp.renyi(m, np.asarray(ORDERS), direction="remove")).sum(axis=0)
        each = jaxdp.renyi_to_epsilon(total, np.asarray(ORDERS), deltas[:, None])
        best = np.asarray(each).min(axis=1)
        fine = np.asarray(
            jax.jit(lambda s, r: training.epsilon(_run(s, r), deltas))(
                np.asarray(sigmas, float), np.asarray(rates, float)
            )
        )
    assert np.all(np.asarray(found, float) >= fine)  # rounded up from the same number
    np.testing.assert_allclose(np.asarray(found, float), fine, rtol=3e-7)
    assert np.all(fine <= best * (1 + 1e-9))  # interpolated orders only help
    assert np.all(fine >= best * 0.97)


def test_long_runs_stay_accurate_in_float32():
    """A million steps: single float32 sums would be wrong by per cents."""
    once = training.update(training.init(), sigma=0.8, sampling_probability=1e-4, count=999_999)
    once = training.update(once, sigma=0.8, sampling_probability=1e-4)
    changed = training.init()
    for sigma in (0.8, 0.9, 0.8):
        changed = training.update(changed, sigma=sigma, sampling_probability=1e-4, count=333_333)
    orders = np.asarray(ORDERS)
    with jax.enable_x64(True):
        m = jaxdp.PoissonSampled(jaxdp.Gaussian(np.asarray([[0.8], [0.9]])), 1e-4)
        rdp = np.asarray(jaxdp.renyi(m, orders, direction="remove"))
        epsilon = float(jaxdp.renyi_to_epsilon(1e6 * rdp[0], orders, 1e-5).min())
    assert changed.moments.dtype == jnp.float32
    spent = np.asarray(changed.moments, float).sum(axis=1) / (orders - 1.0)
    np.testing.assert_allclose(spent, 333_333 * rdp.sum(axis=0), rtol=1e-12)
    assert float(once.pending[2].sum()) == 1e6
    assert 0.98 * epsilon < float(training.epsilon(once, 1e-5)) <= epsilon * (1 + 1e-6)
    assert float(training.epsilon(changed, 1e-5)) < float(training.epsilon(once, 1e-5))
    assert float(training.epsilon(training.init(), 1e-5)) == 0.0


def _float64_outside_islands(jaxpr):
    """Equations with float64 values, not counting what is inside a custom-JVP call (the island)."""
    found = []
    for eqn in jaxpr.eqns:
        values = [v.aval for v in (*eqn.invars, *eqn.outvars) if hasattr(v, "aval")]
        if any(getattr(a, "dtype", None) == jnp.float64 for a in values):
            found.append(eqn)
        if eqn.primitive.name.startswith("custom_jvp_call"):
            continue
        for param in jax.tree.leaves(
            list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
        ):
            inner = getattr(param, "jaxpr", param)
            if hasattr(inner, "eqns"):
                found += _float64_outside_islands(inner)
    return found


def _training_step(optimiser, params, state, batch):
    def loss(params, x):
        return jnp.sum((x @ params["w"]) ** 2)

    gradients = jax.vmap(jax.grad(loss), in_axes=(None, 0))(params, batch)
    updates, state = optimiser.update(gradients, state, params)
    return optax.apply_updates(params, updates), state


def test_a_float32_training_step_stays_float32_and_is_only_watched():
    inner = optax.chain(
        optax.contrib.differentially_private_aggregate(1.0, noise_multiplier=1.1, key=0),
        optax.sgd(0.1),
    )
    schedule = optax.exponential_decay(2.0, 5, 0.5)
    settings = {"noise_multiplier": schedule, "sampling_probability": 0.25}
    optimiser = training.track_privacy(inner, **settings, batches="poisson")
    params = {"w": jnp.ones((3, 2))}
    batches = jax.random.normal(jax.random.key(0), (12, 8, 3))

    def epoch(params, state):
        def body(carry, batch):
            return _training_step(optimiser, *carry, batch), None

        (params, state), _ = jax.lax.scan(body, (params, state), batches)
        return params, state, training.epsilon(training.accountant_of(state), 1e-5)

    state = optimiser.init(params)
    jaxpr = jax.make_jaxpr(epoch)(params, state).jaxpr
    assert _float64_outside_islands(jaxpr) == []
    with jax.enable_x64(True):  # the test itself can fail
        wide = jax.make_jaxpr(lambda x: jax.lax.scan(lambda c, _: (c + 1.0, None), x, None, 2))
        assert _float64_outside_islands(wide(1.0).jaxpr)
    tracked, state, spent = jax.jit(epoch)(params, state)
    expected = training.init()
    for i in range(12):
        expected = training.update(expected, sigma=schedule(i), sampling_probability=0.25)
    assert float(spent) == pytest.approx(float(training.epsilon(expected, 1e-5)), rel=1e-6)
    plain, inner_state = params, inner.init(params)
    for batch in batches:
        plain, inner_state = _training_step(inner, plain, inner_state, batch)
    np.testing.assert_allclose(tracked["w"], plain["w"], rtol=1e-5)
    # settings known only at the update
    _, state = optimiser.update(
        {"w": jnp.ones((8, 3, 2))}, state, params, noise_multiplier=9.0, sampling_probability=1.0
    )
    latest = training.accountant_of((state, optax.EmptyState())).pending
    np.testing.assert_array_equal(latest[:, 0], [9.0, 1.0, 1.0])


def test_gradients_reach_every_step_and_vmap_agrees():
    def spent(sigmas):
        def step(state, sigma):
            return training.update(state, sigma=sigma, sampling_probability=0.2), None

        state, _ = jax.lax.scan(step, training.init((2.0, 4.0, 8.0)), sigmas)
        return training.epsilon(state, 1e-5)

    with jax.enable_x64(True):
        sigmas = jnp.asarray([1.0, 1.0, 1.0, 2.0, 2.0])
        slopes = jax.jit(jax.grad(spent))(sigmas)
        steps = 1e-5 * np.eye(5)
        moved = jax.jit(jax.vmap(spent))(jnp.concatenate([sigmas + steps, sigmas - steps]))
        np.testing.assert_allclose(slopes, (moved[:5] - moved[5:]) / 2e-5, rtol=1e-5)
    assert float(slopes[0]) == pytest.approx(float(slopes[2]), rel=1e-12)


def test_fixed_schedules_by_the_numerical_engine():
    sgd = jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01)
    state = training.init_fixed(sgd)

    @jax.jit
    def after(state, steps):
        state = jax.lax.fori_loop(0, steps, lambda _, s: training.update(s), state)
        return training.epsilon(state, 1e-5)

    assert 1.828237 <= float(after(state, 1000)) <= 1.828237 * (1 + 1e-3)
    assert float(after(state, 0)) == 0.0
    phases = (jaxdp.Gaussian(5.0), 10), (jaxdp.Gaussian(10.0), 3), jaxdp.Gaussian(20.0)
    state = training.init_fixed(*phases, method=None)
    found = jax.jit(jax.vmap(lambda n: training.epsilon(training.update(state, count=n), 1e-5)))(
        jnp.asarray([0, 4, 10, 11, 13, 20])
    )
    mu = np.sqrt([4 / 25, 10 / 25, 10 / 25 + 1 / 100, 10 / 25 + 3 / 100, 0.43 + 7 / 400])
    np.testing.assert_allclose(found[1:], jaxdp.gdp_to_epsilon(mu, 1e-5), rtol=1e-5)
    assert float(found[0]) == 0.0


def test_an_array_of_counts_of_a_fixed_schedule():
    """Breaks when runs that stand in different phases cannot be read together."""
    phases = (jaxdp.Gaussian(4.0), 2), (jaxdp.Gaussian(8.0), 3), jaxdp.Gaussian(16.0)
    counts, delta = np.array([0, 1, 2, 4, 5, 9]), np.array([[1e-5], [1e-3]])
    state = training.init_fixed(*phases, method=None)
    found = np.asarray(training.epsilon(training.update(state, count=counts), delta))
    mu = np.sqrt(np.asarray([16, 32, 40, 44, 48]) / 256)
    np.testing.assert_allclose(found[:, 1:], jaxdp.gdp_to_epsilon(mu, delta), rtol=1e-5)
    assert np.all(found[:, 0] == 0.0)


@pytest.mark.parametrize("read", [training.epsilon, jax.jit(training.epsilon)], ids=["", "jit"])
def test_another_count_of_a_fixed_schedule_traces_nothing(read):
    """Breaks when a read makes a program of its count, or one of its own, as a bare switch does."""
    phases = (jaxdp.Gaussian(4.0), 2), (jaxdp.Gaussian(8.0), 3), jaxdp.Gaussian(16.0)
    start = training.init_fixed(*phases, method=None)
    first, second = ([training.update(start, count=n) for n in c] for c in ((1, 3, 6), (2, 5, 9)))
    before = [float(read(state, 1e-5)) for state in first]
    traced = []

    def listen(event, duration, **more):
        if event.endswith(("jaxpr_trace_duration", "backend_compile_duration")):
            traced.append((event, more.get("fun_name")))

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        after = [float(read(state, 1e-5)) for state in second]
        assert traced == []
        jax.jit(lambda x: x + 1.0).lower(1.0)
        assert traced  # it listens
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    mu = np.sqrt(np.asarray([16, 32, 36, 44, 45, 48]) / 256)
    found = np.ravel([before, after], order="F")
    np.testing.assert_allclose(found, jaxdp.gdp_to_epsilon(mu, 1e-5), rtol=1e-5)


@functools.partial(jax.jit, static_argnums=1)
def _adaptive_run(key, longest, budget):
    """Sigma and rate drawn anew each step, wilder the more is spent; the settings actually used."""

    def propose(key, spent):
        a, b = jax.random.normal(key, (2,))
        sigma = jnp.exp(1.0 + 0.7 * a - 0.3 * jnp.tanh(spent))
        return sigma, jnp.minimum(jnp.exp(-2.0 + b), 1.0)

    def going(carry):
        state, key, count, _ = carry
        sigma, rate = propose(key, jnp.max(state.accountant.moments[:, 0]))
        affordable = training.fits(state, sigma=sigma, sampling_probability=rate)
        return affordable & (count < longest)

    def step(carry):
        state, key, count, used = carry
        sigma, rate = propose(key, jnp.max(state.accountant.moments[:, 0]))
        state = training.update(state, sigma=sigma, sampling_probability=rate)
        used = used.at[count].set(jnp.stack([sigma, rate]))
        return state, jax.random.split(key, 1)[0], count + 1, used

    carry = (budget, key, jnp.zeros((), jnp.int32), jnp.full((longest, 2), jnp.nan))
    _, _, count, used = jax.lax.while_loop(going, step, carry)
    return count, used


def test_a_thousand_adaptive_runs_never_exceed_the_filter():
    longest, epsilon, delta = 48, 1.5, 1e-5
    keys = jax.random.split(jax.random.key(11), 1000)
    for orders in (None, (4.0, 8.0, 16.0, 32.0)):
        budget = training.init_filter(epsilon=epsilon, delta=delta, orders=orders)
        count, used = jax.vmap(lambda k, b=budget: _adaptive_run(k, longest, b))(keys)
        used, alpha = np.asarray(used, float), np.asarray(budget.accountant.orders)
        sigma, rate = np.nan_to_num(used[..., 0], nan=1.0), np.nan_to_num(used[..., 1], nan=1.0)
        with jax.enable_x64(True):
            # spent, from the settings alone
            step = jax.jit(jax.vmap(lambda s, q, o=tuple(alpha): _moments.moments(s, q, o)))
            moments = np.asarray(step(sigma.ravel(), rate.ravel())).reshape(*sigma.shape, -1)
            moments = np.where(np.isnan(used[..., :1]), 0.0, moments).sum(axis=1)
            spent = jaxdp.renyi_to_epsilon(moments / (alpha - 1.0), alpha, delta / len(alpha))
        spent = np.asarray(spent).min(axis=1)
        assert np.all(spent <= epsilon)
        stopped = np.asarray(count) < longest
        assert stopped.mean() > 0.5
        assert spent.max() > 0.95 * epsilon  # and it does not stop for nothing
        assert np.median(spent[stopped]) > 0.4 * epsilon
        assert len(np.unique(count)) > 10


def test_filter_stops_at_its_budget_and_not_before():
    budget = training.init_filter(epsilon=1.0, delta=1e-6)
    (alpha,) = budget.accountant.orders
    n = 0
    while bool(training.fits(budget, sigma=20.0)):
        budget, n = training.update(budget, sigma=20.0), n + 1
    spent = [
        float(
            jaxdp.renyi_to_epsilon(jaxdp.renyi(jaxdp.Gaussian(20.0 / k**0.5), alpha), alpha, 1e-6)
        )
        for k in (n, n + 1)
    ]
    assert spent[0] <= 1.0 < spent[1]
    assert not bool(training.fits(budget, sigma=20.0, count=2))
    assert bool(training.fits(budget, sigma=1e6))


@pytest.mark.parametrize(
    ("target", "step"),
    [((2.0, 1e-5), (1.0, 0.01)), ((8.0, 1e-5), (0.5, 1e-3)), ((1.0, 1e-6), (4.0, 0.1))],
)
def test_a_filter_for_a_typical_step_lets_most_of_them_pass(target, step):
    """Breaks when the order is chosen for other steps: 28 for 879 of the first ones."""
    (epsilon, delta), (sigma, q) = target, step
    budget = training.init_filter(epsilon=epsilon, delta=delta, sigma=sigma, sampling_probability=q)

    def fits(n, budget=budget):
        return bool(training.fits(budget, sigma=sigma, sampling_probability=q, count=n))

    orders = np.arange(2.0, 257.0)
    each = jaxdp.renyi(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), orders, direction="remove")
    room = [_filter._budgets(epsilon, delta, (a,))[0] / (a - 1.0) for a in orders]
    most = int(np.max(np.asarray(room) / np.asarray(each)))
    assert fits(int(0.999 * most))
    assert not fits(most + 1)
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), int(0.999 * most))
    assert float(jaxdp.epsilon(run, delta)) <= epsilon
    assert not fits(1, training.update(budget, sigma=sigma, count=10**9))


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda s: training.init(()), "orders must not be empty"),
        (lambda s: training.init((1.0, 2.0)), "orders"),
        (lambda s: training.init((3.0, 2.0)), "ascend"),
        (lambda s: training.update(s), "sigma must be given"),
        (lambda s: training.update(s, sigma=0.0), "sigma"),
        (lambda s: training.update(s, sigma=1.0, sampling_probability=1.5), "sampling_prob"),
        (lambda s: training.update(s, sigma=1.0, count=-1), "count"),
        (lambda s: training.epsilon(s, 0.0), "delta"),
        (lambda s: training.init_filter(epsilon=0.0, delta=0.1), "epsilon"),
        (lambda s: training.init_filter(epsilon=1e-3, delta=1e-9, orders=(2.0,)), "orders"),
        (lambda s: training.init_filter(epsilon=1.0, delta=0.1, sigma=0.0), "sigma"),
        (lambda s: training.init_filter(epsilon=1.0, delta=0.1, sampling_probability=0.1), "sigma"),
        (
            lambda s: training.init_filter(
                epsilon=1.0, delta=0.1, sigma=1.0, sampling_probability=2.0
            ),
            "sampling_probability",
        ),
        (lambda s: training.init_filter(epsilon=1.0, delta=0.1, sigma=1.0, orders=(2.0,)), "both"),
        (lambda s: training.init_fixed(), "phases"),
        (lambda s: training.init_fixed(jaxdp.Gaussian(1.0), jaxdp.Gaussian(1.0)), "steps"),
        (
            lambda s: training.init_fixed(
                (jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.1), 3),
                jaxdp.FixedSizeSampled(jaxdp.Gaussian(1.0), 0.1),
            ),
            "neighbours",
        ),
        (lambda s: training.accountant_of(s), "TrackPrivacyState"),
        (lambda s: training.track_privacy(optax.sgd(1.0)), "noise_multiplier"),
    ],
)
def test_bad_arguments_are_named(call, problem):
    with pytest.raises(ValueError, match=problem):
        call(training.init())


def test_traced_settings_outside_their_domain_are_never_private():
    def spent(sigma):
        return training.epsilon(training.update(training.init(), sigma=sigma), 1e-5)

    assert np.isnan(jax.jit(spent)(-1.0))
    budget = training.init_filter(epsilon=1.0, delta=1e-5)
    assert not bool(jax.jit(lambda s: training.fits(budget, sigma=s))(jnp.nan))


_BAD_COUNTS = (-15, 0.9, float("nan"), float("inf"), True, "1", None, 10**400)


@pytest.mark.parametrize("count", _BAD_COUNTS, ids=lambda c: str(c)[:8])
def test_counts_that_are_known_and_wrong_are_refused_by_every_state(count):
    """Breaks when steps are taken back, cut to an integer or lost, by any of the three states."""
    budget = training.init_filter(epsilon=1.0, delta=1e-5)
    calls = (
        lambda: training.update(training.init_fixed(jaxdp.Gaussian(1.0)), count=count),
        lambda: training.update(training.init(), sigma=1.0, count=count),
        lambda: training.update(budget, sigma=1.0, count=count),
        lambda: training.fits(budget, sigma=1.0, count=count),
    )
    for call in calls:
        with pytest.raises((ValueError, TypeError), match="count") as caught:
            call()
        assert len(str(caught.value)) < 120


def test_fixed_schedules_count_far_beyond_32_bits():
    """Breaks when a counter wraps, rounds down, or forgets that a count was not valid."""
    phases = (jaxdp.Gaussian(1e5), 3_000_000_000), jaxdp.Gaussian(2e5)
    one, two = (
        training.init_fixed(jaxdp.Gaussian(1e5), method=None),
        training.init_fixed(*phases, method=None),
    )
    spent = jax.jit(
        lambda state, n: training.epsilon(training.update(training.update(state, count=n)), 1e-5)
    )
    many = np.asarray([0.0, 1e6, 2.0**31, 4e9, 1e12])
    known = [float(training.epsilon(training.update(one, count=n), 1e-5)) for n in many[3:]]
    mu = np.sqrt(many[1:] + 1.0) / 1e5
    np.testing.assert_allclose(known, jaxdp.gdp_to_epsilon(mu[2:], 1e-5), rtol=1e-6)
    found = jax.vmap(lambda n: spent(one, n))(many.astype(np.float32))
    np.testing.assert_allclose(found[1:], jaxdp.gdp_to_epsilon(mu, 1e-5), rtol=1e-6)
    assert np.all(np.asarray(known, float) >= np.asarray(jaxdp.gdp_to_epsilon(mu[2:], 1e-5)))
    late = float(training.epsilon(training.update(two, count=4_000_000_000), 1e-5))
    mu = np.sqrt(3e9 / 1e10 + 1e9 / 4e10)
    assert late == pytest.approx(float(jaxdp.gdp_to_epsilon(mu, 1e-5)), rel=1e-6)
    for kind in (jnp.uint32, jnp.int32, jnp.int8, jnp.float16):
        assert np.isfinite(spent(one, jnp.asarray(3, kind)))
    assert spent(one, jnp.asarray(4e9, jnp.uint32)) == pytest.approx(known[0], rel=1e-6)
    bad = jax.vmap(lambda n: spent(one, n))(jnp.asarray([-15.0, 0.9, jnp.nan, jnp.inf]))
    assert np.all(np.isnan(bad))
    assert np.isnan(spent(one, jnp.asarray(-15)))
    assert spent(one, jnp.asarray(1e30)) == jnp.inf
    counts = training.update(training.update(one, count=2**59 - 2))
    assert (int(counts.steps), counts.counter.tolist()) == (2**31 - 1, [2**29 - 1, 2**30 - 1])
    assert training.epsilon(training.update(counts), 1e-5) == jnp.inf
    assert int(training.update(one, count=7).steps) == 7


def test_a_fixed_schedule_takes_no_settings():
    """Breaks when settings are accepted and ignored."""
    fixed = training.init_fixed(jaxdp.Gaussian(1.0))
    with pytest.raises(ValueError, match="sampling_probability must not be given"):
        training.update(fixed, sampling_probability=0.1)
    with pytest.raises(ValueError, match="sigma must not be given"):
        training.update(fixed, sigma=1.0)
    with pytest.raises(ValueError, match="sampling_probability must not be given"):
        training.track_privacy(optax.sgd(1.0), sampling_probability=0.1, accountant=fixed)
    optimiser = training.track_privacy(optax.sgd(1.0), accountant=fixed)
    state = optimiser.init(jnp.ones(2))
    with pytest.raises(ValueError, match="noise_multiplier must not be given"):
        optimiser.update(jnp.ones(2), state, noise_multiplier=1.0)
    with pytest.raises(ValueError, match="noise_multiplier"):
        training.track_privacy(optax.sgd(1.0), noise_multiplier=-1.0)
    with pytest.raises(ValueError, match="batches='poisson' must be said"):
        training.track_privacy(optax.sgd(1.0), noise_multiplier=1.0, sampling_probability=0.1)
    whole = training.track_privacy(optax.sgd(1.0), noise_multiplier=1.0)
    state = whole.init(jnp.ones(2))
    with pytest.raises(ValueError, match="batches='poisson' must be said"):
        whole.update(jnp.ones(2), state, sampling_probability=0.1)
    with pytest.raises(ValueError, match="batches must be 'poisson', got 'shuffled'"):
        training.track_privacy(optax.sgd(1.0), noise_multiplier=1.0, batches="shuffled")
    with pytest.raises(TypeError, match="state"):
        training.fits(fixed, sigma=1.0)
    with pytest.raises(TypeError, match="state"):
        training.update((), sigma=1.0)


_SETTINGS = np.asarray(  # sigma, sampling probability, count; the first ten are not valid
    [
        *[(1.0, 0.1, n) for n in (-3.0, 0.5, np.nan, np.inf)],
        *[(s, 0.1, 1.0) for s in (-1.0, 0.0, np.inf)],
        *[(1.0, q, 0.0) for q in (0.0, 1.5, np.nan)],
        *[(1e-20, 0.1, 1.0), (1e30, 0.1, 1.0), (1e30, 1e-30, 1.0), (3e38, 1.0, 1e30)],
    ]
)


def test_traced_settings_out_of_domain_are_never_private_and_extremes_are_answered():
    """Breaks when a bad setting gives a finite epsilon or fits, or a good one gives nan."""
    budget = training.init_filter(epsilon=1.0, delta=1e-5)

    @jax.jit
    @jax.vmap
    def spent(sigma, q, n):
        settings = {"sigma": sigma, "sampling_probability": q, "count": n}
        after = training.update(training.init((2.0, 4.5, 32.0)), **settings)
        later = training.update(after, sigma=5.0)
        fits = training.fits(budget, **settings)
        still = training.fits(training.update(budget, **settings), sigma=1e3)
        return training.epsilon(after, 1e-5), training.epsilon(later, 1e-5), fits, still

    after, later, fits, still = spent(*jnp.asarray(_SETTINGS.T, jnp.float32))
    assert np.all(np.isnan(after[:10]) & np.isnan(later[:10]))
    assert not np.any(fits[:10] | still[:10])
    assert after[10] == later[10] == np.inf  # within 1e40 of the truth, no float32 is
    assert np.all(np.isfinite(after[11:]) & (after[11:] > 0.0))
    np.testing.assert_array_equal(fits[10:], [False, True, True, True])


@pytest.mark.parametrize("x64", [False, True])
def test_known_extremes_are_answered_on_the_safe_side(x64):
    """Breaks when squares overflow, subnormal numbers are taken for 0 or steps are free."""
    with jax.enable_x64(x64):
        empty = training.init((2.0, 4.5, 32.0))

        def spent(sigma, q, n):
            state = training.update(empty, sigma=sigma, sampling_probability=q, count=n)
            return float(training.epsilon(training.update(state, sigma=sigma, count=0), 1e-5))

        assert spent(1e-160, 0.1, 1) == spent(5e-324, 1.0, 1) == np.inf
        assert spent(1.0, 0.1, 1e300) > 1e38
        nothing = [spent(1e160, 0.1, 1), spent(1e308, 1.0, 10**15), spent(3.0, 5e-324, 1)]
        assert np.all(np.isfinite(nothing))
        assert min(nothing) > 0.0
        assert max(nothing) < 0.3
        assert spent(1e-160, 1e-300, 0) == 0.0


@pytest.mark.parametrize(
    ("epsilon", "delta", "name"),
    [
        *[(e, 1e-5, "epsilon") for e in (0.0, np.inf, np.nan, True, "1", np.ones(2), 10**400)],
        *[(1.0, d, "delta") for d in (0.0, 1.0, np.nan, -1e-9, None)],
    ],
)
def test_filters_refuse_targets_outside_their_domains(epsilon, delta, name):
    """Breaks when a filter without a meaning is built."""
    with pytest.raises((ValueError, TypeError), match=name):
        training.init_filter(epsilon=epsilon, delta=delta)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-3, 1e-10), (0.05, 1e-6), (0.01, 1e-30)])
def test_small_targets_have_an_order(epsilon, delta):
    """Breaks where orders end too early: no step was allowed, or 3 % fewer than by others."""
    budget = training.init_filter(epsilon=epsilon, delta=delta)
    (alpha,) = budget.accountant.orders

    def room(alpha):
        return _filter._budgets(epsilon, delta, (alpha,))[0] / (alpha * (alpha - 1.0))

    assert room(alpha) >= 0.999 * max(room(alpha * x) for x in np.geomspace(0.1, 10.0, 101))
    assert bool(training.fits(budget, sigma=1e6))


def test_a_filter_of_a_vast_budget_lets_everything_pass():
    """Breaks when the budget overflows to nan."""
    budget = training.init_filter(epsilon=1e308, delta=5e-324)
    assert bool(training.fits(budget, sigma=1.0, count=10**6))
