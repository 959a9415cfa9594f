"""Every edge and every pair of the catalogue that coverage counts, gone through one after another.

Sees what happens at one size, type or combination alone, whatever the seed: the other properties draw at random.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.edge_cases, examples=2)
def test_edges(case: Case, check: Check) -> None:
    """Outputs, rows, state and everything else are right at each edge and for each pair that the subject takes."""
    check(case)
