"""Pictures of what lies behind a curve: the law of the privacy loss, and a run's parameters."""

from typing import Any

import jax
import numpy as np

from jaxdp import _checks
from jaxdp._mechanisms import Mechanism, Schedule, _curve
from jaxdp._methods import Method
from jaxdp.plot import _axes, _sample

_LEAST_TAIL = 1e-9  # of the losses that are drawn
_LARGEST = 600.0  # e^loss is a double
_DECADES = 10.0  # below the largest density


def loss_distribution(
    m: Mechanism,
    *,
    delta: float = 1e-5,
    direction: str = "remove",
    method: Method | None = None,
    ax: Any = None,
) -> Any:
    r"""The privacy loss L = log dP/dQ under P and under Q, and the part that delta pays for.

    P and Q are the output's laws with the record and without it ("remove"), or the other way round
    ("add"). Their densities are those of the pair whose curve joins the certified values of
    :math:`H_g` at 129 values of g by chords (Doroshenko et al. 2022): above the mechanism's, and an
    atom of the loss is spread over its neighbours among them. Losses beyond 600 are left out.
    Shaded are the losses beyond the epsilon at which the mechanism is (epsilon, delta)-DP.

    Args:
      m: one mechanism.
      delta: in (0, 1), where epsilon is marked.
      direction: "remove" or "add".
      method: as for `jaxdp.delta`.
      ax: where to draw; a new figure by default.

    Returns:
      The Axes; its vertical axis is logarithmic.

    Raises:
      ValueError: for a batch of mechanisms, a delta outside its domain, another direction, a
        method that cannot answer, or a loss that is always 0 or beyond 600. TypeError: if m is no
        mechanism. ImportError: without matplotlib.

    Example:
      >>> import jaxdp, jaxdp.plot
      >>> ax = jaxdp.plot.loss_distribution(jaxdp.Gaussian(1.0))
      >>> ax.get_xlabel(), len(ax.lines)
      ('privacy loss', 3)
    """
    _sample.one(m)
    _checks.check_choice("direction", direction, ("remove", "add"))
    delta = _checks.number("delta", delta, _checks.OPEN_DELTA)
    other = "add" if direction == "remove" else "remove"
    largest = [_largest_finite(m, d) for d in (other, direction)]
    if max(largest) <= _sample.LEAST_REACH:
        raise ValueError("m: the privacy loss has no finite value but 0")
    right = _half(m, direction, method, largest[1])
    left = right if m._symmetric() else _half(m, other, method, largest[0])
    losses, log_mass = _masses(left, right)
    for end in (0, -1):  # where losses go on, the last point holds them
        if abs(losses[end]) < largest[end]:
            log_mass[end] = -np.inf
    edges = _edges(losses)
    width = np.diff(edges)
    p, q = np.exp(log_mass) / width, np.exp(log_mass - losses) / width
    top = max(np.max(p), np.max(q))
    if not top > 0.0:
        raise ValueError(f"m: the privacy loss is nowhere between -{_LARGEST:g} and {_LARGEST:g}")
    floor = top * 10.0**-_DECADES
    ax = _axes.new(ax)
    names = ("with the record", "without the record")
    names = names if direction == "remove" else names[::-1]
    for y, color, name in zip((p, q), _axes.COLORS[:2], names, strict=True):
        _axes.curve(ax, *_steps(edges, y, floor), {"color": color, "label": name})
    epsilon = _epsilon(*right, delta)
    if np.isfinite(epsilon):
        beyond = edges[1:] > epsilon
        first = np.maximum(edges[:-1], epsilon)[beyond]
        ax.stairs(
            p[beyond],
            [*first, edges[-1]],
            baseline=floor,
            fill=True,
            color=_axes.COLORS[0],
            alpha=0.3,
            linewidth=0.0,
        )
        ax.axvline(epsilon, color=_axes.GREY, ls=":", lw=1.2)
        room = epsilon < edges[-1] - 0.3 * (edges[-1] - edges[0])
        ax.annotate(
            f"ε = {epsilon:.3g} at δ = {delta:g}",
            (epsilon, 0.98),
            xycoords=("data", "axes fraction"),
            xytext=(4.0 if room else -4.0, 0.0),
            textcoords="offset points",
            va="top",
            ha="left" if room else "right",
            fontsize="small",
        )
    label = "privacy loss"
    infinite = float(np.exp(_sample.float64(lambda: m._log_failure(direction))))
    if infinite > 0.0:
        label += f"  (it is ∞ with probability {infinite:.2g})"
    ax.set(yscale="log", xlabel=label, ylabel="density")
    ax.set_ylim(floor, 20.0 * top)
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2)
    return ax


def schedule(run: Any, *, ax: Any = None) -> Any:
    """The parameters of a run that vary over its steps, each named beside its line.

    Args:
      run: a `jaxdp.Schedule`, or what `calibrate.schedule` returns.
      ax: where to draw; a new figure by default.

    Returns:
      The Axes; its vertical axis is logarithmic where the values span a decade.

    Raises:
      TypeError: for anything else. ValueError: for a batch of schedules. ImportError: without
        matplotlib.

    Example:
      >>> import jaxdp, jaxdp.plot, numpy as np
      >>> ax = jaxdp.plot.schedule(jaxdp.Schedule(jaxdp.Gaussian(np.linspace(2.0, 1.0, 5))))
      >>> [float(y) for y in ax.lines[0].get_ydata()], ax.texts[0].get_text()
      ([2.0, 1.75, 1.5, 1.25, 1.0], 'sigma')
    """
    values = _parameters(run)
    ax = _axes.new(ax)
    lines = []
    for y, style in zip(values.values(), _axes.styles(), strict=False):
        step = {"drawstyle": "steps-mid", **style}
        lines.append(_axes.curve(ax, np.arange(1, y.size + 1), y, step, shift=len(lines)))
    _axes.log_where_wide(ax, "y", np.concatenate(list(values.values())), 1.0)
    ax.set(xlabel="step", ylabel="value")
    _axes.labels(ax, lines, list(values))
    return ax


def _parameters(run: Any) -> dict[str, np.ndarray]:
    """Names and values, (steps,), of what varies over the steps; of all that has such an axis."""
    if isinstance(run, Schedule):
        _sample.one(run)
        leaves = jax.tree_util.tree_leaves_with_path(run.mechanism)
        named = {_name(path): np.asarray(x, float) for path, x in leaves if np.ndim(x)}
    elif hasattr(run, "sigma") and hasattr(run, "sampling_probability"):
        named = {
            "sigma": np.asarray(run.sigma, float),
            "sampling_probability": np.asarray(run.sampling_probability, float),
        }
        if any(x.ndim != 1 for x in named.values()):
            raise ValueError("run must be one schedule, of shape (steps,)")
    else:
        raise TypeError(f"run must be a jaxdp.Schedule or learned, got {_checks.shown(run)}")
    varying = {name: x for name, x in named.items() if np.ptp(x) > 0.0}
    return varying or named


def _name(path: tuple[Any, ...]) -> str:
    return str(getattr(path[-1], "name", path[-1]))


def _half(
    m: Mechanism, direction: str, method: Method | None, largest: float
) -> tuple[np.ndarray, np.ndarray]:
    """Losses from 0 on, up to the largest finite one at most, and the log of the curve there."""

    def log_curve(epsilon: np.ndarray) -> np.ndarray:
        return _sample.log_delta(m, epsilon, direction, method)

    infinite = np.exp(_sample.float64(lambda: m._log_failure(direction)))

    def log_rest(epsilon: np.ndarray) -> np.ndarray:  # what finite losses make of the curve
        rest = np.exp(log_curve(epsilon)) - infinite
        return np.log(np.maximum(rest, np.finfo(float).tiny))

    end = min(_sample.reach(log_rest, _LEAST_TAIL, largest), _LARGEST)
    losses = np.linspace(0.0, end, _sample.POINTS)
    return losses, log_curve(losses)


def _largest_finite(m: Mechanism, direction: str) -> float:
    """The largest finite loss, or more; inf where losses go on."""
    return float(_sample.float64(lambda: _curve.end(m, direction)[0]))


def _masses(
    left: tuple[np.ndarray, np.ndarray], right: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Losses and the log P-masses there: the slopes of the chords change by the Q-mass.

    On the left the same of the swapped pair, whose chords lose nothing to cancellation there: they
    change by the P-mass.
    """
    losses, p = _of_half(*right)
    swapped, q = _of_half(*left)
    # At 0 both halves know one chord's slope, of the curves' common value 1 - H(0) there.
    slope_right = _slope(*right)
    slope_left = _slope(*left)
    at_zero = 1.0 - np.exp(right[1][0]) + slope_right + slope_left
    at_zero += np.exp(right[1][0]) - np.exp(left[1][0])
    all_losses = np.concatenate([-swapped[::-1], [0.0], losses])
    with np.errstate(divide="ignore"):
        log_p = np.concatenate(
            [np.log(q[::-1]) - swapped[::-1], [np.log(max(at_zero, 0.0))], np.log(p)]
        )
    return all_losses, log_p


def _slope(losses: np.ndarray, log_curve: np.ndarray) -> float:
    """dH/dg of the first chord."""
    h = np.exp(log_curve)
    return float((h[1] - h[0]) / np.expm1(losses[1]))


def _of_half(losses: np.ndarray, log_curve: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The losses inside, and their P-masses: g times the change of slope in g."""
    h, g = np.exp(log_curve), np.exp(losses)
    slope = np.diff(h) / np.diff(g)
    change = np.append(np.diff(slope), -slope[-1])
    return losses[1:], np.maximum(g[1:] * change, 0.0)


def _edges(losses: np.ndarray) -> np.ndarray:
    middle = 0.5 * (losses[1:] + losses[:-1])
    first, last = losses[0] - (middle[0] - losses[0]), losses[-1] + (losses[-1] - middle[-1])
    return np.concatenate([[first], middle, [last]])


def _steps(edges: np.ndarray, density: np.ndarray, floor: float) -> tuple[np.ndarray, np.ndarray]:
    """Corners of a histogram that stands on the floor, a little below it where it is empty."""
    heights = np.concatenate([[0.0], np.repeat(density, 2), [0.0]])
    return np.repeat(edges, 2), np.maximum(heights, 0.1 * floor)


def _epsilon(losses: np.ndarray, log_curve: np.ndarray, delta: float) -> float:
    """Where the curve meets delta, between two of its points; inf where it does not."""
    below = np.flatnonzero(log_curve <= np.log(delta))
    if not below.size:
        return float("inf")
    at = int(below[0])
    if at == 0:
        return 0.0
    high, low = log_curve[at - 1], log_curve[at]
    if not np.isfinite(low):
        return float(losses[at])
    share = (high - np.log(delta)) / (high - low)
    return float(losses[at - 1] + share * (losses[at] - losses[at - 1]))
