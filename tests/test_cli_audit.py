import csv
import json
import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pyarrow.parquet
import pytest
from typer.testing import CliRunner

import calibrate
import jaxdp
from jaxdp.cli import _audit, _display
from jaxdp.cli._app import app

ROOT = pathlib.Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "published_runs.csv"
# dp_accounting 0.6.0 on the six rows: privacy loss distributions (1e-4), and Rényi DP.
PLD = [2.3102, 7.6900, 0.7923, 0.9028, 0.9121, 7.5088]
RDP = [2.519, 8.777, 0.932, 0.988, 0.998, 8.000]

HEADER = "name,sampling_probability,sigma,num_steps,delta,reported_epsilon"
# full batches: closed forms, quick to calibrate
GOOD = "good,1.0,50.0,10,1e-5,0.5"


def invoke(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args])


def write(path, *lines):
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    """The audit of the published runs, once, with its JSON."""
    path = tmp_path_factory.mktemp("audit") / "out.json"
    result = invoke("audit", EXAMPLE, "--output", path)
    assert result.exit_code == 0, result.output
    return result, json.loads(path.read_text(encoding="utf-8"))


def test_published_runs_have_certified_and_tight_epsilons(example):
    _, records = example
    certified = np.array([record["certified_epsilon"] for record in records])
    # Upper bounds: at least the truth, which lies at most 1e-3 below a PLD accountant's bound;
    # and at most a Rényi accountant's, whatever engine computes them.
    assert np.all(certified >= np.array(PLD) * (1 - 1e-3))
    assert np.all(certified <= np.array(RDP) * 1.01)


def test_calibrated_sigma_just_meets_the_reported_epsilon(example):
    _, records = example
    with jax.enable_x64(True):
        build = _audit.sampled_steps
        columns = ("sampling_probability", "num_steps", "delta", "reported_epsilon")
        rate, steps, delta, reported = (np.array([r[c] for r in records]) for c in columns)
        sigma = np.array([record["sigma_for_reported_epsilon"] for record in records])
        reached = np.asarray(
            jaxdp.delta(build(sigma, rate, steps), reported, method=jaxdp.Numerical())
        )
        with_less = np.asarray(
            jaxdp.epsilon(build(sigma * 0.999, rate, steps), delta, method=jaxdp.Numerical())
        )
    assert np.all(reached <= delta)
    assert np.all(with_less > reported)


def test_every_published_epsilon_holds_and_is_shown_rounded_up(example):
    result, records = example
    lines = result.stdout.splitlines()
    for record, line in zip(records, lines[1:], strict=False):
        cells = line.split()
        assert cells[0] == record["name"]
        for cell, column in ((6, "renyi_epsilon"), (7, "certified_epsilon")):
            assert record[column] <= float(cells[cell]) <= 1.0001 * record[column]
        lower = record["epsilon_lower_bound"]
        assert 0.9999 * lower <= float(cells[8]) <= lower <= record["certified_epsilon"]
        sigma = record["sigma_for_reported_epsilon"]
        assert sigma <= float(cells[9]) <= 1.0001 * sigma
        assert cells[10] == record["verdict"] == "holds"
    assert "6 runs: the reported epsilon holds for 6, is not confirmed for 0." in lines


def test_columns_of_the_file_are_carried_to_the_output(example):
    _, records = example
    with EXAMPLE.open(encoding="utf-8", newline="") as file:
        originals = list(csv.DictReader(file))
    assert len(records) == len(originals) == 6
    for record, original in zip(records, originals, strict=True):
        assert record["source"] == original["source"]
        assert record["num_examples"] == int(original["num_examples"])
        assert record["delta"] == float(original["delta"])
        expected = int(original["batch_size"]) / int(original["num_examples"])
        assert record["sampling_probability"] == expected


@pytest.fixture
def mixed(tmp_path):
    """Full batches, one sampled step, a reported epsilon too low, texts that need care."""
    return write(
        tmp_path / "mixed.csv",
        HEADER + ",note",
        GOOD + ',"fine, and quoted"',
        "one step,0.01,1.0,1,1e-5,3.0,",
        "too low,1.0,1.0,1,1e-5,2.0,",
        "001,1.0,1.0,1,0.5,5.0,[bold]",
    )


RESULTS = (
    "certified_epsilon",
    "epsilon_lower_bound",
    "renyi_epsilon",
    "sigma_for_reported_epsilon",
)


def read_csv(path):
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    numbers = ("sampling_probability", "sigma", "num_steps", "delta", "reported_epsilon")
    for row in rows:
        for name in (*numbers, *RESULTS):
            row[name] = float(row[name])
    return rows


def test_outputs_agree_in_every_format(mixed, tmp_path):
    tables = {}
    for suffix in ("csv", "parquet", "json"):
        path = tmp_path / f"out.{suffix}"
        result = invoke("audit", mixed, "--output", path)
        assert result.exit_code == 0, result.output
        assert f"written: {path}" in result.stdout
        tables[suffix] = path
    records = json.loads(tables["json"].read_text(encoding="utf-8"))
    assert pyarrow.parquet.read_table(tables["parquet"]).to_pylist() == records
    assert read_csv(tables["csv"]) == records
    assert [r["name"] for r in records] == ["good", "one step", "too low", "001"]
    assert [r["note"] for r in records] == ["fine, and quoted", "", "", "[bold]"]
    assert [r["verdict"] for r in records] == ["holds", "holds", "not confirmed", "holds"]
    for record in records:
        build = {"good": _audit.gaussian_steps, "one step": _audit.one_sampled_step}
        extra = {"good": 10, "one step": 0.01}.get(record["name"], 1)
        with jax.enable_x64(True):
            m = build.get(record["name"], _audit.gaussian_steps)(record["sigma"], extra)
            expected = float(jaxdp.epsilon(m, record["delta"]))
        assert record["certified_epsilon"] == pytest.approx(expected, rel=1e-9)


def test_an_output_can_be_audited_again(mixed, tmp_path):
    once, twice = tmp_path / "once.csv", tmp_path / "twice.csv"
    assert invoke("audit", mixed, "--output", once).exit_code == 0
    assert invoke("audit", once, "--output", twice).exit_code == 0
    assert twice.read_text(encoding="utf-8") == once.read_text(encoding="utf-8")


@pytest.mark.slow
def test_direction_is_used(tmp_path):
    table = write(tmp_path / "t.csv", HEADER, "x,0.3,1.0,1,1e-3,2.0")
    found = {}
    for direction in ("both", "add", "remove"):
        path = tmp_path / f"{direction}.json"
        assert invoke("audit", table, "--direction", direction, "--output", path).exit_code == 0
        found[direction] = json.loads(path.read_text(encoding="utf-8"))[0]["certified_epsilon"]
    assert found["add"] < found["remove"] == found["both"]


def test_infeasible_reported_epsilon_is_said(monkeypatch, tmp_path):
    def nothing(build, *, epsilon, delta, args, direction, method):
        shape = np.shape(epsilon)
        infeasible = np.full(shape, int(calibrate.Status.INFEASIBLE), np.int32)
        return calibrate.Solution(np.full(shape, np.nan), epsilon, delta, infeasible)

    monkeypatch.setattr(calibrate, "solve", nothing)
    path = tmp_path / "out.json"
    result = invoke("audit", write(tmp_path / "t.csv", HEADER, GOOD), "--output", path)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[1].split()[9] == "none"
    assert calibrate.Status.INFEASIBLE.message in result.stdout
    assert json.loads(path.read_text())[0]["sigma_for_reported_epsilon"] is None


@pytest.mark.slow
def test_long_table_shows_progress_and_keeps_the_order(tmp_path):
    sigmas = 20.0 + np.arange(1000) / 10
    table = write(
        tmp_path / "long.csv",
        HEADER,
        *(
            # chunks of different kinds, interleaved
            f"r{i},{0.5 if i % 2 else 1.0},{sigma},1,1e-5,{1 + i / 1000}"
            for i, sigma in enumerate(sigmas)
        ),
    )
    path = tmp_path / "out.parquet"
    result = invoke("audit", table, "--output", path)
    assert result.exit_code == 0, result.output
    assert "1000/1000" in result.stderr
    assert "1000/1000" not in result.stdout
    assert len(result.stdout.splitlines()) == 1 + 1000 + 2
    out = pyarrow.parquet.read_table(path).to_pydict()
    assert out["name"] == [f"r{i}" for i in range(1000)]
    assert out["sigma"] == sigmas.tolist()
    with jax.enable_x64(True):
        for i in (0, 1, 500, 999):
            m = jaxdp.PoissonSampled(jaxdp.Gaussian(sigmas[i]), 0.5 if i % 2 else 1.0)
            expected = float(jaxdp.epsilon(m, 1e-5))
            assert out["certified_epsilon"][i] == pytest.approx(expected, rel=1e-9)


def test_padding_does_not_change_results(monkeypatch, tmp_path, mixed):
    whole, chunked = tmp_path / "whole.json", tmp_path / "chunked.json"
    assert invoke("audit", mixed, "--output", whole).exit_code == 0
    monkeypatch.setattr(_audit, "_EXACT_CHUNK", 2)
    result = invoke("audit", mixed, "--output", chunked)
    assert result.exit_code == 0
    assert "4/4" not in result.stderr  # short tables show no progress
    for a, b in zip(*(json.loads(p.read_text()) for p in (whole, chunked)), strict=True):
        for name, value in a.items():
            assert b[name] == (pytest.approx(value, rel=1e-9) if type(value) is float else value)


BAD_ROWS = [
    ("sigma", "x,0.5,0,10,1e-5,1", "row 2 (x), column 'sigma': must be finite and > 0, got 0"),
    ("sigma", "x,0.5,-1,10,1e-5,1", "must be finite and > 0, got -1"),
    ("sigma", "x,0.5,inf,10,1e-5,1", "must be finite and > 0, got inf"),
    ("sigma", "x,0.5,nan,10,1e-5,1", "must be finite and > 0, got nan"),
    ("sigma", "x,0.5,abc,10,1e-5,1", "row 2 (x), column 'sigma': 'abc' is not a number"),
    ("sigma", "x,0.5,1_0,10,1e-5,1", "row 2 (x), column 'sigma': '1_0' is not a number"),
    ("sigma", "x,0.5,\u0662,10,1e-5,1", "'\u0662' is not a number"),
    ("sigma", "x,0.5,,10,1e-5,1", "row 2 (x), column 'sigma': the value is missing"),
    ("delta", "x,0.5,1,10,0,1", "must be in (0, 1), got 0"),
    ("delta", "x,0.5,1,10,1,1", "must be in (0, 1), got 1"),
    ("sampling_probability", "x,0,1,10,1e-5,1", "must be in (0, 1], got 0"),
    ("sampling_probability", "x,1.5,1,10,1e-5,1", "must be in (0, 1], got 1.5"),
    ("num_steps", "x,0.5,1,2.5,1e-5,1", "must be a positive integer, got 2.5"),
    ("num_steps", "x,0.5,1,0,1e-5,1", "must be a positive integer, got 0"),
    ("num_steps", "x,0.5,1,1e300,1e-5,1", "must be a positive integer, got 1e300"),
    ("reported_epsilon", "x,0.5,1,10,1e-5,0", "must be finite and > 0, got 0"),
    ("reported_epsilon", "x,0.5,1,10,1e-5,inf", "must be finite and > 0, got inf"),
]


@pytest.mark.parametrize(("column", "row", "message"), BAD_ROWS, ids=[r[1] for r in BAD_ROWS])
def test_bad_value_names_row_and_column(tmp_path, column, row, message):
    result = invoke("audit", write(tmp_path / "t.csv", HEADER, GOOD, row))
    assert result.exit_code == 2
    assert f"row 2 (x), column '{column}'" in result.stderr
    assert message in result.stderr
    assert result.stdout == ""


def test_row_without_a_name_is_numbered(tmp_path):
    header, row = HEADER.removeprefix("name,"), GOOD.removeprefix("good,")
    bad = row.replace("50.0", "x")
    result = invoke("audit", write(tmp_path / "t.csv", header, row, bad))
    assert result.exit_code == 2
    assert "t.csv: row 2, column 'sigma': 'x' is not a number" in result.stderr


@pytest.mark.parametrize("column", HEADER.split(",")[1:])
def test_missing_column_is_named(tmp_path, column):
    header = HEADER.replace(column, "something_else")
    result = invoke("audit", write(tmp_path / "t.csv", header, GOOD))
    assert result.exit_code == 2
    wanted = "num_examples" if column == "sampling_probability" else column
    assert f"there is no column '{wanted}'" in result.stderr


@pytest.mark.parametrize(
    ("examples", "batch", "message"),
    [
        ("100", "101", "column 'batch_size': the batch size exceeds the number of examples"),
        ("0", "1", "column 'num_examples': must be finite and > 0, got 0"),
        ("100", "0", "column 'batch_size': must be finite and > 0, got 0"),
    ],
)
def test_bad_batch_is_named(tmp_path, examples, batch, message):
    header = HEADER.replace("sampling_probability", "num_examples,batch_size")
    row = GOOD.replace("1.0", f"{examples},{batch}", 1)
    result = invoke("audit", write(tmp_path / "t.csv", header, row))
    assert result.exit_code == 2
    assert f"row 1 (good), {message}" in result.stderr


MANY = f"{GOOD}\n" * 999
BAD_FILES = [
    ("no such file", None),
    ("the file is empty", b""),
    ("the file is empty", b"\n"),
    ("the table has no rows", HEADER.encode()),
    ("the column 'name' occurs more than once", f"{HEADER},name\n{GOOD},x\n".encode()),
    ("row 2 has 3 values for 6 columns", f"{HEADER}\n{GOOD}\na,b,c\n".encode()),
    ("cannot be read as UTF-8 CSV", f"{HEADER}\n\xff,".encode("latin-1")),
    ("cannot be read as UTF-8 CSV", f"{HEADER}\n{MANY}\xff,1,1,1,.1,1".encode("latin-1")),
]


@pytest.mark.parametrize(
    ("message", "content"), BAD_FILES, ids=[f"{i} {m}" for i, (m, _) in enumerate(BAD_FILES)]
)
def test_unusable_file_is_refused(tmp_path, message, content):
    path = tmp_path / "t.csv"
    if content is not None:
        path.write_bytes(content)
    result = invoke("audit", path)
    assert result.exit_code == 2
    assert f"{path}: {message}" in result.stderr


def test_folder_is_refused(tmp_path):
    result = invoke("audit", tmp_path)
    assert result.exit_code == 2
    assert f"{tmp_path}: cannot be read" in result.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("out.xlsx", "must end in one of .csv, .parquet, .json"),
        ("nowhere/out.csv", "there is no folder"),
        ("folder.csv", "is a folder"),
    ],
)
def test_unusable_output_is_refused(tmp_path, name, message):
    (tmp_path / "folder.csv").mkdir()
    result = invoke("audit", EXAMPLE, "--output", tmp_path / name)
    assert result.exit_code == 2
    assert message in result.stderr


def test_unusual_notations_are_understood(tmp_path):
    path = tmp_path / "t.csv"
    lines = ["\ufeff" + HEADER.replace(",", " , "), "a, 1.0 ,+5e1, 1e1 ,.00001, 5e-1 "]
    result = invoke("audit", write(path, *lines))
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[:6] == ["a", "1", "10", "50", "1e-05", "0.5"]


def test_piped_output_is_not_cut():
    name = "n" * 300
    code = f"""
import pathlib, sys, tempfile
from jaxdp.cli import main
with tempfile.TemporaryDirectory() as folder:
    path = pathlib.Path(folder) / "t.csv"
    path.write_text({HEADER!r} + "\\n" + {GOOD!r}.replace("good", {name!r}) + "\\n")
    sys.argv = ["jaxdp", "audit", str(path)]
    main()
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "40"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr in ("", f"{_display._PATIENCE_TEXT}\n")  # (a slow machine)
    row = done.stdout.splitlines()[1].split()
    assert row[0] == name
    assert row[-1] == "holds"


@pytest.mark.slow
def test_allocation_scheme_counts_whole_epochs(monkeypatch, tmp_path):
    """Breaks when steps left over are not counted, or counted below, or the columns are mixed."""
    monkeypatch.setattr(_audit, "_FINE", jaxdp.Numerical(grid_size=4096))
    rows = ("a,0.25,2.0,10,1e-5,3.0", "b,0.25,2.0,3,1e-5,0.01", GOOD)
    table, path = write(tmp_path / "t.csv", HEADER, *rows), tmp_path / "o.json"
    result = invoke(
        "audit", table, "--scheme", "random allocation", "--direction", "remove", "--output", path
    )
    assert result.exit_code == 0, result.output
    partial, short, full = json.loads(path.read_text(encoding="utf-8"))
    assert (partial["steps_per_epoch"], partial["num_epochs"]) == (4, 2.5)
    with jax.enable_x64(True):
        # two and three epochs, through the program that the command has compiled
        m = _audit.allocated_steps(*(np.array(x, float) for x in ([2] * 4, [4] * 4, [2, 2, 3, 3])))
        found = jaxdp.epsilon_bounds(
            m, np.full(4, 1e-5), direction="remove", method=jaxdp.Numerical(4096)
        )
        one = jaxdp.epsilon(jaxdp.Gaussian(2.0), 1e-5)
        exact = jaxdp.epsilon(jaxdp.Repeated(jaxdp.Gaussian(50.0), 10), 1e-5)
    low, high = partial["allocation_epsilon_lower_bound"], partial["allocation_epsilon"]
    assert low <= float(found[1][0]) < float(found[0][2]) <= high
    assert high < 1.05 * low * np.sqrt(3 / 2)
    # one epoch at most, and perhaps nothing of it: a record may not yet have joined
    assert short["allocation_epsilon_lower_bound"] == 0.0
    assert 0.3 * float(one) < short["allocation_epsilon"] < float(one)
    assert short["verdict"] == "not confirmed"
    assert full["allocation_epsilon"] == full["poisson_epsilon"]
    assert full["allocation_epsilon"] == pytest.approx(float(exact), rel=1e-9)
    assert "3 runs: the reported epsilon holds for 2" in result.stdout
