"""Non-finite values: NaN and infinities stay where the contract says.

Sees zero times infinity in histogram and matrix-product paths, and gradients that leak into other rows.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.nonfinite_cases)
def test_non_finite(case: Case, check: Check) -> None:
    """A row that no bag names never influences an output; a gradient that is not finite reaches only the rows of its
    own bag.
    """
    check(case)
