"""Runs with separated participations, by enumeration of all participations and all answers."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxdp
from tests.programs import jit

LOSS = 0.9  # of randomised response: ratios e^{+-LOSS}
EPSILONS = np.array([-1.2, -0.4, -0.1, 0.0, 0.05, 0.2, 0.5, 0.9, 1.4, 2.2])
STEP = jaxdp.RandomizedResponse(LOSS)


def _patterns(p, b, steps, waits):
    """Which steps a record joins, with their probabilities, from a law of the first wait."""
    found = {}
    for joined in itertools.product((0, 1), repeat=steps):
        chance = 0.0
        for wait, weight in enumerate(waits):
            for one in joined:
                if wait:
                    weight *= not one
                    wait -= 1
                else:
                    weight *= p if one else 1.0 - p
                    wait = b - 1 if one else 0
            chance += weight
        if chance:
            found[joined] = chance
    assert sum(found.values()) == pytest.approx(1.0)
    return found


def _warm(p, b):
    """The stationary law of the steps until a record is free."""
    busy = p / (1.0 + (b - 1) * p)
    return [1.0 - (b - 1) * busy] + [busy] * (b - 1)


def _curves(weights, steps):
    """delta of removing and adding, from {joined: probability}, over all answers."""
    kept = np.exp(LOSS) / (1.0 + np.exp(LOSS))
    remove, add = np.zeros(EPSILONS.size), np.zeros(EPSILONS.size)
    g = np.exp(EPSILONS)
    for answers in itertools.product((0, 1), repeat=steps):
        q = np.prod([1.0 - kept if one else kept for one in answers])
        ratios = [np.exp(LOSS) if one else np.exp(-LOSS) for one in answers]
        x = sum(
            w * np.prod([r for r, one in zip(ratios, joined, strict=True) if one])
            for joined, w in weights.items()
        )
        remove += q * np.maximum(x - g, 0.0)
        add += q * np.maximum(1.0 - g * x, 0.0)
    return remove, add


def _weights_of(m):
    """{joined: probability} of the run that is accounted for, and its number of steps."""
    if isinstance(m, jaxdp.PoissonSampled):
        q = float(m.sampling_probability)
        return {(1,): q, (0,): 1.0 - q}, 1
    if isinstance(m, jaxdp.Repeated):
        one, steps = _weights_of(m.mechanism)
        return _product(one, int(m.count)), steps * int(m.count)
    if isinstance(m, jaxdp.RandomAllocation):
        one, length = _weights_of(m.mechanism)
        (held,) = one
        t, none = int(m.num_steps), (0,) * length
        epoch = {}
        for j in range(t):
            epoch[none * j + held + none * (t - j - 1)] = 1.0 / t
        return _product(epoch, int(m.num_epochs)), t * length * int(m.num_epochs)
    assert m == STEP
    return {(1,): 1.0}, 1


def _product(one, count):
    whole = {(): 1.0}
    for _ in range(count):
        whole = {a + b: v * w for a, v in whole.items() for b, w in one.items()}
    return whole


@pytest.mark.parametrize(
    ("p", "b", "steps", "kind"),
    [
        (0.3, 3, 6, "Repeated"),
        (0.4, 3, 6, "RandomAllocation"),
        (0.7, 2, 5, "Repeated"),
        (0.5, 4, 8, "RandomAllocation"),
        (0.26, 4, 8, "RandomAllocation"),
        (0.2, 2, 6, "Repeated"),
        (1.0, 3, 7, "Repeated"),
    ],
)
@pytest.mark.parametrize("warm_start", [False, True])
def test_b_min_sep_is_dominated(p, b, steps, kind, warm_start):
    """Breaks when a run that a record can see is above the bound, in either direction."""
    m = jaxdp.min_sep_sampled(STEP, p, b, steps, warm_start=warm_start)
    if not (warm_start and p == 1.0):
        assert type(m).__name__ == kind
    waits = _warm(p, b) if warm_start else [1.0]
    found = _curves(_patterns(p, b, steps, waits), steps)
    bound = _curves(*_weights_of(m))
    for name, ours, theirs in zip(("remove", "add"), found, bound, strict=True):
        assert np.all(ours <= theirs + 1e-12), (name, ours, theirs)
    if p == 1.0 and not warm_start:
        np.testing.assert_allclose(found, bound, atol=1e-13)


def test_b_min_sep_is_exact_at_its_ends():
    """Breaks when b = 1 is no Poisson sample, or the stationary p = 1 no balls and bins."""
    m = jaxdp.min_sep_sampled(STEP, 0.35, 1, 5)
    found = _curves(_patterns(0.35, 1, 5, [1.0]), 5)
    np.testing.assert_allclose(found, _curves(*_weights_of(m)), atol=1e-13)
    m = jaxdp.min_sep_sampled(STEP, 1.0, 3, 6, warm_start=True)
    assert isinstance(m, jaxdp.RandomAllocation)
    found = _curves(_patterns(1.0, 3, 6, _warm(1.0, 3)), 6)
    np.testing.assert_allclose(found, _balls_and_bins(3, 6), atol=1e-13)


def _balls_and_bins(b, steps):
    weights = {tuple(int(i % b == j) for i in range(steps)): 1.0 / b for j in range(b)}
    return _curves(weights, steps)


def test_a_window_has_the_majorizing_weights():
    """Breaks when p just above 1/k is given k steps: their weights would be below p."""
    for k in (2, 3, 7, 10):
        exact = jaxdp.min_sep_sampled(STEP, 1.0 / k, 50, 100)
        above = jaxdp.min_sep_sampled(STEP, np.nextafter(1.0 / k, 1.0), 50, 100)
        assert isinstance(exact, jaxdp.RandomAllocation)
        assert 1.0 / float(exact.num_steps) >= 1.0 / k
        steps = getattr(above, "num_steps", 1)
        assert float(steps) == k - 1


def test_cyclic_poisson_is_one_group():
    """Breaks when a record is in other steps than those of its group: all datasets of a record."""
    m = jaxdp.cyclic_poisson_sampled(STEP, 0.4, 3, 7)
    worst = np.zeros((2, EPSILONS.size))
    for group in range(3):
        weights = {}
        for joined in itertools.product((0, 1), repeat=7):
            chance = np.prod(
                [
                    (0.4 if one else 0.6) if i % 3 == group else 1.0 - one
                    for i, one in enumerate(joined)
                ]
            )
            if chance:
                weights[joined] = chance
        worst = np.maximum(worst, _curves(weights, 7))
    np.testing.assert_allclose(worst, _curves(*_weights_of(m)), atol=1e-13)
    assert jaxdp.cyclic_poisson_sampled(STEP, 0.4, 8, 7) == jaxdp.PoissonSampled(STEP, 0.4)
    cut = jaxdp.cyclic_poisson_sampled(
        jaxdp.Gaussian(1.0), 0.1, 4, 8, batch_size=20, group_size=100
    )
    step = jaxdp.TruncatedPoissonSampled(jaxdp.Gaussian(1.0), 0.1, 20, 100)
    assert cut == jaxdp.Repeated(step, 2)


@pytest.mark.parametrize(
    ("p", "b", "steps", "warm_start"),
    [(0.3, 3, 6, False), (0.4, 3, 6, True), (0.7, 2, 5, False), (1.0, 3, 6, True)],
)
def test_answers_of_b_min_sep_are_above_what_it_attains(p, b, steps, warm_start):
    """Breaks when a certified delta is below the enumerated run, by 1e-9 of it, either way."""
    m = jaxdp.min_sep_sampled(STEP, p, b, steps, warm_start=warm_start)
    waits = _warm(p, b) if warm_start else [1.0]
    found = _curves(_patterns(p, b, steps, waits), steps)
    with jax.enable_x64(True):
        for direction, exact in zip(("remove", "add"), found, strict=True):
            high = np.asarray(jaxdp.delta(m, EPSILONS, direction=direction))
            assert np.all(high >= exact * (1.0 - 1e-9)), direction


@pytest.mark.parametrize(
    ("q", "direction"),
    [
        (0.4, "remove"),
        (0.4, "add"),
        *(pytest.param(1.0, d, marks=pytest.mark.slow) for d in ("remove", "add")),
    ],
)
def test_bounds_of_cyclic_poisson_hold_its_run(q, direction):
    """Breaks when the bracket of the worst group's run leaves it, by 1e-9 of delta, either way."""
    m = jaxdp.cyclic_poisson_sampled(STEP, q, 3, 7)
    weights = {
        joined: np.prod([q if one else 1.0 - q for one in joined])
        for joined in itertools.product((0, 1), repeat=3)
    }
    exact = dict(zip(("remove", "add"), _curves(weights, 3), strict=True))[direction]
    with jax.enable_x64(True):
        low, high = (np.asarray(d) for d in jaxdp.delta_bounds(m, EPSILONS, direction=direction))
    assert np.all(high >= exact * (1.0 - 1e-9))
    assert np.all(low <= exact * (1.0 + 1e-9))
    assert np.all(high - low <= 1e-3 * exact + 1e-12)


def test_traced_and_differentiated():
    """Breaks when a traced rate is refused, or its run is not the one of a known rate."""

    def delta(sigma, p):
        run = jaxdp.min_sep_sampled(jaxdp.Gaussian(sigma), p, 4, 12)
        return jaxdp.delta(run, 1.0)

    known = delta(1.5, 0.1)
    values, (by_sigma, by_p) = jit(jax.value_and_grad(delta, argnums=(0, 1)))(
        jnp.float32(1.5), jnp.float32(0.1)
    )
    np.testing.assert_allclose(values, known, rtol=1e-4)
    assert by_sigma < 0.0 < by_p


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((STEP, 0.1, 0, 5), "min_separation"),
        ((STEP, 0.1, 2, 0), "num_steps"),
        ((STEP, 1.1, 2, 5), "sampling_probability"),
    ],
)
def test_known_mistakes_are_named(arguments, problem):
    with pytest.raises(ValueError, match=problem):
        jaxdp.min_sep_sampled(*arguments)
    with pytest.raises(ValueError, match=problem.replace("min_separation", "num_groups")):
        jaxdp.cyclic_poisson_sampled(*arguments)
    with pytest.raises(ValueError, match="together"):
        jaxdp.cyclic_poisson_sampled(STEP, 0.1, 2, 5, batch_size=3)
    with pytest.raises(TypeError, match="mechanism"):
        jaxdp.min_sep_sampled(0.1, 0.1, 2, 5)  # pyright: ignore[reportArgumentType]
