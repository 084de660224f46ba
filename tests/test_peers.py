"""The engine beside dp_accounting's privacy loss distributions (extra: interop).

JAXDP_PEER_CASES sets the number of random settings; 200 take some minutes.
"""

import os

import jax
import numpy as np
import pytest

import jaxdp

pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
pytestmark = pytest.mark.extra
CASES = int(os.environ.get("JAXDP_PEER_CASES", "8"))


def test_dp_sgd_lies_in_the_peer_bracket():
    """Breaks if epsilon is below the peer's optimistic one, or 0.1 % above its pessimistic one."""
    rng = np.random.default_rng(2021)
    sigma = 10 ** rng.uniform(-0.15, 0.6, CASES)
    q = 10 ** rng.uniform(-3.0, -0.7, CASES)
    steps = np.round(10 ** rng.uniform(0.0, 3.3, CASES))
    delta = 10 ** rng.uniform(-8.0, -2.0, CASES)
    with jax.enable_x64(True):
        run = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), q), steps)
        ours = np.asarray(jaxdp.epsilon(run, delta))
    excess = []
    for values in zip(sigma, q, steps, delta, ours, strict=True):
        s, rate, n, d, epsilon = map(float, values)

        def theirs(pessimistic, s=s, rate=rate, n=n, d=d):
            one = pld.from_gaussian_mechanism(
                s,
                sampling_prob=rate,
                pessimistic_estimate=pessimistic,
                value_discretization_interval=1e-4,
                use_connect_dots=pessimistic,
            )
            return one.self_compose(int(n)).get_epsilon_for_delta(d)

        assert epsilon >= theirs(False) - 1e-9, values
        over = epsilon / max(theirs(True), 1e-9) - 1.0
        excess.append((over, values))
    loose = [values for over, values in excess if over > 1e-3]
    assert not loose, loose


def _rows():
    relation = pld.NeighborRel.REPLACE_ONE
    gaussian = jaxdp.Gaussian(1.0)
    mixture = [0.0, 1.0, 2.0], [0.9, 0.09, 0.01]
    return {
        "Laplace": (jaxdp.Laplace(8.0), pld.from_laplace_mechanism, (8.0,), {}),
        "sampled Laplace": (
            jaxdp.PoissonSampled(jaxdp.Laplace(1.0), 0.02),
            pld.from_laplace_mechanism,
            (1.0,),
            {"sampling_prob": 0.02},
        ),
        "sampled Gaussian, replace-one": (
            jaxdp.PoissonSampledReplaceOne(gaussian, 0.02),
            pld.from_gaussian_mechanism,
            (1.0,),
            {"sampling_prob": 0.02, "neighboring_relation": relation},
        ),
        "mixture of Gaussians": (
            jaxdp.GaussianMixture(1.0, *mixture),
            pld.from_mixture_gaussian_mechanism,
            (1.0, *mixture),
            {},
        ),
        "discrete Laplace": (
            jaxdp.DiscreteLaplace(0.2, 2),
            pld.from_discrete_laplace_mechanism,
            (0.2, 2),
            {},
        ),
        "discrete Gaussian": (
            jaxdp.DiscreteGaussian(5.0, 2),
            pld.from_discrete_gaussian_mechanism,
            (5.0, 2),
            {},
        ),
    }


@pytest.mark.parametrize("name", _rows())
def test_other_rows_lie_in_the_peer_bracket(name):
    """Breaks if delta of 40 steps is below its optimistic one, or epsilon .1 % above the other."""
    m, build, arguments, options = _rows()[name]
    theirs = {
        pessimistic: build(
            *arguments,
            pessimistic_estimate=pessimistic,
            value_discretization_interval=1e-3 if name.startswith("mixture") else 1e-4,
            **options | ({} if name.startswith("discrete") else {"use_connect_dots": pessimistic}),
        ).self_compose(40)
        for pessimistic in (True, False)
    }
    with jax.enable_x64(True):
        run = jaxdp.Repeated(m, 40)
        for delta in (1e-6, 1e-3):
            low, high = (float(e) for e in jaxdp.epsilon_bounds(run, delta))
            assert high >= theirs[False].get_epsilon_for_delta(delta) - 1e-9
            assert high <= theirs[True].get_epsilon_for_delta(delta) * 1.001
            assert low <= theirs[True].get_epsilon_for_delta(delta) + 1e-9


@pytest.mark.parametrize("relation", ["REPLACE_ONE", "REPLACE_SPECIAL", "ADD_OR_REMOVE_ONE"])
def test_truncated_batches_are_below_the_peers_bound(relation):
    """Breaks when the pair of cut batches is above theirs, or below plain Poisson batches."""
    theirs = pld.from_truncated_subsampled_gaussian_mechanism(
        10_000, 0.01, 115, 1.0, 1e-3, neighboring_relation=pld.NeighborRel[relation]
    )
    settings = jaxdp.Gaussian(1.0), 0.01, 115, 10_000
    plain = jaxdp.PoissonSampled(*settings[:2])
    if relation == "REPLACE_ONE":
        m, plain = jaxdp.TruncatedPoissonSampledReplaceOne(*settings), jaxdp.replace_one(plain)
    else:
        zeroed = relation == "REPLACE_SPECIAL"
        m = jaxdp.TruncatedPoissonSampled(*settings, zero_out=zeroed)
    with jax.enable_x64(True):
        found = float(jaxdp.epsilon(jaxdp.Repeated(m, 1000), 1e-5))
        least = float(jaxdp.epsilon(jaxdp.Repeated(plain, 1000), 1e-5))
    assert least < found < theirs.self_compose(1000).get_epsilon_for_delta(1e-5)
