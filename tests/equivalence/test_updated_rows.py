"""Updated rows: every named row within its bound after the update, exact data to the bit.

Sees lost or doubled lookups at a tile's edge, gradients of other bags, a wrong column block of a shared table.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.exact_cases, examples=2)
def test_updated_rows(case: Case, check: Check) -> None:
    """G[r] is the sum over every lookup of row r of p_i * dY[bag of i], over all features that share the table;
    nothing on the way from dY to the new row is rounded to a narrower type than the accumulation's.
    """
    check(case)
