"""Calibration and accounting inside training, judged by what their own promises say."""

import time

import jax
import jax.numpy as jnp
import numpy as np
from mpmath import mpf

import calibrate
import jaxdp
from benchmarks.attack import draw
from benchmarks.attack.curves import Gaussian
from benchmarks.attack.grammar import literal
from calibrate import Status
from jaxdp import training


def _dp_sgd(s, q, t):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(s), q), t)


def _student(y, scale):
    return -2.0 * jax.numpy.log1p((y / scale) ** 2 / 3.0)


def builds() -> list[tuple]:
    """(name, build, samplers of its other arguments)."""
    p, a, r = jaxdp.PoissonSampled, jaxdp.RandomAllocation, jaxdp.Repeated
    f, c = jaxdp.FixedSizeSampled, jaxdp.Composed
    response, gdl = jaxdp.RandomizedResponse, jaxdp.GeneralizedDiscreteLaplace
    count, few = draw.integer(1, 10**5), draw.integer(1, 20)
    scale, failure = draw.real(0.05, 50.0, 1.0), draw.real(1e-12, 0.1)
    alone = (jaxdp.Gaussian, jaxdp.Laplace, jaxdp.Brownian, jaxdp.DiscreteGaussian, jaxdp.Skellam)
    alone += (jaxdp.DiscreteLaplace, response, jaxdp.PermuteAndFlip, jaxdp.ExponentialMechanism)
    return [
        *((cls.__name__, cls, ()) for cls in alone),
        ("PoissonSampled(Gaussian)", lambda s, q: p(jaxdp.Gaussian(s), q), (draw.rate,)),
        ("PoissonSampled(Laplace)", lambda s, q: p(jaxdp.Laplace(s), q), (draw.rate,)),
        ("PoissonSampled(Laplace) by q", lambda q, s: p(jaxdp.Laplace(s), q), (scale,)),
        ("PoissonSampled(Gaussian) by q", lambda q, s: p(jaxdp.Gaussian(s), q), (scale,)),
        ("PoissonSampled(DiscreteGaussian)", lambda s, q: p(jaxdp.DiscreteGaussian(s), q),
         (draw.rate,)),
        ("FixedSizeSampled(Laplace) by q", lambda q, s: f(jaxdp.Laplace(s), q), (scale,)),
        ("LaplaceSum(3)", lambda s: jaxdp.LaplaceSum(3, s), ()),
        ("GammaDifference", lambda s, b: jaxdp.GammaDifference(b, s), (scale,)),
        ("GammaDifference by beta", jaxdp.GammaDifference, (scale,)),
        ("GeneralizedDiscreteLaplace by a", lambda x, b: gdl(b, x), (scale,)),
        ("GeneralizedDiscreteLaplace by beta", lambda b, x: gdl(b, x), (draw.real(0.01, 5.0),)),
        ("NegativeBinomial by r", jaxdp.NegativeBinomial, (draw.real(1e-3, 0.9),)),
        ("AdditiveNoise(Student)",
         lambda s: jaxdp.AdditiveNoise(_student, (s,), turns=1), ()),
        ("ApproximateDP", lambda e, d: c([jaxdp.ApproximateDP(e, d), response(0.1)]),
         (failure,)),
        ("ApproximateDP by its delta", lambda d, e: c([jaxdp.ApproximateDP(e, d), response(0.1)]),
         (scale,)),
        ("LossDistribution", lambda e, n: r(_lazy_response(e), n), (few,)),
        ("Mixture by its weight", lambda w, s: jaxdp.Mixture(
            [jaxdp.Gaussian(s), response(0.1)], [w, 1.0 - w], revealed=True), (scale,)),
        ("DP-SGD", _dp_sgd, (draw.rate, count)),
        ("DP-SGD by steps", lambda t, s, q: _dp_sgd(s, q, t), (scale, draw.rate)),
        ("DP-SGD by q", lambda q, s, t: _dp_sgd(s, q, t), (scale, count)),
        ("Repeated(Laplace)", lambda b, t: r(jaxdp.Laplace(b), t), (count,)),
        ("Repeated(response)", lambda e, t: r(response(e), t), (few,)),
        ("Repeated(Gaussian) by steps", lambda t, s: r(jaxdp.Gaussian(s), t), (scale,)),
        ("Repeated(PoissonSampled(Laplace))", lambda b, q, t: r(p(jaxdp.Laplace(b), q), t),
         (draw.rate, count)),
        ("Repeated(PoissonSampled(response)) by q", lambda q, e, t: r(p(response(e), q), t),
         (scale, count)),
        ("RandomAllocation(Gaussian)", lambda s, t: a(jaxdp.Gaussian(s), t), (count,)),
        ("RandomAllocation(Laplace)", lambda s, t: a(jaxdp.Laplace(s), t), (count,)),
        ("RandomAllocation(Gaussian) by steps", lambda t, s: a(jaxdp.Gaussian(s), t), (scale,)),
        ("RandomAllocation(response)", lambda e, t: a(response(e), t), (few,)),
        ("Composed of kinds", lambda s, b: c([jaxdp.Gaussian(s), jaxdp.Laplace(s), response(b)]),
         (draw.real(1e-3, 1e-2),)),
    ]  # fmt: skip


def _lazy_response(epsilon):
    """A table: a response, or half the time nothing."""
    losses = jnp.stack([epsilon, 0.0 * epsilon, -epsilon], axis=-1)
    often = np.log([0.5, 1.0, 0.5])
    return jaxdp.LossDistribution(losses, often - jnp.logaddexp(0.0, -losses))


def solve(name, build, samplers, rng, rows: int, tally) -> None:
    """Every value passes its user's own check, is near the boundary, and is there if one is."""
    start = time.perf_counter()
    args = [s(rng, rows) for s in samplers]
    args = [np.clip(x, 1e-6, 1.0) if s is draw.rate else x
            for x, s in zip(args, samplers, strict=True)]  # fmt: skip
    epsilon = draw.spiced(rng, draw.log_uniform(rng, 1e-2, 30, rows), (0.1, 0.5, 1.0, 8.0))
    delta = draw.log_uniform(rng, 1e-14, 1e-2, rows)

    def bounds(value, row, at):
        return jaxdp.epsilon_bounds(build(value, *row), at)

    def spent(value):  # (under vmap a value outside of the domain gives nan)
        found = jax.vmap(bounds)(np.asarray(value), tuple(args), delta)
        return [np.where(np.isnan(x), np.inf, x) for x in map(np.asarray, found)]

    solution = calibrate.solve(build, epsilon=epsilon, delta=delta, args=tuple(args))
    found, status = np.asarray(solution.value), np.asarray(solution.status)
    used = np.where(found > 0, found, 1.0)
    at = np.asarray(jaxdp.epsilon(build(used, *args), delta))
    beside = [spent(used * (1.0 + s))[0] for s in (-0.02, 0.02)]
    missed = np.isnan(found) | ~np.isin(status, (Status.SOLVED, Status.SLACK))
    others = np.logspace(-6.0, 6.0, 13) if np.any(missed) else []
    feasible = np.any([spent(np.full(rows, v))[1] <= epsilon for v in others], axis=0)
    tally.settings += rows
    for i in range(rows):
        row = ", ".join(literal(x[i]) for x in args)
        line = (
            f"calibrate.solve({name}, epsilon={epsilon[i]!r}, delta={delta[i]!r}, args=({row}))"
            f"  # value {found[i]!r}, status {status[i]}, epsilon there {at[i]!r}"
        )
        if missed[i]:
            if feasible[i]:
                tally.note(name, "unsolved", line)
        elif not at[i] <= epsilon[i]:
            tally.note(name, "violation", line)
        elif status[i] == Status.SOLVED and max(*(b[i] for b in beside), at[i]) < epsilon[i] * 0.99:
            tally.note(name, "wide", line)
    tally.seconds += time.perf_counter() - start


def _run(settings):
    state = training.init()
    for sigma, rate, count in settings:
        state = training.update(state, sigma=sigma, sampling_probability=rate, count=count)
    return state


def account(rng, rows: int, tally) -> None:
    """Unsampled steps have a closed form; sampled ones the engine's bracket from below."""
    start = time.perf_counter()
    sigma = draw.real(0.5, 1e3, 1.0)(rng, (rows)), draw.real(0.5, 1e3, 1.0)(rng, rows)
    count = draw.integer(1, 10**5)(rng, rows), draw.integer(1, 100)(rng, rows)
    delta = np.clip(draw.delta(rng, rows), 1e-100, 0.9)

    def both(s, n, u, k, d):
        return training.epsilon(_run([(s, 1.0, n), (u, 1.0, k)]), d)

    run = jax.jit(jax.vmap(both))
    whole = [np.asarray(c, np.int32) for c in count]
    got = np.asarray(run(sigma[0], whole[0], sigma[1], whole[1], delta))
    for i in range(rows):
        mu = sum(
            mpf(float(c[i])) / mpf(float(s[i])) ** 2 for c, s in zip(count, sigma, strict=True)
        )
        note = f"sigma {sigma[0][i]!r} x {count[0][i]:.0f}, {sigma[1][i]!r} x {count[1][i]:.0f}"
        line = f"training.epsilon at {delta[i]!r} of {note}  # {got[i]!r}"
        tally.settings += 1
        if np.isnan(got[i]):
            tally.note("training", "nan", line)
        elif np.isfinite(got[i]) and Gaussian(mu**0.5).delta(mpf(float(got[i])), "both") > delta[i]:
            tally.note("training", "violation", line)
    tally.seconds += time.perf_counter() - start


def sampled_account(rng, rows: int, tally) -> None:
    """The same for sampled steps: never below what the engine says is the least."""
    start = time.perf_counter()
    sigma, rate = draw.real(0.5, 30, 1.0)(rng, rows), np.clip(draw.rate(rng, rows), 1e-7, 1.0)
    count = draw.integer(1, 10**5)(rng, rows)
    delta = np.clip(draw.delta(rng, rows), 1e-12, 0.5)

    def one(s, q, n, d):
        return training.epsilon(_run([(s, q, n)]), d)

    got = np.asarray(jax.jit(jax.vmap(one))(sigma, rate, np.asarray(count, np.int32), delta))
    low, _ = jaxdp.epsilon_bounds(_dp_sgd(sigma, rate, count), delta)
    low = np.asarray(low)
    for i in range(rows):
        line = (
            f"training.epsilon at {delta[i]!r} of sigma {sigma[i]!r}, q {rate[i]!r}, "
            f"{count[i]:.0f} steps  # {got[i]!r}, the engine's lower bound {low[i]!r}"
        )
        tally.settings += 1
        if np.isnan(got[i]):
            tally.note("training", "nan", line)
        elif got[i] < low[i]:
            tally.note("training", "violation", line)
    tally.seconds += time.perf_counter() - start
