"""Laws in files that NumPy reads."""

import dataclasses
import os
import zipfile
from typing import Any

import numpy as np

_FORMAT, _OPPOSITE = "jaxdp.PrivacyLoss 1", "opposite."


def fields(kind: type) -> tuple[str, ...]:
    """The names of the arrays that a law of this class is made of."""
    own = (f for f in dataclasses.fields(kind) if not f.metadata.get("static"))
    return tuple(f.name for f in own if f.name != "opposite")


def save(law: Any, path: str | os.PathLike) -> None:
    """Write a law, and its opposite one, with its format."""
    laws = {"": law} if law.opposite is None else {"": law, _OPPOSITE: law.opposite}
    names = fields(type(law))
    known = {start + n: np.asarray(getattr(x, n)) for start, x in laws.items() for n in names}
    known |= {"format": np.str_(_FORMAT), "upper": law.upper, "reversed": law.reversed}
    with open(path, "wb") as file:
        np.savez(file, **known)


def load(kind: Any, path: str | os.PathLike) -> Any:
    """The law of this class that was written, or ValueError."""
    refusal = ValueError(f"{os.fspath(path)!r} holds no law of the format {_FORMAT!r}")
    if not zipfile.is_zipfile(path) and os.path.exists(path):
        raise refusal
    names = fields(kind)
    with np.load(path, allow_pickle=False) as file:
        found = set(file.files)
        if not {*names, "upper", "reversed", "format"} <= found or str(file["format"]) != _FORMAT:
            raise refusal

        def law(start: str, upper: bool, **more: Any) -> Any:
            return kind(**{name: file[start + name] for name in names}, upper=upper, **more)

        upper, both = bool(file["upper"]), {_OPPOSITE + name for name in names} <= found
        opposite = law(_OPPOSITE, upper) if both else None
        return law("", upper, reversed=bool(file["reversed"]), opposite=opposite)
