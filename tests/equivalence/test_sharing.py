"""Sharing: features that share a table behave as one table with all their lookups.

Sees several updates of one row, and wrong offsets of unsorted feature maps.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.sharing_cases)
def test_sharing(case: Case, check: Check) -> None:
    """Features may share a table, in any order; G[r] sums over all features that share the table."""
    check(case)
