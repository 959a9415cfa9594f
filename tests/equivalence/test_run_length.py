"""Run length: runs of every length around the thresholds at which kernels change their way.

Sees short and long paths that disagree, an off-by-one at the threshold, a run cut in two; keys of 16 bits, lengths that
are counted in 16 bits or in a 16-bit float, and lists of runs that are too small.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.run_length_cases, examples=2)
def test_run_length(case: Case, check: Check) -> None:
    """Each row gets exactly one update a step, from its whole run, whatever its length."""
    check(case)


@property_(strategies.traffic_cases)
def test_many_runs(case: Case, check: Check) -> None:
    """Each row gets exactly one update a step, also where several hundred runs are long at once."""
    check(case)


@property_(strategies.many_rows_cases, examples=0.1)
def test_many_rows(case: Case, check: Check) -> None:
    """Each row gets exactly one update a step, also where 70,000 rows have 5,000 runs."""
    check(case)


@property_(strategies.long_bags_cases, examples=0.3)
def test_long_bags(case: Case, check: Check) -> None:
    """SUM: the sum of p_i * w[row_i] over the bag; MEAN divides it, and the gradients, by the bag's length; each row
    gets exactly one update a step, from its whole run: also where a bag, a run or a batch has more than 2^15 or 2^16
    lookups, or a length that 16-bit types do not hold, and where a table with a long run has 1,028 columns.
    """
    check(case)
