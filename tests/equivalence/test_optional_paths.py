"""Optional paths: a subject's variant and the plain subject agree, and the path really ran.

Sees small-table paths, hoisted transposes and other options that change results, and comparisons that are vacuous: a
variant whose path did not run on a case says so, and the case is MISTRUSTED.
"""

import strategies
from equivcheck.case import Case
from equivcheck.engine import Check, property_
from equivcheck.engine.check import NotJudged
from equivcheck.engine.subjects import load_subject
from equivcheck.verdict import Status, Verdict


@property_(strategies.small_table_cases, examples=0.5)
def test_optional_paths(case: Case, check: Check) -> None:
    """An optional path computes what the plain one computes: on exact data to the bit."""
    plain, plus, _ = check.subject.name.partition("+")
    if not plus:
        check.counts.count(Verdict(Status.UNSUPPORTED, reason="the subject has no optional path"))
        raise NotJudged("the subject has no optional path")
    on = check(case)
    off = check.run(case, load_subject(plain))
    if on.exact and off.exact:
        check.same_bits(off, on, "an optional path computes what the plain one computes")
