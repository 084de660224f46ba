"""`jaxdp report`: the privacy of one training run on a page of its own, to go with its model."""

import dataclasses
import html
import json
import math
import pathlib
import tomllib
from typing import Annotated, Any

import jax
import numpy as np
import typer

import jaxdp
from jaxdp._attained import bracket
from jaxdp.cli import _display, _report_run, _setting
from jaxdp.cli._display import InputError, round_down, round_up

_RATES = (0.001, 0.01, 0.05, 0.1, 0.5)  # of false alarms, shown as numbers
_POINTS = 101  # of the curve
_NUMBERS = (*_report_run.SIZES, "sampling_probability", "num_steps", "sigma")
_KEYS = ("name", "batches", "neighbours", "delta", *_NUMBERS)
_CAVEAT = (
    "The numbers hold if the run was what is described here: noise of that size in every step, "
    "gradients clipped record by record, batches drawn as stated and not otherwise (cut from a "
    "shuffled data set, for example), and nothing else computed from the records, a choice of "
    "hyperparameters included."
)


@dataclasses.dataclass(frozen=True)
class Report:
    """What is said of a run.

    Attributes:
      name: of the run.
      mechanism: as the library shows it.
      facts: of the setting, (label, text).
      epsilons: (delta, below, above) for every delta.
      advantage: of an attack, an upper bound.
      rates, hits: false positive rates, and upper bounds on the true positive rates there.
    """

    name: str
    mechanism: str
    facts: list[tuple[str, str]]
    epsilons: list[tuple[float, float, float]]
    advantage: float
    rates: np.ndarray
    hits: np.ndarray

    def at(self, rate: float) -> float:
        """The bound on the true positive rate at one of the rates."""
        return float(self.hits[np.flatnonzero(self.rates == rate)[0]])

    def record(self) -> dict[str, Any]:
        """The same for machines."""
        names = ("delta", "epsilon_lower", "epsilon_upper")
        return {
            "name": self.name,
            "mechanism": self.mechanism,
            **dict(self.facts),
            "epsilons": [dict(zip(names, row, strict=True)) for row in self.epsilons],
            "advantage": self.advantage,
            "false_positive_rates": self.rates.tolist(),
            "true_positive_rates": self.hits.tolist(),
        }


def read_settings(path: pathlib.Path) -> dict[str, Any]:
    """Settings from a JSON or TOML file, under the names of the options."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        found = tomllib.loads(text) if path.suffix.lower() == ".toml" else json.loads(text)
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: cannot be read as JSON, or TOML if so named ({error})") from None
    if not isinstance(found, dict):
        raise InputError(f"{path}: must hold an object of settings")
    for key in found:
        if key not in _KEYS:
            raise InputError(f"{path}: {key!r} is no setting; there are {', '.join(_KEYS)}")
    return found


def make(settings: dict[str, Any]) -> Report:
    """Compute everything that the report says."""
    numbers = {key: _number(key, settings.get(key)) for key in _NUMBERS}
    batches = settings.get("batches") or "poisson"
    neighbours = settings.get("neighbours") or "add-or-remove"
    for name, value, known in (
        ("batches", batches, _report_run.SAMPLERS),
        ("neighbours", neighbours, _report_run.NEIGHBOURS),
    ):
        if value not in known:
            raise InputError(f"{name} must be one of {', '.join(known)}, got {value!r}")
    run = _report_run.described(numbers, batches, neighbours)
    mechanism = run.mechanism
    deltas = _deltas(settings.get("delta"), numbers["num_examples"])
    # The mechanisms and their parameters are checked by now: what is wrong was said.
    found = bracket(lambda m: jaxdp.epsilon_bounds(m, np.array(deltas)), mechanism, run.attained)
    below, above = map(np.asarray, found)
    rates = np.union1d(np.linspace(0.0, 1.0, _POINTS), _RATES)
    hits = np.clip(1.0 - np.asarray(jaxdp.tradeoff(mechanism, rates)), 0.0, 1.0)
    hits = np.where(hits > 0.0, np.minimum(np.nextafter(hits, 2.0), 1.0), 0.0)  # of the subtraction
    mu = float(jaxdp.epsilon_delta_to_gdp(above[-1], deltas[-1]))
    facts = [
        (
            "Noise",
            f"Gaussian, {numbers['sigma']:g} clipping norms (the noise multiplier)",
        ),
        ("Neighbours", _report_run.NEIGHBOURS[neighbours]),
        ("Batches", _report_run.SAMPLERS[batches]),
        ("Sampling", run.sampling),
        ("Proof", run.guarantee),
        (
            "Gaussian DP",
            f"mu = {round_up(mu)} has the same epsilon at delta = {deltas[-1]:g}"
            " (a summary, not a bound at other deltas)",
        ),
        ("Computed by", f"jaxdp {jaxdp.__version__}, jax {jax.__version__}, in float64"),
    ]
    rows = list(zip(deltas, below.tolist(), above.tolist(), strict=True))
    name = str(settings.get("name") or "Training run")
    advantage = float(jaxdp.advantage(mechanism))
    return Report(name, repr(mechanism), facts, rows, advantage, rates, hits)


def _number(key: str, value: Any) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{key} must be a number, got {value!r}")
    if not 0.0 < value < math.inf:
        raise InputError(f"{key} must be finite and > 0, got {value:g}")
    return value


def _deltas(given: Any, num_examples: float | None) -> list[float]:
    """The deltas, the one of reference last: 1e-5, or the round one below 1 / num_examples."""
    if given is not None:
        found = given if isinstance(given, list | tuple) else [given]
        for value in found:
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(f"delta must be a number, got {value!r}")
            if not 0.0 < value < 1.0:
                raise InputError(f"delta must be in (0, 1), got {value:g}")
        if not found:
            raise InputError("delta must hold a number")
        return sorted(map(float, found), reverse=True)
    least = 1e-5 if num_examples is None else 10.0 ** math.floor(-math.log10(num_examples) - 1e-9)
    return [x for x in (1e-3, 1e-4, 1e-5, 1e-6) if x > least] + [min(least, 1e-3)]


def _rows(report: Report) -> tuple[list[list[str]], list[list[str]]]:
    epsilons = [
        [f"{delta:g}", f"{round_down(low)} to {round_up(high)}"]
        for delta, low, high in report.epsilons
    ]
    attacks = [[f"{rate:g}", round_up(report.at(rate), 4)] for rate in _RATES]
    return epsilons, attacks


_EPSILON_HEADS = ("delta", "the least epsilon lies in")
_ATTACK_HEADS = ("false positive rate", "true positive rate at most")


def markdown(report: Report) -> str:
    """The report in Markdown."""
    epsilons, attacks = _rows(report)
    facts = [["Mechanism", f"`{report.mechanism}`"], *map(list, report.facts)]
    blocks = [
        f"# Privacy report: {_escaped(report.name)}",
        _markdown_table(("", ""), facts),
        "## Epsilon",
        _markdown_table(_EPSILON_HEADS, epsilons),
        "## Membership inference",
        f"No attack's advantage (true less false positive rate) exceeds "
        f"{round_up(report.advantage, 4)}, whatever it knows besides.",
        _markdown_table(_ATTACK_HEADS, attacks),
        _CAVEAT,
    ]
    return "\n\n".join(blocks) + "\n"


def _escaped(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _markdown_table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    lines = [list(heads), ["---"] * len(heads), *([_escaped(x) for x in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def page(report: Report) -> str:
    """The report as one HTML page, its picture within."""
    epsilons, attacks = _rows(report)
    facts = [["Mechanism", report.mechanism], *map(list, report.facts)]
    title = html.escape(f"Privacy report: {report.name}")
    body = [
        f"<h1>{title}</h1>",
        _html_table((), facts),
        "<h2>Epsilon</h2>",
        _html_table(_EPSILON_HEADS, epsilons),
        "<h2>Membership inference</h2>",
        f"<p>No attack's advantage (true less false positive rate) exceeds "
        f"{round_up(report.advantage, 4)}, whatever it knows besides.</p>",
        _html_table(_ATTACK_HEADS, attacks),
        _picture(report),
        f"<p>{html.escape(_CAVEAT)}</p>",
    ]
    return _PAGE.format(title=title, body="\n".join(body))


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 2rem auto;
  padding: 0 1rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ text-align: left; vertical-align: top; padding: 0.25rem 1rem 0.25rem 0;
  border-bottom: 1px solid color-mix(in srgb, currentColor 25%, transparent); }}
td {{ overflow-wrap: anywhere; }}
td:first-child {{ overflow-wrap: normal; white-space: nowrap; }}
svg {{ width: 100%; max-width: 26rem; height: auto; }}
</style>
</head>
<body>
{body}
</body>
</html>
"""


def _html_table(heads: tuple[str, ...], rows: list[list[str]]) -> str:
    def line(cells: Any, kind: str) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(x)}</{kind}>" for x in cells) + "</tr>"

    lines = ([line(heads, "th")] if heads else []) + [line(row, "td") for row in rows]
    return "<table>\n" + "\n".join(lines) + "\n</table>"


def _picture(report: Report) -> str:
    """The bound on the true positive rate over the false one, as SVG."""
    left, top, side = 60, 15, 330

    def place(x: float, y: float) -> str:
        return f"{left + side * x:.2f},{top + side * (1.0 - y):.2f}"

    points = " ".join(map(place, report.rates.tolist(), report.hits.tolist()))
    marks = []
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = place(share, 0.0).split(",")
        marks.append(f'<text x="{x}" y="{top + side + 20}" text-anchor="middle">{share:g}</text>')
        y = place(0.0, share).split(",")[1]
        marks.append(f'<text x="{left - 8}" y="{y}" text-anchor="end" dy="0.35em">{share:g}</text>')
    middle = left + side / 2
    return f"""<figure>
<svg viewBox="0 0 410 400" role="img" aria-label="Bound on an attack's true positive rate">
<g fill="none" stroke="currentColor">
<rect x="{left}" y="{top}" width="{side}" height="{side}" stroke-opacity="0.4"/>
<polyline points="{place(0, 0)} {place(1, 1)}" stroke-dasharray="5 5" stroke-opacity="0.6"/>
<polyline points="{points}" stroke="#0072b2" stroke-width="2.5"/>
</g>
<g fill="currentColor" font-size="13" font-family="system-ui, sans-serif">
{"".join(marks)}
<text x="{middle}" y="{top + side + 42}" text-anchor="middle">false positive rate</text>
<text transform="translate(18 {top + side / 2}) rotate(-90)" text-anchor="middle">true positive \
rate</text>
</g>
</svg>
<figcaption>No attack lies above the curve; the dashed line is guessing.</figcaption>
</figure>"""


def command(
    settings: Annotated[
        pathlib.Path | None,
        typer.Argument(metavar="[SETTINGS]", help="A .json or .toml file of the options' names."),
    ] = None,
    sigma: Annotated[float | None, typer.Option(help="Noise multiplier.")] = None,
    records: _setting.RecordsOption = None,
    batch: _setting.BatchOption = None,
    epochs: _setting.EpochsOption = None,
    sampling_probability: Annotated[
        float | None, typer.Option(help="Of a record in a step: instead of the three above.")
    ] = None,
    num_steps: Annotated[int | None, typer.Option(help="Steps, with it.")] = None,
    scheme: _setting.OptionalSchemeOption = None,
    neighbours: _setting.OptionalNeighboursOption = None,
    max_batch: _setting.MaxBatchOption = None,
    min_separation: _setting.SeparationOption = None,
    delta: Annotated[list[float] | None, typer.Option(help="Delta; may be repeated.")] = None,
    name: Annotated[str | None, typer.Option(help="Of the run, for the title.")] = None,
    output: Annotated[
        pathlib.Path | None,
        typer.Option(
            "--output", "-o", help="An .html, .md or .json file; Markdown on the terminal if none."
        ),
    ] = None,
) -> None:
    """A privacy report of a DP-SGD run, to go with its model.

    What was run, brackets of epsilon at several deltas, what a membership inference attack can
    achieve at most, and the versions that computed it; in Markdown, as one HTML page with the
    trade-off curve, or as JSON.

    Example: jaxdp report --sigma 1.1 --num-examples 60000 --batch-size 256 --epochs 15 -o r.html
    """
    with _display.refusing_bad_input():
        found = read_settings(settings) if settings is not None else {}
        options = {
            "sigma": sigma,
            "num_examples": records,
            "batch_size": batch,
            "epochs": epochs,
            "sampling_probability": sampling_probability,
            "num_steps": num_steps,
            "batches": scheme,
            "neighbours": neighbours,
            "max_batch_size": max_batch,
            "min_separation": min_separation,
            "delta": delta or None,
            "name": name,
        }
        found |= {key: value for key, value in options.items() if value is not None}
        kind = ".md" if output is None else output.suffix.lower()
        if kind not in (".md", ".html", ".json"):
            raise InputError(f"{output}: the output must end in .html, .md or .json")
        report = make(found)
        if kind == ".json":
            text = json.dumps(report.record(), indent=2, ensure_ascii=False) + "\n"
        else:
            text = page(report) if kind == ".html" else markdown(report)
        if output is None:
            print(text, end="")
            return
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise InputError(f"{output}: cannot be written ({error})") from None
    print(f"written: {output}")
