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
    """Write each line's name right of its last point, moved apart where they would overlap."""
    from matplotlib import rcParams

    size = 0.9 * rcParams["font.size"]
    dpi = ax.figure.dpi
    points = [_anchor(ax, line) for line in lines]
    heights = np.asarray([ax.transData.transform(p)[1] for p in points]) * 72.0 / dpi
    order = np.argsort(heights, kind="stable")
    moved = heights.copy()
    for _ in range(50):  # each neighbour gives way by half
        for low, high in itertools.pairwise(order):
            lack = _LINE_HEIGHT * size - (moved[high] - moved[low])
            near = abs(points[high][0] - points[low][0]) < 0.35 * np.ptp(ax.get_xlim())
            if lack > 1e-6 and (near or ax.get_xscale() == "log"):
                moved[low] -= 0.5 * lack
                moved[high] += 0.5 * lack
    for line, text, point, shift in zip(lines, texts, points, moved - heights, strict=True):
        ax.annotate(
            text,
            point,
            xytext=(7.0, shift),
            textcoords="offset points",
            va="center",
            ha="left",
            fontsize=size,
            color=line.get_color(),
            annotation_clip=False,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
        )


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
