"""Subject against witness: two kernels on the same problem, each within its own bound.

Their difference is then within the sum of the two bounds. What is measured beside is the share of elements with equal
bits, and the bias: whether the subject's values lie above the witness's more often than below.
"""

import msgspec
import numpy as np

import strategies
from equivcheck.case import Call, Case
from equivcheck.drift import drift
from equivcheck.engine import Check, property_
from equivcheck.outcome import Forward, Update


@property_(strategies.cases, with_witness=True)
def test_witness(case: Case, check: Check) -> None:
    """What one system gives is within the bounds of what another gives: both are right, or one is not."""
    # A recorded witness has results for whole cases only; another is compared before states can differ.
    recorded = check.witness is not None and check.witness.recorded
    one_step = case if recorded else msgspec.structs.replace(case, call=Call.STEPS, steps=case.steps[:1])
    subject = check(one_step)
    assert check.witness is not None
    witness = check.run(one_step, check.witness)
    if not subject.right or not witness.right or subject.outcome is None or witness.outcome is None:
        check.share(f"compared with {check.witness.name}", 0, 1)
        return
    check.share(f"compared with {check.witness.name}", 1, 1)
    for ours, theirs in zip(subject.outcome.results, witness.outcome.results, strict=False):
        if isinstance(ours, Forward) and isinstance(theirs, Forward):
            _compare(check, "output", ours.output, theirs.output)
        if isinstance(ours, Update) and isinstance(theirs, Update):
            for name in ("tables", "momentum1", "momentum2"):
                for left, right in zip(getattr(ours.after, name), getattr(theirs.after, name), strict=True):
                    _compare(check, name, left, right)


def _compare(check: Check, name: str, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Count equal bits, and of the others, how many of ours are larger."""
    left, right = ours.astype(np.float64), theirs.astype(np.float64)
    equal = (left == right) | (np.isnan(left) & np.isnan(right))
    check.share(f"{name} bit-equal with the witness", int(equal.sum()), equal.size)
    if ours.dtype == theirs.dtype:
        check.distances(name, drift(ours, theirs).ulps)
    if not equal.all():
        check.share(f"{name} above the witness where unequal", int((left > right).sum()), int((~equal).sum()))
