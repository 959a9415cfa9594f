"""Bounds: each mode's documented behaviour; nothing outside the buffers is read or written.

Sees negative indices taken for rows, an index equal to the number of rows, wrongly repaired offsets.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.bounds_cases)
def test_bounds(case: Case, check: Check) -> None:
    """IGNORE and WARNING repair to row 0 and to offsets that rise from 0 to N; FATAL raises and changes nothing; -1
    contributes nothing, or raises before any change.
    """
    check(case)
