"""Pictures of one curve: delta against epsilon, an attack's errors, epsilon along a run."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxdp import _checks, _queries
from jaxdp._mechanisms import Mechanism, Repeated
from jaxdp._methods import Method
from jaxdp.plot import _axes, _sample

_LEAST_DELTA = 1e-10
_STEPS = 24
_WORST = ("remove", "add", "both")


def profile(
    m: Mechanism,
    epsilon: ArrayLike | None = None,
    *,
    direction: _queries.Directions = "both",
    method: Method | None = None,
    bracket: bool = True,
    ax: Any = None,
    **style: Any,
) -> Any:
    """Delta against epsilon, on a log axis: the privacy profile.

    The line is the certified upper bound; between it and the lower one the curve is shaded. Where
    that bracket is too narrow to be seen, the line is the curve.

    Args:
      m: one mechanism.
      epsilon: where to draw it, shape (n,); by default from 0 to where delta falls to 1e-10, to
        its floor (a mechanism that can fail altogether), or to 0.
      direction: "remove", "add" or "both", the worse of them.
      method: as for `jaxdp.delta`.
      bracket: whether to compute the lower bound too (a larger program).
      ax: where to draw; a new figure by default.
      **style: of the line, as matplotlib knows it (color, label, marker, ...).

    Returns:
      The Axes.

    Raises:
      ValueError: for a batch of mechanisms, nan epsilon or a method that cannot answer.
      TypeError: if m is no mechanism. ImportError: without matplotlib.

    Example:
      >>> import jaxdp, jaxdp.plot
      >>> ax = jaxdp.plot.profile(jaxdp.Laplace(1.0), [0.0, 0.5, 0.9])
      >>> [round(float(d), 4) for d in ax.lines[0].get_ydata()]  # 1 - exp((epsilon - 1) / 2)
      [0.3935, 0.2212, 0.0488]
    """
    _sample.one(m)
    _checks.check_choice("direction", direction, _WORST)

    def bounds(points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if bracket:
            query, options = _queries.delta_bounds, {"direction": direction, "method": method}
            return _sample.float64(query, m, points, **options)
        upper = np.exp(_sample.log_delta(m, points, direction, method))
        return np.zeros_like(upper), upper

    if epsilon is None:
        largest = _sample.largest_loss(m, direction)
        end = _sample.reach(lambda e: _log(bounds(e)[1]), _LEAST_DELTA, largest)
        epsilon = np.linspace(0.0, end, _sample.POINTS)
    x = _points("epsilon", epsilon, _checks.NOT_NAN)
    lower, upper = bounds(x)
    ax = _axes.new(ax)
    line = _axes.curve(ax, x, _positive(upper), {"color": _axes.next_color(ax), **style})
    if np.any(lower > 0.0):
        _shade(ax, x, np.where(lower > 0.0, lower, np.nan), upper, line)
    ax.set(yscale="log", xlabel="ε", ylabel="δ")
    return ax


def epsilon_over_steps(
    m: Mechanism,
    steps: ArrayLike | None = None,
    *,
    delta: float = 1e-5,
    direction: _queries.Directions = "both",
    method: Method | None = None,
    bracket: bool = True,
    unit: str = "steps",
    ax: Any = None,
    **style: Any,
) -> Any:
    """Epsilon against how often a mechanism has been run, the bracket shaded.

    Args:
      m: one run: a step of DP-SGD, an epoch of a random allocation, a release.
      steps: how often, shape (n,), > 0. By default m must be a `jaxdp.Repeated`, whose mechanism
        is the step, and is drawn up to its count.
      delta: in [0, 1).
      direction: "remove", "add" or "both", the worse of them.
      method: as for `jaxdp.epsilon`.
      bracket: whether to compute the lower bound too (a larger program).
      unit: what the horizontal axis counts.
      ax: where to draw; a new figure by default.
      **style: of the line, as matplotlib knows it.

    Returns:
      The Axes; its horizontal axis is logarithmic where the steps span two decades.

    Raises:
      ValueError: for a batch of mechanisms, a delta or steps outside their domains, or no steps
        for a mechanism that is not repeated. TypeError: if m is no mechanism. ImportError:
        without matplotlib.

    Example:
      >>> import jaxdp, jaxdp.plot
      >>> ax = jaxdp.plot.epsilon_over_steps(jaxdp.Gaussian(10.0), [1, 25, 100])
      >>> [round(float(e), 4) for e in ax.lines[0].get_ydata()]
      [0.3407, 1.9931, 4.3772]
    """
    _sample.one(m)
    delta = _checks.number("delta", delta, _checks.DELTA)
    if steps is None:
        if not isinstance(m, Repeated):
            raise ValueError("steps must be given for a mechanism that is not a jaxdp.Repeated")
        most = float(m.count)
        steps = (
            np.unique(np.round(np.geomspace(1.0, most, _STEPS))) if most > 1.0 else np.array([most])
        )
        m = m.mechanism
    x = _points("steps", steps, _checks.POSITIVE)
    run = Repeated(m, x)
    options: Any = {"direction": direction, "method": method}
    if bracket:
        lower, upper = _sample.float64(_queries.epsilon_bounds, run, delta, **options)
    else:
        upper = _sample.float64(_queries.epsilon, run, delta, **options)
        lower = np.zeros_like(upper)
    ax = _axes.new(ax)
    shown = np.where(np.isfinite(upper), upper, np.nan)
    line = _axes.curve(ax, x, shown, {"color": _axes.next_color(ax), **style})
    if np.any(lower > 0.0):
        _shade(ax, x, np.where(lower > 0.0, lower, np.nan), shown, line)
    _axes.log_where_wide(ax, "x", x)
    _axes.log_where_wide(ax, "y", upper)
    ax.set(xlabel=f"number of {unit}", ylabel=f"ε at δ = {delta:g}")
    return ax


def tradeoff(
    m: Mechanism,
    fpr: ArrayLike | None = None,
    *,
    direction: _queries.Directions | None = None,
    method: Method | None = None,
    advantage: bool = True,
    ax: Any = None,
    **style: Any,
) -> Any:
    r"""The errors of the best attack: certified lower bounds on its misses at every false alarm.

    An attack sees the output and decides whether a person's record was used. With H the curve of
    the direction that is drawn, every test of "without" against "with" of type I error a errs on

    .. math:: T(a) = \sup_{g \ge 0} \big(1 - g a - H_g\big)

    of the runs with the record (Dong, Roth & Su 2022, Proposition 6), here the best of the lines
    at 129 values of g. Exchanging the two errors gives "add"; the curves mirror each other.

    Args:
      m: one mechanism.
      fpr: type I errors (false positive rates) in [0, 1], shape (n,); 0 to 1 by default.
      direction: None draws "remove" (false alarms are runs without the record) and "add" (runs
        with it), as one line where they are the same; one of them, or "both", the smaller.
      method: as for `jaxdp.delta`.
      advantage: whether to mark the attack's advantage, the largest of 1 - a - T(a).
      ax: where to draw; a new figure by default.
      **style: of the lines, as matplotlib knows it.

    Returns:
      The Axes.

    Raises:
      ValueError: for a batch of mechanisms, fpr outside [0, 1] or a method that cannot answer.
      TypeError: if m is no mechanism. ImportError: without matplotlib.

    Example:
      >>> import jaxdp, jaxdp.plot, numpy as np
      >>> ax = jaxdp.plot.tradeoff(jaxdp.RandomizedResponse(np.log(3.0)), [0.0, 0.25, 1.0])
      >>> [round(float(t), 6) for t in ax.lines[0].get_ydata()]
      [1.0, 0.25, 0.0]
    """
    _sample.one(m)
    if direction is not None:
        _checks.check_choice("direction", direction, _WORST)
    x = np.linspace(0.0, 1.0, 201) if fpr is None else _points("fpr", fpr, _checks.PROBABILITY)
    symmetric = m._symmetric()
    ratios, log_curve = _curve_both_ways(m, method)
    remove, add = (_errors(ratios, np.exp(log_curve), x, d) for d in ("remove", "add"))
    drawn = {
        "remove": [("remove", remove)],
        "add": [("add", add)],
        "both": [("both", np.minimum(remove, add))],
        None: [("remove", remove), ("add", add)],
    }[direction]
    if symmetric and direction is None:
        drawn = [("remove = add", np.minimum(remove, add))]
    ax = _axes.new(ax, 5.0, 4.6)
    names = direction is None and "label" not in style
    lines = []
    for (_, y), own in zip(drawn, _axes.styles(), strict=False):
        own = {"marker": own["marker"]} if len(drawn) > 1 else {}
        color = {"color": _axes.next_color(ax)}
        lines.append(_axes.curve(ax, x, y, {**color, **own, **style}, shift=2 * len(lines)))
    if not any(line.get_gid() == "guessing" for line in ax.get_lines()):
        ax.plot([0, 1], [1, 0], color=_axes.GREY, ls=":", lw=1.2, gid="guessing", zorder=1)
        ax.annotate("guessing", (0.72, 0.30), color=_axes.GREY, fontsize="small")
    if advantage:
        _mark_advantage(ax, x, drawn[0][1], lines[0])
    ax.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    ax.set(xlabel="type I error (false alarms)", ylabel="type II error (misses)")
    if names and len(drawn) > 1:
        for line, (name, _) in zip(lines, drawn, strict=True):
            line.set_label(name)
        ax.legend(frameon=False, loc="upper right")
    return ax


def _curve_both_ways(m: Mechanism, method: Method | None) -> tuple[np.ndarray, np.ndarray]:
    """Ratios g > 0, as e^loss, and log H_g of "remove" there, read from both directions' curves."""
    ends = [_sample.largest_loss(m, d) for d in ("remove", "add")]
    # dense next to 0, where little privacy loss is
    unit = np.sinh(4.0 * np.linspace(0.0, 1.0, _sample.POINTS)) / np.sinh(4.0)
    high, low = (min(end, 16.0) * unit for end in ends)
    right = _sample.log_delta(m, high, "remove", method)
    left = right if m._symmetric() else _sample.log_delta(m, low, "add", method)
    # H_g(P, Q) = 1 - g + g H_{1/g}(Q, P)
    ratio = np.exp(-low[:0:-1])
    swapped = np.exp(left[:0:-1])
    return (
        np.concatenate([ratio, np.exp(high)]),
        np.concatenate([np.log1p(-ratio * (1.0 - np.minimum(swapped, 1.0))), right]),
    )


def _errors(ratios: np.ndarray, curve: np.ndarray, x: np.ndarray, direction: str) -> np.ndarray:
    """The best of the lines 1 - g a - H_g, and (1 - a - H_g) / g of the swapped pair."""
    if direction == "remove":
        lines = 1.0 - ratios * x[:, None] - curve
    else:
        lines = (1.0 - x[:, None] - curve) / ratios
    slack = 2.0**-48 * (1.0 + ratios + 1.0 / ratios)
    return np.maximum(np.max(lines - slack * np.minimum(np.abs(lines), 1.0), axis=1), 0.0)


def _mark_advantage(ax: Any, x: np.ndarray, y: np.ndarray, line: Any) -> None:
    """A vertical mark where the curve is furthest from guessing."""
    at = int(np.argmax(1.0 - x - y))
    size = float(1.0 - x[at] - y[at])
    if not size > 0.0:
        return
    color = line.get_color()
    ax.plot([x[at], x[at]], [y[at], 1.0 - x[at]], color=color, lw=1.4, gid="advantage", zorder=1.5)
    ax.annotate(
        f"advantage {size:.3g}",
        (x[at], 1.0 - x[at]),
        xytext=(6.0, 4.0),
        textcoords="offset points",
        fontsize="small",
        color=color,
    )


def _points(name: str, value: Any, domain: _checks.Domain) -> np.ndarray:
    known = _checks.concrete(name, value)
    if known is None or known.ndim != 1 or not known.size:
        raise ValueError(f"{name} must be known numbers of shape (n,), got {_checks.shown(value)}")
    _checks.check(name, known, domain)
    return known.astype(np.float64)


def _positive(values: np.ndarray) -> np.ndarray:
    """Values as a log axis can show them: 0 ends the line."""
    return np.where(values > 0.0, values, np.nan)


def _log(values: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        return np.log(values)


def _shade(ax: Any, x: np.ndarray, lower: np.ndarray, upper: np.ndarray, line: Any) -> None:
    ax.fill_between(x, lower, upper, color=line.get_color(), alpha=0.25, linewidth=0.0)
