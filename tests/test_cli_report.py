"""`jaxdp report`: the library's numbers on a page, whatever its form."""

import json
import time
import xml.etree.ElementTree

import jax
import numpy as np
import pytest
from scipy.stats import norm
from typer.testing import CliRunner

import jaxdp
from jaxdp.cli import _display, _report, _report_run
from jaxdp.cli._app import app

# Full batches: ten steps are one Gaussian, in closed form.
RUN = ("--sigma", 6.0, "--sampling-probability", 1, "--num-steps", 10)
MU = np.sqrt(10.0) / 6.0


def invoke(*args):
    return CliRunner().invoke(app, ["report", *(str(arg) for arg in args)])


def test_the_record_has_the_library_s_numbers(tmp_path):
    """Breaks when a direction, a delta or a rounding is lost on the way to the page."""
    output = tmp_path / "r.json"
    result = invoke(*RUN, "--delta", 1e-7, "--delta", 1e-4, "--output", output)
    assert result.exit_code == 0, result.stderr
    found = json.loads(output.read_text())
    with jax.enable_x64(True):
        exact = np.asarray(jaxdp.epsilon(jaxdp.Gaussian(1.0 / MU), np.array([1e-4, 1e-7])))
    assert [row["delta"] for row in found["epsilons"]] == [1e-4, 1e-7]
    for row, epsilon in zip(found["epsilons"], exact, strict=True):
        assert row["epsilon_lower"] <= epsilon * (1 + 1e-9)
        assert row["epsilon_upper"] == pytest.approx(float(epsilon), rel=1e-9)
    fpr = np.array(found["false_positive_rates"])
    hits = norm.cdf(norm.ppf(fpr) + MU)
    assert np.all(np.array(found["true_positive_rates"]) >= hits * (1 - 1e-15))
    np.testing.assert_allclose(found["true_positive_rates"], hits, rtol=1e-5)
    assert found["advantage"] == pytest.approx(2 * norm.cdf(MU / 2) - 1, rel=1e-9)


def test_markdown_and_a_page_of_its_own(tmp_path):
    """Breaks when a number is rounded down, a name becomes markup, or the page needs a network."""
    name = "CIFAR-10 <b>|& 'x'"
    text = invoke(*RUN, "--delta", 1e-5, "--name", name).stdout
    assert text.startswith("# Privacy report: CIFAR-10 <b>\\|& 'x'\n")
    with jax.enable_x64(True):
        epsilon = float(jaxdp.epsilon(jaxdp.Gaussian(1.0 / MU), 1e-5))
    shown = text.split("| 1e-05 | ")[1].split(" |")[0].split(" to ")
    assert float(shown[0]) <= epsilon <= float(shown[1]) * (1 + 1e-12)
    assert float(shown[1]) == pytest.approx(epsilon, rel=1e-5)
    settings = tmp_path / "run.toml"
    settings.write_text("name = \"CIFAR-10 <b>|& 'x'\"\nsigma = 6.0\ndelta = [1e-5]\n")
    output = tmp_path / "r.html"
    assert invoke(settings, *RUN[2:], "--output", output).exit_code == 0
    page = output.read_text()
    assert "CIFAR-10 &lt;b&gt;|&amp;" in page
    assert "http" not in page
    assert "src=" not in page
    assert shown[1] in page
    svg = page[page.index("<svg") : page.index("</svg>") + 6]
    lines = xml.etree.ElementTree.fromstring(svg).iter("polyline")
    *_, curve = (line.attrib["points"].split() for line in lines)
    x, y = np.array([point.split(",") for point in curve], float).T
    assert len(x) > 100
    assert np.all(np.diff(x) > 0)
    assert np.all(np.diff(y) <= 0)


def test_settings_are_those_of_dp_sgd():
    sizes = {"num_examples": 1000.0, "batch_size": 50.0, "epochs": 2}
    none = dict.fromkeys(_report._NUMBERS)
    for batches in ("poisson", "random allocation", "b-min-sep"):
        made = _report_run.described(none | sizes | {"sigma": 2.0}, batches, "replace-special")
        settings = {**sizes, "batches": batches, "neighbours": "replace-special"}
        assert made.mechanism == jaxdp.dp_sgd(**settings, noise_multiplier=2.0)
        assert made.attained == jaxdp.dp_sgd(**settings, noise_multiplier=2.0, attained=True)
    known = none | {"sigma": 2.0, "sampling_probability": 0.1, "num_steps": 7}
    made = _report_run.described(known, "poisson", "add-or-remove")
    assert made.mechanism == jaxdp.Repeated(jaxdp.PoissonSampled(jaxdp.Gaussian(2.0), 0.1), 7)
    assert _report._deltas(None, 60_000.0)[-1] == 1e-5
    assert _report._deltas(None, 100_000.0)[-1] == 1e-6  # below 1 / n


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "needs sigma"),
        (("--sigma", 1), "give num_examples, batch_size and epochs, or"),
        (("--sigma", -1, *RUN[2:]), "sigma must be finite and > 0"),
        ((*RUN, "--epochs", 2), "give sampling_probability with num_steps, or"),
        ((*RUN, "--delta", 1), "delta must be in (0, 1)"),
        ((*RUN, "--batches", "shuffled"), "other batches than poisson, and other neighbours"),
        ((*RUN, "--output", "r.pdf"), "must end in .html, .md or .json"),
        (("missing.json",), "cannot be read as JSON"),
    ],
)
def test_refusals(options, problem):
    result = invoke(*options)
    assert result.exit_code == 2
    assert problem in result.stderr


def test_files_with_other_settings_are_refused(tmp_path):
    path = tmp_path / "run.json"
    path.write_text('{"sigma": 1.0, "noise": 2.0}')
    assert "'noise' is no setting" in invoke(path).stderr
    path.write_text('{"sigma": "one"}')
    assert "sigma must be a number, got 'one'" in invoke(path).stderr


def test_a_file_with_a_byte_order_mark_is_read(tmp_path):
    """Breaks when what Windows writes is refused."""
    path = tmp_path / "run.json"
    path.write_text('{"sigma": "one"}', encoding="utf-8-sig")
    assert "sigma must be a number, got 'one'" in invoke(path).stderr


def test_what_takes_long_says_so(monkeypatch, capsys):
    """Breaks when a first question is silent for its whole compilation, or a quick one is not."""
    monkeypatch.setattr(_display, "_PATIENCE", 0.05)
    with _display.saying_what_takes_long():
        time.sleep(0.5)
    assert capsys.readouterr().err == _display._PATIENCE_TEXT + "\n"
    monkeypatch.setattr(_display, "_PATIENCE", 0.3)
    with _display.saying_what_takes_long():
        pass
    time.sleep(0.5)
    assert capsys.readouterr().err == ""
