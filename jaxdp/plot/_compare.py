"""Several mechanisms in one picture."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jaxdp import _checks, _queries
from jaxdp._mechanisms import Mechanism, require_mechanism
from jaxdp._methods import Method
from jaxdp.plot import _axes, _curves, _sample


def compare(
    mechanisms: Mapping[str, Mechanism],
    *,
    curve: Callable[..., Any] = _curves.profile,
    ax: Any = None,
    **options: Any,
) -> Any:
    """The same curve of several mechanisms, each named beside its line (trade-offs, in a legend).

    Lines differ in colour, dash, width and marker, and the markers sit at different points, so
    that curves that coincide are still seen to be several.

    Args:
      mechanisms: names and mechanisms, in the order of drawing.
      curve: `profile`, `epsilon_over_steps` or `tradeoff`. Of a trade-off the smaller direction is
        drawn, and no advantage marked, unless options say otherwise.
      ax: where to draw; a new figure by default.
      **options: of that function. Brackets are not drawn, unless `bracket=True`.

    Returns:
      The Axes.

    Raises:
      ValueError: if there are no mechanisms, and as the function. TypeError: if a value is no
        mechanism. ImportError: without matplotlib.

    Example:
      >>> import jaxdp, jaxdp.plot
      >>> ax = jaxdp.plot.compare(
      ...     {"Laplace": jaxdp.Laplace(1.0), "Gaussian": jaxdp.Gaussian(1.5)}, epsilon=[0.0, 0.9])
      >>> [text.get_text() for text in ax.texts]
      ['Laplace', 'Gaussian']
    """
    named = _named(mechanisms)
    crossed = curve is _curves.tradeoff
    if crossed:
        options = {"direction": "both", "advantage": False, **options}
    else:
        options = {"bracket": False, **options}
    ax = _axes.new(ax, *((5.4, 4.6) if crossed else (6.8, 4.2)))
    lines = []
    for index, ((_, m), style) in enumerate(zip(named.items(), _axes.styles(), strict=False)):
        before = set(ax.get_lines())
        curve(m, ax=ax, **{**options, **style})
        (line,) = [
            x for x in ax.get_lines() if x not in before and x.get_marker() == style["marker"]
        ]
        every = line.get_markevery()[1]
        line.set_markevery((index * every // max(len(named), 1), every))
        lines.append(line)
    if crossed:  # all end in one point, and no curve is above the diagonal
        ax.legend(lines, list(named), frameon=False, loc="upper right")
    else:
        _axes.labels(ax, lines, list(named))
    return ax


def lines(
    x: ArrayLike,
    curves: Mapping[str, ArrayLike],
    *,
    xlabel: str = "",
    ylabel: str = "",
    log: bool | None = None,
    ax: Any = None,
) -> Any:
    """Numbers of your own over one axis, each curve named beside its line.

    For what the other pictures do not draw: epsilon against the noise, several methods on one
    mechanism. Lines are told apart as by `compare`. What is not finite is left out, and so is 0 on
    a log axis. (Set the axes' limits, if at all, before the names are placed: with `ax`.)

    Args:
      x: shape (n,).
      curves: names and values, each of shape (n,), in the order of drawing.
      xlabel: what x is.
      ylabel: what the values are.
      log: whether both axes are logarithmic; None for those whose values span two decades.
      ax: where to draw; a new figure by default.

    Returns:
      The Axes.

    Raises:
      ValueError: if there are no curves, or shapes do not fit. ImportError: without matplotlib.

    Example:
      >>> import jaxdp, jaxdp.plot, numpy as np
      >>> sigma = np.geomspace(0.5, 5.0, 16)
      >>> curves = {f"delta = {d}": jaxdp.epsilon(jaxdp.Gaussian(sigma), d) for d in (1e-5, 1e-9)}
      >>> ax = jaxdp.plot.lines(sigma, curves, xlabel="sigma", ylabel="epsilon")
      >>> sorted(text.get_text() for text in ax.texts)
      ['delta = 1e-05', 'delta = 1e-09']
    """
    at = np.asarray(x, np.float64)
    values = {str(name): np.asarray(y, np.float64) for name, y in curves.items()}
    if not values or at.ndim != 1:
        raise ValueError(f"curves must not be empty and x of shape (n,), got {at.shape}")
    for name, y in values.items():
        if y.shape != at.shape:
            raise ValueError(f"curves[{name!r}] must have the shape {at.shape}, got {y.shape}")
    ax = _axes.new(ax, 6.8, 4.2)
    for axis, shown in (("x", at), ("y", np.concatenate(list(values.values())))):
        if log is None:
            _axes.log_where_wide(ax, axis, shown)
        elif log:
            _axes.logarithmic(ax, axis, shown)
    drawn = []
    for index, (y, style) in enumerate(zip(values.values(), _axes.styles(), strict=False)):
        least = 0.0 if ax.get_yscale() == "log" else -np.inf
        shown = np.where(np.isfinite(y) & (y > least), y, np.nan)
        shift = 4 * index // len(values)
        drawn.append(_axes.curve(ax, at, shown, style, shift=shift))
    ax.set(xlabel=xlabel, ylabel=ylabel)
    _axes.labels(ax, drawn, list(values))
    return ax


def brackets(
    mechanisms: Mapping[str, Mechanism] | Mechanism,
    *,
    delta: float = 1e-5,
    direction: _queries.Directions = "both",
    method: Method | Mapping[str, Method | None] | None = None,
    ax: Any = None,
) -> Any:
    """Certified intervals for epsilon, one line for each mechanism or method.

    Where a method knows no lower bound, the interval is an arrow to the left.

    Args:
      mechanisms: names and mechanisms, or one mechanism.
      delta: in [0, 1).
      direction: "remove", "add" or "both", the worse of them.
      method: one for all, or names and methods to compare.
      ax: where to draw; a new figure by default.

    Returns:
      The Axes.

    Raises:
      ValueError: if there are no mechanisms or methods, for delta outside its domain or a method
        that cannot answer. TypeError: if a value is no mechanism. ImportError: without matplotlib.

    Example:
      >>> import jaxdp, jaxdp.plot
      >>> ax = jaxdp.plot.brackets({"laplace": jaxdp.Laplace(0.5)}, delta=0.0)
      >>> [text.get_text() for text in ax.get_yticklabels()], ax.texts[0].get_text()
      (['laplace'], '2.0000')
    """
    delta = _checks.number("delta", delta, _checks.DELTA)
    alone = isinstance(mechanisms, Mechanism)
    named = {"": mechanisms} if alone else _named(mechanisms)
    methods = dict(method) if isinstance(method, Mapping) else {"": method}
    if not methods:
        raise ValueError("method must not be empty")
    rows = []
    for name, m in named.items():
        _sample.one(m)
        for by, chosen in methods.items():
            low, high = _sample.float64(
                _queries.epsilon_bounds, m, delta, direction=direction, method=chosen
            )
            rows.append((", ".join(x for x in (name, by) if x), float(low), float(high)))
    ax = _axes.new(ax, 6.4, 1.1 + 0.45 * len(rows))
    finite = [high for _, _, high in rows if np.isfinite(high)]
    most = max(finite, default=1.0)
    for at, (_, low, high) in enumerate(rows):
        color = _axes.COLORS[at % len(_axes.COLORS)]
        _interval(ax, at, low, high, most, color)
    ax.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlabel=f"ε at δ = {delta:g}")
    ax.margins(x=0.08)
    return ax


def _interval(ax: Any, at: int, low: float, high: float, most: float, color: str) -> None:
    known = low > 0.0 or high == 0.0
    shown = high if np.isfinite(high) else most
    start = low if known else shown - 0.04 * most
    ax.plot([start, shown], [at, at], color=color, lw=2.0, solid_capstyle="butt")
    ends, markers = ([start, shown], "||") if known else ([start, shown], "<|")
    for x, marker in zip(ends, markers, strict=True):
        ax.plot([x], [at], color=color, marker=marker, ms=7 if marker == "<" else 10, mew=1.8)
    if not np.isfinite(high):
        text = "∞"
    elif not known:
        text = f"≤ {high:.4f}"
    elif high - low < 5e-5 * high:
        text = f"{high:.4f}"
    else:
        text = f"{low:.4f} to {high:.4f}  (±{50.0 * (high - low) / high:.2g} %)"
    ax.annotate(
        text,
        (0.5 * (start + shown), at),
        xytext=(0.0, 9.0),
        textcoords="offset points",
        ha="center",
        fontsize="small",
    )


def _named(mechanisms: Any) -> dict[str, Mechanism]:
    if not isinstance(mechanisms, Mapping):
        got = _checks.shown(mechanisms)
        raise TypeError(f"mechanisms must map names to jaxdp mechanisms, got {got}")
    if not mechanisms:
        raise ValueError("mechanisms must not be empty")
    for name, m in mechanisms.items():
        require_mechanism(f"mechanisms[{name!r}]", m)
    return {str(name): m for name, m in mechanisms.items()}
