"""Optimizer state: within its bound, to the bit where it is exact.

Sees the square of a mean for the mean of squares, padding counted in the mean, state in the wrong precision, an
epsilon inside the root, a bias correction one step off.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.optimizer_cases, examples=2)
def test_optimizer_state(case: Case, check: Check) -> None:
    """exact row-wise Adagrad: m += mean(G^2); exact Adagrad: s += G^2; Adam: m = b1 m + (1-b1) G, v = b2 v +
    (1-b2) G^2, and partial row-wise with one v a row.
    """
    check(case)
