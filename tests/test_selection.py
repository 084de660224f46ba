"""Private selection: against enumeration of candidates, all adaptive choices, and quadrature."""

import functools
import itertools

import jax
import mpmath as mp
import numpy as np
import pytest
from scipy import special, stats

import calibrate
import jaxdp

X = np.linspace(-1.4, 1.4, 15)
RUN = functools.partial(jaxdp.Repeated, jaxdp.ExponentialMechanism(0.5), 16)


@pytest.fixture(autouse=True)
def x64():
    with jax.enable_x64(True):
        yield


def _exponential(scores, epsilon):
    return special.softmax(0.5 * epsilon * np.asarray(scores))


def _permute_and_flip(scores, epsilon):
    accept = np.exp(0.5 * epsilon * (np.asarray(scores) - np.max(scores)))
    law = np.zeros(len(scores))
    orders = list(itertools.permutations(range(len(scores))))
    for order in orders:
        left = 1.0 / len(orders)
        for r in order:
            law[r] += left * accept[r]
            left *= 1.0 - accept[r]
    return law


def _noisy_max_laplace(scores, epsilon):
    z = np.linspace(-60.0, 60.0, 120_001)
    noise = stats.laplace(scale=2.0 / epsilon)
    scores = np.asarray(scores)
    laws = []
    for r, score in enumerate(scores):
        others = np.prod([noise.cdf(z - u) for u in np.delete(scores, r)], axis=0)
        laws.append(np.sum(noise.pdf(z - score) * others) * (z[1] - z[0]))
    return np.asarray(laws)


def _neighbours():
    """Scores of three candidates, and all that one record can make of them."""
    for base in ((0.0, 0.0, 0.0), (0.0, 1.3, -0.7), (2.0, 0.4, 0.1), (0.0, 0.0, 3.0)):
        for move in itertools.product((-1.0, 0.0, 1.0), repeat=3):
            yield np.asarray(base), np.asarray(base) + np.asarray(move)


def _curve(p, q):
    return np.sum(np.maximum(p - np.exp(X)[:, None] * q, 0.0), axis=1)


@pytest.mark.parametrize(
    ("law", "mechanism"),
    [
        (_exponential, jaxdp.ExponentialMechanism),
        (_exponential, jaxdp.ReportNoisyMax),
        (_permute_and_flip, jaxdp.PermuteAndFlip),
        (_noisy_max_laplace, functools.partial(jaxdp.ReportNoisyMax, noise="laplace")),
    ],
)
def test_one_selection_is_dominated_and_two_candidates_attain_it(law, mechanism):
    epsilon = 1.2
    bound = np.asarray(jaxdp.delta(mechanism(epsilon), X))
    found = [_curve(law(a, epsilon), law(b, epsilon)) for a, b in _neighbours()]
    assert np.all(np.max(found, axis=0) <= bound + 1e-7)
    if law is _noisy_max_laplace:  # the difference of two such noises is not Laplace
        return
    gaps = np.linspace(-12.0, 12.0, 2401)
    pairs = [(law((g, 0.0), epsilon), law((g - 1.0, 1.0), epsilon)) for g in gaps]
    attained = np.max([_curve(p, q) for p, q in pairs], axis=0)
    np.testing.assert_allclose(attained, bound, rtol=1e-3, atol=1e-4)


RHO, RHO_WEIGHTS = (
    np.concatenate(a)
    for a in zip(
        *(
            (
                a + 0.5 * (b - a) * (1.0 + np.polynomial.legendre.leggauss(40)[0]),
                0.5 * (b - a) * np.polynomial.legendre.leggauss(40)[1],
            )
            for a, b in itertools.pairwise(np.arange(-120.0, 120.5, 0.5))
        ),
        strict=True,
    )
)


def _sparse_vector(values, epsilon, count, monotone):
    """Probabilities of all answers, integrated over the threshold's noise (kinks at halves)."""
    draws = count if monotone else 2 * count
    ratio = draws ** (2.0 / 3.0)
    first = epsilon / (1.0 + ratio)
    weight = RHO_WEIGHTS * stats.laplace.pdf(RHO, scale=1.0 / first)
    above = [stats.laplace.sf(RHO - v, scale=draws / (first * ratio)) for v in values]
    states = {(): weight}
    for a in above:
        following = {}
        for answers, w in states.items():
            if sum(answers) == count:
                following[(*answers, 0)] = w
            else:
                following[(*answers, 1)] = w * a
                following[(*answers, 0)] = w * (1.0 - a)
        states = following
    return {answers: float(np.sum(w)) for answers, w in states.items()}


@pytest.mark.parametrize(("count", "monotone"), [(1, False), (1, True), (2, False), (2, True)])
def test_sparse_vector_is_dominated(count, monotone):
    """Breaks when the pair is below what some series of answers tells, in either direction."""
    epsilon = 1.5
    m = jaxdp.SparseVector(epsilon, count, monotone)
    bound = np.asarray(jaxdp.delta(m, X))
    pure = np.asarray(jaxdp.delta(jaxdp.RandomizedResponse(epsilon), X))
    assert np.all(bound <= pure * (1.0 + 1e-12))
    inside = np.abs(X) < 0.9 * epsilon
    assert np.all(bound[inside] < 0.999 * pure[inside])
    moves = itertools.product((0.0, 1.0) if monotone else (-1.0, 1.0), repeat=4)
    largest = np.zeros(X.size)
    bases = ((0.0,) * 4, (-4.0, 2.0, -4.0, 2.0), (-20.0, -20.0, -20.0, 20.0), (-9.0, -9.0, -9.0, 9))
    for move, base in itertools.product(moves, bases):
        ours = _sparse_vector(base, epsilon, count, monotone)
        theirs = _sparse_vector(np.asarray(base) + np.asarray(move), epsilon, count, monotone)
        p, q = (np.asarray([law[k] for k in ours]) for law in (ours, theirs))
        assert p.sum() == pytest.approx(1.0, rel=1e-9)
        for one, two in ((p, q), (q, p)):
            gap = np.maximum(one - np.exp(X)[:, None] * two, 0.0).sum(axis=1)
            largest = np.maximum(largest, gap)
    assert np.all(largest <= bound + 1e-9)
    assert np.max(largest / np.maximum(bound, 1e-3)) > 0.7


def test_sparse_vector_has_a_law_and_moments():
    """Breaks when the curve, the masses, the moments and their composition do not agree."""
    epsilon, alpha = 1.5, np.array([1.5, 2.0, 9.0])
    for count, monotone in ((1, True), (1, False), (5, False)):
        m = jaxdp.SparseVector(epsilon, count, monotone)
        ratio = (count if monotone else 2 * count) ** (2.0 / 3.0)
        d = epsilon * (ratio - 1.0) / (ratio + 1.0)
        # from the curve alone: Q{L > x} is its slope in e^x, by its definition
        grid = np.linspace(d, epsilon, 200_001)
        middle, density = 0.5 * (grid[1:] + grid[:-1]), 0.25 * np.exp(-0.5 * epsilon)
        mass = density * np.exp(-0.5 * middle) * np.diff(grid)
        mirror = mass * np.exp(middle)
        ends = 0.5 * np.tanh(d / 2) * np.exp(-0.5 * (epsilon + np.array([-d, d])))
        losses = np.concatenate([[-epsilon, epsilon, -d, d], middle, -middle])
        q = np.concatenate([[0.5, 0.5 * np.exp(-epsilon)], ends, mass, mirror])
        assert q.sum() == pytest.approx(1.0, rel=1e-9)
        curve = [np.sum(q * np.maximum(np.exp(losses) - np.exp(x), 0.0)) for x in X]
        np.testing.assert_allclose(jaxdp.delta(m, X), curve, rtol=1e-8, atol=1e-10)
        moments = [np.log(np.sum(q * np.exp(a * losses))) / (a - 1.0) for a in alpha]
        np.testing.assert_allclose(jaxdp.renyi(m, alpha), moments, rtol=1e-8)
    run = jaxdp.Repeated(jaxdp.SparseVector(0.3), 30)
    low, high = jaxdp.epsilon_bounds(run, 1e-5)
    pure = jaxdp.epsilon_bounds(jaxdp.Repeated(jaxdp.RandomizedResponse(0.3), 30), 1e-5)
    assert 0.999 * high < low <= high < 0.97 * pure[0]
    assert high < jaxdp.epsilon(run, 1e-5, method=jaxdp.Renyi())


def _adaptive(epsilon, steps, cells):
    """The optimal composition from below, t and the level on a lattice (NumPy, no rounding up)."""
    h = epsilon / cells
    x = h * np.arange(-steps * cells, steps * cells + 1)
    t = np.arange(cells + 1)
    p = -np.expm1(t * h - epsilon) / -np.expm1(-epsilon)
    value = np.maximum(1.0 - np.exp(x), 0.0)
    for _ in range(steps):
        known = np.concatenate([1.0 - np.exp(x[0] - h * np.arange(cells, 0, -1)), value])
        known = np.concatenate([known, np.zeros(cells)])
        at = np.arange(x.size)[:, None] - t + cells
        value = np.max(p * known[at] + (1.0 - p) * known[at + cells], axis=1)
    return x, value


@pytest.mark.parametrize(("epsilon", "steps", "peers"), [(0.5, 16, 5.22), (1.0, 4, 3.80)])
def test_repeated_selection_has_the_optimal_adaptive_composition(epsilon, steps, peers):
    run = jaxdp.Repeated(jaxdp.ExponentialMechanism(epsilon), steps)
    deltas = np.array([1e-6, 1e-3, 0.05])
    low, high = (np.asarray(e) for e in jaxdp.epsilon_bounds(run, deltas))
    x, value = _adaptive(epsilon, steps, 192)
    inside = (x >= 0.0) & (value > 1e-12)
    truth = np.interp(-np.log(deltas), -np.log(value[inside]), x[inside])
    assert np.all(low <= truth + 2e-4)
    assert np.all(truth - 2e-4 <= high)
    assert high[0] < peers
    assert np.all(high - low < 0.01 * epsilon)
    some = np.linspace(0, x.size - 1, 9).astype(int)
    assert np.all(value[some] <= np.asarray(jaxdp.delta(run, x[some])) * (1.0 + 1e-12) + 1e-15)


def test_moments_are_those_of_the_worst_pair():
    epsilon, alphas = 0.7, np.array([1.0, 1.5, 2.0, 5.0, 40.0])
    t = np.linspace(0.0, epsilon, 20_001)[1:-1, None]
    p = np.expm1(t - epsilon) / np.expm1(-epsilon)
    moments = np.log(p * np.exp((alphas - 1) * t) + (1 - p) * np.exp((alphas - 1) * (t - epsilon)))
    truth = np.max(moments[:, 1:] / (alphas[1:] - 1.0), axis=0)
    kl = np.max(p * t + (1.0 - p) * (t - epsilon))
    found = np.asarray(jaxdp.renyi(jaxdp.ExponentialMechanism(epsilon), alphas))
    np.testing.assert_allclose(found, [kl, *truth], rtol=1e-7)
    assert np.all(found <= epsilon**2 * alphas / 8.0)


@pytest.mark.parametrize("epsilon", [1e-6, 0.03, 4.0, 300.0])
def test_moments_of_all_orders(epsilon):
    """Breaks where the worst pair is lost to rounding: a smaller moment is no bound."""
    alphas = np.array([1.0 + 1e-9, 1.01, 2.0, 30.0, 1e3, 1e6, 1e9])
    with mp.workdps(60):
        e, worst = mp.mpf(epsilon), []
        for s in map(mp.mpf, alphas.tolist()):
            c = mp.exp(-e)
            best = (s - 1) * (1 - c**s) / (s * (c - c**s))
            moment = best ** (s - 1) * (1 - c**s) / (s * (1 - c))
            worst.append(mp.log(moment) / (s - 1))
        found = np.asarray(jaxdp.renyi(jaxdp.ExponentialMechanism(epsilon), alphas)).tolist()
        for value, exact in zip(found, worst, strict=True):
            assert exact <= value <= exact * (1 + mp.mpf("1e-9"))


def test_sampled():
    """Breaks when a sampled curve or moment is below that of some pair, or far above them all."""
    epsilon, q, alphas = 1.5, 0.2, np.array([2.0, 8.0, 60.0])
    t = np.linspace(0.0, epsilon, 4001)[1:-1, None]
    absent = np.concatenate([np.exp(-t) * np.expm1(t - epsilon), np.expm1(-t)], axis=1)
    absent /= np.expm1(-epsilon)  # Q of the losses t and t - epsilon
    ratio = 1.0 - q + q * np.exp(np.concatenate([t, t - epsilon], axis=1))
    m = jaxdp.PoissonSampled(jaxdp.ExponentialMechanism(epsilon), q)
    for direction, loss in (("remove", ratio), ("add", 1.0 / ratio)):
        weight = absent if direction == "remove" else absent * ratio
        g = np.exp(np.array([0.0, 0.1, 0.3, 0.6]))[:, None, None]
        curve = np.max(np.sum(weight * np.maximum(loss - g, 0.0), axis=2), axis=1)
        found = np.asarray(jaxdp.delta(m, np.log(g[:, 0, 0]), direction=direction))
        assert np.all(found >= curve - 1e-12)
        np.testing.assert_allclose(found, curve, rtol=1e-3, atol=1e-6)
        a = alphas[:, None, None]
        moment = np.max(np.log(np.sum(weight * loss**a, axis=2)), axis=1) / (alphas - 1.0)
        bound = np.asarray(jaxdp.renyi(m, alphas, direction=direction))
        assert np.all(bound >= moment * (1.0 - 1e-9))
        assert np.all(bound <= 2.0 * moment)


@pytest.mark.parametrize(
    "mechanism",
    [
        jaxdp.ExponentialMechanism(1.0),
        jaxdp.PermuteAndFlip(1.0),
        jaxdp.ReportNoisyMax(1.0, "laplace"),
        jaxdp.SparseVector(1.0),
    ],
    ids=lambda m: type(m).__name__,
)
@pytest.mark.parametrize("direction", ["remove", "add"])
def test_sampled_epsilon_is_the_inverse_of_delta(mechanism, direction):
    """Breaks when the curve of a sampled selection cannot be read at a delta."""
    m = jaxdp.PoissonSampled(mechanism, 0.1)
    epsilon = jaxdp.epsilon(m, 1e-3, direction=direction)
    assert 0.05 < epsilon < 0.2
    np.testing.assert_allclose(jaxdp.delta(m, epsilon, direction=direction), 1e-3, rtol=1e-6)


def test_extremes():
    epsilon = np.array([1e-12, 1e-4, 5.0, 29.0, 50.0, 700.0, 1e4])
    run = jaxdp.Repeated(jaxdp.ExponentialMechanism(epsilon), np.array([1.0, 16.0])[:, None])
    for delta in (1e-9, 1e-250):
        found = np.asarray(jaxdp.epsilon(run, delta))
        assert np.all(np.isfinite(found))
        assert np.all(found[1] <= 16.0 * epsilon * (1.0 + 1e-9))
        assert np.all(found[1] >= found[0] * (1.0 - 1e-9))
        assert np.all(found[0][2:] > 0.97 * epsilon[2:])


@pytest.mark.slow
def test_beside_other_mechanisms():
    """Breaks when a bound is on the wrong side of the optimal adaptive composition, or far from it.

    By quadrature: the Gaussian's outcome first, then the choices that are best for what it showed.
    """
    run = jaxdp.Composed([RUN(), jaxdp.Gaussian(2.0)])
    eps = np.array([0.5, 1.0, 3.0, 5.0])
    below, above = (np.asarray(d) for d in jaxdp.delta_bounds(run, eps))
    x, value = _adaptive(0.5, 16, 192)
    z = np.linspace(-12.0, 12.0, 4001)
    loss = 0.5 * z - 0.125
    left = eps[:, None] - loss
    curve = np.where(left < x[0], -np.expm1(left), np.interp(left, x, value, right=0.0))
    truth = np.sum(stats.norm.pdf(z) * np.exp(loss) * curve, axis=1) * (z[1] - z[0])
    assert np.all(below <= truth * (1.0 + 1e-6))
    assert np.all(truth <= above * (1.0 + 1e-6))
    assert np.all(above < 1.02 * below)


@pytest.mark.slow
def test_two_kinds_beside_each_other():
    """Above the best of both apart, below the sum; and more steps than are tabulated."""
    two = jaxdp.Composed(
        [RUN(), jaxdp.Repeated(jaxdp.ExponentialMechanism(0.2), np.array([9, 400]))]
    )
    low, high = (np.asarray(e) for e in jaxdp.epsilon_bounds(two, 1e-6))
    alone = float(jaxdp.epsilon_bounds(RUN(), 1e-6)[0])
    assert np.all(alone < low)
    assert np.all(low <= high)
    assert high[0] < 1.05 * low[0]
    assert high[1] < 1.3 * low[1]


def test_gradients_and_calibration():
    def epsilon(e):
        return jaxdp.epsilon(jaxdp.Repeated(jaxdp.ExponentialMechanism(e), 16), 1e-6)

    found, ends = float(jax.grad(epsilon)(0.5)), epsilon(np.array([0.499, 0.501]))
    assert found == pytest.approx(float(ends[1] - ends[0]) / 0.002, rel=0.05)
    solution = calibrate.solve(
        lambda e: jaxdp.Repeated(jaxdp.ExponentialMechanism(e), 16), epsilon=2.0, delta=1e-6
    )
    assert 0.2 < float(solution.value) < 0.26
    assert float(solution.delta) <= 1e-6


@pytest.mark.parametrize(
    ("mechanism", "law"),
    [
        (jaxdp.ExponentialMechanism(1.5), _exponential),
        (jaxdp.PermuteAndFlip(1.5), _permute_and_flip),
        (jaxdp.ReportNoisyMax(1.5, "laplace"), _noisy_max_laplace),
    ],
)
def test_draws(mechanism, law):
    scores = np.array([0.0, 1.0, -1.0, 0.5])
    draws = np.asarray(mechanism.sample(jax.random.key(3), np.tile(scores, (20_000, 1))))
    counts = np.bincount(draws, minlength=4)
    assert stats.chisquare(counts, 20_000 * law(scores, 1.5) / law(scores, 1.5).sum()).pvalue > 1e-3


def test_bad_arguments():
    with pytest.raises(ValueError, match="epsilon"):
        jaxdp.ExponentialMechanism(-1.0)
    with pytest.raises(ValueError, match="noise"):
        jaxdp.ReportNoisyMax(1.0, "gaussian")
    with pytest.raises(TypeError, match="monotone"):
        jaxdp.PermuteAndFlip(1.0, 2)
    with pytest.raises(ValueError, match="num_positive"):
        jaxdp.SparseVector(1.0, 0)
    with pytest.raises(ValueError, match="replace_one"):
        jaxdp.replace_one(jaxdp.ExponentialMechanism(1.0))


def test_one_step_repeated_is_the_step():
    """Breaks when one step in a composition is read from the lattice of many."""
    once = jaxdp.ExponentialMechanism(np.array([0.01, 1.0, 20.0]))
    with jax.enable_x64(True):
        run = jaxdp.Repeated(once, 1)
        for asked, at in ((jaxdp.epsilon_bounds, 1e-6), (jaxdp.delta_bounds, 0.009)):
            np.testing.assert_allclose(asked(run, at), asked(once, at), rtol=1e-9)


def _allocated(epsilon, steps, level, choices=400):
    """delta of one of so many exponential mechanisms, the worst pair of losses t, t - epsilon."""
    worst = 0.0
    for t in np.linspace(0.0, epsilon, choices):
        often = np.expm1(t - epsilon) / np.expm1(-epsilon)
        p, loss = np.array([often, 1.0 - often]), np.array([t, t - epsilon])
        outcomes = np.array(list(itertools.product((0, 1), repeat=steps)))
        q = np.prod((p * np.exp(-loss))[outcomes], axis=1)
        ratio = np.mean(np.exp(loss)[outcomes], axis=1)
        worst = max(worst, q @ np.maximum(ratio - np.exp(level), 0.0))
    return worst


@pytest.mark.parametrize(
    ("epsilon", "steps", "level"), [(2.0, 3, 0.8), (6.0, 3, 3.0), (1.0, 2, 0.1)]
)
def test_what_is_known_by_its_range_is_attained_at_any_depth(epsilon, steps, level):
    """Breaks when a bound below is of the envelope of pairs, which no mechanism has."""
    run = jaxdp.RandomAllocation(jaxdp.ExponentialMechanism(epsilon), steps)
    with jax.enable_x64(True):
        low, high = jaxdp.delta_bounds(run, level, direction="remove")
        tuned = jaxdp.RepeatAndSelect(jaxdp.ExponentialMechanism(epsilon), 3.0)
        largest = jaxdp.epsilon_bounds(tuned, 0.0)
    truth = _allocated(epsilon, steps, level)
    assert 0.6 * truth <= low <= truth * (1.0 + 1e-3)
    assert truth <= high
    assert largest[0] < largest[1]  # no one pair has the largest loss and the largest weight


@pytest.mark.parametrize(("direction", "share"), [("remove", 0.3), ("remove", 0.5), ("add", 0.75)])
def test_few_sampled_steps_near_the_end(direction, share):
    """Breaks when the bound below is of two outcomes that are far from the worst ones there."""
    epsilon, q, steps = 2.0, 0.5, 4
    top = np.log1p(q * np.expm1(epsilon))
    level = share * steps * top
    worst = 0.0
    for t in np.linspace(0.0, epsilon, 201):
        often = np.expm1(t - epsilon) / np.expm1(-epsilon)
        absent = np.array([often, 1.0 - often]) * np.exp([-t, epsilon - t])
        ratio = 1.0 - q + q * np.exp([t, t - epsilon])
        k = np.arange(steps + 1)
        count = special.comb(steps, k) * absent[0] ** k * absent[1] ** (steps - k)
        of_all = ratio[0] ** k * ratio[1] ** (steps - k)
        excess = of_all - np.exp(level) if direction == "remove" else 1.0 - np.exp(level) * of_all
        worst = max(worst, count @ np.maximum(excess, 0.0))
    run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.ExponentialMechanism(epsilon), q), steps)
    with jax.enable_x64(True):
        low, high = jaxdp.delta_bounds(run, level, direction=direction)
    assert 0.6 * worst <= low <= worst * (1.0 + 1e-3)
    assert worst <= high
