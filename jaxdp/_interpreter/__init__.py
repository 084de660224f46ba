"""Programs run operation by operation, by NumPy: who asks once need not wait for a compiler.

A query's program has thousands of operations on a few thousand numbers each. XLA takes seconds to
compile it and milliseconds to run it; NumPy takes microseconds for each operation, and no compiler.
They are the same operations on the same numbers in float64, under the same allowances for rounding
(`_law._allowances`): answers agree with those of the compiled program to rounding.

A traced program is translated once (`_code`) into instructions: functions of NumPy arrays
(`_operations`, `_indexing`) with the places of what they take and give.
"""

from jaxdp._interpreter._code import Code, TooLong, Unknown, translated
from jaxdp._interpreter._cost import costs, is_accurate, programs

__all__ = ["Code", "TooLong", "Unknown", "costs", "is_accurate", "programs", "translated"]
