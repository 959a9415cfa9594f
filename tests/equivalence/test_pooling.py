"""Pooling: SUM, MEAN and NONE, with empty bags.

Sees a division by zero, a mean that is ignored, stale output of an empty bag.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.pooling_cases)
def test_pooling(case: Case, check: Check) -> None:
    """MEAN: the sum divided by the bag's length, everywhere: output, row gradient and weight gradient. An empty bag
    gives 0. NONE: one output row a lookup.
    """
    check(case)
