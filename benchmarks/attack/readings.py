"""Laws of the privacy loss as objects: every reading of an upper and a lower law."""

from mpmath import mpf

import jaxdp
from benchmarks.attack import judge
from benchmarks.attack.laws import Pair


def _law(m, direction, side):
    return jaxdp.privacy_loss(m, delta=1e-5, direction=direction, side=side)


def _query(reading, made, read, arguments, verdict, takes=lambda law: True) -> judge.Query:
    def ask(m, x):
        below, above = (_law(m, made, side) for side in ("lower", "upper"))
        return tuple(getattr(law, reading)(x, direction=read) for law in (below, above))

    def code(m, x):
        laws = f"jaxdp.privacy_loss({m}, delta=1e-05, direction={made!r}, side=...)"
        return f"{laws}.{reading}({x}, direction={read!r})"

    return judge.Query(
        f"privacy_loss {made} {reading} {read}", ask, verdict, arguments, code, takes
    )


def _directed(made, read):
    """(P, Q) of a law made the other way round are the mechanism's (Q, P)."""
    return made if read == "remove" else {"remove": "add", "add": "remove"}[made]


def _sided(strict):
    """Only wrong sides count: far from its delta a law may be wide."""

    def verdict(law, x, answers, slack):
        found = strict(law, x, answers, slack)
        return found if found and found[0] in ("violation", "nan") else None

    return verdict


def _tradeoff(reverse):
    def verdict(law, fpr, answers, slack):
        if judge.bad(answers):
            return "nan", ""
        below, above = answers  # a law above the mechanism's has the smaller errors
        truth = law.directed_tradeoff(fpr, reverse)
        if above > truth * (1 + judge.ROUNDING):
            return "violation", "upper law: " + judge.gap(above, truth)
        if below < truth * (1 - judge.ROUNDING) - mpf("1e-300"):
            return "violation", "lower law: " + judge.gap(below, truth)
        return None

    return verdict


def queries(rng) -> list[judge.Query]:
    """A curve and a trade-off, of a law made in one direction and read in one."""
    made, read = (str(rng.choice(["remove", "add"])) for _ in range(2))
    direction = _directed(made, read)
    curve, inverse = judge.delta_bounds(direction), judge.epsilon_bounds(direction)
    found = [
        _query("hockey_stick", made, read, judge.epsilons, _sided(curve)),
        _query("epsilon", made, read, judge.targets, _sided(inverse)),
        _query(
            "tradeoff", made, read, judge.rates, _tradeoff(direction == "add"),
            lambda law: isinstance(law, Pair),
        ),
    ]  # fmt: skip
    return [found[rng.integers(len(found))]]
