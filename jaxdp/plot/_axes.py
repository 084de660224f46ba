"""Axes, colours and labels that all pictures share; the only module that loads matplotlib."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

# Okabe & Ito's colours less the yellow, which is too light for a line on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", "--", "-.", (0, (1, 1)), (0, (5, 1, 1, 1, 1, 1)))
GREY = "0.45"
_MARKS = 6  # markers on a curve
_LINE_HEIGHT = 1.25  # of labels, in their font size
_BESIDE = 7.0  # points between the end of a line and its name


def new(ax: Any, width: float = 6.4, height: float = 4.0) -> Any:
    """The Axes given, or those of a new figure, without the frame that shows no data."""
    try:
        from matplotlib import pyplot as plt
    except ImportError as error:
        raise ImportError(
            'jaxdp.plot needs matplotlib: pip install "jaxdp-accounting[plot]"'
        ) from error
    if ax is not None:
        return ax
    _, ax = plt.subplots(figsize=(width, height), layout="constrained")
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(visible=True, alpha=0.25, linewidth=0.6)
    return ax


def next_color(ax: Any) -> str:
    """The first of our colours that no line of the Axes has."""
    used = {line.get_color() for line in ax.get_lines()}
    free = [color for color in COLORS if color not in used]
    return free[0] if free else COLORS[len(used) % len(COLORS)]


def styles() -> Iterator[dict[str, Any]]:
    """Styles for curves that may coincide: colour, marker, dash, and where the markers sit."""
    index = 0
    while True:
        yield {
            "color": COLORS[index % len(COLORS)],
            "marker": MARKERS[index % len(MARKERS)],
            "linestyle": DASHES[index % len(DASHES)],
            "linewidth": max(2.6 - 0.5 * index, 1.2),  # earlier ones show beneath later ones
        }
        index += 1


def curve(ax: Any, x: Any, y: Any, style: dict[str, Any], shift: int = 0) -> Any:
    """Draw a line, with a few markers if its style has one, moved along by `shift`."""
    every = max(len(x) // _MARKS, 1)
    options = {"linewidth": 1.8, "markersize": 5.5, "markeredgewidth": 0.0, **style}
    (line,) = ax.plot(x, y, markevery=(shift * every // 4 % every, every), **options)
    return line


def labels(ax: Any, lines: Sequence[Any], texts: Sequence[str]) -> None:
    """Write each line's name beside its last point.

    Names of lines that end together on the right are stacked in the order of the lines; any other
    is moved to where it covers no curve and no name.
    """
    from matplotlib import rcParams

    size = 0.9 * rcParams["font.size"]
    pixel = 72.0 / ax.figure.dpi
    ends = np.asarray([ax.transData.transform(_anchor(ax, line)) for line in lines]) * pixel
    drawn = np.concatenate([_drawn(ax, line) for line in ax.get_lines()]) * pixel
    (left, bottom), (right, _) = (ax.transAxes.transform(p) * pixel for p in ((0, 0), (1, 1)))
    together = ends[:, 0] > np.max(ends[:, 0]) - 0.05 * (right - left)
    offsets = np.stack([np.full(len(lines), _BESIDE), _stacked(ends[:, 1], together, size)], axis=1)
    widths = [0.6 * size * len(text) for text in texts]
    taken = [
        _box(ends[k], offsets[k, 0], offsets[k, 1], widths[k], size)
        for k in np.flatnonzero(together)
    ]
    for k in np.flatnonzero(~together):
        boxes = {d: _box(ends[k], *d, widths[k], size) for d in _offsets(widths[k], size)}
        seen = {d: b for d, b in boxes.items() if b[0] > left and b[1] > bottom} or boxes
        cost = {d: _covered(b, drawn, taken) + _cost(*d, size) for d, b in seen.items()}
        offsets[k] = min(cost, key=lambda d: cost[d])
        taken.append(boxes[tuple(offsets[k])])
    for line, text, offset in zip(lines, texts, offsets, strict=True):
        ax.annotate(
            text,
            _anchor(ax, line),
            xytext=tuple(offset),
            textcoords="offset points",
            va="center",
            ha="left",
            fontsize=size,
            color=line.get_color(),
            annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        )


def _stacked(heights: np.ndarray, used: np.ndarray, size: float) -> np.ndarray:
    """How far to move names, so that those used lie apart, in the order of their heights."""
    order = np.flatnonzero(used)[np.argsort(heights[used], kind="stable")]
    moved = heights.copy()
    for _ in range(50):  # each neighbour gives way by half
        for low, high in itertools.pairwise(order):
            lack = _LINE_HEIGHT * size - (moved[high] - moved[low])
            if lack > 1e-6:
                moved[low] -= 0.5 * lack
                moved[high] += 0.5 * lack
    return moved - heights


def _offsets(width: float, size: float) -> Iterator[tuple[float, float]]:
    """Where a name may begin, from the end of its line: right of it or left, at any height."""
    for step in range(9):
        for sign in (1.0, -1.0) if step else (1.0,):
            yield _BESIDE, sign * step * 0.625 * size
            yield -width - _BESIDE, sign * step * 0.625 * size


def _cost(dx: float, dy: float, size: float) -> float:
    """How far a name is from the end of its line; a little more on the left."""
    return 0.2 * abs(dy) / size + (0.5 if dx < 0.0 else 0.0)


def _box(
    end: np.ndarray, dx: float, dy: float, width: float, size: float
) -> tuple[float, float, float, float]:
    """Left, bottom, right and top of a name, in points."""
    half = 0.5 * _LINE_HEIGHT * size
    return end[0] + dx, end[1] + dy - half, end[0] + dx + width, end[1] + dy + half


def _covered(
    box: tuple[float, float, float, float], drawn: np.ndarray, taken: Sequence[Any]
) -> float:
    """How much a name in this box would cover: points of curves, and other names by far more."""
    left, bottom, right, top = box
    x, y = drawn.T
    points = np.sum((x > left) & (x < right) & (y > bottom) & (y < top))
    names = sum(left < b[2] and b[0] < right and bottom < b[3] and b[1] < top for b in taken)
    return 0.2 * float(points) + 100.0 * names


def _drawn(ax: Any, line: Any) -> np.ndarray:
    """Points along a line where it is seen, in pixels, close to each other."""
    points = ax.transData.transform(np.asarray(line.get_xydata(), float))
    points = points[np.all(np.isfinite(points), axis=1)]
    if len(points) < 2:
        return points.reshape(-1, 2)
    share = np.linspace(0.0, 1.0, 400)
    along = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(points, axis=0).T))])
    along /= max(along[-1], 1e-9)
    return np.stack([np.interp(share, along, c) for c in points.T], axis=1)


def _anchor(ax: Any, line: Any) -> tuple[float, float]:
    x, y = (np.asarray(v, float) for v in line.get_data())
    (left, right), (bottom, top) = sorted(ax.get_xlim()), sorted(ax.get_ylim())
    shown = np.isfinite(x) & np.isfinite(y) & (x >= left) & (x <= right)
    shown &= (y >= bottom) & (y <= top)
    index = np.flatnonzero(shown if shown.any() else np.isfinite(x + y))
    if not index.size:
        return right, top
    return float(x[index[-1]]), float(y[index[-1]])


def log_where_wide(ax: Any, axis: str, values: Any, decades: float = 2.0) -> None:
    """A log axis where positive values span that many decades."""
    values = np.asarray(values, float)
    known = values[np.isfinite(values) & (values > 0.0)]
    if known.size and np.max(known) >= 10.0**decades * np.min(known):
        ax.set(**{f"{axis}scale": "log"})


def logarithmic(ax: Any, axis: str, values: Any) -> None:
    """A log axis; of less than three decades, with plain numbers at 1, 2 and 5 of each."""
    from matplotlib import ticker

    ax.set(**{f"{axis}scale": "log"})
    values = np.asarray(values, float)
    known = values[np.isfinite(values) & (values > 0.0)]
    if known.size and np.max(known) < 1000.0 * np.min(known):
        shown = getattr(ax, f"{axis}axis")
        shown.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        shown.set_major_formatter(ticker.FormatStrFormatter("%g"))
        shown.set_minor_formatter(ticker.NullFormatter())
