"""From properties to tests: the same in every worker, and the slices' counts on their way back."""

from __future__ import annotations

import msgspec
import pytest

from equivcheck.engine.hunt import RESULT, SliceResult, our_profile
from equivcheck.engine.properties import ARGUMENT, Property, Slice, property_of
from equivcheck.engine.subjects import Extent, Roster, write_extent
from equivcheck.engine.worker import Worker, worker_of
from equivcheck.findings import Finding, FindingError


def generate(metafunc: pytest.Metafunc) -> None:
    """Parametrise a property over subjects and slices, or a test of findings over findings and subjects."""
    worker = worker_of(metafunc.config)
    if ARGUMENT in metafunc.fixturenames:
        declared = property_of(metafunc.function)
        if declared is not None:
            slices = _slices(declared, worker.roster, our_profile(worker.options.profile).slices)
            metafunc.parametrize(ARGUMENT, slices, ids=[part.id for part in slices])
    else:
        pairs = _findings(worker)
        ids = [f"{finding.name}-{subject}" for finding, subject in pairs]
        metafunc.parametrize("recorded_finding", pairs, ids=ids, indirect=True)


def note(session: pytest.Session) -> None:
    """Write down how many slices were collected."""
    options = worker_of(session.config).options
    slices = sum(ARGUMENT in getattr(item, "fixturenames", ()) for item in session.items)
    write_extent(options.run_folder, Extent(slices, our_profile(options.profile).budget.work))


def properties(item: pytest.Item) -> list[tuple[str, object]]:
    """A slice's counts for JUnit's XML: statuses, the worst error, and the commands that replay its failures."""
    result = item.stash.get(RESULT, None)
    if not isinstance(result, SliceResult):
        return []
    counts = [(f"equivcheck.{status}", count) for status, count in result.counts.statuses.items()]
    worst = ("equivcheck.worst_ratio", result.counts.sums.worst_ratio)
    replays = [("equivcheck.replay", told.replay) for told in result.failures]
    return [("equivcheck.subject", result.subject), *counts, worst, *replays]


def attach(item: pytest.Item, report: pytest.TestReport) -> None:
    """Put a slice's result on its report, as plain data, which xdist carries to the controller."""
    result = item.stash.get(RESULT, None)
    if result is not None:
        report.equivcheck = msgspec.to_builtins(result)  # type: ignore[attr-defined]


def _slices(declared: Property, roster: Roster, number: int) -> list[Slice]:
    witnesses = roster.witnesses if declared.with_witness else (None,)
    slices = []
    for subject in roster.subjects:
        for witness in witnesses:
            # A subject that does not work is said once a property, not once a slice.
            broken = subject in roster.broken or witness in roster.broken
            slices += [Slice(subject, part, witness) for part in range(1 if broken else number)]
    return slices


def _findings(worker: Worker) -> list[tuple[Finding, str]]:
    try:
        return [
            (finding, subject)
            for subject in worker.roster.subjects
            for finding in worker.findings
            if finding.concerns(subject, worker.roster.versions.get(subject, {}))
        ]
    except FindingError as error:
        raise pytest.UsageError(str(error)) from None
