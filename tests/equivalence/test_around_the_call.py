"""Around the call: outstanding forwards, retained graphs, frozen features, streams, graph capture, saved state.

Sees stale buffers, captured hyper-parameters, missing synchronisation.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.call_cases)
def test_around_the_call(case: Case, check: Check) -> None:
    """Several forwards may be outstanding; each backward updates once; backward twice through a retained graph updates
    twice; a forward without a backward changes nothing; streams and graphs change no result.
    """
    check(case)
