"""Functions that need no mechanism tree: conversions, mixing, finite channels, their truths."""

import dataclasses
from collections.abc import Callable

import numpy as np
from mpmath import mp, mpf

import jaxdp
from benchmarks.attack import draw
from benchmarks.attack.curves import Gaussian
from benchmarks.attack.grammar import RESPONSE, literal
from benchmarks.attack.judge import BELOW, NARROW, gap, tiny
from benchmarks.attack.laws import Pair

EXACT = mpf("1e-11")  # a formula in floats


@dataclasses.dataclass(frozen=True)
class Check:
    """A function of arrays, and its judge: (row, answers) -> None or (verdict, note)."""

    name: str
    samplers: tuple
    ask: Callable
    judge: Callable
    code: str


def value(truth: Callable, upper: bool = False):
    """A formula: equal to a relative 1e-11, and not below the truth if it claims to be above."""

    def judge(row, answers):
        exact, got = truth(*row), answers[0]
        if mp.isnan(got):
            return "nan", ""
        if got == exact:
            return None
        note = gap(got, exact)
        if upper and got < exact:
            return "violation", note
        return ("inexact", note) if abs(got - exact) > EXACT * abs(exact) + tiny() else None

    return judge


def _formula(name, samplers, truth, upper=False, **options):
    text = "".join(f", {k}={v!r}" for k, v in options.items())

    def ask(*args):
        return getattr(jaxdp, name)(*args, **options)

    code = f"jaxdp.{name}({{}}{text})"
    return Check(name + text, samplers, ask, value(truth, upper), code)


def _optimal(r, alpha, delta):
    return r + mp.log1p(-1 / alpha) - mp.log(alpha * delta) / (alpha - 1)


def _simple(r, alpha, delta):
    return r - mp.log(delta) / (alpha - 1)


def _renyi_delta(r, alpha, epsilon):
    log = (alpha - 1) * (r - epsilon) - mp.log(alpha - 1) + alpha * mp.log1p(-1 / alpha)
    return min(mp.exp(log), mpf(1))


def _pure_delta(pure, epsilon):
    return RESPONSE.law(pure).delta(epsilon, "both")


def _pure_renyi(pure, alpha):
    return RESPONSE.law(pure).renyi(alpha, False)


def _gdp_epsilon(row, answers):
    mu, delta = row
    got = answers[0]
    if mp.isnan(got):
        return "nan", ""
    law = Gaussian(mu)
    note = f"{float(got)!r}: its delta is {mp.nstr(law.delta(got, 'both'), 15)}"
    if law.delta(got, "both") > delta:
        return "violation", note
    step = max(got * EXACT, mpf("1e-13"))
    if got > step and law.delta(got - step, "both") < delta * (1 - EXACT):
        return "wide", note
    return None


def _gdp_mu(row, answers):
    epsilon, delta = row
    got = answers[0]
    if mp.isnan(got):
        return "nan", ""
    if got == 0:
        return "trivial", ""
    note = f"{float(got)!r}: its delta is {mp.nstr(Gaussian(got).delta(epsilon, 'both'), 15)}"
    if Gaussian(got).delta(epsilon, "both") > delta:
        return "violation", note
    if Gaussian(got * (1 + mpf("1e-6"))).delta(epsilon, "both") < delta:
        return "wide", note
    return None


def _zcdp(rho, epsilon, x):
    """Log of delta at an order 1 + e^x."""
    alpha = 1 + mp.exp(x)
    return (alpha - 1) * (alpha * rho - epsilon) - x + alpha * mp.log1p(-1 / alpha)


def _best(function, low=-60, high=60) -> mpf:
    """The least value of a function that falls and then rises."""
    low, high = mpf(low), mpf(high)
    ratio = (mp.sqrt(5) - 1) / 2
    with mp.workdps(40):
        for _ in range(160):
            a, b = high - ratio * (high - low), low + ratio * (high - low)
            low, high = (low, b) if function(a) < function(b) else (a, high)
        return function((low + high) / 2)


def _zcdp_epsilon(rho, delta):
    def at(x):
        alpha = 1 + mp.exp(x)
        return rho * alpha + mp.log1p(-1 / alpha) - (mp.log(alpha) + mp.log(delta)) / (alpha - 1)

    return max(_best(at), mpf(0))


def _zcdp_delta(rho, epsilon):
    return min(mp.exp(_best(lambda x: _zcdp(rho, epsilon, x))), mpf(1))


def _near_zcdp(truth):
    """An upper bound by the best order: never below, and near."""

    def judge(row, answers):
        got, exact = answers[0], truth(*row)
        if mp.isnan(got):
            return "nan", ""
        note = gap(got, exact)
        if got < exact * (1 - mpf("1e-30")):
            return "violation", note
        return ("wide", note) if got > exact * (1 + NARROW) + BELOW else None

    return judge


def _matrix(states):
    def sampler(rng, n):
        return np.stack([draw.masses(states)(rng, n) for _ in range(states)], axis=1)

    return sampler


def _pair_after(p, q, kernel):
    rows = [[x / mp.fsum(r) for x in r] for r in kernel]
    columns = list(zip(*rows, strict=True))
    p, q = [x / mp.fsum(p) for x in p], [x / mp.fsum(q) for x in q]

    def after(v):
        return [mp.fsum(a * b for a, b in zip(v, c, strict=True)) for c in columns]

    return Pair(after(p), after(q)), Pair(p, q)


def _processed(row, answers):
    p, q, kernel, epsilon = row
    low, high = answers
    if mp.isnan(low) or mp.isnan(high):
        return "nan", ""
    truth = min(_pair_after(p, q, kernel)[0].delta(epsilon, "both"), mp.mpf(1))  # (but for a digit)
    note = f"({mp.nstr(low, 15)}, {mp.nstr(high, 15)}), truth {mp.nstr(truth, 15)}"
    if high < truth or low > truth:
        return "violation", note
    return ("wide", note) if high > truth * (1 + NARROW) + mpf("1e-15") else None


def _mixing_judge(kind):
    def judge(row, answers):
        p, q, kernel, epsilon = row
        after, _ = _pair_after(p, q, kernel)
        got = answers[0]
        if mp.isnan(got):
            return "nan", ""
        truth = after.delta(epsilon, "both")
        return ("violation", gap(got, truth)) if got < truth else None

    return judge


def _mixing(kind):
    def ask(p, q, kernel, epsilon):
        condition = getattr(jaxdp.mixing_coefficients(kernel), kind)
        return jaxdp.delta_after_mixing(jaxdp.FinitePair(p, q), epsilon, condition)

    code = f"attack.checks: delta_after_mixing({kind}) of {{}}"
    samplers = (draw.masses(3), draw.masses(3), _matrix(3), _positive_epsilon)
    return Check(f"delta_after_mixing {kind}", samplers, ask, _mixing_judge(kind), code)


def _coefficients(row, answers):
    kernel, epsilon = row
    rows = [[x / mp.fsum(r) for x in r] for r in kernel]
    pairs = [Pair(a, b) for a in rows for b in rows]
    dobrushin = max(pair.delta(epsilon, "remove") for pair in pairs)
    least = [min(c) for c in zip(*rows, strict=True)]
    most = [max(c) for c in zip(*rows, strict=True)]
    doeblin = 1 - mp.fsum(least)
    ultra = 1 - min(a / b if b else mpf(1) for a, b in zip(least, most, strict=True))
    for name, got, truth in zip(
        ("dobrushin", "doeblin", "ultra"), answers, (dobrushin, doeblin, ultra), strict=True
    ):
        if mp.isnan(got):
            return "nan", name
        note = f"{name} {gap(got, truth)}"
        if got < truth * (1 - mpf(10) ** -100):
            return "violation", note
        if got > truth * (1 + NARROW) + mpf("1e-14"):
            return "wide", note
    return None


def _ask_coefficients(kernel, epsilon):
    found = jaxdp.mixing_coefficients(kernel, epsilon)
    return found.dobrushin.gamma, found.doeblin.gamma, found.ultra_mixing.gamma


def _positive_epsilon(rng, n):
    return draw.spiced(rng, draw.log_uniform(rng, 1e-6, 50, n), (0.0, 0.5, 1.0))


def _any_epsilon(rng, n):
    values = draw.log_uniform(rng, 1e-6, 700, n)
    return draw.spiced(rng, np.where(rng.random(n) < 0.2, -values, values), draw.EPSILONS)


def _order(rng, n):
    return draw.spiced(rng, 1 + draw.log_uniform(rng, 1e-4, 1e4, n), (2.0, 3.0, 1.5))


def _target(rng, n):
    return np.maximum(draw.delta(rng, n), 1e-300)


def checks() -> list[Check]:
    """All of them."""
    small = draw.real(1e-8, 1e3, 1.0, 0.5)
    mixed = [_mixing(kind) for kind in ("dobrushin", "doeblin", "ultra_mixing")]
    processed = Check(
        "PostProcessed delta_bounds",
        (draw.masses(3), draw.masses(3), _matrix(3), _any_epsilon),
        lambda p, q, k, e: jaxdp.delta_bounds(jaxdp.PostProcessed(jaxdp.FinitePair(p, q), k), e),
        _processed,
        "jaxdp.delta_bounds(jaxdp.PostProcessed(jaxdp.FinitePair({}))",
    )
    coefficients = Check(
        "mixing_coefficients",
        (_matrix(3), _positive_epsilon),
        _ask_coefficients,
        _coefficients,
        "jaxdp.mixing_coefficients({})",
    )
    gdp = Check("gdp_to_epsilon", (small, _target), jaxdp.gdp_to_epsilon, _gdp_epsilon,
                "jaxdp.gdp_to_epsilon({})")  # fmt: skip
    mu = Check("epsilon_delta_to_gdp", (_positive_epsilon, _target), jaxdp.epsilon_delta_to_gdp,
               _gdp_mu, "jaxdp.epsilon_delta_to_gdp({})")  # fmt: skip
    zcdp = [
        Check(name, samplers, getattr(jaxdp, name), _near_zcdp(truth), f"jaxdp.{name}({{}})")
        for name, samplers, truth in (
            ("zcdp_to_epsilon", (small, _target), _zcdp_epsilon),
            ("zcdp_to_delta", (small, _any_epsilon), _zcdp_delta),
        )
    ]
    return [
        _formula("renyi_to_epsilon", (small, _order, _target), _optimal),
        _formula("renyi_to_epsilon", (small, _order, _target), _simple, form="simple"),
        _formula("renyi_to_delta", (small, _order, _any_epsilon), _renyi_delta),
        _formula("pure_to_delta", (small, _any_epsilon), _pure_delta),
        _formula("pure_to_renyi", (small, _order), _pure_renyi),
        _formula("pure_to_zcdp", (small,), lambda e: e * mp.tanh(e / 2)),
        _formula(
            "gdp_to_delta", (small, _any_epsilon), lambda mu, e: Gaussian(mu).delta(e, "both")
        ),
        gdp, mu, *zcdp, processed, coefficients, *mixed,
    ]  # fmt: skip


def exact(x):
    """A parameter in the references' arithmetic."""
    return mpf(float(x)) if np.ndim(x) == 0 else [exact(v) for v in x]


def attack(check: Check, rng: np.random.Generator, rows: int, tally) -> None:
    """Draw rows, ask once, judge each."""
    drawn = [np.asarray(s(rng, rows), float) for s in check.samplers]
    answers = check.ask(*drawn)
    answers = answers if isinstance(answers, tuple) else (answers,)
    answers = [np.broadcast_to(np.asarray(a), (rows,)) for a in answers]
    for i in range(rows):
        row = [x[i] for x in drawn]
        verdict = check.judge([exact(x) for x in row], [mpf(float(a[i])) for a in answers])
        tally.settings += 1
        if verdict:
            text = check.code.format(", ".join(map(literal, row)))
            tally.note(check.name, verdict[0], f"{text}  # {verdict[1]}")
