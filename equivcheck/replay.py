"""Replay a saved case: whether the subject still fails, and in the same way."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from equivcheck import isolation, runner, store
from equivcheck.backends.protocol import BackendUnavailable
from equivcheck.backends.registry import SubjectError, parse
from equivcheck.case import Case, CaseError
from equivcheck.engine.check import CaseFailed, Check, NotJudged, describe
from equivcheck.engine.counts import Counts
from equivcheck.engine.suite import find_property
from equivcheck.findings import FAILURES, Finding
from equivcheck.runner import Run, Subject, error_verdict
from equivcheck.store import Kind, Provenance, SavedCase
from equivcheck.verdict import Status, Verdict

NOT_HERE = "does not run here: "


class Result(enum.StrEnum):
    """What a replay says.

    FIXED: nothing is wrong now. SAME: what was recorded happened again. DIFFERENT: something else is wrong.
    UNSUPPORTED: the subject refuses the case, or does not run here. ERROR: the replay itself, or the adapter, raised.
    """

    FIXED = "fixed"
    SAME = "same"
    DIFFERENT = "different"
    UNSUPPORTED = "unsupported"
    ERROR = "error"


@dataclass(frozen=True)
class Replay:
    """All runs of one saved case.

    Attributes
    ----------
    result
        Of all runs together: SAME if any run was, then DIFFERENT, ERROR, UNSUPPORTED, FIXED.
    verdict
        Of the first run with that result.
    hits, runs
        How many of how many runs had that result.
    """

    saved: SavedCase
    result: Result
    verdict: Verdict
    hits: int
    runs: int


_ORDER = (Result.SAME, Result.DIFFERENT, Result.ERROR, Result.UNSUPPORTED, Result.FIXED)


def load(path: Path, subject: str | None) -> SavedCase:
    """A saved case, or a Case by itself, to be run on `subject` where one is given.

    Raises
    ------
    CaseError
        If the file holds neither, or a Case by itself comes without a subject.
    """
    fields = store.read_object(path)
    if "equivcheck_case" not in fields:
        saved = store.load(path)
        if subject is None:
            return saved
        return _on(saved, subject)
    if subject is None:
        raise CaseError(f"{path} holds a case that names no subject; say on which to run it: --subject NAME")
    try:
        case = Case.from_builtins(fields)
    except CaseError as error:
        raise CaseError(f"{path}: {error}") from None
    return SavedCase(case, Kind.DRAWN, Provenance(subject), Status.PASSED)


def replay(saved: SavedCase, folder: Path, times: int, time_limit: float) -> Replay:
    """Run a saved case `times` times, each in a process of its own; once, where a run takes too long or is refused."""
    if not is_file(saved.provenance.subject):
        isolation.prepare()
    seen: list[tuple[Result, Verdict]] = []
    while len(seen) < times:
        verdict = isolation.call(_once, (saved, folder, Path.cwd(), time_limit), time_limit)
        seen.append((compare(saved, verdict), verdict))
        if verdict.status in (Status.TIMEOUT, Status.UNSUPPORTED):
            break
    result = min((result for result, _ in seen), key=_ORDER.index)
    matching = [verdict for found, verdict in seen if found is result]
    return Replay(saved, result, matching[0], len(matching), len(seen))


def compare(saved: SavedCase, verdict: Verdict) -> Result:
    """What a verdict says about the record."""
    if verdict.status in (Status.PASSED, Status.MISTRUSTED):
        return Result.FIXED
    if verdict.status is Status.UNSUPPORTED:
        return Result.UNSUPPORTED
    recorded = store.as_verdict(saved)
    same = verdict.status is recorded.status and verdict.status in FAILURES
    if same and verdict.discrepancies and recorded.discrepancies:
        worst = recorded.discrepancies[0]
        same = any((d.tensor, d.symptom) == (worst.tensor, worst.symptom) for d in verdict.discrepancies)
    elif same and verdict.status is Status.ERROR:
        same = describe(verdict) == describe(recorded)
    if same:
        return Result.SAME
    return Result.ERROR if verdict.status is Status.ERROR and not verdict.discrepancies else Result.DIFFERENT


class Limited:
    """Runs cases in a process that is made for them, under a time limit."""

    def __init__(self, folder: Path | None, time_limit: float) -> None:
        self._folder = folder
        self._time_limit = time_limit

    def run(self, case: Case, subject: Subject, findings: tuple[Finding, ...]) -> Run:
        """Run a case."""
        return runner.run(
            case,
            subject,
            folder=self._folder,
            findings=findings,
            watch=lambda _: isolation.limited(self._time_limit),
            # A property may run its case twice, and a case that ends a process by design may do so only once in it.
            isolate=lambda case, name, folder: isolation.judge(case, name, folder, self._time_limit),
        )


def _once(saved: SavedCase, folder: Path, here: Path, time_limit: float) -> Verdict:
    """One run, as the property makes it, or judged alone where the property is not found."""
    where = saved.provenance
    subjects = []
    for name in filter(None, (where.subject, where.witness)):
        try:
            subjects.append(Subject.load(name))
        except (SubjectError, BackendUnavailable) as error:
            return Verdict(Status.UNSUPPORTED, reason=f"{name} {NOT_HERE}{error}")
    check = Check(subjects[0], subjects[1] if subjects[1:] else None, Counts(), (), Limited(folder, time_limit))
    try:
        declared = find_property(where.property, where.file, here) if where.property else None
        if declared is None:
            return check.run(saved.failing_case or saved.case, check.subject).verdict
        declared.body(saved.case, check)
    except NotJudged as refused:
        return Verdict(Status.UNSUPPORTED, reason=str(refused))
    except CaseFailed as failed:
        return failed.run.verdict
    except Exception as error:
        return error_verdict(error)
    return Verdict(Status.PASSED)


def is_file(subject: str) -> bool:
    """Whether a subject is a class in a file of the user's, and no name; a name that is malformed is neither."""
    try:
        return parse(subject).in_file is not None
    except SubjectError:
        return False


def _on(saved: SavedCase, subject: str) -> SavedCase:
    import msgspec

    return msgspec.structs.replace(saved, provenance=msgspec.structs.replace(saved.provenance, subject=subject))
