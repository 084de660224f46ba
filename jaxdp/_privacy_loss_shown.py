"""What a law of the privacy loss says it is, as text and in notebooks."""

from typing import Any

import numpy as np

from jaxdp import _structure


def text(law: Any) -> str:
    """In one line."""
    start, spacing, centre = (_structure.compact(x) for x in (law.start, law.spacing, law.centre))
    swapped = ", P and Q swapped" if law.reversed else ""
    return (
        f"PrivacyLoss({_side(law)} the mechanism's, accurate about epsilon {centre}: {_count(law)} "
        f"losses from {start} on, {spacing} apart{swapped})"
    )


def page(law: Any) -> str:
    """The same as a table."""
    start, spacing, centre = (_structure.compact(x) for x in (law.start, law.spacing, law.centre))
    rows = [
        ("its curve is", f"{_side(law)} the mechanism's"),
        ("accurate about epsilon", centre),
        ("losses", f"{_count(law)} from {start} on, {spacing} apart"),
        ("log of the mass at infinity", _structure.compact(law.log_infinity)),
    ]
    if law.reversed:
        rows.append(("P and Q", "swapped"))
    return _structure.page("PrivacyLoss", rows)


def _side(law: Any) -> str:
    return "above" if law.upper else "below"


def _count(law: Any) -> int:
    return np.shape(law.log_mass)[-1] if np.ndim(law.log_mass) else 0
