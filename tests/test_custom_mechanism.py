"""The contract of `CustomMechanism` and the tables of `LossDistribution`, against finite pairs."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest
from jax.scipy.stats import norm

import jaxdp
from tests.programs import jit

ORDERS = np.array([1.0, 1.5, 3.0, 20.0, 300.0])


@pytest.fixture(autouse=True)
def _x64():
    with jax.enable_x64(True):
        yield


class Revealing(jaxdp.CustomMechanism):
    """Three outcomes of both laws (losses -1, 1/2, 2), one of P alone and one of Q alone."""

    lost: float
    domains = {"lost": "probability"}

    def _table(self):
        p = jnp.array([0.2, 0.5, 0.3]) * (1.0 - self.lost)
        loss = jnp.array([-1.0, 0.5, 2.0])
        return loss, p * jnp.exp(-loss), p

    def log_masses(self, lo, hi):
        loss, q, p = self._table()
        inside = (lo[..., None] < loss) & (loss <= hi[..., None])
        sums = [jnp.sum(jnp.where(inside, x, 0.0), axis=-1) for x in (q, p)]
        return tuple(jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), -jnp.inf) for x in sums)

    def loss_range(self):
        return -1.0, 2.0

    def log_infinity(self):
        _, q, _ = self._table()
        return jnp.log(self.lost), jnp.log1p(-jnp.sum(q))


def _finite(lost):
    p = np.array([0.2, 0.5, 0.3]) * (1.0 - lost)
    q = p * np.exp(-np.array([-1.0, 0.5, 2.0]))
    return jaxdp.FinitePair([*p, lost, 0.0], [*q, 0.0, 1.0 - q.sum()])


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_curve_and_runs_are_those_of_the_finite_pair(direction):
    mine, truth = Revealing(0.01), _finite(0.01)
    epsilons = np.array([-1.2, -0.3, 0.0, 0.5, 1.9, 3.0])
    low, high = jaxdp.delta_bounds(mine, epsilons, direction=direction)
    known = jaxdp.delta(truth, epsilons, direction=direction)
    assert np.all(low <= known * (1 + 1e-13))
    assert np.all(known <= high * (1 + 1e-13))
    np.testing.assert_allclose(high, low, rtol=1e-9)


def _counts(total, kinds):
    """All ways to share `total` draws among so many kinds, and the logs of their numbers."""
    grids = np.meshgrid(*[np.arange(total + 1)] * (kinds - 1), indexing="ij")
    first = np.stack([g.ravel() for g in grids], axis=-1)
    first = first[first.sum(axis=-1) <= total]
    counts = np.column_stack([first, total - first.sum(axis=-1)])
    log_factorial = np.append(0.0, np.cumsum(np.log(np.arange(1.0, total + 1))))
    return counts, log_factorial[total] - log_factorial[counts].sum(axis=-1)


def _outcomes(lost):
    """X and Q of the outcomes that Q has, the last one being Q's alone."""
    p = np.array([0.2, 0.5, 0.3]) * (1.0 - lost)
    x = np.exp([-1.0, 0.5, 2.0])
    return np.append(x, 0.0), np.append(p / x, 1.0 - np.sum(p / x))


def test_runs_against_exact_enumeration():
    """30 Poisson-sampled steps, the larger of both directions."""
    rate, steps, lost, epsilon = 0.1, 30, 0.01, 1.0
    x, q = _outcomes(lost)
    x = 1.0 - rate + rate * x
    counts, log_ways = _counts(steps, 4)
    log_q, log_x = log_ways + counts @ np.log(q), counts @ np.log(x)
    finite = np.exp(log_q) @ np.maximum(np.exp(log_x) - np.exp(epsilon), 0.0)
    remove = finite - np.expm1(steps * np.log1p(-rate * lost))
    add = np.exp(log_q) @ np.maximum(1.0 - np.exp(epsilon + log_x), 0.0)
    run = jaxdp.Repeated(jaxdp.PoissonSampled(Revealing(lost), rate), steps)
    low, high = jaxdp.delta_bounds(run, epsilon)
    assert low <= max(remove, add) <= high <= 1.01 * low


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_renyi_is_an_upper_bound_close_to_the_exact_one(direction):
    """Of the law itself where nothing is lost, and of a sample: there "add" is finite."""
    for lost, rate in ((0.0, 1.0), (0.01, 0.1)):
        mine, truth = (jaxdp.PoissonSampled(m(lost), rate) for m in (Revealing, _finite))
        got, known = (jaxdp.renyi(m, ORDERS, direction=direction) for m in (mine, truth))
        finite = np.isfinite(known)
        assert np.array_equal(finite, np.isfinite(got))
        assert np.all(got[finite] >= known[finite] * (1 - 1e-12))
        np.testing.assert_allclose(got[finite], known[finite], rtol=2e-4)


def test_gradients_and_bad_parameters():
    def risk(m):
        return lambda x: jaxdp.delta(m(x), 0.3, direction="remove")

    slope = jit(jax.vmap(jax.grad(risk(Revealing))))(jnp.array([0.01, 0.2]))
    h = 1e-6
    for got, x in zip(slope, (0.01, 0.2), strict=True):
        ends = [float(risk(_finite)(x + d)) for d in (-h, h)]
        assert got == pytest.approx((ends[1] - ends[0]) / (2 * h), rel=1e-6)
    with pytest.raises(ValueError, match="lost must be in"):
        Revealing(1.5)
    assert np.isnan(jit(risk(Revealing))(1.5))
    with pytest.raises(ValueError, match="domains names"):

        class Wrong(Revealing):
            domains = {"loss": "positive"}

    with pytest.raises(TypeError, match="defines no sample"):
        Revealing(0.1).sample(jax.random.key(0), 0.0)


def test_an_unbounded_loss_has_infinite_renyi_divergence_and_a_numerical_epsilon():
    noise = jaxdp.AdditiveNoise(_gaussian)
    assert np.isinf(jaxdp.renyi(noise, 2.0))
    np.testing.assert_allclose(
        jaxdp.epsilon(noise, 1e-5), jaxdp.epsilon(jaxdp.Gaussian(1.0), 1e-5), rtol=1e-9
    )
    twice = jaxdp.replace_one(noise)
    np.testing.assert_allclose(
        jaxdp.epsilon(twice, 1e-5), jaxdp.epsilon(jaxdp.Gaussian(0.5), 1e-5), rtol=1e-9
    )


def _gaussian(y):
    return -0.5 * y**2


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_random_allocation_against_exact_enumeration(direction):
    """One of 20 steps: X is the mean of the steps' ratios."""
    lost, steps, epsilon = 1e-6, 20, 0.3
    x, q = _outcomes(lost)
    counts, log_ways = _counts(steps, 4)
    masses, mean = np.exp(log_ways + counts @ np.log(q)), counts @ x / steps
    if direction == "remove":
        truth = masses @ np.maximum(mean - np.exp(epsilon), 0.0) + lost
    else:
        truth = masses @ np.maximum(1.0 - np.exp(epsilon) * mean, 0.0)
    run = jaxdp.RandomAllocation(Revealing(lost), steps)
    low, high = jaxdp.delta_bounds(run, epsilon, direction=direction)
    assert low <= truth <= high <= 1.05 * low


def test_a_table_is_its_finite_pair():
    losses = np.array([2.0, -1.0, 0.5])  # in any order
    masses = np.array([0.3, 0.2, 0.5]) * 0.99
    table, truth = jaxdp.LossDistribution(losses, np.log(masses), 0.01), _finite(0.01)
    epsilons = np.array([-1.2, 0.0, 0.5, 3.0])
    for direction in ("remove", "add"):
        got, known = (jaxdp.delta(m, epsilons, direction=direction) for m in (table, truth))
        np.testing.assert_allclose(got, known, rtol=1e-12)
    low, high = jaxdp.delta_bounds(table, 1.0, method=jaxdp.Numerical(1024))
    assert low <= jaxdp.delta(truth, 1.0) <= high <= 1.06 * low


@pytest.mark.parametrize("loss", [1e-12, 1e-9, 1e-6, 1e-3, 1.0])
def test_what_small_losses_leave_of_q_keeps_its_digits(loss):
    """Breaks when it is 1 less a sum: an upper bound was 7.5e-4 (relative) below the truth.

    With losses (loss, 0) of masses (p, 1 - p), Q lacks p (1 - e^-loss): an infinite loss, to add.
    """
    share = np.array([1e-3, 0.15, 0.6, 0.999])
    logs = np.stack([np.log(share), np.log1p(-share)], axis=-1)
    truth = share * -np.expm1(-loss)
    with jax.enable_x64(True):
        table = jaxdp.LossDistribution(np.array([loss, 0.0]), logs)
        low, high = jaxdp.delta_bounds(table, 1.0, direction="add")
    assert np.all((low <= truth * (1.0 + 1e-15)) & (truth * (1.0 - 1e-15) <= high))
    np.testing.assert_allclose(low, high, rtol=1e-12)


@pytest.mark.parametrize("outcomes", [2, 5, 400])
def test_what_losses_of_both_signs_leave_of_q_keeps_its_digits(outcomes):
    """Breaks when terms that cancel are summed in double precision: of 1e-12 upper bounds were
    6e-5 (relative) below the truth, and lower ones above.
    """
    rng = np.random.default_rng(outcomes)
    rows, truth = [], []
    for lacks in 10.0 ** -np.linspace(3.0, 13.0, 11):
        size = 10.0 ** rng.uniform(-0.5, 1.0)
        losses = size * rng.uniform(-1.0, 1.0, outcomes)
        log_p = np.log(rng.dirichlet(np.ones(outcomes)))
        losses += np.log(np.sum(np.exp(log_p - losses)) / (1.0 - lacks))
        rows.append((losses, log_p))
        with mp.workdps(50):
            p = [mp.exp(mp.mpf(x)) for x in log_p]
            q = mp.fsum(x * mp.exp(-mp.mpf(loss)) for x, loss in zip(p, losses, strict=True))
            truth.append(float(1 - q / mp.fsum(p)))
    truth = np.array(truth)
    losses, log_p = (np.array(x) for x in zip(*rows, strict=True))

    def bounds(losses, log_p):
        table = jaxdp.LossDistribution(losses, log_p)
        return jaxdp.delta_bounds(table, 40.0, direction="add")

    for low, high in (bounds(losses, log_p), jax.jit(bounds)(losses, log_p)):
        assert np.all((low <= truth) & (truth <= high))
        np.testing.assert_allclose(low, high, rtol=1e-11)


@pytest.mark.parametrize(
    ("losses", "log_masses", "infinity", "sentence"),
    [
        ([0.0, np.inf], np.log([0.5, 0.5]), 0.0, "losses must be finite"),
        ([0.0, 1.0], np.log([0.5, 0.4]), 0.0, "sum to 1"),
        ([-1.0, -2.0], np.log([0.5, 0.5]), 0.0, "at most 1"),
        ([0.0], np.log([0.5, 0.5]), 0.0, "one length"),
    ],
)
def test_tables_that_are_no_laws_are_refused(losses, log_masses, infinity, sentence):
    with pytest.raises(ValueError, match=sentence):
        jaxdp.LossDistribution(losses, log_masses, infinity)


@pytest.mark.extra
def test_tables_of_dp_accounting_both_ways():
    pytest.importorskip("dp_accounting")
    from dp_accounting.pld import privacy_loss_distribution as dpa

    import jaxdp.interop

    step = jaxdp.PoissonSampled(Revealing(1e-6), 0.3)
    pld = jaxdp.interop.to_privacy_loss_distribution(step, value_discretization_interval=1e-2)
    epsilons = [-0.2, 0.0, 0.2, 1.0]
    for direction, table in (("remove", pld._pmf_remove), ("add", pld._pmf_add)):
        theirs = np.array([table.get_delta_for_epsilon(e) for e in epsilons])
        exact = np.asarray(jaxdp.delta(step, np.array(epsilons), direction=direction))
        assert np.all(theirs >= exact * (1 - 1e-13))
        assert np.all(theirs <= exact + 1e-2)
        law = jaxdp.interop.from_privacy_loss_distribution(pld, direction=direction)
        back = jaxdp.delta(law, np.array(epsilons), direction="remove")
        np.testing.assert_allclose(back, theirs, rtol=1e-9)
    optimistic = dpa.from_laplace_mechanism(1.0, pessimistic_estimate=False)
    with pytest.raises(ValueError, match="optimistic"):
        jaxdp.interop.from_privacy_loss_distribution(optimistic)
    with pytest.raises(ValueError, match="one step"):
        jaxdp.interop.to_privacy_loss_distribution(jaxdp.Repeated(jaxdp.Laplace(1.0), 2))


class Stated(jaxdp.CustomMechanism):
    """Losses -1 and 1, as a user may state them: each field is a mistake that may be made."""

    p: float = 0.7310585786300049  # of the loss 1, and of the other
    q: float = 0.2689414213699951
    rest: float = 0.2689414213699951
    end: float = 1.0
    start: float = -1.0
    lost: float = 0.0
    error: float = 0.0
    gap: float = 0.0  # what is added to the P-mass of every interval
    hole: float = 0.0  # the width of intervals whose masses are nan
    domains = {"lost": "probability"}

    def log_masses(self, lo, hi):
        up, down = (jnp.where((lo < x) & (x <= hi), 1.0, 0.0) for x in (1.0, -1.0))
        q = up * self.q + down * (1.0 - self.q)
        p = up * self.p + down * self.rest + self.gap * (lo < 0.5) * (hi > 0.5)
        hole = (0.4 * self.hole < hi - lo) & (hi - lo < 2.0 * self.hole)
        return tuple(jnp.where(hole, jnp.nan, jnp.log(x)) for x in (q, p))

    def loss_range(self):
        return self.start, self.end

    def log_infinity(self):
        return jnp.log(self.lost), -jnp.inf

    def mass_error(self):
        return self.error


class Symmetric(jaxdp.CustomMechanism):
    """Losses -1 and 1/2, which is no law that is its own mirror image."""

    symmetric = True

    def log_masses(self, lo, hi):
        q = np.expm1(0.5) / (np.exp(0.5) - np.exp(-1.0))  # of the loss -1
        down, up = (jnp.where((lo < x) & (x <= hi), 1.0, 0.0) for x in (-1.0, 0.5))
        log_q = jnp.log(q * down + (1.0 - q) * up)
        return log_q, jnp.log(q * np.exp(-1.0) * down + (1.0 - q) * np.exp(0.5) * up)


class NanRange(Stated):
    def loss_range(self):
        return jnp.nan, 1.0


class NanLost(Stated):
    def log_infinity(self):
        return -jnp.inf, jnp.nan


class Forgetful(Revealing):
    def log_infinity(self):
        return -jnp.inf, super().log_infinity()[1]


class ForgetfulOfQ(Revealing):
    def log_infinity(self):
        return super().log_infinity()[0], -jnp.inf


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        (lambda: Stated(hole=0.25), "numbers .* got nan for"),
        (lambda: NanRange(), "least <= largest"),
        (lambda: Stated(start=1.0, end=-1.0), "least <= largest"),
        (lambda: Stated(end=0.5), "outside loss_range"),
        (lambda: Stated(start=-0.999999), "outside loss_range"),
        (lambda: NanLost(), "log_infinity.* got .*nan"),
        (lambda: Stated(p=Stated.q, q=Stated.p, rest=Stated.p), "in the other order"),
        (lambda: Stated(p=0.9, q=0.1, rest=0.1), "not log P/Q"),
        (lambda: Stated(q=0.0), "underflows"),
        (lambda: Stated(lost=1e-5), "of P .* sum to 1, but are off by 1e-05"),
        (lambda: Forgetful(0.073), "of P .* sum to 1, but are off by -0.073"),
        (lambda: ForgetfulOfQ(0.073), "of Q .* sum to 1, but are off by -0.1"),
        (lambda: Revealing(np.array([0.1, 0.2])) and Forgetful(np.array([0.0, 0.2])), "by -0.2"),
        (lambda: Stated(gap=1e-3), "must add up"),
        (lambda: Stated(error=-1e-3), "mass_error.* -0.001"),
        (lambda: Symmetric(), "symmetric must be False"),
    ],
)
def test_what_is_no_law_is_refused(state, sentence):
    """Breaks when a mistake is answered with an epsilon, far too small as it may be."""
    with pytest.raises(ValueError, match=sentence):
        state()
    with jax.enable_x64(False), pytest.raises(ValueError, match=sentence):
        state()


class Normal(jaxdp.CustomMechanism):
    """A Gaussian as a user would have it: small masses from the near tail, by differences."""

    mu: float
    symmetric = True

    def log_masses(self, lo, hi):
        def log_mass(shift):
            a, b = lo / self.mu + shift, hi / self.mu + shift
            a, b = jnp.where(a > 0.0, -b, a), jnp.where(a > 0.0, -a, b)
            return jnp.log(norm.cdf(b) - norm.cdf(a))

        return log_mass(0.5 * self.mu), log_mass(-0.5 * self.mu)


def test_laws_are_not_refused():
    """Breaks when rounding, extremes of parameters or a stated error are taken for a mistake."""
    Stated(error=1e-3, rest=Stated.rest * (1.0 - 1e-4))
    Stated(start=-1.0 - 1e-13, end=1.0 + 1e-13)
    Stated(start=-1e300, end=1e300)
    Revealing(np.array([0.0, 1e-300, 1e-16, 1.0 - 1e-16, 1.0]))
    Normal(np.logspace(-6.0, 0.8, 30))


def _answers(step):
    run = jaxdp.Repeated(jaxdp.PoissonSampled(step, 0.3), 5)
    found = [
        jaxdp.epsilon(step, 1e-5),
        jaxdp.epsilon(step, 0.0),
        *jaxdp.delta_bounds(step, 0.4),
        jaxdp.renyi(step, 2.0),
        jaxdp.advantage(step),
        jaxdp.renyi(run, 2.0),
        jaxdp.renyi(jaxdp.RandomAllocation(step, 5), 2.0),
        jaxdp.delta(run, 0.4),
    ]
    return jnp.stack(found)


def test_traced_masses_that_are_nan_are_on_the_safe_side():
    """Breaks when a mass of nan counts for none: epsilon was 0, and so were all other answers."""
    found = jit(jax.vmap(lambda p: _answers(Stated(p=p))))(jnp.array([jnp.nan, Stated.p]))
    truth, below = found[1], np.arange(found.shape[1]) == 2  # of two bounds
    assert np.all(np.isfinite(truth))
    assert np.all(np.isnan(found[0]) | np.where(below, found[0] <= truth, found[0] >= truth))
    assert np.all(np.isnan(found[0]) | below | (found[0] > truth) | (found[0] == 1.0))


def test_nan_between_the_intervals_that_are_looked_at_is_on_the_safe_side():
    """Breaks when bounds take a mass of nan for none."""
    truth, holed = _answers(Stated()), _answers(Stated(hole=1e-4))
    below = np.arange(truth.size) == 2  # of two bounds
    assert np.all(np.where(below, holed <= truth, holed >= truth * (1.0 - 1e-12)))
    assert holed[6] > truth[6]  # by the largest loss: some of the masses are nan indeed


def test_a_delta_of_just_the_infinite_mass_is_met_by_the_largest_loss():
    """Breaks when that mass is divided by a sum of 1 and a rounding: epsilon was infinite."""
    m = jaxdp.LossDistribution([0.5, -0.5], np.log([0.5, 0.4]), infinity_mass=0.1)
    with jax.enable_x64(True):
        low, high = jaxdp.epsilon_bounds(m, np.array([0.1, 0.1 - 1e-15]), direction="remove")
    np.testing.assert_allclose(low, 0.5, rtol=1e-10)
    np.testing.assert_allclose(high, [0.5, np.inf], rtol=1e-10)


def test_a_traced_mass_below_0_is_no_mass():
    """Breaks when it is read as 0, and delta is the finite one of another table."""

    def delta(mass):
        return jaxdp.delta(
            jaxdp.LossDistribution([-1.0, 1.0], np.log([0.268941, 0.731059]), mass), 0.3
        )

    got = jit(jax.vmap(delta))(np.array([-0.1, -1e-7, 0.0]))
    np.testing.assert_array_equal(np.isnan(got), [True, True, False])
