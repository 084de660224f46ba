"""The ways of drawing batches, side by side: in Python, on the command line and as a picture."""

import json

import matplotlib.pyplot as plt
import pytest
from typer.testing import CliRunner

import calibrate
from jaxdp import plot
from jaxdp.cli._app import app

TASK = {"num_examples": 10_000, "batch_size": 100, "epochs": 10, "epsilon": 1.0, "delta": 1e-5}
CHEAP = ("poisson", "fixed size", "public order", "full batch")


def test_samplers_side_by_side():
    found = calibrate.compare_samplers(**TASK, schemes=CHEAP)
    assert [s.name for s in found] == list(CHEAP)
    poisson, fixed, order, full = found
    assert poisson.sigma == pytest.approx(1.41462, rel=2e-4)  # dp_accounting's PLD, fine grid
    assert fixed.sigma == pytest.approx(2.0 * poisson.sigma, rel=1e-4)
    assert order.sigma == pytest.approx(3.73063 * 10**0.5, rel=1e-5)  # ten Gaussians are one
    assert full.noise == pytest.approx(order.noise / 100)
    for s in found:
        low, high = s.epsilon
        assert 0.998 * high < low <= high <= 1.0
        assert s.mechanism.neighbours in (s.neighbours, None)
    assert found["poisson"].num_steps == 1000
    lines = str(found).splitlines()
    assert len(lines) == 5
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
    assert record["delta"] == 1e-5


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
