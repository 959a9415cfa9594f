"""The tests that a gate runs beside the suite: saved failures, golden cases, the baseline, and faults put in.

pytest collects this file in the gate's child process. Every case is journalled and limited in time like the suite's.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec
import pytest

from equivcheck import store, verification
from equivcheck.case import Case
from equivcheck.drift import Drift, drift
from equivcheck.engine import show
from equivcheck.engine.check import CaseFailed, Check, EndedBefore, NotJudged, describe
from equivcheck.engine.counts import Counts
from equivcheck.engine.events import CaseCompared, CaseRerun, FaultTried
from equivcheck.engine.failures import Told
from equivcheck.engine.subjects import load_subject, load_witness
from equivcheck.engine.suite import find_property
from equivcheck.engine.worker import JournalGuard, Worker, worker_of
from equivcheck.findings import FAILURES, explain
from equivcheck.gate import orders as keys
from equivcheck.gate import proof
from equivcheck.gate.orders import GOLDEN, SAVED
from equivcheck.gate.plugin import ARGUMENT, EVENT, orders_of
from equivcheck.golden import read_cases
from equivcheck.recordings import Recordings
from equivcheck.runner import Run, Subject
from equivcheck.store import Kind, Provenance, SavedCase
from equivcheck.verdict import Status, Verdict
from equivcheck.verification import Agreement

_TIMES = 3
"""Runs of a saved failure: one that fails every other time is seen with a probability of 7/8."""


@dataclass(frozen=True)
class Again:
    """A case that was there before: `source` and `name` tell it apart, `path` is its file where it has one."""

    source: str
    name: str
    subject: str
    saved: SavedCase
    path: Path | None = None

    @property
    def key(self) -> str:
        """As the gate knows it."""
        return keys.rerun_key(self.source, self.name)


@dataclass(frozen=True)
class RecordedCase:
    """A case that the baseline has a result for."""

    folder: Path
    case: Case
    subject: str

    @property
    def key(self) -> str:
        """As the gate knows it."""
        return keys.recorded_key(self.case.digest)


@dataclass(frozen=True)
class Injected:
    """A fault that is put into the subject's results, or into its source."""

    fault: proof.AnyFault
    subject: str

    @property
    def key(self) -> str:
        """As the gate knows it."""
        return keys.fault_key(self.fault.name)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test a case, on the subject of the run; none on one that does not work."""
    worker, orders = worker_of(metafunc.config), orders_of(metafunc.config)
    found: list[Again | RecordedCase | Injected] = []
    for subject in worker.roster.subjects:
        if subject in worker.roster.broken:
            continue
        match metafunc.function.__name__:
            case "test_saved":
                found += [_saved(Path(file), subject) for file in orders.saved]
            case "test_golden":
                found += _golden(Path(orders.golden), subject) if orders.golden else []
            case "test_recorded" if orders.baseline:
                folder = Path(orders.baseline)
                found += [RecordedCase(folder, case, subject) for case in _recordings(folder).cases]
            case "test_fault" if orders.faults:
                found += [Injected(fault, subject) for fault in proof.sample(subject)]
    metafunc.parametrize(ARGUMENT, found, ids=[part.key.partition(" ")[2] for part in found])


def test_saved(gate_case: Again, request: pytest.FixtureRequest) -> None:
    """What once failed is right now."""
    _again(gate_case, request.node, _TIMES)


def test_golden(gate_case: Again, request: pytest.FixtureRequest) -> None:
    """A curated case is right."""
    _again(gate_case, request.node, 1)


def test_recorded(gate_case: RecordedCase, request: pytest.FixtureRequest) -> None:
    """Today's result lies within the bounds, wherever it differs from the recorded one."""
    item, case = request.node, gate_case.case
    worker, subject = worker_of(item.config), load_subject(gate_case.subject)
    provenance = worker.provenance(subject, "", item.path)
    name = case.digest
    findings = worker.findings_on(subject)
    if reason := verification.danger(case, subject, findings):
        item.stash[EVENT] = CaseCompared(name, subject.name, Agreement.NOT_RUN, reason=reason)
        return
    try:
        run = JournalGuard(worker, provenance, item.nodeid).run(case, subject, findings)
    except EndedBefore as ended:
        item.stash[EVENT] = CaseCompared(name, subject.name, Agreement.OUTSIDE, status=ended.status)
        pytest.fail(f"the process ended at recorded case {name}", pytrace=False)
    found = verification.compare(_recordings(gate_case.folder), run)
    apart = _apart(gate_case.folder, run)
    outside = found.agreement is Agreement.OUTSIDE
    told = _told(run, worker, provenance, "baseline", SavedCase(case, Kind.DRAWN, provenance, Status.PASSED))
    item.stash[EVENT] = CaseCompared(
        name,
        subject.name,
        found.agreement,
        found.elements,
        found.equal,
        apart.above,
        apart.ulps,
        run.verdict.status,
        _first_line(run.verdict.reason),
        told if outside else None,
    )
    if outside:
        pytest.fail(told.text, pytrace=False)


def test_fault(gate_case: Injected, request: pytest.FixtureRequest) -> None:
    """A fault that is put in is seen, and the results without it are right."""
    item, fault = request.node, gate_case.fault
    worker, subject = worker_of(item.config), load_subject(gate_case.subject)
    findings = worker.findings_on(subject)
    judged = proof.judged_with(fault, subject, worker.options.time_limit)
    guard = JournalGuard(worker, worker.provenance(subject, "", item.path), item.nodeid)
    tried, symptom, control = 0, "", ""
    for run in proof.right_runs(subject, guard, findings):
        verdict = judged(run)
        if verdict is None:
            continue
        tried += 1
        if verdict.status in FAILURES:
            assert run.problem is not None
            verdict, _ = explain([f for f in findings if f.holds(run.problem)], run.problem, verdict)
        if verdict.status in FAILURES:
            symptom = describe(verdict)
            again = guard.run(run.case, subject, ()).verdict.status
            control = "" if again in verification.RIGHT else f"without the fault it is {again.value} too"
            break
        if tried == proof.MOST_CASES:
            break
    refused = "" if tried else f"{subject.name} takes no case that has a place for it"
    event = FaultTried(fault.name, proof.title(fault), subject.name, bool(symptom), tried, symptom, control, refused)
    item.stash[EVENT] = event


def _again(again: Again, item: pytest.Item, times: int) -> None:
    worker, subject = worker_of(item.config), load_subject(again.subject)
    start = time.monotonic()
    today = worker.provenance(subject, "", item.path)
    provenance = msgspec.structs.replace(
        again.saved.provenance, subject=today.subject, versions=today.versions, commit=today.commit, date=today.date
    )
    folder = again.path.parent if again.path is not None else None
    run: Run | None = None
    for _ in range(times):
        guard = JournalGuard(worker, provenance, item.nodeid, folder)
        run = _judged(again.saved, subject, guard, worker)
        if run.verdict.status in (*FAILURES, Status.UNSUPPORTED):
            break
    assert run is not None
    status, reason = run.verdict.status, _first_line(run.verdict.reason)
    ended = status in (Status.CRASHED, Status.TIMEOUT) and not run.verdict.reason
    failed = status in FAILURES and not ended
    told = _told(run, worker, provenance, again.source, again.saved, folder) if failed else None
    seconds = time.monotonic() - start
    item.stash[EVENT] = CaseRerun(
        again.source, again.name, subject.name, status, seconds, reason, told, again.saved.status
    )
    if told is not None:
        pytest.fail(told.text, pytrace=False)
    if ended:
        pytest.fail(f"the process ended at {again.source} case {again.name}", pytrace=False)


def _judged(saved: SavedCase, subject: Subject, guard: JournalGuard, worker: Worker) -> Run:
    """The saved case as its property makes it, or judged alone where there is none."""
    where = saved.provenance
    try:
        witness = load_witness(where.witness) if where.witness else None
    except Exception as error:  # the witness of that day need not run here
        reason = f"its witness {where.witness} does not run here: {error}"
        return Run(saved.case, subject.name, Verdict(Status.UNSUPPORTED, reason=reason))
    check = Check(subject, witness, Counts(), worker.findings_on(subject), guard)
    declared = find_property(where.property, where.file, worker.here) if where.property else None
    try:
        if declared is None:
            return check(saved.failing_case or saved.case)
        declared.body(saved.case, check)
    except EndedBefore as ended:
        return Run(saved.case, subject.name, Verdict(ended.status))
    except NotJudged as refused:
        return Run(saved.case, subject.name, Verdict(Status.UNSUPPORTED, reason=str(refused)))
    except CaseFailed as failed:
        return failed.run
    known = Status.KNOWN if check.counts.statuses.get(Status.KNOWN) else Status.PASSED
    return Run(saved.case, subject.name, Verdict(known, reason=", ".join(check.counts.findings)))


def _told(
    run: Run, worker: Worker, provenance: Provenance, source: str, saved: SavedCase, folder: Path | None = None
) -> Told:
    """Save what failed under the name that it had, and describe it."""
    if run.verdict.status not in FAILURES:
        return Told("", run.verdict.status, "", "", "", "")
    failing = run.case if run.case != saved.case else None
    verdict = run.verdict
    document = SavedCase(
        saved.case, saved.kind, provenance, verdict.status, verdict.reason, verdict.discrepancies, failing
    )
    path = store.save(document, worker.options.failures_folder, folder)
    shown = path.relative_to(worker.here) if path.is_relative_to(worker.here) else path
    replay = f"equivcheck replay {shown}"
    symptom = describe(verdict)
    lines = [f"{source} case on {run.subject}: {symptom}", "", show.python_source(run.case)]
    lines += [run.case.to_json().decode(), "", *show.failure(run.case, verdict), "", replay]
    return Told(symptom, verdict.status, str(path), str(path), replay, "\n".join(lines))


def _apart(folder: Path, run: Run) -> Drift:
    total = Drift()
    if run.problem is None or run.outcome is None:
        return total
    for ours, theirs in verification.pairs(run.outcome, _recordings(folder).outcome(run.problem)):
        if ours is not None and theirs is not None and ours.shape == theirs.shape and ours.dtype == theirs.dtype:
            total.add(drift(ours, theirs))
    return total


@cache
def _recordings(folder: Path) -> Recordings:
    return Recordings(folder)


def _saved(path: Path, subject: str) -> Again:
    saved = store.load(path)
    where = saved.provenance
    if where.subject != subject:  # another's failure is a case like any other
        saved = msgspec.structs.replace(saved, provenance=msgspec.structs.replace(where, subject=subject))
    return Again(SAVED, path.stem, subject, saved, path)


def _golden(path: Path, subject: str) -> list[Again]:
    return [
        Again(GOLDEN, case.digest, subject, SavedCase(case, Kind.DRAWN, Provenance(subject), Status.PASSED))
        for case in read_cases(path)
    ]


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
