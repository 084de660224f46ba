"""Arrays that belong to one evaluation of the float64 island, not to its batch."""

from typing import Any, ClassVar

from jaxdp._mechanisms import mechanism


@mechanism
class Vector:
    """The last axis is core."""

    value: Any

    _core_ndims: ClassVar = {"value": 1}


@mechanism
class Matrix:
    """The last two axes are core."""

    value: Any

    _core_ndims: ClassVar = {"value": 2}
