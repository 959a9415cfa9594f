"""What changed between two results of a gate, or between two recordings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from equivcheck import verification
from equivcheck.case import Case, CaseError
from equivcheck.drift import Drift, drift
from equivcheck.gate.result import Result, read
from equivcheck.problem import materialise
from equivcheck.recordings import Recordings

_RATIO = 0.1
"""Worst errors, as shares of their bounds, that differ by less are no change: other cases give others."""


class Change(msgspec.Struct, frozen=True):
    """One thing that changed: of which kind it is, its name, and how it was and is; empty where it was not there.

    `worse` says that somebody should look at it before the second goes live.
    """

    kind: str
    name: str
    before: str
    after: str
    worse: bool = False


class Difference(msgspec.Struct, frozen=True):
    """Everything that changed from `first` to `second`, and for recordings how far their elements lie apart."""

    first: str
    second: str
    changes: tuple[Change, ...]
    drift: Drift | None = None


def difference(first: Path, second: Path) -> Difference:
    """Compare two results or two recordings.

    Raises
    ------
    CaseError
        If a path holds neither, or they are of different kinds.
    """
    kinds = [_is_recording(path) for path in (first, second)]
    if kinds[0] != kinds[1]:
        raise CaseError(f"one of {first} and {second} holds recordings, the other a result; give two of a kind")
    if kinds[0]:
        changes, total = _recordings(Recordings(first), Recordings(second))
        return Difference(str(first), str(second), tuple(changes), total)
    return Difference(str(first), str(second), tuple(_results(read(first), read(second))))


def _is_recording(path: Path) -> bool:
    return (path / "manifest.json").is_file()


def _results(one: Result, two: Result) -> list[Change]:
    found: list[Change] = []
    if one.answer != two.answer:
        found.append(Change("answer", "answer", one.answer, two.answer, two.exit_code > 0))
    versions = (_flat(one), _flat(two))
    found += _apart("pinned", *versions)
    failures = ({f"{f.source}: {f.symptom}": f.status.value for f in r.failures} for r in (one, two))
    found += _apart("failure", *failures, added_is_worse=True)
    findings = ({f.finding: f.result for f in r.findings} for r in (one, two))
    found += _apart("finding", *findings, added_is_worse=True)
    found += _properties(one, two)
    found += _apart(
        "earlier case",
        {f"{r.source} {r.name}": r.status.value for r in one.reruns},
        {f"{r.source} {r.name}": r.status.value for r in two.reruns},
    )
    refused = (dict.fromkeys(result.unsupported, "refused") for result in (one, two))
    found += _apart("refusal", *refused, added_is_worse=True)
    reached = ({name: "reached" for name, n in r.coverage.judged.items() if n} for r in (one, two))
    found += _apart("coverage", *reached, lost_is_worse=True)
    paths = (dict.fromkeys(result.coverage.paths, "taken") for result in (one, two))
    found += _apart("path", *paths)
    found += _apart("fault", *({f.name: _seen(f.caught, f.refused) for f in r.faults} for r in (one, two)))
    bits = [
        {c.name: c.agreement for c in result.baseline.changed} if result.baseline is not None else {}
        for result in (one, two)
    ]
    found += _apart("baseline", *bits, added_is_worse=True)
    return found


def _properties(one: Result, two: Result) -> list[Change]:
    found = []
    before, after = ({part.name: part for part in result.properties} for result in (one, two))
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            was, now = ("not run", "run") if old is None else ("run", "not run")
            found.append(Change("property", name, was, now, new is None))
            continue
        ratios = old.counts.sums.worst_ratio, new.counts.sums.worst_ratio
        if abs(ratios[1] - ratios[0]) > _RATIO:
            was, now = (f"worst error {ratio:.3g} of its bound" for ratio in ratios)
            found.append(Change("property", name, was, now, ratios[1] > max(1.0, ratios[0])))
        if old.doubt != new.doubt:
            found.append(Change("property", name, old.doubt, new.doubt, bool(new.doubt)))
    return found


def _flat(result: Result) -> dict[str, str]:
    own = result.subject_versions.get(result.subject, {})
    return {**result.pinned, **{f"subject's {name}": version for name, version in own.items()}}


def _seen(caught: bool, refused: str) -> str:
    return "no place for it" if refused else "seen" if caught else "not seen"


def _apart(
    kind: str,
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    added_is_worse: bool = False,
    lost_is_worse: bool = False,
) -> list[Change]:
    found = []
    for name in dict.fromkeys((*before, *after)):
        old, new = before.get(name, ""), after.get(name, "")
        if old != new:
            worse = (added_is_worse and bool(new)) or (lost_is_worse and not new)
            found.append(Change(kind, name, old, new, worse))
    return found


def _recordings(one: Recordings, two: Recordings) -> tuple[list[Change], Drift]:
    total = Drift()
    where = [
        {"subject": p.subject, "device": p.device, "driver": p.driver, **p.versions}
        for p in (one.provenance, two.provenance)
    ]
    found = _apart("provenance", *where)
    cases = dict.fromkeys((*one.cases, *two.cases))
    for case in cases:
        left, right = one.entry(case), two.entry(case)
        if left is None or right is None:
            was, now = ("", "recorded") if left is None else ("recorded", "")
            found.append(Change("case", case.digest, was, now, right is None))
            continue
        if left.status is not right.status:
            found.append(Change("status", case.digest, left.status.value, right.status.value))
        apart = _between(one, two, case)
        if apart is None:
            found.append(Change("case", case.digest, "", "results of other shapes", True))
        elif apart.equal < apart.elements:
            total.add(apart)
            far = ", ".join(f"{number} at {name} ulps" for name, number in apart.ulps.items() if name != "0")
            found.append(Change("bits", case.digest, "", f"{apart.elements - apart.equal} of {apart.elements}: {far}"))
        else:
            total.add(apart)
    return found, total


def _between(one: Recordings, two: Recordings, case: Case) -> Drift | None:
    problem = materialise(case)
    total = Drift()
    for left, right in verification.pairs(two.outcome(problem), one.outcome(problem)):
        if left is None or right is None or left.shape != right.shape or left.dtype != right.dtype:
            return None
        total.add(drift(left, right))
    return total
