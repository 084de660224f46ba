"""What single events show: never more than the events' own probabilities, and nearly as much."""

import jax
import jax.numpy as jnp
import mpmath as mp
import numpy as np
import pytest

import jaxdp
from jaxdp._law import _allowances, _events
from jaxdp._law._terms import orient_one
from jaxdp._numerical_terms import terms_of

STEPS = 3


@pytest.fixture(autouse=True)
def _float64():
    with jax.enable_x64(True):
        yield


def tails(sigma, threshold):
    """(P, Q) of a loss above the threshold, of one Gaussian step, in 30 digits."""
    at = mp.mpf(sigma) * threshold + mp.mpf(1) / (2 * sigma)  # in deviations, under Q
    return mp.ncdf(1 / mp.mpf(sigma) - at), mp.ncdf(-at)


@pytest.mark.parametrize("add", [False, True])
@pytest.mark.parametrize(("sigma", "about"), [(1.0, 2.0), (0.5, 30.0), (2.0, 0.3), (0.2, 100.0)])
def test_some_step_has_a_loss_above(sigma, about, add):
    """Breaks when the event has a probability under P that it has not, or too little under Q."""
    (step,) = terms_of(jaxdp.Gaussian(sigma))
    step = orient_one(step, jnp.asarray(add))  # of a symmetric pair, the same tails
    terms = (step._replace(count=STEPS),)
    thresholds = about * jnp.asarray(_events._THRESHOLDS)
    log_q, log_p = step.masses(thresholds, jnp.full_like(thresholds, jnp.inf))
    room = _allowances.masses(log_q, log_p)
    loss, log_p = _events._some_step(terms, [(log_q + room, log_p - room)])
    with mp.workdps(30):
        for found, p_found, factor in zip(loss, log_p, _events._THRESHOLDS, strict=True):
            p, q = tails(sigma, mp.mpf(float(about * factor)))
            event = -mp.expm1(STEPS * mp.log1p(-p))
            p_lack = mp.log(event) - mp.mpf(float(p_found))
            lack = mp.log(event / (STEPS * q)) - mp.mpf(float(found))
            assert 0 <= p_lack < 1e-9 * (1 + abs(mp.log(event)))
            assert 0 <= lack < 1e-9 * (1 + abs(mp.log(q)))


def test_what_it_shows_is_delta_and_its_inverse():
    """Breaks when an event shows more than P(E) - e^epsilon Q(E), or epsilon is not its inverse."""
    loss, log_p = jnp.array([2.0, 50.0, -1.0]), jnp.array([-3.0, -300.0, -jnp.inf])
    for epsilon in (0.0, 1.5, 40.0, 60.0):
        inside, value = _events.delta_at(jnp.float64(epsilon))(loss, log_p)
        for i in range(3):
            with mp.workdps(60):
                p = mp.exp(mp.mpf(float(log_p[i])))
                shown = p * (1 - mp.exp(mp.mpf(epsilon) - mp.mpf(float(loss[i]))))
            assert bool(inside[i]) == (epsilon < loss[i])
            if not inside[i] or shown <= 0:
                continue
            np.testing.assert_allclose(value[i], float(mp.log(shown)), rtol=1e-14)
            if value[i] > log_p[i] - 1e-3:  # epsilon far below the loss: nothing to invert
                continue
            again, back = _events.epsilon_at(value[i])(loss, log_p)
            assert bool(again[i])
            np.testing.assert_allclose(back[i], epsilon, rtol=1e-12, atol=1e-12)


def test_rare_losses_are_bounded_from_below_however_many_steps():
    """Breaks where the transform's rounding, more than delta, leaves a bound of 0."""
    rates, steps = np.array([4.87e-7, 1.9e-7]), np.array([9692.0, 2651.0])
    m = jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(0.45), rates), steps)
    low, high = jaxdp.epsilon_bounds(m, np.array([5e-13, 9e-11]), direction="remove")
    assert np.all(low > np.array([0.99, 0.85]) * high)


@pytest.mark.slow
def test_rare_losses_have_a_slope_however_many_steps():
    slope = jax.grad(
        lambda q: jaxdp.epsilon_bounds(
            jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(0.45), q), 9692.0),
            5e-13,
            direction="remove",
        )[0]
    )(4.87e-7)
    assert np.isfinite(slope)
    assert slope > 0.0


@pytest.mark.parametrize("rare", [1e-7, 1e-11, 1e-13])
@pytest.mark.parametrize("steps", [2, 4, 20])
def test_rare_large_losses_next_to_epsilon_zero(rare, steps):
    """Breaks when a window with no digits for them is all that is asked: delta was .94.

    A mixture of equal pairs is one of them, whose composition is enumerated.
    """
    pair = jaxdp.FinitePair([2.0 * rare, 1.0 - 2.0 * rare], [rare, 1.0 - rare])
    mixed = jaxdp.Repeated(jaxdp.Mixture([pair, pair], [0.6, 0.4]), steps)
    epsilon = np.array([0.0, 1e-15, 1e-10, 1e-6, 1e-3, 0.1])
    for direction in ("remove", "add"):
        _, above = jaxdp.delta_bounds(mixed, epsilon, direction=direction)
        with mp.workdps(60):
            p, q = (2 * mp.mpf(rare), mp.mpf(rare)) if direction == "remove" else (rare, 2 * rare)
            for e, bound in zip(epsilon, above.tolist(), strict=True):
                found = mp.fsum(
                    mp.binomial(steps, k)
                    * max(
                        mp.mpf(p) ** k * (1 - mp.mpf(p)) ** (steps - k)
                        - mp.exp(e) * mp.mpf(q) ** k * (1 - mp.mpf(q)) ** (steps - k),
                        0,
                    )
                    for k in range(steps + 1)
                )
                assert bound >= found * (1 - mp.mpf("1e-12"))
                assert bound <= found * mp.mpf("1.12") + mp.mpf("1e-13") * rare * steps


@pytest.mark.parametrize("add", [False, True])
def test_the_whole_loss_is_above_what_chernoff_says(add):
    """Breaks by 1e-9 on the wrong side: neither loss nor probability is more than of exact masses.

    The record makes an outcome of .3 one of .6: the number of them is binomial.
    """
    steps, (p, q) = 400, (0.3, 0.6) if add else (0.6, 0.3)
    (step,) = terms_of(jaxdp.FinitePair([0.6, 0.4], [0.3, 0.7]))
    step = orient_one(step._replace(count=float(steps)), jnp.asarray(add))
    edges = jnp.array([-0.1, 0.1])
    lo, hi = jnp.append(-jnp.inf, edges), jnp.append(edges, jnp.inf)
    log_q, log_p = step.masses(lo, hi)
    room = _allowances.masses(log_q, log_p)
    losses, log_chances = _events._whole([step], [(log_q + room, log_p - room, log_p + room)])
    with mp.workdps(40):
        p, q = mp.mpf(p), mp.mpf(q)
        one = [(p, mp.log(p / q)), (1 - p, mp.log((1 - p) / (1 - q)))]
        for sure, loss, log_p in zip(_events._SURE, losses, log_chances, strict=True):
            tilts = [mp.mpf(float(s)) for s in _events._TILTS]
            best = max(
                (-sure - steps * mp.log(mp.fsum(m * mp.exp(-s * x) for m, x in one))) / s
                for s in tilts
            )
            assert 0 <= best - mp.mpf(float(loss)) < 1e-9 * (1 + abs(best))
            log_sure = mp.log(-mp.expm1(-mp.mpf(sure)))
            assert 0 <= log_sure - mp.mpf(float(log_p)) < 1e-8  # (sums of cells, 400 times)
            above = mp.fsum(
                mp.binomial(steps, k) * p**k * (1 - p) ** (steps - k)
                for k in range(steps + 1)
                if k * one[0][1] + (steps - k) * one[1][1] > float(loss)
            )
            assert above >= mp.exp(float(log_p))


def test_the_sum_of_all_steps_is_above_their_composition():
    """Of steps of different kinds, one that fails among them, at any epsilon: never below delta."""
    parts = [
        jaxdp.Repeated(jaxdp.RandomizedResponse(0.3), 3),
        jaxdp.ApproximateDP(0.5, 1e-6),
        jaxdp.Repeated(jaxdp.FinitePair([1e-9, 0.5, 0.5], [1e-12, 0.4, 0.6]), 2),
    ]
    terms = terms_of(jaxdp.Composed(parts))
    for epsilon in (0.0, 0.2, 1.0, 3.0):
        sure = jnp.zeros(())
        total = float(_events.summed(terms, sure, 1, jnp.asarray(epsilon)))
        exact = float(jaxdp.delta_bounds(jaxdp.Composed(parts), epsilon, direction="remove")[0])
        share = epsilon / 6.0
        own = [(3, parts[0].mechanism), (1, parts[1]), (2, parts[2].mechanism)]
        summed = sum(n * float(jaxdp.hockey_stick(m, share, direction="remove")) for n, m in own)
        # (At an atom 1e-13 of its mass may count.)
        assert np.exp(total) == pytest.approx(min(summed, 1.0), rel=1e-11, abs=1e-13)
        assert total >= np.log(exact) - 1e-12
        assert _events.summed(terms, sure, -1, jnp.asarray(epsilon)) is sure
