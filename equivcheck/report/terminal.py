"""The summary of a run as text: a table of properties and subjects, and what the run as a whole says."""

from __future__ import annotations

import io
from collections.abc import Iterator

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from equivcheck.engine.counts import Counts
from equivcheck.engine.show import number, shares
from equivcheck.report.summary import Row, Summary
from equivcheck.verdict import Status

_MOST_REASONS = 6
_WIDTH = 500
"""More columns than a table needs, so that none is cut off."""

_SHORT = {Status.MISTRUSTED: "mistr.", Status.UNSUPPORTED: "unsup.", Status.CRASHED: "crash", Status.TIMEOUT: "time"}


def as_text(summary: Summary) -> list[str]:
    """The summary in plain lines. They are left to the reader's window to wrap: they hold commands to be copied."""
    text = io.StringIO()
    console = Console(file=text, width=_WIDTH, color_system=None, highlight=False, markup=False, emoji=False)
    for part in parts(summary):
        console.print(part, soft_wrap=isinstance(part, Text))
    return [line.rstrip() for line in text.getvalue().splitlines()]


def parts(summary: Summary) -> Iterator[RenderableType]:
    """What is printed, in order."""
    largest = summary.collected.largest_case if summary.collected is not None else 0
    for subject in summary.subjects:
        rows, counts, coverage = summary.of(subject)
        yield _table(subject, rows, counts)
        if coverage.cases:
            yield Text(f"coverage: {coverage.line(largest)}")
        for name, share in sorted(counts.shares.items()):
            yield Text(f"{name}: {share.hits:,} of {share.of:,} ({shares(share.hits, share.of)})")
        if counts.transfers.copies:
            yield Text(_transfers(counts))
        if counts.findings:
            yield Text(f"findings met: {_most(counts.findings)}")
        if counts.unsupported:
            yield Text(f"refused: {_most(counts.unsupported)}")
        yield Text()
    refused = [replayed for replayed in summary.replayed if replayed.result == "not applicable"]
    for replayed in summary.replayed:
        if replayed.result not in ("same", "not applicable"):
            yield Text(f"finding {replayed.finding} on {replayed.subject}: {replayed.message}")
    if refused:
        yield Text(f"findings whose minimal case a variant refuses: {len(refused)}")
    for told in summary.earlier:
        yield Text(f"an earlier run ended at a case ({told.status}), now saved: {told.replay}")
    if summary.collected is not None:
        for name, reason in summary.collected.absent.items():
            yield Text(f"not here: {name}: {reason}")
    for problem in summary.problems:
        yield Text(problem)


def _table(subject: str, rows: list[Row], total: Counts) -> Table:
    statuses = [status for status in Status if total.statuses.get(status, 0)]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(subject, no_wrap=True)
    for name in ("cases", *(_SHORT.get(s, s.value) for s in statuses), "trusted", "exact", "undet.", "err/bound"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, counts in (*((row.name, row.counts) for row in rows), ("all", total)):
        sums = counts.sums
        table.add_row(
            name,
            f"{counts.judged:,}",
            *(f"{counts.statuses.get(status, 0):,}" for status in statuses),
            shares(sums.trusted, sums.judged),
            shares(sums.exact, sums.judged),
            shares(sums.undetermined, sums.judged + sums.undetermined),
            number(float(f"{sums.worst_ratio:.3g}")),
        )
    return table


def _transfers(counts: Counts) -> str:
    """Bytes, time and rate of each direction. Small copies cost their latency, so the rate is no bandwidth."""
    found = counts.transfers
    ways = (
        f"{way}: {size / 2**20:,.1f} MiB in {seconds:.2f} s"
        for way, size, seconds in (
            ("to the device", found.to_device_bytes, found.to_device_seconds),
            ("to the host, computing included", found.to_host_bytes, found.to_host_seconds),
        )
    )
    return f"transfers: {found.copies:,} in {found.cases:,} cases; {'; '.join(ways)}"


def _most(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda pair: -pair[1])
    shown = "; ".join(f"{name.rstrip('.')} ({count:,})" for name, count in ordered[:_MOST_REASONS])
    rest = len(ordered) - _MOST_REASONS
    return shown + (f"; and {rest} more reasons" if rest > 0 else "")
