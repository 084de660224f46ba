"""The ways of drawing batches, side by side: in Python, on the command line and as a picture."""

import itertools
import json

import matplotlib.pyplot as plt
import numpy as np
import pytest
from typer.testing import CliRunner

import calibrate
import jaxdp
from calibrate import _compare
from jaxdp import plot
from jaxdp._attained import separated_sum
from jaxdp.cli._app import app

TASK = {"num_examples": 10_000, "batch_size": 100, "epochs": 10, "epsilon": 1.0, "delta": 1e-5}
CHEAP = ("poisson", "fixed size", "public order", "full batch", "cyclic poisson", "b-min-sep")


def test_samplers_side_by_side():
    found = calibrate.compare_samplers(**TASK, schemes=CHEAP)
    assert [s.name for s in found] == list(CHEAP)
    poisson, fixed, order, full, cyclic, separated = found
    assert poisson.sigma == pytest.approx(1.41462, rel=2e-4)  # dp_accounting's PLD, fine grid
    assert fixed.sigma == pytest.approx(2.0 * poisson.sigma, rel=1e-4)
    assert order.sigma == pytest.approx(3.73063 * 10**0.5, rel=1e-5)  # ten Gaussians are one
    assert full.noise == pytest.approx(order.noise / 100)
    # of 4 groups: 250 steps at rate .04; b-min-sep is known between a sum and Poisson batches
    assert poisson.sigma < separated.sigma < 1.03 * poisson.sigma
    assert separated.sigma < cyclic.sigma < order.sigma
    bounds = jaxdp.epsilon_bounds(
        jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(cyclic.sigma), 0.04), 250), 1e-5
    )
    assert cyclic.epsilon == pytest.approx([float(b) for b in bounds], rel=1e-6)
    for s in found:
        low, high = s.epsilon
        assert (0.8 if s is separated else 0.998) * high < low <= high <= 1.0
        assert s.mechanism.neighbours in (s.neighbours, None)
    assert found["poisson"].num_steps == 1000
    lines = str(found).splitlines()
    assert len(lines) == 7
    assert all(s.guarantee in line for s, line in zip(found, lines[1:], strict=True))
    ax = plot.samplers(found)
    assert [bar.get_width() for bar in ax.patches] == [s.sigma for s in found]
    plt.close(ax.figure)


@pytest.mark.slow
def test_samplers_that_compile_for_long():
    schemes = [s for s in calibrate.SCHEMES if s not in CHEAP]
    task = {**TASK, "batch_size": 1000, "epochs": 2}
    found = calibrate.compare_samplers(**task, schemes=schemes)
    for s in found:
        assert 0.0 < s.epsilon[0] <= s.epsilon[1] <= 1.0
        assert s.epsilon[1] > 0.9998
    assert found["shuffled, replace-one"].epsilon[0] < 0.9
    assert found["poisson, replace-one"].sigma < found["fixed size, replace-one"].sigma


@pytest.mark.parametrize(("b", "rate", "steps"), [(1, 0.3, 6), (3, 0.2, 7), (2, 0.5, 5)])
def test_the_sum_of_separated_batches_by_enumeration(b, rate, steps):
    """Breaks when a record's number of batches has another law than from all its patterns."""
    m = separated_sum(2.0, rate, b, steps)
    joins, chances = rate / (1.0 - (b - 1) * rate), np.zeros(len(m.weights))
    for joined in itertools.product((0, 1), repeat=steps):
        for wait in range(b):
            weight, left = (rate if wait else 1.0 - (b - 1) * rate), wait
            for one in joined:
                weight *= (not one) if left else joins if one else 1.0 - joins
                left = left - 1 if left else (b - 1) * one
            chances[min(sum(joined), chances.size - 1)] += weight
    np.testing.assert_allclose(m.weights, chances, atol=1e-12)
    np.testing.assert_allclose(m.sensitivities, np.arange(chances.size) / np.sqrt(steps), rtol=1e-8)


@pytest.mark.parametrize("steps", [10, 40, 200])
def test_the_sum_where_every_free_record_joins(steps):
    """Breaks when a rate of 1, rounded up, leaves weights below 0: .1 / (1 - 9 * .1) > 1."""
    m = separated_sum(2.0, 0.1, 10, steps)
    weights = np.asarray(m.weights)
    assert weights.min() >= 0.0
    assert weights[steps // 10] == pytest.approx(1.0, abs=1e-12)


def test_a_separation_beyond_the_data_is_named():
    with pytest.raises(ValueError, match="min_separation"):
        calibrate.compare_samplers(**TASK, schemes=("b-min-sep",), min_separation=101)


def test_what_there_is_not_is_no_default():
    """Breaks where batches above a quarter of the records get no answer at all."""
    every = list(calibrate.SCHEMES)
    assert _compare._possible(100, 25, 4) == every
    apart = ("cyclic poisson", "b-min-sep")  # four batches of 26 are more than there is
    assert _compare._possible(100, 26, 4) == [s for s in every if s not in apart]


def _invoke(*args):
    return CliRunner().invoke(app, ["--no-cache", "compare", *map(str, args)])


def test_the_command(tmp_path):
    settings = ("--records", 1000, "--batch", 100, "--epochs", 4, "--epsilon", 2, "--delta", 1e-5)
    schemes = ("--scheme", "public order", "--scheme", "full batch")
    picture = tmp_path / "samplers.svg"
    shown = _invoke(*settings, *schemes, "--plot", picture)
    assert shown.exit_code == 0, shown.output
    assert "no amplification" in shown.stdout
    assert picture.stat().st_size > 1000
    record = json.loads(_invoke(*settings, *schemes, "--json").stdout)
    direct = calibrate.compare_samplers(
        num_examples=1000, batch_size=100, epochs=4, epsilon=2.0, delta=1e-5, schemes=schemes[1::2]
    )
    assert [s["sigma"] for s in record["samplers"]] == [s.sigma for s in direct]
    asked = {"num_examples": 1000, "batch_size": 100, "epochs": 4, "epsilon": 2.0, "delta": 1e-5}
    assert asked.items() <= record.items()
    assert record["jaxdp"] == jaxdp.__version__


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("--scheme", "hats"), "--scheme"),
        (("--batch", 5000), "--batch"),
        (("--epsilon", 0), "--epsilon"),
        (("--delta", 1), "--delta"),
        (("--plot", "x.txt"), "--plot"),
    ],
)
def test_bad_options_are_a_message(change, message):
    base = {"--records": 1000, "--batch": 100, "--epochs": 4, "--epsilon": 2, "--delta": 1e-5}
    base |= {change[0]: change[1]}
    done = _invoke(*(x for pair in base.items() for x in pair))
    assert done.exit_code == 2
    assert message in done.stderr


def test_bad_arguments():
    with pytest.raises(ValueError, match="schemes"):
        calibrate.compare_samplers(**TASK, schemes=("hats",))
    with pytest.raises(ValueError, match="batch_size"):
        calibrate.compare_samplers(**{**TASK, "batch_size": 20_000})
    with pytest.raises(ValueError, match="delta"):
        calibrate.compare_samplers(**{**TASK, "delta": 0.0})
