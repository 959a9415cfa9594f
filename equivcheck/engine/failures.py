"""Failures of a slice: the shrunk and the worst case of each symptom, saved and told."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from pathlib import Path

import msgspec

from equivcheck import store
from equivcheck.case import Case
from equivcheck.engine import show
from equivcheck.runner import Run
from equivcheck.store import Kind, Provenance, SavedCase
from equivcheck.verdict import Status


class Told(msgspec.Struct, frozen=True):
    """A failure as it is reported: what failed, where it is saved, and the text that a person reads."""

    symptom: str
    status: Status
    saved: str
    worst: str
    replay: str
    text: str


@dataclass
class Failure:
    """All failing runs of one symptom.

    Hypothesis runs the minimal case of each symptom once more, last; so the last run is the shrunk one. Shrinking a
    float error stops just above its bound and looks harmless; so the worst run is kept beside it.
    """

    symptom: str
    last: tuple[Case, Run]
    worst: tuple[Case, Run]

    def add(self, case: Case, run: Run) -> None:
        """Keep a further run of the symptom."""
        self.last = (case, run)
        if _size(run) > _size(self.worst[1]):
            self.worst = (case, run)


def tell(
    failure: Failure, title: str, sentence: str, provenance: Provenance, folder: Path, shrunk: bool, here: Path
) -> Told:
    """Save a failure's cases in `folder` and describe it; the last line is the command that replays it."""
    kind = Kind.SHRUNK if shrunk else Kind.DRAWN
    path = store.save(_saved(*failure.last, kind, provenance), folder)
    worst = path
    if failure.worst[0] != failure.last[0] and failure.worst[1].verdict.discrepancies:
        worst = store.save(_saved(*failure.worst, Kind.WORST, provenance), folder)
    case, run = failure.last
    lines = [f"{title}: {failure.symptom}"]
    lines += [f"  {line}" for line in sentence.splitlines()]
    lines += ["", f"{kind.value} case:", show.python_source(case), case.to_json().decode(), ""]
    if run.case != case:
        lines += ["the property ran it as:", show.python_source(run.case), ""]
    lines += show.failure(run.case, run.verdict)
    if worst != path:
        lines += ["", f"worst case seen: {_worst(failure)}, saved as {_short(worst, here)}"]
    replay = f"equivcheck replay {shlex.quote(_short(path, here))}"
    lines += ["", replay]
    return Told(failure.symptom, run.verdict.status, str(path), str(worst), replay, "\n".join(lines))


def tell_death(saved: SavedCase, folder: Path, here: Path) -> Told:
    """The same for a case at which the process ended."""
    path = store.save(saved, folder)
    replay = f"equivcheck replay {shlex.quote(_short(path, here))}"
    where = saved.provenance
    slice_ = "" if where.slice is None else f", slice {where.slice}"
    lines = [
        f"{where.property or 'case'} on {where.subject}{slice_}: {saved.status.value}",
        "",
        "case as drawn:",
        show.python_source(saved.case),
        saved.case.to_json().decode(),
        "",
        *show.failure(saved.case, store.as_verdict(saved)),
        "",
        replay,
    ]
    return Told(saved.status.value, saved.status, str(path), str(path), replay, "\n".join(lines))


def _saved(case: Case, run: Run, kind: Kind, provenance: Provenance) -> SavedCase:
    return SavedCase(
        case=case,
        kind=kind,
        provenance=_of(provenance, run),
        status=run.verdict.status,
        reason=run.verdict.reason,
        discrepancies=run.verdict.discrepancies,
        failing_case=None if run.case == case else run.case,
    )


def _of(provenance: Provenance, run: Run) -> Provenance:
    """The provenance of a run: that of the slice, on the subject that ran."""
    return msgspec.structs.replace(provenance, subject=run.subject)


def _size(run: Run) -> tuple[float, float]:
    """How bad a run is: its worst error as a share of the bound, and in itself; NaN counts as infinite."""
    if not run.verdict.discrepancies:
        return (0.0, 0.0)
    worst = run.verdict.discrepancies[0]
    ratio, error = (math.inf if math.isnan(value) else value for value in (worst.ratio, worst.error))
    return (ratio, error)


def _worst(failure: Failure) -> str:
    ratio, error = _size(failure.worst[1])
    return f"error {error:.4g}" + ("" if math.isinf(ratio) else f", {ratio:.4g} times its bound")


def _short(path: Path, here: Path) -> str:
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)
