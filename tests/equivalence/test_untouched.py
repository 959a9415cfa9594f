"""Untouched rows: all other rows, states, and the bytes around the buffers stay to the bit.

Sees writes next door, NaN from zero times infinity, decay applied to all rows, rows rewritten by a sum with zero.
"""

import msgspec

import strategies
from equivcheck.case import Case, Place, Poison, Regime, Values
from equivcheck.engine import Check, property_


@property_(strategies.cases)
def test_untouched(case: Case, check: Check) -> None:
    """Rows that no lookup names keep weights and state to the byte; a row that no bag names never influences an
    output, whatever it holds: a NaN, or a zero with a sign.
    """
    if case.seed % 4 == 3:  # -0 + 0 is +0: another byte, though not another value
        check(msgspec.structs.replace(case, weight_values=Values(Regime.ZEROS)))
        return
    poisoned = (*case.poison, Poison(Place.UNTOUCHED_ROWS))
    check(msgspec.structs.replace(case, poison=poisoned))
