"""Queries, and what is said of their answers: wrong, nan, trivial or wide."""

import dataclasses
from collections.abc import Callable

import jax
import numpy as np
from mpmath import mp, mpf

import jaxdp
from benchmarks.attack import draw
from benchmarks.attack.grammar import Node
from benchmarks.attack.laws import Law

DIRECTIONS = ("remove", "add", "both")
NARROW = mpf("1e-2")
ROUNDING = mpf("1e-100")  # of the references
NEARLY = mpf("1e-9")
BELOW = mpf("1e-6")  # widths of epsilon below this do not matter


@dataclasses.dataclass(frozen=True)
class Query:
    """A public query.

    Attributes:
      name: for the table.
      ask: (mechanism, argument) -> one or two arrays.
      judge: (law, argument, answers as mpf, slack) -> None or (verdict, truth in words).
      draw: (generator, n, laws) -> arguments.
      code: (mechanism's code, argument's code) -> Python.
      takes: whether a law can answer.
    """

    name: str
    ask: Callable
    judge: Callable
    draw: Callable
    code: Callable
    takes: Callable[[Law], bool] = lambda law: True


def short(x) -> str:
    """A few digits."""
    return mp.nstr(x, 12)


def tiny() -> mpf:
    """Below it floats of the caller's precision lose digits, and a bound above may be this."""
    return mpf(2) ** (-1022 if jax.config.read("jax_enable_x64") else -126) * mpf("1.1")


def gap(value, truth) -> str:
    """How far off, relatively."""
    off = mp.nstr((value - truth) / truth, 3) if truth and mp.isfinite(truth) else "?"
    return f"{short(value)}, truth {short(truth)}, off by {off}"


def bad(answers) -> bool:
    """Whether one is nan."""
    return any(mp.isnan(x) for x in answers)


def delta_bounds(direction):
    """The judge of (lower, upper) bounds on delta."""

    def judge(law, e, answers, slack):
        if bad(answers):
            return "nan", ""
        low, high = answers
        slack = max(mpf(slack), ROUNDING)
        truth = law.delta(e, direction)
        note = f"({short(low)}, {gap(high if high < truth else low, truth)})"
        if low <= truth <= high:
            note = f"({short(low)}, {short(high)}), truth {short(truth)}"
        if high < truth * (1 - slack) and truth > 0:
            return ("underflow" if truth < tiny() else "violation"), note
        if low > truth * (1 + slack) or low > high:
            return "violation", note
        if high == 1 and truth < 0.99 and not _near(law, e, direction, high):
            return "trivial", note
        if low == 0 and truth > tiny() and not _near(law, e, direction, tiny(), above=True):
            return "trivial", note
        if not _near(law, e, direction, high) or not _near(law, e, direction, low, above=True):
            return "wide", note
        return None

    return judge


def _near(law, e, direction, value, above=False) -> bool:
    """Whether a bound on delta is the truth at an epsilon nearly the same, or 1 % off itself."""
    truth = law.delta(e, direction)
    if value <= max(truth, tiny()) * (1 + NARROW) and not above:
        return True
    if above and (truth < tiny() or value >= truth * (1 - NARROW)):
        return True
    width = max(NARROW * abs(e), BELOW)
    if above:
        return value >= law.delta(e + width, direction) * (1 - BELOW)
    return value <= max(law.delta(e - width, direction), tiny()) * (1 + BELOW)


def _log_delta(direction):
    def judge(law, e, answers, slack):
        if bad(answers):
            return "nan", ""
        truth = law.delta(e, direction)
        value = answers[0]
        exact = mp.log(truth) if truth > 0 else mp.ninf
        note = gap(value, exact)
        if value < exact + mp.log1p(-max(mpf(slack), ROUNDING)):
            return "violation", note
        if value > 0:
            return "violation", note + " (above 0)"
        if value == 0 and exact < -0.01 and not _near(law, e, direction, mpf(1)):
            return "trivial", note
        floor = -(mpf(10) ** 6)  # beyond it the references' digits end
        if exact > floor and not _near_log(law, e, direction, value):
            return "wide", note
        return None

    return judge


def _near_log(law, e, direction, value) -> bool:
    bound = law.delta(e - max(NARROW * abs(e), BELOW), direction)
    truth = law.delta(e, direction)
    if truth == 0:
        return value == mp.ninf or (bound > 0 and value <= mp.log(bound) + NARROW)
    return value <= mp.log(max(bound, truth)) + NARROW


def _hockey_stick(direction):
    def judge(law, e, answers, slack):
        if bad(answers):
            return "nan", ""
        truth, value = law.delta(e, direction), answers[0]
        rounding = (abs(e) + 1) * mpf("4e-15")  # of the loss: it matters where the curve is steep
        steep = law.delta(e - rounding, direction) - law.delta(e + rounding, direction)
        if abs(value - truth) > truth * (mpf("2e-12") + slack) + tiny() + steep:
            return "inexact", gap(value, truth)
        return None

    return judge


def epsilon_bounds(direction):
    """The judge of (lower, upper) bounds on epsilon."""

    def judge(law, d, answers, slack):
        if bad(answers):
            return "nan", ""
        if d < law.least:
            return None
        low, high = answers
        slack = max(mpf(slack), ROUNDING)

        def note():
            truth = mp.nstr(_epsilon(law, d, direction), 20)
            return f"({float(low)!r}, {float(high)!r}), truth {truth}"

        if high != mp.inf and law.delta(high, direction) * (1 - slack) > d:
            return "violation", note()
        if low > high or (
            low > 0
            and low != mp.inf
            and law.delta(low, direction) <= d * (1 - slack)
            and law.delta(low * (1 - mpf(2) ** -53), direction) <= d * (1 - slack)
        ):
            return "violation", note()
        if low == mp.inf and law.delta(mp.inf, direction) < d:
            return "violation", note()
        if high == mp.inf:
            # (At a jump of the curve either side is right: masses are known to a rounding.)
            left = law.delta(mpf(2) ** 1023, direction)
            return ("trivial", note()) if left < d * (1 - NEARLY) else None
        if high - low <= max(NARROW * high, BELOW):
            return None
        # (Where the curve is flat, the epsilon of a delta nearly the same may be far away.)
        step = max(NARROW * high, BELOW)
        if law.delta(high - step, direction) < d * (1 - NEARLY) and high > step:
            return "wide", note()
        step = max(NARROW * low, BELOW)
        if law.delta(low + step, direction) > d * (1 + NEARLY):
            return ("trivial" if low == 0 else "wide"), note()
        return None

    return judge


def _epsilon(law, d, direction) -> mpf:
    """The truth, by bisection, for a note."""
    low, high = mpf(0), mpf(2) ** 20
    if law.delta(low, direction) <= d:
        return low
    if law.delta(high, direction) > d:
        return mp.inf
    for _ in range(90):
        middle = (low + high) / 2
        low, high = (middle, high) if law.delta(middle, direction) > d else (low, middle)
    return high


def _renyi(direction):
    def judge(law, alpha, answers, slack):
        value = answers[0]
        if bad(answers):
            return "nan", ""
        truths = [law.renyi(alpha, r) for r in _reverse(direction)]
        if None in truths:
            return None
        truth = max(truths)
        note = gap(value, truth)
        if truth == mp.inf or value == mp.inf:
            if truth == value:
                return None
            return ("trivial" if value == mp.inf else "violation"), note
        if abs(value - truth) > mpf("1e-11") * truth + mpf("1e-300"):
            if value < truth:
                return "violation", note
            return ("wide" if value > truth * (1 + NARROW) else "inexact"), note
        return None

    return judge


def _reverse(direction):
    return {"remove": (False,), "add": (True,), "both": (False, True)}[direction]


def _tradeoff(law, fpr, answers, slack):
    if bad(answers):
        return "nan", ""
    truth, value = law.tradeoff(fpr), answers[0]
    note = gap(value, truth)
    if value > truth * (1 + ROUNDING):
        return "violation", note
    if value < truth - NARROW:
        return ("trivial" if value == 0 else "wide"), note
    return None


def _advantage(law, _, answers, slack):
    if bad(answers):
        return "nan", ""
    truth, value = law.delta(mpf(0), "both"), answers[0]
    note = gap(value, truth)
    if value < truth * (1 - max(mpf(slack), ROUNDING)):
        return "violation", note
    if value > truth * (1 + NARROW) + BELOW:
        return ("trivial" if value == 1 else "wide"), note
    return None


def epsilons(rng, n, laws):
    """Epsilons: wild ones, ordinary ones, and those at and next to a kink of the row's curve."""
    values = draw.log_uniform(rng, 1e-6, 1e4, n)
    values = np.where(rng.random(n) < 0.5, draw.log_uniform(rng, 1e-2, 20, n), values)
    values = np.where(rng.random(n) < 0.15, -values, values)
    values = draw.spiced(rng, values, draw.EPSILONS)
    for i, law in enumerate(laws):
        ends = law.ends()
        if ends and rng.random() < 0.5:
            end = float(rng.choice(np.array([float(x) for x in ends])))
            nudge = rng.choice([0.0, 1e-16, -1e-16, 1e-12, -1e-12, 1e-3, -1e-3, 0.1, -0.1, -0.5])
            values[i] = end * (1 + nudge)
    return np.nan_to_num(values, posinf=1e4, neginf=-1e4)


def deltas(rng, n, laws):
    """Targets: any, and the truth at an ordinary epsilon."""
    values = draw.delta(rng, n)
    for i, law in enumerate(laws):
        if rng.random() < 0.3:
            at = law.delta(mpf(float(draw.log_uniform(rng, 1e-3, 10, 1)[0])), "both")
            values[i] = float(at) if 1e-300 < at < 0.95 else values[i]
    return values


def targets(rng, n, laws):
    """The same within (0, 1)."""
    return np.maximum(deltas(rng, n, laws), 1e-300)


def _orders(rng, n, laws):
    values = 1.0 + draw.log_uniform(rng, 1e-6, 1e4, n)
    return draw.spiced(rng, values, (1.0, 2.0, 3.0, 8.0, 1.5, 64.0, np.inf))


def rates(rng, n, laws):
    """Type I errors."""
    values = draw.log_uniform(rng, 1e-12, 1.0, n)
    values = np.where(rng.random(n) < 0.5, rng.random(n), values)
    return draw.spiced(rng, values, (0.0, 1.0, 0.5, 1e-300))


def directed(name, judge, arguments, directions, method="", takes=lambda law: True):
    """One query in some directions."""
    found = []
    extra = f", method=jaxdp.{method}()" if method else ""
    chosen = {"method": getattr(jaxdp, method)()} if method else {}
    for direction in directions:
        options = {"direction": direction, **chosen}

        def ask(m, x, options=options):
            return getattr(jaxdp, name)(m, x, **options)

        def code(m, x, direction=direction):
            return f"jaxdp.{name}({m}, {x}, direction={direction!r}{extra})"

        found.append(Query(f"{name} {direction}", ask, judge(direction), arguments, code, takes))
    return found


def _knows(law: Law) -> bool:
    return law.renyi(mpf(2), False) is not None


ADVANTAGE = Query(
    "advantage",
    lambda m, x: jaxdp.advantage(m),
    _advantage,
    lambda rng, n, laws: np.zeros(n),
    lambda m, x: f"jaxdp.advantage({m})",
)
TRADEOFF = Query(
    "tradeoff",
    jaxdp.tradeoff,
    _tradeoff,
    rates,
    lambda m, x: f"jaxdp.tradeoff({m}, {x})",
    lambda law: hasattr(law, "tradeoff"),
)


def queries(node: Node, rng: np.random.Generator) -> list[Query]:
    """All where the curve is a closed form, else two; one direction each.

    (Every other choice is another seed's: programs take seconds to compile.)
    """
    method = node.method

    def some(name, judge, arguments, directions=DIRECTIONS, takes=lambda law: True):
        chosen = (str(rng.choice(directions)),)
        return directed(name, judge, arguments, chosen, method, takes)

    found = some("delta_bounds", delta_bounds, epsilons)
    found += some("epsilon_bounds", epsilon_bounds, deltas)
    found += some("log_delta", _log_delta, epsilons)
    if not method:
        found += some("renyi", _renyi, _orders, takes=_knows)
        found += [ADVANTAGE]
    if node.engine:
        return [found[k] for k in rng.permutation(len(found))[:2]]
    return [*found, *some("hockey_stick", _hockey_stick, epsilons, DIRECTIONS[:2]), TRADEOFF]


def certified(node: Node, rng: np.random.Generator) -> list[Query]:
    """What is rounded to the safe side for callers in 32 bits; one of the engine's."""
    options = [(str(rng.choice(DIRECTIONS)),) for _ in range(3)]
    found = directed("delta_bounds", delta_bounds, epsilons, options[0])
    found += directed("epsilon_bounds", epsilon_bounds, deltas, options[1])
    found += directed("log_delta", _log_delta, epsilons, options[2])
    return [found[rng.integers(3)]] if node.engine else [*found, TRADEOFF, ADVANTAGE]
