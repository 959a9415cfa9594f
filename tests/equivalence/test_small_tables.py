"""Small tables: few rows and long bags, the shapes for which kernels have paths of their own.

Sees histogram and matrix-product paths that lose precision, count past their buffers, or spread NaN.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.small_table_cases)
def test_small_tables(case: Case, check: Check) -> None:
    """Accumulation is in fp32 or wider whatever the storage: on every path, at every magnitude."""
    check(case)
