"""Large addresses: tables, row ids and batches beyond 2^16, 2^24 and 2^31, as far as the profile's sizes go.

Sees 32-bit offsets, row ids that pass through fp32, and grids that do not hold a batch. The default profile holds none
of these sizes; `thorough` reaches batches above 65,535 and row ids above 2^24 (docs/generation.md).
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.large_cases, examples=0.2)
def test_large_addresses(case: Case, check: Check) -> None:
    """Indices name rows of tables of any size; nothing outside the buffers is ever read or written."""
    check(case)
