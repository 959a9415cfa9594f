"""The minimal cases of recorded findings, replayed in every run: each must still fail as it is recorded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from equivcheck import isolation
from equivcheck.engine import show
from equivcheck.engine.check import CaseFailed, Check, NotJudged
from equivcheck.engine.counts import Counts
from equivcheck.engine.hunt import RESULT, ReplayResult
from equivcheck.engine.subjects import load_subject
from equivcheck.engine.suite import PREFIX, find_property
from equivcheck.engine.worker import JournalGuard, worker_of
from equivcheck.findings import FAILURES, Finding, FindingError, explain
from equivcheck.problem import materialise
from equivcheck.verdict import Status, Verdict

SAME, FIXED, DIFFERENT, NOT_APPLICABLE = "same", "fixed", "different", "not applicable"


@dataclass(frozen=True)
class RecordedFinding:
    """A finding's minimal case on one subject, as a test sees it."""

    finding: Finding
    subject: str
    item: pytest.Item

    def must_fail_as_recorded(self) -> None:
        """Run the minimal case; red if it passes, or fails in another way; skipped where a variant does not take it."""
        verdict = self._verdict()
        worker, result, message = worker_of(self.item.config), NOT_APPLICABLE, verdict.reason
        if verdict.status is not Status.UNSUPPORTED or not also_without_variants(self.finding, self.subject):
            others = worker.findings_on(load_subject(self.subject))
            result, message = compare(self.finding, verdict, others)
        self.item.stash[RESULT] = ReplayResult(self.finding.name, self.subject, result, message)
        if result == NOT_APPLICABLE:
            pytest.skip(f"{self.subject} does not take the minimal case of {self.finding.name}: {message}")
        if result != SAME:
            lines = [f"finding {self.finding.name} ({self.finding.title}) on {self.subject}: {message}"]
            lines += ["", show.python_source(self.finding.case), self.finding.case.to_json().decode(), ""]
            pytest.fail("\n".join([*lines, *show.failure(self.finding.case, verdict)]), pytrace=False)

    def _verdict(self) -> Verdict:
        worker = worker_of(self.item.config)
        if self.finding.dangerous:
            return isolation.judge(self.finding.case, self.subject, None, worker.options.time_limit)
        subject = load_subject(self.subject)
        provenance = worker.provenance(subject, "", self.item.path)
        guard = JournalGuard(worker, provenance, self.item.nodeid)
        if not self.finding.shown_by:
            return guard.run(self.finding.case, subject, ()).verdict
        return judged_by(self.finding, Check(subject, None, Counts(), (), guard), worker.here)


def judged_by(finding: Finding, check: Check, here: Path) -> Verdict:
    """The verdict of the property that shows a finding.

    Raises
    ------
    FindingError
        If the suite has no such property.
    """
    file, _, name = finding.shown_by.partition("::")
    declared = find_property(name.removeprefix(PREFIX), file, here)
    if declared is None:
        raise FindingError(f"finding {finding.name} is shown by {finding.shown_by!r}, which the suite does not have")
    try:
        declared.body(finding.case, check)
    except NotJudged as refused:
        return Verdict(Status.UNSUPPORTED, reason=str(refused))
    except CaseFailed as failed:
        return failed.run.verdict
    return Verdict(Status.PASSED)


def also_without_variants(finding: Finding, subject: str) -> bool:
    """Whether `subject` is a variant of one that the finding concerns, too, and that has to show it."""
    plain, plus, _ = subject.partition("+")
    return bool(plus) and fnmatchcase(plain, finding.subject)


def compare(finding: Finding, verdict: Verdict, others: Sequence[Finding] = ()) -> tuple[str, str]:
    """How the minimal case's verdict compares with the record.

    Parameters
    ----------
    others
        The findings that concern the subject. A variant may have faults that the case meets beside this one.

    Returns
    -------
    result
        Same, fixed or different.
    message
        A sentence, but for same.
    """
    if verdict.status in (Status.PASSED, Status.MISTRUSTED):
        return FIXED, "its minimal case passes: remove the finding, or narrow its versions"
    if verdict.status in FAILURES:
        problem = materialise(finding.case)
        if not finding.holds(problem):
            return DIFFERENT, "its minimal case does not have the traits that it names: correct the finding"
        explained, names = explain([finding, *(other for other in others if other != finding)], problem, verdict)
        if explained.status is Status.KNOWN and finding.name in names:
            return SAME, ""
    return DIFFERENT, f"its minimal case is {verdict.status.value} in another way than recorded: look at it anew"
