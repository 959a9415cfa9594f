"""Today's results beside recorded ones: the same bits, other bits within both bounds, or outside of them."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest

import numpy as np

from equivcheck.backends.protocol import isolation
from equivcheck.case import Case
from equivcheck.compare import judge
from equivcheck.findings import Finding
from equivcheck.formats import AnyArray
from equivcheck.outcome import Forward, Outcome, Update
from equivcheck.problem import materialise
from equivcheck.recordings import Record, Recordings
from equivcheck.runner import Run, Subject, run
from equivcheck.verdict import Status, Verdict

RIGHT = (Status.PASSED, Status.MISTRUSTED)


class Agreement(enum.StrEnum):
    """How a result of today agrees with the recorded one.

    BIT_EQUAL: in every element. WITHIN: some differ, and both results are within their bounds of the truth, so within
    the sum of them of each other. EITHER: one of them raised, and the contract allows both. OUTSIDE: some differ, and
    today's is wrong. NOT_COMPARED: some differ, and the recorded result was wrong itself. KNOWN: some differ, and
    findings explain what is wrong with today's. UNSUPPORTED: the subject does not take the case. NOT_RUN: the case may
    end the process.
    """

    BIT_EQUAL = "bit-equal"
    WITHIN = "within bounds"
    EITHER = "one raises, as it may"
    OUTSIDE = "outside"
    NOT_COMPARED = "recorded as wrong"
    KNOWN = "known to be wrong"
    UNSUPPORTED = "unsupported"
    NOT_RUN = "not run"


@dataclass(frozen=True)
class Comparison:
    """One case: the agreement, elements that were compared and had the same bits, and today's verdict."""

    case: Case
    agreement: Agreement
    elements: int
    equal: int
    verdict: Verdict


def danger(case: Case, subject: Subject, findings: Iterable[Finding]) -> str:
    """Why a case may end the process, by design or as a finding says; empty where it does not."""
    if reason := isolation(subject.backend, case):
        return reason
    mine = [f for f in findings if f.dangerous and f.concerns(subject.name, subject.versions)]
    problem = materialise(case) if mine else None
    met = next((f for f in mine if problem is not None and f.holds(problem)), None)
    return "" if met is None else f"it may end the process: {met.title}"


def record(
    cases: Iterable[Case], subject: Subject, findings: Iterable[Finding] = ()
) -> tuple[list[Record], dict[str, int]]:
    """Run cases on a subject, but those that may end the process.

    Returns
    -------
    records
        Of the cases that were run.
    refused
        The reasons for which the others have none, and how many.
    """
    findings = tuple(findings)
    records: list[Record] = []
    refused: dict[str, int] = {}
    for case in cases:
        dangerous = danger(case, subject, findings)
        if dangerous:
            refused[dangerous] = refused.get(dangerous, 0) + 1
            continue
        done = run(case, subject)
        if done.problem is None or done.outcome is None or done.arithmetic is None:
            reason = done.verdict.reason.strip().rpartition("\n")[2]
            refused[reason] = refused.get(reason, 0) + 1
            continue
        records.append(Record(case, done.problem, done.arithmetic, done.outcome, done.verdict.status))
    return records, refused


def verify(
    recordings: Recordings,
    subject: Subject,
    findings: Iterable[Finding] = (),
    cases: Iterable[Case] | None = None,
) -> Iterator[Comparison]:
    """Run recorded cases on a subject, all or `cases`, but those that may end the process, and compare."""
    findings = tuple(findings)
    for case in recordings.cases if cases is None else cases:
        if reason := danger(case, subject, findings):
            yield Comparison(case, Agreement.NOT_RUN, 0, 0, Verdict(Status.UNSUPPORTED, reason=reason))
            continue
        yield compare(recordings, run(case, subject, findings=findings))


def compare(recordings: Recordings, today: Run) -> Comparison:
    """Lay a result of today beside the recorded one of the same case."""
    if today.problem is None or today.outcome is None:
        unsupported = today.verdict.status is Status.UNSUPPORTED
        agreement = Agreement.UNSUPPORTED if unsupported else Agreement.OUTSIDE
        return Comparison(today.case, agreement, 0, 0, today.verdict)
    problem, entry = today.problem, recordings.entry(today.case)
    recorded = recordings.outcome(problem)
    elements = equal = 0
    same_shapes = True
    for ours, theirs in pairs(today.outcome, recorded):
        if ours is None or theirs is None or ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            same_shapes = False
            continue
        elements += ours.size
        equal += _equal(ours, theirs)
    raises = (today.outcome.raised is None) == (recorded.raised is None)
    if same_shapes and raises and equal == elements:
        agreement = Agreement.BIT_EQUAL
    elif entry is None or entry.status not in RIGHT or judge_again(recordings, today) not in RIGHT:
        agreement = Agreement.NOT_COMPARED
    elif today.verdict.status is Status.KNOWN:
        agreement = Agreement.KNOWN
    elif not raises and today.right:
        agreement = Agreement.EITHER
    elif same_shapes and raises and today.right:
        agreement = Agreement.WITHIN
    else:
        agreement = Agreement.OUTSIDE
    return Comparison(today.case, agreement, elements, equal, today.verdict)


def judge_again(recordings: Recordings, today: Run) -> Status:
    """Status of the recorded result under the bounds of today: a truth or a bound may have been mended since."""
    assert today.problem is not None
    recorded = recordings.outcome(today.problem)
    return judge(today.problem, recordings.arithmetic(today.case), recorded).status


def pairs(today: Outcome, recorded: Outcome) -> Iterator[tuple[AnyArray | None, AnyArray | None]]:
    """Arrays of the same meaning in two results; None where one of them has none."""
    for ours, theirs in zip_longest(today.results, recorded.results):
        if isinstance(ours, Forward) and isinstance(theirs, Forward):
            yield ours.output, theirs.output
        elif isinstance(ours, Update) and isinstance(theirs, Update):
            for name in ("tables", "momentum1", "momentum2"):
                yield from zip_longest(getattr(ours.after, name), getattr(theirs.after, name))
            if ours.weight_gradient is not None or theirs.weight_gradient is not None:
                yield ours.weight_gradient, theirs.weight_gradient
        else:
            yield None, None


def _equal(ours: AnyArray, theirs: AnyArray) -> int:
    """Elements with the same bits; -0 equals +0 and NaN equals NaN, as for exact data."""
    left, right = ours.astype(np.float64), theirs.astype(np.float64)
    return int(((left == right) | (np.isnan(left) & np.isnan(right))).sum())
