"""The engine beside dp_accounting's privacy loss distributions (extra: interop).

JAXDP_PEER_CASES sets the number of random settings; 200 take some minutes.
"""

import os

import jax
import numpy as np
import pytest

import jaxdp

pld = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
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
