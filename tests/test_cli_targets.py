"""`jaxdp calibrate TARGETS`: the library's numbers for every row, whatever happens midway."""

import csv
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import calibrate
import jaxdp
from jaxdp.cli import _targets, _targets_view
from jaxdp.cli._app import app

ROOT = pathlib.Path(__file__).parents[1]


def invoke(*args):
    return CliRunner().invoke(app, ["calibrate", *(str(arg) for arg in args)])


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def exact_table(path, count, seed=0):
    rng = np.random.default_rng(seed)
    epsilon, delta = 10 ** rng.uniform(-1, 1, count), 10 ** rng.uniform(-12, -3, count)
    with path.open("w") as file:
        file.write("epsilon,delta\n")
        file.writelines(
            f"{e!r},{d!r}\n" for e, d in zip(epsilon.tolist(), delta.tolist(), strict=True)
        )
    return epsilon, delta


def test_every_kind_of_row_and_every_kind_of_mistake(tmp_path):
    table, output = tmp_path / "targets.csv", tmp_path / "noise.csv"
    table.write_text(
        "name,epsilon, delta,batch_size,num_examples,num_steps\n"
        "full,1,1e-5,100,100,1\n"
        '"quoted, ""and""\nbroken",2,1e-5,100,100,50\n'
        "sampled once,1,1e-5,10,100,1\n"
        "no epsilon,,1e-5,10,100,1\n"
        "short,1\n"
        "\n"
        "words,one,1e-5,10,100,1\n"
        "delta,1,1.5,10,100,1\n"
        "batch,1,1e-5,200,100,1\n"
        "pure,0,0,10,100,1\n"
        "steps,1,1e-5,10,100,1.5\n"
        "no noise does,1,0,100,100,1\n"
        "spaces, 4 ,1e-5,100,100,20\n"
        "Python's,1_0,1e-5,10,100,1\n",
        encoding="utf-8",
    )
    result = invoke(table, "--output", output, "--sensitivity", 2)
    assert result.exit_code == 1
    assert "13 rows: 4 calibrated, 1 infeasible, 8 bad" in result.stdout
    found = {row["row"]: row for row in rows_of(output)}
    assert list(found) == [str(n) for n in (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 13, 14)]
    assert found["2"]["name"] == 'quoted, "and"\nbroken'
    with jax.enable_x64(True):
        full = calibrate.solve(lambda s: jaxdp.Gaussian(s, 2.0), epsilon=1.0, delta=1e-5)
        once = jaxdp.PoissonSampled(jaxdp.Gaussian(float(found["3"]["sigma"]), 2.0), 0.1)
        assert float(jaxdp.delta(once, 1.0)) == pytest.approx(1e-5, rel=1e-8)
        many = jaxdp.Repeated(jaxdp.Gaussian(float(found["13"]["sigma"]), 2.0), 20)
        assert float(jaxdp.delta(many, 4.0)) == pytest.approx(1e-5, rel=1e-8)
    sgd = _targets.Build(laplace=False, sampled=True, repeated=True)(3.0, 2.0, 0.1, 20.0)
    assert jax.tree.leaves(sgd) == [3.0, 2.0, 0.1, 20.0]
    assert isinstance(sgd, jaxdp.Repeated)
    assert isinstance(sgd.mechanism, jaxdp.PoissonSampled)
    assert float(found["1"]["sigma"]) == pytest.approx(float(full.value), rel=1e-12)
    assert float(found["3"]["sampling_probability"]) == 0.1
    assert float(found["3"]["certified_delta"]) <= 1e-5
    assert found["12"]["status"] == "infeasible"
    assert found["12"]["sigma"] == ""
    assert found["12"]["reason"].startswith("The remove direction has delta ")
    assert found["1"]["reason"] == ""
    problems = {
        "4": "epsilon is missing",
        "5": "2 values for 6 columns",
        "7": "epsilon: 'one' is not a number",
        "8": "delta must be in [0, 1), got 1.5",
        "9": "the batch size exceeds the number of examples",
        "10": "epsilon and delta are both 0: no noise gives that",
        "11": "num_steps must be a positive integer, got 1.5",
        "14": "epsilon: '1_0' is not a number",
    }
    for row, problem in problems.items():
        assert found[row]["status"] == f"bad row: {problem}"
        assert f"row {row}: {problem}\n" in result.stderr


def test_rows_of_random_allocations(tmp_path):
    """Breaks where a row is calibrated for Poisson samples, or for other epochs than it says."""
    table, output = tmp_path / "targets.csv", tmp_path / "noise.csv"
    table.write_text(
        "epsilon,delta,sampling_probability,num_steps\n1,1e-5,0.0101,99\n2,1e-6,0.01,100\n"
    )
    result = invoke(table, "--output", output, "--scheme", "random allocation")
    assert result.exit_code == 0, result.stderr
    found = rows_of(output)
    assert [row["scheme"] for row in found] == ["random allocation"] * 2
    assert [row["num_steps"] for row in found] == ["99", "100"]
    sigma, steps = np.array([float(row["sigma"]) for row in found]), np.array([99.0, 100.0])
    with jax.enable_x64(True):
        at, less = (
            jaxdp.epsilon(jaxdp.RandomAllocation(jaxdp.Gaussian(s), steps), [1e-5, 1e-6])
            for s in (sigma, 0.99 * sigma)
        )
    targets = np.array([1.0, 2.0])
    assert np.all(np.asarray(at) <= targets)
    assert np.all(np.asarray(less) > targets)
    many = _targets.Build(laplace=False, sampled=True, repeated=True, allocated=True)
    assert jax.tree.leaves(many(3.0, 2.0, 0.01, 4.0)) == [3.0, 2.0, 100.0, 1, 4.0]
    refused = invoke(table, "--output", tmp_path / "x.csv", "--scheme", "shuffled")
    assert refused.exit_code == 2
    assert "one of poisson, random allocation" in " ".join(refused.stderr.split())


def test_parquet_in_parts_by_two_processes(tmp_path):
    count = 200_000
    rng = np.random.default_rng(3)
    epsilon = 10 ** rng.uniform(-1, 1, count)
    labels = [f"t{i}" for i in range(count)]
    pq.write_table(pa.table({"label": labels, "epsilon": epsilon}), tmp_path / "t.parquet")
    args = (tmp_path / "t.parquet", "--delta", 1e-6, "--output", tmp_path / "out.parquet")
    for rank in (0, 1):
        result = invoke(*args, "--processes", 2, "--process-id", rank)
        assert result.exit_code == 0, result.stderr
    assert not (tmp_path / "out.parquet").exists()
    parts = [pq.read_table(tmp_path / f"out-{rank}-of-2.parquet").sort_by("row") for rank in (0, 1)]
    assert [p.num_rows for p in parts] == [65536 * 2, count - 65536 * 2]
    whole = pa.concat_tables(parts).sort_by("row")
    assert whole.column("row").to_pylist() == list(range(1, count + 1))
    assert whole.column("label").to_pylist() == labels
    with jax.enable_x64(True):
        expected = calibrate.batch(jaxdp.Gaussian, epsilon=epsilon, delta=1e-6)
    np.testing.assert_allclose(whole.column("sigma").to_numpy(), expected.value, rtol=1e-13)
    # a lost part of one process is all that it computes again
    last = sorted((tmp_path / "out-0-of-2.parquet").iterdir())[-1]
    kept = last.read_bytes()
    last.rename(last.with_suffix(".unfinished"))
    result = invoke(*args, "--processes", 2, "--process-id", 0, "--resume")
    assert "65536 rows: 65536 calibrated" in result.stdout
    assert last.read_bytes() == kept
    assert not last.with_suffix(".unfinished").exists()


def test_a_killed_run_is_resumed_with_no_row_lost_or_computed_again(tmp_path):
    count = 500_000
    table, output = tmp_path / "targets.csv", tmp_path / "noise.csv"
    _, delta = exact_table(table, count)
    command = [sys.executable, "-c", "import jaxdp.cli; jaxdp.cli.main()", "calibrate"]
    command += [str(table), "--output", str(output)]
    environment = dict(os.environ, PYTHONPATH=str(ROOT), JAX_PLATFORMS="cpu")
    running = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        while not (output.exists() and output.stat().st_size):
            assert running.poll() is None
            time.sleep(0.002)
        running.send_signal(signal.SIGKILL)
    finally:
        running.kill()
        running.wait()
    written = output.read_bytes()
    written = written[: written.rindex(b"\n") + 1]  # the kill may itself have torn a record
    kept = written.count(b"\n") - 1
    assert 0 < kept < count
    torn = written + b'400000,"0.5'
    output.write_bytes(torn)
    assert invoke(table, "--output", output).exit_code == 2  # not without --resume
    assert output.read_bytes() == torn
    wrong = invoke(table, "--output", output, "--resume", "--direction", "add")
    assert wrong.exit_code == 2
    assert "direction" in wrong.stderr
    again = subprocess.run(
        [*command, "--resume"], env=environment, check=True, capture_output=True, text=True
    )
    assert again.stdout.startswith(f"{count - kept} rows: {count - kept} calibrated")
    assert output.read_bytes().startswith(written)
    found = rows_of(output)
    assert [int(row["row"]) for row in found] == list(range(1, count + 1))
    assert {row["status"] for row in found} == {"solved"}
    certified = np.asarray([float(row["certified_delta"]) for row in found])
    assert np.all(certified <= delta)
    nothing = invoke(table, "--output", output, "--resume")
    assert nothing.stdout.startswith("0 rows")
    assert f"(and {count} done before)" in nothing.stdout


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_resuming_with_another_table_is_refused(tmp_path, kind):
    """Breaks when noise for other targets than a row's counts as that row's."""
    table, output = tmp_path / "targets.csv", tmp_path / f"noise.{kind}"
    whole = "epsilon,delta\n1,1e-5\nnan,1e-5\n one,1e-5\n3,1e-5\n"
    table.write_text(whole)
    assert invoke(table, "--output", output).exit_code == 1
    again = invoke(table, "--output", output, "--resume")
    assert "(and 4 done before, 2 without a result)" in again.stdout
    assert again.exit_code == 1  # as the run that found them
    laplace = invoke(table, "--output", output, "--resume", "--mechanism", "laplace")
    assert laplace.exit_code == 2  # and all rows are done
    assert "has no column 'scale'" in " ".join(laplace.stderr.split())
    others = {
        "1,1e-5\nnan,1e-5\n": "row 3 is done",
        "1,1e-5\nnan,1e-5\n one,1e-5\n\n4,1e-5\n": "row 4 is done",
        "0.1,1e-5\nnan,1e-5\n one,1e-5\n3,1e-5\n": "row 1 has epsilon",
        "1,1e-5\n2,1e-5\n one,1e-5\n3,1e-5\n": "row 2 has epsilon",
    }
    for rows, problem in others.items():
        table.write_text("epsilon,delta\n" + rows)
        again = invoke(table, "--output", output, "--resume")
        assert again.exit_code == 2
        assert problem in " ".join(again.stderr.split())


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ((), "needs --output"),
        (("--output", "out.json"), "must end in .csv, .jsonl or .parquet"),
        (("--output", "out.csv", "--process-id", 1), "--process-id must be below"),
    ],
)
def test_refusals(tmp_path, monkeypatch, options, problem):
    monkeypatch.chdir(tmp_path)
    exact_table(tmp_path / "t.csv", 2)
    result = invoke("t.csv", *options)
    assert result.exit_code == 2
    assert problem in result.stderr
    (tmp_path / "no.csv").write_text("epsilon\n1\n")
    result = invoke("no.csv", "--output", "out.csv")
    assert "no column 'delta'" in result.stderr
    assert ".jsonl" in invoke("t.csv", "--output", "out.csv", "--json").stderr
    assert "TARGETS" in invoke("--epsilon", 1).stderr
    assert "TARGETS" in invoke("--epsilon", 1, "--delta", 1e-5, "--resume").stderr


def test_closed_forms_are_divided_too_and_every_output_has_columns(tmp_path):
    """Breaks when the first process gets all of a short table, or the last writes nothing."""
    table = tmp_path / "t.csv"
    exact_table(table, 5)
    for suffix in ("csv", "parquet"):
        shares = []
        for rank in range(4):
            args = ("--output", tmp_path / f"o.{suffix}", "--processes", 4, "--process-id", rank)
            result = invoke(table, *args)
            assert result.exit_code == 0, result.stderr
            path = tmp_path / f"o-{rank}-of-4.{suffix}"
            read = pq.read_table(path) if suffix == "parquet" else pa.csv.read_csv(path)
            assert {"row", "epsilon", "sigma", "status", "reason"} <= set(read.column_names)
            shares.append(read.num_rows)
            again = invoke(table, *args, "--resume")
            assert again.stdout.startswith("0 rows")
        assert shares == [2, 2, 1, 0]


def test_json_lines_hold_numbers_and_are_resumed(tmp_path):
    """Breaks when a machine has to parse texts, or a torn line stays or takes a row with it."""
    table, output = tmp_path / "t.csv", tmp_path / "noise.jsonl"
    table.write_text("name,epsilon,delta\n007,1,1e-5\nno,x,1_0\nlast,2,1e-6\n")
    assert invoke(table, "--output", output).exit_code == 1
    whole = output.read_text()
    rows = [json.loads(line) for line in whole.splitlines()]
    assert [row["name"] for row in rows] == ["007", "no", "last"]
    assert rows[0]["epsilon"] == 1.0
    assert rows[0]["sigma"] == pytest.approx(3.730632, rel=1e-6)
    assert rows[1]["sigma"] is None
    assert (rows[1]["epsilon"], rows[1]["delta"]) == ("x", "1_0")
    first = whole.splitlines(keepends=True)[0]
    output.write_text(first + '{"row": 2, "na')
    result = invoke(table, "--output", output, "--resume")
    summary = "2 rows: 1 calibrated, 0 infeasible, 1 bad (and 1 done before); written"
    assert result.stdout.startswith(summary)
    assert output.read_text() == whole


def test_an_interruption_says_how_to_go_on(tmp_path, monkeypatch):
    """Breaks when Ctrl-C leaves the user without the command that continues."""
    exact_table(tmp_path / "t.csv", 3)

    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(_targets, "run", interrupted)
    monkeypatch.setattr(sys, "argv", ["/usr/bin/jaxdp", "calibrate", "my table.csv"])
    result = invoke(tmp_path / "t.csv", "--output", tmp_path / "o.csv")
    assert result.exit_code == 130
    assert "jaxdp calibrate 'my table.csv' --resume\n" in result.stderr
    assert "no row is finished" in result.stderr
    (tmp_path / "o.csv").write_text("row\n")
    again = invoke(tmp_path / "t.csv", "--output", tmp_path / "o.csv", "--resume")
    assert f"the rows in {tmp_path / 'o.csv'} are finished" in again.stderr


def test_progress_on_a_pipe_counts_what_is_left(monkeypatch, capsys):
    """Breaks when a log file shows nothing, or rows done before count as work done."""
    now = iter([0.0, 5.0, 20.0, 25.0, 40.0])
    monkeypatch.setattr(_targets_view.time, "monotonic", lambda: next(now))
    lines = _targets_view._Lines(1000, quiet=False)
    lines.total -= 600
    for _ in range(4):
        lines.advance(50)
    assert capsys.readouterr().err.splitlines() == [
        "targets: 100 of 400, 5 a second, 0:01:00 left",
        "targets: 200 of 400, 5 a second, 0:00:40 left",
    ]


def test_progress_knows_the_share_of_each_process():
    """Breaks when a process says that it did 10240 of 10000 rows."""
    job = _targets.Job(False, "both", True, {"sampling_probability": 1.0, "num_steps": 1.0})
    for names in (["epsilon"], ["sampling_probability", "num_steps"]):
        for total in (1, 5, 20_000):
            shares = [job.share(names, total, index, 2) for index in (0, 1)]
            assert sum(shares) == total
    assert shares == [10_240, 9_760]
