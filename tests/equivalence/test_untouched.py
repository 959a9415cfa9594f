"""Untouched rows: all other rows, states, and the bytes around the buffers stay to the bit.

Sees writes next door, NaN from zero times infinity, decay applied to all rows.
"""

import msgspec

import strategies
from equivcheck.case import Case, Place, Poison
from equivcheck.engine import Check, property_


@property_(strategies.cases)
def test_untouched(case: Case, check: Check) -> None:
    """Rows that no lookup names keep weights and state to the byte; a row that no bag names never influences an
    output, whatever it holds.
    """
    poisoned = (*case.poison, Poison(Place.UNTOUCHED_ROWS))
    check(msgspec.structs.replace(case, poison=poisoned))
