"""Calibration and accounting inside training, judged by what their own promises say."""

import time

import jax
import numpy as np
from mpmath import mpf

import calibrate
import jaxdp
from benchmarks.attack import draw
from benchmarks.attack.curves import Gaussian
from benchmarks.attack.grammar import literal
from calibrate import Status
from jaxdp import training

SOLVED = 1e-9


def _dp_sgd(s, q, t):
    return jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(s), q), t)


def builds() -> list[tuple]:
    """(name, build, samplers of its other arguments, the largest delta at any noise)."""
    p, a, r = jaxdp.PoissonSampled, jaxdp.RandomAllocation, jaxdp.Repeated
    count = draw.integer(1, 10**5)
    return [
        ("Gaussian", jaxdp.Gaussian, ()),
        ("Laplace", jaxdp.Laplace, ()),
        ("Brownian", jaxdp.Brownian, ()),
        ("PoissonSampled(Gaussian)", lambda s, q: p(jaxdp.Gaussian(s), q), (draw.rate,)),
        ("PoissonSampled(Laplace)", lambda s, q: p(jaxdp.Laplace(s), q), (draw.rate,)),
        ("LaplaceSum(3)", lambda s: jaxdp.LaplaceSum(3, s), ()),
        ("DP-SGD", _dp_sgd, (draw.rate, count)),
        ("Repeated(Laplace)", lambda b, t: r(jaxdp.Laplace(b), t), (count,)),
        ("Repeated(PoissonSampled(Laplace))", lambda b, q, t: r(p(jaxdp.Laplace(b), q), t),
         (draw.rate, count)),
        ("RandomAllocation(Gaussian)", lambda s, t: a(jaxdp.Gaussian(s), t), (count,)),
    ]  # fmt: skip


def solve(name, build, samplers, rng, rows: int, tally) -> None:
    """Every value passes its user's own check, is near the least, and is there if one is."""
    start = time.perf_counter()
    args = [s(rng, rows) for s in samplers]
    if samplers and samplers[0] is draw.rate:
        args[0] = np.clip(args[0], 1e-6, 1.0)
    epsilon = draw.spiced(rng, draw.log_uniform(rng, 1e-2, 30, rows), (0.1, 0.5, 1.0, 8.0))
    delta = draw.log_uniform(rng, 1e-14, 1e-2, rows)
    solution = calibrate.solve(build, epsilon=epsilon, delta=delta, args=tuple(args))
    found, status = np.asarray(solution.value), np.asarray(solution.status)
    used = np.where(found > 0, found, 1.0)
    spent = np.asarray(jaxdp.epsilon(build(used, *args), delta))
    lower = np.asarray(jaxdp.epsilon_bounds(build(used * 0.98, *args), delta)[0])
    tally.settings += rows
    for i in range(rows):
        row = ", ".join(literal(x[i]) for x in args)
        line = (
            f"calibrate.solve({name}, epsilon={epsilon[i]!r}, delta={delta[i]!r}, args=({row}))"
            f"  # value {found[i]!r}, status {status[i]}, epsilon there {spent[i]!r}"
        )
        if np.isnan(found[i]) or status[i] not in (Status.SOLVED, Status.SLACK):
            tally.note(name, "nan" if np.isnan(found[i]) else "unsolved", line)
        elif spent[i] > epsilon[i]:
            tally.note(name, "violation", line)
        elif status[i] == Status.SOLVED and max(lower[i], spent[i]) < epsilon[i] * 0.99:
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
