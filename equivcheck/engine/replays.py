"""The minimal cases of recorded findings, replayed in every run: each must still fail as it is recorded."""

from __future__ import annotations

from dataclasses import dataclass
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

SAME, FIXED, DIFFERENT = "same", "fixed", "different"


@dataclass(frozen=True)
class RecordedFinding:
    """A finding's minimal case on one subject, as a test sees it."""

    finding: Finding
    subject: str
    item: pytest.Item

    def must_fail_as_recorded(self) -> None:
        """Run the minimal case; red if it passes, or fails in another way."""
        verdict = self._verdict()
        result, message = compare(self.finding, verdict)
        self.item.stash[RESULT] = ReplayResult(self.finding.name, self.subject, result, message)
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


def compare(finding: Finding, verdict: Verdict) -> tuple[str, str]:
    """How the minimal case's verdict compares with the record: same, fixed or different, and a sentence."""
    if verdict.status in (Status.PASSED, Status.MISTRUSTED):
        return FIXED, "its minimal case passes: remove the finding, or narrow its versions"
    if verdict.status in FAILURES:
        problem = materialise(finding.case)
        if not finding.holds(problem):
            return DIFFERENT, "its minimal case does not have the traits that it names: correct the finding"
        if explain([finding], problem, verdict)[0].status is Status.KNOWN:
            return SAME, ""
    return DIFFERENT, f"its minimal case is {verdict.status.value} in another way than recorded: look at it anew"
