"""Pictures: what the artists hold is what the mechanisms are, to formulas that share no code."""

import pathlib
import subprocess
import sys
import types

import numpy as np
import pytest

pytest.importorskip("matplotlib")

import matplotlib as mpl

mpl.use("Agg")
from matplotlib import pyplot as plt
from scipy.stats import norm

import jaxdp
from jaxdp import plot

pytestmark = pytest.mark.extra
GAUSSIAN, LAPLACE = jaxdp.Gaussian(1.0), jaxdp.Laplace(1.0)
RESPONSE = jaxdp.RandomizedResponse(1.0)
SAMPLED = jaxdp.PoissonSampled(RESPONSE, 0.25)  # two outputs, and no symmetry


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def _gaussian_delta(epsilon):
    return norm.cdf(0.5 - epsilon) - np.exp(epsilon) * norm.cdf(-0.5 - epsilon)


def _two_outputs():
    """P and Q of SAMPLED: with the record, and without it."""
    p = np.array([np.e, 1.0]) / (1.0 + np.e)
    return 0.25 * p + 0.75 * p[::-1], p[::-1]


def test_profile_of_a_gaussian():
    ax = plot.profile(GAUSSIAN)
    x, y = ax.lines[0].get_data()
    assert ax.get_yscale() == "log"
    assert x[0] == 0.0
    assert y == pytest.approx(_gaussian_delta(x), rel=1e-9)
    assert y[-1] == pytest.approx(1e-10, rel=0.5)


def test_profile_ends_at_the_largest_loss_or_at_the_floor():
    x, y = plot.profile(LAPLACE).lines[0].get_data()
    assert x[-1] == pytest.approx(1.0, abs=1e-9)
    assert y[:-1] == pytest.approx(1.0 - np.exp((x[:-1] - 1.0) / 2.0), rel=1e-9)
    x, y = plot.profile(jaxdp.ApproximateDP(1.0, 1e-3)).lines[0].get_data()
    assert 1.0 - 1e-3 <= x[-1] < 1.2
    assert y[-1] == pytest.approx(1e-3, rel=1e-2)


def test_the_bracket_is_shaded_from_the_lower_bound_to_the_line(monkeypatch):
    """Known bounds, one of them 0, in the place of the engine's, whose own tests are elsewhere."""
    epsilon, lower, upper = (
        np.array(x) for x in ([0.0, 1.0, 2.0], [0.1, 0.01, 0.0], [0.3, 0.05, 1e-3])
    )
    asked = []

    def bounds(m, points, **options):
        asked.append((m, points.tolist(), options))
        return lower, upper

    monkeypatch.setattr(plot._curves._queries, "delta_bounds", bounds)
    run = jaxdp.Repeated(RESPONSE, 10)
    ax = plot.profile(run, epsilon, direction="add", method=jaxdp.Numerical(256))
    assert asked == [(run, epsilon.tolist(), {"direction": "add", "method": jaxdp.Numerical(256)})]
    assert ax.lines[0].get_ydata() == pytest.approx(upper)
    (band,) = ax.collections
    corners = band.get_paths()[0].vertices
    for e, low, high in zip(epsilon[:2], lower, upper, strict=False):
        there = corners[np.isclose(corners[:, 0], e), 1]
        assert (there.min(), there.max()) == (low, high)
    assert corners[:, 0].max() == 1.0  # nothing is known from below at 2


def test_tradeoff_of_a_gaussian_and_its_advantage():
    ax = plot.tradeoff(GAUSSIAN)
    x, y = ax.lines[0].get_data()
    exact = norm.cdf(norm.isf(x) - 1.0)
    assert np.all(y <= exact + 1e-12)
    assert y == pytest.approx(exact, abs=2e-3)
    (mark,) = [line for line in ax.lines if line.get_gid() == "advantage"]
    low, high = mark.get_ydata()
    assert high - low == pytest.approx(float(jaxdp.advantage(GAUSSIAN)), abs=2e-3)
    assert f"{high - low:.3g}" in " ".join(text.get_text() for text in ax.texts)


def test_tradeoff_draws_both_directions_and_they_mirror_each_other():
    ax = plot.tradeoff(SAMPLED)
    remove, add = ax.lines[:2]
    assert [remove.get_label(), add.get_label()] == ["remove", "add"]
    p, q = _two_outputs()
    # Neyman and Pearson: reject on the output that is likelier with the record first
    x = remove.get_xdata()
    assert remove.get_ydata() == pytest.approx(np.interp(x, [0.0, q[0], 1.0], [1.0, p[1], 0.0]))
    assert add.get_ydata() == pytest.approx(np.interp(x, [0.0, p[1], 1.0], [1.0, q[0], 0.0]))
    both = plot.tradeoff(SAMPLED, direction="both").lines[0].get_ydata()
    assert both == pytest.approx(np.minimum(remove.get_ydata(), add.get_ydata()))
    assert "add" not in {line.get_label() for line in plot.tradeoff(RESPONSE).lines}


def test_epsilon_over_steps():
    run = jaxdp.Repeated(jaxdp.Gaussian(20.0), 400)
    ax = plot.epsilon_over_steps(run, delta=1e-6)
    x, y = ax.lines[0].get_data()
    assert (x[0], x[-1], ax.get_xscale()) == (1.0, 400.0, "log")
    exact = jaxdp.epsilon(jaxdp.Gaussian(20.0 / np.sqrt(x)), 1e-6)
    assert y == pytest.approx(np.asarray(exact), rel=1e-5)
    ax = plot.epsilon_over_steps(GAUSSIAN, [1, 2, 3], unit="epochs", bracket=False)
    assert (ax.get_xscale(), ax.get_xlabel()) == ("linear", "number of epochs")
    with pytest.raises(ValueError, match="steps must be given"):
        plot.epsilon_over_steps(GAUSSIAN)


def _densities(ax):
    """Centres of the bins, their widths, and the heights of the two histograms there."""
    (x, p), (_, q) = (line.get_data() for line in ax.lines[:2])
    edges = x[::2]
    return 0.5 * (edges[1:] + edges[:-1]), np.diff(edges), p[1:-1:2], q[1:-1:2]


def test_loss_distribution_of_a_gaussian():
    """L is N(1/2, 1) with the record and N(-1/2, 1) without it."""
    ax = plot.loss_distribution(GAUSSIAN, delta=1e-3)
    loss, width, p, q = _densities(ax)
    inner = (np.abs(loss) < 5.0) & (np.abs(loss) > 0.1)
    assert p[inner] == pytest.approx(norm.pdf(loss[inner], 0.5), rel=0.04)
    assert q[inner] == pytest.approx(norm.pdf(loss[inner], -0.5), rel=0.04)
    assert np.sum(p * width) == pytest.approx(1.0, abs=1e-5)
    assert np.sum(q * width) == pytest.approx(1.0, abs=1e-5)
    marked = ax.lines[2].get_xdata()[0]
    assert marked == pytest.approx(float(jaxdp.epsilon(GAUSSIAN, 1e-3)), rel=1e-3)


def test_extremes_are_drawn_or_refused():
    for sigma in (1e-3, 1e6):
        y = plot.profile(jaxdp.Gaussian(sigma)).lines[0].get_ydata()
        assert y[-1] == pytest.approx(1e-10, rel=0.5)
        assert 1e-10 < y[32] <= y[0]
    loss, _, p, _ = _densities(plot.loss_distribution(jaxdp.Gaussian(1e6)))
    assert p[64] == pytest.approx(norm.pdf(loss[64], 5e-13, 1e-6), rel=0.1)
    for revealing in (jaxdp.Gaussian(1e-3), jaxdp.Laplace(1e-3)):  # the loss is near 5e5, at 1000
        with pytest.raises(ValueError, match="nowhere between -600 and 600"):
            plot.loss_distribution(revealing)


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_loss_distribution_of_two_outputs(direction):
    """Both atoms, where they are the ends of the loss, with their probabilities."""
    ax = plot.loss_distribution(SAMPLED, direction=direction)
    loss, width, first, second = _densities(ax)
    p, q = _two_outputs()
    if direction == "add":
        p, q = q[::-1], p[::-1]
    heights = first * width
    assert loss[0] - 0.5 * width[0] <= np.log(p / q).min() <= loss[0] + 0.5 * width[0]
    assert heights[0] == pytest.approx(p[1], rel=1e-6)
    assert heights[-1] == pytest.approx(p[0], rel=1e-6)
    assert (second * width)[-1] == pytest.approx(q[0], rel=1e-2)
    names = [text.get_text() for text in ax.get_legend().get_texts()]
    assert names[0] == ("with the record" if direction == "remove" else "without the record")


def test_loss_distribution_says_what_is_infinite():
    ax = plot.loss_distribution(jaxdp.ApproximateDP(1.0, 1e-3))
    assert "∞ with probability 0.001" in ax.get_xlabel()
    assert "∞" not in plot.loss_distribution(LAPLACE).get_xlabel()


@pytest.mark.parametrize(
    ("m", "finite"),
    [
        (jaxdp.ApproximateDP(1.0, 0.1), 0.9),
        (jaxdp.ApproximateDP(1.0, 1e-6), 1.0),
        (jaxdp.FinitePair([0.6, 0.3, 0.1], [0.3, 0.7, 0.0]), 0.9),
        (jaxdp.PoissonSampled(jaxdp.ApproximateDP(1.0, 0.01), 0.5), 0.995),
        (jaxdp.FinitePair([0.5, 0.5], [1.0, 0.0]), 0.5),
    ],
)
def test_loss_distribution_draws_all_that_is_finite(m, finite):
    """Breaks when the largest finite loss is taken for a tail, since others are infinite."""
    _, width, p, _ = _densities(plot.loss_distribution(m))
    assert np.sum(np.where(p > 1.01 * p.min(), p, 0.0) * width) == pytest.approx(finite, rel=1e-4)


def test_a_loss_that_is_always_zero_is_named():
    with pytest.raises(ValueError, match="no finite value but 0"):
        plot.loss_distribution(jaxdp.FinitePair([0.5, 0.5], [0.5, 0.5]))


@pytest.mark.parametrize("curve", [plot.profile, plot.tradeoff, plot.epsilon_over_steps])
def test_compare_tells_curves_apart_that_coincide(curve):
    same = {"one": jaxdp.Gaussian(2.0), "two": jaxdp.Gaussian(4.0, 2.0), "less": GAUSSIAN}
    options = {"steps": np.arange(1, 101)} if curve is plot.epsilon_over_steps else {}
    ax = plot.compare(same, curve=curve, **options)
    lines = [line for line in ax.lines if line.get_gid() is None]
    assert len(lines) == 3
    assert lines[0].get_ydata() == pytest.approx(lines[1].get_ydata(), rel=1e-6)
    for read in ("get_color", "get_marker", "get_linestyle", "get_markevery"):
        assert len({getattr(line, read)() for line in lines}) == 3
    legend = ax.get_legend()
    shown = ax.texts if legend is None else legend.get_texts()
    assert {"one", "two", "less"} <= {text.get_text() for text in shown}
    if legend is None:  # labels of curves that end together do not overlap
        ax.figure.canvas.draw()
        boxes = [text.get_window_extent() for text in ax.texts]
        assert not boxes[0].overlaps(boxes[1])


def test_brackets():
    ax = plot.brackets(
        {"a": GAUSSIAN, "b": LAPLACE}, method={"exact": jaxdp.Analytic(), "Rényi": jaxdp.Renyi()}
    )
    rows = [label.get_text() for label in ax.get_yticklabels()]
    assert rows == ["a, exact", "a, Rényi", "b, exact", "b, Rényi"]
    texts = [text.get_text() for text in ax.texts]
    assert texts[0] == "4.3772"
    assert texts[1].startswith("≤ 4.7")
    assert "∞" in [t.get_text() for t in plot.brackets(GAUSSIAN, delta=0.0).texts]


def test_schedule_draws_what_varies():
    sigma, rate = np.linspace(2.0, 1.0, 6), np.geomspace(0.01, 0.1, 6)
    ax = plot.schedule(jaxdp.Schedule(jaxdp.PoissonSampled(jaxdp.Gaussian(sigma), rate)))
    assert {text.get_text() for text in ax.texts} == {"sigma", "sampling_probability"}
    assert ax.get_yscale() == "log"
    learned = types.SimpleNamespace(sigma=sigma, sampling_probability=np.full(6, 0.1))
    ax = plot.schedule(learned)
    assert ax.lines[0].get_ydata() == pytest.approx(sigma)
    assert [text.get_text() for text in ax.texts] == ["sigma"]
    with pytest.raises(TypeError, match="run must be"):
        plot.schedule(GAUSSIAN)


def test_the_axes_given_are_drawn_on():
    _, given = plt.subplots()
    assert plot.profile(LAPLACE, ax=given) is given
    assert plot.profile(GAUSSIAN, ax=given) is given
    assert given.lines[0].get_color() != given.lines[1].get_color()
    assert len(plt.get_fignums()) == 1


@pytest.mark.parametrize(
    "draw", [plot.profile, plot.tradeoff, plot.loss_distribution, plot.brackets]
)
def test_a_batch_or_no_mechanism_is_refused(draw):
    with pytest.raises(ValueError, match=r"batch shape \(2,\)"):
        draw(jaxdp.Gaussian(np.array([1.0, 2.0])))
    with pytest.raises(TypeError, match="mechanism"):
        draw("Gaussian")


def test_matplotlib_is_loaded_when_drawing_and_missed_by_name():
    code = """
import sys
import jaxdp, jaxdp.plot
assert "matplotlib" not in sys.modules
sys.modules["matplotlib"] = None
try:
    jaxdp.plot.profile(jaxdp.Laplace(1.0), [0.5])
except ImportError as error:
    print(error)
"""
    root = pathlib.Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=root, check=True
    )
    assert "[plot]" in done.stdout


def _boxes(ax):
    """The names in a picture, as rectangles in pixels."""
    ax.figure.canvas.draw()
    return {text.get_text(): text.get_window_extent() for text in ax.texts}


def test_names_stand_apart_in_the_order_of_lines_and_cover_no_curve():
    x = np.linspace(0.0, 1.0, 50)
    ax = plot.lines(x, {"a": x, "b": 1.01 * x, "c": 1.02 * x})
    boxes = _boxes(ax)
    assert boxes["a"].y1 <= boxes["b"].y0 + 1.0
    assert boxes["b"].y1 <= boxes["c"].y0 + 1.0
    ends = np.where(x < 0.5, x, np.nan)  # its last point is next to the other line
    ax = plot.lines(x, {"all the way": x, "half of it": ends})
    box = _boxes(ax)["half of it"]
    seen = ax.transData.transform(np.stack([x, x], axis=1))
    inside = (seen > [box.x0, box.y0]) & (seen < [box.x1, box.y1])
    assert not np.any(np.all(inside, axis=1))


def test_lines_leave_out_what_a_log_axis_cannot_show():
    x = np.geomspace(1.0, 1000.0, 4)
    ax = plot.lines(
        x, {"one": [1.0, np.inf, 100.0, 0.0], "other": [1.0, 2.0, 3.0, 4.0]}, ylabel="y"
    )
    assert (ax.get_xscale(), ax.get_yscale(), ax.get_ylabel()) == ("log", "log", "y")
    assert np.isfinite(ax.lines[0].get_ydata()).tolist() == [True, False, True, False]
    for curves, named in ({}, "empty"), ({"a": [1.0]}, "curves"):
        with pytest.raises(ValueError, match=named):
            plot.lines(x, curves)
