"""The process that people watch: it publishes events, takes over the journals of the dead, and sums up."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest

from equivcheck.engine import journal, machine
from equivcheck.engine.events import (
    AnyEvent,
    CaseEnded,
    Collected,
    FindingReplayed,
    Finished,
    SliceFinished,
    Started,
    Subscriber,
)
from equivcheck.engine.failures import tell_death
from equivcheck.engine.hunt import ReplayResult, SliceResult
from equivcheck.engine.journal import MOST_DEATHS, Death
from equivcheck.engine.options import Options
from equivcheck.engine.subjects import read_extent, read_roster
from equivcheck.engine.worker import commit
from equivcheck.report.jsonl import JsonLines
from equivcheck.report.summary import Summary
from equivcheck.report.terminal import as_text


class Controller:
    """Publishes what happens to its subscribers: the summary, and the file of JSON lines if one is asked for."""

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._start = time.monotonic()
        self._here = Path(options.here)
        self._deaths: dict[str, int] = {}
        self._lock: Any = None
        self.summary = Summary()
        self._subscribers: list[Subscriber] = [self.summary]
        events = config.getoption("equivcheck_events")
        if events:
            self._subscribers.append(JsonLines(self._here / events))
        self._publish(
            Started(
                options=msgspec.to_builtins(options),
                versions=machine.versions(),
                device=machine.device(),
                commit=commit(self._here),
                time=datetime.now(UTC).isoformat(timespec="seconds"),
            )
        )

    def recover(self) -> None:
        """Save the cases at which earlier runs ended."""
        for death in journal.stale(self._options.journals_folder):
            self._publish(self._ended(death, again=False, earlier_run=True))

    def collected(self) -> None:
        """Tell the slices and subjects, as the first worker wrote them down."""
        roster = read_roster(self._options.run_folder)
        if self.summary.collected is not None or roster is None:
            return
        self._lock = journal.join(self._options.run_folder)
        extent = read_extent(self._options.run_folder)
        event = Collected(extent.slices, largest_case=extent.largest_case, **msgspec.structs.asdict(roster))
        self._publish(event)
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if terminal is not None and terminal.verbosity >= 0 and event.slices:
            named = (f"{name} ({_versions(event.versions.get(name, {}))})" for name in roster.subjects)
            terminal.ensure_newline()
            terminal.write_line(f"equivcheck: {event.slices} slices on {', '.join(named) or 'no subject'}")

    def publish(self, report: pytest.TestReport) -> None:
        """Publish what a report carries."""
        result = msgspec.convert(report.equivcheck, SliceResult | ReplayResult)
        if isinstance(result, ReplayResult):
            self._publish(FindingReplayed(result.finding, result.subject, result.result, result.message))
            return
        message = ""
        if isinstance(report.longrepr, tuple):
            message = report.longrepr[2].removeprefix("Skipped: ")
        elif report.failed and not result.failures:
            message = report.longreprtext
        node = getattr(report, "node", None)
        self._publish(
            SliceFinished(
                property=result.property,
                subject=result.subject,
                slice=result.slice,
                outcome=report.outcome,
                seconds=report.duration,
                counts=result.counts,
                failures=tuple(result.failures),
                witness=result.witness,
                message=message,
                coverage=result.coverage,
                worker="main" if node is None else node.gateway.id,
            )
        )

    def publish_event(self, report: pytest.TestReport) -> None:
        """Publish an event that a test of another plugin's has made."""
        self._publish(msgspec.convert(report.equivcheck_event, AnyEvent))

    def worker_ended(self, item: str, report: pytest.TestReport, scheduler: Any) -> None:
        """A worker ended while it ran `item`: save its case, say so in the report, and run the rest of the slice."""
        worker = report.node.gateway.id
        death = journal.collect(self._options.run_folder, worker)
        if death is None or death.item != item:
            return
        self._deaths[item] = self._deaths.get(item, 0) + 1
        again = self._deaths[item] < MOST_DEATHS
        if again:
            try:
                scheduler.mark_test_pending(item)
            except NotImplementedError:  # --dist loadscope, loadfile, loadgroup, each
                again = False
        event = self._ended(death, again)
        rest = "the rest of the slice runs in a new process" if again else "the rest of the slice is not run"
        report.longrepr = f"{event.failure.text.removesuffix(event.failure.replay)}{rest}\n\n{event.failure.replay}"
        self._publish(event)

    def finish(self, session: pytest.Session) -> None:
        """Publish the end; a property that has shown nothing makes the run red."""
        problems = self.summary.problems
        if problems and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        self._publish(Finished(int(session.exitstatus), time.monotonic() - self._start, problems))

    def summarise(self, terminal: pytest.TerminalReporter) -> None:
        """Print the summary of the run."""
        lines = as_text(self.summary)
        if lines:
            terminal.section("equivcheck", sep="=")
            for line in lines:
                terminal.write_line(line)

    def close(self) -> None:
        """Remove the run's folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None
            journal.remove(self._options.run_folder)

    def _publish(self, event: AnyEvent) -> None:
        for subscriber in self._subscribers:
            subscriber(event)

    def _ended(self, death: Death, again: bool, earlier_run: bool = False) -> CaseEnded:
        where = death.saved.provenance
        told = tell_death(death.saved, self._options.failures_folder, self._here)
        return CaseEnded(
            where.property, where.subject, where.slice, told, again, earlier_run, where.witness, death.item
        )


def _versions(found: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in found.items()) or "no versions given"
