"""Progress of a run: a bar on a terminal, plain lines elsewhere. On stderr, so that stdout is the result's."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from equivcheck.engine.child import Child
from equivcheck.engine.events import AnyEvent
from equivcheck.report.summary import Summary

_LINE_EVERY = 20.0
"""Seconds between lines in a log: enough to see that a job of minutes goes on."""


def follow(child: Child) -> Summary:
    """Show the progress of a child process until it ends, and return the summary of its events."""
    return watch(child.events())


def watch(events: Iterator[AnyEvent | None]) -> Summary:
    """The same for events as they come; None while there is nothing new."""
    summary = Summary()
    console = Console(file=sys.stderr, highlight=False, markup=False)
    if console.is_terminal:
        _bar(events, summary, console)
    else:
        _lines(events, summary)
    return summary


def _bar(events: Iterator[AnyEvent | None], summary: Summary, console: Console) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=None)
        for event in events:
            if event is not None:
                summary(event)
                if summary.collected is not None:
                    progress.update(task, total=summary.collected.slices)
                progress.update(task, description=_words(summary), completed=summary.slices_done)


def _lines(events: Iterator[AnyEvent | None], summary: Summary) -> None:
    start = last = time.monotonic()
    for event in events:
        if event is not None:
            summary(event)
        now = time.monotonic()
        if now - last >= _LINE_EVERY:
            last = now
            slices = summary.collected.slices if summary.collected else 0
            done = f"{summary.slices_done} of {slices} slices, " if slices else ""
            print(f"{now - start:4.0f} s: {done}{_words(summary)}", file=sys.stderr, flush=True)


def _words(summary: Summary) -> str:
    if summary.collected is None:
        return "looking for backends"
    failed = f", {len(summary.failures)} failures" if summary.failures else ""
    first = f", {summary.first_done:,} first tests" if summary.first_done else ""
    return f"{summary.total.judged:,} cases{first}{failed}"
