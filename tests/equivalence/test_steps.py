"""Steps: several steps with changing data and learning rate; state carried, saved and restored.

Sees stale caches and captured hyper-parameters.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_


@property_(strategies.steps_cases)
def test_steps(case: Case, check: Check) -> None:
    """The learning rate, and Adam's t, are those of the forward to which the backward belongs."""
    check(case)
