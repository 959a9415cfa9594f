"""Pooling: SUM, MEAN and NONE, with empty bags.

Sees a division by zero, a mean that is ignored, stale output of an empty bag, a short cut for bags of one lookup that
stores something else than the row.
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


@property_(strategies.lone_lookups_cases, examples=0.3)
def test_lone_lookups(case: Case, check: Check) -> None:
    """SUM: the sum of p_i * w[row_i] over the bag, also where 32 bags and more side by side have one lookup each."""
    check(case)
