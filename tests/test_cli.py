import json
import math
import os
import pathlib
import subprocess
import sys

import jax
import pytest
from typer.testing import CliRunner

import calibrate
import jaxdp
from jaxdp.cli._app import app
from jaxdp.cli._display import json_number, round_down, round_up

ROOT = pathlib.Path(__file__).parents[1]


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


SETTING = ("--sampling-probability", 0.3, "--num-steps", 1, "--sensitivity", 2)


@pytest.mark.parametrize(
    ("noise", "mechanism"),
    [
        (("--sigma", 3.0), jaxdp.Gaussian),
        (("--mechanism", "laplace", "--scale", 3.0), jaxdp.Laplace),
    ],
)
def test_single_settings_print_the_library_s_numbers(noise, mechanism):
    with jax.enable_x64(True):
        m = jaxdp.PoissonSampled(mechanism(3.0, 2.0), 0.3)
        epsilon, delta = float(jaxdp.epsilon(m, 1e-3)), float(jaxdp.delta(m, 0.25))
        log10 = float(jaxdp.log_delta(m, 0.25)) / math.log(10)
    found = json.loads(invoke("epsilon", *noise, *SETTING, "--delta", 1e-3, "--json").stdout)
    assert found["epsilon"] == pytest.approx(epsilon, rel=1e-9)
    assert (found["sampling_probability"], found["num_steps"], found["sensitivity"]) == (0.3, 1, 2)
    text = invoke("epsilon", *noise, *SETTING, "--delta", 1e-3).stdout
    lines = f"epsilon <= {round_up(found['epsilon'])}\nepsilon >= "
    assert text == f"{lines}{round_down(found['epsilon_lower'])}\n"
    assert 0.999 * epsilon < found["epsilon_lower"] <= epsilon
    found = json.loads(invoke("delta", *noise, *SETTING, "--epsilon", 0.25, "--json").stdout)
    assert found["delta"] == pytest.approx(delta, rel=1e-9)
    assert log10 <= found["log10_delta"] == pytest.approx(log10, rel=1e-9)


def test_tiny_delta_is_visible():
    result = invoke("delta", "--sigma", 1, "--epsilon", 60)
    assert result.stdout.startswith("delta <= ")
    log10 = float(result.stdout.split("log10: ")[1].split(")")[0])
    with jax.enable_x64(True):
        exact = float(jaxdp.log_delta(jaxdp.Gaussian(1.0), 60.0)) / math.log(10)
    assert exact < -700
    assert exact <= log10 <= exact * (1 - 1e-4)


def test_composition_and_sampling_are_used():
    base = ("epsilon", "--sigma", 8, "--delta", 1e-5, "--json")

    def run(*args):
        return json.loads(invoke(*base, *args).stdout)["epsilon"]

    once, repeated = run(), run("--num-steps", 16)
    with jax.enable_x64(True):
        assert repeated == pytest.approx(float(jaxdp.epsilon(jaxdp.Gaussian(2.0), 1e-5)), rel=1e-9)
    assert run("--sampling-probability", 0.1) < once < repeated
    assert run("--sampling-probability", 0.1, "--direction", "add") < run(
        "--sampling-probability", 0.1, "--direction", "remove"
    )


@pytest.mark.parametrize(("mechanism", "name"), [("gaussian", "sigma"), ("laplace", "scale")])
def test_calibrate_meets_its_target(mechanism, name):
    args = ("calibrate", "--mechanism", mechanism, "--epsilon", 1, "--delta", 1e-5)
    found = json.loads(invoke(*args, "--json").stdout)
    result = invoke(*args)
    assert result.exit_code == 0
    noise, above, below = result.stdout.splitlines()
    shown = float(noise.removeprefix(f"{name} = "))
    assert 0.999 < float(below.removeprefix("epsilon >= ")) <= found["certified_epsilon"] <= 1.0
    assert above == f"epsilon <= {round_up(found['certified_epsilon'])}"
    assert found[name] <= shown <= found[name] * 1.0001
    kind = {"gaussian": jaxdp.Gaussian, "laplace": jaxdp.Laplace}[mechanism]
    with jax.enable_x64(True):
        assert float(jaxdp.delta(kind(found[name]), 1.0)) <= found["certified_delta"] <= 1e-5
        assert float(jaxdp.delta(kind(found[name] * (1 - 1e-6)), 1.0)) > 1e-5
    assert float(json.loads(invoke(*args, "--json").stdout)["epsilon"]) == 1.0


TRAINING = ("--records", 1000, "--batch", 50, "--epochs", 3)
SIZES = {"num_examples": 1000, "batch_size": 50, "epochs": 3, "noise_multiplier": 4.0}


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (("--scheme", "public order"), {"batches": "public order"}),
        pytest.param(  # what is attained are averages, composed: a program for every question
            ("--batches", "shuffled", "--neighbours", "replace-special"),
            {"batches": "shuffled", "neighbours": "replace-special"},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_trainings_in_users_words(tmp_path, options, settings):
    run = jaxdp.dp_sgd(**SIZES, **settings)
    with jax.enable_x64(True):
        low, high = map(float, jaxdp.epsilon_bounds(run, 1e-5))
        attained = jaxdp.dp_sgd(**SIZES, **settings, attained=True)
        low = low if attained == run else float(jaxdp.epsilon_bounds(attained, 1e-5)[0])
    picture = tmp_path / "profile.svg"
    given = ("--sigma", 4.0, *TRAINING, *options)
    result = invoke("epsilon", *given, "--delta", 1e-5, "--json", "--plot", picture)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["epsilon"], found["epsilon_lower"]) == pytest.approx((high, low), rel=1e-9)
    assert found["num_steps"] == 60
    assert found["batches"] == settings["batches"]
    assert found["neighbours"] == settings.get("neighbours", "add-or-remove")
    assert "no amplification" in found["guarantee"]
    assert found["jaxdp"] == jaxdp.__version__
    assert picture.stat().st_size > 1000
    shown = invoke("delta", *given, "--epsilon", high).stdout
    delta = float(shown.removeprefix("delta <= ").split(" ")[0])
    assert delta == pytest.approx(1e-5, rel=1e-4)
    target = ("--epsilon", high, "--delta", 1e-5)
    sigma = json.loads(invoke("calibrate", *TRAINING, *options, *target, "--json").stdout)
    assert sigma["sigma"] == pytest.approx(4.0, rel=1e-5)
    assert sigma["epsilon_lower"] == pytest.approx(low, rel=1e-3)


def test_infeasible_calibration_exits_with_its_sentence():
    result = invoke("calibrate", "--epsilon", 1, "--delta", 0)  # no Gaussian is pure DP
    assert result.exit_code == 1
    assert result.stdout == ""
    sentence = " ".join(result.stderr.split())
    assert sentence.startswith(calibrate.Status.INFEASIBLE.message)
    assert "at best" in sentence
    as_json = invoke("calibrate", "--epsilon", 1, "--delta", 0, "--json")
    assert as_json.exit_code == 1
    assert json.loads(as_json.stdout)["sigma"] is None


BAD_OPTIONS = [
    (("epsilon", "--delta", 1e-5), "--mechanism gaussian needs --sigma"),
    (("epsilon", "--delta", 1e-5, "--scale", 1), "takes --sigma, not --scale"),
    (
        ("epsilon", "--delta", 1e-5, "--mechanism", "laplace", "--sigma", 1),
        "--mechanism laplace takes --scale, not --sigma",
    ),
    (("epsilon", "--delta", 1e-5, "--sigma", 0), "--sigma must be finite and > 0, got 0"),
    (("epsilon", "--delta", 1e-5, "--sigma", "nan"), "--sigma must be finite and > 0, got nan"),
    (("epsilon", "--delta", 1, "--sigma", 1), "--delta must be in [0, 1), got 1"),
    (
        ("epsilon", "--delta", 1e-5, "--sigma", 1, "--sampling-probability", 0),
        "--sampling-probability must be in (0, 1], got 0",
    ),
    (
        ("epsilon", "--delta", 1e-5, "--sigma", 1, "--sensitivity", -1),
        "--sensitivity must be finite and > 0, got -1",
    ),
    (("epsilon", "--delta", 1e-5, "--sigma", 1, "--num-steps", 0), "--num-steps"),
    (("epsilon", "--delta", 1e-5, "--sigma", 1, "--mechanism", "magic"), "magic"),
    (("epsilon", "--delta", 1e-5, "--sigma", 1, "--direction", "up"), "--direction"),
    (("epsilon", "--sigma", 1), "--delta"),
    (("epsilon", "--sigma", 1, "--delta", 1e-5, "--records", 9), "needs --records, --batch and"),
    (("epsilon", "--sigma", 1, "--delta", 1e-5, *TRAINING, "--num-steps", 2), "one or the other"),
    (("epsilon", "--scale", 1, "--delta", 1e-5, *TRAINING, "--mechanism", "laplace"), "Gaussian"),
    (("epsilon", "--sigma", 1, "--delta", 1e-5, "--scheme", "shuffled"), "--scheme"),
    (("epsilon", "--sigma", 1, "--delta", 1e-5, "--max-batch", 9), "--max-batch"),
    (("epsilon", "--sigma", 1, "--delta", 1e-5, "--min-separation", 4), "--min-separation"),
    (("epsilon", "--sigma", 1, "--delta", 1e-5, *TRAINING, "--scheme", "hats"), "--scheme"),
    (("epsilon", "--sigma", 1, "--delta", 1e-5, *TRAINING, "--plot", "x.txt"), "--plot must end"),
    (("delta", "--sigma", 1, "--epsilon", 1, *TRAINING, "--scheme", "shuffled"), "neighbours"),
    (("calibrate", "targets.csv", *TRAINING), "a table has columns"),
    (("delta", "--epsilon", -1, "--sigma", 1), "--epsilon must be finite and >= 0, got -1"),
    (("calibrate", "--epsilon", "inf", "--delta", 1e-5), "--epsilon must be finite"),
    (("calibrate", "--epsilon", 1, "--delta", -0.5), "--delta must be in [0, 1), got -0.5"),
]


@pytest.mark.parametrize(
    ("args", "message"), BAD_OPTIONS, ids=[" ".join(map(str, args)) for args, _ in BAD_OPTIONS]
)
def test_bad_option_is_named(args, message):
    result = invoke(*args)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (("--help",), ("epsilon", "delta", "calibrate", "audit")),
        (("epsilon", "--help"), ("--sampling-probability", "--num-steps", "Example")),
        (("delta", "--help"), ("--epsilon", "--mechanism", "Example")),
        (("calibrate", "--help"), ("--epsilon", "--delta", "Example")),
        (("audit", "--help"), ("FILE", "--output", "reported_epsilon")),
    ],
)
def test_help(args, expected):
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, list(args))
    assert result.exit_code == 0
    for text in expected:
        assert text in result.stdout


def test_version():
    assert invoke("--version").stdout == f"jaxdp {jaxdp.__version__}\n"


@pytest.mark.parametrize("value", [0.1, 2.51857639, 9.999999, 123456.7, 1e-300, 1e20, 5e-324, 12.0])
@pytest.mark.parametrize("digits", [1, 2, 5, 12])
def test_round_up_is_never_below_and_close(value, digits):
    shown = float(round_up(value, digits))
    assert value <= shown <= value * (1 + 10.0 ** (1 - digits)) * (1 + 1e-15)


@pytest.mark.parametrize("value", [-0.1, -2.51857639, -730.123456789])
def test_round_up_of_negative_numbers_goes_up(value):
    assert value <= float(round_up(value)) <= value * (1 - 1e-5)


def test_round_up_of_special_values():
    assert [round_up(x) for x in (0.0, math.inf, -math.inf)] == ["0", "inf", "-inf"]
    assert [json_number(x) for x in (0.5, math.inf, math.nan)] == [0.5, "inf", None]


@pytest.mark.parametrize("missing", ["typer", "rich", "pyarrow"])
def test_without_its_extra_the_command_says_what_to_install(missing):
    code = f"import sys; sys.modules[{missing!r}] = None; from jaxdp.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 1
    assert f"The command line needs {missing}: pip install 'jaxdp-accounting[cli]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_package_is_the_command():
    done = subprocess.run(
        [sys.executable, "-m", "jaxdp", "--version"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.split() == ["jaxdp", jaxdp.__version__]


def test_the_command_starts_before_jax_says_how_much_it_logs():
    """XLA reads the level as JAX is imported: its alarm about slow compilation is not shown."""
    code = (
        "import os, sys; sys.path.insert(0, 'jaxdp/cli'); import _start;"
        " sys.path.pop(0); assert 'jax' not in sys.modules;"
        " sys.argv = ['jaxdp', '--version'];"
        " import atexit; atexit.register(lambda: print(os.environ['TF_CPP_MIN_LOG_LEVEL']));"
        " _start.main()"
    )
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, cwd=ROOT
    )
    assert done.stdout.decode().split() == ["jaxdp", jaxdp.__version__, "3"]
