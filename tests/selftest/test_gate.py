"""The gate's rules without a run: what decides the answer, how runs are told apart and put together, drift, faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import msgspec
import numpy as np
import pytest

from equivcheck.arithmetic import Arithmetic
from equivcheck.case import Bag, Case, Feature, Lookup, Regime, Values
from equivcheck.compare import judge
from equivcheck.drift import drift
from equivcheck.engine.counts import Counts, TensorCounts
from equivcheck.engine.events import (
    AnyEvent,
    CaseCompared,
    CaseEnded,
    CaseRerun,
    Collected,
    FaultTried,
    FindingReplayed,
    Finished,
    Planned,
    SliceFinished,
    Stopped,
    from_line,
    to_line,
)
from equivcheck.engine.failures import Told
from equivcheck.formats import AnyArray
from equivcheck.gate.gather import gather
from equivcheck.gate.orders import Orders, key_of, slice_key
from equivcheck.gate.result import Answer, Result, read, schema, write
from equivcheck.gate.tamper import FAULTS, Fault
from equivcheck.problem import materialise
from equivcheck.verdict import Status
from equivcheck.verification import Agreement
from tests.selftest.kernels import Right

PINNED = {"subject": "kernel", "profile": "quick"}
TOLD = Told(
    "output: not exact", Status.FAILED, "/elsewhere/a.json", "/elsewhere/a.json", "equivcheck replay a.json", ""
)


def counts(**statuses: int) -> Counts:
    return Counts(statuses=dict(statuses), tensors={"output": TensorCounts(judged=10, trusted=10)})


def slice_(number: int = 0, name: str = "sums", found: Counts | None = None, **more: object) -> SliceFinished:
    event = SliceFinished(name, "kernel", number, "passed", 1.0, found or counts(passed=20))
    return msgspec.structs.replace(event, **more)


def result(*events: AnyEvent, slices: int = 1, accepted: frozenset[str] | None = None) -> Result:
    """The result of a run of one property with these events."""
    keys = tuple(slice_key("sums", "kernel", "", number) for number in range(slices))
    others = tuple(key for event in events if (key := key_of(event)) and key not in keys)
    plan = Planned(PINNED, (*others, *keys), (*others, *keys))
    begin = (Collected(slices, ("kernel",)), plan)
    return gather([*begin, *events, Finished(0, 2.0)], Path("nowhere"), accepted)


def test_nothing_wrong_is_right() -> None:
    found = result(slice_())
    assert (found.answer, found.exit_code, found.judged, found.finished) == (Answer.RIGHT, 0, 20, True)
    assert found.sentence == "RIGHT: nothing was wrong in 20 cases on kernel"


@pytest.mark.parametrize(
    ("event", "reason"),
    [
        (slice_(outcome="failed", failures=(TOLD,)), "the property sums failed (output: not exact)"),
        (CaseEnded("sums", "kernel", 0, TOLD, again=True), "the property sums failed"),
        (CaseRerun("saved", "a", "kernel", Status.FAILED, failure=TOLD), "a case that failed before failed"),
        (CaseRerun("golden", "a", "kernel", Status.FAILED, failure=TOLD), "a golden case failed"),
        (CaseCompared("a", "kernel", Agreement.OUTSIDE, failure=TOLD), "a recorded case failed"),
        (FindingReplayed("f", "kernel", "fixed", "remove it"), "finding f no longer holds as recorded: remove it"),
    ],
    ids=["property", "death", "saved", "golden", "baseline", "finding"],
)
def test_what_was_seen_to_be_wrong_is_wrong_whatever_else_happened(event: AnyEvent, reason: str) -> None:
    found = result(slice_(), event) if not isinstance(event, SliceFinished) else result(event)
    assert found.exit_code == 1
    assert found.reasons[0].startswith(reason)
    doubtful = result(event, Stopped("it was ended by SIGTERM"), slices=4)
    assert doubtful.exit_code == 1
    assert "it was ended by SIGTERM" in doubtful.reasons


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ((slice_(found=counts(unsupported=9)),), "no case was judged"),
        ((slice_(found=counts(passed=4, mistrusted=6)),), "6 of 10 cases could hardly have shown anything"),
        (
            (slice_(found=Counts({"passed": 5}, tensors={"output": TensorCounts(judged=3, undetermined=7)})),),
            "70 % of the elements may hold anything",
        ),
        ((Stopped("the budget of 5 s was spent"),), "the budget of 5 s was spent"),
        ((slice_(), FaultTried("f", "t", "kernel", False, 40)), "the fault f was put into its results and not seen"),
        ((slice_(), FaultTried("f", "t", "kernel", True, 1, control="it failed")), "the fault f proves nothing"),
        ((slice_(), FaultTried("f", "t", "kernel", False, 0, refused="no")), "nothing shows that this gate can fail"),
        ((slice_(), CaseCompared("a", "kernel", Agreement.UNSUPPORTED)), "no case could be compared with the baseline"),
        ((slice_(outcome="failed", message="no module"),), "sums on kernel, slice 0: no module"),
    ],
    ids=["nothing", "mistrusted", "undetermined", "budget", "unseen", "control", "no place", "baseline", "message"],
)
def test_what_leaves_the_question_open_is_neither(events: tuple[AnyEvent, ...], reason: str) -> None:
    found = result(*events)
    assert (found.answer, found.exit_code) == (Answer.CANNOT_TELL, 2)
    assert any(reason in sentence for sentence in found.reasons), found.reasons
    assert found.sentence.startswith("COULD NOT TELL whether kernel is right: ")


def test_a_quarter_of_the_slices_is_the_least() -> None:
    assert result(slice_(0), slice_(1), slices=8).exit_code == 0
    short = result(slice_(0), slices=8)
    assert short.exit_code == 2
    assert "the time was too short for the least number of slices of sums" in short.reasons[0]
    assert "2 of 8 tests were done; the others did not get their turn" in result(slice_(0), slice_(1), slices=8).notes


def test_more_refusals_than_recorded_leave_it_open() -> None:
    found = counts(passed=3, unsupported=2)
    found.unsupported = {"dim 33 is no multiple of 4": 1, "dim 34 is no multiple of 4": 1}
    assert result(slice_(found=found), accepted=frozenset({"dim # is no multiple of #"})).exit_code == 0
    refused = result(slice_(found=found), accepted=frozenset())
    assert refused.exit_code == 2
    assert refused.new_unsupported == ["dim # is no multiple of #"]
    assert result(slice_(found=found)).exit_code == 0
    assert "with no recorded list" in " ".join(result(slice_(found=found)).notes)


def test_a_test_that_is_reported_twice_counts_once() -> None:
    assert result(slice_(), slice_()).judged == 20


def test_events_and_result_survive_their_files(tmp_path: Path) -> None:
    events: list[AnyEvent] = [
        slice_(),
        FaultTried("f", "t", "kernel", True, 1),
        CaseCompared("a", "kernel", "bit-equal", 4, 4),
    ]
    assert [from_line(to_line(event)) for event in events] == events
    found = result(*events)
    write(found, tmp_path)
    assert read(tmp_path) == found
    (tmp_path / "result.json").write_text('{"equivcheck_result": 99}')
    with pytest.raises(ValueError, match="format 99"):
        read(tmp_path)


def test_the_schema_in_the_docs_is_that_of_the_code() -> None:
    documented = Path(__file__).parents[2] / "docs" / "result.schema.json"
    assert documented.read_bytes() == schema(), "write it anew: equivcheck.gate.result.schema()"


@pytest.mark.parametrize("number", [1, 2, 3, 7])
def test_shards_are_disjoint_and_together_everything(number: int) -> None:
    keys = [f"slice p{i % 5} k {i // 5}" for i in range(23)]
    parts = [Orders("", shard=(part, number)).mine(keys) for part in range(1, number + 1)]
    assert [sum(kept) for kept in zip(*parts, strict=True)] == [1] * len(keys)


# Drift
@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_ulps_are_steps_in_the_types_sequence(dtype: type) -> None:
    most: Any = ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    near = 1 + float(most.eps)
    ours: AnyArray = np.array([1, 1, 0, -1, 1, np.nan, np.nan, np.inf, np.inf], dtype)
    theirs: AnyArray = np.array([1, near, -0.0, -1, 2, np.nan, 1, np.inf, -np.inf], dtype)
    found = drift(ours, theirs)
    assert (found.elements, found.equal) == (9, 5)
    binade = round(1 / float(most.eps))
    far = "over 1024" if binade > 1024 else "65-1024"
    assert found.ulps == {"0": 5, "1": 1, far: 1, "not comparable": 2}
    assert found.above == 1, "infinity above minus infinity"
    tiny = float(most.smallest_subnormal)
    assert drift(np.array([tiny], dtype), np.array([-tiny], dtype)).ulps == {"2": 1}


def test_arrays_of_other_types_have_no_distance() -> None:
    with pytest.raises(ValueError, match="float16"):
        drift(np.zeros(2, np.float32), np.zeros(2, np.float16))


# Faults
SUMS = Case((Feature(rows=9, dim=4, bags=(Bag((Lookup(1, 3), Lookup(2))), Bag((Lookup(5),)))),), seed=3)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
@pytest.mark.parametrize("regime", [Regime.INTEGERS, Regime.UNIFORM])
def test_a_fault_in_a_result_is_judged_wrong(fault: Fault, regime: Regime) -> None:
    kernel = Right()
    case = msgspec.structs.replace(
        SUMS, weight_values=Values(regime), gradient_values=Values(Regime.INTEGERS, magnitude=4)
    )
    problem = materialise(case)
    right = kernel.run(problem)
    assert judge(problem, Arithmetic(), right).status is Status.PASSED
    changed = fault.change(problem, right)
    if fault.name in ("state_not_stored", "weights_shifted"):
        assert changed is None, "SGD without weights has no place for it"
    else:
        assert changed is not None
        assert judge(problem, Arithmetic(), changed).status is Status.FAILED
        assert judge(problem, Arithmetic(), right).status is Status.PASSED, "the right result is left alone"
