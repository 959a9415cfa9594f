"""From events to a result: a pure function, so that parts of a run, and shards, are put together by their events."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from equivcheck.case import CaseError
from equivcheck.engine.counts import RATIO_EDGES, TypeCounts
from equivcheck.engine.events import (
    AnyEvent,
    CaseCompared,
    CaseEnded,
    CaseRerun,
    Erred,
    FaultTried,
    Finished,
    Planned,
    SliceFinished,
    Stopped,
)
from equivcheck.engine.failures import Told
from equivcheck.gate.judgement import Evidence, judge
from equivcheck.gate.orders import key_of
from equivcheck.gate.result import (
    FORMAT_VERSION,
    Answer,
    Baseline,
    CoverageResult,
    Failure,
    PropertyResult,
    Result,
)
from equivcheck.recordings import Recordings
from equivcheck.refusals import reason_of
from equivcheck.report.summary import Summary
from equivcheck.store import load
from equivcheck.verdict import Status
from equivcheck.verification import Agreement

_DRIFT = (Agreement.BIT_EQUAL, Agreement.WITHIN, Agreement.OUTSIDE)
"""Where a difference is a drift: both results are judged, and the recorded one was right."""


def gather(
    events: Iterable[AnyEvent], folder: Path, accepted: frozenset[str] | None = None, *, whole: bool = False
) -> Result:
    """The result of a run's events.

    Parameters
    ----------
    events
        Of one run, of its parts one after the other, or of several shards.
    folder
        The gate's folder, to which the files of saved cases are relative.
    accepted
        Reasons for which the subject may refuse cases; None where none were recorded.
    whole
        Whether all shards should be there.
    """
    kept = _once(events)
    summary = Summary()
    for event in kept:
        summary(event)
    plans = [event for event in kept if isinstance(event, Planned)]
    mine = list(dict.fromkeys(key for plan in plans for key in (plan.every if whole else plan.mine)))
    done = {key_of(event) for event in kept} - {""}
    missing = [key for key in mine if key not in done and not key.startswith("test ")]
    pinned = plans[0].pinned if plans else {}
    subject = pinned.get("subject", "")
    planned, left = _slices(mine), _slices(missing)
    total = summary.total
    coverage = summary.of(subject)[2] if subject in summary.subjects else summary.of("")[2]
    largest = summary.collected.largest_case if summary.collected else 0
    reruns = [event for event in kept if isinstance(event, CaseRerun)]
    compared = [event for event in kept if isinstance(event, CaseCompared)]
    statuses = _statuses(total.statuses, reruns, compared)
    reasons_given: Counter[str] = Counter()
    for reason, number in total.unsupported.items():
        reasons_given[reason_of(reason)] += number
    result = Result(
        equivcheck_result=FORMAT_VERSION,
        answer=Answer.CANNOT_TELL,
        exit_code=2,
        sentence="",
        reasons=[],
        notes=[],
        finished=bool(plans) and not missing,
        subject=subject,
        witnesses=list(summary.collected.witnesses) if summary.collected else [],
        pinned=pinned,
        subject_versions=summary.collected.versions if summary.collected else {},
        shards=sorted({plan.shard for plan in plans}),
        tests=len(mine),
        done=len(mine) - len(missing),
        missing=missing,
        started=min((event.time for event in kept if hasattr(event, "time")), default=""),
        seconds=_seconds(kept),
        budget=max((plan.budget for plan in plans), default=0.0),
        judged=sum(statuses.values()) - statuses.get(Status.UNSUPPORTED, 0),
        statuses=statuses,
        properties=[
            PropertyResult(
                row.name,
                row.subject,
                planned[row.name] - left[row.name],
                planned[row.name],
                row.failed,
                row.seconds,
                row.counts,
            )
            for row in sorted(summary.rows.values(), key=lambda row: (row.name, row.subject))
            if row.name
        ],
        ratio_edges=list(RATIO_EDGES),
        types=_types(total.types),
        coverage=CoverageResult(
            coverage.cases,
            dict(sorted(coverage.drawn.items())),
            dict(sorted(coverage.judged.items())),
            dict(sorted(coverage.paths.items())),
            coverage.line(largest) if coverage.cases else "",
            largest,
        ),
        failures=_failures(kept, folder),
        findings=summary.replayed,
        reruns=sorted(reruns, key=lambda event: (event.source, event.name)),
        baseline=_baseline(pinned.get("baseline", ""), compared),
        faults=sorted((e for e in kept if isinstance(e, FaultTried)), key=lambda event: event.name),
        unsupported=dict(sorted(reasons_given.items(), key=lambda item: (-item[1], item[0]))),
        new_unsupported=[] if accepted is None else sorted(set(reasons_given) - accepted),
    )
    stopped = [event.reason for event in kept if isinstance(event, Stopped)]
    broken = summary.collected.broken if summary.collected else {}
    messages = [*summary.messages, *(f"{e.test}: {_last(e.message)}" for e in kept if isinstance(e, Erred))]
    judge(result, Evidence(stopped[-1:] if missing or not plans else [], messages, broken, accepted))
    return result


def _last(message: str) -> str:
    """The last line of a traceback that says something."""
    return (message.strip().splitlines() or ["no message"])[-1]


def _once(events: Iterable[AnyEvent]) -> list[AnyEvent]:
    """The events without a second report of the same test: a part that was ended while it wrote may have left one."""
    seen: set[str] = set()
    kept = []
    for event in events:
        key = key_of(event)
        if key and key in seen:
            continue
        seen.add(key)
        kept.append(event)
    return kept


def _slices(keys: list[str]) -> Counter[str]:
    return Counter(key.split(" ")[1] for key in keys if key.startswith("slice "))


def _statuses(found: dict[str, int], reruns: list[CaseRerun], compared: list[CaseCompared]) -> dict[str, int]:
    statuses = Counter(found)
    statuses.update(event.status.value for event in reruns)
    statuses.update(event.status.value for event in compared if event.agreement != Agreement.NOT_RUN)
    return dict(sorted(statuses.items()))


def _seconds(kept: Sequence[AnyEvent]) -> float:
    """What the tests took; where they did not come to their end, until the gate ended them."""
    finished = sum(event.seconds for event in kept if isinstance(event, Finished))
    return finished or max((event.seconds for event in kept if isinstance(event, Stopped)), default=0.0)


def _types(found: dict[str, TypeCounts]) -> dict[str, TypeCounts]:
    return {name: found[name] for name in ("fp32", "fp16", "bf16") if name in found}


def _failures(events: list[AnyEvent], folder: Path) -> list[Failure]:
    """Failures in the order in which they came, each saved case once: its name holds what failed and how."""
    found: dict[str, Failure] = {}
    for event in events:
        match event:
            case SliceFinished():
                source, subject, told = event.property, event.subject, event.failures
            case CaseEnded(earlier_run=False):
                source, subject, told = event.property or "first", event.subject, (event.failure,)
            case CaseRerun(failure=Told() as failure):
                source, subject, told = event.source, event.subject, (failure,)
            case CaseCompared(failure=Told() as failure):
                source, subject, told = "baseline", event.subject, (failure,)
            case _:
                continue
        for one in told:
            found.setdefault(Path(one.saved).name, _failure(source, subject, one, folder))
    return list(found.values())


def _failure(source: str, subject: str, told: Told, folder: Path) -> Failure:
    path = Path(told.saved)
    local = folder / "cases" / path.name
    file = local if local.is_file() else path
    try:
        saved = load(file)
        case = msgspec.json.decode((saved.failing_case or saved.case).to_json())
    except CaseError:
        case = {}
    script = folder / "scripts" / f"{path.stem}.py"
    replay = f"equivcheck replay {shlex.quote(str(local))}" if local.is_file() else told.replay
    return Failure(
        source,
        subject,
        told.symptom,
        told.status,
        f"cases/{path.name}" if local.is_file() else told.saved,
        f"cases/{Path(told.worst).name}" if (folder / "cases" / Path(told.worst).name).is_file() else told.worst,
        replay,
        told.text.removesuffix(told.replay) + replay if told.text.endswith(told.replay) else told.text,
        case,
        f"scripts/{script.name}" if script.is_file() else "",
    )


def _baseline(folder: str, compared: list[CaseCompared]) -> Baseline | None:
    if not folder and not compared:
        return None
    found = Baseline(folder)
    try:
        where = Recordings(Path(folder)).provenance
        found.subject, found.device, found.date, found.versions = (
            where.subject,
            where.device,
            where.date,
            where.versions,
        )
    except CaseError:  # merged on a machine that does not have them
        pass
    for event in compared:
        found.cases[event.agreement] = found.cases.get(event.agreement, 0) + 1
        if event.agreement in _DRIFT:
            found.elements += event.elements
            found.equal += event.equal
            found.above += event.above
            for name, number in event.ulps.items():
                found.ulps[name] = found.ulps.get(name, 0) + number
        if event.agreement != Agreement.BIT_EQUAL and event.agreement not in (Agreement.UNSUPPORTED, Agreement.NOT_RUN):
            found.changed.append(event)
    return found
