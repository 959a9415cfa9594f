"""The run as a whole, from its events: one row for each property and subject, and what is wrong with the whole."""

from __future__ import annotations

from dataclasses import dataclass, field

from equivcheck.coverage import Coverage
from equivcheck.engine.counts import Counts, merged
from equivcheck.engine.events import (
    AnyEvent,
    CaseCompared,
    CaseEnded,
    CaseRerun,
    Collected,
    FaultTried,
    FindingReplayed,
    Finished,
    SliceFinished,
    Started,
)
from equivcheck.engine.failures import Told
from equivcheck.verdict import Status

MISTRUSTED_SHARE = 0.5
"""A property whose cases could mostly have shown nothing has shown nothing (docs/properties.md)."""


@dataclass
class Row:
    """A property on a subject."""

    name: str
    subject: str
    counts: Counts = field(default_factory=Counts)
    slices: int = 0
    skipped: int = 0
    failed: int = 0
    seconds: float = 0.0
    coverage: Coverage = field(default_factory=Coverage)

    @property
    def problem(self) -> str:
        """What is wrong with the row as a whole, in a sentence; empty if nothing is."""
        judged = self.counts.judged
        mistrusted = self.counts.statuses.get(Status.MISTRUSTED, 0)
        if judged and mistrusted > MISTRUSTED_SHARE * judged:
            return (
                f"{self.name} on {self.subject}: {mistrusted} of {judged} judged cases could hardly have shown "
                "anything (mistrusted), so the property has shown nothing; draw other values"
            )
        return ""


@dataclass
class Summary:
    """Everything that a report of a run needs. Called with each event in turn."""

    started: Started | None = None
    collected: Collected | None = None
    finished: Finished | None = None
    rows: dict[tuple[str, str], Row] = field(default_factory=dict)
    slices_done: int = 0
    first_done: int = 0  # tests of a gate that come before its slices
    failures: list[Told] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    ended: dict[str, list[str]] = field(default_factory=dict)
    earlier: list[Told] = field(default_factory=list)
    replayed: list[FindingReplayed] = field(default_factory=list)

    def __call__(self, event: AnyEvent) -> None:
        """Take one event in."""
        match event:
            case Started():
                self.started = event
            case Collected():
                self.collected = event
            case SliceFinished():
                self._slice(event)
            case CaseEnded():
                (self.earlier if event.earlier_run else self.failures).append(event.failure)
                if not event.earlier_run:
                    self._ended(event)
            case FindingReplayed():
                self.replayed.append(event)
            case CaseRerun() | CaseCompared() | FaultTried():
                self.first_done += 1
            case Finished():
                self.finished = event

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong with properties as a whole, a sentence each."""
        return tuple(row.problem for row in self.rows.values() if row.problem)

    @property
    def total(self) -> Counts:
        """Counts of the whole run."""
        return merged(row.counts for row in self.rows.values())

    @property
    def subjects(self) -> tuple[str, ...]:
        """Subjects that were judged, in the order in which they came up."""
        return tuple(dict.fromkeys(row.subject for row in self.rows.values()))

    def of(self, subject: str) -> tuple[list[Row], Counts, Coverage]:
        """Rows of a subject, by property, their counts, and their coverage."""
        rows = sorted((row for row in self.rows.values() if row.subject == subject), key=lambda row: row.name)
        coverage = Coverage()
        for row in rows:
            coverage.merge(row.coverage)
        return rows, merged(row.counts for row in rows), coverage

    def _ended(self, event: CaseEnded) -> None:
        """A case has ended its process. Its slice will count it, unless it is given up: then nothing else does."""
        self.ended.setdefault(event.test, []).append(event.failure.status)
        if event.again:
            return
        row = self._row(event.property, event.subject)
        row.failed += 1
        for status in self.ended[event.test]:
            row.counts.statuses[status] = row.counts.statuses.get(status, 0) + 1

    def _slice(self, event: SliceFinished) -> None:
        row = self._row(event.property, event.subject)
        row.counts.merge(event.counts)
        if event.coverage:
            row.coverage.merge(Coverage.from_builtins(event.coverage))
        row.slices += 1
        row.skipped += event.outcome == "skipped"
        row.failed += event.outcome == "failed"
        row.seconds += event.seconds
        self.slices_done += 1
        self.failures += event.failures
        if event.outcome == "failed" and event.message:
            self.messages.append(f"{event.property} on {event.subject}, slice {event.slice}: {event.message}")

    def _row(self, property_name: str, subject: str) -> Row:
        return self.rows.setdefault((property_name, subject), Row(property_name, subject))
