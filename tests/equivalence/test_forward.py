"""Forward: every output within its bound, exact data to the bit.

Sees narrow accumulators, lost tails of unrolled loops, a wrong row stride, a wrong output type.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.cases, examples=2)
def test_forward(case: Case, check: Check) -> None:
    """SUM: the sum of p_i * w[row_i] over the bag; accumulation is in fp32 or wider whatever the storage, unless the
    case asks for fp16; the result is rounded once, to the output's type.
    """
    check(case)
