"""Replay recorded findings: whether each still shows on its system as it is recorded.

A saved case is hoped to be mended. A finding is a statement about a system at some versions, and holds as long as its
minimal case fails with the recorded symptom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from equivcheck import isolation
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.backends.registry import SubjectError
from equivcheck.engine import replays
from equivcheck.engine.check import Check
from equivcheck.engine.counts import Counts
from equivcheck.engine.placement import driver
from equivcheck.findings import Finding, built_in_folder, load_findings
from equivcheck.replay import NOT_HERE, Limited, Result, is_file
from equivcheck.runner import Subject
from equivcheck.verdict import Status, Verdict

_RESULTS = {replays.SAME: Result.SAME, replays.FIXED: Result.FIXED, replays.DIFFERENT: Result.DIFFERENT}


@dataclass(frozen=True)
class Shown:
    """A finding's minimal case on one subject.

    Attributes
    ----------
    result
        SAME: it shows as it is recorded. FIXED: it passes. DIFFERENT: it fails in another way. UNSUPPORTED: the
        subject refuses the case, or does not run here.
    message
        What to do about it, or why it says nothing; empty for SAME.
    verdict
        Of the last run.
    runs
        Runs that it took: one that does not show at once runs again.
    expected
        Whether the subject is of the versions that the finding is recorded for.
    """

    finding: Finding
    subject: str
    result: Result
    message: str
    verdict: Verdict
    runs: int
    expected: bool = True

    @property
    def wrong(self) -> bool:
        """Whether the finding no longer says the truth. That other versions are right is what it says."""
        return self.result is Result.DIFFERENT or (self.result is Result.FIXED and self.expected)

    @property
    def open(self) -> bool:
        """Whether nothing was found out. A variant need not take a case that the system without it shows."""
        return self.result is Result.UNSUPPORTED and not replays.also_without_variants(self.finding, self.subject)


def chosen(subject: str | None) -> tuple[tuple[Finding, str], ...]:
    """The findings that come with equivcheck, each with the subject that it is replayed on.

    Parameters
    ----------
    subject
        Those whose pattern it matches, on it. None for all, each on the system that its pattern means.
    """
    folder = built_in_folder()
    found = load_findings([folder]) if folder is not None else ()
    if subject is None:
        return tuple((finding, subject_of(finding)) for finding in found)
    return tuple((finding, subject) for finding in found if fnmatchcase(subject, finding.subject))


def subject_of(finding: Finding) -> str:
    """The plainest subject that a finding's pattern means.

    `fbgemm-cuda*` is `fbgemm-cuda`, `fbgemm-cuda*v2*` is `fbgemm-cuda+v2`; `torch:*+inductor` is `torch:cuda+inductor`
    on a machine with a GPU, and `torch:cpu+inductor` elsewhere.
    """
    device = "cuda" if driver() else "cpu"
    return finding.subject.replace(":*", f":{device}").rstrip("*").replace("*", "+")


def replay(wanted: Iterable[tuple[Finding, str]], times: int, time_limit: float) -> Iterator[Shown]:
    """Replay findings, in order.

    Those of one subject that may not end their process run in one together, since a process that uses a GPU takes
    seconds to start. What does not show there is run alone, up to `times` times: an earlier case may have left the
    device unusable.
    """
    several: dict[str, list[Finding]] = {}
    for finding, subject in wanted:
        several.setdefault(subject, []).append(finding)
    for subject, findings in several.items():
        if not is_file(subject):
            isolation.prepare()
        together = [finding for finding in findings if not finding.dangerous]
        verdicts: dict[str, Verdict] = {}
        if len(together) > 1:
            arguments = (tuple(together), subject, Path.cwd(), time_limit)
            found = isolation.call(_run, arguments, time_limit * len(together))
            if not isinstance(found, Verdict):
                verdicts = found
        for finding in findings:
            yield _shown(finding, subject, verdicts.get(finding.name), times, time_limit)


def _shown(finding: Finding, subject: str, first: Verdict | None, times: int, time_limit: float) -> Shown:
    verdict, runs = first, 0 if first is None else 1
    while True:
        if verdict is not None:
            result, message, expected = _compared(finding, subject, verdict, time_limit)
            if runs >= times or result in (Result.SAME, Result.UNSUPPORTED) or verdict.status is Status.TIMEOUT:
                return Shown(finding, subject, result, message, verdict, runs, expected)
        verdict, runs = _alone(finding, subject, time_limit), runs + 1


def _alone(finding: Finding, subject: str, time_limit: float) -> Verdict:
    found = isolation.call(_run, ((finding,), subject, Path.cwd(), time_limit), time_limit)
    return found if isinstance(found, Verdict) else found[finding.name]


def _compared(finding: Finding, subject: str, verdict: Verdict, time_limit: float) -> tuple[Result, str, bool]:
    """Result, message, and whether the subject is of the finding's versions."""
    if verdict.status is Status.UNSUPPORTED:
        return Result.UNSUPPORTED, verdict.reason, True
    versions = _versions(subject, time_limit)
    others = [other for other, _ in chosen(subject) if other.concerns(subject, versions)]
    compared, message = replays.compare(finding, verdict, others)
    result = _RESULTS[compared]
    if finding.concerns(subject, versions):
        return result, message, True
    recorded = ", ".join(f"{name} {wanted}" for name, wanted in finding.versions.items())
    elsewhere = {
        Result.FIXED: "its minimal case passes here, as that says",
        Result.SAME: "it shows here, too: widen its versions",
    }
    told = elsewhere.get(result, message)
    return result, f"it is recorded for {finding.subject} with {recorded}; {told}", False


def _run(findings: Sequence[Finding], subject: str, here: Path, time_limit: float) -> dict[str, Verdict]:
    """Verdicts on minimal cases, each judged alone or by the property that shows it. Runs in a process of its own."""
    try:
        loaded = Subject.load(subject)
    except (SubjectError, BackendUnavailable) as error:
        missing = Verdict(Status.UNSUPPORTED, reason=f"{subject} {NOT_HERE}{error}")
        return {finding.name: missing for finding in findings}
    found: dict[str, Verdict] = {}
    for finding in findings:
        check = Check(loaded, None, Counts(), (), Limited(None, time_limit))
        if finding.shown_by:
            found[finding.name] = replays.judged_by(finding, check, here)
        else:
            found[finding.name] = check.run(finding.case, loaded).verdict
    return found


@cache
def _versions(subject: str, time_limit: float) -> dict[str, str]:
    """A subject's versions, asked for in a process of its own: no device is started in this one."""
    found = isolation.call(_ask_versions, (subject,), time_limit)
    return {} if isinstance(found, Verdict) else found


def _ask_versions(subject: str) -> dict[str, str]:
    return dict(Subject.load(subject).versions)
