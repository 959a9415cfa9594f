"""Determinism: declared deterministic paths repeat to the bit; the others stay within bounds and say so.

Sees races and uninitialised memory.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.cases, examples=0.5)
def test_determinism(case: Case, check: Check) -> None:
    """Two runs of a path that is declared deterministic give the same bits."""
    first, second = check(case), check(case)
    if first.deterministic:
        check.same_bits(first, second, "a deterministic path repeats to the bit")
