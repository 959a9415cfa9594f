"""Two runs have the same bits where both are judged: what the contract leaves open may differ."""

from __future__ import annotations

import numpy as np
import pytest

from equivcheck.backends import registry
from equivcheck.case import BadOffset, Bag, BoundsCheck, Call, Case, Feature, Lookup, OffsetFault, Pooling
from equivcheck.engine.check import CaseFailed, Check, Unguarded
from equivcheck.engine.counts import Counts
from equivcheck.outcome import Forward, Outcome
from equivcheck.problem import materialise
from equivcheck.runner import Run, Subject
from equivcheck.verdict import Status, Verdict

CASE = Case(
    features=(Feature(rows=2, dim=4, bags=(Bag((Lookup(0), Lookup(1))),)),),
    pooling=Pooling.NONE,
    bounds_check=BoundsCheck.IGNORE,
    bad_offsets=(BadOffset(OffsetFault.PLUS_ONE),),
    call=Call.FORWARD_ONLY,
)


def run_with(case: Case, *rows: float) -> Run:
    output = np.repeat(np.asarray(rows, np.float32)[:, None], 4, axis=1)
    outcome = Outcome((Forward(output, None),), ({},))
    return Run(case, "torch", Verdict(Status.PASSED), materialise(case), None, outcome)


@pytest.fixture
def check() -> Check:
    return Check(Subject("torch", registry.build("torch")), None, Counts(), (), Unguarded())


def test_output_rows_of_lookups_outside_of_all_bags_may_differ(check: Check) -> None:
    check.same_bits(run_with(CASE, 1.0, 2.0), run_with(CASE, 3.0, 2.0), "a deterministic path repeats to the bit")


def test_other_output_rows_may_not(check: Check) -> None:
    with pytest.raises(CaseFailed):
        check.same_bits(run_with(CASE, 1.0, 2.0), run_with(CASE, 1.0, 3.0), "a deterministic path repeats to the bit")
    well_formed = Case(features=CASE.features, pooling=Pooling.NONE, call=Call.FORWARD_ONLY)
    with pytest.raises(CaseFailed):
        check.same_bits(run_with(well_formed, 1.0, 2.0), run_with(well_formed, 3.0, 2.0), "they repeat to the bit")
