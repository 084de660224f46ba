import importlib
import pathlib
import re

import jax
import numpy as np
import pytest

import jaxdp
from jaxdp.cli._app import app

ROOT = pathlib.Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TABLE = (ROOT / "docs" / "implemented.md").read_text(encoding="utf-8")


def _run(index):
    """What one of the README's examples leaves behind."""
    code = re.findall(r"```python\n(.*?)```", README, re.DOTALL)[index]
    found = {}
    exec(compile(code, "README.md", "exec"), found)
    return found


def test_library_example_runs_and_says_the_truth(capsys):
    found = _run(0)
    assert 1.8282 < float(found["epsilon"]) < 2.3  # the least epsilon is 1.828237
    assert found["deltas"].shape == (2,)
    assert float(found["deltas"][0]) == pytest.approx(0.1269367, rel=1e-5)
    assert float(found["tiny"]) < -1000
    assert found["slope"] < 0
    assert found["price"] < 0
    with jax.enable_x64(True):
        reached = jaxdp.epsilon(jaxdp.Gaussian(np.asarray(found["solution"].value, float)), 1e-6)
    assert np.all(np.asarray(reached) <= [0.1, 1.0])
    assert np.asarray(reached) == pytest.approx([0.1, 1.0], rel=1e-5)
    assert str(found["solution"].message[0]) in capsys.readouterr().out
    ratio = float(found["best"].value["b"] / found["best"].value["a"])
    assert ratio == pytest.approx(3**0.25, rel=1e-3)


def _exists(name):
    """`epsilon` is jaxdp's, `calibrate.solve` says where it is; extras may not be installed."""
    *modules, last = name.split(".")
    try:
        module = importlib.import_module(".".join(modules) or "jaxdp")
    except ModuleNotFoundError as error:
        return error.name == "dp_accounting"
    return hasattr(module, last)


def test_every_name_in_the_table_exists():
    table = TABLE[TABLE.index("| names |") :]
    names = {
        name
        for row in re.findall(r"^\|[^|]*\|([^|]*)\|", table, re.MULTILINE)
        for name in re.findall(r"`([\w.]+)`", row)
    }
    assert {"Gaussian", "epsilon", "calibrate.solve"} <= names
    missing = [name for name in names if not _exists(name)]
    assert missing == []


def test_public_functions_are_in_the_table():
    table = TABLE[TABLE.index("| names |") :]
    public = {n for n in vars(jaxdp) if not n.startswith("_") and callable(getattr(jaxdp, n))}
    assert sorted(n for n in public - {"Mechanism"} if f"`{n}`" not in table) == []


def test_commands_named_in_the_text_exist():
    named = set(re.findall(r"`jaxdp (\w+)`", README)) | set(re.findall(r"bin/jaxdp (\w+)", README))
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert named == commands
