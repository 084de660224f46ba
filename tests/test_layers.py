"""Dependencies run downwards only, and importing the library has no side effects."""

import ast
import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

from jaxdp._mechanisms import Mechanism
from jaxdp._methods import Method

ROOT = pathlib.Path(__file__).parents[1]

# module prefix -> floor (jaxdp._special is also jaxdp._special_gamma and jaxdp._special.x).
# A module imports from floors below it, or from its own.
FLOORS = {
    "jaxdp._x64": 0,
    "jaxdp._checks": 0,
    "jaxdp._programs": 0,
    "jaxdp._devices": 0,
    "jaxdp._interpreter": 0,
    "jaxdp._lanes": 0,
    "jaxdp._structure": 0,
    "jaxdp._special": 0,
    "jaxdp._roots": 0,
    "jaxdp._rounding": 0,
    "jaxdp._hypergeometric": 0,
    "jaxdp._divergences": 1,
    "jaxdp._rates": 1,
    "jaxdp._orders": 1,
    "jaxdp._conversions": 1,
    "jaxdp._mechanisms": 2,
    "jaxdp._noise": 2,
    "jaxdp._law": 3,
    "jaxdp._queries": 4,
    "jaxdp._privacy_loss": 4,
    "jaxdp._intersection": 4,
    "jaxdp._group_privacy": 4,
    "jaxdp._decomposed": 4,
    "jaxdp._methods": 4,
    "jaxdp._numerical": 4,
    "jaxdp._answers": 4,
    "jaxdp._chunks": 4,
    "jaxdp._tradeoff": 4,
    "jaxdp._amplification": 4,
    "jaxdp._tuning": 4,
    "jaxdp._allocation": 4,
    "jaxdp._matrix": 4,
    "jaxdp.training": 5,
    "jaxdp.interop": 5,
    "jaxdp.plot": 5,
    "jaxdp._attained": 5,
    "jaxdp._builders": 5,
    "jaxdp.__main__": 6,
    "jaxdp.cli": 6,
}
# The façades re-export; only what lies outside their own package may import them.
FACADES = {"jaxdp", "calibrate"}
# What the library may use beyond the standard library; the command line, these as well.
LIBRARY = {"jax", "numpy", "optax"}
CLI_ONLY = {"typer", "rich", "pyarrow", "matplotlib", "platformdirs"}
INTEROP_ONLY = {"dp_accounting", "jax_privacy", "opacus"}
PLOT_ONLY = {"matplotlib"}


def _module_name(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    _module_name(path): path
    for package in ("jaxdp", "calibrate")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def _floor(module: str) -> int | None:
    """The floor of the longest prefix that is listed."""
    listed = [key for key in FLOORS if module == key or module.startswith((f"{key}.", f"{key}_"))]
    return FLOORS[max(listed, key=len)] if listed else None


def _imports(source: str, module: str, is_package: bool) -> set[str]:
    """Every module that the source imports, those inside functions included."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base]) if base else ".".join(parts)
            for alias in node.names:
                name = f"{base}.{alias.name}"
                found.add(name if name in MODULES else base)
    return found


def _violations(module: str, imported: set[str]) -> list[str]:
    if module in FACADES:
        return []
    floor, package, in_cli = _floor(module), module.split(".")[0], _floor(module) == 6
    problems = []
    for other in sorted(imported):
        top = other.split(".")[0]
        if top == "calibrate" and package == "jaxdp" and not in_cli:
            problems.append(f"{module} imports {other}: jaxdp is below calibrate")
        elif other in FACADES and other == package and not in_cli:
            problems.append(f"{module} imports its own façade")
        elif top == "jaxdp" and other != "jaxdp":
            above = _floor(other)
            if floor is not None and above is not None and above > floor:
                problems.append(f"{module} (floor {floor}) imports {other} (floor {above})")
            if package == "calibrate" and above == 6:
                problems.append(f"{module} imports the command line")
        elif top not in sys.stdlib_module_names | LIBRARY | {"jaxdp", "calibrate"} and not (
            (in_cli and top in CLI_ONLY)
            or (module.startswith("jaxdp.interop") and top in INTEROP_ONLY)
            or (module.startswith("jaxdp.plot") and top in PLOT_ONLY)
        ):
            problems.append(f"{module} imports {other}, which is no dependency of the library")
    return problems


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_run_downwards(module):
    path = MODULES[module]
    imported = _imports(path.read_text(encoding="utf-8"), module, path.name == "__init__.py")
    assert _violations(module, imported) == []


@pytest.mark.parametrize("module", [m for m in sorted(MODULES) if m.startswith("jaxdp.")])
def test_every_module_has_a_floor(module):
    assert _floor(module) is not None, f"add {module} to FLOORS"


@pytest.mark.parametrize(
    ("module", "source", "problem"),
    [
        ("jaxdp._special", "from jaxdp import _queries", "floor 4"),
        ("jaxdp._roots", "import jaxdp._mechanisms._base as b", "floor 2"),
        ("jaxdp._mechanisms._base", "from .. import _queries", "floor 4"),
        ("jaxdp._mechanisms._base", "def f():\n    from .._queries import delta", "floor 4"),
        ("jaxdp._queries", "from calibrate import solve", "below calibrate"),
        ("jaxdp._queries", "from jaxdp import Gaussian", "façade"),
        ("jaxdp._queries", "import scipy.stats", "no dependency"),
        ("calibrate._solve", "from rich import print", "no dependency"),
        ("calibrate._solve", "import jaxdp.cli", "command line"),
    ],
)
def test_a_violation_is_found(module, source, problem):
    (found,) = _violations(module, _imports(source, module, is_package=False))
    assert problem in found


def _names_below(cls: type) -> set[str]:
    """The names of the project's classes that are derived from one."""
    found = {x.__name__ for x in cls.__subclasses__() if x.__module__.startswith("jaxdp.")}
    return found.union(*(_names_below(x) for x in cls.__subclasses__()))


METHODS = _names_below(Method) | {"Method"}
MECHANISMS = _names_below(Mechanism)
# Where a mechanism may be asked what it is: rooms that define some, and how often in others, above
# all where mechanisms become what the engine composes. These numbers may only fall.
MECHANISM_ROOMS = ("_mechanisms", "_noise", "_allocation", "_amplification", "_matrix")
ASKED = {
    "jaxdp._methods._poisson": 4,
    "jaxdp._numerical_average": 5,
    "jaxdp._numerical_guess": 6,
    "jaxdp._numerical_outcomes": 24,  # which classes are enumerated by which
    "jaxdp._numerical_range": 6,
    "jaxdp._numerical_terms": 6,
    "jaxdp._privacy_loss_build": 1,
    "jaxdp.interop._accountant": 1,
    "jaxdp.interop._events": 1,
    "jaxdp.plot._curves": 1,
    "jaxdp.plot._laws": 1,
}


def _asked_for(source: str, names: set[str]) -> int:
    """How often an object's class is compared with one of these: isinstance, type() or a match."""

    def named(node: ast.AST) -> bool:
        found = {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
        found |= {x.attr for x in ast.walk(node) if isinstance(x, ast.Attribute)}
        return bool(found & known)

    known, tree = set(names), ast.parse(source)
    for node in tree.body:  # other names for several classes
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.BinOp):
            known |= {x.id for x in node.targets if isinstance(x, ast.Name) and named(node.value)}
    count = 0
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            count += node.func.id in ("isinstance", "issubclass") and named(node.args[1])
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            typed = any("type(" in ast.unparse(side) for side in sides)
            count += typed and any(named(side) for side in sides)
        elif isinstance(node, ast.MatchClass):
            count += named(node.cls)
        elif isinstance(node, ast.Dict):  # a table keyed by class
            count += sum(isinstance(x, ast.Name) and x.id in names for x in node.keys)
    return count


def test_nothing_asks_a_method_what_it_is():
    """Breaks when a query depends on a method's class, so that a method of its own has no place.

    The public boundary asks once, in their own room, whether an argument is a method at all.
    """
    asked = {m: _asked_for(path.read_text("utf-8"), METHODS) for m, path in MODULES.items()}
    assert {m: n for m, n in asked.items() if n} == {"jaxdp._methods._base": 1}


def test_few_ask_a_mechanism_what_it_is():
    """Breaks when a room above mechanisms distinguishes them by class once more than it does."""
    asked = {
        m: _asked_for(path.read_text("utf-8"), MECHANISMS)
        for m, path in MODULES.items()
        if not m.startswith(tuple(f"jaxdp.{room}" for room in MECHANISM_ROOMS))
    }
    assert {m: n for m, n in asked.items() if n > ASKED.get(m, 0)} == {}


@pytest.mark.parametrize(
    "source",
    [
        "isinstance(method, Numerical)",
        "isinstance(x, (int, jaxdp.Renyi))",
        "isinstance(x, Renyi | Analytic)",
        "_KINDS = Renyi, Analytic\ndef f(x):\n    return isinstance(x, _KINDS)",
        "type(method) is Numerical",
        "_MARGINS = {Numerical: 1e-5}",
        "match method:\n    case Numerical(size):\n        pass",
    ],
)
def test_a_question_about_the_class_is_found(source):
    assert _asked_for(source, METHODS) == 1
    assert not _asked_for("isinstance(x, int) or Numerical(256) == method", METHODS)


def test_importing_changes_no_flag_and_loads_no_extra():
    code = """
import json, sys
import jax, optax
before, loaded = dict(jax.config.values), set(sys.modules)
import jaxdp, calibrate
after = dict(jax.config.values)
tops = {name.split(".")[0] for name in set(sys.modules) - loaded}
print(json.dumps({
    "flags": [name for name in before if before[name] != after[name]],
    "x64": after["jax_enable_x64"],
    "extras": sorted(tops & set(sys.argv[1:])),
}))
"""
    extras = ["typer", "rich", "pyarrow", "polars", "scipy", "matplotlib", "pandas"]
    extras += ["dp_accounting", "jax_privacy"]
    done = subprocess.run(
        [sys.executable, "-c", code, *extras], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert json.loads(done.stdout) == {"flags": [], "x64": False, "extras": []}


def test_every_choice_of_the_ablation_exists():
    """Breaks when a constant that the ablation varies is renamed or moves away."""
    path = ROOT / "benchmarks" / "ablation.py"
    spec = importlib.util.spec_from_file_location("ablation", path)
    ablation = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = ablation  # where dataclasses look for it
    spec.loader.exec_module(ablation)
    for choice in ablation.CHOICES:
        assert len(list(choice.values())) >= 2
