"""How much noise each way of drawing batches takes."""

from collections.abc import Iterable
from typing import Any

from jaxdp import _checks
from jaxdp.plot import _axes


def samplers(comparison: Iterable[Any], *, ax: Any = None) -> Any:
    """The noise multiplier of each sampler, as a bar; a colour for each kind of neighbours.

    Beside each bar stand sigma and the bracket on epsilon that was certified for it.

    Args:
      comparison: what `calibrate.compare_samplers` returned.
      ax: where to draw; a new figure by default.

    Returns:
      The Axes.

    Raises:
      ValueError: if there are no samplers. ImportError: without matplotlib.

    Example:
      >>> import calibrate, jaxdp.plot
      >>> found = calibrate.compare_samplers(
      ...     num_examples=1000, batch_size=100, epochs=4, epsilon=2.0, delta=1e-5,
      ...     schemes=("public order", "full batch"))
      >>> ax = jaxdp.plot.samplers(found)
      >>> [text.get_text() for text in ax.get_yticklabels()]
      ['public order', 'full batch']
    """
    rows = list(comparison)
    if not rows:
        raise ValueError(f"comparison must not be empty, got {_checks.shown(comparison)}")
    ax = _axes.new(ax, 7.2, 1.2 + 0.42 * len(rows))
    kinds = list(dict.fromkeys(row.neighbours for row in rows))
    drawn = {}
    for at, row in enumerate(rows):
        color = _axes.COLORS[kinds.index(row.neighbours) % len(_axes.COLORS)]
        drawn[row.neighbours] = ax.barh(at, row.sigma, color=color, height=0.6)
        low, high = row.epsilon
        text = f"  {row.sigma:.4g}   (ε from {low:.5g} to {high:.5g})"
        ax.text(row.sigma, at, text, va="center", fontsize="small")
    ax.set_yticks(range(len(rows)), [row.name for row in rows])
    ax.set(ylim=(len(rows) - 0.4, -0.6), xlabel="noise multiplier σ")
    ax.set_axisbelow(True)
    ax.set_xlim(0.0, 1.7 * max(row.sigma for row in rows))
    ax.legend([drawn[k] for k in kinds], kinds, frameon=False, fontsize="small", loc="lower right")
    return ax
