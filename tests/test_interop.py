"""dp_accounting's events and tools on our accountant, its own test cases included."""

import math
import unittest.mock

import jax
import numpy as np
import pytest

import jaxdp

dpa = pytest.importorskip("dp_accounting", reason="needs the extra interop")
pytest.importorskip("absl.testing")

from dp_accounting import (  # noqa: E402
    dp_event,
    privacy_accountant_test,
    rdp,
)
from dp_accounting.pld import (  # noqa: E402
    pld_privacy_accountant,
    pld_privacy_accountant_test,
)

from jaxdp import interop  # noqa: E402

pytestmark = pytest.mark.extra
RELATIONS = dpa.NeighboringRelation
SGD = dp_event.SelfComposedDpEvent(
    dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0)), 1000
)


class GeneralCases(privacy_accountant_test.PrivacyAccountantTest):
    """dp_accounting's test of every accountant."""

    def _make_test_accountants(self):
        return [interop.Accountant(relation) for relation in RELATIONS]


# A value of dp_accounting's pair of truncated batches, above that of the pair here: see
# test_interop_references.py.
_LOOSER = "test_truncated_subsampled_gaussian_basic"


class PldCases(pld_privacy_accountant_test.PldPrivacyAccountantTest):
    """dp_accounting's test of its own PLD accountant, with ours in its place."""

    def setUp(self):
        super().setUp()
        patch = unittest.mock.patch.object(
            pld_privacy_accountant, "PLDAccountant", interop.Accountant
        )
        patch.start()
        self.addCleanup(patch.stop)
        if self._testMethodName.startswith(_LOOSER):
            self.skipTest("the value of a looser pair")


def test_events_are_their_mechanisms():
    event = dp_event.ComposedDpEvent(
        [
            SGD,
            dp_event.NoOpDpEvent(),
            dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(30.0), 2),
            dp_event.PoissonSampledDpEvent(0.0, dp_event.GaussianDpEvent(1.0)),
            dp_event.DiscreteLaplaceDpEvent(0.05, 2),
        ]
    )
    sgd = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(1.0), 0.01), 1000.0)
    expected = jaxdp.Composed(
        [sgd, jaxdp.Repeated(jaxdp.Laplace(30.0), 2.0), jaxdp.DiscreteLaplace(0.05, 2)]
    )
    found = interop.from_dp_event(event)
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    assert jax.tree.leaves(found) == jax.tree.leaves(expected)
    mixture = dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, -1.0], [0.9, 0.1])
    assert jax.tree.leaves(interop.from_dp_event(mixture)) == [2.0, 1.0, 0.1]
    several = dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, -1.0, -2.0], [0.9, 0.0625, 0.0375])
    found = interop.from_dp_event(several)
    assert isinstance(found, jaxdp.GaussianMixture)
    np.testing.assert_allclose(found.sensitivities, [0.0, 1.0, 2.0])
    np.testing.assert_allclose(found.weights, [0.9, 0.0625, 0.0375], rtol=1e-12)
    batch = dp_event.SampledWithoutReplacementDpEvent(1000, 10, dp_event.GaussianDpEvent(2.0))
    relations = RELATIONS.REPLACE_ONE, RELATIONS.ADD_OR_REMOVE_ONE
    batches = [interop.from_dp_event(batch, relation) for relation in relations]
    assert [m.neighbours for m in batches] == ["replace-one", "add-or-remove"]
    poisson = interop.from_dp_event(SGD, RELATIONS.REPLACE_ONE)
    assert isinstance(poisson.mechanism, jaxdp.PoissonSampledReplaceOne)
    replaced = interop.from_dp_event(dp_event.GaussianDpEvent(2.0), RELATIONS.REPLACE_ONE)
    assert float(jaxdp.epsilon(replaced, 1e-5)) == pytest.approx(4.3772, rel=1e-4)


def test_batches_that_are_cut():
    def mechanism(n, q, size, sigma=2.0):
        return interop.from_dp_event(dp_event.TruncatedSubsampledGaussianDpEvent(n, q, size, sigma))

    assert mechanism(100, 0.1, 20) == jaxdp.TruncatedPoissonSampled(
        jaxdp.Gaussian(2.0), 0.1, 20, 100
    )
    assert mechanism(100, 0.1, 100) == jaxdp.PoissonSampled(jaxdp.Gaussian(2.0), 0.1)
    assert mechanism(100, 1.0, 20) == jaxdp.fixed_size_sampled(
        jaxdp.Gaussian(2.0), 20, 100, neighbours="add-or-remove"
    )
    assert mechanism(100, 1.0, 100) == jaxdp.Gaussian(2.0)
    with pytest.raises(interop.UnsupportedEvent, match="reveals nothing"):
        mechanism(100, 0.1, 0)
    with pytest.raises(interop.UnsupportedEvent, match="not private"):
        mechanism(100, 0.1, 20, 0.0)
    gaussian = jaxdp.Gaussian(2.0)
    event = dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 2.0)
    replaced = interop.from_dp_event(event, RELATIONS.REPLACE_ONE)
    assert replaced == jaxdp.TruncatedPoissonSampledReplaceOne(gaussian, 0.1, 20, 100)
    zeroed = interop.from_dp_event(event, RELATIONS.REPLACE_SPECIAL)
    assert zeroed == jaxdp.TruncatedPoissonSampled(gaussian, 0.1, 20, 100, zero_out=True)
    # composes with what holds for both
    both = dp_event.ComposedDpEvent([event, SGD])
    assert interop.from_dp_event(both, RELATIONS.REPLACE_SPECIAL).neighbours == "add-or-remove"
    event = dp_event.TruncatedSubsampledGaussianDpEvent(100, 1.0, 20, 2.0)
    for relation in (RELATIONS.REPLACE_ONE, RELATIONS.REPLACE_SPECIAL):
        fixed = interop.from_dp_event(event, relation)
        assert fixed == jaxdp.fixed_size_sampled(gaussian, 20, 100)
    event = dp_event.TruncatedSubsampledGaussianDpEvent(100, 1.0, 100, 2.0)
    assert interop.from_dp_event(event, RELATIONS.REPLACE_ONE) == jaxdp.Gaussian(2.0, 2.0)
    drawn = dp_event.SampledWithReplacementDpEvent(100, 20, dp_event.GaussianDpEvent(2.0))
    assert interop.from_dp_event(drawn, RELATIONS.REPLACE_ONE) == jaxdp.fixed_size_sampled(
        jaxdp.Gaussian(2.0), 20, 100, replacement=True
    )
    drawn = dp_event.SampledWithReplacementDpEvent(100, 20, dp_event.LaplaceDpEvent(2.0))
    with pytest.raises(interop.UnsupportedEvent, match="LaplaceDpEvent"):
        interop.from_dp_event(drawn, RELATIONS.REPLACE_ONE)


def _later_event(name, **fields):
    """An event of a later version of dp_accounting, by its name and fields."""
    found = getattr(dp_event, name, None)
    if found is None:
        found = type(
            name, (dp_event.DpEvent,), {"__init__": lambda self, **kw: vars(self).update(kw)}
        )
    return found(**fields)


def test_events_of_later_versions():
    cases = [
        ("EpsilonDeltaDpEvent", {"epsilon": 0.5, "delta": 1e-4}, jaxdp.ApproximateDP(0.5, 1e-4)),
        ("ExponentialMechanismDpEvent", {"epsilon": 0.5}, jaxdp.ExponentialMechanism(0.5)),
        ("PermuteAndFlipDpEvent", {"epsilon": 0.5}, jaxdp.PermuteAndFlip(0.5)),
        (
            "DiscreteGaussianDpEvent",
            {"sigma": 3.0, "sensitivity": 2.0, "dimension": 1},
            jaxdp.DiscreteGaussian(3.0, 2),
        ),
    ]
    for name, fields, expected in cases:
        assert interop.from_dp_event(_later_event(name, **fields)) == expected
    vector = {"sigma": 3.0, "sensitivity": 2.0, "dimension": None}
    found = interop.from_dp_event(_later_event("DiscreteGaussianDpEvent", **vector))
    assert found == jaxdp.DiscreteGaussianVector(3.0, 2.0)
    found = interop.from_dp_event(
        _later_event("DiscreteGaussianDpEvent", **{**vector, "sigma": 1.5, "sensitivity": 1.0})
    )
    assert isinstance(found, jaxdp.ConcentratedDP)
    assert found.rho == pytest.approx(2.0**2 / (2.0 * 3.0**2), rel=1e-14)
    flip = _later_event("PermuteAndFlipDpEvent", epsilon=1.0)
    with pytest.raises(interop.UnsupportedEvent, match="ADD_OR_REMOVE_ONE` or `REPLACE_SPECIAL"):
        interop.from_dp_event(flip, RELATIONS.REPLACE_ONE)
    with pytest.raises(interop.UnsupportedEvent, match="reveals nothing"):
        interop.from_dp_event(_later_event("EpsilonDeltaDpEvent", epsilon=0.0, delta=0.0))
    accountant = interop.Accountant().compose(
        _later_event("EpsilonDeltaDpEvent", epsilon=0.5, delta=1e-4), 2
    )
    assert accountant.get_delta(math.inf) == pytest.approx(1.0 - (1.0 - 1e-4) ** 2)


@pytest.mark.parametrize("relation", [RELATIONS.REPLACE_ONE, RELATIONS.REPLACE_SPECIAL])
def test_randomized_response_is_the_exact_channel(relation):
    p, k = 0.3, 5
    event = dp_event.RandomizedResponseDpEvent(p, k)
    channel = np.full((k, k), p / k) + (1 - p) * np.eye(k)
    other = channel[1] if relation == RELATIONS.REPLACE_ONE else np.full(k, 1 / k)
    epsilon = np.linspace(0.0, 3.0, 7)
    with jax.enable_x64(True):
        m = interop.from_dp_event(event, relation)
        found = np.asarray(jaxdp.hockey_stick(m, epsilon))
    pairs = ((channel[0], other), (other, channel[0]))
    exact = [
        max(np.maximum(a - math.exp(e) * b, 0.0).sum() for a, b in pairs) for e in epsilon.tolist()
    ]
    np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-14)


def test_tree_aggregation_is_theirs():
    event = dp_event.SingleEpochTreeAggregationDpEvent(3.0, [5, 16, 17])
    theirs = rdp.RdpAccountant([8.0], RELATIONS.REPLACE_SPECIAL).compose(event)._rdp
    ours = jaxdp.renyi(interop.from_dp_event(event, RELATIONS.REPLACE_SPECIAL), 8.0)
    assert float(ours) == pytest.approx(float(theirs[0]), rel=1e-6)


@pytest.mark.parametrize(
    ("event", "relation", "problem"),
    [
        (dp_event.NoOpDpEvent(), RELATIONS.ADD_OR_REMOVE_ONE, "reveals nothing"),
        (dp_event.GaussianDpEvent(0.0), RELATIONS.ADD_OR_REMOVE_ONE, "not private at all"),
        (
            dp_event.PoissonSampledDpEvent(0.01, dp_event.LaplaceDpEvent(1.0)),
            RELATIONS.REPLACE_ONE,
            "neighboring_relation must be",
        ),
        (
            dp_event.MixtureOfGaussiansDpEvent(1.0, [1.0, -2.0], [0.5, 0.5]),
            RELATIONS.ADD_OR_REMOVE_ONE,
            "both signs",
        ),
        (dp_event.UnsupportedDpEvent(), RELATIONS.ADD_OR_REMOVE_ONE, "UnsupportedDpEvent"),
    ],
)
def test_unsupported_events_say_why(event, relation, problem):
    with pytest.raises(interop.UnsupportedEvent, match=problem):
        interop.from_dp_event(event, relation)


def test_step_by_step_is_all_at_once():
    accountant = interop.Accountant()
    step = dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(1.0))
    for _ in range(10):
        accountant.compose(step, 100)
    epsilon = accountant.get_epsilon(1e-5)
    assert epsilon == interop.Accountant().compose(SGD).get_epsilon(1e-5)
    assert 1.828237 <= epsilon <= 1.828237 * (1 + 1e-4)
    assert accountant.get_delta(epsilon) == pytest.approx(1e-5, rel=1e-3)
    assert accountant.get_epsilon(1.0) == 0.0


def test_their_calibration_runs_on_ours():
    """Gaussian to their exact solver, DP-SGD to their PLD accountant: sigma within 1e-4."""
    sigma = dpa.calibrate_dp_mechanism(interop.Accountant, dp_event.GaussianDpEvent, 1.0, 1e-5)
    assert sigma == pytest.approx(dpa.get_sigma_gaussian(1.0, 1e-5), rel=1e-5)

    def event(noise):
        return dp_event.SelfComposedDpEvent(
            dp_event.PoissonSampledDpEvent(0.01, dp_event.GaussianDpEvent(noise)), 1000
        )

    bracket = dpa.ExplicitBracketInterval(0.5, 5.0)
    ours = dpa.calibrate_dp_mechanism(interop.Accountant, event, 3.0, 1e-5, bracket)
    theirs = dpa.calibrate_dp_mechanism(
        pld_privacy_accountant.PLDAccountant, event, 3.0, 1e-5, bracket, tol=1e-5
    )
    assert ours == pytest.approx(theirs, rel=1e-4)
    steps = dpa.calibrate_dp_mechanism(
        interop.Accountant,
        lambda n: dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(20.0), n),
        1.0,
        1e-5,
        dpa.ExplicitBracketInterval(1, 1000),
        discrete=True,
    )
    m = [jaxdp.Gaussian(20.0 / n**0.5) for n in (steps, steps + 1)]
    assert float(jaxdp.epsilon(m[0], 1e-5)) <= 1.0 < float(jaxdp.epsilon(m[1], 1e-5))


def test_events_merge_by_value_and_not_by_how_they_print():
    """Breaks when steps whose parameters print alike are counted as one kind."""
    half, exact = np.float16(0.1), 0.1
    accountant = interop.Accountant().compose(dp_event.GaussianDpEvent(half), 1000)
    accountant.compose(dp_event.GaussianDpEvent(exact)).compose(dp_event.GaussianDpEvent(exact))
    mu = math.sqrt(1000.0 / float(half) ** 2 + 2.0 / exact**2)
    with jax.enable_x64(True):
        truth = float(jaxdp.gdp_to_epsilon(mu, 1e-5))
    assert truth <= accountant.get_epsilon(1e-5) <= truth * (1 + 1e-9)
    assert sorted(accountant._counts.values()) == [2, 1000]
    near = interop.Accountant()
    for p in (0.3, np.nextafter(0.3, 1.0), np.float64(0.3)):
        near.compose(
            dp_event.PoissonSampledDpEvent(
                p, dp_event.SelfComposedDpEvent(dp_event.LaplaceDpEvent(np.float32(3.0)), 2)
            )
        )
    assert sorted(near._counts.values()) == [1, 2]
    response = interop.from_dp_event(
        dp_event.RandomizedResponseDpEvent(half, 3), RELATIONS.REPLACE_ONE
    )
    assert response.p.dtype == np.float64
    np.testing.assert_allclose(response.p[1], float(half) / 3.0, rtol=1e-15)


GAUSSIAN = dp_event.GaussianDpEvent(1.0)
_NOISES = (-1.0, float("nan"), "1", None, True, 1j, 10**400, [1.0])
_RATES = (-0.1, 1.1, float("nan"), float("inf"), True, "0.5", None)
_COUNTS = (-1, 0, 1.5, float("nan"), True, "2", None, 10**400)


@pytest.mark.parametrize(
    ("event", "name"),
    [
        *[(kind(x), "noise_multiplier") for x in _NOISES
          for kind in (dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent)],
        *[(dp_event.DiscreteLaplaceDpEvent(x, 1), "noise_parameter") for x in _NOISES],
        *[(dp_event.DiscreteLaplaceDpEvent(1.0, x), "sensitivity") for x in _COUNTS if x != 0],
        *[(dp_event.PoissonSampledDpEvent(x, GAUSSIAN), "sampling_probability") for x in _RATES],
        *[(dp_event.SelfComposedDpEvent(GAUSSIAN, x), "count") for x in _COUNTS],
        *[(dp_event.RandomizedResponseDpEvent(x, 3), "noise_parameter") for x in _RATES],
        *[(dp_event.RandomizedResponseDpEvent(0.1, x), "num_buckets") for x in _COUNTS],
        *[(dp_event.MixtureOfGaussiansDpEvent(x, [0.0, 1.0], [0.5, 0.5]), "standard_deviation")
          for x in _NOISES],
        *[(dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, x], [0.5, 0.5]), "sensitivities")
          for x in (float("nan"), float("inf"), "1", None)],
        *[(dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 1.0], x), "sampling_probs")
          for x in ([1.5, -0.5], [0.5, 0.4], [float("nan"), 1.0], [0.5, 0.6], [1.0], [], None)],
        *[(dp_event.SingleEpochTreeAggregationDpEvent(1.0, x), "step_counts")
          for x in (0, -3, 1.5, [3, 0], [], None, "3", float("nan"))],
        *[(dp_event.SingleEpochTreeAggregationDpEvent(x, 3), "noise_multiplier") for x in _NOISES],
        (dp_event.ComposedDpEvent(3), "events"),
    ],
)  # fmt: skip
def test_invalid_parameters_are_named_and_never_private(event, name):
    """Breaks when a wrong parameter reveals nothing, or is cut to a right one, however nested."""
    relation = RELATIONS.REPLACE_SPECIAL
    nested = dp_event.ComposedDpEvent([dp_event.SelfComposedDpEvent(GAUSSIAN, 3), event])
    for outer in (event, nested, dp_event.PoissonSampledDpEvent(0.0, event)):
        with pytest.raises((ValueError, TypeError), match=name) as caught:
            interop.from_dp_event(outer, relation)
        assert len(str(caught.value)) < 200
    accountant = interop.Accountant(relation)
    with pytest.raises((ValueError, TypeError), match=name):
        accountant.compose(nested)
    assert accountant.ledger == dp_event.NoOpDpEvent()
    assert accountant.get_epsilon(1e-5) == 0.0


def test_noise_of_nothing_and_of_everything():
    """Breaks when infinite noise fails, or noise below what programs tell from 0 is trusted."""
    special = RELATIONS.REPLACE_SPECIAL
    for kind in (dp_event.GaussianDpEvent, dp_event.LaplaceDpEvent):
        nothing = interop.Accountant(special).compose(kind(float("inf")), 7)
        assert (nothing.get_epsilon(0.0), nothing.get_delta(0.5)) == (0.0, 0.0)
        assert nothing.get_delta(-1.0) == pytest.approx(1.0 - math.exp(-1.0))
        for scale in (0.0, -0.0, 5e-324):
            everything = interop.Accountant(special).compose(kind(scale))
            assert (everything.get_epsilon(0.5), everything.get_delta(9.0)) == (math.inf, 1.0)
    assert (
        interop.Accountant(special)
        .compose(dp_event.MixtureOfGaussiansDpEvent(1.0, [0.0, 3.0], [1.0, 0.0]))
        .get_epsilon(0.0)
        == 0.0
    )
    rounded = dp_event.MixtureOfGaussiansDpEvent(2.0, [0.0, 1.0], np.float32([0.9, 0.1]))
    assert interop.from_dp_event(rounded).sampling_probability >= float(np.float32(0.1))
    with pytest.raises((ValueError, TypeError), match="target_delta"):
        nothing.get_epsilon(float("nan"))
    with pytest.raises((ValueError, TypeError), match="target_epsilon"):
        nothing.get_delta(True)
    for count in (0, -1, 1.5, True):
        with pytest.raises((ValueError, TypeError), match="count"):
            interop.Accountant().compose(GAUSSIAN, count)
    with pytest.raises(TypeError, match="neighboring_relation"):
        interop.from_dp_event(GAUSSIAN, "add")
