"""Sphinx: Markdown pages, docstrings, and pictures that are drawn while the site is built."""

import importlib.util
import pathlib
import re
import sys

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

import jaxdp

project = "jaxdp"
author = "the jaxdp authors"
version = release = jaxdp.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "matplotlib.sphinxext.plot_directive",
]
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "jaxdp"
exclude_patterns = ["_build"]
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["style.css"]

autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "imported-members": True}
autodoc_mock_imports = [] if importlib.util.find_spec("dp_accounting") else ["dp_accounting"]
napoleon_numpy_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
default_role = "code"

plot_include_source = True
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = [("png", 110)]
plot_pre_code = "import numpy as np\n"
plot_rcparams = {"font.size": 9.0, "savefig.bbox": "tight"}


_SPANS = re.compile(r"(:\w+:`[^`]*`|``[^`]*``|`[^`]*`)")


def escape_plain_text(app, what, name, obj, options, lines):
    """Docstrings are sentences: a star or a bar outside of code and mathematics is itself."""
    inside = None  # the indent of a directive, or of a doctest with its output
    for index, line in enumerate(lines):
        indent, text = len(line) - len(line.lstrip()), line.strip()
        if text.startswith((">>>", ".. ")):
            inside = indent
        elif inside is not None and text and (indent < inside or not lines[index - 1].strip()):
            inside = inside if indent > inside else None
        if inside is None:
            bullet = re.match(r"\s*(\* )?", line).end()
            parts = _SPANS.split(line[bullet:])
            parts[::2] = [re.sub(r"([*|])", r"\\\1", part) for part in parts[::2]]
            lines[index] = line[:bullet] + "".join(parts)


def mathml(tex, as_block=False):
    """What browsers show without a script or a network; large brackets are as large as needed."""
    known = re.sub(r"\\[bB]ig(?=[(\[])", r"\\left", tex)
    known = re.sub(r"\\[bB]ig(?=[)\]])", r"\\right", known)
    known = re.sub(r"\\[bB]ig(?![a-z])", "", known).replace(r"\dots", r"\ldots")
    try:
        return tex2mathml(known, as_block=as_block)
    except Exception as error:
        raise ValueError(f"no MathML of {tex!r}") from error


def inline_formula(writer, node):
    """Within a line."""
    writer.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def displayed_formula(writer, node):
    """On a line of its own."""
    writer.body.append(f'<div class="formula">{mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def setup(app):
    """Docstrings are escaped before napoleon reads the sections."""
    app.connect("autodoc-process-docstring", escape_plain_text, priority=400)
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
