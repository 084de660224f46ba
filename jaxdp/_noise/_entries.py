"""Laws of one coordinate are not drawn for whole vectors unasked."""

from typing import Any

import jax
import numpy as np

from jaxdp import _x64


def require_entries(m: Any, value: Any, vector: str = "") -> None:
    """ValueError where the value has entries that the mechanism has no parameters for.

    The queries are for one entry, and a record that changes several is not protected as they say.
    Parameters of the value's shape make a mechanism of every entry, whose queries are as many.

    Args:
      m: a mechanism whose law is that of one entry.
      value: an array or a PyTree.
      vector: the name of the form for whole vectors, if there is one.
    """
    shapes = [np.shape(leaf) for leaf in jax.tree.leaves(value)]
    known = _x64.batch_shape(m)
    entries = sum(int(np.prod(shape)) for shape in shapes)
    if entries <= 1 or (len(shapes) == 1 and _fits(shapes[0], known)):
        return
    name = type(m).__name__
    instead = f", or for vectors of bounded L2 norm use {vector}" if vector else ""
    raise ValueError(
        f"value has {entries} entries, and {name} is for one: its epsilon does not hold if a "
        f"record changes several. Give {name} parameters of the value's shape, one mechanism for "
        "each entry (they compose; where a record changes one entry alone, account for that "
        f"one){instead}"
    )


def _fits(shape: tuple[int, ...], known: tuple[int, ...]) -> bool:
    """Whether parameters of the known shape have an entry for each of the value's."""
    try:
        return np.broadcast_shapes(shape, known) == known
    except ValueError:
        return False
