"""Variable batch: batch sizes per feature and rank.

Sees a wrong layout of the output or its gradient, and a wrong order of ranks.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.vbe_cases)
def test_variable_batch(case: Case, check: Check) -> None:
    """Indices stay feature-major, ranks lie inside the feature; the output and its gradient are flat and rank-major:
    for each rank, each feature, each sample, its columns.
    """
    check(case)
