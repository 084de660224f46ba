"""The pages of docs/: their code shows what they say, and the site builds without a warning.

What a page prints is compared; pictures are drawn by the build, from the code that a page shows.
"""

import doctest
import importlib.util
import pathlib
import re
import subprocess
import sys
import textwrap

import pytest

ROOT = pathlib.Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "_build" not in path.parts)
_EXTRAS = {"dp_accounting"}
_FENCE = re.compile(r"^```(\S+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def _blocks(path, *languages):
    text = path.read_text(encoding="utf-8")
    return [code for language, code in _FENCE.findall(text) if language in languages]


def _pictures(path):
    """The code of the plot directives."""
    blocks = (block.partition(".. plot::\n")[2] for block in _blocks(path, "{eval-rst}"))
    code = (textwrap.dedent(re.sub(r"\A(?: *:.*\n)+", "", block)) for block in blocks if block)
    return list(code)


def _imported(code):
    """The packages that the code imports."""
    return set(re.findall(r"^>>> (?:from|import) (\w+)", code, re.M))


def _missing(code):
    """Whether the code imports an extra that is not installed."""
    named = _EXTRAS & _imported(code)
    return any(importlib.util.find_spec(name) is None for name in named)


def _page(path):
    needs = any(_EXTRAS & _imported(code) for code in _blocks(path, "pycon"))
    name = str(path.relative_to(DOCS))
    return pytest.param(path, id=name, marks=pytest.mark.extra if needs else ())


@pytest.mark.parametrize("path", [_page(p) for p in PAGES if _blocks(p, "pycon")])
def test_code_on_the_page_shows_what_it_says(path):
    names, said = {}, []
    parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=_OPTIONS)
    for index, code in enumerate(_blocks(path, "pycon")):
        if _missing(code):
            continue
        test = parser.get_doctest(code, names, f"{path.name}[{index}]", str(path), 0)
        assert test.examples
        runner.run(test, out=said.append, clear_globs=False)
        names = test.globs
    assert runner.summarize(verbose=False).failed == 0, "".join(said)


def test_all_code_is_of_a_kind_that_runs():
    """`text` is what other libraries say, `sh` what a shell does; all else is run.

    (The `python` of one page by a test of its own, test_your_own_mechanism.)
    """
    for path in PAGES:
        kinds = {kind for kind, _ in _FENCE.findall(path.read_text("utf-8"))}
        allowed = {"pycon", "text", "sh", "{toctree}", "{eval-rst}"}
        assert kinds <= allowed | ({"python"} if path.stem == "your-own-mechanism" else set())


def test_pages_are_reached_and_pictures_parse():
    listed = {
        (path.parent / entry).resolve()
        for path in PAGES
        for block in _blocks(path, "{toctree}")
        for entry in block.splitlines()
        if entry and not entry.startswith(":")
    }
    assert {p.with_suffix("").resolve() for p in PAGES} - listed == {(DOCS / "index").resolve()}
    for path in PAGES:
        for code in _pictures(path):
            compile(code, str(path), "exec")


def _anchors(path):
    """The headings of a page, as links name them."""
    text = _FENCE.sub("", path.read_text("utf-8"))
    return {
        re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        for title in re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    }


def test_links_lead_somewhere():
    """Breaks when a page is renamed, a heading reworded, or an address is no https one."""
    pages = [*PAGES, *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"))]
    found = 0
    for path in pages:
        text = re.sub(r"`[^`\n]*`", "", _FENCE.sub("", path.read_text("utf-8")))
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            found += 1
            if ":" in target:
                assert target.startswith("https://"), f"{path.name}: {target}"
                continue
            file, _, anchor = target.partition("#")
            to = (path.parent / file).resolve() if file else path
            assert to.exists(), f"{path.name}: {target}"
            assert not anchor or anchor in _anchors(to), f"{path.name}: {target}"
    assert found > 40


def test_the_map_names_files_that_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`((?:\w+/)*_?\w+\.py)`", text))
    assert len(named) > 25
    known = {path.as_posix() for path in ROOT.rglob("*.py")}
    assert sorted(n for n in named if not any(k.endswith(f"/{n}") for k in known)) == []


@pytest.mark.extra
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
    reason="needs the extra docs",
)
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, "-d", str(tmp_path / "cache"), str(DOCS), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stderr
    pictures = sum(len(_pictures(path)) for path in PAGES)
    assert len(list((tmp_path / "site" / "_images").glob("*.png"))) == pictures
    assert "jaxdp.epsilon" in (tmp_path / "site" / "api" / "jaxdp.html").read_text("utf-8")
